//! No policy affects the delivery of another, whatever its content and whatever the server's answer to its
//! registration.
//!
//! A neighbour is in effect all the time, and Deployments are created continuously. Each must have its sidecar.

use crate::chaos::fault::{Does, Rule, Verb};
use crate::chaos::proxy::Proxy;
use crate::engines::{by, engine_of};
use crate::prelude::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

crate::tests![
    a_policy_that_must_takes_nobody_out_of_force,
    an_expression_that_is_younger_than_the_server_is_judged_by_the_webhook,
    what_the_server_answers_to_one_policy_is_told_of_that_one_on_initializers = answers(Version::V1_13, "Initializer"),
    what_the_server_answers_to_one_policy_is_told_of_that_one_on_a_webhook_of_1_13 = answers(Version::V1_13, "Webhook"),
    what_the_server_answers_to_one_policy_is_told_of_that_one_on_1_30 = answers(Version::V1_30, "Webhook"),
    what_the_server_answers_to_one_policy_is_told_of_that_one_on_1_34 = answers(Version::V1_34, "Webhook"),
    what_the_server_answers_to_one_policy_is_told_of_that_one_on_a_webhook_of_1_36 =
        answers(Version::NEWEST, "Webhook"),
    what_the_server_answers_to_one_policy_is_told_of_that_one_on_admission_policies =
        answers(Version::NEWEST, "MutatingAdmissionPolicy"),
];

/// All resources of registrations.
const REGISTERED: &[&str] = &[
    "initializerconfigurations",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
];

/// The time for which the old form is observed after an edit.
const STEADY: Duration = Duration::from_secs(1);

/// A policy with unique containers that rejects workloads without them.
fn demanding(name: &str) -> Value {
    let mut policy = sidecar(name);
    policy["failurePolicy"] = json!("Fail");
    policy
}

/// A unique name of a Deployment.
fn fresh_name() -> String {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    format!("made-{}", MADE.fetch_add(1, Ordering::Relaxed))
}

/// The same, and it rejects Deployments with the name `forbidden`.
fn judging(name: &str) -> Value {
    without_forbidden(demanding(name))
}

fn without_forbidden(mut policy: Value) -> Value {
    policy["validations"] = json!([{ "expression": "object.metadata.name != 'forbidden'", "message": "not that" }]);
    policy
}

/// The name of a Deployment that policies reject, by its name or by its 7 replicas.
const FORBIDDEN: &str = "forbidden";

/// Checks that the Deployment [`FORBIDDEN`] is rejected.
async fn is_forbidden(world: &World) -> Result<()> {
    let made = tried(world, FORBIDDEN).await;
    let refusal = made.err().context("what is forbidden was created")?.to_string();
    ensure!(refusal.contains("not that"), "{refusal}");
    Ok(())
}

/// A dry-run create of a Deployment. A create that overlaps with the start of a `Fail` policy is rejected by it, once.
async fn tried(world: &World, name: &str) -> kube::Result<Value> {
    let mut body = deployment(name);
    if name == FORBIDDEN {
        body["spec"]["replicas"] = json!(7);
    }
    let create = || async { request(&world.creator, "POST", &format!("{DEPLOYMENTS}?dryRun=All"), &body).await };
    match create().await {
        Err(error) if error.to_string().contains("SCP0213") && !error.to_string().contains("`neighbour`") => {
            create().await
        }
        answer => answer,
    }
}

/// Whether policies can reject workloads there: a webhook with `Fail` names the namespaces that it leaves out.
fn may_refuse(world: &World) -> bool {
    world.cluster.version().has(Feature::NamespaceNames)
}

