//! The webhook engine: the library's server and certificates in this process, with rendered registrations by URL.

use crate::prelude::*;
use crate::rotation::{Rotation, failed_open};
use crate::webhook_scene::{Scene, simple, site};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::client::conn::http1::handshake;
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use sidecar_policy::api::code::Code;
use sidecar_policy::compile::webhook::Endpoint;
use sidecar_policy::policy::Policy;
use sidecar_policy::review::LARGEST;
use tower::Service;

crate::tests![
    what_matches_gets_its_sidecar_at_create_on_1_13 = what_matches_gets_its_sidecar_at_create(Version::V1_13),
    what_matches_gets_its_sidecar_at_create_on_1_36 = what_matches_gets_its_sidecar_at_create(Version::NEWEST),
    what_must_not_be_stored_is_refused_with_the_reason,
    validations_hold_where_the_server_gives_objects_initializers,
    whatever_is_posted_gets_its_answer_and_nothing_of_it_stops_the_server,
    no_create_fails_while_the_certificates_are_renewed_on_1_13 =
        no_create_fails_while_the_certificates_are_renewed(Version::V1_13),
    no_create_fails_while_the_certificates_are_renewed_on_1_36 =
        no_create_fails_while_the_certificates_are_renewed(Version::NEWEST),
];

/// The message of a rejection.
async fn refused(scene: &Scene, path: &str, body: &Value) -> Result<String> {
    match scene.world.create(path, body).await {
        Ok(created) => bail!("it was let in: {created}"),
        Err(error) => Ok(error.to_string()),
    }
}

async fn what_matches_gets_its_sidecar_at_create(version: Version) -> Result<()> {
    let scene = Scene::new(version, site()).await?;
    let labelled = json!({ "namespaceSelector": { "matchLabels": { "team": "shop" } } });
    scene.register(vec![simple("envoy", &json!({}))?, simple("far", &labelled)?]).await?;
    let world = &scene.world;
    let mut generated = pod("web");
    generated["metadata"] = json!({ "generateName": "web-" });
    let dry = format!("{PODS}?dryRun=All");
    let injected = r#"scpol_injections_total{engine="Webhook",policy="envoy",reason="Programmed",result="injected"}"#;
    assert_eq!(containers(&world.create(&dry, &pod("dry")).await?), ["app", "envoy"]);
    assert!(!scene.webhook.operator.metrics.render().contains(injected), "a dry run is not counted");
    for (path, body) in [(PODS, pod("web")), (PODS, generated), (DEPLOYMENTS, deployment("web"))] {
        let created = world.create_promptly(path, &body).await?;
        assert_eq!(containers(&created), ["app", "envoy"]);
    }
    assert!(
        scene.webhook.operator.metrics.render().contains(&format!("{injected} 3")),
        "{}",
        scene.webhook.operator.metrics.render()
    );
    if version == Version::V1_13 {
        let mut old = deployment("old");
        old["apiVersion"] = json!("extensions/v1beta1");
        let path = "/apis/extensions/v1beta1/namespaces/default/deployments";
        assert_eq!(containers(&world.create(path, &old).await?), ["app", "envoy"]);
    }
    // The Namespace of a workload is read if a policy needs its labels.
    world.namespace("shop", &json!({ "team": "shop" })).await?;
    let there = world.create("/api/v1/namespaces/shop/pods", &pod("web")).await?;
    assert_eq!(containers(&there), ["app", "envoy", "far"]);
    let protected = request(&world.admin, "POST", "/api/v1/namespaces/kube-system/pods", &pod("web")).await?;
    assert_eq!(containers(&protected), ["app"]);
    // A workload that cannot be injected is stored unchanged.
    let mut conflict = pod("conflict");
    conflict["spec"]["containers"][0]["name"] = json!("envoy");
    assert_eq!(containers(&world.create(PODS, &conflict).await?), ["envoy"]);
    assert!(
        scene.webhook.operator.metrics.render().contains(r#"policy="envoy",reason="NameConflict",result="failed"} 1"#)
    );

    // Without a webhook, creates continue.
    let world = scene.stop().await?;
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("later")).await?), ["app"]);
    let is_told = || async { Ok(!failed_open(&world.cluster).is_empty()) };
    within(LIMIT, "the API server's log tells of the call that failed", is_told).await?;
    Ok(())
}

