//! What went wrong lately, per policy: samples for `status.failures`, and troubles that last. Pure: time is passed in.

use crate::api::code::Code;
use crate::api::v1alpha1::Failure;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// How many failures a status shows.
const SAMPLES: usize = 5;
/// How long a message in a status may be, so that five of them stay under the limit of 4 KiB for the whole status.
const MESSAGE: usize = 256;
/// How long a trouble that has not come again is reported.
const LASTING: Duration = Duration::from_secs(60);

/// The book.
#[derive(Default)]
pub struct Ledger {
    failures: BTreeMap<String, VecDeque<Failure>>,
    troubles: BTreeMap<String, (Code, String, Instant)>,
    /// What a policy in Audit mode would do to one workload, by the hash of its spec. The first stays, so that a status at rest
    /// is not written.
    samples: BTreeMap<String, (String, String)>,
}

impl Ledger {
    /// Notes that `policy` could not be injected somewhere.
    pub fn failed(&mut self, policy: &str, mut failure: Failure) {
        shorten(&mut failure.message);
        let failures = self.failures.entry(policy.to_owned()).or_default();
        failures
            .retain(|old| (&old.kind, &old.namespace, &old.name) != (&failure.kind, &failure.namespace, &failure.name));
        failures.push_front(failure);
        failures.truncate(SAMPLES);
    }

    /// Forgets that the object failed: it is gone, or has what it lacked.
    pub fn healed(&mut self, kind: &str, namespace: &str, name: &str) {
        for failures in self.failures.values_mut() {
            failures.retain(|old| {
                (old.kind.as_str(), old.namespace.as_str(), old.name.as_str()) != (kind, namespace, name)
            });
        }
    }

    /// The last failures of `policy`, newest first.
    pub fn failures(&self, policy: &str) -> Vec<Failure> {
        self.failures.get(policy).into_iter().flatten().cloned().collect()
    }

    /// Notes a trouble that keeps `policy` from working as it should, and that may last.
    pub fn trouble(&mut self, policy: &str, code: Code, mut message: String, now: Instant) {
        shorten(&mut message);
        self.troubles.insert(policy.to_owned(), (code, message, now));
    }

    /// The trouble of `policy` that lasts.
    pub fn lasting(&self, policy: &str, now: Instant) -> Option<(Code, String)> {
        let (code, message, since) = self.troubles.get(policy)?;
        (now.duration_since(*since) < LASTING).then(|| (*code, message.clone()))
    }

    /// Notes what `policy`, whose spec has that hash, would do to a workload, unless something has been noted.
    pub fn would(&mut self, policy: &str, hash: &str, tell: impl FnOnce() -> Option<String>) {
        if self.sample(policy, hash).is_none()
            && let Some(sample) = tell()
        {
            self.samples.insert(policy.to_owned(), (hash.to_owned(), sample));
        }
    }

    /// What `policy`, whose spec has that hash, would do to one of the workloads.
    pub fn sample(&self, policy: &str, hash: &str) -> Option<String> {
        self.samples.get(policy).filter(|(known, _)| known == hash).map(|(_, sample)| sample.clone())
    }

    /// Forgets a policy.
    pub fn forget(&mut self, policy: &str) {
        self.samples.remove(policy);
        self.failures.remove(policy);
        self.troubles.remove(policy);
    }
}

fn shorten(message: &mut String) {
    if message.len() > MESSAGE {
        let end = (0..=MESSAGE).rev().find(|&end| message.is_char_boundary(end)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_failures_are_kept_newest_first_and_each_object_once() {
        let mut ledger = Ledger::default();
        for name in ["a", "b", "c", "d", "e", "f", "f"] {
            let failure = Failure {
                kind: "Pod".into(),
                namespace: "n".into(),
                name: name.into(),
                message: "ü".repeat(500),
                ..Failure::default()
            };
            ledger.failed("p", failure);
        }
        let names: Vec<_> = ledger.failures("p").into_iter().map(|failure| failure.name).collect();
        assert_eq!(names, ["f", "e", "d", "c", "b"]);
        assert!(ledger.failures("p")[0].message.len() <= MESSAGE + 3);
        ledger.healed("Pod", "n", "f");
        assert_eq!(ledger.failures("p").len(), 4);
    }
}
