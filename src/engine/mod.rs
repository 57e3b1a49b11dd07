//! The ways to deliver a template. An engine is one folder that implements [`Engine`], and one line in `ENGINES`. No other code
//! depends on the set of engines.
//!
//! One engine registers each policy by itself and completes stored objects in a [`Worker`]. The others register *kinds*: all
//! policies on a kind share one registration, because order and conflicts need it. [`choice`] picks the engine of each kind.
//! [`lifecycle`] decides when a registration is made and removed. [`registration`] writes and verifies what engines render.

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

use crate::api::code::Code;
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

/// The inputs of rendering besides the policies.
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

/// One way to deliver. An engine renders registrations and interprets the answers of API servers. [`Engine::worker`] and
/// [`Engine::serve`] are its parts in the operator process.
pub trait Engine: Sync {
    fn name(&self) -> EngineName;

    /// The value of `spec.engine` that selects this engine.
    fn choice(&self) -> EngineChoice;

    /// Whether the engine can run on `cluster`. A served API is no proof: a trial follows.
    ///
    /// # Errors
    /// The reason, with the server's flag to set.
    fn check(&self, cluster: &Capabilities) -> Result<(), Unavailable>;

    /// The flags of the API server and the rights of the operator that the engine needs.
    fn requirements(&self) -> Requirements;

    /// The resources that the engine registers to inject, by the plural names of
    /// [`registration::ALL`](crate::capabilities::registration::ALL). The first one injects.
    fn registers(&self) -> &'static [&'static str];

    /// The resources that the engine registers to reject workloads; empty if the engine rejects them itself.
    fn rejects_by(&self) -> &'static [&'static str] {
        &[]
    }

    /// The name of the object that rejects workloads of `kind` for `policy`.
    fn rejecting_name(&self, _policy: &Policy, kind: &Kind) -> String {
        shared_name(kind)
    }

    /// Whether each policy has a registration of its own, and injection changes the stored object.
    fn is_per_policy(&self) -> bool {
        false
    }

    /// Whether the API server calls this operator on each create.
    fn needs_operator(&self) -> bool {
        false
    }

    /// The verbs that the engine needs on the workloads.
    fn verbs(&self) -> &'static [&'static str] {
        &[]
    }

    /// The objects that register `policies` on `kind`; empty if each policy has a registration of its own.
    ///
    /// # Errors
    /// Why the engine cannot deliver the policies.
    fn render(
        &self,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        surroundings: &Surroundings<'_>,
    ) -> Result<Vec<Value>, Unavailable>;

    /// The registration of `policy` alone for `kinds`; none if policies share registrations.
    fn render_own(&self, _policy: &Policy, _kinds: &[Arc<Kind>], _cluster: &Capabilities) -> Option<Value> {
        None
    }

    /// Objects by which the API server itself rejects what `policies` on `kind` reject, so that the operator need not answer;
    /// none if the engine cannot do that.
    fn render_rejecting(
        &self,
        _kind: &Arc<Kind>,
        _policies: &[Arc<Policy>],
        _surroundings: &Surroundings<'_>,
    ) -> Option<Vec<Value>> {
        None
    }

    /// The match conditions of a webhook for workloads that this engine left out, because another API server of the cluster does
    /// not run it; none if the engine cannot tell.
    fn left_out(&self, _kind: &Arc<Kind>, _policies: &[Arc<Policy>]) -> Option<Value> {
        None
    }

    /// The object by which API servers call this operator for workloads with `match_conditions` only; none if this engine cannot
    /// stand by, or if no policy injects.
    ///
    /// # Errors
    /// Why it cannot stand by yet.
    fn render_standby(
        &self,
        _match_conditions: &Value,
        _kind: &Arc<Kind>,
        _policies: &[Arc<Policy>],
        _surroundings: &Surroundings<'_>,
    ) -> Result<Option<Value>, Unavailable> {
        Ok(None)
    }

    /// The objects that register `policies` on `kind`, with the address of the operator taken from `stored`, one of these
    /// objects, which is of `resource`. None if `stored` lacks the address.
    fn render_as(
        &self,
        resource: &str,
        stored: &Value,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        cluster: &Capabilities,
        site: &Site,
    ) -> Option<Vec<Value>>;

    /// The revision that a trial shows for `object`, which the engine rendered or the server stored.
    fn revision_of(&self, object: &Value) -> Option<String>;

    /// The kinds of workloads in `stored`, a registration of one policy.
    fn kinds_of(&self, _stored: &Value) -> BTreeSet<Arc<Kind>> {
        BTreeSet::new()
    }

    /// The initializers that `stored`, perhaps a foreign object, adds to new objects.
    fn initializers_of(&self, _stored: &Value) -> Vec<String> {
        Vec::new()
    }

    /// Whether `error` says that the API server got no answer from this engine.
    fn is_unanswered(&self, _error: &CallError) -> bool {
        false
    }

    /// Why a trial does not show the registration. `tried` describes the trial; `why` is the server's message.
    fn without_effect(&self, tried: &str, why: Option<&str>, cluster: &Capabilities) -> Unavailable;

    /// An additional registration beside those of policies; none if the engine has none.
    fn side_registration(&self) -> Option<SideRegistration> {
        None
    }

    /// The worker that completes stored objects while this replica leads; none if the API server does all the work.
    fn worker(&self, _operator: &Arc<Operator>, _settings: &Settings) -> Option<Arc<dyn Worker>> {
        None
    }

    /// Starts the server that answers the API server in each replica; none if the API server does not call this engine. `ready`
    /// is false while the answers are not reliable.
    ///
    /// # Errors
    /// If the listen address is not usable.
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

