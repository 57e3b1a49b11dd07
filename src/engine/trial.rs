//! Creates that are tried and not stored: they show what the API server really does.

use super::Unavailable;
use crate::api::code::Code;
use crate::cluster::client::{CallError, call};
use crate::inject::{self, Template};
use crate::workload::{Kind, Workload};
use http::Request;
use kube::Client;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The name of every object that is tried.
const NAME: &str = "scpol-probe";

/// Posts `object` to `namespace` without storing it. Gives what would have been stored.
///
/// # Errors
/// If the server cannot be reached, or refuses.
pub async fn create(
    client: &Client,
    resource: &ApiResource,
    namespace: &str,
    object: &Value,
    strictness: Strictness,
) -> Result<Value, CallError> {
    let root = if resource.group.is_empty() { "api" } else { "apis" };
    let strict = if strictness == Strictness::Strict { "&fieldValidation=Strict" } else { "" };
    let path =
        format!("/{root}/{}/namespaces/{namespace}/{}?dryRun=All{strict}", resource.api_version, resource.plural);
    let body = serde_json::to_vec(object).expect("an object is JSON");
    let request = Request::post(path).header("Content-Type", "application/json").body(body);
    // Raw, since typed metadata would drop what it does not know.
    call(client.request::<Value>(request.expect("a well-formed request"))).await
}

/// What becomes of fields that the server does not know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// They are dropped, as the server does by itself.
    Lenient,
    /// The create is refused, on servers from 1.25; older ones drop them.
    Strict,
}

/// The least object of `kind` that every version of the server accepts.
pub fn sample(kind: &Kind, resource: &ApiResource) -> Value {
    let labels = json!({ "app.kubernetes.io/name": NAME });
    let mut object = json!({ "apiVersion": resource.api_version, "kind": resource.kind, "metadata": { "name": NAME, "labels": labels } });
    let Some(path) = &kind.pod_path else { return object };
    let restart = if matches!(kind.resource.as_str(), "cronjobs" | "jobs") { "OnFailure" } else { "Always" };
    // What the Pod Security level `restricted` asks for, which is that of the operator's namespace; old servers drop it.
    let pod = json!({
        "containers": [{
            "name": "probe", "image": "probe",
            "resources": { "requests": { "cpu": "1m", "memory": "1Mi" }, "limits": { "cpu": "1m", "memory": "1Mi" } },
            "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
        }],
        "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
        "automountServiceAccountToken": false,
        "restartPolicy": restart,
        "serviceAccountName": "scpol",
    });
    let template = json!({ "metadata": { "labels": labels }, "spec": pod });
    object["spec"] = match kind.kind.as_deref() {
        Some("Pod") => pod,
        Some("CronJob") => json!({ "schedule": "0 0 1 1 *", "suspend": true }),
        // The server makes a selector of its own.
        Some("Job") => json!({ "suspend": true }),
        Some("StatefulSet") => {
            json!({ "replicas": 0, "serviceName": NAME, "selector": { "matchLabels": labels } })
        }
        Some("DaemonSet") => json!({ "selector": { "matchLabels": labels } }),
        // Most custom resources with a pod template are like Deployments.
        _ => json!({ "replicas": 0, "selector": { "matchLabels": labels } }),
    };
    if !path.is_empty() {
        *path.iter().fold(&mut object, |at, step| &mut at[step.as_str()]) = template;
    }
    object
}

/// Tries an object of `kind` with `template` in it, in a namespace that no engine touches.
///
/// # Errors
/// Why the server would refuse a workload because of the template; or that it cannot be reached.
pub async fn template(
    client: &Client,
    kind: &Arc<Kind>,
    resource: &ApiResource,
    namespace: &str,
    template: &Template,
) -> Result<(), Unavailable> {
    let mut workload = Workload::new(kind, sample(kind, resource));
    add_volumes(&mut workload, template);
    let Ok(patch) = inject::plan(&workload, &[template], &[template]) else { return Ok(()) };
    let object = workload.patched(&patch);
    let stand_in = stand_in(kind, &object).zip(stand_in(kind, &workload.body));
    let stand_in = stand_in.map(|((resource, object), (_, without))| (resource, object, without));
    for (resource, object, without) in [(resource.clone(), object, workload.body)].into_iter().chain(stand_in) {
        let tried = create(client, &resource, namespace, &object, Strictness::Strict).await;
        let Err(error) = tried else { continue };
        match error.code() {
            0 => return Err(error.into()),
            // The server has not looked at it; unless that is what somebody else's webhook has to say.
            429 | 503 | 504 if !error.to_string().contains("denied the request") => return Err(error.into()),
            // Somebody else's admission may refuse whatever is tried there, for the same reason.
            400 | 422 if kind.is_in_table() => {
                match create(client, &resource, namespace, &without, Strictness::Strict).await {
                    Err(other) if matches!(other.code(), 0 | 429 | 500..) => return Err(other.into()),
                    Err(other) if cause(&other) == cause(&error) => {}
                    _ => {
                        let why = cause(&error);
                        let message = format!("spec.template: this server refuses a {} with it: {why}", resource.kind);
                        return Err(Unavailable::new(Code::TemplateInvalid, message));
                    }
                }
            }
            // What else speaks against it is of that namespace, or of a custom resource whose rules are its owner's.
            _ => {}
        }
    }
    Ok(())
}

