//! What API servers are given to act by.
//!
//! [`admission_policy`] has the API server itself decide and inject, in CEL. [`webhook`] has it ask the operator. [`completion`] is the
//! patch that completes an object which waits for an Initializer.

pub mod admission_policy;
pub mod completion;
pub mod webhook;
