//! `scpol rollout history`: the stored revisions of a policy.

use super::revisions::PolicyRevisions;
use super::{Revised, spec};
use crate::cli::End;
use crate::cli::output::{Output, Printing, age, remark};
use crate::content::Content;
use crate::rollout::{Foreign, StoredRevision, stored};
use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use std::io::Write;

#[derive(Args, Debug)]
pub(super) struct HistoryOptions {
    #[command(flatten)]
    of: Revised,
    /// Print the content of this revision, as YAML
    #[arg(long, value_name = "N")]
    revision: Option<i64>,
    #[command(flatten)]
    printing: Printing,
}

/// One line of the history.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
struct HistoryLine {
    revision: i64,
    hash: String,
    age_seconds: i64,
    /// `current`: its rollout was complete last. `update`: it is that of the spec.
    state: Vec<&'static str>,
    /// The images of its containers.
    images: Vec<String>,
}

/// What is stored and is no revision of the policy.
#[derive(Serialize, Clone, Debug, PartialEq)]
struct Ignored<'a> {
    name: &'a str,
    code: String,
    why: &'a str,
}

impl<'a> Ignored<'a> {
    fn of(foreign: &'a Foreign) -> Self {
        Self { name: &foreign.name, code: Foreign::CODE.to_string(), why: &foreign.why }
    }
}

pub(super) async fn run(options: HistoryOptions, out: &mut impl Write) -> Result<End> {
    let (client, policy) = options.of.named.read().await?;
    let revisions = options.of.revisions(&client, &policy).await?;
    let printing = &options.printing;
    if let Some(number) = options.revision {
        let content = json!(revisions.numbered(policy.name(), number)?.revision.content);
        let output = if printing.output == Output::Table { &Output::Yaml } else { &printing.output };
        output.is_value_written(|| content, out)?;
        out.flush()?;
        return Ok(End::Fine);
    }
    let update = Content::of(&spec(&policy)?).map(|content| content.hash());
    let lines = lines(&revisions, update.as_deref(), Timestamp::now());
    let ignored: Vec<_> = revisions.1.iter().map(Ignored::of).collect();
    let fields = || json!({ "items": lines, "ignored": ignored });
    printing.output.report("RolloutHistory", fields, out, |out| {
        let nothing = "No revision is stored; the operator stores them with the rights of `config/rbac/rollout`.";
        printing.list(nothing, ["REVISION", "HASH", "AGE", "STATE", "IMAGES"], lines.iter().map(cells), out)?;
        for Ignored { name, code, why } in &ignored {
            remark(format_args!("warning: ControllerRevision `{name}` is ignored: {code}: {why}"));
        }
        Ok(())
    })?;
    Ok(End::Fine)
}

fn lines(revisions: &PolicyRevisions, update: Option<&str>, now: Timestamp) -> Vec<HistoryLine> {
    let current = stored::current(&revisions.0).map(|current| current.revision.hash.as_str());
    let line = |stored: &StoredRevision| {
        let hash = stored.revision.hash.as_str();
        let states = [(current == Some(hash), "current"), (update == Some(hash), "update")];
        HistoryLine {
            revision: stored.revision.number,
            hash: hash.to_owned(),
            age_seconds: now.duration_since(stored.created).as_secs().max(0),
            state: states.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect(),
            images: images(&stored.revision.content),
        }
    };
    revisions.0.iter().map(line).collect()
}

/// The images of the containers in `content`, in order.
fn images(content: &Content) -> Vec<String> {
    let template = json!(content.template);
    let lists = ["initContainers", "containers"].into_iter().filter_map(|list| template[list].as_array());
    lists.flatten().filter_map(|container| container["image"].as_str()).map(str::to_owned).collect()
}

fn cells(line: &HistoryLine) -> [String; 5] {
    let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let (state, images) = (or_none(line.state.join(", ")), or_none(line.images.join(", ")));
    [line.revision.to_string(), line.hash.clone(), age(line.age_seconds), state, images]
}

#[cfg(test)]
mod tests {
    use super::super::revisions::tests::{content, of, stored};
    use super::*;

    #[test]
    fn the_history_shows_which_revision_is_current_and_which_is_to_be() {
        let [one, two, three] = ["envoy:1", "envoy:2", "envoy:3"].map(content);
        let revisions = of([stored(1, &one, Some(1)), stored(2, &two, Some(2)), stored(3, &three, None)]);
        let told = |update: &Content| {
            let lines = lines(&revisions, Some(&update.hash()), Timestamp::now());
            lines.iter().map(|line| [cells(line)[3].clone(), cells(line)[4].clone()].join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(told(&three), ["- envoy:1", "current envoy:2", "update envoy:3"]);
        assert_eq!(told(&two), ["- envoy:1", "current, update envoy:2", "- envoy:3"]);
        let empty = json!({ "template": { "volumes": [{ "name": "v" }] } });
        assert_eq!(images(&serde_json::from_value(empty).unwrap()), [""; 0]);
    }
}
