//! Watches and lists every workload of the targeted kinds, uninitialized ones included.

use super::starts::{PodsSeen, Unready};
use super::waiting::{News, Standing};
use super::{Listing, Workloads, starts};
use crate::api::code::Code;
use crate::cluster::answer::{CallError, is_not_found, is_refused, why};
use crate::cluster::api::Api;
use crate::cluster::client::call;
use crate::cluster::object::Object;
use crate::cluster::pages::Pages;
use crate::cluster::rights::WatchRefusals;
use crate::cluster::watch::{WatchState, seconds, watched};
use crate::rollout::by_hand::Keeper;
use crate::survival;
use crate::workload::{Kind, ObjectRef, Workload};
use futures::{TryStreamExt, pin_mut};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::core::ApiResource;
use kube::runtime::watcher::{self, Event};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::watch;
use tracing::{debug, info, warn};

/// Watches `kind`, which is served as `resource`, for ever. Publishes its `progress`.
pub async fn follow(
    workloads: &Workloads,
    kind: &Arc<Kind>,
    resource: &ApiResource,
    progress: &watch::Sender<WatchState>,
) {
    let api = Api::<Object>::all_with(workloads.operator.client.clone(), resource);
    let (settings, timing) = (watcher::Config::default(), &workloads.operator.timing.watch);
    let of_custom_resources = seconds(timing.duration_of_custom_resources);
    let settings = if kind.is_in_table() { settings } else { settings.timeout(of_custom_resources) };
    let events = watched(&api, &settings, timing);
    pin_mut!(events);
    let mut watch =
        Watch { workloads, kind, resource, listing: None, waiting: HashSet::new(), refusals: WatchRefusals::default() };
    loop {
        match events.try_next().await {
            Ok(Some(event)) => {
                let is_whole = matches!(event, Event::InitDone);
                watch.see(event);
                if is_whole {
                    progress.send_replace(WatchState::Synced);
                }
            }
            Ok(None) => return,
            Err(error) => {
                let message = why(&error);
                warn!(resource = kind.resource, error = message, "Watch failed; trying again");
                watch.failed(&error);
                progress.send_if_modified(|progress| progress.fail(&error, message));
            }
        }
    }
}

struct Watch<'a> {
    workloads: &'a Workloads,
    kind: &'a Arc<Kind>,
    resource: &'a ApiResource,
    /// The running list.
    listing: Option<Listing>,
    /// The objects of that list that wait.
    waiting: HashSet<ObjectRef>,
    refusals: WatchRefusals,
}

impl Watch<'_> {
    fn see(&mut self, event: Event<Object>) {
        let Self { workloads, kind, resource, .. } = self;
        match event {
            Event::Init => {
                if let Some(unfinished) = self.listing.take() {
                    workloads.abort(&unfinished);
                }
                self.listing = Some(workloads.begin(kind));
                self.waiting.clear();
            }
            Event::InitApply(object) => {
                let object_ref = ObjectRef::new(kind, object.place());
                if let Some(listing) = &mut self.listing {
                    workloads.see(listing, &object);
                }
                let standing = workloads.observe(kind, object, News::Listed);
                if matches!(standing, Standing::WaitsForUs | Standing::WaitsForOthers) {
                    self.waiting.insert(object_ref);
                }
            }
            Event::InitDone => self.end(),
            Event::Apply(object) => drop(workloads.observe(kind, object, News::Fresh)),
            Event::Delete(object) => {
                workloads.gone(kind, &resource.kind, &object);
            }
        }
    }

    /// Handles the end of a list.
    fn end(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        if let Some(queue) = self.workloads.waiting() {
            queue.retain(self.kind, &|object| waiting.contains(object));
        }
        if let Some(whole) = self.listing.take() {
            self.workloads.end(self.kind, &whole);
        }
        info!(resource = self.kind.resource, waiting = waiting.len(), "Watch is in sync");
    }

    fn failed(&mut self, error: &watcher::Error) {
        let Self { workloads, kind, .. } = self;
        if is_not_found(error) {
            workloads.is_unserved.store(true, Ordering::Relaxed);
        }
        let (now, limit) = (Instant::now(), workloads.operator.timing.watch.refused);
        if !is_refused(error) || !self.refusals.note(now, limit) {
            return;
        }
        // The registration stays, but waiting objects are not seen.
        let message = format!("cannot list and watch {}: {}", kind.resource, why(error));
        let policies = workloads.operator.snapshot().policies;
        for policy in policies.iter().filter(|policy| policy.kinds.contains(*kind)) {
            workloads
                .ledger(|ledger| ledger.trouble(&policy.reference(), Code::MissingRight, message.clone(), now + limit));
        }
    }
}

/// Calls `look` for every stored object of `kind`.
///
/// # Errors
/// If a page cannot be read.
async fn sweep(workloads: &Workloads, kind: &Arc<Kind>, look: impl FnMut(Object)) -> Result<(), CallError> {
    let Some(resource) = workloads.operator.resource(kind) else { return Ok(()) };
    Pages::new(Api::all_with(workloads.operator.client.clone(), &resource), ListParams::default()).each(look).await
}

/// Records every object of `kind` that is not initialized. Returns how many wait for us. Objects that the watch has shown
/// already do not change.
///
/// # Errors
/// If a page cannot be read. The error is logged.
pub async fn look_for_waiting(workloads: &Workloads, kind: &Arc<Kind>) -> Result<usize, CallError> {
    let mut waiting = 0;
    let look = |object: Object| {
        if !object.is_initialized() && workloads.observe(kind, object, News::Listed) == Standing::WaitsForUs {
            waiting += 1;
        }
    };
    let looked = sweep(workloads, kind, look).await;
    if let Err(error) = &looked {
        warn!(resource = kind.resource, %error, "Cannot look whether objects still wait for us");
    }
    looked.map(|()| waiting)
}

