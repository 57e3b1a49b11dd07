//! Callers without credentials that post reviews to the webhook.

use crate::commands::scpol;
use crate::engines::{by, shows};
use crate::prelude::*;
use futures::StreamExt;
use http_body_util::BodyExt;
use kube::client::Body;
use kube::{Client, Config};
use sidecar_policy::outside::is_unsafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

crate::tests![
    no_body_makes_the_operator_ask_for_anything_else_on_1_13 =
        no_body_makes_the_operator_ask_for_anything_else(Version::V1_13),
    no_body_makes_the_operator_ask_for_anything_else_on_the_newest =
        no_body_makes_the_operator_ask_for_anything_else(Version::NEWEST),
    a_flood_of_unknown_namespaces_is_a_handful_of_requests_and_delays_nobody,
    reviews_that_name_no_registration_count_nothing,
    who_knows_no_registration_learns_nothing_of_rights,
    what_tenants_write_does_not_reach_the_terminal_on_1_13 =
        what_tenants_write_does_not_reach_the_terminal(Version::V1_13),
    what_tenants_write_does_not_reach_the_terminal_on_the_newest =
        what_tenants_write_does_not_reach_the_terminal(Version::NEWEST),
];

/// The server of tests that are alike on all.
const SERVER: Version = Version::V1_13;
/// A revision that no registration has.
const UNKNOWN: &str = "0123456789abcdef";
/// The requests of a flood at one time.
const PARALLEL: usize = 48;

/// A caller of the operator's webhook without credentials.
struct Caller {
    client: Client,
    /// The revision of the registration, which only those know who may read registrations.
    revision: String,
}

impl Caller {
    /// A caller of the registration at `path`.
    async fn of(world: &World, path: &str) -> Result<Self> {
        let mut entry = Value::Null;
        within(LIMIT, "it is registered", || async {
            let stored = world.get(path).await?.context("no registration")?;
            ensure!(stored["webhooks"][0]["clientConfig"]["url"].is_string());
            Ok(true)
        })
        .await?;
        if let Some(stored) = world.get(path).await? {
            entry = stored["webhooks"][0].clone();
        }
        let url: http::Uri = entry["clientConfig"]["url"].as_str().context("a URL")?.parse()?;
        let mut config = Config::new(format!("https://{}", url.authority().context("a host")?).parse()?);
        (config.accept_invalid_certs, config.default_retry) = (true, false);
        let revision = url.path().rsplit('/').next().context("a revision")?.to_owned();
        Ok(Self { client: Client::try_from(config)?, revision })
    }

    /// The status and the text of the answer to `body`.
    async fn post(&self, call: &str, revision: &str, body: &[u8]) -> Result<(u16, String)> {
        let path = format!("/{call}/{revision}");
        let request = http::Request::post(path).header("Content-Type", "application/json");
        let (head, body) = self.client.send(request.body(Body::from(body.to_vec()))?).await?.into_parts();
        let text = String::from_utf8_lossy(&body.collect().await?.to_bytes()).into_owned();
        Ok((head.status.as_u16(), text))
    }
}

/// A server with the operator, a policy by webhook that reads Namespaces, and a caller.
async fn scene(version: Version) -> Result<(World, Operator, Caller)> {
    let (world, operator) = World::with(ControlPlane::builder(version).audit_log()).await?.operated(&[]).await?;
    world.enforce("envoy", by("Webhook", sidecar("envoy"))).await?;
    shows(&world, &["app", "envoy"]).await?;
    let api = version.registration();
    let path = format!("/apis/admissionregistration.k8s.io/{api}/mutatingwebhookconfigurations/scpol-deployments.apps");
    let caller = Caller::of(&world, &path).await?;
    Ok((world, operator, caller))
}

fn review(namespace: &str, object: &Value) -> Value {
    let request = json!({
        "uid": "u1", "operation": "CREATE", "namespace": namespace, "object": object,
        "resource": { "group": "apps", "version": "v1", "resource": "deployments" },
    });
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request })
}

/// The operator's requests in the audit log, each with its verb.
fn asked(world: &World) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let audit = world.cluster.audit();
    let ours = audit.iter().filter(|event| event["user"]["username"] == User::Operator.name());
    ours.map(|event| (text(&event["verb"]), text(&event["requestURI"]))).collect()
}

