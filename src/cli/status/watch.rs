//! `scpol status --watch`: the state of policies, and each change of it, until the command is interrupted.

use super::{HEADER, OVERVIEW, StatusOptions, Summary, narrow, summary};
use crate::cli::End;
use crate::cli::output::{NAME, Output, Printing, Screen, WIDE, write_progress};
use crate::cli::policies::{full_name, watched};
use crate::cluster::watch::cache::WatchCache;
use anyhow::Result;
use futures::{StreamExt, pin_mut};
use kube::Client;
use kube::runtime::watcher::Event;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;

pub(super) async fn run(client: &Client, options: &StatusOptions, out: &mut impl Write) -> Result<End> {
    let (mut mirror, mut shown) = (WatchCache::default(), Shown::default());
    let events = watched(client, options.policy.as_deref(), "the policies");
    pin_mut!(events);
    while let Some(event) = events.next().await {
        mirror.apply(&event, |object, _| summary(object));
        if !matches!(event, Event::Init | Event::InitApply(_)) {
            shown.update(mirror.known(), options, out)?;
            out.flush()?;
        }
    }
    Ok(End::Fine)
}

/// What has been printed.
#[derive(Default)]
struct Shown {
    /// The policies, with an age of zero.
    policies: BTreeMap<String, Summary>,
    has_header: bool,
}

impl Shown {
    /// Prints the policies of `known` that differ from what has been printed, and those that are gone.
    fn update(
        &mut self,
        known: &BTreeMap<String, Summary>,
        options: &StatusOptions,
        out: &mut impl Write,
    ) -> Result<()> {
        let gone = self.policies.values().filter(|policy| !known.contains_key(&policy.name)).cloned();
        let gone: Vec<_> = gone.map(|policy| Summary { ready: "Deleted".to_owned(), ..policy }).collect();
        let all: Vec<_> = known.values().chain(&gone).cloned().collect();
        let is_news = |policy: &Summary| self.policies.get(&policy.name) != Some(&ageless(policy));
        let news: Vec<bool> = all.iter().map(is_news).collect();
        if news.contains(&true) {
            self.print(&all, &news, options, out)?;
        }
        self.policies = known.iter().map(|(name, policy)| (name.clone(), ageless(policy))).collect();
        Ok(())
    }

    /// Prints those of `all` that are `news`.
    fn print(&mut self, all: &[Summary], news: &[bool], options: &StatusOptions, out: &mut impl Write) -> Result<()> {
        let printing = &options.printing;
        let changed: Vec<_> =
            all.iter().zip(news).filter(|(_, is_news)| **is_news).map(|(one, _)| one.clone()).collect();
        if printing.output.is_written(OVERVIEW, || json!({ "items": changed }), out)? {
            return Ok(());
        }
        if printing.output == Output::Name {
            return changed.iter().try_for_each(|policy| Ok(writeln!(out, "{}", full_name(&policy.name))?));
        }
        if options.policy.is_some() && printing.output == Output::Table {
            return changed
                .iter()
                .try_for_each(|policy| write_progress(&progress(policy), Screen::stdout().width, out));
        }
        rows(all, news, !std::mem::replace(&mut self.has_header, true), printing, out)
    }
}

fn ageless(policy: &Summary) -> Summary {
    Summary { age_seconds: 0, ..policy.clone() }
}

fn rows(
    all: &[Summary],
    news: &[bool],
    is_headed: bool,
    printing: &Printing<{ WIDE | NAME }>,
    out: &mut impl Write,
) -> Result<()> {
    let cells = all.iter().map(Summary::cells);
    if printing.output == Output::Wide {
        return printing.rows(HEADER, &cells.collect::<Vec<_>>(), is_headed, |row| news[row], out);
    }
    let cells: Vec<[String; 10]> = cells.map(narrow).collect();
    printing.rows(narrow::<10, _>(HEADER), &cells, is_headed, |row| news[row], out)
}

/// `envoy: 12 of 40 injected, 2 missed`.
fn progress(policy: &Summary) -> String {
    if policy.ready == "Deleted" {
        return format!("{}: deleted", policy.name);
    }
    let mut text = format!("{}: {} of {} injected", policy.name, policy.injected, policy.matched);
    let numbers = [
        (policy.wide.edited, "edited"),
        (policy.outdated, "outdated"),
        (policy.missed, "missed"),
        (policy.pending, "pending"),
    ];
    for (number, word) in numbers {
        if number > 0 {
            text.push_str(&format!(", {number} {word}"));
        }
    }
    if policy.ready != "True" {
        let reason = if policy.reason.is_empty() { &policy.message } else { &policy.reason };
        text.push_str(&format!("; not ready: {reason}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(ready: &str, injected: i64, missed: i64) -> Summary {
        Summary {
            name: "envoy".to_owned(),
            ready: ready.to_owned(),
            reason: "EngineMissing".to_owned(),
            message: String::new(),
            engine: String::new(),
            matched: 40,
            injected,
            outdated: 0,
            missed,
            wide: super::super::WideCounts::default(),
            pending: 0,
            age_seconds: 0,
        }
    }

    #[test]
    fn progress_tells_the_numbers_and_what_is_wrong() {
        assert_eq!(progress(&policy("True", 12, 0)), "envoy: 12 of 40 injected");
        let told = progress(&policy("False", 12, 2));
        assert_eq!(told, "envoy: 12 of 40 injected, 2 missed; not ready: EngineMissing");
        assert_eq!(progress(&policy("Deleted", 12, 0)), "envoy: deleted");
    }
}
