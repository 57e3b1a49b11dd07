//! `scpol completions` and `scpol man`: the files that a package installs beside the binary. Also the completion of
//! `kubectl scpol`, for which kubectl calls this program by another name.

use super::help;
use anyhow::{Context, Result, bail};
use clap::{Args, Command};
use clap_complete::{Shell, engine};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

/// The name under which kubectl asks a plugin for completions.
pub(super) const KUBECTL_COMPLETE: &str = "kubectl_complete-scpol";

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

/// What the shell does with candidates, as bits of cobra's `ShellCompDirective`.
#[derive(Clone, Copy)]
enum Directive {
    NoFiles = 4,
    /// Also: no space after the only candidate, because it is not whole.
    NoFilesNoSpace = 6,
}

/// Answers kubectl, which passes the words behind `kubectl scpol`, in the format of cobra: a line for each candidate for the
/// last word, then the directive.
pub(super) fn complete_for_kubectl(
    mut command: Command,
    words: impl Iterator<Item = OsString>,
    out: &mut impl Write,
) -> Result<()> {
    let mut typed: Vec<_> = std::iter::once("scpol".into()).chain(words).collect();
    if typed.len() == 1 {
        typed.push(OsString::new());
    }
    let last = typed.len() - 1;
    let folder = std::env::current_dir().ok();
    let found = engine::complete(&mut command, typed, last, folder.as_deref())?;
    let shown: Vec<_> = found.iter().filter(|candidate| !candidate.is_hide_set()).collect();
    for candidate in &shown {
        write!(out, "{}", candidate.get_value().to_string_lossy())?;
        // A second line would count as another candidate.
        let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        match help.lines().next() {
            Some(line) => writeln!(out, "\t{line}")?,
            None => writeln!(out)?,
        }
    }
    let is_part = shown.iter().any(|candidate| candidate.get_value().to_string_lossy().ends_with(['/', '=']));
    let directive = if is_part { Directive::NoFilesNoSpace } else { Directive::NoFiles };
    Ok(writeln!(out, ":{}", directive as u8)?)
}

#[derive(Args, Debug)]
pub(super) struct ManOptions {
    /// The command whose page is printed, such as lint or rollout status [default: the page of scpol itself]
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Write the page of every command into this folder instead: scpol.1, scpol-inject.1 and so on
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    folder: Option<PathBuf>,
}

pub(super) fn man(options: &ManOptions, command: Command, out: &mut impl Write) -> Result<()> {
    // The pages refer to a page for each subcommand, and `help` has none.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    if let Some(folder) = &options.folder {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        for command in pages_of(&command) {
            let path = folder.join(format!("{}.1", page_name(command)));
            let written = page(command).and_then(|page| std::fs::write(path, page));
            written.with_context(|| format!("cannot write the pages into {}", folder.display()))?;
        }
        return Ok(());
    }
    let name = options.command.join("-");
    let shown = match name.as_str() {
        "" => &command,
        name => match pages_of(&command).into_iter().find(|page| page_name(page) == format!("scpol-{name}")) {
            Some(found) => found,
            None => bail!("there is no command `{}`; `scpol help` lists them", options.command.join(" ")),
        },
    };
    Ok(out.write_all(&page(shown)?)?)
}

/// `command` and all subcommands, with those of subcommands, that have a page.
fn pages_of(command: &Command) -> Vec<&Command> {
    let shown = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    [command].into_iter().chain(shown.flat_map(pages_of)).collect()
}

/// The name of the page, such as `scpol-rollout-status`.
fn page_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// The page of `command`, with the sections that pages of commands have beside those of clap.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let name = page_name(command);
    let words = name.strip_prefix("scpol").unwrap_or(name).replace('-', " ");
    let mut page = Vec::new();
    // The texts behind the help become sections.
    let plain = command.clone().after_help(None::<&str>).after_long_help(None::<&str>).before_long_help(None::<&str>);
    Man::new(plain).source(concat!("scpol ", env!("CARGO_PKG_VERSION"))).manual("sidecar-policy").render(&mut page)?;
    let mut more = Roff::default();
    more.control("SH", ["EXAMPLES"]);
    for (what, example) in help::examples(words.trim_start()) {
        if !what.is_empty() {
            more.control("PP", []).text([roman(*what)]);
        }
        more.control("PP", []).text([bold(format!("    {example}"))]);
    }
    more.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in help::exit_codes(words.trim_start()) {
        more.control("TP", []).text([bold(code.to_string())]).text([roman(meaning)]);
    }
    more.control("SH", ["ENVIRONMENT"]);
    for (variable, meaning) in help::VARIABLES {
        more.control("TP", []).text([bold(*variable)]).text([roman(*meaning)]);
    }
    more.to_writer(&mut page)?;
    Ok(page)
}
