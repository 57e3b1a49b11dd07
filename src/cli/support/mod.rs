//! `scpol support`: one archive for a bug report. It has no Secrets. Of a value that may be secret, it has the name alone.

mod archive;
mod collected;
mod redacted;
mod scrubbed;
mod tail;

use super::installed::{Installed, OPERATOR, Piece};
use super::output::{counted, remark};
use super::site::OperatorOptions;
use super::{Cluster, End, live};
use crate::capabilities::{Capabilities, registration};
use crate::cluster::answer::Meaning;
use crate::cluster::api::path;
use crate::cluster::client::{CallError, call};
use crate::cluster::object::Object;
use crate::cluster::{discovery, policies, revisions};
use anyhow::{Context, Result, bail, ensure};
use archive::gzipped;
use clap::Args;
use collected::Collected;
use http::Request;
use kube::Client;
use kube::api::ListParams;
use redacted::Redaction;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The port of the operator for `/metrics`.
const METRICS: u16 = 8080;
/// The most replicas whose logs and metrics are read.
const MOST: usize = 10;
/// The files of replicas that are unknown.
const REPLICAS: &str = "pods/*/log.txt and metrics.txt";

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
    let is_file = options.file.as_os_str() != "-";
    ensure!(!is_file || !options.file.exists(), "{} is there already; give another FILE", options.file.display());
    let client = live::connect(&options.cluster).await?;
    let mut collected = Collected::default();
    let server = offers(&client, &mut collected).await?;
    let namespace = options.operator.operator_namespace.as_str();
    let installed = Installed { client: &client, server: &server, namespace };
    let deployment = installed.deployment().await;
    if !matches!(deployment, Ok(Some(_))) {
        match installed.elsewhere().await {
            Ok(Some(place)) => bail!(place),
            Ok(None) => {}
            Err(error) => collected.lacks("whether the operator is in another namespace", &error),
        }
    }
    policies(&client, &mut collected).await;
    registrations(&installed, &mut collected).await;
    revisions(&client, namespace, &mut collected).await;
    operator(&installed, deployment, &mut collected).await;
    events(&client, &mut collected).await;
    replicas(&installed, options.log_lines, &mut collected).await;
    edited_meanwhile(&client, namespace, &mut collected).await;
    let (files, missing) = collected.finished();
    let archive = gzipped(&files, jiff::Timestamp::now().as_second()).context("cannot make the archive")?;
    if is_file {
        create(&options.file, |file| file.write_all(&archive).and_then(|()| file.sync_all()))?;
        let (name, size) = (options.file.display(), archive.len().div_ceil(1024));
        writeln!(out, "{name}: {}, {size} KiB. Read it before you send it.", counted(files.len(), "file", "files"))?;
    } else {
        out.write_all(&archive)?;
        out.flush()?;
    }
    for missing in missing {
        remark(format_args!("note: not in it: {missing}"));
    }
    Ok(End::Fine)
}

