//! The removal of injected content: it removes the entries of [`marker`]s, and restores the original.
//!
//! Users can write markers. So a marker counts only for content that injection can add: items of a few lists, entries
//! of two maps, and those lists and maps. All else stays, and so do items that do not exist exactly once, and volumes
//! that are still mounted. All of these are reported. What another marker lists stays, too: it belongs to both (`owners`).

use super::Template;
use super::field::{self, FieldEntry};
use super::listed::{self, LeftoverCause, Listed, What};
use super::marker::{self, Marker};
use super::overlay::{self, Overlay};
use super::owners::Handover;
use super::part::{self, ENV, VALUE};
use super::tables::Scope;
use crate::api::MARKER_PREFIX;
use crate::workload::{Kind, Workload, is_built_in};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// A workload without the additions of policies.
#[derive(Clone, Debug, PartialEq)]
pub struct Undone {
    /// The object without the additions.
    pub body: Value,
    /// The policies whose marker was removed, by name.
    pub policies: Vec<String>,
    /// The entries of markers that were not removed.
    pub leftovers: Vec<Leftover>,
}

/// An entry of a marker that was not removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The policy of the marker.
    pub policy: String,
    /// The pointer of the entry; empty for the marker itself.
    pub pointer: String,
    /// The reason.
    pub cause: LeftoverCause,
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, pointer, cause } = self;
        let key = marker::key(policy);
        match cause {
            LeftoverCause::Unreadable => {
                write!(f, "the annotation `{key}` cannot be read, and stays with all that it may list")
            }
            LeftoverCause::Foreign => {
                write!(f, "`{pointer}`, which `{key}` lists, is nothing that a policy adds: it stays")
            }
            LeftoverCause::Missing => write!(f, "`{pointer}`, which `{key}` lists, is not there"),
            LeftoverCause::Ambiguous => {
                write!(f, "`{pointer}`, which `{key}` lists, is there more than once: all stay")
            }
            LeftoverCause::Unexpected => write!(f, "`{pointer}`, which `{key}` lists, is something else: it stays"),
            LeftoverCause::Edited => write!(
                f,
                "`{pointer}`, which `{key}` lists, is not in the value any more, which has been edited: it stays"
            ),
            LeftoverCause::Mounted => write!(
                f,
                "`{pointer}`, which `{key}` lists, is still mounted by a container: it stays, since no server takes a mount \
                 without its volume"
            ),
        }
    }
}

/// `workload` without the additions of `policy`, or of all policies, and with the overlays that it had; none if there is no marker.
///
/// # Guarantees
/// The result is the exact original if the workload was not changed after the injection and its own mounts have
/// volumes, whatever the order of policies. What the marker of another policy lists stays until that one goes. It never removes content outside of markers, content that injection cannot
/// add, or the volume of a mount that stays.
pub fn undo(workload: &Workload, policy: Option<&str>) -> Option<Undone> {
    undo_with(workload, |name| policy.is_none_or(|policy| policy == name), |_| false, |_| true)
}

/// As [`undo_those`], with the overlays for which `is_meant` is true.
pub(crate) fn undo_with(
    workload: &Workload,
    is_wanted: impl Fn(&str) -> bool,
    returns: impl Fn(&str) -> bool + Copy,
    is_meant: impl Fn(&Overlay) -> bool,
) -> Option<Undone> {
    let mut undone = undo_those(workload, &is_wanted, returns)?;
    overlay::give_back(workload, &mut undone.body, is_wanted, is_meant);
    Some(undone)
}

/// As [`undo`], for the policies for which `is_wanted` is true. The volumes that `returns` names are removed even if
/// containers that stay mount them, because the caller adds them again. Overlays do not come back.
pub(crate) fn undo_those(
    workload: &Workload,
    is_wanted: impl Fn(&str) -> bool,
    returns: impl Fn(&str) -> bool + Copy,
) -> Option<Undone> {
    undo_known(workload, is_wanted, returns, &[])
}

