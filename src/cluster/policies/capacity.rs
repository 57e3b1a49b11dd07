//! The room for stored policies: how many the operator uses, and how large they may be together. Everybody who may write
//! policies can write any number of them, and the operator keeps each one in memory.

use super::StoredPolicy;
use crate::api::code::Code;
use crate::api::rules::Violation;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The bytes of specs for each policy that there is room for. A spec with two containers has about 1 KiB of JSON.
const BYTES: usize = 8 * 1024;

/// A stored policy with what decides about its room.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) stored: StoredPolicy,
    /// When it was created, as the server writes it.
    pub(super) created: String,
    /// The size of the spec in bytes of JSON.
    pub(super) size: usize,
}

impl Measured {
    /// Whether it was not parsed, because there was no room.
    pub(super) fn is_unread(&self) -> bool {
        let is_reason = |violation: &Violation| violation.code == Code::TooManyPolicies;
        self.stored.parsed.as_ref().is_err_and(|violations| violations.iter().any(is_reason))
    }
}

/// The room for policies, and the policies that are in it.
#[derive(Debug)]
pub(super) struct Capacity {
    policies: usize,
    bytes: usize,
    /// The sizes of the policies that had room before, by name; none before the first look.
    admitted: Option<BTreeMap<String, usize>>,
    /// The number of policies and the bytes that the running list has shown.
    listed: (usize, usize),
}

impl Capacity {
    /// Capacity for so many `policies`.
    pub(super) fn new(policies: usize) -> Self {
        Self { policies, bytes: policies.saturating_mul(BYTES), admitted: None, listed: (0, 0) }
    }

    /// Begins a list of all policies.
    pub(super) fn begin(&mut self) {
        self.listed = (0, 0);
    }

    /// Whether a listed policy of that size is to be parsed now. A list shows the policies by name, so the ones with room
    /// are unknown before its end: it is cut off where it needs twice the room, and [`unread`] has the rest.
    pub(super) fn takes(&mut self, size: usize) -> bool {
        let (policies, bytes) = self.listed;
        self.listed = (policies + 1, bytes + size);
        policies < self.policies.saturating_mul(2) && bytes < self.bytes.saturating_mul(2)
    }

    /// The policies in `stored` without room.
    ///
    /// # Guarantees
    /// A policy that had room keeps it beside others that have grown, and one that has grown keeps it beside new ones.
    /// Among new policies the older ones come first, and among equally old ones the first by name. After a start, the
    /// status says which policies had room.
    pub(super) fn without(&mut self, stored: &BTreeMap<String, Measured>) -> BTreeSet<String> {
        let total: usize = stored.values().map(|policy| policy.size).sum();
        let sizes = || stored.iter().map(|(name, policy)| (name, &policy.size));
        // As nearly always, and for each change of a policy.
        if stored.len() <= self.policies && total <= self.bytes {
            if !self.admitted.as_ref().is_some_and(|admitted| admitted.iter().eq(sizes())) {
                self.admitted = Some(sizes().map(|(name, size)| (name.clone(), *size)).collect());
            }
            return BTreeSet::new();
        }
        let rank = |name: &str, policy: &Measured| {
            let (had_room, is_same) = match &self.admitted {
                Some(admitted) => {
                    (admitted.contains_key(name), admitted.get(name).is_some_and(|size| policy.size <= *size))
                }
                None => (policy.stored.was_accepted(), policy.stored.is_accepted()),
            };
            if is_same { 0 } else { 2 - u8::from(had_room) }
        };
        let mut in_order: Vec<(&String, &Measured)> = stored.iter().collect();
        in_order.sort_by_key(|(name, policy)| (rank(name, policy), &policy.created, *name));
        let (mut admitted, mut without, mut bytes) = (BTreeMap::new(), BTreeSet::new(), 0);
        for (name, policy) in in_order {
            if admitted.len() < self.policies && bytes + policy.size <= self.bytes {
                bytes += policy.size;
                admitted.insert(name.clone(), policy.size);
            } else {
                without.insert(name.clone());
            }
        }
        self.admitted = Some(admitted);
        without
    }

