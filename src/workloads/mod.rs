//! All stored workloads of the targeted kinds, for every engine. A single one is a [`crate::workload`].
//!
//! [`watch`] sees each new or changed object. An object that waits for this operator goes to [`waiting`]; every other one is
//! counted in the [`census`]. The [`ledger`] has the failures, and [`starts`] the sidecars that do not start. [`report`] informs users about one object, and
//! [`reports`] keeps an object for each namespace that lists what is [`behind`]. The [`fleet`] has what rollouts may touch. Status and metrics use these parts.

pub mod behind;
pub mod census;
pub mod fleet;
pub mod ledger;
pub mod recreate;
pub mod report;
pub mod reports;
pub mod starts;
pub mod waiting;
pub mod watch;

use self::census::{Census, CountedBefore, Pairs, Tally};
use self::fleet::{Bases, Basis, Fleet};
use self::ledger::Ledger;
use self::report::Deliverer;
use self::starts::Starts;
use self::waiting::{News, Standing, Waiting};
use crate::api::v1alpha1::Mode;
use crate::cluster::events::Recorder;
use crate::cluster::object::Object;
use crate::cluster::policies::StoredPolicy;
use crate::decision;
use crate::operator::Operator;
use crate::policy::{Policies, Policy, PolicyRef};
use crate::rollout::member::{self, Member, takes_part};
use crate::rollout::stored::rolls;
use crate::survival::{self, lock};
use crate::workload::{Kind, ObjectRef, Workload};
use arc_swap::ArcSwap;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::Notify;

/// The leader's knowledge about the stored workloads.
pub struct Workloads {
    pub operator: Arc<Operator>,
    pub recorder: Recorder,
    /// Whether each successful injection gets an event, too.
    pub tell_injected: bool,
    /// Whether the server stopped serving a watched kind, for example after the definition of a custom resource was deleted.
    pub is_unserved: AtomicBool,
    /// Signals to rollouts that the fleet has changed, or that all workloads of a kind have been counted.
    pub fleet_changes: Notify,
    waiting: Option<Arc<dyn Waiting>>,
    delivered: ArcSwap<BTreeMap<Arc<Kind>, DeliveredPolicies>>,
    collisions: ArcSwap<Pairs>,
    census: Mutex<Census>,
    ledger: Mutex<Ledger>,
    starts: Mutex<Starts>,
    fleet: Mutex<Fleet>,
}

/// The engine that delivers to one kind inside the API server, and the delivered policies.
pub type DeliveredPolicies = (Deliverer, Arc<Policies>);

/// Whether `workload` has lost the sidecar that it had `before`, though `policy` acts on updates. An update that got the
/// sidecar back in the same request shows nothing.
fn has_lost(policy: &Policy, before: &census::Fate, workload: &Workload) -> bool {
    let own = policy.reference();
    let had = |(of, tally): &(PolicyRef, Tally)| *of == own && tally.is_carried();
    policy.acts_on_update(&workload.kind) && before.iter().any(had) && policy.marker(workload).is_none()
}

/// Whether the policy of that name covers `namespace`, as far as its name tells.
fn covers(policies: &Policies, policy: &PolicyRef, namespace: &str) -> bool {
    policies.get(policy).is_some_and(|policy| policy.covers_namespace(namespace))
}

/// A running list of all stored objects of a kind. An object that the list does not show was deleted without an event.
struct Listing {
    /// The number of the list in the census.
    number: u32,
    /// The basis of each policy at the begin.
    bases: Bases,
    kind_name: String,
    /// The failed objects that the list has not shown yet.
    failed: HashSet<ledger::Hashes>,
}

