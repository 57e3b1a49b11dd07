//! Parameters: declarations, and texts for their values.
//!
//! An input is the texts of a template, and parameters, each with a text that a workload has for it ([`seeds`]). A policy is
//! made of them. No input makes the parser panic. Values that are judged as good make a template that is valid at the places of the
//! parameter, and that differs from the one without values there alone. What is injected with them obeys the laws of injection.

use crate::inject;
use crate::policy::is_told;
use serde_json::{Map, Value, json};
use sidecar_policy::api::judge;
use sidecar_policy::api::parameters::Parameter;
use sidecar_policy::api::pod_schema::in_template;
use sidecar_policy::policy::{Policies, Policy};
use sidecar_policy::workload::{Kind, Workload};
use std::collections::HashSet;
use std::sync::Arc;

/// Ends a record: the texts of the template, or a parameter.
const RECORD: char = '\u{1e}';
/// Ends a field of a record.
const FIELD: char = '\u{1f}';
/// Ends an item of a field.
const ITEM: char = '\u{1d}';
/// The most parameters.
const MOST: usize = 4;
/// The fields of a parameter.
const FIELDS: [&str; 10] = [
    "type",
    "paths",
    "minimum",
    "maximum",
    "enum",
    "pattern",
    "maxLength",
    "expression",
    "of the pod",
    "of the Namespace",
];

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut records = text.split(RECORD);
    let template = template(&records.next().unwrap_or_default().split(FIELD).collect::<Vec<_>>());
    let records: Vec<Vec<&str>> = records.take(MOST).map(|record| record.split(FIELD).collect()).collect();
    let declared: Vec<Value> = records.iter().enumerate().map(|(index, record)| declared(index, record)).collect();
    let object = json!({ "metadata": { "name": "fuzz" }, "spec": {
        "targets": [{ "group": "apps", "resource": "deployments" }], "template": template, "parameters": declared,
    } });
    let site = inject::site(bytes.len().is_multiple_of(2));
    let policy = match Policy::parse(&object, &site) {
        Ok(policy) => Arc::new(policy),
        Err(_) => {
            let (_, faults) = judge("fuzz", &object["spec"], &site.rules());
            assert!(!faults.is_empty() && faults.iter().all(|fault| is_told(&fault.message)), "{faults:?}");
            return;
        }
    };
    for (index, parameter) in policy.as_written().parameters().enumerate() {
        for text in records[index].iter().skip(8).copied().chain(parameter.default()) {
            is_judged(&policy, index, parameter, text);
        }
    }
    is_injected(&policy, &records, &site);
}

/// A template with every kind of place. `texts` are those of its arguments, its variables, and so on.
fn template(texts: &[&str]) -> Value {
    let or = |index: usize, default: &str| match texts.get(index).copied().unwrap_or_default() {
        "" => default.to_owned(),
        text => text.to_owned(),
    };
    json!({
        "metadata": { "labels": { "mesh": "on" }, "annotations": { "example.com/mesh": or(5, "on") } },
        "containers": [
            {
                "name": "side", "image": or(0, "registry.example/side:1"), "imagePullPolicy": "Always",
                "command": ["side", or(1, "run")], "args": [or(2, "--level=info"), or(3, "--x")],
                "env": [{ "name": "LEVEL", "value": or(4, "info") }, { "name": "MAP", "valueFrom": { "configMapKeyRef": { "name": "map", "key": "k" } } }],
                "ports": [{ "name": "admin", "containerPort": 15000 }],
                "resources": { "limits": { "memory": or(6, "128Mi") }, "requests": { "memory": "64Mi" } },
                "resizePolicy": [{ "resourceName": "memory", "restartPolicy": "NotRequired" }],
                "livenessProbe": { "periodSeconds": 5, "httpGet": { "path": "/live", "port": 15000 } },
                "readinessProbe": { "tcpSocket": { "port": "admin" } },
                "startupProbe": { "grpc": { "port": 15000 } },
                "lifecycle": { "preStop": { "sleep": { "seconds": 5 } } },
            },
            { "name": "extra", "image": "registry.example/extra", "volumeMounts": [{ "name": "dumps", "mountPath": "/dumps" }] },
        ],
        "initContainers": [{ "name": "setup", "image": "registry.example:5000/setup:1", "args": [or(7, "5")] }],
        "volumes": [{ "name": "dumps", "emptyDir": { "sizeLimit": "1Gi" } }, { "name": "map", "configMap": { "name": "map" } }],
        "env": [{ "name": "PROXY", "value": or(8, "http://localhost") }],
        "pod": { "terminationGracePeriodSeconds": { "atLeast": 60 } },
    })
}

