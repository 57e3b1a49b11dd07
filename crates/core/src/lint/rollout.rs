//! Findings about rollouts: steps that add nothing, and a pace that leaves nothing to halt.

use super::selection::{covers, is_literal, overlap, targeting};
use super::{Context, Note};
use crate::api::code::Code;
use crate::api::v1alpha1::{MaxUnavailable, SidecarPolicySpec, StepAction};

/// Steps that add nothing, because the policy does not reach it, or because an earlier step has added it.
pub(super) fn steps(spec: &SidecarPolicySpec, context: &Context) -> Vec<Note> {
    let Some(rolling) = spec.rolling_update() else { return Vec::new() };
    let mut notes = Vec::new();
    let mut added: Vec<(String, &str)> = Vec::new();
    let mut all_in: Option<(usize, &str)> = None;
    for (index, step) in rolling.steps.iter().enumerate() {
        let path = format!("spec.updateStrategy.rollingUpdate.steps[{index}]");
        match (step.action(), all_in) {
            (Some(StepAction::Pause(_)) | None, _) => {}
            (Some(_), Some((all_in, what))) => {
                let message = format!("adds nothing: `steps[{all_in}]` has added all {what}; remove the step");
                notes.push(Note::new(Code::NoEffect, path, message));
            }
            (Some(StepAction::Percent(100)), None) => all_in = Some((index, "namespaces")),
            (Some(StepAction::PercentOfWorkloads(100)), None) => all_in = Some((index, "workloads")),
            (Some(StepAction::Workloads(selector)), None) => {
                let mut earlier = rolling.steps[..index].iter();
                if let Some(same) = earlier.position(|earlier| earlier.workload_selector.as_ref() == Some(selector)) {
                    let message = format!("adds nothing: `steps[{same}]` has the same selector; remove the step");
                    notes.push(Note::new(Code::NoEffect, path, message));
                }
            }
            (Some(StepAction::Namespaces(names)), None) => {
                for (place, name) in names.iter().enumerate() {
                    let field = format!("{path}.namespaces[{place}]");
                    let earlier = added.iter().find(|(_, glob)| covers(glob, name));
                    if let Some(reason) = unreachable(spec, context, name) {
                        let message = format!("adds nothing: {reason}; remove the entry");
                        notes.push(Note::new(Code::NamespaceUnreachable, &field, message));
                    } else if let Some((earlier, _)) = earlier {
                        let message = format!("adds nothing: `{earlier}` covers it; remove the entry");
                        notes.push(Note::new(Code::NoEffect, &field, message));
                    }
                    added.push((field, name));
                }
            }
            _ => {}
        }
    }
    notes
}

/// Why the policy reaches no namespace that the glob `name` stands for; none if it may reach one.
fn unreachable(spec: &SidecarPolicySpec, context: &Context, name: &str) -> Option<String> {
    if is_literal(name) && context.site.protected_namespaces.contains(name) {
        return Some(format!("`{name}` is a protected namespace, which no policy reaches"));
    }
    let excluded = spec.exclude_namespaces.iter().flatten().position(|excluded| covers(excluded, name));
    if let Some(index) = excluded {
        return Some(format!("`{name}` is excluded by `spec.excludeNamespaces[{index}]`"));
    }
    let is_outside = spec.namespaces.as_ref().is_some_and(|own| !own.iter().any(|own| overlap(own, name)));
    is_outside.then(|| format!("`spec.namespaces` has no namespace of `{name}`"))
}

/// A rollout that may touch all workloads at once: `onFailure` cannot spare one then.
pub(super) fn at_once(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let Some(rolling) = spec.rolling_update() else { return Vec::new() };
    let is_all = matches!(&rolling.max_unavailable, MaxUnavailable::Percentage(text) if text == "100%");
    let message = "is `100%`, and there are no steps: all workloads may be touched before the first one fails; lower it, or add \
                   a step";
    let field = "spec.updateStrategy.rollingUpdate.maxUnavailable";
    let is_found = is_all && rolling.steps.is_empty();
    is_found.then(|| Note::new(Code::RolloutAtOnce, field, message)).into_iter().collect()
}

/// A rollout of Jobs only.
pub(super) fn of_jobs(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let is_for_jobs = !spec.targets.is_empty() && targeting(spec, "jobs").count() == spec.targets.len();
    let message = "is `RollingUpdate`, and every target is `jobs`: Jobs end by themselves, and are never brought up to date; \
                   remove it, or target `cronjobs`";
    let is_found = spec.rolls() && is_for_jobs;
    is_found.then(|| Note::new(Code::NoEffect, "spec.updateStrategy.type", message)).into_iter().collect()
}
