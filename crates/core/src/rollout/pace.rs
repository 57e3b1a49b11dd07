//! Which workloads are brought up to date next, and how far a rollout is. Pure.
//!
//! What counts as unavailable is read from the cluster: pods that are not ready, pods that their owner lacks, and workloads that
//! their controller is still rolling. In addition, each write that a leader has announced in the [`Record`] counts as unavailable until
//! the watches show what became of it. So a new leader, and one that wakes up late, cannot exceed a limit.

use super::facts::Facts;
use super::member::{Member, Members, Owner};
use super::record::{Evicted, MOST, Record, Write};
use super::words;
use crate::api::code::Code;
use crate::refit::{Carries, Way};
use crate::workload::{Kind, ObjectRef};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The most writes that are announced at once: their list takes 8 KiB of the 256 KiB that all annotations of an object may have.
pub const BATCH: usize = 64;
/// The most restarts of a container of the policy after its update.
const RESTARTS: u32 = 3;
/// How long a kubelet may take, beyond the grace period of the pod, until its status shows an image as it is in the spec. After that the
/// pod counts by its readiness alone, because a runtime may call an image by another name.
const UNSAID: SignedDuration = SignedDuration::from_secs(10);
/// How long another leader's announced write may still happen, if we cannot do it ourselves: longer than any request and any election.
const LATE: SignedDuration = SignedDuration::from_secs(600);
/// How long a leader may still do what it has announced: after half of it a leader begins nothing more of a batch, and the rest is for
/// its last requests.
pub const STALE: SignedDuration = SignedDuration::from_secs(30);
/// How long a workload that does not change is left until it is tried again: an opt-out of its Namespace, a ResourceQuota or another
/// policy may have been the reason.
const LEFT: SignedDuration = SignedDuration::from_secs(300);
/// How many are tried again for that, and how often at most. Each is read.
const LAPSES: (usize, SignedDuration) = (30, SignedDuration::from_secs(60));
/// How often the operator patches a template again after another client has put it back.
const TRIES: u32 = 3;
/// What another client puts back later than this after a patch is no answer to that patch: the default of `progressDeadlineSeconds`.
const HELD: SignedDuration = SignedDuration::from_secs(600);
/// How far the clock of a node may be ahead of ours. A time beyond that is forged, or of a broken clock.
const AHEAD: SignedDuration = SignedDuration::from_secs(300);
/// The most workloads that a message names.
pub const NAMED: usize = 3;
/// The most failures of one look, which is also the largest `failureThreshold`: the record has the name of each, of at most 350 bytes.
const FAILURES: usize = 100;

/// How fast a rollout goes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The most workloads that may be unavailable at once.
    pub max_unavailable: usize,
    /// How long a replacement must be ready before it counts.
    pub min_ready: SignedDuration,
    /// How long a replacement may take until it counts.
    pub deadline: SignedDuration,
    /// How long a workload waits that the server refused for a reason that may pass, such as a PodDisruptionBudget.
    pub again: SignedDuration,
}

/// The owners of which a rollout may evict a pod at any moment, by UID, each with the time of its first announcement.
pub type Busy = BTreeMap<Arc<str>, Timestamp>;

/// What was done to a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Done {
    /// The pod was evicted.
    Evicted,
    /// The workload or pod was patched, and has this `resourceVersion` since.
    Patched(u64),
}

/// The result of an attempt on one workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Done(Done),
    /// In that version it matches no more, or carries the revision already. None: it is gone.
    NotNeeded(Option<u64>),
    /// It has changed since that version was read. The watch shows its new version.
    Changed(u64),
    /// In that version it can only be evicted, with the reason. Nothing was written.
    NeedsEviction(u64, String),
    /// In that version it cannot be brought up to date.
    Left(u64, Left),
    /// A PodDisruptionBudget does not allow it now. Holds its words.
    Blocked(String),
    /// A right is missing.
    Refused(String),
    /// The server does not answer, or has too much to do: the write may have happened.
    Failed(String),
}

impl Answer {
    /// Whether the watch is to show another version than `member`, or that it is gone. If it does not for a while, the answer was about
    /// something else.
    fn expects_another(&self, member: &Member) -> bool {
        match self {
            Self::NotNeeded(version) => version.is_none(),
            Self::Changed(version) => member.version <= *version,
            _ => false,
        }
    }

    /// Whether the attempt was no eviction for certain.
    pub fn is_no_eviction(&self) -> bool {
        !matches!(self, Self::Done(Done::Evicted) | Self::Failed(_))
    }
}

/// Why a workload is left as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Left {
    pub code: Code,
    pub message: String,
}

/// What this leader has learnt during the rollout of one revision. All of it may be lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    answers: BTreeMap<ObjectRef, (Arc<str>, Timestamp, Answer)>,
    /// The restarts of patched pods when they were patched.
    restarts: BTreeMap<ObjectRef, Vec<(Arc<str>, u32)>>,
    /// What cannot be brought up to date, in which version, and when that was found. Version 0: it is judged again at the next look.
    /// `u64::MAX`: it stays left in every version.
    left: BTreeMap<ObjectRef, (u64, Timestamp, Left)>,
    /// What was left at the first attempt since it was announced, in the version in which it was known: nothing was written.
    untouched: BTreeSet<ObjectRef>,
    /// When some of them were last tried again that had not changed.
    lapsed: Option<Timestamp>,
    /// What can only be evicted, in which version.
    not_in_place: BTreeMap<ObjectRef, u64>,
    /// What was refused for a reason that may pass: since when, when last, and the reason.
    waits: BTreeMap<ObjectRef, (Timestamp, Timestamp, Waiting)>,
    /// How often a workload was patched that had lost it again, each time soon after the time before, and when last.
    tries: BTreeMap<ObjectRef, (u32, Timestamp)>,
    /// The owners that lack pods, and when this leader first saw that. An owner also lacks a pod while a node is drained.
    lacking: BTreeMap<Arc<str>, Timestamp>,
    /// What does not run what its spec asks for, and since when we see that.
    unsettled: BTreeMap<ObjectRef, Timestamp>,
    /// What is not ready, and since when we see that.
    unready: BTreeMap<ObjectRef, Timestamp>,
}

/// Why a workload waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    code: Code,
    /// The words of the server.
    why: String,
}

/// A workload that was updated and failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    pub object: ObjectRef,
    pub code: Code,
    pub message: String,
}

/// A workload to update now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Next {
    pub object: ObjectRef,
    pub uid: Arc<str>,
    /// The controller of a pod.
    pub owner: Option<Arc<str>>,
    /// Whether it may be evicted.
    pub may_evict: bool,
    /// Whether it is unavailable without the update.
    pub is_broken: bool,
    /// When the record announced it; none if it is to do that yet.
    pub announced: Option<Timestamp>,
    /// When the newest pod of its owner was created.
    pub newest: Option<Timestamp>,
    /// Whether another leader has announced it.
    pub is_foreign: bool,
}

impl Look {
    /// Whether nothing is to be updated, not even what was left and has changed.
    pub(super) fn is_idle(&self) -> bool {
        self.remaining == 0 && self.next.is_empty()
    }
}

