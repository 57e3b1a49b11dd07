//! The promise of markers: the removal of the listed content restores the original. Written independently of the code
//! that writes markers, so that both would need the same defect.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use serde_json::{Map, Value};

/// Removes the content that the marker of `policy` lists and no other one, and the marker. `pod` is the pointer of the
/// workload's pod.
pub(crate) fn undo(body: &mut Value, pod: &str, policy: &str) {
    let key = format!("injected.scpol.dev/{policy}");
    let annotations = body.pointer_mut(&format!("{pod}/metadata/annotations")).and_then(Value::as_object_mut);
    let Some(marker) = annotations.and_then(|annotations| annotations.remove(&key)) else { return };
    let marker: Value = serde_json::from_str(marker.as_str().unwrap()).unwrap();
    let list = |field: &str| {
        marker[field].as_array().into_iter().flatten().map(|at| at.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (nulls, others) = (list("nulls"), others(body, pod));
    let mut added = list("added");
    added.retain(|at| !others.contains(at) || is_parent(body, at));
    for at in added.iter().rev() {
        let tokens: Vec<String> = at[1..].split('/').map(|token| token.replace("~1", "/").replace("~0", "~")).collect();
        remove(body, "", &tokens, nulls.contains(at));
    }
}

/// Whether the marker entry `at` is a list or map.
fn is_parent(body: &Value, at: &str) -> bool {
    locate(body, at).is_none()
}

/// What the markers list.
fn others(body: &Value, pod: &str) -> Vec<String> {
    let annotations = body.pointer(&format!("{pod}/metadata/annotations")).and_then(Value::as_object);
    let markers = annotations.into_iter().flatten().filter(|(key, _)| key.starts_with("injected.scpol.dev/"));
    let added = markers.flat_map(|(_, marker)| {
        let marker: Value = serde_json::from_str(marker.as_str().unwrap_or_default()).unwrap_or_default();
        marker["added"].as_array().cloned().unwrap_or_default()
    });
    added.filter_map(|at| Some(at.as_str()?.to_owned())).collect()
}

/// The pointer of the item or entry that a marker lists as `at`, with indexes instead of keys. None for a list or map.
pub(crate) fn locate(body: &Value, at: &str) -> Option<String> {
    let (mut value, mut name, mut pointer) = (body, String::new(), String::new());
    for token in at[1..].split('/') {
        let key_of_it = token.replace("~1", "/").replace("~0", "~");
        let step = match value {
            Value::Array(items) => items.iter().position(|item| key(&name, item) == key_of_it)?.to_string(),
            _ => token.to_owned(),
        };
        pointer = format!("{pointer}/{step}");
        value = body.pointer(&pointer)?;
        name = key_of_it;
    }
    let is_parent = value.is_array() || ["/metadata", "/labels", "/annotations"].iter().any(|end| at.ends_with(end));
    (!is_parent).then_some(pointer)
}

/// Removes the value at `tokens` below `at`, whose name is `name`.
fn remove(at: &mut Value, name: &str, tokens: &[String], was_null: bool) {
    let (token, rest) = tokens.split_first().unwrap();
    match (at, rest) {
        (Value::Array(items), []) => {
            let count = items.len();
            items.retain(|item| key(name, item) != **token);
            assert_eq!(items.len(), count - 1, "`{token}` is listed once and there once");
        }
        (Value::Object(fields), []) if fields.get(token).is_some_and(Value::is_string) => drop(fields.remove(token)),
        (Value::Object(fields), []) => remove_parent(fields, token, was_null),
        (Value::Array(items), rest) => {
            remove(items.iter_mut().find(|item| key(name, item) == **token).unwrap(), token, rest, was_null)
        }
        (Value::Object(fields), rest) => remove(fields.get_mut(token).unwrap(), token, rest, was_null),
        (other, _) => panic!("`{token}` is listed below {other}"),
    }
}

/// Removes a created list or map if it is empty.
fn remove_parent(fields: &mut Map<String, Value>, name: &str, was_null: bool) {
    let is_empty = match &fields[name] {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        other => panic!("`{name}` is listed, and is {other}"),
    };
    if is_empty && was_null {
        fields.insert(name.to_owned(), Value::Null);
    } else if is_empty {
        fields.remove(name);
    }
}

/// The key of `item` of the list `name` in markers.
fn key(name: &str, item: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match name {
        "volumeMounts" => match text(&item["mountPath"]).as_str() {
            "/" => "/".to_owned(),
            path => path.trim_end_matches('/').to_owned(),
        },
        "envFrom" => {
            let of = ["configMapRef", "secretRef"].into_iter().find(|of| item[*of]["name"].is_string());
            let of = of.map(|of| format!("{of}:{}", text(&item[of]["name"]))).unwrap_or_default();
            if text(&item["prefix"]).is_empty() { of } else { format!("{of}:{}", text(&item["prefix"])) }
        }
        _ => text(&item["name"]),
    }
}
