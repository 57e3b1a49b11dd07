//! Makes the cluster match the stored policies, and reports the state of each policy.
//!
//! One level-triggered loop: after each event it looks at every policy, compares the wanted state with the actual one, and
//! starts what is missing. Slow work (to register, to unregister) runs in tasks beside the loop, one task per registration at a
//! time. A user's error is a condition, never an `Err`.
//!
//! Five parts, each with its own state, and the loop that joins them:
//!
//! | part | what |
//! |---|---|
//! | `discovery` | asks the server which resources it serves, and decides when to believe the answer |
//! | `planner` | which engine delivers which policy on which kind, or why none does; pure |
//! | `watches` | which kinds of workloads are watched, and when they are counted again |
//! | `registrations` | watches the registrations, feeds [`lifecycle`](crate::engine::lifecycle), and runs its actions |
//! | `status` | the state of each policy ([`policy_state`]), and when its status is written |

#![allow(rustdoc::private_intra_doc_links, reason = "the map of files is for those who work on them")]

mod discovery;
mod planner;
mod policy_state;
mod registered;
mod registrations;
mod status;
mod watches;

use self::discovery::Discovery;
use self::planner::{Acceptance, Blocked, Inputs, Placed, Planner, Requests, TrialKey};
use self::registered::{Registrations, Slot};
use self::status::Statuses;
use self::watches::Watches;
use crate::api::condition::Readiness;
use crate::board::Board;
use crate::cluster::policies::Snapshot;
use crate::engine::lifecycle::Event;
use crate::engine::process::{Published, Worker};
use crate::engine::reach::Reachable;
use crate::engine::registrar::Registrar;
use crate::engine::registration;
use crate::engine::{Surroundings, Unavailable, trial};
use crate::operator::Operator;
use crate::policy::{Policy, PolicyRef};
use crate::workload::{Kind, ObjectRef};
use crate::workloads::Workloads;
use crate::workloads::waiting::Waiting;
use futures::StreamExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// The rest after each pass of the loop, as a multiple of the duration of the pass. With hundreds of policies a pass takes a
/// while, and the workers share its thread.
const REST: u32 = 3;
/// The number of templates and registrations in trial at the same time. The server handles each as a create.
const TRIALS: usize = 8;

/// The controller's flags, and its connections to the webhook.
#[derive(Clone)]
pub struct Settings {
    /// How long the operator does not restore a registration that a person deleted.
    pub repair_hold: Duration,
    /// How the API server reaches the webhook of this operator, or why not.
    pub reach: watch::Receiver<Reachable>,
    /// Set to true when a policy can be delivered only by that webhook.
    pub demand: watch::Sender<bool>,
    /// Called once every registration has the authorities in [`Self::reach`].
    pub published: Published,
    /// The facts that tasks tell each other.
    pub board: Arc<Board>,
}

/// The controller of one term of leadership.
pub struct Controller {
    operator: Arc<Operator>,
    workloads: Arc<Workloads>,
    /// The worker that completes stored objects; none if no engine has one.
    worker: Option<Arc<dyn Worker>>,
    settings: Settings,
    snapshots: watch::Receiver<Snapshot>,
    ready: Arc<AtomicBool>,
    discovery: Discovery,
    planner: Planner,
    watches: Watches,
    registrations: Registrations,
    statuses: Statuses,
    tasks: Tasks,
}

/// The tasks beside the loop.
struct Tasks {
    running: JoinSet<Finished>,
    /// Limits the number of trials at the same time.
    room: Arc<Semaphore>,
}

impl Tasks {
    fn spawn(&mut self, task: impl Future<Output = Finished> + Send + 'static) {
        self.running.spawn(task);
    }
}

/// The result of a task.
enum Finished {
    /// An action of the lifecycle has ended.
    Acted(Slot, Event),
    Tried(TrialKey, Acceptance),
    /// The server's answer about objects, by their print.
    Rehearsed(String, Acceptance),
    /// Whether the missing right has been granted.
    Asked(Blocked, bool),
    /// All objects of the kind have been counted. Holds those that seem to wait.
    Recounted(Arc<Kind>, Vec<ObjectRef>),
    LookedAgain(Arc<Kind>),
    /// The search for waiting objects of the kind, begun at that moment; false if it must be repeated.
    LookedFor(Arc<Kind>, Instant, bool),
    /// The pods of workloads that lack ready ones have been listed.
    LookedAtPods,
}

