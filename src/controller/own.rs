//! The registrations that policies have of their own, on the Initializer engine: each policy one.
//!
//! A policy goes in force and out of it by itself, and what waits for it is drained once it is out.

use super::entry::{Entry, Phase, outcome_of};
use super::hold::Hold;
use super::joint::{Told, is_refused, told};
use super::plan::{Placed, is_undecided};
use super::status::{Force, is_programmed};
use super::{Controller, Finished};
use crate::api::code::Code;
use crate::api::condition::Outcome;
use crate::cluster::capabilities::registration as resources;
use crate::cluster::client::{self, Progress, why};
use crate::cluster::mirror::Mirror;
use crate::cluster::object::Object;
use crate::cluster::policies::{Snapshot, Stored};
use crate::engine::initializer::registration;
use crate::engine::initializer::render;
use crate::engine::initializer::types::{self, InitializerConfiguration};
use crate::engine::registration::{Unproven, is_marked, is_ours};
use crate::engine::{EngineName, Unavailable};
use crate::policy::Policy;
use crate::workload::Kind;
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::Api;
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use tracing::{error, info, warn};

impl Controller {
    /// Watches everything that is registered for Initializers.
    pub(super) fn follow_configurations(&mut self) -> BoxStream<'static, watcher::Result<Event<Object>>> {
        self.configurations = Mirror::default();
        self.unreadable.remove(resources::INITIALIZERS);
        if !self.shared.capabilities().initializers {
            return futures::stream::iter([Ok(Event::Init), Ok(Event::InitDone)])
                .chain(futures::stream::pending())
                .boxed();
        }
        let api = Api::<Object>::all_with(self.shared.client.clone(), &types::resource());
        client::watch(&api, &watcher::Config::default(), self.shared.resync, &self.shared.timing.watch).boxed()
    }

    pub(super) fn configurations_changed(&mut self, event: watcher::Result<Event<Object>>) {
        // What others register may be in our way; what we do ourselves is not.
        let is_foreign = |object: &Object| !is_ours(&parsed(object).metadata);
        match &event {
            Ok(Event::Apply(object) | Event::Delete(object)) if !is_foreign(object) => {}
            _ => self.plan = None,
        }
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                let message = why(&error);
                warn!(error = message, "Cannot follow initializer configurations; trying again");
                // Other engines need not wait for what this one may not do.
                if !self.configurations.is_complete() {
                    self.note_unreadable(resources::INITIALIZERS, &message);
                }
                return;
            }
        };
        match &event {
            Event::Init => {
                self.suspicious |=
                    self.configurations.is_complete() && !self.unreadable.contains_key(resources::INITIALIZERS);
            }
            Event::InitDone => drop(self.unreadable.remove(resources::INITIALIZERS)),
            Event::Delete(object) => self.configuration_deleted(object),
            Event::Apply(object) | Event::InitApply(object) => {
                if let Some(entry) = self.entry_of(object.name()) {
                    entry.deleted = None;
                }
            }
        }
        self.configurations.apply(&event, |object, _| parsed(object));
    }

    /// What is known of the policy whose configuration is called `configuration`.
    fn entry_of(&mut self, configuration: &str) -> Option<&mut Entry> {
        self.entries.get_mut(render::policy_of(configuration)?)
    }

    fn configuration_deleted(&mut self, object: &Object) {
        let metadata = parsed(object).metadata;
        if !is_ours(&metadata) {
            return;
        }
        if let Some(entry) = self.entry_of(object.name()) {
            entry.deleted = Some(metadata);
        }
    }

    /// The InitializerConfigurations that are ours, by name.
    pub(super) fn own_configurations(&self) -> impl Iterator<Item = (&String, &InitializerConfiguration)> {
        self.configurations.known().iter().filter(|(_, configuration)| is_ours(&configuration.metadata))
    }

    /// What is registered for the policy `name`, if it is ours.
    fn configuration_of(&self, name: &str) -> Option<&InitializerConfiguration> {
        self.configurations.known().get(&render::name(name)).filter(|configuration| is_ours(&configuration.metadata))
    }

    /// Looks for configurations of others that are in our way.
    pub(super) fn check_foreign(&self, policy: &Policy) -> Result<(), Outcome> {
        for (other, configuration) in
            self.configurations.known().iter().filter(|(_, configuration)| !is_ours(&configuration.metadata))
        {
            if *other == render::name(&policy.name) {
                let message =
                    format!("an InitializerConfiguration `{other}` exists that we did not make; delete or rename it");
                return Err(Outcome::Impossible { code: Code::NameTaken, message });
            }
            if configuration.initializers.iter().any(|entry| entry.name == policy.initializer_name) {
                let message = format!(
                    "the InitializerConfiguration `{other}`, which is not ours, lists `{}`; remove it there",
                    policy.initializer_name
                );
                return Err(Outcome::Impossible { code: Code::ForeignConfiguration, message });
            }
        }
        Ok(())
    }

    /// Compares what `name` is to have of its own with what is there and starts what is missing.
    pub(super) async fn settle_own(&mut self, name: &str, stored: &Stored) {
        let Some(entry) = self.entries.get_mut(name).filter(|entry| !entry.is_busy()) else { return };
        let retry_later = entry.retry_at.is_some_and(|at| at > Instant::now());
        let phase = entry.phase.clone();
        if let Ok(policy) = &stored.parsed {
            let was_off = std::mem::replace(&mut entry.is_off, !policy.is_enforced());
            if was_off && policy.is_enforced() {
                self.release_joints(&policy.kinds);
            }
        }
        let placed = self.placed(name);
        let own = placed.as_ref().ok().and_then(|placed| Some((placed.policy.clone(), placed.own.clone()?)));
        match (own, phase) {
            (Some((policy, wanted)), Phase::Up(there)) => self.keep_up(name, policy, wanted, *there).await,
            (Some((policy, wanted)), _) => {
                if self.is_held(name, stored) || retry_later {
                    return;
                }
                self.rise(name, policy, wanted);
            }
            (None, phase) => {
                if self.is_leaving(name, &placed) || self.is_undecided_elsewhere(&placed) {
                    return;
                }
                if let Some(reason) = placed.as_ref().err().filter(|reason| is_undecided(reason))
                    && self.stays_as_it_is(name, stored)
                {
                    let reason = reason.clone();
                    let entry = self.entries.get_mut(name).filter(|entry| entry.is_up() && !is_programmed(stored));
                    if let Some(entry) = entry.filter(|entry| !matches!(entry.outcome, Outcome::InForce { .. })) {
                        entry.outcome = reason;
                    }
                    return;
                }
                // To suspend it and to resume it is how a user ends the hold after a removal by hand.
                if let Some(entry) = self.entries.get_mut(name) {
                    entry.hold = None;
                }
                if let Err(outcome) = &placed {
                    self.set_outcome(name, outcome.clone());
                }
                let is_there = phase != Phase::Out || (self.configuration_of(name).is_some() && !retry_later);
                if is_there {
                    self.fall(name, stored).await;
                }
            }
        }
    }

    /// True if an earlier leader has said that the policy is in force, and nothing speaks against it.
    fn was_in_force(&self, name: &str, stored: &Stored) -> bool {
        let is_same = |policy: &Arc<Policy>| stored.status["observedSpecHash"] == policy.spec_hash.as_str();
        is_programmed(stored) && (self.configuration_of(name).is_some() || stored.parsed.as_ref().is_ok_and(is_same))
    }

    /// True if nothing changes for the policy while nobody can tell what it is to have: it is registered, by itself or with others, was in
    /// force under an earlier leader, or is held back.
    fn stays_as_it_is(&self, name: &str, stored: &Stored) -> bool {
        let entry = self.entries.get(name);
        let is_held = entry.is_some_and(|entry| entry.hold.is_some()) || Hold::is_told(&stored.status);
        let is_registered = entry.is_some_and(Entry::is_up) || self.configuration_of(name).is_some();
        let is_shared = |policy: &Arc<Policy>| policy.kinds.iter().any(|kind| self.may_be_in_force(kind, stored, name));
        is_held || is_registered || self.was_in_force(name, stored) || stored.parsed.as_ref().is_ok_and(is_shared)
    }

    /// True if there may be a configuration of the policy, also one that an earlier leader made.
    fn may_be_registered(&self, name: &str, stored: &Stored) -> bool {
        let is_begun = self.entries.get(name).is_some_and(|entry| entry.phase != Phase::Out);
        let is_read = self.configurations.is_complete();
        is_begun || self.configuration_of(name).is_some() || (!is_read && is_programmed(stored))
    }

    /// True if the policy goes from Initializers to another engine, and is not in force there yet.
    fn is_leaving(&self, name: &str, placed: &Result<Arc<Placed>, Outcome>) -> bool {
        let Ok(placed) = placed else { return false };
        let is_up = self.entries.get(name).is_some_and(Entry::is_up);
        is_up && self.shortfall(&placed.policy, &placed.shared).is_some()
    }

    /// True if it is not known yet by what the policy is to be delivered on one of its kinds.
    fn is_undecided_elsewhere(&self, placed: &Result<Arc<Placed>, Outcome>) -> bool {
        let Some((placed, plan)) = placed.as_ref().ok().zip(self.plan.as_ref()) else { return false };
        placed.shared.iter().any(|kind| plan.undecided.contains(kind))
    }

    /// True if the policy's registration was deleted by hand not long ago, found out now or by an earlier leader.
    fn is_held(&mut self, name: &str, stored: &Stored) -> bool {
        let (registered, period) = (self.configuration_of(name).is_some(), self.settings.repair_hold);
        let deleted = self.entries.get(name).and_then(|entry| entry.deleted.as_ref());
        let may_be_by_hand = deleted.is_none_or(|last| self.is_deleted_by_hand(last));
        let Some(entry) = self.entries.get_mut(name) else { return false };
        if entry.hold.is_none() && entry.outcome == Outcome::FirstSight && !registered && may_be_by_hand {
            entry.hold = Hold::found(name, &stored.status, EngineName::Initializer, period);
        }
        let Some(reason) = Hold::stand(&mut entry.hold, registered) else { return false };
        entry.outcome = outcome_of(reason);
        true
    }

    /// Brings the policy in force, once its watches are in sync.
    fn rise(&mut self, name: &str, policy: Arc<Policy>, wanted: InitializerConfiguration) {
        let named = wanted.kinds();
        let own: Vec<Arc<Kind>> = policy.kinds.iter().filter(|kind| named.contains(*kind)).cloned().collect();
        let kinds = own.iter().map(|kind| (kind.resource.as_str(), self.watches.get(kind)));
        let namespaces = policy.reads_namespaces().then_some(("namespaces", self.namespaces.as_ref()));
        let needed: Vec<_> = kinds
            .chain(namespaces)
            .map(|(resource, watching)| (resource, watching.map(|watching| watching.progress.borrow().clone())))
            .collect();
        for (resource, progress) in needed {
            match progress {
                Some(Progress::Synced) => {}
                Some(Progress::Failed(error)) => {
                    let code = if error.contains("forbidden") { Code::MissingRight } else { Code::NotSynced };
                    self.set_outcome(
                        name,
                        Outcome::Waiting { code, message: format!("cannot list and watch {resource}: {error}") },
                    );
                    return;
                }
                _ => return,
            }
        }
        let shared = self.shared.clone();
        let Some(entry) = self.entries.get_mut(name) else { return };
        let before = match std::mem::replace(&mut entry.phase, Phase::Out) {
            Phase::Up(before) => Some(before),
            _ => None,
        };
        entry.phase = Phase::Rising(before);
        entry.deleted = None;
        entry.kinds.clone_from(&own);
        let (name, slots) = (name.to_owned(), self.rising_slots.clone());
        self.tasks.spawn(async move {
            let _slot = slots.acquire_owned().await;
            let risen = registration::bring_up(&shared, &policy, &own, &wanted).await;
            Finished::Rose(name, Box::new(wanted), risen)
        });
    }

    pub(super) fn rose(
        &mut self,
        name: &str,
        configuration: Box<InitializerConfiguration>,
        risen: Result<Option<Unproven>, Unavailable>,
    ) {
        let (period, timing) = (self.settings.repair_hold, &self.shared.timing.controller);
        let deleted = self.entries.get(name).and_then(|entry| entry.deleted.as_ref());
        let (is_there, is_by_hand) = (deleted.is_none(), deleted.is_some_and(|last| self.is_deleted_by_hand(last)));
        let is_by_others = deleted.is_some_and(|last| !is_marked(last));
        let Some(entry) = self.entries.get_mut(name) else { return };
        match risen {
            Err(_) if is_by_hand => entry.hold_back(name, period),
            // No wonder that it did not show: the garbage collector took it with a policy that was made again.
            Err(_) if is_by_others => entry.leave(),
            Ok(unproven) => {
                entry.doubt(unproven, timing.verify_again);
                if is_there {
                    self.configurations.expect(&render::name(name), (*configuration).clone());
                }
                // Whether the policy is in force is said once it is on all its kinds; what it waited for has come.
                if !matches!(entry.outcome, Outcome::InForce { .. }) {
                    entry.outcome = Outcome::FirstSight;
                }
                entry.phase = Phase::Up(configuration);
                entry.retry_at = None;
            }
            Err(unavailable) => {
                warn!(policy = name, code = %unavailable.code, message = unavailable.message, "Not in force");
                self.shared.metrics.reconcile_errors.inc();
                match std::mem::replace(&mut entry.phase, Phase::Out) {
                    // What the server has not taken leaves what was there before.
                    Phase::Rising(Some(before)) if is_refused(&unavailable) => entry.phase = Phase::Up(before),
                    _ => entry.leave(),
                }
                entry.retry_at = Some(Instant::now() + timing.retry);
                entry.outcome = outcome_of(unavailable.clone());
                let kinds = entry.kinds.clone();
                for kind in &kinds {
                    self.block(EngineName::Initializer, kind, &unavailable);
                }
            }
        }
    }

    /// Repairs a registration that was edited, follows one that is to change, holds back one that was deleted.
    async fn keep_up(
        &mut self,
        name: &str,
        policy: Arc<Policy>,
        wanted: InitializerConfiguration,
        there: InitializerConfiguration,
    ) {
        let period = self.settings.repair_hold;
        let is_of_same_policy = wanted.metadata.owner_references == there.metadata.owner_references;
        let Some(stored) = self.configuration_of(name).cloned() else {
            let deleted = self.entries.get(name).and_then(|entry| entry.deleted.as_ref());
            let is_by_hand = is_of_same_policy && deleted.is_none_or(|last| self.is_deleted_by_hand(last));
            if is_by_hand && self.is_any_stored([&policy]).await {
                if let Some(entry) = self.entries.get_mut(name) {
                    entry.hold_back(name, period);
                }
            } else {
                self.rise(name, policy, wanted);
            }
            return;
        };
        if wanted.initializers != there.initializers || !is_of_same_policy {
            let retry_at = self.entries.get(name).and_then(|entry| entry.retry_at);
            if retry_at.is_none_or(|at| at <= Instant::now()) {
                self.rise(name, policy, wanted);
            }
            return;
        }
        if !registration::is_as(&stored, &wanted) {
            info!(policy = name, "The registration was edited; repairing it");
            if let Err(unavailable) = registration::apply(&self.shared.client, &wanted).await {
                warn!(policy = name, code = %unavailable.code, message = unavailable.message, "Cannot repair the registration");
                self.shared.metrics.reconcile_errors.inc();
            }
        }
        self.prove_own_when_due(name, policy);
    }

    /// Has what is in force proven anew: perhaps the server was started otherwise.
    pub(super) fn prove_own_anew(&mut self) {
        for entry in self.entries.values_mut().filter(|entry| entry.is_up()) {
            entry.prove_at = Some(Instant::now());
        }
    }

    /// Proves once more what is in force, or could not be proven; it stays as it is meanwhile.
    fn prove_own_when_due(&mut self, name: &str, policy: Arc<Policy>) {
        let is_due = |entry: &&mut Entry| entry.prove_at.is_some_and(|at| at <= Instant::now());
        let Some(entry) = self.entries.get_mut(name).filter(is_due) else { return };
        let Phase::Up(there) = entry.phase.clone() else { return };
        entry.prove_at = None;
        let (shared, name, kinds) = (self.shared.clone(), name.to_owned(), entry.kinds.clone());
        self.tasks.spawn(async move {
            let proven = registration::prove(&shared, &policy, &kinds).await;
            Finished::ProvedOwn(name, there, proven)
        });
    }

    /// Takes over whether the policy's own registration shows now, unless it is `there` no more. If it does not, though nobody is in the way, the policy is brought in
    /// force anew, and then taken out as it would have been the first time.
    pub(super) fn proved_own(
        &mut self,
        name: &str,
        there: &InitializerConfiguration,
        proven: Result<Option<Unproven>, Unavailable>,
    ) {
        let Some(entry) = self.entries.get_mut(name).filter(|entry| entry.is_up_as(there)) else { return };
        let timing = &self.shared.timing.controller;
        match told(proven, entry.unproven.is_some(), timing) {
            Told::Nothing(pause) => entry.prove_at = Some(Instant::now() + pause),
            Told::InForce(unproven) => entry.doubt(unproven, timing.verify_again),
            Told::Without => entry.leave(),
        }
    }

    /// Says first that the policy is out, so that a new leader can tell, then takes it out.
    async fn fall(&mut self, name: &str, stored: &Stored) {
        if self.configuration_of(name).is_none() {
            if let Some(entry) = self.entries.get_mut(name) {
                entry.leave();
            }
            return;
        }
        self.write_status(name, stored, Force::Now).await;
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.phase = Phase::Falling;
        entry.hold = None;
        let kinds = std::mem::take(&mut entry.kinds);
        self.take_down(name.to_owned(), kinds);
    }

    fn take_down(&mut self, name: String, mut kinds: Vec<Arc<Kind>>) {
        let shared = self.shared.clone();
        if kinds.is_empty() {
            // What the configuration names is among them.
            kinds = self.watched();
        }
        self.tasks.spawn(async move {
            let fallen = registration::take_down(&shared, &name, &kinds).await.map_err(|error| error.to_string());
            Finished::Fell(name, fallen)
        });
    }

    /// Takes over that a policy has been taken out, or not.
    pub(super) fn fell(&mut self, name: &str, fallen: Result<(), String>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.leave();
        if let Err(error) = fallen {
            warn!(policy = name, error, "Could not be taken out; trying again");
            self.shared.metrics.reconcile_errors.inc();
            entry.retry_at = Some(Instant::now() + self.shared.timing.controller.retry);
        }
    }

    /// Takes out what belongs to policies that are gone, also those deleted while nobody looked.
    pub(super) fn prune(&mut self, snapshot: &Snapshot) {
        let gone: Vec<String> =
            self.entries.keys().filter(|name| !snapshot.stored.contains_key(*name)).cloned().collect();
        for name in gone {
            let registered = self.configuration_of(&name).is_some();
            let Some(entry) = self.entries.get_mut(&name).filter(|entry| !entry.is_busy()) else { continue };
            if registered && entry.retry_at.is_none_or(|at| at <= Instant::now()) {
                entry.phase = Phase::Falling;
                let kinds = std::mem::take(&mut entry.kinds);
                self.take_down(name, kinds);
            } else if !registered {
                // Somebody else may have removed it, the garbage collector for one; what waits is seen by its watch.
                self.entries.remove(&name);
                self.shared.metrics.forget(&name);
                self.shared.ledger(|ledger| ledger.forget(&name));
            }
        }
        let orphans: Vec<String> = self.own_configurations().map(|(name, _)| name.clone()).collect();
        for orphan in orphans {
            let Some(name) = render::policy_of(&orphan).map(str::to_owned) else { continue };
            if !snapshot.stored.contains_key(&name) && !self.entries.contains_key(&name) {
                info!(configuration = orphan, "Its policy is gone; unregistering");
                let mut entry = Entry::new("");
                entry.phase = Phase::Falling;
                self.entries.insert(name.clone(), entry);
                self.take_down(name, Vec::new());
            }
        }
    }

    /// Takes out what refuses nothing; says so first, as far as it can until `until`.
    pub(super) async fn withdraw_own(&mut self, stored: &BTreeMap<String, Stored>, until: Instant) {
        let leaving: Vec<_> = stored
            .iter()
            .filter_map(|(name, stored)| Some((name.clone(), stored.parsed.clone().ok()?)))
            .filter(|(name, policy)| !policy.refuses() && self.may_be_registered(name, &stored[name]))
            .collect();
        let kinds: BTreeSet<_> = leaving.iter().flat_map(|(_, policy)| policy.kinds.iter().cloned()).collect();
        let told = leaving.iter().map(|(name, _)| (name.as_str(), &stored[name])).collect();
        let message = "the operator stopped in good order and unregistered, so that creates go on without the sidecar; start it again";
        self.tell_stopped(told, message, until).await;
        let removals = leaving.iter().map(|(name, _)| {
            let shared = self.shared.clone();
            async move {
                if let Err(error) = registration::remove(&shared.client, name).await {
                    error!(policy = name, %error, "Cannot unregister; creates of its targets will wait until the operator is back");
                }
            }
        });
        futures::future::join_all(removals).await;
        if leaving.is_empty() {
            return;
        }
        tokio::time::sleep(self.shared.timing.initializer.settling).await;
        registration::drain(&self.shared, &Vec::from_iter(kinds)).await;
    }
}

/// A configuration of anybody's; what cannot be read is as good as empty.
fn parsed(object: &Object) -> InitializerConfiguration {
    serde_json::from_value(object.value()).unwrap_or_default()
}
