//! Settles the objects that wait for us, each in one guarded PATCH.
//!
//! # Guarantees
//! The worker acts only if the first pending name is ours. A PATCH changes exactly the version from which it was computed.
//! After every decision our names leave the list, so a create never hangs on a policy that does not match.

use super::lane::Lane;
use super::pressure::{Limit, Pressure};
use super::queue::{Finish, Job, Queue};
use super::send::{Sender, Try};
use super::{NAME, registration};
use crate::api::code::Code;
use crate::cluster::answer::Meaning;
use crate::cluster::api::Api;
use crate::cluster::client::CallError;
use crate::cluster::object::Object;
use crate::cluster::pages::Pages;
use crate::cluster::policies;
use crate::compile::completion::{completion, rejection};
use crate::decision::{Decision, Left};
use crate::engine::probe::Verification;
use crate::engine::process::{Settings, Worker};
use crate::operator::Operator;
use crate::policy::{Policies, Policy, PolicyRef, Reason};
use crate::survival::lock;
use crate::timing::CREATE_LIMIT;
use crate::workload::{Kind, ObjectRef, Workload};
use crate::workloads::Workloads;
use crate::workloads::report::{self, Deliverer};
use crate::workloads::waiting::{News, Pending, Standing, Waiting};
use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use json_patch::Patch;
use kube::Resource;
use kube::api::ListParams;
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore, watch};
use tracing::{debug, error, warn};

/// The name of this engine in reports.
const DELIVERER: Deliverer = Deliverer { engine: NAME.0, has_counted: false };
/// The attempts after "exceeded quota", about 2 s in total, because the quota may be cleared in that time.
const QUOTA_ATTEMPTS: u32 = 8;
/// The attempts with a patch that does not apply to the server's cache, about 10 s in total.
const LAG_ATTEMPTS: u32 = 11;
/// The number of waiting creates from which a crowd is reported: half of what an API server holds by default
/// (`--max-mutating-requests-inflight`, 200).
const CROWD: usize = 100;

/// The number of large objects in memory at the same time; others wait.
const LARGE_AT_ONCE: usize = 4;

/// Completes stored objects: the part of the Initializer engine in the leading replica.
pub struct Completer {
    pub(super) operator: Arc<Operator>,
    /// The largest number of PATCHes at the same time.
    workers: usize,
    sender: Sender,
    /// Signals a new object in the queue.
    changed: Notify,
    queue: Mutex<Queue>,
    beat: Mutex<Instant>,
    /// The last read policies. The lock is held during a read, so that concurrent callers wait and use its result.
    read: tokio::sync::Mutex<Option<(Instant, Arc<Policies>)>>,
    /// See [`Worker::hold`].
    held: ArcSwap<BTreeSet<String>>,
}

impl Completer {
    pub(super) fn new(operator: Arc<Operator>, settings: &Settings) -> Self {
        let timing = &operator.timing.initializer;
        let namespace = operator.site().operator_namespace.clone();
        let lane = settings.priority_lane.then(|| Lane::new(&namespace, timing));
        Self {
            workers: settings.workers,
            sender: Sender { operator: operator.clone(), lane },
            changed: Notify::new(),
            queue: Mutex::new(Queue::new(timing)),
            beat: Mutex::new(Instant::now()),
            read: tokio::sync::Mutex::default(),
            held: ArcSwap::default(),
            operator,
        }
    }

    fn queue<T>(&self, work: impl FnOnce(&mut Queue) -> T) -> T {
        work(&mut lock(&self.queue))
    }

    /// The stored policies, at most [`Workloads::policies`](crate::timing::Workloads::policies) old.
    async fn read_policies(&self) -> Result<Arc<Policies>, CallError> {
        let (operator, mut read) = (&self.operator, self.read.lock().await);
        if let Some((_, policies)) = read.as_ref().filter(|(at, _)| at.elapsed() < operator.timing.workloads.policies) {
            return Ok(policies.clone());
        }
        let api = Api::<Object>::all_with(operator.client.clone(), &policies::resource());
        let (site, mut valid) = (operator.site(), Vec::new());
        let known = operator.snapshot().policies;
        // A policy that is known stays as it is known: a rollout in steps may give some namespaces another content than its spec.
        let parse = |object: Object| {
            let fresh = Policy::parse(&object.value(), &site).ok().map(Arc::new);
            valid.extend(fresh.map(|fresh| match known.get(&fresh.reference()) {
                Some(known) if known.meta.uid == fresh.meta.uid && known.initializer_name == fresh.initializer_name => {
                    known.clone()
                }
                _ => fresh,
            }));
        };
        Pages::new(api, ListParams::default()).each(parse).await?;
        let policies = Arc::new(Policies::after(&known, valid));
        *read = Some((Instant::now(), policies.clone()));
        Ok(policies)
    }
}

