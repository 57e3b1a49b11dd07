//! Tests of the commands on files, as users run them: output, changed files, exit code.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::console::{self, Example};
use crate::tools::{on_a_terminal, root};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const POLICY: &str = "\
apiVersion: scpol.dev/v1alpha1
kind: SidecarPolicy
metadata: {name: envoy}
spec:
  namespaces: [\"shop-*\"]
  template:
    containers: [{name: envoy, image: \"envoyproxy/envoy:v1.31.0\"}]
    volumes: [{name: envoy-config, configMap: {name: envoy}}]
";

const WEB: &str = "\
# web, in front of everything
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop-eu}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: \"nginx:1.27\"}]
";

const CONFIG: &str = "\
kind:   ConfigMap        # odd spaces, kept
apiVersion: v1
metadata: {name: c}
data: {mode: '0644', answer: \"yes\"}
";

/// A folder of one test, removed when the test ends.
pub(crate) struct Folder(TempDir);

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    pub(crate) fn with(self, file: &str, text: impl AsRef<[u8]>) -> Self {
        fs::create_dir_all(self.path(file).parent().unwrap()).unwrap();
        fs::write(self.path(file), text).unwrap();
        self
    }

    fn with_file(&self, file: &str, text: &str) -> &Self {
        fs::write(self.path(file), text).unwrap();
        self
    }

    pub(crate) fn scpol(&self, arguments: &[&str], stdin: &str) -> Ended {
        let mut child = Command::new(env!("CARGO_BIN_EXE_scpol"))
            .args(arguments)
            .current_dir(&self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that fails early stops reading.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ended { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }

    fn inject(&self, stdin: &str) -> Ended {
        self.scpol(&["inject", "-p", "policy.yaml", "-f", "-"], stdin)
    }
}

fn with_policy() -> Folder {
    Folder::new().with("policy.yaml", POLICY)
}

fn documents(text: &str) -> Vec<Value> {
    let mut documents = serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    documents.iter_mut().for_each(without_fractions);
    documents
}

/// Gives whole numbers one form, because `1.5e9` is an integer for kubectl.
fn without_fractions(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(without_fractions),
        Value::Object(fields) => fields.values_mut().for_each(without_fractions),
        Value::Number(number) if number.is_f64() => {
            *value = format!("{:.0}", number.as_f64().unwrap())
                .parse::<i64>()
                .ok()
                .filter(|whole| Some(*whole as f64) == number.as_f64())
                .map_or_else(|| value.clone(), Value::from);
        }
        _ => {}
    }
}

fn containers(workload: &Value) -> Vec<&str> {
    let list = workload.pointer("/spec/template/spec/containers").and_then(Value::as_array).unwrap();
    list.iter().map(|container| container["name"].as_str().unwrap()).collect()
}

#[test]
fn inject_changes_the_workloads_that_match_and_not_a_byte_of_the_rest() {
    let other = WEB.replace("shop-eu", "office");
    let input = format!(
        "\u{feff}{CONFIG}--- # the one that matches\n{WEB}---\n\n{other}---\n{{\"kind\": \"X\",\n \"apiVersion\":  \"y/v1\"}}"
    );
    let ended = with_policy().inject(&input);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{ended:?}");
    assert!(
        ended.out.starts_with(&format!("\u{feff}{CONFIG}--- # the one that matches\n# web, in front of everything\n"))
    );
    assert!(ended.out.ends_with(&input[input.find("---\n\n").unwrap()..]), "{}", ended.out);
    let injected = &documents(&ended.out)[1];
    assert_eq!(containers(injected), ["web", "envoy"]);
    assert_eq!(injected["spec"]["template"]["spec"]["volumes"][0]["name"], "envoy-config");
}

#[test]
fn inject_then_uninject_gives_back_the_input() {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [documents(WEB)[0], documents(CONFIG)[0]]});
    let json = serde_json::to_string_pretty(&list).unwrap();
    for input in [
        WEB.to_owned(),
        format!("{CONFIG}---\n{WEB}---\n{CONFIG}"),
        WEB.replace('\n', "\r\n"),
        format!("---\n{json}\n"),
        json.clone(),
        json.replace('\n', ""),
    ] {
        let folder = with_policy();
        let injected = folder.inject(&input);
        assert_eq!(injected.code, 0, "{injected:?}");
        assert_ne!(injected.out, input);
        assert_eq!(injected.out.contains("\r\n"), input.contains("\r\n"));
        let again = folder.inject(&injected.out);
        assert_eq!(again.out, injected.out, "a second injection changes nothing");
        let back = folder.scpol(&["uninject", "-f", "-"], &injected.out);
        assert_eq!((back.code, back.err.as_str()), (0, ""));
        assert_eq!(documents(&back.out), documents(&input));
        let untouched = folder.scpol(&["uninject", "-f", "-"], &input);
        assert_eq!((untouched.code, untouched.out), (0, input));
    }
}

const ROLLOUT: &str = "\
# rolled out slowly
apiVersion: example.org/v1
kind: Rollout
metadata: {name: web, namespace: shop-eu}
spec:
  steps:   [ 20, 60 ]   # odd spaces, kept
  workers:
    podTemplate:
      spec: {containers: [{name: web, image: \"nginx:1.27\"}]}
";

#[test]
fn custom_resources_that_a_policy_targets_are_injected_and_all_others_pass_byte_for_byte() {
    let at = |path: &str| POLICY.replace("spec:\n", &format!("spec:\n  targets: [{path}]\n"));
    let rollouts = "{group: example.org, resource: rollouts, templatePath: spec.workers.podTemplate}";
    let folder =
        Folder::new().with("policy.yaml", at(rollouts)).with("other.yaml", POLICY).with("rollout.yaml", ROLLOUT);
    let untouched = folder.scpol(&["inject", "-f", "rollout.yaml", "-p", "other.yaml"], "");
    assert_eq!((untouched.code, untouched.out.as_str(), untouched.err.as_str()), (0, ROLLOUT, ""));
    let injected = folder.scpol(&["inject", "-f", "rollout.yaml", "-p", "policy.yaml"], "");
    assert_eq!((injected.code, injected.err.as_str()), (0, ""));
    let pod = &documents(&injected.out)[0]["spec"]["workers"]["podTemplate"];
    assert_eq!(pod["spec"]["containers"][1]["name"], "envoy");
    // The removal needs neither the policy nor a definition, because the marker has the path.
    let back = folder.scpol(&["uninject", "-f", "-"], &injected.out);
    assert_eq!((back.code, documents(&back.out)), (0, documents(ROLLOUT)));
    let same = folder.scpol(&["uninject", "-f", "rollout.yaml"], "");
    assert_eq!((same.code, same.out.as_str()), (0, ROLLOUT));
    // A question about a kind that no policy targets gets that answer.
    let told = folder.scpol(&["explain", "-f", "rollout.yaml", "-p", "other.yaml"], "");
    assert!(told.code == 0 && told.out.contains("`rollouts` is not among `spec.targets`"), "{told:?}");
    let told = folder.scpol(&["explain", "-f", "rollout.yaml", "-p", "policy.yaml"], "");
    let expected = "Rollout shop-eu/web (rollout.yaml:2): the one policy injects: envoy";
    assert!(
        told.out.starts_with(expected) && told.out.contains("adds volume envoy-config, container envoy"),
        "{told:?}"
    );
    let told = folder.scpol(&["diff", "--old", "other.yaml", "--new", "policy.yaml", "-f", "rollout.yaml"], "");
    assert!(told.code == 1 && told.out.contains("1 workload: 1 gains"), "{told:?}");
    let wrong = folder.with("wrong.yaml", at("{group: example.org, resource: rollouts}"));
    let told = wrong.scpol(&["lint", "-f", "wrong.yaml", "--manifests", "rollout.yaml"], "");
    assert!(told.out.contains("the Rollout has no pod template at `/spec/template`"), "{told:?}");
}

#[test]
fn two_policies_that_take_the_pod_to_lie_in_different_places_are_warned_of_before_a_cluster_sees_them() {
    let policy = |name: &str, path: &str| {
        let targets = format!("spec:\n  targets: [{{group: example.org, resource: rollouts, templatePath: {path}}}]\n");
        POLICY.replace("spec:\n", &targets).replace("metadata: {name: envoy}", &format!("metadata: {{name: {name}}}"))
    };
    let folder = Folder::new().with("policies.yaml", [policy("a", "spec.a"), policy("b", "spec.b")].join("---\n"));
    let told = folder.scpol(&["lint", "-f", "policies.yaml", "--output=json"], "");
    let report: Value = serde_json::from_str(&told.out).unwrap();
    let found = report["items"].as_array().unwrap().iter().find(|item| item["code"] == "SCP0029").unwrap();
    assert_eq!((&found["policy"], &found["field"]), (&json!("b"), &json!("spec.targets[0].templatePath")));
    assert!(found["message"].as_str().unwrap().contains("`spec.a`"), "{found}");
}

#[test]
fn a_manifest_without_a_namespace_is_in_the_one_that_is_given_and_does_not_get_it() {
    let folder = with_policy();
    let input = WEB.replace(", namespace: shop-eu", "");
    let default = folder.scpol(&["inject", "-p", "policy.yaml", "-f", "-", "-v"], &input);
    assert_eq!((default.code, &default.out), (0, &input));
    assert_eq!(
        default.err,
        "standard input:2: Deployment default/web: policy `envoy`: skipped: SCP0108 NamespaceNotMatched (row 7): \
         namespace `default` is not in `spec.namespaces` [shop-*]\n"
    );
    let given = folder.scpol(&["inject", "-p", "policy.yaml", "-f", "-", "-n", "shop-us"], &input);
    assert_eq!(given.code, 0);
    assert_eq!(containers(&documents(&given.out)[0]), ["web", "envoy"]);
    assert_eq!(documents(&given.out)[0]["metadata"], json!({"name": "web"}));
}

#[test]
fn a_namespace_that_a_policy_asks_for_is_taken_from_the_manifests() {
    let selector = "spec:\n  namespaceSelector: {matchLabels: {tier: shop}}\n";
    let folder = Folder::new().with("policy.yaml", POLICY.replace("spec:\n", selector));
    let unknown = folder.inject(WEB);
    assert_eq!((unknown.code, unknown.out.as_str()), (1, WEB));
    assert!(
        unknown.err.contains("needs the Namespace `shop-eu`") && unknown.err.contains("with -f"),
        "{}",
        unknown.err
    );
    for (tier, expected) in [("shop", vec!["web", "envoy"]), ("office", vec!["web"])] {
        let namespace =
            format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop-eu, labels: {{tier: {tier}}}}}\n");
        let known = folder.inject(&format!("{namespace}---\n{WEB}"));
        assert_eq!((known.code, containers(&documents(&known.out)[1])), (0, expected), "{known:?}");
    }
}

#[test]
fn validations_see_the_namespace_that_the_manifest_will_be_in() {
    let demand = "  validations: [{expression: \"object.metadata.namespace == 'shop-us'\", message: wrong place}]\n";
    let folder = Folder::new().with("policy.yaml", POLICY.replace("spec:\n", &format!("spec:\n{demand}")));
    let input = WEB.replace(", namespace: shop-eu", "");
    for (namespace, code) in [("shop-us", 0), ("shop-eu", 1)] {
        let ended = folder.scpol(&["inject", "-p", "policy.yaml", "-f", "-", "-n", namespace], &input);
        assert_eq!((ended.code, ended.out == input), (code, code == 1), "{ended:?}");
        assert_eq!(ended.err.contains("its create would be refused") && ended.err.contains("wrong place"), code == 1);
    }
}

#[test]
fn pods_that_end_get_native_sidecars_where_the_version_has_them() {
    let folder = Folder::new()
        .with("policy.yaml", POLICY.replace("spec:\n", "spec:\n  targets: [{group: \"\", resource: pods}]\n"));
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: shop-eu}\nspec: {restartPolicy: Never, containers: [{name: c}]}\n";
    for (version, sidecar) in [("1.28", None), ("v1.33.1", Some("Always"))] {
        let ended = folder.scpol(&["inject", "-p", "policy.yaml", "-f", "-", "--kube-version", version], pod);
        assert_eq!(ended.code, 0, "{ended:?}");
        let added = documents(&ended.out)[0].pointer("/spec/initContainers/0/restartPolicy").cloned();
        assert_eq!(added, sidecar.map(Value::from), "{version}");
        let back = folder.scpol(&["uninject", "-f", "-"], &ended.out);
        assert_eq!(documents(&back.out), documents(pod));
    }
    let wrong = folder.scpol(&["inject", "-p", "policy.yaml", "-f", "-", "--kube-version", "new"], pod);
    assert!(wrong.code == 2 && wrong.err.contains("no version of Kubernetes"), "{}", wrong.err);
}

#[test]
fn a_conflict_is_a_finding_and_leaves_the_document_alone() {
    let input = WEB.replace("name: web, image", "name: envoy, image");
    let ended = with_policy().inject(&input);
    assert_eq!((ended.code, &ended.out), (1, &input));
    let expected =
        "standard input:2: Deployment shop-eu/web: policy `envoy`: not injected: SCP0200 NameConflict (row 8): ";
    assert!(ended.err.starts_with(expected), "{}", ended.err);
    assert_eq!(ended.err.lines().count(), 1);
    let folder = Folder::new().with("policy.yaml", POLICY.replace("spec:\n", "spec:\n  failurePolicy: Fail\n"));
    let ended = folder.inject(&input);
    assert_eq!((ended.code, &ended.out), (1, &input));
    assert!(ended.err.contains("not injected, and its create would be refused: SCP0200"), "{}", ended.err);
}

#[test]
fn diff_shows_what_comes_in_and_nothing_else() {
    let ended =
        with_policy().scpol(&["inject", "-p", "policy.yaml", "-f", "-", "--diff"], &format!("{CONFIG}---\n{WEB}"));
    assert_eq!((ended.code, ended.err.as_str()), (1, ""), "as `scpol diff` and `kubectl diff`");
    assert!(ended.out.starts_with("--- standard input:7\n+++ standard input:7 (injected)\n@@ "), "{}", ended.out);
    assert!(ended.out.contains("\n+      - image: envoyproxy/envoy:v1.31.0\n+        name: envoy\n"), "{}", ended.out);
    assert!(!ended.out.lines().any(|line| line.starts_with('-') && !line.starts_with("---")), "{}", ended.out);
}

#[test]
fn output_is_converted_on_request() {
    let folder = with_policy();
    let input = format!("{CONFIG}---\n{WEB}");
    let json = folder.scpol(&["inject", "-p", "policy.yaml", "-f", "-", "-o", "json"], &input);
    let list: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(list["items"][0], documents(CONFIG)[0], "texts stay texts: {}", json.out);
    assert_eq!(containers(&list["items"][1]), ["web", "envoy"]);
    let yaml = folder.scpol(&["inject", "-p", "policy.yaml", "-f", "-", "-o", "yaml"], &json.out);
    assert_eq!(documents(&yaml.out)[0], list);
    let one = folder.scpol(&["uninject", "-f", "-", "-o", "json"], WEB);
    assert_eq!(serde_json::from_str::<Value>(&one.out).unwrap(), documents(WEB)[0]);
}

#[test]
fn files_folders_and_several_of_both_come_out_as_one_stream() {
    let folder = with_policy()
        .with("in/a.yaml", CONFIG.trim_end())
        .with("in/b.json", serde_json::to_string(&documents(WEB)[0]).unwrap())
        .with("in/below/c.yml", format!("---\n{WEB}"))
        .with("in/notes.txt", "- [");
    let flat = folder.scpol(&["inject", "-p", "policy.yaml", "-f", "in"], "");
    assert_eq!((flat.code, documents(&flat.out).len()), (0, 2), "{flat:?}");
    assert!(flat.out.starts_with(&format!("---\n{CONFIG}---\n{{")), "{}", flat.out);
    let all = folder.scpol(&["inject", "-p", "policy.yaml", "-R", "-f", "in", "in/a.yaml"], "");
    assert_eq!((all.code, documents(&all.out).len()), (0, 4), "{all:?}");
    let again = folder.scpol(&["uninject", "-f", "-"], &all.out);
    assert_eq!((again.code, documents(&again.out).len()), (0, 4));
}

#[test]
fn uninject_takes_only_what_it_is_told_to() {
    let two = format!("{POLICY}---\n{}", POLICY.replace("envoy", "agent"));
    let folder = Folder::new().with("policy.yaml", two);
    let injected = folder.inject(WEB);
    assert_eq!(containers(&documents(&injected.out)[0]), ["web", "agent", "envoy"]);
    let without = folder.scpol(&["uninject", "-f", "-", "-p", "agent", "-p", "nobody"], &injected.out);
    assert_eq!(without.err, "warning: no workload has a marker of policy `nobody`\n");
    assert_eq!((without.code, containers(&documents(&without.out)[0])), (0, vec!["web", "envoy"]));
    let back = folder.scpol(&["uninject", "-f", "-"], &without.out);
    assert_eq!(documents(&back.out), documents(WEB));
}

#[test]
fn what_a_marker_lists_and_is_not_there_is_told() {
    let folder = with_policy();
    let mut injected = documents(&folder.inject(WEB).out).remove(0);
    injected.pointer_mut("/spec/template/spec/containers").and_then(Value::as_array_mut).unwrap().pop();
    let ended = folder.scpol(&["uninject", "-f", "-"], &injected.to_string());
    assert_eq!(ended.code, 1);
    assert_eq!(
        ended.err,
        "standard input:1: Deployment shop-eu/web: `/spec/template/spec/containers/envoy`, which `injected.scpol.dev/envoy` \
         lists, is not there\n"
    );
    assert_eq!(documents(&ended.out), documents(WEB));
}

#[test]
fn a_policy_in_place_of_a_manifest_is_said_to_be_one() {
    let folder = with_policy();
    let ended = folder.inject(POLICY);
    assert_eq!((ended.code, ended.out.as_str()), (2, ""));
    let expected =
        "error: standard input:1 is a SidecarPolicy; expected a workload here: give policies with --policy\n";
    assert_eq!(ended.err, expected);
    let mixed = folder.inject(&format!("{WEB}---\n{POLICY}"));
    assert_eq!(mixed.code, 0);
    assert!(mixed.err.starts_with("warning: standard input:12 is a SidecarPolicy"), "{}", mixed.err);
    assert!(mixed.out.ends_with(POLICY));
}

#[test]
fn bad_policies_are_told_with_file_and_field_and_nothing_is_done() {
    let folder = with_policy()
        .with("broken/a.yaml", POLICY.replace("name: envoy, image", "nam: envoy, image"))
        .with("broken/b.yaml", POLICY.replace("v1alpha1", "v2"))
        .with("broken/c.yaml", POLICY.replace("{name: envoy}", "{}"))
        .with("twice/a.yaml", POLICY)
        .with("twice/b.yaml", POLICY)
        .with("beside/group/a.yaml", POLICY)
        .with("beside/group/b.yaml", POLICY.replace("scpol.dev", "scpol.io"))
        .with("beside/kind/a.yaml", POLICY)
        .with("beside/kind/b.yaml", POLICY.replace("SidecarPolicy", "SidecarPolicies"));
    for (path, words) in [
        ("broken/a.yaml", vec!["error: broken/a.yaml:7: SidecarPolicy `envoy`: SCP00", "spec.template.containers[0]"]),
        ("broken/b.yaml", vec!["apiVersion is `scpol.dev/v2`; expected `scpol.dev/v1alpha1`"]),
        ("broken/c.yaml", vec!["without `metadata.name`"]),
        ("twice", vec!["error: twice/b.yaml:1: SidecarPolicy `envoy` is in twice/a.yaml:1 already"]),
        ("nowhere.yaml", vec!["error: nowhere.yaml: cannot be read: "]),
        ("beside/group", vec!["error: beside/group/b.yaml:1: ", "apiVersion is `scpol.io/v1alpha1`; expected"]),
        ("beside/kind", vec!["error: beside/kind/b.yaml:2: ", "kind is `SidecarPolicies`; expected `SidecarPolicy`"]),
    ] {
        let ended = folder.scpol(&["inject", "-f", "-", "-p", path], WEB);
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{path}");
        assert!(words.iter().all(|word| ended.err.contains(word)), "{path}: {}", ended.err);
    }
    let ended = folder.scpol(&["inject", "-f", "-", "-p", "-"], WEB);
    assert!(ended.code == 2 && ended.err.contains("can be read only once"), "{}", ended.err);
}

#[test]
fn bad_manifests_are_told_with_their_line_all_of_them_and_at_once() {
    let folder = with_policy()
        .with("in/broken.yaml", "a: 1\n---\nkind: X\nb: [1\nc: 2\n")
        .with("in/tab.yaml", "kind: X\nb:\n\tc: 1\n")
        .with("in/twice.yaml", "kind: X\napiVersion: v1\nb: 1\n\nb: 2\n")
        .with("in/nameless.yaml", "kind: X\nb: 1\n")
        .with("in/page.yaml", "kind: X\nmetadata:\n\u{a0} name: x\n")
        .with("in/binary.yaml", b"\x7fELF\x00\x00")
        .with("in/list.json", "[{\"kind\": \"X\"}]")
        .with("in/half.json", "{\"kind\": \"X\",\n")
        .with("in/empty.yaml", "");
    fs::File::create(folder.path("in/large.yaml")).unwrap().set_len(100 << 20).unwrap();
    let ended = folder.scpol(&["inject", "-p", "policy.yaml", "-f", "in", "--strict"], "");
    assert_eq!((ended.code, ended.out.as_str()), (2, ""));
    let lines: Vec<_> = ended.err.lines().collect();
    let expected = [
        ("in/binary.yaml:1: ", "a binary file"),
        ("in/broken.yaml:5: ", "expected `]`"),
        ("in/half.json:2: ", "EOF"),
        ("in/large.yaml: ", "more than 64 MiB"),
        ("in/list.json:1: ", "expected an object"),
        ("in/nameless.yaml:1: ", "no `apiVersion` in this X; expected one"),
        ("in/page.yaml:3: ", "a no-break space (U+00A0 or similar)"),
        ("in/tab.yaml:3: ", "by a tab; expected spaces"),
        ("in/twice.yaml:5: ", "the key `b` is there twice; expected it once"),
    ];
    assert_eq!(lines.len(), expected.len(), "{}", ended.err);
    for (line, (place, words)) in lines.iter().zip(expected) {
        assert!(line.starts_with(&format!("error: {place}")) && line.contains(words), "{line}");
    }
    let empty = folder.scpol(&["inject", "-p", "policy.yaml", "-f", "in/empty.yaml"], "");
    assert_eq!((empty.code, empty.err.as_str()), (2, "error: no manifest found in in/empty.yaml\n"));
}

#[test]
fn what_is_beside_manifests_in_a_repository_is_left_alone_and_noted() {
    let patch = "# replicas\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop-eu}\nspec: {replicas: 3}\n";
    let beside = [
        ("overlay/kustomization.yaml", "resources: [../base]\npatches:\n- path: image.yaml\n", "for kustomize"),
        ("overlay/image.yaml", WEB, "a patch of a kustomization"),
        ("overlay/json.yaml", "- op: remove\n  path: /spec\n", "a JSON patch"),
        ("overlay/replicas.yaml", patch, "a patch of a Deployment"),
        ("chart/Chart.yaml", "apiVersion: v2\nname: web\nversion: 1.0.0\n", "a part of a chart"),
        ("chart/values.yaml", "image: web\n", "a part of a chart"),
        ("chart/templates/web.yaml", "{{- if .Values.on }}\nkind: X\n{{- end }}\n", "the template is not rendered"),
        ("dashboards/web.json", "{\"panels\": []}\n", "no object of Kubernetes"),
    ];
    let mut folder = Folder::new().with("policy.yaml", POLICY).with("all/base/web.yaml", WEB);
    for (file, text, _) in beside {
        folder = folder.with(&format!("all/{file}"), text);
    }
    for arguments in [
        &["inject", "-p", "policy.yaml", "-f", "all", "-R"][..],
        &["explain", "-p", "policy.yaml", "-f", "all", "-R"],
        &["lint", "-f", "policy.yaml", "--manifests", "all", "-R"],
    ] {
        let ended = folder.scpol(arguments, "");
        assert_eq!(ended.code, 0, "{arguments:?}: {ended:?}");
        for (file, text, words) in beside {
            let note = format!("note: all/{file}:");
            let told = ended.err.lines().filter(|line| line.starts_with(&note)).collect::<Vec<_>>();
            assert!(
                told.len() == 1 && told[0].contains(&format!("SCP0124 PartialManifest: left as it is: {words}")),
                "{file}: {told:?}"
            );
            assert!(arguments[0] != "inject" || ended.out.contains(text), "{file}: {}", ended.out);
        }
        assert!(arguments[0] != "inject" || ended.out.matches("envoyproxy/envoy").count() == 1, "{}", ended.out);
    }
    // Alone, what is no object at all is an error, because there is nothing to do.
    for (file, ..) in beside {
        let ended = folder.scpol(&["inject", "-p", "policy.yaml", "-f", &format!("all/{file}")], "");
        assert_eq!(ended.code, if file == "overlay/image.yaml" { 0 } else { 2 }, "{file}: {ended:?}");
    }
}

#[test]
fn a_workload_is_set_aside_for_a_control_line_of_a_chart_and_for_no_other_text() {
    let with = |line: &str| WEB.replacen("spec:", &format!("{line}\nspec:"), 1);
    let scalar = "x:\n  vault: |\n    # {{- with secret \"a\" }}\n    # {{- end }}";
    let (text, comment, control) = (with(scalar), with("# see {{ docs }}"), with("# {{- if .Values.on }}"));
    for (workload, code, words) in [
        (&text, 0, ""),
        (&comment, 0, "the comment has a template (`{{`)"),
        (&control, 2, "the template is not rendered"),
        (&format!("{control}---\n{WEB}"), 0, "SCP0124"),
        (&format!("{control}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\n"), 2, "not rendered"),
    ] {
        let folder = Folder::new().with("policy.yaml", POLICY).with("web.yaml", workload);
        let ended = folder.scpol(&["inject", "-p", "policy.yaml", "-f", "web.yaml"], "");
        assert!(
            ended.code == code && ended.err.contains(words) && (words.is_empty() == ended.err.is_empty()),
            "{ended:?}"
        );
        assert_eq!(ended.out.contains("envoyproxy/envoy"), code == 0, "{ended:?}");
    }
    for (workload, code) in [(&text, 0), (&control, 2)] {
        let folder = Folder::new().with("case/policy.yaml", POLICY).with("case/workload.yaml", workload);
        let ended = folder.scpol(&["test", "--update", "case"], "");
        assert_eq!(ended.code, code, "{ended:?}");
        assert_eq!(folder.path("case/expected.yaml").exists(), code == 0);
    }
}

#[test]
fn what_has_no_effect_is_told_by_inject_explain_and_lint() {
    let agent = policy_with("agent", "targets: [{group: apps, resource: deployments}]")
        + "    appContainers: [app, \"main-*\"]\n    env: [{name: A, value: b}]\n";
    let for_pods = agent.replace("group: apps, resource: deployments", "group: \"\", resource: pods");
    let with_key = |key: &str| {
        WEB.replace("metadata: {labels: {app: web}}", &format!("metadata: {{labels: {{app: web, {key}: x}}}}"))
    };
    let unreached = "`appContainers` [app, main-*] selects none of the containers [web]: `env` reach none";
    let key = "the label `scpol.dev/injekt` of the pod template has no effect; did you mean `scpol.dev/inject`?";
    for (policy, workload, code, words) in [
        (&agent, WEB.to_owned(), "SCP0041", unreached),
        (&for_pods, WEB.to_owned(), "SCP0041", unreached),
        (&agent, with_key("scpol.dev/injekt"), "SCP0123", key),
    ] {
        let folder = Folder::new().with("policy.yaml", policy).with("web.yaml", &workload);
        let ended = folder.scpol(&["inject", "-p", "policy.yaml", "-f", "web.yaml"], "");
        assert!(ended.code == 0 && ended.err.contains(code) && ended.err.contains(words), "{ended:?}");
        let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "web.yaml"], "");
        assert!(ended.code == 0 && ended.out.contains(words), "{}", ended.out);
        if policy == &agent {
            let ended = folder.scpol(&["lint", "-f", "policy.yaml", "--manifests", "web.yaml"], "");
            assert!(ended.code == 0 && ended.out.contains(code) && ended.out.contains(words), "{}", ended.out);
        }
    }
    for (policy, workload) in [
        (agent.replace("[app, \"main-*\"]", "[\"w*\"]"), WEB.to_owned()),
        (agent.replace("    env: [{name: A, value: b}]\n", ""), WEB.to_owned()),
        (agent.clone(), WEB.replace("name: web, image", "name: main-web, image")),
    ] {
        let ended = Folder::new().with("policy.yaml", &policy).inject(&workload);
        assert!(ended.code == 0 && ended.err.is_empty() && ended.out.contains("agent"), "{ended:?}");
    }
}

