//! The files of `tests/corpus`: one list of entries for each topic, and `defaults.yaml` with the default object and
//! namespace of entries.

#![allow(unreachable_pub, dead_code, reason = "shared between test programs")]

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// An expression and its verdicts.
#[derive(Clone)]
pub struct Entry {
    /// The name of the file.
    pub file: String,
    /// The claim.
    pub name: String,
    /// The expression.
    pub expression: String,
    /// The verdicts of this crate.
    pub expect: Verdicts,
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
    /// The verdicts of the server.
    pub server: Verdicts,
    /// The reason why ours differs.
    pub because: String,
}

impl Entry {
    /// The verdicts of the server.
    pub fn of_server(&self) -> &Verdicts {
        self.differs.as_ref().map_or(&self.expect, |differs| &differs.server)
    }
}

/// Verdicts by minor version of Kubernetes 1: `true`, `false`, `error` (at run time) or `refused` (at compile time).
/// Each is valid from its version on. A file has a single one without a version, or a map: `{"1.30": refused, "1.35": true}`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(from = "WrittenVerdicts")]
pub struct Verdicts(BTreeMap<u32, String>);

/// Verdicts of servers on one entry, by minor version.
pub type Asked = BTreeMap<u32, String>;

/// The first minor version of the corpus.
pub const OLDEST: u32 = 30;
/// The last minor version of the corpus.
pub const NEWEST: u32 = 37;

impl Verdicts {
    /// The verdict of a version.
    pub fn at(&self, minor: u32) -> &str {
        self.0.range(..=minor).next_back().map_or("none", |(_, verdict)| verdict)
    }

    /// These verdicts, corrected by those of servers. Versions between two servers keep their verdicts if both servers
    /// confirm them. Otherwise they get that of the earlier server.
    #[must_use]
    pub fn corrected(&self, servers: &Asked) -> Self {
        let is_new = |minor: u32, verdict: &str| self.at(minor) != verdict;
        let mut verdicts: BTreeMap<u32, String> =
            (OLDEST..=NEWEST).map(|minor| (minor, self.at(minor).to_owned())).collect();
        verdicts.extend(servers.clone());
        for ((earlier, before), (later, after)) in servers.iter().zip(servers.iter().skip(1)) {
            if is_new(*earlier, before) || is_new(*later, after) {
                verdicts.extend((*earlier..*later).map(|minor| (minor, before.clone())));
            }
        }
        let mut last = None;
        verdicts.retain(|_, verdict| last.replace(verdict.clone()).as_ref() != Some(verdict));
        Self(verdicts)
    }
}

impl fmt::Display for Verdicts {
    /// As in a file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.first_key_value() {
            Some((_, only)) if self.0.len() == 1 => f.write_str(only),
            _ => {
                let verdicts: Vec<_> =
                    self.0.iter().map(|(minor, verdict)| format!("\"1.{minor}\": {verdict}")).collect();
                write!(f, "{{ {} }}", verdicts.join(", "))
            }
        }
    }
}

/// An entry in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Written {
    name: String,
    expression: String,
    expect: Verdicts,
    object: Option<Value>,
    #[serde(default, deserialize_with = "given")]
    namespace_object: Option<Value>,
    differs: Option<Differs>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenVerdicts {
    One(Verdict),
    ByVersion(BTreeMap<String, Verdict>),
}

impl From<WrittenVerdicts> for Verdicts {
    fn from(written: WrittenVerdicts) -> Self {
        let minor = |version: &str| version.strip_prefix("1.").and_then(|minor| minor.parse().ok()).expect("a version");
        match written {
            WrittenVerdicts::One(verdict) => Self(BTreeMap::from([(OLDEST, verdict.text())])),
            WrittenVerdicts::ByVersion(verdicts) => {
                Self(verdicts.into_iter().map(|(version, verdict)| (minor(&version), verdict.text())).collect())
            }
        }
    }
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
            expect: written.expect,
            object: written.object.unwrap_or_else(|| defaults.object.clone()),
            namespace: match written.namespace_object {
                None => Some(defaults.namespace_object.clone()),
                Some(Value::Null) => None,
                given => given,
            },
            differs: written.differs,
        })
    };
    names.into_iter().flat_map(of_file).collect()
}

/// Writes the verdicts of servers into the files: for each entry of `entries`, in their order, those by minor version.
pub fn write(package: &Path, entries: &[Entry], verdicts: &[Asked]) {
    let mut files: BTreeMap<&str, Vec<(&Entry, &Asked)>> = BTreeMap::new();
    for (entry, verdicts) in entries.iter().zip(verdicts) {
        files.entry(&entry.file).or_default().push((entry, verdicts));
    }
    for (file, entries) in files {
        let path = package.join("tests/corpus").join(file);
        let text = std::fs::read_to_string(&path).expect(file);
        let mut entries = entries.into_iter();
        let mut current = None;
        let mut lines = Vec::new();
        for line in text.lines() {
            if line.starts_with("- ") {
                current = entries.next();
            }
            let of_server = current.map(|(entry, verdicts)| (entry, entry.of_server().corrected(verdicts)));
            lines.push(match of_server {
                Some((entry, verdicts)) if entry.differs.is_none() && line.starts_with("  expect: ") => {
                    format!("  expect: {verdicts}")
                }
                Some((_, verdicts)) if line.starts_with("    server: ") => format!("    server: {verdicts}"),
                _ => line.to_owned(),
            });
        }
        std::fs::write(&path, lines.join("\n") + "\n").expect(file);
    }
}
