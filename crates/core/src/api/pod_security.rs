//! The Pod Security Standards, for the fields that a template can have: one row for each control.
//!
//! The controls and values are those of `k8s.io/pod-security-admission` of Kubernetes 1.37. [`breaches`] checks a
//! template alone, by the latest version and by controls that only older versions have (seccomp by annotation, up to
//! 1.18): a limit that the operator's owner sets does not change with the server. [`demands`] returns the breaches for a
//! pod in a Namespace: with the versions that have the control, and the fields of the pod that lift it. The label of the
//! Namespace names a version, and the server applies the newest one that it knows up to there ([`Standard`]). What
//! changed since 1.22:
//!
//! | control | change | by |
//! |---|---|---|
//! | Running as Non-root user | new in 1.23 | version |
//! | Windows pods | lift controls from 1.25 on | version |
//! | AppArmor | field `appArmorProfile` from 1.30 on; older servers drop it | server |
//! | SELinux | type `container_engine_t` from 1.31 on | version |
//! | Volume Types | `image` from 1.33 on | server |
//! | Host Probes / Lifecycle Hooks | new in 1.34 | version |
//! | /proc Mount Type, Running as Non-root | lifted in user namespaces from 1.35 on; before, by an alpha gate | version |
//! | Sysctls | more in 1.27, 1.29, 1.32 and 1.37 | version |
//!
//! Fields of the pod itself have no row: host namespaces and sysctls. See
//! <https://kubernetes.io/docs/concepts/security/pod-security-standards/>.

use super::v1alpha1::{RawObject, Template};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::ops::Range;

/// A level of the Pod Security Standards; each allows what those after it allow.
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Hardened; many images do not meet it
    Restricted,
    /// Known privilege escalations are not allowed
    #[default]
    Baseline,
    /// Everything is allowed
    Privileged,
}

impl Level {
    /// The level as written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Restricted => "restricted",
            Self::Baseline => "baseline",
            Self::Privileged => "privileged",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A field of a template that a control does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The field, for example `spec.template.containers[0].securityContext.privileged`.
    pub field: String,
    /// The control, as the standard calls it.
    pub control: &'static str,
    /// The lowest level that has the control.
    pub level: Level,
    /// The allowed values.
    pub allowed: &'static str,
    /// The value, as JSON; none if the field is missing.
    pub found: Option<String>,
}

/// Every field of `template` that is not allowed at `level`.
///
/// # Guarantees
/// Any JSON is checked, whatever its shape: a field passes only if the control allows its value.
pub fn breaches(template: &Template, level: Level) -> Vec<Breach> {
    // Because a level has its own controls and those of more lenient levels.
    let controls = CONTROLS.iter().filter(|control| level <= control.level && !control.is_superseded);
    controls.flat_map(|control| control.breaches(template)).collect()
}

/// A field of a template that a Namespace of a level rejects, unless the pod itself makes up for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The field of the template.
    pub field: String,
    /// The control, as the standard calls it.
    pub control: &'static str,
    /// The level that has the control; [`Level::Restricted`] includes [`Level::Baseline`].
    pub level: Level,
    /// The minor versions of the standard that have it.
    pub versions: Range<u32>,
    /// The minor versions of servers that apply it, whatever version of the standard is named.
    pub servers: Range<u32>,
    /// The pods that are exempt, whatever their containers set.
    pub lifted: Lifted,
    /// The field of the pod's `spec` that replaces a container's missing field, and the values that do.
    pub inherits: Option<(&'static [&'static str], Inherited)>,
}

impl Demand {
    /// Whether current servers apply it.
    pub fn is_current(&self) -> bool {
        self.servers.contains(&LATEST)
    }
}

/// Pods that a control does not apply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifted {
    /// None.
    Never,
    /// Pods of Windows (`os.name`), from version 1.25 of the standard.
    Windows,
    /// Pods in a user namespace (`hostUsers: false`), from version 1.35.
    UserNamespace,
    /// The same, and at `baseline` only.
    UserNamespaceAtBaseline,
}

