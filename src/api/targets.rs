//! Which resources a policy may target. The rules about them are in [`super::rules`].

use super::format;
use super::v1alpha1::Target;
use crate::workload::{KINDS, Kind};

/// What a target is.
pub(super) enum Class {
    /// A built-in kind that can be injected; or one that is not well-formed, which is the schema's business.
    Served,
    /// A built-in kind without a pod: for validations only.
    Bare,
    /// A Job.
    Job,
    /// What no policy may choose.
    Refused,
    /// A built-in kind, under a name or group that it does not have.
    Misnamed(&'static Kind),
    /// Anything else: a custom resource, or a built-in kind without a pod template.
    Other,
}

/// Resources of Kubernetes itself that no policy may choose. Those that others are made from or by: their owners would
/// fight with us, or the control plane would wait for itself.
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

/// Those that are in no namespace.
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

/// True if and only if the group is one of Kubernetes itself: `services` of another group may well have a pod template.
fn is_built_in(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io") || group == super::GROUP
}

/// CEL: the target is none that no policy may choose.
pub(super) fn refuses_resources() -> String {
    let names: Vec<_> = MADE_BY_OTHERS.iter().chain(&CLUSTER_SCOPED).map(|name| format!("'{name}'")).collect();
    let built_in =
        format!("(!self.group.contains('.') || self.group.endsWith('.k8s.io') || self.group == '{}')", super::GROUP);
    format!("!({built_in} && self.resource in [{}])", names.join(", "))
}

/// What `target` is.
pub(super) fn classify(target: &Target) -> Class {
    let resource = target.resource.as_str();
    let is_meant = |kind: &&Kind| kind.resource == resource || kind.resource.strip_suffix('s') == Some(resource);
    let is_refused = || MADE_BY_OTHERS.contains(&resource) || CLUSTER_SCOPED.contains(&resource);
    match Kind::find(&target.group, resource) {
        Some(kind) if kind.resource == "jobs" => Class::Job,
        Some(kind) if kind.pod_path.is_none() => Class::Bare,
        Some(_) => Class::Served,
        None if !format::is_group(&target.group) || !format::is_resource(resource) => Class::Served,
        None if !is_built_in(&target.group) => Class::Other,
        None if is_refused() => Class::Refused,
        None => KINDS
            .iter()
            .find(is_meant)
            .map_or(Class::Other, |kind| if kind.resource == "jobs" { Class::Job } else { Class::Misnamed(kind) }),
    }
}

/// How a target of `kind` is written.
pub(super) fn spelt(kind: &Kind) -> String {
    format!("write `{{group: \"{}\", resource: {}}}`", kind.group, kind.resource)
}
