//! `scpol support`: one archive for a bug report. It has no Secret, and of what may be one only the name.

mod archive;
mod collected;
mod redacted;

use super::installed::{Installed, OPERATOR, Piece};
use super::output::{counted, remark};
use super::site::OperatorOptions;
use super::{Cluster, End, live};
use crate::cluster::api::path;
use crate::cluster::client::call;
use crate::cluster::object::Object;
use crate::cluster::{policies, revisions};
use anyhow::{Context, Result};
use archive::gzipped;
use clap::Args;
use collected::Collected;
use http::Request;
use kube::Client;
use kube::api::ListParams;
use redacted::Redaction;
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

/// The port of the operator for `/metrics`.
const METRICS: u16 = 8080;
/// The most bytes of a log that the server sends.
const LOG: usize = 1 << 20;

#[derive(Args, Debug)]
pub(super) struct SupportOptions {
    /// The archive to write, or - for standard output
    #[arg(value_name = "FILE", default_value = "scpol-support.tar.gz")]
    file: PathBuf,
    /// Last lines of the log of each replica
    #[arg(long, value_name = "N", default_value_t = 2000)]
    log_lines: u32,
    #[command(flatten)]
    operator: OperatorOptions,
    #[command(flatten)]
    cluster: Cluster,
}

pub(super) async fn run(options: SupportOptions, out: &mut impl Write) -> Result<End> {
    let client = live::connect(&options.cluster).await?;
    let server = live::offers(&client, std::iter::empty()).await?;
    let namespace = options.operator.operator_namespace.as_str();
    let installed = Installed { client: &client, server: &server, namespace };
    let mut collected = Collected::default();
    policies(&client, &mut collected).await;
    registrations(&installed, &mut collected).await;
    revisions(&client, namespace, &mut collected).await;
    operator(&installed, &server.version, &mut collected).await;
    events(&client, &mut collected).await;
    replicas(&installed, options.log_lines, &mut collected).await;
    let files = collected.files();
    let archive = gzipped(&files, jiff::Timestamp::now().as_second());
    if options.file.as_os_str() == "-" {
        out.write_all(&archive)?;
        out.flush()?;
        return Ok(End::Fine);
    }
    let name = options.file.display();
    let file = OpenOptions::new().write(true).create_new(true).open(&options.file);
    file.and_then(|mut file| file.write_all(&archive)).with_context(|| format!("cannot write {name}"))?;
    let size = archive.len().div_ceil(1024);
    writeln!(out, "{name}: {}, {size} KiB. Read it before you send it.", counted(files.len(), "file", "files"))?;
    for missing in collected.missing() {
        remark(format_args!("note: not in it: {missing}"));
    }
    Ok(End::Fine)
}

/// The policies, with their conditions.
async fn policies(client: &Client, collected: &mut Collected) {
    let listed = live::list(&live::api(client, &policies::resource(), None), ListParams::default()).await;
    let listed = listed.map(|listed| values(&listed)).map_err(Into::into);
    collected.objects("policies.yaml", listed, &Redaction::of_policies());
}

/// The registrations, without what they inject.
async fn registrations(installed: &Installed<'_>, collected: &mut Collected) {
    let found = installed.registrations().await.map(|found| found.iter().map(body).collect());
    collected.objects("registrations.yaml", found, &Redaction::of_registrations());
}

/// The metadata of the stored revisions.
async fn revisions(client: &Client, namespace: &str, collected: &mut Collected) {
    let api = live::api(client, &revisions::resource(), Some(namespace));
    let listed = live::list(&api, ListParams::default().labels(&revisions::selector())).await;
    let metadata = |object: &Object| {
        let value = object.value();
        json!({ "metadata": value["metadata"], "revision": value["revision"] })
    };
    let found = listed.map(|listed| listed.iter().map(metadata).collect()).map_err(Into::into);
    collected.objects("revisions.yaml", found, &Redaction::default());
}

/// The versions, and the state of the operator.
async fn operator(installed: &Installed<'_>, server: &str, collected: &mut Collected) {
    let deployment = installed.deployment().await;
    let image = |piece: &Piece| piece.container()["image"].clone();
    let image = deployment.as_ref().ok().and_then(|found| found.as_ref().map(image));
    let commit = option_env!("SCPOL_COMMIT");
    let versions =
        json!({ "scpol": env!("CARGO_PKG_VERSION"), "commit": commit, "kubernetes": server, "operatorImage": image });
    collected.objects("versions.yaml", Ok(vec![versions]), &Redaction::default());
    let deployment = deployment.map(|found| found.iter().map(body).collect());
    collected.objects("deployment.yaml", deployment, &Redaction::of_the_operator());
    let lease = installed.lease().await.map(|found| found.iter().map(body).collect());
    collected.objects("lease.yaml", lease, &Redaction::default());
}

/// The events that the operator has written.
async fn events(client: &Client, collected: &mut Collected) {
    let api = live::api(client, &live::resource("", "v1", "Event", "events"), None);
    let listed = live::list(&api, ListParams::default().fields("source=scpol")).await;
    let listed = listed.map(|listed| values(&listed)).map_err(Into::into);
    collected.objects("events.yaml", listed, &Redaction::default());
}

/// Of each replica: its pod, the end of its log, and its metrics.
async fn replicas(installed: &Installed<'_>, lines: u32, collected: &mut Collected) {
    let pods = installed.pods().await;
    let found = pods.as_ref().map(|pods| pods.iter().map(body).collect());
    let found = found.map_err(|error| anyhow::anyhow!("{error:#}"));
    collected.objects("pods.yaml", found, &Redaction::of_the_operator());
    for pod in pods.iter().flatten() {
        let name = pod.object.name();
        let Ok(path) = path(&pod.resource, Some(pod.object.namespace()), Some(name)) else { continue };
        let log = format!("{path}/log?container={OPERATOR}&tailLines={lines}&limitBytes={LOG}");
        collected.text(&format!("log-{name}.txt"), text(installed.client, &log).await);
        let metrics = format!("{path}:{METRICS}/proxy/metrics");
        collected.text(&format!("metrics-{name}.txt"), text(installed.client, &metrics).await);
    }
}

async fn text(client: &Client, path: &str) -> Result<String> {
    let request = Request::get(path).body(Vec::new())?;
    Ok(call(client.request_text(request)).await?)
}

fn values(objects: &[Object]) -> Vec<Value> {
    objects.iter().map(Object::value).collect()
}

fn body(piece: &Piece) -> Value {
    piece.object.value()
}
