//! The time from an edit of an image to its end, in running pods. A stand-in for kubelets takes a second for each pod.

use super::estate::all;
use super::figure::{Figure, at_most, told};
use super::load::{create_patiently, send};
use super::rollout::{complete, grant, template, writes};
use super::scale::operator_of_many;
use crate::support::{LIMIT, within};
use crate::world::World;
use anyhow::{Context, Result, ensure};
use controlplane::{ControlPlane, User, Version};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long a pod is not ready after a change of its image.
const SETTLES: Duration = Duration::from_secs(1);
/// The most status writes of the stand-in at the same time.
const HANDS: usize = 16;
/// ReplicaSets, the pods of each, `maxUnavailable`, and the longest time from the edit to `Complete`, in seconds.
const SCENES: [(usize, usize, &str, f64); 4] =
    [(1, 60, "100%", 4.0), (1, 60, "25%", 10.0), (100, 5, "100%", 4.0), (100, 5, "25%", 8.0)];

/// See the module.
pub(super) async fn pace(figures: &mut Vec<Figure>) -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST).audit_log()).await?;
    grant(&world).await?;
    let operator = operator_of_many(&world.cluster).await?;
    for (number, scene) in SCENES.into_iter().enumerate() {
        figures.extend(measure(&world, number, scene).await?);
    }
    operator.kill().await?;
    world.cluster.stop().await;
    Ok(())
}

async fn measure(
    world: &World,
    number: usize,
    (owners, replicas, max_unavailable, bar): (usize, usize, &'static str, f64),
) -> Result<[Figure; 5]> {
    let policy = format!("pace-{number}");
    let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": policy } });
    send(&world.admin, "POST", "/api/v1/namespaces", "application/json", &body).await?;
    let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": max_unavailable } });
    let spec = json!({
        "targets": [{ "group": "", "resource": "pods" }],
        "namespaces": [policy],
        "updateStrategy": strategy,
        "template": template("1"),
    });
    world.enforce(&policy, spec).await?;
    all(0..owners, |owner| replica_set(world, &policy, owner, replicas)).await?;
    let pods = owners * replicas;
    let kubelet = Kubelet::start(world.admin.clone(), policy.clone());
    within(LIMIT, "all pods are ready", || async { Ok(kubelet.ready("envoy:1") == pods) }).await?;
    complete(world, &policy, "1", pods).await?;
    world.cluster.clear_audit()?;
    let start = Instant::now();
    world.edit_policy(&policy, json!({ "template": template("2") })).await?;
    complete(world, &policy, "2", pods).await?;
    let took = start.elapsed();
    ensure!(kubelet.ready("envoy:2") == pods, "{} of {pods} pods are ready", kubelet.ready("envoy:2"));
    let [first, last] = kubelet.times().context("no pod has changed")?;
    let size = format!("pace: {pods} pods of {owners} owners, {max_unavailable}");
    let reads = reads(world);
    Ok([
        at_most(format!("{size}: edit to Complete"), took.as_secs_f64(), "s", bar),
        at_most(format!("{size}: edit to the first changed pod"), (first - start).as_secs_f64(), "s", 1.0),
        at_most(
            format!("{size}: last pod ready to Complete"),
            (start + took).saturating_duration_since(last).as_secs_f64(),
            "s",
            2.0,
        ),
        told(format!("{size}: writes for a pod"), writes(world) as f64 / pods as f64, ""),
        told(format!("{size}: reads of a pod"), reads as f64 / pods as f64, ""),
    ])
}

/// Creates a ReplicaSet and its pods, which are not ready yet.
async fn replica_set(world: &World, namespace: &str, number: usize, replicas: usize) -> Result<()> {
    let name = format!("web-{number}");
    let pod = json!({
        "metadata": { "labels": { "app": name } }, "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
    });
    let body = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": { "name": name },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": name } }, "template": pod },
    });
    let path = format!("/apis/apps/v1/namespaces/{namespace}/replicasets");
    let owner: Value = serde_json::from_str(&create_patiently(&world.creator, &path, &body).await?)?;
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    for replica in 0..replicas {
        let mut body = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"], "spec": pod["spec"] });
        body["metadata"]["name"] = format!("{name}-{replica}").into();
        body["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": owner["metadata"]["uid"], "controller": true,
        }]);
        let created = create_patiently(&world.creator, &path, &body).await?;
        ensure!(created.contains("envoy:1"), "{name}-{replica} has no sidecar");
    }
    Ok(())
}

