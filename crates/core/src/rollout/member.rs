//! What a rollout knows of the cluster: the workloads that its policy matches, and the controllers that make pods again.

use crate::policy::extent::Place;
use crate::refit::Carries;
use crate::workload::ObjectRef;
use jiff::{SignedDuration, Timestamp};
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

impl Member {
    /// Whether nothing is left to do: it carries the revision, and began after the last restart of the policy, `restarted`.
    pub fn is_done(&self, restarted: Option<Timestamp>) -> bool {
        let is_begun = restarted.is_none_or(|restarted| self.begun.is_some_and(|begun| begun >= restarted));
        self.carries == Carries::This && is_begun
    }
}

/// Whether a workload serves its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Health {
    pub is_ready: bool,
    /// Since when, if the server tells.
    pub since: Option<Timestamp>,
    /// Whether what runs is what the spec asks for, as far as the status tells. A kubelet first ends a container whose image has
    /// changed, which may take the whole grace period.
    pub is_settled: bool,
    /// That grace period.
    pub grace: SignedDuration,
}

/// The members of a policy, in a fixed order.
pub type Members = BTreeMap<ObjectRef, Member>;

/// A controller that makes pods, such as a ReplicaSet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
