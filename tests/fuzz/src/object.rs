//! Stored objects in a list or a watch: the raw form loses nothing.

use serde_json::Value;
use sidecar_policy::cluster::object::Object;
use sidecar_policy::engine;
use sidecar_policy::engine::registration::{is_as, is_ours_of};

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
    for engine in engine::all() {
        if let Some(completing) = engine.completing() {
            completing.kinds_of(&value);
            completing.initializers_of(&value);
        }
        if let Some(shared) = engine.sharing() {
            shared.revision_of(&value);
        }
    }
    is_ours_of(&value);
    let is_marked = value["metadata"]["annotations"].get("scpol.dev/removing").is_some();
    assert_eq!(is_as(&value, &value), !is_marked);
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}
