//! The emergency brake: for a while the operator does not restore a registration that somebody else deleted.

use crate::api::code::Code;
use crate::api::condition::condition_in;
use crate::engine::{EngineName, Unavailable};
use jiff::Timestamp;
use serde_json::Value;
use std::fmt;
use std::time::{Duration, Instant};

/// When the operator may restore a registration that a person deleted.
///
/// Our own monotonic clock counts the time, because wall clocks jump and differ between replicas. So a new leader starts again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hold {
    begun: Instant,
    period: Duration,
    /// The end by the wall clock, for messages.
    until: Timestamp,
}

impl Hold {
    /// A hold from `now` for `period`. `wall` is the same moment by the wall clock.
    pub fn begin(now: Instant, wall: Timestamp, period: Duration) -> Self {
        let until = wall.checked_add(period).unwrap_or(Timestamp::MAX);
        Self { begun: now, period, until }
    }

    /// Whether the missing registration of a policy with `status` was deleted by hand. The status says that the policy was in
    /// effect by `engine`, or that an earlier leader began a hold. An operator that removes a registration writes the status
    /// first.
    pub fn is_due(status: &Value, engine: EngineName) -> bool {
        let engines = status["engine"].as_str().unwrap_or_default();
        let is_programmed = condition_in(status, "Programmed").is_some_and(|programmed| programmed["status"] == "True");
        (is_programmed && EngineName::listed(engines).any(|listed| listed == engine)) || Self::is_told(status)
    }

    /// Whether `status` says that an earlier leader began a hold.
    pub fn is_told(status: &Value) -> bool {
        condition_in(status, "Programmed").is_some_and(|programmed| programmed["reason"] == "RemovedByHand")
    }

    /// Why nothing may be registered; none if there is no hold or it is over. A hold ends once the object `is_registered`.
    /// Until then it is kept even if it is over, so that it does not begin again.
    pub fn stand(hold: &mut Option<Self>, is_registered: bool, now: Instant) -> Option<Unavailable> {
        *hold = hold.filter(|_| !is_registered);
        hold.filter(|hold| !hold.is_over(now)).map(|hold| hold.reason())
    }

    pub fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.begun) >= self.period
    }

    /// Why nothing is registered.
    pub fn reason(&self) -> Unavailable {
        let message = format!(
            "the registration was deleted by hand; it is not made again before {self}. To end the hold: suspend the policy and resume it"
        );
        Unavailable::new(Code::RemovedByHand, message)
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.until.strftime("%Y-%m-%dT%H:%M:%SZ").fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_hold_that_an_earlier_leader_began_counts_anew_whatever_its_clock_said() {
        for begun in ["2001-01-01T00:00:00Z", "2101-01-01T00:00:00Z"] {
            let programmed = json!({ "type": "Programmed", "status": "False", "reason": "RemovedByHand", "lastTransitionTime": begun });
            assert!(Hold::is_due(&json!({ "conditions": [programmed] }), EngineName("Initializer")), "{begun}");
        }
        let now = Instant::now();
        let over = |period| Hold::begin(now, Timestamp::now(), period).is_over(now);
        assert!(!over(Duration::from_secs(600)) && over(Duration::ZERO));
    }

    #[test]
    fn a_policy_that_was_in_force_by_another_engine_is_not_held() {
        let status = json!({ "engine": "Webhook", "conditions": [{ "type": "Programmed", "status": "True" }] });
        assert!(Hold::is_due(&status, EngineName("Webhook")) && !Hold::is_due(&status, EngineName("Initializer")));
    }
}
