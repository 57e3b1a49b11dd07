//! Faults that keep the engines inside the API server from working. Each has a condition with its code and a line of
//! `scpol check`, and no create ever fails or waits.

use crate::check::check;
use crate::engines::{by, engine_of, shows};
use crate::prelude::*;
use crate::support;
use kube::{Client, Config};
use std::path::Path;

crate::tests![
    what_cannot_be_expressed_takes_all_of_its_resource_to_the_webhook_unless_the_engine_is_named,
    policies_of_one_resource_that_name_different_engines_are_told_which_came_first,
    an_engine_that_is_switched_off_is_passed_over_and_where_it_is_named_the_flag_is,
    an_engine_that_is_switched_off_while_it_serves_hands_over_and_gets_it_back,
    without_the_plugin_of_initializers_the_webhook_serves_what_names_no_engine_but_nothing_that_must_refuse,
    a_webhook_that_the_server_cannot_reach_is_told_in_its_own_words,
    a_template_that_the_server_refuses_is_told_and_nothing_of_it_is_registered,
    a_field_whose_feature_gate_is_off_is_reported_and_never_dropped,
    an_edit_is_told_to_be_in_force_only_once_it_is,
    a_secret_of_which_nothing_can_be_used_is_made_anew,
    what_is_posted_to_the_webhook_and_is_no_review_is_told_and_keeps_nobody_from_his_sidecar,
    certificate_files_that_cannot_be_used_are_told_and_taken_once_they_can,
    an_engine_whose_rights_are_missing_is_passed_over_and_used_once_they_are_granted,
    without_the_rights_to_the_secret_of_the_certificate_the_webhook_is_not_registered_and_says_why,
    a_job_is_injected_by_every_engine_but_initializers,
];

const STATEFULSETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";

async fn world(version: Version) -> Result<World> {
    World::with(ControlPlane::builder(version)).await
}

/// `spec` for another resource of `apps`.
fn on(resource: &str, mut spec: Value) -> Value {
    spec["targets"] = json!([{ "group": "apps", "resource": resource }]);
    spec
}

fn statefulset(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": name },
        "spec": { "serviceName": name, "selector": { "matchLabels": { "app": name } }, "template": pod_template(name) },
    })
}

/// Checks that a policy is not in effect for `reason`, and that `scpol check` agrees. Returns the message.
async fn refused(world: &World, policy: &str, condition: &str, reason: &str) -> Result<String> {
    let told = wait_condition(&world.cluster, policy, condition, "False", reason).await?;
    let ready = wait_condition(&world.cluster, policy, "Ready", "False", reason).await?;
    let [told, message] = [told, ready].map(|told| told["message"].as_str().unwrap_or_default().to_owned());
    let code = message.split(':').next().unwrap_or_default();
    ensure!(code.starts_with("SCP0") && told.starts_with(code), "{policy}: {message} but {told}");
    world.checks(&format!("policy {policy}"), &[("Problem", code)]).await?;
    Ok(message)
}

