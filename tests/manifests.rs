//! Tests of the files for users: install files, samples and pages must match the code.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::tools::{root, success, tool};
use controlplane::Version;
use regex::Regex;
use serde_json::{Value, json};
use sidecar_policy::api::code::Code;
use sidecar_policy::api::pod_security::Standard;
use sidecar_policy::decision::Decision;
use sidecar_policy::inject;
use sidecar_policy::policy::{Policies, Policy, Site, Verdict, decide};
use sidecar_policy::workload::{Kind, Workload};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const DEFAULT: &str = "config/install.yaml";
const OLDER: &str = "config/install-older.yaml";
const LEGACY: &str = "config/install-legacy.yaml";
const AUTHOR: &str = "config/author-check.yaml";
const RECORD: &str = "config/author-record.yaml";

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All documents of a YAML file.
fn documents(path: impl AsRef<Path>) -> Vec<Value> {
    let text = read(&path);
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

/// All files in `folder` and its subfolders whose name has this ending.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn texts(value: &Value) -> BTreeSet<&str> {
    items(value).filter_map(Value::as_str).collect()
}

fn site() -> Site {
    Site::new("scpol-system", [], [])
}

#[test]
fn every_manifest_is_an_object_or_a_patch() {
    let mut seen = 0;
    let is_manifest = |path: &PathBuf| !path.starts_with(root().join("config/grafana"));
    for path in ["config", "samples", "crds"].iter().flat_map(|folder| files(folder, ".yaml")).filter(is_manifest) {
        for document in documents(&path) {
            let is_object = document["apiVersion"].is_string() && document["kind"].is_string();
            let is_patch =
                document.is_array() && items(&document).all(|step| step["op"].is_string() && step["path"].is_string());
            assert!(is_object || is_patch, "{}: {document}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen} documents");
}

/// A tag of an action can be moved to other code, a commit cannot.
#[test]
fn workflows_use_actions_by_commit_and_may_only_read_unless_they_publish() {
    let action = Regex::new(r"uses: (\S+)(.*)").unwrap();
    let pinned = Regex::new(r"^[\w.-]+/[\w./-]+@[0-9a-f]{40}$").unwrap();
    let version = Regex::new(r"^ # v\d+\.\d+\.\d+$").unwrap();
    let workflows = files(".github/workflows", ".yaml");
    assert!(workflows.len() >= 3, "{workflows:?}");
    for path in workflows {
        let text = read(&path);
        assert!(action.captures_iter(&text).count() > 0, "{}", path.display());
        for used in action.captures_iter(&text) {
            assert!(pinned.is_match(&used[1]) && version.is_match(&used[2]), "{}: {}", path.display(), &used[0]);
        }
        let is_release = path.ends_with("release.yaml");
        let permissions = &documents(&path)[0]["permissions"];
        assert!(is_release || *permissions == json!({ "contents": "read" }), "{}: {permissions}", path.display());
    }
}

// The install files.

#[test]
fn the_install_files_are_what_kustomize_makes_of_config() {
    for (folder, file) in [
        ("config/default", DEFAULT),
        ("config/older", OLDER),
        ("config/legacy", LEGACY),
        ("config/author", AUTHOR),
        ("config/author-record", RECORD),
    ] {
        let made = success(Command::new(tool("kubectl")).args(["kustomize", folder]).current_dir(root())).stdout;
        assert!(read(file).into_bytes() == made, "{file} is stale: run `make install-files`");
    }
}

#[test]
fn every_folder_of_config_can_be_applied_by_itself() {
    for path in files("config", "kustomization.yaml") {
        success(Command::new(tool("kubectl")).arg("kustomize").arg(path.parent().unwrap()));
    }
}

#[test]
fn both_files_install_the_same_but_for_what_old_servers_need() {
    let names = |file| {
        let documents = documents(file);
        documents
            .iter()
            .map(|document| format!("{} {}", document["kind"], document["metadata"]["name"]))
            .collect::<BTreeSet<_>>()
    };
    let (default, older, legacy) = (names(DEFAULT), names(OLDER), names(LEGACY));
    assert!(older.is_subset(&default));
    let fence: Vec<_> = default.difference(&older).collect();
    assert!(fence.len() == 4 && fence.iter().all(|more| more.contains("operator.scpol.dev")), "{fence:?}");
    let is_newer = |more: &String| ["scpol-admission-policy", "scpol-nodes"].iter().any(|name| more.contains(name));
    assert!(older.difference(&legacy).all(is_newer), "{older:?}");
    assert!(legacy.difference(&default).all(|more| more.contains("scpol-initializer")), "{legacy:?}");
    for (file, crd, budget) in
        [(DEFAULT, "v1", "policy/v1"), (OLDER, "v1", "policy/v1"), (LEGACY, "v1beta1", "policy/v1beta1")]
    {
        let documents = documents(file);
        assert_eq!(
            of_kind(&documents, "CustomResourceDefinition")[0]["apiVersion"],
            format!("apiextensions.k8s.io/{crd}")
        );
        assert_eq!(of_kind(&documents, "PodDisruptionBudget")[0]["apiVersion"], budget);
        assert_eq!(of_kind(&documents, "PodDisruptionBudget")[0]["spec"]["minAvailable"], 1);
    }
}

#[test]
fn only_our_deployment_for_old_servers_passes_initializers_by() {
    assert!(!read(DEFAULT).contains("\n  initializers:"));
    for document in documents(LEGACY) {
        let initializers = document["metadata"].get("initializers");
        let expected = (document["kind"] == "Deployment").then(|| json!({ "pending": [] }));
        assert_eq!(initializers, expected.as_ref(), "{}", document["kind"]);
    }
}

#[test]
fn nothing_that_we_install_looks_like_something_that_we_generate() {
    // `kubectl delete initializerconfigurations -l app.kubernetes.io/managed-by=scpol` must always be safe.
    for file in [DEFAULT, OLDER, LEGACY] {
        for document in documents(file) {
            assert_eq!(
                document["metadata"]["labels"].get("app.kubernetes.io/managed-by"),
                None,
                "{file}: {}",
                document["kind"]
            );
        }
    }
}

#[test]
fn the_deployment_is_what_the_documentation_promises() {
    for file in [DEFAULT, OLDER, LEGACY] {
        let documents = documents(file);
        let deployment = of_kind(&documents, "Deployment")[0];
        assert_eq!(
            (&deployment["apiVersion"], &deployment["metadata"]["namespace"]),
            (&json!("apps/v1"), &json!("scpol-system"))
        );
        let spec = &deployment["spec"];
        assert_eq!(spec["replicas"], 2);
        assert_eq!(
            spec["strategy"],
            json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } })
        );
        let pod = &spec["template"]["spec"];
        notices_a_frozen_process(pod);
        assert_eq!(pod["enableServiceLinks"], false);
        assert_eq!(pod["serviceAccountName"], "scpol");
        assert_eq!(pod.get("priorityClassName"), None, "the system classes are for kube-system alone below 1.17");
        assert!(pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"].is_array());
        is_scraped(&spec["template"]["metadata"]["annotations"]);
        is_restricted(&spec["template"], file);
        is_our_container(&pod["containers"][0]);
    }
}

