//! Recent failures per policy: samples for `status.failures`, and lasting troubles. Pure: time is passed in.

use crate::api::code::Code;
use crate::api::v1alpha1::Failure;
use crate::outside::{beginning, escaped};
use crate::policy::PolicyRef;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

/// The number of failures in a status.
const SAMPLES: usize = 5;
/// The largest size of a message in a status, so that five of them stay under the limit of 4 KiB for the whole status.
const MESSAGE: usize = 256;

/// The fate of a workload that could not be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// The workload matches, and is stored without the sidecar.
    Missed,
    /// The workload is stored. Whether it matches, or is valid, is unknown.
    Untold,
    /// The create was rejected, so the workload is not stored.
    Refused,
}

/// The hashes of an object: of its kind, and of its namespace and name.
pub type Hashes = (u64, u64);

struct Failed {
    hashes: Hashes,
    failure: Failure,
    fate: AfterFailure,
}

#[derive(Default)]
pub struct Ledger {
    failures: BTreeMap<PolicyRef, VecDeque<Failed>>,
    /// The stored objects that each policy missed because of a failure. There may be many.
    missed: BTreeMap<PolicyRef, HashSet<Hashes>>,
    hasher: RandomState,
    /// Each with the time at which it ends, unless it recurs.
    troubles: BTreeMap<PolicyRef, (Code, String, Instant)>,
    /// What a policy in Audit mode would do to one workload, with the hash of the policy's spec. The first sample stays, so
    /// that the status does not change without need.
    samples: BTreeMap<PolicyRef, (String, String)>,
}

impl Ledger {
    /// Records that `policy` could not be injected into an object.
    pub fn failed(&mut self, policy: &PolicyRef, mut failure: Failure, fate: AfterFailure) {
        shorten(&mut failure.message);
        let hashes = self.hashes(&failure.kind, &failure.namespace, &failure.name);
        let missed = self.missed.entry(policy.clone()).or_default();
        match fate {
            AfterFailure::Missed => missed.insert(hashes),
            AfterFailure::Untold | AfterFailure::Refused => missed.remove(&hashes),
        };
        let failures = self.failures.entry(policy.clone()).or_default();
        failures.retain(|old| old.hashes != hashes);
        failures.push_front(Failed { hashes, failure, fate });
        failures.truncate(SAMPLES);
    }

    /// Removes the failures of an object that has its sidecars now.
    pub fn healed(&mut self, kind: &str, namespace: &str, name: &str) {
        self.forget_object(self.hashes(kind, namespace, name), |_| true);
    }

    /// Removes the failures of a deleted object. A rejected create stays, because it is still useful to know.
    pub fn deleted(&mut self, kind: &str, namespace: &str, name: &str) {
        self.forget_object(self.hashes(kind, namespace, name), is_stored);
    }

    /// The failed and stored objects of `kind`. If a list of the kind does not show one, it was deleted without an event.
    pub fn stored(&self, kind: &str) -> HashSet<Hashes> {
        let failures =
            self.failures.values().flatten().filter(|failed| is_stored(failed.fate)).map(|failed| failed.hashes);
        let (of_kind, _) = self.hashes(kind, "", "");
        self.missed.values().flatten().copied().chain(failures).filter(|(kind, _)| *kind == of_kind).collect()
    }

    /// Removes the failures of deleted objects.
    pub fn gone(&mut self, objects: &HashSet<Hashes>) {
        for object in objects {
            self.forget_object(*object, is_stored);
        }
    }

    fn forget_object(&mut self, object: Hashes, forgets: impl Fn(AfterFailure) -> bool) {
        for missed in self.missed.values_mut() {
            missed.remove(&object);
        }
        for failures in self.failures.values_mut() {
            failures.retain(|failed| failed.hashes != object || !forgets(failed.fate));
        }
    }

    /// The last failures of `policy`, newest first.
    pub fn failures(&self, policy: &PolicyRef) -> Vec<Failure> {
        self.failures.get(policy).into_iter().flatten().map(|failed| failed.failure.clone()).collect()
    }

    /// The number of stored objects that `policy` matches and could not be injected into.
    pub fn missed(&self, policy: &PolicyRef) -> i64 {
        self.missed.get(policy).map_or(0, |missed| missed.len() as i64)
    }

    /// The hashes of an object in this ledger.
    pub fn hashes(&self, kind: &str, namespace: &str, name: &str) -> Hashes {
        (self.hasher.hash_one(kind), self.hasher.hash_one((namespace, name)))
    }

    /// Records a trouble that keeps `policy` from working fully, and that ends at `until` unless it recurs.
    pub fn trouble(&mut self, policy: &PolicyRef, code: Code, mut message: String, until: Instant) {
        shorten(&mut message);
        self.troubles.insert(policy.clone(), (code, message, until));
    }

