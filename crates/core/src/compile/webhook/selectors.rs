//! The selectors of entries: what the API server can decide exactly as [`decide`](crate::policy::decide) does.

use super::{has_object_selector, knows_namespaces};
use crate::api::is_label_value;
use crate::api::v1alpha1::LabelSelector;
use crate::capabilities::Capabilities;
use crate::naming::namespaces;
use crate::policy::checks::NAME_LABEL;
use crate::policy::{Policy, Site};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A selector of the namespaces that policies can select.
pub(super) fn of_namespaces(policies: &[&Policy], cluster: &Capabilities, site: &Site) -> Option<Value> {
    if !knows_namespaces(cluster) {
        return None;
    }
    let protected = &site.protected_namespaces;
    let reachable = literal(policies).map(|names| names.into_iter().filter(|name| !protected.contains(*name)));
    let named: Option<BTreeSet<&str>> = reachable.map(Iterator::collect);
    let by_name = match &named {
        // No namespace, because each has the label: such a policy must not reach others.
        Some(named) if named.is_empty() => json!({ "key": NAME_LABEL, "operator": "DoesNotExist" }),
        Some(named) => namespaces("In", named),
        None => namespaces("NotIn", protected),
    };
    let shared = shared(policies, |policy| policy.spec.namespace_selector.as_ref());
    Some(selector(shared, Some(by_name)))
}

/// The label selector that every policy has.
pub(super) fn of_objects(policies: &[&Policy], cluster: &Capabilities) -> Option<Value> {
    let shared = shared(policies, |policy| policy.spec.label_selector.as_ref());
    shared.filter(|_| has_object_selector(cluster)).map(|shared| selector(Some(shared), None))
}

/// Those of `refusing` that name their namespaces, and the others. The others are all if their selectors reach every
/// namespace and object.
pub(super) fn by_namespaces<'a>(refusing: &[&'a Policy]) -> (Vec<&'a Policy>, Vec<&'a Policy>) {
    let (named, others): (Vec<&Policy>, Vec<&Policy>) =
        refusing.iter().partition(|policy| literal(&[**policy]).is_some());
    let is_everywhere = !others.is_empty()
        && shared(&others, |policy| policy.spec.namespace_selector.as_ref()).is_none()
        && shared(&others, |policy| policy.spec.label_selector.as_ref()).is_none();
    if is_everywhere { (Vec::new(), refusing.to_vec()) } else { (named, others) }
}

/// The namespaces that policies name, if each policy names some and none uses a glob.
fn literal<'a>(policies: &[&'a Policy]) -> Option<BTreeSet<&'a str>> {
    let mut names = BTreeSet::new();
    for policy in policies {
        for name in policy.spec.namespaces.as_ref()? {
            if name.contains(['*', '?']) {
                return None;
            }
            // What is no label value is no name of a Namespace either.
            names.extend(Some(name.as_str()).filter(|name| is_label_value(name)));
        }
    }
    Some(names)
}

/// The selector that all policies share, if the API server accepts it.
fn shared<'a>(
    policies: &[&'a Policy],
    of: impl Fn(&'a Policy) -> Option<&'a LabelSelector>,
) -> Option<&'a LabelSelector> {
    let (first, others) = policies.split_first()?;
    let selector = of(first)?;
    // The parser of policies has checked the values in `matchLabels`, but expressions may list any text.
    let mut listed = selector.match_expressions.iter().flat_map(|requirement| requirement.values.iter().flatten());
    let is_valid = listed.all(|value| is_label_value(value));
    (is_valid && others.iter().all(|other| of(other) == Some(selector))).then_some(selector)
}

fn selector(shared: Option<&LabelSelector>, further: Option<Value>) -> Value {
    let shared = shared.cloned().unwrap_or_default();
    let mut requirements: Vec<Value> = shared.match_expressions.iter().map(|one| json!(one)).collect();
    requirements.extend(further);
    let mut selector = json!({});
    if !shared.match_labels.is_empty() {
        selector["matchLabels"] = json!(shared.match_labels);
    }
    if !requirements.is_empty() {
        selector["matchExpressions"] = json!(requirements);
    }
    selector
}
