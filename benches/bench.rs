//! `make bench`: the figures that we claim, on a real 1.13.5 server, as ratios within one run.
//!
//! The *floor* is what no initializer can beat: the client itself creates without waiting and completes the object with the
//! very PATCH that the operator would send (its tests, the sidecar, the marker), two requests one after the other. The
//! *loop* is the same create, blocked until the operator has completed the object. Both run with the same client in the
//! same minutes and leave the same objects; in floor phases the operator is stopped, so that it costs nothing there.
//!
//! `cargo bench --bench bench -- language` runs one part: `language`, `throughput`, `economy` or `size`.

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the tests, which use more of it")]
mod support;

use anyhow::{Context, Result, anyhow, ensure};
use controlplane::{ControlPlane, User, Version};
use futures::StreamExt;
use http::Request;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde::Serialize;
use serde_json::{Value, json};
use sidecar_policy::decision::Decision;
use sidecar_policy::engine::initializer::completion::completion;
use sidecar_policy::inject;
use sidecar_policy::policy::{Policies, Policy, Site};
use sidecar_policy::workload::{Kind, Workload};
use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{LIMIT, Operator, in_force, install, policies, within};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
/// Deployments per phase, and rounds of phases: the median round counts.
const PER_PHASE: usize = 600;
const ROUNDS: usize = 15;
/// Samples of deciding and planning, and how many come before them that do not count: the first are slow.
const SAMPLES: usize = 2_000;
const WARM_UP: usize = 1_000;

#[derive(Serialize)]
struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    bar: String,
    holds: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    if !std::env::args().any(|argument| argument == "--bench") {
        // `cargo test --benches` only wants to know that it builds.
        return Ok(());
    }
    let named: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let is_wanted = |part: &str| named.is_empty() || named.iter().any(|name| name == part);
    let mut figures = Vec::new();
    if is_wanted("language") {
        language(&mut figures)?;
    }
    if is_wanted("throughput") {
        throughput(&mut figures).await?;
    }
    if is_wanted("economy") {
        economy(&mut figures).await?;
    }
    if is_wanted("size") {
        size(&mut figures).await?;
    }
    let mut out = std::io::stdout().lock();
    for figure in &figures {
        writeln!(
            out,
            "{:<58} {:>9.3} {:<6} {:<10} {}",
            figure.name,
            figure.value,
            figure.unit,
            figure.bar,
            if figure.holds { "holds" } else { "FAILS" }
        )?;
    }
    let folder = support::file("target/bench");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("results.json"), serde_json::to_string_pretty(&figures)?)?;
    ensure!(figures.iter().all(|figure| figure.holds), "not every figure holds");
    Ok(())
}

/// Deciding and planning alone, and `scpol inject` on files: no server.
fn language(figures: &mut Vec<Figure>) -> Result<()> {
    let site = Site::new("scpol-system", [], []);
    let time = |policies: usize, kilobytes: usize| -> Result<f64> {
        let policies = (0..policies).map(|number| {
            let policy = Policy::parse(&unlike(number), &site).map_err(|violations| anyhow!("{violations:?}"))?;
            Ok(Arc::new(policy))
        });
        let policies = Policies::new(policies.collect::<Result<Vec<_>>>()?);
        let workload = Workload::new(Kind::find("", "pods").context("a built-in kind")?, pod_of(kilobytes));
        let samples = (0..WARM_UP + SAMPLES).map(|_| {
            let start = Instant::now();
            let mut decision = Decision::of(&policies, &workload, &site);
            std::hint::black_box(decision.plan(&workload));
            start.elapsed().as_secs_f64() * 1e6
        });
        Ok(median(samples.skip(WARM_UP).collect()))
    };
    let hundred = time(100, 10)?;
    figures.push(at_most("decide and plan, 10 KB pod, 100 policies, p50", hundred, "us", 50.0));
    figures.push(at_most("the same with 200 policies, against 100", time(200, 10)? / hundred, "ratio", 2.5));
    figures.push(at_most("the same with a 20 KB pod, against 10 KB", time(100, 20)? / hundred, "ratio", 2.5));

    let folder = tempfile::tempdir()?;
    let write = |name: &str, documents: Vec<Value>| {
        let text = documents.iter().map(Value::to_string).collect::<Vec<_>>().join("\n---\n");
        let path = folder.path().join(name);
        std::fs::write(&path, text).map(|()| path)
    };
    let matching = |number| {
        let mut policy = unlike(number);
        policy["spec"]["labelSelector"] = json!({ "matchLabels": { "app": "web" } });
        policy
    };
    let policies = write("policies.yaml", (0..10).map(matching).collect())?;
    let manifests = write("manifests.yaml", (0..1_000).map(|number| deployment(&format!("web-{number}"))).collect())?;
    let runs = (0..9).map(|_| {
        let start = Instant::now();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_scpol"))
            .args(["inject", "-f"])
            .arg(&manifests)
            .arg("-p")
            .arg(&policies)
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        ensure!(
            String::from_utf8_lossy(&output.stdout).matches("injected.scpol.dev/p9").count() == 1_000,
            "not all were injected"
        );
        Ok(start.elapsed().as_secs_f64())
    });
    let inject = median(runs.collect::<Result<_>>()?);
    figures.push(at_most("scpol inject, 1 000 manifests, 10 policies", inject, "s", 0.25));
    Ok(())
}

