//! Findings about selection: policies that match nothing, or match too much.

use super::{Context, Note};
use crate::api::code::Code;
use crate::api::v1alpha1::{
    AnnotationSelector, EngineChoice, FailurePolicy, LabelSelector, NativeSidecars, Operator, Requirement,
    SidecarPolicySpec,
};
use crate::policy::Site;
use crate::policy::checks::NAME_LABEL;
use crate::workload::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wildmatch::WildMatch;

/// A condition on one key.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    /// The field with the condition, or words for it.
    field: String,
    key: String,
    operator: Operator,
    values: BTreeSet<String>,
}

impl Demand {
    fn told(&self) -> String {
        let values = self.values.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        match self.operator {
            Operator::In | Operator::NotIn => format!("{} [{values}]", self.operator.as_str()),
            Operator::Exists | Operator::DoesNotExist => self.operator.as_str().to_owned(),
        }
    }
}

/// The values that remain for a key after some demands.
#[derive(Default)]
struct ValuesLeft<'a> {
    must_be_there: bool,
    must_be_absent: bool,
    allowed: Option<BTreeSet<&'a str>>,
    denied: BTreeSet<&'a str>,
}

impl<'a> ValuesLeft<'a> {
    fn take(&mut self, demand: &'a Demand) {
        let values: BTreeSet<_> = demand.values.iter().map(String::as_str).collect();
        match demand.operator {
            Operator::Exists => self.must_be_there = true,
            Operator::DoesNotExist => self.must_be_absent = true,
            // Not required, because an absent key satisfies `NotIn` in Kubernetes.
            Operator::NotIn => self.denied.extend(values),
            Operator::In => {
                self.must_be_there = true;
                let before = self.allowed.take();
                self.allowed = Some(before.map_or(values.clone(), |before| &before & &values));
            }
        }
    }

    fn is_nothing(&self) -> bool {
        let no_value = self.allowed.as_ref().is_some_and(|allowed| allowed.is_subset(&self.denied));
        self.must_be_there && (self.must_be_absent || no_value)
    }
}

/// The demands that contradict earlier ones, each with the first one that it contradicts alone, if there is one. Only
/// the first for each key.
fn impossible(demands: &[Demand]) -> Vec<(&Demand, Option<&Demand>)> {
    let mut left: BTreeMap<&str, ValuesLeft<'_>> = BTreeMap::new();
    let mut found: Vec<(&Demand, Option<&Demand>)> = Vec::new();
    for (index, demand) in demands.iter().enumerate() {
        let state = left.entry(&demand.key).or_default();
        state.take(demand);
        if state.is_nothing() && !found.iter().any(|(other, _)| other.key == demand.key) {
            let mut before = demands[..index].iter().filter(|before| before.key == demand.key);
            found.push((demand, before.find(|before| contradict(before, demand))));
        }
    }
    found
}

fn contradict(one: &Demand, other: &Demand) -> bool {
    let mut left = ValuesLeft::default();
    left.take(one);
    left.take(other);
    left.is_nothing()
}

/// True if and only if nothing can satisfy both `one` and `other`.
pub(super) fn exclude_each_other(one: &[Demand], other: &[Demand]) -> bool {
    !impossible(&[one, other].concat()).is_empty()
}

