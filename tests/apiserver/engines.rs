//! The engines that act inside the API server, as users meet them: a policy is applied, and workloads get its sidecar.

use crate::support::{LIMIT, Operator, in_force, policies, wait_condition, within};
use crate::world::{DEPLOYMENTS, World, containers, deployment, request, sidecar};
use anyhow::{Context, Result};
use controlplane::{ControlPlane, User, Version};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The engines that a server of that version has, as policies name them.
const ENGINES: [(Version, &[&str]); 2] =
    [(Version::V1_13, &["Webhook"]), (Version::V1_36, &["Webhook", "MutatingAdmissionPolicy"])];

async fn world(version: Version) -> Result<World> {
    World::with(ControlPlane::builder(version)).await
}

fn by(engine: &str, mut spec: Value) -> Value {
    spec["engine"] = json!(engine);
    spec
}

/// What `status.engine` says.
async fn engine_of(world: &World, policy: &str) -> Result<Value> {
    Ok(policies(&world.cluster).get(policy).await?.data["status"]["engine"].clone())
}

#[tokio::test]
async fn a_policy_is_in_force_within_seconds_and_its_workloads_have_the_sidecar() -> Result<()> {
    for (version, engines) in ENGINES {
        let world = world(version).await?;
        let operator = Operator::ready(&world.cluster, &[]).await?;
        for engine in engines {
            let start = std::time::Instant::now();
            world.policy("envoy", by(engine, sidecar("envoy"))).await?;
            in_force(&world.cluster, "envoy").await?;
            let took = start.elapsed();
            assert_eq!(engine_of(&world, "envoy").await?, *engine, "{version:?}");
            let created = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
            assert_eq!(containers(&created), ["app", "envoy"], "{version:?} {engine}");
            println!("{version:?} {engine}: in force after {took:?}");
            world.delete(&format!("{DEPLOYMENTS}/web")).await?;
            world.delete_policy("envoy").await?;
            within(LIMIT, "nothing is registered", || async { Ok(world.registered().await?.is_empty()) }).await?;
            shows(&world, &["app"]).await?;
        }
        assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    }
    Ok(())
}

/// Waits until new Deployments get these containers; nothing is stored.
async fn shows(world: &World, expected: &[&str]) -> Result<()> {
    within(LIMIT, &format!("new Deployments have {expected:?}"), || async {
        let path = format!("{DEPLOYMENTS}?dryRun=All");
        Ok(containers(&request(&world.creator, "POST", &path, &deployment("probe")).await?) == expected)
    })
    .await
}

/// The one command of the break-glass page.
async fn break_glass(world: &World) -> Result<()> {
    let page = std::fs::read_to_string(crate::support::file("docs/break-glass.md"))?;
    let version = world.cluster.version();
    let of_version = |line: &&str| line.contains("initializerconfigurations") == (version == Version::V1_13);
    let mut commands = page.lines().filter_map(|line| line.strip_prefix("$ kubectl delete "));
    let command = commands.find(of_version).context("the page has a command for this version")?;
    let command = command.split('#').next().unwrap_or_default();
    let words: Vec<&str> = ["delete"].into_iter().chain(command.split_whitespace()).collect();
    world.cluster.kubectl_output(User::Admin, &words).await.map(drop)
}

