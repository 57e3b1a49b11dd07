//! The controllers that make pods: how many pods each keeps, and which policies match them.
//!
//! They are watched only while a policy with `updateStrategy: RollingUpdate` targets pods. A pod of any other controller is left
//! as it is, because it may not be created again.

use crate::api::condition::condition_in;
use crate::cluster::answer::{is_refused, why};
use crate::cluster::api::Api;
use crate::cluster::namespaces::Namespaces;
use crate::cluster::object::Object;
use crate::cluster::policies::Snapshot;
use crate::cluster::rights::WatchRefusals;
use crate::cluster::watch::watch_with_resync;
use crate::operator::Operator;
use crate::policy::{Policies, Policy, Site};
use crate::refit::MAKERS;
use crate::rollout::stored::rolls;
use crate::rollout::{Owner, Owners, Unknown};
use crate::survival::{self, lock};
use crate::timing;
use crate::workload::{Kind, Workload};
use crate::workloads::census::{self, Tally};
use futures::{StreamExt, pin_mut};
use jiff::Timestamp;
use kube::Resource;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::warn;

/// What the watches have shown.
#[derive(Default)]
struct ShownOwners {
    owners: Arc<Owners>,
    /// What the lists that are being read have shown, by kind.
    listing: HashMap<&'static str, Owners>,
    /// The kinds of which a whole list has been read.
    whole: BTreeSet<&'static str>,
    /// The refusals of the watches, by kind, each with its message once a right is missing. An API server that has just started
    /// knows no rights yet.
    refused: BTreeMap<&'static str, (WatchRefusals, Option<String>)>,
}

impl ShownOwners {
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
        if !is_refused(error) {
            refusals.note_failure(now);
            return;
        }
        let is_missing = refusals.note(now, timing.refused) || !was_read;
        *message = is_missing.then(|| format!("cannot list and watch {plural}: {}", why(error)));
    }

    /// The message of a right that is missing now. A watch that was refused and goes on shows no event, so only time tells
    /// that its right has been granted. What was never read ends by a whole list.
    fn missing_right(&self, now: Instant, timing: &timing::Watch) -> Option<&str> {
        let is_lasting = |kind: &&str, refusals: &WatchRefusals| {
            !self.whole.contains(*kind) || !refusals.have_ended(now, timing.refused)
        };
        let mut lasting = self.refused.iter().filter(|(kind, (refusals, _))| is_lasting(kind, refusals));
        lasting.find_map(|(_, (_, message))| message.as_deref())
    }
}

/// The watches of the controllers. Those for an earlier set of policies go on until those for the newest have read all: an edit of
/// one policy makes no other one wait.
#[derive(Default)]
pub struct Watched {
    newest: Watches,
    earlier: Option<Watches>,
    changes: Arc<Notify>,
}

/// The watches for one set of policies.
#[derive(Default)]
struct Watches {
    seen: Arc<Mutex<ShownOwners>>,
    /// The policies for which controllers are matched.
    matched: BTreeMap<String, Edition>,
    tasks: JoinSet<()>,
}

/// The edition of a policy, and that of the Namespaces if it reads them: labels decide what it matches.
type Edition = (u64, Option<u64>);

impl Watches {
    fn are_whole(&self) -> bool {
        lock(&self.seen).whole.len() == MAKERS.len()
    }
}

