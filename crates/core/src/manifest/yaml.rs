//! The settings of the YAML parser and the text of a key, for values and for their lines.

use serde_json::Value;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};

/// The deepest nesting of lists and maps. API servers accept more, but real manifests do not use more.
pub(super) const DEPTH: usize = 100;
/// The most values that the aliases of a document may expand to.
pub(super) const REPLAYED: usize = 100_000;

/// The key whose value adds keys to a map.
pub(super) const MERGE: &str = "<<";

/// The settings and bounds of the YAML parser.
pub(super) fn options(duplicate_keys: DuplicateKeyPolicy, merge_keys: MergeKeyPolicy) -> serde_saphyr::Options {
    serde_saphyr::options! {
        duplicate_keys: duplicate_keys,
        merge_keys: merge_keys,
        budget: serde_saphyr::budget! {
            max_depth: DEPTH,
            max_events: 64_000_000,
            max_nodes: 32_000_000,
            max_total_scalar_bytes: 128 * 1024 * 1024,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: REPLAYED },
        emit_comments: false,
        legacy_octal_numbers: true,
        with_snippet: false,
    }
}

/// The settings of the scanner alone, which has no bounds of its own but that of nesting.
pub(super) fn scanner() -> granit_parser::Options {
    granit_parser::options! { emit_comments: false }
}

/// A key in its JSON form.
pub(super) fn key_text(key: Value) -> Result<String, &'static str> {
    match key {
        Value::String(key) => Ok(key),
        Value::Bool(_) | Value::Number(_) => Ok(key.to_string()),
        Value::Null => Err("a key is empty or null; expected text"),
        Value::Array(_) | Value::Object(_) => Err("a list or map is used as a key; expected text"),
    }
}
