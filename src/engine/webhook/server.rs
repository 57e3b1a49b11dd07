//! The HTTPS server that API servers call: `POST /mutate/{revision}`, `POST /validate/{revision}`, `GET /livez`, and
//! `POST /author/{revision}` for the check of authors ([`author`]).
//!
//! # Limits, and their reasons
//! Callers are not authenticated, unless `--webhook-client-ca` is set: any client that reaches the port can post. So the
//! resources of each call are limited. The module `listener` limits connections; those that have sent a valid review
//! are kept, and go last. The module `bodies` limits memory: all reviews share 32 MiB, and further ones wait as long as
//! their callers do. A body must come within 10 s ([`timing::Webhook::body`]).

use super::NAME;
use super::author::rights::Rights;
use super::bodies::{Bodies, Unread};
use super::tls::Tls;
use crate::api::code::Code;
use crate::decision::Outcome;
use crate::engine::Unavailable;
use crate::listener::{self, Connection, Ending, Limits};
use crate::operator::Operator;
use crate::outside::{escaped, shown};
use crate::policy::{Policies, Policy};
use crate::review::author::{self, Judgement};
use crate::review::{Answer, Call, Caller, Decided, Invalid, Review, Told};
use crate::survival::{self, lock};
use crate::telemetry;
use crate::timing;
use arc_swap::{ArcSwap, ArcSwapOption};
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use futures::FutureExt;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tracing::{debug, error, warn};

/// The most open connections. An API server keeps 25 for each of our addresses (client-go, `idleConnsPerHost`), and
/// opens more for concurrent creates.
pub const CONNECTIONS: usize = 1024;

/// The most reports that wait until their revision has been seen. Further ones are dropped.
const UNSEEN: usize = 64;

/// Registrations by revision.
pub type Revisions = BTreeMap<String, Registered>;

/// What is in effect for the calls of one registration.
#[derive(Debug)]
pub struct Registered {
    /// The names of the policies that it lists.
    pub names: BTreeSet<String>,
    /// All policies that are in effect by webhook, those that it lists with the spec that it lists. During an edit, two
    /// registrations may list one policy with two specs.
    pub policies: Policies,
}

/// The state that answers calls. Policies can be replaced at any time: the next call uses them.
pub struct Webhook {
    /// The policies that are in effect by webhook, for calls of registrations that we have not seen yet.
    pub policies: ArcSwap<Policies>,
    /// The process: its flags, the cache of Namespaces, its counters.
    pub operator: Arc<Operator>,
    /// The registrations that we have seen. A probe through any other is not answered yet. None if no task follows the
    /// registrations: then every probe is answered.
    pub revisions: ArcSwapOption<Revisions>,
    /// Revisions that were registered before, and when that was seen last. API servers still call by them for a moment.
    left: Mutex<BTreeMap<String, Instant>>,
    /// The places for reports that wait until their revision has been seen.
    unseen: Arc<Semaphore>,
    /// Whether the state above is complete. It is false during the first read, when no review is answered, because a
    /// workload would get no sidecar.
    pub is_read: watch::Sender<bool>,
    /// Checks the rights of authors; none if authors are not checked here.
    rights: Option<Rights>,
    /// The time of the last invalid review.
    puzzled: Mutex<Option<Instant>>,
}

impl Webhook {
    /// A webhook without policies.
    pub fn new(operator: Arc<Operator>) -> Self {
        Self {
            policies: ArcSwap::default(),
            operator,
            revisions: ArcSwapOption::empty(),
            left: Mutex::default(),
            unseen: Arc::new(Semaphore::new(UNSEEN)),
            is_read: watch::Sender::new(true),
            rights: None,
            puzzled: Mutex::default(),
        }
    }

