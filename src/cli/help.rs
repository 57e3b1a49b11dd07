//! The examples, the exit codes and the variables of each command, for `--help` and the manual pages.

use super::GROUPS;
use clap::Command;
use clap::builder::{StyledStr, Styles};
use std::fmt::Write;

/// An example: what it is for, and the command.
type Example = (&'static str, &'static str);

/// The examples of a command, by its words behind `scpol`. Files and folders in them are those of `docs/examples`.
const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "",
        &[
            ("Check a policy, and try it on a manifest", "scpol lint policies"),
            ("", "scpol inject web.yaml -p policies --diff"),
            ("See what each policy does with a workload, and why", "scpol explain deploy/web -n shop"),
            ("See the state of all policies", "scpol status"),
        ],
    ),
    (
        "run",
        &[
            ("Run the operator outside the cluster", "scpol run --context dev --webhook-url https://192.0.2.1:8443"),
            ("Forbid templates all that the level `restricted` forbids", "scpol run --pod-security restricted"),
        ],
    ),
    (
        "crd",
        &[
            ("Install the CRD", "scpol crd | kubectl apply -f -"),
            ("Print it for Kubernetes below 1.16", "scpol crd --api v1beta1"),
        ],
    ),
    (
        "inject",
        &[
            ("Inject a policy into a manifest", "scpol inject web.yaml -p policies/envoy.yaml"),
            ("Show what changes, and why policies do nothing", "scpol inject web.yaml -p policies --diff -v"),
            (
                "Inject into what another tool prints",
                "kubectl kustomize . | scpol inject -f - -p policies -n shop-eu | kubectl apply -f -",
            ),
        ],
    ),
    (
        "uninject",
        &[
            ("Remove what all policies have added", "scpol uninject web.yaml"),
            ("Remove what one policy has added", "scpol uninject web.yaml -p envoy"),
            (
                "Recreate a pod",
                "kubectl get pod web -o yaml | scpol uninject -f - --recreate | kubectl replace --force -f -",
            ),
        ],
    ),
    (
        "explain",
        &[
            ("Explain one workload of the cluster", "scpol explain deploy/web -n shop"),
            ("Summarize all workloads of a namespace", "scpol explain -n shop"),
            ("Explain a manifest, with policies from files", "scpol explain web.yaml -p policies"),
            ("The same for machines", "scpol explain web.yaml -p policies -o json"),
        ],
    ),
    (
        "lint",
        &[
            ("Check policies", "scpol lint draft.yaml"),
            ("Check all policies below a folder; warnings fail, too", "scpol lint -R policies --strict"),
            ("Check that they fit workloads", "scpol lint policies --manifests web.yaml"),
            ("Ignore a code, for a CI system", "scpol lint policies --ignore SCP0035 -o junit"),
        ],
    ),
    (
        "convert",
        &[
            ("Convert the manifests of an initializer", "scpol convert old > policies.yaml"),
            ("Convert the annotations of Linkerd, Dapr, Vault or Istio", "scpol convert old/dapr.yaml > policies.yaml"),
            ("Print the report alone", "scpol convert old --report"),
        ],
    ),
    (
        "diff",
        &[
            ("Compare new policies with those of the cluster", "scpol diff --new next -A"),
            ("Compare files, and show each change", "scpol diff --old policies --new next -f web.yaml -v"),
        ],
    ),
    (
        "parameters",
        &[
            ("List what a policy of the cluster lets workloads set", "scpol parameters envoy"),
            (
                "List those of policies in files, with the places that get the value",
                "scpol parameters -f policies -o wide",
            ),
        ],
    ),
    (
        "drain",
        &[
            ("List the objects that wait for an initializer", "scpol drain --list"),
            ("Release those of one namespace", "scpol drain -n shop"),
        ],
    ),
    (
        "check",
        &[
            ("Before the installation", "scpol check --pre"),
            ("After it", "scpol check"),
            ("Check that one engine can be used", "scpol check --engine Webhook"),
        ],
    ),
    (
        "status",
        &[
            ("Show all policies", "scpol status"),
            ("Show one policy, and the workloads without its sidecar", "scpol status envoy"),
            ("Count the workloads of one namespace", "scpol status envoy -n shop"),
            ("Follow the progress", "scpol status envoy --watch"),
        ],
    ),
    (
        "rollout",
        &[
            ("See what a rollout would do", "scpol rollout plan envoy"),
            ("Follow it", "scpol rollout status envoy"),
            ("Go back to the content before", "scpol rollout undo envoy"),
        ],
    ),
    (
        "rollout status",
        &[
            ("Show how far the rollout is", "scpol rollout status envoy"),
            ("Wait until it is complete, or halted", "scpol rollout status envoy --watch"),
        ],
    ),
    (
        "rollout history",
        &[
            ("List the revisions", "scpol rollout history envoy"),
            ("Print the content of one", "scpol rollout history envoy --revision 2"),
        ],
    ),
    (
        "rollout undo",
        &[
            ("See what would change", "scpol rollout undo envoy --dry-run"),
            ("Go back to the revision before", "scpol rollout undo envoy"),
            ("Go back to one revision", "scpol rollout undo scpol/envoy --to-revision 2"),
        ],
    ),
    ("rollout pause", &[("Pause the rollout", "scpol rollout pause envoy")]),
    ("rollout resume", &[("Go on", "scpol rollout resume envoy")]),
    ("rollout restart", &[("Recreate all pods that have the sidecar", "scpol rollout restart envoy")]),
    (
        "rollout plan",
        &[
            ("Plan the rollout of a stored policy", "scpol rollout plan envoy"),
            (
                "Plan the rollout of an edited policy, in one namespace",
                "scpol rollout plan -f policies/envoy.yaml -n shop",
            ),
        ],
    ),
    (
        "rollout remove",
        &[
            ("List what would be removed", "scpol rollout remove envoy"),
            ("Remove the sidecar of a deleted policy", "scpol rollout remove envoy -f policies/envoy.yaml --yes"),
        ],
    ),
    (
        "support",
        &[
            ("Write scpol-support.tar.gz", "scpol support"),
            ("Look into it without a file", "scpol support - | tar -tzf -"),
        ],
    ),
    (
        "uninstall",
        &[
            ("See what would be removed", "scpol uninstall --dry-run"),
            ("Remove the operator, and keep the policies", "scpol uninstall --yes"),
            ("Remove the policies, too", "scpol uninstall --yes --crd"),
        ],
    ),
    (
        "test",
        &[
            ("Run all cases below a folder", "scpol test cases"),
            ("Write the results as the expected ones", "scpol test cases --update"),
            ("Report to a CI system", "scpol test cases -o junit"),
        ],
    ),
    (
        "completions",
        &[
            ("For this shell", "source <(scpol completions bash)"),
            ("For all shells of a user", "scpol completions fish > ~/.config/fish/completions/scpol.fish"),
        ],
    ),
    (
        "man",
        &[("Read one page", "scpol man rollout status | man -l -"), ("Write all pages", "scpol man --folder man1")],
    ),
    (
        "version",
        &[
            ("Print the versions of this program and of the API server", "scpol version"),
            ("Ask no server", "scpol version --client"),
        ],
    ),
];

