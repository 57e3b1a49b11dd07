//! Makes the cluster match the stored policies, and tells users how far it is.
//!
//! One loop, level-triggered: after each event it looks at every policy, compares what is wanted with what is there, and
//! starts what is missing. Slow work (bringing a policy in force, taking it out) runs beside the loop, one task per policy at
//! a time. A user's error is a condition, never an `Err`.

mod entry;
mod hold;
mod joint;
mod plan;
mod status;
mod watches;

use self::entry::{Entry, Phase, outcome_of};
use self::joint::{InForce, Joint};
use self::plan::{Placed, Plan, Trial, Trials};
use self::status::Force;
use self::watches::{Watching, any_progress};
use crate::api::code::Code;
use crate::api::condition::Outcome;
use crate::cluster::capabilities::{Capabilities, registration as resources};
use crate::cluster::client::{Progress, Reconnect, why};
use crate::cluster::mirror::Mirror;
use crate::cluster::object::Object;
use crate::cluster::openapi::PodSchema;
use crate::cluster::policies::{Snapshot, Stored};
use crate::engine::initializer::census::Counts;
use crate::engine::initializer::queue::Queue;
use crate::engine::initializer::registration::{self, is_marked, is_ours};
use crate::engine::initializer::render;
use crate::engine::initializer::types::{self, InitializerConfiguration};
use crate::engine::initializer::watch::{Shared, recount};
use crate::engine::registration::Unproven;
use crate::engine::webhook::certs::Certificates;
use crate::engine::webhook::replica::Reachable;
use crate::engine::{EngineName, Unavailable};
use crate::policy::Policy;
use crate::workload::Kind;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{error, info, warn};

/// How long after a failure a policy is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// How long after a change of the policies all workloads are counted anew: several changes in a row count as one.
const RECOUNT_DELAY: Duration = Duration::from_secs(1);
/// How often the server is asked again what it can do, while all is well: a node with an older kubelet may have come.
const DISCOVERY_AT_REST: Duration = Duration::from_secs(15 * 60);
/// How many templates are tried at one time: each is a create in the eyes of the server.
const TRIALS: usize = 8;
/// How often the server is asked again what it can do, while a policy waits for it.
const DISCOVERY_PERIOD: Duration = Duration::from_secs(10);

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
    pub certificates: Option<Arc<Certificates>>,
}

/// The controller of one term of leadership.
pub struct Controller {
    shared: Arc<Shared>,
    settings: Settings,
    snapshots: watch::Receiver<Snapshot>,
    ready: Arc<AtomicBool>,
    entries: BTreeMap<String, Entry>,
    /// What anybody has registered for Initializers.
    configurations: Mirror<InitializerConfiguration>,
    /// What is to be; none when something that it depends on has changed.
    plan: Option<Arc<Plan>>,
    trials: Trials,
    trial_slots: Arc<Semaphore>,
    /// The registrations that policies share, by resource.
    joints: BTreeMap<Arc<Kind>, Joint>,
    /// The generation of everything of ours that is registered for several policies, by the plural name of what it is.
    registered: BTreeMap<&'static str, Mirror<i64>>,
    /// What of all that is registered cannot be read.
    unreadable: BTreeMap<&'static str, Unavailable>,
    /// Since when the server has refused a list that it once gave: an API server that has just started knows no rights yet.
    refused: BTreeMap<&'static str, Instant>,
    /// What engines turned out not to do, though they seemed to be able to; and since when that is known.
    blocked: BTreeMap<Blocked, (Unavailable, Instant)>,
    /// A watch was begun anew: perhaps the server is another one now.
    suspicious: bool,
    /// The server has begun or ceased to serve something that engines register.
    is_served_otherwise: bool,
    watches: HashMap<Arc<Kind>, Watching>,
    /// The watch of Namespaces, from when a policy first decides by them.
    namespaces: Option<Watching>,
    tasks: JoinSet<Finished>,
    schema: Option<PodSchema>,
    discovered: Instant,
    /// The groups that the server has been asked about, besides those of the built-in kinds.
    groups: BTreeSet<String>,
    recount_at: Option<Instant>,
    /// How many objects wait for us, by policy, as of the last look.
    pending: HashMap<String, i64>,
    swept: bool,
    /// Which policies there were at the last look, by name and hash.
    fingerprint: Vec<(String, String)>,
    /// The same with those that are not valid.
    stored: Vec<(String, String, i64)>,
}

