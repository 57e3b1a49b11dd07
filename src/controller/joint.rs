//! The registrations that all policies on one resource share, on every engine but the Initializer one.
//!
//! A resource has one such registration at a time. It changes by being written over, and goes to another engine by being
//! there twice for a moment: whoever comes second finds the marker and does nothing.

use super::abilities::is_lasting;
use super::entry::outcome_of;
use super::hold::Hold;
use super::status::is_programmed;
use super::{Controller, Finished};
use crate::api::code::Code;
use crate::api::condition::Outcome;
use crate::cluster::capabilities::registration as resources;
use crate::cluster::client::{call, why};
use crate::cluster::mirror::{Mirror, Seen, watch_ours};
use crate::cluster::object::Object;
use crate::cluster::policies::{self, Snapshot, Stored};
use crate::engine::object::kind_of;
use crate::engine::registration::{self, Edition, Editions, Key, Meanwhile, Place, Unproven, is_marked};
use crate::engine::{EngineName, Unavailable};
use crate::policy::{Policies, Policy};
use crate::timing;
use crate::workload::Kind;
use futures::stream::{BoxStream, SelectAll};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DynamicObject, ListParams, ObjectMeta};
use kube::runtime::watcher::Event;
use kube::{Api, ResourceExt};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// What the policies on one resource are to share.
pub(super) struct Wanted {
    pub(super) engine: EngineName,
    pub(super) policies: Vec<Arc<Policy>>,
    pub(super) objects: Vec<Value>,
}

impl Wanted {
    /// True if and only if the same is registered for both.
    fn is_as(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, other) || (self.engine == other.engine && self.objects == other.objects)
    }
}

/// What we know of the registration of one resource.
#[derive(Default)]
pub(super) struct Joint {
    phase: Phase,
    /// Not to be registered again before.
    hold: Option<Hold>,
    retry_at: Option<Instant>,
    trouble: Option<Unavailable>,
    /// What could not take the place of what is in force, why, and until when it is not tried again.
    failed: Option<(Arc<Wanted>, Unavailable, Instant)>,
    /// Its parts whose deletion the watch has shown, as they were, and that have not come back.
    deleted: BTreeMap<Key, ObjectMeta>,
}

#[derive(Default)]
enum Phase {
    /// Not in force, as far as we know.
    #[default]
    Out,
    /// A task works on it; what was in force before.
    Busy(Option<Arc<InForce>>),
    Up(Arc<InForce>),
}

/// A registration that has been proven.
#[derive(Clone)]
pub(super) struct InForce {
    wanted: Arc<Wanted>,
    unproven: Option<Unproven>,
    /// Why what was registered before is still there beside it.
    left: Option<Unproven>,
    /// As we have written it: an edit by hand makes another edition.
    editions: Editions,
}

impl InForce {
    /// The policies that are in force by it.
    pub(super) fn policies(&self) -> &[Arc<Policy>] {
        &self.wanted.policies
    }

    /// True if and only if it is `objects`, which `engine` has rendered.
    pub(super) fn is_of(&self, engine: EngineName, objects: &[Value]) -> bool {
        self.wanted.engine == engine && self.wanted.objects == objects
    }

    /// True if and only if it is by `engine`, and has all of `policies`, unchanged.
    pub(super) fn has_all(&self, engine: EngineName, policies: &[Arc<Policy>]) -> bool {
        self.wanted.engine == engine && policies.iter().all(|policy| self.has(policy))
    }

    /// True if and only if it has `policy`, unchanged.
    pub(super) fn has(&self, policy: &Policy) -> bool {
        has(self.policies(), policy)
    }

    /// Those of its policies that `wanted` has unchanged.
    fn unchanged(&self, wanted: &Wanted) -> Vec<Arc<Policy>> {
        self.policies().iter().filter(|policy| has(&wanted.policies, policy)).cloned().collect()
    }

    /// When to look again at what could not be done, or proven; none if there is nothing.
    fn again(&self, kind: &Kind, timing: &timing::Controller) -> Option<Instant> {
        // Of a custom resource nobody can ever tell.
        let is_doubtful = self.unproven.is_some() && kind.is_in_table();
        let pause = self.left.as_ref().map(|_| timing.retry).or(is_doubtful.then_some(timing.verify_again))?;
        Some(Instant::now() + pause)
    }

    /// Takes `wanted` for its own if nothing else would be registered for it: the two are not compared again.
    fn adopt(self: &mut Arc<Self>, wanted: &Arc<Wanted>) {
        if !Arc::ptr_eq(&self.wanted, wanted) && self.wanted.is_as(wanted) {
            Arc::make_mut(self).wanted = wanted.clone();
        }
    }
}

impl Joint {
    /// What is in force, also while it is being changed.
    pub(super) fn in_force(&self) -> Option<&Arc<InForce>> {
        match &self.phase {
            Phase::Up(in_force) | Phase::Busy(Some(in_force)) => Some(in_force),
            _ => None,
        }
    }

