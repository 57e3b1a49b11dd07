//! Brings stored workloads up to date with their policy, at the pace of `spec.updateStrategy`.
//!
//! What is done is decided by the state machine of [`crate::rollout`], which is pure. This task of the leader gives it the facts and
//! runs its actions, each policy for itself:
//!
//! | part | what |
//! |---|---|
//! | `policy` | the facts about one policy, and what the leader knows of its rollout |
//! | `task` | the writes that a look asks for, beside the loop |
//! | `keep` | writes what a policy has added since it exists, as ControllerRevisions |
//! | `owners` | the controllers that make pods again, and how many each keeps |
//! | `act` | one guarded write to one workload |
//!
//! Nothing is kept here that must survive a leader: that stands in the revision.

pub mod act;
mod keep;
pub mod owners;
mod policy;
mod task;

use self::keep::Keeper;
use self::policy::{Rolled, Writing, was_halted};
use self::task::{Happened, Task};
use crate::api::code::Code;
use crate::api::condition::Progress;
use crate::board::{Board, InForce, RolloutState};
use crate::cluster::events::{EventReason, EventSubject};
use crate::cluster::policies::Snapshot;
use crate::cluster::revisions::Knowledge;
use crate::cluster::rights::may_read_revisions;
use crate::policy::{Policy, PolicyRef, Site, checks};
use crate::rollout::limit::Evictions;
use crate::rollout::record::MINUTE;
use crate::rollout::stored::rolls;
use crate::rollout::{Busy, Foreign, Leading, Owners, Unknown};
use crate::survival;
use crate::workloads::Workloads;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tracing::warn;

/// The rest after each look, as a multiple of the time that it took. A look at ten thousand workloads takes a while, and the webhook
/// shares its thread.
const REST: u32 = 3;
/// The shortest rest. Each write of a rollout is an event, and a look answers many of them at once.
const SHORTEST_REST: Duration = Duration::from_millis(20);

/// The most evictions in a minute, unless a flag says another number.
pub const EVICTIONS: u32 = 60;

/// Rolls for ever. `per_minute` is the most evictions in a minute, for all policies together. `wants_revisions` becomes true once they
/// can be kept although no policy rolls.
pub async fn run(workloads: &Arc<Workloads>, board: &Board, per_minute: u32, wants_revisions: &watch::Sender<bool>) {
    let operator = &workloads.operator;
    let mut roller = Roller {
        workloads,
        board,
        keeper: Keeper::new(&operator.client, &operator.site().operator_namespace),
        leader: format!("{:08x}", fastrand::u32(..)),
        owners: owners::Watched::default(),
        evictions: Evictions::new(per_minute as usize),
        policies: BTreeMap::new(),
        editions: Vec::new(),
        running: JoinSet::new(),
        wants_revisions,
        asked: None,
        told: HashSet::new(),
    };
    let (mut snapshots, mut in_force) = (operator.snapshots(), board.in_force_changes());
    let owners = roller.owners.changes();
    loop {
        let start = Instant::now();
        roller.turn();
        tokio::time::sleep((start.elapsed() * REST).max(SHORTEST_REST)).await;
        tokio::select! {
            Some(done) = roller.running.join_next() => roller.finished(done),
            Ok(()) = snapshots.changed() => {}
            Ok(()) = in_force.changed() => {}
            () = workloads.fleet_changes.notified() => {}
            () = owners.notified() => {}
            () = tokio::time::sleep(operator.timing.rollout.tick) => {}
        }
        while let Some(done) = roller.running.try_join_next() {
            roller.finished(done);
        }
    }
}

struct Roller<'a> {
    workloads: &'a Arc<Workloads>,
    board: &'a Board,
    keeper: Keeper,
    /// The name of this leader in records.
    leader: String,
    owners: owners::Watched,
    evictions: Evictions,
    policies: BTreeMap<String, Rolled>,
    /// The editions of the policies at the last turn.
    editions: Vec<u64>,
    /// What goes on, also while this loop looks or rests. It ends with the loop.
    running: JoinSet<(String, Vec<Happened>)>,
    wants_revisions: &'a watch::Sender<bool>,
    /// When the right to keep revisions was last asked for.
    asked: Option<Instant>,
    /// The names of the stored revisions about which users have been told that they are none.
    told: HashSet<String>,
}

