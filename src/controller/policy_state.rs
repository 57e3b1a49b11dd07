//! The controller's knowledge about one policy, beside its registrations.

use crate::api::code::Code;
use crate::api::condition::Readiness;
use crate::engine::Unavailable;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) struct PolicyState {
    pub(super) uid: String,
    pub(super) outcome: Readiness,
    /// Whether the policy was suspended or in Audit mode at the last look.
    pub(super) is_off: bool,
    pub(super) seen: Instant,
    pub(super) writes: Writes,
    /// The hash of the last spec that was in effect; none after an edit.
    pub(super) concluded: Option<String>,
    /// The reason of the condition Ready in the last event.
    pub(super) announced: Option<Value>,
}

impl PolicyState {
    pub(super) fn new(uid: &str, now: Instant) -> Self {
        Self {
            uid: uid.to_owned(),
            outcome: Readiness::FirstSight,
            is_off: false,
            seen: now,
            writes: Writes::default(),
            concluded: None,
            announced: None,
        }
    }
}

/// The most statuses of one policy in a row. An edit takes about three, and each step of a rollout two.
const BURST: u32 = 10;
/// The statuses of one policy that a period adds to those. A condition that flips again and again causes no more.
const FLOW: u32 = 5;

/// When the status of one policy may be written. A fact is written at once; counts, and the words of messages, once in a period.
#[derive(Default)]
pub(super) struct Writes {
    /// When the last write began.
    pub(super) last: Option<Instant>,
    /// The moment at which all of [`BURST`] may be written again.
    full: Option<Instant>,
    has_failed: bool,
    /// What the last write has written, and the status that it replaced. The watch may not show it yet.
    sent: Option<(Arc<Value>, Arc<Value>)>,
}

impl Writes {
    /// The status on the server, if the watch shows `stored`.
    pub(super) fn known(&self, stored: &Arc<Value>, now: Instant, period: Duration) -> Arc<Value> {
        match &self.sent {
            Some((before, sent)) if before == stored && !self.is_over(now, period) => sent.clone(),
            _ => stored.clone(),
        }
    }

    /// Whether `new` may replace `known` now.
    pub(super) fn may_replace(&self, known: &Value, new: &Value, now: Instant, period: Duration) -> bool {
        let debt = self.full.map_or(Duration::ZERO, |full| full.saturating_duration_since(now));
        let may_flow = !self.has_failed && debt + period / FLOW <= BURST * (period / FLOW);
        self.is_over(now, period) || may_flow && essence(known) != essence(new)
    }

    /// Records that a write begins, of `sent` over `stored`.
    pub(super) fn begin(&mut self, stored: &Arc<Value>, sent: &Arc<Value>, now: Instant, period: Duration) {
        let full = self.full.map_or(now, |full| full.max(now)) + period / FLOW;
        let sent = Some((stored.clone(), sent.clone()));
        *self = Self { last: Some(now), full: Some(full), has_failed: false, sent };
    }

    /// Records that the write that began then has failed. If it was the last one, only the watch tells what is stored.
    pub(super) fn fail(&mut self, began: Instant) {
        if self.last == Some(began) {
            (self.has_failed, self.sent) = (true, None);
        }
    }

    fn is_over(&self, now: Instant, period: Duration) -> bool {
        self.last.is_none_or(|last| now.saturating_duration_since(last) >= period)
    }
}

/// The fields of a status that may be late: counts, and what has failed.
const LATE: [&str; 10] =
    ["matched", "injected", "edited", "outdated", "missed", "updated", "ready", "failed", "pending", "failures"];

/// What is written at once: `status` without the fields that may be late, and without the messages of conditions.
fn essence(status: &Value) -> Value {
    let mut essence = status.clone();
    if let Some(fields) = essence.as_object_mut() {
        fields.retain(|field, _| !LATE.contains(&field.as_str()));
    }
    for condition in essence["conditions"].as_array_mut().into_iter().flatten() {
        if let Some(fields) = condition.as_object_mut() {
            fields.remove("message");
        }
    }
    essence
}

