//! Helpers for pods, markers and lists.

use serde_json::{Map, Value};

/// The lists of a pod's `spec` that injection adds items to.
pub(crate) const LISTS: [&str; 4] = ["volumes", "imagePullSecrets", "initContainers", "containers"];
/// The lists of a container that injection adds items to.
pub(crate) const INNER: [&str; 3] = ["env", "envFrom", "volumeMounts"];

/// Whether the key of an annotation, plain or as a step of a JSON pointer, is that of a marker.
pub(crate) fn is_marker(key: &str) -> bool {
    policy_of(&key.replace("~1", "/")).is_some()
}

/// The policy of a marker annotation with this key.
fn policy_of(key: &str) -> Option<&str> {
    key.strip_prefix("injected.scpol.dev/")
}

/// The names of the pending initializers, the next one first.
pub fn pending(object: &Value) -> impl Iterator<Item = &str> {
    let pending = object["metadata"]["initializers"]["pending"].as_array();
    pending.into_iter().flatten().filter_map(|entry| entry["name"].as_str())
}

/// The content of a marker.
pub(crate) struct Marker {
    pub(crate) policy: String,
    pub(crate) hash: String,
    pub(crate) added: Vec<String>,
}

/// The readable markers of a pod.
pub(crate) fn markers(pod: &Value) -> Vec<Marker> {
    let annotations = pod["metadata"]["annotations"].as_object();
    let marker = |(key, value): (&String, &Value)| {
        let policy = policy_of(key)?.to_owned();
        let marker: Value = serde_json::from_str(value.as_str()?).ok()?;
        let added =
            marker["added"].as_array()?.iter().filter_map(|pointer| pointer.as_str().map(str::to_owned)).collect();
        Some(Marker { policy, hash: marker["hash"].as_str()?.to_owned(), added })
    };
    annotations.into_iter().flatten().filter_map(marker).collect()
}

/// The policies that have a marker among the annotations, each with the hash of its content.
pub(crate) fn marked(annotations: &Value) -> impl Iterator<Item = (String, String)> {
    let all = annotations.as_object().into_iter().flatten();
    all.filter_map(|(key, value)| {
        let marker: Value = serde_json::from_str(value.as_str().unwrap_or_default()).unwrap_or_default();
        Some((policy_of(key)?.to_owned(), marker["hash"].as_str().unwrap_or_default().to_owned()))
    })
}

/// `object` without what these markers list, without any marker, and without what servers maintain.
pub(crate) fn without(object: &Value, pod: &str, added: &[String]) -> Value {
    let mut bare = object.clone();
    for pointer in added {
        let steps: Vec<String> = steps(pointer);
        take(&mut bare, "", &steps);
    }
    if let Some(annotations) = bare.pointer_mut(&format!("{pod}/metadata/annotations")).and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !is_marker(key));
    }
    bare.as_object_mut().map(|fields| fields.remove("status"));
    for field in ["resourceVersion", "generation", "managedFields"] {
        bare["metadata"].as_object_mut().map(|metadata| metadata.remove(field));
    }
    prune(&mut bare);
    bare
}

/// Removes what is at the keyed `steps` below a list or a field of that name. What still has something in it stays.
fn take(at: &mut Value, list: &str, steps: &[String]) {
    let Some((step, rest)) = steps.split_first() else { return };
    let is_last = rest.is_empty();
    match at {
        Value::Object(fields) => {
            let is_parent = |value: &Value| value.as_array().is_some_and(|items| !items.is_empty());
            if is_last && !fields.get(step).is_some_and(is_parent) && !matches!(step.as_str(), "annotations" | "labels")
            {
                fields.remove(step);
            } else if let Some(below) = fields.get_mut(step).filter(|_| !is_last) {
                take(below, step, rest);
            }
        }
        Value::Array(items) if is_last => items.retain(|item| key(list, item) != *step),
        Value::Array(items) => {
            items.iter_mut().filter(|item| key(list, item) == *step).for_each(|item| take(item, step, rest));
        }
        _ => {}
    }
}

/// Removes what is empty.
fn prune(at: &mut Value) {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    match at {
        Value::Object(fields) => {
            fields.values_mut().for_each(prune);
            fields.retain(|_, value| !is_empty(value));
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

fn steps(pointer: &str) -> Vec<String> {
    pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")).collect()
}

/// The path of the first difference between two objects.
pub(crate) fn difference(before: &Value, after: &Value) -> Option<String> {
    missing("", before, after).or_else(|| missing("", after, before))
}

/// The number of items in `object` at a marker's `pointer`. List items are addressed by key.
pub(crate) fn count(object: &Value, pointer: &str) -> usize {
    let steps = steps(pointer);
    let mut found = vec![object];
    let mut list = "";
    for step in &steps {
        found = found.into_iter().flat_map(|at| below(at, list, step)).collect();
        list = step;
    }
    found.len()
}

fn below<'a>(at: &'a Value, list: &str, step: &str) -> Vec<&'a Value> {
    match at {
        Value::Object(fields) => fields.get(step).into_iter().filter(|value| !value.is_null()).collect(),
        Value::Array(items) => items.iter().filter(|item| key(list, item) == step).collect(),
        _ => Vec::new(),
    }
}

/// The key of an item of this list in markers.
fn key(list: &str, item: &Value) -> String {
    let text = |field: &str| item[field].as_str().unwrap_or_default();
    match list {
        "volumeMounts" => match text("mountPath").trim_end_matches('/') {
            "" => "/".into(),
            path => path.into(),
        },
        "envFrom" => {
            let name = |field: &str| Some(format!("{field}:{}", item[field]["name"].as_str()?));
            let of = name("configMapRef").or_else(|| name("secretRef")).unwrap_or_default();
            if text("prefix").is_empty() { of } else { format!("{of}:{}", text("prefix")) }
        }
        _ => text("name").into(),
    }
}

/// The path of the first value in `before` that is missing or different in `after`. Fields that the server maintains
/// and the initializers are ignored. Lists in `after` may have more items.
pub(crate) fn lost(before: &Value, after: &Value) -> Option<String> {
    let stripped = |object: &Value| {
        let mut object = object.clone();
        for field in ["resourceVersion", "generation", "managedFields", "initializers"] {
            object["metadata"].as_object_mut().map(|metadata| metadata.remove(field));
        }
        object
    };
    missing("", &stripped(before), &stripped(after))
}

fn missing(path: &str, before: &Value, after: &Value) -> Option<String> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => missing_field(path, before, after),
        (Value::Array(before), Value::Array(after)) => {
            let mut rest = after.iter();
            let gone = before.iter().position(|item| !rest.any(|other| missing("", item, other).is_none()))?;
            Some(format!("{path}/{gone}"))
        }
        (before, after) if before == after => None,
        _ => Some(path.to_owned()),
    }
}

fn missing_field(path: &str, before: &Map<String, Value>, after: &Map<String, Value>) -> Option<String> {
    let fields = before.iter().filter(|(name, _)| !is_marker(name));
    fields.into_iter().find_map(|(name, value)| {
        let path = format!("{path}/{name}");
        after.get(name).map_or_else(|| Some(path.clone()), |after| missing(&path, value, after))
    })
}
