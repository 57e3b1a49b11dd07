//! The merge: it turns additions to lists and maps into JSON Patch operations and markers.

use super::marker::Marker;
use super::owners::Owned;
use crate::api::v1alpha1::Place;
use json_patch::jsonptr::{Pointer, PointerBuf};
use json_patch::{AddOperation, PatchOperation};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::iter::successors;

/// An addition to a list or a map.
#[derive(Clone, Debug)]
pub(super) struct Addition {
    /// The index of its template.
    pub(super) owner: usize,
    /// The name within the list or map.
    pub(super) key: String,
    pub(super) value: Value,
    /// The side of the existing items. It has no meaning in a map.
    pub(super) place: Place,
}

/// All additions to one list or map, in the order of priority.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// The pointer of the list or map.
    pub(super) parent: PointerBuf,
    /// The same pointer as in a marker: with keys of items instead of indexes.
    pub(super) keyed: PointerBuf,
    pub(super) shape: Shape,
    /// The additions, without items that exist already.
    pub(super) additions: Vec<Addition>,
    /// What the markers list of it, in their order: the index of the template, and the key.
    pub(super) listed: Vec<(usize, String)>,
}

impl Group {
    /// The list or map at `parent`, without additions. The pointer must not pass through a list.
    pub(super) fn at(parent: PointerBuf, shape: Shape) -> Self {
        Self { keyed: parent.clone(), parent, shape, additions: Vec::new(), listed: Vec::new() }
    }

    /// True if and only if `key` is added.
    pub(super) fn adds(&self, key: &str) -> bool {
        self.additions.iter().any(|addition| addition.key == key)
    }

    /// True if and only if the marker of `owner` lists `key`.
    pub(super) fn lists(&self, owner: usize, key: &str) -> bool {
        self.listed.iter().any(|(own, listed)| *own == owner && listed == key)
    }

    /// The marker of the template `owner` lists `key`, which is there or is added.
    pub(super) fn list(&mut self, owner: usize, key: &str) {
        self.listed.push((owner, key.to_owned()));
    }

    /// Gives the template of `addition` what it adds. `is_there`: whether the list or map has it already. Then it is listed if
    /// a marker that stays lists it.
    pub(super) fn give(&mut self, addition: Addition, is_there: bool, owned: &Owned) {
        if is_there && !owned.has(&self.keyed.with_trailing_token(addition.key.as_str())) {
            return;
        }
        self.list(addition.owner, &addition.key);
        if !is_there && !self.adds(&addition.key) {
            self.additions.push(addition);
        }
    }
}

/// The target of a [`Group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Items that carry their key within them.
    List,
    /// Values under their keys.
    Map,
}

/// The operations that make `groups` part of `body`, in order.
pub(super) fn operations(body: &Value, groups: Vec<Group>) -> Vec<PatchOperation> {
    let mut operations = Vec::new();
    let mut created = BTreeSet::new();
    for group in groups.into_iter().filter(|group| !group.additions.is_empty()) {
        let absent = absent(body, &group.parent).into_iter().find(|parent| !created.contains(*parent));
        match absent.map(Pointer::to_buf) {
            None => insert(&mut operations, group),
            Some(first) => {
                let below = ancestors(&group.parent).take_while(|parent| parent.starts_with(&first));
                created.extend(below.map(Pointer::to_buf));
                operations.push(create(&first, group));
            }
        }
    }
    operations
}

/// The marker of each of the `owners`, for what `groups` list of it.
pub(super) fn records(body: &Value, groups: &[Group], owned: &Owned, owners: usize) -> Vec<Marker> {
    let mut records = vec![Marker::default(); owners];
    for group in groups.iter().filter(|group| !group.listed.is_empty()) {
        let created = owned.created(body, &group.parent, &group.keyed);
        for (owner, key) in &group.listed {
            let record = &mut records[*owner];
            record.extend(&created);
            record.added.push(group.keyed.with_trailing_token(key.as_str()).to_string());
        }
    }
    records
}

/// `parent` and its ancestors that are absent or null, outermost first.
fn absent<'a>(body: &Value, parent: &'a Pointer) -> Vec<&'a Pointer> {
    let is_absent = |at: &&Pointer| at.resolve(body).map_or(true, Value::is_null);
    let mut absent: Vec<&Pointer> = ancestors(parent).take_while(is_absent).collect();
    absent.reverse();
    absent
}

/// `parent` and its ancestors, innermost first, without the root.
fn ancestors(parent: &Pointer) -> impl Iterator<Item = &Pointer> {
    successors(Some(parent), |at| at.parent()).take_while(|at| !at.is_root())
}

/// Adds to an existing list or map.
fn insert(operations: &mut Vec<PatchOperation>, group: Group) {
    let mut before = 0;
    for addition in group.additions {
        let token = match (group.shape, addition.place) {
            (Shape::Map, _) => addition.key,
            (Shape::List, Place::After) => "-".to_owned(),
            (Shape::List, Place::Before) => {
                before += 1;
                (before - 1).to_string()
            }
        };
        operations.push(add(group.parent.with_trailing_token(token), addition.value));
    }
}

/// Creates a missing list or map with its missing ancestors, from `first` down.
fn create(first: &Pointer, group: Group) -> PatchOperation {
    let mut value = whole(group.shape, group.additions);
    let missing = group.parent.count() - first.count();
    let tokens: Vec<String> = group.parent.tokens().map(|token| token.decoded().into_owned()).collect();
    for token in tokens.into_iter().rev().take(missing) {
        value = Value::Object(Map::from_iter([(token, value)]));
    }
    add(first.to_buf(), value)
}

fn whole(shape: Shape, additions: Vec<Addition>) -> Value {
    match shape {
        Shape::Map => additions.into_iter().map(|addition| (addition.key, addition.value)).collect(),
        Shape::List => {
            let (before, after): (Vec<_>, Vec<_>) =
                additions.into_iter().partition(|addition| addition.place == Place::Before);
            before.into_iter().chain(after).map(|addition| addition.value).collect()
        }
    }
}

/// The operation that puts `value` at `path`. A field that is there is replaced.
pub(super) fn add(path: PointerBuf, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path, value })
}
