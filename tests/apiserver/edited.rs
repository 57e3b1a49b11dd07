//! What is there, not what the marker says: edits are told with their field, what servers fill in is none, a rollout restores where
//! the policy says so, and a restore from a backup comes with the present sidecar.

use crate::commands::scpol;
use crate::prelude::*;
use crate::rollouts::{Controllers, REVISIONS, image_of, world};

crate::tests![
    what_servers_fill_in_is_no_edit_and_what_kubectl_set_reaches_is_one,
    a_rollout_restores_what_was_edited_if_the_policy_says_so,
    a_backup_of_an_earlier_revision_comes_with_the_present_one,
    admission_policies_let_an_earlier_revision_through_under_fail_and_nothing_else,
];

/// A template with fields that servers complete.
fn rich(image: &str) -> Value {
    json!({
        "metadata": { "labels": { "logs": "agent" }, "annotations": { "level": "info" } },
        "containers": [{
            "name": "envoy", "image": image, "args": ["run"], "ports": [{ "containerPort": 9000 }],
            "env": [{ "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
            "resources": { "requests": { "cpu": "0.5" }, "limits": { "memory": "1024Mi" } },
            "livenessProbe": { "httpGet": { "port": 9000 } }, "readinessProbe": { "tcpSocket": { "port": 9000 } },
            "volumeMounts": [{ "name": "config", "mountPath": "/config" }],
        }],
        "initContainers": [{ "name": "setup", "image": "setup" }],
        "volumes": [{ "name": "config", "configMap": { "name": "config", "optional": true } }, { "name": "tmp", "emptyDir": {} }],
        "env": [{ "name": "TEAM", "value": "a" }],
    })
}

/// The patch of the sidecar's image, as of `kubectl set image`.
fn set_image(image: &str) -> Value {
    json!({ "spec": { "template": { "spec": { "containers": [{ "name": "envoy", "image": image }] } } } })
}

async fn strategic(world: &World, name: &str, patch: &Value) -> Result<Value> {
    let mut stored = world.get(&path(name)).await?.context("it is there")?;
    let changed = patch["spec"]["template"]["spec"]["containers"].as_array().context("containers")?;
    let containers = stored["spec"]["template"]["spec"]["containers"].as_array_mut().context("containers")?;
    for change in changed {
        for container in containers.iter_mut().filter(|container| container["name"] == change["name"]) {
            json_patch::merge(container, change);
        }
    }
    Ok(request(&world.admin, "PUT", &path(name), &stored).await?)
}

async fn what_servers_fill_in_is_no_edit_and_what_kubectl_set_reaches_is_one() -> Result<()> {
    for version in [Version::NEWEST, Version::V1_30, Version::V1_13] {
        let (world, operator) = world(version).await?.operated(&[]).await?;
        let targets = json!([{ "group": "apps", "resource": "deployments" }, { "group": "", "resource": "pods" }]);
        world.enforce("envoy", json!({ "targets": targets, "template": rich("envoy:1") })).await?;
        world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "alone" },
            "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
        });
        world.create_promptly(PODS, &pod).await?;
        world.status("envoy", "injected", 2).await?;
        let (code, told) = scpol(&world.cluster, &["explain", "-A"]).await?;
        ensure!(code == 0 && !told.contains("edited"), "{version:?} {told}");
        strategic(&world, "web", &set_image("web:4")).await?;
        world.status("envoy", "edited", 1).await?;
        world.status("envoy", "injected", 1).await?;
        let (code, told) = scpol(&world.cluster, &["explain", "deploy/web"]).await?;
        ensure!(
            code == 1 && told.contains("SCP0120") && told.contains("another `image`: `web:4` here, `envoy:1`"),
            "{told}"
        );
        let (_, told) = scpol(&world.cluster, &["status", "envoy"]).await?;
        ensure!(
            told.contains("Edited: Deployment default/web") && told.contains("`envoy:1` from the policy"),
            "{told}"
        );
        let gauge = r#"scpol_policy_workloads{policy="envoy",state="edited"}"#;
        within(LIMIT, "the metric", || async { Ok(operator.metric(gauge).await? == 1.0) }).await?;
        strategic(&world, "web", &set_image("envoy:1")).await?;
        world.status("envoy", "injected", 2).await?;
        operator.kill().await?;
    }
    Ok(())
}

