//! Any JSON value as an object of any kind: decision, injection, removal.
//!
//! An input is a manifest. Its policies are used, or those of `policies.yaml` if none is valid. An object of an unknown
//! kind gets one by the length of the input. This takes a seventh of the time of all kinds, and every length occurs.

use crate::kept::is_kept;
use json_patch::PatchOperation;
use serde_json::Value;
use sidecar_policy::api::MARKER_PREFIX;
use sidecar_policy::api::trust::Trust;
use sidecar_policy::decision::{Decision, rehearsal};
use sidecar_policy::inject::{self, LeftoverCause, marker};
use sidecar_policy::manifest::{File, Layout, Manifest, Object, emit, policy_of};
use sidecar_policy::policy::{Policies, Policy, Site};
use sidecar_policy::workload::{KINDS, Workload};
use std::sync::{Arc, LazyLock};

/// The number of tested objects per input.
const OBJECTS: usize = 2;

/// Every field of a template, and policies that conflict with each other.
pub(crate) static POLICIES: LazyLock<Policies> = LazyLock::new(|| {
    let file = File::parse("policies.yaml", include_bytes!("../policies.yaml").to_vec()).expect("it can be read");
    let objects: Vec<Object<'_>> = file.manifests().flat_map(Manifest::objects).collect();
    let parsed = objects.iter().map(|object| Policy::parse(object.body, &site(true)).expect("it is valid"));
    Policies::new(parsed.map(Arc::new).collect::<Vec<_>>())
});

pub(crate) fn site(native_sidecars: bool) -> Site {
    Site { native_sidecars, trust: Trust::unbounded(), ..Site::new("scpol-system", [], []) }
}

pub(crate) fn run(bytes: &[u8]) {
    let length = bytes.len();
    let file = File::parse("fuzz.yaml", bytes.to_vec());
    let objects: Vec<Object<'_>> = file.iter().flat_map(File::manifests).flat_map(Manifest::objects).collect();
    if let (true, Ok(body)) = (objects.is_empty(), serde_json::from_slice::<Value>(bytes)) {
        return is_injected_and_given_back(&body, &POLICIES, None, length);
    }
    let (policies, others): (Vec<Object<'_>>, Vec<Object<'_>>) =
        objects.into_iter().partition(|object| policy_of(object).is_some());
    let valid: Vec<_> = policies.iter().filter_map(|object| Policy::parse(object.body, &site(true)).ok()).collect();
    let given = Policies::new(valid.into_iter().map(Arc::new));
    let policies = if given.iter().next().is_some() { &given } else { &POLICIES };
    let namespace = others.iter().find(|object| object.kind == "Namespace").map(|object| Arc::new(object.body.clone()));
    for object in others.iter().take(OBJECTS) {
        is_injected_and_given_back(object.body, policies, namespace.as_ref(), length);
    }
}

fn is_injected_and_given_back(body: &Value, policies: &Policies, namespace: Option<&Arc<Value>>, length: usize) {
    let named = KINDS.iter().find(|kind| kind.kind.as_deref() == body["kind"].as_str());
    let kind = named.unwrap_or(&KINDS[length % KINDS.len()]);
    let workload = Workload::new(kind, body.clone()).within(namespace.cloned());
    is_given_back(&workload, None, &[]);
    holds(&workload, policies, &site(length.is_multiple_of(2)));
}

