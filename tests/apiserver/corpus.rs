//! The cases of `tests/golden` for real servers, each with unique names, so that many can be in effect at once.

#![allow(unreachable_pub, reason = "shared between test programs")]

use crate::prelude::*;
use kube::Client;
use kube::core::Status;
use serde_json::Map;
use sidecar_policy::api::code::Code;
use sidecar_policy::api::pod_schema::in_template;
use sidecar_policy::api::rules::{self, Violation};
use sidecar_policy::content::{Content, Revision};
use sidecar_policy::policy::Policy;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

/// The folder of the cases.
const FOLDER: &str = "tests/golden";
/// The number of concurrent requests. More are not faster, because the server compiles expressions, and on a busy
/// machine the last of many time out.
pub const PARALLEL: usize = 4;
/// The custom resources of the corpus: group, kind, resource.
pub const CUSTOM: [(&str, &str, &str); 6] = [
    ("example.org", "Rollout", "rollouts"),
    ("example.org", "Proxy", "proxies"),
    ("example.org", "Worker", "staff"),
    ("example.org", "Database", "databases"),
    ("example.org", "Deployment", "deployments"),
    ("example.com", "Rollout", "rollouts"),
];

/// A case with unique names.
pub struct Case {
    /// The folder of the case.
    pub name: String,
    /// The prefix of its names, and the label `case` of its workload.
    pub id: String,
    /// The policies as custom resources.
    pub policies: Vec<Value>,
    /// Earlier versions of them, which the operator has stored.
    pub earlier: Vec<Value>,
    /// The workload as a user posts it.
    pub workload: Value,
    /// The labels of its Namespace that differ between cases: those of Pod Security and of parameters.
    pub labels: Map<String, Value>,
    /// The annotations of its Namespace.
    pub annotations: Map<String, Value>,
    /// The result of `scpol inject`; none if the create would be rejected.
    pub injected: Option<Value>,
}

/// Creates the definitions of the corpus, and waits until the server serves them.
pub async fn define(world: &World) -> Result<()> {
    for (group, kind, plural) in CUSTOM {
        let definition = definition(world.cluster.version(), group, kind, plural);
        let api = definition["apiVersion"].as_str().context("an apiVersion")?;
        request(&world.admin, "POST", &format!("/apis/{api}/customresourcedefinitions"), &definition).await?;
    }
    for (group, _, plural) in CUSTOM {
        let path = format!("/apis/{group}/v1/{plural}");
        within(LIMIT, "it is served", || async { Ok(world.get(&path).await?.is_some()) }).await?;
    }
    Ok(())
}

/// The definition in the form for that version. All fields of its objects are kept.
fn definition(version: Version, group: &str, kind: &str, plural: &str) -> Value {
    let mut spec = json!({ "group": group, "scope": "Namespaced", "names": { "kind": kind, "plural": plural } });
    if version.has(Feature::RegistrationV1) {
        let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let version = json!({ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } });
        spec["versions"] = json!([version]);
    } else {
        spec["version"] = json!("v1");
    }
    let api = format!("apiextensions.k8s.io/{}", version.registration());
    let metadata = json!({ "name": format!("{plural}.{group}") });
    json!({ "apiVersion": api, "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec })
}

/// Creates the namespaces of `cases` that are missing, with the labels that the cases assume.
pub async fn create_namespaces(world: &World, cases: &[Case]) -> Result<()> {
    for namespace in namespaces(cases) {
        let name = namespace["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match request(&world.admin, "POST", "/api/v1/namespaces", &namespace).await {
            Ok(_) => {}
            // The namespace exists; or its name is invalid, and then nothing can be posted there.
            Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422) => {}
            Err(error) => return Err(error).context(name),
        }
    }
    Ok(())
}

/// The Namespaces of `cases`, by name.
fn namespaces(cases: &[Case]) -> Vec<Value> {
    let mut namespaces: BTreeMap<&str, [Map<String, Value>; 2]> = BTreeMap::new();
    for case in cases {
        if let Some(name) = case.workload["metadata"]["namespace"].as_str() {
            let [labels, annotations] = namespaces.entry(name).or_default();
            labels.insert("team".to_owned(), json!("shop"));
            labels.extend(case.labels.clone());
            annotations.extend(case.annotations.clone());
        }
    }
    let object = |(name, [labels, annotations]): (&str, [Map<String, Value>; 2])| {
        let metadata = json!({ "name": name, "labels": labels, "annotations": annotations });
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata })
    };
    namespaces.into_iter().map(object).collect()
}

