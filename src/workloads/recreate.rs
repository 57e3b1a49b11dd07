//! How kubectl creates a stored object anew. Pure.
//!
//! A stored pod is not what a person once posted. The API server, admission, the scheduler and `kubectl debug` have set fields
//! that a create refuses, or that must be decided anew. kubectl deletes first, so a refused create loses the pod.

use crate::api::is_policy_name;
use crate::workload::Workload;
use kube::core::ApiResource;
use serde_json::{Map, Value};

/// The fields of `metadata` that the API server sets.
const METADATA: [&str; 8] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "managedFields",
];

/// The fields of a pod's `spec` that others than its author set.
const SPEC: [&str; 5] = [
    // Of `kubectl debug`. A create refuses them.
    "ephemeralContainers",
    // The scheduler's choice. A create with it would bypass the scheduler.
    "nodeName",
    // What admission computes from the PriorityClass. A create with another value than today's is refused.
    "priority",
    "preemptionPolicy",
    // The same for the RuntimeClass.
    "overhead",
];

/// Where the token of the ServiceAccount is mounted.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The beginning of the name of its volume, from 1.21 on.
const TOKEN_VOLUME: &str = "kube-api-access-";

/// What a pod names, and a create is refused without.
struct Needed {
    /// The field of the pod's `spec`.
    field: &'static str,
    resource: &'static str,
    /// Whether every cluster has the object of that name.
    is_everywhere: fn(&str) -> bool,
}

const NEEDED: [Needed; 3] = [
    Needed {
        field: "priorityClassName",
        resource: "priorityclasses",
        is_everywhere: |name| name.starts_with("system-"),
    },
    Needed { field: "runtimeClassName", resource: "runtimeclasses", is_everywhere: |_| false },
    Needed { field: "serviceAccountName", resource: "serviceaccounts", is_everywhere: |name| name == "default" },
];

/// The body of `workload` as a create takes it: without what only a server sets. Of a pod also without the decisions about it,
/// and without the volume and the mounts of its token, which the create adds again.
pub fn creatable(workload: &Workload) -> Value {
    let mut body = workload.body.clone();
    if let Some(object) = body.as_object_mut() {
        object.remove("status");
    }
    let remove = |from: Option<&mut Map<String, Value>>, fields: &[&str]| {
        from.into_iter().for_each(|map| map.retain(|field, _| !fields.contains(&field.as_str())));
    };
    remove(body.get_mut("metadata").and_then(Value::as_object_mut), &METADATA);
    if workload.kind.is_pod()
        && let Some(spec) = body.get_mut("spec").and_then(Value::as_object_mut)
    {
        remove(Some(&mut *spec), &SPEC);
        remove_token(spec);
    }
    body
}

/// Removes the token's volume that the server has added to the pod with this `spec`, with its mounts.
fn remove_token(spec: &mut Map<String, Value>) {
    let account = spec.get("serviceAccountName").and_then(Value::as_str).unwrap_or("default").to_owned();
    let is_token = |volume: &Value| {
        let name = volume["name"].as_str().unwrap_or_default();
        let is_secret = volume["secret"]["secretName"] == name;
        let secret = name.strip_prefix(&account).and_then(|rest| rest.strip_prefix("-token-"));
        name.starts_with(TOKEN_VOLUME) && volume["projected"].is_object() || is_secret && secret.is_some()
    };
    let Some(volumes) = spec.get("volumes").and_then(Value::as_array) else { return };
    let Some(volume) = volumes.iter().find(|volume| is_token(volume)).map(|volume| volume["name"].clone()) else {
        return;
    };
    let mut is_mounted_elsewhere = false;
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(mounts) = container.get_mut("volumeMounts").and_then(Value::as_array_mut) else { continue };
            mounts.retain(|mount| mount["name"] != volume || mount["mountPath"] != TOKEN);
            is_mounted_elsewhere |= mounts.iter().any(|mount| mount["name"] == volume);
        }
    }
    if let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut).filter(|_| !is_mounted_elsewhere) {
        volumes.retain(|own| own["name"] != volume);
    }
}

