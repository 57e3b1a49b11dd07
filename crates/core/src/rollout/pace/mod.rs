//! Which workloads are brought up to date next, and how far a rollout is.
//!
//! What counts as unavailable is read from the cluster: pods that are not ready, pods that their owner lacks, and workloads that
//! their controller is still rolling. In addition, each write that a leader has announced in the [record](super::record) counts as unavailable until
//! the watches show what became of it. So a new leader, and one that wakes up late, cannot exceed a limit.
//!
//! | room | subject |
//! |---|---|
//! | `memory` | what this leader has learnt about single workloads |
//! | `looking` | what one look has gathered of all members |
//! | `available` | what is available, and what was not before the rollout |
//! | `announced` | which announced writes are not over |
//! | `left` | what is left as it is |
//! | `failure` | what has failed |
//! | `next`, `chosen` | which workloads are next, and what the others wait for |
//! | `spare` | what the owner of pods can spare |

mod announced;
mod available;
mod chosen;
mod failure;
mod left;
mod looking;
mod memory;
mod next;
mod spare;

pub use announced::STALE;
pub use memory::Memory;
pub use next::BATCH;

use self::announced::Standing;
use self::failure::missed_again;
use self::looking::Looking;
use super::facts::Facts;
use super::look::{Look, NAMED};
use super::member::Member;
use super::words;
use crate::workload::ObjectRef;

impl Memory {
    /// Looks at everything once.
    pub fn look(&mut self, facts: &Facts<'_>) -> Look {
        self.forget_what_is_over(facts);
        self.lapse(facts);
        let mut looking = Looking::new(facts, self.open(facts));
        for (object, member) in facts.members {
            self.see(&mut looking, object, member);
        }
        looking.count_missing();
        looking.look.numbers.unavailable = looking.all.unavailable;
        for failure in self.not_made_again(&looking) {
            looking.fail(Some(failure));
        }
        if looking.look.is_counting {
            return looking.look;
        }
        self.choose(&mut looking);
        looking.look.unfinished = self.unfinished(facts);
        looking.look.is_complete = looking.look.numbers.remaining == 0
            && looking.open.is_empty()
            && looking.are_parts_ready
            && !looking.missing.iter().any(|owner| {
                let evicted = facts.record.progress.evicted.get(*owner);
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
        let is_available = !is_open && self.is_available(object, member, facts);
        let is_done = member.is_done(facts.restarted);
        let is_broken = !is_open && !is_available && {
            let was_broken = !self.has_disturbed(object) && self.was_broken(object, member, facts);
            was_broken || is_done && facts.is_broken(object, member)
        };
        if facts.pace.per_namespace.is_some() {
            looking.by_namespace.entry(&object.namespace).or_default().matched += 1;
        }
        looking.look.numbers.ready += usize::from(is_available);
        looking.look.numbers.broken += usize::from(is_broken);
        if !is_available && !is_broken {
            // A broken workload is unavailable without the write, too.
            let is_unsent = looking.open.get(object).is_some_and(|(standing, _)| *standing == Standing::Unsent)
                && (self.is_available(object, member, facts) || self.was_broken(object, member, facts));
            looking.count(&object.namespace, |count| {
                count.note(1, || words::named(object));
                count.unsent += usize::from(is_unsent);
            });
        }
        if let Some(owner) = facts.owner(object, member) {
            looking.by_owner.entry(owner).or_default().push((object, is_available, is_done || is_open));
        }
        looking.look.numbers.updated += usize::from(facts.has_update(member));
        if is_done {
            if !is_available && (facts.is_in_scope)(object, member) {
                self.see_unavailable(looking, object, member, is_broken);
            }
        } else if self.is_left(object, member, facts) || self.leaves(object, member, facts) {
            looking.look.numbers.left += 1;
        } else {
            self.see_outdated(looking, (is_available, object, member));
        }
    }

    /// Looks at one workload that is to be brought up to date.
    fn see_outdated<'a>(
        &self,
        looking: &mut Looking<'a>,
        (is_available, object, member): (bool, &'a ObjectRef, &'a Member),
    ) {
        let facts = looking.facts;
        // What was left has changed since. It is tried after all others, so a workload that changes all the time holds up no other.
        let was_left = self.left.contains_key(object);
        looking.look.numbers.left += usize::from(was_left);
        if !(facts.is_in_scope)(object, member) {
            return;
        }
        let is_held = facts.held.contains(&object.namespace);
        // The number of pods that such an owner lacks is not known.
        let is_orphan = !is_held && facts.is_owner_unknown(object, member);
        if !was_left {
            let numbers = &mut looking.look.numbers;
            numbers.remaining += 1;
            numbers.again += usize::from(facts.has_update(member));
            numbers.held += usize::from(is_held);
            numbers.orphans += usize::from(is_orphan);
            looking.orphan = looking.orphan.or(is_orphan.then_some(object));
            looking.fail(missed_again(object, member, facts));
        }
        if !is_held && !is_orphan {
            looking.candidates.push((is_available, object, member));
        }
    }

    /// Looks at one workload that has what it is to have, and is not available.
    fn see_unavailable(&self, looking: &mut Looking<'_>, object: &ObjectRef, member: &Member, is_broken: bool) {
        let facts = looking.facts;
        if !object.kind.is_pod() && looking.look.by_hand.len() < NAMED {
            looking.look.by_hand.extend((facts.queries.by_hand)(object));
        }
        // Outside of its scope, and before its begin, the rollout has made nothing unavailable.
        let is_its = self.restarts.contains_key(object)
            || facts.is_broken(object, member)
            || !self.was_unavailable(object, member, facts);
        if is_its {
            looking.are_parts_ready &= is_broken || !self.is_part(object, member, facts);
            let failure = self.failure(looking, object, member, is_broken);
            looking.fail(failure);
        }
    }
}
