//! The priority lane: completing PATCHes that the API server's limit of requests does not hold up.
//!
//! The limit exempts members of the group `system:masters` alone. So, where whoever runs the operator allows it, these requests
//! impersonate the operator itself *and* that group: the group alone is refused (1.13.5 answers 500).

use crate::survival::lock;
use crate::timing;
use http::request::Builder;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The group that the limit exempts.
const GROUP: &str = "system:masters";

/// The lane of one operator.
pub struct Lane {
    user: String,
    closed: Mutex<Option<Instant>>,
    /// How long it is not tried again after a refusal.
    pause: Duration,
}

impl Lane {
    /// The lane of the ServiceAccount `scpol` in `namespace`: the one that the shipped right names.
    pub fn new(namespace: &str, timing: &timing::Initializer) -> Self {
        let user = format!("system:serviceaccount:{namespace}:scpol");
        Self { user, closed: Mutex::default(), pause: timing.lane_closed }
    }

    /// True unless it has been refused lately.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        let closed = *lock(&self.closed);
        closed.is_none_or(|closed| now.duration_since(closed) >= self.pause)
    }

    /// Notes that the server has refused the impersonation.
    pub(super) fn close(&self, now: Instant) {
        *lock(&self.closed) = Some(now);
    }

    /// Puts a request on the lane.
    pub(super) fn put(&self, request: Builder) -> Builder {
        request.header("Impersonate-User", &self.user).header("Impersonate-Group", GROUP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;

    #[test]
    fn a_lane_that_has_been_refused_is_tried_again_after_a_minute() {
        let (lane, now) = (Lane::new("scpol-system", &Timing::documented().initializer), Instant::now());
        assert!(lane.is_open(now));
        lane.close(now);
        assert!(!lane.is_open(now + Duration::from_secs(59)) && lane.is_open(now + Duration::from_secs(60)));
    }
}