    /// The reason why a policy is not used.
    pub(super) fn refusal(&self) -> Arc<Vec<Violation>> {
        let message = format!(
            "there is no room for it: the operator uses {} policies with {} KiB of specs together (`--max-policies`), and \
             others came first",
            self.policies,
            self.bytes / 1024
        );
        Arc::new(vec![Violation { field: "spec".to_owned(), code: Code::TooManyPolicies, message }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policies(of: &[(&str, &str, usize, bool)]) -> BTreeMap<String, Measured> {
        let stored = |(name, created, size, is_accepted): &(&str, &str, usize, bool)| {
            let accepted = json!({ "type": "Accepted", "status": is_accepted.to_string().replace('t', "T"), "observedGeneration": 1 });
            let stored = StoredPolicy {
                uid: (*name).to_owned(),
                generation: 1,
                edition: 0,
                status: Arc::new(json!({ "conditions": [accepted] })),
                resumed: None,
                restarted: None,
                odd_times: Vec::new(),
                parsed: Err(Arc::default()),
            };
            ((*name).to_owned(), Measured { stored, created: (*created).to_owned(), size: *size })
        };
        of.iter().map(stored).collect()
    }

    fn without(room: &mut Capacity, of: &[(&str, &str, usize, bool)]) -> String {
        room.without(&policies(of)).into_iter().collect::<Vec<_>>().join(",")
    }

    #[test]
    fn older_policies_come_first_and_those_with_room_keep_it() {
        let mut room = Capacity::new(2);
        assert_eq!(without(&mut room, &[("c", "1", 1, false), ("b", "2", 1, false), ("a", "2", 1, false)]), "b");
        // A policy in effect has its room before older ones without.
        let mut room = Capacity::new(2);
        assert_eq!(without(&mut room, &[("a", "1", 1, false), ("b", "2", 1, true), ("c", "3", 1, true)]), "a");
        assert_eq!(without(&mut room, &[("a", "1", 1, false), ("b", "2", 1, false), ("c", "3", 1, false)]), "a");
        assert_eq!(without(&mut room, &[("a", "1", 1, false), ("c", "3", 1, true)]), "");
    }

    #[test]
    fn a_policy_that_grows_takes_no_room_from_others() {
        let mut room = Capacity::new(2);
        let (most, half) = (2 * BYTES, BYTES);
        assert_eq!(without(&mut room, &[("a", "1", 10, false), ("b", "2", half, false)]), "");
        assert_eq!(without(&mut room, &[("a", "1", most, false), ("b", "2", half, false)]), "a");
        assert_eq!(without(&mut room, &[("a", "1", half, false), ("b", "2", half, false)]), "");
        assert_eq!(without(&mut Capacity::new(2), &[("a", "1", most + 1, false), ("b", "2", half, false)]), "a");
    }

    #[test]
    fn a_policy_that_grows_stays_before_those_that_wait() {
        let mut room = Capacity::new(1);
        assert_eq!(without(&mut room, &[("b", "2", 10, true)]), "");
        assert_eq!(without(&mut room, &[("a", "1", 5, false), ("b", "2", 10, true)]), "a");
        assert_eq!(without(&mut room, &[("a", "1", 5, false), ("b", "2", 11, true)]), "a", "though it is older");
        assert_eq!(without(&mut Capacity::new(1), &[("a", "1", 5, false), ("b", "2", 11, true)]), "a", "after a start");
    }

    #[test]
    fn a_list_is_cut_off_where_it_needs_twice_the_room() {
        let mut room = Capacity::new(1);
        assert_eq!([1, 1, 1].map(|size| room.takes(size)), [true, true, false]);
        room.begin();
        assert_eq!([2 * BYTES, 1].map(|size| room.takes(size)), [true, false]);
    }
}
