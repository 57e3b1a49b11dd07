//! The ways to deliver a template. An engine is one folder: take the folder and one line in `ALL` away, and the engine
//! is gone.

pub mod admission_policy;
pub mod initializer;

use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::cluster::capabilities::Capabilities;
use crate::policy::Policy;
use serde_json::Value;

/// Why something cannot be delivered: a code, and a message that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unavailable {
    /// The code.
    pub code: Code,
    /// What is missing, and where it could be had.
    pub message: String,
}

impl Unavailable {
    /// A reason with its code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// A way to deliver. Object-safe because it is synchronous and pure: what it renders is written elsewhere.
pub trait Engine: Send + Sync {
    /// Its name, as in `spec.engine`.
    fn name(&self) -> &'static str;

    /// Why this engine cannot run on `cluster`, if it cannot. Presence of an API proves nothing: a probe follows.
    ///
    /// # Errors
    /// The reason, with the server's flag to set.
    fn check(&self, cluster: &Capabilities) -> Result<(), Unavailable>;

    /// The registration of `policy`: what the API server needs so that the policy takes effect.
    ///
    /// # Errors
    /// What of the policy this engine cannot deliver on `cluster`.
    fn render(&self, policy: &Policy, cluster: &Capabilities) -> Result<Value, Unavailable>;
}

/// Every engine, in the order in which `Auto` prefers them.
const ALL: &[(EngineChoice, &dyn Engine)] = &[(EngineChoice::Initializer, &initializer::Initializer)];

/// The engine for a policy that asks for `choice`.
///
/// # Errors
/// Why there is none.
pub fn choose(choice: EngineChoice, cluster: &Capabilities) -> Result<&'static dyn Engine, Unavailable> {
    if choice == EngineChoice::Auto {
        let mut reasons = Vec::new();
        for (_, engine) in ALL {
            match engine.check(cluster) {
                Ok(()) => return Ok(*engine),
                Err(reason) => reasons.push(reason),
            }
        }
        return Err(reasons.into_iter().next().expect("there is at least one engine"));
    }
    let Some((_, engine)) = ALL.iter().find(|(name, _)| *name == choice) else {
        let message = format!(
            "`spec.engine: {choice:?}` is not served by this version of the operator; use `Auto` or `Initializer`"
        );
        return Err(Unavailable::new(Code::EngineUnavailable, message));
    };
    engine.check(cluster).map(|()| *engine)
}
