//! What is found out about one workload, and how it is shown: the answer first, then a row for each policy.

use super::Output;
use crate::api::code::Code;
use crate::api::rules::Violation;
use crate::cli::files::{other_version, plan, title};
use crate::decision::{Decision, Left, Outcome};
use crate::lint::references::needs;
use crate::policy::{Policies, Policy, Site};
use crate::workload::Workload;
use anyhow::Result;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeSet;
use std::io::Write;

/// The row of the precedence table that says "else inject".
const LAST_ROW: u8 = 8;

/// What helps where the content of another version is in the way.
const OUTDATED: &str = "Take the other version out first: `scpol uninject` on its manifest.";

/// What is asked about.
pub(super) struct Subject {
    /// The workload as it is.
    pub(super) workload: Workload,
    /// The same with the namespace that it will be created in.
    pub(super) placed: Workload,
    /// Where it stands; none if it is stored in a cluster.
    pub(super) source: Option<String>,
}

/// A policy that is stored and cannot be in force.
pub(in crate::cli) struct Invalid {
    pub(in crate::cli) name: String,
    pub(super) violations: Vec<Violation>,
}

/// What is found out.
#[derive(Serialize, Debug)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    kind: String,
    namespace: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    policies: Vec<Answer>,
    #[serde(skip)]
    title: String,
}

/// What one policy says.
#[derive(Serialize, Debug)]
#[serde(rename_all = "camelCase")]
struct Answer {
    policy: String,
    result: Finding,
    /// The row of the precedence table that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    row: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// What was compared with what, or what is added.
    message: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    fix: &'static str,
    /// What would be added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    adds: Vec<String>,
    /// What the added refers to, and must be in the workload's namespace.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    needs: BTreeSet<String>,
}

#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// It is injected when the workload is created.
    Injects,
    /// Its content is in it already.
    Injected,
    Skipped,
    /// It matches, and cannot be injected.
    Conflict,
    /// The same, and the create is refused for it.
    Refuses,
    /// It is broken itself.
    Invalid,
}

impl Finding {
    fn word(self) -> &'static str {
        match self {
            Finding::Injects => "injects",
            Finding::Injected => "is in it",
            Finding::Skipped => "skips it",
            Finding::Conflict => "CONFLICT",
            Finding::Refuses => "REFUSES",
            Finding::Invalid => "INVALID",
        }
    }

    fn is_finding(self) -> bool {
        matches!(self, Finding::Conflict | Finding::Refuses | Finding::Invalid)
    }
}

impl Report {
    /// Asks `policies` about `subject`.
    pub(super) fn of(subject: Subject, policies: &Policies, invalid: &[Invalid], site: &Site) -> Self {
        let Subject { workload, placed, source } = subject;
        let mut decision = Decision::of(policies, &placed, site);
        let patch = plan(&mut decision, &workload, &placed);
        let injected = workload.with_body(workload.patched(&patch));
        let mut answers: Vec<Answer> =
            decision.inject.iter().map(|policy| Answer::injects(policy, &workload, &injected)).collect();
        let (skipped, failed): (Vec<_>, Vec<_>) =
            decision.rest.iter().partition(|left| left.outcome == Outcome::Skipped);
        answers.extend(failed.into_iter().map(|left| Answer::left(left, &workload)));
        answers.extend(invalid.iter().map(Answer::invalid));
        answers.extend(skipped.into_iter().map(|left| Answer::left(left, &workload)));
        Self {
            kind: workload.kind_name().to_owned(),
            namespace: placed.namespace().to_owned(),
            name: workload.name().to_owned(),
            source,
            policies: answers,
            title: title(&placed),
        }
    }

    /// True if and only if something does not work as somebody meant it.
    pub(super) fn is_finding(&self) -> bool {
        self.policies.iter().any(|answer| answer.result.is_finding())
    }

    fn named(&self, result: Finding) -> Vec<&str> {
        self.policies.iter().filter(|answer| answer.result == result).map(|answer| answer.policy.as_str()).collect()
    }

