//! Makes the cluster match the stored policies, and tells users how far it is.
//!
//! One loop, level-triggered: after each event it looks at every policy, compares what is wanted with what is there, and
//! starts what is missing. Slow work (bringing a policy in force, taking it out) runs beside the loop, one task per policy at
//! a time. A user's error is a condition, never an `Err`.
//!
//! Five parts, each with a state of its own, and the loop that joins them:
//!
//! | part | what |
//! |---|---|
//! | `discovery` | what the server offers: when it is asked, and when it is believed |
//! | `planner` | which engine delivers which policy on which kind, or why none does; pure |
//! | `watches` | which kinds of workloads are watched, and when they are counted anew |
//! | `registrations` | watches the registrations, asks [`lifecycle`](crate::engine::lifecycle), and does what it says |
//! | `status` | how it stands with each policy ([`policy_state`]), and when users are told |

#![allow(rustdoc::private_intra_doc_links, reason = "the map of files is for those who work on them")]

mod discovery;
mod planner;
mod policy_state;
mod registrations;
mod status;
mod watches;

use self::discovery::Discovery;
use self::planner::{Acceptance, Around, Blocked, Inputs, Placed, Planner, Requests, Trial, TrialKey};
use self::registrations::{Registrations, Slot};
use self::status::{Force, Statuses};
use self::watches::Watches;
use crate::api::condition::Readiness;
use crate::cluster::openapi::PodSchema;
use crate::cluster::policies::Snapshot;
use crate::engine::lifecycle::{Event, InEffect, Wanted};
use crate::engine::process::{Published, Worker};
use crate::engine::reach::Reachable;
use crate::engine::registration::{self, Registrar, Verification};
use crate::engine::{Unavailable, trial};
use crate::operator::Operator;
use crate::policy::Policy;
use crate::workload::Kind;
use crate::workloads::Workloads;
use crate::workloads::waiting::{ObjectRef, Waiting};
use futures::StreamExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// After a look at everything the loop rests for so many times as long: with hundreds of policies a look takes a while, and
/// whoever settles workloads shares the thread with it.
const REST: u32 = 3;
/// How many templates and registrations are tried at one time: each is a create in the eyes of the server.
const TRIALS: usize = 8;

/// What the controller is told by flags.
#[derive(Clone)]
pub struct Settings {
    /// How long a registration that was deleted by hand is not made again.
    pub repair_hold: Duration,
    /// How the API server reaches the webhook of this operator, or why it does not.
    pub reach: watch::Receiver<Reachable>,
    /// Told when a policy cannot be delivered otherwise than by that webhook.
    pub demand: watch::Sender<bool>,
    /// Told once every registration has the authorities that [`Self::reach`] names.
    pub published: Published,
}

/// The controller of one term of leadership.
pub struct Controller {
    operator: Arc<Operator>,
    workloads: Arc<Workloads>,
    /// What completes stored objects; none if no engine does.
    worker: Option<Arc<dyn Worker>>,
    settings: Settings,
    snapshots: watch::Receiver<Snapshot>,
    ready: Arc<AtomicBool>,
    discovery: Discovery,
    planner: Planner,
    watches: Watches,
    registrations: Registrations,
    statuses: Statuses,
    tasks: Tasks,
}

/// The work that is under way beside the loop.
struct Tasks {
    running: JoinSet<Finished>,
    /// The room for trials.
    room: Arc<Semaphore>,
}

impl Tasks {
    fn spawn(&mut self, task: impl Future<Output = Finished> + Send + 'static) {
        self.running.spawn(task);
    }
}

/// What a task has come to.
enum Finished {
    /// After a failure with what is in effect still.
    Registered(Slot, Arc<Wanted>, Result<InEffect, (Unavailable, Option<InEffect>)>),
    Unregistered(Slot, Result<(), String>),
    Verified(Slot, Arc<Wanted>, Verification),
    /// Whether one of the policies that own the registration still exists.
    OwnersAsked(Slot, bool),
    Tried(TrialKey, Trial),
    /// What the server has said of objects that it was asked about, by their print.
    Rehearsed(String, Acceptance),
    /// Whether the right is there that was missing.
    Asked(Blocked, bool),
    /// All of that kind has been counted; and what seems to wait.
    Recounted(Arc<Kind>, Vec<ObjectRef>),
    LookedAgain(Arc<Kind>),
    /// What may wait in that kind, from before that moment, has been looked for; true unless that has to be done again.
    LookedFor(Arc<Kind>, Instant, bool),
}

