//! What a policy is to be registered as, or why it is not to be.

use super::Controller;
use super::entry::outcome_of;
use crate::api::code::Code;
use crate::api::condition::Outcome;
use crate::api::v1alpha1::Mode;
use crate::cluster::openapi::PodSchema;
use crate::cluster::policies::{Snapshot, Stored};
use crate::engine;
use crate::engine::initializer::registration::is_ours;
use crate::engine::initializer::render;
use crate::engine::initializer::types::InitializerConfiguration;
use crate::policy::Policy;
use std::sync::Arc;

impl Controller {
    /// What the policy is to be registered as, or why it is not to be.
    pub(super) async fn wanted(
        &mut self,
        name: &str,
        stored: &Stored,
        snapshot: &Snapshot,
    ) -> Result<(Arc<Policy>, InitializerConfiguration), Outcome> {
        let policy = stored.parsed.clone().map_err(|violations| {
            let first = violations.first().map_or(Code::InvalidField, |violation| violation.code);
            let texts: Vec<_> =
                violations.iter().map(|violation| format!("{}: {}", violation.field, violation.message)).collect();
            Outcome::Rejected { code: first, message: texts.join("; ") }
        })?;
        if let Some(other) =
            snapshot.policies.by_initializer(&policy.initializer_name).filter(|other| other.name != policy.name)
        {
            let message = format!(
                "spec.initializerName: `{}` is the name of SidecarPolicy `{}` already",
                policy.initializer_name, other.name
            );
            return Err(Outcome::Rejected { code: Code::DuplicateInitializerName, message });
        }
        if policy.spec.suspend {
            return Err(Outcome::Suspended);
        }
        if policy.spec.mode == Mode::Audit {
            let sample = self.shared.ledger(|ledger| ledger.sample(name, &policy.spec_hash));
            return Err(Outcome::Audit { sample });
        }
        let capabilities = self.shared.capabilities();
        let engine = engine::choose(policy.spec.engine, &capabilities).map_err(outcome_of)?;
        let wanted = engine.render(&policy, &capabilities).map_err(outcome_of)?;
        let wanted: InitializerConfiguration =
            serde_json::from_value(wanted).expect("this engine renders configurations");
        if policy.needs_native_sidecars() && !self.shared.site.native_sidecars {
            let message =
                format!("native sidecars need Kubernetes 1.29 or later; this server is {}", capabilities.version);
            return Err(Outcome::Impossible { code: Code::NativeSidecarsUnavailable, message });
        }
        self.check_template(&policy).await?;
        self.check_foreign(name, &policy)?;
        Ok((policy, wanted))
    }

    /// Compares the template with what the server knows.
    async fn check_template(&mut self, policy: &Policy) -> Result<(), Outcome> {
        if self.schema.is_none() {
            let fetched = PodSchema::fetch(&self.shared.client).await;
            self.schema =
                Some(fetched.map_err(|error| Outcome::Waiting { code: Code::ServerAway, message: error.to_string() })?);
        }
        let unknown =
            self.schema.as_ref().map(|schema| schema.unknown_fields(&policy.template.spec)).unwrap_or_default();
        if unknown.is_empty() {
            return Ok(());
        }
        let version = &self.shared.capabilities().version;
        let message = format!("this server ({version}) does not know {}; it would be dropped", unknown.join(", "));
        Err(Outcome::Impossible { code: Code::UnknownTemplateField, message })
    }

    /// Looks for configurations of others that are in our way.
    fn check_foreign(&self, name: &str, policy: &Policy) -> Result<(), Outcome> {
        for (other, configuration) in
            self.configurations.iter().flatten().filter(|(_, configuration)| !is_ours(configuration))
        {
            if *other == render::name(name) {
                let message =
                    format!("an InitializerConfiguration `{other}` exists that we did not make; delete or rename it");
                return Err(Outcome::Impossible { code: Code::NameTaken, message });
            }
            if configuration.initializers.iter().any(|entry| entry.name == policy.initializer_name) {
                let message = format!(
                    "the InitializerConfiguration `{other}`, which is not ours, lists `{}`; remove it there",
                    policy.initializer_name
                );
                return Err(Outcome::Impossible { code: Code::ForeignConfiguration, message });
            }
        }
        Ok(())
    }
}
