//! The promise of injection to users: existing content never changes.

use serde_json::Value;

/// Whether `after` has everything that `before` has, in the same places, with list items in order. Entries with a name
/// in `markers` are ours.
pub(crate) fn is_kept(before: &Value, after: &Value, markers: &[String]) -> bool {
    match (before, after) {
        (Value::Null, _) => matches!(after, Value::Null | Value::Array(_) | Value::Object(_)),
        (Value::Object(before), Value::Object(after)) => before.iter().all(|(key, value)| {
            let may_differ = |there: &Value| markers.contains(key) || is_longer(key, value, there);
            after.get(key).is_some_and(|there| may_differ(there) || is_kept(value, there, markers))
        }),
        (Value::Array(before), Value::Array(after)) => {
            let mut rest = after.iter();
            before.iter().all(|item| rest.any(|there| is_kept(item, there, markers)))
        }
        _ => before == after,
    }
}

/// Whether a template may make `after` of the field: the value of a variable with a part of ours (`merge`), or a longer grace
/// period or shared processes (`pod`).
fn is_longer(field: &str, before: &Value, after: &Value) -> bool {
    match field {
        "value" => after.as_str().is_some_and(|after| after.contains(before.as_str().unwrap_or_default())),
        "shareProcessNamespace" => before.is_null() && *after == true,
        "terminationGracePeriodSeconds" => after.as_i64() > before.as_i64(),
        _ => false,
    }
}
