//! Running pods: which changes a pod takes in place, and which pods must be created again.
//!
//! The API server lets a patch change images, labels and annotations of a running pod, and the subresource `resize` CPU
//! and memory (`ValidatePodUpdate` and `ValidatePodResize` in `pkg/apis/core/validation`). The kubelet then restarts only
//! the containers whose image changes.

use super::{Cause, Goal, NextAction, Unchanged, check_opt_out, guarded, lost, order, plan, verdict};
use crate::api::pod_schema::is_native_sidecar;
use crate::api::v1alpha1::{self, RawObject};
use crate::content::Revision;
use crate::decision::Decision;
use crate::inject::defaults::pull_policy;
use crate::inject::listed::{Listed, What, locate};
use crate::inject::marker::{self, Marker};
use crate::inject::tables::{CONTAINERS, MAPS, Scope};
use crate::inject::value::{at, nanos, objects, text};
use crate::inject::{Template, all_told};
use crate::parameters::Parameter;
use crate::policy::Site;
use crate::qos;
use crate::workload::{MAKERS, Workload};
use json_patch::Patch;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The change in place that brings `pod`, which does not have the content of the `goal`, to it; otherwise an eviction, or nothing.
/// `can_resize`: whether the server serves `pods/resize`.
pub(super) fn change<'a>(
    pod: &Workload,
    from: impl IntoIterator<Item = &'a Revision>,
    goal: Goal<'_>,
    can_resize: bool,
) -> NextAction {
    let decision = match check(pod).and_then(|()| verdict(pod, goal)) {
        Ok(decision) => decision,
        Err(left) => return NextAction::Leave(left),
    };
    let valued = decision.injected(&goal.to.name).cloned();
    let goal = Goal { to: valued.as_deref().unwrap_or(goal.to), ..goal };
    let own = goal.to.marker_names().filter_map(|name| marker::read(pod, name));
    let own = own.reduce(|mut all, marker| {
        all.extend(&marker);
        all
    });
    let Some(marker) = own else {
        return NextAction::Evict { why: "it does not carry the template".to_owned() };
    };
    let mut why = None;
    let known = from.into_iter().map(|from| &from.template).chain(goal.replaced());
    for from in known.filter(|from| from.hash == marker.hash) {
        match in_place(pod, from, &marker, goal, &decision, can_resize) {
            Ok((patch, resize)) => return NextAction::InPlace { patch, resize },
            Err(wrong) => drop(why.get_or_insert(wrong)),
        }
    }
    let unknown = || format!("no revision has the template {}, which its marker names", marker.hash);
    NextAction::Evict { why: why.unwrap_or_else(unknown) }
}

/// The change in place that gives `pod`, which has the content of the `goal`, back what was edited of it: images, labels and
/// annotations. Nothing for all else: no pod is evicted for that.
pub(super) fn restore(pod: &Workload, goal: Goal<'_>) -> NextAction {
    if let Err(left) = check(pod).and_then(|()| verdict(pod, goal)) {
        return NextAction::Leave(left);
    }
    let Some(marker) = goal.to.marker(pod) else {
        return NextAction::Evict { why: "it does not carry the template".to_owned() };
    };
    let is_wrong = |of: &Parameter| marker.value(&of.name).is_some_and(|value| of.judge(&value).is_err());
    if goal.to.as_written().parameters().any(is_wrong) || goal.to.as_recorded(pod).fault_of_values(goal.site).is_some()
    {
        let message = "its marker has a value that the policy does not allow; make the pod anew".to_owned();
        return NextAction::Leave(Unchanged::new(Cause::ContentEdited, message));
    }
    let template = goal.to.as_written().as_listed(&pod.pod_pointer(), &marker);
    let mut body = pod.body.clone();
    for pointer in &marker.added {
        let Some(listed) = Listed::parse(&pod.pod_pointer(), pointer) else { continue };
        let Some(there) = locate(&body, &listed.tokens).ok().and_then(|place| body.pointer_mut(&place)) else {
            continue;
        };
        let wanted = match listed.what {
            What::Entry(map) => map.of(&template.spec).find(|(key, _)| *key == listed.split().0),
            _ => None,
        };
        let image = template.item(&listed).and_then(|(item, _)| item.get("image"));
        match (wanted, image, there.as_object_mut()) {
            (Some((_, value)), ..) => *there = json!(value),
            (None, Some(image), Some(container)) => drop(container.insert("image".to_owned(), image.clone())),
            _ => {}
        }
    }
    let rest = goal.to.edits(&pod.with_body(body.clone()));
    if !rest.is_empty() {
        let message = format!("{}; a running pod cannot take that back", all_told(&rest));
        return NextAction::Leave(Unchanged::new(Cause::ContentEdited, message));
    }
    NextAction::InPlace { patch: guarded(&pod.body, &body), resize: None }
}

