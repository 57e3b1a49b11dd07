//! What has failed, and which evictions are not made good yet.
//!
//! # Guarantees
//! - A workload fails only by what the rollout did to it: not outside of its scope, not before its begin, and not as its author made it.
//! - A failure is known to every leader: it follows from the record and from what the watches show.

use super::available::ready_since;
use super::looking::Looking;
use super::memory::Memory;
use crate::api::code::Code;
use crate::refit::Carries;
use crate::rollout::answer::Answer;
use crate::rollout::facts::{Facts, key};
use crate::rollout::look::Failure;
use crate::rollout::member::{Member, Owner};
use crate::rollout::record::Evicted;
use crate::workload::ObjectRef;
use jiff::Timestamp;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The most restarts of a container of the policy after its update.
const RESTARTS: u32 = 3;

impl Memory {
    /// Why an updated workload that is not available has failed; none if it may still become available.
    pub(super) fn failure(
        &self,
        looking: &Looking<'_>,
        object: &ObjectRef,
        member: &Member,
        is_broken: bool,
    ) -> Option<Failure> {
        let (facts, record) = (looking.facts, looking.facts.record);
        if !self.is_part(object, member, facts) {
            return None;
        }
        let fail = |message: String| Some(Failure { object: object.clone(), code: Code::ReplacementNotReady, message });
        let begun = facts.since();
        // A kubelet may wait for minutes before it tries again what a person has mended.
        let has_time = !self.restarts.contains_key(object)
            && record.progress.followed.resumed_at.is_some_and(|resumed| {
                let is_older = member.created.is_none_or(|created| created < resumed);
                is_older && facts.now.duration_since(resumed) <= facts.pace.deadline
            });
        if has_time {
            return None;
        }
        // Until the kubelet has acted on the update, its reason is that of the content before.
        let written = self.answers.get(object).filter(|last| matches!(last.answer, Answer::Done(_)));
        let written = written.map(|last| last.at);
        let has_acted = self.is_settled(object, member, written.unwrap_or(begun), facts.now);
        if let Some(stuck) = (facts.queries.stuck)(object).filter(|_| has_acted) {
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
            // Once a person has done what is asked for, it has as much time again.
            let asked = self.asked.get(object).copied();
            let later = [record.progress.followed.resumed_at, written, Some(begun), seen, asked];
            later.into_iter().flatten().fold(since, Timestamp::max)
        });
        let limit = facts.pace.deadline;
        // What its controller waits for has another content.
        let waits = || (facts.queries.by_hand)(object).is_some();
        since
            .filter(|since| !is_broken && facts.now.duration_since(*since) > limit && !waits())
            .and_then(|_| fail(format!("it is not ready after {limit:#}")))
    }

    /// Whether the rollout has made the workload what it is. A workload that came later is its author's.
    pub(super) fn is_part(&self, object: &ObjectRef, member: &Member, facts: &Facts<'_>) -> bool {
        let since = facts.since();
        let is_older = |created: Option<Timestamp>| created.is_some_and(|created| created < since);
        let owner = facts.owner(object, member).and_then(|owner| facts.makers.owners.get(owner));
        self.restarts.contains_key(object)
            || facts.record.progress.writes.get(&key(object)).is_some_and(|write| *write.uid == *member.uid)
            || facts.owner(object, member).is_some_and(|owner| facts.record.progress.evicted.contains_key(&**owner))
            || is_older(member.created)
            || owner.is_some_and(|owner| is_older(owner.created))
    }

    /// The evicted pods that have not been replaced in time.
    pub(super) fn not_made_again(&mut self, looking: &Looking<'_>) -> Vec<Failure> {
        let (facts, record) = (looking.facts, looking.facts.record);
        self.lacking.retain(|owner, _| looking.missing.contains(&**owner));
        for owner in &looking.missing {
            self.lacking.entry(Arc::from(*owner)).or_insert(facts.now);
        }
        let is_late = |owner: &str, evicted: &Evicted| {
            let seen = self.lacking.get(owner).is_some_and(|since| {
                let since = (*since).max(evicted.at).max(record.progress.followed.resumed_at.unwrap_or(*since));
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
            let owner = facts.makers.owners.get(owner.as_str()).map(ToString::to_string).unwrap_or_default();
            let message = format!("{owner} has made no new pod in its place after {:#}", facts.pace.deadline);
            Some(Failure { object: facts.object(&evicted.pod)?, code: Code::ReplacementNotReady, message })
        };
        late.filter_map(failure).collect()
    }

    /// The owners of the recorded evictions that do not have all their pods again, up to date and available.
    pub(super) fn unfinished(&self, facts: &Facts<'_>) -> BTreeSet<String> {
        let evicted = &facts.record.progress.evicted;
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
            let is_left = || self.left.get(object).is_some_and(|(.., why)| why.code != Code::ReplacementMissed);
            let is_over = member.is_done(facts.restarted) || is_left();
            *are_available &= is_over && self.is_available(object, member, facts);
        }
        let is_whole = |uid: &str, owner: &Owner| {
            let beside = facts.makers.beside.get(uid).copied().unwrap_or_default();
            let (count, are_available) = whole.get(uid).copied().unwrap_or((0, true));
            are_available && count.saturating_add(beside) >= owner.pods()
        };
        let is_unfinished = |uid: &str| facts.makers.owners.get(uid).is_some_and(|owner| !is_whole(uid, owner));
        evicted.keys().filter(|uid| is_unfinished(uid)).cloned().collect()
    }
}

/// The replacement of an evicted pod that does not carry the update revision. Another eviction would not change that.
pub(super) fn missed_again(object: &ObjectRef, member: &Member, facts: &Facts<'_>) -> Option<Failure> {
    let evicted = facts.record.progress.evicted.get(&**facts.owner(object, member)?)?;
    let is_missed = member.carries != Carries::This && evicted.is_before(member);
    (is_missed && evicted.uid != *member.uid && evicted.is_gone(facts)).then(|| {
        let message = "it replaces an evicted pod, and has not got the update revision".to_owned();
        Failure { object: object.clone(), code: Code::ReplacementMissed, message }
    })
}

impl Evicted {
    /// Whether `pod`, of the same owner, was created after this eviction was announced.
    pub(super) fn is_before(&self, pod: &Member) -> bool {
        pod.created.is_some_and(|created| match self.newest {
            Some(newest) => created > newest,
            // Times of creation are whole seconds.
            None => created.as_second() > self.at.as_second(),
        })
    }

    /// Whether the pod is not there any more.
    pub(super) fn is_gone(&self, facts: &Facts<'_>) -> bool {
        facts.member(&self.pod).is_none_or(|(_, member)| *member.uid != *self.uid)
    }
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
