//! The Helm chart: it renders what kustomize renders, its values are described in one place, and each of them has an effect.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::tools::{assert_current, root, success, tool};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const CHART: &str = "charts/sidecar-policy";
const NAMESPACE: &str = "scpol-system";
/// The version of Kubernetes to render for.
const CURRENT: &str = "1.37.2";
/// Values that are for other charts.
const UNREAD: [&str; 2] = ["enabled", "global"];

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn schema() -> Value {
    serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).unwrap()
}

/// What describes a value: its path, and its schema.
type Leaf = (Vec<String>, Value);

/// The values of the chart, in the order of their paths.
fn leaves() -> Vec<Leaf> {
    fn walk(schema: &Value, path: &[String], found: &mut Vec<Leaf>) {
        for (name, value) in schema["properties"].as_object().unwrap() {
            let path = [path, std::slice::from_ref(name)].concat();
            if value.get("default").is_some() {
                found.push((path, value.clone()));
            } else {
                walk(value, &path, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(&schema(), &[], &mut found);
    found
}

/// `value` at `path` of an otherwise empty document.
fn at(path: &[String], value: Value) -> Value {
    path.iter().rev().fold(value, |value, name| json!({ name: value }))
}

/// `helm template` for a version of Kubernetes, with the values. The error is what Helm says.
fn rendered(version: &str, values: &Value) -> Result<String, String> {
    rendered_in(NAMESPACE, version, values)
}

/// The user name of the operator's account in `namespace`.
fn account(namespace: &str) -> String {
    format!("system:serviceaccount:{namespace}:scpol")
}

fn rendered_in(namespace: &str, version: &str, values: &Value) -> Result<String, String> {
    rendered_from(Path::new(CHART), namespace, version, values)
}

fn rendered_from(chart: &Path, namespace: &str, version: &str, values: &Value) -> Result<String, String> {
    let mut helm = Command::new(tool("helm"));
    helm.args(["template", "scpol"]).arg(chart);
    helm.args(["--namespace", namespace, "--kube-version", version, "--values", "-"]);
    helm.current_dir(root()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = helm.spawn().unwrap();
    child.stdin.take().unwrap().write_all(values.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        Err(String::from_utf8(output.stderr).unwrap())
    }
}

/// The objects of a YAML text by kind and name, without Helm's hooks and Helm's own annotation.
fn objects(text: &str) -> BTreeMap<String, Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    let mut found = BTreeMap::new();
    for mut object in documents.into_iter().filter(|object| !object.is_null()) {
        let name = format!("{} {}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
        if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
            if annotations.contains_key("helm.sh/hook") {
                continue;
            }
            annotations.remove("helm.sh/resource-policy");
            if annotations.is_empty() {
                object["metadata"].as_object_mut().unwrap().remove("annotations");
            }
        }
        assert!(found.insert(name.clone(), object).is_none(), "{name} is there twice");
    }
    found
}

/// The objects of a kustomization whose resources are folders of the checkout.
fn kustomized(kustomization: &Value) -> BTreeMap<String, Value> {
    let (folder, root) = (tempfile::tempdir().unwrap(), root().canonicalize().unwrap());
    // kustomize takes no absolute path.
    let up = "../".repeat(folder.path().canonicalize().unwrap().components().count() - 1);
    let mut kustomization = kustomization.clone();
    for resource in kustomization["resources"].as_array_mut().unwrap() {
        let path = root.join(resource.as_str().unwrap());
        *resource = json!(format!("{up}{}", path.strip_prefix("/").unwrap().display()));
    }
    fs::write(folder.path().join("kustomization.yaml"), kustomization.to_string()).unwrap();
    let made = success(Command::new(tool("kubectl")).arg("kustomize").arg(folder.path()));
    objects(&String::from_utf8(made.stdout).unwrap())
}

#[track_caller]
fn assert_same(chart: &BTreeMap<String, Value>, kustomize: &BTreeMap<String, Value>, what: &str) {
    let names = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(chart), names(kustomize), "{what}");
    for (name, object) in chart {
        assert_eq!(object, &kustomize[name], "{what}: {name}");
    }
}

/// Settings of the chart, and the kustomization of the same settings.
#[test]
fn the_chart_renders_what_kustomize_renders() {
    let more = |base: &str, resources: &[&str]| {
        let resources = [&[base], resources].concat();
        let resources: Vec<_> = resources.iter().map(|folder| format!("config/{folder}")).collect();
        json!({ "resources": resources })
    };
    let mut elsewhere = more("default", &[]);
    elsewhere["images"] =
        json!([{ "name": "sidecar-policy", "newName": "registry.example.com/mesh/scpol", "newTag": "2" }]);
    elsewhere["namespace"] = json!("mesh");
    // As docs/operations.md says.
    let held = |name: &str| {
        json!({
            "select": { "kind": "ValidatingAdmissionPolicy", "name": name },
            "fieldPaths": ["spec.matchConditions.[name=is-the-operator].expression"],
            "options": { "delimiter": ":", "index": 2 },
        })
    };
    elsewhere["replacements"] = json!([{
        "source": { "kind": "ServiceAccount", "name": "scpol", "fieldPath": "metadata.namespace" },
        "targets": [held("operator.scpol.dev"), held("creates.operator.scpol.dev")],
    }]);
    let mut flags = more("default", &["rbac/author-webhook"]);
    flags["patches"] = json!([{
        "target": { "kind": "Deployment" },
        "patch": json!([
            { "op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--author-check" },
            { "op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--protected-namespaces=a" },
            { "op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--protected-namespaces=b" },
            { "op": "replace", "path": "/spec/replicas", "value": 3 },
        ]).to_string(),
    }]);
    let with_flag = |mut kustomization: Value, flag: &str| {
        let patch = json!([{ "op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": flag }]);
        kustomization["patches"] = json!([{ "target": { "kind": "Deployment" }, "patch": patch.to_string() }]);
        kustomization
    };
    let cases = [
        ("default", CURRENT, json!({}), more("default", &[])),
        ("legacy", "1.13.5", json!({}), more("legacy", &[])),
        ("older", "1.29.0", json!({}), more("older", &[])),
        ("author check", CURRENT, json!({ "authorCheck": { "enabled": true } }), more("default", &["author"])),
        (
            "record of authors",
            CURRENT,
            json!({ "authorCheck": { "enabled": true, "record": true } }),
            more("default", &["author", "author-record"]),
        ),
        ("secrets", CURRENT, json!({ "rbac": { "secrets": true } }), more("default", &["rbac/secrets"])),
        (
            "priority lane",
            "1.13.5",
            json!({ "rbac": { "priorityLane": true } }),
            more("legacy", &["rbac/priority-lane"]),
        ),
        (
            "reports",
            CURRENT,
            json!({ "operator": { "reports": "openreports" } }),
            with_flag(more("default", &["rbac/reports"]), "--reports=openreports"),
        ),
        (
            "check of scrapes",
            CURRENT,
            json!({ "operator": { "metricsAuthorization": true } }),
            with_flag(more("default", &["rbac/metrics-authorization"]), "--metrics-authorization"),
        ),
        (
            "rollouts",
            CURRENT,
            json!({ "operator": { "rollouts": 30 } }),
            with_flag(more("default", &["rbac/rollout"]), "--rollouts=30"),
        ),
        (
            "rollouts without a limit of its own",
            "1.13.5",
            json!({ "rbac": { "rollout": true } }),
            more("legacy", &["rbac/rollout"]),
        ),
        (
            "no rollouts",
            CURRENT,
            json!({ "operator": { "rollouts": 0 } }),
            with_flag(more("default", &[]), "--rollouts=0"),
        ),
        (
            "custom resources",
            "1.13.5",
            json!({ "rbac": { "customResources": [{ "group": "example.org", "resource": "rollouts" }] } }),
            more("legacy", &["rbac/custom-resources"]),
        ),
        (
            "monitoring",
            CURRENT,
            json!({ "monitoring": { "podMonitor": { "enabled": true }, "alerts": { "enabled": true } } }),
            more("default", &["prometheus"]),
        ),
        (
            "image and namespace",
            CURRENT,
            json!({ "image": { "registry": "registry.example.com", "repository": "mesh/scpol", "tag": "2" } }),
            elsewhere,
        ),
        (
            "flags and replicas",
            CURRENT,
            json!({ "replicas": 3, "operator": { "authorCheck": true, "protectedNamespaces": ["a", "b"] } }),
            flags,
        ),
    ];
    for (what, version, mut values, kustomization) in cases {
        values["namespace"] = json!({ "create": true });
        let mut text = rendered(version, &values).unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut kustomize = kustomized(&kustomization);
        if kustomization["namespace"].is_string() {
            // Only the name that the release gives differs: kustomize renames the Namespace, too.
            text = text.replace(&format!(": {NAMESPACE}\n"), ": mesh\n").replace(&account(NAMESPACE), &account("mesh"));
            kustomize.retain(|name, _| name != "Namespace scpol-system");
            // kustomize does not know that this kind has no namespace. Servers drop it.
            for object in kustomize.values_mut().filter(|object| {
                object["spec"]["failurePolicy"] == "Fail" || object["spec"].get("policyName").is_some()
            }) {
                object["metadata"].as_object_mut().unwrap().remove("namespace");
            }
        }
        assert_same(&objects(&text), &kustomize, what);
    }
}

/// The images of the pods of the chart of a release, whose image is `image`: `release/dist.sh` makes it like this.
fn images_of_release(image: &str, digest: &str, values: &Value) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let mut script = Command::new(root().join("release/chart.sh"));
    success(script.arg(folder.path()).args([image, digest]).env("REPOSITORY", "mesh/policy"));
    let chart = folder.path().join("sidecar-policy");
    let manifest = fs::read_to_string(chart.join("Chart.yaml")).unwrap();
    assert!(manifest.contains("home: https://github.com/mesh/policy\n"), "{manifest}");
    let text = rendered_from(&chart, NAMESPACE, CURRENT, values).unwrap();
    text.lines().filter_map(|line| line.trim().strip_prefix("image: ")).map(str::to_owned).collect()
}

#[test]
fn an_image_has_registry_repository_tag_and_digest() {
    let (digest, other) = (format!("sha256:{}", "1".repeat(64)), format!("sha256:{}", "2".repeat(64)));
    let of_release = |start: &str| format!("{start}:0.1.0@{digest}");
    for (image, given, expected) in [
        ("ghcr.io/o/policy", json!({}), of_release("ghcr.io/o/policy")),
        ("localhost/policy", json!({ "registry": "r.example.com" }), of_release("r.example.com/policy")),
        ("localhost:5000/a/b", json!({ "registry": "r.example.com:80" }), of_release("r.example.com:80/a/b")),
        ("sidecar-policy", json!({ "registry": "r.example.com" }), of_release("r.example.com/sidecar-policy")),
        ("o/policy", json!({}), of_release("o/policy")),
        ("ghcr.io/o/policy", json!({ "registry": "" }), of_release("o/policy")),
        // Another image than that of the release.
        ("ghcr.io/o/policy", json!({ "tag": "0.1.1" }), "ghcr.io/o/policy:0.1.1".to_owned()),
        ("ghcr.io/o/policy", json!({ "digest": other }), format!("ghcr.io/o/policy@{other}")),
        ("ghcr.io/o/policy", json!({ "digest": "none" }), "ghcr.io/o/policy:0.1.0".to_owned()),
        ("ghcr.io/o/policy", json!({ "tag": "2", "digest": "none" }), "ghcr.io/o/policy:2".to_owned()),
        ("ghcr.io/o/policy", json!({ "tag": "2", "digest": other }), format!("ghcr.io/o/policy:2@{other}")),
    ] {
        let images = images_of_release(image, &digest, &json!({ "image": given }));
        assert_eq!(images, [expected.as_str(); 3], "{image}, {given}: the operator, the test and the hook");
    }
}

/// Helm leaves what a failed hook created, so its account has no more power than the hook needs.
#[test]
fn what_a_failed_hook_leaves_can_do_no_harm() {
    let values =
        json!({ "rbac": { "customResources": [{ "group": "example.org", "resource": "rollouts" }], "secrets": true } });
    let text = rendered(CURRENT, &values).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let is_hook = |object: &&Value| !object["metadata"]["annotations"]["helm.sh/hook"].is_null();
    let hooks: Vec<&Value> = documents.iter().filter(is_hook).collect();
    assert_eq!(hooks.len(), 12, "two accounts, each with two roles and their bindings, and what they run");
    let list = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap_or_default() };
    let mut deleted = BTreeSet::new();
    for hook in hooks {
        let (kind, policy) = (&hook["kind"], &hook["metadata"]["annotations"]["helm.sh/hook-delete-policy"]);
        let runs = ["Job", "Pod"].iter().any(|runs| kind == runs);
        assert_eq!(hook["spec"]["ttlSecondsAfterFinished"] == 3600, kind == "Job", "a Job is left to no person");
        let expected = if runs { "" } else { ",hook-failed" };
        assert_eq!(*policy, format!("before-hook-creation,hook-succeeded{expected}"), "{kind}");
        for rule in hook["rules"].as_array().into_iter().flatten() {
            let (groups, resources) = (list(&rule["apiGroups"]), list(&rule["resources"]));
            let (names, verbs) = (list(&rule["resourceNames"]), list(&rule["verbs"]));
            if groups.contains(&"admissionregistration.k8s.io".to_owned()) && verbs != ["list"] {
                assert!(!names.is_empty() && verbs == ["delete"], "{rule}");
                deleted.extend(names.clone());
            }
            let is_secret = resources.contains(&"secrets".to_owned());
            assert!(!is_secret || hook["metadata"]["name"] == "scpol-uninstall" && !verbs.contains(&"get".to_owned()));
            assert!(!is_secret || names == ["scpol-webhook"] || verbs == ["list"], "{rule}");
        }
    }
    // Everything that the operator may delete itself.
    let roles = objects(&text).into_values().filter(|object| object["kind"] == "ClusterRole");
    let rules = roles.flat_map(|role| role["rules"].as_array().cloned().unwrap_or_default());
    let own = rules.filter(|rule| list(&rule["apiGroups"]) == ["admissionregistration.k8s.io"]);
    let own: BTreeSet<String> = own.flat_map(|rule| list(&rule["resourceNames"])).collect();
    assert!(own.contains("scpol-rollouts.example.org-ignore") && own.contains("scpol-secrets"), "{own:?}");
    assert_eq!(deleted, own);
}

/// A leaf that signs itself would change together with its authority.
#[test]
fn the_certificate_of_cert_manager_has_an_authority_that_outlives_it() {
    let made = objects(&rendered(CURRENT, &json!({ "certManager": { "enabled": true } })).unwrap());
    assert_eq!(made["Certificate scpol"]["spec"]["issuerRef"], json!({ "kind": "Issuer", "name": "scpol" }));
    let root = &made["Certificate scpol-root"]["spec"];
    assert_eq!(made["Issuer scpol"]["spec"], json!({ "ca": { "secretName": root["secretName"] } }));
    assert_eq!(made["Issuer scpol-root"]["spec"], json!({ "selfSigned": {} }));
    assert_eq!((&root["isCA"], &root["privateKey"]["rotationPolicy"]), (&json!(true), &json!("Never")));
    let given =
        json!({ "certManager": { "enabled": true, "issuerRef": { "kind": "ClusterIssuer", "name": "internal" } } });
    let made = objects(&rendered(CURRENT, &given).unwrap());
    assert!(!made.keys().any(|name| name.starts_with("Issuer ") || name.ends_with("-root")), "{:?}", made.keys());
}

/// The policy that holds the operator's account knows the address that the operator is given.
#[test]
fn the_address_of_the_webhook_is_allowed_by_what_holds_the_account() {
    let url = |values: &Value| {
        let policy = &objects(&rendered(CURRENT, values).unwrap())["ValidatingAdmissionPolicy operator.scpol.dev"];
        let variables = policy["spec"]["variables"].as_array().unwrap().clone();
        variables.into_iter().find(|variable| variable["name"] == "url").unwrap()["expression"].clone()
    };
    assert_eq!(url(&json!({})), r#""""#);
    let given = json!({ "operator": { "webhookUrl": "https://scpol.example.com" } });
    assert_eq!(url(&given), r#""https://scpol.example.com/""#);
    assert!(!rendered("1.29.0", &json!({})).unwrap().contains("operator.scpol.dev"), "the kind came with 1.30");
}

/// What holds the operator's account names it exactly, in the namespace of the release.
#[test]
fn what_holds_the_account_holds_the_account_of_the_release() {
    for namespace in [NAMESPACE, "mesh"] {
        let made = objects(&rendered_in(namespace, CURRENT, &json!({})).unwrap());
        let expected = format!("request.userInfo.username == {:?}", account(namespace));
        for name in ["operator.scpol.dev", "creates.operator.scpol.dev"] {
            let conditions = &made[&format!("ValidatingAdmissionPolicy {name}")]["spec"]["matchConditions"];
            assert_eq!(conditions, &json!([{ "name": "is-the-operator", "expression": expected }]), "{name}");
        }
        let account = &made["ServiceAccount scpol"]["metadata"];
        assert_eq!((&account["namespace"], &account["name"]), (&json!(namespace), &json!("scpol")));
    }
}

/// The value that the tests set: an example of the schema, or another one of the same type.
fn another(leaf: &Value) -> Value {
    let default = &leaf["default"];
    let example = leaf["examples"][0].clone();
    let kinds = leaf["type"].to_string();
    match default {
        _ if !example.is_null() => example,
        Value::Bool(is_on) => json!(!is_on),
        Value::Number(number) => json!(number.as_i64().unwrap() + 1),
        _ if leaf["enum"].is_array() => {
            leaf["enum"].as_array().unwrap().iter().find(|value| *value != default).unwrap().clone()
        }
        Value::Null if kinds.contains("boolean") => json!(true),
        _ => panic!("the schema has no example: {leaf}"),
    }
}

#[test]
fn every_value_has_an_effect() {
    // What a value may need to have one.
    let everything = json!({
        "authorCheck": { "enabled": true }, "certManager": { "enabled": true }, "namespace": { "create": true },
        "monitoring": {
            "podMonitor": { "enabled": true }, "alerts": { "enabled": true }, "dashboard": { "enabled": true },
        },
    });
    let contexts = [("1.13.5", json!({})), (CURRENT, json!({})), (CURRENT, everything)];
    let plain: Vec<_> = contexts.iter().map(|(version, values)| rendered(version, values).unwrap()).collect();
    for (path, leaf) in leaves().into_iter().filter(|(path, _)| !UNREAD.contains(&path[0].as_str())) {
        let set = at(&path, another(&leaf));
        let has_effect = contexts.iter().zip(&plain).any(|((version, values), plain)| {
            let mut values = values.clone();
            json_patch::merge(&mut values, &set);
            rendered(version, &values).is_ok_and(|text| text != *plain)
        });
        assert!(has_effect, "{set} is refused, or changes nothing");
    }
}

#[test]
fn a_wrong_value_is_refused_by_its_name() {
    for (values, words) in [
        (json!({ "replica": 3 }), ["replica", "not allowed"]),
        (json!({ "replicas": "three" }), ["/replicas", "integer"]),
        (json!({ "operator": { "podSecurity": "strict" } }), ["/operator/podSecurity", "baseline"]),
        (json!({ "operator": { "reports": "on" } }), ["/operator/reports", "openreports"]),
        (json!({ "operator": { "rollouts": 10_001 } }), ["/operator/rollouts", "maximum"]),
        (json!({ "operator": { "resync": "15" } }), ["/operator/resync", "pattern"]),
        (json!({ "image": { "digest": "latest" } }), ["/image/digest", "pattern"]),
        (json!({ "operator": { "workers": 0 } }), ["/operator/workers", "minimum"]),
    ] {
        let error = rendered(CURRENT, &values).expect_err("a wrong value");
        assert!(words.iter().all(|word| error.contains(word)), "{values}: {error}");
    }
    let error = rendered("1.28.0", &json!({ "authorCheck": { "enabled": true } })).expect_err("it came with 1.30");
    assert!(error.contains("set operator.authorCheck instead"), "{error}");
    let error = rendered("1.35.0", &json!({ "authorCheck": { "record": true } })).expect_err("it came with 1.36");
    assert!(error.contains("authorCheck.record needs Kubernetes 1.36"), "{error}");
}

/// `operator` has every flag of `scpol run`, but those that the chart sets itself.
#[test]
fn the_values_have_every_flag_of_the_operator() {
    let help = success(Command::new(env!("CARGO_BIN_EXE_scpol")).args(["run", "--help"]).env_clear());
    let help = String::from_utf8(help.stdout).unwrap();
    let flags: BTreeSet<_> = help
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--"))
        .map(|line| line.split([' ', '[']).next().unwrap().to_owned())
        .filter(|flag| !["color", "kubeconfig", "context", "operator-namespace", "pod-name"].contains(&flag.as_str()))
        .collect();
    let kebab = |name: &String| {
        name.chars().map(|c| if c.is_uppercase() { format!("-{}", c.to_lowercase()) } else { c.to_string() }).collect()
    };
    let values: BTreeSet<String> =
        schema()["properties"]["operator"]["properties"].as_object().unwrap().keys().map(kebab).collect();
    assert_eq!(values, flags);
}

#[test]
fn the_files_of_the_chart_are_those_of_config() {
    let fresh = tempfile::tempdir().unwrap();
    success(Command::new(root().join("charts/files.sh")).arg(fresh.path().join("files")));
    let difference = Command::new("diff")
        .arg("-r")
        .arg(fresh.path().join("files"))
        .arg(root().join(CHART).join("files"))
        .output()
        .unwrap();
    let difference = String::from_utf8_lossy(&difference.stdout);
    assert!(difference.is_empty(), "{difference}stale: run `make install-files`");
}

#[test]
fn helm_has_nothing_against_the_chart() {
    let told = success(Command::new(tool("helm")).args(["lint", "--strict", CHART]).current_dir(root()));
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("1 chart(s) linted, 0 chart(s) failed"), "{told}");
}

// What is generated from the schema.

/// `values.yaml`: every value with its default, under its description.
fn values_file(schema: &Value, indent: usize, text: &mut String) {
    let margin = " ".repeat(indent);
    for (name, value) in schema["properties"].as_object().unwrap() {
        for line in textwrap(value["description"].as_str().unwrap(), 100 - indent) {
            text.push_str(&format!("{margin}# {line}\n"));
        }
        let Some(default) = value.get("default") else {
            text.push_str(&format!("{margin}{name}:\n"));
            values_file(value, indent + 2, text);
            continue;
        };
        match default {
            Value::Object(map) if !map.is_empty() => {
                text.push_str(&format!("{margin}{name}:\n"));
                for line in serde_saphyr::to_string(default).unwrap().lines() {
                    text.push_str(&format!("{margin}  {line}\n"));
                }
            }
            default => text.push_str(&format!("{margin}{name}: {default}\n")),
        }
    }
}

/// The words of `text` in lines of at most `width` characters.
fn textwrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => line.push_str(&format!(" {word}")),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[test]
fn the_file_of_values_is_current() {
    let mut text = "# Generated from values.schema.json by `make install-files`.\n\n".to_owned();
    values_file(&schema(), 0, &mut text);
    assert_current(&format!("{CHART}/values.yaml"), &text, "install-files");
    let values: Value = serde_saphyr::from_str(&text).unwrap();
    for (path, leaf) in leaves() {
        let pointer = format!("/{}", path.join("/"));
        assert_eq!(values.pointer(&pointer), Some(&leaf["default"]), "{pointer}");
    }
}

#[test]
fn the_table_of_values_is_current() {
    let path = format!("{CHART}/README.md");
    let page = read(&path);
    let (before, rest) = page.split_once("<!-- begin: make chart -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- end: make chart -->").unwrap();
    let mut table = "| value | default | meaning |\n|---|---|---|\n".to_owned();
    for (path, leaf) in leaves() {
        let (default, meaning) = (&leaf["default"], leaf["description"].as_str().unwrap());
        table.push_str(&format!("| `{}` | `{default}` | {} |\n", path.join("."), meaning.replace('|', "\\|")));
    }
    assert_current(
        &path,
        &format!("{before}<!-- begin: make chart -->\n{table}<!-- end: make chart -->{after}"),
        "install-files",
    );
}

#[test]
fn every_value_is_described_and_takes_its_default() {
    fn walk(schema: &Map<String, Value>, path: &str) {
        for (name, value) in schema {
            let path = format!("{path}.{name}");
            assert!(value["description"].as_str().is_some_and(|text| text.len() > 8), "{path} has no description");
            match value.get("properties").filter(|_| value.get("default").is_none()) {
                Some(inner) => {
                    assert_eq!(value["additionalProperties"], false, "{path} takes any key");
                    walk(inner.as_object().unwrap(), &path);
                }
                None => assert!(value.get("default").is_some(), "{path} has no default"),
            }
        }
    }
    walk(schema()["properties"].as_object().unwrap(), "");
    assert!(Path::new(&root().join(CHART).join("values.yaml")).exists());
    rendered(CURRENT, &json!({})).unwrap();
}
