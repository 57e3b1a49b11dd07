//! Dry-run creates, which show what the API server really does.

use super::Unavailable;
use crate::api::code::Code;
use crate::api::pod_security::Standard;
use crate::cluster::answer::Meaning;
use crate::cluster::api::path;
use crate::cluster::client::{CallError, call};
use crate::inject::{self, Template};
use crate::workload::{Kind, Workload};
use http::Request;
use kube::Client;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The name of every object in a trial.
const NAME: &str = "scpol-probe";

/// Creates `object` in `namespace` by dry run. Returns the object that the server would store.
///
/// # Errors
/// If the server cannot be reached, or rejects the object.
pub async fn create(
    client: &Client,
    resource: &ApiResource,
    namespace: &str,
    object: &Value,
    strictness: Strictness,
) -> Result<Value, CallError> {
    let strict = if strictness == Strictness::Strict { "&fieldValidation=Strict" } else { "" };
    let path = path(resource, Some(namespace), None).map_err(|error| CallError::Unsent(error.to_string()))?;
    let body = serde_json::to_vec(object).expect("an object is JSON");
    let request =
        Request::post(format!("{path}?dryRun=All{strict}")).header("Content-Type", "application/json").body(body);
    // The request is raw, because typed metadata would drop unknown fields.
    call(client.request::<Value>(request.expect("a well-formed request"))).await
}

/// What the server does with unknown fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// The server drops them, which is its default.
    Lenient,
    /// The server rejects the create, from 1.25 on. Older servers drop them.
    Strict,
}

/// The smallest object of `kind` that every version of the server accepts.
pub fn sample(kind: &Kind, resource: &ApiResource) -> Value {
    let labels = json!({ "app.kubernetes.io/name": NAME });
    let mut object = json!({ "apiVersion": resource.api_version, "kind": resource.kind, "metadata": { "name": NAME, "labels": labels } });
    let Some(path) = &kind.pod_path else { return object };
    let restart = if matches!(kind.resource.as_str(), "cronjobs" | "jobs") { "OnFailure" } else { "Always" };
    // The operator's namespace has the Pod Security level `restricted`, which requires these fields. Old servers drop them.
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
        // The server adds a selector of its own.
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

/// Tries an object of `kind` that contains `template`, in a namespace where no engine injects.
///
/// # Errors
/// Why the server would reject a workload with the template, or why it cannot be reached.
pub async fn template(
    client: &Client,
    kind: &Arc<Kind>,
    resource: &ApiResource,
    namespace: &str,
    template: &Template,
) -> Result<(), Unavailable> {
    let mut workload = Workload::new(kind, sample(kind, resource));
    add_volumes(&mut workload, template);
    let plan = |workload: &Workload| inject::plan(workload, &[template], &[template], Standard::NEWEST);
    let planned = plan(&workload).or_else(|_| {
        allow_more(&mut workload, template);
        plan(&workload)
    });
    let Ok(patch) = planned else { return Ok(()) };
    let object = workload.patched(&patch);
    let stand_in = stand_in(kind, &object).zip(stand_in(kind, &workload.body));
    let stand_in = stand_in.map(|((resource, object), (_, without))| (resource, object, without));
    for (resource, object, without) in [(resource.clone(), object, workload.body)].into_iter().chain(stand_in) {
        let error = match create(client, &resource, namespace, &object, Strictness::Strict).await {
            Ok(stored) => match dropped(&object, &stored, template, kind) {
                None => continue,
                Some(field) => return Err(behind_a_gate(&field)),
            },
            Err(error) => error,
        };
        match error.code() {
            0 => return Err(error.into()),
            // With these codes the server has not looked at the object, unless another webhook denied it.
            429 | 503 | 504 if !error.is_denied() => return Err(error.into()),
            // Other admission may reject every trial in this namespace. So the same object is tried without the template.
            400 | 422 if kind.is_in_table() => {
                match create(client, &resource, namespace, &without, Strictness::Strict).await {
                    Err(other) if matches!(other.code(), 0 | 429 | 500..) => return Err(other.into()),
                    Err(other) if other.cause() == error.cause() => {}
                    _ => {
                        let why = error.cause();
                        let message = format!("spec.template: this server refuses a {} with it: {why}", resource.kind);
                        return Err(Unavailable::new(Code::TemplateInvalid, message));
                    }
                }
            }
            // Other rejections depend on this namespace, or on a custom resource with rules of its own.
            _ => {}
        }
    }
    Ok(())
}

/// The first field of `template` that the server knows and dropped from a trial object of `kind`, because its feature gate is off:
/// `containers[envoy].resizePolicy`.
fn dropped(sent: &Value, stored: &Value, template: &Template, kind: &Kind) -> Option<String> {
    let spec = |object: &Value| {
        let path = kind.pod_path.as_deref().unwrap_or_default();
        path.iter().fold(object, |at, step| &at[step.as_str()])["spec"].clone()
    };
    // A custom resource has a schema of its own.
    if !kind.is_in_table() {
        return None;
    }
    let (sent, stored) = (spec(sent), spec(stored));
    let names = |items: &[Map<String, Value>]| items.iter().filter_map(|item| item.get("name").cloned()).collect();
    let own: [(&str, Vec<Value>); 4] = [
        ("containers", names(&template.spec.containers)),
        ("initContainers", names(&template.spec.containers)),
        ("initContainers", names(&template.spec.init_containers)),
        ("volumes", names(&template.spec.volumes)),
    ];
    let of_own = own.iter().find_map(|(list, names)| {
        names.iter().find_map(|name| {
            let (sent, stored) = (named(&sent[list], name)?, named(&stored[list], name)?);
            Some(format!("{list}[{}].{}", name.as_str()?, missing(sent, stored)?))
        })
    });
    // The first container is that of the workload: it gets variables and mounts.
    of_own.or_else(|| {
        let in_user_container = |list: &&str| missing(&sent["containers"][0][list], &stored["containers"][0][list]);
        let list = ["env", "envFrom", "volumeMounts"].into_iter().find(|list| in_user_container(list).is_some())?;
        Some(format!("{list}{}", in_user_container(&list)?))
    })
}

/// The item of `list` with that name.
fn named<'a>(list: &'a Value, name: &Value) -> Option<&'a Value> {
    list.as_array()?.iter().find(|item| item["name"] == *name)
}

