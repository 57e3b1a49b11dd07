//! The controllers that make pods: how many pods each keeps, and which policies match them.
//!
//! They are watched only while a policy with `updateStrategy: RollingUpdate` targets pods. A pod of any other controller is left
//! as it is, because it may not be created again.

use super::plan::{Owner, Owners};
use crate::cluster::client::{self, why};
use crate::cluster::object::Object;
use crate::operator::Operator;
use crate::policy::{Policies, Policy, Site};
use crate::survival::lock;
use crate::update::MAKERS;
use crate::workload::{Kind, Workload};
use crate::workloads::census::{self, Tally};
use crate::workloads::fleet::rolls;
use futures::{StreamExt, pin_mut};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;
use tracing::warn;

/// What the watches have shown.
#[derive(Default)]
struct Seen {
    owners: Arc<Owners>,
    /// What the lists that are being read have shown, by kind.
    listing: HashMap<&'static str, Owners>,
    /// The kinds of which a whole list has been read.
    whole: BTreeSet<&'static str>,
    refused: Option<String>,
}

/// The watches of the controllers, for one set of policies.
#[derive(Default)]
pub struct Watched {
    seen: Arc<Mutex<Seen>>,
    /// The hashes of the specs for which controllers were matched.
    policies: Vec<String>,
    tasks: JoinSet<()>,
}

impl Watched {
    /// Watches for those of `policies` that roll and target pods; begins anew if they have changed.
    pub fn follow(&mut self, operator: &Arc<Operator>, policies: &Policies) {
        let rolling = policies.iter().filter(|policy| rolls(policy) && policy.kinds.iter().any(|kind| kind.is_pod()));
        let rolling: Vec<Arc<Policy>> = rolling.cloned().collect();
        let hashes: Vec<String> = rolling.iter().map(|policy| policy.spec_hash.clone()).collect();
        if hashes == self.policies {
            return;
        }
        self.policies = hashes;
        self.tasks.abort_all();
        self.seen = Arc::default();
        if rolling.is_empty() {
            return;
        }
        let policies = Arc::new(Policies::new(rolling));
        for (group, kind, plural) in MAKERS {
            let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural);
            let (operator, policies, seen) = (operator.clone(), policies.clone(), self.seen.clone());
            self.tasks.spawn(async move {
                let begin = || follow(&operator, &resource, kind, &policies, &seen);
                operator.persist("watching the makers of pods", begin).await;
            });
        }
    }

    /// What the watches show.
    ///
    /// # Errors
    /// What is missing still, or for good.
    pub fn owners(&self) -> Result<Arc<Owners>, String> {
        let seen = lock(&self.seen);
        if let Some(refused) = &seen.refused {
            return Err(refused.clone());
        }
        if !self.policies.is_empty() && seen.whole.len() < MAKERS.len() {
            return Err(String::new());
        }
        Ok(seen.owners.clone())
    }
}

async fn follow(
    operator: &Operator,
    resource: &ApiResource,
    kind: &'static str,
    policies: &Policies,
    seen: &Mutex<Seen>,
) {
    let api = Api::<Object>::all_with(operator.client.clone(), resource);
    let events = client::watch(&api, &watcher::Config::default(), operator.resync, &operator.timing.watch);
    pin_mut!(events);
    let read = |object: &Object| {
        (Arc::<str>::from(uid(object)), owner(&object.value(), kind, object, policies, &operator.site(), operator))
    };
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => drop(lock(seen).listing.remove(kind)),
            Ok(Event::InitApply(object)) => {
                let (uid, owner) = read(&object);
                lock(seen).listing.entry(kind).or_default().extend(owner.map(|owner| (uid, owner)));
            }
            Ok(Event::InitDone) => {
                let mut seen = lock(seen);
                let listed = seen.listing.remove(kind).unwrap_or_default();
                let owners = Arc::make_mut(&mut seen.owners);
                owners.retain(|_, owner| owner.kind != kind);
                owners.extend(listed);
                seen.whole.insert(kind);
                seen.refused = None;
            }
            Ok(Event::Apply(object)) => {
                let (uid, owner) = read(&object);
                let mut seen = lock(seen);
                let owners = Arc::make_mut(&mut seen.owners);
                match owner {
                    Some(owner) => drop(owners.insert(uid, owner)),
                    None => drop(owners.remove(&uid)),
                }
            }
            Ok(Event::Delete(object)) => {
                drop(Arc::make_mut(&mut lock(seen).owners).remove(uid(&object)));
            }
            Err(error) => {
                let message = why(&error);
                if client::is_refused(&error) {
                    let plural = &resource.plural;
                    lock(seen).refused = Some(format!("cannot list and watch {plural}: {message}"));
                }
                warn!(resource = resource.plural, error = message, "Watch failed; trying again");
            }
        }
    }
}

fn uid(object: &Object) -> &str {
    object.meta().uid.as_deref().unwrap_or_default()
}

/// The controller `object`; none if it keeps no pods now, or no policy matches them.
fn owner(
    body: &Value,
    kind: &'static str,
    object: &Object,
    policies: &Policies,
    site: &Site,
    operator: &Operator,
) -> Option<Owner> {
    if !body["metadata"]["deletionTimestamp"].is_null() {
        return None;
    }
    let desired = match kind {
        "DaemonSet" => body["status"]["desiredNumberScheduled"].as_u64().unwrap_or_default(),
        _ => body["spec"]["replicas"].as_u64().unwrap_or(1),
    };
    let pods = Kind::find("", "pods").expect("it is built in");
    let template = &body["spec"]["template"];
    let mut pod = serde_json::json!({ "metadata": template["metadata"], "spec": template["spec"] });
    if !pod["metadata"].is_object() {
        pod["metadata"] = serde_json::json!({});
    }
    pod["metadata"]["namespace"] = object.namespace().into();
    let mut pod = Workload::new(pods, pod);
    if policies.read_namespaces() {
        pod = pod.within(operator.namespaces.get(object.namespace()));
    }
    let fate = census::fate(&pod, policies, site, |_, _| false);
    let matched = fate.iter().filter(|(_, tally)| *tally != Tally::Unknown).map(|(policy, _)| policy.clone());
    let matched: BTreeSet<Arc<str>> = matched.collect();
    let carried = fate.iter().filter(|(_, tally)| matches!(tally, Tally::Injected | Tally::Outdated));
    (desired > 0 && !matched.is_empty()).then(|| Owner {
        kind,
        name: object.name().to_owned(),
        desired: usize::try_from(desired).unwrap_or(usize::MAX),
        created: object.created(),
        carried: carried.map(|(policy, _)| policy.clone()).collect(),
        policies: matched,
    })
}
