//! Our reader of manifests beside kubectl's. Each text of `reader/cases.rs` goes through both. They must read the same
//! objects, or both refuse the text. A difference is listed beside its text, with the reason: one that is not listed
//! fails, and one that is listed and gone, too.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "reader/cases.rs"]
mod cases;

use crate::tools::tool;
use cases::CASES;
use rayon::prelude::*;
use serde_json::Value as Json;
use sidecar_policy::manifest::{File, Manifest};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The head of an object that any kubectl takes.
const HEAD: &str = "apiVersion: v1\nkind: Probe\nmetadata: {name: a}\n";

/// How the readers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// Only our reader takes the text.
    Ours,
    /// Only kubectl takes the text.
    Theirs,
    /// The values differ.
    Value,
    /// Our reader takes the text, and only some versions of kubectl do.
    Versions,
}

/// The objects that kubectl reads in `text`, or its error.
fn kubectl(program: &Path, text: &str) -> Result<Vec<Json>, String> {
    let mut child = Command::new(program)
        // An empty patch prints the objects as they were read.
        .args(["patch", "--local", "--type=merge", "-p", "{}", "-o", "json", "-f", "-"])
        .env("KUBECONFIG", "/dev/null")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() || error.contains("no objects passed to") {
        let objects: Result<Vec<Json>, _> = serde_json::Deserializer::from_slice(&output.stdout).into_iter().collect();
        return Ok(objects.unwrap());
    }
    Err(error)
}

/// The objects that our reader finds in `text`, or its fault, or the reason why it leaves a document alone.
fn ours(text: &str) -> Result<Vec<Json>, String> {
    let file = File::parse("case.yaml", text.as_bytes().to_vec()).map_err(|faults| faults[0].to_string())?;
    assert_eq!(file.rewrite(|_| None), text, "nothing changed, and the bytes did");
    if let Some(aside) = file.asides.first() {
        return Err(aside.to_string());
    }
    Ok(file.manifests().flat_map(Manifest::objects).map(|object| object.body.clone()).collect())
}

/// `value` with whole numbers as integers, because JSON writers differ in `1.0`.
fn plain(value: Json) -> Json {
    match value {
        Json::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => {
                Json::from(format!("{float:.0}").parse::<i64>().unwrap())
            }
            _ => Json::Number(number),
        },
        Json::Array(items) => items.into_iter().map(plain).collect(),
        Json::Object(fields) => fields.into_iter().map(|(key, value)| (key, plain(value))).collect(),
        other => other,
    }
}

fn difference(theirs: &Result<Vec<Json>, String>, ours: &Result<Vec<Json>, String>) -> Option<Difference> {
    let plain = |found: &[Json]| found.iter().cloned().map(plain).collect::<Vec<_>>();
    match (theirs, ours) {
        (Err(_), Err(_)) => None,
        (Ok(theirs), Ok(ours)) => (plain(theirs) != plain(ours)).then_some(Difference::Value),
        (Ok(_), Err(_)) => Some(Difference::Theirs),
        (Err(_), Ok(_)) => Some(Difference::Ours),
    }
}

#[test]
fn our_reader_takes_what_kubectl_takes() {
    let program = tool("kubectl");
    let faults: Vec<_> = CASES
        .par_iter()
        .filter_map(|(name, text, listed)| {
            let text = text.replace('§', HEAD);
            let (theirs, ours) = (kubectl(&program, &text), ours(&text));
            let found = difference(&theirs, &ours);
            let listed = listed.map(|(listed, _)| listed);
            let is_listed = match listed {
                Some(Difference::Versions) => matches!(found, None | Some(Difference::Ours)) && ours.is_ok(),
                listed => found == listed,
            };
            (!is_listed).then(|| format!("{name}: {found:?}, listed: {listed:?}\n  {theirs:?}\n  {ours:?}"))
        })
        .collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn each_text_has_a_name_of_its_own() {
    let names: BTreeSet<_> = CASES.iter().map(|(name, ..)| name).collect();
    assert_eq!(names.len(), CASES.len());
}

#[test]
fn a_document_beside_one_that_changes_keeps_its_bytes() {
    for (name, text, _) in CASES {
        let text = text.replace('§', HEAD);
        if ours(&text).is_err() || text.starts_with('{') || !text.ends_with('\n') {
            continue;
        }
        let stream = format!("{text}---\n{HEAD}new: 1\n");
        let file =
            File::parse("case.yaml", stream.into_bytes()).unwrap_or_else(|faults| panic!("{name}: {}", faults[0]));
        let changed = file.rewrite(|manifest| manifest.value.get("new").map(|_| serde_json::json!({"changed": true})));
        assert_eq!(changed, format!("{text}---\nchanged: true\n"), "{name}");
    }
}
