//! PodPresets.

use super::objects::{Inputs, Source};
use super::steps::Old;
use super::{Draft, Weight, Work};
use serde_json::{Map, Value, json};

/// The annotation by which a pod excludes all PodPresets.
const EXCLUDE: &str = "podpreset.admission.kubernetes.io/exclude";
/// The additions of a PodPreset. A template has lists of the same names.
const LISTS: [&str; 4] = ["env", "envFrom", "volumeMounts", "volumes"];

pub(super) fn convert(inputs: &Inputs<'_>, work: &mut Work<'_>) {
    for source in &inputs.presets {
        one(source, inputs, work);
    }
}

fn one(source: &Source<'_>, inputs: &Inputs<'_>, work: &mut Work<'_>) {
    if work.site.protected_namespaces.contains(source.namespace) {
        let message = format!(
            "{}: no policy reaches the protected namespace `{}`: write it into the manifests there",
            source.title(),
            source.namespace
        );
        return work.tell(Weight::Lost, source.spot.place("metadata.namespace"), message);
    }
    let empty = Map::new();
    let fields = source.body["spec"].as_object().unwrap_or(&empty);
    for field in fields.keys().filter(|field| *field != "selector" && !LISTS.contains(&field.as_str())) {
        let message = format!("a PodPreset has no `{field}`: it had no effect, and is left out");
        work.tell(Weight::Lost, source.spot.place(&format!("spec.{field}")), message);
    }
    if let Some(selector) = fields.get("selector").filter(|selector| !selector.is_object() && !selector.is_null()) {
        let message = format!(
            "{}: its `selector` is {selector}, which selects nothing; write `matchLabels` or `matchExpressions` in it",
            source.title()
        );
        return work.tell(Weight::Lost, source.spot.place("spec.selector"), message);
    }
    let name = source.name();
    let has_twin = inputs.presets.iter().filter(|other| other.name() == name).count() > 1;
    work.drafts.push(Draft {
        name: if has_twin { format!("{name}-{}", source.namespace) } else { name.to_owned() },
        spec: spec(fields, source.namespace),
        from: vec![source.title()],
        initializer: None,
        old: Old::Preset(format!("podpreset/{name} -n {}", source.namespace)),
        template: source.spot.within("spec"),
        rest: source.spot.clone(),
    });
}

fn spec(fields: &Map<String, Value>, namespace: &str) -> Map<String, Value> {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    let template: Map<String, Value> = LISTS
        .iter()
        .filter_map(|list| Some(((*list).to_owned(), fields.get(*list).filter(|value| !is_empty(value))?.clone())))
        .collect();
    let mut spec = Map::from_iter([
        ("targets".to_owned(), json!([{ "group": "", "resource": "pods" }])),
        ("namespaces".to_owned(), json!([namespace])),
        (
            "annotationSelector".to_owned(),
            json!({ "matchExpressions": [{ "key": EXCLUDE, "operator": "NotIn", "values": ["true"] }] }),
        ),
        // Because PodPresets ignore it.
        ("hostNetworkPods".to_owned(), "Inject".into()),
    ]);
    // Because PodPresets add at the end.
    let position: Map<String, Value> = ["env", "envFrom"]
        .into_iter()
        .filter(|list| template.contains_key(*list))
        .map(|list| (list.to_owned(), "After".into()))
        .collect();
    if !position.is_empty() {
        spec.insert("position".to_owned(), position.into());
    }
    spec.insert("template".to_owned(), template.into());
    // Only if not empty, because an empty selector selects every pod; a policy has none then.
    if let Some(selector) = fields.get("selector").and_then(Value::as_object) {
        let mut selector = selector.clone();
        selector.retain(|_, value| !is_empty(value));
        if !selector.is_empty() {
            spec.insert("labelSelector".to_owned(), selector.into());
        }
    }
    spec
}

/// Reports the differences that every policy has from PodPresets.
pub(super) fn tell_differences(work: &mut Work<'_>) {
    let init = "init containers: a PodPreset leaves them alone up to Kubernetes 1.13, and later does not; `template.includeInitContainers: true` \
                adds to them, too";
    let conflicts = "in a conflict a pod gets nothing of any PodPreset; of policies only the one that is in conflict is left out. Of two mounts of \
                     one volume at different paths, a PodPreset makes a conflict, a policy none";
    let annotation =
        "pods carry `injected.scpol.dev/<policy>`, no more `podpreset.admission.kubernetes.io/podpreset-<name>`";
    for message in [init, conflicts, annotation] {
        work.tell(Weight::Differs, None, message);
    }
}