/// What does not work: an engine, on one kind or on all.
type Blocked = (EngineName, Option<Arc<Kind>>);

/// What a task has come to.
enum Finished {
    Rose(String, Box<InitializerConfiguration>, Result<Option<Unproven>, Unavailable>),
    Fell(String, Result<(), String>),
    Tried((String, String, Arc<Kind>), Trial),
    Raised(Arc<Kind>, EngineName, Result<InForce, Unavailable>),
    Lowered(Arc<Kind>, Result<(), String>),
    /// Whether the right is there that was missing.
    Asked(Blocked, bool),
    Other,
}

impl Controller {
    /// A controller that has not seen anything yet. `ready` becomes true once every watch that it needs is in sync, or has
    /// failed to be.
    pub fn new(
        shared: Arc<Shared>,
        settings: Settings,
        snapshots: watch::Receiver<Snapshot>,
        ready: Arc<AtomicBool>,
    ) -> Self {
        Self {
            shared,
            settings,
            snapshots,
            ready,
            entries: BTreeMap::new(),
            configurations: Mirror::default(),
            plan: None,
            trials: Trials::new(),
            trial_slots: Arc::new(Semaphore::new(TRIALS)),
            joints: BTreeMap::new(),
            registered: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            refused: BTreeMap::new(),
            blocked: BTreeMap::new(),
            suspicious: false,
            is_served_otherwise: false,
            watches: HashMap::new(),
            namespaces: None,
            tasks: JoinSet::new(),
            schema: None,
            discovered: Instant::now(),
            groups: BTreeSet::new(),
            recount_at: None,
            pending: HashMap::new(),
            swept: false,
            fingerprint: Vec::new(),
            stored: Vec::new(),
        }
    }

    /// Works until `stop` is true.
    pub async fn run(&mut self, mut stop: watch::Receiver<bool>) {
        let mut configurations = self.follow_configurations();
        let mut registered = self.follow_registered();
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.snapshots.mark_changed();
        while !*stop.borrow_and_update() {
            tokio::select! {
                _ = stop.changed() => break,
                Ok(()) = self.snapshots.changed() => self.policies_changed(),
                Some(event) = configurations.next() => self.configurations_changed(event),
                Some(event) = registered.next() => self.registered_changed(event),
                Ok(()) = self.settings.reach.changed() => self.plan = None,
                Some(finished) = self.tasks.join_next() => self.finished(finished.unwrap_or(Finished::Other)),
                () = any_progress(&mut self.watches, &mut self.namespaces) => {}
                _ = tick.tick() => self.ticked().await,
            }
            self.pass().await;
            if std::mem::take(&mut self.is_served_otherwise) {
                registered = self.follow_registered();
            }
        }
    }

    /// Takes everything out of force that needs this process and does not refuse: the last replica stops, and creates shall
    /// go on.
    pub async fn withdraw(&mut self) {
        let stored = self.snapshots.borrow().stored.clone();
        let open = self.leaving_joints();
        let policies: BTreeSet<&str> =
            open.iter().flat_map(|(_, policies)| policies).map(|policy| policy.name.as_str()).collect();
        for name in policies {
            let Some(stored) = stored.get(name) else { continue };
            let message = "the operator stopped in good order and unregistered its webhook; start it again".to_owned();
            self.set_outcome(name, Outcome::Waiting { code: Code::Stopped, message });
            self.write_status(name, stored, Force::Now).await;
        }
        futures::future::join_all(open.iter().map(|(kind, _)| self.leave_joint(kind))).await;
        self.withdraw_own(&stored).await;
    }

    /// The same for what is registered policy by policy.
    async fn withdraw_own(&mut self, stored: &BTreeMap<String, Stored>) {
        let leaving: Vec<_> = stored
            .iter()
            .filter_map(|(name, stored)| Some((name.clone(), stored.parsed.clone().ok()?)))
            .filter(|(name, policy)| {
                !policy.refuses() && self.entries.get(name).is_some_and(|entry| !matches!(entry.phase, Phase::Out))
            })
            .collect();
        let kinds: BTreeSet<_> = leaving.iter().flat_map(|(_, policy)| policy.kinds.iter().cloned()).collect();
        for (name, _) in &leaving {
            let message = "the operator stopped in good order and unregistered, so that creates go on without the sidecar; start it again".to_owned();
            self.set_outcome(name, Outcome::Waiting { code: Code::Stopped, message });
            self.write_status(name, &stored[name], Force::Now).await;
        }
        let removals = leaving.iter().map(|(name, _)| {
            let shared = self.shared.clone();
            async move {
                if let Err(error) = registration::remove(&shared.client, name).await {
                    error!(policy = name, %error, "Cannot unregister; creates of its targets will wait until the operator is back");
                }
            }
        });
        futures::future::join_all(removals).await;
        if leaving.is_empty() {
            return;
        }
        tokio::time::sleep(registration::SETTLING).await;
        if let Err(error) = registration::drain(&self.shared, &Vec::from_iter(kinds)).await {
            warn!(%error, "Cannot look whether objects still wait for us");
        }
    }

