//! How API servers reach this operator.

use super::Unavailable;
use crate::compile::webhook::Endpoint;
use std::sync::Arc;

/// How the API server reaches the webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct Reach {
    /// Where it is.
    pub endpoint: Endpoint,
    /// By which authorities its certificate may be signed, as PEM; none where API servers trust it without being told.
    pub ca_bundle: Option<Vec<u8>>,
    /// What is wrong with the certificate, though it is shown on, or with what is posted.
    pub trouble: Option<Unavailable>,
}

/// How the webhook is reached, or why it is not.
pub type Reachable = Result<Arc<Reach>, Unavailable>;
