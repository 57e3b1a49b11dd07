//! The registrations, and what the watches show of them.

use crate::api::code::Code;
use crate::api::condition::Readiness;
use crate::capabilities::Capabilities;
use crate::cluster::answer::{is_refused, why};
use crate::cluster::policies::StoredPolicy;
use crate::cluster::rights::WatchRefusals;
use crate::cluster::watch::cache::WatchCache;
use crate::engine::lifecycle::{Live, Registration};
use crate::engine::registrar::RegistrationKey;
use crate::engine::registration::{self, Edition, is_ours_of};
use crate::engine::{self, Unavailable};
use crate::naming::{kind_of, own_name, policy_of};
use crate::policy::Policy;
use crate::timing;
use crate::workload::Kind;
use kube::runtime::watcher;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Semaphore;

/// The owner of a registration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    /// One policy, by name.
    Policy(String),
    /// All policies on a kind. A change overwrites the registration. On a change of engine both registrations exist for a
    /// moment: the second one finds the marker and does nothing.
    Kind(Arc<Kind>),
}

impl Slot {
    pub(super) fn of_policy(name: &str) -> Self {
        Self::Policy(name.to_owned())
    }

    pub(super) fn of_kind(kind: &Arc<Kind>) -> Self {
        Self::Kind(kind.clone())
    }
}

/// The number of policies that are registered at the same time. Each takes a connection with its buffers, and one of the
/// requests that the server handles at the same time.
const REGISTERING: usize = 32;

/// The registrations and what the watches show of them.
pub(super) struct Registrations {
    pub(super) states: BTreeMap<Slot, Registration>,
    /// Every registration of one policy, foreign ones included, by the plural name of its resource.
    pub(super) own: BTreeMap<&'static str, WatchCache<Value>>,
    /// Every object of ours that several policies share, by the plural name of its resource.
    pub(super) shared: BTreeMap<&'static str, WatchCache<Edition>>,
    /// The resources that cannot be read, with the reason.
    pub(super) unreadable: BTreeMap<&'static str, Unavailable>,
    /// The refusals of the watches of resources. An API server that has just started knows no rights yet.
    pub(super) refused: BTreeMap<&'static str, WatchRefusals>,
    /// Limits the number of registrations at the same time.
    pub(super) room: Arc<Semaphore>,
}

impl Default for Registrations {
    fn default() -> Self {
        Self {
            states: BTreeMap::new(),
            own: BTreeMap::new(),
            shared: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            refused: BTreeMap::new(),
            room: Arc::new(Semaphore::new(REGISTERING)),
        }
    }
}

impl Registrations {
    pub(super) fn forget(&mut self, slot: &Slot) {
        self.states.remove(slot);
    }

    pub(super) fn of_policy(&self, name: &str) -> Option<&Registration> {
        self.states.get(&Slot::of_policy(name))
    }

    pub(super) fn of_kind(&self, kind: &Arc<Kind>) -> Option<&Registration> {
        self.states.get(&Slot::of_kind(kind))
    }

    /// Whether the policy has a registration of its own that is in effect.
    pub(super) fn is_own_in_force(&self, name: &str) -> bool {
        self.of_policy(name).is_some_and(|registration| registration.at_rest().is_some())
    }

    pub(super) fn of_kinds(&self) -> impl Iterator<Item = (&Arc<Kind>, &Registration)> {
        self.states.iter().filter_map(|(slot, state)| match slot {
            Slot::Kind(kind) => Some((kind, state)),
            Slot::Policy(_) => None,
        })
    }

    /// The names of the policies whose own registration a person has deleted.
    pub(super) fn held(&self) -> BTreeSet<String> {
        let held = self.states.iter().filter(|(_, state)| state.is_held());
        held.filter_map(|(slot, _)| match slot {
            Slot::Policy(name) => Some(name.clone()),
            Slot::Kind(_) => None,
        })
        .collect()
    }

    /// Ends the pauses after failures of the registrations of policies.
    pub(super) fn retry_own(&mut self) {
        for (slot, state) in &mut self.states {
            if matches!(slot, Slot::Policy(_)) {
                state.retry_now();
            }
        }
    }

    /// Whether a task works on the registration of any policy.
    pub(super) fn is_any_own_busy(&self) -> bool {
        self.states.iter().any(|(slot, state)| matches!(slot, Slot::Policy(_)) && state.is_busy())
    }

    /// Whether all objects of `resource` have been read once; false for a resource that the server does not serve.
    pub(super) fn has_read(&self, resource: &str) -> bool {
        let own = self.own.get(resource).map(WatchCache::is_complete);
        own.or_else(|| self.shared.get(resource).map(WatchCache::is_complete)).unwrap_or_default()
    }

