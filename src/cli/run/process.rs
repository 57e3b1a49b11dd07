//! The parts of the operator process, from the start to an orderly stop.

use super::RunOptions;
use super::reach;
use super::term::{Term, Wanted};
use crate::capabilities::Capabilities;
use crate::cli::End;
use crate::cli::signals::Signals;
use crate::cluster::events::Recorder;
use crate::cluster::lease::{Lease, Role};
use crate::cluster::policies::{self, PolicyLimits, Snapshot};
use crate::cluster::rights::may_read_revisions;
use crate::cluster::servers::Servers;
use crate::controller;
use crate::engine;
use crate::engine::process::Serving;
use crate::metrics::Metrics;
use crate::operator::Operator;
use crate::policy::Site;
use crate::serving::{self, Health, Scrapers};
use crate::survival;
use crate::timing::Timing;
use crate::workloads::Workloads;
use crate::workloads::waiting::Waiting;
use anyhow::{Context, Result, anyhow};
use kube::Client;
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

/// The file in a pod with the name of its namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The parts that live as long as the process.
pub(super) struct Process {
    operator: Arc<Operator>,
    health: Arc<Health>,
    recorder: Recorder,
    lease: Lease,
    tell_injected: bool,
    wanted: Wanted,
    engines: engine::process::Settings,
    serving: Serving,
    grace: Duration,
    recording: JoinHandle<()>,
}

impl Process {
    /// Connects to the API server, and checks the preconditions.
    pub(super) async fn start(options: &RunOptions) -> Result<Self> {
        let Base { servers, site, metrics, health, capabilities, identity, lease } = Base::reach(options).await?;
        let timing = options.waiting.timing();
        let client = servers.client.clone();
        let (recorder, recording) = Recorder::new(client.clone(), identity, metrics.clone());
        let (revisions, wants_revisions) = watch::channel(false);
        let snapshots = follow_policies(&client, &site, &metrics, options, timing, wants_revisions);
        let operator = Arc::new(Operator::new(servers, site, metrics, snapshots, options.times.resync, timing));
        operator.set_capabilities(capabilities);
        if options.duties.rollouts > 0 {
            tokio::spawn(ask_for_revisions(operator.clone(), revisions.clone()));
        }
        let followed = operator.clone();
        tokio::spawn(async move { followed.follow_namespaces().await });
        let engines = engine::process::Settings {
            workers: options.replica.workers.into(),
            priority_lane: options.duties.priority_lane,
            listen: options.ports.webhook_listen,
            url: options.ports.webhook_url.clone(),
            certificates: options.ports.webhook_cert_dir.clone(),
            client_ca: options.ports.webhook_client_ca.clone(),
            author_check: options.author_check,
            repair_hold: options.times.repair_hold,
        };
        let serving = engine::serve(&operator, &engines, &health.is_webhook_ready)?;
        Ok(Self {
            operator,
            health,
            recorder,
            lease,
            tell_injected: options.duties.events_injected,
            wanted: Wanted { reports: options.duties.reports.form(), rollouts: options.duties.rollouts, revisions },
            engines,
            serving,
            grace: options.times.shutdown_grace,
            recording: tokio::spawn(recording),
        })
    }

