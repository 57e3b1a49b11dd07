//! Rows 1 to 7 of the precedence table, as CEL: [`crate::policy::checks`] in another language.
//!
//! Only the users' own expressions can fail at run time.

use super::access::{Access, Shape};
use super::cel::{all, any, list, matches_one, not, optional, quoted, requirements};
use super::environment::{AtHand, Environment, UPDATE, Variables};
use super::presence::{Claimed, is_current};
use super::{Cel, Inexpressible, delivery, expressions, half, loss, values};
use crate::api::INJECT_KEY;
use crate::api::v1alpha1::{HostNetworkPods, LabelSelector, OptOut, Target};
use crate::naming::PROBE;
use crate::policy::checks::{HOST_FIELDS, MAX_SAID, NAME_LABEL};
use crate::policy::refused::Refused;
use crate::policy::{Policy, Site};
use crate::workload::Kind;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The longest match condition, in bytes, because the server evaluates it for every object.
const MAX_CONDITION: usize = 20_000;

/// The match conditions for `policies`, if they save the server work: one of the policies may match the object. They
/// use neither variables nor the Namespace, because these are unavailable there. Each condition costs the server a copy
/// of every object, so a condition that is nearly always true is omitted.
pub(super) fn conditions(rows: &Rows<'_>, policies: &[&Policy], site: &Site) -> Vec<Value> {
    let one = any(&policies.iter().map(|policy| all(&rows.at_hand(policy))).collect::<Vec<_>>());
    let is_any = policies.iter().any(|policy| rows.at_hand(policy).is_empty());
    if is_any || one.len() > MAX_CONDITION {
        return Vec::new();
    }
    vec![json!({ "name": "one-selects", "expression": format!("{one} || {}", is_own(site)) })]
}

/// The condition that one of `policies` may select the workload and has not been injected, for an API server that calls a
/// webhook. It uses neither variables nor the Namespace. None if the expression is too long.
pub(super) fn is_left(rows: &Rows<'_>, policies: &[&Policy]) -> Option<String> {
    let of_all = |left_by: &dyn Fn(&Policy) -> Vec<String>| {
        let one = any(&policies.iter().map(|policy| all(&left_by(policy))).collect::<Vec<_>>());
        all(&[every(is_ordinary(rows.kind)), one])
    };
    let is_typed = rows.access.shape == Shape::Typed;
    let names = |policy: &Policy| if is_typed { rows.claimed(policy).has_names() } else { "true".to_owned() };
    let values = |policy: &Policy| if is_typed { values::agree(policy, rows.access) } else { "true".to_owned() };
    let is_short = |condition: &String| condition.len() <= MAX_CONDITION;
    let by_both = of_all(&|policy| rows.left_by(policy, &all(&[names(policy), values(policy)])));
    // A marker alone is better than no condition, because then nothing would be injected there. But values are judged in any case.
    Some(by_both)
        .filter(is_short)
        .or_else(|| Some(of_all(&|policy| rows.left_by(policy, &values(policy)))).filter(is_short))
}

