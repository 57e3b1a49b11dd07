//! Brings one workload up to date: by a patch of its pod template, by a patch of the running pod, or by an eviction.
//!
//! Each write is guarded: a patch applies only to the version that was read, and an eviction only to the same pod. So nothing is
//! done twice, whichever leader does it.

use crate::api::code::Code;
use crate::api::v1alpha1::PodUpdate;
use crate::cluster::answer::{CallError, Meaning};
use crate::cluster::api::Api;
use crate::cluster::client::call;
use crate::cluster::object::Object;
use crate::cluster::rights::{Right, may};
use crate::content::Revision;
use crate::engine::trial::{self, Strictness};
use crate::operator::Operator;
use crate::policy::Policy;
use crate::refit::{self, Asked, Goal, NextAction, RESTARTED};
use crate::rollout::answer::{FIELD_MANAGER, put_back};
use crate::rollout::{Answer, Done, Why};
use crate::workload::{ObjectRef, Workload};
use crate::workloads::census;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};
use std::sync::Arc;
use tracing::info;

/// The first minor version of Kubernetes that serves `pods/resize` without a feature gate.
pub const RESIZE: u32 = 33;
/// The first minor version of Kubernetes without initializers.
const WITHOUT_INITIALIZERS: u32 = 14;
/// The first minor version of Kubernetes that serves evictions as policy/v1.
const EVICTION_V1: u32 = 22;

/// What the rollout has planned for one workload.
pub struct Planned<'a> {
    pub object: &'a ObjectRef,
    /// The policy. The workload as it is read decides which content of it counts.
    pub policy: &'a Arc<Policy>,
    /// How pods are brought up to date.
    pub pod_update: PodUpdate,
    /// The last restart of the policy that counts.
    pub restarted: Option<Timestamp>,
    /// Whether the pod may be evicted.
    pub may_evict: bool,
    /// Whether another client puts the workload back each time: it is not patched once more.
    pub is_put_back: bool,
}

/// Brings the workload of `planned` up to date.
///
/// # Guarantees
/// The workload is read first, and judged as it is now. Without `may_evict` there is no eviction: the result is
/// [`Answer::NeedsEviction`] then.
///
/// # Errors
/// What the server says, if it rejects the change itself.
pub async fn update(operator: &Operator, from: &[Arc<Revision>], planned: &Planned<'_>) -> Result<Answer, String> {
    let mut can_resize = operator.capabilities().known_minor().is_none_or(|minor| minor >= RESIZE);
    // After a resize, what is left is one patch.
    let mut resized = 0;
    for _ in 0..2 {
        match attempt(operator, from, planned, can_resize).await? {
            Attempt::Answered(answer) => return Ok(answer),
            Attempt::Resized(version) => resized = version,
            Attempt::Unserved => can_resize = false,
        }
    }
    Ok(Answer::Done(Done::Patched(resized)))
}

/// The result of one write.
enum Attempt {
    Answered(Answer),
    /// The resources of the running pod are those of the revision, in that version. The rest is not yet.
    Resized(u64),
    /// Nothing was written: the server does not resize pods. Its version alone does not tell, because the feature gate may be off.
    Unserved,
}

async fn attempt(
    operator: &Operator,
    from: &[Arc<Revision>],
    planned: &Planned<'_>,
    can_resize: bool,
) -> Result<Attempt, String> {
    let Planned { object, policy, .. } = *planned;
    let not_needed = |version: Option<u64>| Ok(Attempt::Answered(Answer::NotNeeded(version)));
    let Some(resource) = operator.resource(&object.kind) else { return not_needed(None) };
    let api = Api::<Object>::namespaced_with(operator.client.clone(), &object.namespace, &resource);
    let stored = match call(api.get_opt(&object.name)).await {
        Ok(Some(stored)) => stored,
        Ok(None) => return not_needed(None),
        Err(error) => return refused(&error, "get", &resource.plural).map(Attempt::Answered),
    };
    let namespace = match operator.namespaces.read(&operator.client, &object.namespace).await {
        Ok(namespace) => namespace,
        Err(error) => return refused(&error, "get", "namespaces").map(Attempt::Answered),
    };
    let workload = Workload::new(&object.kind, stored.value()).within(namespace);
    let policy = policy.at(&workload);
    let (policies, site) = (operator.snapshot().policies, operator.site());
    if !census::is_matched(&workload, &policy.reference(), &policies, &site) || !stored.is_initialized() {
        return not_needed(Some(stored.version()));
    }
    let asked = Asked {
        restarted: planned.restarted,
        pod_update: planned.pod_update,
        can_resize,
        // The planner leaves the pods of those.
        carrier: None,
    };
    let from = from.iter().map(AsRef::as_ref);
    let at = At { operator, api: &api, resource: &resource, planned, workload: &workload, version: stored.version() };
    let goal = Goal { to: policy, policies: &policies, site: &site };
    let answer = match refit::next_action(&workload, from, goal, &asked) {
        NextAction::UpToDate => return not_needed(Some(at.version)),
        NextAction::Leave(left) => Ok(at.left(left.cause.code(), left.message)),
        NextAction::PatchTemplate(_) | NextAction::RestartTemplate(_) | NextAction::InPlace { .. }
            if planned.is_put_back =>
        {
            Ok(Answer::Left(at.version, put_back(&workload)))
        }
        NextAction::PatchTemplate(patch) => at.patch(patch).await,
        NextAction::RestartTemplate(values) => at.restart(values).await,
        NextAction::InPlace { patch, resize } => return at.in_place(patch, resize).await,
        NextAction::Evict { why } => at.evict(why).await,
    };
    answer.map(Attempt::Answered)
}

