//! The ways to deliver a template. An engine is one folder that implements [`Engine`], and one line in `ENGINES`. No other code
//! depends on the set of engines.
//!
//! One engine registers each policy by itself and completes stored objects in a [`Worker`]. The others register *kinds*: all
//! policies on a kind share one registration, because order and conflicts need it. [`choice`] picks the engine of each kind.
//! [`lifecycle`] decides when a registration is made and removed. [`registration`] writes what engines render, and [`probe`]
//! verifies it.

pub mod admission_policy;
pub mod choice;
pub mod hold;
pub mod initializer;
pub mod lifecycle;
pub mod probe;
pub mod process;
pub mod reach;
pub mod registrar;
pub mod registration;
pub mod requirements;
pub mod trial;
pub mod webhook;

pub use sidecar_policy_core::Unavailable;

use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::capabilities::Capabilities;
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
#[derive(Clone)]
pub struct Surroundings {
    /// What the API server offers.
    pub cluster: Arc<Capabilities>,
    /// The operator's configuration.
    pub site: Arc<Site>,
    /// How the API server reaches this operator.
    pub reach: Reachable,
    /// The resources whose objects cannot be read, by plural name.
    pub unreadable: BTreeSet<&'static str>,
}

impl Surroundings {
    /// Whether everything that is rendered in `other` is the same here.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cluster, &other.cluster)
            && Arc::ptr_eq(&self.site, &other.site)
            && self.reach == other.reach
            && self.unreadable == other.unreadable
    }
}

/// One way to deliver: what is true of every engine. [`Injector`] has the part that depends on who changes workloads.
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

    fn injector(&self) -> Injector<'_>;
}

/// Who changes workloads.
pub enum Injector<'a> {
    /// The operator completes stored objects. Each policy has a registration of its own.
    Completing(&'a dyn Completing),
    /// The API server, by itself. All policies on a kind share a registration.
    InServer(&'a dyn InServer),
    /// The API server, which calls this operator on each create. All policies on a kind share a registration.
    Called(&'a dyn Called),
}

/// An engine that registers each policy by itself, and completes stored objects.
pub trait Completing: Sync {
    /// Whether stored objects of `kind` can be changed as `policies` want it.
    ///
    /// # Errors
    /// Why not.
    fn check_kind(&self, kind: &Kind, policies: &[Arc<Policy>]) -> Result<(), Unavailable>;

    /// The registration of `policy` for `kinds`.
    fn render(&self, policy: &Policy, kinds: &[Arc<Kind>], cluster: &Capabilities) -> Value;

    /// The verbs that the engine needs on the workloads.
    fn verbs(&self) -> &'static [&'static str];

    /// The kinds of workloads in `stored`, a registration of one policy.
    fn kinds_of(&self, stored: &Value) -> BTreeSet<Arc<Kind>>;

    /// The initializers that `stored`, perhaps a foreign object, adds to new objects.
    fn initializers_of(&self, stored: &Value) -> Vec<String>;

    /// The worker that completes stored objects while this replica leads.
    fn worker(&self, operator: &Arc<Operator>, settings: &Settings) -> Arc<dyn Worker>;
}

/// An engine that registers all policies on a kind together.
pub trait Sharing: Sync {
    /// The resources that the engine registers to reject workloads.
    fn rejects_by(&self) -> &'static [&'static str];

    /// The name of the object that rejects workloads of `kind` for `policy`.
    fn rejecting_name(&self, policy: &Policy, kind: &Kind) -> String;

    /// The objects that register `policies` on `kind`.
    ///
    /// # Errors
    /// Why the engine cannot deliver the policies.
    fn render(
        &self,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        surroundings: &Surroundings,
    ) -> Result<Vec<Value>, Unavailable>;

    /// The objects of the resource of `stored`, one of the objects that register `policies` on `kind`, as they would be rendered
    /// with the address of the operator in it. None if it lacks the address, or if the engine cannot deliver the policies.
    fn render_as(
        &self,
        stored: &StoredRegistration<'_>,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        cluster: &Capabilities,
        site: &Site,
    ) -> Option<Vec<Value>>;

    /// Why a trial does not show the registration. `tried` describes the trial; `why` is the server's message.
    fn without_effect(&self, tried: &str, why: Option<&str>, cluster: &Capabilities) -> Unavailable;

    /// The revision that a trial shows for `object`, which the engine rendered or the server stored.
    fn revision_of(&self, object: &Value) -> Option<String>;
}