    /// The answer, in a sentence.
    fn headline(&self) -> String {
        let place = self.source.as_ref().map_or(String::new(), |source| format!(" ({source})"));
        let (injects, all) = (self.named(Finding::Injects), self.policies.len());
        let refuses = self.named(Finding::Refuses);
        let mut parts = vec![match (injects.len(), all) {
            (_, 0) => "there is no policy".to_owned(),
            _ if !refuses.is_empty() => format!("its create is refused by {}", refuses.join(", ")),
            (0, _) if self.policies.iter().all(|answer| answer.result == Finding::Injected) => {
                "nothing to add".to_owned()
            }
            (0, 1) => "the one policy does not inject".to_owned(),
            (0, _) => format!("none of {all} policies injects"),
            (1, _) => format!("1 of {all} policies injects: {}", injects[0]),
            (count, _) => format!("{count} of {all} policies inject: {}", injects.join(", ")),
        }];
        for (result, words) in [
            (Finding::Injected, "in it already"),
            (Finding::Conflict, "in conflict"),
            (Finding::Invalid, "not valid itself"),
        ] {
            let named = self.named(result);
            if !named.is_empty() {
                parts.push(format!("{words}: {}", named.join(", ")));
            }
        }
        format!("{}{place}: {}", self.title, parts.join("; "))
    }

