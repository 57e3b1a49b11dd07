//! The facts about one policy, and what the leader knows of its rollout.

use super::act::RESIZE;
use super::keep::{Kept, superfluous};
use super::task::{Happened, Task};
use super::{UNSEEN, covers};
use crate::api::code::Code;
use crate::api::condition::Progress;
use crate::api::v1alpha1::RollingUpdate;
use crate::board::RolloutState as Shown;
use crate::cluster::client::CallError;
use crate::cluster::policies::{Snapshot, StoredPolicy as Policies};
use crate::cluster::revisions::Knowledge;
use crate::content::Content;
use crate::policy::{Policy, Site};
use crate::refit::{self, Asked, Carries, Way};
use crate::rollout::record::Commands;
use crate::rollout::steps::Reached;
use crate::rollout::{
    Action, Aim, Busy, Event, Leading, Look, Machine, Makers, Member, Members, Next, Numbers, Outcome, Owners,
    Published, Queries, Record, StoredRevision, Unknown, World, stored,
};
use crate::timing;
use crate::workload::ObjectRef;
use crate::workloads::Workloads;
use jiff::Timestamp;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;
use tracing::warn;

/// What the leader knows of the rollout of one policy.
#[derive(Default)]
pub(super) struct Rolled {
    uid: String,
    /// The memory of the state machine.
    state: Machine,
    /// What is being written.
    pub(super) writing: Option<Writing>,
    /// The revisions that we have written, as the server returned them, until the watch shows them.
    written: BTreeMap<String, Written>,
    /// When the server last refused to keep a revision, and what that means.
    refused: Option<(Instant, Progress)>,
    /// Until when nothing is written: the server has refused a write, or the watch is behind.
    rest_until: Option<Instant>,
    /// When superfluous revisions were last deleted.
    pruned: Option<Instant>,
    /// When a look panicked. The next one waits.
    pub(super) panicked: Option<Instant>,
    rejections: Rejections,
    /// What else the condition says.
    note: String,
    pub(super) shown: Shown,
}

/// What a task is writing, which nothing has shown yet.
#[derive(Default)]
pub(super) struct Writing {
    /// How many evictions that announces.
    pub(super) evictions: usize,
    record: Option<Record>,
}

impl Writing {
    pub(super) fn of(task: &Task) -> Self {
        Self { evictions: task.evictions(), record: task.record().cloned() }
    }
}

/// Why new workloads do not get the content of a revision, by its hash and the hash of the policy's spec.
#[derive(Default)]
struct Rejections(RefCell<HashMap<(String, String), Option<String>>>);

impl Rejections {
    /// [`stored::rejection`], judged once.
    fn of(&self, policy: &Policy, stored: &StoredRevision, site: &Site) -> Option<String> {
        let key = (stored.revision.hash.clone(), policy.spec_hash.clone());
        let mut known = self.0.borrow_mut();
        if known.len() > 64 {
            known.clear();
        }
        known.entry(key).or_insert_with(|| stored::rejection(policy, &stored.revision, site)).clone()
    }
}

/// A revision that we have written.
struct Written {
    stored: StoredRevision,
    at: Instant,
    /// Whether the watch had shown it before. If it shows it no more, it is deleted.
    was_there: bool,
}

/// What a look needs besides the policy.
pub(super) struct Around<'a> {
    pub(super) workloads: &'a Workloads,
    pub(super) owners: Result<Arc<Owners>, Unknown>,
    /// Whether new workloads get what the policy says.
    pub(super) is_in_force: bool,
    pub(super) leader: Leading<'a>,
    /// The owners of which the rollouts of other policies may be evicting a pod.
    pub(super) busy: &'a Busy,
}

impl Rolled {
    /// Forgets everything about a policy of the same name that has been deleted.
    pub(super) fn is_of(&mut self, uid: &str) {
        if self.uid != uid {
            let writing = self.writing.as_ref().map(|_| Writing::default());
            *self = Self { uid: uid.to_owned(), writing, ..Self::default() };
        }
    }

    /// Whether the revisions are known and can be kept.
    ///
    /// # Errors
    /// What the rollout waits for.
    pub(super) fn revisions_are_kept(&self, snapshot: &Snapshot, timing: &timing::Rollout) -> Result<(), Progress> {
        match &snapshot.revisions.knowledge {
            Knowledge::Unread => return Err(Progress::NewRevision("reading the revisions of the policy".into())),
            Knowledge::Refused(_) => return Err(Progress::Halted(refusal())),
            Knowledge::Read => {}
        }
        match &self.refused {
            Some((at, why)) if at.elapsed() < timing.again => Err(why.clone()),
            _ => Ok(()),
        }
    }

