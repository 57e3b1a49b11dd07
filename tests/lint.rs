//! Tests of `scpol lint` on files. `lint/*.yaml` contain their findings: `# expect: warning SCP0034
//! spec.template.containers[0].image` at the end of the faulty line. Other findings must not occur. The first line may
//! have flags: `# flags: --kube-version 1.36`. A new case needs no Rust.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::tools::root;
use serde_json::Value;
use sidecar_policy::api::code::Code;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The JSON output of the command, and its exit code.
fn lint(arguments: &[&str]) -> (Value, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_scpol"))
        .args(["lint", "-o", "json"])
        .args(arguments)
        .current_dir(root())
        .output()
        .unwrap();
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (report, output.status.code().unwrap_or(-1))
}

fn items(report: &Value) -> impl Iterator<Item = &Value> {
    report["items"].as_array().unwrap().iter()
}

fn text<'a>(item: &'a Value, field: &str) -> &'a str {
    item[field].as_str().unwrap_or_else(|| panic!("{field} is no text in {item}"))
}

fn cases() -> Vec<PathBuf> {
    let files = fs::read_dir(root().join("tests/lint")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// The expected findings of a file, with their lines.
fn expected(text: &str) -> Vec<String> {
    let lines = text.lines().enumerate();
    let named = lines.filter_map(|(index, line)| Some((index + 1, line.split_once("# expect: ")?.1)));
    named.map(|(line, finding)| format!("{line} {finding}")).collect()
}

#[test]
fn every_case_has_exactly_the_findings_that_it_names_where_it_names_them() {
    let mut faults = String::new();
    for path in cases() {
        let file = fs::read_to_string(&path).unwrap();
        let flags = file.lines().next().and_then(|line| line.strip_prefix("# flags: ")).unwrap_or_default();
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap();
        let (report, code) = lint(&[&["-f", name], &flags.split_whitespace().collect::<Vec<_>>()[..]].concat());
        let mut found: Vec<_> = items(&report)
            .map(|item| {
                assert_eq!(item["file"], name);
                let severity = text(item, "severity").to_lowercase();
                format!("{} {severity} {} {}", item["line"], text(item, "code"), text(item, "field"))
            })
            .collect();
        let mut wanted = expected(&file);
        found.sort();
        wanted.sort();
        if found != wanted {
            faults.push_str(&format!("\n{name}: expected {wanted:#?}, found {report:#}"));
        }
        if code != i32::from(wanted.iter().any(|finding| finding.contains(" error "))) {
            faults.push_str(&format!("\n{name}: exit code {code}"));
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

#[test]
fn every_code_of_lint_has_a_case_and_a_policy_beside_it_that_has_nothing() {
    let mut named = BTreeSet::new();
    for path in cases() {
        let text = fs::read_to_string(&path).unwrap();
        named.extend(expected(&text).iter().map(|finding| finding.split(' ').nth(2).unwrap().to_owned()));
        // With a space before it, because `#` also occurs at the end of a line.
        let is_fine = |document: &str| document.contains("kind: SidecarPolicy") && !document.contains("# expect: ");
        assert!(text.split("---\n").any(is_fine), "{} has no policy without a finding", path.display());
    }
    let own = (Code::DuplicateInitializerName as u16..=Code::ImageNotAllowed as u16)
        .chain([Code::PodsCannotBypass as u16, Code::RolloutAtOnce as u16]);
    let missing: Vec<_> = own.map(|number| format!("SCP{number:04}")).filter(|code| !named.contains(code)).collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
}

/// Findings about more than one file.
const ACROSS: [&str; 2] = ["SCP0028", "SCP0030"];

fn is_error_of_one(item: &&Value) -> bool {
    item["severity"] == "Error" && !ACROSS.contains(&text(item, "code"))
}

#[test]
fn the_invalid_policies_of_the_corpus_have_the_errors_that_they_name_on_the_lines_of_their_fields() {
    let (report, code) = lint(&["-f", "tests/policies/invalid"]);
    assert_eq!(code, 1);
    let mut errors: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for item in items(&report).filter(is_error_of_one) {
        errors.entry(text(item, "file")).or_default().push(item);
    }
    for case in crate::policies::invalid() {
        let path = format!("tests/policies/invalid/{}.yaml", case.name);
        let items = errors.remove(path.as_str()).unwrap_or_default();
        let mut found: Vec<_> =
            items.iter().map(|item| format!("{} {}", text(item, "code"), text(item, "field"))).collect();
        let mut wanted = case.expected;
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted, "{}", case.name);
        let lines = fs::read_to_string(root().join(path)).unwrap();
        for item in items {
            let line = lines.lines().nth(usize::try_from(item["line"].as_u64().unwrap()).unwrap() - 1).unwrap();
            let pointer = format!("/{}", text(item, "field").replace('[', ".").replace(']', "").replace('.', "/"));
            let last = pointer.rsplit('/').next().unwrap();
            // A missing field has the place of its parent. An item begins with a dash, or is in brackets.
            let is_key = case.object.pointer(&pointer).is_some() && last.parse::<u32>().is_err();
            assert!(!line.starts_with('#') && (!is_key || line.contains(&format!("{last}:"))), "{item}: {line:?}");
        }
    }
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn whatever_is_wrong_with_a_field_is_an_error_with_its_code_and_path() {
    let folder = tempfile::tempdir().unwrap();
    let damaged = crate::policies::damaged();
    for (index, case) in damaged.iter().enumerate() {
        fs::write(folder.path().join(format!("{index}.json")), case.object.to_string()).unwrap();
    }
    let (report, code) = lint(&["-f", folder.path().to_str().unwrap()]);
    assert_eq!(code, 1);
    let found: BTreeSet<String> = items(&report)
        .filter(is_error_of_one)
        .map(|item| {
            let index = Path::new(text(item, "file")).file_stem().unwrap().to_str().unwrap();
            format!("{index} {} {}", text(item, "code"), text(item, "field"))
        })
        .collect();
    let named = damaged.iter().enumerate().map(|(index, case)| (case, format!("{index} {}", case.expected)));
    let missed: Vec<_> = named.filter(|(_, named)| !found.contains(named)).map(|(case, _)| &case.what).collect();
    assert!(missed.is_empty(), "without the error that they should have: {missed:#?}");
    assert!(damaged.len() >= 300, "{} damaged policies", damaged.len());
}

#[test]
fn the_valid_policies_of_the_corpus_have_no_error() {
    let (report, _) = lint(&["-f", "tests/policies/valid", "--initializer-name", "envoy.initializer.kubernetes.io"]);
    assert_eq!(items(&report).find(is_error_of_one), None);
    assert_eq!(report["policies"], crate::policies::valid().len());
}

#[test]
fn no_policy_of_any_kind_ends_in_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    for (index, case) in crate::policies::valid().iter().chain(&crate::policies::invalid()).enumerate() {
        let mutants: Vec<_> =
            crate::policies::mutants(&case.object).iter().map(|mutant| mutant.to_string() + "\n").collect();
        if !mutants.is_empty() {
            fs::write(folder.path().join(format!("{index}.yaml")), mutants.join("---\n")).unwrap();
        }
    }
    for entry in fs::read_dir(folder.path()).unwrap() {
        let (report, code) = lint(&["-f", entry.unwrap().path().to_str().unwrap()]);
        assert_eq!(report["kind"], "LintReport");
        assert!(code <= 1, "{code}");
    }
}

/// What `scpol lint` prints in `format`, and its exit code.
fn printed(format: &str, arguments: &[&str]) -> (String, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scpol"));
    let output = command.args(["lint", "-o", format]).args(arguments).current_dir(root()).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap_or(-1))
}

#[test]
fn sarif_has_the_findings_of_json_with_the_rule_the_file_and_the_line_of_each() {
    let files = ["-f", "tests/policies/invalid"];
    let (sarif, code) = printed("sarif", &files);
    let sarif: Value = serde_json::from_str(&sarif).unwrap();
    let (report, expected_code) = lint(&files);
    assert_eq!((code, &sarif["version"]), (expected_code, &Value::from("2.1.0")));
    let run = &sarif["runs"][0];
    let results = run["results"].as_array().unwrap();
    assert!(results.len() > 50 && results.len() == items(&report).count());
    for (result, item) in results.iter().zip(items(&report)) {
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!([&place["artifactLocation"]["uri"], &place["region"]["startLine"]], [&item["file"], &item["line"]]);
        let level = if item["severity"] == "Info" { "note".to_owned() } else { text(item, "severity").to_lowercase() };
        assert_eq!(result["level"], level);
        let rule = &run["tool"]["driver"]["rules"][usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap()];
        assert_eq!([&rule["id"], &result["ruleId"]], [&item["code"], &item["code"]]);
        assert_eq!([&rule["name"], &rule["help"]["text"]], [&item["reason"], &item["fix"]]);
        assert!(text(&result["message"], "text").ends_with(text(item, "message")), "{result}");
    }
}

#[test]
fn junit_fails_for_what_the_exit_code_counts() {
    let file = "docs/examples/policies/envoy.yaml";
    let (xml, code) = printed("junit", &["-f", file]);
    assert!(code == 0 && xml.contains(r#"tests="1" skipped="0" failures="0" errors="0""#), "{xml}");
    assert!(xml.contains(&format!(r#"<testcase name="envoy" classname="{file}">"#)), "{xml}");
    assert!(xml.contains(&format!("<system-out>{file}:9: warning: spec.template")), "{xml}");
    let (xml, code) = printed("junit", &["-f", file, "--strict"]);
    assert!(code == 1 && xml.contains(r#"<failure message="spec.template.containers[0].resources: "#), "{xml}");
    assert!(xml.contains(r#"type="SCP0035 "#) && xml.contains(&format!("<system-out>{file}:7: info: ")), "{xml}");

    let (xml, code) = printed("junit", &["-f", file, "-f", "docs/examples/absent.yaml"]);
    assert!(code == 2 && xml.contains("<error message=\"docs/examples/absent.yaml"), "{xml}");
    let (sarif, code) = printed("sarif", &["-f", file, "-f", "docs/examples/absent.yaml"]);
    let sarif: Value = serde_json::from_str(&sarif).unwrap();
    let invocation = &sarif["runs"][0]["invocations"][0];
    assert!(code == 2 && invocation["executionSuccessful"] == false, "{invocation}");
    assert!(invocation["toolExecutionNotifications"][0].to_string().contains("absent.yaml"), "{invocation}");
}