/// The first version of the standard that lifts controls for pods of Windows.
pub const WINDOWS_SINCE: u32 = 25;
/// The first version of the standard that lifts controls for pods in a user namespace.
pub const USER_NAMESPACES_SINCE: u32 = 35;

/// The values of a field of the pod that replace a container's missing field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherited {
    /// `true`.
    True,
    /// One of these texts.
    OneOf(&'static [&'static str]),
}

/// What a server knows of the standard: the versions up to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standard {
    minor: u32,
    /// The minor version of the server, [`LATEST`] if it is unknown.
    server: u32,
}

/// The first minor version of servers that enforce the labels by default. For older ones, admission webhooks do: those
/// are not bound to a version.
const ENFORCED_SINCE: u32 = 23;

impl Standard {
    /// The newest one.
    pub const NEWEST: Self = Self { minor: LATEST, server: LATEST };

    /// The standard of a server of Kubernetes 1.`minor`, the newest one if that is unknown.
    pub fn of(minor: Option<u32>) -> Self {
        let server = minor.unwrap_or(LATEST);
        Self { minor: if server >= ENFORCED_SINCE { server } else { LATEST }, server }
    }

    /// True if and only if the server is of that minor version, or a later one, or if its version is unknown.
    pub fn is_since(self, minor: u32) -> bool {
        self.server >= minor
    }
}

/// The level that a Namespace enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enforced {
    /// The level.
    pub level: Level,
    /// The minor version of the standard: [`LATEST`], or that of the server, if the label is missing or unreadable.
    pub minor: u32,
    /// The minor version of the server.
    server: u32,
}

/// The label of a Namespace that names the level.
pub const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// The label of a Namespace that names the version of the standard.
pub const ENFORCE_VERSION: &str = "pod-security.kubernetes.io/enforce-version";
/// The format of a version in [`ENFORCE_VERSION`].
pub const VERSION_PATTERN: &str = "^v1[.](0|[1-9][0-9]{0,5})$";
/// Above every minor version.
pub const LATEST: u32 = 1_000_000;

impl Enforced {
    /// The level that `namespace`, a whole object, enforces by its labels; none without a label. An invalid level means
    /// `restricted`, as on the API server. The server's own configuration is unknown here.
    pub fn by(namespace: &Value, standard: Standard) -> Option<Self> {
        let labels = namespace.get("metadata")?.get("labels")?;
        let level = match labels.get(ENFORCE)?.as_str()? {
            "privileged" => return None,
            "baseline" => Level::Baseline,
            _ => Level::Restricted,
        };
        let named = labels.get(ENFORCE_VERSION).and_then(Value::as_str).and_then(minor);
        let server = standard.minor;
        Some(Self { level, minor: named.unwrap_or(LATEST).min(server), server })
    }

    /// Whether `demand` is one of this level, as far as its level and versions tell.
    pub fn has(&self, demand: &Demand) -> bool {
        self.level <= demand.level && demand.versions.contains(&self.minor) && demand.servers.contains(&self.server)
    }
}

/// The minor version that a label names.
fn minor(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("v1.")?;
    let is_number = digits.len() <= 6 && digits.bytes().all(|digit| digit.is_ascii_digit());
    let is_canonical = digits == "0" || !digits.starts_with('0');
    (is_number && is_canonical).then(|| digits.parse().ok())?
}

/// The controls that may reject a pod with `template`: each once, with the first field that breaks it.
pub fn demands(template: &Template) -> Vec<Demand> {
    let mut demands: Vec<Demand> = Vec::new();
    for control in CONTROLS {
        for breach in control.breaches(template) {
            // Only for a missing field, because the pod cannot override a wrong one.
            let inherits = control.inherits.filter(|_| breach.found.is_none());
            let demand = Demand {
                field: breach.field,
                control: control.name,
                level: control.level,
                versions: control.versions.clone(),
                servers: control.servers.clone(),
                lifted: control.lifted,
                inherits,
            };
            let is_known = |other: &Demand| {
                Demand { field: String::new(), ..other.clone() } == Demand { field: String::new(), ..demand.clone() }
            };
            if !demands.iter().any(is_known) {
                demands.push(demand);
            }
        }
    }
    demands
}

