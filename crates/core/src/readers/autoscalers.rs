//! What autoscalers of pods do: they measure and size all containers, also those of templates.

use super::case::{Case, Told};
use super::facts::{Fact, containers};
use super::sums::Defaults;
use crate::api::code::Code;
use crate::api::pod_schema::is_native_sidecar;
use crate::inject::value::{at, nanos, objects, text};
use crate::workload::Workload;
use serde_json::{Map, Value};

/// The share of the requests below which an autoscaler does not act, in percent: its tolerance.
const TOLERANCE: i128 = 10;

/// Autoscalers of the workload that the added containers mislead.
pub(super) fn misled(case: &Case<'_>) -> Vec<Told> {
    let added = case.added();
    let staying = added.into_iter().filter(stays);
    let staying: Vec<_> = staying.map(|(_, item)| item).collect();
    if staying.is_empty() {
        return Vec::new();
    }
    let horizontal = case.facts.all(Fact::Autoscaler, case.namespace());
    let horizontal = horizontal.filter(|(_, it)| is_of(it, "scaleTargetRef", case.maker));
    let vertical = case.facts.all(Fact::VerticalAutoscaler, case.namespace());
    let vertical = vertical.filter(|(_, it)| is_of(it, "targetRef", case.maker));
    let tell = |(item, message): (&Map<String, Value>, String)| {
        Told::new(Code::AutoscalerMisled, &case.path_of(text(item, "name")), message)
    };
    let horizontal = horizontal.flat_map(|(name, it)| by_resources(case, name, it, &staying));
    let vertical = vertical.filter_map(|(name, it)| sized(name, it, &staying));
    horizontal.chain(vertical).map(tell).collect()
}

/// Whether a container runs as long as its pod.
fn stays((list, item): &(&'static str, &Map<String, Value>)) -> bool {
    *list == "containers" || is_native_sidecar(item)
}

/// Whether the autoscaler is for `workload`.
fn is_of(autoscaler: &Value, field: &str, workload: &Workload) -> bool {
    let target = &autoscaler["spec"][field];
    let group = target["apiVersion"].as_str().map(|it| it.split_once('/').map_or("", |(group, _)| group));
    let is_group = group.is_none_or(|group| workload.kind.is_in(group));
    is_group
        && target["kind"] == workload.kind_name()
        && target["name"] == workload.name()
        && !workload.name().is_empty()
}

/// A resource of whole pods that an autoscaler measures.
struct Measured<'a> {
    resource: &'a str,
    /// The average that a pod is to use, in billionths; none if it is a share of the requests.
    average: Option<i128>,
}

/// What the autoscaler measures of whole pods.
fn measured(autoscaler: &Value) -> Vec<Measured<'_>> {
    let Some(spec) = autoscaler["spec"].as_object() else { return Vec::new() };
    let metrics: Vec<_> = objects(spec, &["metrics"]).collect();
    if metrics.is_empty() {
        // Also its default.
        return vec![Measured { resource: "cpu", average: None }];
    }
    let of_pod = metrics.into_iter().filter(|metric| text(metric, "type") == "Resource");
    let measured = of_pod.filter_map(|metric| {
        let get = |path: &[&str]| at(metric, path);
        let either = |new: &[&str], old: &[&str]| get(new).or_else(|| get(old));
        let by_requests =
            either(&["resource", "target", "averageUtilization"], &["resource", "targetAverageUtilization"]);
        let average = either(&["resource", "target", "averageValue"], &["resource", "targetAverageValue"]);
        let average = if by_requests.is_some() { None } else { Some(nanos(average?)?) };
        Some(Measured { resource: get(&["resource", "name"])?.as_str()?, average })
    });
    measured.collect()
}

