//! The controllers that make pods: how many pods each keeps, and which policies match them.
//!
//! They are watched only while a policy with `updateStrategy: RollingUpdate` targets pods. A pod of any other controller is left
//! as it is, because it may not be created again.

use super::plan::{Owner, Owners};
use crate::cluster::api::Api;
use crate::cluster::client::{self, Refusals, why};
use crate::cluster::object::Object;
use crate::operator::Operator;
use crate::policy::{Policies, Policy, Site};
use crate::survival::{self, lock};
use crate::timing;
use crate::update::MAKERS;
use crate::workload::{Kind, Workload};
use crate::workloads::census::{self, Tally};
use crate::workloads::fleet::rolls;
use futures::{StreamExt, pin_mut};
use kube::Resource;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Instant;
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
    /// The refusals of the watches, by kind, each with its message once a right is missing. An API server that has just started
    /// knows no rights yet.
    refused: BTreeMap<&'static str, (Refusals, Option<String>)>,
}

impl Seen {
    /// Records the end of the list of `kind`. Its right is not missing any more.
    fn list_ended(&mut self, kind: &'static str) {
        let listed = self.listing.remove(kind).unwrap_or_default();
        let owners = Arc::make_mut(&mut self.owners);
        owners.retain(|_, owner| owner.kind != kind);
        owners.extend(listed);
        self.whole.insert(kind);
        self.refused.remove(kind);
    }

    /// Records `error` of the watch of `kind` if it is a refusal.
    fn note_refused(
        &mut self,
        kind: &'static str,
        plural: &str,
        error: &watcher::Error,
        now: Instant,
        timing: &timing::Watch,
    ) {
        let was_read = self.whole.contains(kind);
        let (refusals, message) = self.refused.entry(kind).or_default();
        if !client::is_refused(error) {
            refusals.note_failure(now);
            return;
        }
        let is_missing = refusals.note(now, timing.refused) || !was_read;
        *message = is_missing.then(|| format!("cannot list and watch {plural}: {}", why(error)));
    }

    /// The message of a right that is missing now. A watch that was refused and goes on shows no event, so only time tells
    /// that its right has been granted. What was never read ends by a whole list.
    fn missing_right(&self, now: Instant, timing: &timing::Watch) -> Option<&str> {
        let is_lasting =
            |kind: &&str, refusals: &Refusals| !self.whole.contains(*kind) || !refusals.have_ended(now, timing.refused);
        let mut lasting = self.refused.iter().filter(|(kind, (refusals, _))| is_lasting(kind, refusals));
        lasting.find_map(|(_, (_, message))| message.as_deref())
    }
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

    /// What the watches have shown until `now`.
    ///
    /// # Errors
    /// What is missing still, or for good.
    pub fn owners(&self, now: Instant, timing: &timing::Watch) -> Result<Arc<Owners>, String> {
        let seen = lock(&self.seen);
        if let Some(message) = seen.missing_right(now, timing) {
            return Err(message.to_owned());
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
    // A panic costs only this object: its pods then belong to an unknown owner.
    let read = |object: &Object| {
        let read = || owner(&object.value(), kind, object, policies, &operator.site(), operator);
        let owner = survival::attempt(&operator.metrics, "looking at a maker of pods", read).flatten();
        (Arc::<str>::from(uid(object)), owner)
    };
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => drop(lock(seen).listing.remove(kind)),
            Ok(Event::InitApply(object)) => {
                let (uid, owner) = read(&object);
                lock(seen).listing.entry(kind).or_default().extend(owner.map(|owner| (uid, owner)));
            }
            Ok(Event::InitDone) => lock(seen).list_ended(kind),
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
                lock(seen).note_refused(kind, &resource.plural, &error, Instant::now(), &operator.timing.watch);
                warn!(resource = resource.plural, error = why(&error), "Watch failed; trying again");
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
    // The API has 31 bits for it.
    let desired = desired.min(i32::MAX.unsigned_abs().into());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::{CALL_LIMIT, Timing};
    use kube::core::Status;
    use std::time::Duration;

    const WATCH: &timing::Watch = &Timing::documented().watch;
    const MESSAGE: &str = "cannot list and watch replicasets: it is forbidden";

    /// The watches for a policy, before any list has been read.
    fn watched() -> Watched {
        Watched { policies: vec!["hash".to_owned()], ..Watched::default() }
    }

    /// The same, after the lists of all makers.
    fn read() -> Watched {
        let watched = watched();
        for (_, kind, _) in MAKERS {
            lock(&watched.seen).list_ended(kind);
        }
        watched
    }

    fn refuse(watched: &Watched, now: Instant) {
        let status = Status::failure("it is forbidden", "Forbidden").with_code(403);
        let refusal = watcher::Error::WatchStartFailed(kube::Error::Api(Box::new(status)));
        lock(&watched.seen).note_refused("ReplicaSet", "replicasets", &refusal, now, WATCH);
    }

    /// Refuses the watch of ReplicaSets for long enough. Returns the time of the last refusal.
    fn refuse_for_good(watched: &Watched) -> Instant {
        let begin = Instant::now();
        for share in 0..=4 {
            refuse(watched, begin + share * WATCH.refused / 4);
        }
        begin + WATCH.refused
    }

    /// Why the makers are not known; none if they are.
    fn missing(watched: &Watched, now: Instant) -> Option<String> {
        watched.owners(now, WATCH).err()
    }

    #[test]
    fn an_api_server_that_has_just_started_and_refuses_a_watch_halts_nothing() {
        let (watched, now) = (read(), Instant::now());
        refuse(&watched, now);
        assert_eq!([now, now + 9 * WATCH.refused].map(|now| missing(&watched, now)), [None, None]);
        refuse(&watched, now + 10 * WATCH.refused);
        assert_eq!(missing(&watched, now + 10 * WATCH.refused), None, "it was allowed in between");
    }

    #[test]
    fn a_right_is_missing_until_its_watch_is_refused_no_more() {
        let watched = read();
        let last = refuse_for_good(&watched);
        assert_eq!(missing(&watched, last).as_deref(), Some(MESSAGE));
        let ended = last + WATCH.refused + CALL_LIMIT;
        assert_eq!(missing(&watched, ended).as_deref(), Some(MESSAGE), "it may be tried again still");
        // The watch goes on: it shows nothing.
        assert_eq!(missing(&watched, ended + Duration::from_millis(1)), None);
    }

    #[test]
    fn only_the_list_of_the_same_maker_shows_that_a_right_is_not_missing() {
        let watched = read();
        let last = refuse_for_good(&watched);
        for (_, kind, _) in MAKERS.into_iter().filter(|(_, kind, _)| *kind != "ReplicaSet") {
            lock(&watched.seen).list_ended(kind);
            assert_eq!(missing(&watched, last).as_deref(), Some(MESSAGE), "{kind}");
        }
        lock(&watched.seen).list_ended("ReplicaSet");
        assert_eq!(missing(&watched, last), None);
    }

    #[test]
    fn what_was_never_read_is_unknown_until_it_is_refused_and_then_until_it_is_read() {
        let (watched, now) = (watched(), Instant::now());
        assert_eq!(missing(&watched, now).as_deref(), Some(""));
        refuse(&watched, now);
        assert_eq!(missing(&watched, now).as_deref(), Some(MESSAGE));
        assert_eq!(missing(&watched, now + 9 * WATCH.refused).as_deref(), Some(MESSAGE));
        lock(&watched.seen).list_ended("ReplicaSet");
        assert_eq!(missing(&watched, now).as_deref(), Some(""), "the others are unknown");
    }
}
