//! What other readers of a pod than the API server do to the application because of a template ([`crate::readers`]), as
//! far as the template says it alone.

use super::template::staying;
use super::{Context, Note};
use crate::api::code::Code;
use crate::api::pod_schema::is_native_sidecar;
use crate::api::v1alpha1::{NativeSidecars, Place, RawObject, SidecarPolicySpec, Template};
use crate::inject::needs::{RUN_AS_NON_ROOT, USERS, unset};
use crate::inject::value::{at, objects, text};
use serde_json::Value;

/// Whether all targets are of that resource.
fn targets_only(spec: &SidecarPolicySpec, group: &str, resource: &str) -> bool {
    spec.targets.iter().all(|target| target.group == group && target.resource == resource)
}

/// Pull secrets that switch off those of ServiceAccounts.
pub(super) fn pull_secrets(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let has_some = spec.template.as_ref().is_some_and(|template| !template.image_pull_secrets.is_empty());
    if !has_some || targets_only(spec, "", "pods") {
        return Vec::new();
    }
    let message = "takes the pull secrets of the ServiceAccount from workloads without `imagePullSecrets` of their own; \
                   target pods, or add the Secret to the ServiceAccounts";
    vec![Note::new(Code::PullSecretsReplaced, "spec.template.imagePullSecrets", message)]
}

/// Sources of volumes that one node may attach at a time, unless they are read only. Without those that work nowhere any more.
const OF_ONE_NODE: [&str; 10] = [
    "persistentVolumeClaim",
    "awsElasticBlockStore",
    "azureDisk",
    "cinder",
    "fc",
    "gcePersistentDisk",
    "iscsi",
    "portworxVolume",
    "rbd",
    "vsphereVolume",
];

/// Paths that every node has.
const ON_EVERY_NODE: [&str; 14] = [
    "/",
    "/dev",
    "/etc",
    "/lib/modules",
    "/proc",
    "/run",
    "/sys",
    "/tmp",
    "/usr",
    "/var",
    "/var/lib",
    "/var/lib/kubelet",
    "/var/log",
    "/var/run",
];

/// Fields that limit the nodes for pods.
pub(super) fn nodes(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let Some(template) = &spec.template else { return Vec::new() };
    let note = |field: String, message: String| Note::new(Code::NodesLimited, field, message);
    let mut notes = Vec::new();
    for (path, container) in staying(template) {
        let ports = objects(container, &["ports"]).enumerate();
        let ports =
            ports.filter_map(|(index, port)| Some((index, port.get("hostPort")?.as_u64().filter(|it| *it > 0)?)));
        if !targets_only(spec, "apps", "daemonsets") {
            notes.extend(ports.map(|(index, port)| {
                let message = format!("is {port}: one pod fits on a node, and a rollout needs a spare node");
                note(format!("{path}.ports[{index}].hostPort"), message)
            }));
        }
    }
    for (path, container) in template.all_containers() {
        if at(container, &["securityContext", "appArmorProfile", "type"]).is_some_and(|it| it != "Unconfined") {
            let message = "needs AppArmor on the node: elsewhere the kubelet refuses the whole pod";
            notes.push(note(format!("{path}.securityContext.appArmorProfile"), message.to_owned()));
        }
        for list in ["limits", "requests"] {
            let amounts = at(container, &["resources", list]).and_then(Value::as_object).into_iter().flatten();
            let device =
                amounts.map(|(name, _)| name).find(|name| name.contains('/') || name.starts_with("hugepages-"));
            if let Some(name) = device {
                let message = format!("asks for `{name}`: pods fit only on nodes that have it");
                notes.push(note(format!("{path}.resources.{list}"), message));
                break;
            }
        }
    }
    for (path, volume) in template.all_volumes() {
        let is_writable = |source: &str| at(volume, &[source, "readOnly"]).is_none_or(|it| *it != true);
        let sources = OF_ONE_NODE.into_iter().filter(|source| volume.contains_key(*source));
        notes.extend(sources.filter(|source| is_writable(source)).map(|source| {
            let message = "is one for all pods: unless several nodes may attach it, they fit on one node";
            note(format!("{path}.{source}"), message.to_owned())
        }));
        let must_be_there = ["BlockDevice", "CharDevice", "Directory", "File", "Socket"];
        let own = |field: &str| at(volume, &["hostPath", field]).and_then(Value::as_str);
        let is_everywhere = own("path").is_some_and(|path| ON_EVERY_NODE.contains(&path));
        if let Some(kind) = own("type").filter(|kind| must_be_there.contains(kind) && !is_everywhere) {
            let message = format!("is `{kind}`: on a node without that path no pod with the template starts");
            notes.push(note(format!("{path}.hostPath.type"), message));
        }
    }
    notes
}

