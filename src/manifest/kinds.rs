//! What the objects in manifests are: workloads, policies, lists of either, and all the rest.

use super::Manifest;
use crate::workload::{KINDS, Kind, Workload};
use serde_json::Value;

/// The group of our own API.
const OUR_GROUP: &str = "scpol.dev";

/// An object in a document, or in a list that is one.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    /// Its `apiVersion`; that of its list where it has none.
    pub api_version: &'a str,
    /// Its `kind`; that of its list where it has none.
    pub kind: &'a str,
    /// The object itself.
    pub body: &'a Value,
}

impl<'a> Object<'a> {
    /// The API group; empty for core.
    pub fn group(&self) -> &'a str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// The name; empty if it has none.
    pub fn name(&self) -> &'a str {
        self.body["metadata"]["name"].as_str().unwrap_or_default()
    }
}

/// `object` as a workload, if its kind is one of [`KINDS`].
pub fn workload_of(object: &Object<'_>) -> Option<Workload> {
    let is_kind = |kind: &&Kind| kind.kind == object.kind && kind.groups.contains(&object.group());
    KINDS.iter().find(is_kind).map(|kind| Workload::new(kind, object.body.clone()))
}

/// `object`, if it is a `SidecarPolicy` of any version.
pub fn policy_of<'a>(object: &Object<'a>) -> Option<&'a Value> {
    (object.kind == "SidecarPolicy" && object.group() == OUR_GROUP).then_some(object.body)
}

impl Manifest {
    /// Its objects: itself, or what is in it if it is a list.
    pub fn objects(&self) -> Vec<Object<'_>> {
        let mut objects = Vec::new();
        collect(&self.value, ("", ""), &mut objects);
        objects
    }

    /// The whole document once `change` has given the objects that it changes their new values; none if it changes none.
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

/// The items of `List`, `DeploymentList` and their like.
fn items<'a>(object: &Object<'a>) -> Option<&'a Vec<Value>> {
    object.body.get("items").and_then(Value::as_array).filter(|_| object.kind.ends_with("List"))
}

/// What the items of a typed list are, where they do not say it. A plain `List` does not say it either.
fn of_items<'a>(list: &Object<'a>) -> (&'a str, &'a str) {
    match list.kind.strip_suffix("List") {
        Some(kind) if !kind.is_empty() => (list.api_version, kind),
        _ => ("", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Format, Place};
    use serde_json::json;

    fn manifest(value: Value) -> Manifest {
        let place = Place { file: "test.yaml".into(), line: 1 };
        Manifest { place, format: Format::Yaml, text: String::new(), value }
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
            let found = workload_of(&manifest.objects()[0]).map(|workload| workload.kind.resource);
            assert_eq!(found, expected, "{api_version} {kind}");
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