/// What the exit codes 0, 1 and 2 mean.
type Codes = [&'static str; 3];

/// The meaning of 1 that a command does not have.
const NEVER: &str = "";
const COULD_NOT_RUN: &str = "it could not run, or could not find out";
const FINE: Codes = ["success", NEVER, COULD_NOT_RUN];

/// The exit codes of a command, by its words. Others have [`FINE`].
const CODES: &[(&str, Codes)] = &[
    ("", ["success, or nothing found", "a finding: read the output", COULD_NOT_RUN]),
    (
        "inject",
        [
            "every policy that matches is injected; with --diff, nothing changes",
            "a policy that matches is not injected; with --diff, something changes",
            COULD_NOT_RUN,
        ],
    ),
    ("uninject", ["all content is removed", "some content stays: the messages say why", COULD_NOT_RUN]),
    (
        "explain",
        [
            "no policy is in conflict",
            "a policy matches and is in conflict, fails, is edited or is invalid",
            COULD_NOT_RUN,
        ],
    ),
    ("lint", ["no error; with --strict, no warning", "an error; with --strict, a warning", "a file could not be read"]),
    ("convert", ["all is converted", "nothing is converted, or something is lost or guessed", COULD_NOT_RUN]),
    ("diff", ["nothing changes", "something changes", COULD_NOT_RUN]),
    ("drain", ["nothing waits", "something still waits", COULD_NOT_RUN]),
    ("check", ["no problem; with --strict, no warning", "a problem; with --strict, a warning", COULD_NOT_RUN]),
    (
        "status",
        [
            "every policy is ready, and no workload lacks its sidecar",
            "a policy is not ready, a registration is missing, or a workload lacks its sidecar",
            COULD_NOT_RUN,
        ],
    ),
    ("run", ["a signal stopped it", "a second signal ended it at once", COULD_NOT_RUN]),
    (
        "rollout status",
        ["the rollout is complete", "the rollout is not complete; with --watch, it is halted", COULD_NOT_RUN],
    ),
    ("rollout remove", ["no content is left", "some content is left", COULD_NOT_RUN]),
    (
        "uninstall",
        [
            "nothing is left; with --dry-run, nothing failed",
            "something is left; with --check, something is there",
            COULD_NOT_RUN,
        ],
    ),
    ("test", ["every case has its expected result", "a case has another result", "a case could not be run"]),
];

/// The variables that all commands read, besides those of flags.
pub(super) const VARIABLES: &[(&str, &str)] = &[
    ("KUBECONFIG", "The kubeconfig files, if --kubeconfig is not given"),
    ("HTTPS_PROXY, HTTP_PROXY, NO_PROXY", "The proxy to the API server, if the kubeconfig names none"),
    ("NO_COLOR", "No colours, unless --color is given"),
    ("SCPOL_FLAG", "The value of each flag of the cluster and of the operator, such as SCPOL_CONTEXT for --context"),
];

/// The examples of the command with these words; empty if there is no such command.
pub(super) fn examples(words: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(known, _)| *known == words).map_or(&[], |(_, examples)| *examples)
}