/// The command that deletes `workload` and creates it without the content of the policies `taken_out`, or what to do instead.
pub fn command(taken_out: &[String], workload: &Workload, resource: &ApiResource) -> String {
    if let Some(why) = obstacle(workload) {
        return format!("delete it, and create it from its own manifest: {why}");
    }
    let (namespace, name, address) = (workload.namespace(), workload.name(), address(resource));
    let policies = match taken_out {
        [] => String::new(),
        names => format!(" -p {}", names.join(" -p ")),
    };
    let filter = match (workload.kind.is_pod(), taken_out) {
        (true, _) => format!(" | scpol uninject --recreate -f -{policies}"),
        (false, []) => String::new(),
        (false, _) => format!(" | scpol uninject -f -{policies}"),
    };
    let guard = guard(workload);
    // Its pods keep their volumes, and it takes them over.
    let is_of_volumes = workload.body["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete";
    let cascade = if is_of_volumes { " --cascade=orphan" } else { "" };
    let replace =
        format!("kubectl get -n {namespace} {address}/{name} -o yaml{filter} | kubectl replace --force{cascade} -f -");
    guard + &replace
}

/// Why kubectl cannot create the stored `workload` anew as it is.
fn obstacle(workload: &Workload) -> Option<&'static str> {
    let metadata = &workload.body["metadata"];
    // API servers reject a Job with the selector of another Job, and the stored one has such a selector.
    if workload.kind.resource == "jobs" && workload.kind.is_in("batch") {
        return Some("the stored one has the selector of another Job");
    }
    if metadata["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty()) {
        return Some("its finalizers may keep it longer than kubectl waits, and kubectl then creates nothing");
    }
    if !workload.kind.is_pod() {
        return None;
    }
    // The scheduler does not appear there.
    let mut managers = metadata["managedFields"].as_array().into_iter().flatten();
    if managers.any(|manager| !manager["fieldsV1"]["f:spec"]["f:nodeName"].is_null()) {
        return Some("it names its node itself");
    }
    needed(workload).any(|(_, name)| !is_policy_name(name)).then_some("it names something that cannot exist")
}

/// The beginning of a command that ends before anything is deleted if something that the create of the pod needs is gone.
fn guard(workload: &Workload) -> String {
    let needed: Vec<String> = needed(workload).map(|(resource, name)| format!("{resource}/{name}")).collect();
    match needed[..] {
        [] => String::new(),
        _ => format!("kubectl get -n {} {} && ", workload.namespace(), needed.join(" ")),
    }
}

/// What the create of a pod needs, as resource and name. A workload with a pod template needs nothing: its pods do.
fn needed(workload: &Workload) -> impl Iterator<Item = (&'static str, &str)> {
    let spec = workload.pod_spec().filter(|_| workload.kind.is_pod());
    NEEDED.iter().filter_map(move |needed| {
        let name = spec?.get(needed.field)?.as_str()?;
        (!name.is_empty() && !(needed.is_everywhere)(name)).then_some((needed.resource, name))
    })
}

