//! What the admission plugin ResourceQuota does: it refuses pods beyond what a namespace has, and pods that do not say
//! how much they take.

use super::case::Case;
use super::facts::{Fact, containers};
use super::sums::{Amounts, Defaults, Sums, of};
use crate::api::code::Code;
use crate::inject::Conflict;
use crate::inject::value::{at, objects, text};
use crate::qos::{self, QosClass};
use crate::workload::Workload;
use serde_json::{Map, Value};

/// The prefix of what limits count for.
const LIMITS: &str = "limits.";
/// The prefix of what requests count for. CPU, memory and storage may stand without it.
const REQUESTS: &str = "requests.";
/// The resources that each container must name, if a quota has them.
const REQUIRED: [&str; 2] = ["cpu", "memory"];

/// A ResourceQuota that refuses the pods because of the template.
pub(super) fn exceeded(case: &Case<'_>) -> Option<(String, Conflict)> {
    let added = case.added();
    if added.is_empty() {
        return None;
    }
    let defaults = Defaults::of(case.facts, case.namespace());
    let quotas = case.facts.all(Fact::ResourceQuota, case.namespace());
    let mut quotas = quotas.filter(|(_, quota)| counts(case, quota));
    quotas.find_map(|(name, quota)| {
        let spec = quota.get("spec")?.as_object()?;
        let unsaid = unsaid(case, spec, &defaults, &added);
        let (field, what) = unsaid.or_else(|| too_much(case, spec, &defaults))?;
        let message = format!("{what} ResourceQuota `{name}`: the server refuses such pods");
        Some((field, Conflict { code: Code::QuotaExceeded, message }))
    })
}

/// The amount that `key` of a quota counts, and its resource.
fn counted<'a>(key: &str, sums: &'a Sums) -> (&'a Amounts, String) {
    match key.strip_prefix(LIMITS) {
        Some(resource) => (&sums.limits, resource.to_owned()),
        None => (&sums.requests, key.strip_prefix(REQUESTS).unwrap_or(key).to_owned()),
    }
}

