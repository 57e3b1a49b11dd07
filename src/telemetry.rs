//! Logs: JSON in a cluster, text on a terminal, one line per decision.

use crate::api::code::Code;
use crate::decision::Outcome;
use crate::workload::Workload;
use clap::ValueEnum;
use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// The shape of a log line.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One JSON object per line.
    Json,
    /// Text for people.
    Text,
}

/// Starts logging to standard error. `level` is a level or a list by module, for example `info` or `info,kube=debug`.
///
/// # Errors
/// If `level` cannot be parsed.
pub fn start(format: LogFormat, level: &str) -> anyhow::Result<()> {
    let levels = levels(level)?;
    let terminal = std::io::stderr().is_terminal();
    // `choice` knows `--color` and NO_COLOR.
    let has_colors = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(has_colors);
    let lines = match (format, terminal) {
        (LogFormat::Json, _) | (LogFormat::Auto, false) => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
        _ => lines.with_target(false).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(levels)).init();
    Ok(())
}

/// The libraries of the client, with the level of their messages. Those of kube are off, because it logs each failed
/// request, and our caller logs it again with its purpose.
const LIBRARIES: [(&str, LevelFilter); 6] = [
    ("kube_client", LevelFilter::OFF),
    ("kube_runtime", LevelFilter::OFF),
    ("hyper", LevelFilter::WARN),
    ("tower", LevelFilter::WARN),
    ("rustls", LevelFilter::WARN),
    ("h2", LevelFilter::WARN),
];

/// The levels of `level`, with those of [`LIBRARIES`] for the libraries that it does not name.
fn levels(level: &str) -> anyhow::Result<Targets> {
    let unreadable =
        |why: &str| anyhow::anyhow!("--log-level `{level}` is no level such as `info` or `info,kube=debug`: {why}");
    let given: Targets = level.parse().map_err(|error| unreadable(&format!("{error}")))?;
    // A word alone would be a library with all levels.
    let is_library = |part: &&str| !part.contains('=') && part.trim().parse::<LevelFilter>().is_err();
    if let Some(part) = level.split(',').find(is_library) {
        return Err(unreadable(&format!("`{part}` is none of error, warn, info, debug, trace, off")));
    }
    let names = |library: &str| given.iter().any(|(target, _)| library.starts_with(target));
    let default = given.default_level().unwrap_or(LevelFilter::OFF);
    let quiet = LIBRARIES.into_iter().filter(|(library, _)| !names(library));
    Ok(given.clone().with_targets(quiet.map(|(library, level)| (library, level.min(default)))))
}

/// The time after which a repeated message is logged again.
const REMINDER: Duration = Duration::from_secs(60);

/// Tells which messages of one task are new, so that a failure that lasts is one line a minute.
#[derive(Default)]
pub(crate) struct Repeats {
    /// The messages of the last minute.
    logged: HashMap<String, Instant>,
}

impl Repeats {
    /// Whether to log `message`: it was not logged within the last minute. A failure that has two messages in turn is no news.
    pub(crate) fn is_news(&mut self, message: &str) -> bool {
        self.logged.retain(|_, at| at.elapsed() < REMINDER);
        let is_news = !self.logged.contains_key(message);
        if is_news {
            self.logged.insert(message.to_owned(), Instant::now());
        }
        is_news
    }
}

/// Logs the outcome of `policy` for `workload`. A workload without a name appears by its `generateName`.
pub(crate) fn decided(workload: &Workload, policy: &str, outcome: Outcome, code: Code, detail: &str) {
    let (resource, namespace, result) = (&workload.kind.resource, workload.namespace(), outcome.label());
    let name = Some(workload.name()).filter(|name| !name.is_empty());
    let name = name.or_else(|| workload.body["metadata"]["generateName"].as_str()).unwrap_or_default();
    match outcome {
        Outcome::Failed | Outcome::Rejected => {
            warn!(policy, resource, namespace, name, result, %code, reason = code.name(), detail, "Decided");
        }
        Outcome::Injected => {
            info!(policy, resource, namespace, name, result, %code, reason = code.name(), detail, "Decided");
        }
        // Debug, because most policies skip most workloads: with hundreds of policies a create would log hundreds of lines.
        Outcome::Skipped => {
            debug!(policy, resource, namespace, name, result, %code, reason = code.name(), detail, "Decided");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn libraries_are_quiet_unless_they_are_named() {
        for (level, target, logged, silent) in [
            ("info", "sidecar_policy::cli", Some(Level::INFO), Some(Level::DEBUG)),
            ("info", "kube_client::client::builder", None, Some(Level::ERROR)),
            ("debug", "kube_runtime::watcher", None, Some(Level::ERROR)),
            ("debug", "hyper_util::client", Some(Level::WARN), Some(Level::INFO)),
            ("error", "rustls", Some(Level::ERROR), Some(Level::WARN)),
            ("info,kube=debug", "kube_client::client", Some(Level::DEBUG), Some(Level::TRACE)),
            ("info,kube=debug", "hyper::proto", Some(Level::WARN), Some(Level::INFO)),
            ("info,hyper_util=trace", "hyper_util::client", Some(Level::TRACE), None),
        ] {
            let levels = levels(level).expect("levels");
            for (logs, expected) in [(logged, true), (silent, false)] {
                let is_logged = logs.map(|logs| levels.would_enable(target, &logs));
                assert!(is_logged.is_none_or(|is_logged| is_logged == expected), "{level} {target} {logs:?}");
            }
        }
        assert!(levels("loud").is_err() && levels("info,kube=loud").is_err());
    }

    #[test]
    fn a_message_that_repeats_is_logged_once() {
        let mut repeats = Repeats::default();
        let news = ["a", "a", "b", "a"].map(|message| repeats.is_news(message));
        assert_eq!(news, [true, false, true, false]);
        let earlier = Instant::now().checked_sub(REMINDER).expect("the clock runs for a minute");
        repeats.logged.insert("a".to_owned(), earlier);
        assert!(repeats.is_news("a") && !repeats.is_news("b"));
    }
}
