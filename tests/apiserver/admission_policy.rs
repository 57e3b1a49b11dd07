//! The objects of the MutatingAdmissionPolicy engine on a 1.36 server, without an operator: random scenes, rejections,
//! and the samples. `parity.rs` runs the corpus.

use crate::corpus::{self, Stored, dry_run};
use crate::prelude::*;
use crate::scenes::{Content, Scenes};
use sidecar_policy::api::trust::Trust;
use sidecar_policy::api::{MANAGED_BY, MANAGER};
use sidecar_policy::capabilities::Capabilities;
use sidecar_policy::cluster::discovery;
use sidecar_policy::compile::admission_policy::{render, revision_of};
use sidecar_policy::decision::Decision;
use sidecar_policy::engine::Unavailable;
use sidecar_policy::policy::{Policies, Policy, Site};
use sidecar_policy::workload::{Kind, Workload};
use std::collections::BTreeSet;
use std::sync::Arc;

crate::tests![
    whatever_the_policies_and_the_workload_it_is_decided_as_elsewhere,
    a_refusal_names_the_policy_the_code_and_the_reason,
    the_server_takes_what_becomes_of_the_samples,
];

/// The API path of this engine's objects.
const REGISTRATIONS: &str = "/apis/admissionregistration.k8s.io/v1";

impl World {
    /// The capabilities of the server.
    pub(crate) async fn capabilities(&self) -> Result<Capabilities> {
        Ok(discovery::discover(&self.admin, |_| true).await?)
    }

    /// Creates objects of this engine. The server must accept each, so each expression compiles.
    pub(crate) async fn register(&self, object: &Value) -> Result<()> {
        let kind = object["kind"].as_str().context("a kind")?;
        let plural = kind.strip_suffix('y').map_or_else(|| format!("{kind}s"), |stem| format!("{stem}ies"));
        let api = object["apiVersion"].as_str().context("an apiVersion")?;
        let path = format!("/apis/{api}/{}", plural.to_lowercase());
        let deadline = Instant::now() + 4 * LIMIT;
        let mut is_again = false;
        loop {
            match request(&self.admin, "POST", &path, object).await {
                Ok(_) => return Ok(()),
                // A busy server may time out while it compiles, after it has stored the object.
                Err(kube::Error::Api(status)) if status.code == 504 && Instant::now() < deadline => is_again = true,
                Err(kube::Error::Api(status)) if status.code == 409 && is_again => return Ok(()),
                Err(error) => {
                    let name = object["metadata"]["name"].as_str().unwrap_or_default();
                    return Err(error).with_context(|| format!("{kind} {name}: {object}"));
                }
            }
        }
    }
}

impl World {
    /// Removes everything that [`register`](Self::register) has created.
    async fn unregister_all(&self) -> Result<()> {
        for plural in [
            "validatingadmissionpolicybindings",
            "validatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
            "mutatingadmissionpolicies",
        ] {
            let path = format!("{REGISTRATIONS}/{plural}?labelSelector={MANAGED_BY}={MANAGER}");
            request(&self.admin, "DELETE", &path, &Value::Null).await?;
        }
        Ok(())
    }
}

pub(crate) fn site() -> Site {
    Site { native_sidecars: true, trust: Trust::unbounded(), ..Site::new("scpol-system", ["vault".to_owned()], []) }
}

/// A resource, and the policies that target it in priority order.
pub(crate) type Targeted = (Arc<Kind>, Vec<Arc<Policy>>);

/// The set of policies of each resource, as the operator would register it.
pub(crate) fn by_kind(policies: &[Value]) -> Result<Vec<Targeted>> {
    by_kind_knowing(policies, &[])
}

/// The same for policies with these `earlier` versions.
pub(crate) fn by_kind_knowing(policies: &[Value], earlier: &[Value]) -> Result<Vec<Targeted>> {
    let parse = |policy: &Value| {
        let policy = Policy::parse(policy, &site()).map_err(|faults| anyhow::anyhow!("{faults:?}"))?;
        corpus::knowing(policy, earlier).map(Arc::new)
    };
    let policies = Policies::new(policies.iter().map(parse).collect::<Result<Vec<_>>>()?);
    let kinds: BTreeSet<Arc<Kind>> = policies.kinds().cloned().collect();
    let targeting = |kind: &Arc<Kind>| {
        policies
            .iter()
            .filter(|policy| policy.is_enforced() && policy.kinds.contains(kind))
            .cloned()
            .collect::<Vec<_>>()
    };
    Ok(kinds
        .into_iter()
        .map(|kind| (kind.clone(), targeting(&kind)))
        .filter(|(_, policies)| !policies.is_empty())
        .collect())
}

