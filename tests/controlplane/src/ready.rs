//! Checks that a server is ready for use.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::Version;
use crate::process::Process;
use crate::version::Quirk;

/// The time limit for a server to become ready.
pub(crate) const READY_LIMIT: Duration = Duration::from_secs(60);
/// The interval of the checks.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// Polls until `probe` succeeds, the process ends, or the time limit is reached.
pub(crate) async fn wait_ready<F>(process: &Process, probe: impl Fn() -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let deadline = Instant::now() + READY_LIMIT;
    loop {
        let last = timeout(Duration::from_secs(5), probe()).await.unwrap_or_else(|_| Err(anyhow!("no answer in 5 s")));
        let Err(error) = last else { return Ok(()) };
        if let Some(status) = process.exited() {
            return Err(process.failure(&format!("ended ({status})")));
        }
        if Instant::now() > deadline {
            return Err(process.failure(&format!("is not ready after {READY_LIMIT:?} ({error:#})")));
        }
        sleep(POLL).await;
    }
}

/// Checks that etcd reports itself healthy.
pub(crate) async fn etcd_health(port: u16) -> Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(answer.contains("\"health\":\"true\""), "{answer}");
    Ok(())
}

/// Checks that the API server is healthy and has its RBAC API and the namespace `default`. It answers plain requests
/// before RBAC is served.
pub(crate) async fn probe(client: &Client, version: Version) -> Result<()> {
    let path = if version.is(Quirk::NoReadyz) { "/healthz" } else { "/readyz" };
    let health = client.request_text(http::Request::get(path).body(Vec::new())?).await?;
    ensure!(health == "ok", "{path}: {health}");
    let groups = client.list_api_groups().await?.groups;
    let rbac = groups.iter().flat_map(|g| &g.versions).any(|v| v.group_version == "rbac.authorization.k8s.io/v1");
    ensure!(rbac, "rbac.authorization.k8s.io/v1 is not served");
    Api::<Namespace>::all(client.clone()).get("default").await?;
    Ok(())
}

/// Whether another process has taken the port in the meantime.
pub(crate) fn is_clash(error: &anyhow::Error) -> bool {
    format!("{error:#}").contains("address already in use")
}