/// Each policy selects by the label `case`, except `second`, which selects by the label that `first` adds.
fn policies_that_refuse() -> Result<Vec<Policy>> {
    let at = |value: &str| json!({ "labelSelector": { "matchLabels": { "case": value } } });
    let with = |mut fields: Value, more: Value| {
        more.as_object().into_iter().flatten().for_each(|(field, value)| fields[field] = value.clone());
        fields
    };
    let fail = json!({ "failurePolicy": "Fail" });
    let demand = json!([{ "expression": "size(object.spec.containers) <= 2", "message": "two containers at most" }]);
    let pods = json!([{ "group": "", "resource": "pods" }]);
    let labels =
        json!({ "metadata": { "labels": { "mesh": "on" } }, "containers": [{ "name": "first", "image": "a" }] });
    let mesh = json!({ "labelSelector": { "matchLabels": { "mesh": "on" } }, "failurePolicy": "Fail" });
    Ok(vec![
        simple("strict", &with(at("strict"), fail))?,
        simple("judge", &with(at("judge"), json!({ "targets": pods, "validations": demand })))?,
        simple("first", &with(at("order"), json!({ "targets": pods, "template": labels })))?,
        simple("second", &with(mesh, json!({ "targets": pods })))?,
    ])
}

async fn what_must_not_be_stored_is_refused_with_the_reason() -> Result<()> {
    let scene = Scene::new(Version::NEWEST, site()).await?;
    let world = &scene.world;
    scene.register(policies_that_refuse()?).await?;
    let labelled = |name: &str, value: &str| {
        let mut pod = pod(name);
        pod["metadata"]["labels"]["case"] = json!(value);
        pod
    };
    assert_eq!(containers(&world.create(PODS, &labelled("strict", "strict")).await?), ["app", "strict"]);
    assert_eq!(containers(&world.create(PODS, &labelled("judge", "judge")).await?), ["app", "judge"]);
    assert_eq!(
        containers(&world.create(PODS, &labelled("order", "order")).await?),
        ["app", "first"],
        "what one adds does not make the other match"
    );

    let mut conflict = labelled("conflict", "strict");
    conflict["spec"]["containers"][0]["name"] = json!("strict");
    let told = refused(&scene, PODS, &conflict).await?;
    assert!(told.contains("SidecarPolicy `strict` refuses this Pod: SCP0200: container `strict` exists"), "{told}");
    let mut many = labelled("many", "judge");
    many["spec"]["containers"] = json!([{ "name": "a", "image": "a" }, { "name": "b", "image": "b" }]);
    let told = refused(&scene, PODS, &many).await?;
    assert!(told.contains("SidecarPolicy `judge` refuses this Pod: SCP0210: two containers at most"), "{told}");
    let metrics = scene.webhook.operator.metrics.render();
    for series in [
        r#"policy="strict",reason="NameConflict",result="rejected"} 1"#,
        // The entries of `Fail` and of `Ignore` match it, and each of the two calls judges it whole.
        r#"policy="judge",reason="ValidationFailed",result="rejected"} 2"#,
        r#"policy="judge",reason="Programmed",result="injected"} 1"#,
    ] {
        assert!(metrics.contains(series), "{series} in\n{metrics}");
    }

    // Without the mutating call, the validating one detects the missing sidecar.
    let mutating = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    world.delete(&format!("{mutating}/scpol-pods")).await?;
    within(LIMIT, "nobody injects", || async { Ok(refused(&scene, PODS, &labelled("bare", "strict")).await.is_ok()) })
        .await?;
    let told = refused(&scene, PODS, &labelled("bare", "strict")).await?;
    assert!(told.contains("SidecarPolicy `strict` refuses this Pod: SCP0213: "), "{told}");
    assert_eq!(containers(&world.create(PODS, &labelled("other", "other")).await?), ["app"]);
    // Without both, creates that a `Fail` policy may select are rejected. All others continue.
    let world = scene.stop().await?;
    let error = world.create(PODS, &labelled("alone", "strict")).await.expect_err("it must be refused");
    assert!(error.to_string().contains("failed calling webhook \"validate.scpol.dev\""), "{error}");
    request(&world.admin, "POST", "/api/v1/namespaces/kube-system/pods", &labelled("alone", "strict")).await?;
    Ok(())
}

