//! Whether what a marker lists is still what a template adds.

use super::field::{self, FieldEntry};
use super::listed::{LeftoverCause, Listed, What, locate};
use super::marker::{self, Marker};
use super::part::{ENV, Part};
use super::pod::{Network, Pod};
use super::share;
use super::tables::{self, INIT_CONTAINERS, List};
use super::{Template, equal};
use crate::api::v1alpha1::{Place, RawObject};
use crate::parameters::Parameter;
use crate::workload::Workload;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashSet;

impl Template {
    /// The same template in the form in which `marker` of a workload with its pod at `pod` lists it: with the values that it
    /// records, and with native sidecars if one of its containers is an init container there.
    pub(crate) fn as_listed(&self, pod: &str, marker: &Marker) -> Cow<'_, Self> {
        match self.with_values(&self.recorded(marker, Parameter::may_be)) {
            Cow::Borrowed(valued) => valued.in_form(pod, marker),
            Cow::Owned(valued) => Cow::Owned(valued.in_form(pod, marker).into_owned()),
        }
    }

    fn in_form(&self, pod: &str, marker: &Marker) -> Cow<'_, Self> {
        let is_native = |listed: &Listed| {
            matches!(listed.what, What::Item(list) if list.field == INIT_CONTAINERS)
                && self.spec.containers.iter().any(|item| item.get("name").is_some_and(|name| name == listed.split().0))
        };
        let is_any_native =
            marker.added.iter().filter_map(|pointer| Listed::parse(pod, pointer)).any(|it| is_native(&it));
        if is_any_native { Cow::Owned(self.with_native_sidecars()) } else { Cow::Borrowed(self) }
    }

    /// The item that it adds at `listed`, and the side of the user's items on which it goes.
    pub(crate) fn item(&self, listed: &Listed) -> Option<(&RawObject, Place)> {
        let key = listed.split().0;
        match listed.what {
            What::Item(list) => {
                let item = (list.items)(&self.spec).iter().find(|item| list.key_of(item) == key)?;
                Some((item, (list.place)(self, item)))
            }
            What::Inner(list, inner) if self.reaches(list) && self.picks()(&listed.tokens[2]) => {
                let item = (inner.items)(&self.spec).iter().find(|item| (inner.key)(item) == key)?;
                Some((item, (inner.place)(self, item)))
            }
            _ => None,
        }
    }

    /// The body of `workload` with its `marker` of this template narrowed to what the template adds; none if that is all it
    /// lists.
    pub(crate) fn narrowed(&self, workload: &Workload, marker: &Marker) -> Option<Value> {
        let pod = workload.pod_pointer();
        let listed = self.as_listed(&pod, marker);
        let names_default = |entry: &Listed| {
            entry.split().0 == tables::DEFAULT_CONTAINER && matches!(entry.what, What::Entry(_)) && self.goes_before()
        };
        let is_ours = |pointer: &String| {
            Listed::parse(&pod, pointer)
                .is_some_and(|entry| matches!(entry.what, What::Parent) || listed.adds(&entry) || names_default(&entry))
        };
        if marker.added.iter().all(is_ours) {
            return None;
        }
        let added = marker.added.iter().filter(|pointer| is_ours(pointer)).cloned().collect();
        let narrowed = Marker { added, ..marker.clone() };
        let mut body = workload.body.clone();
        body.pointer_mut(&format!("{pod}/metadata/annotations"))?[self.marker_key.as_str()] = narrowed.to_value();
        Some(body)
    }

    /// Whether one of its containers goes before the user's.
    pub(super) fn goes_before(&self) -> bool {
        self.position.containers == Place::Before && !self.spec.containers.is_empty()
    }

    /// The index of the item `key` among those that it adds to lists of that kind.
    pub(crate) fn rank(&self, what: What, key: &str) -> Option<usize> {
        match what {
            What::Item(list) => (list.items)(&self.spec).iter().position(|item| list.key_of(item) == key),
            What::Inner(_, inner) => (inner.items)(&self.spec).iter().position(|item| (inner.key)(item) == key),
            What::Parent | What::Entry(_) | What::Part(_) | What::Field(_) => None,
        }
    }

    /// True if and only if it adds an item or entry at `listed` that differs from what is `there`.
    pub(crate) fn differs(&self, listed: &Listed, there: &Value) -> bool {
        let key = listed.split().0;
        let fields = match listed.what {
            What::Parent | What::Part(_) | What::Field(_) => return false,
            What::Entry(map) => return map.of(&self.spec).any(|(own, value)| own == key && there != value.as_str()),
            // Its parts are entries of their own.
            What::Inner(_, inner) if inner.field == ENV && self.part(key).is_some() => return false,
            // What is shared with it is of the workload.
            What::Item(_) if self.spec.share.iter().any(|share| share.to == key) => return false,
            What::Item(list) => list.fields,
            What::Inner(_, inner) => inner.fields,
        };
        self.item(listed).is_some_and(|(wanted, _)| {
            there.as_object().is_none_or(|there| equal::difference(wanted, there, fields).is_some())
        })
    }

    /// True if and only if it adds an item or entry at `listed`.
    pub(crate) fn adds(&self, listed: &Listed) -> bool {
        match listed.what {
            What::Entry(map) => map.of(&self.spec).any(|(key, _)| key == listed.split().0),
            What::Inner(_, inner) if self.may_share(&listed.tokens[2], inner, listed.split().0) => true,
            What::Field(entry) => self.fits(entry, &listed.tokens, None),
            What::Part(list) => {
                let is_ours = |(name, part): (&str, Part<'_>)| self.part(name) == Some(part);
                self.reaches(list) && self.picks()(&listed.tokens[2]) && listed.part().is_some_and(is_ours)
            }
            _ => self.item(listed).is_some(),
        }
    }

    /// The same in a workload where policies added the containers `injected`: no policy adds to those what it adds to the user's.
    pub(crate) fn adds_beside(&self, injected: &HashSet<String>, listed: &Listed) -> bool {
        let is_injected = || listed.tokens.get(2).is_some_and(|container| injected.contains(container));
        match listed.what {
            What::Inner(_, inner) if is_injected() => self.may_share(&listed.tokens[2], inner, listed.split().0),
            What::Part(_) if is_injected() => false,
            _ => self.adds(listed),
        }
    }
}