    /// The owners of which this rollout may evict a pod at any moment. `shown` are its revisions as the watch has shown them, and `members`
    /// are those of its policy that are known.
    pub(super) fn evicting(&self, shown: &[StoredRevision], members: &Members, now: Timestamp) -> Busy {
        let revisions = self.revisions(shown);
        let writing = self.writing.as_ref().and_then(|writing| writing.record.as_ref());
        let record = writing.or(revisions.last().map(|last| &last.record));
        record.map(|record| self.state.evicting(record, members, now)).unwrap_or_default()
    }

    /// What it means that the server refused to keep the last revision.
    pub(super) fn refused(&self) -> Option<&Progress> {
        self.refused.as_ref().map(|(_, why)| why)
    }

    /// The revisions of the policy, oldest first: those that the watch has `shown`, and those that we have written since.
    pub(super) fn revisions<'a>(&self, shown: &'a [StoredRevision]) -> Cow<'a, [StoredRevision]> {
        if self.written.is_empty() {
            return Cow::Borrowed(shown);
        }
        let mut all = shown.to_vec();
        for (name, written) in &self.written {
            match all.iter_mut().find(|stored| stored.name == *name) {
                Some(stored) if is_older(stored, &written.stored) => *stored = written.stored.clone(),
                Some(_) => {}
                None if !written.was_there && written.at.elapsed() < UNSEEN => all.push(written.stored.clone()),
                None => {}
            }
        }
        all.sort_by_key(|stored| stored.revision.number);
        Cow::Owned(all)
    }

    /// What is to be written before the rollout goes on: the revision of the policy as it is now, an earlier one that others have
    /// deleted, or what is one revision too many.
    pub(super) fn housekeeping(
        &mut self,
        policy: &Arc<Policy>,
        at: &Policies,
        revisions: &[StoredRevision],
    ) -> Option<Task> {
        self.written.retain(|name, written| {
            let shown = revisions.iter().find(|stored| stored.name == *name);
            shown.is_some_and(|shown| shown.version == written.stored.version)
        });
        let hash = policy.revision()?;
        // A list of policies may be older than the revisions: a begin would undo that of a later edit.
        if revisions.last().is_some_and(|last| last.record.progress.generation > policy.meta.generation) {
            return None;
        }
        let is_begun = |last: &&StoredRevision| last.revision.hash == hash && !last.record.progress.is_replaced;
        let Some(last) = revisions.last().filter(is_begun) else {
            return Some(Task::Begin(commands(at), revisions.to_vec()));
        };
        let from = last.record.reached.as_ref().map(|reached| reached.from.as_str());
        let is_there = |hash: &str| stored::with_hash(revisions, hash).is_some();
        let earlier = policy.earlier().filter(|earlier| earlier.revision() == from);
        if let Some(earlier) = earlier.filter(|_| from.is_some_and(|from| !is_there(from))) {
            let number = last.revision.number.saturating_sub(1).max(1);
            return Content::of(&earlier.spec).map(|content| Task::Restore(Box::new(content), number));
        }
        let current = stored::current(revisions).map(|current| current.revision.hash.as_str());
        let is_needed = |stored: &StoredRevision| {
            let own = stored.revision.hash.as_str();
            own == hash || Some(own) == current || Some(own) == from
        };
        let old = superfluous(revisions, policy.spec.revision_history_limit(), is_needed);
        let old: Vec<_> = old.into_iter().map(|old| (old.name.clone(), old.uid.clone())).collect();
        // One that does not go, because of a finalizer, holds nothing up.
        let is_recent = self.pruned.is_some_and(|at| at.elapsed() < UNSEEN);
        if old.is_empty() || is_recent {
            return None;
        }
        self.pruned = Some(Instant::now());
        Some(Task::Prune(old))
    }

    /// Looks at the rollout of `policy`. Returns what is to be written.
    pub(super) fn step(
        &mut self,
        policy: &Arc<Policy>,
        at: &Policies,
        revisions: &[StoredRevision],
        around: &Around<'_>,
    ) -> Option<Task> {
        let site = around.workloads.operator.site();
        let (hash, settings) = (policy.revision()?, policy.rolling.as_ref()?);
        let rolling = Rolling { policy, hash, settings, at, revisions, site };
        let last = revisions.last().filter(|last| last.revision.hash == hash);
        let reached = last.and_then(|last| last.record.reached.as_ref());
        let rejection = |stored: &StoredRevision| self.rejections.of(policy, stored, &rolling.site);
        let barred = reached.and_then(|reached| stored::barred(reached, revisions, &rejection));
        let (outcome, updates) = rolling.look(&mut self.state, around, reached, &rejection);
        self.note = note(at, barred);
        self.show(at, revisions, hash);
        if let Some(progress) = outcome.progress {
            self.conclude(progress, outcome.look.as_ref());
        }
        let ahead = last.map(|last| last.record.ahead).unwrap_or_default();
        let restarted = commands(at).counted(ahead).restarted;
        Task::of(outcome.actions, updates, revisions, hash, (rolling.settings, restarted))
    }

    fn show(&mut self, at: &Policies, revisions: &[StoredRevision], hash: &str) {
        let shown = &mut self.shown;
        if shown.update.replace(hash.to_owned()).as_deref() != Some(hash) {
            (shown.updated, shown.remaining) = (0, 0);
        }
        shown.current = stored::current(revisions).map(|current| current.revision.hash.clone());
        shown.restarted = at.restarted;
        shown.is_halted = revisions.last().is_some_and(|last| last.record.progress.halted.is_some());
    }

    /// Shows how far the rollout is.
    pub(super) fn conclude(&mut self, progress: Progress, look: Option<&Look>) {
        self.shown.progress = Some(progress.noting(&self.note));
        // Without a look, nothing new is known.
        if let Some(Numbers { updated, ready, remaining, .. }) = look.map(|look| &look.numbers) {
            (self.shown.updated, self.shown.ready, self.shown.remaining) = (*updated, *ready, *remaining);
        }
    }

    /// Records what became of a write for the policy `name`.
    pub(super) fn happened(&mut self, name: &str, happened: Happened, now: Timestamp, timing: &timing::Rollout) {
        match happened {
            Happened::Recorded(result) => {
                let told = result.as_ref().map(|_| ()).map_err(ToString::to_string);
                self.state.step(Event::Recorded(told));
                self.rest(&result, timing);
                if let Ok(stored) = result {
                    self.keep(stored, true);
                }
            }
            Happened::Kept(Ok(stored)) => {
                let result = Ok(stored);
                self.rest(&result, timing);
                self.keep(result.ok().flatten(), false);
            }
            Happened::Kept(Err(error)) => self.refuse(name, &error),
            Happened::Answered(answered) => {
                let (next, member, answer) = *answered;
                let object = next.object;
                let event = Event::Answered { object: &object, member: &member, answer, now };
                self.state.step(event);
            }
            Happened::MayKeep(_) => {}
        }
    }

    /// Whether nothing is to be written yet.
    pub(super) fn rests(&self) -> bool {
        self.rest_until.is_some_and(|until| Instant::now() < until)
    }

    /// Rests after a write that the server refused, and until the watch shows what is stored instead.
    fn rest(&mut self, result: &Result<Kept, CallError>, timing: &timing::Rollout) {
        let pause = match result {
            Ok(Some(_)) => None,
            Ok(None) => Some(timing.tick),
            Err(_) => Some(timing.again),
        };
        self.rest_until = pause.map(|pause| Instant::now() + pause);
    }

    fn keep(&mut self, stored: Kept, was_there: bool) {
        self.refused = None;
        let Some(stored) = stored.map(|stored| *stored) else { return };
        if stored.is_of(&self.uid) {
            self.written.insert(stored.name.clone(), Written { stored, at: Instant::now(), was_there });
        }
    }

    fn refuse(&mut self, policy: &str, error: &CallError) {
        warn!(policy, %error, "Cannot keep revisions; without them nothing is rolled out");
        self.refused = Some((Instant::now(), not_kept(error)));
    }
}

