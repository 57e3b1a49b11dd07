//! What became of an attempt to bring one workload up to date.

use super::member::Member;
use crate::api::code::Code;
use crate::outside::shown;
use crate::workload::Workload;
use serde_json::Value;

/// The name under which `metadata.managedFields` has the patches of rollouts.
pub const FIELD_MANAGER: &str = "scpol";
/// The most field managers that a message names.
const NAMED: usize = 3;

/// What was done to a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Done {
    /// The pod was evicted.
    Evicted,
    /// The workload or pod was patched, and has this `resourceVersion` since.
    Patched(u64),
}

/// The result of an attempt on one workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Done(Done),
    /// In that version it matches no more, or carries the revision already. None: it is gone.
    NotNeeded(Option<u64>),
    /// It has changed since that version was read. The watch shows its new version.
    Changed(u64),
    /// In that version it can only be evicted, with the reason. Nothing was written.
    NeedsEviction(u64, String),
    /// In that version it cannot be brought up to date.
    Left(u64, Why),
    /// A PodDisruptionBudget does not allow it now. Holds its words.
    Blocked(String),
    /// A right is missing.
    Refused(String),
    /// The server does not answer, or has too much to do: the write may have happened.
    Failed(String),
}

impl Answer {
    /// Whether the watch is to show another version than `member`, or that it is gone. If it does not for a while, the answer was about
    /// something else.
    pub(super) fn expects_another(&self, member: &Member) -> bool {
        match self {
            Self::NotNeeded(version) => version.is_none(),
            Self::Changed(version) => member.version <= *version,
            _ => false,
        }
    }

    /// Whether the attempt was no eviction for certain.
    pub fn is_no_eviction(&self) -> bool {
        !matches!(self, Self::Done(Done::Evicted) | Self::Failed(_))
    }
}

/// Why a workload is left as it is, or waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Why {
    pub code: Code,
    pub message: String,
}

/// Why `workload` is left: another client puts it back after each patch.
pub fn put_back(workload: &Workload) -> Why {
    let what = if workload.kind.is_pod() { "the pod" } else { "the pod template" };
    let managers = managers(workload);
    let who = match managers.as_slice() {
        [] => "See who writes it: an operator, a GitOps controller, or a mutating webhook".to_owned(),
        names => format!("Its field managers besides the operator, the last one first: {}", names.join(", ")),
    };
    Why { code: Code::PutBack, message: format!("{what} was patched, and is put back each time. {who}") }
}

/// The clients that own fields of the pod template of `workload`, as `metadata.managedFields` says: the last one first, without ours.
///
/// Who only removes fields leaves no trace there. But who removes a sidecar writes the rest of the template as well.
fn managers(workload: &Workload) -> Vec<String> {
    let pointer = workload.pod_pointer();
    let path: Vec<String> = match workload.kind.is_pod() {
        true => vec!["f:spec".to_owned()],
        false => pointer.split('/').skip(1).map(|field| format!("f:{field}")).collect(),
    };
    let owns = |entry: &&Value| path.iter().try_fold(&entry["fieldsV1"], |at, field| at.get(field)).is_some();
    let entries = workload.body["metadata"]["managedFields"].as_array().into_iter().flatten();
    let mut entries: Vec<&Value> = entries.filter(|entry| entry["subresource"].is_null()).filter(owns).collect();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry["time"].as_str().unwrap_or_default()));
    let mut names: Vec<String> = Vec::new();
    for name in entries.iter().filter_map(|entry| entry["manager"].as_str()).filter(|name| *name != FIELD_MANAGER) {
        let name = format!("`{}`", shown(name));
        if names.len() < NAMED && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;
    use serde_json::json;

    #[test]
    fn the_clients_that_write_the_template_are_named_the_last_one_first() {
        let entry =
            |manager: &str, time: &str, fields: Value| json!({ "manager": manager, "time": time, "fieldsV1": fields });
        let template = || json!({ "f:spec": { "f:template": { "f:spec": {} } } });
        let mut status = entry("kube-controller-manager", "2026-01-01T09:00:00Z", template());
        status["subresource"] = json!("status");
        let managed = json!([
            entry("helm", "2026-01-01T00:00:00Z", template()),
            entry("jaeger-operator", "2026-01-01T00:00:03Z", template()),
            entry(FIELD_MANAGER, "2026-01-01T00:00:04Z", template()),
            entry("autoscaler", "2026-01-01T00:00:05Z", json!({ "f:spec": { "f:replicas": {} } })),
            entry("jaeger-operator", "2025-01-01T00:00:00Z", template()),
            entry("bell\u{7}", "2024-01-01T00:00:00Z", template()),
            entry("fourth", "2023-01-01T00:00:00Z", template()),
            status,
        ]);
        let of = |managed: Value| {
            let kind = Kind::find("apps", "deployments").unwrap();
            put_back(&Workload::new(kind, json!({ "metadata": { "managedFields": managed } }))).message
        };
        let told = of(managed);
        assert!(told.contains(": `jaeger-operator`, `helm`, `bell"), "{told}");
        assert!(!told.contains('\u{7}') && !told.contains("fourth") && !told.contains("`scpol`"), "{told}");
        for unknown in [Value::Null, json!("x"), json!([1, { "manager": 2 }]), json!([entry("scpol", "", template())])]
        {
            assert!(of(unknown).contains("mutating webhook"));
        }
    }
}
