//! Which of the writes that the record announces are not over.
//!
//! # Guarantees
//! - A write of any leader is open until the watch shows what became of it, or it cannot happen any more.
//! - What an answer says counts only for the workload that was asked about, and only while the watch may be behind.

use super::memory::{Answered, LATE, Memory};
use crate::rollout::answer::{Answer, Done};
use crate::rollout::facts::{Busy, Facts, key};
use crate::rollout::member::{Member, Members};
use crate::rollout::record::{Record, Write};
use crate::workload::{Kind, ObjectRef};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;

/// How long a leader may still do what it has announced: after half of it a leader begins nothing more of a batch, and the rest is for
/// its last requests.
pub const STALE: SignedDuration = SignedDuration::from_secs(30);

/// What became of an announced write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is to be tried, as far as is known.
    Unsent,
    /// It has happened, or may happen, and its effect is not seen yet.
    Pending,
    /// Its effect is seen, or it cannot happen.
    Over,
}

impl Memory {
    /// The announced writes that are not over.
    pub(super) fn open<'a>(&self, facts: &Facts<'a>) -> BTreeMap<&'a ObjectRef, (Standing, &'a Write)> {
        let writes = &facts.record.progress.writes;
        if writes.is_empty() {
            return BTreeMap::new();
        }
        let announced = writes.iter().filter_map(|(key, write)| {
            let (object, member) = facts.member(key)?;
            let standing = self.standing(object, member, write, facts);
            (standing != Standing::Over).then_some((object, (standing, write)))
        });
        announced.collect()
    }

    fn standing(&self, object: &ObjectRef, member: &Member, write: &Write, facts: &Facts<'_>) -> Standing {
        if *member.uid != *write.uid {
            return Standing::Over;
        }
        let pending = |is_pending: bool| if is_pending { Standing::Pending } else { Standing::Over };
        let is_done = member.is_done(facts.restarted);
        let is_seen = || {
            let is_serving = member.health.is_ready && self.is_settled(object, member, write.at, facts.now);
            let was_broken = || !self.has_disturbed(object) && self.was_broken(object, member, facts);
            is_serving || facts.is_broken(object, member) || was_broken()
        };
        let is_foreign = write.by != facts.leader.name;
        let may_be_late = is_foreign && facts.now.duration_since(write.at) < LATE;
        // It brings what another rollout, or the way back, takes away again.
        let is_outdated = is_foreign && facts.now.duration_since(write.at) < STALE && write.at < facts.since();
        let counts = |last: &&Answered| facts.is_recent(last.at) || !last.answer.expects_another(member);
        let Some(Answered { at, answer, .. }) = self.answer_to(object, write).filter(counts) else {
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

    /// The recorded writes that are not over.
    pub fn still_open(&self, facts: &Facts<'_>) -> BTreeMap<String, Write> {
        self.open(facts).into_iter().map(|(object, (_, write))| (key(object), write.clone())).collect()
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
            let is_over = self.answer_to(object, write).is_some_and(|last| has_not(&last.answer));
            if let Some(owner) = member.owner.as_ref().filter(|_| !is_over) {
                let first = busy.entry(owner.clone()).or_insert(write.at);
                *first = (*first).min(write.at);
            }
        }
        busy
    }

    /// Whether the attempt that the record announces under that `name` has written nothing for certain.
    pub fn has_written_nothing(&self, facts: &Facts<'_>, name: &str, write: &Write) -> bool {
        let object = facts.object(name);
        object.and_then(|object| self.answer_to(&object, write)).is_some_and(|last| last.is_untouched)
    }
}

/// Whether what was announced `at` that time may wait for something that never comes.
pub(super) fn is_old(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at) >= LATE
}