/// The worker that completes stored objects while this replica leads; none if no engine has one.
pub fn worker(operator: &Arc<Operator>, settings: &Settings) -> Option<Arc<dyn Worker>> {
    all().find_map(|engine| engine.worker(operator, settings))
}

/// Starts the server that answers the API server in each replica.
///
/// # Errors
/// If the listen address is not usable.
pub fn serve(operator: &Arc<Operator>, settings: &Settings, ready: &Arc<AtomicBool>) -> anyhow::Result<Serving> {
    for engine in all() {
        if let Some(serving) = engine.serve(operator, settings, ready)? {
            return Ok(serving);
        }
    }
    Ok(Serving::none())
}

/// The engine that writes or reads objects of `resource`, a plural name.
pub fn of_resource(resource: &str) -> Option<&'static dyn Engine> {
    all().find(|engine| engine.registers().iter().chain(engine.rejects_by()).any(|registered| *registered == resource))
}

/// Whether each object of `resource`, a plural name, belongs to one policy.
pub fn is_per_policy(resource: &str) -> bool {
    of_resource(resource).is_some_and(Engine::is_per_policy)
}

/// The kinds of workloads in `stored`, an object of `resource`.
pub fn kinds_of(resource: &str, stored: &Value) -> BTreeSet<Arc<Kind>> {
    of_resource(resource).map(|engine| engine.kinds_of(stored)).unwrap_or_default()
}

/// The forms in which `engine` can register `policies` on `kind`, the best first.
///
/// # Errors
/// Why the engine cannot deliver the policies.
pub fn drafts(
    engine: EngineName,
    kind: &Arc<Kind>,
    policies: &[Arc<Policy>],
    surroundings: &Surroundings<'_>,
) -> Result<Vec<Vec<Value>>, Unavailable> {
    let engine = engine.engine();
    let objects = engine.render(kind, policies, surroundings)?;
    if !engine.needs_operator() {
        let with_standby = standby(engine, kind, policies, surroundings)?.map(|standby| {
            // It is written first: until the others follow, it replaces what they inject in an earlier form.
            std::iter::once(standby).chain(objects.iter().cloned()).collect()
        });
        return Ok(with_standby.into_iter().chain([objects]).collect());
    }
    // An API server that rejects by itself is better, because it always answers.
    let rejecting = all().find_map(|other| other.render_rejecting(kind, policies, surroundings));
    let better = rejecting.filter(|rejecting| !rejecting.is_empty()).map(|rejecting| {
        let injecting = objects.iter().filter(|object| !registration::refuses(object));
        injecting.cloned().chain(rejecting).collect()
    });
    Ok(better.into_iter().chain([objects]).collect())
}

/// The object that injects what `engine` leaves out, where the policies of the highest priority let the operator choose: without
/// it, a workload that is created through an API server of an older version would have no sidecar during an upgrade or after a
/// downgrade.
///
/// # Errors
/// That this operator does not answer yet.
fn standby(
    engine: &dyn Engine,
    kind: &Arc<Kind>,
    policies: &[Arc<Policy>],
    surroundings: &Surroundings<'_>,
) -> Result<Option<Value>, Unavailable> {
    // They choose the engine, see `choice`. `policies` are in order of priority.
    let mut choosing = policies.iter().take_while(|policy| policy.spec.priority == policies[0].spec.priority);
    if choosing.any(|policy| policy.spec.engine != EngineChoice::Auto) {
        return Ok(None);
    }
    let Some(conditions) = engine.left_out(kind, policies) else { return Ok(None) };
    let rendered = all().map(|other| other.render_standby(&conditions, kind, policies, surroundings));
    match rendered.collect::<Result<Vec<_>, _>>() {
        Ok(rendered) => Ok(rendered.into_iter().flatten().next()),
        Err(reason) if reason.code == Code::Reconciling => Err(reason),
        // The engine serves without it.
        Err(_) => Ok(None),
    }
}

/// The revision that a trial shows for `object`, which any engine rendered or the server stored.
pub fn revision_of(object: &Value) -> Option<String> {
    all().find_map(|engine| engine.revision_of(object))
}

impl EngineName {
    pub fn engine(self) -> &'static dyn Engine {
        all().find(|engine| engine.name() == self).expect("an engine has made the name")
    }

    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// The engines in a `status.engine`, which separates them with commas.
    pub fn listed(engines: &str) -> impl Iterator<Item = Self> {
        engines.split(',').filter_map(|name| all().map(Engine::name).find(|engine| engine.0 == name.trim()))
    }

    /// The engine that a policy asks for; none for `Auto`.
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
