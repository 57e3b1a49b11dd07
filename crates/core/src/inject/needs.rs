//! The needs of a template: conditions on the pod that receives it, computed once from the template.
//!
//! A need is a rule of the API server's validation, or of the kubelet, about a field of the template together with a field
//! of the workload. One is our own: a template's container gets no path of the node from the workload.
//! `docs/admission.md` lists those rules. A template without such fields has no needs, and costs nothing.

use super::tables::{ANNOTATIONS, INIT_CONTAINERS, INNER, LISTS, MAPS, has_volume};
use super::value::{amounts, at, is_empty, objects, text};
use super::{Template, marker, references};
use crate::api::code::Code;
use crate::api::pod_schema::is_native_sidecar;
use crate::api::pod_security::{self, Demand};
use crate::api::v1alpha1::{self, Place, RawObject};
use json_patch::jsonptr::Token;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The steps to a field.
pub(crate) type FieldPath = &'static [&'static str];

/// All needs of one template.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Needs {
    pub(crate) list: Vec<Need>,
    /// The requests of its containers, in their order: init containers first.
    pub(crate) usage: Vec<Usage>,
    /// Whether its containers are HostProcess containers of Windows, with the name of one; none if the pod decides.
    /// Each answer appears once.
    pub(crate) host_process: Vec<(Option<bool>, String)>,
    /// The controls of Pod Security that a Namespace may enforce against it.
    pub(crate) security: Vec<Demand>,
    /// The size of its annotations.
    pub(crate) weight: Weight,
}

/// A condition on the pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Need {
    /// The code of the conflict if the condition is false.
    pub(crate) code: Code,
    /// The field of the template that has the need, as the beginning of a sentence.
    pub(crate) who: String,
    pub(crate) want: Want,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Want {
    /// A field of the pod's `spec`.
    Field(FieldPath, Test),
    /// A field of the pod passes its test, or another one does.
    Either([(FieldPath, Test); 2]),
    /// A container or init container of that name.
    Container(String),
    /// A field of that container, if it is there; of the pod's `spec`, where the container does not have it.
    FieldOf { container: String, path: FieldPath, inherits: bool, allowed: Vec<String> },
    /// An annotation of the pod that has one of these values, if it is there.
    Annotation { key: String, allowed: Vec<String> },
    /// A resource claim of that name.
    Claim(String),
    /// A volume of that name, if the workload has it, is of that kind.
    Volume(String, VolumeKind),
    /// The workload's selector admits the label, unless the pod has the key already.
    Label { key: String, value: String },
    /// The label is none that Kubernetes itself gives the pods of a Job, unless the pod has it already.
    NotOfJobs { key: String, value: String },
    /// No pod at all: the template contradicts itself. The text ends the sentence.
    NoPod(&'static str),
}

/// The allowed values of a field of the pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Test {
    /// One of these texts; `""` stands for absence.
    OneOf(Vec<String>),
    NoneOf(Vec<String>),
    /// The given value.
    Is(bool),
    /// Absent, or the other value.
    IsNot(bool),
    /// At least the first number, where absence is the second.
    AtLeast(i64, i64),
    /// Absent, or another number than 0.
    NotZero,
    /// Absent, or another text, in upper or lower case.
    Unlike(&'static str),
}

/// The kind of a volume of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeKind {
    /// A claim: it can be a device.
    Claim,
    /// An empty directory: a container can read variables from its files.
    EmptyDir,
    /// Anything but an image.
    NoImage,
    /// Anything but a path of the node.
    NoHostPath,
}

/// The resources of one container of a template, in billionths.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Usage {
    pub(crate) name: String,
    pub(crate) turn: Turn,
    /// The requests, or the limit of a resource without request, as on the server.
    pub(crate) requests: BTreeMap<String, i128>,
    pub(crate) limits: BTreeMap<String, i128>,
}

/// The phase in which a container runs. Requests of containers that run at the same time add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// A container.
    Main,
    /// A native sidecar, before the user's init containers.
    Native,
    /// An init container that ends, on that side of the user's.
    Passing(Place),
}

