//! Logs: JSON in a cluster, text on a terminal, one line per decision.

use clap::ValueEnum;
use std::io::IsTerminal;
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
    let mut levels: Targets = level.parse().map_err(|error| {
        anyhow::anyhow!("--log-level `{level}` is no level such as `info` or `info,kube=debug`: {error}")
    })?;
    // Each failed request is an error there, and again where it is made, with what it was for.
    if !level.contains("kube") {
        levels = levels.with_target("kube_client::client::builder", LevelFilter::OFF);
    }
    let terminal = std::io::stderr().is_terminal();
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(terminal);
    let lines = match (format, terminal) {
        (LogFormat::Json, _) | (LogFormat::Auto, false) => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
        _ => lines.with_target(false).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(levels)).init();
    Ok(())
}
