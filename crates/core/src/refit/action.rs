//! What a rollout does next to one stored workload, and the way that is expected before the workload is read.

use super::pod::{self, PodChange};
use super::{Carries, Cause, Left, carries, template_update, untouchable};
use crate::api::v1alpha1::{NativeSidecars, PodUpdate, Template};
use crate::content::Revision;
use crate::policy::{Policies, Policy, Site};
use crate::workload::{Kind, Workload};
use jiff::Timestamp;
use json_patch::Patch;
use serde_json::Value;

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

/// What a rollout does next to a workload.
#[derive(Clone, Debug, PartialEq)]
pub enum NextAction {
    /// Nothing: it has the content, and began after the last restart.
    UpToDate,
    /// Nothing, although it lacks the content or the restart.
    Leave(Left),
    /// A patch of the pod template. The controller of the workload then makes its pods anew.
    PatchTemplate(Patch),
    /// The annotation [`RESTARTED`] in the pod template. The content stays.
    RestartTemplate,
    /// Changes of the running pod, as in [`PodChange::InPlace`]: first the resize, then the patch.
    InPlace { patch: Patch, resize: Option<Value> },
    /// An eviction of the pod, because of that.
    Evict { why: String },
}

/// What brings `workload` to the content of `to`. `from` are the known revisions, the latest first. `policies` are those in effect;
/// `to` replaces the one of its name. `to` matches the workload, whose Namespace is known if it matters.
///
/// # Guarantees
/// - The result is [`NextAction::UpToDate`] after the action, as far as the content goes.
/// - Templates and running pods change as in [`template_update`] and [`pod_update`](super::pod_update).
pub fn next_action<'a>(
    workload: &Workload,
    from: impl IntoIterator<Item = &'a Revision>,
    to: &Policy,
    policies: &Policies,
    site: &Site,
    asked: &Asked<'_>,
) -> NextAction {
    let is_pod = workload.kind.is_pod();
    let is_there = carries(workload, to, site) == Carries::This;
    if is_there && has_begun_since(workload, asked.restarted) {
        return NextAction::UpToDate;
    }
    if let Some(carrier) = asked.carrier.filter(|_| is_pod) {
        let message = format!("{carrier} has it in its own pod template, which the pod follows");
        return NextAction::Leave(Left::new(Cause::ContentOfOwner, message));
    }
    if is_there {
        return match untouchable(workload) {
            Some(left) => NextAction::Leave(left),
            None if is_pod => NextAction::Evict { why: "`scpol rollout restart` asks for it".to_owned() },
            None => NextAction::RestartTemplate,
        };
    }
    if !is_pod {
        let change = template_update(workload, from, to, policies, site);
        return change.map_or_else(NextAction::Leave, |change| NextAction::PatchTemplate(change.patch));
    }
    match pod::change(workload, from, to, policies, site, asked.can_resize) {
        PodChange::Leave(left) => NextAction::Leave(left),
        PodChange::Recreate(why) => NextAction::Evict { why },
        // It is made anew anyway.
        PodChange::InPlace { .. } if !has_begun_since(workload, asked.restarted) => {
            NextAction::Evict { why: "`scpol rollout restart` asks for it".to_owned() }
        }
        PodChange::InPlace { .. } if asked.pod_update == PodUpdate::Recreate => {
            NextAction::Evict { why: "`spec.updateStrategy.rollingUpdate.podUpdate` is `Recreate`".to_owned() }
        }
        PodChange::InPlace { patch, resize } => NextAction::InPlace { patch, resize },
    }
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
        && is_native(from.content.native_sidecars) == is_native(to.spec.native_sidecars);
    let (old, new) = (&from.template.spec, &wanted.spec);
    let is_in_place = from.template.hash != wanted.hash
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
    } = template;
    (volumes, image_pull_secrets, env, env_from, volume_mounts, app_containers, include_init_containers)
}