    /// Notes that a part is there. If a task of ours has made it again that somebody else deleted, that is not forgotten.
    fn is_back(&mut self, key: &Key) {
        let is_made_again = matches!(self.phase, Phase::Busy(_));
        if !is_made_again || self.deleted.get(key).is_some_and(is_marked) {
            self.deleted.remove(key);
        }
    }

    /// The engine by which the policy `name` is in force here.
    pub(super) fn engine_of(&self, name: &str) -> Option<EngineName> {
        let wanted = &self.in_force()?.wanted;
        wanted.policies.iter().any(|policy| policy.name == name).then_some(wanted.engine)
    }

    fn has(&self, policy: &Policy) -> bool {
        matches!(&self.phase, Phase::Up(in_force) if in_force.has(policy))
    }
}

/// True if and only if `policy` is among `policies`, unchanged.
fn has(policies: &[Arc<Policy>], policy: &Policy) -> bool {
    policies.iter().any(|other| other.name == policy.name && other.spec_hash == policy.spec_hash)
}

impl Controller {
    /// Watches everything of ours that is registered for several policies.
    pub(super) fn follow_registered(&mut self) -> SelectAll<BoxStream<'static, Seen>> {
        let capabilities = self.shared.capabilities();
        let is_followed = |name: &&str| *name != resources::INITIALIZERS && capabilities.registration(name).is_some();
        let followed = resources::ALL.into_iter().filter(is_followed);
        self.registered = followed.clone().map(|name| (name, Mirror::default())).collect();
        self.unreadable.retain(|resource, _| *resource == resources::INITIALIZERS);
        watch_ours(&self.shared.client, &capabilities, self.shared.resync, &self.shared.timing.watch, followed)
    }

    /// Takes over what has become of something registered.
    pub(super) fn registered_changed(&mut self, (resource, event): Seen) {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                let message = why(&error);
                warn!(resource, error = message, "Cannot follow registrations; trying again");
                self.note_unreadable(resource, &message);
                return;
            }
        };
        match &event {
            // The connection was lost: perhaps the server is another one now.
            Event::Init => self.suspicious |= self.has_read(resource) && !self.unreadable.contains_key(resource),
            Event::InitDone => {
                self.refused.remove(resource);
                if self.unreadable.remove(resource).is_some() {
                    self.plan = None;
                }
            }
            Event::Delete(object) => self.registered_deleted(resource, object),
            Event::Apply(object) | Event::InitApply(object) => {
                if let Some(joint) = kind_of(object.name()).and_then(|kind| self.joints.get_mut(&kind)) {
                    joint.is_back(&(resource.to_owned(), object.name().to_owned()));
                }
            }
        }
        if let Some(mirror) = self.registered.get_mut(resource) {
            mirror.apply(&event, |object, _| Edition::of(&object.value()));
        }
    }

    /// Everything that is registered for several policies: the plural name of what it is, and its own.
    fn all_registered(&self) -> impl Iterator<Item = (&'static str, &String)> {
        self.registered.iter().flat_map(|(resource, mirror)| mirror.known().keys().map(move |name| (*resource, name)))
    }

    /// What is registered for `kind`.
    fn registered_for(&self, kind: &Kind) -> impl Iterator<Item = Key> {
        let of_kind = |(_, name): &(&str, &String)| kind_of(name).as_deref() == Some(kind);
        self.all_registered().filter(of_kind).map(|(resource, name)| (resource.to_owned(), name.clone()))
    }

    /// The edition of something registered; none if it is not there.
    fn edition_of(&self, (resource, name): &Key) -> Option<&Edition> {
        self.registered.get(resource.as_str())?.known().get(name)
    }

    fn registered_deleted(&mut self, resource: &str, object: &Object) {
        let Some(joint) = kind_of(object.name()).and_then(|kind| self.joints.get_mut(&kind)) else { return };
        let last = serde_json::from_value::<DynamicObject>(object.value());
        let metadata = last.map(|object| object.metadata).unwrap_or_default();
        joint.deleted.insert((resource.to_owned(), object.name().to_owned()), metadata);
    }

    /// True if what had `metadata` was deleted neither by us, nor by another leader, nor by the garbage collector since none of the
    /// policies that own it is there any more.
    pub(super) fn is_deleted_by_hand(&self, metadata: &ObjectMeta) -> bool {
        let owners = metadata.owner_references.as_deref().unwrap_or_default();
        let is_stored = |owner: &OwnerReference| {
            self.snapshots.borrow().stored.get(&owner.name).is_some_and(|stored| stored.uid == owner.uid)
        };
        !is_marked(metadata) && (owners.is_empty() || owners.iter().any(is_stored))
    }

    /// True if one of `policies` is still stored, and was not deleted and made again; the server is asked, since their own watch may lag
    /// behind. Whoever cannot tell says so, too.
    pub(super) async fn is_any_stored(&self, policies: impl IntoIterator<Item = &Arc<Policy>>) -> bool {
        let api = Api::<Object>::all_with(self.shared.client.clone(), &policies::resource());
        for policy in policies {
            let by_name = ListParams::default().fields(&format!("metadata.name={}", policy.name));
            let is_same = |stored: &Object| stored.uid().as_deref() == Some(policy.uid.as_str());
            let is_stored = match call(api.list(&by_name)).await {
                Ok(stored) => stored.items.iter().any(is_same),
                // Their definition is gone, and they with it.
                Err(error) => error.code() != 404,
            };
            if is_stored {
                return true;
            }
        }
        false
    }

    /// Compares what each resource is to have with what it has, and starts what is missing.
    pub(super) async fn settle_joints(&mut self, snapshot: &Snapshot) {
        let Some(plan) = self.plan.clone() else { return };
        let wanted = &plan.joints;
        let registered: BTreeSet<Arc<Kind>> = self.all_registered().filter_map(|(_, name)| kind_of(name)).collect();
        let kinds: BTreeSet<Arc<Kind>> = wanted.keys().chain(self.joints.keys()).chain(&registered).cloned().collect();
        for kind in kinds.into_iter().filter(|kind| !plan.undecided.contains(kind)) {
            self.settle_joint(&kind, wanted.get(&kind), snapshot).await;
        }
        self.tell_published(wanted);
    }

    /// Tells those who keep the certificate once every registration has the authorities that it may be signed by.
    fn tell_published(&self, wanted: &BTreeMap<Arc<Kind>, Arc<Wanted>>) {
        let Some(certificates) = &self.settings.certificates else { return };
        let reach = self.settings.reach.borrow().clone();
        let Some(bundle) = reach.ok().and_then(|reach| reach.ca_bundle.clone()) else { return };
        let has_it = |(kind, joint): (&Arc<Kind>, &Joint)| match (&joint.phase, wanted.get(kind)) {
            (Phase::Up(in_force), Some(wanted)) => in_force.wanted.is_as(wanted),
            // An edit that the server does not take leaves what was there before.
            (Phase::Out, _) => !self.registered_for(kind).any(|(resource, _)| is_of_webhooks(&resource)),
            _ => false,
        };
        let author_check = self.settings.author_check.as_ref();
        let is_left = author_check.is_some_and(|published| published.borrow().as_ref() != Some(&bundle));
        let mut registered = self.all_registered().filter(|(resource, _)| is_of_webhooks(resource));
        let is_known = |(_, name): (_, &String)| kind_of(name).is_none_or(|kind| self.joints.contains_key(&kind));
        if registered.all(is_known) && self.joints.iter().all(has_it) && !is_left {
            certificates.is_published(&bundle);
        }
    }

    async fn settle_joint(&mut self, kind: &Arc<Kind>, wanted: Option<&Arc<Wanted>>, snapshot: &Snapshot) {
        let joint = self.joints.entry(kind.clone()).or_default();
        let retry_later = joint.retry_at.is_some_and(|at| at > Instant::now());
        let is_due = joint.retry_at.is_some() && !retry_later;
        let in_force = match &mut joint.phase {
            Phase::Busy(_) => return,
            Phase::Out => None,
            Phase::Up(in_force) => {
                if let Some(wanted) = wanted {
                    in_force.adopt(wanted);
                }
                Some(in_force.clone())
            }
        };
        match (wanted, in_force) {
            (None, None) if retry_later => {}
            (None, in_force) => self.end_joint(kind, in_force.as_deref()),
            (Some(wanted), None) => {
                if !self.is_joint_held(kind, wanted, snapshot) && !retry_later {
                    self.raise_joint(kind, wanted.clone(), None);
                }
            }
            (Some(wanted), Some(in_force)) => {
                if let Some(missing) = self.missing(kind, &in_force) {
                    if self.is_removed_by_hand(kind, &in_force, &missing).await {
                        self.hold_joint(kind, &missing);
                    } else {
                        self.raise_joint(kind, wanted.clone(), None);
                    }
                } else if !in_force.wanted.is_as(wanted) {
                    let is_to_wait = |joint: &Joint| {
                        let failed = joint.failed.as_ref();
                        failed.is_some_and(|(failed, _, until)| *until > Instant::now() && failed.is_as(wanted))
                    };
                    if !self.joints.get(kind).is_some_and(is_to_wait) {
                        self.raise_joint(kind, wanted.clone(), Some(in_force));
                    }
                } else if let Some(edited) = self.edited(&in_force) {
                    self.note_edit(wanted, &edited);
                    self.raise_joint(kind, wanted.clone(), Some(in_force));
                } else if is_due && in_force.left.is_some() {
                    self.raise_joint(kind, wanted.clone(), Some(in_force));
                } else if is_due {
                    self.prove_again(kind, &in_force);
                }
            }
        }
    }

    /// True if what is registered for `kind` may serve the policy `name`: it does, or an earlier leader has said so.
    pub(super) fn may_be_in_force(&self, kind: &Arc<Kind>, stored: &Stored, name: &str) -> bool {
        match self.joints.get(kind).and_then(Joint::in_force) {
            Some(in_force) => in_force.wanted.policies.iter().any(|policy| policy.name == name),
            None => is_programmed(stored) && self.registered_for(kind).next().is_some(),
        }
    }

    /// What of a registration in force for `kind` is not there any more, as far as the server still has such things and we may read them;
    /// or what a task of ours has made again that somebody else deleted.
    fn missing(&self, kind: &Arc<Kind>, in_force: &InForce) -> Option<Key> {
        let is_read = |resource: &str| self.has_read(resource) && !self.unreadable.contains_key(resource);
        let deleted = self.joints.get(kind).map(|joint| &joint.deleted);
        let is_by_others =
            |key: &Key| deleted.and_then(|deleted| deleted.get(key)).is_some_and(|last| !is_marked(last));
        let is_missing = |key: &&Key| is_read(&key.0) && (self.edition_of(key).is_none() || is_by_others(key));
        in_force.editions.keys().find(is_missing).cloned()
    }

    /// True if `missing`, a part of what is in force for `kind`, was deleted by hand.
    async fn is_removed_by_hand(&self, kind: &Arc<Kind>, in_force: &InForce, missing: &Key) -> bool {
        let deleted = self.joints.get(kind).and_then(|joint| joint.deleted.get(missing));
        deleted.is_none_or(|metadata| self.is_deleted_by_hand(metadata))
            && self.is_any_stored(&in_force.wanted.policies).await
    }

    /// What of a registration in force is not as we wrote it.
    fn edited(&self, in_force: &InForce) -> Option<Key> {
        let differs =
            |(key, ours): &(&Key, &Edition)| self.edition_of(key).is_some_and(|stored| stored.is_edit_of(ours));
        in_force.editions.iter().find(differs).map(|(key, _)| key.clone())
    }

    fn note_edit(&self, wanted: &Wanted, (resource, name): &Key) {
        info!(resource, name, "The registration was edited; repairing it");
        for policy in &wanted.policies {
            let message = format!("{resource} `{name}` was edited by hand, and has been repaired");
            self.shared
                .ledger(|ledger| ledger.trouble(&policy.name, Code::RegistrationEdited, message, Instant::now()));
        }
    }

    /// A part was deleted by somebody else: an emergency brake. What is left of it goes, too.
    fn hold_joint(&mut self, kind: &Arc<Kind>, (resource, name): &Key) {
        let hold = Hold::begin(self.settings.repair_hold);
        warn!(resource, name, until = %hold, "The registration was removed by hand; it is not made again before");
        let in_force = self.joints.get_mut(kind).and_then(|joint| {
            (joint.hold, joint.trouble, joint.retry_at) = (Some(hold), Some(hold.reason()), None);
            match std::mem::take(&mut joint.phase) {
                Phase::Up(in_force) => Some(in_force),
                _ => None,
            }
        });
        self.end_joint(kind, in_force.as_deref());
    }

    /// True if the registration was deleted by hand not long ago, found out now or by an earlier leader.
    fn is_joint_held(&mut self, kind: &Arc<Kind>, wanted: &Wanted, snapshot: &Snapshot) -> bool {
        let is_there = self.registered_for(kind).next().is_some();
        let Some(joint) = self.joints.get_mut(kind) else { return false };
        if !is_there && joint.hold.is_none() && joint.trouble.is_none() && joint.retry_at.is_none() {
            let found = |policy: &Arc<Policy>| {
                let status = &snapshot.stored.get(&policy.name)?.status;
                // What an edited policy is in force on is not known; that it was held is.
                let is_same = status["observedSpecHash"] == policy.spec_hash.as_str();
                (is_same || Hold::is_told(status))
                    .then(|| Hold::found(&policy.name, status, wanted.engine, self.settings.repair_hold))?
            };
            joint.hold = wanted.policies.iter().find_map(found);
        }
        let Some(reason) = Hold::stand(&mut joint.hold, is_there) else { return false };
        joint.trouble = Some(reason);
        true
    }

    /// To suspend a policy and to resume it is how a user ends the hold on its resources. To suspend it is not enough: others there
    /// would be in force at once.
    pub(super) fn release_joints(&mut self, kinds: &[Arc<Kind>]) {
        for kind in kinds {
            let Some(joint) = self.joints.get_mut(kind) else { continue };
            if joint.hold.take().is_some() {
                joint.trouble = None;
                // Not to be taken for a removal by hand once more.
                joint.retry_at = Some(Instant::now());
            }
        }
    }

    fn raise_joint(&mut self, kind: &Arc<Kind>, wanted: Arc<Wanted>, before: Option<Arc<InForce>>) {
        let place = self.place_of(kind);
        let Some(joint) = self.joints.get_mut(kind) else { return };
        joint.phase = Phase::Busy(before.clone());
        joint.deleted.clear();
        let meanwhile =
            before.as_ref().map_or(Meanwhile::Only(Vec::new()), |before| self.meanwhile(kind, before, &wanted));
        let obsolete = self.obsolete(kind, &wanted.objects);
        let kind = kind.clone();
        self.tasks.spawn(async move {
            let risen = raise(&place, &wanted, before.as_deref(), &meanwhile, &obsolete).await;
            Finished::Raised(kind, wanted, risen)
        });
    }

    /// What refuses while `wanted` takes the place of what was in force before: what both have.
    fn meanwhile(&self, kind: &Arc<Kind>, before: &InForce, wanted: &Wanted) -> Meanwhile {
        let judging = |policies: &[Arc<Policy>]| policies.iter().filter(|policy| policy.judges()).count();
        let both = before.unchanged(wanted);
        if judging(&both) == judging(before.policies()) {
            return Meanwhile::AsIs;
        }
        // As it is registered now: by the same kinds of objects.
        let kinds =
            |objects: &[Value]| objects.iter().map(|object| object["kind"].to_string()).collect::<BTreeSet<_>>();
        let drafts = self.drafts(before.wanted.engine, kind, &both).unwrap_or_default();
        let mut drafts = drafts.into_iter().filter(|draft| kinds(draft).is_subset(&kinds(&before.wanted.objects)));
        let objects = drafts.next().unwrap_or_default();
        Meanwhile::Only(objects.into_iter().filter(registration::refuses).collect())
    }

    /// Has what is in force proven anew: perhaps the server was started otherwise.
    pub(super) fn prove_joints_anew(&mut self) {
        for joint in self.joints.values_mut().filter(|joint| matches!(joint.phase, Phase::Up(_))) {
            joint.retry_at = Some(Instant::now());
        }
    }

    /// Proves once more what is in force, or could not be proven; it stays as it is meanwhile.
    fn prove_again(&mut self, kind: &Arc<Kind>, in_force: &InForce) {
        let (place, wanted, kind) = (self.place_of(kind), in_force.wanted.clone(), kind.clone());
        if let Some(joint) = self.joints.get_mut(&kind) {
            joint.retry_at = in_force.again(&kind, &self.shared.timing.controller);
        }
        self.tasks.spawn(async move {
            let proven = registration::prove(&place, wanted.engine, &wanted.objects).await;
            Finished::Proved(kind, wanted, proven)
        });
    }

    /// Takes over whether what is registered for `kind` shows now. If it does not, though nobody is in the way, it is registered anew,
    /// and then taken away as it would have been the first time.
    pub(super) fn proved(
        &mut self,
        kind: &Arc<Kind>,
        wanted: &Arc<Wanted>,
        proven: Result<Option<Unproven>, Unavailable>,
    ) {
        let timing = &self.shared.timing.controller;
        let Some(joint) = self.joints.get_mut(kind) else { return };
        let Phase::Up(in_force) = &mut joint.phase else { return };
        if !in_force.wanted.is_as(wanted) {
            return;
        }
        match told(proven, in_force.unproven.is_some(), timing) {
            Told::Nothing(pause) => joint.retry_at = Some(Instant::now() + pause),
            Told::InForce(unproven) => {
                Arc::make_mut(in_force).unproven = unproven;
                joint.retry_at = in_force.again(kind, timing);
            }
            Told::Without => {
                let in_force = in_force.clone();
                self.raise_joint(kind, in_force.wanted.clone(), Some(in_force));
            }
        }
    }

    /// What is registered for `kind` and not among `wanted`.
    fn obsolete(&self, kind: &Arc<Kind>, wanted: &[Value]) -> Vec<Key> {
        let place = self.place_of(kind);
        let wanted: BTreeSet<Key> = wanted.iter().filter_map(|object| place.key_of(object)).collect();
        self.registered_for(kind).filter(|key| !wanted.contains(key)).collect()
    }

    pub(super) fn place_of(&self, kind: &Arc<Kind>) -> Place {
        Place {
            client: self.shared.client.clone(),
            capabilities: self.shared.capabilities(),
            namespace: self.shared.site().operator_namespace.clone(),
            kind: kind.clone(),
            timing: &self.shared.timing.registration,
        }
    }

    /// Takes everything away that is registered for `kind`.
    fn end_joint(&mut self, kind: &Arc<Kind>, in_force: Option<&InForce>) {
        let objects = self.obsolete(kind, &[]);
        // The policies may have gone to the Initializer engine, and not have arrived there yet.
        if in_force.is_some_and(|in_force| self.is_handing_over(in_force)) {
            return;
        }
        let Some(joint) = self.joints.get_mut(kind) else { return };
        if objects.is_empty() {
            joint.phase = Phase::Out;
            if joint.hold.is_none() && joint.trouble.is_none() {
                self.joints.remove(kind);
            }
            return;
        }
        joint.phase = Phase::Busy(None);
        let (place, kind) = (self.place_of(kind), kind.clone());
        self.tasks.spawn(async move {
            let fallen = registration::take_down(&place, &objects).await;
            Finished::Lowered(kind, fallen.map_err(|error| error.to_string()))
        });
    }

    fn is_handing_over(&self, in_force: &InForce) -> bool {
        let awaited = |policy: &Arc<Policy>| {
            let placed = self.plan.as_ref().and_then(|plan| plan.policies.get(&policy.name)?.as_ref().ok());
            let is_to_have_own = placed.is_some_and(|placed| placed.own.is_some());
            is_to_have_own && self.entries.get(&policy.name).is_some_and(|entry| !entry.is_up())
        };
        in_force.wanted.policies.iter().any(awaited)
    }

    /// Tells those who see what is stored which engine has delivered what.
    fn publish_delivered(&self) {
        let in_force = self.joints.iter().filter_map(|(kind, joint)| Some((kind, joint.in_force()?)));
        let delivered = in_force.map(|(kind, in_force)| {
            let wanted = &in_force.wanted;
            (kind.clone(), (wanted.engine, Arc::new(Policies::new(wanted.policies.iter().cloned()))))
        });
        self.shared.set_delivered(delivered.collect());
    }

    /// Takes over how a task has ended.
    pub(super) fn raised(
        &mut self,
        kind: &Arc<Kind>,
        wanted: &Arc<Wanted>,
        risen: Result<InForce, (Unavailable, Option<InForce>)>,
    ) {
        let (timing, engine) = (&self.shared.timing.controller, wanted.engine);
        let deleted = self.joints.get(kind).map(|joint| joint.deleted.clone()).unwrap_or_default();
        if risen.is_err()
            && let Some(key) = deleted.iter().find_map(|(key, last)| self.is_deleted_by_hand(last).then_some(key))
        {
            self.hold_joint(kind, key);
            return;
        }
        let Some(joint) = self.joints.get_mut(kind) else { return };
        joint.failed = None;
        let (in_force, reason) = match risen {
            Ok(in_force) => (Some(in_force), None),
            Err((reason, kept)) => (kept, Some(reason)),
        };
        let Some(in_force) = in_force else {
            self.not_raised(kind, wanted, reason, deleted.values().any(|last| !is_marked(last)));
            return;
        };
        // The watch may not have shown it yet, or that it is gone again.
        for (key @ (resource, name), edition) in &in_force.editions {
            if let Some(mirror) = self.registered.get_mut(resource.as_str()).filter(|_| !deleted.contains_key(key)) {
                mirror.expect(name, edition.clone());
            }
        }
        joint.hold = None;
        (joint.trouble, joint.retry_at) = (None, in_force.again(kind, timing));
        let (policies, is_proven) = (in_force.wanted.policies.len(), in_force.unproven.is_none());
        joint.phase = Phase::Up(Arc::new(in_force));
        match reason {
            None => {
                info!(resource = kind.resource, %engine, policies, is_proven, "Registered");
                self.publish_delivered();
            }
            Some(reason) => {
                warn!(resource = kind.resource, %engine, code = %reason.code, message = reason.message, "Not in force; what was in force before stays so");
                self.shared.metrics.reconcile_errors.inc();
                joint.failed = Some((wanted.clone(), reason.clone(), Instant::now() + timing.retry));
                self.note_failure(kind, wanted, &reason);
            }
        }
    }

    /// Nothing is in force, since `wanted` could not be registered for `reason`; perhaps since it was taken away by others.
    fn not_raised(&mut self, kind: &Arc<Kind>, wanted: &Wanted, reason: Option<Unavailable>, is_by_others: bool) {
        let Some(joint) = self.joints.get_mut(kind) else { return };
        joint.phase = Phase::Out;
        let Some(reason) = reason.filter(|_| !is_by_others) else {
            // No wonder that it did not show: the garbage collector took it with policies that were made again. Not to be taken for a
            // removal by hand.
            joint.retry_at = Some(Instant::now());
            return;
        };
        warn!(resource = kind.resource, engine = %wanted.engine, code = %reason.code, message = reason.message, "Not in force");
        self.shared.metrics.reconcile_errors.inc();
        // Another engine may do it at once.
        let is_blocked = is_lasting(&reason);
        joint.retry_at =
            Some(if is_blocked { Instant::now() } else { Instant::now() + self.shared.timing.controller.retry });
        joint.trouble = (!is_blocked).then(|| reason.clone());
        self.note_failure(kind, wanted, &reason);
    }

    /// Has another engine, or another set of policies, be tried, if that may help.
    fn note_failure(&mut self, kind: &Arc<Kind>, wanted: &Wanted, reason: &Unavailable) {
        self.block(wanted.engine, kind, reason);
        if matches!(reason.code, Code::NotExpressible | Code::RegistrationRefused) {
            self.note_refusal(&wanted.objects, reason);
        }
    }

    /// Takes over that a registration has been taken away, or not.
    pub(super) fn lowered(&mut self, kind: &Arc<Kind>, fallen: Result<(), String>) {
        let Some(joint) = self.joints.get_mut(kind) else { return };
        (joint.phase, joint.retry_at) = (Phase::Out, None);
        match fallen {
            Ok(()) => self.publish_delivered(),
            Err(error) => {
                warn!(resource = kind.resource, error, "Could not be taken out; trying again");
                self.shared.metrics.reconcile_errors.inc();
                joint.retry_at = Some(Instant::now() + self.shared.timing.controller.retry);
            }
        }
    }

    /// Why `policy` is not in force on one of `kinds`, or that it is not known yet; none if it is.
    pub(super) fn shortfall(&self, policy: &Policy, kinds: &[Arc<Kind>]) -> Option<Outcome> {
        let mut unknown = None;
        for kind in kinds {
            match self.joints.get(kind) {
                Some(joint) if joint.has(policy) => {}
                Some(Joint { trouble: Some(reason), .. } | Joint { failed: Some((_, reason, _)), .. }) => {
                    return Some(outcome_of(reason.clone()));
                }
                _ => unknown = Some(Outcome::FirstSight),
            }
        }
        unknown
    }

    /// Why nobody knows whether `policy` is in force.
    pub(super) fn doubt(&self, policy: &str) -> Option<Unproven> {
        let in_force = self.joints.values().filter(|joint| joint.engine_of(policy).is_some());
        let mut doubts = in_force.filter_map(Joint::in_force);
        doubts.find_map(|in_force| in_force.unproven.clone().or_else(|| in_force.left.clone()))
    }

    /// What this process serves and refuses nothing: it can go when the process goes. With it what an earlier leader has registered,
    /// and this one has not come to yet.
    fn leaving_joints(&self, stored: &BTreeMap<String, Stored>) -> Vec<(Arc<Kind>, Vec<Arc<Policy>>)> {
        let by_us = self.all_registered().filter(|(resource, _)| is_of_webhooks(resource));
        let in_force = self.joints.iter().filter(|(_, joint)| joint.in_force().is_some()).map(|(kind, _)| kind.clone());
        let kinds: BTreeSet<Arc<Kind>> = by_us.filter_map(|(_, name)| kind_of(name)).chain(in_force).collect();
        let targeting = |kind: &Arc<Kind>| {
            let policies = stored.values().filter_map(|stored| stored.parsed.clone().ok());
            policies.filter(|policy| policy.is_enforced() && policy.kinds.contains(kind)).collect()
        };
        let served = |kind: Arc<Kind>| match self.joints.get(&kind).and_then(Joint::in_force) {
            Some(in_force) if in_force.wanted.engine == EngineName::Webhook => {
                Some((kind, in_force.wanted.policies.clone()))
            }
            Some(_) => None,
            None => Some((kind.clone(), targeting(&kind))),
        };
        let is_open = |(_, policies): &(Arc<Kind>, Vec<Arc<Policy>>)| policies.iter().all(|policy| !policy.refuses());
        kinds.into_iter().filter_map(served).filter(is_open).collect()
    }

    /// Takes away what is registered for `kind`, at once.
    async fn leave_joint(&self, kind: &Arc<Kind>) {
        let objects = self.obsolete(kind, &[]);
        if let Err(error) = registration::take_down(&self.place_of(kind), &objects).await {
            warn!(resource = kind.resource, %error, "Cannot unregister the webhook; creates of its targets take longer until the operator is back");
        }
    }

    /// Takes away what needs this process and refuses nothing; says so first, as far as it can until `until`.
    pub(super) async fn withdraw_joints(&mut self, stored: &BTreeMap<String, Stored>, until: Instant) {
        let open = self.leaving_joints(stored);
        let policies: BTreeSet<&str> =
            open.iter().flat_map(|(_, policies)| policies).map(|policy| policy.name.as_str()).collect();
        let told = policies.into_iter().filter_map(|name| Some((name, stored.get(name)?))).collect();
        let message = "the operator stopped in good order and unregistered its webhook; start it again";
        self.tell_stopped(told, message, until).await;
        futures::future::join_all(open.iter().map(|(kind, _)| self.leave_joint(kind))).await;
    }
}

