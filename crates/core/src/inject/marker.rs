//! The annotation that records our additions to a pod.
//!
//! Users can write it, so it proves nothing: it counts only together with the content (see `presence.rs`), and we
//! delete and replace nothing because of it. An unreadable marker counts as none. Only our own spelling of the JSON is
//! readable, because one engine reads markers in CEL, which has no parser for JSON.

use super::Template;
use super::listed::Listed;
use crate::api::MARKER_PREFIX;
use crate::workload::Workload;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashSet;

const VERSION: u32 = 1;

/// Characters that the name of a container must not have, because markers escape them.
pub(crate) const UNNAMED: fn(char) -> bool = |c| c < ' ' || c == '"' || c == '\\';

/// The additions of a policy to a workload.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(from = "Written", into = "Written")]
pub struct Marker {
    /// The version of this format.
    pub v: u32,
    /// The hash of the template that was injected.
    pub hash: String,
    /// JSON pointers from the root of the workload to every addition. Items of a list appear by key, not by index
    /// (`/spec/containers/envoy`). Created lists and maps come before their contents. Each marker lists what it shares with
    /// others, too: an item that several policies add alike, and the created list that holds it. The last marker to be
    /// undone removes them. Earlier releases listed an item, and a list that existed before, in the first marker only.
    pub added: Vec<String>,
    /// The created lists and maps in [`Self::added`] that were `null` before, not absent: possible in files, not on
    /// servers.
    pub nulls: Vec<String>,
    /// The values that parameters have in the workload, as `name=value`, with `~0` for `~`, in the order of the policy. A parameter that
    /// is not here has what stands in the template. Then the overlays, as `containers/1={…}`: the list, the index in it among the
    /// containers of the author, and the container.
    pub values: Vec<String>,
}

/// A [`Marker`] as JSON.
#[derive(Serialize, Deserialize)]
struct Written {
    v: u32,
    hash: String,
    /// The values first, which begin with no `/`: for a reader that does not know them, they are pointers to nothing.
    #[serde(default)]
    added: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    nulls: Vec<String>,
}

impl From<Written> for Marker {
    fn from(Written { v, hash, mut added, nulls }: Written) -> Self {
        let first = added.iter().position(|entry| entry.starts_with('/')).unwrap_or(added.len());
        let values = added.drain(..first).collect();
        Self { v, hash, added, nulls, values }
    }
}

impl From<Marker> for Written {
    fn from(Marker { v, hash, added, nulls, values }: Marker) -> Self {
        Self { v, hash, added: values.into_iter().chain(added).collect(), nulls }
    }
}

impl Default for Marker {
    fn default() -> Self {
        Self { v: VERSION, hash: String::new(), added: Vec::new(), nulls: Vec::new(), values: Vec::new() }
    }
}

impl Marker {
    /// Adds the entries of `later`.
    pub(crate) fn extend(&mut self, later: &Marker) {
        for (all, more) in [(&mut self.added, &later.added), (&mut self.nulls, &later.nulls)] {
            for pointer in more {
                if !all.contains(pointer) {
                    all.push(pointer.clone());
                }
            }
        }
    }

    /// The value that the parameter `name` has; none if it is not listed.
    pub fn value(&self, name: &str) -> Option<String> {
        let of_name = |entry: &String| Some(entry.strip_prefix(name)?.strip_prefix('=')?.replace("~0", "~"));
        self.values.iter().find_map(of_name)
    }

    /// The entry for the `value` of the parameter `name`.
    pub(crate) fn entry(name: &str, value: &str) -> String {
        format!("{name}={}", value.replace('~', "~0"))
    }

    /// The value of the annotation.
    pub(crate) fn to_value(&self) -> Value {
        Value::String(serde_json::to_string(self).expect("a marker is JSON"))
    }
}

/// The key of the annotation of `policy`.
pub fn key(policy: &str) -> String {
    format!("{MARKER_PREFIX}{policy}")
}

/// The marker of `policy` on the pod, or pod template, of `workload`. None if it is missing or unreadable.
pub fn read(workload: &Workload, policy: &str) -> Option<Marker> {
    parse(workload.pod_annotation(&key(policy))?)
}

/// True if the pod, or pod template, of `workload` has a marker annotation, readable or not.
pub fn is_marked(workload: &Workload) -> bool {
    policies(workload).next().is_some()
}

/// Whether `pod` has what `marker` lists from the pod template that it was made from: then the places are those in the object with the
/// template.
pub fn is_of_template(pod: &Workload, marker: &Marker) -> bool {
    let at = pod.pod_pointer();
    !marker.added.is_empty() && marker.added.iter().all(|pointer| Listed::parse(&at, pointer).is_none())
}

