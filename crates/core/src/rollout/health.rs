//! Whether a stored workload serves its users, and which containers of a policy restart in it, as its status says. Whoever writes a
//! status or a custom resource may write any number.

use crate::inject::marker;
use crate::workload::Workload;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::sync::Arc;

/// Whether a workload serves its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

impl Health {
    /// That of a workload in which what the spec asks for runs.
    pub fn settled(is_ready: bool, since: Option<Timestamp>) -> Self {
        Self { is_ready, since, is_settled: true, grace: SignedDuration::ZERO }
    }
}

/// The health of `workload`, in the words of its status.
pub(super) fn of(workload: &Workload) -> Health {
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
            // Nobody rolls a Deployment that `kubectl rollout pause` has paused: what is there serves.
            let wanted = if spec["paused"] == true { available } else { updated };
            observed >= generation && wanted >= replicas && number(status, "replicas") <= wanted && available >= wanted
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
    // The other kinds do not tell since when they are not available.
    let telling: &[&str] = match workload.kind.resource.as_str() {
        _ if !workload.kind.is_in_table() => &["Ready", "Available"],
        "deployments" => &["Available", "Progressing"],
        _ => &[],
    };
    let since = |name: &&str| condition(status, &[*name]).filter(|(is_true, _)| !is_true).and_then(|(_, since)| since);
    Health::settled(is_rolled, telling.iter().filter_map(since).min().filter(|_| !is_rolled))
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
pub(super) fn containers(pod: &Workload, policy: &str) -> Vec<String> {
    let added = marker::read(pod, policy).map(|marker| marker.added).unwrap_or_default();
    added.iter().filter_map(|pointer| marker::container(pointer)).collect()
}

/// The health of `pod`. `names` are the containers of the policy.
pub(super) fn of_pod(pod: &Workload, names: &[String]) -> Health {
    let (status, spec) = (&pod.body["status"], &pod.body["spec"]);
    // One without this condition has never been ready.
    let created = || pod.body["metadata"]["creationTimestamp"].as_str()?.parse().ok();
    let (is_ready, since) = condition(status, &["Ready"]).unwrap_or_else(|| (false, created()));
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
pub(super) fn condition(status: &Value, types: &[&str]) -> Option<(bool, Option<Timestamp>)> {
    let conditions = status["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| types.iter().any(|name| condition["type"] == *name))?;
    let since = found["lastTransitionTime"].as_str().and_then(|since| since.parse().ok());
    Some((found["status"] == "True", since))
}

/// The restarts of each of the containers `names` of `pod`.
pub(super) fn restarts(pod: &Workload, names: &[String]) -> Vec<(Arc<str>, u32)> {
    let statuses = ["initContainerStatuses", "containerStatuses"]
        .into_iter()
        .filter_map(|list| pod.body["status"][list].as_array());
    let restarts = statuses.flatten().filter_map(|status| {
        let name = names.iter().find(|name| status["name"] == name.as_str())?;
        Some((Arc::from(name.as_str()), u32::try_from(count(&status["restartCount"])?).ok()?))
    });
    restarts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;
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
            assert_eq!(of_pod(&pod, &[]).grace, SignedDuration::from_secs(seconds), "{written}");
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
            assert_eq!(of_pod(&pod, &[]).is_settled, is_settled, "{status}");
        }
    }

    #[test]
    fn a_status_tells_since_when_as_far_as_it_can() {
        let condition = |kind: &str, status: &str, second: u32| json!({ "type": kind, "status": status, "lastTransitionTime": format!("2026-01-01T00:00:{second:02}Z") });
        let at = |second: u32| Some(format!("2026-01-01T00:00:{second:02}Z").parse::<Timestamp>().unwrap());
        let deployment = |conditions: Value, available: u32, spec: Value| {
            let status = json!({
                "observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, "availableReplicas": available, "conditions": conditions,
            });
            let body = json!({ "metadata": { "generation": 2 }, "spec": spec, "status": status });
            let Health { is_ready, since, .. } = of(&workload("apps", "deployments", body));
            (is_ready, since)
        };
        let [up, down] = ["True", "False"].map(|status| condition("Available", status, 5));
        let stalled = condition("Progressing", "False", 9);
        let two = json!({ "replicas": 2 });
        assert_eq!(deployment(json!([down, stalled]), 1, two.clone()), (false, at(5)));
        // The user's own rollout makes no progress, while the pods of before serve.
        assert_eq!(deployment(json!([up, stalled]), 2, two.clone()), (false, at(9)));
        assert_eq!(deployment(json!([up]), 2, two), (false, None));
        // Nobody rolls it.
        let paused = json!({ "replicas": 2, "paused": true });
        assert_eq!(deployment(json!([up]), 2, paused.clone()), (true, None));
        assert_eq!(deployment(json!([down]), 1, paused), (false, at(5)), "one of its pods is down");

        let pod = |conditions: Value| {
            let metadata = json!({ "creationTimestamp": "2026-01-01T00:00:01Z" });
            let pod = workload("", "pods", json!({ "metadata": metadata, "status": { "conditions": conditions } }));
            let Health { is_ready, since, .. } = of_pod(&pod, &[]);
            (is_ready, since)
        };
        assert_eq!(pod(json!([condition("Ready", "False", 5)])), (false, at(5)));
        assert_eq!(pod(json!([condition("PodScheduled", "False", 5)])), (false, at(1)), "it never was ready");
        assert_eq!(pod(json!([condition("Ready", "True", 7)])), (true, at(7)));
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
                    of(&workload(group, resource, body.clone()));
                }
                restarts(&workload("", "pods", body), &["x".to_owned()]);
            }
        }
    }
}