/// The controller of `pod`, if it makes pods again.
pub fn maker(pod: &Workload) -> Option<&Value> {
    pod.controller_among(&MAKERS)
}

/// Whether the pod may be touched.
pub(super) fn check(pod: &Workload) -> Result<(), Unchanged> {
    check_opt_out(pod)?;
    let owner = pod.controller();
    if pod.ends() || owner.is_some_and(|owner| owner["kind"] == "Job") {
        return Err(Unchanged::new(Cause::EndsByItself, "the pod ends by itself"));
    }
    match owner {
        Some(_) if maker(pod).is_some() => Ok(()),
        // A mirror pod belongs to its Node.
        Some(owner) if owner["kind"] != "Node" => {
            let [kind, version] = ["kind", "apiVersion"].map(|field| owner[field].as_str().unwrap_or_default());
            let makers = MAKERS.map(|(_, kind, _)| kind).join(", ");
            let message = format!("a {kind} of {version} may not make the pod again: it is none of {makers}");
            Err(Unchanged::new(Cause::NotRecreated, message))
        }
        _ => Err(Unchanged::new(Cause::NotRecreated, "no controller makes the pod again")),
    }
}

/// The patch and the resize of `pod`, whose `marker` has the hash of the template `from`.
///
/// # Errors
/// Why it must be created again.
fn in_place(
    pod: &Workload,
    from: &Template,
    marker: &Marker,
    goal: Goal<'_>,
    decision: &Decision,
    can_resize: bool,
) -> Result<(Patch, Option<Value>), String> {
    let earlier = from.as_listed(&pod.pod_pointer(), marker);
    let planned = plan(pod, Some(marker), goal, decision).map_err(|left| left.message)?;
    if let Some(list) = order::moved(pod, &planned.body, marker, &planned.marker, &planned.shared) {
        return Err(format!("items of `{list}` are added, removed or moved"));
    }
    let is_shared = |listed: &Listed| {
        matches!(listed.what, What::Inner(..))
            && earlier.names_container(listed.tokens.get(2).map_or("", String::as_str))
    };
    let fixed = |marker: &Marker| -> BTreeSet<String> {
        let is_fixed = |pointer: &&String| {
            let listed = Listed::parse(&pod.pod_pointer(), pointer);
            listed.is_some_and(|listed| matches!(listed.what, What::Part(_) | What::Field(_)) || is_shared(&listed))
        };
        marker.added.iter().filter(is_fixed).cloned().collect()
    };
    if fixed(marker) != fixed(&planned.marker) {
        return Err("a part of a variable, a field of the pod or a shared item is added, removed or changed".to_owned());
    }
    let mut changes = Changes { body: pod.body.clone(), resized: pod.body.clone(), resize: BTreeMap::new() };
    for pointer in planned.marker.added.iter().filter(|pointer| !planned.shared.contains(*pointer)) {
        let listed = Listed::parse(&pod.pod_pointer(), pointer);
        let is_item = |listed: &Listed| matches!(listed.what, What::Item(_) | What::Inner(..)) && !is_shared(listed);
        if let Some(listed) = listed.filter(is_item) {
            let change = changes.add(&listed, &earlier, planned.template, goal.site);
            change.map_err(|why| format!("`{pointer}`: {why}"))?;
        }
    }
    set_metadata(&mut changes.body, &planned.body, &earlier, marker)?;
    let after = pod.with_body(changes.body.clone());
    let names: Vec<&str> = goal.to.marker_names().collect();
    if let Some((pointer, other)) = lost(pod, &after, marker, &names, goal.policies) {
        return Err(format!("`{pointer}` belongs to SidecarPolicy `{other}` as well"));
    }
    if changes.resize.is_empty() {
        return Ok((guarded(&pod.body, &changes.body), None));
    }
    check_resize(pod, &pod.with_body(changes.resized), can_resize)?;
    let guard = json!({ "uid": pod.uid(), "resourceVersion": pod.resource_version() });
    let resize = json!({ "metadata": guard, "spec": changes.resize });
    Ok((guarded(&pod.body, &changes.body), Some(resize)))
}