/// What the stand-in knows of one pod: its image, and whether it is ready with that.
type Running = HashMap<String, (String, bool)>;

/// A stand-in for the kubelets of the pods of one namespace. It ends when it is dropped.
struct Kubelet {
    task: tokio::task::JoinHandle<()>,
    node: Arc<Node>,
}

struct Node {
    client: Client,
    namespace: String,
    hands: Semaphore,
    pods: Mutex<Running>,
    /// When it saw the first change of an image, and when it made the last pod ready.
    times: Mutex<Option<[Instant; 2]>>,
}

impl Kubelet {
    fn start(client: Client, namespace: String) -> Self {
        let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
        let node = Arc::new(Node {
            client,
            namespace,
            hands: Semaphore::new(HANDS),
            pods: Mutex::default(),
            times: Mutex::default(),
        });
        let own = node.clone();
        let task = tokio::spawn(async move {
            let seen = watcher(pods, watcher::Config::default()).applied_objects();
            seen.for_each_concurrent(None, |pod| async {
                let result = async { own.see(&pod?).await };
                if let Err(error) = result.await {
                    eprintln!("pace: {error:#}");
                }
            })
            .await;
        });
        Self { task, node }
    }

    /// How many pods run that image and are ready.
    fn ready(&self, image: &str) -> usize {
        let pods = self.node.pods.lock().expect("nobody panics with it");
        pods.values().filter(|(running, is_ready)| running == image && *is_ready).count()
    }

    fn times(&self) -> Option<[Instant; 2]> {
        *self.node.times.lock().expect("nobody panics with it")
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Node {
    /// Makes a new pod ready. One whose image has changed becomes not ready, and ready after [`SETTLES`].
    async fn see(&self, pod: &Pod) -> Result<()> {
        let name = pod.name_any();
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let image = containers.filter(|container| container.name == "envoy").find_map(|found| found.image.clone());
        let image = image.unwrap_or_default();
        let before = {
            let mut pods = self.pods.lock().expect("nobody panics with it");
            if pods.get(&name).is_some_and(|(running, _)| *running == image) {
                return Ok(());
            }
            pods.insert(name.clone(), (image.clone(), false))
        };
        if let Some((before, _)) = before {
            let now = Instant::now();
            self.times.lock().expect("nobody panics with it").get_or_insert([now, now]);
            self.write(&name, &before, false).await?;
            tokio::time::sleep_until((now + SETTLES).into()).await;
        }
        self.write(&name, &image, true).await?;
        self.pods.lock().expect("nobody panics with it").insert(name, (image, true));
        if let Some(times) = self.times.lock().expect("nobody panics with it").as_mut() {
            times[1] = Instant::now();
        }
        Ok(())
    }

    async fn write(&self, name: &str, image: &str, is_ready: bool) -> Result<()> {
        let _hand = self.hands.acquire().await?;
        let path = format!("/api/v1/namespaces/{}/pods/{name}/status", self.namespace);
        let container = |name: &str, image: &str| json!({ "name": name, "image": image, "imageID": "", "ready": is_ready, "restartCount": 0, "state": { "running": {} } });
        let status = json!({ "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": if is_ready { "True" } else { "False" },
                "lastTransitionTime": jiff::Timestamp::now().to_string() }],
            "containerStatuses": [container("app", "app:1"), container("envoy", image)],
        } });
        send(&self.client, "PATCH", &path, "application/merge-patch+json", &status).await?;
        Ok(())
    }
}

/// The operator's reads of single pods in the audit log.
fn reads(world: &World) -> usize {
    let audit = world.cluster.audit();
    let ours = audit.iter().filter(|event| event["user"]["username"] == User::Operator.name());
    ours.filter(|event| event["verb"] == "get" && event["objectRef"]["resource"] == "pods").count()
}