/// The path of the first field of `sent` that `stored` lacks. A field without content may be left out.
fn missing(sent: &Value, stored: &Value) -> Option<String> {
    let is_empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) => false,
    };
    match (sent, stored) {
        (Value::Object(sent), Value::Object(stored)) => {
            sent.iter().filter(|(_, value)| !is_empty(value)).find_map(|(field, value)| match stored.get(field) {
                None => Some(field.clone()),
                Some(stored) => missing(value, stored).map(|rest| {
                    let dot = if rest.starts_with('[') { "" } else { "." };
                    format!("{field}{dot}{rest}")
                }),
            })
        }
        // Other admission may add items, so only lists of the same length are compared.
        (Value::Array(sent), Value::Array(stored)) if sent.len() == stored.len() => {
            let mut pairs = sent.iter().zip(stored).enumerate();
            pairs.find_map(|(at, (sent, stored))| Some(format!("[{at}].{}", missing(sent, stored)?)))
        }
        _ => None,
    }
}

fn behind_a_gate(field: &str) -> Unavailable {
    let message = format!(
        "spec.template: this server drops `{field}` from new workloads, because the feature gate of that field is off; remove the field, or start the API server with the gate on"
    );
    Unavailable::new(Code::UnknownTemplateField, message)
}

/// A Deployment with the same pods if `object` is a StatefulSet. Old servers, such as 1.13, accept any pod template in a
/// StatefulSet and then fail to create its pods.
fn stand_in(kind: &Kind, object: &Value) -> Option<(ApiResource, Value)> {
    let is_stateful = kind.is_in_table() && kind.resource == "statefulsets";
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "Deployment"));
    let spec = json!({ "replicas": 0, "selector": object["spec"]["selector"], "template": object["spec"]["template"] });
    let object = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": object["metadata"], "spec": spec });
    is_stateful.then_some((resource, object))
}

