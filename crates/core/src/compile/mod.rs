//! Compiles policies into objects and patches for API servers.
//!
//! With [`admission_policy`] the API server itself decides and injects, in CEL. With [`webhook`] it asks the operator.
//! [`completion`] is the patch that completes an object which waits for an Initializer.

pub mod admission_policy;
pub mod completion;
pub mod webhook;
