//! Our CEL compared with real servers of the versions of `SCPOL_MATRIX`: every entry of the corpus has the verdict of each
//! version, except for the recorded differences. `UPDATE=1` writes the verdicts of the servers into the corpus.
//!
//! The server evaluates ValidatingAdmissionPolicies that warn. A false validation warns with its message, and a failing
//! one with its error. One that does not compile makes the whole policy invalid, with its index.

#[path = "../../crates/admission-cel/tests/corpus_files/mod.rs"]
mod corpus_files;

use crate::prelude::*;
use corpus_files::{Asked, Entry};
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use kube::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

crate::tests![expressions_mean_what_they_mean_to_each_server,];

const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";
const GROUP: &str = "/apis/cel.scpol.dev/v1";
/// The most entries of a policy for compilation.
const COMPILED: usize = 60;
/// The most entries of a policy for verdicts, because the server cuts warnings at 4096 characters in all, and at 256
/// each beyond that.
const JUDGED: usize = 10;
/// The number of concurrent requests.
const PARALLEL: usize = 4;
/// A text in a message that shows that the policy is in effect.
const SENTINEL: &str = "sentinel";

static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| corpus_files::entries(&package()));

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/admission-cel")
}

async fn expressions_mean_what_they_mean_to_each_server() -> Result<()> {
    let entries = ENTRIES.as_slice();
    let mut asked: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for version in Version::matrix()?.into_iter().filter(|version| version.has(Feature::ValidatingAdmissionPolicy)) {
        let cluster = ControlPlane::builder(version).start().await?;
        asked.insert(version.minor(), Server::new(&cluster).await?.verdicts(entries).await?);
    }
    ensure!(!asked.is_empty(), "no version with ValidatingAdmissionPolicies was asked");
    if std::env::var_os("UPDATE").is_some() {
        let of_entry = |index: usize| asked.iter().map(|(minor, of)| (*minor, of[index].to_owned())).collect();
        let by_entry: Vec<Asked> = (0..entries.len()).map(of_entry).collect();
        corpus_files::write(&package(), entries, &by_entry);
        return Ok(());
    }
    let wrong: Vec<_> = asked.iter().flat_map(|(minor, verdicts)| differences(entries, *minor, verdicts)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The entries on which the server of a version has another verdict than the corpus says.
fn differences(entries: &[Entry], minor: u32, verdicts: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (entry, found) in entries.iter().zip(verdicts) {
        let wanted = entry.of_server().at(minor);
        if *found != wanted {
            let hint = if *found == entry.expect.at(minor) { ": is this no difference any more?" } else { "" };
            wrong.push(format!(
                "{}: {}\n  {}\n  the server of 1.{minor} says {found}, not {wanted}{hint}",
                entry.file, entry.name, entry.expression
            ));
        }
    }
    wrong
}

/// Groups of entries that can share a policy: about the same object, and within the cost limit of a policy.
fn groups(entries: &[Entry], compiled: &[usize]) -> Vec<Vec<usize>> {
    let mut about: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for &index in compiled {
        let entry = &entries[index];
        let alone = if entry.file == "limits.yaml" { index } else { 0 };
        about.entry(format!("{alone} {} {:?}", entry.object, entry.namespace)).or_default().push(index);
    }
    about.into_values().flat_map(|group| group.chunks(JUDGED).map(<[usize]>::to_vec).collect::<Vec<_>>()).collect()
}

struct Server {
    admin: Client,
}

impl Server {
    /// A server with the kinds of the corpus: a namespaced one, and a cluster-scoped one.
    async fn new(cluster: &ControlPlane) -> Result<Self> {
        let admin = cluster.admin();
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        for (kind, plural, scope) in [("Thing", "things", "Namespaced"), ("Global", "globals", "Cluster")] {
            request(&admin, "POST", definitions, &definition(kind, plural, scope)).await?;
            within(LIMIT, "the kind is served", || async {
                Ok(request(&admin, "GET", &format!("{GROUP}/{plural}"), &Value::Null).await.is_ok())
            })
            .await?;
        }
        let mut namespaces = BTreeSet::new();
        for namespace in ENTRIES.iter().filter_map(|entry| entry.namespace.as_ref()) {
            if namespaces.insert(namespace["metadata"]["name"].to_string()) {
                let mut namespace = namespace.clone();
                namespace["status"].take();
                request(&admin, "POST", "/api/v1/namespaces", &namespace).await?;
            }
        }
        Ok(Self { admin })
    }

    /// The verdict on each entry.
    async fn verdicts(&self, entries: &[Entry]) -> Result<Vec<&'static str>> {
        let mut verdicts = BTreeMap::new();
        let all: Vec<usize> = (0..entries.len()).collect();
        for chunk in all.chunks(COMPILED) {
            for refused in self.refused(entries, chunk).await? {
                verdicts.insert(refused, "refused");
            }
        }
        let compiled: Vec<usize> = all.iter().copied().filter(|index| !verdicts.contains_key(index)).collect();
        let groups = groups(entries, &compiled);
        // All are registered before the first request, so that one wait is enough.
        let register = groups.iter().enumerate().map(|(number, group)| self.register(number, entries, group));
        stream::iter(register).buffered(PARALLEL).try_collect::<()>().await?;
        let judge = groups.iter().enumerate().map(|(number, group)| async move {
            self.judged(number, entries, group).await.with_context(|| entries[group[0]].name.clone())
        });
        let judged: Vec<_> = stream::iter(judge).buffered(PARALLEL).try_collect().await?;
        verdicts.extend(judged.into_iter().flatten());
        all.iter().map(|index| verdicts.get(index).copied().context("an entry is not judged")).collect()
    }

    /// The entries that do not compile.
    async fn refused(&self, entries: &[Entry], indices: &[usize]) -> Result<Vec<usize>> {
        let path = format!("{REGISTRATION}/validatingadmissionpolicies?dryRun=All");
        match request(&self.admin, "POST", &path, &policy("dry", entries, indices)).await {
            Ok(_) => Ok(Vec::new()),
            Err(kube::Error::Api(status)) if status.code == 422 => {
                let causes = status.details.map(|details| details.causes).unwrap_or_default();
                let of_cause = |field: &str| field.split(['[', ']']).nth(1)?.parse::<usize>().ok();
                causes
                    .iter()
                    .map(|cause| {
                        let position = of_cause(&cause.field).with_context(|| cause.field.clone())?;
                        indices.get(position).copied().with_context(|| cause.field.clone())
                    })
                    .collect()
            }
            // Some expressions crash the server. They are found by a request for each.
            Err(error) if indices.len() == 1 => {
                ensure!(entries[indices[0]].differs.is_some(), "{}: {error}", entries[indices[0]].name);
                Ok(indices.to_vec())
            }
            Err(_) => {
                let mut refused = Vec::new();
                for index in indices {
                    refused.extend(Box::pin(self.refused(entries, &[*index])).await?);
                }
                Ok(refused)
            }
        }
    }

    /// Puts a policy for the object of a group in effect.
    async fn register(&self, number: usize, entries: &[Entry], group: &[usize]) -> Result<()> {
        let name = object_name(number);
        let mut policy = policy(&name, entries, group);
        let sentinel = json!({ "expression": "object.metadata.name == ''", "message": SENTINEL });
        if let Some(validations) = policy["spec"]["validations"].as_array_mut() {
            validations.push(sentinel);
        }
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": name }, "spec": { "policyName": name, "validationActions": ["Warn"] },
        });
        request(&self.admin, "POST", &format!("{REGISTRATION}/validatingadmissionpolicies"), &policy).await?;
        request(&self.admin, "POST", &format!("{REGISTRATION}/validatingadmissionpolicybindings"), &binding).await?;
        Ok(())
    }

    /// The verdicts of a group, once its policy is in effect.
    async fn judged(&self, number: usize, entries: &[Entry], group: &[usize]) -> Result<BTreeMap<usize, &'static str>> {
        let entry = &entries[group[0]];
        let mut object = entry.object.clone();
        object["metadata"]["name"] = json!(object_name(number));
        object["apiVersion"] = json!("cel.scpol.dev/v1");
        let path = match &entry.namespace {
            Some(namespace) => {
                object["kind"] = json!("Thing");
                format!("{GROUP}/namespaces/{}/things", namespace["metadata"]["name"].as_str().unwrap_or_default())
            }
            None => {
                object["kind"] = json!("Global");
                if let Some(metadata) = object["metadata"].as_object_mut() {
                    metadata.remove("namespace");
                }
                format!("{GROUP}/globals")
            }
        };
        let mut warnings = Vec::new();
        within(LIMIT, "the policy is in effect", || async {
            Ok(self.warnings(&path, &object).await?.iter().any(|warning| warning.contains(SENTINEL)))
        })
        .await?;
        warnings.extend(self.warnings(&path, &object).await?);
        verdicts(entries, group, &warnings)
    }

    /// The server's warnings at a create of the object.
    async fn warnings(&self, path: &str, object: &Value) -> Result<Vec<String>> {
        let request = Request::post(format!("{path}?dryRun=All"))
            .header("content-type", "application/json")
            .body(serde_json::to_vec(object)?.into())?;
        let response = self.admin.send(request).await?;
        ensure!(response.status().is_success(), "the object is refused: {}", response.status());
        let headers = response.headers().get_all("warning");
        // `299 - "text"`, with backslashes before quotes and backslashes.
        let text = |value: &[u8]| {
            let text = String::from_utf8_lossy(value).into_owned();
            let quoted = text.split_once('"').and_then(|(_, rest)| rest.strip_suffix('"')).unwrap_or_default();
            quoted.replace("\\\"", "\"").replace("\\\\", "\\")
        };
        Ok(headers.iter().map(|value| text(value.as_bytes())).collect())
    }
}

