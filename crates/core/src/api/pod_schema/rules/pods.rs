//! The rules for pods and templates as a whole: what their containers, init containers and volumes have to do with each other.

use super::super::{FaultKind, Walk, is_native_sidecar};
use super::read::{Members, given, has, is_true, object, objects, text};
use super::{distinct, fields, metadata, must_be_one_of};
use crate::api::schema::quoted;
use serde_json::Value;
use std::collections::HashSet;

pub(super) fn pod_template(walk: &mut Walk, members: &Members, path: &str) {
    metadata::of(walk, members.get("metadata"), &format!("{path}.metadata"));
    if !has(members, "spec") {
        walk.wrong(format!("{path}.spec"), "must be given");
    }
}

pub(super) fn pod_spec(walk: &mut Walk, members: &Members, path: &str) {
    if members.get("containers").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        walk.wrong(format!("{path}.containers"), "must have at least one container");
    }
    of_containers(walk, members, path);
    for list in ["containers", "initContainers", "volumes"] {
        distinct(walk, members, path, list, "name");
    }
    let names: HashSet<_> = objects(members, "containers").filter_map(|(_, item)| text(item, "name")).collect();
    for (index, item) in objects(members, "initContainers") {
        if let Some(name) = text(item, "name").filter(|name| names.contains(name)) {
            let message = format!("must be another name: a container is called {} as well", quoted(name));
            walk.blame(format!("{path}.initContainers[{index}].name"), FaultKind::Duplicate, message);
        }
    }
}

/// Checks the template of a policy as a whole.
pub(in super::super) fn of_template(walk: &mut Walk, members: &Members, path: &str) {
    of_containers(walk, members, path);
    metadata::of(walk, members.get("metadata"), &format!("{path}.metadata"));
    files(walk, members, members, path);
}

/// The first minor version in which a container of any kind may have its own `restartPolicy` (KEP-5307, beta), and the
/// first in which one may restart all others (KEP-5532, beta).
const RESTART_RULES: u32 = 35;
const RESTART_ALL: u32 = 36;
/// The versions that take `Always` alone, of init containers alone. 1.34 drops the others in silence, and 1.28 all of init
/// containers.
const OF_SIDECARS: std::ops::Range<u32> = 29..34;

/// The first minor version that refuses `RestartContainer` for init containers that end.
const RESIZES_SIDECARS: u32 = 35;

/// Checks containers against init containers and volumes of `members`, a PodSpec or a template.
fn of_containers(walk: &mut Walk, members: &Members, path: &str) {
    for (index, item) in objects(members, "initContainers") {
        init_container(walk, item, &format!("{path}.initContainers[{index}]"));
    }
    for list in ["containers", "initContainers"] {
        for (index, item) in objects(members, list) {
            let path = format!("{path}.{list}[{index}]");
            restart_policy(walk, item, &path, list == "initContainers");
            devices(walk, item, members, &path);
            files(walk, item, members, &path);
        }
    }
}

fn restart_policy(walk: &mut Walk, item: &Members, path: &str, is_init: bool) {
    const POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];
    let Some(policy) = item.get("restartPolicy").and_then(Value::as_str) else { return };
    let at = format!("{path}.restartPolicy");
    if walk.minor >= RESTART_RULES && !POLICIES.contains(&policy) {
        walk.wrong(at, must_be_one_of(&POLICIES, policy));
    } else if OF_SIDECARS.contains(&walk.minor) && is_init && policy != POLICIES[0] {
        walk.wrong(at, format!("must be `Always`, not {}", quoted(policy)));
    } else if walk.minor < OF_SIDECARS.end && !is_init {
        let message = format!(
            "must not be set for a container before Kubernetes 1.{RESTART_RULES}; a native sidecar is an item of `initContainers`"
        );
        walk.wrong(at, message);
    }
}

