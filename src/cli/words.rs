//! The words of the command line before clap parses them, and what clap's errors cannot know about them.

use super::files;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use std::ffi::OsString;

/// `words` with the flags before a subcommand behind it: `-n shop status` becomes `status -n shop`, as in `rollout -n shop status`. The subcommand judges them.
/// Words that are not understood stay as they are, and clap reports them.
pub(super) fn with_flags_behind(words: &[OsString], command: &Command) -> Vec<OsString> {
    let (mut path, mut flags, mut rest) = (Vec::new(), Vec::new(), words);
    let mut of = command;
    while of.has_subcommands() {
        let Some((before, name, behind)) = next_command(rest, command) else { break };
        let Some(found) = of.find_subcommand(name) else { break };
        path.push(name.clone());
        flags.extend_from_slice(before);
        (of, rest) = (found, behind);
    }
    [path.as_slice(), flags.as_slice(), rest].concat()
}

/// The first of `words` that is no flag and no value of one, with the words before and behind it.
fn next_command<'a>(
    words: &'a [OsString],
    command: &Command,
) -> Option<(&'a [OsString], &'a OsString, &'a [OsString])> {
    let mut at = 0;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()).filter(|word| word.starts_with('-')) {
        at += 1 + following(word, command)?;
    }
    let (before, [name, behind @ ..]) = words.split_at_checked(at)? else { return None };
    Some((before, name, behind))
}

/// The number of words behind the flag `word` that are its value; none if no command has such a flag, or if it ends the command.
fn following(word: &str, command: &Command) -> Option<usize> {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        let flag = flag(command, &|flag| flag.get_long() == Some(name))?;
        return Some(usize::from(value.is_none() && needs_value(flag)));
    }
    let mut letters = word.strip_prefix('-')?.chars();
    let mut needed = None;
    while let Some(letter) = letters.next() {
        let flag = flag(command, &|flag| flag.get_short() == Some(letter))?;
        needed = Some(0);
        if needs_value(flag) {
            return Some(usize::from(letters.as_str().is_empty()));
        }
    }
    needed
}

/// The first flag of `command`, or of a command below it, that `is_it`.
fn flag<'a>(command: &'a Command, is_it: &dyn Fn(&Arg) -> bool) -> Option<&'a Arg> {
    let own = command.get_arguments().find(|flag| is_it(flag));
    own.or_else(|| command.get_subcommands().find_map(|below| flag(below, is_it)))
}

/// Whether the value of `flag` may be the next word.
fn needs_value(flag: &Arg) -> bool {
    flag.get_action().takes_values() && !flag.is_require_equals_set()
}

/// The commands of kubectl, and others that people look for, and what to use instead.
const ELSEWHERE: [(&[&str], &str); 6] = [
    (&["get", "list", "ls", "describe"], "use `scpol status`, or `kubectl get scpol`"),
    (&["apply", "create", "delete", "edit", "patch", "replace"], "use kubectl: policies are objects of the cluster"),
    (&["history", "pause", "plan", "remove", "restart", "resume", "undo"], "it is a command of `scpol rollout`"),
    (&["validate", "vet"], "use `scpol lint`"),
    (&["install", "upgrade"], "use Helm, or `kubectl apply` with an install file"),
    (&["logs"], "use `kubectl logs -n scpol-system deploy/scpol`"),
];

/// `error` with advice, where clap has none or misleading one.
pub(super) fn advised(mut error: clap::Error) -> clap::Error {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    };
    let tip = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let typed = word(ContextKind::InvalidSubcommand).unwrap_or_default();
            let known = ELSEWHERE.iter().find(|(words, _)| words.contains(&typed.as_str()));
            known.map(|(_, tip)| (*tip).to_owned())
        }
        ErrorKind::UnknownArgument => {
            let typed = word(ContextKind::InvalidArg).filter(|word| !word.starts_with('-'));
            typed.map(|word| match files::is_file(&word) {
                true => format!("repeat the flag before it, or give manifests with -f, such as `-f {word}`"),
                false => "a flag takes one value; repeat the flag for more".to_owned(),
            })
        }
        _ => None,
    };
    if let Some(tip) = tip {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::super::command;
    use super::*;
    use std::collections::BTreeMap;

    fn moved(line: &str) -> String {
        let words: Vec<_> = line.split(' ').map(OsString::from).collect();
        let words = with_flags_behind(&words, &command());
        words.iter().map(|word| word.to_str().expect("text")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn flags_before_the_command_are_those_of_the_command() {
        for (line, expected) in [
            ("-n shop status envoy", "status -n shop envoy"),
            ("-nshop status envoy", "status -nshop envoy"),
            ("--context dev --as=me rollout undo envoy", "rollout undo --context dev --as=me envoy"),
            ("-A explain deploy", "explain -A deploy"),
            ("rollout --context dev undo envoy", "rollout undo --context dev envoy"),
            ("-n shop rollout --context dev undo envoy", "rollout undo -n shop --context dev envoy"),
            ("rollout --nothing undo", "rollout --nothing undo"),
            ("status envoy -n shop", "status envoy -n shop"),
            ("--color always lint a.yaml", "lint --color always a.yaml"),
            ("status -n shop", "status -n shop"),
            ("--nothing status", "--nothing status"),
            ("-n shop", "-n shop"),
            ("-n", "-n"),
            ("- status", "- status"),
            ("--help", "--help"),
            ("-n shop nothing", "-n shop nothing"),
        ] {
            assert_eq!(moved(line), expected, "{line}");
        }
    }

    #[test]
    fn each_flag_takes_a_value_in_all_commands_or_in_none() {
        fn collect(command: &Command, found: &mut BTreeMap<String, Vec<bool>>) {
            for flag in command.get_arguments().filter(|flag| !flag.is_positional()) {
                let names = flag.get_long().map(str::to_owned).into_iter().chain(flag.get_short().map(String::from));
                names.for_each(|name| found.entry(name).or_default().push(needs_value(flag)));
            }
            command.get_subcommands().for_each(|below| collect(below, found));
        }
        let mut found = BTreeMap::new();
        collect(&command(), &mut found);
        found.retain(|_, takes| takes.contains(&true) && takes.contains(&false));
        assert!(found.is_empty(), "{found:?}");
    }
}
