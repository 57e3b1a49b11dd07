//! The emergency brake: a registration that somebody else deleted is not made again for a while.

use super::status::condition_in;
use crate::api::code::Code;
use crate::engine::{EngineName, Unavailable};
use jiff::Timestamp;
use serde_json::Value;
use std::fmt;
use std::time::{Duration, Instant};
use tracing::warn;

/// When a registration that was deleted by hand may be made again.
///
/// It is judged by our own monotonic clock: wall clocks jump, and those of two replicas differ. So a new leader counts anew.
#[derive(Clone, Copy)]
pub(super) struct Hold {
    begun: Instant,
    period: Duration,
    /// For people, by the wall clock.
    until: Timestamp,
}

impl Hold {
    /// From now on, for `period`.
    pub(super) fn begin(period: Duration) -> Self {
        let until = Timestamp::now().checked_add(period).unwrap_or(Timestamp::MAX);
        Self { begun: Instant::now(), period, until }
    }

    /// Of `policy`, whose registration is not there: its `status` says that it was in force by `engine`, or that an earlier
    /// leader has begun the hold.
    pub(super) fn found(policy: &str, status: &Value, engine: EngineName, period: Duration) -> Option<Self> {
        let programmed = condition_in(status, "Programmed")?;
        let engines = status["engine"].as_str().unwrap_or_default();
        // What we remove ourselves is marked in status first: nobody did here.
        if programmed["status"] == "True" && EngineName::listed(engines).any(|listed| listed == engine) {
            let hold = Self::begin(period);
            warn!(policy, until = %hold, "The registration was removed by hand; it is not made again before");
            return Some(hold);
        }
        Self::is_told(status).then(|| Self::begin(period))
    }

    /// True if and only if `status` says that an earlier leader has begun a hold.
    pub(super) fn is_told(status: &Value) -> bool {
        condition_in(status, "Programmed").is_some_and(|programmed| programmed["reason"] == "RemovedByHand")
    }

    /// Why nothing may be registered, where it `is_registered` or not. One that is over stays until something is registered: it is
    /// not found a second time.
    pub(super) fn stand(hold: &mut Option<Self>, is_registered: bool) -> Option<Unavailable> {
        *hold = hold.filter(|_| !is_registered);
        hold.filter(|hold| !hold.is_over()).map(|hold| hold.reason())
    }

    pub(super) fn is_over(&self) -> bool {
        self.begun.elapsed() >= self.period
    }

    /// Why nothing is registered.
    pub(super) fn reason(&self) -> Unavailable {
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
    fn what_an_earlier_leader_has_begun_counts_anew_whatever_its_clock_said() {
        for begun in ["2001-01-01T00:00:00Z", "2101-01-01T00:00:00Z"] {
            let programmed = json!({ "type": "Programmed", "status": "False", "reason": "RemovedByHand", "lastTransitionTime": begun });
            let status = json!({ "conditions": [programmed] });
            let found = |period| Hold::found("envoy", &status, EngineName::Initializer, period).unwrap();
            assert!(!found(Duration::from_secs(600)).is_over(), "{begun}");
            assert!(found(Duration::ZERO).is_over(), "{begun}");
        }
    }
}
