//! Checks for documents that parse, but that no server would accept as objects.

use super::{Fault, File, Lines, Location, Manifest, Object, comments, is_meant_as_policy, odd, value};
use serde_json::Value;

/// The fields that every object has.
const FIELDS: [&str; 2] = ["apiVersion", "kind"];
/// The most edits between a misspelt key and the intended one.
const TYPOS: usize = 2;

/// The faults of documents and list items in `file`. Faults are: no `apiVersion` or no `kind`, a key that begins or
/// ends with a no-break space, a name with an unrendered template, and a control line of a chart. At most one fault per document.
pub fn faults(file: &File) -> Vec<Fault> {
    file.manifests().filter_map(fault).collect()
}

fn fault(manifest: &Manifest) -> Option<Fault> {
    let tell = |object: &Value, path: &str, message: String| {
        let place = Lines::of(manifest).place(&manifest.indexes(object), path);
        Some(Fault { place, message })
    };
    if !manifest.text.is_ascii()
        && manifest.text.contains(odd::is_space)
        && let Some(key) = odd_key(&manifest.value)
    {
        return Some(Fault { place: line_of(manifest, key), message: odd::message(&format!("the key `{key}` has")) });
    }
    for object in manifest.objects() {
        if let Some(line) = comments::control_line(manifest, &object) {
            let place = Location { line: manifest.place.line + line - 1, ..manifest.place.clone() };
            return Some(Fault { place, message: value::TEMPLATE.to_owned() });
        }
        for (field, found) in FIELDS.into_iter().zip([object.api_version, object.kind]) {
            // The parser of policies reports this more precisely.
            if found.is_empty() && !is_meant_as_policy(&object) {
                return tell(object.body, field, missing(&object, field, &manifest.place));
            }
            if is_template(found) {
                return tell(object.body, field, format!("`{field}` is `{found}`: {}", value::TEMPLATE));
            }
        }
        for field in ["name", "namespace"] {
            let found = object.body["metadata"][field].as_str().unwrap_or_default();
            if is_template(found) {
                let message = format!("`metadata.{field}` is `{found}`: {}", value::TEMPLATE);
                return tell(object.body, &format!("metadata.{field}"), message);
            }
        }
    }
    None
}

/// Whether the kind or the name of `object` is a template that is not rendered.
pub(super) fn has_template(object: &Object<'_>) -> bool {
    let metadata = &object.body["metadata"];
    let names = ["name", "namespace"].map(|field| metadata[field].as_str().unwrap_or_default());
    [object.api_version, object.kind].into_iter().chain(names).any(is_template)
}

/// Whether a key of `object` is a misspelt `apiVersion` or `kind`.
pub(super) fn has_near_field(object: &Object<'_>) -> bool {
    FIELDS.iter().any(|field| near_key(object.body, field).is_some())
}

/// Whether `object` has `field`, or a key that is probably meant as it.
pub(super) fn has_near_key(object: &Value, field: &str) -> bool {
    object.get(field).is_some() || near_key(object, field).is_some()
}

/// The key of `object` that is probably meant as `field`.
fn near_key<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    let mut keys = object.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    keys.find(|key| {
        !FIELDS.contains(key) && strsim::damerau_levenshtein(&key.to_lowercase(), &field.to_lowercase()) <= TYPOS
    })
}

fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("{%")
}

/// The message for `object` without `field`.
fn missing(object: &Object<'_>, field: &str, place: &Location) -> String {
    let found = &object.body[field];
    if !found.is_null() && found != "" {
        return format!("`{field}` is {found}; expected text, such as {}", example(field));
    }
    if let Some(key) = near_key(object.body, field) {
        return format!("no `{field}`; did you mean it by `{key}`?");
    }
    let name = place.file.rsplit('/').next().unwrap_or_default();
    let kind = if object.kind.is_empty() { String::new() } else { format!(" in this {}", object.kind) };
    let hint = match name.rsplit_once('.').map_or(name, |(name, _)| name) {
        "kustomization" => "; it is for kustomize: `kubectl kustomize FOLDER | scpol ... -f -` has the manifests",
        "Chart" | "values" => "; it is part of a chart: `helm template CHART | scpol ... -f -` has the manifests",
        _ => "",
    };
    format!("no `{field}`{kind}; expected one, such as {}{hint}", example(field))
}

