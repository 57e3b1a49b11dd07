//! What the project says of a template, and what a server would be asked.

use serde_json::{Map, Value, json};
use sidecar_policy::api::trust::Trust;
use sidecar_policy::decision::Decision;
use sidecar_policy::lint;
use sidecar_policy::policy::{Policies, Site};
use sidecar_policy::workload::{Kind, Workload};
use std::sync::Arc;

/// The project's answer about a template, and the pod with it.
pub(super) struct Verdict {
    /// The first fault or conflict; none if the template is injected.
    pub(super) refusal: Option<String>,
    pub(super) pod: Value,
}

/// The pod that `template` goes into. It has what examples refer to, and what some fields need of a pod.
fn pod(template: &Value, minor: u32) -> Value {
    let claim = json!({ "claimName": "a" });
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web", "namespace": "default" },
        "spec": {
            "serviceAccountName": "default",
            "containers": [{ "name": "app", "image": "registry.example.com/app:1" }],
            "volumes": [
                { "name": "data", "emptyDir": {} }, { "name": "claim", "persistentVolumeClaim": claim },
                { "name": "other", "persistentVolumeClaim": { "claimName": "b" } },
            ],
        },
    });
    let claim = match minor {
        ..=30 => json!({ "name": "claim", "source": { "resourceClaimName": "a" } }),
        _ => json!({ "name": "claim", "resourceClaimName": "a" }),
    };
    pod["spec"]["resourceClaims"] = json!([claim]);
    let text = template.to_string();
    if text.contains("stopSignal") {
        pod["spec"]["os"] = json!({ "name": "linux" });
    }
    if text.contains("Unmasked") {
        pod["spec"]["hostUsers"] = json!(false);
    }
    pod
}

/// What `scpol lint` and `scpol inject` say of `template` on a server of 1.`minor`.
pub(super) fn of(template: &Value, minor: u32) -> Verdict {
    let site = Site {
        native_sidecars: minor >= 29,
        trust: Trust::unbounded(),
        minor: Some(minor),
        ..Site::new("scpol-system", [], [])
    };
    let spec = json!({ "targets": [{ "group": "", "resource": "pods" }], "template": template });
    let object = json!({ "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "metadata": { "name": "p" }, "spec": spec });
    let refused = |refusal: String| Verdict { refusal: Some(refusal), pod: merged(template, minor) };
    let policy = match lint::parse(&object, &site.for_files()) {
        Ok(policy) => policy,
        Err(faults) => {
            let told = faults.first().map(|fault| format!("{} {}: {}", fault.code, fault.field, fault.message));
            return refused(told.unwrap_or_default());
        }
    };
    let kind = Kind::find("", "pods").expect("pods are workloads");
    let workload = Workload::new(kind, pod(template, minor));
    let policies = Policies::new([Arc::new(policy)]);
    let mut decision = Decision::of(&policies, &workload, &site);
    let patch = decision.plan(&workload);
    match decision.rest.first() {
        Some(left) => refused(format!("{} {}", left.reason.code, left.reason.detail)),
        None => Verdict { refusal: None, pod: workload.patched(&patch) },
    }
}

/// The pod with `template`, without a look at either.
fn merged(template: &Value, minor: u32) -> Value {
    let mut pod = pod(template, minor);
    for list in ["containers", "initContainers", "volumes", "imagePullSecrets"] {
        append(&mut pod["spec"], list, template);
    }
    for list in ["env", "envFrom", "volumeMounts"] {
        append(&mut pod["spec"]["containers"][0], list, template);
    }
    for map in ["labels", "annotations"] {
        if let Some(entries) = template["metadata"][map].as_object().filter(|entries| !entries.is_empty()) {
            pod["metadata"][map] = Value::Object(Map::from_iter(entries.clone()));
        }
    }
    for (field, value) in template["pod"].as_object().into_iter().flatten() {
        let is_least = field == "terminationGracePeriodSeconds";
        pod["spec"][field] = if is_least { value["atLeast"].clone() } else { value.clone() };
    }
    pod
}

fn append(object: &mut Value, list: &str, template: &Value) {
    let Some(items) = template[list].as_array().filter(|items| !items.is_empty()) else { return };
    let mut all = object[list].as_array().cloned().unwrap_or_default();
    all.extend(items.iter().cloned());
    object[list] = Value::Array(all);
}
