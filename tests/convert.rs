//! Tests of `scpol convert`. Every folder in `tests/convert` is a case: `input.yaml` gives the policies in
//! `expected.yaml` (absent if there are none) and the report in `expected-report.txt`. `UPDATE=1` rewrites both; review
//! the difference.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::tools::root;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn scpol(folder: &Path, arguments: &[&str], stdin: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scpol"));
    command.args(arguments).current_dir(folder);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that fails early stops reading.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn convert(input: &str) -> (i32, String, String) {
    let output = scpol(root(), &["convert", "-f", "-"], input.as_bytes());
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn cases() -> Vec<PathBuf> {
    let mut cases: Vec<_> =
        fs::read_dir(root().join("tests/convert")).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    cases
}

/// Writes `found`, or compares it with the file. A missing file stands for empty text.
fn compare(path: &Path, found: &str, faults: &mut Vec<String>) {
    let expected = fs::read_to_string(path).unwrap_or_default();
    if expected == found {
        return;
    }
    match std::env::var_os("UPDATE") {
        Some(_) if found.is_empty() => fs::remove_file(path).unwrap(),
        Some(_) => fs::write(path, found).unwrap(),
        None => faults.push(format!("{}: found\n{found}", path.display())),
    }
}

#[test]
fn every_case_gives_its_policies_and_its_report() {
    let mut faults = Vec::new();
    for case in cases() {
        let output = scpol(&case, &["convert", "-f", "input.yaml"], b"");
        let report = text(&output.stderr);
        compare(&case.join("expected.yaml"), &text(&output.stdout), &mut faults);
        compare(&case.join("expected-report.txt"), &report, &mut faults);
        let needs_attention = ["Nothing could", "NOT CARRIED", "TAKEN AS"].iter().any(|words| report.contains(words));
        assert_eq!(output.status.code(), Some(i32::from(needs_attention)), "{}: {report}", case.display());
    }
    assert!(faults.is_empty(), "UPDATE=1 writes them anew:\n{}", faults.join("\n"));
}

#[test]
fn every_line_that_a_report_names_is_there() {
    let mut named = 0;
    for case in cases() {
        let (input, report) = ("input.yaml", "expected-report.txt");
        let lines = fs::read_to_string(case.join(input)).unwrap().lines().count();
        let report = fs::read_to_string(case.join(report)).unwrap();
        for place in report.split("input.yaml:").skip(1) {
            let digits: String = place.chars().take_while(char::is_ascii_digit).collect();
            let line: usize = digits.parse().unwrap_or(1);
            assert!((1..=lines).contains(&line), "{}: line {line}", case.display());
            named += 1;
        }
    }
    assert!(named > 20, "{named} places");
}

/// The containers of a sample workload in `namespace` after injection of a case's policies.
fn injected(case: &str, workload: &str, namespace: &str) -> String {
    let policies = root().join("tests/convert").join(case).join("expected.yaml");
    let mut arguments = vec!["inject", "-f", workload, "-n", namespace, "-p", policies.to_str().unwrap()];
    for name in ["sidecar.initializer.kubernetes.io", "envoy.initializer.kubernates.io"] {
        arguments.extend(["--initializer-name", name]);
    }
    let output = scpol(&root().join("samples/workloads"), &arguments, b"");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let body: Value = serde_saphyr::from_str(&text(&output.stdout)).unwrap();
    let spec = body.pointer("/spec/template/spec").unwrap_or(&body["spec"]);
    let containers = spec["containers"].as_array().unwrap().iter();
    containers.map(|container| container["name"].as_str().unwrap()).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_converted_tutorials_give_what_their_authors_saw() {
    for (case, workload, namespace, expected) in [
        ("tutorial-sidecar", "nginx.yaml", "default", "nginx sidecar-nginx"),
        ("tutorial-sidecar", "nginx.v1beta1.yaml", "default", "nginx sidecar-nginx"),
        ("tutorial-sidecar", "nginx-with-annotation.yaml", "default", "nginx sidecar-nginx"),
        ("tutorial-sidecar", "myapp-pod.yaml", "default", "myapp-container"),
        ("tutorial-sidecar", "nginx.yaml", "kube-system", "nginx"),
        ("tutorial-annotation", "nginx.yaml", "default", "nginx"),
        ("tutorial-annotation", "nginx.v1beta1.yaml", "default", "nginx"),
        ("tutorial-annotation", "nginx-with-annotation.yaml", "default", "nginx sidecar-nginx"),
        ("tutorial-annotation", "nginx-with-annotation.v1beta1.yaml", "default", "nginx sidecar-nginx"),
        ("tutorial-envoy", "myapp-pod.yaml", "default", "myapp-container envoy"),
        ("tutorial-envoy", "nginx.yaml", "default", "nginx"),
    ] {
        assert_eq!(injected(case, workload, namespace), expected, "{workload} under {case} in {namespace}");
    }
}

#[test]
fn a_pod_preset_and_its_policy_add_the_same() {
    let pod = |labels: Value, annotations: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "website", "namespace": "myns", "labels": labels, "annotations": annotations },
            "spec": { "hostNetwork": true, "containers": [{ "name": "website", "image": "ecorp/website", "env": [{ "name": "A", "value": "b" }] }] },
        })
    };
    let inject = |pod: &Value| -> Value {
        let policy = root().join("tests/convert/pod-preset/expected.yaml");
        let output = scpol(root(), &["inject", "-f", "-", "-p", policy.to_str().unwrap()], pod.to_string().as_bytes());
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let frontend = json!({ "role": "frontend" });
    let body = inject(&pod(frontend.clone(), json!({})));
    let container = &body["spec"]["containers"][0];
    let names: Vec<_> =
        container["env"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["A", "DB_PORT", "DB_PASSWORD"]);
    assert_eq!(container["envFrom"][0]["configMapRef"]["name"], "etcd-env-config");
    assert_eq!(container["volumeMounts"], json!([{ "mountPath": "/cache", "name": "cache-volume" }]));
    assert_eq!(body["spec"]["volumes"], json!([{ "emptyDir": {}, "name": "cache-volume" }]));
    let exclude = |value: &str| json!({ "podpreset.admission.kubernetes.io/exclude": value });
    for (labels, annotations, adds) in [
        (json!({ "role": "backend" }), json!({}), false),
        (frontend.clone(), exclude("true"), false),
        (frontend, exclude("false"), true),
    ] {
        let before = pod(labels, annotations);
        assert_eq!(inject(&before) != before, adds, "{before}");
    }
}

