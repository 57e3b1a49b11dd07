//! Sees every workload of the targeted kinds, uninitialized ones included; and what all who act on them share.

use super::census::{self, Census, Pairs};
use super::ledger::{self, Ledger};
use super::report;
use crate::api::code::Code;
use crate::api::v1alpha1::Mode;
use crate::cluster::capabilities::Capabilities;
use crate::cluster::client::{CallError, Progress, call, chain, is_not_found, is_refused, seconds, watched, why};
use crate::cluster::events::Recorder;
use crate::cluster::namespaces::Namespaces;
use crate::cluster::object::Object;
use crate::cluster::pages::Pages;
use crate::cluster::policies::{self, Snapshot};
use crate::decision;
use crate::engine::EngineName;
use crate::engine::initializer::lane;
use crate::engine::initializer::queue::{Key, Lane, Queue};
use crate::metrics::Metrics;
use crate::policy::{Policies, Policy, Site};
use crate::survival::{self, lock};
use crate::timing::{CREATE_LIMIT, Timing};
use crate::workload::{Kind, Workload};
use arc_swap::ArcSwap;
use futures::{TryStreamExt, pin_mut};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::core::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tracing::{debug, info, warn};

/// What the controller, the worker of the Initializer engine and the watches share.
pub struct Shared {
    /// For every request.
    pub client: Client,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// For events.
    pub recorder: Recorder,
    /// At most so many PATCHes at once.
    pub workers: usize,
    /// Whether success is worth an event.
    pub tell_injected: bool,
    /// After how long everything is read anew.
    pub resync: Duration,
    /// How long we wait for anything.
    pub timing: &'static Timing,
    /// By what our PATCHes pass the server's limit of requests, if they may.
    pub lane: Option<lane::Lane>,
    /// Something is new in the queue.
    pub changed: Notify,
    /// Where workloads are; filled while a policy decides by it.
    pub namespaces: Arc<Namespaces>,
    /// What was watched is not served any more, as a custom resource whose definition has been deleted.
    pub lost: AtomicBool,
    snapshots: watch::Receiver<Snapshot>,
    site: ArcSwap<Site>,
    capabilities: ArcSwap<Capabilities>,
    delivered: ArcSwap<BTreeMap<Arc<Kind>, Delivered>>,
    collisions: ArcSwap<Pairs>,
    queue: Mutex<Queue>,
    census: Mutex<Census>,
    ledger: Mutex<Ledger>,
    beat: Mutex<Instant>,
    /// Held while somebody reads: the others wait, and take what he has read.
    read: tokio::sync::Mutex<Option<(Instant, Arc<Policies>)>>,
}

/// What delivers on one resource inside the API server, and which policies.
pub type Delivered = (EngineName, Arc<Policies>);

/// The settings of [`Shared`].
pub struct Settings {
    /// See [`Shared::workers`].
    pub workers: usize,
    /// See [`Shared::tell_injected`].
    pub tell_injected: bool,
    /// See [`Shared::lane`].
    pub priority_lane: bool,
    /// See [`Shared::resync`].
    pub resync: Duration,
    /// See [`Shared::timing`].
    pub timing: &'static Timing,
}

impl Shared {
    /// The state of an operator that has not seen anything yet.
    pub fn new(
        client: Client,
        site: Arc<Site>,
        metrics: Arc<Metrics>,
        recorder: Recorder,
        snapshots: watch::Receiver<Snapshot>,
        settings: &Settings,
    ) -> Self {
        let timing = settings.timing;
        Self {
            client,
            resync: settings.resync,
            timing,
            lane: settings.priority_lane.then(|| lane::Lane::new(&site.operator_namespace, &timing.initializer)),
            site: ArcSwap::new(site),
            metrics,
            recorder,
            workers: settings.workers,
            tell_injected: settings.tell_injected,
            changed: Notify::new(),
            namespaces: Arc::default(),
            lost: AtomicBool::new(false),
            snapshots,
            capabilities: ArcSwap::default(),
            delivered: ArcSwap::default(),
            collisions: ArcSwap::default(),
            queue: Mutex::new(Queue::new(&timing.initializer)),
            census: Mutex::default(),
            ledger: Mutex::default(),
            beat: Mutex::new(Instant::now()),
            read: tokio::sync::Mutex::default(),
        }
    }

