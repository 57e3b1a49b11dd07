//! The entries of a marker, read back: what each stands for, and where it is.

use super::equal::{self, Difference};
use super::field::{self, FieldEntry};
pub use super::obstacle::LeftoverCause;
use super::part::{self, Part};
use super::tables::{Entries, Fields, INNER, Inner, List, MAPS, Scope, key_in};
use crate::api::MARKER_PREFIX;
use crate::api::v1alpha1::RawObject;
use json_patch::jsonptr::{Pointer, PointerBuf};
use serde_json::Value;

/// An entry of a marker.
pub(crate) struct Listed {
    /// The steps from the pod, with keys of items instead of indexes.
    pub(crate) tokens: Vec<String>,
    pub(crate) what: What,
}

/// The meaning of an entry.
#[derive(Clone, Copy)]
pub(crate) enum What {
    /// A list or map that was created.
    Parent,
    /// An item of a list of the pod.
    Item(&'static List),
    /// An item of a list of a container, which is in the first list.
    Inner(&'static List, &'static Inner),
    /// An entry of a map.
    Entry(&'static Entries),
    /// A part of the value of a variable of a container, which is in that list.
    Part(&'static List),
    /// A field of the pod, or an item of a list of it.
    Field(FieldEntry),
}

impl Listed {
    /// The entry `pointer` of a marker in an object whose pod is at `pod`. None if injection never adds such a thing.
    pub(crate) fn parse(pod: &str, pointer: &str) -> Option<Self> {
        let below = Pointer::parse(pointer.strip_prefix(pod)?).ok()?;
        let tokens: Vec<String> = below.tokens().map(|token| token.decoded().into_owned()).collect();
        let what = meaning(&tokens.iter().map(String::as_str).collect::<Vec<_>>())?;
        Some(Self { tokens, what })
    }

    /// The key in the list or map, and the steps to that.
    pub(crate) fn split(&self) -> (&str, &[String]) {
        self.tokens.split_last().map_or(("", &[]), |(last, parents)| (last.as_str(), parents))
    }

    /// The name of the variable, and the part of its value; none if it is something else.
    pub(crate) fn part(&self) -> Option<(&str, Part<'_>)> {
        let What::Part(_) = self.what else { return None };
        let [.., name, _, side, separator, text] = &self.tokens[..] else { return None };
        Some((name, Part::of_steps([side, separator, text])?))
    }

    /// The grace period that it lists, in seconds; none if it lists something else.
    pub(crate) fn grace(&self) -> Option<i64> {
        let is_grace = matches!(self.what, What::Field(FieldEntry::Grace));
        field::numbers(&self.tokens).filter(|_| is_grace).map(|(least, _)| least)
    }

    /// Whether both are parts of one variable.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        matches!(self.what, What::Part(_)) && self.tokens.get(..5) == other.tokens.get(..5)
    }

    /// The text of the variable with that part in `pod`; none if there is no such variable, or no text.
    pub(crate) fn joined<'a>(&self, pod: &'a Value) -> Option<&'a str> {
        let (name, _) = self.part()?;
        let container = pod.pointer(&locate(pod, self.tokens.get(..3)?).ok()?)?.as_object()?;
        part::literal(part::variable(container, name)?.1)
    }

    /// Sets that text.
    pub(crate) fn set_joined(&self, pod: &mut Value, value: String) {
        let Some((name, _)) = self.part() else { return };
        let Some(container) = self.tokens.get(..3).and_then(|steps| locate(pod, steps).ok()) else { return };
        let Some(container) = pod.pointer_mut(&container) else { return };
        let place = container.as_object().and_then(|container| part::variable(container, name)).map(|(place, _)| place);
        if let Some(variable) = place.and_then(|place| container.get_mut(part::ENV)?.get_mut(place)) {
            variable[part::VALUE] = value.into();
        }
    }