/// The names of the Namespaces that the operator has asked for.
fn namespaces(world: &World) -> Vec<String> {
    let name = |(verb, uri): (String, String)| {
        let rest = uri.strip_prefix("/api/v1/namespaces/")?.split('?').next()?.to_owned();
        (verb == "get" && !rest.contains('/')).then_some(rest)
    };
    asked(world).into_iter().filter_map(name).collect()
}

async fn no_body_makes_the_operator_ask_for_anything_else(version: Version) -> Result<()> {
    let (world, operator, caller) = scene(version).await?;
    // API servers send the names of users before they check them, and reject them then: that is no fault of theirs.
    let created = world.create(DEPLOYMENTS, &deployment("a%2fb")).await.expect_err("no such name").to_string();
    assert!(!created.contains("SCP0212"), "{created}");
    within(LIMIT, "the server has sent it", || async { Ok(operator.log().contains("`a%2fb`")) }).await?;
    tokio::time::sleep(timing().webhook.look + timing().controller.status_period).await;
    assert_eq!(condition(&world.cluster, "envoy", "Degraded").await?, None);
    world.cluster.clear_audit()?;
    let hostile = ["kube-system/pods", "default/pods?limit=1", "../nodes", "kube-system/pods?watch=true", "shop#x"];
    for namespace in hostile {
        for call in ["mutate", "validate"] {
            let body = review(namespace, &deployment("web")).to_string();
            let (status, text) = caller.post(call, &caller.revision, body.as_bytes()).await?;
            assert_eq!(status, 400, "{namespace}: {text}");
            assert!(text.starts_with("SCP0212: `request.namespace` is "), "{text}");
        }
    }
    // Requests are logged once they are answered.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let caused: Vec<_> = asked(&world)
        .into_iter()
        // The operator watches the pods of all namespaces.
        .filter(|(_, uri)| !uri.starts_with("/api/v1/pods?"))
        .filter(|(_, uri)| {
            uri.contains("/pods") || uri.contains("..") || uri.contains("shop") || uri.contains("/nodes?")
        })
        .collect();
    assert!(caused.is_empty(), "{caused:?}");
    assert!(namespaces(&world).is_empty(), "{:?}", namespaces(&world));
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}

async fn a_flood_of_unknown_namespaces_is_a_handful_of_requests_and_delays_nobody() -> Result<()> {
    let (world, operator, caller) = scene(SERVER).await?;
    let flood = |revision: &str, count: usize, prefix: &str| {
        let posts = (0..count).map(|number| {
            let body = review(&format!("{prefix}-{number}"), &deployment("web")).to_string();
            let (caller, revision) = (&caller, revision.to_owned());
            async move { caller.post("mutate", &revision, body.as_bytes()).await }
        });
        futures::stream::iter(posts.collect::<Vec<_>>()).buffer_unordered(PARALLEL).collect::<Vec<_>>()
    };
    for (revision, prefix, most) in [(UNKNOWN, "stranger", 0), (caller.revision.as_str(), "reader", 20)] {
        world.cluster.clear_audit()?;
        let begin = Instant::now();
        let answers = flood(revision, 200, prefix).await;
        let took = begin.elapsed();
        assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|(status, _)| *status == 200)), "{answers:?}");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let asked = namespaces(&world).into_iter().filter(|name| name.starts_with(prefix)).count();
        eprintln!("200 reviews by {prefix} in {took:?}: {asked} requests");
        assert!(asked <= most, "{asked} requests after 200 reviews in {took:?}");
    }
    // In the middle of it, workloads have their sidecar, those of a Namespace that is a moment old, too.
    let (is_over, posted) = (AtomicBool::new(false), AtomicUsize::new(0));
    let noise = async {
        while !is_over.load(Ordering::Relaxed) {
            for revision in [UNKNOWN, &caller.revision] {
                posted.fetch_add(flood(revision, 4 * PARALLEL, "noise").await.len(), Ordering::Relaxed);
            }
        }
    };
    let work = async {
        let begin = Instant::now();
        for number in 0.. {
            if number >= 10 && begin.elapsed() > Duration::from_secs(8) {
                break;
            }
            let name = format!("fresh-{number}");
            world.namespace(&name, &json!({})).await?;
            let path = format!("/apis/apps/v1/namespaces/{name}/deployments");
            let created = request(&world.admin, "POST", &path, &deployment("web")).await?;
            ensure!(containers(&created) == ["app", "envoy"], "{name}: {:?}", containers(&created));
            let known = world.create_promptly(DEPLOYMENTS, &deployment(&name)).await?;
            ensure!(containers(&known) == ["app", "envoy"], "{name}: {:?}", containers(&known));
        }
        Ok(())
    };
    let (worked, ()) = tokio::join!(
        async {
            let worked: Result<()> = work.await;
            is_over.store(true, Ordering::Relaxed);
            worked
        },
        noise
    );
    worked?;
    let posted = posted.load(Ordering::Relaxed);
    assert!(posted >= 300, "only {posted} hostile reviews came");
    eprintln!("beside {posted} hostile reviews");
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}