impl Controller {
    /// A controller that has not seen anything yet. `ready` becomes true once every watch that it needs is in sync, or has
    /// failed to be.
    pub fn new(
        workloads: Arc<Workloads>,
        worker: Option<Arc<dyn Worker>>,
        settings: Settings,
        ready: Arc<AtomicBool>,
    ) -> Self {
        let operator = workloads.operator.clone();
        Self {
            snapshots: operator.snapshots(),
            operator,
            workloads,
            worker,
            settings,
            ready,
            discovery: Discovery::default(),
            planner: Planner::default(),
            watches: Watches::default(),
            registrations: Registrations::default(),
            statuses: Statuses::default(),
            tasks: Tasks { running: JoinSet::new(), room: Arc::new(Semaphore::new(TRIALS)) },
        }
    }

    /// Works until `stop` is true.
    pub async fn run(&mut self, mut stop: watch::Receiver<bool>) {
        let timing = &self.operator.timing.controller;
        let mut registered = self.follow_registered();
        let mut namespaces = self.operator.namespaces_progress();
        let mut tick = tokio::time::interval(timing.tick);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.snapshots.mark_changed();
        let (mut is_due, mut rested) = (false, tokio::time::Instant::now());
        while !*stop.borrow_and_update() {
            tokio::select! {
                // Everything that has come is taken in before it is looked at.
                biased;
                _ = stop.changed() => break,
                Ok(()) = self.snapshots.changed() => self.policies_changed(),
                Some(event) = registered.next() => self.registered_changed(event),
                Ok(()) = self.settings.reach.changed() => self.planner.outdate(),
                Some(finished) = self.tasks.running.join_next() => match finished {
                    Ok(finished) => self.finished(finished).await,
                    // Nobody else would ever say what has become of it: begun anew, everything is looked at anew.
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    Err(_) => {}
                },
                () = self.watches.any_progress() => {}
                Ok(()) = namespaces.changed() => {}
                _ = tick.tick() => self.ticked().await,
                () = tokio::time::sleep_until(rested), if is_due => {
                    let start = tokio::time::Instant::now();
                    self.pass().await;
                    let took = start.elapsed();
                    rested = start + took + (took * REST).min(timing.longest_rest);
                    is_due = false;
                    if std::mem::take(&mut self.discovery.is_served_otherwise) {
                        registered = self.follow_registered();
                    }
                    continue;
                }
            }
            is_due = true;
        }
    }

    /// Looks at everything once.
    async fn pass(&mut self) {
        let snapshot = self.snapshots.borrow().clone();
        if !snapshot.synced || !self.registrations.has_read_all() {
            return;
        }
        self.note_registered();
        if !self.groups().is_subset(&self.operator.groups()) {
            self.discover().await;
        }
        self.operator.metrics.reconciles.inc();
        self.plan(&snapshot).await;
        self.settle_watches(&snapshot);
        let pending = self.workloads.waiting().map(Waiting::pending);
        self.statuses.pending = pending.map(|pending| pending.by_policy).unwrap_or_default();
        self.settle_registrations(&snapshot).await;
        for (name, stored) in snapshot.stored.iter() {
            self.conclude(name);
            self.write_status(name, stored, Force::No).await;
        }
    }

    /// Sees that there is a plan.
    async fn plan(&mut self, snapshot: &Snapshot) {
        if self.planner.needs_schema(snapshot) {
            let schema = PodSchema::fetch(&self.operator.client).await;
            self.planner.set_schema(schema.map_err(|error| error.to_string()));
        }
        if self.planner.plan().is_some() {
            return;
        }
        let inputs = Inputs {
            snapshot,
            around: self.around(),
            registrations: &self.registrations,
            sample: &|name, hash| self.workloads.ledger(|ledger| ledger.sample(name, hash)),
            now: Instant::now(),
        };
        let requests = self.planner.draw(&inputs);
        self.ask(requests);
    }

    /// What rendering depends on besides the policies.
    fn around(&self) -> Around {
        Around {
            cluster: self.operator.capabilities(),
            site: self.operator.site(),
            reach: self.settings.reach.borrow().clone(),
            unreadable: self.registrations.unreadable.keys().copied().collect(),
        }
    }

    /// Asks the server what a plan wants to know.
    fn ask(&mut self, requests: Requests) {
        if requests.needs_operator {
            self.settings.demand.send_if_modified(|demand| !std::mem::replace(demand, true));
        }
        for (key, policy) in requests.templates {
            self.try_template(key, policy);
        }
        for (print, (kind, objects)) in requests.rehearsals {
            let (registrar, room) = (self.registrar_of(&kind), self.tasks.room.clone());
            let timing = &self.operator.timing.controller;
            self.tasks.spawn(async move {
                let _room = room.acquire_owned().await;
                let answer = registration::rehearse(&registrar, &objects).await;
                Finished::Rehearsed(print, Acceptance::of(answer, Instant::now(), timing))
            });
        }
    }