/// The demands of a policy on labels of a Namespace, and on labels and annotations of a workload.
pub(super) fn demands(spec: &SidecarPolicySpec, site: &Site) -> [(&'static str, Vec<Demand>); 3] {
    let mut of_namespace = names(spec, site);
    of_namespace.extend(by_labels("spec.namespaceSelector", spec.namespace_selector.as_ref()));
    let of_annotations = spec.annotation_selector.iter().flat_map(|selector| {
        let AnnotationSelector { match_annotations, match_expressions } = selector;
        listed("spec.annotationSelector", "matchAnnotations", match_annotations, match_expressions)
    });
    let of_labels = by_labels("spec.labelSelector", spec.label_selector.as_ref());
    [("namespace label", of_namespace), ("annotation", of_annotations.collect()), ("label", of_labels)]
}

/// The lists of names as demands on the label with the Namespace's name.
fn names(spec: &SidecarPolicySpec, site: &Site) -> Vec<Demand> {
    let demand = |field: &str, operator, values: BTreeSet<String>| Demand {
        field: field.to_owned(),
        key: NAME_LABEL.to_owned(),
        operator,
        values,
    };
    let excluded = spec.exclude_namespaces.iter().flatten().filter(|name| is_literal(name)).cloned().collect();
    let mut demands = vec![
        demand("the protected namespaces", Operator::NotIn, site.protected_namespaces.clone()),
        demand("spec.excludeNamespaces", Operator::NotIn, excluded),
    ];
    if let Some(listed) = literals(spec) {
        demands.push(demand("spec.namespaces", Operator::In, listed.iter().cloned().collect()));
    }
    demands
}

/// The namespaces that a policy names, if it names all of them in full.
pub(super) fn literals(spec: &SidecarPolicySpec) -> Option<&Vec<String>> {
    spec.namespaces.as_ref().filter(|names| names.iter().all(|name| is_literal(name)))
}

pub(super) fn is_literal(glob: &str) -> bool {
    !glob.contains(['*', '?'])
}

fn by_labels(path: &str, selector: Option<&LabelSelector>) -> Vec<Demand> {
    let Some(LabelSelector { match_labels, match_expressions }) = selector else { return Vec::new() };
    listed(path, "matchLabels", match_labels, match_expressions)
}

fn listed(path: &str, map: &str, wanted: &BTreeMap<String, String>, requirements: &[Requirement]) -> Vec<Demand> {
    let exact = wanted.iter().map(|(key, value)| Demand {
        field: format!("{path}.{map}.{key}"),
        key: key.clone(),
        operator: Operator::In,
        values: [value.clone()].into(),
    });
    let others = requirements.iter().enumerate().map(|(index, requirement)| Demand {
        field: format!("{path}.matchExpressions[{index}]"),
        key: requirement.key.clone(),
        operator: requirement.operator,
        values: requirement.values.iter().flatten().cloned().collect(),
    });
    // Without malformed requirements, because the rules report them.
    exact.chain(others).filter(|demand| demand.operator != Operator::In || !demand.values.is_empty()).collect()
}

pub(super) fn contradictions(spec: &SidecarPolicySpec, context: &Context) -> Vec<Note> {
    let demands = demands(spec, &context.site);
    let [of_namespace, _, of_workload] = &demands;
    // Not for names alone, because `namespaces` reports those.
    let of_policy = demands
        .iter()
        .flat_map(|(noun, demands)| contradicting(noun, demands, |field| field != "spec.namespaces"))
        .collect::<Vec<_>>();
    let rolling = spec.rolling_update();
    let steps = rolling.iter().flat_map(|rolling| rolling.steps.iter().enumerate());
    let of_steps = steps.flat_map(|(index, step)| {
        let selectors = [
            ("namespaceSelector", &step.namespace_selector, of_namespace),
            ("workloadSelector", &step.workload_selector, of_workload),
        ];
        selectors.into_iter().flat_map(move |(field, selector, (noun, of_policy))| {
            let path = format!("spec.updateStrategy.rollingUpdate.steps[{index}].{field}");
            let own = by_labels(&path, selector.as_ref());
            contradicting(noun, &[of_policy.clone(), own].concat(), |field| field.starts_with(&path))
        })
    });
    of_policy.into_iter().chain(of_steps).collect()
}

/// The demands on `noun` at fields that `is_meant` that contradict earlier ones.
fn contradicting(noun: &str, demands: &[Demand], is_meant: impl Fn(&str) -> bool) -> Vec<Note> {
    let found = impossible(demands).into_iter().filter(|(demand, _)| is_meant(&demand.field));
    let note = |(demand, first): (&Demand, Option<&Demand>)| {
        let reason = first.map_or("the requirements before it leave no value".to_owned(), |first| {
            let field =
                if first.field.starts_with("spec.") { format!("`{}`", first.field) } else { first.field.clone() };
            format!("contradicts {field}, {}", first.told())
        });
        let message = format!(
            "is {} for {noun} `{}`, and {reason}: nothing can satisfy both; remove one of them",
            demand.told(),
            demand.key
        );
        Note::new(Code::ContradictorySelector, &demand.field, message)
    };
    found.map(note).collect()
}

/// Names of namespaces without effect.
pub(super) fn namespaces(spec: &SidecarPolicySpec, context: &Context) -> Vec<Note> {
    let excluded: Vec<_> = spec.exclude_namespaces.iter().flatten().map(String::as_str).collect();
    let in_vain = |name: &str| {
        if is_literal(name) && context.site.protected_namespaces.contains(name) {
            return Some(format!("`{name}` is a protected namespace, which no policy reaches"));
        }
        let index = excluded.iter().position(|excluded| covers(excluded, name))?;
        Some(format!("`{name}` is excluded by `spec.excludeNamespaces[{index}]`, `{}`", excluded[index]))
    };
    let Some(names) = &spec.namespaces else {
        let all = excluded.iter().position(|excluded| covers(excluded, "*"));
        let note = |index| {
            let message = "excludes every namespace; name those that are meant";
            Note::new(Code::NoNamespaceLeft, format!("spec.excludeNamespaces[{index}]"), message)
        };
        return all.map(note).into_iter().collect();
    };
    let reasons: Vec<_> = names.iter().map(|name| in_vain(name)).collect();
    if !reasons.is_empty() && reasons.iter().all(Option::is_some) {
        let reasons = reasons.into_iter().flatten().collect::<Vec<_>>().join("; ");
        let message = format!("has no namespace that is left: {reasons}; name another one, or leave the field out");
        return vec![Note::new(Code::NoNamespaceLeft, "spec.namespaces", message)];
    }
    let indexed = reasons.into_iter().enumerate();
    let note = |(index, reason): (usize, Option<String>)| {
        let message = format!("adds nothing: {}; remove the entry", reason?);
        Some(Note::new(Code::NamespaceUnreachable, format!("spec.namespaces[{index}]"), message))
    };
    indexed.filter_map(note).collect()
}

/// True only if the glob `wide` matches every name that the glob `narrow` matches.
pub(super) fn covers(wide: &str, narrow: &str) -> bool {
    // Because a `*` in `narrow` counts as a character here: a `*` in `wide` may match it, a `?` must not.
    let is_sound = !(wide.contains('?') && narrow.contains('*'));
    is_sound && WildMatch::new(wide).matches(narrow)
}

/// True if and only if some name matches both globs.
pub(super) fn overlap(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(|glob| glob.chars().collect::<Vec<_>>());
    let may_be_empty = |glob: &[char]| glob.iter().all(|&char| char == '*');
    // By the ends of both globs: `below[at]` is the answer for the shorter end of `one`, and the end of `other` from `at`.
    let mut below: Vec<_> = (0..=other.len()).map(|at| may_be_empty(&other[at..])).collect();
    for (index, &char) in one.iter().enumerate().rev() {
        let mut row = vec![may_be_empty(&one[index..]); other.len() + 1];
        for at in (0..other.len()).rev() {
            row[at] = match (char, other[at]) {
                ('*', _) | (_, '*') => below[at] || row[at + 1],
                (a, b) => (a == b || a == '?' || b == '?') && below[at + 1],
            };
        }
        below = row;
    }
    below[0]
}

/// Duplicate targets.
pub(super) fn targets(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let mut notes = Vec::new();
    for (index, target) in spec.targets.iter().enumerate() {
        let is_same = |earlier: &&crate::api::v1alpha1::Target| {
            let kinds = [*earlier, target].map(|target| Kind::of(&target.group, &target.resource, None));
            let is_any = earlier.version == "*" || earlier == &target;
            kinds[0] == kinds[1] && is_any
        };
        if let Some(earlier) = spec.targets[..index].iter().position(|earlier| is_same(&earlier)) {
            let message = format!("is covered by `spec.targets[{earlier}]` already; remove it");
            notes.push(Note::new(Code::NoEffect, format!("spec.targets[{index}]"), message));
        }
    }
    notes
}

/// The indexes of the targets that are of the resource `name`.
pub(super) fn targeting<'a>(spec: &'a SidecarPolicySpec, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_meant = move |kind: &Arc<Kind>| kind.resource == name;
    let indexed = spec.targets.iter().enumerate();
    let meant = indexed.filter(move |(_, target)| Kind::find(&target.group, &target.resource).is_some_and(is_meant));
    meant.map(|(index, _)| index)
}

