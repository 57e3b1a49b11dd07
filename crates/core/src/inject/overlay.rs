//! Overlays in workloads: containers that their authors declare by the name of a sidecar, with values of its parameters. Which
//! container is one, [`Parameters::overlay`] says.
//!
//! Injection puts the sidecar in the place of the overlay. The marker has the overlay, so that an undo in files gives it back
//! ([`give_back`]). On servers it goes with the sidecar: they take no container without an image.
//!
//! An author who applies a manifest with an overlay again changes fields of the sidecar. [`settled`] makes new values of an overlay of such changes.

use super::Template;
use super::conflict::VOLUME_MOUNTS;
use super::defaults::is_default;
use super::equal::{PULL_POLICY, PULLED};
use super::listed::{self, Listed};
use super::marker::{self, Marker};
use super::tables::{CONTAINERS, INIT_CONTAINERS, List};
use super::value::{nanos, text};
use crate::api::v1alpha1::{Place, RawObject};
use crate::outside::shown;
use crate::parameters::{AUTO, Field, Laid, Parameter, Parameters};
use crate::workload::Workload;
use json_patch::jsonptr::PointerBuf;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// An overlay of a workload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Overlay {
    /// The field of the pod's `spec`.
    list: &'static str,
    /// Its index there, among the containers that are not of policies.
    index: usize,
    /// As its author wrote it.
    container: RawObject,
    /// What it gives the parameters, in the order of the policy.
    pub(crate) values: Vec<Option<Laid>>,
}

/// Which changes of an author [`settled`] takes out of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changes {
    /// Other values, within bounds.
    Values,
    /// Also what a new plan of the content mends: an image that stands for none, the text of a value without its escapes, and the absence of a
    /// container whose overlay is gone.
    All,
}

/// The longest overlay of a marker that is read, in bytes: as much as all values of a policy may take.
const LONGEST: usize = marker::MAX_LENGTH / 4;
/// The most overlays of markers that are read: no template has more containers.
const MOST: usize = 64;
/// What a server gives every container.
const DEFAULTED: [&str; 3] = [PULL_POLICY, "terminationMessagePath", "terminationMessagePolicy"];
/// Where the plugin ServiceAccount mounts a token into every container of a pod, and what the name of the volume has.
const TOKEN: (&str, [&str; 2]) = ("/var/run/secrets/kubernetes.io/serviceaccount", ["kube-api-access-", "-token-"]);
/// The annotation by which the plugin LimitRanger says which requests and limits it has given to a pod, and how its value begins.
const RANGED: (&str, &str) = ("kubernetes.io/limit-ranger", "LimitRanger plugin set: ");
const RESTART_POLICY: &str = "restartPolicy";
/// Where containers are.
const LISTS: [&str; 2] = [CONTAINERS, INIT_CONTAINERS];

/// A container of a workload with the name of one of a template.
struct Declared<'w> {
    /// The list that the template has it in.
    of: &'static str,
    /// The list that the workload has it in.
    list: &'static str,
    index: usize,
    container: &'w RawObject,
}

impl Template {
    /// Whether workloads may have overlays of its containers.
    pub(crate) fn is_overridable(&self) -> bool {
        self.parameters().any(|parameter| parameter.overridable)
    }

