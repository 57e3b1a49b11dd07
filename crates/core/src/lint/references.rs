//! References of a template to objects outside of it.

use super::{Context, Note};
use crate::api::code::Code;
use crate::api::v1alpha1::{RawObject, SidecarPolicySpec, Template};
use serde_json::Value;
use std::collections::BTreeSet;

/// The ConfigMaps, Secrets and claims that `template` refers to and that are not optional, such as `Secret tls`. They
/// must be in the namespace of every workload that gets it.
pub fn needs(template: &Value) -> BTreeSet<String> {
    let mut needs = BTreeSet::new();
    collect(template, &mut needs);
    needs
}

fn collect(value: &Value, needs: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, needs)),
        Value::Object(fields) => fields.iter().for_each(|(field, value)| {
            let (kind, names): (_, Vec<&Value>) = match field.as_str() {
                "configMap" | "configMapRef" | "configMapKeyRef" => ("ConfigMap", vec![value]),
                "secret" | "secretRef" | "secretKeyRef" | "nodePublishSecretRef" => ("Secret", vec![value]),
                "imagePullSecrets" => ("Secret", value.as_array().into_iter().flatten().collect()),
                "persistentVolumeClaim" => ("PersistentVolumeClaim", vec![value]),
                // Skipped, because keys of labels and annotations may look like references.
                "labels" | "annotations" => return,
                _ => return collect(value, needs),
            };
            let required = names.into_iter().filter(|reference| reference["optional"] != true);
            let named = required.filter_map(|reference| {
                let name = ["name", "secretName", "claimName"].into_iter().find_map(|field| reference.get(field));
                name.and_then(Value::as_str)
            });
            needs.extend(named.map(|name| format!("{kind} {name}")));
        }),
        _ => {}
    }
}

/// Objects that must be in the namespace of every workload.
pub(super) fn objects(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let Some(template) = spec.template.as_ref().and_then(|template| serde_json::to_value(template).ok()) else {
        return Vec::new();
    };
    let needs: Vec<_> = needs(&template).into_iter().collect();
    if needs.is_empty() {
        return Vec::new();
    }
    let message = format!("needs in the namespace of every workload: {}", needs.join(", "));
    vec![Note::new(Code::NeedsReference, "spec.template", message)]
}

/// Volumes that every workload must define.
pub(super) fn volumes(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let Some(template) = &spec.template else { return Vec::new() };
    let mut seen: BTreeSet<&str> =
        template.volumes.iter().filter_map(|volume| volume.get("name").and_then(Value::as_str)).collect();
    let foreign = mounts(template).into_iter().filter(|(_, name)| seen.insert(name));
    let note = |(field, name): (String, &str)| {
        let message = format!(
            "is `{name}`, which the template does not have: a workload without that volume is not injected (SCP0202)"
        );
        Note::new(Code::NeedsReference, field, message)
    };
    foreign.map(note).collect()
}

/// Every mount of the template: the path of its volume's name, and the name.
fn mounts(template: &Template) -> Vec<(String, &str)> {
    let in_containers = template.all_containers().flat_map(|(path, container)| {
        ["volumeMounts", "volumeDevices"].into_iter().flat_map(move |field| {
            let path = format!("{path}.{field}");
            named(&path, container.get(field).and_then(Value::as_array).into_iter().flatten().map(Value::as_object))
        })
    });
    let own = named("spec.template.volumeMounts", template.volume_mounts.iter().map(Some));
    in_containers.chain(own).collect()
}

fn named<'a>(path: &str, items: impl Iterator<Item = Option<&'a RawObject>>) -> Vec<(String, &'a str)> {
    let name = |item: Option<&'a RawObject>| item?.get("name")?.as_str();
    items.enumerate().filter_map(|(index, item)| Some((format!("{path}[{index}].name"), name(item)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_template_refers_to_is_found_wherever_it_stands() {
        let template = json!({
            "metadata": {"labels": {"secret": "x"}},
            "containers": [{"env": [
                {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}},
                {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c0", "key": "k", "optional": true}}},
            ], "envFrom": [{"configMapRef": {"name": "c1"}}]}],
            "volumes": [
                {"name": "v", "configMap": {"name": "c2"}},
                {"name": "w", "secret": {"secretName": "s2"}},
                {"name": "x", "projected": {"sources": [{"secret": {"name": "s3"}}, {"configMap": null}]}},
                {"name": "y", "persistentVolumeClaim": {"claimName": "p1"}},
            ],
            "imagePullSecrets": [{"name": "s4"}],
        });
        let expected = [
            "ConfigMap c1",
            "ConfigMap c2",
            "PersistentVolumeClaim p1",
            "Secret s1",
            "Secret s2",
            "Secret s3",
            "Secret s4",
        ];
        assert_eq!(needs(&template), BTreeSet::from(expected.map(str::to_owned)));
    }
}
