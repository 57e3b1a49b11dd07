//! The precedence table, one function per row, in order. The first that gives a reason decides.

use super::{Policy, Reason, Site, Verdict, keys};
use crate::api::code::Code;
use crate::api::v1alpha1::{
    AnnotationSelector, HostNetworkPods, LabelSelector, Operator, OptOut, Requirement, SidecarPolicySpec,
};
use crate::api::{INJECT_KEY, similar};
use crate::inject::marker;
use crate::workload::Workload;
use admission_cel::{Budget, Variables};
use serde_json::Value;
use std::collections::BTreeMap;
use wildmatch::WildMatch;

/// A row: a reason to skip, an error, or none if the row has no objection.
pub type Check = fn(&Policy, &Workload, &Site) -> Option<Verdict>;

/// Rows 1 to 3, in order: they are the same for every policy.
const UNTOUCHABLE: [fn(&Workload, &Site) -> Option<Reason>; 3] = [
    mirror_pod,  // row 1
    protected,   // row 2
    terminating, // row 3
];

/// The rows' results that are the same for every policy, computed once for a workload.
pub struct Common {
    has_initializers: bool,
    untouchable: Option<Reason>,
    is_plain: bool,
    is_update: bool,
}

impl Common {
    /// The results for `workload`.
    pub fn of(workload: &Workload, site: &Site) -> Self {
        let untouchable = UNTOUCHABLE.iter().find_map(|check| check(workload, site));
        let is_plain = is_plain(workload);
        Self { has_initializers: workload.has_initializers(), untouchable, is_plain, is_update: false }
    }

    /// The same results for a workload that lost content by an update: row 6 does not count, because the marker may be
    /// all that is left.
    #[must_use]
    pub fn of_update(workload: &Workload, site: &Site) -> Self {
        Self { is_update: true, ..Self::of(workload, site) }
    }

    /// The rows from 4 on that may object, in order.
    pub fn rows(&self) -> &'static [Check] {
        match self {
            Self { is_plain: true, .. } => SELECTION,
            Self { is_update: true, .. } => AFTER_LOSS,
            _ => CHAIN,
        }
    }

    /// The reason of rows 0 to 3 against `policy`, if there is one.
    pub fn untouchable(&self, policy: &Policy, workload: &Workload, site: &Site) -> Option<Reason> {
        let bypassed = self.has_initializers.then(|| bypassed(policy, workload, site)).flatten();
        bypassed.or_else(|| self.untouchable.clone())
    }
}

/// True if rows 4 to 6 have no objection to `workload` for any policy, as for most workloads. False for a custom
/// resource, because each policy gives its own path of the pod.
fn is_plain(workload: &Workload) -> bool {
    workload.kind.is_in_table()
        && shared_with_host(workload).is_none()
        && said(workload).next().is_none()
        && !marker::is_marked(workload)
}

/// The rows from 4 on, in order.
const CHAIN: &[Check] = &[
    host_network,     // row 4
    opted_out,        // row 5
    already_injected, // row 6
    target,           // row 7, in the order of the contract
    namespace,
    namespace_labels,
    annotations,
    labels,
    conditions,
];

/// The same without row 6.
const AFTER_LOSS: &[Check] =
    &[host_network, opted_out, target, namespace, namespace_labels, annotations, labels, conditions];

/// The verdict of `rows`: the first that says no decides. A row that cannot decide counts only if no other row says no.
pub(super) fn run(rows: &[Check], policy: &Policy, workload: &Workload, site: &Site) -> Verdict {
    let mut unknown = None;
    for check in rows {
        match check(policy, workload, site) {
            None | Some(Verdict::Inject) => {}
            Some(Verdict::Error(reason)) => drop(unknown.get_or_insert(reason)),
            Some(skip) => return skip,
        }
    }
    unknown.map_or(Verdict::Inject, Verdict::Error)
}

/// Whether the validations of `policy` apply to `workload`: rows 0 to 3 and 7 have no objection. The other rows do not
/// count.
///
/// # Errors
/// The reason why a row cannot decide.
pub fn is_judged(common: &Common, policy: &Policy, workload: &Workload, site: &Site) -> Result<bool, Reason> {
    if common.untouchable(policy, workload, site).is_some() {
        return Ok(false);
    }
    match run(SELECTION, policy, workload, site) {
        Verdict::Inject => Ok(true),
        Verdict::Skip(_) => Ok(false),
        Verdict::Error(reason) => Err(reason),
    }
}

