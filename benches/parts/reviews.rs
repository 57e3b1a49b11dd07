//! Reviews in the webhook: the time of one in this process, and the memory of the operator after many.

use super::figure::{Figure, at_most, told};
use super::load::{operator, phase, resident_megabytes};
use super::objects::{pod_of, policies_unlike};
use super::rivals::{ADMISSION, sidecar};
use super::statistics::{median, quantile};
use crate::world::World;
use anyhow::{Context, Result, anyhow, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use controlplane::{ControlPlane, Version};
use http::{Request, Uri};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use sidecar_policy::policy::{Policies, Site};
use sidecar_policy::review::{Call, Caller, Review};
use std::time::Instant;

/// The number of timed reviews, after a warm-up that does not count, because the first reviews are slow.
const SAMPLES: usize = 20_000;
const WARM_UP: usize = 1_000;
/// The kilobytes per size of a pod, which determine the number of timed reviews.
const VOLUME: usize = 100_000;
/// The number of reviews that are posted to the operator, and of concurrent clients.
const POSTED: usize = 100_000;
const CLIENTS: usize = 16;

/// Parse, decision, plan and answer: everything except the network, with 100 policies of which ten match.
pub(super) fn handler(figures: &mut Vec<Figure>) -> Result<()> {
    let site = Site::new("scpol-system", [], []);
    let policies = policies_unlike(100, &site)?;
    let ten = review(&pod_of(10));
    let times: Vec<f64> = timed(&ten, WARM_UP + SAMPLES, &policies, &site)?.split_off(WARM_UP);
    let at = |share| quantile(times.clone(), share);
    figures.extend([
        told("review of a 10 KB pod, 100 policies, p50", at(0.5), "us"),
        at_most("review of a 10 KB pod, 100 policies, p99", at(0.99), "us", 1_000.0),
        told("review of a 10 KB pod, 100 policies, p99.9", at(0.999), "us"),
    ]);
    for (shape, pod) in [("variables", pod_of as fn(usize) -> Value), ("containers", crowd_of)] {
        let per_byte = |kilobytes: usize| -> Result<f64> {
            let body = review(&pod(kilobytes));
            let times = timed(&body, (VOLUME / kilobytes).max(20), &policies, &site)?;
            Ok(median(times) * 1_000.0 / body.len() as f64)
        };
        let [ten, hundred, thousand] = [per_byte(10)?, per_byte(100)?, per_byte(1_000)?];
        figures.extend([
            told(format!("review of a 10 KB pod of many {shape}"), ten, "ns/B"),
            told(format!("review of a 100 KB pod of many {shape}"), hundred, "ns/B"),
            told(format!("review of a 1 MB pod of many {shape}"), thousand, "ns/B"),
            at_most(format!("time for a byte of 1 MB against 100 KB, many {shape}"), thousand / hundred, "ratio", 1.5),
            at_most(format!("time for a byte of 1 MB against 10 KB, many {shape}"), thousand / ten, "ratio", 1.5),
        ]);
    }
    Ok(())
}

/// The time of each of `count` answers to `body`, in microseconds.
fn timed(body: &[u8], count: usize, policies: &Policies, site: &Site) -> Result<Vec<f64>> {
    let once = || {
        let start = Instant::now();
        let review = Review::parse(body).map_err(|invalid| anyhow!("{invalid}"))?;
        let caller = Caller { call: Call::Mutate, revision: None, policies, listed: None };
        let answer = review.answer(&caller, site, None);
        let took = start.elapsed().as_secs_f64() * 1e6;
        let injected = answer.decided.map(|decided| decided.decision.inject.len());
        ensure!(injected == Some(policies.iter().count() / 10), "{injected:?} were injected");
        Ok(took)
    };
    (0..count).map(|_| once()).collect()
}

/// A pod of about `kilobytes` of JSON, most of it containers, which are all processed.
fn crowd_of(kilobytes: usize) -> Value {
    let mut pod = pod_of(0);
    let container = |number: usize| {
        json!({
            "name": format!("app-{number:05}"), "image": "app:1", "imagePullPolicy": "IfNotPresent",
            "ports": [{ "containerPort": 1_000 + number, "protocol": "TCP" }],
            "env": [{ "name": "NAME", "value": "x".repeat(110) }],
            "volumeMounts": [{ "name": "data", "mountPath": "/data" }], "resources": {},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        })
    };
    let size = container(0).to_string().len() + 1;
    pod["spec"]["containers"] = (0..(kilobytes * 1_000).div_ceil(size)).map(container).collect();
    pod["spec"]["volumes"] = json!([{ "name": "data", "emptyDir": {} }]);
    pod
}

/// A review as from a current API server.
fn review(pod: &Value) -> Vec<u8> {
    let (kind, resource) = (
        json!({ "group": "", "version": "v1", "kind": "Pod" }),
        json!({ "group": "", "version": "v1", "resource": "pods" }),
    );
    let review = json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "kind": kind, "requestKind": kind, "resource": resource,
            "requestResource": resource, "name": "web", "namespace": "default", "operation": "CREATE",
            "userInfo": { "username": "creator", "groups": ["system:authenticated"] },
            "object": pod, "oldObject": null, "dryRun": false,
            "options": { "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1" },
        },
    });
    review.to_string().into_bytes()
}

