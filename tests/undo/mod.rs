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
    // The values of parameters and the overlays come before the places, and begin with no `/`.
    let list = |field: &str| {
        let entries = marker[field].as_array().into_iter().flatten().map(|at| at.as_str().unwrap().to_owned());
        entries.filter(|entry| entry.starts_with('/')).collect::<Vec<_>>()
    };
    let (nulls, others) = (list("nulls"), others(body, pod));
    let mut added = list("added");
    added.retain(|at| !others.contains(at) || is_parent(body, at));
    for at in added.iter().rev() {
        let tokens: Vec<String> = at[1..].split('/').map(|token| token.replace("~1", "/").replace("~0", "~")).collect();
        let was_null = nulls.contains(at);
        match &tokens.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [.., GRACE, least, was] => set_grace(body, pod, (least, was), &others, was_null),
            [.., "env", _, "value", side, separator, text] => {
                let variable = at.rsplitn(5, '/').last().unwrap();
                let variable = body.pointer_mut(&locate(body, variable).unwrap()).unwrap();
                variable["value"] = without_part(variable["value"].as_str().unwrap(), side, separator, text).into();
            }
            _ => remove(body, "", &tokens, was_null),
        }
    }
    let entries = marker["added"].as_array().into_iter().flatten().map(|at| at.as_str().unwrap());
    for (place, container) in entries.filter(|at| !at.starts_with('/')).filter_map(|at| at.split_once('=')) {
        if let Some((list, index)) = place.split_once('/') {
            put_back(body, pod, (list, index.parse().unwrap()), container, &others);
        }
    }
}

/// Puts an overlay back before the user's container of that index. `others` are the entries of markers that stay.
fn put_back(body: &mut Value, pod: &str, (list, index): (&str, usize), container: &str, others: &[String]) {
    let items = body.pointer_mut(&format!("{pod}/spec/{list}")).unwrap().as_array_mut().unwrap();
    let of_others = |item: &Value| {
        let name = item["name"].as_str().unwrap_or_default();
        others.iter().any(|at| *at == format!("{pod}/spec/{list}/{name}"))
    };
    let mut at = 0;
    let mut passed = 0;
    while at < items.len() && (of_others(&items[at]) || passed < index) {
        passed += usize::from(!of_others(&items[at]));
        at += 1;
        // What follows on the last container of the user's is not passed.
        if items[at..].iter().all(of_others) && passed == index {
            break;
        }
    }
    items.insert(at, serde_json::from_str(&container.replace("~0", "~")).unwrap());
}

const GRACE: &str = "terminationGracePeriodSeconds";

/// Whether the marker entry `at` is a list or map, or a grace period, which each marker takes back.
fn is_parent(body: &Value, at: &str) -> bool {
    let is_part = at.contains("/value/Append/") || at.contains("/value/Prepend/");
    locate(body, at).is_none() && !is_part
}

/// Whether the value of the entry `at` is not that of the template alone: an item in a container that `added` lists is shared with it, and
/// a container with such items, or a variable with parts, has more than the template says.
pub(crate) fn is_shared(added: &[String], at: &str) -> bool {
    let has_entries = added.iter().any(|other| other.strip_prefix(at).is_some_and(|rest| rest.starts_with('/')));
    let is_in = |other: &String| at.strip_prefix(other.as_str()).is_some_and(|rest| rest.starts_with('/'));
    let is_container = |other: &str| {
        let mut steps = other.rsplit('/').skip(1);
        steps.next().is_some_and(|list| ["containers", "initContainers"].contains(&list))
            && steps.next() == Some("spec")
    };
    has_entries || added.iter().any(|other| is_in(other) && is_container(other))
}

/// Sets the grace period to the longest of the markers that stay, and to no less than before.
fn set_grace(body: &mut Value, pod: &str, (_, was): (&str, &str), others: &[String], was_null: bool) {
    let least = |at: &String| at.split_once(&format!("/spec/{GRACE}/"))?.1.split('/').next()?.parse::<i64>().ok();
    let (was, rest) = (was.parse::<i64>().ok(), others.iter().filter_map(least).max());
    let spec = body.pointer_mut(&format!("{pod}/spec")).unwrap().as_object_mut().unwrap();
    match rest.map(|rest| rest.max(was.unwrap_or(30))).or(was) {
        Some(seconds) => drop(spec.insert(GRACE.to_owned(), seconds.into())),
        None if was_null => drop(spec.insert(GRACE.to_owned(), Value::Null)),
        None => drop(spec.remove(GRACE)),
    }
}

/// `value` without the outermost `text` on its side.
fn without_part(value: &str, side: &str, separator: &str, text: &str) -> String {
    let mut parts: Vec<&str> = value.split(separator).collect();
    let is_it = |part: &&str| *part == text;
    let place = if side == "Append" { parts.iter().rposition(is_it) } else { parts.iter().position(is_it) };
    parts.remove(place.unwrap());
    parts.join(separator)
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
    let is_parent =
        value.is_array() || ["/metadata", "/labels", "/annotations", "/dnsConfig"].iter().any(|end| at.ends_with(end));
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
        (Value::Object(fields), []) if was_null && !fields[token].is_array() && !fields[token].is_object() => {
            fields.insert(token.clone(), Value::Null);
        }
        (Value::Object(fields), []) if fields[token].is_string() || fields[token].is_boolean() => {
            drop(fields.remove(token))
        }
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
        "hostAliases" => {
            let names = item["hostnames"].as_array().into_iter().flatten().filter_map(Value::as_str);
            format!("{}={}", text(&item["ip"]), names.collect::<Vec<_>>().join(","))
        }
        "tolerations" => {
            let operator = item["operator"].as_str().unwrap_or("Equal");
            let seconds = item["tolerationSeconds"].as_i64().map(|seconds| format!(" {seconds}")).unwrap_or_default();
            format!("{} {operator} {}:{}{seconds}", text(&item["key"]), text(&item["value"]), text(&item["effect"]))
        }
        "nameservers" | "searches" => text(item),
        _ => text(&item["name"]),
    }
}
