//! Watches the kinds that policies target, and the kinds in which objects may wait.

use super::{Controller, Finished};
use crate::capabilities::Capabilities;
use crate::cluster::policies::Snapshot;
use crate::cluster::watch::WatchState;
use crate::engine;
use crate::policy::PolicyRef;
use crate::workload::{KINDS, Kind, ObjectRef};
use crate::workloads::Workloads;
use crate::workloads::watch::{can_never_be_read, follow, look_again, look_at_pods, look_for_waiting, recount};
use kube::core::ApiResource;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// When to count all workloads again. Policies may change faster than a large cluster can be counted. So only one count runs at
/// a time, and the rest after it is as long as the count was.
#[derive(Default)]
pub(super) struct Recounts {
    due: Option<Instant>,
    /// The number of kinds that are being counted.
    running: usize,
    since: Option<Instant>,
    rest: Option<Instant>,
}

/// How long a change waits for others of the same moment, such as those of one `kubectl apply`.
const TOGETHER: Duration = Duration::from_millis(50);

impl Recounts {
    /// Schedules a count: in a moment, or one `period` after the last one began.
    fn soon(&mut self, now: Instant, period: Duration) {
        let next = self.since.unwrap_or(now) + period;
        self.ask(next.max(now + TOGETHER));
    }

    /// Asks for a count at `due`, or before.
    fn ask(&mut self, due: Instant) {
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    /// When the next count may begin; none if none is wanted, or one is running.
    fn begins(&self) -> Option<Instant> {
        let due = self.due.filter(|_| self.running == 0)?;
        Some(self.rest.map_or(due, |rest| rest.max(due)))
    }

    /// Begins a count of so many kinds if one is due. Returns whether it began.
    fn begin(&mut self, kinds: usize) -> bool {
        let now = Instant::now();
        if self.begins().is_none_or(|begins| begins > now) {
            return false;
        }
        *self = Self { running: kinds, since: Some(now), ..Self::default() };
        true
    }

    /// Records that one kind has been counted.
    pub(super) fn finished(&mut self) {
        self.running = self.running.saturating_sub(1);
        self.rest = self.since.map(|since| Instant::now() + since.elapsed());
    }
}

/// A watched kind.
pub(super) struct Watching {
    /// The resource as the server serves it.
    pub(super) resource: ApiResource,
    pub(super) task: AbortHandle,
    pub(super) progress: watch::Receiver<WatchState>,
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
    /// The kinds whose seemingly waiting objects are being read again, each with the objects to read after that.
    looking: HashMap<Arc<Kind>, HashSet<ObjectRef>>,
    /// When the last periodic count of all workloads began.
    resynced: Option<Instant>,
    /// The kinds in which objects may wait for us, and when a registration was last seen for each.
    registered_at: BTreeMap<Arc<Kind>, Instant>,
    /// Whether the kinds of earlier leaders have been added to the watches.
    has_looked_back: bool,
    /// The valid policies at the last count of workloads, by name, each with its edition.
    counted: Vec<(PolicyRef, u64)>,
    /// Whether pods are being listed.
    looks_at_pods: bool,
}

impl Watches {
    /// The kinds that are watched, or must be watched because objects may wait in them.
    pub(super) fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.registered_at.keys().chain(self.watched.keys())
    }

    /// The progress of the watch of `kind`; none if the kind is not watched.
    pub(super) fn progress(&self, kind: &Arc<Kind>) -> Option<WatchState> {
        self.watched.get(kind).map(|watching| watching.progress.borrow().clone())
    }

    /// Waits until a watch makes progress.
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

    /// Records which policies are stored. Returns whether workloads must be counted again.
    pub(super) fn policies_changed(&mut self, snapshot: &Snapshot) -> bool {
        let valid = snapshot.stored.iter().filter(|(_, stored)| stored.parsed.is_ok());
        let counted: Vec<_> = valid.map(|(name, stored)| (name.clone(), stored.edition)).collect();
        let is_new = counted != self.counted;
        self.counted = counted;
        is_new
    }

    /// Waits until a count may begin.
    pub(super) fn recount_begins(&self) -> impl Future<Output = ()> + use<> {
        let begins = self.recounts.begins();
        async move {
            match begins {
                Some(begins) => tokio::time::sleep_until(begins.into()).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Records that the pods have been listed.
    pub(super) fn looked_at_pods(&mut self) {
        self.looks_at_pods = false;
    }

    /// Forgets that objects may wait in `kind` if the search `is_done` and no registration was seen `since`.
    pub(super) fn looked_for(&mut self, kind: &Arc<Kind>, since: Instant, is_done: bool) {
        if is_done && self.registered_at.get(kind) == Some(&since) {
            self.registered_at.remove(kind);
        }
    }
}

impl Controller {
    /// Watches the kinds that enforced policies target, and the kinds in which objects may wait. Ends a watch once no object of
    /// its kind waits for us.
    pub(super) fn adjust_watches(&mut self, snapshot: &Snapshot) {
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
                let (sender, progress) = watch::channel(WatchState::Starting);
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
                workloads.forget(kind);
            }
            keep
        });
        // Readiness depends on targeted kinds alone: objects from earlier leaders are searched in parallel.
        let mut needed =
            snapshot.policies.iter().flat_map(|policy| &policy.kinds).filter_map(|kind| self.watches.watched.get(kind));
        let are_namespaces_read = !snapshot.policies.read_namespaces()
            || *self.operator.namespaces_progress().borrow() != WatchState::Starting;
        if are_namespaces_read && needed.all(|watching| *watching.progress.borrow() != WatchState::Starting) {
            self.ready.store(true, Ordering::Relaxed);
        }
    }