/// Checks the laws of injection.
pub(crate) fn holds(workload: &Workload, policies: &Policies, site: &Site) {
    let mut decision = Decision::of(policies, workload, site);
    let patch = decision.plan(workload);
    for policy in policies.iter() {
        rehearsal(policy, workload, site);
    }
    // Known content of earlier revisions, of policies whose place one takes, and with values of another workload, goes first.
    let base = decision.original(workload).into_owned();
    let after = workload.with_body(workload.patched(&patch));
    let overlays = overlays(&after);
    let has_replaced = decision.replaced().next().is_some() || base.body != workload.body || !overlays.is_empty();
    assert!(has_replaced || patch.iter().all(|operation| matches!(operation, PatchOperation::Add(_))), "{patch}");
    let injected: Vec<Arc<Policy>> = decision.inject.clone();
    let markers: Vec<_> = injected.iter().map(|policy| marker::key(&policy.name)).collect();
    let own = without(&base, &overlays);
    assert!(is_kept(&own, &after.body, &markers), "{own} has become {}", after.body);
    for policy in &injected {
        let marker = marker::read(&after, &policy.name).expect("whoever is injected has a marker");
        assert_eq!(marker.hash, policy.template_hash());
    }
    // Another policy may match only now.
    let mut again = Decision::of(policies, &after, site).inject;
    again.retain(|policy| injected.iter().any(|other| other.name == policy.name));
    assert!(again.is_empty(), "{again:?} would be injected again");
    let names = |decision: &Decision| decision.inject.iter().map(|policy| policy.name.clone()).collect::<Vec<_>>();
    let before = names(&decision);
    assert!(decision.plan(&after).is_empty(), "to inject twice is to inject once");
    assert_eq!(names(&decision), before, "what has been injected contradicts itself");
    is_given_back(&after, Some(&base.body), &before);
    if after.body.is_object() && !patch.is_empty() {
        is_read_as_it_is_written(&after.body);
    }
}

/// The names of the overlays in the markers on `workload`, in place of which the sidecar is.
fn overlays(workload: &Workload) -> Vec<String> {
    let annotations = workload.pod().and_then(|pod| pod["metadata"]["annotations"].as_object());
    let policies = annotations.into_iter().flatten().filter_map(|(key, _)| key.strip_prefix(MARKER_PREFIX));
    let entries = policies.filter_map(|policy| marker::read(workload, policy)).flat_map(|marker| marker.values);
    let name = |entry: &String| {
        let (_, container) = entry.split_once('=').filter(|(place, _)| place.contains('/'))?;
        let container: Value = serde_json::from_str(&container.replace("~0", "~")).ok()?;
        container["name"].as_str().map(str::to_owned)
    };
    entries.collect::<Vec<_>>().iter().filter_map(name).collect()
}

/// The body of `workload` without the containers of these `names`.
fn without(workload: &Workload, names: &[String]) -> Value {
    let mut body = workload.body.clone();
    for list in ["containers", "initContainers"].iter().filter(|_| !names.is_empty()) {
        let items = body.pointer_mut(&format!("{}/spec/{list}", workload.pod_pointer())).and_then(Value::as_array_mut);
        if let Some(items) = items {
            items.retain(|item| item["name"].as_str().is_none_or(|name| !names.iter().any(|other| other == name)));
        }
    }
    body
}

/// Removes the marked content at once, and policy by policy. Without earlier markers this restores the `original`.
/// Unmarked content never changes.
fn is_given_back(workload: &Workload, original: Option<&Value>, policies: &[String]) {
    let Some(undone) = inject::undo(workload, None) else { return };
    let markers: Vec<_> = undone.policies.iter().map(|policy| marker::key(policy)).collect();
    let own = without(&workload.with_body(undone.body.clone()), &overlays(workload));
    assert!(is_kept(&own, &workload.body, &markers), "{own} was {}", workload.body);
    let Some(original) = original.filter(|original| !original.to_string().contains(MARKER_PREFIX)) else { return };
    // A remaining mount keeps its volume.
    let mut leftovers = undone.leftovers;
    if leftovers.is_empty() {
        assert_eq!(&undone.body, original);
    }
    let one_by_one = policies.iter().fold(workload.clone(), |workload, policy| {
        let undone = inject::undo(&workload, Some(policy)).expect("it has a marker");
        leftovers.extend(undone.leftovers);
        workload.with_body(undone.body)
    });
    assert!(leftovers.iter().all(|leftover| leftover.cause == LeftoverCause::Mounted), "{leftovers:?}");
    if leftovers.is_empty() {
        assert_eq!(&one_by_one.body, original);
    }
}

fn is_read_as_it_is_written(body: &Value) {
    for layout in [Layout::YAML, Layout::json(2)] {
        let text = emit(body, &layout);
        let file = File::parse("fuzz.yaml", text.clone().into_bytes());
        let read: Vec<_> = file.iter().flat_map(File::manifests).map(|manifest| &manifest.value).collect();
        assert_eq!(read, [body], "{text}");
    }
}
