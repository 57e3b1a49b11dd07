//! What an update takes away: [`crate::inject::loss`] in another language.

use super::access::{Access, Shape};
use super::cel::{all, any, not, quoted};
use super::environment::{Environment as _, OBJECT, OLD, UPDATE, Variables};
use super::keys::{key, step_in_json};
use crate::api::MARKER_PREFIX;
use crate::inject::marker;
use crate::inject::tables::{CONTAINERS, INIT_CONTAINERS, INNER, LISTS, MAPS};
use crate::policy::Policy;
use serde_json::Value;
use std::collections::BTreeSet;

/// The readable marker of `policy` on the pod, as text; empty if there is none.
pub(super) fn marker_of(policy: &Policy, access: &Access, variables: &mut Variables) -> String {
    marker_at(policy.marker_key(), access, variables)
}

/// The keys of the markers that `policy` takes for its own: its own first, then those of the policies whose place it takes.
pub(super) fn marker_keys(policy: &Policy) -> Vec<String> {
    let replaced = policy.spec.replaces.iter().map(|name| marker::key(name));
    std::iter::once(policy.marker_key().to_owned()).chain(replaced).collect()
}

/// The condition that an update takes away the last of the [`marker_keys`].
pub(super) fn loses_marker(policy: &Policy, old: &Access, new: &Access, variables: &mut Variables) -> String {
    let keys = marker_keys(policy);
    let mut has_any = |access: &Access| {
        let there = keys.iter().map(|key| format!("{} != \"\"", marker_at(key, access, variables)));
        any(&there.collect::<Vec<_>>())
    };
    let [before, after] = [old, new].map(&mut has_any);
    all(&[before, not(&after)])
}

/// The readable marker with that key.
fn marker_at(key: &str, access: &Access, variables: &mut Variables) -> String {
    let (key, pattern) = (quoted(key), quoted(&marker::pattern()));
    let (value, is_text) = match access.shape {
        Shape::Typed if access.is_pod => (format!("{}.metadata.?annotations[?{key}].orValue(\"\")", access.root), ""),
        Shape::Typed => (format!("{}.?metadata.?annotations[?{key}].orValue(\"\")", access.pod), ""),
        Shape::Free => {
            (format!("{}[?{key}].orValue(\"\")", access.entries("annotations", variables)), "type(v) == string && ")
        }
    };
    // The length first, because a match costs more than all else.
    let most = marker::MAX_LENGTH;
    let marker = format!("[{value}].map(v, {is_text}size(v) <= {most} && v.matches({pattern}) ? string(v) : \"\")[0]");
    variables.define("marker_of", &marker)
}

/// For an update, the marker of `policy` on the pod as text, if it has the current hash; otherwise empty. On a create, a
/// marker without the content is replaced.
pub(super) fn kept(policy: &Policy, access: &Access, variables: &mut Variables) -> String {
    let marker = marker_of(policy, access, variables);
    let current = quoted(&format!("{}{}", marker::BEGINNING, policy.template_hash()));
    variables.define("kept", &format!("{UPDATE} && {marker}.startsWith({current}) ? {marker} : \"\""))
}

/// The condition that an update loses additions of `policy`. `old` and `new` are the two objects.
pub(super) fn is_lost(policy: &Policy, old: &Access, new: &Access, variables: &mut Variables) -> String {
    let [before, after] = [old, new].map(|access| marker_of(policy, access, variables));
    let hash = |marker: &str| {
        let start = marker::BEGINNING.len();
        format!("{marker}.substring({start}, {})", start + crate::digest::LENGTH)
    };
    let is_same = format!("{} == {}", hash(&before), hash(&after));
    let (held, holds) = (items(old, Some(new), variables), items(new, None, variables));
    let is_gone = format!("{}.exists(p, p in {held} && !(p in {holds}))", added(&before, "p"));
    let of_marker = loses_marker(policy, old, new, variables);
    let is_lost = format!("({of_marker}) || ({before} != \"\" && {after} != \"\" && {is_same} && {is_gone})");
    variables.define("lost", &is_lost)
}

