//! The core of sidecar-policy: it decides which policies a workload matches, plans what they inject, compiles policies into
//! registrations, and reviews what API servers ask. No client, no clock, no waiting: everything is passed in.

pub mod api;
pub mod capabilities;
pub mod compile;
pub mod convert;
pub mod decision;
pub mod digest;
pub mod inject;
pub mod lint;
pub mod manifest;
pub mod naming;
pub mod policy;
pub mod review;
pub mod targets;
pub mod workload;

use api::code::Code;

/// Why something cannot be delivered: a code, and a message that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unavailable {
    /// The code.
    pub code: Code,
    /// What is missing, and where it could be had.
    pub message: String,
}

impl Unavailable {
    /// A reason with its code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}
