//! What is left as it is, with a reason, and when it is tried again.
//!
//! # Guarantees
//! - What is left holds up no other workload: it comes after all others, and few at a time.
//! - No pod is evicted whose owner would make no other one.

use super::failure::missed_again;
use super::memory::{HELD, Memory};
use crate::api::code::Code;
use crate::rollout::answer::Why;
use crate::rollout::facts::Facts;
use crate::rollout::member::{Member, Owner};
use crate::rollout::record::MOST;
use crate::rollout::words;
use crate::workload::ObjectRef;
use jiff::{SignedDuration, Timestamp};

/// How long a workload that does not change is left until it is tried again: an opt-out of its Namespace, a ResourceQuota or another
/// policy may have been the reason.
const LEFT: SignedDuration = SignedDuration::from_secs(300);

/// How many are tried again for that, and how often at most. Each is read.
const LAPSES: (usize, SignedDuration) = (30, SignedDuration::from_secs(60));

/// How often the operator patches a template again after another client has put it back.
const TRIES: u32 = 3;

impl Memory {
    /// Whether the workload is left as it is: in this version, or because the last attempt was a moment ago. A status may change
    /// every second.
    pub(super) fn is_left(&self, object: &ObjectRef, member: &Member, facts: &Facts<'_>) -> bool {
        self.left.get(object).is_some_and(|(version, at, _)| *version >= member.version || facts.is_recent(*at))
    }

    /// Leaves a pod that would have to be evicted although its owner would make no other one; what was broken before, if the record has no
    /// room for it; a pod that has the sidecar from the pod template of its owner, because every replacement would have it, too; a pod
    /// that came without the revision in place of an evicted one, if the rollout cannot fail by that; and one for which the server has given
    /// no answer for a whole deadline.
    pub(super) fn leaves(&mut self, object: &ObjectRef, member: &Member, facts: &Facts<'_>) -> bool {
        let owner = facts.owner(object, member).and_then(|owner| facts.makers.owners.get(owner));
        let missed = || missed_again(object, member, facts).filter(|_| !facts.can_fail);
        let cannot_make = |owner: &Owner| owner.fails_since.is_some_and(|since| facts.is_long_before(since));
        let has_no_place = || {
            let may_be_kept = facts.record.progress.broken.len() < MOST || facts.is_broken(object, member);
            !may_be_kept && !self.restarts.contains_key(object) && self.was_broken(object, member, facts)
        };
        let (version, code, message) = if let Some(owner) = owner.filter(|owner| owner.desired == 0) {
            (0, Code::NotRecreated, format!("{owner} keeps no pods, or is being deleted"))
        } else if let Some(owner) = owner.filter(|owner| owner.astray > 0 && self.evicts(object, member, facts)) {
            let message = format!("{owner} has {} pods on nodes where it would make none again", owner.astray);
            (0, Code::NotRecreated, message)
        } else if let Some(owner) = owner.filter(|owner| cannot_make(owner) && self.evicts(object, member, facts)) {
            (0, Code::NotRecreated, format!("{owner} makes no pods: see its condition `ReplicaFailure`"))
        } else if let Some(owner) = owner.filter(|owner| owner.carried.contains(facts.aim.policy)) {
            let message = format!("{owner} has it in its own pod template, which the pod follows");
            (member.version, Code::ContentOfOwner, message)
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
        self.left.insert(object.clone(), (version, facts.now, Why { code, message }));
        true
    }

    /// Whether another client puts the workload back each time, so that one more patch would change nothing.
    pub(super) fn is_put_back(&self, object: &ObjectRef, facts: &Facts<'_>) -> bool {
        self.tries.get(object).is_some_and(|(tries, last)| *tries >= TRIES && facts.now.duration_since(*last) <= HELD)
    }

    /// What the server says, if it has refused to answer about this workload for a whole deadline.
    fn unanswered(&self, object: &ObjectRef, facts: &Facts<'_>) -> Option<String> {
        let (since, last, why) = self.waits.get(object)?;
        let is_long = last.duration_since(*since) > facts.pace.deadline;
        (why.code == Code::ServerAway && is_long).then(|| why.message.clone())
    }

    /// Has some of those that are left tried again, the oldest first. They come after all others.
    pub(super) fn lapse(&mut self, facts: &Facts<'_>) {
        let (most, pause) = LAPSES;
        if self.lapsed.is_some_and(|at| facts.now.duration_since(at) < pause) {
            return;
        }
        let is_due = |object: &ObjectRef, (version, at, why): &(u64, Timestamp, Why)| {
            // The rest is left for reasons that this leader knows of, or is due already.
            let is_answer = !matches!(version, 0 | &u64::MAX) && why.code != Code::ServerAway;
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
}
