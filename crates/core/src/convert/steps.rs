//! The steps to switch over, in an order in which no create hangs and none is missed.

use super::Converted;
use std::collections::BTreeSet;

/// The old objects that a policy replaces.
#[derive(Clone, Debug)]
pub(super) enum Old {
    /// An initializer.
    Initializer {
        configurations: Vec<String>,
        /// The arguments for kubectl; empty if the processes are unknown.
        processes: Vec<String>,
        config_map: String,
    },
    /// A PodPreset, as arguments for kubectl.
    Preset(String),
    /// Another injector, by its MutatingWebhookConfiguration.
    Injector { webhook: &'static str },
}

impl Old {
    /// Whether it is a PodPreset.
    pub(super) fn is_preset(&self) -> bool {
        matches!(self, Old::Preset(_))
    }
}

/// Arguments for kubectl, each once.
#[derive(Default)]
struct Handles {
    configurations: BTreeSet<String>,
    processes: BTreeSet<String>,
    config_maps: BTreeSet<String>,
    presets: BTreeSet<String>,
}

impl Handles {
    fn of(policies: &[Converted]) -> Self {
        let mut handles = Self::default();
        for policy in policies {
            match &policy.old {
                Old::Initializer { configurations, processes, config_map } => {
                    handles.configurations.extend(configurations.iter().cloned());
                    handles.processes.extend(processes.iter().cloned());
                    handles.config_maps.insert(config_map.clone());
                }
                Old::Preset(preset) => drop(handles.presets.insert(preset.clone())),
                Old::Injector { .. } => {}
            }
        }
        handles
    }
}

/// The steps, in order. `listed` has each initializer name with an InitializerConfiguration that lists it.
pub(super) fn steps(policies: &[Converted], listed: &[(String, String)]) -> Vec<String> {
    if policies.is_empty() {
        return Vec::new();
    }
    let handles = Handles::of(policies);
    let mut steps = vec![format!(
        "See what the policies do, without a cluster: `scpol inject -f MANIFESTS -p policies.yaml{} --diff`",
        flags(policies)
    )];
    if !handles.configurations.is_empty() {
        steps.extend(initializers(&handles, policies, listed));
    }
    if !handles.presets.is_empty() {
        steps.extend(presets(&handles, policies));
    }
    let injectors: Vec<_> = policies.iter().filter_map(of_injector).collect();
    if !injectors.is_empty() {
        steps.extend(injectors_out(&injectors));
    }
    steps
}

/// The flags for the operator to own the kept names.
fn flags(policies: &[Converted]) -> String {
    let names = policies.iter().filter_map(|policy| policy.initializer.as_deref());
    let foreign: BTreeSet<&str> = names.filter(|name| super::is_foreign(name)).collect();
    foreign.into_iter().map(|name| format!(" --initializer-name {name}")).collect()
}

fn names(policies: &[Converted], is_preset: bool) -> String {
    let is_meant = |policy: &&Converted| if is_preset { policy.old.is_preset() } else { policy.initializer.is_some() };
    let of = policies.iter().filter(is_meant);
    of.map(|policy| policy.name.as_str()).collect::<Vec<_>>().join(" ")
}

fn all(set: &BTreeSet<String>) -> String {
    set.iter().cloned().collect::<Vec<_>>().join(" ")
}

fn each(set: &BTreeSet<String>) -> String {
    set.iter().map(|handle| format!("`kubectl delete {handle}`")).collect::<Vec<_>>().join(", ")
}

fn initializers(handles: &Handles, policies: &[Converted], listed: &[(String, String)]) -> Vec<String> {
    let (configurations, policies_of) = (all(&handles.configurations), names(policies, false));
    let flags = flags(policies);
    let with = if flags.is_empty() { flags } else { format!(" with `{}`", flags.trim()) };
    let stop = if handles.processes.is_empty() { String::new() } else { format!(": {}", each(&handles.processes)) };
    vec![
        "Apply the CRD (crds/sidecarpolicies.v1beta1.yaml below Kubernetes 1.16) and the policies, before any operator owns the names: one that \
         knows no policy lets objects go as they are"
            .into(),
        format!(
            "Start the operator{with}. It says ForeignConfiguration (SCP0308), registers nothing, and settles objects beside the old \
             initializer: whoever comes first, the result is the same. Use neither `suspend` nor `mode: Audit`: the name would be taken off without a sidecar"
        ),
        format!("Stop the old initializer{stop}. The operator alone answers now. To go back: start it again"),
        format!(
            "Hand the registration over: `kubectl label initializerconfigurations {configurations} app.kubernetes.io/managed-by=scpol`, and wait for \
             READY: `kubectl get scpol {policies_of}`. Both are in effect, and each object is still injected once"
        ),
        format!(
            "At once, since a stopping operator would leave it behind: {}. Then {}, and the old rights",
            unregister(handles, policies, listed),
            each(&handles.config_maps)
        ),
    ]
}

/// The commands that remove the old registrations: all of them, or only the names that have a policy.
fn unregister(handles: &Handles, policies: &[Converted], listed: &[(String, String)]) -> String {
    let is_converted = |name: &str| policies.iter().any(|policy| policy.initializer.as_deref() == Some(name));
    let is_shared =
        |configuration: &str| listed.iter().any(|(name, lists)| lists == configuration && !is_converted(name));
    let (shared, whole): (BTreeSet<String>, _) =
        handles.configurations.iter().cloned().partition(|configuration| is_shared(configuration));
    let mut parts = Vec::new();
    if !whole.is_empty() {
        parts.push(format!("`kubectl delete initializerconfigurations {}`", all(&whole)));
    }
    for configuration in shared {
        let gone = listed.iter().filter(|(name, lists)| *lists == configuration && is_converted(name));
        let gone: BTreeSet<String> = gone.map(|(name, _)| format!("`{name}`")).collect();
        parts.push(format!(
            "`kubectl edit initializerconfigurations {configuration}`, where {} and the label go and the other initializers stay",
            all(&gone)
        ));
    }
    parts.join(", ")
}

fn presets(handles: &Handles, policies: &[Converted]) -> Vec<String> {
    vec![
        format!(
            "Apply the policies, with the operator running, and wait for READY: `kubectl get scpol {}`. Equal content is not added twice, so both \
             may be in effect",
            names(policies, true)
        ),
        format!(
            "{}. When none is left, take `PodPreset` out of the API server's admission plugins",
            each(&handles.presets)
        ),
    ]
}

/// The name of `policy`, and the webhook configuration of the injector that it replaces.
fn of_injector(policy: &Converted) -> Option<(&str, &'static str)> {
    match policy.old {
        Old::Injector { webhook } => Some((&policy.name, webhook)),
        _ => None,
    }
}

fn injectors_out(injectors: &[(&str, &str)]) -> [String; 2] {
    let all = |of: fn(&(&str, &str)) -> String| injectors.iter().map(of).collect::<Vec<_>>().join(", ");
    let (policies, webhooks) = (all(|(name, _)| format!("`{name}`")), all(|(_, webhook)| format!("`{webhook}`")));
    [
        format!(
            "One namespace at a time: apply {policies} with `namespaces: [NAMESPACE]`, take that namespace out of the `namespaceSelector` of the \
             MutatingWebhookConfiguration {webhooks}, and create its pods again. Where both work, both add a container of one name: a conflict"
        ),
        "When no namespace is left, remove `namespaces`, and uninstall the old injector".to_owned(),
    ]
}
