//! Brings a policy in force, and takes it out again.
//!
//! *Serve before registering*: the API must be served, the list and watch of every target in sync, and the rights there,
//! before the server is told to put our name on new objects. Then a create that is not stored shows whether it does.
//! *Unregister before leaving*: the other way round, and what still waits for us is drained.

use super::render;
use super::types::{self, InitializerConfiguration};
use super::watch::{Shared, Standing, sweep};
use crate::api::code::Code;
use crate::api::{MANAGED_BY, MANAGER};
use crate::cluster::client::{CallError, call};
use crate::engine::Unavailable;
use crate::policy::Policy;
use crate::workload::Kind;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use kube::api::{DeleteParams, DynamicObject, PostParams, Preconditions};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::info;

/// Every API server polls the configurations once a second (apiserver `configuration_manager.go`), so one that changes is in
/// force everywhere after 1-3 s. Kubernetes' own tests wait this long.
pub const SETTLING: Duration = Duration::from_secs(3);
/// Within this time a registration must show in a create that is not stored.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// The annotation that we set on a configuration before we delete it ourselves.
const REMOVING: &str = "scpol.dev/removing";

/// Registers `policy` and proves that it is in force. Gives what could not be proven: the server may refuse every custom
/// resource that we could try.
///
/// The watches of its kinds must be in sync.
///
/// # Errors
/// Why it is not in force; nothing is registered then.
pub async fn bring_up(shared: &Shared, policy: &Policy) -> Result<Option<Unproven>, Unavailable> {
    check_rights(shared, policy).await?;
    let wanted = render::configuration(policy, &shared.capabilities())?;
    apply(&shared.client, &wanted).await?;
    match prove(shared, policy).await {
        Ok(unproven) => {
            let is_proven = unproven.is_none();
            info!(policy = policy.name, initializer = policy.initializer_name, is_proven, "Registered");
            Ok(unproven)
        }
        // Perhaps it is in force: who cannot ask must not take it away, and could not.
        Err(unavailable) if unavailable.code == Code::ServerAway => Err(unavailable),
        Err(unavailable) => {
            remove(&shared.client, &render::name(&policy.name)).await?;
            Err(unavailable)
        }
    }
}

/// Why nobody knows whether the server puts our name on new objects of a kind.
pub type Unproven = (Code, String);

/// A failed call, as a reason why a policy is not in force.
impl From<CallError> for Unavailable {
    fn from(error: CallError) -> Self {
        let code = if error.code() == 403 { Code::MissingRight } else { Code::ServerAway };
        Self::new(code, error.to_string())
    }
}

/// Asks the server whether we may do to every target what we must.
async fn check_rights(shared: &Shared, policy: &Policy) -> Result<(), Unavailable> {
    for kind in &policy.kinds {
        for verb in ["patch", "initialize"] {
            if !may(&shared.client, verb, &kind.group, &kind.resource).await? {
                let message = format!(
                    "the operator may not `{verb}` {} (group `{}`) in all namespaces; apply the shipped RBAC, or grant the verb",
                    kind.resource, kind.group
                );
                return Err(Unavailable::new(Code::MissingRight, message));
            }
        }
    }
    Ok(())
}

async fn may(client: &Client, verb: &str, group: &str, resource: &str) -> Result<bool, CallError> {
    let question = json!({ "spec": { "resourceAttributes": { "verb": verb, "group": group, "resource": resource } } });
    let question: SelfSubjectAccessReview = serde_json::from_value(question).expect("the shape is fixed");
    let answer = call(Api::all(client.clone()).create(&PostParams::default(), &question)).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

fn api(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &types::resource())
}

/// True if and only if `configuration` is one that we made.
pub fn is_ours(configuration: &InitializerConfiguration) -> bool {
    configuration
        .metadata
        .labels
        .as_ref()
        .is_some_and(|labels| labels.get(MANAGED_BY).is_some_and(|manager| manager == MANAGER))
}

/// True if and only if we have marked `configuration` as one that we remove ourselves.
pub fn is_marked(configuration: &InitializerConfiguration) -> bool {
    configuration.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(REMOVING))
}

/// True if and only if `stored` is what we `wanted`, however the server has completed it.
pub fn is_as(stored: &InitializerConfiguration, wanted: &InitializerConfiguration) -> bool {
    stored.initializers == wanted.initializers
        && stored.metadata.labels == wanted.metadata.labels
        && !is_marked(stored)
        && stored.metadata.owner_references == wanted.metadata.owner_references
}

