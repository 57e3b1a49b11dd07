//! The ways to deliver a template. An engine is one folder that implements [`Engine`], and one line in `ENGINES`. No other code knows
//! which engines there are.
//!
//! One engine registers policies one by one, and completes stored objects by a [`Worker`]. The others register *kinds*: all policies
//! on a kind share one registration, because order and conflicts need it. [`choice`] says which engine serves which kind,
//! [`lifecycle`] when a registration is made and removed, and [`registration`] writes what engines render, and verifies it.

pub mod admission_policy;
pub mod choice;
pub mod hold;
pub mod initializer;
pub mod lifecycle;
pub mod process;
pub mod reach;
pub mod registration;
pub mod requirements;
pub mod trial;
pub mod webhook;

pub use sidecar_policy_core::Unavailable;

use crate::api::v1alpha1::EngineChoice;
use crate::capabilities::Capabilities;
use crate::cluster::client::CallError;
use crate::naming::shared_name;
use crate::operator::Operator;
use crate::policy::{Policy, Site};
use crate::workload::Kind;
use process::{Serving, Settings, Worker};
use reach::Reachable;
use requirements::{Requirements, SideRegistration};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The name of an engine in `spec.engine`, `status.engine`, messages and metrics. Only engines make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineName(&'static str);

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

/// One way to deliver: it renders registrations, and reads the answers of API servers. What it does in the operator process is
/// [`Engine::worker`] and [`Engine::serve`].
pub trait Engine: Sync {
    /// Its name.
    fn name(&self) -> EngineName;

    /// The value of `spec.engine` that asks for it.
    fn choice(&self) -> EngineChoice;

    /// Whether it can run on `cluster`. An API that is served proves nothing: a trial follows.
    ///
    /// # Errors
    /// The reason, with the server's flag to set.
    fn check(&self, cluster: &Capabilities) -> Result<(), Unavailable>;

    /// What an API server must be started with, and which rights the operator needs.
    fn requirements(&self) -> Requirements;

    /// What it registers to inject, as plural names of [`registration::ALL`](crate::capabilities::registration::ALL): the
    /// first injects.
    fn registers(&self) -> &'static [&'static str];

    /// What it registers to reject workloads; nothing if it rejects them itself.
    fn rejects_by(&self) -> &'static [&'static str] {
        &[]
    }

    /// The name of what rejects workloads of `kind` for `policy`.
    fn rejecting_name(&self, _policy: &Policy, kind: &Kind) -> String {
        shared_name(kind)
    }

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

    /// The registration that `policy` has of its own for `kinds`; none if policies share registrations.
    fn render_own(&self, _policy: &Policy, _kinds: &[Arc<Kind>], _cluster: &Capabilities) -> Option<Value> {
        None
    }

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

    /// What `policies` on `kind` are registered as, where `stored`, one of these objects and of `resource`, says how the API server
    /// reaches the operator; none if that cannot be told.
    fn render_as(
        &self,
        resource: &str,
        stored: &Value,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        cluster: &Capabilities,
        site: &Site,
    ) -> Option<Vec<Value>>;

    /// The revision that `object`, which it has rendered or the server has stored, shows on a trial.
    fn revision_of(&self, object: &Value) -> Option<String>;

    /// The kinds of workloads that `stored`, a registration of one policy, names.
    fn kinds_of(&self, _stored: &Value) -> BTreeSet<Arc<Kind>> {
        BTreeSet::new()
    }

    /// The initializers that `stored`, which may be somebody else's, puts on new objects.
    fn initializers_of(&self, _stored: &Value) -> Vec<String> {
        Vec::new()
    }

    /// Whether `error` says that the API server got no answer from this engine.
    fn is_unanswered(&self, _error: &CallError) -> bool {
        false
    }

    /// Why a registration does not show on a trial. `tried` says what was tried, `why` what the server said.
    fn without_effect(&self, tried: &str, why: Option<&str>, cluster: &Capabilities) -> Unavailable;

    /// A registration that it can have beside those of policies.
    fn side_registration(&self) -> Option<SideRegistration> {
        None
    }

    /// What completes stored objects while this replica leads; none if the API server does all the work.
    fn worker(&self, _operator: &Arc<Operator>, _settings: &Settings) -> Option<Arc<dyn Worker>> {
        None
    }

    /// Starts what answers the API server in each replica; none if it asks nothing. `ready` is false while the answers are not to be
    /// relied on.
    ///
    /// # Errors
    /// If its address cannot be used.
    fn serve(
        &self,
        _operator: &Arc<Operator>,
        _settings: &Settings,
        _ready: &Arc<AtomicBool>,
    ) -> anyhow::Result<Option<Serving>> {
        Ok(None)
    }
}