    fn timing(&self) -> &'static timing::Webhook {
        &self.operator.timing.webhook
    }

    /// Records what is registered.
    pub fn register(&self, revisions: Revisions) {
        let now = Instant::now();
        let before = self.revisions.swap(Some(Arc::new(revisions)));
        let mut left = lock(&self.left);
        left.retain(|_, seen| now.duration_since(*seen) < self.timing().left);
        left.extend(before.iter().flat_map(|before| before.keys()).map(|revision| (revision.clone(), now)));
    }

    /// Whether a registration has this revision, or had it a moment ago. Only API servers and those who can read
    /// registrations know one: a call without one is counted and reported only once its registration has been seen.
    fn knows(&self, revision: &str) -> bool {
        let revisions = self.revisions.load();
        let Some(known) = revisions.as_ref() else { return true };
        let has_left = || lock(&self.left).get(revision).is_some_and(|seen| seen.elapsed() < self.timing().left);
        known.contains_key(revision) || has_left()
    }

    /// Whether [`Self::knows`] becomes true within `limit`. The watch shows a new registration within milliseconds. False
    /// at once if too many calls wait for that.
    async fn sees(&self, revision: &str, limit: Duration) -> bool {
        const LOOKS: u32 = 50;
        if self.knows(revision) {
            return true;
        }
        let Ok(_place) = self.unseen.try_acquire() else { return false };
        for _ in 0..LOOKS {
            tokio::time::sleep(limit / LOOKS).await;
            if self.knows(revision) {
                return true;
            }
        }
        false
    }

    /// Runs `report` about a call by `revision`, which is not known, if its registration is seen soon. Else the call came
    /// from nobody that we have registered for.
    fn report_if_seen(self: &Arc<Self>, revision: &str, report: impl FnOnce(&Self) + Send + 'static) {
        let (webhook, revision) = (self.clone(), revision.to_owned());
        tokio::spawn(async move {
            if webhook.sees(&revision, webhook.timing().unseen).await {
                survival::attempt(&webhook.operator.metrics, "reporting on a review", || report(&webhook));
            } else {
                debug!("A review that names no registration of ours was not counted");
            }
        });
    }

    /// The same webhook, with the check of authors.
    #[must_use]
    pub fn judging_authors(self) -> Self {
        Self { rights: Some(Rights::new(self.operator.client.clone(), &self.operator.timing.registration)), ..self }
    }

    /// The answer to the review in `body`: HTTP status and body.
    ///
    /// # Guarantees
    /// No bytes make it panic: a defect of ours costs only this call. The decision is logged and counted after the
    /// answer, so the creator does not wait for that.
    pub async fn answer(self: &Arc<Self>, call: Call, revision: &str, body: &[u8]) -> (StatusCode, Vec<u8>) {
        if !self.is_read_in_time().await {
            return not_read();
        }
        self.survive(Asked::Workload(call), revision, body.len(), self.handle(call, revision, body)).await
    }

    /// Whether the registrations have been read, or are read in time.
    async fn is_read_in_time(&self) -> bool {
        let mut is_read = self.is_read.subscribe();
        let reading = is_read.wait_for(|is_read| *is_read);
        matches!(tokio::time::timeout(self.timing().settling, reading).await, Ok(Ok(_)))
    }

    /// The answer to the review of a policy in `body`, by the rights of its author.
    ///
    /// # Guarantees
    /// As for [`Self::answer`]. An unknown result is a rejection, in time.
    pub async fn answer_author(self: &Arc<Self>, revision: &str, body: &[u8]) -> (StatusCode, Vec<u8>) {
        match &self.rights {
            Some(_) if !self.is_read_in_time().await => not_read(),
            Some(rights) => self.survive(Asked::Author, revision, body.len(), self.judge(rights, revision, body)).await,
            None => {
                (StatusCode::NOT_FOUND, b"this operator does not judge authors: `--author-check` is off\n".to_vec())
            }
        }
    }

    /// The answer to an invalid review by `revision`, and its size in bytes if it was read.
    fn refuse(
        self: &Arc<Self>,
        asked: Asked,
        revision: &str,
        invalid: &Invalid,
        bytes: Option<usize>,
    ) -> (StatusCode, Vec<u8>) {
        debug!(code = %Code::ReviewInvalid, detail = %invalid, bytes, "Refused a review");
        // Any user can have a wrong name, and the API server rejects it.
        if !invalid.is_of_the_creator() {
            let detail = invalid.to_string();
            let report = move |webhook: &Self| webhook.note_invalid(asked, &detail, bytes);
            if *self.is_read.borrow() && self.knows(revision) {
                report(self)
            } else {
                self.report_if_seen(revision, report)
            }
        }
        let status = StatusCode::from_u16(invalid.status()).unwrap_or(StatusCode::BAD_REQUEST);
        (status, format!("{invalid}\n").into_bytes())
    }

    fn note_invalid(&self, asked: Asked, detail: &str, bytes: Option<usize>) {
        warn!(code = %Code::ReviewInvalid, detail, bytes, "Cannot answer a review");
        if let Asked::Workload(call) = asked {
            *lock(&self.puzzled) = Some(Instant::now());
            // Only the first call for a create is counted. The policies for it are unknown.
            if call == Call::Mutate {
                self.operator.metrics.injection("", NAME.as_str(), Outcome::Failed, Code::ReviewInvalid);
            }
        }
    }

    /// The problem that a recent review by a registration of ours was invalid. Whoever has read a registration can cause
    /// it, so the message shows no content of the review.
    pub fn trouble(&self, now: Instant) -> Option<Unavailable> {
        let last = (*lock(&self.puzzled))?;
        (now.duration_since(last) < self.timing().bad_review).then(|| {
            Unavailable::new(
                Code::ReviewInvalid,
                "something was posted to the webhook that it does not understand; the operator's log says what. If it was the API \
                 server, workloads are stored without the sidecar, or refused, as `failurePolicy` says",
            )
        })
    }

    /// The result of `work` on a review of so many `bytes`, or an error if it panics.
    async fn survive(
        self: &Arc<Self>,
        asked: Asked,
        revision: &str,
        bytes: usize,
        work: impl Future<Output = Result<Vec<u8>, Invalid>>,
    ) -> (StatusCode, Vec<u8>) {
        match AssertUnwindSafe(work).catch_unwind().await {
            Ok(Ok(answer)) => (StatusCode::OK, answer),
            Ok(Err(invalid)) => self.refuse(asked, revision, &invalid, Some(bytes)),
            Err(_) => {
                self.operator.metrics.process.panics.inc();
                error!(code = %Code::Panicked, bytes, "Panicked over a review");
                (StatusCode::INTERNAL_SERVER_ERROR, format!("{}: see the operator's log\n", Code::Panicked).into())
            }
        }
    }

    async fn handle(self: &Arc<Self>, call: Call, revision: &str, body: &[u8]) -> Result<Vec<u8>, Invalid> {
        let start = Instant::now();
        let review = Review::parse(body)?;
        let (policies, site) = (self.policies.load_full(), self.operator.site());
        let revisions = self.revisions.load_full();
        let registered = revisions.as_ref().and_then(|known| known.get(revision));
        let policies = registered.map_or(&*policies, |registered| &registered.policies);
        let is_known = self.knows(revision);
        let namespace = match review.needs_namespace(policies) {
            Some(name) => self.namespace(name, is_known).await,
            None => None,
        };
        let called = revision;
        let revision = Some(revision).filter(|_| revisions.is_none() || registered.is_some());
        let listed = registered.map(|registered| &registered.names);
        let Answer { body, decided } = review.answer(&Caller { call, revision, policies, listed }, &site, namespace);
        if let Some(decided) = decided.filter(|decided| !decided.is_dry_run) {
            let (webhook, took) = (self.clone(), start.elapsed());
            if is_known {
                tokio::spawn(async move {
                    survival::attempt(&webhook.operator.metrics, "reporting on a review", || {
                        webhook.report(&CallRecord::of(&decided, took))
                    });
                });
            } else {
                // The object, which may be large, does not wait.
                let report = CallRecord::of(&decided, took);
                self.report_if_seen(called, move |webhook| webhook.report(&report));
            }
        }
        Ok(body)
    }

    /// The Namespace; none if it is missing or cannot be read in time. Policies that need it report that. Callers who know
    /// no registration cannot have the server asked for it.
    async fn namespace(&self, name: &str, may_ask: bool) -> Option<Arc<Value>> {
        let Operator { namespaces, client, .. } = &*self.operator;
        match namespaces.find(client, name, may_ask, &self.operator.timing.watch).await {
            Ok(namespace) => namespace,
            Err(error) => {
                // Anybody can have chosen the name: a line for each would be a flood.
                warn!(status = error.code(), "Cannot read a Namespace");
                debug!(%error, namespace = name, "Cannot read a Namespace");
                None
            }
        }
    }

    fn report(&self, report: &CallRecord) {
        for told in &report.told {
            let policy = &told.policy.name;
            self.operator.metrics.injection(policy, NAME.as_str(), told.outcome, told.code);
            telemetry::decided(&report.about, policy, told.outcome, told.code, &told.detail);
        }
        if report.call == Call::Mutate {
            self.operator.metrics.injection_took(NAME.as_str(), report.took.as_secs_f64());
        }
    }

    /// The answer to a review of a policy. Without a registration of ours, no question is asked: the answers would tell
    /// anybody who may create pods where.
    async fn judge(&self, rights: &Rights, revision: &str, body: &[u8]) -> Result<Vec<u8>, Invalid> {
        let review = author::Review::parse(body)?;
        let refusal = match review.judgement() {
            Judgement::Allowed => None,
            Judgement::Probed => return Ok(review.answer(Some(&author::probed(revision)))),
            _ if !self.sees(revision, self.timing().settling / 2).await => {
                return Ok(review.answer(Some(&author::unseen(revision))));
            }
            Judgement::Refused(message) => Some(message),
            Judgement::Asks(questions) => rights.refusal(review.author(), &questions).await,
            Judgement::AsksAboutStored(name) => rights.refusal_of_deletion(review.author(), &name).await,
        };
        if let Some(message) = &refusal {
            let (policy, author) = (shown(review.policy()), shown(review.author().name()));
            warn!(policy = &*policy, author = &*author, message = &*escaped(message), "Refused a write to a policy");
        }
        Ok(review.answer(refusal.as_deref()))
    }
}