impl Watched {
    /// Watches for those of `policies` that roll and target pods; begins anew if they have changed.
    pub fn follow(&mut self, operator: &Arc<Operator>, snapshot: &Snapshot) {
        if self.newest.are_whole() {
            self.earlier = None;
        }
        let policies = snapshot.policies.iter();
        let rolling = policies.filter(|policy| rolls(policy) && policy.kinds.iter().any(|kind| kind.is_pod()));
        let rolling: Vec<Arc<Policy>> = rolling.cloned().collect();
        let namespaces = operator.namespaces.edition();
        let matched = rolling.iter().filter_map(|policy| {
            let edition = snapshot.stored.get(&policy.reference())?.edition;
            Some((policy.name.clone(), (edition, namespaces.filter(|_| policy.reads_namespaces()))))
        });
        let matched = matched.collect();
        if matched == self.newest.matched {
            return;
        }
        let newest = std::mem::replace(&mut self.newest, Watches { matched, ..Watches::default() });
        if newest.are_whole() {
            self.earlier = Some(newest);
        }
        if rolling.is_empty() {
            self.earlier = None;
            return;
        }
        let policies = Arc::new(Policies::new(rolling));
        for (group, kind, plural) in MAKERS {
            let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural);
            let (operator, policies, seen) = (operator.clone(), policies.clone(), self.newest.seen.clone());
            let changes = self.changes.clone();
            self.newest.tasks.spawn(async move {
                let begin = || follow(&operator, &resource, kind, &policies, (&seen, &changes));
                operator.persist("watching the makers of pods", begin).await;
            });
        }
    }

    /// Signals each change of [`Self::owners`], to one reader.
    pub fn changes(&self) -> Arc<Notify> {
        self.changes.clone()
    }

    /// What the watches have shown until `now` of the makers that the `policy` matches.
    ///
    /// # Errors
    /// What is missing still, or for good.
    pub fn owners(&self, policy: &str, now: Instant, timing: &timing::Watch) -> Result<Arc<Owners>, Unknown> {
        if let Some(message) = lock(&self.newest.seen).missing_right(now, timing) {
            return Err(Unknown::Forbidden(message.to_owned()));
        }
        let edition = self.newest.matched.get(policy);
        let are_known = |watches: &&Watches| watches.are_whole() && watches.matched.get(policy) == edition;
        let known = [Some(&self.newest), self.earlier.as_ref()].into_iter().flatten().find(are_known);
        known.map(|watches| lock(&watches.seen).owners.clone()).ok_or(Unknown::Reading)
    }
}

async fn follow(
    operator: &Operator,
    resource: &ApiResource,
    kind: &'static str,
    policies: &Policies,
    (seen, changes): (&Mutex<ShownOwners>, &Notify),
) {
    let api = Api::<Object>::all_with(operator.client.clone(), resource);
    let events = watch_with_resync(&api, &watcher::Config::default(), operator.resync, &operator.timing.watch);
    pin_mut!(events);
    // A panic costs only this object: its pods then belong to an unknown owner.
    let read = |object: &Object| {
        let read = || owner(&object.value(), kind, object, policies, &operator.site(), &operator.namespaces);
        let owner = survival::attempt(&operator.metrics, "looking at a maker of pods", read).flatten();
        (Arc::<str>::from(uid(object)), owner)
    };
    while let Some(event) = events.next().await {
        let is_part_of_list = matches!(event, Ok(Event::Init | Event::InitApply(_)));
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
        if !is_part_of_list {
            changes.notify_one();
        }
    }
}

fn uid(object: &Object) -> &str {
    object.meta().uid.as_deref().unwrap_or_default()
}

/// How many pods the controller `body` of that `kind` keeps: 0 if it is being deleted, or has pods and keeps none. None if it keeps none,
/// and has none.
pub fn desired(body: &Value, kind: &str) -> Option<usize> {
    let status = |field: &str| body["status"][field].as_u64().unwrap_or_default();
    let is_deleted = !body["metadata"]["deletionTimestamp"].is_null();
    let desired = match kind {
        _ if is_deleted => 0,
        "DaemonSet" => status("desiredNumberScheduled"),
        _ => body["spec"]["replicas"].as_u64().unwrap_or(1),
    };
    let is_there = desired > 0 || is_deleted || status("replicas") > 0 || astray(body) > 0;
    is_there.then(|| bounded(desired))
}

/// How many pods the DaemonSet `body` has on nodes where it makes none: a pod whose node has got a taint since runs on.
pub fn astray(body: &Value) -> usize {
    bounded(body["status"]["numberMisscheduled"].as_u64().unwrap_or_default())
}

