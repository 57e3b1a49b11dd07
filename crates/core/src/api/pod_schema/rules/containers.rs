//! The rules for containers: ports, variables, probes, hooks and security contexts.

use super::super::{FaultKind, Walk};
use super::forms::Form;
use super::read::{Members, given, has, items, number, objects, text};
use super::{distinct, must_be_one_of, within};
use crate::api::format;
use crate::api::schema::{listed, quoted, similar};
use serde_json::Value;
use std::collections::HashSet;

const PORT: std::ops::RangeInclusive<i64> = 1..=65535;

pub(super) fn container(walk: &mut Walk, members: &Members, path: &str) {
    if text(members, "image").is_none() && members.get("image").is_none_or(|image| image.is_null() || image == "") {
        walk.wrong(format!("{path}.image"), "must be given; e.g. `registry.example.com/agent:1.2.3`");
    }
    for (index, name) in objects(members, "ports").filter_map(|(index, port)| Some((index, text(port, "name")?))) {
        let earlier = objects(members, "ports").take(index).any(|(_, port)| text(port, "name") == Some(name));
        if earlier {
            let message = format!("must be unique in the container: {} is there before", quoted(name));
            walk.blame(format!("{path}.ports[{index}].name"), FaultKind::Duplicate, message);
        }
    }
    host_ports(walk, members, path);
    distinct(walk, members, path, "volumeMounts", "mountPath");
    distinct(walk, members, path, "volumeDevices", "devicePath");
    distinct(walk, members, path, "volumeDevices", "name");
    distinct(walk, members, path, "resizePolicy", "resourceName");
    if !items(members, "restartPolicyRules").is_empty() && !has(members, "restartPolicy") {
        walk.wrong(format!("{path}.restartPolicy"), "must be given, as `restartPolicyRules` is");
    }
    probes(walk, members, path);
}

/// Host ports that the container opens twice. [`crate::api::rules`] compares containers with each other.
fn host_ports(walk: &mut Walk, members: &Members, path: &str) {
    let mut seen = HashSet::new();
    for (index, port) in objects(members, "ports") {
        let Some(number) = number(port, "hostPort").filter(|number| *number != 0) else { continue };
        let protocol = text(port, "protocol").unwrap_or("TCP");
        if !seen.insert((number, protocol, text(port, "hostIP").unwrap_or_default())) {
            let message = format!("must be unique in the container: `{number}` is there before");
            walk.blame(format!("{path}.ports[{index}].hostPort"), FaultKind::Duplicate, message);
        }
    }
}

fn probes(walk: &mut Walk, members: &Members, path: &str) {
    for kind in ["livenessProbe", "startupProbe", "readinessProbe"] {
        let Some(probe) = members.get(kind).and_then(Value::as_object) else { continue };
        let path = format!("{path}.{kind}");
        if kind == "readinessProbe" {
            if has(probe, "terminationGracePeriodSeconds") {
                walk.wrong(format!("{path}.terminationGracePeriodSeconds"), "must not be set for a readiness probe");
            }
        } else if let Some(count) = number(probe, "successThreshold").filter(|count| ![0, 1].contains(count)) {
            walk.wrong(format!("{path}.successThreshold"), format!("must be 1, is {count}"));
        }
    }
}

/// The first minor version in which a rule may restart all containers of the pod (KEP-5532, beta).
const RESTART_ALL: u32 = 36;

pub(super) fn restart_rule(walk: &mut Walk, members: &Members, path: &str) {
    let actions: &[&str] = if walk.minor < RESTART_ALL { &["Restart"] } else { &["Restart", "RestartAllContainers"] };
    if let Some(action) = text(members, "action").filter(|action| !actions.contains(action)) {
        walk.wrong(format!("{path}.action"), must_be_one_of(actions, action));
    }
}

pub(super) fn container_port(walk: &mut Walk, members: &Members, path: &str) {
    match number(members, "containerPort") {
        None if !has(members, "containerPort") => {
            walk.wrong(format!("{path}.containerPort"), "must be given; e.g. `8080`");
        }
        _ => within(walk, members, path, "containerPort", PORT),
    }
    // Because 0 means no port.
    within(walk, members, path, "hostPort", 0..=*PORT.end());
    if let Some((name, fault)) = text(members, "name").and_then(|name| Some((name, format::port_name_fault(name)?))) {
        walk.wrong(format!("{path}.name"), format!("{fault}, not {}", quoted(name)));
    }
}

