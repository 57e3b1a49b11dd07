//! The webhook engine: the server and the certificates of the library in this process, registered by URL with what is rendered.

use crate::support::{LIMIT, within};
use crate::world::{DEPLOYMENTS, PODS, World, containers, deployment, pending, pod_template, request};
use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use controlplane::{ControlPlane, Version};
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use kube::{Client, Config};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use sidecar_policy::cluster::capabilities::Capabilities;
use sidecar_policy::engine::registration::shared_name;
use sidecar_policy::engine::webhook::authority::Lifetimes;
use sidecar_policy::engine::webhook::certs::{Certificates, SECRET};
use sidecar_policy::engine::webhook::render::{Endpoint, render, revision_of};
use sidecar_policy::engine::webhook::review::{LARGEST, PROBE_KEY, PROBE_REFUSE};
use sidecar_policy::engine::webhook::server::{self, Webhook};
use sidecar_policy::metrics::Metrics;
use sidecar_policy::policy::{Policies, Policy, Site};
use sidecar_policy::workload::Kind;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Where the operator would run.
const OPERATOR: &str = "scpol-system";
/// How often the certificates are looked at.
const POLL: Duration = Duration::from_millis(100);

/// Shows certificates, and counts how often.
#[derive(Debug)]
struct Counted {
    certificates: Arc<Certificates>,
    handshakes: AtomicUsize,
}

impl ResolvesServerCert for Counted {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.handshakes.fetch_add(1, Ordering::Relaxed);
        self.certificates.resolve(hello)
    }
}

