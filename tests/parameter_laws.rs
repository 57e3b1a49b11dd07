//! Laws of parameters for every text that can stand in an annotation: the value is in bounds, or there is a code.
//! `PROPTEST_CASES` sets the number of cases of each law.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::laws::{Dice, dice, workload_of};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};
use sidecar_policy::api::code::Code;
use sidecar_policy::decision::Decision;
use sidecar_policy::inject::{self, marker};
use sidecar_policy::policy::{Policies, Policy, PolicyRef, Site};
use sidecar_policy::workload::{Kind, Workload};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

/// The annotations of the parameters.
const KEYS: [&str; 11] = [
    "proxy.example.com/memory",
    "proxy.example.com/workers",
    "proxy.example.com/period",
    "proxy.example.com/level",
    "proxy.example.com/word",
    "proxy.example.com/text",
    "proxy.example.com/debug",
    "proxy.example.com/port",
    "proxy.example.com/label",
    "proxy.example.com/path",
    "proxy.example.com/tag",
];
/// Those that the Namespace may have.
const OF_NAMESPACE: [usize; 3] = [0, 3, 5];

/// A value for each parameter, that it takes.
const FITTING: [&str; 11] =
    ["128Mi", "4", "1m30s", "debug", "abc", "any $(HOME) \"text\"", "false", "8080", "a.b-c", "/healthz?x=1", "2"];

/// Texts that somebody writes, although nobody expects them.
const HOSTILE: [&str; 48] = [
    "",
    " ",
    "\n",
    "a\nb",
    "\r\n",
    "\0",
    "a\0b",
    "\u{7f}",
    "\u{202e}evil",
    "\u{feff}1",
    "\u{2028}",
    "'",
    "\"",
    "\"}]",
    "`id`",
    "$(id)",
    "$(scpol.level)",
    "$$(scpol.level)",
    "$",
    "$$",
    "$(",
    "$(HOME)",
    "${HOME}",
    "; rm -rf /",
    "| cat",
    "- name: x\n  image: y",
    "{{ .Values.x }}",
    "' + object.metadata.name + '",
    "~",
    "~0",
    "~1/",
    "level=debug",
    "/spec/template/spec/containers/app",
    "1e400",
    "-1e400",
    "1e3",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "0x10",
    "01",
    "+1",
    "-0",
    "１２",
    "٣",
    "12 MB",
    "64mb",
    "NaN",
];

/// The policies of earlier scenes.
static PARSED: LazyLock<Mutex<HashMap<String, Policies>>> = LazyLock::new(Mutex::default);

fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { asked.cases } else { 2_000 };
    ProptestConfig { cases, failure_persistence: None, ..asked }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_value_is_in_bounds_or_there_is_a_code(scene in scene()) {
        let (before, after, mut decision) = scene.decided();
        let policy = policy_of(&decision);
        if let Some(policy) = policy {
            let read = marker::read(&after, "tuned");
            prop_assert!(read.is_some(), "the marker cannot be read: {}", after.body);
            let (written, given) = (policy.as_written(), policy.given());
            for (parameter, given) in written.parameters().zip(given) {
                let value = given.value.clone().unwrap();
                prop_assert!(value.as_ref().is_none_or(|value| parameter.judge(value).as_ref() == Ok(value)), "{:?}", given);
                prop_assert_eq!(read.as_ref().unwrap().value(&parameter.name), value);
            }
            in_bounds(&after)?;
            let ours: Vec<_> = written.values().to_vec();
            prop_assert_eq!(ours.len(), KEYS.len() + 1);
        } else {
            let left = decision.rest.iter().find(|left| left.policy.name == "tuned").unwrap();
            if left.reason.code == Code::ParameterRefused {
                let told = &left.reason.detail;
                prop_assert!(!told.is_empty() && told.len() < 2_000, "{}", told);
                prop_assert!(!told.contains(['\0', '\n', '\u{202e}']), "{:?}", told);
            }
        }
        // Refused and injected are all that there is, and neither touches what is not its own.
        let again = decision.plan(&before);
        prop_assert_eq!(before.patched(&again), after.body);
    }

    #[test]
    fn no_field_outside_of_the_paths_differs_from_the_defaults(scene in scene()) {
        let (before, _, decision) = scene.decided();
        let Some(policy) = policy_of(&decision) else { return Ok(()) };
        let (before, valued) = (without_overlay(&before), policy.as_written());
        let defaults = scene.policies.get(&PolicyRef::of_cluster("tuned")).unwrap();
        let plan = |template: &inject::Template| {
            let patch = inject::plan(&before, &[template], &[template], sidecar_policy::api::pod_security::Standard::NEWEST);
            patch.map(|patch| before.patched(&patch))
        };
        if let (Ok(one), Ok(other)) = (plan(valued), plan(defaults.as_written())) {
            prop_assert_eq!(without_places(&before, one), without_places(&before, other));
        }
    }

    #[test]
    fn what_was_injected_is_given_back_and_is_injected_once(scene in scene()) {
        let (before, after, decision) = scene.decided();
        if policy_of(&decision).is_none() {
            return Ok(());
        }
        let mut again = Decision::of(&scene.policies, &after, &site());
        prop_assert!(again.plan(&after).is_empty());
        let left = again.rest.iter().find(|left| left.policy.name == "tuned");
        prop_assert_eq!(left.map(|left| left.reason.code), Some(Code::AlreadyInjected));
        let mut own = after.body.clone();
        let mut bare = after.clone();
        for policy in ["tuned", "plain"] {
            crate::undo::undo(&mut own, &before.pod_pointer(), policy);
            bare = inject::undo(&bare, Some(policy)).map_or(bare.clone(), |undone| bare.with_body(undone.body));
        }
        prop_assert_eq!(&bare.body, &before.body);
        prop_assert_eq!(&own, &before.body);
    }

    #[test]
    fn a_policy_without_parameters_is_not_affected(scene in scene()) {
        let (before, _, decision) = scene.decided();
        let alone = Policies::new(scene.policies.iter().filter(|policy| policy.name == "plain").cloned());
        let mut other = Decision::of(&alone, &before, &site());
        other.plan(&before);
        let of = |decision: &Decision| {
            let left = decision.rest.iter().find(|left| left.policy.name == "plain");
            let is_injected = decision.inject.iter().any(|policy| policy.name == "plain");
            (is_injected, left.map(|left| (left.outcome, left.reason.code)))
        };
        prop_assert_eq!(of(&decision), of(&other));
    }
}

#[test]
fn scenes_are_injected_and_refused_in_fair_parts() {
    let mut runner = TestRunner::deterministic();
    let scenes: Vec<Scene> = (0..400).map(|_| scene().new_tree(&mut runner).unwrap().current()).collect();
    let decisions: Vec<Decision> = scenes.iter().map(|scene| scene.decided().2).collect();
    let injected = decisions.iter().filter(|decision| policy_of(decision).is_some()).count();
    let has_overlay = |scene: &&Scene| {
        let (_, after, decision) = scene.decided();
        policy_of(&decision).is_some()
            && marker::read(&after, "tuned")
                .unwrap()
                .values
                .iter()
                .any(|entry| entry.contains("/0={") || entry.contains("/1={"))
    };
    let overlaid = scenes.iter().filter(has_overlay).count();
    let is_by_value =
        |decision: &&Decision| decision.rest.iter().any(|left| left.reason.code == Code::ParameterRefused);
    let refused = decisions.iter().filter(is_by_value).count();
    assert!(
        injected > 70 && overlaid > 8 && refused > 80,
        "{injected} injected, {overlaid} with an overlay, {refused} refused"
    );
}

/// A workload with annotations, and the policies.
#[derive(Debug)]
struct Scene {
    workload: Workload,
    policies: Policies,
}

impl Scene {
    /// The workload, the same with what is injected, and the decision after its plan.
    fn decided(&self) -> (Workload, Workload, Decision) {
        let mut decision = Decision::of(&self.policies, &self.workload, &site());
        let patch = decision.plan(&self.workload);
        (self.workload.clone(), self.workload.with_body(self.workload.patched(&patch)), decision)
    }
}

fn site() -> Site {
    Site { native_sidecars: true, ..Site::new("scpol-system", [], []) }
}

fn policy_of(decision: &Decision) -> Option<&Arc<Policy>> {
    decision.inject.iter().find(|policy| policy.name == "tuned")
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(&HOSTILE[..]).prop_map(str::to_owned),
        1 => any::<String>(),
        1 => "[ -~]{0,40}",
        1 => "-?[0-9]{1,20}(\\.[0-9]{1,3})?(m|k|Ki|Mi|Gi|s|h|e[0-9]{1,3})?",
        1 => (prop::sample::select(&HOSTILE[..]), 1_usize..700).prop_map(|(text, times)| text.repeat(times).chars().take(2_048).collect()),
    ]
}

