//! The webhook of one replica, from the first policy that may need it to the end of the process. Every replica answers.

use super::author::keep;
use super::certs::{self, Certificates};
use super::server::{self, Webhook};
use super::tls::Tls;
use super::{NAME, force};
use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::capabilities::Capabilities;
use crate::cluster::client::backoff;
use crate::cluster::policies::Snapshot;
use crate::cluster::watch::WatchState;
use crate::compile::webhook::{Address, Endpoint, check_server};
use crate::engine::process::{Serving, Settings};
use crate::engine::reach::{Reach, Reachable};
use crate::engine::{self, EngineName, Unavailable};
use crate::operator::Operator;
use crate::policy::Policy;
use anyhow::Context;
use http::Uri;
use jiff::Timestamp;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::info;

/// The name of the Service by which API servers call the webhook.
const SERVICE: &str = "scpol";

/// Starts the webhook of this replica. `ready` is false while the webhook may be needed and does not serve yet.
///
/// # Errors
/// If the listen address is not usable.
pub(super) fn start(operator: &Arc<Operator>, settings: &Settings, ready: &Arc<AtomicBool>) -> anyhow::Result<Serving> {
    let listener = std::net::TcpListener::bind(settings.listen)
        .and_then(|listener| listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)))
        .with_context(|| format!("--webhook-listen {} cannot be used", settings.listen))?;
    let (endpoint, names) = endpoint(settings.url.as_ref(), &operator.site().operator_namespace);
    let certificates = Arc::new(certificates(operator, settings.certificates.as_deref(), names));
    let tls = Arc::new(match &settings.client_ca {
        Some(file) => Tls::for_clients(certificates.clone(), file).context("--webhook-client-ca cannot be used")?,
        None => Tls::new(certificates.clone()),
    });
    let (demand, demanded) = watch::channel(settings.author_check);
    let author_check = settings.author_check.then(|| watch::Sender::new(None));
    let (reached, reach) = watch::channel(Err(Unavailable::new(Code::Reconciling, "the webhook does not serve yet")));
    let (stop, stopped) = watch::channel(false);
    let replica = Replica {
        operator: operator.clone(),
        endpoint,
        certificates: certificates.clone(),
        tls,
        ready: ready.clone(),
        judges_authors: settings.author_check,
        demanded,
    };
    let task = tokio::spawn(replica.run(listener, reached, stopped));
    let (operator, repair_hold) = (operator.clone(), settings.repair_hold);
    let (keeping, published) = (author_check.clone(), author_check);
    let author_reach = reach.clone();
    Ok(Serving {
        reach,
        demand,
        published: Arc::new(move |bundle| {
            // The registration of the author check must have the bundle, too.
            if published.as_ref().is_none_or(|published| published.borrow().as_deref() == Some(bundle)) {
                certificates.is_published(bundle);
            }
        }),
        beside: Arc::new(move || {
            let settings = keep::Settings { repair_hold, reach: author_reach.clone(), published: keeping.clone() };
            Box::pin(keep::keep(operator.clone(), settings))
        }),
        stop,
        task,
    })
}

fn certificates(operator: &Operator, folder: Option<&Path>, names: Vec<String>) -> Certificates {
    let (metrics, timing) = (operator.metrics.clone(), &operator.timing.webhook);
    match folder {
        Some(folder) => Certificates::of_files(folder, names, metrics, timing),
        None => {
            let namespace = &operator.site().operator_namespace;
            Certificates::of_secret(operator.client.clone(), namespace, names, metrics, timing)
        }
    }
}

/// The address of the webhook for API servers, and the names that its certificate must cover.
fn endpoint(url: Option<&Uri>, namespace: &str) -> (Endpoint, Vec<String>) {
    let mut names = certs::service_names(SERVICE, namespace);
    let Some(url) = url else {
        let endpoint = Endpoint::Service { namespace: namespace.to_owned(), name: SERVICE.to_owned(), port: 443 };
        return (endpoint, names);
    };
    names.extend(url.host().map(|host| host.trim_matches(['[', ']']).to_owned()));
    (Endpoint::Url(url.to_string()), names)
}

/// The state of the webhook of this replica.
struct Replica {
    operator: Arc<Operator>,
    /// The address at which API servers call.
    endpoint: Endpoint,
    certificates: Arc<Certificates>,
    tls: Arc<Tls>,
    /// True while no policy needs the webhook, and again once it serves and knows the policies in effect.
    ready: Arc<AtomicBool>,
    judges_authors: bool,
    /// True once the controller finds that a policy can be delivered only by webhook. True from the start if authors are
    /// checked.
    demanded: watch::Receiver<bool>,
}