/// What a HorizontalPodAutoscaler makes of the added containers.
fn by_resources<'a>(
    case: &Case<'a>,
    name: &str,
    autoscaler: &Value,
    added: &[&'a Map<String, Value>],
) -> Vec<(&'a Map<String, Value>, String)> {
    let defaults = Defaults::of(case.facts, case.namespace());
    // With resources of the pod itself, requests of containers do not count.
    let has_own = case.after.pod_spec().is_some_and(|spec| at(spec, &["resources"]).is_some());
    let [bare, after] = [case.bare, case.after].map(|workload| defaults.of_pod(workload).requests);
    let tell = |Measured { resource, average }: Measured<'_>| {
        let request = |item: &Map<String, Value>| defaults.complete(item).requests.get(resource).copied();
        // Then it computes nothing without us either.
        if average.is_none() && containers(case.bare).filter(stays).any(|(_, own)| request(own).is_none()) {
            return None;
        }
        if let Some(without) = added.iter().find(|item| average.is_none() && request(item).is_none()) {
            let message = format!(
                "HorizontalPodAutoscaler `{name}` stops scaling, because container `{}` requests no {resource}",
                text(without, "name")
            );
            return Some((*without, message));
        }
        let amount = |of: &super::sums::Amounts| of.get(resource).copied().unwrap_or_default();
        let ours = amount(&after).saturating_sub(amount(&bare));
        // Without a request its use is unknown. With an average value, requests are the best that is known of the use.
        let largest = added.iter().max_by_key(|item| request(item).unwrap_or(i128::MAX))?;
        let (whole, is_unknown) = (average.unwrap_or(amount(&after)), request(largest).is_none());
        (is_unknown || ours.saturating_mul(100) > whole.saturating_mul(TOLERANCE)).then(|| {
            let message = format!(
                "HorizontalPodAutoscaler `{name}` measures {resource} of the whole pod, and counts container `{}`, too; measure \
                 the workload's own with `type: ContainerResource`",
                text(largest, "name")
            );
            (*largest, message)
        })
    };
    measured(autoscaler).into_iter().filter(|it| it.average.is_some() || !has_own).filter_map(tell).collect()
}

/// The added container that a VerticalPodAutoscaler sizes.
fn sized<'a>(
    name: &str,
    autoscaler: &Value,
    added: &[&'a Map<String, Value>],
) -> Option<(&'a Map<String, Value>, String)> {
    let spec = autoscaler["spec"].as_object()?;
    let replaces = match at(spec, &["updatePolicy", "updateMode"]).and_then(Value::as_str) {
        Some("Off") => return None,
        // It sizes pods only as they are created.
        Some("Initial") => "",
        _ => ", and replaces pods for that",
    };
    let is_off = |container: &str| {
        let of = |wanted: &str| {
            objects(spec, &["resourcePolicy", "containerPolicies"]).find(|it| text(it, "containerName") == wanted)
        };
        of(container).or_else(|| of("*")).is_some_and(|policy| text(policy, "mode") == "Off")
    };
    let item = added.iter().find(|item| !is_off(text(item, "name")))?;
    let container = text(item, "name");
    let message = format!(
        "VerticalPodAutoscaler `{name}` also sizes container `{container}`{replaces}; give it `mode: Off` in `containerPolicies`"
    );
    Some((item, message))
}

/// The annotation with the local volumes that may be lost.
const MAY_BE_LOST: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";

/// Local volumes that keep the cluster autoscaler from removing the node of a pod whose own volumes may be lost.
pub(super) fn kept_nodes(case: &Case<'_>) -> Vec<Told> {
    // Without that annotation the workload does not say that it minds.
    let (Some(_), Some(listed)) = (case.bare.pod_annotation(MAY_BE_LOST), case.after.pod_annotation(MAY_BE_LOST))
    else {
        return Vec::new();
    };
    let listed: Vec<_> = listed.split(',').map(str::trim).collect();
    let volumes = |of: &Workload| -> Vec<String> {
        let volumes = of.pod_spec().into_iter().flat_map(|spec| objects(spec, &["volumes"]));
        volumes.filter(|volume| is_local(volume)).map(|volume| text(volume, "name").to_owned()).collect()
    };
    let there = volumes(case.bare);
    let is_ours = |name: &String| case.template.spec.volumes.iter().any(|volume| text(volume, "name") == name);
    let added = volumes(case.after).into_iter().filter(|name| is_ours(name) && !there.contains(name));
    let blocking: Vec<_> = added.filter(|name| !listed.contains(&name.as_str())).collect();
    if blocking.is_empty() {
        return Vec::new();
    }
    let message = format!(
        "the cluster autoscaler keeps its nodes for volume `{}`; if the content may be lost, add the volume to annotation \
         `{MAY_BE_LOST}` of the workload",
        blocking.join("`, `")
    );
    vec![Told::new(Code::ScaleDownBlocked, "volumes", message)]
}

/// Whether the cluster autoscaler takes the volume for local storage (`utils/drain`).
fn is_local(volume: &Map<String, Value>) -> bool {
    let is_disk = volume.get("emptyDir").is_some_and(|it| it["medium"] != "Memory");
    volume.contains_key("hostPath") || is_disk
}
