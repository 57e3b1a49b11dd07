//! The pages about parameters. The policies of `docs/examples/parameters` take the annotations of other injectors: each one
//! reaches its fields, and `docs/migrate.md` has them as tables. `docs/write/parameters.md` has the table of fields, and the
//! answers to wrong values.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::tools::{assert_current, root};
use regex::Regex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

/// An annotation, the value that a workload gives, and the places of the injected pod that have it: the container, a
/// pointer, and what is there.
type Row = (&'static str, &'static str, &'static [(&'static str, &'static str, &'static str)]);

const LINKERD: [Row; 10] = [
    ("config.linkerd.io/proxy-cpu-request", "150m", &[("linkerd-proxy", "/resources/requests/cpu", "150m")]),
    ("config.linkerd.io/proxy-cpu-limit", "1", &[("linkerd-proxy", "/resources/limits/cpu", "1")]),
    ("config.linkerd.io/proxy-memory-request", "64Mi", &[("linkerd-proxy", "/resources/requests/memory", "64Mi")]),
    ("config.linkerd.io/proxy-memory-limit", "300Mi", &[("linkerd-proxy", "/resources/limits/memory", "300Mi")]),
    (
        "config.linkerd.io/proxy-log-level",
        "warn,linkerd=debug",
        &[("linkerd-proxy", "env LINKERD2_PROXY_LOG", "warn,linkerd=debug,[{headers}]=off,[{request}]=off")],
    ),
    ("config.linkerd.io/proxy-log-format", "json", &[("linkerd-proxy", "env LINKERD2_PROXY_LOG_FORMAT", "json")]),
    (
        "config.linkerd.io/proxy-version",
        "edge-26.8.2",
        &[("linkerd-proxy", "/image", "cr.l5d.io/linkerd/proxy:edge-26.8.2")],
    ),
    (
        "config.linkerd.io/opaque-ports",
        "3306,8000-8010",
        &[("linkerd-proxy", "env LINKERD2_PROXY_INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", "3306,8000-8010")],
    ),
    (
        "config.linkerd.io/default-inbound-policy",
        "deny",
        &[("linkerd-proxy", "env LINKERD2_PROXY_INBOUND_DEFAULT_POLICY", "deny")],
    ),
    (
        "config.linkerd.io/proxy-outbound-connect-timeout",
        "2s",
        &[("linkerd-proxy", "env LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT", "2s")],
    ),
];

const DAPR: [Row; 10] = [
    ("dapr.io/app-id", "orders-api", &[("daprd", "/args/8", "--app-id=orders-api")]),
    ("dapr.io/app-port", "3000", &[("daprd", "/args/9", "--app-port=3000")]),
    ("dapr.io/app-protocol", "grpc", &[("daprd", "/args/10", "--app-protocol=grpc")]),
    ("dapr.io/config", "tracing", &[("daprd", "/args/11", "--config=tracing")]),
    ("dapr.io/log-level", "debug", &[("daprd", "/args/12", "--log-level=debug")]),
    ("dapr.io/app-max-concurrency", "8", &[("daprd", "/args/13", "--app-max-concurrency=8")]),
    ("dapr.io/sidecar-cpu-request", "150m", &[("daprd", "/resources/requests/cpu", "150m")]),
    ("dapr.io/sidecar-cpu-limit", "1", &[("daprd", "/resources/limits/cpu", "1")]),
    ("dapr.io/sidecar-memory-request", "128Mi", &[("daprd", "/resources/requests/memory", "128Mi")]),
    ("dapr.io/sidecar-memory-limit", "512Mi", &[("daprd", "/resources/limits/memory", "512Mi")]),
];

const VAULT: [Row; 10] = [
    ("vault.hashicorp.com/role", "orders", &[("vault-agent", "config /auto_auth/method/config/role", "orders")]),
    (
        "vault.hashicorp.com/agent-inject-secret-config",
        "secret/data/orders",
        &[(
            "vault-agent",
            "config /template/0/contents",
            "{{ with secret \"secret/data/orders\" }}{{ range $k, $v := .Data }}{{ $k }}: {{ $v }}\n{{ end }}{{ end }}",
        )],
    ),
    ("vault.hashicorp.com/auth-path", "auth/eu", &[("vault-agent", "config /auto_auth/method/mount_path", "auth/eu")]),
    (
        "vault.hashicorp.com/service",
        "https://vault.example.com:8200",
        &[("vault-agent", "config /vault/address", "https://vault.example.com:8200")],
    ),
    ("vault.hashicorp.com/log-level", "debug", &[("vault-agent", "env VAULT_LOG_LEVEL", "debug")]),
    ("vault.hashicorp.com/agent-pre-populate", "false", &[("vault-agent-init", "", "")]),
    ("vault.hashicorp.com/agent-limits-cpu", "1", &[("vault-agent", "/resources/limits/cpu", "1")]),
    ("vault.hashicorp.com/agent-limits-mem", "256Mi", &[("vault-agent", "/resources/limits/memory", "256Mi")]),
    ("vault.hashicorp.com/agent-requests-cpu", "100m", &[("vault-agent", "/resources/requests/cpu", "100m")]),
    ("vault.hashicorp.com/agent-requests-mem", "100Mi", &[("vault-agent", "/resources/requests/memory", "100Mi")]),
];

