//! The command line: one file per command.

mod check;
mod cluster;
mod completions;
mod convert;
mod crd;
mod diff;
mod drain;
mod explain;
mod facts;
mod files;
mod inject;
mod installed;
mod lint;
mod live;
mod output;
mod policies;
mod rollout;
mod run;
mod signals;
mod site;
mod status;
mod test;
mod uninject;
mod uninstall;
mod version;
mod waiting;

use self::cluster::{Cluster, Kubeconfig};
use crate::cluster::client::chain;
use crate::timing::Timing;
use anyhow::Result;
use clap::{Args, ColorChoice, CommandFactory, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;

/// Sidecars for every workload that needs one, by policy.
#[derive(Parser, Debug)]
#[command(name = "scpol", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// When output has colours [default: on a terminal, without NO_COLOR]
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        env = "SCPOL_COLOR",
        default_value = "auto",
        hide_default_value = true
    )]
    color: ColorChoice,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the operator
    Run(run::RunOptions),
    /// Print the CustomResourceDefinition
    Crd(crd::CrdOptions),
    /// Inject policies into manifests, as the operator would into the objects
    Inject(inject::InjectOptions),
    /// Take out of manifests what policies have added
    Uninject(uninject::UninjectOptions),
    /// Say of a workload what every policy does with it, and why
    Explain(explain::ExplainOptions),
    /// Say what is wrong with policies in files, or will surprise
    Lint(lint::LintOptions),
    /// Make policies of the manifests of an old initializer, and of PodPresets
    Convert(convert::ConvertOptions),
    /// Say which workloads gain, lose or change when policies change
    Diff(diff::DiffOptions),
    /// List the objects that wait for an initializer, and clear our entries from them
    Drain(drain::DrainOptions),
    /// Say what keeps policies from working in a cluster, and what to do about it
    Check(check::CheckOptions),
    /// Say how policies stand, and which workloads one of them has missed
    Status(status::StatusOptions),
    /// Say how far the rollout of a policy is; undo, pause, resume, restart or plan it
    Rollout(rollout::RolloutOptions),
    /// Take the operator and all that it has registered out of the cluster, in the safe order
    Uninstall(uninstall::UninstallOptions),
    /// Check cases: policies, a workload, and what is expected of them
    Test(test::TestOptions),
    /// Print a completion script for a shell
    Completions(completions::CompletionsOptions),
    /// Print manual pages
    Man(completions::ManOptions),
    /// Print the version of this program
    Version(version::VersionOptions),
}

/// How long a command waits; hidden, because it is for tests.
#[derive(Args, Debug, Clone, Copy)]
struct TimingOption {
    /// Waiting times to use
    #[arg(long, value_name = "NAME", value_enum, env = "SCPOL_TIMING", default_value_t, hide = true)]
    timing: Timings,
}

/// See [`Timing`].
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Timings {
    #[default]
    Documented,
    Short,
}

impl TimingOption {
    fn timing(self) -> &'static Timing {
        match self.timing {
            Timings::Documented => Timing::documented(),
            Timings::Short => Timing::short(),
        }
    }
}

/// The commands in the groups of `scpol help`.
const GROUPS: [(&str, &[&str]); 5] = [
    ("On files", &["inject", "uninject", "lint", "test", "convert"]),
    ("On files or a cluster", &["explain", "diff"]),
    ("On a cluster", &["check", "status", "rollout", "drain", "uninstall"]),
    ("Operator", &["run", "crd"]),
    ("Other", &["completions", "man", "version", "help"]),
];

/// The help of `help`, which clap adds when it parses.
const HELP: &str = "Print this message or the help of a command";

