//! `scpol completions` and `scpol man`: the files that a package installs beside the binary.

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;
use std::io::Write;

#[derive(Args, Debug)]
pub(super) struct CompletionsOptions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(options: &CompletionsOptions, command: &mut Command, out: &mut impl Write) -> Result<()> {
    // The generator panics on a closed pipe, so it writes into memory first.
    let mut script = Vec::new();
    clap_complete::generate(options.shell, command, "scpol", &mut script);
    Ok(out.write_all(&script)?)
}

pub(super) fn man(command: Command, out: &mut impl Write) -> Result<()> {
    Ok(clap_mangen::Man::new(command).render(out)?)
}
