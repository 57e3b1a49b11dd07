//! The stored policies, parsed once per change and shared by all readers.

mod capacity;
mod follow;

use super::revisions::Revisions;
use crate::api::condition::condition_in;
use crate::api::rules::Violation;
use crate::policy::{Policies, Policy, PolicyRef};
pub use follow::{PolicyLimits, follow};
use jiff::Timestamp;
use kube::core::ApiResource;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The address of SidecarPolicies.
pub fn resource() -> ApiResource {
    ApiResource::erase::<crate::api::v1alpha1::SidecarPolicy>(&())
}

/// A stored policy.
#[derive(Clone, Debug)]
pub struct StoredPolicy {
    /// The policy's UID.
    pub uid: String,
    /// The policy's generation; always 1 on some old servers.
    pub generation: i64,
    /// Changes with each change of the UID or the spec of what is published, and never comes back.
    pub edition: u64,
    /// The `status` of the object, as last seen.
    pub status: Arc<Value>,
    /// The time of the last `scpol rollout resume`.
    pub resumed: Option<Timestamp>,
    /// The time of the last `scpol rollout restart`.
    pub restarted: Option<Timestamp>,
    /// The annotations for these two whose value is no time.
    pub odd_times: Vec<&'static str>,
    /// The parsed spec, or its violations.
    pub parsed: Result<Arc<Policy>, Arc<Vec<Violation>>>,
}

impl StoredPolicy {
    /// Whether the status says that the policy is in effect.
    pub fn is_programmed(&self) -> bool {
        condition_in(&self.status, "Programmed").is_some_and(|programmed| programmed["status"] == "True")
    }

    /// Whether the status says that some generation of the policy was accepted.
    fn was_accepted(&self) -> bool {
        condition_in(&self.status, "Accepted").is_some_and(|accepted| accepted["status"] == "True")
    }

    /// Whether the status says that this generation of the policy was accepted.
    fn is_accepted(&self) -> bool {
        condition_in(&self.status, "Accepted").is_some_and(|accepted| {
            accepted["status"] == "True" && accepted["observedGeneration"].as_i64() == Some(self.generation)
        })
    }
}

/// All stored policies at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Every policy, including invalid ones.
    pub stored: Arc<BTreeMap<PolicyRef, StoredPolicy>>,
    /// The valid policies.
    pub policies: Arc<Policies>,
    /// Their stored revisions.
    pub revisions: Arc<Revisions>,
    /// False until the first list has been read. No decision is allowed before.
    pub synced: bool,
}

impl Snapshot {
    /// Whether both have the same policies, so that only what is recorded of rollouts may differ. Who waits for policies need not
    /// look again then.
    fn has_policies_of(&self, other: &Self) -> bool {
        let is_same = |(one, two): (&StoredPolicy, &StoredPolicy)| {
            let is_parsed_alike = match (&one.parsed, &two.parsed) {
                (Ok(one), Ok(two)) => Arc::ptr_eq(one, two),
                (Err(one), Err(two)) => Arc::ptr_eq(one, two),
                _ => false,
            };
            is_parsed_alike
                && Arc::ptr_eq(&one.status, &two.status)
                && (one.generation, one.resumed, one.restarted) == (two.generation, two.resumed, two.restarted)
                && (&one.uid, &one.odd_times) == (&two.uid, &two.odd_times)
        };
        self.synced == other.synced
            && self.stored.keys().eq(other.stored.keys())
            && self.stored.values().zip(other.stored.values()).all(is_same)
    }
}