/// The part of a template with the fields of a control.
#[derive(Clone, Copy)]
enum Section {
    /// In each container and init container.
    Containers,
    /// In each volume.
    Volumes,
    /// Among the annotations for the pod.
    Annotations,
}

/// A control of the standard.
struct Control {
    level: Level,
    name: &'static str,
    place: Section,
    /// The fields, from there: `a.b`, `[]` behind a list for its items, `*` for every field.
    fields: &'static [&'static str],
    /// Whether a container that lacks the field breaks the control.
    is_required: bool,
    /// The minor versions of the standard that have the control.
    versions: Range<u32>,
    /// The minor versions of servers that have it.
    servers: Range<u32>,
    /// Whether later versions replace it with another control, so that it counts only for a given version.
    is_superseded: bool,
    lifted: Lifted,
    /// As in a [`Demand`].
    inherits: Option<(&'static [&'static str], Inherited)>,
    /// The allowed values in words, and a test of a value. For `*` the test gets the name of the field.
    allowed: &'static str,
    allows: fn(&str, &Value) -> bool,
}

/// A control on optional fields.
const fn optional(
    level: Level,
    name: &'static str,
    place: Section,
    fields: &'static [&'static str],
    allowed: &'static str,
    allows: fn(&str, &Value) -> bool,
) -> Control {
    Control {
        level,
        name,
        place,
        fields,
        is_required: false,
        versions: 0..u32::MAX,
        servers: 0..u32::MAX,
        is_superseded: false,
        lifted: Lifted::Never,
        inherits: None,
        allowed,
        allows,
    }
}

/// A control on a field that every container must have: a template cannot set it for the whole pod.
const fn required(
    name: &'static str,
    fields: &'static [&'static str],
    allowed: &'static str,
    allows: fn(&str, &Value) -> bool,
) -> Control {
    let control = optional(Level::Restricted, name, Section::Containers, fields, allowed, allows);
    Control { is_required: true, ..control }
}

impl Control {
    /// The control for versions from `minor` on.
    const fn since(self, minor: u32) -> Self {
        Self { versions: minor..self.versions.end, ..self }
    }

    /// The control for versions before `minor`.
    const fn until(self, minor: u32) -> Self {
        Self { versions: self.versions.start..minor, ..self }
    }

    /// The control for servers before `minor`.
    const fn on_servers_until(self, minor: u32) -> Self {
        Self { servers: self.servers.start..minor, ..self }
    }

    const fn superseded(self) -> Self {
        Self { is_superseded: true, ..self }
    }

    const fn lifted(self, lifted: Lifted) -> Self {
        Self { lifted, ..self }
    }

    const fn inherits(self, path: &'static [&'static str], inherited: Inherited) -> Self {
        Self { inherits: Some((path, inherited)), ..self }
    }
}

/// The capabilities that container runtimes give every container: these are allowed at `baseline`.
const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// The types of volumes that are allowed at `restricted`.
const VOLUME_TYPES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_OF_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