impl Controller {
    /// A controller that has seen nothing yet. `ready` becomes true once every watch that it needs has synced or failed.
    pub fn new(
        workloads: Arc<Workloads>,
        worker: Option<Arc<dyn Worker>>,
        settings: Settings,
        ready: Arc<AtomicBool>,
    ) -> Self {
        let operator = workloads.operator.clone();
        settings.board.set_in_force(BTreeMap::new());
        Self {
            snapshots: operator.snapshots(),
            workloads,
            worker,
            settings,
            ready,
            discovery: Discovery::new(operator.capabilities()),
            planner: Planner::default(),
            watches: Watches::default(),
            registrations: Registrations::default(),
            statuses: Statuses::default(),
            tasks: Tasks { running: JoinSet::new(), room: Arc::new(Semaphore::new(TRIALS)) },
            operator,
        }
    }

    /// Runs until `stop` is true.
    pub async fn run(&mut self, mut stop: watch::Receiver<bool>) {
        let timing = &self.operator.timing.controller;
        let mut registered = self.follow_registered();
        let mut namespaces = self.operator.namespaces_progress();
        let mut rollouts = self.settings.board.rollout_changes();
        let mut tick = tokio::time::interval(timing.tick);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.snapshots.mark_changed();
        let (mut is_due, mut rested) = (false, tokio::time::Instant::now());
        while !*stop.borrow_and_update() {
            let recount = self.watches.recount_begins();
            tokio::select! {
                // All events that have arrived are handled before the next pass.
                biased;
                _ = stop.changed() => break,
                Ok(()) = self.snapshots.changed() => self.policies_changed(),
                Some(event) = registered.next() => self.registered_changed(event),
                Ok(()) = self.settings.reach.changed() => self.planner.outdate(),
                Some(finished) = self.tasks.running.join_next() => match finished {
                    Ok(finished) => self.finished(finished).await,
                    // Nothing else would report the result. After the panic the controller starts again and looks at
                    // everything.
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    Err(_) => {}
                },
                Some(written) = self.statuses.writing.join_next() => match written {
                    Ok(written) => self.wrote(&written),
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    Err(_) => {}
                },
                () = self.watches.any_progress() => {}
                Ok(()) = namespaces.changed() => {}
                Ok(()) = rollouts.changed() => {}
                () = recount => self.recount_when_due(),
                _ = tick.tick() => self.ticked().await,
                () = tokio::time::sleep_until(rested), if is_due => {
                    let start = tokio::time::Instant::now();
                    self.pass().await;
                    let took = start.elapsed();
                    rested = start + took + (took * REST).min(timing.longest_rest);
                    is_due = false;
                    if std::mem::take(&mut self.discovery.is_served_otherwise) {
                        registered = self.follow_registered();
                    }
                    continue;
                }
            }
            is_due = true;
        }
    }

    /// One pass: looks at everything once.
    async fn pass(&mut self) {
        let snapshot = self.snapshots.borrow().clone();
        if !snapshot.synced || !self.registrations.has_read_all() {
            return;
        }
        self.note_registered();
        if !self.groups().is_subset(&self.operator.groups()) {
            self.discover().await;
        }
        self.operator.metrics.process.reconciles.inc();
        self.plan(&snapshot);
        self.adjust_watches(&snapshot);
        let pending = self.workloads.waiting().map(Waiting::pending);
        self.statuses.pending = pending.map(|pending| pending.by_policy).unwrap_or_default();
        self.compare_all(&snapshot).await;
        self.publish_held();
        for PolicyRef { name, .. } in snapshot.stored.keys() {
            self.conclude(name);
        }
        self.settings.board.set_in_force(self.statuses.in_force());
        self.write_statuses(&snapshot);
    }

    /// Tells the worker which registrations a person has deleted.
    fn publish_held(&self) {
        if let Some(worker) = &self.worker {
            worker.hold(self.registrations.held());
        }
    }

