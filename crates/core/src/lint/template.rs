//! Findings in a template: content that may break later, or works differently than it looks.

use super::{Context, Note};
use crate::api::code::Code;
use crate::api::pod_schema::is_native_sidecar;
use crate::api::v1alpha1::{EngineChoice, Jobs, NativeSidecars, RawObject, SidecarPolicySpec, Template};
use crate::inject::references;
use crate::policy::Policy;
use crate::qos;
use crate::workload::Workload;
use serde_json::Value;
use std::collections::BTreeMap;

/// The containers that run as long as the pod.
pub(super) fn staying(template: &Template) -> impl Iterator<Item = (String, &RawObject)> {
    let stays = |path: &str, container: &RawObject| {
        path.starts_with("spec.template.containers") || is_native_sidecar(container)
    };
    template.all_containers().filter(move |(path, container)| stays(path, container))
}

fn text<'a>(object: &'a RawObject, field: &str) -> Option<&'a str> {
    object.get(field)?.as_str()
}

/// Images whose content may change.
pub(super) fn images(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let containers = spec.template.iter().flat_map(Template::all_containers);
    let note = |(path, container): (String, &RawObject)| {
        let image = text(container, "image").filter(|image| !image.is_empty())?;
        let what = floats(image)?;
        let name = image.strip_suffix(":latest").unwrap_or(image);
        let message = format!("is `{image}`, {what}; name a version, e.g. `{name}:1.2.3`, or a digest");
        Some(Note::new(Code::ImageNotPinned, format!("{path}.image"), message))
    };
    containers.filter_map(note).collect()
}

/// The reason why the content of `image` may change.
fn floats(image: &str) -> Option<&'static str> {
    if image.contains('@') {
        return None;
    }
    // After the last slash, because a colon before it belongs to the registry's port.
    let name = image.rsplit_once('/').map_or(image, |(_, name)| name);
    match name.split_once(':') {
        None => Some("without a tag, which means `latest`"),
        Some((_, "latest")) => Some("which changes with each push"),
        Some(_) => None,
    }
}

/// Containers without requests.
pub(super) fn requests(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let note = |(path, container): (String, &RawObject)| {
        let resources = container.get("resources").unwrap_or(&Value::Null);
        // A limit counts, because the server derives a missing request from it.
        let is_there = |name: &str| {
            ["requests", "limits"].into_iter().any(|field| resources[field].get(name).is_some_and(|is| !is.is_null()))
        };
        let missing: Vec<_> = ["cpu", "memory"].into_iter().filter(|name| !is_there(name)).collect();
        let example = match missing[..] {
            [] => return None,
            ["cpu"] => "{requests: {cpu: 50m}}",
            ["memory"] => "{requests: {memory: 64Mi}}",
            _ => "{requests: {cpu: 50m, memory: 64Mi}}",
        };
        let message = format!("requests no {}; e.g. `{example}`", missing.join(" and no "));
        Some(Note::new(Code::RequestsMissing, format!("{path}.resources"), message))
    };
    spec.template.iter().flat_map(staying).filter_map(note).collect()
}

/// Containers of `spec` that keep pods from the class Guaranteed on Kubernetes 1.`minor`: the field, and what it lacks.
pub(super) fn shortfalls(spec: &SidecarPolicySpec, minor: Option<u32>) -> Vec<(String, String)> {
    let counts = |path: &str| path.starts_with("spec.template.containers") || qos::counts_init_containers(minor);
    let containers = spec.template.iter().flat_map(Template::all_containers).filter(|(path, _)| counts(path));
    let shortfall =
        |(path, container): (String, &RawObject)| Some((format!("{path}.resources"), qos::shortfall(container)?));
    containers.filter_map(shortfall).collect()
}