/// Creates or replaces a configuration of ours.
///
/// # Errors
/// If one of that name exists that is not ours, or the server refuses.
pub async fn apply(client: &Client, wanted: &InitializerConfiguration) -> Result<(), Unavailable> {
    let name = wanted.metadata.name.as_deref().unwrap_or_default();
    let api = api(client);
    let stored = call(api.get_opt(name)).await?;
    let mut body = dynamic(wanted);
    let Some(stored) = stored else {
        return call(api.create(&PostParams::default(), &body)).await.map(drop).map_err(Unavailable::from);
    };
    let typed: InitializerConfiguration = typed(&stored);
    if !is_ours(&typed) {
        return Err(Unavailable::new(
            Code::NameTaken,
            format!("an InitializerConfiguration `{name}` exists that we did not make; delete or rename it"),
        ));
    }
    if is_as(&typed, wanted) {
        return Ok(());
    }
    body.metadata.resource_version = stored.metadata.resource_version;
    call(api.replace(name, &PostParams::default(), &body)).await.map(drop).map_err(Unavailable::from)
}

/// Deletes the configuration `name` if it is ours; marks it first, so that nobody takes this for a removal by hand.
///
/// # Errors
/// If the server does not do it. That there is none is no error.
pub async fn remove(client: &Client, name: &str) -> Result<(), CallError> {
    let api = api(client);
    let Some(stored) = call(api.get_opt(name)).await? else { return Ok(()) };
    if !is_ours(&typed(&stored)) {
        return Ok(());
    }
    let mut marked = stored.clone();
    marked.metadata.annotations.get_or_insert_default().insert(REMOVING.into(), "true".into());
    match call(api.replace(name, &PostParams::default(), &marked)).await {
        Err(error) if error.code() == 404 => return Ok(()),
        answer => drop(answer?),
    }
    let same = Preconditions { uid: stored.metadata.uid, resource_version: None };
    let parameters = DeleteParams { preconditions: Some(same), ..DeleteParams::background() };
    match call(api.delete(name, &parameters)).await {
        Err(error) if error.code() == 404 || error.code() == 409 => Ok(()),
        Err(error) => Err(error),
        Ok(_) => {
            info!(configuration = name, "Unregistered");
            Ok(())
        }
    }
}

fn dynamic(configuration: &InitializerConfiguration) -> DynamicObject {
    let mut object = DynamicObject::new("", &types::resource());
    object.metadata = configuration.metadata.clone();
    object.data = json!({ "initializers": configuration.initializers });
    object
}

fn typed(object: &DynamicObject) -> InitializerConfiguration {
    let mut typed: InitializerConfiguration = serde_json::from_value(object.data.clone()).unwrap_or_default();
    typed.metadata = object.metadata.clone();
    typed
}

