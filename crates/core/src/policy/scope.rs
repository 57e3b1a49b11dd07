//! The parts of an object on which a validation depends.

use super::{CompiledValidation, Policy};
use crate::workload::{Kind, Workload};
use serde_json::Value;
use std::collections::BTreeSet;

/// The path of a part of an object, from its root. An empty path is the whole object.
pub(crate) type ObjectPath = Vec<String>;

/// The parts of an object of `kind` on which `demand` of `policy` depends: those that its expression reads, and those
/// that decide whether the policy selects the object.
///
/// A path ends at the first part that need not be a map, because the part below it may not exist.
pub(crate) fn parts(policy: &Policy, demand: &CompiledValidation, kind: &Kind) -> BTreeSet<ObjectPath> {
    let metadata = |field: &str| vec!["metadata".to_owned(), field.to_owned()];
    let conditions = policy.conditions.iter().map(|(_, condition)| condition);
    let read = conditions.chain([&demand.expression]).flat_map(|expression| expression.places_of_object());
    read.map(|place| known(place.fields, kind))
        .chain(policy.spec.label_selector.as_ref().map(|_| metadata("labels")))
        .chain(policy.spec.annotation_selector.as_ref().map(|_| metadata("annotations")))
        .collect()
}

/// True if and only if `old` and `new` are equal in every part on which `demand` of `policy` depends.
pub(crate) fn is_unchanged(policy: &Policy, demand: &CompiledValidation, old: &Workload, new: &Workload) -> bool {
    let [old_seen, new_seen] = [old, new].map(Workload::seen_by_expressions);
    let parts = parts(policy, demand, &new.kind);
    parts.iter().all(|path| at(old_seen, path) == at(new_seen, path))
}

fn at<'a>(value: &'a Value, path: &ObjectPath) -> Option<&'a Value> {
    path.iter().try_fold(value, |at, step| at.get(step))
}

/// The beginning of `fields` that exists, or whose last step is the only one that may be missing.
fn known(mut fields: ObjectPath, kind: &Kind) -> ObjectPath {
    let end = (0..fields.len()).find(|&end| !is_map(&fields[..end], kind));
    fields.truncate(end.unwrap_or(fields.len()));
    fields
}

/// Whether the part at `path` of every object of `kind` is a map, or missing.
fn is_map(path: &[String], kind: &Kind) -> bool {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    if matches!(path[..], [] | ["metadata"] | ["metadata", "labels" | "annotations"]) {
        return true;
    }
    let Some(pod) = kind.pod_path.as_ref().filter(|_| kind.is_in_table()) else { return false };
    let (above, below) = path.split_at(path.len().min(pod.len()));
    let is_on_the_way = above.iter().zip(pod).all(|(step, pod)| step == pod);
    is_on_the_way && matches!(below, [] | ["spec"] | ["metadata"] | ["metadata", "labels" | "annotations"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Site;
    use serde_json::json;

    #[test]
    fn a_validation_depends_on_what_it_reads_and_on_what_selects() {
        let told = |kind: &Kind, expression: &str, more: &Value| {
            let mut spec = json!({ "validations": [{ "expression": expression }] });
            more.as_object().into_iter().flatten().for_each(|(field, value)| spec[field] = value.clone());
            let object = json!({ "metadata": { "name": "p" }, "spec": spec });
            let policy = Policy::parse(&object, &Site::new("scpol-system", [], [])).unwrap();
            let parts = parts(&policy, &policy.validations[0], kind);
            parts.into_iter().map(|path| path.join(".")).collect::<Vec<_>>().join(" ")
        };
        let deployment = Kind::find("apps", "deployments").unwrap();
        let custom = Kind::of("example.org", "rollouts", None);
        for (expression, typed, free) in [
            ("true", "", ""),
            ("object.spec.replicas > 1", "spec.replicas", "spec"),
            ("object.spec.strategy.type == 'a'", "spec.strategy", "spec"),
            (
                "object.spec.template.spec.containers.all(c, c.image != '') && has(object.metadata.labels.team)",
                "metadata.labels.team spec.template.spec.containers",
                "metadata.labels.team spec",
            ),
            ("object.spec.template.metadata.labels.a.b == 1", "spec.template.metadata.labels.a", "spec"),
            (
                "object.metadata.name != '' && object.metadata.x.y == 1",
                "metadata.name metadata.x",
                "metadata.name metadata.x",
            ),
            ("size(object) > 0", "", ""),
            ("object.status.a == 1", "status", "status"),
        ] {
            assert_eq!(told(deployment, expression, &json!({})), typed, "{expression}");
            assert_eq!(told(&custom, expression, &json!({})), free, "{expression}");
        }
        let selecting = json!({
            "labelSelector": { "matchLabels": { "a": "b" } },
            "annotationSelector": { "matchAnnotations": { "a": "b" } },
            "matchConditions": [{ "name": "c", "expression": "object.spec.paused == true" }],
        });
        assert_eq!(
            told(deployment, "object.spec.replicas > 1", &selecting),
            "metadata.annotations metadata.labels spec.paused spec.replicas"
        );
    }
}