    /// Works on the queue.
    pub fn queue<T>(&self, work: impl FnOnce(&mut Queue) -> T) -> T {
        work(&mut lock(&self.queue))
    }

    /// Works on the census.
    pub fn census<T>(&self, work: impl FnOnce(&mut Census) -> T) -> T {
        work(&mut lock(&self.census))
    }

    /// Works on the ledger.
    pub fn ledger<T>(&self, work: impl FnOnce(&mut Ledger) -> T) -> T {
        work(&mut lock(&self.ledger))
    }

    /// The policies as last seen.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshots.borrow().clone()
    }

    /// What the server offers.
    pub fn capabilities(&self) -> Arc<Capabilities> {
        self.capabilities.load_full()
    }

    /// Replaces what the server offers.
    pub fn set_capabilities(&self, capabilities: Capabilities) {
        let native_sidecars = capabilities.native_sidecars;
        if self.site().native_sidecars != native_sidecars {
            self.site.store(Arc::new(Site { native_sidecars, ..Site::clone(&self.site()) }));
        }
        self.capabilities.store(Arc::new(capabilities));
    }

    /// What flags say, and what decisions need to know of the cluster.
    pub fn site(&self) -> Arc<Site> {
        self.site.load_full()
    }

    /// How to address `kind`.
    pub fn resource(&self, kind: &Kind) -> Option<ApiResource> {
        self.capabilities.load().resource(kind)
    }

    /// The kind as in a manifest, if the server has it; else its resource.
    pub fn kind_name(&self, kind: &Kind) -> String {
        self.resource(kind).map_or_else(|| kind.resource.clone(), |resource| resource.kind)
    }

    /// The `apiVersion` through which `kind` is read.
    pub fn api_version(&self, kind: &Kind) -> String {
        self.resource(kind).map(|resource| resource.api_version).unwrap_or_default()
    }

    /// Shows that the loop of the worker turns.
    pub fn beat(&self) {
        *lock(&self.beat) = Instant::now();
    }

    /// How long ago the loop of the worker turned last.
    pub fn since_beat(&self) -> Duration {
        lock(&self.beat).elapsed()
    }

    /// True if and only if the templates of the two policies collide.
    pub fn collide(&self, a: &str, b: &str) -> bool {
        self.collisions.load().collide(a, b)
    }

    /// The policies that collide with `name`.
    pub fn colliding(&self, name: &str) -> Vec<String> {
        let collisions = self.collisions.load();
        let policies = self.snapshot().policies;
        let differs =
            |own: &Policy, other: &Policy| own.kinds.iter().any(|kind| own.disagreement(other, kind).is_some());
        let by_path = policies.get(name).into_iter().flat_map(|own| {
            let others = policies.iter().filter(|other| other.is_enforced() && differs(own, other));
            others.map(|other| other.name.clone())
        });
        let others: BTreeSet<String> = collisions.colliding(name).map(str::to_owned).chain(by_path).collect();
        others.into_iter().collect()
    }

    /// Finds out anew which templates collide.
    pub fn pair_up(&self, policies: &Policies) {
        let renewed = self.collisions.load().renewed(policies);
        self.collisions.store(Arc::new(renewed));
    }

    /// The policies as stored this moment, or a moment ago ([`Workloads::policies`](crate::timing::Workloads::policies)).
    pub async fn read_policies(&self) -> Result<Arc<Policies>, CallError> {
        let mut read = self.read.lock().await;
        if let Some((_, policies)) = read.as_ref().filter(|(at, _)| at.elapsed() < self.timing.workloads.policies) {
            return Ok(policies.clone());
        }
        let api = Api::<Object>::all_with(self.client.clone(), &policies::resource());
        let (site, mut valid) = (self.site(), Vec::new());
        let parse = |object: Object| valid.extend(Policy::parse(&object.value(), &site).ok().map(Arc::new));
        Pages::new(api, ListParams::default()).each(parse).await?;
        let policies = Arc::new(Policies::after(&self.snapshot().policies, valid));
        *read = Some((Instant::now(), policies.clone()));
        Ok(policies)
    }

    /// Sets on which resources engines deliver inside the API server.
    pub fn set_delivered(&self, delivered: BTreeMap<Arc<Kind>, Delivered>) {
        self.delivered.store(Arc::new(delivered));
    }

    /// Counts an initialized object. What is new tells what an engine has done that works inside the API server.
    fn count(&self, kind: &Arc<Kind>, object: &Object, news: News) {
        let policies = self.snapshot().policies;
        let mut workload = Workload::new(kind, object.value());
        if policies.read_namespaces() {
            workload = workload.within(self.namespaces.get(object.namespace()));
        }
        for policy in policies.iter().filter(|policy| policy.spec.mode == Mode::Audit && !policy.spec.suspend) {
            let tell = || decision::rehearsal(policy, &workload, &self.site());
            self.ledger(|ledger| ledger.would(&policy.name, &policy.spec_hash, tell));
        }
        let fate = census::fate(&workload, &policies, &self.site(), |a, b| self.collide(a, b));
        if fate.iter().all(|(_, tally)| *tally == census::Tally::Injected) {
            self.ledger(|ledger| ledger.healed(workload.kind_name(), workload.namespace(), workload.name()));
        }
        let is_new = self.census(|census| census.count(kind, object, fate));
        if is_new
            && news == News::Fresh
            && let Some((engine, policies)) = self.delivered.load().get(kind)
        {
            report::stored(self, *engine, &workload, policies);
        }
    }

    /// Begins to read all stored objects of `kind`.
    fn begin(&self, kind: &Kind) -> Listing {
        let kind_name = self.kind_name(kind);
        let failed = self.ledger(|ledger| ledger.stored(&kind_name));
        Listing { number: self.census(Census::begin), kind_name, failed }
    }

    /// The listing shows `object`.
    fn see(&self, listing: &mut Listing, object: &Object) {
        if !listing.failed.is_empty() {
            let key = self.ledger(|ledger| ledger.key(&listing.kind_name, object.namespace(), object.name()));
            listing.failed.remove(&key);
        }
    }

    /// The listing has shown all.
    fn end(&self, kind: &Arc<Kind>, listing: &Listing) {
        self.census(|census| census.end(kind, listing.number));
        self.ledger(|ledger| ledger.gone(&listing.failed));
    }

    /// The listing does not get to its end: nothing is known to be gone.
    fn abort(&self, listing: &Listing) {
        self.census(|census| census.abort(listing.number));
    }

    /// Looks at one stored object: does it wait for us, and if not, what is it to the policies? A panic costs this look at this
    /// object.
    pub fn observe(&self, kind: &Arc<Kind>, object: Object, news: News) -> Standing {
        let look = || self.look_at(kind, object, news);
        survival::attempt(&self.metrics, "looking at a workload", look).unwrap_or(Standing::Foreign)
    }

    fn look_at(&self, kind: &Arc<Kind>, object: Object, news: News) -> Standing {
        if object.is_initialized() {
            self.count(kind, &object, news);
            self.waits_no_more(&Key::new(kind, &object), object.version(), news);
            return Standing::Initialized;
        }
        let place = object.pending().position(|name| self.site.load().owns(name));
        match place {
            Some(0) if !object.is_rejected() => {
                let snapshot = self.snapshot();
                let first = object.pending().next().unwrap_or_default();
                let policy =
                    snapshot.policies.by_initializer(first).map(|policy| policy.name.as_str()).unwrap_or_default();
                let lane = urgency(object.created());
                self.queue(|queue| queue.offer(kind, object, policy, lane, Instant::now()));
                self.changed.notify_one();
                Standing::WaitsForUs
            }
            Some(place) if place > 0 => {
                let key = Key::new(kind, &object);
                self.queue(|queue| {
                    if news == News::Fresh {
                        queue.withdraw(&key);
                    }
                    queue.wait_for_foreign(key, object.version(), Instant::now());
                });
                Standing::WaitsForOthers
            }
            _ => {
                self.waits_no_more(&Key::new(kind, &object), object.version(), news);
                Standing::Foreign
            }
        }
    }

    /// Takes out of the queue what does not wait for us. What a list says may be older than what the queue has, of an object that was
    /// deleted and made again, say: whoever settles that finds out, and at the end of a watch's list goes what was not in it.
    fn waits_no_more(&self, key: &Key, version: u64, news: News) {
        self.queue(|queue| match news {
            News::Fresh => queue.remove(key),
            News::Listed => queue.wait_for_nobody_else(key, version),
        });
    }
}

