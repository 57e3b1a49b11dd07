//! Follows the stored policies and their revisions, and publishes them.

use super::capacity::{Capacity, Measured};
use super::{Snapshot, StoredPolicy, resource};
use crate::api::code::Code;
use crate::api::rules::Violation;
use crate::api::{RESTARTED_AT_KEY, RESUMED_AT_KEY};
use crate::cluster::answer::{is_refused, why};
use crate::cluster::api::Api;
use crate::cluster::client::call;
use crate::cluster::object::Object;
use crate::cluster::revisions::{self, Knowledge, Revisions};
use crate::cluster::rights::WatchRefusals;
use crate::cluster::watch::cache::WatchCache;
use crate::cluster::watch::{seconds, watch_with_resync};
use crate::metrics::Metrics;
use crate::policy::{Policies, Policy, PolicyRef, Site};
use crate::rollout::stored::{Recognition, Splits};
use crate::rollout::{Foreign, StoredRevision};
use crate::survival;
use crate::timing;
use futures::{StreamExt, pin_mut};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Client, Resource};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::{debug, warn};

/// The settings of [`follow`].
#[derive(Clone, Debug)]
pub struct PolicyLimits {
    pub max_policies: usize,
    pub resync: Duration,
    pub are_rollouts_on: bool,
    /// Whether revisions are to be read although no policy rolls: the leader keeps them, so that there is something to go back to.
    pub wants_revisions: tokio::sync::watch::Receiver<bool>,
}

/// Watches the stored policies for ever and publishes a [`Snapshot`] after each change. Lists them all again after each
/// `resync`. `are_rollouts_on`: whether revisions decide what new workloads get while a rollout goes in steps. A policy
/// without room among `max_policies` is kept as invalid.
pub async fn follow(
    client: Client,
    site: Arc<Site>,
    limits: PolicyLimits,
    snapshots: &watch::Sender<Snapshot>,
    metrics: &Metrics,
    timing: &'static timing::Watch,
) {
    let mut known = WatchedPolicies::new(&limits, &site);
    let PolicyLimits { resync, mut wants_revisions, .. } = limits;
    let policies = Api::<Object>::all_with(client.clone(), &resource());
    let settings = watcher::Config::default().timeout(seconds(timing.duration_of_custom_resources));
    let events = watch_with_resync(&policies, &settings, resync, timing);
    let api = Api::<Object>::namespaced_with(client, &site.operator_namespace, &revisions::resource());
    let settings = watcher::Config::default().labels(&revisions::selector());
    // Asked for nothing before a policy needs it.
    let revised = watch_with_resync(&api, &settings, resync, timing);
    pin_mut!(events, revised);
    let read = |value: &Value| guarded(metrics, || Policy::parse(value, &site));
    let (mut is_complete, mut is_orphaned) = (true, false);
    loop {
        let is_change = tokio::select! {
            () = tokio::time::sleep(timing.first_pause), if !is_complete => true,
            event = events.next() => match event {
                Some(Ok(event)) => known.apply(&event, read),
                Some(Err(error)) => {
                    warn!(error = why(&error), "Cannot follow the policies; trying again");
                    false
                }
                None => return,
            },
            // A change alone: the next turn reads revisions, or reads them no more.
            changed = wants_revisions.changed(), if !is_orphaned => {
                is_orphaned = changed.is_err();
                false
            }
            event = revised.next(), if known.needs_revisions() || *wants_revisions.borrow() => match event {
                Some(Ok(event)) => known.apply_revision(&event, metrics),
                Some(Err(error)) => known.note_refused(&error, timing),
                None => return,
            },
        };
        if is_change {
            is_complete = known.make_room(&policies, read).await;
            if is_complete {
                known.publish(snapshots, metrics);
            }
        }
    }
}

/// Whether `event` changes what is known: a list does at its end alone.
fn is_change(event: &watcher::Event<Object>) -> bool {
    !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_))
}

/// What the watches have shown.
struct WatchedPolicies {
    stored: WatchCache<Measured>,
    revisions: WatchCache<Option<Result<StoredRevision, Foreign>>>,
    refusals: WatchRefusals,
    /// Why revisions cannot be read, once a right is missing. An API server that has just started knows no rights yet.
    refused: Option<String>,
    /// What was published last of each policy whose revisions decide.
    published: BTreeMap<PolicyRef, Arc<Policy>>,
    splits: Splits,
    recognition: Recognition,
    capacity: Capacity,
    editions: PolicyEditions,
}

