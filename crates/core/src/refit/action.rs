//! What a rollout does next to one stored workload, and the way that is expected before the workload is read.

use super::{Carries, Cause, Goal, NextAction, Unchanged, carries, pod, template_update, untouchable};
use crate::api::v1alpha1::{NativeSidecars, PodUpdate, Template};
use crate::content::{Content, Revision};
use crate::policy::{Policy, Site};
use crate::workload::{Kind, Workload};
use jiff::Timestamp;
use json_patch::Patch;

/// The annotation of a pod template with which kubectl restarts workloads.
pub const RESTARTED: &str = "kubectl.kubernetes.io/restartedAt";

/// What is asked of a workload besides the content, and what the server can do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// The time of the policy's last restart. A workload that began before is not up to date.
    pub restarted: Option<Timestamp>,
    /// How pods are brought up to date.
    pub pod_update: PodUpdate,
    /// Whether the server serves `pods/resize`.
    pub can_resize: bool,
    /// The controller of the pod, such as `ReplicaSet/web-1`, if its own pod template has the sidecar.
    pub carrier: Option<&'a str>,
}

/// What brings `workload` to the content of the `goal`. `from` are the known revisions, the latest first. The policy matches the
/// workload, whose Namespace is known if it matters.
///
/// # Guarantees
/// - The result is [`NextAction::UpToDate`] after the action, as far as the content goes.
/// - A pod template changes as in [`template_update`].
/// - A change in place touches nothing but images, CPU and memory of the policy's own containers, and labels and
///   annotations that it added. It is offered only if the two revisions, as delivered to this pod, differ in nothing
///   else, and the pod has the value of one of the two in each.
/// - A pod is evicted only if a controller makes it again, and if the policy would be injected then.
pub fn next_action<'a>(
    workload: &Workload,
    from: impl IntoIterator<Item = &'a Revision>,
    goal: Goal<'_>,
    asked: &Asked<'_>,
) -> NextAction {
    let is_pod = workload.kind.is_pod();
    let is_there = carries(workload, goal.to, goal.site) == Carries::This;
    if is_there && has_begun_since(workload, asked.restarted) {
        return NextAction::UpToDate;
    }
    if let Some(carrier) = asked.carrier.filter(|_| is_pod) {
        let message = format!("{carrier} has it in its own pod template, which the pod follows");
        return NextAction::Leave(Unchanged::new(Cause::ContentOfOwner, message));
    }
    let restart = || NextAction::Evict { why: "`scpol rollout restart` asks for it".to_owned() };
    if is_there {
        return match untouchable(workload) {
            Some(left) => NextAction::Leave(left),
            None if is_pod => restart(),
            None => NextAction::RestartTemplate(revalued(workload, goal).unwrap_or_default()),
        };
    }
    if !is_pod {
        let change = template_update(workload, from, goal);
        return change.map_or_else(NextAction::Leave, |change| NextAction::PatchTemplate(change.patch));
    }
    let is_edited = || goal.to.is_claimed(workload) && !goal.to.edits(workload).is_empty();
    if goal.to.spec.restores_edited() && has_begun_since(workload, asked.restarted) && is_edited() {
        return pod::restore(workload, goal);
    }
    match pod::change(workload, from, goal, asked.can_resize) {
        // It is made anew anyway.
        NextAction::InPlace { .. } if !has_begun_since(workload, asked.restarted) => restart(),
        NextAction::InPlace { .. } if asked.pod_update == PodUpdate::Recreate => {
            NextAction::Evict { why: "`spec.updateStrategy.rollingUpdate.podUpdate` is `Recreate`".to_owned() }
        }
        action => action,
    }
}

/// The change that gives `workload`, which has the content of the `goal` and is to be restarted, the values of parameters that its sources
/// give now; none if nothing changes, or nothing can.
fn revalued(workload: &Workload, goal: Goal<'_>) -> Option<Patch> {
    if !goal.to.has_parameters() {
        return None;
    }
    let content = Content::of(&goal.to.spec)?;
    let present = Revision::new(&goal.to.name, 0, content);
    Some(template_update(workload, [&present], goal).ok()?.patch)
}

/// When the pods of `workload` began: the creation time of a pod. For another workload: the last `kubectl rollout restart`,
/// or its creation time, if that is later: a manifest may have the annotation of a restart long ago.
pub fn begun(workload: &Workload) -> Option<Timestamp> {
    let restarted = workload.pod_annotation(RESTARTED).filter(|_| !workload.kind.is_pod());
    let created = workload.body["metadata"]["creationTimestamp"].as_str().and_then(|time| time.parse().ok());
    restarted.and_then(|time| time.parse().ok()).max(created)
}

fn has_begun_since(workload: &Workload, restarted: Option<Timestamp>) -> bool {
    restarted.is_none_or(|restarted| begun(workload).is_some_and(|begun| begun >= restarted))
}

/// The way in which a workload gets another content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// By its pod template, which its controller rolls out.
    Template,
    /// By a change of the running pod.
    InPlace,
    /// By an eviction of the pod.
    Evict,
}

/// The expected way of a workload of `kind` from the content of `from` to that of `to`. It needs no workload. `from` is none if the
/// workload has no sidecar of the policy, or its revision is unknown. Without a difference, a restart is asked for.
///
/// # Guarantees
/// - [`Way::InPlace`]: for a pod that is as a create with `from` made it, [`next_action`] is no eviction. What the pod has from
///   others can require one: an edit of the sidecar, amounts of a LimitRange, `spec.resources`, Windows, or another policy.
/// - [`Way::Evict`]: for nearly all pods, [`next_action`] is no change in place. It can be one if the user's containers keep the
///   quality of service class, or if the user has the added items too.
pub fn expected(kind: &Kind, from: Option<&Revision>, to: &Policy, site: &Site, asked: &Asked<'_>) -> Way {
    if !kind.is_pod() {
        return Way::Template;
    }
    let Some(from) = from.filter(|_| asked.pod_update == PodUpdate::InPlaceOrRecreate) else { return Way::Evict };
    // A pod of a rollout does not end by itself, so `ForJobs` means `Never`.
    let is_native = |native_sidecars| native_sidecars == NativeSidecars::Always;
    let wanted = to.as_written();
    let is_delivered_alike = from.template.position == wanted.position
        && from.template.joins == wanted.joins
        && is_native(from.content.native_sidecars) == is_native(to.spec.native_sidecars);
    let (old, new) = (&from.template.spec, &wanted.spec);
    // An edit is undone in the running pod, or not at all.
    let is_edited = from.template.hash == wanted.hash && to.spec.restores_edited();
    let is_in_place = (from.template.hash != wanted.hash || is_edited)
        && is_delivered_alike
        && rest(old) == rest(new)
        && pod::changes_in_place(old, new, site, asked.can_resize);
    if is_in_place { Way::InPlace } else { Way::Evict }
}

/// All of `template` but containers, labels and annotations.
fn rest(template: &Template) -> impl PartialEq {
    let Template {
        metadata: _,
        containers: _,
        init_containers: _,
        volumes,
        image_pull_secrets,
        env,
        env_from,
        volume_mounts,
        app_containers,
        include_init_containers,
        pod,
        share,
    } = template;
    (volumes, image_pull_secrets, env, env_from, volume_mounts, app_containers, include_init_containers, pod, share)
}
