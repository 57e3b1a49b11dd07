//! Which kinds are watched: what policies target, and no more.

use super::entry::Entry;
use super::{Controller, Finished};
use crate::api::v1alpha1::EngineChoice;
use crate::cluster::client::Progress;
use crate::cluster::namespaces;
use crate::cluster::policies::Snapshot;
use crate::engine;
use crate::engine::initializer::registration;
use crate::engine::initializer::watch::follow;
use crate::workload::{KINDS, Kind};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::warn;

/// A kind that is watched.
pub(super) struct Watching {
    pub(super) task: AbortHandle,
    pub(super) progress: watch::Receiver<Progress>,
}

impl Controller {
    /// Watches what enforced policies target, and no more. A kind is given up once nothing of it waits for us.
    pub(super) fn settle_watches(&mut self, snapshot: &Snapshot) {
        let capabilities = self.shared.capabilities();
        let usable = engine::choose(EngineChoice::Initializer, &capabilities).is_ok();
        let wanted: Vec<&'static Kind> = KINDS
            .iter()
            .filter(|kind| {
                usable
                    && snapshot.policies.iter().any(|policy| policy.kinds.contains(kind))
                    && capabilities.resource(kind).is_some()
            })
            .collect();
        for kind in &wanted {
            self.watches.entry(kind.resource).or_insert_with(|| {
                let (sender, progress) = watch::channel(Progress::Starting);
                let task = tokio::spawn(follow(self.shared.clone(), kind, sender)).abort_handle();
                Watching { task, progress }
            });
        }
        let by_namespace = usable && snapshot.policies.read_namespaces();
        if by_namespace && self.namespaces.is_none() {
            let (sender, progress) = watch::channel(Progress::Starting);
            let follow = namespaces::follow(self.shared.client.clone(), self.shared.namespaces.clone(), sender);
            self.namespaces = Some(Watching { task: tokio::spawn(follow).abort_handle(), progress });
        }
        let busy = self.entries.values().any(Entry::is_busy);
        let shared = &self.shared;
        self.watches.retain(|resource, watching| {
            let keep = busy
                || wanted.iter().any(|kind| kind.resource == *resource)
                || KINDS.iter().any(|kind| kind.resource == *resource && shared.queue(|queue| queue.holds(kind)));
            if !keep {
                watching.task.abort();
                let kind =
                    KINDS.iter().find(|kind| kind.resource == *resource).expect("only kinds of the table are watched");
                shared.census(|census| census.forget(kind));
            }
            keep
        });
        let settled = self
            .watches
            .values()
            .chain(&self.namespaces)
            .all(|watching| *watching.progress.borrow() != Progress::Starting);
        if settled {
            self.ready.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn watched(&self) -> Vec<&'static Kind> {
        KINDS.iter().filter(|kind| self.watches.contains_key(kind.resource)).collect()
    }

    /// At the start of a term, clears entries of ours on kinds that no policy targets any more.
    pub(super) fn sweep_once(&mut self) {
        let capabilities = self.shared.capabilities();
        if std::mem::replace(&mut self.swept, true) || !capabilities.initializers {
            return;
        }
        let unwatched = KINDS.iter().filter(|kind| {
            kind.resource != "jobs"
                // Secrets are read only for policies that target them: it takes a right of its own.
                && kind.pod_path.is_some()
                && capabilities.resource(kind).is_some()
                && !self.watches.contains_key(kind.resource)
        });
        for kind in unwatched {
            let shared = self.shared.clone();
            self.tasks.spawn(async move {
                if let Err(error) = registration::drain(&shared, &[kind]).await {
                    warn!(resource = kind.resource, %error, "Cannot look for orphaned entries");
                }
                Finished::Other
            });
        }
    }
}

/// Waits until any watch has got further.
pub(super) async fn any_progress(watches: &mut HashMap<&'static str, Watching>, namespaces: &mut Option<Watching>) {
    if watches.is_empty() && namespaces.is_none() {
        return std::future::pending().await;
    }
    let changes = watches.values_mut().chain(namespaces).map(|watching| {
        Box::pin(async {
            if watching.progress.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    });
    futures::future::select_all(changes).await;
}
