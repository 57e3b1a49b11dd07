//! A workload as the server sent it: raw JSON, so that no field is lost that our bindings do not know.
//!
//! Decisions read the workload through predicates and small accessors. The path of its pod template comes from its
//! [`Kind`]: one of the table [`KINDS`], or a custom resource that a policy targets.

use json_patch::Patch;
use serde_json::{Map, Value, json};
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock, OnceLock};

/// A resource, and the path of its pod.
///
/// Two kinds are equal if they are the same resource, whatever the pod path: policies may give different paths.
#[derive(Clone, Debug)]
pub struct Kind {
    /// The API group for reads and writes. `""` is core.
    pub group: String,
    /// Every group that ever served the resource. A request through any of them stores the same object.
    pub groups: Vec<String>,
    /// The plural name, as in `spec.targets[].resource`.
    pub resource: String,
    /// The kind, as in a manifest. None for custom resources and all others outside the table, whose objects state it.
    pub kind: Option<String>,
    /// The path of the object with the pod's `metadata` and `spec`. None for a kind without a pod: `validations` can
    /// judge it, but nothing is injected.
    pub pod_path: Option<Vec<String>>,
}

/// The controllers that make pods again, and of which the operator knows how many pods each keeps: group, kind and plural.
pub const MAKERS: [(&str, &str, &str); 4] = [
    ("apps", "ReplicaSet", "replicasets"),
    ("apps", "StatefulSet", "statefulsets"),
    ("apps", "DaemonSet", "daemonsets"),
    ("", "ReplicationController", "replicationcontrollers"),
];
/// The other controllers that make pods or Jobs from a template: group, kind and plural.
pub const MAKERS_ONCE: [(&str, &str, &str); 2] = [("batch", "Job", "jobs"), ("batch", "CronJob", "cronjobs")];

/// A stored object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectRef {
    pub kind: Arc<Kind>,
    pub namespace: String,
    pub name: String,
}