#[test]
fn policies_come_out_of_pipes_lists_and_json_alike() {
    let case = root().join("tests/convert/tutorial-annotation");
    let expected = fs::read_to_string(case.join("expected.yaml")).unwrap();
    let input = fs::read_to_string(case.join("input.yaml")).unwrap();
    assert_eq!(convert(&input).1, expected);
    let items: Vec<Value> = serde_saphyr::from_multiple(&input).unwrap();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    assert_eq!(convert(&list.to_string()).1, expected);
    let output = scpol(&case, &["convert", "-f", "input.yaml", "-o", "json"], b"");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["apiVersion"], &report["kind"]), (&json!("cli.scpol.dev/v1alpha1"), &json!("ConvertReport")));
    assert_eq!(report["policies"][0]["object"], serde_saphyr::from_str::<Value>(&expected).unwrap());
    assert_eq!(report["initializerNames"], json!(["sidecar.initializer.kubernetes.io"]));
    assert!(output.stderr.is_empty() && output.status.success());
    let output = scpol(&case, &["convert", "-f", "input.yaml", "--report"], b"");
    assert_eq!(text(&output.stdout), fs::read_to_string(case.join("expected-report.txt")).unwrap());
    assert!(output.stderr.is_empty());
}

#[test]
fn what_cannot_be_read_is_told_and_nothing_is_done() {
    let (code, out, err) = convert("kind: PodPreset\n\tspec: {}\n");
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.starts_with("error: standard input:2: the line is indented by a tab"), "{err}");
}

/// Values of the wrong shape at every position that is read.
#[test]
fn odd_shapes_are_findings_and_never_a_panic() {
    let shapes =
        [json!(null), json!(7), json!("x"), json!([]), json!([7, null]), json!({}), json!({ "a": [] }), json!("é: [")];
    let files = ["tutorial-annotation", "tutorial-envoy", "pod-preset", "rules", "flags", "dapr"];
    let mut tried = 0;
    for file in files {
        let input = fs::read_to_string(root().join("tests/convert").join(file).join("input.yaml")).unwrap();
        let items: Vec<Value> = serde_saphyr::from_multiple(&input).unwrap();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        let mut variants = Vec::new();
        for (index, pointer) in pointers(&list, "").into_iter().enumerate() {
            let mut variant = list.clone();
            *variant.pointer_mut(&pointer).unwrap() = shapes[index % shapes.len()].clone();
            variants.push(variant);
        }
        for variant in variants {
            let (code, _, err) = convert(&variant.to_string());
            assert!((0..=2).contains(&code) && !err.contains("panicked"), "{variant}\n{err}");
            tried += 1;
        }
    }
    assert!(tried > 200, "{tried} variants");
}

/// The pointers to all values within `value`.
fn pointers(value: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut below = |key: String, value: &Value| {
        let pointer = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
        found.extend(pointers(value, &pointer));
        found.push(pointer);
    };
    match value {
        Value::Array(items) => items.iter().enumerate().for_each(|(index, item)| below(index.to_string(), item)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| below(key.clone(), value)),
        _ => {}
    }
    found
}

