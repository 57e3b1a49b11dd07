//! The life of one registration, as a pure state machine: from unregistered over registering to in effect, and back.
//!
//! A registration belongs to one policy (Initializer), to all policies on one kind (the other engines), or to none (the author
//! check). All of them follow the same rules. [`Registration::step`] takes an event and returns actions. The caller runs the
//! actions and reports their results as the next events. The machine reads no clock and sends no request.
//!
//! | state | an event leads to |
//! |---|---|
//! | [`Phase::Unregistered`] | `Registering`, unless a hold or a pause after a failure forbids it |
//! | [`Phase::Registering`] | `InForce`; after a failure back to what was in effect before, or `Unregistered` |
//! | [`Phase::InForce`] | `Registering` after a change or an edit by hand; `AskingOwners` when a part was deleted |
//! | [`Phase::AskingOwners`] | a hold if the owners still exist, because then a person deleted it; else `Unregistered` |
//! | [`Phase::Unregistering`] | `Unregistered` |

use super::hold::Hold;
use crate::api::code::Code;
use crate::cluster::object::Object;
use crate::engine::probe::{Unverified, Verification};
use crate::engine::registrar::RegistrationKey;
use crate::engine::registration::{Editions, is_marked};
use crate::engine::{EngineName, Unavailable};
use crate::policy::Policy;
use crate::timing;
use crate::workload::Kind;
use jiff::Timestamp;
use kube::api::{DynamicObject, ObjectMeta};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A registration as an engine has rendered it.
#[derive(Debug)]
pub struct Wanted {
    pub engine: EngineName,
    /// The policies that the registration delivers, in order of priority.
    pub policies: Vec<Arc<Policy>>,
    /// The kinds on which the policies are delivered.
    pub kinds: Vec<Arc<Kind>>,
    /// The objects to write to the API server.
    pub objects: Vec<Value>,
}

impl PartialEq for Wanted {
    fn eq(&self, other: &Self) -> bool {
        self.engine == other.engine && self.objects == other.objects
    }
}

impl Wanted {
    /// Whether both write the same objects to the API server.
    pub fn is_as(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, other) || self == other
    }

    /// Whether the registration delivers `policy` in its current form.
    pub fn has(&self, policy: &Policy) -> bool {
        self.policies.iter().any(|other| other.name == policy.name && other.spec_hash == policy.spec_hash)
    }
}

/// A registration that is verified, or that no dry run can verify.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    pub wanted: Arc<Wanted>,
    /// Why no dry run can verify the registration.
    pub unverified: Option<Unverified>,
    /// Why the objects of an earlier registration still exist beside it.
    pub leftover: Option<Unverified>,
    /// The edition of each object as we wrote it. An edit by hand makes another edition.
    pub editions: Editions,
}

impl Live {
    pub fn policies(&self) -> &[Arc<Policy>] {
        &self.wanted.policies
    }

    /// Whether `engine` registered exactly `objects`.
    pub fn is_of(&self, engine: EngineName, objects: &[Value]) -> bool {
        self.wanted.engine == engine && self.wanted.objects == objects
    }

    /// Whether `engine` delivers all of `policies` in their current form.
    pub fn has_all(&self, engine: EngineName, policies: &[Arc<Policy>]) -> bool {
        self.wanted.engine == engine && policies.iter().all(|policy| self.wanted.has(policy))
    }

    /// When to verify again, or to try again to remove the leftover; none if there is nothing to do.
    fn due(&self, context: &Context<'_>) -> Option<Instant> {
        // A dry run of a custom resource never verifies anything.
        let is_doubtful = self.unverified.is_some() && self.wanted.kinds.iter().all(|kind| kind.is_in_table());
        let timing = context.timing;
        let pause = self.leftover.as_ref().map(|_| timing.retry).or(is_doubtful.then_some(timing.verify_again))?;
        Some(context.now + pause)
    }

    /// Replaces the wanted registration by an equal one. After that the two are the same pointer, and the next comparison is
    /// cheap.
    fn adopt(self: &mut Arc<Self>, wanted: &Arc<Wanted>) {
        if !Arc::ptr_eq(&self.wanted, wanted) && self.wanted.is_as(wanted) {
            Arc::make_mut(self).wanted = wanted.clone();
        }
    }
}

