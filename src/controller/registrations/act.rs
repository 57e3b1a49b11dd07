//! Runs the actions of the lifecycle of registrations.

use crate::api::code::Code;
use crate::api::condition::Readiness;
use crate::cluster::answer::Meaning;
use crate::cluster::api::Api;
use crate::cluster::client::call;
use crate::cluster::object::Object;
use crate::cluster::policies;
use crate::controller::planner;
use crate::controller::{Controller, Finished};
use crate::engine::lifecycle::{Action, Context, Event, Failure, Live, Notice, Wanted, is_lasting, is_rejection};
use crate::engine::probe::{self, Unverified};
use crate::engine::process::Worker;
use crate::engine::registrar::{Registrar, RegistrationKey};
use crate::engine::registration::{self, Edition, Editions, Meanwhile};
use crate::engine::{self, Unavailable};
use crate::policy::{Policies, Policy, PolicyRef};
use crate::workload::Kind;
use crate::workloads::report::Deliverer;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ListParams;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use tracing::{info, warn};

use crate::controller::registered::Slot;

impl Controller {
    /// Sends an event to the state machine and runs the actions that follow.
    pub(in crate::controller) async fn happened(&mut self, slot: Slot, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.step(&slot, event) {
                events.extend(self.act(&slot, action).await);
            }
        }
    }

    /// Sends `event` to the state machine. Returns the actions that follow.
    pub(super) fn step(&mut self, slot: &Slot, event: Event) -> Vec<Action> {
        let state = self.registrations.states.remove(slot).unwrap_or_default();
        let context = Context {
            now: Instant::now(),
            wall: Timestamp::now(),
            timing: &self.operator.timing.controller,
            repair_hold: self.settings.repair_hold,
            is_by_hand: &|metadata| self.is_deleted_by_hand(metadata),
        };
        let (state, actions) = state.step(event, &context);
        self.registrations.states.insert(slot.clone(), state);
        actions
    }

    /// Schedules a verification of everything in effect, because the server may have other flags now.
    pub(in crate::controller) fn verify_all(&mut self) {
        let slots: Vec<Slot> = self.registrations.states.keys().cloned().collect();
        for slot in slots {
            self.step(&slot, Event::ServerChanged);
        }
    }

    /// Runs an action. Returns the event that it causes at once.
    async fn act(&mut self, slot: &Slot, action: Action) -> Option<Event> {
        match action {
            Action::Register { wanted, before } => self.register(slot, wanted, before),
            Action::Unregister => return self.unregister(slot).await,
            Action::Verify(wanted) => self.verify(slot, wanted),
            Action::AskOwners(live) => self.ask_owners(slot, live),
            Action::Expect(live, deleted) => self.expect(&live, &deleted),
            Action::NoteFailure(wanted, reason) => self.note_failure(&wanted, &reason),
            Action::Publish => self.publish_delivered(),
            Action::Report(report) => self.report(slot, report),
            Action::Forget => self.forget(slot),
        }
        None
    }

    /// Runs an action beside the loop.
    fn begin(&mut self, slot: &Slot, action: impl Future<Output = Event> + Send + 'static) {
        let slot = slot.clone();
        self.tasks.spawn(async move { Finished::Acted(slot, action.await) });
    }

    fn register(&mut self, slot: &Slot, wanted: Arc<Wanted>, before: Option<Arc<Live>>) {
        match slot {
            Slot::Policy(_) => {
                let Some(worker) = self.worker.clone() else { return };
                let room = self.registrations.room.clone();
                let registrar = wanted.kinds.first().map(|kind| self.registrar_of(kind));
                self.begin(slot, async move {
                    let _slot = room.acquire_owned().await;
                    let key =
                        registrar.zip(wanted.objects.first()).and_then(|(registrar, object)| registrar.key_of(object));
                    let result = register_own(&*worker, key, &wanted, before.as_deref()).await;
                    Event::Registered(wanted, result)
                });
            }
            Slot::Kind(kind) => {
                let registrar = self.registrar_of(kind);
                let nothing = || Meanwhile::Only(Vec::new());
                let meanwhile = before.as_ref().map_or_else(nothing, |before| self.meanwhile(kind, before, &wanted));
                let kept: BTreeSet<RegistrationKey> =
                    wanted.objects.iter().filter_map(|object| registrar.key_of(object)).collect();
                let registered = self.registrations.registered(slot);
                let obsolete: Vec<RegistrationKey> = registered.into_iter().filter(|key| !kept.contains(key)).collect();
                self.begin(slot, async move {
                    let result = register_shared(&registrar, &wanted, before.as_deref(), &meanwhile, &obsolete).await;
                    Event::Registered(wanted, result)
                });
            }
        }
    }

    /// The objects that reject workloads while `wanted` replaces `before`: they require what both require.
    fn meanwhile(&self, kind: &Arc<Kind>, before: &Live, wanted: &Wanted) -> Meanwhile {
        let judging = |policies: &[Arc<Policy>]| policies.iter().filter(|policy| policy.judges()).count();
        // What another one begins or ceases to take the place of is not what it was, and neither is who takes places.
        let is_same = |policy: &&Arc<Policy>| {
            wanted.has(policy) && takers(before.policies(), &policy.name) == takers(&wanted.policies, &policy.name)
        };
        let both: Vec<_> = before.policies().iter().filter(is_same).cloned().collect();
        if judging(&both) == judging(before.policies()) {
            return Meanwhile::AsIs;
        }
        Meanwhile::Only(planner::rejecting(self.surroundings(), kind, before, &both))
    }

    async fn unregister(&mut self, slot: &Slot) -> Option<Event> {
        let keys: Vec<RegistrationKey> = self.registrations.registered(slot).into_iter().collect();
        if keys.is_empty() {
            return Some(Event::Unregistered(Ok(())));
        }
        match slot {
            Slot::Policy(name) => {
                // The status comes first, because a new leader treats a missing registration as deleted by hand.
                let stored = self.snapshots.borrow().stored.get(&PolicyRef::of_cluster(name)).cloned();
                match stored {
                    Some(stored) => drop(self.write_status_now(name, &stored).await),
                    None => info!(policy = name, "The policy is gone; unregistering"),
                }
                let Some(worker) = self.worker.clone() else { return Some(Event::Unregistered(Ok(()))) };
                let own = self.registrations.own_of(name);
                let named = own.map(|(key, stored)| engine::kinds_of(&key.resource, stored));
                let mut kinds: Vec<Arc<Kind>> = named.into_iter().flatten().collect();
                if kinds.is_empty() {
                    kinds = self.watched();
                }
                let (workloads, name) = (self.workloads.clone(), name.clone());
                self.begin(slot, async move {
                    let result = worker.remove(&name).await;
                    if result.is_ok() {
                        worker.drain(&workloads, &kinds).await;
                    }
                    Event::Unregistered(result.map_err(|error| error.to_string()))
                });
            }
            Slot::Kind(kind) => {
                let registrar = self.registrar_of(kind);
                self.begin(slot, async move {
                    let result = registration::unregister(&registrar, &keys).await;
                    Event::Unregistered(result.map_err(|error| error.to_string()))
                });
            }
        }
        None
    }

    fn verify(&mut self, slot: &Slot, wanted: Arc<Wanted>) {
        match slot {
            Slot::Policy(_) => {
                let worker = self.worker.clone();
                self.begin(slot, async move {
                    let verification = match worker.zip(wanted.policies.first()) {
                        Some((worker, policy)) => worker.verify(policy, &wanted.kinds).await,
                        None => Ok(None),
                    };
                    Event::Verified(wanted, verification)
                });
            }
            Slot::Kind(kind) => {
                let registrar = self.registrar_of(kind);
                self.begin(slot, async move {
                    let verification = probe::verify(&registrar, wanted.engine, &wanted.objects).await;
                    Event::Verified(wanted, verification)
                });
            }
        }
    }

    fn ask_owners(&mut self, slot: &Slot, live: Arc<Live>) {
        let client = self.operator.client.clone();
        self.begin(slot, async move { Event::OwnersExist(is_any_stored(client, live.policies()).await) });
    }

    /// Marks the written objects as registered, because the watch may not show them yet, or not that they are `deleted` again.
    fn expect(&mut self, live: &Live, deleted: &BTreeSet<RegistrationKey>) {
        let written = live.editions.iter().filter(|(key, _)| !deleted.contains(*key));
        for (RegistrationKey { resource, name }, edition) in written {
            if let Some(mirror) = self.registrations.own.get_mut(resource.as_str()) {
                mirror.expect(name, live.wanted.objects.first().cloned().unwrap_or_default());
            } else if let Some(mirror) = self.registrations.shared.get_mut(resource.as_str()) {
                mirror.expect(name, edition.clone());
            }
        }
    }

    /// Tells the planner to try another engine or another set of policies, if that may help.
    fn note_failure(&mut self, wanted: &Wanted, reason: &Unavailable) {
        let (now, timing) = (Instant::now(), &self.operator.timing.controller);
        for kind in &wanted.kinds {
            self.planner.block(wanted.engine, kind, reason, now);
        }
        if !wanted.engine.is_per_policy() && matches!(reason.code, Code::NotExpressible | Code::RegistrationRefused) {
            self.planner.note_refusal(&wanted.objects, reason, now, timing);
        }
    }

    /// Publishes to the workloads which engine delivers which policies.
    fn publish_delivered(&self) {
        let live = self.registrations.of_kinds().filter_map(|(kind, state)| Some((kind, state.live()?)));
        let delivered = live.map(|(kind, live)| {
            let policies = Policies::new(live.policies().iter().cloned());
            let engine = live.wanted.engine;
            // The server of such an engine counts its answers itself.
            let deliverer = Deliverer { engine: engine.as_str(), has_counted: engine.engine().needs_operator() };
            (kind.clone(), (deliverer, Arc::new(policies)))
        });
        self.workloads.set_delivered(delivered.collect());
    }

    fn report(&mut self, slot: &Slot, report: Notice) {
        let (policy, resource) = match slot {
            Slot::Policy(name) => (Some(name.as_str()), None),
            Slot::Kind(kind) => (None, Some(kind.resource.as_str())),
        };
        match report {
            Notice::Registered(live) => self.report_registered(slot, &live),
            Notice::NotInForce(wanted, Unavailable { code, message }) => {
                warn!(policy, resource, engine = %wanted.engine, %code, message, "Not in effect");
                self.operator.metrics.process.reconcile_errors.inc();
            }
            Notice::KeptBefore(wanted, Unavailable { code, message }) => {
                warn!(policy, resource, engine = %wanted.engine, %code, message, "Not in effect; what was in effect before stays so");
                self.operator.metrics.process.reconcile_errors.inc();
            }
            Notice::Held(key, hold) => {
                // Before the next look at everything, because creates wait for the worker.
                self.publish_held();
                let (object, name) = key.map(|key| (key.resource, key.name)).unzip();
                let (resource, name) = (object.as_deref().or(resource), name.as_deref());
                warn!(policy, resource, name, until = %hold, "The registration was removed by hand; it is not made again before");
            }
            Notice::Edited(wanted, RegistrationKey { resource, name }) => {
                info!(resource, name, "The registration was edited; repairing it");
                for policy in wanted.policies.iter().filter(|_| matches!(slot, Slot::Kind(_))) {
                    let message = format!("{resource} `{name}` was edited by hand, and has been repaired");
                    let until = Instant::now() + self.operator.timing.workloads.trouble;
                    self.workloads
                        .ledger(|ledger| ledger.trouble(&policy.reference(), Code::RegistrationEdited, message, until));
                }
            }
            Notice::NotUnregistered(error) => {
                warn!(policy, resource, error, "Could not be taken out; trying again");
                self.operator.metrics.process.reconcile_errors.inc();
            }
        }
    }

    fn report_registered(&mut self, slot: &Slot, live: &Live) {
        let is_proven = live.unverified.is_none();
        match slot {
            // The policy is reported as in effect once it is so on all its kinds. Its reason to wait is over.
            Slot::Policy(name) => {
                let state = self.statuses.policies.get_mut(name);
                if let Some(state) = state.filter(|state| !matches!(state.outcome, Readiness::InForce { .. })) {
                    state.outcome = Readiness::FirstSight;
                }
            }
            Slot::Kind(kind) => {
                let (engine, policies) = (live.wanted.engine, live.policies().len());
                info!(resource = kind.resource, %engine, policies, is_proven, "Registered");
            }
        }
    }

    /// Drops the state of an empty slot, and of a deleted policy.
    pub(super) fn forget(&mut self, slot: &Slot) {
        match slot {
            Slot::Kind(_) => self.registrations.forget(slot),
            Slot::Policy(name) if !self.snapshots.borrow().stored.contains_key(&PolicyRef::of_cluster(name)) => {
                self.registrations.forget(slot);
                if self.statuses.policies.remove(name).is_some() {
                    self.operator.metrics.pending.forget(name);
                    self.workloads.ledger(|ledger| ledger.forget(&PolicyRef::of_cluster(name)));
                }
            }
            Slot::Policy(_) => {}
        }
    }
}