/// The operator's memory after many reviews by TLS.
pub(super) async fn memory(figures: &mut Vec<Figure>) -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST)).await?;
    let operator = operator(&world.cluster, &[]).await?;
    let targets = json!([{ "group": "", "resource": "pods" }]);
    world
        .enforce("bench", json!({ "engine": "Webhook", "targets": targets, "template": { "containers": [sidecar()] } }))
        .await?;
    let (client, path) = caller(&world).await?;
    let before = resident_megabytes(operator.pid(), "VmRSS")?;
    let body = review(&pod_of(10));
    let (client, path, body) = (&client, path.as_str(), body.as_slice());
    let posted = phase(CLIENTS, POSTED, |_| post(client, path, body)).await?;
    let counted = operator
        .metric(r#"scpol_injections_total{engine="Webhook",policy="bench",reason="Programmed",result="injected"}"#);
    ensure!(counted.await? as usize >= POSTED, "the operator has not counted all reviews");
    figures.extend([
        told("webhook: RSS before the first review", before, "MB"),
        at_most(
            "webhook: RSS after 100 000 reviews of 10 KB pods, 16 at once",
            resident_megabytes(operator.pid(), "VmRSS")?,
            "MB",
            24.0,
        ),
        told("webhook: the most that it has held", resident_megabytes(operator.pid(), "VmHWM")?, "MB"),
        told("webhook: reviews a second, 16 at once", posted.rate, "1/s"),
        told("webhook: a review by TLS, 16 at once, p50", posted.p50, "ms"),
        told("webhook: a review by TLS, 16 at once, p99", posted.p99, "ms"),
    ]);
    operator.kill().await?;
    world.cluster.stop().await;
    Ok(())
}

/// A client of the registered webhook for pods, which trusts it as the API server does, and the called path.
async fn caller(world: &World) -> Result<(Client, String)> {
    let registration = world.get(&format!("{ADMISSION}/v1/mutatingwebhookconfigurations/scpol-pods")).await?;
    let registration = registration.context("our registration")?;
    let to = &registration["webhooks"][0]["clientConfig"];
    let url: Uri = to["url"].as_str().context("a URL")?.parse()?;
    let bundle = STANDARD.decode(to["caBundle"].as_str().context("a bundle")?)?;
    let mut config = Config::new(url.clone());
    config.default_retry = false;
    let trusted = CertificateDer::pem_slice_iter(&bundle).map(|der| Ok(der?.to_vec()));
    config.root_cert = Some(trusted.collect::<Result<_>>()?);
    config.cluster_url =
        format!("{}://{}", url.scheme_str().unwrap_or("https"), url.authority().context("an address")?).parse()?;
    Ok((Client::try_from(config)?, url.path().to_owned()))
}

async fn post(client: &Client, path: &str, body: &[u8]) -> Result<()> {
    let request = Request::post(path).header("Content-Type", "application/json").body(Body::from(body.to_vec()))?;
    let answer = client.send(request).await?;
    let status = answer.status();
    let text = answer.into_body().collect().await?.to_bytes();
    ensure!(status.is_success() && text.windows(9).any(|part| part == br#""patch":""#), "{status}: {text:?}");
    Ok(())
}
