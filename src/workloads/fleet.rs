//! The workloads that policies with `updateStrategy: RollingUpdate` match, as the leader last saw them. Pure.
//!
//! Nothing is kept for other policies. A member takes some 300 bytes.

use super::starts;
use crate::cluster::object::Object;
use crate::inject::marker;
use crate::policy::extent::Place;
use crate::policy::{Policy, Site};
use crate::refit::{self, Carries, MAKERS};
use crate::rollout::{Health, Member, Members, Owners};
use crate::workload::{Kind, ObjectRef, Workload};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Whether a rollout may concern `workload`. Jobs and their pods end by themselves: they are neither touched nor waited for. What is being
/// deleted is as good as gone: its controller lacks it.
pub fn takes_part(workload: &Workload) -> bool {
    let is_deleted = !workload.body["metadata"]["deletionTimestamp"].is_null();
    let is_over = is_deleted || matches!(workload.body["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    !workload.kind.is_job() && !(workload.kind.is_pod() && (is_over || workload.ends()))
}

/// The stored `object`, parsed as `workload`, as a member for `policy`, which matches it.
pub fn member(workload: &Workload, object: &Object, policy: &Arc<Policy>, site: &Site) -> Member {
    let own = policy.at(workload);
    let carries = refit::carries(workload, own, site);
    let member = seen(workload, object, &policy.name, own.shared_revision(), carries);
    Member { place: Place::of(workload, policy), ..member }
}

/// The stored `object`, parsed as `workload`, as a member for `policy`, for which steps do not count. It `carries` that, compared with the
/// `revision` of that hash.
pub fn seen(workload: &Workload, object: &Object, policy: &str, revision: Arc<str>, carries: Carries) -> Member {
    let is_pod = workload.kind.is_pod();
    let names = if is_pod { containers(workload, policy) } else { Vec::new() };
    Member {
        begun: refit::begun(workload),
        uid: Arc::from(workload.uid()),
        version: object.version(),
        revision,
        carries,
        health: if is_pod { pod_health(workload, &names) } else { health(workload) },
        created: object.created(),
        owner: if is_pod { controller(workload) } else { None },
        restarts: restarts(workload, &names),
        place: Place::default(),
    }
}

/// What workloads are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Basis {
    /// The edition of the policy.
    pub policy: u64,
    /// That of the Namespaces, if the policy reads them.
    pub namespaces: Option<u64>,
}

/// The basis of each policy, by name.
pub type Bases = BTreeMap<String, Basis>;

/// The members of each policy.
#[derive(Default)]
pub struct Fleet {
    members: HashMap<Arc<str>, Members>,
    /// By policy: the pods in its namespaces that it does not match, though another one of their controller may be a member. Each
    /// with that controller.
    beside: HashMap<Arc<str>, HashMap<ObjectRef, Arc<str>>>,
    /// Whether a member has changed since [`Self::take_changed`].
    has_changed: bool,
    /// By policy and kind: with what all workloads have been compared.
    counted: HashMap<String, HashMap<Arc<Kind>, Basis>>,
}

impl Fleet {
    /// Records that `policy` matches `object`; none if it does not, or no longer.
    pub fn see(&mut self, policy: &str, object: &ObjectRef, member: Option<Member>) {
        let Some(member) = member else {
            self.has_changed |= self.members.get_mut(policy).is_some_and(|members| members.remove(object).is_some());
            return;
        };
        let members = match self.members.get_mut(policy) {
            Some(members) => members,
            None => self.members.entry(Arc::from(policy)).or_default(),
        };
        // A list may be older than the last event.
        let is_old = |known: &Member| known.uid == member.uid && known.version > member.version;
        if !members.get(object).is_some_and(|known| is_old(known) || *known == member) {
            members.insert(object.clone(), member);
            self.has_changed = true;
        }
    }

    /// Records that the pod `object` is no member of `policy`, and has that controller; none if it is one, or has none.
    pub fn see_beside(&mut self, policy: &str, object: &ObjectRef, controller: Option<Arc<str>>) {
        match (self.beside.get_mut(policy), controller) {
            (Some(beside), Some(controller)) => drop(beside.insert(object.clone(), controller)),
            (Some(beside), None) => drop(beside.remove(object)),
            (None, Some(controller)) => {
                self.beside.insert(Arc::from(policy), HashMap::from([(object.clone(), controller)]));
            }
            (None, None) => {}
        }
    }

    /// How many pods each of `owners` has that are no members of `policy`. A user can write any controller into a pod: one of another
    /// namespace does not count.
    pub fn beside(&self, policy: &str, owners: &Owners) -> HashMap<Arc<str>, usize> {
        let mut counts = HashMap::new();
        for (object, controller) in self.beside.get(policy).into_iter().flatten() {
            if owners.get(controller).is_some_and(|owner| owner.namespace == object.namespace) {
                *counts.entry(controller.clone()).or_default() += 1;
            }
        }
        counts
    }

    /// Forgets a deleted workload.
    pub fn gone(&mut self, object: &ObjectRef) {
        self.beside.values_mut().for_each(|beside| drop(beside.remove(object)));
        for members in self.members.values_mut() {
            self.has_changed |= members.remove(object).is_some();
        }
    }

    /// Forgets the workloads of `kind` that do not `exist`.
    pub fn retain(&mut self, kind: &Kind, exists: impl Fn(&ObjectRef) -> bool) {
        let is_there = |object: &ObjectRef| *object.kind != *kind || exists(object);
        self.beside.values_mut().for_each(|beside| beside.retain(|object, _| is_there(object)));
        for members in self.members.values_mut() {
            let before = members.len();
            members.retain(|object, _| is_there(object));
            self.has_changed |= members.len() != before;
        }
    }

    /// Records that all workloads of `kind` have been compared with the policies whose basis was the same at the `begin` and is
    /// so `now`.
    pub fn counted(&mut self, kind: &Arc<Kind>, begin: &Bases, now: &Bases) {
        self.counted.retain(|policy, _| now.contains_key(policy));
        for (policy, basis) in begin.iter().filter(|(policy, basis)| now.get(*policy) == Some(basis)) {
            self.counted.entry(policy.clone()).or_default().insert(kind.clone(), *basis);
            self.has_changed = true;
        }
    }

    /// Forgets a kind that is not watched any more.
    pub fn forget(&mut self, kind: &Arc<Kind>) {
        self.retain(kind, |_| false);
        for counted in self.counted.values_mut() {
            counted.remove(kind);
        }
    }

    /// The members of `policy`; none while not all workloads of `kinds` have been compared with this `basis` of it.
    pub fn members<'a>(
        &self,
        policy: &str,
        basis: Basis,
        mut kinds: impl Iterator<Item = &'a Arc<Kind>>,
    ) -> Option<&Members> {
        let counted = self.counted.get(policy);
        let is_counted = |kind: &Arc<Kind>| counted.and_then(|counted| counted.get(kind)) == Some(&basis);
        kinds.all(is_counted).then(|| self.known(policy))
    }

    /// The members of `policy` that are known, whether or not that is all of them.
    pub fn known(&self, policy: &str) -> &Members {
        self.members.get(policy).unwrap_or(&NOBODY)
    }

    /// Forgets the policies that no longer roll, and the kinds that they no longer target.
    pub fn retain_policies(&mut self, rolls: impl Fn(&str, &Arc<Kind>) -> bool) {
        for (policy, members) in &mut self.members {
            members.retain(|object, _| rolls(policy, &object.kind));
        }
        for (policy, beside) in &mut self.beside {
            beside.retain(|object, _| rolls(policy, &object.kind));
        }
        self.members.retain(|_, members| !members.is_empty());
        self.beside.retain(|_, beside| !beside.is_empty());
    }

    /// Whether a member has changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }
}

