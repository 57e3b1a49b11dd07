//! The pod of a workload, with the shape that injection needs.

use super::Template;
use super::marker::{self, UNNAMED};
use super::obstacle::Conflict;
use super::tables::{self, Entries, INNER, Inner, LISTS, List, MAPS, Scope};
use super::value;
use crate::api::code::Code;
use crate::api::v1alpha1::RawObject;
use crate::workload::Workload;
use json_patch::jsonptr::PointerBuf;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// The network that a pod's containers listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// The pod's own.
    Own,
    /// The host's: Kubernetes makes every container port a host port.
    Host,
}

/// A pod, or a pod template. The lists of its `spec` are lists, and the maps of its `metadata` are maps, if they exist.
pub(super) struct Pod<'a> {
    pub(super) workload: &'a Workload,
    spec: &'a RawObject,
}

impl<'a> Pod<'a> {
    /// The pod of `workload`.
    pub(super) fn of(workload: &'a Workload) -> Result<Self, Conflict> {
        let malformed = |at: &str, what: &str| Err(malformed(workload, at, what));
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
        let is_no_map = |value: &Value| !value.is_null() && !value.is_object();
        let Some(metadata) = pod.get("metadata") else { return Ok(Self { workload, spec }) };
        if is_no_map(metadata) {
            return malformed("/metadata", "map");
        }
        if let Some(map) = MAPS.iter().find(|map| metadata.get(map.field).is_some_and(is_no_map)) {
            return malformed(&format!("/metadata/{}", map.field), "map");
        }
        Ok(Self { workload, spec })
    }

    /// The items of `list` that are objects; an absent list has none.
    pub(super) fn items(&self, list: &List) -> impl Iterator<Item = &'a RawObject> + use<'a> {
        self.indexed(list).map(|(_, item)| item)
    }

    fn indexed(&self, list: &List) -> impl Iterator<Item = (usize, &'a RawObject)> + use<'a> {
        let items = self.spec.get(list.field).and_then(Value::as_array).into_iter().flatten().enumerate();
        items.filter_map(|(index, item)| Some((index, item.as_object()?)))
    }

    /// The item of `list` that is called `name`.
    pub(super) fn find(&self, list: &List, name: &str) -> Option<&'a RawObject> {
        self.items(list).find(|item| list.key_of(item) == name)
    }

    /// True if and only if a volume claim template of the StatefulSet is called `name`: its volume in every pod.
    pub(super) fn claims(&self, name: &str) -> bool {
        let claims = || self.workload.body["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
        self.workload.kind.resource == "statefulsets"
            && self.workload.kind.group == "apps"
            && claims().any(|claim| claim["metadata"]["name"] == name)
    }

    /// The volumes that containers of the pod can mount, by name; none for a volume claim template.
    pub(super) fn volumes(&self) -> HashMap<&'a str, Option<&'a RawObject>> {
        let mut volumes = HashMap::new();
        if self.workload.kind.resource == "statefulsets" && self.workload.kind.group == "apps" {
            let claims = self.workload.body["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
            volumes.extend(claims.filter_map(|claim| Some((claim["metadata"]["name"].as_str()?, None))));
        }
        for list in LISTS.iter().filter(|list| list.scope == Scope::Volumes) {
            for volume in self.items(list) {
                let there = volumes.entry(value::text(volume, "name")).or_insert(None);
                *there = there.or(Some(volume));
            }
        }
        volumes
    }

    /// True if and only if containers of the pod can mount a volume called `name`.
    pub(super) fn has_volume(&self, name: &str) -> bool {
        self.claims(name)
            || LISTS.iter().filter(|list| list.scope == Scope::Volumes).any(|list| self.find(list, name).is_some())
    }

    /// A field of its `spec`; null counts as absent.
    pub(super) fn value(&self, path: &[&str]) -> Option<&'a Value> {
        value::at(self.spec, path)
    }

    /// The entries of a map of its metadata.
    pub(super) fn entries(&self, map: &Entries) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        let map = self.workload.pod().and_then(|pod| pod.get("metadata")?.get(map.field)?.as_object());
        map.into_iter().flatten()
    }