/// How far a rollout is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Look {
    /// What the policy matches.
    pub matched: usize,
    /// The part that carries the update revision.
    pub updated: usize,
    /// The part that is available.
    pub ready: usize,
    /// What is in scope and still to be done.
    pub remaining: usize,
    /// The part of these that has the revision, and that a restart makes anew.
    pub again: usize,
    /// What is left as it is.
    pub left: usize,
    /// What counts against `maxUnavailable`.
    pub unavailable: usize,
    /// What was unavailable before the rollout began and is so since. It counts no more.
    pub broken: usize,
    /// The part of these whose owner is not known. They wait.
    pub orphans: usize,
    /// What to update now, in this order.
    pub next: Vec<Next>,
    /// The first failures that the record does not have, in the order of their names.
    pub failures: Vec<Failure>,
    /// The part of `remaining` that waits because another workload of its namespace has failed.
    pub held: usize,
    /// True while some workloads have not been compared with the revision that they are to have.
    pub is_counting: bool,
    /// True once everything in scope is updated or left, and all that was updated is available.
    pub is_complete: bool,
    /// Whether the limit of evictions holds it up.
    pub is_limited: bool,
    /// What holds it up, most important first.
    pub waits: Vec<String>,
    /// The owners of evicted pods that do not have all their pods again, up to date and available.
    pub unfinished: BTreeSet<String>,
}

/// What became of an announced write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It is to be tried, as far as is known.
    Unsent,
    /// It has happened, or may happen, and its effect is not seen yet.
    Pending,
    /// Its effect is seen, or it cannot happen.
    Over,
}

/// The parts of a look.
struct Looking<'a> {
    facts: &'a Facts<'a>,
    record: &'a Record,
    look: Look,
    /// The pods of each owner, with whether they are available, and whether they are or may be up to date.
    by_owner: HashMap<&'a str, Vec<(&'a ObjectRef, bool, bool)>>,
    /// The announced writes that are not over.
    open: BTreeMap<&'a ObjectRef, (Standing, &'a Write)>,
    candidates: Vec<(bool, &'a ObjectRef, &'a Member)>,
    missing: HashMap<&'a str, usize>,
    /// The owners that have more pods than they are known to want: one of two watches is behind.
    unclear: BTreeSet<&'a str>,
    /// The first pod whose owner is not known.
    orphan: Option<&'a ObjectRef>,
    /// What is unavailable in all namespaces.
    all: Count,
    /// The same in each namespace, if the policy limits that.
    by_namespace: HashMap<&'a str, Count>,
    are_parts_ready: bool,
}

/// How many workloads are unavailable.
#[derive(Default)]
struct Count {
    matched: usize,
    unavailable: usize,
    /// The part of these that an announced write is still to be sent to.
    unsent: usize,
    /// The first ones, as a message names them.
    names: Vec<String>,
}

impl Count {
    fn note(&mut self, count: usize, name: impl FnOnce() -> String) {
        self.unavailable = self.unavailable.saturating_add(count);
        if self.names.len() < NAMED {
            self.names.push(name());
        }
    }

    /// What is left of a `limit`.
    fn room(&self, limit: usize) -> Room {
        let others = self.unavailable.saturating_sub(self.unsent);
        Room { new: limit.saturating_sub(self.unavailable), announced: limit.saturating_sub(others) }
    }
}

/// How many available workloads may be updated yet.
#[derive(Clone, Copy)]
struct Room {
    /// Those that the record does not announce.
    new: usize,
    /// Those that it announces: they count already.
    announced: usize,
}

/// The name of a workload in a record.
pub fn key(object: &ObjectRef) -> String {
    format!("{}/{}/{}", object.kind.group_resource(), object.namespace, object.name)
}

impl Memory {
    /// Forgets what concerns only the rollout that was, and keeps what may still be going on.
    pub fn begin(&mut self) {
        let (answers, unsettled) = (std::mem::take(&mut self.answers), std::mem::take(&mut self.unsettled));
        let unready = std::mem::take(&mut self.unready);
        *self = Self { answers, unsettled, unready, ..Self::default() };
    }

    /// Forgets the answer about a workload whose next write is announced now: the clock may have been put back since.
    pub(super) fn announce(&mut self, object: &ObjectRef) {
        self.answers.remove(object);
        self.untouched.remove(object);
    }

    /// Records the answer about a workload. `member` is what was known of it.
    pub fn answered(&mut self, object: &ObjectRef, member: &Member, answer: Answer, now: Timestamp) {
        let is_left = |version: u64, left: &Left| version <= member.version && left.code != Code::Panicked;
        let is_first = !self.answers.contains_key(object);
        if is_first && matches!(&answer, Answer::Left(version, left) if is_left(*version, left)) {
            self.untouched.insert(object.clone());
        } else {
            self.untouched.remove(object);
        }
        match &answer {
            Answer::Done(Done::Patched(_)) => {
                if self.restarts.insert(object.clone(), member.restarts.clone()).is_some() {
                    let (tries, last) = self.tries.get(object).copied().unwrap_or((0, now));
                    let has_held = now.duration_since(last) > HELD;
                    self.tries.insert(object.clone(), (if has_held { 1 } else { tries.saturating_add(1) }, now));
                }
            }
            Answer::NeedsEviction(version, _) => drop(self.not_in_place.insert(object.clone(), *version)),
            Answer::Left(version, left) => drop(self.left.insert(object.clone(), (*version, now, left.clone()))),
            Answer::Blocked(why) => self.wait(object, now, Code::DisruptionBudget, why),
            Answer::Refused(why) => self.wait(object, now, Code::MissingRight, why),
            Answer::Failed(why) => self.wait(object, now, Code::ServerAway, why),
            Answer::Done(Done::Evicted) | Answer::NotNeeded(_) | Answer::Changed(_) => {}
        }
        if matches!(answer, Answer::Done(_) | Answer::NotNeeded(_)) {
            self.waits.remove(object);
        }
        if !matches!(answer, Answer::Left(..) | Answer::Changed(_)) {
            self.left.remove(object);
        }
        self.answers.insert(object.clone(), (member.uid.clone(), now, answer));
    }

    fn wait(&mut self, object: &ObjectRef, now: Timestamp, code: Code, why: &str) {
        // What was asked long ago tells nothing of the time since.
        let lasts = |last: Timestamp, known: &Waiting| known.code == code && now.duration_since(last) <= LATE;
        let since = self.waits.get(object).filter(|(_, last, known)| lasts(*last, known));
        let since = since.map_or(now, |(since, ..)| *since);
        self.waits.insert(object.clone(), (since, now, Waiting { code, why: why.to_owned() }));
    }

    /// What is left as it is, with the reasons.
    pub fn left(&self) -> impl Iterator<Item = (&ObjectRef, &Left)> {
        self.left.iter().map(|(object, (.., left))| (object, left))
    }

    /// What was refused for a reason that may pass: since when, the code, and the reason.
    pub fn waits(&self) -> impl Iterator<Item = (&ObjectRef, Timestamp, Code, &str)> {
        self.waits.iter().map(|(object, (since, _, Waiting { code, why }))| (object, *since, *code, why.as_str()))
    }

    /// The reason that the server gave last for refusing a right, if that was a moment ago.
    pub fn refused(&self, now: Timestamp, again: SignedDuration) -> Option<&str> {
        self.answers.values().find_map(|(_, at, answer)| match answer {
            Answer::Refused(why) if now.duration_since(*at) < again => Some(why.as_str()),
            _ => None,
        })
    }

