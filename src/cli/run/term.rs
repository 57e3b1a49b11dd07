//! The parts that run only in the leading replica.

use crate::controller::{self, Controller};
use crate::engine::process::Worker;
use crate::roller;
use crate::workloads::Workloads;
use crate::workloads::reports::{self, Form};
use futures::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::error;

/// A term of leadership: the controller, the worker, the reports, the rollouts, and the task of an engine beside them.
pub(super) struct Term {
    stop_controller: watch::Sender<bool>,
    stop_worker: watch::Sender<bool>,
    controller: Option<JoinHandle<Controller>>,
    worker: Option<JoinHandle<()>>,
    beside: JoinHandle<()>,
    reports: Option<JoinHandle<()>>,
    rollouts: Option<JoinHandle<()>>,
}

/// The tasks that only some clusters want.
#[derive(Clone)]
pub(super) struct Wanted {
    /// The form of the reports; none if there are to be none.
    pub(super) reports: Option<Form>,
    /// The most evictions in a minute; 0 if nothing is to be rolled out.
    pub(super) rollouts: u32,
    /// Whether revisions are to be read although no policy rolls.
    pub(super) revisions: watch::Sender<bool>,
}

impl Term {
    pub(super) fn begin(
        workloads: &Arc<Workloads>,
        worker: Option<Arc<dyn Worker>>,
        settings: controller::Settings,
        ready: Arc<AtomicBool>,
        beside: Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
        wanted: Wanted,
    ) -> Self {
        let operator = workloads.operator.clone();
        let beside = tokio::spawn({
            let operator = operator.clone();
            async move { operator.persist("keeping the author check", || beside()).await }
        });
        let rollouts = (wanted.rollouts > 0).then(|| {
            let (operator, workloads, board) = (operator.clone(), workloads.clone(), settings.board.clone());
            tokio::spawn(async move {
                let begin = || roller::run(&workloads, &board, wanted.rollouts, &wanted.revisions);
                operator.persist("rolling out", begin).await;
            })
        });
        let reports = wanted.reports.map(|form| {
            let (operator, workloads) = (operator.clone(), workloads.clone());
            tokio::spawn(async move { operator.persist("writing reports", || reports::keep(&workloads, form)).await })
        });
        let (stop_controller, stopped) = watch::channel(false);
        let controller = tokio::spawn({
            let (operator, workloads, worker) = (operator.clone(), workloads.clone(), worker.clone());
            // After a panic a new controller knows only what is stored, as after a restart.
            async move {
                let begin = || {
                    let (workloads, worker, settings) = (workloads.clone(), worker.clone(), settings.clone());
                    let mut controller = Controller::new(workloads, worker, settings, ready.clone());
                    let stopped = stopped.clone();
                    async move {
                        controller.run(stopped).await;
                        controller
                    }
                };
                operator.persist("controlling", begin).await
            }
        });
        let (stop_worker, stopped) = watch::channel(false);
        let worker = worker.map(|worker| {
            let workloads = workloads.clone();
            tokio::spawn(async move {
                let begin = || worker.clone().run(workloads.clone(), stopped.clone());
                operator.persist("settling what waits", begin).await;
            })
        });
        Self { stop_controller, stop_worker, controller: Some(controller), worker, beside, reports, rollouts }
    }

    /// Ends the controller, which then unregisters what must not stay. The worker continues.
    pub(super) async fn withdraw(&mut self) {
        // Else every report would say that its policies are not in effect any more.
        for task in [&self.reports, &self.rollouts].into_iter().flatten() {
            task.abort();
        }
        self.stop_controller.send_replace(true);
        let Some(controller) = self.controller.take() else { return };
        match controller.await {
            Ok(mut controller) => controller.withdraw().await,
            Err(error) => error!(%error, "The controller has ended badly"),
        }
    }

    /// Ends all parts, and waits for their end.
    pub(super) async fn end(self) {
        self.beside.abort();
        for task in [self.reports, self.rollouts].into_iter().flatten() {
            task.abort();
        }
        self.stop_controller.send_replace(true);
        self.stop_worker.send_replace(true);
        if let Some(controller) = self.controller {
            drop(controller.await);
        }
        if let Some(worker) = self.worker {
            drop(worker.await);
        }
    }
}
