//! The report on one policy: the answer first, then the details.

use super::workloads::{BehindRow, KindSums, WorkloadCounts};
use crate::api::v1alpha1::{Failure, SidecarPolicyStatus};
use crate::cli::End;
use crate::cli::installed::{Piece, needed};
use crate::cli::live::NotStarting;
use crate::cli::output::{NAME, Output, Printing, WIDE, age, place};
use crate::cli::policies::condition;
use crate::cluster::client::chain;
use crate::inject;
use crate::policy::Policy;
use anyhow::{Result, anyhow};
use jiff::Timestamp;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

/// The report on one policy.
#[derive(Serialize, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct PolicyReport {
    policy: String,
    ready: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<String>,
    conditions: Vec<ToldCondition>,
    registrations: Vec<Registered>,
    targets: Vec<KindSums>,
    /// Failed injections that the operator has recorded.
    failures: Vec<Failure>,
    workloads: Vec<BehindRow>,
    /// The containers of the policy that do not start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_starting: Vec<NotStarting>,
    /// The number of further workloads behind the policy.
    more: usize,
    /// The errors of parts that could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown: Vec<String>,
    /// The policy is valid and has only validations.
    #[serde(skip)]
    only_validates: bool,
}

/// A condition, for people.
#[derive(Serialize, Debug)]
#[serde(rename_all = "camelCase")]
struct ToldCondition {
    r#type: String,
    status: String,
    reason: String,
    message: String,
    seconds: i64,
}

/// An object that engines register.
#[derive(Serialize, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Registered {
    resource: String,
    name: String,
    found: bool,
}

impl PolicyReport {
    /// The report on the policy `name` from its `status` and `registrations`. `policy` is none if it is invalid.
    pub(super) fn new(
        name: &str,
        status: &SidecarPolicyStatus,
        registrations: Result<Vec<Piece>>,
        policy: Option<&Policy>,
    ) -> Self {
        let since = |time: Timestamp| Timestamp::now().duration_since(time).as_secs().max(0);
        let conditions = status.conditions.iter().map(|condition| ToldCondition {
            r#type: condition.type_.clone(),
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            seconds: since(condition.last_transition_time.0),
        });
        let mut report = Self {
            policy: name.to_owned(),
            ready: condition(status, "Ready").map_or("Unknown".to_owned(), |ready| ready.status.clone()),
            engine: status.engine.clone(),
            conditions: conditions.collect(),
            failures: status.failures.clone(),
            only_validates: policy.is_some_and(|policy| !policy.injects()),
            ..Self::default()
        };
        match (registrations, policy) {
            (Ok(there), Some(policy)) => report.registrations = registered(policy, status.engine.as_deref(), &there),
            (Ok(_), None) => {}
            (Err(error), _) => report.unknown.push(chain(&*error)),
        }
        report
    }

    /// Adds the counts, and at most `limit` workloads; 0 means no limit.
    pub(super) fn take(&mut self, counted: Result<WorkloadCounts>, limit: usize) {
        match counted {
            Ok(WorkloadCounts { sums, mut behind, not_starting }) => {
                self.not_starting = not_starting;
                let shown = if limit == 0 { behind.len() } else { limit.min(behind.len()) };
                self.more = behind.split_off(shown).len();
                (self.targets, self.workloads) = (sums, behind);
            }
            Err(error) => self.unknown.push(chain(&*error)),
        }
    }

    /// The exit code of the command.
    ///
    /// # Errors
    /// The first error of a part that could not be read.
    pub(super) fn end(&self) -> Result<End> {
        if let Some(first) = self.unknown.first() {
            return Err(anyhow!("{first}"));
        }
        let is_missing = self.registrations.iter().any(|registration| !registration.found);
        let is_fine = self.ready == "True" && !is_missing && self.workloads.is_empty() && self.not_starting.is_empty();
        Ok(End::fine_if(is_fine))
    }

