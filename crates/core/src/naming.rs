//! What all objects that engines register for a resource have in common: their names, their metadata, and how a probe asks for
//! them. Pure.

use crate::api::{MANAGED_BY, MANAGER};
use crate::policy::Policy;
use crate::policy::checks::NAME_LABEL;
use crate::workload::Kind;
use serde_json::{Value, json};
use std::sync::Arc;

/// The key of the label by which an object in the operator's namespace asks whether a registration is in force, and of the
/// annotation that it gets for an answer: the revision. The label's value [`PROBE_REFUSE`] asks those that refuse.
pub const PROBE: &str = "scpol.dev/probe";
/// The value of the label [`PROBE`] of an object that is to be refused.
pub const PROBE_REFUSE: &str = "refuse";
/// The answer instead of a revision that has not been seen yet by who is asked.
pub const PROBE_UNSEEN: &str = "unseen";
/// The end of the name of a second registration beside the first: what lets through where it cannot tell.
pub const IGNORING: &str = "-ignore";
const BEGINNING: &str = "scpol-";

/// The name of what is registered for all policies on `kind`.
pub fn shared_name(kind: &Kind) -> String {
    match kind.group.as_str() {
        "" => format!("{BEGINNING}{}", kind.resource),
        group => format!("{BEGINNING}{}.{group}", kind.resource),
    }
}

/// The kind whose shared registration is called `name`.
pub fn kind_of(name: &str) -> Option<Arc<Kind>> {
    let rest = name.strip_prefix(BEGINNING)?;
    let rest = rest.strip_suffix(IGNORING).unwrap_or(rest);
    let (resource, group) = rest.split_once('.').unwrap_or((rest, ""));
    Some(Kind::of(group, resource, None))
}

/// The name of the registration that the policy `name` has of its own.
pub fn own_name(name: &str) -> String {
    format!("{BEGINNING}{name}")
}

/// The policy whose own registration is called `name`.
pub fn policy_of(name: &str) -> Option<&str> {
    name.strip_prefix(BEGINNING)
}

/// Metadata of what is registered as `name` for `policies`: with the last of them it goes, too.
pub fn metadata(name: &str, policies: &[&Policy]) -> Value {
    let stored = policies.iter().filter(|policy| !policy.uid.is_empty());
    let owner = |policy: &&Policy| json!({ "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "name": policy.name, "uid": policy.uid });
    let owners: Vec<Value> = stored.map(owner).collect();
    json!({ "name": name, "labels": { MANAGED_BY: MANAGER }, "ownerReferences": owners })
}

/// The requirement of a namespace selector that the Namespace is, by `operator` (`In` or `NotIn`), one of `names`. Namespaces
/// have their names as a label from Kubernetes 1.21 on.
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
