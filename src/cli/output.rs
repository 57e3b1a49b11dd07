//! How commands that report print: a table for people, a document for machines.

use anyhow::Result;
use clap::ValueEnum;
use comfy_table::{Table, presets};
use serde_json::Value;
use std::fmt::Display;
use std::io::Write;

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For people: the answer first
    #[default]
    Table,
    /// For machines
    Json,
    /// For machines
    Yaml,
}

/// Writes a line to standard error. Where nobody reads it, the work goes on.
pub(super) fn remark(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

impl Output {
    /// Writes the report `document` if it is for machines. False: people are to read it, and nothing was written.
    pub(super) fn is_written(self, document: impl FnOnce() -> Value, out: &mut impl Write) -> Result<bool> {
        match self {
            Output::Table => return Ok(false),
            Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&document())?)?,
            Output::Yaml => write!(out, "{}", serde_saphyr::to_string(&document())?)?,
        }
        Ok(true)
    }
}

/// Writes `rows`, as wide as they are, under `header`.
pub(super) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    out: &mut impl Write,
) -> Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// As kubectl prints ages.
pub(super) fn age(seconds: i64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// How an object is called: `deployments.apps shop/web`.
pub(super) fn place(kind: &str, namespace: &str, name: &str) -> String {
    if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") }
}

/// `1 policy`, `2 policies`.
pub(super) fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}
