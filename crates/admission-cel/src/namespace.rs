//! The fields of `namespaceObject`: `BuildNamespaceType` in
//! k8s.io/apiserver/pkg/admission/plugin/policy/validating/typechecking.go and plugin/cel/compile.go.

use super::types::{Field, Object};

pub(super) static NAMESPACE: Object = Object {
    name: "kubernetes.Namespace",
    fields: &[
        ("metadata", Field::Object(&METADATA)),
        ("spec", Field::Object(&SPEC)),
        ("status", Field::Object(&STATUS)),
    ],
};

static METADATA: Object = Object {
    name: "kubernetes.NamespaceMetadata",
    fields: &[
        ("name", Field::Text),
        ("generateName", Field::Text),
        ("namespace", Field::Text),
        ("labels", Field::Labels),
        ("annotations", Field::Labels),
        // Sic: the declaration has capitals, the value does not. So the field compiles but is always missing.
        ("UID", Field::Text),
        ("creationTimestamp", Field::Timestamp),
        ("deletionGracePeriodSeconds", Field::Int),
        ("deletionTimestamp", Field::Timestamp),
        ("generation", Field::Int),
        ("resourceVersion", Field::Text),
        ("finalizers", Field::Texts),
    ],
};

static SPEC: Object = Object { name: "kubernetes.NamespaceSpec", fields: &[("finalizers", Field::Texts)] };

static STATUS: Object = Object {
    name: "kubernetes.NamespaceStatus",
    fields: &[("conditions", Field::Objects(&CONDITION)), ("phase", Field::Text)],
};

static CONDITION: Object = Object {
    name: "kubernetes.NamespaceCondition",
    fields: &[
        ("status", Field::Text),
        ("type", Field::Text),
        ("lastTransitionTime", Field::Timestamp),
        ("message", Field::Text),
        ("reason", Field::Text),
    ],
};
