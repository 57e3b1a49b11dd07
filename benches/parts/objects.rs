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
    let parse = |number| Policy::parse(&unlike(number), site).map(Arc::new).map_err(|faults| anyhow!("{faults:?}"));
    Ok(Policies::new((0..count).map(parse).collect::<Result<Vec<_>>>()?))
}