/// A registration that the server stores.
pub struct StoredRegistration<'a> {
    /// The plural name of its resource. The items of a list do not name their kind.
    pub resource: &'a str,
    pub object: &'a Value,
}

/// An engine without a process.
pub trait InServer: Sharing {
    /// Objects by which the API server rejects what `policies` on `kind` reject, so that the operator need not answer; none if
    /// the server cannot do that.
    fn render_rejecting(
        &self,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        surroundings: &Surroundings,
    ) -> Option<Vec<Value>>;

    /// The match conditions of a webhook for workloads that this engine left out, because another API server of the cluster does
    /// not run it; none if the engine cannot tell.
    fn left_out(&self, kind: &Arc<Kind>, policies: &[Arc<Policy>]) -> Option<Value>;
}

/// An engine that answers the API server.
pub trait Called: Sharing {
    /// The object by which API servers call this operator for workloads with `match_conditions` only; none if no policy injects,
    /// or if such objects cannot be read.
    ///
    /// # Errors
    /// Why it cannot stand by yet.
    fn render_standby(
        &self,
        match_conditions: &Value,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        surroundings: &Surroundings,
    ) -> Result<Option<Value>, Unavailable>;

    /// An additional registration beside those of policies.
    fn side_registration(&self) -> SideRegistration;

    /// Starts the server that answers the API server in each replica. `ready` is false while the answers are not reliable.
    ///
    /// # Errors
    /// If the listen address is not usable.
    fn serve(&self, operator: &Arc<Operator>, settings: &Settings, ready: &Arc<AtomicBool>) -> anyhow::Result<Serving>;
}

impl dyn Engine + '_ {
    /// The part of an engine that registers each policy by itself; none if policies share registrations.
    pub fn completing(&self) -> Option<&dyn Completing> {
        match self.injector() {
            Injector::Completing(completing) => Some(completing),
            Injector::InServer(_) | Injector::Called(_) => None,
        }
    }

    /// The part of an engine whose policies share registrations.
    pub fn sharing(&self) -> Option<&dyn Sharing> {
        match self.injector() {
            Injector::Completing(_) => None,
            Injector::InServer(server) => Some(server),
            Injector::Called(called) => Some(called),
        }
    }

    pub fn called(&self) -> Option<&dyn Called> {
        match self.injector() {
            Injector::Called(called) => Some(called),
            Injector::Completing(_) | Injector::InServer(_) => None,
        }
    }

    fn in_server(&self) -> Option<&dyn InServer> {
        match self.injector() {
            Injector::InServer(server) => Some(server),
            Injector::Completing(_) | Injector::Called(_) => None,
        }
    }

    /// Whether each policy has a registration of its own, and injection changes the stored object.
    pub fn is_per_policy(&self) -> bool {
        self.completing().is_some()
    }

    /// Whether the API server calls this operator on each create.
    pub fn needs_operator(&self) -> bool {
        self.called().is_some()
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
    all().find_map(|engine| Some(engine.completing()?.worker(operator, settings)))
}

/// Starts the server that answers the API server in each replica.
///
/// # Errors
/// If the listen address is not usable.
pub fn serve(operator: &Arc<Operator>, settings: &Settings, ready: &Arc<AtomicBool>) -> anyhow::Result<Serving> {
    all()
        .find_map(<dyn Engine>::called)
        .map_or_else(|| Ok(Serving::none()), |called| called.serve(operator, settings, ready))
}

/// The engine that writes or reads objects of `resource`, a plural name.
pub fn of_resource(resource: &str) -> Option<&'static dyn Engine> {
    all().find(|engine| {
        let rejects_by = engine.sharing().map_or(&[][..], Sharing::rejects_by);
        engine.registers().iter().chain(rejects_by).any(|registered| *registered == resource)
    })
}

/// Whether each object of `resource`, a plural name, belongs to one policy.
pub fn is_per_policy(resource: &str) -> bool {
    of_resource(resource).is_some_and(<dyn Engine>::is_per_policy)
}

/// The engine whose registrations of single policies are objects of `resource`, a plural name.
pub fn completing(resource: &str) -> Option<&'static dyn Completing> {
    of_resource(resource)?.completing()
}

