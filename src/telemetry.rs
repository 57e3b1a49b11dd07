//! Logs: JSON in a cluster, text on a terminal, one line per decision.

use crate::api::code::Code;
use crate::decision::Outcome;
use crate::workload::Workload;
use clap::ValueEnum;
use std::io::IsTerminal;
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
    let mut levels: Targets = level.parse().map_err(|error| {
        anyhow::anyhow!("--log-level `{level}` is no level such as `info` or `info,kube=debug`: {error}")
    })?;
    // Off, because kube logs each failed request there as an error, and the caller logs it again with its purpose.
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