#[test]
fn hooks_are_injected_and_told() {
    let policy = policy_with("agent", "targets: [{group: batch, resource: jobs}]\n  jobs: Inject");
    let folder = Folder::new().with("policy.yaml", policy);
    for (key, tool) in [("helm.sh/hook", "Helm"), ("argocd.argoproj.io/hook", "Argo CD")] {
        let hook = format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: migrate, namespace: shop-eu, annotations: {{{key}: pre-install}}}}\n\
             spec: {{template: {{spec: {{restartPolicy: Never, containers: [{{name: m, image: m}}]}}}}}}\n"
        );
        let words = format!("it is a hook (`pre-install`), and {tool} waits until it ends");
        let ended = folder.inject(&hook);
        assert!(ended.code == 0 && ended.out.contains("name: agent") && ended.err.contains(&words), "{ended:?}");
        let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], &hook);
        assert!(ended.out.contains(&words[1..]), "{}", ended.out);
        fs::write(folder.path("hook.yaml"), &hook).unwrap();
        let ended = folder.scpol(&["lint", "-f", "policy.yaml", "--manifests", "hook.yaml"], "");
        assert!(ended.out.contains("SCP0063") && ended.out.contains(&words), "{}", ended.out);
    }
}

/// From public charts. kubectl and helm accept these duplicates.
const TWICE: &str = "\
# Source: chart/templates/config.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: defaults, namespace: shop-eu}
data:
  jvm.additional: -XX:+UseG1GC
  jvm.additional: -XX:+AlwaysPreTouch