/// The operation of a JSON Patch that sets the annotation `key` of the object or template at `pointer`. `metadata` is its metadata.
pub fn annotate(pointer: &str, metadata: &Value, key: &str, value: &str) -> Value {
    if metadata["annotations"].is_object() {
        let key = key.replace('~', "~0").replace('/', "~1");
        return json!({ "op": "add", "path": format!("{pointer}/metadata/annotations/{key}"), "value": value });
    }
    json!({ "op": "add", "path": format!("{pointer}/metadata/annotations"), "value": { key: value } })
}

/// The workload of an attempt.
struct At<'a> {
    operator: &'a Operator,
    api: &'a Api<Object>,
    resource: &'a ApiResource,
    planned: &'a Planned<'a>,
    workload: &'a Workload,
    /// Its version.
    version: u64,
}

impl At<'_> {
    /// Has the controller of the workload make all its pods anew, as `kubectl rollout restart` does.
    async fn restart(&self, values: json_patch::Patch) -> Result<Answer, String> {
        let metadata = self.workload.pod().map(|pod| &pod["metadata"]).unwrap_or(&Value::Null);
        let now = Timestamp::now().to_string();
        let patch = json!([
            { "op": "test", "path": "/metadata/uid", "value": self.workload.uid() },
            { "op": "test", "path": "/metadata/resourceVersion", "value": self.workload.resource_version() },
            annotate(&self.workload.pod_pointer(), metadata, RESTARTED, &now),
        ]);
        let json_patch::Patch(restart) = serde_json::from_value(patch).expect("the shape is fixed");
        self.patch(json_patch::Patch(restart.into_iter().chain(values.0).collect())).await
    }

    /// Changes the running pod: first the resources, which do not restart a container, then all else together with the marker. If
    /// the process ends between the two, the next leader finds the resources as they should be.
    async fn in_place(&self, patch: json_patch::Patch, resize: Option<Value>) -> Result<Attempt, String> {
        let (answer, subresource) = match resize.clone() {
            Some(resize) => (self.send_resize(resize).await, "/resize"),
            None => (self.send(patch.clone()).await, ""),
        };
        let is_unserved = |error: &CallError| error.means() == Meaning::NotFound && !is_about(error, self.workload);
        if resize.is_some() && answer.as_ref().is_err_and(is_unserved) {
            return Ok(Attempt::Unserved);
        }
        let is_stale = |error: &CallError| is_stale(error, self.workload);
        let rejection = answer
            .as_ref()
            .err()
            .filter(|error| !is_stale(error))
            .map(CallError::means)
            .filter(|means| means.is_rejection());
        let answer = match (rejection, self.written(answer, subresource)) {
            (None, Ok(Answer::Done(Done::Patched(version)))) if resize.is_some() => {
                return Ok(Attempt::Resized(version));
            }
            // The old pod counts until it is gone. So a pod with the new content needs just as much as a pod that grows to it.
            (Some(Meaning::Quota), Err(message)) => Ok(self.left(Code::QuotaExceeded, message)),
            (Some(rejection), Err(why)) => {
                let replacement = refit::replacement(self.workload, &patch, resize.as_ref());
                match self.try_create(&replacement, resize.is_some(), rejection).await {
                    Ok(()) => self.evict_now(why).await,
                    Err(Answer::Left(version, left)) => {
                        let message = format!("{why}; {}", left.message);
                        Ok(Answer::Left(version, Why { message, ..left }))
                    }
                    Err(answer) => Ok(answer),
                }
            }
            (_, answer) => answer,
        };
        answer.map(Attempt::Answered)
    }

    /// Tries by dry run whether the server accepts the `replacement` of a pod, whose change in place met that `rejection`.
    ///
    /// # Errors
    /// What to do instead of an eviction.
    async fn try_create(&self, replacement: &Value, is_resize: bool, rejection: Meaning) -> Result<(), Answer> {
        let (client, namespace) = (&self.operator.client, &self.planned.object.namespace);
        let tried = trial::create(client, self.resource, namespace, replacement, Strictness::Lenient).await;
        let Err(error) = tried else { return Ok(()) };
        let left = |code: Code| Err(self.left(code, format!("a new pod would be refused, too: {error}")));
        let is_by_rules = matches!(rejection, Meaning::Rules | Meaning::FailedTest);
        match error.means() {
            means if means.is_rejection() && error.is_without_dry_run() && is_by_rules => Ok(()),
            means if means.is_rejection() && error.is_without_dry_run() => {
                let message = "without dry runs it is unknown whether a new pod would be accepted";
                Err(self.left(Code::AdmissionDenied, message.to_owned()))
            }
            // The rules for a running pod say nothing of a new one. Other admission may judge both alike.
            Meaning::MissingRight if is_by_rules => Ok(()),
            Meaning::MissingRight => {
                let message = "without the right to create pods it is unknown whether a new pod would be accepted";
                Err(self.left(Code::AdmissionDenied, message.to_owned()))
            }
            // A quota is asked last, and the tried pod is one more than its controller keeps.
            Meaning::Quota if !is_resize => Ok(()),
            Meaning::Quota => left(Code::QuotaExceeded),
            Meaning::Admission => left(Code::AdmissionDenied),
            Meaning::Rules => left(Code::ResultInvalid),
            // A failed test is that of a webhook's patch, and passes by itself: it is tried again.
            _ => Err(Answer::Failed(format!("cannot try the create of a pod: {error}"))),
        }
    }

    fn left(&self, code: Code, message: String) -> Answer {
        Answer::Left(self.version, Why { code, message })
    }

    async fn patch(&self, patch: json_patch::Patch) -> Result<Answer, String> {
        self.written(self.send(patch).await, "")
    }

    async fn send(&self, patch: json_patch::Patch) -> Result<Object, CallError> {
        let patch = Patch::<()>::Json(patch);
        call(self.api.patch(&self.planned.object.name, &parameters(), &patch)).await
    }

    async fn send_resize(&self, resize: Value) -> Result<Object, CallError> {
        let (name, patch) = (&self.planned.object.name, Patch::Strategic(resize));
        call(self.api.patch_subresource("resize", name, &parameters(), &patch)).await
    }

    /// What the answer to a patch of the workload, or of its `subresource`, means.
    ///
    /// # Errors
    /// As of [`refused`].
    fn written(&self, answer: Result<Object, CallError>, subresource: &str) -> Result<Answer, String> {
        let ObjectRef { kind, namespace, name } = self.planned.object;
        match answer {
            Ok(stored) => {
                info!(resource = kind.resource, namespace, name, "Updated");
                Ok(Answer::Done(Done::Patched(stored.version())))
            }
            Err(error) if is_stale(&error, self.workload) => Ok(Answer::Changed(self.version)),
            Err(error) => refused(&error, "patch", &format!("{}{subresource}", kind.resource)),
        }
    }

    /// Evicts the pod, because of `why`, unless the server would refuse the pod that its controller makes instead.
    async fn evict(&self, why: String) -> Result<Answer, String> {
        if self.planned.may_evict {
            let (pod, minor) = ((self.workload, self.version), self.operator.capabilities().known_minor());
            if let Some(answer) = would_refuse(&self.operator.client, self.resource, pod, minor).await {
                return Ok(answer);
            }
        }
        self.evict_now(why).await
    }

    async fn evict_now(&self, why: String) -> Result<Answer, String> {
        if !self.planned.may_evict {
            return Ok(Answer::NeedsEviction(self.version, why));
        }
        let answer = evict(self.api, self.workload, self.version, self.operator.capabilities().known_minor()).await;
        if let Ok(Answer::Done(_)) = answer {
            let ObjectRef { namespace, name, .. } = self.planned.object;
            info!(namespace, pod = name, why, "Evicted");
        }
        answer
    }
}

