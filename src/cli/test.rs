//! `scpol test`: runs test cases in folders, each a workload and policies with the expected result.

use super::End;
use super::files::{self, Earlier, Reading, Subject, plan};
use super::output::{self, JUNIT, Output, Printing, counted, remark, unified_diff};
use super::site;
use crate::api::pod_security::Level;
use crate::api::trust::{Power, Trust};
use crate::cluster::client::chain;
use crate::decision::{self, Decision, Left};
use crate::inject::{self, LeftoverCause};
use crate::manifest::{self, Layout};
use crate::policy::{Policies, Site};
use crate::source::{self, Walk};
use crate::workload::Workload;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
pub(super) struct TestOptions {
    /// Folders of cases: a case is a folder with `policy.yaml` and `workload.yaml`. Other folders are searched for cases
    #[arg(value_name = "FOLDER", required = true)]
    folders: Vec<PathBuf>,
    /// Write the actual results as the expected ones; read the difference before you keep it
    #[arg(long)]
    update: bool,
    #[command(flatten)]
    printing: Printing<JUNIT>,
}

pub(super) fn run(options: &TestOptions, out: &mut impl Write) -> Result<End> {
    let mut folders = Vec::new();
    for folder in &options.folders {
        find(folder, &mut folders)?;
    }
    if folders.is_empty() {
        bail!("no case found: a case is a folder with `{POLICY}` and `{WORKLOAD}`");
    }
    let results: Vec<CaseResult> = folders.iter().map(|folder| CaseResult::of(folder, options.update)).collect();
    print(&options.printing, &results, out)?;
    out.flush()?;
    let broken = results.iter().filter(|result| result.broken).count();
    ensure!(broken == 0, "{} cannot be run: see above", counted(broken, "case", "cases"));
    Ok(End::fine_if(results.iter().all(|result| result.ok)))
}

/// The result of a case.
#[derive(Serialize)]
struct CaseResult {
    case: String,
    ok: bool,
    /// Whether the case could not be run.
    broken: bool,
    faults: Vec<String>,
}

impl CaseResult {
    /// Runs the case in `folder`. With `is_update`, rewrites its expected result.
    fn of(folder: &Path, is_update: bool) -> Self {
        let case = folder.display().to_string();
        match Self::faults(folder, is_update) {
            Ok(faults) => Self { case, ok: faults.is_empty(), broken: false, faults },
            Err(error) => {
                Self { case, ok: false, broken: true, faults: vec![format!("cannot be run: {}", chain(&*error))] }
            }
        }
    }

    fn junit(&self) -> TestCase {
        let status = if self.ok {
            TestCaseStatus::success()
        } else {
            let kind = if self.broken { NonSuccessKind::Error } else { NonSuccessKind::Failure };
            let mut status = TestCaseStatus::non_success(kind);
            let first = self.faults.first().and_then(|fault| fault.lines().next()).unwrap_or_default();
            status.set_message(first).set_description(self.faults.join("\n"));
            status
        };
        let mut case = TestCase::new(&self.case, status);
        case.set_classname("scpol test");
        case
    }

    fn faults(folder: &Path, is_update: bool) -> Result<Vec<String>> {
        let case = Case::read(folder)?;
        let found = case.ask();
        if !is_update {
            return Ok(case.compare(&found));
        }
        case.write(&found)?;
        let is_new = |line: &&String| !case.reasons.iter().any(|expected| begins(line, expected));
        for line in found.failures.iter().filter(is_new) {
            remark(format_args!("warning: case {}: a failure is expected from now on: {line}", folder.display()));
        }
        Ok(found.broken_promises)
    }
}

fn print(printing: &Printing<JUNIT>, results: &[CaseResult], out: &mut impl Write) -> Result<()> {
    if printing.output == Output::Junit {
        let mut suite = TestSuite::new("cases");
        suite.add_test_cases(results.iter().map(CaseResult::junit));
        return output::write_junit("scpol test", [suite], out);
    }
    printing.output.report("TestReport", || json!({ "cases": results }), out, |out| tell(printing, results, out))
}

fn tell(printing: &Printing<JUNIT>, results: &[CaseResult], out: &mut impl Write) -> Result<()> {
    let failed: Vec<_> = results.iter().filter(|result| !result.ok).collect();
    if !failed.is_empty() {
        let rows = failed.iter().flat_map(|result| {
            let case = |index| if index == 0 { result.case.clone() } else { String::new() };
            // A fault may have several lines.
            let lines = result.faults.iter().flat_map(|fault| fault.trim_end().lines());
            lines.enumerate().map(move |(index, line)| [case(index), line.to_owned()])
        });
        printing.table(["CASE", "FAULT"], rows, out)?;
    }
    let gap = if failed.is_empty() { "" } else { "\n" };
    let (cases, ok) = (counted(results.len(), "case", "cases"), results.len() - failed.len());
    printing.line(format_args!("{gap}{cases}: {ok} ok, {} failed", failed.len()), out)
}

