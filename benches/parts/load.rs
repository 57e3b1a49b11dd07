//! Clients that create objects.

use super::statistics::quantile;
use crate::support::Operator;
use anyhow::{Context, Result, ensure};
use controlplane::ControlPlane;
use futures::StreamExt;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use std::time::{Duration, Instant};

/// The results of a phase of creates: objects per second, and latencies in milliseconds.
pub(super) struct Phase {
    pub(super) rate: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) longest: f64,
}

/// `count` creates by concurrent `clients`. `create` gets the number of the object.
pub(super) async fn phase<F: Future<Output = Result<()>>>(
    clients: usize,
    count: usize,
    create: impl Fn(usize) -> F,
) -> Result<Phase> {
    let start = Instant::now();
    let creates = futures::stream::iter(0..count).map(|number| {
        let create = create(number);
        async move {
            let start = Instant::now();
            create.await?;
            Ok::<_, anyhow::Error>(start.elapsed().as_secs_f64() * 1000.0)
        }
    });
    let times: Vec<f64> =
        creates.buffer_unordered(clients).collect::<Vec<_>>().await.into_iter().collect::<Result<_>>()?;
    let rate = count as f64 / start.elapsed().as_secs_f64();
    let longest = times.iter().copied().fold(0.0, f64::max);
    Ok(Phase { rate, p50: quantile(times.clone(), 0.5), p99: quantile(times, 0.99), longest })
}

/// A request that must succeed. Returns the text of the answer.
pub(super) async fn send(
    client: &Client,
    method: &str,
    path: &str,
    content_type: &str,
    body: &Value,
) -> Result<String> {
    let (status, text) = exchange(client, method, path, content_type, body).await?;
    ensure!(status.is_success(), "{method} {path}: {status}: {text}");
    Ok(text)
}

/// A create that waits a second and retries on 429, as client-go does. Returns the text of the answer.
pub(super) async fn create_patiently(client: &Client, path: &str, body: &Value) -> Result<String> {
    loop {
        let (status, text) = exchange(client, "POST", path, "application/json", body).await?;
        if status != StatusCode::TOO_MANY_REQUESTS {
            ensure!(status.is_success(), "POST {path}: {status}: {text}");
            return Ok(text);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn exchange(
    client: &Client,
    method: &str,
    path: &str,
    content_type: &str,
    body: &Value,
) -> Result<(StatusCode, String)> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", content_type)
        .body(Body::from(serde_json::to_vec(body)?))?;
    let answer = client.send(request).await?;
    let status = answer.status();
    Ok((status, String::from_utf8(answer.into_body().collect().await?.to_bytes().to_vec())?))
}

/// The current or peak memory of a process in megabytes (10^6 bytes), by the kernel's count (`VmRSS`, `VmHWM`).
pub(super) fn resident_megabytes(pid: u32, field: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .with_context(|| format!("no {field}"))?;
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes * 1024.0 / 1e6)
}

/// The processor time of all threads of a process so far, in seconds.
pub(super) fn processor_seconds(pid: u32) -> Result<f64> {
    /// `CLK_TCK` of Linux, independent of the kernel's own tick rate (proc(5), `utime`).
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // `utime` and `stime` are the 12th and 13th field after the name, which may contain anything.
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let times = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(times.sum::<Result<f64, _>>()? / TICKS)
}

/// A ready operator with the log level of users. The log is long, and not shown.
pub(super) async fn operator(cluster: &ControlPlane, flags: &[&str]) -> Result<Operator> {
    let flags = [&["--log-level", "info"], flags].concat();
    let mut operator = Operator::ready(cluster, &flags).await?;
    operator.is_log_shown = false;
    Ok(operator)
}