/// A policy that has little to do with the others: of ten, one matches a pod of [`pod_of`].
fn unlike(number: usize) -> Value {
    json!({
        "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "metadata": { "name": format!("p{number}") },
        "spec": {
            "targets": [{ "group": "", "resource": "pods" }, { "group": "apps", "resource": "deployments" }],
            "labelSelector": { "matchLabels": { "group": format!("g{}", number % 10) } },
            "template": { "containers": [{ "name": format!("sidecar-{number}"), "image": "envoy:1" }] },
        },
    })
}

/// A pod of about so many kilobytes of JSON, most of it environment.
fn pod_of(kilobytes: usize) -> Value {
    let env: Vec<_> = (0..kilobytes * 10)
        .map(|number| json!({ "name": format!("VARIABLE_{number:04}"), "value": "x".repeat(70) }))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web", "namespace": "default", "labels": { "group": "g3" } },
        "spec": { "containers": [{ "name": "app", "image": "app:1", "env": env }] },
    })
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "labels": { "app": "web" } },
        "spec": { "selector": { "matchLabels": { "app": name } }, "template": { "metadata": { "labels": { "app": name } },
            "spec": { "containers": [{ "name": "nginx", "image": "nginx:1.8.1", "ports": [{ "containerPort": 80 }] }] } } },
    })
}

fn at_least(name: impl Into<String>, value: f64, unit: &'static str, bar: f64) -> Figure {
    Figure { name: name.into(), value, unit, bar: format!(">= {bar}"), holds: value >= bar }
}

fn at_most(name: impl Into<String>, value: f64, unit: &'static str, bar: f64) -> Figure {
    Figure { name: name.into(), value, unit, bar: format!("<= {bar}"), holds: value <= bar }
}

fn told(name: impl Into<String>, value: f64, unit: &'static str) -> Figure {
    Figure { name: name.into(), value, unit, bar: "-".into(), holds: true }
}

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

/// What a phase of creates came to.
struct Phase {
    rate: f64,
    p50: f64,
    p99: f64,
}

