//! The report on one workload: the answer first, then a row for each policy.

use super::parameters::{self, ParameterAnswer};
use super::qos::QualityChange;
use crate::api::code::Code;
use crate::cli::facts::LiveFacts;
use crate::cli::files::{self, Subject, other_version, plan, title};
use crate::cli::ignored::Ignored;
use crate::cli::live::NotStarting;
use crate::cli::output::{Printing, counted};
use crate::cli::policies::{InvalidPolicy, KnownPolicies};
use crate::decision::{Decision, JUDGED, Left, Outcome, rehearsal};
use crate::inject::{self, Edit, marker};
use crate::lint::{hook, late_references, needs, shared_ports, vet};
use crate::policy::checks::unheard;
use crate::policy::{Policy, Site};
use crate::readers::{self, Facts};
use crate::workload::Workload;
use crate::workloads::behind::maker;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::Write;

/// The last row of the precedence table: "else inject".
const LAST_ROW: u8 = 8;

/// The fix if the content of another version blocks the injection.
const OUTDATED: &str = "Take the other version out first: `scpol uninject` on its manifest.";

/// The report on one workload.
#[derive(Serialize, Debug)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExplainReport {
    kind: String,
    namespace: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    policies: Vec<PolicyAnswer>,
    /// The change of the class of its pods by the policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    quality_of_service: Option<QualityChange>,
    /// The containers of policies that do not start in its pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_starting: Vec<NotStarting>,
    /// Faults of the workload itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remarks: Vec<Noted>,
    #[serde(skip)]
    title: String,
    /// The owner of the workload, as an argument for another `scpol explain`.
    #[serde(skip)]
    maker: Option<String>,
}

/// The answer of one policy.
#[derive(Serialize, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct PolicyAnswer {
    pub(super) policy: String,
    pub(super) result: PolicyResult,
    /// The deciding row of the precedence table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) row: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<&'static str>,
    /// The compared values, or a summary of the additions.
    message: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    fix: &'static str,
    #[serde(flatten)]
    content: AnsweredContent,
    /// The objects that the additions refer to, and that the workload's namespace must have.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    needs: BTreeSet<String>,
    #[serde(flatten)]
    about: AboutPolicy,
    /// Ports that two containers would share, references to variables that stay unresolved, and what has no effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<Noted>,
    /// What other readers of the pod do to the application because of the additions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    effects: Vec<Effect>,
}

/// What does not depend on the workload.
#[derive(Serialize, Debug, Default)]
#[serde(rename_all = "camelCase")]
struct AboutPolicy {
    /// The reason why the policy is not in effect although it is valid.
    #[serde(rename = "notInForce", skip_serializing_if = "Option::is_none")]
    idle: Option<String>,
    /// Whom users may ask.
    #[serde(skip_serializing_if = "String::is_empty")]
    contact: String,
}

/// A note, and the code by which it can be ignored.
#[derive(Serialize, Debug)]
#[serde(transparent)]
struct Noted {
    text: String,
    #[serde(skip)]
    code: Option<Code>,
}

impl Noted {
    fn new(code: impl Into<Option<Code>>, text: String) -> Self {
        Self { text, code: code.into() }
    }
}

/// Adds to `answers` those of the policies that target the pods of `maker`. Returns the change of their class.
fn of_pods(
    answers: &mut Vec<PolicyAnswer>,
    known: &KnownPolicies,
    maker: &Workload,
    (facts, site): (&Facts, &Site),
    (is_file, minor): (bool, Option<u32>),
) -> Option<QualityChange> {
    let (pod, mut decision) = files::of_pods(&known.policies, maker, site)?;
    if is_file {
        readers::leave_out(&mut decision, &pod, maker, facts, site);
    }
    let patch = decision.plan(&pod);
    let injected = pod.with_body(pod.patched(&patch));
    let injects = decision.inject.iter().map(|policy| PolicyAnswer::injects(policy, &pod, &injected, false));
    let left = decision.rest.iter().map(|left| PolicyAnswer::left(left, &pod, false));
    for answer in injects.chain(left).collect::<Vec<_>>() {
        answers.retain(|other| other.policy != answer.policy);
        answers.push(answer.of_pods());
    }
    in_vain(answers, &decision, &pod);
    Effect::add(answers, &decision, [&pod, &injected], maker, (facts, site));
    QualityChange::of(&pod, &injected, minor)
}

