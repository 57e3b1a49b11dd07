//! `scpol status`: the state of all policies, or of one in detail. The workloads of a single policy are counted by the
//! command itself, so it works without an operator.

mod report;
mod workloads;

use super::files::SiteOptions;
use super::installed::Installed;
use super::live;
use super::output::{self, Output, age};
use super::{Cluster, End};
use crate::api::v1alpha1::SidecarPolicyStatus;
use crate::cluster::discovery;
use crate::cluster::object::Object;
use crate::policy::{Policy, Site};
use anyhow::{Context, Result};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use report::Report;
use serde::Serialize;
use serde_json::json;
use std::io::Write;

#[derive(Args, Debug)]
pub(super) struct StatusOptions {
    /// The policy [default: a line for each]
    #[arg(value_name = "POLICY")]
    policy: Option<String>,
    /// At most so many of the workloads that have missed it, or have an earlier template; 0: all
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    site: SiteOptions,
}

/// One line of the overview.
#[derive(Serialize, Debug)]
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
    failed: i64,
    pending: i64,
    age_seconds: i64,
}

pub(super) async fn run(options: StatusOptions, out: &mut impl Write) -> Result<End> {
    let (client, _) = live::connect(&options.cluster).await?;
    let mut site = options.site.site()?;
    let stored =
        live::stored(&client).await?.context("the server has no SidecarPolicies: install the operator first")?;
    let Some(name) = &options.policy else { return overview(&stored, options.output, out) };
    let Some(object) = stored.iter().find(|policy| policy.name() == name) else { return Err(unknown(name, &stored)) };
    let known = live::known(&stored, &site);
    let groups = || known.policies.kinds().map(|kind| kind.group.as_str());
    let server = discovery::discover(&client, |group| groups().any(|own| own == group)).await.context(live::ASKING)?;
    if !options.site.names_version() {
        site = site.on(&server);
    }
    let installed = Installed { client: &client, server: &server, namespace: &site.operator_namespace };
    let status = status(object);
    let mut report = Report::new(name, &status, installed.registrations().await, parsed(object, &site).as_ref());
    if let Some(policy) = known.policies.get(name) {
        let is_in_force = is_programmed(&status) && policy.is_enforced();
        let counted = workloads::count(&client, &server, policy, is_in_force, &known.policies, &site).await;
        report.take(counted, options.limit);
    }
    let document = || {
        let mut document = serde_json::to_value(&report).unwrap_or_default();
        document["apiVersion"] = json!("cli.scpol.dev/v1alpha1");
        document["kind"] = json!("PolicyStatusReport");
        document
    };
    if !options.output.is_written(document, out)? {
        report.write(out)?;
    }
    out.flush()?;
    report.end()
}

fn parsed(object: &Object, site: &Site) -> Option<Policy> {
    live::parse(&object.value(), site).ok()
}

/// The stored status; empty if it is unreadable.
pub(super) fn status(policy: &Object) -> SidecarPolicyStatus {
    serde_json::from_value(policy.value()["status"].clone()).unwrap_or_default()
}

/// The condition of type `type_`.
pub(super) fn condition<'a>(status: &'a SidecarPolicyStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the operator's last status says that the policy is in effect.
pub(super) fn is_programmed(status: &SidecarPolicyStatus) -> bool {
    condition(status, "Programmed").is_some_and(|programmed| programmed.status == "True")
}

fn unknown(name: &str, stored: &[Object]) -> anyhow::Error {
    let near = stored.iter().map(|policy| (strsim::damerau_levenshtein(policy.name(), name), policy.name()));
    let hint = match near.filter(|(edits, _)| *edits <= live::MAX_EDITS).min() {
        Some((_, meant)) => format!("did you mean `{meant}`?"),
        None => "`scpol status` lists those that there are".to_owned(),
    };
    anyhow::anyhow!("there is no SidecarPolicy `{name}`; {hint}")
}

fn overview(stored: &[Object], output: Output, out: &mut impl Write) -> Result<End> {
    let summaries: Vec<_> = stored.iter().map(summary).collect();
    let document = || json!({ "apiVersion": "cli.scpol.dev/v1alpha1", "kind": "StatusReport", "items": summaries });
    if !output.is_written(document, out)? {
        write(&summaries, out)?;
    }
    Ok(if summaries.iter().all(|summary| summary.ready == "True") { End::Fine } else { End::Finding })
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
        failed: status.failed,
        pending: status.pending,
        age_seconds: age,
    }
}

fn write(summaries: &[Summary], out: &mut impl Write) -> Result<()> {
    if summaries.is_empty() {
        return Ok(writeln!(out, "There is no policy.")?);
    }
    let header = ["NAME", "READY", "REASON", "ENGINE", "MATCHED", "INJECTED", "OUTDATED", "MISSED", "PENDING", "AGE"];
    let rows = summaries.iter().map(|summary| {
        let Summary { name, ready, reason, engine, .. } = summary;
        let numbers = [summary.matched, summary.injected, summary.outdated, summary.missed, summary.pending];
        let [matched, injected, outdated, missed, pending] = numbers.map(|number| number.to_string());
        let (name, ready, reason, engine) = (name.clone(), ready.clone(), reason.clone(), engine.clone());
        [name, ready, reason, engine, matched, injected, outdated, missed, pending, age(summary.age_seconds)]
    });
    output::table(header, rows, out)?;
    for summary in summaries.iter().filter(|summary| summary.ready != "True") {
        writeln!(out, "\n{}: {}", summary.name, summary.message)?;
    }
    Ok(())
}
