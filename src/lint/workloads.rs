//! Policies and workloads together.

use super::{Finding, Note, Subject, pairs};
use crate::api::code::Code;
use crate::decision::{Decision, Left, Outcome};
use crate::inject;
use crate::policy::{Policies, Site};
use crate::workload::Workload;

/// The row of the precedence table in which a workload is selected.
const SELECTION: u8 = 7;

/// What keeps the valid ones of `subjects` from being injected into `workload`, which people call `title`.
///
/// That two policies collide is said by [`lint`](super::lint), once and not for every workload.
pub fn against(
    subjects: &[Subject],
    policies: &Policies,
    workload: &Workload,
    title: &str,
    site: &Site,
) -> Vec<Finding> {
    let mut decision = Decision::of(policies, workload, site);
    decision.plan(workload);
    let in_the_way = decision.rest.iter().filter(|left| {
        matches!(left.outcome, Outcome::Failed | Outcome::Rejected) && left.reason.code != Code::PolicyConflict
    });
    let finding = |left: &Left| {
        let is_it = |subject: &Subject| subject.policy().is_some_and(|policy| policy.name == left.policy.name);
        let subject = subjects.iter().position(is_it)?;
        let end = match (left.outcome, left.reason.code) {
            (_, Code::NamespaceUnreadable) => "give its manifest with --manifests, too",
            (Outcome::Rejected, _) => "its create would be refused",
            _ => "it would not be injected",
        };
        let message = format!("does not fit {title}: {}; {end}", left.reason.detail);
        Some(Note::new(left.reason.code, field(left, workload), message).about(subject))
    };
    in_the_way.filter_map(finding).collect()
}

/// What of the template is in the way, as closely as it can be told.
fn field(left: &Left, workload: &Workload) -> String {
    let whole = &left.policy.template;
    let collides = |piece: &inject::Template| {
        inject::check(&left.policy.view(workload), piece, &[whole])
            .is_err_and(|conflict| conflict.code == Code::NameConflict)
    };
    let found = (left.reason.code == Code::NameConflict)
        .then(|| pairs::pieces(&left.policy).into_iter().find(|(_, piece)| collides(piece)))
        .flatten();
    let whole_field = match left.reason.code {
        Code::NamespaceUnreadable if left.policy.spec.namespace_selector.is_some() => "spec.namespaceSelector",
        Code::NamespaceUnreadable => "spec.matchConditions",
        Code::ValidationFailed => "spec.validations",
        Code::ExpressionFailed if left.reason.row == SELECTION => "spec.matchConditions",
        Code::ExpressionFailed => "spec.validations",
        _ => "spec.template",
    };
    found.map_or(whole_field.to_owned(), |(field, _)| field)
}
