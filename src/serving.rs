//! `/metrics`, `/livez` and `/readyz`, on a thread of their own, so that reviews do not delay the probes, nor scrapes
//! the reviews.
//!
//! `/livez` still reports on the main loop: it answers by the time of the loop's last turn. Few clients use the port, so
//! `CONNECTIONS` is small. If all places are taken, the oldest connection is closed, whatever it does: a probe is
//! answered within milliseconds, and a scrape is repeated. A rendering of the metrics is kept for
//! [`timing::Process::scrape`], because any client can ask for one.

mod scrapers;

pub use self::scrapers::Scrapers;

use crate::listener::{self, Ending, Limits};
use crate::metrics::Metrics;
use crate::survival::lock;
use crate::timing;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The most open connections: the probes of one kubelet, and some scrapers.
const CONNECTIONS: usize = 64;

/// The state behind the probes.
pub struct Health {
    /// Whether the policies have been read.
    pub policies_synced: AtomicBool,
    /// Whether our role is known and, for a leader, every needed watch is in sync or has failed.
    pub is_role_ready: Arc<AtomicBool>,
    /// Whether the webhook has a certificate and serves, or is not needed.
    pub is_webhook_ready: Arc<AtomicBool>,
    /// Returns the time since the worker's last cycle; none if no worker runs.
    worker: Mutex<Option<Box<dyn Fn() -> Duration + Send>>>,
    turned: Mutex<Instant>,
    /// Whether `/readyz` has reported ready before.
    has_been_ready: AtomicBool,
    timing: &'static timing::Process,
}

impl Health {
    /// The state of a new process.
    pub fn new(timing: &'static timing::Process) -> Self {
        Self {
            policies_synced: AtomicBool::new(false),
            is_role_ready: Arc::default(),
            is_webhook_ready: Arc::new(AtomicBool::new(true)),
            worker: Mutex::default(),
            turned: Mutex::new(Instant::now()),
            has_been_ready: AtomicBool::new(false),
            timing,
        }
    }

    /// Makes `/livez` depend on the worker behind `age`, or on no worker.
    pub fn watch_worker(&self, age: Option<Box<dyn Fn() -> Duration + Send>>) {
        *lock(&self.worker) = age;
    }

    /// Records a cycle of the main loop.
    pub fn beat(&self) {
        *lock(&self.turned) = Instant::now();
    }

    /// Waits for `work` and keeps recording cycles of the main loop, because a slow API server is no reason to be
    /// killed.
    pub async fn alive<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = tokio::time::sleep(self.timing.beat) => self.beat(),
            }
        }
    }

    fn stuck_for(&self) -> Duration {
        let worker = lock(&self.worker).as_ref().map(|age| age()).unwrap_or_default();
        worker.max(lock(&self.turned).elapsed())
    }
}

/// The pages of the port.
struct Pages {
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    /// Checks who may read the metrics; none if all may.
    scrapers: Option<Scrapers>,
    /// The last rendering of the metrics.
    rendered: Mutex<Option<(Instant, Bytes)>>,
}

impl Pages {
    async fn scraped(&self, headers: &HeaderMap) -> Response {
        if let Some(scrapers) = &self.scrapers
            && let Some(refusal) = scrapers.refusal(headers).await
        {
            return refusal.into_response();
        }
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], self.metrics()).into_response()
    }

    fn metrics(&self) -> Bytes {
        let mut rendered = lock(&self.rendered);
        match &*rendered {
            Some((since, page)) if since.elapsed() < self.health.timing.scrape => page.clone(),
            _ => {
                let page = Bytes::from(self.metrics.render());
                *rendered = Some((Instant::now(), page.clone()));
                page
            }
        }
    }
}

/// Serves on `listener`, in a thread of its own, until the process ends. All may read the metrics if there are no
/// `scrapers`.
///
/// # Errors
/// If there is no thread, or the socket is not usable.
pub fn start(
    listener: std::net::TcpListener,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    scrapers: Option<Scrapers>,
    timing: &'static timing::Connections,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _runtime = runtime.enter();
        TcpListener::from_std(listener)?
    };
    let router = router(Pages { metrics, health, scrapers, rendered: Mutex::default() });
    let limits = Limits { connections: CONNECTIONS, of_a_peer: CONNECTIONS / 2, cuts_calls: true, timing };
    let serve = move || {
        let (_never, stop) = watch::channel(false);
        let ending = Ending { stop, linger: Duration::ZERO, drain: Duration::ZERO };
        runtime.block_on(listener::serve(listener, None, router, limits, ending));
    };
    std::thread::Builder::new().name("serving".to_owned()).spawn(serve).map(drop)
}