/// Creates a file that only its owner may read. Nothing stays of a file that `write` fails to write.
fn create(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written =
        options.open(path).and_then(|mut file| write(&mut file).inspect_err(|_| drop(std::fs::remove_file(path))));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// What the server offers of registrations and leases, as far as it says so.
///
/// # Errors
/// If the server does not answer.
async fn offers(client: &Client, collected: &mut Collected) -> Result<Capabilities> {
    let mut server = match discovery::registrations(client).await {
        Ok(server) => server,
        Err(error) => {
            collected.lacks("registrations.yaml", &error.into());
            match discovery::version(client).await {
                Err(error @ (CallError::Away(_) | CallError::Unconnected(_))) => {
                    return Err(error).context(live::ASKING);
                }
                Err(error) => {
                    collected.lacks("versions.yaml: that of Kubernetes", &error.into());
                    Capabilities::default()
                }
                Ok(server) => server,
            }
        }
    };
    // coordination.k8s.io/v1 came with 1.14.
    let is_old = server.known_minor().is_some_and(|minor| minor < 14);
    server.lease_version = Some(if is_old { "v1beta1" } else { "v1" }.to_owned());
    Ok(server)
}

/// Whether the objects that were listed are known. Of a resource that the server does not have there are none.
fn is_known(listed: &Result<Vec<Object>, CallError>) -> bool {
    listed.as_ref().err().is_none_or(|error| error.means() == Meaning::NotFound)
}

/// The stored policies. Without them, the values that texts may repeat are unknown.
async fn stored_policies(client: &Client, collected: &mut Collected) -> Result<Vec<Object>, CallError> {
    let listed = live::list(&live::api(client, &policies::resource(), None), ListParams::default()).await;
    if !is_known(&listed) {
        collected.is_without_values("policies.yaml");
    }
    listed
}

/// The stored revisions, as [`stored_policies`]. No text has the values of earlier ones either.
async fn stored_revisions(
    client: &Client,
    namespace: &str,
    collected: &mut Collected,
) -> Result<Vec<Object>, CallError> {
    let api = live::api(client, &revisions::resource(), Some(namespace));
    let listed = live::list(&api, ListParams::default().labels(&revisions::selector())).await;
    if !is_known(&listed) {
        collected.is_without_values("revisions.yaml");
    }
    for object in listed.iter().flatten() {
        collected.hides(&json!({ "spec": object.value()["data"] }), Redaction::Policies);
    }
    listed
}

/// The policies, with their conditions.
async fn policies(client: &Client, collected: &mut Collected) {
    let listed = stored_policies(client, collected).await;
    let listed = listed.map(|listed| values(&listed)).map_err(Into::into);
    collected.objects("policies.yaml", listed, Redaction::Policies);
}

/// Hides also what policies and revisions have since they were read: the logs may repeat it.
async fn edited_meanwhile(client: &Client, namespace: &str, collected: &mut Collected) {
    for policy in stored_policies(client, collected).await.iter().flatten() {
        collected.hides(&policy.value(), Redaction::Policies);
    }
    drop(stored_revisions(client, namespace, collected).await);
}

/// The registrations, without what they inject.
async fn registrations(installed: &Installed<'_>, collected: &mut Collected) {
    let mut found = Vec::new();
    for plural in registration::ALL {
        match installed.registrations_of(plural).await {
            Ok(pieces) => found.extend(pieces.iter().map(body)),
            Err(error) => collected.lacks("registrations.yaml", &error),
        }
    }
    collected.objects("registrations.yaml", Ok(found), Redaction::Registrations);
}

/// The metadata of the stored revisions.
async fn revisions(client: &Client, namespace: &str, collected: &mut Collected) {
    let metadata = |object: &Object| {
        let value = object.value();
        json!({ "metadata": value["metadata"], "revision": value["revision"] })
    };
    let listed = stored_revisions(client, namespace, collected).await;
    let found = listed.map(|listed| listed.iter().map(metadata).collect()).map_err(Into::into);
    collected.objects("revisions.yaml", found, Redaction::Plain);
}

/// The versions, and the state of the operator.
async fn operator(installed: &Installed<'_>, deployment: Result<Option<Piece>>, collected: &mut Collected) {
    let image = |piece: &Piece| piece.container()["image"].clone();
    let image = deployment.as_ref().ok().and_then(|found| found.as_ref().map(image));
    let versions = json!({
        "scpol": env!("CARGO_PKG_VERSION"), "commit": option_env!("SCPOL_COMMIT"), "image": image,
        "kubernetes": installed.server.version,
    });
    collected.objects("versions.yaml", Ok(vec![versions]), Redaction::Plain);
    if let Ok(None) = deployment {
        let namespace = installed.namespace;
        collected.lacks_some("deployment.yaml", format!("namespace `{namespace}` has no Deployment `{OPERATOR}`"));
    }
    let deployment = deployment.map(|found| found.iter().map(body).collect());
    collected.objects("deployment.yaml", deployment, Redaction::Operator);
    let lease = installed.lease().await.map(|found| found.iter().map(body).collect());
    collected.objects("lease.yaml", lease, Redaction::Plain);
}

/// The events that the operator has written.
async fn events(client: &Client, collected: &mut Collected) {
    let api = live::api(client, &live::resource("", "v1", "Event", "events"), None);
    let listed = live::list(&api, ListParams::default().fields("source=scpol")).await;
    let listed = listed.map(|listed| values(&listed)).map_err(Into::into);
    collected.objects("events.yaml", listed, Redaction::Plain);
}

/// Of each replica: its pod, the end of its log, and its metrics.
async fn replicas(installed: &Installed<'_>, lines: u32, collected: &mut Collected) {
    let mut pods = match installed.pods().await {
        Ok(pods) => pods,
        Err(error) => {
            collected.lacks("pods.yaml", &error);
            return collected.lacks(REPLICAS, &error);
        }
    };
    if pods.is_empty() {
        let namespace = installed.namespace;
        collected.lacks_some(REPLICAS, format!("namespace `{namespace}` has no pod of the operator"));
    }
    collected.objects("pods.yaml", Ok(pods.iter().map(body).collect()), Redaction::Operator);
    // Those that run first: pods that are gone have no log.
    pods.sort_by_key(|pod| pod.object.value()["status"]["phase"] != "Running");
    if pods.len() > MOST {
        collected.lacks_some(REPLICAS, format!("those of {} of {} pods", pods.len() - MOST, pods.len()));
    }
    for pod in pods.iter().take(MOST) {
        let name = pod.object.name();
        let Ok(path) = path(&pod.resource, Some(pod.object.namespace()), Some(name)) else { continue };
        let log = format!("{path}/log?container={OPERATOR}&tailLines={lines}");
        let file = format!("pods/{name}/log.txt");
        let log = tail::read(installed.client, &log).await;
        if let Ok((_, before @ 1..)) = &log {
            collected.lacks_some(&file, format!("the first {before} bytes of {lines} lines"));
        }
        collected.text(&file, log.map(|(log, _)| log));
        let metrics = format!("{path}:{METRICS}/proxy/metrics");
        collected.text(&format!("pods/{name}/metrics.txt"), text(installed.client, &metrics).await);
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

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_archive_is_for_its_owner_and_whole_or_not_there() {
        let path = std::env::temp_dir().join(format!("scpol-support-{}.tar.gz", std::process::id()));
        let full = |file: &mut File| file.write_all(b"half").and(Err(io::ErrorKind::StorageFull.into()));
        let error = create(&path, full).expect_err("the disk is full");
        assert!(format!("{error:#}").contains("cannot write") && !path.exists(), "{error:#}");
        create(&path, |file| file.write_all(b"whole")).expect("there is room");
        assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        let error = create(&path, |_| Ok(())).expect_err("nothing is overwritten");
        assert!(format!("{error:#}").contains("exists") && path.exists(), "{error:#}");
        std::fs::remove_file(path).expect("it is there");
    }
}
