//! Overlays in workloads: containers that their authors declare by the name of a sidecar, with values of its parameters. Which
//! container is one, [`Parameters::overlay`] says.
//!
//! Injection puts the sidecar in the place of the overlay. The marker has the overlay, so that an undo in files gives it back. On
//! servers nothing gives it back: they take no container without an image.

use super::Template;
use super::conflict::VOLUME_MOUNTS;
use super::defaults::is_default;
use super::equal::{PULL_POLICY, PULLED};
use super::listed::{self, Listed};
use super::marker::{self, Marker};
use super::tables::{CONTAINERS, INIT_CONTAINERS, List};
use super::value::{nanos, text};
use crate::api::MARKER_PREFIX;
use crate::api::v1alpha1::RawObject;
use crate::outside::shown;
use crate::parameters::{Field, Laid, Parameters};
use crate::workload::Workload;
use json_patch::jsonptr::PointerBuf;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::HashSet;

/// An overlay of a workload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Overlay {
    /// The field of the pod's `spec`.
    list: &'static str,
    /// Its index there, among the containers of the author.
    index: usize,
    /// As its author wrote it.
    container: RawObject,
    /// What it gives the parameters, in the order of the policy.
    pub(crate) values: Vec<Option<Laid>>,
}

/// The longest overlay in a marker, in bytes: 32 values of a kilobyte are refused anyway.
const LONGEST: usize = 1 << 14;
/// What a server gives every container.
const DEFAULTED: [&str; 3] = [PULL_POLICY, "terminationMessagePath", "terminationMessagePolicy"];
/// Where the plugin ServiceAccount mounts a token into every container of a pod.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The annotation by which the plugin LimitRanger says which requests and limits it has given to a pod, and how its value begins.
const RANGED: (&str, &str) = ("kubernetes.io/limit-ranger", "LimitRanger plugin set: ");

impl Template {
    /// Whether workloads may have overlays of its containers.
    pub(crate) fn is_overridable(&self) -> bool {
        self.parameters().any(|parameter| parameter.overridable)
    }

    /// The overlays of its containers in `workload`, which has none of its content.
    pub(crate) fn overlays(&self, workload: &Workload) -> Vec<Overlay> {
        let injected = marker::containers(workload, &[]);
        let found = self.declared(workload).filter(|(_, _, container)| !injected.contains(name_of(container)));
        let overlay = |(list, index, container): (&'static str, usize, &RawObject)| {
            let container = as_written(workload, list, container);
            let values = self.read(list, &container)?.ok()?;
            Some(Overlay { list, index, container, values })
        };
        found.filter_map(overlay).collect()
    }

    /// Why `container`, which `workload` has in `list` under the name of one of the template, is no overlay: what it must be without, as the end of a sentence. None if
    /// the template allows no overlay of it.
    pub(super) fn told_of_overlay(&self, workload: &Workload, list: &List, container: &RawObject) -> Option<String> {
        let container = as_written(workload, list.field, container);
        let fields = self.overridable_parameters()?.overridable(list.field, name_of(&container));
        let fields: Vec<String> = fields.iter().map(|field| format!("`{field}`")).collect();
        let wrong = match self.read(list.field, &container)?.err()?.as_str() {
            "image" => "must have `image: auto` or none".to_owned(),
            field => format!("must be without `{}`", shown(field)),
        };
        Some(format!("; an overlay {wrong}, and may set {}", fields.join(", ")))
    }

    /// The body of `workload` without the overlays of its containers; none if there is none.
    pub(crate) fn without_overlays(&self, workload: &Workload) -> Option<Value> {
        let overlays = self.overlays(workload);
        if overlays.is_empty() {
            return None;
        }
        let mut body = workload.body.clone();
        overlays.iter().for_each(|overlay| overlay.remove(&mut body, &workload.pod_pointer()));
        Some(body)
    }

