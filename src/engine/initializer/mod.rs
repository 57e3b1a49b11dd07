//! The Initializer engine, for servers 1.12 and 1.13.
//!
//! [`render`] says what the server must know; [`registration`] brings a policy in force and takes it out again;
//! [`crate::workloads`] sees new objects, [`queue`] orders them, [`worker`] settles each in one guarded PATCH that
//! [`completion`] makes. How the server behaves is told in `docs/initializers.md`.

pub mod completion;
pub mod lane;
mod pressure;
pub mod queue;
pub mod registration;
pub mod render;
pub mod types;
pub mod worker;

use super::{Engine, EngineName, Surroundings, Unavailable};
use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::cluster::capabilities::{Capabilities, registration as resources};
use crate::policy::Policy;
use crate::workload::Kind;
use serde_json::Value;
use std::sync::Arc;

/// The engine.
pub struct Initializer;

impl Engine for Initializer {
    fn id(&self) -> EngineName {
        EngineName::Initializer
    }

    fn name(&self) -> &'static str {
        "Initializer"
    }

    fn choice(&self) -> EngineChoice {
        EngineChoice::Initializer
    }

    fn check(&self, cluster: &Capabilities) -> Result<(), Unavailable> {
        check(cluster)
    }

    fn registers(&self) -> &'static [&'static str] {
        &[resources::INITIALIZERS]
    }

    fn is_per_policy(&self) -> bool {
        true
    }

    fn verbs(&self) -> &'static [&'static str] {
        &["patch", "initialize"]
    }

    fn render(&self, kind: &Arc<Kind>, _: &[Arc<Policy>], _: &Surroundings<'_>) -> Result<Vec<Value>, Unavailable> {
        if kind.is_job() {
            let message = "spec.targets: the pod template of a Job cannot be changed once it is stored, as the Initializer engine does: target `pods` of group `\"\"`, or set `spec.engine: Auto`";
            return Err(Unavailable::new(Code::TargetRefused, message));
        }
        Ok(Vec::new())
    }

    fn revision_of(&self, _: &Value) -> Option<String> {
        None
    }

    fn without_effect(&self, tried: &str, _: Option<&str>, _: &Capabilities) -> Unavailable {
        let message = format!(
            "{tried}: is the admission plugin on? Start the API server with `--enable-admission-plugins=Initializers`"
        );
        Unavailable::new(Code::InitializersPluginOff, message)
    }
}

/// Why the engine cannot run on `cluster`, if it cannot.
///
/// # Errors
/// The reason, with the server's flag to set.
pub fn check(cluster: &Capabilities) -> Result<(), Unavailable> {
    if cluster.at_least(1, 14) {
        let message = format!(
            "this server is {}; Initializers were removed in 1.14: use `spec.engine: Auto`, `MutatingAdmissionPolicy` or `Webhook`",
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
