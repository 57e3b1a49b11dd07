//! The registration of the author check, its probe, and what the operator answers about it.

use crate::Unavailable;
use crate::api::GROUP;
use crate::api::code::Code;
use crate::capabilities::{Capabilities, registration};
use crate::compile::webhook::{Address, check_server, entry};
use crate::naming::{self, PROBE, PROBE_REFUSE};
use serde_json::{Value, json};

/// The name of the registration and of its only entry. The ValidatingAdmissionPolicy in `config/author-check.yaml` has
/// the same name.
pub const NAME: &str = "author.scpol.dev";
/// The first segment of the called path. The second one is the revision of the registration.
pub const PATH: &str = "/author/";
/// The folder of manifests with the rights that the check needs.
pub const RIGHTS: &str = "config/rbac/author-webhook";
/// The plural name of the checked resource.
pub(super) const RESOURCE: &str = "sidecarpolicies";

/// The message for an author whose policy came by the registration `revision`, which this operator has not seen.
pub fn unseen(revision: &str) -> String {
    format!(
        "{}: this replica of the operator has not seen registration {revision} yet, so the policy is refused: try again",
        Code::Reconciling
    )
}

/// A policy for a dry-run create that the registration rejects with `probed` once it is in effect. The policy is only
/// for `namespace`, the operator's own. The operator may create pods there, so `config/author-check.yaml` admits the
/// probe.
pub fn probe(namespace: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1alpha1"),
        "kind": "SidecarPolicy",
        "metadata": { "name": "scpol-probe", "labels": { PROBE: PROBE_REFUSE } },
        "spec": {
            "mode": "Audit",
            "namespaces": [namespace],
            "template": { "containers": [{ "name": "probe", "image": "probe" }] },
        },
    })
}

/// The registration.
///
/// # Errors
/// If the server cannot register webhooks, or cannot call this one.
pub fn render(cluster: &Capabilities, address: &Address) -> Result<Value, Unavailable> {
    check_server(cluster)?;
    address.check(cluster)?;
    let resource = cluster.registration(registration::VALIDATING_WEBHOOKS).expect("the engine has been checked");
    let mut rule = json!({
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "apiGroups": [GROUP],
        "apiVersions": ["*"],
        "resources": [RESOURCE],
    });
    if cluster.at_least(1, 14) {
        rule["scope"] = json!("Cluster");
    }
    let at_revision = |revision: &str| {
        let client = address.client(&format!("{PATH}{revision}"));
        let mut entry = entry(cluster, NAME, &client, &json!([rule]));
        entry["failurePolicy"] = json!("Fail");
        json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": naming::of_a_webhook(naming::metadata(NAME, &[])),
            "webhooks": [entry],
        })
    };
    Ok(at_revision(&crate::digest::short(at_revision("").to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::webhook::Endpoint;

    #[test]
    fn the_registration_must_be_answered_and_has_what_the_server_knows() {
        let cluster = |minor: u32, version: &'static str| {
            let plurals = [
                ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
                ("validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
            ];
            let served = plurals.map(|(plural, kind)| ("admissionregistration.k8s.io", version, plural, kind));
            Capabilities::of(minor, &served)
        };
        let address = |ca_bundle: Option<&str>| {
            let endpoint = Endpoint::Service { namespace: "scpol-system".into(), name: "scpol".into(), port: 443 };
            Address { endpoint, ca_bundle: ca_bundle.map(Into::into) }
        };
        let old = render(&cluster(13, "v1beta1"), &address(Some("ca"))).unwrap();
        let revision = crate::compile::webhook::revision_of(&old).unwrap();
        let expected = json!({
            "name": NAME, "failurePolicy": "Fail", "sideEffects": "None",
            "clientConfig": {
                "service": { "namespace": "scpol-system", "name": "scpol", "path": format!("/author/{revision}") },
                "caBundle": "Y2E=",
            },
            "rules": [{
                "apiGroups": ["scpol.dev"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE", "DELETE"],
                "resources": ["sidecarpolicies"],
            }],
        });
        assert_eq!(old["webhooks"], json!([expected]));
        let current = render(&cluster(36, "v1"), &address(Some("ca"))).unwrap();
        let entry = &current["webhooks"][0];
        assert_eq!((&entry["timeoutSeconds"], &entry["rules"][0]["scope"]), (&json!(3), &json!("Cluster")));
        let other = render(&cluster(36, "v1"), &address(Some("other"))).unwrap();
        assert_ne!(current["webhooks"][0]["clientConfig"]["service"], other["webhooks"][0]["clientConfig"]["service"]);
        assert!(render(&Capabilities::of(36, &[]), &address(None)).is_err());
    }
}
