//! `spec.replaces`: a policy under a new name takes workloads over in one step, at creates, at updates and in rollouts.

use crate::prelude::*;
use crate::rollouts::{Controllers, image_of, world};

crate::tests![
    a_rollout_takes_workloads_over_in_one_step_and_back,
    what_comes_with_the_marker_of_the_old_policy_gets_the_new_one,
    an_update_that_drops_the_old_sidecar_brings_the_new_one,
];

/// The spec of a policy with that image, which replaces the policies `replaced`.
fn spec(engine: &str, image: &str, replaced: &[&str]) -> Value {
    json!({
        "engine": engine, "replaces": replaced, "updateStrategy": { "type": "RollingUpdate" },
        "template": { "containers": [{ "name": "agent", "image": image }], "env": [{ "name": "AGENT", "value": image }] },
    })
}

/// The names of the policies whose markers the pod template has, and the images of its containers.
fn carried(object: &Value) -> (Vec<String>, Vec<String>) {
    let template = &object["spec"]["template"];
    let keys = template["metadata"]["annotations"].as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    let markers = keys.filter_map(|key| key.strip_prefix("injected.scpol.dev/")).map(str::to_owned).collect();
    let containers = template["spec"]["containers"].as_array().into_iter().flatten();
    (markers, containers.filter_map(|it| Some(it["image"].as_str()?.to_owned())).collect())
}

/// That `object` has the agent with that image, once and under the marker of that policy alone.
fn has_just(object: &Value, policy: &str, image: &str) -> Result<()> {
    let (markers, images) = carried(object);
    ensure!(
        markers == [policy] && images.len() == 2 && image_of(object, "agent") == image,
        "{policy} {image}: {object}"
    );
    Ok(())
}

async fn a_rollout_takes_workloads_over_in_one_step_and_back() -> Result<()> {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let (world, _operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(100));
    world.enforce("old", spec("Auto", "agent:1", &[])).await?;
    for name in NAMES {
        world.create_promptly(DEPLOYMENTS, &deployment(name)).await?;
    }
    world.status("old", "injected", 3).await?;
    let generations = async || -> Result<Vec<i64>> {
        let mut found = Vec::new();
        for name in NAMES {
            let object = world.get(&path(name)).await?.context("it is there")?;
            found.push(object["metadata"]["generation"].as_i64().unwrap_or_default());
        }
        Ok(found)
    };
    let before = generations().await?;
    world.enforce("new", spec("Auto", "agent:2", &["old"])).await?;
    world.status("new", "injected", 3).await?;
    for name in NAMES {
        has_just(&world.get(&path(name)).await?.context("it is there")?, "new", "agent:2")?;
    }
    let after = generations().await?;
    ensure!(before.iter().map(|it| it + 1).eq(after.iter().copied()), "one update each: {before:?} {after:?}");
    has_just(&world.create_promptly(DEPLOYMENTS, &deployment("d")).await?, "new", "agent:2")?;
    world.status("old", "matched", 0).await?;
    // The way back.
    world.edit_policy("new", json!({ "replaces": null })).await?;
    world.edit_policy("old", spec("Auto", "agent:1", &["new"])).await?;
    world.status("old", "injected", 4).await?;
    let back = generations().await?;
    ensure!(after.iter().map(|it| it + 1).eq(back.iter().copied()), "one update each: {after:?} {back:?}");
    world.delete_policy("new").await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(generations().await? == back, "nothing happens");
    for name in NAMES {
        has_just(&world.get(&path(name)).await?.context("it is there")?, "old", "agent:1")?;
    }
    has_just(&world.create_promptly(DEPLOYMENTS, &deployment("e")).await?, "old", "agent:1")
}

/// `stored` as a backup has it.
fn backup(stored: &Value, name: &str, image: &str) -> Value {
    let mut body = stored.clone();
    body["metadata"] = json!({ "name": name });
    body.as_object_mut().map(|object| object.remove("status"));
    let containers = body["spec"]["template"]["spec"]["containers"].as_array_mut().into_iter().flatten();
    for container in containers.filter(|container| container["name"] == "agent") {
        container["image"] = json!(image);
    }
    body
}

async fn what_comes_with_the_marker_of_the_old_policy_gets_the_new_one() -> Result<()> {
    for (version, engine) in
        [(Version::NEWEST, "Webhook"), (Version::V1_13, "Webhook"), (Version::V1_13, "Initializer")]
    {
        let (world, operator) = world(version).await?.operated(&[]).await?;
        world.enforce("old", spec(engine, "agent:1", &[])).await?;
        let stored = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
        has_just(&stored, "old", "agent:1")?;
        let mut new = spec(engine, "agent:2", &["old"]);
        new["updateStrategy"] = json!({ "type": "OnDelete" });
        world.enforce("new", new).await?;
        within(LIMIT, "the new policy is in effect", || async {
            let name = format!("try-{}", std::process::id());
            let tried = world.create(DEPLOYMENTS, &deployment(&name)).await?;
            world.delete(&path(&name)).await?;
            Ok(carried(&tried).0 == ["new"])
        })
        .await?;
        let restored = world.create(DEPLOYMENTS, &backup(&stored, "restored", "agent:1")).await?;
        has_just(&restored, "new", "agent:2")?;
        // What nobody added is the user's, and keeps both policies out.
        let forged = world.create(DEPLOYMENTS, &backup(&stored, "forged", "evil:1")).await?;
        ensure!(
            carried(&forged) == (vec!["old".to_owned()], vec!["nginx:1.8.1".to_owned(), "evil:1".to_owned()]),
            "{forged}"
        );
        operator.kill().await?;
    }
    Ok(())
}

async fn an_update_that_drops_the_old_sidecar_brings_the_new_one() -> Result<()> {
    for engine in ["Webhook", "MutatingAdmissionPolicy"] {
        let (world, operator) = world(Version::NEWEST).await?.operated(&[]).await?;
        let targets = json!([{ "group": "apps", "resource": "deployments", "operations": ["CREATE", "UPDATE"] }]);
        let mut old = spec(engine, "agent:1", &[]);
        old["targets"] = targets.clone();
        world.enforce("old", old).await?;
        has_just(&world.create_promptly(DEPLOYMENTS, &deployment("web")).await?, "old", "agent:1")?;
        let mut new = spec(engine, "agent:2", &["old"]);
        new["targets"] = targets;
        new["updateStrategy"] = json!({ "type": "OnDelete" });
        world.enforce("new", new).await?;
        let update = format!("{}?dryRun=All", path("web"));
        within(LIMIT, "an update brings the new one", || async {
            let updated = request(&world.admin, "PUT", &update, &deployment("web")).await?;
            Ok(has_just(&updated, "new", "agent:2").is_ok())
        })
        .await
        .with_context(|| engine)?;
        operator.kill().await?;
    }
    Ok(())
}