    /// Looks at everything once. `record` is that of the update revision.
    pub fn look(&mut self, facts: &Facts<'_>, record: &Record) -> Look {
        self.forget_what_is_over(facts);
        self.lapse(facts);
        let mut looking = Looking {
            facts,
            record,
            look: Look { matched: facts.members.len(), ..Look::default() },
            by_owner: HashMap::new(),
            open: self.open(facts, record),
            candidates: Vec::new(),
            missing: HashMap::new(),
            unclear: BTreeSet::new(),
            orphan: None,
            all: Count::default(),
            by_namespace: HashMap::new(),
            are_parts_ready: true,
        };
        for (object, member) in facts.members {
            self.see(&mut looking, object, member);
        }
        looking.count_missing();
        looking.look.unavailable = looking.all.unavailable;
        for failure in self.not_made_again(&looking) {
            looking.fail(Some(failure));
        }
        if looking.look.is_counting {
            return looking.look;
        }
        self.choose(&mut looking);
        looking.look.unfinished = self.unfinished(facts, record);
        looking.look.is_complete = looking.look.remaining == 0
            && looking.open.is_empty()
            && looking.are_parts_ready
            && !looking.missing.keys().any(|owner| {
                let evicted = record.progress.evicted.get(*owner);
                evicted.is_some_and(|evicted| !looking.is_replaced(owner, evicted))
            });
        looking.look
    }