/// Whether `error` of a list means that no object waits for us: without the right to read, or without the resource, the watch
/// has not worked either.
pub fn can_never_be_read(error: &CallError) -> bool {
    matches!(error.code(), 403..=405)
}

/// Reads objects that seemed to wait, if after a while no event has shown them: the event is lost.
pub async fn look_again(workloads: &Workloads, kind: &Arc<Kind>, untold: Vec<ObjectRef>) {
    let Some(resource) = workloads.operator.resource(kind).filter(|_| !untold.is_empty()) else { return };
    tokio::time::sleep(workloads.operator.timing.workloads.event).await;
    // An event has shown objects that were completed in the meantime.
    let waits = |object: &ObjectRef| workloads.waiting().is_some_and(|waiting| waiting.has(object));
    let is_untold = |object: &ObjectRef| !waits(object) && !workloads.census(|census| census.has(kind, object.place()));
    for ObjectRef { namespace, name, .. } in untold.into_iter().filter(is_untold) {
        let api = Api::<Object>::namespaced_with(workloads.operator.client.clone(), &namespace, &resource);
        match call(api.get_opt(&name)).await {
            Ok(Some(object)) => drop(workloads.observe(kind, object, News::Listed)),
            Ok(None) => {}
            Err(error) => warn!(resource = kind.resource, namespace, name, %error, "Could not look at it again"),
        }
    }
}

/// The most pods of one workload that are looked at.
const PODS: u32 = 50;

/// Lists the pods of workloads that lack ready ones, by the selectors of their pods, and records what does not start in
/// them, and what a person must do.
pub async fn look_at_pods(workloads: &Workloads, due: Vec<(ObjectRef, Unready)>) {
    let pods = Kind::find("", "pods").expect("it is built in");
    let Some(resource) = workloads.operator.resource(pods) else { return };
    for (object, Unready { selector, keeper }) in due {
        let api = Api::<Object>::namespaced_with(workloads.operator.client.clone(), &object.namespace, &resource);
        let listed = match call(api.list(&ListParams::default().labels(&selector).limit(PODS))).await {
            Ok(listed) => listed,
            Err(error) => {
                let ObjectRef { kind, namespace, name } = &object;
                debug!(resource = kind.resource, namespace, name, %error, "Cannot list its pods");
                continue;
            }
        };
        let policies = workloads.operator.snapshot().policies;
        let listed: Vec<_> = listed.items.iter().map(|pod| Workload::new(pods, pod.value())).collect();
        let stuck = listed.iter().filter_map(|pod| {
            let look = || starts::stuck(&policies, pod);
            let stuck = survival::attempt(&workloads.operator.metrics, "looking at a pod", look)?;
            Some((pod.name().to_owned(), stuck))
        });
        let stuck = stuck.collect();
        let by_hand = match keeper {
            Some(keeper) => asked_of_a_person(workloads, &api, &selector, &keeper).await,
            None => None,
        };
        workloads.starts(|starts| starts.listed(&object, PodsSeen { stuck, by_hand }));
    }
}

/// The most pods of an earlier template that are looked at: as many as a page of `kubectl` has.
const EARLIER_PODS: u32 = 500;

/// What a person must do about pods of an earlier template, which have the labels of `selector` and which `keeper` does not replace.
async fn asked_of_a_person(
    workloads: &Workloads,
    api: &Api<Object>,
    selector: &str,
    keeper: &Keeper,
) -> Option<String> {
    let earlier = format!("{selector},{}", keeper.earlier());
    let listed = match call(api.list(&ListParams::default().labels(&earlier).limit(EARLIER_PODS))).await {
        Ok(listed) => listed,
        Err(error) => {
            debug!(selector = earlier, %error, "Cannot list pods of an earlier template");
            return None;
        }
    };
    let pods = Kind::find("", "pods").expect("it is built in");
    let pods: Vec<_> = listed.items.iter().map(|pod| Workload::new(pods, pod.value())).collect();
    let demand = || keeper.demand(&pods, Timestamp::now());
    survival::attempt(&workloads.operator.metrics, "looking at pods", demand).flatten()
}

/// Counts every stored object of `kind` again, after a change of the policies or to correct missed events. Returns the objects
/// that seem to wait, for [`look_again`].
pub async fn recount(workloads: &Workloads, kind: &Arc<Kind>) -> Vec<ObjectRef> {
    let mut listing = workloads.begin(kind);
    // The watch handles waiting objects as long as its events arrive, because this list can be older.
    let (mut untold, site) = (Vec::new(), workloads.operator.site());
    let count = |object: Object| {
        workloads.see(&mut listing, &object);
        if object.is_initialized() {
            workloads.observe(kind, object, News::Listed);
        } else if object.pending().any(|name| site.owns(name)) {
            untold.push(ObjectRef::new(kind, object.place()));
        }
    };
    match sweep(workloads, kind, count).await {
        Ok(()) => {
            workloads.end(kind, &listing);
            debug!(resource = kind.resource, "Counted again");
        }
        Err(error) => {
            workloads.abort(&listing);
            warn!(resource = kind.resource, %error, "Could not count again; the numbers in status may be old");
        }
    }
    untold
}
