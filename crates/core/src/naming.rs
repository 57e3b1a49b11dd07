//! The names, the metadata and the probe labels of all objects that engines register for a resource. Pure.

use crate::api::{MANAGED_BY, MANAGER};
use crate::policy::Policy;
use crate::policy::checks::NAME_LABEL;
use crate::workload::Kind;
use serde_json::{Value, json};
use std::sync::Arc;

/// The key of a label and of an annotation. An object in the operator's namespace with the label asks whether a registration is
/// in effect. The annotation is the answer: the revision. The label's value [`PROBE_REFUSE`] or [`PROBE_REFUSE_IGNORING`] asks a
/// rejecting registration.
pub const PROBE: &str = crate::api::PROBE_KEY;
/// The value of the label [`PROBE`] on an object that must be rejected.
pub const PROBE_REFUSE: &str = "refuse";
/// The same for the registration with the suffix [`IGNORING`]. A server names only one of those that reject an object, so each
/// has a question of its own.
pub const PROBE_REFUSE_IGNORING: &str = "refuse-ignore";
/// The answer of a replica that has not seen the revision yet.
pub const PROBE_UNSEEN: &str = "unseen";
/// The suffix of a second registration beside the first. It lets workloads pass if it cannot decide.
pub const IGNORING: &str = "-ignore";
const BEGINNING: &str = "scpol-";

/// The value of the label [`PROBE`] by which the rejecting registration `name` is asked.
pub fn refusal_of(name: &str) -> &'static str {
    if name.ends_with(IGNORING) { PROBE_REFUSE_IGNORING } else { PROBE_REFUSE }
}

/// The name of the shared registration of all policies on `kind`.
pub fn shared_name(kind: &Kind) -> String {
    format!("{BEGINNING}{}", kind.group_resource())
}

/// The kind whose shared registration has the name `name`.
pub fn kind_of(name: &str) -> Option<Arc<Kind>> {
    let rest = name.strip_prefix(BEGINNING)?;
    let rest = rest.strip_suffix(IGNORING).unwrap_or(rest);
    let (resource, group) = rest.split_once('.').unwrap_or((rest, ""));
    Some(Kind::of(group, resource, None))
}

/// The name of the policy's own registration.
pub fn own_name(name: &str) -> String {
    format!("{BEGINNING}{name}")
}

/// The policy whose own registration has the name `name`.
pub fn policy_of(name: &str) -> Option<&str> {
    name.strip_prefix(BEGINNING)
}

/// The metadata of the registration `name` of `policies`. Its owner references delete it together with the last policy.
pub fn metadata(name: &str, policies: &[&Policy]) -> Value {
    let stored = policies.iter().filter(|policy| !policy.meta.uid.is_empty());
    let owner = |policy: &&Policy| json!({ "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "name": policy.name, "uid": policy.meta.uid });
    let mut owners: Vec<Value> = stored.map(owner).collect();
    // The halves of a split policy stand side by side.
    owners.dedup();
    json!({ "name": name, "labels": { MANAGED_BY: MANAGER }, "ownerReferences": owners })
}

/// The metadata of the registration `name`, which injects `policies`. If one of them refuses, it has no owners: the garbage collector
/// would delete it together with what refuses, which API servers go on doing for about a second. The operator deletes it in
/// time.
pub fn injecting_metadata(name: &str, policies: &[&Policy]) -> Value {
    let mut metadata = metadata(name, policies);
    if policies.iter().any(|policy| policy.refuses()) {
        metadata["ownerReferences"] = json!([]);
    }
    metadata
}

/// `metadata` for a webhook configuration. Its label asks the Admissions Enforcer of Azure (AKS) to leave the configuration alone: it
/// would edit `namespaceSelector` again after each repair.
pub fn of_a_webhook(mut metadata: Value) -> Value {
    metadata["labels"]["admissions.enforcer/disabled"] = json!("true");
    metadata
}

/// A requirement of a namespace selector: the Namespace is one of `names` (`In`), or none of them (`NotIn`). Namespaces have
/// their names as a label from Kubernetes 1.21 on.
pub fn namespaces<'a, T: AsRef<str> + ?Sized + 'a>(operator: &str, names: impl IntoIterator<Item = &'a T>) -> Value {
    let names: Vec<&str> = names.into_iter().map(AsRef::as_ref).collect();
    json!({ "key": NAME_LABEL, "operator": operator, "values": names })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_resource_and_its_group() {
        for (group, resource, name) in [("", "pods", "scpol-pods"), ("apps", "deployments", "scpol-deployments.apps")] {
            let kind = Kind::of(group, resource, None);
            assert_eq!(shared_name(&kind), name);
            assert_eq!(kind_of(name).as_ref(), Some(&kind));
            assert_eq!(kind_of(&format!("{name}{IGNORING}")).as_ref(), Some(&kind));
        }
        assert_eq!(kind_of("someone-elses"), None);
    }
}
