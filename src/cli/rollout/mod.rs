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

use super::files::Operator;
use super::status::{full_name, short_name, unknown};
use super::{Cluster, End, live};
use crate::api::v1alpha1::SidecarPolicySpec;
use crate::cluster::api::Api;
use crate::cluster::client::call;
use crate::cluster::object::Object;
use crate::cluster::policies;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use kube::{Client, Resource};
use std::io::Write;

#[derive(Args, Debug)]
pub(super) struct RolloutOptions {
    #[command(subcommand)]
    command: RolloutCommand,
}

#[derive(Subcommand, Debug)]
enum RolloutCommand {
    /// Say how far the rollout of a policy is
    Status(status::StatusOptions),
    /// List the revisions of a policy, or print one of them
    History(history::HistoryOptions),
    /// Set the content of a policy back to an earlier revision
    Undo(undo::UndoOptions),
    /// Keep the rollout of a policy where it is
    Pause(switch::SwitchOptions),
    /// Let the rollout of a policy go on: after `pause`, or after a pause among its steps
    Resume(switch::ResumeOptions),
    /// Make all pods with the sidecar of a policy anew, at the pace of its rollout
    Restart(switch::SwitchOptions),
    /// Say what a rollout would do to which workload, in which order, and why
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
    operator: Operator,
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

/// The API of SidecarPolicies.
fn api(client: &Client) -> Api<Object> {
    Api::all_with(client.clone(), &policies::resource())
}

/// The stored policy `name`.
///
/// # Errors
/// If it cannot be read, or there is none. The message then has the name that was probably meant.
async fn find(client: &Client, name: &str) -> Result<Object> {
    let found = call(api(client).get_opt(name)).await;
    if let Some(found) = found.with_context(|| format!("cannot get the SidecarPolicy `{name}`"))? {
        return Ok(found);
    }
    let stored = live::stored(client).await?;
    Err(unknown(name, &stored.context("the server has no SidecarPolicies: install the operator first")?))
}

/// The UID of `policy`.
fn uid(policy: &Object) -> &str {
    policy.meta().uid.as_deref().unwrap_or_default()
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
