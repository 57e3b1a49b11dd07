//! The webhook engine, for servers without Initializers and MutatingAdmissionPolicy, and for policies that those engines cannot
//! express.
//!
//! [`compile::webhook`](crate::compile::webhook) renders the registrations. [`server`] receives the calls, and
//! [`review`](crate::review) answers them. `bodies` reads them. [`certs`] keeps the certificate, which [`authority`] creates,
//! and [`tls`] the settings of handshakes. [`force`] records which policies are in effect by webhook. [`replica`] joins the parts. `docs/webhooks.md` describes the behaviour of servers.
//!
//! [`author`] does not deliver policies: it uses the same server to check the authors of policies.
//!
//! The URL of a registration ends in its *revision*. An object in the operator's own namespace with the label
//! `scpol.dev/probe` gets that revision as an annotation. So a dry-run create shows which registration is in effect, and that
//! the API server reaches the webhook.

pub mod author;
pub mod authority;
mod bodies;
pub mod certs;
pub mod force;
pub mod replica;
pub mod server;
pub mod tls;

use super::probe::unanswered;
use super::process::{Serving, Settings};
use super::requirements::{Flags, Requirements, SideRegistration};
use super::{Called, Engine, EngineName, Injector, Sharing, StoredRegistration, Surroundings, Unavailable};
use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::capabilities::{Capabilities, registration};
use crate::compile::webhook as compiled;
use crate::naming::shared_name;
use crate::operator::Operator;
use crate::policy::{Policy, Site};
use crate::workload::Kind;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const NAME: EngineName = EngineName("Webhook");

pub struct Webhook;

impl Engine for Webhook {
    fn name(&self) -> EngineName {
        NAME
    }

    fn choice(&self) -> EngineChoice {
        EngineChoice::Webhook
    }

    fn check(&self, cluster: &Capabilities) -> Result<(), Unavailable> {
        compiled::check_server(cluster)
    }

    fn requirements(&self) -> Requirements {
        Requirements {
            rights: &[
                include_str!("../../../config/rbac/webhook/cluster_role.yaml"),
                include_str!("../../../config/rbac/webhook/role.yaml"),
            ],
            flags,
            plugins: &["MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"],
            off: Code::WebhookOff,
            witness: None,
        }
    }

    fn registers(&self) -> &'static [&'static str] {
        &[registration::MUTATING_WEBHOOKS]
    }

    fn injector(&self) -> Injector<'_> {
        Injector::Called(self)
    }
}

impl Sharing for Webhook {
    fn rejects_by(&self) -> &'static [&'static str] {
        &[registration::VALIDATING_WEBHOOKS]
    }

    fn rejecting_name(&self, _: &Policy, kind: &Kind) -> String {
        shared_name(kind)
    }

    fn render(
        &self,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        surroundings: &Surroundings,
    ) -> Result<Vec<Value>, Unavailable> {
        let Surroundings { cluster, site, reach, .. } = surroundings;
        let reach = reach.clone()?;
        compiled::render(kind, policies, cluster, site, &reach.address)
    }

    fn render_as(
        &self,
        stored: &StoredRegistration<'_>,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        cluster: &Capabilities,
        site: &Site,
    ) -> Option<Vec<Value>> {
        compiled::render(kind, policies, cluster, site, &compiled::address_of(stored.object)?).ok()
    }

    fn without_effect(&self, tried: &str, why: Option<&str>, cluster: &Capabilities) -> Unavailable {
        if let Some(why) = why {
            return unanswered(why);
        }
        // Without a webhook that must be answered, the server does not report that a call failed.
        if !compiled::has_probe(cluster) {
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

    fn revision_of(&self, object: &Value) -> Option<String> {
        compiled::revision_of(object).map(str::to_owned)
    }
}

impl Called for Webhook {
    fn render_standby(
        &self,
        match_conditions: &Value,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        surroundings: &Surroundings,
    ) -> Result<Option<Value>, Unavailable> {
        let Surroundings { cluster, site, reach, unreadable } = surroundings;
        if unreadable.contains(registration::MUTATING_WEBHOOKS) {
            return Ok(None);
        }
        let reach = reach.clone()?;
        compiled::standby(kind, policies, match_conditions, cluster, site, &reach.address)
    }

    fn side_registration(&self) -> SideRegistration {
        SideRegistration {
            name: author::NAME,
            title: "rights for the author check",
            rights: &[include_str!("../../../config/rbac/author-webhook/role.yaml")],
        }
    }

    fn serve(&self, operator: &Arc<Operator>, settings: &Settings, ready: &Arc<AtomicBool>) -> anyhow::Result<Serving> {
        replica::start(operator, settings, ready)
    }
}

fn flags(minor: u32) -> Flags {
    match minor {
        0..=8 => Flags::Never("webhooks came with 1.9"),
        _ => Flags::Default(
            "`MutatingAdmissionWebhook` and `ValidatingAdmissionWebhook` must not be in `--disable-admission-plugins`",
        ),
    }
}