/// Deprecated annotations of pods, as in the server's warnings (`pkg/api/pod/warnings.go` of Kubernetes 1.36): the key, or
/// the prefix of keys if it ends in `/`; the minor version that deprecates or ignores it; what to do instead. The server
/// drops those of init containers from 1.8 on (`dropInitContainerAnnotations`).
const OLD_ANNOTATIONS: [(&str, u32, &str); 8] = [
    ("seccomp.security.alpha.kubernetes.io/pod", 19, SECCOMP),
    ("container.seccomp.security.alpha.kubernetes.io/", 19, SECCOMP),
    (
        "container.apparmor.security.beta.kubernetes.io/",
        30,
        "is deprecated since Kubernetes 1.30; set `securityContext.appArmorProfile` of the container",
    ),
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        16,
        "is ignored from Kubernetes 1.16; workloads set `priorityClassName`",
    ),
    ("security.alpha.kubernetes.io/sysctls", 11, SYSCTLS),
    ("security.alpha.kubernetes.io/unsafe-sysctls", 11, SYSCTLS),
    ("pod.alpha.kubernetes.io/init-containers", 8, INIT_CONTAINERS),
    ("pod.beta.kubernetes.io/init-containers", 8, INIT_CONTAINERS),
];
const SECCOMP: &str =
    "is deprecated since Kubernetes 1.19 and ignored from 1.27; set `securityContext.seccompProfile` of the container";
const SYSCTLS: &str = "is ignored from Kubernetes 1.11; workloads set `securityContext.sysctls`";
const INIT_CONTAINERS: &str = "is ignored from Kubernetes 1.8; use `spec.template.initContainers`";

/// Sources of volumes, from the same file: the field, the minor version that deprecates it, how it ends, and what to use.
const OLD_VOLUMES: [(&str, u32, &str, &str); 9] = [
    ("gitRepo", 11, "off from 1.33", "an `emptyDir` that an init container clones into"),
    ("photonPersistentDisk", 11, "does not work from 1.16", "a CSI driver"),
    ("scaleIO", 16, "does not work from 1.22", "a CSI driver"),
    ("flocker", 22, "does not work from 1.25", "a CSI driver"),
    ("quobyte", 22, "does not work from 1.25", "a CSI driver"),
    ("storageos", 22, "does not work from 1.25", "a CSI driver"),
    ("glusterfs", 25, "does not work from 1.26", "a CSI driver"),
    ("cephfs", 28, "does not work from 1.31", "a CSI driver"),
    ("rbd", 28, "does not work from 1.31", "a CSI driver"),
];

/// Deprecated content, for the given version or the newest one.
pub(super) fn deprecated(spec: &SidecarPolicySpec, context: &Context) -> Vec<Note> {
    let Some(template) = &spec.template else { return Vec::new() };
    let mut notes = Vec::new();
    for key in template.metadata.iter().flat_map(|metadata| metadata.annotations.keys()) {
        let is_it = |name: &str| key == name || name.ends_with('/') && key.starts_with(name);
        let old = OLD_ANNOTATIONS.iter().find(|(name, since, _)| context.may_be_at_least(*since) && is_it(name));
        if let Some((_, _, message)) = old {
            notes.push(Note::new(Code::Deprecated, format!("spec.template.metadata.annotations.{key}"), *message));
        }
    }
    for (index, volume) in template.volumes.iter().enumerate() {
        for field in volume.keys() {
            let old = OLD_VOLUMES.iter().find(|(name, since, ..)| context.may_be_at_least(*since) && field == name);
            if let Some((_, since, end, instead)) = old {
                let message = format!("is deprecated since Kubernetes 1.{since} and {end}; use {instead}");
                notes.push(Note::new(Code::Deprecated, format!("spec.template.volumes[{index}].{field}"), message));
            }
        }
    }
    for (index, volume) in template.volumes.iter().enumerate() {
        let is_unchecked = |path: &RawObject| text(path, "type").is_none_or(str::is_empty);
        if volume.get("hostPath").and_then(Value::as_object).is_some_and(is_unchecked) {
            let message = "has no `type`: nothing is checked before it is mounted; write e.g. `type: Directory` or \
                           `type: Socket`";
            notes.push(Note::new(Code::Deprecated, format!("spec.template.volumes[{index}].hostPath"), message));
        }
    }
    notes
}

/// The identity of a port: number and protocol, or name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Port {
    Number(u64, String),
    Name(String),
}

