//! Rules for the final objects.

use crate::pod::{self, Marker};
use crate::{Site, State};
use serde_json::Value;

/// O5.
pub(super) fn nothing_waits(site: &Site, state: &State) -> Vec<(String, String)> {
    let waits = |object: &Value| {
        let next = pod::pending(object).next().filter(|name| site.owns(name))?;
        Some(format!("still waits for `{next}`"))
    };
    state.objects().filter_map(|(place, object)| Some((place, waits(object)?))).collect()
}

/// O6.
pub(super) fn whole(site: &Site, state: &State) -> Vec<(String, String)> {
    let mut wrong = Vec::new();
    for (place, object, pod) in state.workloads(site) {
        let markers = pod::markers(pod);
        let listed = markers.iter().flat_map(|marker| miscounted(object, marker));
        let lacking = markers.iter().flat_map(|marker| lacking(state, pod, marker));
        let messages = listed.chain(lacking).chain(unmarked(state, pod, &markers));
        wrong.extend(messages.map(|message| (place.clone(), message)));
    }
    wrong
}

/// The marked items that do not exist exactly once.
fn miscounted(object: &Value, marker: &Marker) -> Vec<String> {
    let told = |pointer: &String| match pod::count(object, pointer) {
        1 => None,
        0 => Some(format!("the marker of `{}` lists `{pointer}`, which is not there", marker.policy)),
        times => Some(format!("`{pointer}`, of `{}`, is there {times} times", marker.policy)),
    };
    marker.added.iter().filter_map(told).collect()
}

const CONTAINERS: [&str; 2] = ["initContainers", "containers"];

/// The parts of a template: noun, list in the template, and possible lists in a pod. A native sidecar is in the other
/// list of containers.
const PARTS: [(&str, &str, &[&str]); 3] = [
    ("init container", "initContainers", &CONTAINERS),
    ("container", "containers", &CONTAINERS),
    ("volume", "volumes", &["volumes"]),
];

/// The template content that `pod` lacks, if the marker is about the policy's current template. Content that existed
/// before the injection is not in the marker, but must exist.
fn lacking(state: &State, pod: &Value, marker: &Marker) -> Vec<String> {
    let is_of = |name: &str, policy: &Value| {
        name == marker.policy && current(policy).is_none() && policy["status"]["templateHash"] == marker.hash
    };
    let Some((name, policy)) = state.policies().find(|(name, policy)| is_of(name, policy)) else { return Vec::new() };
    let template = &policy["spec"]["template"];
    let mut lacking = Vec::new();
    for (noun, list, places) in PARTS {
        let is_there = |part: &str| items(&pod["spec"], places).any(|item| item["name"] == part);
        let parts: Vec<&str> = items(template, &[list]).filter_map(|item| item["name"].as_str()).collect();
        let missing = parts.into_iter().filter(|part| !is_there(part));
        lacking.extend(missing.map(|part| format!("has the marker of `{name}`, and lacks its {noun} `{part}`")));
    }
    lacking
}

/// The content of policies that have no marker on the pod.
fn unmarked(state: &State, pod: &Value, markers: &[Marker]) -> Vec<String> {
    let unmarked = state.policies().filter(|(name, _)| markers.iter().all(|marker| marker.policy != *name));
    let told = |(name, policy): (&str, &Value)| {
        let part = part_of(&policy["spec"]["template"], pod)?;
        Some(format!("has `{part}` of `{name}`, and not its marker"))
    };
    unmarked.filter_map(told).collect()
}

/// The first container of the template, by name and image, that `pod` also has.
fn part_of(template: &Value, pod: &Value) -> Option<String> {
    let is_there = |ours: &Value| {
        let mut theirs = items(&pod["spec"], &CONTAINERS);
        theirs.any(|item| item["name"] == ours["name"] && item["image"] == ours["image"])
    };
    items(template, &CONTAINERS).find(|ours| is_there(ours)).and_then(|ours| ours["name"].as_str().map(str::to_owned))
}

/// The items of these lists.
fn items<'a>(from: &'a Value, lists: &[&str]) -> impl Iterator<Item = &'a Value> {
    lists.iter().flat_map(move |list| from[*list].as_array().into_iter().flatten())
}

/// O10.
pub(super) fn left_alone(site: &Site, state: &State) -> Vec<(String, String)> {
    let protected = |object: &Value| object["metadata"]["namespace"].as_str().is_some_and(|name| site.protects(name));
    let of_ours = |(place, object, pod): (String, &Value, &Value)| {
        let marker = pod::markers(pod).into_iter().next().filter(|_| protected(object))?;
        Some((place, format!("is in a protected namespace, and has what `{}` adds", marker.policy)))
    };
    state.workloads(site).filter_map(of_ours).collect()
}