/// Registers `wanted` for its only policy.
///
/// # Errors
/// Why it is not in effect, and what still is.
async fn register_own(
    worker: &dyn Worker,
    key: Option<RegistrationKey>,
    wanted: &Arc<Wanted>,
    before: Option<&Live>,
) -> Result<Live, Failure> {
    let (Some(policy), Some(object), Some(key)) = (wanted.policies.first(), wanted.objects.first(), key) else {
        return Err((Unavailable::new(Code::Reconciling, "nothing is to be registered"), None));
    };
    match worker.register(policy, &wanted.kinds, object).await {
        Ok(unverified) => {
            let editions = Editions::from([(key, Edition::default())]);
            Ok(Live { wanted: wanted.clone(), unverified, leftover: None, editions })
        }
        // The server rejected the write, so the earlier registration still exists.
        Err(reason) if is_rejection(&reason) => Err((reason, before.cloned())),
        Err(reason) => Err((reason, None)),
    }
}

/// Registers `wanted` and removes the `obsolete` objects. On failure restores what was in effect `before`.
///
/// # Errors
/// Why it is not in effect, and what still is.
async fn register_shared(
    registrar: &Registrar,
    wanted: &Arc<Wanted>,
    before: Option<&Live>,
    meanwhile: &Meanwhile,
    obsolete: &[RegistrationKey],
) -> Result<Live, Failure> {
    let reason = match registration::register(registrar, wanted.engine, &wanted.objects, meanwhile).await {
        Ok((unverified, editions)) => {
            let leftover =
                registration::unregister_some(registrar, obsolete).await.err().map(|error| still_there(&error.into()));
            return Ok(Live { wanted: wanted.clone(), unverified, leftover, editions });
        }
        Err(reason) => reason,
    };
    // A registration of an earlier leader may be in effect there and stays.
    if before.is_none() && is_rejection(&reason) {
        return Err((reason, None));
    }
    // If the engine is off now, it was off before, too.
    let before = before.filter(|before| before.wanted.engine != wanted.engine || !is_of_engine(&reason));
    let objects = before.map(|before| before.wanted.objects.as_slice()).unwrap_or_default();
    let kept = match registration::restore(registrar, &wanted.objects, objects).await {
        Ok(editions) => before.map(|before| Live { editions, ..before.clone() }),
        // The next comparison corrects this once the objects can be read.
        Err(error) => {
            warn!(resource = registrar.kind.resource, %error, "What was in effect before cannot be put back; trying again");
            before.cloned()
        }
    };
    Err((reason, kept))
}