/// The largest size of a template's annotations on the pod, with its marker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Weight {
    /// Bytes in any case.
    fixed: usize,
    /// Pointers in any case. Each begins with the pointer of the pod.
    pointers: usize,
    /// Bytes for each container that the template may reach into.
    each: usize,
    /// Pointers for each of those.
    pointers_each: usize,
}

/// The limit for all annotations of one pod together, in bytes of keys and values.
pub(crate) const MAX_ANNOTATIONS: usize = 256 << 10;
/// The longest name of a container.
const MAX_NAME: usize = 63;
/// The bytes around a pointer in a list: two quotes and a comma.
const AROUND: usize = 3;

/// The labels that Kubernetes gives the pods of a Job.
const OF_JOBS: [&str; 4] =
    ["batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name"];
/// The default of `terminationGracePeriodSeconds`.
const GRACE: i64 = 30;
/// The fields of a container's profile: its type, and its file.
const SECCOMP_PROFILE: [FieldPath; 2] =
    [&["securityContext", "seccompProfile", "type"], &["securityContext", "seccompProfile", "localhostProfile"]];
/// The same for AppArmor.
const APP_ARMOR_PROFILE: [FieldPath; 2] =
    [&["securityContext", "appArmorProfile", "type"], &["securityContext", "appArmorProfile", "localhostProfile"]];
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_OF_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
/// The signals that a container of Windows may be stopped by.
const WINDOWS_SIGNALS: [&str; 2] = ["SIGKILL", "SIGTERM"];
/// Fields of a container's `securityContext` that a pod of Windows cannot have.
const NOT_ON_WINDOWS: [&str; 10] = [
    "allowPrivilegeEscalation",
    "appArmorProfile",
    "capabilities",
    "privileged",
    "procMount",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsUser",
    "seLinuxOptions",
    "seccompProfile",
];

/// The user of Windows that counts as root.
const ADMINISTRATOR: &str = "ContainerAdministrator";
pub(crate) const RUN_AS_NON_ROOT: FieldPath = &["securityContext", "runAsNonRoot"];

/// A field that names the user of a container, and the test that the user is not root. The kubelet of Linux reads the
/// first, that of Windows the second (`verifyRunAsNonRoot`).
pub(crate) const USERS: [(FieldPath, Test); 2] = [
    (&["securityContext", "runAsUser"], Test::NotZero),
    (&["securityContext", "windowsOptions", "runAsUserName"], Test::Unlike(ADMINISTRATOR)),
];

impl Test {
    /// Whether `value` passes; none stands for absence.
    pub(crate) fn holds(&self, value: Option<&Value>) -> bool {
        let text = value.map_or("", |value| value.as_str().unwrap_or("\0"));
        match self {
            Self::OneOf(texts) => texts.iter().any(|own| own == text),
            Self::NoneOf(texts) => !texts.iter().any(|own| own == text),
            Self::Is(wanted) => value.is_some_and(|value| value == wanted),
            Self::IsNot(unwanted) => value.is_none_or(|value| value != unwanted),
            Self::AtLeast(least, default) => value.and_then(Value::as_i64).unwrap_or(*default) >= *least,
            Self::NotZero => value.and_then(Value::as_f64) != Some(0.0),
            Self::Unlike(other) => !text.eq_ignore_ascii_case(other),
        }
    }
}

impl Needs {
    /// The needs of the template `spec`, whose init containers go to `place`.
    pub(super) fn of(spec: &v1alpha1::Template, place: Place, marker_key: &str) -> Self {
        let mut needs =
            Self { security: pod_security::demands(spec), weight: Weight::of(spec, marker_key), ..Self::default() };
        needs.metadata(spec);
        for item in &spec.init_containers {
            let who = format!("init container `{}`", text(item, "name"));
            needs.container(item, &who, spec);
            needs.security_context(item, &who);
            let turn = if is_native_sidecar(item) { Turn::Native } else { Turn::Passing(place) };
            needs.usage.extend(Usage::of(item, turn));
        }
        for item in &spec.containers {
            let who = format!("container `{}`", text(item, "name"));
            needs.container(item, &who, spec);
            needs.host_ports(item, &who);
            needs.security_context(item, &who);
            needs.usage.extend(Usage::of(item, Turn::Main));
        }
        if spec.pod.as_ref().is_some_and(|pod| pod.share_process_namespace == Some(true)) {
            let who = || "`pod.shareProcessNamespace` of the template".to_owned();
            needs.field(who(), &["hostPID"], Test::IsNot(true));
            needs.field(who(), &["os", "name"], Test::NoneOf(vec!["windows".to_owned()]));
        }
        needs.files("the template", &spec.env, spec);
        for mount in &spec.volume_mounts {
            needs.mount("the template", mount, spec);
        }
        needs
    }

