//! What this leader has learnt about single workloads: from answers, and from what the watches have shown since.
//!
//! # Guarantees
//! - All of it may be lost: another leader decides the same from the record and the watches, only later.
//! - What is remembered of a workload ends with it: another one of the same name, or a later version, is judged anew.

use crate::api::code::Code;
use crate::rollout::answer::{Answer, Done, Why};
use crate::rollout::facts::Facts;
use crate::rollout::member::Member;
use crate::rollout::record::Write;
use crate::workload::ObjectRef;
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What another client puts back later than this after a patch is no answer to that patch: the default of `progressDeadlineSeconds`.
pub(super) const HELD: SignedDuration = SignedDuration::from_secs(600);

/// How long another leader's announced write may still happen, if we cannot do it ourselves: longer than any request and any election.
pub(super) const LATE: SignedDuration = SignedDuration::from_secs(600);

/// What this leader has learnt during the rollout of one revision. All of it may be lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    pub(super) answers: BTreeMap<ObjectRef, Answered>,
    /// The restarts of patched pods when they were patched.
    pub(super) restarts: BTreeMap<ObjectRef, Vec<(Arc<str>, u32)>>,
    /// What cannot be brought up to date, in which version, and when that was found. Version 0: it is judged again at the next look.
    /// `u64::MAX`: it stays left in every version.
    pub(super) left: BTreeMap<ObjectRef, (u64, Timestamp, Why)>,
    /// When some of them were last tried again that had not changed.
    pub(super) lapsed: Option<Timestamp>,
    /// What can only be evicted, in which version.
    pub(super) not_in_place: BTreeMap<ObjectRef, u64>,
    /// What was refused for a reason that may pass: since when, when last, and the reason.
    pub(super) waits: BTreeMap<ObjectRef, (Timestamp, Timestamp, Why)>,
    /// How often a workload was patched that had lost it again, each time soon after the time before, and when last.
    pub(super) tries: BTreeMap<ObjectRef, (u32, Timestamp)>,
    /// The owners that lack pods, and when this leader first saw that. An owner also lacks a pod while a node is drained.
    pub(super) lacking: BTreeMap<Arc<str>, Timestamp>,
    /// What does not run what its spec asks for, and since when we see that.
    pub(super) unsettled: BTreeMap<ObjectRef, Timestamp>,
    /// What is not ready, and since when we see that.
    pub(super) unready: BTreeMap<ObjectRef, Timestamp>,
    /// What is not ready, and when a person was last asked to do something about it.
    pub(super) asked: BTreeMap<ObjectRef, Timestamp>,
}

/// The last answer about a workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Answered {
    /// The UID of the workload.
    pub(super) uid: Arc<str>,
    pub(super) at: Timestamp,
    pub(super) answer: Answer,
    /// Whether nothing was written: it was left at the first attempt since it was announced, in the version in which it was known.
    pub(super) is_untouched: bool,
}

impl Memory {
    /// Forgets what concerns only the rollout that was, and keeps what may still be going on.
    pub fn begin(&mut self) {
        let Self { mut answers, unsettled, unready, .. } = std::mem::take(self);
        answers.values_mut().for_each(|answered| answered.is_untouched = false);
        *self = Self { answers, unsettled, unready, ..Self::default() };
    }

    /// Forgets the answer about a workload whose next write is announced now: the clock may have been put back since.
    pub(in crate::rollout) fn announce(&mut self, object: &ObjectRef) {
        self.answers.remove(object);
    }

