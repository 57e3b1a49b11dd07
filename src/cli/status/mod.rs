//! `scpol status`: the state of all policies, or of one in detail. The workloads of a single policy are counted by the
//! command itself, so it works without an operator. So are those of a part of the cluster.

mod report;
mod watch;
mod workloads;

use super::installed::Installed;
use super::live::{self, Within};
use super::output::{NAME, Output, Printing, WIDE, age};
use super::policies::{self, condition, full_name, is_programmed, short_name, status, unknown};
use super::site::SiteOptions;
use super::{Cluster, End};
use crate::cluster::object::Object;
use crate::policy::PolicyRef;
use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use report::PolicyReport;
use serde::Serialize;
use serde_json::json;
use std::io::Write;
use workloads::{Counting, WorkloadCounts};

#[derive(Args, Debug)]
pub(super) struct StatusOptions {
    /// The policy [default: a line for each]
    #[arg(value_name = "POLICY", value_parser = short_name)]
    policy: Option<String>,
    /// Only count workloads of this namespace, and with these labels
    #[command(flatten)]
    within: Within,
    /// Show at most this many workloads that lack the template, or have an edited or earlier one; 0: all
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Print the counts of the operator, and then each change, until interrupted. For one policy: the progress
    #[arg(short, long, conflicts_with_all = ["namespace", "selector"])]
    watch: bool,
    #[command(flatten)]
    printing: Printing<{ WIDE | NAME }>,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    site: SiteOptions,
}

/// One line of the overview.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Summary {
    name: String,
    ready: String,
    reason: String,
    message: String,
    engine: String,
    matched: i64,
    injected: i64,
    outdated: i64,
    missed: i64,
    pending: i64,
    #[serde(flatten)]
    wide: WideCounts,
    age_seconds: i64,
}

/// The counts of one line that only `-o wide` shows.
#[derive(Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
struct WideCounts {
    edited: i64,
    failed: i64,
}

pub(super) async fn run(options: StatusOptions, out: &mut impl Write) -> Result<End> {
    let client = live::connect(&options.cluster).await?;
    let site = options.site.site()?;
    let stored = policies::stored(&client).await?;
    let find = |name: &String| stored.iter().find(|policy| policy.name() == name).ok_or_else(|| unknown(name, &stored));
    let object = options.policy.as_ref().map(find).transpose()?;
    if options.watch {
        return watch::run(&client, &options, out).await;
    }
    if object.is_none() && !options.within.is_part() {
        return overview(&stored.iter().map(summary).collect::<Vec<_>>(), &options.printing, out);
    }
    let known = policies::recognizing(&client, policies::known(&stored, &site), &site).await;
    let server = live::offers(&client, known.policies.kinds()).await?;
    let site = options.site.on(site, &server);
    let (policies, within) = (&known.policies, &options.within);
    let counting = Counting { client: &client, server: &server, policies, site: &site, within };
    let count = async |object: &Object| match known.policies.get(&PolicyRef::of_cluster(object.name())) {
        None => None,
        Some(policy) => {
            let is_in_force = is_programmed(&status(object)) && policy.is_enforced();
            Some(counting.count(policy, is_in_force).await)
        }
    };
    let Some(object) = object else {
        let mut summaries = Vec::new();
        for object in &stored {
            let counted = count(object).await.transpose()?.unwrap_or_default();
            summaries.push(summary(object).counted(&counted));
        }
        return overview(&summaries, &options.printing, out);
    };
    let installed = Installed { client: &client, server: &server, namespace: &site.operator_namespace };
    let registrations = installed.registrations().await;
    let parsed = policies::parse(&object.value(), &site).ok();
    let mut report = PolicyReport::new(object.name(), &status(object), registrations, parsed.as_ref());
    if let Some(counted) = count(object).await {
        report.take(counted, options.limit);
    }
    let printing = &options.printing;
    printing.output.report(
        "PolicyStatusReport",
        || json!(report),
        out,
        |out| match printing.output {
            Output::Name => Ok(writeln!(out, "{}", full_name(object.name()))?),
            _ => report.write(printing, out),
        },
    )?;
    report.end()
}

