//! What `kubectl create` tells a tenant whose annotations do not fit the parameters of a policy.

use crate::commands::scpol;
use crate::engines::{by, engine_of};
use crate::prelude::*;

crate::tests![
    five_wrong_annotations_are_answered_with_what_to_write,
    what_a_workload_got_and_what_it_would_get_now_is_told,
    the_server_gives_usual_values_without_the_operator_and_the_webhook_judges_the_others,
];

/// A policy that leaves the size and the log level of its proxy to workloads.
fn proxy(failure_policy: &str) -> Value {
    let memory = json!({
        "name": "memory", "type": "Quantity", "paths": ["containers[envoy].resources.limits.memory"],
        "annotation": "proxy.example.com/memory", "minimum": "64Mi", "maximum": "1Gi",
    });
    let level =
        json!({ "name": "level", "paths": ["containers[envoy].env[LEVEL].value"], "enum": ["debug", "info", "warn"] });
    let container = json!({
        "name": "envoy", "image": "envoy:1", "env": [{ "name": "LEVEL", "value": "info" }],
        "resources": { "limits": { "memory": "128Mi" } },
    });
    let spec = json!({
        "failurePolicy": failure_policy, "parameters": [memory, level], "template": { "containers": [container] },
    });
    by("Webhook", spec)
}

/// A Deployment with that annotation on its pod template.
fn asking(name: &str, key: &str, value: &str) -> Value {
    let mut body = deployment(name);
    body["spec"]["template"]["metadata"]["annotations"] = json!({ key: value });
    body
}

/// The result of `kubectl create` of a Deployment with that annotation on its pod template, and what kubectl prints to the user beside it.
async fn created(world: &World, key: &str, value: &str) -> Result<(bool, String)> {
    let body = asking("web", key, value);
    let file = world.cluster.dir().join("tenant.json");
    std::fs::write(&file, body.to_string())?;
    let mut kubectl = world.cluster.kubectl(User::Admin);
    let output = kubectl.args(["create", "--dry-run=server", "-f"]).arg(&file).output().await?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).trim_end().to_owned()))
}

/// Annotations, and what is wrong with them.
const WRONG: [(&str, &str, &str); 4] = [
    (MEMORY, "256MB", "must be a quantity from `64Mi` to `1Gi`, is `256MB`; write `256M`"),
    (MEMORY, "2Gi", "must be a quantity from `64Mi` to `1Gi`, is `2Gi`"),
    ("proxy.scpol.dev/level", "verbose", "must be one of `debug`, `info`, `warn`; the value is not shown"),
    (MEMORY, "", "must be a quantity from `64Mi` to `1Gi`, is empty"),
];
const MEMORY: &str = "proxy.example.com/memory";

/// The whole detail: the parameter and its source, then what is wrong.
fn detail(key: &str, wrong: &str) -> String {
    let name = if key == MEMORY { "memory" } else { "level" };
    format!("SCP0245: parameter `{name}`, from annotation `{key}` of the pod: {wrong}")
}

/// Under `Ignore`: a right value, and each wrong one.
async fn wrong_values_are_answered_with_warnings(world: &World) -> Result<()> {
    let (is_created, told) = created(world, MEMORY, "256Mi").await?;
    assert_eq!((is_created, told.as_str()), (true, ""));
    for (key, value, wrong) in WRONG {
        let (is_created, told) = created(world, key, value).await?;
        let warning = format!("Warning: SidecarPolicy `proxy` does not inject this Deployment: {}", detail(key, wrong));
        assert_eq!((is_created, told), (true, warning));
    }
    Ok(())
}

async fn five_wrong_annotations_are_answered_with_what_to_write() -> Result<()> {
    let (world, operator) = World::with(ControlPlane::builder(Version::NEWEST)).await?.operated(&[]).await?;
    world.enforce("proxy", proxy("Ignore")).await?;
    wrong_values_are_answered_with_warnings(&world).await?;
    let misspelt = ("proxy.scpol.dev/levle", "warn");
    let (is_created, told) = created(&world, misspelt.0, misspelt.1).await?;
    let warning = "Warning: SidecarPolicy `proxy` sees this Deployment: SCP0123: no parameter has the annotation \
                   `proxy.scpol.dev/levle`; did you mean `proxy.scpol.dev/level`?";
    assert_eq!((is_created, told.as_str()), (true, warning));

    world.edit_policy("proxy", json!({ "failurePolicy": "Fail" })).await?;
    in_force(&world.cluster, "proxy").await?;
    // A text, too, which is compared with what the template has, unlike amounts.
    for (key, value) in [(MEMORY, "256Mi"), ("proxy.scpol.dev/level", "warn")] {
        let (is_created, told) = created(&world, key, value).await?;
        assert_eq!((is_created, told.as_str()), (true, ""), "{key}: {value}");
    }
    for (key, value, wrong) in WRONG {
        let (is_created, told) = created(&world, key, value).await?;
        let refused = format!("SidecarPolicy `proxy` refuses this Deployment: {}", detail(key, wrong));
        assert!(!is_created && told.contains(&refused), "{key}: {value:?}: {told}");
    }
    let (is_created, told) = created(&world, misspelt.0, misspelt.1).await?;
    assert_eq!((is_created, told.as_str()), (true, warning), "the default is within the bounds");
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}

