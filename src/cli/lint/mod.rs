//! `scpol lint`: finds faults of policies in files.

mod junit;
mod sarif;

use super::End;
use super::files::{self, Reading, Recursion, title};
use super::ignored::{IgnoreOption, Ignored};
use super::output::{JUNIT, Output, Printing, SARIF, counted};
use super::site::{SiteOptions, one_namespace};
use crate::api::code::Code;
use crate::lint::{self, Context, Finding, Severity, Subject};
use crate::manifest::{File, Lines, Location, Manifest};
use crate::policy::Policies;
use crate::source;
use anyhow::{Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;

#[derive(Args, Debug)]
pub(super) struct LintOptions {
    /// The same as -f
    #[arg(value_name = "FILE", required_unless_present = "files")]
    words: Vec<PathBuf>,
    /// Policies: files, folders (their *.yaml, *.yml and *.json), or - for standard input (repeatable). Other objects are ignored
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    recursion: Recursion,
    /// Workloads that the policies must fit: files, folders, or - for standard input (repeatable)
    #[arg(long, value_name = "FILE")]
    manifests: Vec<PathBuf>,
    /// Namespace of the workloads that name none
    #[arg(short, long, value_name = "NAME", default_value = "default", value_parser = one_namespace)]
    namespace: String,
    /// Exit with 1 for warnings, too, and reject documents with a duplicate key
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    ignore: IgnoreOption,
    #[command(flatten)]
    printing: Printing<{ JUNIT | SARIF }>,
    #[command(flatten)]
    site: SiteOptions,
}

pub(super) fn run(options: &LintOptions, out: &mut impl Write) -> Result<End> {
    let paths = files::both(&options.files, &options.words);
    files::at_most_one_stdin(&[("-f", &paths), ("--manifests", &options.manifests)])?;
    let context = Context { site: options.site.site()?.for_files() };
    // Faults of one file must not hide those of others.
    let reading = options.recursion.reading(options.strict).heeding(&options.ignore);
    let (mut files, mut faults) = source::read_what_can_be(&paths, reading.walk);
    files::note_asides(&reading.set_aside(&mut files, &mut faults));
    faults.extend(reading.faults(&files));
    files::warn_of_twins(if options.strict { &[] } else { &files });
    files::warn_of_empty(&files, &paths);
    let found = Located::all(&files, &context);
    if found.is_empty() && !faults.is_empty() {
        return Err(files::all(&faults));
    }
    ensure!(!found.is_empty(), "no SidecarPolicy found in {}", files::names(&paths));
    if !options.manifests.is_empty() {
        files::expect_policies(&files, &options.words, "--manifests")?;
    }
    let (places, subjects): (Vec<_>, Vec<_>) = found.into_iter().map(|found| (found.at, found.subject)).unzip();
    let ignored = options.ignore.with(&files);
    let mut findings = lint::lint(&subjects, &context);
    let against = against_manifests(options, &subjects, &context, reading);
    // Findings about the policies are reported even if the manifests are unreadable.
    findings.extend(against.as_ref().ok().into_iter().flatten().cloned());
    findings.retain(|finding| is_wanted(finding, &subjects, &ignored));
    let report = LintReport::of(&findings, &subjects, &places, files.len());
    let worst = if options.strict { Severity::Warning } else { Severity::Error };
    let unread: Vec<_> = faults.iter().map(ToString::to_string).collect();
    match options.printing.output {
        Output::Junit => junit::write(&report, worst, &unread, out)?,
        Output::Sarif => writeln!(out, "{}", serde_json::to_string_pretty(&sarif::of(&report, &unread))?)?,
        _ => report.print(&options.printing, out)?,
    }
    out.flush()?;
    if !faults.is_empty() {
        return Err(files::all(&faults));
    }
    against?;
    Ok(End::fine_if(findings.iter().all(|finding| finding.severity > worst)))
}

/// Whether `finding` is reported. An error always is, because the operator rejects the policy for it, and what keeps it out of a
/// workload.
fn is_wanted(finding: &Finding, subjects: &[Subject], ignored: &Ignored) -> bool {
    let Subject { place, name, .. } = &subjects[finding.subject];
    finding.severity == Severity::Error || finding.keeps_out || !ignored.has(finding.code, place, name)
}

/// The reasons why the policies would not be injected into the given workloads.
fn against_manifests(
    options: &LintOptions,
    subjects: &[Subject],
    context: &Context,
    reading: Reading,
) -> Result<Vec<Finding>> {
    if options.manifests.is_empty() {
        return Ok(Vec::new());
    }
    let files = files::read(&options.manifests, reading)?;
    let ignored = options.ignore.with(&files);
    let policies = Policies::new(subjects.iter().filter_map(Subject::policy).cloned());
    let found = files::workloads(&files, policies.kinds(), &options.namespace);
    if found.is_empty() {
        let names = files::names(&options.manifests);
        bail!("--manifests: no workload found in {names}; expected one of {}", files::kinds());
    }
    let facts = files::facts(&files, &options.namespace);
    let mut findings = Vec::new();
    for found in found {
        let source = found.source.unwrap_or_default();
        let title = format!("{} ({source})", title(&found.placed));
        let against = lint::against(subjects, &policies, &found.placed, &title, &facts, &context.site).into_iter();
        findings.extend(against.filter(|finding| finding.keeps_out || !ignored.has(finding.code, &source, "")));
    }
    Ok(findings)
}

/// A policy, and the places of its fields.
struct Located {
    subject: Subject,
    at: Fields,
}

/// The places of the fields of an object.
struct Fields {
    file: String,
    lines: Rc<Lines>,
    /// The indexes that lead to the object in its document.
    indexes: Vec<usize>,
}

impl Fields {
    fn place(&self, field: &str) -> Location {
        self.lines.place(&self.indexes, field)
    }
}

impl Located {
    fn all(files: &[File], context: &Context) -> Vec<Self> {
        files.iter().flat_map(File::manifests).flat_map(|manifest| Self::of(manifest, context)).collect()
    }

    fn of(manifest: &Manifest, context: &Context) -> Vec<Self> {
        let objects = manifest.objects();
        let mut found = Vec::new();
        for object in &objects {
            if let Some(subject) = Subject::of(object, &manifest.place.to_string(), &context.site) {
                found.push((subject, manifest.indexes(object.body)));
            }
        }
        if found.is_empty() {
            return Vec::new();
        }
        let lines = Rc::new(Lines::of(manifest));
        let located = |(mut subject, indexes): (Subject, _)| {
            let at = Fields { file: manifest.place.file.clone(), lines: lines.clone(), indexes };
            subject.place = at.place("").to_string();
            Located { subject, at }
        };
        found.into_iter().map(located).collect()
    }
}

struct LintReport<'a> {
    rows: Vec<LintRow<'a>>,
    /// The name and the file of each policy.
    subjects: Vec<(&'a str, &'a str)>,
    files: usize,
}

