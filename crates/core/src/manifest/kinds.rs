//! The kinds of objects in manifests: workloads, policies, lists of them, and others.

use super::Manifest;
use crate::api::{GROUP, MANAGER};
use crate::workload::{KINDS, Kind, Workload, is_built_in};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

const API_VERSION: &str = "scpol.dev/v1alpha1";
const POLICY: &str = "SidecarPolicy";

/// An object: a document, or an item of a list.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    /// The object's `apiVersion`, or that of its list.
    pub api_version: &'a str,
    /// The object's `kind`, or that of its list.
    pub kind: &'a str,
    /// The object itself.
    pub body: &'a Value,
}

impl<'a> Object<'a> {
    /// The API group; empty for core.
    pub fn group(&self) -> &'a str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// The name; empty if missing.
    pub fn name(&self) -> &'a str {
        self.body["metadata"]["name"].as_str().unwrap_or_default()
    }
}

/// The kinds that count as workloads: the built-in kinds, and the custom resources that policies target.
///
/// Policies name resources, and manifests name kinds. A `CustomResourceDefinition` among the manifests maps a kind to
/// its resource. Without one, the resource is the plural of the kind in lower case.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    /// By group and resource.
    targeted: HashMap<(String, String), Arc<Kind>>,
    /// The resource of a group and kind; none if it is cluster-scoped.
    defined: HashMap<(String, String), Option<String>>,
}

impl Kinds {
    /// The built-in kinds and `targeted`, resolved with the definitions among `objects`.
    pub fn new<'a>(targeted: impl Iterator<Item = &'a Arc<Kind>>, objects: &[Object<'_>]) -> Self {
        let mut kinds = Self::default();
        for kind in targeted.filter(|kind| !kind.is_in_table()) {
            kinds.targeted.entry((kind.group.clone(), kind.resource.clone())).or_insert_with(|| kind.clone());
        }
        kinds.defined.extend(objects.iter().filter_map(definition));
        kinds
    }

    /// `object` as a workload; none if it is another object.
    pub fn workload(&self, object: &Object<'_>) -> Option<Workload> {
        let custom = || self.targeted.get(&(object.group().to_owned(), self.resource(object)?));
        let kind = built_in(object).or_else(|| if self.targeted.is_empty() { None } else { custom() })?;
        Some(Workload::new(kind, object.body.clone()))
    }

    /// As [`Self::workload`], but also accepts a custom resource that no policy targets, with its pod template at any
    /// path.
    pub fn any_workload(&self, object: &Object<'_>) -> Option<Workload> {
        self.workload(object).or_else(|| {
            let is_custom = !is_built_in(object.group());
            let kind = is_custom.then(|| Some(Kind::at(object.group(), &self.resource(object)?, None)))??;
            Some(Workload::new(&Arc::new(kind), object.body.clone()))
        })
    }

    /// The resource of `object`; none if it is known to be cluster-scoped.
    fn resource(&self, object: &Object<'_>) -> Option<String> {
        let (group, kind) = (object.group(), object.kind);
        match self.defined.get(&(group.to_owned(), kind.to_owned())) {
            Some(defined) => defined.clone(),
            None => Some(ApiResource::from_gvk(&GroupVersionKind::gvk(group, "", kind)).plural),
        }
    }
}

/// The built-in kind of `object`, if it is a workload.
pub(super) fn built_in(object: &Object<'_>) -> Option<&'static Arc<Kind>> {
    KINDS.iter().find(|kind| kind.kind.as_deref() == Some(object.kind) && kind.is_in(object.group()))
}

/// The `apiVersion` and the `kind` of the built-in workload that `object` is probably meant to be: its kind or its group is misspelt.
/// None for workloads, and for kinds of groups with a domain, which others define.
pub fn meant_workload(object: &Object<'_>) -> Option<(String, &'static str)> {
    if object.group().contains('.') || built_in(object).is_some() {
        return None;
    }
    let edits = |kind: &str| strsim::damerau_levenshtein(&kind.to_lowercase(), &object.kind.to_lowercase());
    let near = KINDS.iter().filter_map(|kind| Some((edits(kind.kind.as_deref()?), kind)));
    let near = near.filter(|(edits, kind)| *edits <= kind.resource.len() / 5);
    let (_, kind) = near.min_by_key(|(edits, _)| *edits)?;
    let api_version = if kind.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", kind.group) };
    Some((api_version, kind.kind.as_deref()?))
}

/// Group and kind of a `CustomResourceDefinition`, and its resource if it is namespaced.
fn definition(object: &Object<'_>) -> Option<((String, String), Option<String>)> {
    if object.kind != "CustomResourceDefinition" || object.group() != "apiextensions.k8s.io" {
        return None;
    }
    let spec = object.body.get("spec")?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let resource = text(&spec["names"]["plural"])?;
    Some(((text(&spec["group"])?, text(&spec["names"]["kind"])?), (spec["scope"] != "Cluster").then_some(resource)))
}

/// `object`, if it is a `SidecarPolicy` of any version.
pub fn policy_of<'a>(object: &Object<'a>) -> Option<&'a Value> {
    (object.kind == POLICY && object.group() == GROUP).then_some(object.body)
}

