//! Compares the wish for every slot with the observed objects.

use crate::api::code::Code;
use crate::api::condition::Readiness;
use crate::capabilities::registration as resources;
use crate::cluster::policies::{Snapshot, StoredPolicy};
use crate::cluster::watch::WatchState;
use crate::controller::Controller;
use crate::controller::planner::{Placed, is_undecided};
use crate::controller::policy_state::outcome_of;
use crate::engine::hold::Hold;
use crate::engine::lifecycle::{Event, Live, Observed, Registration, Wanted, Wish};
use crate::engine::{self, Engine, Unavailable};
use crate::naming::{kind_of, policy_of};
use crate::policy::{Policy, PolicyRef};
use crate::workload::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::needs_operator;
use crate::controller::registered::Slot;

impl Controller {
    /// Compares the wish for every slot with the observed objects, and starts the work that follows.
    pub(in crate::controller) async fn compare_all(&mut self, snapshot: &Snapshot) {
        let Some(plan) = self.planner.plan().cloned() else { return };
        for (PolicyRef { name, .. }, stored) in snapshot.stored.iter() {
            self.note_resumed(name, stored);
        }
        let orphans: BTreeSet<String> = self
            .registrations
            .own()
            .filter_map(|(_, name, _)| policy_of(name).map(str::to_owned))
            .chain(self.statuses.policies.keys().cloned())
            .filter(|name| !snapshot.stored.contains_key(&PolicyRef::of_cluster(name)))
            .collect();
        for (PolicyRef { name, .. }, stored) in snapshot.stored.iter() {
            let wish = self.wish_of_policy(name, stored);
            let mut per_policy = engine::all().filter(|engine| engine.is_per_policy()).map(Engine::name);
            let is_held = per_policy.any(|engine| Hold::is_due(&stored.status, engine));
            self.compare(Slot::of_policy(name), wish, is_held).await;
        }
        for name in orphans {
            self.compare(Slot::Policy(name), Wish::Unregistered { ends_hold: true }, false).await;
        }
        let registered = self.registrations.all_shared().filter_map(|(_, name)| kind_of(name));
        let known = self.registrations.of_kinds().map(|(kind, _)| kind.clone());
        let kinds: BTreeSet<Arc<Kind>> = plan.joints.keys().cloned().chain(known).chain(registered).collect();
        for kind in kinds.into_iter().filter(|kind| !plan.undecided.contains(kind)) {
            let wish = self.wish_of_kind(&kind, plan.joints.get(&kind));
            self.compare_kind(kind, wish, snapshot).await;
        }
        self.report_published(&plan.joints);
    }

    async fn compare_kind(&mut self, kind: Arc<Kind>, wish: Wish, snapshot: &Snapshot) {
        let is_held = match &wish {
            Wish::Registered(wanted) => wanted.policies.iter().any(|policy| {
                let Some(status) = snapshot.stored.get(&policy.reference()).map(|stored| &stored.status) else {
                    return false;
                };
                // After an edit the engine in effect is unknown, but a hold is not.
                let is_same = status["observedSpecHash"] == policy.spec_hash.as_str();
                (is_same || Hold::is_told(status)) && Hold::is_due(status, wanted.engine)
            }),
            _ => false,
        };
        self.compare(Slot::Kind(kind), wish, is_held).await;
    }

    async fn compare(&mut self, slot: Slot, wish: Wish, is_held: bool) {
        let registrations = &self.registrations;
        let state = registrations.states.get(&slot);
        let registered = registrations.registered(&slot);
        // Most policies have no registration of their own, and want none.
        if state.is_none() && registered.is_empty() && matches!(wish, Wish::Unregistered { .. } | Wish::Keep) {
            self.forget(&slot);
            return;
        }
        let edited = state.and_then(Registration::at_rest).and_then(|live| registrations.edited(live));
        let unreadable = resources::ALL
            .iter()
            .filter(|resource| !registrations.has_read(resource) || registrations.unreadable.contains_key(**resource));
        let unreadable = unreadable.map(|resource| (*resource).to_owned()).collect();
        let observed = Observed { registered, unreadable, edited, is_held };
        self.happened(slot, Event::Compared(wish, observed)).await;
    }

