//! The report in SARIF 2.1.0 (OASIS), for CI systems that show findings beside the lines of files. The crate `serde-sarif`
//! generates the whole schema with libraries that are not maintained any more, and we need a dozen of its fields.

use super::{LintReport, LintRow};
use crate::api::code::Code;
use crate::lint::Severity;
use crate::source::STDIN;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Component, Path};

/// The SARIF log of `report`. `faults` are the files that could not be read.
pub(super) fn of(report: &LintReport, faults: &[String]) -> Value {
    let codes: BTreeSet<Code> = report.rows.iter().map(|row| row.known).collect();
    let rules: Vec<_> = codes.iter().map(rule).collect();
    let results: Vec<_> = report.rows.iter().map(|row| result(row, &codes)).collect();
    let notifications: Vec<_> =
        faults.iter().map(|fault| json!({ "level": "error", "message": { "text": fault } })).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "scpol", "version": env!("CARGO_PKG_VERSION"), "rules": rules } },
            "invocations": [{
                "executionSuccessful": faults.is_empty(),
                "toolExecutionNotifications": notifications,
            }],
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    })
}

fn rule(code: &Code) -> Value {
    let mut rule =
        json!({ "id": code.to_string(), "name": code.name(), "shortDescription": { "text": code.meaning() } });
    if !code.fix().is_empty() {
        rule["help"] = json!({ "text": code.fix() });
    }
    rule
}

fn result(row: &LintRow, codes: &BTreeSet<Code>) -> Value {
    let level = match row.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    };
    let mut location = json!({ "logicalLocations": [{ "fullyQualifiedName": row.field, "kind": "member" }] });
    // Standard input has no address.
    if row.file != STDIN {
        location["physicalLocation"] = json!({ "artifactLocation": { "uri": uri(&row.file) } });
        if row.line > 0 {
            location["physicalLocation"]["region"] = json!({ "startLine": row.line });
        }
    }
    json!({
        "ruleId": row.code,
        "ruleIndex": codes.iter().position(|code| *code == row.known),
        "level": level,
        "message": { "text": format!("{}: {}: {}", row.policy, row.field, row.message) },
        "locations": [location],
    })
}

/// The address of the file `path`: relative to the working folder, or `file://` for an absolute path.
fn uri(path: &str) -> String {
    let parts = Path::new(path).components().filter(|part| !matches!(part, Component::CurDir | Component::RootDir));
    let parts: Vec<_> = parts.map(|part| encoded(&part.as_os_str().to_string_lossy())).collect();
    let scheme = if Path::new(path).is_absolute() { "file:///" } else { "" };
    format!("{scheme}{}", parts.join("/"))
}

/// `text` as a segment of a URI path (RFC 3986).
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'@' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_well_formed_address() {
        for (path, expected) in [
            ("policies/envoy.yaml", "policies/envoy.yaml"),
            ("./a b/ü#1.yaml", "a%20b/%C3%BC%231.yaml"),
            ("../x.yaml", "../x.yaml"),
            ("/srv/a:b.yaml", "file:///srv/a%3Ab.yaml"),
        ] {
            assert_eq!(uri(path), expected);
        }
    }
}
