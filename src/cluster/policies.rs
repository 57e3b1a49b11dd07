//! The stored policies, parsed once per change and shared by all readers.

use super::client::{self, why};
use super::mirror::Mirror;
use super::object::Object;
use crate::api::code::Code;
use crate::api::condition::condition_in;
use crate::api::rules::Violation;
use crate::metrics::Metrics;
use crate::policy::{Policies, Policy, Site};
use crate::survival;
use crate::telemetry::Repeats;
use crate::timing;
use futures::{TryStreamExt, pin_mut};
use kube::core::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tracing::{debug, warn};

/// The address of SidecarPolicies.
pub fn resource() -> ApiResource {
    ApiResource::erase::<crate::api::v1alpha1::SidecarPolicy>(&())
}

/// A stored policy.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The policy's UID.
    pub uid: String,
    /// The policy's generation; always 1 on some old servers.
    pub generation: i64,
    /// The `status` of the object, as last seen.
    pub status: Arc<Value>,
    /// The parsed spec, or its violations.
    pub parsed: Result<Arc<Policy>, Arc<Vec<Violation>>>,
}

impl Stored {
    /// Whether the status says that the policy is in effect.
    pub fn is_programmed(&self) -> bool {
        condition_in(&self.status, "Programmed").is_some_and(|programmed| programmed["status"] == "True")
    }
}

/// All stored policies at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Every policy by name, including invalid ones.
    pub stored: Arc<BTreeMap<String, Stored>>,
    /// The valid policies.
    pub policies: Arc<Policies>,
    /// False until the first list has been read. No decision is allowed before.
    pub synced: bool,
}

/// Watches the stored policies for ever and publishes a [`Snapshot`] after each change. Lists them all again after each
/// `resync`.
pub async fn follow(
    client: Client,
    site: Arc<Site>,
    resync: Duration,
    snapshots: &watch::Sender<Snapshot>,
    metrics: &Metrics,
    timing: &'static timing::Watch,
) {
    let api = Api::<Object>::all_with(client, &resource());
    let settings = watcher::Config::default().timeout(client::seconds(timing.duration_of_custom_resources));
    let events = client::watch(&api, &settings, resync, timing);
    pin_mut!(events);
    let (mut stored, mut repeats) = (Mirror::default(), Repeats::default());
    loop {
        match events.try_next().await {
            Ok(Some(event)) => {
                stored.apply(&event, |object, kept| {
                    parse(object, kept, |value| guarded(metrics, || Policy::parse(value, &site)))
                });
                if !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_)) {
                    publish(snapshots, stored.known());
                }
            }
            Ok(None) => return,
            Err(error) => {
                let error = why(&error);
                if repeats.is_news(&error) {
                    warn!(error, "Cannot follow the policies; trying again");
                }
            }
        }
    }
}

/// Parses `object`. An unchanged spec keeps its old `Arc`.
fn parse(
    object: &Object,
    kept: Option<&Stored>,
    read: impl FnOnce(&Value) -> Result<Policy, Vec<Violation>>,
) -> Stored {
    let mut value = object.value();
    let generation = value["metadata"]["generation"].as_i64().unwrap_or_default();
    let uid = object.meta().uid.clone().unwrap_or_default();
    let fresh = read(&value).map(Arc::new).map_err(Arc::new);
    let parsed = match (fresh, kept.map(|kept| &kept.parsed)) {
        (Ok(fresh), Some(Ok(old)))
            if old.uid == fresh.uid && old.generation == fresh.generation && old.spec_hash == fresh.spec_hash =>
        {
            Ok(old.clone())
        }
        (fresh, _) => fresh,
    };
    debug!(policy = object.name(), generation, valid = parsed.is_ok(), "Policy seen");
    Stored { uid, generation, status: Arc::new(value["status"].take()), parsed }
}

/// The result of `read`. A panic costs only this policy: the policy is rejected, with the reason.
fn guarded(metrics: &Metrics, read: impl FnOnce() -> Result<Policy, Vec<Violation>>) -> Result<Policy, Vec<Violation>> {
    survival::attempt(metrics, "reading a policy", read).unwrap_or_else(|| {
        let message = "the operator panicked when it read this policy, which is a defect of the operator's";
        Err(vec![Violation { field: "spec".to_owned(), code: Code::Panicked, message: message.to_owned() }])
    })
}

fn publish(snapshots: &watch::Sender<Snapshot>, stored: &BTreeMap<String, Stored>) {
    let valid = stored.values().filter_map(|policy| policy.parsed.as_ref().ok().cloned());
    let before = snapshots.borrow().policies.clone();
    snapshots.send_replace(Snapshot {
        policies: Arc::new(Policies::after(&before, valid)),
        stored: Arc::new(stored.clone()),
        synced: true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_whose_reading_panics_is_refused_and_says_why() {
        let object: Object = serde_json::from_str(r#"{"metadata":{"name":"odd","uid":"u","generation":3}}"#).unwrap();
        let metrics = Metrics::new();
        let stored = parse(&object, None, |_| guarded(&metrics, || panic!("of a test")));
        let violations = stored.parsed.unwrap_err();
        assert_eq!((stored.generation, violations[0].code), (3, Code::Panicked));
        assert_eq!(metrics.panics.get(), 1);
    }
}
