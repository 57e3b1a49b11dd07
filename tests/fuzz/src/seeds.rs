//! The seeds in the checkout.

use crate::inject::POLICIES;
use serde_json::{Value, json};
use sidecar_policy::capabilities::Capabilities;
use sidecar_policy::compile::admission_policy;
use sidecar_policy::manifest::File;
use sidecar_policy::policy::Site;
use sidecar_policy::workload::Kind;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files in `folder` and its subfolders whose path is `wanted`, by name.
pub(crate) fn files(folder: &str, wanted: fn(&Path) -> bool) -> Vec<Vec<u8>> {
    let mut paths = Vec::new();
    collect(&root().join(folder), &mut paths);
    paths.sort();
    paths.iter().filter(|path| wanted(path)).map(|path| read(path)).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    // A target may have no inputs of its own.
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("a folder of the checkout can be read").path();
        if path.is_dir() { collect(&path, paths) } else { paths.push(path) }
    }
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml")
}

pub(crate) fn policies() -> Vec<Vec<u8>> {
    ["tests/policies", "tests/lint", "samples", "docs/examples"]
        .iter()
        .flat_map(|folder| files(folder, is_yaml))
        .chain(files("tests/golden", |path| path.ends_with("policy.yaml")))
        .collect()
}

/// One seed for each expression of the CEL corpus.
pub(crate) fn expressions() -> Vec<Vec<u8>> {
    let entries = |bytes: Vec<u8>| {
        // The files are lists, but a manifest must be an object.
        let text = String::from_utf8(bytes).expect("the corpus is text").replace('\n', "\n  ");
        let file = File::parse("cel", format!("entries:\n  {text}\n").into_bytes()).expect("the corpus can be read");
        let entries = file.manifests().filter_map(|manifest| manifest.value["entries"].as_array().cloned());
        entries.flatten().collect::<Vec<_>>()
    };
    let expression = |entry: Value| Some(entry["expression"].as_str()?.as_bytes().to_vec());
    files("crates/admission-cel/tests/corpus", is_yaml).into_iter().flat_map(entries).filter_map(expression).collect()
}

/// The policies and the workload of each golden case, in one file each.
pub(crate) fn scenes() -> Vec<Vec<u8>> {
    let policies = files("tests/golden", |path| path.ends_with("policy.yaml"));
    let workloads = files("tests/golden", |path| path.ends_with("workload.yaml"));
    let scenes = policies.iter().zip(&workloads).map(|(policy, workload)| [policy, &b"\n---\n"[..], workload].concat());
    scenes.collect()
}

/// The workload of each golden case as a review from an API server.
pub(crate) fn reviews() -> Vec<Vec<u8>> {
    let review = |bytes: Vec<u8>| {
        let file = File::parse("workload.yaml", bytes).ok()?;
        let object = file.manifests().last()?.value.clone();
        let (group, version) = object["apiVersion"].as_str()?.rsplit_once('/').unwrap_or(("", "v1"));
        let resource = json!({ "group": group, "version": version, "resource": format!("{}s", object["kind"].as_str()?.to_lowercase()) });
        let request =
            json!({ "uid": "u", "operation": "CREATE", "namespace": "shop", "resource": resource, "object": object });
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request });
        Some(review.to_string().into_bytes())
    };
    let policies = files("tests/golden", |path| path.ends_with("policy.yaml")).into_iter().filter_map(policy_review);
    let workloads = files("tests/golden", |path| path.ends_with("workload.yaml")).into_iter().filter_map(review);
    workloads.chain(policies).collect()
}

/// Namespaces that would make other requests of a request, alone and in a review.
pub(crate) fn requests() -> Vec<Vec<u8>> {
    let hostile = [
        "kube-system/pods",
        "default/pods?limit=1",
        "../nodes",
        "kube-system/pods?watch=true",
        "shop#",
        "a%2fb",
        "..",
        "a\u{1b}[2J\u{202e}",
        "shop\n",
        "",
    ];
    let bodies = hostile.map(|name| crate::request::seed(name).to_string().into_bytes());
    hostile.map(|name| name.as_bytes().to_vec()).into_iter().chain(bodies).collect()
}

/// A policy as a review of its author from an API server.
fn policy_review(bytes: Vec<u8>) -> Option<Vec<u8>> {
    let object = File::parse("policy.yaml", bytes).ok()?.manifests().last()?.value.clone();
    let resource = json!({ "group": "scpol.dev", "version": "v1alpha1", "resource": "sidecarpolicies" });
    let user = json!({ "username": "jo", "uid": "7", "groups": ["dev"], "extra": { "scopes": ["a"] } });
    let request = json!({ "uid": "u", "operation": "UPDATE", "resource": resource, "userInfo": user, "object": object, "oldObject": {} });
    let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request });
    Some(review.to_string().into_bytes())
}

/// Every manifest of the samples and the golden cases, as an API server would return it.
pub(crate) fn objects() -> Vec<Vec<u8>> {
    let stored = |bytes: Vec<u8>| {
        let file = File::parse("object.yaml", bytes).ok()?;
        let mut object = file.manifests().last()?.value.clone();
        let metadata = object.get_mut("metadata")?.as_object_mut()?;
        metadata.insert("resourceVersion".to_owned(), json!("7"));
        metadata.insert("creationTimestamp".to_owned(), json!("2018-11-21T10:30:55Z"));
        metadata.insert("initializers".to_owned(), json!({ "pending": [{ "name": "sidecar.scpol.dev" }] }));
        Some(object.to_string().into_bytes())
    };
    let files =
        files("samples", is_yaml).into_iter().chain(files("tests/golden", |path| path.ends_with("workload.yaml")));
    files.filter_map(stored).collect()
}

/// The registrations of all engines for the conflicting policies.
pub(crate) fn registrations() -> Vec<Vec<u8>> {
    let policies: Vec<_> = POLICIES.iter().cloned().collect();
    let kinds: BTreeSet<_> = policies.iter().flat_map(|policy| policy.kinds.clone()).collect();
    let site = Site { native_sidecars: true, ..Site::new("scpol-system", [], []) };
    let of_kind = |kind: &Arc<Kind>| {
        let own: Vec<_> = policies.iter().filter(|policy| policy.kinds.contains(kind)).cloned().collect();
        admission_policy::render(kind, &own[..1], &Capabilities::default(), &site).unwrap_or_default()
    };
    kinds.iter().flat_map(of_kind).map(|object| object.to_string().into_bytes()).collect()
}

pub(crate) fn manifests() -> Vec<Vec<u8>> {
    ["tests/golden", "tests/convert", "samples", "config", "docs/examples"]
        .iter()
        .flat_map(|folder| files(folder, is_yaml))
        .collect()
}
