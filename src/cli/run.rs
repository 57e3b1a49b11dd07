//! `scpol run`: composes the operator process.

use super::files::{TrustOptions, namespace_name};
use super::{End, Kubeconfig, Timings, Waiting};
use crate::api::code::Code;
use crate::cluster::capabilities::Capabilities;
use crate::cluster::client::{self, CallError, call};
use crate::cluster::events::Recorder;
use crate::cluster::lease::{Lease, Role};
use crate::cluster::object::Object;
use crate::cluster::policies::{self, Snapshot};
use crate::controller::{self, Controller};
use crate::engine::Unavailable;
use crate::engine::initializer::worker;
use crate::engine::webhook::certs::{self, Certificates};
use crate::engine::webhook::render::Endpoint;
use crate::engine::webhook::replica::Replica;
use crate::metrics::Metrics;
use crate::policy::Site;
use crate::serving::{self, Health};
use crate::survival;
use crate::telemetry::{self, LogFormat};
use crate::timing::{self, Timing};
use crate::workloads::watch::{self as workloads, Shared};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use http::Uri;
use kube::api::ListParams;
use kube::{Api, Client};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{error, info, warn};

/// Where a pod finds the name of its own namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// After how long it is logged again that the API server does not answer, for the same reason.
const UNREACHED_REMINDER: Duration = Duration::from_secs(60);

#[derive(Args, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    kubeconfig: Kubeconfig,
    /// Namespace that the operator runs in [default: the pod's own, else scpol-system]
    #[arg(long, value_name = "NAME", env = "SCPOL_OPERATOR_NAMESPACE")]
    operator_namespace: Option<String>,
    /// Name of this replica in the lease and in events [default: a random one]
    #[arg(long, value_name = "NAME", env = "SCPOL_POD_NAME")]
    pod_name: Option<String>,
    /// Workloads that may be completed at once; lowered by itself while the API server has too many requests
    #[arg(long, value_name = "N", env = "SCPOL_WORKERS", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,
    /// An initializer name outside scpol.dev that policies may use, and that is ours to clear (repeatable)
    #[arg(long = "initializer-name", value_name = "NAME", env = "SCPOL_INITIALIZER_NAME", value_delimiter = ',')]
    initializer_names: Vec<String>,
    /// Namespaces that no policy reaches, besides kube-system, kube-public, kube-node-lease and the operator's own
    #[arg(long, value_name = "NAMES", env = "SCPOL_PROTECTED_NAMESPACES", value_delimiter = ',', value_parser = namespace_name)]
    protected_namespaces: Vec<String>,
    #[command(flatten)]
    trust: TrustOptions,
    /// Have the API server ask the operator whether the author of a policy may create pods wherever it injects, and refuse it
    /// else; needs config/rbac/author-webhook. From Kubernetes 1.30 on, config/author-check.yaml does it without the operator
    #[arg(long, env = "SCPOL_AUTHOR_CHECK")]
    author_check: bool,
    /// After how long everything that is watched is read anew, for events that never came (at least 1s)
    #[arg(long, value_name = "DURATION", env = "SCPOL_RESYNC", default_value = "15m", value_parser = humantime::parse_duration)]
    resync: Duration,
    /// How long a registration that somebody deleted by hand is not made again
    #[arg(long, value_name = "DURATION", env = "SCPOL_REPAIR_HOLD", default_value = "10m", value_parser = humantime::parse_duration)]
    repair_hold: Duration,
    /// How long a leader that has stopped renewing its lease is respected (at least 3s)
    #[arg(long, value_name = "DURATION", env = "SCPOL_LEASE_DURATION", default_value = "6s", value_parser = humantime::parse_duration)]
    lease_duration: Duration,
    /// How long a stop in good order may take before the process ends all the same
    #[arg(long, value_name = "DURATION", env = "SCPOL_SHUTDOWN_GRACE", default_value = "10s", value_parser = humantime::parse_duration)]
    shutdown_grace: Duration,
    /// Address for /metrics, /livez and /readyz
    #[arg(long, value_name = "ADDRESS", env = "SCPOL_LISTEN", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Address on which API servers reach the webhook engine, by TLS; used from when a policy may need it
    #[arg(long, value_name = "ADDRESS", env = "SCPOL_WEBHOOK_LISTEN", default_value = "0.0.0.0:8443")]
    webhook_listen: SocketAddr,
    /// Where API servers call the webhook, https://HOST:PORT, if the operator runs outside the cluster [default: the Service scpol
    /// in its namespace]
    #[arg(long, value_name = "URL", env = "SCPOL_WEBHOOK_URL", value_parser = webhook_url)]
    webhook_url: Option<Uri>,
    /// Folder with tls.crt, tls.key and ca.crt for the webhook, kept by somebody else, such as cert-manager [default: the
    /// operator's own, in the Secret scpol-webhook]
    #[arg(long, value_name = "FOLDER", env = "SCPOL_WEBHOOK_CERT_DIR")]
    webhook_cert_dir: Option<PathBuf>,
    /// Write an event for each successful injection, too
    #[arg(long, env = "SCPOL_EVENTS_INJECTED")]
    events_injected: bool,
    /// Complete workloads as a member of system:masters, whom the API server's limit of requests does not hold up; needs
    /// config/rbac/priority-lane, where its price is told
    #[arg(long, env = "SCPOL_PRIORITY_LANE")]
    priority_lane: bool,
    /// Shape of the log
    #[arg(long, value_enum, env = "SCPOL_LOG_FORMAT", default_value_t)]
    log_format: LogFormat,
    /// What is logged: error, warn, info, debug, trace, or a filter by module such as info,kube=debug
    #[arg(long, value_name = "LEVEL", env = "SCPOL_LOG_LEVEL", default_value = "info")]
    log_level: String,
    #[command(flatten)]
    waiting: Waiting,
}