/// The editions of what is published.
#[derive(Default)]
struct PolicyEditions {
    /// The edition, the UID, and the hash of the spec; no hash if the spec is not valid.
    of: BTreeMap<PolicyRef, (u64, String, Option<String>)>,
}

impl PolicyEditions {
    /// The edition of `policy`, which is now the one of that UID and hash.
    fn of(&mut self, policy: &PolicyRef, uid: &str, hash: Option<&str>) -> u64 {
        match self.of.get(policy) {
            Some((edition, known, spec)) if known == uid && spec.as_deref() == hash => *edition,
            _ => {
                // Of the process, because a panic of the watch begins anew, and an edition must not come back.
                static LAST: AtomicU64 = AtomicU64::new(0);
                let edition = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                self.of.insert(policy.clone(), (edition, uid.to_owned(), hash.map(str::to_owned)));
                edition
            }
        }
    }
}

/// Parses `object`. An unchanged spec keeps its old `Arc`.
fn parse(
    object: &Object,
    kept: Option<&Measured>,
    read: impl FnOnce(&Value) -> Result<Policy, Vec<Violation>>,
) -> Measured {
    let mut value = object.value();
    let generation = value["metadata"]["generation"].as_i64().unwrap_or_default();
    let uid = object.meta().uid.clone().unwrap_or_default();
    let size = size(&value);
    let fresh = read(&value).map(Arc::new).map_err(Arc::new);
    let parsed = match (fresh, kept.map(|kept| &kept.stored.parsed)) {
        (Ok(fresh), Some(Ok(old)))
            if old.meta.uid == fresh.meta.uid
                && old.meta.generation == fresh.meta.generation
                && old.spec_hash == fresh.spec_hash =>
        {
            Ok(old.clone())
        }
        (fresh, _) => fresh,
    };
    debug!(policy = object.name(), generation, valid = parsed.is_ok(), "Policy seen");
    let text = |key: &str| value["metadata"]["annotations"][key].as_str();
    let time = |key: &str| text(key).and_then(|text| text.parse().ok());
    let (resumed, restarted): (Option<Timestamp>, Option<Timestamp>) = (time(RESUMED_AT_KEY), time(RESTARTED_AT_KEY));
    let times = [(RESUMED_AT_KEY, resumed), (RESTARTED_AT_KEY, restarted)];
    let is_odd = |(key, time): &(&'static str, Option<Timestamp>)| text(key).is_some() && time.is_none();
    let odd_times = times.into_iter().filter(is_odd).map(|(key, _)| key).collect();
    let created = value["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
    let status = Arc::new(value["status"].take());
    let stored = StoredPolicy { uid, generation, edition: 0, status, resumed, restarted, odd_times, parsed };
    Measured { stored, created, size }
}

/// The size of the spec in `value`, in bytes of JSON.
fn size(value: &Value) -> usize {
    value["spec"].to_string().len()
}

/// The revision in `object`, if its content is what its name says; none if it says that it is of no policy. A panic costs only this
/// revision.
fn revision(metrics: &Metrics, object: &Object) -> Option<Result<StoredRevision, Foreign>> {
    let parsed =
        survival::attempt(metrics, "reading a revision", || StoredRevision::parse(&object.value())).flatten()?;
    if let Err(foreign) = &parsed {
        warn!(code = %Foreign::CODE, policy = foreign.policy, name = foreign.name, why = foreign.why, "A stored revision is ignored");
    }
    Some(parsed)
}

/// The result of `read`. A panic costs only this policy: the policy is rejected, with the reason.
fn guarded(metrics: &Metrics, read: impl FnOnce() -> Result<Policy, Vec<Violation>>) -> Result<Policy, Vec<Violation>> {
    survival::attempt(metrics, "reading a policy", read).unwrap_or_else(|| {
        let message = "the operator panicked when it read this policy, which is a defect of the operator's";
        Err(vec![Violation { field: "spec".to_owned(), code: Code::Panicked, message: message.to_owned() }])
    })
}

impl WatchedPolicies {
    fn new(limits: &PolicyLimits, site: &Arc<Site>) -> Self {
        Self {
            stored: WatchCache::default(),
            revisions: WatchCache::default(),
            refusals: WatchRefusals::default(),
            refused: None,
            published: BTreeMap::new(),
            splits: Splits::new(limits.are_rollouts_on, site),
            recognition: Recognition::default(),
            capacity: Capacity::new(limits.max_policies),
            editions: PolicyEditions::default(),
        }
    }

    /// Applies `event` of the policies. A list is not parsed beyond what there may be room for. Returns whether that is a change.
    fn apply(
        &mut self,
        event: &watcher::Event<Object>,
        read: impl Fn(&Value) -> Result<Policy, Vec<Violation>>,
    ) -> bool {
        if matches!(event, watcher::Event::Init) {
            self.capacity.begin();
        }
        let is_listed = matches!(event, watcher::Event::InitApply(_));
        let capacity = &mut self.capacity;
        self.stored.apply(event, |object, kept| {
            parse(object, kept, |value| {
                if is_listed && !capacity.takes(size(value)) { Err(capacity.refusal().to_vec()) } else { read(value) }
            })
        });
        is_change(event)
    }

    /// Applies `event` of the revisions. Returns whether that is a change.
    fn apply_revision(&mut self, event: &watcher::Event<Object>, metrics: &Metrics) -> bool {
        self.revisions.apply(event, |object, _| revision(metrics, object));
        self.refused = None;
        is_change(event)
    }

    /// Drops the policies for which there is no room, and reads those that got room. Returns whether all of them could be
    /// read.
    async fn make_room(
        &mut self,
        policies: &Api<Object>,
        read: impl Fn(&Value) -> Result<Policy, Vec<Violation>>,
    ) -> bool {
        if !self.stored.is_complete() {
            return true;
        }
        let without = self.capacity.without(self.stored.known());
        let refusal = self.capacity.refusal();
        for name in &without {
            self.stored.change(name, |policy| policy.stored.parsed = Err(refusal.clone()));
        }
        let has_room = |name: &String| !without.contains(name);
        let unread = self.stored.known().iter().filter(|(name, policy)| policy.is_unread() && has_room(name));
        for name in unread.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            // A list, because the operator has the right to list policies, and not to get one.
            let by_name = ListParams::default().fields(&format!("metadata.name={name}"));
            match call(policies.list(&by_name)).await {
                Ok(found) => {
                    for object in found {
                        let event = watcher::Event::Apply(object);
                        self.stored.apply(&event, |object, kept| parse(object, kept, &read));
                    }
                }
                Err(error) => {
                    warn!(%error, policy = name, "Cannot read a policy that has room now; trying again");
                    return false;
                }
            }
        }
        true
    }

    /// Records that revisions could not be read. Returns whether that changes what is published.
    fn note_refused(&mut self, error: &watcher::Error, timing: &timing::Watch) -> bool {
        let now = Instant::now();
        if !is_refused(error) {
            warn!(error = why(error), "Cannot follow the revisions of policies; trying again");
            self.refusals.note_failure(now);
            return false;
        }
        let is_news = self.refusals.note(now, timing.refused) && self.refused.is_none();
        if is_news {
            warn!(error = why(error), "Cannot keep revisions; without them nothing is rolled out");
            self.refused = Some(why(error));
        }
        is_news
    }

    /// Whether the revisions decide what new workloads get of any policy.
    fn needs_revisions(&self) -> bool {
        self.stored
            .known()
            .values()
            .any(|policy| policy.stored.parsed.as_ref().is_ok_and(|policy| self.splits.decide(policy)))
    }

    /// What is known of revisions.
    fn revisions(&self) -> Revisions {
        let knowledge = match &self.refused {
            Some(why) => Knowledge::Refused(why.clone()),
            None if self.revisions.is_complete() => Knowledge::Read,
            None => Knowledge::Unread,
        };
        let owner = |revision: &StoredRevision| self.stored.known().get(&revision.policy);
        let is_owned =
            |revision: &StoredRevision| owner(revision).is_some_and(|policy| revision.is_of(&policy.stored.uid));
        Revisions::of(knowledge, self.revisions.known().values().flatten().cloned(), is_owned)
    }

    /// Publishes a snapshot. A policy of which revisions decide stays as it was published until they are known, and the first
    /// snapshot waits for them.
    fn publish(&mut self, snapshots: &watch::Sender<Snapshot>, metrics: &Metrics) {
        let revisions = self.revisions();
        let are_known = revisions.knowledge != Knowledge::Unread;
        let is_first = !snapshots.borrow().synced;
        if !self.stored.is_complete() || is_first && !are_known && self.needs_revisions() {
            return;
        }
        self.recognition.retain(|name| self.stored.known().contains_key(name));
        let (splits, recognition, published) = (&mut self.splits, &mut self.recognition, &self.published);
        let stored = self.stored.known().iter().map(|(name, Measured { stored, .. })| {
            let of = PolicyRef::of_cluster(name);
            let split = |policy: Arc<Policy>| {
                let kept = published
                    .get(&of)
                    .filter(|kept| kept.meta.uid == policy.meta.uid && !are_known && splits.decide(&policy));
                if let Some(kept) = kept {
                    return kept.clone();
                }
                let own = revisions.of_policy(&of);
                let policy = recognition.of(&policy, own);
                let split = || splits.of(&policy, own);
                survival::attempt(metrics, "splitting a policy", split).unwrap_or(policy)
            };
            let parsed = stored.parsed.clone().map(split);
            (
                of,
                StoredPolicy {
                    generation: parsed.as_ref().map_or(stored.generation, |policy| policy.meta.generation),
                    parsed,
                    ..stored.clone()
                },
            )
        });
        let mut stored: BTreeMap<PolicyRef, StoredPolicy> = stored.collect();
        self.editions.of.retain(|name, _| stored.contains_key(name));
        for (of, stored) in &mut stored {
            let hash = stored.parsed.as_ref().ok().map(|policy| policy.spec_hash.as_str());
            stored.edition = self.editions.of(of, &stored.uid, hash);
        }
        let valid = stored.values().filter_map(|policy| policy.parsed.as_ref().ok().cloned());
        self.published = valid.clone().map(|policy| (policy.reference(), policy)).collect();
        let (before, is_any_gone) = {
            let before = snapshots.borrow();
            (before.policies.clone(), before.stored.keys().any(|name| !stored.contains_key(name)))
        };
        if is_any_gone {
            metrics.retain_policies(|name| stored.contains_key(&PolicyRef::of_cluster(name)));
        }
        let fresh = Snapshot {
            policies: Arc::new(Policies::after(&before, valid)),
            stored: Arc::new(stored),
            revisions: Arc::new(revisions),
            synced: true,
        };
        snapshots.send_if_modified(|known| {
            let is_news = !known.has_policies_of(&fresh);
            *known = fresh;
            is_news
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annotation_that_is_no_time_is_named_and_one_at_the_end_of_time_is_read() {
        let told = |resumed: &str, restarted: &str| {
            let annotations = serde_json::json!({ RESUMED_AT_KEY: resumed, RESTARTED_AT_KEY: restarted });
            let object = serde_json::json!({ "metadata": { "name": "p", "annotations": annotations } });
            let stored = parse(&serde_json::from_value(object).unwrap(), None, |_| Err(Vec::new())).stored;
            (stored.resumed.is_some(), stored.restarted.is_some(), stored.odd_times)
        };
        let fine = "2026-01-01T00:00:00Z";
        assert_eq!(told(fine, "9999-01-01T00:00:00Z"), (true, true, vec![]));
        // The last day that jiff has is the one before.
        assert_eq!(told(fine, "9999-12-31T23:59:59Z"), (true, false, vec![RESTARTED_AT_KEY]));
        assert_eq!(told("now", ""), (false, false, vec![RESUMED_AT_KEY, RESTARTED_AT_KEY]));
    }

    #[test]
    fn an_edition_never_comes_back() {
        let (mut editions, of) = (PolicyEditions::default(), PolicyRef::of_cluster);
        let mut told = Vec::new();
        for (uid, hash) in [
            ("u", Some("a")),
            ("u", Some("a")),
            ("u", Some("b")),
            ("u", Some("a")),
            ("v", Some("a")),
            ("v", None),
            ("v", Some("a")),
        ] {
            told.push(editions.of(&of("p"), uid, hash));
        }
        assert_eq!(told[0], told[1]);
        assert!(told[1..].is_sorted_by(|one, next| one < next), "{told:?}");
        let (other, last) = (editions.of(&of("q"), "w", None), *told.last().unwrap());
        assert!(other > last && editions.of(&of("p"), "v", Some("a")) == last);
        editions.of.clear();
        assert!(editions.of(&of("p"), "v", Some("a")) > other, "it was deleted in between");
    }

    #[test]
    fn a_policy_whose_reading_panics_is_refused_and_says_why() {
        let object: Object = serde_json::from_str(r#"{"metadata":{"name":"odd","uid":"u","generation":3}}"#).unwrap();
        let metrics = Metrics::default();
        let Measured { stored, .. } = parse(&object, None, |_| guarded(&metrics, || panic!("of a test")));
        let violations = stored.parsed.unwrap_err();
        assert_eq!((stored.generation, violations[0].code), (3, Code::Panicked));
        assert_eq!(metrics.process.panics.get(), 1);
    }
}
