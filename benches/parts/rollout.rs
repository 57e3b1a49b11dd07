//! An edit of the image of a policy that 10 000 running pods have: the time of a plan, the writes and the memory.
//!
//! The ReplicaSets have as many pods as they want, and no controller acts on them. The pods are ready and stay so, because the
//! rollout is measured, not a kubelet.

use super::estate::all;
use super::figure::{Figure, at_most, told};
use super::load::{create_patiently, resident_megabytes, send};
use super::scale::{LONG, MEMORY, operator_of_many, scaled};
use super::statistics::quantile;
use crate::support::{LIMIT, file, policies, within};
use crate::world::{World, request};
use anyhow::{Context, Result, ensure};
use controlplane::{ControlPlane, User, Version};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sidecar_policy::policy::extent::Place;
use sidecar_policy::refit::{Carries, Way};
use sidecar_policy::rollout::pace::BATCH;
use sidecar_policy::rollout::{
    Aim, Facts, Health, Leading, Makers, Member, Members, Memory, Owner, Owners, Pace, Published, Queries, Record,
};
use sidecar_policy::workload::Kind;
use sidecar_policy::workload::ObjectRef;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

const PODS: usize = 10_000;
const NAMESPACES: usize = 500;
/// The pods of one ReplicaSet.
const REPLICAS: usize = 5;
/// How often each plan is measured.
const PLANS: usize = 5;
/// The longest time of a plan, in seconds.
const PLAN: f64 = 2.0;
/// The most writes for one pod.
const WRITES: f64 = 2.0;
const POLICY: &str = "bench";

/// See the module.
pub(super) async fn rollout(figures: &mut Vec<Figure>) -> Result<()> {
    let pods = scaled(PODS / REPLICAS)? * REPLICAS;
    let size = format!("rollout to {pods} pods");
    figures.push(at_most(
        format!("{size}: the operator's plan, slowest of {PLANS}"),
        pure_plan(pods).context("no plan")?,
        "s",
        PLAN,
    ));
    let world = World::with(ControlPlane::builder(Version::NEWEST).audit_log()).await?;
    grant(&world).await?;
    fill(&world, pods).await?;
    // One that finds the pods, so that its memory is not that of their creates.
    let operator = operator_of_many(&world.cluster).await?;
    complete(&world, POLICY, "1", pods).await?;
    // It reads everything from the API server, which takes the most of it.
    figures.push(told(format!("{size}: `scpol rollout plan`, slowest of {PLANS}"), plan_command(&world, pods)?, "s"));
    let at_rest = resident_megabytes(operator.pid(), "VmRSS")?;
    world.cluster.clear_audit()?;
    let start = Instant::now();
    world.edit_policy(POLICY, json!({ "template": template("2") })).await?;
    complete(&world, POLICY, "2", pods).await?;
    let took = start.elapsed().as_secs_f64();
    in_place(&world, pods).await?;
    let writes = writes(&world);
    figures.extend([
        at_most(format!("{size}: writes for a pod"), writes as f64 / pods as f64, "", WRITES),
        told(format!("{size}: edit to complete"), took, "s"),
        told(format!("{size}: RSS before"), at_rest, "MB"),
        at_most(format!("{size}: the most ever held"), resident_megabytes(operator.pid(), "VmHWM")?, "MB", MEMORY),
        at_most(format!("{size}: panics"), operator.metric("scpol_panics_total").await?, "", 0.0),
    ]);
    operator.kill().await?;
    world.cluster.stop().await;
    Ok(())
}

pub(super) fn template(edition: &str) -> Value {
    json!({ "containers": [{ "name": "envoy", "image": format!("envoy:{edition}") }] })
}

fn spec(edition: &str) -> Value {
    json!({
        "targets": [{ "group": "", "resource": "pods" }],
        "namespaces": ["team-*"],
        "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "100%" } },
        "template": template(edition),
    })
}