    /// The overlays of its containers in `workload`, which has none of its content.
    pub(crate) fn overlays(&self, workload: &Workload) -> Vec<Overlay> {
        let overlay = |Declared { of, list, index, container }: Declared<'_>| {
            let container = as_written(workload, list, container);
            let values = self.read((of, list), &container)?.ok()?;
            Some(Overlay { list, index, container, values })
        };
        self.declared(workload).into_iter().filter_map(overlay).collect()
    }

    /// That `container`, which `workload` has in `list` under the name of one of the template, is no overlay of it, with the reason.
    /// `difference` is how it differs. None if the template allows no overlay of it.
    pub(super) fn told_of_overlay(
        &self,
        (workload, list): (&Workload, &List),
        container: &RawObject,
        difference: &str,
    ) -> Option<String> {
        let container = as_written(workload, list.field, container);
        let (noun, name) = (list.noun, shown(name_of(&container)));
        let fields = self.overridable_parameters()?.overridable(list.field, name_of(&container));
        let fields: Vec<String> = fields.iter().map(|(field, _)| format!("`{field}`")).collect();
        let begin = match self.read((list.field, list.field), &container)?.err()?.as_str() {
            "image" => format!("{noun} `{name}` exists with {difference}; an overlay has `image: auto` or none"),
            field => format!("{noun} `{name}` exists, and an overlay must be without `{}`", shown(field)),
        };
        Some(format!("{begin}; it may set {}", fields.join(", ")))
    }

    /// The body of `workload` without the overlays of its containers; none if there is none.
    pub(crate) fn without_overlays(&self, workload: &Workload) -> Option<Value> {
        let overlays = self.overlays(workload);
        (!overlays.is_empty()).then(|| without(workload, &overlays))
    }

    /// The body of `workload` with the image that stands for none in the overlays of its containers.
    pub(crate) fn with_images(&self, workload: &Workload) -> Value {
        let (mut body, pod) = (workload.body.clone(), workload.pod_pointer());
        for overlay in self.overlays(workload) {
            let items = items_mut(&mut body, &pod, overlay.list).into_iter().flatten().filter_map(Value::as_object_mut);
            for item in items.filter(|item| name_of(item) == name_of(&overlay.container)) {
                item.entry("image").or_insert_with(|| AUTO.into());
            }
        }
        body
    }

    /// Whether `overlay` is one of its containers.
    pub(crate) fn has_overlay(&self, overlay: &Overlay) -> bool {
        let lists = self.own_containers().filter(|(_, name)| *name == name_of(&overlay.container)).map(|(of, _)| of);
        lists.into_iter().any(|of| self.read((of, overlay.list), &overlay.container).is_some_and(|read| read.is_ok()))
    }

    /// Its containers, each as the list and the name, with those that a value leaves out. None without overridable parameters.
    fn own_containers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let written = self.as_declared().filter(|_| self.is_overridable()).into_iter();
        written.flat_map(|spec| {
            let lists = [(CONTAINERS, &spec.containers), (INIT_CONTAINERS, &spec.init_containers)];
            lists.into_iter().flat_map(|(list, items)| items.iter().map(move |item| (list, name_of(item))))
        })
    }

    /// The containers of `workload` that may be overlays of its own: no marker lists them, and their names are there once. That of a
    /// container may be among the init containers, as a native sidecar is.
    fn declared<'w>(&self, workload: &'w Workload) -> Vec<Declared<'w>> {
        let Some(spec) = workload.pod_spec().filter(|_| self.is_overridable()) else { return Vec::new() };
        let own: HashMap<&str, &'static str> = self.own_containers().map(|(of, name)| (name, of)).collect();
        let injected = marker::containers(workload, &[]);
        let (mut found, mut count) = (Vec::new(), HashMap::<&str, usize>::new());
        for list in LISTS {
            let items = spec.get(list).and_then(Value::as_array).into_iter().flatten();
            let items = items.filter(|item| is_own(item, &injected));
            for (index, container) in items.enumerate().filter_map(|(index, item)| Some((index, item.as_object()?))) {
                let name = name_of(container);
                let Some(of) = own.get(name).copied() else { continue };
                *count.entry(name).or_default() += 1;
                if list == of || of == CONTAINERS {
                    found.push(Declared { of, list, index, container });
                }
            }
        }
        found.retain(|declared| {
            count.get(name_of(declared.container)) == Some(&1) && !name_of(declared.container).is_empty()
        });
        found
    }

    /// What `container`, which the template has in the list `of` and the workload in `list`, gives the parameters, or the field that an
    /// overlay cannot have. None if it has no place for overlays.
    fn read(&self, (of, list): (&str, &str), container: &RawObject) -> Option<Result<Vec<Option<Laid>>, String>> {
        let parameters = self.overridable_parameters()?;
        if parameters.overridable(of, name_of(container)).is_empty() {
            return None;
        }
        let is_added = |field: &str, value: &Value| {
            is_added(container, field, value) || list != of && field == RESTART_POLICY && value == "Always"
        };
        Some(parameters.overlay(of, container, is_added))
    }

    /// See [`settled`].
    fn settled(&self, workload: &Workload, marker: &Marker, changes: Changes) -> Option<Value> {
        let parameters = self.overridable_parameters()?;
        // What was made from a template has the places of that.
        let is_made = marker::is_of_template(workload, marker);
        if workload.kind.is_pod() && !is_made {
            return None;
        }
        let changes = if is_made { Changes::Values } else { changes };
        let (at, made_from) = (workload.pod_pointer(), marker.added.iter().find_map(|pointer| pod_of(pointer)));
        let from = made_from.filter(|_| is_made).unwrap_or(&at);
        let added = self.as_listed(from, marker);
        let (mut places, mut unlisted) = (Vec::new(), false);
        for (of, name) in self.own_containers() {
            let known = places.len();
            let fields = parameters.overridable(of, name);
            for list in LISTS.into_iter().filter(|_| !fields.is_empty()) {
                let pointer = format!("{from}{}", PointerBuf::from_tokens(["spec", list, name]));
                let listed = marker.added.contains(&pointer).then(|| Listed::parse(from, &pointer)).flatten();
                let Some(listed) = listed else { continue };
                if let Some((wanted, place)) = added.item(&listed) {
                    places.push(Settling { list, listed, wanted, place, fields: fields.clone() });
                }
            }
            unlisted |= !fields.is_empty() && places.len() == known;
        }
        let again = if unlisted && changes == Changes::All { self.overlays(workload) } else { Vec::new() };
        // As nearly always: nothing is copied.
        if again.is_empty() && !places.iter().any(|place| place.differs(workload, changes)) {
            return None;
        }
        let mut settled = Settled::of(workload, marker, changes);
        places.iter().for_each(|place| settled.settle(place));
        settled.take(again);
        settled.is_changed.then(|| settled.with_marker(&self.marker_key))
    }

    fn overridable_parameters(&self) -> Option<&Parameters> {
        self.all_parameters().filter(|_| self.is_overridable())
    }
}