impl Workloads {
    /// The state of a new leader. Objects that wait go to `waiting`.
    pub fn new(
        operator: Arc<Operator>,
        recorder: Recorder,
        tell_injected: bool,
        waiting: Option<Arc<dyn Waiting>>,
    ) -> Self {
        Self {
            operator,
            recorder,
            tell_injected,
            is_unserved: AtomicBool::new(false),
            fleet_changes: Notify::new(),
            waiting,
            delivered: ArcSwap::default(),
            collisions: ArcSwap::default(),
            census: Mutex::default(),
            ledger: Mutex::default(),
            starts: Mutex::default(),
            fleet: Mutex::default(),
        }
    }

    /// The objects that wait for this operator; none if no engine lets objects wait.
    pub fn waiting(&self) -> Option<&dyn Waiting> {
        self.waiting.as_deref()
    }

    /// Runs `work` on the census.
    pub fn census<T>(&self, work: impl FnOnce(&mut Census) -> T) -> T {
        work(&mut lock(&self.census))
    }

    /// Runs `work` on the ledger.
    pub fn ledger<T>(&self, work: impl FnOnce(&mut Ledger) -> T) -> T {
        work(&mut lock(&self.ledger))
    }

    /// Runs `work` on the sidecars that do not start.
    pub fn starts<T>(&self, work: impl FnOnce(&mut Starts) -> T) -> T {
        work(&mut lock(&self.starts))
    }

    /// Runs `work` on the workloads that rollouts may touch, and signals a change of them.
    pub fn fleet<T>(&self, work: impl FnOnce(&mut Fleet) -> T) -> T {
        let mut fleet = lock(&self.fleet);
        let done = work(&mut fleet);
        if fleet.take_changed() {
            self.fleet_changes.notify_one();
        }
        done
    }

    /// Forgets a deleted object of `kind`, which is called `kind_name` in manifests.
    fn gone(&self, kind: &Arc<Kind>, kind_name: &str, object: &Object) {
        let object_ref = ObjectRef::new(kind, object.place());
        if let Some(waiting) = self.waiting() {
            waiting.deleted(&object_ref);
        }
        self.census(|census| census.remove(kind, object));
        self.starts(|starts| starts.gone(&object_ref));
        self.fleet(|fleet| fleet.gone(&object_ref));
        self.ledger(|ledger| ledger.deleted(kind_name, object.namespace(), object.name()));
    }

    /// Forgets all workloads of a kind that is not watched any more.
    pub fn forget(&self, kind: &Arc<Kind>) {
        self.census(|census| census.forget(kind));
        self.fleet(|fleet| fleet.forget(kind));
        self.starts(|starts| starts.retain(kind, |_| false));
    }

    /// What workloads are compared with for the policy `stored`; none while that is not known.
    pub fn basis(&self, stored: &StoredPolicy) -> Option<Basis> {
        let policy = stored.parsed.as_ref().ok()?;
        let namespaces = match policy.reads_namespaces() {
            true => Some(self.operator.namespaces.edition()?),
            false => None,
        };
        Some(Basis { policy: stored.edition, namespaces })
    }

    /// Whether all workloads of `kind` have been compared with the policies that bring them up to date, as they are now.
    pub fn is_counted(&self, kind: &Arc<Kind>) -> bool {
        let snapshot = self.operator.snapshot();
        let mut rolling = snapshot.policies.iter().filter(|policy| rolls(policy) && policy.kinds.contains(kind));
        rolling.all(|policy| {
            let basis = snapshot.stored.get(&policy.reference()).and_then(|stored| self.basis(stored));
            // Without a basis no count helps.
            basis.is_none_or(|basis| {
                self.fleet(|fleet| fleet.members(&policy.reference(), basis, std::iter::once(kind)).is_some())
            })
        })
    }

    fn bases(&self) -> Bases {
        let stored = self.operator.snapshot().stored;
        stored.iter().filter_map(|(of, stored)| Some((of.clone(), self.basis(stored)?))).collect()
    }

    /// Whether the templates of the two policies collide.
    pub fn collide(&self, a: &PolicyRef, b: &PolicyRef) -> bool {
        self.collisions.load().collide(a, b)
    }