const ISTIO: [Row; 10] = [
    ("sidecar.istio.io/proxyCPU", "150m", &[("istio-proxy", "/resources/requests/cpu", "150m")]),
    ("sidecar.istio.io/proxyCPULimit", "3", &[("istio-proxy", "/resources/limits/cpu", "3")]),
    ("sidecar.istio.io/proxyMemory", "256Mi", &[("istio-proxy", "/resources/requests/memory", "256Mi")]),
    ("sidecar.istio.io/proxyMemoryLimit", "2Gi", &[("istio-proxy", "/resources/limits/memory", "2Gi")]),
    ("sidecar.istio.io/logLevel", "debug", &[("istio-proxy", "/args/4", "--proxyLogLevel=debug")]),
    (
        "sidecar.istio.io/componentLogLevel",
        "misc:error,http:debug",
        &[("istio-proxy", "/args/5", "--proxyComponentLogLevel=misc:error,http:debug")],
    ),
    (
        "sidecar.istio.io/agentLogLevel",
        "default:debug",
        &[("istio-proxy", "/args/6", "--log_output_level=default:debug")],
    ),
    (
        "readiness.status.sidecar.istio.io/initialDelaySeconds",
        "5",
        &[("istio-proxy", "/readinessProbe/initialDelaySeconds", "5")],
    ),
    (
        "readiness.status.sidecar.istio.io/periodSeconds",
        "10",
        &[("istio-proxy", "/readinessProbe/periodSeconds", "10")],
    ),
    (
        "readiness.status.sidecar.istio.io/failureThreshold",
        "30",
        &[("istio-proxy", "/readinessProbe/failureThreshold", "30")],
    ),
];

/// Each injector: the file, its name, what a workload says to be injected, and its rows.
const INJECTORS: [(&str, &str, Switch, &[Row; 10]); 4] = [
    ("linkerd", "Linkerd", Switch::Annotation("linkerd.io/inject", "enabled"), &LINKERD),
    ("dapr", "Dapr", Switch::Annotation("dapr.io/enabled", "true"), &DAPR),
    ("vault", "Vault Agent Injector", Switch::Annotation("vault.hashicorp.com/agent-inject", "true"), &VAULT),
    ("istio", "Istio", Switch::Label("sidecar.istio.io/inject", "true"), &ISTIO),
];

#[derive(Clone, Copy)]
enum Switch {
    Annotation(&'static str, &'static str),
    Label(&'static str, &'static str),
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

fn file(injector: &str) -> String {
    format!("docs/examples/parameters/{injector}.yaml")
}

/// A pod that `switch` selects, with the values of `rows`.
fn pod<'a>(switch: Switch, rows: impl IntoIterator<Item = &'a Row>) -> Value {
    let mut annotations: BTreeMap<&str, &str> = rows.into_iter().map(|(key, value, _)| (*key, *value)).collect();
    let mut labels = BTreeMap::from([("app", "orders")]);
    match switch {
        Switch::Annotation(key, value) => annotations.insert(key, value),
        Switch::Label(key, value) => labels.insert(key, value),
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "orders", "namespace": "shop", "labels": labels, "annotations": annotations },
        "spec": { "containers": [{ "name": "orders", "image": "registry.example.com/orders:1" }] },
    })
}

/// What `scpol inject` prints for `manifests` with the policy in `policy`, and what it says to standard error.
fn inject(policy: &str, manifests: &str) -> (Vec<u8>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scpol"));
    command.args(["inject", "-f", "-", "-o", "json", "-p", policy]).current_dir(root());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(manifests.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.stdout, String::from_utf8(output.stderr).unwrap())
}

