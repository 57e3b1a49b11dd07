//! The author check: the API server asks whether the author of a policy may create pods in all places where the policy injects.
//!
//! [`author`](crate::review::author) defines the registration, the questions and the answers. [`rights`] asks the API server's
//! authorizer. [`keep`] keeps the registration.

pub mod keep;
pub mod rights;

pub use crate::review::author::NAME;
