//! The engines that act inside the API server, against what could be written by hand instead: pods on 1.36.3.

use super::duel::{Side, Terms, duel};
use super::figure::Figure;
use super::load::{operator, send};
use super::rivals::{ADMISSION, Nothing, literal, sidecar};
use crate::support::{LIMIT, Operator, in_force, within};
use crate::world::{PODS, World, containers, request};
use anyhow::{Context, Result, ensure};
use controlplane::{ControlPlane, Version};
use serde_json::{Value, json};

/// What of a rival's rate is to be reached: what is decided, and the marker, may cost so much more.
const BAR: f64 = 0.95;
const POLICY: &str = "bench";
const MARKER: &str = "injected.scpol.dev/bench";

/// Ours against a webhook that does nothing.
pub(super) async fn webhook(figures: &mut Vec<Figure>) -> Result<()> {
    let ours = Ours::new("Webhook").await?;
    let collection = format!("{ADMISSION}/v1/mutatingwebhookconfigurations");
    let registered = ours.world.get(&format!("{collection}/scpol-pods")).await?.context("our registration")?;
    let rival = vec![(collection, Nothing::start()?.registered_as(&registered))];
    compare(figures, "Webhook", "a do-nothing webhook", ours, &rival).await
}

/// Ours against a policy written by hand.
pub(super) async fn policies(figures: &mut Vec<Figure>) -> Result<()> {
    let ours = Ours::new("MutatingAdmissionPolicy").await?;
    compare(figures, "MutatingAdmissionPolicy", "a hand-written one", ours, &literal()).await
}

async fn compare(
    figures: &mut Vec<Figure>,
    engine: &'static str,
    name: &'static str,
    ours: Ours,
    registrations: &[(String, Value)],
) -> Result<()> {
    let rival = Rival { world: world().await? };
    for (collection, object) in registrations {
        request(&rival.world.admin, "POST", collection, object).await?;
    }
    within(LIMIT, "the rival is in force", || async {
        let created = rival.world.create(&format!("{PODS}?dryRun=All"), &pod("probe")).await?;
        Ok(containers(&created) == ["app", "sidecar"])
    })
    .await?;
    let terms = Terms { engine, rival: name, rates: [BAR; 3], p50: None };
    duel(figures, &terms, &ours, &rival).await?;
    ours.operator.kill().await?;
    ours.world.cluster.stop().await;
    rival.world.cluster.stop().await;
    Ok(())
}

/// A server with the operator, and one policy for pods in force.
struct Ours {
    world: World,
    operator: Operator,
}

impl Ours {
    async fn new(engine: &str) -> Result<Self> {
        let world = world().await?;
        let operator = operator(&world.cluster, &[]).await?;
        let spec = json!({
            "engine": engine, "targets": [{ "group": "", "resource": "pods" }], "template": { "containers": [sidecar()] },
        });
        world.policy(POLICY, spec).await?;
        in_force(&world.cluster, POLICY).await?;
        Ok(Self { world, operator })
    }
}

impl Side for Ours {
    fn cluster(&self) -> &ControlPlane {
        &self.world.cluster
    }

    async fn create(&self, number: usize) -> Result<()> {
        create(&self.world, number, true).await
    }

    async fn clear(&self) -> Result<()> {
        clear(&self.world).await
    }
}

/// A server with what was written by hand alone.
struct Rival {
    world: World,
}

impl Side for Rival {
    fn cluster(&self) -> &ControlPlane {
        &self.world.cluster
    }

    async fn create(&self, number: usize) -> Result<()> {
        create(&self.world, number, false).await
    }

    async fn clear(&self) -> Result<()> {
        clear(&self.world).await
    }
}

async fn world() -> Result<World> {
    World::with(ControlPlane::builder(Version::V1_36).extra_arg("--delete-collection-workers=16")).await
}

async fn create(world: &World, number: usize, is_marked: bool) -> Result<()> {
    let answer = send(&world.creator, "POST", PODS, "application/json", &pod(&format!("load-{number}"))).await?;
    let is_injected = answer.contains(r#""name":"sidecar""#);
    ensure!(is_injected && answer.contains(MARKER) == is_marked, "the pod is not what it should be: {answer}");
    Ok(())
}

async fn clear(world: &World) -> Result<()> {
    send(&world.creator, "DELETE", PODS, "application/json", &json!({})).await.map(drop)
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "containers": [{ "name": "app", "image": "nginx:1.8.1", "ports": [{ "containerPort": 80 }] }] },
    })
}
