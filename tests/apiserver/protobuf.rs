//! What a watch shows in protobuf is what the server has in JSON.

use crate::corpus::{self, Case, collection};
use crate::world::{World, request};
use anyhow::{Context, Result, bail, ensure};
use controlplane::{ControlPlane, User, Version};
use http::header::CONTENT_TYPE;
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::{Body, ClientBuilder};
use kube::core::WatchEvent;
use serde_json::{Value, json};
use sidecar_policy::cluster::object::Object;
use sidecar_policy::cluster::protobuf::Protobuf;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tower::util::MapResponseLayer;

crate::tests![a_watch_in_protobuf_shows_what_1_13_has_in_json, a_watch_in_protobuf_shows_what_1_36_has_in_json,];

/// Every kind that is watched in protobuf, and at least how many objects of it there are.
const WATCHED: [(&str, usize); 7] = [
    ("/api/v1/pods", 30),
    ("/apis/apps/v1/daemonsets", 1),
    ("/apis/apps/v1/deployments", 150),
    ("/apis/apps/v1/replicasets", 1),
    ("/apis/batch/v1/cronjobs", 1),
    ("/apis/batch/v1/jobs", 2),
    ("/apis/batch/v1beta1/cronjobs", 1),
];

async fn a_watch_in_protobuf_shows_what_1_13_has_in_json() -> Result<()> {
    shows_what_the_server_has(Version::V1_13).await
}

async fn a_watch_in_protobuf_shows_what_1_36_has_in_json() -> Result<()> {
    shows_what_the_server_has(Version::V1_36).await
}

async fn shows_what_the_server_has(version: Version) -> Result<()> {
    let world = World::with(ControlPlane::builder(version)).await?;
    let cases = corpus::cases(version)?;
    corpus::create_namespaces(&world, &cases).await?;
    for body in [rich_pod(), replica_set()] {
        request(&world.admin, "POST", &collection(&body)?, &body).await?;
    }
    for body in cases.iter().flat_map(bodies) {
        // What this server does not take, or does not know, is nothing that a watch shows.
        let _ = request(&world.admin, "POST", &format!("{}?includeUninitialized=1", collection(&body)?), &body).await;
    }
    // A second one has written it, which servers of today note.
    let label = json!([{ "op": "add", "path": "/metadata/labels/second", "value": "2" }]);
    let rich = world.patch("/api/v1/namespaces/default/pods/rich?fieldManager=second", &label).await?;
    let writers = rich["metadata"]["managedFields"].as_array().map_or(0, Vec::len);
    assert_eq!(writers, if version == Version::V1_36 { 2 } else { 0 });
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let client = client(&world, &kinds)?;
    let mut compared = 0;
    for (path, least) in WATCHED {
        let is_there = match path {
            "/apis/batch/v1/cronjobs" => version == Version::V1_36,
            "/apis/batch/v1beta1/cronjobs" => version == Version::V1_13,
            _ => true,
        };
        if !is_there {
            continue;
        }
        let mut stored = stored(&world, path).await?;
        let shown = shown(&client, path).await.with_context(|| path.to_owned())?;
        ensure!(stored.len() >= least, "{path}: {} objects", stored.len());
        ensure!(shown.len() == stored.len(), "{path}: {} of {} are shown", shown.len(), stored.len());
        for (key, object) in shown {
            let expected = stored.remove(&key).with_context(|| format!("{path}: {key:?} is not stored"))?;
            // The whole would be too long to be read.
            ensure!(object == expected, "{path} {key:?}:\n  protobuf {object}\n  JSON     {expected}");
            compared += 1;
        }
    }
    ensure!(compared >= 300, "only {compared} objects");
    let kinds = kinds.lock().expect("nobody panics").clone();
    assert_eq!(kinds, vec!["application/vnd.kubernetes.protobuf;stream=watch".to_owned(); 6]);
    Ok(())
}

/// As a user posts it, and as `scpol inject` leaves it.
fn bodies(case: &Case) -> Vec<Value> {
    let injected = case.injected.clone().map(|mut injected| {
        injected["metadata"]["name"] =
            json!(format!("{}-injected", case.workload["metadata"]["name"].as_str().unwrap_or_default()));
        injected
    });
    let bodies = [Some(case.workload.clone()), injected];
    bodies
        .into_iter()
        .flatten()
        .filter(|body| !body["apiVersion"].as_str().unwrap_or_default().contains("example"))
        .collect()
}

/// A client that watches as the operator does; `kinds` gets the content type of each answer.
fn client(world: &World, kinds: &Arc<Mutex<Vec<String>>>) -> Result<Client> {
    let kinds = kinds.clone();
    let note = move |answer: Response<_>| {
        let kind =
            answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
        kinds.lock().expect("nobody panics").push(kind);
        answer
    };
    let builder = ClientBuilder::try_from(world.cluster.client_config(User::Admin))?;
    Ok(builder.with_layer(&MapResponseLayer::new(note)).with_layer(&Protobuf::default()).build())
}

/// By namespace and name.
type Objects = BTreeMap<(String, String), Value>;

async fn stored(world: &World, path: &str) -> Result<Objects> {
    let list = request(&world.admin, "GET", &format!("{path}?includeUninitialized=1"), &Value::Null).await?;
    let items = list["items"].as_array().context("items")?;
    Ok(items.iter().map(|item| keyed(item.clone())).collect())
}

