//! Survival of panics. A panic is a defect of ours: its damage is limited, and it is counted.

use crate::api::code::Code;
use crate::metrics::Metrics;
use crate::timing;
use futures::FutureExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tracing::error;

/// The result of `work`; none if it panics.
pub(crate) fn attempt<T>(metrics: &Metrics, what: &str, work: impl FnOnce() -> T) -> Option<T> {
    // Unwind safety is asserted, because all state is reconciled again anyway.
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    if done.is_none() {
        tell(metrics, what);
    }
    done
}

/// Locks `mutex` and ignores poisoning: panics are counted elsewhere, and the data stays consistent enough to continue.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of `work`; none if it panics.
pub(crate) async fn survive<T>(metrics: &Metrics, what: &str, work: impl Future<Output = T>) -> Option<T> {
    let done = AssertUnwindSafe(work).catch_unwind().await.ok();
    if done.is_none() {
        tell(metrics, what);
    }
    done
}

/// The result of the future from `begin`. After a panic and a pause, a new future starts.
pub(crate) async fn persist<T, F: Future<Output = T>>(
    metrics: &Metrics,
    timing: &timing::Process,
    what: &str,
    mut begin: impl FnMut() -> F,
) -> T {
    loop {
        // Boxed, because a future that lasts as long as the process is large, and must not be moved.
        if let Some(done) = survive(metrics, what, Box::pin(begin())).await {
            return done;
        }
        tokio::time::sleep(timing.panic_pause).await;
    }
}

fn tell(metrics: &Metrics, what: &str) {
    metrics.process.panics.inc();
    error!(code = %Code::Panicked, what, "Panicked; going on without");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;

    #[tokio::test]
    async fn what_panics_is_counted_and_begun_anew() {
        let metrics = Metrics::default();
        assert_eq!(attempt(&metrics, "one", || 1), Some(1));
        assert_eq!(
            attempt(&metrics, "two", || if metrics.process.panics.get() == 0 {
                panic!("as told")
            }),
            None
        );
        let mut times = 0;
        let done = persist(&metrics, &Timing::short().process, "three", || {
            times += 1;
            let now = times;
            async move { if now < 3 { panic!("as told") } else { now } }
        });
        assert_eq!(done.await, 3);
        assert_eq!(metrics.process.panics.get(), 3);
    }
}