---
# Source: chart/templates/deployment.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: db, namespace: shop-eu}
spec:
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      restartPolicy: Never
      containers:
      - name: db
        image: registry.example.com/db:1
        image: registry.example.com/db:2
      restartPolicy: Always
";

#[test]
fn of_a_key_that_is_there_twice_the_last_one_counts_and_what_is_not_changed_passes_byte_for_byte() {
    let folder = with_policy().with("other.yaml", POLICY.replace("shop-*", "office")).with("twice.yaml", TWICE);
    let (config, _) = TWICE.split_once("# Source: chart/templates/deployment").unwrap();
    let warnings = [(7, "jvm.additional"), (22, "image"), (23, "restartPolicy")].map(|(line, key)| {
        format!("warning: twice.yaml:{line}: the key `{key}` is there twice; the last one counts, as for kubectl\n")
    });
    let passed = folder.scpol(&["inject", "-f", "twice.yaml", "-p", "other.yaml"], "");
    assert_eq!((passed.code, passed.out.as_str(), passed.err), (0, TWICE, warnings.concat()));
    let injected = folder.scpol(&["inject", "-f", "twice.yaml", "-p", "policy.yaml"], "");
    assert_eq!((injected.code, &injected.err), (0, &warnings.concat()));
    assert!(injected.out.starts_with(config), "{}", injected.out);
    let (_, changed) = injected.out.split_once("---\n").unwrap();
    let pod = &documents(changed)[0]["spec"]["template"]["spec"];
    assert_eq!(
        (&pod["restartPolicy"], &pod["containers"][0]["image"]),
        (&json!("Always"), &json!("registry.example.com/db:2"))
    );
    assert_eq!(pod["containers"][1]["name"], "envoy");
    let json = r#"{"apiVersion": "v1", "kind": "ConfigMap", "kind": "Secret"}"#;
    let passed = folder.inject(json);
    assert_eq!((passed.code, passed.out.as_str()), (0, json));
    assert!(passed.err.contains("standard input:1: the key `kind` is there twice"), "{}", passed.err);
    for arguments in [
        &["inject", "-f", "twice.yaml", "-p", "policy.yaml", "--strict"][..],
        &["uninject", "-f", "twice.yaml", "--strict"],
        &["explain", "-f", "twice.yaml", "-p", "policy.yaml", "--strict"],
        &["diff", "-f", "twice.yaml", "--old", "policy.yaml", "--new", "other.yaml", "--strict"],
        &["lint", "-f", "policy.yaml", "--manifests", "twice.yaml", "--strict"],
        &["convert", "-f", "twice.yaml", "--strict"],
    ] {
        let refused = folder.scpol(arguments, "");
        // Findings about the policies are reported anyway.
        let out = if arguments[0] == "lint" { "" } else { refused.out.as_str() };
        assert_eq!((refused.code, out), (2, ""), "{arguments:?}: {refused:?}");
        assert_eq!(refused.err.matches("is there twice; expected it once").count(), 3, "{}", refused.err);
    }
    // Duplicates in a policy are reported too.
    let policy = folder.with("policy.yaml", POLICY.replace("spec:\n", "spec:\n  priority: 1\n  priority: 2\n"));
    let ended = policy.inject(WEB);
    assert_eq!(ended.code, 0);
    assert!(ended.err.contains("policy.yaml:6: the key `priority` is there twice"), "{}", ended.err);
}

#[test]
fn uninject_leaves_no_mount_without_its_volume() {
    let policy = POLICY.replace(
        "image: \"envoyproxy/envoy:v1.31.0\"",
        "image: e, volumeMounts: [{name: envoy-config, mountPath: /e}]",
    );
    let folder = Folder::new().with("policy.yaml", policy);
    let injected = folder.inject(WEB).out;
    let back = folder.scpol(&["uninject", "-f", "-"], &injected);
    assert_eq!((back.code, documents(&back.out)), (0, documents(WEB)), "{back:?}");
    let mounted = injected.replace(
        "        name: web\n",
        "        name: web\n        volumeMounts: [{name: envoy-config, mountPath: /x}]\n",
    );
    assert_ne!(mounted, injected);
    let back = folder.scpol(&["uninject", "-f", "-"], &mounted);
    assert_eq!(back.code, 1);
    assert!(
        back.err.contains("`/spec/template/spec/volumes/envoy-config`") && back.err.contains("still mounted"),
        "{}",
        back.err
    );
    let pod = &documents(&back.out)[0]["spec"]["template"]["spec"];
    assert_eq!(
        (&pod["volumes"][0]["name"], containers(&documents(&back.out)[0])),
        (&json!("envoy-config"), vec!["web"])
    );
}

#[test]
fn explain_gives_the_answer_first_and_a_row_for_every_policy() {
    let named = |name: &str, spec: &str| POLICY.replace("envoy", name).replace("spec:\n", &format!("spec:\n{spec}"));
    let policies = [
        named("a-injects", ""),
        named("b-suspended", "  suspend: true\n"),
        named("c-elsewhere", "").replace("shop-*", "office"),
        named("d-pods", "  targets: [{group: \"\", resource: pods}]\n"),
    ];
    let folder = Folder::new().with("policy.yaml", policies.join("---\n"));
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], WEB);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    let lines: Vec<_> = ended.out.lines().collect();
    assert_eq!(lines[0], "Deployment shop-eu/web (standard input:2): 1 of 4 policies injects: a-injects");
    assert!(lines.iter().any(
        |line| line.starts_with("a-injects") && line.contains("adds volume a-injects-config, container a-injects")
    ));
    for (policy, row, code) in [("b-suspended", "7", "SCP0003"), ("c-elsewhere", "7", "SCP0108"), ("d-pods", "8", "-")]
    {
        let line = lines.iter().find(|line| line.starts_with(policy)).unwrap();
        // The result has two words.
        assert_eq!(line.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), [row, code], "{line}");
    }
    assert!(lines.len() < 20, "one screen: {}", ended.out);
}