/// A Deployment of the same pods, where `object` is a StatefulSet: old servers, 1.13 for one, take any pod template in that, and
/// then make no pod of it.
fn stand_in(kind: &Kind, object: &Value) -> Option<(ApiResource, Value)> {
    let is_stateful = kind.is_in_table() && kind.resource == "statefulsets";
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "Deployment"));
    let spec = json!({ "replicas": 0, "selector": object["spec"]["selector"], "template": object["spec"]["template"] });
    let object = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": object["metadata"], "spec": spec });
    is_stateful.then_some((resource, object))
}

/// The volumes that `template` mounts and does not bring: the workload has them.
fn add_volumes(workload: &mut Workload, template: &Template) {
    let spec = &template.spec;
    let name_of = |item: &Map<String, Value>| item.get("name").and_then(Value::as_str).map(str::to_owned);
    let containers = || spec.containers.iter().chain(&spec.init_containers);
    let used = |field: &'static str| {
        let items = containers().filter_map(move |container| container.get(field)?.as_array()).flatten();
        items.filter_map(|mount| name_of(mount.as_object()?)).collect::<BTreeSet<_>>()
    };
    let own: BTreeSet<_> = spec.volumes.iter().filter_map(name_of).collect();
    let devices = used("volumeDevices");
    let mounts: BTreeSet<_> =
        used("volumeMounts").into_iter().chain(spec.volume_mounts.iter().filter_map(name_of)).collect();
    // Only a claim can be a block device.
    let claims =
        devices.difference(&own).map(|name| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } }));
    let others = mounts.difference(&own).filter(|name| !devices.contains(*name));
    let missing: Vec<_> = claims.chain(others.map(|name| json!({ "name": name, "emptyDir": {} }))).collect();
    let pointer = format!("{}/spec", workload.pod_pointer());
    if let Some(pod) = workload.body.pointer_mut(&pointer).filter(|_| !missing.is_empty()) {
        pod["volumes"] = json!(missing);
    }
}

/// What the server says is wrong, without the whole object that some versions put before it.
pub fn cause(error: &CallError) -> String {
    let text = error.to_string();
    text.rsplit("validation failure list:").next().unwrap_or_default().trim().to_owned()
}

/// What it says that a trial create of a `resource` in `namespace` was refused: that nobody can tell, since somebody else refuses what
/// is tried: admission of others, a quota, the rules of a custom resource.
///
/// # Errors
/// Why nothing can be tried: the server is away, we may not, or it cannot.
pub fn refused(error: &CallError, resource: &ApiResource, namespace: &str) -> Result<String, Unavailable> {
    let text = error.to_string();
    match error.code() {
        0 => Err(Unavailable::new(Code::ServerAway, text)),
        403 if text.contains("cannot create resource") => Err(Unavailable::new(
            Code::MissingRight,
            format!(
                "the operator may not `create` {} in its namespace `{namespace}`, which it tries without storing; apply the shipped RBAC",
                resource.plural
            ),
        )),
        // Its own words (apiserver `create.go`): "the dryRun alpha feature is disabled"; later versions say "beta".
        400 if text.contains("the dryRun") && text.contains("feature is disabled") => Err(Unavailable::new(
            Code::VersionUnsupported,
            format!(
                "the server refuses to try a create without storing it ({error}); on 1.12 start it with `--feature-gates=DryRun=true`"
            ),
        )),
        _ => {
            let why = cause(error);
            let why = why.strip_prefix("Internal error occurred: ").unwrap_or(&why);
            let why = why.split_once(&format!("\"{NAME}\" is forbidden: ")).map_or(why, |(_, why)| why);
            Ok(format!("not proven: a {} in `{namespace}`, a trial, was refused: {why}", resource.kind))
        }
    }
}