    /// The first field of `there`, the item at this place, that is not what the API server makes of `wanted`.
    /// `host_network`: whether the pod is on the network of its host.
    pub(crate) fn difference(&self, wanted: &RawObject, there: &RawObject, host_network: bool) -> Option<Difference> {
        let (fields, list) = self.fields()?;
        equal::exact(wanted, there, fields, list, host_network)
    }

    /// The same where other admission may have acted on `there`, as on each pod.
    pub(super) fn kept_difference(&self, wanted: &RawObject, there: &RawObject) -> Option<Difference> {
        equal::kept_difference(wanted, there, self.fields()?.0)
    }

    /// The meaning of the fields of the item, and the field that holds its list; none if it is no item.
    fn fields(&self) -> Option<(Fields, &'static str)> {
        match self.what {
            What::Item(list) => Some((list.fields, list.field)),
            What::Inner(_, inner) => Some((inner.fields, inner.field)),
            What::Parent | What::Entry(_) | What::Part(_) | What::Field(_) => None,
        }
    }
}

fn meaning(tokens: &[&str]) -> Option<What> {
    let containers = |field: &str| List::named(field).filter(|list| list.scope == Scope::Containers);
    let inner = |field: &str| INNER.iter().find(|inner| inner.field == field);
    let map = |field: &str| MAPS.iter().find(|map| map.field == field);
    match tokens {
        ["metadata"] => Some(What::Parent),
        ["metadata", field] => map(field).map(|_| What::Parent),
        // Never a marker, because each belongs to its own policy.
        ["metadata", "annotations", key] if key.starts_with(MARKER_PREFIX) => None,
        ["metadata", field, _] => map(field).map(What::Entry),
        ["spec", steps @ ..] if field::is_parent(steps) => Some(What::Parent),
        ["spec", steps @ ..] if field::entry(steps).is_some() => field::entry(steps).map(What::Field),
        ["spec", field] => List::named(field).map(|_| What::Parent),
        ["spec", field, _] => List::named(field).map(What::Item),
        ["spec", of, _, field] => containers(of).and(inner(field)).map(|_| What::Parent),
        ["spec", of, _, field, _] => Some(What::Inner(containers(of)?, inner(field)?)),
        ["spec", of, _, part::ENV, _, part::VALUE] => containers(of).map(|_| What::Parent),
        ["spec", of, _, part::ENV, _, part::VALUE, side, separator, text] => {
            Part::of_steps([side, separator, text])?;
            containers(of).map(What::Part)
        }
        _ => None,
    }
}

/// The JSON pointer below `at` for `tokens`, in which keys stand for items.
pub(crate) fn locate(at: &Value, tokens: &[String]) -> Result<String, LeftoverCause> {
    let (mut at, mut name, mut pointer) = (at, "", PointerBuf::new());
    for token in tokens {
        at = match at {
            Value::Object(fields) => {
                pointer.push_back(token.as_str());
                fields.get(token).ok_or(LeftoverCause::Missing)?
            }
            Value::Array(items) => {
                let place = only(items, name, token)?;
                pointer.push_back(place);
                &items[place]
            }
            other => return Err(unfit(other)),
        };
        name = token;
    }
    Ok(pointer.to_string())
}

/// The reason why `value` has nothing below it.
pub(super) fn unfit(value: &Value) -> LeftoverCause {
    if value.is_null() { LeftoverCause::Missing } else { LeftoverCause::Unexpected }
}

/// The index of the only item with that key in `items` of the list `name`.
pub(super) fn only(items: &[Value], name: &str, key: &str) -> Result<usize, LeftoverCause> {
    // Never without a key, because our items have one.
    let is_it = |item: &Value| !key.is_empty() && item.as_object().is_some_and(|item| key_in(name, item) == key);
    let mut places = (0..items.len()).filter(|&place| is_it(&items[place]));
    match (places.next(), places.next()) {
        (None, _) => Err(LeftoverCause::Missing),
        (Some(place), None) => Ok(place),
        _ => Err(LeftoverCause::Ambiguous),
    }
}
