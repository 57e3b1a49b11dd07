//! Registrations edited by others: the policies in effect, and the need for a repair, are read from them.

use serde_json::Value;
use sidecar_policy::compile::webhook;
use sidecar_policy::engine::registration::covers;
use sidecar_policy::engine::revision_of;
use sidecar_policy::naming::{kind_of, shared_name};

pub(crate) fn run(bytes: &[u8]) {
    let Ok(stored) = serde_json::from_slice::<Value>(bytes) else { return };
    assert!(covers(&stored, &stored), "whatever is stored covers itself");
    assert_eq!(covers(&stored, &Value::Object(Default::default())), is_empty(&stored));
    revision_of(&stored);
    webhook::address_of(&stored);
    let name = stored["metadata"]["name"].as_str().unwrap_or_default();
    if let Some(kind) = kind_of(name) {
        assert!(name.starts_with(&shared_name(&kind)), "{name} is of {}", shared_name(&kind));
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
}
