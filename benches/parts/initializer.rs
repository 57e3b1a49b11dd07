//! The Initializer engine on 1.13.5: rates compared with the floor, number of writes, memory, and start time.

use super::duel::{Side, Terms, duel};
use super::figure::{Figure, at_least, at_most, told};
use super::load::{create_patiently, operator, phase, resident_megabytes, send};
use super::rivals::{parsed, planned};
use super::rounds;
use super::statistics::Estimate;
use crate::support::{LIMIT, Operator, file, in_force, installed, policies, within};
use anyhow::{Context, Result, ensure};
use controlplane::{ControlPlane, User, Version};
use futures::StreamExt;
use kube::Client;
use serde_json::{Value, json};
use sidecar_policy::compile::completion::completion;
use sidecar_policy::policy::Policy;
use sidecar_policy::workload::{Kind, Workload};
use std::time::{Duration, Instant};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
/// The number of Deployments for the count of writes.
const COUNTED: usize = 600;

async fn cluster(audit: bool) -> Result<ControlPlane> {
    let builder = ControlPlane::builder(Version::V1_13);
    installed(if audit { builder.audit_log() } else { builder }).await
}

/// `Fail` keeps the policy registered while the operator is stopped.
fn bench_policy() -> Value {
    json!({
        "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "metadata": { "name": "bench" },
        "spec": { "failurePolicy": "Fail", "template": { "containers": [{ "name": "sidecar", "image": "envoy:1" }] } },
    })
}

async fn policy(cluster: &ControlPlane) -> Result<()> {
    policies(cluster).create(&Default::default(), &serde_json::from_value(bench_policy())?).await?;
    Ok(())
}

/// A server whose clients create Deployments.
struct Deployments {
    /// None if clients complete their own objects. Dropped before its server.
    operator: Option<Operator>,
    cluster: ControlPlane,
    client: Client,
    /// The policy by which clients complete their own objects; none if the operator does.
    floor: Option<Policy>,
}

impl Side for Deployments {
    fn cluster(&self) -> &ControlPlane {
        &self.cluster
    }

    fn operator(&self) -> Option<&Operator> {
        self.operator.as_ref()
    }

    async fn create(&self, number: usize) -> Result<()> {
        match &self.floor {
            Some(policy) => create_and_complete(&self.client, policy, number).await,
            None => create(&self.client, number).await,
        }
    }

    async fn clear(&self) -> Result<()> {
        clear(&self.client).await
    }
}

/// The operator's share of the floor.
pub(super) async fn throughput(figures: &mut Vec<Figure>) -> Result<()> {
    let terms = Terms { engine: "Initializer", rival: "the floor", rate: 0.85, p50: Some(1.2) };
    duel(figures, &terms, async || Ok((ours().await?, floor().await?))).await
}

/// A server with the operator's registrations, and the operator.
async fn registered() -> Result<(ControlPlane, Operator)> {
    let cluster = cluster(false).await?;
    policy(&cluster).await?;
    let operator = operator(&cluster, &[]).await?;
    in_force(&cluster, "bench").await?;
    Ok((cluster, operator))
}

/// The operator completes all objects.
async fn ours() -> Result<Deployments> {
    let (cluster, operator) = registered().await?;
    Ok(Deployments { operator: Some(operator), client: cluster.client(User::Creator), cluster, floor: None })
}

/// Clients complete their own objects, without the operator.
async fn floor() -> Result<Deployments> {
    let (cluster, operator) = registered().await?;
    // This needs a right that users do not have.
    for command in [
        &["create", "clusterrole", "floor", "--verb=initialize", "--resource=deployments.apps"][..],
        &["create", "clusterrolebinding", "floor", "--clusterrole=floor", "--user=creator"],
    ] {
        cluster.kubectl_output(User::Admin, command).await?;
    }
    operator.stop().await?;
    Ok(Deployments {
        operator: None,
        client: cluster.client(User::Creator),
        cluster,
        floor: Some(parsed(&bench_policy())?),
    })
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "replicas": 1, "selector": { "matchLabels": { "app": name } }, "template": {
            "metadata": { "labels": { "app": name } },
            "spec": { "containers": [{ "name": "nginx", "image": "nginx:1.8.1", "ports": [{ "containerPort": 80 }] }] } } },
    })
}

