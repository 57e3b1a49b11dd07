//! Documents beside manifests that other tools complete or read: kustomize patches, values and templates of charts,
//! lists. They are set aside before any command looks for workloads, so that nothing is injected into a part.

use super::kinds::pod_path;
use super::{Fault, File, FilePiece, Location, Manifest, Object, check, comments, value};
use serde_json::Value;
use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

/// Where the complete manifests of a kustomization are.
const KUSTOMIZE: &str = "`kubectl kustomize FOLDER | scpol ... -f -` has the complete manifests";
/// Where the complete manifests of a chart are.
const HELM: &str = "`helm template CHART | scpol ... -f -` has the manifests";
/// The beginnings of keys that only patches have.
const DIRECTIVES: [&str; 4] = ["$patch", "$retainKeys", "$setElementOrder/", "$deleteFromPrimitiveList/"];
/// The kinds of `apps` that take no object without a `spec.selector`.
const SELECTING: [&str; 4] = ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"];

/// Turns the documents of `files` that are no complete objects into text that every command leaves as it is.
///
/// # Guarantees
/// No byte of the files changes. Returns one note for each file with such documents: the place of the first, and its
/// kind. Names of files that are not absolute are below `folder`.
pub fn set_aside(files: &mut [File], folder: &Path) -> Vec<Fault> {
    let patches = patches(files, folder);
    files.iter_mut().filter_map(|file| of_file(file, &patches, folder)).collect()
}

fn of_file(file: &mut File, patches: &HashSet<PathBuf>, folder: &Path) -> Option<Fault> {
    let is_patch = !patches.is_empty() && patches.contains(&plain(&folder.join(&file.name)));
    for part in &mut file.parts {
        let FilePiece::Manifest(manifest) = part else { continue };
        let listed = is_patch.then(|| format!("a patch of a kustomization; {KUSTOMIZE}"));
        let Some(message) = listed.or_else(|| reason(manifest)) else { continue };
        file.asides.push(Fault { place: manifest.place.clone(), message });
        *part = FilePiece::SetAside(manifest.clone());
    }
    let first = file.asides.iter().min_by_key(|aside| aside.place.line)?;
    let more = match file.asides.len() {
        1 => String::new(),
        2 => " (and another document of this file)".to_owned(),
        count => format!(" (and {} more documents of this file)", count - 1),
    };
    Some(Fault { message: format!("{}{more}", first.message), ..first.clone() })
}

/// The reason why a list, which is no object, is left alone. None if its items are objects, which kubectl takes only
/// in an object of kind `List`.
pub(super) fn of_list(items: &[Value]) -> Option<&'static str> {
    let has = |item: &Value, keys: [&str; 2]| keys.iter().all(|key| item.get(key).is_some());
    if !items.is_empty() && items.iter().all(|item| has(item, ["op", "path"])) {
        return Some("a JSON patch; `kubectl kustomize FOLDER | scpol ... -f -` has the complete manifests");
    }
    let is_object = |item: &Value| item.get("apiVersion").is_some() || item.get("kind").is_some();
    (!items.iter().any(is_object)).then_some("a list of values, and no object of Kubernetes")
}

fn reason(manifest: &Manifest) -> Option<String> {
    let objects = manifest.objects();
    let [object] = objects.as_slice() else { return None };
    if !std::ptr::eq(object.body, &raw const manifest.value) {
        return None;
    }
    if check::has_template(object) || comments::control_line(manifest, object).is_some() {
        return Some(value::TEMPLATE.to_owned());
    }
    of_tool(object, &manifest.place).or_else(|| part(object))
}

/// The reason why `object` is input of a tool, and no object of Kubernetes.
fn of_tool(object: &Object<'_>, place: &Location) -> Option<String> {
    let fields = object.body.as_object()?;
    let has = |key: &str| fields.contains_key(key);
    let stem = Path::new(&place.file).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    match (stem, has("apiVersion"), has("kind")) {
        ("kustomization" | "Kustomization", is_versioned, is_kind) if !(is_versioned && is_kind) => {
            Some(format!("for kustomize; {KUSTOMIZE}"))
        }
        ("Chart", _, false) if has("name") => Some(format!("a part of a chart; {HELM}")),
        (stem, false, false) if !has("metadata") && !has("spec") && !check::has_near_field(object) => {
            let is_chart = stem.contains("values") || matches!(stem, "Chart" | "requirements");
            Some(match is_chart {
                true => format!("a part of a chart; {HELM}"),
                false => "no object of Kubernetes: it has neither `apiVersion` nor `kind`".to_owned(),
            })
        }
        _ => None,
    }
}