/// Changes of the containers of a pod.
struct Changes {
    /// The pod with new images.
    body: Value,
    /// The pod with new resources.
    resized: Value,
    /// The names and new resources of containers, by their list.
    resize: BTreeMap<&'static str, Vec<Value>>,
}

impl Changes {
    /// Adds what has changed in the item `listed` from `earlier` to `template`.
    ///
    /// # Errors
    /// Why it cannot change in place.
    fn add(&mut self, listed: &Listed, earlier: &Template, template: &Template, site: &Site) -> Result<(), String> {
        let items = earlier.item(listed).zip(template.item(listed));
        let ((old, _), (new, _)) = items.ok_or("it is not in both revisions")?;
        if old == new {
            return Ok(());
        }
        let running = match listed.what {
            What::Item(list) if keeps_running(list.field, new) => Some(list),
            _ => None,
        };
        let list = running.filter(|list| list.scope == Scope::Containers && immutable(old) == immutable(new));
        let list = list.ok_or("it differs in more than a running pod can change")?;
        let place = locate(&self.body, &listed.tokens).map_err(|_| "it is not there any more")?;
        let there = self.body.pointer_mut(&place).and_then(Value::as_object_mut).ok_or("it is no container")?;
        if old.get("image") != new.get("image") {
            set_image(there, old, new)?;
        }
        let amounts = changed_amounts(there, old, new, site)?;
        if amounts.is_empty() {
            return Ok(());
        }
        let mut change = json!({ "resources": {} });
        for (kind, name, amount) in amounts {
            change["resources"][kind][name] = amount;
        }
        if let Some(container) = self.resized.pointer_mut(&place) {
            json_patch::merge(container, &change);
        }
        change["name"] = listed.split().0.into();
        self.resize.entry(list.field).or_default().push(change);
        Ok(())
    }
}

/// Whether `container` of the list `field` runs as long as its pod. An init container has run already.
fn keeps_running(field: &str, container: &RawObject) -> bool {
    field == CONTAINERS || is_native_sidecar(container)
}

/// Whether a running pod takes the change of the containers, labels and annotations of a template, as far as the two say.
pub(super) fn changes_in_place(
    old: &v1alpha1::Template,
    new: &v1alpha1::Template,
    site: &Site,
    can_resize: bool,
) -> bool {
    let lists = [
        (CONTAINERS, &old.containers, &new.containers),
        ("initContainers", &old.init_containers, &new.init_containers),
    ];
    let mut is_resized = false;
    for (field, old, new) in lists {
        if old.len() != new.len() {
            return false;
        }
        for (old, new) in old.iter().zip(new).filter(|(old, new)| old != new) {
            match amounts_of_created(old, new, site) {
                Some(amounts) if keeps_running(field, new) => is_resized |= !amounts.is_empty(),
                _ => return false,
            }
        }
    }
    let quality = |of: &v1alpha1::Template| qos::of_containers(of.all_containers().map(|(_, item)| item));
    // If these containers keep their class, no other container of the pod changes the class of the pod.
    let is_resizable = !is_resized || can_resize && quality(old) == quality(new);
    is_resizable && app_armor(old) == app_armor(new)
}