    /// Whether all readable resources have been read once.
    pub(super) fn has_read_all(&self) -> bool {
        let mut followed = self.own.keys().chain(self.shared.keys());
        followed.all(|resource| self.has_read(resource) || self.unreadable.contains_key(resource))
    }

    /// Whether all registrations of single policies have been read once; true if the server has no such resource.
    pub(super) fn has_read_own(&self) -> bool {
        self.own.values().all(WatchCache::is_complete)
    }

    /// Whether the server has a resource for registrations of single policies.
    pub(super) fn follows_own(&self) -> bool {
        !self.own.is_empty()
    }

    /// Our registrations of single policies: the plural name of the resource, the name, and the object.
    pub(super) fn own(&self) -> impl Iterator<Item = (&'static str, &String, &Value)> {
        self.all_own().filter(|(.., stored)| is_ours_of(stored))
    }

    pub(super) fn all_own(&self) -> impl Iterator<Item = (&'static str, &String, &Value)> {
        self.own
            .iter()
            .flat_map(|(resource, mirror)| mirror.known().iter().map(|(name, stored)| (*resource, name, stored)))
    }

    /// The registration of the policy `name` alone, if it is ours: the key and the object.
    pub(super) fn own_of(&self, name: &str) -> Option<(RegistrationKey, &Value)> {
        let own_name = own_name(name);
        let stored = self.own.iter().find_map(|(resource, mirror)| Some((*resource, mirror.known().get(&own_name)?)));
        stored
            .filter(|(_, stored)| is_ours_of(stored))
            .map(|(resource, stored)| (RegistrationKey::of(resource, own_name), stored))
    }

    /// The form of the policy from before an edit, if that form is in effect.
    pub(super) fn before_edit(&self, policy: &Policy) -> Option<Arc<Policy>> {
        let live = self.of_kinds().filter_map(|(_, state)| state.live());
        let mut others = live
            .flat_map(|live| live.policies())
            .filter(|other| other.name == policy.name && other.meta.uid == policy.meta.uid);
        others.find(|other| other.spec_hash != policy.spec_hash).cloned()
    }

    /// Whether the registration of `kind` delivers the policy `name`, or may do so according to the status from an earlier
    /// leader.
    pub(super) fn may_be_in_force(&self, kind: &Arc<Kind>, stored: &StoredPolicy, name: &str) -> bool {
        match self.of_kind(kind).and_then(Registration::live) {
            Some(live) => live.policies().iter().any(|policy| policy.name == name),
            None => stored.is_programmed() && !self.registered(&Slot::of_kind(kind)).is_empty(),
        }
    }

    /// Records that `resource` cannot be read if `error` is a missing right that will not pass soon. Returns whether that is
    /// new.
    pub(super) fn note_unreadable(
        &mut self,
        resource: &'static str,
        error: &watcher::Error,
        now: Instant,
        timing: &timing::Watch,
    ) -> bool {
        if !is_refused(error) {
            self.refused.entry(resource).or_default().note_failure(now);
            return false;
        }
        let is_missing = self.refused.entry(resource).or_default().note(now, timing.refused);
        if self.has_read(resource) && !is_missing {
            return false;
        }
        let message = format!("cannot list and watch {resource}: {}", why(error));
        self.unreadable.insert(resource, Unavailable::new(Code::MissingRight, message)).is_none()
    }

