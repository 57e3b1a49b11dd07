//! The changes of what a marker lists, one by one: field, value and the value that the policy added.
//!
//! What the API server fills in is no change. A running pod has more: admission adds variables, ports and mounts to each
//! container, sets its resources and moves its probes, and none of that is a change either. Pod templates are as their
//! authors wrote them, so a variable that `kubectl set env` adds to every container is a change there.

use super::Template;
use super::edited::{chosen_container, edited};
use super::equal::Difference;
use super::field::{self, FieldEntry};
use super::listed::{LeftoverCause, Listed, What, locate};
use super::marker::{self, Marker};
use super::part::ENV;
use super::pod::{Network, Pod};
use super::share;
use super::tables::DEFAULT_CONTAINER;
use crate::api::v1alpha1::RawObject;
use crate::outside::shown;
use crate::workload::Workload;
use serde::Serialize;
use serde_json::Value;
use std::fmt;

/// The most changes of one workload that are named. Users can write markers of any length.
const MOST: usize = 8;

/// The value that is shown for one that is not there.
const NONE: &str = "none";

/// A change of what a policy has added to a workload.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// What was changed, such as `container envoy`; or a sentence.
    pub item: String,
    /// The path of the field in it, such as `resources.limits.cpu`; empty if the item is gone, or `item` says all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
    /// The value in the workload, cut; none if it may be secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub here: Option<String>,
    /// The value that the policy added, cut; none if it may be secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<String>,
}

impl Edit {
    /// A change of all of the item: a sentence.
    fn whole(item: &str, how: &str) -> Self {
        Self { item: format!("{item} {how}"), field: String::new(), here: None, added: None }
    }

    fn of(item: &str, difference: &Difference, template: &Template) -> Self {
        let (field, [added, here]) = match template.shows_values() {
            true => (difference.to_string(), difference.shown()),
            false => (difference.fields(), [None, None]),
        };
        // Keys of items come from the workload.
        Self { item: item.to_owned(), field: shown(&field).into_owned(), here, added }
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { item, field, here, added } = self;
        if field.is_empty() {
            return write!(f, "{item}");
        }
        let is_more = here.is_none() && added.as_deref() == Some(NONE);
        write!(f, "{item} has {}`{field}`", if is_more { "" } else { "another " })?;
        match (here, added) {
            (None, Some(added)) if added == NONE => write!(f, ", which is not from the policy"),
            (Some(here), Some(added)) => write!(f, ": {here} here, {added} from the policy"),
            _ => Ok(()),
        }
    }
}

/// All of `edits` in one sentence.
pub fn all_told(edits: &[Edit]) -> String {
    let told: Vec<String> = edits.iter().map(ToString::to_string).collect();
    told.join("; ")
}

/// The changes of what `marker` lists in `workload`, at most [`MOST`]. `template` is what the policy added, in the form in
/// which `marker` lists it. What is listed and `template` does not add is no change of it.
pub(crate) fn edits(workload: &Workload, template: &Template, marker: &Marker) -> Vec<Edit> {
    let Ok(pod) = Pod::of(workload) else { return Vec::new() };
    let at = workload.pod_pointer();
    let mut edits = Vec::new();
    for pointer in &marker.added {
        let item = pointer.strip_prefix(&at).and_then(marker::told);
        if let (Some(item), Some(listed)) = (item, Listed::parse(&at, pointer)) {
            edits.extend(of_listed(&pod, template, &listed, &shown(&item), (marker, pointer)));
        }
        if edits.len() >= MOST {
            edits.truncate(MOST);
            break;
        }
    }
    edits
}

/// Whether `workload` has exactly what `marker` lists of `template`, which comes in the form in which `marker` lists it. On a
/// pod, other admission may have acted.
pub(crate) fn is_exact(workload: &Workload, template: &Template, marker: &Marker) -> bool {
    let at = workload.pod_pointer();
    let is_ours = |pointer: &String| {
        let Some(listed) = Listed::parse(&at, pointer) else { return false };
        let names_container = listed.split().0 == DEFAULT_CONTAINER && template.goes_before();
        matches!(listed.what, What::Parent) || template.adds(&listed) || names_container
    };
    if chosen_container(workload, template, marker).is_some() {
        return false;
    }
    match workload.kind.is_pod() {
        true => marker.added.iter().all(is_ours) && edits(workload, template, marker).is_empty(),
        false => edited(workload, template, marker).is_none(),
    }
}

