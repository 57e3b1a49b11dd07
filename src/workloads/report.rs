//! Informs users about each decision: one log line, counters, events, and samples for `status.failures`.

use super::Workloads;
use super::ledger::AfterFailure;
use crate::api::code::Code;
use crate::api::v1alpha1::{Failure, OptOut};
use crate::cluster::events::{EventReason, EventSubject};
use crate::decision::{Decision, Left, Outcome};
use crate::policy::{Policies, Policy, Reason, checks};
use crate::telemetry;
use crate::workload::Workload;
use std::sync::Arc;

/// An engine in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deliverer {
    /// The name in metrics and messages.
    pub engine: &'static str,
    /// Whether the engine logs and counts each decision itself when the API server calls it.
    pub has_counted: bool,
}

/// Counts, logs and reports a decision that has been carried out.
pub fn all(workloads: &Workloads, deliverer: Deliverer, workload: &Workload, decision: &Decision) {
    let subject = || EventSubject {
        api_version: workload.body["apiVersion"]
            .as_str()
            .map_or_else(|| workloads.operator.api_version(&workload.kind), str::to_owned),
        kind: workload.kind_name().into(),
        namespace: workload.namespace().into(),
        name: workload.name().into(),
        uid: workload.uid().into(),
    };
    let about = telemetry::About::of(workload);
    let count = |outcome: Outcome, policy: &Policy, code, detail| {
        if !deliverer.has_counted {
            telemetry::decided(&about, &policy.name, outcome, code, detail);
            workloads.operator.metrics.injection(&policy.name, deliverer.engine, outcome, code);
        }
    };
    let is_refused = decision.refusal().is_some();
    // A rejected workload gets nothing from any policy.
    for policy in decision.inject.iter().filter(|_| !is_refused) {
        count(Outcome::Injected, policy, Code::Programmed, "");
        if workloads.tell_injected {
            workloads.recorder.tell(
                subject(),
                EventReason::SidecarInjected,
                Code::Programmed,
                &format!("injected by SidecarPolicy `{}`", policy.name),
            );
        }
        if policy.spec.opt_out == OptOut::Denied && checks::refusal(policy, &policy.view(workload)).is_some() {
            let message = format!("SidecarPolicy `{}` does not allow to opt out; it was injected", policy.name);
            workloads.recorder.tell(subject(), EventReason::SidecarInjectionSkipped, Code::OptOutIgnored, &message);
        }
    }
    for (policy, message) in decision.unreached(workload).into_iter().filter(|_| !is_refused) {
        let message = format!("SidecarPolicy `{}`: {message}", policy.name);
        workloads.recorder.tell(subject(), EventReason::SidecarInjectionSkipped, Code::NoEffect, &message);
    }
    for (policy, message) in decision.misspelt(workload).into_iter().filter(|_| !is_refused) {
        let message = format!("SidecarPolicy `{}`: {message}", policy.name);
        workloads.recorder.tell(subject(), EventReason::SidecarInjectionSkipped, Code::MisspeltKey, &message);
    }
    for left in &decision.rest {
        let Left { policy, outcome, reason: Reason { code, detail, .. } } = left;
        count(*outcome, policy, *code, detail);
        let fate = match left.reason.row {
            _ if is_refused => AfterFailure::Refused,
            CONFLICTS => AfterFailure::Missed,
            _ => AfterFailure::Untold,
        };
        tell(workloads, workload, left, fate, &subject);
    }
    // Rows 1 to 3 concern no policy, and never cause an event.
    let is_untouchable = decision.rest.iter().any(|left| left.reason.row <= 3);
    for (code, message) in unheard(workloads, workload).into_iter().filter(|_| !is_untouchable) {
        workloads.recorder.tell(subject(), EventReason::SidecarInjectionSkipped, code, &message);
    }
}