static NOBODY: Members = Members::new();

/// The health of `workload`, in the words of its status.
fn health(workload: &Workload) -> Health {
    let (status, spec) = (&workload.body["status"], &workload.body["spec"]);
    let number = |value: &Value, field: &str| count(&value[field]).unwrap_or_default();
    let generation = workload.body["metadata"]["generation"].as_i64();
    let observed = status["observedGeneration"].as_i64();
    let replicas = count(&spec["replicas"]).unwrap_or(1);
    let has_observed = observed.is_none() || generation.is_none() || observed >= generation;
    let rolls_by_itself = spec["updateStrategy"]["type"] != "OnDelete";
    let is_rolled = match workload.kind.resource.as_str() {
        _ if !workload.kind.is_in_table() => {
            has_observed && condition(status, &["Ready", "Available"]).is_none_or(|found| found.0)
        }
        "deployments" => {
            let (updated, available) = (number(status, "updatedReplicas"), number(status, "availableReplicas"));
            observed >= generation
                && updated >= replicas
                && number(status, "replicas") <= updated
                && available >= updated
        }
        "statefulsets" => {
            let partition = count(&spec["updateStrategy"]["rollingUpdate"]["partition"]).unwrap_or_default();
            let updated = number(status, "updatedReplicas") >= replicas - partition;
            observed >= generation && number(status, "readyReplicas") >= replicas && (updated || !rolls_by_itself)
        }
        "daemonsets" => {
            let desired = number(status, "desiredNumberScheduled");
            let updated = number(status, "updatedNumberScheduled") >= desired;
            observed >= generation && number(status, "numberAvailable") >= desired && (updated || !rolls_by_itself)
        }
        // A CronJob makes its pods later.
        _ => true,
    };
    // A Deployment tells since when it is not available; the other kinds do not.
    let lacks = condition(status, &["Available"]).filter(|(is_available, _)| !is_available && !is_rolled);
    let since = lacks.and_then(|(_, since)| since);
    Health { is_ready: is_rolled, since, is_settled: true, grace: SignedDuration::ZERO }
}