/// Whether the reason is that the engine is off, whatever is registered.
fn is_of_engine(reason: &Unavailable) -> bool {
    is_lasting(reason) && reason.code != Code::MissingRight
}

fn still_there(reason: &Unavailable) -> Unverified {
    (reason.code, format!("what another engine had registered cannot be taken away: {reason}"))
}

/// Whether one of `policies` is still stored, and not deleted and created again. Asks the server, because our watch of policies
/// may lag behind. Without an answer they count as stored.
async fn is_any_stored(client: kube::Client, policies: &[Arc<Policy>]) -> bool {
    let api = Api::<Object>::all_with(client, &policies::resource());
    for policy in policies {
        let by_name = ListParams::default().fields(&format!("metadata.name={}", policy.name));
        let is_same = |stored: &Object| stored.uid().as_deref() == Some(policy.meta.uid.as_str());
        let is_stored = match call(api.list(&by_name)).await {
            Ok(stored) => stored.items.iter().any(is_same),
            // Their definition is deleted, and so are they.
            Err(error) => error.means() != Meaning::NotFound,
        };
        if is_stored {
            return true;
        }
    }
    false
}

/// The policies of `all` that take the place of the policy `name`, at once or over others, each with the hash of its spec.
fn takers<'a>(all: &'a [Arc<Policy>], name: &'a str) -> BTreeSet<(&'a str, &'a str)> {
    let (mut found, mut names) = (BTreeSet::new(), vec![name]);
    while let Some(name) = names.pop() {
        for by in all.iter().filter(|by| by.replaces(name)) {
            if found.insert((&*by.name, &*by.spec_hash)) {
                names.push(&by.name);
            }
        }
    }
    found
}
