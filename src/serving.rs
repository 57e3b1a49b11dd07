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
    /// Whether `/readyz` has reported ready before.
    has_been_ready: AtomicBool,
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
        .route(
            "/readyz",
            get(|State((_, health)): State<(Arc<Metrics>, Arc<Health>)>| async move { ready(&health).await }),
        )
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
        (&*health.role_settled, "the watches are not in sync yet"),
        (&*health.webhook_settled, "the webhook has no certificate yet"),
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
            health.role_settled.store(true, Ordering::Relaxed);
        };
        let ((status, _), ()) = tokio::join!(ready(&health), becomes_ready);
        assert_eq!(status, StatusCode::OK);
        assert!(since.elapsed() >= Duration::from_millis(100));
        health.webhook_settled.store(false, Ordering::Relaxed);
        let since = Instant::now();
        let (status, body) = ready(&health).await;
        assert_eq!((status, body.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "the webhook has no certificate yet\n"));
        assert!(since.elapsed() < health.timing.first_ready);
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