#[test]
fn explain_tells_what_is_in_already_what_is_of_another_version_and_what_is_in_the_way() {
    let folder = with_policy().with("newer.yaml", POLICY.replace("v1.31.0", "v1.32.0"));
    let injected = folder.inject(WEB).out;
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], &injected);
    assert_eq!(ended.code, 0);
    assert!(ended.out.contains(": nothing to add; in it already: envoy\n"), "{}", ended.out);
    let ended = folder.scpol(&["explain", "-p", "newer.yaml", "-f", "-", "-o", "json"], &injected);
    assert_eq!(ended.code, 0);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&report["apiVersion"], &report["kind"]), (&json!("cli.scpol.dev/v1alpha1"), &json!("ExplainReport")));
    let answer = &report["items"][0]["policies"][0];
    assert_eq!(
        (&answer["result"], &answer["row"], &answer["code"]),
        (&json!("Outdated"), &json!(8), &json!("SCP0121"))
    );
    assert!(answer["message"].as_str().unwrap().contains("of another version"), "{answer}");
    let ended = folder.scpol(&["inject", "-p", "newer.yaml", "-f", "-"], &injected);
    assert!(ended.code == 0 && ended.out == injected && ended.err.contains("`--earlier`"), "{ended:?}");
    let ended = folder.scpol(&["inject", "-p", "newer.yaml", "--earlier", "policy.yaml", "-f", "-"], &injected);
    assert!(ended.code == 0 && ended.out.contains("v1.32.0") && !ended.out.contains("v1.31.0"), "{ended:?}");
    let without = folder.scpol(&["uninject", "-f", "-", "-p", "envoy"], &injected);
    let ended = folder.scpol(&["inject", "-p", "newer.yaml", "-f", "-"], &without.out);
    assert!(ended.code == 0 && ended.out.contains("v1.32.0"), "{ended:?}");
    let refusing = folder.with("policy.yaml", POLICY.replace("spec:\n", "spec:\n  failurePolicy: Fail\n"));
    let taken = WEB.replace("name: web, image", "name: envoy, image");
    let ended = refusing.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], &taken);
    assert_eq!(ended.code, 1);
    assert!(ended.out.contains(": its create is refused by envoy\n"), "{}", ended.out);
}

#[test]
fn earlier_files_without_an_earlier_version_are_an_error() {
    let renamed = POLICY.replacen("name: envoy", "name: other", 1);
    for (earlier, words) in [
        (WEB.to_owned(), "no SidecarPolicy there"),
        (renamed.clone(), "only `other` there; expected an earlier version of a given policy"),
        (POLICY.replace("spec:\n", "spec:\n  tempalte: {}\n"), "SidecarPolicy `envoy`: SCP0012"),
        (format!("{renamed}---\n{POLICY}"), ""),
    ] {
        let folder = Folder::new().with("policy.yaml", POLICY).with("web.yaml", WEB).with("earlier.yaml", &earlier);
        for command in ["inject", "explain"] {
            let ended =
                folder.scpol(&[command, "-p", "policy.yaml", "-f", "web.yaml", "--earlier", "earlier.yaml"], "");
            assert_eq!(ended.code, if words.is_empty() { 0 } else { 2 }, "{ended:?}");
            assert!(ended.err.contains(words), "{ended:?}");
        }
    }
}

#[test]
fn explain_mentions_a_port_that_two_containers_name_and_what_made_a_pod() {
    let ports = |container: &str| container.replace("\"}]", "\", ports: [{containerPort: 80}]}]");
    let folder = Folder::new().with("policy.yaml", ports(POLICY));
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], &ports(WEB));
    assert_eq!(ended.code, 0, "{ended:?}");
    let says = "containerPort is 80/TCP, as in container `web`: only one of them can listen on it";
    assert!(ended.out.contains(says), "{}", ended.out);
    let owner = "ownerReferences: [{kind: ReplicaSet, name: web-6d4b, controller: true}]";
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web-6d4b-x, namespace: shop-eu, labels: {{pod-template-hash: 6d4b}}, {owner}}}\nspec: {{containers: []}}\n"
    );
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], &pod);
    assert!(ended.out.contains("SCP0107") && ended.out.contains("scpol explain deploy/web -n shop-eu"), "{ended:?}");
}

#[test]
fn explain_tells_how_policies_change_the_quality_of_service_of_pods() {
    let resources =
        |manifest: &str, resources: &str| manifest.replace("\"}]", &format!("\", resources: {resources}}}]"));
    let (full, requests) = ("{limits: {cpu: 1, memory: 1Gi}}", "{requests: {cpu: 50m, memory: 64Mi}}");
    let note = |sidecar: &str, own: &str| {
        let folder = Folder::new().with("policy.yaml", resources(POLICY, sidecar));
        let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], &resources(WEB, own));
        assert_eq!(ended.code, 0, "{ended:?}");
        let note = ended.out.lines().find_map(|line| line.strip_prefix("Quality of service of its pods: "));
        // After the injection `explain` reports the same change.
        let injected = folder.inject(&resources(WEB, own)).out;
        let again = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], &injected);
        assert_eq!(note.is_some_and(|note| again.out.contains(note)), note.is_some(), "{again:?}");
        note.map(str::to_owned)
    };
    let told = note(requests, full).unwrap();
    let begin =
        "Guaranteed without the policies, Burstable with them (SCP0052): container `envoy` has no limit of cpu and";
    assert!(told.starts_with(begin), "{told}");
    // Only pods that were Guaranteed lose something.
    assert_eq!((note(full, full), note(requests, requests), note("{}", "{}")), (None, None, None));
    assert_eq!((note(requests, "{}"), note("{}", requests)), (None, None));
}

#[test]
fn explain_without_a_workload_or_a_cluster_cannot_tell() {
    let folder = with_policy();
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], CONFIG);
    assert_eq!((ended.code, ended.out.as_str()), (2, ""));
    assert!(ended.err.contains("no workload found in standard input; expected one of Deployment, "), "{}", ended.err);
    for arguments in [
        &["explain", "-p", "policy.yaml"][..],
        &["explain", "configmap/x", "-p", "policy.yaml"],
        &["explain", "deploy/web", "-f", "-"],
        &["explain", "deploy/web", "--kubeconfig", "none", "-p", "policy.yaml"],
        &["explain", "-f", "policy.yaml", "--kubeconfig", "none"],
    ] {
        let ended = folder.scpol(arguments, "");
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{arguments:?}");
    }
}

#[test]
fn lint_says_what_is_wrong_and_exits_by_how_bad_it_is() {
    let folder = with_policy()
        .with("bad.yaml", POLICY.replace("namespaces", "namespace"))
        .with("broken.yaml", "a: [")
        .with("pinned.yaml", POLICY.replace("31.0\"", "31.0\", resources: {requests: {cpu: 1, memory: 1Gi}}"))
        .with("config.yaml", CONFIG);
    let ended = folder.scpol(&["lint", "-f", "policy.yaml"], "");
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    let lines: Vec<_> = ended.out.lines().collect();
    assert_eq!(lines[0], "1 policy in 1 file: 1 warning, 1 note");
    assert!(
        lines[3].starts_with("warning   SCP0035  policy.yaml:7  spec.template.containers[0].resources: "),
        "{}",
        lines[3]
    );
    assert_eq!(folder.scpol(&["lint", "--strict", "-f", "policy.yaml"], "").code, 1);
    assert_eq!(folder.scpol(&["lint", "--strict", "-f", "pinned.yaml"], "").code, 0, "notes are no warnings");
    let ended = folder.scpol(&["lint", "-f", "bad.yaml", "-o", "json"], "");
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((ended.code, &report["kind"], &report["errors"]), (1, &json!("LintReport"), &json!(1)));
    let item = &report["items"][0];
    assert_eq!((&item["code"], &item["line"], &item["policy"]), (&json!("SCP0012"), &json!(5), &json!("envoy")));
    let ended = folder.scpol(&["lint", "-f", "pinned.yaml", "--manifests", "config.yaml"], "");
    assert!(ended.code == 2 && ended.err.contains("--manifests: no workload found in config.yaml"), "{}", ended.err);
    let clean = "apiVersion: scpol.dev/v1alpha1\nkind: SidecarPolicy\nmetadata: {name: a}\nspec: {template: {env: [{name: A}]}}\n";
    let ended = folder.scpol(&["lint", "-f", "-"], clean);
    assert_eq!((ended.code, ended.out.as_str()), (0, "1 policy in 1 file: nothing found\n"));
    // An unreadable file must not hide findings in others.
    let ended = folder.scpol(&["lint", "-f", "broken.yaml", "bad.yaml"], "");
    assert!(ended.code == 2 && ended.out.contains("SCP0012") && ended.err.contains("broken.yaml:1: "), "{ended:?}");
    for (arguments, words) in [
        (&["lint", "-f", "config.yaml"][..], "no SidecarPolicy found in"),
        (&["lint", "-f", "broken.yaml"], "broken.yaml:1: "),
        (&["lint", "-f", "-", "--manifests", "-"], "only once"),
        (&["lint", "-f", "policy.yaml", "--kube-version", "new"], "is no version of Kubernetes"),
    ] {
        let ended = folder.scpol(arguments, "");
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{arguments:?}");
        assert!(ended.err.contains(words), "{}", ended.err);
    }
}

#[test]
fn a_case_whose_expectation_cannot_be_read_has_not_passed_and_links_are_not_followed() {
    let folder = Folder::new().with("cases/one/policy.yaml", POLICY).with("cases/one/workload.yaml", WEB);
    std::os::unix::fs::symlink("..", folder.path("cases/back")).unwrap();
    assert_eq!(folder.scpol(&["test", "--update", "cases"], "").code, 0);
    let ended = folder.scpol(&["test", "cases"], "");
    assert_eq!((ended.code, ended.out.as_str()), (0, "1 case: 1 ok, 0 failed\n"));
    fs::create_dir(folder.path("cases/one/expected.txt")).unwrap();
    let ended = folder.scpol(&["test", "cases"], "");
    assert!(ended.code == 2 && ended.out.contains("expected.txt cannot be read"), "{ended:?}");
    assert!(ended.err.contains("1 case cannot be run"), "{}", ended.err);
}

/// The rows of `diff` for a change of policies, each as `change workload policy`, and the exit code.
fn changes(old: &str, new: &str, workloads: &str) -> (Vec<String>, i32) {
    let folder = Folder::new().with("old.yaml", old).with("new.yaml", new);
    let ended = folder.scpol(&["diff", "--old", "old.yaml", "--new", "new.yaml", "-f", "-", "-o", "json"], workloads);
    let report: Value = serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}", ended.err));
    assert_eq!((&report["apiVersion"], &report["kind"]), (&json!("cli.scpol.dev/v1alpha1"), &json!("DiffReport")));
    let mut rows = Vec::new();
    for item in report["items"].as_array().unwrap() {
        for row in item["changes"].as_array().unwrap() {
            let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            rows.push([&row["change"], &item["name"], &row["policy"]].map(word).join(" "));
        }
    }
    (rows, ended.code)
}

#[test]
fn diff_tells_who_gains_loses_changes_and_is_refused() {
    let other = WEB.replace("shop-eu", "office").replace("name: web, namespace", "name: desk, namespace");
    let workloads = format!("{WEB}---\n{other}");
    let named = |name: &str| POLICY.replace("envoy", name);
    for (old, new, expected) in [
        (POLICY.to_owned(), POLICY.to_owned(), &[][..]),
        (POLICY.to_owned(), POLICY.replace("shop-*", "office"), &["Loses web envoy", "Gains desk envoy"]),
        (POLICY.to_owned(), POLICY.replace("31.0", "32.0"), &["Changes web envoy"]),
        (POLICY.to_owned(), named("proxy"), &["Gains web proxy", "Loses web envoy"]),
        (POLICY.to_owned(), POLICY.replace("spec:", "spec:\n  position: {containers: Before}"), &["Changes web envoy"]),
        (POLICY.to_owned(), POLICY.replace("spec:", "spec:\n  failurePolicy: Fail"), &[]),
        (
            format!("{}---\n{}", named("a"), named("b")),
            format!("{}---\n{}", named("a"), named("b").replace("spec:", "spec:\n  priority: 1")),
            &["Changes web -"],
        ),
        (
            POLICY.replace("name: envoy, image", "name: web, image"),
            POLICY.replace("name: envoy, image", "name: web, image").replace("spec:", "spec:\n  failurePolicy: Fail"),
            &["Refused web envoy"],
        ),
        (
            POLICY.replace("name: envoy, image", "name: web, image").replace("spec:", "spec:\n  failurePolicy: Fail"),
            POLICY.to_owned(),
            &["Admitted web envoy"],
        ),
    ] {
        let (rows, code) = changes(&old, &new, &workloads);
        assert_eq!(rows, expected, "{new}");
        assert_eq!(code, i32::from(!expected.is_empty()));
    }
    // Existing content of ours in a manifest does not count as the user's.
    let injected = with_policy().inject(WEB).out;
    assert_eq!(changes(POLICY, &POLICY.replace("31.0", "32.0"), &injected).0, ["Changes web envoy"]);
    assert_eq!(changes(POLICY, POLICY, &injected).0, [""; 0]);
}