async fn a_rollout_restores_what_was_edited_if_the_policy_says_so() -> Result<()> {
    let (world, _operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(200));
    let spec = |edited: &str| json!({ "template": rich("envoy:1"), "updateStrategy": { "type": "RollingUpdate", "edited": edited } });
    world.enforce("envoy", spec("Keep")).await?;
    world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    world.status("envoy", "injected", 1).await?;
    strategic(&world, "web", &set_image("web:4")).await?;
    world.status("envoy", "edited", 1).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let web = world.get(&path("web")).await?.context("it is there")?;
    ensure!(image_of(&web, "envoy") == "web:4", "never by itself");
    world.edit_policy("envoy", spec("Restore")).await?;
    within(LIMIT, "the image is restored", || async {
        let web = world.get(&path("web")).await?.context("it is there")?;
        Ok(image_of(&web, "envoy") == "envoy:1")
    })
    .await?;
    world.status("envoy", "injected", 1).await
}

async fn a_backup_of_an_earlier_revision_comes_with_the_present_one() -> Result<()> {
    let (world, _operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let spec = |image: &str| json!({ "engine": "Webhook", "failurePolicy": "Fail", "template": rich(image) });
    world.enforce("envoy", spec("envoy:1")).await?;
    within(LIMIT, "the revision is kept", || async { Ok(world.list(REVISIONS).await?.len() == 1) }).await?;
    let stored = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    ensure!(image_of(&stored, "envoy") == "envoy:1", "{stored}");
    world.edit_policy("envoy", spec("envoy:2")).await?;
    in_force(&world.cluster, "envoy").await?;
    within(LIMIT, "the edit is in effect", || async {
        let new = request(&world.admin, "POST", &format!("{DEPLOYMENTS}?dryRun=All"), &deployment("new")).await?;
        Ok(image_of(&new, "envoy") == "envoy:2")
    })
    .await?;
    let backup = |name: &str, image: &str| {
        let mut body = stored.clone();
        body["metadata"] = json!({ "name": name });
        body.as_object_mut().map(|object| object.remove("status"));
        let containers = body["spec"]["template"]["spec"]["containers"].as_array_mut().into_iter().flatten();
        for container in containers.filter(|container| container["name"] == "envoy") {
            container["image"] = json!(image);
        }
        body
    };
    let restored = world.create(DEPLOYMENTS, &backup("restored", "envoy:1")).await?;
    ensure!(image_of(&restored, "envoy") == "envoy:2", "{restored}");
    ensure!(restored["spec"]["template"]["spec"]["containers"].as_array().is_some_and(|all| all.len() == 2));
    let forged = world.create(DEPLOYMENTS, &backup("forged", "evil:1")).await;
    ensure!(forged.as_ref().is_err_and(|error| format!("{error:#}").contains("SCP02")), "{forged:?}");
    world.status("envoy", "injected", 1).await
}

async fn admission_policies_let_an_earlier_revision_through_under_fail_and_nothing_else() -> Result<()> {
    let (world, _operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let spec =
        |image: &str| json!({ "engine": "MutatingAdmissionPolicy", "failurePolicy": "Fail", "template": rich(image) });
    world.enforce("envoy", spec("envoy:1")).await?;
    within(LIMIT, "the revision is kept", || async { Ok(world.list(REVISIONS).await?.len() == 1) }).await?;
    let stored = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    world.edit_policy("envoy", spec("envoy:2")).await?;
    in_force(&world.cluster, "envoy").await?;
    let backup = |name: &str, image: &str| {
        let mut body = stored.clone();
        body["metadata"] = json!({ "name": name });
        body.as_object_mut().map(|object| object.remove("status"));
        body["spec"]["template"]["spec"]["containers"][1]["image"] = json!(image);
        body
    };
    within(LIMIT, "the edit is in effect", || async {
        let new = request(&world.admin, "POST", &format!("{DEPLOYMENTS}?dryRun=All"), &deployment("new")).await?;
        Ok(image_of(&new, "envoy") == "envoy:2")
    })
    .await?;
    within(LIMIT, "it is let through", || async {
        let path = format!("{DEPLOYMENTS}?dryRun=All");
        Ok(request(&world.admin, "POST", &path, &backup("restored", "envoy:1")).await.is_ok())
    })
    .await?;
    let restored = world.create(DEPLOYMENTS, &backup("restored", "envoy:1")).await?;
    ensure!(image_of(&restored, "envoy") == "envoy:1", "{restored}");
    world.status("envoy", "outdated", 2).await?;
    let forged = world.create(DEPLOYMENTS, &backup("forged", "evil:1")).await;
    ensure!(forged.as_ref().is_err_and(|error| format!("{error:#}").contains("SCP02")), "{forged:?}");
    Ok(())
}