/// The pointers that the text `marker` lists, as JSON texts without quotes. `marker` is empty or readable. `name` is the
/// name of no variable that `marker` uses.
pub(super) fn added(marker: &str, name: &str) -> String {
    let start = marker::BEGINNING.len() + crate::digest::LENGTH + marker::ADDED.len();
    let nulls = quoted(marker::NULLS);
    let rest = format!("{marker} == \"\" ? \"]}}\" : {marker}.substring({start})");
    // Without nulls, the end of the marker follows the list.
    let list = format!(
        "[{rest}].map({name}, {name}.contains({nulls}) ? {name}.split({nulls})[0] : {name}.substring(0, size({name}) - 2))"
    );
    unquoted(&list, name)
}

/// The created lists and maps that were null, in the form of [`added`].
pub(super) fn nulls(marker: &str, name: &str) -> String {
    let nulls = quoted(marker::NULLS);
    let rest = format!("{marker}.contains({nulls}) ? {marker}.split({nulls})[1] : \"]}}\"");
    unquoted(&format!("[{rest}].map({name}, {name}.substring(0, size({name}) - 2))"), name)
}

/// The texts in the only item of `list`, which has them in quotes and with commas between.
fn unquoted(list: &str, name: &str) -> String {
    // Quotes within a text have a backslash before them.
    let texts = format!("{name}.substring(1, size({name}) - 1).split({})", quoted("\",\""));
    format!("{list}.map({name}, {name} == \"\" ? [\"\"].filter(n, false) : {texts})[0]")
}

/// The pointers of all items of the pod that injection can add, as JSON texts without quotes. Of a container of the user
/// they count only if `other` has that container, too.
fn items(access: &Access, other: Option<&Access>, variables: &mut Variables) -> String {
    let maps_only = |name: &str| match access.shape {
        Shape::Typed => String::new(),
        Shape::Free => format!(".filter({name}, type({name}) == map)"),
    };
    let path = |below: &str| {
        let path = Value::from(format!("{}{below}/", access.pointer)).to_string();
        quoted(path.trim_matches('"'))
    };
    let mut lists = Vec::new();
    for list in &LISTS {
        let (items, name) = (access.items(list.field), step_in_json(&access.text_in("c", "name")));
        let path = path(&format!("/spec/{}", list.field));
        lists.push(format!("{items}{}.map(c, {path} + {name})", maps_only("c")));
    }
    for map in &MAPS {
        let (entries, path) = (access.entries(map.field, variables), path(&format!("/metadata/{}", map.field)));
        let is_ours = format!("k.startsWith({})", quoted(MARKER_PREFIX));
        lists.push(format!("{entries}.transformList(k, v, !{is_ours}, {path} + {})", step_in_json("k")));
    }
    for list in [INIT_CONTAINERS, CONTAINERS] {
        let name = access.text_in("c", "name");
        let is_there = other.map(|other| format!(".filter(c, {name} in {})", other.names(list, variables)));
        let containers = format!("{}{}{}", access.items(list), maps_only("c"), is_there.unwrap_or_default());
        for inner in &INNER {
            let (items, key) = (access.list_in("c", inner.field), step_in_json(&key(inner, "e", access)));
            let path = path(&format!("/spec/{list}"));
            let text = format!("{path} + {} + {} + {key}", step_in_json(&name), quoted(&format!("/{}/", inner.field)));
            lists.push(format!("{containers}.map(c, {items}{}.map(e, {text})).flatten()", maps_only("e")));
        }
    }
    variables.define("items", &format!("[{}].flatten()", lists.join(",\n")))
}

/// The condition that an update may concern one of `policies`, for the match conditions of a MutatingAdmissionPolicy: the
/// object is not being deleted, has a marker, and its pod template changes. It uses no variables.
pub(super) fn may_be_lost(access: &Access, policies: &[&Policy]) -> String {
    let mut terms = vec![is_alive()];
    if access.shape == Shape::Typed {
        let pod = access.pod.replacen(OBJECT, OLD, 1);
        let keys: BTreeSet<String> = policies.iter().flat_map(|policy| marker_keys(policy)).collect();
        let keys: Vec<String> = keys.iter().map(|key| quoted(key)).collect();
        let annotations = format!("{pod}.?metadata.?annotations.orValue({{}})");
        terms.push(format!("[{}].exists(k, k in {annotations})", keys.join(", ")));
        terms.push(format!("{} != {pod}", access.pod));
    }
    all(&terms)
}

/// The condition that the old object is not being deleted. The server keeps its deletion time, and refuses a new one.
pub(super) fn is_alive() -> String {
    format!("!has({OLD}.metadata.deletionTimestamp)")
}
