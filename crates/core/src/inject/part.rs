//! Parts of values: a variable of a template with `merge` joins its value to that of the workload.
//!
//! `{name: OPTIONS, value: -b, merge: Append}` makes `-a -b` of `-a`. A container without the variable gets it as any
//! other. A marker lists each part with its side, its separator and its text:
//! `/spec/containers/app/env/OPTIONS/value/Append/ /-b`. So the way back removes exactly that part, and what a user has
//! changed since stays.

use super::Template;
use super::value::text;
use crate::api::rules::MAX_PART;
use crate::api::v1alpha1::{self, Place, RawObject};
use json_patch::jsonptr::PointerBuf;
use serde_json::Value;
use std::collections::BTreeMap;

/// The field of a variable with the side of its part.
const MERGE: &str = "merge";
/// The field of a variable with the text between its part and the rest.
const SEPARATOR: &str = "separator";
/// The default separator.
const SPACE: &str = " ";
/// The list of variables of a container.
pub(crate) const ENV: &str = "env";
/// The field of a variable with its text.
pub(crate) const VALUE: &str = "value";
/// How a variable of a template joins the workload's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    /// The side of the workload's own text.
    pub(crate) side: Place,
    pub(crate) separator: String,
}

/// Takes `merge` and `separator` out of the variables of `spec`, because no pod has these fields.
pub(super) fn split(spec: &mut v1alpha1::Template) -> BTreeMap<String, Join> {
    let mut joins = BTreeMap::new();
    for item in &mut spec.env {
        let (side, separator) = (item.remove(MERGE), item.remove(SEPARATOR));
        let side = side.as_ref().and_then(Value::as_str).and_then(side_of);
        let separator = separator.as_ref().and_then(Value::as_str).unwrap_or(SPACE).to_owned();
        joins.extend(side.map(|side| (text(item, "name").to_owned(), Join { side, separator })));
    }
    joins
}

fn side_of(word: &str) -> Option<Place> {
    match word {
        "Append" => Some(Place::After),
        "Prepend" => Some(Place::Before),
        _ => None,
    }
}

fn word_of(side: Place) -> &'static str {
    match side {
        Place::After => "Append",
        Place::Before => "Prepend",
    }
}

/// A part of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    pub(crate) side: Place,
    pub(crate) separator: &'a str,
    pub(crate) text: &'a str,
}

