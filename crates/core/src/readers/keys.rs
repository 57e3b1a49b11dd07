//! References of a template to ConfigMaps and Secrets, and to keys in them. Without a key that is not optional the kubelet
//! does not start the container, or does not mount the volume, which keeps the whole pod from starting.

use super::case::Case;
use super::facts::Fact;
use crate::api::code::Code;
use crate::api::v1alpha1::{RawObject, Template};
use crate::inject::Conflict;
use crate::inject::value::{at, objects, text};
use serde_json::Value;

/// A reference to an object.
pub(super) struct Reference {
    /// Its path below `spec.template`.
    pub(super) field: String,
    pub(super) fact: Fact,
    pub(super) name: String,
    /// The key; none for the whole object.
    pub(super) key: Option<String>,
    pub(super) is_optional: bool,
    /// Whether the ServiceAccount plugin looks at it.
    pub(super) is_judged: bool,
}

/// Where a container names keys and objects: the list, the field of an item, the kind.
const IN_CONTAINERS: [(&str, &[&str], Fact); 4] = [
    ("env", &["valueFrom", "configMapKeyRef"], Fact::ConfigMap),
    ("env", &["valueFrom", "secretKeyRef"], Fact::Secret),
    ("envFrom", &["configMapRef"], Fact::ConfigMap),
    ("envFrom", &["secretRef"], Fact::Secret),
];

/// Every reference of `template`.
pub(super) fn references(template: &Template) -> Vec<Reference> {
    let mut found = Vec::new();
    for (list, path, fact) in IN_CONTAINERS {
        let own = if list == "env" { &template.env } else { &template.env_from };
        found.extend(own.iter().enumerate().filter_map(|(index, item)| in_item(list, index, item, path, fact)));
        for (container, item) in template.all_containers() {
            let container = container.trim_start_matches("spec.template.");
            let items = objects(item, &[list]).enumerate();
            found.extend(
                items.filter_map(|(index, item)| in_item(&format!("{container}.{list}"), index, item, path, fact)),
            );
        }
    }
    for (index, volume) in template.volumes.iter().enumerate() {
        in_volume(&format!("volumes[{index}]"), volume, true, &mut found);
        let sources = objects(volume, &["projected", "sources"]).enumerate();
        sources.for_each(|(source, item)| {
            in_volume(&format!("volumes[{index}].projected.sources[{source}]"), item, false, &mut found);
        });
    }
    found
}

fn in_item(list: &str, index: usize, item: &RawObject, path: &[&str], fact: Fact) -> Option<Reference> {
    let reference = at(item, path)?.as_object()?;
    let key = text(reference, "key");
    Some(Reference {
        field: format!("{list}[{index}].{}", path.join(".")),
        fact,
        name: Some(text(reference, "name")).filter(|name| !name.is_empty())?.to_owned(),
        key: (!key.is_empty()).then(|| key.to_owned()),
        is_optional: reference.get("optional").is_some_and(|it| *it == true),
        is_judged: true,
    })
}

/// Adds the references of a volume, or of a source of a projected one.
fn in_volume(path: &str, item: &RawObject, is_volume: bool, found: &mut Vec<Reference>) {
    let secret = if is_volume { "secretName" } else { "name" };
    for (field, name, fact) in [("configMap", "name", Fact::ConfigMap), ("secret", secret, Fact::Secret)] {
        let Some(source) = at(item, &[field]).and_then(Value::as_object) else { continue };
        let name = text(source, name);
        if name.is_empty() {
            continue;
        }
        let keys = objects(source, &["items"]).enumerate();
        let keys = keys.map(|(at, item)| (format!("{path}.{field}.items[{at}]"), Some(text(item, "key").to_owned())));
        found.extend([(format!("{path}.{field}"), None)].into_iter().chain(keys).map(|(field, key)| Reference {
            field,
            fact,
            name: name.to_owned(),
            key,
            is_optional: source.get("optional").is_some_and(|it| *it == true),
            is_judged: is_volume,
        }));
    }
}

/// The keys of a ConfigMap or Secret; none if something else seems to fill it.
pub(super) fn keys(object: &Value) -> Option<Vec<&str>> {
    let maps = ["data", "binaryData", "stringData"].into_iter().filter_map(|map| object.get(map)?.as_object());
    let keys: Vec<_> = maps.flat_map(|map| map.keys().map(String::as_str)).collect();
    (!keys.is_empty()).then_some(keys)
}

/// A reference to a key that its object does not have.
pub(super) fn missing(case: &Case<'_>) -> Option<(String, Conflict)> {
    references(&case.written.spec).into_iter().filter(|it| !it.is_optional).find_map(|it| {
        let key = it.key.as_deref()?;
        let keys = keys(case.facts.get(it.fact, case.namespace(), &it.name)?)?;
        let message = format!(
            "`{}` of the template names key `{key}`, which {} `{}` does not have",
            it.field,
            it.fact.kind().kind,
            it.name
        );
        (!keys.contains(&key)).then(|| (it.field.clone(), Conflict { code: Code::NotStartable, message }))
    })
}
