//! What others than the API server do to a pod, asked of the commands on files: `lint`, `inject`, `explain`, `diff`.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::tools::root;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A case: a folder with `policy.yaml`, `workload.yaml` and `expected.txt`.
///
/// `expected.txt` has a line for each code that `inject`, `explain` and `lint --manifests` say, as
/// `SCP0232 spec.template.imagePullSecrets: message`. `lint` names the field. A line that begins with `conflict` is a
/// workload that is not injected. Without lines none of the three says a code of [`CODES`].
fn cases() -> Vec<PathBuf> {
    let mut cases: Vec<_> = fs::read_dir(root().join("tests/readers")).unwrap().map(|it| it.unwrap().path()).collect();
    cases.sort();
    cases
}

struct Ran {
    out: String,
    err: String,
    code: i32,
}

fn scpol(folder: &Path, arguments: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_scpol")).args(arguments).current_dir(folder).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Ran { out: text(&output.stdout), err: text(&output.stderr), code: output.status.code().unwrap_or(-1) }
}

/// The codes of effects and of conflicts of a workload. What a policy does alone, such as SCP0057, is in `tests/lint`.
const CODES: [&str; 14] = [
    "SCP0060", "SCP0068", "SCP0200", "SCP0204", "SCP0205", "SCP0228", "SCP0232", "SCP0233", "SCP0234", "SCP0235",
    "SCP0236", "SCP0240", "SCP0241", "SCP0242",
];

fn named(text: &str) -> Vec<&'static str> {
    CODES.into_iter().filter(|code| text.contains(code)).collect()
}

/// A line of `expected.txt`.
struct Line<'a> {
    code: &'a str,
    field: &'a str,
    message: &'a str,
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Self {
        let (code, rest) = line.split_once(' ').unwrap_or_default();
        let (field, message) = rest.split_once(": ").unwrap_or_default();
        assert!(field.starts_with("spec.") && !message.is_empty(), "{line}: expected `CODE FIELD: MESSAGE`");
        Self { code, field, message }
    }

    /// Whether the report of `lint` has it.
    fn is_in(&self, report: &Value) -> bool {
        let findings = report["items"].as_array().into_iter().flatten();
        let text = |finding: &Value, field: &str| finding[field].as_str().unwrap_or_default().to_owned();
        findings.into_iter().any(|finding| {
            text(finding, "code") == self.code
                && text(finding, "field") == self.field
                && text(finding, "message").contains(self.message)
        })
    }
}

#[test]
fn the_commands_say_what_other_readers_do_and_nothing_where_nothing_is_lost() {
    let (mut faults, mut told, mut silent) = (String::new(), 0, 0);
    for case in cases() {
        let name = case.file_name().unwrap().to_str().unwrap().to_owned();
        let expected = fs::read_to_string(case.join("expected.txt")).unwrap_or_default();
        let lines: Vec<_> = expected.lines().filter(|line| !line.is_empty()).collect();
        let is_conflict = lines.iter().any(|line| line.starts_with("conflict "));
        let lines: Vec<_> = lines.iter().map(|line| line.trim_start_matches("conflict ")).collect();
        let codes: Vec<_> = named(&expected);
        let inject = scpol(&case, &["inject", "-f", "workload.yaml", "-p", "policy.yaml"]);
        let explain = scpol(&case, &["explain", "-f", "workload.yaml", "-p", "policy.yaml", "-o", "json"]);
        let lint = scpol(&case, &["lint", "-f", "policy.yaml", "--manifests", "workload.yaml", "-o", "json"]);
        for (command, said) in [("inject", &inject.err), ("explain", &explain.out), ("lint", &lint.out)] {
            if named(said) != codes {
                faults.push_str(&format!("\n{name}: {command} names {:?}, expected {codes:?}:\n{said}", named(said)));
            }
            for line in &lines {
                let Line { message, .. } = Line::of(line);
                if !said.replace("\\\"", "\"").contains(message) {
                    faults.push_str(&format!("\n{name}: {command} does not say `{message}`:\n{said}"));
                }
            }
        }
        let report: Value = serde_json::from_str(&lint.out).unwrap();
        for line in lines.iter().filter(|line| !Line::of(line).is_in(&report)) {
            faults.push_str(&format!(
                "\n{name}: no finding of lint has code, field and message of {line}:\n{}",
                lint.out
            ));
        }
        let is_injected = inject.out.contains("injected.scpol.dev/");
        if is_injected == is_conflict || inject.code != i32::from(is_conflict) {
            faults.push_str(&format!("\n{name}: injected: {is_injected}, exit code {}\n{}", inject.code, inject.err));
        }
        if lines.is_empty() { silent += 1 } else { told += 1 }
    }
    assert!(faults.is_empty(), "{faults}");
    assert!(told >= 20 && silent >= 10, "{told} cases that say something, {silent} that do not");
}

#[test]
fn a_diff_of_policies_knows_what_the_other_commands_know() {
    let case = root().join("tests/readers/env-known");
    let ended = scpol(&case, &["diff", "--old", "old.yaml", "--new", "policy.yaml", "-f", "workload.yaml"]);
    assert!(ended.out.contains("loses") && ended.out.contains("SCP0200"), "{}{}", ended.out, ended.err);
}

#[test]
fn a_secret_is_compared_and_never_shown() {
    for case in ["env-known-secret", "env-known-string-data"] {
        let case = root().join("tests/readers").join(case);
        for arguments in [
            &["inject", "-f", "workload.yaml", "-p", "policy.yaml", "--diff"][..],
            &["explain", "-f", "workload.yaml", "-p", "policy.yaml"],
            &["lint", "-f", "policy.yaml", "--manifests", "workload.yaml"],
        ] {
            let Ran { out, err, .. } = scpol(&case, arguments);
            assert!(!out.contains("hunter2") && !err.contains("hunter2"), "{arguments:?}: {out}{err}");
        }
    }
}

#[test]
fn explain_says_effects_to_people_and_in_json() {
    let case = root().join("tests/readers/pull-secrets");
    let people = scpol(&case, &["explain", "-f", "workload.yaml", "-p", "policy.yaml"]);
    assert!(people.out.contains("(SCP0232)"), "{}", people.out);
    let json = scpol(&case, &["explain", "-f", "workload.yaml", "-p", "policy.yaml", "-o", "json"]);
    let report: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(report["items"][0]["policies"][0]["effects"][0]["code"], "SCP0232", "{report:#}");
}