/// What a reader of the pod does to the application.
#[derive(Serialize, Debug)]
pub(super) struct Effect {
    code: String,
    message: String,
    #[serde(skip)]
    known: Code,
}

impl Effect {
    /// Adds to each answer the effects of its policy. `decision` is about the first of the workloads, and the second has its
    /// result; `maker` makes the pods. With the facts, and the flags.
    fn add(
        answers: &mut [PolicyAnswer],
        decision: &Decision,
        [workload, injected]: [&Workload; 2],
        maker: &Workload,
        (facts, site): (&Facts, &Site),
    ) {
        let bare = readers::bare(workload);
        for policy in readers::added_by(decision) {
            let told = readers::told(&policy, [&bare, injected], maker, facts, site).into_iter();
            let effects =
                told.map(|told| Self { code: told.code.to_string(), message: told.message, known: told.code });
            if let Some(answer) = answers.iter_mut().find(|answer| answer.policy == policy.name) {
                answer.effects = effects.collect();
            }
        }
    }
}

/// The content of a policy in a workload.
#[derive(Serialize, Debug, Default)]
#[serde(rename_all = "camelCase")]
struct AnsweredContent {
    /// The additions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    adds: Vec<String>,
    /// What was changed of the content that the workload has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    edits: Vec<Edit>,
    /// The values of the parameters of the policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parameters: Vec<ParameterAnswer>,
}

#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PolicyResult {
    #[default]
    Skipped,
    /// The policy has only validations, and they hold.
    Passes,
    /// Injected into the pods that the workload makes.
    Pods,
    /// The policy itself is invalid.
    Invalid,
    /// The workload already has the policy's content.
    Injected,
    /// Injected when the workload is created.
    Injects,
    /// The policy matches, but the stored workload lacks its content.
    Missed,
    /// The stored workload has the content of another version.
    Outdated,
    /// The workload has the policy's content, and something of it was changed since.
    Edited,
    /// The policy matches, but cannot be injected for a reason other than a conflict.
    Fails,
    /// The policy matches, but the workload or another policy conflicts with it.
    Conflict,
    /// The policy conflicts, and the create is rejected for it.
    Refuses,
}

const HEADER: [&str; 5] = ["POLICY", "RESULT", "ROW", "CODE", "WHY"];

impl PolicyResult {
    pub(super) fn word(self) -> &'static str {
        match self {
            PolicyResult::Injects => "injects",
            PolicyResult::Missed => "missed it",
            PolicyResult::Injected => "is in it",
            PolicyResult::Outdated => "outdated",
            PolicyResult::Edited => "edited",
            PolicyResult::Skipped => "skips it",
            PolicyResult::Passes => "passes",
            PolicyResult::Pods => "its pods",
            PolicyResult::Fails => "FAILS",
            PolicyResult::Conflict => "CONFLICT",
            PolicyResult::Refuses => "REFUSES",
            PolicyResult::Invalid => "INVALID",
        }
    }

    fn is_finding(self) -> bool {
        matches!(
            self,
            PolicyResult::Edited
                | PolicyResult::Fails
                | PolicyResult::Conflict
                | PolicyResult::Refuses
                | PolicyResult::Invalid
        )
    }
}