// Variables

/// The first minor version that accepts any printable characters in names of variables (KEP-4369, beta).
const RELAXED_NAMES: u32 = 32;

fn variable_name(walk: &mut Walk, members: &Members, path: &str, field: &str) {
    let Some(name) = text(members, field) else { return };
    let is_relaxed = name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=');
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_step = name == "." || name.starts_with("..");
    let is_strict = name.bytes().all(is_inner) && !name.starts_with(|first: char| first.is_ascii_digit()) && !is_step;
    if !is_relaxed {
        walk.wrong(
            format!("{path}.{field}"),
            format!("must be printable ASCII characters without `=`, not {}", quoted(name)),
        );
    } else if !is_strict && walk.minor < RELAXED_NAMES {
        let message = "must be letters, digits, `-`, `_` and `.`, and not begin with a digit";
        walk.wrong(format!("{path}.{field}"), format!("{message}, not {}", quoted(name)));
    }
}

pub(super) fn variable(walk: &mut Walk, members: &Members, path: &str) {
    variable_name(walk, members, path, "name");
    if has(members, "valueFrom") && text(members, "value").is_some() {
        walk.wrong(path, "must have either `value` or `valueFrom`");
    }
}

fn one_source(walk: &mut Walk, members: &Members, path: &str, sources: &[&'static str]) {
    let known: Vec<_> = sources.to_vec();
    match given(members, sources)[..] {
        [_] => {}
        // No fault, because the misspelt field is one already.
        [] if walk.has_odd_field(path) => {}
        [] => walk.wrong(path, format!("must have one of {}", listed(&known))),
        ref several => walk.wrong(path, format!("must have only one of {}", listed(several))),
    }
}

pub(super) fn variable_source(walk: &mut Walk, members: &Members, path: &str) {
    const SOURCES: [&str; 5] = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    // The last one is an old name of `spec.nodeName`.
    const PLAIN: [&str; 10] = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
        "spec.host",
    ];
    one_source(walk, members, path, &SOURCES);
    let has_all = walk.minor >= ALL_HOST_IPS;
    let plain: Vec<_> = PLAIN.into_iter().filter(|plain| has_all || *plain != "status.hostIPs").collect();
    field_path(walk, members, path, &plain);
}

/// The first minor version with `status.hostIPs` on by default (KEP-2681, beta).
const ALL_HOST_IPS: u32 = 29;

/// The `fieldRef` of an environment variable or a file: one of `plain`, or one label or annotation.
fn field_path(walk: &mut Walk, members: &Members, path: &str, plain: &[&str]) {
    let Some(wanted) = members.get("fieldRef").and_then(|field| text(field.as_object()?, "fieldPath")) else { return };
    let subscript = ["metadata.labels", "metadata.annotations"].into_iter().find_map(|map| wanted.strip_prefix(map));
    let is_subscript = subscript.is_some_and(|rest| {
        rest.strip_prefix("['").and_then(|rest| rest.strip_suffix("']")).is_some_and(|key| {
            let is_annotation = wanted.starts_with("metadata.annotations");
            if is_annotation { format::is_key(&key.to_lowercase()) } else { format::is_key(key) }
        })
    });
    if !is_subscript && !plain.contains(&wanted) {
        let hint = similar(wanted, plain.iter().copied()).map(|plain| format!("; did you mean `{plain}`?"));
        let message = format!(
            "must be one of {}, `metadata.labels['KEY']`, `metadata.annotations['KEY']`, not {}{}",
            listed(plain),
            quoted(wanted),
            hint.unwrap_or_default()
        );
        walk.wrong(format!("{path}.fieldRef.fieldPath"), message);
    }
}

pub(super) fn variables_source(walk: &mut Walk, members: &Members, path: &str) {
    one_source(walk, members, path, &["configMapRef", "secretRef"]);
    variable_name(walk, members, path, "prefix");
}

// Probes and hooks

pub(super) fn downward_file(walk: &mut Walk, members: &Members, path: &str) {
    const PLAIN: [&str; 5] =
        ["metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"];
    one_source(walk, members, path, &["fieldRef", "resourceFieldRef"]);
    field_path(walk, members, path, &PLAIN);
    let resource = members.get("resourceFieldRef").and_then(Value::as_object);
    if resource.is_some_and(|resource| text(resource, "containerName").is_none()) {
        walk.wrong(format!("{path}.resourceFieldRef.containerName"), "must be given");
    }
}