/// A policy that rolls, with its stored revisions.
struct Rolling<'a> {
    policy: &'a Arc<Policy>,
    /// The hash of the revision that it has now.
    hash: &'a str,
    settings: &'a RollingUpdate,
    at: &'a Policies,
    revisions: &'a [StoredRevision],
    site: Arc<Site>,
}

impl Rolling<'_> {
    /// Has the machine look at the rollout, which has `reached` so far. Returns the workloads to update with what is known of each.
    fn look(
        &self,
        state: &mut Machine,
        around: &Around<'_>,
        reached: Option<&Reached>,
        rejection: &dyn Fn(&StoredRevision) -> Option<String>,
    ) -> (Outcome, Vec<(Next, Member)>) {
        let Self { policy, settings, at, .. } = self;
        let (workloads, operator) = (around.workloads, &around.workloads.operator);
        let are_in_steps = reached.is_some_and(|reached| stored::holds(reached, &settings.steps));
        let namespaces = are_in_steps.then(|| namespaces(around, policy)).flatten();
        let earlier = policy.earlier().and_then(|earlier| earlier.revision()).zip(policy.extent());
        let asked = Asked {
            restarted: None,
            pod_update: settings.pod_update,
            can_resize: operator.capabilities().known_minor().is_none_or(|minor| minor >= RESIZE),
            carrier: None,
        };
        workloads.fleet(|fleet| {
            let served = policy.kinds.iter().filter(|kind| !kind.is_job() && operator.resource(kind).is_some());
            let members = workloads.basis(at).and_then(|basis| fleet.members(&policy.reference(), basis, served));
            let owners = around.owners.as_deref().map_err(Clone::clone);
            let beside = owners.as_ref().map(|owners| fleet.beside(&policy.reference(), owners)).unwrap_or_default();
            let stuck = |object: &ObjectRef| {
                workloads.starts(|starts| starts.stuck_in(object, &policy.reference(), policy.template_hash()))
            };
            let by_hand = |object: &ObjectRef| workloads.starts(|starts| starts.by_hand(object));
            let world = World {
                aim: Aim {
                    policy: &policy.name,
                    kinds: &policy.kinds,
                    update: self.hash,
                    published: Published { is_in_force: around.is_in_force, earlier },
                },
                leader: around.leader,
                now: Timestamp::now(),
                settings: self.settings,
                is_paused: policy.spec.is_paused(),
                revisions: self.revisions,
                commands: commands(at),
                members,
                makers: owners.map(|owners| Makers { owners, beside: &beside, busy: around.busy }),
                namespaces: namespaces.as_ref(),
                queries: Queries {
                    stuck: &stuck,
                    by_hand: &by_hand,
                    way: &|object, member| self.way(object, member, &asked),
                    rejection,
                },
            };
            let outcome = state.step(Event::Look(&world));
            let updates = outcome.actions.iter().filter_map(|action| match action {
                Action::Update(next) => Some((next.clone(), members?.get(&next.object)?.clone())),
                _ => None,
            });
            let updates = updates.collect();
            (outcome, updates)
        })
    }

    /// How a workload is expected to be brought up to date.
    fn way(&self, object: &ObjectRef, member: &Member, asked: &Asked<'_>) -> Way {
        let has = |stored: &&StoredRevision, hash: &str| stored.revision.template.hash == hash;
        let from = match &member.carries {
            Carries::Other(hash) => self.revisions.iter().rev().find(|stored| has(stored, hash)),
            Carries::This | Carries::Nothing | Carries::Unreadable => None,
        };
        let from = from.map(|stored| &*stored.revision);
        refit::expected(&object.kind, from, self.policy.at_place(&object.namespace, &member.place), &self.site, asked)
    }
}