/// A server, and a webhook that it calls.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) capabilities: Capabilities,
    pub(crate) webhook: Arc<Webhook>,
    certificates: Arc<Certificates>,
    counted: Arc<Counted>,
    endpoint: Endpoint,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Scene {
    pub(crate) async fn new(version: Version, site: Site) -> Result<Self> {
        Self::with(World::with(ControlPlane::builder(version)).await?, site, |_| false).await
    }

    /// In `world`, where groups of custom resources are asked about as well for which `is_wanted` is true.
    pub(crate) async fn with(world: World, site: Site, is_wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let capabilities = Capabilities::discover(&world.admin, is_wanted).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = Endpoint::Url(format!("https://{}", listener.local_addr()?));
        let metrics = Arc::new(Metrics::new());
        let lifetimes = Lifetimes { settle: SignedDuration::from_secs(2), ..Lifetimes::default() };
        let names = vec!["127.0.0.1".to_owned()];
        let certificates = Certificates::of_secret(world.admin.clone(), OPERATOR, names, metrics.clone());
        let certificates = Arc::new(certificates.with(POLL, lifetimes));
        certificates.refresh().await?;
        let webhook = Arc::new(Webhook::new(world.admin.clone(), Arc::new(site), metrics));
        let (stop, stopped) = watch::channel(false);
        let counted = Arc::new(Counted { certificates: certificates.clone(), handshakes: AtomicUsize::new(0) });
        let serving = tokio::spawn(server::serve(listener, counted.clone(), webhook.clone(), stopped));
        Ok(Self { world, capabilities, webhook, certificates, counted, endpoint, stop, serving })
    }

    fn policies(&self) -> Vec<Arc<Policy>> {
        self.webhook.policies.load().iter().cloned().collect()
    }

    fn rendered(&self, kind: &Kind) -> Result<Vec<Value>> {
        let (site, bundle) = (self.webhook.site.load(), self.certificates.ca_bundle());
        Ok(render(kind, &self.policies(), &self.capabilities, &site, &self.endpoint, bundle.as_deref())?)
    }

    /// Where registrations of that shape are.
    fn collection(registration: &Value) -> Result<String> {
        let api = registration["apiVersion"].as_str().context("an apiVersion")?;
        let kind = registration["kind"].as_str().context("a kind")?;
        Ok(format!("/apis/{api}/{}s", kind.to_lowercase()))
    }

    /// Puts `policies` in force, and waits until probes show it.
    pub(crate) async fn register(&self, policies: Vec<Policy>) -> Result<()> {
        let policies = Policies::new(policies.into_iter().map(Arc::new));
        let kinds: BTreeMap<Arc<Kind>, ()> = policies.kinds().map(|kind| (kind.clone(), ())).collect();
        self.webhook.policies.store(Arc::new(policies));
        for kind in kinds.into_keys() {
            self.write(&kind).await?;
            self.in_force(&kind).await?;
        }
        Ok(())
    }

    /// Writes the registrations of `kind`, over those that are there.
    async fn write(&self, kind: &Kind) -> Result<()> {
        for mut registration in self.rendered(kind)? {
            let collection = Self::collection(&registration)?;
            let path = format!("{collection}/{}", shared_name(kind));
            match self.world.get(&path).await? {
                None => drop(request(&self.world.admin, "POST", &collection, &registration).await?),
                Some(there) => {
                    registration["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"].clone();
                    request(&self.world.admin, "PUT", &path, &registration).await?;
                }
            }
        }
        Ok(())
    }

    /// Waits until creates of `kind` show the revisions that are registered.
    async fn in_force(&self, kind: &Kind) -> Result<()> {
        for registration in self.rendered(kind)? {
            let revision = revision_of(&registration).context("a revision")?.to_owned();
            let refuses = registration["kind"] == "ValidatingWebhookConfiguration";
            let what = format!("{} {revision} of {kind:?} is in force", registration["kind"]);
            within(LIMIT, &what, || async {
                let answer = self.probe(kind, if refuses { PROBE_REFUSE } else { "" }).await?;
                Ok(match answer {
                    Ok(shown) => shown["metadata"]["annotations"][PROBE_KEY] == revision,
                    Err(message) if refuses => message.contains(&revision),
                    Err(message) => bail!(message),
                })
            })
            .await?;
        }
        Ok(())
    }

    /// What a create of a probe gives, or with which message it is refused; nothing is stored.
    async fn probe(&self, kind: &Kind, value: &str) -> Result<std::result::Result<Value, String>> {
        let address = self.capabilities.resource(kind).context("it is served")?;
        let mut body = json!({
            "apiVersion": address.api_version, "kind": address.kind,
            "metadata": { "name": "probe", "namespace": OPERATOR, "labels": { PROBE_KEY: value } },
        });
        // The namespace takes only what the strictest level of Pod Security lets through.
        let strict = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
        let pod = json!({
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{ "name": "probe", "image": "none:1", "securityContext": strict }],
        });
        let labels = json!({ "app": "probe" });
        match address.kind.as_str() {
            "Pod" => body["spec"] = pod,
            "CronJob" => {
                let template = json!({ "spec": { "restartPolicy": "Never", "containers": pod["containers"] } });
                body["spec"] = json!({ "schedule": "0 0 1 1 *", "jobTemplate": { "spec": { "template": template } } });
            }
            "PersistentVolumeClaim" => {
                body["spec"] =
                    json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } });
            }
            _ => {
                let template = json!({ "metadata": { "labels": labels }, "spec": pod });
                body["spec"] = json!({ "selector": { "matchLabels": labels }, "template": template });
            }
        }
        if address.kind == "StatefulSet" {
            body["spec"]["serviceName"] = json!("probe");
        }
        let root = if kind.group.is_empty() { "/api" } else { "/apis" };
        // On 1.13 even what is not stored would wait for foreign initializers.
        let query = "dryRun=All&includeUninitialized=1";
        let path = format!("{root}/{}/namespaces/{OPERATOR}/{}?{query}", address.api_version, kind.resource);
        match request(&self.world.admin, "POST", &path, &body).await {
            Ok(shown) => Ok(Ok(shown)),
            Err(kube::Error::Api(status)) => Ok(Err(status.message)),
            Err(error) => Err(error.into()),
        }
    }

    /// The Secret of the certificates.
    async fn secret(&self) -> Result<Value> {
        self.world.get(&format!("/api/v1/namespaces/{OPERATOR}/secrets/{SECRET}")).await?.context("it is there")
    }

    /// Stops in good order.
    async fn stop(self) -> Result<World> {
        self.stop.send_replace(true);
        self.serving.await?;
        Ok(self.world)
    }
}

pub(crate) fn site() -> Site {
    Site::new(OPERATOR, ["vault".to_owned()], [])
}

/// A policy as it would be read from the server.
pub(crate) fn policy(object: &Value) -> Result<Policy> {
    let mut object = object.clone();
    object["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
    Policy::parse(&object, &site()).map_err(|faults| anyhow::anyhow!("{faults:?}"))
}

fn simple(name: &str, more: &Value) -> Result<Policy> {
    let targets = json!([{ "group": "", "resource": "pods" }, { "group": "apps", "resource": "deployments" }]);
    let mut spec = json!({ "targets": targets, "template": { "containers": [{ "name": name, "image": "envoy:1" }] } });
    for (field, value) in more.as_object().context("fields")? {
        spec[field] = value.clone();
    }
    policy(&json!({ "metadata": { "name": name }, "spec": spec }))
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
        "spec": pod_template(name)["spec"],
    })
}