/// A number of pods. The API has 31 bits for it.
fn bounded(number: u64) -> usize {
    usize::try_from(number.min(i32::MAX.unsigned_abs().into())).unwrap_or(usize::MAX)
}

/// The controller `object`; none if it keeps no pods and has none, or no policy covers its namespace. One whose pods no policy matches is kept,
/// so that a pod that matches by itself has an owner that is known.
fn owner(
    body: &Value,
    kind: &'static str,
    object: &Object,
    policies: &Policies,
    site: &Site,
    namespaces: &Namespaces,
) -> Option<Owner> {
    let desired = desired(body, kind)?;
    let pods = Kind::find("", "pods").expect("it is built in");
    let template = &body["spec"]["template"];
    let mut pod = serde_json::json!({ "metadata": template["metadata"], "spec": template["spec"] });
    if !pod["metadata"].is_object() {
        pod["metadata"] = serde_json::json!({});
    }
    pod["metadata"]["namespace"] = object.namespace().into();
    let mut pod = Workload::new(pods, pod);
    if policies.read_namespaces() {
        pod = pod.within(namespaces.get(object.namespace()));
    }
    let fate = census::fate(&pod, policies, site, |_, _| false);
    let matched = fate.iter().filter(|(_, tally)| *tally != Tally::Unknown).map(|(policy, _)| policy.name.clone());
    let matched: BTreeSet<Arc<str>> = matched.collect();
    let carried = fate.iter().filter(|(_, tally)| tally.is_carried());
    let is_covered = policies.iter().any(|policy| policy.covers_namespace(object.namespace()));
    is_covered.then(|| Owner {
        kind,
        namespace: object.namespace().to_owned(),
        name: object.name().to_owned(),
        desired,
        created: object.created(),
        astray: astray(body),
        fails_since: fails_since(body),
        carried: carried.map(|(policy, _)| policy.name.clone()).collect(),
        policies: matched,
    })
}

