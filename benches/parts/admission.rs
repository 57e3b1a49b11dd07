//! The engines that act inside the API server, against what could be written by hand instead: 600 pods on 1.36.3.

use super::figure::{Figure, at_least, told};
use super::load::{Phase, operator, phase, processor_seconds, send};
use super::rivals::{ADMISSION, Nothing, literal, sidecar};
use super::rounds;
use super::statistics::median;
use crate::support::{LIMIT, Operator, in_force, within};
use crate::world::{PODS, World, containers, request};
use anyhow::{Context, Result, ensure};
use controlplane::{ControlPlane, Version};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Pods per phase, and rounds of phases: the median round counts.
const PER_PHASE: usize = 600;
const ROUNDS: usize = 9;
/// Pods before the phases of a side, which do not count: they open connections.
const WARM_UP: usize = 200;
const CLIENTS: [usize; 3] = [1, 16, 64];
/// What of a rival's rate is to be reached: what is decided, and the marker, may cost so much more.
const BAR: f64 = 0.95;
const POLICY: &str = "bench";
const MARKER: &str = "injected.scpol.dev/bench";

/// Ours against a webhook that does nothing.
pub(super) async fn webhook(figures: &mut Vec<Figure>) -> Result<()> {
    let scene = Scene::new("Webhook").await?;
    let collection = format!("{ADMISSION}/v1/mutatingwebhookconfigurations");
    let ours = scene.world.get(&format!("{collection}/scpol-pods")).await?.context("our registration")?;
    let rival = vec![(collection, Nothing::start()?.registered_as(&ours))];
    compare(figures, scene, "webhook", "a do-nothing webhook", &rival).await
}

/// Ours against a policy written by hand.
pub(super) async fn policies(figures: &mut Vec<Figure>) -> Result<()> {
    let scene = Scene::new("MutatingAdmissionPolicy").await?;
    compare(figures, scene, "MutatingAdmissionPolicy", "a hand-written one", &literal()).await
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Side {
    Ours,
    Rival,
}

struct Scene {
    world: World,
    operator: Operator,
}

impl Scene {
    /// With one policy for pods in force by `engine`.
    async fn new(engine: &str) -> Result<Self> {
        let world =
            World::with(ControlPlane::builder(Version::V1_36).extra_arg("--delete-collection-workers=16")).await?;
        // Frozen for some seconds now and then, it shall not lose its lease.
        let operator = operator(&world.cluster, &["--lease-duration", "1h"]).await?;
        let spec = json!({
            "engine": engine, "targets": [{ "group": "", "resource": "pods" }], "template": { "containers": [sidecar()] },
        });
        world.policy(POLICY, spec).await?;
        in_force(&world.cluster, POLICY).await?;
        Ok(Self { world, operator })
    }

    /// Puts one of them in force in the place of the other.
    async fn enter(&self, side: Side, rival: &[(String, Value)]) -> Result<()> {
        let admin = &self.world.admin;
        match side {
            Side::Ours => {
                for (collection, object) in rival {
                    let path = format!("{collection}/{}", object["metadata"]["name"].as_str().context("a name")?);
                    self.world.delete(&path).await?;
                }
                self.operator.signal("CONT")?;
                self.world.edit_policy(POLICY, json!({ "suspend": false })).await?;
            }
            Side::Rival => {
                self.world.edit_policy(POLICY, json!({ "suspend": true })).await?;
                let is_gone = || async { Ok(self.world.registered().await?.is_empty()) };
                within(LIMIT, "nothing of ours is registered", is_gone).await?;
                self.operator.signal("STOP")?;
                for (collection, object) in rival {
                    request(admin, "POST", collection, object).await?;
                }
            }
        }
        within(LIMIT, &format!("{side:?} is in force alone"), || async {
            let created = self.world.create(&format!("{PODS}?dryRun=All"), &pod("probe")).await?;
            Ok(containers(&created) == ["app", "sidecar"] && is_of(side, &created.to_string()))
        })
        .await
    }

    /// A phase with each number of clients.
    async fn pods(&self, side: Side) -> Result<Vec<(usize, Measured)>> {
        let (client, nothing) = (&self.world.creator, &json!({}));
        let create = |number: usize| async move {
            let answer = send(client, "POST", PODS, "application/json", &pod(&format!("load-{number}"))).await?;
            ensure!(is_of(side, &answer), "the pod is not of {side:?}: {answer}");
            Ok(())
        };
        let clear = || send(client, "DELETE", PODS, "application/json", nothing);
        let server = *self.world.cluster.pids().first().context("an API server")?;
        phase(64, WARM_UP, create).await?;
        clear().await?;
        let mut measured = Vec::new();
        for clients in CLIENTS {
            let before = processor_seconds(server)?;
            let phase = phase(clients, PER_PHASE, create).await?;
            let processor = (processor_seconds(server)? - before) * 1000.0 / PER_PHASE as f64;
            measured.push((clients, Measured { phase, processor }));
            clear().await?;
        }
        Ok(measured)
    }
}

/// True if and only if it is `side` that has made `object`: only ours leaves a marker.
fn is_of(side: Side, object: &str) -> bool {
    object.contains(r#""name":"sidecar""#) && object.contains(MARKER) == (side == Side::Ours)
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "containers": [{ "name": "app", "image": "nginx:1.8.1", "ports": [{ "containerPort": 80 }] }] },
    })
}