/// The value of each annotation, if it is there: mostly one that fits.
fn texts() -> impl Strategy<Value = Vec<Option<String>>> {
    let one = |index: usize| prop_oneof![6 => Just(None), 6 => Just(Some(FITTING[index].to_owned())), 1 => text().prop_map(Some)];
    (0..KEYS.len()).map(one).collect::<Vec<_>>()
}

fn scene() -> impl Strategy<Value = Scene> {
    (dice(), texts(), texts(), texts()).prop_map(|(mut dice, of_pod, of_workload, of_namespace)| {
        let kind = dice.kind();
        let mut workload = workload_of(&kind, &mut dice);
        let pod = workload.pod_pointer();
        for (at, texts) in [(format!("{pod}/metadata"), &of_pod), ("/metadata".to_owned(), &of_workload)] {
            annotate(&mut workload.body, &at, texts);
        }
        if dice.roll(4) > 0 {
            let map: Map<String, Value> = OF_NAMESPACE
                .into_iter()
                .filter_map(|index| Some((KEYS[index].to_owned(), json!(of_namespace[index].as_ref()?))))
                .collect();
            let map_of = dice.pick(&["annotations", "labels"]);
            workload.namespace_object = Some(Arc::new(json!({ "metadata": { "name": "shop", map_of: map } })));
        }
        if dice.roll(3) == 0 {
            declare(&mut workload, &mut dice, &of_pod);
        }
        let policies = policies(&kind, &mut dice);
        Scene { workload, policies }
    })
}

/// Puts an overlay among the containers, with some of `texts`.
fn declare(workload: &mut Workload, dice: &mut Dice, texts: &[Option<String>]) {
    let at = format!("{}/spec/containers", workload.pod_pointer());
    let Some(items) = workload.body.pointer_mut(&at).and_then(Value::as_array_mut) else { return };
    let mut overlay = json!({ "name": "side", "image": "auto" });
    if let Some(memory) = &texts[0] {
        overlay["resources"] = json!({ "limits": { "memory": memory } });
    }
    let named = [("LEVEL", &texts[3]), ("TEXT", &texts[5])];
    let env: Vec<Value> =
        named.iter().filter_map(|(name, text)| Some(json!({ "name": name, "value": text.as_ref()? }))).collect();
    if !env.is_empty() {
        overlay["env"] = env.into();
    }
    if dice.roll(8) == 0 {
        overlay["tty"] = json!(true);
    }
    let place = dice.roll(items.len() + 1);
    items.insert(place, overlay);
}

/// `workload` without the overlay.
fn without_overlay(workload: &Workload) -> Workload {
    let mut body = workload.body.clone();
    let items = body.pointer_mut(&format!("{}/spec/containers", workload.pod_pointer())).and_then(Value::as_array_mut);
    items.into_iter().for_each(|items| items.retain(|item| item["name"] != "side"));
    workload.with_body(body)
}

/// Puts `texts` into the annotations of the metadata at the pointer `at`. What is no object stays.
fn annotate(body: &mut Value, at: &str, texts: &[Option<String>]) {
    let parent = at.strip_suffix("/metadata").unwrap();
    let Some(parent) = body.pointer_mut(parent).and_then(Value::as_object_mut) else { return };
    let texts: Vec<(&str, &String)> =
        KEYS.into_iter().zip(texts).filter_map(|(key, text)| Some((key, text.as_ref()?))).collect();
    if texts.is_empty() {
        return;
    }
    let metadata = parent.entry("metadata").or_insert(Value::Null);
    if metadata.is_null() {
        *metadata = json!({});
    }
    if metadata["annotations"].is_null() {
        metadata["annotations"] = json!({});
    }
    for (key, text) in texts {
        metadata["annotations"][key] = json!(text);
    }
}

