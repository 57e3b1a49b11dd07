//! What became of an attempt to bring one workload up to date.

use super::member::Member;
use crate::api::code::Code;

/// What was done to a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Done {
    /// The pod was evicted.
    Evicted,
    /// The workload or pod was patched, and has this `resourceVersion` since.
    Patched(u64),
}

/// The result of an attempt on one workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Done(Done),
    /// In that version it matches no more, or carries the revision already. None: it is gone.
    NotNeeded(Option<u64>),
    /// It has changed since that version was read. The watch shows its new version.
    Changed(u64),
    /// In that version it can only be evicted, with the reason. Nothing was written.
    NeedsEviction(u64, String),
    /// In that version it cannot be brought up to date.
    Left(u64, Why),
    /// A PodDisruptionBudget does not allow it now. Holds its words.
    Blocked(String),
    /// A right is missing.
    Refused(String),
    /// The server does not answer, or has too much to do: the write may have happened.
    Failed(String),
}

impl Answer {
    /// Whether the watch is to show another version than `member`, or that it is gone. If it does not for a while, the answer was about
    /// something else.
    pub(super) fn expects_another(&self, member: &Member) -> bool {
        match self {
            Self::NotNeeded(version) => version.is_none(),
            Self::Changed(version) => member.version <= *version,
            _ => false,
        }
    }

    /// Whether the attempt was no eviction for certain.
    pub fn is_no_eviction(&self) -> bool {
        !matches!(self, Self::Done(Done::Evicted) | Self::Failed(_))
    }
}

/// Why a workload is left as it is, or waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Why {
    pub code: Code,
    pub message: String,
}
