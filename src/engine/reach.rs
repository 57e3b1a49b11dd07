//! How API servers reach this operator.

use super::Unavailable;
use std::sync::Arc;

/// Where the API server finds us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Through a Service in the cluster.
    Service {
        /// The namespace of the Service.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
    /// At a URL such as `https://192.0.2.1:8443`, where the operator runs outside.
    Url(String),
}

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
