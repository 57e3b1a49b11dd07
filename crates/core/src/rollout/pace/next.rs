//! Which workloads are next.
//!
//! # Guarantees
//! - No more is chosen than the limits allow: `maxUnavailable`, that of each namespace, that of evictions, and the room of the record.
//! - What is unavailable anyway comes first, and costs nothing. What was refused comes last.
//! - What is not chosen is named, with what it waits for.

use super::announced::Standing;
use super::chosen::{Chosen, Reasons, Rooms};
use super::looking::Looking;
use super::memory::Memory;
use crate::refit::Way;
use crate::rollout::answer::Answer;
use crate::rollout::facts::Facts;
use crate::rollout::look::Next;
use crate::rollout::member::Member;
use crate::rollout::record::{MOST, Write};
use crate::rollout::words;
use crate::workload::ObjectRef;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most writes that are announced at once: their list takes 8 KiB of the 256 KiB that all annotations of an object may have.
pub const BATCH: usize = 64;

impl Memory {
    /// Chooses what to update now.
    pub(super) fn choose<'a>(&self, looking: &mut Looking<'a>) {
        let facts = looking.facts;
        let rooms = looking.by_namespace.iter().map(|(name, count)| (*name, count.room(facts.limit(count.matched))));
        let rooms = Rooms {
            all: looking.all.room(facts.pace.max_unavailable),
            by_namespace: rooms.collect(),
            // No more than a record may have: a reader counts only what the record lists.
            slots: MOST.saturating_sub(looking.open.len()),
            evictions: facts.leader.evictions.saturating_sub(self.overdue(looking)),
            late: facts.leader.evictions,
            broken: MOST.saturating_sub(looking.facts.record.progress.broken.len()),
        };
        let (owners, blocked) = (BTreeSet::new(), BTreeSet::new());
        let mut chosen: Chosen<'a> = Chosen { rooms, owners, blocked, reasons: Reasons::default() };
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
        looking.look.is_limited = chosen.reasons.is_limited;
        looking.look.waits = self.waits_of(looking, &chosen.reasons);
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
            .is_some_and(|last| matches!(last.answer, Answer::NotNeeded(_)) && facts.is_recent(last.at));
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
            is_broken: !is_available && open.is_none() && self.was_broken(object, member, facts),
            is_put_back: self.is_put_back(object, facts),
            announced: open.map(|(_, write)| write.at),
            newest: None,
            is_foreign: open.is_some_and(|(_, write)| write.by != facts.leader.name),
        };
        if let Some((_, write)) = open {
            return self.may_go_on(looking, chosen, (object, member, write)).then_some(next);
        }
        let may_begin = self.may_begin(looking, chosen, (is_available, object, member), (evicts, next.is_broken));
        may_begin.then(|| Next { newest: if evicts { looking.newest_of(member) } else { None }, ..next })
    }

    /// Whether a write that the record does not announce may be announced now: an eviction, if it `evicts`, of what may be broken before.
    fn may_begin<'a>(
        &self,
        looking: &Looking<'a>,
        chosen: &mut Chosen<'a>,
        (is_available, object, member): (bool, &'a ObjectRef, &'a Member),
        (evicts, is_broken): (bool, bool),
    ) -> bool {
        if chosen.rooms.slots == 0 {
            chosen.reasons.is_crowded = true;
            return false;
        }
        if is_available && !chosen.has_room(&object.namespace, |room| &mut room.new) {
            return false;
        }
        let owner = looking.facts.owner(object, member).filter(|_| evicts);
        if let Some(owner) = owner
            && (self.owner_waits(looking, chosen, (object, owner, None), is_available)
                || chosen.blocked.contains(&**owner))
        {
            return false;
        }
        if evicts && chosen.rooms.evictions == 0 {
            chosen.reasons.is_limited = true;
            return false;
        }
        // The record has room for so many.
        let is_listed = is_broken && !looking.facts.is_broken(object, member);
        if is_listed && chosen.rooms.broken == 0 && !self.restarts.contains_key(object) {
            return false;
        }
        let rooms = &mut chosen.rooms;
        rooms.broken = rooms.broken.saturating_sub(usize::from(is_listed));
        rooms.evictions -= usize::from(evicts);
        rooms.slots -= 1;
        chosen.owners.extend(owner.map(AsRef::as_ref));
        if is_available {
            chosen.take(&object.namespace, |room| &mut room.new);
        }
        true
    }

    /// Whether `object` is to be evicted, as far as is known.
    pub(super) fn evicts(&self, object: &ObjectRef, member: &Member, facts: &Facts<'_>) -> bool {
        let must_evict = self.not_in_place.get(object).is_some_and(|version| *version >= member.version);
        // A pod that is to be restarted is not patched first.
        let is_older = facts.restarted.is_some_and(|restarted| member.begun.is_none_or(|begun| begun < restarted));
        must_evict || is_older && object.kind.is_pod() || (facts.queries.way)(object, member) == Way::Evict
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
        if is_late && chosen.rooms.late == 0 {
            chosen.reasons.is_limited = true;
            return false;
        }
        let is_available = self.is_available(object, member, facts);
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
        chosen.rooms.late -= usize::from(is_late);
        true
    }

    /// What holds the rollout up.
    fn waits_of(&self, looking: &Looking<'_>, reasons: &Reasons<'_>) -> Vec<String> {
        let (look, facts) = (&looking.look, looking.facts);
        let mut waits = Vec::new();
        let blocked = self.waits.iter().filter(|(object, (_, last, _))| {
            facts.is_recent(*last) && facts.members.get(*object).is_some_and(|member| !member.is_done(facts.restarted))
        });
        let blocked: Vec<_> = blocked.collect();
        if let Some((object, (since, _, why))) = blocked.first() {
            waits.push(words::blocked(object, *since, why, blocked.len()));
        }
        // While something is next, all others only wait for their turn.
        let turn = Reasons::default();
        let stalled = if look.next.is_empty() { reasons } else { &turn };
        let (numbers, names) = (&look.numbers, &looking.all.names);
        if stalled.is_full {
            waits.push(words::unavailable(numbers.unavailable, facts.pace.max_unavailable, names));
        } else if let Some((name, count)) = stalled.full.and_then(|name| looking.by_namespace.get_key_value(name)) {
            waits.push(words::unavailable_in(name, (count.unavailable, facts.limit(count.matched)), &count.names));
        } else if let Some(beside) = stalled.beside {
            waits.push(words::beside(beside));
        } else if (numbers.remaining == 0 || stalled.is_owner_busy) && !names.is_empty() {
            waits.push(words::not_ready(numbers.unavailable, names));
        }
        if numbers.held > 0 {
            waits.push(words::held(&looking.facts.record.progress.failed, numbers.held));
        }
        if reasons.is_limited {
            waits.push(words::LIMITED.to_owned());
        }
        if stalled.is_crowded {
            waits.push(words::crowded(MOST));
        }
        let owner = |uid: &str| facts.makers.owners.get(uid);
        waits.extend(stalled.unclear.and_then(owner).map(words::unclear));
        waits.extend(stalled.shared.and_then(owner).map(words::shared));
        waits.extend(looking.orphan.map(|first| words::orphans(numbers.orphans, &words::named(first))));
        if numbers.broken > 0 {
            waits.push(words::broken(numbers.broken));
        }
        waits
    }
}