/// A condition on a workload.
pub(super) enum Term {
    Plain(String),
    /// A condition on this map of the object's metadata, if the map exists.
    OfMap(&'static str, String),
}

/// The condition that all of `terms` are true. Each map is checked for existence once. It is nearly always missing, and
/// the check costs the server as much as a whole condition.
pub(super) fn every(terms: Vec<Term>) -> String {
    let mut maps: Vec<(&str, Vec<String>)> = Vec::new();
    let mut plain = Vec::new();
    for term in terms {
        match term {
            Term::Plain(term) => plain.push(term),
            Term::OfMap(map, term) => match maps.iter_mut().find(|(own, _)| *own == map) {
                Some((_, terms)) => terms.push(term),
                None => maps.push((map, vec![term])),
            },
        }
    }
    let maps = maps.into_iter().map(|(map, terms)| format!("(!has({map}) || {})", all(&terms)));
    all(&maps.chain(plain).collect::<Vec<_>>())
}

const ANNOTATIONS: &str = "object.metadata.annotations";
const LABELS: &str = "object.metadata.labels";

/// Row 1, and the rest of row 3: the conditions that the object is not exempt. A created object is never terminating,
/// because the server ensures that before admission.
pub(super) fn is_ordinary(kind: &Kind) -> Vec<Term> {
    if kind.resource != "pods" {
        return Vec::new();
    }
    let mirror = format!("!(\"kubernetes.io/config.mirror\" in {ANNOTATIONS})");
    vec![Term::OfMap(ANNOTATIONS, mirror)]
}

/// Row 2: the condition that the object is in a protected namespace, where nothing is injected.
pub(super) fn is_protected(site: &Site) -> String {
    // The server converts a list of constants to a set, once.
    format!("request.namespace in {}", list(site.protected_namespaces.iter().map(String::as_str)))
}

/// The condition that the object is in the operator's own namespace. It is protected: only probes are mutated or judged
/// there.
pub(super) fn is_own(site: &Site) -> String {
    format!("request.namespace == {}", quoted(&site.operator_namespace))
}

/// The condition that the object has the label of a probe.
pub(super) fn is_probe() -> String {
    format!("object.metadata.?labels[?{}].hasValue()", quoted(PROBE))
}

/// The conditions of rows 4 to 7.
pub(super) struct Rows<'a> {
    pub(super) access: &'a Access,
    pub(super) kind: &'a Kind,
    /// All policies with a template for the resource.
    pub(super) policies: &'a [&'a Policy],
    /// The old object of an update. None if updates are not matched, because no policy acts on them.
    pub(super) old: Option<&'a Access>,
}

/// Whether one of `policies` acts on updates of `kind`.
pub(super) fn act_on_updates(policies: &[&Policy], kind: &Kind) -> bool {
    policies.iter().any(|policy| policy.acts_on_update(kind))
}

