//! What a template can add to a pod, as one table. Everything else walks over it: a new kind of content is a new row.

use crate::api::v1alpha1::{Place, Position, RawObject, Template};

/// A list of the pod's `spec` that templates add items to.
#[derive(Debug)]
pub(super) struct List {
    /// The field of the pod's `spec`.
    pub(super) field: &'static str,
    /// One of its items, in a sentence.
    pub(super) noun: &'static str,
    /// The field of an item that names it.
    pub(super) key: &'static str,
    /// The lists of one scope must not have one name twice between them.
    pub(super) scope: Scope,
    /// Whether the fields of an item exclude each other, so that one more field is another item.
    pub(super) fields: Fields,
    /// What a template adds to it.
    pub(super) items: fn(&Template) -> &[RawObject],
    /// On which side of the user's items they go.
    pub(super) place: fn(Position) -> Place,
}

/// Names that Kubernetes wants unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Containers and init containers share theirs.
    Containers,
    /// Volumes, the volume claim templates of a StatefulSet included.
    Volumes,
}

/// What it means that an object has a field which its counterpart lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fields {
    /// Nothing: defaulting and admission add fields.
    Open,
    /// A difference: the object is a choice between its fields, such as the sources of a volume.
    Closed,
}

/// The table. Volumes first, so that a reader of the patch meets them before their mounts.
pub(super) static LISTS: [List; 3] = [
    List {
        field: "volumes",
        noun: "volume",
        key: "name",
        scope: Scope::Volumes,
        fields: Fields::Closed,
        items: |template| &template.volumes,
        place: |_| Place::After,
    },
    List {
        field: INIT_CONTAINERS,
        noun: "init container",
        key: "name",
        scope: Scope::Containers,
        fields: Fields::Open,
        items: |template| &template.init_containers,
        place: |position| position.init_containers,
    },
    List {
        field: "containers",
        noun: "container",
        key: "name",
        scope: Scope::Containers,
        fields: Fields::Open,
        items: |template| &template.containers,
        place: |position| position.containers,
    },
];

/// The field of the init containers.
pub(super) const INIT_CONTAINERS: &str = "initContainers";

impl List {
    /// The name of `item`; empty if it has none, which no valid policy has.
    pub(super) fn key_of<'a>(&self, item: &'a RawObject) -> &'a str {
        item.get(self.key).and_then(|key| key.as_str()).unwrap_or_default()
    }

    /// Every list whose names must differ from this one's, itself included.
    pub(super) fn scope(&self) -> impl Iterator<Item = &'static List> {
        let scope = self.scope;
        LISTS.iter().filter(move |other| other.scope == scope)
    }

    /// True if and only if `other` is this row.
    pub(super) fn is(&self, other: &List) -> bool {
        self.field == other.field
    }
}