const SELECTION: &[Check] = &[target, namespace, namespace_labels, annotations, labels, conditions];

/// False if `spec.targets` or the lists of namespaces exclude `workload`. Cheap, because it gives no reason.
pub fn reaches(policy: &Policy, workload: &Workload) -> bool {
    policy.kinds.contains(&workload.kind) && policy.covers_namespace(workload.namespace())
}

/// The reason of row 7 against `workload`, if there is one.
pub(super) fn unselected(policy: &Policy, workload: &Workload, site: &Site) -> Option<Reason> {
    if let Verdict::Skip(reason) = run(SELECTION, policy, workload, site) { Some(reason) } else { None }
}

/// True if and only if every requirement of row 7 holds. Rows 4 and 5 give an event only then.
pub fn selects(policy: &Policy, workload: &Workload, site: &Site) -> bool {
    run(SELECTION, policy, workload, site) == Verdict::Inject
}

fn reason(row: u8, code: Code, detail: impl Into<String>) -> Option<Verdict> {
    Some(Verdict::Skip(Reason { row, code, detail: detail.into() }))
}

/// Row 0, for an object with initializers. The server adds no name to an object that comes with its own list: a user
/// with that right may leave us out. On a stored object, finished names are gone; so any name of ours means that the
/// object waits for us.
fn bypassed(policy: &Policy, workload: &Workload, site: &Site) -> Option<Reason> {
    let is_stored = !workload.uid().is_empty();
    if workload.pending().any(|name| name == policy.initializer_name || (is_stored && site.owns(name))) {
        return None;
    }
    let detail = format!("the object brings its own `metadata.initializers`, without `{}`", policy.initializer_name);
    Some(Reason { row: 0, code: Code::Bypassed, detail })
}

/// Every user of a server may write both annotations. A mirror pod that is none never runs: the kubelet deletes it. The
/// source changes nothing for a pod of a server, so it counts only in files.
fn mirror_pod(workload: &Workload, site: &Site) -> Option<Reason> {
    let is_mirror = || workload.annotation("kubernetes.io/config.mirror").is_some();
    let is_file = |source: &str| site.reads_files && source != "api";
    let is_static = || workload.annotation("kubernetes.io/config.source").is_some_and(is_file);
    let is_the_kubelets = workload.kind.resource == "pods" && (is_mirror() || is_static());
    is_the_kubelets.then(|| Reason { row: 1, code: Code::MirrorPod, detail: "the kubelet owns this pod".into() })
}

fn protected(workload: &Workload, site: &Site) -> Option<Reason> {
    let namespace = workload.namespace();
    let detail = || format!("namespace `{namespace}` is protected");
    let is_protected = site.protected_namespaces.contains(namespace);
    is_protected.then(|| Reason { row: 2, code: Code::NamespaceProtected, detail: detail() })
}

fn terminating(workload: &Workload, _: &Site) -> Option<Reason> {
    let detail = || "the object is being deleted".into();
    workload.is_terminating().then(|| Reason { row: 3, code: Code::Terminating, detail: detail() })
}

fn host_network(policy: &Policy, workload: &Workload, _: &Site) -> Option<Verdict> {
    // Those that `Refuse` keeps out are refused later, because a workload that opts out is skipped.
    if policy.spec.host_network_pods != HostNetworkPods::Skip {
        return None;
    }
    let used = shared_with_host(workload)?;
    reason(4, Code::HostNetwork, format!("the pod sets `{used}: true`"))
}

/// The fields by which a pod uses the namespaces of its node.
pub(crate) const HOST_FIELDS: [&str; 2] = ["hostNetwork", "hostPID"];

/// The field by which the pod uses the namespaces of its node.
pub(crate) fn shared_with_host(workload: &Workload) -> Option<&'static str> {
    HOST_FIELDS.into_iter().find(|field| uses_host(workload, field))
}

/// Whether the pod sets `field`, one of [`HOST_FIELDS`].
pub(crate) fn uses_host(workload: &Workload, field: &str) -> bool {
    workload.pod_spec().and_then(|spec| spec.get(field)).is_some_and(|on| on == true)
}

fn opted_out(policy: &Policy, workload: &Workload, _: &Site) -> Option<Verdict> {
    if policy.spec.opt_out == OptOut::Denied {
        return None;
    }
    let said = refusal(policy, workload)?;
    reason(5, Code::OptedOut, format!("`{INJECT_KEY}: {said}` on the workload or its pod template"))
}

