//! The parts of the operator process, from the start to a stop in good order.

use super::Options;
use super::reach;
use super::term::Term;
use crate::api::code::Code;
use crate::cli::End;
use crate::cluster::capabilities::Capabilities;
use crate::cluster::client;
use crate::cluster::events::Recorder;
use crate::cluster::lease::{Lease, Role};
use crate::cluster::policies::{self, Snapshot};
use crate::controller;
use crate::engine::Unavailable;
use crate::engine::reach::Endpoint;
use crate::engine::reach::Reachable;
use crate::engine::webhook::certs::{self, Certificates};
use crate::engine::webhook::replica::Replica;
use crate::metrics::Metrics;
use crate::policy::Site;
use crate::serving::{self, Health};
use crate::survival;
use crate::timing::Timing;
use crate::workloads::watch::{self as workloads, Shared};
use anyhow::{Context, Result, anyhow};
use http::Uri;
use kube::Client;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

/// Where a pod finds the name of its own namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Everything that lives as long as the process.
pub(super) struct Process {
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
    pub(super) async fn start(options: &Options) -> Result<Self> {
        let Base { client, site, metrics, health, capabilities, identity, lease } = Base::reach(options).await?;
        let timing = options.waiting.timing();
        let (recorder, recording) = Recorder::new(client.clone(), identity, metrics.clone());
        let snapshots = follow_policies(&client, &site, &metrics, options.resync, timing);
        let (endpoint, names) = endpoint(options.webhook_url.as_ref(), &site.operator_namespace);
        let certificates = Arc::new(match &options.webhook_cert_dir {
            Some(folder) => Certificates::of_files(folder, names, metrics.clone(), &timing.webhook),
            None => {
                let namespace = &site.operator_namespace;
                Certificates::of_secret(client.clone(), namespace, names, metrics.clone(), &timing.webhook)
            }
        });
        let (demand, demanded) = watch::channel(options.author_check);
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
        let Webhook { reach, serving: webhook, stop: stop_webhook } = Webhook::start(replica, options).await?;
        let author_check = options.author_check.then(|| watch::Sender::new(None));
        let repair_hold = options.repair_hold;
        let settings =
            controller::Settings { repair_hold, reach, demand, certificates: Some(certificates), author_check };
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
            settings,
            grace: options.shutdown_grace,
            recording: tokio::spawn(recording),
            webhook,
            stop_webhook,
        })
    }

    /// Leads or follows until a signal comes, then stops in good order.
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

/// The parts that all others need.
struct Base {
    client: Client,
    site: Arc<Site>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    capabilities: Capabilities,
    identity: String,
    lease: Lease,
}

impl Base {
    /// Serves metrics and probes, and waits for the API server.
    async fn reach(options: &Options) -> Result<Self> {
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
        let capabilities = health.alive(reach::server(&client, &timing.process)).await?;
        let version = capabilities
            .lease_version
            .clone()
            .context("this server has no Leases (coordination.k8s.io), which it needs from Kubernetes 1.12")?;
        info!(server = capabilities.version, operator = env!("CARGO_PKG_VERSION"), namespace, identity, "Connected");
        let duration = options.lease_duration;
        let lease = Lease::new(client.clone(), &version, &namespace, &identity, duration, &timing.process);
        Ok(Self { client, site, metrics, health, capabilities, identity, lease })
    }
}

/// The policies, followed for as long as the process lives.
fn follow_policies(
    client: &Client,
    site: &Arc<Site>,
    metrics: &Arc<Metrics>,
    resync: Duration,
    timing: &'static Timing,
) -> watch::Receiver<Snapshot> {
    let (sender, snapshots) = watch::channel(Snapshot::default());
    let (client, site, metrics) = (client.clone(), site.clone(), metrics.clone());
    tokio::spawn(async move {
        let begin = || policies::follow(client.clone(), site.clone(), resync, &sender, &metrics, &timing.watch);
        survival::persist(&metrics, &timing.process, "watching policies", begin).await;
    });
    snapshots
}

/// The webhook of this replica, which serves from when a policy may need it.
struct Webhook {
    reach: watch::Receiver<Reachable>,
    serving: JoinHandle<()>,
    stop: watch::Sender<bool>,
}

impl Webhook {
    async fn start(replica: Replica, options: &Options) -> Result<Self> {
        let listener = TcpListener::bind(options.webhook_listen)
            .await
            .with_context(|| format!("--webhook-listen {} cannot be used", options.webhook_listen))?;
        let (reached, reach) =
            watch::channel(Err(Unavailable::new(Code::Reconciling, "the webhook does not serve yet")));
        let (stop, stopped) = watch::channel(false);
        Ok(Self { reach, serving: tokio::spawn(replica.run(listener, reached, stopped)), stop })
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

fn own_namespace(flag: Option<&str>) -> String {
    let in_pod = || {
        std::fs::read_to_string(NAMESPACE_FILE).ok().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
    };
    flag.map(str::to_owned).or_else(in_pod).unwrap_or_else(|| "scpol-system".into())
}
