//! Which kinds are watched: what policies target, and no more.

use super::entry::Entry;
use super::{Controller, Finished};
use crate::cluster::capabilities::Capabilities;
use crate::cluster::client::Progress;
use crate::cluster::namespaces;
use crate::cluster::policies::Snapshot;
use crate::survival;
use crate::workload::Kind;
use crate::workloads::watch::{follow, recount};
use kube::core::ApiResource;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// How long after a change of the policies all workloads are counted anew: several changes in a row count as one.
const RECOUNT_DELAY: Duration = Duration::from_secs(1);

/// When all workloads are counted anew. Policies may change faster than a large cluster can be counted: there is one count at a
/// time, and after it a rest for as long as it took.
#[derive(Default)]
pub(super) struct Recounts {
    due: Option<Instant>,
    /// How many kinds are being counted.
    running: usize,
    since: Option<Instant>,
    rest: Option<Instant>,
}

impl Recounts {
    /// True if it is time; then so many kinds are counted from now on.
    fn begin(&mut self, kinds: usize) -> bool {
        let now = Instant::now();
        let is_due = self.due.is_some_and(|due| due <= now) && self.rest.is_none_or(|rest| rest <= now);
        if self.running > 0 || !is_due {
            return false;
        }
        *self = Self { running: kinds, since: Some(now), ..Self::default() };
        true
    }

    /// Takes over that one kind has been counted.
    pub(super) fn finished(&mut self) {
        self.running = self.running.saturating_sub(1);
        self.rest = self.since.map(|since| Instant::now() + since.elapsed());
    }
}

/// A kind that is watched.
pub(super) struct Watching {
    /// How it is served.
    pub(super) resource: Option<ApiResource>,
    pub(super) task: AbortHandle,
    pub(super) progress: watch::Receiver<Progress>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Controller {
    /// Watches what enforced policies target, and what is registered for Initializers, which an edited policy may have left: creates
    /// wait for us there. A kind is given up once nothing of it waits for us.
    pub(super) fn settle_watches(&mut self, snapshot: &Snapshot) {
        let capabilities = self.shared.capabilities();
        let registered = self.registered_kinds();
        let targeted = snapshot.policies.iter().flat_map(|policy| &policy.kinds).chain(&registered);
        let wanted: BTreeMap<&Arc<Kind>, ApiResource> =
            targeted.filter_map(|kind| Some((kind, capabilities.resource(kind)?))).collect();
        self.give_up_what_is_not_served(&capabilities);
        for (kind, resource) in &wanted {
            self.watches.entry((*kind).clone()).or_insert_with(|| {
                let (sender, progress) = watch::channel(Progress::Starting);
                let (shared, kind, served) = (self.shared.clone(), (*kind).clone(), resource.clone());
                let follow = async move {
                    let begin = || follow(&shared, &kind, &served, &sender);
                    survival::persist(&shared.metrics, "watching workloads", begin).await;
                };
                let task = tokio::spawn(follow).abort_handle();
                Watching { resource: Some(resource.clone()), task, progress }
            });
        }
        let by_namespace = snapshot.policies.read_namespaces();
        if by_namespace && self.namespaces.is_none() {
            let (sender, progress) = watch::channel(Progress::Starting);
            let shared = self.shared.clone();
            let follow = async move {
                let begin =
                    || namespaces::follow(shared.client.clone(), shared.namespaces.clone(), shared.resync, &sender);
                survival::persist(&shared.metrics, "watching Namespaces", begin).await;
            };
            self.namespaces = Some(Watching { resource: None, task: tokio::spawn(follow).abort_handle(), progress });
        }
        let busy = self.entries.values().any(Entry::is_busy);
        let shared = &self.shared;
        self.watches.retain(|kind, _| {
            let keep = busy || wanted.contains_key(kind) || shared.queue(|queue| queue.holds(kind));
            if !keep {
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

    /// Drops what is not served any more, or otherwise, as a custom resource whose definition was deleted or made anew:
    /// nothing of it can wait.
    fn give_up_what_is_not_served(&mut self, capabilities: &Capabilities) {
        let shared = &self.shared;
        self.watches.retain(|kind, watching| {
            let keep = watching.resource == capabilities.resource(kind);
            if !keep {
                shared.queue(|queue| queue.retain(kind, |_| false));
                shared.census(|census| census.forget(kind));
            }
            keep
        });
    }

    pub(super) fn watched(&self) -> Vec<Arc<Kind>> {
        self.watches.keys().cloned().collect()
    }

    /// Has all workloads counted anew in a moment.
    pub(super) fn recount_soon(&mut self) {
        self.recounts.due.get_or_insert(Instant::now() + RECOUNT_DELAY);
    }

    pub(super) fn recount_when_due(&mut self) {
        if self.shared.namespaces.take_relabelled() {
            self.recount_soon();
        }
        if self.resynced.elapsed() >= self.shared.resync {
            self.resynced = Instant::now();
            self.recount_soon();
        }
        let watched = self.watched();
        if !self.recounts.begin(watched.len()) {
            return;
        }
        for kind in watched {
            let shared = self.shared.clone();
            self.tasks.spawn(async move {
                recount(&shared, &kind).await;
                Finished::Recounted
            });
        }
    }
}

/// Waits until any watch has got further.
pub(super) async fn any_progress(watches: &mut HashMap<Arc<Kind>, Watching>, namespaces: &mut Option<Watching>) {
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