/// Why a registration is not in effect, and what still is.
pub type Failure = (Unavailable, Option<Live>);

/// The inputs of the rules beside the state and the event.
pub struct Context<'a> {
    pub now: Instant,
    /// The same moment by the wall clock, for messages.
    pub wall: Timestamp,
    pub timing: &'a timing::Controller,
    /// How long the operator does not restore a registration that a person deleted.
    pub repair_hold: Duration,
    /// Whether a person deleted the object with this metadata, and not we, another leader, or the garbage collector.
    pub is_by_hand: &'a dyn Fn(&ObjectMeta) -> bool,
}

/// What the planner wants for the registration.
#[derive(Clone, Debug)]
pub enum Wish {
    Registered(Arc<Wanted>),
    /// Register, but not yet; with the reason if that is an error.
    Later(Arc<Wanted>, Option<Unavailable>),
    /// The planner has no result: nothing changes.
    Keep,
    /// Register nothing. For a policy with a registration of its own this ends a hold.
    Unregistered {
        ends_hold: bool,
    },
}

/// What the watches show of the registration.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The objects of this registration that exist and are ours.
    pub registered: BTreeSet<RegistrationKey>,
    /// The resources whose objects cannot be read now, by plural name.
    pub unreadable: BTreeSet<String>,
    /// An object that differs from what we wrote.
    pub edited: Option<RegistrationKey>,
    /// Whether the status of the policies says that a person deleted the registration, see [`Hold::is_due`].
    pub is_held: bool,
}

/// Something that has happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The controller compares the wish with the observed objects.
    Compared(Wish, Observed),
    /// [`Action::Register`] has ended.
    Registered(Arc<Wanted>, Result<Live, Failure>),
    /// [`Action::Unregister`] has ended, perhaps with an error text.
    Unregistered(Result<(), String>),
    /// [`Action::Verify`] has ended.
    Verified(Arc<Wanted>, Verification),
    /// [`Action::AskOwners`] has ended. True if an owner still exists.
    OwnersExist(bool),
    /// The watch shows that an object was deleted.
    Deleted(RegistrationKey, Box<ObjectMeta>),
    /// The watch shows that an object exists.
    Appeared(RegistrationKey),
    /// A user resumed a policy or created it again. This ends holds and pauses.
    Resumed,
    /// The API server may be a different one now.
    ServerChanged,
}

impl Event {
    /// The event that `object`, with `key`, was deleted.
    pub fn deleted(key: RegistrationKey, object: &Object) -> Self {
        let last = serde_json::from_value::<DynamicObject>(object.value());
        Self::Deleted(key, Box::new(last.map(|object| object.metadata).unwrap_or_default()))
    }
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write `wanted`, verify it, and remove all other objects of this registration. `before` is in effect until then.
    Register {
        wanted: Arc<Wanted>,
        before: Option<Arc<Live>>,
    },
    Unregister,
    /// Verify `wanted` again. The registration stays as it is in the meantime.
    Verify(Arc<Wanted>),
    /// Ask the server whether a policy that owns the registration still exists.
    AskOwners(Arc<Live>),
    /// Treat these objects as registered, although the watch may not show them yet.
    Expect(Arc<Live>, BTreeSet<RegistrationKey>),
    /// Remember that the server rejected `wanted`, so that the planner tries another engine or another set of policies.
    NoteFailure(Arc<Wanted>, Unavailable),
    /// Publish what is in effect, because it changed.
    Publish,
    Report(Notice),
    /// Drop the state of this registration, because nothing needs it.
    Forget,
}

/// A line of the log, or an entry of a status.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    Registered(Arc<Live>),
    /// The registration is not in effect.
    NotInForce(Arc<Wanted>, Unavailable),
    /// The new form is not in effect; the old form still is.
    KeptBefore(Arc<Wanted>, Unavailable),
    /// A person deleted the object.
    Held(Option<RegistrationKey>, Hold),
    /// A person edited the object.
    Edited(Arc<Wanted>, RegistrationKey),
    NotUnregistered(String),
}