/// The reason why a workload is only a part of one: a patch of kustomize that completes a base.
fn part(object: &Object<'_>) -> Option<String> {
    let path = pod_path(object)?;
    let spec = &object.body["spec"];
    let pod = path.iter().fold(object.body, |at, key| &at[key.as_str()]);
    let pod = &pod["spec"];
    let containers: Vec<_> = pod["containers"].as_array().into_iter().flatten().collect();
    // A misspelt `image` is a fault of a complete manifest.
    let is_bare = containers.iter().all(|container| !check::has_near_key(container, "image"));
    let lacks_selector =
        object.api_version == "apps/v1" && SELECTING.contains(&object.kind) && spec.get("selector").is_none();
    let missing = match object.kind {
        _ if has_directive(object.body) => "a directive such as `$patch`",
        kind if kind != "Pod" && pod.is_null() => "no pod template",
        _ if lacks_selector => "no `selector`",
        kind if kind != "Pod" && is_bare && !containers.is_empty() => "no `image`",
        _ => return None,
    };
    Some(format!("a patch of a {}, with {missing}; {KUSTOMIZE}", object.kind))
}

fn has_directive(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields
            .iter()
            .any(|(key, value)| DIRECTIVES.iter().any(|directive| key.starts_with(directive)) || has_directive(value)),
        Value::Array(items) => items.iter().any(has_directive),
        _ => false,
    }
}

/// The files that kustomizations among `files` name as patches.
fn patches(files: &[File], of: &Path) -> HashSet<PathBuf> {
    let mut found = HashSet::new();
    for manifest in files.iter().flat_map(File::manifests) {
        let path = Path::new(&manifest.place.file);
        let is_kustomization = path.file_stem().is_some_and(|stem| stem.eq_ignore_ascii_case("kustomization"));
        let Some(folder) = path.parent().filter(|_| is_kustomization) else { continue };
        let paths = ["patches", "patchesJson6902", "patchesStrategicMerge"].into_iter().flat_map(|field| {
            let items = manifest.value[field].as_array().into_iter().flatten();
            items.filter_map(|item| item.as_str().or_else(|| item["path"].as_str()))
        });
        found.extend(paths.map(|path| plain(&of.join(folder).join(path))));
    }
    found
}