/// The result of a create.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// The stored object, without fields that differ between creates.
    As(Value),
    /// The server rejected the create.
    Refused,
}

impl Stored {
    /// The result from the stored object.
    pub fn of(mut stored: Value) -> Result<Self> {
        // A Job selects its pods by its UID.
        if stored["kind"] == "Job"
            && let Some(uid) = stored["metadata"]["uid"].as_str()
        {
            stored = serde_json::from_str(&stored.to_string().replace(uid, "its-uid"))?;
        }
        let metadata = stored["metadata"].as_object_mut().context("metadata")?;
        for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "selfLink", "managedFields"] {
            metadata.remove(field);
        }
        // A change of a DaemonSet increments its generation, and the completion of a new one counts as a change.
        if stored["kind"] == "DaemonSet" {
            stored["spec"].as_object_mut().context("a spec")?.remove("templateGeneration");
            let annotations = stored["metadata"]["annotations"].as_object_mut();
            annotations.and_then(|annotations| annotations.remove("deprecated.daemonset.template.generation"));
        }
        Ok(Self::As(stored))
    }
}

/// Messages with status 500 although the object is at fault.
const FAULTS: [&str; 2] =
    ["resourceVersion should not be set on objects to be created", "strict decoding error: unknown field"];

/// The result of the create of `body`, and the message of a rejection.
pub async fn create(client: &Client, path: &str, body: &Value) -> Result<(Stored, String)> {
    let is_fault = |status: &Status| {
        // Including a missing resource or namespace.
        matches!(status.code, 400 | 403 | 404 | 422) || FAULTS.iter().any(|fault| status.message.contains(fault))
    };
    match request(client, "POST", path, body).await {
        Ok(stored) => Ok((Stored::of(stored)?, String::new())),
        Err(kube::Error::Api(status)) if is_fault(&status) => Ok((Stored::Refused, status.message)),
        Err(error) => Err(error).context(body.to_string()),
    }
}

