//! The cache of Namespaces, watched only while a policy selects them by more than their names.

use super::api::Api;
use super::client::{self, CallError, Progress, call, why};
use super::object::Object;
use crate::survival;
use crate::timing;
use futures::{TryStreamExt, pin_mut};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::core::ApiResource;
use kube::runtime::watcher;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;
use tracing::warn;

/// Namespaces by name, as last seen.
#[derive(Default)]
pub struct Namespaces(Mutex<State>);

#[derive(Default)]
struct State {
    known: HashMap<String, Arc<Value>>,
    relabelled: bool,
}

impl Namespaces {
    /// The Namespace `name`, if it has been seen.
    pub fn get(&self, name: &str) -> Option<Arc<Value>> {
        self.state().known.get(name).cloned()
    }

    /// All Namespaces, as last seen.
    pub fn all(&self) -> BTreeMap<String, Arc<Value>> {
        self.state().known.iter().map(|(name, object)| (name.clone(), object.clone())).collect()
    }

    /// The Namespace `name`, from the cache or else from the server, because a workload may arrive before its Namespace
    /// is cached. None if there is none.
    ///
    /// # Errors
    /// If the server cannot be read.
    pub async fn read(&self, client: &Client, name: &str) -> Result<Option<Arc<Value>>, CallError> {
        if let Some(known) = self.get(name) {
            return Ok(Some(known));
        }
        let api = Api::<Object>::all_with(client.clone(), &resource());
        Ok(call(api.get_opt(name)).await?.map(|object| Arc::new(object.value())))
    }

    /// Whether labels have changed since the last call, so that other workloads may match now.
    pub fn take_relabelled(&self) -> bool {
        std::mem::take(&mut self.state().relabelled)
    }

    fn set(&self, object: &Object) {
        let fresh = object.value();
        let mut state = self.state();
        let known = state.known.get(object.name());
        state.relabelled |= known.is_some_and(|known| known["metadata"]["labels"] != fresh["metadata"]["labels"]);
        state.known.insert(object.name().to_owned(), Arc::new(fresh));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock leaves a consistent map.
        survival::lock(&self.0)
    }
}

fn resource() -> ApiResource {
    ApiResource::erase::<Namespace>(&())
}

/// Watches all Namespaces for ever and reports the progress. Lists them all again after each `resync`.
pub async fn follow(
    client: Client,
    namespaces: Arc<Namespaces>,
    resync: Duration,
    progress: &watch::Sender<Progress>,
    timing: &'static timing::Watch,
) {
    let api = Api::<Object>::all_with(client, &resource());
    let events = client::watch(&api, &watcher::Config::default(), resync, timing);
    pin_mut!(events);
    let mut listed = HashSet::new();
    loop {
        match events.try_next().await {
            Ok(Some(watcher::Event::Init)) => listed.clear(),
            Ok(Some(watcher::Event::InitApply(object))) => {
                listed.insert(object.name().to_owned());
                namespaces.set(&object);
            }
            Ok(Some(watcher::Event::InitDone)) => {
                let listed = std::mem::take(&mut listed);
                let mut state = namespaces.state();
                state.known.retain(|name, _| listed.contains(name));
                // Workloads that were counted without the Namespaces must be counted again.
                state.relabelled = true;
                drop(state);
                progress.send_replace(Progress::Synced);
            }
            Ok(Some(watcher::Event::Apply(object))) => namespaces.set(&object),
            Ok(Some(watcher::Event::Delete(object))) => drop(namespaces.state().known.remove(object.name())),
            Ok(None) => return,
            Err(error) => {
                let message = why(&error);
                warn!(error = message, "Cannot follow the Namespaces; trying again");
                progress.send_if_modified(|progress| progress.fail(&error, message));
            }
        }
    }
}