fn kinds() -> [&'static Arc<Kind>; 2] {
    [("", "pods"), ("apps", "deployments")].map(|(group, resource)| Kind::find(group, resource).expect("built-in"))
}

/// The message of a refusal.
async fn refused(scene: &Scene, path: &str, body: &Value) -> Result<String> {
    match scene.world.create(path, body).await {
        Ok(created) => bail!("it was let in: {created}"),
        Err(error) => Ok(error.to_string()),
    }
}

#[tokio::test]
async fn what_matches_gets_its_sidecar_at_create_on_1_13() -> Result<()> {
    what_matches_gets_its_sidecar_at_create(Version::V1_13).await
}

#[tokio::test]
async fn what_matches_gets_its_sidecar_at_create_on_1_36() -> Result<()> {
    what_matches_gets_its_sidecar_at_create(Version::V1_36).await
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
    assert!(!scene.webhook.metrics.render().contains(injected), "a dry run is not counted");
    for (path, body) in [(PODS, pod("web")), (PODS, generated), (DEPLOYMENTS, deployment("web"))] {
        let created = world.create_promptly(path, &body).await?;
        assert_eq!(containers(&created), ["app", "envoy"]);
    }
    assert!(scene.webhook.metrics.render().contains(&format!("{injected} 3")), "{}", scene.webhook.metrics.render());
    if version == Version::V1_13 {
        let mut old = deployment("old");
        old["apiVersion"] = json!("extensions/v1beta1");
        let path = "/apis/extensions/v1beta1/namespaces/default/deployments";
        assert_eq!(containers(&world.create(path, &old).await?), ["app", "envoy"]);
    }
    // The Namespace of a workload is read where a policy asks for its labels.
    let shop = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop", "labels": { "team": "shop" } } });
    request(&world.admin, "POST", "/api/v1/namespaces", &shop).await?;
    let there = world.create("/api/v1/namespaces/shop/pods", &pod("web")).await?;
    assert_eq!(containers(&there), ["app", "envoy", "far"]);
    let protected = request(&world.admin, "POST", "/api/v1/namespaces/kube-system/pods", &pod("web")).await?;
    assert_eq!(containers(&protected), ["app"]);
    // What cannot be injected comes in as it is.
    let mut conflict = pod("conflict");
    conflict["spec"]["containers"][0]["name"] = json!("envoy");
    assert_eq!(containers(&world.create(PODS, &conflict).await?), ["envoy"]);
    assert!(scene.webhook.metrics.render().contains(r#"policy="envoy",reason="NameConflict",result="failed"} 1"#));

    // Nobody is there any more: creates go on.
    let world = scene.stop().await?;
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("later")).await?), ["app"]);
    Ok(())
}

#[tokio::test]
async fn what_must_not_be_stored_is_refused_with_the_reason() -> Result<()> {
    let scene = Scene::new(Version::V1_36, site()).await?;
    let world = &scene.world;
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
    scene
        .register(vec![
            simple("strict", &with(at("strict"), fail))?,
            simple("judge", &with(at("judge"), json!({ "targets": pods, "validations": demand })))?,
            simple("first", &with(at("order"), json!({ "targets": pods, "template": labels })))?,
            simple("second", &with(mesh, json!({ "targets": pods })))?,
        ])
        .await?;
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
    let metrics = scene.webhook.metrics.render();
    for series in [
        r#"policy="strict",reason="NameConflict",result="rejected"} 1"#,
        r#"policy="judge",reason="ValidationFailed",result="rejected"} 1"#,
        r#"policy="judge",reason="Programmed",result="injected"} 1"#,
    ] {
        assert!(metrics.contains(series), "{series} in\n{metrics}");
    }

    // Without the call that injects, the other one sees that the sidecar is missing.
    let mutating = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    world.delete(&format!("{mutating}/scpol-pods")).await?;
    within(LIMIT, "nobody injects", || async { Ok(refused(&scene, PODS, &labelled("bare", "strict")).await.is_ok()) })
        .await?;
    let told = refused(&scene, PODS, &labelled("bare", "strict")).await?;
    assert!(told.contains("SidecarPolicy `strict` refuses this Pod: SCP0213: "), "{told}");
    assert_eq!(containers(&world.create(PODS, &labelled("other", "other")).await?), ["app"]);
    // And without either, nothing that a policy with Fail may be for is let in; elsewhere all goes on.
    let world = scene.stop().await?;
    let error = world.create(PODS, &labelled("alone", "strict")).await.expect_err("it must be refused");
    assert!(error.to_string().contains("failed calling webhook \"validate.scpol.dev\""), "{error}");
    request(&world.admin, "POST", "/api/v1/namespaces/kube-system/pods", &labelled("alone", "strict")).await?;
    Ok(())
}

