//! Renders policies as registrations: one MutatingWebhookConfiguration per resource, and one
//! ValidatingWebhookConfiguration if a policy may reject. Pure.
//!
//! # Decisions of the API server
//! Fewer calls mean fewer creates that depend on the webhook. So a registration is narrowed by everything that the API
//! server can decide exactly as [`decide`](crate::policy::decide) does: the protected namespaces, namespaces that all
//! policies name literally, and a selector that all policies share. Selectors can exclude protected namespaces by name
//! only from 1.21, because older servers do not label Namespaces with their names. Older servers call the webhook,
//! which answers without a change.
//!
//! # Failures
//! `failurePolicy` belongs to an entry, and its selectors say for which objects the entry fails closed. So the policies
//! with `Fail` have entries of their own: one for the policies that name their namespaces, and one for the others. An
//! entry for all would fail closed wherever any policy judges. An object that several entries match is judged as often,
//! each time by all policies.
//!
//! # Updates
//! Only a resource with a policy that acts on updates has rules for them. In a ValidatingWebhookConfiguration they are in
//! an entry of their own with `failurePolicy: Ignore`. Otherwise no client could remove a finalizer while the operator is
//! down.
//!
//! # `matchPolicy`
//! It is `Exact`. The rules name every group that serves the resource, so no object escapes. And a policy that names a
//! version means only objects that are posted through that version.

mod registration;
mod selectors;

use self::registration::Scene;
use crate::Unavailable;
use crate::api::code::Code;
use crate::capabilities::{
    Capabilities,
    registration::{GROUP, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS},
};
use crate::policy::{Policy, Site};
use crate::workload::Kind;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::sync::Arc;

/// The annotation with the policies that a registration puts in effect: a JSON object of their names, each with the
/// hash of its spec.
pub const POLICIES: &str = "scpol.dev/policies";
/// The timeout of an API server for a call, in seconds. An answer takes some milliseconds. A read of a Namespace may
/// take one of the three seconds. If the operator hangs, creates should not wait noticeably longer.
const TIMEOUT: u32 = 3;
/// The port of a Service that servers below 1.15 always call. It is also the default of later servers.
const HTTPS: u16 = 443;

/// Where the API server finds us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Through a Service in the cluster.
    Service {
        /// The namespace of the Service.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
    /// At a URL such as `https://192.0.2.1:8443`, where the operator runs outside.
    Url(String),
}

/// Where API servers call us, and whom they trust there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Where they find us.
    pub endpoint: Endpoint,
    /// The authorities that may sign our certificate, as PEM; none if API servers trust the certificate by their own
    /// authorities.
    pub ca_bundle: Option<Vec<u8>>,
}

/// Why webhooks cannot be registered on `cluster`, if it cannot. Presence of an API proves nothing: a probe follows.
///
/// # Errors
/// The reason, with the server's flag to set.
pub fn check_server(cluster: &Capabilities) -> Result<(), Unavailable> {
    for resource in [MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS] {
        if cluster.registration(resource).is_none() {
            let message = format!(
                "this server ({}) does not serve {resource} of {}; the webhook engine needs Kubernetes 1.9 or later, and the API on",
                cluster.version, GROUP
            );
            return Err(Unavailable::new(Code::WebhookOff, message));
        }
    }
    Ok(())
}

/// Sees that this engine can serve `policy` on `cluster`.
///
/// # Errors
/// The reason why it cannot.
pub fn check(policy: &Policy, cluster: &Capabilities) -> Result<(), Unavailable> {
    cluster.check_targets(&policy.spec.targets)?;
    if policy.refuses() && !knows_namespaces(cluster) {
        let message = format!(
            "spec.failurePolicy: this server ({}) cannot spare protected namespaces: with `Fail`, no workload could be created in kube-system while the webhook is down; use `Ignore`, or a server of 1.21 or later",
            cluster.version
        );
        return Err(Unavailable::new(Code::FailNotSafe, message));
    }
    Ok(())
}

/// The registrations of `kind` for those of `policies` that target it: none, the mutating one, the validating one, or
/// both in this order.
///
/// # Guarantees
/// The same arguments give the same objects. The order of `policies` does not matter.
///
/// # Errors
/// If the server cannot register webhooks, or cannot serve one of the policies: see [`check`].
pub fn render(
    kind: &Kind,
    policies: &[Arc<Policy>],
    cluster: &Capabilities,
    site: &Site,
    address: &Address,
) -> Result<Vec<Value>, Unavailable> {
    Scene { kind, cluster, site, address, match_conditions: None }.render(policies)
}