/// The exit codes of the command with these words, each with its meaning.
pub(super) fn exit_codes(words: &str) -> Vec<(usize, &'static str)> {
    let codes = CODES.iter().find(|(known, _)| *known == words).map_or(FINE, |(_, codes)| *codes);
    codes.into_iter().enumerate().filter(|(_, meaning)| *meaning != NEVER).collect()
}

/// `command` whose help, and that of every command below it, has examples and exit codes.
pub(super) fn with_help(command: Command) -> Command {
    let styles = command.get_styles().clone();
    below(command, "", &styles)
}

fn below(command: Command, words: &str, styles: &Styles) -> Command {
    let command = command.mut_subcommands(|subcommand| {
        let words = format!("{words} {}", subcommand.get_name());
        below(subcommand, words.trim_start(), styles)
    });
    let (examples, codes) = (told_examples(words, styles), told_codes(words, styles));
    let name = if words.is_empty() { "scpol".to_owned() } else { format!("scpol {words}") };
    let more = format!("`{name} --help` has examples, exit codes, and the flags of the cluster and of the operator.");
    command
        .help_template("{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}")
        .before_long_help(examples)
        .after_help(more)
        .after_long_help(codes)
}

fn told_examples(words: &str, styles: &Styles) -> StyledStr {
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut text = format!("{header}Examples:{header:#}");
    for (what, command) in examples(words) {
        if !what.is_empty() {
            let _ = write!(text, "\n  # {what}");
        }
        let _ = write!(text, "\n  {literal}{command}{literal:#}");
    }
    text.into()
}

fn told_codes(words: &str, styles: &Styles) -> StyledStr {
    let header = styles.get_header();
    let mut text = format!("{header}Exit codes:{header:#}");
    for (code, meaning) in exit_codes(words) {
        let _ = write!(text, "\n  {code}  {meaning}");
    }
    text.into()
}

/// The list of commands in groups, for the help of all.
pub(super) fn groups(command: &Command) -> String {
    /// The help of `help`, which clap adds when it parses.
    const HELP: &str = "Print this message or the help of a command";
    let (header, literal) = (command.get_styles().get_header(), command.get_styles().get_literal());
    let mut groups = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(groups, "{header}{title}:{header:#}");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map_or(HELP.to_owned(), ToString::to_string);
            let _ = writeln!(groups, "  {literal}{name:<11}{literal:#}  {about}");
        }
        groups.push('\n');
    }
    groups
}
