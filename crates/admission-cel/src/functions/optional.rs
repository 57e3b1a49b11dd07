//! Optional values.

use crate::error::Failure;
use crate::signatures::Work;
use crate::value::{Outcome, Val};

pub(crate) fn of<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [value] = values else { return Err(Failure::no_such_overload()) };
    Val::some(value.clone())
}

pub(crate) fn of_non_zero_value<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [value] = values else { return Err(Failure::no_such_overload()) };
    if is_zero(value) { Ok(Val::Optional(None)) } else { Val::some(value.clone()) }
}

fn is_zero(value: &Val<'_>) -> bool {
    match value {
        Val::Null | Val::Bool(false) | Val::Int(0) | Val::Uint(0) | Val::Duration(0) | Val::Optional(None) => true,
        Val::Double(value) => *value == 0.0,
        Val::Text(text) => text.is_empty(),
        Val::Bytes(bytes) => bytes.is_empty(),
        Val::List(list) => list.len() == 0,
        Val::Map(map) => map.len() == 0,
        Val::Optional(Some(held)) => is_zero(&held.value),
        _ => false,
    }
}

pub(crate) fn none<'a>(_: &mut Work<'_>, _: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Optional(None))
}

pub(crate) fn value<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::Optional(Some(held))] => Ok(held.value.clone()),
        [Val::Optional(None)] => Err(Failure::new("optional.none() dereference")),
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn has_value<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::Optional(held)] => Ok(Val::Bool(held.is_some())),
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn first<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::List(list)] => Val::optional(list.get(0)),
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn last<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::List(list)] => Val::optional(list.len().checked_sub(1).and_then(|last| list.get(last))),
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn unwrap<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [Val::List(list)] = values else { return Err(Failure::no_such_overload()) };
    work.meter.charge_items(list.len())?;
    let mut items = Vec::new();
    for item in list.iter() {
        match item {
            Val::Optional(held) => items.extend(held.map(|held| held.value.clone())),
            _ => return Err(Failure::new("value is not optional")),
        }
    }
    Val::list(items)
}