fn not_read() -> (StatusCode, Vec<u8>) {
    (StatusCode::SERVICE_UNAVAILABLE, b"what is in effect has not been read yet; try again\n".into())
}

/// What is counted and logged of one call.
struct CallRecord {
    call: Call,
    about: telemetry::About,
    told: Vec<PolicyRecord>,
    took: Duration,
}

/// The same, for one policy.
struct PolicyRecord {
    policy: Arc<Policy>,
    outcome: Outcome,
    code: Code,
    detail: String,
}

impl CallRecord {
    fn of(decided: &Decided, took: Duration) -> Self {
        let line = |told: Told<'_>| PolicyRecord {
            policy: told.policy.clone(),
            outcome: told.outcome,
            code: told.code,
            detail: shown(told.detail).into_owned(),
        };
        let about = telemetry::About::of(&decided.workload);
        Self { call: decided.call, about, told: decided.told().into_iter().map(line).collect(), took }
    }
}

/// The question of a path.
#[derive(Clone, Copy)]
enum Asked {
    Workload(Call),
    Author,
}

/// The shared state of the routes.
struct Shared {
    webhook: Arc<Webhook>,
    bodies: Bodies,
}

/// Serves on `listener` with the certificates of `tls`, until `stop` is true and running calls are finished. The end
/// takes at most `linger` and `drain` of [`timing::Webhook`]: 7 s.
pub async fn serve(listener: TcpListener, tls: Arc<Tls>, webhook: Arc<Webhook>, stop: watch::Receiver<bool>) {
    let timing = webhook.timing();
    let limits = Limits {
        connections: CONNECTIONS,
        of_a_peer: CONNECTIONS / 2,
        cuts_calls: false,
        timing: &webhook.operator.timing.connections,
    };
    let ending = Ending { stop, linger: timing.linger, drain: timing.drain };
    let router = router(Arc::new(Shared { webhook, bodies: Bodies::new() }));
    listener::serve(listener, Some(&|| tls.acceptor()), router, limits, ending).await;
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/mutate/{revision}", at(Asked::Workload(Call::Mutate)))
        .route("/validate/{revision}", at(Asked::Workload(Call::Validate)))
        .route("/author/{revision}", at(Asked::Author))
        .route("/livez", get(|| async { "ok\n" }))
        .with_state(shared)
}