/// The parameter of a record.
fn declared(index: usize, record: &[&str]) -> Value {
    let field = |name: &str| {
        let at = FIELDS.iter().position(|field| *field == name).expect("it is in the list");
        record.get(at).copied().filter(|text| !text.is_empty())
    };
    let types = ["String", "Integer", "Boolean", "Quantity", "Duration"];
    let of = field("type")
        .and_then(|text| types.iter().find(|of| text.chars().next().is_some_and(|first| of.starts_with(first))));
    let mut parameter = Map::from_iter([("name".to_owned(), json!(format!("p{index}")))]);
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            parameter.insert(name.to_owned(), value);
        }
    };
    put("type", of.map(|of| json!(of)));
    let list = |text: &str| text.split(ITEM).map(Value::from).collect::<Value>();
    put("paths", field("paths").map(list));
    put("enum", field("enum").map(list));
    // A number as a number, so that both notations of a bound occur.
    let bound = |text: &str| text.parse::<i64>().map_or_else(|_| json!(text), Value::from);
    put("minimum", field("minimum").map(bound));
    put("maximum", field("maximum").map(bound));
    put("maxLength", field("maxLength").map(bound));
    put("pattern", field("pattern").map(Value::from));
    put("expression", field("expression").map(Value::from));
    put("fromNamespace", record.get(9).map(|_| json!(true)));
    Value::Object(parameter)
}

/// What is judged as a value makes a valid template, which differs at the places alone.
fn is_judged(policy: &Policy, index: usize, parameter: &Parameter, text: &str) {
    match parameter.judge(text) {
        Err(message) => assert!(is_told(&message), "{message:?}"),
        Ok(value) => {
            assert_eq!(value, text);
            assert!(parameter.may_be(text), "{text:?}");
            let written = policy.as_written();
            let mut values = vec![None; written.parameters().count()];
            let before = json!(written.with_values(&values).spec);
            values[index] = Some(value);
            let valued = written.with_values(&values);
            assert_eq!(valued.hash, written.hash);
            assert_eq!(*valued, *written.with_values(&values), "twice is once");
            let after = json!(valued.spec);
            differs_at_places(&before, &after, parameter);
            let known: Vec<String> = in_template(&before, None).into_iter().map(|fault| fault.message).collect();
            for fault in in_template(&after, None) {
                assert!(known.contains(&fault.message) || is_between_fields(&fault.message), "{text:?}: {fault:?}");
            }
        }
    }
}

/// Whether a fault is of one field beside another, which no value has for itself.
fn is_between_fields(message: &str) -> bool {
    ["at most the limit", "volume", "unique", "equal", "port"].iter().any(|words| message.contains(words))
}

/// That each difference of two templates is at a place of `parameter`.
fn differs_at_places(before: &Value, after: &Value, parameter: &Parameter) {
    let places: Vec<Vec<String>> = parameter.places().map(|place| tokens(&place)).collect();
    let mut differences = Vec::new();
    differ(before, after, &mut Vec::new(), &mut differences);
    for path in differences {
        let is_at = |place: &Vec<String>| place.iter().zip(&path).all(|(one, other)| one == other || one == "*");
        assert!(places.iter().any(is_at), "{path:?} is at none of {places:?}");
    }
}

