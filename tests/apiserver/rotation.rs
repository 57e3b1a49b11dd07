//! Renewal of certificates during creates.

use crate::support::{LIMIT, within};
use crate::webhook_scene::{OPERATOR, POLL, Scene, kinds, simple, site};
use crate::world::{PODS, containers, pod};
use anyhow::{Context, Result, ensure};
use controlplane::{ControlPlane, Version};
use serde_json::{Value, json};
use sidecar_policy::engine::webhook::certs::SECRET;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// More than an API server's idle connections, so that some handshakes always occur.
const CLIENTS: usize = 64;
/// The number of lines of the API server's log that are searched for failed calls.
const LINES: usize = 10_000;

/// The results of the creates.
pub(crate) struct Rotation {
    /// The number with their sidecar.
    pub(crate) created: usize,
    /// The errors of creates, and the API server's log lines about failed calls that were ignored.
    pub(crate) failed: Vec<String>,
    /// The number without their sidecar although no call failed.
    pub(crate) late: usize,
    /// The number of handshakes until the last certificate was in use.
    pub(crate) handshakes: usize,
}

impl Rotation {
    /// Renews the leaf and then the authority, as the operator does, while clients create. Continues until there are
    /// `least` creates.
    pub(crate) async fn run(version: Version, least: usize) -> Result<Self> {
        let scene = Arc::new(Scene::new(version, site()).await?);
        scene.register(vec![simple("envoy", &json!({}))?]).await?;
        let (renewing, publishing) = keep(&scene);
        let (done, ended) = watch::channel(false);
        let tally = Arc::new(Tally::default());
        let creators: Vec<_> =
            (0..CLIENTS).map(|_| tokio::spawn(create_until(scene.clone(), ended.clone(), tally.clone()))).collect();
        renew(&scene).await?;
        let handshakes = scene.counted.handshakes.load(Ordering::Relaxed);
        let enough = tally.created.load(Ordering::Relaxed).max(least / 2) + least / 2;
        let all = || async { Ok(tally.created.load(Ordering::Relaxed) >= enough) };
        within(10 * LIMIT, "there are enough creates", all).await?;
        done.send_replace(true);
        for creator in creators {
            creator.await?;
        }
        ensure!(!publishing.is_finished() && !renewing.is_finished(), "somebody has given up");
        renewing.abort();
        publishing.abort();
        let failed_open = failed_open(&scene.world.cluster);
        let [created, bare] = [&tally.created, &tally.bare].map(|count| count.load(Ordering::Relaxed));
        let late = bare.saturating_sub(failed_open.len());
        let mut failed = std::mem::take(&mut *tally.refused.lock().expect("nobody panics with it"));
        failed.extend(failed_open);
        Ok(Self { created, failed, late, handshakes })
    }
}

/// The API server's log lines about failed calls that were ignored.
pub(crate) fn failed_open(cluster: &ControlPlane) -> Vec<String> {
    let log = cluster.log_tail(LINES);
    log.lines().filter(|line| line.contains("failing open")).map(str::to_owned).collect()
}

/// Renews certificates, and publishes them as the controller does: first the registrations, then the report.
fn keep(scene: &Arc<Scene>) -> (JoinHandle<()>, JoinHandle<Result<()>>) {
    let (renewing, publishing) = (scene.clone(), scene.clone());
    let renewing = tokio::spawn(async move { renewing.certificates.run().await });
    let publishing = tokio::spawn(async move {
        let mut changed = publishing.certificates.changed();
        while changed.changed().await.is_ok() {
            let bundle = publishing.certificates.ca_bundle().context("a bundle")?;
            // Slowly, so that API servers do not see the change for a while.
            tokio::time::sleep(10 * POLL).await;
            for kind in kinds() {
                publishing.write(kind).await?;
            }
            publishing.certificates.is_published(&bundle);
        }
        Ok(())
    });
    (renewing, publishing)
}

#[derive(Default)]
struct Tally {
    created: AtomicUsize,
    bare: AtomicUsize,
    refused: Mutex<Vec<String>>,
}

async fn create_until(scene: Arc<Scene>, ended: watch::Receiver<bool>, tally: Arc<Tally>) {
    while !*ended.borrow() {
        match scene.world.create(&format!("{PODS}?dryRun=All"), &pod("web")).await {
            Ok(created) if containers(&created) == ["app", "envoy"] => tally.created.fetch_add(1, Ordering::Relaxed),
            Ok(_) => tally.bare.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                tally.refused.lock().expect("nobody panics with it").push(error.to_string());
                continue;
            }
        };
    }
}

/// Renews the leaf, and then everything, and waits until nothing old is trusted.
async fn renew(scene: &Scene) -> Result<()> {
    let first = scene.certificates.ca_bundle().context("a bundle")?;
    let leaf = || async { anyhow::Ok(scene.secret().await?["data"]["tls.crt"].clone()) };
    let before: Value = leaf().await?;
    let path = format!("/api/v1/namespaces/{OPERATOR}/secrets/{SECRET}");
    scene.world.patch(&path, &json!([{ "op": "remove", "path": "/data/tls.crt" }])).await?;
    within(LIMIT, "another leaf is there", || async {
        Ok(leaf().await.is_ok_and(|now: Value| now.is_string() && now != before))
    })
    .await?;
    ensure!(scene.certificates.ca_bundle().as_ref() == Some(&first), "the authority is another one");
    scene.world.delete(&path).await?;
    let has = |both: bool, bundle: Vec<u8>| bundle != first && both == bundle.ends_with(&first);
    within(LIMIT, "both authorities are published", || async {
        Ok(has(true, scene.certificates.ca_bundle().unwrap_or_default()))
    })
    .await?;
    within(LIMIT, "the old authority is gone", || async {
        Ok(has(false, scene.certificates.ca_bundle().unwrap_or_default()))
    })
    .await
}