/// Grants the rights of rollouts.
pub(super) async fn grant(world: &World) -> Result<()> {
    for part in ["cluster_role", "role"] {
        world.cluster.apply_file(&file(&format!("config/rbac/rollout/{part}.yaml"))).await?;
    }
    let operator = world.cluster.client(User::Operator);
    let revisions = "/apis/apps/v1/namespaces/scpol-system/controllerrevisions";
    within(LIMIT, "the rights are granted", || async {
        Ok(request(&operator, "GET", revisions, &Value::Null).await.is_ok())
    })
    .await
}

/// Creates the policy, and ready pods with its sidecar.
async fn fill(world: &World, pods: usize) -> Result<()> {
    let operator = operator_of_many(&world.cluster).await?;
    world.enforce(POLICY, spec("1")).await?;
    let create = |number| async move {
        let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": format!("team-{number}") } });
        send(&world.admin, "POST", "/api/v1/namespaces", "application/json", &body).await
    };
    all(0..NAMESPACES, create).await?;
    let start = Instant::now();
    all(0..pods / REPLICAS, |number| replica_set(world, number)).await?;
    eprintln!("rollout: {pods} pods were made in {:.0?}", start.elapsed());
    operator.kill().await
}

/// Creates a ReplicaSet and its pods.
async fn replica_set(world: &World, number: usize) -> Result<()> {
    let (namespace, name) = (format!("team-{}", number % NAMESPACES), format!("web-{number}"));
    let pod = json!({
        "metadata": { "labels": { "app": name } }, "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
    });
    let body = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": { "name": name },
        "spec": { "replicas": REPLICAS, "selector": { "matchLabels": { "app": name } }, "template": pod },
    });
    let path = format!("/apis/apps/v1/namespaces/{namespace}/replicasets");
    let owner: Value = serde_json::from_str(&create_patiently(&world.creator, &path, &body).await?)?;
    let uid = &owner["metadata"]["uid"];
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    for replica in 0..REPLICAS {
        let mut body = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"], "spec": pod["spec"] });
        body["metadata"]["name"] = format!("{name}-{replica}").into();
        body["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": uid, "controller": true }]);
        let created = create_patiently(&world.creator, &path, &body).await?;
        ensure!(created.contains("envoy:1"), "{name}-{replica} has no sidecar");
        let ready = json!({ "status": { "phase": "Running", "conditions": [
            { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" },
        ] } });
        let status = format!("{path}/{name}-{replica}/status");
        send(&world.admin, "PATCH", &status, "application/merge-patch+json", &ready).await?;
    }
    Ok(())
}

/// Waits until the rollout of that edition of the policy is complete.
pub(super) async fn complete(world: &World, policy: &str, edition: &str, pods: usize) -> Result<()> {
    let is_complete = || async {
        let policy = policies(&world.cluster).get(policy).await?;
        let (spec, status) = (&policy.data["spec"], &policy.data["status"]);
        let progressing = status["conditions"].as_array().into_iter().flatten().find(|it| it["type"] == "Progressing");
        let is_complete = progressing.is_some_and(|it| {
            it["reason"] == "Complete" && it["observedGeneration"].as_i64() == policy.metadata.generation
        });
        ensure!(status["halted"] != true, "it is halted: {status}");
        Ok(is_complete && status["updated"] == pods && spec["template"] == template(edition))
    };
    within(LONG, &format!("edition {edition} is rolled out"), is_complete).await
}

/// Checks that every pod has the new image and was not made anew.
async fn in_place(world: &World, pods: usize) -> Result<()> {
    let (mut next, mut updated) = (String::new(), 0);
    loop {
        let path = format!("/api/v1/pods?limit=500&continue={next}");
        let page = request(&world.admin, "GET", &path, &Value::Null).await?;
        for pod in page["items"].as_array().context("items")? {
            let images = pod["spec"]["containers"].as_array().into_iter().flatten().map(|it| &it["image"]);
            updated += usize::from(images.eq([&json!("app:1"), &json!("envoy:2")]));
        }
        match page["metadata"]["continue"].as_str() {
            Some(more) if !more.is_empty() => more.clone_into(&mut next),
            _ => break,
        }
    }
    ensure!(updated == pods, "{updated} of {pods} pods have the new image");
    Ok(())
}