/// As [`undo_those`], with `known` templates of policies: a marker that an earlier release wrote beside others gets what its
/// policy adds, too.
pub(crate) fn undo_known(
    workload: &Workload,
    is_wanted: impl Fn(&str) -> bool,
    returns: impl Fn(&str) -> bool + Copy,
    known: &[&Template],
) -> Option<Undone> {
    let handover = Handover::of(workload, is_wanted, known);
    if handover.going.is_empty() && handover.unreadable.is_empty() {
        return None;
    }
    let pod = workload.pod_pointer();
    let mut undone = Undone { body: workload.body.clone(), policies: Vec::new(), leftovers: Vec::new() };
    handover.unreadable.iter().for_each(|name| undone.leave(name, "", LeftoverCause::Unreadable));
    for (name, marker) in handover.changed() {
        undone.set_marker(&pod, name, Some(marker.to_value()));
    }
    let of_volumes = format!("{pod}/spec/volumes");
    let is_of_volumes =
        |pointer: &str| pointer.strip_prefix(&of_volumes).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let mut going = Going::of(pod, &handover);
    for (at, (name, _)) in handover.going.iter().enumerate() {
        undone.set_marker(&going.pod, name, None);
        undone.take(&mut going, at, |pointer| !is_of_volumes(pointer), returns);
    }
    // Volumes last, because all other mounts are gone by then.
    for at in 0..handover.going.len() {
        undone.take(&mut going, at, is_of_volumes, returns);
    }
    undone.policies = handover.going.iter().map(|(name, _)| (*name).to_owned()).collect();
    Some(undone)
}

/// As [`undo`], for several policies, or for all if `policies` is empty. Also covers pods at any path of a custom
/// resource, which the markers show.
pub fn undo_anywhere(workload: &Workload, policies: &[String]) -> Option<Undone> {
    undo_anywhere_with(workload, policies, |_| true)
}

/// `workload` without the additions of any policy, and without their overlays.
pub fn bare(workload: &Workload) -> Option<Undone> {
    undo_anywhere_with(workload, &[], |_| false)
}

/// As [`undo_anywhere`], with the overlays for which `is_meant` is true.
pub(crate) fn undo_anywhere_with(
    workload: &Workload,
    policies: &[String],
    is_meant: impl Fn(&Overlay) -> bool,
) -> Option<Undone> {
    let kinds = if is_built_in(&workload.kind.group) {
        vec![workload.kind.clone()]
    } else {
        let mut places = Vec::new();
        find_places(&workload.body, &mut Vec::new(), &mut places);
        let at = |path| Arc::new(Kind { pod_path: Some(path), ..Kind::clone(&workload.kind) });
        places.into_iter().map(at).collect()
    };
    let is_wanted = |name: &str| policies.is_empty() || policies.iter().any(|policy| policy == name);
    let mut all: Option<Undone> = None;
    for kind in &kinds {
        let body = all.as_ref().map_or(&workload.body, |all| &all.body).clone();
        let Some(undone) = undo_with(&Workload::new(kind, body), is_wanted, |_| false, &is_meant) else { continue };
        let before = all.take().map_or_else(Default::default, |all| (all.policies, all.leftovers));
        all = Some(Undone {
            body: undone.body,
            policies: [before.0, undone.policies].concat(),
            leftovers: [before.1, undone.leftovers].concat(),
        });
    }
    all
}

/// Adds the paths of all places below `value` that carry a marker; `path` is the path of `value`. The object's own
/// annotations do not count, because no custom resource is a pod.
fn find_places(value: &Value, path: &mut Vec<String>, places: &mut Vec<Vec<String>>) {
    let annotations = value["metadata"]["annotations"].as_object();
    if !path.is_empty() && annotations.into_iter().flatten().any(|(key, _)| key.starts_with(MARKER_PREFIX)) {
        places.push(path.clone());
    }
    let fields = value.as_object().into_iter().flatten().filter(|(field, _)| !field.contains(['/', '~']));
    for (field, below) in fields.filter(|(_, below)| below.is_object()) {
        path.push(field.clone());
        find_places(below, path, places);
        path.pop();
    }
}

