//! The engines that act inside the API server, as users meet them: a policy is applied, and workloads get its sidecar.

use crate::support::{LIMIT, Operator, in_force, policies, within};
use crate::world::{DEPLOYMENTS, World, containers, deployment, sidecar};
use anyhow::Result;
use controlplane::{ControlPlane, Version};
use serde_json::{Value, json};

/// The engines that a server of that version has, as policies name them.
const ENGINES: [(Version, &[&str]); 2] =
    [(Version::V1_13, &["Webhook"]), (Version::V1_36, &["Webhook"])];

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
            let created = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
            assert_eq!(containers(&created), ["app"], "{version:?} {engine}");
            world.delete(&format!("{DEPLOYMENTS}/web")).await?;
        }
        assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    }
    Ok(())
}
