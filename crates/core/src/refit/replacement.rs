//! The pod that a controller would make in place of another one, to try whether a server accepts it.

use crate::workload::Workload;
use json_patch::Patch;
use serde_json::{Value, json};

/// The pod that its controller would make in place of `pod`, with the change in place that `patch` and `resize` are.
///
/// # Guarantees
/// It has nothing that only the server, the scheduler or the kubelet sets and a create may not have. It has the labels, annotations
/// and owners of `pod`, by which admission may judge it.
pub fn replacement(pod: &Workload, patch: &Patch, resize: Option<&Value>) -> Value {
    let mut body = pod.patched(patch);
    for (list, changes) in resize.and_then(|resize| resize["spec"].as_object()).into_iter().flatten() {
        for change in changes.as_array().into_iter().flatten() {
            let containers = body["spec"][list].as_array_mut().into_iter().flatten();
            for container in containers.filter(|container| container["name"] == change["name"]) {
                json_patch::merge(container, change);
            }
        }
    }
    let mut owners = pod.body["metadata"]["ownerReferences"].clone();
    for owner in owners.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        // A plugin of the server asks for the right to update the owner.
        owner.remove("blockOwnerDeletion");
    }
    if let Some(spec) = body["spec"].as_object_mut() {
        for field in ["nodeName", "ephemeralContainers", "priority", "preemptionPolicy", "overhead"] {
            spec.remove(field);
        }
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": format!("{}-", pod.name()),
            "namespace": pod.namespace(),
            "labels": body["metadata"]["labels"],
            "annotations": body["metadata"]["annotations"],
            "ownerReferences": owners,
        },
        "spec": body["spec"],
    })
}
