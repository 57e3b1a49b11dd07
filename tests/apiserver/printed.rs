//! Commands that messages print: each is tried as it stands.

use crate::prelude::*;
use crate::printed_table::{PRINTED, Tried};
use crate::status::{follow, report};

crate::tests![
    a_pod_is_created_anew_by_the_command_that_status_prints,
    every_printed_command_is_one_that_the_server_takes,
];

const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";

fn class(name: &str, value: i32) -> Value {
    json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": name }, "value": value,
    })
}

/// A pod that is deleted at once.
fn pod(name: &str, spec: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "containers": [{ "name": "app", "image": "app:1" }], "terminationGracePeriodSeconds": 0 },
    });
    pod["spec"].as_object_mut().expect("a map").extend(spec.as_object().cloned().unwrap_or_default());
    pod
}

impl World {
    async fn pod(&self, name: &str) -> Result<Value> {
        self.get(&format!("{PODS}/{name}")).await?.with_context(|| format!("there is no pod {name}"))
    }

    /// Waits until a pod that is not `before` is called `name` and is on a node.
    async fn runs(&self, name: &str, before: &Value) -> Result<Value> {
        within(LIMIT, &format!("pod {name} is on a node"), || async {
            let pod = self.get(&format!("{PODS}/{name}")).await?.unwrap_or_default();
            Ok(pod["spec"]["nodeName"].is_string() && pod["metadata"]["uid"] != before["metadata"]["uid"])
        })
        .await?;
        self.pod(name).await
    }

    /// What a volume of one pod needs.
    async fn volume(&self) -> Result<()> {
        let capacity = json!({ "storage": "1Gi" });
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "once" },
            "spec": {
                "capacity": capacity, "accessModes": ["ReadWriteOncePod"], "storageClassName": "",
                "csi": { "driver": "example.com", "volumeHandle": "once" },
                "claimRef": { "namespace": "default", "name": "once" },
            },
        });
        request(&self.admin, "POST", "/api/v1/persistentvolumes", &volume).await?;
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "once" },
            "spec": {
                "accessModes": ["ReadWriteOncePod"], "storageClassName": "", "volumeName": "once",
                "resources": { "requests": capacity },
            },
        });
        request(&self.admin, "POST", "/api/v1/namespaces/default/persistentvolumeclaims", &claim).await.map(drop)?;
        Ok(())
    }

    /// The command for the pod `name` in the report of `scpol status`.
    async fn fix(&self, name: &str) -> Result<String> {
        let (_, one) = report(self, &["envoy", "--limit", "0"]).await?;
        let mut rows = one["workloads"].as_array().into_iter().flatten();
        let row = rows.find(|row| row["name"] == name).with_context(|| format!("{name} is not in {one}"))?;
        Ok(row["fix"].as_str().unwrap_or_default().to_owned())
    }
}

