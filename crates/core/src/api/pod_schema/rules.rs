//! The rules that the API server checks by hand (`pkg/apis/core/validation/validation.go` of Kubernetes 1.37), for
//! content of templates that can be checked alone.

use super::super::format;
use super::super::schema::{listed, quoted, similar};
use super::{FaultKind, Walk, is_native_sidecar};
use admission_cel::quantity;
use serde_json::{Map, Value};
use std::collections::HashSet;

type Members = Map<String, Value>;
/// A rule for objects of one definition; the text is the object's path.
type Rule = fn(&mut Walk, &Members, &str);

const RULES: [(&str, Rule); 26] = [
    ("PodTemplateSpec", pod_template),
    ("PodSpec", pod_spec),
    ("Container", container),
    ("ContainerPort", container_port),
    ("EnvVar", variable),
    ("EnvVarSource", variable_source),
    ("EnvFromSource", variables_source),
    ("ResourceFieldSelector", resource_field),
    ("VolumeMount", mount),
    ("VolumeDevice", device),
    ("Volume", volume),
    ("VolumeProjection", projection),
    ("HostPathVolumeSource", host_path),
    ("SecretVolumeSource", secret_volume),
    ("ConfigMapVolumeSource", modes),
    ("DownwardAPIVolumeSource", modes),
    ("ProjectedVolumeSource", modes),
    ("EmptyDirVolumeSource", empty_dir),
    ("KeyToPath", file),
    ("DownwardAPIVolumeFile", downward_file),
    ("ServiceAccountTokenProjection", token),
    ("Probe", probe),
    ("LifecycleHandler", lifecycle_handler),
    ("HTTPGetAction", http_get),
    ("ResourceRequirements", resources),
    ("SecurityContext", security_context),
];

/// The definitions with nothing but a port to check.
const PORTS: [&str; 2] = ["TCPSocketAction", "GRPCAction"];
const PROFILES: [&str; 2] = ["SeccompProfile", "AppArmorProfile"];

/// Checks the object `members` of the definition `name`.
pub(super) fn of(name: &str, walk: &mut Walk, members: &Members, path: &str) {
    if let Some((_, rule)) = RULES.iter().find(|(definition, _)| *definition == name) {
        rule(walk, members, path);
    }
    if PORTS.contains(&name) {
        port(walk, members, path);
    }
    if PROFILES.contains(&name) {
        profile(walk, members, path);
    }
}

fn text<'a>(members: &'a Members, field: &str) -> Option<&'a str> {
    members.get(field)?.as_str().filter(|text| !text.is_empty())
}

fn number(members: &Members, field: &str) -> Option<i64> {
    members.get(field)?.as_i64()
}

fn has(members: &Members, field: &str) -> bool {
    members.get(field).is_some_and(|value| !value.is_null())
}

fn objects<'a>(members: &'a Members, field: &str) -> impl Iterator<Item = (usize, &'a Members)> {
    let items = members.get(field).and_then(Value::as_array).into_iter().flatten().enumerate();
    items.filter_map(|(index, item)| Some((index, item.as_object()?)))
}

/// Those of `fields` that are set.
fn given<'a>(members: &Members, fields: &[&'a str]) -> Vec<&'a str> {
    fields.iter().copied().filter(|field| has(members, field)).collect()
}

fn within(walk: &mut Walk, members: &Members, path: &str, field: &str, bounds: std::ops::RangeInclusive<i64>) {
    if let Some(number) = number(members, field).filter(|number| !bounds.contains(number)) {
        let (least, most) = (bounds.start(), bounds.end());
        let wanted = if *most == i64::MAX {
            format!("must be {least} or more")
        } else {
            format!("must be between {least} and {most}")
        };
        walk.wrong(format!("{path}.{field}"), format!("{wanted}, is {number}"));
    }
}

const PORT: std::ops::RangeInclusive<i64> = 1..=65535;

/// The fault of `name` as the name of a port (`IsValidPortName`).
fn port_name_fault(name: &str) -> Option<&'static str> {
    let is_of = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let ends = name.starts_with('-') || name.ends_with('-') || name.contains("--");
    if name.len() > 15 {
        Some("must have at most 15 characters")
    } else if !name.bytes().all(is_of) || ends {
        Some("must be lower-case letters, digits and single `-` between them")
    } else if !name.bytes().any(|byte| byte.is_ascii_lowercase()) {
        Some("must have a letter; a number is written without quotes")
    } else {
        None
    }
}