/// Since when the controller of `owner` cannot make pods, by its condition `ReplicaFailure`.
pub fn fails_since(owner: &Value) -> Option<Timestamp> {
    let condition =
        condition_in(&owner["status"], "ReplicaFailure").filter(|condition| condition["status"] == "True")?;
    condition["lastTransitionTime"].as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::{CALL_LIMIT, Timing};
    use kube::core::Status;
    use serde_json::json;
    use std::time::Duration;

    const WATCH: &timing::Watch = &Timing::documented().watch;
    const MESSAGE: &str = "cannot list and watch replicasets: it is forbidden";

    /// The watches for a policy, before any list has been read.
    fn watched() -> Watched {
        let newest = Watches { matched: [("p".to_owned(), (1, None))].into(), ..Watches::default() };
        Watched { newest, ..Watched::default() }
    }

    /// The same, after the lists of all makers.
    fn read() -> Watched {
        let watched = watched();
        read_all(&watched.newest);
        watched
    }

    fn read_all(watches: &Watches) {
        for (_, kind, _) in MAKERS {
            lock(&watches.seen).list_ended(kind);
        }
    }

    fn refuse(watched: &Watched, now: Instant) {
        let status = Status::failure("it is forbidden", "Forbidden").with_code(403);
        let refusal = watcher::Error::WatchStartFailed(kube::Error::Api(Box::new(status)));
        lock(&watched.newest.seen).note_refused("ReplicaSet", "replicasets", &refusal, now, WATCH);
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
        watched.owners("p", now, WATCH).err().map(|unknown| match unknown {
            Unknown::Reading => String::new(),
            Unknown::Forbidden(message) => message,
        })
    }

    #[test]
    fn an_owner_keeps_what_runs_on_and_one_that_goes_keeps_nothing() {
        let status = |desired: u64, beside: u64| serde_json::json!({ "status": { "desiredNumberScheduled": desired, "numberMisscheduled": beside } });
        assert_eq!((desired(&status(3, 1), "DaemonSet"), astray(&status(3, 1))), (Some(3), 1));
        assert_eq!((desired(&status(0, 1), "DaemonSet"), desired(&status(0, 0), "DaemonSet")), (Some(0), None));
        let set = |wanted: u64, has: u64, deleted: Option<&str>| {
            let metadata = serde_json::json!({ "deletionTimestamp": deleted });
            serde_json::json!({ "metadata": metadata, "spec": { "replicas": wanted }, "status": { "replicas": has } })
        };
        assert_eq!(desired(&set(3, 0, None), "ReplicaSet"), Some(3));
        assert_eq!(desired(&set(0, 1, None), "ReplicaSet"), Some(0));
        assert_eq!(desired(&set(0, 0, None), "ReplicaSet"), None, "one of the many of earlier templates");
        assert_eq!(desired(&set(3, 3, Some("2026-01-01T00:00:00Z")), "ReplicaSet"), Some(0));
    }

    #[test]
    fn an_owner_is_known_wherever_a_policy_may_match_and_only_while_it_keeps_pods() {
        let site = Site::new("scpol-system", [], []);
        let template = json!({ "containers": [{ "name": "c", "image": "i:1" }] });
        let spec = json!({ "labelSelector": { "matchLabels": { "app": "a" } }, "targets": [{ "group": "", "resource": "pods" }], "namespaces": ["n"], "template": template });
        let policy = Policy::parse(&json!({ "metadata": { "name": "p", "uid": "p" }, "spec": spec }), &site);
        let policies = Policies::new([Arc::new(policy.unwrap())]);
        for (namespace, replicas, app, policies_of_it) in
            [("n", 2, "a", Some(1)), ("n", 2, "b", Some(0)), ("n", 0, "a", None), ("other", 2, "a", None)]
        {
            let pod = json!({ "metadata": { "labels": { "app": app } }, "spec": { "containers": [{ "name": "x", "image": "x" }] } });
            let body = json!({
                "metadata": { "name": "r", "namespace": namespace, "uid": "u" },
                "spec": { "replicas": replicas, "template": pod },
            });
            let object: Object = serde_json::from_value(body.clone()).unwrap();
            let found = owner(&body, "ReplicaSet", &object, &policies, &site, &Namespaces::default());
            assert_eq!(found.map(|owner| owner.policies.len()), policies_of_it, "{namespace} {replicas} {app}");
        }
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
            lock(&watched.newest.seen).list_ended(kind);
            assert_eq!(missing(&watched, last).as_deref(), Some(MESSAGE), "{kind}");
        }
        lock(&watched.newest.seen).list_ended("ReplicaSet");
        assert_eq!(missing(&watched, last), None);
    }

    #[test]
    fn what_was_never_read_is_unknown_until_it_is_refused_and_then_until_it_is_read() {
        let (watched, now) = (watched(), Instant::now());
        assert_eq!(missing(&watched, now).as_deref(), Some(""));
        refuse(&watched, now);
        assert_eq!(missing(&watched, now).as_deref(), Some(MESSAGE));
        assert_eq!(missing(&watched, now + 9 * WATCH.refused).as_deref(), Some(MESSAGE));
        lock(&watched.newest.seen).list_ended("ReplicaSet");
        assert_eq!(missing(&watched, now).as_deref(), Some(""), "the others are unknown");
    }

    #[test]
    fn an_edit_of_one_policy_makes_no_other_one_wait_for_lists() {
        let edited = |edition: u64| {
            let matched = [("p".to_owned(), (1, None)), ("edited".to_owned(), (edition, None))];
            Watches { matched: matched.into(), ..Watches::default() }
        };
        let watched = Watched { newest: edited(2), earlier: Some(edited(1)), ..Watched::default() };
        watched.earlier.as_ref().iter().for_each(|earlier| read_all(earlier));
        let are_known = |policy: &str| watched.owners(policy, Instant::now(), WATCH).is_ok();
        assert_eq!((are_known("p"), are_known("edited")), (true, false));
        read_all(&watched.newest);
        assert_eq!((are_known("p"), are_known("edited")), (true, true));
    }
}