impl Undone {
    /// Gives the policy this marker; none takes it away.
    fn set_marker(&mut self, pod: &str, policy: &str, marker: Option<Value>) {
        let annotations = self.body.pointer_mut(&format!("{pod}/metadata/annotations"));
        let Some(Value::Object(annotations)) = annotations else { return };
        match marker {
            Some(marker) => drop(annotations.insert(marker::key(policy), marker)),
            None => drop(annotations.remove(&marker::key(policy))),
        }
    }

    /// Removes the entries of the marker number `at` that go, from the last to the first: a created list goes after its
    /// items.
    fn take(
        &mut self,
        going: &mut Going<'_>,
        at: usize,
        is_wanted: impl Fn(&str) -> bool,
        returns: impl Fn(&str) -> bool + Copy,
    ) {
        let (policy, marker) = &going.markers[at];
        let mut items = Vec::new();
        for pointer in in_order(&marker.added).into_iter().rev().filter(|pointer| is_wanted(pointer)) {
            let listed = Listed::parse(&going.pod, pointer);
            let is_parent = listed.as_ref().is_some_and(|listed| matches!(listed.what, What::Parent));
            if !is_parent && going.kept.contains(pointer) {
                continue;
            }
            // A variable that was created for parts goes with the last of them.
            let is_joint = listed.as_ref().is_some_and(|listed| is_joint(marker, pointer, listed));
            // Each marker takes its own grace period back.
            let is_grace = matches!(listed.as_ref().map(|listed| listed.what), Some(What::Field(FieldEntry::Grace)));
            if !is_parent && !is_joint && !is_grace && going.passed.contains(pointer.as_str()) {
                continue;
            }
            items.push(pointer.as_str());
            if let Some(taken) = self.take_part(going, at, pointer) {
                taken.unwrap_or_else(|cause| self.leave(policy, pointer, cause));
                continue;
            }
            let was = if marker.nulls.contains(pointer) { Was::Null } else { Was::Absent };
            if let Err(cause) = remove(&mut self.body, &going.pod, listed, was, returns) {
                self.leave(policy, pointer, cause);
            }
        }
        going.passed.extend(items);
    }

    /// Removes the field of the pod or the part of a value at `pointer`, or the variable that was created for parts, if it has none any more. None
    /// if `pointer` is something else.
    fn take_part(&mut self, going: &Going<'_>, at: usize, pointer: &str) -> Option<Result<(), LeftoverCause>> {
        let listed = Listed::parse(&going.pod, pointer)?;
        let marker = &going.markers[at].1;
        if let What::Field(entry) = listed.what {
            let rest = going.others(at).filter_map(Listed::grace).max();
            let is_null = marker.nulls.iter().any(|null| null == pointer);
            let spec = self.body.pointer_mut(&format!("{}/spec", going.pod))?;
            return Some(field::remove(spec, entry, &listed.tokens, rest, is_null));
        }
        let is_created = is_joint(marker, pointer, &listed);
        if !is_created && listed.part().is_none() {
            return None;
        }
        let pod = self.body.pointer_mut(&going.pod)?;
        if is_created {
            return Some(remove_variable(pod, &listed));
        }
        let others: Vec<&Listed> = going.others(at).filter(|other| other.is_beside(&listed)).collect();
        Some(remove_part(pod, &listed, &others))
    }

    fn leave(&mut self, policy: &str, pointer: &str, cause: LeftoverCause) {
        self.leftovers.push(Leftover { policy: policy.to_owned(), pointer: pointer.to_owned(), cause });
    }
}

/// The removal of the entries of several markers.
struct Going<'m> {
    pod: String,
    /// The policies with their markers.
    markers: &'m [(&'m str, Marker)],
    /// The entries for parts of values and for grace periods, each with the number of its marker; those of markers that stay have the
    /// number after the last.
    parts: Vec<(usize, Listed)>,
    /// The entries of markers that stay.
    kept: HashSet<String>,
    /// The entries of the markers before this one.
    passed: HashSet<&'m str>,
}