    /// Looks at one workload.
    fn see<'a>(&mut self, looking: &mut Looking<'a>, object: &'a ObjectRef, member: &'a Member) {
        let facts = looking.facts;
        let wanted = facts.wanted(object, member);
        looking.look.is_counting |= *member.revision != *wanted;
        let is_open = looking.open.contains_key(object);
        let is_available = !is_open && self.is_available(object, member, facts, looking.record);
        let is_done = member.is_done(facts.restarted);
        let is_ours = self.restarts.contains_key(object);
        let is_broken = !is_open && !is_available && {
            let was_broken = !is_ours && is_broken_before(member, looking.record, facts);
            was_broken || is_done && looking.record.is_broken(object, member)
        };
        if facts.per_namespace.is_some() {
            looking.by_namespace.entry(&object.namespace).or_default().matched += 1;
        }
        looking.look.ready += usize::from(is_available);
        looking.look.broken += usize::from(is_broken);
        if !is_available && !is_broken {
            // A broken workload is unavailable without the write, too.
            let is_unsent = looking.open.get(object).is_some_and(|(standing, _)| *standing == Standing::Unsent)
                && (self.is_available(object, member, facts, looking.record)
                    || is_broken_before(member, looking.record, facts));
            looking.count(&object.namespace, |count| {
                count.note(1, || words::named(object));
                count.unsent += usize::from(is_unsent);
            });
        }
        if let Some(owner) = facts.owner(object, member) {
            looking.by_owner.entry(owner).or_default().push((object, is_available, is_done || is_open));
        }
        let has_it = member.carries == Carries::This && *member.revision == *facts.update;
        looking.look.updated += usize::from(has_it);
        if is_done {
            if !is_available && (facts.is_in_scope)(object, member) {
                self.see_unavailable(looking, object, member, is_broken);
            }
        } else if self.is_left(object, member, facts) || self.leaves(object, member, (facts, looking.record)) {
            looking.look.left += 1;
        } else if self.left.contains_key(object) {
            // It has changed since. It is tried after all others, so a workload that changes all the time holds up no other.
            looking.look.left += 1;
            looking.offer(is_available, object, member);
        } else if (facts.is_in_scope)(object, member) {
            looking.look.remaining += 1;
            looking.look.again += usize::from(has_it);
            let failure = missed_again(object, member, (facts, looking.record));
            looking.fail(failure);
            // The number of pods that such an owner lacks is not known.
            if facts.held.contains(&object.namespace) {
                looking.look.held += 1;
            } else if facts.is_owner_unknown(object, member) {
                looking.look.orphans += 1;
                looking.orphan.get_or_insert(object);
            } else {
                looking.candidates.push((is_available, object, member));
            }
        }
    }

    /// Looks at one workload that has what it is to have, and is not available.
    fn see_unavailable(&self, looking: &mut Looking<'_>, object: &ObjectRef, member: &Member, is_broken: bool) {
        let (facts, record) = (looking.facts, looking.record);
        // Outside of its scope, and before its begin, the rollout has made nothing unavailable.
        let is_its = self.restarts.contains_key(object)
            || record.is_broken(object, member)
            || !is_unavailable_before(member, record, facts);
        if is_its {
            looking.are_parts_ready &= is_broken || !self.is_part(object, member, facts, record);
            let failure = self.failure(looking, object, member, is_broken);
            looking.fail(failure);
        }
    }

    /// Chooses what to update now.
    fn choose<'a>(&self, looking: &mut Looking<'a>) {
        let facts = looking.facts;
        let rooms = looking.by_namespace.iter().map(|(name, count)| (*name, count.room(facts.limit(count.matched))));
        let mut chosen: Chosen<'a> = Chosen {
            all: looking.all.room(facts.pace.max_unavailable),
            by_namespace: rooms.collect(),
            // No more than a record may have: a reader counts only what the record lists.
            slots: MOST.saturating_sub(looking.open.len()),
            evictions: facts.evictions.saturating_sub(self.overdue(looking)),
            late: facts.evictions,
            broken: MOST.saturating_sub(looking.record.progress.broken.len()),
            owners: BTreeSet::new(),
            blocked: BTreeSet::new(),
            is_limited: false,
            waiting: 0,
            full: None,
            busy: 0,
            beside: None,
            unclear: None,
            shared: None,
            is_crowded: false,
        };
        // What is unavailable anyway comes first, and costs nothing. What was refused comes last, and so do the other pods of its owner: their
        // next attempts must not use up the limit of evictions.
        let mut candidates = std::mem::take(&mut looking.candidates);
        let owners = self.waits.keys().filter_map(|object| facts.owner(object, facts.members.get(object)?));
        let owners: BTreeSet<&Arc<str>> = owners.collect();
        candidates.sort_by_key(|(is_available, object, member)| {
            let is_owner_refused = facts.owner(object, member).is_some_and(|owner| owners.contains(owner));
            let was_refused = self.waits.contains_key(*object) || is_owner_refused;
            let comes_last = (was_refused || self.left.contains_key(*object)) && !looking.open.contains_key(*object);
            (*is_available, comes_last, &object.namespace, &object.kind, &object.name)
        });
        for (_, object, member) in &candidates {
            let waits = self.waits.get(*object).filter(|(_, last, _)| facts.is_recent(*last));
            chosen.blocked.extend(waits.and(facts.owner(object, member)).map(AsRef::as_ref));
        }
        for (is_available, object, member) in candidates {
            if looking.look.next.len() >= BATCH {
                break;
            }
            let next = self.next(looking, &mut chosen, (is_available, object, member));
            looking.look.next.extend(next);
        }
        looking.look.is_limited = chosen.is_limited;
        looking.look.waits = self.waits_of(looking, &chosen);
    }

    /// Whether `object` is to be updated now.
    fn next<'a>(
        &self,
        looking: &Looking<'a>,
        chosen: &mut Chosen<'a>,
        (is_available, object, member): (bool, &'a ObjectRef, &'a Member),
    ) -> Option<Next> {
        let facts = looking.facts;
        let open = looking.open.get(object);
        let is_unneeded = self
            .answers
            .get(object)
            .is_some_and(|(_, at, answer)| matches!(answer, Answer::NotNeeded(_)) && facts.is_recent(*at));
        let is_waiting = is_unneeded || self.waits.get(object).is_some_and(|(_, last, _)| facts.is_recent(*last));
        if open.is_some_and(|(standing, _)| *standing == Standing::Pending) || is_waiting {
            return None;
        }
        let evicts = self.evicts(object, member, facts);
        let next = Next {
            object: object.clone(),
            uid: member.uid.clone(),
            owner: member.owner.clone(),
            may_evict: open.map_or(evicts, |(_, write)| write.evict),
            is_broken: !is_available && open.is_none() && is_broken_before(member, looking.record, facts),
            announced: open.map(|(_, write)| write.at),
            newest: None,
            is_foreign: open.is_some_and(|(_, write)| write.by != facts.leader),
        };
        if let Some((_, write)) = open {
            return self.may_go_on(looking, chosen, (object, member, write)).then_some(next);
        }
        if chosen.slots == 0 {
            chosen.is_crowded = true;
            return None;
        }
        if is_available && !chosen.has_room(&object.namespace, |room| &mut room.new) {
            return None;
        }
        let owner = facts.owner(object, member).filter(|_| evicts);
        if let Some(owner) = owner
            && (self.owner_waits(looking, chosen, (object, owner, None), is_available)
                || chosen.blocked.contains(&**owner))
        {
            return None;
        }
        if evicts && chosen.evictions == 0 {
            chosen.is_limited = true;
            return None;
        }
        // The record has room for so many.
        let is_listed = next.is_broken && !looking.record.is_broken(object, member);
        if is_listed && chosen.broken == 0 && !self.restarts.contains_key(object) {
            return None;
        }
        chosen.broken = chosen.broken.saturating_sub(usize::from(is_listed));
        chosen.evictions -= usize::from(evicts);
        chosen.owners.extend(owner.map(AsRef::as_ref));
        chosen.slots -= 1;
        if is_available {
            chosen.take(&object.namespace, |room| &mut room.new);
        }
        Some(Next { newest: if evicts { looking.newest_of(member) } else { None }, ..next })
    }

    /// Whether `object` is to be evicted, as far as is known.
    fn evicts(&self, object: &ObjectRef, member: &Member, facts: &Facts<'_>) -> bool {
        let must_evict = self.not_in_place.get(object).is_some_and(|version| *version >= member.version);
        // A pod that is to be restarted is not patched first.
        let is_older = facts.restarted.is_some_and(|restarted| member.begun.is_none_or(|begun| begun < restarted));
        must_evict || is_older && object.kind.is_pod() || (facts.way)(object, member) == Way::Evict
    }

    /// Whether an announced write may be sent now. It counts as unavailable already. But several rollouts, of which each has replaced the
    /// one before, may have announced more than one of them may, and other pods of its owner may have gone since.
    fn may_go_on<'a>(
        &self,
        looking: &Looking<'a>,
        chosen: &mut Chosen<'a>,
        (object, member, write): (&'a ObjectRef, &'a Member, &Write),
    ) -> bool {
        let facts = looking.facts;
        let is_late = write.evict && write.is_overdue(facts.now);
        if is_late && chosen.late == 0 {
            chosen.is_limited = true;
            return false;
        }
        let is_available = self.is_available(object, member, facts, looking.record);
        let owner = facts.owner(object, member).filter(|_| write.evict);
        if let Some(owner) = owner
            && self.owner_waits(looking, chosen, (object, owner, Some(write)), is_available)
        {
            return false;
        }
        if is_available {
            if !chosen.has_room(&object.namespace, |room| &mut room.announced) {
                return false;
            }
            chosen.take(&object.namespace, |room| &mut room.announced);
        }
        chosen.owners.extend(owner.map(AsRef::as_ref));
        chosen.late -= usize::from(is_late);
        true
    }

    /// Whether the eviction of the pod `object` of `owner`, which the record may announce, waits for other pods of that owner. Notes for
    /// which.
    fn owner_waits<'a>(
        &self,
        looking: &Looking<'a>,
        chosen: &mut Chosen<'a>,
        (object, owner, write): (&ObjectRef, &'a Arc<str>, Option<&Write>),
        is_available: bool,
    ) -> bool {
        let facts = looking.facts;
        // The controller may wait for one that is not available before it makes the pods that it lacks.
        let may_lack = is_available && looking.may_lack(owner);
        let beside = self.beside(looking, owner, object, (is_available, write.is_some()));
        let is_busy = may_lack || beside.is_some();
        // Of two policies, the one goes on that has announced first. One that could not go on for long waits for all others.
        let is_first = |at: &Timestamp| write.is_some_and(|write| *at >= write.at && !is_old(write.at, facts.now));
        let is_shared = is_available && facts.busy.get(owner).is_some_and(|at| !is_first(at));
        chosen.busy += usize::from(is_busy);
        chosen.beside = chosen.beside.or(beside);
        chosen.shared = chosen.shared.or(is_shared.then_some(owner));
        chosen.unclear = chosen.unclear.or((is_busy && looking.unclear.contains(&**owner)).then_some(owner));
        is_busy || is_shared || chosen.owners.contains(&**owner)
    }

    /// The pod of `owner` for which another one of it, `object`, waits. Of two that are unavailable without an update, one does not wait for
    /// the other; nor does it wait for one that is announced and waits for it. Of two that are announced, one goes first.
    fn beside<'a>(
        &self,
        looking: &Looking<'a>,
        owner: &str,
        object: &ObjectRef,
        (is_available, is_announced): (bool, bool),
    ) -> Option<&'a ObjectRef> {
        let others = looking.by_owner.get(owner).into_iter().flatten();
        let mut others = others.filter(|(other, is_other, _)| *other != object && !is_other);
        let other = others.find(|(other, _, is_new)| match (is_available, is_announced) {
            (true, false) => true,
            (true, true) => !self.is_available_yet(looking, other),
            (false, false) => *is_new && !self.is_available_yet(looking, other),
            (false, true) => *is_new && !self.is_unsent(looking, other),
        });
        other.map(|(other, ..)| *other)
    }

    /// Whether `object` is available, and no leader has sent its announced write.
    fn is_available_yet(&self, looking: &Looking<'_>, object: &ObjectRef) -> bool {
        let Some(member) = looking.facts.members.get(object) else { return false };
        self.is_unsent(looking, object) && self.is_available(object, member, looking.facts, looking.record)
    }

    /// Whether `object` has an announced write that no leader has sent.
    fn is_unsent(&self, looking: &Looking<'_>, object: &ObjectRef) -> bool {
        let facts = looking.facts;
        let Some((Standing::Unsent, write)) = looking.open.get(object) else { return false };
        let is_young = |at: Timestamp| facts.now.duration_since(at) < STALE;
        let has_failed = self
            .answers
            .get(object)
            .is_some_and(|(_, at, answer)| matches!(answer, Answer::Failed(_)) && *at >= write.at && is_young(*at));
        !has_failed && (write.by == facts.leader || !is_young(write.at))
    }

    /// How many evictions were announced more than a minute ago, and may be sent at any moment. Those that wait for other pods of their owner
    /// are none.
    fn overdue(&self, looking: &Looking<'_>) -> usize {
        let facts = looking.facts;
        let writes = looking.record.progress.writes.iter();
        let overdue = writes.filter(|(_, write)| write.evict && write.is_overdue(facts.now));
        let waits = |name: &str| {
            let (object, member) = facts.member(name)?;
            let owner = facts.owner(object, member)?;
            let is_available = self.is_available_yet(looking, object);
            let beside = self.beside(looking, owner, object, (is_available, true));
            Some(is_available && (looking.may_lack(owner) || beside.is_some()))
        };
        overdue.filter(|(name, _)| !waits(name).unwrap_or_default()).count()
    }

    /// Whether the attempt that the record announces under that `name` has written nothing for certain.
    pub fn has_written_nothing(&self, facts: &Facts<'_>, name: &str, write: &Write) -> bool {
        let Some(object) = facts.object(name).filter(|object| self.untouched.contains(object)) else { return false };
        self.answers.get(&object).is_some_and(|(uid, at, _)| **uid == *write.uid && *at >= write.at)
    }

    /// What holds the rollout up.
    fn waits_of(&self, looking: &Looking<'_>, chosen: &Chosen<'_>) -> Vec<String> {
        let (look, facts) = (&looking.look, looking.facts);
        let mut waits = Vec::new();
        let blocked = self.waits.iter().filter(|(object, (_, last, _))| {
            facts.is_recent(*last) && facts.members.get(*object).is_some_and(|member| !member.is_done(facts.restarted))
        });
        let blocked: Vec<_> = blocked.collect();
        if let Some((object, (since, _, Waiting { code, why }))) = blocked.first() {
            waits.push(words::blocked(object, *since, (*code, why), blocked.len()));
        }
        let names = &looking.all.names;
        if chosen.waiting > 0 && look.next.is_empty() {
            waits.push(words::unavailable(look.unavailable, facts.pace.max_unavailable, names));
        } else if let Some((name, count)) =
            chosen.full.filter(|_| look.next.is_empty()).and_then(|name| looking.by_namespace.get_key_value(name))
        {
            waits.push(words::unavailable_in(name, (count.unavailable, facts.limit(count.matched)), &count.names));
        } else if let Some(beside) = chosen.beside.filter(|_| look.next.is_empty()) {
            waits.push(words::beside(beside));
        } else if (look.remaining == 0 || chosen.busy > 0 && look.next.is_empty()) && !names.is_empty() {
            waits.push(words::not_ready(look.unavailable, names));
        }
        let failed = &looking.record.progress.failed;
        if look.held > 0 {
            waits.push(words::held(failed, look.held));
        }
        if chosen.is_limited {
            waits.push(words::LIMITED.to_owned());
        }
        if chosen.is_crowded && look.next.is_empty() {
            waits.push(words::crowded(MOST));
        }
        let unclear = chosen.unclear.filter(|_| look.next.is_empty()).and_then(|uid| facts.owners.get(uid));
        waits.extend(unclear.map(words::unclear));
        let shared = chosen.shared.filter(|_| look.next.is_empty()).and_then(|uid| facts.owners.get(uid));
        waits.extend(shared.map(words::shared));
        if let Some(first) = looking.orphan {
            waits.push(words::orphans(look.orphans, &words::named(first)));
        }
        if look.broken > 0 {
            waits.push(words::broken(look.broken));
        }
        waits
    }

    /// The announced writes that are not over.
    fn open<'a>(&self, facts: &Facts<'a>, record: &'a Record) -> BTreeMap<&'a ObjectRef, (Standing, &'a Write)> {
        let writes = &record.progress.writes;
        if writes.is_empty() {
            return BTreeMap::new();
        }
        let announced = writes.iter().filter_map(|(key, write)| {
            let (object, member) = facts.member(key)?;
            let standing = self.standing(object, member, write, (facts, record));
            (standing != Standing::Over).then_some((object, (standing, write)))
        });
        announced.collect()
    }

    fn standing(
        &self,
        object: &ObjectRef,
        member: &Member,
        write: &Write,
        (facts, record): (&Facts<'_>, &Record),
    ) -> Standing {
        if *member.uid != *write.uid {
            return Standing::Over;
        }
        let pending = |is_pending: bool| if is_pending { Standing::Pending } else { Standing::Over };
        let is_done = member.is_done(facts.restarted);
        let is_seen = || {
            let is_serving = member.health.is_ready && self.is_settled(object, member, write.at, facts.now);
            is_serving || record.is_broken(object, member)
        };
        let is_foreign = write.by != facts.leader;
        let may_be_late = is_foreign && facts.now.duration_since(write.at) < LATE;
        // It brings what another rollout, or the way back, takes away again.
        let is_outdated = is_foreign && facts.now.duration_since(write.at) < STALE && write.at < record.begun(facts);
        let answer = self.answers.get(object).filter(|(uid, at, answer)| {
            let counts = facts.is_recent(*at) || !answer.expects_another(member);
            *uid == member.uid && *at >= write.at && counts
        });
        let Some((_, at, answer)) = answer else {
            return match is_done {
                // We have not written it: an earlier leader has, or a user.
                true => pending(is_outdated || !is_seen()),
                false if facts.may_update(object, member) && !self.is_left(object, member, facts) => Standing::Unsent,
                false => pending(may_be_late),
            };
        };
        let may_again = !facts.is_recent(*at);
        let again = if may_again { Standing::Unsent } else { Standing::Pending };
        match answer {
            _ if is_outdated && is_done => Standing::Pending,
            Answer::Done(Done::Evicted) => Standing::Pending,
            Answer::Done(Done::Patched(version)) => pending(member.version < *version || is_done && !is_seen()),
            Answer::NotNeeded(version) => {
                pending(version.is_none_or(|version| member.version < version) || is_done && !is_seen())
            }
            Answer::Changed(version) => pending(member.version <= *version),
            // The write may have happened: the workload keeps its place until that is known.
            Answer::Failed(_) if is_done => pending(!is_seen()),
            Answer::Failed(_) if may_again && self.is_left(object, member, facts) => pending(may_be_late),
            Answer::Failed(_) => again,
            Answer::Blocked(_) | Answer::NeedsEviction(..) | Answer::Refused(_) if may_be_late => again,
            Answer::Blocked(_) | Answer::NeedsEviction(..) | Answer::Refused(_) | Answer::Left(..) => Standing::Over,
        }
    }

    /// The owners of which a pod may be evicted at any moment, because `record` announces it, whatever else is known of its policy. What
    /// was announced long ago waits for something that may never come, such as the end of a halt.
    pub fn evicting(&self, record: &Record, members: &Members, now: Timestamp) -> Busy {
        let mut busy = Busy::new();
        for (name, write) in record.progress.writes.iter().filter(|(_, write)| write.evict && !is_old(write.at, now)) {
            let place = name.strip_prefix("pods/").and_then(|place| place.split_once('/'));
            let Some((object, member)) = Kind::find("", "pods").zip(place).and_then(|(pods, place)| {
                members.get_key_value(&ObjectRef::new(pods, place)).filter(|(_, member)| *member.uid == *write.uid)
            }) else {
                continue;
            };
            let has_not = |answer: &Answer| answer.is_no_eviction() && !answer.expects_another(member);
            let answer = self.answers.get(object).filter(|(uid, at, _)| *uid == member.uid && *at >= write.at);
            let is_over = answer.is_some_and(|(.., answer)| has_not(answer));
            if let Some(owner) = member.owner.as_ref().filter(|_| !is_over) {
                let first = busy.entry(owner.clone()).or_insert(write.at);
                *first = (*first).min(write.at);
            }
        }
        busy
    }

    /// The writes of `record` that are not over.
    pub fn still_open(&self, facts: &Facts<'_>, record: &Record) -> BTreeMap<String, Write> {
        self.open(facts, record).into_iter().map(|(object, (_, write))| (key(object), write.clone())).collect()
    }

    /// Has some of those that are left tried again, the oldest first. They come after all others.
    fn lapse(&mut self, facts: &Facts<'_>) {
        let (most, pause) = LAPSES;
        if self.lapsed.is_some_and(|at| facts.now.duration_since(at) < pause) {
            return;
        }
        let is_due = |object: &ObjectRef, (version, at, left): &(u64, Timestamp, Left)| {
            // The rest is left for reasons that this leader knows of, or is due already.
            let is_answer = !matches!(version, 0 | &u64::MAX) && left.code != Code::ServerAway;
            let is_wanted = |member: &Member| !member.is_done(facts.restarted) && facts.may_update(object, member);
            is_answer && facts.now.duration_since(*at) >= LEFT && facts.members.get(object).is_some_and(is_wanted)
        };
        let mut due: Vec<_> = self.left.iter_mut().filter(|(object, left)| is_due(object, left)).collect();
        due.sort_by_key(|(_, (_, at, _))| *at);
        for (_, (version, ..)) in due.into_iter().take(most) {
            *version = 0;
            self.lapsed = Some(facts.now);
        }
    }

    /// Forgets what the watches have shown.
    fn forget_what_is_over(&mut self, facts: &Facts<'_>) {
        let is_there = |object: &ObjectRef| facts.members.contains_key(object);
        self.answers.retain(|object, (uid, ..)| facts.members.get(object).is_some_and(|member| member.uid == *uid));
        self.left.retain(|object, _| is_there(object));
        self.not_in_place
            .retain(|object, version| facts.members.get(object).is_some_and(|member| member.version <= *version));
        self.restarts.retain(|object, _| is_there(object));
        self.waits.retain(|object, _| is_there(object));
        self.tries.retain(|object, _| is_there(object));
        let is_unsettled =
            |object: &ObjectRef| facts.members.get(object).is_some_and(|member| !member.health.is_settled);
        self.unsettled.retain(|object, _| is_unsettled(object));
        let is_unready = |object: &ObjectRef| facts.members.get(object).is_some_and(|member| !member.health.is_ready);
        self.unready.retain(|object, _| is_unready(object));
        for (object, member) in facts.members {
            // Most are known already: their names are not copied at each look.
            for (is_over, since) in
                [(member.health.is_settled, &mut self.unsettled), (member.health.is_ready, &mut self.unready)]
            {
                if !is_over && !since.contains_key(object) {
                    since.insert(object.clone(), facts.now);
                }
            }
        }
    }

    fn is_available(&self, object: &ObjectRef, member: &Member, facts: &Facts<'_>, record: &Record) -> bool {
        let since = ready_since(member, facts.now);
        let has_been_ready = since.is_none_or(|since| facts.now.duration_since(since) >= facts.pace.min_ready);
        member.health.is_ready && has_been_ready && self.is_settled(object, member, record.begun(facts), facts.now)
    }

    /// Whether the kubelet has acted on what was announced `at` that time, and may have been written long after.
    fn is_settled(&self, object: &ObjectRef, member: &Member, at: Timestamp, now: Timestamp) -> bool {
        let written = self.answers.get(object).map(|(_, at, _)| *at);
        let last = [self.unsettled.get(object).copied(), written].into_iter().flatten().fold(at, Timestamp::max);
        member.health.is_settled || now.duration_since(last) >= member.health.grace.saturating_add(UNSAID)
    }

    /// Whether the workload is left as it is: in this version, or because the last attempt was a moment ago. A status may change
    /// every second.
    fn is_left(&self, object: &ObjectRef, member: &Member, facts: &Facts<'_>) -> bool {
        self.left.get(object).is_some_and(|(version, at, _)| *version >= member.version || facts.is_recent(*at))
    }

    /// Leaves a pod that would have to be evicted although its owner would make no other one; what was broken before, if the record has no
    /// room for it; a pod that has the sidecar from the pod template of its owner, because every replacement would have it, too; a pod
    /// that came without the revision in place of an evicted one, if the rollout cannot fail by that; a workload whose template another
    /// client puts back; and one for which the server has given no answer for a whole deadline.
    fn leaves(&mut self, object: &ObjectRef, member: &Member, (facts, record): (&Facts<'_>, &Record)) -> bool {
        let owner = facts.owner(object, member).and_then(|owner| facts.owners.get(owner));
        let missed = || missed_again(object, member, (facts, record)).filter(|_| !facts.can_fail);
        let must_be_evicted = || self.not_in_place.contains_key(object) || (facts.way)(object, member) == Way::Evict;
        let cannot_make = |owner: &Owner| owner.fails_since.is_some_and(|since| record.is_long_before(since, facts));
        let has_no_place = || {
            let may_be_kept = record.progress.broken.len() < MOST || record.is_broken(object, member);
            !may_be_kept && !self.restarts.contains_key(object) && is_broken_before(member, record, facts)
        };
        let (version, code, message) = if let Some(owner) = owner.filter(|owner| owner.desired == 0) {
            (0, Code::NotRecreated, format!("{owner} keeps no pods, or is being deleted"))
        } else if let Some(owner) = owner.filter(|owner| owner.astray > 0 && must_be_evicted()) {
            let message = format!("{owner} has {} pods on nodes where it would make none again", owner.astray);
            (0, Code::NotRecreated, message)
        } else if let Some(owner) = owner.filter(|owner| cannot_make(owner) && must_be_evicted()) {
            (0, Code::NotRecreated, format!("{owner} makes no pods: see its condition `ReplicaFailure`"))
        } else if let Some(owner) = owner.filter(|owner| owner.carried.contains(facts.policy)) {
            let message = format!("{owner} has it in its own pod template, which the pod follows");
            (member.version, Code::ContentOfOwner, message)
        } else if self.tries.get(object).is_some_and(|(tries, _)| *tries >= TRIES) {
            // A template that is put back changes again and again.
            (u64::MAX, Code::ReplacementMissed, words::put_back(TRIES))
        } else if has_no_place() {
            (member.version, Code::ReplacementNotReady, words::too_many_broken(MOST))
        } else if let Some(missed) = missed() {
            (u64::MAX, missed.code, missed.message)
        } else if let Some(why) = self.unanswered(object, facts) {
            // Once it changes, it is tried for a whole deadline again.
            self.waits.remove(object);
            (member.version, Code::ServerAway, why)
        } else {
            return false;
        };
        self.left.insert(object.clone(), (version, facts.now, Left { code, message }));
        true
    }

    /// What the server says, if it has refused to answer about this workload for a whole deadline.
    fn unanswered(&self, object: &ObjectRef, facts: &Facts<'_>) -> Option<String> {
        let (since, last, Waiting { code, why }) = self.waits.get(object)?;
        let is_long = last.duration_since(*since) > facts.pace.deadline;
        (*code == Code::ServerAway && is_long).then(|| why.clone())
    }

    /// Whether the rollout has made the workload what it is. A workload that came later is its author's.
    fn is_part(&self, object: &ObjectRef, member: &Member, facts: &Facts<'_>, record: &Record) -> bool {
        let since = record.begun(facts);
        let is_older = |created: Option<Timestamp>| created.is_some_and(|created| created < since);
        let owner = facts.owner(object, member).and_then(|owner| facts.owners.get(owner));
        self.restarts.contains_key(object)
            || record.progress.writes.get(&key(object)).is_some_and(|write| *write.uid == *member.uid)
            || facts.owner(object, member).is_some_and(|owner| record.progress.evicted.contains_key(&**owner))
            || is_older(member.created)
            || owner.is_some_and(|owner| is_older(owner.created))
    }

    /// Why an updated workload that is not available has failed; none if it may still become available.
    fn failure(&self, looking: &Looking<'_>, object: &ObjectRef, member: &Member, is_broken: bool) -> Option<Failure> {
        let (facts, record) = (looking.facts, looking.record);
        if !self.is_part(object, member, facts, record) {
            return None;
        }
        let fail = |message: String| Some(Failure { object: object.clone(), code: Code::ReplacementNotReady, message });
        let begun = record.begun(facts);
        // A kubelet may wait for minutes before it tries again what a person has mended.
        let has_time = !self.restarts.contains_key(object)
            && record.progress.resumed_at.is_some_and(|resumed| {
                let is_older = member.created.is_none_or(|created| created < resumed);
                is_older && facts.now.duration_since(resumed) <= facts.pace.deadline
            });
        if has_time {
            return None;
        }
        // Until the kubelet has acted on the update, its reason is that of the content before.
        let written =
            self.answers.get(object).filter(|(_, _, answer)| matches!(answer, Answer::Done(_))).map(|(_, at, _)| *at);
        let has_acted = self.is_settled(object, member, written.unwrap_or(begun), facts.now);
        if let Some(stuck) = (facts.stuck)(object).filter(|_| has_acted) {
            return fail(stuck);
        }
        let before = self.restarts.get(object);
        let restarts = restarts_since(member, before.map(Vec::as_slice));
        if restarts > RESTARTS && !(before.is_none() && member.created.is_some_and(|created| created < begun)) {
            return fail(format!("its sidecar has been restarted {restarts} times since the update"));
        }
        let announced = looking.open.get(object).map(|(_, write)| write.at);
        let since = announced.or(ready_since(member, facts.now)).or(member.created.filter(|created| *created >= begun));
        // A resume gives it as much time again, what an earlier rollout has announced is written in this one, and what was available in
        // between is not so since a moment ago.
        let seen = match member.health.is_ready {
            true => self.unsettled.get(object).copied(),
            false => ready_since(member, facts.now).or(self.unready.get(object).copied()),
        };
        let since = since.map(|since| {
            let later = [record.progress.resumed_at, written, Some(begun), seen];
            later.into_iter().flatten().fold(since, Timestamp::max)
        });
        let limit = facts.pace.deadline;
        since
            .filter(|since| !is_broken && facts.now.duration_since(*since) > limit)
            .and_then(|_| fail(format!("it is not ready after {limit:#}")))
    }

    /// The evicted pods that have not been replaced in time.
    fn not_made_again(&mut self, looking: &Looking<'_>) -> Vec<Failure> {
        let (facts, record) = (looking.facts, looking.record);
        self.lacking.retain(|owner, _| looking.missing.contains_key(&**owner));
        for owner in looking.missing.keys() {
            self.lacking.entry(Arc::from(*owner)).or_insert(facts.now);
        }
        let is_late = |owner: &str, evicted: &Evicted| {
            let seen = self.lacking.get(owner).is_some_and(|since| {
                let since = (*since).max(evicted.at).max(record.progress.resumed_at.unwrap_or(*since));
                facts.now.duration_since(since) > facts.pace.deadline
            });
            // What it lacks besides is no fault of ours.
            seen && !looking.is_replaced(owner, evicted)
                && !record.progress.broken.contains(owner)
                && evicted.is_gone(facts)
        };
        let is_in_scope = |owner: &str| {
            let mut pods = looking.by_owner.get(owner).into_iter().flatten().peekable();
            let is_its =
                |object: &ObjectRef| facts.members.get(object).map(|member| (facts.is_in_scope)(object, member));
            pods.peek().is_none() || pods.any(|(object, ..)| is_its(object).unwrap_or_default())
        };
        let evicted = record.progress.evicted.iter().filter(|(owner, _)| is_in_scope(owner));
        let late = evicted.filter(|(owner, evicted)| is_late(owner, evicted));
        let failure = |(owner, evicted): (&String, &Evicted)| {
            let owner = facts.owners.get(owner.as_str()).map(ToString::to_string).unwrap_or_default();
            let message = format!("{owner} has made no new pod in its place after {:#}", facts.pace.deadline);
            Some(Failure { object: facts.object(&evicted.pod)?, code: Code::ReplacementNotReady, message })
        };
        late.filter_map(failure).collect()
    }

    /// The owners of the evictions of `record` that do not have all their pods again, up to date and available.
    fn unfinished(&self, facts: &Facts<'_>, record: &Record) -> BTreeSet<String> {
        let evicted = &record.progress.evicted;
        if evicted.is_empty() {
            return BTreeSet::new();
        }
        let mut whole: HashMap<&str, (usize, bool)> = HashMap::new();
        for (object, member) in facts.members {
            let owner = facts.owner(object, member).filter(|owner| evicted.contains_key(&***owner));
            let Some(owner) = owner.map(AsRef::as_ref) else { continue };
            let (count, are_available) = whole.entry(owner).or_insert((0, true));
            *count += 1;
            // One that was missed is the reason to remember the eviction: another one would not change that.
            let is_left = || self.left.get(object).is_some_and(|(.., left)| left.code != Code::ReplacementMissed);
            let is_over = member.is_done(facts.restarted) || is_left();
            *are_available &= is_over && self.is_available(object, member, facts, record);
        }
        let is_whole = |uid: &str, owner: &Owner| {
            let beside = facts.beside.get(uid).copied().unwrap_or_default();
            let (count, are_available) = whole.get(uid).copied().unwrap_or((0, true));
            are_available && count.saturating_add(beside) >= owner.pods()
        };
        let is_unfinished = |uid: &str| facts.owners.get(uid).is_some_and(|owner| !is_whole(uid, owner));
        evicted.keys().filter(|uid| is_unfinished(uid)).cloned().collect()
    }
}

/// Whether what was announced `at` that time may wait for something that never comes.
fn is_old(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at) >= LATE
}