    /// The same where the marker has the `entries` of values, too.
    pub(super) fn with_values(mut self, entries: &[String]) -> Self {
        self.weight.fixed += entries.iter().map(|entry| written(entry) + AROUND).sum::<usize>();
        self
    }

    /// The needs of the same template with its containers as native sidecars.
    pub(super) fn as_native(&self) -> Self {
        let mut needs = self.clone();
        for usage in needs.usage.iter_mut().filter(|usage| usage.turn == Turn::Main) {
            usage.turn = Turn::Native;
        }
        needs
    }

    fn ask(&mut self, code: Code, who: impl Into<String>, want: Want) {
        let need = Need { code, who: who.into(), want };
        if !self.list.iter().any(|other| other.want == need.want) {
            self.list.push(need);
        }
    }

    /// Adds a need for a field of the pod.
    fn field(&mut self, who: String, path: FieldPath, test: Test) {
        self.ask(Code::PodFieldMismatch, who, Want::Field(path, test));
    }

    fn metadata(&mut self, spec: &v1alpha1::Template) {
        let Some(metadata) = &spec.metadata else { return };
        for (key, value) in &metadata.labels {
            let who = format!("label `{key}` of the template");
            let (key, value) = (key.clone(), value.clone());
            if OF_JOBS.contains(&key.as_str()) {
                let want = Want::NotOfJobs { key: key.clone(), value: value.clone() };
                self.ask(Code::SelectorMismatch, who.clone(), want);
            }
            self.ask(Code::SelectorMismatch, who, Want::Label { key, value });
        }
        for (key, value) in &metadata.annotations {
            let who = format!("annotation `{key}` of the template");
            if key == SECCOMP_OF_POD {
                let (kind, localhost) = profile(value);
                self.field(who.clone(), SECCOMP_PROFILE[0], one_of(&kind));
                if let Some(file) = localhost {
                    self.field(who, SECCOMP_PROFILE[1], Test::OneOf(vec![String::new(), file.to_owned()]));
                }
            } else if let Some(name) = key.strip_prefix(SECCOMP_OF_CONTAINER) {
                self.profile_of(&who, name, SECCOMP_PROFILE, value, spec);
            } else if let Some(name) = key.strip_prefix(APP_ARMOR) {
                if container(spec, name).is_none() {
                    self.ask(Code::PodFieldMismatch, who.clone(), Want::Container(name.to_owned()));
                }
                self.profile_of(&who, name, APP_ARMOR_PROFILE, value, spec);
            }
        }
    }

    /// Adds the need that the container `name` has the profile of the annotation `value`, or none.
    fn profile_of(&mut self, who: &str, name: &str, fields: [FieldPath; 2], value: &str, spec: &v1alpha1::Template) {
        let (kinds, file) = profile(value);
        let is_app_armor = fields == APP_ARMOR_PROFILE;
        let rows = fields.into_iter().zip([kinds, file.into_iter().map(str::to_owned).collect()]);
        let own = container(spec, name);
        for (path, allowed) in rows.filter(|(_, allowed)| !allowed.is_empty()) {
            match own {
                // No need, because the template's own container sets the profile.
                Some(item) if at(item, &path[..2]).is_some() => {}
                Some(_) if is_app_armor => self.field(who.to_owned(), path, one_of(&allowed)),
                Some(_) => {}
                None => {
                    let allowed = allowed.into_iter().chain([String::new()]).collect();
                    let want = Want::FieldOf { container: name.to_owned(), path, inherits: is_app_armor, allowed };
                    self.ask(Code::PodFieldMismatch, who, want);
                }
            }
        }
    }