/// The first entry of `marker` that is not exactly what `template` adds to the pod of `workload`: its pointer, and what
/// is wrong with it. `template` comes in the form in which `marker` lists it.
///
/// Exactly: every field that `template` sets has that value, and all else is a default of the API server.
pub(crate) fn edited(workload: &Workload, template: &Template, marker: &Marker) -> Option<(String, String)> {
    let pod = match Pod::of(workload) {
        Ok(pod) => pod,
        Err(conflict) => return Some((workload.pod_pointer(), conflict.message)),
    };
    let at = workload.pod_pointer();
    let annotations = pod.annotations_pointer().to_string();
    marker.added.iter().find_map(|pointer| {
        let is_in = |other: &String| other.strip_prefix(pointer.as_str()).is_some_and(|rest| rest.starts_with('/'));
        let wrong = match Listed::parse(&at, pointer) {
            None => "it is nothing that a policy adds".to_owned(),
            // The marker itself is in the annotations.
            Some(Listed { what: What::Parent, .. }) if *pointer == annotations || is_in(&annotations) => return None,
            Some(Listed { what: What::Parent, .. }) if marker.added.iter().any(is_in) => return None,
            Some(Listed { what: What::Parent, .. }) => "nothing in it is listed".to_owned(),
            Some(listed) => wrong(&pod, template, &listed, (marker, pointer))?,
        };
        Some((pointer.clone(), wrong))
    })
}

