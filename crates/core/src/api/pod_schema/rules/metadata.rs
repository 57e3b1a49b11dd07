//! The rules for labels and annotations.

use super::super::Walk;
use super::forms::{self, Form};
use super::read::{Members, object};
use crate::api::format;
use crate::api::schema::quoted;
use serde_json::Value;

/// Annotations whose value the server checks: the key, or the beginning of keys if it ends in `/`.
const CHECKED: [(&str, Form); 4] = [
    ("controller.kubernetes.io/pod-deletion-cost", forms::DELETION_COST),
    ("seccomp.security.alpha.kubernetes.io/pod", forms::SECCOMP),
    ("container.seccomp.security.alpha.kubernetes.io/", forms::SECCOMP),
    ("container.apparmor.security.beta.kubernetes.io/", forms::APP_ARMOR_OF_ANNOTATION),
];

/// Annotations that no template can have, with the reason.
const REFUSED: [(&str, &str); 2] = [
    ("kubernetes.io/config.mirror", "must be left out: it is for the pods that a kubelet makes from files"),
    ("scheduler.alpha.kubernetes.io/tolerations", "must be left out: it is ignored since Kubernetes 1.6"),
];

/// Adds faults for values of labels, and of annotations that the server reads.
pub(in super::super) fn of(walk: &mut Walk, metadata: Option<&Value>, path: &str) {
    let Some(metadata) = metadata.and_then(Value::as_object) else { return };
    values(walk, metadata, &format!("{path}.labels"));
    for (key, value) in object(metadata, "annotations").into_iter().flatten() {
        let at = format!("{path}.annotations.{key}");
        if let Some((_, message)) = REFUSED.iter().find(|(refused, _)| refused == key) {
            walk.wrong(&at, *message);
        }
        let is_it = |name: &str| key == name || name.ends_with('/') && key.starts_with(name);
        let form = CHECKED.iter().find(|(name, _)| is_it(name)).map(|(_, form)| form);
        let odd = form.and_then(|form| Some((form, value.as_str().filter(|text| !(form.holds)(text))?)));
        if let Some((form, text)) = odd {
            walk.wrong(at, format!("must be {}, not {}", form.words, quoted(text)));
        }
    }
}

fn values(walk: &mut Walk, metadata: &Members, path: &str) {
    let labels = object(metadata, "labels").into_iter().flatten();
    for (key, value) in labels.filter_map(|(key, value)| Some((key, value.as_str()?))) {
        if !format::is_label_value(value) {
            let words = "must be at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends";
            walk.wrong(format!("{path}.{key}"), format!("{words}, not {}", quoted(value)));
        }
    }
}

/// Adds faults for the keys and values of the labels of `metadata`, which are at `path`.
pub(super) fn labels(walk: &mut Walk, metadata: &Members, path: &str) {
    for key in object(metadata, "labels").into_iter().flat_map(Members::keys).filter(|key| !format::is_key(key)) {
        walk.wrong(format!("{path}.{key}"), "must be the key of a label, such as `example.com/name`");
    }
    values(walk, metadata, path);
}

/// Adds faults for the keys of labels and annotations.
pub(super) fn keys(walk: &mut Walk, metadata: &Members, path: &str) {
    labels(walk, metadata, &format!("{path}.labels"));
    for key in object(metadata, "annotations").into_iter().flat_map(Members::keys) {
        if !format::is_annotation_key(key) {
            let message = "must be the key of an annotation, such as `example.com/name`";
            walk.wrong(format!("{path}.annotations.{key}"), message);
        }
    }
}