/// A list of all stored objects of a kind that is being read. What it does not show has been deleted, and no event has told.
struct Listing {
    /// What the census calls it.
    number: u32,
    kind_name: String,
    /// What failed, and has not been shown yet.
    failed: HashSet<ledger::Key>,
}

/// Whether an object has just been created, as far as can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A watch shows it.
    Fresh,
    /// It is in a list.
    Listed,
}

/// How an object stands to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is pending.
    Initialized,
    /// Our name is first.
    WaitsForUs,
    /// Our name comes later.
    WaitsForOthers,
    /// Our name is not there, or the object has been rejected.
    Foreign,
}

/// A young object still blocks its creator. A clock that differs from the server's costs nothing but this order.
fn urgency(created: Option<Timestamp>) -> Lane {
    let age = created.map(|created| Timestamp::now().duration_since(created)).unwrap_or_default();
    if age.as_secs() < CREATE_LIMIT.as_secs() as i64 { Lane::Fresh } else { Lane::Backlog }
}

/// Follows `kind`, which is served as `resource`, and reports how far it is, for ever.
pub async fn follow(shared: &Shared, kind: &Arc<Kind>, resource: &ApiResource, progress: &watch::Sender<Progress>) {
    let api = Api::<Object>::all_with(shared.client.clone(), resource);
    let (settings, timing) = (watcher::Config::default(), &shared.timing.watch);
    let of_custom_resources = seconds(timing.duration_of_custom_resources);
    let settings = if kind.is_in_table() { settings } else { settings.timeout(of_custom_resources) };
    let events = watched(&api, &settings, timing);
    pin_mut!(events);
    let (mut listing, mut waiting) = (None, HashSet::new());
    loop {
        match events.try_next().await {
            Ok(Some(watcher::Event::Init)) => {
                if let Some(unfinished) = listing.take() {
                    shared.abort(&unfinished);
                }
                listing = Some(shared.begin(kind));
                waiting.clear();
            }
            Ok(Some(watcher::Event::InitApply(object))) => {
                let key = Key::new(kind, &object);
                if let Some(listing) = &mut listing {
                    shared.see(listing, &object);
                }
                if matches!(shared.observe(kind, object, News::Listed), Standing::WaitsForUs | Standing::WaitsForOthers)
                {
                    waiting.insert(key);
                }
            }
            Ok(Some(watcher::Event::InitDone)) => {
                shared.queue(|queue| queue.retain(kind, |key| waiting.contains(key)));
                if let Some(whole) = listing.take() {
                    shared.end(kind, &whole);
                }
                info!(resource = kind.resource, waiting = waiting.len(), "Watch is in sync");
                waiting = HashSet::new();
                progress.send_replace(Progress::Synced);
            }
            Ok(Some(watcher::Event::Apply(object))) => {
                shared.observe(kind, object, News::Fresh);
            }
            Ok(Some(watcher::Event::Delete(object))) => {
                shared.queue(|queue| queue.remove(&Key::new(kind, &object)));
                shared.census(|census| census.remove(kind, &object));
                shared.ledger(|ledger| ledger.deleted(&resource.kind, object.namespace(), object.name()));
            }
            Ok(None) => return,
            Err(error) => {
                let message = chain(&error);
                warn!(resource = kind.resource, error = message, "Watch failed; trying again");
                if is_not_found(&error) {
                    shared.lost.store(true, Ordering::Relaxed);
                }
                if is_refused(&error) {
                    // What was registered stays, and nobody sees what waits.
                    let message = format!("cannot list and watch {}: {}", kind.resource, why(&error));
                    let policies = shared.snapshot().policies;
                    for policy in policies.iter().filter(|policy| policy.kinds.contains(kind)) {
                        let (code, now) = (Code::MissingRight, Instant::now());
                        shared.ledger(|ledger| ledger.trouble(&policy.name, code, message.clone(), now));
                    }
                }
                progress.send_if_modified(|progress| progress.fail(&error, message));
            }
        }
    }
}

