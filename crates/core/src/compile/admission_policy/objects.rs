//! The parts that all generated objects share, whether they inject or reject: metadata, constraints, revision and size.

use super::cel::quoted;
use super::rows::act_on_updates;
use super::{Inexpressible, MAX_EXPRESSION, MAX_OBJECT};
use crate::Unavailable;
use crate::capabilities::Capabilities;
use crate::compile::versions;
use crate::naming;
use crate::policy::Policy;
use crate::workload::Kind;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The matched requests in any namespace: creates through any version that one of `policies` names, and updates if one
/// of them acts on updates. A rule for a resource never matches its subresources.
pub(super) fn constraints(kind: &Kind, policies: &[&Policy], cluster: &Capabilities) -> Value {
    let named = versions(kind, policies);
    // A named version matches only objects that are posted through it, without conversion.
    let policy = if named.is_none() { "Equivalent" } else { "Exact" };
    let versions = named.unwrap_or_else(|| {
        let served = cluster.groups(kind);
        let groups = if served.is_empty() { vec![kind.group.as_str()] } else { served };
        groups.into_iter().map(|group| (group, BTreeSet::from(["*"]))).collect()
    });
    let operations: &[&str] = if act_on_updates(policies, kind) { &["CREATE", "UPDATE"] } else { &["CREATE"] };
    let rule = |(group, versions): (&str, BTreeSet<&str>)| {
        json!({
            "apiGroups": [group], "apiVersions": versions, "operations": operations, "resources": [kind.resource], "scope": "Namespaced",
        })
    };
    json!({
        "matchPolicy": policy,
        "objectSelector": {},
        "excludeResourceRules": [],
        "namespaceSelector": {},
        "resourceRules": versions.into_iter().map(rule).collect::<Vec<_>>(),
    })
}

/// An admission policy of the API server, in the version `api` of its API, and the binding that puts it in effect everywhere.
/// The variable `revision` comes before those of `spec`. `binding` has the other fields that the kind of binding needs.
///
/// # Errors
/// If the policy is larger than servers accept.
pub(super) fn registered(
    api: &str,
    kind: &str,
    name: &str,
    policies: &[&Policy],
    mut spec: Value,
    mut binding: Value,
) -> Result<[Value; 2], Unavailable> {
    let metadata = match kind {
        "MutatingAdmissionPolicy" => naming::injecting_metadata(name, policies),
        _ => naming::metadata(name, policies),
    };
    let object =
        |kind: &str, spec: Value| json!({ "apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec });
    let revision = crate::digest::short(spec.to_string());
    if let Some(variables) = spec["variables"].as_array_mut() {
        variables.insert(0, json!({ "name": "revision", "expression": quoted(&revision) }));
    }
    let mut policy = object(kind, spec);
    policy["metadata"]["annotations"] = json!({ REVISION: revision });
    fits(&policy, policies[0])?;
    binding["policyName"] = json!(name);
    Ok([policy, object(&format!("{kind}Binding"), binding)])
}

/// The annotation with the revision of a generated object.
const REVISION: &str = "scpol.dev/revision";

/// The revision of a generated MutatingAdmissionPolicy or ValidatingAdmissionPolicy: 16 hex digits that change with its
/// spec. A probe gets the revision as its answer.
pub fn revision_of(object: &Value) -> Option<String> {
    Some(object["metadata"]["annotations"].get(REVISION)?.as_str()?.to_owned())
}

/// Checks the size of `object` against the limits of the server. `policy` is its first policy.
fn fits(object: &Value, policy: &Policy) -> Result<(), Unavailable> {
    let longest = longest(object);
    let size = object.to_string().len();
    if longest <= MAX_EXPRESSION && size <= MAX_OBJECT {
        return Ok(());
    }
    let what = format!(
        "with the others on the resource it makes {size} bytes, and an expression of {longest} characters, of at most {MAX_OBJECT} \
         and {MAX_EXPRESSION}; make templates smaller"
    );
    Err(Inexpressible::new(what).of(policy))
}

/// The length of the longest text in `value`, in characters.
fn longest(value: &Value) -> usize {
    match value {
        Value::String(text) => text.chars().count(),
        Value::Array(items) => items.iter().map(longest).max().unwrap_or(0),
        Value::Object(fields) => fields.values().map(longest).max().unwrap_or(0),
        _ => 0,
    }
}

/// The name of the kind for a sentence.
pub(super) fn kind_name(kind: &Kind, cluster: &Capabilities) -> String {
    let served = || cluster.resource(kind).map(|resource| resource.kind);
    kind.kind.clone().or_else(served).unwrap_or_else(|| kind.resource.clone())
}
