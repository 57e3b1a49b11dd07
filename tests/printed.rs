//! Every command that a message prints is in the table of `support/printed.rs`, which says how it is tried.

use crate::architecture::{code, rust_files, source_of};
use crate::printed_table::{PRINTED, Tried};
use regex::Regex;
use std::collections::BTreeSet;
use std::fs;

/// The commands in the texts of `source`: in backquotes, or at the beginning of a text.
fn printed(source: &str) -> BTreeSet<String> {
    let lines: Vec<&str> = code(source).map(|(_, line)| line).collect();
    let text =
        Regex::new(r"\\\n\s*").expect("well-formed").replace_all(&lines.join("\n"), "").replace(r#"\""#, "\u{1}");
    let commands = Regex::new(r#"`((?:kubectl|scpol) [^`"]+)`|"(kubectl [^"]+)""#).expect("well-formed");
    let found = commands.captures_iter(&text).filter_map(|found| found.get(1).or(found.get(2)));
    found.map(|command| command.as_str().replace('\u{1}', "\"")).collect()
}

/// Whether `tests` or `tests/apiserver` has that test, `module::function`.
fn is_test(test: &str) -> bool {
    let Some((module, function)) = test.split_once("::") else { return false };
    ["tests", "tests/apiserver"].into_iter().any(|folder| {
        let source = fs::read_to_string(source_of(folder).join(format!("{module}.rs"))).unwrap_or_default();
        source.contains(&format!("fn {function}()"))
    })
}

#[test]
fn a_test_is_named_by_its_module_and_its_function() {
    assert!(is_test("printed::a_test_is_named_by_its_module_and_its_function"));
    assert!(!is_test("printed::no_test") && !is_test("printed") && !is_test("none::main"));
}

#[test]
fn commands_are_found_in_backquotes_and_at_the_beginning_of_a_text() {
    let source = r#"
        // Not in a comment: `kubectl get pods`.
        let a = "See `kubectl describe pod`, \
                 or `scpol status`.";
        let b = format!("kubectl patch {name} -p '{{\"a\":1}}'");
        let c = "the kubectl that you have; `kubectl`; scpol status";
    "#;
    let expected = ["kubectl describe pod", r#"kubectl patch {name} -p '{{"a":1}}'"#, "scpol status"];
    assert_eq!(printed(source), expected.map(str::to_owned).into());
}

#[test]
fn every_command_that_a_message_prints_is_tried() {
    let files = ["src", "crates/core/src"].into_iter().flat_map(|folder| rust_files(&source_of(folder)));
    let found: BTreeSet<String> =
        files.flat_map(|file| printed(&fs::read_to_string(file).expect("readable"))).collect();
    let known: BTreeSet<String> = PRINTED.iter().map(|(command, _)| (*command).to_owned()).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(new.is_empty(), "say in tests/support/printed.rs how they are tried: {new:#?}");
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "no message prints them any more: {gone:#?}");
    for (command, tried) in PRINTED {
        let has_place = command.contains(['{', '<']) || command.contains("NAME") || command.contains("POLICY");
        assert!(*tried != Tried::Here("") || !has_place, "{command}: with which names is it tried?");
        if let Tried::By(test) = tried {
            assert!(is_test(test), "{command}: no test is called {test}");
        }
    }
}
