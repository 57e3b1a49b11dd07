//! The Initializer engine on 1.13.5: rates against the floor, how many writes it takes, memory and start.

use super::figure::{Figure, at_least, at_most, told};
use super::load::{Phase, create_patiently, operator, phase, resident_megabytes, send};
use super::rounds;
use super::statistics::median;
use crate::support::{LIMIT, file, in_force, install, policies, within};
use anyhow::{Context, Result, anyhow, ensure};
use controlplane::{ControlPlane, User, Version};
use futures::StreamExt;
use kube::Client;
use serde_json::{Value, json};
use sidecar_policy::engine::initializer::completion::completion;
use sidecar_policy::inject;
use sidecar_policy::policy::{Policy, Site};
use sidecar_policy::workload::{Kind, Workload};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
/// Deployments per phase, and rounds of phases: the median round counts.
const PER_PHASE: usize = 600;
const ROUNDS: usize = 15;

async fn cluster(audit: bool) -> Result<ControlPlane> {
    let builder = ControlPlane::builder(Version::V1_13);
    let cluster = if audit { builder.audit_log() } else { builder }.start().await?;
    install(&cluster).await?;
    // The floor client completes objects itself, which takes a right that users do not have.
    cluster
        .kubectl_output(
            User::Admin,
            &["create", "clusterrole", "floor", "--verb=initialize", "--resource=deployments.apps"],
        )
        .await?;
    cluster
        .kubectl_output(
            User::Admin,
            &["create", "clusterrolebinding", "floor", "--clusterrole=floor", "--user=creator"],
        )
        .await?;
    Ok(cluster)
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

#[derive(Clone, Copy)]
enum Mode<'a> {
    /// The client completes its own objects as the policy says.
    Floor(&'a Policy),
    Loop,
}

/// What the operator reaches of the floor.
pub(super) async fn throughput(figures: &mut Vec<Figure>) -> Result<()> {
    let cluster = cluster(false).await?;
    policy(&cluster).await?;
    let client = cluster.client(User::Creator);
    let site = Site::new("scpol-system", [], []);
    let parsed = Policy::parse(&bench_policy(), &site).map_err(|violations| anyhow!("{violations:?}"))?;
    let mut seen: HashMap<usize, Vec<(Phase, Phase)>> = HashMap::new();
    // The first round warms everything up and does not count.
    for round in 0..=rounds(ROUNDS)? {
        let operator = operator(&cluster, &[]).await?;
        in_force(&cluster, "bench").await?;
        // Floor phases find the client's connections open; the operator's are opened here, once after its start.
        deployments(&client, Mode::Loop, 64).await?;
        clear(&client).await?;
        let mut loops = Vec::new();
        for clients in [1, 16, 64] {
            loops.push(deployments(&client, Mode::Loop, clients).await?);
            clear(&client).await?;
        }
        operator.stop().await?;
        for (clients, looped) in [1, 16, 64].into_iter().zip(loops) {
            let floor = deployments(&client, Mode::Floor(&parsed), clients).await?;
            clear(&client).await?;
            eprintln!(
                "round {round}, {clients:>2} clients: floor {:6.0}/s p50 {:6.2} ms p99 {:6.2} ms   loop {:6.0}/s p50 {:6.2} ms p99 {:6.2} ms   rate ratio {:.3}",
                floor.rate,
                floor.p50,
                floor.p99,
                looped.rate,
                looped.p50,
                looped.p99,
                looped.rate / floor.rate
            );
            if round > 0 {
                seen.entry(clients).or_default().push((floor, looped));
            }
        }
    }
    for (clients, bar) in [(1, 0.87), (16, 0.90), (64, 0.90)] {
        let rounds = &seen[&clients];
        let ratio =
            |of: fn(&Phase) -> f64| median(rounds.iter().map(|(floor, looped)| of(looped) / of(floor)).collect());
        figures.push(told(
            format!("floor rate, {clients} clients"),
            median(rounds.iter().map(|(floor, _)| floor.rate).collect()),
            "1/s",
        ));
        figures.push(at_least(
            format!("rate against the floor, {clients} clients"),
            ratio(|phase| phase.rate),
            "ratio",
            bar,
        ));
        let p50 = ratio(|phase| phase.p50);
        figures.push(if clients == 1 {
            at_most("p50 against the floor, 1 client", p50, "ratio", 1.15)
        } else {
            told(format!("p50 against the floor, {clients} clients"), p50, "ratio")
        });
        figures.push(told(format!("p99 against the floor, {clients} clients"), ratio(|phase| phase.p99), "ratio"));
    }
    cluster.stop().await;
    Ok(())
}

/// So many Deployments in that mode.
async fn deployments(client: &Client, mode: Mode<'_>, clients: usize) -> Result<Phase> {
    phase(clients, PER_PHASE, |number| async move { create(client, mode, &format!("load-{number}")).await }).await
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "replicas": 1, "selector": { "matchLabels": { "app": name } }, "template": {
            "metadata": { "labels": { "app": name } },
            "spec": { "containers": [{ "name": "nginx", "image": "nginx:1.8.1", "ports": [{ "containerPort": 80 }] }] } } },
    })
}