/// The resource for kubectl, unambiguous even on old servers, which have Deployments in two groups.
pub fn address(resource: &ApiResource) -> String {
    if resource.group.is_empty() {
        return resource.plural.clone();
    }
    format!("{}.{}.{}", resource.plural, resource.version, resource.group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;
    use kube::core::GroupVersionKind;
    use serde_json::json;

    fn pod(spec: &Value) -> Workload {
        let metadata =
            json!({ "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7", "labels": { "a": "b" } });
        let body = json!({ "metadata": metadata, "spec": spec, "status": { "phase": "Running" } });
        Workload::new(Kind::find("", "pods").expect("built in"), body)
    }

    fn told(workload: &Workload) -> String {
        let kind = &workload.kind;
        let gvk = GroupVersionKind::gvk(&kind.group, "v1", kind.kind.as_deref().unwrap_or_default());
        command(&[], workload, &ApiResource::from_gvk_with_plural(&gvk, &kind.resource))
    }

    const PLAIN: &str =
        "kubectl get -n shop pods/web -o yaml | scpol uninject --recreate -f - | kubectl replace --force -f -";

    #[test]
    fn a_create_gets_what_the_author_wrote() {
        let mounts = |more: &[Value]| json!([&[json!({ "name": "logs", "mountPath": "/logs" })], more].concat());
        let token = |name: &str| json!({ "name": name, "mountPath": TOKEN, "readOnly": true });
        for (account, volume) in [
            ("default", json!({ "name": "kube-api-access-x7k2q", "projected": { "sources": [] } })),
            ("web", json!({ "name": "web-token-x7k2q", "secret": { "secretName": "web-token-x7k2q" } })),
        ] {
            let name = volume["name"].as_str().expect("a name");
            let stored = pod(&json!({
                "serviceAccountName": account,
                "containers": [{ "name": "app", "volumeMounts": mounts(&[token(name)]) }],
                "initContainers": [{ "name": "init", "volumeMounts": [token(name)] }],
                "ephemeralContainers": [{ "name": "debug" }],
                "nodeName": "node-1", "priority": 0, "preemptionPolicy": "PreemptLowerPriority", "overhead": { "cpu": "1" },
                "volumes": [{ "name": "logs" }, volume],
                "priorityClassName": "high", "schedulingGates": [{ "name": "g" }], "tolerations": [{ "key": "t" }],
            }));
            let expected = json!({
                "metadata": { "name": "web", "namespace": "shop", "labels": { "a": "b" } },
                "spec": {
                    "serviceAccountName": account,
                    "containers": [{ "name": "app", "volumeMounts": mounts(&[]) }],
                    "initContainers": [{ "name": "init", "volumeMounts": [] }],
                    "volumes": [{ "name": "logs" }],
                    "priorityClassName": "high", "schedulingGates": [{ "name": "g" }], "tolerations": [{ "key": "t" }],
                },
            });
            assert_eq!(creatable(&stored), expected);
        }
    }

    #[test]
    fn a_volume_that_is_mounted_elsewhere_and_a_secret_of_the_user_stay() {
        let elsewhere = json!({
            "containers": [{ "volumeMounts": [{ "name": "kube-api-access-x", "mountPath": "/mine" }] }],
            "volumes": [{ "name": "kube-api-access-x", "projected": {} }],
        });
        let secret = json!({
            "containers": [{ "volumeMounts": [{ "name": "s", "mountPath": TOKEN }] }],
            "volumes": [{ "name": "s", "secret": { "secretName": "default-token-x" } }],
        });
        for spec in [
            elsewhere,
            secret,
            json!({}),
            json!({ "volumes": 7 }),
            json!({ "volumes": [7], "containers": [7] }),
            json!(7),
        ] {
            assert_eq!(creatable(&pod(&spec))["spec"], spec);
        }
        let deployment = Workload::new(
            Kind::find("apps", "deployments").expect("built in"),
            json!({ "metadata": { "uid": "u" }, "spec": { "template": { "spec": { "nodeName": "n", "priority": 1 } } }, "status": {} }),
        );
        let expected = json!({ "metadata": {}, "spec": deployment.body["spec"] });
        assert_eq!(creatable(&deployment), expected, "a pod template is its author's");
    }

    #[test]
    fn what_the_create_needs_is_looked_for_before_the_deletion() {
        for (spec, guard) in [
            (json!({}), ""),
            (json!({ "serviceAccountName": "default", "priorityClassName": "system-node-critical" }), ""),
            (json!({ "priorityClassName": "high" }), "kubectl get -n shop priorityclasses/high && "),
            (
                json!({ "runtimeClassName": "kata", "serviceAccountName": "web", "priorityClassName": "" }),
                "kubectl get -n shop runtimeclasses/kata serviceaccounts/web && ",
            ),
        ] {
            assert_eq!(told(&pod(&spec)), format!("{guard}{PLAIN}"));
        }
    }

    #[test]
    fn where_kubectl_would_fail_there_is_no_command() {
        let with = |metadata: Value| {
            let mut workload = pod(&json!({}));
            workload.body["metadata"]
                .as_object_mut()
                .expect("a map")
                .extend(metadata.as_object().cloned().unwrap_or_default());
            told(&workload)
        };
        let by = |field: &str| json!({ "managedFields": [{ "manager": "kubectl", "fieldsV1": { "f:spec": { field: {} } } }] });
        for (metadata, instead) in [
            (json!({ "finalizers": [] }), None),
            (json!({ "finalizers": ["example.org/x"] }), Some("its finalizers may keep it")),
            (by("f:nodeName"), Some("it names its node itself")),
            (by("f:containers"), None),
        ] {
            let told = with(metadata.clone());
            match instead {
                None => assert_eq!(told, PLAIN, "{metadata}"),
                Some(why) => {
                    assert!(told.starts_with("delete it, and create it from its own manifest: ") && told.contains(why))
                }
            }
        }
        assert!(told(&pod(&json!({ "runtimeClassName": "x; rm -rf /" }))).starts_with("delete it"));
    }

    #[test]
    fn a_stateful_set_that_would_take_its_volumes_along_leaves_its_pods() {
        let kind = Kind::find("apps", "statefulsets").expect("built in");
        let spec =
            json!({ "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete", "whenScaled": "Retain" } });
        let body = json!({ "metadata": { "name": "db", "namespace": "shop" }, "spec": spec });
        let expected =
            "kubectl get -n shop statefulsets.v1.apps/db -o yaml | kubectl replace --force --cascade=orphan -f -";
        assert_eq!(told(&Workload::new(kind, body)), expected);
    }
}