    /// Records that resources can be read again whose watch was refused and goes on now. Such a watch shows no event before an
    /// object changes. Returns whether there are any.
    pub(super) fn end_refusals(&mut self, now: Instant, timing: &timing::Watch) -> bool {
        // What was never read ends by a whole list.
        let has_ended = |resource: &&'static str| {
            let refusals = self.refused.get(resource);
            self.has_read(resource) && refusals.is_none_or(|refusals| refusals.have_ended(now, timing.refused))
        };
        let ended: Vec<_> = self.unreadable.keys().copied().filter(has_ended).collect();
        self.unreadable.retain(|resource, _| !ended.contains(resource));
        !ended.is_empty()
    }

    /// Looks for foreign registrations that conflict with `policy`.
    pub(super) fn check_foreign(&self, policy: &Policy, cluster: &Capabilities) -> Result<(), Readiness> {
        for (resource, other, stored) in self.all_own().filter(|(.., stored)| !is_ours_of(stored)) {
            let kind = cluster.registration(resource).map_or_else(|| resource.to_owned(), |served| served.kind);
            if *other == own_name(&policy.name) {
                let message = format!("an {kind} `{other}` exists that we did not make; delete or rename it");
                return Err(Readiness::Impossible { code: Code::NameTaken, message });
            }
            let listed = engine::completing(resource).map(|engine| engine.initializers_of(stored)).unwrap_or_default();
            if listed.contains(&policy.initializer_name) {
                let message = format!(
                    "the {kind} `{other}`, which is not ours, lists `{}`; remove it there",
                    policy.initializer_name
                );
                return Err(Readiness::Impossible { code: Code::ForeignConfiguration, message });
            }
        }
        Ok(())
    }

    /// Every shared object of ours: the plural name of its resource, and its name.
    pub(super) fn all_shared(&self) -> impl Iterator<Item = (&'static str, &String)> {
        self.shared.iter().flat_map(|(resource, mirror)| mirror.known().keys().map(move |name| (*resource, name)))
    }

    /// The objects of `slot` that exist.
    pub(super) fn registered(&self, slot: &Slot) -> BTreeSet<RegistrationKey> {
        match slot {
            Slot::Policy(name) => self.own_of(name).map(|(key, _)| key).into_iter().collect(),
            Slot::Kind(kind) => {
                let of_kind = |(_, name): &(&str, &String)| kind_of(name).as_deref() == Some(kind);
                let found = self.all_shared().filter(of_kind);
                found.map(|(resource, name)| RegistrationKey::of(resource, name)).collect()
            }
        }
    }

    /// An object of `live` that differs from what we wrote.
    pub(super) fn edited(&self, live: &Live) -> Option<RegistrationKey> {
        let is_edited = |(key, ours): &(&RegistrationKey, &Edition)| {
            if let Some(mirror) = self.own.get(key.resource.as_str()) {
                let wanted = live.wanted.objects.first();
                let stored = mirror.known().get(&key.name).filter(|stored| is_ours_of(stored));
                return stored.zip(wanted).is_some_and(|(stored, wanted)| !registration::is_as(stored, wanted));
            }
            let stored = self.shared.get(key.resource.as_str()).and_then(|mirror| mirror.known().get(&key.name));
            stored.is_some_and(|stored| stored.is_edit_of(ours))
        };
        live.editions.iter().find(is_edited).map(|(key, _)| key.clone())
    }

    /// The slot that owns an object.
    pub(super) fn slot_of(resource: &str, name: &str) -> Option<Slot> {
        if engine::is_per_policy(resource) {
            return policy_of(name).map(Slot::of_policy);
        }
        kind_of(name).map(Slot::Kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::registration::MUTATING_WEBHOOKS;
    use crate::timing::Timing;
    use kube::core::Status;
    use std::time::Duration;
    use watcher::Event;

    const WATCH: &timing::Watch = &Timing::documented().watch;

    fn refusal() -> watcher::Error {
        let status = Status::failure("webhooks is forbidden", "Forbidden").with_code(403);
        watcher::Error::WatchStartFailed(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn what_was_read_can_be_read_again_once_its_watch_is_refused_no_more() {
        let (mut registrations, begin) = (Registrations::default(), Instant::now());
        let mut mirror = WatchCache::default();
        mirror.apply(&Event::InitDone, |_, _| Edition::default());
        registrations.shared.insert(MUTATING_WEBHOOKS, mirror);
        // The second, whether the watch is refused then, and whether its resource cannot be read after that.
        for (second, is_refused, is_unreadable) in [
            (0, true, false),
            (3, true, false),
            (10, true, true),
            (13, true, true),
            (30, false, true),
            // The watch goes on: it shows nothing.
            (34, false, false),
            // An API server that has just started refuses it for a moment, and so does the next one.
            (100, true, false),
            (200, true, false),
            (202, true, false),
            (211, true, true),
        ] {
            let now = begin + Duration::from_secs(second);
            if is_refused {
                registrations.note_unreadable(MUTATING_WEBHOOKS, &refusal(), now, WATCH);
            }
            let was_unreadable = registrations.unreadable.contains_key(MUTATING_WEBHOOKS);
            assert_eq!(registrations.end_refusals(now, WATCH), was_unreadable && !is_unreadable, "{second}");
            assert_eq!(registrations.unreadable.contains_key(MUTATING_WEBHOOKS), is_unreadable, "{second}");
        }
    }

    #[test]
    fn what_was_never_read_stays_unreadable_until_it_is() {
        let (mut registrations, begin) = (Registrations::default(), Instant::now());
        registrations.shared.insert(MUTATING_WEBHOOKS, WatchCache::default());
        assert!(registrations.note_unreadable(MUTATING_WEBHOOKS, &refusal(), begin, WATCH));
        assert!(!registrations.end_refusals(begin + 9 * WATCH.refused, WATCH));
        assert!(registrations.has_read_all());
    }
}
