//! A policy whose rollout goes in steps: new workloads that a step has reached get its latest content, all others the content of the
//! last complete rollout.
//!
//! Selection and everything else is that of the policy as it is stored. So at one place a split policy is like any other one:
//! [`Policy::at`].

use super::Policy;
use super::extent::{Extent, Place};
use crate::workload::Workload;
use std::sync::Arc;

/// What a rollout in steps makes of a policy.
#[derive(Clone, Debug)]
pub(super) struct Split {
    /// The policy with the content of the last complete rollout.
    earlier: Arc<Policy>,
    /// The workloads that have the latest content.
    extent: Arc<Extent>,
}

/// The workloads of one content.
#[derive(Clone, Debug)]
pub(crate) struct Half {
    /// The workloads that have the latest content.
    pub(crate) extent: Arc<Extent>,
    /// Whether this is the latest content: for them, and not for all others.
    pub(crate) is_latest: bool,
}

impl Policy {
    /// The policy while new workloads of the `extent` get its content, and all others that of `earlier`, the same policy with other
    /// content.
    #[must_use]
    pub fn split(mut self, earlier: Arc<Policy>, extent: Extent) -> Self {
        // Whatever identifies a policy by the hash of its spec sees a change with each step.
        self.spec_hash = crate::digest::short(format!("{} {} {}", self.spec_hash, earlier.spec_hash, extent.key()));
        self.split = Some(Split { earlier, extent: Arc::new(extent) });
        self
    }

    /// The policy with the content that `workload` gets if it is new.
    pub fn at<'a>(self: &'a Arc<Self>, workload: &Workload) -> &'a Arc<Self> {
        self.where_in(|extent| extent.has(workload))
    }

    /// The policy with the content that a new workload of that `namespace` and `place` gets.
    pub fn at_place<'a>(self: &'a Arc<Self>, namespace: &str, place: &Place) -> &'a Arc<Self> {
        self.where_in(|extent| extent.has_place(namespace, place))
    }

    fn where_in(self: &Arc<Self>, is_in: impl FnOnce(&Extent) -> bool) -> &Arc<Self> {
        match &self.split {
            Some(split) if !is_in(&split.extent) => &split.earlier,
            _ => self,
        }
    }

    /// The policy with its earlier content; none if all workloads get the latest.
    pub fn earlier(&self) -> Option<&Arc<Self>> {
        self.split.as_ref().map(|split| &split.earlier)
    }

    /// The workloads that get the latest content if they are new; none if all do.
    pub fn extent(&self) -> Option<&Extent> {
        self.split.as_ref().map(|split| &*split.extent)
    }

    /// The policy as policies without a split, each for its own workloads. The names are the same, and none matches where another
    /// one does.
    pub fn halves(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let Some(split) = &self.split else { return vec![self.clone()] };
        let half = |policy: &Policy, is_latest| {
            let half = Half { extent: split.extent.clone(), is_latest };
            Arc::new(Policy { split: None, half: Some(half), ..policy.clone() })
        };
        vec![half(self, true), half(&split.earlier, false)]
    }
}

impl Half {
    /// Whether workloads in `namespace` may have this content.
    pub(crate) fn covers(&self, namespace: &str) -> bool {
        match self.extent.namespaces.contains(namespace) {
            is_whole if is_whole == self.is_latest => true,
            is_whole => !is_whole && self.extent.is_by_workload(),
        }
    }
}