    /// The trouble of `policy` that lasts `now`.
    pub fn lasting(&self, policy: &PolicyRef, now: Instant) -> Option<(Code, String)> {
        let (code, message, until) = self.troubles.get(policy)?;
        (now < *until).then(|| (*code, message.clone()))
    }

    /// Records the effect that `policy`, whose spec has that hash, would have on a workload, unless a sample exists.
    pub fn would(&mut self, policy: &PolicyRef, hash: &str, tell: impl FnOnce() -> Option<String>) {
        if self.sample(policy, hash).is_none()
            && let Some(sample) = tell()
        {
            self.samples.insert(policy.clone(), (hash.to_owned(), sample));
        }
    }

    /// The recorded effect that `policy`, whose spec has that hash, would have on a workload.
    pub fn sample(&self, policy: &PolicyRef, hash: &str) -> Option<String> {
        self.samples.get(policy).filter(|(known, _)| known == hash).map(|(_, sample)| sample.clone())
    }

    pub fn forget(&mut self, policy: &PolicyRef) {
        self.samples.remove(policy);
        self.failures.remove(policy);
        self.missed.remove(policy);
        self.troubles.remove(policy);
    }
}

fn is_stored(fate: AfterFailure) -> bool {
    fate != AfterFailure::Refused
}

fn shorten(message: &mut String) {
    *message = escaped(message).into_owned();
    if message.len() > MESSAGE {
        message.truncate(beginning(message, MESSAGE).len());
        message.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> PolicyRef {
        PolicyRef::of_cluster(name)
    }

    fn failure(name: &str) -> Failure {
        Failure {
            kind: "Pod".into(),
            namespace: "n".into(),
            name: name.into(),
            message: "ü".repeat(500),
            ..Failure::default()
        }
    }

    #[test]
    fn every_object_that_is_stored_without_is_counted_and_what_is_stored_nowhere_is_only_told() {
        let mut ledger = Ledger::default();
        for number in 0..20 {
            ledger.failed(&of("p"), failure(&number.to_string()), AfterFailure::Missed);
        }
        ledger.failed(&of("p"), failure("refused"), AfterFailure::Refused);
        ledger.failed(&of("p"), failure("untold"), AfterFailure::Untold);
        assert_eq!(ledger.missed(&of("p")), 20);
        for name in ["0", "refused", "untold"] {
            ledger.deleted("Pod", "n", name);
        }
        assert_eq!(ledger.missed(&of("p")), 19);
        assert_eq!(ledger.failures(&of("p"))[0].name, "refused");
        ledger.healed("Pod", "n", "refused");
        assert_eq!(ledger.failures(&of("p"))[0].name, "19");
    }

    #[test]
    fn what_a_list_does_not_show_is_gone_but_for_other_kinds_and_what_was_refused() {
        let mut ledger = Ledger::default();
        ledger.failed(&of("p"), failure("refused"), AfterFailure::Refused);
        ledger.failed(&of("p"), failure("untold"), AfterFailure::Untold);
        for number in 0..20 {
            ledger.failed(&of("p"), failure(&number.to_string()), AfterFailure::Missed);
        }
        ledger.failed(&of("q"), Failure { kind: "Job".into(), ..failure("1") }, AfterFailure::Missed);
        for name in ["refused", "untold"] {
            ledger.failed(
                &of("r"),
                failure(name),
                if name == "untold" { AfterFailure::Untold } else { AfterFailure::Refused },
            );
        }
        let mut unseen = ledger.stored("Pod");
        assert!(unseen.remove(&ledger.hashes("Pod", "n", "19")) && unseen.remove(&ledger.hashes("Pod", "n", "0")));
        assert!(!unseen.remove(&ledger.hashes("Pod", "n", "refused")));
        ledger.gone(&unseen);
        assert_eq!((ledger.missed(&of("p")), ledger.missed(&of("q"))), (2, 1));
        let told = |policy| ledger.failures(&of(policy)).into_iter().map(|failure| failure.name).collect::<Vec<_>>();
        assert_eq!((told("p"), told("q"), told("r")), (vec!["19".into()], vec!["1".into()], vec!["refused".into()]));
    }

    #[test]
    fn five_failures_are_kept_newest_first_and_each_object_once() {
        let mut ledger = Ledger::default();
        for name in ["a", "b", "c", "d", "e", "f", "f"] {
            ledger.failed(&of("p"), failure(name), AfterFailure::Missed);
        }
        let names: Vec<_> = ledger.failures(&of("p")).into_iter().map(|failure| failure.name).collect();
        assert_eq!(names, ["f", "e", "d", "c", "b"]);
        assert!(ledger.failures(&of("p"))[0].message.len() <= MESSAGE + 3);
        ledger.healed("Pod", "n", "f");
        assert_eq!(ledger.failures(&of("p")).len(), 4);
    }
}
