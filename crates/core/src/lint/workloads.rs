//! Policies and workloads together.

use super::template::shortfalls;
use super::{Finding, Note, Subject, late_references, pairs, shared_ports, vet};
use crate::api::code::Code;
use crate::api::pod_security::Standard;
use crate::decision::{Decision, Left, Outcome};
use crate::inject;
use crate::outside;
use crate::policy::checks::unheard;
use crate::policy::refused::Refused;
use crate::policy::{Policies, Policy, Site};
use crate::qos::{self, QosClass};
use crate::readers::{self, Facts, Told};
use crate::workload::Workload;

/// The row of the precedence table in which a workload is selected.
const SELECTION: u8 = 7;

/// The obstacles to an injection of the valid `subjects` into `workload`, and the ports that they would share. Messages
/// call the workload `title`. Also what other readers of its pods do, by `facts`.
///
/// Without conflicts between policies: [`lint`](super::lint) reports them once, not for every workload.
pub fn against(
    subjects: &[Subject],
    policies: &Policies,
    workload: &Workload,
    title: &str,
    facts: &Facts,
    site: &Site,
) -> Vec<Finding> {
    let mut decision = Decision::of(policies, workload, site);
    vet(&mut decision, workload, site);
    readers::leave_out(&mut decision, workload, workload, facts, site);
    let patch = decision.plan(workload);
    let in_the_way = decision.rest.iter().filter(|left| {
        let is_of_pair = matches!(left.reason.code, Code::PolicyConflict | Code::Outranked);
        matches!(left.outcome, Outcome::Failed | Outcome::Rejected) && !is_of_pair
    });
    let subject_of =
        |name: &str| subjects.iter().position(|subject| subject.policy().is_some_and(|policy| policy.name == name));
    let finding = |left: &Left| {
        let subject = subject_of(&left.policy.name)?;
        let end = match (left.outcome, left.reason.code) {
            (_, Code::NamespaceUnreadable) => "give its manifest with --manifests, too",
            (Outcome::Rejected, _) => "its create would be refused",
            _ => "it would not be injected",
        };
        let message = format!("does not fit {title}: {}; {end}", left.reason.detail);
        let finding = Note::new(left.reason.code, field(left, workload), message).about(subject);
        Some(Finding { keeps_out: true, ..finding })
    };
    let injected = workload.with_body(workload.patched(&patch));
    let ports = decision.inject.iter().flat_map(|policy| {
        let notes = shared_ports(&policy.as_written().spec, &injected).into_iter();
        let subject = subject_of(&policy.name);
        let ports = notes.map(move |(code, field, message)| Note::new(code, field, format!("{message} in {title}")));
        let late = late_references(policy, &injected).into_iter();
        let late = late.map(move |message| {
            Note::new(Code::LateReference, "spec.template.env", format!("goes into {title}: {message}"))
        });
        ports.chain(late).filter_map(move |note| Some(note.about(subject?)))
    });
    let left_out = decision.rest.iter().filter_map(|left| {
        let field = match left.reason.code {
            Code::HostNetwork => "spec.hostNetworkPods",
            Code::OptedOut => "spec.optOut",
            _ => return None,
        };
        let message = format!("leaves out {title}: {}", left.reason.detail);
        Some(Note::new(left.reason.code, field, message).about(subject_of(&left.policy.name)?))
    });
    let in_vain = in_vain(&decision, policies, workload, title).into_iter();
    let in_vain = in_vain.filter_map(|(policy, note)| Some(note.about(subject_of(&policy)?)));
    let read = read(&decision, [workload, &injected], title, facts, site);
    let read = read.into_iter().filter_map(|(policy, note)| Some(note.about(subject_of(&policy)?)));
    let evicted_earlier = evicted_earlier(&decision, [workload, &injected], title, site).into_iter();
    let evicted_earlier = evicted_earlier.filter_map(|(policy, note)| Some(note.about(subject_of(&policy)?)));
    in_the_way
        .filter_map(finding)
        .chain(ports)
        .chain(read)
        .chain(left_out)
        .chain(in_vain)
        .chain(evicted_earlier)
        .collect()
}

/// What takes the class Guaranteed from the pods of the first workload, whose injected form is the second: each with its policy.
fn evicted_earlier(
    decision: &Decision,
    [workload, injected]: [&Workload; 2],
    title: &str,
    site: &Site,
) -> Vec<(String, Note)> {
    let class = |workload| qos::of(workload, site.minor);
    let guaranteed = Some(QosClass::Guaranteed);
    let bare = readers::bare(workload);
    if class(&bare) != guaranteed || class(injected) == guaranteed {
        return Vec::new();
    }
    let of_policy = |policy: &Policy| {
        let notes = shortfalls(&policy.spec, site.minor).into_iter().map(|(field, shortfall)| {
            let message = format!("{shortfall}: the pods of {title} are Guaranteed without it, and Burstable with it");
            (policy.name.clone(), Note::new(Code::QualityOfServiceChanged, field, message))
        });
        notes.collect::<Vec<_>>()
    };
    decision.inject.iter().flat_map(|policy| of_policy(policy)).collect()
}

