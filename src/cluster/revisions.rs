//! The stored revisions of policies, which are ControllerRevisions in the operator's namespace, as the watch shows them. Their form is in
//! [`crate::rollout::stored`].

use crate::api::{MANAGED_BY, MANAGER, POLICY_LABEL};
use crate::policy::PolicyRef;
use crate::rollout::{Foreign, StoredRevision};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::core::ApiResource;
use std::collections::BTreeMap;

/// The address of ControllerRevisions.
pub fn resource() -> ApiResource {
    ApiResource::erase::<ControllerRevision>(&())
}

/// The selector of ours.
pub fn selector() -> String {
    format!("{MANAGED_BY}={MANAGER},{POLICY_LABEL}")
}

/// Whether revisions are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Knowledge {
    /// They have not been read.
    #[default]
    Unread,
    /// The right to read them is missing. Holds what the server says.
    Refused(String),
    /// They have been read, and the watch shows each change.
    Read,
}

/// The stored revisions of all policies.
#[derive(Clone, Debug, Default)]
pub struct Revisions {
    pub knowledge: Knowledge,
    by_policy: BTreeMap<PolicyRef, Vec<StoredRevision>>,
    foreign: Vec<Foreign>,
}

impl Revisions {
    /// The `revisions`. Those for which `is_owned` is false are foreign: their owner is not the policy that has the name now.
    pub fn of(
        knowledge: Knowledge,
        revisions: impl Iterator<Item = Result<StoredRevision, Foreign>>,
        is_owned: impl Fn(&StoredRevision) -> bool,
    ) -> Self {
        let (mut by_policy, mut foreign) = (BTreeMap::<PolicyRef, Vec<StoredRevision>>::new(), Vec::new());
        for revision in revisions {
            match revision {
                Ok(stored) if is_owned(&stored) => {
                    by_policy.entry(PolicyRef::of_cluster(&stored.policy)).or_default().push(stored)
                }
                Ok(stored) => foreign.push(stored.into_foreign()),
                Err(unknown) => foreign.push(unknown),
            }
        }
        for revisions in by_policy.values_mut() {
            revisions.sort_by_key(|stored| stored.revision.number);
        }
        Self { knowledge, by_policy, foreign }
    }

    /// The revisions of `policy`, oldest first.
    pub fn of_policy(&self, policy: &PolicyRef) -> &[StoredRevision] {
        self.by_policy.get(policy).map(Vec::as_slice).unwrap_or_default()
    }

    /// What says that it is a revision of a policy, and is none.
    pub fn foreign(&self) -> &[Foreign] {
        &self.foreign
    }
}
