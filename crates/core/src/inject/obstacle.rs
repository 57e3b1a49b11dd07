//! The type of every conflict, and of every obstacle on the way back. They have a file of their own because [`super::pod`], [`super::conflict`] and
//! [`super::unmet`] all return it.

use crate::api::code::Code;

/// The reason why no part of a template may be injected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Conflict {
    /// `NameConflict`, `PolicyConflict`, `VolumeMissing`, `NoPodTemplate`, or an unmet need of the template (`SCP0225`
    /// to `SCP0230`, `SCP0236`).
    pub code: Code,
    /// The obstacle and its place. It never repeats a value that may be secret.
    pub message: String,
}

/// The reason why an entry was not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftoverCause {
    /// The marker is unreadable.
    Unreadable,
    /// Injection never adds such an entry.
    Foreign,
    /// The content does not exist (any more).
    Missing,
    /// The content exists more than once.
    Ambiguous,
    /// Other content is in its place.
    Unexpected,
    /// A user has changed the value that had it.
    Edited,
    /// A container that stays mounts it.
    Mounted,
}