/// The registration of a webhook that stands by: API servers call it only for workloads for which `match_conditions` are
/// true. It can reject nothing. None if none of `policies` injects.
///
/// # Errors
/// As in [`render`].
pub fn standby(
    kind: &Kind,
    policies: &[Arc<Policy>],
    match_conditions: &Value,
    cluster: &Capabilities,
    site: &Site,
    address: &Address,
) -> Result<Option<Value>, Unavailable> {
    let match_conditions = Some(match_conditions);
    let rendered = Scene { kind, cluster, site, address, match_conditions }.render(policies)?;
    Ok(rendered.into_iter().find(|object| object["kind"] == "MutatingWebhookConfiguration"))
}

/// The revision of a rendered or stored registration, which is the last segment of the called URL. It is the first 16
/// hex digits of the SHA-256 of the registration without it.
pub fn revision_of(registration: &Value) -> Option<&str> {
    let client = &registration["webhooks"][0]["clientConfig"];
    let path = client["url"].as_str().or_else(|| client["service"]["path"].as_str())?;
    path.rsplit('/').next().filter(|revision| revision.len() == crate::digest::LENGTH)
}

/// The address in the stored `registration`; none if it is missing.
pub fn address_of(registration: &Value) -> Option<Address> {
    let client = &registration["webhooks"][0]["clientConfig"];
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let bundle = client["caBundle"].as_str().and_then(|bundle| STANDARD.decode(bundle).ok());
    let endpoint = match client["url"].as_str() {
        // Our own path has two segments.
        Some(url) => Endpoint::Url(url.rsplitn(3, '/').nth(2)?.to_owned()),
        None => {
            let service = &client["service"];
            let port = service["port"].as_u64().map_or(Some(HTTPS), |port| u16::try_from(port).ok())?;
            Endpoint::Service { namespace: text(&service["namespace"])?, name: text(&service["name"])?, port }
        }
    };
    Some(Address { endpoint, ca_bundle: bundle.filter(|bundle| !bundle.is_empty()) })
}

/// Whether registrations have an entry that only probes reach and that fails closed, so that a failed probe reports the
/// reason. Without it a probe must match the selectors of the main entry, so that has none of objects.
pub fn has_probe(cluster: &Capabilities) -> bool {
    has_object_selector(cluster)
}

/// Whether registrations can select by the labels of objects, which came with 1.15.
fn has_object_selector(cluster: &Capabilities) -> bool {
    cluster.at_least(1, 15)
}

/// Whether every Namespace has its name as a label.
fn knows_namespaces(cluster: &Capabilities) -> bool {
    cluster.at_least(1, 21)
}

/// An entry of a registration, as far as the server has the fields: those of 1.13 drop what they do not know.
pub(crate) fn entry(cluster: &Capabilities, name: &str, client: &Value, rules: &Value) -> Value {
    let mut entry = json!({ "name": name, "clientConfig": client, "rules": rules, "sideEffects": "None" });
    if cluster.at_least(1, 14) {
        entry["timeoutSeconds"] = json!(TIMEOUT);
        entry["admissionReviewVersions"] = json!(["v1", "v1beta1"]);
    }
    if cluster.at_least(1, 15) {
        entry["matchPolicy"] = json!("Exact");
    }
    entry
}

impl Address {
    /// Sees that `cluster` can call it.
    pub(crate) fn check(&self, cluster: &Capabilities) -> Result<(), Unavailable> {
        match &self.endpoint {
            Endpoint::Service { port, .. } if *port != HTTPS && !cluster.at_least(1, 15) => {
                let message = format!(
                    "this server ({}) calls Services on port {HTTPS} only, and the Service of the webhook has port {port}",
                    cluster.version
                );
                Err(Unavailable::new(Code::EngineUnavailable, message))
            }
            _ => Ok(()),
        }
    }

    /// The `clientConfig` that has the path `path` called.
    pub(crate) fn client(&self, path: &str) -> Value {
        let mut client = match &self.endpoint {
            Endpoint::Url(base) => json!({ "url": format!("{}{path}", base.trim_end_matches('/')) }),
            Endpoint::Service { namespace, name, port } => {
                let mut service = json!({ "namespace": namespace, "name": name, "path": path });
                if *port != HTTPS {
                    service["port"] = json!(port);
                }
                json!({ "service": service })
            }
        };
        if let Some(bundle) = &self.ca_bundle {
            client["caBundle"] = json!(STANDARD.encode(bundle));
        }
        client
    }
}

#[cfg(test)]
mod tests;
