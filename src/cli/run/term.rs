//! What runs only in the replica that leads.

use crate::cluster::policies::Snapshot;
use crate::controller::{self, Controller};
use crate::engine::initializer::worker;
use crate::survival;
use crate::workloads::watch::Shared;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::error;

/// A term of leadership: the controller and the worker.
pub(super) struct Term {
    stop_controller: watch::Sender<bool>,
    stop_worker: watch::Sender<bool>,
    controller: Option<JoinHandle<Controller>>,
    worker: JoinHandle<()>,
    /// Has authors judged, or not.
    author: JoinHandle<()>,
}

impl Term {
    pub(super) fn begin(
        shared: Arc<Shared>,
        settings: controller::Settings,
        snapshots: watch::Receiver<Snapshot>,
        ready: Arc<AtomicBool>,
    ) -> Self {
        let (stop_controller, stopped) = watch::channel(false);
        let author = tokio::spawn({
            let (shared, settings) = (shared.clone(), settings.clone());
            async move {
                let begin = || controller::author::keep(shared.clone(), settings.clone());
                survival::persist(&shared.metrics, &shared.timing.process, "keeping the author check", begin).await;
            }
        });
        let (metrics, own, timing) = (shared.metrics.clone(), shared.clone(), shared.timing);
        let controller = tokio::spawn(async move {
            // A new one knows nothing but what is stored, as after a restart.
            let begin = || {
                let mut controller = Controller::new(own.clone(), settings.clone(), snapshots.clone(), ready.clone());
                let stopped = stopped.clone();
                async move {
                    controller.run(stopped).await;
                    controller
                }
            };
            survival::persist(&metrics, &timing.process, "controlling", begin).await
        });
        let (stop_worker, stopped) = watch::channel(false);
        let worker = async move {
            let begin = || worker::run(shared.clone(), stopped.clone());
            survival::persist(&shared.metrics, &shared.timing.process, "settling what waits", begin).await;
        };
        Self { stop_controller, stop_worker, controller: Some(controller), worker: tokio::spawn(worker), author }
    }

    /// Ends the controller and lets it take out what must not stay; the worker goes on.
    pub(super) async fn withdraw(&mut self) {
        self.stop_controller.send_replace(true);
        let Some(controller) = self.controller.take() else { return };
        match controller.await {
            Ok(mut controller) => controller.withdraw().await,
            Err(error) => error!(%error, "The controller has ended badly"),
        }
    }

    /// Ends everything, and waits for it.
    pub(super) async fn end(self) {
        self.author.abort();
        self.stop_controller.send_replace(true);
        self.stop_worker.send_replace(true);
        if let Some(controller) = self.controller {
            drop(controller.await);
        }
        drop(self.worker.await);
    }
}