async fn create(client: &Client, mode: Mode<'_>, name: &str) -> Result<()> {
    let query = if matches!(mode, Mode::Floor(_)) { "?includeUninitialized=1" } else { "" };
    let path = format!("{DEPLOYMENTS}{query}");
    let mut answer = send(client, "POST", &path, "application/json", &deployment(name)).await?;
    if let Mode::Floor(policy) = mode {
        let kind = Kind::find("apps", "deployments").context("a built-in kind")?;
        let workload = Workload::new(kind, serde_json::from_str(&answer)?);
        ensure!(workload.pending().count() == 1, "the floor's object does not wait for the policy alone");
        let plan = inject::plan(&workload, &[&policy.template], &[&policy.template])
            .map_err(|conflict| anyhow!(conflict.message))?;
        let patch = serde_json::to_value(completion(&workload, 1, plan))?;
        answer = send(client, "PATCH", &format!("{DEPLOYMENTS}/{name}"), "application/json-patch+json", &patch).await?;
    }
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

/// More creates in flight than the server has places for writes, with the priority lane.
pub(super) async fn burst(figures: &mut Vec<Figure>) -> Result<()> {
    /// Creates per phase: each client makes some, so that the crowd stays for a while.
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
            let answer = create_patiently(client, DEPLOYMENTS, &deployment(&format!("load-{number}"))).await?;
            ensure!(answer.contains("\"name\":\"sidecar\""), "load-{number} has no sidecar");
            Ok(())
        }
    };
    let (mut ratios, mut crowds) = (Vec::new(), Vec::new());
    // The first round warms everything up and does not count.
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
        median(ratios),
        "ratio",
        0.7,
    ));
    figures.push(told("rate of 1000 clients with the priority lane, none lost, against 64", median(crowds), "ratio"));
    operator.stop().await?;
    cluster.stop().await;
    Ok(())
}

/// How many writes the operator needs, by the server's own audit log.
pub(super) async fn economy(figures: &mut Vec<Figure>) -> Result<()> {
    let cluster = cluster(true).await?;
    policy(&cluster).await?;
    let client = cluster.client(User::Creator);
    let operator = operator(&cluster, &[]).await?;
    in_force(&cluster, "bench").await?;
    deployments(&client, Mode::Loop, 16).await?;
    let writes = |resource: &'static str| {
        let audit = cluster.audit();
        let ours = audit.into_iter().filter(|event| event["user"]["username"] == User::Operator.name());
        ours.filter(|event| !matches!(event["verb"].as_str(), Some("get" | "list" | "watch")))
            .filter(|event| resource.is_empty() || event["objectRef"]["resource"] == resource)
            .filter(|event| event["objectRef"]["resource"] != "leases")
            .collect::<Vec<_>>()
    };
    let patches = writes("deployments").into_iter().filter(|event| event["verb"] == "patch").count();
    figures.push(at_most("PATCHes per object", patches as f64 / PER_PHASE as f64, "", 1.0));
    // What follows the creates is the status, ten seconds later at most.
    within(LIMIT, "the status counts every Deployment", || async {
        let policy = policies(&cluster).get("bench").await?;
        Ok(policy.data["status"]["injected"] == PER_PHASE)
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

/// Memory and start, with few and with many Deployments.
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
        resident.push(resident_megabytes(operator.pid(), "VmRSS")?);
        operator.stop().await?;
        // Nothing new is to wait while the server is filled.
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
    figures.push(at_most("RSS with 20 000 Deployments", resident[1], "MB", 16.0));
    figures.push(at_most("RSS with 20 000 against 1 000 Deployments", resident[1] / resident[0], "ratio", 1.10));
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