async fn what_cannot_be_expressed_takes_all_of_its_resource_to_the_webhook_unless_the_engine_is_named() -> Result<()> {
    let (world, operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    world.enforce("plain", sidecar("plain")).await?;
    assert_eq!(engine_of(&world, "plain").await?, "MutatingAdmissionPolicy");
    // The expression reads a whole object, and uses the name `variables`.
    let mut odd = sidecar("odd");
    odd["matchConditions"] =
        json!([{ "name": "odd", "expression": "[object].exists(variables, has(variables.spec))" }]);
    world.enforce("odd", odd).await?;
    for policy in ["plain", "odd"] {
        within(LIMIT, "the webhook serves both", || async { Ok(engine_of(&world, policy).await? == "Webhook") })
            .await?;
        // Each policy reports why the other engine is not used, and the responsible policy.
        for condition in ["Ready", "Programmed"] {
            let told = wait_condition(&world.cluster, policy, condition, "True", "Programmed").await?;
            let message = told["message"].as_str().unwrap_or_default();
            assert!(message.contains("by Webhook, since SCP0319: SidecarPolicy `odd`"), "{policy}: {message}");
        }
    }
    // Until the other engine is withdrawn, both deliver, and `plain` comes first.
    shows(&world, &["app", "odd", "plain"]).await?;

    world.edit_policy("odd", json!({ "engine": "MutatingAdmissionPolicy" })).await?;
    let message = refused(&world, "odd", "Programmed", "NotExpressible").await?;
    assert!(message.contains("`[object].exists(variables"), "{message}");
    // The policy stays in effect in its old form.
    assert!(message.contains("what was in effect before this edit stays in effect"), "{message}");
    shows(&world, &["app", "odd", "plain"]).await?;
    assert_eq!(engine_of(&world, "plain").await?, "Webhook");
    world.edit_policy("odd", json!({ "suspend": true })).await?;
    within(LIMIT, "the other one goes back", || async {
        Ok(engine_of(&world, "plain").await? == "MutatingAdmissionPolicy")
    })
    .await?;
    shows(&world, &["app", "plain"]).await?;
    world.edit_policy("odd", json!({ "suspend": null })).await?;
    world.edit_policy("odd", json!({ "matchConditions": null })).await?;
    in_force(&world.cluster, "odd").await?;
    shows(&world, &["app", "odd", "plain"]).await?;

    // Each item of a list is larger in an expression than in JSON.
    let arguments = vec!["a"; 14_000];
    let large = json!({ "template": { "containers": [{ "name": "large", "image": "x:1", "args": arguments }] } });
    world.enforce("large", on("statefulsets", large)).await?;
    assert_eq!(engine_of(&world, "large").await?, "Webhook");
    let created = world.create_promptly(STATEFULSETS, &statefulset("large")).await?;
    assert_eq!(containers(&created), ["app", "large"]);
    world.edit_policy("large", json!({ "engine": "MutatingAdmissionPolicy" })).await?;
    let message = refused(&world, "large", "Programmed", "NotExpressible").await?;
    assert!(message.contains("make templates smaller"), "{message}");
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}

async fn policies_of_one_resource_that_name_different_engines_are_told_which_came_first() -> Result<()> {
    let (world, _operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    world.policy("a", by("Webhook", sidecar("a"))).await?;
    world.policy("b", by("MutatingAdmissionPolicy", sidecar("b"))).await?;
    in_force(&world.cluster, "a").await?;
    let message = refused(&world, "b", "Programmed", "EngineMismatch").await?;
    assert!(message.contains("SidecarPolicy `a`, which comes first"), "{message}");
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("web")).await?), ["app", "a"]);
    world.edit_policy("b", json!({ "engine": "Auto" })).await?;
    in_force(&world.cluster, "b").await?;
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("both")).await?), ["app", "a", "b"]);
    Ok(())
}

/// A server of 1.36 with `argument`, the engine that serves a policy with `Auto`, and the reasons of the named engines.
struct Switched {
    argument: &'static str,
    auto: Result<&'static str, &'static str>,
    policies: Option<(&'static str, &'static str)>,
    webhooks: Option<(&'static str, &'static str)>,
}

const POLICIES_OFF: Option<(&str, &str)> =
    Some(("AdmissionPolicyPluginOff", "--feature-gates=MutatingAdmissionPolicy=true"));
const WEBHOOKS_OFF: Option<(&str, &str)> = Some(("WebhookOff", "--disable-admission-plugins"));
/// The harness runs without the plugin `ServiceAccount`.
const SWITCHED: [Switched; 4] = [
    Switched {
        argument: "--feature-gates=MutatingAdmissionPolicy=false",
        auto: Ok("Webhook"),
        policies: POLICIES_OFF,
        webhooks: None,
    },
    Switched {
        argument: "--disable-admission-plugins=ServiceAccount,MutatingAdmissionPolicy",
        auto: Ok("Webhook"),
        policies: POLICIES_OFF,
        webhooks: None,
    },
    Switched {
        argument: "--disable-admission-plugins=ServiceAccount,MutatingAdmissionWebhook,ValidatingAdmissionWebhook",
        auto: Ok("MutatingAdmissionPolicy"),
        policies: None,
        webhooks: WEBHOOKS_OFF,
    },
    Switched {
        argument: "--disable-admission-plugins=ServiceAccount,MutatingAdmissionPolicy,MutatingAdmissionWebhook,ValidatingAdmissionWebhook",
        auto: Err("WebhookOff"),
        policies: POLICIES_OFF,
        webhooks: WEBHOOKS_OFF,
    },
];