    fn follow_configurations(&self) -> BoxStream<'static, watcher::Result<watcher::Event<Object>>> {
        if !self.shared.capabilities().initializers {
            return futures::stream::iter([Ok(watcher::Event::Init), Ok(watcher::Event::InitDone)])
                .chain(futures::stream::pending())
                .boxed();
        }
        let api = Api::<Object>::all_with(self.shared.client.clone(), &types::resource());
        watcher(api, watcher::Config::default()).backoff(Reconnect::default()).into_stream().boxed()
    }

    fn policies_changed(&mut self) {
        let snapshot = self.snapshots.borrow_and_update().clone();
        let mut changed = false;
        for (name, stored) in snapshot.stored.iter() {
            let known = self.entries.get(name).is_some_and(|entry| entry.uid == stored.uid);
            if !known {
                // A policy of this name that was deleted and made again starts anew, but for what is under way.
                let old = self.entries.remove(name);
                let mut entry = Entry::new(&stored.uid);
                if let Some(old) = old {
                    (entry.phase, entry.kinds) = (old.phase, old.kinds);
                }
                self.entries.insert(name.clone(), entry);
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
            self.blocked.retain(|_, (reason, _)| reason.code != Code::NotExpressible);
            self.plan = None;
        }
        let mut fingerprint: Vec<_> =
            snapshot.policies.iter().map(|policy| (policy.name.clone(), policy.spec_hash.clone())).collect();
        fingerprint.sort();
        if changed || fingerprint != self.fingerprint {
            self.fingerprint = fingerprint;
            self.shared.pair_up(&snapshot.policies);
            self.recount_at.get_or_insert(Instant::now() + RECOUNT_DELAY);
            for entry in self.entries.values_mut() {
                entry.retry_at = None;
            }
        }
    }

    fn configurations_changed(&mut self, event: watcher::Result<watcher::Event<Object>>) {
        // What others register may be in our way; what we do ourselves is not.
        let is_foreign = |object: &Object| !is_ours(&parsed(object));
        match &event {
            Ok(watcher::Event::Apply(object) | watcher::Event::Delete(object)) if !is_foreign(object) => {}
            _ => self.plan = None,
        }
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                let message = why(&error);
                warn!(error = message, "Cannot follow initializer configurations; trying again");
                // Other engines need not wait for what this one may not do.
                if !self.configurations.is_complete() {
                    self.note_unreadable(resources::INITIALIZERS, &message);
                }
                return;
            }
        };
        match &event {
            watcher::Event::Init => {
                self.suspicious |=
                    self.configurations.is_complete() && !self.unreadable.contains_key(resources::INITIALIZERS);
            }
            watcher::Event::InitDone => drop(self.unreadable.remove(resources::INITIALIZERS)),
            watcher::Event::Delete(object) => self.configuration_deleted(object),
            watcher::Event::InitApply(_) | watcher::Event::Apply(_) => {}
        }
        self.configurations.apply(&event, |object, _| parsed(object));
    }

    fn configuration_deleted(&mut self, object: &Object) {
        let last = parsed(object);
        let entry = self.entries.iter_mut().find(|(name, _)| render::name(name) == object.name());
        if let Some((_, entry)) = entry
            && is_ours(&last)
            && !is_marked(&last)
            && entry.phase == Phase::Rising
        {
            entry.deleted_meanwhile = true;
        }
    }

    fn finished(&mut self, finished: Finished) {
        match finished {
            Finished::Rose(name, configuration, risen) => self.rose(&name, configuration, risen),
            Finished::Fell(name, fallen) => {
                let Some(entry) = self.entries.get_mut(&name) else { return };
                entry.phase = Phase::Out;
                if let Err(error) = fallen {
                    warn!(policy = name, error, "Could not be taken out; trying again");
                    self.shared.metrics.reconcile_errors.inc();
                    entry.retry_at = Some(Instant::now() + RETRY);
                }
            }
            Finished::Tried(key, trial) => {
                self.trials.insert(key, trial);
                self.plan = None;
            }
            Finished::Raised(kind, engine, risen) => self.raised(&kind, engine, risen),
            Finished::Lowered(kind, fallen) => self.lowered(&kind, fallen),
            Finished::Asked(blocked, is_granted) => self.asked(&blocked, is_granted),
            Finished::Other => {}
        }
    }

    fn rose(
        &mut self,
        name: &str,
        configuration: Box<InitializerConfiguration>,
        risen: Result<Option<Unproven>, Unavailable>,
    ) {
        let hold = self.settings.repair_hold;
        let Some(entry) = self.entries.get_mut(name) else { return };
        if std::mem::take(&mut entry.deleted_meanwhile) {
            entry.hold_back(name, hold);
            return;
        }
        match risen {
            Ok(unproven) => {
                entry.unproven = unproven;
                self.configurations.expect(&render::name(name), (*configuration).clone());
                entry.phase = Phase::Up(configuration);
                entry.outcome = Outcome::InForce { conflicts: None, degraded: None };
                entry.retry_at = None;
            }
            Err(unavailable) => {
                warn!(policy = name, code = %unavailable.code, message = unavailable.message, "Not in force");
                self.shared.metrics.reconcile_errors.inc();
                entry.phase = Phase::Out;
                entry.retry_at = Some(Instant::now() + RETRY);
                entry.outcome = outcome_of(unavailable.clone());
                let kinds = entry.kinds.clone();
                for kind in &kinds {
                    self.block(EngineName::Initializer, kind, &unavailable);
                }
            }
        }
    }

    async fn ticked(&mut self) {
        let waiting = self
            .entries
            .values()
            .any(|entry| matches!(entry.outcome, Outcome::Impossible { .. } | Outcome::Waiting { .. }));
        self.ask_again();
        if self.trials.values().any(|trial| matches!(trial, Trial::Open(_, at) if *at <= Instant::now())) {
            self.plan = None;
        }
        let lost = self.shared.lost.swap(false, Ordering::Relaxed);
        if std::mem::take(&mut self.suspicious) {
            self.blocked.clear();
            self.discover().await;
        } else if lost
            || self.discovered.elapsed() > DISCOVERY_AT_REST
            || (waiting && self.discovered.elapsed() > DISCOVERY_PERIOD)
        {
            self.discover().await;
        }
        if self.shared.namespaces.take_relabelled() {
            self.recount_at.get_or_insert(Instant::now() + RECOUNT_DELAY);
        }
        if self.recount_at.is_some_and(|at| at <= Instant::now()) {
            self.recount_at = None;
            for kind in self.watched() {
                let shared = self.shared.clone();
                self.tasks.spawn(async move {
                    recount(&shared, &kind).await;
                    Finished::Other
                });
            }
        }
        self.gauge();
    }

    /// Asks the server what it can do, in all groups that policies and registrations of ours name.
    async fn discover(&mut self) {
        self.discovered = Instant::now();
        let groups = self.groups();
        match Capabilities::discover(&self.shared.client, |group| groups.contains(group)).await {
            Ok(capabilities) => {
                if capabilities.version != self.shared.capabilities().version {
                    info!(version = capabilities.version, "The server has changed");
                    self.schema = None;
                    self.trials.clear();
                    self.blocked.clear();
                }
                self.plan = None;
                let before = self.shared.capabilities();
                let is_same = |name: &&str| before.registration(name) == capabilities.registration(name);
                self.is_served_otherwise |= !resources::ALL.iter().all(is_same);
                self.shared.set_capabilities(capabilities);
                self.groups = groups;
            }
            Err(error) => warn!(%error, "Cannot ask the server what it can do"),
        }
    }

    /// The groups that policies and registrations of ours name.
    fn groups(&self) -> BTreeSet<String> {
        let snapshot = self.snapshots.borrow();
        let targeted = snapshot.policies.iter().flat_map(|policy| policy.kinds.iter().cloned());
        let ours = self.configurations.known().iter().filter(|(_, configuration)| is_ours(configuration));
        let registered = ours.flat_map(|(_, configuration)| configuration.kinds());
        targeted.chain(registered).filter(|kind| !kind.is_in_table()).map(|kind| kind.group.clone()).collect()
    }

    fn gauge(&self) {
        let metrics = &self.shared.metrics;
        let now = Instant::now();
        self.shared.queue(|queue| {
            let (by_policy, oldest) = queue.waiting();
            for name in self.entries.keys() {
                metrics.set_pending(name, by_policy.get(name.as_str()).copied().unwrap_or_default());
            }
            let age =
                |since: Option<Instant>| since.map_or(0.0, |since| now.saturating_duration_since(since).as_secs_f64());
            metrics.oldest_pending.set(age(oldest));
            metrics.oldest_foreign_pending.set(age(queue.oldest_foreign()));
        });
        let count =
            |wanted: fn(&Outcome) -> bool| self.entries.values().filter(|entry| wanted(&entry.outcome)).count() as i64;
        let ready =
            count(|outcome| matches!(outcome, Outcome::InForce { .. } | Outcome::Suspended | Outcome::Audit { .. }));
        let unknown = count(|outcome| matches!(outcome, Outcome::FirstSight));
        metrics.set_policies(ready, self.entries.len() as i64 - ready - unknown, unknown);
    }

    /// Looks at everything once.
    async fn pass(&mut self) {
        let snapshot = self.snapshots.borrow().clone();
        if !snapshot.synced || !self.has_read_registered() {
            return;
        }
        if !self.groups().is_subset(&self.groups) {
            self.discover().await;
        }
        self.shared.metrics.reconciles.inc();
        if self.plan.is_none() {
            self.plan = Some(Arc::new(self.draw(&snapshot).await));
        }
        self.settle_watches(&snapshot);
        let pending = |queue: &mut Queue| queue.waiting().0.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
        self.pending = self.shared.queue(pending);
        for (name, stored) in snapshot.stored.iter() {
            self.step(name, stored).await;
        }
        self.settle_joints(&snapshot);
        for (name, stored) in snapshot.stored.iter() {
            self.conclude(name);
            self.write_status(name, stored, Force::No).await;
        }
        self.prune(&snapshot);
        self.sweep_once();
    }

    /// What is to become of the policy `name`.
    fn placed(&self, name: &str) -> Result<Arc<Placed>, Outcome> {
        match self.plan.as_ref().and_then(|plan| plan.policies.get(name)) {
            Some(Ok(placed)) => Ok(placed.clone()),
            // The sample comes while the plan stays.
            Some(Err(Outcome::Audit { .. })) => {
                let snapshot = self.snapshots.borrow();
                let hash = snapshot.policies.get(name).map(|policy| policy.spec_hash.clone()).unwrap_or_default();
                Err(Outcome::Audit { sample: self.shared.ledger(|ledger| ledger.sample(name, &hash)) })
            }
            Some(Err(outcome)) => Err(outcome.clone()),
            None => Err(Outcome::FirstSight),
        }
    }

    /// Compares what `name` is to have of its own with what is there and starts what is missing.
    async fn step(&mut self, name: &str, stored: &Stored) {
        let Some(entry) = self.entries.get(name).filter(|entry| !entry.is_busy()) else { return };
        let retry_later = entry.retry_at.is_some_and(|at| at > Instant::now());
        let phase = entry.phase.clone();
        let placed = self.placed(name);
        let own = placed.as_ref().ok().and_then(|placed| Some((placed.policy.clone(), placed.own.clone()?)));
        match (own, phase) {
            (Some((policy, wanted)), Phase::Up(there)) => self.keep_up(name, policy, wanted, *there).await,
            (Some((policy, wanted)), _) => {
                if self.is_held(name, stored) || retry_later {
                    return;
                }
                self.rise(name, policy, wanted);
            }
            (None, phase) => {
                if self.is_leaving(name, &placed) {
                    return;
                }
                // To suspend it is how a user ends the hold after a removal by hand.
                if let Some(entry) = self.entries.get_mut(name) {
                    entry.hold = None;
                }
                if let Err(outcome) = &placed {
                    self.release(stored);
                    self.set_outcome(name, outcome.clone());
                }
                let is_there = phase != Phase::Out || (self.registered(name).is_some() && !retry_later);
                if is_there {
                    self.fall(name, stored).await;
                }
            }
        }
    }

    /// True if the policy goes from Initializers to another engine, and is not in force there yet.
    fn is_leaving(&self, name: &str, placed: &Result<Arc<Placed>, Outcome>) -> bool {
        let Ok(placed) = placed else { return false };
        let is_up = self.entries.get(name).is_some_and(Entry::is_up);
        is_up && self.shortfall(&placed.policy, &placed.shared).is_some()
    }

    fn release(&mut self, stored: &Stored) {
        if let Ok(policy) = stored.parsed.clone()
            && !policy.is_enforced()
        {
            self.release_joints(&policy);
        }
    }

    /// Says how it stands with a policy, once everything that it needs has been looked at.
    fn conclude(&mut self, name: &str) {
        let Ok(placed) = self.placed(name) else { return };
        let is_up = self.entries.get(name).is_some_and(Entry::is_up);
        if placed.own.is_some() && !is_up {
            return;
        }
        match self.shortfall(&placed.policy, &placed.shared) {
            None => self.describe(name),
            // What was said before stays true until it is known.
            Some(Outcome::FirstSight) => {}
            Some(outcome) => self.set_outcome(name, outcome),
        }
    }

    fn registered(&self, name: &str) -> Option<&InitializerConfiguration> {
        self.configurations.known().get(&render::name(name)).filter(|configuration| is_ours(configuration))
    }

    /// Brings the policy in force, once its watches are in sync.
    fn rise(&mut self, name: &str, policy: Arc<Policy>, wanted: InitializerConfiguration) {
        let named = wanted.kinds();
        let own: Vec<Arc<Kind>> = policy.kinds.iter().filter(|kind| named.contains(*kind)).cloned().collect();
        let kinds = own.iter().map(|kind| (kind.resource.as_str(), self.watches.get(kind)));
        let namespaces = policy.reads_namespaces().then_some(("namespaces", self.namespaces.as_ref()));
        let needed: Vec<_> = kinds
            .chain(namespaces)
            .map(|(resource, watching)| (resource, watching.map(|watching| watching.progress.borrow().clone())))
            .collect();
        for (resource, progress) in needed {
            match progress {
                Some(Progress::Synced) => {}
                Some(Progress::Failed(error)) => {
                    let code = if error.contains("forbidden") { Code::MissingRight } else { Code::NotSynced };
                    self.set_outcome(
                        name,
                        Outcome::Waiting { code, message: format!("cannot list and watch {resource}: {error}") },
                    );
                    return;
                }
                _ => return,
            }
        }
        let shared = self.shared.clone();
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.phase = Phase::Rising;
        entry.kinds.clone_from(&own);
        let name = name.to_owned();
        self.tasks.spawn(async move {
            let risen = registration::bring_up(&shared, &policy, &own, &wanted).await;
            Finished::Rose(name, Box::new(wanted), risen)
        });
    }

    /// Repairs a registration that was edited, follows one that is to change, holds back one that was deleted.
    async fn keep_up(
        &mut self,
        name: &str,
        policy: Arc<Policy>,
        wanted: InitializerConfiguration,
        there: InitializerConfiguration,
    ) {
        let hold = self.settings.repair_hold;
        let Some(stored) = self.registered(name).cloned() else {
            if let Some(entry) = self.entries.get_mut(name) {
                entry.hold_back(name, hold);
            }
            return;
        };
        if wanted.initializers != there.initializers
            || wanted.metadata.owner_references != there.metadata.owner_references
        {
            let before = self.entries.get(name).map(|entry| entry.kinds.clone()).unwrap_or_default();
            let kept = wanted.kinds();
            self.rise(name, policy, wanted);
            let dropped: Vec<_> = before.into_iter().filter(|kind| !kept.contains(kind)).collect();
            self.drain_later(dropped);
            return;
        }
        if !registration::is_as(&stored, &wanted) {
            info!(policy = name, "The registration was edited; repairing it");
            if let Err(unavailable) = registration::apply(&self.shared.client, &wanted).await {
                warn!(policy = name, code = %unavailable.code, message = unavailable.message, "Cannot repair the registration");
                self.shared.metrics.reconcile_errors.inc();
            }
        }
    }

    /// What a policy in force has to say beyond that.
    fn describe(&mut self, name: &str) {
        let counts = self.counts(name);
        let conflicts = (counts.collided > 0).then(|| {
            let others: Vec<_> = self.shared.colliding(name).iter().map(|other| format!("`{other}`")).collect();
            format!(
                "collides with SidecarPolicy {} on {} workloads, which have neither",
                others.join(", "),
                counts.collided
            )
        });
        let on_pods = self
            .entries
            .get(name)
            .is_some_and(|entry| entry.kinds.iter().any(|kind| kind.group.is_empty() && kind.resource == "pods"));
        let restriction = on_pods.then(|| (Code::PodsCannotBypass, Code::PodsCannotBypass.meaning().to_owned()));
        let unproven = self.entries.get(name).and_then(|entry| entry.unproven.clone());
        let lasting = self.shared.ledger(|ledger| ledger.lasting(name, Instant::now()));
        let degraded = lasting.or(restriction).or(unproven).or_else(|| self.doubt(name));
        self.set_outcome(name, Outcome::InForce { conflicts, degraded });
    }

    /// Says first that the policy is out, so that a new leader can tell, then takes it out.
    async fn fall(&mut self, name: &str, stored: &Stored) {
        if self.registered(name).is_none() {
            if let Some(entry) = self.entries.get_mut(name) {
                entry.phase = Phase::Out;
            }
            return;
        }
        self.write_status(name, stored, Force::Now).await;
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.phase = Phase::Falling;
        entry.hold = None;
        let kinds = std::mem::take(&mut entry.kinds);
        self.take_down(name.to_owned(), kinds);
    }

    fn take_down(&mut self, name: String, mut kinds: Vec<Arc<Kind>>) {
        let shared = self.shared.clone();
        if kinds.is_empty() {
            kinds = self.watched();
            kinds.extend(self.registered(&name).into_iter().flat_map(InitializerConfiguration::kinds));
        }
        self.tasks.spawn(async move {
            let fallen = registration::take_down(&shared, &name, &kinds).await.map_err(|error| error.to_string());
            Finished::Fell(name, fallen)
        });
    }

    fn drain_later(&mut self, kinds: Vec<Arc<Kind>>) {
        if kinds.is_empty() {
            return;
        }
        let shared = self.shared.clone();
        self.tasks.spawn(async move {
            tokio::time::sleep(registration::SETTLING).await;
            if let Err(error) = registration::drain(&shared, &kinds).await {
                warn!(%error, "Cannot look whether objects still wait for us");
            }
            Finished::Other
        });
    }

    /// Takes out what belongs to policies that are gone, also those deleted while nobody looked.
    fn prune(&mut self, snapshot: &Snapshot) {
        let gone: Vec<String> =
            self.entries.keys().filter(|name| !snapshot.stored.contains_key(*name)).cloned().collect();
        for name in gone {
            let registered = self.registered(&name).is_some();
            let Some(entry) = self.entries.get_mut(&name).filter(|entry| !entry.is_busy()) else { continue };
            if registered && entry.retry_at.is_none_or(|at| at <= Instant::now()) {
                entry.phase = Phase::Falling;
                let kinds = std::mem::take(&mut entry.kinds);
                self.take_down(name, kinds);
            } else if !registered {
                // Somebody else may have removed it, the garbage collector for one: what waits is drained all the same.
                let kinds = entry.kinds.clone();
                self.entries.remove(&name);
                self.shared.metrics.forget(&name);
                self.shared.ledger(|ledger| ledger.forget(&name));
                self.drain_later(kinds);
            }
        }
        let orphans: Vec<String> = self
            .configurations
            .known()
            .iter()
            .filter(|(_, configuration)| is_ours(configuration))
            .map(|(name, _)| name.clone())
            .collect();
        for orphan in orphans {
            let Some(name) = orphan.strip_prefix("scpol-").map(str::to_owned) else { continue };
            if !snapshot.stored.contains_key(&name) && !self.entries.contains_key(&name) {
                info!(configuration = orphan, "Its policy is gone; unregistering");
                let mut entry = Entry::new("");
                entry.phase = Phase::Falling;
                self.entries.insert(name.clone(), entry);
                self.take_down(name, Vec::new());
            }
        }
    }

    fn set_outcome(&mut self, name: &str, outcome: Outcome) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.outcome = outcome;
        }
    }

    fn counts(&self, name: &str) -> Counts {
        self.shared.census(|census| census.counts(name))
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        for watching in self.watches.values().chain(&self.namespaces) {
            watching.task.abort();
        }
    }
}

/// A configuration of anybody's; what cannot be read is as good as empty.
fn parsed(object: &Object) -> InitializerConfiguration {
    serde_json::from_str(object.json()).unwrap_or_default()
}
