//! The emergency brake: a registration that somebody else deleted is not made again for a while.

use super::status::condition_in;
use crate::api::code::Code;
use crate::engine::{EngineName, Unavailable};
use jiff::Timestamp;
use serde_json::Value;
use std::fmt;
use std::time::Duration;
use tracing::warn;

/// When a registration that was deleted by hand may be made again.
#[derive(Clone, Copy)]
pub(super) struct Hold(Timestamp);

impl Hold {
    /// From now on, for `period`.
    pub(super) fn begin(period: Duration) -> Self {
        Self::since(Timestamp::now(), period)
    }

    fn since(start: Timestamp, period: Duration) -> Self {
        Self(start.checked_add(period).unwrap_or(Timestamp::MAX))
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
        if programmed["reason"] != "RemovedByHand" {
            return None;
        }
        let start = programmed["lastTransitionTime"].as_str()?.parse().unwrap_or_else(|_| Timestamp::now());
        Some(Self::since(start, period))
    }

    pub(super) fn is_over(&self) -> bool {
        self.0 <= Timestamp::now()
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
        self.0.strftime("%Y-%m-%dT%H:%M:%SZ").fmt(f)
    }
}