/// Looks at every stored object of `kind` once more.
///
/// # Errors
/// If a page cannot be read.
async fn sweep(shared: &Shared, kind: &Arc<Kind>, look: impl FnMut(Object)) -> Result<(), CallError> {
    let Some(resource) = shared.resource(kind) else { return Ok(()) };
    Pages::new(Api::all_with(shared.client.clone(), &resource), ListParams::default()).each(look).await
}

/// Looks at every object of `kind` that is not initialized; gives how many wait for us. What the watch has shown already is not
/// changed by it.
///
/// # Errors
/// If a page cannot be read, which is logged.
pub async fn look_for_waiting(shared: &Shared, kind: &Arc<Kind>) -> Result<usize, CallError> {
    let mut waiting = 0;
    let look = |object: Object| {
        if !object.is_initialized() && shared.observe(kind, object, News::Listed) == Standing::WaitsForUs {
            waiting += 1;
        }
    };
    let looked = sweep(shared, kind, look).await;
    if let Err(error) = &looked {
        warn!(resource = kind.resource, %error, "Cannot look whether objects still wait for us");
    }
    looked.map(|()| waiting)
}

/// Looks at objects that seemed to wait, and of which no event has told, if they still do after a while: then it never came.
pub async fn look_again(shared: &Shared, kind: &Arc<Kind>, untold: Vec<Key>) {
    let Some(resource) = shared.resource(kind).filter(|_| !untold.is_empty()) else { return };
    tokio::time::sleep(shared.timing.workloads.event).await;
    // Of what has been completed meanwhile an event has told.
    let is_untold =
        |key: &Key| !shared.queue(|queue| queue.has(key)) && !shared.census(|census| census.has(kind, key.place()));
    for Key { namespace, name, .. } in untold.into_iter().filter(is_untold) {
        let api = Api::<Object>::namespaced_with(shared.client.clone(), &namespace, &resource);
        match call(api.get_opt(&name)).await {
            Ok(Some(object)) => drop(shared.observe(kind, object, News::Listed)),
            Ok(None) => {}
            Err(error) => warn!(resource = kind.resource, namespace, name, %error, "Could not look at it again"),
        }
    }
}

