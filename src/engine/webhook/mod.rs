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

use super::Unavailable;
use crate::api::code::Code;
use crate::cluster::capabilities::{Capabilities, registration};

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
