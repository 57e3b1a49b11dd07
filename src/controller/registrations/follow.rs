//! The watches of everything that engines register.

use crate::capabilities::registration as resources;
use crate::cluster::object::Object;
use crate::cluster::watch::cache::WatchCache;
use crate::cluster::watch::shared::{Events, ResourceEvent, Whose};
use crate::controller::Controller;
use crate::engine;
use crate::engine::lifecycle::Event;
use crate::engine::registrar::RegistrationKey;
use crate::engine::registration::{Edition, is_marked, is_ours_of};
use crate::policy::PolicyRef;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use kube::runtime::watcher::Event as WatchEvent;
use std::time::Instant;

use crate::controller::registered::Registrations;

impl Controller {
    /// Watches every registration of ours, and everybody's of the resources whose objects are each of one policy.
    pub(in crate::controller) fn follow_registered(&mut self) -> Events {
        let (operator, registrations) = (&self.operator, &mut self.registrations);
        let capabilities = operator.capabilities();
        let served = resources::ALL.into_iter().filter_map(|name| Some((name, capabilities.registration(name)?)));
        let (own, shared): (Vec<_>, Vec<_>) = served.partition(|(name, _)| engine::is_per_policy(name));
        registrations.own = own.iter().map(|(name, _)| (*name, WatchCache::default())).collect();
        registrations.shared = shared.iter().map(|(name, _)| (*name, WatchCache::default())).collect();
        registrations.unreadable.clear();
        let own = own.into_iter().map(|(name, resource)| (name, resource, Whose::All));
        let shared = shared.into_iter().map(|(name, resource)| (name, resource, Whose::Ours));
        operator.watches.listen(own.chain(shared))
    }

    /// Takes over an event of the watch of a resource.
    pub(in crate::controller) fn registered_changed(&mut self, (resource, event): ResourceEvent) {
        let is_own = self.registrations.own.contains_key(resource);
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                // Other engines need not wait for what this one may not do.
                let timing = &self.operator.timing.watch;
                if (!is_own || !self.registrations.has_read(resource))
                    && self.registrations.note_unreadable(resource, &error, Instant::now(), timing)
                {
                    self.planner.outdate();
                }
                return;
            }
        };
        match &event {
            // The connection was lost: perhaps the server is another one now.
            WatchEvent::Init => {
                let registrations = &self.registrations;
                self.discovery.is_suspicious |=
                    registrations.has_read(resource) && !registrations.unreadable.contains_key(resource);
            }
            WatchEvent::InitDone => {
                self.registrations.refused.remove(resource);
                if self.registrations.unreadable.remove(resource).is_some() || is_own {
                    self.planner.outdate();
                }
            }
            // A foreign one may be in our way.
            WatchEvent::Apply(object) | WatchEvent::Delete(object) if is_own && !is_ours_of(&object.value()) => {
                self.planner.outdate();
                self.note_watched(resource, object, &event);
            }
            WatchEvent::Apply(object) | WatchEvent::InitApply(object) | WatchEvent::Delete(object) => {
                self.note_watched(resource, object, &event);
            }
        }
        let registrations = &mut self.registrations;
        if let Some(mirror) = registrations.own.get_mut(resource) {
            mirror.apply(&event, |object, _| object.value());
        } else if let Some(mirror) = registrations.shared.get_mut(resource) {
            mirror.apply(&event, |object, _| Edition::of(&object.value()));
        }
    }

    /// Tells the lifecycle that an object has appeared or was deleted.
    fn note_watched(&mut self, resource: &str, object: &Object, seen: &WatchEvent<Object>) {
        let is_deleted = matches!(seen, WatchEvent::Delete(_));
        let is_foreign = engine::is_per_policy(resource) && !is_ours_of(&object.value());
        let Some(slot) = Registrations::slot_of(resource, object.name()).filter(|_| !is_deleted || !is_foreign) else {
            return;
        };
        if self.registrations.states.contains_key(&slot) {
            let key = RegistrationKey::of(resource, object.name());
            let event = if is_deleted { Event::deleted(key, object) } else { Event::Appeared(key) };
            // There is never anything to do at once.
            self.step(&slot, event);
        }
    }

    /// Whether what had `metadata` was deleted by hand: neither by us, nor by another leader, nor by the garbage collector because none of
    /// the policies that own it exists any more.
    pub(super) fn is_deleted_by_hand(&self, metadata: &ObjectMeta) -> bool {
        let owners = metadata.owner_references.as_deref().unwrap_or_default();
        let is_stored = |owner: &OwnerReference| {
            self.snapshots
                .borrow()
                .stored
                .get(&PolicyRef::of_cluster(&owner.name))
                .is_some_and(|stored| stored.uid == owner.uid)
        };
        !is_marked(metadata) && (owners.is_empty() || owners.iter().any(is_stored))
    }
}