/// The state of a policy in a registration.
#[derive(Debug, PartialEq)]
pub enum Standing<'a> {
    InForce,
    Unknown,
    Not(&'a Unavailable),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Phase {
    #[default]
    Unregistered,
    /// A task writes and verifies. Holds what was in effect before.
    Registering(Option<Arc<Live>>),
    InForce(Arc<Live>),
    /// An object was deleted, and a task asks whether its owners were deleted, too.
    AskingOwners(Arc<Live>, RegistrationKey),
    /// A task removes the objects.
    Unregistering,
}

/// A new form that could not replace what is in effect.
#[derive(Clone, Debug, PartialEq)]
struct Rejected {
    wanted: Arc<Wanted>,
    reason: Unavailable,
    /// No new attempt before this time.
    until: Instant,
}

/// The state of one registration.
#[derive(Clone, Debug, Default)]
pub struct Registration {
    phase: Phase,
    /// Set after a person deleted the registration.
    hold: Option<Hold>,
    /// While unregistered: no new attempt before this time.
    retry_at: Option<Instant>,
    /// While in effect: when to verify it again.
    verify_at: Option<Instant>,
    /// Why the registration is not in effect.
    reason: Option<Unavailable>,
    rejected: Option<Rejected>,
    /// The deleted objects that have not come back, with their last metadata.
    deleted: BTreeMap<RegistrationKey, ObjectMeta>,
    /// Whether this leader has registered, held or removed it. If so, a status from an earlier leader is outdated.
    is_known: bool,
}

impl Registration {
    /// What is in effect, even while a task changes it.
    pub fn live(&self) -> Option<&Arc<Live>> {
        match &self.phase {
            Phase::InForce(live) | Phase::Registering(Some(live)) | Phase::AskingOwners(live, _) => Some(live),
            _ => None,
        }
    }

    /// What is in effect while no task changes it.
    pub fn at_rest(&self) -> Option<&Arc<Live>> {
        match &self.phase {
            Phase::InForce(live) => Some(live),
            _ => None,
        }
    }

    /// Whether a task works on this registration.
    pub fn is_busy(&self) -> bool {
        !matches!(self.phase, Phase::Unregistered | Phase::InForce(_))
    }

    pub fn is_unregistered(&self) -> bool {
        self.phase == Phase::Unregistered
    }

    pub fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// Why the wanted form is not in effect.
    pub fn reason(&self) -> Option<&Unavailable> {
        self.reason.as_ref().or_else(|| self.rejected.as_ref().map(|rejected| &rejected.reason))
    }