/// The objects for the workloads of a single case, with unique names.
pub(crate) fn registrations(
    id: &str,
    policies: &[Value],
    cluster: &Capabilities,
) -> Result<Result<Vec<Value>, Unavailable>> {
    registrations_knowing(id, (policies, &[]), cluster)
}

/// The same for policies with earlier versions.
pub(crate) fn registrations_knowing(
    id: &str,
    (policies, earlier): (&[Value], &[Value]),
    cluster: &Capabilities,
) -> Result<Result<Vec<Value>, Unavailable>> {
    let mut objects = Vec::new();
    for (kind, policies) in by_kind_knowing(policies, earlier)? {
        match render(&kind, &policies, cluster, &site()) {
            Ok(rendered) => objects.extend(rendered),
            Err(unavailable) => return Ok(Err(unavailable)),
        }
    }
    for object in &mut objects {
        object["metadata"]["name"] = json!(format!("{id}-{}", object["metadata"]["name"].as_str().context("a name")?));
        if let Some(name) = object["spec"]["policyName"].as_str() {
            object["spec"]["policyName"] = json!(format!("{id}-{name}"));
        } else {
            object["spec"]["matchConstraints"]["objectSelector"] = json!({ "matchLabels": { "case": id } });
        }
    }
    Ok(Ok(objects))
}

/// Registers a policy that answers a probe, after all others. Once it is in effect, the others are too.
pub(crate) async fn settle(world: &World, cluster: &Capabilities) -> Result<()> {
    let policy = json!({ "metadata": { "name": "last" }, "spec": {
        "targets": [{ "group": "", "resource": "pods" }], "failurePolicy": "Fail", "labelSelector": { "matchLabels": { "case": "last" } },
        "template": { "containers": [{ "name": "x", "image": "x" }] },
    } });
    let (kind, policies) = by_kind(&[policy])?.remove(0);
    let objects = render(&kind, &policies, cluster, &site())?;
    for object in &objects {
        world.register(object).await?;
    }
    probe(world, &objects).await
}

/// Puts `policies` in effect together.
pub(crate) async fn register_everything(world: &World, policies: &[Value]) -> Result<()> {
    let cluster = world.capabilities().await?;
    let mut objects = Vec::new();
    for (kind, policies) in by_kind(policies)? {
        objects.extend(render(&kind, &policies, &cluster, &site())?);
    }
    register_all(world, objects, &cluster).await
}

/// Waits until `objects`, which are for pods, answer probes.
async fn probe(world: &World, objects: &[Value]) -> Result<()> {
    let revision = |kind: &str| {
        let object = objects.iter().find(|object| object["kind"] == kind).context("it is rendered")?;
        revision_of(object).context("a revision")
    };
    let (mutating, validating) = (revision("MutatingAdmissionPolicy")?, revision("ValidatingAdmissionPolicy")?);
    let pod = |value: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "probe", "namespace": "scpol-system", "labels": { "scpol.dev/probe": value, "case": "last" } },
            // As the operator's namespace requires.
            "spec": {
                "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
                "containers": [{
                    "name": "c", "image": "c",
                    "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                }],
            },
        })
    };
    // The server compiles all of them first.
    within(4 * LIMIT, "the registrations answer", || async {
        let (asked, _) = dry_run(&world.admin, &pod("ask")).await?;
        let (refused, told) = dry_run(&world.admin, &pod("refuse")).await?;
        let Stored::As(asked) = asked else { return Ok(false) };
        let is_mutated = asked["metadata"]["annotations"] == json!({ "scpol.dev/probe": mutating });
        let is_bare = asked["spec"]["containers"].as_array().is_some_and(|containers| containers.len() == 1);
        Ok(is_mutated && is_bare && refused == Stored::Refused && told.contains(&validating))
    })
    .await
}

