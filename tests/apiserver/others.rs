//! Foreign admission registrations, and foreign edits of ours: our policies must not be blamed.

use crate::engines::{ENGINES, by, engine_of, shows};
use crate::prelude::*;
use sidecar_policy::timing::CALL_LIMIT;

crate::tests![
    a_webhook_of_others_that_does_not_answer_takes_nothing_out_of_force,
    a_doubt_about_initializers_ends_when_the_policy_leaves_them,
    one_engine_of_two_that_nobody_can_try_is_told_and_takes_nothing_from_the_other,
    what_others_refuse_is_not_the_templates_fault_unless_they_refuse_it_alone,
    what_the_garbage_collector_takes_with_a_policy_that_is_made_again_is_no_removal_by_hand,
];

/// The time after which a state is not temporary: a trial without an answer ends with [`CALL_LIMIT`].
const STEADY: Duration = CALL_LIMIT.saturating_add(Duration::from_secs(1));
/// The time limit of the garbage collector, which looks for new kinds of owners every 30 s.
const COLLECTED: Duration = Duration::from_secs(90);

/// The time until a foreign rejection is tried again, with a margin.
fn tried_again() -> Duration {
    timing().controller.verify_again + LIMIT
}

/// The path of webhook configurations on a server of that version.
fn webhooks(version: Version) -> String {
    let served = version.registration();
    format!("/apis/admissionregistration.k8s.io/{served}/validatingwebhookconfigurations")
}