/// `pod` with what the policy of `injector` adds, in a namespace with `annotations`.
fn injected(injector: &str, pod: &Value, annotations: &Value) -> (Value, String) {
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop", "annotations": annotations },
    });
    let (printed, said) = inject(&file(injector), &format!("{namespace}\n---\n{pod}\n"));
    let mut list: Value =
        serde_json::from_slice(&printed).unwrap_or_else(|error| panic!("{injector}: {error}: {said}"));
    (list["items"][1].take(), said)
}

fn container<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let lists = ["containers", "initContainers"].into_iter().filter_map(|list| pod["spec"][list].as_array());
    lists.flatten().find(|container| container["name"] == name)
}

/// What is at `place` of `container`: a pointer, `env NAME`, or a pointer into the configuration of Vault's agent.
fn found(container: &Value, place: &str) -> Option<String> {
    let variable = |name: &str| {
        let found = container["env"].as_array()?.iter().find(|variable| variable["name"] == name)?;
        found["value"].as_str().map(str::to_owned)
    };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match place.split_once(' ') {
        Some(("env", name)) => variable(name),
        Some((_, pointer)) => {
            let config: Value = serde_json::from_str(&variable("VAULT_CONFIG")?).unwrap();
            config.pointer(pointer).map(text)
        }
        None => container.pointer(place).map(text),
    }
}

#[test]
fn a_workload_with_all_annotations_of_another_injector_gets_their_values() {
    for (injector, _, switch, rows) in INJECTORS {
        let (pod, said) = injected(injector, &pod(switch, rows), &json!({}));
        for (annotation, _, places) in rows {
            for (name, place, expected) in *places {
                let found = container(&pod, name).map(|container| found(container, place).unwrap_or_default());
                let expected = (!place.is_empty()).then(|| (*expected).to_owned());
                assert_eq!(found, expected, "{annotation}: {place} of {name}: {said}");
            }
        }
    }
}

/// Each annotation has its own effect, so that no two rows above are right by chance.
#[test]
fn a_workload_without_annotations_of_another_injector_gets_other_values() {
    for (injector, _, switch, rows) in INJECTORS {
        let (pod, said) = injected(injector, &pod(switch, []), &json!({}));
        for (annotation, _, places) in rows {
            for (name, place, expected) in *places {
                let container = container(&pod, name).unwrap_or_else(|| panic!("{name}: {said}"));
                assert_ne!(
                    found(container, place).as_deref(),
                    Some(*expected).filter(|_| !place.is_empty()),
                    "{annotation}"
                );
            }
        }
    }
}

#[test]
fn annotations_of_linkerd_count_on_the_namespace_too() {
    let (_, _, switch, _) = INJECTORS[0];
    let annotations = json!({ "config.linkerd.io/proxy-memory-limit": "700Mi" });
    let (pod, said) = injected("linkerd", &pod(switch, []), &annotations);
    let limit = container(&pod, "linkerd-proxy").and_then(|container| found(container, "/resources/limits/memory"));
    assert_eq!(limit.as_deref(), Some("700Mi"), "{said}");
}

#[test]
fn a_policy_has_the_annotations_of_the_table_and_no_others() {
    for (injector, _, _, rows) in INJECTORS {
        let keys: Vec<String> = parameters(injector).into_iter().map(|parameter| parameter.annotation).collect();
        let mut expected: Vec<&str> = rows.iter().map(|(key, _, _)| *key).collect();
        let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        expected.sort_unstable();
        keys.sort_unstable();
        assert_eq!(keys, expected);
    }
}

/// A parameter as the page shows it.
struct Parameter {
    annotation: String,
    name: String,
    values: String,
    /// The comment above it: what differs from the injector.
    differs: String,
}

fn parameters(injector: &str) -> Vec<Parameter> {
    let text = read(&file(injector));
    let policy: Value = serde_saphyr::from_str(&text).unwrap();
    let differs = Regex::new(r"(?m)^  # Differs: (.+)\n  - name: (\S+)$").unwrap();
    let differs: BTreeMap<_, _> =
        differs.captures_iter(&text).map(|found| (found[2].to_owned(), found[1].to_owned())).collect();
    let words = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let values = |parameter: &Value| match (&parameter["enum"], &parameter["pattern"], &parameter["type"]) {
        (Value::Array(values), _, _) => {
            values.iter().map(|value| format!("`{}`", words(value))).collect::<Vec<_>>().join(", ")
        }
        (_, Value::String(_), _) => "by a pattern".to_owned(),
        (_, _, of) if parameter["minimum"].is_null() => of.as_str().unwrap_or("any").to_owned(),
        _ => format!("`{}` to `{}`", words(&parameter["minimum"]), words(&parameter["maximum"])),
    };
    let parameter = |parameter: &Value| {
        let name = words(&parameter["name"]);
        let differs = differs.get(&name).cloned().unwrap_or_default();
        Parameter { annotation: words(&parameter["annotation"]), values: values(parameter), name, differs }
    };
    policy["spec"]["parameters"].as_array().unwrap().iter().map(parameter).collect()
}