/// Whether `object` is meant to be a `SidecarPolicy`, even if misspelt. Another group may have a kind of that name, but
/// a group that resembles ours is taken for a misspelling.
pub fn is_meant_as_policy(object: &Object<'_>) -> bool {
    let group = object.group();
    let is_like_ours = group.is_empty() || group.contains(MANAGER);
    group == GROUP || (object.kind.eq_ignore_ascii_case(POLICY) && is_like_ours)
}

/// The first of `apiVersion` and `kind` of [a policy](is_meant_as_policy) that is misspelt: the field, the expected
/// value, the value found.
pub fn misspelt<'a>(policy: &Object<'a>) -> Option<(&'static str, &'static str, &'a str)> {
    let written = [("apiVersion", API_VERSION, policy.api_version), ("kind", POLICY, policy.kind)];
    written.into_iter().find(|(_, wanted, found)| wanted != found)
}

impl Manifest {
    /// The objects of the document: the document itself, or the items of a list.
    pub fn objects(&self) -> Vec<Object<'_>> {
        let mut objects = Vec::new();
        collect(&self.value, ("", ""), &mut objects);
        objects
    }

    /// The whole document after `change` has replaced some of its objects; none if it replaces none.
    pub fn rewrite(&self, mut change: impl FnMut(&Object<'_>) -> Option<Value>) -> Option<Value> {
        rewrite(&self.value, ("", ""), &mut change)
    }
}

fn collect<'a>(value: &'a Value, list: (&'a str, &'a str), objects: &mut Vec<Object<'a>>) {
    let object = object(value, list);
    match items(&object) {
        Some(items) => items.iter().for_each(|item| collect(item, of_items(&object), objects)),
        None => objects.push(object),
    }
}

fn rewrite(value: &Value, list: (&str, &str), change: &mut impl FnMut(&Object<'_>) -> Option<Value>) -> Option<Value> {
    let object = object(value, list);
    let Some(items) = items(&object) else { return change(&object) };
    let changes: Vec<_> = items.iter().map(|item| rewrite(item, of_items(&object), change)).collect();
    changes.iter().any(Option::is_some).then(|| {
        let items = items.iter().zip(changes).map(|(item, change)| change.unwrap_or_else(|| item.clone())).collect();
        let mut value = value.clone();
        value["items"] = items;
        value
    })
}

fn object<'a>(body: &'a Value, (api_version, kind): (&'a str, &'a str)) -> Object<'a> {
    let field = |name: &str, default| body.get(name).and_then(Value::as_str).unwrap_or(default);
    Object { api_version: field("apiVersion", api_version), kind: field("kind", kind), body }
}

/// The items of a `List`, `DeploymentList` or similar list.
fn items<'a>(object: &Object<'a>) -> Option<&'a Vec<Value>> {
    object.body.get("items").and_then(Value::as_array).filter(|_| object.kind.ends_with("List"))
}

/// The `apiVersion` and `kind` of the items of a typed list. A plain `List` implies neither.
fn of_items<'a>(list: &Object<'a>) -> (&'a str, &'a str) {
    match list.kind.strip_suffix("List") {
        Some(kind) if !kind.is_empty() => (list.api_version, kind),
        _ => ("", ""),
    }
}

