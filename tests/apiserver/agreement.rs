//! Files and servers agree: what `scpol inject` makes of a workload, posted where no operator runs, is stored as what was
//! posted as it is where one does. For the whole corpus of `tests/golden`.

use crate::support::{LIMIT, Operator, condition, policies, within};
use crate::world::{World, request};
use anyhow::{Context, Result, ensure};
use controlplane::User;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Cases that one server of 1.13 cannot show, and why.
const NOT_HERE: [(&str, &str); 17] = [
    ("row-2-other-operator-namespace", "the operator of the test runs elsewhere"),
    ("row-7-condition-sees-no-status", "the server takes no `resourceVersion` in what is created"),
    ("row-3-terminating", "the server takes `deletionTimestamp` off what is created"),
    ("odd-other-namespace-by-flag", "the namespace comes with the request"),
    ("into-sixty-containers", "the fields of its containers are newer than the server"),
    ("conflict-native-sidecar-host-port", "the server drops `restartPolicy` of the user's init container"),
    ("pod-without-metadata", "the server wants a name"),
    ("row-0-foreign", WAITS),
    ("row-0-empty", WAITS),
    ("row-0-ours", WAITS),
    ("row-0-one-of-two", WAITS),
    ("row-0-before-row-2", WAITS),
    ("row-0-denied", WAITS),
    ("row-0-validations", WAITS),
    ("row-0-initializer-name", WAITS),
    ("row-0-stored", WAITS),
    ("env-null-list", "the server stores no null, which the marker would tell"),
];
/// What comes with a list of its own.
const WAITS: &str = "without an operator it waits for ever";
/// The custom resources of the corpus: group, kind, resource.
const CUSTOM: [(&str, &str, &str); 6] = [
    ("example.org", "Rollout", "rollouts"),
    ("example.org", "Proxy", "proxies"),
    ("example.org", "Worker", "staff"),
    ("example.org", "Database", "databases"),
    ("example.org", "Deployment", "deployments"),
    ("example.com", "Rollout", "rollouts"),
];
/// How many cases share one set of policies: each new workload waits for all of them.
const BATCH: usize = 40;

/// A case, with names that no other case has.
struct Case {
    name: String,
    policies: Vec<Value>,
    workload: Value,
    /// What `scpol inject` makes of it; none if the create would be refused.
    injected: Option<Value>,
}

#[tokio::test]
async fn the_corpus_is_stored_as_scpol_inject_says() -> Result<()> {
    let world = World::new().await?;
    let folder = tempfile::tempdir()?;
    let cases = corpus(folder.path())?;
    ensure!(cases.len() >= 200, "{} cases", cases.len());
    define(&world).await?;
    let namespaces: BTreeSet<&str> =
        cases.iter().filter_map(|case| case.workload["metadata"]["namespace"].as_str()).collect();
    for name in namespaces {
        let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": { "team": "shop" } } });
        let _ = request(&world.admin, "POST", "/api/v1/namespaces", &body).await;
    }
    let (mut by_hand, mut plain) = (BTreeMap::new(), BTreeMap::new());
    for case in &cases {
        plain.insert(&case.name, store(&world, &case.workload).await?);
        if let Some(injected) = &case.injected {
            by_hand.insert(&case.name, store(&world, injected).await?);
        }
    }
    let _operator = Operator::ready(&world.cluster, &["--protected-namespaces=vault"]).await?;
    let (mut differences, mut injected, mut not_served) = (Vec::new(), 0, Vec::new());
    for batch in cases.chunks(BATCH) {
        let served = serve(&world, batch).await?;
        for case in batch {
            if !served.contains(&case.name) {
                not_served.push(case.name.as_str());
                continue;
            }
            let found = store(&world, &case.workload).await?;
            let expected = match by_hand.get(&case.name) {
                None => &Stored::Refused,
                // The server judges before it asks us.
                Some(_) if plain[&case.name] == Stored::Refused => &Stored::Refused,
                // The server does not take it with the sidecar: it comes in as it is.
                Some(Stored::Refused) => &plain[&case.name],
                Some(stored) => stored,
            };
            injected +=
                usize::from(matches!(&found, Stored::As(body) if body.to_string().contains("injected.scpol.dev/c")));
            if found != *expected {
                differences.push(format!("{}:\n  files  {expected:?}\n  server {found:?}", case.name));
            }
        }
        withdraw(&world, batch).await?;
    }
    assert!(differences.is_empty(), "{} of {} differ\n{}", differences.len(), cases.len(), differences.join("\n"));
    assert!(injected >= 100, "only {injected} were injected");
    assert!(not_served.len() <= 15, "policies that this server cannot serve: {not_served:?}");
    Ok(())
}

