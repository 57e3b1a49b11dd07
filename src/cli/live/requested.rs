//! The workloads that a user asks for, as for kubectl.

use crate::capabilities::Capabilities;
use crate::cli::files::kinds;
use crate::workload::{KINDS, Kind};
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Short names of kinds.
const SHORT: [(&str, &str); 5] =
    [("deploy", "deployments"), ("sts", "statefulsets"), ("ds", "daemonsets"), ("cj", "cronjobs"), ("po", "pods")];
/// A kind as the user typed it.
#[derive(Clone, Debug)]
pub(super) struct Typed {
    /// The typed text.
    text: String,
    word: String,
    group: Option<String>,
    /// The kind, if it is known without the server.
    kind: Option<Arc<Kind>>,
}

impl Typed {
    /// Parses `deploy`, `Deployment` or `deployments.apps`.
    fn parse(text: &str) -> Result<Self> {
        let lower = text.to_ascii_lowercase();
        let (word, group) = lower.split_once('.').map_or((lower.as_str(), None), |(word, group)| (word, Some(group)));
        let word = SHORT.iter().find(|(short, _)| *short == word).map_or(word, |(_, resource)| resource);
        match word {
            "" => return Err(unknown(text)),
            "rs" | "replicasets" | "replicaset" => {
                bail!("no policy is for `{text}`: what a Deployment makes is decided at the Deployment; ask for that")
            }
            _ => {}
        }
        let is_group = |kind: &Kind| {
            group.is_none_or(|group| kind.is_in(group) || behind_version(group).is_some_and(|group| kind.is_in(group)))
        };
        let is_called = |kind: &Kind| {
            kind.resource == word || kind.kind.as_ref().is_some_and(|kind| kind.eq_ignore_ascii_case(word))
        };
        let kind = KINDS.iter().find(|kind| is_called(kind) && is_group(kind)).cloned();
        Ok(Self { text: text.to_owned(), word: word.to_owned(), group: group.map(str::to_owned), kind })
    }

    /// The kind on `server`.
    pub(super) fn kind(&self, server: &Capabilities) -> Result<Arc<Kind>> {
        let group = self.group.as_deref();
        let found = self.kind.clone().or_else(|| server.find(&self.word, group));
        found.or_else(|| server.find(&self.word, Some(behind_version(group?)?))).ok_or_else(|| unknown(&self.text))
    }

    /// Whether discovery of `group` is needed.
    pub(super) fn may_be_in(&self, group: &str) -> bool {
        self.kind.as_ref().is_none_or(|kind| kind.is_in(group))
    }
}

/// kubectl accepts a version before the group.
fn behind_version(group: &str) -> Option<&str> {
    group.split_once('.').map(|(_, group)| group)
}

fn unknown(typed: &str) -> anyhow::Error {
    let word = typed.to_ascii_lowercase();
    let singular = KINDS.iter().filter_map(|kind| kind.kind.as_deref()).map(str::to_ascii_lowercase);
    let known = KINDS.iter().map(|kind| kind.resource.clone()).chain(singular);
    let known = known.chain(SHORT.iter().map(|(short, _)| (*short).to_owned()));
    let near = known.map(|known| (strsim::damerau_levenshtein(&known, &word), known));
    // A shorter word is near to too many.
    let near = near.filter(|(edits, known)| *edits <= known.len() / 3).min();
    if let Some((_, near)) = near {
        return anyhow!("`{typed}` is no kind of workload; did you mean `{near}`?");
    }
    let kinds = kinds();
    anyhow!("`{typed}` is no kind of workload; expected KIND/NAME, e.g. `deploy/web`, where the kind is one of {kinds}")
}

/// One workload, or all workloads of a kind.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Requested {
    pub(super) kind: Typed,
    pub(super) name: Option<String>,
}