/// Pods as targets on Initializers, where the operator could not start again.
pub(super) fn pods(spec: &SidecarPolicySpec, context: &Context) -> Vec<Note> {
    if !context.uses_initializers(spec) {
        return Vec::new();
    }
    let note = |index| {
        let message = "is `pods`: on Kubernetes 1.12 and 1.13 no pod can be created while every replica of the operator is \
                       down, its own neither; target `deployments`";
        Note::new(Code::PodsCannotBypass, format!("spec.targets[{index}].resource"), message)
    };
    targeting(spec, "pods").map(note).collect()
}

/// Pods as targets with `failurePolicy: Fail`.
pub(super) fn fail_on_pods(spec: &SidecarPolicySpec, context: &Context) -> Vec<Note> {
    let is_meant = spec.failure_policy == FailurePolicy::Fail
        && context.uses_initializers(spec)
        && targeting(spec, "pods").next().is_some();
    let message = "is `Fail` for pods: on Kubernetes 1.12 and 1.13 every pod in conflict stays away, and so does each one that \
                   waits for the operator; use `Ignore`, or target `deployments`";
    is_meant.then(|| Note::new(Code::FailBlocksPods, "spec.failurePolicy", message)).into_iter().collect()
}

/// The usual namespaces of what a cluster needs to start, if it is not in `kube-system`: network, certificates, disks.
const ADD_ONS: [&str; 8] = [
    "calico-apiserver",
    "calico-system",
    "cert-manager",
    "cilium",
    "kube-flannel",
    "longhorn-system",
    "rook-ceph",
    "tigera-operator",
];
/// The most namespaces that a message names.
const NAMED: usize = 3;