/// Every engine, in the order in which `Auto` prefers them.
static ENGINES: &[&dyn Engine] =
    &[&initializer::Initializer, &admission_policy::MutatingAdmissionPolicy, &webhook::Webhook];

/// Every engine, in the order in which `Auto` prefers them.
pub fn all() -> impl Iterator<Item = &'static dyn Engine> {
    ENGINES.iter().copied()
}

/// What completes stored objects while this replica leads; none if no engine does.
pub fn worker(operator: &Arc<Operator>, settings: &Settings) -> Option<Arc<dyn Worker>> {
    all().find_map(|engine| engine.worker(operator, settings))
}

/// Starts what answers the API server in each replica.
///
/// # Errors
/// If its address cannot be used.
pub fn serve(operator: &Arc<Operator>, settings: &Settings, ready: &Arc<AtomicBool>) -> anyhow::Result<Serving> {
    for engine in all() {
        if let Some(serving) = engine.serve(operator, settings, ready)? {
            return Ok(serving);
        }
    }
    Ok(Serving::none())
}

/// The engine that makes or reads objects of `resource`, a plural name.
pub fn of_resource(resource: &str) -> Option<&'static dyn Engine> {
    all().find(|engine| engine.registers().iter().chain(engine.rejects_by()).any(|registered| *registered == resource))
}

/// Whether the objects of `resource`, a plural name, are each of one policy.
pub fn is_per_policy(resource: &str) -> bool {
    of_resource(resource).is_some_and(Engine::is_per_policy)
}

/// The kinds of workloads that `stored`, an object of `resource`, names.
pub fn kinds_of(resource: &str, stored: &Value) -> BTreeSet<Arc<Kind>> {
    of_resource(resource).map(|engine| engine.kinds_of(stored)).unwrap_or_default()
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
    let rejecting = all().find_map(|other| other.render_rejecting(kind, policies, surroundings));
    let better = rejecting.filter(|rejecting| !rejecting.is_empty()).map(|rejecting| {
        let injecting = objects.iter().filter(|object| !registration::refuses(object));
        injecting.cloned().chain(rejecting).collect()
    });
    Ok(better.into_iter().chain([objects]).collect())
}

/// The revision that `object`, which any engine has rendered or the server has stored, shows on a trial.
pub fn revision_of(object: &Value) -> Option<String> {
    all().find_map(|engine| engine.revision_of(object))
}

impl EngineName {
    /// The engine.
    pub fn engine(self) -> &'static dyn Engine {
        all().find(|engine| engine.name() == self).expect("an engine has made the name")
    }

    /// The name as a string.
    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// The engines that a `status.engine` lists, with commas between them.
    pub fn listed(engines: &str) -> impl Iterator<Item = Self> {
        engines.split(',').filter_map(|name| all().map(Engine::name).find(|engine| engine.0 == name.trim()))
    }

    /// The engine that a policy asks for; none if it takes any.
    pub fn asked_for(choice: EngineChoice) -> Option<Self> {
        all().find(|engine| engine.choice() == choice).map(Engine::name)
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
        f.write_str(self.0)
    }
}