/// Installs the definitions of the corpus, with the operator's rights on them and on what else its policies judge.
async fn define(world: &World) -> Result<()> {
    for (group, kind, plural) in CUSTOM {
        let body = json!({
            "apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": { "group": group, "version": "v1", "scope": "Namespaced", "names": { "kind": kind, "plural": plural } },
        });
        request(&world.admin, "POST", "/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions", &body).await?;
        let path = format!("/apis/{group}/v1/{plural}");
        within(LIMIT, "it is served", || async { Ok(world.get(&path).await?.is_some()) }).await?;
    }
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "corpus" },
        "rules": [
            { "apiGroups": ["example.org", "example.com"], "resources": ["*"], "verbs": ["*"] },
            { "apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["*"] },
        ],
    });
    request(&world.admin, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await?;
    let user = format!("--user={}", User::Operator.name());
    world
        .cluster
        .kubectl_output(User::Admin, &["create", "clusterrolebinding", "corpus", "--clusterrole=corpus", &user])
        .await?;
    Ok(())
}

/// What became of a post.
#[derive(Clone, Debug, PartialEq)]
enum Stored {
    As(Value),
    Refused,
}

/// Posts `body`, reads what is stored, and deletes it.
async fn store(world: &World, body: &Value) -> Result<Stored> {
    let collection = collection(body)?;
    let path = format!("{collection}/{}", body["metadata"]["name"].as_str().context("a name")?);
    match request(&world.admin, "POST", &collection, body).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => return Ok(Stored::Refused),
        Err(error) => return Err(error).context(body.to_string()),
    }
    let mut stored = world.get(&path).await?.context("it was created")?;
    let metadata = stored["metadata"].as_object_mut().context("metadata")?;
    for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "selfLink"] {
        metadata.remove(field);
    }
    let options = json!({ "propagationPolicy": "Background", "gracePeriodSeconds": 0 });
    request(&world.admin, "DELETE", &path, &options).await?;
    // A change of a DaemonSet raises its generation, and the completion of a new one counts as a change.
    if stored["kind"] == "DaemonSet" {
        stored["spec"].as_object_mut().context("a spec")?.remove("templateGeneration");
        let annotations = stored["metadata"]["annotations"].as_object_mut();
        annotations.and_then(|annotations| annotations.remove("deprecated.daemonset.template.generation"));
    }
    Ok(Stored::As(stored))
}

fn collection(body: &Value) -> Result<String> {
    let (api, kind) = (body["apiVersion"].as_str().context("an apiVersion")?, body["kind"].as_str().context("a kind")?);
    let root = if api.contains('/') { "apis" } else { "api" };
    let namespace = body["metadata"]["namespace"].as_str().context("a namespace")?;
    let group = api.split_once('/').map_or("", |(group, _)| group);
    let custom = CUSTOM.iter().find(|(own, other, _)| *own == group && *other == kind);
    let plural = custom.map_or_else(|| format!("{}s", kind.to_lowercase()), |(.., plural)| (*plural).to_owned());
    Ok(format!("/{root}/{api}/namespaces/{namespace}/{plural}"))
}