pub(super) async fn run(options: Options) -> Result<End> {
    telemetry::start(options.log_format, &options.log_level)?;
    if options.lease_duration < Duration::from_secs(3) {
        bail!("--lease-duration must be at least 3s, is {}", humantime::format_duration(options.lease_duration));
    }
    if options.resync < Duration::from_secs(1) {
        bail!("--resync must be at least 1s, is {}", humantime::format_duration(options.resync));
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

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Everything that lives as long as the process.
struct Process {
    client: Client,
    site: Arc<Site>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    recorder: Recorder,
    snapshots: watch::Receiver<Snapshot>,
    capabilities: Capabilities,
    lease: Lease,
    workers: usize,
    tell_injected: bool,
    priority_lane: bool,
    resync: Duration,
    timing: &'static Timing,
    settings: controller::Settings,
    grace: Duration,
    recording: JoinHandle<()>,
    webhook: JoinHandle<()>,
    stop_webhook: watch::Sender<bool>,
}

impl Process {
    /// Connects, and checks what it cannot do without.
    async fn start(options: &Options) -> Result<Self> {
        let namespace = own_namespace(options.operator_namespace.as_deref());
        let mut site = Site::new(&namespace, options.protected_namespaces.clone(), options.initializer_names.clone());
        site.trust = options.trust.trust();
        let site = Arc::new(site);
        let identity = options.pod_name.clone().unwrap_or_else(|| format!("scpol-{:08x}", fastrand::u32(..)));
        let metrics = Arc::new(Metrics::new());
        let config = options.kubeconfig.access().config()?;
        let timing = options.waiting.timing();
        let client = client::connect(config, &metrics)?;
        let health = Arc::new(Health::new(&timing.process));
        let listener = TcpListener::bind(options.listen)
            .await
            .with_context(|| format!("--listen {} cannot be used", options.listen))?;
        info!(address = %listener.local_addr()?, "Serving");
        tokio::spawn(serving::serve(listener, metrics.clone(), health.clone()));
        let capabilities = health.alive(Self::reach(&client, &timing.process)).await?;
        let version = capabilities
            .lease_version
            .clone()
            .context("this server has no Leases (coordination.k8s.io), which it needs from Kubernetes 1.12")?;
        info!(server = capabilities.version, operator = env!("CARGO_PKG_VERSION"), namespace, identity, "Connected");
        let (recorder, recording) = Recorder::new(client.clone(), identity.clone(), metrics.clone());
        let (sender, snapshots) = watch::channel(Snapshot::default());
        tokio::spawn({
            let (client, site, resync, metrics) = (client.clone(), site.clone(), options.resync, metrics.clone());
            async move {
                let begin = || policies::follow(client.clone(), site.clone(), resync, &sender, &metrics, &timing.watch);
                survival::persist(&metrics, &timing.process, "watching policies", begin).await;
            }
        });
        let (reached, reach) =
            watch::channel(Err(Unavailable::new(Code::Reconciling, "the webhook does not serve yet")));
        let (demand, demanded) = watch::channel(options.author_check);
        let (endpoint, names) = endpoint(options.webhook_url.as_ref(), &namespace);
        let certificates = Arc::new(match &options.webhook_cert_dir {
            Some(folder) => Certificates::of_files(folder, names, metrics.clone(), &timing.webhook),
            None => Certificates::of_secret(client.clone(), &namespace, names, metrics.clone(), &timing.webhook),
        });
        let replica = Replica {
            client: client.clone(),
            capabilities: Arc::new(capabilities.clone()),
            site: site.clone(),
            resync: options.resync,
            metrics: metrics.clone(),
            snapshots: snapshots.clone(),
            endpoint,
            certificates: certificates.clone(),
            ready: health.webhook_settled.clone(),
            judges_authors: options.author_check,
            demanded,
            timing,
        };
        let listener = TcpListener::bind(options.webhook_listen)
            .await
            .with_context(|| format!("--webhook-listen {} cannot be used", options.webhook_listen))?;
        let (stop_webhook, stopped) = watch::channel(false);
        let duration = options.lease_duration;
        let lease = Lease::new(client.clone(), &version, &namespace, &identity, duration, &timing.process);
        Ok(Self {
            client,
            site,
            metrics,
            health,
            recorder,
            snapshots,
            capabilities,
            lease,
            workers: options.workers.into(),
            tell_injected: options.events_injected,
            priority_lane: options.priority_lane,
            resync: options.resync,
            timing,
            settings: controller::Settings {
                repair_hold: options.repair_hold,
                reach,
                demand,
                certificates: Some(certificates),
                author_check: options.author_check.then(|| watch::Sender::new(None)),
            },
            grace: options.shutdown_grace,
            recording: tokio::spawn(recording),
            webhook: tokio::spawn(replica.run(listener, reached, stopped)),
            stop_webhook,
        })
    }

    /// Waits for the server; gives up on what waiting does not cure.
    async fn reach(client: &Client, timing: &timing::Process) -> Result<Capabilities> {
        let since = Instant::now();
        let mut said: Option<(String, Instant)> = None;
        loop {
            let found = match Capabilities::discover(client, |_| false).await {
                Ok(capabilities) => check_policies(client).await.map(|()| capabilities),
                Err(error) => Err(error),
            };
            match found {
                Ok(capabilities) => return Ok(capabilities),
                Err(CallError::Refused(status)) if matches!(status.code, 401 | 404) => return Err(hopeless(&status)),
                Err(CallError::Refused(status)) if status.code == 403 && since.elapsed() > timing.rights => {
                    return Err(hopeless(&status));
                }
                Err(error) => {
                    let error = error.to_string();
                    let is_known =
                        said.as_ref().is_some_and(|(last, at)| *last == error && at.elapsed() < UNREACHED_REMINDER);
                    if !is_known {
                        warn!(error, "The API server does not answer; trying again");
                        said = Some((error, Instant::now()));
                    }
                }
            }
            tokio::time::sleep(timing.reach_pause).await;
        }
    }

    /// Leads or follows until a signal comes, then stops in good order.
    async fn run(mut self, mut signals: Signals) -> Result<End> {
        let mut term: Option<Term> = None;
        let mut role = Role::Follower;
        let (since, mut looked) = (Instant::now(), false);
        loop {
            self.health.beat();
            match self.health.alive(self.lease.look()).await {
                Ok(seen) => {
                    (role, looked) = (seen, true);
                    if role == Role::Follower {
                        self.health.role_settled.store(true, Ordering::Relaxed);
                    }
                }
                Err(error) if error.code() == 403 && !looked && since.elapsed() > self.timing.process.rights => {
                    return Err(anyhow!(
                        "cannot use the lease `scpol` in namespace `{}`: {error}; apply the shipped RBAC",
                        self.site.operator_namespace
                    ));
                }
                Err(error) => warn!(%error, "Cannot look at the lease; going on as before"),
            }
            self.metrics.leader.set(i64::from(role == Role::Leader));
            match (role, &mut term) {
                (Role::Leader, None) => term = self.lead().await,
                (Role::Follower, Some(_)) => {
                    warn!("Another replica leads; this one follows");
                    if let Some(term) = term.take() {
                        self.health.alive(term.end()).await;
                    }
                    self.health.watch_worker(None);
                }
                _ => {}
            }
            let mut snapshots = self.snapshots.clone();
            tokio::select! {
                () = signals.next() => break,
                () = self.health.alive(tokio::time::sleep(self.lease.pause(role))) => {}
                Ok(_) = snapshots.wait_for(|snapshot| snapshot.synced), if !self.health.policies_synced.load(Ordering::Relaxed) => {
                    self.health.policies_synced.store(true, Ordering::Relaxed);
                }
            }
        }
        Box::pin(self.stop(term, signals)).await
    }

    /// Begins a term of leadership; not if another replica has taken the lease before it could begin.
    async fn lead(&mut self) -> Option<Term> {
        info!("This replica leads");
        let client = self.client.clone();
        let (fresh, role) = self.lease.hold_during(self.health.alive(Capabilities::discover(&client, |_| false))).await;
        if role == Role::Follower {
            return None;
        }
        if let Ok(fresh) = fresh {
            self.capabilities = fresh;
        }
        let settings = workloads::Settings {
            workers: self.workers,
            tell_injected: self.tell_injected,
            priority_lane: self.priority_lane,
            resync: self.resync,
            timing: self.timing,
        };
        let shared = Shared::new(
            self.client.clone(),
            self.site.clone(),
            self.metrics.clone(),
            self.recorder.clone(),
            self.snapshots.clone(),
            &settings,
        );
        shared.set_capabilities(self.capabilities.clone());
        let shared = Arc::new(shared);
        let watched = shared.clone();
        self.health.watch_worker(Some(Box::new(move || watched.since_beat())));
        Some(Term::begin(shared, self.settings.clone(), self.snapshots.clone(), self.health.role_settled.clone()))
    }

    /// Hands over to another replica, or leaves no create behind that would wait for nobody.
    async fn stop(mut self, term: Option<Term>, mut signals: Signals) -> Result<End> {
        info!(grace = %humantime::format_duration(self.grace), "Stopping");
        let (since, timing) = (Instant::now(), &self.timing.process);
        let leave = async {
            let Some(mut term) = term else { return };
            // The worker goes on meanwhile: no create shall wait for the handing over.
            self.lease.release().await;
            // It would take away what a replica that has just started has made its own: so it holds the lease again, if that can be held.
            if !self.lease.has_successor(timing.successor).await
                && !matches!(self.lease.look().await, Ok(Role::Follower))
            {
                info!("No other replica has taken over: this is the last one");
                self.lease.hold_during(self.health.alive(term.withdraw())).await;
                self.lease.release().await;
            }
            term.end().await;
        };
        let leave = async {
            Box::pin(leave).await;
            // API servers learn only now and then that this replica is to be called no more.
            if self.settings.reach.borrow().is_ok() {
                tokio::time::sleep(timing.leaving.saturating_sub(since.elapsed())).await;
            }
            self.stop_webhook.send_replace(true);
            drop((&mut self.webhook).await);
        };
        tokio::select! {
            () = leave => {}
            () = tokio::time::sleep(self.grace) => warn!("The time to stop is over"),
            () = signals.next() => {
                warn!("A second signal: ending at once");
                return Ok(End::Finding);
            }
        }
        // The last hands that hold the queue of events: then its writer ends by itself.
        self.health.watch_worker(None);
        drop(self.recorder);
        let flush = timing.event_flush.min(self.grace.saturating_sub(since.elapsed()));
        drop(tokio::time::timeout(flush, self.recording).await);
        info!(took = %humantime::format_duration(Duration::from_millis(since.elapsed().as_millis() as u64)), "Stopped");
        Ok(End::Fine)
    }
}

/// A term of leadership: the controller and the worker.
struct Term {
    stop_controller: watch::Sender<bool>,
    stop_worker: watch::Sender<bool>,
    controller: Option<JoinHandle<Controller>>,
    worker: JoinHandle<()>,
    /// Has authors judged, or not.
    author: JoinHandle<()>,
}

impl Term {
    fn begin(
        shared: Arc<Shared>,
        settings: controller::Settings,
        snapshots: watch::Receiver<Snapshot>,
        ready: Arc<AtomicBool>,
    ) -> Self {
        let (stop_controller, stopped) = watch::channel(false);
        let author = tokio::spawn({
            let (shared, settings) = (shared.clone(), settings.clone());
            async move {
                let begin = || controller::author::keep(shared.clone(), settings.clone());
                survival::persist(&shared.metrics, &shared.timing.process, "keeping the author check", begin).await;
            }
        });
        let (metrics, own, timing) = (shared.metrics.clone(), shared.clone(), shared.timing);
        let controller = tokio::spawn(async move {
            // A new one knows nothing but what is stored, as after a restart.
            let begin = || {
                let mut controller = Controller::new(own.clone(), settings.clone(), snapshots.clone(), ready.clone());
                let stopped = stopped.clone();
                async move {
                    controller.run(stopped).await;
                    controller
                }
            };
            survival::persist(&metrics, &timing.process, "controlling", begin).await
        });
        let (stop_worker, stopped) = watch::channel(false);
        let worker = async move {
            let begin = || worker::run(shared.clone(), stopped.clone());
            survival::persist(&shared.metrics, &shared.timing.process, "settling what waits", begin).await;
        };
        Self { stop_controller, stop_worker, controller: Some(controller), worker: tokio::spawn(worker), author }
    }

    /// Ends the controller and lets it take out what must not stay; the worker goes on.
    async fn withdraw(&mut self) {
        self.stop_controller.send_replace(true);
        let Some(controller) = self.controller.take() else { return };
        match controller.await {
            Ok(mut controller) => controller.withdraw().await,
            Err(error) => error!(%error, "The controller has ended badly"),
        }
    }

    async fn end(self) {
        self.author.abort();
        self.stop_controller.send_replace(true);
        self.stop_worker.send_replace(true);
        if let Some(controller) = self.controller {
            drop(controller.await);
        }
        drop(self.worker.await);
    }
}

/// The CRD must be there, and we must be allowed to read policies.
async fn check_policies(client: &Client) -> Result<(), CallError> {
    let api = Api::<Object>::all_with(client.clone(), &policies::resource());
    call(api.list(&ListParams::default().limit(1))).await.map(drop)
}

fn hopeless(status: &kube::core::Status) -> anyhow::Error {
    match status.code {
        404 => anyhow!(
            "the server has no SidecarPolicies: install the CRD first, `scpol crd | kubectl apply -f -` (before 1.16: `scpol crd --api v1beta1`)"
        ),
        401 => anyhow!(
            "the server does not accept our credentials: check the kubeconfig or the service account's token ({})",
            status.message
        ),
        _ => anyhow!(
            "a right is missing without which the operator cannot start: {}; apply the shipped RBAC (`config/rbac`)",
            status.message
        ),
    }
}

/// Where API servers find the webhook, and the names that its certificate is to be for.
fn endpoint(url: Option<&Uri>, namespace: &str) -> (Endpoint, Vec<String>) {
    const SERVICE: &str = "scpol";
    let mut names = certs::service_names(SERVICE, namespace);
    let Some(url) = url else {
        let endpoint = Endpoint::Service { namespace: namespace.to_owned(), name: SERVICE.to_owned(), port: 443 };
        return (endpoint, names);
    };
    names.extend(url.host().map(|host| host.trim_matches(['[', ']']).to_owned()));
    (Endpoint::Url(url.to_string()), names)
}

fn webhook_url(text: &str) -> Result<Uri, String> {
    let example = "write it as `https://HOST:PORT`";
    let url: Uri = text.parse().map_err(|error| format!("{error}; {example}"))?;
    let is_plain =
        url.scheme_str() == Some("https") && url.host().is_some() && url.path() == "/" && url.query().is_none();
    if is_plain { Ok(url) } else { Err(format!("API servers call nothing else; {example}")) }
}

fn own_namespace(flag: Option<&str>) -> String {
    let in_pod = || {
        std::fs::read_to_string(NAMESPACE_FILE).ok().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
    };
    flag.map(str::to_owned).or_else(in_pod).unwrap_or_else(|| "scpol-system".into())
}
