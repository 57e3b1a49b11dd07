//! The cases of `tests/golden` for real servers: each with names that no other case has, so that many can be in force at once.

#![allow(unreachable_pub, reason = "shared between test programs")]

use crate::support::{LIMIT, TRUSTING, within};
use crate::world::{World, request};
use anyhow::{Context, Result, ensure};
use controlplane::Version;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The custom resources of the corpus: group, kind, resource.
pub const CUSTOM: [(&str, &str, &str); 6] = [
    ("example.org", "Rollout", "rollouts"),
    ("example.org", "Proxy", "proxies"),
    ("example.org", "Worker", "staff"),
    ("example.org", "Database", "databases"),
    ("example.org", "Deployment", "deployments"),
    ("example.com", "Rollout", "rollouts"),
];

/// A case, with names that no other case has.
pub struct Case {
    /// Its folder.
    pub name: String,
    /// As custom resources.
    pub policies: Vec<Value>,
    /// The workload as a user posts it.
    pub workload: Value,
    /// What `scpol inject` makes of it; none if the create would be refused.
    pub injected: Option<Value>,
}

/// Installs the definitions of the corpus.
pub async fn define(world: &World) -> Result<()> {
    for (group, kind, plural) in CUSTOM {
        let definition = definition(world.cluster.version(), group, kind, plural);
        let api = definition["apiVersion"].as_str().context("an apiVersion")?;
        request(&world.admin, "POST", &format!("/apis/{api}/customresourcedefinitions"), &definition).await?;
        let path = format!("/apis/{group}/v1/{plural}");
        within(LIMIT, "it is served", || async { Ok(world.get(&path).await?.is_some()) }).await?;
    }
    Ok(())
}

/// As a server of that version takes it. Whatever its objects have is kept.
fn definition(version: Version, group: &str, kind: &str, plural: &str) -> Value {
    let mut spec = json!({ "group": group, "scope": "Namespaced", "names": { "kind": kind, "plural": plural } });
    let api = match version {
        Version::V1_13 => {
            spec["version"] = json!("v1");
            "apiextensions.k8s.io/v1beta1"
        }
        Version::V1_36 => {
            let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
            let version =
                json!({ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } });
            spec["versions"] = json!([version]);
            "apiextensions.k8s.io/v1"
        }
    };
    let metadata = json!({ "name": format!("{plural}.{group}") });
    json!({ "apiVersion": api, "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec })
}

/// Creates the namespaces of `cases` that are not there, labelled as the cases take them to be.
pub async fn create_namespaces(world: &World, cases: &[Case]) -> Result<()> {
    let names: BTreeSet<&str> =
        cases.iter().filter_map(|case| case.workload["metadata"]["namespace"].as_str()).collect();
    for name in names {
        match request(&world.admin, "POST", "/api/v1/namespaces", &namespace(name)).await {
            Ok(_) => {}
            // It is there; or no namespace can be called so, and then nothing can be posted there.
            Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422) => {}
            Err(error) => return Err(error).context(name.to_owned()),
        }
    }
    Ok(())
}

fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": { "team": "shop" } } })
}

/// What became of a post.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// It is stored, without what differs from one create to the next.
    As(Value),
    /// It was refused.
    Refused,
}

impl Stored {
    /// What the server has made of a create.
    pub fn of(mut stored: Value) -> Result<Self> {
        let metadata = stored["metadata"].as_object_mut().context("metadata")?;
        for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "selfLink", "managedFields"] {
            metadata.remove(field);
        }
        // A change of a DaemonSet raises its generation, and the completion of a new one counts as a change.
        if stored["kind"] == "DaemonSet" {
            stored["spec"].as_object_mut().context("a spec")?.remove("templateGeneration");
            let annotations = stored["metadata"]["annotations"].as_object_mut();
            annotations.and_then(|annotations| annotations.remove("deprecated.daemonset.template.generation"));
        }
        Ok(Self::As(stored))
    }
}

/// Where `body` is posted.
pub fn collection(body: &Value) -> Result<String> {
    let (api, kind) = (body["apiVersion"].as_str().context("an apiVersion")?, body["kind"].as_str().context("a kind")?);
    let root = if api.contains('/') { "apis" } else { "api" };
    let namespace = body["metadata"]["namespace"].as_str().context("a namespace")?;
    let group = api.split_once('/').map_or("", |(group, _)| group);
    let custom = CUSTOM.iter().find(|(own, other, _)| *own == group && *other == kind);
    let plural = custom.map_or_else(|| format!("{}s", kind.to_lowercase()), |(.., plural)| (*plural).to_owned());
    Ok(format!("/{root}/{api}/namespaces/{namespace}/{plural}"))
}