impl Waiting for Completer {
    fn offer(&self, kind: &Arc<Kind>, object: Object, news: News) -> Standing {
        let site = self.operator.site();
        let place = object.pending().position(|name| site.owns(name));
        match place {
            Some(0) if !object.is_rejected() => {
                let snapshot = self.operator.snapshot();
                let first = object.pending().next().unwrap_or_default();
                let policy =
                    snapshot.policies.by_initializer(first).map(|policy| policy.name.as_str()).unwrap_or_default();
                let lane = urgency(object.created());
                self.queue(|queue| queue.offer(kind, object, policy, lane, Instant::now()));
                self.changed.notify_one();
                Standing::WaitsForUs
            }
            Some(place) if place > 0 => {
                let key = ObjectRef::new(kind, object.place());
                self.queue(|queue| {
                    if news == News::Fresh {
                        queue.withdraw(&key);
                    }
                    queue.wait_for_foreign(key, object.version(), Instant::now());
                });
                Standing::WaitsForOthers
            }
            _ => {
                self.done(&ObjectRef::new(kind, object.place()), object.version(), news);
                Standing::Foreign
            }
        }
    }

    /// A list may be older than the queue, for example after an object was deleted and created again. So it does not remove the
    /// object. The worker finds out when it settles the object, and the end of a watch's list removes missing objects.
    fn done(&self, object: &ObjectRef, version: u64, news: News) {
        self.queue(|queue| match news {
            News::Fresh => queue.remove(object),
            News::Listed => queue.wait_for_nobody_else(object, version),
        });
    }

    fn deleted(&self, object: &ObjectRef) {
        self.queue(|queue| queue.remove(object));
    }

    fn retain(&self, kind: &Arc<Kind>, keep: &dyn Fn(&ObjectRef) -> bool) {
        self.queue(|queue| queue.retain(kind, keep));
    }

    fn holds(&self, kind: &Kind) -> bool {
        self.queue(|queue| queue.holds(kind))
    }

    fn has(&self, object: &ObjectRef) -> bool {
        self.queue(|queue| queue.has(object))
    }

    fn pending(&self) -> Pending {
        self.queue(|queue| {
            let (by_policy, oldest) = queue.waiting();
            let by_policy = by_policy.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
            Pending { by_policy, oldest, oldest_foreign: queue.oldest_foreign() }
        })
    }
}

impl Worker for Completer {
    fn register<'a>(
        &'a self,
        policy: &'a Policy,
        kinds: &'a [Arc<Kind>],
        object: &'a Value,
    ) -> BoxFuture<'a, Verification> {
        registration::register(&self.operator, policy, kinds, object).boxed()
    }

    fn verify<'a>(&'a self, policy: &'a Policy, kinds: &'a [Arc<Kind>]) -> BoxFuture<'a, Verification> {
        registration::verify(&self.operator, policy, kinds).boxed()
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), CallError>> {
        registration::remove(&self.operator.client, name).boxed()
    }

    fn hold(&self, policies: BTreeSet<String>) {
        if **self.held.load() != policies {
            self.held.store(Arc::new(policies));
        }
    }

    fn drain<'a>(&'a self, workloads: &'a Workloads, kinds: &'a [Arc<Kind>]) -> BoxFuture<'a, ()> {
        registration::drain(workloads, kinds).boxed()
    }

    fn run(self: Arc<Self>, workloads: Arc<Workloads>, stop: watch::Receiver<bool>) -> BoxFuture<'static, ()> {
        Run { completer: self, workloads }.work(stop).boxed()
    }

    fn since_beat(&self) -> Duration {
        lock(&self.beat).elapsed()
    }
}

/// The lane by age, because a young object still blocks its creator. A clock that differs from the server's affects only this
/// order.
fn urgency(created: Option<Timestamp>) -> super::queue::Lane {
    let age = created.map(|created| Timestamp::now().duration_since(created)).unwrap_or_default();
    if age.as_secs() < CREATE_LIMIT.as_secs() as i64 { super::queue::Lane::Fresh } else { super::queue::Lane::Backlog }
}

struct Run {
    completer: Arc<Completer>,
    workloads: Arc<Workloads>,
}