async fn validations_hold_where_the_server_gives_objects_initializers() -> Result<()> {
    let scene = Scene::new(Version::V1_13, site()).await?;
    let demand = json!({ "validations": [{ "expression": "has(object.metadata.annotations)", "message": "say why" }] });
    scene.world.foreign("foreign", "other.example.org").await?;
    scene.register(vec![simple("judge", &demand)?]).await?;
    let error = scene.world.create_async(DEPLOYMENTS, &deployment("web")).await.expect_err("it must be refused");
    assert!(error.to_string().contains("SidecarPolicy `judge` refuses this Deployment: SCP0210: say why"), "{error}");
    let mut good = deployment("good");
    good["metadata"]["annotations"] = json!({ "why": "because" });
    let created = scene.world.create_async(DEPLOYMENTS, &good).await?;
    assert_eq!((containers(&created), pending(&created).len()), (vec!["app".to_owned(), "judge".to_owned()], 1));
    Ok(())
}

/// A client of the webhook itself, with the trust of an API server.
fn caller(scene: &Scene) -> Result<Client> {
    Ok(Client::try_from(calling(scene)?)?)
}

fn calling(scene: &Scene) -> Result<Config> {
    let Endpoint::Url(url) = &scene.endpoint else { bail!("it has a URL") };
    let mut config = Config::new(url.parse()?);
    config.default_retry = false;
    let bundle = String::from_utf8(scene.certificates.ca_bundle().context("a bundle")?)?;
    let lines: String = bundle.lines().skip(1).take_while(|line| !line.starts_with('-')).collect();
    config.root_cert = Some(vec![STANDARD.decode(lines)?]);
    Ok(config)
}