/// Counts our names that have left the list of `workload` and whose policy does not exist.
pub fn orphans(workloads: &Workloads, deliverer: Deliverer, workload: &Workload, orphans: usize) {
    for _ in 0..orphans {
        telemetry::decided(&telemetry::About::of(workload), "", Outcome::Skipped, Code::PolicyGone, "");
        workloads.operator.metrics.injection("", deliverer.engine, Outcome::Skipped, Code::PolicyGone);
    }
}

/// Reports on a stored workload that has just been created or changed, if an engine acts on its kind in the API server, for
/// the policies for which `concerns` is true. The stored object shows the result.
pub fn stored(
    workloads: &Workloads,
    deliverer: Deliverer,
    workload: &Workload,
    policies: &Policies,
    concerns: impl Fn(&Policy) -> bool,
) {
    let mut decision = Decision::of(policies, workload, &workloads.operator.site());
    decision.retain(concerns);
    // The engine lets an earlier content through, and does not bring it to the present one.
    let outdated: Vec<Arc<Policy>> = decision.replaced().cloned().collect();
    decision.inject.retain(|policy| outdated.iter().all(|outdated| outdated.name != policy.name));
    decision.rest.extend(outdated.into_iter().map(|policy| {
        let hash = policy.marker(workload).map(|marker| marker.hash).unwrap_or_default();
        let detail = format!("has the template {hash} of an earlier revision (now {})", policy.template_hash());
        Left { policy, outcome: Outcome::Skipped, reason: Reason { row: CONFLICTS, code: Code::Outdated, detail } }
    }));
    for policy in decision.inject.clone() {
        let detail = format!("it matches, and {} has added nothing: see `scpol explain`", deliverer.engine);
        decision.fail(policy, Reason { row: CONFLICTS, code: Code::Missed, detail });
    }
    let (injected, rest) = decision.rest.into_iter().partition(|left| left.reason.code == Code::AlreadyInjected);
    decision.rest = rest;
    let injected: Vec<Left> = injected;
    decision.inject = injected.into_iter().map(|left| left.policy).collect();
    all(workloads, deliverer, workload, &decision);
}

/// The row of a workload that matches and cannot be injected.
const CONFLICTS: u8 = 8;

/// Records events for workloads without the sidecar: rows 4 and 5 if row 7 holds, and every failure.
fn tell(
    workloads: &Workloads,
    workload: &Workload,
    left: &Left,
    fate: AfterFailure,
    subject: &dyn Fn() -> EventSubject,
) {
    let Left { policy, outcome, reason } = left;
    let (code, message) = (reason.code, reason.detail.as_str());
    let sentence = format!("SidecarPolicy `{}`: {message}", policy.name);
    match outcome {
        Outcome::Skipped
            if matches!(code, Code::HostNetwork | Code::OptedOut | Code::JobSkipped)
                && checks::selects(policy, workload, &workloads.operator.site()) =>
        {
            workloads.recorder.tell(subject(), EventReason::SidecarInjectionSkipped, code, &sentence);
        }
        Outcome::Failed | Outcome::Rejected => {
            workloads.recorder.tell(subject(), EventReason::SidecarInjectionFailed, code, &sentence);
            let event = match code {
                Code::PolicyConflict | Code::Outranked => EventReason::PolicyConflict,
                _ => EventReason::SidecarInjectionFailed,
            };
            let place = format!("{} `{}/{}`: {message}", workload.kind_name(), workload.namespace(), workload.name());
            workloads.recorder.tell(EventSubject::policy(&policy.name, &policy.meta.uid), event, code, &place);
            let failure = Failure {
                kind: workload.kind_name().into(),
                namespace: workload.namespace().into(),
                name: workload.name().into(),
                code: code.to_string(),
                message: message.into(),
                time: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            };
            workloads.ledger(|ledger| ledger.failed(&policy.reference(), failure, fate));
        }
        _ => {}
    }
}

/// Codes and messages about wrong values of `scpol.dev/inject` in the workload, and about keys that resemble ours.
fn unheard(workloads: &Workloads, workload: &Workload) -> Vec<(Code, String)> {
    let stored = workloads.operator.snapshot().stored;
    checks::unheard(workload, || stored.keys().map(|of| &*of.name))
}
