//! The corpus: expressions by topic, each with its verdict. The project's server tests compare it with real servers.

mod corpus_files;

use admission_cel::{Budget, Dialect, Expression, Gives, Variables};
use corpus_files::{Entry, NEWEST, OLDEST};
use std::path::Path;

fn entries() -> Vec<Entry> {
    corpus_files::entries(Path::new(env!("CARGO_MANIFEST_DIR")))
}

/// Our verdict on an entry as of a version, and its reason.
fn verdict(entry: &Entry, dialect: Dialect) -> (&'static str, String) {
    let variables = Variables { object: &entry.object, namespace: entry.namespace.as_ref(), template: None };
    match Expression::compile(&entry.expression, Gives::Bool, dialect) {
        Err(error) => ("refused", error.to_string()),
        Ok(expression) => match expression.test(&variables, &mut Budget::validations()) {
            Ok(true) => ("true", String::new()),
            Ok(false) => ("false", String::new()),
            Err(failure) => ("error", failure.to_string()),
        },
    }
}

#[test]
fn every_expression_has_its_verdict_in_every_version() {
    let entries = entries();
    assert!(entries.len() > 800, "{} entries", entries.len());
    let mut wrong = Vec::new();
    for entry in &entries {
        for minor in OLDEST..=NEWEST {
            let (verdict, why) = verdict(entry, Dialect::of(minor));
            let expected = entry.expect.at(minor);
            if verdict != expected {
                wrong.push(format!(
                    "{}: {}\n  {}\n  1.{minor}: expected {expected}, found {verdict} {why}",
                    entry.file, entry.name, entry.expression
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_corpus_has_every_version() {
    assert_eq!((Dialect::OLDEST, Dialect::NEWEST), (Dialect::of(OLDEST), Dialect::of(NEWEST)));
}

#[test]
fn every_entry_has_a_name_of_its_own() {
    let mut names: Vec<_> = entries().into_iter().map(|entry| entry.name).collect();
    names.sort();
    let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| &pair[0]).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

#[test]
fn every_difference_is_one() {
    for entry in entries() {
        if let Some(differs) = &entry.differs {
            assert_ne!(differs.server, entry.expect, "{}", entry.name);
            assert!(!differs.because.is_empty(), "{}", entry.name);
        }
    }
}