static CONTROLS: &[Control] = {
    use Level::{Baseline, Restricted};
    use Section::{Annotations, Containers, Volumes};
    &[
        optional(
            Baseline,
            "HostProcess",
            Containers,
            &["securityContext.windowsOptions.hostProcess"],
            "`false`",
            is_false,
        ),
        optional(Baseline, "Privileged Containers", Containers, &["securityContext.privileged"], "`false`", is_false),
        optional(
            Baseline,
            "Capabilities",
            Containers,
            &["securityContext.capabilities.add[]"],
            "only what container runtimes give anyhow, such as `CHOWN` or `NET_BIND_SERVICE`",
            |_, value| one_of(value, &DEFAULT_CAPABILITIES),
        ),
        optional(Baseline, "HostPath Volumes", Volumes, &["hostPath"], "no such volume", |_, _| false),
        optional(Baseline, "Host Ports", Containers, &["ports[].hostPort"], "`0`", |_, value| {
            value.as_f64() == Some(0.0)
        }),
        optional(
            Baseline,
            "Host Probes / Lifecycle Hooks",
            Containers,
            &[
                "livenessProbe.httpGet.host",
                "livenessProbe.tcpSocket.host",
                "readinessProbe.httpGet.host",
                "readinessProbe.tcpSocket.host",
                "startupProbe.httpGet.host",
                "startupProbe.tcpSocket.host",
                "lifecycle.postStart.httpGet.host",
                "lifecycle.postStart.tcpSocket.host",
                "lifecycle.preStop.httpGet.host",
                "lifecycle.preStop.tcpSocket.host",
            ],
            "no host",
            |_, value| one_of(value, &[""]),
        )
        .since(34),
        optional(
            Baseline,
            "AppArmor",
            Containers,
            &["securityContext.appArmorProfile.type"],
            "`RuntimeDefault` or `Localhost`",
            |_, value| one_of(value, &["RuntimeDefault", "Localhost"]),
        ),
        optional(Baseline, "AppArmor", Annotations, &["*"], "`runtime/default` or `localhost/..`", |key, value| {
            !key.starts_with(APP_ARMOR) || is_profile(value, &["", "runtime/default"])
        }),
        optional(
            Baseline,
            "SELinux",
            Containers,
            &["securityContext.seLinuxOptions.type"],
            "`container_t`, `container_init_t`, `container_kvm_t` or `container_engine_t`",
            |_, value| one_of(value, &["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"]),
        )
        .since(31),
        optional(
            Baseline,
            "SELinux",
            Containers,
            &["securityContext.seLinuxOptions.type"],
            "`container_t`, `container_init_t` or `container_kvm_t`",
            |_, value| one_of(value, &["", "container_t", "container_init_t", "container_kvm_t"]),
        )
        .until(31)
        .superseded(),
        optional(
            Baseline,
            "SELinux",
            Containers,
            &["securityContext.seLinuxOptions.user", "securityContext.seLinuxOptions.role"],
            "nothing",
            |_, value| one_of(value, &[""]),
        ),
        optional(Baseline, "/proc Mount Type", Containers, &["securityContext.procMount"], "`Default`", |_, value| {
            one_of(value, &["", "Default"])
        })
        .lifted(Lifted::UserNamespaceAtBaseline),
        optional(
            Baseline,
            "Seccomp",
            Containers,
            &["securityContext.seccompProfile.type"],
            "`RuntimeDefault` or `Localhost`",
            |_, value| one_of(value, &["RuntimeDefault", "Localhost"]),
        )
        .since(19),
        optional(
            Baseline,
            "Seccomp",
            Annotations,
            &["*"],
            "`runtime/default`, `docker/default` or `localhost/..`",
            |key, value| {
                let is_profile_of = key == SECCOMP_OF_POD || key.starts_with(SECCOMP_OF_CONTAINER);
                !is_profile_of || is_profile(value, &["runtime/default", "docker/default"])
            },
        )
        .until(19),
        optional(
            Restricted,
            "Volume Types",
            Volumes,
            &["*"],
            "`configMap`, `csi`, `downwardAPI`, `emptyDir`, `ephemeral`, `image`, `persistentVolumeClaim`, `projected` \
             or `secret`",
            |key, _| key == "name" || VOLUME_TYPES.contains(&key),
        ),
        optional(Restricted, "Volume Types", Volumes, &["image"], "no such volume", |_, _| false)
            .on_servers_until(33)
            .superseded(),
        required("Privilege Escalation", &["securityContext.allowPrivilegeEscalation"], "`false`", is_false)
            .since(8)
            .lifted(Lifted::Windows),
        required("Running as Non-root", &["securityContext.runAsNonRoot"], "`true`", |_, value| {
            *value == Value::Bool(true)
        })
        .lifted(Lifted::UserNamespace)
        .inherits(&["securityContext", "runAsNonRoot"], Inherited::True),
        optional(
            Restricted,
            "Running as Non-root user",
            Containers,
            &["securityContext.runAsUser"],
            "another number than `0`",
            |_, value| value.as_f64().is_some_and(|user| user != 0.0),
        )
        .since(23)
        .lifted(Lifted::UserNamespace),
        required("Seccomp", &["securityContext.seccompProfile.type"], "`RuntimeDefault` or `Localhost`", |_, value| {
            one_of(value, &["RuntimeDefault", "Localhost"])
        })
        .since(19)
        .lifted(Lifted::Windows)
        .inherits(&["securityContext", "seccompProfile", "type"], Inherited::OneOf(&["RuntimeDefault", "Localhost"])),
        required("Capabilities", &["securityContext.capabilities.drop"], "`[ALL]`", |_, value| {
            value.as_array().is_some_and(|dropped| dropped.iter().any(|name| name == "ALL"))
        })
        .since(22)
        .lifted(Lifted::Windows),
        optional(
            Restricted,
            "Capabilities",
            Containers,
            &["securityContext.capabilities.add[]"],
            "`NET_BIND_SERVICE`",
            |_, value| one_of(value, &["NET_BIND_SERVICE"]),
        )
        .since(22)
        .lifted(Lifted::Windows),
    ]
};