    /// Leads or follows until a signal arrives, then stops in order.
    pub(super) async fn run(mut self, mut signals: Signals) -> Result<End> {
        let mut term: Option<Term> = None;
        let mut role = Role::Follower;
        let (since, mut looked) = (Instant::now(), false);
        loop {
            self.health.beat();
            match self.health.alive(self.lease.look()).await {
                Ok(seen) => {
                    (role, looked) = (seen, true);
                    if role == Role::Follower {
                        self.health.is_role_ready.store(true, Ordering::Relaxed);
                    }
                }
                Err(error)
                    if error.is_forbidden() && !looked && since.elapsed() > self.operator.timing.process.rights =>
                {
                    return Err(anyhow!(
                        "cannot use the lease `scpol` in namespace `{}`: {error}; apply the shipped RBAC",
                        self.operator.site().operator_namespace
                    ));
                }
                Err(error) => warn!(%error, "Cannot look at the lease; going on as before"),
            }
            self.operator.metrics.process.leader.set(i64::from(role == Role::Leader));
            match (role, &mut term) {
                (Role::Leader, None) => term = self.lead().await,
                (Role::Follower, Some(_)) => {
                    warn!("Another replica leads; this one follows");
                    if let Some(term) = term.take() {
                        self.health.alive(term.end()).await;
                        self.operator.metrics.forget_workloads();
                    }
                    self.health.watch_worker(None);
                }
                _ => {}
            }
            let mut snapshots = self.operator.snapshots();
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

    /// Begins a term of leadership; none if another replica took the lease in the meantime.
    async fn lead(&mut self) -> Option<Term> {
        info!("This replica leads");
        let (operator, groups) = (self.operator.clone(), BTreeSet::new());
        let (fresh, role) = self.lease.hold_during(self.health.alive(operator.discover(&groups))).await;
        if role == Role::Follower {
            return None;
        }
        if let Ok(fresh) = fresh {
            operator.set_groups(groups);
            operator.set_capabilities(fresh);
        }
        let worker = engine::worker(&operator, &self.engines);
        let waiting = worker.clone().map(|worker| worker as Arc<dyn Waiting>);
        let workloads = Arc::new(Workloads::new(operator, self.recorder.clone(), self.tell_injected, waiting));
        if let Some(worker) = worker.clone() {
            self.health.watch_worker(Some(Box::new(move || worker.since_beat())));
        }
        let settings = controller::Settings {
            repair_hold: self.engines.repair_hold,
            reach: self.serving.reach.clone(),
            demand: self.serving.demand.clone(),
            published: self.serving.published.clone(),
            board: Arc::default(),
        };
        let ready = self.health.is_role_ready.clone();
        Some(Term::begin(&workloads, worker, settings, ready, self.serving.beside.clone(), self.wanted.clone()))
    }

    /// Hands over to another replica. The last replica unregisters, so that no create waits for ever.
    async fn stop(mut self, term: Option<Term>, mut signals: Signals) -> Result<End> {
        info!(grace = %humantime::format_duration(self.grace), "Stopping");
        let (since, timing) = (Instant::now(), &self.operator.timing.stop);
        let leave = async {
            let Some(mut term) = term else { return };
            // The worker continues, so that no create waits for the handover.
            self.lease.release().await;
            // A new replica may have adopted the registrations. So this one unregisters only while it holds the lease again, if
            // it can.
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
            // API servers learn only after a while that this replica must not be called any more.
            if self.serving.reach.borrow().is_ok() {
                tokio::time::sleep(timing.leaving.saturating_sub(since.elapsed())).await;
            }
            self.serving.stop.send_replace(true);
            drop((&mut self.serving.task).await);
        };
        tokio::select! {
            () = leave => {}
            () = tokio::time::sleep(self.grace) => warn!("The time to stop is over"),
            () = signals.next() => {
                warn!("A second signal: ending at once");
                return Ok(End::Finding);
            }
        }
        // These hold the queue of events. Without them its writer ends by itself.
        self.health.watch_worker(None);
        drop(self.recorder);
        let flush = timing.event_flush.min(self.grace.saturating_sub(since.elapsed()));
        drop(tokio::time::timeout(flush, self.recording).await);
        info!(took = %humantime::format_duration(Duration::from_millis(since.elapsed().as_millis() as u64)), "Stopped");
        Ok(End::Fine)
    }
}

/// The parts that all others need.
struct Base {
    servers: Servers,
    site: Arc<Site>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    capabilities: Capabilities,
    identity: String,
    lease: Lease,
}

impl Base {
    /// Serves metrics and probes, and waits for the API server.
    async fn reach(options: &RunOptions) -> Result<Self> {
        let namespace = own_namespace(options.replica.operator_namespace.as_deref());
        let mut site = Site::new(
            &namespace,
            options.replica.protected_namespaces.clone(),
            options.replica.initializer_names.clone(),
        );
        site.trust = options.trust.trust();
        let site = Arc::new(site);
        let identity = options.replica.pod_name.clone().unwrap_or_else(|| format!("scpol-{:08x}", fastrand::u32(..)));
        let metrics = Arc::new(Metrics::new(options.metrics_namespaces as usize));
        let config = options.kubeconfig.access().config()?;
        let timing = options.waiting.timing();
        let servers = Servers::connect(config, metrics.clone())?;
        let health = Arc::new(Health::new(&timing.process));
        let listener = TcpListener::bind(options.ports.listen)
            .with_context(|| format!("--listen {} cannot be used", options.ports.listen))?;
        info!(address = %listener.local_addr()?, "Serving");
        let scrapers = || Scrapers::new(servers.client.clone(), &timing.process);
        let scrapers = options.ports.metrics_authorization.then(scrapers);
        serving::start(listener, metrics.clone(), health.clone(), scrapers, &timing.connections)?;
        let capabilities = health.alive(reach::server(&servers, &timing.process)).await?;
        let version = capabilities
            .lease_version
            .clone()
            .context("this server has no Leases (coordination.k8s.io), which it needs from Kubernetes 1.12")?;
        info!(server = capabilities.version, operator = env!("CARGO_PKG_VERSION"), namespace, identity, "Connected");
        let duration = options.times.lease_duration;
        let lease = Lease::new(servers.client.clone(), &version, &namespace, &identity, duration, &timing.process);
        Ok(Self { servers, site, metrics, health, capabilities, identity, lease })
    }
}

/// The policies, watched as long as the process lives.
fn follow_policies(
    client: &Client,
    site: &Arc<Site>,
    metrics: &Arc<Metrics>,
    options: &RunOptions,
    timing: &'static Timing,
    wants_revisions: watch::Receiver<bool>,
) -> watch::Receiver<Snapshot> {
    let (sender, snapshots) = watch::channel(Snapshot::default());
    let (client, site, metrics) = (client.clone(), site.clone(), metrics.clone());
    let limits = PolicyLimits {
        max_policies: usize::from(options.max_policies),
        resync: options.times.resync,
        are_rollouts_on: options.duties.rollouts > 0,
        wants_revisions,
    };
    tokio::spawn(async move {
        let begin = || policies::follow(client.clone(), site.clone(), limits.clone(), &sender, &metrics, &timing.watch);
        survival::persist(&metrics, &timing.process, "watching policies", begin).await;
    });
    snapshots
}

/// Sets `wanted` once this replica may read revisions: by them, each replica recognizes the content of earlier versions in what is
/// created, whether or not a policy rolls.
async fn ask_for_revisions(operator: Arc<Operator>, wanted: watch::Sender<bool>) {
    let site = operator.site();
    while !*wanted.borrow() && !may_read_revisions(&operator.client, &site.operator_namespace).await {
        tokio::time::sleep(operator.timing.rollout.rights).await;
    }
    wanted.send_if_modified(|wants| !std::mem::replace(wants, true));
}

fn own_namespace(flag: Option<&str>) -> String {
    let in_pod = || {
        std::fs::read_to_string(NAMESPACE_FILE).ok().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
    };
    flag.map(str::to_owned).or_else(in_pod).unwrap_or_else(|| "scpol-system".into())
}