    /// The wish for the registration of the policy `name` alone.
    fn wish_of_policy(&mut self, name: &str, stored: &StoredPolicy) -> Wish {
        let placed = self.placed(name);
        let own = placed.as_ref().ok().and_then(|placed| placed.own.clone());
        if let Some(wanted) = own {
            return match self.why_not_yet(&wanted) {
                Ok(()) => Wish::Registered(wanted),
                Err(reason) => Wish::Later(wanted, reason),
            };
        }
        if self.is_leaving(name, &placed) || self.is_undecided_elsewhere(&placed) {
            return Wish::Keep;
        }
        let is_up = self.registrations.is_own_in_force(name);
        if let Some(reason) = placed.as_ref().err().filter(|reason| is_undecided(reason))
            && self.stays_as_it_is(name, stored)
        {
            let state = self.statuses.policies.get_mut(name).filter(|_| is_up && !stored.is_programmed());
            if let Some(state) = state.filter(|state| !matches!(state.outcome, Readiness::InForce { .. })) {
                state.outcome = reason.clone();
            }
            return Wish::Keep;
        }
        if let Some(outcome) = placed.err().and_then(|outcome| self.end_of(name, stored, outcome)) {
            self.set_outcome(name, outcome);
        }
        // A user ends the hold after a deletion by hand by suspending and resuming the policy.
        Wish::Unregistered { ends_hold: true }
    }

    /// The outcome of a policy without a place: `outcome`, but for a policy that is switched off and that the server still delivers. Of
    /// that one the outcome is why its registration cannot be changed; none while it is being changed. A webhook asks the policy itself.
    fn end_of(&self, name: &str, stored: &StoredPolicy, outcome: Readiness) -> Option<Readiness> {
        let is_off = matches!(outcome, Readiness::Suspended | Readiness::Audit { .. });
        let kinds = stored.parsed.as_ref().map_or(&[][..], |policy| &policy.kinds);
        let mut delivering = self.registrations.of_kinds().filter(|(kind, state)| match state.live() {
            Some(live) if live.wanted.engine.engine().needs_operator() => false,
            Some(live) => live.policies().iter().any(|policy| policy.name == name),
            // It may have been so before this leader, or could not be removed.
            None if stored.is_programmed() && kinds.contains(kind) => {
                let registered = self.registrations.registered(&Slot::of_kind(kind));
                registered.iter().any(|key| !needs_operator(&key.resource))
            }
            None => false,
        });
        match delivering.next().filter(|_| is_off) {
            None => Some(outcome),
            Some((_, state)) => state.reason().cloned().map(outcome_of),
        }
    }

    /// The wish for the registration of all policies on `kind`.
    fn wish_of_kind(&self, kind: &Arc<Kind>, wanted: Option<&Arc<Wanted>>) -> Wish {
        let live = self.registrations.of_kind(kind).and_then(Registration::at_rest);
        match wanted {
            Some(wanted) => Wish::Registered(wanted.clone()),
            // The policies get registrations of their own, which are not in effect yet.
            None if live.is_some_and(|live| self.is_handing_over(live)) => Wish::Keep,
            // A suspended policy does not end the hold on its kinds, because other policies there would be in effect at once.
            None => Wish::Unregistered { ends_hold: false },
        }
    }

    fn is_handing_over(&self, live: &Live) -> bool {
        let is_awaited = |policy: &Arc<Policy>| {
            let placed = self.planner.plan().and_then(|plan| plan.policies.get(&policy.name)?.as_ref().ok());
            placed.is_some_and(|placed| placed.own.is_some()) && !self.registrations.is_own_in_force(&policy.name)
        };
        live.policies().iter().any(is_awaited)
    }

    /// Whether the watches that `wanted` needs are in sync, or why they will not be. The API server must not put our name on
    /// objects before we see them.
    fn why_not_yet(&self, wanted: &Wanted) -> Result<(), Option<Unavailable>> {
        let kinds = wanted.kinds.iter().map(|kind| (kind.resource.as_str(), self.watches.progress(kind)));
        let by_namespaces = wanted.policies.iter().any(|policy| policy.reads_namespaces());
        let namespaces =
            by_namespaces.then(|| ("namespaces", Some(self.operator.namespaces_progress().borrow().clone())));
        for (resource, progress) in kinds.chain(namespaces) {
            match progress {
                Some(WatchState::Synced) => {}
                Some(WatchState::Failed { is_refused, message }) => {
                    let code = if is_refused { Code::MissingRight } else { Code::NotSynced };
                    let message = format!("cannot list and watch {resource}: {message}");
                    return Err(Some(Unavailable::new(code, message)));
                }
                _ => return Err(None),
            }
        }
        Ok(())
    }

