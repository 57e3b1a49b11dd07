//! The workloads that policies with `updateStrategy: RollingUpdate` match, as the leader last saw them. Pure.
//!
//! Nothing is kept for other policies. A member takes some 300 bytes.

use super::starts;
use super::waiting::ObjectRef;
use crate::cluster::object::Object;
use crate::inject::marker;
use crate::policy::{Policy, Site};
use crate::update::{self, Carries};
use crate::workload::{Kind, Workload};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A workload that a policy matches.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    pub uid: Arc<str>,
    /// `resourceVersion`, which grows with each write.
    pub version: u64,
    /// The revision of the policy when the workload was looked at.
    pub revision: Arc<str>,
    /// What it carries, compared with that revision.
    pub carries: Carries,
    pub health: Health,
    pub created: Option<Timestamp>,
    /// The controller that makes the pod again; none for workloads that are no pods.
    pub owner: Option<Arc<str>>,
    /// The creation time of a pod, or the last `kubectl rollout restart` of a workload.
    pub begun: Option<Timestamp>,
    /// The restarts of the policy's containers, all together. Always 0 for workloads that are no pods.
    pub restarts: u32,
}

/// The annotation with which kubectl restarts workloads.
pub const RESTARTED: &str = "kubectl.kubernetes.io/restartedAt";

/// Whether `policy` brings stored workloads up to date.
pub fn rolls(policy: &Policy) -> bool {
    policy.is_enforced() && policy.injects() && policy.spec.rolls()
}

/// Whether a rollout may concern `workload`. Jobs and their pods end by themselves: they are neither touched nor waited for.
pub fn takes_part(workload: &Workload) -> bool {
    let is_over = matches!(workload.body["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    !workload.kind.is_job() && !(workload.kind.is_pod() && (is_over || workload.ends()))
}

impl Member {
    /// Whether nothing is left to do: it carries the revision, and began after the last restart of the policy, `restarted`.
    pub fn is_done(&self, restarted: Option<Timestamp>) -> bool {
        let is_begun = restarted.is_none_or(|restarted| self.begun.is_some_and(|begun| begun >= restarted));
        self.carries == Carries::This && is_begun
    }

    /// The stored `object`, parsed as `workload`, as a member for `policy`, which matches it.
    pub fn of(workload: &Workload, object: &Object, policy: &Policy, site: &Site) -> Self {
        let is_pod = workload.kind.is_pod();
        let names = if is_pod { containers(workload, &policy.name) } else { Vec::new() };
        let restarted = workload.pod_annotation(RESTARTED).filter(|_| !is_pod).and_then(|time| time.parse().ok());
        Self {
            begun: restarted.or(object.created()),
            uid: Arc::from(workload.uid()),
            version: object.version(),
            revision: policy.revision.clone().unwrap_or_default(),
            carries: update::carries(workload, policy, site),
            health: if is_pod { pod_health(workload, &names) } else { health(workload) },
            created: object.created(),
            owner: if is_pod { controller(workload) } else { None },
            restarts: restarts(workload, &names),
        }
    }
}

/// Whether a workload serves its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    pub is_ready: bool,
    /// Since when, if the server tells.
    pub since: Option<Timestamp>,
    /// Whether what runs is what the spec asks for, as far as the status tells. A kubelet first ends a container whose image has
    /// changed, which may take the whole grace period.
    pub is_settled: bool,
    /// That grace period.
    pub grace: SignedDuration,
}

/// The members of a policy, in a fixed order.
pub type Members = BTreeMap<ObjectRef, Member>;

/// The members of each policy.
#[derive(Default)]
pub struct Fleet {
    members: HashMap<Arc<str>, Members>,
}

impl Fleet {
    /// Records that `policy` matches `object`; none if it does not, or no longer.
    pub fn see(&mut self, policy: &str, object: &ObjectRef, member: Option<Member>) {
        let Some(member) = member else {
            self.members.get_mut(policy).map(|members| members.remove(object));
            return;
        };
        let members = match self.members.get_mut(policy) {
            Some(members) => members,
            None => self.members.entry(Arc::from(policy)).or_default(),
        };
        // A list may be older than the last event.
        let is_old = |known: &Member| known.uid == member.uid && known.version > member.version;
        if !members.get(object).is_some_and(is_old) {
            members.insert(object.clone(), member);
        }
    }

    /// Forgets a deleted workload.
    pub fn gone(&mut self, object: &ObjectRef) {
        for members in self.members.values_mut() {
            members.remove(object);
        }
    }

    /// Forgets the workloads of `kind` that do not `exist`.
    pub fn retain(&mut self, kind: &Kind, exists: impl Fn(&ObjectRef) -> bool) {
        for members in self.members.values_mut() {
            members.retain(|object, _| *object.kind != *kind || exists(object));
        }
    }

    /// Forgets the policies that no longer roll.
    pub fn retain_policies(&mut self, rolls: impl Fn(&str) -> bool) {
        self.members.retain(|policy, _| rolls(policy));
    }

    /// The members of `policy`.
    pub fn of(&self, policy: &str) -> Option<&Members> {
        self.members.get(policy)
    }
}

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
    Health { is_ready: is_rolled, since: None, is_settled: true, grace: SignedDuration::ZERO }
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
    let is_settled = has_seen && !names.iter().any(runs_another);
    Health { is_ready, since, is_settled, grace: SignedDuration::from_secs(grace) }
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

/// The restarts of the containers `names` of `pod`.
fn restarts(pod: &Workload, names: &[String]) -> u32 {
    let statuses = ["initContainerStatuses", "containerStatuses"]
        .into_iter()
        .filter_map(|list| pod.body["status"][list].as_array());
    let own = statuses.flatten().filter(|status| names.iter().any(|name| status["name"] == name.as_str()));
    let counts = own.filter_map(|status| u32::try_from(count(&status["restartCount"])?).ok());
    counts.fold(0, u32::saturating_add)
}

/// The UID of the controller of `workload`.
fn controller(workload: &Workload) -> Option<Arc<str>> {
    workload.controller()?["uid"].as_str().map(Arc::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn workload(group: &str, resource: &str, body: Value) -> Workload {
        Workload::new(Kind::find(group, resource).unwrap(), body)
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
