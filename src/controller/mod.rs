//! Makes the cluster match the stored policies, and tells users how far it is.
//!
//! One loop, level-triggered: after each event it looks at every policy, compares what is wanted with what is there, and
//! starts what is missing. Slow work (bringing a policy in force, taking it out) runs beside the loop, one task per policy at
//! a time. A user's error is a condition, never an `Err`.
//!
//! | file | what |
//! |---|---|
//! | `plan` | what is to be: which engine delivers which policy on which resource, or why none does |
//! | `registrations` | watches the registrations, asks [`lifecycle`](crate::engine::lifecycle), and does what it says |
//! | `acceptance` | whether the server would take what is to be registered, asked before anything changes |
//! | `abilities` | what the server and the engines turned out to be able to do |
//! | `watches` | which kinds of workloads are watched, and when they are counted anew |
//! | `policy_state` | what is known of one policy |
//! | `status` | how it stands with each policy, and when users are told |

mod abilities;
mod acceptance;
mod plan;
mod policy_state;
mod registrations;
mod status;
mod watches;

use self::abilities::Blocked;
use self::acceptance::{Acceptance, Acceptances};
use self::plan::{Plan, Trial, Trials};
use self::policy_state::PolicyState;
use self::registrations::{Registrations, Slot};
use self::status::Force;
use self::watches::{Recounts, Watching, any_progress};
use crate::cluster::client::Progress;
use crate::cluster::openapi::PodSchema;
use crate::cluster::policies::{Snapshot, Stored};
use crate::engine::Unavailable;
use crate::engine::lifecycle::{Event, InEffect, Wanted};
use crate::engine::process::{Published, Worker};
use crate::engine::reach::Reachable;
use crate::engine::registration::Verification;
use crate::operator::Operator;
use crate::workload::Kind;
use crate::workloads::Workloads;
use crate::workloads::waiting::ObjectRef;
use futures::StreamExt;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// After a look at everything the loop rests for so many times as long: with hundreds of policies a look takes a while, and
/// whoever settles workloads shares the thread with it.
const REST: u32 = 3;
/// How many templates are tried at one time: each is a create in the eyes of the server.
const TRIALS: usize = 8;
/// How many policies are brought in force at one time: each takes a connection, which has its buffers, and a place among the requests
/// that the server takes at once.
const RISING: usize = 32;

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
    policies: BTreeMap<String, PolicyState>,
    registrations: Registrations,
    /// What is to be; none when something that it depends on has changed.
    plan: Option<Arc<Plan>>,
    trials: Trials,
    acceptances: Acceptances,
    trial_slots: Arc<Semaphore>,
    rising_slots: Arc<Semaphore>,
    /// What engines turned out not to do, though they seemed to be able to; and since when that is known.
    blocked: BTreeMap<Blocked, (Unavailable, Instant)>,
    /// A watch was begun anew: perhaps the server is another one now.
    suspicious: bool,
    /// The server has begun or ceased to serve something that engines register.
    is_served_otherwise: bool,
    watches: HashMap<Arc<Kind>, Watching>,
    /// How far the cache of Namespaces is.
    namespaces: watch::Receiver<Progress>,
    tasks: JoinSet<Finished>,
    schema: Option<PodSchema>,
    discovered: Instant,
    /// The server could not tell when it was asked last, or told what is not believed at once.
    is_discovery_owed: bool,
    /// Since when it has told that something is not served any more, which is not believed yet.
    gone_since: Option<Instant>,
    /// The groups that the server has been asked about, besides those of the built-in kinds.
    groups: BTreeSet<String>,
    recounts: Recounts,
    /// The kinds of which what seemed to wait is being looked at, each with what is to be looked at after that.
    looking: HashMap<Arc<Kind>, HashSet<ObjectRef>>,
    /// When all workloads were last read anew for its own sake.
    resynced: Instant,
    /// How many objects wait for us, by policy, as of the last look.
    pending: HashMap<String, i64>,
    /// Kinds of which something may wait for us, and when they were last seen to be registered for Initializers.
    registered_at: BTreeMap<Arc<Kind>, Instant>,
    /// What earlier leaders have left is watched, or has been.
    has_looked_back: bool,
    /// Which policies there were at the last look, by name and hash.
    fingerprint: Vec<(String, String)>,
    /// The same with those that are not valid.
    stored: Vec<(String, String, i64)>,
}