/// Annotations that change the whole pod: key and effect.
const OF_THE_POD: [(&str, &str); 2] = [
    ("kubernetes.io/egress-bandwidth", "limits the traffic of the whole pod"),
    ("kubernetes.io/ingress-bandwidth", "limits the traffic of the whole pod"),
];

/// Fields that let the application wait for a container of the template, or end with it.
pub(super) fn holds(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let Some(template) = &spec.template else { return Vec::new() };
    let note = |field: String, message: &str| Note::new(Code::HoldsApplication, field, message);
    let mut notes = Vec::new();
    let is_in_front = spec.position.is_some_and(|position| position.containers == Place::Before);
    let is_before = |path: &str, item: &RawObject| {
        let is_main = path.starts_with("spec.template.containers");
        is_native_sidecar(item) || is_main && (spec.native_sidecars == NativeSidecars::Always || is_in_front)
    };
    for (path, container) in staying(template) {
        let mut add = |field: &str, message: &str| notes.push(note(format!("{path}.{field}"), message));
        if at(container, &["readinessProbe"]).is_some() {
            add("readinessProbe", "decides about the whole pod: while it fails, the application gets no traffic");
        }
        let is_native = is_native_sidecar(container) || spec.native_sidecars == NativeSidecars::Always;
        if is_native && at(container, &["startupProbe"]).is_some() {
            add("startupProbe", "holds up the application: it starts only after this probe succeeds");
        }
        if is_before(&path, container) && at(container, &["lifecycle", "postStart"]).is_some() {
            add("lifecycle.postStart", "holds up the application: it starts only after this hook has ended");
        }
        let restarts =
            objects(container, &["restartPolicyRules"]).any(|it| text(it, "action") == "RestartAllContainers");
        if restarts {
            add("restartPolicyRules", "restarts the application when this container ends");
        }
        if at(container, &["resources", "limits", "ephemeral-storage"]).is_some() {
            add("resources.limits", "limits ephemeral storage: beyond it the kubelet evicts the whole pod");
        }
    }
    for (path, volume) in template.all_volumes() {
        if at(volume, &["emptyDir", "sizeLimit"]).is_some() {
            notes.push(note(
                format!("{path}.emptyDir.sizeLimit"),
                "is for the pod: beyond it the kubelet evicts all of it",
            ));
        }
    }
    let keys = template.metadata.iter().flat_map(|metadata| metadata.annotations.keys());
    notes.extend(keys.filter_map(|key| {
        let (_, effect) = OF_THE_POD.iter().find(|(own, _)| own == key)?;
        Some(note(format!("spec.template.metadata.annotations.{key}"), effect))
    }));
    notes
}

/// Annotations that keep a pod on its node.
const KEEPING: [(&str, &str); 2] =
    [("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"), ("karpenter.sh/do-not-disrupt", "true")];

/// Annotations that keep the cluster autoscaler from removing a node.
pub(super) fn scale_down(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let metadata = spec.template.as_ref().and_then(|template| template.metadata.as_ref());
    let is_set =
        |key: &str, value: &str| metadata.is_some_and(|it| it.annotations.get(key).is_some_and(|own| own == value));
    let keeping = KEEPING.into_iter().filter(|(key, value)| is_set(key, value));
    let note = |(key, _): (&str, &str)| {
        let field = format!("spec.template.metadata.annotations.{key}");
        Note::new(Code::ScaleDownBlocked, field, "keeps the node of each pod that gets it")
    };
    keeping.map(note).collect()
}

/// Containers of root, and containers that can never start.
pub(super) fn users(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let mut notes = Vec::new();
    for (path, container) in spec.template.iter().flat_map(Template::all_containers) {
        for (field, test) in USERS {
            let user = at(container, field);
            if test.holds(user) {
                continue;
            }
            let field = format!("{path}.{}", field.join("."));
            match at(container, RUN_AS_NON_ROOT) {
                Some(Value::Bool(true)) => {
                    let message =
                        "is root, and `runAsNonRoot: true` beside it forbids root: the kubelet never starts it";
                    notes.push(Note::new(Code::NeverStarts, field, message));
                }
                None => {
                    let message = "is root: pods with `runAsNonRoot: true` are left out (SCP0228); `runAsNonRoot: false` beside \
                                   it lets the container be root there, too";
                    notes.push(Note::new(Code::RootUser, field, message));
                }
                Some(_) => {}
            }
        }
        for (index, mount) in objects(container, &["volumeMounts"]).enumerate() {
            if let Some(variable) = unset(mount, |list| objects(container, &[list]).collect()).first() {
                let message =
                    format!("needs variable `{variable}`, which the container does not have: it never starts");
                notes.push(Note::new(Code::NeverStarts, format!("{path}.volumeMounts[{index}].subPathExpr"), message));
            }
        }
    }
    notes
}