/// Creates an object of each kind in our own namespace without storing it, until our name shows on it.
async fn prove(shared: &Shared, policy: &Policy) -> Result<Option<Unproven>, Unavailable> {
    let mut unproven = None;
    for kind in &policy.kinds {
        let since = Instant::now();
        loop {
            match probe(shared, policy, kind).await? {
                Shows::Yes => break,
                Shows::NotYet => {}
                Shows::CannotTell(message) => {
                    tokio::time::sleep(SETTLING).await;
                    unproven = Some((Code::ProbeFailed, message));
                    break;
                }
            }
            if since.elapsed() > PROBE_LIMIT {
                let message = format!(
                    "registered, but a new {} did not get our entry in {} s: is the admission plugin on? Start the API server with `--enable-admission-plugins=Initializers`",
                    shared.kind_name(kind),
                    PROBE_LIMIT.as_secs()
                );
                return Err(Unavailable::new(Code::InitializersPluginOff, message));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(unproven)
}

/// Whether our name shows on a new object.
enum Shows {
    Yes,
    NotYet,
    /// The rules of a custom resource are its owner's: what we can try may break them.
    CannotTell(String),
}

/// Whether the server puts our name on a new object of `kind`.
async fn probe(shared: &Shared, policy: &Policy, kind: &Kind) -> Result<Shows, Unavailable> {
    let Some(resource) = probed(shared, policy, kind) else { return Ok(Shows::NotYet) };
    let namespace = &shared.site.operator_namespace;
    let api = Api::<DynamicObject>::namespaced_with(shared.client.clone(), namespace, &resource);
    let object: DynamicObject = serde_json::from_value(sample(kind, &resource)).expect("the shape is fixed");
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    let request = kube::core::Request::new(api.resource_url())
        .create(&parameters, serde_json::to_vec(&object).expect("an object is JSON"))
        .expect("a well-formed request");
    // Raw, since typed metadata would drop the list.
    let answer = match call(shared.client.request::<Value>(request)).await {
        Ok(answer) => answer,
        Err(error) if error.code() == 422 && !kind.is_in_table() => {
            let error = error.to_string();
            // What comes before is the whole object.
            let cause = error.rsplit("validation failure list:").next().unwrap_or_default().trim();
            let message = format!(
                "registered, and nobody knows whether new {} get our entry: one that was tried is not valid: {cause}",
                kind.resource
            );
            return Ok(Shows::CannotTell(message));
        }
        Err(error) => return Err(refused(&error, &resource, namespace)),
    };
    let pending = answer["metadata"]["initializers"]["pending"].as_array().cloned().unwrap_or_default();
    let is_there = pending.iter().any(|entry| entry["name"] == policy.initializer_name.as_str());
    Ok(if is_there { Shows::Yes } else { Shows::NotYet })
}

fn refused(error: &CallError, resource: &ApiResource, namespace: &str) -> Unavailable {
    match error.code() {
        0 => Unavailable::new(Code::ServerAway, error.to_string()),
        403 if error.to_string().contains("cannot create resource") => Unavailable::new(
            Code::MissingRight,
            format!(
                "the operator may not `create` {} in its namespace `{namespace}`, which it tries without storing; apply the shipped RBAC",
                resource.plural
            ),
        ),
        400 => Unavailable::new(
            Code::VersionUnsupported,
            format!(
                "the server refuses to try a create without storing it ({error}); on 1.12 start it with `--feature-gates=DryRun=true`"
            ),
        ),
        _ => Unavailable::new(
            Code::ProbeFailed,
            format!("a trial create of a {} in `{namespace}` was refused: {error}", resource.kind),
        ),
    }
}

/// Through which version to try: one that the policy's targets name.
fn probed(shared: &Shared, policy: &Policy, kind: &Kind) -> Option<ApiResource> {
    let mut resource = shared.resource(kind)?;
    if !policy.targets_of(kind).any(|target| target.version == "*") {
        let target = policy.targets_of(kind).next()?;
        resource.group = target.group.clone();
        resource.version = target.version.clone();
        resource.api_version = if target.group.is_empty() {
            target.version.clone()
        } else {
            format!("{}/{}", target.group, target.version)
        };
    }
    Some(resource)
}

/// The least object of `kind` that every version of the server accepts.
fn sample(kind: &Kind, resource: &ApiResource) -> Value {
    let labels = json!({ "app.kubernetes.io/name": "scpol-probe" });
    let mut object = json!({ "apiVersion": resource.api_version, "kind": resource.kind, "metadata": { "name": "scpol-probe", "labels": labels } });
    let Some(path) = &kind.pod_path else { return object };
    let restart = if kind.resource == "cronjobs" { "OnFailure" } else { "Always" };
    let pod = json!({
        "containers": [{ "name": "probe", "image": "probe", "resources": { "requests": { "cpu": "1m", "memory": "1Mi" }, "limits": { "cpu": "1m", "memory": "1Mi" } } }],
        "automountServiceAccountToken": false,
        "restartPolicy": restart,
        "serviceAccountName": "scpol",
    });
    let template = json!({ "metadata": { "labels": labels }, "spec": pod });
    object["spec"] = match kind.kind.as_deref() {
        Some("Pod") => pod,
        Some("CronJob") => json!({ "schedule": "0 0 1 1 *", "suspend": true }),
        Some("StatefulSet") => {
            json!({ "replicas": 0, "serviceName": "scpol-probe", "selector": { "matchLabels": labels } })
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

/// Unregisters the policy `name`, waits until no server uses the configuration any more, and drains what waits.
///
/// # Errors
/// If the server cannot be reached; to be called again then.
pub async fn take_down(shared: &Shared, name: &str, kinds: &[Arc<Kind>]) -> Result<(), CallError> {
    remove(&shared.client, &render::name(name)).await?;
    tokio::time::sleep(SETTLING).await;
    drain(shared, kinds).await
}

/// Looks at every object of `kinds` until two passes in a row show none that waits for us; the worker clears them.
///
/// # Errors
/// If a pass cannot be made.
pub async fn drain(shared: &Shared, kinds: &[Arc<Kind>]) -> Result<(), CallError> {
    let mut clean = 0;
    while clean < 2 {
        let mut waiting = 0;
        for kind in kinds {
            sweep(shared, kind, |object| {
                // Offering what the watch has offered already changes nothing.
                if !object.is_initialized() && shared.observe(kind, object) == Standing::WaitsForUs {
                    waiting += 1;
                }
            })
            .await?;
        }
        if waiting == 0 {
            clean += 1;
        } else {
            clean = 0;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    Ok(())
}
