//! The webhook engine, for servers that have neither Initializers nor MutatingAdmissionPolicy, or policies that those cannot
//! express.
//!
//! [`render`] says what the server must know, [`server`] takes its calls, [`review`] answers them, and [`certs`] keeps the
//! certificate by which the server knows us, which [`authority`] makes. [`force`] says which policies are in force by webhook, and
//! [`replica`] puts it all together. How servers behave is told in `docs/webhooks.md`.
//!
//! [`author`] and [`rights`] are no part of delivering: by the same server they judge who writes policies.
//!
//! A registration is called by a URL that ends in its *revision*. An object in the operator's own namespace with the label
//! `scpol.dev/probe` gets that revision as an annotation: so a create that is not stored shows which registration is in
//! force, and that the API server reaches us.

pub mod author;
pub mod authority;
pub mod certs;
pub mod force;
pub mod render;
pub mod replica;
pub mod review;
pub mod rights;
pub mod server;

use super::registration::{is_unanswered, unanswered};
use super::{Engine, EngineName, Surroundings, Unavailable};
use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::cluster::capabilities::{Capabilities, registration};
use crate::cluster::client::CallError;
use crate::policy::Policy;
use crate::workload::Kind;
use serde_json::Value;
use std::sync::Arc;

/// The name of the engine, as in `spec.engine`.
pub const NAME: &str = "Webhook";

/// Why this engine cannot run on `cluster`, if it cannot. Presence of an API proves nothing: a probe follows.
///
/// # Errors
/// The reason, with the server's flag to set.
pub fn check(cluster: &Capabilities) -> Result<(), Unavailable> {
    for resource in [registration::MUTATING_WEBHOOKS, registration::VALIDATING_WEBHOOKS] {
        if cluster.registration(resource).is_none() {
            let message = format!(
                "this server ({}) does not serve {resource} of {}; the webhook engine needs Kubernetes 1.9 or later, and the API on",
                cluster.version,
                registration::GROUP
            );
            return Err(Unavailable::new(Code::WebhookOff, message));
        }
    }
    Ok(())
}

/// The engine.
pub struct Webhook;

impl Engine for Webhook {
    fn id(&self) -> EngineName {
        EngineName::Webhook
    }

    fn name(&self) -> &'static str {
        NAME
    }

    fn choice(&self) -> EngineChoice {
        EngineChoice::Webhook
    }

    fn check(&self, cluster: &Capabilities) -> Result<(), Unavailable> {
        check(cluster)
    }

    fn registers(&self) -> &'static [&'static str] {
        &[registration::MUTATING_WEBHOOKS]
    }

    fn needs_operator(&self) -> bool {
        true
    }

    fn render(
        &self,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        surroundings: &Surroundings<'_>,
    ) -> Result<Vec<Value>, Unavailable> {
        let Surroundings { cluster, site, reach, .. } = surroundings;
        let reach = (*reach).clone()?;
        render::render(kind, policies, cluster, site, &reach.endpoint, reach.ca_bundle.as_deref())
    }

    fn revision_of(&self, object: &Value) -> Option<String> {
        render::revision_of(object).map(str::to_owned)
    }

    fn is_unanswered(&self, error: &CallError) -> bool {
        is_unanswered(error)
    }

    fn without_effect(&self, tried: &str, why: Option<&str>, cluster: &Capabilities) -> Unavailable {
        if let Some(why) = why {
            return unanswered(why);
        }
        // Without an entry that must be answered, the server keeps to itself that it could not call.
        if !render::has_probe(cluster) {
            let message = format!(
                "{tried}, and this server ({}) does not tell why: can it reach the webhook, and are `MutatingAdmissionWebhook` and `ValidatingAdmissionWebhook` not in its `--disable-admission-plugins`? See its log",
                cluster.version
            );
            return Unavailable::new(Code::WebhookUnreachable, message);
        }
        let message = format!(
            "{tried}: is the admission plugin on? See that `MutatingAdmissionWebhook` and `ValidatingAdmissionWebhook` are not in `--disable-admission-plugins`"
        );
        Unavailable::new(Code::WebhookOff, message)
    }
}