/// The replacement of an evicted pod that does not carry the update revision. Another eviction would not change that.
fn missed_again(object: &ObjectRef, member: &Member, (facts, record): (&Facts<'_>, &Record)) -> Option<Failure> {
    let evicted = record.progress.evicted.get(&**facts.owner(object, member)?)?;
    let is_missed = member.carries != Carries::This && evicted.is_before(member);
    (is_missed && evicted.uid != *member.uid && evicted.is_gone(facts)).then(|| {
        let message = "it replaces an evicted pod, and has not got the update revision".to_owned();
        Failure { object: object.clone(), code: Code::ReplacementMissed, message }
    })
}

impl Evicted {
    /// Whether `pod`, of the same owner, was created after this eviction was announced.
    fn is_before(&self, pod: &Member) -> bool {
        pod.created.is_some_and(|created| match self.newest {
            Some(newest) => created > newest,
            // Times of creation are whole seconds.
            None => created.as_second() > self.at.as_second(),
        })
    }

    /// Whether the pod is not there any more.
    fn is_gone(&self, facts: &Facts<'_>) -> bool {
        facts.member(&self.pod).is_none_or(|(_, member)| *member.uid != *self.uid)
    }
}

/// What may still be chosen.
struct Chosen<'a> {
    all: Room,
    /// The same in each namespace, if the policy limits that.
    by_namespace: HashMap<&'a str, Room>,
    slots: usize,
    evictions: usize,
    /// How many evictions may be done that were announced more than a minute ago. The announcements count no more.
    late: usize,
    /// How many more the record can list as broken before.
    broken: usize,
    /// The owners of which a pod is chosen.
    owners: BTreeSet<&'a str>,
    /// The owners of pods that wait.
    blocked: BTreeSet<&'a str>,
    is_limited: bool,
    /// How many wait because of `maxUnavailable`.
    waiting: usize,
    /// The first namespace in which something waits because of `maxUnavailablePerNamespace`.
    full: Option<&'a str>,
    /// How many wait because their owner lacks another pod.
    busy: usize,
    /// The first pod that is not available, and for which another one of its owner waits.
    beside: Option<&'a ObjectRef>,
    /// The first owner of these that has more pods than it is known to want.
    unclear: Option<&'a str>,
    /// The first owner of which another policy may be evicting a pod.
    shared: Option<&'a str>,
    /// Whether something waits because the record has no room.
    is_crowded: bool,
}