/// A foreign webhook with `Fail` for creates in all namespaces, without an answer.
async fn register(world: &World, group: &str, resource: &str, url: &str) -> Result<()> {
    let rules =
        json!([{ "apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [resource] }]);
    let mut webhook = json!({
        "name": "silent.example.com", "failurePolicy": "Fail", "rules": rules, "clientConfig": { "url": url }, "sideEffects": "None",
    });
    let served = world.cluster.version().registration();
    if served == "v1" {
        webhook["admissionReviewVersions"] = json!(["v1"]);
    }
    let configuration = json!({
        "apiVersion": format!("admissionregistration.k8s.io/{served}"), "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "silent" }, "webhooks": [webhook],
    });
    request(&world.admin, "POST", &webhooks(world.cluster.version()), &configuration).await?;
    Ok(())
}

/// A foreign webhook for Deployments, at an address without a listener.
async fn silent_webhook(world: &World) -> Result<()> {
    register(world, "apps", "deployments", "https://127.0.0.1:1/").await?;
    within(LIMIT, "creates are refused", || async {
        Ok(request(&world.admin, "POST", &format!("{DEPLOYMENTS}?dryRun=All"), &deployment("probe")).await.is_err())
    })
    .await
}

async fn a_webhook_of_others_that_does_not_answer_takes_nothing_out_of_force() -> Result<()> {
    let current =
        ENGINES.into_iter().flat_map(|(version, engines)| engines.iter().map(move |engine| (version, *engine)));
    let all = current.chain([(Version::V1_13, "Initializer")]);
    // Each waits until the rejected trial is repeated.
    let stories = all.map(|(version, engine)| async move {
        stays_in_force(version, engine).await.with_context(|| format!("{version:?} {engine}"))
    });
    futures::future::try_join_all(stories).await.map(drop)
}

async fn stays_in_force(version: Version, engine: &str) -> Result<()> {
    let (world, operator) = World::with(ControlPlane::builder(version)).await?.operated(&[]).await?;
    world.enforce("envoy", by(engine, sidecar("envoy"))).await?;
    silent_webhook(&world).await?;

    // A new policy cannot be tried. It is registered, and reported as unverified.
    let is_initializer = engine == "Initializer";
    let name = if is_initializer { "late" } else { "envoy" };
    if is_initializer {
        world.policy(name, by(engine, sidecar("late"))).await?;
    } else {
        world.edit_policy(name, json!({ "template": sidecar("edited")["template"] })).await?;
    }
    let degraded = wait_condition(&world.cluster, name, "Degraded", "True", "ProbeFailed").await?;
    assert!(degraded["message"].as_str().is_some_and(|text| text.contains("silent.example.com")), "{degraded}");
    in_force(&world.cluster, name).await?;
    in_force(&world.cluster, "envoy").await?;
    assert!(!world.registered().await?.is_empty());

    // Once the webhook answers again or is deleted, the registrations take effect, and are verified without help.
    world.delete(&format!("{}/silent", webhooks(version))).await?;
    let expected: &[&str] = if is_initializer { &["app", "envoy", "late"] } else { &["app", "edited"] };
    within(LIMIT, "new Deployments have what was registered", || async {
        let path = format!("{DEPLOYMENTS}/web");
        drop(world.delete(&path).await);
        Ok(containers(&world.create(DEPLOYMENTS, &deployment("web")).await?) == expected)
    })
    .await?;
    within(tried_again(), "it is proven", || async {
        let degraded = condition(&world.cluster, name, "Degraded").await?;
        Ok(degraded.is_none_or(|degraded| degraded["status"] == "False"))
    })
    .await?;
    in_force(&world.cluster, name).await?;
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}

async fn a_doubt_about_initializers_ends_when_the_policy_leaves_them() -> Result<()> {
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    silent_webhook(&world).await?;
    world.policy("envoy", by("Initializer", sidecar("envoy"))).await?;
    wait_condition(&world.cluster, "envoy", "Degraded", "True", "ProbeFailed").await?;
    world.delete(&format!("{}/silent", webhooks(Version::V1_13))).await?;
    world.edit_policy("envoy", json!({ "engine": "Webhook" })).await?;
    within(LIMIT, "the webhook delivers alone, and nobody doubts it", || async {
        let is_doubted =
            condition(&world.cluster, "envoy", "Degraded").await?.is_some_and(|told| told["status"] == "True");
        Ok(!is_doubted && world.configurations().await?.is_empty())
    })
    .await?;
    assert_eq!(engine_of(&world, "envoy").await?, "Webhook");
    Ok(())
}

/// A policy uses Initializers for Deployments and the webhook for Jobs. A foreign webhook delays every trial of a Job.
async fn one_engine_of_two_that_nobody_can_try_is_told_and_takes_nothing_from_the_other() -> Result<()> {
    let world = World::new().await?;
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    register(&world, "batch", "jobs", &format!("https://{}/", mute.local_addr()?)).await?;
    let mut operator = Operator::ready(&world.cluster, &[]).await?;
    let mut spec = sidecar("envoy");
    spec["targets"] = json!([{ "group": "batch", "resource": "jobs" }, { "group": "apps", "resource": "deployments" }]);
    spec["jobs"] = json!("Inject");
    world.policy("envoy", spec).await?;
    for round in ["first", "again"] {
        wait_condition(&world.cluster, "envoy", "Programmed", "False", "ServerAway").await?;
        let created = world.create_promptly(DEPLOYMENTS, &deployment(round)).await?;
        assert_eq!(containers(&created), ["app", "envoy"], "{round}");
        // A new leader leaves it unchanged.
        operator.kill().await?;
        operator = Operator::ready(&world.cluster, &[]).await?;
        within(LIMIT, "it leads", || async { Ok(operator.metric("scpol_leader").await? == 1.0) }).await?;
        let until = Instant::now() + STEADY;
        while Instant::now() < until {
            assert_eq!(world.configurations().await?, ["scpol-envoy"], "{round}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    world.delete(&format!("{}/silent", webhooks(Version::V1_13))).await?;
    in_force(&world.cluster, "envoy").await?;
    assert_eq!(engine_of(&world, "envoy").await?, "Initializer,Webhook");
    Ok(())
}

/// A foreign policy that rejects Deployments for which `expression` is false, also in the operator's namespace.
async fn strict_policy(world: &World, name: &str, expression: &str) -> Result<()> {
    const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
    let rules = json!([{ "apiGroups": ["apps"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["deployments"] }]);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": { "name": name },
        "spec": {
            "matchConstraints": { "resourceRules": rules },
            "validations": [{ "expression": expression, "message": "the strict policy of others" }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": name },
        "spec": { "policyName": name, "validationActions": ["Deny"] },
    });
    request(&world.admin, "POST", &format!("{GROUP}/validatingadmissionpolicies"), &policy).await?;
    request(&world.admin, "POST", &format!("{GROUP}/validatingadmissionpolicybindings"), &binding).await?;
    let mut refused = deployment("probe");
    refused["spec"]["template"]["spec"]["containers"][0]["image"] = json!("elsewhere/envoy:1");
    within(LIMIT, "what breaks its rule is refused", || async {
        let tried = request(&world.admin, "POST", &format!("{DEPLOYMENTS}?dryRun=All"), &refused).await;
        Ok(tried.is_err_and(|error| error.to_string().contains(&format!("'{name}'"))))
    })
    .await
}

async fn no_strict_policy(world: &World, name: &str) -> Result<()> {
    for resource in ["validatingadmissionpolicybindings", "validatingadmissionpolicies"] {
        world.delete(&format!("/apis/admissionregistration.k8s.io/v1/{resource}/{name}")).await?;
    }
    Ok(())
}

async fn what_others_refuse_is_not_the_templates_fault_unless_they_refuse_it_alone() -> Result<()> {
    let (world, _operator) = World::with(ControlPlane::builder(Version::NEWEST)).await?.operated(&[]).await?;
    // The policy rejects every trial, so no trial is possible.
    strict_policy(&world, "strict", "object.metadata.?labels.team.hasValue()").await?;
    for engine in ["MutatingAdmissionPolicy", "Webhook"] {
        let name = engine.to_lowercase();
        world.policy(&name, by(engine, sidecar("envoy"))).await?;
        let degraded = wait_condition(&world.cluster, &name, "Degraded", "True", "ProbeFailed").await?;
        let names_it = |text: &str| text.contains("ValidatingAdmissionPolicy 'strict'");
        assert!(degraded["message"].as_str().is_some_and(names_it), "{degraded}");
        in_force(&world.cluster, &name).await?;
        let mut labelled = deployment("web");
        labelled["metadata"]["labels"] = json!({ "team": "shop" });
        let path = format!("{DEPLOYMENTS}?dryRun=All");
        within(LIMIT, "new Deployments have the sidecar", || async {
            Ok(containers(&request(&world.creator, "POST", &path, &labelled).await?) == ["app", "envoy"])
        })
        .await?;
        world.delete_policy(&name).await?;
        within(LIMIT, "nothing is registered", || async { Ok(world.registered().await?.is_empty()) }).await?;
    }
    no_strict_policy(&world, "strict").await?;

    // Only the template is at fault: it would be rejected with every workload. After the rule is deleted, the policy
    // recovers by itself.
    strict_policy(&world, "images", "object.spec.template.spec.containers.all(c, !c.image.contains('envoy'))").await?;
    world.policy("envoy", sidecar("envoy")).await?;
    let refused = wait_condition(&world.cluster, "envoy", "Accepted", "False", "TemplateInvalid").await?;
    let names_it = |text: &str| text.contains("ValidatingAdmissionPolicy 'images'");
    assert!(refused["message"].as_str().is_some_and(names_it), "{refused}");
    no_strict_policy(&world, "images").await?;
    within(tried_again(), "it is in effect", || async {
        Ok(condition(&world.cluster, "envoy", "Programmed").await?.is_some_and(|told| told["status"] == "True"))
    })
    .await?;
    shows(&world, &["app", "envoy"]).await
}

async fn what_the_garbage_collector_takes_with_a_policy_that_is_made_again_is_no_removal_by_hand() -> Result<()> {
    // With controllers, which collect garbage.
    let (world, operator) = World::with(ControlPlane::builder(Version::NEWEST).nodes(1)).await?.operated(&[]).await?;
    for engine in ["MutatingAdmissionPolicy", "Webhook"] {
        let spec = by(engine, sidecar("envoy"));
        world.enforce("envoy", spec.clone()).await?;
        let file = world.policy_file("envoy", &spec)?;
        // With an operator that sees all of it at once afterwards, and with one that watches.
        for is_frozen in [true, false, true] {
            if is_frozen {
                operator.signal("STOP")?;
            }
            world.cluster.kubectl_output(User::Admin, &["replace", "--force", "-f", &file]).await?;
            if is_frozen {
                within(COLLECTED, "it is collected", || async { Ok(world.registered().await?.is_empty()) }).await?;
                operator.signal("CONT")?;
            }
            within(LIMIT, "it is registered", || async { Ok(!world.registered().await?.is_empty()) }).await?;
        }
        in_force(&world.cluster, "envoy").await?;
        shows(&world, &["app", "envoy"]).await?;
        let held = operator.log().lines().filter(|line| line.contains("removed by hand")).count();
        assert_eq!(held, 0, "{engine}:\n{}", operator.log());
        world.delete_policy("envoy").await?;
        within(LIMIT, "nothing is registered", || async { Ok(world.registered().await?.is_empty()) }).await?;
    }
    Ok(())
}