/// What other readers do to the pods of the first workload, whose injected form is the second: each with its policy.
fn read(
    decision: &Decision,
    [workload, injected]: [&Workload; 2],
    title: &str,
    facts: &Facts,
    site: &Site,
) -> Vec<(String, Note)> {
    let bare = readers::bare(workload);
    let of_policy = |policy: &Policy| {
        let told = readers::told(policy, [&bare, injected], workload, facts, site).into_iter();
        let note =
            |Told { code, field, message }: Told| Note::new(code, field, format!("goes into {title}: {message}"));
        told.map(|told| (policy.name.clone(), note(told))).collect::<Vec<_>>()
    };
    decision.inject.iter().flat_map(|policy| of_policy(policy)).collect()
}

/// What has no effect between `policies` and `workload`, or another one than meant: each with the name of its policy.
fn in_vain(decision: &Decision, policies: &Policies, workload: &Workload, title: &str) -> Vec<(String, Note)> {
    let goes = |message: String| format!("goes into {title}: {message}");
    let mut notes = Vec::new();
    for (policy, unreached) in decision.unreached(workload) {
        let note = Note::new(Code::NoEffect, unreached.field, goes(unreached.message));
        notes.push((policy.name.clone(), note));
    }
    if let Some(message) = hook(workload) {
        let note = || Note::new(Code::InHook, "spec.targets", goes(format!("it {message}")));
        notes.extend(decision.inject.iter().map(|policy| (policy.name.clone(), note())));
    }
    for (policy, misspelt) in decision.misspelt(workload) {
        let note = Note::new(Code::MisspeltKey, "spec.parameters", goes(misspelt));
        notes.push((policy.name.clone(), note));
    }
    for (code, message) in unheard(workload, || policies.iter().map(|policy| policy.name.as_str())) {
        let verb = if code == Code::MisspeltKey { "targets" } else { "is asked for by" };
        let note = || Note::new(code, "metadata.name", format!("{verb} {title}: {message}"));
        let meant = policies.iter().filter(|policy| policy.kinds.contains(&workload.kind));
        notes.extend(meant.map(|policy| (policy.name.clone(), note())));
    }
    notes
}

/// The annotations of hooks, and the tools that read them.
const HOOKS: [(&str, &str); 2] = [("helm.sh/hook", "Helm"), ("argocd.argoproj.io/hook", "Argo CD")];
/// The most characters of the value of such an annotation in a message.
const SHOWN: usize = 64;

/// The rest of a sentence about `workload` if it is a hook of Helm or Argo CD. A hook is injected as any other workload,
/// because the API server cannot tell who creates it.
pub fn hook(workload: &Workload) -> Option<String> {
    let (value, tool) = HOOKS.iter().find_map(|(key, tool)| Some((workload.annotation(key)?, tool)))?;
    Some(format!("is a hook (`{}`), and {tool} waits until it ends", outside::cut(value, SHOWN)))
}

/// The field of the first parameter of `policy` whose value is refused.
fn refused_parameter(policy: &Policy) -> String {
    let refused = policy.given().iter().find(|given| given.value.is_err());
    let declared = &policy.spec.parameters;
    let at = refused.and_then(|given| declared.iter().position(|parameter| parameter.name == given.name));
    at.map_or("spec.parameters".to_owned(), |at| format!("spec.parameters[{at}]"))
}

/// The field of the template with the obstacle, as exactly as it is known.
fn field(left: &Left, workload: &Workload) -> String {
    let whole = left.policy.as_written();
    let collides = |piece: &inject::Template| {
        inject::check(&left.policy.view(workload), piece, &[whole], Standard::NEWEST)
            .is_err_and(|conflict| conflict.code == Code::NameConflict)
    };
    let found = (left.reason.code == Code::NameConflict)
        .then(|| pairs::pieces(&left.policy).into_iter().find(|(_, piece)| collides(piece)))
        .flatten();
    let whole_field = match left.reason.code {
        Code::NamespaceUnreadable if left.policy.spec.namespace_selector.is_some() => "spec.namespaceSelector",
        Code::NamespaceUnreadable => "spec.matchConditions",
        Code::ValidationFailed => "spec.validations",
        Code::ParameterRefused => return refused_parameter(&left.policy),
        Code::PodRefused => {
            let view = left.policy.view(workload);
            left.policy.refused(false).find(|refused| refused.is_in(&view)).map_or("spec.jobs", Refused::setting)
        }
        Code::ExpressionFailed if left.reason.row == SELECTION => "spec.matchConditions",
        Code::ExpressionFailed => "spec.validations",
        _ => "spec.template",
    };
    found.map_or(whole_field.to_owned(), |(field, _)| field)
}