fn is_scraped(annotations: &Value) {
    for (key, value) in [("scrape", "true"), ("port", "8080"), ("path", "/metrics")] {
        assert_eq!(annotations[format!("prometheus.io/{key}")], value);
    }
}

/// Checks the pod for Pod Security "restricted", and a little more.
fn is_restricted(template: &Value, file: &str) {
    let pod = &template["spec"]["securityContext"];
    assert_eq!((&pod["runAsNonRoot"], &pod["runAsUser"]), (&json!(true), &json!(65532)));
    let field = pod.get("seccompProfile");
    let annotation = template["metadata"]["annotations"].get("seccomp.security.alpha.kubernetes.io/pod");
    match file {
        LEGACY => assert_eq!((field, annotation), (None, Some(&json!("runtime/default")))),
        _ => assert_eq!((field, annotation), (Some(&json!({ "type": "RuntimeDefault" })), None)),
    }
    let container = &template["spec"]["containers"][0]["securityContext"];
    assert_eq!(container["allowPrivilegeEscalation"], false);
    assert_eq!(container["readOnlyRootFilesystem"], true);
    assert_eq!(container["capabilities"], json!({ "drop": ["ALL"] }));
}

/// Checks the times after which a frozen process is out of the endpoints, and is gone. It uses its whole grace period.
fn notices_a_frozen_process(pod: &Value) {
    let noticed = |probe: &str| {
        let probe = &pod["containers"][0][probe];
        let number = |field: &str| probe[field].as_i64().expect("a number");
        number("periodSeconds") * number("failureThreshold") + number("timeoutSeconds")
    };
    let grace = pod["terminationGracePeriodSeconds"].as_i64().expect("a number");
    assert!(noticed("readinessProbe") <= 6);
    assert!(noticed("livenessProbe") + grace <= 35);
    assert!(noticed("livenessProbe") >= 15, "a busy process is not killed");
    assert!(grace > 10, "--shutdown-grace");
    let readiness = &pod["containers"][0]["readinessProbe"];
    assert_eq!(readiness["timeoutSeconds"], 2, "`READINESS_PROBE` in src/timing.rs");
}