    /// Makes the planner draw a plan if there is none.
    fn plan(&mut self, snapshot: &Snapshot) {
        if self.planner.plan().is_some() {
            return;
        }
        let inputs = Inputs {
            snapshot,
            surroundings: self.surroundings(),
            registrations: &self.registrations,
            sample: &|name, hash| self.workloads.ledger(|ledger| ledger.sample(&PolicyRef::of_cluster(name), hash)),
            now: Instant::now(),
        };
        let requests = self.planner.draw(&inputs);
        self.ask(requests);
    }

    /// The inputs of rendering besides the policies.
    fn surroundings(&self) -> Surroundings {
        Surroundings {
            cluster: self.operator.capabilities(),
            site: self.operator.site(),
            reach: self.settings.reach.borrow().clone(),
            unreadable: self.registrations.unreadable.keys().copied().collect(),
        }
    }

    /// Sends the requests of a plan to the server.
    fn ask(&mut self, requests: Requests) {
        if requests.needs_operator {
            self.settings.demand.send_if_modified(|demand| !std::mem::replace(demand, true));
        }
        for (key, policy) in requests.templates {
            self.try_template(key, policy);
        }
        for (print, (kind, objects)) in requests.rehearsals {
            let (registrar, room) = (self.registrar_of(&kind), self.tasks.room.clone());
            let timing = &self.operator.timing.controller;
            self.tasks.spawn(async move {
                let _room = room.acquire_owned().await;
                let answer = registration::rehearse(&registrar, &objects).await;
                Finished::Rehearsed(print, Acceptance::of(answer, Instant::now(), timing))
            });
        }
    }

    fn try_template(&mut self, key: TrialKey, policy: Arc<Policy>) {
        let (operator, room) = (self.operator.clone(), self.tasks.room.clone());
        let Some(resource) = operator.resource(&key.kind) else { return };
        self.tasks.spawn(async move {
            let _room = room.acquire_owned().await;
            let namespace = &operator.site().operator_namespace;
            let tried = trial::template(&operator.client, &key.kind, &resource, namespace, policy.as_written()).await;
            Finished::Tried(key, Acceptance::of(tried, Instant::now(), &operator.timing.controller))
        });
    }

    fn policies_changed(&mut self) {
        let snapshot = self.snapshots.borrow_and_update().clone();
        let new = self.statuses.policies_changed(&snapshot);
        // A task for an earlier policy of that name continues.
        for name in &new {
            self.resumed(&Slot::of_policy(name));
        }
        self.planner.policies_changed(&snapshot);
        if self.watches.policies_changed(&snapshot) || !new.is_empty() {
            self.workloads.pair_up(&snapshot.policies);
            self.recount_soon();
            self.registrations.retry_own();
        }
    }

    async fn finished(&mut self, finished: Finished) {
        match finished {
            Finished::Acted(slot, event) => self.happened(slot, event).await,
            Finished::Tried(key, trial) => self.planner.tried(key, trial),
            Finished::Rehearsed(print, acceptance) => self.planner.rehearsed(print, acceptance),
            Finished::Asked(blocked, is_granted) => self.planner.asked(&blocked, is_granted),
            Finished::Recounted(kind, untold) => self.recounted(kind, untold),
            Finished::LookedAgain(kind) => self.looked_again(kind),
            Finished::LookedFor(kind, since, is_done) => self.watches.looked_for(&kind, since, is_done),
            Finished::LookedAtPods => self.watches.looked_at_pods(),
        }
    }

    async fn ticked(&mut self) {
        self.ask_again();
        self.planner.tick(Instant::now());
        self.discover_when_due().await;
        self.notice_capabilities();
        self.recount_when_due();
        self.look_at_pods_when_due();
        self.gauge();
    }