/// The kind of the document for machines with several policies.
const OVERVIEW: &str = "StatusReport";

fn overview(summaries: &[Summary], printing: &Printing<{ WIDE | NAME }>, out: &mut impl Write) -> Result<End> {
    printing.output.report(OVERVIEW, || json!({ "items": summaries }), out, |out| write(summaries, printing, out))?;
    Ok(End::fine_if(summaries.iter().all(|summary| summary.ready == "True")))
}

fn summary(policy: &Object) -> Summary {
    let status = status(policy);
    let ready = condition(&status, "Ready");
    let (state, reason, message) = ready.map_or(("Unknown", "", "no operator has seen it; is one running?"), |ready| {
        (ready.status.as_str(), ready.reason.as_str(), ready.message.as_str())
    });
    let age = policy.created().map_or(0, |created| Timestamp::now().duration_since(created).as_secs().max(0));
    Summary {
        name: policy.name().to_owned(),
        ready: state.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        engine: status.engine.clone().unwrap_or_default(),
        matched: status.matched,
        injected: status.injected,
        outdated: status.outdated,
        missed: status.missed,
        pending: status.pending,
        wide: WideCounts { edited: status.edited, failed: status.failed },
        age_seconds: age,
    }
}

impl Summary {
    /// The same with the numbers of `counted` instead of the operator's.
    fn counted(self, counted: &WorkloadCounts) -> Self {
        let sum = |field: fn(&workloads::KindSums) -> usize| {
            counted.sums.iter().map(|sums| i64::try_from(field(sums)).unwrap_or(i64::MAX)).sum()
        };
        Self {
            matched: sum(|sums| sums.matched),
            injected: sum(|sums| sums.injected),
            outdated: sum(|sums| sums.outdated),
            missed: sum(|sums| sums.missed),
            pending: sum(|sums| sums.pending),
            wide: WideCounts { edited: sum(|sums| sums.edited), failed: sum(|sums| sums.failed) },
            ..self
        }
    }

    /// The cells of `-o wide`; all but the last three are those of a table.
    fn cells(&self) -> [String; 13] {
        let number = |number: i64| number.to_string();
        [
            self.name.clone(),
            self.ready.clone(),
            self.reason.clone(),
            self.engine.clone(),
            number(self.matched),
            number(self.injected),
            number(self.outdated),
            number(self.missed),
            number(self.pending),
            age(self.age_seconds),
            number(self.wide.edited),
            number(self.wide.failed),
            self.message.clone(),
        ]
    }
}

const HEADER: [&str; 13] = [
    "NAME", "READY", "REASON", "ENGINE", "MATCHED", "INJECTED", "OUTDATED", "MISSED", "PENDING", "AGE", "EDITED",
    "FAILED", "MESSAGE",
];

/// The first `N` of the cells of `-o wide`.
fn narrow<const N: usize, T>(cells: [T; 13]) -> [T; N] {
    let mut cells = cells.into_iter();
    std::array::from_fn(|_| cells.next().expect("a table has fewer columns than `-o wide`"))
}

fn write(summaries: &[Summary], printing: &Printing<{ WIDE | NAME }>, out: &mut impl Write) -> Result<()> {
    const NOTHING: &str = "There is no policy.";
    let rows = summaries.iter().map(Summary::cells);
    match printing.output {
        Output::Name => summaries.iter().try_for_each(|summary| Ok(writeln!(out, "{}", full_name(&summary.name))?)),
        Output::Wide => printing.list(NOTHING, HEADER, rows, out),
        _ => {
            printing.list(NOTHING, narrow::<10, _>(HEADER), rows.map(narrow), out)?;
            for summary in summaries.iter().filter(|summary| summary.ready != "True" && !printing.no_headers) {
                writeln!(out, "\n{}: {}", summary.name, summary.message)?;
            }
            Ok(())
        }
    }
}
