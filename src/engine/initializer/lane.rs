//! The priority lane: completing PATCHes that bypass the API server's limit of requests.
//!
//! The limit exempts only members of the group `system:masters`. So these requests impersonate the operator itself *and* that
//! group, if the cluster's administrator allows it. The group alone is rejected (1.13.5 answers 500).

use crate::survival::lock;
use crate::timing;
use http::request::Builder;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The group that the limit exempts.
const GROUP: &str = "system:masters";

pub struct Lane {
    user: String,
    closed: Mutex<Option<Instant>>,
    /// The time without a new attempt after a rejection.
    pause: Duration,
}

impl Lane {
    /// The lane of the ServiceAccount `scpol` in `namespace`, which the shipped right names.
    pub fn new(namespace: &str, timing: &timing::Initializer) -> Self {
        let user = format!("system:serviceaccount:{namespace}:scpol");
        Self { user, closed: Mutex::default(), pause: timing.lane_closed }
    }

    /// Whether there was no recent rejection.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        let closed = *lock(&self.closed);
        closed.is_none_or(|closed| now.duration_since(closed) >= self.pause)
    }

    /// Records that the server rejected the impersonation.
    pub(super) fn close(&self, now: Instant) {
        *lock(&self.closed) = Some(now);
    }

    /// Adds the impersonation headers to a request.
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