fn init_container(walk: &mut Walk, item: &Members, path: &str) {
    if !is_native_sidecar(item) {
        for field in given(item, &["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"]) {
            let message = "must not be set for an init container, unless it has `restartPolicy: Always`";
            walk.wrong(format!("{path}.{field}"), message);
        }
    }
    for (index, policy) in objects(item, "resizePolicy") {
        if !is_native_sidecar(item)
            && walk.minor >= RESIZES_SIDECARS
            && text(policy, "restartPolicy") == Some("RestartContainer")
        {
            let message = "must not be `RestartContainer` for an init container without `restartPolicy: Always`";
            walk.wrong(format!("{path}.resizePolicy[{index}].restartPolicy"), message);
        }
    }
    let rules = objects(item, "restartPolicyRules").count();
    if is_native_sidecar(item) && rules > 0 && (RESTART_RULES..RESTART_ALL).contains(&walk.minor) {
        let message = format!("must not be set beside `restartPolicy: Always` before Kubernetes 1.{RESTART_ALL}");
        walk.wrong(format!("{path}.restartPolicyRules"), message);
    }
}

/// The volume `name` of a pod or a template; none if it is not there, or the server drops it.
fn volume<'a>(walk: &Walk, members: &'a Members, name: &str) -> Option<&'a Members> {
    let mut volumes = objects(members, "volumes").map(|(_, volume)| volume);
    volumes
        .find(|volume| text(volume, "name") == Some(name))
        .filter(|volume| fields::kept("Volume", volume, walk.minor).len() == volume.len())
}

/// Devices of volumes that are no claims, and mounts that are devices as well.
fn devices(walk: &mut Walk, item: &Members, members: &Members, path: &str) {
    for (index, device) in objects(item, "volumeDevices") {
        let (name, at) = (text(device, "name").unwrap_or_default(), format!("{path}.volumeDevices[{index}]"));
        let is_claim = |volume: &Members| has(volume, "persistentVolumeClaim") || has(volume, "ephemeral");
        if volume(walk, members, name).is_some_and(|volume| !is_claim(volume)) {
            let message = format!("must be a volume of a claim, and {} is none", quoted(name));
            walk.wrong(format!("{at}.name"), message);
        }
        let mounts = || objects(item, "volumeMounts").map(|(_, mount)| mount);
        if mounts().any(|mount| text(mount, "name") == Some(name)) {
            walk.wrong(format!("{at}.name"), "must not be in `volumeMounts` as well");
        }
        if mounts().any(|mount| text(mount, "mountPath").is_some_and(|path| text(device, "devicePath") == Some(path))) {
            walk.wrong(format!("{at}.devicePath"), "must not be the path of a mount as well");
        }
    }
    let is_privileged = object(item, "securityContext").is_some_and(|context| is_true(context, "privileged"));
    for (index, mount) in objects(item, "volumeMounts") {
        if text(mount, "mountPropagation") == Some("Bidirectional") && !is_privileged {
            let message = "must not be `Bidirectional` without `securityContext.privileged: true`";
            walk.wrong(format!("{path}.volumeMounts[{index}].mountPropagation"), message);
        }
    }
}

/// Variables of `item` from files of volumes that are no empty directories.
fn files(walk: &mut Walk, item: &Members, members: &Members, path: &str) {
    for (index, variable) in objects(item, "env") {
        let source =
            object(variable, "valueFrom").filter(|_| !fields::is_dropped("EnvVarSource", "fileKeyRef", walk.minor));
        let Some(name) = source.and_then(|source| text(object(source, "fileKeyRef")?, "volumeName")) else { continue };
        let is_empty_dir = |volume: &Members| has(volume, "emptyDir") || given_sources(volume) == 0;
        if volume(walk, members, name).is_some_and(|volume| !is_empty_dir(volume)) {
            let message = format!("must be an `emptyDir`, and {} is none", quoted(name));
            walk.wrong(format!("{path}.env[{index}].valueFrom.fileKeyRef.volumeName"), message);
        }
    }
}

fn given_sources(volume: &Members) -> usize {
    volume.iter().filter(|(name, value)| *name != "name" && !value.is_null()).count()
}
