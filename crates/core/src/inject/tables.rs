//! The content of templates, as three tables. Injection, conflicts and MutatingAdmissionPolicies iterate over them: new
//! content is a new row. `CONTRIBUTING.md` lists the places that name the content one by one.

use super::Template;
use super::value::text;
use crate::api::mount_path;
use crate::api::pod_schema::is_native_sidecar;
use crate::api::v1alpha1::{self, EnvPlace, Place, RawObject};
use serde_json::Value;
use std::collections::BTreeMap;

/// A list of the pod's `spec` that templates add items to.
#[derive(Debug)]
pub(crate) struct List {
    /// The field of the pod's `spec`.
    pub(crate) field: &'static str,
    /// One of its items, for a sentence.
    pub(crate) noun: &'static str,
    /// The names in all lists of one scope must be unique.
    pub(crate) scope: Scope,
    /// Whether the fields of an item exclude each other, so that another field makes another item.
    pub(crate) fields: Fields,
    /// The items that a template adds.
    pub(crate) items: fn(&v1alpha1::Template) -> &[RawObject],
    /// The side of the user's items on which an item goes.
    pub(crate) place: fn(&Template, &RawObject) -> Place,
}

/// Names that Kubernetes wants unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Containers and init containers share theirs.
    Containers,
    /// Volumes, the volume claim templates of a StatefulSet included.
    Volumes,
    PullSecrets,
}

/// The meaning of a field that only one of two compared objects has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fields {
    /// None, because defaulting and admission add fields.
    Open,
    /// A difference: the object is a choice between its fields, such as the sources of a volume.
    Closed,
}

/// The lists of the pod. Volumes come first, so that a reader of the patch meets them before their mounts.
pub(crate) static LISTS: [List; 4] = [
    List {
        field: "volumes",
        noun: "volume",
        scope: Scope::Volumes,
        fields: Fields::Closed,
        items: |template| &template.volumes,
        place: |_, _| Place::After,
    },
    List {
        field: "imagePullSecrets",
        noun: "image pull secret",
        scope: Scope::PullSecrets,
        fields: Fields::Open,
        items: |template| &template.image_pull_secrets,
        place: |_, _| Place::After,
    },
    List {
        field: INIT_CONTAINERS,
        noun: "init container",
        scope: Scope::Containers,
        fields: Fields::Open,
        items: |template| &template.init_containers,
        // The user's init containers may need the sidecar.
        place: |template, item| if is_native_sidecar(item) { Place::Before } else { template.position.init_containers },
    },
    List {
        field: CONTAINERS,
        noun: "container",
        scope: Scope::Containers,
        fields: Fields::Open,
        items: |template| &template.containers,
        place: |template, _| template.position.containers,
    },
];

/// The annotation that names the default container of kubectl's `exec` and `logs`.
pub(crate) const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
pub(crate) const CONTAINERS: &str = "containers";
/// The field of the init containers.
pub(crate) const INIT_CONTAINERS: &str = "initContainers";

impl List {
    /// The list of that field of the pod's `spec`.
    pub(crate) fn named(field: &str) -> Option<&'static Self> {
        LISTS.iter().find(|list| list.field == field)
    }

    /// The name of `item`; empty if missing, which no valid policy allows.
    pub(crate) fn key_of<'a>(&self, item: &'a RawObject) -> &'a str {
        text(item, "name")
    }

    /// Every list of the same scope, including this one.
    pub(crate) fn scope(&self) -> impl Iterator<Item = &'static List> {
        let scope = self.scope;
        LISTS.iter().filter(move |other| other.scope == scope)
    }

    /// True if and only if `other` is this row.
    pub(crate) fn is(&self, other: &List) -> bool {
        self.field == other.field
    }
}

/// A map of the pod's `metadata` that templates add entries to.
#[derive(Debug)]
pub(crate) struct Entries {
    /// The field of the pod's `metadata`.
    pub(crate) field: &'static str,
    /// One of its entries, for a sentence.
    pub(crate) noun: &'static str,
    /// The entries that a template adds.
    pub(crate) entries: fn(&v1alpha1::TemplateMetadata) -> &BTreeMap<String, String>,
}