    /// Ends holds when a policy is resumed.
    fn note_resumed(&mut self, name: &str, stored: &StoredPolicy) {
        let Ok(policy) = &stored.parsed else { return };
        let Some(state) = self.statuses.policies.get_mut(name) else { return };
        let was_off = std::mem::replace(&mut state.is_off, !policy.is_enforced());
        if was_off && policy.is_enforced() {
            for kind in &policy.kinds {
                self.resumed(&Slot::of_kind(kind));
            }
        }
    }

    /// Ends the hold and the pause of a slot.
    pub(in crate::controller) fn resumed(&mut self, slot: &Slot) {
        if self.registrations.states.contains_key(slot) {
            self.step(slot, Event::Resumed);
        }
    }

    /// Whether the status from an earlier leader says that the policy is in effect, and nothing contradicts it.
    fn was_in_force(&self, name: &str, stored: &StoredPolicy) -> bool {
        let is_same = |policy: &Arc<Policy>| stored.status["observedSpecHash"] == policy.spec_hash.as_str();
        let is_registered = self.registrations.own_of(name).is_some();
        stored.is_programmed() && (is_registered || stored.parsed.as_ref().is_ok_and(is_same))
    }

    /// Whether to keep the current state of the policy while the wanted one is unknown. True if the policy is registered, alone
    /// or with others, was in effect under an earlier leader, or is held.
    fn stays_as_it_is(&self, name: &str, stored: &StoredPolicy) -> bool {
        let own = self.registrations.of_policy(name);
        let is_held = own.is_some_and(Registration::is_held) || Hold::is_told(&stored.status);
        let is_registered = self.registrations.is_own_in_force(name) || self.registrations.own_of(name).is_some();
        let is_shared = |policy: &Arc<Policy>| {
            policy.kinds.iter().any(|kind| self.registrations.may_be_in_force(kind, stored, name))
        };
        is_held || is_registered || self.was_in_force(name, stored) || stored.parsed.as_ref().is_ok_and(is_shared)
    }

    /// Whether the policy may have a registration of its own, perhaps from an earlier leader.
    pub(super) fn may_be_registered(&self, name: &str, stored: &StoredPolicy) -> bool {
        let is_begun = self.registrations.of_policy(name).is_some_and(|own| !own.is_unregistered());
        let is_read = self.registrations.has_read_own();
        is_begun || self.registrations.own_of(name).is_some() || (!is_read && stored.is_programmed())
    }

    /// Whether the policy moves from its own registration to shared ones, and is not in effect there yet.
    fn is_leaving(&self, name: &str, placed: &Result<Arc<Placed>, Readiness>) -> bool {
        let Ok(placed) = placed else { return false };
        self.registrations.is_own_in_force(name) && self.shortfall(&placed.policy, &placed.shared).is_some()
    }

    /// Whether the engine of the policy on one of its shared kinds is unknown.
    fn is_undecided_elsewhere(&self, placed: &Result<Arc<Placed>, Readiness>) -> bool {
        let Some((placed, plan)) = placed.as_ref().ok().zip(self.planner.plan()) else { return false };
        placed.shared.iter().any(|kind| plan.undecided.contains(kind))
    }

    /// Calls `published` once every registration has the authorities that may sign the certificate.
    fn report_published(&self, wanted: &BTreeMap<Arc<Kind>, Arc<Wanted>>) {
        let reach = self.settings.reach.borrow().clone();
        let Some(bundle) = reach.ok().and_then(|reach| reach.address.ca_bundle.clone()) else { return };
        let has_it = |(kind, state): (&Arc<Kind>, &Registration)| match (state.at_rest(), wanted.get(kind)) {
            (Some(live), Some(wanted)) => live.wanted.is_as(wanted),
            // After a rejected edit the earlier objects may still exist.
            (None, _) if state.is_unregistered() => {
                !self.registrations.registered(&Slot::of_kind(kind)).iter().any(|key| needs_operator(&key.resource))
            }
            _ => false,
        };
        let mut registered = self.registrations.all_shared().filter(|(resource, _)| needs_operator(resource));
        let is_known =
            |(_, name): (_, &String)| kind_of(name).is_none_or(|kind| self.registrations.of_kind(&kind).is_some());
        if registered.all(is_known) && self.registrations.of_kinds().all(has_it) {
            (self.settings.published)(&bundle);
        }
    }
}
