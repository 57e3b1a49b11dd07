//! The members of an object, as rules read them.

use admission_cel::quantity;
use serde_json::{Map, Value};

pub(super) type Members = Map<String, Value>;

/// The text in `field`; none if it is empty.
pub(super) fn text<'a>(members: &'a Members, field: &str) -> Option<&'a str> {
    members.get(field)?.as_str().filter(|text| !text.is_empty())
}

pub(super) fn number(members: &Members, field: &str) -> Option<i64> {
    members.get(field)?.as_i64()
}

/// Whether `field` is given. Null counts as absent, as on a server.
pub(super) fn has(members: &Members, field: &str) -> bool {
    members.get(field).is_some_and(|value| !value.is_null())
}

pub(super) fn is_true(members: &Members, field: &str) -> bool {
    members.get(field) == Some(&Value::Bool(true))
}

pub(super) fn object<'a>(members: &'a Members, field: &str) -> Option<&'a Members> {
    members.get(field)?.as_object()
}

pub(super) fn items<'a>(members: &'a Members, field: &str) -> &'a [Value] {
    members.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The objects in the list `field`, each with its index.
pub(super) fn objects<'a>(members: &'a Members, field: &str) -> impl Iterator<Item = (usize, &'a Members)> {
    items(members, field).iter().enumerate().filter_map(|(index, item)| Some((index, item.as_object()?)))
}

/// Those of `fields` that are given.
pub(super) fn given<'a>(members: &Members, fields: &[&'a str]) -> Vec<&'a str> {
    fields.iter().copied().filter(|field| has(members, field)).collect()
}

/// A quantity in billionths.
pub(super) fn amount(value: Option<&Value>) -> Option<i128> {
    match value? {
        Value::String(text) => quantity::nanos(text),
        Value::Number(number) => quantity::nanos(&number.to_string()),
        _ => None,
    }
}