/// The grace period of a pod that names none, in seconds (`core/v1/defaults.go`).
const GRACE: i64 = 30;
/// The longest grace period that counts, in seconds. The API has 64 bits for it, and a rollout waits for the end of a container only
/// as long as for a slow one.
const LONGEST_GRACE: i64 = 24 * 60 * 60;

/// A number of pods, which has 31 bits in the API. Whoever writes a status or a custom resource may write more.
fn count(value: &Value) -> Option<i64> {
    value.as_i64().map(|number| number.clamp(0, i64::from(i32::MAX)))
}

/// The names of the containers that the marker of `policy` lists.
fn containers(pod: &Workload, policy: &str) -> Vec<String> {
    let added = marker::read(pod, policy).map(|marker| marker.added).unwrap_or_default();
    added.iter().filter_map(|pointer| starts::container(pointer)).collect()
}

/// The health of `pod`. `names` are the containers of the policy.
fn pod_health(pod: &Workload, names: &[String]) -> Health {
    let (status, spec) = (&pod.body["status"], &pod.body["spec"]);
    let (is_ready, since) = condition(status, &["Ready"]).unwrap_or_default();
    // A kubelet of 1.34 or later says which generation it has seen.
    let (generation, observed) = (pod.body["metadata"]["generation"].as_i64(), status["observedGeneration"].as_i64());
    let has_seen = generation.zip(observed).is_none_or(|(generation, observed)| observed >= generation);
    let image = |of: &Value, list: &str, name: &str| {
        let found = of[list].as_array()?.iter().find(|item| item["name"] == name)?;
        found["image"].as_str().map(|image| short(image).to_owned())
    };
    let lists = [("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")];
    let runs_another = |name: &String| {
        lists.iter().any(|(wanted, there)| {
            let pair = image(spec, wanted, name).zip(image(status, there, name));
            pair.is_some_and(|(wanted, there)| wanted != there)
        })
    };
    let grace = spec["terminationGracePeriodSeconds"].as_i64().unwrap_or(GRACE).clamp(0, LONGEST_GRACE);
    let is_resizing = is_resizing(status);
    let is_settled = has_seen && !is_resizing && !names.iter().any(runs_another);
    // The time in which an image is called by another name says nothing of a resize.
    let grace = if is_resizing { LONGEST_GRACE } else { grace };
    Health { is_ready, since, is_settled, grace: SignedDuration::from_secs(grace) }
}

/// Whether the kubelet has not done a resize yet, or cannot do it: it is Deferred, Infeasible or in progress. Servers of 1.33 and later
/// have conditions for that; those of 1.27 to 1.32 had the field `resize`.
fn is_resizing(status: &Value) -> bool {
    let of_old = status["resize"].as_str().is_some_and(|resize| !resize.is_empty());
    let pending = ["PodResizePending", "PodResizeInProgress"];
    of_old || pending.iter().any(|name| condition(status, &[name]).is_some_and(|(is_true, _)| is_true))
}

/// The name of an image without the registry and the folder that runtimes add.
fn short(image: &str) -> &str {
    let image = image.strip_prefix("docker.io/").unwrap_or(image);
    image.strip_prefix("library/").unwrap_or(image)
}

