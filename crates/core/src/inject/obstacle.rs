//! The type of every conflict. It has a file of its own because [`super::pod`], [`super::conflict`] and
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
