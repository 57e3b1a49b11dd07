//! Rules for single writes.

use crate::Site;
use crate::history::Write;
use crate::patch::{Operation, operations, tested};
use crate::pod::{self, markers};
use crate::rollout::{self, Step};
use serde_json::Value;

/// O1.
pub(super) fn once(_: &Site, write: &Write) -> Option<String> {
    let earlier = write.earlier.as_ref().filter(|_| write.completes() || write.rolled().is_some())?;
    Some(format!("written again, and nobody else has written it since [{earlier}]"))
}

/// O11.
pub(super) fn keeps_in_force(_: &Site, write: &Write) -> Option<String> {
    // A stopping operator removes registrations that need it.
    let reason = write.gave_up.as_ref().filter(|reason| *reason != "Stopped")?;
    Some(format!("not in force any more ({reason}), though nobody has changed it, or what is registered"))
}

/// O2.
pub(super) fn whole(_: &Site, write: &Write) -> Option<String> {
    if let Some(step) = write.rolled() {
        return whole_step(write, step);
    }
    let pod = write.pod.filter(|_| write.completes())?;
    let patch = &write.event.request_object;
    let operations = operations(patch);
    if write.event.verb != "patch" || operations.is_empty() {
        return Some(format!("written by `{}` and not by a JSON Patch", write.event.verb));
    }
    const GUARDS: [&str; 3] = ["/metadata/uid", "/metadata/resourceVersion", "/metadata/initializers/pending/0/name"];
    if let Some(missing) = GUARDS.iter().find(|guard| tested(patch, guard).is_none_or(str::is_empty)) {
        return Some(format!("the patch does not begin with a test of `{missing}`"));
    }
    if operations.iter().any(|operation| operation.op == "add" && operation.path == "/metadata/initializers/result") {
        return None;
    }
    let content = operations.iter().find(|operation| adds_content(pod, operation));
    if let Some(content) = content.filter(|_| is_leaving(write)) {
        return Some(format!("`{}` is added to what is being deleted", content.path));
    }
    let is_marked = operations.iter().any(|operation| sets_marker(pod, operation));
    let is_completed = operations.iter().any(Operation::is_removal);
    match (content, is_marked, is_completed) {
        (_, _, false) => Some("our entry stays on the list".into()),
        (Some(content), false, _) => Some(format!("`{}` is added without a marker", content.path)),
        _ => None,
    }
}

/// O2, for a rollout.
fn whole_step(write: &Write, step: Step) -> Option<String> {
    let missing = ["uid", "resourceVersion"].into_iter().find(|field| rollout::guard(write.event, field).is_none());
    if let Some(missing) = missing {
        return Some(format!("not guarded by the `{missing}` of what was read"));
    }
    let pod = write.pod.filter(|_| step == Step::Patch)?;
    if is_leaving(write) {
        return Some("a rollout changes what is being deleted".into());
    }
    let operations = operations(&write.event.request_object);
    if !operations.iter().any(|operation| sets_marker(pod, operation)) {
        return Some("a rollout changes content without its marker".into());
    }
    let after = &write.event.response_object;
    let all = after.pointer(pod).map(markers).unwrap_or_default();
    let lacking = all.iter().flat_map(|marker| &marker.added).find(|pointer| pod::count(after, pointer) != 1)?;
    Some(format!("a marker lists `{lacking}`, which is not there once"))
}

/// Whether the object was being deleted before the write, or is afterwards, which a write cannot undo.
fn is_leaving(write: &Write) -> bool {
    let object = write.before.as_ref().unwrap_or(&write.event.response_object);
    object["metadata"]["deletionTimestamp"].is_string()
}

fn adds_content(pod: &str, operation: &Operation) -> bool {
    let is_change = !operation.is_test() && !operation.is_removal();
    is_change && operation.path.strip_prefix(pod).is_some_and(|below| below.starts_with("/spec/"))
}