fn is_false(_: &str, value: &Value) -> bool {
    *value == Value::Bool(false)
}

fn one_of(value: &Value, allowed: &[&str]) -> bool {
    value.as_str().is_some_and(|text| allowed.contains(&text))
}

fn is_profile(value: &Value, allowed: &[&str]) -> bool {
    one_of(value, allowed) || value.as_str().is_some_and(|text| text.starts_with("localhost/"))
}

impl Control {
    fn breaches(&self, template: &Template) -> Vec<Breach> {
        let mut breaches = Vec::new();
        for (path, item) in self.items(template) {
            for wanted in self.fields {
                let found = fields(&item, wanted);
                if found.is_empty() && self.is_required {
                    breaches.push(self.breach(format!("{path}.{wanted}"), None));
                }
                let wrong = found.into_iter().filter(|field| !(self.allows)(&field.key, field.value));
                breaches.extend(wrong.map(|field| self.breach(format!("{path}.{}", field.path), Some(field.value))));
            }
        }
        breaches
    }

    fn breach(&self, field: String, found: Option<&Value>) -> Breach {
        let found = found.map(Value::to_string);
        Breach { field, control: self.name, level: self.level, allowed: self.allowed, found }
    }

    /// The items of a template that the control is about, each with its path.
    fn items(&self, template: &Template) -> Vec<(String, Value)> {
        let whole = |(path, item): (String, &RawObject)| (path, Value::Object(item.clone()));
        match self.place {
            Section::Containers => template.all_containers().map(whole).collect(),
            Section::Volumes => template.all_volumes().map(whole).collect(),
            Section::Annotations => {
                let metadata = template.metadata.iter();
                metadata
                    .map(|of| {
                        ("spec.template.metadata.annotations".to_owned(), of.annotations.clone().into_iter().collect())
                    })
                    .collect()
            }
        }
    }
}

/// A field with a value.
pub(super) struct Field<'a> {
    /// The path from the start of the search.
    pub(super) path: String,
    /// The name, or the index in a list.
    key: String,
    pub(super) value: &'a Value,
}

/// The fields that `wanted` names in `item`: `a.b`, `[]` behind a list for its items, `*` for every field. Null counts
/// as absent.
pub(super) fn fields<'a>(item: &'a Value, wanted: &str) -> Vec<Field<'a>> {
    let mut found = vec![Field { path: String::new(), key: String::new(), value: item }];
    for step in wanted.split('.') {
        let (name, is_list) = step.strip_suffix("[]").map_or((step, false), |name| (name, true));
        found = found.iter().flat_map(|field| members(field, name)).collect();
        if is_list {
            found = found.iter().flat_map(items_of).collect();
        }
    }
    found.retain(|field| !field.value.is_null());
    found
}

fn members<'a>(field: &Field<'a>, name: &str) -> Vec<Field<'a>> {
    let dot = if field.path.is_empty() { "" } else { "." };
    let members = field.value.as_object().into_iter().flatten().filter(|(key, _)| name == "*" || *key == name);
    members.map(|(key, value)| Field { path: format!("{}{dot}{key}", field.path), key: key.clone(), value }).collect()
}