/// Creates Deployments during `work`. Each must have the sidecar `neighbour`. If that policy judges, the name
/// `forbidden` must be rejected.
async fn beside(world: &World, neighbour: &str, work: impl Future<Output = Result<()>>) -> Result<()> {
    let (is_over, created) = (Cell::new(false), Cell::new(0));
    let creates = async {
        while !is_over.get() {
            // A dry run would wait in vain if the sidecar comes after the create.
            let made = if world.cluster.version().has_initializers() {
                world.create_promptly(DEPLOYMENTS, &deployment(&fresh_name())).await?
            } else {
                tried(world, "probe").await?
            };
            let containers = containers(&made);
            ensure!(containers.iter().any(|name| name == neighbour), "create {}: {containers:?}", created.get());
            if may_refuse(world) {
                is_forbidden(world).await?;
            }
            created.set(created.get() + 1);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    };
    let work = async {
        let done = work.await;
        is_over.set(true);
        done
    };
    let (created_all, worked) = tokio::join!(creates, work);
    worked?;
    created_all?;
    ensure!(created.get() > 0, "nothing was created");
    Ok(())
}

async fn a_policy_that_must_takes_nobody_out_of_force() -> Result<()> {
    for version in [Version::V1_30, Version::V1_34, Version::NEWEST] {
        let (world, _operator) = World::with(ControlPlane::builder(version)).await?.operated(&[]).await?;
        world.enforce("plain", without_forbidden(sidecar("plain"))).await?;
        beside(&world, "plain", async {
            world.enforce("strict", demanding("strict")).await?;
            for kind in ["deployments", "jobs", "cronjobs", "pods"] {
                let group = if kind == "deployments" {
                    "apps"
                } else if kind == "pods" {
                    ""
                } else {
                    "batch"
                };
                let mut policy = judging(kind);
                policy["targets"] = json!([{ "group": group, "resource": kind }]);
                world.policy(kind, policy).await?;
                in_force(&world.cluster, kind).await.with_context(|| format!("{version} {kind}"))?;
            }
            Ok(())
        })
        .await
        .with_context(|| version.to_string())?;
        let made = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
        assert_eq!(containers(&made), ["app", "deployments", "plain", "strict"], "{version}");
    }
    Ok(())
}

async fn an_expression_that_is_younger_than_the_server_is_judged_by_the_webhook() -> Result<()> {
    for (version, expression) in [(Version::V1_30, "[3, 1].sort()[0] == 1"), (Version::V1_34, "[3, 1].sort()[0] == 1")]
    {
        let (world, _operator) = World::with(ControlPlane::builder(version)).await?.operated(&[]).await?;
        // Below 1.33 the webhook judges by a name anyway.
        let few = "object.spec.replicas != 7";
        let mut plain = demanding("plain");
        plain["validations"] = json!([{ "expression": few, "message": "not that" }]);
        world.enforce("plain", plain).await?;
        beside(&world, "plain", async {
            let mut young = demanding("young");
            young["matchConditions"] = json!([{ "name": "x", "expression": expression }]);
            young["validations"] = json!([{ "expression": format!("{expression} && {few}"), "message": "not that" }]);
            world.policy("young", young).await?;
            in_force(&world.cluster, "young").await
        })
        .await
        .with_context(|| format!("{version} {expression}"))?;
        let made = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
        assert_eq!(containers(&made), ["app", "plain", "young"], "{version} {expression}");
        let mut seven = deployment("seven");
        seven["spec"]["replicas"] = json!(7);
        let refused = world.create(DEPLOYMENTS, &seven).await.expect_err("it is forbidden").to_string();
        assert!(refused.contains("not that"), "{version}: {refused}");
    }
    Ok(())
}

/// What becomes of a write about `faulty`: every answer of the server, and every broken connection.
const ANSWERS: [Does; 10] = [
    Does::Answer(422, None),
    Does::Answer(403, None),
    Does::Answer(413, None),
    Does::Answer(400, None),
    Does::Answer(409, None),
    Does::Answer(429, Some(1)),
    Does::Answer(500, None),
    Does::Answer(504, None),
    Does::CutBefore,
    Does::DropAnswer,
];

/// Every answer to what has the policy `faulty` in it, however it is registered: nobody but it is concerned.
async fn answers(version: Version, engine: &str) -> Result<()> {
    let world = World::with(ControlPlane::builder(version)).await?;
    let proxy = Proxy::start(&world.cluster, 1).await?;
    let mut operator = Operator::start_in(&world.cluster, &proxy.kubeconfig, &[], &Surroundings::default())?;
    operator.wait_ready().await?;
    world
        .enforce("neighbour", by(engine, if may_refuse(&world) { judging("neighbour") } else { sidecar("neighbour") }))
        .await?;
    for (round, does) in ANSWERS.into_iter().enumerate() {
        // What was deleted may still be drained.
        let (faulty, later) = (&format!("faulty-{round}"), &format!("later-{round}"));
        let what = format!("{version} {engine} {does:?}");
        beside(&world, "neighbour", one_comes_beside_one_that_fails(&world, &proxy, engine, &does, [faulty, later]))
            .await
            .with_context(|| what.clone())?;
        let made = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
        let mut has = containers(&made);
        has.sort_unstable();
        assert_eq!(has, ["app", faulty, later, "neighbour"], "{what}");
        world.delete(&format!("{DEPLOYMENTS}/web")).await?;
        beside(&world, "neighbour", an_edit_that_is_not_taken_changes_nothing(&world, &proxy, engine, &does, faulty))
            .await
            .with_context(|| format!("{what}, an edit"))?;
        beside(&world, "neighbour", both_are_deleted(&world, [faulty, later])).await.with_context(|| what.clone())?;
    }
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}

/// Gives this answer to every write about a policy `faulty`.
fn answering(does: &Does) -> Rule {
    Rule::always(does.clone()).to(&[Verb::Create, Verb::Update], REGISTERED).about("faulty")
}

/// A policy on `engine` that rejects what lacks its sidecar, where the server can do so.
fn policy(world: &World, engine: &str, name: &str) -> Value {
    by(engine, if may_refuse(world) { demanding(name) } else { sidecar(name) })
}

/// `faulty` is reported as not in effect while `later` and the neighbour are, and follows once the server answers again.
async fn one_comes_beside_one_that_fails(
    world: &World,
    proxy: &Proxy,
    engine: &str,
    does: &Does,
    [faulty, later]: [&str; 2],
) -> Result<()> {
    proxy.set(vec![answering(does)]);
    world.policy(faulty, policy(world, engine, faulty)).await?;
    within(LIMIT, "`faulty` is told not to be in effect", || async {
        let ready = condition(&world.cluster, faulty, "Ready").await?.unwrap_or_default();
        let is_told = ready["status"] == "False" && proxy.happened() > 0;
        ensure!(is_told || *does == Does::DropAnswer, "{ready}");
        // Nobody has to grant a right.
        ensure!(!is_told || ready["reason"] != "MissingRight", "{ready}");
        Ok(is_told || ready["status"] == "True")
    })
    .await?;
    // Who comes later comes in effect beside it.
    world.enforce(later, policy(world, engine, later)).await?;
    assert_eq!(engine_of(world, later).await?, engine);
    in_force(&world.cluster, "neighbour").await?;
    proxy.calm();
    in_force(&world.cluster, faulty).await
}

/// While the server rejects an edit of `faulty`, the policy stays in effect as it was. On initializers the edit changes the
/// targets, because nothing of the template is registered there.
async fn an_edit_that_is_not_taken_changes_nothing(
    world: &World,
    proxy: &Proxy,
    engine: &str,
    does: &Does,
    faulty: &str,
) -> Result<()> {
    let is_taken = *does == Does::DropAnswer;
    let edit = match engine {
        "Initializer" => {
            json!({ "targets": [{ "group": "apps", "resource": "deployments" }, { "group": "apps", "resource": "daemonsets" }] })
        }
        _ => sidecar_of("edited", "envoy:2"),
    };
    proxy.set(vec![answering(does)]);
    world.edit_policy(faulty, edit).await?;
    within(LIMIT, "the edit is told not to be in effect", || async {
        let ready = condition(&world.cluster, faulty, "Ready").await?.unwrap_or_default();
        Ok(proxy.happened() > 0 && (ready["status"] == "False" || is_taken))
    })
    .await?;
    let until = Instant::now() + STEADY;
    while Instant::now() < until && !is_taken {
        let made = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
        ensure!(containers(&made).iter().any(|name| name == faulty), "{:?}", containers(&made));
        world.delete(&format!("{DEPLOYMENTS}/web")).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    proxy.calm();
    in_force(&world.cluster, faulty).await
}

/// Deletes these policies, and waits until the neighbour alone injects.
async fn both_are_deleted(world: &World, [faulty, later]: [&str; 2]) -> Result<()> {
    world.delete_policy(faulty).await?;
    world.delete_policy(later).await?;
    within(LIMIT, "the neighbour is alone", || async {
        let made = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
        world.delete(&format!("{DEPLOYMENTS}/web")).await?;
        Ok(containers(&made) == ["app", "neighbour"])
    })
    .await
}