    /// What follows the rows: what to do, and what must be there.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.source.is_none() && !self.named(Finding::Injects).is_empty() {
            notes
                .push("It was created without: what runs is never changed. Create it anew to have it injected.".into());
        }
        for answer in &self.policies {
            if !answer.needs.is_empty() {
                let needs = answer.needs.iter().cloned().collect::<Vec<_>>().join(", ");
                notes.push(format!("{} needs in namespace `{}`: {needs}", answer.policy, self.namespace));
            }
        }
        let fixes: BTreeSet<_> = self.policies.iter().map(|answer| answer.fix).filter(|fix| !fix.is_empty()).collect();
        for fix in fixes {
            let named = self.policies.iter().filter(|answer| answer.fix == fix).map(|answer| answer.policy.as_str());
            notes.push(format!("{}: {fix}", named.collect::<Vec<_>>().join(", ")));
        }
        notes
    }

    fn write(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "{}", self.headline())?;
        if self.policies.is_empty() {
            return Ok(());
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["POLICY", "RESULT", "ROW", "CODE", "WHY"]);
        for answer in &self.policies {
            let row = answer.row.map_or("-".to_owned(), |row| row.to_string());
            let code = answer.code.as_deref().unwrap_or("-");
            table.add_row([answer.policy.as_str(), answer.result.word(), &row, code, &answer.message]);
        }
        writeln!(out)?;
        for line in table.lines() {
            writeln!(out, "{}", line.trim())?;
        }
        for (index, note) in self.notes().iter().enumerate() {
            writeln!(out, "{}{note}", if index == 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl Answer {
    fn injects(policy: &Policy, workload: &Workload, injected: &Workload) -> Self {
        let added = policy.marker(injected).map(|marker| marker.added).unwrap_or_default();
        let pod = policy.view(workload).pod_pointer();
        let adds: Vec<_> = added.iter().filter_map(|pointer| name(pointer.strip_prefix(&pod)?)).collect();
        let message = match adds.len() {
            0 => "all that it adds is there already".to_owned(),
            _ => format!("adds {}", adds.join(", ")),
        };
        let template = serde_json::to_value(&policy.template.spec).expect("a template is JSON");
        Self {
            policy: policy.name.clone(),
            result: Finding::Injects,
            row: Some(LAST_ROW),
            code: None,
            reason: None,
            message: format!("{}{message}", earlier(policy, workload)),
            fix: "",
            adds,
            needs: needs(&template),
        }
    }

    fn left(left: &Left, workload: &Workload) -> Self {
        let result = match (left.outcome, left.reason.code) {
            (_, Code::AlreadyInjected) => Finding::Injected,
            (Outcome::Failed, _) => Finding::Conflict,
            (Outcome::Rejected, _) => Finding::Refuses,
            (Outcome::Skipped | Outcome::Injected, _) => Finding::Skipped,
        };
        let before = if result.is_finding() { earlier(&left.policy, workload) } else { String::new() };
        let is_outdated = !before.is_empty();
        let message = format!("{before}{}", left.reason.detail);
        let answer = Self::coded(&left.policy.name, result, left.reason.code, message);
        let fix = if is_outdated { OUTDATED } else { answer.fix };
        Self { row: Some(left.reason.row), fix, ..answer }
    }

    fn invalid(invalid: &Invalid) -> Self {
        let first = invalid.violations.first();
        let code = first.map_or(Code::InvalidField, |violation| violation.code);
        let message = first.map_or(String::new(), |violation| format!("{} {}", violation.field, violation.message));
        let more = match invalid.violations.len() {
            0 | 1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        Self::coded(&invalid.name, Finding::Invalid, code, message + &more)
    }

    fn coded(policy: &str, result: Finding, code: Code, message: String) -> Self {
        Self {
            policy: policy.to_owned(),
            result,
            row: None,
            code: Some(code.to_string()),
            reason: Some(code.name()),
            message,
            fix: code.fix(),
            adds: Vec::new(),
            needs: BTreeSet::new(),
        }
    }
}

/// Said first where the workload has the content of another version of `policy`.
fn earlier(policy: &Policy, workload: &Workload) -> String {
    other_version(policy, workload).map_or(String::new(), |hash| {
        format!("has the template {hash} of another version (now {}); ", policy.template.hash)
    })
}

/// How a person calls what a marker lists at `pointer`, which begins at the pod; none for the lists and maps around it.
fn name(pointer: &str) -> Option<String> {
    let tokens: Vec<String> =
        pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    match tokens[..] {
        ["spec", "containers", name] => Some(format!("container {name}")),
        ["spec", "initContainers", name] => Some(format!("init container {name}")),
        ["spec", "volumes", name] => Some(format!("volume {name}")),
        ["spec", "imagePullSecrets", name] => Some(format!("pull secret {name}")),
        ["spec", _, container, "env", name] => Some(format!("variable {name} in {container}")),
        ["spec", _, container, "envFrom", source] => Some(format!("variables of {source} in {container}")),
        ["spec", _, container, "volumeMounts", path] => Some(format!("mount {path} in {container}")),
        ["metadata", "labels", key] => Some(format!("label {key}")),
        ["metadata", "annotations", key] => Some(format!("annotation {key}")),
        _ => None,
    }
}

/// Prints `reports`.
pub(super) fn print(reports: &[Report], output: Output, out: &mut impl Write) -> Result<()> {
    let document = || json!({ "apiVersion": "cli.scpol.dev/v1alpha1", "kind": "ExplainReport", "items": reports });
    match output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&document())?)?,
        Output::Yaml => write!(out, "{}", serde_saphyr::to_string(&document())?)?,
        Output::Table => {
            for (index, report) in reports.iter().enumerate() {
                if index > 0 {
                    writeln!(out)?;
                }
                report.write(out)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_marker_lists_has_a_name_and_what_holds_it_has_none() {
        for (pointer, expected) in [
            ("/spec/containers/envoy", Some("container envoy")),
            ("/spec/initContainers/app/env/A", Some("variable A in app")),
            ("/spec/containers/app/volumeMounts/~1etc~1x", Some("mount /etc/x in app")),
            ("/metadata/labels/a~1b", Some("label a/b")),
            ("/spec/containers", None),
            ("/spec/containers/app/env", None),
            ("/metadata", None),
            ("", None),
        ] {
            assert_eq!(name(pointer).as_deref(), expected, "{pointer}");
        }
    }
}