    /// Records the kinds in which objects may wait for us: those with a current or recent Initializer registration, even
    /// without a policy. At the beginning of a term it adds all kinds that an earlier leader may have registered. After the
    /// longest possible create each kind is searched once more, because its watch may have failed in the meantime.
    pub(super) fn note_registered(&mut self) {
        let now = Instant::now();
        let is_first = self.worker.is_some()
            && self.registrations.follows_own()
            && !std::mem::replace(&mut self.watches.has_looked_back, true);
        // Jobs are never registered. Secrets need a right of their own, so they are read only for policies that target them.
        let any = KINDS.iter().filter(|kind| is_first && !kind.is_job() && kind.pod_path.is_some());
        let own = self.registrations.own().flat_map(|(resource, _, stored)| engine::kinds_of(resource, stored));
        let kinds: Vec<Arc<Kind>> = any.cloned().chain(own).collect();
        self.watches.registered_at.extend(kinds.into_iter().map(|kind| (kind, now)));
        let longest_create = self.operator.timing.configuration.longest_create();
        for (kind, at) in &mut self.watches.registered_at {
            if at.elapsed() >= longest_create {
                *at = now;
                self.tasks.spawn(look_for_what_waits(self.workloads.clone(), kind.clone(), now));
            }
        }
    }

    /// Drops the kinds that the server does not serve any more, or serves differently. For example, the definition of a custom
    /// resource was deleted or created again. No object of them can wait.
    fn give_up_what_is_not_served(&mut self, capabilities: &Capabilities) {
        let workloads = &self.workloads;
        self.watches.watched.retain(|kind, watching| {
            let keep = capabilities.resource(kind).as_ref() == Some(&watching.resource);
            if !keep {
                if let Some(waiting) = workloads.waiting() {
                    waiting.retain(kind, &|_| false);
                }
                workloads.forget(kind);
            }
            keep
        });
    }

    pub(super) fn watched(&self) -> Vec<Arc<Kind>> {
        self.watches.watched.keys().cloned().collect()
    }

    /// Schedules a count of all workloads in a moment.
    pub(super) fn recount_soon(&mut self) {
        self.watches.recounts.soon(Instant::now(), self.operator.timing.controller.recount_delay);
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

    /// Lists the pods of some workloads that lack ready ones, if that is due.
    pub(super) fn look_at_pods_when_due(&mut self) {
        let longest = self.operator.timing.workloads.longest_look;
        if self.watches.looks_at_pods {
            return;
        }
        let due = self.workloads.starts(|starts| starts.due(Instant::now(), longest));
        if due.is_empty() {
            return;
        }
        self.watches.looks_at_pods = true;
        let workloads = self.workloads.clone();
        self.tasks.spawn(async move {
            look_at_pods(&workloads, due).await;
            Finished::LookedAtPods
        });
    }

    /// Records that `kind` has been counted. Reads the seemingly waiting objects again; the next count does not wait for that.
    pub(super) fn recounted(&mut self, kind: Arc<Kind>, untold: Vec<ObjectRef>) {
        self.watches.recounts.finished();
        // One that cannot be read is counted by its own watch, once that reads it.
        let was_read = self.workloads.census(|census| census.is_whole(&kind));
        if was_read && !self.workloads.is_counted(&kind) {
            self.watches.recounts.ask(Instant::now() + self.operator.timing.rollout.again);
        }
        match self.watches.looking.get_mut(&kind) {
            Some(next) => next.extend(untold),
            None => self.look_again(kind, untold),
        }
    }

    /// Records that the seemingly waiting objects of `kind` have been read.
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

/// Reads every object of `kind` once, because its watch may have missed objects that wait. No object has begun to wait `since`
/// that moment. The watch continues as long as any of them waits.
async fn look_for_what_waits(workloads: Arc<Workloads>, kind: Arc<Kind>, since: Instant) -> Finished {
    let looked = look_for_waiting(&workloads, &kind).await;
    let is_done = looked.err().is_none_or(|error| can_never_be_read(&error));
    Finished::LookedFor(kind, since, is_done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_change_is_counted_in_a_moment_and_the_next_ones_once_in_a_period() {
        let (now, period, second) = (Instant::now(), Duration::from_secs(1), Duration::from_secs(1));
        let mut recounts = Recounts::default();
        assert_eq!(recounts.begins(), None);
        recounts.soon(now, period);
        assert_eq!(recounts.begins(), Some(now + period), "the watches list everything at the start anyway");
        // When the last count began, when a change follows, and when it is counted.
        for (since, change, begins) in [
            (now, now + 5 * second, now + 5 * second + TOGETHER),
            (now, now + second / 2, now + period),
            (now, now + period, now + period + TOGETHER),
        ] {
            let mut recounts = Recounts { since: Some(since), ..Recounts::default() };
            for later in [Duration::ZERO, TOGETHER / 2, TOGETHER] {
                recounts.soon(change + later, period);
                assert_eq!(recounts.begins(), Some(begins), "changes of one moment are counted together");
            }
            recounts.rest = Some(begins + second);
            assert_eq!(recounts.begins(), Some(begins + second), "the last count was long");
            recounts.running = 1;
            assert_eq!(recounts.begins(), None, "it is still running");
        }
    }
}
