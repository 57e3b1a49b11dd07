//! The pod that a controller would make in place of another one, to try whether a server accepts it.

use crate::inject::undo_with;
use crate::inject::value::nanos;
use crate::readers;
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
    made(pod, body)
}

/// The pod that its controller would make in place of `pod`, without the content of any policy: the server adds that at the create, in the
/// place of overlays.
///
/// # Guarantees
/// As for [`replacement`].
pub fn made_anew(pod: &Workload) -> Value {
    let undone = undo_with(pod, |_| true, |_| false, |_| true);
    made(pod, undone.map_or_else(|| pod.body.clone(), |undone| undone.body))
}

/// A new pod with the labels, annotations and spec of `body`, of the controller of `pod`.
fn made(pod: &Workload, mut body: Value) -> Value {
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

/// An amount of a resource that a quota does not allow: what the new pod adds, what is used with the old one, and the most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exceeded {
    pub resource: String,
    pub requested: Value,
    pub used: Value,
    pub hard: Value,
}

/// Whether a quota refuses a new pod also once `pod`, in whose place it comes, is gone. False if that cannot be known.
pub fn still_exceeds(pod: &Workload, exceeded: &[Exceeded]) -> bool {
    exceeded.iter().any(|Exceeded { resource, requested, used, hard }| {
        let amounts = [nanos(requested), nanos(used), nanos(hard), usage(pod, resource)];
        let [Some(requested), Some(used), Some(hard), Some(freed)] = amounts else { return false };
        used.saturating_sub(freed).saturating_add(requested) > hard
    })
}

/// What `pod` uses of a `resource` of quotas, in billionths; none of one that is not known here.
fn usage(pod: &Workload, resource: &str) -> Option<i128> {
    if matches!(resource, "pods" | "count/pods") {
        return nanos(&json!(1));
    }
    let (kind, name) = match resource.split_once('.') {
        Some(("limits", name)) => ("limits", name),
        Some(("requests", name)) => ("requests", name),
        _ => ("requests", resource),
    };
    let sums = readers::sums_of(pod);
    let sum = if kind == "limits" { &sums.limits } else { &sums.requests };
    let overhead = nanos(&pod.body["spec"]["overhead"][name]).unwrap_or_default();
    Some(sum.get(name).copied().unwrap_or_default().saturating_add(overhead))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;

    #[test]
    fn a_quota_is_asked_without_the_pod_that_goes() {
        let amounts = |cpu: &str| json!({ "requests": { "cpu": cpu }, "limits": { "cpu": cpu, "memory": "1Gi" } });
        let spec = json!({
            "initContainers": [
                { "name": "first", "resources": amounts("30m") },
                { "name": "agent", "restartPolicy": "Always", "resources": amounts("10m") },
            ],
            "containers": [{ "name": "web", "resources": amounts("60m") }],
        });
        let pod = Workload::new(Kind::find("", "pods").unwrap(), json!({ "spec": spec }));
        // From 1.34 on a pod may have resources of its own.
        let whole = json!({ "containers": [{ "name": "web" }], "resources": { "requests": { "cpu": "2" } } });
        let whole = Workload::new(Kind::find("", "pods").unwrap(), json!({ "spec": whole }));
        let [requested, used, hard] = ["2", "2", "3"].map(Value::from);
        assert!(!still_exceeds(&whole, &[Exceeded { resource: "requests.cpu".to_owned(), requested, used, hard }]));
        for (resource, requested, used, hard, exceeds) in [
            ("pods", "1", "3", "3", false),
            ("count/pods", "1", "4", "3", true),
            ("requests.cpu", "70m", "210m", "215m", false),
            ("requests.cpu", "220m", "210m", "260m", true),
            ("cpu", "120m", "210m", "260m", false),
            ("limits.cpu", "121m", "210m", "260m", true),
            ("limits.memory", "3Gi", "6Gi", "6Gi", true),
            ("limits.memory", "2Gi", "6Gi", "6Gi", false),
            ("requests.cpu", "much", "210m", "260m", false),
        ] {
            let [requested, used, hard] = [requested, used, hard].map(Value::from);
            let exceeded = Exceeded { resource: resource.to_owned(), requested, used, hard };
            assert_eq!(still_exceeds(&pod, std::slice::from_ref(&exceeded)), exceeds, "{exceeded:?}");
        }
    }
}