impl<'a> Part<'a> {
    /// The part in the last steps of an entry of a marker; none if they are no part.
    pub(super) fn of_steps(steps: [&'a str; 3]) -> Option<Self> {
        let [side, separator, text] = steps;
        let part = Self { side: side_of(side)?, separator, text };
        let is_one = |text: &str, most| !text.is_empty() && text.len() <= most;
        (is_one(separator, MAX_SEPARATOR) && is_one(text, MAX_PART)).then_some(part)
    }

    /// The pointer of the part, where that of its variable is `variable`.
    pub(super) fn pointer(self, variable: &PointerBuf) -> String {
        let steps = [VALUE, word_of(self.side), self.separator, self.text];
        let pointer = steps.iter().fold(variable.clone(), |pointer, step| pointer.with_trailing_token(*step));
        pointer.to_string()
    }

    /// Where it stands in `value` between separators, from the outermost place on its side. Nowhere in a value that no program can
    /// have: injection makes none.
    fn places(self, value: &str) -> impl Iterator<Item = usize> {
        // With a separator at either end, a place is wherever the text stands between two, which `str` finds in linear time.
        let [padded, wanted] = [value, self.text].map(|text| [self.separator, text, self.separator].concat());
        let (length, [text, separator]) = (value.len(), [self.text.len(), self.separator.len()]);
        let is_between = move |at: &usize| {
            let end = at + text;
            (*at == 0 || *at >= separator) && (end == length || end + separator <= length)
        };
        let mut rest = if length < NO_PROGRAM { 0..padded.len() } else { 0..0 };
        let next = move || {
            let found = match self.side {
                Place::Before => padded[rest.clone()].find(&wanted),
                Place::After => padded[rest.clone()].rfind(&wanted),
            };
            let at = rest.start + found?;
            // Two places can share text: the next one begins, or ends, one character further.
            match self.side {
                Place::Before => rest.start = at + wanted.chars().next().map_or(1, char::len_utf8),
                Place::After => rest.end = at + wanted.len() - wanted.chars().next_back().map_or(1, char::len_utf8),
            }
            Some(at)
        };
        std::iter::from_fn(next).filter(is_between)
    }

    /// Whether `value` has it between separators.
    pub(crate) fn is_in(self, value: &str) -> bool {
        self.places(value).next().is_some()
    }

    /// `value` with the text `new` in its place, or without it and one separator; none if it is not there. The place is
    /// the outermost one on its side that leaves `others`, apart from each other if they were, of [`MOST_TRIED`] places and others.
    pub(crate) fn replaced(self, value: &str, new: Option<&str>, others: &[Part<'_>]) -> Option<String> {
        let others = others.get(..MOST_TRIED).unwrap_or(others);
        let kept: Vec<Part<'_>> = others.iter().copied().filter(|other| other.is_in(value)).collect();
        let results = self.places(value).take(MOST_TRIED).map(|place| {
            let (before, after) = (&value[..place], &value[place + self.text.len()..]);
            match (new, before.strip_suffix(self.separator), after.strip_prefix(self.separator)) {
                (Some(new), ..) => format!("{before}{new}{after}"),
                (None, Some(before), None) => format!("{before}{after}"),
                (None, Some(shorter), Some(_)) if self.side == Place::After => format!("{shorter}{after}"),
                (None, _, Some(after)) => format!("{before}{after}"),
                (None, None, None) => String::new(),
            }
        });
        let results: Vec<String> = results.collect();
        let apart = results.iter().find(|result| are_outermost(result, &kept));
        let beside = || results.iter().find(|result| kept.iter().all(|other| other.is_in(result)));
        apart.or_else(beside).or(results.first()).cloned()
    }

    /// `value` without the part at its end of it; none if it is not there.
    fn taken_off(self, value: &str) -> Option<&str> {
        let rest = match self.side {
            Place::Before => value.strip_prefix(self.text),
            Place::After => value.strip_suffix(self.text),
        }?;
        match self.side {
            _ if rest.is_empty() => Some(rest),
            Place::Before => rest.strip_prefix(self.separator),
            Place::After => rest.strip_suffix(self.separator),
        }
    }
}

/// The longest separator, in bytes: the schema allows 8 characters.
const MAX_SEPARATOR: usize = 32;
/// The most places of a part, and the most other parts, that are told apart by trying each order: 720 of these. Who creates a pod can
/// write a marker with thousands of parts, and a value with thousands of places.
const MOST_TRIED: usize = 6;
/// Linux starts no program with a variable of that many bytes (`MAX_ARG_STRLEN`).
const NO_PROGRAM: usize = 128 << 10;

/// Whether `parts` can be taken off `value` one after the other, as they were joined to it.
fn are_outermost(value: &str, parts: &[Part<'_>]) -> bool {
    let others = |at: usize| [&parts[..at], &parts[at + 1..]].concat();
    let is_outermost = |at: usize| parts[at].taken_off(value).is_some_and(|rest| are_outermost(rest, &others(at)));
    parts.is_empty() || (0..parts.len()).any(is_outermost)
}

impl Template {
    /// The part that it joins to the variable `name`; none if it has no such variable, or sets it.
    pub(crate) fn part(&self, name: &str) -> Option<Part<'_>> {
        let Join { side, separator } = self.joins.get(name)?;
        let item = self.spec.env.iter().find(|item| text(item, "name") == name)?;
        Some(Part { side: *side, separator, text: text(item, VALUE) })
    }
}

/// The variable `name` of `container` that counts, with its index: the kubelet takes the last of one name.
pub(crate) fn variable<'a>(container: &'a RawObject, name: &str) -> Option<(usize, &'a RawObject)> {
    let items = container.get(ENV).and_then(Value::as_array).into_iter().flatten().enumerate();
    let named = items.filter_map(|(index, item)| Some((index, item.as_object()?)));
    named.filter(|(_, item)| text(item, "name") == name).last()
}

/// The text of `variable`; none if it comes from elsewhere, or is no text.
pub(crate) fn literal(variable: &RawObject) -> Option<&str> {
    let is_set = variable.get("valueFrom").is_some_and(|source| !source.is_null());
    match variable.get(VALUE) {
        _ if is_set => None,
        None | Some(Value::Null) => Some(""),
        Some(value) => value.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_place_is_where_the_text_stands_between_separators(
            value in "[abé:]{0,12}", text in "[abé:]{1,4}", separator in "[:a]{1,2}", is_before: bool,
        ) {
            let (side, separator) = (if is_before { Place::Before } else { Place::After }, &separator[..]);
            let is_place = |at: &usize| {
                let Some(after) = value.get(*at..).and_then(|rest| rest.strip_prefix(&*text)) else { return false };
                let before = &value[..*at];
                (before.is_empty() || before.ends_with(separator)) && (after.is_empty() || after.starts_with(separator))
            };
            let mut expected: Vec<usize> = (0..=value.len()).filter(is_place).collect();
            if !is_before {
                expected.reverse();
            }
            prop_assert_eq!(Part { side, separator, text: &text }.places(&value).collect::<Vec<_>>(), expected);
        }
    }
}
