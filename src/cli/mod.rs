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
mod help;
mod ignored;
mod inject;
mod installed;
mod lint;
mod live;
mod output;
mod parameters;
mod policies;
mod rollout;
mod run;
mod signals;
mod site;
mod status;
mod support;
mod test;
mod uninject;
mod uninstall;
mod version;
mod waiting;
mod words;

use self::cluster::{Cluster, Kubeconfig};
use crate::cluster::client::chain;
use crate::timing::Timing;
use anyhow::Result;
use clap::{Args, ColorChoice, CommandFactory, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Add sidecars to Kubernetes workloads, by policy.
#[derive(Parser, Debug)]
#[command(name = "scpol", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// When output has colours [default: on a terminal, unless NO_COLOR is set]
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
    /// Print the CRD
    Crd(crd::CrdOptions),
    /// Inject policies into manifests, as the operator does into objects
    Inject(inject::InjectOptions),
    /// Remove from manifests what policies have added
    Uninject(uninject::UninjectOptions),
    /// Show what each policy does with a workload, and why
    Explain(explain::ExplainOptions),
    /// Find faults and surprises in policy files
    Lint(lint::LintOptions),
    /// Convert old initializers, PodPresets, and annotations of other injectors to policies
    Convert(convert::ConvertOptions),
    /// Show which workloads gain, lose or change when policies change
    Diff(diff::DiffOptions),
    /// List what the authors of workloads may set in the content of policies
    Parameters(parameters::ParametersOptions),
    /// List the objects that wait for an initializer, and release those that wait for ours
    Drain(drain::DrainOptions),
    /// Find what keeps policies from working in a cluster, and suggest fixes
    Check(check::CheckOptions),
    /// Show the state of policies, and the workloads without their sidecar
    Status(status::StatusOptions),
    /// Show how far the rollout of a policy is; undo, pause, resume, restart, plan or remove it
    Rollout(rollout::RolloutOptions),
    /// Write an archive for a bug report, without secrets
    Support(support::SupportOptions),
    /// Remove the operator and all its registrations from the cluster, in a safe order
    Uninstall(uninstall::UninstallOptions),
    /// Run test cases: policies, a workload, and the expected result
    Test(test::TestOptions),
    /// Print a completion script for a shell
    #[command(visible_alias = "completion")]
    Completions(completions::CompletionsOptions),
    /// Print manual pages
    Man(completions::ManOptions),
    /// Print the version of this program, and that of the API server
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
    ("On files or a cluster", &["explain", "diff", "parameters"]),
    ("On a cluster", &["check", "status", "rollout", "support", "drain", "uninstall"]),
    ("Operator", &["run", "crd"]),
    ("Other", &["completions", "man", "version", "help"]),
];

/// The whole command line. Its help lists the commands in groups, as kubectl's does.
fn command() -> clap::Command {
    let command = help::with_help(Cli::command());
    let (groups, header) = (help::groups(&command), command.get_styles().get_header().to_owned());
    let options = format!("{header}Options:{header:#}\n{{options}}{{after-help}}");
    command.help_template(format!(
        "{{about-with-newline}}\n{{before-help}}{{usage-heading}} {{usage}}\n\n{groups}{options}"
    ))
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
    let words = words::with_flags_behind(&words.collect::<Vec<_>>(), &command);
    let matches = command.try_get_matches_from(program.map(OsString::from).into_iter().chain(words));
    let cli = match matches.and_then(|matches| <Cli as clap::FromArgMatches>::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            let error = words::advised(error);
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
        Command::Parameters(options) => block_on(|| parameters::run(options, &mut out)),
        Command::Drain(options) => block_on(|| drain::run(options, &mut out)),
        Command::Check(options) => block_on(|| check::run(options, &mut out)),
        Command::Status(options) => block_on(|| status::run(options, &mut out)),
        Command::Rollout(options) => block_on(|| rollout::run(options, &mut out)),
        Command::Support(options) => block_on(|| support::run(options, &mut out)),
        Command::Uninstall(options) => block_on(|| uninstall::run(options, &mut out)),
        Command::Test(options) => test::run(&options, &mut out),
        Command::Completions(options) => completions::run(&options, &mut command(), &mut out).map(|()| End::Fine),
        Command::Man(options) => completions::man(&options, command(), &mut out).map(|()| End::Fine),
        Command::Version(options) => block_on(|| version::run(options, &mut out)),
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

    /// Every command with its words behind `scpol`.
    fn all(command: &clap::Command, words: &str) -> Vec<(String, clap::Command)> {
        let below = command.get_subcommands().flat_map(|below| {
            let words = format!("{words} {}", below.get_name());
            all(below, words.trim_start())
        });
        std::iter::once((words.to_owned(), command.clone())).chain(below).collect()
    }

    #[test]
    fn the_help_of_every_command_begins_with_examples_and_ends_with_exit_codes() {
        for (words, mut command) in all(&command(), "") {
            let examples = help::examples(&words);
            assert!(!examples.is_empty(), "`{words}` has no example");
            let long = command.render_long_help().to_string();
            let at = |text: &str| long.find(text).unwrap_or_else(|| panic!("`{words}`: no {text} in {long}"));
            assert!(at("\nExamples:\n") < at("Usage:") && at("Usage:") < at("\nExit codes:\n"), "{long}");
            assert!(!long[at("\nExit codes:\n") + 1..].contains("\n\n"), "{words}: {long}");
            let short = command.render_help().to_string();
            let hidden = ["Examples:", "Cluster, as for kubectl:", "Operator, as for scpol run:"];
            assert!(hidden.iter().all(|text| !short.contains(text)) && short.contains("--help` has"), "{short}");
            assert!(short.lines().count() <= 60 || words == "run", "{words}: {short}");
            assert!(examples.iter().all(|(_, example)| example.len() <= 96), "{words}: lines do not wrap");
        }
    }

    #[test]
    fn every_example_is_a_command_of_its_command() {
        for (words, _) in all(&command(), "") {
            for (what, example) in help::examples(&words) {
                let example = example.replace("source <(", "").replace(')', "");
                let parts = example.split('|').map(|part| part.split(" > ").next().unwrap_or_default().trim());
                let ours: Vec<_> = parts.filter_map(|part| part.strip_prefix("scpol")).collect();
                assert!(!ours.is_empty() && ours[0].trim_start().starts_with(&words), "{example}");
                for line in ours {
                    let line: Vec<_> = line.split_whitespace().map(OsString::from).collect();
                    let line = [vec!["scpol".into()], words::with_flags_behind(&line, &command())].concat();
                    let parsed = command().try_get_matches_from(line);
                    assert!(parsed.is_ok(), "{what}: {example}: {}", parsed.unwrap_err());
                }
            }
        }
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
