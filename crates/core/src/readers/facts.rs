//! Objects beside a workload, as far as they are known.

use crate::inject::value::{objects, text};
use crate::manifest::Object;
use crate::workload::Workload;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A kind of object that readers of pods look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fact {
    ServiceAccount,
    ConfigMap,
    Secret,
    LimitRange,
    ResourceQuota,
    PriorityClass,
    Autoscaler,
    VerticalAutoscaler,
}

/// How a kind of object is found, in files and on a server.
#[derive(Debug)]
pub struct FactKind {
    pub fact: Fact,
    pub group: &'static str,
    /// Its versions, the newest first.
    pub versions: &'static [&'static str],
    pub kind: &'static str,
    pub resource: &'static str,
    pub is_namespaced: bool,
}

/// Every kind.
pub const FACTS: [FactKind; 8] = [
    kind(Fact::ServiceAccount, "", &["v1"], "ServiceAccount", "serviceaccounts"),
    kind(Fact::ConfigMap, "", &["v1"], "ConfigMap", "configmaps"),
    kind(Fact::Secret, "", &["v1"], "Secret", "secrets"),
    kind(Fact::LimitRange, "", &["v1"], "LimitRange", "limitranges"),
    kind(Fact::ResourceQuota, "", &["v1"], "ResourceQuota", "resourcequotas"),
    FactKind {
        is_namespaced: false,
        ..kind(Fact::PriorityClass, "scheduling.k8s.io", &["v1"], "PriorityClass", "priorityclasses")
    },
    kind(Fact::Autoscaler, "autoscaling", &["v2", "v1"], "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    kind(Fact::VerticalAutoscaler, "autoscaling.k8s.io", &["v1"], "VerticalPodAutoscaler", "verticalpodautoscalers"),
];

const fn kind(
    fact: Fact,
    group: &'static str,
    versions: &'static [&'static str],
    kind: &'static str,
    resource: &'static str,
) -> FactKind {
    FactKind { fact, group, versions, kind, resource, is_namespaced: true }
}

impl Fact {
    /// The row of this kind.
    pub fn kind(self) -> &'static FactKind {
        FACTS.iter().find(|kind| kind.fact == self).expect("every fact has a row")
    }
}

/// The known objects. An object that is missing here is unknown: it may exist.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// By kind, namespace and name. The namespace of a cluster-scoped object is empty.
    known: BTreeMap<(Fact, String, String), Arc<Value>>,
}

impl Facts {
    /// The facts among `objects`. An object that names no namespace is in `namespace`.
    pub fn of(objects: &[Object<'_>], namespace: &str) -> Self {
        let mut facts = Self::default();
        for object in objects {
            let is_it = |kind: &&FactKind| kind.kind == object.kind && kind.group == object.group();
            if let Some(kind) = FACTS.iter().find(is_it).filter(|_| !object.name().is_empty()) {
                let own = object.body["metadata"]["namespace"].as_str().filter(|own| !own.is_empty());
                facts.add(kind.fact, own.unwrap_or(namespace), Arc::new(object.body.clone()));
            }
        }
        facts
    }

    /// Adds `object` of the `namespace`.
    pub fn add(&mut self, fact: Fact, namespace: &str, object: Arc<Value>) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let namespace = if fact.kind().is_namespaced { namespace } else { "" };
        self.known.insert((fact, namespace.to_owned(), name), object);
    }

    /// True if and only if nothing is known.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The object `name`; none if it is unknown.
    pub(super) fn get(&self, fact: Fact, namespace: &str, name: &str) -> Option<&Value> {
        self.known.get(&(fact, namespace.to_owned(), name.to_owned())).map(Arc::as_ref)
    }

    /// The known objects of a namespace, or of the cluster, by name.
    pub(super) fn all(&self, fact: Fact, namespace: &str) -> impl Iterator<Item = (&str, &Value)> {
        let namespace = if fact.kind().is_namespaced { namespace.to_owned() } else { String::new() };
        let first = (fact, namespace.clone(), String::new());
        let rest = self.known.range(first..);
        let own = rest.take_while(move |((other, place, _), _)| *other == fact && *place == namespace);
        own.map(|((.., name), object)| (name.as_str(), object.as_ref()))
    }
}

/// The ServiceAccount of the pods of `workload`.
pub(super) fn account(pod_spec: &Map<String, Value>) -> &str {
    let named = ["serviceAccountName", "serviceAccount"].into_iter().map(|field| text(pod_spec, field));
    named.into_iter().find(|name| !name.is_empty()).unwrap_or("default")
}

/// The containers and init containers of a pod, each with its list.
pub(super) fn containers(workload: &Workload) -> impl Iterator<Item = (&'static str, &Map<String, Value>)> {
    let spec = workload.pod_spec();
    let lists = ["initContainers", "containers"].into_iter();
    lists.flat_map(move |list| {
        spec.into_iter().flat_map(move |spec| objects(spec, &[list]).map(move |item| (list, item)))
    })
}

/// The kind and the name of a source of variables: a ConfigMap or a Secret.
pub(super) fn source(item: &Map<String, Value>) -> Option<(Fact, &str)> {
    let of = |field: &str, fact| Some((fact, item.get(field)?.get("name")?.as_str()?));
    of("configMapRef", Fact::ConfigMap).or_else(|| of("secretRef", Fact::Secret))
}