impl Run {
    fn operator(&self) -> &Operator {
        &self.completer.operator
    }

    /// Settles the objects from the queue until `stop` is true.
    async fn work(self, mut stop: watch::Receiver<bool>) {
        let (completer, metrics, timing) = (&self.completer, &self.operator().metrics, self.operator().timing);
        let mut limit = Limit::new(completer.workers, &timing.initializer);
        let large = Semaphore::new(LARGE_AT_ONCE);
        let mut running = FuturesUnordered::new();
        completer.queue(|queue| queue.take_back(Instant::now()));
        metrics.pending.workers.set(limit.width() as i64);
        let (beat, mut looked) = (timing.process.beat, Instant::now());
        while !*stop.borrow_and_update() {
            *lock(&completer.beat) = Instant::now();
            if looked.elapsed() >= beat {
                looked = Instant::now();
                foresee(&self, limit.refused_for(looked));
            }
            while running.len() < limit.at(Instant::now()) {
                let Some(job) = completer.queue(|queue| queue.pop(Instant::now())) else { break };
                running.push(guarded(&self, &large, job));
            }
            let due = completer.queue(|queue| queue.next_due());
            let now = Instant::now();
            let pause = limit.pause(now).or_else(|| due.map(|due| due.saturating_duration_since(now)));
            let pause = pause.map_or(beat, |pause| pause.min(beat));
            tokio::select! {
                Some((key, settled)) = running.next() => {
                    limit.learn(settled.pressure, Instant::now());
                    metrics.pending.workers.set(limit.width() as i64);
                    completer.queue(|queue| queue.finish(&key, settled.finish, Instant::now()));
                }
                () = completer.changed.notified(), if running.len() < limit.at(now) => {}
                () = tokio::time::sleep(pause) => {}
                _ = stop.changed() => {}
            }
        }
        // Running PATCHes are finished. Waiting objects wait for the next replica.
        while let Some((key, settled)) = running.next().await {
            completer.queue(|queue| queue.finish(&key, settled.finish, Instant::now()));
        }
    }
}

struct Settled {
    finish: Finish,
    pressure: Pressure,
}

impl Settled {
    const DONE: Self = Self { finish: Finish::Done, pressure: Pressure::Fine };

    fn retry(least: Duration) -> Self {
        Self { finish: Finish::Retry(least), pressure: Pressure::Unknown }
    }
}

/// Settles a job. A panic costs this object one retry.
async fn guarded(run: &Run, large: &Semaphore, job: Job) -> (ObjectRef, Settled) {
    let key = job.key.clone();
    let settled = AssertUnwindSafe(settle(run, large, job)).catch_unwind().await.unwrap_or_else(|_| {
        run.operator().metrics.process.panics.inc();
        error!(code = %Code::Panicked, resource = key.kind.resource, namespace = key.namespace, name = key.name, "Panicked while settling; will try again");
        Settled::retry(Duration::ZERO)
    });
    (key, settled)
}

/// Settles the object as far as possible now.
async fn settle(run: &Run, large: &Semaphore, job: Job) -> Settled {
    let mut _turn = None;
    let mut workload = if job.object.is_whole() {
        Workload::new(&job.key.kind, job.object.value())
    } else {
        _turn = large.acquire().await.ok();
        match run.completer.sender.fetch(&job.key).await {
            Ok(Some(object)) => Workload::new(&job.key.kind, object.value()),
            Ok(None) => return Settled::DONE,
            Err(error) => {
                warn!(%error, resource = job.key.kind.resource, namespace = job.key.namespace, name = job.key.name, "Cannot read it");
                return Settled::retry(Duration::ZERO);
            }
        }
    };
    loop {
        let ours = leading(&workload, run);
        if ours.is_empty() || workload.is_rejected() {
            return Settled::DONE;
        }
        let settlement = match decide_all(run, &mut workload, &ours, job.since).await {
            Ok(settlement) => settlement,
            Err(error) => {
                warn!(%error, resource = job.key.kind.resource, namespace = workload.namespace(), name = workload.name(), "Cannot decide yet");
                return Settled::retry(Duration::ZERO);
            }
        };
        match write(run, &workload, settlement, &job).await {
            Written::Settled(settled) => return settled,
            Written::Stale(Some(fresh)) => workload = Workload::new(&job.key.kind, fresh.value()),
            Written::Stale(None) => return Settled::DONE,
        }
    }
}