#[tokio::test]
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

/// A client of the webhook itself, which trusts it as API servers do.
fn caller(scene: &Scene) -> Result<Client> {
    let Endpoint::Url(url) = &scene.endpoint else { bail!("it has a URL") };
    let mut config = Config::new(url.parse()?);
    config.default_retry = false;
    let bundle = String::from_utf8(scene.certificates.ca_bundle().context("a bundle")?)?;
    let lines: String = bundle.lines().skip(1).take_while(|line| !line.starts_with('-')).collect();
    config.root_cert = Some(vec![STANDARD.decode(lines)?]);
    Ok(Client::try_from(config)?)
}

/// Posts bytes; gives the status, the headers and the body of the answer.
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

#[tokio::test]
async fn whatever_is_posted_gets_its_answer_and_nothing_of_it_stops_the_server() -> Result<()> {
    let scene = Scene::new(Version::V1_36, site()).await?;
    scene.register(vec![simple("envoy", &json!({}))?]).await?;
    let client = caller(&scene)?;
    let path = "/mutate/0123456789abcdef";
    let good = review("admission.k8s.io/v1", &pod("web"));
    let without = |field: &str| {
        let mut review = good.clone();
        review["request"].as_object_mut().expect("an object").remove(field);
        review.to_string().into_bytes()
    };
    let version = review("admission.k8s.io/v2", &pod("web")).to_string().into_bytes();
    let long = review("admission.k8s.io/v1", &json!({ "metadata": {}, "long": "x".repeat(LARGEST) }));
    let cases: [(Vec<u8>, u16, &str); 9] = [
        (b"garbage".to_vec(), 400, "SCP0212: the body is no AdmissionReview"),
        (vec![0xff; 1000], 400, "SCP0212: the body is no AdmissionReview"),
        (Vec::new(), 400, "SCP0212: the body is no AdmissionReview"),
        (vec![b'['; 100_000], 400, "SCP0212: the body is no AdmissionReview"),
        (b"{}".to_vec(), 400, "SCP0212: `kind` is ``, not `AdmissionReview`"),
        (version, 400, "SCP0212: `apiVersion` is `admission.k8s.io/v2`"),
        (without("object"), 400, "SCP0212: `request.object` is missing"),
        (without("uid"), 400, "SCP0212: `request.uid` is missing"),
        (long.to_string().into_bytes(), 413, "SCP0212: the review is larger than"),
    ];
    for (body, status, told) in cases {
        let answer = post(&client, path, body).await;
        // Of what is too large the rest is not read: the connection may break before the answer has been.
        let (found, _, text) = match answer {
            Err(_) if status == 413 => continue,
            answer => answer?,
        };
        assert_eq!((found, text.starts_with(told)), (status, true), "{text}");
    }
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
    assert_eq!(scene.webhook.metrics.panics.get(), 0);

    // While it stops, who has a connection gets his answer, and is told to go; nobody else gets one.
    scene.stop.send_replace(true);
    let stranger = caller(&scene)?;
    within(LIMIT, "no connection is taken", || async { Ok(post(&stranger, path, good.to_string()).await.is_err()) })
        .await?;
    let (status, headers, _) = post(&client, path, good.to_string()).await?;
    assert_eq!((status, headers.get("connection").map(|value| value.as_bytes())), (200, Some(&b"close"[..])));
    tokio::time::timeout(LIMIT, scene.serving).await??;
    Ok(())
}

#[tokio::test]
async fn no_create_fails_while_the_certificates_are_renewed_on_1_13() -> Result<()> {
    no_create_fails_while_the_certificates_are_renewed(Version::V1_13).await
}

#[tokio::test]
async fn no_create_fails_while_the_certificates_are_renewed_on_1_36() -> Result<()> {
    no_create_fails_while_the_certificates_are_renewed(Version::V1_36).await
}

