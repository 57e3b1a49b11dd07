//! A server with everything installed, and the basic steps of scenarios.

#![allow(unreachable_pub, reason = "shared between test programs")]

use crate::support::{self, LIMIT, Operator, in_force, policies, within};
use anyhow::{Context, Result, ensure};
use controlplane::{Builder, ControlPlane, Feature, User, Version};
use http::Request;
use k8s_openapi::ByteString;
use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The API path of Deployments.
pub const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
/// The API path of Pods.
pub const PODS: &str = "/api/v1/namespaces/default/pods";
/// The API path of InitializerConfigurations.
pub const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations";
/// The API path of the Secrets, with that of the webhook's certificates.
pub const SECRETS: &str = "/api/v1/namespaces/scpol-system/secrets";
/// The names of a webhook of these tests.
pub const NAMES: [&str; 3] = ["scpol.scpol-system.svc", "scpol.scpol-system.svc.cluster.local", "127.0.0.1"];
/// The time limit for a create that waits for nothing. The server itself gives up after 30 s.
pub const PROMPT: Duration = Duration::from_secs(5);

/// A server with everything installed except the operator's Deployment.
pub struct World {
    pub cluster: ControlPlane,
    pub admin: Client,
    pub creator: Client,
}

impl World {
    /// A 1.13.5 server.
    pub async fn new() -> Result<Self> {
        Self::with(ControlPlane::builder(Version::V1_13)).await
    }

    /// A server with the settings `builder`.
    pub async fn with(builder: Builder) -> Result<Self> {
        Ok(Self::of(support::installed(builder).await?))
    }

    /// A server without anything of ours.
    pub async fn empty(builder: Builder) -> Result<Self> {
        Ok(Self::of(builder.start().await?))
    }

    fn of(cluster: ControlPlane) -> Self {
        let (admin, creator) = (cluster.admin(), cluster.client(User::Creator));
        Self { cluster, admin, creator }
    }

    /// The same world with a ready operator, which ends first.
    pub async fn operated(self, flags: &[&str]) -> Result<(Self, Operator)> {
        let operator = Operator::ready(&self.cluster, flags).await?;
        Ok((self, operator))
    }

    /// Creates a SidecarPolicy, and waits until it is in effect.
    pub async fn enforce(&self, name: &str, spec: Value) -> Result<()> {
        self.policy(name, spec).await?;
        in_force(&self.cluster, name).await
    }

    /// Creates a SidecarPolicy.
    pub async fn policy(&self, name: &str, spec: Value) -> Result<()> {
        let policy = policy_object(name, &spec);
        policies(&self.cluster).create(&Default::default(), &serde_json::from_value(policy)?).await?;
        Ok(())
    }

    /// Writes a SidecarPolicy into a file, and gives its path.
    pub fn policy_file(&self, name: &str, spec: &Value) -> Result<String> {
        let file = self.cluster.dir().join(format!("{name}.yaml"));
        std::fs::write(&file, policy_object(name, spec).to_string())?;
        Ok(file.to_str().context("a path in UTF-8")?.to_owned())
    }

    /// Merges into the spec of a SidecarPolicy.
    pub async fn edit_policy(&self, name: &str, spec: Value) -> Result<()> {
        policies(&self.cluster).patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await?;
        Ok(())
    }

    /// Deletes a SidecarPolicy.
    pub async fn delete_policy(&self, name: &str) -> Result<()> {
        policies(&self.cluster).delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Creates an object as a user without special rights, and waits for the answer as kubectl does.
    pub async fn create(&self, path: &str, body: &Value) -> Result<Value> {
        Ok(request(&self.creator, "POST", path, body).await?)
    }

    /// The same, but the create must not wait.
    pub async fn create_promptly(&self, path: &str, body: &Value) -> Result<Value> {
        let start = Instant::now();
        let created = self.create(path, body).await?;
        ensure!(start.elapsed() < PROMPT, "the create took {:?}", start.elapsed());
        Ok(created)
    }

    /// Creates an object as an administrator without waiting. The body may have its own initializers.
    pub async fn create_async(&self, path: &str, body: &Value) -> Result<Value> {
        Ok(request(&self.admin, "POST", &format!("{path}?includeUninitialized=1"), body).await?)
    }

    /// An object, initialized or not.
    pub async fn get(&self, path: &str) -> Result<Option<Value>> {
        match request(&self.admin, "GET", path, &Value::Null).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The items of a list.
    pub async fn list(&self, path: &str) -> Result<Vec<Value>> {
        let list = request(&self.admin, "GET", path, &Value::Null).await?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Creates a Namespace.
    pub async fn namespace(&self, name: &str, labels: &Value) -> Result<()> {
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } });
        request(&self.admin, "POST", "/api/v1/namespaces", &namespace).await?;
        Ok(())
    }