/// Our names at the head of the list.
fn leading(workload: &Workload, run: &Run) -> Vec<String> {
    let site = run.operator().site();
    workload.pending().take_while(|name| site.owns(name)).map(str::to_owned).collect()
}

/// The decision for one object.
struct Settlement {
    /// The number of names that leave the list.
    ours: usize,
    /// The number of our names whose policy does not exist.
    orphans: usize,
    /// The decision of the policies whose names leave the list.
    decision: Decision,
}

/// Decides for all policies whose names lead the list.
async fn decide_all(
    run: &Run,
    workload: &mut Workload,
    ours: &[String],
    since: Instant,
) -> Result<Settlement, CallError> {
    let policies = match known(run, ours).await {
        Ok(policies) => policies,
        // The policies cannot be read. At the time limit the known ones are used, because otherwise the create times out
        // without a reason.
        Err(error) if since.elapsed() < run.operator().timing.initializer.decision => return Err(error),
        Err(_) => run.operator().snapshot().policies,
    };
    let asked: Vec<&Arc<Policy>> = ours.iter().filter_map(|name| policies.by_initializer(name)).collect();
    let orphans = ours.len() - asked.len();
    if policies.read_namespaces() && workload.namespace_object.is_none() {
        workload.namespace_object =
            match run.operator().namespaces.read(&run.operator().client, workload.namespace()).await {
                Ok(namespace) => namespace,
                Err(error) if since.elapsed() < run.operator().timing.initializer.decision => return Err(error),
                Err(_) => None,
            };
    }
    let mut decision = Decision::of(&policies, workload, &run.operator().site());
    let held = run.completer.held.load();
    let asked: HashSet<&str> =
        asked.iter().map(|policy| policy.name.as_str()).filter(|name| !held.contains(*name)).collect();
    decision.retain(|policy| asked.contains(policy.name.as_str()));
    Ok(Settlement { ours: ours.len(), orphans, decision })
}

/// The policies, read again if a name is unknown: a policy may be newer than our snapshot, and "no such policy" is never
/// guessed.
async fn known(run: &Run, ours: &[String]) -> Result<Arc<Policies>, CallError> {
    let snapshot = run.operator().snapshot();
    if ours.iter().all(|name| snapshot.policies.by_initializer(name).is_some()) {
        return Ok(snapshot.policies);
    }
    run.completer.read_policies().await
}

/// The result of a PATCH.
enum Written {
    Settled(Settled),
    /// The object has changed. Holds its current form, if it still exists.
    Stale(Option<Box<Object>>),
}

/// Writes the settlement. If the server rejects the result, writes what `failurePolicy` demands instead.
async fn write(run: &Run, workload: &Workload, mut settlement: Settlement, job: &Job) -> Written {
    loop {
        let patch = patch(workload, &mut settlement);
        let Err(refused) = run.completer.sender.send(workload, &patch, Try::Real).await else {
            run.operator().metrics.injection_took(NAME.as_str(), job.since.elapsed().as_secs_f64());
            report::all(&run.workloads, DELIVERER, workload, &settlement.decision);
            report::orphans(&run.workloads, DELIVERER, workload, settlement.orphans);
            return Written::Settled(Settled::DONE);
        };
        let decision = &mut settlement.decision;
        match assess(run, workload, &refused, job).await {
            Assessment::Stale(fresh) => return Written::Stale(fresh),
            Assessment::Later(settled) => {
                debug!(
                    resource = job.key.kind.resource,
                    namespace = workload.namespace(),
                    name = workload.name(),
                    status = refused.code(),
                    message = refused.message(),
                    "Will try again"
                );
                note_trouble(run, decision, &refused);
                return Written::Settled(settled);
            }
            Assessment::Refused(code) if decision.inject.is_empty() => {
                // Row 16: the server rejects even the PATCH without a sidecar. We can only wait.
                note_trouble(run, decision, &refused);
                warn!(%code, resource = job.key.kind.resource, namespace = workload.namespace(), name = workload.name(), detail = refused.message(), "The server refuses to let the object go");
                return Written::Settled(Settled::retry(run.operator().timing.initializer.after_refusal));
            }
            Assessment::Refused(code) => blame(run, workload, &mut settlement, code, &refused).await,
        }
    }
}

fn patch(workload: &Workload, settlement: &mut Settlement) -> Patch {
    let plan = settlement.decision.plan(workload);
    if let Some(Left { policy, reason: Reason { code, detail, .. }, .. }) = settlement.decision.refusal() {
        let message =
            format!("SidecarPolicy `{}` refuses this {}: {code}: {detail}", policy.name, workload.kind_name());
        return rejection(workload, &policy.name, &message);
    }
    completion(workload, settlement.ours, plan)
}

