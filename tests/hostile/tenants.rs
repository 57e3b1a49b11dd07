//! Policies of one tenant beside those of others.

use crate::engines::{by, engine_of};
use crate::prelude::*;
use crate::webhook_scene::{OPERATOR, Scene};
use sidecar_policy::policy::{Policy, Site};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinHandle;

crate::tests![
    a_policy_of_a_higher_priority_is_injected_whatever_others_add_by_its_names,
    a_policy_with_fail_refuses_creates_in_its_own_namespaces_alone,
    policies_of_a_tenant_move_none_of_a_higher_priority,
    policies_beyond_the_limit_are_not_accepted_and_move_none_in_force,
];

const DEPLOYMENTS_IN_SHOP: &str = "/apis/apps/v1/namespaces/shop/deployments";

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
            world.namespace("shop", &json!({})).await?;
            let _operator = Operator::ready(&world.cluster, &[]).await?;
            let of = |image: &str| json!({ "containers": [{ "name": "audit", "image": image }] });
            let platform = json!({ "engine": engine, "priority": 100, "optOut": "Denied", "template": of("audit:1") });
            world.enforce("platform", platform).await?;
            world
                .enforce("tenant", json!({ "engine": engine, "namespaces": ["shop"], "template": of("other:1") }))
                .await?;
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

async fn a_policy_with_fail_refuses_creates_in_its_own_namespaces_alone() -> Result<()> {
    let scene = Scene::new(Version::NEWEST, Site::new(OPERATOR, [], [])).await?;
    for name in ["shop", "pay"] {
        scene.world.namespace(name, &json!({})).await?;
    }
    let policy = |name: &str, more: Value| -> Result<Policy> {
        let mut spec =
            json!({ "targets": [{ "group": "", "resource": "pods" }], "template": sidecar(name)["template"] });
        for (field, value) in more.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        let object = json!({ "metadata": { "name": name, "uid": name }, "spec": spec });
        Policy::parse(&object, &Site::new(OPERATOR, [], [])).map_err(|faults| anyhow::anyhow!("{faults:?}"))
    };
    let demand = json!({ "validations": [{ "expression": "!has(object.spec.hostname)", "message": "no host names" }] });
    let platform = policy("platform", demand)?;
    scene
        .register(vec![platform, policy("tenant", json!({ "failurePolicy": "Fail", "namespaces": ["shop"] }))?])
        .await?;
    let path = |namespace: &str| format!("/api/v1/namespaces/{namespace}/pods");
    // While the webhook answers, each policy judges in both namespaces as it says.
    for namespace in ["shop", "pay"] {
        request(&scene.world.admin, "POST", &path(namespace), &pod("good")).await?;
        let mut bad = pod("bad");
        bad["spec"]["hostname"] = json!("bad");
        let error = request(&scene.world.admin, "POST", &path(namespace), &bad).await.expect_err("it must be refused");
        ensure!(error.to_string().contains("no host names"), "{error}");
    }
    let world = scene.stop().await?;
    let error = request(&world.admin, "POST", &path("shop"), &pod("late")).await.expect_err("it must be refused");
    ensure!(error.to_string().contains("failed calling webhook \"validate.scpol.dev\""), "{error}");
    request(&world.admin, "POST", &path("pay"), &pod("late")).await?;
    Ok(())
}

const INSIDE: &str = "MutatingAdmissionPolicy";

/// A client that posts dry-run creates until it is stopped, and counts the answers that lack one of `sidecars`.
struct Creator {
    stop: Arc<AtomicBool>,
    creates: JoinHandle<(usize, Vec<String>)>,
}

impl Creator {
    fn start(world: &World, sidecars: &'static [&'static str]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (admin, stopped) = (world.admin.clone(), stop.clone());
        let creates = tokio::spawn(async move {
            let path = format!("{DEPLOYMENTS_IN_SHOP}?dryRun=All");
            let (mut count, mut bare) = (0, Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                let answer = request(&admin, "POST", &path, &deployment("probe")).await;
                let images = answer.as_ref().map(images).unwrap_or_default();
                let has = |sidecar: &&str| images.iter().any(|image| image.starts_with(&format!("{sidecar} ")));
                if !sidecars.iter().all(has) {
                    bare.push(format!("{answer:?}"));
                }
                count += 1;
            }
            (count, bare)
        });
        Self { stop, creates }
    }

    /// Each create had all sidecars.
    async fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let (count, bare) = self.creates.await?;
        ensure!(count > 20 && bare.is_empty(), "{} of {count} creates came without: {:?}", bare.len(), bare.first());
        Ok(())
    }
}