/// The parts of a path. A port is any port, because it has a name and a number.
fn tokens(path: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut rest = path.strip_suffix(":tag").unwrap_or(path);
    while !rest.is_empty() {
        if let Some(inside) = rest.strip_prefix('[') {
            let end = inside.match_indices(']').map(|(at, _)| at);
            let is_end = |at: &usize| *at > 0 && (at + 1 == inside.len() || inside[at + 1..].starts_with(['.', '[']));
            let end = end.into_iter().find(is_end).unwrap_or(inside.len() - 1);
            let is_port = found.last().is_some_and(|last| last == "ports");
            found.push(if is_port { "*".to_owned() } else { inside[..end].to_owned() });
            rest = &inside[end + 1..];
        } else {
            let field = rest.trim_start_matches('.');
            let end = field.find(['.', '[']).unwrap_or(field.len());
            found.push(field[..end].to_owned());
            rest = &field[end..];
        }
    }
    found
}

/// Adds the paths at which both differ. Items go by name, those without one by index.
fn differ(before: &Value, after: &Value, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let is_made = path.len() > 2;
    let mut step = |key: String, before: &Value, after: &Value| {
        path.push(key);
        differ(before, after, path, found);
        path.pop();
    };
    match (before, after) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: HashSet<&String> = one.keys().chain(other.keys()).collect();
            for key in keys {
                let of = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                step(key.clone(), &of(one), &of(other));
            }
        }
        (Value::Array(one), Value::Array(other)) if one.iter().chain(other).all(|item| name(item).is_some()) => {
            let names: HashSet<&str> = one.iter().chain(other).filter_map(name).collect();
            for own in names {
                let of =
                    |items: &[Value]| items.iter().find(|item| name(item) == Some(own)).cloned().unwrap_or_default();
                step(own.to_owned(), &of(one), &of(other));
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                step(index.to_string(), one, other);
            }
        }
        _ if before == after => {}
        // An object that is made for a value.
        (Value::Null, Value::Object(map)) | (Value::Object(map), Value::Null) if is_made => {
            for (key, value) in map {
                step(key.clone(), &Value::Null, value);
            }
        }
        (Value::Null, Value::Array(items)) | (Value::Array(items), Value::Null) => {
            for item in items {
                step(name(item).unwrap_or_default().to_owned(), &Value::Null, item);
            }
        }
        _ => found.push(path.clone()),
    }
}

fn name(item: &Value) -> Option<&str> {
    item["name"].as_str().or(item["resourceName"].as_str())
}

/// The laws of injection, with what the sources of a workload give.
fn is_injected(policy: &Arc<Policy>, records: &[Vec<&str>], site: &sidecar_policy::policy::Site) {
    let annotations = |field: usize| -> Map<String, Value> {
        let texts = records.iter().enumerate();
        texts
            .filter_map(|(index, record)| Some((format!("fuzz.scpol.dev/p{index}"), json!(record.get(field)?))))
            .collect()
    };
    let template = json!({
        "metadata": { "labels": { "app": "web" }, "annotations": annotations(8) },
        "spec": { "containers": [{ "name": "app", "image": "app:1", "resources": { "requests": { "cpu": "250m" } } }] },
    });
    let metadata = json!({ "name": "web", "namespace": "shop", "labels": { "app": "web" } });
    let body = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": { "template": template } });
    let kind = Kind::find("apps", "deployments").expect("it is built in");
    let namespace = json!({ "metadata": { "name": "shop", "annotations": annotations(9) } });
    let workload = Workload::new(kind, body).within(Some(Arc::new(namespace)));
    inject::holds(&workload, &Policies::new([policy.clone()]), site);
}

