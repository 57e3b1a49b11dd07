//! What this leader has learnt about single workloads: from answers, and from what the watches have shown since.
//!
//! # Guarantees
//! - All of it may be lost: another leader decides the same from the record and the watches, only later.
//! - What is remembered of a workload ends with it: another one of the same name, or a later version, is judged anew.

use crate::api::code::Code;
use crate::rollout::answer::{Answer, Done, Left};
use crate::rollout::facts::Facts;
use crate::rollout::member::Member;
use crate::workload::ObjectRef;
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What another client puts back later than this after a patch is no answer to that patch: the default of `progressDeadlineSeconds`.
const HELD: SignedDuration = SignedDuration::from_secs(600);

/// How long another leader's announced write may still happen, if we cannot do it ourselves: longer than any request and any election.
pub(super) const LATE: SignedDuration = SignedDuration::from_secs(600);

/// What this leader has learnt during the rollout of one revision. All of it may be lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    pub(super) answers: BTreeMap<ObjectRef, (Arc<str>, Timestamp, Answer)>,
    /// The restarts of patched pods when they were patched.
    pub(super) restarts: BTreeMap<ObjectRef, Vec<(Arc<str>, u32)>>,
    /// What cannot be brought up to date, in which version, and when that was found. Version 0: it is judged again at the next look.
    /// `u64::MAX`: it stays left in every version.
    pub(super) left: BTreeMap<ObjectRef, (u64, Timestamp, Left)>,
    /// What was left at the first attempt since it was announced, in the version in which it was known: nothing was written.
    pub(super) untouched: BTreeSet<ObjectRef>,
    /// When some of them were last tried again that had not changed.
    pub(super) lapsed: Option<Timestamp>,
    /// What can only be evicted, in which version.
    pub(super) not_in_place: BTreeMap<ObjectRef, u64>,
    /// What was refused for a reason that may pass: since when, when last, and the reason.
    pub(super) waits: BTreeMap<ObjectRef, (Timestamp, Timestamp, Waiting)>,
    /// How often a workload was patched that had lost it again, each time soon after the time before, and when last.
    pub(super) tries: BTreeMap<ObjectRef, (u32, Timestamp)>,
    /// The owners that lack pods, and when this leader first saw that. An owner also lacks a pod while a node is drained.
    pub(super) lacking: BTreeMap<Arc<str>, Timestamp>,
    /// What does not run what its spec asks for, and since when we see that.
    pub(super) unsettled: BTreeMap<ObjectRef, Timestamp>,
    /// What is not ready, and since when we see that.
    pub(super) unready: BTreeMap<ObjectRef, Timestamp>,
}

/// Why a workload waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    pub(super) code: Code,
    /// The words of the server.
    pub(super) why: String,
}

impl Memory {
    /// Forgets what concerns only the rollout that was, and keeps what may still be going on.
    pub fn begin(&mut self) {
        let (answers, unsettled) = (std::mem::take(&mut self.answers), std::mem::take(&mut self.unsettled));
        let unready = std::mem::take(&mut self.unready);
        *self = Self { answers, unsettled, unready, ..Self::default() };
    }

    /// Forgets the answer about a workload whose next write is announced now: the clock may have been put back since.
    pub(in crate::rollout) fn announce(&mut self, object: &ObjectRef) {
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

    /// Forgets what the watches have shown.
    pub(super) fn forget_what_is_over(&mut self, facts: &Facts<'_>) {
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
}
