//! The keys of items within containers, and steps of pointers, as expressions.

use super::access::{Access, Shape};
use super::cel::quoted;
use crate::api::v1alpha1::RawObject;
use crate::inject::tables::Inner;

/// The key of `item` of the list `inner` of a container.
pub(super) fn key(inner: &Inner, item: &str, access: &Access) -> String {
    match inner.field {
        "envFrom" => source(item, access),
        "volumeMounts" => {
            let path = access.text_in(item, "mountPath");
            format!("({path} == \"/\" ? \"/\" : {path}.find(\"(?s)^.*[^/]\"))")
        }
        _ => access.text_in(item, "name"),
    }
}

/// The condition that `item` of the list `inner` of a container has the key of `wanted`.
pub(super) fn has_key(inner: &Inner, wanted: &RawObject, item: &str, access: &Access) -> String {
    let wanted = (inner.key)(wanted);
    let same = match inner.field {
        "volumeMounts" => {
            let pattern = match wanted.as_str() {
                "/" => "^/$".to_owned(),
                "" => "^(|//+)$".to_owned(),
                path => format!("^{}/*$", regex::escape(path)),
            };
            let path = access.text_in(item, "mountPath");
            format!("({path} == {} || {path}.matches({}))", quoted(&wanted), quoted(&pattern))
        }
        _ => format!("{} == {}", key(inner, item, access), quoted(&wanted)),
    };
    access.map_and(item, &format!("({same})"))
}

/// The key of a source of variables: its reference and its prefix.
fn source(item: &str, access: &Access) -> String {
    let name = |field: &str| format!("{item}.?{field}.?name");
    let [config_map, secret] = ["configMapRef", "secretRef"].map(|field| {
        let is_there = match access.shape {
            Shape::Typed => format!("{}.hasValue()", name(field)),
            Shape::Free => {
                format!("(type({item}.?{field}.orValue(null)) == map && type({}.orValue(null)) == string)", name(field))
            }
        };
        format!("{is_there} ? \"{field}:\" + string({item}.{field}.name)")
    });
    let prefix = access.text_in(item, "prefix");
    format!("(({config_map} : {secret} : \"\") + ({prefix} == \"\" ? \"\" : \":\" + {prefix}))")
}

/// The name `name` as a step of a pointer. Names have no characters that JSON escapes.
pub(super) fn step_of_name(name: &str, access: &Access) -> String {
    match access.shape {
        // The server rejects other names.
        Shape::Typed => name.to_owned(),
        Shape::Free => format!("{name}.replace(\"~\", \"~0\").replace(\"/\", \"~1\")"),
    }
}

/// The text `text` as a step of a pointer in JSON. A text with a control character becomes one that no marker has.
pub(super) fn step_in_json(text: &str) -> String {
    let replace = [("~", "~0"), ("/", "~1"), ("\\", "\\\\"), ("\"", "\\\"")];
    let text = format!("string({text})");
    replace.iter().fold(text, |text, (old, new)| format!("{text}.replace({}, {})", quoted(old), quoted(new)))
}