/// Those of a patch, under a name by which users recognise it in `metadata.managedFields`.
fn parameters() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// What to do instead of an eviction of `pod`, which is read in that version, because the server would refuse the pod that is made
/// anew. None if it would accept it, and if that cannot be tried: without the right to create pods, and on servers that let new pods
/// wait for initializers. `resource` is that of pods, `minor` that of the server, if it is known.
pub async fn would_refuse(
    client: &Client,
    resource: &ApiResource,
    (pod, version): (&Workload, u64),
    minor: Option<u32>,
) -> Option<Answer> {
    let right = Right::everywhere("create", "", "pods").within(pod.namespace());
    if minor.is_some_and(|minor| minor < WITHOUT_INITIALIZERS) || !may(client, &right).await.unwrap_or_default() {
        return None;
    }
    let replacement = refit::made_anew(pod);
    let error = trial::create(client, resource, pod.namespace(), &replacement, Strictness::Lenient).await.err()?;
    let left = |code| {
        let message = format!("a new pod would be refused: {error}");
        Some(Answer::Left(version, Why { code, message }))
    };
    match error.means() {
        Meaning::MissingRight => None,
        means if means.is_rejection() && error.is_without_dry_run() => None,
        // The old pod counts until it is gone.
        Meaning::Quota if !refit::still_exceeds(pod, &error.exceeded()) => None,
        Meaning::Quota => left(Code::QuotaExceeded),
        Meaning::Admission => left(Code::AdmissionDenied),
        Meaning::Rules => left(Code::ResultInvalid),
        _ => Some(Answer::Failed(format!("cannot try the create of a pod: {error}"))),
    }
}