impl ExplainReport {
    /// Asks the policies of `known` about `subject`, on Kubernetes 1.`minor`. `facts` are objects beside it.
    pub(super) fn of(
        subject: Subject,
        known: &KnownPolicies,
        beside: &LiveFacts,
        site: &Site,
        minor: Option<u32>,
    ) -> Self {
        let facts = &beside.facts;
        let Subject { workload, placed, source } = subject;
        let is_late = source.is_none() && workload.pending().next().is_none();
        let mut decision = Decision::of(&known.policies, &placed, site);
        let mut remarks = Vec::new();
        if source.is_some() {
            decision.admit_unknown(&known.policies, &placed, site);
            let faults = vet(&mut decision, &placed, site).into_iter();
            remarks.extend(faults.map(|fault| Noted::new(None, format!("`{}` {}", fault.field, fault.message))));
            // Of a cluster they are told instead, because no engine knows them.
            readers::leave_out(&mut decision, &placed, &placed, facts, site);
        }
        let patch = plan(&mut decision, &workload, &placed);
        let injected = workload.with_body(workload.patched(&patch));
        let mut quality_of_service = QualityChange::of(&workload, &injected, minor);
        let mut answers: Vec<PolicyAnswer> =
            decision.inject.iter().map(|policy| PolicyAnswer::injects(policy, &workload, &injected, is_late)).collect();
        let (skipped, failed): (Vec<_>, Vec<_>) =
            decision.rest.iter().partition(|left| left.outcome == Outcome::Skipped);
        answers.extend(failed.into_iter().map(|left| PolicyAnswer::left(left, &workload, is_late)));
        answers
            .extend(decision.satisfied().filter(|policy| !policy.injects()).map(|policy| PolicyAnswer::passes(policy)));
        answers.extend(known.invalid.iter().map(PolicyAnswer::invalid));
        answers.extend(skipped.into_iter().map(|left| {
            let would = (left.reason.code == Code::Audit).then(|| rehearsal(&left.policy, &placed, site)).flatten();
            PolicyAnswer::left(left, &workload, is_late).but(would)
        }));
        in_vain(&mut answers, &decision, &placed);
        remarks.extend(in_hook(&decision, &placed));
        Effect::add(&mut answers, &decision, [&placed, &injected], &placed, (facts, site));
        let is_file = source.is_some();
        let of_pods = self::of_pods(&mut answers, known, &placed, (facts, site), (is_file, minor));
        quality_of_service = of_pods.or(quality_of_service);
        if known.policies.kinds().any(|kind| *kind == placed.kind) {
            let names = || known.policies.iter().map(|policy| policy.name.as_str());
            remarks.extend(unheard(&placed, names).into_iter().map(|(code, message)| Noted::new(code, message)));
        }
        if answers.iter().any(|answer| answer.result != PolicyResult::Skipped) {
            remarks.extend(beside.unread_in(placed.namespace()).map(|message| Noted::new(None, message)));
        }
        answers.sort_by_key(|answer| answer.result == PolicyResult::Skipped);
        for answer in answers.iter_mut().filter(|answer| answer.result != PolicyResult::Skipped) {
            let policy = known.policies.iter().find(|policy| policy.name == answer.policy);
            let invalid = known.invalid.iter().find(|policy| policy.name == answer.policy);
            let contact = policy.map(|policy| &policy.meta.contact).or(invalid.map(|policy| &policy.contact));
            let idle = known.idle.get(&answer.policy).cloned();
            answer.about = AboutPolicy { idle, contact: contact.cloned().unwrap_or_default() };
        }
        Self {
            kind: workload.kind_name().to_owned(),
            namespace: placed.namespace().to_owned(),
            name: workload.name().to_owned(),
            source,
            policies: answers,
            quality_of_service,
            not_starting: Vec::new(),
            remarks,
            title: title(&placed),
            maker: maker(&workload).map(|(kind, name)| format!("{kind}/{name} -n {}", workload.namespace())),
        }
    }

    /// The report without the notes whose codes are `ignored`.
    pub(super) fn without(mut self, ignored: &Ignored) -> Self {
        let source = self.source.clone().unwrap_or_default();
        let is_told = |code: Code, policy: &str| !ignored.has(code, &source, policy);
        self.remarks.retain(|noted| noted.code.is_none_or(|code| is_told(code, "")));
        let mut injected = self.policies.iter().filter(|answer| answer.result != PolicyResult::Skipped).peekable();
        let is_told_of_class = is_told(Code::QualityOfServiceChanged, "")
            && (injected.peek().is_none()
                || injected.any(|answer| is_told(Code::QualityOfServiceChanged, &answer.policy)));
        self.quality_of_service = self.quality_of_service.filter(|_| is_told_of_class);
        for answer in &mut self.policies {
            answer.ports.retain(|noted| noted.code.is_none_or(|code| is_told(code, &answer.policy)));
            answer.effects.retain(|effect| is_told(effect.known, &answer.policy));
        }
        self
    }

    /// Adds the containers of policies that do not start in the pods of the workload.
    pub(super) fn take(&mut self, not_starting: Vec<NotStarting>) {
        self.not_starting = not_starting;
    }

    pub(super) fn title(&self) -> &str {
        &self.title
    }

    pub(super) fn answers(&self) -> &[PolicyAnswer] {
        &self.policies
    }