fn is_our_container(container: &Value) {
    assert_eq!(container["image"], format!("sidecar-policy:{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(container["args"], json!(["run"]));
    assert_eq!(container["livenessProbe"]["httpGet"], json!({ "path": "/livez", "port": "http" }));
    assert_eq!(container["readinessProbe"]["httpGet"], json!({ "path": "/readyz", "port": "http" }));
    let ports = json!([{ "name": "http", "containerPort": 8080 }, { "name": "webhook", "containerPort": 8443 }]);
    assert_eq!(container["ports"], ports);
    assert_eq!(
        container["resources"],
        json!({ "requests": { "cpu": "50m", "memory": "32Mi" }, "limits": { "memory": "128Mi" } })
    );
    let environment: Vec<_> =
        items(&container["env"]).map(|entry| (&entry["name"], &entry["valueFrom"]["fieldRef"]["fieldPath"])).collect();
    let (name, namespace) = (json!("SCPOL_POD_NAME"), json!("SCPOL_OPERATOR_NAMESPACE"));
    assert_eq!(environment, [(&name, &json!("metadata.name")), (&namespace, &json!("metadata.namespace"))]);
}

// Rights.

/// The rights of the operator's ServiceAccount after `file` is applied: `scope group/resource verb`.
fn rights(file: &str) -> BTreeSet<String> {
    let documents = documents(file);
    let mut rights = BTreeSet::new();
    for (binding, role, scope) in [("ClusterRoleBinding", "ClusterRole", "cluster"), ("RoleBinding", "Role", "own")] {
        for bound in of_kind(&documents, binding) {
            assert_eq!(
                bound["subjects"],
                json!([{ "kind": "ServiceAccount", "name": "scpol", "namespace": "scpol-system" }])
            );
            assert_eq!(bound["roleRef"]["kind"], role);
            let roles = of_kind(&documents, role);
            let role = roles.iter().find(|role| role["metadata"]["name"] == bound["roleRef"]["name"]).unwrap();
            rights.extend(items(&role["rules"]).flat_map(|rule| granted(rule, scope)));
        }
    }
    rights
}

fn granted(rule: &Value, scope: &str) -> Vec<String> {
    let only =
        rule["resourceNames"].as_array().map(|names| format!(" {}", Value::from(names.clone()))).unwrap_or_default();
    let mut granted = Vec::new();
    for group in texts(&rule["apiGroups"]) {
        for resource in texts(&rule["resources"]) {
            let verbs: Vec<_> = texts(&rule["verbs"]).into_iter().collect();
            granted.push(format!("{scope} {group}/{resource}{only}: {}", verbs.join(",")));
        }
    }
    granted
}

/// Any extension of the rights must be added here on purpose.
const RIGHTS: [&str; 25] = [
    "cluster /endpoints [\"kubernetes\"]: get",
    "cluster /events: create,patch",
    "cluster /namespaces: get,list,watch",
    "cluster /pods: list,watch",
    "cluster apps/daemonsets: list,watch",
    "cluster apps/deployments: list,watch",
    "cluster apps/statefulsets: list,watch",
    "cluster batch/cronjobs: list,watch",
    "cluster batch/jobs: list,watch",
    "cluster scpol.dev/sidecarpolicies/status: patch",
    "cluster scpol.dev/sidecarpolicies: list,watch",
    "own /pods: create",
    "own apps/daemonsets: create",
    "own apps/deployments: create",
    "own apps/statefulsets: create",
    "own batch/cronjobs: create",
    "own batch/jobs: create",
    "own coordination.k8s.io/leases [\"scpol\"]: get,update",
    "own coordination.k8s.io/leases: create",
    // The webhook engine.
    "cluster admissionregistration.k8s.io/mutatingwebhookconfigurations: create,get,list,watch",
    "cluster admissionregistration.k8s.io/mutatingwebhookconfigurations [\"author.scpol.dev\",\"scpol-cronjobs.batch\",\"scpol-daemonsets.apps\",\"scpol-deployments.apps\",\"scpol-jobs.batch\",\"scpol-pods\",\"scpol-statefulsets.apps\"]: delete,update",
    "cluster admissionregistration.k8s.io/validatingwebhookconfigurations: create,get,list,watch",
    "cluster admissionregistration.k8s.io/validatingwebhookconfigurations [\"author.scpol.dev\",\"scpol-cronjobs.batch\",\"scpol-daemonsets.apps\",\"scpol-deployments.apps\",\"scpol-jobs.batch\",\"scpol-pods\",\"scpol-statefulsets.apps\"]: delete,update",
    "own /secrets [\"scpol-webhook\"]: get,update",
    "own /secrets: create",
];
const RIGHTS_OF_THE_INITIALIZER_ENGINE: [&str; 8] = [
    "cluster /pods: get,initialize,patch",
    "cluster admissionregistration.k8s.io/initializerconfigurations: create,delete,get,list,update,watch",
    "cluster apps/daemonsets: get,initialize,patch",
    "cluster apps/deployments: get,initialize,patch",
    "cluster apps/statefulsets: get,initialize,patch",
    "cluster batch/cronjobs: get,initialize,patch",
    "own extensions/daemonsets: create",
    "own extensions/deployments: create",
];
/// Native sidecars, from 1.29.
const RIGHTS_ON_NODES: [&str; 1] = ["cluster /nodes: list"];
const RIGHTS_OF_ADMISSION_POLICIES: [&str; 8] = [
    "cluster admissionregistration.k8s.io/mutatingadmissionpolicies: create,get,list,watch",
    "cluster admissionregistration.k8s.io/mutatingadmissionpolicies [\"scpol-cronjobs.batch\",\"scpol-daemonsets.apps\",\"scpol-deployments.apps\",\"scpol-jobs.batch\",\"scpol-pods\",\"scpol-statefulsets.apps\"]: delete,update",
    "cluster admissionregistration.k8s.io/mutatingadmissionpolicybindings: create,get,list,watch",
    "cluster admissionregistration.k8s.io/mutatingadmissionpolicybindings [\"scpol-cronjobs.batch\",\"scpol-daemonsets.apps\",\"scpol-deployments.apps\",\"scpol-jobs.batch\",\"scpol-pods\",\"scpol-statefulsets.apps\"]: delete,update",
    "cluster admissionregistration.k8s.io/validatingadmissionpolicies: create,get,list,watch",
    "cluster admissionregistration.k8s.io/validatingadmissionpolicies [\"scpol-cronjobs.batch\",\"scpol-cronjobs.batch-ignore\",\"scpol-daemonsets.apps\",\"scpol-daemonsets.apps-ignore\",\"scpol-deployments.apps\",\"scpol-deployments.apps-ignore\",\"scpol-jobs.batch\",\"scpol-jobs.batch-ignore\",\"scpol-pods\",\"scpol-pods-ignore\",\"scpol-statefulsets.apps\",\"scpol-statefulsets.apps-ignore\"]: delete,update",
    "cluster admissionregistration.k8s.io/validatingadmissionpolicybindings: create,get,list,watch",
    "cluster admissionregistration.k8s.io/validatingadmissionpolicybindings [\"scpol-cronjobs.batch\",\"scpol-cronjobs.batch-ignore\",\"scpol-daemonsets.apps\",\"scpol-daemonsets.apps-ignore\",\"scpol-deployments.apps\",\"scpol-deployments.apps-ignore\",\"scpol-jobs.batch\",\"scpol-jobs.batch-ignore\",\"scpol-pods\",\"scpol-pods-ignore\",\"scpol-statefulsets.apps\",\"scpol-statefulsets.apps-ignore\"]: delete,update",
];

#[test]
fn the_operator_has_the_rights_that_it_uses_and_no_others() {
    let expected = |rights: &[&[&str]]| rights.concat().into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(rights(DEFAULT), expected(&[&RIGHTS, &RIGHTS_OF_ADMISSION_POLICIES, &RIGHTS_ON_NODES]));
    assert_eq!(rights(OLDER), rights(DEFAULT));
    assert_eq!(rights(LEGACY), expected(&[&RIGHTS, &RIGHTS_OF_THE_INITIALIZER_ENGINE]));
}

/// The verbs on each resource that rollouts need. No install file has them.
const RIGHTS_OF_ROLLOUTS: [&str; 12] = [
    "cluster /pods/eviction: create",
    "cluster /pods/resize: patch",
    "cluster /pods: get,patch",
    "cluster /replicationcontrollers: list,watch",
    "cluster apps/daemonsets: get,patch",
    "cluster apps/daemonsets: list,watch",
    "cluster apps/deployments: get,patch",
    "cluster apps/replicasets: list,watch",
    "cluster apps/statefulsets: get,patch",
    "cluster apps/statefulsets: list,watch",
    "cluster batch/cronjobs: get,patch",
    "own apps/controllerrevisions: create,delete,list,patch,watch",
];

#[test]
fn the_rights_for_rollouts_are_in_their_folder_and_on_the_page_and_nowhere_else() {
    let mut granted = rights("config/rbac/rollout/cluster_role.yaml");
    granted.extend(rights("config/rbac/rollout/role.yaml"));
    assert_eq!(granted, RIGHTS_OF_ROLLOUTS.iter().map(|&right| right.to_owned()).collect());
    // `resource verbs`, of the page: the group is in parentheses.
    let page = read("docs/operations.md");
    let (_, below) = page.split_once("\n### Rights for rollouts\n").unwrap();
    let name = Regex::new(r"`([\w/]+)`(?:,| |$)").unwrap();
    let rows = below.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).skip(2);
    let told: BTreeSet<String> = rows
        .flat_map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            let mut verbs: Vec<&str> = cells[2].split(", ").collect();
            verbs.sort_unstable();
            let names: Vec<_> = name.captures_iter(cells[1]).map(|found| found[1].to_owned()).collect();
            names.into_iter().map(move |name| format!("{name}: {}", verbs.join(","))).collect::<Vec<_>>()
        })
        .collect();
    let resource = |right: &&str| right.split_once('/').unwrap().1.to_owned();
    assert_eq!(told, RIGHTS_OF_ROLLOUTS.iter().map(resource).collect());
}

#[test]
fn the_check_of_scrapes_needs_two_questions_and_a_reader_one_path() {
    let file = "config/rbac/metrics-authorization/role.yaml";
    let questions = [
        "cluster authentication.k8s.io/tokenreviews: create",
        "cluster authorization.k8s.io/subjectaccessreviews: create",
    ];
    assert_eq!(rights(file), questions.map(str::to_owned).into());
    let documents = documents(file);
    let reader = of_kind(&documents, "ClusterRole")[1];
    assert_eq!(reader["rules"], json!([{ "nonResourceURLs": ["/metrics"], "verbs": ["get"] }]));
}

