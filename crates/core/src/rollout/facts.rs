//! What one look at a rollout is about. A fact that is not known yet is [`None`]: never zero, and never empty.

use super::member::{Member, Members, Owner, Owners};
use super::record::{Commands, Record};
use super::stored::StoredRevision;
use crate::api::v1alpha1::{MaxUnavailable, RollingUpdate};
use crate::policy::extent::Extent;
use crate::refit::{Carries, Way};
use crate::workload::{Kind, ObjectRef};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// All that is known of a policy that rolls, and of the cluster, at one moment.
pub struct World<'a> {
    pub aim: Aim<'a>,
    pub leader: Leading<'a>,
    pub now: Timestamp,
    pub settings: &'a RollingUpdate,
    pub is_paused: bool,
    /// The stored revisions of the policy, oldest first.
    pub revisions: &'a [StoredRevision],
    /// The last commands, as written.
    pub commands: Commands,
    /// What the policy matches. None until that has been compared with the policy as it is now.
    pub members: Option<&'a Members>,
    /// What makes pods.
    ///
    /// # Errors
    /// Why it is not known.
    pub makers: Result<Makers<'a>, Unknown>,
    /// The namespaces that the policy covers, with their Namespace objects, if steps hold. None until they have been read.
    pub namespaces: Option<&'a BTreeMap<String, Arc<Value>>>,
    pub queries: Queries<'a>,
}

/// What is rolled out.
#[derive(Clone, Copy)]
pub struct Aim<'a> {
    /// The name of the policy.
    pub policy: &'a str,
    /// The kinds that it targets.
    pub kinds: &'a [Arc<Kind>],
    /// The hash of the revision that it has now: the update revision.
    pub update: &'a str,
    pub published: Published<'a>,
}

/// The leader that looks.
#[derive(Clone, Copy)]
pub struct Leading<'a> {
    /// Its name: another one than that of any process before.
    pub name: &'a str,
    /// How many pods may be evicted now.
    pub evictions: usize,
    /// How long a workload waits that the server refused for a reason that may pass, such as a PodDisruptionBudget.
    pub again: SignedDuration,
}

/// What makes pods.
#[derive(Clone, Copy)]
pub struct Makers<'a> {
    pub owners: &'a Owners,
    /// How many pods each owner has that are no members, by its UID.
    pub beside: &'a HashMap<Arc<str>, usize>,
    /// What rollouts of other policies may be evicting.
    pub busy: &'a Busy,
}

/// What is asked about single workloads and revisions, only where the answer counts.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// Why a container of the policy does not start in a workload.
    pub stuck: &'a dyn Fn(&ObjectRef) -> Option<String>,
    /// What a person must do before the controller of a workload, which is no pod, goes on.
    pub by_hand: &'a dyn Fn(&ObjectRef) -> Option<String>,
    /// How a workload is expected to be brought up to date.
    pub way: &'a dyn Fn(&ObjectRef, &Member) -> Way,
    /// Why no new workload gets the content of a revision.
    pub rejection: &'a dyn Fn(&StoredRevision) -> Option<String>,
}

/// Why a fact is not known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Unknown {
    /// It is being read.
    Reading,
    /// A right is missing. Holds what the server says.
    Forbidden(String),
}

/// What new workloads get of the policy, as every replica knows it.
#[derive(Clone, Copy, Debug)]
pub struct Published<'a> {
    /// Whether that is in effect.
    pub is_in_force: bool,
    /// The hash of the earlier revision, and the workloads that do not get it. None if all get the update revision.
    pub earlier: Option<(&'a str, &'a Extent)>,
}

impl Published<'_> {
    /// The hash of the revision that `member` gets if it is made anew, if `update` is that of the policy.
    fn wanted<'a>(&'a self, object: &ObjectRef, member: &Member, update: &'a str) -> &'a str {
        match self.earlier {
            Some((earlier, extent)) if !extent.has_place(&object.namespace, &member.place) => earlier,
            _ => update,
        }
    }
}