    /// The body of `workload` as if its author had not changed overridable values since the injection that `marker` records: with the values
    /// of the marker in these places, and those of the author in the overlays of the marker. None if nothing was changed. Pods keep what they
    /// have: others resize them.
    fn settled(&self, workload: &Workload, marker: &Marker) -> Option<Value> {
        let parameters = self.overridable_parameters().filter(|_| !workload.kind.is_pod())?;
        let at = workload.pod_pointer();
        let (added, mut settled) = (self.as_listed(&at, marker), Settled::of(workload, marker));
        for (list, own) in [(CONTAINERS, &self.spec.containers), (INIT_CONTAINERS, &self.spec.init_containers)] {
            for name in own.iter().map(name_of) {
                let fields = parameters.overridable(list, name);
                // As a native sidecar, a container is in the other list.
                let places = [CONTAINERS, INIT_CONTAINERS].into_iter().filter_map(|list| {
                    let pointer = format!("{at}{}", PointerBuf::from_tokens(["spec", list, name]));
                    marker.added.contains(&pointer).then(|| Listed::parse(&at, &pointer))?
                });
                for listed in places {
                    if let Some((wanted, _)) = added.item(&listed) {
                        settled.settle((list, name), &listed, wanted, &fields);
                    }
                }
            }
        }
        settled.is_changed.then(|| settled.with_marker(&self.marker_key, marker))
    }

    /// The containers of `workload` that have the name of one of its own in the same list, each with the list and the index.
    fn declared<'w>(&'w self, workload: &'w Workload) -> impl Iterator<Item = (&'static str, usize, &'w RawObject)> {
        let lists = [(CONTAINERS, &self.spec.containers), (INIT_CONTAINERS, &self.spec.init_containers)];
        let spec = workload.pod_spec().filter(|_| self.is_overridable());
        lists.into_iter().flat_map(move |(list, own)| {
            let items = spec.and_then(|spec| spec.get(list)?.as_array()).into_iter().flatten().enumerate();
            let items = items.filter_map(|(index, item)| Some((index, item.as_object()?)));
            let is_own = move |item: &RawObject| own.iter().any(|own| name_of(own) == name_of(item));
            items.filter(move |(_, item)| is_own(item)).map(move |(index, item)| (list, index, item))
        })
    }

    /// What `container` of `list` gives the parameters, or the field that an overlay cannot have. None if the container of the template
    /// has no place for overlays.
    fn read(&self, list: &str, container: &RawObject) -> Option<Result<Vec<Option<Laid>>, String>> {
        let parameters = self.overridable_parameters()?;
        let may_be = !parameters.overridable(list, name_of(container)).is_empty();
        may_be.then(|| parameters.overlay(list, container, |field, value| is_added(container, field, value)))
    }

    fn overridable_parameters(&self) -> Option<&Parameters> {
        self.all_parameters().filter(|_| self.is_overridable())
    }
}

/// `workload` as if its author had not changed overridable values in the content under the marker `key`, which one of `known` added: see
/// [`Template::settled`].
pub(crate) fn settled<'w, 't>(
    workload: &'w Workload,
    key: &str,
    known: impl IntoIterator<Item = &'t Template>,
) -> Cow<'w, Workload> {
    let marker = workload.pod_annotation(key).and_then(marker::parse);
    let body = marker.and_then(|marker| {
        let of_marker = known.into_iter().find(|template| template.hash == marker.hash)?;
        of_marker.settled(workload, &marker)
    });
    body.map_or(Cow::Borrowed(workload), |body| Cow::Owned(workload.with_body(body)))
}

impl Overlay {
    /// Its entry in the values of a marker.
    pub(crate) fn entry(&self) -> String {
        Marker::entry(&format!("{}/{}", self.list, self.index), &json!(self.container).to_string())
    }

    /// The overlay of an entry; none if it is one of a parameter, or unreadable. Users can write it.
    fn of_entry(entry: &str) -> Option<Self> {
        let (place, container) = entry.split_once('=')?;
        let (list, index) = place.split_once('/')?;
        let list = [CONTAINERS, INIT_CONTAINERS].into_iter().find(|known| *known == list)?;
        let container = Some(container).filter(|text| text.len() <= LONGEST)?.replace("~0", "~");
        let container = serde_json::from_str::<RawObject>(&container).ok()?;
        Some(Self { list, index: index.parse().ok()?, container, values: Vec::new() })
    }