impl ObjectRef {
    /// A reference to the object of that kind, namespace and name.
    pub fn new(kind: &Arc<Kind>, (namespace, name): (&str, &str)) -> Self {
        Self { kind: kind.clone(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Its namespace and its name.
    pub fn place(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

/// The path of the pod template in most kinds.
const TEMPLATE: &str = "spec.template";

/// The built-in kinds in one table: the groups (its own first), the resource, the kind, and the path of the pod.
const TABLE: [(&[&str], &str, &str, Option<&str>); 7] = [
    (&["apps", "extensions"], "deployments", "Deployment", Some(TEMPLATE)),
    (&["apps"], "statefulsets", "StatefulSet", Some(TEMPLATE)),
    (&["apps", "extensions"], "daemonsets", "DaemonSet", Some(TEMPLATE)),
    (&["batch"], "cronjobs", "CronJob", Some("spec.jobTemplate.spec.template")),
    (&["batch"], "jobs", "Job", Some(TEMPLATE)),
    (&[""], "pods", "Pod", Some("")),
    (&[""], "secrets", "Secret", None),
];

/// The built-in kinds that a policy may target.
pub static KINDS: LazyLock<Vec<Arc<Kind>>> = LazyLock::new(|| {
    let kind = |(groups, resource, kind, path): (&[&str], &str, &str, Option<&str>)| Kind {
        group: groups[0].to_owned(),
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
        resource: resource.to_owned(),
        kind: Some(kind.to_owned()),
        pod_path: path.map(steps),
    };
    TABLE.into_iter().map(|row| Arc::new(kind(row))).collect()
});

/// The group of SidecarPolicies, which are no workloads.
pub const OWN_GROUP: &str = "scpol.dev";

/// The fields on the way of `path`, which are separated by dots.
fn steps(path: &str) -> Vec<String> {
    path.split('.').filter(|step| !step.is_empty()).map(str::to_owned).collect()
}

/// True if and only if the group belongs to Kubernetes itself. Another group may have `services` with a pod template.
pub fn is_built_in(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io") || group == OWN_GROUP
}

impl Kind {
    /// The resource with its group, such as `deployments.apps` or `pods`.
    pub fn group_resource(&self) -> String {
        match self.group.as_str() {
            "" => self.resource.clone(),
            group => format!("{}.{group}", self.resource),
        }
    }

    /// The built-in kind of a resource, through any of its groups.
    pub fn find(group: &str, resource: &str) -> Option<&'static Arc<Kind>> {
        KINDS.iter().find(|kind| kind.resource == resource && kind.is_in(group))
    }

    /// The kind of any resource. `path` is the path of the pod template of a custom resource, as field names separated
    /// by dots; the default is `spec.template`. Other resources of Kubernetes count as kinds without a pod.
    pub fn of(group: &str, resource: &str, path: Option<&str>) -> Arc<Kind> {
        Self::find(group, resource).cloned().unwrap_or_else(|| {
            let path = (!is_built_in(group)).then(|| steps(path.unwrap_or(TEMPLATE)));
            Arc::new(Self::at(group, resource, path))
        })
    }

    /// The kind of a custom resource with its pod at `pod_path`.
    pub fn at(group: &str, resource: &str, pod_path: Option<Vec<String>>) -> Kind {
        let group = group.to_owned();
        Kind { groups: vec![group.clone()], group, resource: resource.to_owned(), kind: None, pod_path }
    }

    /// True if and only if this is the Pod of Kubernetes.
    pub fn is_pod(&self) -> bool {
        self.resource == "pods" && self.is_in("")
    }

    /// True if and only if this is the Job, whose pod template cannot be changed once it is stored.
    pub fn is_job(&self) -> bool {
        self.resource == "jobs" && self.is_in_table()
    }

    /// True if and only if its pods never end by themselves, because the server rejects other values of `restartPolicy`.
    pub fn runs_for_ever(&self) -> bool {
        self.is_in_table() && ["deployments", "statefulsets", "daemonsets"].contains(&self.resource.as_str())
    }

    /// True if and only if `group` serves the resource.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// The path of the pod as policies write it; empty for a pod.
    pub fn template_path(&self) -> Option<String> {
        Some(self.pod_path.as_ref()?.join("."))
    }

    /// True if and only if this is one of [`KINDS`].
    pub fn is_in_table(&self) -> bool {
        self.kind.is_some()
    }

    fn key(&self) -> (&str, &str) {
        (&self.group, &self.resource)
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Kind {}

impl Hash for Kind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialOrd for Kind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kind {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// One object of a [`Kind`].
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The kind of the object.
    pub kind: Arc<Kind>,
    /// The whole object.
    pub body: Value,
    /// The Namespace of the object, if it has been read.
    pub namespace_object: Option<Arc<Value>>,
    /// See [`Self::seen_by_expressions`].
    seen: OnceLock<Value>,
}

/// The fields that only the server sets. Not every engine has them, so no engine shows them to expressions.
pub(crate) const OF_THE_SERVER: [&str; 7] =
    ["uid", "resourceVersion", "generation", "creationTimestamp", "selfLink", "managedFields", "initializers"];

impl Workload {
    /// The object `body` of the kind `kind`.
    pub fn new(kind: &Arc<Kind>, body: Value) -> Self {
        Self { kind: kind.clone(), body, namespace_object: None, seen: OnceLock::new() }
    }

    /// The same object with another `body`.
    #[must_use]
    pub fn with_body(&self, body: Value) -> Self {
        Self { namespace_object: self.namespace_object.clone(), ..Self::new(&self.kind, body) }
    }

    /// The same object with the pod path of `kind`.
    #[must_use]
    pub fn seen_as(&self, kind: &Arc<Kind>) -> Self {
        Self { kind: kind.clone(), ..self.clone() }
    }

    /// The body after `patch`, which must be planned for this object.
    pub fn patched(&self, patch: &Patch) -> Value {
        let mut body = self.body.clone();
        json_patch::patch(&mut body, patch).expect("a plan applies to what it was made for");
        body
    }

    /// The object as expressions see it on every engine and in files. It lacks `status`, the fields that only the
    /// server sets, and a name that the server has generated.
    ///
    /// # Guarantees
    /// The value is computed once. Later changes of [`Self::body`] do not appear in it.
    pub fn seen_by_expressions(&self) -> &Value {
        self.seen.get_or_init(|| {
            let mut seen = self.body.clone();
            let Some(object) = seen.as_object_mut() else { return seen };
            object.remove("status");
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.retain(|field, _| !OF_THE_SERVER.contains(&field.as_str()));
                if metadata.contains_key("generateName") {
                    metadata.remove("name");
                }
            }
            // Some servers show that a template has no creation time, others omit the field.
            let mut part = Some(&mut seen);
            for step in self.kind.pod_path.iter().flatten() {
                part = part.and_then(|part| part.get_mut(step));
                let metadata = part.as_mut().and_then(|part| part.get_mut("metadata")?.as_object_mut());
                if let Some(metadata) =
                    metadata.filter(|metadata| metadata.get("creationTimestamp") == Some(&Value::Null))
                {
                    metadata.remove("creationTimestamp");
                }
            }
            seen
        })
    }

    /// The pod, or the pod template, in the object as expressions see it.
    pub fn pod_seen_by_expressions(&self) -> Option<&Value> {
        self.kind.pod_path.as_ref()?.iter().try_fold(self.seen_by_expressions(), |part, step| part.get(step))
    }

    /// The same object, in the Namespace `namespace`.
    #[must_use]
    pub fn within(self, namespace: Option<Arc<Value>>) -> Self {
        Self { namespace_object: namespace, ..self }
    }

    /// True if and only if the pod ends by itself, as a Job's does: `restartPolicy` is neither `Always` nor absent.
    pub fn ends(&self) -> bool {
        let policy = self.pod_spec().and_then(|spec| spec.get("restartPolicy")?.as_str());
        policy.is_some_and(|policy| !policy.is_empty() && policy != "Always")
    }

    /// The kind, as in a manifest.
    pub fn kind_name(&self) -> &str {
        self.kind.kind.as_deref().or_else(|| self.body["kind"].as_str()).unwrap_or(&self.kind.resource)
    }

    /// The namespace; empty if missing.
    pub fn namespace(&self) -> &str {
        self.meta("namespace")
    }

    /// The name; empty before the server has generated one.
    pub fn name(&self) -> &str {
        self.meta("name")
    }

    /// The UID; empty before the object is stored.
    pub fn uid(&self) -> &str {
        self.meta("uid")
    }

    /// The owner reference of its controller; none if it has none.
    pub fn controller(&self) -> Option<&Value> {
        let owners = self.body["metadata"]["ownerReferences"].as_array()?;
        owners.iter().find(|owner| owner["controller"] == true)
    }

    /// [`Self::controller`], if its kind is one of `makers`, each a group, a kind and a plural. Other projects have kinds of the same names.
    pub fn controller_among(&self, makers: &[(&str, &str, &str)]) -> Option<&Value> {
        let owner = self.controller()?;
        let version = owner["apiVersion"].as_str();
        let group = version.map(|version| version.split_once('/').map_or("", |(group, _)| group));
        let is_maker =
            |(of, kind, _): &(&str, &str, &str)| owner["kind"] == *kind && group.is_none_or(|group| group == *of);
        makers.iter().any(is_maker).then_some(owner)
    }

    /// The resource version; empty before the object is stored.
    pub fn resource_version(&self) -> &str {
        self.meta("resourceVersion")
    }

    /// True if and only if the object comes from a server, and has been created. A create can claim that.
    pub(crate) fn is_stored(&self) -> bool {
        !self.resource_version().is_empty() && !self.has_initializers()
    }

    /// True if and only if the object is being deleted.
    pub fn is_terminating(&self) -> bool {
        !self.body["metadata"]["deletionTimestamp"].is_null()
    }

    /// The names of the pending initializers, in order.
    pub fn pending(&self) -> impl Iterator<Item = &str> {
        let pending = self.body["metadata"]["initializers"]["pending"].as_array();
        pending.into_iter().flatten().map(|entry| entry["name"].as_str().unwrap_or_default())
    }

    /// True if and only if the object has `metadata.initializers`, even an empty one: it is still invisible.
    pub fn has_initializers(&self) -> bool {
        !self.body["metadata"]["initializers"].is_null()
    }

    /// True if and only if an initializer has rejected the object already.
    pub fn is_rejected(&self) -> bool {
        !self.body["metadata"]["initializers"]["result"].is_null()
    }

    /// The value of the object's own annotation `key`.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.body["metadata"]["annotations"].get(key)?.as_str()
    }

    /// The value of the object's own label `key`.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.body["metadata"]["labels"].get(key)?.as_str()
    }

    /// The object with the pod's `metadata` and `spec`: the pod itself, or the pod template.
    pub fn pod(&self) -> Option<&Value> {
        self.kind.pod_path.as_ref()?.iter().try_fold(&self.body, |at, key| at.get(key))
    }

    /// The pod's `spec`, if there is one.
    pub fn pod_spec(&self) -> Option<&Map<String, Value>> {
        self.pod()?.get("spec")?.as_object()
    }

    /// The value of the annotation `key` of the pod template or pod.
    pub fn pod_annotation(&self, key: &str) -> Option<&str> {
        self.pod()?["metadata"]["annotations"].get(key)?.as_str()
    }

    /// The value of the label `key` of the pod template or pod.
    pub fn pod_label(&self, key: &str) -> Option<&str> {
        self.pod()?["metadata"]["labels"].get(key)?.as_str()
    }

    /// The generation of a stored object, if it has changed since its creation.
    pub fn changed_since_creation(&self) -> Option<i64> {
        // The first generation is the created object.
        self.body["metadata"]["generation"].as_i64().filter(|&generation| generation > 1)
    }

    /// The pod that this workload makes, as far as it is known in advance. None for a pod, for a kind that makes no
    /// pods, and for a custom resource.
    pub fn made_pod(&self) -> Option<Self> {
        let is_template = self.kind.is_in_table() && self.kind.pod_path.as_ref().is_some_and(|path| !path.is_empty());
        let template = self.pod().filter(|pod| is_template && pod.is_object())?;
        let mut pod =
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"] });
        if !pod["metadata"].is_object() {
            pod["metadata"] = json!({});
        }
        pod["metadata"]["generateName"] = format!("{}-", self.name()).into();
        if !self.namespace().is_empty() {
            pod["metadata"]["namespace"] = self.namespace().into();
        }
        let claims =
            self.body["spec"]["volumeClaimTemplates"].as_array().filter(|_| self.kind.resource == "statefulsets");
        let names: Vec<&str> =
            claims.into_iter().flatten().filter_map(|claim| claim["metadata"]["name"].as_str()).collect();
        let spec = pod["spec"].as_object_mut()?;
        let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
        if let Some(volumes) = volumes.as_array_mut() {
            volumes.extend(names.into_iter().map(|name| {
                let claim = format!("{name}-{}-0", self.name());
                json!({ "name": name, "persistentVolumeClaim": { "claimName": claim } })
            }));
        }
        if spec.get("volumes").is_some_and(|volumes| volumes.as_array().is_some_and(Vec::is_empty)) {
            spec.remove("volumes");
        }
        let kind = Kind::find("", "pods")?;
        Some(Self { namespace_object: self.namespace_object.clone(), ..Self::new(kind, pod) })
    }

    /// The JSON pointer of the pod: `""` for a pod, `/spec/template` for a Deployment.
    pub fn pod_pointer(&self) -> String {
        self.kind.pod_path.iter().flatten().map(|key| format!("/{key}")).collect()
    }

    /// The length of [`Self::pod_pointer`], in bytes.
    pub(crate) fn pod_pointer_length(&self) -> usize {
        self.kind.pod_path.iter().flatten().map(|key| key.len() + 1).sum()
    }

    fn meta(&self, key: &str) -> &str {
        self.body["metadata"][key].as_str().unwrap_or_default()
    }
}
