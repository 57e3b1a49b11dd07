//! What injection promises to users: nothing of theirs is changed.

use serde_json::Value;

/// True if and only if `after` has all that `before` has, where it was, with the items of lists in their order. What is called
/// as one of `markers` is ours.
pub(crate) fn is_kept(before: &Value, after: &Value, markers: &[String]) -> bool {
    match (before, after) {
        (Value::Null, _) => matches!(after, Value::Null | Value::Array(_) | Value::Object(_)),
        (Value::Object(before), Value::Object(after)) => before.iter().all(|(key, value)| {
            after.get(key).is_some_and(|there| markers.contains(key) || is_kept(value, there, markers))
        }),
        (Value::Array(before), Value::Array(after)) => {
            let mut rest = after.iter();
            before.iter().all(|item| rest.any(|there| is_kept(item, there, markers)))
        }
        _ => before == after,
    }
}