/// The kinds of workloads in `stored`, an object of `resource`.
pub fn kinds_of(resource: &str, stored: &Value) -> BTreeSet<Arc<Kind>> {
    completing(resource).map(|engine| engine.kinds_of(stored)).unwrap_or_default()
}

/// The forms in which `engine` can register `policies` on `kind`, the best first.
///
/// # Errors
/// Why the engine cannot deliver the policies.
pub fn drafts(
    engine: EngineName,
    kind: &Arc<Kind>,
    policies: &[Arc<Policy>],
    surroundings: &Surroundings,
) -> Result<Vec<Vec<Value>>, Unavailable> {
    let with = |first: Vec<Value>, objects: &[Value]| first.into_iter().chain(objects.iter().cloned()).collect();
    let (better, objects) = match engine.engine().injector() {
        Injector::Completing(completing) => (None, completing.check_kind(kind, policies).map(|()| Vec::new())?),
        Injector::InServer(server) => {
            let objects = server.render(kind, policies, surroundings)?;
            // It is written first: until the others follow, it replaces what they inject in an earlier form.
            let standby = standby(server, kind, policies, surroundings)?;
            let better = standby.map(|standby| with(vec![standby], &objects));
            // Such an engine leaves unusual values to that object.
            if let Some(policy) = policies.iter().find(|policy| policy.may_have_parameters()) {
                return better.map(|better| vec![better]).ok_or_else(|| alone(policy));
            }
            (better, objects)
        }
        Injector::Called(called) => {
            let objects = called.render(kind, policies, surroundings)?;
            // An API server that rejects by itself is better, because it always answers.
            let mut rejecting = all().filter_map(<dyn Engine>::in_server);
            let rejecting = rejecting.find_map(|server| server.render_rejecting(kind, policies, surroundings));
            let injecting = || objects.iter().filter(|object| !registrar::refuses(object)).cloned().collect();
            let rejecting = rejecting.filter(|rejecting| !rejecting.is_empty());
            (rejecting.map(|rejecting| with(injecting(), &rejecting)), objects)
        }
    };
    Ok(better.into_iter().chain([objects]).collect())
}

/// The object that injects what `server` leaves out, where the policies of the highest priority let the operator choose: without
/// it, a workload that is created through an API server of an older version would have no sidecar during an upgrade or after a
/// downgrade.
///
/// # Errors
/// That this operator does not answer yet.
fn standby(
    server: &dyn InServer,
    kind: &Arc<Kind>,
    policies: &[Arc<Policy>],
    surroundings: &Surroundings,
) -> Result<Option<Value>, Unavailable> {
    // They choose the engine, see `choice`. `policies` are in order of priority.
    let mut choosing = policies.iter().take_while(|policy| policy.spec.priority == policies[0].spec.priority);
    if choosing.any(|policy| policy.spec.engine != EngineChoice::Auto) {
        return Ok(None);
    }
    let Some(conditions) = server.left_out(kind, policies) else { return Ok(None) };
    let called = all().filter_map(<dyn Engine>::called);
    let rendered = called.map(|called| called.render_standby(&conditions, kind, policies, surroundings));
    match rendered.collect::<Result<Vec<_>, _>>() {
        Ok(rendered) => Ok(rendered.into_iter().flatten().next()),
        Err(reason) if reason.code == Code::Reconciling => Err(reason),
        // The engine serves without it.
        Err(_) => Ok(None),
    }
}

/// Why an engine does not serve `policy` without the webhook that judges the values which the engine leaves to it.
fn alone(policy: &Policy) -> Unavailable {
    let message = format!(
        "SidecarPolicy `{}` has `parameters`, and no webhook stands by for unusual values: a policy of the highest priority names its engine, the \
         operator lacks the rights of the webhook, or the policies of the resource are too many for one match condition; set `Webhook`",
        policy.name
    );
    Unavailable::new(Code::NotExpressible, message)
}

/// The revision that a trial shows for `object`, which any engine rendered or the server stored.
pub fn revision_of(object: &Value) -> Option<String> {
    all().filter_map(<dyn Engine>::sharing).find_map(|shared| shared.revision_of(object))
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

    /// Whether each policy has a registration of its own.
    pub fn is_per_policy(self) -> bool {
        self.engine().is_per_policy()
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