/// `SCPOL_ROTATION_CREATES` says how many creates there are at least.
async fn no_create_fails_while_the_certificates_are_renewed(version: Version) -> Result<()> {
    let least: usize = std::env::var("SCPOL_ROTATION_CREATES").ok().map_or(Ok(2000), |count| count.parse())?;
    let scene = Arc::new(Scene::new(version, site()).await?);
    // Each call reads a Namespace, so that many are under way at once.
    let slow = json!({ "namespaceSelector": { "matchExpressions": [{ "key": "team", "operator": "DoesNotExist" }] } });
    scene.register(vec![simple("envoy", &slow)?]).await?;
    let first = scene.certificates.ca_bundle().context("a bundle")?;
    let (renewing, publishing) = (scene.clone(), scene.clone());
    let renewing = tokio::spawn(async move { renewing.certificates.run().await });
    // As the controller does it: registrations first, and then the word that they are there.
    let publishing = tokio::spawn(async move {
        let mut changed = publishing.certificates.changed();
        while changed.changed().await.is_ok() {
            let bundle = publishing.certificates.ca_bundle().context("a bundle")?;
            // A slow one: meanwhile, API servers know nothing of the change.
            tokio::time::sleep(10 * POLL).await;
            for kind in kinds() {
                publishing.write(kind).await?;
            }
            publishing.certificates.is_published(&bundle, Timestamp::now());
        }
        anyhow::Ok(())
    });
    let (done, ended) = watch::channel(false);
    let (created, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    // More than an API server keeps connections for: some handshakes are always under way.
    let creators: Vec<_> = (0..64)
        .map(|_| {
            let (scene, ended, created, failed) = (scene.clone(), ended.clone(), created.clone(), failed.clone());
            tokio::spawn(async move {
                while !*ended.borrow() {
                    let answer = scene.world.create(&format!("{PODS}?dryRun=All"), &pod("web")).await;
                    match answer.map(|created| containers(&created)) {
                        Ok(found) if found == ["app", "envoy"] => drop(created.fetch_add(1, Ordering::Relaxed)),
                        other => failed.lock().expect("nobody panics with it").push(format!("{other:?}")),
                    }
                }
            })
        })
        .collect();
    let leaf = || async { anyhow::Ok(scene.secret().await?["data"]["tls.crt"].clone()) };
    let before: Value = leaf().await?;
    let path = format!("/api/v1/namespaces/{OPERATOR}/secrets/{SECRET}");
    scene.world.patch(&path, &json!([{ "op": "remove", "path": "/data/tls.crt" }])).await?;
    within(LIMIT, "another leaf is there", || async {
        Ok(leaf().await.is_ok_and(|now: Value| now.is_string() && now != before))
    })
    .await?;
    assert_eq!(scene.certificates.ca_bundle().as_ref(), Some(&first), "the authority is the same");
    scene.world.delete(&path).await?;
    let has = |both: bool, bundle: Vec<u8>| bundle != first && both == bundle.ends_with(&first);
    within(LIMIT, "both authorities are published", || async {
        Ok(has(true, scene.certificates.ca_bundle().unwrap_or_default()))
    })
    .await?;
    within(LIMIT, "the old authority is gone", || async {
        Ok(has(false, scene.certificates.ca_bundle().unwrap_or_default()))
    })
    .await?;
    let handshakes = scene.counted.handshakes.load(Ordering::Relaxed);
    let enough = created.load(Ordering::Relaxed).max(least / 2) + least / 2;
    within(10 * LIMIT, "there are enough creates", || async { Ok(created.load(Ordering::Relaxed) >= enough) }).await?;
    done.send_replace(true);
    for creator in creators {
        creator.await?;
    }
    let failed = failed.lock().expect("nobody panics with it");
    assert!(
        failed.is_empty(),
        "{} of {} failed: {:?}",
        failed.len(),
        created.load(Ordering::Relaxed),
        &failed[..failed.len().min(5)]
    );
    ensure!(!publishing.is_finished() && !renewing.is_finished(), "somebody has given up");
    renewing.abort();
    publishing.abort();
    let all = scene.counted.handshakes.load(Ordering::Relaxed);
    eprintln!("{} creates, none failed; {all} handshakes", created.load(Ordering::Relaxed));
    ensure!(handshakes > 100, "too few handshakes to prove anything: {handshakes}");
    Ok(())
}