/// Gives the pod what a template may need of it: moves what forbids root to its container, and adds the variables of mounts.
fn allow_more(workload: &mut Workload, template: &Template) {
    let pod = format!("{}/spec", workload.pod_pointer());
    let Some(pod) = workload.body.pointer_mut(&pod) else { return };
    for field in ["runAsNonRoot", "runAsUser"] {
        let value = pod["securityContext"].as_object_mut().and_then(|context| context.remove(field));
        pod["containers"][0]["securityContext"][field] = value.unwrap_or_default();
    }
    let env = template.missing_variables().into_iter().map(|name| json!({ "name": name, "value": "probe" }));
    pod["containers"][0]["env"] = env.collect();
}

/// Adds the volumes that `template` mounts and does not define. A real workload defines them.
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
    // A block device must be a claim.
    let claims =
        devices.difference(&own).map(|name| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } }));
    let others = mounts.difference(&own).filter(|name| !devices.contains(*name));
    let missing: Vec<_> = claims.chain(others.map(|name| json!({ "name": name, "emptyDir": {} }))).collect();
    let pointer = format!("{}/spec", workload.pod_pointer());
    if let Some(pod) = workload.body.pointer_mut(&pointer).filter(|_| !missing.is_empty()) {
        pod["volumes"] = json!(missing);
    }
}

/// Why the rejected trial create of a `resource` in `namespace` verifies nothing. Somebody else rejects the object: other
/// admission, a quota, or the rules of a custom resource.
///
/// # Errors
/// Why no trial is possible: the server does not answer, a right is missing, or the server lacks dry runs.
pub fn refused(error: &CallError, resource: &ApiResource, namespace: &str) -> Result<String, Unavailable> {
    match error.means() {
        Meaning::Unanswered | Meaning::Unsent => Err(Unavailable::new(Code::ServerAway, error.to_string())),
        Meaning::MissingRight => Err(Unavailable::new(
            Code::MissingRight,
            format!(
                "the operator may not `create` {} in its namespace `{namespace}`, which it tries without storing; apply the shipped RBAC",
                resource.plural
            ),
        )),
        _ if error.is_dry_run_disabled() => Err(Unavailable::new(
            Code::VersionUnsupported,
            format!(
                "the server refuses to try a create without storing it ({error}); on 1.12 start it with `--feature-gates=DryRun=true`"
            ),
        )),
        _ => {
            let why = error.cause_beside(NAME);
            Ok(format!("not proven: a {} in `{namespace}`, a trial, was refused: {why}", resource.kind))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_the_server_drops_is_found_and_what_it_adds_or_leaves_out_empty_is_not() {
        let sent = json!({
            "name": "a", "image": "i:1", "tty": false, "args": [], "resources": {},
            "ports": [{ "containerPort": 80, "name": "http" }],
            "lifecycle": { "preStop": { "sleep": { "seconds": 1 } } },
        });
        for (stored, expected) in [
            (sent.clone(), None),
            (
                json!({ "name": "a", "image": "other", "ports": sent["ports"], "lifecycle": sent["lifecycle"], "more": 1 }),
                None,
            ),
            (json!({ "name": "a", "image": "i:1", "lifecycle": sent["lifecycle"] }), Some("ports")),
            (
                json!({ "name": "a", "image": "i:1", "ports": [{ "name": "http" }], "lifecycle": sent["lifecycle"] }),
                Some("ports[0].containerPort"),
            ),
            (
                json!({ "name": "a", "image": "i:1", "ports": sent["ports"], "lifecycle": { "preStop": {} } }),
                Some("lifecycle.preStop.sleep"),
            ),
            (json!({ "name": "a", "image": "i:1", "ports": [{}, {}], "lifecycle": sent["lifecycle"] }), None),
        ] {
            assert_eq!(missing(&sent, &stored).as_deref(), expected, "{stored}");
        }
    }
}