#[tokio::test]
async fn the_one_command_of_the_break_glass_page_lets_creates_go_with_the_operator_frozen_and_alive() -> Result<()> {
    for (version, engines) in ENGINES {
        for engine in engines {
            let world = world(version).await?;
            let operator = Operator::ready(&world.cluster, &[]).await?;
            let policy = json!({
                "engine": engine, "template": sidecar("envoy")["template"],
                "failurePolicy": if version == Version::V1_13 { "Ignore" } else { "Fail" },
            });
            world.policy("envoy", policy).await?;
            in_force(&world.cluster, "envoy").await?;
            assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("before")).await?), ["app", "envoy"]);
            operator.signal("STOP")?;
            break_glass(&world).await?;
            let start = Instant::now();
            let name = |at: usize| format!("frozen-{at}");
            let mut tries = 0;
            loop {
                tries += 1;
                let manifest = deployment(&name(tries)).to_string();
                if world.cluster.apply_manifests(&manifest).await.is_ok() {
                    break;
                }
                anyhow::ensure!(start.elapsed() < Duration::from_secs(5), "{version:?} {engine}: creates are refused");
            }
            assert!(start.elapsed() < Duration::from_secs(5), "{version:?} {engine}: {:?}", start.elapsed());
            operator.signal("CONT")?;
            wait_condition(&world.cluster, "envoy", "Ready", "False", "RemovedByHand").await?;
            // It stays away, and leaves nothing behind that would refuse.
            within(LIMIT, "nothing is registered", || async { Ok(world.registered().await?.is_empty()) }).await?;
            shows(&world, &["app"]).await?;
            drop(operator);
            // Nor does its successor come back before the hold is over.
            let _operator = Operator::ready(&world.cluster, &[]).await?;
            wait_condition(&world.cluster, "envoy", "Ready", "False", "RemovedByHand").await?;
            assert!(world.registered().await?.is_empty());
            // Suspended and resumed, it is in force again.
            world.edit_policy("envoy", json!({ "suspend": true })).await?;
            wait_condition(&world.cluster, "envoy", "Ready", "True", "Suspended").await?;
            world.edit_policy("envoy", json!({ "suspend": false })).await?;
            in_force(&world.cluster, "envoy").await?;
            assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("again")).await?), ["app", "envoy"]);
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_is_registered_is_repaired_when_edited_and_held_back_when_deleted_while_the_operator_is_down() -> Result<()>
{
    for (version, engines) in ENGINES {
        for engine in engines {
            let world = world(version).await?;
            let operator = Operator::ready(&world.cluster, &[]).await?;
            world.policy("envoy", by(engine, sidecar("envoy"))).await?;
            in_force(&world.cluster, "envoy").await?;
            let (path, spoil) = edit(version, engine);
            let before = world.get(&path).await?.context("it is registered")?;
            world.patch(&path, &spoil).await?;
            within(LIMIT, "it is repaired", || async {
                let now = world.get(&path).await?.context("it is registered")?;
                Ok(now["webhooks"] == before["webhooks"] && now["spec"] == before["spec"])
            })
            .await?;
            shows(&world, &["app", "envoy"]).await?;
            let degraded = wait_condition(&world.cluster, "envoy", "Degraded", "True", "RegistrationEdited").await?;
            assert!(degraded["message"].as_str().unwrap_or_default().contains("scpol-deployments.apps"), "{degraded}");
            operator.kill().await?;
            break_glass(&world).await?;
            let _operator = Operator::ready(&world.cluster, &["--repair-hold=3s"]).await?;
            wait_condition(&world.cluster, "envoy", "Ready", "False", "RemovedByHand").await?;
            shows(&world, &["app"]).await?;
            in_force(&world.cluster, "envoy").await?;
            shows(&world, &["app", "envoy"]).await?;
        }
    }
    Ok(())
}

/// A registered object, and an edit by which it does not do what it should any more.
fn edit(version: Version, engine: &str) -> (String, Value) {
    let root = "/apis/admissionregistration.k8s.io";
    let api = if version == Version::V1_13 { "v1beta1" } else { "v1" };
    match engine {
        "Webhook" => (
            format!("{root}/{api}/mutatingwebhookconfigurations/scpol-deployments.apps"),
            json!([{ "op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": "" }]),
        ),
        _ => (
            format!("{root}/{api}/mutatingadmissionpolicies/scpol-deployments.apps"),
            json!([{ "op": "add", "path": "/spec/matchConditions/-", "value": { "name": "never", "expression": "false" } }]),
        ),
    }
}