/// The most characters of a value of `scpol.dev/inject`: the names of 64 policies. A longer one says nothing.
pub(crate) const MAX_SAID: usize = 4096;

/// The value of `scpol.dev/inject` that keeps `policy` out of `workload`, whether or not the policy honours it.
pub fn refusal<'a>(policy: &Policy, workload: &'a Workload) -> Option<&'a str> {
    said(workload).filter(|value| marker::is_within(value, MAX_SAID)).find(|value| {
        let mut names = value.split(',').map(str::trim).filter(|name| !name.is_empty()).peekable();
        // An empty value is no opt-out, because it names nothing; an event reports it.
        names.peek().is_some() && *value != "true" && !names.any(|name| name == policy.name)
    })
}

/// The values of `scpol.dev/inject` on the workload and its pod template.
pub fn said(workload: &Workload) -> impl Iterator<Item = &str> {
    let own = [workload.annotation(INJECT_KEY), workload.label(INJECT_KEY)];
    let has_template = workload.kind.pod_path.as_ref().is_some_and(|path| !path.is_empty());
    let of_template =
        has_template.then(|| [workload.pod_annotation(INJECT_KEY), workload.pod_label(INJECT_KEY)]).into_iter();
    own.into_iter().chain(of_template.flatten()).flatten()
}

/// What `workload` says to us and does not reach us, with codes: the faults in values of `scpol.dev/inject`, and a key that resembles ours.
/// `known` gives the names of all policies.
pub fn unheard<'a, I: Iterator<Item = &'a str>>(workload: &Workload, known: impl Fn() -> I) -> Vec<(Code, String)> {
    let values = odd_values(workload, &known).into_iter().map(|message| (Code::InvalidOptOut, message));
    let keys = keys::misspelt(workload, |name| known().any(|known| known == name));
    values.chain(keys.map(|message| (Code::MisspeltKey, message))).collect()
}

/// The faults in `scpol.dev/inject` on `workload`: values that are empty or too long, and names that are not in `known`, the names of all
/// policies.
fn odd_values<'a, I: Iterator<Item = &'a str>>(workload: &Workload, known: impl Fn() -> I) -> Vec<String> {
    let mut odd = Vec::new();
    for value in said(workload).filter(|value| !matches!(*value, "true" | "false")) {
        if !marker::is_within(value, MAX_SAID) {
            odd.push(format!(
                "`{INJECT_KEY}` has more than {MAX_SAID} characters, and says nothing: name fewer policies"
            ));
            continue;
        }
        let mut names = value.split(',').map(str::trim).filter(|name| !name.is_empty()).peekable();
        if names.peek().is_none() {
            odd.push(format!(
                "`{INJECT_KEY}` has an empty value, which says nothing: use \"true\", \"false\" or names of policies"
            ));
        }
        for name in names.filter(|name| !known().any(|known| known == *name)) {
            let hint = meant(name).or_else(|| similar(name, known()));
            let hint = hint.map(|meant| format!("; did you mean \"{meant}\"?")).unwrap_or_default();
            odd.push(format!("`{INJECT_KEY}` names `{name}`, and there is no such SidecarPolicy{hint}"));
        }
    }
    odd
}

/// The one of `true` and `false` that `word` probably stands for.
fn meant(word: &str) -> Option<&'static str> {
    match word.to_lowercase().as_str() {
        "true" | "yes" | "y" | "on" | "1" | "enable" | "enabled" | "inject" => Some("true"),
        "false" | "no" | "n" | "off" | "0" | "disable" | "disabled" | "never" | "none" | "skip" => Some("false"),
        _ => None,
    }
}

/// The content decides, because every user may write a marker.
fn already_injected(policy: &Policy, workload: &Workload, _: &Site) -> Option<Verdict> {
    if !policy.is_injected(workload) {
        return None;
    }
    Some(Verdict::Skip(injected(policy)))
}

/// The reason of row 6.
pub(crate) fn injected(policy: &Policy) -> Reason {
    let outdated = policy.outdated_values().map(|values| format!("; {values}")).unwrap_or_default();
    let detail = format!("the marker has the current hash {}{outdated}", policy.template_hash());
    Reason { row: 6, code: Code::AlreadyInjected, detail }
}

fn target(policy: &Policy, workload: &Workload, _: &Site) -> Option<Verdict> {
    if policy.kinds.contains(&workload.kind) {
        return None;
    }
    reason(7, Code::TargetNotMatched, format!("`{}` is not among `spec.targets`", workload.kind.resource))
}