impl<'m> Going<'m> {
    fn of(pod: String, handover: &'m Handover<'_>) -> Self {
        let (markers, kept) = (&handover.going[..], handover.kept());
        let going = markers.iter().enumerate();
        let going = going.flat_map(|(at, (_, marker))| marker.added.iter().map(move |pointer| (at, pointer)));
        let all = going.chain(kept.iter().map(|pointer| (markers.len(), pointer)));
        let parts = all.filter_map(|(at, pointer)| Some((at, Listed::parse(&pod, pointer)?)));
        let parts =
            parts.filter(|(_, listed)| matches!(listed.what, What::Part(_)) || listed.grace().is_some()).collect();
        Self { markers, parts, kept, passed: HashSet::new(), pod }
    }

    /// The parts and grace periods that are still there while those of the marker number `at` go.
    fn others(&self, at: usize) -> impl Iterator<Item = &Listed> {
        self.parts.iter().filter(move |(of, _)| *of > at).map(|(_, listed)| listed)
    }
}

/// The entries of a marker, each variable before the parts of its value: a marker that takes a variable over has it behind them.
fn in_order(added: &[String]) -> Vec<&String> {
    let places: HashMap<&str, &String> = added.iter().map(|pointer| (pointer.as_str(), pointer)).collect();
    let (mut ordered, mut seen) = (Vec::with_capacity(added.len()), HashSet::new());
    for pointer in added {
        // The part has four steps more: `value`, the side, the separator and the text.
        let variable = pointer.rsplitn(5, '/').last().and_then(|variable| places.get(variable).copied());
        let is_part = pointer.contains("/env/") && pointer.contains("/value/");
        ordered.extend(
            variable.filter(|_| is_part).into_iter().chain([pointer]).filter(|entry| seen.insert(entry.as_str())),
        );
    }
    ordered
}

/// Whether the entry `pointer` of `marker` is a variable that was created for parts.
pub(crate) fn is_joint(marker: &Marker, pointer: &str, listed: &Listed) -> bool {
    let has_parts = || {
        let value = format!("{pointer}/{VALUE}/");
        marker.added.iter().any(|other| other.starts_with(&value))
    };
    matches!(listed.what, What::Inner(_, inner) if inner.field == ENV) && has_parts()
}

/// The value in the place of a list or map before its creation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Was {
    Absent,
    Null,
}

fn remove(
    body: &mut Value,
    pod: &str,
    listed: Option<Listed>,
    was: Was,
    returns: impl Fn(&str) -> bool,
) -> Result<(), LeftoverCause> {
    let listed = listed.ok_or(LeftoverCause::Foreign)?;
    let (key, parents) = listed.split();
    let pod = body.pointer_mut(pod).ok_or(LeftoverCause::Missing)?;
    let is_volume = matches!(listed.what, What::Item(list) if list.scope == Scope::Volumes);
    if is_volume && !returns(key) && is_mounted(&pod["spec"], key) {
        return Err(LeftoverCause::Mounted);
    }
    let parent = listed::locate(pod, parents)?;
    match (listed.what, pod.pointer_mut(&parent).ok_or(LeftoverCause::Missing)?) {
        (What::Item(_) | What::Inner(..), Value::Array(items)) => {
            let list = parents.last().map_or("", String::as_str);
            items.remove(listed::only(items, list, key)?);
            Ok(())
        }
        (What::Entry(_), Value::Object(entries)) => entries.remove(key).map(drop).ok_or(LeftoverCause::Missing),
        (What::Parent, Value::Object(fields)) => remove_empty(fields, key, was),
        (_, other) => Err(listed::unfit(other)),
    }
}

/// The variable of the entry `listed` in `pod`.
fn variable_of<'a>(pod: &'a mut Value, listed: &Listed) -> Result<(&'a mut Vec<Value>, usize), LeftoverCause> {
    let name = listed.tokens.get(4).ok_or(LeftoverCause::Foreign)?;
    let container = listed::locate(pod, &listed.tokens[..3])?;
    let container = pod.pointer_mut(&container).and_then(Value::as_object_mut).ok_or(LeftoverCause::Unexpected)?;
    let place = part::variable(container, name).map(|(place, _)| place).ok_or(LeftoverCause::Missing)?;
    match container.get_mut(ENV) {
        Some(Value::Array(items)) => Ok((items, place)),
        _ => Err(LeftoverCause::Missing),
    }
}

