//! What one look has gathered of all members before it chooses.

use super::announced::Standing;
use super::chosen::Room;
use crate::rollout::facts::{Facts, key};
use crate::rollout::look::{Failure, Look, NAMED, Numbers};
use crate::rollout::member::{Member, Owner};
use crate::rollout::record::{Evicted, Write};
use crate::workload::ObjectRef;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The most failures of one look, which is also the largest `failureThreshold`: the record has the name of each, of at most 350 bytes.
const FAILURES: usize = 100;

/// The parts of a look.
pub(super) struct Looking<'a> {
    pub(super) facts: &'a Facts<'a>,
    pub(super) look: Look,
    /// The pods of each owner, with whether they are available, and whether they are or may be up to date.
    pub(super) by_owner: HashMap<&'a str, Vec<(&'a ObjectRef, bool, bool)>>,
    /// The announced writes that are not over.
    pub(super) open: BTreeMap<&'a ObjectRef, (Standing, &'a Write)>,
    pub(super) candidates: Vec<(bool, &'a ObjectRef, &'a Member)>,
    pub(super) missing: BTreeSet<&'a str>,
    /// The owners that have more pods than they are known to want: one of two watches is behind.
    pub(super) unclear: BTreeSet<&'a str>,
    /// The first pod whose owner is not known.
    pub(super) orphan: Option<&'a ObjectRef>,
    /// What is unavailable in all namespaces.
    pub(super) all: Count,
    /// The same in each namespace, if the policy limits that.
    pub(super) by_namespace: HashMap<&'a str, Count>,
    pub(super) are_parts_ready: bool,
}

/// How many workloads are unavailable.
#[derive(Default)]
pub(super) struct Count {
    pub(super) matched: usize,
    pub(super) unavailable: usize,
    /// The part of these that an announced write is still to be sent to.
    pub(super) unsent: usize,
    /// The first ones, as a message names them.
    pub(super) names: Vec<String>,
}

impl Count {
    pub(super) fn note(&mut self, count: usize, name: impl FnOnce() -> String) {
        self.unavailable = self.unavailable.saturating_add(count);
        if self.names.len() < NAMED {
            self.names.push(name());
        }
    }

    /// What is left of a `limit`.
    pub(super) fn room(&self, limit: usize) -> Room {
        let others = self.unavailable.saturating_sub(self.unsent);
        Room { new: limit.saturating_sub(self.unavailable), announced: limit.saturating_sub(others) }
    }
}

impl<'a> Looking<'a> {
    /// Before anything has been looked at. These announced writes are `open`.
    pub(super) fn new(facts: &'a Facts<'a>, open: BTreeMap<&'a ObjectRef, (Standing, &'a Write)>) -> Self {
        let numbers = Numbers { matched: facts.members.len(), ..Numbers::default() };
        Self {
            facts,
            look: Look { numbers, ..Look::default() },
            by_owner: HashMap::new(),
            open,
            candidates: Vec::new(),
            missing: BTreeSet::new(),
            unclear: BTreeSet::new(),
            orphan: None,
            all: Count::default(),
            by_namespace: HashMap::new(),
            are_parts_ready: true,
        }
    }

    /// Counts for all namespaces, and for `namespace` if the policy limits that.
    pub(super) fn count(&mut self, namespace: &'a str, count: impl Fn(&mut Count)) {
        count(&mut self.all);
        if self.facts.pace.per_namespace.is_some() {
            count(self.by_namespace.entry(namespace).or_default());
        }
    }

    /// Counts the pods that owners lack.
    pub(super) fn count_missing(&mut self) {
        let facts = self.facts;
        // A pod may match by what its template does not have.
        let is_ours = |uid: &str, owner: &Owner| {
            let evicted = &self.facts.record.progress.evicted;
            owner.policies.contains(facts.aim.policy) || self.by_owner.contains_key(uid) || evicted.contains_key(uid)
        };
        let owners: Vec<_> = facts.makers.owners.iter().filter(|(uid, owner)| is_ours(uid, owner)).collect();
        for (uid, owner) in owners {
            let there = self.by_owner.get(&**uid).map_or(0, Vec::len);
            let there = there.saturating_add(facts.makers.beside.get(uid).copied().unwrap_or_default());
            if there > owner.pods() {
                self.unclear.insert(uid);
            }
            let missing = owner.pods().saturating_sub(there);
            if missing > 0 && owner.fails_since.is_some_and(|since| facts.is_long_before(since)) {
                self.look.numbers.broken = self.look.numbers.broken.saturating_add(missing);
            } else if missing > 0 {
                self.missing.insert(uid);
                self.count(&owner.namespace, |count| count.note(missing, || format!("{owner}, which lacks {missing}")));
            }
        }
    }

    /// Whether `owner` lacks pods, or may delete one.
    pub(super) fn may_lack(&self, owner: &str) -> bool {
        self.missing.contains(owner) || self.unclear.contains(owner)
    }

    /// Whether `owner` has made another pod since it lost the one that was `evicted`.
    pub(super) fn is_replaced(&self, owner: &str, evicted: &Evicted) -> bool {
        let mut pods = self.by_owner.get(owner).into_iter().flatten();
        pods.any(|(object, ..)| self.facts.members.get(*object).is_some_and(|pod| evicted.is_before(pod)))
    }

    /// When the newest pod of the owner of `member` was created.
    pub(super) fn newest_of(&self, member: &Member) -> Option<Timestamp> {
        let pods = self.by_owner.get(member.owner.as_deref()?)?;
        pods.iter().filter_map(|(object, ..)| self.facts.members.get(*object)?.created).max()
    }

    /// Keeps a failure that is news.
    pub(super) fn fail(&mut self, failure: Option<Failure>) {
        let is_news = |failure: &Failure| !self.facts.record.progress.failed.contains(&key(&failure.object));
        let has_room = self.look.failures.len() < FAILURES;
        self.look.failures.extend(failure.filter(|failure| has_room && is_news(failure)));
    }
}
