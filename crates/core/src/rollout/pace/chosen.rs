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

/// What is chosen so far, and what may still be.
pub(super) struct Chosen<'a> {
    pub(super) rooms: Rooms<'a>,
    /// The owners of which a pod is chosen.
    pub(super) owners: BTreeSet<&'a str>,
    /// The owners of pods that wait.
    pub(super) blocked: BTreeSet<&'a str>,
    pub(super) reasons: Reasons<'a>,
}

/// How many more may be chosen.
pub(super) struct Rooms<'a> {
    pub(super) all: Room,
    /// The same in each namespace, if the policy limits that.
    pub(super) by_namespace: HashMap<&'a str, Room>,
    /// How many more the record can announce.
    pub(super) slots: usize,
    pub(super) evictions: usize,
    /// How many evictions may be done that were announced more than a minute ago. The announcements count no more.
    pub(super) late: usize,
    /// How many more the record can list as broken before.
    pub(super) broken: usize,
}

/// Why some are not chosen.
#[derive(Default)]
pub(super) struct Reasons<'a> {
    /// Whether something waits because of the limit of evictions.
    pub(super) is_limited: bool,
    /// Whether something waits because of `maxUnavailable`.
    pub(super) is_full: bool,
    /// The first namespace in which something waits because of `maxUnavailablePerNamespace`.
    pub(super) full: Option<&'a str>,
    /// Whether something waits because its owner lacks another pod.
    pub(super) is_owner_busy: bool,
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
        if *which(&mut self.rooms.all) == 0 {
            self.reasons.is_full = true;
            return false;
        }
        let is_full = self.rooms.by_namespace.get_mut(namespace).is_some_and(|room| *which(room) == 0);
        if is_full {
            self.reasons.full.get_or_insert(namespace);
        }
        !is_full
    }

    pub(super) fn take(&mut self, namespace: &str, which: impl Fn(&mut Room) -> &mut usize) {
        for room in [Some(&mut self.rooms.all), self.rooms.by_namespace.get_mut(namespace)].into_iter().flatten() {
            let left = which(room);
            *left = left.saturating_sub(1);
        }
    }
}