/// Every case but those of `not_here`, which have a reason each, as a server of that version is to see it. `scpol inject` reads
/// and writes its files in `scratch`.
pub fn cases(version: Version, not_here: &[(&str, &str)], scratch: &Path) -> Result<Vec<Case>> {
    let root = crate::support::file("tests/golden");
    let mut folders: Vec<_> = std::fs::read_dir(root)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.sort();
    let mut cases = Vec::new();
    for (number, folder) in folders.iter().enumerate() {
        let name = folder.file_name().context("a name")?.to_string_lossy().into_owned();
        if not_here.iter().any(|(other, _)| *other == name) {
            continue;
        }
        cases.push(case(version, number, name, folder, scratch)?);
    }
    ensure!(cases.len() + not_here.len() == folders.len(), "an exception names no case, or is there twice");
    ensure!(cases.len() >= 200, "{} cases", cases.len());
    Ok(cases)
}

fn case(version: Version, number: usize, name: String, folder: &Path, scratch: &Path) -> Result<Case> {
    let read = |file: &str| -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(folder.join(file))?;
        serde_saphyr::from_multiple(&text).with_context(|| name.clone())
    };
    let mut policies = read("policy.yaml")?;
    let mut manifests = read("workload.yaml")?;
    let mut workload = manifests.pop().context("a workload")?;
    let names: Vec<String> =
        policies.iter().filter_map(|policy| policy["metadata"]["name"].as_str().map(str::to_owned)).collect();
    let renamed = |name: &str| format!("c{number}-{name}");
    for policy in &mut policies {
        policy["metadata"]["name"] = json!(renamed(policy["metadata"]["name"].as_str().context("a name")?));
        // No other case's workload is meant.
        let selector = policy["spec"].as_object_mut().context("a spec")?.entry("labelSelector").or_insert(json!({}));
        let requirements =
            selector.as_object_mut().context("a selector")?.entry("matchExpressions").or_insert(json!([]));
        let ours = json!({ "key": "case", "operator": "In", "values": [format!("c{number}")] });
        requirements.as_array_mut().context("a list")?.push(ours);
    }
    rename(&mut workload, &names, &renamed);
    let metadata = workload["metadata"].as_object_mut().context("metadata")?;
    metadata.insert("name".into(), json!(format!("web-c{number}")));
    metadata.remove("generateName");
    metadata.entry("namespace").or_insert(json!("default"));
    let labels = metadata.entry("labels").or_insert(Value::Null);
    if labels.is_null() {
        *labels = json!({});
    }
    labels["case"] = json!(format!("c{number}"));
    if workload["kind"] == "CronJob" {
        workload["apiVersion"] = match version {
            Version::V1_13 => json!("batch/v1beta1"),
            Version::V1_36 => json!("batch/v1"),
        };
    }
    let mut beside = vec![namespace(workload["metadata"]["namespace"].as_str().context("a namespace")?)];
    beside.extend(CUSTOM.map(|(group, kind, plural)| definition(version, group, kind, plural)));
    let injected = inject(version, scratch, &policies, &workload, &beside).with_context(|| name.clone())?;
    Ok(Case { name, policies, workload, injected })
}

/// Gives the policies `names` their new names wherever a workload may speak of them: markers, and `scpol.dev/inject`.
fn rename(value: &mut Value, names: &[String], renamed: &dyn Fn(&str) -> String) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, names, renamed)),
        Value::Object(fields) => {
            let mut fresh = Map::new();
            for (key, mut value) in std::mem::take(fields) {
                rename(&mut value, names, renamed);
                if key == "scpol.dev/inject"
                    && let Some(text) = value.as_str()
                {
                    let word = |word: &str| {
                        if names.iter().any(|name| name == word.trim()) {
                            renamed(word.trim())
                        } else {
                            word.to_owned()
                        }
                    };
                    value = json!(text.split(',').map(word).collect::<Vec<_>>().join(","));
                }
                let marker =
                    key.strip_prefix("injected.scpol.dev/").filter(|name| names.iter().any(|other| other == name));
                fresh.insert(marker.map_or(key.clone(), |name| format!("injected.scpol.dev/{}", renamed(name))), value);
            }
            *fields = fresh;
        }
        _ => {}
    }
}

/// What `scpol inject` makes of `workload`; none if it says that the create would be refused.
fn inject(
    version: Version,
    scratch: &Path,
    policies: &[Value],
    workload: &Value,
    beside: &[Value],
) -> Result<Option<Value>> {
    let write = |name: &str, values: &[&Value]| -> Result<std::path::PathBuf> {
        let path = scratch.join(name);
        std::fs::write(&path, values.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n---\n"))?;
        Ok(path)
    };
    let policies = write("policies.yaml", &policies.iter().collect::<Vec<_>>())?;
    let manifests = write("manifests.yaml", &beside.iter().chain([workload]).collect::<Vec<_>>())?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_scpol"));
    command
        .args(["inject", "--protected-namespaces=vault", "--output=json", "--kube-version", version.short()])
        .args(TRUSTING);
    let output = command.arg("-f").arg(manifests).arg("-p").arg(policies).output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code().is_some_and(|code| code < 2), "{told}");
    let list: Value = serde_json::from_slice(&output.stdout)?;
    Ok((!told.contains("would be refused")).then(|| list["items"][beside.len()].clone()))
}
