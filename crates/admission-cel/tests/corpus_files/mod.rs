//! The files of `tests/corpus`: one list of entries for each topic, and `defaults.yaml` with the default object and
//! namespace of entries.

#![allow(unreachable_pub, dead_code, reason = "shared between test programs")]

use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// An expression and its verdict.
pub struct Entry {
    /// The name of the file.
    pub file: String,
    /// The claim.
    pub name: String,
    /// The expression.
    pub expression: String,
    /// `true`, `false`, `error` (at run time) or `refused` (at compile time).
    pub expect: String,
    /// The object.
    pub object: Value,
    /// The Namespace of the object; none without one.
    pub namespace: Option<Value>,
    /// The difference of the server, if there is one.
    pub differs: Option<Differs>,
}

/// An accepted difference.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Differs {
    /// The verdict of the server.
    pub server: String,
    /// The reason why ours differs.
    pub because: String,
}

/// An entry in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Written {
    name: String,
    expression: String,
    expect: Verdict,
    object: Option<Value>,
    #[serde(default, deserialize_with = "given")]
    namespace_object: Option<Value>,
    differs: Option<WrittenDiffers>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenDiffers {
    server: Verdict,
    because: String,
}

/// `true` and `false` are bools in YAML.
#[derive(Deserialize)]
#[serde(untagged)]
enum Verdict {
    Bool(bool),
    Word(String),
}

impl Verdict {
    fn text(self) -> String {
        match self {
            Self::Bool(value) => value.to_string(),
            Self::Word(word) => word,
        }
    }
}

/// Distinguishes an explicit null from a missing value.
fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Defaults {
    object: Value,
    namespace_object: Value,
}

/// Every entry of the corpus, in the order of files. `package` is the folder of this crate.
pub fn entries(package: &Path) -> Vec<Entry> {
    let folder = package.join("tests/corpus");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect(name);
    let defaults: Defaults = serde_saphyr::from_str(&read("defaults.yaml")).expect("defaults.yaml");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .expect("tests/corpus")
        .filter_map(|file| file.expect("a file").file_name().into_string().ok())
        .filter(|name| name.ends_with(".yaml") && name != "defaults.yaml")
        .collect();
    names.sort();
    let of_file = |name: String| {
        let entries: Vec<Written> =
            serde_saphyr::from_str(&read(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let defaults = &defaults;
        entries.into_iter().map(move |written| Entry {
            file: name.clone(),
            name: written.name,
            expression: written.expression,
            expect: written.expect.text(),
            object: written.object.unwrap_or_else(|| defaults.object.clone()),
            namespace: match written.namespace_object {
                None => Some(defaults.namespace_object.clone()),
                Some(Value::Null) => None,
                given => given,
            },
            differs: written.differs.map(|differs| Differs { server: differs.server.text(), because: differs.because }),
        })
    };
    names.into_iter().flat_map(of_file).collect()
}