/// Moves policies whose content the server rejects out of the decision. Dry runs with each policy alone find them.
async fn blame(run: &Run, workload: &Workload, settlement: &mut Settlement, code: Code, refused: &CallError) {
    let candidates = settlement.decision.inject.clone();
    let mut guilty = Vec::new();
    if candidates.len() > 1 {
        for policy in &candidates {
            let alone = settlement.decision.alone(policy).plan(workload);
            let alone = completion(workload, settlement.ours, alone);
            if let Err(refused) = run.completer.sender.send(workload, &alone, Try::Dry).await
                && matches!(refused.code(), 403 | 422)
                && !refused.is_not_applied()
            {
                guilty.push((policy.clone(), refused.message().to_owned()));
            }
        }
    }
    if guilty.is_empty() {
        guilty = candidates.into_iter().map(|policy| (policy, refused.message().to_owned())).collect();
    }
    for (policy, detail) in guilty {
        settlement.decision.fail(policy, Reason { row: 8, code, detail });
    }
}

/// The meaning of an error answer.
enum Assessment {
    Stale(Option<Box<Object>>),
    Later(Settled),
    Refused(Code),
}

async fn assess(run: &Run, workload: &Workload, refused: &CallError, job: &Job) -> Assessment {
    match refused.code() {
        // The object is not the cause, so it keeps its place.
        _ if matches!(refused, CallError::Unconnected(_)) => {
            Assessment::Later(Settled { finish: Finish::PutBack, pressure: Pressure::Away })
        }
        429 => {
            Assessment::Later(Settled { finish: Finish::PutBack, pressure: Pressure::TooMany(refused.retry_after()) })
        }
        _ if refused.means() == Meaning::MissingRight => {
            Assessment::Later(Settled::retry(run.operator().timing.initializer.after_refusal))
        }
        // 404: the server may not serve the kind yet. 409, 422 and, on old patch levels, 500: a test of the patch may have
        // failed. 0, 504 and others: the write may have happened. The object itself shows which.
        status => match run.completer.sender.fetch(&job.key).await {
            Ok(None) => Assessment::Stale(None),
            Ok(Some(fresh)) if fresh.meta().resource_version.as_deref() != Some(workload.resource_version()) => {
                Assessment::Stale(
                    Some(Box::new(fresh)).filter(|fresh| fresh.meta().uid.as_deref() == Some(workload.uid())),
                )
            }
            // The object is in the form that the patch expects, so the server's cache is behind. A server applies a patch to
            // its cached object. It tries the stored object only after a conflict of writes (seen on 1.13.5).
            Ok(Some(_)) if refused.is_not_applied() && job.attempts < LAG_ATTEMPTS => {
                Assessment::Later(Settled::retry(Duration::ZERO))
            }
            Ok(Some(_)) if status == 422 => Assessment::Refused(Code::ResultInvalid),
            Ok(Some(_)) if refused.means() == Meaning::Quota => match job.attempts {
                attempts if attempts < QUOTA_ATTEMPTS => Assessment::Later(Settled::retry(Duration::ZERO)),
                _ => Assessment::Refused(Code::QuotaExceeded),
            },
            Ok(Some(_)) if status == 403 => Assessment::Refused(Code::AdmissionDenied),
            Ok(Some(_)) | Err(_) => Assessment::Later(Settled::retry(after(refused))),
        },
    }
}

/// The shortest delay before the next attempt: the server's `Retry-After`, but at most the time limit of a create.
fn after(refused: &CallError) -> Duration {
    refused.retry_after().unwrap_or_default().min(CREATE_LIMIT)
}

/// Reports two problems in the ledger. The server may soon reject writes: this must be early, because a status is a write. Or
/// the priority lane is closed.
fn foresee(run: &Run, refused_for: Duration) {
    let now = Instant::now();
    let until = now + run.operator().timing.workloads.trouble;
    match &run.completer.sender.lane {
        Some(lane) if lane.is_open(now) => return,
        Some(_) => {
            let message = "the API server refuses the priority lane: apply `config/rbac/priority-lane`, or do without `--priority-lane`";
            run.workloads.ledger(|ledger| {
                for policy in run.operator().snapshot().policies.iter() {
                    ledger.trouble(&policy.reference(), Code::MissingRight, message.to_owned(), until);
                }
            });
        }
        None => {}
    }
    let blocked = run.completer.queue(|queue| queue.blocked());
    let crowd: usize = blocked.values().sum();
    if crowd < CROWD && refused_for < run.operator().timing.initializer.refused {
        return;
    }
    run.workloads.ledger(|ledger| {
        for policy in blocked.keys() {
            ledger.trouble(&PolicyRef::of_cluster(policy), Code::TooManyRequests, CROWDED.to_owned(), until);
        }
    });
}

