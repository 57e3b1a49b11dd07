//! `scpol rollout pause`, `resume` and `restart`.

use super::edit::{self, DryRun, annotate};
use super::revisions::Revisions;
use super::{Named, Revised, check_rolls, live, tell, uid};
use crate::api::{RESTARTED_AT_KEY, RESUMED_AT_KEY};
use crate::cli::End;
use anyhow::{Result, bail};
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::io::Write;

#[derive(Args, Debug)]
pub(super) struct SwitchOptions {
    #[command(flatten)]
    named: Named,
}

#[derive(Args, Debug)]
pub(super) struct ResumeOptions {
    #[command(flatten)]
    of: Revised,
}

pub(super) async fn pause(options: SwitchOptions, out: &mut impl Write) -> Result<End> {
    let name = options.named.policy.as_str();
    let (client, _) = live::connect(&options.named.cluster).await?;
    let is_changed = edit::policy(&client, name, DryRun::None, |stored| {
        check_rolls(stored)?;
        Ok(pausing(&stored.value()))
    });
    let done = if is_changed.await? { "paused" } else { "is already paused" };
    tell(name, done, out)
}

pub(super) async fn resume(options: ResumeOptions, out: &mut impl Write) -> Result<End> {
    let Revised { named, operator } = &options.of;
    let name = named.policy.as_str();
    let (client, _) = live::connect(&named.cluster).await?;
    let policy = super::find(&client, name).await?;
    // Without the right to read revisions, the clocks of the API server and of the leader have to agree.
    let own = Some(uid(&policy));
    let revisions = Revisions::read(&client, &operator.operator_namespace, name, own).await.unwrap_or_default();
    let since = revisions.0.last().and_then(|latest| Some(latest.record.reached.as_ref()?.since));
    // The server tells whole seconds, and the pause may have begun in this one.
    let now = live::server_time(&client).await;
    let now = now.saturating_add(SignedDuration::from_millis(999)).unwrap_or(now);
    let at = since.map_or(now, |since| since.max(now));
    edit::policy(&client, name, DryRun::None, |stored| {
        check_rolls(stored)?;
        Ok(resuming(&stored.value(), at))
    })
    .await?;
    tell(name, "resumed", out)
}

pub(super) async fn restart(options: SwitchOptions, out: &mut impl Write) -> Result<End> {
    let name = options.named.policy.as_str();
    let (client, _) = live::connect(&options.named.cluster).await?;
    let now = live::server_time(&client).await;
    edit::policy(&client, name, DryRun::None, |stored| {
        check_rolls(stored)?;
        if stored.value()["spec"]["suspend"] == true {
            bail!("SidecarPolicy `{name}` is suspended: `spec.suspend` is true; nothing would be restarted");
        }
        Ok(vec![restarting(&stored.value(), now)])
    })
    .await?;
    tell(name, "restarted", out)
}

/// The operations that pause `policy`; none if it is paused.
fn pausing(policy: &Value) -> Vec<Value> {
    match policy["spec"]["updateStrategy"]["paused"] == true {
        true => Vec::new(),
        false => vec![json!({ "op": "add", "path": "/spec/updateStrategy/paused", "value": true })],
    }
}

/// The operations that end a pause of `policy`, in its spec and among its steps.
fn resuming(policy: &Value, at: Timestamp) -> Vec<Value> {
    let is_paused = policy["spec"]["updateStrategy"]["paused"] == true;
    let unpause = json!({ "op": "replace", "path": "/spec/updateStrategy/paused", "value": false });
    [annotate(policy, RESUMED_AT_KEY, &at.to_string())].into_iter().chain(is_paused.then_some(unpause)).collect()
}

/// The operation that asks for a restart of everything that began before `now`. Creation times are in whole seconds, so this
/// one is, too: a pod of this second is not made anew twice.
fn restarting(policy: &Value, now: Timestamp) -> Value {
    let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
    annotate(policy, RESTARTED_AT_KEY, &second.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::edit::tests::applied;
    use super::*;

    #[test]
    fn a_rollout_is_paused_once_and_resumed_with_the_time() {
        let policy = json!({ "metadata": {}, "spec": { "updateStrategy": { "type": "RollingUpdate" } } });
        let paused = applied(&policy, &pausing(&policy));
        assert_eq!((&paused["spec"]["updateStrategy"]["paused"], pausing(&paused)), (&json!(true), Vec::new()));
        let at: Timestamp = "2026-01-02T03:04:05.5Z".parse().unwrap();
        for before in [&policy, &paused] {
            let resumed = applied(before, &resuming(before, at));
            assert_ne!(resumed["spec"]["updateStrategy"]["paused"], true);
            assert_eq!(resumed["metadata"]["annotations"][RESUMED_AT_KEY], "2026-01-02T03:04:05.5Z");
        }
        let restarted = applied(&policy, &[restarting(&policy, at)]);
        assert_eq!(restarted["metadata"]["annotations"][RESTARTED_AT_KEY], "2026-01-02T03:04:05Z");
    }
}