impl Port {
    /// The code for two containers that share it.
    fn code(&self) -> Code {
        match self {
            Port::Number(..) => Code::SharedContainerPort,
            Port::Name(_) => Code::SharedPortName,
        }
    }

    fn consequence(&self) -> &'static str {
        match self {
            Port::Number(..) => "only one of them can listen on it",
            Port::Name(_) => "what names the port, as a Service does, goes to the first of them",
        }
    }
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Port::Number(number, protocol) => write!(f, "{number}/{protocol}"),
            Port::Name(name) => write!(f, "`{name}`"),
        }
    }
}

/// A port with its field and its container.
pub(super) struct Named {
    pub(super) port: Port,
    pub(super) field: String,
    pub(super) container: String,
}

impl Named {
    /// The finding if the container `other` also has the port.
    pub(super) fn shared_with(self, other: &str) -> Note {
        let Self { port, field, .. } = self;
        Note::new(port.code(), field, format!("is {port}, as in {other}: {}", port.consequence()))
    }
}

/// The ports of the containers that run as long as the pod does.
pub(super) fn named_ports(template: &Template) -> Vec<Named> {
    staying(template).flat_map(|(path, container)| ports_of(&path, container)).collect()
}

fn ports_of(path: &str, container: &RawObject) -> Vec<Named> {
    let ports = container.get("ports").and_then(Value::as_array).into_iter().flatten();
    let of = text(container, "name").unwrap_or_default();
    let named = ports.enumerate().flat_map(|(index, port)| {
        let named = |port, field: &str| Named {
            port,
            field: format!("{path}.ports[{index}].{field}"),
            container: of.to_owned(),
        };
        let number = port.get("containerPort").and_then(Value::as_u64).map(|number| {
            let protocol = port["protocol"].as_str().filter(|is| !is.is_empty()).unwrap_or("TCP").to_owned();
            named(Port::Number(number, protocol), "containerPort")
        });
        let name = port["name"].as_str().filter(|name| !name.is_empty());
        let name = name.map(|name| named(Port::Name(name.to_owned()), "name"));
        number.into_iter().chain(name)
    });
    named.collect()
}

/// The ports of `template` that another container of `injected` also uses: code, path in the policy, message.
/// `injected` has the template. Kubernetes allows shared ports, so this is no conflict.
pub fn shared_ports(template: &Template, injected: &Workload) -> Vec<(Code, String, String)> {
    let list = |field| injected.pod_spec().and_then(|spec| spec.get(field)?.as_array()).into_iter().flatten();
    let natives = list("initContainers").filter_map(Value::as_object).filter(|container| is_native_sidecar(container));
    let all = list("containers").filter_map(Value::as_object).chain(natives);
    let theirs: Vec<_> = all.flat_map(|container| ports_of("", container)).collect();
    let shared = named_ports(template).into_iter().filter_map(|own| {
        let other = theirs.iter().find(|other| other.port == own.port && other.container != own.container)?;
        let Note { code, field, message } = own.shared_with(&format!("container `{}`", other.container));
        Some((code, field, message))
    });
    shared.collect()
}

/// The references between variables of `injected` that the kubelet does not expand, because the variable comes later.
/// One of the two variables is from `policy`, whose template `injected` has.
pub fn late_references(policy: &Policy, injected: &Workload) -> Vec<String> {
    let Some(marker) = policy.marker(injected) else { return Vec::new() };
    let mut found = Vec::new();
    for list in ["initContainers", "containers"] {
        let containers = injected.pod_spec().and_then(|spec| spec.get(list)?.as_array()).into_iter().flatten();
        for container in containers.filter_map(Value::as_object) {
            let name = text(container, "name").unwrap_or_default();
            let all: Vec<&RawObject> = container
                .get("env")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_object)
                .collect();
            let is_ours = |variable: &str| {
                let end = format!("/spec/{list}/{name}/env/{}", variable.replace('~', "~0").replace('/', "~1"));
                marker.added.iter().any(|pointer| pointer.ends_with(&end))
            };
            for (index, variable) in all.iter().enumerate() {
                let own = text(variable, "name").unwrap_or_default();
                for wanted in references::of(variable) {
                    let is_it = |other: &&&RawObject| text(other, "name") == Some(wanted);
                    let is_late = all[index + 1..].iter().any(|other| is_it(&other))
                        && !all[..index].iter().any(|other| is_it(&other));
                    if is_late && (is_ours(own) || is_ours(wanted)) {
                        found.push(format!(
                            "variable `{own}` of container `{name}` refers to `{wanted}`, which comes after it: `$({wanted})` stays as it is written"
                        ));
                    }
                }
            }
        }
    }
    found
}