/// The lists of names of Namespaces that a policy has.
#[derive(Clone, Debug)]
pub(super) struct NamespaceLists {
    /// None lets all through.
    listed: Option<Globs>,
    excluded: Globs,
}

/// Globs, as they are written and compiled.
type Globs = Vec<(String, WildMatch)>;

impl NamespaceLists {
    /// The lists of `spec`.
    pub(super) fn of(spec: &SidecarPolicySpec) -> Self {
        let globs = |list: &Vec<String>| list.iter().map(|glob| (glob.clone(), WildMatch::new(glob))).collect();
        Self {
            listed: spec.namespaces.as_ref().map(globs),
            excluded: spec.exclude_namespaces.as_ref().map(globs).unwrap_or_default(),
        }
    }

    /// How the lists keep out `namespace`, and the globs of that list; none if they let it through.
    pub(super) fn objection(&self, namespace: &str) -> Option<(&'static str, &[(String, WildMatch)])> {
        let is_in = |globs: &Globs| globs.iter().any(|(_, glob)| glob.matches(namespace));
        if is_in(&self.excluded) {
            return Some(("is excluded by `spec.excludeNamespaces`", &self.excluded));
        }
        let listed = self.listed.as_ref().filter(|listed| !is_in(listed))?;
        Some(("is not in `spec.namespaces`", listed))
    }
}

/// The number of globs of a list that a reason names.
const SHOWN_GLOBS: usize = 5;

fn namespace(policy: &Policy, workload: &Workload, _: &Site) -> Option<Verdict> {
    let namespace = workload.namespace();
    if policy.covers_namespace(namespace) {
        return None;
    }
    let (words, globs) = policy.namespaces.objection(namespace).unwrap_or(("has the other content", &[]));
    let more = if globs.len() > SHOWN_GLOBS { ", …" } else { "" };
    let shown = globs.iter().take(SHOWN_GLOBS).map(|(glob, _)| glob.as_str()).collect::<Vec<_>>().join(", ");
    reason(7, Code::NamespaceNotMatched, format!("namespace `{namespace}` {words} [{shown}{more}]"))
}

/// The label with the name of a Namespace. Servers set it from 1.21; for older ones we add it.
pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";

fn namespace_labels(policy: &Policy, workload: &Workload, _: &Site) -> Option<Verdict> {
    let selector = policy.spec.namespace_selector.as_ref()?;
    let Some(namespace) = &workload.namespace_object else {
        let detail =
            format!("`spec.namespaceSelector` needs the Namespace `{}`, which could not be read", workload.namespace());
        return Some(Verdict::Error(Reason { row: 7, code: Code::NamespaceUnreadable, detail }));
    };
    let unmet = unmet_of_namespace(selector, workload.namespace(), namespace)?;
    reason(7, Code::NamespaceLabelsNotMatched, unmet.told)
}

/// Whether `selector` selects the Namespace `name` by its labels. `namespace` is its object.
pub fn selects_namespace(selector: &LabelSelector, name: &str, namespace: &Value) -> bool {
    unmet_of_namespace(selector, name, namespace).is_none()
}

/// Whether `selector` selects what has these labels. `value` gives the value of a key.
pub fn selects_labels<'a>(selector: &LabelSelector, value: impl Fn(&str) -> Option<&'a str>) -> bool {
    unmet_labels(selector, "", value).is_none()
}

fn unmet_of_namespace(selector: &LabelSelector, name: &str, namespace: &Value) -> Option<Unmet> {
    let labels = &namespace["metadata"]["labels"];
    let value =
        |key: &str| labels.get(key).and_then(|value| value.as_str()).or_else(|| (key == NAME_LABEL).then_some(name));
    unmet_labels(selector, &format!(" of namespace `{name}`"), value)
}

fn annotations(policy: &Policy, workload: &Workload, _: &Site) -> Option<Verdict> {
    let selector = policy.spec.annotation_selector.as_ref()?;
    let unmet_here = unmet_annotations(selector, |key| workload.annotation(key))?;
    let hint = elsewhere(workload, &unmet_here, "annotations", || {
        unmet_annotations(selector, |key| workload.pod_annotation(key))
    });
    reason(7, Code::AnnotationNotMatched, unmet_here.told + hint)
}