impl Roller<'_> {
    /// Looks at each policy for which nothing is going on.
    fn turn(&mut self) {
        let operator = &self.workloads.operator;
        let snapshot = operator.snapshot();
        if !snapshot.synced {
            return;
        }
        self.owners.follow(operator, &snapshot);
        let editions: Vec<u64> = snapshot.stored.values().map(|stored| stored.edition).collect();
        if std::mem::replace(&mut self.editions, editions) != self.editions {
            self.workloads.fleet(|fleet| {
                // Not those of an older snapshot: what was seen since is not seen again.
                let policies = operator.snapshot().policies;
                fleet.retain_policies(|of, kind| {
                    policies.get(of).is_some_and(|policy| rolls(policy) && policy.kinds.contains(kind))
                });
            });
        }
        self.policies.retain(|name, _| snapshot.stored.contains_key(&PolicyRef::of_cluster(name)));
        self.ask_for_rights(&snapshot);
        self.tell_foreign(&snapshot);
        let mut evictions = self.evictions_left(&snapshot);
        let mut evicting: BTreeMap<String, Busy> =
            snapshot.stored.keys().map(|of| (of.name.to_string(), self.evicting(&of.name, &snapshot))).collect();
        for (of, stored) in snapshot.stored.iter() {
            let name = &of.name.to_string();
            let rolled = self.policies.entry(name.clone()).or_default();
            rolled.is_of(&stored.uid);
            match &stored.parsed {
                Ok(policy) if rolled.writing.is_none() => {
                    let announced = self.look_at_safely(policy, &snapshot, (evictions, &of_others(&evicting, name)));
                    evictions = evictions.saturating_sub(announced);
                    evicting.insert(name.clone(), self.evicting(name, &snapshot));
                }
                Ok(_) => {}
                Err(_) => rolled.shown = RolloutState::default(),
            }
        }
        let states = self.policies.iter().map(|(name, rolled)| (PolicyRef::of_cluster(name), rolled.shown.clone()));
        self.board.set_rollouts(states.collect());
    }

    /// Looks at `policy`, of which so many pods may be evicted now, but none of an owner that is busy. Returns how many evictions it announces.
    /// A panic costs only this rollout, for a while.
    fn look_at_safely(
        &mut self,
        policy: &Arc<Policy>,
        snapshot: &Snapshot,
        (evictions, busy): (usize, &Busy),
    ) -> usize {
        let operator = self.workloads.operator.clone();
        let now = Instant::now();
        let Some(rolled) = self.policies.get_mut(&policy.name) else { return 0 };
        if rolled.panicked.is_some_and(|at| now.duration_since(at) < operator.timing.rollout.again) {
            return 0;
        }
        let look = || self.look_at(policy, snapshot, (evictions, busy));
        let looked = survival::attempt(&operator.metrics, "looking at a rollout", look);
        let Some(rolled) = self.policies.get_mut(&policy.name) else { return 0 };
        rolled.panicked = looked.is_none().then_some(now);
        let Some(task) = looked else {
            let message = "the operator panicked over this rollout, which is a defect of the operator's; see its log";
            rolled.conclude(Progress::Halted(format!("{}: {message}", Code::Panicked)), None);
            return 0;
        };
        let Some(task) = task else { return 0 };
        let writing = rolled.writing.insert(Writing::of(&task));
        let announced = writing.evictions;
        let (keeper, workloads) = (self.keeper.clone(), self.workloads.clone());
        let (policy, foreign) = (policy.clone(), snapshot.revisions.foreign().to_vec());
        self.running.spawn(async move {
            let happened = task.run(&workloads, &keeper, &policy, &foreign).await;
            (policy.name.clone(), happened)
        });
        announced
    }

    /// Looks at `policy` once. Returns what is to be written.
    fn look_at(
        &mut self,
        policy: &Arc<Policy>,
        snapshot: &Snapshot,
        (evictions, busy): (usize, &Busy),
    ) -> Option<Task> {
        let (hash, stored) = (policy.revision()?, snapshot.stored.get(&policy.reference())?);
        let again = SignedDuration::try_from(self.workloads.operator.timing.rollout.again).unwrap_or_default();
        let facts = policy::Around {
            workloads: self.workloads,
            owners: self.owners_for(policy),
            is_in_force: self.board.in_force(&policy.reference()) == InForce::by(policy),
            leader: Leading { name: &self.leader, evictions, again },
            busy,
        };
        let rolled = self.policies.get_mut(&policy.name)?;
        if rolled.rests() {
            return None;
        }
        rolled.shown.looked_at = Some(hash.to_owned());
        if let Err(why) = rolled.revisions_are_kept(snapshot, &self.workloads.operator.timing.rollout) {
            if rolls(policy) {
                // What is halted stays so for users until the revisions are known.
                rolled.shown.is_halted = was_halted(stored, hash);
                rolled.shown.update = Some(hash.to_owned());
                rolled.conclude(why, None);
            }
            return None;
        }
        let revisions = rolled.revisions(snapshot.revisions.of_policy(&policy.reference()));
        if let Some(task) = rolled.housekeeping(policy, stored, &revisions) {
            if rolls(policy) && matches!(task, Task::Begin(..)) {
                (rolled.shown.update, rolled.shown.is_halted) = (Some(hash.to_owned()), false);
                // Between two attempts, users see why the last one was refused.
                let refused = rolled.refused().cloned();
                let new = || Progress::NewRevision("its revision is not stored yet".into());
                rolled.conclude(refused.unwrap_or_else(new), None);
            }
            return Some(task);
        }
        if !rolls(policy) {
            rolled.shown = RolloutState { looked_at: rolled.shown.looked_at.take(), ..RolloutState::default() };
            return None;
        }
        rolled.step(policy, stored, &revisions, &facts)
    }

    /// How many pods may be evicted now.
    fn evictions_left(&mut self, snapshot: &Snapshot) -> usize {
        let now = Timestamp::now().as_second();
        let begun = self.policies.iter().map(|(name, rolled)| {
            let revisions = rolled.revisions(snapshot.revisions.of_policy(&PolicyRef::of_cluster(name)));
            let recorded = revisions.last().map_or(0, |last| last.record.progress.evictions_since(now - MINUTE));
            recorded.saturating_add(rolled.writing.as_ref().map_or(0, |writing| writing.evictions))
        });
        let begun = begun.fold(0, usize::saturating_add);
        self.evictions.left(begun, now)
    }

    /// The owners of which the rollout of the policy `name` may be evicting a pod.
    fn evicting(&self, name: &str, snapshot: &Snapshot) -> Busy {
        let Some(rolled) = self.policies.get(name) else { return Busy::new() };
        let of = PolicyRef::of_cluster(name);
        let (shown, now) = (snapshot.revisions.of_policy(&of), Timestamp::now());
        self.workloads.fleet(|fleet| rolled.evicting(shown, fleet.known(&of), now))
    }

    /// The makers of pods, if the policy targets pods.
    fn owners_for(&self, policy: &Policy) -> Result<Arc<Owners>, Unknown> {
        if !policy.kinds.iter().any(|kind| kind.is_pod()) {
            return Ok(Arc::default());
        }
        self.owners.owners(&policy.name, Instant::now(), &self.workloads.operator.timing.watch)
    }

    /// Records what became of the writes for `policy`.
    ///
    /// # Panics
    /// If the task has panicked.
    fn finished(&mut self, done: Result<(String, Vec<Happened>), JoinError>) {
        let now = Timestamp::now();
        let (policy, happened) = match done {
            Ok(done) => done,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => return,
        };
        if let [Happened::MayKeep(may)] = happened.as_slice() {
            self.wants_revisions.send_if_modified(|wants| std::mem::replace(wants, *may) != *may);
            return;
        }
        let Some(rolled) = self.policies.get_mut(&policy) else { return };
        rolled.writing = None;
        for happened in happened {
            if let Some(announced) = happened.unused_eviction() {
                self.evictions.note_unused(announced.as_second());
            }
            rolled.happened(&policy, happened, now, &self.workloads.operator.timing.rollout);
        }
    }

    /// Asks, while no policy rolls, whether revisions can be kept: then there is something to go back to.
    fn ask_for_rights(&mut self, snapshot: &Snapshot) {
        let operator = &self.workloads.operator;
        let now = Instant::now();
        let is_recent = self.asked.is_some_and(|at| now.duration_since(at) < operator.timing.rollout.rights);
        if is_recent || *self.wants_revisions.borrow() && snapshot.revisions.knowledge == Knowledge::Read {
            return;
        }
        self.asked = Some(now);
        let operator = operator.clone();
        self.running.spawn(async move {
            let may_keep = may_read_revisions(&operator.client, &operator.site().operator_namespace).await;
            (String::new(), vec![Happened::MayKeep(may_keep)])
        });
    }

    /// Records an event about each stored revision that says that it is one of a policy, and is not.
    fn tell_foreign(&mut self, snapshot: &Snapshot) {
        let foreign = snapshot.revisions.foreign();
        self.told.retain(|name| foreign.iter().any(|foreign| foreign.name == *name));
        for foreign in foreign {
            let Some(policy) = snapshot.policies.get(&PolicyRef::of_cluster(&foreign.policy)) else { continue };
            if !self.told.insert(foreign.name.clone()) {
                continue;
            }
            warn!(code = %Foreign::CODE, policy = foreign.policy, name = foreign.name, why = foreign.why, "A stored revision is ignored");
            let message = format!("ControllerRevision `{}` is ignored: {}", foreign.name, foreign.why);
            let subject = EventSubject::policy(&policy.name, &policy.meta.uid);
            self.workloads.recorder.tell(subject, EventReason::RevisionIgnored, Foreign::CODE, &message);
        }
    }
}

/// What the rollouts of other policies than `name` may be evicting.
fn of_others(evicting: &BTreeMap<String, Busy>, name: &str) -> Busy {
    let mut all = Busy::new();
    for (owner, at) in evicting.iter().filter(|(other, _)| *other != name).flat_map(|(_, busy)| busy) {
        let first = all.entry(owner.clone()).or_insert(*at);
        *first = (*first).min(*at);
    }
    all
}

/// Whether the Namespace `object` of that `name` is one that steps of `policy` count.
pub fn covers(policy: &Policy, site: &Site, name: &str, object: &Value) -> bool {
    let selector = policy.spec.namespace_selector.as_ref();
    let is_selected = selector.is_none_or(|selector| checks::selects_namespace(selector, name, object));
    is_selected && policy.covers_namespace(name) && !site.protected_namespaces.contains(name)
}

/// How long what we have created may take until the watch shows it.
const UNSEEN: Duration = Duration::from_secs(10);