/// The maps of the pod.
pub(crate) static MAPS: [Entries; 2] = [
    Entries { field: "labels", noun: "label", entries: |metadata| &metadata.labels },
    Entries { field: "annotations", noun: "annotation", entries: |metadata| &metadata.annotations },
];
pub(crate) static LABELS: &Entries = &MAPS[0];
pub(crate) static ANNOTATIONS: &Entries = &MAPS[1];

impl Entries {
    /// The entries that `template` adds.
    pub(crate) fn of<'a>(
        &self,
        template: &'a v1alpha1::Template,
    ) -> impl Iterator<Item = (&'a String, &'a String)> + use<'a> {
        template.metadata.as_ref().map(self.entries).into_iter().flatten()
    }
}

/// A list within the user's own containers that templates add items to.
#[derive(Debug)]
pub(crate) struct Inner {
    /// The field of a container.
    pub(crate) field: &'static str,
    /// One of its items, for a sentence.
    pub(crate) noun: &'static str,
    /// The key of an item. Two items with one key in one container are equal, or conflict.
    pub(crate) key: fn(&RawObject) -> String,
    /// As for a [`List`].
    pub(crate) fields: Fields,
    /// The items that a template adds.
    pub(crate) items: fn(&v1alpha1::Template) -> &[RawObject],
    /// The side of the user's items on which an item goes.
    pub(crate) place: fn(&Template, &RawObject) -> Place,
}

impl Inner {
    /// The item of `container` that is in effect for `key`: the last one, because the kubelet and the container runtime let a
    /// later variable replace an earlier one, and a later mount cover an earlier one.
    pub(crate) fn in_effect<'a>(&self, container: &'a RawObject, key: &str) -> Option<&'a RawObject> {
        let items = container.get(self.field).and_then(Value::as_array).into_iter().flatten();
        items.rev().filter_map(Value::as_object).find(|item| (self.key)(item) == key)
    }
}

/// The lists within a container.
pub(crate) static INNER: [Inner; 3] = [
    Inner {
        field: "env",
        noun: "environment variable",
        key: |item| text(item, "name").to_owned(),
        fields: Fields::Closed,
        items: |template| &template.env,
        place: |template, item| match template.position.env {
            EnvPlace::Before => Place::Before,
            EnvPlace::After => Place::After,
            EnvPlace::Auto if template.refers_out(text(item, "name")) => Place::After,
            EnvPlace::Auto => Place::Before,
        },
    },
    Inner {
        field: "envFrom",
        noun: "source of environment variables",
        key: source,
        fields: Fields::Open,
        items: |template| &template.env_from,
        place: |template, _| template.position.env_from,
    },
    Inner {
        field: "volumeMounts",
        noun: "mount at",
        key: |item| mount_path(text(item, "mountPath")).to_owned(),
        fields: Fields::Open,
        items: |template| &template.volume_mounts,
        place: |template, _| template.position.volume_mounts,
    },
];

/// The key of a source of variables: its reference and its prefix, because it has no name.
fn source(item: &RawObject) -> String {
    let name = |field: &str| Some(format!("{field}:{}", item.get(field)?.get("name")?.as_str()?));
    let of = name("configMapRef").or_else(|| name("secretRef")).unwrap_or_default();
    match text(item, "prefix") {
        "" => of,
        prefix => format!("{of}:{prefix}"),
    }
}

/// The key of `item` in a list called `field`, at any depth of a pod.
pub(crate) fn key_in(field: &str, item: &RawObject) -> String {
    let inner = INNER.iter().find(|inner| inner.field == field);
    inner.map_or_else(|| text(item, "name").to_owned(), |inner| (inner.key)(item))
}

/// True if and only if `template` adds a volume called `name`.
pub(crate) fn has_volume(template: &v1alpha1::Template, name: &str) -> bool {
    template.volumes.iter().any(|volume| text(volume, "name") == name)
}

/// True if and only if `template` adds anything to the user's own containers.
pub(crate) fn reaches_in(template: &v1alpha1::Template) -> bool {
    INNER.iter().any(|inner| !(inner.items)(template).is_empty())
}