fn label(walk: &mut Walk, members: &Members, path: &str) {
    let Some(name) = text(members, "name") else { return };
    let holds = format::find(format::LABEL).is_none_or(|format| (format.holds)(name));
    if !holds || name.len() > 63 {
        let words = "must be at most 63 lower-case letters, digits and `-`, with a letter or digit at both ends";
        walk.wrong(format!("{path}.name"), format!("{words}, not {}", quoted(name)));
    }
}

/// Items of `list` whose `field` is that of an earlier one.
fn distinct(walk: &mut Walk, members: &Members, path: &str, list: &str, field: &str) {
    let mut seen = HashSet::new();
    for (index, item) in objects(members, list) {
        if let Some(name) = text(item, field).filter(|name| !seen.insert(*name)) {
            let message = format!("must be unique in the list: {} is there before", quoted(name));
            walk.blame(format!("{path}.{list}[{index}].{field}"), FaultKind::Duplicate, message);
        }
    }
}

// Pods

fn pod_template(walk: &mut Walk, members: &Members, path: &str) {
    of_metadata(walk, members.get("metadata"), &format!("{path}.metadata"));
    if !has(members, "spec") {
        walk.wrong(format!("{path}.spec"), "must be given");
    }
}

/// Adds faults for values of labels that every server rejects.
pub(super) fn of_metadata(walk: &mut Walk, metadata: Option<&Value>, path: &str) {
    let labels = metadata.and_then(|metadata| metadata.get("labels")?.as_object()).into_iter().flatten();
    for (key, value) in labels.filter_map(|(key, value)| Some((key, value.as_str()?))) {
        let holds = format::find(format::LABEL_VALUE).is_none_or(|format| (format.holds)(value));
        if !holds || value.len() > 63 {
            let words = "must be at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends";
            walk.wrong(format!("{path}.labels.{key}"), format!("{words}, not {}", quoted(value)));
        }
    }
}

