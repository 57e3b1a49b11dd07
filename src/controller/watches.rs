//! Which kinds are watched: what policies target, and no more.

use super::{Controller, Finished};
use crate::capabilities::Capabilities;
use crate::cluster::client::Progress;
use crate::cluster::policies::Snapshot;
use crate::engine;
use crate::policy::Policies;
use crate::workload::{KINDS, Kind};
use crate::workloads::Workloads;
use crate::workloads::waiting::ObjectRef;
use crate::workloads::watch::{follow, look_again, look_for_waiting, recount};
use kube::core::ApiResource;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::watch;
use tokio::task::AbortHandle;

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
    pub(super) resource: ApiResource,
    pub(super) task: AbortHandle,
    pub(super) progress: watch::Receiver<Progress>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The watches of workloads.
#[derive(Default)]
pub(super) struct Watches {
    watched: HashMap<Arc<Kind>, Watching>,
    recounts: Recounts,
    /// The kinds of which what seemed to wait is being looked at, each with what is to be looked at after that.
    looking: HashMap<Arc<Kind>, HashSet<ObjectRef>>,
    /// When all workloads were last read anew for its own sake.
    resynced: Option<Instant>,
    /// Kinds of which something may wait for us, and when they were last seen to be registered.
    registered_at: BTreeMap<Arc<Kind>, Instant>,
    /// What earlier leaders have left is watched, or has been.
    has_looked_back: bool,
    /// The policies for which workloads were last counted, by name and hash.
    counted: Vec<(String, String)>,
}

impl Watches {
    /// The kinds that are watched, or to be watched because something may wait in them.
    pub(super) fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.registered_at.keys().chain(self.watched.keys())
    }

    /// How far the watch of `kind` is; none if it is not watched.
    pub(super) fn progress(&self, kind: &Arc<Kind>) -> Option<Progress> {
        self.watched.get(kind).map(|watching| watching.progress.borrow().clone())
    }

    /// Waits until any watch has got further.
    pub(super) async fn any_progress(&mut self) {
        if self.watched.is_empty() {
            return std::future::pending().await;
        }
        let changes = self.watched.values_mut().map(|watching| {
            Box::pin(async {
                if watching.progress.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            })
        });
        futures::future::select_all(changes).await;
    }

    /// Takes over which policies there are. True if workloads are to be counted anew for them.
    pub(super) fn policies_changed(&mut self, policies: &Policies) -> bool {
        let mut counted: Vec<_> =
            policies.iter().map(|policy| (policy.name.clone(), policy.spec_hash.clone())).collect();
        counted.sort();
        let is_new = counted != self.counted;
        self.counted = counted;
        is_new
    }

    /// Forgets that something may wait in `kind`, if it has been looked for, and has not been registered since.
    pub(super) fn looked_for(&mut self, kind: &Arc<Kind>, since: Instant, is_done: bool) {
        if is_done && self.registered_at.get(kind) == Some(&since) {
            self.registered_at.remove(kind);
        }
    }
}

impl Controller {
    /// Watches what enforced policies target, and what creates may wait in. A kind is given up once nothing of it waits for us.
    pub(super) fn settle_watches(&mut self, snapshot: &Snapshot) {
        let capabilities = self.operator.capabilities();
        let holding = self
            .watches
            .watched
            .keys()
            .filter(|kind| self.workloads.waiting().is_some_and(|waiting| waiting.holds(kind)));
        let targeted = snapshot.policies.iter().flat_map(|policy| &policy.kinds);
        let kinds = targeted.chain(self.watches.registered_at.keys()).chain(holding);
        let wanted: BTreeMap<Arc<Kind>, ApiResource> =
            kinds.filter_map(|kind| Some((kind.clone(), capabilities.resource(kind)?))).collect();
        self.give_up_what_is_not_served(&capabilities);
        for (kind, resource) in &wanted {
            self.watches.watched.entry(kind.clone()).or_insert_with(|| {
                let (sender, progress) = watch::channel(Progress::Starting);
                let (workloads, kind, served) = (self.workloads.clone(), kind.clone(), resource.clone());
                let follow = async move {
                    let begin = || follow(&workloads, &kind, &served, &sender);
                    workloads.operator.persist("watching workloads", begin).await;
                };
                let task = tokio::spawn(follow).abort_handle();
                Watching { resource: resource.clone(), task, progress }
            });
        }
        let busy = self.registrations.is_any_own_busy();
        let workloads = &self.workloads;
        self.watches.watched.retain(|kind, _| {
            let keep = busy || wanted.contains_key(kind);
            if !keep {
                workloads.census(|census| census.forget(kind));
            }
            keep
        });
        // What may have been left behind is looked for beside.
        let mut needed =
            snapshot.policies.iter().flat_map(|policy| &policy.kinds).filter_map(|kind| self.watches.watched.get(kind));
        let are_namespaces_read =
            !snapshot.policies.read_namespaces() || *self.operator.namespaces_progress().borrow() != Progress::Starting;
        if are_namespaces_read && needed.all(|watching| *watching.progress.borrow() != Progress::Starting) {
            self.ready.store(true, Ordering::Relaxed);
        }
    }

