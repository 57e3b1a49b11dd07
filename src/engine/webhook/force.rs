//! Which policies are in effect by webhook: those that a registration lists, with the spec that it lists.
//!
//! The leader writes registrations, every replica answers. A registration is the one place that both look at: so a policy
//! takes effect on all replicas when the leader has tried and registered it, an edited one is answered as before until then,
//! and none of it needs a leader that lives.

use super::server::{Registered, Revisions, Webhook};
use crate::capabilities::registration as resources;
use crate::cluster::answer::is_refused;
use crate::cluster::policies::Snapshot;
use crate::cluster::watch::cache::WatchCache;
use crate::cluster::watch::shared::{ResourceEvent, Whose};
use crate::compile::webhook::{POLICIES, revision_of};
use crate::operator::Operator;
use crate::policy::{Policies, Policy, PolicyRef};
use futures::StreamExt;
use kube::runtime::watcher::Event;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is registered and what is stored, and so what is in effect.
#[derive(Default)]
struct Force {
    registered: BTreeMap<&'static str, WatchCache<Listed>>,
    /// What we may not read, since when.
    refused: BTreeMap<&'static str, Instant>,
    /// Policies that are in effect, by name and hash of the spec: an edited one is needed for some moments more.
    kept: BTreeMap<(String, String), Arc<Policy>>,
}

/// What a registration says.
struct Listed {
    /// The policies by name, each with the hash of its spec.
    policies: BTreeMap<String, String>,
    revision: Option<String>,
}

/// Follows registrations and policies, and has `webhook` answer by what is in effect, for ever. [`Webhook::is_read`] becomes
/// true once all of them have been read.
pub async fn follow(operator: &Operator, webhook: &Webhook) {
    let (capabilities, timing) = (operator.capabilities(), &operator.timing.watch);
    let mut snapshots = operator.snapshots();
    let followed = [resources::MUTATING_WEBHOOKS, resources::VALIDATING_WEBHOOKS];
    let served = followed.iter().filter_map(|name| Some((*name, capabilities.registration(name)?, Whose::Ours)));
    let served: Vec<_> = served.collect();
    let followed: Vec<_> = served.iter().map(|(name, ..)| *name).collect();
    let mut events = operator.watches.listen(served);
    let mut force = Force::default();
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        if snapshot.synced && followed.iter().all(|resource| force.has_read(resource, timing.refused)) {
            let (policies, revisions) = force.now(&snapshot);
            webhook.policies.store(Arc::new(policies));
            webhook.register(revisions);
            webhook.is_read.send_if_modified(|is_read| !std::mem::replace(is_read, true));
        }
        tokio::select! {
            Some(event) = events.next() => force.changed(event),
            Ok(()) = snapshots.changed() => {}
            else => return,
        }
    }
}

impl Force {
    fn changed(&mut self, (resource, event): ResourceEvent) {
        match event {
            Ok(event) => {
                // Only an answer ends a refusal: each new try begins with an event, too.
                if matches!(event, Event::InitDone) {
                    self.refused.remove(resource);
                }
                let mirror = self.registered.entry(resource).or_default();
                mirror.apply(&event, |object, _| listed(&object.value()));
            }
            Err(error) => {
                if is_refused(&error) {
                    self.refused.entry(resource).or_insert_with(Instant::now);
                }
            }
        }
    }

    /// True once `resource` has been read as a whole, or has been refused for so long that it cannot be: a right is missing, so that
    /// this engine is not in use.
    fn has_read(&self, resource: &str, refused_for: Duration) -> bool {
        let is_unreadable = self.refused.get(resource).is_some_and(|since| since.elapsed() >= refused_for);
        is_unreadable || self.registered.get(resource).is_some_and(WatchCache::is_complete)
    }

    fn listed(&self) -> impl Iterator<Item = &Listed> {
        self.registered.values().flat_map(|mirror| mirror.known().values())
    }