/// The amounts that change from `old` to `new` in a container that is as it was created; none if it must be created again.
fn amounts_of_created(old: &RawObject, new: &RawObject, site: &Site) -> Option<Vec<Amount>> {
    if immutable(old) != immutable(new) {
        return None;
    }
    let mut there = old.clone();
    there.entry("imagePullPolicy").or_insert_with(|| pull_policy(text(old, "image")).into());
    let requests = NAMES.map(|name| (name, amount(old, "requests", name)));
    for (name, amount) in requests.into_iter().filter_map(|(name, amount)| Some((name, amount?))) {
        if let Some(resources) = there.get_mut("resources") {
            json_patch::merge(resources, &json!({ "requests": { name: amount } }));
        }
    }
    if old.get("image") != new.get("image") {
        set_image(&mut there, old, new).ok()?;
    }
    changed_amounts(&there, old, new, site).ok()
}

/// The annotations of `template` that a running pod cannot change.
fn app_armor(template: &v1alpha1::Template) -> Vec<(&String, &String)> {
    let annotations = template.metadata.iter().flat_map(|metadata| &metadata.annotations);
    annotations.filter(|(key, _)| key.starts_with(APP_ARMOR)).collect()
}

/// `container` without what can change while it runs.
fn immutable(container: &RawObject) -> RawObject {
    let mut rest = container.clone();
    rest.remove("image");
    let Some(Value::Object(mut resources)) = rest.remove("resources") else { return rest };
    for kind in KINDS {
        if let Some(amounts) = resources.get_mut(kind).and_then(Value::as_object_mut) {
            amounts.retain(|name, _| !NAMES.contains(&name.as_str()));
        }
    }
    resources.retain(|_, value| value.as_object().is_none_or(|amounts| !amounts.is_empty()));
    if !resources.is_empty() {
        rest.insert("resources".to_owned(), Value::Object(resources));
    }
    rest
}

fn set_image(there: &mut RawObject, old: &RawObject, new: &RawObject) -> Result<(), String> {
    let (Some(image), wanted) = (there.get("image"), new.get("image").cloned().unwrap_or_default()) else {
        return Err("it has no image".to_owned());
    };
    if *image != wanted && Some(image) != old.get("image") {
        return Err("it has another image than either revision".to_owned());
    }
    // The field cannot change, and a node that has an image `latest` would use an old one.
    let is_latest = pull_policy(wanted.as_str().unwrap_or_default()) == "Always";
    if is_latest && new.get("imagePullPolicy").is_none() && text(there, "imagePullPolicy") != "Always" {
        return Err("its new image needs another `imagePullPolicy`".to_owned());
    }
    there.insert("image".to_owned(), wanted);
    Ok(())
}

/// The kinds of amounts of a container.
const KINDS: [&str; 2] = ["requests", "limits"];
/// The resources that can be resized.
const NAMES: [&str; 2] = ["cpu", "memory"];
/// The first minor version of Kubernetes 1 in which the limit of memory can become lower without a restart.
const LOWERS_MEMORY: u32 = 34;

/// An amount: its kind, the resource, and the value.
type Amount = (&'static str, &'static str, Value);