pub(super) fn outcome_of(unavailable: Unavailable) -> Readiness {
    let Unavailable { code, message } = unavailable;
    match code {
        // A task of ours is not finished.
        Code::Reconciling => Readiness::FirstSight,
        Code::TemplateInvalid => Readiness::Rejected { code, message },
        Code::MissingRight
        | Code::ServerAway
        | Code::NotSynced
        | Code::ProbeFailed
        | Code::RemovedByHand
        | Code::WebhookUnreachable => Readiness::Waiting { code, message },
        _ => Readiness::Impossible { code, message },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PERIOD: Duration = Duration::from_secs(10);

    fn status() -> Value {
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "Programmed", "message": "m", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        json!({
            "conditions": [ready], "observedGeneration": 1, "observedSpecHash": "a", "engine": "Webhook",
            "initializerName": "i", "templateHash": "t", "currentRevision": "r", "updateRevision": "r",
            "halted": false, "restartedAt": null, "matched": 1, "injected": 1, "edited": 1, "outdated": 1, "missed": 1,
            "updated": 1, "ready": 1, "failed": 1, "pending": 1, "failures": [],
        })
    }

    fn with(pointer: &str, value: Value) -> Value {
        let mut status = status();
        *status.pointer_mut(pointer).unwrap() = value;
        status
    }

    /// Every field of a status, and whether its change is written at once.
    #[test]
    fn facts_are_written_at_once_and_counts_and_words_once_in_a_period() {
        let table = [
            ("/conditions/0/status", true),
            ("/conditions/0/reason", true),
            ("/conditions/0/message", false),
            ("/observedGeneration", true),
            ("/observedSpecHash", true),
            ("/engine", true),
            ("/initializerName", true),
            ("/templateHash", true),
            ("/currentRevision", true),
            ("/updateRevision", true),
            ("/halted", true),
            ("/restartedAt", true),
            ("/matched", false),
            ("/injected", false),
            ("/edited", false),
            ("/outdated", false),
            ("/missed", false),
            ("/updated", false),
            ("/ready", false),
            ("/failed", false),
            ("/pending", false),
            ("/failures", false),
        ];
        let (old, now) = (Arc::new(status()), Instant::now());
        let mut writes = Writes::default();
        assert!(writes.may_replace(&json!({}), &old, now, PERIOD), "the first");
        writes.begin(&Arc::new(json!({})), &old, now, PERIOD);
        for (pointer, is_at_once) in table {
            let new = with(pointer, json!("other"));
            let may = |after| writes.may_replace(&old, &new, now + after, PERIOD);
            assert_eq!(may(Duration::from_secs(1)), is_at_once, "{pointer}");
            assert!(may(PERIOD), "{pointer}");
        }
        let fields: Vec<String> = status().as_object().unwrap().keys().map(|field| format!("/{field}")).collect();
        let is_in_table = |field: &&String| table.iter().any(|(pointer, _)| pointer.starts_with(field.as_str()));
        assert!(fields.iter().all(|field| is_in_table(&field)), "{fields:?}");
        let new = with("/conditions", json!([]));
        assert!(writes.may_replace(&old, &new, now, PERIOD), "a condition ends");
    }

    #[test]
    fn a_condition_that_flips_again_and_again_causes_a_bounded_number_of_writes() {
        let (on, off) = (Arc::new(with("/halted", json!(true))), Arc::new(status()));
        let begin = Instant::now();
        // The pause between two flips in ms, and the number of writes in 100 s.
        for (pause, expected) in [(10, 60), (100, 60), (2_000, 50), (4_000, 25)] {
            let (mut writes, mut count) = (Writes::default(), 0);
            for flip in 0..100_000 / pause {
                let now = begin + Duration::from_millis(pause * flip);
                let (old, new) = if flip % 2 == 0 { (&on, &off) } else { (&off, &on) };
                if writes.may_replace(old, new, now, PERIOD) {
                    writes.begin(old, new, now, PERIOD);
                    count += 1;
                }
            }
            assert!(count <= expected && count + 1 >= expected, "{count} in 100 s, every {pause} ms");
        }
    }

    #[test]
    fn after_a_failure_nothing_is_written_before_the_period_is_over() {
        let (old, new, now) = (Arc::new(status()), Arc::new(with("/halted", json!(true))), Instant::now());
        let mut writes = Writes::default();
        writes.begin(&old, &new, now, PERIOD);
        assert_eq!(writes.known(&old, now, PERIOD), new, "it is sent");
        writes.fail(now - PERIOD);
        assert_eq!(writes.known(&old, now, PERIOD), new, "an earlier one failed");
        writes.fail(now);
        assert_eq!(writes.known(&old, now, PERIOD), old, "it is not stored");
        assert!(!writes.may_replace(&old, &new, now + PERIOD / 2, PERIOD));
        assert!(writes.may_replace(&old, &new, now + PERIOD, PERIOD));
        writes.begin(&old, &new, now + PERIOD, PERIOD);
        assert!(writes.may_replace(&new, &old, now + PERIOD, PERIOD), "the next one was stored");
    }

    #[test]
    fn what_was_sent_is_known_until_the_watch_shows_something_else_or_nothing_for_a_period() {
        let (old, new, other) = (Arc::new(status()), Arc::new(with("/halted", json!(true))), Arc::new(json!({})));
        let (mut writes, now) = (Writes::default(), Instant::now());
        assert_eq!(writes.known(&old, now, PERIOD), old);
        writes.begin(&old, &new, now, PERIOD);
        assert_eq!(writes.known(&Arc::new(status()), now, PERIOD), new, "listed again");
        assert_eq!(writes.known(&other, now, PERIOD), other, "somebody else wrote");
        assert_eq!(writes.known(&old, now + PERIOD, PERIOD), old, "it was lost");
    }
}