    fn container(&mut self, item: &RawObject, who: &str, spec: &v1alpha1::Template) {
        let told = |field: &str| format!("`{field}` of the template's {who}");
        for claim in objects(item, &["resources", "claims"]) {
            self.ask(Code::ClaimMissing, told("resources.claims"), Want::Claim(text(claim, "name").to_owned()));
        }
        for device in objects(item, &["volumeDevices"]) {
            self.field(told("volumeDevices"), &["hostUsers"], Test::IsNot(false));
            self.volume(told("volumeDevices"), text(device, "name"), VolumeKind::Claim, spec);
        }
        for mount in objects(item, &["volumeMounts"]) {
            self.mount(&format!("the template's {who}"), mount, spec);
            if let Some(variable) = unset(mount, |list| objects(item, &[list]).collect()).first() {
                let but = "names a variable that the container does not have";
                let who = format!("`subPathExpr` with `$({variable})` of the template's {who}");
                self.ask(Code::NotStartable, who, Want::NoPod(but));
            }
            // A path of the node in the template takes `--allow-in-templates=host-paths`. One of the workload would give the
            // same without it.
            self.volume(told("volumeMounts"), text(mount, "name"), VolumeKind::NoHostPath, spec);
        }
        self.files(&format!("the template's {who}"), objects(item, &["env"]), spec);
        if objects(item, &["resizePolicy"]).any(|policy| text(policy, "restartPolicy") == "RestartContainer") {
            self.field(told("resizePolicy"), &["restartPolicy"], Test::NoneOf(vec!["Never".to_owned()]));
        }
        for hook in ["preStop", "postStart"] {
            if let Some(seconds) = at(item, &["lifecycle", hook, "sleep", "seconds"]).and_then(Value::as_i64) {
                let told = told(&format!("lifecycle.{hook}.sleep.seconds"));
                self.field(told, &["terminationGracePeriodSeconds"], Test::AtLeast(seconds, GRACE));
            }
        }
        if let Some(signal) = at(item, &["lifecycle", "stopSignal"]).and_then(Value::as_str) {
            let systems = if WINDOWS_SIGNALS.contains(&signal) { &["linux", "windows"][..] } else { &["linux"] };
            let systems = systems.iter().map(|&name| name.to_owned()).collect();
            self.field(told("lifecycle.stopSignal"), &["os", "name"], Test::OneOf(systems));
        }
    }

    /// Adds needs for host ports that are not the port of the container: on the network of the host they would be.
    fn host_ports(&mut self, item: &RawObject, who: &str) {
        for port in objects(item, &["ports"]) {
            let number = |field: &str| port.get(field).and_then(Value::as_u64).unwrap_or_default();
            let (host, own) = (number("hostPort"), number("containerPort"));
            if host != 0 && host != own {
                let told = format!("`ports` of the template's {who}, with host port {host} for container port {own},");
                self.field(told, &["hostNetwork"], Test::IsNot(true));
            }
        }
    }

    /// Adds a need for the volume `name` of the workload, if the template has none of that name.
    fn volume(&mut self, who: String, name: &str, source: VolumeKind, spec: &v1alpha1::Template) {
        if !has_volume(spec, name) {
            self.ask(Code::PodFieldMismatch, who, Want::Volume(name.to_owned(), source));
        }
    }

