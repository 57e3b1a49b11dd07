//! Selection by namespace, labels and annotations, compared with a second implementation that is too simple to be
//! wrong.
//!
//! An input consists of lines. First come globs of namespaces (excluded ones begin with `!`) and the namespace. Then
//! come requirements (`key=value`, or a key, an operator, and comma-separated values) up to an empty line. The
//! workload's own entries (`key=value`) come last.

use serde_json::{Map, Value, json};
use sidecar_policy::api::code::Code;
use sidecar_policy::policy::{PROTECTED_NAMESPACES, Policy, Site, Verdict, decide};
use sidecar_policy::workload::{Kind, Workload};
use std::collections::BTreeMap;
use std::sync::Arc;

type Words<'a> = BTreeMap<&'a str, &'a str>;

/// A key, an operator, and values.
struct Requirement<'a>(&'a str, &'a str, Vec<&'a str>);

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines = text.split('\n');
    let (globs, namespace) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let wanted: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    let has: Words<'_> = lines.filter_map(|line| line.split_once('=')).collect();

    // The name of a Namespace is a DNS label.
    if PROTECTED_NAMESPACES.contains(&namespace) || namespace.len() > 63 {
        return;
    }
    let words: Map<String, Value> = has.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    let workload = workload(namespace, &words);
    let (excluded, included): (Vec<_>, Vec<_>) = globs.split(' ').partition(|glob| glob.starts_with('!'));
    let excluded: Vec<_> = excluded.iter().map(|glob| &glob[1..]).collect();
    let any = |globs: &[&str]| globs.iter().any(|glob| fits(glob.as_bytes(), namespace.as_bytes()));
    let lists = json!({ "namespaces": included, "excludeNamespaces": excluded });
    compare(&lists, &workload, || any(&included) && !any(&excluded), Code::NamespaceNotMatched);

    let (equal, requirements) = requirements(&wanted);
    let expressions: Vec<_> = requirements.iter().map(Requirement::to_value).collect();
    let selector = |labels: &str| json!({ labels: equal, "matchExpressions": expressions });
    let holds = |has: &Words<'_>| {
        equal.iter().all(|(key, value)| has.get(key) == Some(value))
            && requirements.iter().all(|requirement| requirement.holds(has))
    };
    let mut of_namespace = has.clone();
    of_namespace.entry("kubernetes.io/metadata.name").or_insert(namespace);
    for (field, labels, of, code) in [
        ("labelSelector", "matchLabels", &has, Code::LabelsNotMatched),
        ("annotationSelector", "matchAnnotations", &has, Code::AnnotationNotMatched),
        ("namespaceSelector", "matchLabels", &of_namespace, Code::NamespaceLabelsNotMatched),
    ] {
        compare(&json!({ field: selector(labels) }), &workload, || holds(of), code);
    }
}

/// A workload with these labels and annotations, in a Namespace with the same ones.
fn workload(namespace: &str, words: &Map<String, Value>) -> Workload {
    let body = json!({ "metadata": { "namespace": namespace, "labels": words, "annotations": words } });
    let kind = Kind::find("apps", "deployments").expect("a built-in kind");
    Workload::new(kind, body).within(Some(Arc::new(json!({ "metadata": { "name": namespace, "labels": words } }))))
}

/// Checks the selection of the workload. If the policy is valid, the result must be `expected`, or the reason `code`.
fn compare(selection: &Value, workload: &Workload, expected: impl FnOnce() -> bool, code: Code) {
    let mut spec = json!({ "optOut": "Denied", "template": { "volumes": [{ "name": "v" }] } });
    spec.as_object_mut().expect("made here").extend(selection.as_object().cloned().unwrap_or_default());
    let site = Site::new("scpol-system", [], []);
    let policy = json!({ "metadata": { "name": "fuzz" }, "spec": spec });
    let Ok(policy) = Policy::parse(&policy, &site) else { return };
    let expected = expected();
    match decide(&policy, workload, &site) {
        Verdict::Inject if expected => {}
        Verdict::Skip(reason) if !expected && reason.code == code => {}
        Verdict::Skip(reason)
            if reason.code == Code::NamespaceProtected && workload.namespace() == site.operator_namespace => {}
        other => panic!("{selection} for {} should be {expected}, is {other:?}", workload.body),
    }
}

/// Parses the lines of requirements.
fn requirements<'a>(lines: &[&'a str]) -> (Words<'a>, Vec<Requirement<'a>>) {
    let (mut equal, mut others) = (Words::new(), Vec::new());
    for line in lines {
        match (line.split_once('='), line.split(' ').collect::<Vec<_>>().as_slice()) {
            (Some((key, value)), _) => drop(equal.insert(key, value)),
            (None, [key, operator, rest @ ..]) => {
                others.push(Requirement(key, operator, rest.iter().flat_map(|values| values.split(',')).collect()));
            }
            (None, _) => {}
        }
    }
    (equal, others)
}

impl Requirement<'_> {
    fn to_value(&self) -> Value {
        let Requirement(key, operator, values) = self;
        let mut value = json!({ "key": key, "operator": operator });
        if !values.is_empty() {
            value["values"] = json!(values);
        }
        value
    }

    fn holds(&self, has: &Words<'_>) -> bool {
        let Requirement(key, operator, values) = self;
        match (has.get(key), *operator) {
            (there, "Exists") => there.is_some(),
            (there, "DoesNotExist") => there.is_none(),
            (there, "In") => there.is_some_and(|there| values.contains(there)),
            (there, _) => there.is_none_or(|there| !values.contains(there)),
        }
    }
}

/// Whether `glob` matches `name`, by dynamic programming over their prefixes.
fn fits(glob: &[u8], name: &[u8]) -> bool {
    // A `?` matches a character, not a byte. A lone continuation byte is no character.
    let name: Vec<char> = String::from_utf8_lossy(name).chars().collect();
    let mut row: Vec<bool> = std::iter::once(true).chain(name.iter().map(|_| false)).collect();
    for symbol in String::from_utf8_lossy(glob).chars() {
        let above = row.clone();
        row[0] = above[0] && symbol == '*';
        for (index, char) in name.iter().enumerate() {
            row[index + 1] = match symbol {
                '*' => above[index + 1] || row[index],
                '?' => above[index],
                symbol => above[index] && symbol == *char,
            };
        }
    }
    row[name.len()]
}