async fn a_pod_is_created_anew_by_the_command_that_status_prints() -> Result<()> {
    let builder = ControlPlane::builder(Version::NEWEST).nodes(1).enable_admission(&["ServiceAccount"]);
    let (world, _operator) = World::with(builder).await?.operated(&[]).await?;
    for (name, value) in [("changed", 1000), ("gone", 1000)] {
        request(&world.admin, "POST", CLASSES, &class(name, value)).await?;
    }
    world.volume().await?;
    within(LIMIT, "the default account", || async {
        Ok(world.get("/api/v1/namespaces/default/serviceaccounts/default").await?.is_some())
    })
    .await?;
    let nodes = world.get("/api/v1/nodes").await?.unwrap_or_default();
    let node = nodes["items"][0]["metadata"]["name"].clone();
    let claim = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "once" } });
    let pods = [
        ("plain", json!({})),
        ("debugged", json!({})),
        ("changed", json!({ "priorityClassName": "changed" })),
        ("gone", json!({ "priorityClassName": "gone" })),
        ("claim", json!({ "volumes": [claim] })),
        ("pinned", json!({ "nodeName": node })),
    ];
    let mut before = Vec::new();
    for (name, spec) in pods {
        world.create(PODS, &pod(name, &spec)).await?;
        before.push((name, world.runs(name, &Value::Null).await?));
    }
    let owner =
        json!([{ "apiVersion": "example.org/v1", "kind": "Maker", "name": "m", "uid": "u", "controller": true }]);
    let mut owned = pod("owned", &json!({}));
    owned["metadata"]["ownerReferences"] = owner;
    // The garbage collector does not know that kind, and leaves its pods.
    world.create(PODS, &owned).await?;
    let mut web = deployment("web");
    web["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(0);
    world.create(DEPLOYMENTS, &web).await?;
    let debug = json!([{ "name": "debugger", "image": "tools:1", "targetContainerName": "app" }]);
    let debug = json!([{ "op": "add", "path": "/spec/ephemeralContainers", "value": debug }]);
    world.patch(&format!("{PODS}/debugged/ephemeralcontainers"), &debug).await?;
    for name in ["changed", "gone"] {
        world.delete(&format!("{CLASSES}/{name}")).await?;
    }
    request(&world.admin, "POST", CLASSES, &class("changed", 5)).await?;
    let mut spec = sidecar("envoy");
    spec["targets"] = json!([{ "group": "", "resource": "pods" }]);
    world.enforce("envoy", spec).await?;

    for (name, before) in &before {
        let fix = world.fix(name).await?;
        match *name {
            "gone" => {
                let error = follow(&world, &fix).await.expect_err("its class is gone").to_string();
                ensure!(error.contains("priorityclasses") && error.contains("not found"), "{error}");
                assert_eq!(world.pod(name).await?["metadata"]["uid"], before["metadata"]["uid"], "it is not deleted");
            }
            "pinned" => ensure!(fix.starts_with("delete it, and create it from its own manifest: "), "{fix}"),
            _ => {
                follow(&world, &fix).await?;
                let after = world.runs(name, before).await?;
                assert_eq!(containers(&after), ["app", "envoy"], "{name}");
                assert_eq!(after["spec"]["ephemeralContainers"], Value::Null, "{name}");
                let tokens = after["spec"]["volumes"].to_string().matches("kube-api-access-").count();
                assert_eq!(tokens, 1, "{name}: {after}");
                let priority = if *name == "changed" { 5 } else { 0 };
                assert_eq!(after["spec"]["priority"], priority, "{name}");
            }
        }
    }
    let fix = world.fix("owned").await?;
    assert_eq!(fix, "kubectl delete -n default pods/owned");
    follow(&world, &fix).await?;
    of_a_deployment(&world).await
}

/// The pods of a Deployment are created anew by a restart of it.
async fn of_a_deployment(world: &World) -> Result<()> {
    let pods = world.get(&format!("{PODS}?labelSelector=app%3Dweb")).await?.unwrap_or_default();
    let name = pods["items"][0]["metadata"]["name"].as_str().context("a pod of the Deployment")?;
    let fix = world.fix(name).await?;
    assert_eq!(fix, "kubectl rollout restart -n default deploy/web");
    follow(world, &fix).await?;
    within(LIMIT, "the pods of the Deployment have the sidecar", || async {
        let pods = world.get(&format!("{PODS}?labelSelector=app%3Dweb")).await?.unwrap_or_default();
        let mut pods = pods["items"].as_array().into_iter().flatten();
        Ok(pods.any(|pod| containers(pod) == ["app", "envoy"]))
    })
    .await
}

async fn every_printed_command_is_one_that_the_server_takes() -> Result<()> {
    let (world, _operator) = World::with(ControlPlane::builder(Version::NEWEST)).await?.operated(&[]).await?;
    let mut spec = sidecar("envoy");
    spec["updateStrategy"] = json!({ "type": "RollingUpdate" });
    world.enforce("envoy", spec).await?;
    let mut own = deployment("scpol");
    own["metadata"]["namespace"] = json!("scpol-system");
    request(&world.admin, "POST", "/apis/apps/v1/namespaces/scpol-system/deployments", &own).await?;
    let revision = json!({ "apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": { "name": "foreign" }, "data": {}, "revision": 1 });
    request(&world.admin, "POST", "/apis/apps/v1/namespaces/scpol-system/controllerrevisions", &revision).await?;
    let mut tried = 0;
    for (command, how) in PRINTED {
        let Tried::Here(script) = how else { continue };
        let script = if script.is_empty() { command } else { script };
        // A finding is the exit code 1; a command that cannot run ends with 2.
        let code = if script.starts_with("scpol ") && !script.contains(" | ") { "; [ $? -le 1 ]" } else { "" };
        let checkout = env!("CARGO_MANIFEST_DIR");
        follow(&world, &format!("cd {checkout}; {script}{code}")).await?;
        tried += 1;
    }
    ensure!(tried > 20, "only {tried} commands were tried");
    Ok(())
}