/// A policy with a parameter of each type, and one without parameters.
fn policies(kind: &Kind, dice: &mut Dice) -> Policies {
    let mut target = json!({ "group": kind.group, "resource": kind.resource });
    if !kind.is_in_table() {
        target["templatePath"] = json!(kind.template_path());
    }
    let one = |name: &str, of: &str, paths: Value, more: Value| {
        let mut one =
            json!({ "name": name, "type": of, "paths": paths, "annotation": format!("proxy.example.com/{name}") });
        one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        one
    };
    let of_namespace = dice.roll(2) == 1;
    let parameters = json!([
        one("memory", "Quantity", json!(["containers[side].resources.limits.memory"]), json!({ "minimum": "64Mi", "maximum": "1Gi", "fromNamespace": of_namespace, "overridable": true })),
        one("workers", "Integer", json!(["containers[side].env[WORKERS].value"]), json!({ "minimum": 1, "maximum": 8, "expression": "size(template.spec.?containers.orValue([]))" })),
        one("period", "Duration", json!(["containers[side].livenessProbe.periodSeconds", "containers[side].env[PERIOD].value"]), json!({ "maximum": "1h" })),
        one("level", "String", json!(["containers[side].env[LEVEL].value"]), json!({ "enum": ["debug", "info"], "fromNamespace": of_namespace, "overridable": true })),
        one("word", "String", json!(["containers[side].args[0]"]), json!({ "pattern": "[a-z]*" })),
        one("text", "String", json!(["containers[side].env[TEXT].value", "metadata.annotations[example.com/text]"]), json!({ "fromNamespace": of_namespace, "overridable": true })),
        one("debug", "Boolean", json!(["containers[extra]", "volumes[dumps]"]), json!({})),
        one("port", "Integer", json!(["containers[side].ports[admin].containerPort", "containers[side].livenessProbe.httpGet.port"]), json!({})),
        one("label", "String", json!(["metadata.labels[example.com/label]"]), json!({ "maxLength": 40 })),
        one("path", "String", json!(["containers[side].livenessProbe.httpGet.path"]), json!({})),
        one("tag", "String", json!(["containers[side].image:tag"]), json!({ "enum": ["1", "2"] })),
        { "name": "app", "paths": ["containers[side].env[APP].value"], "annotation": "", "expression": "object.metadata.?labels[?'app'].orValue('none')" },
    ]);
    let template = json!({
        "metadata": { "annotations": { "example.com/text": "none" }, "labels": { "example.com/label": "none" } },
        "containers": [
            {
                "name": "side", "image": "registry.example/side:1", "args": ["info", "--level=$(scpol.level) $(scpol.text)", "$$(scpol.word) $(HOME)"],
                "env": [
                    { "name": "WORKERS", "value": "2" }, { "name": "PERIOD", "value": "10s" }, { "name": "LEVEL", "value": "info" },
                    { "name": "TEXT", "value": "none" }, { "name": "APP", "value": "none" },
                ],
                "ports": [{ "name": "admin", "containerPort": 15000 }],
                "resources": { "limits": { "memory": "128Mi" } },
                "livenessProbe": { "periodSeconds": 10, "httpGet": { "path": "/live", "port": 15000 } },
            },
            { "name": "extra", "image": "registry.example/extra:1", "volumeMounts": [{ "name": "dumps", "mountPath": "/dumps" }] },
        ],
        "volumes": [{ "name": "dumps", "emptyDir": {} }],
    });
    let native = dice.pick(&["ForJobs", "Always", "Never"]);
    let failure = dice.pick(&["Ignore", "Fail"]);
    let spec = json!({ "targets": [target], "template": template, "parameters": parameters, "nativeSidecars": native, "jobs": "Inject", "failurePolicy": failure });
    let plain = json!({ "targets": [target], "jobs": "Inject", "template": { "containers": [{ "name": "plain", "image": "registry.example/plain:1" }] } });
    let name = format!("{target} {of_namespace} {native} {failure}");
    let parse = || {
        Policies::new([("tuned", spec), ("plain", plain)].map(|(name, spec)| {
            Arc::new(Policy::parse(&json!({ "metadata": { "name": name }, "spec": spec }), &site()).unwrap())
        }))
    };
    // Because to parse them takes as long as ten decisions.
    PARSED.lock().unwrap().entry(name).or_insert_with(parse).clone()
}

/// All containers of the pod.
fn containers(workload: &Workload) -> Vec<&Value> {
    let spec = workload.pod_spec().unwrap();
    let lists = ["containers", "initContainers"].map(|list| spec.get(list).and_then(Value::as_array));
    lists.into_iter().flatten().flatten().collect()
}