impl<'a> Chosen<'a> {
    /// Whether one more available workload of `namespace` may be updated. Notes what it waits for.
    fn has_room(&mut self, namespace: &'a str, which: impl Fn(&mut Room) -> &mut usize) -> bool {
        if *which(&mut self.all) == 0 {
            self.waiting += 1;
            return false;
        }
        let is_full = self.by_namespace.get_mut(namespace).is_some_and(|room| *which(room) == 0);
        if is_full {
            self.full.get_or_insert(namespace);
        }
        !is_full
    }

    fn take(&mut self, namespace: &str, which: impl Fn(&mut Room) -> &mut usize) {
        for room in [Some(&mut self.all), self.by_namespace.get_mut(namespace)].into_iter().flatten() {
            let left = which(room);
            *left = left.saturating_sub(1);
        }
    }
}

impl<'a> Looking<'a> {
    /// Counts for all namespaces, and for `namespace` if the policy limits that.
    fn count(&mut self, namespace: &'a str, count: impl Fn(&mut Count)) {
        count(&mut self.all);
        if self.facts.per_namespace.is_some() {
            count(self.by_namespace.entry(namespace).or_default());
        }
    }

    /// Whether `owner` lacks pods, or may delete one.
    fn may_lack(&self, owner: &str) -> bool {
        self.missing.contains_key(owner) || self.unclear.contains(owner)
    }

