//! The break-glass page, step by step, on every engine: with a frozen operator, and with a running one that cannot do
//! its work.

use crate::commands::scpol;
use crate::engines::{break_glass, by};
use crate::prelude::*;

crate::tests![
    with_initializers_the_three_steps_let_everything_go,
    where_creates_are_refused_and_the_operator_may_not_repair_it_one_command_lets_them_go,
    on_an_old_server_a_webhook_that_cannot_answer_holds_up_no_create,
];

/// The wait that the page asks for, because nothing shows when the last of several API servers has seen the change.
const NOTICED: Duration = Duration::from_secs(3);
/// The time in which creates may still fail after the command.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Creates with kubectl until it succeeds, which must be soon after `since`.
async fn create_succeeds(world: &World, name: &str, since: Instant) -> Result<()> {
    loop {
        let manifest = deployment(name).to_string();
        let created = tokio::time::timeout(AT_ONCE, world.cluster.apply_manifests(&manifest)).await;
        if matches!(created, Ok(Ok(_))) {
            ensure!(since.elapsed() < AT_ONCE, "{name}: created after {:?}", since.elapsed());
            return Ok(());
        }
        ensure!(since.elapsed() < AT_ONCE, "{name}: {created:?}");
    }
}

/// Revokes the operator's right to update a resource of registrations, and waits until it is gone.
async fn take_rights(world: &World, bindings: &[&str], resource: &str) -> Result<()> {
    for binding in bindings {
        world.delete(&format!("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{binding}")).await?;
    }
    world.operator_may("update", &format!("{resource}.admissionregistration.k8s.io"), false).await
}

/// The failure of the operator.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    /// It is frozen.
    Frozen,
    /// It runs, but every PATCH is rejected.
    MayNotPatch,
}

async fn with_initializers_the_three_steps_let_everything_go() -> Result<()> {
    for failure in [Failure::Frozen, Failure::MayNotPatch] {
        let (world, operator) = World::new().await?.operated(&[]).await?;
        world.enforce("envoy", by("Initializer", sidecar("envoy"))).await?;
        assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("before")).await?), ["app", "envoy"]);
        match failure {
            Failure::Frozen => operator.signal("STOP")?,
            Failure::MayNotPatch => {
                let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/scpol-initializer";
                let rule = json!({ "apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"] });
                world.patch(role, &json!([{ "op": "replace", "path": "/rules/1", "value": rule }])).await?;
                world.operator_may("patch", "deployments.apps", false).await?;
            }
        }
        let stuck = deployment("stuck");
        let waits = world.create(DEPLOYMENTS, &stuck);
        let steps = async {
            within(LIMIT, "a create hangs", || async {
                Ok(world.get(&path("stuck")).await?.is_some_and(|stuck| pending(&stuck) == ["envoy.scpol.dev"]))
            })
            .await?;
            break_glass(&world).await?;
            let since = Instant::now();
            within(NOTICED, "creates get no entry of ours", || async { Ok(world.assigned().await?.is_empty()) })
                .await?;
            create_succeeds(&world, "after", since).await?;
            scpol(&world.cluster, &["drain"]).await
        };
        let (created, told) = tokio::join!(waits, steps);
        let (code, told) = told.with_context(|| format!("{failure:?}"))?;
        assert!(code == 0 && told.contains("stuck"), "{failure:?}: {code} {told}");
        assert_eq!(containers(&created?), ["app"], "{failure:?}");
        let (code, told) = scpol(&world.cluster, &["drain", "--list"]).await?;
        assert!(code == 0 && told.contains("Nothing waits for an initializer."), "{failure:?}: {told}");
        if failure == Failure::Frozen {
            operator.signal("CONT")?;
        }
        wait_condition(&world.cluster, "envoy", "Ready", "False", "RemovedByHand").await?;
        assert!(world.registered().await?.is_empty());
        assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("late")).await?), ["app"]);
        if failure == Failure::Frozen {
            // A policy that is made again has no hold.
            world.delete_policy("envoy").await?;
            world.enforce("envoy", by("Initializer", sidecar("envoy"))).await?;
        }
    }
    Ok(())
}

/// An edit that breaks a registration.
fn spoilt(engine: &str) -> (&'static str, serde_json::Value) {
    match engine {
        // An authority that has not signed the operator's certificate.
        "Webhook" => {
            ("mutatingwebhookconfigurations", json!([{ "op": "remove", "path": "/webhooks/0/clientConfig/caBundle" }]))
        }
        _ => (
            "mutatingadmissionpolicies",
            json!([{ "op": "add", "path": "/spec/matchConditions", "value": [{ "name": "never", "expression": "false" }] }]),
        ),
    }
}

async fn where_creates_are_refused_and_the_operator_may_not_repair_it_one_command_lets_them_go() -> Result<()> {
    for engine in ["Webhook", "MutatingAdmissionPolicy"] {
        let (world, operator) = World::with(ControlPlane::builder(Version::NEWEST)).await?.operated(&[]).await?;
        let mut spec = by(engine, sidecar("envoy"));
        spec["failurePolicy"] = json!("Fail");
        world.enforce("envoy", spec).await?;
        assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("before")).await?), ["app", "envoy"]);
        let (resource, edit) = spoilt(engine);
        let bindings = ["scpol-webhook", "scpol-admission-policy"];
        take_rights(&world, &bindings, resource).await?;
        world.patch(&format!("/apis/admissionregistration.k8s.io/v1/{resource}/scpol-deployments.apps"), &edit).await?;
        within(LIMIT, "creates are refused", || async {
            let path = format!("{DEPLOYMENTS}?dryRun=All");
            let refused = request(&world.creator, "POST", &path, &deployment("refused")).await;
            Ok(refused.is_err_and(|error| error.to_string().contains("SidecarPolicy `envoy` refuses")))
        })
        .await?;
        wait_condition(&world.cluster, "envoy", "Programmed", "False", "MissingRight").await?;
        break_glass(&world).await?;
        create_succeeds(&world, "after", Instant::now()).await.with_context(|| engine.to_owned())?;
        assert!(world.registered().await?.is_empty());
        assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("late")).await?), ["app"]);
        assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    }
    Ok(())
}

async fn on_an_old_server_a_webhook_that_cannot_answer_holds_up_no_create() -> Result<()> {
    let (world, operator) = World::new().await?.operated(&[]).await?;
    world.enforce("envoy", by("Webhook", sidecar("envoy"))).await?;
    let (resource, edit) = spoilt("Webhook");
    take_rights(&world, &["scpol-webhook"], resource).await?;
    world
        .patch(&format!("/apis/admissionregistration.k8s.io/v1beta1/{resource}/scpol-deployments.apps"), &edit)
        .await?;
    wait_condition(&world.cluster, "envoy", "Programmed", "False", "MissingRight").await?;
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("during")).await?), ["app"]);
    break_glass(&world).await?;
    create_succeeds(&world, "after", Instant::now()).await?;
    assert!(world.registered().await?.is_empty());
    drop(operator);
    Ok(())
}
