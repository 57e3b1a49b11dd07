//! The differences between two versions of the policies, and their output.

use super::DiffOptions;
use crate::api::code::Code;
use crate::cli::files::{Subject, title};
use crate::cli::output::{painted_diff, unified_diff};
use crate::decision::Decision;
use crate::inject::{self, Edit};
use crate::manifest::{self, Layout};
use crate::policy::{Policies, Policy, Reason, Site};
use crate::readers::{self, Facts};
use crate::workload::{Kind, Workload};
use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Arc;

/// The policies before and after.
pub(super) struct Versions {
    pub(super) old: Policies,
    pub(super) new: Policies,
}

impl Versions {
    /// The kinds that the policies of both versions target; a kind may occur several times.
    pub(super) fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.old.kinds().chain(self.new.kinds())
    }
}

/// The effect of a change on a workload.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WorkloadChange {
    /// Its create is rejected from now on.
    Refused,
    /// Its create is no longer rejected.
    Admitted,
    /// It gets a template that it did not get before.
    Gains,
    /// It no longer gets a template.
    Loses,
    /// It gets the template in both versions, with different results.
    Changes,
}

impl WorkloadChange {
    const ALL: [WorkloadChange; 5] = [
        WorkloadChange::Refused,
        WorkloadChange::Admitted,
        WorkloadChange::Gains,
        WorkloadChange::Loses,
        WorkloadChange::Changes,
    ];

    fn word(self) -> &'static str {
        match self {
            WorkloadChange::Refused => "REFUSED",
            WorkloadChange::Admitted => "admitted",
            WorkloadChange::Gains => "gains",
            WorkloadChange::Loses => "loses",
            WorkloadChange::Changes => "changes",
        }
    }

    /// This change of `count` workloads, for a sentence.
    fn told(self, count: usize) -> String {
        let (one, many) = match self {
            WorkloadChange::Refused => ("is refused", "are refused"),
            WorkloadChange::Admitted => ("is admitted", "are admitted"),
            WorkloadChange::Gains => ("gains", "gain"),
            WorkloadChange::Loses => ("loses", "lose"),
            WorkloadChange::Changes => ("changes", "change"),
        };
        format!("{count} {}", if count == 1 { one } else { many })
    }
}

/// A change of one policy for one workload.
#[derive(Serialize)]
struct ChangeRow {
    change: WorkloadChange,
    /// Empty if no single policy is the cause.
    #[serde(skip_serializing_if = "String::is_empty")]
    policy: String,
    message: String,
}

/// A workload with changes.
#[derive(Serialize)]
struct Changed {
    kind: String,
    namespace: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    changes: Vec<ChangeRow>,
    /// A unified diff of the created object; empty if its create is rejected.
    #[serde(skip_serializing_if = "String::is_empty")]
    diff: String,
    #[serde(skip)]
    title: String,
}

/// The result of one version of the policies for a workload.
struct VersionResult {
    decision: Decision,
    /// The object as created.
    body: Value,
}

impl VersionResult {
    fn of(policies: &Policies, workload: &Workload, facts: &Facts, site: &Site) -> Self {
        let mut decision = Decision::of(policies, workload, site);
        readers::leave_out(&mut decision, workload, workload, facts, site);
        let body = planned(&mut decision, workload);
        Self { decision, body }
    }

    fn policy(&self, name: &str) -> Option<&Arc<Policy>> {
        self.decision.inject.iter().find(|policy| policy.name == name).filter(|_| self.refusal().is_none())
    }

    /// The policy that rejects the create, and its reason.
    fn refusal(&self) -> Option<(&str, &Reason)> {
        self.decision.refusal().map(|left| (left.policy.name.as_str(), &left.reason))
    }

    /// The reason why the policy `name` is not injected.
    fn why_not(&self, name: &str) -> String {
        let left = self.decision.rest.iter().find(|left| left.policy.name == name);
        left.map_or("there is no such policy".to_owned(), |left| told(&left.reason))
    }