/// Creates the policies of `batch` and waits for them. Gives the cases whose policies this server can serve.
async fn serve(world: &World, batch: &[Case]) -> Result<BTreeSet<String>> {
    for policy in batch.iter().flat_map(|case| &case.policies) {
        policies(&world.cluster).create(&Default::default(), &serde_json::from_value(policy.clone())?).await?;
    }
    let mut served = BTreeSet::new();
    for case in batch {
        let mut is_served = true;
        for policy in &case.policies {
            let name = policy["metadata"]["name"].as_str().context("a name")?;
            is_served &= settled(world, name).await?;
        }
        if is_served {
            served.insert(case.name.clone());
        }
    }
    Ok(served)
}

/// Waits until the operator has made up its mind about `policy`: true if it is in force, or meant not to be.
async fn settled(world: &World, policy: &str) -> Result<bool> {
    const NEVER: [&str; 3] = ["UnknownTemplateField", "NativeSidecarsUnavailable", "TargetNotServed"];
    let deadline = Instant::now() + 2 * LIMIT;
    loop {
        let ready = condition(&world.cluster, policy, "Ready").await?.unwrap_or_default();
        if ready["status"] == "True" {
            return Ok(true);
        }
        if NEVER.iter().any(|reason| ready["reason"] == *reason) {
            return Ok(false);
        }
        ensure!(Instant::now() < deadline, "{policy} is {ready}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn withdraw(world: &World, batch: &[Case]) -> Result<()> {
    for policy in batch.iter().flat_map(|case| &case.policies) {
        world.delete_policy(policy["metadata"]["name"].as_str().context("a name")?).await?;
    }
    within(LIMIT, "nothing is registered", || async {
        let path = "/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations";
        let list = request(&world.admin, "GET", path, &Value::Null).await?;
        Ok(list["items"].as_array().is_some_and(Vec::is_empty))
    })
    .await
}

fn corpus(scratch: &Path) -> Result<Vec<Case>> {
    let root = crate::support::file("tests/golden");
    let mut folders: Vec<_> = std::fs::read_dir(root)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.sort();
    let mut cases = Vec::new();
    for (number, folder) in folders.iter().enumerate() {
        let name = folder.file_name().context("a name")?.to_string_lossy().into_owned();
        if NOT_HERE.iter().any(|(other, _)| *other == name) {
            continue;
        }
        cases.push(case(number, name, folder, scratch)?);
    }
    Ok(cases)
}

fn case(number: usize, name: String, folder: &Path, scratch: &Path) -> Result<Case> {
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
        workload["apiVersion"] = json!("batch/v1beta1");
    }
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": workload["metadata"]["namespace"], "labels": { "team": "shop" } } });
    let mut manifests = vec![namespace];
    manifests.extend(CUSTOM.map(|(group, kind, plural)| {
        json!({ "apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "CustomResourceDefinition", "spec": { "group": group, "names": { "kind": kind, "plural": plural } } })
    }));
    let injected = inject(scratch, &policies, &workload, &manifests).with_context(|| name.clone())?;
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
fn inject(scratch: &Path, policies: &[Value], workload: &Value, beside: &[Value]) -> Result<Option<Value>> {
    let write = |name: &str, values: &[&Value]| -> Result<std::path::PathBuf> {
        let path = scratch.join(name);
        std::fs::write(&path, values.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n---\n"))?;
        Ok(path)
    };
    let policies = write("policies.yaml", &policies.iter().collect::<Vec<_>>())?;
    let manifests = write("manifests.yaml", &beside.iter().chain([workload]).collect::<Vec<_>>())?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_scpol"));
    command.args(["inject", "--kube-version=1.13", "--protected-namespaces=vault", "--output=json"]);
    let output = command.arg("-f").arg(manifests).arg("-p").arg(policies).output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code().is_some_and(|code| code < 2), "{told}");
    let list: Value = serde_json::from_slice(&output.stdout)?;
    Ok((!told.contains("would be refused")).then(|| list["items"][beside.len()].clone()))
}
