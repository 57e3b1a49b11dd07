//! Decides when to ask the API server which resources it serves, and when to believe the answer.

use super::Controller;
use crate::api::condition::Readiness;
use crate::capabilities::registration as resources;
use crate::controller::policy_state::PolicyState;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tracing::{info, warn};

/// The state of discovery.
#[derive(Default)]
pub(super) struct Discovery {
    /// A watch started again: the server may be a different one.
    pub(super) is_suspicious: bool,
    /// The server started or stopped serving a resource that engines register.
    pub(super) is_served_otherwise: bool,
    /// The last request failed, or its answer is not believed yet.
    is_owed: bool,
    /// Since when the server reports a resource as missing. The report is not believed yet.
    gone_since: Option<Instant>,
}

impl Controller {
    /// Asks the server for its resources again, if they may have changed.
    pub(super) async fn discover_when_due(&mut self) {
        let waits =
            |state: &PolicyState| matches!(state.outcome, Readiness::Impossible { .. } | Readiness::Waiting { .. });
        let is_waiting =
            self.statuses.policies.values().any(waits) || self.planner.plan().is_some_and(|plan| plan.is_undecided());
        let timing = &self.operator.timing.controller;
        let period = match (self.discovery.is_owed, is_waiting) {
            (true, _) => timing.discovery_again,
            (_, true) => timing.discovery_period,
            _ => timing.discovery_at_rest,
        };
        let is_suspicious = std::mem::take(&mut self.discovery.is_suspicious);
        if is_suspicious {
            self.planner.unblock_all();
            self.verify_all();
        }
        let has_cause = self.workloads.is_unserved.swap(false, Ordering::Relaxed) || is_suspicious;
        if (has_cause && !self.discovery.is_owed) || self.operator.since_discovery() > period {
            self.discover().await;
        }
    }

    /// Asks the server for its resources, in all groups that matter.
    pub(super) async fn discover(&mut self) {
        let begun = Instant::now();
        let (groups, again) = (self.groups(), self.operator.timing.controller.discovery_again);
        let discovered = self.operator.discover(&groups).await;
        self.discovery.is_owed = true;
        let found = match discovered {
            Ok(found) => found,
            Err(error) => {
                self.discovery.gone_since = None;
                warn!(%error, "Cannot ask the server what it can do");
                return;
            }
        };
        let before = self.operator.capabilities();
        if before.has_more_of(&groups, &found) {
            // One answer is not enough, because without a resource policies go out of effect, and new workloads get no sidecar.
            let since = *self.discovery.gone_since.get_or_insert_with(Instant::now);
            if begun.saturating_duration_since(since) < again {
                return;
            }
        }
        (self.discovery.is_owed, self.discovery.gone_since) = (false, None);
        if found.version != before.version {
            info!(version = found.version, "The server has changed");
            self.planner.forget_server();
        }
        self.planner.outdate();
        let is_same = |name: &&str| before.registration(name) == found.registration(name);
        self.discovery.is_served_otherwise |= !resources::ALL.iter().all(is_same);
        self.operator.set_capabilities(found);
        self.operator.set_groups(groups);
    }

    /// The groups of the kinds that policies target, or that are watched because objects may wait in them.
    pub(super) fn groups(&self) -> BTreeSet<String> {
        let snapshot = self.snapshots.borrow();
        let targeted = snapshot.policies.iter().flat_map(|policy| &policy.kinds);
        targeted.chain(self.watches.kinds()).filter(|kind| !kind.is_in_table()).map(|kind| kind.group.clone()).collect()
    }
}