/// The changes of the item or entry `listed`, which is called `item` and is at `pointer` of `marker`.
fn of_listed(
    pod: &Pod<'_>,
    template: &Template,
    listed: &Listed,
    item: &str,
    (marker, pointer): (&Marker, &str),
) -> Vec<Edit> {
    let Some(whole) = pod.workload.pod() else { return Vec::new() };
    if let Some((_, part)) = listed.part() {
        let is_gone = !listed.joined(whole).is_some_and(|value| part.is_in(value));
        let is_edit = is_gone && template.adds(listed) && !is_of_a_container_that_is_gone(whole, listed);
        return if is_edit { vec![Edit::whole(item, "is gone")] } else { Vec::new() };
    }
    let wanted = match listed.what {
        What::Field(entry) => {
            let spec = &whole["spec"];
            let is_kept = field::holds(spec, entry, &listed.tokens) && template.fits(entry, &listed.tokens, Some(spec));
            let is_edit = template.adds(listed) && !is_kept;
            let difference = match entry {
                FieldEntry::Item(list) => template.pod_difference(list, listed.split().0, spec),
                FieldEntry::Processes | FieldEntry::Grace => None,
            };
            return match difference {
                _ if !is_edit => Vec::new(),
                Some(difference) => vec![Edit::of(item, &difference, template)],
                None => vec![Edit::whole(item, "is gone, or has another value")],
            };
        }
        What::Parent | What::Part(_) => return Vec::new(),
        What::Inner(_, inner) if template.may_share(&listed.tokens[2], inner, listed.split().0) => Some(None),
        // Its parts are entries of their own.
        What::Inner(_, inner) if inner.field == ENV && template.part(listed.split().0).is_some() => return Vec::new(),
        What::Entry(map) => map.of(&template.spec).find(|(key, _)| *key == listed.split().0).map(|_| None),
        What::Item(_) | What::Inner(..) => template.item(listed).map(|(wanted, _)| Some(wanted)),
    };
    let Some(wanted) = wanted else { return Vec::new() };
    let place = match locate(whole, &listed.tokens) {
        Ok(place) => place,
        Err(LeftoverCause::Missing) if is_of_a_container_that_is_gone(whole, listed) => return Vec::new(),
        Err(LeftoverCause::Missing) => return vec![Edit::whole(item, "is gone")],
        Err(LeftoverCause::Ambiguous) => return vec![Edit::whole(item, "is there more than once")],
        Err(_) => return vec![Edit::whole(item, "is something else")],
    };
    if let (What::Inner(_, inner), None) = (listed.what, wanted) {
        let Some(there) = whole.pointer(&place).and_then(Value::as_object) else { return Vec::new() };
        return match template.shared(&listed.tokens[2], inner, there) {
            Some(wanted) => differences(pod, listed, &wanted, there)
                .iter()
                .map(|difference| Edit::of(item, difference, template))
                .collect(),
            None => vec![Edit::whole(item, "is something else")],
        };
    }
    match (wanted, whole.pointer(&place)) {
        (None, there) => of_entry(template, listed, there).into_iter().map(|how| Edit::whole(item, how)).collect(),
        (Some(wanted), Some(Value::Object(there))) => {
            let there = share::without_shared(&pod.workload.pod_pointer(), marker, pointer, there);
            differences(pod, listed, wanted, &there)
                .iter()
                .map(|difference| Edit::of(item, difference, template))
                .collect()
        }
        _ => vec![Edit::whole(item, "is something else")],
    }
}

/// What is wrong with a label or annotation. Without its value, because annotations may hold secrets.
fn of_entry(template: &Template, listed: &Listed, there: Option<&Value>) -> Option<&'static str> {
    let What::Entry(map) = listed.what else { return None };
    let (_, wanted) = map.of(&template.spec).find(|(key, _)| *key == listed.split().0)?;
    (there.and_then(Value::as_str) != Some(wanted)).then_some("has another value")
}

/// Whether the listed item was in a user's container that is not there any more: then the user has taken it away.
fn is_of_a_container_that_is_gone(pod: &Value, listed: &Listed) -> bool {
    let is_gone = |steps: &[String]| matches!(locate(pod, steps), Err(LeftoverCause::Missing));
    matches!(listed.what, What::Inner(..) | What::Part(_)) && listed.tokens.get(..3).is_some_and(is_gone)
}

/// The fields in which `there` is not what the policy added, each once.
fn differences(pod: &Pod<'_>, listed: &Listed, wanted: &RawObject, there: &RawObject) -> Vec<Difference> {
    let first = |there: &RawObject| match pod.workload.kind.is_pod() {
        true => listed.kept_difference(wanted, there),
        false => listed.difference(wanted, there, pod.network() == Network::Host),
    };
    let Some(mut difference) = first(there) else { return Vec::new() };
    // Without what has been found, the next difference is the first one.
    let (mut rest, mut found) = (there.clone(), Vec::new());
    while let Some(field) = difference.top().map(str::to_owned) {
        match wanted.get(&field) {
            Some(value) => drop(rest.insert(field, value.clone())),
            None => drop(rest.remove(&field)),
        }
        found.push(difference);
        match first(&rest).filter(|_| found.len() < MOST) {
            Some(next) => difference = next,
            None => break,
        }
    }
    found
}
