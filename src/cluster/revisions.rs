//! The revisions of policies, as ControllerRevisions in the operator's namespace: their form, and the policies that rollouts in steps
//! make of them.

use crate::api::v1alpha1::OnFailure;
use crate::api::{MANAGED_BY, MANAGER, POLICY_LABEL};
use crate::cluster::object::Object;
use crate::policy::Policy;
use crate::revision::{Content, Revision};
use crate::steps::Reached;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::Resource;
use kube::core::ApiResource;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The annotation with how far a rollout in steps is.
const REACHED: &str = "scpol.dev/rollout";
/// The annotation with the time at which the rollout of the revision was complete.
const COMPLETE: &str = "scpol.dev/complete";

/// The address of ControllerRevisions.
pub fn resource() -> ApiResource {
    ApiResource::erase::<ControllerRevision>(&())
}

/// The selector of ours.
pub fn selector() -> String {
    format!("{MANAGED_BY}={MANAGER},{POLICY_LABEL}")
}

/// A stored revision.
#[derive(Clone, Debug)]
pub struct Stored {
    pub policy: String,
    pub revision: Arc<Revision>,
    /// When it was first stored.
    pub created: Timestamp,
    /// How far its rollout is, if it goes in steps, or back.
    pub reached: Option<Reached>,
    /// When its rollout was complete.
    pub complete: Option<Timestamp>,
    pub uid: String,
    pub name: String,
}

impl Stored {
    /// The revision in `object`; none if it is not one of ours.
    pub fn parse(object: &Object) -> Option<Self> {
        let body = object.value();
        let metadata = &body["metadata"];
        let policy = metadata["labels"][POLICY_LABEL].as_str()?.to_owned();
        let content: Content = serde_json::from_value(body["data"].clone()).ok()?;
        let annotation = |key: &str| metadata["annotations"][key].as_str();
        Some(Self {
            revision: Arc::new(Revision::new(&policy, body["revision"].as_i64().unwrap_or_default(), content)),
            policy,
            created: object.created().unwrap_or_default(),
            reached: annotation(REACHED).and_then(|text| serde_json::from_str(text).ok()),
            complete: annotation(COMPLETE).and_then(|text| text.parse().ok()),
            uid: object.meta().uid.clone().unwrap_or_default(),
            name: object.name().to_owned(),
        })
    }

    /// Whether its rollout began at the revision with that hash, and has not been complete. Then that one is everywhere else.
    pub fn came_from(&self, hash: &str) -> bool {
        self.complete.is_none() && self.reached.as_ref().is_some_and(|reached| reached.from == hash)
    }
}

/// The annotations of a revision; null for one that is to be removed.
pub fn annotations(reached: Option<&Reached>, complete: Option<Timestamp>) -> Value {
    json!({
        REACHED: reached.map(|reached| serde_json::to_string(reached).expect("it is JSON")),
        COMPLETE: complete.map(|time| time.to_string()),
    })
}

/// The revision whose rollout was complete last.
pub fn current<'a>(revisions: impl IntoIterator<Item = &'a Stored>) -> Option<&'a Stored> {
    revisions
        .into_iter()
        .filter(|stored| stored.complete.is_some())
        .max_by_key(|stored| (stored.complete, stored.revision.number))
}

/// What a rollout makes of `policy`, whose revisions these are: new workloads of some namespaces get its content, all others an
/// earlier one. None if all get its content.
pub fn split(policy: &Arc<Policy>, revisions: &[&Stored]) -> Option<Policy> {
    let rolling = policy.spec.rolling_update()?;
    let hash = policy.revision.as_deref()?;
    let current = current(revisions.iter().copied());
    if current.is_some_and(|current| current.revision.hash == hash) {
        return None;
    }
    let last = revisions.iter().max_by_key(|stored| stored.revision.number)?;
    let earlier = |stored: &Stored| Arc::new(policy.with_content(&stored.revision.content));
    if last.revision.hash != hash {
        // The leader has not stored this revision yet. It begins with no namespace.
        let from = current.unwrap_or(last);
        return (!rolling.steps.is_empty() && !from.came_from(hash))
            .then(|| Policy::clone(policy).split(earlier(from), Default::default()));
    }
    let reached = last.reached.as_ref()?;
    if reached.has_all(&rolling.steps) || rolling.steps.is_empty() && !reached.undone {
        return None;
    }
    let from = revisions.iter().find(|stored| stored.revision.hash == reached.from)?;
    Some(Policy::clone(policy).split(earlier(from), reached.updated.clone()))
}

/// Whether the revisions of `policy` decide what new workloads get.
pub fn decide(policy: &Policy) -> bool {
    let rolling = policy.spec.rolling_update();
    rolling.is_some_and(|rolling| !rolling.steps.is_empty() || rolling.on_failure == OnFailure::Undo)
}

/// The policies with what rollouts make of them. A policy whose rollout has not moved stays the same.
pub struct Splits {
    /// Whether the operator rolls out. If not, it stores no revisions that a policy could wait for.
    are_on: bool,
    known: BTreeMap<String, (Arc<Policy>, Arc<Policy>)>,
}

impl Splits {
    /// No policies.
    pub fn new(are_on: bool) -> Self {
        Self { are_on, known: BTreeMap::new() }
    }

    /// Whether the revisions of `policy` decide what new workloads get.
    pub fn decide(&self, policy: &Policy) -> bool {
        self.are_on && decide(policy)
    }

    /// `policy` with what its rollout makes of it.
    pub fn of(&mut self, policy: &Arc<Policy>, revisions: &BTreeMap<String, Stored>) -> Arc<Policy> {
        if !self.decide(policy) {
            self.known.remove(&policy.name);
            return policy.clone();
        }
        let own: Vec<&Stored> = revisions.values().filter(|stored| stored.policy == policy.name).collect();
        let fresh = split(policy, &own).map_or_else(|| policy.clone(), Arc::new);
        let known = self.known.get(&policy.name);
        if let Some((base, known)) = known
            && Arc::ptr_eq(base, policy)
            && known.spec_hash == fresh.spec_hash
        {
            return known.clone();
        }
        self.known.insert(policy.name.clone(), (policy.clone(), fresh.clone()));
        fresh
    }
}
