//! Stored objects in a list or a watch: the raw form loses nothing.

use serde_json::Value;
use sidecar_policy::cluster::object::Object;
use sidecar_policy::engine::initializer::registration::is_as;
use sidecar_policy::engine::initializer::types::InitializerConfiguration;
use sidecar_policy::engine::registration::{is_marked, is_ours};

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(object) = serde_json::from_str::<Object>(text) else { return };
    let value = object.value();
    match serde_json::from_str::<Value>(text) {
        Ok(whole) if depth(&whole) <= 120 => assert_eq!(value, whole, "something is lost"),
        _ => assert!(value.get("spec").is_none(), "too deep, and read all the same"),
    }
    assert_eq!(object.name(), value["metadata"]["name"].as_str().unwrap_or_default());
    assert_eq!(object.is_initialized(), value["metadata"]["initializers"].is_null());
    assert!(object.pending().count() == 0 || !object.is_initialized());
    if let Ok(configuration) = serde_json::from_value::<InitializerConfiguration>(value) {
        configuration.kinds();
        is_marked(&configuration.metadata);
        assert!(is_as(&configuration, &configuration));
        is_ours(&configuration.metadata);
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}
