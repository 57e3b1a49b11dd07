//! The watches of everything that engines register.

use crate::cluster::capabilities::registration as resources;
use crate::cluster::client::{self, why};
use crate::cluster::mirror::{Mirror, Seen, watch_ours};
use crate::cluster::object::Object;
use crate::controller::Controller;
use crate::controller::lifecycle::Event;
use crate::engine::initializer::types::{self, InitializerConfiguration};
use crate::engine::registration::{Edition, Key, is_marked, is_ours};
use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::ObjectMeta;
use kube::runtime::watcher::{self, Event as WatchEvent};
use tracing::warn;

use super::Registrations;

impl Controller {
    /// Watches every InitializerConfiguration.
    pub(in crate::controller) fn follow_configurations(
        &mut self,
    ) -> BoxStream<'static, watcher::Result<WatchEvent<Object>>> {
        self.registrations.configurations = Mirror::default();
        self.registrations.unreadable.remove(resources::INITIALIZERS);
        if !self.shared.capabilities().initializers {
            return futures::stream::iter([Ok(WatchEvent::Init), Ok(WatchEvent::InitDone)])
                .chain(futures::stream::pending())
                .boxed();
        }
        let api = Api::<Object>::all_with(self.shared.client.clone(), &types::resource());
        client::watch(&api, &watcher::Config::default(), self.shared.resync, &self.shared.timing.watch).boxed()
    }

    /// Watches every object of ours that several policies share.
    pub(in crate::controller) fn follow_registered(&mut self) -> SelectAll<BoxStream<'static, Seen>> {
        let capabilities = self.shared.capabilities();
        let is_followed = |name: &&str| *name != resources::INITIALIZERS && capabilities.registration(name).is_some();
        let followed = resources::ALL.into_iter().filter(is_followed);
        self.registrations.shared = followed.clone().map(|name| (name, Mirror::default())).collect();
        self.registrations.unreadable.retain(|resource, _| *resource == resources::INITIALIZERS);
        watch_ours(&self.shared.client, &capabilities, self.shared.resync, &self.shared.timing.watch, followed)
    }

    /// Takes over an event of the watch of InitializerConfigurations.
    pub(in crate::controller) fn configurations_changed(&mut self, event: watcher::Result<WatchEvent<Object>>) {
        // A foreign configuration may be in our way; our own is not.
        let is_foreign = |object: &Object| !is_ours(&parsed(object).metadata);
        match &event {
            Ok(WatchEvent::Apply(object) | WatchEvent::Delete(object)) if !is_foreign(object) => {}
            _ => self.plan = None,
        }
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                let message = why(&error);
                warn!(error = message, "Cannot follow initializer configurations; trying again");
                // Other engines need not wait for what this one may not do.
                if !self.registrations.configurations.is_complete() {
                    self.note_unreadable(resources::INITIALIZERS, &error);
                }
                return;
            }
        };
        match &event {
            WatchEvent::Init => {
                let registrations = &self.registrations;
                self.suspicious |= registrations.configurations.is_complete()
                    && !registrations.unreadable.contains_key(resources::INITIALIZERS);
            }
            WatchEvent::InitDone => drop(self.registrations.unreadable.remove(resources::INITIALIZERS)),
            WatchEvent::Delete(object) if is_foreign(object) => {}
            WatchEvent::Delete(object) => self.registered_deleted(resources::INITIALIZERS, object),
            WatchEvent::Apply(object) | WatchEvent::InitApply(object) => {
                self.registered_appeared(resources::INITIALIZERS, object);
            }
        }
        self.registrations.configurations.apply(&event, |object, _| parsed(object));
    }

    /// Takes over an event of the watch of a shared resource.
    pub(in crate::controller) fn registered_changed(&mut self, (resource, event): Seen) {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                let message = why(&error);
                warn!(resource, error = message, "Cannot follow registrations; trying again");
                self.note_unreadable(resource, &error);
                return;
            }
        };
        match &event {
            // The connection was lost: perhaps the server is another one now.
            WatchEvent::Init => {
                let registrations = &self.registrations;
                self.suspicious |= registrations.has_read(resource) && !registrations.unreadable.contains_key(resource);
            }
            WatchEvent::InitDone => {
                self.registrations.refused.remove(resource);
                if self.registrations.unreadable.remove(resource).is_some() {
                    self.plan = None;
                }
            }
            WatchEvent::Delete(object) => self.registered_deleted(resource, object),
            WatchEvent::Apply(object) | WatchEvent::InitApply(object) => self.registered_appeared(resource, object),
        }
        if let Some(mirror) = self.registrations.shared.get_mut(resource) {
            mirror.apply(&event, |object, _| Edition::of(&object.value()));
        }
    }

    fn registered_deleted(&mut self, resource: &str, object: &Object) {
        self.note_watched(resource, object, |key| Event::deleted(key, object));
    }

    fn registered_appeared(&mut self, resource: &str, object: &Object) {
        self.note_watched(resource, object, Event::Appeared);
    }

    fn note_watched(&mut self, resource: &str, object: &Object, event: impl FnOnce(Key) -> Event) {
        let Some(slot) = Registrations::slot_of(resource, object.name()) else { return };
        if self.registrations.states.contains_key(&slot) {
            // There is never anything to do at once.
            self.step(&slot, event((resource.to_owned(), object.name().to_owned())));
        }
    }

    /// Whether what had `metadata` was deleted by hand: neither by us, nor by another leader, nor by the garbage collector because none of
    /// the policies that own it exists any more.
    pub(super) fn is_deleted_by_hand(&self, metadata: &ObjectMeta) -> bool {
        let owners = metadata.owner_references.as_deref().unwrap_or_default();
        let is_stored = |owner: &OwnerReference| {
            self.snapshots.borrow().stored.get(&owner.name).is_some_and(|stored| stored.uid == owner.uid)
        };
        !is_marked(metadata) && (owners.is_empty() || owners.iter().any(is_stored))
    }
}

/// A configuration of anybody's; one that cannot be read counts as empty.
fn parsed(object: &Object) -> InitializerConfiguration {
    serde_json::from_value(object.value()).unwrap_or_default()
}