/// Whether the operation sets the marker, or creates the map with it.
fn sets_marker(pod: &str, operation: &Operation) -> bool {
    let Some(below) = operation.path.strip_prefix(pod).filter(|_| !operation.is_test()) else { return false };
    let has =
        |annotations: &Value| annotations.as_object().is_some_and(|all| all.keys().any(|key| pod::is_marker(key)));
    match below {
        "/metadata" => has(&operation.value["annotations"]),
        "/metadata/annotations" => has(operation.value),
        _ => below.strip_prefix("/metadata/annotations/").is_some_and(pod::is_marker),
    }
}

/// O3.
pub(super) fn own_fields(site: &Site, write: &Write) -> Option<String> {
    if let Some(step) = write.rolled() {
        return own_content(write, step);
    }
    let pod = write.pod.filter(|_| write.completes())?;
    let operations = operations(&write.event.request_object);
    if let Some(beyond) = operations.iter().find(|operation| !operation.is_test() && !may_touch(pod, operation)) {
        return Some(format!("`{}` of `{}` is nothing that injection does", beyond.op, beyond.path));
    }
    if !tested(&write.event.request_object, "/metadata/initializers/pending/0/name").is_none_or(|name| site.owns(name))
    {
        return Some("acts while a foreign initializer is at the head of the list".into());
    }
    let (before, after) = (write.before.as_ref()?, &write.event.response_object);
    if after["metadata"].is_null() {
        return None;
    }
    let foreign = |object: &Value| -> Vec<String> {
        pod::pending(object).filter(|name| !site.owns(name)).map(str::to_owned).collect()
    };
    if foreign(before) != foreign(after) {
        return Some(format!("the foreign entries {:?} have become {:?}", foreign(before), foreign(after)));
    }
    pod::lost(before, after).map(|path| format!("`{path}` is not any more what it was"))
}

/// O3, for a rollout: the object without what markers list stays as it is.
fn own_content(write: &Write, step: Step) -> Option<String> {
    let pod = write.pod.filter(|_| step != Step::Evict)?;
    let is_inside = |path: &str| {
        let below = path.strip_prefix(pod).unwrap_or_default();
        below.starts_with("/spec/") || below == "/metadata" || below.starts_with("/metadata/")
    };
    let operations = operations(&write.event.request_object);
    if let Some(beyond) = operations.iter().find(|operation| !operation.is_test() && !is_inside(operation.path)) {
        return Some(format!("`{}` of `{}` is nothing that a rollout does", beyond.op, beyond.path));
    }
    let (before, after) = (write.before.as_ref()?, &write.event.response_object);
    if after["metadata"].is_null() {
        return None;
    }
    let listed = |object: &Value| -> Vec<String> {
        object.pointer(pod).map(markers).unwrap_or_default().into_iter().flat_map(|marker| marker.added).collect()
    };
    let restarted = (step == Step::Restart).then(|| format!("{pod}{}", rollout::RESTARTED));
    let was_listed: Vec<String> = listed(before).into_iter().chain(restarted.clone()).collect();
    // A volume that something else mounts stays.
    let volumes = was_listed.iter().filter(|pointer| pointer.contains("/spec/volumes/")).cloned();
    let is_listed: Vec<String> = listed(after).into_iter().chain(restarted).chain(volumes).collect();
    let (before, after) = (pod::without(before, pod, &was_listed), pod::without(after, pod, &is_listed));
    pod::difference(&before, &after).map(|path| format!("`{path}` is not any more what it was, and no marker lists it"))
}

/// Whether an injection may contain the operation.
fn may_touch(pod: &str, operation: &Operation) -> bool {
    if operation.op == "remove" {
        return matches!(operation.path, "/metadata/initializers" | "/metadata/initializers/pending/0");
    }
    if operation.path == "/metadata/initializers/result" {
        return true;
    }
    let Some(below) = operation.path.strip_prefix(pod) else { return false };
    let steps: Vec<&str> = below.split('/').skip(1).collect();
    match steps.as_slice() {
        ["metadata"] | ["metadata", "labels" | "annotations"] | ["metadata", "labels" | "annotations", _] => true,
        ["spec", list] | ["spec", list, _] => pod::LISTS.contains(list),
        ["spec", "containers" | "initContainers", _, list] | ["spec", "containers" | "initContainers", _, list, _] => {
            pod::INNER.contains(list)
        }
        _ => false,
    }
}