/// How fast a rollout goes.
#[derive(Clone, Copy, Debug)]
pub struct Pace<'a> {
    /// The most workloads that may be unavailable at once.
    pub max_unavailable: usize,
    /// The same in one namespace; none if only [`Self::max_unavailable`] counts.
    pub per_namespace: Option<&'a MaxUnavailable>,
    /// How long a replacement must be ready before it counts.
    pub min_ready: SignedDuration,
    /// How long a replacement may take until it counts.
    pub deadline: SignedDuration,
}

/// The owners of which a rollout may evict a pod at any moment, by UID, each with the time of its first announcement.
pub type Busy = BTreeMap<Arc<str>, Timestamp>;

/// The name of a workload in a record.
pub fn key(object: &ObjectRef) -> String {
    format!("{}/{}/{}", object.kind.group_resource(), object.namespace, object.name)
}

/// The facts by which workloads are chosen.
pub struct Facts<'a> {
    pub aim: Aim<'a>,
    pub leader: Leading<'a>,
    pub now: Timestamp,
    pub members: &'a Members,
    pub makers: Makers<'a>,
    /// What the update revision says about its rollout.
    pub record: &'a Record,
    /// The time of the last `scpol rollout restart` that counts.
    pub restarted: Option<Timestamp>,
    pub pace: Pace<'a>,
    /// Whether a workload that fails is a failure of the rollout: it has neither ended nor failed.
    pub can_fail: bool,
    /// The namespaces in which nothing more is updated, because a workload there has failed.
    pub held: BTreeSet<String>,
    /// Whether the workload is to be brought up to date now.
    pub is_in_scope: &'a dyn Fn(&ObjectRef, &Member) -> bool,
    pub queries: Queries<'a>,
}

impl<'a> Facts<'a> {
    /// The hash of the revision that the workload is to have.
    pub(super) fn wanted(&self, object: &ObjectRef, member: &Member) -> &str {
        self.aim.published.wanted(object, member, self.aim.update)
    }

    /// Whether the workload has the update revision.
    pub(super) fn has_update(&self, member: &Member) -> bool {
        member.carries == Carries::This && *member.revision == *self.aim.update
    }

    /// Whether the workload may be updated now.
    pub(super) fn may_update(&self, object: &ObjectRef, member: &Member) -> bool {
        (self.is_in_scope)(object, member) && !self.held.contains(&object.namespace)
    }

    /// The most of `matched` workloads of one namespace that may be unavailable at once.
    pub(super) fn limit(&self, matched: usize) -> usize {
        self.pace.per_namespace.map_or(usize::MAX, |limit| limit.of(matched))
    }

    /// The controller of a pod. A user can write any owner into a pod: one of another namespace is none.
    pub(super) fn owner<'m>(&self, object: &ObjectRef, member: &'m Member) -> Option<&'m Arc<str>> {
        let is_here = |owner: &Owner| owner.namespace == object.namespace;
        member.owner.as_ref().filter(|uid| self.makers.owners.get(*uid).is_none_or(is_here))
    }

    /// Whether the owner of a pod is not known: it is new, wants no pods any more, or is none.
    pub(super) fn is_owner_unknown(&self, object: &ObjectRef, member: &Member) -> bool {
        let is_known = |owner: &Arc<str>| self.makers.owners.contains_key(owner);
        object.kind.is_pod() && member.owner.is_some() && !self.owner(object, member).is_some_and(is_known)
    }

    /// Whether what happened `at` that time is not tried again yet.
    pub(super) fn is_recent(&self, at: Timestamp) -> bool {
        self.now.duration_since(at) < self.leader.again
    }

    /// The workload of that name in a record, if it is there.
    pub(super) fn member(&self, name: &str) -> Option<(&'a ObjectRef, &'a Member)> {
        let object = self.object(name)?;
        debug_assert_eq!(key(&object), name);
        self.members.get_key_value(&object)
    }

    /// What that name in a record means.
    pub(super) fn object(&self, name: &str) -> Option<ObjectRef> {
        let (resource, place) = name.split_once('/')?;
        let kind = self.aim.kinds.iter().find(|kind| kind.group_resource() == resource)?;
        Some(ObjectRef::new(kind, place.split_once('/')?))
    }
}
