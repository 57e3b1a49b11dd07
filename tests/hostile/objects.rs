//! Hostile workloads ([`generator`]) on real servers: the server answers as it does without the operator, and what it stores is the
//! same but for the sidecar. No other policy, workload or namespace notices.

use super::generator::{self, Hostile, Victim};
use super::kept::is_kept;
use crate::prelude::*;
use crate::rollouts::{Controllers, grant, namespaces, rolling, wait_images, wait_progress};
use futures::StreamExt;

crate::tests![
    the_initializer_changes_nothing_but_the_sidecar_of_hostile_objects = on(Version::V1_13, "Initializer"),
    the_webhook_changes_nothing_but_the_sidecar_of_hostile_objects = on(Version::V1_30, "Webhook"),
    admission_policies_change_nothing_but_the_sidecar_of_hostile_objects =
        on(Version::NEWEST, "MutatingAdmissionPolicy"),
];

/// The objects, from the seed 0 on.
const COUNT: u64 = 500;
/// The requests at the same time.
const AT_ONCE: usize = 8;

/// The answer of a server to a create: the status code, and the stored object.
type Answer = (u16, Value);

fn path_of(hostile: &Hostile, namespace: &str) -> String {
    let api = match hostile.group {
        "" => "/api/v1".to_owned(),
        group => format!("/apis/{group}/v1"),
    };
    format!("{api}/namespaces/{namespace}/{}", hostile.resource)
}

/// Creates the objects in a namespace.
async fn create(world: &World, objects: &[Hostile], namespace: &str) -> Result<Vec<Answer>> {
    let creates = objects.iter().map(|hostile| {
        let path = path_of(hostile, namespace);
        async move {
            match request(&world.creator, "POST", &path, &hostile.body).await {
                Ok(stored) => Ok((201, stored)),
                Err(kube::Error::Api(status)) => Ok((status.code, json!(status.message))),
                Err(error) => Err(error),
            }
        }
    });
    let answers: Vec<kube::Result<Answer>> = futures::stream::iter(creates).buffered(AT_ONCE).collect().await;
    answers.into_iter().enumerate().map(|(seed, answer)| answer.with_context(|| format!("seed {seed}"))).collect()
}

/// `object` without what differs between two creates of the same object, and what a patch of an initializer changes.
fn bare(object: &Value) -> Result<Value> {
    let uid = object["metadata"]["uid"].as_str().unwrap_or("none");
    let mut object: Value = serde_json::from_str(&object.to_string().replace(uid, "uid"))?;
    let without = |of: Option<&mut Value>, fields: &[&str]| {
        if let Some(members) = of.and_then(Value::as_object_mut) {
            members.retain(|name, _| !fields.contains(&name.as_str()));
        }
    };
    let own = [
        "creationTimestamp",
        "managedFields",
        "resourceVersion",
        "selfLink",
        "generation",
        "initializers",
        "namespace",
    ];
    without(object.pointer_mut("/metadata"), &own);
    without(object.pointer_mut("/metadata/annotations"), &["deprecated.daemonset.template.generation"]);
    // The server copies labels of the pods to a Job that has none, unless something has changed the Job before.
    if object["kind"] == "Job" {
        without(object.pointer_mut("/metadata"), &["labels"]);
    }
    without(Some(&mut object), &["status"]);
    Ok(object)
}

/// A policy for all the kinds of the generator, in the namespace `hostile`.
fn victim(image: &str, engine: &str) -> Value {
    // An initializer cannot change a Job.
    let can = |resource: &str| engine != "Initializer" || resource != "jobs";
    let resources = generator::resources().filter(|(_, resource)| can(resource));
    let targets: Vec<Value> =
        resources.map(|(group, resource)| json!({ "group": group, "resource": resource })).collect();
    let mut spec = rolling(image, json!({ "maxUnavailable": "100%", "progressDeadlineSeconds": 600 }));
    (spec["engine"], spec["targets"], spec["namespaces"]) = (json!(engine), json!(targets), json!(["hostile"]));
    spec["template"] = json!({
        "containers": [{ "name": "envoy", "image": image }], "volumes": [{ "name": "v", "emptyDir": {} }],
        "env": [{ "name": "A", "value": "1" }], "volumeMounts": [{ "name": "v", "mountPath": "/m" }],
    });
    spec
}

async fn on(version: Version, engine: &str) -> Result<()> {
    let world = World::with(ControlPlane::builder(version)).await?;
    grant(&world).await?;
    namespaces(&world, &["plain", "hostile"]).await?;
    let site = sidecar_policy::policy::Site::new("scpol-system", [], []);
    let object = json!({ "metadata": { "name": "envoy" }, "spec": victim("envoy:1", engine) });
    let parsed = sidecar_policy::policy::Policy::parse(&object, &site);
    let hash = parsed.map_err(|faults| anyhow::anyhow!("{faults:?}"))?.template_hash().to_owned();
    let forged = Victim { name: "envoy", hash: &hash, container: "envoy", volume: "v" };
    let objects: Vec<Hostile> = (0..COUNT).map(|seed| generator::written(seed, &forged)).collect();

    let without = create(&world, &objects, "plain").await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(500));
    world.policy("envoy", victim("envoy:1", engine)).await?;
    let mut calm = rolling("calm:1", json!({}));
    (calm["engine"], calm["namespaces"]) = (json!(engine), json!(["default"]));
    world.policy("calm", calm).await?;
    for policy in ["envoy", "calm"] {
        // A busy machine compiles the expressions for longer than one trial waits.
        within(5 * LIMIT, &format!("`{policy}` is in effect at last"), || async {
            Ok(in_force(&world.cluster, policy).await.is_ok())
        })
        .await?;
    }
    world.create_promptly(DEPLOYMENTS, &deployment("neighbour")).await?;
    let with = create(&world, &objects, "hostile").await?;

    let (mut accepted, mut injected) = (0, 0);
    for (seed, ((code, before), (code_with, after))) in without.iter().zip(&with).enumerate() {
        ensure!(code == code_with, "seed {seed}: {code} without the operator, {code_with} with it: {before} {after}");
        if *code == 201 {
            let is_kept = is_kept(&bare(before)?, &bare(after)?, &["injected.scpol.dev/envoy".to_owned()]);
            ensure!(is_kept, "seed {seed}: {before}\nbecame\n{after}");
            accepted += 1;
            injected += usize::from(after.to_string().contains("\"image\":\"envoy:1\""));
        }
    }
    eprintln!("{engine}: of {COUNT} objects the server takes {accepted}, of which {injected} have the sidecar");
    ensure!(accepted * 3 > objects.len() && injected * 4 > accepted, "{accepted} accepted, {injected} injected");

    // A rollout looks at them all, and that of the neighbour goes on.
    for (policy, image) in [("envoy", "envoy:2"), ("calm", "calm:2")] {
        let template = match policy {
            "envoy" => victim(image, engine)["template"].clone(),
            _ => rolling(image, Value::Null)["template"].clone(),
        };
        world.edit_policy(policy, json!({ "template": template })).await?;
    }
    wait_images(&world, &["neighbour"], "calm:2").await?;
    wait_progress(&world, "calm", "Complete").await?;
    within(LIMIT, "the rollout of the others has looked at them", || async {
        let (reason, _) = crate::rollouts::progressing(&world, "envoy").await?;
        Ok(["RollingOut", "Complete", "Halted"].contains(&reason.as_str()))
    })
    .await?;
    let late = world.create_promptly(DEPLOYMENTS, &deployment("late")).await?;
    ensure!(containers(&late).contains(&"envoy".to_owned()), "{late}");
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}