    fn try_template(&mut self, key: TrialKey, policy: Arc<Policy>) {
        let (operator, room) = (self.operator.clone(), self.tasks.room.clone());
        let Some(resource) = operator.resource(&key.2) else { return };
        self.tasks.spawn(async move {
            let _room = room.acquire_owned().await;
            let namespace = &operator.site().operator_namespace;
            let tried = trial::template(&operator.client, &key.2, &resource, namespace, &policy.template).await;
            Finished::Tried(key, Trial::of(tried, Instant::now(), &operator.timing.controller))
        });
    }

    fn policies_changed(&mut self) {
        let snapshot = self.snapshots.borrow_and_update().clone();
        let new = self.statuses.policies_changed(&snapshot);
        // What is under way of an earlier policy of that name goes on.
        for name in &new {
            self.resumed(&Slot::of_policy(name));
        }
        self.planner.policies_changed(&snapshot);
        if self.watches.policies_changed(&snapshot.policies) || !new.is_empty() {
            self.workloads.pair_up(&snapshot.policies);
            self.recount_soon();
            self.registrations.retry_own();
        }
    }

    async fn finished(&mut self, finished: Finished) {
        match finished {
            Finished::Registered(slot, wanted, result) => self.happened(slot, Event::Registered(wanted, result)).await,
            Finished::Unregistered(slot, result) => self.happened(slot, Event::Unregistered(result)).await,
            Finished::Verified(slot, wanted, result) => self.happened(slot, Event::Verified(wanted, result)).await,
            Finished::OwnersAsked(slot, exist) => self.happened(slot, Event::OwnersExist(exist)).await,
            Finished::Tried(key, trial) => self.planner.tried(key, trial),
            Finished::Rehearsed(print, acceptance) => self.planner.rehearsed(print, acceptance),
            Finished::Asked(blocked, is_granted) => self.planner.asked(&blocked, is_granted),
            Finished::Recounted(kind, untold) => self.recounted(kind, untold),
            Finished::LookedAgain(kind) => self.looked_again(kind),
            Finished::LookedFor(kind, since, is_done) => self.watches.looked_for(&kind, since, is_done),
        }
    }

    async fn ticked(&mut self) {
        self.ask_again();
        self.planner.tick(Instant::now());
        self.discover_when_due().await;
        self.recount_when_due();
        self.gauge();
    }

    /// Asks for the rights that were missing: somebody may have granted them. Forgets what was found out of the server's flags, where a
    /// policy waits for that.
    fn ask_again(&mut self) {
        let (now, timing) = (Instant::now(), &self.operator.timing.controller);
        let policies = &self.statuses.policies;
        let is_awaited = |reason: &Unavailable| {
            let mut outcomes = policies.values().map(|state| &state.outcome);
            outcomes.any(|outcome| matches!(outcome, Readiness::Impossible { code, .. } if *code == reason.code))
        };
        self.planner.unblock_awaited(is_awaited, now, timing);
        for (engine, kind) in self.planner.due_rights(now, timing) {
            let registrar = self.registrar_of(&kind);
            self.tasks.spawn(async move {
                let is_granted = registration::may_deliver(&registrar, engine).await.unwrap_or_default();
                Finished::Asked((engine, Some(kind)), is_granted)
            });
        }
    }

    /// What is to become of the policy `name`.
    fn placed(&self, name: &str) -> Result<Arc<Placed>, Readiness> {
        match self.planner.plan().and_then(|plan| plan.policies.get(name)) {
            Some(Ok(placed)) => Ok(placed.clone()),
            // The sample comes while the plan stays.
            Some(Err(Readiness::Audit { .. })) => {
                let snapshot = self.snapshots.borrow();
                let hash = snapshot.policies.get(name).map(|policy| policy.spec_hash.clone()).unwrap_or_default();
                Err(Readiness::Audit { sample: self.workloads.ledger(|ledger| ledger.sample(name, &hash)) })
            }
            Some(Err(outcome)) => Err(outcome.clone()),
            None => Err(Readiness::FirstSight),
        }
    }

    /// Where the registration of `kind` is written and tried.
    fn registrar_of(&self, kind: &Arc<Kind>) -> Registrar {
        Registrar {
            client: self.operator.client.clone(),
            capabilities: self.operator.capabilities(),
            namespace: self.operator.site().operator_namespace.clone(),
            kind: kind.clone(),
            timing: &self.operator.timing.registration,
        }
    }

    /// Takes everything out of force that needs this process and does not refuse: the last replica stops, and creates shall
    /// go on.
    pub async fn withdraw(&mut self) {
        // Nothing that is under way registers anything after that.
        self.tasks.running.shutdown().await;
        let snapshot = self.snapshots.borrow().clone();
        if !snapshot.synced {
            return;
        }
        let until = Instant::now() + self.operator.timing.process.stop_report;
        self.withdraw_kinds(&snapshot.stored, until).await;
        self.withdraw_own(&snapshot.stored, until).await;
    }
}
