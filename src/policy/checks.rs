//! The precedence table, one function per row, in order. The first that gives a reason decides.
//!
//! Row 0 (an object that brings its own initializers) cannot be seen here: the server never puts our name on such an
//! object, so that it never reaches a decision.

use super::{Policy, Reason, Site};
use crate::api::INJECT_KEY;
use crate::api::code::Code;
use crate::api::v1alpha1::{AnnotationSelector, HostNetworkPods, Operator, OptOut};
use crate::inject::marker;
use crate::workload::Workload;

/// A row: a reason to do nothing, or none.
pub type Check = fn(&Policy, &Workload, &Site) -> Option<Reason>;

/// The rows, in order.
pub const CHAIN: &[Check] = &[
    mirror_pod,       // row 1
    protected,        // row 2
    terminating,      // row 3
    host_network,     // row 4
    opted_out,        // row 5
    already_injected, // row 6
    target,           // row 7, in the order of the contract
    namespace,
    annotations,
];

/// True if and only if every requirement of row 7 holds. Rows 4 and 5 give an event only then.
pub fn selects(policy: &Policy, workload: &Workload, site: &Site) -> bool {
    [target, namespace, annotations].iter().all(|check: &Check| check(policy, workload, site).is_none())
}

fn reason(row: u8, code: Code, detail: impl Into<String>) -> Option<Reason> {
    Some(Reason { row, code, detail: detail.into() })
}

fn mirror_pod(_: &Policy, workload: &Workload, _: &Site) -> Option<Reason> {
    let source = workload.annotation("kubernetes.io/config.source");
    let is_static = source.is_some_and(|source| source != "api");
    if workload.kind.resource == "pods" && (workload.annotation("kubernetes.io/config.mirror").is_some() || is_static) {
        return reason(1, Code::MirrorPod, "the kubelet owns this pod");
    }
    None
}

fn protected(_: &Policy, workload: &Workload, site: &Site) -> Option<Reason> {
    if site.protected_namespaces.contains(workload.namespace()) {
        return reason(2, Code::NamespaceProtected, format!("namespace `{}` is protected", workload.namespace()));
    }
    None
}

fn terminating(_: &Policy, workload: &Workload, _: &Site) -> Option<Reason> {
    if workload.is_terminating() {
        return reason(3, Code::Terminating, "the object is being deleted");
    }
    None
}

fn host_network(policy: &Policy, workload: &Workload, _: &Site) -> Option<Reason> {
    if policy.spec.host_network_pods == HostNetworkPods::Inject {
        return None;
    }
    let spec = workload.pod_spec()?;
    let used = ["hostNetwork", "hostPID"].into_iter().find(|field| spec.get(*field).is_some_and(|on| on == true))?;
    reason(4, Code::HostNetwork, format!("the pod sets `{used}: true`"))
}

fn opted_out(policy: &Policy, workload: &Workload, _: &Site) -> Option<Reason> {
    if policy.spec.opt_out == OptOut::Denied {
        return None;
    }
    let said = refusal(policy, workload)?;
    reason(5, Code::OptedOut, format!("`{INJECT_KEY}: {said}` on the workload or its pod template"))
}

/// The value of `scpol.dev/inject` that keeps `policy` out of `workload`, whether or not the policy honours it.
pub fn refusal<'a>(policy: &Policy, workload: &'a Workload) -> Option<&'a str> {
    said(workload).into_iter().find(|value| {
        let mut names = value.split(',').map(str::trim).filter(|name| !name.is_empty()).peekable();
        // An empty value says nothing; it is reported by an event, and is no refusal.
        names.peek().is_some() && *value != "true" && !names.any(|name| name == policy.name)
    })
}

/// What the workload says through `scpol.dev/inject`, in all places where it may.
pub fn said(workload: &Workload) -> Vec<&str> {
    let mut places = vec![workload.annotation(INJECT_KEY), workload.label(INJECT_KEY)];
    if !workload.kind.pod_path.is_empty() {
        places.extend([workload.pod_annotation(INJECT_KEY), workload.pod_label(INJECT_KEY)]);
    }
    places.into_iter().flatten().collect()
}

fn already_injected(policy: &Policy, workload: &Workload, _: &Site) -> Option<Reason> {
    let marker = marker::read(workload, &policy.name)?;
    if marker.hash == policy.template.hash {
        return reason(6, Code::AlreadyInjected, format!("the marker has the current hash {}", marker.hash));
    }
    None
}

fn target(policy: &Policy, workload: &Workload, _: &Site) -> Option<Reason> {
    if policy.kinds.contains(&workload.kind) {
        return None;
    }
    reason(7, Code::TargetNotMatched, format!("`{}` is not among `spec.targets`", workload.kind.resource))
}

fn namespace(policy: &Policy, workload: &Workload, _: &Site) -> Option<Reason> {
    if policy.covers_namespace(workload.namespace()) {
        return None;
    }
    reason(7, Code::NamespaceNotMatched, format!("namespace `{}` is not selected", workload.namespace()))
}

fn annotations(policy: &Policy, workload: &Workload, _: &Site) -> Option<Reason> {
    let selector = policy.spec.annotation_selector.as_ref()?;
    let unmet = unmet(selector, workload)?;
    reason(7, Code::AnnotationNotMatched, unmet)
}

/// The first requirement of `selector` that the workload's own annotations do not satisfy.
fn unmet(selector: &AnnotationSelector, workload: &Workload) -> Option<String> {
    for (key, wanted) in &selector.match_annotations {
        match workload.annotation(key) {
            Some(value) if value == wanted => {}
            Some(value) => return Some(format!("annotation `{key}` is `{value}`, not `{wanted}`")),
            None => return Some(format!("annotation `{key}` is absent, not `{wanted}`")),
        }
    }
    selector.match_expressions.iter().find_map(|requirement| {
        let value = workload.annotation(&requirement.key);
        let values = requirement.values.as_deref().unwrap_or_default();
        let listed = value.is_some_and(|value| values.iter().any(|wanted| wanted == value));
        // As for label selectors: an absent key satisfies `NotIn`.
        let holds = match requirement.operator {
            Operator::In => listed,
            Operator::NotIn => !listed,
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        };
        (!holds)
            .then(|| format!("annotation `{}` does not satisfy `{}`", requirement.key, requirement.operator.as_str()))
    })
}