/// The policies are in effect inside the API server.
async fn are_inside(world: &World, policies: &[&str]) -> Result<()> {
    for policy in policies {
        wait_condition(&world.cluster, policy, "Programmed", "True", "Programmed").await?;
        let engine = engine_of(world, policy).await?;
        ensure!(engine == INSIDE, "`{policy}` is in effect by {engine}");
    }
    Ok(())
}

/// The message of `policy`, which is not in effect for the reason `code`.
async fn left_out(world: &World, policy: &str, code: &str) -> Result<String> {
    let told = wait_condition(&world.cluster, policy, "Programmed", "False", code).await?;
    Ok(told["message"].as_str().unwrap_or_default().to_owned())
}

/// `spec` with a priority that a tenant cannot give.
fn of_platform(mut spec: Value) -> Value {
    spec["priority"] = json!(10);
    spec
}

async fn policies_of_a_tenant_move_none_of_a_higher_priority() -> Result<()> {
    const SIDECARS: &[&str] = &["audit", "mesh"];
    let tenant = |engine: &str| {
        let mut tenant = by(engine, sidecar("tenant"));
        tenant["namespaces"] = json!(["shop"]);
        tenant
    };
    for version in [Version::V1_36, Version::NEWEST] {
        let world = World::with(ControlPlane::builder(version)).await?;
        world.namespace("shop", &json!({})).await?;
        let operator = Operator::ready(&world.cluster, &[]).await?;
        // The policies of the platform come later, and take the resource to their engine.
        world.enforce("tenant", tenant("Webhook")).await?;
        for name in SIDECARS {
            world.policy(name, of_platform(sidecar(name))).await?;
        }
        are_inside(&world, SIDECARS).await?;
        let creator = Creator::start(&world, SIDECARS);
        let is_left_out = || async {
            let told = left_out(&world, "tenant", "EngineMismatch").await?;
            let is_named = told.contains("SidecarPolicy `audit`, which has a higher `spec.priority`")
                && told.contains("served by MutatingAdmissionPolicy; leave `spec.engine` at `Auto`");
            ensure!(is_named, "{told}");
            are_inside(&world, SIDECARS).await
        };
        is_left_out().await?;
        // In the other order, after edits, and for a new leader, which knows only what is stored, the result is the same.
        world.delete_policy("tenant").await?;
        world.policy("tenant", tenant("Webhook")).await?;
        is_left_out().await?;
        world.edit_policy("mesh", sidecar_of("mesh", "new:2")).await?;
        in_force(&world.cluster, "mesh").await?;
        is_left_out().await?;
        drop(operator);
        let _operator = Operator::ready(&world.cluster, &[]).await?;
        world.edit_policy("mesh", json!({ "template": sidecar("mesh")["template"] })).await?;
        in_force(&world.cluster, "mesh").await?;
        is_left_out().await?;
        // One that CEL cannot express is left out alone, too. One that can join does.
        let mut odd = sidecar("odd");
        odd["matchConditions"] =
            json!([{ "name": "odd", "expression": "[object].exists(variables, has(variables.spec))" }]);
        world.policy("odd", odd).await?;
        let told = left_out(&world, "odd", "NotExpressible").await?;
        ensure!(told.contains("SidecarPolicy `audit`, which has a higher `spec.priority`"), "{told}");
        world.edit_policy("tenant", json!({ "engine": "Auto" })).await?;
        in_force(&world.cluster, "tenant").await?;
        are_inside(&world, &["audit", "mesh", "tenant"]).await?;
        // What outranks them chooses for all, and then the policy that the other engine cannot express is served.
        let mut chief = by("Webhook", sidecar("chief"));
        chief["priority"] = json!(11);
        world.policy("chief", chief).await?;
        for name in ["chief", "audit", "mesh", "tenant", "odd"] {
            within(LIMIT, "it follows", || async { Ok(engine_of(&world, name).await? == "Webhook") }).await?;
            in_force(&world.cluster, name).await?;
        }
        creator.stop().await?;
    }
    Ok(())
}

async fn policies_beyond_the_limit_are_not_accepted_and_move_none_in_force() -> Result<()> {
    let (world, _operator) =
        World::with(ControlPlane::builder(Version::NEWEST)).await?.operated(&["--max-policies=2"]).await?;
    for name in ["x", "y"] {
        world.enforce(name, sidecar(name)).await?;
    }
    world.policy("a", sidecar("a")).await?;
    let told = wait_condition(&world.cluster, "a", "Accepted", "False", "TooManyPolicies").await?;
    ensure!(told["message"].as_str().is_some_and(|told| told.contains("--max-policies")), "{told}");
    for name in ["x", "y"] {
        wait_condition(&world.cluster, name, "Ready", "True", "Programmed").await?;
    }
    world.delete_policy("x").await?;
    in_force(&world.cluster, "a").await
}