    /// Has a workload wait for its turn.
    fn offer(&mut self, is_available: bool, object: &'a ObjectRef, member: &'a Member) {
        let facts = self.facts;
        let is_held = facts.held.contains(&object.namespace) || facts.is_owner_unknown(object, member);
        if (facts.is_in_scope)(object, member) && !is_held {
            self.candidates.push((is_available, object, member));
        }
    }

    /// Whether `owner` has made another pod since it lost the one that was `evicted`.
    fn is_replaced(&self, owner: &str, evicted: &Evicted) -> bool {
        let mut pods = self.by_owner.get(owner).into_iter().flatten();
        pods.any(|(object, ..)| self.facts.members.get(*object).is_some_and(|pod| evicted.is_before(pod)))
    }

    /// When the newest pod of the owner of `member` was created.
    fn newest_of(&self, member: &Member) -> Option<Timestamp> {
        let pods = self.by_owner.get(member.owner.as_deref()?)?;
        pods.iter().filter_map(|(object, ..)| self.facts.members.get(*object)?.created).max()
    }

    /// Keeps a failure that is news.
    fn fail(&mut self, failure: Option<Failure>) {
        let is_news = |failure: &Failure| !self.record.progress.failed.contains(&key(&failure.object));
        let has_room = self.look.failures.len() < FAILURES;
        self.look.failures.extend(failure.filter(|failure| has_room && is_news(failure)));
    }