/// `workload` as if its author had not made these `changes` to the content under the marker `key`, which one of `known` added: with the
/// values of the marker in their places, and those of the author in the overlays of the marker. A pod that was injected itself keeps what
/// it has: others resize it.
pub(crate) fn settled<'w, 't>(
    workload: &'w Workload,
    key: &str,
    known: impl IntoIterator<Item = &'t Template>,
    changes: Changes,
) -> Cow<'w, Workload> {
    let marker = workload.pod_annotation(key).and_then(marker::parse);
    let body = marker.and_then(|marker| {
        let of_marker = known.into_iter().find(|template| template.hash == marker.hash)?;
        of_marker.settled(workload, &marker, changes)
    });
    body.map_or(Cow::Borrowed(workload), |body| Cow::Owned(workload.with_body(body)))
}

/// The body of `workload` without `overlays`, which are in it.
pub(crate) fn without(workload: &Workload, overlays: &[Overlay]) -> Value {
    let (mut body, pod) = (workload.body.clone(), workload.pod_pointer());
    let names: HashSet<&str> = overlays.iter().map(|overlay| name_of(&overlay.container)).collect();
    for items in LISTS.iter().filter(|_| !names.is_empty()) {
        if let Some(items) = items_mut(&mut body, &pod, items) {
            items.retain(|item| item["name"].as_str().is_none_or(|name| !names.contains(name)));
        }
    }
    body
}

/// Gives `body` the overlays for which `is_meant` is true: of the markers of `workload` that are gone, those of the policies for which `is_gone`
/// is true.
pub(super) fn give_back(
    workload: &Workload,
    body: &mut Value,
    is_gone: impl Fn(&str) -> bool,
    is_meant: impl Fn(&Overlay) -> bool,
) {
    let (gone, kept): (Vec<_>, Vec<_>) = marker::named(workload).partition(|(name, _)| is_gone(name));
    let of = |markers: &[(&str, Marker)]| markers.iter().flat_map(|(_, marker)| recorded(marker)).take(MOST).collect();
    let mut back: Vec<Overlay> = of(&gone);
    back.retain(is_meant);
    if back.is_empty() {
        return;
    }
    back.sort_by_key(|overlay| overlay.index);
    let (away, pod): (Vec<Overlay>, _) = (of(&kept), workload.pod_pointer());
    let injected: HashSet<String> = kept
        .iter()
        .flat_map(|(_, marker)| marker.added.iter().filter_map(|pointer| marker::container(pointer)))
        .collect();
    let names = |body: &mut Value, list: &&str| -> Vec<String> {
        let items = items_mut(body, &pod, list).into_iter().flatten();
        items.filter_map(|item| item["name"].as_str().map(str::to_owned)).collect()
    };
    let mut there: HashSet<String> = LISTS.iter().flat_map(|list| names(body, list)).collect();
    for overlay in back {
        let Some(items) = items_mut(body, &pod, overlay.list) else { continue };
        // Another policy has it, or the author has declared it again.
        if !there.insert(name_of(&overlay.container).to_owned()) {
            continue;
        }
        let before = away.iter().filter(|other| other.list == overlay.list && other.index < overlay.index).count();
        let own: Vec<usize> =
            items.iter().enumerate().filter(|(_, item)| is_own(item, &injected)).map(|(at, _)| at).collect();
        let at = own.get(overlay.index.saturating_sub(before)).copied();
        let at = at.unwrap_or_else(|| own.last().map_or(0, |last| last + 1));
        items.insert(at, overlay.container.into());
    }
}

