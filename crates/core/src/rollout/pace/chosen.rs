//! What may still be chosen at a look, and what those wait for that are not.

use crate::workload::ObjectRef;
use std::collections::{BTreeSet, HashMap};

/// How many available workloads may be updated yet.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// Those that the record does not announce.
    pub(super) new: usize,
    /// Those that it announces: they count already.
    pub(super) announced: usize,
}

/// What may still be chosen.
pub(super) struct Chosen<'a> {
    pub(super) all: Room,
    /// The same in each namespace, if the policy limits that.
    pub(super) by_namespace: HashMap<&'a str, Room>,
    pub(super) slots: usize,
    pub(super) evictions: usize,
    /// How many evictions may be done that were announced more than a minute ago. The announcements count no more.
    pub(super) late: usize,
    /// How many more the record can list as broken before.
    pub(super) broken: usize,
    /// The owners of which a pod is chosen.
    pub(super) owners: BTreeSet<&'a str>,
    /// The owners of pods that wait.
    pub(super) blocked: BTreeSet<&'a str>,
    pub(super) is_limited: bool,
    /// How many wait because of `maxUnavailable`.
    pub(super) waiting: usize,
    /// The first namespace in which something waits because of `maxUnavailablePerNamespace`.
    pub(super) full: Option<&'a str>,
    /// How many wait because their owner lacks another pod.
    pub(super) busy: usize,
    /// The first pod that is not available, and for which another one of its owner waits.
    pub(super) beside: Option<&'a ObjectRef>,
    /// The first owner of these that has more pods than it is known to want.
    pub(super) unclear: Option<&'a str>,
    /// The first owner of which another policy may be evicting a pod.
    pub(super) shared: Option<&'a str>,
    /// Whether something waits because the record has no room.
    pub(super) is_crowded: bool,
}

impl<'a> Chosen<'a> {
    /// Whether one more available workload of `namespace` may be updated. Notes what it waits for.
    pub(super) fn has_room(&mut self, namespace: &'a str, which: impl Fn(&mut Room) -> &mut usize) -> bool {
        if *which(&mut self.all) == 0 {
            self.waiting += 1;
            return false;
        }
        let is_full = self.by_namespace.get_mut(namespace).is_some_and(|room| *which(room) == 0);
        if is_full {
            self.full.get_or_insert(namespace);
        }
        !is_full
    }

    pub(super) fn take(&mut self, namespace: &str, which: impl Fn(&mut Room) -> &mut usize) {
        for room in [Some(&mut self.all), self.by_namespace.get_mut(namespace)].into_iter().flatten() {
            let left = which(room);
            *left = left.saturating_sub(1);
        }
    }
}
