//! The report in the XML of JUnit, for CI systems that show tests. A file is a suite. A finding that counts for the exit
//! code is a case that fails. A policy without such findings is a case that passes.

use super::{LintReport, LintRow};
use crate::cli::output;
use crate::lint::Severity;
use anyhow::Result;
use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};
use std::collections::BTreeMap;
use std::io::Write;

/// Writes `report`. A finding up to the severity `worst` fails. `faults` are the files that could not be read.
pub(super) fn write(report: &LintReport, worst: Severity, faults: &[String], out: &mut impl Write) -> Result<()> {
    let mut suites: BTreeMap<&str, TestSuite> = BTreeMap::new();
    for (index, (name, file)) in report.subjects.iter().enumerate() {
        let suite = suites.entry(file).or_insert_with(|| TestSuite::new(*file));
        let (failed, passed): (Vec<_>, Vec<_>) =
            report.rows.iter().filter(|row| row.subject == index).partition(|row| row.severity <= worst);
        let mut cases: Vec<_> = failed.iter().map(|row| failure(row)).collect();
        if cases.is_empty() {
            let mut case = TestCase::new(*name, TestCaseStatus::success());
            case.set_classname(*file);
            cases.push(case);
        }
        let lines: Vec<_> = passed.iter().map(|row| line(row)).collect();
        if let (Some(last), false) = (cases.last_mut(), lines.is_empty()) {
            last.set_system_out(lines.join("\n"));
        }
        suite.add_test_cases(cases);
    }
    let mut unread = TestSuite::new("files that cannot be read");
    unread.add_test_cases(faults.iter().map(|fault| {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
        status.set_message(fault);
        TestCase::new(fault, status)
    }));
    let unread = (!faults.is_empty()).then_some(unread);
    output::write_junit("scpol lint", suites.into_values().chain(unread), out)
}

fn failure(row: &LintRow) -> TestCase {
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
    status.set_type(format!("{} {}", row.code, row.reason)).set_message(format!("{}: {}", row.field, row.message));
    let fix = if row.fix.is_empty() { String::new() } else { format!("\n{}", row.fix) };
    status.set_description(format!("{}{fix}", line(row)));
    let mut case = TestCase::new(format!("{} {} {}", row.policy, row.code, row.field), status);
    case.set_classname(&row.file);
    case
}

/// The finding in one line, with its place.
fn line(row: &LintRow) -> String {
    format!("{}:{}: {}: {}: {}", row.file, row.line, row.severity.word(), row.field, row.message)
}
