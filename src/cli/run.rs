//! `scpol run`: the options of the operator.

mod process;
mod reach;
mod term;

use self::process::Process;
use super::signals::Signals;
use super::site::{TrustOptions, initializer_name, namespace_name, one_namespace};
use super::{End, Kubeconfig, TimingOption, Timings};
use crate::metrics::METRICS_NAMESPACES;
use crate::roller::EVICTIONS;
use crate::telemetry::{self, LogFormat};
use crate::workloads::reports::Reports;
use anyhow::{Result, bail};
use clap::Args;
use http::Uri;
#[cfg(unix)]
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tracing::warn;

#[derive(Args, Debug)]
pub(super) struct RunOptions {
    #[command(flatten)]
    kubeconfig: Kubeconfig,
    #[command(flatten)]
    replica: ReplicaOptions,
    #[command(flatten)]
    trust: TrustOptions,
    /// Refuse writes of a policy whose author may not create pods wherever it injects; needs config/rbac/author-webhook.
    /// From Kubernetes 1.30 on, config/author-check.yaml does it without the operator
    #[arg(long, env = "SCPOL_AUTHOR_CHECK")]
    author_check: bool,
    /// How many policies are used, with at most 8 KiB of spec each on average; later ones are not accepted
    #[arg(long, value_name = "N", env = "SCPOL_MAX_POLICIES", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..))]
    max_policies: u16,
    /// How many pairs of a policy and a namespace have metrics of their own; the others count as namespace `(others)`
    #[arg(long, value_name = "N", env = "SCPOL_METRICS_NAMESPACES", default_value_t = METRICS_NAMESPACES, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    metrics_namespaces: u32,
    #[command(flatten)]
    times: TimeOptions,
    #[command(flatten)]
    ports: PortOptions,
    #[command(flatten)]
    duties: DutyOptions,
    #[command(flatten)]
    log: LogOptions,
    #[command(flatten)]
    waiting: TimingOption,
}

/// Which operator this is, and what is its own.
#[derive(Args, Debug)]
struct ReplicaOptions {
    /// Namespace that the operator runs in [default: the pod's own, else scpol-system]
    #[arg(long, value_name = "NAME", env = "SCPOL_OPERATOR_NAMESPACE", value_parser = one_namespace)]
    operator_namespace: Option<String>,
    /// Name of this replica in the lease and in events [default: a random one]
    #[arg(long, value_name = "NAME", env = "SCPOL_POD_NAME")]
    pod_name: Option<String>,
    /// Workloads that are completed at once; the operator lowers it while the API server answers 429
    #[arg(long, value_name = "N", env = "SCPOL_WORKERS", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,
    /// An initializer name outside scpol.dev that policies may use, and that is ours to clear (repeatable)
    #[arg(long = "initializer-name", value_name = "NAME", env = "SCPOL_INITIALIZER_NAME", value_delimiter = ',', value_parser = initializer_name)]
    initializer_names: Vec<String>,
    /// Namespaces that no policy reaches, besides kube-system, kube-public, kube-node-lease and the operator's own
    #[arg(long, value_name = "NAMES", env = "SCPOL_PROTECTED_NAMESPACES", value_delimiter = ',', value_parser = namespace_name)]
    protected_namespaces: Vec<String>,
}

/// How long things take.
#[derive(Args, Debug)]
struct TimeOptions {
    /// How often to read everything again that is watched, because events may be lost (at least 1s)
    #[arg(long, value_name = "DURATION", env = "SCPOL_RESYNC", default_value = "15m", value_parser = humantime::parse_duration)]
    resync: Duration,
    /// How long a registration that was deleted by hand stays away
    #[arg(long, value_name = "DURATION", env = "SCPOL_REPAIR_HOLD", default_value = "10m", value_parser = humantime::parse_duration)]
    repair_hold: Duration,
    /// How long a silent leader keeps its lease (at least 3s)
    #[arg(long, value_name = "DURATION", env = "SCPOL_LEASE_DURATION", default_value = "6s", value_parser = humantime::parse_duration)]
    lease_duration: Duration,
    /// How long a stop in good order may take before the process ends anyway
    #[arg(long, value_name = "DURATION", env = "SCPOL_SHUTDOWN_GRACE", default_value = "10s", value_parser = humantime::parse_duration)]
    shutdown_grace: Duration,
}

