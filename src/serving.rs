//! `/metrics`, `/livez` and `/readyz`.

use crate::metrics::Metrics;
use crate::survival::lock;
use crate::timing;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// The state behind the probes.
pub struct Health {
    /// Whether the policies have been read.
    pub policies_synced: AtomicBool,
    /// Whether our role is known and, for a leader, every needed watch is in sync or has failed.
    pub role_settled: Arc<AtomicBool>,
    /// Whether the webhook has a certificate and serves, or is not needed.
    pub webhook_settled: Arc<AtomicBool>,
    /// Returns the time since the worker's last cycle; none if no worker runs.
    worker: Mutex<Option<Box<dyn Fn() -> Duration + Send>>>,
    turned: Mutex<Instant>,
    timing: &'static timing::Process,
}

impl Health {
    /// The state of a new process.
    pub fn new(timing: &'static timing::Process) -> Self {
        Self {
            policies_synced: AtomicBool::new(false),
            role_settled: Arc::default(),
            webhook_settled: Arc::new(AtomicBool::new(true)),
            worker: Mutex::default(),
            turned: Mutex::new(Instant::now()),
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

/// Serves on `listener`, for ever.
///
/// # Errors
/// If the socket fails.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>, health: Arc<Health>) -> std::io::Result<()> {
    let router = Router::new()
        .route(
            "/metrics",
            get(|State((metrics, _)): State<(Arc<Metrics>, Arc<Health>)>| async move {
                ([("content-type", "text/plain; version=0.0.4")], metrics.render())
            }),
        )
        .route("/livez", get(|State((_, health)): State<(Arc<Metrics>, Arc<Health>)>| async move { live(&health) }))
        .route("/readyz", get(|State((_, health)): State<(Arc<Metrics>, Arc<Health>)>| async move { ready(&health) }))
        .with_state((metrics, health));
    axum::serve(listener, router).await
}

fn live(health: &Health) -> (StatusCode, String) {
    let stuck = health.stuck_for();
    if stuck > health.timing.stuck {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("no progress for {} s\n", stuck.as_secs()));
    }
    (StatusCode::OK, "ok\n".into())
}

fn ready(health: &Health) -> (StatusCode, String) {
    if !health.policies_synced.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "the policies have not been read yet\n".into());
    }
    if !health.role_settled.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "the watches are not in sync yet\n".into());
    }
    if !health.webhook_settled.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "the webhook has no certificate yet\n".into());
    }
    (StatusCode::OK, "ok\n".into())
}
