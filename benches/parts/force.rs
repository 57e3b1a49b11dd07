//! The time from the apply of a policy to the first pod with its sidecar, and the server's share of it. The server
//! polls for registrations, so each run applies at another fraction of a second.

use super::figure::{Figure, at_most, told};
use super::load::{operator, send};
use super::rivals::{ADMISSION, Nothing, literal, sidecar};
use super::rounds;
use super::statistics::{median, quantile};
use crate::support::{LIMIT, within};
use crate::world::{PODS, World, containers, pending, request};
use anyhow::{Result, ensure};
use controlplane::{ControlPlane, Version};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const RUNS: usize = 9;
const ENGINES: [(Version, &[&str]); 2] =
    [(Version::V1_13, &["Initializer", "Webhook"]), (Version::NEWEST, &["Webhook", "MutatingAdmissionPolicy"])];
/// The largest time from an apply to the first injected pod, in seconds.
const BAR: f64 = 2.0;

/// See the module.
pub(super) async fn force(figures: &mut Vec<Figure>) -> Result<()> {
    let nothing = Nothing::start(&json!([{ "op": "add", "path": "/spec/containers/-", "value": sidecar() }]))?;
    for (version, engines) in ENGINES {
        let world = World::with(ControlPlane::builder(version)).await?;
        let operator = operator(&world.cluster, &[]).await?;
        for engine in engines {
            let by_hand = by_hand(engine, version, &nothing);
            let (mut ours, mut of_server) = (Vec::new(), Vec::new());
            let runs = rounds(RUNS)?;
            // The first run is a warm-up and does not count.
            for run in 0..=runs {
                let offset = Duration::from_secs(1).mul_f64(run as f64 / runs as f64);
                let took = (policy(&world, engine, offset).await?, registration(&world, &by_hand, offset).await?);
                eprintln!("force, {engine}, {version}, run {run}: {:.2} s, by hand {:.2} s", took.0, took.1);
                if run > 0 {
                    ours.push(took.0);
                    of_server.push(took.1);
                }
            }
            let title = format!("{engine}, {version}: apply to first injected pod");
            figures.extend([
                told(
                    format!("{engine}, {version}: the server's own share, a registration by hand, median"),
                    median(of_server),
                    "s",
                ),
                told(format!("{title}, median"), median(ours.clone()), "s"),
                at_most(format!("{title}, slowest of {runs}"), quantile(ours, 1.0), "s", BAR),
            ]);
        }
        operator.kill().await?;
        world.cluster.stop().await;
    }
    Ok(())
}

/// The time of a policy in seconds. The policy is deleted afterwards.
async fn policy(world: &World, engine: &str, offset: Duration) -> Result<f64> {
    tokio::time::sleep(offset).await;
    let start = Instant::now();
    let spec = json!({
        "engine": engine, "targets": [{ "group": "", "resource": "pods" }], "template": { "containers": [sidecar()] },
    });
    world.policy("bench", spec).await?;
    let took = first(world, PODS, start, |created| containers(created) == ["app", "sidecar"]).await?;
    world.delete_policy("bench").await?;
    within(LIMIT, "nothing is registered", || async { Ok(world.registered().await?.is_empty()) }).await?;
    untouched(world).await?;
    send(&world.creator, "DELETE", PODS, "application/json", &json!({})).await?;
    Ok(took)
}

/// The time of a hand-written equivalent, which is only the server's.
async fn registration(world: &World, objects: &[(String, Value)], offset: Duration) -> Result<f64> {
    tokio::time::sleep(offset).await;
    let start = Instant::now();
    for (collection, object) in objects {
        request(&world.admin, "POST", collection, object).await?;
    }
    let is_served = |created: &Value| containers(created) == ["app", "sidecar"] || !pending(created).is_empty();
    let took = first(world, &tried(world), start, is_served).await?;
    for (collection, object) in objects {
        world.delete(&format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap_or_default())).await?;
    }
    untouched(world).await?;
    Ok(took)
}

/// Seconds from `start` to the first pod, created at `path`, for which `is_served` is true.
async fn first(world: &World, path: &str, start: Instant, is_served: impl Fn(&Value) -> bool) -> Result<f64> {
    loop {
        let created = world.create(path, &pod()).await?;
        if is_served(&created) {
            return Ok(start.elapsed().as_secs_f64());
        }
        ensure!(start.elapsed() < LIMIT, "no pod is served: {created}");
        // The pause leaves the server time for other work.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until pods are stored as posted.
async fn untouched(world: &World) -> Result<()> {
    within(LIMIT, "nobody changes pods", || async {
        let created = world.create(&tried(world), &pod()).await?;
        Ok(containers(&created) == ["app"] && pending(&created).is_empty())
    })
    .await
}

/// The path for dry-run creates of pods that wait for no initializer.
fn tried(world: &World) -> String {
    let waits = if world.cluster.version().has_initializers() { "&includeUninitialized=1" } else { "" };
    format!("{PODS}?dryRun=All{waits}")
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "generateName": "web-" },
        "spec": { "containers": [{ "name": "app", "image": "nginx:1.8.1" }] },
    })
}

/// The smallest hand-written registration for pods: path and object.
fn by_hand(engine: &str, version: Version, nothing: &Nothing) -> Vec<(String, Value)> {
    let rule = json!({ "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"] });
    let api = version.registration();
    match engine {
        "Initializer" => {
            let rule = json!({ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"] });
            let configuration = json!({
                "apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "InitializerConfiguration",
                "metadata": { "name": "by-hand" },
                "initializers": [{ "name": "by-hand.example.org", "rules": [rule] }],
            });
            vec![(format!("{ADMISSION}/v1alpha1/initializerconfigurations"), configuration)]
        }
        "Webhook" => {
            let configuration = json!({
                "apiVersion": format!("admissionregistration.k8s.io/{api}"), "kind": "MutatingWebhookConfiguration",
                "webhooks": [{
                    "name": "nothing.example.org", "rules": [rule], "failurePolicy": "Ignore", "sideEffects": "None",
                    "admissionReviewVersions": [api],
                }],
            });
            vec![(format!("{ADMISSION}/{api}/mutatingwebhookconfigurations"), nothing.registered_as(&configuration))]
        }
        _ => literal(),
    }
}