/// The whole command line. Its help lists the commands in groups, as kubectl's does.
fn command() -> clap::Command {
    let command = Cli::command();
    let header = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let mut groups = String::new();
    for (title, names) in GROUPS {
        groups.push_str(&format!("{header}{title}:{header:#}\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map_or(HELP.to_owned(), ToString::to_string);
            groups.push_str(&format!("  {literal}{name:<11}{literal:#}  {about}\n"));
        }
        groups.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

/// The result of a command that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Exit code 0.
    Fine,
    /// Exit code 1: the user should look at the output.
    Finding,
}

impl End {
    fn fine_if(is_fine: bool) -> Self {
        if is_fine { Self::Fine } else { Self::Finding }
    }
}

/// Runs the command from the command line.
pub fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let program = words.next().map(PathBuf::from);
    let name = program.as_deref().and_then(|path| path.file_name()).and_then(|name| name.to_str()).unwrap_or_default();
    if name == completions::KUBECTL_COMPLETE {
        return code_of(
            completions::complete_for_kubectl(command(), words, &mut std::io::stdout().lock()).map(|()| End::Fine),
        );
    }
    let command = if name == "kubectl-scpol" { command().bin_name("kubectl scpol") } else { command() };
    let cli =
        match command.try_get_matches().and_then(|matches| <Cli as clap::FromArgMatches>::from_arg_matches(&matches)) {
            Ok(cli) => cli,
            Err(error) => {
                // A failure to print this error is ignored, because there is no other way to report it.
                let _ = error.print();
                return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
            }
        };
    match cli.color {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
    code_of(dispatch(cli))
}

/// The exit code for `result`. Prints an error.
fn code_of(result: Result<End>) -> ExitCode {
    match result {
        Ok(End::Fine) => ExitCode::SUCCESS,
        Ok(End::Finding) => ExitCode::from(1),
        // The reader of our output has gone, as in `scpol crd | head`. We print nothing more and use the exit code of a
        // process that SIGPIPE ends (128 plus the signal number). The caller must not take it for "nothing found".
        Err(error) if is_broken_pipe(&error) => ExitCode::from(141),
        Err(error) => {
            output::remark(format_args!("error: {}", chain(&*error)));
            ExitCode::from(2)
        }
    }
}

fn dispatch(cli: Cli) -> Result<End> {
    let mut out = std::io::stdout().lock();
    match cli.command {
        Command::Run(options) => {
            drop(out);
            block_on(|| run::run(options))
        }
        Command::Crd(options) => crd::run(&options, &mut out).map(|()| End::Fine),
        Command::Inject(options) => inject::run(&options, &mut out),
        Command::Uninject(options) => uninject::run(&options, &mut out),
        Command::Explain(options) => block_on(|| explain::run(options, &mut out)),
        Command::Lint(options) => lint::run(&options, &mut out),
        Command::Convert(options) => convert::run(&options, &mut out),
        Command::Diff(options) => block_on(|| diff::run(options, &mut out)),
        Command::Drain(options) => block_on(|| drain::run(options, &mut out)),
        Command::Check(options) => block_on(|| check::run(options, &mut out)),
        Command::Status(options) => block_on(|| status::run(options, &mut out)),
        Command::Rollout(options) => block_on(|| rollout::run(options, &mut out)),
        Command::Uninstall(options) => block_on(|| uninstall::run(options, &mut out)),
        Command::Test(options) => test::run(&options, &mut out),
        Command::Completions(options) => completions::run(&options, &mut command(), &mut out).map(|()| End::Fine),
        Command::Man(options) => completions::man(&options, command(), &mut out).map(|()| End::Fine),
        Command::Version(options) => version::run(&options, &mut out).map(|()| End::Fine),
    }
}

/// Runs `work` on one thread, because it mostly waits for the API server, and a second thread would cost memory and
/// hand-overs. `work` is created here, because otherwise the stack frame of `dispatch` would hold the state of every
/// command.
#[inline(never)]
fn block_on<T, W: Future<Output = Result<T>>>(work: impl FnOnce() -> W) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let command = command();
        let mut names: Vec<_> = command.get_subcommands().map(clap::Command::get_name).chain(["help"]).collect();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        names.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, names);
    }

    #[test]
    fn every_flag_of_run_has_help_and_an_environment_variable() {
        let command = Cli::command();
        let run = command.find_subcommand("run").expect("there is `run`");
        for flag in run.get_arguments().filter(|flag| !matches!(flag.get_id().as_str(), "help" | "version")) {
            let name = flag.get_long().expect("a long name");
            assert!(flag.get_help().is_some(), "--{name} has no help");
            let variable = format!("SCPOL_{}", name.replace('-', "_").to_uppercase());
            assert_eq!(flag.get_env().and_then(|env| env.to_str()), Some(variable.as_str()), "--{name}");
        }
    }

    #[test]
    fn the_timing_for_tests_is_hidden_and_takes_two_values() {
        for command in ["run", "uninstall"] {
            let mut all = Cli::command();
            let help = all.find_subcommand_mut(command).expect("a command").render_long_help().to_string();
            assert!(!help.contains("SCPOL_TIMING"), "{help}");
            let error = all.try_get_matches_from(["scpol", command, "--timing=quick"]).expect_err("no such timing");
            let error = error.to_string();
            assert!(error.contains("'quick'") && error.contains("documented, short"), "{error}");
        }
    }
}