    /// The workload with the template of `policy` alone.
    fn alone(&self, policy: &Arc<Policy>, workload: &Workload) -> Value {
        planned(&mut self.decision.alone(policy), workload)
    }
}

/// `workload` as created; unchanged if its create is rejected.
fn planned(decision: &mut Decision, workload: &Workload) -> Value {
    let patch = decision.plan(workload);
    if decision.refusal().is_some() { workload.body.clone() } else { workload.patched(&patch) }
}

fn told(reason: &Reason) -> String {
    format!("{} {}: {}", reason.code, reason.code.name(), reason.detail)
}

/// The changes of `workload`, one row per policy.
fn rows(old: &VersionResult, new: &VersionResult, workload: &Workload) -> Vec<ChangeRow> {
    let row = |change, policy: &str, message| ChangeRow { change, policy: policy.to_owned(), message };
    match (old.refusal(), new.refusal()) {
        (Some(_), Some(_)) => return Vec::new(),
        (None, Some((policy, reason))) => return vec![row(WorkloadChange::Refused, policy, told(reason))],
        (Some((policy, reason)), None) => {
            return vec![row(WorkloadChange::Admitted, policy, format!("was: {}", told(reason)))];
        }
        (None, None) => {}
    }
    let mut rows = Vec::new();
    for policy in &new.decision.inject {
        match old.policy(&policy.name) {
            None => rows.push(row(WorkloadChange::Gains, &policy.name, format!("was: {}", old.why_not(&policy.name)))),
            Some(before) if before.template_hash() != policy.template_hash() => {
                let message = format!("template {}, was {}", policy.template_hash(), before.template_hash());
                rows.push(row(WorkloadChange::Changes, &policy.name, message));
            }
            Some(before) if old.alone(before, workload) != new.alone(policy, workload) => {
                let message = "the same template, delivered otherwise: its position, or native sidecars".to_owned();
                rows.push(row(WorkloadChange::Changes, &policy.name, message));
            }
            Some(_) => {}
        }
    }
    let lost = old.decision.inject.iter().filter(|policy| new.policy(&policy.name).is_none());
    rows.extend(lost.map(|policy| row(WorkloadChange::Loses, &policy.name, new.why_not(&policy.name))));
    if rows.is_empty() && old.body != new.body {
        rows.push(row(WorkloadChange::Changes, "", "the same templates, in another order".to_owned()));
    }
    rows.sort_by(|one, other| (one.change, &one.policy).cmp(&(other.change, &other.policy)));
    rows
}

/// A workload that has the content of a policy, and in which something of that was changed.
#[derive(Serialize)]
struct Edited {
    kind: String,
    namespace: String,
    name: String,
    policy: String,
    edits: Vec<Edit>,
    #[serde(skip)]
    title: String,
}

impl Edited {
    /// What was changed in `workload` since the policies of `versions` were injected.
    fn all(workload: &Workload, versions: &Versions) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        for policy in versions.old.iter().chain(versions.new.iter()) {
            let edits = policy.edits(workload);
            if edits.is_empty() || found.iter().any(|known| known.policy == policy.name) {
                continue;
            }
            found.push(Self {
                kind: workload.kind_name().to_owned(),
                namespace: workload.namespace().to_owned(),
                name: workload.name().to_owned(),
                policy: policy.name.clone(),
                edits,
                title: title(workload),
            });
        }
        found
    }
}

pub(super) struct DiffReport {
    changed: Vec<Changed>,
    edited: Vec<Edited>,
    workloads: usize,
}

impl DiffReport {
    /// Compares `versions` for each of `subjects`.
    pub(super) fn of(subjects: &[Subject], versions: &Versions, facts: &Facts, site: &Site) -> Self {
        let changed = subjects.iter().filter_map(|subject| changed(subject, versions, facts, site)).collect();
        let edited = subjects.iter().flat_map(|subject| Edited::all(&subject.placed, versions)).collect();
        Self { changed, edited, workloads: subjects.len() }
    }