#[test]
fn diff_gives_the_answer_first_and_the_text_on_demand() {
    let folder = with_policy().with("new.yaml", POLICY.replace("31.0", "32.0")).with("web.yaml", WEB);
    let arguments = ["diff", "--old", "policy.yaml", "--new", "new.yaml", "-f", "web.yaml", "-v"];
    let ended = folder.scpol(&arguments[..7], "");
    assert_eq!((ended.code, ended.err.as_str()), (1, ""));
    assert!(ended.out.starts_with("1 workload: 1 changes\n\nCHANGE   WORKLOAD"), "{}", ended.out);
    assert!(!ended.out.contains("@@"), "{}", ended.out);
    let ended = folder.scpol(&arguments, "");
    let lines = ["-      - image: envoyproxy/envoy:v1.31.0\n", "+      - image: envoyproxy/envoy:v1.32.0\n"];
    assert!(lines.iter().all(|line| ended.out.contains(line)), "{}", ended.out);
    for (arguments, words) in [
        (&["diff", "--old", "-", "--new", "-", "-f", "web.yaml"][..], "only once"),
        (
            &["diff", "--old", "web.yaml", "--new", "policy.yaml", "-f", "web.yaml"],
            "--old: no SidecarPolicy found in web.yaml",
        ),
        (&["diff", "--old", "policy.yaml", "--new", "policy.yaml", "-f", "new.yaml"], "no workload found in"),
        (
            &["diff", "--new", "policy.yaml", "-f", "web.yaml", "--kubeconfig", "none"],
            "no --old is given, and the policies of the cluster cannot be read",
        ),
        (&["diff", "--old", "policy.yaml", "--new", "policy.yaml", "--kubeconfig", "none"], ""),
    ] {
        let ended = folder.scpol(arguments, "");
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{arguments:?}");
        assert!(ended.err.contains(words), "{}", ended.err);
    }
}

/// Injects into every golden case without flags, and removes the content, with the real binary.
#[test]
fn the_golden_workloads_come_back_as_they_were() {
    let root = root().join("tests/golden");
    let (mut injected, mut kept) = (0, Vec::new());
    for case in fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let read = |file: &str| fs::read_to_string(case.join(file)).unwrap();
        let workload = read("workload.yaml");
        if case.join("case.yaml").exists() || workload.contains("injected.scpol.dev/") {
            continue;
        }
        let folder = Folder::new().with("policy.yaml", read("policy.yaml"));
        let ended = folder.inject(&workload);
        // Without a pod template it is a patch, and there is no other workload.
        if name == "no-pod-template" {
            assert!(ended.code == 2 && ended.out.is_empty() && ended.err.contains("a patch of"), "{}", ended.err);
            continue;
        }
        if !case.join("expected.yaml").exists() {
            assert_eq!(ended.out, workload, "{name}: {}", ended.err);
            continue;
        }
        injected += 1;
        let is_workload =
            |object: &Value| !["Namespace", "CustomResourceDefinition"].contains(&object["kind"].as_str().unwrap());
        let workloads = documents(&ended.out).into_iter().filter(is_workload);
        assert_eq!(workloads.collect::<Vec<_>>(), documents(&read("expected.yaml")), "{name}: {}", ended.err);
        let back = folder.scpol(&["uninject", "-f", "-"], &ended.out);
        if back.code == 1 && back.err.lines().all(|line| line.contains("is still mounted by a container")) {
            kept.push(name);
            continue;
        }
        assert_eq!((back.code, back.err.as_str()), (0, ""), "{name}");
        assert_eq!(documents(&back.out), documents(&workload), "{name}");
    }
    assert!(injected >= 100, "only {injected} were injected");
    kept.sort_unstable();
    assert_eq!(
        kept,
        ["env-placed", "equal-container-missing-volume"],
        "those that mount a volume which they have of a policy alone"
    );
}

/// Runs `command` as a shell does, in `docs/examples`. `$?` is the exit code of the previous command.
fn type_in(command: &str, code: &mut i32) -> String {
    let root = root().join("docs/examples");
    let binaries = Path::new(env!("CARGO_BIN_EXE_scpol")).parent().unwrap();
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap());
    let script = format!("(exit {code}); {command}");
    let output =
        Command::new("bash").args(["-c", &format!("exec 2>&1; {script}")]).current_dir(root).env("PATH", path).output();
    let output = output.unwrap();
    *code = output.status.code().unwrap_or(-1);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_examples_of_the_pages_print_what_the_pages_say() {
    let pages = [
        ("docs/commands.md", 4),
        ("docs/migrate.md", 3),
        ("docs/how-to/config-map.md", 1),
        ("docs/how-to/share-a-volume.md", 1),
        ("docs/how-to/windows-nodes.md", 1),
        ("docs/write/parameters.md", 2),
        ("docs/write/policy.md", 1),
        ("docs/write/validations.md", 1),
    ];
    for (page, least) in pages {
        check_examples(&root().join(page), least);
    }
}

fn check_examples(page_path: &Path, least: usize) {
    let page = fs::read_to_string(page_path).unwrap();
    let mut fresh = String::new();
    let mut rest = page.as_str();
    let examples = console::examples(&page);
    assert!(examples.len() >= least, "{} examples", examples.len());
    let mut code = 0;
    let mut faults = String::new();
    for Example { command, printed } in examples {
        let found = type_in(&command, &mut code);
        if found != printed {
            faults.push_str(&format!("$ {command}\n{found}\n"));
        }
        let line = format!("$ {command}\n");
        let (before, after) = rest.split_once(&line).unwrap();
        fresh.extend([before, &line, &found]);
        rest = after.strip_prefix(&printed).unwrap();
    }
    fresh.push_str(rest);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(page_path, fresh).unwrap();
    } else {
        assert!(faults.is_empty(), "UPDATE=1 writes the page anew:\n{faults}");
    }
}

/// A policy named `name` with the fields `spec`, and a template with one container.
fn policy_with(name: &str, spec: &str) -> String {
    let template = "template:\n    containers: [{name: agent, image: \"registry.example.com/agent:1\"}]";
    format!(
        "apiVersion: scpol.dev/v1alpha1\nkind: SidecarPolicy\nmetadata: {{name: {name}}}\nspec:\n  {spec}\n  {template}\n"
    )
}

const FOR_PODS: &str = "targets: [{group: \"\", resource: pods}]";

#[test]
fn a_template_that_no_server_takes_is_refused_by_every_command_that_takes_policies() {
    let broken =
        policy_with("typo", "priority: 1").replace("name: agent", "name: agent, livenesProbe: {}, command: sleep 1000");
    let folder = Folder::new()
        .with("policy.yaml", &broken)
        .with("cases/a/policy.yaml", &broken)
        .with("cases/a/workload.yaml", WEB);
    let folder = folder.with("cases/b/policy.yaml", POLICY).with("cases/b/workload.yaml", WEB);
    for arguments in [&["inject", "-p", "policy.yaml", "-f", "-"][..], &["explain", "-p", "policy.yaml", "-f", "-"]] {
        let ended = folder.scpol(arguments, WEB);
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{arguments:?}");
        for words in [
            "SCP0026",
            "livenesProbe: there is no such field; did you mean `livenessProbe`?",
            "SCP0022",
            "a list of strings",
        ] {
            assert!(ended.err.contains(words), "{words}: {}", ended.err);
        }
    }
    // The broken case fails, and the other one still runs.
    let ended = folder.scpol(&["test", "cases"], "");
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.out.contains("cannot be run: ") && ended.out.contains("SCP0026"), "{}", ended.out);
    assert!(ended.out.contains("2 cases: 0 ok, 2 failed"), "{}", ended.out);
}

#[test]
fn a_version_that_is_named_is_the_one_that_a_template_is_for() {
    let folder = Folder::new().with(
        "policy.yaml",
        policy_with("a", "priority: 1").replace("name: agent", "name: agent, startupProbe: {tcpSocket: {port: 1}}"),
    );
    let inject =
        |version: &[&str]| folder.scpol(&[&["inject", "-p", "policy.yaml", "-f", "-"][..], version].concat(), WEB);
    assert_eq!(inject(&[]).code, 0);
    assert_eq!(inject(&["--kube-version", "1.16"]).code, 0);
    let ended = inject(&["--kube-version", "1.15"]);
    assert_eq!(ended.code, 2);
    assert!(ended.err.contains("startupProbe: needs Kubernetes 1.16 or later, and this is 1.15"), "{}", ended.err);
    let always = Folder::new().with("policy.yaml", policy_with("a", "nativeSidecars: Always"));
    let ended = always.scpol(&["inject", "-p", "policy.yaml", "-f", "-", "--kube-version", "1.28"], WEB);
    assert_eq!((ended.code, ended.out.as_str()), (1, WEB));
    assert!(ended.err.contains("SCP0316"), "{}", ended.err);
}

#[test]
fn a_manifest_that_is_not_what_it_looks_like_is_told_and_not_injected() {
    let folder = Folder::new().with("policy.yaml", policy_with("a", "priority: 1"));
    for (from, to, words) in [
        (
            "containers:",
            "contaners:",
            "`spec.template.spec.contaners` there is no such field; did you mean `containers`?",
        ),
        ("image:", "imgae:", "`spec.template.spec.containers[0].imgae` there is no such field; did you mean `image`?"),
        (
            "labels: {app: web}}",
            "labels: {app: web}, annotations: {scpol.dev/inject: false}}",
            "`spec.template.metadata.annotations.scpol.dev/inject` must be a string, is a boolean; write `\"false\"`",
        ),
        (
            "namespace: shop-eu}",
            "namespace: shop-eu, annotations: {scpol.dev/inject: true}}",
            "`metadata.annotations.scpol.dev/inject` must be a string, is a boolean; write `\"true\"`",
        ),
    ] {
        let workload = WEB.replacen(from, to, 1);
        let ended = folder.inject(&workload);
        assert_eq!((ended.code, ended.out.as_str()), (1, workload.as_str()), "{to}");
        assert!(ended.err.contains("SCP0214 WorkloadInvalid") && ended.err.contains(words), "{}", ended.err);
        let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], &workload);
        assert!(ended.code == 1 && ended.out.contains("FAILS") && ended.out.contains("SCP0214"), "{ended:?}");
        let ended = folder
            .with_file("web.yaml", &workload)
            .scpol(&["lint", "-f", "policy.yaml", "--manifests", "web.yaml"], "");
        assert!(ended.out.contains("SCP0214"), "{ended:?}");
    }
    // A field that a server would reject, or that may be newer than this program, is only reported.
    let workload = WEB.replace("nginx:1.27\"", "nginx:1.27\", quantum: {}, ports: [{containerPort: 70000}]");
    let ended = folder.inject(&workload);
    assert!(ended.code == 0 && ended.out.contains("agent"), "{ended:?}");
    for words in
        ["warning: ", ".quantum` there is no such field", "containerPort` must be between 1 and 65535, is 70000"]
    {
        assert!(ended.err.contains(words), "{words}: {}", ended.err);
    }
}