/// What it means for a rollout that its revision cannot be kept. Without a verdict, the next attempt may succeed.
fn not_kept(error: &CallError) -> Progress {
    let is_away = matches!(error, CallError::Away(_) | CallError::Unconnected(_));
    let why = format!("{}: {error}", Code::ServerAway);
    if is_away || matches!(error.code(), 429 | 500..) { Progress::NewRevision(why) } else { Progress::Halted(why) }
}

/// Whether `one` is an older version than `other` of the same object.
fn is_older(one: &StoredRevision, other: &StoredRevision) -> bool {
    let version = |stored: &StoredRevision| stored.version.parse::<u64>().unwrap_or_default();
    version(one) < version(other)
}

/// The namespaces that `policy` covers; none while they are not known.
fn namespaces(around: &Around<'_>, policy: &Policy) -> Option<BTreeMap<String, Arc<serde_json::Value>>> {
    let operator = &around.workloads.operator;
    let site = operator.site();
    let mut namespaces = operator.namespaces.all()?;
    namespaces.retain(|name, object| covers(policy, &site, name, object));
    Some(namespaces)
}

/// The last commands for a policy.
fn commands(at: &Policies) -> Commands {
    Commands { restarted: at.restarted, resumed: at.resumed }
}

/// What the condition of a policy says besides its progress: why an earlier revision is `barred`, and annotations without effect.
fn note(at: &Policies, barred: Option<String>) -> String {
    let odd = at.odd_times.iter().map(|key| format!("`{key}` is no time and has no effect"));
    barred.into_iter().chain(odd).collect::<Vec<_>>().join("; ")
}

/// Whether the status says that the rollout of the revision `hash` is halted.
pub(super) fn was_halted(at: &Policies, hash: &str) -> bool {
    at.status["halted"] == true && at.status["updateRevision"] == hash
}

fn refusal() -> String {
    format!(
        "{}: cannot list and watch controllerrevisions in the operator's namespace; apply `config/rbac/rollout`",
        Code::MissingRight
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn a_revision_that_is_not_kept_halts_nothing_if_the_next_attempt_may_succeed() {
        let answer = |code: u16| CallError::answer(Status::default(), code, None);
        for passing in [answer(429), answer(500), answer(504), CallError::Away("no route".into())] {
            assert!(matches!(not_kept(&passing), Progress::NewRevision(why) if why.starts_with("SCP")), "{passing}");
        }
        for lasting in [answer(403), answer(422), CallError::Unsent("delete it".into())] {
            assert!(matches!(not_kept(&lasting), Progress::Halted(_)), "{lasting}");
        }
    }
}
