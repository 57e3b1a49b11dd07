//! The webhook of one replica: from when a policy may need it to the end of the process. Every replica answers.

use super::certs::Certificates;
use super::server::{self, Webhook};
use super::{check, force};
use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::cluster::capabilities::Capabilities;
use crate::cluster::client::backoff;
use crate::cluster::namespaces;
use crate::cluster::policies::Snapshot;
use crate::engine::EngineName;
use crate::engine::reach::{Endpoint, Reach, Reachable};
use crate::metrics::Metrics;
use crate::policy::{Policy, Site};
use crate::survival;
use crate::timing::{self, Timing};
use jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::{info, warn};

/// What a replica serves with.
pub struct Replica {
    /// For every request.
    pub client: Client,
    /// What the server offers.
    pub capabilities: Arc<Capabilities>,
    /// What flags say.
    pub site: Arc<Site>,
    /// After how long everything is read anew.
    pub resync: Duration,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The policies.
    pub snapshots: watch::Receiver<Snapshot>,
    /// Where API servers are to call.
    pub endpoint: Endpoint,
    /// By what they know us.
    pub certificates: Arc<Certificates>,
    /// True while nobody needs the webhook, and once it serves and knows what is in force.
    pub ready: Arc<AtomicBool>,
    /// The authors of policies are judged, too.
    pub judges_authors: bool,
    /// True once the controller has found that a policy cannot be delivered otherwise, and from the start where authors are judged.
    pub demanded: watch::Receiver<bool>,
    /// How long it waits for anything.
    pub timing: &'static Timing,
}