fn name(number: usize) -> String {
    format!("load-{number}")
}

/// Creates a Deployment and waits until it is complete.
async fn create(client: &Client, number: usize) -> Result<()> {
    let name = name(number);
    has_sidecar(&name, &send(client, "POST", DEPLOYMENTS, "application/json", &deployment(&name)).await?)
}

/// Creates a Deployment without waiting, and completes it by `policy`.
async fn create_and_complete(client: &Client, policy: &Policy, number: usize) -> Result<()> {
    let name = name(number);
    let path = format!("{DEPLOYMENTS}?includeUninitialized=1");
    let created = send(client, "POST", &path, "application/json", &deployment(&name)).await?;
    let kind = Kind::find("apps", "deployments").context("a built-in kind")?;
    let workload = Workload::new(kind, serde_json::from_str(&created)?);
    ensure!(workload.pending().count() == 1, "the floor's object does not wait for the policy alone");
    let patch = serde_json::to_value(completion(&workload, 1, planned(policy, &workload)?))?;
    let path = format!("{DEPLOYMENTS}/{name}");
    has_sidecar(&name, &send(client, "PATCH", &path, "application/json-patch+json", &patch).await?)
}

fn has_sidecar(name: &str, answer: &str) -> Result<()> {
    ensure!(answer.contains("\"name\":\"sidecar\""), "{name} has no sidecar");
    Ok(())
}

/// Deletes every Deployment.
async fn clear(client: &Client) -> Result<()> {
    let names = names(client).await?;
    let deletes = futures::stream::iter(names).map(|name| async move {
        send(
            client,
            "DELETE",
            &format!("{DEPLOYMENTS}/{name}?propagationPolicy=Background"),
            "application/json",
            &json!({}),
        )
        .await
    });
    deletes.buffer_unordered(16).collect::<Vec<_>>().await.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(())
}

async fn names(client: &Client) -> Result<Vec<String>> {
    let list: Value = serde_json::from_str(
        &send(client, "GET", &format!("{DEPLOYMENTS}?includeUninitialized=1"), "application/json", &Value::Null)
            .await?,
    )?;
    let items = list["items"].as_array().context("no list")?;
    Ok(items.iter().filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned)).collect())
}

/// More concurrent creates than the server's slots for writes, with the priority lane.
pub(super) async fn burst(figures: &mut Vec<Figure>) -> Result<()> {
    /// The creates per phase. Each client makes several, so that the crowd lasts for a while.
    const CREATES: usize = 2000;
    let cluster = cluster(false).await?;
    cluster.apply_file(&file("config/rbac/priority-lane/role.yaml")).await?;
    policy(&cluster).await?;
    let client = cluster.client(User::Creator);
    let operator = operator(&cluster, &["--priority-lane"]).await?;
    in_force(&cluster, "bench").await?;
    let create = |number: usize| {
        let client = &client;
        async move {
            let name = name(number);
            has_sidecar(&name, &create_patiently(client, DEPLOYMENTS, &deployment(&name)).await?)
        }
    };
    let (mut ratios, mut crowds) = (Vec::new(), Vec::new());
    // The first round is a warm-up and does not count.
    for round in 0..=rounds(3)? {
        let mut rates = Vec::new();
        for clients in [64, 300, 1000] {
            rates.push(phase(clients, CREATES, create).await?.rate);
            clear(&client).await?;
        }
        eprintln!("burst, round {round}: 64, 300, 1000 clients: {rates:.0?}/s");
        if round > 0 {
            ratios.push(rates[1] / rates[0]);
            crowds.push(rates[2] / rates[0]);
        }
    }
    figures.push(at_least(
        "rate of 300 clients with the priority lane, none lost, against 64",
        Estimate::of(&[ratios]),
        "ratio",
        0.7,
    ));
    let crowds = Estimate::of(&[crowds]);
    figures.push(told("rate of 1000 clients with the priority lane, none lost, against 64", crowds, "ratio"));
    operator.stop().await?;
    cluster.stop().await;
    Ok(())
}

