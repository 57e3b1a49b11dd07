//! The output of commands that report: a table for people, a document for machines.

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

/// Writes a line to standard error. A failed write is ignored.
pub(super) fn remark(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

impl Output {
    /// Writes the report `document` if the format is for machines. Returns false for a table, without writing.
    pub(super) fn is_written(self, document: impl FnOnce() -> Value, out: &mut impl Write) -> Result<bool> {
        match self {
            Output::Table => return Ok(false),
            Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&document())?)?,
            Output::Yaml => write!(out, "{}", serde_saphyr::to_string(&document())?)?,
        }
        Ok(true)
    }
}

/// Writes `rows` under `header`, each column as wide as its content.
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

/// An age in kubectl's format.
pub(super) fn age(seconds: i64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The name of an object in output: `deployments.apps shop/web`.
pub(super) fn place(kind: &str, namespace: &str, name: &str) -> String {
    if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") }
}

/// `1 policy`, `2 policies`.
pub(super) fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}