    /// Notes of which kinds something may wait for us: of what is registered for Initializers, also where no policy targets it any
    /// more, of what was until not long ago, and, at the beginning of a term, of whatever an earlier leader may have registered. After
    /// that it is looked at once more: it may have begun to wait while a watch had failed.
    pub(super) fn note_registered(&mut self) {
        let now = Instant::now();
        let is_first = self.worker.is_some()
            && self.registrations.follows_own()
            && !std::mem::replace(&mut self.watches.has_looked_back, true);
        // Jobs are never registered, and Secrets are read only for policies that target them: it takes a right of its own.
        let any = KINDS.iter().filter(|kind| is_first && !kind.is_job() && kind.pod_path.is_some());
        let own = self.registrations.own().flat_map(|(resource, _, stored)| engine::kinds_of(resource, stored));
        let kinds: Vec<Arc<Kind>> = any.cloned().chain(own).collect();
        self.watches.registered_at.extend(kinds.into_iter().map(|kind| (kind, now)));
        let longest_create = self.operator.timing.initializer.longest_create();
        for (kind, at) in &mut self.watches.registered_at {
            if at.elapsed() >= longest_create {
                *at = now;
                self.tasks.spawn(look_for_what_waits(self.workloads.clone(), kind.clone(), now));
            }
        }
    }

    /// Drops what is not served any more, or otherwise, as a custom resource whose definition was deleted or made anew:
    /// nothing of it can wait.
    fn give_up_what_is_not_served(&mut self, capabilities: &Capabilities) {
        let workloads = &self.workloads;
        self.watches.watched.retain(|kind, watching| {
            let keep = capabilities.resource(kind).as_ref() == Some(&watching.resource);
            if !keep {
                if let Some(waiting) = workloads.waiting() {
                    waiting.retain(kind, &|_| false);
                }
                workloads.census(|census| census.forget(kind));
            }
            keep
        });
    }

    pub(super) fn watched(&self) -> Vec<Arc<Kind>> {
        self.watches.watched.keys().cloned().collect()
    }

    /// Has all workloads counted anew in a moment.
    pub(super) fn recount_soon(&mut self) {
        self.watches.recounts.due.get_or_insert(Instant::now() + self.operator.timing.controller.recount_delay);
    }

    pub(super) fn recount_when_due(&mut self) {
        if self.operator.namespaces.take_relabelled() {
            self.recount_soon();
        }
        if self.watches.resynced.get_or_insert_with(Instant::now).elapsed() >= self.operator.resync {
            self.watches.resynced = Some(Instant::now());
            self.recount_soon();
        }
        let watched = self.watched();
        if !self.watches.recounts.begin(watched.len()) {
            return;
        }
        for kind in watched {
            let workloads = self.workloads.clone();
            self.tasks.spawn(async move {
                let untold = recount(&workloads, &kind).await;
                Finished::Recounted(kind, untold)
            });
        }
    }

    /// Takes over that `kind` has been counted, and has what seems to wait looked at once more, which no other count has to wait for.
    pub(super) fn recounted(&mut self, kind: Arc<Kind>, untold: Vec<ObjectRef>) {
        self.watches.recounts.finished();
        match self.watches.looking.get_mut(&kind) {
            Some(next) => next.extend(untold),
            None => self.look_again(kind, untold),
        }
    }

    /// Takes over that what seemed to wait of `kind` has been looked at.
    pub(super) fn looked_again(&mut self, kind: Arc<Kind>) {
        if let Some(next) = self.watches.looking.remove(&kind).filter(|next| !next.is_empty()) {
            self.look_again(kind, next.into_iter().collect());
        }
    }

    fn look_again(&mut self, kind: Arc<Kind>, untold: Vec<ObjectRef>) {
        self.watches.looking.insert(kind.clone(), HashSet::new());
        let workloads = self.workloads.clone();
        self.tasks.spawn(async move {
            look_again(&workloads, &kind, untold).await;
            Finished::LookedAgain(kind)
        });
    }
}

/// Looks once at everything of `kind`, in which nothing more can begin to wait `since` that moment: perhaps the watch could not see
/// what began to. What waits holds the watch from then on.
async fn look_for_what_waits(workloads: Arc<Workloads>, kind: Arc<Kind>, since: Instant) -> Finished {
    let looked = look_for_waiting(&workloads, &kind).await;
    // Where that is not allowed, or not there any more, the watch has not been, either.
    let is_done = looked.err().is_none_or(|error| matches!(error.code(), 403..=405));
    Finished::LookedFor(kind, since, is_done)
}