/// Short enough for a condition, and always the same, so that an unchanged status is not written.
const CROWDED: &str = "waiting creates take up the server's places for writes (429): use `--priority-lane`, or raise the API server's \
                       `--max-mutating-requests-inflight`";

fn note_trouble(run: &Run, decision: &Decision, refused: &CallError) {
    let code = match (refused.means(), refused.code()) {
        (Meaning::MissingRight, _) => Code::MissingRight,
        (Meaning::Quota, _) => Code::QuotaExceeded,
        (_, 403 | 422) if !refused.is_not_applied() => Code::AdmissionDenied,
        _ => return,
    };
    let until = Instant::now() + run.operator().timing.workloads.trouble;
    let asked = decision.inject.iter().chain(decision.rest.iter().map(|left| &left.policy));
    for policy in asked {
        run.workloads.ledger(|ledger| ledger.trouble(&policy.reference(), code, refused.message().to_owned(), until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::events::Recorder;
    use crate::cluster::policies::Snapshot;
    use crate::cluster::servers::Servers;
    use crate::policy::Site;
    use crate::timing::Timing;
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use kube::core::Status;
    use serde_json::json;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tower::{BoxError, service_fn};

    fn started(client: Client) -> (Arc<Completer>, Workloads) {
        let (recorder, _) = Recorder::new(client.clone(), "test".to_owned(), Arc::default());
        let (_policies, snapshots) = watch::channel(Snapshot::default());
        let (site, resync) = (Arc::new(Site::new("scpol-system", [], [])), Duration::from_secs(900));
        let operator =
            Arc::new(Operator::new(Servers::one(client), site, Arc::default(), snapshots, resync, Timing::short()));
        let settings = Settings {
            workers: 1,
            priority_lane: false,
            listen: ([127, 0, 0, 1], 0).into(),
            url: None,
            certificates: None,
            client_ca: None,
            author_check: false,
            repair_hold: Duration::ZERO,
        };
        let completer = Arc::new(Completer::new(operator.clone(), &settings));
        let waiting = completer.clone() as Arc<dyn Waiting>;
        (completer, Workloads::new(operator, recorder, false, Some(waiting)))
    }

    #[tokio::test]
    async fn what_was_made_again_waits_on_though_an_old_list_shows_its_forerunner_as_done() {
        let client = Client::new(
            service_fn(|_: Request<Body>| async { Err::<Response<Body>, BoxError>("none".into()) }),
            "default",
        );
        let (completer, workloads) = started(client);
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
        let waits = || completer.holds(kind);
        let again = object(20, pending(&["envoy.scpol.dev"]));
        assert_eq!(workloads.observe(kind, again, News::Fresh), Standing::WaitsForUs);
        for old in [
            object(10, json!({})),
            object(10, pending(&["others.example.com", "envoy.scpol.dev"])),
            object(10, pending(&["others.example.com"])),
        ] {
            workloads.observe(kind, old, News::Listed);
            assert!(completer.pending().oldest.is_some());
        }
        assert_eq!(workloads.observe(kind, object(21, json!({})), News::Fresh), Standing::Initialized);
        assert!(!waits());
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
        let (completer, workloads) = started(client);
        for rounds in 1..=2 {
            let read = futures::future::join_all((0..50).map(|_| completer.read_policies())).await;
            assert!(read.iter().all(|policies| {
                policies.as_ref().is_ok_and(|policies| policies.get(&PolicyRef::of_cluster("logs")).is_some())
            }));
            assert_eq!(READ.load(Ordering::Relaxed), rounds);
            tokio::time::sleep(workloads.operator.timing.workloads.policies).await;
        }
    }

    #[test]
    fn however_long_the_server_says_to_wait_it_is_no_longer_than_a_creator_does() {
        let refused = |seconds| after(&CallError::answer(Status::default(), 503, seconds));
        assert_eq!(refused(None), Duration::ZERO);
        assert_eq!(refused(Some(Duration::from_secs(1))), Duration::from_secs(1));
        assert_eq!(refused(Some(Duration::from_secs(3600))), CREATE_LIMIT);
    }
}
