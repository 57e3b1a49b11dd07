//! Brings one workload up to date: by a patch of its pod template, by a patch of the running pod, or by an eviction.
//!
//! Each write is guarded: a patch applies only to the version that was read, and an eviction only to the same pod. So nothing is
//! done twice, whichever leader does it.

use super::plan::{Done, Left};
use super::store::Revisions;
use crate::api::v1alpha1::PodUpdate;
use crate::cluster::api::Api;
use crate::cluster::client::{CallError, call};
use crate::cluster::object::Object;
use crate::engine::registration::is_missing_right;
use crate::operator::Operator;
use crate::policy::Policy;
use crate::update::{self, Carries, PodChange};
use crate::workload::Workload;
use crate::workloads::census;
use crate::workloads::fleet::RESTARTED;
use crate::workloads::waiting::ObjectRef;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::sync::Arc;
use tracing::{debug, info};

/// The first minor version of Kubernetes that serves `pods/resize` without a feature gate.
pub const RESIZE: u32 = 33;
/// The first minor version of Kubernetes that serves evictions as policy/v1.
const EVICTION_V1: u32 = 22;

/// The result of an attempt on one workload.
#[derive(Debug)]
pub enum Acted {
    Done(Done),
    /// It is gone, matches no more, or carries the revision already.
    NotNeeded,
    /// It was changed meanwhile. The watch shows its new version.
    Changed,
    /// It cannot be brought up to date, in that version.
    Left(u64, Left),
    /// A PodDisruptionBudget does not allow it now. Holds its words.
    Blocked(String),
    /// A right is missing.
    Refused(String),
    /// The server rejects the change itself.
    Rejected(String),
    /// The server does not answer, or has too much to do.
    Failed(String),
}

/// Updates `object` to the revision of `policy`. `may_evict` is asked before an eviction.
pub async fn update(
    operator: &Operator,
    revisions: &Revisions,
    policy: &Arc<Policy>,
    pod_update: PodUpdate,
    object: &ObjectRef,
    is_restart: bool,
    may_evict: impl Fn() -> bool,
) -> Acted {
    // After a resize, what is left is one patch.
    for _ in 0..2 {
        match attempt(operator, revisions, policy, pod_update, object, is_restart, &may_evict).await {
            Attempt::Acted(acted) => return acted,
            Attempt::Resized => {}
        }
    }
    Acted::Changed
}

/// The result of one write.
enum Attempt {
    Acted(Acted),
    /// The resources of the running pod are those of the revision. The rest is not yet.
    Resized,
}

impl From<Acted> for Attempt {
    fn from(acted: Acted) -> Self {
        Self::Acted(acted)
    }
}

