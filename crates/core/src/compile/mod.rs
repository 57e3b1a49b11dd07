//! Policies as objects by which API servers act.
//!
//! [`admission_policy`] has the API server itself decide and inject, in CEL. [`webhook`] has it ask the operator.

pub mod admission_policy;
pub mod webhook;