/// The number of the operator's writes in the server's audit log.
pub(super) async fn economy(figures: &mut Vec<Figure>) -> Result<()> {
    let cluster = cluster(true).await?;
    policy(&cluster).await?;
    let client = cluster.client(User::Creator);
    let operator = operator(&cluster, &[]).await?;
    in_force(&cluster, "bench").await?;
    phase(16, COUNTED, |number| create(&client, number)).await?;
    let writes = |resource: &'static str| {
        let audit = cluster.audit();
        let ours = audit.into_iter().filter(|event| event["user"]["username"] == User::Operator.name());
        ours.filter(|event| !matches!(event["verb"].as_str(), Some("get" | "list" | "watch")))
            .filter(|event| resource.is_empty() || event["objectRef"]["resource"] == resource)
            .filter(|event| event["objectRef"]["resource"] != "leases")
            .collect::<Vec<_>>()
    };
    let patches = writes("deployments").into_iter().filter(|event| event["verb"] == "patch").count();
    figures.push(at_most("PATCHes per object", patches as f64 / COUNTED as f64, "", 1.0));
    // The status follows the creates within ten seconds.
    within(LIMIT, "the status counts every Deployment", || async {
        let policy = policies(&cluster).get("bench").await?;
        Ok(policy.data["status"]["injected"] == COUNTED)
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = writes("").len();
    tokio::time::sleep(Duration::from_secs(120)).await;
    figures.push(at_most("writes at rest in 120 s, but the lease", (writes("").len() - before) as f64, "", 0.0));
    operator.stop().await?;
    cluster.stop().await;
    Ok(())
}

/// The pause between the count and the measurement of memory.
const SETTLED: Duration = Duration::from_secs(15);

/// Memory and start time, with few and with many Deployments.
pub(super) async fn size(figures: &mut Vec<Figure>) -> Result<()> {
    let cluster = cluster(false).await?;
    let client = cluster.client(User::Creator);
    let mut resident = Vec::new();
    for (count, prefix) in [(1_000, "few"), (19_000, "many")] {
        fill(&client, count, prefix).await?;
        if prefix == "few" {
            policy(&cluster).await?;
        }
        let start = Instant::now();
        let operator = operator(&cluster, &[]).await?;
        if prefix == "few" {
            figures.push(at_most("start to ready, 1 000 Deployments", start.elapsed().as_secs_f64(), "s", 1.0));
        }
        in_force(&cluster, "bench").await?;
        let wanted = if prefix == "few" { 1_000 } else { 20_000 };
        within(LIMIT, "every Deployment is counted", || async {
            Ok(policies(&cluster).get("bench").await?.data["status"]["missed"] == wanted)
        })
        .await?;
        // By then all occasional code has run and is in memory, in both cases.
        tokio::time::sleep(SETTLED).await;
        resident.push(resident_megabytes(operator.pid(), "VmRSS")?);
        operator.stop().await?;
        // New objects must not wait while the server is filled.
        cluster.kubectl_output(User::Admin, &["delete", "initializerconfigurations", "--all"]).await?;
        cluster
            .kubectl_output(
                User::Admin,
                &["patch", "sidecarpolicies", "bench", "--type=merge", "-p", r#"{"spec":{"suspend":true}}"#],
            )
            .await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        cluster.kubectl_output(User::Admin, &["delete", "sidecarpolicies", "bench"]).await?;
        policy(&cluster).await?;
    }
    figures.push(told("RSS with 1 000 Deployments", resident[0], "MB"));
    figures.push(at_most("RSS with 20 000 Deployments", resident[1], "MB", 20.0));
    figures.push(at_most("RSS with 20 000 against 1 000 Deployments", resident[1] / resident[0], "ratio", 1.15));
    cluster.stop().await;
    Ok(())
}

async fn fill(client: &Client, count: usize, prefix: &str) -> Result<()> {
    let body = |name: String| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "labels": { "app": name } },
            "spec": { "selector": { "matchLabels": { "app": name } }, "template": { "metadata": { "labels": { "app": name } }, "spec": { "containers": [{ "name": "nginx", "image": "nginx:1.8.1" }] } } },
        })
    };
    let creates = futures::stream::iter(0..count).map(|number| {
        let body = body(format!("{prefix}-{number}"));
        async move { send(client, "POST", DEPLOYMENTS, "application/json", &body).await.map(drop) }
    });
    creates.buffer_unordered(32).collect::<Vec<_>>().await.into_iter().collect()
}