/// All readable markers on the pod, or pod template, of `workload`.
pub(crate) fn all(workload: &Workload) -> impl Iterator<Item = Marker> {
    named(workload).map(|(_, marker)| marker)
}

/// The same, each with the name of its policy.
pub(crate) fn named(workload: &Workload) -> impl Iterator<Item = (&str, Marker)> {
    policies(workload).filter_map(|policy| Some((policy, read(workload, policy)?)))
}

/// The longest grace period in the markers on `workload`, in seconds; none if no marker lists one.
pub(super) fn longest_grace(workload: &Workload) -> Option<i64> {
    let at = workload.pod_pointer();
    let pointers = all(workload).flat_map(|marker| marker.added);
    pointers.filter_map(|pointer| Listed::parse(&at, &pointer)?.grace()).max()
}

/// The names of the policies whose annotation the pod, or pod template, of `workload` has.
pub(super) fn policies(workload: &Workload) -> impl Iterator<Item = &str> {
    let annotations = workload.pod().and_then(|pod| pod["metadata"]["annotations"].as_object());
    annotations.into_iter().flatten().filter_map(|(key, _)| key.strip_prefix(MARKER_PREFIX))
}

/// The most characters of all markers on a pod together, and so of each. A longer one is unreadable.
///
/// A marker has some 70 characters for each addition (`"/spec/template/spec/containers/NAME/env/NAME",`), so this is
/// room for 900. In CEL, a match against [`pattern`] costs 8.6 for each character, and a call may cost 1 000 000
/// (`PerCallLimit` in `k8s.io/apiserver/pkg/apis/cel`): a marker of 120 000 characters would fail the expression, and
/// with it the injection of every policy.
pub(crate) const MAX_LENGTH: usize = 1 << 16;

/// True if and only if `text` has at most `most` characters.
pub(crate) fn is_within(text: &str, most: usize) -> bool {
    text.len() <= most || text.chars().count() <= most
}

/// True if and only if all markers on `workload` together have at most [`MAX_LENGTH`] characters.
pub(super) fn are_within(workload: &Workload) -> bool {
    let all = policies(workload).filter_map(|policy| workload.pod_annotation(&key(policy)));
    all.map(|value| value.chars().count()).sum::<usize>() <= MAX_LENGTH
}

/// True if and only if `value` begins and ends as a marker of the template with that `hash`. Says nothing about the entries
/// between, because a marker counts only if the content is there.
pub(super) fn is_current(value: &str, hash: &str) -> bool {
    let entries = value.strip_prefix(BEGINNING).and_then(|rest| rest.strip_prefix(hash)?.strip_prefix(ADDED));
    entries.is_some_and(|entries| entries.ends_with(END)) && is_within(value, MAX_LENGTH)
}

/// The marker in the `value` of an annotation. None if it is unreadable.
pub(super) fn parse(value: &str) -> Option<Marker> {
    if !is_within(value, MAX_LENGTH) {
        return None;
    }
    let mut marker: Marker = serde_json::from_str(value).ok()?;
    let is_hash =
        marker.hash.len() == 16 && marker.hash.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let is_pointer = |text: &String| text.split('~').skip(1).all(|escaped| escaped.starts_with(['0', '1']));
    let is_ours = marker.v == VERSION
        && is_hash
        && [&marker.added, &marker.nulls, &marker.values].into_iter().flatten().all(is_pointer);
    if !is_ours || serde_json::to_string(&marker).ok()? != value {
        return None;
    }
    // Injection lists nothing twice. A forged marker could repeat an entry, and each copy would cost a search of all others.
    let mut seen = HashSet::new();
    marker.added.retain(|pointer| seen.insert(pointer.clone()));
    Some(marker)
}

/// The beginning of every marker, up to its hash.
pub(crate) const BEGINNING: &str = r#"{"v":1,"hash":""#;
/// The text between the hash and the pointers.
pub(crate) const ADDED: &str = r#"","added":["#;
/// The text before the list of nulls. It cannot occur in a JSON string, where quotes have backslashes.
pub(crate) const NULLS: &str = r#"],"nulls":["#;
/// The end of every marker.
pub(crate) const END: &str = "]}";

/// A regular expression (RE2, as in CEL) that matches exactly the readable markers. Texts and markers correspond one to
/// one, down to the escapes of JSON and of its pointers.
pub(crate) fn pattern() -> String {
    let pointer = r#""([^"\\~\x00-\x1f]|~[01]|\\["\\bfnrt]|\\u00(0[0-7bef]|1[0-9a-f]))*""#;
    let pointers = format!("({pointer}(,{pointer})*)");
    let [beginning, added, nulls] = [BEGINNING, ADDED, NULLS].map(regex::escape);
    format!("^{beginning}[0-9a-f]{{16}}{added}{pointers}?({nulls}{pointers})?]\\}}$")
}