/// Where the operator is called, by whom, and what it shows.
#[derive(Args, Debug)]
struct PortOptions {
    /// Address for /metrics, /livez and /readyz
    #[arg(long, value_name = "ADDRESS", env = "SCPOL_LISTEN", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Answer /metrics only for tokens of users who may get this path, as the API server says; probes stay open. Needs
    /// config/rbac/metrics-authorization
    #[arg(long, env = "SCPOL_METRICS_AUTHORIZATION")]
    metrics_authorization: bool,
    /// Address on which API servers reach the webhook engine, by TLS; opened when a policy may need it
    #[arg(long, value_name = "ADDRESS", env = "SCPOL_WEBHOOK_LISTEN", default_value = "0.0.0.0:8443")]
    webhook_listen: SocketAddr,
    /// Where API servers call the webhook, https://HOST:PORT, if the operator runs outside the cluster [default: the Service scpol
    /// in its namespace]
    #[arg(long, value_name = "URL", env = "SCPOL_WEBHOOK_URL", value_parser = webhook_url)]
    webhook_url: Option<Uri>,
    /// Folder with tls.crt, tls.key and ca.crt for the webhook, which another tool renews, such as cert-manager [default:
    /// the operator's own, in the Secret scpol-webhook]
    #[arg(long, value_name = "FOLDER", env = "SCPOL_WEBHOOK_CERT_DIR")]
    webhook_cert_dir: Option<PathBuf>,
    /// File with the authorities, as PEM, of the client certificates that API servers show to the webhook; other clients
    /// are rejected. The API servers need it in their AdmissionConfiguration first [default: any client]
    #[arg(long, value_name = "FILE", env = "SCPOL_WEBHOOK_CLIENT_CA")]
    webhook_client_ca: Option<PathBuf>,
}

/// What the leader does besides what every policy needs.
#[derive(Args, Debug)]
struct DutyOptions {
    /// Record an event for each successful injection, too
    #[arg(long, env = "SCPOL_EVENTS_INJECTED")]
    events_injected: bool,
    /// Write a report in each namespace about the workloads that lack their sidecar; needs config/rbac/reports
    #[arg(long, value_name = "API", value_enum, env = "SCPOL_REPORTS", default_value_t)]
    reports: Reports,
    /// Update stored workloads where a policy has `updateStrategy: RollingUpdate`, with at most this many evictions a
    /// minute in the whole cluster; 0 switches rollouts off. Needs config/rbac/rollout
    #[arg(long, value_name = "N", env = "SCPOL_ROLLOUTS", default_value_t = EVICTIONS, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    rollouts: u32,
    /// Complete workloads as a member of system:masters, which the API server's limit of requests exempts; needs
    /// config/rbac/priority-lane, which says what it costs
    #[arg(long, env = "SCPOL_PRIORITY_LANE")]
    priority_lane: bool,
}

#[derive(Args, Debug)]
struct LogOptions {
    /// Shape of the log
    #[arg(long, value_enum, env = "SCPOL_LOG_FORMAT", default_value_t)]
    log_format: LogFormat,
    /// What is logged: error, warn, info, debug, trace, or a filter by module such as info,kube=debug
    #[arg(long, value_name = "LEVEL", env = "SCPOL_LOG_LEVEL", default_value = "info")]
    log_level: String,
}

pub(super) async fn run(options: RunOptions) -> Result<End> {
    #[cfg(unix)]
    raise_open_files();
    telemetry::start(options.log.log_format, &options.log.log_level)?;
    let TimeOptions { lease_duration, resync, .. } = options.times;
    for (flag, least, given) in [("--lease-duration", 3, lease_duration), ("--resync", 1, resync)] {
        if given < Duration::from_secs(least) {
            bail!("{flag} must be at least {least}s, is {}", humantime::format_duration(given));
        }
    }
    if options.waiting.timing == Timings::Short {
        warn!("SCPOL_TIMING=short is for tests: the waiting times are not the documented ones");
    }
    let mut signals = Signals::new()?;
    let process = tokio::select! {
        started = Box::pin(Process::start(&options)) => started?,
        () = signals.next() => return Ok(End::Fine),
    };
    Box::pin(process.run(signals)).await
}

fn webhook_url(text: &str) -> Result<Uri, String> {
    let example = "write it as `https://HOST:PORT`";
    let url: Uri = text.parse().map_err(|error| format!("{error}; {example}"))?;
    let is_plain =
        url.scheme_str() == Some("https") && url.host().is_some() && url.path() == "/" && url.query().is_none();
    if is_plain { Ok(url) } else { Err(format!("API servers call nothing else; {example}")) }
}

/// Raises the limit of open files to the most that the process may have. Some container runtimes give 1024, and our
/// ports alone have more connections.
#[cfg(unix)]
fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Without it, connections are closed when no files are left.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
