//! Policies of one tenant beside those of others.

use crate::support::{Operator, condition, in_force, wait_condition};
use crate::world::{World, deployment, request};
use anyhow::{Result, ensure};
use controlplane::{ControlPlane, Version};
use serde_json::{Value, json};

crate::tests![
    a_policy_of_a_higher_priority_is_injected_whatever_others_add_by_its_names,
];

const DEPLOYMENTS_IN_SHOP: &str = "/apis/apps/v1/namespaces/shop/deployments";

async fn namespace(world: &World, name: &str) -> Result<()> {
    request(&world.admin, "POST", "/api/v1/namespaces", &json!({ "metadata": { "name": name } })).await?;
    Ok(())
}

/// The containers of a Deployment, each with its image.
fn images(object: &Value) -> Vec<String> {
    let containers = object["spec"]["template"]["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let told = |container: &Value| {
        let text = |field: &str| container[field].as_str().unwrap_or_default().to_owned();
        format!("{} {}", text("name"), text("image"))
    };
    containers.iter().map(told).collect()
}

async fn a_policy_of_a_higher_priority_is_injected_whatever_others_add_by_its_names() -> Result<()> {
    for (version, engines) in
        [(Version::V1_13, &["Initializer", "Webhook"][..]), (Version::NEWEST, &["Webhook", "MutatingAdmissionPolicy"])]
    {
        for engine in engines {
            let world = World::with(ControlPlane::builder(version)).await?;
            namespace(&world, "shop").await?;
            let _operator = Operator::ready(&world.cluster, &[]).await?;
            let of = |image: &str| json!({ "containers": [{ "name": "audit", "image": image }] });
            let platform = json!({ "engine": engine, "priority": 100, "optOut": "Denied", "template": of("audit:1") });
            world.policy("platform", platform).await?;
            in_force(&world.cluster, "platform").await?;
            world
                .policy("tenant", json!({ "engine": engine, "namespaces": ["shop"], "template": of("other:1") }))
                .await?;
            in_force(&world.cluster, "tenant").await?;
            let created = request(&world.admin, "POST", DEPLOYMENTS_IN_SHOP, &deployment("web")).await?;
            ensure!(images(&created).contains(&"audit audit:1".to_owned()), "{version:?} {engine}: {created}");
            let told = wait_condition(&world.cluster, "tenant", "Conflicted", "True", "Outranked").await?;
            ensure!(told["message"].as_str().is_some_and(|told| told.contains("`platform`")), "{told}");
            wait_condition(&world.cluster, "tenant", "Ready", "True", "Outranked").await?;
            wait_condition(&world.cluster, "platform", "Ready", "True", "Programmed").await?;
            ensure!(condition(&world.cluster, "platform", "Conflicted").await?.is_none(), "{version:?} {engine}");
        }
    }
    Ok(())
}