    /// Takes it out of `body`, which has its pod at `pod`.
    pub(crate) fn remove(&self, body: &mut Value, pod: &str) {
        if let Some(items) = items_mut(body, pod, self.list) {
            items.retain(|item| item["name"] != self.container["name"]);
        }
    }
}

/// A workload whose values go from its containers into the overlays of its marker.
struct Settled {
    pod: String,
    body: Value,
    overlays: Vec<Overlay>,
    is_changed: bool,
}

impl Settled {
    fn of(workload: &Workload, marker: &Marker) -> Self {
        let overlays = marker.values.iter().filter_map(|entry| Overlay::of_entry(entry)).collect();
        Self { pod: workload.pod_pointer(), body: workload.body.clone(), overlays, is_changed: false }
    }

    /// Gives the container at `listed` the values of `wanted` in `fields`, and its own values to the overlay of `name` in `list`.
    fn settle(&mut self, (list, name): (&'static str, &str), listed: &Listed, wanted: &RawObject, fields: &[Field]) {
        let index = self.own_containers(list);
        let pod = self.body.pointer_mut(&self.pod);
        let there = pod.and_then(|pod| {
            let place = listed::locate(pod, &listed.tokens).ok()?;
            pod.pointer_mut(&place)?.as_object_mut()
        });
        let Some(there) = there else { return };
        let is_its = |overlay: &Overlay| overlay.list == list && name_of(&overlay.container) == name;
        let known = self.overlays.iter().position(is_its);
        let new = || Overlay {
            list,
            index,
            container: RawObject::from_iter([("name".to_owned(), name.into())]),
            values: Vec::new(),
        };
        let mut overlay = known.map_or_else(new, |at| self.overlays[at].clone());
        let before = there.clone();
        for field in fields.iter().chain([&Field::Image]) {
            let (was, is) = (field.get(wanted).cloned(), field.get(there).cloned());
            // A manifest that is applied again may have `image: auto`.
            let is_placeholder = *field == Field::Image && is.is_none();
            let is_taken = is.is_none() && field.get(&overlay.container).is_some();
            let is_set = is.is_some() && fields.contains(field);
            if are_same(field, was.as_ref(), is.as_ref()) || !(is_placeholder || is_taken || is_set) {
                continue;
            }
            field.set(there, was, field.index(wanted));
            if !is_placeholder {
                field.set(&mut overlay.container, is, usize::MAX);
            }
        }
        if *there == before {
            return;
        }
        self.is_changed = true;
        match known {
            Some(at) => self.overlays[at] = overlay,
            None => self.overlays.push(overlay),
        }
    }

    /// How many containers of `list` are not of policies.
    fn own_containers(&self, list: &str) -> usize {
        let pod = self.body.pointer(&self.pod).unwrap_or(&Value::Null);
        let markers = pod["metadata"]["annotations"].as_object().into_iter().flatten();
        let markers = markers
            .filter(|(key, _)| key.starts_with(MARKER_PREFIX))
            .filter_map(|(_, value)| marker::parse(value.as_str()?));
        let injected: HashSet<String> =
            markers.flat_map(|marker| marker.added).filter_map(|pointer| marker::container(&pointer)).collect();
        let items = pod["spec"][list].as_array().into_iter().flatten();
        items.filter(|item| item["name"].as_str().is_none_or(|name| !injected.contains(name))).count()
    }

    /// The body, in which `marker` has the overlays.
    fn with_marker(mut self, key: &str, marker: &Marker) -> Value {
        let values = marker.values.iter().filter(|entry| Overlay::of_entry(entry).is_none()).cloned();
        let values = values.chain(self.overlays.iter().map(Overlay::entry)).collect();
        if let Some(annotations) = self.body.pointer_mut(&format!("{}/metadata/annotations", self.pod)) {
            annotations[key] = Marker { values, ..marker.clone() }.to_value();
        }
        self.body
    }
}

/// Whether two values of `field` are the same, as 1Gi and 1024Mi are.
fn are_same(field: &Field, one: Option<&Value>, other: Option<&Value>) -> bool {
    let size = |value: Option<&Value>| value.filter(|_| matches!(field, Field::Amount(..))).and_then(nanos);
    one == other || size(one).is_some() && size(one) == size(other)
}

/// Gives `body`, which has its pod at `pod`, the overlays that the markers `gone` list. The markers that stay are `kept`.
pub(super) fn restore(body: &mut Value, pod: &str, gone: &[(&str, Marker)], kept: &[Marker]) {
    let of = |marker: &Marker| marker.values.iter().filter_map(|entry| Overlay::of_entry(entry)).collect::<Vec<_>>();
    let mut back: Vec<Overlay> = gone.iter().flat_map(|(_, marker)| of(marker)).collect();
    back.sort_by_key(|overlay| overlay.index);
    let away: Vec<Overlay> = kept.iter().flat_map(of).collect();
    let injected: HashSet<String> =
        kept.iter().flat_map(|marker| marker.added.iter().filter_map(|pointer| marker::container(pointer))).collect();
    for overlay in back {
        let Some(items) = items_mut(body, pod, overlay.list) else { continue };
        if items.iter().any(|item| item["name"] == overlay.container["name"]) {
            continue;
        }
        let is_own = |item: &Value| item["name"].as_str().is_none_or(|name| !injected.contains(name));
        let before = away.iter().filter(|other| other.list == overlay.list && other.index < overlay.index).count();
        let own = items.iter().enumerate().filter(|(_, item)| is_own(item)).map(|(at, _)| at);
        let own: Vec<usize> = own.collect();
        let at = own.get(overlay.index.saturating_sub(before)).copied();
        let at = at.unwrap_or_else(|| own.last().map_or(0, |last| last + 1));
        items.insert(at, overlay.container.into());
    }
}

/// `container` of `list` as its author wrote it: without what the server, and admission before ours, give to every container of a pod.
fn as_written(workload: &Workload, list: &str, container: &RawObject) -> RawObject {
    let mut written = container.clone();
    // Only the server writes all of them.
    if DEFAULTED.iter().all(|field| container.get(*field).is_some_and(|value| is_added(container, field, value))) {
        written.retain(|field, value| {
            !DEFAULTED.contains(&field.as_str()) && !(field == "resources" && *value == json!({}))
        });
    }
    if !workload.kind.is_pod() {
        return written;
    }
    if let Some(Value::Array(mounts)) = written.get_mut(VOLUME_MOUNTS) {
        mounts.retain(|mount| mount["mountPath"] != TOKEN);
        if mounts.is_empty() {
            written.remove(VOLUME_MOUNTS);
        }
    }
    let told = workload.pod_annotation(RANGED.0).and_then(|told| told.strip_prefix(RANGED.1)).unwrap_or_default();
    let noun = if list == CONTAINERS { "container" } else { "init container" };
    for (of, field) in [("request", "requests"), ("limit", "limits")] {
        let end = format!(" {of} for {noun} {}", name_of(container));
        for resource in
            told.split("; ").filter_map(|entry| entry.strip_suffix(&end)).flat_map(|names| names.split(", "))
        {
            if let Some(amounts) = written.get_mut("resources").and_then(|it| it.get_mut(field)?.as_object_mut()) {
                amounts.remove(resource);
            }
        }
    }
    written
}

/// Whether a server gives `container` this value of `field` by itself.
fn is_added(container: &RawObject, field: &str, value: &Value) -> bool {
    match (field, text(container, "image")) {
        // That of every container, where the plugin AlwaysPullImages is on.
        (PULL_POLICY, _) if value == PULLED => true,
        (PULL_POLICY, "") => value == "IfNotPresent",
        _ => is_default(CONTAINERS, field, value, container, false),
    }
}

fn items_mut<'b>(body: &'b mut Value, pod: &str, list: &str) -> Option<&'b mut Vec<Value>> {
    body.pointer_mut(&format!("{pod}/spec/{list}"))?.as_array_mut()
}

fn name_of(container: &RawObject) -> &str {
    text(container, "name")
}