/// Evicts `pod` by the Eviction API, so that PodDisruptionBudgets hold: only in the version that was read. `minor` is that of the
/// server, if it is known.
///
/// # Errors
/// As of [`refused`].
pub async fn evict(api: &Api<Object>, pod: &Workload, version: u64, minor: Option<u32>) -> Result<Answer, String> {
    let is_old = minor.is_some_and(|minor| minor < EVICTION_V1);
    let metadata = &pod.body["metadata"];
    let eviction = json!({
        "apiVersion": if is_old { "policy/v1beta1" } else { "policy/v1" },
        "kind": "Eviction",
        "metadata": { "name": pod.name(), "namespace": pod.namespace() },
        "deleteOptions": { "preconditions": { "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"] } },
    });
    let parameters = PostParams::default();
    match call(api.create_subresource::<_, Value>("eviction", pod.name(), &parameters, &eviction)).await {
        Ok(_) => Ok(Answer::Done(Done::Evicted)),
        Err(error) if error.means() == Meaning::NotFound => Ok(Answer::NotNeeded(None)),
        Err(error) if is_stale(&error, pod) => Ok(Answer::Changed(version)),
        Err(error) => match error.budget() {
            Some(words) => Ok(Answer::Blocked(words)),
            None => refused(&error, "create", "pods/eviction"),
        },
    }
}

/// Whether the guard of a write to `workload` does not hold any more. A 409 can have another reason: the plugin for quotas could not
/// update a ResourceQuota, or a webhook denies with that code.
fn is_stale(error: &CallError, workload: &Workload) -> bool {
    match error.means() {
        Meaning::FailedTest => true,
        Meaning::Conflict => is_about(error, workload),
        _ => false,
    }
}

fn is_about(error: &CallError, workload: &Workload) -> bool {
    error.is_about(&workload.kind.resource, workload.name())
}

/// What an error of the server means for the rollout.
///
/// # Errors
/// The message, if the server rejects the request itself.
pub fn refused(error: &CallError, verb: &str, resource: &str) -> Result<Answer, String> {
    let message = format!("cannot {verb} {resource}: {error}");
    match error.means() {
        Meaning::NotFound => Ok(Answer::NotNeeded(None)),
        Meaning::MissingRight => Ok(Answer::Refused(message)),
        means if means.is_rejection() => Err(message),
        _ => Ok(Answer::Failed(message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;
    use kube::core::Status;

    #[test]
    fn a_409_is_a_change_of_the_workload_only_if_it_is_about_the_workload() {
        let pods = Kind::find("", "pods").expect("it is built in");
        let pod = Workload::new(pods, json!({ "metadata": { "namespace": "shop", "name": "web-1" } }));
        let changed = "the object has been modified; please apply your changes to the latest version and try again";
        let denied = "admission webhook \"a.example.org\" denied the request: no";
        for (kind, name, message, is_changed, is_left) in [
            ("pods", "web-1", changed, true, false),
            ("resourcequotas", "small", changed, false, false),
            ("", "", changed, false, false),
            ("", "", denied, false, true),
            ("pods", "web-1", denied, false, true),
        ] {
            let details = json!({ "kind": kind, "name": name });
            let status = json!({ "status": "Failure", "code": 409, "message": message, "details": details });
            let status: Status = serde_json::from_value(status).expect("a status");
            let error = CallError::answer(status, 409, None);
            assert_eq!(is_stale(&error, &pod), is_changed, "{kind} {message}");
            // What is no rejection is tried again, and left after the deadline.
            let means = refused(&error, "patch", "pods/resize");
            assert_eq!(means.is_err(), is_left, "{kind} {message}");
            assert!(is_left || matches!(means, Ok(Answer::Failed(_))), "{kind} {message}");
        }
    }
}