/// What one phase came to.
struct Measured {
    phase: Phase,
    /// Milliseconds of processor time that the API server took for a create: they hardly depend on what else runs.
    processor: f64,
}

/// Phases of both sides, by clients.
type Seen = BTreeMap<usize, (Vec<Measured>, Vec<Measured>)>;

async fn compare(
    figures: &mut Vec<Figure>,
    scene: Scene,
    engine: &str,
    what: &str,
    rival: &[(String, Value)],
) -> Result<()> {
    let mut seen = Seen::new();
    let mut at = Side::Ours;
    // The first round warms everything up and does not count.
    for round in 0..=rounds(ROUNDS)? {
        // Who was last is first: nobody is always the one for whom the server has become slower.
        let other = if at == Side::Ours { Side::Rival } else { Side::Ours };
        for side in [at, other] {
            if side != at {
                scene.enter(side, rival).await?;
                at = side;
            }
            for (clients, measured) in scene.pods(side).await? {
                let Measured { phase: Phase { rate, p50, p99, .. }, processor } = &measured;
                eprintln!(
                    "{engine}, round {round}, {clients:>2} clients: {side:?} {rate:6.0}/s p50 {p50:6.2} ms p99 {p99:6.2} ms, server {processor:5.2} ms"
                );
                if round > 0 {
                    let (ours, rivals) = seen.entry(clients).or_default();
                    if side == Side::Ours { ours.push(measured) } else { rivals.push(measured) }
                }
            }
        }
    }
    tell(figures, engine, what, &seen);
    scene.operator.kill().await?;
    scene.world.cluster.stop().await;
    Ok(())
}

fn tell(figures: &mut Vec<Figure>, engine: &str, what: &str, seen: &Seen) {
    for (clients, (ours, rivals)) in seen {
        let clients = format!("{clients} client{}", if *clients == 1 { "" } else { "s" });
        let ratio = |of: fn(&Measured) -> f64| median(ours.iter().zip(rivals).map(|(a, b)| of(a) / of(b)).collect());
        let rate = median(rivals.iter().map(|rival| rival.phase.rate).collect());
        let title = |what_of: &str| format!("{engine}: {what_of} against {what}, {clients}");
        figures.extend([
            told(format!("{engine}: rate of {what}, {clients}"), rate, "1/s"),
            at_least(title("rate"), ratio(|measured| measured.phase.rate), "ratio", BAR),
            told(title("p50"), ratio(|measured| measured.phase.p50), "ratio"),
            told(title("p99"), ratio(|measured| measured.phase.p99), "ratio"),
            told(title("processor time of the API server"), ratio(|measured| measured.processor), "ratio"),
        ]);
    }
}