/// Why `failurePolicy: Fail` of `spec` may keep a cluster from starting: it reaches `ADD_ONS`. None if a selector or a
/// condition chooses among workloads, or if the author has excluded namespaces.
pub fn add_ons_at_risk(spec: &SidecarPolicySpec, site: &Site) -> Option<String> {
    let chooses = spec.namespace_selector.is_some()
        || spec.label_selector.is_some()
        || spec.annotation_selector.is_some()
        || !spec.match_conditions.is_empty();
    let is_called = spec.engine != EngineChoice::MutatingAdmissionPolicy;
    let starts = ["pods", "daemonsets", "deployments", "statefulsets"];
    let is_target = starts.into_iter().any(|resource| targeting(spec, resource).next().is_some());
    if spec.failure_policy != FailurePolicy::Fail || chooses || !is_called || !is_target {
        return None;
    }
    let is_kept = |name: &str| {
        let mut excluded = spec.exclude_namespaces.iter().flatten();
        site.protected_namespaces.contains(name) || excluded.any(|glob| covers(glob, name))
    };
    let what = match &spec.namespaces {
        None if spec.exclude_namespaces.is_some() => return None,
        None => "all namespaces, with those of network, certificates and disks".to_owned(),
        Some(globs) => {
            let is_reached = |name: &&str| globs.iter().any(|glob| covers(glob, name)) && !is_kept(name);
            let reached: Vec<_> = ADD_ONS.into_iter().filter(is_reached).take(NAMED).collect();
            if reached.is_empty() {
                return None;
            }
            reached.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        }
    };
    Some(format!(
        "is `Fail` for {what}: while the operator cannot answer, their pods are refused, and the cluster may not start; exclude these \
         namespaces with `excludeNamespaces`, or use `namespaceSelector`"
    ))
}

