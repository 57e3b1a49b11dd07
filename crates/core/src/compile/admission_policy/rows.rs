//! Rows 1 to 7 of the precedence table, as CEL: [`crate::policy::checks`] in another language.
//!
//! Nothing here fails when it runs, but for the users' own expressions.

use super::Inexpressible;
use super::access::{Access, Shape};
use super::cel::{all, any, list, matches_one, not, quoted};
use super::expressions;
use super::variables::Variables;
use crate::api::INJECT_KEY;
use crate::api::v1alpha1::{HostNetworkPods, LabelSelector, Operator, OptOut, Requirement};
use crate::inject::marker;
use crate::naming::PROBE;
use crate::policy::checks::NAME_LABEL;
use crate::policy::{Policy, Site};
use crate::workload::Kind;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// How long the condition that no policy is for an object may be, in bytes: it is asked about every one.
const MAX_CONDITION: usize = 20_000;

/// The match conditions for `policies`, if any would spare the server something: that one of them can be for the object, as far as
/// that can be told where neither variables nor the Namespace are to be had. Any condition costs the server one more copy of
/// each object, so none is there that nearly always holds.
pub(super) fn conditions(rows: &Rows<'_>, policies: &[&Policy], site: &Site) -> Vec<Value> {
    let one = any(&policies.iter().map(|policy| all(&rows.at_hand(policy))).collect::<Vec<_>>());
    let is_any = policies.iter().any(|policy| rows.at_hand(policy).is_empty());
    if is_any || one.len() > MAX_CONDITION {
        return Vec::new();
    }
    vec![json!({ "name": "one-selects", "expression": format!("{one} || {}", is_own(site)) })]
}

/// What must be true of a workload.
pub(super) enum Term {
    Plain(String),
    /// Of this map of its metadata, if it has it.
    OfMap(&'static str, String),
}

/// That every one of `terms` is true. A map is asked for once: nearly always it is not there, and to see that costs the server as
/// much as a whole condition.
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

/// Row 1, and what is left of row 3: true for what nobody has to leave alone. Nothing that is created is terminating: the server
/// sees to that before admission.
pub(super) fn is_ordinary(kind: &Kind) -> Vec<Term> {
    if kind.resource != "pods" {
        return Vec::new();
    }
    let mirror = format!("!(\"kubernetes.io/config.mirror\" in {ANNOTATIONS})");
    let source = format!("{ANNOTATIONS}[?\"kubernetes.io/config.source\"].orValue(\"api\") == \"api\"");
    [mirror, source].map(|term| Term::OfMap(ANNOTATIONS, term)).into()
}

/// Row 2: that the object is in a protected namespace, where nothing is injected.
pub(super) fn is_protected(site: &Site) -> String {
    // The server makes a set of a list of constants, once.
    format!("request.namespace in {}", list(site.protected_namespaces.iter().map(String::as_str)))
}

/// That the object is in the operator's own namespace, which is protected: nothing there is injected or judged but for probes.
pub(super) fn is_own(site: &Site) -> String {
    format!("request.namespace == {}", quoted(&site.operator_namespace))
}

/// Whether the object is a probe, in the operator's own namespace.
pub(super) fn is_probe() -> String {
    format!("object.metadata.?labels[?{}].hasValue()", quoted(PROBE))
}

/// What rows 4 to 7 ask, as far as a policy asks it.
pub(super) struct Rows<'a> {
    pub(super) access: &'a Access,
    pub(super) kind: &'a Kind,
}