/// Removes a part of a value, if it is still there, and what `others` list stays.
fn remove_part(pod: &mut Value, listed: &Listed, others: &[&Listed]) -> Result<(), LeftoverCause> {
    let (items, place) = variable_of(pod, listed)?;
    let others: Vec<_> = others.iter().filter_map(|other| Some(other.part()?.1)).collect();
    let (_, part) = listed.part().ok_or(LeftoverCause::Foreign)?;
    let value = items[place].as_object().and_then(part::literal).ok_or(LeftoverCause::Unexpected)?;
    let left = part.replaced(value, None, &others).ok_or(LeftoverCause::Edited)?;
    items[place][VALUE] = left.into();
    Ok(())
}

/// Removes a variable that was created for parts, unless its value has text left: of others, or of a user.
fn remove_variable(pod: &mut Value, listed: &Listed) -> Result<(), LeftoverCause> {
    let (items, place) = variable_of(pod, listed)?;
    if items[place].as_object().and_then(part::literal) == Some("") {
        items.remove(place);
    }
    Ok(())
}

/// True if and only if a container of the pod with this `spec` mounts the volume `name`.
fn is_mounted(spec: &Value, name: &str) -> bool {
    let containers =
        ["containers", "initContainers", "ephemeralContainers"].into_iter().flat_map(|list| items(spec, list));
    let mut mounts = containers.flat_map(|container| {
        ["volumeMounts", "volumeDevices"].into_iter().flat_map(move |list| items(container, list))
    });
    mounts.any(|mount| mount["name"] == name)
}

fn items<'a>(value: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value[list].as_array().into_iter().flatten()
}