/// Compares the generated part of `page` with `generated`, or writes it anew.
fn assert_part_is_current(page: &str, generated: &str) {
    const ENDS: [&str; 2] = ["<!-- begin: make crds -->\n", "<!-- end: make crds -->"];
    let text = read(page);
    let (before, rest) = text.split_once(ENDS[0]).unwrap();
    let (_, after) = rest.split_once(ENDS[1]).unwrap();
    assert_current(page, &[before, ENDS[0], "\n", generated, "\n", ENDS[1], after].concat(), "crds");
}

#[test]
fn the_page_has_the_fields_that_can_be_parameters() {
    assert_part_is_current("docs/write/parameters.md", &sidecar_policy_core::parameters::markdown());
}

/// Each row of the table is tried on the workload of the page.
#[test]
fn wrong_values_are_told_as_the_page_says() {
    let page = read("docs/write/parameters.md");
    let workload = read("docs/examples/write/large.yaml");
    let annotation = "proxy.example.com/memory: 512Mi";
    assert!(workload.contains(annotation));
    let row = Regex::new(r"(?m)^\| `(proxy\.example\.com/.+?)` \| (?:injected with a warning; )?(.+) \|$").unwrap();
    let rows: Vec<_> = row.captures_iter(&page).collect();
    assert!(rows.len() >= 4, "{}", rows.len());
    for row in rows {
        let (_, said) = inject("docs/examples/write/parameters.yaml", &workload.replace(annotation, &row[1]));
        assert!(said.contains(&row[2]), "{}: {said}", &row[1]);
    }
}

#[test]
fn the_parts_of_a_policy_on_the_page_are_in_a_file_that_does_what_the_page_says() {
    const POLICY: &str = "docs/examples/write/grows.yaml";
    let (page, policy) = (read("docs/write/parameters.md"), read(POLICY));
    let part = Regex::new(r"(?s)```yaml\n(  - name: .*?)```").unwrap();
    let parts: Vec<_> = part.captures_iter(&page).map(|found| found[1].to_owned()).collect();
    assert!(parts.len() == 2 && parts.iter().all(|part| policy.contains(part)), "{parts:#?}");
    let container = |name: &str, cpu: &str| json!({ "name": name, "image": "registry.example.com/a:1", "resources": { "requests": { "cpu": cpu } } });
    let inject = |annotations: Value| {
        let workload = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web", "namespace": "shop" },
            "spec": { "selector": { "matchLabels": { "app": "web" } }, "template": {
                "metadata": { "labels": { "app": "web" }, "annotations": annotations },
                "spec": { "containers": [container("web", "700m"), container("cache", "1")] },
            } },
        });
        let (printed, said) = inject(POLICY, &workload.to_string());
        let workload: Value = serde_json::from_slice(&printed).unwrap_or_else(|error| panic!("{error}: {said}"));
        let containers = workload.pointer("/spec/template/spec/containers").and_then(Value::as_array).unwrap();
        let cpu =
            containers.iter().map(|container| container["resources"]["requests"]["cpu"].as_str().unwrap().to_owned());
        cpu.collect::<Vec<_>>()
    };
    assert_eq!(inject(json!({})), ["700m", "1", "1"]);
    assert_eq!(inject(json!({ "grows.scpol.dev/debug": "true" })), ["700m", "1", "1", "10m"]);
}

#[test]
fn the_page_has_the_annotations_of_the_policies() {
    let mut tables = String::new();
    for (injector, name, _, _) in INJECTORS {
        tables.push_str(&format!("\n### {name}\n\n`{}`\n\n", file(injector)));
        tables.push_str("| annotation | parameter | values | what differs |\n|---|---|---|---|\n");
        for Parameter { annotation, name, values, differs } in parameters(injector) {
            tables.push_str(&format!("| `{annotation}` | `{name}` | {values} | {} |\n", differs.trim_end_matches('.')));
        }
    }
    assert_part_is_current("docs/migrate.md", tables.trim_start());
}
