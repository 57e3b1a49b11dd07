//! Decides which waiting object is settled next. Pure: time is passed in.
//!
//! # Guarantees
//! At most one worker has an object. A create that blocks its creator goes before the backlog of a restart. No number of
//! failures drops an object.

use crate::cluster::client::backoff;
use crate::cluster::object::Object;
use crate::timing::{self, CREATE_LIMIT};
use crate::workload::{Kind, ObjectRef};
use backon::ExponentialBackoff;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The urgency of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The object has just been created, so its creator waits.
    Fresh,
    /// The object was stored before this run.
    Backlog,
}

/// The result of a worker for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The object does not wait for us any more.
    Done,
    /// Try again after the object's own backoff, or after this duration if that is longer.
    Retry(Duration),
    /// No attempt was possible, so the object stays the first of its lane.
    PutBack,
}

/// A waiting object.
#[derive(Debug)]
struct Item {
    object: Arc<Object>,
    policy: String,
    lane: Lane,
    stage: Stage,
    since: Instant,
    backoff: Option<ExponentialBackoff>,
    attempts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Ready,
    /// The object waits for its backoff.
    Later(Instant),
    /// A worker has the object.
    Busy,
    /// A worker has the object, which has changed since.
    Changed,
    /// A worker has the object, which does not wait for us any more.
    Gone,
}

/// An object handed to a worker.
#[derive(Clone, Debug)]
pub struct Job {
    pub key: ObjectRef,
    /// The last seen form. A large object is not kept in memory.
    pub object: Arc<Object>,
    /// When the object was first seen.
    pub since: Instant,
    /// The number of failed attempts.
    pub attempts: u32,
}

pub struct Queue {
    items: HashMap<ObjectRef, Item>,
    fresh: VecDeque<ObjectRef>,
    backlog: VecDeque<ObjectRef>,
    later: BTreeSet<(Instant, ObjectRef)>,
    /// Objects with a foreign initializer before ours: since when, and the last seen version.
    foreign: HashMap<ObjectRef, (Instant, u64)>,
    timing: &'static timing::Initializer,
}

impl Queue {
    pub fn new(timing: &'static timing::Initializer) -> Self {
        Self {
            items: HashMap::new(),
            fresh: VecDeque::new(),
            backlog: VecDeque::new(),
            later: BTreeSet::new(),
            foreign: HashMap::new(),
            timing,
        }
    }

    /// Adds an object that waits for us. It is counted under `policy`.
    pub fn offer(&mut self, kind: &Arc<Kind>, object: Object, policy: &str, lane: Lane, now: Instant) {
        let key = ObjectRef::new(kind, object.place());
        let object = Arc::new(object.put_aside());
        self.foreign.remove(&key);
        let Some(item) = self.items.get_mut(&key) else {
            self.lane(lane).push_back(key.clone());
            let item = Item {
                object,
                policy: policy.into(),
                lane,
                stage: Stage::Ready,
                since: now,
                backoff: None,
                attempts: 0,
            };
            self.items.insert(key, item);
            return;
        };
        item.object = object;
        item.policy = policy.into();
        if matches!(item.stage, Stage::Busy | Stage::Gone) {
            item.stage = Stage::Changed;
        }
    }

    /// Records that a foreign initializer is before ours in that version, unless a later version waits for us.
    pub fn wait_for_foreign(&mut self, key: ObjectRef, version: u64, now: Instant) {
        let is_ours =
            self.items.get(&key).is_some_and(|item| item.stage != Stage::Gone && item.object.version() > version);
        if !is_ours {
            let (_, seen) = self.foreign.entry(key).or_insert((now, version));
            *seen = version.max(*seen);
        }
    }

    /// Records that no foreign initializer is before ours in that version.
    pub fn wait_for_nobody_else(&mut self, key: &ObjectRef, version: u64) {
        if self.foreign.get(key).is_some_and(|(_, seen)| *seen < version) {
            self.foreign.remove(key);
        }
    }