/// The amounts of the container `there` that change from `old` to `new`.
fn changed_amounts(there: &RawObject, old: &RawObject, new: &RawObject, site: &Site) -> Result<Vec<Amount>, String> {
    let same = |one: Option<&Value>, other: Option<&Value>| match (one, other) {
        (Some(one), Some(other)) => one == other || nanos(one).is_some() && nanos(one) == nanos(other),
        (one, other) => one.is_none() && other.is_none(),
    };
    let restarts = objects(there, &["resizePolicy"])
        .any(|policy| text(policy, "resourceName") == "memory" && text(policy, "restartPolicy") == "RestartContainer");
    let may_lower = restarts || site.minor.is_none_or(|minor| minor >= LOWERS_MEMORY);
    let mut changes = Vec::new();
    for (kind, name) in KINDS.into_iter().flat_map(|kind| NAMES.map(|name| (kind, name))) {
        let there = at(there, &["resources", kind, name]);
        let (old, new) = (amount(old, kind, name), amount(new, kind, name));
        if same(old, new) || new.is_some() && same(there, new) {
            continue;
        }
        let field = format!("resources.{kind}.{name}");
        let Some(new) = new else { return Err(format!("a resize cannot remove `{field}`")) };
        if !same(there, old) {
            return Err(format!("`{field}` is neither that of the earlier revision nor the new one"));
        }
        let is_lower = there.is_some_and(|there| nanos(new) < nanos(there));
        if (kind, name) == ("limits", "memory") && is_lower && !may_lower {
            return Err(format!("`{field}` cannot become lower on this server"));
        }
        changes.push((kind, name, new.clone()));
    }
    Ok(changes)
}

/// The amount that a container of a pod gets from its template: a request is the limit if it is not set.
fn amount<'a>(container: &'a RawObject, kind: &str, name: &str) -> Option<&'a Value> {
    let own = |kind: &str| at(container, &["resources", kind, name]);
    own(kind).or_else(|| own("limits"))
}

/// Whether the server resizes `pod` to `resized`.
fn check_resize(pod: &Workload, resized: &Workload, can_resize: bool) -> Result<(), String> {
    let no = |why: &str| Err(format!("its resources cannot change while it runs: {why}"));
    let spec = &pod.body["spec"];
    let (before, after) = (qos::of(pod, None), qos::of(resized, None));
    match before.zip(after) {
        _ if !can_resize => no("the server cannot resize pods"),
        _ if spec["os"]["name"] == "windows" => no("it is a pod of Windows"),
        None => no("the pod has `spec.resources`"),
        Some((before, after)) if before != after => no("its quality of service class would change"),
        Some(_) => Ok(()),
    }
}

/// The prefix of annotations that a patch of a pod cannot change.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Gives `body` the labels and annotations of `planned`.
///
/// # Errors
/// A label or annotation of the policy has a value that is neither that of `earlier`, which `marker` lists, nor the new
/// one; or it cannot change.
fn set_metadata(body: &mut Value, planned: &Value, earlier: &Template, marker: &Marker) -> Result<(), String> {
    for map in &MAPS {
        let new = planned["metadata"].get(map.field);
        let (there, own) = (body["metadata"][map.field].clone(), new.cloned().unwrap_or_default());
        for pointer in &marker.added {
            let listed = Listed::parse("", pointer)
                .filter(|listed| matches!(listed.what, What::Entry(of) if of.field == map.field));
            let Some(listed) = listed else { continue };
            let key = listed.split().0;
            let old = map.of(&earlier.spec).find(|(own, _)| *own == key).map(|(_, value)| value.as_str());
            let (there, new) = (there.get(key).and_then(Value::as_str), own.get(key).and_then(Value::as_str));
            if there != new && (there.is_none() || there != old) {
                return Err(format!("`{pointer}` is neither that of the earlier revision nor the new one"));
            }
        }
        let keys = there.as_object().into_iter().chain(own.as_object()).flatten().map(|(key, _)| key);
        if let Some(key) = keys.into_iter().find(|key| key.starts_with(APP_ARMOR) && there.get(key) != own.get(key)) {
            return Err(format!("annotation `{key}` of a running pod cannot change"));
        }
        match (body["metadata"].as_object_mut(), new) {
            (Some(metadata), Some(new)) => drop(metadata.insert(map.field.to_owned(), new.clone())),
            (Some(metadata), None) => drop(metadata.remove(map.field)),
            (None, _) => {}
        }
    }
    Ok(())
}