    /// The policies that are in effect, and what is registered.
    fn now(&mut self, snapshot: &Snapshot) -> (Policies, Revisions) {
        let wanted: BTreeSet<(&String, &String)> = self.listed().flat_map(|listed| &listed.policies).collect();
        let mut kept = BTreeMap::new();
        for (name, hash) in wanted {
            let key = (name.clone(), hash.clone());
            let before = self.kept.get(&key).cloned();
            let policy = match snapshot.stored.get(&PolicyRef::of_cluster(name)).map(|stored| &stored.parsed) {
                Some(Ok(policy)) if policy.spec_hash == *hash => Some(policy.clone()),
                // What is switched off is off at once, unless the server may refuse what lacks it until that is taken away.
                None => before.filter(|policy| policy.refuses()),
                Some(Ok(policy)) if !policy.is_enforced() => before.filter(|policy| policy.refuses()),
                Some(_) => before,
            };
            kept.extend(policy.map(|policy| (key, policy)));
        }
        self.kept = kept;
        // Of one name the last counts. What is stored now counts more than what was.
        let is_stored = |policy: &&Arc<Policy>| {
            let stored = snapshot.stored.get(&policy.reference()).and_then(|stored| stored.parsed.as_ref().ok());
            stored.is_some_and(|stored| stored.spec_hash == policy.spec_hash)
        };
        let (now, before): (Vec<_>, Vec<_>) = self.kept.values().partition(is_stored);
        let all: Vec<_> = before.into_iter().chain(now).collect();
        let registered = |listed: &Listed| {
            let own = listed.policies.iter().filter_map(|(name, hash)| self.kept.get(&(name.clone(), hash.clone())));
            let names = listed.policies.keys().cloned().collect();
            Registered { names, policies: Policies::new(all.iter().copied().chain(own).cloned()) }
        };
        let revisions =
            self.listed().filter_map(|listed| Some((listed.revision.clone()?, registered(listed)))).collect();
        (Policies::new(all.iter().copied().cloned()), revisions)
    }
}