fn items_of<'a>(field: &Field<'a>) -> Vec<Field<'a>> {
    let items = field.value.as_array().into_iter().flatten().enumerate();
    items
        .map(|(index, value)| Field { path: format!("{}[{index}]", field.path), key: index.to_string(), value })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The fields that are not allowed, each with the level of its control.
    fn found(template: Value, level: Level) -> Vec<String> {
        let template = serde_json::from_value(template).unwrap();
        breaches(&template, level).into_iter().map(|breach| format!("{} {}", breach.level, breach.field)).collect()
    }

    fn container(mut rest: Value) -> Value {
        rest["name"] = json!("a");
        rest["image"] = json!("a");
        json!({ "containers": [rest] })
    }

    /// The fields that `restricted` demands.
    fn hardened() -> Value {
        json!({
            "allowPrivilegeEscalation": false, "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" },
            "capabilities": { "drop": ["ALL"] },
        })
    }

    #[test]
    fn every_control_of_baseline_finds_what_it_forbids_and_lets_through_what_it_allows() {
        for (field, forbidden, allowed) in [
            ("/securityContext/windowsOptions/hostProcess", json!([true, "false"]), json!([false, null])),
            ("/securityContext/privileged", json!([true, "false", 1]), json!([false, null])),
            (
                "/securityContext/capabilities/add/0",
                json!(["NET_ADMIN", "NET_RAW", "ALL", 7]),
                json!(["CHOWN", "SETUID"]),
            ),
            ("/ports/0/hostPort", json!([80, "80", -1]), json!([0, null])),
            ("/livenessProbe/httpGet/host", json!(["10.0.0.1", "127.0.0.1"]), json!(["", null])),
            ("/readinessProbe/tcpSocket/host", json!(["x"]), json!([""])),
            ("/startupProbe/httpGet/host", json!(["x"]), json!([""])),
            ("/lifecycle/postStart/httpGet/host", json!(["x"]), json!([""])),
            ("/lifecycle/preStop/tcpSocket/host", json!(["x"]), json!([""])),
            ("/securityContext/appArmorProfile/type", json!(["Unconfined", 1]), json!(["RuntimeDefault", "Localhost"])),
            (
                "/securityContext/seLinuxOptions/type",
                json!(["spc_t"]),
                json!(["", "container_t", "container_engine_t"]),
            ),
            ("/securityContext/seLinuxOptions/user", json!(["root"]), json!(["", null])),
            ("/securityContext/seLinuxOptions/role", json!(["root"]), json!([""])),
            ("/securityContext/procMount", json!(["Unmasked"]), json!(["Default", null])),
            ("/securityContext/seccompProfile/type", json!(["Unconfined"]), json!(["RuntimeDefault", "Localhost"])),
        ] {
            for (values, is_forbidden) in [(forbidden, true), (allowed, false)] {
                for value in values.as_array().unwrap() {
                    let body =
                        field.trim_start_matches('/').rsplit('/').fold(value.clone(), |inner, step| match step {
                            "0" => json!([inner]),
                            step => json!({ step: inner }),
                        });
                    let path = field[1..].replace("/0", "[0]").replace('/', ".");
                    let expected = format!("baseline spec.template.containers[0].{path}");
                    let expected = if is_forbidden { vec![expected] } else { Vec::new() };
                    assert_eq!(found(container(body.clone()), Level::Baseline), expected, "{body}");
                    assert_eq!(found(container(body.clone()), Level::Privileged), [""; 0], "{body}");
                    let (mut init, mut restricted) = (container(body), container(hardened_with(field, value)));
                    init["initContainers"] = init["containers"].take();
                    init.as_object_mut().unwrap().remove("containers");
                    assert_eq!(found(init, Level::Baseline).len(), expected.len());
                    restricted["volumes"] = json!([]);
                    let strict = found(restricted, Level::Restricted);
                    assert!(expected.iter().all(|breach| strict.contains(breach)), "{strict:?} lacks {expected:?}");
                }
            }
        }
    }

    /// A container that satisfies `restricted`, except for one field.
    fn hardened_with(field: &str, value: &Value) -> Value {
        let mut body = json!({ "securityContext": hardened() });
        let mut at = &mut body;
        for step in field.trim_start_matches('/').split('/') {
            if step == "0" {
                *at = json!([null]);
                at = &mut at[0];
            } else {
                at = &mut at[step];
            }
        }
        *at = value.clone();
        body
    }

    #[test]
    fn volumes_are_judged_by_their_type() {
        let volumes = |volumes: Value| json!({ "volumes": volumes });
        let host = volumes(json!([{ "name": "a", "emptyDir": {} }, { "name": "b", "hostPath": { "path": "/" } }]));
        assert_eq!(found(host.clone(), Level::Baseline), ["baseline spec.template.volumes[1].hostPath"]);
        assert!(found(host, Level::Restricted).contains(&"restricted spec.template.volumes[1].hostPath".to_owned()));
        let odd =
            volumes(json!([{ "name": "a", "nfs": {} }, { "name": "b", "newKind": 5 }, { "name": "c", "nfs": null }]));
        assert_eq!(found(odd.clone(), Level::Baseline), [""; 0]);
        assert_eq!(
            found(odd, Level::Restricted),
            ["restricted spec.template.volumes[0].nfs", "restricted spec.template.volumes[1].newKind"]
        );
        let fine = VOLUME_TYPES.map(|kind| json!({ "name": kind.to_lowercase(), kind: {} }));
        assert_eq!(found(volumes(json!(fine)), Level::Restricted), [""; 0]);
    }

    #[test]
    fn annotations_that_stand_for_a_profile_are_judged() {
        for (key, value, is_allowed) in [
            ("container.apparmor.security.beta.kubernetes.io/app", "unconfined", false),
            ("container.apparmor.security.beta.kubernetes.io/app", "localhost/own", true),
            ("container.apparmor.security.beta.kubernetes.io/app", "runtime/default", true),
            ("seccomp.security.alpha.kubernetes.io/pod", "unconfined", false),
            ("seccomp.security.alpha.kubernetes.io/pod", "docker/default", true),
            ("container.seccomp.security.alpha.kubernetes.io/app", "", false),
            ("example.com/other", "unconfined", true),
        ] {
            let template = json!({ "metadata": { "annotations": { key: value } } });
            assert_eq!(found(template, Level::Baseline).is_empty(), is_allowed, "{key}: {value}");
        }
    }

    #[test]
    fn restricted_wants_four_things_of_every_container_and_forbids_root() {
        let bare = found(container(json!({})), Level::Restricted);
        let wanted = ["allowPrivilegeEscalation", "runAsNonRoot", "seccompProfile.type", "capabilities.drop"];
        let of = |field: &str| format!("restricted spec.template.containers[0].securityContext.{field}");
        assert_eq!(bare, wanted.map(of));
        assert_eq!(found(container(json!({ "securityContext": hardened() })), Level::Restricted), [""; 0]);
        let root = hardened_with("/securityContext/runAsUser", &json!(0));
        assert_eq!(found(container(root), Level::Restricted), [of("runAsUser")]);
        let chown = hardened_with("/securityContext/capabilities/add/0", &json!("CHOWN"));
        assert_eq!(found(container(chown), Level::Restricted), [of("capabilities.add[0]")]);
        let bind = hardened_with("/securityContext/capabilities/add/0", &json!("NET_BIND_SERVICE"));
        assert_eq!(found(container(bind), Level::Restricted), [""; 0]);
    }

    #[test]
    fn what_has_another_shape_is_no_panic() {
        for odd in [json!(null), json!(5), json!("x"), json!([]), json!([[1]]), json!({ "": [{}] })] {
            for field in ["securityContext", "ports", "livenessProbe", "lifecycle"] {
                found(container(json!({ field: odd })), Level::Restricted);
            }
            found(json!({ "volumes": [{ "name": "a", "hostPath": odd }] }), Level::Restricted);
        }
    }
}