async fn attempt(
    operator: &Operator,
    revisions: &Revisions,
    policy: &Arc<Policy>,
    pod_update: PodUpdate,
    object: &ObjectRef,
    is_restart: bool,
    may_evict: &impl Fn() -> bool,
) -> Attempt {
    let Some(resource) = operator.resource(&object.kind) else { return Acted::NotNeeded.into() };
    let api = Api::<Object>::namespaced_with(operator.client.clone(), &object.namespace, &resource);
    let stored = match call(api.get_opt(&object.name)).await {
        Ok(Some(stored)) => stored,
        Ok(None) => return Acted::NotNeeded.into(),
        Err(error) => return refused(&error, "get", &resource.plural).into(),
    };
    let namespace = match operator.namespaces.read(&operator.client, &object.namespace).await {
        Ok(namespace) => namespace,
        Err(error) => return refused(&error, "get", "namespaces").into(),
    };
    let version = stored.version();
    let workload = Workload::new(&object.kind, stored.value()).within(namespace);
    let (policies, site) = (operator.snapshot().policies, operator.site());
    if !census::is_matched(&workload, &policy.name, &policies, &site) || !stored.is_initialized() {
        return Acted::NotNeeded.into();
    }
    let at = At { operator, api: &api, object, workload: &workload };
    let is_pod = object.kind.is_pod();
    match update::carries(&workload, policy, &site) {
        Carries::This if !is_restart => return Acted::NotNeeded.into(),
        Carries::This => {
            return match update::untouchable(&workload) {
                Some(left) => Acted::Left(version, left.into()),
                None if !is_pod => at.restart().await,
                None if may_evict() => at.evict().await,
                None => Acted::Changed,
            }
            .into();
        }
        Carries::Other(_) | Carries::Nothing | Carries::Unreadable => {}
    }
    let from = revisions.latest_first(&policy.name);
    if !is_pod {
        return match update::template_update(&workload, from, policy, &policies, &site) {
            Ok(change) => at.patch(change.patch).await,
            Err(left) => Acted::Left(version, left.into()),
        }
        .into();
    }
    let can_resize = operator.capabilities().known_minor().is_none_or(|minor| minor >= RESIZE);
    let (patch, resize) = match update::pod_update(&workload, from, policy, &policies, &site, can_resize) {
        PodChange::Leave(left) => return Acted::Left(version, left.into()).into(),
        PodChange::InPlace { patch, resize } if pod_update == PodUpdate::InPlaceOrRecreate => (patch, resize),
        PodChange::InPlace { .. } | PodChange::Recreate(_) if may_evict() => return at.evict().await.into(),
        PodChange::InPlace { .. } | PodChange::Recreate(_) => return Acted::Changed.into(),
    };
    // First the resources, which do not restart a container, then all else together with the marker. If the process ends between the
    // two, the next leader finds the resources as they should be.
    let is_resize = resize.is_some();
    let acted = match resize {
        Some(resize) => at.resize(resize).await,
        None => at.patch(patch).await,
    };
    match acted {
        Acted::Done(_) if is_resize => Attempt::Resized,
        // The server does not allow the change on a running pod: its rules are the last word.
        Acted::Rejected(why) if may_evict() => {
            debug!(namespace = object.namespace, pod = object.name, why, "Not in place");
            at.evict().await.into()
        }
        acted => acted.into(),
    }
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
    object: &'a ObjectRef,
    workload: &'a Workload,
}

impl At<'_> {
    /// Has the controller of the workload make all its pods anew, as `kubectl rollout restart` does.
    async fn restart(&self) -> Acted {
        let metadata = self.workload.pod().map(|pod| &pod["metadata"]).unwrap_or(&Value::Null);
        let now = Timestamp::now().to_string();
        let patch = json!([
            { "op": "test", "path": "/metadata/uid", "value": self.workload.uid() },
            { "op": "test", "path": "/metadata/resourceVersion", "value": self.workload.resource_version() },
            annotate(&self.workload.pod_pointer(), metadata, RESTARTED, &now),
        ]);
        self.patch(serde_json::from_value(patch).expect("the shape is fixed")).await
    }

    async fn patch(&self, patch: json_patch::Patch) -> Acted {
        let patch = Patch::<()>::Json(patch);
        self.patched(call(self.api.patch(&self.object.name, &PatchParams::default(), &patch)).await, "")
    }

    async fn resize(&self, resize: Value) -> Acted {
        let (name, patch) = (&self.object.name, Patch::Strategic(resize));
        self.patched(call(self.api.patch_subresource("resize", name, &PatchParams::default(), &patch)).await, "/resize")
    }

    /// What the answer to a patch of the workload, or of its `subresource`, means.
    fn patched(&self, answer: Result<Object, CallError>, subresource: &str) -> Acted {
        let ObjectRef { kind, namespace, name } = self.object;
        match answer {
            Ok(stored) => {
                info!(resource = kind.resource, namespace, name, "Updated");
                Acted::Done(Done::Patched(stored.version()))
            }
            // The guard does not hold any more.
            Err(error) if error.code() == 409 || is_failed_test(&error) => Acted::Changed,
            Err(error) => refused(&error, "patch", &format!("{}{subresource}", kind.resource)),
        }
    }

    /// Evicts the pod by the Eviction API, so that PodDisruptionBudgets hold.
    async fn evict(&self) -> Acted {
        let is_old = self.operator.capabilities().known_minor().is_some_and(|minor| minor < EVICTION_V1);
        let metadata = &self.workload.body["metadata"];
        let ObjectRef { namespace, name, .. } = self.object;
        let eviction = json!({
            "apiVersion": if is_old { "policy/v1beta1" } else { "policy/v1" },
            "kind": "Eviction",
            "metadata": { "name": name, "namespace": namespace },
            "deleteOptions": { "preconditions": { "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"] } },
        });
        let parameters = PostParams::default();
        let evicted = self.api.create_subresource::<_, Value>("eviction", name, &parameters, &eviction);
        match call(evicted).await {
            Ok(_) => {
                info!(namespace, pod = name, "Evicted");
                Acted::Done(Done::Evicted)
            }
            Err(error) if error.code() == 404 => Acted::NotNeeded,
            Err(error) if error.code() == 409 => Acted::Changed,
            // 500: more than one budget selects the pod, which the API of evictions rejects.
            Err(error)
                if error.code() == 429 || error.code() == 500 && error.to_string().contains("PodDisruptionBudget") =>
            {
                Acted::Blocked(budget(&error))
            }
            Err(error) => refused(&error, "create", "pods/eviction"),
        }
    }
}