async fn an_engine_that_is_switched_off_is_passed_over_and_where_it_is_named_the_flag_is() -> Result<()> {
    for Switched { argument, auto, policies, webhooks } in SWITCHED {
        let world = World::with(ControlPlane::builder(Version::NEWEST).extra_arg(argument)).await?;
        // Detected before there is an operator.
        for (engine, off) in [("MutatingAdmissionPolicy", policies), ("Webhook", webhooks)] {
            let found = check(&world.cluster, &["--pre", "--engine", engine]).await?;
            let expected = match off.map(|(reason, _)| reason) {
                None => ("Ok", "-"),
                Some("WebhookOff") => ("Problem", "SCP0321"),
                Some(_) => ("Problem", "SCP0318"),
            };
            assert_eq!(found.of(&format!("engine {engine}")), [expected], "{argument}: {}", found.printed);
        }
        let operator = Operator::ready(&world.cluster, &[]).await?;
        world.policy("auto", sidecar("auto")).await?;
        world.policy("policies", on("statefulsets", by("MutatingAdmissionPolicy", sidecar("policies")))).await?;
        world.policy("webhooks", on("daemonsets", by("Webhook", sidecar("webhooks")))).await?;
        for (policy, expected) in [("policies", policies), ("webhooks", webhooks)] {
            match expected {
                None => in_force(&world.cluster, policy).await?,
                Some((reason, flag)) => {
                    let message = refused(&world, policy, "Programmed", reason).await?;
                    assert!(message.contains(flag), "{argument}: {message}");
                }
            }
        }
        match auto {
            Ok(engine) => {
                in_force(&world.cluster, "auto").await?;
                assert_eq!(engine_of(&world, "auto").await?, engine, "{argument}");
                shows(&world, &["app", "auto"]).await?;
            }
            Err(reason) => drop(refused(&world, "auto", "Programmed", reason).await?),
        }
        let expected: &[&str] = if auto.is_ok() { &["app", "auto"] } else { &["app"] };
        let created = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
        assert_eq!(containers(&created), expected, "{argument}");
        // Failed registrations are not left behind.
        let registered = world.registered().await?;
        let of = |resource: &str| registered.iter().any(|name| name.contains(resource));
        assert_eq!(of("scpol-statefulsets.apps"), policies.is_none(), "{argument}: {registered:?}");
        assert_eq!(of("scpol-daemonsets.apps"), webhooks.is_none(), "{argument}: {registered:?}");
        assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    }
    Ok(())
}

/// A server that restarts with other arguments while the operator runs: the engine before, the argument that switches
/// it off, and the one that switches it on. The webhook serves in between.
const SWITCHED_LATER: [(Version, &str, &str, &str); 3] = [
    (
        Version::NEWEST,
        "MutatingAdmissionPolicy",
        "--feature-gates=MutatingAdmissionPolicy=false",
        "--feature-gates=MutatingAdmissionPolicy=true",
    ),
    (
        Version::NEWEST,
        "MutatingAdmissionPolicy",
        "--disable-admission-plugins=ServiceAccount,MutatingAdmissionPolicy",
        "--disable-admission-plugins=ServiceAccount",
    ),
    (
        Version::V1_13,
        "Initializer",
        "--enable-admission-plugins=MutatingAdmissionWebhook,ValidatingAdmissionWebhook",
        "--enable-admission-plugins=Initializers,MutatingAdmissionWebhook,ValidatingAdmissionWebhook",
    ),
];