/// A source that is missing in a NetworkPolicy is a cluster whose API server cannot reach the webhook.
#[test]
fn the_network_policy_names_the_ports_of_the_container_and_no_source() {
    for file in [DEFAULT, LEGACY] {
        let documents = documents(file);
        let (deployment, policies) = (of_kind(&documents, "Deployment")[0], of_kind(&documents, "NetworkPolicy"));
        let spec = &policies[0]["spec"];
        assert_eq!((policies.len(), &policies[0]["apiVersion"]), (1, &json!("networking.k8s.io/v1")));
        assert_eq!(spec["podSelector"], deployment["spec"]["selector"]);
        assert_eq!(spec["policyTypes"], json!(["Ingress"]));
        let rules: BTreeSet<String> = items(&spec["ingress"]).map(Value::to_string).collect();
        let ports = items(&deployment["spec"]["template"]["spec"]["containers"][0]["ports"]);
        let rule =
            |port: &Value| json!({ "ports": [{ "port": port["containerPort"], "protocol": "TCP" }] }).to_string();
        assert_eq!(rules, ports.map(rule).collect());
    }
}

#[test]
fn no_role_has_a_wildcard() {
    for file in [DEFAULT, OLDER, LEGACY] {
        let documents = documents(file);
        for role in of_kind(&documents, "ClusterRole").into_iter().chain(of_kind(&documents, "Role")) {
            for rule in items(&role["rules"]) {
                let all: BTreeSet<_> =
                    ["apiGroups", "resources", "verbs"].iter().flat_map(|field| texts(&rule[*field])).collect();
                assert!(!all.contains("*"), "{}: {rule}", role["metadata"]["name"]);
            }
        }
    }
}