async fn throughput(figures: &mut Vec<Figure>) -> Result<()> {
    let cluster = cluster(false).await?;
    policy(&cluster).await?;
    let client = cluster.client(User::Creator);
    let site = Site::new("scpol-system", [], []);
    let parsed = Policy::parse(&bench_policy(), &site).map_err(|violations| anyhow!("{violations:?}"))?;
    let mut seen: HashMap<usize, Vec<(Phase, Phase)>> = HashMap::new();
    // The first round warms everything up and does not count.
    for round in 0..=ROUNDS {
        let operator = Operator::ready(&cluster, &["--log-level", "info"]).await?;
        in_force(&cluster, "bench").await?;
        // Floor phases find the client's connections open; the operator's are opened here, once after its start.
        phase(&client, Mode::Loop, 64, PER_PHASE).await?;
        clear(&client).await?;
        let mut loops = Vec::new();
        for clients in [1, 16, 64] {
            loops.push(phase(&client, Mode::Loop, clients, PER_PHASE).await?);
            clear(&client).await?;
        }
        operator.stop().await?;
        for (clients, looped) in [1, 16, 64].into_iter().zip(loops) {
            let floor = phase(&client, Mode::Floor(&parsed), clients, PER_PHASE).await?;
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

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn phase(client: &Client, mode: Mode<'_>, clients: usize, count: usize) -> Result<Phase> {
    let start = Instant::now();
    let creates = futures::stream::iter(0..count).map(|number| {
        let client = client.clone();
        async move {
            let start = Instant::now();
            create(&client, mode, &format!("load-{number}")).await?;
            Ok::<_, anyhow::Error>(start.elapsed().as_secs_f64() * 1000.0)
        }
    });
    let mut times: Vec<f64> =
        creates.buffer_unordered(clients).collect::<Vec<_>>().await.into_iter().collect::<Result<_>>()?;
    let rate = count as f64 / start.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    Ok(Phase { rate, p50: times[count / 2], p99: times[count * 99 / 100] })
}

async fn create(client: &Client, mode: Mode<'_>, name: &str) -> Result<()> {
    let query = if matches!(mode, Mode::Floor(_)) { "?includeUninitialized=1" } else { "" };
    let body = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "replicas": 1, "selector": { "matchLabels": { "app": name } }, "template": {
            "metadata": { "labels": { "app": name } },
            "spec": { "containers": [{ "name": "nginx", "image": "nginx:1.8.1", "ports": [{ "containerPort": 80 }] }] } } },
    });
    let mut answer = send(client, "POST", &format!("{DEPLOYMENTS}{query}"), "application/json", &body).await?;
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

async fn send(client: &Client, method: &str, path: &str, content_type: &str, body: &Value) -> Result<String> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", content_type)
        .body(Body::from(serde_json::to_vec(body)?))?;
    let answer = client.send(request).await?;
    let status = answer.status();
    let text = String::from_utf8(answer.into_body().collect().await?.to_bytes().to_vec())?;
    ensure!(status.is_success(), "{method} {path}: {status}: {text}");
    Ok(text)
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

/// How many writes the operator needs, by the server's own audit log.
async fn economy(figures: &mut Vec<Figure>) -> Result<()> {
    let cluster = cluster(true).await?;
    policy(&cluster).await?;
    let client = cluster.client(User::Creator);
    let operator = Operator::ready(&cluster, &["--log-level", "info"]).await?;
    in_force(&cluster, "bench").await?;
    phase(&client, Mode::Loop, 16, PER_PHASE).await?;
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
async fn size(figures: &mut Vec<Figure>) -> Result<()> {
    let cluster = cluster(false).await?;
    let client = cluster.client(User::Creator);
    let mut resident = Vec::new();
    for (count, prefix) in [(1_000, "few"), (19_000, "many")] {
        fill(&client, count, prefix).await?;
        if prefix == "few" {
            policy(&cluster).await?;
        }
        let start = Instant::now();
        let operator = Operator::ready(&cluster, &["--log-level", "info"]).await?;
        if prefix == "few" {
            figures.push(at_most("start to ready, 1 000 Deployments", start.elapsed().as_secs_f64(), "s", 1.0));
        }
        in_force(&cluster, "bench").await?;
        let wanted = if prefix == "few" { 1_000 } else { 20_000 };
        within(LIMIT, "every Deployment is counted", || async {
            Ok(policies(&cluster).get("bench").await?.data["status"]["missed"] == wanted)
        })
        .await?;
        resident.push(resident_megabytes(operator.pid())?);
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

/// Megabytes (10^6 bytes) of memory that the process holds, by the kernel's count.
fn resident_megabytes(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes * 1024.0 / 1e6)
}
