//! `scpol rollout pause`, `resume` and `restart`.

use super::edit::{self, DryRun, annotate};
use super::{Named, Revised, check_rolls, live, spec, tell, time};
use crate::api::v1alpha1::Mode;
use crate::api::{RESTARTED_AT_KEY, RESUMED_AT_KEY};
use crate::cli::End;
use crate::cli::output::remark;
use crate::cli::policies::status;
use crate::cluster::object::Object;
use anyhow::{Result, bail};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::cell::Cell;
use std::io::Write;

/// How far ahead of the server's clock the time of an earlier resume counts. A later one than that is no resume of a moment ago.
const NEAR: SignedDuration = SignedDuration::from_mins(1);

pub(super) async fn pause(options: Named, out: &mut impl Write) -> Result<End> {
    let name = options.policy.as_str();
    let client = live::connect(&options.cluster).await?;
    let is_changed = edit::policy(&client, name, DryRun::None, |stored| {
        check_rolls(stored)?;
        Ok(pausing(&stored.value()))
    });
    let done = if is_changed.await? { "paused" } else { "is already paused" };
    tell(name, done, out)
}

pub(super) async fn resume(options: Revised, out: &mut impl Write) -> Result<End> {
    let name = options.named.policy.as_str();
    let (client, policy) = options.named.read().await?;
    // Without the right to read revisions, the clocks of the API server and of the leader have to agree.
    let revisions = options.revisions(&client, &policy).await.unwrap_or_default();
    let latest = revisions.0.last().map(|latest| &latest.record);
    let since = latest.and_then(|latest| Some(latest.reached.as_ref()?.since));
    let followed = latest.and_then(|latest| latest.progress.followed.resumed);
    // The server tells whole seconds, and the pause may have begun in this one.
    let now = live::server_time(&client).await;
    let now = now.saturating_add(SignedDuration::from_millis(999)).unwrap_or(now);
    let at = since.map_or(now, |since| since.max(now));
    edit::policy(&client, name, DryRun::None, |stored| {
        check_rolls(stored)?;
        Ok(resuming(&stored.value(), followed, at))
    })
    .await?;
    tell(name, "resumed", out)
}

pub(super) async fn restart(options: Named, out: &mut impl Write) -> Result<End> {
    let name = options.policy.as_str();
    let client = live::connect(&options.cluster).await?;
    let now = live::server_time(&client).await;
    let waits = Cell::new(None);
    edit::policy(&client, name, DryRun::None, |stored| {
        waits.set(restart_waits(stored)?);
        Ok(vec![restarting(&stored.value(), now)])
    })
    .await?;
    let end = tell(name, "restarted", out)?;
    if let Some(why) = waits.get() {
        remark(format_args!("Nothing is restarted until `scpol rollout resume {name}`: {why}."));
    }
    Ok(end)
}

/// What a restart of `policy` waits for until a resume; none if it takes effect at once.
///
/// # Errors
/// If nothing would be restarted.
fn restart_waits(policy: &Object) -> Result<Option<&'static str>> {
    check_rolls(policy)?;
    let (name, spec) = (policy.name(), spec(policy)?);
    if spec.suspend {
        bail!("SidecarPolicy `{name}` is suspended: `spec.suspend` is true; nothing would be restarted");
    }
    if spec.mode == Mode::Audit {
        bail!("SidecarPolicy `{name}` only audits: `spec.mode` is `Audit`; nothing would be restarted");
    }
    let is_halted = status(policy).halted.then_some("its rollout is halted");
    Ok(is_halted.or(spec.is_paused().then_some("`spec.updateStrategy.paused` is true")))
}

/// The operations that pause `policy`; none if it is paused.
fn pausing(policy: &Value) -> Vec<Value> {
    match policy["spec"]["updateStrategy"]["paused"] == true {
        true => Vec::new(),
        false => vec![json!({ "op": "add", "path": "/spec/updateStrategy/paused", "value": true })],
    }
}

