//! Rules for single writes.

use crate::Site;
use crate::history::Write;
use crate::patch::{Operation, operations, tested};
use crate::pod;
use serde_json::Value;

/// O1.
pub(super) fn once(_: &Site, write: &Write) -> Option<String> {
    let earlier = write.earlier.as_ref().filter(|_| write.completes())?;
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
    let allowed: &[&str] = match (at.api_group.as_str(), at.resource.as_str(), at.subresource.as_str()) {
        // A dry-run create in our own namespace, which stores nothing.
        (_, _, "") if event.is_dry_run() && event.verb == "create" && in_own_namespace && is_workload => &["create"],
        (_, _, "") if write.pod.is_some() => &["patch"],
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
    let is_registration = at.api_group == "admissionregistration.k8s.io" && event.request_object.is_object();
    let lacks_label = event.request_object["metadata"]["labels"]["app.kubernetes.io/managed-by"] != "scpol";
    (is_registration && lacks_label && event.verb != "delete").then(|| "registered without our label".into())
}

/// O7.
pub(super) fn silent(site: &Site, write: &Write) -> Option<String> {
    let rest = site.rest.as_ref()?;
    let event = write.event;
    let is_loud = event.object_ref.resource != "leases" && !event.is_dry_run();
    (is_loud && rest.covers(event.request_received_timestamp?)).then(|| format!("`{}` at rest", event.verb))
}
