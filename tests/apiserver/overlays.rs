//! Overlays of parameters after the create: what kubectl makes of a manifest that is applied again, and what rollouts make of that.

use crate::commands::scpol;
use crate::engines::by;
use crate::prelude::*;
use crate::rollouts::{Controllers, wait_progress, world};
use serde_json::Map;

crate::tests![
    a_manifest_with_an_overlay_is_applied_again_with_other_values_and_without,
    the_same_is_true_of_server_side_apply,
    a_pod_and_a_native_sidecar_have_overlays,
];

/// A policy whose memory and log level authors may set by an overlay.
fn proxy() -> Value {
    let memory = json!({
        "name": "memory", "type": "Quantity", "minimum": "64Mi", "maximum": "1Gi", "overridable": true,
        "paths": ["containers[envoy].resources.requests.memory", "containers[envoy].resources.limits.memory"],
    });
    let level = json!({ "name": "level", "paths": ["containers[envoy].env[LEVEL].value"], "enum": ["debug", "info"], "overridable": true });
    let container = json!({
        "name": "envoy", "image": "envoy:1", "env": [{ "name": "LEVEL", "value": "info" }],
        "resources": { "requests": { "memory": "128Mi" }, "limits": { "memory": "128Mi" } },
    });
    json!({
        "updateStrategy": { "type": "RollingUpdate" }, "parameters": [memory, level], "template": { "containers": [container] },
    })
}

/// Applies a Deployment `web`, with this overlay beside its own container.
async fn apply(world: &World, flags: &[&str], overlay: Option<Value>) -> Result<String> {
    let mut body = deployment("web");
    let containers = body["spec"]["template"]["spec"]["containers"].as_array_mut().context("it has containers")?;
    containers.extend(overlay);
    let file = world.cluster.dir().join("overlay.json");
    std::fs::write(&file, body.to_string())?;
    let path = file.display().to_string();
    world.cluster.kubectl_output(User::Admin, &[&["apply", "-f", &path], flags].concat()).await
}

fn overlay(more: &Value) -> Option<Value> {
    let mut overlay = Map::from_iter([("name".to_owned(), json!("envoy"))]);
    overlay.extend(more.as_object().cloned().unwrap_or_default());
    Some(overlay.into())
}

fn limit(memory: &str) -> Value {
    json!({ "resources": { "limits": { "memory": memory } } })
}