/// `path` without `.` and, where it can be known, without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if plain.file_name().is_some() => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  selector: {matchLabels: {a: b}}\n  \
                       template:\n    spec:\n      containers:\n      - name: web\n        image: web\n";

    /// The notes on files with these names and texts, and the documents that are left.
    fn asides(files: &[(&str, &str)]) -> (Vec<String>, usize) {
        let parse = |(name, text): &(&str, &str)| File::parse(name, text.as_bytes().to_vec()).unwrap();
        let mut parsed: Vec<File> = files.iter().map(parse).collect();
        let notes = set_aside(&mut parsed, Path::new("/home/me")).iter().map(ToString::to_string).collect();
        for (file, (_, text)) in parsed.iter().zip(files) {
            assert_eq!(file.rewrite(|_| None), *text, "nothing changed, and the bytes did");
        }
        (notes, parsed.iter().flat_map(File::manifests).count())
    }

    #[test]
    fn what_is_no_complete_object_is_set_aside_with_its_kind() {
        let patch =
            |spec: &str| format!("apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec: {spec}\n");
        for (name, text, words) in [
            ("kustomization.yaml", "resources: [a.yaml]\n".to_owned(), "for kustomize"),
            ("a/kustomization.yml", "kind: Component\nresources: [a.yaml]\n".to_owned(), "for kustomize"),
            ("values.yaml", "image: web\n".to_owned(), "a part of a chart"),
            ("my-values-prod.yaml", "image: web\nkind: x\n".replace("kind: x\n", ""), "a part of a chart"),
            ("Chart.yaml", "apiVersion: v2\nname: web\nversion: 1.0.0\n".to_owned(), "a part of a chart"),
            ("dashboard.json", "{\"panels\": []}".to_owned(), "neither `apiVersion` nor `kind`"),
            ("compose.yaml", "services: {web: {image: web}}\n".to_owned(), "neither `apiVersion` nor `kind`"),
            ("patch.yaml", "- {op: add, path: /a, value: 1}\n".to_owned(), "a JSON patch"),
            ("p.yaml", patch("{replicas: 3}"), "no pod template"),
            ("p.yaml", patch("{template: {spec: {containers: [{name: web, env: []}]}}}"), "no `selector`"),
            (
                "p.yaml",
                patch("{selector: {}, template: {spec: {containers: [{name: web, $patch: delete}]}}}"),
                "`$patch`",
            ),
            ("p.yaml", WEB.replace("spec:\n  selector", "spec:\n  $retainKeys: [selector]\n  selector"), "a directive"),
            ("p.yaml", WEB.replace("        image: web\n", ""), "no `image`"),
            ("t.yaml", WEB.replace("name: web\nspec", "name: '{{ .Release.Name }}'\nspec"), "not rendered"),
            ("t.yaml", format!("{WEB}# {{{{- if .Values.x }}}}\n"), "not rendered"),
            (
                "t.yaml",
                WEB.replace(
                    "        image: web\n",
                    "        image: web\n        #{{ with .x }}\n        args:\n        - |\n          # {{ end }}\n",
                ),
                "not rendered",
            ),
            (
                "t.yaml",
                WEB.replace("spec:\n  selector", "  ## {{-   range $x := .y}}\r\nspec:\n  selector"),
                "not rendered",
            ),
            ("t.yaml", format!("{{{{- if .Values.x }}}}\n{WEB}{{{{- end }}}}\n"), "not rendered"),
        ] {
            let (notes, left) = asides(&[(name, &text)]);
            assert!(left == 0 && notes.len() == 1 && notes[0].contains(words), "{name}: {text}: {notes:?}");
        }
    }

    #[test]
    fn objects_are_not_set_aside() {
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n";
        for text in [
            WEB.to_owned(),
            format!("{pod}spec: {{containers: []}}\n"),
            format!("{pod}spec: {{containers: [{{name: a}}]}}\n"),
            WEB.replace("image: web", "imgae: web"),
            format!("{pod}spec: {{containers: [{{name: a, image: '{{{{x}}}}'}}]}}\n"),
            // A line of a text begins with `#`, or a comment names a template.
            WEB.replace("        image: web\n", "        image: web\n        args:\n        - |\n          # {{ if .x }}\n          #{{ end }}\n"),
            WEB.replace("        image: web\n", "        image: web\n        args:\n        - >-\n          a\n          # {{- range .x }}\n"),
            WEB.replace("        image: web\n", "        image: web\n        args:\n        - \"a\n          # {{ with .x }}\"\n"),
            WEB.replace("metadata:\n", "metadata:\n  annotations:\n    vault: |\n      # {{- with secret \"a\" -}}\n      x\n      # {{- end }}\n"),
            WEB.replace("spec:\n  selector", "# see {{ docs }}\n# {{ include \"x\" . }}\n# {{ endpoint }}\nspec:\n  selector"),
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n# {{ x }}\n".to_owned(),
            "apiVersion: v1\nkind: List\nitems: []\n".to_owned(),
            "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n".to_owned(),
            "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: a}\nspec: {}\n".to_owned(),
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: []\n".to_owned(),
            "apiVersion: v2\nname: a\nversion: 1\n".to_owned(),
            "kind: Pod\nmetadata: {name: a}\n".to_owned(),
            "apiVersoin: v1\nspec: {}\n".to_owned(),
            "Kind: Pod\n".to_owned(),
            "metadata: {name: a}\n".to_owned(),
        ] {
            assert_eq!(asides(&[("a.yaml", &text)]), (Vec::new(), 1), "{text}");
        }
    }

    #[test]
    fn a_file_that_a_kustomization_names_is_a_patch() {
        let kustomization = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [web.yaml]\n\
                             patches:\n- path: ../p/one.yaml\n- patch: 'x'\npatchesStrategicMerge: [./two.yaml, 'a: b']\n";
        let (notes, left) = asides(&[
            ("dir/o/kustomization.yaml", kustomization),
            ("dir/o/web.yaml", WEB),
            ("dir/p/one.yaml", WEB),
            ("dir/o/two.yaml", &format!("{WEB}---\n{WEB}")),
        ]);
        assert_eq!(left, 2, "{notes:?}");
        assert!(notes[0].starts_with("dir/p/one.yaml:1: a patch of a kustomization"), "{notes:?}");
        assert!(notes[1].ends_with("(and another document of this file)"), "{notes:?}");
        for (kustomization_at, patch_at) in [
            ("/home/me/o/kustomization.yaml", "p/one.yaml"),
            ("o/kustomization.yaml", "/home/me/p/one.yaml"),
            ("./x/../o/kustomization.yaml", "../me/p/one.yaml"),
        ] {
            let (notes, left) = asides(&[(kustomization_at, kustomization), (patch_at, WEB)]);
            assert!(left == 1 && notes.len() == 1, "{kustomization_at} {patch_at}: {notes:?}");
        }
    }
}