    fn headline(&self) -> String {
        let ready = self.conditions.iter().find(|condition| condition.r#type == "Ready");
        let engine = self.engine.as_ref().map_or(String::new(), |engine| format!(" on {engine}"));
        match ready {
            None => format!("{}: no operator has seen it; is one running?", self.policy),
            Some(ready) if ready.status == "True" => format!("{}: {}{engine}", self.policy, ready.reason),
            Some(ready) => format!("{}: {}: {}", self.policy, ready.reason, ready.message),
        }
    }

    /// Writes the report for people.
    pub(super) fn write(&self, printing: &Printing<{ WIDE | NAME }>, out: &mut impl Write) -> Result<()> {
        if printing.no_headers {
            return printing.table(BEHIND, self.workloads.iter().map(row), out);
        }
        writeln!(out, "{}", self.headline())?;
        self.write_conditions(printing, out)?;
        let rows = self.registrations.iter().map(|registration| {
            let found = if registration.found { "yes" } else { "NO" };
            [registration.resource.clone(), registration.name.clone(), found.to_owned()]
        });
        printing.section(["REGISTRATION", "NAME", "FOUND"], rows, out)?;
        self.write_targets(printing, out)?;
        let rows = self.failures.iter().map(|failure| {
            let workload = place(&failure.kind, &failure.namespace, &failure.name);
            [workload, failure.code.clone(), failure.message.clone()]
        });
        printing.section(["COULD NOT BE INJECTED", "CODE", "WHY"], rows, out)?;
        let rows = self.not_starting.iter().map(|found| {
            let workload = place(&found.kind, &found.namespace, &found.name);
            let (container, reason) = (found.container.clone(), found.reason.clone());
            [workload, container, found.pods.to_string(), found.code.clone(), reason]
        });
        printing.section(["DOES NOT START IN", "CONTAINER", "PODS", "CODE", "WHY"], rows, out)?;
        self.write_workloads(printing, out)
    }

    fn write_conditions(&self, printing: &Printing<{ WIDE | NAME }>, out: &mut impl Write) -> Result<()> {
        let cells = |told: &ToldCondition| {
            [&told.r#type, &told.status, &age(told.seconds), &told.reason, &told.message].map(Clone::clone)
        };
        if printing.output == Output::Wide {
            let header = ["CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"];
            return printing.section(header, self.conditions.iter().map(cells), out);
        }
        let rows =
            self.conditions.iter().map(cells).map(|[name, status, since, _, message]| [name, status, since, message]);
        printing.section(["CONDITION", "STATUS", "SINCE", "MESSAGE"], rows, out)
    }

    fn write_targets(&self, printing: &Printing<{ WIDE | NAME }>, out: &mut impl Write) -> Result<()> {
        if self.only_validates {
            return Ok(writeln!(out, "\nIt has validations only: nothing is injected, so nothing is counted.")?);
        }
        let rows = self.targets.iter().map(|sums| {
            let KindSums { matched, injected, edited, outdated, missed, failed, pending, .. } = sums;
            let [matched, injected, edited, outdated, missed, failed, pending] =
                [matched, injected, edited, outdated, missed, failed, pending].map(ToString::to_string);
            [sums.resource.clone(), matched, injected, edited, outdated, missed, failed, pending]
        });
        let header = ["TARGET", "MATCHED", "INJECTED", "EDITED", "OUTDATED", "MISSED", "FAILED", "PENDING"];
        printing.section(header, rows, out)?;
        for sums in self.targets.iter().filter(|sums| sums.unknown > 0) {
            writeln!(out, "{} {} may match or not: `scpol explain` says why.", sums.unknown, sums.resource)?;
        }
        Ok(())
    }

    fn write_workloads(&self, printing: &Printing<{ WIDE | NAME }>, out: &mut impl Write) -> Result<()> {
        printing.section(BEHIND, self.workloads.iter().map(row), out)?;
        let changed = self.workloads.iter().filter_map(|behind| {
            let workload = place(&behind.kind, &behind.namespace, &behind.name);
            Some(format!("{workload} (generation {})", behind.generation?))
        });
        let changed: Vec<_> = changed.collect();
        if !changed.is_empty() {
            writeln!(
                out,
                "Changed since their creation: {}. An update that replaces the whole object, as `kubectl replace`, a PUT or \
                 `helm upgrade --force` do, takes a sidecar out.",
                changed.join(", ")
            )?;
        }
        for behind in self.workloads.iter().filter(|behind| !behind.edits.is_empty()) {
            let workload = place(&behind.kind, &behind.namespace, &behind.name);
            writeln!(out, "Edited: {workload}: {}", inject::all_told(&behind.edits))?;
        }
        for (behind, values) in self.workloads.iter().filter_map(|behind| Some((behind, behind.values.as_ref()?))) {
            let workload = place(&behind.kind, &behind.namespace, &behind.name);
            writeln!(out, "Outdated: {workload}: {values}")?;
        }
        if self.more > 0 {
            writeln!(out, "and {} more: `--limit 0` shows them all", self.more)?;
        }
        Ok(())
    }
}

/// The header of the table of workloads that are behind the policy.
const BEHIND: [&str; 4] = ["WORKLOAD", "RESULT", "CODE", "WHAT TO DO"];

fn row(behind: &BehindRow) -> [String; 4] {
    let code = behind.code.clone().unwrap_or("-".to_owned());
    let workload = place(&behind.kind, &behind.namespace, &behind.name);
    [workload, behind.result.word().to_owned(), code, behind.fix.clone()]
}

/// The needed registrations of `policy`, and whether each exists.
fn registered(policy: &Policy, engines: Option<&str>, there: &[Piece]) -> Vec<Registered> {
    let is_there = |plural: &str, name: &str| {
        there.iter().any(|piece| piece.resource.plural == plural && piece.object.name() == name)
    };
    let mut found: BTreeMap<(&str, String), bool> = BTreeMap::new();
    for ways in needed(policy, engines.unwrap_or_default()) {
        let whole = ways.iter().find(|way| way.iter().all(|(plural, name)| is_there(plural, name)));
        for (plural, name) in whole.or(ways.first()).into_iter().flatten() {
            found.insert((plural, name.clone()), is_there(plural, name));
        }
    }
    found
        .into_iter()
        .map(|((resource, name), found)| Registered { resource: resource.to_owned(), name, found })
        .collect()
}