#[test]
fn who_is_left_out_is_told_with_the_reason() {
    let folder = Folder::new().with("policy.yaml", policy_with("agent", "priority: 1"));
    let annotated = |value: &str| {
        WEB.replace("namespace: shop-eu}", &format!("namespace: shop-eu, annotations: {{scpol.dev/inject: {value}}}}}"))
    };
    for (workload, words) in [
        (
            WEB.replace("spec:\n      containers", "spec:\n      hostNetwork: true\n      containers"),
            "SCP0104 HostNetwork (row 4)",
        ),
        (annotated("\"false\""), "SCP0105 OptedOut (row 5)"),
        (
            annotated("enabled"),
            "SCP0117 InvalidOptOut: `scpol.dev/inject` names `enabled`, and there is no such SidecarPolicy; did you mean \"true\"?",
        ),
        (annotated("\"True\""), "names `True`, and there is no such SidecarPolicy; did you mean \"true\"?"),
        (annotated("\"yes\""), "did you mean \"true\"?"),
        (annotated("\"off\""), "did you mean \"false\"?"),
        (annotated("agnet"), "names `agnet`, and there is no such SidecarPolicy; did you mean \"agent\"?"),
    ] {
        let ended = folder.inject(&workload);
        assert_eq!((ended.code, ended.out.as_str()), (0, workload.as_str()), "{words}");
        assert!(ended.err.contains("Deployment shop-eu/web: ") && ended.err.contains(words), "{words}: {}", ended.err);
    }
    // An empty value is reported and has no effect. Workloads that no policy targets get no report.
    let ended = folder.inject(&annotated("\"\""));
    assert!(ended.code == 0 && ended.out.contains("agent") && ended.err.contains("has an empty value"), "{ended:?}");
    let ended = folder.inject(&annotated("enabled").replace("Deployment", "DaemonSet"));
    assert_eq!(ended.err, "");
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], &annotated("agnet"));
    assert!(ended.out.contains("did you mean \"agent\"?"), "{}", ended.out);
    let ended = folder
        .with_file("web.yaml", &annotated("agnet"))
        .scpol(&["lint", "-f", "policy.yaml", "--manifests", "web.yaml"], "");
    assert!(ended.out.contains("SCP0117") && ended.out.contains("did you mean \"agent\"?"), "{}", ended.out);
    assert!(ended.out.contains("SCP0105") && ended.out.contains("spec.optOut: leaves out Deployment"), "{}", ended.out);
}

#[test]
fn a_policy_for_pods_is_asked_about_the_pods_that_a_workload_makes() {
    let folder = Folder::new().with("policy.yaml", policy_with("agent", FOR_PODS));
    let ended = folder.inject(WEB);
    assert_eq!((ended.code, ended.out.as_str()), (0, WEB));
    assert!(ended.err.contains("the pods of Deployment shop-eu/web: policy `agent` is for pods"), "{}", ended.err);
    let ended = folder.scpol(&["inject", "-p", "policy.yaml", "-f", "-", "--diff"], WEB);
    for words in
        ["(the pods of Deployment shop-eu/web)", "generateName: web-", "+  - image: registry.example.com/agent:1"]
    {
        assert!(ended.out.contains(words), "{words}: {}", ended.out);
    }
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], WEB);
    assert_eq!(ended.code, 0);
    for words in [
        "its pods are injected when they are created, by agent",
        "its pods, when they are created: adds container agent",
    ] {
        assert!(ended.out.contains(words), "{words}: {}", ended.out);
    }
    let taken = WEB.replace("name: web, image", "name: agent, image");
    let ended = folder.inject(&taken);
    assert!(
        ended.code == 1
            && ended.err.contains("the pods of Deployment shop-eu/web: policy `agent`: not injected: SCP0200"),
        "{ended:?}"
    );
    // A claim of a StatefulSet is a volume of its pods.
    let mounting = policy_with("agent", FOR_PODS)
        .replace("name: agent,", "name: agent, volumeMounts: [{name: data, mountPath: /d}],");
    let folder = folder.with_file("policy.yaml", &mounting);
    let set = WEB
        .replace("Deployment", "StatefulSet")
        .replace("  selector", "  volumeClaimTemplates: [{metadata: {name: data}}]\n  selector");
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], &set);
    assert!(ended.code == 0 && ended.out.contains("adds container agent"), "{ended:?}");
}

#[test]
fn a_policy_that_only_judges_says_that_it_has_nothing_against_a_workload() {
    let judging = "apiVersion: scpol.dev/v1alpha1\nkind: SidecarPolicy\nmetadata: {name: judge}\nspec:\n  validations: [{expression: object.metadata.name != 'x', message: not x}]\n";
    let folder = Folder::new().with("policy.yaml", judging);
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], WEB);
    assert_eq!(ended.code, 0);
    for words in ["it satisfies the validations of judge", "passes", "its validation holds"] {
        assert!(ended.out.contains(words), "{words}: {}", ended.out);
    }
    // A workload that opts out of templates is still validated, and has one row.
    let out = WEB.replace("name: web, namespace", "annotations: {scpol.dev/inject: \"false\"}, name: web, namespace");
    assert_ne!(out, WEB);
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], &out);
    assert!(ended.out.contains("passes") && !ended.out.contains("skips it"), "{}", ended.out);
    let two = format!("{WEB}---\n{}", WEB.replace("name: web, namespace", "name: x, namespace"));
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], &two);
    assert!(ended.code == 1 && ended.out.contains("passes") && ended.out.contains("REFUSES"), "{ended:?}");
}

#[test]
fn conflict_is_said_of_conflicts_alone() {
    let explain = |policy: &str, workload: &str| {
        Folder::new().with("policy.yaml", policy).scpol(&["explain", "-p", "policy.yaml", "-f", "-"], workload)
    };
    let mounting = policy_with("agent", "priority: 1")
        .replace("name: agent,", "name: agent, volumeMounts: [{name: none, mountPath: /d}],");
    for (policy, code) in [
        (mounting, "SCP0202"),
        (policy_with("agent", "namespaceSelector: {matchLabels: {a: b}}"), "SCP0209"),
        (policy_with("agent", "matchConditions: [{name: a, expression: object.spec.none > 1}]"), "SCP0211"),
    ] {
        let ended = explain(&policy, WEB);
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(
            ended.out.contains(code) && ended.out.contains("FAILS") && ended.out.contains("cannot be injected: agent"),
            "{}",
            ended.out
        );
        assert!(!ended.out.to_lowercase().contains("conflict"), "{}", ended.out);
    }
    let ended = explain(&policy_with("agent", "priority: 1"), &WEB.replace("name: web, image", "name: agent, image"));
    assert!(ended.out.contains("CONFLICT") && ended.out.contains("in conflict: agent"), "{}", ended.out);
}

#[test]
fn an_annotation_on_the_pod_template_is_told_where_the_workload_is_asked() {
    let folder = Folder::new()
        .with("policy.yaml", policy_with("agent", "annotationSelector: {matchAnnotations: {agent: \"on\"}}"));
    let workload = WEB.replace("labels: {app: web}}", "labels: {app: web}, annotations: {agent: \"on\"}}");
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], &workload);
    assert!(ended.out.contains("annotation `agent` is absent, not `on`; the pod template has it"), "{}", ended.out);
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], WEB);
    assert!(!ended.out.contains("the pod template has it"), "{}", ended.out);
}

#[test]
fn lint_tells_the_faults_of_policies_whatever_is_wrong_with_the_manifests() {
    let bad = policy_with("bad", "namespace: shop");
    let folder = Folder::new().with("policy.yaml", bad).with("config.yaml", CONFIG).with("broken.yaml", "a: [");
    for (manifests, words) in
        [("config.yaml", "no workload found in"), ("broken.yaml", "broken.yaml"), ("none.yaml", "none.yaml")]
    {
        let ended = folder.scpol(&["lint", "-f", "policy.yaml", "--manifests", manifests], "");
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.out.contains("SCP0012") && ended.err.contains(words), "{ended:?}");
    }
}

#[test]
fn an_update_of_cases_says_which_failures_are_expected_from_now_on() {
    let missing = policy_with("agent", "namespaceSelector: {matchLabels: {a: b}}");
    let folder = Folder::new().with("case/policy.yaml", missing).with("case/workload.yaml", WEB);
    let ended = folder.scpol(&["test", "--update", "case"], "");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("a failure is expected from now on") && ended.err.contains("SCP0209"), "{}", ended.err);
    // This is reported once, because it is expected from now on.
    let ended = folder.scpol(&["test", "--update", "case"], "");
    assert!(!ended.err.contains("SCP0209"), "{}", ended.err);
    assert_eq!(folder.scpol(&["test", "case"], "").code, 0);
}

#[test]
fn what_shares_a_name_of_a_port_or_refers_to_what_comes_later_is_told() {
    let policy = policy_with("proxy", "position: {containers: Before}")
        .replace("name: agent,", "name: agent, ports: [{name: http, containerPort: 15001}],");
    let workload = WEB.replace("nginx:1.27\"", "nginx:1.27\", ports: [{name: http, containerPort: 80}]");
    let folder = Folder::new().with("policy.yaml", policy).with("web.yaml", &workload);
    let says = "ports[0].name is `http`, as in container `web`: what names the port, as a Service does, goes to the first of them";
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "web.yaml"], "");
    assert!(ended.code == 0 && ended.out.contains(says), "{}", ended.out);
    let ended = folder.scpol(&["lint", "-f", "policy.yaml", "--manifests", "web.yaml"], "");
    assert!(ended.out.contains("SCP0050"), "{}", ended.out);
    let late = "apiVersion: scpol.dev/v1alpha1\nkind: SidecarPolicy\nmetadata: {name: tags}\nspec:\n  position: {env: After}\n  template:\n    env: [{name: TAG, value: cart}]\n";
    let workload = WEB.replace("nginx:1.27\"", "nginx:1.27\", env: [{name: D, value: \"$(TAG)-x\"}]");
    let folder = folder.with_file("policy.yaml", late).with_file("web.yaml", &workload);
    let says = "variable `D` of container `web` refers to `TAG`, which comes after it: `$(TAG)` stays as it is written";
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "web.yaml"], "");
    assert!(ended.code == 0 && ended.out.contains(says), "{}", ended.out);
    let ended = folder.scpol(&["lint", "-f", "policy.yaml", "--manifests", "web.yaml"], "");
    assert!(ended.out.contains("SCP0051") && ended.out.contains(says), "{}", ended.out);
    // By default the variable goes before, and there is no finding.
    let folder = folder.with_file("policy.yaml", &late.replace("  position: {env: After}\n", ""));
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "web.yaml"], "");
    assert!(ended.code == 0 && !ended.out.contains("stays as it is written"), "{}", ended.out);
}

#[test]
fn a_policy_that_only_audits_says_what_it_would_add() {
    let folder = Folder::new().with("policy.yaml", policy_with("agent", "mode: Audit"));
    let ended = folder.inject(WEB);
    assert_eq!((ended.code, ended.out.as_str()), (0, WEB));
    assert!(ended.err.contains("SCP0004 Audit") && ended.err.contains("would get container agent"), "{}", ended.err);
    let ended = folder.scpol(&["explain", "-p", "policy.yaml", "-f", "-"], WEB);
    assert!(
        ended.code == 0 && ended.out.contains("Deployment `shop-eu/web` would get container agent"),
        "{}",
        ended.out
    );
    // Workloads that no policy would select get no report.
    assert_eq!(folder.inject(&WEB.replace("Deployment", "StatefulSet")).err, "");
}

#[test]
fn a_case_that_fails_and_one_that_cannot_be_run_are_told_apart_in_junit() {
    let folder = Folder::new();
    for case in ["fails", "broken", "passes"] {
        let workload = if case == "broken" { "a: [" } else { WEB };
        fs::create_dir_all(folder.path("cases").join(case)).unwrap();
        folder.with_file(&format!("cases/{case}/policy.yaml"), POLICY);
        folder.with_file(&format!("cases/{case}/workload.yaml"), workload);
    }
    assert_eq!(folder.scpol(&["test", "--update", "cases/passes"], "").code, 0);
    let ended = folder.scpol(&["test", "-o", "junit", "cases"], "");
    let summary = r#"tests="3" skipped="0" failures="1" errors="1""#;
    assert!(ended.code == 2 && ended.out.contains(summary), "{ended:?}");
    for part in [
        r#"<testcase name="cases/broken" classname="scpol test">
            <error message="cannot be run: "#,
        r#"<testcase name="cases/fails" classname="scpol test">
            <failure message="--- expected">--- expected
+++ found
"#,
        r#"<testcase name="cases/passes" classname="scpol test"/>"#,
    ] {
        assert!(ended.out.contains(part), "{part} is not in {}", ended.out);
    }
}

