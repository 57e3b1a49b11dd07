//! F24: the webhook's certificates are damaged, or the registration trusts another authority.

use crate::chaos::scene::{RECOVERY, Scene, first};
use crate::chaos::stories::{in_force, well};
use crate::prelude::*;
use k8s_openapi::ByteString;

/// While an operator runs, and before it starts: the Secret is deleted, damaged, expired, or from an untrusted
/// authority; or the registration trusts another one. Each time, the webhook soon injects again.
pub(crate) async fn spoilt(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    let is_there = scene.world.get(&format!("{SECRETS}/scpol-webhook")).await?.is_some();
    ensure!(is_there, "there are no certificates to spoil: this proves nothing");
    let [ca, ca_key, crt, key] = certificate(&NAMES, 2090)?;
    let [old_ca, old_ca_key, old_crt, old_key] = certificate(&NAMES, 2021)?;
    let spoilt = [
        None,
        Some(["?", "\u{0}", "-----BEGIN CERTIFICATE-----", ""]),
        Some([&old_ca, &old_ca_key, &old_crt, &old_key].map(String::as_str)),
        Some([&ca, &ca_key, &crt, &key].map(String::as_str)),
    ];
    let all = first(10 * spoilt.len() + 5);
    for (files, batch) in spoilt.into_iter().zip(all.chunks(10)) {
        let shown = shown(scene);
        store(scene, files).await?;
        scene.create_stubbornly(batch[..5].to_vec()).await?;
        noticed(scene, files, shown).await?;
        scene.works().await?;
        scene.kill();
        store(scene, files).await?;
        scene.ready().await?;
        scene.create_stubbornly(batch[5..].to_vec()).await?;
        scene.works().await?;
    }
    // By now the last certificate is our own.
    let [stranger, ..] = certificate(&NAMES, 2090)?;
    trust(scene, &stranger).await?;
    within(RECOVERY, "the registration trusts ours again", || async { Ok(trusted(scene).await? != bundle(&stranger)) })
        .await?;
    scene.create_stubbornly(all[10 * spoilt.len()..].to_vec()).await?;
    well(scene, &all).await
}

/// Stores these files as the webhook's, or deletes the Secret.
async fn store(scene: &Scene, files: Option<[&str; 4]>) -> Result<()> {
    let path = format!("{SECRETS}/scpol-webhook");
    let is_there = scene.world.get(&path).await?.is_some();
    let Some(files) = files else {
        return if is_there { scene.world.delete(&path).await } else { Ok(()) };
    };
    let (method, path) = if is_there { ("PUT", path.as_str()) } else { ("POST", SECRETS) };
    request(&scene.world.admin, method, path, &secret(files)).await?;
    Ok(())
}

/// The number of certificate changes in the log.
fn shown(scene: &Scene) -> usize {
    scene.log().matches("shows another certificate").count()
}

/// Waits until the operator has repaired the Secret, or uses a valid certificate from it. `before` is the earlier
/// number of certificate changes.
async fn noticed(scene: &Scene, files: Option<[&str; 4]>, before: usize) -> Result<()> {
    let spoilt = files.map(|files| secret(files)["data"]["tls.crt"].clone());
    within(timing().webhook.certificate_poll + RECOVERY, "the operator has looked at the Secret", || async {
        let stored = scene.world.get(&format!("{SECRETS}/scpol-webhook")).await?;
        let is_mended = stored.is_some_and(|stored| Some(&stored["data"]["tls.crt"]) != spoilt.as_ref());
        Ok(is_mended || shown(scene) > before)
    })
    .await
}

const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/scpol-deployments.apps";

/// Makes the registration trust this authority.
async fn trust(scene: &Scene, ca: &str) -> Result<()> {
    let edit = json!([{ "op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle(ca) }]);
    let edited = scene.world.patch(REGISTRATION, &edit).await?;
    ensure!(edited["webhooks"][0]["clientConfig"]["caBundle"] == bundle(ca), "it was not edited: this proves nothing");
    Ok(())
}

/// The CA bundle of the registration.
async fn trusted(scene: &Scene) -> Result<Value> {
    let stored = scene.world.get(REGISTRATION).await?.context("not registered")?;
    Ok(stored["webhooks"][0]["clientConfig"]["caBundle"].clone())
}

fn bundle(ca: &str) -> Value {
    json!(ByteString(ca.as_bytes().to_vec()))
}