/// What is wrong with the item or entry `listed`, which is that at `pointer` of `marker`.
fn wrong(pod: &Pod<'_>, template: &Template, listed: &Listed, (marker, pointer): (&Marker, &str)) -> Option<String> {
    let unknown = || Some("the revision does not add it".to_owned());
    let whole = pod.workload.pod()?;
    if let What::Field(entry) = listed.what {
        let rest = matches!(entry, FieldEntry::Grace).then(|| marker::longest_grace(pod.workload)).flatten();
        let is_there = field::is_there(&whole["spec"], entry, &listed.tokens, rest);
        return match template.fits(entry, &listed.tokens, Some(&whole["spec"])) {
            true => (!is_there).then(|| "it has another value than in the revision".to_owned()),
            false => unknown(),
        };
    }
    if let Some((_, part)) = listed.part() {
        let is_there = listed.joined(whole).is_some_and(|value| part.is_in(value));
        return match template.adds(listed) {
            true => (!is_there).then(|| "the value does not have it any more".to_owned()),
            false => unknown(),
        };
    }
    let there = match locate(whole, &listed.tokens) {
        Ok(place) => whole.pointer(&place)?,
        Err(LeftoverCause::Missing) => return Some("it is missing".to_owned()),
        Err(LeftoverCause::Ambiguous) => return Some("it exists more than once".to_owned()),
        Err(_) => return Some("something else is in its place".to_owned()),
    };
    if let What::Entry(map) = listed.what {
        let key = listed.split().0;
        if let Some((_, wanted)) = map.of(&template.spec).find(|(own, _)| *own == key) {
            // Without the values, because annotations may hold secrets.
            return (there != wanted).then(|| "it has another value than in the revision".to_owned());
        }
        let is_ours = key == tables::DEFAULT_CONTAINER && default_container(pod, template).is_some();
        return if is_ours { None } else { unknown() };
    }
    if let What::Inner(_, inner) = listed.what
        && template.may_share(&listed.tokens[2], inner, listed.split().0)
    {
        let there = there.as_object()?;
        let Some(wanted) = template.shared(&listed.tokens[2], inner, there) else { return unknown() };
        let difference = listed.difference(&wanted, there, pod.network() == Network::Host)?;
        return Some(format!("it has {}", difference.described("revision", template.shows_values())));
    }
    let Some((wanted, _)) = template.item(listed) else { return unknown() };
    if matches!(listed.what, What::Inner(_, inner) if inner.field == ENV && template.part(listed.split().0).is_some()) {
        // Its parts are entries of their own.
        return None;
    }
    let there = share::without_shared(&pod.workload.pod_pointer(), marker, pointer, there.as_object()?);
    let difference = listed.difference(wanted, &there, pod.network() == Network::Host)?;
    Some(format!("it has {}", difference.described("revision", template.shows_values())))
}

/// The annotation for kubectl in `marker`, as it is listed there, if it does not name the user's first container. Then it
/// is the user's: they have chosen another container, or put one before it. `template` does not set the annotation.
pub(crate) fn chosen_container(workload: &Workload, template: &Template, marker: &Marker) -> Option<String> {
    let pod = Pod::of(workload).ok()?;
    let pointer = pod.annotations_pointer().with_trailing_token(tables::DEFAULT_CONTAINER).to_string();
    let named = workload.pod_annotation(tables::DEFAULT_CONTAINER)?;
    let is_chosen = marker.added.contains(&pointer) && default_container(&pod, template)? != named;
    is_chosen.then_some(pointer)
}

/// The value of the annotation for kubectl that comes with `template`: the user's first container, if containers of
/// `template` go before it.
fn default_container<'a>(pod: &Pod<'a>, template: &Template) -> Option<&'a str> {
    if template.spec.metadata.as_ref().is_some_and(|own| own.annotations.contains_key(tables::DEFAULT_CONTAINER)) {
        return None;
    }
    let containers = List::named(tables::CONTAINERS)?;
    (containers.items)(&template.spec).iter().find(|item| (containers.place)(template, item) == Place::Before)?;
    let marked = marker::containers(pod.workload, &[]);
    pod.items(containers).map(|item| containers.key_of(item)).find(|name| !marked.contains(*name))
}