/// The path of the pod in `object`, if it is a built-in workload.
pub(super) fn pod_path(object: &Object<'_>) -> Option<&'static Vec<String>> {
    built_in(object)?.pod_path.as_ref()
}

/// True if and only if `object` may have pods: a built-in workload or a custom resource.
pub fn may_have_pods(object: &Object<'_>) -> bool {
    let is_custom = |group: &str| group.contains('.') && !group.ends_with(".k8s.io");
    has_pods(object) || is_custom(object.group())
}

/// True if and only if `object` is a built-in workload.
pub fn has_pods(object: &Object<'_>) -> bool {
    pod_path(object).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Format, Location};
    use serde_json::json;

    fn manifest(value: Value) -> Manifest {
        let place = Location { file: "test.yaml".into(), line: 1 };
        Manifest { place, format: Format::Yaml, text: String::new(), value, twice: Vec::new() }
    }

    #[test]
    fn a_workload_is_known_by_group_and_kind_not_by_version() {
        for (api_version, kind, expected) in [
            ("apps/v1", "Deployment", Some("deployments")),
            ("apps/v1beta1", "Deployment", Some("deployments")),
            ("extensions/v1beta1", "Deployment", Some("deployments")),
            ("extensions/v1beta1", "DaemonSet", Some("daemonsets")),
            ("extensions/v1beta1", "StatefulSet", None),
            ("batch/v1", "CronJob", Some("cronjobs")),
            ("v1", "Pod", Some("pods")),
            ("v1", "Deployment", None),
            ("example.org/v1", "Deployment", None),
            ("apps/v1", "deployment", None),
            ("v1", "ConfigMap", None),
            ("", "Pod", Some("pods")),
        ] {
            let manifest = manifest(json!({"apiVersion": api_version, "kind": kind}));
            let found =
                Kinds::default().workload(&manifest.objects()[0]).map(|workload| workload.kind.resource.clone());
            assert_eq!(found.as_deref(), expected, "{api_version} {kind}");
        }
    }

    #[test]
    fn a_misspelt_kind_or_group_of_a_workload_is_noticed() {
        for (api_version, kind, expected) in [
            ("v1", "pod", Some("v1 Pod")),
            ("v1", "Deployment", Some("apps/v1 Deployment")),
            ("app/v1", "Deployment", Some("apps/v1 Deployment")),
            ("apps/v1", "Deploymnet", Some("apps/v1 Deployment")),
            ("batch/v1", "Cronjob", Some("batch/v1 CronJob")),
            ("extensions/v1beta1", "StatefulSet", Some("apps/v1 StatefulSet")),
            ("v1", "Pod", None),
            ("v1", "Node", None),
            ("v1", "ConfigMap", None),
            ("apps/v1", "ReplicaSet", None),
            ("batch.volcano.sh/v1alpha1", "Job", None),
            ("v1", "", None),
        ] {
            let manifest = manifest(json!({"apiVersion": api_version, "kind": kind}));
            let found = meant_workload(&manifest.objects()[0]).map(|(version, kind)| format!("{version} {kind}"));
            assert_eq!(found.as_deref(), expected, "{api_version} {kind}");
        }
    }

    #[test]
    fn a_custom_resource_is_known_by_its_definition_and_else_by_its_plural() {
        let definition = |kind: &str, plural: &str, scope: &str| {
            json!({"apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "CustomResourceDefinition", "spec":
                {"group": "example.org", "scope": scope, "names": {"kind": kind, "plural": plural}}})
        };
        let list = manifest(json!({"apiVersion": "v1", "kind": "List", "items": [
            definition("Worker", "staff", "Namespaced"), definition("Planet", "planets", "Cluster"),
        ]}));
        let targets = ["rollouts", "staff", "workers", "planets", "policies"].map(|r| Kind::of("example.org", r, None));
        let kinds = Kinds::new(targets.iter(), &list.objects());
        for (api_version, kind, expected) in [
            ("example.org/v1", "Rollout", Some("rollouts")),
            ("example.org/v2", "Policy", Some("policies")),
            ("example.org/v1", "Worker", Some("staff")),
            ("example.org/v1", "Planet", None),
            ("example.org/v1", "Other", None),
            ("example.com/v1", "Rollout", None),
            ("v1", "Rollout", None),
            ("example.org/v1", "", None),
            ("apps/v1", "Deployment", Some("deployments")),
        ] {
            let manifest = manifest(json!({"apiVersion": api_version, "kind": kind}));
            let found = kinds.workload(&manifest.objects()[0]).map(|workload| workload.kind.resource.clone());
            assert_eq!(found.as_deref(), expected, "{api_version} {kind}");
        }
    }

    #[test]
    fn items_of_lists_within_lists_are_objects_and_typed_lists_say_their_kind() {
        let list = manifest(json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}},
            {"apiVersion": "apps/v1", "kind": "DeploymentList", "items": [{"metadata": {"name": "b"}}]},
            {"metadata": {"name": "c"}},
        ]}));
        let found: Vec<_> = list.objects().iter().map(|object| format!("{}/{}", object.kind, object.name())).collect();
        assert_eq!(found, ["Pod/a", "Deployment/b", "/c"]);
    }

    #[test]
    fn a_list_is_rewritten_only_where_an_item_changes() {
        let value = json!({"apiVersion": "v1", "kind": "List", "items": [{"kind": "A"}, {"kind": "B"}], "x": 1});
        let list = manifest(value.clone());
        assert_eq!(list.rewrite(|_| None), None);
        let changed = list.rewrite(|object| (object.kind == "B").then(|| json!("changed"))).unwrap();
        assert_eq!(changed["items"], json!([{"kind": "A"}, "changed"]));
        assert_eq!(changed["x"], 1);
    }
}