/// A hint for the reason if the pod template has the key that the workload lacks. `of_template` checks the template.
fn elsewhere(workload: &Workload, unmet: &Unmet, map: &str, of_template: impl Fn() -> Option<Unmet>) -> &'static str {
    let has_template = workload.kind.pod_path.as_ref().is_some_and(|path| !path.is_empty());
    match map {
        _ if !(unmet.is_absent && has_template && of_template().is_none()) => "",
        "labels" => "; the pod template has it, and `labelSelector` asks the workload itself",
        _ => "; the pod template has it, and `annotationSelector` asks the workload itself",
    }
}

fn labels(policy: &Policy, workload: &Workload, _: &Site) -> Option<Verdict> {
    let selector = policy.spec.label_selector.as_ref()?;
    let unmet = unmet_labels(selector, "", |key| workload.label(key))?;
    let hint = elsewhere(workload, &unmet, "labels", || unmet_labels(selector, "", |key| workload.pod_label(key)));
    reason(7, Code::LabelsNotMatched, unmet.told + hint)
}

/// The variables of expressions.
pub fn variables(workload: &Workload) -> Variables<'_> {
    Variables {
        object: workload.seen_by_expressions(),
        namespace: workload.namespace_object.as_deref(),
        template: None,
    }
}

/// A false condition decides even after a failed one, as on the server.
fn conditions(policy: &Policy, workload: &Workload, site: &Site) -> Option<Verdict> {
    let mut budget = Budget::match_conditions();
    let mut failed = None;
    for (name, expression) in &policy.conditions {
        match expression.on(site.dialect()).test(&variables(workload), &mut budget) {
            Ok(true) => {}
            Ok(false) => {
                let detail = format!("condition `{name}` is false: {}", expression.source().trim());
                return reason(7, Code::ConditionNotMatched, detail);
            }
            Err(failure) => drop(failed.get_or_insert(format!("condition `{name}` failed: {failure}"))),
        }
    }
    failed.map(|detail| Verdict::Error(Reason { row: 7, code: Code::ExpressionFailed, detail }))
}

fn unmet_annotations<'a>(selector: &AnnotationSelector, value: impl Fn(&str) -> Option<&'a str>) -> Option<Unmet> {
    unmet(&selector.match_annotations, &selector.match_expressions, ("annotation", ""), value)
}

fn unmet_labels<'a>(selector: &LabelSelector, of: &str, value: impl Fn(&str) -> Option<&'a str>) -> Option<Unmet> {
    unmet(&selector.match_labels, &selector.match_expressions, ("label", of), value)
}

/// A requirement that does not hold.
struct Unmet {
    /// The two values that were compared.
    told: String,
    /// Whether the key is missing.
    is_absent: bool,
}

/// The first requirement that does not hold. `value` gives the value of a key. Messages call the key a `noun` `of`
/// something.
fn unmet<'a>(
    wanted: &BTreeMap<String, String>,
    requirements: &[Requirement],
    (noun, of): (&str, &str),
    value: impl Fn(&str) -> Option<&'a str>,
) -> Option<Unmet> {
    // `concat`, because it takes half as long as `format`: most policies do not match, and every reason is a text.
    let told = |key: &str, there: Option<&str>, [but, wanted, end]: [&str; 3]| Unmet {
        told: match there {
            Some(there) => [noun, " `", key, "`", of, " is `", there, "`", but, wanted, end].concat(),
            None => [noun, " `", key, "`", of, " is absent", but, wanted, end].concat(),
        },
        is_absent: there.is_none(),
    };
    let differs = |(key, wanted): (&String, &String)| {
        let there = value(key);
        (there != Some(wanted)).then(|| told(key, there, [", not `", wanted, "`"]))
    };
    let fails = |requirement: &Requirement| {
        let Requirement { key, operator, values } = requirement;
        let there = value(key);
        let values = values.as_deref().unwrap_or_default();
        let listed = there.is_some_and(|there| values.iter().any(|wanted| wanted == there));
        // As everywhere in Kubernetes, an absent key satisfies `NotIn`.
        let holds = match operator {
            Operator::In => listed,
            Operator::NotIn => !listed,
            Operator::Exists => there.is_some(),
            Operator::DoesNotExist => there.is_none(),
        };
        (!holds).then(|| told(key, there, ["; wanted is ", &demand(*operator, values), ""]))
    };
    wanted.iter().find_map(differs).or_else(|| requirements.iter().find_map(fails))
}

fn demand(operator: Operator, values: &[String]) -> String {
    match operator {
        Operator::Exists | Operator::DoesNotExist => format!("`{}`", operator.as_str()),
        Operator::In | Operator::NotIn => format!("`{}` [{}]", operator.as_str(), values.join(", ")),
    }
}