/// The variables with `merge`, which replace a value that only the image has.
pub(super) fn merged(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let variables = spec.template.iter().flat_map(|template| template.env.iter().enumerate());
    let merged = variables.filter(|(_, item)| item.get("merge").is_some_and(|merge| !merge.is_null()));
    let note = |(index, item): (usize, &RawObject)| {
        let name = text(item, "name").unwrap_or_default();
        let message = format!(
            "joins a `value` in the manifest. Where only the image sets `{name}`, the container loses that value"
        );
        Note::new(Code::MergedOverImage, format!("spec.template.env[{index}]"), message)
    };
    merged.map(note).collect()
}

/// Two containers of the template with one port.
pub(super) fn ports(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let mut first: BTreeMap<Port, String> = BTreeMap::new();
    let mut notes = Vec::new();
    for named in spec.template.iter().flat_map(named_ports) {
        match first.get(&named.port) {
            Some(other) if *other != named.container => notes.push(named.shared_with(&format!("container `{other}`"))),
            Some(_) => {}
            None => drop(first.insert(named.port, named.container)),
        }
    }
    notes
}

/// A field without effect beside another one.
struct Idle {
    field: &'static str,
    because: &'static str,
    is: fn(&SidecarPolicySpec) -> bool,
}

const IDLE: [Idle; 5] = [
    Idle {
        field: "spec.template.appContainers",
        because: "chooses among containers for `env`, `envFrom` and `volumeMounts`, of which there are none; add one, or remove it",
        is: |spec| {
            spec.template.as_ref().is_some_and(|template| !template.app_containers.is_empty() && !adds_within(template))
        },
    },
    Idle {
        field: "spec.template.includeInitContainers",
        because: "widens `env`, `envFrom` and `volumeMounts`, of which there are none; add one, or remove it",
        is: |spec| {
            spec.template.as_ref().is_some_and(|template| template.include_init_containers && !adds_within(template))
        },
    },
    Idle {
        field: "spec.jobs",
        because: "is asked only where `nativeSidecars` is `ForJobs`; remove one of both",
        is: |spec| spec.jobs != Jobs::default() && spec.native_sidecars != NativeSidecars::ForJobs,
    },
    Idle {
        field: "spec.initializerName",
        because: "is used by the engine `Initializer` only, and `spec.engine` is another one; remove it",
        is: |spec| {
            let is_other = matches!(spec.engine, EngineChoice::Webhook | EngineChoice::MutatingAdmissionPolicy);
            spec.initializer_name.is_some() && is_other
        },
    },
    Idle {
        field: "spec.updateStrategy.paused",
        because: "pauses a rollout, and `type: OnDelete` has none; remove it, or set `type: RollingUpdate`",
        is: |spec| spec.is_paused() && !spec.rolls(),
    },
];

fn adds_within(template: &Template) -> bool {
    [&template.env, &template.env_from, &template.volume_mounts].into_iter().any(|list| !list.is_empty())
}

pub(super) fn without_effect(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let idle = IDLE.iter().filter(|idle| (idle.is)(spec));
    idle.map(|idle| Note::new(Code::NoEffect, idle.field, idle.because)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_pinned_by_a_tag_that_is_not_latest_or_by_a_digest() {
        for (image, expected) in [
            ("nginx", true),
            ("nginx:latest", true),
            ("registry:5000/nginx", true),
            ("registry:5000/a/nginx:latest", true),
            ("nginx:1.27", false),
            ("registry:5000/nginx:1", false),
            ("nginx@sha256:0123", false),
            ("nginx:latest@sha256:0123", false),
        ] {
            assert_eq!(floats(image).is_some(), expected, "{image}");
        }
    }
}
