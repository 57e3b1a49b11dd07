//! What is available, and what was unavailable before the rollout.
//!
//! # Guarantees
//! - Times in a status are of other clocks, and of users: one that cannot be counts for nothing.
//! - What was unavailable before the rollout, and before any that it replaced, is no fault of ours.

use super::memory::Memory;
use crate::rollout::answer::Answer;
use crate::rollout::facts::{Facts, key};
use crate::rollout::member::Member;
use crate::workload::ObjectRef;
use jiff::{SignedDuration, Timestamp};

/// How long a kubelet may take, beyond the grace period of the pod, until its status shows an image as it is in the spec. After that the
/// pod counts by its readiness alone, because a runtime may call an image by another name.
const UNSAID: SignedDuration = SignedDuration::from_secs(10);

/// How far the clock of a node may be ahead of ours. A time beyond that is forged, or of a broken clock.
const AHEAD: SignedDuration = SignedDuration::from_secs(300);

impl Memory {
    pub(super) fn is_available(&self, object: &ObjectRef, member: &Member, facts: &Facts<'_>) -> bool {
        let since = ready_since(member, facts.now);
        let has_been_ready = since.is_none_or(|since| facts.now.duration_since(since) >= facts.pace.min_ready);
        member.health.is_ready && has_been_ready && self.is_settled(object, member, facts.since(), facts.now)
    }

    /// Whether the kubelet has acted on what was announced `at` that time, and may have been written long after.
    pub(super) fn is_settled(&self, object: &ObjectRef, member: &Member, at: Timestamp, now: Timestamp) -> bool {
        let written = self.answers.get(object).map(|last| last.at);
        let last = [self.unsettled.get(object).copied(), written].into_iter().flatten().fold(at, Timestamp::max);
        member.health.is_settled || now.duration_since(last) >= member.health.grace.saturating_add(UNSAID)
    }
}

impl Memory {
    /// Since when `member` is not ready: as its status says, or else as this leader has seen it.
    fn unavailable_since(&self, object: &ObjectRef, member: &Member) -> Option<Timestamp> {
        member.health.since.or_else(|| self.unready.get(object).copied())
    }

    /// Whether `member`, which is unavailable, was so before the rollout began, and before any other that it replaced, as far as is known.
    pub(super) fn was_unavailable(&self, object: &ObjectRef, member: &Member, facts: &Facts<'_>) -> bool {
        let since = self.unavailable_since(object, member);
        facts.may_excuse(member) && since.is_some_and(|since| facts.is_before(since))
    }

    /// The same for a whole deadline.
    pub(super) fn was_broken(&self, object: &ObjectRef, member: &Member, facts: &Facts<'_>) -> bool {
        let since = self.unavailable_since(object, member);
        facts.may_excuse(member) && since.is_some_and(|since| facts.is_long_before(since))
    }

    /// Whether this leader has written the workload while it was available, as far as it has seen.
    pub(super) fn has_disturbed(&self, object: &ObjectRef) -> bool {
        let written = self.answers.get(object).filter(|last| matches!(last.answer, Answer::Done(_)));
        let was_unready = || self.unready.get(object).zip(written).is_some_and(|(since, last)| *since <= last.at);
        self.restarts.contains_key(object) && !was_unready()
    }
}

impl Facts<'_> {
    /// When the rollout, or its way back, began.
    pub(super) fn since(&self) -> Timestamp {
        let undone = self.record.reached.as_ref().filter(|reached| reached.undone).map(|reached| reached.since);
        undone.or(self.record.progress.times.begun).unwrap_or(self.now)
    }

    /// Since when workloads may be unavailable on our account.
    fn disturbed(&self) -> Timestamp {
        let progress = &self.record.progress;
        let begun = progress.times.begun.filter(|_| progress.times.ended.is_none());
        let written = progress.writes.values().map(|write| write.at).min();
        progress.times.disturbed.or(begun).or(written).unwrap_or(self.now)
    }

    /// Whether `since` is before the time from which workloads may be unavailable on our account. A status has whole seconds.
    pub(super) fn is_before(&self, since: Timestamp) -> bool {
        since.as_second() < self.disturbed().as_second()
    }

    /// The same, and a whole deadline ago. What is unavailable for a shorter time may be on its way.
    pub(super) fn is_long_before(&self, since: Timestamp) -> bool {
        self.is_before(since) && self.now.duration_since(since) >= self.pace.deadline
    }

    /// Whether `member` is unavailable, and the rollout need not be the reason: it has not brought its content there.
    pub(super) fn may_excuse(&self, member: &Member) -> bool {
        let record = self.record;
        let is_its_own = record.progress.is_new && record.complete.is_none() && self.has_update(member);
        !member.health.is_ready && !is_its_own
    }

    /// Whether the record lists the workload as unavailable before it was updated.
    pub(super) fn is_broken(&self, object: &ObjectRef, member: &Member) -> bool {
        let broken = &self.record.progress.broken;
        !broken.is_empty()
            && (broken.contains(&key(object)) || member.owner.as_ref().is_some_and(|owner| broken.contains(&**owner)))
    }
}

/// Since when the workload is ready, or not ready, as its status says. Its creation, if the status has a time that cannot be.
pub(super) fn ready_since(member: &Member, now: Timestamp) -> Option<Timestamp> {
    let since = member.health.since?;
    if since.duration_since(now) <= AHEAD { Some(since) } else { member.created }
}
