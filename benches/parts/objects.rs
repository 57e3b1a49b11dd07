//! Policies and pods that several parts use.

use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use sidecar_policy::policy::{Policies, Policy, Site};
use std::sync::Arc;

/// A policy unlike the others: one in ten matches a pod of [`pod_of`].
pub(super) fn unlike(number: usize) -> Value {
    json!({
        "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "metadata": { "name": format!("p{number}") },
        "spec": {
            "targets": [{ "group": "", "resource": "pods" }, { "group": "apps", "resource": "deployments" }],
            "labelSelector": { "matchLabels": { "group": format!("g{}", number % 10) } },
            "template": { "containers": [{ "name": format!("sidecar-{number}"), "image": "envoy:1" }] },
        },
    })
}

/// A pod of about `kilobytes` of JSON, most of it environment variables.
pub(super) fn pod_of(kilobytes: usize) -> Value {
    let env: Vec<_> = (0..kilobytes * 10)
        .map(|number| json!({ "name": format!("VARIABLE_{number:04}"), "value": "x".repeat(70) }))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web", "namespace": "default", "labels": { "group": "g3" } },
        "spec": { "containers": [{ "name": "app", "image": "app:1", "env": env }] },
    })
}

/// `count` policies of [`unlike`].
pub(super) fn policies_unlike(count: usize, site: &Site) -> Result<Policies> {
    let parsed = |number| parse(&unlike(number), site).map(Arc::new);
    Ok(Policies::new((0..count).map(parsed).collect::<Result<Vec<_>>>()?))
}

/// `policy`, parsed.
pub(super) fn parse(policy: &Value, site: &Site) -> Result<Policy> {
    Policy::parse(policy, site).map_err(|faults| anyhow!("{faults:?}"))
}

/// The spec of a policy for pods whose sidecar has eight values, the first `count` of them parameters.
pub(super) fn tunable_spec(count: usize) -> Value {
    let parameters = json!([
        { "name": "memory", "type": "Quantity", "minimum": "16Mi", "maximum": "1Gi",
          "paths": ["containers[sidecar].resources.limits.memory", "containers[sidecar].resources.requests.memory"] },
        { "name": "cpu", "type": "Quantity", "maximum": "2", "paths": ["containers[sidecar].resources.requests.cpu"] },
        { "name": "level", "enum": ["debug", "info", "warn"], "paths": ["containers[sidecar].env[LEVEL].value"] },
        { "name": "service", "pattern": "[a-z0-9-]+", "paths": ["containers[sidecar].env[SERVICE].value"] },
        { "name": "workers", "type": "Integer", "minimum": 1, "maximum": 1000, "paths": ["containers[sidecar].env[WORKERS].value"] },
        { "name": "drain", "type": "Duration", "maximum": "1h", "paths": ["containers[sidecar].args[1]"] },
        { "name": "depth", "type": "Integer", "maximum": 99999, "paths": ["containers[sidecar].env[DEPTH].value"] },
        { "name": "trace", "type": "Boolean", "paths": ["containers[sidecar].env[TRACE].value"] },
    ]);
    let parameters: Vec<&Value> = parameters.as_array().into_iter().flatten().take(count).collect();
    json!({ "targets": [{ "group": "", "resource": "pods" }], "parameters": parameters, "template": { "containers": [{
        "name": "sidecar", "image": "envoy:1", "args": ["--drain", "30s"], "ports": [{ "name": "admin", "containerPort": 15000 }],
        "resources": { "limits": { "memory": "64Mi" }, "requests": { "memory": "64Mi", "cpu": "100m" } },
        "env": [
            { "name": "LEVEL", "value": "info" }, { "name": "SERVICE", "value": "none" },
            { "name": "WORKERS", "value": "2" }, { "name": "TRACE", "value": "false" }, { "name": "DEPTH", "value": "5" },
        ],
    }] } })
}

/// The policy of [`tunable_spec`].
pub(super) fn tunable(count: usize) -> Value {
    let metadata = json!({ "name": "tunable" });
    json!({ "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "metadata": metadata, "spec": tunable_spec(count) })
}

/// `pod` with the values of that `number` for all eight parameters of the policy `tunable`.
pub(super) fn tuned(mut pod: Value, number: usize) -> Value {
    let values = [
        ("memory", format!("{}Mi", 64 + number % 900)),
        ("cpu", format!("{}m", 100 + number % 1_000)),
        ("level", ["debug", "info", "warn"][number % 3].to_owned()),
        ("service", format!("service-{number}")),
        ("workers", (1 + number % 999).to_string()),
        ("drain", format!("{}s", 1 + number % 3_000)),
        ("depth", (15_000 + number % 1_000).to_string()),
        ("trace", number.is_multiple_of(2).to_string()),
    ];
    for (name, value) in values {
        pod["metadata"]["annotations"][format!("tunable.scpol.dev/{name}")] = json!(value);
    }
    pod
}
