//! Sidecars that do not start. There is no kubelet here, so the tests write the status of pods.

use crate::commands::scpol;
use crate::prelude::*;

crate::tests![
    a_sidecar_that_does_not_start_is_shown_until_it_starts_with_the_shipped_rights,
    a_sidecar_that_does_not_start_in_a_pod_of_its_own_is_shown_until_it_starts,
];

impl World {
    /// Writes the status of an object.
    async fn write_status(&self, path: &str, status: Value) -> Result<()> {
        let patch = json!([{ "op": "add", "path": "/status", "value": status }]);
        request(&self.admin, "PATCH", &format!("{path}/status"), &patch).await.map(drop)?;
        Ok(())
    }

    /// Writes the state of the container `envoy` of the pod `name`.
    async fn write_state(&self, name: &str, state: Value) -> Result<()> {
        let of = |name: &str, state: &Value| json!({ "name": name, "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state });
        let running = json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } });
        let statuses = json!([of("app", &running), of("envoy", &state)]);
        self.write_status(&format!("{PODS}/{name}"), json!({ "phase": "Pending", "containerStatuses": statuses })).await
    }

    /// Waits until the policy `envoy` is `Degraded` with a message that has all of `parts`, or is not.
    async fn degraded(&self, parts: Option<&[&str]>) -> Result<()> {
        within(LIMIT, &format!("Degraded: {parts:?}"), || async {
            let told = condition(&self.cluster, "envoy", "Degraded").await?;
            let told = told.filter(|told| told["reason"] == "SidecarNotStarting");
            let message = told.as_ref().and_then(|told| told["message"].as_str());
            ensure!(
                match (message, parts) {
                    (None, None) => true,
                    (Some(message), Some(parts)) => parts.iter().all(|part| message.contains(part)),
                    _ => false,
                },
                "{message:?}"
            );
            Ok(true)
        })
        .await
    }
}

const SERIES: &str = "scpol_sidecars_not_starting{container=\"envoy\",policy=\"envoy\"}";

fn waits(reason: &str) -> Value {
    json!({ "waiting": { "reason": reason, "message": "as the kubelet says" } })
}

async fn a_sidecar_that_does_not_start_is_shown_until_it_starts_with_the_shipped_rights() -> Result<()> {
    for version in [Version::V1_13, Version::V1_36] {
        let (world, operator) = World::with(ControlPlane::builder(version).audit_log()).await?.operated(&[]).await?;
        world.enforce("envoy", sidecar("envoy")).await?;
        let web = world.create(DEPLOYMENTS, &deployment("web")).await?;
        for name in ["web-1", "web-2"] {
            let mut pod = web["spec"]["template"].clone();
            (pod["apiVersion"], pod["kind"], pod["metadata"]["name"]) = (json!("v1"), json!("Pod"), json!(name));
            request(&world.admin, "POST", PODS, &pod).await?;
        }
        world.write_state("web-1", waits("ErrImagePull")).await?;
        world.write_state("web-2", waits("ContainerCreating")).await?;
        world.write_status(&path("web"), json!({ "replicas": 2, "unavailableReplicas": 2 })).await?;
        world
            .degraded(Some(&[
                "container `envoy` does not start in 1 pod of 1 workload (ImagePullBackOff)",
                "default/web-1",
            ]))
            .await?;
        let ready = wait_condition(&world.cluster, "envoy", "Ready", "True", "Programmed").await?;
        assert!(ready["message"].as_str().is_some_and(|message| message.contains("Degraded")), "{ready}");
        world.write_state("web-2", waits("CreateContainerConfigError")).await?;
        world.degraded(Some(&["2 pods of 1 workload (CreateContainerConfigError, ImagePullBackOff)"])).await?;
        within(LIMIT, "the metric", || async { Ok(operator.metric(SERIES).await? == 2.0) }).await?;
        world.is_told().await.with_context(|| format!("{version:?}"))?;
        // The image can be pulled now, and the other pod is gone.
        world.write_state("web-1", json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } })).await?;
        world.delete(&format!("{PODS}/web-2")).await?;
        world.degraded(None).await?;
        world.write_state("web-1", waits("CrashLoopBackOff")).await?;
        world.degraded(Some(&["(CrashLoopBackOff)"])).await?;
        world.write_status(&path("web"), json!({ "replicas": 2, "readyReplicas": 2 })).await?;
        world.degraded(None).await?;
        within(LIMIT, "the metric", || async { Ok(operator.metric(SERIES).await? == 0.0) }).await?;
        let ours = |event: &&Value| event["user"]["username"] == User::Operator.name();
        let audit = world.cluster.audit();
        let refused: Vec<_> =
            audit.iter().filter(ours).filter(|event| event["responseStatus"]["code"] == 403).collect();
        assert!(refused.is_empty(), "{version:?}: {refused:?}");
    }
    Ok(())
}

impl World {
    /// Checks that the commands tell of the two pods that do not start.
    async fn is_told(&self) -> Result<()> {
        let (code, told) = scpol(&self.cluster, &["status", "envoy"]).await?;
        let mut rows = told.lines().filter(|line| line.starts_with("Deployment default/web"));
        let has_it = rows.any(|row| row.contains("ImagePullBackOff") && row.contains("SCP0231"));
        ensure!(code == 1 && has_it, "{code}: {told}");
        let (code, told) = scpol(&self.cluster, &["explain", "deploy/web", "-n", "default"]).await?;
        let says = "envoy: container `envoy` does not start in 1 pod: ImagePullBackOff (SCP0231)";
        ensure!(code == 1 && told.contains(says), "{code}: {told}");
        let (_, told) = scpol(&self.cluster, &["explain", "deploy/web", "-n", "default", "-o", "json"]).await?;
        let report: Value = serde_json::from_str(&told)?;
        let reasons = report["items"][0]["notStarting"].as_array().context("notStarting")?.iter();
        let reasons: Vec<_> = reasons.map(|one| one["reason"].as_str().unwrap_or_default()).collect();
        assert_eq!(reasons, ["CreateContainerConfigError", "ImagePullBackOff"]);
        Ok(())
    }
}

async fn a_sidecar_that_does_not_start_in_a_pod_of_its_own_is_shown_until_it_starts() -> Result<()> {
    let (world, _operator) = World::with(ControlPlane::builder(Version::V1_36)).await?.operated(&[]).await?;
    let mut spec = sidecar("envoy");
    spec["targets"] = json!([{ "group": "", "resource": "pods" }]);
    world.enforce("envoy", spec).await?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" },
        "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
    });
    world.create(PODS, &pod).await?;
    world.write_state("web", waits("InvalidImageName")).await?;
    world.degraded(Some(&["in 1 pod of 1 workload (InvalidImageName), such as default/web"])).await?;
    let (code, told) = scpol(&world.cluster, &["status", "envoy"]).await?;
    assert!(code == 1 && told.contains("InvalidImageName"), "{code}: {told}");
    world.write_state("web", json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } })).await?;
    world.degraded(None).await
}