    /// Adds needs for variables from files of the workload's volumes.
    fn files<'a>(&mut self, who: &str, env: impl IntoIterator<Item = &'a RawObject>, spec: &v1alpha1::Template) {
        for item in env {
            if let Some(name) = at(item, &["valueFrom", "fileKeyRef", "volumeName"]).and_then(Value::as_str) {
                let told = format!("variable `{}` of {who}, read from a file of volume `{name}`,", text(item, "name"));
                self.volume(told, name, VolumeKind::EmptyDir, spec);
            }
        }
    }

    fn mount(&mut self, who: &str, mount: &RawObject, spec: &v1alpha1::Template) {
        if mount.get("bindMountOptions").is_some_and(|options| !is_empty(options)) {
            self.volume(format!("`bindMountOptions` of {who}"), text(mount, "name"), VolumeKind::NoImage, spec);
        }
    }

    fn security_context(&mut self, item: &RawObject, who: &str) {
        let is_set = |field: &str| at(item, &["securityContext", field]).is_some();
        let told = |field: &str| format!("`securityContext.{field}` of the template's {who}");
        if let Some(field) = NOT_ON_WINDOWS.into_iter().find(|field| is_set(field)) {
            self.field(told(field), &["os", "name"], Test::NoneOf(vec!["windows".to_owned()]));
        }
        if is_set("windowsOptions") {
            self.field(told("windowsOptions"), &["os", "name"], Test::NoneOf(vec!["linux".to_owned()]));
        }
        if at(item, &["securityContext", "procMount"]).is_some_and(|mount| mount == "Unmasked") {
            self.field(told("procMount"), &["hostUsers"], Test::Is(false));
        }
        let [kind, file] = SECCOMP_PROFILE.map(|field| at(item, field).and_then(Value::as_str));
        if let Some(kind) = kind {
            let allowed = match kind {
                "RuntimeDefault" => vec!["runtime/default".to_owned(), "docker/default".to_owned()],
                "Localhost" => vec![format!("localhost/{}", file.unwrap_or_default())],
                _ => vec!["unconfined".to_owned()],
            };
            let want = Want::Annotation { key: format!("{SECCOMP_OF_CONTAINER}{}", text(item, "name")), allowed };
            self.ask(Code::PodFieldMismatch, told("seccompProfile"), want);
        }
        let host_process = at(item, &["securityContext", "windowsOptions", "hostProcess"]).and_then(Value::as_bool);
        if !self.host_process.iter().any(|(own, _)| *own == host_process) {
            self.host_process.push((host_process, format!("the template's {who}")));
        }
        self.user(item, who);
    }

    /// Adds needs for the user of a container: the kubelet does not start one as root where `runAsNonRoot` is true. Fields
    /// that the container lacks are those of the pod.
    fn user(&mut self, item: &RawObject, who: &str) {
        let own = at(item, RUN_AS_NON_ROOT);
        for (path, test) in USERS {
            let told = |path: FieldPath| format!("`{}` of the template's {who}", path.join("."));
            match (own, at(item, path)) {
                (Some(Value::Bool(true)), None) => self.field(told(RUN_AS_NON_ROOT), path, test),
                (Some(Value::Bool(true)), user) if !test.holds(user) => {
                    let but = "contradicts its own `runAsNonRoot: true`: the kubelet never starts it";
                    self.ask(Code::NotStartable, told(path), Want::NoPod(but));
                }
                (None, None) => {
                    let who = format!("the template's {who}, which has the user of the pod,");
                    let either = [(RUN_AS_NON_ROOT, Test::IsNot(true)), (path, test)];
                    self.ask(Code::PodFieldMismatch, who, Want::Either(either));
                }
                (None, user) if !test.holds(user) => self.field(told(path), RUN_AS_NON_ROOT, Test::IsNot(true)),
                _ => {}
            }
        }
    }
}

impl Usage {
    /// The resources of `item`; none if it has none.
    fn of(item: &RawObject, turn: Turn) -> Option<Self> {
        let limits = amounts(item, "limits");
        let mut requests = limits.clone();
        requests.extend(amounts(item, "requests"));
        requests.retain(|_, amount| *amount > 0);
        let name = text(item, "name").to_owned();
        (!requests.is_empty() || !limits.is_empty()).then_some(Self { name, turn, requests, limits })
    }
}

