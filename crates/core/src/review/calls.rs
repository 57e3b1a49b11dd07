//! What the two calls decide about a workload, and what they answer. The first adds, and gives back what an update takes
//! away. The second rejects.

use super::envelope::Response;
use super::{Call, Caller};
use crate::api::code::Code;
use crate::decision::{Decision, JUDGED, Left, Outcome, Side};
use crate::inject::overlay::Overlay;
use crate::inject::{Loss, undo_anywhere_with};
use crate::outside::{beginning, escaped};
use crate::policy::{Policies, Policy, Site};
use crate::workload::Workload;
use std::borrow::Cow;
use std::sync::Arc;

/// The most warnings in an answer, and the longest warning in bytes. The API server cuts longer ones
/// (`apiserver/pkg/endpoints/filters/warning.go`: 256 each, 4096 together).
const WARNINGS: (usize, usize) = (4, 240);

/// The decision on `new`, which is created, or the update of `old`, by the policies for which `acts` is true.
///
/// A validating call decides about the objects without our additions: those of one policy must not make another one match,
/// as in a decision by all policies at once. It rejects an update that newly breaks a validation, or that loses the sidecar
/// of a policy with `Fail` because nothing could give it back.
pub(super) fn decide(
    caller: &Caller<'_>,
    (old, new): (Option<&Workload>, &Workload),
    site: &Site,
    acts: impl Fn(&Policy) -> bool,
) -> Decision {
    let policies = caller.policies;
    let of_create = |workload: &Workload| {
        let mut decision = Decision::of(policies, workload, site);
        decision.retain(&acts);
        decision
    };
    if caller.call == Call::Mutate {
        return match old {
            None => of_create(new),
            Some(old) => Decision::of_update(policies, [old.into(), new.into()], site, acts, |_| true),
        };
    }
    let bare = without_ours(new, policies, site);
    let mut decision = match old {
        None => of_create(&bare),
        Some(old) => {
            let sides =
                [Side { stored: old, bare: &without_ours(old, policies, site) }, Side { stored: new, bare: &bare }];
            Decision::of_update(policies, sides, site, &acts, |loss| loss == Loss::Marker)
        }
    };
    decision.judge_stored(&bare, new, policies, site);
    decision
}

/// The answer of `call` to the request `uid`, by the `decision` on `workload`. Its warnings are for the creator: about
/// policies that admit the object without their sidecar, or as it was before.
pub(super) fn response<'a>(call: Call, uid: &'a str, workload: &Workload, decision: &mut Decision) -> Response<'a> {
    let mut response = Response::allowed(uid);
    let kind = workload.kind_name();
    match call {
        Call::Mutate => {
            let patch = decision.plan(workload);
            let failed =
                decision.rest.iter().filter(|left| left.outcome == Outcome::Failed && left.reason.row != JUDGED);
            let told = |left: &Left| told_of(left, &format!("does not inject this {kind}"));
            let misspelt = decision.misspelt(workload).into_iter();
            let misspelt = misspelt
                .map(|(policy, what)| sentence(&policy, &format!("sees this {kind}"), Code::MisspeltKey, &what));
            response.warnings = warnings(failed.map(told).chain(misspelt));
            response.with_patch(&patch)
        }
        Call::Validate => {
            let excused = decision.excused();
            let predicate = format!("does not allow this {kind}, as before");
            let told = excused.map(|(policy, code, message)| sentence(policy, &predicate, code, message));
            response.warnings = warnings(told);
            match decision.refusal() {
                Some(left) => response.refused(&told_of(left, &format!("refuses this {kind}"))),
                None => response,
            }
        }
    }
}

fn warnings(texts: impl Iterator<Item = String>) -> Vec<String> {
    texts.take(WARNINGS.0).map(|text| beginning(&escaped(&text), WARNINGS.1).to_owned()).collect()
}

fn told_of(Left { policy, reason, .. }: &Left, predicate: &str) -> String {
    sentence(policy, predicate, reason.code, &reason.detail)
}

fn sentence(policy: &Policy, predicate: &str, code: Code, detail: &str) -> String {
    format!("SidecarPolicy `{}` {predicate}: {code}: {detail}", policy.name)
}

/// `stored` without what `policies` have added in its current form. A marker takes away only what its policy adds:
/// otherwise it could hide content of the user's from selectors and expressions.
fn without_ours<'a>(stored: &'a Workload, policies: &Policies, site: &Site) -> Cow<'a, Workload> {
    let is_ours = |policy: &&Arc<Policy>| {
        policy.kinds.contains(&stored.kind)
            && policy.is_claimed(stored)
            && policy.valued_for(stored, policies, site).is_injected(stored)
    };
    let ours: Vec<&Arc<Policy>> = policies.at(stored).filter(is_ours).collect();
    let mut narrowed = Cow::Borrowed(stored);
    for policy in &ours {
        if let Some(body) = policy.narrowed(&narrowed) {
            narrowed = Cow::Owned(narrowed.with_body(body));
        }
    }
    let names: Vec<String> = ours.into_iter().map(|policy| policy.name.clone()).collect();
    let has = |overlay: &Overlay| policies.at(stored).any(|policy| policy.as_written().has_overlay(overlay));
    let undone = (!names.is_empty()).then(|| undo_anywhere_with(&narrowed, &names, has)).flatten();
    undone.map_or(Cow::Borrowed(stored), |undone| Cow::Owned(stored.with_body(undone.body)))
}
