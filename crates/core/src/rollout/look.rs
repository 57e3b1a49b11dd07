//! The result of a look at a rollout: how far it is, what is next, what has failed, and what holds it up.

use crate::api::code::Code;
use crate::workload::ObjectRef;
use jiff::Timestamp;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most workloads that a message names.
pub const NAMED: usize = 3;

/// What a look says of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Look {
    pub numbers: Numbers,
    /// What to update now, in this order.
    pub next: Vec<Next>,
    /// The first failures that the record does not have, in the order of their names.
    pub failures: Vec<Failure>,
    /// True while some workloads have not been compared with the revision that they are to have.
    pub is_counting: bool,
    /// True once everything in scope is updated or left, and all that was updated is available.
    pub is_complete: bool,
    /// Whether the limit of evictions holds it up.
    pub is_limited: bool,
    /// What holds it up, most important first.
    pub waits: Vec<String>,
    /// What a person must do before updated workloads become available: of the first ones.
    pub by_hand: Vec<String>,
    /// The owners of evicted pods that do not have all their pods again, up to date and available.
    pub unfinished: BTreeSet<String>,
}

/// How far a rollout is, in workloads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Numbers {
    /// What the policy matches.
    pub matched: usize,
    /// The part that carries the update revision.
    pub updated: usize,
    /// The part that is available.
    pub ready: usize,
    /// What is in scope and still to be done.
    pub remaining: usize,
    /// The part of these that has the revision, and that a restart makes anew.
    pub again: usize,
    /// The part of `remaining` that waits because another workload of its namespace has failed.
    pub held: usize,
    /// The part of `remaining` whose owner is not known. They wait.
    pub orphans: usize,
    /// What is left as it is.
    pub left: usize,
    /// What counts against `maxUnavailable`.
    pub unavailable: usize,
    /// What was unavailable before the rollout began and is so since. It counts no more.
    pub broken: usize,
}

impl Look {
    /// Whether nothing is to be updated, not even what was left and has changed.
    pub(super) fn is_idle(&self) -> bool {
        self.numbers.remaining == 0 && self.next.is_empty()
    }
}

/// A workload to update now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Next {
    pub object: ObjectRef,
    pub uid: Arc<str>,
    /// The controller of a pod.
    pub owner: Option<Arc<str>>,
    /// Whether it may be evicted.
    pub may_evict: bool,
    /// Whether it is unavailable without the update.
    pub is_broken: bool,
    /// Whether another client has put it back after each patch. Then only the reason is to be found: [`super::answer::put_back`].
    pub is_put_back: bool,
    /// When the record announced it; none if it is to do that yet.
    pub announced: Option<Timestamp>,
    /// When the newest pod of its owner was created.
    pub newest: Option<Timestamp>,
    /// Whether another leader has announced it.
    pub is_foreign: bool,
}

/// A workload that was updated and failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    pub object: ObjectRef,
    pub code: Code,
    pub message: String,
}