    /// The most important result among the policies.
    pub(super) fn gravest(&self) -> PolicyResult {
        self.policies.iter().map(|answer| answer.result).max().unwrap_or(PolicyResult::Skipped)
    }

    /// Whether some policy does not work as its author intended.
    pub(super) fn is_finding(&self) -> bool {
        !self.not_starting.is_empty() || self.policies.iter().any(|answer| answer.result.is_finding())
    }

    fn named(&self, result: PolicyResult) -> Vec<&str> {
        self.policies.iter().filter(|answer| answer.result == result).map(|answer| answer.policy.as_str()).collect()
    }

    /// The answer in one sentence.
    fn headline(&self) -> String {
        let place = self.source.as_ref().map_or(String::new(), |source| format!(" ({source})"));
        let (injects, all) = (self.named(PolicyResult::Injects), self.policies.len());
        let (refuses, missed) = (self.named(PolicyResult::Refuses), self.named(PolicyResult::Missed));
        let mut parts = vec![match (injects.len(), all) {
            (_, 0) => "there is no policy".to_owned(),
            _ if !refuses.is_empty() => format!("its create is refused by {}", refuses.join(", ")),
            (0, _) if self.policies.iter().all(|answer| answer.is_there()) => "nothing to add".to_owned(),
            (0, _) if self.policies.iter().all(|answer| answer.result == PolicyResult::Passes) => {
                format!("it satisfies the validations of {}", self.named(PolicyResult::Passes).join(", "))
            }
            (0, _) if self.gravest() == PolicyResult::Pods => {
                format!("its pods are injected when they are created, by {}", self.named(PolicyResult::Pods).join(", "))
            }
            (0, _) if self.gravest() == PolicyResult::Missed => format!("it was created without {}", missed.join(", ")),
            (0, 1) => "the one policy does not inject".to_owned(),
            (0, _) => format!("none of {all} policies injects"),
            (1, 1) => format!("the one policy injects: {}", injects[0]),
            (1, _) => format!("1 of {all} policies injects: {}", injects[0]),
            (count, _) => format!("{count} of {all} policies inject: {}", injects.join(", ")),
        }];
        for (result, words) in [
            (PolicyResult::Injected, "in it already"),
            (PolicyResult::Edited, "in it, edited"),
            (PolicyResult::Outdated, "in it, outdated"),
            (PolicyResult::Conflict, "in conflict"),
            (PolicyResult::Fails, "cannot be injected"),
            (PolicyResult::Invalid, "not valid itself"),
        ] {
            let named = self.named(result);
            if !named.is_empty() {
                parts.push(format!("{words}: {}", named.join(", ")));
            }
        }
        format!("{}{place}: {}", self.title, parts.join("; "))
    }

    /// The notes below the rows: suggested actions and needed objects.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.named(PolicyResult::Missed).is_empty() {
            notes.push(
                "It was created without the sidecar, or replaced without it since, as by `kubectl replace` or `helm --force`. What \
                 runs is never changed: create it again to have it injected."
                    .into(),
            );
        }
        if let Some(maker) = &self.maker {
            notes.push(format!("It was made by another object, where such policies decide: scpol explain {maker}"));
        }
        notes.extend(self.remarks.iter().map(|noted| noted.text.clone()));
        let not_starting = self.not_starting.iter().map(|NotStarting { policy, container, reason, pods, code, .. }| {
            let pods = counted(*pods, "pod", "pods");
            format!("{policy}: container `{container}` does not start in {pods}: {reason} ({code}); `kubectl describe pod` says why")
        });
        notes.extend(not_starting);
        notes.extend(self.quality_of_service.iter().map(QualityChange::note));
        for answer in &self.policies {
            notes.extend(answer.about.idle.iter().map(|why| format!("{} is not in effect: {why}", answer.policy)));
            if !answer.needs.is_empty() {
                let needs = answer.needs.iter().cloned().collect::<Vec<_>>().join(", ");
                notes.push(format!("{} needs in namespace `{}`: {needs}", answer.policy, self.namespace));
            }
            notes.extend(answer.ports.iter().map(|noted| format!("{}: {}", answer.policy, noted.text)));
            let effects = answer.effects.iter();
            notes.extend(effects.map(|Effect { code, message, .. }| format!("{}: {message} ({code})", answer.policy)));
        }
        let contacts = self.policies.iter().filter(|answer| !answer.about.contact.is_empty());
        notes.extend(contacts.map(|answer| format!("{}: ask {}", answer.policy, answer.about.contact)));
        let fixes: BTreeSet<_> = self.policies.iter().map(|answer| answer.fix).filter(|fix| !fix.is_empty()).collect();
        for fix in fixes {
            let named = self.policies.iter().filter(|answer| answer.fix == fix).map(|answer| answer.policy.as_str());
            notes.push(format!("{}: {fix}", named.collect::<Vec<_>>().join(", ")));
        }
        notes
    }

    /// Writes the report for people.
    pub(super) fn write(&self, printing: &Printing, out: &mut impl Write) -> Result<()> {
        printing.line(self.headline(), out)?;
        let rows = self.policies.iter().map(|answer| {
            let row = answer.row.map_or("-".to_owned(), |row| row.to_string());
            let code = answer.code.clone().unwrap_or("-".to_owned());
            [answer.policy.clone(), answer.result.word().to_owned(), row, code, answer.message.clone()]
        });
        printing.section(HEADER, rows, out)?;
        let given = self.policies.iter().map(|answer| (answer.policy.as_str(), &answer.content.parameters[..]));
        parameters::write(given, printing, out)?;
        let notes = if self.policies.is_empty() { Vec::new() } else { self.notes() };
        printing.notes(notes, out)
    }
}