async fn shown(client: &Client, path: &str) -> Result<Objects> {
    let path = format!("{path}?watch=true&resourceVersion=0&timeoutSeconds=2&includeUninitialized=1");
    let answer = client.send(Request::get(path).body(Body::empty())?).await?;
    let text = String::from_utf8(answer.into_body().collect().await?.to_bytes().to_vec())?;
    let mut objects = Objects::new();
    for line in text.lines() {
        let WatchEvent::Added(object) = serde_json::from_str::<WatchEvent<Object>>(line)? else { bail!("{line}") };
        let shown = object.value();
        let (key, _) = keyed(shown.clone());
        ensure!(key == (object.namespace().to_owned(), object.name().to_owned()), "{key:?} is shown as {object:?}");
        ensure!(shown.get("status").is_none(), "{shown}");
        ensure!(shown["kind"].is_string() && shown["apiVersion"].is_string(), "{shown}");
        objects.extend([keyed(shown)]);
    }
    Ok(objects)
}

/// A list does not say of which kind each object is; and of what is not there, JSON says some as null. What nobody decides by is
/// left out.
fn keyed(mut object: Value) -> ((String, String), Value) {
    for field in ["kind", "apiVersion", "status"] {
        object.as_object_mut().map(|object| object.remove(field));
    }
    object["metadata"].as_object_mut().map(|metadata| metadata.remove("managedFields"));
    without_null(&mut object);
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    ((text("namespace"), text("name")), object)
}

fn without_null(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(without_null),
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(without_null);
        }
        _ => {}
    }
}

/// A pod with something of every form: zeros that JSON has and zeros that it has not, maps, quantities, ports by number and by name.
fn rich_pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "rich", "namespace": "default", "labels": { "a": "" }, "annotations": { "odd": "\"\\\t\u{0}é\u{2028}" } },
        "spec": {
            "serviceAccountName": "default", "activeDeadlineSeconds": 1, "priority": 0, "automountServiceAccountToken": false, "shareProcessNamespace": false,
            "terminationGracePeriodSeconds": 0, "dnsPolicy": "None",
            "dnsConfig": { "nameservers": ["10.0.0.1"], "options": [{ "name": "ndots", "value": "2" }, { "name": "rotate" }] },
            "hostAliases": [{ "ip": "127.0.0.1", "hostnames": ["a", "b"] }],
            "securityContext": { "runAsUser": 0, "runAsNonRoot": false, "supplementalGroups": [0, 7], "fsGroup": 3, "sysctls": [{ "name": "net.a", "value": "" }] },
            "tolerations": [{ "key": "x", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -1 }, { "operator": "Exists" }],
            "affinity": {
                "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "k", "operator": "In", "values": ["v"] }] }] } },
                "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 1, "podAffinityTerm": { "topologyKey": "zone", "labelSelector": {} } }] },
            },
            "volumes": [
                { "name": "empty", "emptyDir": {} }, { "name": "sized", "emptyDir": { "medium": "Memory", "sizeLimit": "0.5Gi" } },
                { "name": "config", "configMap": { "name": "c", "optional": false, "defaultMode": 0, "items": [{ "key": "a", "path": "b", "mode": 256 }] } },
                { "name": "projected", "projected": { "defaultMode": 420, "sources": [
                    { "secret": { "name": "s" } }, { "serviceAccountToken": { "path": "t", "expirationSeconds": 3600 } },
                    { "downwardAPI": { "items": [{ "path": "l", "fieldRef": { "fieldPath": "metadata.labels" } }] } },
                ] } },
                { "name": "host", "hostPath": { "path": "/x", "type": "" } },
                { "name": "csi", "csi": { "driver": "d", "readOnly": false, "volumeAttributes": { "a": "b" } } },
            ],
            "initContainers": [{ "name": "first", "image": "i:1", "args": [], "command": ["a", ""] }],
            "containers": [{
                "name": "app", "image": "app:1", "tty": false, "stdin": true,
                "ports": [{ "containerPort": 80, "protocol": "UDP", "name": "web", "hostIP": "" }],
                "env": [
                    { "name": "EMPTY", "value": "" }, { "name": "CPU", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu", "containerName": "app" } } },
                    { "name": "KEY", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k", "optional": true } } },
                ],
                "envFrom": [{ "prefix": "P_", "configMapRef": { "name": "c" } }],
                "resources": { "limits": { "cpu": "1500m", "memory": "1e3", "example.org/thing": "2" }, "requests": { "cpu": "0.1" } },
                "volumeMounts": [{ "name": "empty", "mountPath": "/e", "readOnly": false }, { "name": "sized", "mountPath": "/s", "subPath": "x", "readOnly": true }],
                "livenessProbe": { "httpGet": { "port": "web", "httpHeaders": [{ "name": "h", "value": "" }] }, "initialDelaySeconds": 0 },
                "readinessProbe": { "tcpSocket": { "port": 80 }, "failureThreshold": 1 },
                "lifecycle": { "preStop": { "exec": { "command": ["sleep", "1"] } } },
                "securityContext": { "privileged": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] }, "allowPrivilegeEscalation": true },
            }],
        },
    })
}

fn replica_set() -> Value {
    let labels = json!({ "app": "rs" });
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": { "name": "rs", "namespace": "default" },
        "spec": { "replicas": 0, "selector": { "matchLabels": labels }, "template": {
            "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
        } },
    })
}