/// Inputs that reach each kind of place.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let parameter = |fields: &[&str]| fields.join(&FIELD.to_string());
    let seed = |texts: &[&str], parameters: &[String]| {
        let records: Vec<String> = std::iter::once(parameter(texts)).chain(parameters.iter().cloned()).collect();
        records.join(&RECORD.to_string()).into_bytes()
    };
    let alone: &[[&str; 4]] = &[
        ["S", "containers[side].image:tag", "1\u{1d}2", "2"],
        [
            "S",
            "containers[side].image",
            "registry.example/side:1\u{1d}registry.example/side:2",
            "registry.example/side:2",
        ],
        ["S", "containers[side].imagePullPolicy", "", "Never"],
        ["S", "containers[side].args[1]", "", "$(HOME) $$ $"],
        ["I", "containers[side].command[1]", "", "-7"],
        ["B", "containers[side].env[LEVEL]", "", "false"],
        ["D", "containers[side].env[LEVEL].value", "", "1h30m"],
        ["S", "containers[side].env[MAP].valueFrom.configMapKeyRef.name", "", "other"],
        ["Q", "containers[side].resources.limits.memory", "", "1.5Gi"],
        [
            "Q",
            "containers[extra].resources.requests[example.com/gpu]\u{1d}containers[extra].resources.limits[example.com/gpu]",
            "",
            "2",
        ],
        ["S", "containers[side].resizePolicy[memory].restartPolicy", "", "RestartContainer"],
        ["I", "containers[side].ports[admin].containerPort", "", "8080"],
        ["I", "containers[side].ports[15000].containerPort", "", "8080"],
        ["D", "containers[side].livenessProbe.periodSeconds", "", "90s"],
        ["I", "containers[side].livenessProbe.terminationGracePeriodSeconds", "", "30"],
        ["S", "containers[side].livenessProbe.httpGet.path", "", "/x?y=1"],
        ["S", "containers[side].livenessProbe.httpGet.port", "", "admin"],
        ["I", "containers[side].readinessProbe.tcpSocket.port", "", "80"],
        ["I", "containers[side].startupProbe.grpc.port", "", "80"],
        ["I", "containers[side].lifecycle.preStop.sleep.seconds", "", "9"],
        ["B", "containers[extra]\u{1d}volumes[dumps]", "", "false"],
        ["B", "initContainers[setup]", "", "false"],
        ["Q", "initContainers[setup].resources.limits.cpu", "", "500m"],
        ["B", "env[PROXY]", "", "false"],
        ["S", "env[PROXY].value", "", "x"],
        ["Q", "volumes[dumps].emptyDir.sizeLimit", "", "2Gi"],
        ["S", "volumes[map].configMap.name", "", "other"],
        ["S", "metadata.labels[mesh]\u{1d}metadata.annotations[example.com/mesh]", "", "canary"],
        ["D", "pod.terminationGracePeriodSeconds.atLeast", "", "2m"],
    ];
    let mut seeds: Vec<Vec<u8>> = alone
        .iter()
        .map(|[of, paths, choices, text]| seed(&[], &[parameter(&[of, paths, "", "", choices, "", "", "", text])]))
        .collect();
    seeds.push(seed(
        &["", "--a=$(scpol.p0)", "$$(scpol.p0) $(scpol.p1)", "$(HOME)", "$(scpol.p1)/$(scpol.p1)"],
        &[
            parameter(&["S", "", "", "", "", "[a-z]+", "9", "", "debug"]),
            parameter(&["I", "", "1", "8", "", "", "", "size(template.spec.containers)", "3", "9"]),
        ],
    ));
    seeds.push(seed(
        &[],
        &[
            parameter(&[
                "Q",
                "containers[side].resources.limits.memory",
                "64Mi",
                "1Gi",
                "",
                "",
                "",
                "'128Mi'",
                "1e400",
            ]),
            parameter(&[
                "D",
                "containers[side].livenessProbe.periodSeconds",
                "1s",
                "1h",
                "",
                "",
                "",
                "",
                "5 minutes",
                "60s",
            ]),
            parameter(&[
                "S",
                "env[PROXY].value",
                "",
                "",
                "",
                ".*",
                "",
                "object.metadata.labels['app']",
                "\0",
                "9223372036854775808",
            ]),
        ],
    ));
    seeds
}