    /// The state of `policy`, in its current form.
    pub fn standing(&self, policy: &Policy) -> Standing<'_> {
        if self.at_rest().is_some_and(|live| live.wanted.has(policy)) {
            return Standing::InForce;
        }
        // While a task changes the registration for other policies, the earlier state of this one stays true.
        if self.live().is_some_and(|live| live.wanted.has(policy)) {
            return Standing::Unknown;
        }
        self.reason().map_or(Standing::Unknown, Standing::Not)
    }

    /// Ends the pause after a failure.
    pub fn retry_now(&mut self) {
        self.retry_at = None;
    }

    /// Returns the next state and the actions to run.
    pub fn step(mut self, event: Event, context: &Context<'_>) -> (Self, Vec<Action>) {
        let actions = match event {
            Event::Compared(wish, observed) => self.compared(wish, &observed, context),
            Event::Registered(wanted, result) => self.registered(wanted, result, context),
            Event::Unregistered(result) => self.unregistered(result, context),
            Event::Verified(wanted, verification) => self.verified(&wanted, verification, context),
            Event::OwnersExist(exist) => self.owners_exist(exist, context),
            Event::Deleted(key, metadata) => {
                self.deleted.insert(key, *metadata);
                Vec::new()
            }
            Event::Appeared(key) => self.appeared(&key),
            Event::Resumed => self.resumed(),
            Event::ServerChanged => {
                self.verify_at = self.at_rest().map(|_| context.now);
                Vec::new()
            }
        };
        (self, actions)
    }

    fn compared(&mut self, wish: Wish, observed: &Observed, context: &Context<'_>) -> Vec<Action> {
        if self.is_busy() {
            return Vec::new();
        }
        match wish {
            Wish::Keep => Vec::new(),
            Wish::Unregistered { ends_hold } => self.end(ends_hold, observed, context),
            Wish::Registered(wanted) if self.at_rest().is_some() => self.compare(&wanted, true, observed, context),
            Wish::Later(wanted, reason) if self.at_rest().is_some() => {
                self.reason = reason.or(self.reason.take());
                self.compare(&wanted, false, observed, context)
            }
            Wish::Registered(wanted) => self.begin(Ok(wanted), observed, context),
            Wish::Later(_, reason) => self.begin(Err(reason), observed, context),
        }
    }

    /// Removes the registered objects.
    fn end(&mut self, ends_hold: bool, observed: &Observed, context: &Context<'_>) -> Vec<Action> {
        if ends_hold {
            self.hold = None;
        }
        if self.is_unregistered() && self.is_paused(context) {
            return Vec::new();
        }
        if observed.registered.is_empty() {
            let was_in_force = self.at_rest().is_some();
            self.leave();
            let publish = was_in_force.then_some(Action::Publish);
            return publish.into_iter().chain(self.hold.is_none().then_some(Action::Forget)).collect();
        }
        self.phase = Phase::Unregistering;
        vec![Action::Unregister]
    }

    /// Compares what is in effect with `wanted`. Writes `wanted` only if it `is_ready`.
    fn compare(
        &mut self,
        wanted: &Arc<Wanted>,
        is_ready: bool,
        observed: &Observed,
        context: &Context<'_>,
    ) -> Vec<Action> {
        let Phase::InForce(live) = &mut self.phase else { return Vec::new() };
        live.adopt(wanted);
        let live = live.clone();
        if let Some(missing) = self.missing(&live, observed) {
            return self.lost(&live, missing, context);
        }
        if !is_ready {
            return Vec::new();
        }
        if !live.wanted.is_as(wanted) {
            let waits = |rejected: &Rejected| rejected.until > context.now && rejected.wanted.is_as(wanted);
            let is_to_wait = self.rejected.as_ref().is_some_and(waits);
            return if is_to_wait { Vec::new() } else { self.register(wanted.clone(), Some(live)) };
        }
        if let Some(edited) = &observed.edited {
            let report = Action::Report(Notice::Edited(wanted.clone(), edited.clone()));
            return [report].into_iter().chain(self.register(wanted.clone(), Some(live))).collect();
        }
        if self.verify_at.is_none_or(|at| at > context.now) {
            return Vec::new();
        }
        if live.leftover.is_some() {
            return self.register(wanted.clone(), Some(live));
        }
        self.verify_at = live.due(context);
        vec![Action::Verify(live.wanted.clone())]
    }

    /// The first object of `live` that is missing, or that a person deleted before a task wrote it again.
    fn missing(&self, live: &Live, observed: &Observed) -> Option<RegistrationKey> {
        let is_by_others = |key: &RegistrationKey| self.deleted.get(key).is_some_and(|last| !is_marked(last));
        let is_missing = |key: &&RegistrationKey| {
            !observed.unreadable.contains(&key.resource) && (!observed.registered.contains(*key) || is_by_others(key))
        };
        live.editions.keys().find(is_missing).cloned()
    }

    /// Reacts to a missing object of `live`.
    fn lost(&mut self, live: &Arc<Live>, missing: RegistrationKey, context: &Context<'_>) -> Vec<Action> {
        if !self.deleted.get(&missing).is_none_or(context.is_by_hand) {
            // The next comparison registers it again.
            self.leave();
            return Vec::new();
        }
        if live.policies().is_empty() {
            return self.hold_back(Some(missing), context);
        }
        self.phase = Phase::AskingOwners(live.clone(), missing);
        vec![Action::AskOwners(live.clone())]
    }

    fn owners_exist(&mut self, exist: bool, context: &Context<'_>) -> Vec<Action> {
        let Phase::AskingOwners(_, missing) = &self.phase else { return Vec::new() };
        let missing = missing.clone();
        if exist {
            return self.hold_back(Some(missing), context);
        }
        // The garbage collector removed it.
        self.leave();
        Vec::new()
    }

    /// Whether this leader knows nothing yet, so that a hold of an earlier leader counts.
    fn is_new(&self) -> bool {
        !self.is_known && self.hold.is_none() && self.reason.is_none() && self.retry_at.is_none()
    }

    /// Registers `wanted`, unless a hold or a pause forbids it. An `Err` means not yet, with the reason if that is an error.
    fn begin(
        &mut self,
        wanted: Result<Arc<Wanted>, Option<Unavailable>>,
        observed: &Observed,
        context: &Context<'_>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let is_registered = !observed.registered.is_empty();
        let may_be_by_hand = self.deleted.values().all(context.is_by_hand);
        if self.is_new() && observed.is_held && !is_registered && may_be_by_hand {
            let hold = Hold::begin(context.now, context.wall, context.repair_hold);
            self.hold = Some(hold);
            actions.push(Action::Report(Notice::Held(None, hold)));
        }
        if let Some(reason) = Hold::stand(&mut self.hold, is_registered, context.now) {
            self.reason = Some(reason);
            return actions;
        }
        if self.is_paused(context) {
            return actions;
        }
        match wanted {
            Ok(wanted) => actions.extend(self.register(wanted, None)),
            Err(reason) => self.reason = reason.or(self.reason.take()),
        }
        actions
    }

    fn is_paused(&self, context: &Context<'_>) -> bool {
        self.retry_at.is_some_and(|at| at > context.now)
    }

    fn register(&mut self, wanted: Arc<Wanted>, before: Option<Arc<Live>>) -> Vec<Action> {
        self.phase = Phase::Registering(before.clone());
        self.deleted.clear();
        self.is_known = true;
        vec![Action::Register { wanted, before }]
    }

    /// Sets the state to unregistered.
    fn leave(&mut self) {
        self.phase = Phase::Unregistered;
        (self.verify_at, self.rejected) = (None, None);
        if self.hold.is_none() {
            self.reason = None;
        }
    }

    /// Begins a hold, because a person deleted an object. Removes the remaining objects, too.
    fn hold_back(&mut self, key: Option<RegistrationKey>, context: &Context<'_>) -> Vec<Action> {
        let hold = Hold::begin(context.now, context.wall, context.repair_hold);
        (self.hold, self.reason) = (Some(hold), Some(hold.reason()));
        (self.retry_at, self.verify_at, self.rejected) = (None, None, None);
        (self.phase, self.is_known) = (Phase::Unregistering, true);
        vec![Action::Report(Notice::Held(key, hold)), Action::Unregister]
    }

    fn registered(&mut self, wanted: Arc<Wanted>, result: Result<Live, Failure>, context: &Context<'_>) -> Vec<Action> {
        if !matches!(self.phase, Phase::Registering(_)) {
            return Vec::new();
        }
        let by_hand = self.deleted.iter().find(|(_, last)| (context.is_by_hand)(last)).map(|(key, _)| key.clone());
        if result.is_err() && by_hand.is_some() {
            return self.hold_back(by_hand, context);
        }
        self.rejected = None;
        let (live, reason) = match result {
            Ok(live) => (live, None),
            Err((reason, Some(kept))) => (kept, Some(reason)),
            Err((reason, None)) => return self.not_registered(wanted, reason, context),
        };
        let live = Arc::new(live);
        (self.hold, self.reason, self.retry_at) = (None, None, None);
        self.verify_at = live.due(context);
        self.phase = Phase::InForce(live.clone());
        let mut actions = vec![Action::Expect(live.clone(), self.deleted.keys().cloned().collect())];
        match reason {
            None => actions.extend([Action::Report(Notice::Registered(live)), Action::Publish]),
            Some(reason) => {
                let until = context.now + context.timing.retry;
                self.rejected = Some(Rejected { wanted: wanted.clone(), reason: reason.clone(), until });
                let report = Notice::KeptBefore(wanted.clone(), reason.clone());
                actions.extend([Action::Report(report), Action::NoteFailure(wanted, reason)]);
            }
        }
        actions
    }

    fn not_registered(&mut self, wanted: Arc<Wanted>, reason: Unavailable, context: &Context<'_>) -> Vec<Action> {
        self.leave();
        if self.deleted.values().any(|last| !is_marked(last)) {
            // The garbage collector removed it together with its policies, so no dry run could verify it.
            return Vec::new();
        }
        // After a lasting reason the planner tries another engine at once.
        if !is_lasting(&reason) {
            (self.retry_at, self.reason) = (Some(context.now + context.timing.retry), Some(reason.clone()));
        }
        vec![Action::Report(Notice::NotInForce(wanted.clone(), reason.clone())), Action::NoteFailure(wanted, reason)]
    }

    fn unregistered(&mut self, result: Result<(), String>, context: &Context<'_>) -> Vec<Action> {
        if self.phase != Phase::Unregistering {
            return Vec::new();
        }
        self.leave();
        self.retry_at = None;
        match result {
            Ok(()) => vec![Action::Publish],
            Err(error) => {
                self.retry_at = Some(context.now + context.timing.retry);
                vec![Action::Report(Notice::NotUnregistered(error))]
            }
        }
    }

    fn verified(&mut self, wanted: &Arc<Wanted>, verification: Verification, context: &Context<'_>) -> Vec<Action> {
        let Phase::InForce(live) = &mut self.phase else { return Vec::new() };
        if !live.wanted.is_as(wanted) {
            return Vec::new();
        }
        match judge(verification, live.unverified.is_some(), context.timing) {
            Judgement::AskAgain(pause) => self.verify_at = Some(context.now + pause),
            Judgement::InForce(unverified) => {
                Arc::make_mut(live).unverified = unverified;
                self.verify_at = live.due(context);
            }
            Judgement::WithoutEffect => {
                let before = live.clone();
                return self.register(before.wanted.clone(), Some(before));
            }
        }
        Vec::new()
    }

    /// Remembers a deletion by a person if a task, and not the person, created the object again.
    fn appeared(&mut self, key: &RegistrationKey) -> Vec<Action> {
        if !self.is_busy() || self.deleted.get(key).is_some_and(is_marked) {
            self.deleted.remove(key);
        }
        Vec::new()
    }

    fn resumed(&mut self) -> Vec<Action> {
        if self.hold.take().is_some() {
            self.reason = None;
            self.is_known = true;
        }
        self.retry_at = None;
        Vec::new()
    }
}