/// The result of a dry-run create of `body`, and the message of a rejection. The create waits for no initializer. A
/// timeout or a busy server says nothing about `body`, so the request is repeated.
pub async fn dry_run(client: &Client, body: &Value) -> Result<(Stored, String)> {
    let path = format!("{}?dryRun=All&includeUninitialized=1", collection(body)?);
    let deadline = Instant::now() + 4 * LIMIT;
    loop {
        let found = create(client, &path, body).await;
        match found.as_ref().map_err(|error| error.downcast_ref::<kube::Error>()) {
            Err(Some(kube::Error::Api(status)))
                if matches!(status.code, 429 | 503 | 504) && Instant::now() < deadline => {}
            _ => return found,
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The path for creates of `body`.
pub fn collection(body: &Value) -> Result<String> {
    let (api, kind) = (body["apiVersion"].as_str().context("an apiVersion")?, body["kind"].as_str().context("a kind")?);
    let root = if api.contains('/') { "apis" } else { "api" };
    let namespace = body["metadata"]["namespace"].as_str().context("a namespace")?;
    let group = api.split_once('/').map_or("", |(group, _)| group);
    let custom = CUSTOM.iter().find(|(own, other, _)| *own == group && *other == kind);
    let plural = custom.map_or_else(|| format!("{}s", kind.to_lowercase()), |(.., plural)| (*plural).to_owned());
    Ok(format!("/{root}/{api}/namespaces/{namespace}/{plural}"))
}

/// The names of all cases: the folders of `tests/golden`, sorted.
pub fn names() -> Result<Vec<String>> {
    let entries = std::fs::read_dir(crate::support::file(FOLDER))?;
    let mut names =
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<Vec<_>>>()?;
    names.sort();
    ensure!(names.len() >= 200, "{} cases", names.len());
    Ok(names)
}

/// All cases in the form for that version.
pub fn cases(version: Version) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (number, name) in names()?.into_iter().enumerate() {
        cases.push(case(version, number, &name).context(name)?);
    }
    inject(version, &mut cases)?;
    Ok(cases)
}

/// A case, before `scpol inject`.
fn case(version: Version, number: usize, name: &str) -> Result<Case> {
    let folder = crate::support::file(FOLDER).join(name);
    let read = |file: &str| -> Result<Vec<Value>> {
        Ok(serde_saphyr::from_multiple(&std::fs::read_to_string(folder.join(file))?)?)
    };
    let mut policies = read("policy.yaml")?;
    let mut documents = read("workload.yaml")?;
    let mut workload = documents.pop().context("a workload")?;
    let of_namespace = |map: &str, is_own: fn(&str) -> bool| -> Map<String, Value> {
        let found = documents.iter().filter_map(|document| document["metadata"][map].as_object()).flatten();
        found.filter(|(key, _)| is_own(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let is_own = |key: &str| key.starts_with("pod-security.kubernetes.io/") || key.contains(".example.com/");
    let (labels, annotations) = (of_namespace("labels", is_own), of_namespace("annotations", |_| true));
    let settings = if folder.join("case.yaml").exists() { read("case.yaml")?.remove(0) } else { Value::Null };
    let id = format!("c{number}");
    let names: Vec<String> =
        policies.iter().filter_map(|policy| policy["metadata"]["name"].as_str().map(str::to_owned)).collect();
    let renamed = |name: &str| format!("{id}-{name}");
    for policy in &mut policies {
        policy["metadata"]["name"] = json!(renamed(policy["metadata"]["name"].as_str().context("a name")?));
        for replaced in policy.pointer_mut("/spec/replaces").and_then(Value::as_array_mut).into_iter().flatten() {
            *replaced = json!(renamed(replaced.as_str().context("a name")?));
        }
        // Because all cases share a server, a policy selects the workload of its own case only.
        let selector = policy["spec"].as_object_mut().context("a spec")?.entry("labelSelector").or_insert(json!({}));
        let requirements =
            selector.as_object_mut().context("a selector")?.entry("matchExpressions").or_insert(json!([]));
        let ours = json!({ "key": "case", "operator": "In", "values": [id] });
        requirements.as_array_mut().context("a list")?.push(ours);
    }
    let mut earlier = if folder.join("earlier.yaml").exists() { read("earlier.yaml")? } else { Vec::new() };
    for policy in &mut earlier {
        policy["metadata"]["name"] = json!(renamed(policy["metadata"]["name"].as_str().context("a name")?));
    }
    rename(&mut workload, &names, &renamed);
    let metadata = workload.as_object_mut().context("an object")?.entry("metadata").or_insert(json!({}));
    let metadata = metadata.as_object_mut().context("metadata")?;
    metadata.insert("name".into(), json!(format!("web-{id}")));
    metadata.remove("generateName");
    let namespace = settings["namespace"].as_str().unwrap_or("default");
    metadata.entry("namespace").or_insert(json!(namespace));
    let own = metadata.entry("labels").or_insert(Value::Null);
    if own.is_null() {
        *own = json!({});
    }
    own["case"] = json!(id);
    if workload["kind"] == "CronJob" {
        workload["apiVersion"] = json!(if version.has(Feature::CronJobV1) { "batch/v1" } else { "batch/v1beta1" });
    }
    Ok(Case { name: name.to_owned(), id, policies, earlier, workload, labels, annotations, injected: None })
}

/// `policy`, which recognizes the contents of its `earlier` versions.
pub fn knowing(policy: Policy, earlier: &[Value]) -> Result<Policy> {
    let own = earlier.iter().filter(|other| other["metadata"]["name"] == policy.name.as_str());
    let past = own.enumerate().map(|(index, other)| {
        let spec = rules::decode(&other["spec"]).map_err(|faults| anyhow::anyhow!("{faults:?}"))?;
        let content = Content::of(&spec).context("a template")?;
        Ok(Arc::new(Revision::new(&policy.name, index as i64 + 1, content)))
    });
    let past = past.collect::<Result<Vec<_>>>()?;
    Ok(policy.knowing(past.into()))
}

/// Renames the policies `names` wherever a workload may name them: in markers, `scpol.dev/inject`, annotations of
/// parameters, and initializers.
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
                let parameter = key
                    .split_once(".scpol.dev/")
                    .filter(|(policy, _)| names.iter().any(|other| other == policy))
                    .map(|(policy, parameter)| format!("{}.scpol.dev/{parameter}", renamed(policy)));
                let marker = marker.map(|name| format!("injected.scpol.dev/{}", renamed(name)));
                fresh.insert(marker.or(parameter).unwrap_or(key), value);
            }
            *fields = fresh;
        }
        Value::String(text) => {
            let initializer = text.strip_suffix(".scpol.dev").filter(|name| names.iter().any(|other| other == name));
            if let Some(name) = initializer {
                *text = format!("{}.scpol.dev", renamed(name));
            }
        }
        _ => {}
    }
}

/// Whether servers of that version do not know a field of the template or refuse a value, or have no engine that may refuse as
/// the policy wants.
/// `scpol inject` rejects such a policy, and no engine serves it.
pub(crate) fn is_beyond(version: Version, policy: &Value) -> bool {
    let template = &policy["spec"]["template"];
    let init = template["initContainers"].as_array().into_iter().flatten();
    let is_unknown = |violation: &Violation| violation.code == Code::UnknownTemplateField;
    let may_refuse = version == Version::V1_13 || version.has(Feature::NamespaceNames);
    let faults = in_template(template, Some(version.minor()));
    faults.iter().any(is_unknown) && version < Version::V1_36
        || faults.iter().any(|violation| !is_unknown(violation))
        || policy["spec"]["failurePolicy"] == "Fail" && !may_refuse
        || !version.has(Feature::NativeSidecars)
            && init.into_iter().any(|container| container["restartPolicy"] == "Always")
}

/// Sets the result of `scpol inject` for each workload. One call serves all cases, because a policy selects its own
/// case only.
fn inject(version: Version, cases: &mut [Case]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let write = |name: &str, values: &mut dyn Iterator<Item = String>| -> Result<std::path::PathBuf> {
        let path = folder.path().join(name);
        std::fs::write(&path, values.collect::<Vec<_>>().join("\n---\n"))?;
        Ok(path)
    };
    let beside: Vec<Value> = namespaces(cases)
        .into_iter()
        .chain(CUSTOM.map(|(group, kind, plural)| definition(version, group, kind, plural)))
        .collect();
    let manifests: Vec<&Value> = beside.iter().chain(cases.iter().map(|case| &case.workload)).collect();
    // In a list, because a workload without a pod template is a patch otherwise.
    let manifests = json!({ "apiVersion": "v1", "kind": "List", "items": manifests });
    let manifests = write("manifests.yaml", &mut std::iter::once(manifests.to_string()))?;
    let policies = cases.iter().flat_map(|case| &case.policies).filter(|policy| !is_beyond(version, policy));
    let policies = write("policies.yaml", &mut policies.map(Value::to_string))?;
    let earlier = write("earlier.yaml", &mut cases.iter().flat_map(|case| &case.earlier).map(Value::to_string))?;
    let output = Command::new(env!("CARGO_BIN_EXE_scpol"))
        .args(["inject", "--protected-namespaces=vault", "--output=json", "--kube-version", &version.short()])
        .args(TRUSTING)
        .arg("-f")
        .arg(manifests)
        .arg("-p")
        .arg(policies)
        .arg("--earlier")
        .arg(earlier)
        .output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code().is_some_and(|code| code < 2), "{told}");
    let list: Value = serde_json::from_slice(&output.stdout)?;
    let injected = list["items"].as_array().context("a list")?.get(beside.len()..).context("the workloads")?;
    ensure!(injected.len() == cases.len(), "{} of {} workloads came back", injected.len(), cases.len());
    let refused: Vec<&str> = told.lines().filter(|line| line.contains("would be refused")).collect();
    for (case, injected) in cases.iter_mut().zip(injected) {
        let title = format!("/web-{}: policy ", case.id);
        let is_refused = refused.iter().any(|line| line.contains(&title));
        case.injected = (!is_refused).then(|| injected.clone());
    }
    Ok(())
}