/// False only if no marker on `workload` lists the container `name`. Cheap, because it reads no marker.
pub(super) fn may_list(workload: &Workload, name: &str) -> bool {
    let is_escaped = name.contains(UNNAMED) || name.contains(['~', '/']);
    let end = format!("/{name}\"");
    let mut values = policies(workload).filter_map(|policy| workload.pod_annotation(&key(policy)));
    is_escaped || values.any(|value| value.contains(&end))
}

/// The names of all containers and init containers in the markers on `workload`, without the markers of `matching`: they
/// are replaced, and what only they list is the user's own. None if the markers are longer than [`MAX_LENGTH`] together.
pub(crate) fn containers(workload: &Workload, matching: &[&Template]) -> HashSet<String> {
    if !are_within(workload) {
        return HashSet::new();
    }
    let others = policies(workload).filter(|policy| matching.iter().all(|template| template.policy != *policy));
    let markers = others.filter_map(|policy| read(workload, policy));
    let pod = workload.pod_pointer();
    let name = |pointer: &str| {
        let below = pointer.strip_prefix(pod.as_str())?.strip_prefix("/spec/")?;
        let name = below.strip_prefix("containers/").or_else(|| below.strip_prefix("initContainers/"))?;
        (!name.contains('/')).then(|| name.replace("~1", "/").replace("~0", "~"))
    };
    markers
        .flat_map(|marker| marker.added.into_iter().filter_map(|pointer| name(&pointer)).collect::<Vec<_>>())
        .collect()
}

/// The name of the container at `pointer` of a marker.
pub fn container(pointer: &str) -> Option<String> {
    let mut steps = pointer.rsplit('/');
    let (name, list, parent) = (steps.next()?, steps.next()?, steps.next()?);
    let is_container = parent == "spec" && matches!(list, "containers" | "initContainers");
    is_container.then(|| name.replace("~1", "/").replace("~0", "~"))
}

