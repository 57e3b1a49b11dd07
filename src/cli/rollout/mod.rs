//! `scpol rollout`: how far the rollout of a policy is, and what moves it. The words are those of `kubectl rollout`.
//!
//! Every command acts with the rights of its caller. None needs a running operator, except that nothing rolls without one.

mod edit;
mod history;
mod plan;
mod remove;
mod revisions;
mod status;
mod switch;
mod undo;

use self::revisions::PolicyRevisions;
use super::policies::{find, full_name, short_name};
use super::site::OperatorOptions;
use super::{Cluster, End, live};
use crate::api::v1alpha1::SidecarPolicySpec;
use crate::cluster::object::Object;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::{Client, Resource};
use serde_json::Value;
use std::io::Write;

#[derive(Args, Debug)]
pub(super) struct RolloutOptions {
    #[command(subcommand)]
    command: RolloutCommand,
}

#[derive(Subcommand, Debug)]
enum RolloutCommand {
    /// Show how far the rollout of a policy is
    Status(status::RolloutStatusOptions),
    /// List the revisions of a policy, or print one of them
    History(history::HistoryOptions),
    /// Set the content of a policy back to an earlier revision
    Undo(undo::UndoOptions),
    /// Pause the rollout of a policy
    Pause(Named),
    /// Resume the rollout of a policy, after `pause` or at a pause among its steps
    Resume(Revised),
    /// Recreate all pods with the sidecar of a policy, at the pace of its rollout
    Restart(Named),
    /// Show what a rollout would do to each workload, in which order, and why
    Plan(plan::PlanOptions),
    /// Remove the content of a deleted or suspended policy from pod templates and running pods
    Remove(remove::RemoveOptions),
}

/// The policy of a command.
#[derive(Args, Debug)]
struct Named {
    /// The policy
    #[arg(value_name = "POLICY", value_parser = short_name)]
    policy: String,
    #[command(flatten)]
    cluster: Cluster,
}

/// The policy of a command that reads its revisions.
#[derive(Args, Debug)]
struct Revised {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    operator: OperatorOptions,
}

impl Named {
    /// A client of the cluster, and the stored policy.
    async fn read(&self) -> Result<(Client, Object)> {
        let client = live::connect(&self.cluster).await?;
        let policy = find(&client, &self.policy).await?;
        Ok((client, policy))
    }
}

impl Revised {
    /// The revisions of the stored `policy`.
    async fn revisions(&self, client: &Client, policy: &Object) -> Result<PolicyRevisions> {
        PolicyRevisions::read(client, &self.operator.operator_namespace, policy.name(), Some(uid(policy))).await
    }
}

pub(super) async fn run(options: RolloutOptions, out: &mut impl Write) -> Result<End> {
    match options.command {
        RolloutCommand::Status(options) => status::run(options, out).await,
        RolloutCommand::History(options) => history::run(options, out).await,
        RolloutCommand::Undo(options) => undo::run(options, out).await,
        RolloutCommand::Pause(options) => switch::pause(options, out).await,
        RolloutCommand::Resume(options) => switch::resume(options, out).await,
        RolloutCommand::Restart(options) => switch::restart(options, out).await,
        RolloutCommand::Plan(options) => plan::run(options, out).await,
        RolloutCommand::Remove(options) => remove::run(options, out).await,
    }
}

/// The UID of `policy`.
fn uid(policy: &Object) -> &str {
    policy.meta().uid.as_deref().unwrap_or_default()
}

/// The time in the annotation `key` of `policy`.
fn time(policy: &Value, key: &str) -> Option<Timestamp> {
    policy["metadata"]["annotations"][key].as_str()?.parse().ok()
}

/// The spec of `policy`.
///
/// # Errors
/// If it is not valid.
fn spec(policy: &Object) -> Result<SidecarPolicySpec> {
    let spec = serde_json::from_value(policy.value()["spec"].clone());
    spec.with_context(|| format!("the spec of SidecarPolicy `{}` is not valid", policy.name()))
}

/// The command that switches rollouts of `policy` on.
fn switch_on(policy: &str) -> String {
    format!(
        "kubectl patch scpol {policy} --type=merge -p '{{\"spec\":{{\"updateStrategy\":{{\"type\":\"RollingUpdate\"}}}}}}'"
    )
}

/// Checks that `policy` has rollouts.
///
/// # Errors
/// If not: the field, and the command that sets it.
fn check_rolls(policy: &Object) -> Result<()> {
    if !spec(policy)?.rolls() {
        let name = policy.name();
        bail!(
            "SidecarPolicy `{name}` has no rollouts: `spec.updateStrategy.type` is not `RollingUpdate`; set it: {}",
            switch_on(name)
        );
    }
    Ok(())
}

/// Prints what has been done with a policy, as kubectl does.
fn tell(policy: &str, done: &str, out: &mut impl Write) -> Result<End> {
    writeln!(out, "{} {done}", full_name(policy))?;
    out.flush()?;
    Ok(End::Fine)
}