/// Whether the first of the conditions `types` that is there is true, and since when.
fn condition(status: &Value, types: &[&str]) -> Option<(bool, Option<Timestamp>)> {
    let conditions = status["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| types.iter().any(|name| condition["type"] == *name))?;
    let since = found["lastTransitionTime"].as_str().and_then(|since| since.parse().ok());
    Some((found["status"] == "True", since))
}

/// The restarts of each of the containers `names` of `pod`.
fn restarts(pod: &Workload, names: &[String]) -> Vec<(Arc<str>, u32)> {
    let statuses = ["initContainerStatuses", "containerStatuses"]
        .into_iter()
        .filter_map(|list| pod.body["status"][list].as_array());
    let restarts = statuses.flatten().filter_map(|status| {
        let name = names.iter().find(|name| status["name"] == name.as_str())?;
        Some((Arc::from(name.as_str()), u32::try_from(count(&status["restartCount"])?).ok()?))
    });
    restarts.collect()
}

/// The UID of the controller of `pod`, if it is of a kind that makes pods again.
pub(super) fn controller(pod: &Workload) -> Option<Arc<str>> {
    let owner = pod.controller()?;
    let version = owner["apiVersion"].as_str();
    let group = version.map(|version| version.split_once('/').map_or("", |(group, _)| group));
    let is_maker = |maker: &(&str, &str, &str)| owner["kind"] == maker.1 && group.is_none_or(|group| group == maker.0);
    MAKERS.iter().any(is_maker).then(|| owner["uid"].as_str().map(Arc::from)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn workload(group: &str, resource: &str, body: Value) -> Workload {
        Workload::new(Kind::find(group, resource).unwrap(), body)
    }

    #[test]
    fn a_change_is_a_member_that_is_not_as_it_was() {
        let object = |name: &str| ObjectRef {
            kind: Kind::find("", "pods").unwrap().clone(),
            namespace: "shop".into(),
            name: name.into(),
        };
        let member = |version| Member {
            uid: "u".into(),
            version,
            revision: "new".into(),
            carries: crate::refit::Carries::This,
            health: Health { is_ready: true, since: None, is_settled: true, grace: SignedDuration::ZERO },
            created: None,
            owner: None,
            begun: None,
            restarts: Vec::new(),
            place: Place::default(),
        };
        let (pods, mut fleet) = (Kind::find("", "pods").unwrap(), Fleet::default());
        let mut changes = |change: &dyn Fn(&mut Fleet)| {
            change(&mut fleet);
            fleet.take_changed()
        };
        assert!(changes(&|fleet| fleet.see("envoy", &object("a"), Some(member(2)))));
        assert!(!changes(&|fleet| fleet.see("envoy", &object("a"), Some(member(2)))), "it is listed again");
        assert!(!changes(&|fleet| fleet.see("envoy", &object("a"), Some(member(1)))), "by an older list");
        assert!(changes(&|fleet| fleet.see("envoy", &object("a"), Some(member(3)))));
        assert!(!changes(&|fleet| fleet.see("envoy", &object("b"), None)), "it was none");
        assert!(!changes(&|fleet| fleet.gone(&object("b"))));
        assert!(!changes(&|fleet| fleet.retain(pods, |_| true)));
        assert!(changes(&|fleet| fleet.see("envoy", &object("a"), None)));
        for end in [&|fleet: &mut Fleet| fleet.gone(&object("a")), &|fleet: &mut Fleet| fleet.retain(pods, |_| false)]
            as [&dyn Fn(&mut Fleet); 2]
        {
            assert!(changes(&|fleet| fleet.see("envoy", &object("a"), Some(member(4)))));
            assert!(changes(end));
        }
    }

    #[test]
    fn only_pods_of_its_namespace_are_beside_the_members_of_an_owner() {
        let owner = crate::rollout::Owner {
            kind: "ReplicaSet",
            namespace: "shop".into(),
            name: "web".into(),
            desired: 2,
            astray: 0,
            created: None,
            fails_since: None,
            policies: ["p".into()].into(),
            carried: [].into(),
        };
        let (mut fleet, owners) = (Fleet::default(), Owners::from([("u".into(), owner)]));
        for (namespace, controller) in [("shop", "u"), ("other", "u"), ("shop", "v")] {
            let pod = ObjectRef::new(Kind::find("", "pods").unwrap(), (namespace, &format!("pod-{controller}")));
            fleet.see_beside("p", &pod, Some(controller.into()));
        }
        assert_eq!(fleet.beside("p", &owners), HashMap::from([("u".into(), 1)]));
    }

    #[test]
    fn members_are_known_once_every_kind_has_been_compared_with_this_edition() {
        let kinds =
            [("apps", "deployments"), ("", "pods")].map(|(group, resource)| Kind::find(group, resource).unwrap());
        let [deployments, pods] = kinds;
        let basis = |policy, namespaces| Basis { policy, namespaces };
        let bases = |basis| Bases::from([("p".to_owned(), basis)]);
        let mut fleet = Fleet::default();
        let known = |fleet: &Fleet, basis| fleet.members("p", basis, kinds.into_iter()).is_some();
        let (one, two, labelled) = (basis(1, None), basis(2, None), basis(2, Some(1)));
        assert!(!known(&fleet, one), "nothing has been listed");
        fleet.counted(deployments, &bases(one), &bases(one));
        assert!(!known(&fleet, one), "pods have not been listed");
        fleet.counted(pods, &bases(one), &bases(one));
        assert!(known(&fleet, one));
        assert!(!known(&fleet, two), "the policy was edited");
        fleet.counted(deployments, &bases(one), &bases(two));
        fleet.counted(pods, &bases(two), &bases(two));
        assert!(!known(&fleet, two), "it was edited during the list");
        fleet.counted(deployments, &bases(two), &bases(two));
        assert!(known(&fleet, two));
        assert!(!known(&fleet, one) && !known(&fleet, labelled), "another edition");
        fleet.forget(pods);
        assert!(!known(&fleet, two), "pods are not watched any more");
        fleet.counted(pods, &bases(two), &bases(two));
        assert!(known(&fleet, two));
        fleet.counted(pods, &Bases::new(), &Bases::new());
        assert!(!known(&fleet, two), "the policy was deleted");
    }

    #[test]
    fn only_a_controller_that_makes_pods_again_is_the_owner_of_a_pod() {
        for (version, kind, is_controller, is_owner) in [
            ("apps/v1", "ReplicaSet", true, true),
            ("v1", "ReplicationController", true, true),
            ("apps/v1", "ReplicaSet", false, false),
            ("other.io/v1", "StatefulSet", true, false),
            ("batch/v1", "Job", true, false),
            ("v1", "Node", true, false),
        ] {
            let owner = json!({ "apiVersion": version, "kind": kind, "uid": "u", "controller": is_controller });
            let pod = workload("", "pods", json!({ "metadata": { "ownerReferences": [owner] } }));
            assert_eq!(controller(&pod).is_some(), is_owner, "{version} {kind}");
        }
    }

    #[test]
    fn a_grace_period_is_bounded() {
        for (written, seconds) in [
            (json!(null), GRACE),
            (json!("x"), GRACE),
            (json!(u64::MAX), GRACE),
            (json!(-1), 0),
            (json!(i64::MIN), 0),
            (json!(60), 60),
            (json!(i64::MAX), LONGEST_GRACE),
        ] {
            let pod = workload("", "pods", json!({ "spec": { "terminationGracePeriodSeconds": written } }));
            assert_eq!(pod_health(&pod, &[]).grace, SignedDuration::from_secs(seconds), "{written}");
        }
    }

    #[test]
    fn a_pod_whose_resize_is_not_done_is_not_settled() {
        for (status, is_settled) in [
            (json!({}), true),
            (json!({ "resize": "" }), true),
            (json!({ "resize": "Infeasible" }), false),
            (json!({ "conditions": [{ "type": "PodResizePending", "status": "True", "reason": "Deferred" }] }), false),
            (
                json!({ "conditions": [{ "type": "Ready", "status": "True" }, { "type": "PodResizeInProgress", "status": "True" }] }),
                false,
            ),
            (json!({ "conditions": [{ "type": "PodResizePending", "status": "False" }] }), true),
        ] {
            let pod = workload("", "pods", json!({ "status": status }));
            assert_eq!(pod_health(&pod, &[]).is_settled, is_settled, "{status}");
        }
    }

    #[test]
    fn no_number_of_a_status_or_spec_overflows() {
        let extremes =
            [json!(i64::MIN), json!(-1), json!(0), json!(i64::MAX), json!(u64::MAX), json!(1e300), json!("x")];
        for one in &extremes {
            for other in &extremes {
                let statuses = json!([{ "name": "x", "restartCount": one }, { "name": "x", "restartCount": other }]);
                let body = json!({
                    "metadata": { "generation": one },
                    "spec": { "replicas": one, "updateStrategy": { "rollingUpdate": { "partition": other } } },
                    "status": {
                        "observedGeneration": other, "replicas": one, "updatedReplicas": other, "readyReplicas": one,
                        "availableReplicas": other, "desiredNumberScheduled": one, "numberAvailable": other,
                        "initContainerStatuses": statuses, "containerStatuses": statuses,
                    },
                });
                for resource in ["deployments", "statefulsets", "daemonsets", "cronjobs"] {
                    let group = if resource == "cronjobs" { "batch" } else { "apps" };
                    health(&workload(group, resource, body.clone()));
                }
                restarts(&workload("", "pods", body), &["x".to_owned()]);
            }
        }
    }
}