impl PolicyAnswer {
    fn is_there(&self) -> bool {
        matches!(self.result, PolicyResult::Injected | PolicyResult::Edited | PolicyResult::Outdated)
    }

    /// `is_late`: the workload is stored and will not be injected any more.
    fn injects(policy: &Policy, workload: &Workload, injected: &Workload, is_late: bool) -> Self {
        let added = policy.marker(injected).map(|marker| marker.added).unwrap_or_default();
        let pod = policy.view(workload).pod_pointer();
        let adds: Vec<_> = added.iter().filter_map(|pointer| marker::told(pointer.strip_prefix(&pod)?)).collect();
        let message = match adds.len() {
            0 => "all that it adds is there already".to_owned(),
            _ if is_late => {
                let generation = workload.changed_since_creation();
                let since = generation.map_or(String::new(), |generation| {
                    format!(
                        "; changed since its creation (generation {generation}), perhaps by one that replaced all of it"
                    )
                });
                format!("matches; would have added {}{since}", adds.join(", "))
            }
            _ => format!("adds {}", adds.join(", ")),
        };
        let template = serde_json::to_value(&policy.as_written().spec).expect("a template is JSON");
        let result = match is_late {
            true if other_version(policy, workload).is_some() => PolicyResult::Outdated,
            true => PolicyResult::Missed,
            false => PolicyResult::Injects,
        };
        Self {
            policy: policy.name.clone(),
            result,
            row: Some(LAST_ROW),
            message: format!("{}{message}", earlier(policy, workload)),
            content: AnsweredContent { adds, edits: Vec::new(), parameters: ParameterAnswer::all(policy) },
            needs: needs(&template),
            ports: shared_ports(&policy.as_written().spec, injected)
                .into_iter()
                .map(|(code, field, message)| Noted::new(code, format!("{field} {message}")))
                .chain(late_references(policy, injected).into_iter().map(|note| Noted::new(Code::LateReference, note)))
                .collect(),
            ..Self::default()
        }
    }

    /// The answer of a policy with validations only.
    fn passes(policy: &Policy) -> Self {
        let count = policy.validations.len();
        let holds =
            if count == 1 { "its validation holds".to_owned() } else { format!("its {count} validations hold") };
        Self {
            policy: policy.name.clone(),
            result: PolicyResult::Passes,
            row: Some(JUDGED),
            message: holds,
            ..Self::default()
        }
    }

    /// The same answer, with what the policy would do.
    fn but(self, would: Option<String>) -> Self {
        let message = would.map_or(self.message.clone(), |would| format!("{}: {would}", self.message));
        Self { message, ..self }
    }

    /// The same answer, about the pods that the workload makes.
    fn of_pods(self) -> Self {
        let result = if self.result == PolicyResult::Injects { PolicyResult::Pods } else { self.result };
        Self { result, message: format!("its pods, when they are created: {}", self.message), ..self }
    }