    /// Records the answer about a workload. `member` is what was known of it.
    pub fn answered(&mut self, object: &ObjectRef, member: &Member, answer: Answer, now: Timestamp) {
        let is_left = |version: u64, why: &Why| version <= member.version && why.code != Code::Panicked;
        let is_untouched = !self.answers.contains_key(object)
            && matches!(&answer, Answer::Left(version, why) if is_left(*version, why));
        match &answer {
            Answer::Done(Done::Patched(_)) => {
                if self.restarts.insert(object.clone(), member.restarts.clone()).is_some() {
                    let (tries, last) = self.tries.get(object).copied().unwrap_or((0, now));
                    let has_held = now.duration_since(last) > HELD;
                    self.tries.insert(object.clone(), (if has_held { 1 } else { tries.saturating_add(1) }, now));
                }
            }
            Answer::NeedsEviction(version, _) => drop(self.not_in_place.insert(object.clone(), *version)),
            Answer::Left(version, why) => {
                // What is put back changes again and again.
                let version = if why.code == Code::PutBack { u64::MAX } else { *version };
                self.left.insert(object.clone(), (version, now, why.clone()));
            }
            Answer::Blocked(words) => self.wait(object, now, Code::DisruptionBudget, words),
            Answer::Refused(words) => self.wait(object, now, Code::MissingRight, words),
            Answer::Failed(words) => self.wait(object, now, Code::ServerAway, words),
            Answer::Done(Done::Evicted) | Answer::NotNeeded(_) | Answer::Changed(_) => {}
        }
        if matches!(answer, Answer::Done(_) | Answer::NotNeeded(_)) {
            self.waits.remove(object);
        }
        if !matches!(answer, Answer::Left(..) | Answer::Changed(_)) {
            self.left.remove(object);
        }
        self.answers.insert(object.clone(), Answered { uid: member.uid.clone(), at: now, answer, is_untouched });
    }

    /// The last answer about `object` since `write` was announced.
    pub(super) fn answer_to(&self, object: &ObjectRef, write: &Write) -> Option<&Answered> {
        self.answers.get(object).filter(|last| *last.uid == *write.uid && last.at >= write.at)
    }

    fn wait(&mut self, object: &ObjectRef, now: Timestamp, code: Code, words: &str) {
        // What was asked long ago tells nothing of the time since.
        let lasts = |last: Timestamp, known: &Why| known.code == code && now.duration_since(last) <= LATE;
        let since = self.waits.get(object).filter(|(_, last, known)| lasts(*last, known));
        let since = since.map_or(now, |(since, ..)| *since);
        self.waits.insert(object.clone(), (since, now, Why { code, message: words.to_owned() }));
    }

    /// What is left as it is, with the reasons.
    pub fn left(&self) -> impl Iterator<Item = (&ObjectRef, &Why)> {
        self.left.iter().map(|(object, (.., why))| (object, why))
    }

    /// What was refused for a reason that may pass: since when, and the reason.
    pub fn waits(&self) -> impl Iterator<Item = (&ObjectRef, Timestamp, &Why)> {
        self.waits.iter().map(|(object, (since, _, why))| (object, *since, why))
    }

    /// The reason that the server gave last for refusing a right, if that was a moment ago.
    pub fn refused(&self, now: Timestamp, again: SignedDuration) -> Option<&str> {
        self.answers.values().find_map(|Answered { at, answer, .. }| match answer {
            Answer::Refused(words) if now.duration_since(*at) < again => Some(words.as_str()),
            _ => None,
        })
    }

    /// Forgets what the watches have shown.
    pub(super) fn forget_what_is_over(&mut self, facts: &Facts<'_>) {
        let member = |object: &ObjectRef| facts.members.get(object);
        self.answers.retain(|object, answered| member(object).is_some_and(|member| member.uid == answered.uid));
        self.left.retain(|object, _| member(object).is_some());
        self.not_in_place.retain(|object, version| member(object).is_some_and(|member| member.version <= *version));
        self.restarts.retain(|object, _| member(object).is_some());
        self.waits.retain(|object, _| member(object).is_some());
        self.tries.retain(|object, _| member(object).is_some());
        self.unsettled.retain(|object, _| member(object).is_some_and(|member| !member.health.is_settled));
        self.unready.retain(|object, _| member(object).is_some_and(|member| !member.health.is_ready));
        self.asked.retain(|object, _| self.unready.contains_key(object));
        let is_asked = |object: &ObjectRef| !object.kind.is_pod() && (facts.queries.by_hand)(object).is_some();
        self.asked
            .extend(self.unready.keys().filter(|object| is_asked(object)).map(|object| (object.clone(), facts.now)));
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
