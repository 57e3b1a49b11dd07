//! Every folder in `tests/golden` is a case of `scpol test`. From `policy.yaml` (one or more policies) and
//! `workload.yaml` follows `expected.yaml`. `expected.txt` lists policies that add nothing, with reasons. `case.yaml`
//! has the values of flags. A new case needs no Rust: write the first two files, run `scpol test --update
//! tests/golden`, and review the results.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::tools::root;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn scpol_test(arguments: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scpol")).arg("test").args(arguments).output().unwrap()
}

fn corpus() -> PathBuf {
    root().join("tests/golden")
}

#[test]
fn every_case_gives_what_is_expected() {
    let output = scpol_test(&[&corpus(), "--output=json".as_ref()]);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let cases = report["cases"].as_array().unwrap();
    let failed = cases.iter().filter(|case| case["ok"] != true).map(|case| {
        let faults = case["faults"].as_array().unwrap().iter().map(|fault| fault.as_str().unwrap());
        format!("{}\n{}", case["case"], faults.collect::<Vec<_>>().join("\n"))
    });
    let failed: Vec<String> = failed.collect();
    assert!(failed.is_empty(), "{} of {} cases fail\n\n{}", failed.len(), cases.len(), failed.join("\n\n"));
    assert!(output.status.success());
    assert!(cases.len() >= 200, "{} cases", cases.len());
}

#[test]
fn a_wrong_expectation_is_a_finding_that_update_repairs() {
    let folder = tempfile::tempdir().unwrap();
    for case in ["deployment", "row-7-label-in-other"] {
        fs::create_dir(folder.path().join(case)).unwrap();
        for entry in fs::read_dir(corpus().join(case)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.path().join(case).join(path.file_name().unwrap())).unwrap();
        }
    }
    assert_eq!(scpol_test(&[folder.path()]).status.code(), Some(0));
    let (body, reasons) =
        (folder.path().join("deployment/expected.yaml"), folder.path().join("row-7-label-in-other/expected.txt"));
    let (right, told) = (fs::read_to_string(&body).unwrap(), fs::read_to_string(&reasons).unwrap());
    fs::write(&body, right.replace("name: envoy", "name: other")).unwrap();
    fs::write(&reasons, "envoy skipped SCP0108\n").unwrap();
    let output = scpol_test(&[folder.path()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for expected in
        ["name: other", "expected: envoy skipped SCP0108", "found:    envoy skipped SCP0111", "2 cases: 0 ok, 2 failed"]
    {
        assert!(text.contains(expected), "{expected} in\n{text}");
    }
    assert_eq!(scpol_test(&[folder.path(), "--update".as_ref()]).status.code(), Some(0));
    assert_eq!((fs::read_to_string(&body).unwrap(), fs::read_to_string(&reasons).unwrap()), (right, told));
    // A line may end after any word.
    fs::write(&reasons, "envoy skipped SCP0111\n").unwrap();
    assert_eq!(scpol_test(&[folder.path()]).status.code(), Some(0));
}

#[test]
fn a_broken_case_hides_none_of_the_others_and_a_failure_that_is_written_down_is_told() {
    let folder = tempfile::tempdir().unwrap();
    for (name, case) in [("a", "conflict-image"), ("b", "deployment"), ("c", "deployment"), ("d", "deployment")] {
        fs::create_dir(folder.path().join(name)).unwrap();
        for file in ["policy.yaml", "workload.yaml"] {
            fs::copy(corpus().join(case).join(file), folder.path().join(name).join(file)).unwrap();
        }
    }
    fs::write(folder.path().join("b/policy.yaml"), "a: [").unwrap();
    fs::write(folder.path().join("c/case.yaml"), "kubeVersion: new\n").unwrap();
    let output = scpol_test(&[folder.path(), "--update".as_ref()]);
    let (text, told) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(2), "{text}{told}");
    assert!(text.contains("4 cases: 2 ok, 2 failed") && text.matches("cannot be run: ").count() == 2, "{text}");
    assert!(told.contains("2 cases cannot be run"), "{told}");
    let failures: Vec<_> = told.lines().filter(|line| line.contains("a failure is expected from now on")).collect();
    assert!(matches!(failures[..], [line] if line.contains("/a: ") && line.contains("SCP0200")), "{told}");
    // It is expected now, and is not reported again.
    let again = scpol_test(&[&folder.path().join("a"), "--update".as_ref()]);
    assert_eq!((again.status.code(), again.stderr.as_slice()), (Some(0), &b""[..]));
    let output = scpol_test(&[folder.path(), "--output=json".as_ref()]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ends: Vec<_> = report["cases"].as_array().unwrap().iter().map(|case| (&case["ok"], &case["broken"])).collect();
    let [yes, no] = [Value::Bool(true), Value::Bool(false)];
    assert_eq!(ends, [(&yes, &no), (&no, &yes), (&no, &yes), (&yes, &no)]);
}

#[test]
fn what_is_no_case_could_not_be_run() {
    let empty = tempfile::tempdir().unwrap();
    for (folder, expected) in [(empty.path(), "no case found"), (Path::new("Cargo.toml"), "is no folder")] {
        let output = scpol_test(&[folder]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains(expected));
    }
}