/// The image, request, limit and level of the sidecar of `web`.
async fn sidecar_of_web(world: &World) -> Result<[Value; 4]> {
    let stored = world.get(&path("web")).await?.context("it is stored")?;
    let containers = stored["spec"]["template"]["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let envoy = containers.into_iter().find(|container| container["name"] == "envoy").unwrap_or_default();
    let memory = |of: &str| envoy["resources"][of]["memory"].clone();
    Ok([envoy["image"].clone(), memory("requests"), memory("limits"), envoy["env"][0]["value"].clone()])
}

async fn is_whole(world: &World, memory: &str, level: &str) -> Result<()> {
    let expected = json!(["envoy:1", memory, memory, level]);
    within(LIMIT, &format!("the sidecar has {expected}"), || async {
        Ok(json!(sidecar_of_web(world).await?) == expected)
    })
    .await
}

async fn restart(world: &World) -> Result<()> {
    // Creation times are in whole seconds.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (code, told) = scpol(&world.cluster, &["rollout", "restart", "proxy"]).await?;
    ensure!(code == 0, "{told}");
    Ok(())
}

/// The life of an overlay, by `kubectl apply` with these flags.
async fn is_applied_again(flags: &[&str]) -> Result<()> {
    let (world, operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(100));
    world.enforce("proxy", by("Webhook", proxy())).await?;
    apply(&world, flags, overlay(&limit("256Mi"))).await?;
    is_whole(&world, "256Mi", "info").await?;
    wait_progress(&world, "proxy", "Complete").await?;
    let before = world.get(&path("web")).await?.context("it is stored")?["metadata"]["generation"].clone();
    apply(&world, flags, overlay(&limit("256Mi"))).await?;
    let stored = world.get(&path("web")).await?.context("it is stored")?;
    assert_eq!(stored["metadata"]["generation"], before, "the same manifest changes nothing");

    // Other values.
    let mut more = limit("512Mi");
    more["env"] = json!([{ "name": "LEVEL", "value": "debug" }]);
    apply(&world, flags, overlay(&more)).await?;
    assert_eq!(json!(sidecar_of_web(&world).await?), json!(["envoy:1", "256Mi", "512Mi", "debug"]));
    world.status("proxy", "outdated", 1).await?;
    let (_, told) = scpol(&world.cluster, &["status", "proxy"]).await?;
    let values = "other values when it is made again: `memory` is `256Mi`, now `512Mi`, `level` has another value now";
    assert!(told.contains(&format!("Outdated: Deployment default/web: {values}")), "{told}");
    let (code, told) = scpol(&world.cluster, &["explain", "deploy/web"]).await?;
    assert!(code == 0 && told.contains(values), "{told}");
    restart(&world).await?;
    is_whole(&world, "512Mi", "debug").await?;
    world.status("proxy", "injected", 1).await?;

    // One that the bounds do not allow is an edit.
    apply(&world, flags, overlay(&limit("4Gi"))).await?;
    world.status("proxy", "edited", 1).await?;
    let (_, told) = scpol(&world.cluster, &["status", "proxy"]).await?;
    assert!(told.contains("`4Gi`"), "{told}");
    // The server compares a smaller limit with the request that is there.
    assert!(apply(&world, flags, overlay(&limit("128Mi"))).await.is_err());
    let both = json!({ "resources": { "limits": { "memory": "128Mi" }, "requests": { "memory": "128Mi" } } });
    apply(&world, flags, overlay(&both)).await?;
    restart(&world).await?;
    is_whole(&world, "128Mi", "info").await?;

    // A policy for updates completes them at once.
    let target = json!({ "group": "apps", "resource": "deployments", "operations": ["CREATE", "UPDATE"] });
    world.edit_policy("proxy", json!({ "targets": [target] })).await?;
    in_force(&world.cluster, "proxy").await?;
    for memory in ["1Gi", "64Mi", "256Mi"] {
        apply(&world, flags, overlay(&limit(memory))).await?;
        assert_eq!(json!(sidecar_of_web(&world).await?), json!(["envoy:1", memory, memory, "info"]));
    }
    apply(&world, flags, None).await?;
    assert_eq!(json!(sidecar_of_web(&world).await?), json!(["envoy:1", "128Mi", "128Mi", "info"]));
    apply(&world, flags, overlay(&limit("256Mi"))).await?;
    let target = json!({ "group": "apps", "resource": "deployments", "operations": ["CREATE"] });
    world.edit_policy("proxy", json!({ "targets": [target] })).await?;
    in_force(&world.cluster, "proxy").await?;

    // Without the overlay, kubectl takes away what it has applied.
    apply(&world, flags, None).await?;
    restart(&world).await?;
    is_whole(&world, "128Mi", "info").await?;
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}

async fn a_manifest_with_an_overlay_is_applied_again_with_other_values_and_without() -> Result<()> {
    is_applied_again(&[]).await
}

async fn the_same_is_true_of_server_side_apply() -> Result<()> {
    is_applied_again(&["--server-side", "--force-conflicts"]).await
}

async fn a_pod_and_a_native_sidecar_have_overlays() -> Result<()> {
    let (world, operator) = World::with(ControlPlane::builder(Version::NEWEST)).await?.operated(&[]).await?;
    let mut spec = by("Auto", proxy());
    spec["targets"] = json!([{ "group": "", "resource": "pods" }, { "group": "batch", "resource": "cronjobs" }]);
    spec["failurePolicy"] = json!("Ignore");
    world.enforce("proxy", spec).await?;
    // Of a ServiceAccount, and with what a LimitRange gives to each container.
    let range = json!({ "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "small" }, "spec": { "limits": [
        { "type": "Container", "default": { "cpu": "2", "memory": "900Mi" }, "defaultRequest": { "cpu": "1", "memory": "800Mi" } },
    ] } });
    request(&world.admin, "POST", "/api/v1/namespaces/default/limitranges", &range).await?;
    for (more, expected) in [(json!({}), "128Mi"), (limit("256Mi"), "256Mi")] {
        let mut overlay = overlay(&more).context("an overlay")?;
        overlay["image"] = json!("auto");
        let body = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "generateName": "web-" }, "spec": { "containers": [
            { "name": "app", "image": "app:1" }, overlay,
        ] } });
        let made = world.create("/api/v1/namespaces/default/pods", &body).await?;
        let envoy = &made["spec"]["containers"][1];
        assert_eq!(
            (&envoy["image"], &envoy["resources"]["limits"]["memory"]),
            (&json!("envoy:1"), &json!(expected)),
            "{made}"
        );
        assert_eq!(made["spec"]["containers"].as_array().map(Vec::len), Some(2), "{made}");
    }
    // A CronJob, whose sidecar is native, is applied twice.
    let template = json!({ "spec": { "restartPolicy": "Never", "containers": [{ "name": "app", "image": "app:1" }], "initContainers": [overlay(&limit("256Mi"))] } });
    let body = json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "nightly", "namespace": "default" }, "spec": {
        "schedule": "0 0 * * *", "jobTemplate": { "spec": { "template": template } },
    } });
    let file = world.cluster.dir().join("nightly.json");
    std::fs::write(&file, body.to_string())?;
    for _ in 0..2 {
        let path = file.display().to_string();
        world.cluster.kubectl_output(User::Admin, &["apply", "-f", &path]).await?;
        let stored = world.get("/apis/batch/v1/namespaces/default/cronjobs/nightly").await?.context("it is stored")?;
        let pod = &stored["spec"]["jobTemplate"]["spec"]["template"]["spec"];
        let envoy = &pod["initContainers"][0];
        assert_eq!((&envoy["image"], &envoy["restartPolicy"]), (&json!("envoy:1"), &json!("Always")), "{pod}");
        assert_eq!(
            (&envoy["resources"]["requests"]["memory"], pod["containers"].as_array().map(Vec::len)),
            (&json!("256Mi"), Some(1))
        );
    }
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}