/// `failurePolicy: Fail` for what a cluster needs to start.
pub(super) fn fail_on_add_ons(spec: &SidecarPolicySpec, context: &Context) -> Vec<Note> {
    // Reported as worse: it keeps the operator itself from starting.
    if !fail_on_pods(spec, context).is_empty() {
        return Vec::new();
    }
    let message = add_ons_at_risk(spec, &context.site);
    message.map(|message| Note::new(Code::FailBlocksAddOns, "spec.failurePolicy", message)).into_iter().collect()
}

/// Plain sidecars in pods that end by themselves.
pub(super) fn endless_jobs(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let has_containers = spec.template.as_ref().is_some_and(|template| !template.containers.is_empty());
    if spec.native_sidecars != NativeSidecars::Never || !has_containers {
        return Vec::new();
    }
    let Some(index) = targeting(spec, "cronjobs").chain(targeting(spec, "jobs")).next() else { return Vec::new() };
    let message = format!(
        "is `Never`, and `spec.targets[{index}]` is `{}`: a plain sidecar keeps Jobs from ending; leave it out for `ForJobs`, \
         or remove that target",
        spec.targets[index].resource
    );
    vec![Note::new(Code::JobsNeverEnd, "spec.nativeSidecars", message)]
}

/// Jobs as targets on Initializers.
pub(super) fn jobs(spec: &SidecarPolicySpec, context: &Context) -> Vec<Note> {
    if !context.uses_initializers(spec) || spec.engine == EngineChoice::Initializer {
        return Vec::new();
    }
    let note = |index| {
        let message = "is `jobs`: Initializers cannot change the pod template of a Job, so this server must call the webhook of \
                       the operator for it; see that it can (`scpol check --engine Webhook`), or target `pods`";
        Note::new(Code::UnsupportedKind, format!("spec.targets[{index}].resource"), message)
    };
    targeting(spec, "jobs").map(note).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_covers_another_only_if_it_stands_for_every_name_of_it() {
        for (wide, narrow, expected) in [
            ("*", "shop", true),
            ("*", "*", true),
            ("shop-*", "shop-*", true),
            ("shop-*", "shop-eu-*", true),
            ("shop-eu-*", "shop-*", false),
            ("shop-?", "shop-*", false),
            ("shop-?", "shop-?", true),
            ("shop-*", "shop-?", true),
            ("shop", "shop-*", false),
            ("?", "*", false),
        ] {
            assert_eq!(covers(wide, narrow), expected, "{wide} {narrow}");
        }
    }
    /// All texts of at most `length` of `atoms`.
    fn texts(atoms: &str, length: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        for _ in 0..length {
            let longer = all.iter().flat_map(|text| atoms.chars().map(move |atom| format!("{text}{atom}")));
            all.extend(longer.collect::<Vec<_>>());
        }
        all.sort();
        all.dedup();
        all
    }

    #[test]
    fn two_globs_overlap_if_and_only_if_a_name_matches_both() {
        let (globs, names) = (texts("ab*?", 3), texts("abc", 6));
        let matched = |glob: &String| {
            let glob = WildMatch::new(glob);
            names.iter().map(|name| glob.matches(name)).collect::<Vec<_>>()
        };
        let matched: Vec<_> = globs.iter().map(matched).collect();
        for (one, by_one) in globs.iter().zip(&matched) {
            for (other, by_other) in globs.iter().zip(&matched) {
                let expected = by_one.iter().zip(by_other).any(|(one, other)| *one && *other);
                assert_eq!(overlap(one, other), expected, "`{one}` `{other}`");
            }
        }
    }
}