async fn an_engine_that_is_switched_off_while_it_serves_hands_over_and_gets_it_back() -> Result<()> {
    for (version, first, off, on) in SWITCHED_LATER {
        let mut world = world(version).await?;
        let operator = Operator::ready(&world.cluster, &[]).await?;
        world.enforce("envoy", sidecar("envoy")).await?;
        assert_eq!(engine_of(&world, "envoy").await?, first, "{off}");
        for (name, argument, engine) in [("off", off, "Webhook"), ("on", on, first)] {
            world.cluster.restart_apiserver_with(&[argument]).await?;
            within(2 * LIMIT, &format!("{argument}: {engine} serves"), || async {
                Ok(engine_of(&world, "envoy").await? == engine)
            })
            .await?;
            in_force(&world.cluster, "envoy").await?;
            let created = world.create_promptly(DEPLOYMENTS, &deployment(name)).await?;
            assert_eq!(containers(&created), ["app", "envoy"], "{argument}");
        }
        assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    }
    Ok(())
}

async fn without_the_plugin_of_initializers_the_webhook_serves_what_names_no_engine_but_nothing_that_must_refuse()
-> Result<()> {
    let (world, _operator) =
        World::with(ControlPlane::builder(Version::V1_13).disable_initializers_plugin()).await?.operated(&[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    assert_eq!(engine_of(&world, "envoy").await?, "Webhook");
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("web")).await?), ["app", "envoy"]);

    let mut must = on("statefulsets", sidecar("must"));
    must["failurePolicy"] = json!("Fail");
    for engine in ["Auto", "Webhook"] {
        world.policy("must", by(engine, must.clone())).await?;
        let message = refused(&world, "must", "Programmed", "FailNotSafe").await?;
        assert!(message.contains("SCP0325") && message.contains("1.21"), "{engine}: {message}");
        assert_eq!(
            containers(&world.create_promptly(STATEFULSETS, &statefulset(&engine.to_lowercase())).await?),
            ["app"]
        );
        world.delete_policy("must").await?;
    }
    must["failurePolicy"] = json!("Ignore");
    world.enforce("must", must).await?;
    assert_eq!(containers(&world.create_promptly(STATEFULSETS, &statefulset("db")).await?), ["app", "must"]);
    Ok(())
}

async fn a_webhook_that_the_server_cannot_reach_is_told_in_its_own_words() -> Result<()> {
    for version in [Version::V1_13, Version::NEWEST] {
        let world = world(version).await?;
        // Nothing listens there.
        let _operator = Operator::ready(&world.cluster, &["--webhook-url", "https://127.0.0.1:1"]).await?;
        world.policy("envoy", by("Webhook", sidecar("envoy"))).await?;
        world.policy("auto", on("statefulsets", sidecar("auto"))).await?;
        let message = refused(&world, "envoy", "Programmed", "WebhookUnreachable").await?;
        let words: &[&str] = match version {
            Version::V1_13 => &["can it reach the webhook"],
            _ => &["failed calling webhook", "connection refused"],
        };
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
        wait_condition(&world.cluster, "envoy", "Reconciling", "True", "WebhookUnreachable").await?;
        in_force(&world.cluster, "auto").await?;
        assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("web")).await?), ["app"]);
        assert_eq!(containers(&world.create_promptly(STATEFULSETS, &statefulset("db")).await?), ["app", "auto"]);
    }
    Ok(())
}