/// The operator's writes in the audit log, except of its lease.
pub(super) fn writes(world: &World) -> usize {
    let audit = world.cluster.audit();
    let ours = audit.iter().filter(|event| event["user"]["username"] == User::Operator.name());
    ours.filter(|event| !matches!(event["verb"].as_str(), Some("get" | "list" | "watch")))
        .filter(|event| event["objectRef"]["resource"] != "leases")
        .count()
}

/// The longest time of the command before the edit, in seconds.
fn plan_command(world: &World, pods: usize) -> Result<f64> {
    let path = world.cluster.dir().join("edited.yaml");
    let policy = json!({
        "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "metadata": { "name": POLICY }, "spec": spec("2"),
    });
    std::fs::write(&path, policy.to_string())?;
    let mut times = Vec::new();
    for _ in 0..PLANS {
        let start = Instant::now();
        let output = Command::new(env!("CARGO_BIN_EXE_scpol"))
            .args(["rollout", "plan", POLICY, "-o", "json", "-f"])
            .arg(&path)
            .env("KUBECONFIG", world.cluster.kubeconfig(User::Admin))
            .output()?;
        times.push(start.elapsed().as_secs_f64());
        let plan: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        ensure!(plan["sums"]["inPlace"] == pods, "not every pod in place: {}", plan["sums"]);
    }
    Ok(quantile(times, 1.0))
}

/// The slowest plan of the operator, in seconds. The operator plans once a second.
fn pure_plan(pods: usize) -> Option<f64> {
    let kind = Kind::find("", "pods")?;
    let now = Timestamp::now();
    let before = now - SignedDuration::from_hours(1);
    let uid = |number: usize| Arc::<str>::from(format!("owner-{number}"));
    let member = |number: usize| Member {
        uid: format!("pod-{number}").into(),
        version: number as u64,
        revision: "new".into(),
        carries: Carries::Other("old".into()),
        health: Health::settled(true, Some(before)),
        created: Some(before),
        owner: Some(uid(number / REPLICAS)),
        begun: Some(before),
        restarts: Vec::new(),
        place: Place::default(),
    };
    let object = |number: usize| ObjectRef {
        kind: kind.clone(),
        namespace: format!("team-{}", number / REPLICAS % NAMESPACES),
        name: format!("web-{number}"),
    };
    let owner = |number: usize| Owner {
        namespace: format!("team-{}", number % NAMESPACES),
        kind: "ReplicaSet",
        name: format!("web-{number}"),
        desired: REPLICAS,
        created: Some(before),
        policies: BTreeSet::from([POLICY.into()]),
        ..Owner::default()
    };
    let members: Members = (0..pods).map(|number| (object(number), member(number))).collect();
    let owners: Owners = (0..pods / REPLICAS).map(|number| (uid(number), owner(number))).collect();
    let pace = Pace {
        max_unavailable: pods,
        per_namespace: None,
        min_ready: SignedDuration::ZERO,
        deadline: SignedDuration::from_mins(10),
    };
    let mut times = Vec::new();
    for _ in 0..PLANS {
        let start = Instant::now();
        let facts = Facts {
            aim: Aim {
                policy: POLICY,
                kinds: std::slice::from_ref(kind),
                update: "new",
                published: Published { is_in_force: true, earlier: None },
            },
            leader: Leading { name: "leader", evictions: pods, again: SignedDuration::from_secs(10) },
            now,
            members: &members,
            makers: Makers { owners: &owners, beside: &HashMap::new(), busy: &BTreeMap::new() },
            record: &Record::default(),
            restarted: None,
            pace,
            can_fail: true,
            held: BTreeSet::new(),
            is_in_scope: &|_, _| true,
            queries: Queries { stuck: &|_| None, by_hand: &|_| None, way: &|_, _| Way::InPlace, rejection: &|_| None },
        };
        let look = Memory::default().look(&facts);
        times.push(start.elapsed().as_secs_f64());
        assert_eq!((look.numbers.remaining, look.next.len()), (pods, BATCH), "as many are next as may be announced");
    }
    Some(quantile(times, 1.0))
}