fn at(asked: Asked) -> MethodRouter<Arc<Shared>> {
    post(move |state, path, connection, request| review(asked, state, path, connection, request))
}

async fn review(
    asked: Asked,
    State(shared): State<Arc<Shared>>,
    Path(revision): Path<String>,
    Extension(connection): Extension<Arc<Connection>>,
    request: Request<Body>,
) -> Response {
    let webhook = &shared.webhook;
    if !is_revision(&revision) {
        return (StatusCode::NOT_FOUND, "the path ends in no revision of a registration\n").into_response();
    }
    let reading = shared.bodies.read(&connection, request.into_body());
    let read = match tokio::time::timeout(webhook.timing().body, reading).await {
        Ok(Ok(read)) => read,
        Ok(Err(Unread::TooLarge)) => return told(webhook.refuse(asked, &revision, &Invalid::TooLarge, None)),
        Ok(Err(Unread::Broken(error))) => {
            let told = format!("the review has not come whole: {error}\n");
            return (StatusCode::BAD_REQUEST, told).into_response();
        }
        Err(_) => return (StatusCode::REQUEST_TIMEOUT, "the review did not come in time\n").into_response(),
    };
    connection.has_request();
    let answer = match asked {
        Asked::Workload(call) => webhook.answer(call, &revision, &read.bytes).await,
        Asked::Author => webhook.answer_author(&revision, &read.bytes).await,
    };
    if answer.0 == StatusCode::OK && webhook.knows(&revision) {
        connection.prove();
    }
    told(answer)
}