/// The seeds of the scenes of each kind; `SCENES=100..200` sets others. The server compiles those of one kind at once, which takes
/// both processors of a small machine.
const SCENES: std::ops::Range<u64> = 0..5;
/// The number of workloads per scene.
const WORKLOADS: usize = 8;
/// The kinds of the scenes: target, beginning of an object, and path of the pod.
const KINDS: [(&str, &str, &str, &str, Content); 5] = [
    (
        r#"{"group":"example.org","resource":"rollouts"}"#,
        "example.org/v1",
        "Rollout",
        "/spec/template",
        Content::Strange,
    ),
    (r#"{"group":"","resource":"pods"}"#, "v1", "Pod", "", Content::Valid),
    (r#"{"group":"apps","resource":"deployments"}"#, "apps/v1", "Deployment", "/spec/template", Content::Valid),
    (r#"{"group":"apps","resource":"statefulsets"}"#, "apps/v1", "StatefulSet", "/spec/template", Content::Valid),
    (
        r#"{"group":"batch","resource":"cronjobs"}"#,
        "batch/v1",
        "CronJob",
        "/spec/jobTemplate/spec/template",
        Content::Valid,
    ),
];

/// A workload of that kind with the pod template `pod`.
pub(crate) fn around(mut pod: Value, api: &str, kind: &str, at: &str, id: &str) -> Value {
    let selector = json!({ "matchLabels": { "app": "web" } });
    let mut body = match kind {
        "Pod" => pod,
        "CronJob" => {
            pod["spec"]["restartPolicy"] = json!("OnFailure");
            json!({ "spec": { "schedule": "0 0 * * *", "jobTemplate": { "spec": { "template": pod } } } })
        }
        "StatefulSet" => {
            let claim = json!({ "metadata": { "name": "p0" }, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } });
            json!({ "spec": { "selector": selector, "serviceName": "s", "template": pod, "volumeClaimTemplates": [claim] } })
        }
        "Rollout" => json!({ "spec": { "template": pod } }),
        _ => json!({ "spec": { "selector": selector, "template": pod } }),
    };
    debug_assert!(body.pointer(at).is_some());
    body["apiVersion"] = json!(api);
    body["kind"] = json!(kind);
    if !body["metadata"].is_object() {
        body["metadata"] = json!({});
    }
    body["metadata"]["name"] = json!("web");
    body["metadata"]["namespace"] = json!("default");
    body["metadata"]["labels"]["case"] = json!(id);
    body["metadata"]["labels"]["app"] = json!("web");
    body
}

/// The result of the engines that decide in Rust for `workload`.
pub(crate) fn decided(policies: &[Targeted], workload: &Value) -> Value {
    let (kind, policies) = &policies[0];
    let namespace =
        json!({ "metadata": { "name": "default", "labels": { "kubernetes.io/metadata.name": "default" } } });
    let workload = Workload::new(kind, workload.clone()).within(Some(Arc::new(namespace)));
    let patch = Decision::of(&Policies::new(policies.iter().cloned()), &workload, &site()).plan(&workload);
    workload.patched(&patch)
}

/// The seeds that `SCENES` asks for, or `otherwise`.
pub(crate) fn scenes(otherwise: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let asked = std::env::var("SCENES").unwrap_or_default();
    let asked = asked.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    asked.unwrap_or(otherwise)
}

/// Registers `objects`, the bindings after the policies that they name, and waits until all are in effect.
pub(crate) async fn register_all(world: &World, mut objects: Vec<Value>, cluster: &Capabilities) -> Result<()> {
    objects.sort_by_key(|object| object["spec"]["policyName"].is_string());
    for object in &objects {
        world.register(object).await?;
    }
    settle(world, cluster).await
}

async fn whatever_the_policies_and_the_workload_it_is_decided_as_elsewhere() -> Result<()> {
    // A busy machine compiles the expressions of a scene for minutes, and a request that timed out begins again.
    let world = World::with(ControlPlane::builder(Version::NEWEST).extra_arg("--request-timeout=5m")).await?;
    corpus::define(&world).await?;
    let cluster = world.capabilities().await?;
    let (mut differences, mut posted, mut injected, mut stored) = (Vec::new(), 0, 0, 0);
    for (number, (target, api, kind, at, content)) in KINDS.into_iter().enumerate() {
        let (mut posts, mut objects) = (Vec::new(), Vec::new());
        for scene in scenes(SCENES) {
            let id = format!("s{number}-{scene}");
            let mut made = Scenes::new(scene, content);
            let target: Value = serde_json::from_str(target)?;
            let policies: Vec<Value> = made
                .policies(&json!([target]))
                .into_iter()
                .map(|(name, spec)| json!({ "metadata": { "name": name }, "spec": spec }))
                .collect();
            let parsed = by_kind(&policies)?;
            objects.extend(registrations(&id, &policies, &cluster)??);
            for _ in 0..WORKLOADS {
                let workload = around(made.pod(), api, kind, at, &id);
                let decided = decided(&parsed, &workload);
                let expected = dry_run(&world.admin, &decided).await;
                posts.push((id.clone(), policies.clone(), decided != workload, workload, expected));
            }
        }
        register_all(&world, objects, &cluster).await?;
        for (id, policies, is_injected, workload, expected) in &posts {
            let found = dry_run(&world.admin, workload).await;
            let (Ok((expected, _)), Ok((found, _))) = (expected, &found) else {
                differences.push(format!("{id}: {expected:?}\n  server {found:?}"));
                continue;
            };
            stored += usize::from(*found != Stored::Refused);
            injected += usize::from(*is_injected && *found != Stored::Refused);
            if expected != found {
                differences.push(format!(
                    "{id}:\n  policies {}\n  workload {workload}\n  decided {expected:?}\n  server  {found:?}",
                    json!(policies)
                ));
            }
        }
        posted += posts.len();
        // After each change, the server processes all of them again.
        world.unregister_all().await?;
    }
    let first: Vec<_> = differences.iter().take(5).cloned().collect();
    assert!(
        differences.is_empty(),
        "{} of {} differ, {stored} stored\n{}",
        differences.len(),
        posted,
        first.join("\n")
    );
    assert!(stored > posted / 3, "only {stored} of {posted} were stored");
    assert!(injected > posted / 6, "only {injected} of {posted} were injected");
    Ok(())
}

/// The message of a rejected create; and an expression that fails at run time rejects only under `Fail`.
async fn a_refusal_names_the_policy_the_code_and_the_reason() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST)).await?;
    let cluster = world.capabilities().await?;
    let pods = json!([{ "group": "", "resource": "pods" }]);
    let judging = |expression: &str, message: Value, failure_policy: &str| {
        let mut validation = json!({ "expression": expression, "message": "plain" });
        if !message.is_null() {
            validation["messageExpression"] = message;
        }
        json!({ "targets": pods, "failurePolicy": failure_policy, "validations": [validation] })
    };
    let refusing = |template: Value| json!({ "targets": pods, "failurePolicy": "Fail", "template": template });
    let cases = [
        (judging("object.spec.containers.size() > 1", Value::Null, "Ignore"), Some("refuses this Pod: SCP0210: plain")),
        (
            judging("false", json!("\"is \" + object.metadata.name"), "Ignore"),
            Some("refuses this Pod: SCP0210: is web"),
        ),
        (judging("false", json!("\"two\\nlines\""), "Fail"), Some("refuses this Pod: SCP0210: plain")),
        (judging("false", json!("string(object.spec.nowhere)"), "Ignore"), Some("refuses this Pod: SCP0210: plain")),
        (judging("object.spec.nowhere == 1", Value::Null, "Ignore"), None),
        (judging("object.spec.nowhere == 1", Value::Null, "Fail"), Some("no such key: nowhere")),
        (judging("!has(object.metadata.uid) && !has(object.metadata.creationTimestamp)", Value::Null, "Fail"), None),
        (
            refusing(json!({ "containers": [{ "name": "app", "image": "other" }] })),
            Some("refuses this Pod: SCP0200: container `app` exists with another `image`"),
        ),
        (refusing(json!({ "containers": [{ "name": "side", "image": "x" }] })), None),
    ];
    let mut objects = Vec::new();
    for (index, (spec, _)) in cases.iter().enumerate() {
        let policy = json!({ "metadata": { "name": format!("p{index}") }, "spec": spec });
        objects.extend(registrations(&format!("m{index}"), &[policy], &cluster)??);
    }
    register_all(&world, objects, &cluster).await?;
    for (index, (spec, expected)) in cases.iter().enumerate() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "web", "namespace": "default", "labels": { "case": format!("m{index}") } },
            "spec": { "containers": [{ "name": "app", "image": "a" }] },
        });
        let (found, told) = dry_run(&world.admin, &pod).await?;
        match expected {
            Some(expected) => ensure!(
                found == Stored::Refused && told.contains(expected) && told.contains("forbidden"),
                "{spec}: {told}"
            ),
            None => ensure!(found != Stored::Refused, "{spec}: {told}"),
        }
    }
    Ok(())
}

/// All policies in the documentation, in effect together.
async fn the_server_takes_what_becomes_of_the_samples() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST)).await?;
    let cluster = world.capabilities().await?;
    let mut policies = Vec::new();
    for entry in std::fs::read_dir(crate::support::file("samples"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let documents: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(&path)?)?;
        policies.extend(documents.into_iter().filter(|document| document["kind"] == "SidecarPolicy"));
    }
    ensure!(policies.len() >= 7, "{} policies", policies.len());
    for (kind, policies) in by_kind(&policies)? {
        for object in render(&kind, &policies, &cluster, &site())? {
            world.register(&object).await?;
        }
    }
    Ok(())
}