async fn a_field_whose_feature_gate_is_off_is_reported_and_never_dropped() -> Result<()> {
    let rules = json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }]);
    let resize = json!([{ "resourceName": "cpu", "restartPolicy": "NotRequired" }]);
    for (version, fields, dropped) in [
        (Version::V1_30, json!({ "resizePolicy": resize }), "resizePolicy"),
        (Version::V1_34, json!({ "restartPolicy": "Never", "restartPolicyRules": rules }), "restartPolicy"),
    ] {
        let (world, _operator) = world(version).await?.operated(&[]).await?;
        world.policy("plain", sidecar("plain")).await?;
        let (mut gated, fields) = (sidecar("gated"), fields.as_object().context("fields")?.clone());
        gated["template"]["containers"][0].as_object_mut().context("a container")?.extend(fields);
        world.policy("gated", gated).await?;
        let message = refused(&world, "gated", "Programmed", "UnknownTemplateField").await?;
        assert!(message.contains(&format!("drops `containers[gated].{dropped}`")), "{version}: {message}");
        in_force(&world.cluster, "plain").await?;
        shows(&world, &["app", "plain"]).await?;
        // Without the field the policy takes effect.
        world.edit_policy("gated", sidecar("gated")).await?;
        in_force(&world.cluster, "gated").await?;
        shows(&world, &["app", "gated", "plain"]).await?;
    }
    Ok(())
}

async fn a_template_that_the_server_refuses_is_told_and_nothing_of_it_is_registered() -> Result<()> {
    for (version, engines) in crate::engines::ENGINES {
        for engine in engines {
            let (world, _operator) = world(version).await?.operated(&[]).await?;
            world.policy("good", by(engine, sidecar("good"))).await?;
            let bad =
                json!({ "containers": [{ "name": "bad", "image": "x:1", "ports": [{ "containerPort": 70_000 }] }] });
            world.policy("bad", by(engine, json!({ "template": bad }))).await?;
            world.policy("alone", on("statefulsets", by(engine, json!({ "template": bad })))).await?;
            for policy in ["bad", "alone"] {
                let message = refused(&world, policy, "Accepted", "TemplateInvalid").await?;
                assert!(message.contains("containerPort") && message.contains("70000"), "{engine}: {message}");
                wait_condition(&world.cluster, policy, "Stalled", "True", "TemplateInvalid").await?;
            }
            in_force(&world.cluster, "good").await?;
            let created = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
            assert_eq!(containers(&created), ["app", "good"], "{engine}");
            let registered = world.registered().await?;
            assert!(registered.iter().all(|name| !name.contains("statefulsets")), "{registered:?}");
            let good = json!([{ "name": "bad", "image": "x:1", "ports": [{ "containerPort": 7_000 }] }]);
            world.edit_policy("bad", json!({ "template": { "containers": good } })).await?;
            in_force(&world.cluster, "bad").await?;
            shows(&world, &["app", "bad", "good"]).await?;
        }
    }
    Ok(())
}

/// An edited policy keeps its old form until the edit is in effect. A rejected edit never takes effect.
async fn an_edit_is_told_to_be_in_force_only_once_it_is() -> Result<()> {
    for engine in ["Webhook", "MutatingAdmissionPolicy"] {
        let (world, _operator) =
            World::with(ControlPlane::builder(Version::NEWEST).audit_log()).await?.operated(&[]).await?;
        world.enforce("envoy", by(engine, sidecar("envoy"))).await?;
        // The period of statuses must not delay a premature report.
        tokio::time::sleep(timing().controller.status_period + 2 * timing().controller.tick).await;
        let bad = json!([{ "name": "envoy", "image": "x:1", "ports": [{ "containerPort": 70_000 }] }]);
        world.edit_policy("envoy", json!({ "template": { "containers": bad } })).await?;
        refused(&world, "envoy", "Accepted", "TemplateInvalid").await?;
        let statuses = world.cluster.audit().into_iter().filter(|event| {
            event["objectRef"]["resource"] == "sidecarpolicies" && event["objectRef"]["subresource"] == "status"
        });
        for status in statuses.map(|event| event["requestObject"]["status"].clone()) {
            let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            let is_ready = conditions.iter().any(|told| told["type"] == "Ready" && told["status"] == "True");
            ensure!(!is_ready || status["observedGeneration"] == 1, "{engine}: told to be in effect: {status}");
        }
    }
    Ok(())
}