#[test]
fn reading_policies_aggregates_to_view_and_writing_them_to_nothing() {
    let documents = documents(DEFAULT);
    let roles = of_kind(&documents, "ClusterRole");
    let role = |name: &str| roles.iter().find(|role| role["metadata"]["name"] == name).unwrap();
    let aggregations = |role: &Value| {
        let labels = role["metadata"]["labels"].as_object().unwrap();
        labels.keys().filter(|key| key.contains("aggregate-to")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(aggregations(role("scpol-view")), ["rbac.authorization.k8s.io/aggregate-to-view"]);
    assert_eq!(texts(&role("scpol-view")["rules"][0]["verbs"]), BTreeSet::from(["get", "list", "watch"]));
    assert_eq!(aggregations(role("scpol-edit")), [""; 0]);
    let why = role("scpol-edit")["metadata"]["annotations"]["kubernetes.io/description"].as_str().unwrap();
    assert!(why.contains("runs code in every pod"), "{why}");
}

// Samples.

fn samples() -> Vec<PathBuf> {
    files("samples", ".yaml").into_iter().filter(|path| path.parent().unwrap().ends_with("samples")).collect()
}

fn policies(path: &Path) -> Vec<Policy> {
    let documents = documents(path);
    let policies = of_kind(&documents, "SidecarPolicy").into_iter();
    policies
        .map(|policy| Policy::parse(policy, &site()).unwrap_or_else(|faults| panic!("{}: {faults:?}", path.display())))
        .collect()
}

fn sample(name: &str) -> Policy {
    policies(&root().join("samples").join(name)).remove(0)
}

fn workload(name: &str) -> Workload {
    let body = documents(Path::new("samples/workloads").join(name)).remove(0);
    let (group, _) = body["apiVersion"].as_str().unwrap().split_once('/').unwrap_or_default();
    let resource = format!("{}s", body["kind"].as_str().unwrap().to_lowercase());
    Workload::new(Kind::find(group, &resource).unwrap(), body)
}

#[test]
fn every_sample_is_a_valid_policy_that_says_how_to_apply_it() {
    assert!(samples().len() >= 4);
    for path in samples() {
        assert_eq!(policies(&path).len(), 1, "{}", path.display());
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(
            read(&path).contains(&format!("#   kubectl apply -f samples/{name}")),
            "{name} does not say how to apply it"
        );
    }
    for path in files("samples/workloads", ".yaml") {
        let how = format!("-f samples/workloads/{}`", path.file_name().unwrap().to_str().unwrap());
        assert!(read(&path).contains(&how), "{} does not say how to apply it", path.display());
    }
}

#[test]
fn every_sidecar_has_a_tagged_image_requests_and_limits() {
    for policy in samples().iter().flat_map(|path| policies(path)) {
        for container in &policy.as_written().spec.containers {
            let (_, tag) = container["image"].as_str().unwrap().rsplit_once(':').unwrap();
            assert!(!tag.is_empty() && tag != "latest", "{}: {}", policy.name, container["image"]);
            for side in ["requests", "limits"] {
                for resource in ["cpu", "memory"] {
                    assert!(
                        container["resources"][side][resource].is_string(),
                        "{}: no {side}.{resource}",
                        policy.name
                    );
                }
            }
        }
    }
}

#[test]
fn the_test_certificate_is_mounted_in_the_pods_of_its_namespace_and_nowhere_else() {
    let policies = Policies::new([Arc::new(sample("06-test-certificate.yaml"))]);
    for (namespace, expected) in [("staging", json!("/etc/ssl/test")), ("default", Value::Null)] {
        let mut workload = workload("myapp-pod.yaml");
        workload.body["metadata"]["namespace"] = json!(namespace);
        let patch = Decision::of(&policies, &workload, &site()).plan(&workload);
        json_patch::patch(&mut workload.body, &patch).unwrap();
        let container = &workload.body["spec"]["containers"][0];
        assert_eq!(container["volumeMounts"][0]["mountPath"], expected, "{namespace}");
    }
}

#[test]
fn the_proxy_is_for_pods_that_expose_port_80_or_ask_for_it() {
    let policies = Policies::new([Arc::new(sample("05-port-or-annotation.yaml"))]);
    for (ports, annotations, expected) in [
        (json!([{ "containerPort": 80 }]), Value::Null, 2),
        (json!([{ "containerPort": 81 }]), Value::Null, 1),
        (Value::Null, json!({ "example.com/proxy": "" }), 2),
        (Value::Null, Value::Null, 1),
    ] {
        let mut workload = workload("myapp-pod.yaml");
        workload.body["metadata"]["namespace"] = json!("default");
        workload.body["metadata"]["annotations"] = annotations.clone();
        workload.body["spec"]["containers"][0]["ports"] = ports.clone();
        let patch = Decision::of(&policies, &workload, &site()).plan(&workload);
        json_patch::patch(&mut workload.body, &patch).unwrap();
        let containers = workload.body["spec"]["containers"].as_array().unwrap();
        assert_eq!(containers.len(), expected, "{ports} {annotations}");
    }
}

#[test]
fn every_config_map_that_a_sample_mounts_is_in_it() {
    for path in samples() {
        let documents = documents(&path);
        let shipped: BTreeSet<_> =
            of_kind(&documents, "ConfigMap").iter().map(|map| map["metadata"]["name"].as_str().unwrap()).collect();
        for policy in policies(&path) {
            for name in
                policy.as_written().spec.volumes.iter().filter_map(|volume| volume.get("configMap")?["name"].as_str())
            {
                assert!(shipped.contains(name), "{}: no ConfigMap `{name}`", path.display());
            }
        }
        for text in of_kind(&documents, "ConfigMap").iter().map(|map| map["data"]["envoy.json"].as_str().unwrap()) {
            serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
}

/// The containers of `workload` after its creation in `namespace` under the sample policy.
fn containers(policy: &str, workload_name: &str, namespace: &str) -> Vec<String> {
    let (policy, mut workload) = (sample(policy), workload(workload_name));
    workload.body["metadata"]["namespace"] = json!(namespace);
    if decide(&policy, &workload, &site()) == Verdict::Inject {
        let patch = inject::plan(&workload, &[policy.as_written()], &[policy.as_written()], Standard::NEWEST).unwrap();
        json_patch::patch(&mut workload.body, &patch).unwrap();
    }
    let containers = workload.body.pointer(&format!("{}/spec/containers", workload.pod_pointer())).unwrap();
    items(containers).map(|container| container["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_tutorials_give_what_their_authors_saw() {
    for (policy, workload, namespace, expected) in [
        ("01-sidecar.yaml", "nginx.yaml", "default", "nginx sidecar-nginx"),
        ("01-sidecar.yaml", "nginx.v1beta1.yaml", "default", "nginx sidecar-nginx"),
        ("01-sidecar.yaml", "nginx.yaml", "kube-system", "nginx"),
        ("02-annotation.yaml", "nginx.yaml", "default", "nginx"),
        ("02-annotation.yaml", "nginx.v1beta1.yaml", "default", "nginx"),
        ("02-annotation.yaml", "nginx-with-annotation.yaml", "default", "nginx sidecar-nginx"),
        ("02-annotation.yaml", "nginx-with-annotation.v1beta1.yaml", "default", "nginx sidecar-nginx"),
        ("03-envoy.yaml", "myapp-pod.yaml", "envoy-demo", "myapp-container envoy"),
        ("03-envoy.yaml", "myapp-pod.yaml", "default", "myapp-container"),
        ("04-envoy-annotation.yaml", "nginx-with-annotation.yaml", "default", "nginx envoy"),
        ("04-envoy-annotation.yaml", "nginx.yaml", "default", "nginx"),
    ] {
        assert_eq!(
            containers(policy, workload, namespace).join(" "),
            expected,
            "{workload} under {policy} in {namespace}"
        );
    }
}

#[test]
fn a_workload_as_printed_and_for_later_servers_differ_in_version_and_selector_alone() {
    for name in ["nginx", "nginx-with-annotation"] {
        let mut printed = documents(format!("samples/workloads/{name}.v1beta1.yaml")).remove(0);
        let current = documents(format!("samples/workloads/{name}.yaml")).remove(0);
        assert_eq!((&printed["apiVersion"], printed["spec"].get("selector")), (&json!("apps/v1beta1"), None));
        printed["apiVersion"] = json!("apps/v1");
        printed["spec"]["selector"] = json!({ "matchLabels": printed["spec"]["template"]["metadata"]["labels"] });
        assert_eq!(printed, current, "{name}");
    }
}

// The image.

/// The instructions of a Dockerfile, without comments.
fn instructions(path: &str) -> Vec<String> {
    read(path)
        .replace("\\\n", " ")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

/// `release/inspect.sh` looks into the built image.
#[test]
fn the_image_has_the_binary_and_nothing_else() {
    let steps = instructions("release/Dockerfile");
    assert_eq!(
        steps,
        [
            "FROM scratch",
            "COPY scpol /scpol",
            "USER 65532:65532",
            "EXPOSE 8080 8443",
            r#"ENTRYPOINT ["/scpol"]"#,
            r#"CMD ["run"]"#
        ]
    );
    // `docker build .` compiles first, and ends with the same stage.
    let all = instructions("Dockerfile");
    let last = all.iter().rposition(|step| step.starts_with("FROM ")).unwrap();
    let stage: Vec<_> =
        all[last..].iter().map(|step| step.replace("COPY --from=build /scpol ", "COPY scpol ")).collect();
    assert_eq!(stage, steps);
}

/// `docker build .` and a release compile with one script, and one version of Rust.
#[test]
fn the_image_is_compiled_as_a_release_is() {
    let steps = instructions("Dockerfile");
    let compiles: Vec<_> = steps.iter().filter(|step| step.contains("release/binary.sh")).collect();
    assert_eq!(compiles.len(), 1, "{steps:?}");
    assert!(!steps.iter().any(|step| step.contains("cargo build")), "release/binary.sh has the flags");
    let builder = steps[0].strip_prefix("ARG BUILDER=docker.io/library/rust:").unwrap();
    let (version, _) = builder.split_once('-').unwrap();
    assert!(read(".github/workflows/release.yaml").contains(&format!("rustup default {version}\n")), "{version}");
    let number = |version: &str| -> Vec<u32> { version.split('.').map(|part| part.parse().unwrap()).collect() };
    let manifest = read("Cargo.toml");
    let least = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert!(number(version) >= number(least), "{version} is older than {least}");
    // What the build reads is not ignored, and the last rule for a path counts.
    let ignored = read(".dockerignore");
    let is_ignored = |path: &str| {
        let rules = ignored.lines().filter(|line| !line.starts_with('#')).map(|line| line.trim_start_matches('!'));
        let of = rules.rev().find(|rule| path == *rule || path.starts_with(&format!("{rule}/")));
        of.is_some_and(|rule| ignored.lines().any(|line| line == rule))
    };
    let read = ["Cargo.toml", "Cargo.lock", "build.rs", "src", "crates", "config", "tests", "benches", "release"];
    let injectors = ["linkerd", "dapr", "vault", "istio"].map(|name| format!("docs/examples/parameters/{name}.yaml"));
    for path in read.into_iter().chain(injectors.iter().map(String::as_str)) {
        assert!(!is_ignored(path), "{path}");
    }
    assert!(is_ignored("docs/start.md"));
}

/// Nothing is published before the tests have passed, or without a platform.
#[test]
fn a_release_is_tested_and_has_every_platform() {
    let workflow: Value = serde_saphyr::from_str(&read(".github/workflows/release.yaml")).unwrap();
    let runs = |job: &str| -> Vec<String> {
        let steps = workflow["jobs"][job]["steps"].as_array().unwrap().iter();
        steps.filter_map(|step| step["run"].as_str().map(str::to_owned)).collect()
    };
    for command in ["make lint", "make test"] {
        assert!(runs("test").iter().any(|run| run.ends_with(command)), "{command}");
    }
    let [dist, publish] = ["dist", "publish"].map(|job| &workflow["jobs"][job]);
    assert_eq!((&dist["needs"], &publish["needs"]), (&json!(["test", "darwin"]), &json!(["dist"])));
    assert!(runs("dist").iter().any(|run| run.ends_with("make dist")));
    // Who compiles the code of others may write nothing, and who may write compiles nothing.
    for of in [&workflow["permissions"], &dist["permissions"]] {
        assert!(of.as_object().unwrap().values().all(|right| right == "read"), "{of}");
    }
    assert!(!runs("publish").iter().any(|run| ["make ", "cargo ", "release/"].iter().any(|word| run.contains(word))));
    let platforms = dist["env"]["PLATFORMS"].as_str().unwrap();
    assert_eq!(platforms, "linux/amd64 linux/arm64 windows/amd64 darwin/amd64 darwin/arm64");
    // Those that release/binary.sh knows, and of which no one is left out in silence.
    let known = read("release/binary.sh");
    assert!(platforms.split(' ').all(|platform| known.contains(platform)), "{platforms}");
    assert!(!read("release/dist.sh").contains("continue"));
}

// Pages.

fn pages() -> Vec<PathBuf> {
    let mut pages = files("docs", ".md");
    let others = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "ARCHITECTURE.md",
        "benches/README.md",
        "crates/admission-cel/README.md",
        "tests/README.md",
        "tests/controlplane/README.md",
        "tests/hostile/README.md",
        "tests/node/README.md",
    ];
    pages.extend(others.iter().map(|page| root().join(page)));
    pages
}

/// The anchors that a renderer derives from the headings of a page.
fn anchors(page: &Path) -> BTreeSet<String> {
    let headings = read(page)
        .lines()
        .filter_map(|line| line.strip_prefix('#').map(|rest| rest.trim_start_matches('#').trim().to_owned()))
        .collect::<Vec<_>>();
    let anchor = |heading: &String| {
        let kept = heading
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .collect::<String>();
        kept.replace(' ', "-")
    };
    headings.iter().map(anchor).collect()
}

#[test]
fn the_tables_of_versions_have_what_make_test_takes_and_call_nothing_tested_that_was_not() {
    let patch = Regex::new(r"1\.\d+\.\d+").unwrap();
    for page in ["README.md", "docs/versions.md"] {
        let text = read(root().join(page));
        let table = text
            .split_once("<!-- begin: make matrix -->")
            .and_then(|(_, rest)| rest.split_once("<!-- end: make matrix -->"));
        let (table, _) = table.unwrap_or_else(|| panic!("{page} has no place for the table"));
        let tested: BTreeSet<String> = patch.find_iter(table).map(|version| version.as_str().to_owned()).collect();
        let missing: Vec<_> = Version::suite().into_iter().filter(|own| !tested.contains(&own.to_string())).collect();
        assert!(missing.is_empty(), "{page} lacks {missing:?}: `make matrix VERSIONS=..` writes the table");
        let known: BTreeSet<String> = Version::all().map(|version| version.to_string()).collect();
        assert!(tested.is_subset(&known), "{page} has a version that is not in tests/controlplane/versions.txt");
    }
}

#[test]
fn every_link_leads_somewhere() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    for page in pages() {
        for (_, [target]) in link.captures_iter(&read(&page)).map(|found| found.extract()) {
            if target.contains("://") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            assert!(file.exists(), "{}: {target}", page.display());
            assert!(
                anchor.is_empty() || anchors(&file).contains(anchor),
                "{}: no heading for {target}",
                page.display()
            );
        }
    }
}

#[test]
fn every_file_of_ours_that_a_page_or_a_sample_names_is_there() {
    let named = Regex::new(r"\b((?:config|samples|docs|crds)/[\w./-]*\w)").unwrap();
    // Other sites have folders with the same names.
    let address = Regex::new(r"https?://\S+").unwrap();
    for file in pages().into_iter().chain(files("samples", ".yaml")).chain(files("config", ".yaml")) {
        let text = read(&file);
        for (_, [path]) in named.captures_iter(&address.replace_all(&text, "")).map(|found| found.extract()) {
            assert!(root().join(path).exists(), "{}: {path}", file.display());
        }
    }
}

#[test]
fn every_threat_has_an_answer_and_every_test_that_it_names_is_there() {
    let page = read("tests/hostile/README.md");
    let rows: Vec<Vec<&str>> =
        page.lines().filter_map(|line| Some(line.strip_prefix("| ")?.split(" | ").collect())).collect();
    let threats: Vec<_> = rows.iter().filter(|row| row[0].parse::<u8>().is_ok()).collect();
    let ids: Vec<u8> = threats.iter().map(|row| row[0].parse().unwrap()).collect();
    assert_eq!(ids, (1..=18).collect::<Vec<_>>());
    for row in &threats {
        assert!(row[3].contains('`') || row[2].contains("**Not ours**"), "{row:?}");
    }
    let named = Regex::new(r"`((?:src|tests|crates)/[\w./-]+)(?:::(\w+))?`").unwrap();
    let mut seen = 0;
    for found in named.captures_iter(&page) {
        let path = root().join(&found[1]);
        assert!(path.exists(), "{}", &found[1]);
        if let Some(function) = found.get(2) {
            // With an attribute, and possibly further attributes and comments; or in the list of a file of server
            // tests.
            let function = function.as_str();
            let attribute = r"(?m)^ *#\[(?:tokio::)?test\b.*\]\n(?: *(?:#\[.*\]|//.*)\n)* *(?:async )?fn";
            let is_test = |pattern: &str| Regex::new(pattern).unwrap().is_match(&read(&path));
            let listed = format!(r"\ncrate::tests!\[(?:.|\n )*\b{function}(?:,| =)");
            assert!(is_test(&format!(r"{attribute} {function}\b")) || is_test(&listed), "{} is no test", &found[0]);
        }
        seen += 1;
    }
    assert!(seen >= 40, "{seen}");
}

#[test]
fn every_planted_defect_still_applies() {
    let patches = files("tests/chaos/defects", ".patch");
    assert!(patches.len() > 30, "{patches:?}");
    for patch in patches {
        success(Command::new("git").args(["apply", "--check"]).arg(&patch).current_dir(root()));
    }
}

#[test]
fn every_fault_that_chaos_causes_is_on_the_page_of_failures() {
    let cases = read("tests/chaos/cases.rs");
    let id = Regex::new(r#"(?m)^ +(?:Case::\w+\()?"([A-Z]+\d*)","#).unwrap();
    // `F07` here is F7 in pages.
    let cases: BTreeSet<_> = id.captures_iter(&cases).map(|found| found[1].replacen("F0", "F", 1)).collect();
    let page = read("docs/failures.md");
    let mut named = BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", _, _, _, _, _, proof, ""] = cells[..] else { panic!("six cells: {line}") };
        if !["proof", "–"].contains(&proof) {
            named.extend(proof.split(", ").map(str::to_owned));
        }
    }
    let unknown: Vec<_> = named.difference(&cases).collect();
    assert!(unknown.is_empty(), "no cases: {unknown:?}");
    let is_fault = |id: &&String| id.strip_prefix('F').is_some_and(|number| number.parse::<u8>().is_ok());
    let faults: BTreeSet<_> = cases.iter().filter(is_fault).collect();
    let missing: Vec<_> = faults.iter().filter(|id| !named.contains(**id)).collect();
    assert!(faults.len() >= 26 && missing.is_empty(), "of {} faults not on the page: {missing:?}", faults.len());
}

#[test]
fn every_code_that_a_page_or_a_sample_names_exists() {
    let codes: BTreeSet<_> = Code::ALL.iter().map(Code::to_string).collect();
    let named = Regex::new(r"\bSCP\d{4}\b").unwrap();
    for file in pages().into_iter().chain(files("samples", ".yaml")) {
        for code in named.find_iter(&read(&file)) {
            assert!(codes.contains(code.as_str()), "{}: {}", file.display(), code.as_str());
        }
    }
}

/// The cells of the table below the heading `## {section}` of the operations page, without backticks.
fn table(section: &str) -> Vec<Vec<String>> {
    let page = read("docs/operations.md");
    let (_, below) = page.split_once(&format!("\n## {section}\n")).unwrap();
    let rows = below.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.replace('`', "").trim().to_owned()).collect())
        .collect()
}

#[test]
fn the_flags_in_the_documentation_are_those_of_the_binary() {
    let help = success(Command::new(env!("CARGO_BIN_EXE_scpol")).args(["run", "--help"]).env_clear());
    let help = String::from_utf8(help.stdout).unwrap();
    let flag = Regex::new(r"(?m)^ +(?:-\w, )?(--[\w-]+)").unwrap();
    let starts: Vec<_> = flag.captures_iter(&help).map(|found| found.get(1).unwrap()).collect();
    let ends = starts.iter().skip(1).map(|next| next.start()).chain([help.len()]);
    let variable = Regex::new(r"\[env: (\w+)=").unwrap();
    let default = Regex::new(r"(?m)^ +\[default: (.+)\]$").unwrap();
    let first = |regex: &Regex, text: &str| regex.captures(text).map(|found| found[1].to_owned());
    let mut actual = BTreeSet::new();
    for (start, end) in starts.iter().zip(ends).filter(|(start, _)| start.as_str() != "--help") {
        let text = &help[start.start()..end];
        actual.insert((start.as_str().to_owned(), first(&variable, text).unwrap(), first(&default, text)));
    }
    let told: Vec<_> = table("Flags");
    assert_eq!(told.len(), actual.len(), "{told:?}");
    for (flag, variable, default) in actual {
        let row = told.iter().find(|row| row[0] == flag).unwrap_or_else(|| panic!("{flag} is not told"));
        assert_eq!(row[1], variable);
        assert!(default.is_none_or(|default| row[2] == default), "{flag}: {}", row[2]);
    }
}

#[test]
fn the_metrics_in_the_documentation_are_those_of_the_code() {
    let name = Regex::new(r#""(scpol_\w+)""#).unwrap();
    let code = read("src/metrics.rs");
    let actual: BTreeSet<_> = name.captures_iter(&code).map(|found| found[1].to_owned()).collect();
    let told: BTreeSet<_> = table("Metrics").into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(told, actual);
}

/// Every alert has a valid expression with known metrics, and its own section in the runbooks.
#[test]
fn every_alert_has_its_runbook() {
    let rules = documents("config/prometheus/rules.yaml");
    let alerts: Vec<&Value> = items(&rules[0]["spec"]["groups"]).flat_map(|group| items(&group["rules"])).collect();
    let text = |alert: &Value, at: &str| alert.pointer(at).and_then(Value::as_str).unwrap().to_owned();
    let name = Regex::new(r#""(scpol_\w+)""#).unwrap();
    let code = read("src/metrics.rs");
    let metrics: BTreeSet<_> = name.captures_iter(&code).map(|found| found[1].to_owned()).collect();
    // A metric of the API server (k8s.io/apiserver, pkg/admission/metrics).
    let others = ["apiserver_admission_webhook_fail_open_count"];
    let asked = Regex::new(r"\b(?:scpol|apiserver)_\w+").unwrap();
    let page = read("docs/alerts.md");
    let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    for alert in &alerts {
        let expression = text(alert, "/expr");
        promql_parser::parser::parse(&expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        for metric in asked.find_iter(&expression).map(|found| found.as_str()) {
            assert!(metrics.contains(metric) || others.contains(&metric), "{metric} does not exist");
        }
        let anchor = text(alert, "/alert").to_lowercase();
        let address = "https://github.com/OWNER/REPOSITORY/blob/main/docs/alerts.md";
        assert_eq!(text(alert, "/annotations/runbook_url"), format!("{address}#{anchor}"));
        let row = format!("| [{0}](#{anchor}) | {1} |", text(alert, "/alert"), text(alert, "/labels/severity"));
        assert!(page.contains(&row), "no row {row}");
    }
    let names: Vec<String> = alerts.iter().map(|alert| text(alert, "/alert")).collect();
    assert_eq!(sections, names);
}

#[test]
fn the_break_glass_page_fits_one_screen() {
    // The size of a window that wraps longer lines.
    let (columns, rows) = (100, 40);
    let page = read("docs/break-glass.md");
    let needed: usize = page.lines().map(|line| line.chars().count().div_ceil(columns).max(1)).sum();
    assert!(needed <= rows, "{needed} rows of {columns} columns");
}

/// The pages that people write, without those in Chinese.
fn written_pages() -> Vec<PathBuf> {
    let is_generated =
        |page: &Path| ["codes.md", "fields.md", "readers.md", "SUMMARY.md"].iter().any(|name| page.ends_with(name));
    let mut pages = files("docs", ".md");
    pages.retain(|page| !is_generated(page) && !page.parent().unwrap().ends_with("zh"));
    pages
}

/// The pages with short sentences, and the most words of a sentence there. Fewer where readers look for one step.
fn short_pages() -> Vec<(PathBuf, usize)> {
    let folders = ["how-to", "write"];
    let hurried = [
        "alerts.md",
        "break-glass.md",
        "cookbook.md",
        "faq.md",
        "install.md",
        "legacy-recovery.md",
        "overview.md",
        "recovery.md",
        "rollouts.md",
        "start.md",
    ];
    let is_hurried = |page: &Path| {
        let folder = page.parent().unwrap();
        hurried.iter().any(|name| page.ends_with(name)) || folders.iter().any(|name| folder.ends_with(name))
    };
    let most = |page: PathBuf| {
        let words = if is_hurried(&page) { 25 } else { 30 };
        (page, words)
    };
    written_pages().into_iter().chain([root().join("README.md")]).map(most).collect()
}

/// The words between tables and code count, too. What is generated does not.
#[test]
fn the_pages_have_at_most_30_000_words() {
    const MOST: usize = 30_000;
    let generated = Regex::new(r"(?s)<!-- begin: .*?<!-- end: ").unwrap();
    let words = |page: &PathBuf| {
        let text = read(page);
        let text = generated.replace_all(&text, "");
        text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
    };
    let sum: usize = written_pages().iter().map(words).sum();
    assert!(sum <= MOST, "{sum} words, and at most {MOST} are wanted: shorten a page for each that grows");
}

/// The paragraphs and list items of a page, each with its first line. Code, tables and headings are left out.
fn paragraphs(page: &str) -> Vec<(usize, String)> {
    let item = Regex::new(r"^(?:[-*]|\d+\.) ").unwrap();
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut is_code, mut continues) = (false, false);
    for (line, number) in page.lines().map(str::trim).zip(1..) {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence || line.is_empty() || ["|", "#", "<!--"].iter().any(|start| line.starts_with(start)) {
            continues = false;
            continue;
        }
        let text = item.replace(line, "");
        match found.last_mut() {
            Some((_, paragraph)) if continues && text.len() == line.len() => paragraph.extend([" ", line]),
            _ => found.push((number, text.into_owned())),
        }
        continues = true;
    }
    found
}

#[test]
fn sentences_are_short() {
    let code = Regex::new("`[^`]*`").unwrap();
    let link = Regex::new(r"!?\[([^\]]*)\]\([^)]*\)").unwrap();
    let end = Regex::new(r#"[.?!]["*)]* "#).unwrap();
    let mut long = Vec::new();
    for (page, most) in short_pages() {
        for (line, paragraph) in paragraphs(&read(&page)) {
            // Code and the text of a link count, the target of a link does not.
            let text = code.replace_all(&paragraph, "code");
            let text = link.replace_all(&text, "$1");
            for sentence in end.split(&text) {
                let words = sentence.split_whitespace().count();
                if words > most {
                    long.push(format!("{}:{line}: {words} words, at most {most}: {sentence}", page.display()));
                }
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// Every policy on these pages is a file of `docs/examples`, word for word, and valid.
#[test]
fn every_policy_on_a_short_page_is_a_valid_file_of_the_examples() {
    let block = Regex::new(r"(?s)```yaml\n(apiVersion: scpol\.dev/.*?)```").unwrap();
    let examples = files("docs/examples", ".yaml");
    let mut seen = 0;
    for (page, _) in short_pages() {
        for (_, [policy]) in block.captures_iter(&read(&page)).map(|found| found.extract()) {
            let file = examples.iter().find(|example| read(example) == policy);
            let file = file.unwrap_or_else(|| panic!("{}: no file in docs/examples has\n{policy}", page.display()));
            assert_eq!(policies(file).len(), 1, "{}", file.display());
            seen += 1;
        }
    }
    assert!(seen >= 4, "{seen}");
}

/// What people copy first has no finding but notes.
#[test]
fn every_policy_to_copy_passes_lint() {
    let folders = ["start", "write", "cookbook", "how-to", "parameters", "rollouts"];
    let policies = folders.iter().flat_map(|folder| files(&format!("docs/examples/{folder}"), ".yaml"));
    let policies: Vec<_> = policies.filter(|file| read(file).contains("kind: SidecarPolicy")).collect();
    assert!(policies.len() >= 20, "{policies:?}");
    for policy in policies {
        success(Command::new(env!("CARGO_BIN_EXE_scpol")).args(["lint", "--strict", "-f"]).arg(policy));
    }
}

/// The Chinese Start has the commands, outputs and policies of the English one.
#[test]
fn the_start_pages_differ_in_language_alone() {
    let block = Regex::new(r"(?s)```.*?```").unwrap();
    let blocks = |page: &str| block.find_iter(&read(page)).map(|found| found.as_str().to_owned()).collect::<Vec<_>>();
    assert_eq!(blocks("docs/zh/start.md"), blocks("docs/start.md"));
}

/// The table of contents has every page of `docs`, and no link of a page leads out of `docs`, because the
/// site has nothing else.
#[test]
fn the_book_has_every_page_and_no_link_leaves_it() {
    let contents = read("docs/SUMMARY.md");
    let link = Regex::new(r"\]\(([^)\s#]+)[^)\s]*\)").unwrap();
    let docs = root().join("docs");
    let listed: BTreeSet<PathBuf> = link.captures_iter(&contents).map(|found| docs.join(&found[1])).collect();
    for page in files("docs", ".md") {
        let text = read(&page);
        assert!(page.ends_with("SUMMARY.md") || listed.contains(&page), "{} is not in SUMMARY.md", page.display());
        for (_, [target]) in link.captures_iter(&text).map(|found| found.extract()) {
            let leaves =
                || page.parent().unwrap().join(target).canonicalize().is_ok_and(|path| !path.starts_with(&docs));
            assert!(target.contains("://") || !leaves(), "{}: {target}", page.display());
        }
    }
}

#[test]
fn the_rights_in_the_documentation_name_every_resource() {
    let told = table("Rights").concat().concat();
    for right in rights(LEGACY) {
        let (_, resource) = right.split(':').next().unwrap().split_once(' ').unwrap();
        let (_, resource) = resource.split(' ').next().unwrap().split_once('/').unwrap();
        assert!(told.contains(resource), "{resource}");
    }
}