impl Requested {
    /// All workloads of each of `kinds`: built-in kinds in the order of their table, then custom resources.
    pub(in crate::cli) fn all<'a>(kinds: impl Iterator<Item = &'a Arc<Kind>>) -> Vec<Self> {
        let kinds: BTreeSet<_> = kinds.collect();
        let built_in = KINDS.iter().filter(|kind| kinds.contains(kind));
        let custom = kinds.iter().copied().filter(|kind| !kind.is_in_table());
        let all_of = |kind: &Arc<Kind>| {
            let (word, group) = (kind.resource.clone(), Some(kind.group.clone()));
            Self { kind: Typed { text: word.clone(), word, group, kind: Some(kind.clone()) }, name: None }
        };
        built_in.chain(custom).map(all_of).collect()
    }

    /// The meaning of `words`, as in kubectl: `KIND/NAME` once or several times; or `KIND` or `KIND,KIND`, alone for
    /// all workloads or followed by names.
    pub(in crate::cli) fn parse(words: &[String]) -> Result<Vec<Self>> {
        let Some((first, names)) = words.split_first() else { return Ok(Vec::new()) };
        if words.iter().any(|word| word.contains('/')) {
            return words.iter().map(|word| Self::named(word)).collect();
        }
        let kinds = first.split(',').map(Typed::parse).collect::<Result<Vec<_>>>()?;
        if names.is_empty() {
            return Ok(kinds.into_iter().map(|kind| Self { kind, name: None }).collect());
        }
        let named = |kind: Typed| names.iter().map(move |name| Self { kind: kind.clone(), name: Some(name.clone()) });
        Ok(kinds.into_iter().flat_map(named).collect())
    }

    fn named(word: &str) -> Result<Self> {
        let split = word.split_once('/').filter(|(_, name)| !name.is_empty() && !name.contains('/'));
        let (typed, name) =
            split.with_context(|| format!("`{word}` names no workload; expected KIND/NAME, e.g. `deploy/web`"))?;
        Ok(Self { kind: Typed::parse(typed)?, name: Some(name.to_owned()) })
    }

    /// Whether this names one workload.
    pub(in crate::cli) fn is_named(&self) -> bool {
        self.name.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The built-in kinds in the request; none if one is not built in.
    fn parse(words: &[&str]) -> Option<Vec<(String, Option<String>)>> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let asked = Requested::parse(&words).ok()?;
        asked.into_iter().map(|asked| Some((asked.kind.kind?.resource.clone(), asked.name))).collect()
    }

    #[test]
    fn a_workload_is_named_as_for_kubectl() {
        for (typed, expected) in [
            ("deploy/web", Some("deployments")),
            ("Deployment/web", Some("deployments")),
            ("deployments.apps/web", Some("deployments")),
            ("deployments.v1.apps/web", Some("deployments")),
            ("deployment.extensions/web", Some("deployments")),
            ("po/web", Some("pods")),
            ("cj/web", Some("cronjobs")),
            ("deployments.batch/web", None),
            ("configmap/web", None),
            ("deploy/", None),
            ("deploy/a/b", None),
            ("/web", None),
        ] {
            let expected = expected.map(|resource: &str| vec![(resource.to_owned(), Some("web".to_owned()))]);
            assert_eq!(parse(&[typed]), expected, "{typed}");
        }
    }

    #[test]
    fn several_workloads_and_whole_kinds_are_named_as_for_kubectl() {
        let (web, api) = (Some("web".to_owned()), Some("api".to_owned()));
        for (typed, expected) in [
            (&[][..], Some(vec![])),
            (&["deploy"], Some(vec![("deployments", None)])),
            (&["sts,ds"], Some(vec![("statefulsets", None), ("daemonsets", None)])),
            (&["deploy", "web", "api"], Some(vec![("deployments", web.clone()), ("deployments", api.clone())])),
            (&["deploy/web", "sts/api"], Some(vec![("deployments", web), ("statefulsets", api)])),
            (&["deploy/web", "api"], None),
            (&["deploy", "web/api"], None),
            (&["web"], None),
            (&["deploy,"], None),
        ] {
            let named = |(resource, name): (&str, _)| (resource.to_owned(), name);
            let expected = expected.map(|asked| asked.into_iter().map(named).collect::<Vec<_>>());
            assert_eq!(parse(typed), expected, "{typed:?}");
        }
    }
}
