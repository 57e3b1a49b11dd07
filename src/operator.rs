//! The state that every part of the operator process uses: the connection, the configuration, and the knowledge about the
//! cluster.

use crate::capabilities::Capabilities;
use crate::cluster::answer::CallError;
use crate::cluster::namespaces::{self, Namespaces};
use crate::cluster::policies::Snapshot;
use crate::cluster::servers::Servers;
use crate::cluster::watch::WatchState;
use crate::cluster::watch::shared::SharedWatches;
use crate::metrics::Metrics;
use crate::policy::Site;
use crate::rollout::stored::rolls;
use crate::survival::{self, lock};
use crate::timing::Timing;
use crate::workload::Kind;
use arc_swap::ArcSwap;
use kube::Client;
use kube::core::ApiResource;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::warn;

/// One operator process.
pub struct Operator {
    /// The connection for every request.
    pub client: Client,
    servers: Servers,
    /// The counters of the scrape.
    pub metrics: Arc<Metrics>,
    /// The period after which every watch lists its objects again.
    pub resync: Duration,
    /// The waiting times.
    pub timing: &'static Timing,
    /// The cache of Namespaces. It is filled once a policy needs more than their names.
    pub namespaces: Arc<Namespaces>,
    /// The watches of registrations.
    pub watches: SharedWatches,
    snapshots: watch::Receiver<Snapshot>,
    site: ArcSwap<Site>,
    capabilities: ArcSwap<Capabilities>,
    discovery: Mutex<Discovered>,
    namespaces_progress: watch::Sender<WatchState>,
}

/// How [`Operator::capabilities`] came about.
struct Discovered {
    /// See [`Operator::groups`].
    groups: BTreeSet<String>,
    /// The time of the last discovery.
    at: Instant,
}

impl Operator {
    /// An operator without knowledge about the cluster of `servers`. `snapshots` are the stored policies.
    pub fn new(
        servers: Servers,
        site: Arc<Site>,
        metrics: Arc<Metrics>,
        snapshots: watch::Receiver<Snapshot>,
        resync: Duration,
        timing: &'static Timing,
    ) -> Self {
        Self {
            watches: SharedWatches::new(servers.client.clone(), resync, &timing.watch),
            client: servers.client.clone(),
            servers,
            metrics,
            resync,
            timing,
            namespaces: Arc::default(),
            snapshots,
            site: ArcSwap::new(site),
            capabilities: ArcSwap::default(),
            discovery: Mutex::new(Discovered { groups: BTreeSet::new(), at: Instant::now() }),
            namespaces_progress: watch::Sender::new(WatchState::Starting),
        }
    }

    /// The stored policies, as last seen.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshots.borrow().clone()
    }

    /// The stored policies, as a channel that signals changes.
    pub fn snapshots(&self) -> watch::Receiver<Snapshot> {
        self.snapshots.clone()
    }

    /// The abilities of the API server at the last discovery.
    pub fn capabilities(&self) -> Arc<Capabilities> {
        self.capabilities.load_full()
    }

    /// Records the result of a discovery. An equal result keeps the old one, so that everything rendered with it stays valid.
    pub fn set_capabilities(&self, capabilities: Capabilities) {
        if *self.capabilities() == capabilities {
            return;
        }
        self.site.store(Arc::new(self.site().on(&capabilities)));
        self.capabilities.store(Arc::new(capabilities));
    }

    /// The flags, and the facts about the cluster that decisions need.
    pub fn site(&self) -> Arc<Site> {
        self.site.load_full()
    }

    /// Repeats the discovery, unless the last one is younger than `period`. Keeps the last result if the server does not
    /// answer.
    pub async fn refresh(&self, period: Duration) {
        if self.since_discovery() < period {
            return;
        }
        let groups = self.groups();
        match self.discover(&groups).await {
            // The leader asks again before it believes that a resource is gone.
            Ok(found) if self.capabilities().has_more_of(&groups, &found) => {}
            Ok(found) => self.set_capabilities(found),
            Err(error) => warn!(%error, "Cannot ask the server what it can do"),
        }
    }

    /// Discovers the abilities of the API server, in `groups` and in those of the built-in kinds.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn discover(&self, groups: &BTreeSet<String>) -> Result<Capabilities, CallError> {
        let discovered = self.servers.discover(|group| groups.contains(group)).await;
        lock(&self.discovery).at = Instant::now();
        discovered
    }

    /// The time since the last discovery.
    pub fn since_discovery(&self) -> Duration {
        lock(&self.discovery).at.elapsed()
    }

    /// The groups that [`Self::capabilities`] covers besides those of the built-in kinds.
    pub fn groups(&self) -> BTreeSet<String> {
        lock(&self.discovery).groups.clone()
    }

    /// Sets which groups [`Self::capabilities`] covers.
    pub fn set_groups(&self, groups: BTreeSet<String>) {
        lock(&self.discovery).groups = groups;
    }

    /// The progress of the cache of Namespaces.
    pub fn namespaces_progress(&self) -> watch::Receiver<WatchState> {
        self.namespaces_progress.subscribe()
    }

    /// Watches the Namespaces for ever, once a policy needs more than their names.
    pub async fn follow_namespaces(&self) {
        let needs_them = |snapshot: &Snapshot| {
            snapshot.policies.read_namespaces() || snapshot.policies.iter().any(|policy| rolls(policy))
        };
        if self.snapshots().wait_for(needs_them).await.is_err() {
            return;
        }
        let (client, namespaces) = (&self.client, &self.namespaces);
        let (progress, timing) = (&self.namespaces_progress, &self.timing.watch);
        let begin = || namespaces::follow(client.clone(), namespaces.clone(), self.resync, progress, timing);
        self.persist("watching Namespaces", begin).await;
    }

    /// Runs `work` until it ends by itself. After a panic, which is counted, `work` begins again.
    pub async fn persist<T, F: Future<Output = T>>(&self, what: &'static str, work: impl FnMut() -> F) -> T {
        survival::persist(&self.metrics, &self.timing.process, what, work).await
    }

    /// The address of `kind`; none if the server does not serve it.
    pub fn resource(&self, kind: &Kind) -> Option<ApiResource> {
        self.capabilities.load().resource(kind)
    }

    /// The kind as in a manifest, if the server serves it; else its resource.
    pub fn kind_name(&self, kind: &Kind) -> String {
        self.resource(kind).map_or_else(|| kind.resource.clone(), |resource| resource.kind)
    }

    /// The `apiVersion` through which `kind` is read; empty if the server does not serve it.
    pub fn api_version(&self, kind: &Kind) -> String {
        self.resource(kind).map(|resource| resource.api_version).unwrap_or_default()
    }
}
