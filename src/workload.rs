//! A workload as the server sent it: raw JSON, so that no field newer or older than our bindings is ever lost.
//!
//! What it says about itself that decisions need is read through predicates and small accessors; where its pod
//! template lies comes from the table [`KINDS`].

use json_patch::Patch;
use serde_json::{Map, Value};
use std::sync::{Arc, OnceLock};

/// A built-in kind that carries a pod template, or is a pod.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// The API group that we read and write it through. `""` is core.
    pub group: &'static str,
    /// Every group that ever served it: a request through any of them stores the same object.
    pub groups: &'static [&'static str],
    /// The plural name, as in `spec.targets[].resource`.
    pub resource: &'static str,
    /// The kind, as in a manifest.
    pub kind: &'static str,
    /// Where the pod lies in it: the path of the object that holds the pod's `metadata` and `spec`. None if it has none: such
    /// a kind can be judged by `validations`, and gets nothing.
    pub pod_path: Option<&'static [&'static str]>,
}

/// The built-in kinds that a policy may target.
pub static KINDS: &[Kind] = &[
    Kind {
        group: "apps",
        groups: &["apps", "extensions"],
        resource: "deployments",
        kind: "Deployment",
        pod_path: Some(&["spec", "template"]),
    },
    Kind {
        group: "apps",
        groups: &["apps"],
        resource: "statefulsets",
        kind: "StatefulSet",
        pod_path: Some(&["spec", "template"]),
    },
    Kind {
        group: "apps",
        groups: &["apps", "extensions"],
        resource: "daemonsets",
        kind: "DaemonSet",
        pod_path: Some(&["spec", "template"]),
    },
    Kind {
        group: "batch",
        groups: &["batch"],
        resource: "cronjobs",
        kind: "CronJob",
        pod_path: Some(&["spec", "jobTemplate", "spec", "template"]),
    },
    Kind { group: "batch", groups: &["batch"], resource: "jobs", kind: "Job", pod_path: Some(&["spec", "template"]) },
    Kind { group: "", groups: &[""], resource: "pods", kind: "Pod", pod_path: Some(&[]) },
    Kind { group: "", groups: &[""], resource: "secrets", kind: "Secret", pod_path: None },
];

impl Kind {
    /// The kind of a resource that any of its groups serves.
    pub fn find(group: &str, resource: &str) -> Option<&'static Kind> {
        KINDS.iter().find(|kind| kind.resource == resource && kind.groups.contains(&group))
    }
}

/// One object of a [`Kind`].
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Its kind.
    pub kind: &'static Kind,
    /// The whole object.
    pub body: Value,
    /// The Namespace that it is in, where it has been read.
    pub namespace_object: Option<Arc<Value>>,
    /// See [`Self::seen_by_expressions`].
    seen: OnceLock<Value>,
}

/// What only the server sets. Not every engine has it, so none shows it to expressions.
const OF_THE_SERVER: [&str; 7] =
    ["uid", "resourceVersion", "generation", "creationTimestamp", "selfLink", "managedFields", "initializers"];

impl Workload {
    /// The object `body`, known to be of `kind`.
    pub fn new(kind: &'static Kind, body: Value) -> Self {
        Self { kind, body, namespace_object: None, seen: OnceLock::new() }
    }

    /// The same object with another `body`.
    #[must_use]
    pub fn with_body(&self, body: Value) -> Self {
        Self { namespace_object: self.namespace_object.clone(), ..Self::new(self.kind, body) }
    }

    /// The body once `patch`, which was planned for this very object, has been applied.
    pub fn patched(&self, patch: &Patch) -> Value {
        let mut body = self.body.clone();
        json_patch::patch(&mut body, patch).expect("a plan applies to what it was made for");
        body
    }

    /// The object as expressions see it on every engine and in files: without `status`, what only the server sets, and the
    /// name that the server has generated.
    ///
    /// # Guarantees
    /// It is made once; what is changed in [`Self::body`] afterwards does not show.
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
            seen
        })
    }

    /// The same object, in the Namespace `namespace`.
    #[must_use]
    pub fn within(self, namespace: Option<Arc<Value>>) -> Self {
        Self { namespace_object: namespace, ..self }
    }

    /// True if and only if its pod ends by itself, as a Job's does: `restartPolicy` is neither `Always` nor absent.
    pub fn ends(&self) -> bool {
        let policy = self.pod_spec().and_then(|spec| spec.get("restartPolicy")?.as_str());
        policy.is_some_and(|policy| !policy.is_empty() && policy != "Always")
    }

    /// The namespace; empty if the object has none.
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

    /// The resource version; empty before the object is stored.
    pub fn resource_version(&self) -> &str {
        self.meta("resourceVersion")
    }

    /// True if and only if the object is being deleted.
    pub fn is_terminating(&self) -> bool {
        !self.body["metadata"]["deletionTimestamp"].is_null()
    }

    /// The names of the initializers that the object still waits for, in order.
    pub fn pending(&self) -> impl Iterator<Item = &str> {
        let pending = self.body["metadata"]["initializers"]["pending"].as_array();
        pending.into_iter().flatten().map(|entry| entry["name"].as_str().unwrap_or_default())
    }

    /// True if and only if an initializer has rejected the object already.
    pub fn is_rejected(&self) -> bool {
        !self.body["metadata"]["initializers"]["result"].is_null()
    }

    /// A value among the object's own annotations.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.body["metadata"]["annotations"].get(key)?.as_str()
    }

    /// A value among the object's own labels.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.body["metadata"]["labels"].get(key)?.as_str()
    }

    /// The object that holds the pod's `metadata` and `spec`: the pod itself, or the pod template.
    pub fn pod(&self) -> Option<&Value> {
        self.kind.pod_path?.iter().try_fold(&self.body, |at, key| at.get(key))
    }

    /// The pod's `spec`, if there is one.
    pub fn pod_spec(&self) -> Option<&Map<String, Value>> {
        self.pod()?.get("spec")?.as_object()
    }

    /// A value among the annotations of the pod template, or of the pod.
    pub fn pod_annotation(&self, key: &str) -> Option<&str> {
        self.pod()?["metadata"]["annotations"].get(key)?.as_str()
    }

    /// A value among the labels of the pod template, or of the pod.
    pub fn pod_label(&self, key: &str) -> Option<&str> {
        self.pod()?["metadata"]["labels"].get(key)?.as_str()
    }

    /// The JSON pointer of the pod: `""` for a pod, `/spec/template` for a Deployment.
    pub fn pod_pointer(&self) -> String {
        self.kind.pod_path.into_iter().flatten().map(|key| format!("/{key}")).collect()
    }

    fn meta(&self, key: &str) -> &str {
        self.body["metadata"][key].as_str().unwrap_or_default()
    }
}