/// The operations that end a pause of `policy`, in its spec and among its steps. The time of the resume is `at`, or a moment after the
/// last one: a rollout follows no other one with the same time. `followed` is the last one that a rollout has followed.
fn resuming(policy: &Value, followed: Option<Timestamp>, at: Timestamp) -> Vec<Value> {
    let last = [time(policy, RESUMED_AT_KEY), followed]
        .into_iter()
        .flatten()
        .filter(|last| last.duration_since(at) <= NEAR)
        .max();
    let next = last.and_then(|last: Timestamp| last.checked_add(SignedDuration::from_millis(1)).ok());
    let at = next.map_or(at, |next| next.max(at));
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
            let resumed = applied(before, &resuming(before, None, at));
            assert_ne!(resumed["spec"]["updateStrategy"]["paused"], true);
            assert_eq!(resumed["metadata"]["annotations"][RESUMED_AT_KEY], "2026-01-02T03:04:05.5Z");
        }
        // The last one was in the same second, or is said to be: then a moment later. A time that is far ahead does not count.
        for (stored, followed, expected) in [
            (Some("2026-01-02T03:04:05.5Z"), None, "2026-01-02T03:04:05.501Z"),
            (Some("2026-01-02T03:04:07Z"), None, "2026-01-02T03:04:07.001Z"),
            (None, Some("2026-01-02T03:04:05.5Z"), "2026-01-02T03:04:05.501Z"),
            (Some("2026-01-02T03:04:04Z"), Some("2026-01-02T03:04:05.6Z"), "2026-01-02T03:04:05.601Z"),
            (Some("2026-01-02T03:04:04Z"), None, "2026-01-02T03:04:05.5Z"),
            (Some("2026-01-02T03:05:06Z"), None, "2026-01-02T03:04:05.5Z"),
            (Some("9999-12-30T22:00:00Z"), None, "2026-01-02T03:04:05.5Z"),
            (Some("soon"), None, "2026-01-02T03:04:05.5Z"),
        ] {
            let mut before = policy.clone();
            before["metadata"]["annotations"] = json!({ RESUMED_AT_KEY: stored });
            let followed = followed.map(|time| time.parse().unwrap());
            let resumed = applied(&before, &resuming(&before, followed, at));
            assert_eq!(resumed["metadata"]["annotations"][RESUMED_AT_KEY], expected, "{stored:?} {followed:?}");
        }
        let restarted = applied(&policy, &[restarting(&policy, at)]);
        assert_eq!(restarted["metadata"]["annotations"][RESTARTED_AT_KEY], "2026-01-02T03:04:05Z");
    }

    #[test]
    fn a_restart_says_what_it_waits_for_and_is_refused_where_it_does_nothing() {
        let rolling = json!({ "type": "RollingUpdate" });
        let paused = json!({ "type": "RollingUpdate", "paused": true });
        for (spec, is_halted, expected) in [
            (json!({ "updateStrategy": rolling }), false, Ok(None)),
            (json!({ "updateStrategy": paused }), false, Ok(Some("`spec.updateStrategy.paused` is true"))),
            (json!({ "updateStrategy": rolling }), true, Ok(Some("its rollout is halted"))),
            (json!({ "updateStrategy": rolling, "suspend": true }), false, Err("is suspended")),
            (json!({ "updateStrategy": rolling, "mode": "Audit" }), false, Err("only audits")),
            (json!({}), false, Err("has no rollouts")),
        ] {
            let mut policy =
                json!({ "metadata": { "name": "envoy" }, "spec": spec, "status": { "halted": is_halted } });
            policy["spec"]["template"] = json!({ "containers": [{ "name": "envoy", "image": "envoy:1" }] });
            let waits = restart_waits(&serde_json::from_value(policy).unwrap()).map_err(|error| error.to_string());
            match expected {
                Ok(expected) => assert_eq!(waits, Ok(expected)),
                Err(why) => assert!(waits.as_ref().is_err_and(|error| error.contains(why)), "{waits:?}"),
            }
        }
    }
}
