//! How many pods a rollout may take from their owners, on a server without controllers: [`ReplicaSets`] makes pods again as slowly as the test
//! wants.

use crate::prelude::*;
use crate::rollouts::{grant, image_of, rolling};
use kube::Client;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::task::JoinHandle;

crate::tests![pods_that_a_label_of_their_namespace_brings_into_a_rollout_are_evicted_one_at_a_time,];

/// How long an owner takes until it makes a pod again, and a kubelet until a pod is ready.
const TAKES: Duration = Duration::from_millis(500);
/// The pods of each owner.
const REPLICAS: usize = 3;

/// Plays the controller of ReplicaSets and the kubelets.
struct ReplicaSets {
    task: JoinHandle<()>,
    /// The most pods of all that were not there and ready at one time.
    most: Arc<AtomicUsize>,
}

impl ReplicaSets {
    /// Keeps the pods of one ReplicaSet `web` in each of `namespaces`. The UIDs are those of the ReplicaSets.
    fn start(creator: Client, admin: Client, namespaces: Vec<(&'static str, String)>) -> Self {
        let most = Arc::new(AtomicUsize::new(0));
        let seen = most.clone();
        let task = tokio::spawn(async move {
            let (mut lacking, mut number) = (HashMap::new(), 0);
            loop {
                let mut missing = 0;
                for (namespace, uid) in &namespaces {
                    let place = format!("/api/v1/namespaces/{namespace}/pods");
                    let Ok(list) = request(&admin, "GET", &place, &Value::Null).await else { continue };
                    let pods = list["items"].as_array().cloned().unwrap_or_default();
                    missing += REPLICAS.saturating_sub(pods.iter().filter(|pod| is_ready(pod)).count());
                    for pod in pods.iter().filter(|pod| !is_ready(pod)) {
                        become_ready(&admin, &place, pod).await;
                    }
                    if pods.len() >= REPLICAS {
                        lacking.remove(namespace);
                        continue;
                    }
                    let since = *lacking.entry(*namespace).or_insert_with(Instant::now);
                    if since.elapsed() < TAKES {
                        continue;
                    }
                    number += 1;
                    lacking.remove(namespace);
                    if let Err(error) = request(&creator, "POST", &place, &pod(number, uid)).await {
                        eprintln!("no pod can be made in {namespace}: {error}");
                    }
                }
                seen.fetch_max(missing, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Self { task, most }
    }
}

impl Drop for ReplicaSets {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn pod(number: usize, owner: &str) -> Value {
    let mut pod = pod_template("web");
    (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
    pod["metadata"]["name"] = json!(format!("web-{number}"));
    pod["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": owner, "controller": true }]);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
    pod
}

/// Says that `pod` is ready, if it is old enough.
async fn become_ready(admin: &Client, place: &str, pod: &Value) {
    let now = jiff::Timestamp::now();
    let created = pod["metadata"]["creationTimestamp"].as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    // Creation times are in whole seconds.
    if created.is_none_or(|created| now.duration_since(created).unsigned_abs() < TAKES) {
        return;
    }
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten().map(|item| {
        json!({ "name": item["name"], "image": item["image"], "imageID": "x", "ready": true, "restartCount": 0,
            "state": { "running": { "startedAt": now.to_string() } } })
    });
    let status = json!({
        "phase": "Running", "containerStatuses": containers.collect::<Vec<_>>(),
        "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": now.to_string() }],
    });
    let patch = json!([{ "op": "add", "path": "/status", "value": status }]);
    // The pod may be gone.
    if let Err(error) = request(admin, "PATCH", &format!("{place}/{name}/status"), &patch).await {
        eprintln!("the status of {name} cannot be set: {error}");
    }
}

/// Creates a Namespace with these labels, and the ReplicaSet `web` in it. Returns the UID of the ReplicaSet.
async fn replica_set(world: &World, namespace: &str, labels: Value) -> Result<String> {
    world.namespace(namespace, &labels).await?;
    let mut set = deployment("web");
    (set["kind"], set["spec"]["replicas"]) = (json!("ReplicaSet"), json!(REPLICAS));
    let path = format!("/apis/apps/v1/namespaces/{namespace}/replicasets");
    let set = request(&world.admin, "POST", &path, &set).await?;
    Ok(set["metadata"]["uid"].as_str().context("a uid")?.to_owned())
}

/// Waits until all pods of `namespace` are ready, and each of them `is` so.
async fn wait(world: &World, namespace: &str, what: &str, is: impl Fn(&Value) -> bool) -> Result<()> {
    within(LIMIT, what, || async {
        let pods = world.list(&format!("/api/v1/namespaces/{namespace}/pods")).await?;
        Ok(pods.len() == REPLICAS && pods.iter().all(|pod| is_ready(pod) && is(pod)))
    })
    .await
}

async fn pods_that_a_label_of_their_namespace_brings_into_a_rollout_are_evicted_one_at_a_time() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST)).await?;
    grant(&world).await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    let template = |value: &str| {
        let env = json!([{ "name": "A", "value": value }]);
        json!({ "containers": [{ "name": "envoy", "image": "envoy:1", "env": env }] })
    };
    let mut spec = rolling("envoy:1", json!({ "maxUnavailable": 1 }));
    spec["targets"] = json!([{ "group": "", "resource": "pods" }]);
    spec["namespaceSelector"] = json!({ "matchLabels": { "mesh": "on" } });
    spec["template"] = template("1");
    world.enforce("envoy", spec).await?;
    let mut sets = Vec::new();
    for (namespace, labels) in [("first", json!({ "mesh": "on" })), ("second", json!({})), ("third", json!({}))] {
        sets.push((namespace, replica_set(&world, namespace, labels).await?));
    }
    let played = ReplicaSets::start(world.creator.clone(), world.admin.clone(), sets);
    wait(&world, "first", "the pods of the first Namespace have the sidecar", |pod| {
        image_of(pod, "envoy") == "envoy:1"
    })
    .await?;
    for namespace in ["second", "third"] {
        wait(&world, namespace, "the other pods run without it", |pod| image_of(pod, "envoy").is_empty()).await?;
    }
    played.most.store(0, Ordering::Relaxed);

    // While nothing is to be done.
    let label = json!([{ "op": "add", "path": "/metadata/labels/mesh", "value": "on" }]);
    world.patch("/api/v1/namespaces/second", &label).await?;
    wait(&world, "second", "the pods of the second Namespace have it", |pod| image_of(pod, "envoy") == "envoy:1")
        .await?;
    let most = played.most.swap(0, Ordering::Relaxed);
    ensure!(most == 1, "{most} pods were missing at once, and one may be");

    // While a rollout goes on, which takes a new pod each time.
    world.edit_policy("envoy", json!({ "template": template("2") })).await?;
    within(LIMIT, "the first pod is evicted", || async { Ok(played.most.load(Ordering::Relaxed) > 0) }).await?;
    world.patch("/api/v1/namespaces/third", &label).await?;
    for namespace in ["first", "second", "third"] {
        let is_new = |pod: &Value| pod["spec"]["containers"][1]["env"][0]["value"] == "2";
        wait(&world, namespace, &format!("the pods of the Namespace {namespace} are new"), is_new).await?;
    }
    let most = played.most.load(Ordering::Relaxed);
    ensure!(most == 1, "{most} pods were missing at once, and one may be");
    Ok(())
}