/// Registers `wanted`, and takes away what is `obsolete` beside it. Where that fails, what was in force `before` is put back.
///
/// # Errors
/// Why it is not in force, and what is.
async fn raise(
    place: &Place,
    wanted: &Arc<Wanted>,
    before: Option<&InForce>,
    meanwhile: &Meanwhile,
    obsolete: &[Key],
) -> Result<InForce, (Unavailable, Option<InForce>)> {
    match registration::bring_up(place, wanted.engine, &wanted.objects, meanwhile).await {
        Ok((unproven, editions)) => {
            let left = registration::take_down(place, obsolete).await.err().map(|error| still_there(&error.into()));
            Ok(InForce { wanted: wanted.clone(), unproven, left, editions })
        }
        Err(reason) => {
            // What an earlier leader may have put in force there stays.
            if before.is_none() && is_refused(&reason) {
                return Err((reason, None));
            }
            // Where the engine turned out to be off, it was off before, too.
            let before = before.filter(|before| before.wanted.engine != wanted.engine || !is_of_engine(&reason));
            let objects = before.map(|before| before.wanted.objects.as_slice()).unwrap_or_default();
            let kept = match registration::restore(place, &wanted.objects, objects).await {
                Ok(editions) => before.map(|before| InForce { editions, ..before.clone() }),
                // It is compared with what is there once that can be read.
                Err(error) => {
                    warn!(resource = place.kind.resource, %error, "What was in force before cannot be put back; trying again");
                    before.cloned()
                }
            };
            Err((reason, kept))
        }
    }
}