async fn a_secret_of_which_nothing_can_be_used_is_made_anew() -> Result<()> {
    let [ca, ca_key, crt, _] = certificate(&NAMES, 2090)?;
    let [.., expired, expired_key] = certificate(&NAMES, 2021)?;
    let [_, _, _, other_key] = certificate(&NAMES, 2090)?;
    let cases = [
        ("expired", [&ca, &ca_key, &expired, &expired_key].map(String::as_str)),
        ("garbage", ["?", "\u{0}", "-----BEGIN CERTIFICATE-----", ""]),
        ("wrong-key", [&ca, &ca_key, &crt, &other_key]),
        ("wrong-authority-key", [&ca, &other_key, &crt, &other_key]),
    ];
    for version in [Version::V1_13, Version::NEWEST] {
        let world = world(version).await?;
        world.policy("envoy", by("Webhook", sidecar("envoy"))).await?;
        for (name, files) in &cases {
            let spoilt = secret(*files);
            request(&world.admin, "POST", SECRETS, &spoilt).await?;
            let operator = Operator::ready(&world.cluster, &[]).await?;
            shows(&world, &["app", "envoy"]).await.context(*name)?;
            let created = world.create_promptly(DEPLOYMENTS, &deployment(name)).await?;
            assert_eq!(containers(&created), ["app", "envoy"], "{version:?} {name}");
            let stored = world.get(&format!("{SECRETS}/scpol-webhook")).await?.context("it is there")?;
            assert_ne!(stored["data"]["tls.crt"], spoilt["data"]["tls.crt"], "{name}");
            world.checks("certificate", &[("Ok", "-")]).await?;
            operator.kill().await?;
            world.delete(&format!("{SECRETS}/scpol-webhook")).await?;
        }
    }
    Ok(())
}

async fn what_is_posted_to_the_webhook_and_is_no_review_is_told_and_keeps_nobody_from_his_sidecar() -> Result<()> {
    for version in [Version::V1_13, Version::NEWEST] {
        let (world, operator) = world(version).await?.operated(&[]).await?;
        world.policy("envoy", by("Webhook", sidecar("envoy"))).await?;
        shows(&world, &["app", "envoy"]).await?;
        let api = version.registration();
        let path =
            format!("/apis/admissionregistration.k8s.io/{api}/mutatingwebhookconfigurations/scpol-deployments.apps");
        let registered = world.get(&path).await?.context("it is registered")?;
        let url = registered["webhooks"][0]["clientConfig"]["url"].as_str().context("a URL")?;
        let url: http::Uri = url.parse()?;
        let mut config = Config::new(format!("https://{}", url.authority().context("a host")?).parse()?);
        config.accept_invalid_certs = true;
        let stranger = Client::try_from(config)?;
        let garbage = http::Request::post(url.path()).body(b"garbage".to_vec())?;
        let answer = stranger.request_text(garbage).await.expect_err("it is no review").to_string();
        assert!(answer.contains("SCP0212: "), "{answer}");
        let told = wait_condition(&world.cluster, "envoy", "Degraded", "True", "ReviewInvalid").await?;
        assert!(told["message"].as_str().is_some_and(|message| message.starts_with("SCP0212: ")), "{told}");
        in_force(&world.cluster, "envoy").await?;
        world.checks("policy envoy", &[("Warning", "SCP0212")]).await?;
        let series = r#"scpol_injections_total{engine="Webhook",policy="",reason="ReviewInvalid",result="failed"}"#;
        assert_eq!(operator.metric(series).await?, 1.0);
        shows(&world, &["app", "envoy"]).await?;
        operator.kill().await?;
    }
    Ok(())
}