impl Replica {
    /// Serves on `listener` from when a policy may need it until `stop` is true, and tells how it is `reached`.
    pub async fn run(self, listener: TcpListener, reached: watch::Sender<Reachable>, mut stop: watch::Receiver<bool>) {
        let (mut snapshots, mut demanded) = (self.snapshots.clone(), self.demanded.clone());
        let needed = snapshots.wait_for(|snapshot| is_needed(snapshot, &self.capabilities));
        tokio::select! {
            needed = needed => if needed.is_err() { return },
            Ok(_) = demanded.wait_for(|demanded| *demanded) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        self.ready.store(false, Ordering::Relaxed);
        tokio::select! {
            () = self.certify(&reached) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        let site = Site { native_sidecars: self.capabilities.native_sidecars, ..Site::clone(&self.site) };
        let webhook = Webhook::new(self.client.clone(), Arc::new(site), self.metrics.clone(), &self.timing.webhook);
        let webhook = Arc::new(if self.judges_authors { webhook.judging_authors() } else { webhook });
        webhook.settled.send_replace(false);
        let tasks = [
            tokio::spawn(self.follow_registrations(webhook.clone())),
            tokio::spawn(self.follow_namespaces(webhook.clone())),
            tokio::spawn(self.keep_certificate(webhook.clone(), reached)),
            tokio::spawn(self.survey(webhook.clone())),
            tokio::spawn(self.settle(&webhook)),
        ];
        info!(address = ?listener.local_addr().ok(), "The webhook serves");
        server::serve(listener, self.certificates.clone(), webhook, stop).await;
        for task in tasks {
            task.abort();
        }
    }

    fn follow_registrations(&self, webhook: Arc<Webhook>) -> impl Future<Output = ()> + use<> {
        let (client, capabilities, resync) = (self.client.clone(), self.capabilities.clone(), self.resync);
        let (snapshots, metrics, timing) = (self.snapshots.clone(), self.metrics.clone(), self.timing);
        async move {
            let begin = || force::follow(&client, &capabilities, resync, snapshots.clone(), &webhook, &timing.watch);
            survival::persist(&metrics, &timing.process, "watching registrations", begin).await;
        }
    }

    fn follow_namespaces(&self, webhook: Arc<Webhook>) -> impl Future<Output = ()> + use<> {
        let (progress, _) = watch::channel(crate::cluster::client::Progress::Starting);
        let (client, resync, snapshots) = (self.client.clone(), self.resync, self.snapshots.clone());
        let (metrics, timing) = (self.metrics.clone(), self.timing);
        async move {
            let begin = || follow_namespaces(&client, resync, snapshots.clone(), &webhook, &progress, &timing.watch);
            survival::persist(&metrics, &timing.process, "watching Namespaces", begin).await;
        }
    }

    fn keep_certificate(
        &self,
        webhook: Arc<Webhook>,
        reached: watch::Sender<Reachable>,
    ) -> impl Future<Output = ()> + use<> {
        let (certificates, endpoint) = (self.certificates.clone(), self.endpoint.clone());
        let (metrics, timing) = (self.metrics.clone(), self.timing);
        async move {
            let begin = || keep(&certificates, &webhook, &endpoint, &reached, timing.webhook.look);
            survival::persist(&metrics, &timing.process, "keeping the certificate", begin).await;
        }
    }

    fn survey(&self, webhook: Arc<Webhook>) -> impl Future<Output = ()> + use<> {
        let (client, metrics, timing) = (self.client.clone(), self.metrics.clone(), self.timing);
        async move {
            let begin = || survey(&client, &webhook, timing.webhook.survey);
            survival::persist(&metrics, &timing.process, "asking what the server can do", begin).await;
        }
    }

    /// Marks the replica ready once the webhook knows which policies are in force.
    fn settle(&self, webhook: &Webhook) -> impl Future<Output = ()> + use<> {
        let (mut settled, ready) = (webhook.settled.subscribe(), self.ready.clone());
        async move {
            if settled.wait_for(|settled| *settled).await.is_ok() {
                ready.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Waits for a certificate.
    async fn certify(&self, reached: &watch::Sender<Reachable>) {
        let longest = self.timing.webhook.longest_certificate_pause;
        let mut pauses = backoff(self.timing.webhook.first_certificate_pause, longest);
        while let Err(error) = self.certificates.refresh().await {
            let reason = self.certificates.trouble(Timestamp::now()).unwrap_or_else(|| error.reason());
            tell(reached, Err(reason));
            tokio::time::sleep(pauses.next().unwrap_or(longest)).await;
        }
    }
}

/// True if a policy may be delivered by webhook here.
fn is_needed(snapshot: &Snapshot, capabilities: &Capabilities) -> bool {
    let has_initializers = EngineName::Initializer.check(capabilities).is_ok();
    let is_delivered = |policy: &Policy| {
        let status = snapshot.stored.get(&policy.name).map(|stored| &stored.status["engine"]);
        let engines = status.and_then(Value::as_str).unwrap_or_default();
        EngineName::listed(engines).any(|engine| engine == EngineName::Webhook)
    };
    let may_need = |policy: &Policy| match policy.spec.engine {
        EngineChoice::Webhook => true,
        // What another replica has found out stands in the status.
        EngineChoice::Auto => {
            !has_initializers || policy.kinds.iter().any(|kind| kind.is_job()) || is_delivered(policy)
        }
        EngineChoice::Initializer | EngineChoice::MutatingAdmissionPolicy => false,
    };
    let mut enforced = snapshot.policies.iter().filter(|policy| policy.is_enforced());
    check(capabilities).is_ok() && enforced.any(|policy| may_need(policy))
}

/// Tells how the webhook is reached, if that is news.
fn tell(reached: &watch::Sender<Reachable>, reachable: Reachable) {
    reached.send_if_modified(|known| {
        let is_new = *known != reachable;
        *known = reachable;
        is_new
    });
}

/// Keeps the certificate, and tells when registrations must follow, and what is wrong with it, or with what is posted.
async fn keep(
    certificates: &Certificates,
    webhook: &Webhook,
    endpoint: &Endpoint,
    reached: &watch::Sender<Reachable>,
    look: Duration,
) {
    let mut changed = certificates.changed();
    let telling = async {
        loop {
            // That the server is away passes, and is told otherwise.
            let trouble = certificates.trouble(Timestamp::now()).filter(|trouble| trouble.code != Code::ServerAway);
            let trouble = trouble.or_else(|| webhook.trouble(Instant::now()));
            let ca_bundle = certificates.ca_bundle();
            tell(reached, Ok(Arc::new(Reach { endpoint: endpoint.clone(), ca_bundle, trouble })));
            if let Ok(Err(_)) = tokio::time::timeout(look, changed.changed()).await {
                return;
            }
        }
    };
    tokio::join!(certificates.run(), telling);
}

/// Asks the server now and then whether native sidecars are to be had: a node with an older kubelet may have come.
async fn survey(client: &Client, webhook: &Webhook, period: Duration) {
    loop {
        tokio::time::sleep(period).await;
        match Capabilities::discover(client, |_| false).await {
            Ok(Capabilities { native_sidecars, .. }) => {
                let site = Site { native_sidecars, ..Site::clone(&webhook.site.load()) };
                webhook.site.store(Arc::new(site));
            }
            Err(error) => warn!(%error, "Cannot ask the server what it can do"),
        }
    }
}

/// Follows the Namespaces from when a policy decides by more than their names.
async fn follow_namespaces(
    client: &Client,
    resync: Duration,
    mut snapshots: watch::Receiver<Snapshot>,
    webhook: &Webhook,
    progress: &watch::Sender<crate::cluster::client::Progress>,
    timing: &'static timing::Watch,
) {
    if snapshots.wait_for(|snapshot| snapshot.policies.read_namespaces()).await.is_err() {
        warn!("The policies are not followed any more");
        return;
    }
    namespaces::follow(client.clone(), webhook.namespaces.clone(), resync, progress, timing).await;
}