    /// `is_late`: the workload is stored, so that no create is refused any more.
    fn left(left: &Left, workload: &Workload, is_late: bool) -> Self {
        let result = match (left.outcome, left.reason.code) {
            (_, Code::AlreadyInjected) if left.policy.outdated_values().is_some() => PolicyResult::Outdated,
            (_, Code::AlreadyInjected) => PolicyResult::Injected,
            (Outcome::Failed, Code::NameConflict | Code::PolicyConflict | Code::Outranked) => PolicyResult::Conflict,
            (Outcome::Failed, _) => PolicyResult::Fails,
            (Outcome::Rejected, _) => PolicyResult::Refuses,
            (_, Code::Outdated) => PolicyResult::Outdated,
            (Outcome::Skipped | Outcome::Injected, _) => PolicyResult::Skipped,
        };
        let edits = left.policy.edits(workload);
        let parameters = match result {
            PolicyResult::Skipped => Vec::new(),
            _ => ParameterAnswer::all(&left.policy),
        };
        let is_in_it = match result {
            PolicyResult::Injected | PolicyResult::Conflict | PolicyResult::Fails => true,
            PolicyResult::Outdated => left.reason.code == Code::AlreadyInjected,
            PolicyResult::Refuses => is_late,
            _ => false,
        };
        if is_in_it && !edits.is_empty() {
            let answer = Self::coded(&left.policy.name, PolicyResult::Edited, Code::Edited, inject::all_told(&edits));
            let content = AnsweredContent { edits, parameters, ..AnsweredContent::default() };
            return Self { row: Some(left.reason.row), content, ..answer };
        }
        let before = if result.is_finding() { earlier(&left.policy, workload) } else { String::new() };
        let is_outdated = !before.is_empty();
        let message = format!("{before}{}", left.reason.detail);
        let answer = Self::coded(&left.policy.name, result, left.reason.code, message);
        let fix = match edits.is_empty() {
            true if is_outdated => OUTDATED,
            true => answer.fix,
            false => Code::Edited.fix(),
        };
        let content = AnsweredContent { edits, parameters, ..AnsweredContent::default() };
        Self { row: Some(left.reason.row), fix, content, ..answer }
    }

    fn invalid(invalid: &InvalidPolicy) -> Self {
        let first = invalid.violations.first();
        let code = first.map_or(Code::InvalidField, |violation| violation.code);
        let message = first.map_or(String::new(), |violation| format!("{}: {}", violation.field, violation.message));
        let more = match invalid.violations.len() {
            0 | 1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        Self::coded(&invalid.name, PolicyResult::Invalid, code, message + &more)
    }

    fn coded(policy: &str, result: PolicyResult, code: Code, message: String) -> Self {
        Self {
            policy: policy.to_owned(),
            result,
            code: Some(code.to_string()),
            reason: Some(code.name()),
            message,
            fix: code.fix(),
            ..Self::default()
        }
    }
}

/// Adds to `answers` the notes on policies whose `appContainers` selects none of the containers of `workload`, and on annotations
/// that are meant for a parameter.
fn in_vain(answers: &mut [PolicyAnswer], decision: &Decision, workload: &Workload) {
    let unreached = decision.unreached(workload).into_iter();
    let unreached = unreached.map(|(policy, message)| (policy, Code::NoEffect, message.to_string()));
    let misspelt = decision.misspelt(workload).into_iter();
    let misspelt = misspelt.map(|(policy, message)| (policy, Code::MisspeltKey, message));
    for (policy, code, message) in unreached.chain(misspelt) {
        if let Some(answer) = answers.iter_mut().find(|answer| answer.policy == policy.name) {
            answer.ports.push(Noted::new(code, format!("{message} ({code})")));
        }
    }
}

/// The remark on a hook that is injected.
fn in_hook(decision: &Decision, workload: &Workload) -> Option<Noted> {
    let message = hook(workload).filter(|_| !decision.inject.is_empty())?;
    Some(Noted::new(Code::InHook, format!("It {message} ({})", Code::InHook)))
}

/// The first words of a message if the workload has the content of another version of `policy`.
fn earlier(policy: &Policy, workload: &Workload) -> String {
    other_version(policy, workload).map_or(String::new(), |hash| {
        format!("has the template {hash} of another version (now {}); ", policy.template_hash())
    })
}
