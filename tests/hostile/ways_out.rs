//! Users who write workloads that a policy could leave out.

use crate::prelude::*;
use sidecar_policy::inject::marker;

crate::tests![
    pods_that_could_be_left_out_are_refused_by_initializers =
        pods_that_could_be_left_out_are_refused(Version::V1_13, "Initializer"),
    pods_that_could_be_left_out_are_refused_by_a_webhook_of_1_13 =
        pods_that_could_be_left_out_are_refused(Version::V1_13, "Webhook"),
    pods_that_could_be_left_out_are_refused_by_a_webhook_of_1_30 =
        pods_that_could_be_left_out_are_refused(Version::V1_30, "Webhook"),
    pods_that_could_be_left_out_are_refused_by_a_webhook =
        pods_that_could_be_left_out_are_refused(Version::NEWEST, "Webhook"),
    pods_that_could_be_left_out_are_refused_by_admission_policies =
        pods_that_could_be_left_out_are_refused(Version::NEWEST, "MutatingAdmissionPolicy"),
];

/// A pod with an additional field of its spec.
fn pod(name: &str, field: &str, value: &Value) -> Value {
    let mut pod = crate::world::pod(name);
    pod["spec"][field] = value.clone();
    pod
}

/// A Deployment on the network of its nodes.
fn on_the_host(name: &str) -> Value {
    let mut body = deployment(name);
    body["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
    body
}

/// Sees that the request is refused with all of `parts` in the message.
async fn is_refused(world: &World, method: &str, path: &str, body: &Value, parts: &[&str]) -> Result<()> {
    match request(&world.creator, method, path, body).await {
        Ok(stored) => bail!("stored: {stored}"),
        Err(error) => {
            let error = error.to_string();
            let missing = parts.iter().find(|part| !error.contains(**part));
            ensure!(missing.is_none(), "{missing:?} is not in `{error}`");
        }
    }
    Ok(())
}

async fn pods_that_could_be_left_out_are_refused(version: Version, engine: &str) -> Result<()> {
    let world = World::with(ControlPlane::builder(version)).await?;
    // What is stored before the policy stays, and may be edited.
    world.create(PODS, &pod("early", "hostNetwork", &json!(true))).await?;
    world.create(DEPLOYMENTS, &on_the_host("early")).await?;
    let operations = if engine == "Initializer" { json!(["CREATE"]) } else { json!(["CREATE", "UPDATE"]) };
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    let spec = json!({
        "engine": engine,
        "targets": [
            { "group": "", "resource": "pods" },
            { "group": "apps", "resource": "deployments", "operations": operations },
        ],
        "template": { "containers": [{ "name": "audit", "image": "audit:1" }] },
        "hostNetworkPods": "Refuse",
        "jobs": "Refuse",
    });
    world.enforce("audit", spec).await?;
    world.status("audit", "missed", 2).await?;

    for field in ["hostNetwork", "hostPID"] {
        let parts = ["SidecarPolicy `audit` refuses this", "SCP0119", &format!("`{field}: true`"), "hostNetworkPods"];
        let name = field.to_lowercase();
        is_refused(&world, "POST", PODS, &pod(&name, field, &json!(true)), &parts).await?;
        let created = world.create(PODS, &pod(&format!("{name}-off"), field, &json!(false))).await?;
        ensure!(containers(&created) == ["app", "audit"], "{field}: {:?}", containers(&created));
    }
    is_refused(&world, "POST", DEPLOYMENTS, &on_the_host("late"), &["SCP0119", "`hostNetwork: true`"]).await?;
    let job = pod("job", "restartPolicy", &json!("Never"));
    if version < Version::V1_30 {
        is_refused(&world, "POST", PODS, &job, &["`audit`", "SCP0119", "`restartPolicy`", "`spec.jobs`"]).await?;
    } else {
        let created = world.create(PODS, &job).await?;
        ensure!(created["spec"]["initContainers"][0]["name"] == "audit", "{}", created["spec"]);
    }
    // The policy allows to opt out, and then nothing is missing.
    let mut out = pod("out", "hostNetwork", &json!(true));
    out["metadata"]["annotations"] = json!({ "scpol.dev/inject": "false" });
    let created = world.create(PODS, &out).await?;
    ensure!(containers(&created) == ["app"], "{:?}", containers(&created));
    // Servers remove the time, the old ones only after the mutating calls.
    let mut ending = pod("ending", "hostNetwork", &json!(false));
    ending["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
    let created = world.create(PODS, &ending).await?;
    ensure!(created["metadata"]["deletionTimestamp"].is_null(), "{}", created["metadata"]);
    ensure!(containers(&created) == ["app", "audit"], "{:?}", containers(&created));

    let label = json!([{ "op": "add", "path": "/metadata/labels/edited", "value": "1" }]);
    world.patch(&format!("{PODS}/early"), &label).await?;
    world.patch(&path("early"), &label).await?;
    if engine == "Initializer" {
        return Ok(());
    }
    // An edit that takes the sidecar away for the network of the host.
    let created = world.create(DEPLOYMENTS, &deployment("web")).await?;
    ensure!(!created["spec"]["template"]["metadata"]["annotations"][marker::key("audit")].is_null(), "{created}");
    is_refused(&world, "PUT", &path("web"), &on_the_host("web"), &["SCP0119", "`hostNetwork: true`"]).await?;
    let stored = world.get(&path("web")).await?.context("stored")?;
    ensure!(stored["spec"]["template"]["spec"].get("hostNetwork").is_none(), "{stored}");
    // Nor in two steps, of which the first keeps the sidecar.
    let mut first = stored;
    first["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
    let first = request(&world.creator, "PUT", &path("web"), &first).await?;
    ensure!(containers(&first) == ["app", "audit"], "{:?}", containers(&first));
    is_refused(&world, "PUT", &path("web"), &on_the_host("web"), &["SCP0119", "`hostNetwork: true`"]).await
}