fn example(field: &str) -> &'static str {
    if field == "kind" { "`kind: Deployment`" } else { "`apiVersion: apps/v1`" }
}

/// The first key that begins or ends with a no-break space. After a leading `-` too, because such a `-` begins no list
/// item.
fn odd_key(value: &Value) -> Option<&str> {
    let is_odd = |key: &&String| key.trim_start_matches('-').starts_with(odd::is_space) || key.ends_with(odd::is_space);
    match value {
        Value::Object(fields) => {
            fields.keys().find(is_odd).map(String::as_str).or_else(|| fields.values().find_map(odd_key))
        }
        Value::Array(items) => items.iter().find_map(odd_key),
        _ => None,
    }
}

/// The line of `manifest` that contains `key`.
fn line_of(manifest: &Manifest, key: &str) -> Location {
    let above = manifest.text.lines().position(|line| line.contains(key)).unwrap_or(0);
    Location { line: manifest.place.line + above, ..manifest.place.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str, text: &str) -> Vec<String> {
        let file =
            File::parse(name, text.as_bytes().to_vec()).unwrap_or_else(|faults| panic!("{text:?}: {}", faults[0]));
        faults(&file).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_an_object_or_a_list_of_some_passes() {
        for text in [
            "",
            "# x\n---\n",
            "apiVersion: v1\nkind: Pod\n",
            "apiVersion: v1\nkind: List\nitems: []\n",
            "apiVersion: v1\nkind: List\n",
            "apiVersion: apps/v1\nkind: DeploymentList\nitems:\n- metadata: {name: a}\n",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{image: \"{{x}}\", args: [\"{{ .y }}\"]}]}\n",
            "apiVersion: v1\nkind: ConfigMap\ndata:\n  a: |\n    \u{a0}b: 1\n  c: '\u{a0}'\n",
        ] {
            assert!(told("a.yaml", text).is_empty(), "{text:?}: {:?}", told("a.yaml", text));
        }
    }

    #[test]
    fn what_is_none_is_told_by_its_cause() {
        for (name, text, expected) in [
            (
                "a.yaml",
                "kind: Pod\n",
                "a.yaml:1: no `apiVersion` in this Pod; expected one, such as `apiVersion: apps/v1`",
            ),
            ("a.yaml", "a: 1\n---\napiVersion: v1\n", "a.yaml:3: no `kind`; expected one, such as `kind: Deployment`"),
            ("a.yaml", "x: 1\napiVersion: 1\nkind: Pod\n", "a.yaml:2: `apiVersion` is 1; expected text"),
            ("a.yaml", "apiVersoin: v1\nkind: Pod\n", "a.yaml:1: no `apiVersion`; did you mean it by `apiVersoin`?"),
            ("a.yaml", "apiVersion: v1\nKind: Pod\n", "a.yaml:1: no `kind`; did you mean it by `Kind`?"),
            ("a.yaml", "apiVersion: v1\nkind: List\nitems:\n- kind: Pod\n", "a.yaml:4: no `apiVersion` in this Pod"),
            ("x/kustomization.yaml", "resources: [a.yaml]\n", "`kubectl kustomize FOLDER"),
            (
                "x/Chart.yaml",
                "apiVersion: v2\nname: a\n",
                "x/Chart.yaml:1: no `kind`; expected one, such as `kind: Deployment`; it is part of a chart",
            ),
            ("values.yaml", "image: x\n", "`helm template CHART"),
            (
                "a.yaml",
                "apiVersion: v1\nkind: Pod\nmetadata:\n  name: '{{ .x }}-a'\n",
                "a.yaml:4: `metadata.name` is `{{ .x }}-a`: the template is not rendered",
            ),
            (
                "a.yaml",
                "apiVersion: v1\nkind: Pod\nmetadata:\n\u{a0} name: a\n",
                "a.yaml:4: the key `\u{a0} name` has a no-break space",
            ),
            (
                "a.yaml",
                "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - \u{a0}name: a\n",
                "a.yaml:5: the key `\u{a0}name` has",
            ),
        ] {
            let found = told(name, text);
            assert!(found.last().is_some_and(|fault| fault.contains(expected)), "{text:?}: {found:?}");
        }
    }
}
