//! `scpol status --watch`: the state of policies, and each change of it, until the command is interrupted.

use super::{OVERVIEW, StatusOptions, Summary, WIDE, full_name, narrow, summary};
use crate::cli::End;
use crate::cli::output::{Items, Output, Printing, Screen, remark};
use crate::cluster::api::Api;
use crate::cluster::client::why;
use crate::cluster::object::Object;
use crate::cluster::policies;
use crate::cluster::watch::cache::WatchCache;
use crate::cluster::watch::watched;
use crate::outside::escaped;
use crate::timing::Timing;
use anyhow::Result;
use futures::{StreamExt, pin_mut};
use kube::Client;
use kube::runtime::watcher::{self, Event};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;

/// Erases the line on a terminal, and goes to its beginning.
const ERASE: &str = "\r\u{1b}[2K";

pub(super) async fn run(client: &Client, options: &StatusOptions, out: &mut impl Write) -> Result<End> {
    let api = Api::<Object>::all_with(client.clone(), &policies::resource());
    let settings = match &options.policy {
        Some(name) => watcher::Config::default().fields(&format!("metadata.name={name}")),
        None => watcher::Config::default(),
    };
    let events = watched(&api, &settings, &Timing::documented().watch);
    pin_mut!(events);
    let (mut mirror, mut shown, mut trouble) = (WatchCache::default(), Shown::default(), String::new());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                trouble.clear();
                mirror.apply(&event, |object, _| summary(object));
                if !matches!(event, Event::Init | Event::InitApply(_)) {
                    shown.update(mirror.known(), options, out)?;
                    out.flush()?;
                }
            }
            // A watch is repeated for ever, and its errors are too.
            Err(error) => {
                let reason = why(&error);
                if reason != trouble {
                    remark(format_args!("warning: cannot watch the policies: {reason}; trying again"));
                    trouble = reason;
                }
            }
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
    printing: &Printing<Items>,
    out: &mut impl Write,
) -> Result<()> {
    let cells = all.iter().map(Summary::cells);
    if printing.output == Output::Wide {
        return printing.rows(WIDE, &cells.collect::<Vec<_>>(), is_headed, |row| news[row], out);
    }
    let cells: Vec<[String; 10]> = cells.map(narrow).collect();
    printing.rows(narrow::<10, _>(WIDE), &cells, is_headed, |row| news[row], out)
}

/// `envoy: 12 of 40 injected, 2 missed`.
fn progress(policy: &Summary) -> String {
    if policy.ready == "Deleted" {
        return format!("{}: deleted", policy.name);
    }
    let mut text = format!("{}: {} of {} injected", policy.name, policy.injected, policy.matched);
    for (number, word) in [(policy.outdated, "outdated"), (policy.missed, "missed"), (policy.pending, "pending")] {
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

/// Writes the line `text`. On a terminal of this `width` it replaces the line before.
pub(in crate::cli) fn write_progress(text: &str, width: Option<u16>, out: &mut impl Write) -> Result<()> {
    let text = escaped(text);
    match width {
        None => writeln!(out, "{text}")?,
        // A longer line would go on in the next line, which is not erased.
        Some(width) => write!(out, "{ERASE}{}", text.chars().take(usize::from(width) - 1).collect::<String>())?,
    }
    Ok(())
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
            failed: 0,
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

    #[test]
    fn progress_is_one_line_that_changes_on_a_terminal_and_many_lines_elsewhere() {
        let written = |width| {
            let mut out = Vec::new();
            for text in ["one of many", "two"] {
                write_progress(text, width, &mut out).expect("it is memory");
            }
            String::from_utf8(out).expect("text")
        };
        assert_eq!(written(None), "one of many\ntwo\n");
        assert_eq!(written(Some(8)), "\r\u{1b}[2Kone of \r\u{1b}[2Ktwo");
    }
}