/// True if and only if it says that the server has not taken what was to be registered.
pub(super) fn is_refused(reason: &Unavailable) -> bool {
    matches!(reason.code, Code::ServerAway | Code::NotExpressible | Code::RegistrationRefused | Code::NameTaken)
}

/// True if and only if it says that the engine is off, whatever is registered.
fn is_of_engine(reason: &Unavailable) -> bool {
    is_lasting(reason) && reason.code != Code::MissingRight
}

fn is_of_webhooks(resource: &str) -> bool {
    [resources::MUTATING_WEBHOOKS, resources::VALIDATING_WEBHOOKS].contains(&resource)
}

/// What a proof that was repeated has told of a registration.
pub(super) enum Told {
    /// It stands as it stood, and is to be proven after that pause: the server is away, or nobody can tell just now.
    Nothing(Duration),
    /// It is in force, as far as is known; what could not be proven.
    InForce(Option<Unproven>),
    /// It has no effect.
    Without,
}

/// What was `proven` of a registration of which it was, or was not, known before that it is in force.
pub(super) fn told(
    proven: Result<Option<Unproven>, Unavailable>,
    was_doubtful: bool,
    timing: &timing::Controller,
) -> Told {
    match proven {
        Ok(Some(_)) if !was_doubtful => Told::Nothing(timing.verify_again),
        Ok(unproven) => Told::InForce(unproven),
        Err(reason) if reason.code == Code::ServerAway => Told::Nothing(timing.retry),
        // Whoever may not ask is not answered; and what once had an effect, and was not switched off, will have it again.
        Err(reason) if reason.code == Code::MissingRight || !(was_doubtful || is_lasting(&reason)) => {
            Told::InForce(Some((reason.code, reason.message)))
        }
        Err(_) => Told::Without,
    }
}