/// What a repeated verification means for a registration that was in effect.
#[derive(Debug, PartialEq)]
enum Judgement {
    /// The registration stays as it is. Verify again after that pause.
    AskAgain(Duration),
    /// The registration is in effect, as far as a dry run can show.
    InForce(Option<Unverified>),
    WithoutEffect,
}

/// What `verification` means for a registration that was unverified before (`was_doubtful`), or verified.
fn judge(verification: Verification, was_doubtful: bool, timing: &timing::Controller) -> Judgement {
    match verification {
        Ok(None) => Judgement::InForce(None),
        Ok(Some(_)) if !was_doubtful => Judgement::AskAgain(timing.verify_again),
        Ok(Some(reason)) => Judgement::InForce(Some(reason)),
        Err(reason) if reason.code == Code::ServerAway => Judgement::AskAgain(timing.retry),
        // Without the right to ask there is no answer. A proven registration that was not switched off will have an effect
        // again.
        Err(reason) if reason.code == Code::MissingRight || !(was_doubtful || is_lasting(&reason)) => {
            Judgement::InForce(Some((reason.code, reason.message)))
        }
        Err(_) => Judgement::WithoutEffect,
    }
}

/// Whether a new attempt is useless until the operator gets a right or the API server gets other flags.
pub fn is_lasting(reason: &Unavailable) -> bool {
    matches!(
        reason.code,
        Code::MissingRight | Code::AdmissionPolicyPluginOff | Code::WebhookOff | Code::InitializersPluginOff
    )
}

/// Whether the server rejected the registration itself, so that the earlier one stays in effect.
pub fn is_rejection(reason: &Unavailable) -> bool {
    matches!(reason.code, Code::ServerAway | Code::NotExpressible | Code::RegistrationRefused | Code::NameTaken)
}

#[cfg(test)]
mod tests;
