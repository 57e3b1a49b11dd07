//! How API servers reach this operator.

use super::Unavailable;
use crate::compile::webhook::Address;
use std::sync::Arc;

/// How the API server reaches the webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct Reach {
    /// Where it is called, and who may sign its certificate.
    pub address: Address,
    /// A problem with the certificate, which stays in use, or with an invalid review.
    pub trouble: Option<Unavailable>,
}

/// How the API server reaches the webhook, or why not.
pub type Reachable = Result<Arc<Reach>, Unavailable>;
