//! `scpol version`.

use super::output::{Output, Parser};
use anyhow::Result;
use clap::Args;
use serde_json::json;
use std::io::Write;

#[derive(Args, Debug)]
pub(super) struct VersionOptions {
    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = Parser::<0>)]
    output: Output,
}

/// Prints the version of this program. `scpol check` shows the version of the operator.
pub(super) fn run(options: &VersionOptions, out: &mut impl Write) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    options.output.report("Version", || json!({ "version": version }), out, |out| Ok(writeln!(out, "scpol {version}")?))
}