    /// Removes an object that waits neither for us nor for others.
    pub fn remove(&mut self, key: &ObjectRef) {
        self.foreign.remove(key);
        self.withdraw(key);
    }

    /// Removes an object that does not wait for us any more.
    pub fn withdraw(&mut self, key: &ObjectRef) {
        let Some(item) = self.items.get_mut(key) else { return };
        match item.stage {
            Stage::Busy | Stage::Changed => item.stage = Stage::Gone,
            Stage::Later(at) => {
                self.later.remove(&(at, key.clone()));
                self.items.remove(key);
            }
            // The key stays in its lane, and `pop` skips it.
            Stage::Ready => drop(self.items.remove(key)),
            Stage::Gone => {}
        }
    }

    /// Takes the next object to settle.
    pub fn pop(&mut self, now: Instant) -> Option<Job> {
        while let Some((at, key)) = self.later.first().filter(|(at, _)| *at <= now).cloned() {
            self.later.remove(&(at, key.clone()));
            if let Some(item) = self.items.get_mut(&key) {
                item.stage = Stage::Ready;
                let lane = item.lane;
                self.lane(lane).push_back(key);
            }
        }
        while let Some(key) = self.fresh.pop_front().or_else(|| self.backlog.pop_front()) {
            if let Some(item) = self.items.get_mut(&key).filter(|item| item.stage == Stage::Ready) {
                if item.lane == Lane::Fresh && now.duration_since(item.since) >= CREATE_LIMIT {
                    // The creator has given up. Objects with a waiting creator go first.
                    item.lane = Lane::Backlog;
                    self.backlog.push_back(key);
                    continue;
                }
                item.stage = Stage::Busy;
                return Some(Job { key, object: item.object.clone(), since: item.since, attempts: item.attempts });
            }
        }
        None
    }

    /// Returns an object from a worker to the queue.
    pub fn finish(&mut self, key: &ObjectRef, finish: Finish, now: Instant) {
        let timing = self.timing;
        let Some(item) = self.items.get_mut(key) else { return };
        match (item.stage, finish) {
            (Stage::Gone, _) | (Stage::Busy, Finish::Done) => drop(self.items.remove(key)),
            (_, Finish::PutBack) => {
                item.stage = Stage::Ready;
                let lane = item.lane;
                self.lane(lane).push_front(key.clone());
            }
            // The form that was seen since is handled at once.
            (Stage::Changed, Finish::Done) => {
                item.stage = Stage::Ready;
                let lane = item.lane;
                self.lane(lane).push_back(key.clone());
            }
            (_, Finish::Retry(least)) => {
                item.attempts += 1;
                let delays = item.backoff.get_or_insert_with(|| backoff(timing.first_retry, timing.longest_retry));
                let own = delays.next().unwrap_or(timing.longest_retry);
                // At the time limit for a decision there is one more attempt, whatever the backoff.
                let left = (item.since + timing.decision).saturating_duration_since(now);
                let own = if left.is_zero() { own } else { own.min(left) };
                let at = now + own.max(least);
                item.stage = Stage::Later(at);
                self.later.insert((at, key.clone()));
            }
            (Stage::Ready | Stage::Later(_), Finish::Done) => {}
        }
    }

    /// Returns all objects from a worker that does not run any more.
    pub fn take_back(&mut self, now: Instant) {
        self.items.retain(|_, item| item.stage != Stage::Gone);
        let held = |item: &Item| matches!(item.stage, Stage::Busy | Stage::Changed);
        let keys: Vec<_> = self.items.iter().filter(|(_, item)| held(item)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.finish(&key, Finish::PutBack, now);
        }
    }