/// A quantity in bytes.
fn bytes(amount: &str) -> f64 {
    let end = amount.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(amount.len());
    let (number, unit) = amount.split_at(end);
    let factor = match unit {
        "" => 1.0,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        exponent => 10_f64.powi(exponent.trim_start_matches(['e', 'E']).parse().unwrap()),
    };
    number.parse::<f64>().unwrap() * factor
}

/// Judges the values in the object, by other code than that of parameters.
fn in_bounds(after: &Workload) -> Result<(), TestCaseError> {
    let all = containers(after);
    let side = all.iter().find(|container| container["name"] == "side").unwrap();
    let env = |name: &str| {
        side["env"].as_array().unwrap().iter().find(|item| item["name"] == name).unwrap()["value"]
            .as_str()
            .unwrap()
            .replace("$$", "$")
    };
    let amount = side["resources"]["limits"]["memory"].as_str().unwrap();
    let bytes = bytes(amount);
    prop_assert!((67_108_864.0..=1_073_741_824.0).contains(&bytes), "{}", amount);
    prop_assert!(matches!(env("WORKERS").as_str(), "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8"));
    prop_assert!(matches!(env("LEVEL").as_str(), "debug" | "info"));
    prop_assert!((1..=3600).contains(&side["livenessProbe"]["periodSeconds"].as_i64().unwrap()));
    let word = side["args"][0].as_str().unwrap();
    prop_assert!(word.bytes().all(|byte| byte.is_ascii_lowercase()), "{}", word);
    let text = env("TEXT");
    prop_assert!(text.len() <= 1024 && !text.contains('\0'));
    let joined = side["args"][1].as_str().unwrap().replace("$$", "$");
    prop_assert_eq!(joined, format!("--level={} {text}", env("LEVEL")));
    prop_assert_eq!(&side["args"][2], "$$(scpol.word) $(HOME)");
    let port = side["ports"][0]["containerPort"].as_i64().unwrap();
    prop_assert!((1..=65_535).contains(&port) && side["livenessProbe"]["httpGet"]["port"] == port);
    let path = side["livenessProbe"]["httpGet"]["path"].as_str().unwrap();
    prop_assert!(path.starts_with('/') && !path.starts_with("//") && path.is_ascii());
    prop_assert!(["registry.example/side:1", "registry.example/side:2"].iter().any(|image| side["image"] == *image));
    let metadata = &after.pod().unwrap()["metadata"];
    let label = metadata["labels"]["example.com/label"].as_str().unwrap();
    prop_assert!(label.len() <= 40 && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)));
    prop_assert_eq!(metadata["annotations"]["example.com/text"].as_str().unwrap(), text);
    Ok(())
}

/// `body` without the places of the parameters, and without the marker.
fn without_places(workload: &Workload, body: Value) -> Value {
    let mut body = body;
    let pod = body.pointer_mut(&workload.pod_pointer()).unwrap();
    let metadata = &mut pod["metadata"];
    metadata["annotations"].as_object_mut().unwrap().remove(&marker::key("tuned"));
    for (map, key) in [("annotations", "example.com/text"), ("labels", "example.com/label")] {
        metadata[map].as_object_mut().unwrap().remove(key);
    }
    for (list, name) in [("containers", "extra"), ("initContainers", "extra"), ("volumes", "dumps")] {
        if let Some(items) = pod["spec"].get_mut(list).and_then(Value::as_array_mut) {
            items.retain(|item| item["name"] != name);
        }
    }
    if pod["spec"]["volumes"].as_array().is_none_or(Vec::is_empty) {
        pod["spec"].as_object_mut().unwrap().remove("volumes");
    }
    for list in ["containers", "initContainers"] {
        for container in pod["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if container["name"] != "side" {
                continue;
            }
            for pointer in [
                "/resources/limits/memory",
                "/livenessProbe/periodSeconds",
                "/livenessProbe/httpGet/port",
                "/livenessProbe/httpGet/path",
                "/ports/0/containerPort",
                "/args/0",
                "/args/1",
                "/image",
                "/env/0/value",
                "/env/1/value",
                "/env/2/value",
                "/env/3/value",
                "/env/4/value",
            ] {
                *container.pointer_mut(pointer).unwrap() = Value::Null;
            }
        }
    }
    body
}