/// The words of a server about a PodDisruptionBudget, with its name where they have it.
fn budget(error: &CallError) -> String {
    let details = match error {
        CallError::Refused(status) => status.details.as_ref(),
        CallError::Away(_) | CallError::Unsent(_) => None,
    };
    let causes = details.into_iter().flat_map(|details| &details.causes);
    causes.map(|cause| cause.message.clone()).find(|message| !message.is_empty()).unwrap_or_else(|| error.to_string())
}

/// Whether a `test` of a JSON Patch has failed: the object is not the one that was read. Most servers name no cause for that, and
/// name one for an invalid object.
pub fn is_failed_test(error: &CallError) -> bool {
    let CallError::Refused(status) = error else { return false };
    let has_cause = status.details.as_ref().is_some_and(|details| !details.causes.is_empty());
    let is_untold = status.code == 422 && !has_cause && status.message.starts_with("the server rejected our request");
    is_untold || matches!(status.code, 400 | 422 | 500) && status.message.contains("testing path")
}

/// What an error of the server means for the rollout.
fn refused(error: &CallError, verb: &str, resource: &str) -> Acted {
    match error.code() {
        404 => Acted::NotNeeded,
        403 if is_missing_right(error) => Acted::Refused(format!("cannot {verb} {resource}: {error}")),
        400 | 403 | 405 | 422 => Acted::Rejected(format!("cannot {verb} {resource}: {error}")),
        _ => Acted::Failed(format!("cannot {verb} {resource}: {error}")),
    }
}

impl From<update::Left> for Left {
    fn from(left: update::Left) -> Self {
        Self { code: left.cause.code(), message: left.message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_of_another_version_is_told_from_one_that_the_server_rejects() {
        let error = |code: u16, message: &str, causes: Value| {
            let status = json!({
                "status": "Failure", "code": code, "message": message, "reason": "Invalid", "details": { "causes": causes },
            });
            CallError::Refused(serde_json::from_value(status).unwrap())
        };
        let untold = "the server rejected our request due to an error in our request";
        assert!(is_failed_test(&error(422, untold, json!([]))), "as 1.13 and 1.37 say it");
        assert!(is_failed_test(&error(500, "testing path /metadata/uid: failed", json!([]))));
        let cause = json!([{ "reason": "FieldValueInvalid", "message": "Invalid value", "field": "spec" }]);
        assert!(!is_failed_test(&error(422, untold, cause.clone())));
        assert!(!is_failed_test(&error(422, "Deployment.apps \"web\" is invalid: spec", cause)));
        assert!(!is_failed_test(&error(403, "pods is forbidden", json!([]))));
        assert!(!is_failed_test(&CallError::Away("no route".into())));
    }
}
