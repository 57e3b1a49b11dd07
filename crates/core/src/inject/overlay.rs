//! Overlays in workloads: containers that their authors declare by the name of a sidecar, with values of its parameters. Which
//! container is one, [`Parameters::overlay`] says.
//!
//! Injection puts the sidecar in the place of the overlay. The marker has the overlay, so that an undo in files gives it back. On
//! servers nothing gives it back: they take no container without an image.

use super::Template;
use super::conflict::VOLUME_MOUNTS;
use super::defaults::is_default;
use super::equal::{PULL_POLICY, PULLED};
use super::marker::{self, Marker};
use super::tables::{CONTAINERS, INIT_CONTAINERS, List};
use super::value::text;
use crate::api::v1alpha1::RawObject;
use crate::outside::shown;
use crate::parameters::{Laid, Parameters};
use crate::workload::Workload;
use serde_json::{Value, json};
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