    /// Asks for missing rights again, because somebody may have granted them. Forgets what was learnt about the server's flags
    /// if a policy waits for that.
    fn ask_again(&mut self) {
        let (now, timing) = (Instant::now(), &self.operator.timing.controller);
        let policies = &self.statuses.policies;
        let is_awaited = |reason: &Unavailable| {
            let mut outcomes = policies.values().map(|state| &state.outcome);
            outcomes.any(|outcome| matches!(outcome, Readiness::Impossible { code, .. } if *code == reason.code))
        };
        self.planner.unblock_awaited(is_awaited, now, timing);
        if self.registrations.end_refusals(now, &self.operator.timing.watch) {
            self.planner.outdate();
        }
        for (engine, kind) in self.planner.due_rights(now, timing) {
            let registrar = self.registrar_of(&kind);
            self.tasks.spawn(async move {
                let is_granted = registration::may_deliver(&registrar, engine).await.unwrap_or_default();
                Finished::Asked((engine, Some(kind)), is_granted)
            });
        }
    }

    /// The planned place of the policy `name`, or why it has none.
    fn placed(&self, name: &str) -> Result<Arc<Placed>, Readiness> {
        match self.planner.plan().and_then(|plan| plan.policies.get(name)) {
            Some(Ok(placed)) => Ok(placed.clone()),
            // The sample arrives while the plan stays the same.
            Some(Err(Readiness::Audit { .. })) => {
                let snapshot = self.snapshots.borrow();
                let hash = snapshot
                    .policies
                    .get(&PolicyRef::of_cluster(name))
                    .map(|policy| policy.spec_hash.clone())
                    .unwrap_or_default();
                Err(Readiness::Audit {
                    sample: self.workloads.ledger(|ledger| ledger.sample(&PolicyRef::of_cluster(name), &hash)),
                })
            }
            Some(Err(outcome)) => Err(outcome.clone()),
            None => Err(Readiness::FirstSight),
        }
    }

    /// The registrar for `kind`.
    fn registrar_of(&self, kind: &Arc<Kind>) -> Registrar {
        Registrar {
            client: self.operator.client.clone(),
            capabilities: self.operator.capabilities(),
            namespace: self.operator.site().operator_namespace.clone(),
            kind: kind.clone(),
            timing: &self.operator.timing.registration,
        }
    }

