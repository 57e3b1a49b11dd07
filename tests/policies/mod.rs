//! The corpus of policies. `valid/*.yaml` have no fault. `invalid/*.yaml` state their faults in the first lines, in
//! order: `# expect: SCP0019 spec.template.containers[1].name`. `# stored by: 1.13, 1.37` lists servers that accept the
//! policy, so that only the operator reports it. A new case needs no Rust.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

pub(crate) mod damage;

use serde_json::Value;
use std::fs;
use std::path::Path;

/// A policy of the corpus.
pub(crate) struct Case {
    /// The name of its file, without `.yaml`.
    pub(crate) name: String,
    /// The faults, as `code field`.
    pub(crate) expected: Vec<String>,
    /// The servers that store the policy anyway.
    pub(crate) stored_by: Vec<String>,
    /// The policy.
    pub(crate) object: Value,
}

/// The policies without a fault.
pub(crate) fn valid() -> Vec<Case> {
    read("valid")
}

/// The policies with a fault.
pub(crate) fn invalid() -> Vec<Case> {
    read("invalid")
}

fn read(folder: &str) -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies").join(folder);
    let mut cases: Vec<_> = fs::read_dir(folder).unwrap().map(|file| case(&file.unwrap().path())).collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

fn case(path: &Path) -> Case {
    let text = fs::read_to_string(path).unwrap();
    let said =
        |key: &str| text.lines().filter_map(|line| line.strip_prefix(key)).map(str::to_owned).collect::<Vec<_>>();
    let (expected, stored_by) = (
        said("# expect: "),
        said("# stored by: ").iter().flat_map(|line| line.split(", ")).map(str::to_owned).collect(),
    );
    let object = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Case { name: path.file_stem().unwrap().to_string_lossy().into_owned(), expected, stored_by, object }
}

/// Policies with one fault each, for every possible fault of every field in the schema.
pub(crate) fn damaged() -> Vec<damage::Damaged> {
    let cases = valid();
    damage::to(&cases.iter().find(|case| case.name == "every-field").unwrap().object)
}

/// Copies of `object` under another name, each with one part of its spec replaced by a value, for every part and every
/// type of value.
pub(crate) fn mutants(object: &Value) -> Vec<Value> {
    let mut pointers = Vec::new();
    if object.get("spec").is_none() {
        return Vec::new();
    }
    collect(&object["spec"], "/spec".to_owned(), &mut pointers);
    let values = [
        Value::Null,
        true.into(),
        7.into(),
        1.5.into(),
        "x".into(),
        "".into(),
        "A b".into(),
        Value::Array(vec![]),
        serde_json::json!({}),
    ];
    let mutant = |pointer: &String, value: &Value| {
        let mut mutant = object.clone();
        mutant["metadata"]["name"] = "mutant".into();
        *mutant.pointer_mut(pointer).unwrap() = value.clone();
        mutant
    };
    pointers.iter().flat_map(|pointer| values.iter().map(move |value| mutant(pointer, value))).collect()
}

fn collect(value: &Value, pointer: String, pointers: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| {
                collect(value, format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1")), pointers)
            });
        }
        // One item is enough, of those with the same fields.
        Value::Array(items) => {
            let fields = |item: &Value| item.as_object().map(|item| item.keys().cloned().collect::<Vec<_>>());
            let mut seen = Vec::new();
            for (index, item) in items.iter().enumerate() {
                if !seen.contains(&fields(item)) {
                    seen.push(fields(item));
                    collect(item, format!("{pointer}/{index}"), pointers);
                }
            }
        }
        _ => {}
    }
    pointers.push(pointer);
}
