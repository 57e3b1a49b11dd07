//! Decides when to ask the API server which resources it serves, and when to believe the answer.

use super::Controller;
use crate::api::condition::Readiness;
use crate::capabilities::{Capabilities, registration as resources};
use crate::controller::policy_state::PolicyState;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tracing::{info, warn};

/// The state of discovery.
#[derive(Default)]
pub(super) struct Discovery {
    /// The resources that the current plan and watches are made for.
    noticed: Arc<Capabilities>,
    /// A watch started again: the server may be a different one.
    pub(super) is_suspicious: bool,
    /// The server started or stopped serving a resource that engines register.
    pub(super) is_served_otherwise: bool,
    /// The last request failed, or its answer is not believed yet.
    is_owed: bool,
    /// Since when the server reports a resource as missing. The report is not believed yet.
    gone_since: Option<Instant>,
}

/// A change of what the server serves.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    is_other_version: bool,
}

impl Discovery {
    pub(super) fn new(known: Arc<Capabilities>) -> Self {
        Self { noticed: known, ..Self::default() }
    }

    /// Records that the process knows `found` now; none if that is not new. The webhook asks the server, too.
    fn notice(&mut self, found: &Arc<Capabilities>) -> Option<Change> {
        if Arc::ptr_eq(&self.noticed, found) {
            return None;
        }
        let before = std::mem::replace(&mut self.noticed, found.clone());
        let is_same = |name: &&str| before.registration(name) == found.registration(name);
        self.is_served_otherwise |= !resources::ALL.iter().all(is_same);
        Some(Change { is_other_version: before.version != found.version })
    }
}

impl Controller {
    /// Drops the plan, and everything learnt about another server, if the process knows something new of the server.
    pub(super) fn notice_capabilities(&mut self) {
        let found = self.operator.capabilities();
        let Some(change) = self.discovery.notice(&found) else { return };
        if change.is_other_version {
            info!(version = found.version, "The server has changed");
            self.planner.forget_server();
        }
        self.planner.outdate();
    }

    /// Asks the server for its resources again, if they may have changed.
    pub(super) async fn discover_when_due(&mut self) {
        let waits =
            |state: &PolicyState| matches!(state.outcome, Readiness::Impossible { .. } | Readiness::Waiting { .. });
        let is_waiting =
            self.statuses.policies.values().any(waits) || self.planner.plan().is_some_and(|plan| plan.is_undecided());
        let timing = &self.operator.timing.controller;
        // An upgrade of the control plane ends without a sign.
        let is_waiting = is_waiting || self.operator.capabilities().mixed().is_some();
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
        self.operator.set_capabilities(found);
        self.operator.set_groups(groups);
        self.notice_capabilities();
        // A plan that waits for the server is drawn again, even if nothing has changed.
        self.planner.outdate();
    }

    /// The groups of the kinds that policies target, or that are watched because objects may wait in them.
    pub(super) fn groups(&self) -> BTreeSet<String> {
        let snapshot = self.snapshots.borrow();
        let targeted = snapshot.policies.iter().flat_map(|policy| &policy.kinds);
        targeted.chain(self.watches.kinds()).filter(|kind| !kind.is_in_table()).map(|kind| kind.group.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_part_of_the_process_has_found_is_noticed_once() {
        const WEBHOOKS: (&str, &str, &str, &str) =
            ("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration");
        let mut discovery = Discovery::new(Arc::new(Capabilities::of(30, &[])));
        assert_eq!(discovery.notice(&discovery.noticed.clone()), None);
        for (found, change, is_served_otherwise) in [
            (Capabilities::of(30, &[]), Change { is_other_version: false }, false),
            (Capabilities::of(30, &[WEBHOOKS]), Change { is_other_version: false }, true),
            (Capabilities::of(31, &[WEBHOOKS]), Change { is_other_version: true }, false),
        ] {
            let found = Arc::new(found);
            assert_eq!(discovery.notice(&found), Some(change));
            assert_eq!(std::mem::take(&mut discovery.is_served_otherwise), is_served_otherwise);
            assert_eq!(discovery.notice(&found), None);
        }
    }
}