    /// The policies that collide with `policy` and may leave it out: those with at least its priority.
    pub fn rivals(&self, policy: &Policy) -> Vec<Arc<Policy>> {
        let collisions = self.collisions.load();
        let policies = self.operator.snapshot().policies;
        let differs = |other: &Policy| policy.kinds.iter().any(|kind| policy.disagreement(other, kind).is_some());
        let is_rival = |other: &&Arc<Policy>| {
            other.is_enforced()
                && other.spec.priority >= policy.spec.priority
                && (collisions.collide(&policy.reference(), &other.reference()) || differs(other))
        };
        policies.iter().filter(is_rival).cloned().collect()
    }

    /// Finds out again which templates collide.
    pub fn pair_up(&self, policies: &Policies) {
        let renewed = self.collisions.load().renewed(policies);
        self.collisions.store(Arc::new(renewed));
    }

    /// Sets the policies that engines deliver inside the API server, by kind.
    pub fn set_delivered(&self, delivered: BTreeMap<Arc<Kind>, DeliveredPolicies>) {
        self.delivered.store(Arc::new(delivered));
    }

    /// Records one stored object: it waits for us, or it is counted for the policies. A panic costs this call only.
    pub fn observe(&self, kind: &Arc<Kind>, object: Object, news: News) -> Standing {
        let look = || self.look_at(kind, object, news);
        survival::attempt(&self.operator.metrics, "looking at a workload", look).unwrap_or(Standing::Foreign)
    }

    fn look_at(&self, kind: &Arc<Kind>, object: Object, news: News) -> Standing {
        if !object.is_initialized() {
            return self.waiting().map_or(Standing::Foreign, |waiting| waiting.offer(kind, object, news));
        }
        self.count(kind, &object, news);
        if let Some(waiting) = self.waiting() {
            waiting.done(&ObjectRef::new(kind, object.place()), object.version(), news);
        }
        Standing::Initialized
    }

    /// Counts an initialized object. A new object also shows the work of an engine inside the API server, and so does one
    /// that has lost its sidecar by an update.
    fn count(&self, kind: &Arc<Kind>, object: &Object, news: News) {
        let (policies, site) = (self.operator.snapshot().policies, self.operator.site());
        let mut workload = Workload::new(kind, object.value());
        if policies.read_namespaces() {
            workload = workload.within(self.operator.namespaces.get(object.namespace()));
        }
        for policy in policies.iter().filter(|policy| policy.spec.mode == Mode::Audit && !policy.spec.suspend) {
            let tell = || decision::rehearsal(policy, &workload, &site);
            self.ledger(|ledger| ledger.would(&policy.reference(), &policy.spec_hash, tell));
        }
        let fate = census::fate(&workload, &policies, &site, |a, b| self.collide(a, b));
        if fate.iter().all(|(_, tally)| *tally == Tally::Injected) {
            self.ledger(|ledger| ledger.healed(workload.kind_name(), workload.namespace(), workload.name()));
        }
        let members = self.members(&workload, object, &fate, &policies);
        // In one step, so that nothing is noted of what an event has shown to be deleted.
        let known = self.census(|census| {
            let known = census.count(kind, object, fate.clone());
            if known != CountedBefore::Newer && !members.is_empty() {
                let object = ObjectRef::new(kind, object.place());
                let controller = member::controller(&workload).filter(|_| kind.is_pod() && takes_part(&workload));
                self.fleet(|fleet| {
                    for (policy, member) in members {
                        let is_beside = member.is_none() && covers(&policies, &policy, workload.namespace());
                        fleet.see_beside(&policy, &object, controller.clone().filter(|_| is_beside));
                        fleet.see(&policy, &object, member);
                    }
                });
            }
            known
        });
        if known == CountedBefore::Newer {
            return;
        }
        self.note_starts(&workload, &fate, &policies, || ObjectRef::new(kind, object.place()));
        let delivered = self.delivered.load();
        let Some((deliverer, policies)) = delivered.get(kind).filter(|_| news == News::Fresh) else { return };
        match known {
            CountedBefore::Nothing => report::stored(self, *deliverer, &workload, policies, |_| true),
            CountedBefore::Other(fate) => {
                let is_lost = |policy: &Policy| has_lost(policy, &fate, &workload);
                if policies.iter().any(|policy| is_lost(policy)) {
                    report::stored(self, *deliverer, &workload, policies, is_lost);
                }
            }
            CountedBefore::Newer | CountedBefore::Same => {}
        }
    }