async fn reviews_that_name_no_registration_count_nothing() -> Result<()> {
    let (world, operator, caller) = scene(SERVER).await?;
    let counted = async || -> Result<Vec<String>> {
        let (_, text) = operator.get("/metrics").await?;
        let ours = |line: &&str| line.starts_with("scpol_injection");
        Ok(text.lines().filter(ours).map(str::to_owned).collect())
    };
    // Reports follow their answers.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (before, begin) = (counted().await?, operator.log().len());
    let good = review("default", &deployment("web")).to_string();
    let (status, text) = caller.post("mutate", UNKNOWN, good.as_bytes()).await?;
    let answer: Value = serde_json::from_str(&text)?;
    assert_eq!((status, answer["response"]["patchType"].as_str()), (200, Some("JSONPatch")), "it is answered: {text}");
    let conflicting = json!([{ "name": "envoy", "image": "other:1" }]);
    let mut conflict = deployment("conflict");
    conflict["spec"]["template"]["spec"]["containers"] = conflicting;
    let bodies = [
        b"garbage".to_vec(),
        review("../nodes", &deployment("web")).to_string().into_bytes(),
        review("default", &conflict).to_string().into_bytes(),
        good.into_bytes(),
    ];
    for number in 0..100 {
        let call = ["mutate", "validate"][number % 2];
        caller.post(call, UNKNOWN, &bodies[number % bodies.len()]).await?;
    }
    let waits = timing().webhook.unseen.max(timing().webhook.look + timing().controller.status_period);
    tokio::time::sleep(waits + Duration::from_secs(1)).await;
    assert_eq!(counted().await?, before);
    assert_eq!(condition(&world.cluster, "envoy", "Degraded").await?, None);
    let log = operator.log();
    let loud: Vec<_> = log[begin..].lines().filter(|line| !line.contains(r#""level":"DEBUG""#)).collect();
    assert!(loud.iter().all(|line| !line.contains("review") && !line.contains("Decided")), "{loud:#?}");
    Ok(())
}

async fn who_knows_no_registration_learns_nothing_of_rights() -> Result<()> {
    let world = World::with(ControlPlane::builder(SERVER).audit_log()).await?;
    world.cluster.apply_file(&file("config/rbac/author-webhook/role.yaml")).await?;
    let _operator = Operator::ready(&world.cluster, &["--author-check"]).await?;
    let api = SERVER.registration();
    let path = format!("/apis/admissionregistration.k8s.io/{api}/validatingwebhookconfigurations/author.scpol.dev");
    let caller = Caller::of(&world, &path).await?;
    let object = json!({ "metadata": { "name": "p" }, "spec": { "namespaces": ["default"] } });
    let mut body = review("", &object);
    body["request"]["resource"] = json!({ "group": "scpol.dev", "version": "v1alpha1", "resource": "sidecarpolicies" });
    body["request"]["userInfo"] = json!({ "username": "jo", "groups": ["system:masters"] });
    let body = body.to_string();
    let questions = || asked(&world).iter().filter(|(_, uri)| uri.contains("/subjectaccessreviews")).count();
    world.cluster.clear_audit()?;
    let posts = (0..50).map(|_| caller.post("author", UNKNOWN, body.as_bytes()));
    let told = futures::stream::iter(posts).buffer_unordered(PARALLEL).collect::<Vec<_>>().await;
    for answer in told {
        let (status, text) = answer?;
        let response: Value = serde_json::from_str(&text)?;
        assert_eq!((status, &response["response"]["allowed"]), (200, &json!(false)), "{text}");
        assert!(text.contains("has not seen registration"), "{text}");
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(questions(), 0);
    // Equal questions by a caller who knows it share an answer.
    let posts = (0..50).map(|_| caller.post("author", &caller.revision, body.as_bytes()));
    let told = futures::stream::iter(posts).buffer_unordered(PARALLEL).collect::<Vec<_>>().await;
    assert!(told.iter().all(|answer| answer.as_ref().is_ok_and(|(status, _)| *status == 200)), "{told:?}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!((1..10).contains(&questions()), "{} questions", questions());
    Ok(())
}

async fn what_tenants_write_does_not_reach_the_terminal(version: Version) -> Result<()> {
    const HOSTILE: &str = "a\u{1b}[2J\u{1b}]0;b\u{7}\u{9b}1m\u{202e}c";
    let (world, operator) = World::with(ControlPlane::builder(version)).await?.operated(&[]).await?;
    let judge = json!([{ "expression": "!has(object.metadata.labels.bad)", "message": HOSTILE }]);
    let mut spec = by("Webhook", sidecar("envoy"));
    spec["validations"] = judge;
    world.enforce("envoy", spec).await?;
    // A policy whose fault is told in its own words.
    let mut broken = by("Webhook", sidecar("envoy"));
    broken["matchConditions"] = json!([{ "name": "x", "expression": format!("object.{HOSTILE}") }]);
    let is_stored = world.policy("broken", broken).await.is_ok();
    let mut opted = deployment("web");
    opted["metadata"]["annotations"] = json!({ "scpol.dev/inject": HOSTILE });
    world.create(DEPLOYMENTS, &opted).await?;
    let mut bad = deployment("bad");
    bad["metadata"]["labels"]["bad"] = json!("x");
    within(LIMIT, "it is refused", || async { Ok(world.create(DEPLOYMENTS, &bad).await.is_err()) }).await?;
    let refused = world.create(DEPLOYMENTS, &bad).await.expect_err("it is refused").to_string();
    let safe = |printed: &str, what: &str| {
        let found: Vec<_> = printed.chars().filter(|c| is_unsafe(*c) && *c != '\n' && *c != '\t').collect();
        assert!(found.is_empty(), "{what}: {found:?} in {printed:?}");
    };
    safe(&refused, "the creator");
    assert!(refused.contains(r"a\u{1b}[2J"), "{refused}");
    if is_stored {
        within(LIMIT, "it is told", || async { Ok(condition(&world.cluster, "broken", "Ready").await?.is_some()) })
            .await?;
    }
    let manifest = world.cluster.dir().join("bad.json");
    std::fs::write(&manifest, bad.to_string())?;
    let manifest = manifest.to_str().context("a path")?;
    let commands: [&[&str]; 9] = [
        &["status"],
        &["status", "-o", "wide"],
        &["status", "envoy"],
        &["status", "broken"],
        &["explain", "deploy/web", "-n", "default"],
        &["explain", "deploy", "-A"],
        &["explain", "-f", manifest],
        &["check"],
        &["rollout", "status", "envoy"],
    ];
    let mut told = String::new();
    for command in commands {
        let (_, printed) = scpol(&world.cluster, command).await?;
        safe(&printed, &command.join(" "));
        told.push_str(&printed);
    }
    assert!(told.contains(r"\u{1b}[2J"), "what is hostile is shown, escaped: {told}");
    safe(&world.events("web").await?.join("\n"), "events");
    // JSON has the data as it is.
    let (_, printed) = scpol(&world.cluster, &["explain", "-f", manifest, "-o", "json"]).await?;
    let report: Value = serde_json::from_str(&printed)?;
    assert!(report.to_string().contains("\\u001b[2J"), "{report}");
    let log = operator.log();
    safe(&log, "the log");
    Ok(())
}
