//! The one PATCH that ends our part of an object's initialization. Pure.
//!
//! Every patch begins with tests of what it was computed from, so that it fails, whole, if the object has changed.

use crate::workload::Workload;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, TestOperation};
use serde_json::{Value, json};

/// Injects as `plan` says and takes the first `ours` names off the list, in one.
///
/// # Guarantees
/// No name but the first `ours` is touched. With the last name goes the whole field: that is what every server
/// understands as done.
pub fn completion(workload: &Workload, ours: usize, plan: Patch) -> Patch {
    let mut operations = guards(workload);
    operations.extend(plan.0);
    if workload.pending().count() <= ours {
        operations.push(remove("/metadata/initializers"));
    } else {
        operations.extend((0..ours).map(|_| remove("/metadata/initializers/pending/0")));
    }
    Patch(operations)
}

/// Refuses the object: the server deletes it and gives `message` to whoever waits for the create.
pub fn rejection(workload: &Workload, policy: &str, message: &str) -> Patch {
    let mut operations = guards(workload);
    let result = json!({
        "status": "Failure",
        "message": message,
        "reason": "Forbidden",
        // A 4xx that no client retries; 0 would become 500.
        "code": 403,
        "details": { "name": workload.name(), "group": workload.kind.group, "kind": workload.kind.resource,
                     "causes": [{ "reason": "SidecarPolicy", "message": format!("refused by SidecarPolicy `{policy}`"), "field": "spec" }] },
    });
    operations
        .push(PatchOperation::Add(AddOperation { path: pointer("/metadata/initializers/result"), value: result }));
    Patch(operations)
}

/// Tests that hold if and only if the object is the very version that `workload` is.
fn guards(workload: &Workload) -> Vec<PatchOperation> {
    let test = |path: &str, value: &str| {
        PatchOperation::Test(TestOperation { path: pointer(path), value: Value::from(value) })
    };
    vec![
        test("/metadata/uid", workload.uid()),
        test("/metadata/resourceVersion", workload.resource_version()),
        test("/metadata/initializers/pending/0/name", workload.pending().next().unwrap_or_default()),
    ]
}

fn remove(path: &str) -> PatchOperation {
    PatchOperation::Remove(RemoveOperation { path: pointer(path) })
}

fn pointer(path: &str) -> PointerBuf {
    PointerBuf::parse(path).expect("a constant JSON pointer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;

    fn deployment(pending: &[&str]) -> Workload {
        let pending: Vec<_> = pending.iter().map(|name| json!({ "name": name })).collect();
        let body = json!({ "metadata": { "name": "web", "uid": "u", "resourceVersion": "7", "initializers": { "pending": pending } } });
        Workload::new(Kind::find("apps", "deployments").expect("built in"), body)
    }

    fn after(workload: &Workload, patch: &Patch) -> Value {
        let mut body = workload.body.clone();
        json_patch::patch(&mut body, patch).expect("applies");
        body
    }

    #[test]
    fn the_last_name_takes_the_whole_field_with_it() {
        let workload = deployment(&["a.scpol.dev"]);
        let body = after(&workload, &completion(&workload, 1, Patch(vec![])));
        assert_eq!(body["metadata"].get("initializers"), None);
    }

    #[test]
    fn names_behind_ours_stay_in_order() {
        let workload = deployment(&["a.scpol.dev", "a.scpol.dev", "x.other.io", "b.scpol.dev"]);
        let body = after(&workload, &completion(&workload, 2, Patch(vec![])));
        assert_eq!(
            body["metadata"]["initializers"]["pending"],
            json!([{ "name": "x.other.io" }, { "name": "b.scpol.dev" }])
        );
    }

    #[test]
    fn a_changed_object_is_never_written() {
        let workload = deployment(&["a.scpol.dev"]);
        for (field, value) in [("/metadata/uid", "other"), ("/metadata/resourceVersion", "8")] {
            let mut changed = workload.body.clone();
            *changed.pointer_mut(field).expect("there") = json!(value);
            assert!(json_patch::patch(&mut changed, &completion(&workload, 1, Patch(vec![]))).is_err(), "{field}");
        }
    }

    #[test]
    fn a_rejection_keeps_the_list_and_sets_a_4xx_result() {
        let workload = deployment(&["a.scpol.dev"]);
        let body = after(&workload, &rejection(&workload, "a", "no"));
        assert_eq!(body["metadata"]["initializers"]["result"]["code"], 403);
        assert_eq!(body["metadata"]["initializers"]["pending"][0]["name"], "a.scpol.dev");
    }
}
