//! The Webhook engine: its place. What it renders comes with the engine itself.
use super::Unavailable;
use crate::cluster::capabilities::Capabilities;
use crate::policy::{Policy, Site};
use crate::workload::Kind;
use serde_json::Value;
use std::sync::Arc;
/// Comes with the engine itself.
/// # Errors
/// Always, so far.
pub fn check(_: &Capabilities) -> Result<(), Unavailable> {
    Ok(())
}
/// Comes with the engine itself.
pub mod render {
    use super::*;
    /// Comes with the engine itself.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Endpoint {
        /// Comes with the engine itself.
        Url(String),
    }
    /// Comes with the engine itself.
    pub fn render(
        _: &Kind,
        _: &[Arc<Policy>],
        _: &Capabilities,
        _: &Site,
        _: &Endpoint,
        _: &[u8],
    ) -> Result<Vec<Value>, Unavailable> {
        Ok(vec![])
    }
    /// Comes with the engine itself.
    pub fn revision_of(_: &Value) -> Option<String> {
        None
    }
}