fn write(folder: &Path, [ca, _, crt, key]: &[String; 4]) -> Result<()> {
    for (name, text) in [("ca.crt", ca), ("tls.crt", crt), ("tls.key", key)] {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(())
}

async fn certificate_files_that_cannot_be_used_are_told_and_taken_once_they_can() -> Result<()> {
    let world = world(Version::NEWEST).await?;
    let good = certificate(&NAMES, 2090)?;
    let [.., other_key] = certificate(&NAMES, 2090)?;
    let [ca, ca_key, crt, _] = good.clone();
    let cases = [
        ("expired", certificate(&NAMES, 2021)?, "is not valid now"),
        ("elsewhere", certificate(&["elsewhere.example.com"], 2090)?, "is not for `scpol.scpol-system.svc`"),
        ("mismatched", [ca, ca_key, crt, other_key], "`tls.key` is not the key of `tls.crt`"),
    ];
    for (name, files, told) in &cases {
        let folder = tempfile::tempdir()?;
        write(folder.path(), files)?;
        let path = folder.path().to_str().context("a path")?;
        let mut operator = Operator::start(&world.cluster, &["--webhook-cert-dir", path])?;
        world.policy(name, by("Webhook", sidecar("envoy"))).await?;
        let message = refused(&world, name, "Programmed", "CertificateInvalid").await?;
        assert!(message.contains(told), "{name}: {message}");
        let (status, body) = operator.get("/readyz").await?;
        assert!(status == 503 && body.contains("certificate"), "{name}: {status} {body}");
        shows(&world, &["app"]).await?;
        write(folder.path(), &good)?;
        in_force(&world.cluster, name).await?;
        operator.wait_ready().await?;
        shows(&world, &["app", "envoy"]).await?;
        if *name == "elsewhere" {
            // Damaged while it serves: the webhook keeps the old certificate, and reports it.
            write(folder.path(), files)?;
            let degraded = async |wanted: bool| {
                within(3 * LIMIT, &format!("degraded is {wanted}"), || async {
                    let told = condition(&world.cluster, name, "Degraded").await?;
                    Ok(told.is_some_and(|told| told["reason"] == "CertificateInvalid") == wanted)
                })
                .await
            };
            degraded(true).await?;
            in_force(&world.cluster, name).await?;
            shows(&world, &["app", "envoy"]).await?;
            write(folder.path(), &good)?;
            degraded(false).await?;
        }
        world.delete_policy(name).await?;
        within(LIMIT, "nothing is registered", || async { Ok(world.registered().await?.is_empty()) }).await?;
        operator.kill().await?;
    }
    Ok(())
}

/// An engine, the role with its rights, its registration, and the engine that replaces it.
const RIGHTS: [(Version, &str, &str, &str, &str); 4] = [
    (Version::V1_13, "Initializer", "scpol-initializer", "initializerconfigurations", "Webhook"),
    (Version::V1_13, "Webhook", "scpol-webhook", "mutatingwebhookconfigurations", "Initializer"),
    (Version::NEWEST, "MutatingAdmissionPolicy", "scpol-admission-policy", "mutatingadmissionpolicies", "Webhook"),
    (Version::NEWEST, "Webhook", "scpol-webhook", "mutatingwebhookconfigurations", "MutatingAdmissionPolicy"),
];

async fn an_engine_whose_rights_are_missing_is_passed_over_and_used_once_they_are_granted() -> Result<()> {
    for (version, engine, binding, resource, other) in RIGHTS {
        let world = world(version).await?;
        let path = format!("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{binding}");
        world.delete(&path).await?;
        let registrations = format!("{resource}.admissionregistration.k8s.io");
        world.operator_may("list", &registrations, false).await?;
        let operator = Operator::ready(&world.cluster, &[]).await?;
        world.policy("auto", sidecar("auto")).await?;
        world.policy("named", on("statefulsets", by(engine, sidecar("named")))).await?;
        in_force(&world.cluster, "auto").await?;
        assert_eq!(engine_of(&world, "auto").await?, other, "{engine}");
        assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("web")).await?), ["app", "auto"]);
        let message = refused(&world, "named", "Programmed", "MissingRight").await?;
        assert!(message.contains(&format!("cannot list resource \"{resource}\"")), "{engine}: {message}");
        wait_condition(&world.cluster, "named", "Reconciling", "True", "MissingRight").await?;
        world.checks(&format!("rights for {engine}"), &[("Problem", "SCP0304")]).await?;
        assert_eq!(containers(&world.create_promptly(STATEFULSETS, &statefulset("db")).await?), ["app"]);
        support::apply_without_deployment(&world.cluster).await?;
        in_force(&world.cluster, "named").await?;
        let created = world.create_promptly(STATEFULSETS, &statefulset("db-2")).await?;
        assert_eq!(containers(&created), ["app", "named"], "{engine}");
        // Revoked while it works: registrations cannot be changed any more, and new policies use another engine.
        world.delete(&path).await?;
        world.operator_may("create", &registrations, false).await?;
        world.policy("late", on("daemonsets", by(engine, sidecar("late")))).await?;
        let message = refused(&world, "late", "Programmed", "MissingRight").await?;
        assert!(message.contains(resource) || message.contains("daemonsets"), "{engine}: {message}");
        world.edit_policy("late", json!({ "engine": "Auto" })).await?;
        in_force(&world.cluster, "late").await?;
        assert_eq!(engine_of(&world, "late").await?, other, "{engine}");
        if version == Version::NEWEST {
            // The watch of the registrations is refused for good by then. It goes on without an event.
            refused(&world, "named", "Programmed", "MissingRight").await?;
        }
        support::apply_without_deployment(&world.cluster).await?;
        world.edit_policy("late", json!({ "engine": engine })).await?;
        within(2 * LIMIT, "it is served as it says", || async { Ok(engine_of(&world, "late").await? == engine) })
            .await?;
        in_force(&world.cluster, "late").await?;
        assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    }
    Ok(())
}