    /// A JSON Patch as an administrator.
    pub async fn patch(&self, path: &str, patch: &Value) -> Result<Value> {
        Ok(request(&self.admin, "PATCH", path, patch).await?)
    }

    /// Completes an object as a foreign initializer: removes its entry.
    pub async fn complete_foreign(&self, path: &str) -> Result<()> {
        let object = self.get(path).await?.context("it is gone")?;
        let whole = pending(&object).len() == 1;
        let remove = if whole { "/metadata/initializers" } else { "/metadata/initializers/pending/0" };
        self.patch(path, &json!([{ "op": "remove", "path": remove }])).await.map(drop)
    }

    /// Deletes as an administrator.
    pub async fn delete(&self, path: &str) -> Result<()> {
        request(&self.admin, "DELETE", &format!("{path}?propagationPolicy=Background"), &json!({})).await?;
        Ok(())
    }

    /// Registers a foreign initializer for Deployments, and waits until the server uses it.
    pub async fn foreign(&self, configuration: &str, initializer: &str) -> Result<()> {
        let body = json!({
            "apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "InitializerConfiguration", "metadata": { "name": configuration },
            "initializers": [{ "name": initializer, "rules": [{ "apiGroups": ["apps"], "apiVersions": ["*"], "resources": ["deployments"] }] }],
        });
        request(&self.admin, "POST", CONFIGURATIONS, &body).await?;
        within(LIMIT, "the foreign initializer is in effect", || async {
            Ok(self.assigned().await?.iter().any(|name| name == initializer))
        })
        .await
    }

    /// Waits until an object has no pending initializer, and returns it.
    pub async fn initialized(&self, path: &str) -> Result<Value> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let object = self.get(path).await?.context("it is gone")?;
            if object["metadata"].get("initializers").is_none() {
                return Ok(object);
            }
            ensure!(Instant::now() < deadline, "{path} still waits: {}", object["metadata"]["initializers"]);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The events about an object, as `reason: message`.
    pub async fn events(&self, name: &str) -> Result<Vec<String>> {
        let items = self.list("/api/v1/namespaces/default/events").await?;
        let about = items.into_iter().filter(|event| event["involvedObject"]["name"] == name);
        Ok(about
            .map(|event| {
                format!(
                    "{}: {}",
                    event["reason"].as_str().unwrap_or_default(),
                    event["message"].as_str().unwrap_or_default()
                )
            })
            .collect())
    }