fn router(pages: Pages) -> Router {
    Router::new()
        .route(
            "/metrics",
            get(|State(pages): State<Arc<Pages>>, headers: HeaderMap| async move { pages.scraped(&headers).await }),
        )
        .route("/livez", get(|State(pages): State<Arc<Pages>>| async move { live(&pages.health) }))
        .route("/readyz", get(|State(pages): State<Arc<Pages>>| async move { ready(&pages.health).await }))
        .with_state(Arc::new(pages))
}

fn live(health: &Health) -> (StatusCode, String) {
    let stuck = health.stuck_for();
    if stuck > health.timing.stuck {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("no progress for {} s\n", stuck.as_secs()));
    }
    (StatusCode::OK, "ok\n".into())
}

/// The interval at which a held answer of `/readyz` looks again.
const LOOK: Duration = Duration::from_millis(20);

/// The answer of `/readyz`. A new process answers once it is ready, or after [`timing::Process::first_ready`], because a
/// readiness probe that fails at each start would be an event of the pod.
async fn ready(health: &Health) -> (StatusCode, String) {
    let since = Instant::now();
    loop {
        let Some(lacking) = lacking(health) else {
            health.has_been_ready.store(true, Ordering::Relaxed);
            return (StatusCode::OK, "ok\n".into());
        };
        if health.has_been_ready.load(Ordering::Relaxed) || since.elapsed() >= health.timing.first_ready {
            return (StatusCode::SERVICE_UNAVAILABLE, format!("{lacking}\n"));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What keeps the operator from being ready.
fn lacking(health: &Health) -> Option<&'static str> {
    let needs = [
        (&health.policies_synced, "the policies have not been read yet"),
        (&*health.is_role_ready, "the watches are not in sync yet"),
        (&*health.is_webhook_ready, "the webhook has no certificate yet"),
    ];
    needs.into_iter().find(|(is_met, _)| !is_met.load(Ordering::Relaxed)).map(|(_, lacking)| lacking)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;

    #[tokio::test]
    async fn a_new_process_answers_a_readiness_probe_once_it_is_ready_and_an_old_one_at_once() {
        let health = Health::new(&Timing::documented().process);
        health.policies_synced.store(true, Ordering::Relaxed);
        let since = Instant::now();
        let becomes_ready = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            health.is_role_ready.store(true, Ordering::Relaxed);
        };
        let ((status, _), ()) = tokio::join!(ready(&health), becomes_ready);
        assert_eq!(status, StatusCode::OK);
        assert!(since.elapsed() >= Duration::from_millis(100));
        health.is_webhook_ready.store(false, Ordering::Relaxed);
        let since = Instant::now();
        let (status, body) = ready(&health).await;
        assert_eq!((status, body.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "the webhook has no certificate yet\n"));
        assert!(since.elapsed() < health.timing.first_ready);
    }

    #[test]
    fn a_flood_of_scrapes_renders_once() {
        let (metrics, health) = (Arc::new(Metrics::default()), Arc::new(Health::new(&Timing::documented().process)));
        let pages = Pages { metrics: metrics.clone(), health, scrapers: None, rendered: Mutex::default() };
        let first = pages.metrics();
        metrics.process.reconciles.inc();
        assert_eq!(pages.metrics(), first);
        *lock(&pages.rendered) = Some((Instant::now() - pages.health.timing.scrape, first.clone()));
        assert_ne!(pages.metrics(), first);
    }

    #[tokio::test]
    async fn a_process_that_does_not_become_ready_says_so_in_time() {
        let health = Health::new(&Timing::documented().process);
        let since = Instant::now();
        let (status, body) = ready(&health).await;
        assert_eq!((status, body.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "the policies have not been read yet\n"));
        assert!(since.elapsed() >= health.timing.first_ready);
    }
}
