//! How API servers reach this operator.

use super::Unavailable;
use crate::compile::webhook::Endpoint;
use std::sync::Arc;

/// How the API server reaches the webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct Reach {
    /// The address of the webhook.
    pub endpoint: Endpoint,
    /// The authorities that may sign its certificate, as PEM; none if API servers trust the certificate by their own
    /// authorities.
    pub ca_bundle: Option<Vec<u8>>,
    /// A problem with the certificate, which stays in use, or with an invalid review.
    pub trouble: Option<Unavailable>,
}

/// How the API server reaches the webhook, or why not.
pub type Reachable = Result<Arc<Reach>, Unavailable>;