/// O4: only the objects in this table are ours.
pub(super) fn own_objects(site: &Site, write: &Write) -> Option<String> {
    let event = write.event;
    let at = &event.object_ref;
    let in_own_namespace = at.namespace == site.namespace;
    let is_workload = write.pod.is_some() || at.resource == "jobs" || at.resource == "secrets";
    if let Some(objection) = write.rolled().and_then(|step| stays_away(site, write, step)) {
        return Some(objection);
    }
    let allowed: &[&str] = match (at.api_group.as_str(), at.resource.as_str(), at.subresource.as_str()) {
        // A dry-run create in our own namespace, which stores nothing.
        (_, _, "") if event.is_dry_run() && event.verb == "create" && in_own_namespace && is_workload => &["create"],
        (_, _, "") if write.pod.is_some() => &["patch"],
        ("", "pods", "resize") => &["patch"],
        ("", "pods", "eviction") => &["create"],
        ("apps", "controllerrevisions", "") if in_own_namespace => &["create", "patch", "delete"],
        ("admissionregistration.k8s.io", _, "") if event.name().starts_with("scpol-") => {
            &["create", "update", "delete"]
        }
        ("" | "events.k8s.io", "events", "") => &["create", "patch"],
        ("coordination.k8s.io", "leases", "") if in_own_namespace => &["create", "update"],
        ("", "secrets", "") if in_own_namespace && event.name().starts_with("scpol-") => &["create", "update", "patch"],
        ("scpol.dev", "sidecarpolicies", "status") => &["patch"],
        ("authorization.k8s.io", "selfsubjectaccessreviews", "") => &["create"],
        _ => &[],
    };
    if !allowed.contains(&event.verb.as_str()) {
        return Some(format!("`{}` is not ours to do there", event.verb));
    }
    let is_revision = at.resource == "controllerrevisions" && event.verb == "create";
    let is_registration = at.api_group == "admissionregistration.k8s.io" || is_revision;
    let is_registration = is_registration && event.request_object.is_object();
    let lacks_label = event.request_object["metadata"]["labels"]["app.kubernetes.io/managed-by"] != "scpol";
    (is_registration && lacks_label && event.verb != "delete").then(|| "registered without our label".into())
}

/// The controllers that make pods again.
const MAKERS: [&str; 4] = ["ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController"];

/// O4, for a rollout: why it must stay away from the workload.
fn stays_away(site: &Site, write: &Write, step: Step) -> Option<String> {
    let about = &write.event.object_ref;
    if site.protects(&about.namespace) {
        return Some("a rollout in a protected namespace".into());
    }
    let object = match (&write.before, step) {
        (Some(before), _) => before,
        (None, Step::Evict) => &Value::Null,
        (None, _) => &write.event.response_object,
    };
    let pod = write.pod.and_then(|pod| object.pointer(pod)).unwrap_or(&Value::Null);
    if rollout::opts_out(object) || rollout::opts_out(pod) {
        return Some("it has opted out of rollouts".into());
    }
    if about.resource == "pods" && object.is_object() {
        let owner = rollout::controller(object).map(|owner| owner["kind"].as_str().unwrap_or_default());
        let ends = object["spec"]["restartPolicy"].as_str().is_some_and(|policy| policy != "Always");
        match owner {
            None | Some("Node" | "Job") => return Some("no controller makes the pod again".into()),
            _ if ends => return Some("the pod ends by itself".into()),
            Some(kind) if !MAKERS.contains(&kind) => return Some(format!("a `{kind}` may not make the pod again")),
            _ => {}
        }
    }
    write.objection.as_ref().map(|objection| format!("no policy rolls out to it: {objection}"))
}

/// O7.
pub(super) fn silent(site: &Site, write: &Write) -> Option<String> {
    let rest = site.rest.as_ref()?;
    let event = write.event;
    let is_loud = event.object_ref.resource != "leases" && !event.is_dry_run();
    (is_loud && rest.covers(event.request_received_timestamp?)).then(|| format!("`{}` at rest", event.verb))
}