fn still_there(reason: &Unavailable) -> Unproven {
    (reason.code, format!("what another engine had registered cannot be taken away: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Site;
    use crate::timing::Timing;
    use serde_json::json;

    fn wanted(policy: &Arc<Policy>, object: &str) -> Arc<Wanted> {
        let (engine, policies) = (EngineName::MutatingAdmissionPolicy, vec![policy.clone()]);
        Arc::new(Wanted { engine, policies, objects: vec![json!(object)] })
    }

    #[test]
    fn what_was_in_force_stays_so_unless_it_was_switched_off() {
        let unproven: Unproven = (Code::ProbeFailed, "refused".to_owned());
        let failed = |code: Code| Err(Unavailable::new(code, "why"));
        let told = |proven, was_doubtful| match told(proven, was_doubtful, &Timing::documented().controller) {
            Told::Nothing(pause) => format!("again in {} s", pause.as_secs()),
            Told::InForce(unproven) => format!("{:?}", unproven.map(|(code, _)| code.name())),
            Told::Without => "without effect".to_owned(),
        };
        for (proven, if_proven_before, if_doubtful_before) in [
            (Ok(None), "None", "None"),
            (Ok(Some(unproven)), "again in 60 s", "Some(\"ProbeFailed\")"),
            (failed(Code::ServerAway), "again in 10 s", "again in 10 s"),
            (failed(Code::MissingRight), "Some(\"MissingRight\")", "Some(\"MissingRight\")"),
            (failed(Code::WebhookUnreachable), "Some(\"WebhookUnreachable\")", "without effect"),
            (failed(Code::AdmissionPolicyPluginOff), "without effect", "without effect"),
            (failed(Code::InitializersPluginOff), "without effect", "without effect"),
        ] {
            let seen = [told(proven.clone(), false), told(proven.clone(), true)];
            assert_eq!(seen, [if_proven_before, if_doubtful_before], "{proven:?}");
        }
    }

    #[test]
    fn a_policy_whose_edit_changes_nothing_of_what_is_registered_is_in_force_as_edited() {
        let policy = |engine: &str| {
            let template = json!({ "containers": [{ "name": "a", "image": "i:1" }] });
            let object = json!({ "metadata": { "name": "a" }, "spec": { "engine": engine, "template": template } });
            Arc::new(Policy::parse(&object, &Site::new("scpol-system", [], [])).unwrap())
        };
        let (before, edited) = (policy("Auto"), policy("MutatingAdmissionPolicy"));
        assert_ne!(before.spec_hash, edited.spec_hash);
        let has_edited = |taken: Arc<Wanted>| {
            let in_force =
                InForce { wanted: wanted(&before, "x"), unproven: None, left: None, editions: Editions::new() };
            let mut in_force = Arc::new(in_force);
            in_force.adopt(&taken);
            Joint { phase: Phase::Up(in_force), ..Joint::default() }.has(&edited)
        };
        assert!(has_edited(wanted(&edited, "x")));
        assert!(!has_edited(wanted(&edited, "y")), "something else is to be registered first");
    }
}