/// Counts every stored object of `kind` anew: the policies have changed, or it is time to make good what no event has told. Gives what
/// seems to wait, for [`look_again`].
pub async fn recount(shared: &Shared, kind: &Arc<Kind>) -> Vec<Key> {
    let mut listing = shared.begin(kind);
    // What waits is the watch's business, as long as its events come: here it could only be older than there.
    let (mut untold, site) = (Vec::new(), shared.site());
    let count = |object: Object| {
        shared.see(&mut listing, &object);
        if object.is_initialized() {
            shared.observe(kind, object, News::Listed);
        } else if object.pending().any(|name| site.owns(name)) {
            untold.push(Key::new(kind, &object));
        }
    };
    match sweep(shared, kind, count).await {
        Ok(()) => {
            shared.end(kind, &listing);
            debug!(resource = kind.resource, "Counted anew");
        }
        Err(error) => {
            shared.abort(&listing);
            warn!(resource = kind.resource, %error, "Could not count anew; the numbers in status may be old");
        }
    }
    untold
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::sync::atomic::AtomicUsize;
    use tower::{BoxError, service_fn};

    fn shared(client: Client) -> Shared {
        let settings = Settings {
            workers: 1,
            tell_injected: false,
            priority_lane: false,
            resync: Duration::from_secs(900),
            timing: Timing::short(),
        };
        let (recorder, _) = Recorder::new(client.clone(), "test".to_owned(), Arc::default());
        let (_policies, snapshots) = watch::channel(Snapshot::default());
        let site = Arc::new(Site::new("scpol-system", [], []));
        Shared::new(client, site, Arc::default(), recorder, snapshots, &settings)
    }

    #[tokio::test]
    async fn what_was_made_again_waits_on_though_an_old_list_shows_its_forerunner_as_done() {
        let client = Client::new(
            service_fn(|_: Request<Body>| async { Err::<Response<Body>, BoxError>("none".into()) }),
            "default",
        );
        let shared = shared(client);
        let kind = Kind::find("apps", "deployments").expect("a built-in kind");
        let object = |version: u32, metadata: Value| {
            let mut object = json!({ "metadata": { "namespace": "default", "name": "web", "uid": version.to_string(), "resourceVersion": version.to_string() } });
            object["metadata"]
                .as_object_mut()
                .expect("an object")
                .extend(metadata.as_object().cloned().unwrap_or_default());
            serde_json::from_value::<Object>(object).expect("an object")
        };
        let pending = |names: &[&str]| json!({ "initializers": { "pending": names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>() } });
        let waits = |shared: &Shared| shared.queue(|queue| queue.holds(kind));
        let again = object(20, pending(&["envoy.scpol.dev"]));
        assert_eq!(shared.observe(kind, again, News::Fresh), Standing::WaitsForUs);
        for old in [
            object(10, json!({})),
            object(10, pending(&["others.example.com", "envoy.scpol.dev"])),
            object(10, pending(&["others.example.com"])),
        ] {
            shared.observe(kind, old, News::Listed);
            assert!(shared.queue(|queue| queue.waiting().1.is_some()));
        }
        assert_eq!(shared.observe(kind, object(21, json!({})), News::Fresh), Standing::Initialized);
        assert!(!waits(&shared));
    }

    #[tokio::test]
    async fn whoever_waits_for_the_policies_takes_what_the_first_has_read() {
        static READ: AtomicUsize = AtomicUsize::new(0);
        let server = service_fn(|_: Request<Body>| async {
            READ.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
            let spec = json!({ "template": { "volumes": [{ "name": "logs", "emptyDir": {} }] } });
            let policy = json!({ "metadata": { "name": "logs", "uid": "1" }, "spec": spec });
            let list = json!({ "kind": "SidecarPolicyList", "metadata": {}, "items": [policy] });
            Ok::<_, BoxError>(Response::new(Body::from(list.to_string().into_bytes())))
        });
        let client = Client::new(server, "default");
        let shared = shared(client);
        for rounds in 1..=2 {
            let read = futures::future::join_all((0..50).map(|_| shared.read_policies())).await;
            assert!(read.iter().all(|policies| policies.as_ref().is_ok_and(|policies| policies.get("logs").is_some())));
            assert_eq!(READ.load(Ordering::Relaxed), rounds);
            tokio::time::sleep(shared.timing.workloads.policies).await;
        }
    }
}
