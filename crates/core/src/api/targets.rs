//! The classes of resources for targets. The rules about them are in [`super::rules`].

use super::format;
use super::v1alpha1::Target;
use crate::workload::{KINDS, Kind, is_built_in};
use std::collections::HashMap;
use std::sync::Arc;

pub(super) enum Class {
    /// A kind that can be injected; or a malformed target, which the schema reports.
    Served,
    /// A built-in kind without injection: for validations only.
    Bare,
    /// A Job: for every engine but Initializer, because the pod template of a stored Job is immutable.
    Job,
    /// A resource that no policy may target.
    Refused,
    /// A built-in kind with a wrong name or group.
    Misnamed(&'static Kind),
}

/// Built-in resources that no policy may target, because controllers create them, or create others from them. Their
/// owners would revert our changes, or the control plane would wait for itself.
const MADE_BY_OTHERS: [&str; 9] = [
    "configmaps",
    "controllerrevisions",
    "endpoints",
    "endpointslices",
    "events",
    "leases",
    "replicasets",
    "serviceaccounts",
    "services",
];

const CLUSTER_SCOPED: [&str; 42] = [
    "apiservices",
    "certificatesigningrequests",
    "clusterrolebindings",
    "clusterroles",
    "clustertrustbundles",
    "componentstatuses",
    "csidrivers",
    "csinodes",
    "customresourcedefinitions",
    "deviceclasses",
    "devicetaintrules",
    "flowschemas",
    "ingressclasses",
    "initializerconfigurations",
    "ipaddresses",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "mutatingwebhookconfigurations",
    "namespaces",
    "nodes",
    "persistentvolumes",
    "podsecuritypolicies",
    "priorityclasses",
    "prioritylevelconfigurations",
    "resourcepoolstatusrequests",
    "resourceslices",
    "runtimeclasses",
    "selfsubjectaccessreviews",
    "selfsubjectreviews",
    "selfsubjectrulesreviews",
    "servicecidrs",
    "sidecarpolicies",
    "storageclasses",
    "storageversionmigrations",
    "storageversions",
    "subjectaccessreviews",
    "tokenreviews",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "validatingwebhookconfigurations",
    "volumeattachments",
    "volumeattributesclasses",
];

/// CEL: the target is not a forbidden one.
pub(super) fn refuses_resources() -> String {
    let names: Vec<_> = MADE_BY_OTHERS.iter().chain(&CLUSTER_SCOPED).map(|name| format!("'{name}'")).collect();
    let built_in =
        format!("(!self.group.contains('.') || self.group.endsWith('.k8s.io') || self.group == '{}')", super::GROUP);
    format!("!({built_in} && self.resource in [{}])", names.join(", "))
}

/// CEL: no target is a Job if the engine is Initializer.
pub(super) fn spares_jobs() -> &'static str {
    "!has(self.engine) || self.engine != 'Initializer' || !has(self.targets) || !self.targets.exists(target, \
     target.group == 'batch' && target.resource == 'jobs')"
}

/// CEL: a target that acts on updates is a kind whose stored objects can change.
pub(super) fn spares_updates() -> &'static str {
    "!has(self.operations) || !('UPDATE' in self.operations) || !((self.group == '' && self.resource == 'pods') || \
     (self.group == 'batch' && self.resource == 'jobs'))"
}

/// CEL: no target acts on updates if the engine is Initializer.
pub(super) fn only_creates() -> &'static str {
    "!has(self.engine) || self.engine != 'Initializer' || !has(self.targets) || !self.targets.exists(target, \
     has(target.operations) && 'UPDATE' in target.operations)"
}

/// True if and only if an update cannot change what a policy adds to `target`: the containers of a stored pod, and the
/// pod template of a stored Job, are immutable.
pub(super) fn is_immutable(target: &Target) -> bool {
    let kind = Kind::find(&target.group, &target.resource);
    kind.is_some_and(|kind| ["pods", "jobs"].contains(&kind.resource.as_str()))
}

pub(super) fn classify(target: &Target) -> Class {
    let resource = target.resource.as_str();
    let is_meant = |kind: &&Arc<Kind>| kind.resource == resource || kind.resource.strip_suffix('s') == Some(resource);
    let is_refused = || MADE_BY_OTHERS.contains(&resource) || CLUSTER_SCOPED.contains(&resource);
    match Kind::find(&target.group, resource) {
        Some(kind) if kind.resource == "jobs" => Class::Job,
        Some(kind) if kind.pod_path.is_none() => Class::Bare,
        Some(_) => Class::Served,
        None if !format::is_group(&target.group) || !format::is_resource(resource) => Class::Served,
        None if !is_built_in(&target.group) => Class::Served,
        None if is_refused() => Class::Refused,
        None => KINDS.iter().find(is_meant).map_or(Class::Bare, |kind| Class::Misnamed(kind)),
    }
}

/// The spelling of a target of `kind`.
pub(super) fn spelt(kind: &Kind) -> String {
    format!("write `{{group: \"{}\", resource: {}}}`", kind.group, kind.resource)
}

/// The fault of a `templatePath` in `target` that contradicts a built-in kind.
pub(super) fn wrong_path(target: &Target) -> Option<String> {
    let said = target.template_path.as_deref()?;
    let kind = Kind::of(&target.group, &target.resource, Some(said));
    match kind.template_path() {
        Some(path) if path == said => None,
        Some(path) if path.is_empty() => Some("a pod is its own template".to_owned()),
        Some(path) => Some(format!("that of `{}` lies at `{path}`", target.resource)),
        None => Some(format!("`{}` have no pod template that anything is put into", target.resource)),
    }
}

/// The targets that give a resource another path than an earlier target: index and the earlier path.
pub(super) fn second_paths(targets: &[Target]) -> Vec<(usize, String)> {
    let mut first: HashMap<Arc<Kind>, usize> = HashMap::new();
    let mut second = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        let kind = Kind::of(&target.group, &target.resource, target.template_path.as_deref());
        let path = kind.template_path();
        match first.get_key_value(&kind) {
            Some((earlier, place)) if earlier.template_path() != path => {
                let path = earlier.template_path().unwrap_or_default();
                second.push((index, format!("`spec.targets[{place}]` says `{path}`")));
            }
            Some(_) => {}
            None => drop(first.insert(kind, index)),
        }
    }
    second
}
