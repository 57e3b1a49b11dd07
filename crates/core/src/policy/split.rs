//! A policy whose rollout goes in steps: new workloads in the namespaces that a step has reached get its latest content, all others
//! the content of the last complete rollout.
//!
//! Selection and everything else is that of the policy as it is stored. So at one place a split policy is like any other one:
//! [`Policy::at`].

use super::Policy;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a rollout in steps makes of a policy.
#[derive(Clone, Debug)]
pub(super) struct Split {
    /// The policy with the content of the last complete rollout.
    earlier: Arc<Policy>,
    /// The namespaces that have the latest content.
    updated: Arc<BTreeSet<String>>,
}

/// The namespaces of one content.
#[derive(Clone, Debug)]
pub(crate) struct Half {
    /// The namespaces that have the latest content.
    pub(crate) updated: Arc<BTreeSet<String>>,
    /// Whether this is the latest content: for them, and not for all others.
    pub(crate) is_latest: bool,
}

impl Policy {
    /// The policy while new workloads of the namespaces `updated` get its content, and all others that of `earlier`, the same policy
    /// with other content.
    #[must_use]
    pub fn split(mut self, earlier: Arc<Policy>, updated: BTreeSet<String>) -> Self {
        // Whatever identifies a policy by the hash of its spec sees a change with each step.
        let namespaces = updated.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        self.spec_hash = crate::digest::short(format!("{} {} {namespaces}", self.spec_hash, earlier.spec_hash));
        self.split = Some(Split { earlier, updated: Arc::new(updated) });
        self
    }

    /// The policy with the content that new workloads in `namespace` get.
    pub fn at<'a>(self: &'a Arc<Self>, namespace: &str) -> &'a Arc<Self> {
        match &self.split {
            Some(split) if !split.updated.contains(namespace) => &split.earlier,
            _ => self,
        }
    }

    /// The policy with its earlier content; none if all workloads get the latest.
    pub fn earlier(&self) -> Option<&Arc<Self>> {
        self.split.as_ref().map(|split| &split.earlier)
    }

    /// The namespaces whose new workloads get the latest content; none if all do.
    pub fn updated(&self) -> Option<&BTreeSet<String>> {
        self.split.as_ref().map(|split| &*split.updated)
    }

    /// The policy as policies without a split, each for its own namespaces. The names are the same, and none matches where another
    /// one does.
    pub fn halves(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let Some(split) = &self.split else { return vec![self.clone()] };
        let half = |policy: &Policy, is_latest| {
            let half = Half { updated: split.updated.clone(), is_latest };
            Arc::new(Policy { split: None, half: Some(half), ..policy.clone() })
        };
        vec![half(self, true), half(&split.earlier, false)]
    }
}

impl Half {
    /// Whether workloads in `namespace` have this content.
    pub(crate) fn covers(&self, namespace: &str) -> bool {
        self.updated.contains(namespace) == self.is_latest
    }
}
