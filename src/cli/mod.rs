//! The command line: one file per command.

mod check;
mod completions;
mod convert;
mod crd;
mod diff;
mod drain;
mod explain;
mod files;
mod inject;
mod installed;
mod lint;
mod live;
mod output;
mod run;
mod status;
mod test;
mod uninject;
mod uninstall;
mod waiting;

use crate::timing::Timing;
use anyhow::Result;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;

/// Sidecars for every workload that needs one, by policy.
#[derive(Parser, Debug)]
#[command(name = "scpol", version, about, max_term_width = 100, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the operator
    Run(run::Options),
    /// Print the CustomResourceDefinition
    Crd(crd::Options),
    /// Inject policies into manifests, as the operator would into the objects
    Inject(inject::Options),
    /// Take out of manifests what policies have added
    Uninject(uninject::Options),
    /// Say of a workload what every policy does with it, and why
    Explain(explain::Options),
    /// Say what is wrong with policies in files, or will surprise
    Lint(lint::Options),
    /// Make policies of the manifests of an old initializer, and of PodPresets
    Convert(convert::Options),
    /// Say which workloads gain, lose or change when policies change
    Diff(diff::Options),
    /// List the objects that wait for an initializer, and clear our entries from them
    Drain(drain::Options),
    /// Say what keeps policies from working in a cluster, and what to do about it
    Check(check::Options),
    /// Say how policies stand, and which workloads one of them has missed
    Status(status::Options),
    /// Take the operator and all that it has registered out of the cluster, in the safe order
    Uninstall(uninstall::Options),
    /// Check cases: policies, a workload, and what is expected of them
    Test(test::Options),
    /// Print a completion script for a shell
    Completions(completions::Options),
    /// Print the manual page
    Man,
}

/// Which cluster: as for kubectl.
#[derive(Args, Debug, Clone)]
struct Cluster {
    /// Kubeconfig to use [default: KUBECONFIG, else ~/.kube/config, else the pod's service account]
    #[arg(long, value_name = "FILE", env = "SCPOL_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use [default: its current context]
    #[arg(long, value_name = "NAME", env = "SCPOL_CONTEXT")]
    context: Option<String>,
}

/// How long a command waits; hidden, because it is for tests.
#[derive(Args, Debug, Clone, Copy)]
struct Waiting {
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

impl Waiting {
    fn timing(self) -> &'static Timing {
        match self.timing {
            Timings::Documented => Timing::documented(),
            Timings::Short => Timing::short(),
        }
    }
}

/// How a command that ran has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Exit code 0.
    Fine,
    /// Exit code 1: something to look at.
    Finding,
}

/// Runs the command that was typed.
pub fn main() -> ExitCode {
    let program = std::env::args_os().next().map(PathBuf::from);
    let as_plugin = program.as_deref().and_then(|path| path.file_name()).is_some_and(|name| name == "kubectl-scpol");
    let command = if as_plugin { Cli::command().bin_name("kubectl scpol") } else { Cli::command() };
    let cli =
        match command.try_get_matches().and_then(|matches| <Cli as clap::FromArgMatches>::from_arg_matches(&matches)) {
            Ok(cli) => cli,
            Err(error) => {
                // Nothing can be done if even this cannot be printed.
                let _ = error.print();
                return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
            }
        };
    match dispatch(cli) {
        Ok(End::Fine) => ExitCode::SUCCESS,
        Ok(End::Finding) => ExitCode::from(1),
        // The reader of our output has gone, as in `scpol crd | head`. Nothing more is said, and what a shell says of others that end
        // so (128 and the number of SIGPIPE): whoever asks shall not take it for "nothing found".
        Err(error) if is_broken_pipe(&error) => ExitCode::from(141),
        Err(error) => {
            output::remark(format_args!("error: {error:#}"));
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
        Command::Uninstall(options) => block_on(|| uninstall::run(options, &mut out)),
        Command::Test(options) => test::run(&options, &mut out),
        Command::Completions(options) => completions::run(&options, &mut Cli::command(), &mut out).map(|()| End::Fine),
        Command::Man => completions::man(Cli::command(), &mut out).map(|()| End::Fine),
    }
}

/// One thread: the work is waiting for the API server, and a second thread would cost memory and hand-overs. What is large about
/// a command begins in here, or `dispatch` would have room for every command on its stack.
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
        Cli::command().debug_assert();
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