impl Rows<'_> {
    /// The content of `policy` in the pod.
    pub(super) fn claimed<'a>(&'a self, policy: &'a Policy) -> Claimed<'a> {
        Claimed { policy, forms: policy.forms(self.kind), access: self.access, policies: self.policies }
    }

    /// Rows 4 and 5: true where the pod may be injected.
    pub(super) fn is_open(&self, policy: &Policy, environment: &mut dyn Environment) -> Vec<Term> {
        let mut terms = Vec::new();
        if policy.spec.host_network_pods != HostNetworkPods::Inject {
            terms.extend(HOST_FIELDS.map(|field| Term::Plain(self.is_apart(field))));
        }
        terms.extend(self.is_not_opted_out(policy, environment));
        terms
    }

    /// The condition that the pod does not set `field`, one of [`HOST_FIELDS`].
    pub(super) fn is_apart(&self, field: &str) -> String {
        let spec = &self.access.spec;
        match self.access.shape {
            Shape::Typed => format!("!has({spec}.{field})"),
            Shape::Free => format!("{spec}.?{field}.orValue(false) != true"),
        }
    }

    /// Row 5.
    pub(super) fn is_not_opted_out(&self, policy: &Policy, environment: &mut dyn Environment) -> Vec<Term> {
        let mut terms = Vec::new();
        if policy.spec.opt_out == OptOut::Allowed {
            let name = quoted(&policy.name);
            let refuses = |value: &str| {
                let words = format!("{value}.split(\",\").map(w, w.trim())");
                // The length first, because a split costs more than all else.
                format!(
                    "size({value}) <= {MAX_SAID} && {value} != \"true\" && {words}.exists(w, w != \"\") && !({name} in {words})"
                )
            };
            for (field, map) in [("annotations", ANNOTATIONS), ("labels", LABELS)] {
                terms.push(Term::OfMap(map, not(&entry(map, &quoted(INJECT_KEY), refuses))));
                let has_template = !self.access.pointer.is_empty();
                terms.extend(has_template.then(|| Term::Plain(self.template_allows(field, refuses, environment))));
            }
        }
        terms
    }

    /// The condition that the pod template has no `scpol.dev/inject` in the map `field` for which `refuses` is true.
    /// Without `optMap`, because servers of 1.30 and 1.31 (cel-go 0.17.8, 0.20.1) cannot type it after a chain of
    /// optional fields.
    fn template_allows(
        &self,
        field: &str,
        refuses: impl Fn(&str) -> String,
        environment: &mut dyn Environment,
    ) -> String {
        let (key, refuses) = (quoted(INJECT_KEY), refuses("v"));
        match self.access.shape {
            Shape::Typed => {
                let value = format!("{}.?metadata.?{field}[?{key}].orValue(\"true\")", self.access.pod);
                format!("![{value}].exists(v, {refuses})")
            }
            Shape::Free => {
                let map = self.access.entries(field, environment);
                format!("![{map}[?{key}].orValue(\"true\")].exists(v, type(v) == string && {refuses})")
            }
        }
    }

    /// Row 6: true where the pod has no marker of `policy` with the current hash, or lacks content of it.
    ///
    /// # Errors
    /// If the template cannot be compared in CEL.
    pub(super) fn is_missing(&self, policy: &Policy, variables: &mut Variables) -> Result<Term, Inexpressible> {
        if policy.has_parameters() {
            if variables.values.are_usual(policy).is_none() {
                return Err(Inexpressible::new(
                    "it has `parameters`, and pods with other values would have to be compared",
                ));
            }
            // Content with values is not compared: what has the names of it gets no other in its place.
            let names = [self.claimed(policy).has_names(), values::agree(policy, self.access)];
            let missing = self.without_marker(policy, &variables.short("is_there", all(&names)), variables);
            // The policy does not act on updates.
            return Ok(match self.old {
                Some(_) => Term::Plain(all(&[not(UPDATE), every(vec![missing])])),
                None => missing,
            });
        }
        let whole = self.claimed(policy).is_whole(variables)?;
        Ok(self.without_marker(policy, &variables.short("is_whole", whole), variables))
    }

    /// The conditions that the pod has, under the marker of `policy`, one of the earlier contents that are let through. What is
    /// too long for the server, or cannot be compared in CEL, is left out: then its create is refused.
    pub(super) fn carries_past(&self, policy: &Policy, variables: &mut Variables) -> Vec<String> {
        let mut found = Vec::new();
        for past in policy.admitted_past() {
            let (earlier, mut with) = (policy.with_content(&past.content), variables.clone());
            let Ok(missing) = self.is_missing(&earlier, &mut with) else { continue };
            let is_there = not(&every(vec![missing]));
            let length = |variables: &Variables| variables.iter().map(|(_, text)| text.len()).sum::<usize>();
            if is_there.len() + length(&with) - length(variables) <= MAX_CONDITION {
                *variables = with;
                found.push(is_there);
            }
        }
        found
    }

    /// True where the pod has no marker of `policy` with the current hash, or `whole` is false.
    pub(super) fn without_marker(&self, policy: &Policy, whole: &str, environment: &mut dyn Environment) -> Term {
        let key = quoted(policy.marker_key());
        let is_ours = |value: &str| all(&[is_current(policy, value), whole.to_owned()]);
        match self.access.shape {
            Shape::Typed if self.access.is_pod => Term::OfMap(ANNOTATIONS, not(&entry(ANNOTATIONS, &key, is_ours))),
            Shape::Typed => {
                let value = format!("{}.?metadata.?annotations[?{key}].orValue(\"\")", self.access.pod);
                Term::Plain(not(&is_ours(&value)))
            }
            Shape::Free => {
                let annotations = self.access.entries("annotations", environment);
                let value = format!("{annotations}[{key}]");
                let is_marked = format!("{key} in {annotations} && type({value}) == string && {}", is_ours(&value));
                Term::Plain(not(&is_marked))
            }
        }
    }

    /// Row 6; for an update, true also where it takes away additions of `policy`.
    ///
    /// # Errors
    /// As in [`Self::is_missing`].
    pub(super) fn is_due(&self, policy: &Policy, variables: &mut Variables) -> Result<Term, Inexpressible> {
        let missing = self.is_missing(policy, variables)?;
        let Some(lost) = self.is_lost(policy, variables) else { return Ok(missing) };
        Ok(Term::Plain(format!("({UPDATE} && {lost} || {})", every(vec![missing]))))
    }

    /// True where `policy` may inject: for a create, or an update that takes away its additions. The other policies that
    /// match count for conflicts. None if no update is matched.
    pub(super) fn restores(&self, policy: &Policy, variables: &mut Variables) -> Option<String> {
        self.old?;
        let lost = self.is_lost(policy, variables);
        Some(self.by_operation(policy, lost, false, "true"))
    }

    /// The condition that an update takes away additions of `policy`; none if the policy does not act on updates.
    fn is_lost(&self, policy: &Policy, variables: &mut Variables) -> Option<String> {
        let old = self.old.filter(|_| policy.acts_on_update(self.kind))?;
        let lost = loss::is_lost(policy, old, self.access, variables);
        let acts = self.version(policy, Target::acts_on_update);
        Some(all(&[acts.unwrap_or_else(|| "true".to_owned()), lost]))
    }

    /// The condition that an update takes away the marker of `policy`; none if the policy does not act on updates.
    pub(super) fn loses_marker(&self, policy: &Policy, variables: &mut Variables) -> Option<String> {
        let old = self.old.filter(|_| policy.acts_on_update(self.kind))?;
        Some(loss::loses_marker(policy, old, self.access, variables))
    }

    /// The condition that the pod has the property `refused`.
    pub(super) fn has(&self, refused: Refused) -> String {
        match refused {
            Refused::OnHost(field) => not(&self.is_apart(field)),
            Refused::Ending => delivery::ends(self.access),
        }
    }

    /// `create` for a create, and `update` for an update on which `policy` acts. The value is `otherwise` for other
    /// updates.
    pub(super) fn by_operation(
        &self,
        policy: &Policy,
        update: Option<String>,
        otherwise: bool,
        create: &str,
    ) -> String {
        if self.old.is_none() {
            return create.to_owned();
        }
        let acts = self.version(policy, Target::acts_on_update);
        let update = match (update, acts) {
            (None, _) => otherwise.to_string(),
            (Some(update), None) => update,
            (Some(update), Some(acts)) => format!("({acts} ? {update} : {otherwise})"),
        };
        format!("({UPDATE} ? {update} : {create})")
    }

    /// Row 7, in the order of the contract: the conditions that the policy selects the workload.
    ///
    /// # Errors
    /// If an expression of the policy cannot be used.
    pub(super) fn selects(&self, policy: &Policy, variables: &mut Variables) -> Result<Vec<String>, Inexpressible> {
        let mut terms = self.request(policy);
        terms.extend(half::condition(policy, variables));
        if let Some(selector) = &policy.spec.namespace_selector {
            terms.extend(namespace_labels(selector, variables));
        }
        terms.extend(self.has_labels(policy, variables));
        for (_, expression) in &policy.conditions {
            terms.push(expressions::define(expression, "condition", self.access.root, variables)?);
        }
        Ok(terms)
    }

    /// The part of row 7 about the annotations and labels of the object.
    fn has_labels(&self, policy: &Policy, environment: &mut dyn Environment) -> Vec<String> {
        let mut map =
            |field: &str| environment.define(field, &format!("{}.metadata.?{field}.orValue({{}})", self.access.root));
        let mut terms = Vec::new();
        if let Some(selector) = &policy.spec.annotation_selector {
            let map = map("annotations");
            terms.extend(requirements(&map, &selector.match_annotations, &selector.match_expressions));
        }
        if let Some(selector) = &policy.spec.label_selector {
            terms.extend(requirements(&map("labels"), &selector.match_labels, &selector.match_expressions));
        }
        terms
    }

    /// The part of row 7 that needs no variables.
    fn at_hand(&self, policy: &Policy) -> Vec<String> {
        let mut terms = self.request(policy);
        // One of two halves always has the object, and the server evaluates a match condition for each object.
        terms.extend(half::condition(policy, &mut AtHand).filter(|_| !is_by_workload(policy)));
        terms.extend(self.has_labels(policy, &mut AtHand));
        terms
    }

    /// Rows 4 to 7 as far as they need no variables. `whole` is the condition that a marker of a built-in kind counts.
    fn left_by(&self, policy: &Policy, whole: &str) -> Vec<String> {
        let mut terms = self.at_hand(policy);
        terms.extend(half::condition(policy, &mut AtHand).filter(|_| is_by_workload(policy)));
        if self.access.shape == Shape::Typed {
            let mut open = self.is_open(policy, &mut AtHand);
            let unmarked = self.without_marker(policy, whole, &mut AtHand);
            open.push(match self.old {
                None => unmarked,
                Some(old) => Term::Plain(self.left_after_update(policy, old, &every(vec![unmarked]))),
            });
            terms.push(every(open));
            return terms;
        }
        // The content of a custom resource cannot be found without variables, and a marker alone proves nothing.
        terms.extend(self.old.map(|old| self.left_after_update(policy, old, "true")));
        terms
    }

    /// `unmarked` for a create. For an update, the condition that it takes away the marker of `policy`: content alone
    /// cannot be compared without variables.
    fn left_after_update(&self, policy: &Policy, old: &Access, unmarked: &str) -> String {
        let has = |access: &Access, key: &str| format!("{}.hasValue()", self.marker_in(access, key));
        let keys = loss::marker_keys(policy);
        let [before, after] =
            [old, self.access].map(|access| any(&keys.iter().map(|key| has(access, key)).collect::<Vec<_>>()));
        let lost = format!("({} && {before} && !{after})", loss::is_alive());
        let lost = policy.acts_on_update(self.kind).then_some(lost);
        self.by_operation(policy, lost, false, unmarked)
    }

    /// The annotation `key` of the pod in the object of `access`, as an optional value.
    fn marker_in(&self, access: &Access, key: &str) -> String {
        let path = self.kind.pod_path.iter().flatten();
        let pod = path.fold(access.root.to_owned(), |at, step| optional(&at, step));
        format!("{pod}.?metadata.?annotations[?{}]", quoted(key))
    }

    /// The part of row 7 about the request: the version and the namespace.
    fn request(&self, policy: &Policy) -> Vec<String> {
        let mut terms: Vec<String> = self.version(policy, |_| true).into_iter().collect();
        if let Some(globs) = &policy.spec.namespaces {
            terms.push(matches_one("request.namespace", globs));
        }
        if let Some(globs) = policy.spec.exclude_namespaces.as_ref().filter(|globs| !globs.is_empty()) {
            terms.push(not(&matches_one("request.namespace", globs)));
        }
        terms
    }

    /// The condition that the object is posted through a version of a target for which `counts` is true; none if every
    /// version is one.
    fn version(&self, policy: &Policy, counts: impl Fn(&Target) -> bool) -> Option<String> {
        let targets: Vec<&Target> = policy.targets_of(self.kind).filter(|target| counts(target)).collect();
        if targets.iter().any(|target| target.version == "*") {
            return None;
        }
        let named: BTreeSet<(&str, &str)> =
            targets.iter().map(|target| (target.group.as_str(), target.version.as_str())).collect();
        let posted = |(group, version): &(&str, &str)| {
            format!("request.resource.group == {} && request.resource.version == {}", quoted(group), quoted(version))
        };
        Some(any(&named.iter().map(posted).collect::<Vec<_>>()))
    }
}