/// The words for the addition at `pointer`, which begins at the pod; none for created lists and maps.
pub fn told(pointer: &str) -> Option<String> {
    let tokens: Vec<String> =
        pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    match tokens[..] {
        ["spec", "containers", name] => Some(format!("container {name}")),
        ["spec", "initContainers", name] => Some(format!("init container {name}")),
        ["spec", "volumes", name] => Some(format!("volume {name}")),
        ["spec", "imagePullSecrets", name] => Some(format!("pull secret {name}")),
        ["spec", _, container, "env", name] => Some(format!("variable {name} in {container}")),
        ["spec", _, container, "env", name, "value", ..] if tokens.len() > 6 => {
            Some(format!("a part of variable {name} in {container}"))
        }
        ["spec", _, container, "envFrom", source] => Some(format!("variables of {source} in {container}")),
        ["spec", _, container, "volumeMounts", path] => Some(format!("mount {path} in {container}")),
        ["spec", "shareProcessNamespace"] => Some("shared process namespace".to_owned()),
        ["spec", "terminationGracePeriodSeconds", least, _] => Some(format!("grace period of {least} s")),
        ["spec", "hostAliases", key] => Some(format!("host alias {key}")),
        ["spec", "tolerations", key] => Some(format!("toleration {key}")),
        ["spec", "dnsConfig", list, key] => Some(format!("{key} in dnsConfig.{list}")),
        ["metadata", "labels", key] => Some(format!("label {key}")),
        ["metadata", "annotations", key] => Some(format!("annotation {key}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;
    use serde_json::json;

    fn read_text(text: &Value) -> Option<Marker> {
        let pod = json!({"metadata": {"annotations": {"injected.scpol.dev/p": text}}, "spec": {}});
        read(&Workload::new(Kind::find("", "pods").unwrap(), pod), "p")
    }

    #[test]
    fn what_we_write_we_read() {
        let marker = Marker {
            hash: "0123456789abcdef".into(),
            added: vec!["/spec/containers/a~1b".into()],
            ..Marker::default()
        };
        assert_eq!(marker.to_value(), json!(r#"{"v":1,"hash":"0123456789abcdef","added":["/spec/containers/a~1b"]}"#));
        assert_eq!(read_text(&marker.to_value()), Some(marker));
    }

    #[test]
    fn whatever_we_write_is_read_and_means_the_same() {
        let odd: String = (0..0x30_u8).map(char::from).chain(['\\', '\u{7f}', '\u{2028}', '𝄞', '"']).collect();
        let odd = format!("/a/{}", odd.replace('~', "~0").replace('/', "~1"));
        for (added, nulls) in [(vec![], vec![]), (vec![odd.clone(), "/b".into()], vec![odd, "/c".into()])] {
            let marker = Marker { hash: "0123456789abcdef".into(), added, nulls, ..Marker::default() };
            assert_eq!(read_text(&marker.to_value()), Some(marker));
        }
    }

    #[test]
    fn what_we_would_write_otherwise_is_as_good_as_no_marker() {
        let written = r#"{"v":1,"hash":"0123456789abcdef","added":["/a/b"]}"#;
        assert!(read_text(&json!(written)).is_some());
        for (ours, other) in [
            (",", ", "),
            ("{", " {"),
            ("}", "}\n"),
            ("/a", "\\u002fa"),
            ("/a", "~"),
            ("/a", "\\u000a"),
            ("0123456789abcdef", "0123456789ABCDEF"),
            ("0123456789abcdef", "x"),
            ("]}", r#"],"nulls":[]}"#),
            ("]}", r#"],"since":{"a":[1]}}"#),
        ] {
            let other = written.replacen(ours, other, 1);
            assert_eq!(read_text(&json!(other)), None, "{other}");
        }
    }

    #[test]
    fn read_is_what_the_pattern_matches() {
        let pattern = regex::Regex::new(&pattern()).unwrap();
        let texts = [
            r#"{"v":1,"hash":"0123456789abcdef","added":[]}"#,
            r#"{"v":1,"hash":"0123456789abcdef","added":["/a~1~0","\u001f\n\\"],"nulls":["/\"","é"]}"#,
        ];
        let others = [
            "", "~", "~0", "~2", "\"", "\\", ",", "]", "[", "}", "0", "g", "F", "/", " ", "\n", "\u{7f}", "n", "u",
            "\"\",",
        ];
        let mut read = 0;
        for text in texts {
            assert!(pattern.is_match(text) && parse(text).is_some(), "{text}");
            for (place, old) in text.char_indices() {
                for (other, end) in others.iter().flat_map(|other| [(other, place), (other, place + old.len_utf8())]) {
                    let edited = format!("{}{other}{}", &text[..place], &text[end..]);
                    assert_eq!(parse(&edited).is_some(), pattern.is_match(&edited), "{edited}");
                    read += usize::from(pattern.is_match(&edited));
                }
            }
        }
        assert!(read > 300, "{read} of them are markers");
    }

    #[test]
    fn a_pod_is_told_from_one_that_has_the_content_of_its_template() {
        let pod = Workload::new(Kind::find("", "pods").unwrap(), json!({}));
        for (added, expected) in [
            (&["/spec/containers/envoy"][..], false),
            (&["/metadata/annotations/mesh"], false),
            (&["/spec/volumes", "/spec/volumes/x"], false),
            (&["/spec/template/metadata/annotations", "/spec/template/spec/containers/envoy"], true),
            (&["/spec/jobTemplate/spec/template/spec/containers/envoy"], true),
            (&["/spec/pods/spec/containers/envoy"], true),
            (&[], false),
        ] {
            let added = added.iter().map(|pointer| (*pointer).to_owned()).collect();
            let marker = Marker { added, ..Marker::default() };
            assert_eq!(is_of_template(&pod, &marker), expected, "{marker:?}");
        }
    }

    #[test]
    fn garbage_is_as_good_as_no_marker() {
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "true",
            "null",
            "[]",
            "{}",
            "{",
            r#"{"v":1}"#,
            r#"{"v":2,"hash":"x","added":[]}"#,
            r#"{"v":-1,"hash":"x"}"#,
            r#"{"v":1,"hash":7}"#,
            r#"{"v":1,"hash":"x","added":{}}"#,
            r#"{"v":1,"hash":"x","added":[1]}"#,
            &deep,
        ] {
            assert_eq!(read_text(&json!(text)), None, "{text:.40}");
        }
        for value in [json!(null), json!(1), json!({"v": 1, "hash": "x"})] {
            assert_eq!(read_text(&value), None);
        }
    }

    #[test]
    fn what_a_marker_lists_has_a_name_and_what_holds_it_has_none() {
        for (pointer, expected) in [
            ("/spec/containers/envoy", Some("container envoy")),
            ("/spec/initContainers/app/env/A", Some("variable A in app")),
            ("/spec/containers/app/volumeMounts/~1etc~1x", Some("mount /etc/x in app")),
            ("/metadata/labels/a~1b", Some("label a/b")),
            ("/spec/containers", None),
            ("/spec/containers/app/env", None),
            ("/metadata", None),
            ("", None),
        ] {
            assert_eq!(told(pointer).as_deref(), expected, "{pointer}");
        }
    }
}