impl Weight {
    fn of(spec: &v1alpha1::Template, marker_key: &str) -> Self {
        let mut weight = Self::default();
        let frame = marker::BEGINNING.len() + 16 + marker::ADDED.len() + marker::NULLS.len() + "]}".len();
        weight.fixed = marker_key.len() + frame;
        // Twice, because a created list may have been null before, and then appears in both lists of the marker.
        let mut pointer = |below: String, times: usize| {
            weight.fixed += times * (written(&below) + AROUND);
            weight.pointers += times;
        };
        pointer("/metadata".to_owned(), 2);
        for map in &MAPS {
            pointer(format!("/metadata/{}", map.field), 2);
            for (key, _) in map.of(spec) {
                pointer(format!("/metadata/{}/{}", map.field, Token::new(key).encoded()), 1);
            }
        }
        for list in &LISTS {
            pointer(format!("/spec/{}", list.field), 2);
            for item in (list.items)(spec) {
                // The longest list name, because a container that becomes a native sidecar is an init container.
                pointer(format!("/spec/{INIT_CONTAINERS}/{}", Token::new(list.key_of(item)).encoded()), 1);
            }
        }
        // An entry for each item of the pod's fields, which JSON and the pointer may double.
        let fields = spec.pod.as_ref().map_or(0, |pod| serde_json::to_string(pod).map_or(0, |json| json.len()));
        weight.fixed += 2 * fields;
        weight.pointers += fields / 8;
        weight.fixed += ANNOTATIONS.of(spec).map(|(key, value)| key.len() + value.len()).sum::<usize>();
        for inner in INNER.iter().filter(|inner| !(inner.items)(spec).is_empty()) {
            let beginning = format!("/spec/{INIT_CONTAINERS}/").len() + MAX_NAME + AROUND;
            let keys = (inner.items)(spec).iter().map(|item| written(Token::new((inner.key)(item)).encoded()) + 1);
            let count = (inner.items)(spec).len();
            let parents = 2 * (beginning + inner.field.len() + 1);
            weight.each += parents + keys.map(|key| beginning + inner.field.len() + 1 + key).sum::<usize>();
            weight.pointers_each += count + 2;
        }
        weight
    }

    /// The fixed bytes, for a pod whose pointer has `pointer` bytes.
    pub(crate) fn fixed(&self, pointer: usize) -> usize {
        self.fixed + self.pointers * pointer
    }

    /// The bytes for each container in the lists that the template reaches into.
    pub(crate) fn each(&self, pointer: usize) -> usize {
        self.each + self.pointers_each * pointer
    }
}

/// The variables in `subPathExpr` of `mount` that a container does not have, whose `env` and `envFrom` `list` gives. None of
/// them if it has an `envFrom`, whose keys are unknown here. The kubelet does not start such a container
/// (`ExpandContainerVolumeMounts`).
pub(crate) fn unset<'a>(mount: &'a RawObject, list: impl Fn(&'static str) -> Vec<&'a RawObject>) -> Vec<&'a str> {
    let mut names = references::names(text(mount, "subPathExpr"));
    if names.is_empty() || !list("envFrom").is_empty() {
        return Vec::new();
    }
    let own = list("env");
    // The kubelet adds variables for Services.
    let may_be_of_a_service = |name: &str| name.contains("_SERVICE_") || name.contains("_PORT");
    names.retain(|name| !may_be_of_a_service(name) && !own.iter().any(|item| text(item, "name") == *name));
    names
}

/// The bytes of `text` within a string of JSON.
fn written(text: &str) -> usize {
    Value::from(text).to_string().len() - 2
}

/// The profile types for the value of an annotation, and the file that it names.
fn profile(value: &str) -> (Vec<String>, Option<&str>) {
    match value {
        "runtime/default" | "docker/default" => (vec!["RuntimeDefault".to_owned()], None),
        "unconfined" => (vec!["Unconfined".to_owned()], None),
        other => (vec!["Localhost".to_owned()], other.strip_prefix("localhost/")),
    }
}

/// One of `texts`, or absent.
fn one_of(texts: &[String]) -> Test {
    Test::OneOf(texts.iter().cloned().chain([String::new()]).collect())
}

fn container<'a>(spec: &'a v1alpha1::Template, name: &str) -> Option<&'a RawObject> {
    spec.init_containers.iter().chain(&spec.containers).find(|item| text(item, "name") == name)
}

impl Template {
    /// True if and only if a level of the Pod Security Standards rejects it in some pods.
    pub(crate) fn is_against_a_level(&self) -> bool {
        !self.needs.security.is_empty()
    }

    pub(crate) fn needs(&self) -> &Needs {
        &self.needs
    }

    /// The variables that its mounts in the workload's own containers need there, and that it does not add itself.
    pub fn missing_variables(&self) -> BTreeSet<String> {
        let ours = |list: &'static str| {
            INNER.iter().filter(|inner| inner.field == list).flat_map(|inner| (inner.items)(&self.spec)).collect()
        };
        self.spec.volume_mounts.iter().flat_map(|mount| unset(mount, ours)).map(str::to_owned).collect()
    }
}