/// Posts bytes. Returns the status, the headers and the body of the answer.
async fn post(client: &Client, path: &str, body: impl Into<Vec<u8>>) -> Result<(u16, http::HeaderMap, String)> {
    let request = http::Request::post(path).header("Content-Type", "application/json").body(Body::from(body.into()))?;
    let (head, body) = client.send(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok((head.status.as_u16(), head.headers, String::from_utf8(body.to_vec())?))
}

fn review(api_version: &str, object: &Value) -> Value {
    json!({
        "apiVersion": api_version, "kind": "AdmissionReview",
        "request": {
            "uid": "u1", "operation": "CREATE", "namespace": "default", "object": object,
            "resource": { "group": "", "version": "v1", "resource": "pods" },
        },
    })
}

/// Bodies that the webhook rejects: the body, the HTTP status, and the start of the message.
fn malformed(good: &Value) -> [(Vec<u8>, u16, &'static str); 8] {
    let without = |field: &str| {
        let mut review = good.clone();
        review["request"].as_object_mut().expect("an object").remove(field);
        review.to_string().into_bytes()
    };
    let version = review("admission.k8s.io/v2", &pod("web")).to_string().into_bytes();
    [
        (b"garbage".to_vec(), 400, "SCP0212: the body is no AdmissionReview"),
        (vec![0xff; 1000], 400, "SCP0212: the body is no AdmissionReview"),
        (Vec::new(), 400, "SCP0212: the body is no AdmissionReview"),
        (vec![b'['; 100_000], 400, "SCP0212: the body is no AdmissionReview"),
        (b"{}".to_vec(), 400, "SCP0212: `kind` is ``, not `AdmissionReview`"),
        (version, 400, "SCP0212: `apiVersion` is `admission.k8s.io/v2`"),
        (without("object"), 400, "SCP0212: `request.object` is missing"),
        (without("uid"), 400, "SCP0212: `request.uid` is missing"),
    ]
}

async fn whatever_is_posted_gets_its_answer_and_nothing_of_it_stops_the_server() -> Result<()> {
    let scene = Scene::new(Version::NEWEST, site()).await?;
    scene.register(vec![simple("envoy", &json!({}))?]).await?;
    let client = caller(&scene)?;
    let path = "/mutate/0123456789abcdef";
    let good = review("admission.k8s.io/v1", &pod("web"));
    let cases = malformed(&good);
    let count = cases.len();
    for (body, status, told) in cases {
        let (found, _, text) = post(&client, path, body).await?;
        assert_eq!((found, text.starts_with(told)), (status, true), "{text}");
    }
    what_is_too_large_is_refused_unread(&scene, path).await?;
    let counted = r#"scpol_injections_total{engine="Webhook",policy="",reason="ReviewInvalid",result="failed"}"#;
    assert!(scene.webhook.operator.metrics.render().contains(&format!("{counted} {}\n", count + 1)));
    let (now, told) = (Instant::now(), |now| scene.webhook.trouble(now).map(|trouble| trouble.code));
    assert_eq!((told(now), told(now + timing().webhook.bad_review)), (Some(Code::ReviewInvalid), None));
    // The largest review of an API server is accepted.
    let long = review("admission.k8s.io/v1", &json!({ "metadata": {}, "long": "x".repeat(3 << 20) }));
    assert_eq!(post(&client, path, long.to_string()).await?.0, 200);
    for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
        let (status, _, text) = post(&client, path, review(version, &pod("web")).to_string()).await?;
        let answer: Value = serde_json::from_str(&text)?;
        assert_eq!((status, &answer["apiVersion"], &answer["kind"]), (200, &json!(version), &json!("AdmissionReview")));
        let response = &answer["response"];
        assert_eq!(
            (&response["uid"], &response["allowed"], &response["patchType"]),
            (&json!("u1"), &json!(true), &json!("JSONPatch"))
        );
        let patch = STANDARD.decode(response["patch"].as_str().context("a patch")?)?;
        assert!(String::from_utf8(patch)?.contains(r#""/spec/containers/-""#));
    }
    assert_eq!(post(&client, "/mutate/nothing", good.to_string()).await?.0, 404);
    assert_eq!(post(&client, "/", good.to_string()).await?.0, 404);
    let live = client.request_text(http::Request::get("/livez").body(Vec::new())?).await?;
    assert_eq!(live, "ok\n");
    assert_eq!(scene.webhook.operator.metrics.process.panics.get(), 0);

    // During the stop, open connections get their answers with `Connection: close`. New connections are rejected.
    scene.stop.send_replace(true);
    let stranger = caller(&scene)?;
    within(LIMIT, "no connection is taken", || async { Ok(post(&stranger, path, good.to_string()).await.is_err()) })
        .await?;
    let (status, headers, _) = post(&client, path, good.to_string()).await?;
    assert_eq!((status, headers.get("connection").map(|value| value.as_bytes())), (200, Some(&b"close"[..])));
    tokio::time::timeout(LIMIT, scene.serving).await??;
    Ok(())
}

/// The webhook rejects a review that is too large without reading its body.
async fn what_is_too_large_is_refused_unread(scene: &Scene, path: &str) -> Result<()> {
    let endless = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, std::io::Error>>());
    let config = calling(scene)?;
    let connected = config.rustls_https_connector()?.call(config.cluster_url.clone()).await;
    let (mut sender, connection) = handshake(connected.map_err(anyhow::Error::from_boxed)?).await?;
    tokio::spawn(connection);
    let host = config.cluster_url.host().context("a host")?;
    let request = http::Request::post(path).header("Host", host).header("Content-Length", LARGEST + 1).body(endless)?;
    let answer = tokio::time::timeout(LIMIT, sender.send_request(request)).await??;
    assert_eq!(answer.status(), 413);
    let text = String::from_utf8(answer.into_body().collect().await?.to_bytes().to_vec())?;
    assert!(text.starts_with("SCP0212: the review is larger than"), "{text}");
    Ok(())
}

/// `SCPOL_ROTATION_CREATES` sets the least number of creates.
async fn no_create_fails_while_the_certificates_are_renewed(version: Version) -> Result<()> {
    let least: usize = std::env::var("SCPOL_ROTATION_CREATES").ok().map_or(Ok(2000), |count| count.parse())?;
    let Rotation { created, failed, late, handshakes } = Rotation::run(version, least).await?;
    assert!(failed.is_empty(), "{} of {created} failed: {:?}", failed.len(), &failed[..failed.len().min(5)]);
    assert_eq!(late, 0, "beside {created} were answered, and came out without their sidecar");
    ensure!(handshakes > 100, "too few handshakes to prove anything: {handshakes}");
    Ok(())
}