fn pod_spec(walk: &mut Walk, members: &Members, path: &str) {
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

/// The first minor version in which a container of any kind may have its own `restartPolicy` (KEP-5307, beta).
const RESTART_RULES: u32 = 35;

/// Checks containers against init containers of `members`, a PodSpec or a template.
pub(super) fn of_containers(walk: &mut Walk, members: &Members, path: &str) {
    for (index, item) in objects(members, "initContainers") {
        let path = format!("{path}.initContainers[{index}]");
        if !is_native_sidecar(item) {
            for field in given(item, &["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"]) {
                let message = "must not be set for an init container, unless it has `restartPolicy: Always`";
                walk.wrong(format!("{path}.{field}"), message);
            }
        }
        let other = text(item, "restartPolicy").filter(|policy| *policy != "Always" && walk.minor < RESTART_RULES);
        if let Some(policy) = other {
            walk.wrong(format!("{path}.restartPolicy"), format!("must be `Always`, not {}", quoted(policy)));
        }
    }
    for (index, item) in objects(members, "containers") {
        if has(item, "restartPolicy") && walk.minor < RESTART_RULES {
            let message = format!(
                "must not be set for a container before Kubernetes 1.{RESTART_RULES}; a native sidecar is an item of \
                 `initContainers`"
            );
            walk.wrong(format!("{path}.containers[{index}].restartPolicy"), message);
        }
    }
}

fn container(walk: &mut Walk, members: &Members, path: &str) {
    label(walk, members, path);
    if text(members, "image").is_none() && members.get("image").is_none_or(|image| image.is_null() || image == "") {
        walk.wrong(format!("{path}.image"), "must be given; e.g. `registry.example.com/agent:1.2.3`");
    }
    let policies = ["Always", "OnFailure", "Never"];
    if let Some(policy) = text(members, "restartPolicy").filter(|policy| !policies.contains(policy)) {
        walk.wrong(format!("{path}.restartPolicy"), must_be_one_of(&policies, policy));
    }
    for (index, name) in objects(members, "ports").filter_map(|(index, port)| Some((index, text(port, "name")?))) {
        let earlier = objects(members, "ports").take(index).any(|(_, port)| text(port, "name") == Some(name));
        if earlier {
            let message = format!("must be unique in the container: {} is there before", quoted(name));
            walk.blame(format!("{path}.ports[{index}].name"), FaultKind::Duplicate, message);
        }
    }
    distinct(walk, members, path, "volumeMounts", "mountPath");
    distinct(walk, members, path, "volumeDevices", "devicePath");
    distinct(walk, members, path, "volumeDevices", "name");
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

fn must_be_one_of(choices: &[&str], found: &str) -> String {
    let hint = similar(found, choices.iter().copied());
    let hint = hint.map(|choice| format!("; did you mean `{choice}`?")).unwrap_or_default();
    format!("must be one of {}, not {}{hint}", listed(choices), quoted(found))
}

fn container_port(walk: &mut Walk, members: &Members, path: &str) {
    match number(members, "containerPort") {
        None if !has(members, "containerPort") => {
            walk.wrong(format!("{path}.containerPort"), "must be given; e.g. `8080`");
        }
        _ => within(walk, members, path, "containerPort", PORT),
    }
    // Because 0 means no port.
    within(walk, members, path, "hostPort", 0..=*PORT.end());
    if let Some((name, fault)) = text(members, "name").and_then(|name| Some((name, port_name_fault(name)?))) {
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
    let is_strict = name.bytes().all(is_inner) && !name.starts_with(|first: char| first.is_ascii_digit());
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

fn variable(walk: &mut Walk, members: &Members, path: &str) {
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
        [] if members.values().any(|value| !value.is_null() && !value.is_string()) => {}
        [] => walk.wrong(path, format!("must have one of {}", listed(&known))),
        ref several => walk.wrong(path, format!("must have only one of {}", listed(several))),
    }
}

fn variable_source(walk: &mut Walk, members: &Members, path: &str) {
    const SOURCES: [&str; 5] = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    const PLAIN: [&str; 9] = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    one_source(walk, members, path, &SOURCES);
    field_path(walk, members, path, &PLAIN);
}

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

fn resource_field(walk: &mut Walk, members: &Members, path: &str) {
    const KNOWN: [&str; 6] = [
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
    ];
    let Some(resource) = text(members, "resource") else { return };
    let is_pages = ["limits.hugepages-", "requests.hugepages-"].into_iter().any(|prefix| resource.starts_with(prefix));
    if !KNOWN.contains(&resource) && !is_pages {
        walk.wrong(format!("{path}.resource"), must_be_one_of(&KNOWN, resource));
    }
}

fn variables_source(walk: &mut Walk, members: &Members, path: &str) {
    one_source(walk, members, path, &["configMapRef", "secretRef"]);
    variable_name(walk, members, path, "prefix");
}

// Mounts and volumes

/// A relative path without `..`.
fn below(walk: &mut Walk, members: &Members, path: &str, field: &str) {
    if let Some(found) = text(members, field).filter(|found| found.starts_with('/')) {
        walk.wrong(format!("{path}.{field}"), format!("must be a relative path, not {}", quoted(found)));
    }
    no_steps_back(walk, members, path, field);
}

fn no_steps_back(walk: &mut Walk, members: &Members, path: &str, field: &str) {
    if let Some(found) = text(members, field).filter(|found| found.split('/').any(|step| step == "..")) {
        walk.wrong(format!("{path}.{field}"), format!("must not go up by `..`, as {} does", quoted(found)));
    }
}

fn mount(walk: &mut Walk, members: &Members, path: &str) {
    const PROPAGATIONS: [&str; 3] = ["None", "HostToContainer", "Bidirectional"];
    const RECURSIVE: [&str; 3] = ["Disabled", "IfPossible", "Enabled"];
    below(walk, members, path, "subPath");
    below(walk, members, path, "subPathExpr");
    if text(members, "subPath").is_some() && text(members, "subPathExpr").is_some() {
        walk.wrong(format!("{path}.subPathExpr"), "must be left out beside `subPath`");
    }
    for (field, choices) in [("mountPropagation", PROPAGATIONS), ("recursiveReadOnly", RECURSIVE)] {
        if let Some(found) = text(members, field).filter(|found| !choices.contains(found)) {
            walk.wrong(format!("{path}.{field}"), must_be_one_of(&choices, found));
        }
    }
    let is_recursive = text(members, "recursiveReadOnly").is_some_and(|found| found != "Disabled");
    if is_recursive && members.get("readOnly") != Some(&Value::Bool(true)) {
        walk.wrong(format!("{path}.recursiveReadOnly"), "needs `readOnly: true`");
    }
    if is_recursive && text(members, "mountPropagation").is_some_and(|found| found != "None") {
        walk.wrong(format!("{path}.recursiveReadOnly"), "needs `mountPropagation: None`");
    }
}

fn device(walk: &mut Walk, members: &Members, path: &str) {
    no_steps_back(walk, members, path, "devicePath");
}

fn volume(walk: &mut Walk, members: &Members, path: &str) {
    label(walk, members, path);
    // None is fine, because the server makes it an `emptyDir`.
    let sources: Vec<_> =
        members.iter().filter(|(name, value)| *name != "name" && value.is_object()).map(|(name, _)| &**name).collect();
    let known: Vec<_> = super::table::fields("Volume").iter().map(|field| field.name).collect();
    let sources: Vec<_> = sources.into_iter().filter(|name| known.contains(name)).collect();
    if sources.len() > 1 {
        walk.wrong(path, format!("must have one source, has {}", listed(&sources)));
    }
}

fn projection(walk: &mut Walk, members: &Members, path: &str) {
    let sources: Vec<_> = members.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| &**name).collect();
    if sources.len() > 1 {
        walk.wrong(path, format!("must have one source, has {}", listed(&sources)));
    }
    for source in ["configMap", "secret"] {
        let of = members.get(source).and_then(Value::as_object);
        if of.is_some_and(|of| text(of, "name").is_none()) {
            walk.wrong(format!("{path}.{source}.name"), "must be given");
        }
    }
}

fn host_path(walk: &mut Walk, members: &Members, path: &str) {
    no_steps_back(walk, members, path, "path");
}

const MODE: std::ops::RangeInclusive<i64> = 0..=0o777;

fn mode(walk: &mut Walk, members: &Members, path: &str, field: &str) {
    if let Some(found) = number(members, field).filter(|found| !MODE.contains(found)) {
        let message = format!("must be between 0 and 0777 (in JSON, and quoted nowhere: 0 to 511), is {found}");
        walk.wrong(format!("{path}.{field}"), message);
    }
}

fn modes(walk: &mut Walk, members: &Members, path: &str) {
    mode(walk, members, path, "defaultMode");
}

fn secret_volume(walk: &mut Walk, members: &Members, path: &str) {
    if text(members, "secretName").is_none() && !walk.is_meant("secretName", path) {
        walk.wrong(format!("{path}.secretName"), "must be given");
    }
    modes(walk, members, path);
}

fn empty_dir(walk: &mut Walk, members: &Members, path: &str) {
    const MEDIA: [&str; 2] = ["Memory", "HugePages"];
    let medium = text(members, "medium");
    if let Some(medium) = medium.filter(|medium| !MEDIA.contains(medium) && !medium.starts_with("HugePages-")) {
        walk.wrong(format!("{path}.medium"), must_be_one_of(&MEDIA, medium));
    }
    if amount(members.get("sizeLimit")).is_some_and(|limit| limit < 0) {
        walk.wrong(format!("{path}.sizeLimit"), "must not be negative");
    }
}

fn file(walk: &mut Walk, members: &Members, path: &str) {
    mode(walk, members, path, "mode");
    below(walk, members, path, "path");
}

fn downward_file(walk: &mut Walk, members: &Members, path: &str) {
    const PLAIN: [&str; 5] =
        ["metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"];
    file(walk, members, path);
    one_source(walk, members, path, &["fieldRef", "resourceFieldRef"]);
    field_path(walk, members, path, &PLAIN);
    let resource = members.get("resourceFieldRef").and_then(Value::as_object);
    if resource.is_some_and(|resource| text(resource, "containerName").is_none()) {
        walk.wrong(format!("{path}.resourceFieldRef.containerName"), "must be given");
    }
}

fn token(walk: &mut Walk, members: &Members, path: &str) {
    within(walk, members, path, "expirationSeconds", 600..=1 << 32);
    below(walk, members, path, "path");
}

// Probes and hooks

fn handler(walk: &mut Walk, members: &Members, path: &str, kinds: &[&'static str]) {
    match given(members, kinds)[..] {
        [_] => {}
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

fn probe(walk: &mut Walk, members: &Members, path: &str) {
    handler(walk, members, path, &["exec", "httpGet", "tcpSocket", "grpc"]);
    let counts = ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"];
    for field in counts {
        within(walk, members, path, field, 0..=i64::MAX);
    }
    within(walk, members, path, "terminationGracePeriodSeconds", 1..=i64::MAX);
}

fn lifecycle_handler(walk: &mut Walk, members: &Members, path: &str) {
    handler(walk, members, path, &["exec", "httpGet", "sleep", "tcpSocket"]);
}

/// The number or name of a port.
fn port(walk: &mut Walk, members: &Members, path: &str) {
    let at = format!("{path}.port");
    match members.get("port") {
        None | Some(Value::Null) => walk.wrong(at, "must be given; e.g. `8080`"),
        Some(Value::String(name)) => {
            if let Some(fault) = port_name_fault(name) {
                walk.wrong(at, format!("{fault}, not {}", quoted(name)));
            } else if name.is_empty() {
                walk.wrong(at, "must be given; e.g. `8080`");
            }
        }
        Some(_) => within(walk, members, path, "port", PORT),
    }
}

fn http_get(walk: &mut Walk, members: &Members, path: &str) {
    port(walk, members, path);
}

// Resources and security

fn amount(value: Option<&Value>) -> Option<i128> {
    match value? {
        Value::String(text) => quantity::nanos(text),
        Value::Number(number) => quantity::nanos(&number.to_string()),
        _ => None,
    }
}

/// A quantity as in messages.
fn written(value: &Value) -> String {
    value.as_str().map_or_else(|| format!("`{value}`"), quoted)
}

/// True if and only if Kubernetes itself counts the resource, in fractions and with overcommitment.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn resources(walk: &mut Walk, members: &Members, path: &str) {
    const STANDARD: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
    let of = |list: &str| members.get(list).and_then(Value::as_object);
    for list in ["requests", "limits"] {
        for (name, value) in of(list).into_iter().flatten() {
            let at = format!("{path}.{list}.{name}");
            let is_pages = name.starts_with("hugepages-");
            if !name.contains('/') && !STANDARD.contains(&name.as_str()) && !is_pages {
                let hint = match name.as_str() {
                    "mem" | "ram" => Some("memory"),
                    "cpus" | "core" | "cores" => Some("cpu"),
                    "storage" => Some("ephemeral-storage"),
                    name => similar(name, STANDARD.into_iter()),
                };
                let hint = hint.map(|known| format!("; did you mean `{known}`?")).unwrap_or_default();
                let message =
                    "there is no such resource for a container; others have a domain, as in `example.com/gpu`";
                walk.wrong(at, format!("{message}{hint}"));
                continue;
            }
            let Some(amount) = amount(Some(value)) else { continue };
            if amount < 0 {
                walk.wrong(at, "must not be negative");
            } else if !is_native(name) && amount % 1_000_000_000 != 0 {
                walk.wrong(at, format!("must be a whole number, is {}", written(value)));
            }
        }
    }
    for (name, request) in of("requests").into_iter().flatten() {
        let limit = of("limits").and_then(|limits| limits.get(name));
        let (wanted, most) = (amount(Some(request)), amount(limit));
        let can_be_less = is_native(name) && !name.starts_with("hugepages-");
        if let (Some(wanted), Some(most), Some(limit)) = (wanted, most, limit) {
            let (request, limit) = (written(request), written(limit));
            if wanted > most {
                let message = format!("must be at most the limit, {limit}, is {request}");
                walk.wrong(format!("{path}.requests.{name}"), message);
            } else if wanted != most && !can_be_less {
                let message = format!("must be the limit, {limit}, since it cannot be shared, is {request}");
                walk.wrong(format!("{path}.requests.{name}"), message);
            }
        } else if wanted.is_some() && limit.is_none() && !can_be_less {
            walk.wrong(format!("{path}.limits.{name}"), format!("must be given, as `requests.{name}` is"));
        }
    }
}

const MAX_ID: i64 = i32::MAX as i64;

fn security_context(walk: &mut Walk, members: &Members, path: &str) {
    within(walk, members, path, "runAsUser", 0..=MAX_ID);
    within(walk, members, path, "runAsGroup", 0..=MAX_ID);
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

fn profile(walk: &mut Walk, members: &Members, path: &str) {
    let is_local = text(members, "type") == Some("Localhost");
    match (is_local, text(members, "localhostProfile")) {
        (true, None) => walk.wrong(format!("{path}.localhostProfile"), "must be given, as `type` is `Localhost`"),
        (false, Some(_)) => {
            walk.wrong(format!("{path}.localhostProfile"), "must be left out, unless `type` is `Localhost`");
        }
        _ => {}
    }
}
