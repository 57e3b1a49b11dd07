//! `scpol rollout undo`: sets the content of a policy back to an earlier revision. The operator then rolls it out as any
//! other edit.

use super::edit::{self, DryRun};
use super::{Revised, spec, switch_on, tell};
use crate::cli::End;
use crate::cli::output::remark;
use crate::content::Content;
use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};
use std::io::Write;

#[derive(Args, Debug)]
pub(super) struct UndoOptions {
    #[command(flatten)]
    of: Revised,
    /// The revision to go back to; 0: the one before the latest
    #[arg(long, value_name = "N", default_value_t = 0)]
    to_revision: i64,
    /// Only show what would be done
    #[arg(long, value_enum, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_value_t, default_missing_value = "client")]
    dry_run: DryRun,
}

pub(super) async fn run(options: UndoOptions, out: &mut impl Write) -> Result<End> {
    let name = options.of.named.policy.as_str();
    let (client, policy) = options.of.named.read().await?;
    let strategy = spec(&policy)?;
    let latest = Content::of(&strategy).context("the policy has no template, so there is nothing to go back to")?;
    let revisions = options.of.revisions(&client, &policy).await?;
    let to = match options.to_revision {
        0 => revisions.before(&latest.hash())?,
        number => revisions.numbered(name, number)?,
    };
    let number = to.revision.number;
    let content = json!(to.revision.content);
    let is_changed = edit::policy(&client, name, options.dry_run, |stored| {
        let now = Content::of(&spec(stored)?);
        let is_there = now.is_some_and(|now| now.hash() == to.revision.hash);
        Ok(if is_there { Vec::new() } else { operations(&stored.value()["spec"], &content) })
    });
    if !is_changed.await? {
        return tell(name, &format!("skipped rollback (it has the content of revision {number} already)"), out);
    }
    let end = tell(name, &format!("rolled back to revision {number}{}", options.dry_run.note()), out)?;
    if !strategy.rolls() {
        remark(format_args!(
            "Only new workloads get it: `spec.updateStrategy.type` is not `RollingUpdate`. To bring all up to date: {}",
            switch_on(name)
        ));
    }
    Ok(end)
}

/// The operations that give `spec` the `content` of a revision. A field that the revision does not have is removed.
fn operations(spec: &Value, content: &Value) -> Vec<Value> {
    let default = json!(Content::default());
    let operation = |field: &&str| {
        let (have, want) = (spec.get(field), content.get(field));
        let path = format!("/spec/{field}");
        match (have, want) {
            (None, None) => None,
            (Some(_), None) => Some(json!({ "op": "remove", "path": path })),
            (None, Some(want)) if *field != "template" && default.get(field) == Some(want) => None,
            (have, Some(want)) if have == Some(want) => None,
            (_, Some(want)) => Some(json!({ "op": "add", "path": path, "value": want })),
        }
    };
    ["template", "position", "nativeSidecars", "jobs"].iter().filter_map(operation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::SidecarPolicySpec;

    #[test]
    fn the_content_goes_back_as_a_whole_and_nothing_else_changes() {
        let one = json!({ "template": { "containers": [{ "name": "x", "image": "x:1" }] }, "priority": 7 });
        let two = json!({
            "template": { "containers": [{ "name": "x", "image": "x:2", "args": ["-v"] }], "volumes": [{ "name": "v" }] },
            "position": { "containers": "Before" }, "nativeSidecars": "Never", "jobs": "Inject", "priority": 9,
        });
        let parse = |spec: &Value| serde_json::from_value::<SidecarPolicySpec>(spec.clone()).unwrap();
        let content = |spec: &Value| Content::of(&parse(spec)).unwrap();
        for (from, to) in [(&one, &two), (&two, &one)] {
            let wanted = content(to);
            let object = json!({ "spec": from });
            let after = super::edit::tests::applied(&object, &operations(from, &json!(wanted)))["spec"].clone();
            assert_eq!(content(&after), wanted);
            assert_eq!(after["priority"], from["priority"]);
            assert_eq!(operations(&after, &json!(wanted)), [Value::Null; 0], "nothing is left to do");
        }
        assert_eq!(operations(&one, &json!(content(&one))), [Value::Null; 0], "defaults are not written");
    }
}