impl Replica {
    /// Serves on `listener`, from the first policy that may need it until `stop` is true. Publishes in `reached` how API
    /// servers reach it.
    async fn run(self, listener: TcpListener, reached: watch::Sender<Reachable>, mut stop: watch::Receiver<bool>) {
        let (mut snapshots, mut demanded) = (self.operator.snapshots(), self.demanded.clone());
        let needed = snapshots.wait_for(|snapshot| is_needed(snapshot, &self.operator.capabilities()));
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
        let webhook = Webhook::new(self.operator.clone());
        let webhook = Arc::new(if self.judges_authors { webhook.judging_authors() } else { webhook });
        webhook.is_read.send_replace(false);
        let replica = Arc::new(self);
        let tasks = [
            tokio::spawn(replica.clone().follow_registrations(webhook.clone())),
            tokio::spawn(replica.clone().keep_certificate(webhook.clone(), reached)),
            tokio::spawn(replica.clone().survey()),
            tokio::spawn(replica.clone().settle(webhook.clone())),
            tokio::spawn(replica.clone().follow_clients()),
        ];
        if let Ok(address) = listener.local_addr() {
            info!(%address, "The webhook serves");
        }
        server::serve(listener, replica.tls.clone(), webhook, stop).await;
        for task in tasks {
            task.abort();
        }
    }

    async fn follow_registrations(self: Arc<Self>, webhook: Arc<Webhook>) {
        let begin = || force::follow(&self.operator, &webhook);
        self.operator.persist("watching registrations", begin).await;
    }

    async fn keep_certificate(self: Arc<Self>, webhook: Arc<Webhook>, reached: watch::Sender<Reachable>) {
        let begin = || self.keep(&webhook, &reached);
        self.operator.persist("keeping the certificate", begin).await;
    }

    async fn follow_clients(self: Arc<Self>) {
        let begin = || self.tls.run(self.operator.timing.webhook.certificate_poll);
        self.operator.persist("reading the authority of clients", begin).await;
    }

    /// Refreshes now and then whether the server has native sidecars, because a node with an older kubelet may have joined. The
    /// leader refreshes that more often.
    async fn survey(self: Arc<Self>) {
        let begin = || async {
            let period = self.operator.timing.controller.discovery_at_rest;
            loop {
                tokio::time::sleep(period).await;
                self.operator.refresh(period).await;
            }
        };
        self.operator.persist("asking what the server can do", begin).await;
    }

    /// Marks the replica ready once the webhook knows which policies are in effect, and the Namespaces that they read.
    async fn settle(self: Arc<Self>, webhook: Arc<Webhook>) {
        if webhook.is_read.subscribe().wait_for(|is_read| *is_read).await.is_err() {
            return;
        }
        if webhook.policies.load().read_namespaces() {
            let mut namespaces = self.operator.namespaces_progress();
            let _ = namespaces.wait_for(|progress| *progress != WatchState::Starting).await;
        }
        self.ready.store(true, Ordering::Relaxed);
    }

    /// Waits for a certificate.
    async fn certify(&self, reached: &watch::Sender<Reachable>) {
        let timing = &self.operator.timing.webhook;
        let longest = timing.longest_certificate_pause;
        let mut pauses = backoff(timing.first_certificate_pause, longest);
        while let Err(error) = self.certificates.refresh().await {
            let reason = self.certificates.trouble(Timestamp::now()).unwrap_or_else(|| error.reason());
            tell(reached, Err(reason));
            tokio::time::sleep(pauses.next().unwrap_or(longest)).await;
        }
    }

    /// Keeps the certificate. Publishes each new bundle, and problems with the certificate or with invalid reviews.
    async fn keep(&self, webhook: &Webhook, reached: &watch::Sender<Reachable>) {
        let (certificates, look) = (&self.certificates, self.operator.timing.webhook.look);
        let mut changed = certificates.changed();
        let telling = async {
            loop {
                // An unreachable server is temporary, and other code reports it.
                let trouble = certificates.trouble(Timestamp::now()).filter(|trouble| trouble.code != Code::ServerAway);
                let trouble = trouble.or_else(|| webhook.trouble(Instant::now()));
                let address = Address { endpoint: self.endpoint.clone(), ca_bundle: certificates.ca_bundle() };
                tell(reached, Ok(Arc::new(Reach { address, trouble })));
                if let Ok(Err(_)) = tokio::time::timeout(look, changed.changed()).await {
                    return;
                }
            }
        };
        tokio::join!(certificates.run(), telling);
    }
}

/// Whether a policy may be delivered by webhook on this server.
fn is_needed(snapshot: &Snapshot, capabilities: &Capabilities) -> bool {
    // An engine that completes stored objects needs no webhook.
    let has_worker = engine::all().any(|engine| engine.is_per_policy() && engine.check(capabilities).is_ok());
    let is_delivered = |policy: &Policy| {
        let status = snapshot.stored.get(&policy.reference()).map(|stored| &stored.status["engine"]);
        let engines = status.and_then(Value::as_str).unwrap_or_default();
        EngineName::listed(engines).any(|engine| engine == NAME)
    };
    let may_need = |policy: &Policy| match policy.spec.engine {
        EngineChoice::Webhook => true,
        // The status shows whether another replica found that the webhook is needed.
        EngineChoice::Auto => !has_worker || policy.kinds.iter().any(|kind| kind.is_job()) || is_delivered(policy),
        _ => false,
    };
    let mut enforced = snapshot.policies.iter().filter(|policy| policy.is_enforced());
    check_server(capabilities).is_ok() && enforced.any(|policy| may_need(policy))
}

/// Publishes how the webhook is reached, if that has changed.
fn tell(reached: &watch::Sender<Reachable>, reachable: Reachable) {
    reached.send_if_modified(|known| {
        let is_new = *known != reachable;
        *known = reachable;
        is_new
    });
}