fn listed(registration: &Value) -> Listed {
    let text = registration["metadata"]["annotations"][POLICIES].as_str();
    Listed {
        policies: text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default(),
        revision: revision_of(registration).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::object::Object;
    use crate::cluster::policies::StoredPolicy;
    use crate::policy::Site;
    use crate::timing::Timing;
    use kube::runtime::watcher;
    use serde_json::json;

    fn policy(name: &str, image: &str, suspend: bool) -> Arc<Policy> {
        let object = json!({
            "metadata": { "name": name, "uid": name },
            "spec": { "suspend": suspend, "template": { "containers": [{ "name": "x", "image": image }] } },
        });
        Arc::new(Policy::parse(&object, &Site::new("scpol-system", [], [])).unwrap())
    }

    fn refusing(policy: &Policy) -> Arc<Policy> {
        let mut policy = policy.clone();
        Arc::make_mut(&mut policy.spec).failure_policy = crate::api::v1alpha1::FailurePolicy::Fail;
        Arc::new(policy)
    }

    fn snapshot(policies: &[&Arc<Policy>]) -> Snapshot {
        let stored = policies.iter().map(|policy| {
            let parsed = Ok((*policy).clone());
            (
                policy.reference(),
                StoredPolicy {
                    uid: policy.meta.uid.clone(),
                    generation: 1,
                    edition: 0,
                    status: Arc::default(),
                    resumed: None,
                    restarted: None,
                    odd_times: Vec::new(),
                    parsed,
                },
            )
        });
        Snapshot {
            stored: Arc::new(stored.collect()),
            policies: Arc::default(),
            revisions: Arc::default(),
            synced: true,
        }
    }

    fn registration(policies: &[&Arc<Policy>]) -> Object {
        registration_of("pods", "0123456789abcdef", policies)
    }

    fn registration_of(resource: &str, revision: &str, policies: &[&Arc<Policy>]) -> Object {
        let listed: BTreeMap<_, _> = policies.iter().map(|policy| (&policy.name, &policy.spec_hash)).collect();
        let annotations = json!({ POLICIES: serde_json::to_string(&listed).unwrap() });
        let object = json!({
            "metadata": { "name": format!("scpol-{resource}"), "annotations": annotations },
            "webhooks": [{ "clientConfig": { "url": format!("https://x/mutate/{revision}") } }],
        });
        serde_json::from_value(object).unwrap()
    }

    fn hashes(force: &mut Force, policies: &[&Arc<Policy>]) -> Vec<String> {
        force.now(&snapshot(policies)).0.iter().map(|policy| policy.spec_hash.clone()).collect()
    }

    #[test]
    fn what_is_registered_is_in_force_as_it_was_registered() {
        let (old, new) = (policy("a", "x:1", false), policy("a", "x:2", false));
        let mut force = Force::default();
        let registered = |force: &mut Force, policies: &[&Arc<Policy>]| {
            force.changed((resources::MUTATING_WEBHOOKS, Ok(watcher::Event::Apply(registration(policies)))));
        };
        assert!(hashes(&mut force, &[&old]).is_empty(), "nothing is registered");
        registered(&mut force, &[&old]);
        assert_eq!(hashes(&mut force, &[&old]), [&*old.spec_hash]);
        let revisions = force.now(&snapshot(&[&old])).1;
        assert_eq!(revisions["0123456789abcdef"].names, BTreeSet::from(["a".to_owned()]));
        assert_eq!(hashes(&mut force, &[&new]), [&*old.spec_hash], "the edit has not been tried");
        registered(&mut force, &[&new]);
        assert_eq!(hashes(&mut force, &[&new]), [&*new.spec_hash]);
        assert!(hashes(&mut force, &[&policy("a", "x:2", true)]).is_empty(), "suspended, and off at once");
        assert!(hashes(&mut force, &[]).is_empty(), "deleted");
        let demanding = refusing(&policy("b", "x:1", false));
        registered(&mut force, &[&demanding]);
        assert_eq!(hashes(&mut force, &[&demanding]), [&*demanding.spec_hash]);
        assert_eq!(hashes(&mut force, &[]), [&*demanding.spec_hash], "deleted, and the server refuses what lacks it");
        registered(&mut force, &[]);
        assert!(hashes(&mut force, &[]).is_empty(), "nothing refuses any more");
        force.changed((resources::MUTATING_WEBHOOKS, Ok(watcher::Event::Delete(registration(&[])))));
        assert!(hashes(&mut force, &[&new]).is_empty());
    }

    #[test]
    fn a_call_is_answered_by_the_spec_that_its_own_registration_lists() {
        let (old, new) = (policy("a", "x:1", false), policy("a", "x:2", false));
        for (old, new) in [(&old, &new), (&new, &old)] {
            let mut force = Force::default();
            let (leaving, coming) = ("0123456789abcdef", "fedcba9876543210");
            let register = |force: &mut Force, resource, revision, policy| {
                let registration = registration_of(resource, revision, &[policy]);
                force.changed((resources::MUTATING_WEBHOOKS, Ok(watcher::Event::Apply(registration))));
            };
            register(&mut force, "deployments.apps", leaving, old);
            assert_eq!(hashes(&mut force, &[old]), [&*old.spec_hash]);
            register(&mut force, "statefulsets.apps", coming, new);
            let (others, revisions) = force.now(&snapshot(&[new]));
            let answers = |policies: &Policies| policies.get(&PolicyRef::of_cluster("a")).unwrap().spec_hash.clone();
            assert_eq!(answers(&revisions[leaving].policies), old.spec_hash);
            assert_eq!(answers(&revisions[coming].policies), new.spec_hash);
            assert_eq!(answers(&others), new.spec_hash, "a registration that we have not seen yet");
        }
    }

    #[test]
    fn an_edit_that_came_while_nobody_looked_waits_for_the_leader() {
        let (old, new) = (policy("a", "x:1", false), policy("a", "x:2", false));
        let mut force = Force::default();
        force.changed((resources::MUTATING_WEBHOOKS, Ok(watcher::Event::Apply(registration(&[&old])))));
        assert!(hashes(&mut force, &[&new]).is_empty());
    }

    #[test]
    fn a_list_that_has_been_read_anew_replaces_what_was_known_of_its_kind_alone() {
        let a = policy("a", "x:1", false);
        let mut force = Force::default();
        force.changed((resources::VALIDATING_WEBHOOKS, Ok(watcher::Event::Apply(registration(&[&a])))));
        force.changed((resources::MUTATING_WEBHOOKS, Ok(watcher::Event::Apply(registration(&[&a])))));
        for resource in [resources::MUTATING_WEBHOOKS, resources::VALIDATING_WEBHOOKS] {
            assert_eq!(hashes(&mut force, &[&a]).len(), 1);
            force.changed((resource, Ok(watcher::Event::Init)));
            force.changed((resource, Ok(watcher::Event::InitDone)));
        }
        assert!(hashes(&mut force, &[&a]).is_empty());
    }

    #[test]
    fn what_is_refused_for_long_cannot_be_read_and_what_is_refused_for_a_moment_is_waited_for() {
        let (resource, refused) = (resources::MUTATING_WEBHOOKS, Timing::short().watch.refused);
        let mut force = Force::default();
        let try_in_vain = |force: &mut Force| {
            force.changed((resource, Ok(watcher::Event::Init)));
            let status = kube::core::Status::failure("webhooks is forbidden", "Forbidden").with_code(403);
            force.changed((
                resource,
                Err(Arc::new(watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status))))),
            ));
        };
        try_in_vain(&mut force);
        assert!(!force.has_read(resource, refused), "a server that has just started");
        for since in force.refused.values_mut() {
            *since -= refused;
        }
        try_in_vain(&mut force);
        assert!(force.has_read(resource, refused), "a right is missing");
        force.changed((resource, Ok(watcher::Event::Init)));
        force.changed((resource, Ok(watcher::Event::InitDone)));
        assert!(force.refused.is_empty() && force.has_read(resource, refused), "it has been granted");
    }
}