impl Rows<'_> {
    /// Rows 4 and 5: true where the pod may be injected.
    pub(super) fn is_open(&self, policy: &Policy, variables: &mut Variables) -> Vec<Term> {
        let mut terms = Vec::new();
        if policy.spec.host_network_pods == HostNetworkPods::Skip {
            let spec = &self.access.spec;
            terms.extend(["hostNetwork", "hostPID"].map(|field| match self.access.shape {
                Shape::Typed => Term::Plain(format!("!has({spec}.{field})")),
                Shape::Free => Term::Plain(format!("{spec}.?{field}.orValue(false) != true")),
            }));
        }
        if policy.spec.opt_out == OptOut::Allowed {
            let name = quoted(&policy.name);
            let refuses = |value: &str| {
                let words = format!("{value}.split(\",\").map(w, w.trim())");
                format!("{value} != \"true\" && {words}.exists(w, w != \"\") && !({name} in {words})")
            };
            for (field, map) in [("annotations", ANNOTATIONS), ("labels", LABELS)] {
                terms.push(Term::OfMap(map, not(&entry(map, &quoted(INJECT_KEY), refuses))));
                let has_template = !self.access.pointer.is_empty();
                terms.extend(has_template.then(|| Term::Plain(self.template_allows(field, refuses, variables))));
            }
        }
        terms
    }

    /// That the pod template has no `scpol.dev/inject` in the map `field` that `refuses`. Not by `optMap`: servers of 1.30 and 1.31
    /// (cel-go 0.17.8, 0.20.1) cannot type it after a chain of optional fields.
    fn template_allows(&self, field: &str, refuses: impl Fn(&str) -> String, variables: &mut Variables) -> String {
        let (key, refuses) = (quoted(INJECT_KEY), refuses("v"));
        match self.access.shape {
            Shape::Typed => {
                let value = format!("{}.?metadata.?{field}[?{key}].orValue(\"true\")", self.access.pod);
                format!("![{value}].exists(v, {refuses})")
            }
            Shape::Free => {
                let map = self.access.entries(field, variables);
                format!("![{map}[?{key}].orValue(\"true\")].exists(v, type(v) == string && {refuses})")
            }
        }
    }

    /// Row 6: true where the pod has no marker of `policy` with the current hash.
    pub(super) fn is_unmarked(&self, policy: &Policy, variables: &mut Variables) -> Term {
        let key = quoted(&policy.template.marker_key);
        let current = quoted(&format!("{}{}{}", marker::BEGINNING, policy.template.hash, marker::ADDED));
        let is_ours =
            |value: &str| format!("{value}.startsWith({current}) && {value}.matches({})", quoted(&marker::pattern()));
        match self.access.shape {
            Shape::Typed if self.access.is_pod => Term::OfMap(ANNOTATIONS, not(&entry(ANNOTATIONS, &key, is_ours))),
            Shape::Typed => {
                let value = format!("{}.?metadata.?annotations[?{key}].orValue(\"\")", self.access.pod);
                Term::Plain(not(&is_ours(&value)))
            }
            Shape::Free => {
                let annotations = self.access.entries("annotations", variables);
                let value = format!("{annotations}[{key}]");
                let is_marked = format!("{key} in {annotations} && type({value}) == string && {}", is_ours(&value));
                Term::Plain(not(&is_marked))
            }
        }
    }

    /// Row 7, in the order of the contract: true where the policy is for the workload.
    ///
    /// # Errors
    /// If an expression of the policy cannot be asked.
    pub(super) fn selects(&self, policy: &Policy, variables: &mut Variables) -> Result<Vec<String>, Inexpressible> {
        let mut terms = self.request(policy);
        if let Some(selector) = &policy.spec.namespace_selector {
            terms.extend(namespace_labels(selector, variables));
        }
        if let Some(selector) = &policy.spec.annotation_selector {
            let map = variables.define("annotations", "object.metadata.?annotations.orValue({})");
            terms.extend(requirements(&map, &selector.match_annotations, &selector.match_expressions));
        }
        if let Some(selector) = &policy.spec.label_selector {
            let map = variables.define("labels", "object.metadata.?labels.orValue({})");
            terms.extend(requirements(&map, &selector.match_labels, &selector.match_expressions));
        }
        for (_, expression) in &policy.conditions {
            terms.push(expressions::define(expression, "condition", variables)?);
        }
        Ok(terms)
    }

    /// As much of row 7 as can be asked without variables.
    fn at_hand(&self, policy: &Policy) -> Vec<String> {
        let mut terms = self.request(policy);
        let map = |field: &str| format!("object.metadata.?{field}.orValue({{}})");
        if let Some(selector) = &policy.spec.annotation_selector {
            terms.extend(requirements(&map("annotations"), &selector.match_annotations, &selector.match_expressions));
        }
        if let Some(selector) = &policy.spec.label_selector {
            terms.extend(requirements(&map("labels"), &selector.match_labels, &selector.match_expressions));
        }
        terms
    }

    /// What of row 7 the request alone tells: how the object is posted, and where.
    fn request(&self, policy: &Policy) -> Vec<String> {
        let mut terms: Vec<String> = self.version(policy).into_iter().collect();
        if let Some(globs) = &policy.spec.namespaces {
            terms.push(matches_one("request.namespace", globs));
        }
        if let Some(globs) = policy.spec.exclude_namespaces.as_ref().filter(|globs| !globs.is_empty()) {
            terms.push(not(&matches_one("request.namespace", globs)));
        }
        terms
    }

    /// That the object is posted through a version that the policy names, where it does.
    fn version(&self, policy: &Policy) -> Option<String> {
        if policy.targets_of(self.kind).any(|target| target.version == "*") {
            return None;
        }
        let named: BTreeSet<(&str, &str)> =
            policy.targets_of(self.kind).map(|target| (target.group.as_str(), target.version.as_str())).collect();
        let posted = |(group, version): &(&str, &str)| {
            format!("request.resource.group == {} && request.resource.version == {}", quoted(group), quoted(version))
        };
        Some(any(&named.iter().map(posted).collect::<Vec<_>>()))
    }
}