/// A container of the template that does not say how much it takes, while all of the workload do.
fn unsaid(
    case: &Case<'_>,
    spec: &Map<String, Value>,
    defaults: &Defaults,
    added: &[(&'static str, &Map<String, Value>)],
) -> Option<(String, String)> {
    let has_resources =
        |workload: &Workload| workload.pod_spec().is_some_and(|spec| at(spec, &["resources"]).is_some());
    if has_resources(case.after) {
        return None;
    }
    let is_said = |container: &Map<String, Value>, key: &str| {
        let sums = defaults.complete(container);
        let (amounts, resource) = counted(key, &sums);
        amounts.contains_key(&resource)
    };
    let hard = at(spec, &["hard"])?.as_object()?;
    let keys = hard.keys().filter(|key| REQUIRED.contains(&counted(key, &Sums::default()).1.as_str()));
    let mut keys = keys.filter(|key| containers(case.bare).all(|(_, own)| is_said(own, key)));
    let (key, name) = keys.find_map(|key| {
        let container = added.iter().find(|(_, container)| !is_said(container, key))?;
        Some((key, text(container.1, "name")))
    })?;
    let what = if key.starts_with(LIMITS) { "limit" } else { "request" };
    let resource = counted(key, &Sums::default()).1;
    let told =
        format!("container `{name}` of the template has no {what} of {resource}, which each container must have by");
    Some((case.path_of(name), told))
}

/// A resource of which all pods of the workload have more than the quota has at all.
fn too_much(case: &Case<'_>, spec: &Map<String, Value>, defaults: &Defaults) -> Option<(String, String)> {
    let pods = pods_of(case.maker);
    let [bare, after] = [case.bare, case.after].map(|workload| defaults.of_pod(workload));
    let total = |key: &str, sums: &Sums| {
        let (amounts, resource) = counted(key, sums);
        amounts.get(&resource).copied().unwrap_or_default().saturating_mul(pods)
    };
    let mut hard = of(spec, "hard").into_iter();
    let (key, _) = hard.find(|(key, most)| total(key, &after) > *most && total(key, &bare) <= *most)?;
    let most = at(spec, &["hard", key.as_str()]).map(Value::to_string).unwrap_or_default();
    let told = format!("its {pods} pods with the template need more than `{key}: {}` of", most.trim_matches('"'));
    Some(("containers".to_owned(), told))
}

/// How many pods of `maker` run at the same time, at least: all that it wants at once.
fn pods_of(maker: &Workload) -> i128 {
    let spec = &maker.body["spec"];
    let count = |value: &Value| value.as_i64().map(|count| i128::from(count.max(0)));
    let job = match maker.kind.resource.as_str() {
        "jobs" => spec,
        "cronjobs" => &spec["jobTemplate"]["spec"],
        _ => return count(&spec["replicas"]).unwrap_or(1),
    };
    if spec["suspend"] == true || job["suspend"] == true {
        return 0;
    }
    let most = count(&job["parallelism"]).unwrap_or(1);
    // No pod is made for more completions than are left.
    count(&job["completions"]).map_or(most, |completions| most.min(completions))
}

/// Whether the quota counts the pod, by all of its scopes.
fn counts(case: &Case<'_>, quota: &Value) -> bool {
    let Some(spec) = quota.get("spec").and_then(Value::as_object) else { return false };
    let scopes = at(spec, &["scopes"]).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let mut scopes = scopes.map(|scope| (scope, "Exists", Vec::new()));
    let mut selected = objects(spec, &["scopeSelector", "matchExpressions"]).map(|it| {
        let values = it.get("values").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        (text(it, "scopeName"), text(it, "operator"), values.collect::<Vec<_>>())
    });
    let mut is_in = |(scope, operator, values): (&str, &str, Vec<&str>)| is_in(case, scope, operator, &values);
    scopes.all(&mut is_in) && selected.all(&mut is_in)
}

fn is_in(case: &Case<'_>, scope: &str, operator: &str, values: &[&str]) -> bool {
    let Some(pod) = case.after.pod_spec() else { return false };
    let ends = at(pod, &["activeDeadlineSeconds"]).and_then(Value::as_i64).is_some_and(|seconds| seconds >= 0);
    let is_best_effort = qos::of(case.after, None) == Some(QosClass::BestEffort);
    match scope {
        "Terminating" => ends,
        "NotTerminating" => !ends,
        "BestEffort" => is_best_effort,
        "NotBestEffort" => !is_best_effort,
        "PriorityClass" => {
            let class = class_of(case, pod);
            match operator {
                "Exists" => class.is_some(),
                "DoesNotExist" => class.is_none(),
                "In" => class.is_some_and(|class| values.contains(&class)),
                "NotIn" => class.is_none_or(|class| !values.contains(&class)),
                _ => false,
            }
        }
        _ => false,
    }
}

/// The PriorityClass of the pod: its own, or the default of the cluster.
fn class_of<'a>(case: &Case<'a>, pod: &'a Map<String, Value>) -> Option<&'a str> {
    let own = Some(text(pod, "priorityClassName")).filter(|name| !name.is_empty());
    own.or_else(|| {
        let mut classes = case.facts.all(Fact::PriorityClass, "");
        classes.find(|(_, class)| class["globalDefault"] == true).map(|(name, _)| name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;
    use serde_json::json;

    #[test]
    fn the_pods_of_a_job_are_those_that_run_at_once() {
        for (group, kind, spec, expected) in [
            ("apps", "deployments", json!({}), 1),
            ("apps", "deployments", json!({"replicas": 0}), 0),
            ("batch", "jobs", json!({}), 1),
            ("batch", "jobs", json!({"completions": 9}), 1),
            ("batch", "jobs", json!({"parallelism": 5}), 5),
            ("batch", "jobs", json!({"parallelism": 5, "completions": 2}), 2),
            ("batch", "jobs", json!({"parallelism": 2, "completions": 5}), 2),
            ("batch", "jobs", json!({"parallelism": 2, "completions": null}), 2),
            ("batch", "jobs", json!({"parallelism": 2, "suspend": true}), 0),
            ("batch", "cronjobs", json!({"jobTemplate": {"spec": {"parallelism": 5, "completions": 2}}}), 2),
            ("batch", "cronjobs", json!({"suspend": true, "jobTemplate": {"spec": {"parallelism": 5}}}), 0),
            ("batch", "cronjobs", json!({"jobTemplate": {"spec": {"suspend": true}}}), 0),
        ] {
            let maker = Workload::new(Kind::find(group, kind).unwrap(), json!({ "spec": spec }));
            assert_eq!(pods_of(&maker), expected, "{kind} {spec}");
        }
    }
}