/// What a task has come to.
enum Finished {
    /// After a failure with what is in effect still.
    Registered(Slot, Arc<Wanted>, Result<InEffect, (Unavailable, Option<InEffect>)>),
    Unregistered(Slot, Result<(), String>),
    Verified(Slot, Arc<Wanted>, Verification),
    /// Whether one of the policies that own the registration still exists.
    OwnersAsked(Slot, bool),
    Tried((String, String, Arc<Kind>), Trial),
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
            workloads,
            worker,
            settings,
            snapshots: operator.snapshots(),
            ready,
            policies: BTreeMap::new(),
            registrations: Registrations::default(),
            plan: None,
            trials: Trials::new(),
            acceptances: Acceptances::new(),
            trial_slots: Arc::new(Semaphore::new(TRIALS)),
            rising_slots: Arc::new(Semaphore::new(RISING)),
            blocked: BTreeMap::new(),
            suspicious: false,
            is_served_otherwise: false,
            watches: HashMap::new(),
            namespaces: operator.namespaces_progress(),
            tasks: JoinSet::new(),
            schema: None,
            discovered: Instant::now(),
            is_discovery_owed: false,
            gone_since: None,
            groups: BTreeSet::new(),
            recounts: Recounts::default(),
            looking: HashMap::new(),
            resynced: Instant::now(),
            pending: HashMap::new(),
            registered_at: BTreeMap::new(),
            has_looked_back: false,
            fingerprint: Vec::new(),
            stored: Vec::new(),
            operator,
        }
    }

    /// Works until `stop` is true.
    pub async fn run(&mut self, mut stop: watch::Receiver<bool>) {
        let timing = &self.operator.timing.controller;
        let mut registered = self.follow_registered();
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
                Ok(()) = self.settings.reach.changed() => self.plan = None,
                Some(finished) = self.tasks.join_next() => match finished {
                    Ok(finished) => self.finished(finished).await,
                    // Nobody else would ever say what has become of it: begun anew, everything is looked at anew.
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    Err(_) => {}
                },
                () = any_progress(&mut self.watches) => {}
                Ok(()) = self.namespaces.changed() => {}
                _ = tick.tick() => self.ticked().await,
                () = tokio::time::sleep_until(rested), if is_due => {
                    let start = tokio::time::Instant::now();
                    self.pass().await;
                    let took = start.elapsed();
                    rested = start + took + (took * REST).min(timing.longest_rest);
                    is_due = false;
                    if std::mem::take(&mut self.is_served_otherwise) {
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
        if !self.groups().is_subset(&self.groups) {
            self.discover().await;
        }
        self.operator.metrics.reconciles.inc();
        if self.plan.is_none() {
            self.plan = Some(Arc::new(self.draw(&snapshot).await));
        }
        self.settle_watches(&snapshot);
        self.pending = self.workloads.waiting().map(|waiting| waiting.pending().by_policy).unwrap_or_default();
        self.settle_registrations(&snapshot).await;
        for (name, stored) in snapshot.stored.iter() {
            self.conclude(name);
            self.write_status(name, stored, Force::No).await;
        }
    }

    fn policies_changed(&mut self) {
        let snapshot = self.snapshots.borrow_and_update().clone();
        let mut changed = false;
        for (name, stored) in snapshot.stored.iter() {
            let known = self.policies.get(name).is_some_and(|state| state.uid == stored.uid);
            if !known {
                // A policy of this name that was deleted and made again starts anew, but for what is under way.
                self.policies.insert(name.clone(), PolicyState::new(&stored.uid));
                self.resumed(&Slot::of_policy(name));
                changed = true;
            }
        }
        let print = |(name, stored): (&String, &Stored)| {
            let hash = match &stored.parsed {
                Ok(policy) => policy.spec_hash.clone(),
                Err(violations) => format!("{violations:?}"),
            };
            (format!("{name} {}", stored.uid), hash, stored.generation)
        };
        let prints: Vec<_> = snapshot.stored.iter().map(print).collect();
        if prints != self.stored {
            self.stored = prints;
            self.plan = None;
        }
        let mut fingerprint: Vec<_> =
            snapshot.policies.iter().map(|policy| (policy.name.clone(), policy.spec_hash.clone())).collect();
        fingerprint.sort();
        if changed || fingerprint != self.fingerprint {
            self.fingerprint = fingerprint;
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
            Finished::Tried(key, trial) => {
                self.trials.insert(key, trial);
                self.plan = None;
            }
            Finished::Rehearsed(print, acceptance) => self.rehearsed(print, acceptance),
            Finished::Asked(blocked, is_granted) => self.asked(&blocked, is_granted),
            Finished::Recounted(kind, untold) => self.recounted(kind, untold),
            Finished::LookedAgain(kind) => self.looked_again(kind),
            Finished::LookedFor(kind, since, is_done) => self.looked_for(&kind, since, is_done),
        }
    }

    async fn ticked(&mut self) {
        self.ask_again();
        let is_trial_due = |trial: &Trial| matches!(trial, Trial::Failed(_, at) if *at <= Instant::now());
        if self.trials.values().any(is_trial_due) || self.is_rehearsal_due() {
            self.plan = None;
        }
        self.discover_when_due().await;
        self.recount_when_due();
        self.gauge();
    }

    /// Takes everything out of force that needs this process and does not refuse: the last replica stops, and creates shall
    /// go on.
    pub async fn withdraw(&mut self) {
        // Nothing that is under way registers anything after that.
        self.tasks.shutdown().await;
        let snapshot = self.snapshots.borrow().clone();
        if !snapshot.synced {
            return;
        }
        let until = Instant::now() + self.operator.timing.process.stop_report;
        self.withdraw_kinds(&snapshot.stored, until).await;
        self.withdraw_own(&snapshot.stored, until).await;
    }
}
