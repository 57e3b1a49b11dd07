//! The engines inside the API server, compared with hand-written equivalents: pods on 1.36.3.

use super::duel::{Side, Terms, duel};
use super::figure::Figure;
use super::load::{operator, send};
use super::objects::{tunable_spec, tuned};
use super::rivals::{ADMISSION, Nothing, literal, parsed, planned, sidecar};
use crate::support::{LIMIT, Operator, policies as policies_of, within};
use crate::world::{PODS, World, containers, request};
use anyhow::{Context, Result, ensure};
use controlplane::{ControlPlane, Version};
use serde_json::{Value, json};
use sidecar_policy::workload::{Kind, Workload};

/// The smallest share of the rate of the hand-written equivalent.
const BAR: f64 = 0.90;
const POLICY: &str = "bench";
const MARKER: &str = "injected.scpol.dev/bench";

/// Our webhook, compared with a webhook that only answers with the same patch. The resulting objects are equal.
pub(super) async fn webhook(figures: &mut Vec<Figure>) -> Result<()> {
    let nothing = Nothing::start(&patch()?)?;
    let terms = Terms { engine: "Webhook", rival: "a do-nothing webhook", rate: BAR, p50: None };
    duel(figures, &terms, async || {
        let ours = ours("Webhook").await?;
        let collection = format!("{ADMISSION}/v1/mutatingwebhookconfigurations");
        let registered = ours.world.get(&format!("{collection}/scpol-pods")).await?.context("our registration")?;
        let rival = rival(&[(collection, nothing.registered_as(&registered))]).await?;
        Ok((ours, Pods { marker: Some(MARKER), ..rival }))
    })
    .await
}

/// Each engine with 8 parameters, compared with itself and the same policy without them.
pub(super) async fn parameters(figures: &mut Vec<Figure>) -> Result<()> {
    let rival = "the same without";
    let terms = Terms { engine: "Webhook, 8 parameters", rival, rate: 0.95, p50: None };
    duel(figures, &terms, async || Ok((tunable("Webhook", 8).await?, tunable("Webhook", 0).await?))).await?;
    let terms = Terms { engine: "MutatingAdmissionPolicy, 8 parameters", rival, rate: BAR, p50: None };
    duel(figures, &terms, async || Ok((tunable("Auto", 8).await?, tunable("Auto", 0).await?))).await
}

/// A server with the operator, and one policy for pods in effect by `engine`, with so many parameters.
async fn tunable(engine: &str, parameters: usize) -> Result<Pods> {
    let world = world().await?;
    let operator = operator(&world.cluster, &[]).await?;
    let mut spec = tunable_spec(parameters);
    spec["engine"] = json!(engine);
    world.enforce("tunable", spec).await?;
    let policy = policies_of(&world.cluster).get("tunable").await?;
    let expected = if engine == "Auto" { "MutatingAdmissionPolicy" } else { engine };
    ensure!(policy.data["status"]["engine"] == expected, "it is served by {}", policy.data["status"]["engine"]);
    Ok(Pods { operator: Some(operator), world, marker: Some("injected.scpol.dev/tunable"), is_tuned: true })
}

/// Our policies, compared with a hand-written one.
pub(super) async fn policies(figures: &mut Vec<Figure>) -> Result<()> {
    let terms = Terms { engine: "MutatingAdmissionPolicy", rival: "a hand-written one", rate: BAR, p50: None };
    duel(figures, &terms, async || Ok((ours("MutatingAdmissionPolicy").await?, rival(&literal()).await?))).await
}

/// The operator's additions to a [`pod`].
fn patch() -> Result<Value> {
    let policy = json!({ "metadata": { "name": POLICY }, "spec": { "template": { "containers": [sidecar()] } } });
    let kind = Kind::find("", "pods").context("a built-in kind")?;
    Ok(serde_json::to_value(planned(&parsed(&policy)?, &Workload::new(kind, pod("any")))?)?)
}

/// A server whose clients create pods, each with a sidecar.
struct Pods {
    // Dropped before its server.
    operator: Option<Operator>,
    world: World,
    /// The marker that the pods have.
    marker: Option<&'static str>,
    /// Whether the pods have values for parameters.
    is_tuned: bool,
}

impl Side for Pods {
    fn cluster(&self) -> &ControlPlane {
        &self.world.cluster
    }

    fn operator(&self) -> Option<&Operator> {
        self.operator.as_ref()
    }

    async fn create(&self, number: usize) -> Result<()> {
        let pod = pod(&format!("load-{number}"));
        let pod = if self.is_tuned { tuned(pod, number) } else { pod };
        let answer = send(&self.world.creator, "POST", PODS, "application/json", &pod).await?;
        let is_injected = answer.contains(r#""name":"sidecar""#);
        let is_marked = self.marker.is_some_and(|marker| answer.contains(marker));
        ensure!(is_injected && is_marked == self.marker.is_some(), "the pod is not what it should be: {answer}");
        Ok(())
    }

    async fn clear(&self) -> Result<()> {
        send(&self.world.creator, "DELETE", PODS, "application/json", &json!({})).await.map(drop)
    }
}

/// A server with the operator, and one policy for pods in effect by `engine`.
async fn ours(engine: &str) -> Result<Pods> {
    let world = world().await?;
    let operator = operator(&world.cluster, &[]).await?;
    let spec = json!({
        "engine": engine, "targets": [{ "group": "", "resource": "pods" }], "template": { "containers": [sidecar()] },
    });
    world.enforce(POLICY, spec).await?;
    Ok(Pods { operator: Some(operator), world, marker: Some(MARKER), is_tuned: false })
}

/// A server with hand-written registrations only, in effect.
async fn rival(registrations: &[(String, Value)]) -> Result<Pods> {
    let world = world().await?;
    for (collection, object) in registrations {
        request(&world.admin, "POST", collection, object).await?;
    }
    within(LIMIT, "the rival is in effect", || async {
        let created = world.create(&format!("{PODS}?dryRun=All"), &pod("probe")).await?;
        Ok(containers(&created) == ["app", "sidecar"])
    })
    .await?;
    Ok(Pods { operator: None, world, marker: None, is_tuned: false })
}

async fn world() -> Result<World> {
    World::with(ControlPlane::builder(Version::NEWEST).extra_arg("--delete-collection-workers=16")).await
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "containers": [{ "name": "app", "image": "nginx:1.8.1", "ports": [{ "containerPort": 80 }] }] },
    })
}