fn is_revision(text: &str) -> bool {
    text.len() == crate::digest::LENGTH && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn told((status, answer): (StatusCode, Vec<u8>)) -> Response {
    let content = if status == StatusCode::OK { "application/json" } else { "text/plain" };
    (status, [(header::CONTENT_TYPE, content)], answer).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::policies::Snapshot;
    use crate::cluster::servers::Servers;
    use crate::policy::Site;
    use crate::timing::Timing;
    use kube::Client;
    use serde_json::json;

    const TIMING: &timing::Webhook = &Timing::short().webhook;

    /// A webhook with one policy for pods that needs the labels of Namespaces, and an API server that never answers.
    fn webhook() -> Arc<Webhook> {
        let site = Site::new("scpol-system", [], []);
        let object = json!({ "metadata": { "name": "envoy" }, "spec": {
            "targets": [{ "group": "", "resource": "pods" }],
            "namespaceSelector": { "matchLabels": { "team": "shop" } },
            "template": { "containers": [{ "name": "envoy", "image": "envoy:1" }] },
        } });
        let policy = Policy::parse(&object, &site).unwrap();
        let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
        });
        let (client, (_, snapshots)) = (Client::new(silent, "default"), watch::channel(Snapshot::default()));
        let (metrics, resync) = (Arc::default(), Duration::from_secs(900));
        let operator = Operator::new(Servers::one(client), Arc::new(site), metrics, snapshots, resync, Timing::short());
        let webhook = Webhook::new(Arc::new(operator));
        webhook.policies.store(Arc::new(Policies::new([Arc::new(policy)])));
        Arc::new(webhook)
    }

    fn review() -> Vec<u8> {
        let request = json!({
            "uid": "u1", "operation": "CREATE", "namespace": "shop", "object": { "metadata": {}, "spec": {} },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
        });
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request });
        review.to_string().into_bytes()
    }

    #[tokio::test]
    async fn an_api_server_that_does_not_answer_holds_up_nobody_for_long() {
        let (webhook, start) = (webhook(), Instant::now());
        let (status, body) = webhook.answer(Call::Mutate, "0123456789abcdef", &review()).await;
        assert!(start.elapsed() < 2 * Timing::short().watch.namespace, "{:?}", start.elapsed());
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (status, &body["response"]["allowed"], body["response"].get("patch")),
            (StatusCode::OK, &json!(true), None)
        );
        tokio::task::yield_now().await;
        let metrics = webhook.operator.metrics.render();
        assert!(metrics.contains(r#"engine="Webhook",policy="envoy",reason="NamespaceUnreadable",result="failed"} 1"#));
    }

    #[tokio::test]
    async fn nobody_is_let_through_before_it_is_known_what_is_in_force() {
        let (webhook, review) = (webhook(), review());
        webhook.is_read.send_replace(false);
        let (status, _) = webhook.answer(Call::Mutate, "0123456789abcdef", &review).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        let settle = async {
            tokio::time::sleep(TIMING.settling / 4).await;
            webhook.is_read.send_replace(true);
        };
        let ((status, _), ()) = tokio::join!(webhook.answer(Call::Mutate, "0123456789abcdef", &review), settle);
        assert_eq!(status, StatusCode::OK, "it waits for a moment");
    }

    /// What has been counted and reported of reviews.
    fn counted(webhook: &Webhook) -> (Vec<String>, Option<Code>) {
        let text = webhook.operator.metrics.render();
        let counters = text.lines().filter(|line| line.starts_with("scpol_injections_total{"));
        (counters.map(str::to_owned).collect(), webhook.trouble(Instant::now()).map(|trouble| trouble.code))
    }

    #[tokio::test]
    async fn reviews_that_name_no_registration_are_answered_and_count_nothing() {
        const OTHER: &str = "fedcba9876543210";
        let webhook = webhook();
        let registered = |revision: &str| {
            let registered = Registered { names: BTreeSet::new(), policies: Policies::clone(&webhook.policies.load()) };
            webhook.register(Revisions::from([(revision.to_owned(), registered)]));
        };
        registered(OTHER);
        let revision = "0123456789abcdef";
        for (body, status) in [(&b"garbage"[..], StatusCode::BAD_REQUEST), (&review(), StatusCode::OK)] {
            assert_eq!(webhook.answer(Call::Mutate, revision, body).await.0, status);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(counted(&webhook), (Vec::new(), None));
        // An API server has seen the registration before this replica.
        registered(revision);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (counters, trouble) = counted(&webhook);
        assert_eq!((counters.len(), trouble), (2, Some(Code::ReviewInvalid)), "{counters:?}");
        // API servers still call by a registration that has been replaced.
        assert_eq!(webhook.answer(Call::Mutate, OTHER, b"garbage").await.0, StatusCode::BAD_REQUEST);
        let invalid = r#"reason="ReviewInvalid",result="failed"} 2"#;
        assert!(counted(&webhook).0.iter().any(|line| line.ends_with(invalid)), "{:?}", counted(&webhook));
    }

    #[tokio::test]
    async fn a_name_that_no_api_server_stores_is_the_fault_of_its_creator_alone() {
        let webhook = webhook();
        let mut review: Value = serde_json::from_slice(&review()).unwrap();
        review["request"]["object"]["metadata"]["name"] = json!("a/b");
        let (status, body) = webhook.answer(Call::Mutate, "0123456789abcdef", review.to_string().as_bytes()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(body.starts_with(b"SCP0212: `request.object.metadata.name` is `a/b`"));
        assert_eq!(counted(&webhook), (Vec::new(), None));
    }

    #[tokio::test]
    async fn reports_about_unknown_registrations_wait_for_a_while_and_few_at_a_time() {
        let webhook = webhook();
        webhook.register(Revisions::new());
        for _ in 0..10 * UNSEEN {
            webhook.answer(Call::Mutate, "0123456789abcdef", b"garbage").await;
        }
        tokio::task::yield_now().await;
        assert_eq!(webhook.unseen.available_permits(), 0);
        assert!(!webhook.sees("0123456789abcdef", Duration::from_secs(60)).await, "at once");
    }

    #[tokio::test]
    async fn a_panic_costs_one_call() {
        let webhook = webhook();
        let (status, body) = webhook.survive(Asked::Author, "", 0, async { panic!("as told") }).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(body.starts_with(b"SCP0208: "));
        assert_eq!(webhook.operator.metrics.process.panics.get(), 1);
        assert_eq!(webhook.answer(Call::Mutate, "0123456789abcdef", b"").await.0, StatusCode::BAD_REQUEST);
    }
}