    /// Counts the pods that owners lack.
    fn count_missing(&mut self) {
        let facts = self.facts;
        // A pod may match by what its template does not have.
        let is_ours = |uid: &str, owner: &Owner| {
            let evicted = &self.record.progress.evicted;
            owner.policies.contains(facts.policy) || self.by_owner.contains_key(uid) || evicted.contains_key(uid)
        };
        let owners: Vec<_> = facts.owners.iter().filter(|(uid, owner)| is_ours(uid, owner)).collect();
        for (uid, owner) in owners {
            let there = self.by_owner.get(&**uid).map_or(0, Vec::len);
            let there = there.saturating_add(facts.beside.get(uid).copied().unwrap_or_default());
            if there > owner.pods() {
                self.unclear.insert(uid);
            }
            let missing = owner.pods().saturating_sub(there);
            if missing > 0 && owner.fails_since.is_some_and(|since| self.record.is_long_before(since, facts)) {
                self.look.broken = self.look.broken.saturating_add(missing);
            } else if missing > 0 {
                self.missing.insert(uid, missing);
                self.count(&owner.namespace, |count| count.note(missing, || format!("{owner}, which lacks {missing}")));
            }
        }
    }
}

impl Record {
    /// When the rollout, or its way back, began.
    pub(super) fn begun(&self, facts: &Facts<'_>) -> Timestamp {
        let undone = self.reached.as_ref().filter(|reached| reached.undone).map(|reached| reached.since);
        undone.or(self.progress.begun).unwrap_or(facts.created)
    }

    /// Since when workloads may be unavailable on our account.
    fn disturbed(&self, facts: &Facts<'_>) -> Timestamp {
        let begun = self.progress.begun.filter(|_| self.progress.ended.is_none());
        let written = self.progress.writes.values().map(|write| write.at).min();
        self.progress.disturbed.or(begun).or(written).unwrap_or(facts.now)
    }

    /// Whether `since` is before the time from which workloads may be unavailable on our account. A status has whole seconds.
    fn is_before(&self, since: Timestamp, facts: &Facts<'_>) -> bool {
        since.as_second() < self.disturbed(facts).as_second()
    }

    /// The same, and a whole deadline ago. What is unavailable for a shorter time may be on its way.
    fn is_long_before(&self, since: Timestamp, facts: &Facts<'_>) -> bool {
        self.is_before(since, facts) && facts.now.duration_since(since) >= facts.pace.deadline
    }

    /// Whether `member` is unavailable, and the rollout need not be the reason: it has not brought its content there.
    fn may_excuse(&self, member: &Member, facts: &Facts<'_>) -> bool {
        let has_it = || member.carries == Carries::This && *member.revision == *facts.update;
        let is_its_own = self.progress.is_new && self.complete.is_none() && has_it();
        !member.health.is_ready && !is_its_own
    }

    /// Whether the workload was unavailable before it was updated.
    fn is_broken(&self, object: &ObjectRef, member: &Member) -> bool {
        let broken = &self.progress.broken;
        !broken.is_empty()
            && (broken.contains(&key(object)) || member.owner.as_ref().is_some_and(|owner| broken.contains(&**owner)))
    }
}

/// Whether `member`, which is unavailable, was so before the rollout began, and before any other that it replaced, as far as its status
/// tells.
fn is_unavailable_before(member: &Member, record: &Record, facts: &Facts<'_>) -> bool {
    record.may_excuse(member, facts) && member.health.since.is_some_and(|since| record.is_before(since, facts))
}

/// The same for a whole deadline.
fn is_broken_before(member: &Member, record: &Record, facts: &Facts<'_>) -> bool {
    record.may_excuse(member, facts) && member.health.since.is_some_and(|since| record.is_long_before(since, facts))
}

/// The most restarts of one container since the pod had `before`; of all if it was made anew. An update restarts each once.
fn restarts_since(member: &Member, before: Option<&[(Arc<str>, u32)]>) -> u32 {
    let since = |(name, count): &(Arc<str>, u32)| match before {
        Some(before) => {
            let before = before.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count);
            count.saturating_sub(before.saturating_add(1))
        }
        None => *count,
    };
    member.restarts.iter().map(since).max().unwrap_or_default()
}

/// Since when the workload is ready, or not ready, as its status says. Its creation, if the status has a time that cannot be.
fn ready_since(member: &Member, now: Timestamp) -> Option<Timestamp> {
    let since = member.health.since?;
    if since.duration_since(now) <= AHEAD { Some(since) } else { member.created }
}