/// The pointer of the pod in which a marker lists the container at `pointer`; none if that is no container.
fn pod_of(pointer: &str) -> Option<&str> {
    marker::container(pointer)?;
    pointer.rsplitn(4, '/').last()
}

/// Whether `marker` has an overlay in the list `list`.
pub(crate) fn is_in(marker: &Marker, list: &str) -> bool {
    recorded(marker).any(|overlay| overlay.list == list)
}

/// The overlays of `marker`.
fn recorded(marker: &Marker) -> impl Iterator<Item = Overlay> {
    marker.values.iter().filter_map(|entry| Overlay::of_entry(entry)).take(MOST)
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
        let list = LISTS.into_iter().find(|known| *known == list)?;
        let container = Some(container).filter(|text| text.len() <= LONGEST)?.replace("~0", "~");
        let container = serde_json::from_str::<RawObject>(&container).ok()?;
        let is_named = !name_of(&container).is_empty();
        is_named.then_some(Self { list, index: index.parse().ok()?, container, values: Vec::new() })
    }
}

/// A container of a template in a workload.
struct Settling<'t> {
    list: &'static str,
    listed: Listed,
    /// As it was injected.
    wanted: &'t RawObject,
    place: Place,
    /// What authors may change.
    fields: Vec<(Field, &'t Parameter)>,
}

impl Settling<'_> {
    /// Whether it is another one than was injected in a field that authors may change.
    fn differs(&self, workload: &Workload, changes: Changes) -> bool {
        let there = workload.pod().and_then(|pod| {
            let place = listed::locate(pod, &self.listed.tokens).ok()?;
            pod.pointer(&place)?.as_object()
        });
        let Some(there) = there else { return changes == Changes::All };
        let is_other = |field: &Field| !are_same(field, field.get(self.wanted), field.get(there));
        self.fields.iter().any(|(field, _)| is_other(field)) || Field::Image.get(there).is_none()
    }
}

/// A workload whose values go from its containers into the overlays of its marker.
struct Settled<'w> {
    workload: &'w Workload,
    marker: &'w Marker,
    changes: Changes,
    body: Value,
    overlays: Vec<Overlay>,
    is_changed: bool,
}

impl<'w> Settled<'w> {
    fn of(workload: &'w Workload, marker: &'w Marker, changes: Changes) -> Self {
        let (body, overlays) = (workload.body.clone(), recorded(marker).collect());
        Self { workload, marker, changes, body, overlays, is_changed: false }
    }

    /// Gives the container what was injected in its fields, and its own values to its overlay.
    fn settle(&mut self, Settling { list, listed, wanted, place, fields }: &Settling<'_>) {
        let (name, pod) = (name_of(wanted), self.workload.pod_pointer());
        let known = self.overlays.iter().position(|overlay| name_of(&overlay.container) == name);
        let Some(there) = locate(&mut self.body, &pod, listed) else {
            // An author who applies a manifest without the overlay takes the container away with it.
            let items = items_mut(&mut self.body, &pod, list).filter(|_| self.changes == Changes::All);
            if let Some((items, known)) = items.filter(|items| items.iter().all(|item| item["name"] != name)).zip(known)
            {
                let at = if *place == Place::Before { 0 } else { items.len() };
                items.insert(at, (*wanted).clone().into());
                self.overlays.remove(known);
                self.is_changed = true;
            }
            return;
        };
        let new = || {
            let container = RawObject::from_iter([("name".to_owned(), name.into())]);
            Overlay { list, index: own_containers(self.workload, list), container, values: Vec::new() }
        };
        let mut overlay = known.map_or_else(new, |at| self.overlays[at].clone());
        let before = there.clone();
        for (field, parameter) in fields {
            let (was, is) = (field.get(wanted).cloned(), field.get(there).cloned());
            let is_new = match is.as_ref().and_then(Field::text) {
                Some(text) => {
                    let recorded = self.marker.value(&parameter.name);
                    let is_value = match self.changes {
                        Changes::All => true,
                        // A kubelet expands what was applied without escapes.
                        Changes::Values => {
                            let is_plain = !matches!(field, Field::Variable(_)) || !text.contains('$');
                            is_plain && !parameter.is_same(recorded.as_deref(), Some(&text))
                        }
                    };
                    is_value && parameter.is_settled(&text)
                }
                // Taken out of the overlay.
                None => field.get(&overlay.container).is_some() && !field.is_there(there),
            };
            if is_new && !are_same(field, was.as_ref(), is.as_ref()) {
                field.set(there, was, field.index(wanted));
                field.set(&mut overlay.container, is, usize::MAX);
            }
        }
        if self.changes == Changes::All && Field::Image.get(there).is_none() {
            Field::Image.set(there, Field::Image.get(wanted).cloned(), 0);
        }
        if *there == before {
            return;
        }
        self.is_changed = true;
        match known {
            Some(at) => self.overlays[at] = overlay,
            None if overlay.container.len() > 1 => self.overlays.push(overlay),
            None => {}
        }
    }