async fn without_the_rights_to_the_secret_of_the_certificate_the_webhook_is_not_registered_and_says_why() -> Result<()>
{
    for version in [Version::V1_13, Version::NEWEST] {
        let world = world(version).await?;
        world.delete("/apis/rbac.authorization.k8s.io/v1/namespaces/scpol-system/rolebindings/scpol-webhook").await?;
        let _operator = Operator::start(&world.cluster, &[])?;
        world.policy("envoy", by("Webhook", sidecar("envoy"))).await?;
        let message = refused(&world, "envoy", "Programmed", "MissingRight").await?;
        assert!(message.contains("secrets"), "{message}");
        world.checks("rights for Webhook", &[("Problem", "SCP0304")]).await?;
        assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("web")).await?), ["app"]);
        support::apply_without_deployment(&world.cluster).await?;
        in_force(&world.cluster, "envoy").await?;
        shows(&world, &["app", "envoy"]).await?;
        world.checks("rights for Webhook", &[("Ok", "-")]).await?;
    }
    Ok(())
}

async fn a_job_is_injected_by_every_engine_but_initializers() -> Result<()> {
    const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
    let mut pod = pod_template("report");
    pod["spec"]["restartPolicy"] = json!("Never");
    let job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "report" }, "spec": { "template": pod } });
    let mut spec = sidecar("envoy");
    spec["targets"] = json!([{ "group": "batch", "resource": "jobs" }, { "group": "apps", "resource": "deployments" }]);
    spec["jobs"] = json!("Inject");
    for (version, engines) in [(Version::V1_13, "Initializer,Webhook"), (Version::NEWEST, "MutatingAdmissionPolicy")] {
        let (world, _operator) = world(version).await?.operated(&[]).await?;
        world.enforce("envoy", spec.clone()).await?;
        assert_eq!(engine_of(&world, "envoy").await?, engines);
        let created = world.create_promptly(JOBS, &job).await?;
        let native = &created["spec"]["template"]["spec"]["initContainers"];
        match version {
            Version::V1_13 => assert_eq!(containers(&created), ["app", "envoy"]),
            _ => {
                assert_eq!((&native[0]["name"], &native[0]["restartPolicy"]), (&json!("envoy"), &json!("Always")))
            }
        }
        assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("web")).await?), ["app", "envoy"]);
        world.status("envoy", "injected", 2).await?;
    }
    Ok(())
}