    /// Unregisters everything that needs this process and rejects nothing, because the last replica stops and creates must
    /// continue.
    pub async fn withdraw(&mut self) {
        // No running task may register anything after this.
        self.tasks.running.shutdown().await;
        let snapshot = self.snapshots.borrow().clone();
        if !snapshot.synced {
            return;
        }
        let until = Instant::now() + self.operator.timing.stop.report;
        self.withdraw_kinds(&snapshot.stored, until).await;
        self.withdraw_own(&snapshot.stored, until).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::code::Code;
    use crate::capabilities::Capabilities;
    use crate::capabilities::registration::{GROUP, MUTATING_WEBHOOKS};
    use crate::cluster::events::Recorder;
    use crate::cluster::policies::StoredPolicy;
    use crate::cluster::servers::Servers;
    use crate::policy::Site;
    use crate::survival::lock;
    use crate::timing::{CALL_LIMIT, Timing};
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use kube::core::Status;
    use kube::runtime::watcher;
    use std::sync::Mutex;
    use tower::{BoxError, service_fn};

    /// A controller that follows the registrations of a server, which never answers.
    fn controller() -> Controller {
        let none = service_fn(|_: Request<Body>| async { Err::<Response<Body>, BoxError>("none".into()) });
        controller_of(Client::new(none, "default"), Snapshot::default())
    }

    /// A controller of the policies of `snapshot`.
    fn controller_of(client: Client, snapshot: Snapshot) -> Controller {
        let (recorder, _) = Recorder::new(client.clone(), "test".to_owned(), Arc::default());
        let (_policies, snapshots) = watch::channel(snapshot);
        let (site, resync) = (Arc::new(Site::new("scpol-system", [], [])), Duration::from_secs(900));
        let operator = Operator::new(Servers::one(client), site, Arc::default(), snapshots, resync, Timing::short());
        let (_reach, reach) = watch::channel(Err(Unavailable::new(Code::Reconciling, "not yet")));
        let (demand, published) = (watch::channel(false).0, Arc::new(|_: &[u8]| {}));
        let settings = Settings { repair_hold: Duration::ZERO, reach, demand, published, board: Arc::default() };
        let served = [(GROUP, "v1", MUTATING_WEBHOOKS, "MutatingWebhookConfiguration")];
        operator.set_capabilities(Capabilities::of(37, &served));
        let workloads = Workloads::new(Arc::new(operator), recorder, false, None);
        let mut controller = Controller::new(Arc::new(workloads), None, settings, Arc::default());
        drop(controller.follow_registered());
        controller
    }

    #[tokio::test]
    async fn slow_writes_of_statuses_take_their_turns_and_the_loop_waits_for_none() {
        let (gate, counts) = (watch::channel(false).0, Arc::new(Mutex::new((0, 0, 0))));
        let (opened, counted) = (gate.clone(), counts.clone());
        let slow = service_fn(move |_: Request<Body>| {
            let (mut opened, counts) = (opened.subscribe(), counted.clone());
            async move {
                let count = |running: i32, all: i32| {
                    let mut counts = lock(&counts);
                    *counts = (counts.0 + running, counts.1.max(counts.0 + running), counts.2 + all);
                };
                count(1, 1);
                drop(opened.wait_for(|is_open| *is_open).await);
                count(-1, 0);
                let stored = r#"{"apiVersion":"scpol.dev/v1alpha1","kind":"SidecarPolicy","metadata":{"name":"p"}}"#;
                Ok::<_, BoxError>(Response::new(Body::from(stored.as_bytes().to_vec())))
            }
        });
        let stored = |number: usize| {
            let (status, parsed) = (Arc::default(), Err(Arc::default()));
            let uid = number.to_string();
            let stored = StoredPolicy {
                uid,
                generation: 1,
                edition: 1,
                status,
                resumed: None,
                restarted: None,
                odd_times: vec![],
                parsed,
            };
            (PolicyRef::of_cluster(&format!("p{number}")), stored)
        };
        let stored: BTreeMap<PolicyRef, StoredPolicy> = (0..30).map(stored).collect();
        let snapshot = Snapshot { stored: Arc::new(stored), synced: true, ..Snapshot::default() };
        let mut controller = controller_of(Client::new(slow, "default"), snapshot.clone());
        controller.policies_changed();
        for PolicyRef { name, .. } in snapshot.stored.keys() {
            controller.set_outcome(name, Readiness::Rejected { code: Code::TemplateInvalid, message: "m".into() });
        }
        for _ in 0..3 {
            controller.write_statuses(&snapshot);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(*lock(&counts), (8, 8, 8), "running, the most at once, all");
        }
        gate.send_replace(true);
        while let Some(written) = controller.statuses.writing.join_next().await {
            controller.wrote(&written.unwrap());
        }
        assert_eq!(*lock(&counts), (0, 8, 30), "each once");
        // The watch shows none of them yet.
        controller.write_statuses(&snapshot);
        assert!(controller.statuses.writing.is_empty());
    }

    #[tokio::test]
    async fn a_right_that_is_granted_is_noticed_though_the_watch_that_goes_on_shows_nothing() {
        let (now, timing) = (Instant::now(), &Timing::short().watch);
        let status = Status::failure("webhooks is forbidden", "Forbidden").with_code(403);
        let refusal = watcher::Error::WatchStartFailed(kube::Error::Api(Box::new(status)));
        for (last, is_unreadable) in [(now, true), (now - timing.refused - 2 * CALL_LIMIT, false)] {
            let mut controller = controller();
            for event in [watcher::Event::Init, watcher::Event::InitDone] {
                controller.registered_changed((MUTATING_WEBHOOKS, Ok(event)));
            }
            for at in [last - timing.refused, last] {
                controller.registrations.note_unreadable(MUTATING_WEBHOOKS, &refusal, at, timing);
            }
            assert!(controller.registrations.unreadable.contains_key(MUTATING_WEBHOOKS));
            controller.plan(&Snapshot::default());
            controller.ask_again();
            assert_eq!(controller.registrations.unreadable.contains_key(MUTATING_WEBHOOKS), is_unreadable);
            assert_eq!(controller.planner.plan().is_some(), is_unreadable, "a new plan may use the engine");
        }
    }
}