    /// Takes the containers `again` out, overlays that were applied again although a value leaves their container out.
    fn take(&mut self, again: Vec<Overlay>) {
        if again.is_empty() {
            return;
        }
        self.is_changed = true;
        self.body = without(&self.workload.with_body(std::mem::take(&mut self.body)), &again);
        self.overlays.retain(|old| again.iter().all(|new| name_of(&new.container) != name_of(&old.container)));
        self.overlays.extend(again);
    }

    /// The body, in which the marker under `key` has the overlays.
    fn with_marker(mut self, key: &str) -> Value {
        let marker = self.marker;
        let values = marker.values.iter().filter(|entry| Overlay::of_entry(entry).is_none()).cloned();
        let values = values.chain(self.overlays.iter().map(Overlay::entry)).collect();
        let annotations = format!("{}/metadata/annotations", self.workload.pod_pointer());
        if let Some(annotations) = self.body.pointer_mut(&annotations) {
            annotations[key] = Marker { values, ..marker.clone() }.to_value();
        }
        self.body
    }
}

/// The object that is `listed` in `body`, which has its pod at `pod`.
fn locate<'b>(body: &'b mut Value, pod: &str, listed: &Listed) -> Option<&'b mut RawObject> {
    let pod = body.pointer_mut(pod)?;
    let place = listed::locate(pod, &listed.tokens).ok()?;
    pod.pointer_mut(&place)?.as_object_mut()
}

/// How many containers of `list` in `workload` are not of policies.
fn own_containers(workload: &Workload, list: &str) -> usize {
    let injected = marker::containers(workload, &[]);
    let items = workload.pod_spec().and_then(|spec| spec.get(list)?.as_array()).into_iter().flatten();
    items.filter(|item| is_own(item, &injected)).count()
}

/// Whether the container `item` is of the author: `injected` are the names of those of policies.
fn is_own(item: &Value, injected: &HashSet<String>) -> bool {
    item["name"].as_str().is_none_or(|name| !injected.contains(name))
}

/// Whether two values of `field` are the same, as 1Gi and 1024Mi are.
fn are_same(field: &Field, one: Option<&Value>, other: Option<&Value>) -> bool {
    let size = |value: Option<&Value>| value.filter(|_| matches!(field, Field::Amount(..))).and_then(nanos);
    one == other || size(one).is_some() && size(one) == size(other)
}

/// `container` of `list` as its author wrote it: without what the server, and admission before ours, give to every container of a pod.
fn as_written(workload: &Workload, list: &str, container: &RawObject) -> RawObject {
    let mut written = container.clone();
    // Only the server writes all of them.
    if DEFAULTED.iter().all(|field| container.get(*field).is_some_and(|value| is_added(container, field, value))) {
        written.retain(|field, value| {
            !(DEFAULTED.contains(&field.as_str()) || field == "resources" && *value == json!({}))
        });
    }
    if !workload.kind.is_pod() {
        return written;
    }
    if let Some(Value::Array(mounts)) = written.get_mut(VOLUME_MOUNTS) {
        let is_token = |name: &str| TOKEN.1.iter().any(|part| name.contains(part));
        mounts.retain(|mount| {
            let is_read_only = mount["mountPath"] == TOKEN.0 && mount["readOnly"] == true;
            !(is_read_only && mount["name"].as_str().is_some_and(is_token))
        });
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
