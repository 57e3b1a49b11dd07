//! Watches that go on after failures. [`cache`] keeps what a watch shows, and [`shared`] has one watch of each resource for all who
//! listen.

pub mod cache;
pub mod shared;

use super::answer::is_refused;
use super::api::Api;
use super::client::backoff;
use super::fitting::PAGE;
use super::object::Object;
use crate::timing;
use backon::ExponentialBackoff;
use futures::stream::{self, Stream, StreamExt};
use kube::runtime::watcher;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// A watch that goes on after failures.
pub fn watched(
    api: &Api<Object>,
    settings: &watcher::Config,
    timing: &timing::Watch,
) -> impl Stream<Item = watcher::Result<watcher::Event<Object>>> + Send + use<> {
    let settings = settings.clone().page_size(PAGE);
    let timeout = settings.timeout.unwrap_or(seconds(timing.duration));
    paced(api.watcher(settings.timeout(timeout)), Pauses::new(timing))
}

/// `duration` in whole seconds, the unit of the `timeoutSeconds` of a watch.
pub fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

/// `events` with a pause after each failure.
fn paced(
    events: impl Stream<Item = watcher::Result<watcher::Event<Object>>> + Send,
    pauses: Pauses,
) -> impl Stream<Item = watcher::Result<watcher::Event<Object>>> + Send {
    let begin = (Box::pin(events), pauses, None);
    stream::unfold(begin, |(mut events, mut pauses, pause)| async move {
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        let event = events.next().await?;
        let pause = pauses.after(&event);
        Some((event, (events, pauses, pause)))
    })
}

/// The pauses of a watch after failures: 0.1 s, doubled up to 1.5 s, each with at most as much jitter. They start again
/// at 0.1 s once an object has been read. The start of a list does not count, because kube reports it before the
/// request. (kube's own pauses start again at that point. Otherwise they grow to 30 s, which is as long as the server
/// lets a create wait for us.)
struct Pauses {
    first: Duration,
    longest: Duration,
    now: Option<ExponentialBackoff>,
}

impl Pauses {
    fn new(timing: &timing::Watch) -> Self {
        Self { first: timing.first_pause, longest: timing.longest_pause, now: None }
    }

    fn after<T>(&mut self, event: &watcher::Result<watcher::Event<T>>) -> Option<Duration> {
        match event {
            Err(_) => self.now.get_or_insert_with(|| backoff(self.first, self.longest)).next(),
            Ok(watcher::Event::Init) => None,
            Ok(_) => {
                self.now = None;
                None
            }
        }
    }
}

/// A watch that goes on after failures. It reads its whole list again after each `resync`, to make up for lost events.
pub fn watch_with_resync(
    api: &Api<Object>,
    settings: &watcher::Config,
    resync: Duration,
    timing: &'static timing::Watch,
) -> impl Stream<Item = watcher::Result<watcher::Event<Object>>> + Send + use<> {
    renewable_watch(api, settings, resync, timing, Arc::default())
}

/// The same, and it also reads its whole list again when `renew` is notified.
pub fn renewable_watch(
    api: &Api<Object>,
    settings: &watcher::Config,
    resync: Duration,
    timing: &'static timing::Watch,
    renew: Arc<Notify>,
) -> impl Stream<Item = watcher::Result<watcher::Event<Object>>> + Send + use<> {
    let (api, settings) = (api.clone(), settings.clone());
    let begin = move || {
        let renew = renew.clone();
        let end = async move {
            tokio::select! {
                () = tokio::time::sleep(resync) => {}
                () = renew.notified() => {}
            }
        };
        watched(&api, &settings, timing).take_until(Box::pin(end))
    };
    stream::repeat_with(begin).flatten()
}

/// The progress of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchState {
    /// The first list is not complete.
    Starting,
    /// The first list is complete.
    Synced,
    /// The list or watch failed and is tried again.
    Failed {
        /// Whether a right is missing.
        is_refused: bool,
        /// The reason.
        message: String,
    },
}

impl WatchState {
    /// Records a failure before the first list is complete. Later failures are ignored, because the objects seen so far
    /// remain usable. Returns whether the failure was recorded.
    pub fn fail(&mut self, error: &watcher::Error, message: String) -> bool {
        let starting = *self != WatchState::Synced;
        if starting {
            *self = WatchState::Failed { is_refused: is_refused(error), message };
        }
        starting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;

    #[test]
    fn pauses_grow_while_lists_fail_and_begin_anew_once_something_is_read() {
        use watcher::Event::{Apply, Init, InitDone};
        let failed = || Err(watcher::Error::NoResourceVersion);
        let mut pauses = Pauses::new(&Timing::documented().watch);
        let mut after = |event| pauses.after::<()>(&event).map(|pause| pause.as_millis());
        for longest in [200, 400, 800, 1600, 3000, 3000, 3000] {
            assert_eq!(after(Ok(Init)), None);
            let pause = after(failed()).expect("a pause");
            assert!((longest / 2..=longest).contains(&pause), "{pause} ms of {longest}");
        }
        for read in [InitDone, Apply(())] {
            assert_eq!(after(Ok(read)), None);
            assert!((100..=200).contains(&after(failed()).expect("a pause")));
        }
    }
}