/// The verdicts in the warnings for a group. Entries without a warning are true.
fn verdicts(entries: &[Entry], group: &[usize], warnings: &[String]) -> Result<BTreeMap<usize, &'static str>> {
    let mut verdicts: BTreeMap<usize, &'static str> = group.iter().map(|&index| (index, "true")).collect();
    for warning in warnings {
        let Some((_, message)) = warning.split_once("': ") else { bail!("not of a policy: {warning}") };
        if message == SENTINEL {
            continue;
        }
        let (index, verdict) = match message.strip_prefix('#') {
            Some(index) => (index.parse()?, "false"),
            None => (failed(entries, group, message)?, "error"),
        };
        verdicts.insert(index, verdict);
    }
    Ok(verdicts)
}

/// The entry of an error message, which begins with the expression and may be cut.
fn failed(entries: &[Entry], group: &[usize], message: &str) -> Result<usize> {
    let shown = message.strip_prefix("expression '").with_context(|| message.to_owned())?;
    let is_of = |index: &&usize| {
        let expression = entries[**index].expression.trim();
        let length = shown.chars().zip(expression.chars()).take_while(|(shown, written)| shown == written).count();
        // An uncut message continues after the expression.
        length == expression.chars().count() && shown.get(expression.len()..).is_some_and(|rest| rest.starts_with('\''))
            || length > 100
    };
    let mut found = group.iter().filter(is_of);
    match (found.next(), found.next()) {
        (Some(index), None) => Ok(*index),
        _ => bail!("of which expression is this? {message}"),
    }
}

fn object_name(number: usize) -> String {
    format!("thing-{number}")
}

/// A policy for the object of that name only.
fn policy(name: &str, entries: &[Entry], indices: &[usize]) -> Value {
    let validations: Vec<Value> = indices
        .iter()
        .map(|&index| json!({ "expression": entries[index].expression, "message": format!("#{index}") }))
        .collect();
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": name },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["cel.scpol.dev"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["*"],
                "resourceNames": [name],
            }] },
            "validations": validations,
        },
    })
}

/// A kind that accepts any JSON under `spec`.
fn definition(kind: &str, plural: &str, scope: &str) -> Value {
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.cel.scpol.dev") },
        "spec": {
            "group": "cel.scpol.dev", "scope": scope,
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": any } } },
            }],
        },
    })
}