    /// Waits for an event about an object that begins with `beginning`.
    pub async fn event(&self, name: &str, beginning: &str) -> Result<String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let events = self.events(name).await?;
            if let Some(event) = events.iter().find(|event| event.starts_with(beginning)) {
                return Ok(event.clone());
            }
            ensure!(Instant::now() < deadline, "no event `{beginning}` about {name} but {events:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The names of the stored initializer configurations.
    pub async fn configurations(&self) -> Result<Vec<String>> {
        let items = self.list(CONFIGURATIONS).await?;
        Ok(items.iter().filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned)).collect())
    }

    /// All registrations of ours, of any engine, as `resource/name`.
    pub async fn registered(&self) -> Result<Vec<String>> {
        Ok(self.registrations().await?.into_iter().map(|(name, _)| name).collect())
    }

    /// The names of the policies that own a registration.
    pub async fn owners(&self) -> Result<BTreeSet<String>> {
        let registered = self.registrations().await?;
        let owners = registered.iter().filter_map(|(_, object)| object["metadata"]["ownerReferences"].as_array());
        Ok(owners.flatten().filter_map(|owner| owner["name"].as_str().map(str::to_owned)).collect())
    }

    /// All registrations of ours, of any engine, as `resource/name` with the object.
    async fn registrations(&self) -> Result<Vec<(String, Value)>> {
        let version = self.cluster.version();
        let api = version.registration();
        let mut resources = vec![(api, "mutatingwebhookconfigurations"), (api, "validatingwebhookconfigurations")];
        if version.has_initializers() {
            resources.push(("v1alpha1", "initializerconfigurations"));
        }
        if version.has(Feature::ValidatingAdmissionPolicy) {
            resources.extend([(api, "validatingadmissionpolicies"), (api, "validatingadmissionpolicybindings")]);
        }
        if version.has(Feature::MutatingAdmissionPolicy) {
            resources.extend([(api, "mutatingadmissionpolicies"), (api, "mutatingadmissionpolicybindings")]);
        }
        let mut registered = Vec::new();
        for (version, resource) in resources {
            let path = format!(
                "/apis/admissionregistration.k8s.io/{version}/{resource}?labelSelector=app.kubernetes.io/managed-by=scpol"
            );
            let items = self.list(&path).await?;
            let named = items.into_iter().map(|item| {
                let name = item["metadata"]["name"].as_str().unwrap_or_default();
                (format!("{resource}/{name}"), item)
            });
            registered.extend(named);
        }
        Ok(registered)
    }

    /// The initializers of a new Deployment, by a dry-run create.
    pub async fn assigned(&self) -> Result<Vec<String>> {
        let path = format!("{DEPLOYMENTS}?dryRun=All&includeUninitialized=1");
        Ok(pending(&request(&self.admin, "POST", &path, &deployment("probe")).await?))
    }

    /// The first step in an emergency: deletes every registration of ours by hand.
    pub async fn break_glass(&self) -> Result<()> {
        let ours = "app.kubernetes.io/managed-by=scpol";
        self.cluster.kubectl_output(User::Admin, &["delete", "initializerconfigurations", "-l", ours]).await.map(drop)
    }

    /// Waits until creates of Deployments get no entry of ours, because the server has seen the removal.
    pub async fn unregistered(&self) -> Result<()> {
        within(LIMIT, "creates get no entry of ours", || async { Ok(self.assigned().await?.is_empty()) }).await
    }

    /// Waits until the operator has, or has not, the right to `verb` on a resource, such as `deployments.apps`.
    pub async fn operator_may(&self, verb: &str, resource: &str, allowed: bool) -> Result<()> {
        let operator = self.cluster.client(User::Operator);
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let attributes = json!({ "verb": verb, "group": group, "resource": resource });
        let question = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": { "resourceAttributes": attributes } });
        within(LIMIT, &format!("`{verb}` {resource} is {allowed}"), || async {
            let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
            Ok(request(&operator, "POST", path, &question).await?["status"]["allowed"] == allowed)
        })
        .await
    }

    /// Waits until a field of a policy's status has this value.
    pub async fn status(&self, policy: &str, field: &str, value: i64) -> Result<()> {
        within(LIMIT, &format!("status.{field} of {policy} is {value}"), || async {
            Ok(policies(&self.cluster).get(policy).await?.data["status"][field] == value)
        })
        .await
    }

    /// Waits until the operator's PATCHes of the object are in the audit log, and checks their number.
    pub async fn patched(&self, name: &str, times: usize) -> Result<()> {
        // The log is written after the answer, so the answer to the creator may be faster.
        within(LIMIT, &format!("{name} has been patched {times} times"), || async { Ok(self.patches(name) >= times) })
            .await?;
        ensure!(self.patches(name) == times, "{name} has been patched {} times", self.patches(name));
        Ok(())
    }

    /// The number of the operator's successful patches of the object in the audit log.
    pub fn patches(&self, name: &str) -> usize {
        let ours = |event: &&Value| {
            event["user"]["username"] == User::Operator.name()
                && event["verb"] == "patch"
                && event["objectRef"]["name"] == name
        };
        let ok = |event: &&Value| event["responseStatus"]["code"].as_i64().is_some_and(|code| code < 300);
        let stored = |event: &&Value| !event["requestURI"].as_str().unwrap_or_default().contains("dryRun");
        self.cluster
            .audit()
            .iter()
            .filter(ours)
            .filter(ok)
            .filter(stored)
            .filter(|event| event["objectRef"]["subresource"].is_null())
            .count()
    }
}