/// O8.
pub(super) fn true_status(site: &Site, state: &State) -> Vec<(String, String)> {
    let about = |name: &str, policy: &Value| -> Vec<(String, String)> {
        let place = format!("sidecarpolicies {name}");
        let checks = [
            current(policy),
            consistent(policy),
            hashed(policy),
            counted(site, state, name, policy),
            registered(state, name, policy),
        ];
        checks.into_iter().flatten().map(|message| (place.clone(), message)).collect()
    };
    state.policies().flat_map(|(name, policy)| about(name, policy)).collect()
}

fn condition<'a>(policy: &'a Value, type_: &str) -> Option<&'a Value> {
    policy["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == type_)
}

fn is_true(policy: &Value, type_: &str) -> bool {
    condition(policy, type_).is_some_and(|condition| condition["status"] == "True")
}

fn current(policy: &Value) -> Option<String> {
    let (generation, observed) = (&policy["metadata"]["generation"], &policy["status"]["observedGeneration"]);
    (generation != observed).then(|| format!("the status is about generation {observed} of {generation}"))
}

fn consistent(policy: &Value) -> Option<String> {
    let Some(ready) = condition(policy, "Ready") else { return Some("has no condition `Ready`".into()) };
    let unaffected = ready["reason"] == "Suspended" || ready["reason"] == "Audit";
    let is_ready = ready["status"] == "True";
    match (is_ready, is_true(policy, "Accepted"), is_true(policy, "Programmed")) {
        (true, false, _) => Some("is Ready without being Accepted".into()),
        (true, _, false) if !unaffected => Some("is Ready without being Programmed".into()),
        (false, true, true) => Some("is Accepted and Programmed without being Ready".into()),
        _ => None,
    }
}

/// The hash distinguishes markers, so nothing can be counted without it. Policies with validations only, and invalid
/// ones, may have none.
fn hashed(policy: &Value) -> Option<String> {
    let is_due = is_true(policy, "Accepted") && !policy["spec"]["template"].is_null();
    let is_there = policy["status"]["templateHash"].is_string();
    (is_due && !is_there).then(|| "is Accepted, and its status has no `templateHash`".into())
}

/// The number of stored workloads by marker, compared with the status.
fn counted(site: &Site, state: &State, name: &str, policy: &Value) -> Option<String> {
    let status = &policy["status"];
    let hash = status["templateHash"].as_str()?;
    // Waiting objects and those being deleted do not count as matched.
    let leaves = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
    let waits = |object: &Value| pod::pending(object).next().is_some() || leaves(object);
    let marked = state.workloads(site).filter(|(_, object, pod)| {
        !waits(object) && pod::markers(pod).iter().any(|marker| marker.policy == name && marker.hash == hash)
    });
    let told = |field: &str| status[field].as_i64().unwrap_or_default();
    let (there, injected, edited) = (marked.count() as i64, told("injected"), told("edited"));
    // What is edited may have the marker of this template, or of an earlier one.
    if there < injected || there > injected + edited {
        return Some(format!("the status counts {injected} injected workloads, and there are {there}"));
    }
    let (matched, outdated, missed) = (told("matched"), told("outdated"), told("missed"));
    (matched != injected + edited + outdated + missed).then(|| {
        format!("the status counts {matched} matched workloads, and {injected} injected, {outdated} outdated, {missed} missed")
    })
}

/// The injecting registrations of each engine. They are named `scpol-<policy>` for Initializers, and
/// `scpol-<resource>[.<group>]` otherwise.
const REGISTERED: [(&str, &[&str]); 3] = [
    ("Initializer", &["InitializerConfiguration"]),
    ("Webhook", &["MutatingWebhookConfiguration"]),
    ("MutatingAdmissionPolicy", &["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"]),
];

/// Policies on several engines are skipped, because the engine of each target is unknown.
fn registered(state: &State, name: &str, policy: &Value) -> Option<String> {
    // A policy with validations only injects nothing.
    if !is_true(policy, "Programmed") || policy["spec"]["template"].is_null() {
        return None;
    }
    let (engine, kinds) = REGISTERED.iter().find(|(engine, _)| policy["status"]["engine"] == *engine)?;
    let names = if *engine == "Initializer" { vec![format!("scpol-{name}")] } else { resources(&policy["spec"]) };
    let all = names.iter().flat_map(|name| kinds.iter().map(move |kind| (kind, name)));
    let missing = all.into_iter().find(|(kind, name)| state.has(kind, name) == Some(false));
    missing.map(|(kind, name)| format!("is Programmed, and there is no {kind} `{name}`"))
}

/// The names of the registrations for the targets of a policy.
fn resources(spec: &Value) -> Vec<String> {
    let name = |target: &Value| {
        let group = target["group"].as_str().filter(|group| !group.is_empty());
        // Old servers serve the same objects in two groups.
        let group = group.map(|group| if group == "extensions" { "apps" } else { group });
        let resource = target["resource"].as_str().unwrap_or_default();
        group.map_or_else(|| format!("scpol-{resource}"), |group| format!("scpol-{resource}.{group}"))
    };
    match spec["targets"].as_array() {
        Some(targets) => targets.iter().map(name).collect(),
        None => vec!["scpol-deployments.apps".into()],
    }
}