/// Removes a created list or map if it is empty. A missing one is fine.
fn remove_empty(fields: &mut Map<String, Value>, name: &str, was: Was) -> Result<(), LeftoverCause> {
    let is_empty = match fields.get(name) {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(entries)) => entries.is_empty(),
        // The value of a variable, without its parts.
        Some(Value::String(text)) if name == VALUE => text.is_empty(),
        Some(_) => return Err(LeftoverCause::Unexpected),
    };
    match was {
        _ if !is_empty => {}
        Was::Null => drop(fields.insert(name.to_owned(), Value::Null)),
        Was::Absent => drop(fields.remove(name)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pod_security::Standard;
    use crate::api::v1alpha1::Position;
    use crate::inject::{Template, plan};
    use proptest::prelude::*;
    use serde_json::json;

    fn pod(body: Value) -> Workload {
        Workload::new(Kind::find("", "pods").unwrap(), body)
    }

    fn marked_pod(added: &Value, nulls: &Value, spec: &Value) -> Workload {
        let texts = |list: &Value| serde_json::from_value(list.clone()).unwrap();
        let marker =
            Marker { hash: "0123456789abcdef".into(), added: texts(added), nulls: texts(nulls), ..Marker::default() };
        let marker = marker.to_value();
        pod(json!({"metadata": {"annotations": {"injected.scpol.dev/p": marker}}, "spec": spec}))
    }

    fn causes(undone: &Undone) -> Vec<(&str, LeftoverCause)> {
        undone.leftovers.iter().map(|leftover| (leftover.pointer.as_str(), leftover.cause)).collect()
    }

    #[test]
    fn what_was_injected_by_two_policies_goes_in_any_order() {
        let template =
            |policy: &str, text: &str| Template::new(policy, &serde_json::from_str(text).unwrap(), Position::default());
        let one = template("one", r#"{"containers":[{"name":"x"}],"volumes":[{"name":"v"}]}"#);
        let two = template(
            "two",
            r#"{"initContainers":[{"name":"i"}],"volumes":[{"name":"w"}],
            "metadata":{"labels":{"l/x":"1"},"annotations":{"n":"2"}},"imagePullSecrets":[{"name":"s"}],
            "env":[{"name":"E","value":"3"}],"envFrom":[{"prefix":"P_","secretRef":{"name":"s"}}],
            "volumeMounts":[{"name":"w","mountPath":"/w/"}]}"#,
        );
        for original in [
            json!({"spec": {"containers": [{"name": "app"}]}}),
            json!({"metadata": null, "spec": {"containers": [{"name": "app"}], "volumes": null}}),
            json!({"metadata": {"annotations": {"a": "b"}}, "spec": {"containers": [], "volumes": []}}),
            json!({"metadata": {"annotations": null}, "spec": {"containers": [{"name": "app"}], "initContainers": null}}),
        ] {
            let mut injected = pod(original.clone());
            let patch = plan(&injected, &[&one, &two], &[&one, &two], Standard::NEWEST).unwrap();
            json_patch::patch(&mut injected.body, &patch).unwrap();
            let undone = undo(&injected, None).unwrap();
            assert_eq!((undone.body, undone.leftovers), (original.clone(), vec![]));
            assert_eq!(undone.policies, ["one", "two"]);
            for (first, second) in [("one", "two"), ("two", "one")] {
                let without = undo(&injected, Some(first)).unwrap();
                assert_eq!(without.policies, [first]);
                let without = undo(&pod(without.body), Some(second)).unwrap();
                assert_eq!(without.body, original, "{first}, then {second}");
            }
        }
    }

    #[test]
    fn without_a_marker_there_is_nothing_to_undo() {
        assert_eq!(undo(&pod(json!({"spec": {}})), None), None);
        assert_eq!(undo(&pod(json!("text")), None), None);
        assert_eq!(undo(&marked_pod(&json!([]), &json!([]), &json!({})), Some("other")), None);
    }

    #[test]
    fn items_are_found_by_the_key_of_their_list() {
        let added = json!([
            "/metadata/labels",
            "/metadata/labels/a~1b",
            "/spec/imagePullSecrets",
            "/spec/imagePullSecrets/s",
            "/spec/containers/app/env",
            "/spec/containers/app/env/A",
            "/spec/containers/app/volumeMounts/~1data",
            "/spec/containers/app/envFrom/secretRef:s:P_",
        ]);
        let mut workload = marked_pod(
            &added,
            &json!([]),
            &json!({"imagePullSecrets": [{"name": "s"}], "containers": [{
                "name": "app",
                "env": [{"name": "A", "value": "1"}],
                "volumeMounts": [{"name": "data", "mountPath": "/x"}, {"name": "y", "mountPath": "/data/"}],
                "envFrom": [{"secretRef": {"name": "s"}}, {"secretRef": {"name": "s"}, "prefix": "P_"}],
            }]}),
        );
        workload.body["metadata"]["labels"] = json!({"a/b": "c"});
        let undone = undo(&workload, None).unwrap();
        assert_eq!(undone.leftovers, []);
        let expected = json!({"metadata": {"annotations": {}}, "spec": {"containers": [{
            "name": "app",
            "volumeMounts": [{"name": "data", "mountPath": "/x"}],
            "envFrom": [{"secretRef": {"name": "s"}}],
        }]}});
        assert_eq!(undone.body, expected);
    }

    #[test]
    fn a_volume_stays_as_long_as_something_mounts_it() {
        let marker = |hash: &str, added: Value| {
            let added = serde_json::from_value(added).unwrap();
            Marker { hash: hash.repeat(16), added, ..Marker::default() }.to_value()
        };
        let body = |mounts: Value, devices: Value| {
            let of_one =
                marker("1", json!(["/spec/volumes", "/spec/volumes/v", "/spec/containers/app/volumeMounts/~1a"]));
            let of_two = marker("2", json!(["/spec/containers/two"]));
            pod(json!({
                "metadata": {"annotations": {"injected.scpol.dev/one": of_one, "injected.scpol.dev/two": of_two}},
                "spec": {
                    "containers": [
                        {"name": "app", "volumeMounts": mounts},
                        {"name": "two", "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
                    ],
                    "initContainers": [{"name": "init", "volumeDevices": devices}],
                    "volumes": [{"name": "v", "emptyDir": {}}],
                },
            }))
        };
        let (ours, users) = (json!({"name": "v", "mountPath": "/a"}), json!({"name": "v", "mountPath": "/b"}));
        let device = json!({"name": "v", "devicePath": "/d"});
        for (mounts, devices, policy, stays) in [
            // For all policies: the mounts are removed before the volume, whichever policy added them.
            (json!([ours]), json!([]), None, false),
            // The container of another policy stays.
            (json!([ours]), json!([]), Some("one"), true),
            (json!([ours, users]), json!([]), None, true),
            // Both stay, because either may be ours.
            (json!([ours, ours]), json!([]), None, true),
            (json!([ours]), json!([device]), None, true),
        ] {
            let undone = undo(&body(mounts.clone(), devices.clone()), policy).unwrap();
            let kept = undone.body["spec"]["volumes"][0]["name"] == "v";
            assert_eq!(kept, stays, "{mounts} {devices} {policy:?}: {}", undone.body);
            assert_eq!(
                causes(&undone).contains(&("/spec/volumes/v", LeftoverCause::Mounted)),
                stays,
                "{:?}",
                undone.leftovers
            );
        }
    }

    #[test]
    fn what_a_marker_cannot_justify_stays_and_is_told() {
        let added = json!([
            "/spec/containers/gone",
            "/spec/containers/twice",
            "/spec",
            "/metadata/name",
            "/metadata/annotations/injected.scpol.dev~1other",
            "/spec/nodeName",
            "",
            "spec/containers",
            "/spec/containers/app/image",
            "/spec/containers/app/env/A",
            "/spec/volumes",
            "/spec/volumes/v",
            "/spec/initContainers",
            "/kind",
        ]);
        let spec = json!({
            "nodeName": "n",
            "containers": [{"name": "app", "image": "i"}, {"name": "twice"}, {"name": "twice"}, {"name": 7}, null],
            "volumes": "text",
            "initContainers": [{"name": "users"}],
        });
        let workload = marked_pod(&added, &json!([]), &spec);
        let undone = undo(&workload, None).unwrap();
        assert_eq!(undone.body["spec"], spec);
        assert_eq!(
            causes(&undone),
            [
                ("/kind", LeftoverCause::Foreign),
                ("/spec/containers/app/env/A", LeftoverCause::Missing),
                ("/spec/containers/app/image", LeftoverCause::Foreign),
                ("spec/containers", LeftoverCause::Foreign),
                ("", LeftoverCause::Foreign),
                ("/spec/nodeName", LeftoverCause::Foreign),
                ("/metadata/annotations/injected.scpol.dev~1other", LeftoverCause::Foreign),
                ("/metadata/name", LeftoverCause::Foreign),
                ("/spec", LeftoverCause::Foreign),
                ("/spec/containers/twice", LeftoverCause::Ambiguous),
                ("/spec/containers/gone", LeftoverCause::Missing),
                ("/spec/volumes/v", LeftoverCause::Unexpected),
                ("/spec/volumes", LeftoverCause::Unexpected),
            ]
        );
        assert!(undone.leftovers.iter().all(|leftover| leftover.to_string().contains("injected.scpol.dev/p")));
    }

    #[test]
    fn what_is_null_is_missing_and_no_surprise() {
        let added = json!(["/metadata/labels/l", "/spec/volumes/v", "/spec/containers/app/env/A"]);
        let mut workload = marked_pod(&added, &json!([]), &json!({"volumes": null, "containers": null}));
        workload.body["metadata"]["labels"] = json!(null);
        let undone = undo(&workload, None).unwrap();
        assert!(causes(&undone).iter().all(|(_, cause)| *cause == LeftoverCause::Missing), "{:?}", undone.leftovers);
        assert_eq!(undone.leftovers.len(), 3);
        assert_eq!(undone.body["spec"], workload.body["spec"]);
    }

    #[test]
    fn of_a_custom_resource_all_pods_that_carry_a_marker_are_undone_and_not_the_object_itself() {
        let template = |policy: &str| {
            let spec = serde_json::from_value(json!({"containers": [{"name": policy, "image": "x"}]})).unwrap();
            Template::new(policy, &spec, Position::default())
        };
        let at = |path: &[&str], body: &Value| {
            let path = path.iter().map(|&step| step.to_owned()).collect();
            Workload::new(&Arc::new(Kind::at("example.com", "rollouts", Some(path))), body.clone())
        };
        let inject = |body: &mut Value, path: &[&str], policy: &str| {
            let template = template(policy);
            *body =
                at(path, body).patched(&plan(&at(path, body), &[&template], &[&template], Standard::NEWEST).unwrap());
        };
        let pod = json!({"spec": {"containers": [{"name": "app"}]}});
        let mut users = json!({"spec": {"blue": pod, "deep": {"green": pod}, "not/a/path": pod, "list": [pod]}});
        // Content that looks like ours out of reach of any policy: in the object itself, and behind a name that no path
        // has.
        inject(&mut users, &["spec", "not/a/path"], "p");
        users["metadata"] = users["spec"]["not/a/path"]["metadata"].clone();
        let mut injected = users.clone();
        inject(&mut injected, &["spec", "blue"], "p");
        inject(&mut injected, &["spec", "deep", "green"], "q");
        let undo = |body: &Value, policies: &[&str]| {
            let policies: Vec<String> = policies.iter().map(|&policy| policy.to_owned()).collect();
            undo_anywhere(&at(&["spec", "template"], body), &policies)
        };
        let both = ["p", "q"].map(str::to_owned).to_vec();
        for policies in [&[][..], &["p", "q"], &["none", "p", "q"]] {
            let expected = Undone { body: users.clone(), policies: both.clone(), leftovers: Vec::new() };
            assert_eq!(undo(&injected, policies), Some(expected), "{policies:?}");
        }
        let mut without_q = users.clone();
        inject(&mut without_q, &["spec", "blue"], "p");
        assert_eq!(undo(&injected, &["q"]).map(|undone| undone.body), Some(without_q));
        assert_eq!(undo(&users, &[]), None);
        assert_eq!(undo(&injected, &["none"]), None);
    }

    #[test]
    fn a_variable_goes_with_its_parts_wherever_the_marker_has_it() {
        let [list, variable, part] =
            ["", "/J", "/J/value/Append/ /-b"].map(|end| format!("/spec/containers/app/env{end}"));
        let spec = json!({"containers": [{"name": "app", "env": [{"name": "J", "value": "-b"}]}]});
        for added in [json!([list, variable, part]), json!([list, part, variable])] {
            let undone = undo(&marked_pod(&added, &json!([]), &spec), None).unwrap();
            assert_eq!(
                (&undone.body["spec"], undone.leftovers.len()),
                (&json!({"containers": [{"name": "app"}]}), 0),
                "{added}"
            );
        }
    }

    #[test]
    fn a_marker_that_cannot_be_read_stays() {
        let workload = pod(json!({"metadata": {"annotations": {"injected.scpol.dev/p": "{"}}, "spec": {}}));
        let undone = undo(&workload, None).unwrap();
        assert_eq!((&undone.body, causes(&undone)), (&workload.body, vec![("", LeftoverCause::Unreadable)]));
        assert!(undone.policies.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_marker_makes_it_panic(
            added in proptest::collection::vec("(/(spec|metadata|labels|containers|volumes|app|env|~0|~1|x|0|-)){0,5}", 0..6),
            nulls in proptest::collection::vec("(/(spec|metadata|volumes)){0,2}", 0..3),
            spec in prop_oneof![
                Just(json!(null)), Just(json!([])), Just(json!({"containers": null, "volumes": {}})),
                Just(json!({"containers": [{"name": "app", "env": 1}, 7, {"name": {}}], "volumes": [[]]})),
            ],
        ) {
            undo(&marked_pod(&json!(added), &json!(nulls), &spec), None).unwrap();
        }
    }
}
