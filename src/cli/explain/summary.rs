//! The summary of several workloads on one screen: a line of sums, then a row for each workload and policy.

use super::report::{ExplainReport, PolicyAnswer, PolicyResult};
use crate::api::code::Code;
use crate::cli::output::Printing;
use crate::cli::policies::{InvalidPolicy, KnownPolicies};
use crate::policy::Policies;
use anyhow::Result;
use std::io::Write;

const HEADER: [&str; 6] = ["WORKLOAD", "POLICY", "RESULT", "ROW", "CODE", "REASON"];

/// Writes the summary of several `reports`. Only the report on a single workload shows the compared values.
pub(super) fn write(
    reports: &[ExplainReport],
    known: &KnownPolicies,
    printing: &Printing,
    out: &mut impl Write,
) -> Result<()> {
    let KnownPolicies { policies, invalid, idle } = known;
    printing.line(headline(reports, policies), out)?;
    printing.section(HEADER, reports.iter().flat_map(rows), out)?;
    if policies.iter().next().is_none() && invalid.is_empty() {
        return Ok(());
    }
    let invalid = invalid.iter().map(|InvalidPolicy { name, .. }| {
        format!("{name} is not valid itself, and not in effect: `kubectl describe scpol {name}` says why")
    });
    let idle = idle.iter().map(|(policy, why)| format!("{policy} is not in effect: {why}"));
    let is_missed = |answer: &PolicyAnswer| answer.result == PolicyResult::Missed;
    let missed = reports.iter().any(|report| report.answers().iter().any(is_missed)).then(|| {
        "missed it: created without it, or replaced without it since, as `kubectl replace` or `helm --force` do; what runs is never \
         changed. Create it anew to have it injected."
            .to_owned()
    });
    let last = "Explain one workload alone to see what was compared.".to_owned();
    printing.notes(invalid.chain(idle).chain(missed).chain([last]), out)
}

fn headline(reports: &[ExplainReport], policies: &Policies) -> String {
    if policies.iter().next().is_none() {
        return format!("{} workloads: there is no policy", reports.len());
    }
    let standings = [
        (&[PolicyResult::Injects][..], "to be injected"),
        (&[PolicyResult::Injected], "injected"),
        (&[PolicyResult::Missed], "missed"),
        (&[PolicyResult::Outdated], "outdated"),
        (&[PolicyResult::Edited], "edited"),
        (&[PolicyResult::Pods], "injected in their pods"),
        (&[PolicyResult::Passes], "satisfy the validations"),
        (&[PolicyResult::Conflict], "in conflict"),
        (&[PolicyResult::Fails], "not to be injected"),
        (&[PolicyResult::Refuses], "refused"),
        (&[PolicyResult::Skipped, PolicyResult::Invalid], "left out"),
    ];
    let parts = standings.into_iter().filter_map(|(findings, words)| {
        let count = reports.iter().filter(|report| findings.contains(&report.gravest())).count();
        (count > 0).then(|| format!("{count} {words}"))
    });
    let parts: Vec<_> = parts.collect();
    format!("{} workloads: {}", reports.len(), parts.join(", "))
}

/// A row for every policy that targets the kind of the workload; one row if there is none.
fn rows(report: &ExplainReport) -> Vec<[String; 6]> {
    let is_of_kind = |answer: &&PolicyAnswer| answer.reason != Some(Code::TargetNotMatched.name());
    let valid = || report.answers().iter().filter(|answer| answer.result != PolicyResult::Invalid);
    let row = |policy: &str, answer: &PolicyAnswer| {
        let number = answer.row.map_or("-".to_owned(), |row| row.to_string());
        let code = answer.code.clone().unwrap_or("-".to_owned());
        let reason = answer.reason.unwrap_or("-").to_owned();
        [report.title().to_owned(), policy.to_owned(), answer.result.word().to_owned(), number, code, reason]
    };
    let rows: Vec<_> = valid().filter(is_of_kind).map(|answer| row(&answer.policy, answer)).collect();
    if rows.is_empty() { valid().take(1).map(|answer| row("(any)", answer)).collect() } else { rows }
}
