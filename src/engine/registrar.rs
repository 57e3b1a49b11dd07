//! Where registrations are written and probed, and what identifies their objects.

use crate::capabilities::{Capabilities, registration as resources};
use crate::timing;
use crate::workload::Kind;
use kube::Client;
use kube::core::ApiResource;
use serde_json::Value;
use std::sync::Arc;

/// Where the registration that the policies on one kind share is written, removed and verified.
pub struct Registrar {
    pub client: Client,
    /// What the server offers.
    pub capabilities: Arc<Capabilities>,
    /// The operator's own namespace, for dry-run creates.
    pub namespace: String,
    pub kind: Arc<Kind>,
    /// How long a registration may take until it has an effect.
    pub timing: &'static timing::Registration,
}

/// A registered object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegistrationKey {
    /// The plural name of its resource.
    pub resource: String,
    pub name: String,
}

impl RegistrationKey {
    /// The key of the object `name` of `resource`.
    pub fn of(resource: impl Into<String>, name: impl Into<String>) -> Self {
        Self { resource: resource.into(), name: name.into() }
    }
}

/// Whether `object`, which an engine rendered, rejects workloads.
pub fn refuses(object: &Value) -> bool {
    object["kind"].as_str().is_some_and(|kind| kind.starts_with("Validating"))
}

pub(super) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

impl Registrar {
    /// The resource of `object`, which an engine rendered.
    pub(super) fn resource_of(&self, object: &Value) -> Option<ApiResource> {
        let mut served = resources::ALL.iter().filter_map(|resource| self.capabilities.registration(resource));
        served.find(|resource| object["kind"] == resource.kind.as_str())
    }

    /// The key under which `object`, which an engine rendered, is registered; none if the server lacks the resource.
    pub fn key_of(&self, object: &Value) -> Option<RegistrationKey> {
        Some(RegistrationKey::of(self.resource_of(object)?.plural, name_of(object)))
    }
}
