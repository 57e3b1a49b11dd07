//! The signals that end a command.

use anyhow::Result;
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt, stream};
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
#[cfg(windows)]
use tokio::signal::windows::{CtrlC, ctrl_c};

/// Done once a signal has come. Each part of a command that may be ended has its own clone.
pub(super) type Stop = Shared<BoxFuture<'static, ()>>;

/// SIGTERM and SIGINT. Windows has Ctrl-C alone.
pub(super) struct Signals {
    #[cfg(unix)]
    terminate: Signal,
    #[cfg(unix)]
    interrupt: Signal,
    #[cfg(windows)]
    interrupt: CtrlC,
}

impl Signals {
    #[cfg(unix)]
    pub(super) fn new() -> Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    #[cfg(windows)]
    pub(super) fn new() -> Result<Self> {
        Ok(Self { interrupt: ctrl_c()? })
    }

    #[cfg(unix)]
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    #[cfg(windows)]
    pub(super) async fn next(&mut self) {
        self.interrupt.recv().await;
    }

    /// The first signal. From now on none ends the process by itself.
    pub(super) fn first() -> Result<Stop> {
        let mut signals = Self::new()?;
        Ok(async move { signals.next().await }.boxed().shared())
    }
}

/// The answers to `attempts`, of which at most `at_once` run at the same time. None begins after `stop`; those that run are finished.
pub(super) async fn until<A: Future>(stop: &Stop, attempts: impl Iterator<Item = A>, at_once: usize) -> Vec<A::Output> {
    stream::iter(attempts).take_until(stop.clone()).buffer_unordered(at_once).collect().await
}
