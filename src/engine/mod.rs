//! The ways to deliver a template. An engine is one folder that implements [`Engine`], and one line in `ENGINES`.
//!
//! [`initializer`] registers policies one by one, and acts on stored objects. The others register *kinds*: all policies on a kind
//! share one registration, because order and conflicts need it. [`choice`] says which engine serves which kind; [`registration`]
//! writes what engines render, and verifies it.

pub mod admission_policy;
pub mod choice;
pub mod initializer;
pub mod object;
pub mod reach;
pub mod registration;
pub mod targets;
pub mod trial;
pub mod webhook;

use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::cluster::capabilities::Capabilities;
use crate::cluster::client::CallError;
use crate::policy::{Policy, Site};
use crate::workload::Kind;
use reach::Reachable;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;

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

/// An engine, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineName {
    /// Objects are completed before anybody sees them, on Kubernetes 1.12 and 1.13.
    Initializer,
    /// The API server itself injects, from 1.36.
    MutatingAdmissionPolicy,
    /// The API server asks the operator, from 1.9.
    Webhook,
}

/// What it takes to render a registration.
pub struct Surroundings<'a> {
    /// What the API server offers.
    pub cluster: &'a Capabilities,
    /// The operator's configuration.
    pub site: &'a Site,
    /// How the API server reaches this operator.
    pub reach: &'a Reachable,
    /// Whether objects of a resource can be read, by its plural name.
    pub is_readable: &'a dyn Fn(&str) -> bool,
}

/// One way to deliver. Pure: it renders, and reads what API servers answer.
pub trait Engine: Sync {
    /// Its name in code.
    fn id(&self) -> EngineName;

    /// Its name in `spec.engine`, `status.engine` and metrics.
    fn name(&self) -> &'static str;

    /// The value of `spec.engine` that asks for it.
    fn choice(&self) -> EngineChoice;

    /// Whether it can run on `cluster`. That an API is served proves nothing: a trial follows.
    ///
    /// # Errors
    /// The reason, with the server's flag to set.
    fn check(&self, cluster: &Capabilities) -> Result<(), Unavailable>;

    /// What it registers, as plural names of [`registration::ALL`](crate::cluster::capabilities::registration::ALL): the first injects.
    fn registers(&self) -> &'static [&'static str];

    /// Whether each policy has a registration of its own, and injection changes the stored object.
    fn is_per_policy(&self) -> bool {
        false
    }

    /// Whether the API server calls this operator at each create.
    fn needs_operator(&self) -> bool {
        false
    }

    /// The verbs that it needs on the workloads themselves.
    fn verbs(&self) -> &'static [&'static str] {
        &[]
    }

    /// What `policies` on `kind` are registered as. Nothing if each policy has a registration of its own.
    ///
    /// # Errors
    /// Why they cannot be delivered so.
    fn render(
        &self,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        surroundings: &Surroundings<'_>,
    ) -> Result<Vec<Value>, Unavailable>;

    /// Objects by which the API server itself rejects what `policies` on `kind` reject, so that no operator has to answer; none if
    /// it cannot.
    fn render_rejecting(
        &self,
        _kind: &Arc<Kind>,
        _policies: &[Arc<Policy>],
        _surroundings: &Surroundings<'_>,
    ) -> Option<Vec<Value>> {
        None
    }

    /// The revision that `object`, which it has rendered or the server has stored, shows on a trial.
    fn revision_of(&self, object: &Value) -> Option<String>;

    /// Whether `error` says that the API server got no answer from this engine.
    fn is_unanswered(&self, _error: &CallError) -> bool {
        false
    }

    /// Why a registration does not show on a trial. `tried` says what was tried, `why` what the server said.
    fn without_effect(&self, tried: &str, why: Option<&str>, cluster: &Capabilities) -> Unavailable;
}

/// What `policies` on `kind` can be registered as by `engine`, the best first.
///
/// # Errors
/// Why they cannot be delivered so.
pub fn drafts(
    engine: EngineName,
    kind: &Arc<Kind>,
    policies: &[Arc<Policy>],
    surroundings: &Surroundings<'_>,
) -> Result<Vec<Vec<Value>>, Unavailable> {
    let engine = engine.engine();
    let objects = engine.render(kind, policies, surroundings)?;
    if !engine.needs_operator() {
        return Ok(vec![objects]);
    }
    // The API server itself rejects, where it can: it always answers.
    let rejecting = ENGINES.iter().find_map(|other| other.render_rejecting(kind, policies, surroundings));
    let better = rejecting.filter(|rejecting| !rejecting.is_empty()).map(|rejecting| {
        let injecting = objects.iter().filter(|object| !registration::refuses(object));
        injecting.cloned().chain(rejecting).collect()
    });
    Ok(better.into_iter().chain([objects]).collect())
}

/// The revision that `object`, which any engine has rendered or the server has stored, shows on a trial.
pub fn revision_of(object: &Value) -> Option<String> {
    ENGINES.iter().find_map(|engine| engine.revision_of(object))
}

impl EngineName {
    /// The engine.
    pub fn engine(self) -> &'static dyn Engine {
        ENGINES.into_iter().find(|engine| engine.id() == self).expect("every engine has a line")
    }

    /// The name as in `spec.engine`, `status.engine` and metrics.
    pub fn as_str(self) -> &'static str {
        self.engine().name()
    }

    /// Those that a `status.engine` lists, with commas between them.
    pub fn listed(engines: &str) -> impl Iterator<Item = Self> {
        engines
            .split(',')
            .filter_map(|name| ENGINES.iter().find(|engine| engine.name() == name.trim()))
            .map(|engine| engine.id())
    }

    /// The engine that a policy asks for; none if it takes any.
    pub fn asked_for(choice: EngineChoice) -> Option<Self> {
        ENGINES.iter().find(|engine| engine.choice() == choice).map(|engine| engine.id())
    }

    /// See [`Engine::check`].
    ///
    /// # Errors
    /// The reason, with the server's flag to set.
    pub fn check(self, cluster: &Capabilities) -> Result<(), Unavailable> {
        self.engine().check(cluster)
    }

    /// See [`Engine::registers`].
    pub fn registers(self) -> &'static [&'static str] {
        self.engine().registers()
    }

    /// See [`Engine::is_per_policy`].
    pub fn is_per_policy(self) -> bool {
        self.engine().is_per_policy()
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Every engine, in the order in which `Auto` prefers them.
static ENGINES: [&dyn Engine; 3] =
    [&initializer::Initializer, &admission_policy::MutatingAdmissionPolicy, &webhook::Webhook];