/// The condition that the map at the path `map` has an entry `key` for which `is_so` is true. The entry is nearly
/// always missing, and this check is cheaper than optional values.
fn entry(map: &str, key: &str, is_so: impl Fn(&str) -> String) -> String {
    format!("{key} in {map} && {}", is_so(&format!("{map}[{key}]")))
}

/// Whether `policy` is one of two halves that divide workloads, not Namespaces.
fn is_by_workload(policy: &Policy) -> bool {
    policy.half().is_some_and(|half| half.extent.is_by_workload())
}

fn namespace_labels(selector: &LabelSelector, variables: &mut Variables) -> Vec<String> {
    let map = variables.namespace_labels();
    let by_name = |key: &str| key == NAME_LABEL;
    let (named, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
        selector.match_labels.clone().into_iter().partition(|(key, _)| by_name(key));
    let (of_name, rest): (Vec<_>, Vec<_>) =
        selector.match_expressions.iter().cloned().partition(|requirement| by_name(&requirement.key));
    let mut terms = requirements(&map, &others, &rest);
    if !named.is_empty() || !of_name.is_empty() {
        let key = quoted(NAME_LABEL);
        // A Namespace keeps its name even if a user removes the label.
        let name = variables.define("namespace_name", &format!("{{{key}: {map}[?{key}].orValue(request.namespace)}}"));
        terms.extend(requirements(&name, &named, &of_name));
    }
    terms
}

/// All conditions of rows 4, 5 and 7.
///
/// # Errors
/// As in [`Rows::selects`].
pub(super) fn is_wanted(rows: &Rows<'_>, policy: &Policy, variables: &mut Variables) -> Cel {
    let mut terms = rows.is_open(policy, variables);
    terms.extend(rows.selects(policy, variables)?.into_iter().map(Term::Plain));
    Ok(every(terms))
}