fn handler(walk: &mut Walk, members: &Members, path: &str, kinds: &[&'static str]) {
    match given(members, kinds)[..] {
        [_] => {}
        // No fault, because the misspelt field is one already.
        [] if walk.has_odd_field(path) => {}
        [] => walk.wrong(path, format!("must have one of {}", listed(kinds))),
        ref several => walk.wrong(path, format!("must have only one of {}", listed(several))),
    }
    let exec = members.get("exec").and_then(Value::as_object);
    if exec.is_some_and(|exec| exec.get("command").and_then(Value::as_array).is_none_or(Vec::is_empty))
        && exec.is_some_and(|exec| !exec.get("command").is_some_and(Value::is_string))
    {
        walk.wrong(format!("{path}.exec.command"), "must be given; e.g. `[cat, /tmp/healthy]`");
    }
}

pub(super) fn probe(walk: &mut Walk, members: &Members, path: &str) {
    handler(walk, members, path, &["exec", "httpGet", "tcpSocket", "grpc"]);
    let counts = ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"];
    for field in counts {
        within(walk, members, path, field, 0..=i64::MAX);
    }
    within(walk, members, path, "terminationGracePeriodSeconds", 1..=i64::MAX);
}

pub(super) fn lifecycle_handler(walk: &mut Walk, members: &Members, path: &str) {
    handler(walk, members, path, &["exec", "httpGet", "sleep", "tcpSocket"]);
}

/// The number or name of a port.
pub(super) fn port(walk: &mut Walk, members: &Members, path: &str) {
    let at = format!("{path}.port");
    match members.get("port") {
        None | Some(Value::Null) => walk.wrong(at, "must be given; e.g. `8080`"),
        Some(Value::String(name)) => {
            if let Some(fault) = format::port_name_fault(name) {
                walk.wrong(at, format!("{fault}, not {}", quoted(name)));
            } else if name.is_empty() {
                walk.wrong(at, "must be given; e.g. `8080`");
            }
        }
        Some(_) => within(walk, members, path, "port", PORT),
    }
}

pub(super) fn http_get(walk: &mut Walk, members: &Members, path: &str) {
    port(walk, members, path);
    if text(members, "protocol") == Some("HTTP2") {
        if text(members, "scheme").is_some_and(|scheme| scheme != "HTTP") {
            walk.wrong(format!("{path}.protocol"), "must be `HTTP1` with `scheme: HTTPS`");
        }
        if text(members, "host").is_some() {
            walk.wrong(format!("{path}.host"), "must be left out with `protocol: HTTP2`");
        }
    }
}

/// The first minor version in which a hook may sleep for no time (KEP-4818, beta).
const NO_SLEEP: u32 = 33;

pub(super) fn sleep(walk: &mut Walk, members: &Members, path: &str) {
    let least = i64::from(walk.minor < NO_SLEEP);
    if number(members, "seconds").unwrap_or_default() < least {
        walk.wrong(format!("{path}.seconds"), format!("must be {least} or more"));
    }
}

// Security

pub(super) fn security_context(walk: &mut Walk, members: &Members, path: &str) {
    if members.get("allowPrivilegeEscalation") == Some(&Value::Bool(false)) {
        if members.get("privileged") == Some(&Value::Bool(true)) {
            walk.wrong(format!("{path}.allowPrivilegeEscalation"), "must not be `false` beside `privileged: true`");
        }
        let added = members.get("capabilities").and_then(|capabilities| capabilities.get("add")?.as_array());
        if added.into_iter().flatten().any(|added| added == "CAP_SYS_ADMIN") {
            walk.wrong(format!("{path}.allowPrivilegeEscalation"), "must not be `false` beside `CAP_SYS_ADMIN`");
        }
    }
}

/// A profile of seccomp or AppArmor, whose file is of `form`.
pub(super) fn profile(walk: &mut Walk, members: &Members, path: &str, form: Form) {
    let at = format!("{path}.localhostProfile");
    let file = members.get("localhostProfile").and_then(Value::as_str);
    match (text(members, "type") == Some("Localhost"), file) {
        (true, None) => walk.wrong(at, "must be given, as `type` is `Localhost`"),
        (true, Some(file)) if !(form.holds)(file) => {
            walk.wrong(at, format!("must be {}, not {}", form.words, quoted(file)));
        }
        (false, Some(_)) => walk.wrong(at, "must be left out, unless `type` is `Localhost`"),
        _ => {}
    }
}