async fn what_a_workload_got_and_what_it_would_get_now_is_told() -> Result<()> {
    let (world, operator) = World::with(ControlPlane::builder(Version::NEWEST)).await?.operated(&[]).await?;
    world.enforce("proxy", proxy("Ignore")).await?;
    let (code, table) = scpol(&world.cluster, &["parameters", "proxy"]).await?;
    assert!(code == 0 && table.contains("64Mi to 1Gi") && table.contains("proxy.scpol.dev/level"), "{table}");
    let (code, told) = scpol(&world.cluster, &["parameters", "prox"]).await?;
    assert_eq!((code, told.as_str()), (2, "error: there is no SidecarPolicy `prox`; did you mean `proxy`?\n"));

    world.create(DEPLOYMENTS, &asking("misspelt", "proxy.scpol.dev/levle", "warn")).await?;
    let event = "SidecarInjectionSkipped: SCP0123: SidecarPolicy `proxy`: no parameter has the annotation `proxy.scpol.dev/levle`";
    world.event("misspelt", event).await?;

    world.create(DEPLOYMENTS, &asking("web", MEMORY, "256Mi")).await?;
    let annotations = json!({ MEMORY: "512Mi" });
    let edit = json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } }).to_string();
    world.cluster.kubectl_output(User::Admin, &["patch", "deployment", "web", "-p", &edit]).await?;
    let stored = world.get(&path("web")).await?.context("it is stored")?.to_string();
    ensure!(stored.contains("\"memory\":\"256Mi\""), "it keeps what it has: {stored}");
    let values = "other values when it is made again: `memory` is `256Mi`, now `512Mi`";
    let (_, told) = scpol(&world.cluster, &["status", "proxy"]).await?;
    assert!(told.contains(&format!("Outdated: Deployment default/web: {values}")), "{told}");
    let (code, told) = scpol(&world.cluster, &["explain", "deploy/web"]).await?;
    assert!(code == 0 && told.contains(values) && told.contains("256Mi; 512Mi when it is made again"), "{told}");
    world.status("proxy", "outdated", 1).await?;
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}

async fn the_server_gives_usual_values_without_the_operator_and_the_webhook_judges_the_others() -> Result<()> {
    let (world, operator) = World::with(ControlPlane::builder(Version::NEWEST)).await?.operated(&[]).await?;
    world.enforce("proxy", by("Auto", proxy("Ignore"))).await?;
    assert_eq!(engine_of(&world, "proxy").await?, "MutatingAdmissionPolicy");
    wrong_values_are_answered_with_warnings(&world).await?;
    let (is_created, told) = created(&world, "proxy.scpol.dev/levle", "warn").await?;
    assert!(is_created && told.contains("did you mean `proxy.scpol.dev/level`?"), "{told}");
    let (_, told) =
        scpol(&world.cluster, &["explain", "-f", &world.cluster.dir().join("tenant.json").display().to_string()])
            .await?;
    assert!(told.contains("SCP0123"), "{told}");
    // One that is written in an unusual way.
    world.create(DEPLOYMENTS, &asking("odd", MEMORY, "0.25Gi")).await?;
    world.create(DEPLOYMENTS, &asking("usual", MEMORY, "512Mi")).await?;
    let value = async |name: &str| -> Result<Value> {
        let stored = world.get(&path(name)).await?.context("it is stored")?;
        Ok(stored["spec"]["template"]["spec"]["containers"][1]["resources"]["limits"]["memory"].clone())
    };
    assert_eq!((value("odd").await?, value("usual").await?), (json!("256Mi"), json!("512Mi")));
    world.status("proxy", "injected", 2).await?;
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);

    // A policy that names the engine has no webhook beside it.
    world.edit_policy("proxy", json!({ "engine": "MutatingAdmissionPolicy" })).await?;
    let why = "no webhook stands by for unusual values";
    within(LIMIT, "the policy is not served", || async {
        let conditions = policies(&world.cluster).get("proxy").await?.data["status"]["conditions"].to_string();
        Ok(conditions.contains("SCP0319") && conditions.contains(why))
    })
    .await?;
    world.edit_policy("proxy", json!({ "engine": "Auto" })).await?;
    in_force(&world.cluster, "proxy").await?;

    operator.kill().await?;
    world.create(DEPLOYMENTS, &asking("alone", MEMORY, "1Gi")).await?;
    world.create(DEPLOYMENTS, &asking("wrong", MEMORY, "2Gi")).await?;
    assert_eq!((value("alone").await?, value("wrong").await?), (json!("1Gi"), Value::Null));
    Ok(())
}