const POLICY: &str = "policy.yaml";
const WORKLOAD: &str = "workload.yaml";
/// Earlier versions of the policies, which the operator has stored.
const EARLIER: &str = "earlier.yaml";
const EXPECTED: &str = "expected.yaml";
const REASONS: &str = "expected.txt";
const SETTINGS: &str = "case.yaml";

/// Whether `folder` is a case, perhaps one that lacks a file. A folder with a policy alone is none.
fn is_case(folder: &Path) -> bool {
    let has = |file: &str| folder.join(file).exists();
    has(WORKLOAD) || has(POLICY) && [EARLIER, EXPECTED, REASONS, SETTINGS].into_iter().any(has)
}

/// Adds the cases in `folder` and its subfolders, by name.
fn find(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    ensure!(folder.is_dir(), "{} is no folder; give folders of cases", folder.display());
    if is_case(folder) {
        found.push(folder.to_owned());
        return Ok(());
    }
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| folder.display().to_string())?;
        // A link may lead back to its own folder.
        if entry.file_type()?.is_dir() {
            folders.push(entry.path());
        }
    }
    folders.sort();
    folders.iter().try_for_each(|folder| find(folder, found))
}

/// The flags of the operator and the facts about the server, from `case.yaml`.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct CaseSettings {
    /// The version of the server and its nodes.
    kube_version: Option<String>,
    operator_namespace: Option<String>,
    protected_namespaces: Vec<String>,
    initializer_names: Vec<String>,
    /// The level of the Pod Security Standards.
    pod_security: Level,
    privileged_namespaces: Vec<String>,
    allow_in_templates: Vec<Power>,
    allowed_images: Vec<String>,
    /// The namespace of a workload that names none.
    namespace: Option<String>,
}

/// A test case.
struct Case {
    folder: PathBuf,
    site: Site,
    policies: Policies,
    workload: Workload,
    /// The workload with the namespace in which it is created.
    placed: Workload,
    expected: Option<Value>,
    reasons: Vec<String>,
}

/// The actual result.
struct CaseFound {
    body: Option<Value>,
    reasons: Vec<String>,
    /// The reasons that are failures: a matching policy is not injected, or rejects the create.
    failures: Vec<String>,
    /// Violations of the rules that hold for every case.
    broken_promises: Vec<String>,
}

impl Case {
    fn read(folder: &Path) -> Result<Self> {
        let settings = settings(&folder.join(SETTINGS))?;
        let site = site(&settings)?;
        let files = files::read(&[folder.join(WORKLOAD), folder.join(POLICY)], Reading::PLAIN)?;
        let policies = files::policies(&[folder.join(POLICY)], Reading::PLAIN, &site, "--policy")?;
        let earlier = Some(folder.join(EARLIER)).filter(|path| path.exists());
        let earlier = Earlier { earlier: earlier.into_iter().collect() }.read(Reading::PLAIN, &policies)?;
        let policies = files::recognizing(&policies, &earlier);
        let namespace = settings.namespace.as_deref().unwrap_or("default");
        let mut found = files::workloads(&files, policies.kinds(), namespace);
        ensure!(found.len() == 1, "`{WORKLOAD}` has {} workloads; expected one", found.len());
        let Subject { workload, placed, .. } = found.remove(0);
        let expected = match folder.join(EXPECTED) {
            path if path.exists() => document(&path)?,
            _ => None,
        };
        let reasons = match fs::read_to_string(folder.join(REASONS)) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("{REASONS} cannot be read"))?,
        };
        let reasons = reasons.lines().map(str::trim_end).filter(|line| !line.is_empty()).map(str::to_owned).collect();
        Ok(Self { folder: folder.to_owned(), site, policies, workload, placed, expected, reasons })
    }

    fn ask(&self) -> CaseFound {
        let mut decision = Decision::of(&self.policies, &self.placed, &self.site);
        let patch = plan(&mut decision, &self.workload, &self.placed);
        let reasons = decision.rest.iter().map(line).collect();
        let is_failure = |left: &&Left| matches!(left.outcome, decision::Outcome::Failed | decision::Outcome::Rejected);
        let failures = decision.rest.iter().filter(is_failure).map(line).collect();
        let is_refused = decision.refusal().is_some();
        if is_refused || patch.is_empty() {
            return CaseFound { body: None, reasons, failures, broken_promises: Vec::new() };
        }
        let body = self.workload.patched(&patch);
        let broken_promises = self.broken_promises(&body, &mut decision);
        CaseFound { body: Some(body), reasons, failures, broken_promises }
    }

    /// Checks that a second injection changes nothing, and that removal of the marked content restores the original.
    fn broken_promises(&self, body: &Value, decision: &mut Decision) -> Vec<String> {
        let injected = self.placed.with_body(body.clone());
        let mut faults = Vec::new();
        if !decision.plan(&injected).is_empty() {
            faults.push("injecting again changes something".to_owned());
        }
        let (mut back, mut original) = (body.clone(), decision.original(&self.workload).body.clone());
        // A mounted volume that the workload does not define stays.
        let mut is_exact = true;
        for policy in &decision.inject {
            if let Some(undone) = inject::undo(&policy.view(&injected.with_body(back.clone())), Some(&policy.name)) {
                is_exact &= undone.leftovers.iter().all(|leftover| leftover.cause != LeftoverCause::Mounted);
                back = undone.body;
            }
            // A marker in the original is also ours, and is not restored.
            let annotations =
                original.pointer_mut(&format!("{}/metadata/annotations", policy.view(&self.workload).pod_pointer()));
            annotations
                .and_then(Value::as_object_mut)
                .map(|annotations| annotations.remove(&inject::marker::key(&policy.name)));
        }
        if is_exact && back != original {
            faults.push(format!(
                "uninject does not give back the original:\n{}",
                difference(Some(&original), Some(&back))
            ));
        }
        faults
    }

    fn compare(&self, found: &CaseFound) -> Vec<String> {
        let mut faults = found.broken_promises.clone();
        if self.expected != found.body {
            faults.push(difference(self.expected.as_ref(), found.body.as_ref()));
        }
        let is_told = |expected: &String| found.reasons.iter().any(|found| begins(found, expected));
        let is_expected = |found: &String| self.reasons.iter().any(|expected| begins(found, expected));
        faults.extend(self.reasons.iter().filter(|line| !is_told(line)).map(|line| format!("expected: {line}")));
        faults.extend(found.reasons.iter().filter(|line| !is_expected(line)).map(|line| format!("found:    {line}")));
        faults
    }

    /// Writes the actual result as the expected one. An equal file stays unchanged, with its comments.
    fn write(&self, found: &CaseFound) -> Result<()> {
        if self.expected != found.body {
            keep(&self.folder.join(EXPECTED), found.body.as_ref().map(|body| manifest::emit(body, &Layout::YAML)))?;
        }
        if self.reasons != found.reasons {
            let text = found.reasons.iter().map(|line| format!("{line}\n")).collect::<String>();
            keep(&self.folder.join(REASONS), Some(text).filter(|text| !text.is_empty()))?;
        }
        Ok(())
    }
}

