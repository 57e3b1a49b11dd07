//! What the owner of pods can spare.
//!
//! # Guarantees
//! - Of each owner one pod at a time is evicted, whichever leaders and policies announce evictions.
//! - Of pods that wait for each other, one goes first.

use super::announced::{STALE, Standing, is_old};
use super::chosen::Chosen;
use super::looking::Looking;
use super::memory::Memory;
use crate::rollout::answer::Answer;
use crate::rollout::record::Write;
use crate::workload::ObjectRef;
use jiff::Timestamp;
use std::sync::Arc;

impl Memory {
    /// Whether the eviction of the pod `object` of `owner`, which the record may announce, waits for other pods of that owner. Notes for
    /// which.
    pub(super) fn owner_waits<'a>(
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
        let is_shared = is_available && facts.makers.busy.get(owner).is_some_and(|at| !is_first(at));
        let reasons = &mut chosen.reasons;
        reasons.is_owner_busy |= is_busy;
        reasons.beside = reasons.beside.or(beside);
        reasons.shared = reasons.shared.or(is_shared.then_some(owner));
        reasons.unclear = reasons.unclear.or((is_busy && looking.unclear.contains(&**owner)).then_some(owner));
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
        self.is_unsent(looking, object) && self.is_available(object, member, looking.facts)
    }

    /// Whether `object` has an announced write that no leader has sent.
    fn is_unsent(&self, looking: &Looking<'_>, object: &ObjectRef) -> bool {
        let facts = looking.facts;
        let Some((Standing::Unsent, write)) = looking.open.get(object) else { return false };
        let is_young = |at: Timestamp| facts.now.duration_since(at) < STALE;
        let has_failed = self
            .answers
            .get(object)
            .is_some_and(|last| matches!(last.answer, Answer::Failed(_)) && last.at >= write.at && is_young(last.at));
        !has_failed && (write.by == facts.leader.name || !is_young(write.at))
    }

    /// How many evictions were announced more than a minute ago, and may be sent at any moment. Those that wait for other pods of their owner
    /// are none.
    pub(super) fn overdue(&self, looking: &Looking<'_>) -> usize {
        let facts = looking.facts;
        let writes = looking.facts.record.progress.writes.iter();
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
}
