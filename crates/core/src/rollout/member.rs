//! What a rollout knows of the cluster: the workloads that its policy matches, and the controllers that make pods again.

use super::health::{self, Health};
use crate::policy::extent::Place;
use crate::policy::{Policy, Site};
use crate::refit::{self, Carries};
use crate::workload::{ObjectRef, Workload};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// A workload that a policy matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    pub uid: Arc<str>,
    /// `resourceVersion`, which grows with each write.
    pub version: u64,
    /// The revision of the policy when the workload was looked at.
    pub revision: Arc<str>,
    /// What it carries, compared with that revision.
    pub carries: Carries,
    pub health: Health,
    pub created: Option<Timestamp>,
    /// The controller that makes the pod again; none for workloads that are no pods.
    pub owner: Option<Arc<str>>,
    /// The creation time of a pod, or the last `kubectl rollout restart` of a workload.
    pub begun: Option<Timestamp>,
    /// The restarts of each of the policy's containers. Always empty for workloads that are no pods.
    pub restarts: Vec<(Arc<str>, u32)>,
    /// What decides in which step its turn comes, besides its namespace.
    pub place: Place,
}

/// Whether a rollout may concern `workload`. Jobs and their pods end by themselves: they are neither touched nor waited for. What is being
/// deleted is as good as gone: its controller lacks it.
pub fn takes_part(workload: &Workload) -> bool {
    let is_deleted = !workload.body["metadata"]["deletionTimestamp"].is_null();
    let is_over = is_deleted || matches!(workload.body["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    !workload.kind.is_job() && !(workload.kind.is_pod() && (is_over || workload.ends()))
}

/// The version and the creation time of a stored object.
pub type Age = (u64, Option<Timestamp>);

impl Member {
    /// The stored `workload` as a member for `policy`, which matches it.
    pub fn of(workload: &Workload, age: Age, policy: &Arc<Policy>, site: &Site) -> Self {
        let own = policy.at(workload);
        let carries = refit::carries(workload, own, site);
        let member = Self::compared(workload, age, &policy.name, own.shared_revision(), carries);
        Self { place: Place::of(workload, policy), ..member }
    }

    /// The stored `workload` as a member for `policy`, for which steps do not count. It `carries` that, compared with the `revision` of
    /// that hash.
    pub fn compared(workload: &Workload, age: Age, policy: &str, revision: Arc<str>, carries: Carries) -> Self {
        let (is_pod, (version, created)) = (workload.kind.is_pod(), age);
        let names = if is_pod { health::containers(workload, policy) } else { Vec::new() };
        Self {
            begun: refit::begun(workload),
            uid: Arc::from(workload.uid()),
            version,
            revision,
            carries,
            health: if is_pod { health::of_pod(workload, &names) } else { health::of(workload) },
            created,
            owner: if is_pod { controller(workload) } else { None },
            restarts: health::restarts(workload, &names),
            place: Place::default(),
        }
    }

    /// Whether nothing is left to do: it carries the revision, and began after the last restart of the policy, `restarted`.
    pub fn is_done(&self, restarted: Option<Timestamp>) -> bool {
        let is_begun = restarted.is_none_or(|restarted| self.begun.is_some_and(|begun| begun >= restarted));
        self.carries == Carries::This && is_begun
    }
}

/// The members of a policy, in a fixed order.
pub type Members = BTreeMap<ObjectRef, Member>;

/// A controller that makes pods, such as a ReplicaSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Its kind, as in a manifest.
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    /// The number of pods that it keeps.
    pub desired: usize,
    /// How many more pods it has on nodes where it makes none again. Only a DaemonSet has any.
    pub astray: usize,
    pub created: Option<Timestamp>,
    /// Since when it cannot make pods, if it says so: the condition `ReplicaFailure` of a ReplicaSet.
    pub fails_since: Option<Timestamp>,
    /// The policies that match its pods.
    pub policies: BTreeSet<Arc<str>>,
    /// The part of them whose marker its own pod template has: its pods get what it says.
    pub carried: BTreeSet<Arc<str>>,
}

impl Owner {
    /// A ReplicaSet of the namespace `shop`, which the policy matches, with so many pods.
    #[cfg(test)]
    pub(super) fn replica_set(policy: &str, name: &str, desired: usize, created: Timestamp) -> Self {
        let (namespace, name, created) = ("shop".to_owned(), name.to_owned(), Some(created));
        let policies = BTreeSet::from([policy.into()]);
        Self { kind: "ReplicaSet", namespace, name, desired, created, policies, ..Self::default() }
    }

    /// How many pods it has when none is missing.
    pub(super) fn pods(&self) -> usize {
        self.desired.saturating_add(self.astray)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// The owners by UID.
pub type Owners = BTreeMap<Arc<str>, Owner>;

/// The UID of the controller of `pod`, if it is of a kind that makes pods again.
pub fn controller(pod: &Workload) -> Option<Arc<str>> {
    refit::maker(pod)?["uid"].as_str().map(Arc::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;
    use serde_json::json;

    #[test]
    fn only_a_controller_that_makes_pods_again_is_the_owner_of_a_pod() {
        for (version, kind, is_controller, is_owner) in [
            ("apps/v1", "ReplicaSet", true, true),
            ("v1", "ReplicationController", true, true),
            ("apps/v1", "ReplicaSet", false, false),
            ("other.io/v1", "StatefulSet", true, false),
            ("batch/v1", "Job", true, false),
            ("v1", "Node", true, false),
        ] {
            let owner = json!({ "apiVersion": version, "kind": kind, "uid": "u", "controller": is_controller });
            let pod =
                Workload::new(Kind::find("", "pods").unwrap(), json!({ "metadata": { "ownerReferences": [owner] } }));
            assert_eq!(controller(&pod).is_some(), is_owner, "{version} {kind}");
        }
    }
}