/// The line for a policy that adds nothing: `envoy skipped SCP0107 TargetNotMatched (row 7): ..`.
fn line(left: &Left) -> String {
    let (reason, outcome) = (&left.reason, left.outcome.label());
    let (policy, code, row) = (&left.policy.name, reason.code, reason.row);
    format!("{policy} {outcome} {code} {} (row {row}): {}", code.name(), reason.detail)
}

/// Whether a line of `expected.txt` matches `found`. The line may end after any word.
fn begins(found: &str, expected: &str) -> bool {
    found.strip_prefix(expected).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ':']))
}

fn difference(expected: Option<&Value>, found: Option<&Value>) -> String {
    let text =
        |value: Option<&Value>| value.map_or("not injected\n".to_owned(), |value| manifest::emit(value, &Layout::YAML));
    let (expected, found) = (text(expected), text(found));
    unified_diff([&expected, &found], ["expected".to_owned(), "found".to_owned()], 2)
}

fn settings(path: &Path) -> Result<CaseSettings> {
    if !path.exists() {
        return Ok(CaseSettings::default());
    }
    let value = document(path)?.unwrap_or_default();
    serde_json::from_value(value).with_context(|| format!("{} is not well-formed", path.display()))
}

fn site(settings: &CaseSettings) -> Result<Site> {
    let operator = settings.operator_namespace.as_deref().unwrap_or("scpol-system");
    let mut site = Site::new(operator, settings.protected_namespaces.clone(), settings.initializer_names.clone());
    site::set_version(&mut site, settings.kube_version.as_deref())?;
    site.trust = Trust {
        level: settings.pod_security,
        privileged_namespaces: settings.privileged_namespaces.iter().cloned().collect(),
        powers: settings.allow_in_templates.iter().copied().collect(),
        images: settings.allowed_images.clone(),
    };
    Ok(site.for_files())
}

/// The only document of a file.
fn document(path: &Path) -> Result<Option<Value>> {
    let files = source::read(&[path.to_owned()], Walk::Flat).map_err(|faults| files::all(&faults))?;
    let mut values: Vec<_> =
        files.iter().flat_map(manifest::File::manifests).map(|manifest| manifest.value.clone()).collect();
    ensure!(values.len() <= 1, "{} has {} documents; expected one", path.display(), values.len());
    Ok(values.pop())
}

fn keep(path: &Path, text: Option<String>) -> Result<()> {
    match text {
        Some(text) => fs::write(path, text)?,
        None if path.exists() => fs::remove_file(path)?,
        None => {}
    }
    Ok(())
}
