//! Reading raw objects of Kubernetes: fields by path, and what values mean.

use crate::api::v1alpha1::RawObject;
use admission_cel::quantity;
use serde_json::Value;
use std::collections::BTreeMap;

/// The value in `item` at `path`; null counts as absent.
pub(crate) fn at<'a>(item: &'a RawObject, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    let value = rest.iter().try_fold(item.get(*first)?, |value, step| value.get(step))?;
    (!value.is_null()).then_some(value)
}

/// The objects of the list in `item` at `path`.
pub(crate) fn objects<'a>(item: &'a RawObject, path: &[&str]) -> impl Iterator<Item = &'a RawObject> + use<'a> {
    at(item, path).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

/// The text of a field of `item`; empty if there is none.
pub(crate) fn text<'a>(item: &'a RawObject, field: &str) -> &'a str {
    item.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The amounts of `resources.<field>` of a container, in billionths.
pub(crate) fn amounts(item: &RawObject, field: &str) -> BTreeMap<String, i128> {
    let amounts = at(item, &["resources", field]).and_then(Value::as_object).into_iter().flatten();
    amounts.filter_map(|(name, amount)| Some((name.clone(), nanos(amount)?))).collect()
}

/// True if and only if the field `field` of an object that is called `object` holds a quantity.
pub(crate) fn is_quantity(object: &str, field: &str) -> bool {
    ["limits", "requests"].contains(&object) || ["sizeLimit", "divisor"].contains(&field)
}

/// True if and only if `value` equals absence.
pub(crate) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// The quantity `value` in billionths; 0 for null, none if it is no quantity.
pub(crate) fn nanos(value: &Value) -> Option<i128> {
    match value {
        Value::String(text) => quantity::nanos(text),
        Value::Number(number) => quantity::nanos(&number.to_string()),
        Value::Null => Some(0),
        _ => None,
    }
}

/// The protocol of a port, with its default.
pub(crate) fn protocol(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).filter(|name| !name.is_empty()).unwrap_or("TCP")
}
