//! The author check: the API server asks whether whoever writes a policy may create pods wherever the policy injects.
//!
//! [`author`](crate::review::author) says what is asked and answered, and what is registered. [`rights`] asks the API server's authorizer. [`keep`] keeps
//! the registration.

pub mod keep;
pub mod rights;

pub use crate::review::author::NAME;
