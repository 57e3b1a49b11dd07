//! The pod of a workload, once it is known to have the shape that injection needs.

use super::conflict::Conflict;
use super::content::{LISTS, List, Scope};
use crate::api::code::Code;
use crate::api::v1alpha1::RawObject;
use crate::workload::Workload;
use json_patch::jsonptr::PointerBuf;
use serde_json::Value;

/// Whose network a pod's containers listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    /// The pod's own.
    Own,
    /// The host's: Kubernetes makes every container port a host port.
    Host,
}

/// A pod, or a pod template: a `spec`, whose lists are lists, and `metadata`, whose maps are maps, where they are there.
pub(super) struct Pod<'a> {
    pub(super) workload: &'a Workload,
    spec: &'a RawObject,
}

impl<'a> Pod<'a> {
    /// The pod of `workload`.
    pub(super) fn of(workload: &'a Workload) -> Result<Self, Conflict> {
        let malformed = |at: &str, what: &str| {
            let (kind, pointer) = (workload.kind.kind, workload.pod_pointer());
            Err(Conflict { code: Code::NoPodTemplate, message: format!("the {kind} has no {what} at `{pointer}{at}`") })
        };
        let Some(pod) = workload.pod().filter(|pod| pod.is_object()) else {
            return malformed("", "pod template");
        };
        let Some(spec) = workload.pod_spec() else {
            return malformed("/spec", "pod spec");
        };
        for list in &LISTS {
            if spec.get(list.field).is_some_and(|items| !items.is_null() && !items.is_array()) {
                return malformed(&format!("/spec/{}", list.field), "list");
            }
        }
        for at in ["/metadata", "/metadata/annotations"] {
            if pod.pointer(at).is_some_and(|map| !map.is_null() && !map.is_object()) {
                return malformed(at, "map");
            }
        }
        Ok(Self { workload, spec })
    }

    /// The items of `list` that are objects; an absent list has none.
    pub(super) fn items(&self, list: &List) -> impl Iterator<Item = &'a RawObject> + use<'a> {
        self.spec.get(list.field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
    }

    /// The item of `list` that is called `name`.
    pub(super) fn find(&self, list: &List, name: &str) -> Option<&'a RawObject> {
        self.items(list).find(|item| list.key_of(item) == name)
    }

    /// True if and only if a volume claim template of the StatefulSet is called `name`: its volume in every pod.
    pub(super) fn claims(&self, name: &str) -> bool {
        let claims = self.workload.body.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
        self.workload.kind.kind == "StatefulSet"
            && claims.into_iter().flatten().any(|claim| claim["metadata"]["name"] == name)
    }

    /// True if and only if containers of the pod can mount a volume called `name`.
    pub(super) fn has_volume(&self, name: &str) -> bool {
        self.claims(name)
            || LISTS.iter().filter(|list| list.scope == Scope::Volumes).any(|list| self.find(list, name).is_some())
    }

    /// Whose network its containers listen on.
    pub(super) fn network(&self) -> Network {
        match self.spec.get("hostNetwork") {
            Some(Value::Bool(true)) => Network::Host,
            _ => Network::Own,
        }
    }

    /// Where `list` lies in the workload.
    pub(super) fn pointer_of(&self, list: &List) -> PointerBuf {
        self.pointer(&["spec", list.field])
    }

    /// Where the pod's annotations lie in the workload.
    pub(super) fn annotations_pointer(&self) -> PointerBuf {
        self.pointer(&["metadata", "annotations"])
    }

    fn pointer(&self, below: &[&'static str]) -> PointerBuf {
        PointerBuf::from_tokens(self.workload.kind.pod_path.iter().chain(below).copied())
    }
}
