//! Parameters as the author of a workload meets them: what may be set, what a workload gets, and what each wrong annotation is answered.

use crate::commands::Folder;
use serde_json::{Value, json};

/// A policy that leaves the size and the log level of its proxy to workloads.
const PROXY: &str = "\
apiVersion: scpol.dev/v1alpha1
kind: SidecarPolicy
metadata: {name: proxy}
spec:
  parameters:
  - name: memory
    description: Memory limit of the proxy
    type: Quantity
    paths: [\"containers[envoy].resources.limits.memory\"]
    annotation: proxy.example.com/memory
    minimum: 64Mi
    maximum: 1Gi
  - name: level
    description: What the proxy logs
    paths: [\"containers[envoy].env[LEVEL].value\"]
    enum: [debug, info, warn]
  - name: service
    paths: [\"containers[envoy].env[SERVICE].value\"]
    annotation: \"\"
    expression: object.metadata.name
  template:
    containers:
    - name: envoy
      image: envoyproxy/envoy:v1.31.0
      env: [{name: LEVEL, value: info}, {name: SERVICE, value: none}]
      resources: {limits: {memory: 128Mi}}
";

/// A policy whose template is the same for all.
const PLAIN: &str = "\
apiVersion: scpol.dev/v1alpha1
kind: SidecarPolicy
metadata: {name: plain}
spec:
  template:
    containers: [{name: plain, image: \"example.com/plain:1\"}]
";

/// A Deployment with an annotation of its pod template.
fn deployment(name: &str, key: &str, value: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: shop}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata:
      labels: {{app: {name}}}
      annotations: {{{key}: \"{value}\"}}
    spec:
      containers: [{{name: app, image: \"example.com/app:1\"}}]
"
    )
}

/// Five annotations as a tenant may get them wrong.
const WRONG: [(&str, &str, &str); 5] = [
    ("unit", "proxy.example.com/memory", "256MB"),
    ("above", "proxy.example.com/memory", "2Gi"),
    ("choice", "proxy.scpol.dev/level", "verbose"),
    ("misspelt", "proxy.scpol.dev/levle", "warn"),
    ("empty", "proxy.example.com/memory", ""),
];

fn with_wrong() -> Folder {
    let wrong: Vec<_> = WRONG.iter().map(|(name, key, value)| deployment(name, key, value)).collect();
    Folder::new().with("proxy.yaml", PROXY).with("web.yaml", wrong.join("---\n"))
}

#[test]
fn parameters_lists_what_may_be_set() {
    let folder = Folder::new().with("proxy.yaml", PROXY).with("plain.yaml", PLAIN);
    let ended = folder.scpol(&["parameters", "proxy.yaml"], "");
    let table = "\
POLICY  PARAMETER  TYPE      SET BY                    ALLOWED                         DEFAULT            DESCRIPTION
proxy   memory     Quantity  proxy.example.com/memory  64Mi to 1Gi                     128Mi              Memory limit of the proxy
proxy   level      String    proxy.scpol.dev/level     one of `debug`, `info`, `warn`  info               What the proxy logs
proxy   service    String    the policy                any text of at most 1024 bytes  by its expression  -
";
    assert_eq!((ended.code, ended.err.as_str(), ended.out.as_str()), (0, "", table));
    let ended = folder.scpol(&["parameters", "-f", "plain.yaml"], "");
    assert_eq!((ended.code, ended.out.as_str()), (0, "plain has no parameters.\n"), "{ended:?}");
    let ended = folder.scpol(&["parameters", "-f", "."], "");
    assert!(
        ended.out.starts_with("POLICY  PARAMETER") && ended.out.ends_with("\n\nplain has no parameters.\n"),
        "{ended:?}"
    );
    let ended = folder.scpol(&["parameters", "-f", ".", "scpol/plain"], "");
    assert_eq!(ended.out, "plain has no parameters.\n", "{ended:?}");
    let ended = folder.scpol(&["parameters", "-f", ".", "prox"], "");
    assert_eq!(
        (ended.code, ended.err.as_str()),
        (2, "error: there is no SidecarPolicy `prox` in .; did you mean `proxy`?\n")
    );
    let ended = folder.scpol(&["parameters", "-f", ".", "deployment/web"], "");
    assert!(ended.code == 2 && ended.err.contains("`deployment/web` is no SidecarPolicy"), "{ended:?}");
    let wide = folder.scpol(&["parameters", "-f", "proxy.yaml", "-o", "wide", "--no-headers"], "");
    assert!(wide.out.lines().all(|line| line.contains("containers[envoy].")), "{wide:?}");
}

#[test]
fn parameters_has_stable_fields_for_machines() {
    let folder = Folder::new().with("proxy.yaml", PROXY).with("plain.yaml", PLAIN);
    let ended = folder.scpol(&["parameters", "-f", ".", "-o", "json"], "");
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    let allowed = |at: usize| report["items"][1]["parameters"][at]["allowed"].clone();
    let parameters = json!([
        {
            "name": "memory", "type": "Quantity", "description": "Memory limit of the proxy",
            "annotation": "proxy.example.com/memory", "allowed": allowed(0), "default": "128Mi",
            "places": ["containers[envoy].resources.limits.memory"],
        },
        {
            "name": "level", "type": "String", "description": "What the proxy logs", "annotation": "proxy.scpol.dev/level",
            "allowed": allowed(1), "default": "info", "places": ["containers[envoy].env[LEVEL].value"],
        },
        {
            "name": "service", "type": "String", "allowed": allowed(2), "default": "none",
            "expression": "object.metadata.name", "places": ["containers[envoy].env[SERVICE].value"],
        },
    ]);
    let expected = json!({
        "apiVersion": "cli.scpol.dev/v1alpha1", "kind": "ParametersReport",
        "items": [{ "policy": "plain", "parameters": [] }, { "policy": "proxy", "parameters": parameters }],
    });
    assert_eq!(report, expected);
}

#[test]
fn explain_tells_each_value_and_where_it_comes_from() {
    let web = deployment("web", "proxy.example.com/memory", "256Mi");
    let folder = Folder::new().with("proxy.yaml", PROXY).with("web.yaml", &web);
    let ended = folder.scpol(&["explain", "web.yaml", "-p", "proxy.yaml"], "");
    let told = "\
Deployment shop/web (web.yaml:1): the one policy injects: proxy

POLICY  RESULT   ROW  CODE  WHY
proxy   injects  8    -     adds container envoy

POLICY  PARAMETER  FROM                                              VALUE
proxy   memory     annotation `proxy.example.com/memory` of the pod  256Mi
proxy   level      the template                                      info
proxy   service    `expression`                                      web
";
    assert_eq!((ended.code, ended.err.as_str(), ended.out.as_str()), (0, "", told));
    let ended = folder.scpol(&["explain", "web.yaml", "-p", "proxy.yaml", "-o", "json"], "");
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    let expected = json!([
        { "name": "memory", "value": "256Mi", "from": "annotation `proxy.example.com/memory` of the pod" },
        { "name": "level", "value": "info", "from": "the template" },
        { "name": "service", "value": "web", "from": "`expression`" },
    ]);
    assert_eq!(report["items"][0]["policies"][0]["parameters"], expected, "{report}");
    let rows = folder.scpol(&["explain", "web.yaml", "-p", "proxy.yaml", "--no-headers"], "");
    assert_eq!(rows.out.lines().count(), 1, "{rows:?}");
    let misspelt = deployment("web", "proxy.scpol.dev/levle", "warn");
    let ended = folder.scpol(&["explain", "-f", "-", "-p", "proxy.yaml"], &misspelt);
    let note = "proxy: no parameter has the annotation `proxy.scpol.dev/levle`; did you mean `proxy.scpol.dev/level`? (SCP0123)";
    assert!(ended.code == 0 && ended.out.contains(note), "{ended:?}");
}

#[test]
fn explain_tells_what_is_refused_and_what_is_outdated() {
    let folder = with_wrong();
    let of = |manifest: &str| {
        let ended = folder.scpol(&["explain", "-f", "-", "-p", "proxy.yaml", "-o", "json"], manifest);
        let report: Value = serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
        (ended.code, report["items"][0]["policies"][0].clone())
    };
    let (code, answer) = of(&deployment("web", "proxy.example.com/memory", "2Gi"));
    assert_eq!((code, &answer["result"], &answer["code"]), (1, &json!("Fails"), &json!("SCP0245")), "{answer}");
    let memory = &answer["parameters"][0];
    assert!(memory["refused"].as_str().unwrap().contains("1Gi") && memory["value"].is_null(), "{memory}");
    assert_eq!(memory["from"], "annotation `proxy.example.com/memory` of the pod");

    let web = deployment("web", "proxy.example.com/memory", "256Mi");
    let injected = folder.scpol(&["inject", "-f", "-", "-p", "proxy.yaml"], &web).out;
    assert_eq!(of(&injected).1["result"], "Injected");
    let edited = injected.replacen("proxy.example.com/memory: 256Mi", "proxy.example.com/memory: 512Mi", 1);
    assert_eq!(of(&edited).1["parameters"][0]["value"], "512Mi", "a create gets the value that it asks for");
    // As the server prints it.
    let edited = edited.replacen("  namespace: shop\n", "  namespace: shop\n  resourceVersion: \"7\"\n", 1);
    assert!(edited.contains("512Mi") && edited.contains("resourceVersion"), "{edited}");
    let (code, answer) = of(&edited);
    assert_eq!((code, &answer["result"]), (0, &json!("Outdated")), "{answer}");
    let message = answer["message"].as_str().unwrap();
    assert!(message.ends_with("other values when it is made again: `memory` is `256Mi`, now `512Mi`"), "{message}");
    let expected = json!({ "name": "memory", "value": "256Mi", "from": "the injection", "next": "512Mi" });
    assert_eq!(answer["parameters"][0], expected);
    let text = folder.scpol(&["explain", "-f", "-", "-p", "proxy.yaml"], &edited).out;
    for part in [": nothing to add; in it, outdated: proxy\n", "256Mi; 512Mi when it is made again"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn lint_tells_a_tenant_what_to_write() {
    let folder = with_wrong();
    let ended = folder.scpol(&["lint", "proxy.yaml", "--manifests", "web.yaml", "--ignore", "SCP0035"], "");
    let told = "\
1 policy in 1 file: 5 warnings

SEVERITY  CODE     WHERE          MESSAGE
warning   SCP0123  proxy.yaml:5   spec.parameters: goes into Deployment shop/misspelt (web.yaml:37): no parameter has the annotation `proxy.scpol.dev/levle`; did you mean `proxy.scpol.dev/level`?
warning   SCP0245  proxy.yaml:6   spec.parameters[0]: does not fit Deployment shop/unit (web.yaml:1): parameter `memory`, from annotation `proxy.example.com/memory` of the pod: must be a quantity from `64Mi` to `1Gi`, is `256MB`; write `256M`; it would not be injected
warning   SCP0245  proxy.yaml:6   spec.parameters[0]: does not fit Deployment shop/above (web.yaml:13): parameter `memory`, from annotation `proxy.example.com/memory` of the pod: must be a quantity from `64Mi` to `1Gi`, is `2Gi`; it would not be injected
warning   SCP0245  proxy.yaml:6   spec.parameters[0]: does not fit Deployment shop/empty (web.yaml:49): parameter `memory`, from annotation `proxy.example.com/memory` of the pod: must be a quantity from `64Mi` to `1Gi`, is empty; it would not be injected
warning   SCP0245  proxy.yaml:13  spec.parameters[1]: does not fit Deployment shop/choice (web.yaml:25): parameter `level`, from annotation `proxy.scpol.dev/level` of the pod: must be one of `debug`, `info`, `warn`; the value is not shown; it would not be injected
";
    assert_eq!((ended.code, ended.err.as_str(), ended.out.as_str()), (0, "", told));
    let strict = folder.scpol(&["lint", "proxy.yaml", "--manifests", "web.yaml", "--strict"], "");
    assert_eq!(strict.code, 1);
}

#[test]
fn inject_tells_a_tenant_what_to_write() {
    let folder = with_wrong();
    let ended = folder.scpol(&["inject", "web.yaml", "-p", "proxy.yaml"], "");
    let told = "\
web.yaml:1: Deployment shop/unit: policy `proxy`: not injected: SCP0245 ParameterRefused (row 8): parameter `memory`, from annotation `proxy.example.com/memory` of the pod: must be a quantity from `64Mi` to `1Gi`, is `256MB`; write `256M`
web.yaml:13: Deployment shop/above: policy `proxy`: not injected: SCP0245 ParameterRefused (row 8): parameter `memory`, from annotation `proxy.example.com/memory` of the pod: must be a quantity from `64Mi` to `1Gi`, is `2Gi`
web.yaml:25: Deployment shop/choice: policy `proxy`: not injected: SCP0245 ParameterRefused (row 8): parameter `level`, from annotation `proxy.scpol.dev/level` of the pod: must be one of `debug`, `info`, `warn`; the value is not shown
warning: web.yaml:37: Deployment shop/misspelt: policy `proxy`: SCP0123 MisspeltKey: no parameter has the annotation `proxy.scpol.dev/levle`; did you mean `proxy.scpol.dev/level`?
web.yaml:49: Deployment shop/empty: policy `proxy`: not injected: SCP0245 ParameterRefused (row 8): parameter `memory`, from annotation `proxy.example.com/memory` of the pod: must be a quantity from `64Mi` to `1Gi`, is empty
";
    assert_eq!((ended.code, ended.err.as_str()), (1, told));
    assert_eq!(ended.out.matches("envoyproxy/envoy").count(), 1, "the misspelt one gets the default: {}", ended.out);
    let quiet = folder.scpol(&["inject", "web.yaml", "-p", "proxy.yaml", "--ignore", "SCP0123"], "");
    assert!(quiet.code == 1 && !quiet.err.contains("SCP0123") && quiet.err.contains("SCP0245"), "{quiet:?}");
}

#[test]
fn cases_and_differences_are_about_the_content_with_its_values() {
    let web = deployment("web", "proxy.example.com/memory", "256Mi");
    let folder = Folder::new().with("case/policy.yaml", PROXY).with("case/workload.yaml", &web);
    assert_eq!(folder.scpol(&["test", "case", "--update"], "").code, 0);
    let expected = std::fs::read_to_string(folder.path("case/expected.yaml")).unwrap();
    assert!(expected.contains("memory: 256Mi") && expected.contains("value: web"), "{expected}");
    assert_eq!(folder.scpol(&["test", "case"], "").code, 0);
    let folder = folder.with("case/workload.yaml", deployment("web", "proxy.example.com/memory", "512Mi"));
    let ended = folder.scpol(&["test", "case"], "");
    assert!(ended.code == 1 && ended.out.contains("256Mi") && ended.out.contains("512Mi"), "{ended:?}");

    let folder = folder.with("old.yaml", PROXY).with("web.yaml", &web);
    let diff = |new: String| {
        let folder = Folder::new().with("old.yaml", PROXY).with("new.yaml", new).with("web.yaml", &web);
        folder.scpol(&["diff", "--old", "old.yaml", "--new", "new.yaml", "-f", "web.yaml", "-v"], "")
    };
    drop(folder);
    let narrowed = diff(PROXY.replace("maximum: 1Gi", "maximum: 128Mi"));
    assert!(narrowed.code == 1 && narrowed.out.contains("loses") && narrowed.out.contains("SCP0245"), "{narrowed:?}");
    // The default is not that of this workload, which has its own.
    let larger = diff(PROXY.replace("limits: {memory: 128Mi}", "limits: {memory: 192Mi}"));
    assert!(!larger.out.contains("192Mi") && !larger.out.contains("128Mi"), "{larger:?}");
}