/// Sends and reads JSON without loss.
pub async fn request(client: &Client, method: &str, path: &str, body: &Value) -> kube::Result<Value> {
    client.request::<Value>(message(method, path, body)).await
}

/// The same, but returns the answer as text.
pub async fn text(client: &Client, method: &str, path: &str, body: &Value) -> kube::Result<String> {
    client.request_text(message(method, path, body)).await
}

fn message(method: &str, path: &str, body: &Value) -> Request<Vec<u8>> {
    let content = if method == "PATCH" { "application/json-patch+json" } else { "application/json" };
    let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let message = Request::builder().method(method).uri(path).header("Content-Type", content).body(bytes);
    message.expect("a well-formed request")
}

/// A SidecarPolicy.
pub fn policy_object(name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "metadata": { "name": name }, "spec": spec })
}

/// A policy for Deployments that adds one container.
pub fn sidecar(name: &str) -> Value {
    sidecar_of(name, "envoy:1")
}

/// A policy for Deployments that adds one container with this image.
pub fn sidecar_of(name: &str, image: &str) -> Value {
    json!({ "template": { "containers": [{ "name": name, "image": image }] } })
}

/// The smallest Deployment.
pub fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "selector": { "matchLabels": { "app": name } }, "template": pod_template(name) },
    })
}

/// A Deployment with its own list of initializers.
pub fn waiting(name: &str, pending: &[&str]) -> Value {
    waiting_for(deployment(name), pending)
}

/// `object` with its own list of initializers.
pub fn waiting_for(mut object: Value, pending: &[&str]) -> Value {
    object["metadata"]["initializers"] =
        json!({ "pending": pending.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>() });
    object
}

/// The smallest pod template.
pub fn pod_template(name: &str) -> Value {
    json!({ "metadata": { "labels": { "app": name } }, "spec": { "containers": [{ "name": "app", "image": "nginx:1.8.1" }] } })
}

/// The smallest pod.
pub fn pod(name: &str) -> Value {
    let mut pod = pod_template(name);
    (pod["apiVersion"], pod["kind"], pod["metadata"]["name"]) = (json!("v1"), json!("Pod"), json!(name));
    pod
}

/// An authority and its certificate for `names`, which ends in `year`: `ca.crt`, `ca.key`, `tls.crt`, `tls.key`.
pub fn certificate(names: &[&str], year: i32) -> Result<[String; 4]> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let (ca_pem, ca_key_pem) = (ca.self_signed(&ca_key)?.pem(), ca_key.serialize_pem());
    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
    (leaf.not_before, leaf.not_after) = (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(year, 1, 1));
    let leaf = leaf.signed_by(&key, &Issuer::new(ca, ca_key))?.pem();
    Ok([ca_pem, ca_key_pem, leaf, key.serialize_pem()])
}

/// The Secret of the webhook's certificates, with these files: `ca.crt`, `ca.key`, `tls.crt`, `tls.key`.
pub fn secret(files: [&str; 4]) -> Value {
    let keys = ["ca.crt", "ca.key", "tls.crt", "tls.key"].into_iter().zip(files);
    let data: serde_json::Map<_, _> =
        keys.map(|(key, text)| (key.to_owned(), json!(ByteString(text.as_bytes().to_vec())))).collect();
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "scpol-webhook" }, "data": data })
}

/// The names of the containers in a pod template, or of a pod.
pub fn containers(object: &Value) -> Vec<String> {
    let spec = ["/spec/template/spec", "/spec/jobTemplate/spec/template/spec", "/spec"]
        .iter()
        .filter_map(|path| object.pointer(path))
        .find(|spec| spec.get("containers").is_some());
    let items = spec.and_then(|spec| spec["containers"].as_array()).cloned().unwrap_or_default();
    items.iter().filter_map(|item| item["name"].as_str().map(str::to_owned)).collect()
}

/// The pending initializers of an object.
pub fn pending(object: &Value) -> Vec<String> {
    let items = object.pointer("/metadata/initializers/pending").and_then(Value::as_array).cloned().unwrap_or_default();
    items.iter().filter_map(|item| item["name"].as_str().map(str::to_owned)).collect()
}

/// The path of a Deployment.
pub fn path(name: &str) -> String {
    format!("{DEPLOYMENTS}/{name}")
}