    /// The object around the pod template, such as the `spec` of a Deployment; none for a pod.
    pub(super) fn owner(&self) -> Option<&'a RawObject> {
        let (_, path) = self.workload.kind.pod_path.as_ref()?.split_last()?;
        path.iter().try_fold(&self.workload.body, |at, step| at.get(step))?.as_object()
    }

    /// Its `spec`.
    pub(super) fn spec_value(&self) -> Option<&'a Value> {
        self.workload.pod()?.get("spec")
    }

    /// The pointer of `steps` below its `spec` in the workload.
    pub(super) fn pointer_below_spec(&self, steps: &[&str]) -> PointerBuf {
        self.pointer(&[&["spec"], steps].concat())
    }

    /// The network that its containers listen on.
    pub(super) fn network(&self) -> Network {
        match self.spec.get("hostNetwork") {
            Some(Value::Bool(true)) => Network::Host,
            _ => Network::Own,
        }
    }

    /// The value of `key` in a map of the pod's metadata.
    pub(super) fn entry(&self, map: &Entries, key: &str) -> Option<&'a Value> {
        self.workload.pod()?.get("metadata")?.get(map.field)?.get(key)
    }

    /// The user's own containers that `template` reaches into: without those that a template of `matching` names, and
    /// without those in markers, except in an earlier marker of a matching policy.
    ///
    /// # Errors
    /// If a container has no name, an impossible name or the name of another one, or if one of its lists is no list: a
    /// marker could not name our additions.
    pub(super) fn own(&self, template: &Template, matching: &[&Template]) -> Result<Vec<OwnContainer<'a>>, Conflict> {
        if !tables::reaches_in(&template.spec) {
            return Ok(Vec::new());
        }
        self.own_picked(template, matching, template.picks())
    }

    /// As [`Self::own`], with the containers whose names `picks` takes.
    pub(super) fn own_picked(
        &self,
        template: &Template,
        matching: &[&Template],
        picks: impl Fn(&str) -> bool,
    ) -> Result<Vec<OwnContainer<'a>>, Conflict> {
        let marked = marker::containers(self.workload, matching);
        let is_ours = |name: &str| marked.contains(name) || matching.iter().any(|other| other.names_container(name));
        let mut own = Vec::new();
        let mut seen = HashSet::new();
        for list in LISTS.iter().filter(|list| template.reaches(list)) {
            for (index, item) in self.indexed(list) {
                let name = list.key_of(item);
                if name.is_empty() || name.contains(UNNAMED) || !seen.insert(name) {
                    return Err(malformed(
                        self.workload,
                        &format!("/spec/{}/{index}/name", list.field),
                        "name of its own",
                    ));
                }
                if is_ours(name) || !picks(name) {
                    continue;
                }
                let is_list =
                    |inner: &&Inner| item.get(inner.field).is_none_or(|value| value.is_null() || value.is_array());
                if let Some(inner) = INNER.iter().find(|inner| !is_list(inner)) {
                    return Err(malformed(
                        self.workload,
                        &format!("/spec/{}/{index}/{}", list.field, inner.field),
                        "list",
                    ));
                }
                own.push(OwnContainer { list, index, name, item });
            }
        }
        Ok(own)
    }

    /// The pointer of `list` in the workload.
    pub(super) fn pointer_of(&self, list: &List) -> PointerBuf {
        self.pointer(&["spec", list.field])
    }

    /// The pointer of `map` in the workload.
    pub(super) fn pointer_of_map(&self, map: &Entries) -> PointerBuf {
        self.pointer(&["metadata", map.field])
    }

    /// The pointer of the pod's annotations in the workload.
    pub(super) fn annotations_pointer(&self) -> PointerBuf {
        self.pointer(&["metadata", "annotations"])
    }

    /// The pointers of `inner` of `own` in the workload: for a patch, with the container's index, and for a marker,
    /// with its name.
    pub(super) fn pointers_in(&self, own: &OwnContainer<'_>, inner: &Inner) -> (PointerBuf, PointerBuf) {
        let index = own.index.to_string();
        (
            self.pointer(&["spec", own.list.field, &index, inner.field]),
            self.pointer(&["spec", own.list.field, own.name, inner.field]),
        )
    }

    fn pointer(&self, below: &[&str]) -> PointerBuf {
        PointerBuf::from_tokens(
            self.workload.kind.pod_path.iter().flatten().map(String::as_str).chain(below.iter().copied()),
        )
    }
}

/// A container of the user's own.
pub(super) struct OwnContainer<'a> {
    /// The list with the container.
    pub(super) list: &'static List,
    index: usize,
    pub(super) name: &'a str,
    item: &'a RawObject,
}

impl<'a> OwnContainer<'a> {
    /// The item of `inner` that is in effect for `key`.
    pub(super) fn find(&self, inner: &Inner, key: &str) -> Option<&'a RawObject> {
        inner.in_effect(self.item, key)
    }

    pub(super) fn item(&self) -> &'a RawObject {
        self.item
    }
}

fn malformed(workload: &Workload, at: &str, what: &str) -> Conflict {
    let (kind, pointer) = (workload.kind_name(), workload.pod_pointer());
    Conflict { code: Code::NoPodTemplate, message: format!("the {kind} has no {what} at `{pointer}{at}`") }
}