    /// Whether no workload changes.
    pub(super) fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }

    fn count(&self, change: WorkloadChange) -> usize {
        self.changed.iter().filter(|changed| changed.changes.iter().any(|row| row.change == change)).count()
    }

    fn stay(&self) -> usize {
        self.workloads - self.changed.len()
    }

    /// The answer in one line.
    fn headline(&self) -> String {
        let workloads = format!("{} workload{}", self.workloads, if self.workloads == 1 { "" } else { "s" });
        if self.is_empty() {
            return format!("{workloads}: nothing changes");
        }
        let counts = WorkloadChange::ALL.into_iter().map(|change| (change, self.count(change)));
        let mut parts: Vec<_> =
            counts.filter(|(_, count)| *count > 0).map(|(change, count)| change.told(count)).collect();
        if self.stay() > 0 {
            let verb = if self.stay() == 1 { "stays as it is" } else { "stay as they are" };
            parts.push(format!("{} {verb}", self.stay()));
        }
        format!("{workloads}: {}", parts.join(", "))
    }

    pub(super) fn print(&self, options: &DiffOptions, out: &mut impl Write) -> Result<()> {
        let count = |change| self.count(change);
        let fields = || {
            json!({
                "workloads": self.workloads,
                "gain": count(WorkloadChange::Gains),
                "lose": count(WorkloadChange::Loses),
                "change": count(WorkloadChange::Changes),
                "refused": count(WorkloadChange::Refused),
                "admitted": count(WorkloadChange::Admitted),
                "stay": self.stay(),
                "items": self.changed,
                "edited": self.edited,
            })
        };
        let rows = self.changed.iter().flat_map(|changed| {
            changed.changes.iter().map(|row| {
                let policy = if row.policy.is_empty() { "-" } else { &row.policy };
                [row.change.word(), &changed.title, policy, &row.message].map(str::to_owned)
            })
        });
        let printing = &options.printing;
        printing.output.report("DiffReport", fields, out, |out| {
            printing.line(self.headline(), out)?;
            printing.section(["CHANGE", "WORKLOAD", "POLICY", "WHY"], rows, out)?;
            for Edited { title, policy, edits, .. } in &self.edited {
                let (code, told) = (Code::Edited, inject::all_told(edits));
                writeln!(out, "{title}: policy `{policy}` is in it, edited ({code}): {told}")?;
            }
            for changed in self.changed.iter().filter(|changed| options.verbose && !changed.diff.is_empty()) {
                write!(out, "\n{}", painted_diff(&changed.diff))?;
            }
            Ok(())
        })
    }
}

fn changed(subject: &Subject, versions: &Versions, facts: &Facts, site: &Site) -> Option<Changed> {
    let workload = readers::bare(&subject.placed);
    let [old, new] = [&versions.old, &versions.new].map(|policies| VersionResult::of(policies, &workload, facts, site));
    let changes = rows(&old, &new, &workload);
    if changes.is_empty() {
        return None;
    }
    // A rejected workload is not created, so there is nothing to compare.
    let is_created = old.refusal().is_none() && new.refusal().is_none();
    let place = subject.source.as_ref().map_or(String::new(), |source| format!(" ({source})"));
    let title = format!("{}{place}", title(&workload));
    Some(Changed {
        kind: workload.kind_name().to_owned(),
        namespace: workload.namespace().to_owned(),
        name: workload.name().to_owned(),
        source: subject.source.clone(),
        changes,
        diff: if is_created { difference(&title, &old.body, &new.body) } else { String::new() },
        title,
    })
}

fn difference(title: &str, old: &Value, new: &Value) -> String {
    let [old, new] = [old, new].map(|value| manifest::emit(value, &Layout::YAML));
    unified_diff([&old, &new], [format!("{title}, old policies"), format!("{title}, new policies")], 3)
}
