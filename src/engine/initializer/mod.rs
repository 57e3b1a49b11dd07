//! The Initializer engine, for servers 1.12 and 1.13.
//!
//! [`render`] makes the configuration of a policy; [`registration`] registers and unregisters it. [`crate::workloads`] sees new
//! objects, [`queue`] orders them, and [`worker`] settles each in one guarded PATCH from
//! [`completion`](crate::compile::completion). `docs/initializers.md` describes the behaviour of servers.

pub mod lane;
mod pressure;
pub mod queue;
pub mod registration;
pub mod render;
mod send;
pub mod types;
pub mod worker;

use self::types::InitializerConfiguration;
use self::worker::Completer;
use super::process::{Settings, Worker};
use super::requirements::{Flags, Requirements, Witness};
use super::{Completing, Engine, EngineName, Injector, Unavailable};
use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::capabilities::{Capabilities, registration as resources};
use crate::cluster::client::CallError;
use crate::operator::Operator;
use crate::policy::Policy;
use crate::workload::Kind;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

const NAME: EngineName = EngineName("Initializer");

pub struct Initializer;

impl Engine for Initializer {
    fn name(&self) -> EngineName {
        NAME
    }

    fn choice(&self) -> EngineChoice {
        EngineChoice::Initializer
    }

    fn check(&self, cluster: &Capabilities) -> Result<(), Unavailable> {
        if cluster.at_least(1, 14) {
            let message = format!(
                "this server is {}; Initializers were removed in 1.14: use `spec.engine: Auto`, which takes an engine of this server",
                cluster.version
            );
            return Err(Unavailable::new(Code::EngineUnavailable, message));
        }
        if !cluster.at_least(1, 12) && cluster.minor != (0, 0) {
            let message = format!(
                "this server is {}; the Initializer engine needs 1.12 or 1.13 (older ones cannot try a create without storing it)",
                cluster.version
            );
            return Err(Unavailable::new(Code::VersionUnsupported, message));
        }
        if !cluster.initializers {
            let message = "admissionregistration.k8s.io/v1alpha1 is not served: start the API server with `--runtime-config=admissionregistration.k8s.io/v1alpha1=true` and `--enable-admission-plugins=Initializers`";
            return Err(Unavailable::new(Code::InitializersApiOff, message));
        }
        Ok(())
    }

    fn requirements(&self) -> Requirements {
        Requirements {
            rights: &[
                include_str!("../../../config/rbac/initializer/cluster_role.yaml"),
                include_str!("../../../config/rbac/initializer/role.yaml"),
            ],
            flags,
            plugins: &["Initializers"],
            off: Code::InitializersPluginOff,
            witness: Some(Witness {
                metadata: || json!({ "name": "scpol-check", "initializers": { "pending": [{ "name": "check.scpol.dev" }] } }),
                is_on: keeps_initializers,
                on: "a trial create kept its list of initializers",
                off: "a trial create lost its list of initializers: the admission plugin is off",
            }),
        }
    }

    fn registers(&self) -> &'static [&'static str] {
        &[resources::INITIALIZERS]
    }

    fn injector(&self) -> Injector<'_> {
        Injector::Completing(self)
    }
}

impl Completing for Initializer {
    fn check_kind(&self, kind: &Kind, policies: &[Arc<Policy>]) -> Result<(), Unavailable> {
        if kind.is_job() {
            let message = "spec.targets: the pod template of a Job cannot be changed once it is stored, as the Initializer engine does: target `pods` of group `\"\"`, or set `spec.engine: Auto`";
            return Err(Unavailable::new(Code::TargetRefused, message));
        }
        if policies.iter().any(|policy| policy.acts_on_update(kind)) {
            let message = "spec.targets: the Initializer engine sees no updates: take `UPDATE` out of `operations`, or set `spec.engine: Auto`";
            return Err(Unavailable::new(Code::TargetRefused, message));
        }
        Ok(())
    }

    fn render(&self, policy: &Policy, kinds: &[Arc<Kind>], cluster: &Capabilities) -> Value {
        let configuration = render::configuration(policy, kinds, cluster);
        serde_json::to_value(configuration).expect("a configuration is JSON")
    }

    fn verbs(&self) -> &'static [&'static str] {
        &["patch", "initialize"]
    }

    fn kinds_of(&self, stored: &Value) -> BTreeSet<Arc<Kind>> {
        parsed(stored).kinds()
    }

    fn initializers_of(&self, stored: &Value) -> Vec<String> {
        parsed(stored).initializers.into_iter().map(|entry| entry.name).collect()
    }

    fn worker(&self, operator: &Arc<Operator>, settings: &Settings) -> Arc<dyn Worker> {
        Arc::new(Completer::new(operator.clone(), settings))
    }
}

/// A configuration, ours or foreign; empty if it is unreadable.
fn parsed(stored: &Value) -> InitializerConfiguration {
    serde_json::from_value(stored.clone()).unwrap_or_default()
}

/// Whether the plugin is on; none if unknown. Without the plugin and its feature gate, the server drops `metadata.initializers`
/// on create.
fn keeps_initializers(answer: &Result<Value, CallError>) -> Option<bool> {
    match answer {
        Ok(tried) => Some(!tried["metadata"]["initializers"].is_null()),
        // The plugin itself rejects clients without the verb `initialize`.
        Err(error) if error.is_initializing_denied() => Some(true),
        Err(_) => None,
    }
}

/// From `docs/initializers.md`. The plugin makes the server turn on its feature gate.
fn flags(minor: u32) -> Flags {
    match minor {
        0..=6 => Flags::Never("Initializers came with 1.7"),
        7..=11 => Flags::Never("it needs 1.12 or 1.13"),
        12 => Flags::Needed(
            "`--enable-admission-plugins=Initializers --runtime-config=admissionregistration.k8s.io/v1alpha1=true --feature-gates=DryRun=true`",
        ),
        13 => Flags::Needed(
            "`--enable-admission-plugins=Initializers --runtime-config=admissionregistration.k8s.io/v1alpha1=true`",
        ),
        _ => Flags::Never("Initializers were removed in 1.14"),
    }
}