    /// The end of the next backoff.
    pub fn next_due(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    /// Removes every object of `kind` for which `keep` is false, because a new list does not show it.
    pub fn retain(&mut self, kind: &Arc<Kind>, keep: &dyn Fn(&ObjectRef) -> bool) {
        let known = self.items.keys().chain(self.foreign.keys());
        let gone: Vec<_> = known.filter(|key| key.kind == *kind && !keep(key)).cloned().collect();
        for key in gone {
            self.remove(&key);
        }
    }

    /// The number of objects that wait for us, by policy, and since when the oldest waits.
    pub fn waiting(&self) -> (HashMap<&str, i64>, Option<Instant>) {
        let mut by_policy = HashMap::new();
        for item in self.items.values() {
            *by_policy.entry(item.policy.as_str()).or_default() += 1;
        }
        (by_policy, self.items.values().map(|item| item.since).min())
    }

    /// The number of creates that wait for us, by policy.
    pub fn blocked(&self) -> HashMap<String, usize> {
        let mut by_policy = HashMap::new();
        for item in self.items.values().filter(|item| item.lane == Lane::Fresh) {
            *by_policy.entry(item.policy.clone()).or_default() += 1;
        }
        by_policy
    }

    /// Since when the oldest object waits for a foreign initializer before ours.
    pub fn oldest_foreign(&self) -> Option<Instant> {
        self.foreign.values().map(|(since, _)| *since).min()
    }

    /// Whether an object of `kind` waits for us, or for a foreign initializer before us.
    pub fn holds(&self, kind: &Kind) -> bool {
        self.items.keys().chain(self.foreign.keys()).any(|key| *key.kind == *kind)
    }

    /// Whether that object waits for us, or for a foreign initializer before us.
    pub fn has(&self, key: &ObjectRef) -> bool {
        self.items.contains_key(key) || self.foreign.contains_key(key)
    }

    /// Whether no object waits for us.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn lane(&mut self, lane: Lane) -> &mut VecDeque<ObjectRef> {
        match lane {
            Lane::Fresh => &mut self.fresh,
            Lane::Backlog => &mut self.backlog,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;

    const TIMING: &timing::Initializer = &Timing::documented().initializer;

    fn kind() -> &'static Arc<Kind> {
        Kind::find("apps", "deployments").expect("built in")
    }

    fn object(name: &str) -> Object {
        serde_json::from_str(&format!(r#"{{"metadata":{{"name":"{name}","namespace":"d"}}}}"#)).expect("JSON")
    }

    fn offer(queue: &mut Queue, name: &str, lane: Lane, now: Instant) {
        queue.offer(kind(), object(name), "p", lane, now);
    }

    #[test]
    fn a_fresh_create_goes_before_the_backlog() {
        let (mut queue, now) = (Queue::new(TIMING), Instant::now());
        offer(&mut queue, "old", Lane::Backlog, now);
        offer(&mut queue, "new", Lane::Fresh, now);
        assert_eq!(queue.pop(now).map(|job| job.key.name), Some("new".into()));
        assert_eq!(queue.pop(now).map(|job| job.key.name), Some("old".into()));
        assert!(queue.pop(now).is_none());
    }

    #[test]
    fn what_nobody_waits_for_any_more_is_backlog() {
        let (mut queue, now) = (Queue::new(TIMING), Instant::now());
        offer(&mut queue, "given up", Lane::Fresh, now);
        let later = now + CREATE_LIMIT;
        offer(&mut queue, "waiting", Lane::Fresh, later);
        assert_eq!(queue.blocked().values().sum::<usize>(), 2);
        assert_eq!(queue.pop(later).map(|job| job.key.name), Some("waiting".into()));
        assert_eq!(queue.pop(later).map(|job| job.key.name), Some("given up".into()));
        assert_eq!(queue.blocked().values().sum::<usize>(), 1);
    }

    #[test]
    fn what_could_not_be_tried_keeps_its_place_and_its_backoff() {
        let (mut queue, now) = (Queue::new(TIMING), Instant::now());
        offer(&mut queue, "a", Lane::Fresh, now);
        offer(&mut queue, "b", Lane::Fresh, now);
        let job = queue.pop(now).expect("ready");
        queue.finish(&job.key, Finish::PutBack, now);
        let job = queue.pop(now).expect("ready");
        assert_eq!((job.key.name.as_str(), job.attempts), ("a", 0));
        queue.remove(&job.key);
        queue.finish(&job.key, Finish::PutBack, now);
        assert_eq!(queue.pop(now).map(|job| job.key.name), Some("b".into()));
    }

    #[test]
    fn an_object_is_in_one_pair_of_hands_and_comes_back_if_it_changed_meanwhile() {
        let (mut queue, now) = (Queue::new(TIMING), Instant::now());
        offer(&mut queue, "a", Lane::Fresh, now);
        let job = queue.pop(now).expect("ready");
        offer(&mut queue, "a", Lane::Fresh, now);
        assert!(queue.pop(now).is_none(), "still busy");
        queue.finish(&job.key, Finish::Done, now);
        assert!(queue.pop(now).is_some(), "changed meanwhile");
    }

    #[test]
    fn a_thousand_failures_drop_nothing_and_wait_at_most_a_minute() {
        let (mut queue, mut now) = (Queue::new(TIMING), Instant::now());
        offer(&mut queue, "a", Lane::Fresh, now);
        for attempt in 0..1000 {
            let job = queue.pop(now).expect("due");
            assert_eq!(job.attempts, attempt);
            queue.finish(&job.key, Finish::Retry(Duration::ZERO), now);
            assert!(queue.pop(now).is_none(), "backs off");
            let due = queue.next_due().expect("waits");
            // Jitter adds at most the delay itself.
            assert!(due - now <= Duration::from_secs(60));
            now = due;
        }
    }

    #[test]
    fn at_the_limit_for_a_decision_it_is_tried_whatever_the_backoff() {
        let (mut queue, start) = (Queue::new(TIMING), Instant::now());
        offer(&mut queue, "a", Lane::Fresh, start);
        let mut now = start;
        while now < start + TIMING.decision {
            let job = queue.pop(now).expect("due");
            queue.finish(&job.key, Finish::Retry(Duration::ZERO), now);
            now = queue.next_due().expect("waits");
        }
        assert_eq!(now, start + TIMING.decision);
    }

    #[test]
    fn what_a_worker_held_that_is_no_more_is_handed_out_again() {
        let (mut queue, now) = (Queue::new(TIMING), Instant::now());
        for name in ["held", "gone", "changed"] {
            offer(&mut queue, name, Lane::Fresh, now);
            assert!(queue.pop(now).is_some());
        }
        queue.remove(&ObjectRef::new(kind(), object("gone").place()));
        offer(&mut queue, "changed", Lane::Fresh, now);
        queue.take_back(now);
        let mut names: Vec<_> = std::iter::from_fn(|| queue.pop(now)).map(|job| job.key.name).collect();
        names.sort();
        assert_eq!(names, ["changed", "held"]);
    }

    #[test]
    fn the_age_of_what_waits_for_others_counts_from_when_it_was_first_seen() {
        let (mut queue, now) = (Queue::new(TIMING), Instant::now());
        let key = ObjectRef::new(kind(), object("a").place());
        for seconds in 0..3 {
            queue.withdraw(&key);
            queue.wait_for_foreign(key.clone(), 10 + seconds, now + Duration::from_secs(seconds));
        }
        assert_eq!(queue.oldest_foreign(), Some(now));
        queue.wait_for_nobody_else(&key, 11);
        assert_eq!(queue.oldest_foreign(), Some(now), "that was before");
        queue.wait_for_nobody_else(&key, 13);
        assert_eq!(queue.oldest_foreign(), None);
    }

    #[test]
    fn what_is_gone_is_not_handed_out_and_a_successor_of_the_name_is() {
        let (mut queue, now) = (Queue::new(TIMING), Instant::now());
        offer(&mut queue, "a", Lane::Fresh, now);
        let job = queue.pop(now).expect("ready");
        queue.remove(&job.key);
        offer(&mut queue, "a", Lane::Fresh, now);
        queue.finish(&job.key, Finish::Retry(Duration::ZERO), now);
        assert!(queue.next_due().is_some() || queue.pop(now).is_some());
        queue.remove(&job.key);
        assert!(queue.is_empty());
    }
}
