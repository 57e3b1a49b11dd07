//! The core of sidecar-policy. It decides which policies a workload matches, plans the injection, compiles policies into
//! registrations, and answers reviews of API servers. It has no client, reads no clock and does not wait: every input is a
//! parameter.

#![cfg_attr(test, expect(clippy::too_many_lines, reason = "a test is a story, or a table of cases"))]

pub mod api;
pub mod capabilities;
pub mod compile;
pub mod content;
pub mod convert;
pub mod decision;
pub mod digest;
mod expansion;
pub mod inject;
pub mod lint;
pub mod manifest;
pub mod naming;
pub mod outside;
pub mod policy;
pub mod qos;
pub mod ranking;
pub mod readers;
pub mod refit;
pub mod review;
pub mod rollout;
pub mod workload;

pub use api::parameters;

use api::code::Code;

/// Why a policy cannot be delivered: a code, and a message that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unavailable {
    pub code: Code,
    /// The missing thing, and where to get it.
    pub message: String,
}

impl Unavailable {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}