    /// What `workload` is for each policy that may bring it up to date; none if that one does not match.
    fn members(
        &self,
        workload: &Workload,
        object: &Object,
        fate: &[(PolicyRef, Tally)],
        policies: &Policies,
    ) -> Vec<(PolicyRef, Option<Member>)> {
        let rolling = policies.iter().filter(|policy| rolls(policy) && policy.kinds.contains(&workload.kind));
        let member = |policy: &Arc<Policy>| {
            let own = policy.reference();
            let is_matched = fate.iter().any(|(of, tally)| *of == own && *tally != Tally::Unknown);
            // A panic costs only this workload, and only for this policy.
            let read = || Member::of(workload, object.age(), policy, &self.operator.site());
            let read = || survival::attempt(&self.operator.metrics, "looking at a member of a rollout", read);
            (own, (is_matched && takes_part(workload)).then(read).flatten())
        };
        rolling.map(member).collect()
    }

    /// Records whether the sidecars of `workload` start, or whether its pods must be listed to know it.
    fn note_starts(
        &self,
        workload: &Workload,
        fate: &[(PolicyRef, Tally)],
        policies: &Policies,
        object: impl FnOnce() -> ObjectRef,
    ) {
        let is_injected = fate.iter().any(|(_, tally)| tally.is_carried());
        if is_injected && workload.kind.is_pod() {
            let stuck = starts::stuck(policies, workload);
            return self.starts(|starts| starts.seen_pod(&object(), stuck));
        }
        let unready = if is_injected { starts::Unready::of(workload) } else { None };
        let first = self.operator.timing.workloads.look;
        self.starts(|starts| {
            if unready.is_some() || !starts.is_empty() {
                starts.seen(object(), unready, Instant::now(), first);
            }
        });
    }

    /// Begins a list of all stored objects of `kind`.
    fn begin(&self, kind: &Kind) -> Listing {
        let kind_name = self.operator.kind_name(kind);
        let failed = self.ledger(|ledger| ledger.stored(&kind_name));
        Listing { bases: self.bases(), number: self.census(Census::begin), kind_name, failed }
    }

    /// Records that the list shows `object`.
    fn see(&self, listing: &mut Listing, object: &Object) {
        if !listing.failed.is_empty() {
            let hashes = self.ledger(|ledger| ledger.hashes(&listing.kind_name, object.namespace(), object.name()));
            listing.failed.remove(&hashes);
        }
    }

    /// Ends a complete list.
    fn end(&self, kind: &Arc<Kind>, listing: &Listing) {
        self.census(|census| census.end(kind, listing.number));
        let now = self.bases();
        // The locks in the order of every place: the census, the fleet, the starts.
        self.census(|census| {
            let exists = |object: &ObjectRef| census.has(kind, object.place());
            self.fleet(|fleet| {
                fleet.retain(kind, exists);
                fleet.counted(kind, &listing.bases, &now);
            });
            self.starts(|starts| starts.retain(kind, exists));
        });
        self.ledger(|ledger| ledger.gone(&listing.failed));
        self.fleet_changes.notify_one();
    }

    /// Aborts an incomplete list: no object counts as deleted.
    fn abort(&self, listing: &Listing) {
        self.census(|census| census.abort(listing.number));
    }
}