/// That the map at the path `map` has an entry `key` of which `is_so`. Nearly always there is none, and to see that costs less than
/// optionals do.
fn entry(map: &str, key: &str, is_so: impl Fn(&str) -> String) -> String {
    format!("{key} in {map} && {}", is_so(&format!("{map}[{key}]")))
}

/// The labels of the workload's Namespace.
pub(super) fn namespace_labels_of(variables: &mut Variables) -> String {
    variables.define("namespace_labels", "namespaceObject.metadata.?labels.orValue({})")
}

fn namespace_labels(selector: &LabelSelector, variables: &mut Variables) -> Vec<String> {
    let map = namespace_labels_of(variables);
    let by_name = |key: &str| key == NAME_LABEL;
    let (named, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
        selector.match_labels.clone().into_iter().partition(|(key, _)| by_name(key));
    let (of_name, rest): (Vec<_>, Vec<_>) =
        selector.match_expressions.iter().cloned().partition(|requirement| by_name(&requirement.key));
    let mut terms = requirements(&map, &others, &rest);
    if !named.is_empty() || !of_name.is_empty() {
        let key = quoted(NAME_LABEL);
        // Whoever takes the label off a Namespace does not rename it.
        let name = variables.define("namespace_name", &format!("{{{key}: {map}[?{key}].orValue(request.namespace)}}"));
        terms.extend(requirements(&name, &named, &of_name));
    }
    terms
}

/// Every requirement of a selector on the entries of `map`.
fn requirements(map: &str, wanted: &BTreeMap<String, String>, requirements: &[Requirement]) -> Vec<String> {
    let equals = |key: &str, value: &str| format!("{map}[?{}] == optional.of({})", quoted(key), quoted(value));
    let mut terms: Vec<String> = wanted.iter().map(|(key, value)| equals(key, value)).collect();
    terms.extend(requirements.iter().map(|Requirement { key, operator, values }| {
        let values = list(values.iter().flatten().map(String::as_str));
        let is_there = format!("{} in {map}", quoted(key));
        let is_listed = format!("({is_there} && {map}[{}] in {values})", quoted(key));
        match operator {
            Operator::Exists => is_there,
            Operator::DoesNotExist => not(&is_there),
            Operator::In => is_listed,
            Operator::NotIn => not(&is_listed),
        }
    }));
    terms
}

/// All of rows 4, 5 and 7.
///
/// # Errors
/// As for [`Rows::selects`].
pub(super) fn is_wanted(rows: &Rows<'_>, policy: &Policy, variables: &mut Variables) -> Result<String, Inexpressible> {
    let mut terms = rows.is_open(policy, variables);
    terms.extend(rows.selects(policy, variables)?.into_iter().map(Term::Plain));
    Ok(every(terms))
}