#[test]
fn reports_are_printed_as_kubectl_prints_lists() {
    let folder = with_policy().with("web.yaml", WEB);
    let lint = |format: &[&str]| folder.scpol(&[&["lint", "-f", "policy.yaml"], format].concat(), "");
    let names = lint(&["-o", r#"jsonpath={.kind}: {.items[*].code}{"\n"}"#]);
    assert_eq!((names.code, names.out.as_str()), (0, "LintReport: SCP0035 SCP0040\n"), "{names:?}");
    let warning = lint(&["-o", r#"jsonpath={.items[?(@.severity=="Warning")].field}"#]);
    assert_eq!(warning.out, "spec.template.containers[0].resources", "{warning:?}");
    for (format, expected) in [
        ("jsonpath={range .items[*]}{.code}{end}", "use `-o json` and jq"),
        ("jsonpath=.items", "write it as '{.items[*].name}'"),
        ("wide", "[possible values: table, junit, sarif, json, yaml, jsonpath=]"),
    ] {
        let refused = lint(&["-o", format]);
        assert!(refused.code == 2 && refused.err.contains(expected), "{refused:?}");
    }

    let bare = lint(&["--no-headers"]);
    let full = lint(&[]);
    let rows: Vec<_> = full.out.lines().skip(3).collect();
    assert_eq!(bare.out.lines().collect::<Vec<_>>(), rows, "{full:?}");
    let explain = ["explain", "-f", "web.yaml", "-p", "policy.yaml", "--no-headers"];
    let explained = folder.scpol(&explain, "");
    assert_eq!(
        explained.out, "envoy   injects  8    -     adds volume envoy-config, container envoy\n",
        "{explained:?}"
    );
}

#[test]
fn a_terminal_gets_colours_and_rows_of_its_width() {
    let folder = with_policy();
    let painted = on_a_terminal(folder.0.path(), 80, &["lint", "-f", "policy.yaml"], &[]);
    assert!(painted.contains("\u{1b}[33mwarning\u{1b}[0m   SCP0035"), "{painted:?}");
    let plain = on_a_terminal(folder.0.path(), 80, &["lint", "-f", "policy.yaml"], &[("NO_COLOR", "1")]);
    assert_eq!(painted.replace("\u{1b}[33m", "").replace("\u{1b}[0m", ""), plain);
    assert!(plain.lines().count() > 5 && plain.lines().all(|line| line.len() <= 80), "{plain}");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(words(&plain), words(&folder.scpol(&["lint", "-f", "policy.yaml"], "").out), "nothing is cut off");
}

#[test]
fn states_have_colours_on_request_and_never_in_a_pipe() {
    let folder = with_policy();
    let lint = |more: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scpol"));
        command.args(["lint", "-f", "policy.yaml"]).args(more).current_dir(&folder.0);
        let output = command.env_remove("NO_COLOR").envs(variables.iter().copied()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let plain = lint(&[], &[]);
    assert!(!plain.contains('\u{1b}'), "{plain:?}");
    let painted = lint(&["--color", "always"], &[]);
    assert!(painted.contains("\u{1b}[33mwarning\u{1b}[0m   SCP0035"), "{painted:?}");
    assert_eq!(painted.replace("\u{1b}[33m", "").replace("\u{1b}[0m", ""), plain);
    assert_eq!(lint(&["--color", "always"], &[("NO_COLOR", "1")]), painted, "a flag is above a variable");
    assert_eq!(lint(&["--color", "never"], &[("CLICOLOR_FORCE", "1")]), plain);
    assert_eq!(lint(&["--color", "auto"], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]), plain);
    assert!(!lint(&["--color", "always", "-o", "json"], &[]).contains('\u{1b}'));
}

#[test]
fn each_page_of_the_manual_refers_to_pages_that_exist() {
    let folder = Folder::new();
    assert_eq!(folder.scpol(&["man", "--folder", "man/1"], "").code, 0);
    let pages =
        fs::read_dir(folder.path("man/1")).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap());
    let pages: BTreeSet<_> = pages.collect();
    assert!(pages.contains("scpol.1") && pages.contains("scpol-uninject.1"), "{pages:?}");
    let mut named = BTreeSet::new();
    for page in &pages {
        let text = fs::read_to_string(folder.path("man/1").join(page)).unwrap().replace('\\', "");
        assert!(text.contains(&format!(".TH {} 1 ", page.trim_end_matches(".1"))), "{page}: {text}");
        let command = page.trim_start_matches("scpol").trim_start_matches('-').trim_end_matches(".1");
        let arguments = if command == "1" || command.is_empty() { vec!["man"] } else { vec!["man", command] };
        assert_eq!(folder.scpol(&arguments, "").out.replace('\\', ""), text, "{page}");
        named.extend(
            text.split("(1)")
                .filter_map(|before| before.rsplit(['\n', ' ']).next())
                .filter(|word| word.starts_with("scpol"))
                .map(|word| format!("{word}.1")),
        );
    }
    assert!(named.len() > 10 && named.is_subset(&pages), "{named:?} of {pages:?}");
    let unknown = folder.scpol(&["man", "injekt"], "");
    assert!(unknown.code == 2 && unknown.err.contains("there is no command `injekt`"), "{unknown:?}");
}

#[test]
fn kubectl_gets_completions_in_the_format_of_cobra() {
    let folder = Folder::new().with("policies/envoy.yaml", POLICY);
    let name = folder.path("kubectl_complete-scpol");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_scpol"), &name).unwrap();
    let complete = |words: &[&str]| {
        let output = Command::new(&name).args(words).current_dir(&folder.0).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(
        complete(&["unins"]),
        "uninstall\tRemove the operator and all its registrations from the cluster, in a safe order\n:4\n"
    );
    let all = complete(&[""]);
    assert!(all.starts_with("run\tRun the operator\n") && all.ends_with("\n:4\n"), "{all}");
    assert!(complete(&["status", "--no-h"]).starts_with("--no-headers\tPrint only"));
    assert_eq!(
        complete(&["lint", "-o", "js"]),
        "json\tFor machines\njsonpath=\tParts of the JSON, by a template of kubectl such as '{.items[*].name}'\n:6\n"
    );
    assert_eq!(complete(&["lint", "-f", "pol"]), "policies/\n:6\n");
    assert_eq!(complete(&["lint", "-f", "policies/e"]), "policies/envoy.yaml\n:4\n");
    assert_eq!(complete(&["nothing", "x"]), ":4\n");
}

/// The examples in `scpol WORDS --help`.
fn examples_of(folder: &Folder, words: &[&str]) -> Vec<String> {
    let help = folder.scpol(&[words, &["--help"]].concat(), "").out;
    let examples = help.split("Examples:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap_or_default();
    let commands = examples.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    commands.map(str::to_owned).collect()
}

/// The commands that need no cluster.
const OFFLINE: [&str; 11] =
    ["crd", "inject", "uninject", "explain", "lint", "convert", "diff", "parameters", "test", "completions", "man"];

#[test]
fn the_examples_of_every_help_without_a_cluster_run() {
    let folder = Folder::new();
    let to = folder.0.path().to_str().unwrap();
    assert!(Command::new("cp").args(["-r", "docs/examples/.", to]).current_dir(root()).status().unwrap().success());
    let binary = Path::new(env!("CARGO_BIN_EXE_scpol")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut tried = 0;
    for command in OFFLINE {
        for example in examples_of(&folder, &[command]) {
            let needs_more = ["kubectl", "deploy/web", "-n shop", "~/", "man -l", "-A", "parameters envoy"];
            if needs_more.iter().any(|word| example.contains(word)) {
                continue;
            }
            let mut bash = Command::new("bash");
            bash.args(["-c", &example]).current_dir(&folder.0).env("PATH", &path);
            let output = bash.output().unwrap();
            let err = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code().is_some_and(|code| code <= 1), "{example}: {err}");
            assert!(!err.contains("error:"), "{example}: {err}");
            tried += 1;
        }
    }
    assert!(tried >= 19, "{tried} examples");
}

#[test]
fn flags_take_one_value_and_the_words_behind_them_are_files() {
    let folder = with_policy().with("web.yaml", WEB).with("more.yaml", POLICY.replace("name: envoy}", "name: more}"));
    for arguments in [
        &["inject", "web.yaml", "-p", "policy.yaml"][..],
        &["inject", "-p", "policy.yaml", "web.yaml"],
        &["-n", "shop", "inject", "-p", "policy.yaml", "web.yaml"],
        &["inject", "-f", "web.yaml", "-p", "policy.yaml"],
    ] {
        let ended = folder.scpol(arguments, "");
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{arguments:?}");
        assert_eq!(containers(&documents(&ended.out)[0]), ["web", "envoy"]);
    }
    let told = folder.scpol(&["explain", "-p", "policy.yaml", "web.yaml"], "");
    assert!(told.code == 0 && told.out.starts_with("Deployment shop-eu/web (web.yaml:2)"), "{told:?}");
    let told = folder.scpol(&["lint", "policy.yaml", "more.yaml"], "");
    assert!(told.out.starts_with("2 policies in 2 files"), "{told:?}");
    let told = folder.scpol(&["lint", "-f", "policy.yaml,more.yaml"], "");
    assert!(told.out.starts_with("2 policies in 2 files"), "{told:?}");
    for (arguments, says) in [
        (&["inject", "web.yaml", "-p", "policy.yaml", "more.yaml"][..], "repeat the flag"),
        (&["explain", "-f", "web.yaml", "-p", "policy.yaml", "more.yaml"], "repeat the flag"),
        (&["lint", "policy.yaml", "--manifests", "web.yaml", "web.yaml"], "repeat the flag: `--manifests FILE"),
        (&["uninject", "-", "-p", "-"], "standard input can be read only once"),
        (&["inject", "web.yml", "-p", "policy.yaml"], "did you mean `web.yaml`?"),
        (&["inject", "wep.yaml", "-p", "policy.yaml"], "did you mean `web.yaml`?"),
        (&["explain", "deploy/web", "web.yaml", "-p", "policy.yaml"], "give one of both"),
        (&["explain", "web.yaml", "-A", "-p", "policy.yaml"], "-A selects workloads of the cluster"),
        (&["diff", "--old", "policy.yaml", "--new", "policy.yaml", "web.yaml"], "`-f web.yaml`"),
        (&["get"], "kubectl get scpol"),
        (&["undo"], "scpol rollout"),
        (&["lint", "--manifest", "x", "policy.yaml"], "'--manifests'"),
    ] {
        let ended = folder.scpol(arguments, "");
        assert!(ended.code == 2 && ended.err.contains(says), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn uninject_takes_the_policy_by_its_name_its_type_and_name_or_its_file() {
    let folder = with_policy().with("web.yaml", WEB);
    let injected = folder.scpol(&["inject", "web.yaml", "-p", "policy.yaml"], "").out;
    for policy in ["envoy", "scpol/envoy", "sidecarpolicy.scpol.dev/envoy", "policy.yaml", "./policy.yaml"] {
        let ended = folder.scpol(&["uninject", "-f", "-", "-p", policy], &injected);
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{policy}");
        assert_eq!(documents(&ended.out), documents(WEB));
    }
    for (policy, says) in [("deploy/envoy", "is no SidecarPolicy"), ("web.yaml", "no SidecarPolicy found in web.yaml")]
    {
        let ended = folder.scpol(&["uninject", "-f", "-", "-p", policy], &injected);
        assert!(ended.code == 2 && ended.err.contains(says), "{ended:?}");
    }
}

#[test]
fn nothing_that_is_no_workload_passes_in_silence() {
    let folder = with_policy().with("empty.yaml", "").with("comment.yaml", "# nothing\n");
    for (arguments, stdin) in
        [(&["-f", "empty.yaml"][..], ""), (&["-f", "comment.yaml"], ""), (&["-f", "-"], ""), (&["-f", "-"], "---\n")]
    {
        for command in [&["inject", "-p", "policy.yaml"][..], &["uninject"]] {
            let ended = folder.scpol(&[command, arguments].concat(), stdin);
            assert!(
                ended.code == 2 && ended.err.contains("no manifest found in"),
                "{command:?} {arguments:?}: {ended:?}"
            );
        }
    }
    let folder = folder.with("web.yaml", WEB);
    for arguments in [
        &["inject", "web.yaml", "empty.yaml", "-p", "policy.yaml"][..],
        &["inject", "web.yaml", "-p", "policy.yaml", "-p", "empty.yaml"],
        &["explain", "web.yaml", "empty.yaml", "-p", "policy.yaml"],
        &["lint", "policy.yaml", "empty.yaml"],
        &["lint", "policy.yaml", "--manifests", "web.yaml", "--manifests", "empty.yaml"],
    ] {
        let ended = folder.scpol(arguments, "");
        assert!(ended.code == 0 && ended.err.contains("warning: empty.yaml: there is no object in it"), "{ended:?}");
    }
    let list = folder.inject("apiVersion: v1\nkind: List\nitems: []\n");
    assert_eq!((list.code, list.err.as_str()), (0, ""), "an empty list is what `kubectl get` prints");
    for (wrong, says) in [
        ("apiVersion: v1\nkind: pod\nmetadata: {name: a}\n", "did you mean `kind: Pod` of `apiVersion: v1`?"),
        (
            "apiVersion: v1\nkind: Deployment\nmetadata: {name: a}\n",
            "did you mean `kind: Deployment` of `apiVersion: apps/v1`?",
        ),
    ] {
        let ended = folder.inject(wrong);
        assert_eq!((ended.code, ended.out.as_str()), (0, wrong));
        assert!(ended.err.contains("warning: standard input:2: ") && ended.err.contains(says), "{ended:?}");
    }
}

#[test]
fn every_flag_with_a_version_or_a_namespace_judges_it() {
    let folder = with_policy().with("web.yaml", WEB);
    let commands: [&[&str]; 5] = [
        &["inject", "web.yaml", "-p", "policy.yaml"],
        &["explain", "web.yaml", "-p", "policy.yaml"],
        &["lint", "policy.yaml"],
        &["diff", "--old", "policy.yaml", "--new", "policy.yaml", "-f", "web.yaml"],
        &["convert", "web.yaml"],
    ];
    let cases = [
        (&["-n", "Shop_EU"][..], 5, "no Namespace can have this name"),
        (&["-n", "ns/Shop"], 5, "no Namespace can have this name"),
        (&["--operator-namespace", "a.b"], 5, "no Namespace can have this name"),
        (&["--protected-namespaces", "a,B"], 5, "no Namespace can have this name"),
        (&["--privileged-namespaces", "*"], 5, "no Namespace can have this name"),
        (&["--initializer-name", "Sidecar"], 5, "no initializer can have this name"),
        (&["--kube-version", "1.5"], 5, "expected 1.12 or a later 1.x"),
        (&["--kube-version", "2.0"], 5, "expected 1.12 or a later 1.x"),
        (&["--ignore", "SCP9999"], 3, "there is no such code"),
    ];
    for (flag, count, says) in cases {
        for command in &commands[..count] {
            let ended = folder.scpol(&[command, flag].concat(), "");
            assert!(ended.code == 2 && ended.err.contains(says), "{command:?} {flag:?}: {ended:?}");
        }
    }
    for commands in [&["status"][..], &["drain"], &["rollout", "plan", "envoy"]] {
        let ended = folder.scpol(&[commands, &["-n", "Shop_EU"]].concat(), "");
        assert!(ended.code == 2 && ended.err.contains("no Namespace can have this name"), "{ended:?}");
    }
    let named = folder.scpol(
        &["inject", "-f", "-", "-p", "policy.yaml", "-n", "namespace/shop-eu"],
        &WEB.replace(", namespace: shop-eu", ""),
    );
    assert_eq!(containers(&documents(&named.out)[0]), ["web", "envoy"]);
}

#[test]
fn notes_are_ignored_by_a_flag_and_by_a_comment_and_errors_are_not() {
    let hook = WEB.replace("name: web, ", "name: web, annotations: {helm.sh/hook: pre-install}, ");
    let folder = with_policy().with("hook.yaml", &hook);
    let commented = |text: &str| format!("# scpol: ignore SCP0063, SCP0035\n{text}");
    folder.with_file("commented.yaml", &commented(&hook)).with_file("quiet.yaml", &commented(POLICY));
    let has = |arguments: &[&str], code: &str| {
        let ended = folder.scpol(arguments, "");
        // What `inject` prints has the comments.
        ended.err.contains(code) || (arguments[0] != "inject" && ended.out.contains(code))
    };
    for (arguments, code, expected) in [
        (&["inject", "hook.yaml", "-p", "policy.yaml"][..], "SCP0063", true),
        (&["inject", "hook.yaml", "-p", "policy.yaml", "--ignore", "SCP0063"], "SCP0063", false),
        (&["inject", "commented.yaml", "-p", "policy.yaml"], "SCP0063", false),
        (&["explain", "hook.yaml", "-p", "policy.yaml"], "SCP0063", true),
        (&["explain", "hook.yaml", "-p", "policy.yaml", "--ignore", "InHook"], "SCP0063", false),
        (&["explain", "commented.yaml", "-p", "policy.yaml"], "SCP0063", false),
        (&["lint", "policy.yaml"], "SCP0035", true),
        (&["lint", "policy.yaml", "--ignore", "SCP0035"], "SCP0035", false),
        (&["lint", "quiet.yaml"], "SCP0035", false),
        (&["lint", "policy.yaml", "--manifests", "hook.yaml"], "SCP0063", true),
        (&["lint", "policy.yaml", "--manifests", "commented.yaml"], "SCP0063", false),
        (&["lint", "policy.yaml", "--manifests", "hook.yaml", "--ignore", "63"], "SCP0063", false),
    ] {
        assert_eq!(has(arguments, code), expected, "{arguments:?}");
    }
    // What keeps a policy out of a workload is told, whoever wants it ignored.
    let conflict = WEB.replace("{name: web, image", "{name: envoy, image");
    folder.with_file("conflict.yaml", &format!("# scpol: ignore SCP0200\n{conflict}"));
    assert!(
        has(&["lint", "quiet.yaml", "--manifests", "conflict.yaml", "--ignore", "SCP0200"], "SCP0200"),
        "{conflict}"
    );
    let wrong = POLICY.replace("namespaces:", "namespace:");
    folder.with_file("wrong.yaml", &format!("# scpol: ignore SCP0012\n{wrong}"));
    let ended = folder.scpol(&["lint", "wrong.yaml", "--ignore", "SCP0012"], "");
    assert!(ended.code == 1 && ended.out.contains("SCP0012"), "{ended:?}");
    folder.with_file("unknown.yaml", &format!("# scpol: ignore SCP9999\n{POLICY}"));
    let ended = folder.scpol(&["lint", "unknown.yaml"], "");
    assert!(ended.err.contains("warning: unknown.yaml:1: `SCP9999`: there is no such code"), "{ended:?}");
}

#[test]
fn policies_of_one_name_in_several_folders_may_be_overlays() {
    let folder = Folder::new().with("base/p.yaml", POLICY).with("eu/p.yaml", POLICY);
    let ended = folder.scpol(&["lint", "-R", "."], "");
    assert!(ended.code == 0 && ended.out.contains("warning   SCP0030"), "{ended:?}");
    folder.with_file("eu/q.yaml", POLICY);
    let ended = folder.scpol(&["lint", "-R", "."], "");
    assert!(ended.code == 1 && ended.out.contains("error     SCP0030"), "{ended:?}");
}

#[test]
fn a_fault_of_a_policy_has_its_field_a_colon_and_the_line_of_the_field() {
    let folder = Folder::new()
        .with("web.yaml", WEB)
        .with("policy.yaml", POLICY.replace("  namespaces:", "  target: x\n  namespaces:"));
    let ended = folder.scpol(&["inject", "web.yaml", "-p", "policy.yaml"], "");
    let says = "error: policy.yaml:5: SidecarPolicy `envoy`: SCP0012 UnknownField: spec.target: there is no such field";
    assert!(ended.code == 2 && ended.err.starts_with(says), "{ended:?}");
}

#[test]
fn explain_names_the_contact_of_a_policy_bounded_and_escaped() {
    let contact = |value: &str| {
        POLICY.replace(
            "metadata: {name: envoy}",
            &format!("metadata: {{name: envoy, annotations: {{scpol.dev/contact: {value}}}}}"),
        )
    };
    let folder = Folder::new().with("web.yaml", WEB).with("policy.yaml", contact("team-mesh@example.com"));
    let ended = folder.scpol(&["explain", "web.yaml", "-p", "policy.yaml"], "");
    assert!(ended.out.ends_with("\nenvoy: ask team-mesh@example.com\n"), "{ended:?}");
    let ended = folder
        .scpol(&["explain", "web.yaml", "-p", "policy.yaml", "-o", "jsonpath={.items[0].policies[0].contact}"], "");
    assert_eq!(ended.out, "team-mesh@example.com");
    folder.with_file("policy.yaml", &contact(&format!("\"\\u001b[2J{}\"", "x".repeat(500))));
    let ended = folder.scpol(&["explain", "web.yaml", "-p", "policy.yaml"], "");
    let line = ended.out.lines().last().unwrap();
    assert!(line.starts_with("envoy: ask \\u{1b}[2Jxxx") && line.len() < 250, "{line:?}");
}

#[test]
fn test_searches_a_folder_with_a_policy_alone_and_reports_a_case_that_lacks_a_file() {
    let folder = Folder::new()
        .with("base/policy.yaml", POLICY)
        .with("base/cases/a/policy.yaml", POLICY)
        .with("base/cases/a/workload.yaml", WEB);
    let ended = folder.scpol(&["test", "base"], "");
    assert!(ended.code == 1 && ended.out.contains("1 case: 0 ok, 1 failed"), "{ended:?}");
    let folder = folder.with("half/policy.yaml", POLICY).with("half/expected.txt", "x");
    let ended = folder.scpol(&["test", "half"], "");
    assert!(ended.code == 2 && ended.out.contains("workload.yaml"), "{ended:?}");
    let folder = folder.with("none/policy.yaml", POLICY);
    assert!(folder.scpol(&["test", "none"], "").err.contains("no case found"));
}

#[test]
fn version_names_the_program_and_needs_no_server() {
    let unknown = "note: the version of the server is unknown: ";
    for (arguments, note) in [
        (&["version"][..], unknown),
        (&["version", "--client"], ""),
        (&["version", "-s", "http://127.0.0.1:1"], unknown),
        (&["version", "--kubeconfig", "nowhere"], unknown),
    ] {
        let ended = Folder::new().scpol(arguments, "");
        let begin = concat!("scpol ", env!("CARGO_PKG_VERSION"));
        assert!(ended.code == 0 && ended.out.starts_with(begin), "{ended:?}");
        assert!(ended.err.starts_with(note) && ended.err.is_empty() == note.is_empty(), "{ended:?}");
        assert_eq!(ended.out.lines().count(), 1, "{ended:?}");
    }
}

#[test]
fn an_error_without_an_answer_names_the_address_and_where_it_comes_from() {
    let ended = Folder::new().scpol(&["status", "-s", "http://127.0.0.1:1"], "");
    let says = "http://127.0.0.1:1 (--server)";
    assert!(
        ended.code == 2 && (ended.err.contains(says) || ended.err.contains("http://127.0.0.1:1 (context")),
        "{ended:?}"
    );
    let file = "apiVersion: v1\nkind: Config\ncurrent-context: dev\ncontexts: [{name: dev, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n";
    let folder = Folder::new().with("config", file);
    let says = "cannot be reached: http://127.0.0.1:1 (context `dev` of kubeconfig config): ";
    for arguments in
        [&["status"][..], &["check"], &["explain", "deploy/web"], &["drain", "--list"], &["rollout", "undo", "a"]]
    {
        let ended = folder.scpol(&[arguments, &["--kubeconfig", "config"]].concat(), "");
        let text = ended.err.clone() + &ended.out;
        assert!(ended.code == 2 && text.contains(says), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn an_unknown_kind_is_compared_with_the_known_ones() {
    let folder = with_policy();
    let server = ["-s", "http://127.0.0.1:1", "-p", "policy.yaml"];
    let ended = folder.scpol(&[&["explain", "rs/web"][..], &server].concat(), "");
    assert!(ended.err.contains("decided at the Deployment"), "{ended:?}");
}

#[test]
fn words_of_a_manual_page_may_be_separate_and_pages_have_the_sections_of_commands() {
    let folder = Folder::new();
    let page = folder.scpol(&["man", "rollout", "status"], "").out;
    assert_eq!(page, folder.scpol(&["man", "rollout-status"], "").out);
    for section in [".SH EXAMPLES\n", ".SH \"EXIT STATUS\"\n", ".SH ENVIRONMENT\n"] {
        assert!(page.contains(section), "{section}: {page}");
    }
    assert!(!page.contains(".SH EXTRA"), "{page}");
    assert_eq!(folder.scpol(&["completion", "bash"], "").out, folder.scpol(&["completions", "bash"], "").out);
}