/// A finding with its place.
#[derive(Serialize)]
struct LintRow<'a> {
    /// The index of the policy.
    #[serde(skip)]
    subject: usize,
    #[serde(skip)]
    known: Code,
    severity: Severity,
    code: String,
    reason: &'static str,
    policy: &'a str,
    file: String,
    line: usize,
    field: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    fix: &'static str,
}

impl<'a> LintReport<'a> {
    fn of(findings: &'a [Finding], subjects: &'a [Subject], places: &'a [Fields], files: usize) -> Self {
        let row = |finding: &'a Finding| {
            let Location { file, line } = places[finding.subject].place(&finding.field);
            LintRow {
                subject: finding.subject,
                known: finding.code,
                severity: finding.severity,
                code: finding.code.to_string(),
                reason: finding.code.name(),
                policy: &subjects[finding.subject].name,
                file,
                line,
                field: &finding.field,
                message: &finding.message,
                fix: finding.code.fix(),
            }
        };
        let mut rows: Vec<_> = findings.iter().map(row).collect();
        rows.sort_by(|one, other| (one.severity, &one.file, one.line).cmp(&(other.severity, &other.file, other.line)));
        let files_of = places.iter().map(|fields| fields.file.as_str());
        let subjects = subjects.iter().map(|subject| subject.name.as_str()).zip(files_of).collect();
        Self { rows, subjects, files }
    }

    fn count(&self, severity: Severity) -> usize {
        self.rows.iter().filter(|row| row.severity == severity).count()
    }

    /// The answer in one line.
    fn headline(&self) -> String {
        let counts = [(Severity::Error, "error"), (Severity::Warning, "warning"), (Severity::Info, "note")];
        let told =
            counts.map(|(severity, noun)| (self.count(severity), noun)).into_iter().filter(|(count, _)| *count > 0);
        let told = told.map(|(count, noun)| counted(count, noun, &format!("{noun}s"))).collect::<Vec<_>>().join(", ");
        let (policies, files) =
            (counted(self.subjects.len(), "policy", "policies"), counted(self.files, "file", "files"));
        format!("{policies} in {files}: {}", if told.is_empty() { "nothing found" } else { &told })
    }

    fn print(&self, printing: &Printing<{ JUNIT | SARIF }>, out: &mut impl Write) -> Result<()> {
        let fields = || {
            json!({
                "policies": self.subjects.len(),
                "errors": self.count(Severity::Error),
                "warnings": self.count(Severity::Warning),
                "notes": self.count(Severity::Info),
                "items": self.rows,
            })
        };
        let rows = self.rows.iter().map(|row| {
            let place = Location { file: row.file.clone(), line: row.line }.to_string();
            [row.severity.word().to_owned(), row.code.clone(), place, format!("{}: {}", row.field, row.message)]
        });
        printing.output.report("LintReport", fields, out, |out| {
            printing.line(self.headline(), out)?;
            printing.section(["SEVERITY", "CODE", "WHERE", "MESSAGE"], rows, out)
        })
    }
}