#[test]
fn a_preset_whose_selector_is_no_selector_becomes_no_policy_for_every_pod() {
    let preset = json!({
        "apiVersion": "settings.k8s.io/v1alpha1", "kind": "PodPreset", "metadata": { "name": "all" },
        "spec": { "selector": "app=web", "env": [{ "name": "A", "value": "1" }] },
    });
    let (code, policies, report) = convert(&preset.to_string());
    assert_eq!((code, policies.as_str()), (1, ""), "{report}");
    assert!(report.contains("its `selector` is \"app=web\", which selects nothing"), "{report}");
}

/// A key and a value.
type Annotation = (&'static str, &'static str);

/// Two pods of each injector, the second with a wrong value, and what is said about it.
const OF_INJECTORS: [(&str, [Annotation; 2], &str); 4] = [
    (
        "linkerd",
        [("config.linkerd.io/proxy-memory-limit", "700Mi"), ("config.linkerd.io/proxy-memory-limit", "512m")],
        "is `512m`; write `512Mi`, or allow it in the parameter `memory-limit`",
    ),
    (
        "dapr",
        [("dapr.io/app-port", "8080"), ("dapr.io/log-level", "warning")],
        "is `warning`; write such a value, or allow it in the parameter `log-level`",
    ),
    (
        "vault",
        [
            ("vault.hashicorp.com/agent-inject-secret-db.txt", "secret/data/orders/db"),
            ("vault.hashicorp.com/service", "http://vault:8200"),
        ],
        "is `http://vault:8200`; write such a value, or allow it in the parameter `service`",
    ),
    (
        "istio",
        [("sidecar.istio.io/proxyCPU", "150m"), ("sidecar.istio.io/proxyMemory", "16Mi")],
        "is `16Mi`; write such a value, or allow it in the parameter `memory-request`",
    ),
];

/// Linkerd and Istio are asked for by the Namespace.
fn of_injectors() -> Value {
    let mut items = vec![json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": "shop", "labels": { "istio-injection": "enabled" }, "annotations": { "linkerd.io/inject": "enabled" } },
    })];
    for (injector, pods, _) in OF_INJECTORS {
        for (name, (key, value)) in ["right", "wrong"].into_iter().zip(pods) {
            let mut annotations = json!({ "dapr.io/app-id": "orders", key: value });
            for (of, switch) in [("dapr", "dapr.io/enabled"), ("vault", "vault.hashicorp.com/agent-inject")] {
                annotations[switch] = (injector == of).to_string().into();
            }
            if injector != "linkerd" {
                annotations["linkerd.io/inject"] = "disabled".into();
            }
            let labels = json!({ "sidecar.istio.io/inject": (injector == "istio").to_string() });
            items.push(json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": format!("{injector}-{name}"), "namespace": "shop", "labels": labels, "annotations": annotations },
                "spec": { "containers": [{ "name": "web", "image": "registry.example.com/web:1" }] },
            }));
        }
    }
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

#[test]
fn policies_of_other_injectors_pass_lint_and_take_the_annotations_as_they_are() {
    let manifests = of_injectors().to_string();
    let (code, policies, report) = convert(&manifests);
    assert_eq!(code, 1, "{report}");
    let path = std::env::temp_dir().join(format!("scpol-convert-{}.yaml", std::process::id()));
    fs::write(&path, &policies).unwrap();
    let file = path.to_str().unwrap();
    let lint = scpol(root(), &["lint", "--strict", file], b"");
    let injected = scpol(root(), &["inject", "-f", "-", "-p", file, "-o", "json"], manifests.as_bytes());
    fs::remove_file(&path).unwrap();
    assert!(lint.status.success(), "{}", text(&lint.stdout));
    let (list, said): (Value, _) = (serde_json::from_slice(&injected.stdout).unwrap(), text(&injected.stderr));
    let pods = list["items"].as_array().unwrap();
    for (injector, [(_, right), _], fault) in OF_INJECTORS {
        assert!(report.contains(fault), "{fault}: {report}");
        assert!(
            said.contains(&format!("Pod shop/{injector}-wrong: policy `{injector}`: not injected: SCP0245")),
            "{said}"
        );
        let pod = pods.iter().find(|pod| pod["metadata"]["name"] == format!("{injector}-right")).unwrap();
        let markers = pod["metadata"]["annotations"].as_object().unwrap().keys();
        let markers: Vec<_> = markers.filter_map(|key| key.strip_prefix("injected.scpol.dev/")).collect();
        assert_eq!(markers, [injector], "{said}");
        assert!(pod["spec"].to_string().contains(right), "{pod}");
    }
}
