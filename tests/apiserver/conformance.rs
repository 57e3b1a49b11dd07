//! What every version of Kubernetes must do. Each check runs on each version of `SCPOL_MATRIX`, by default those of `make test`, as the
//! test `conformance::CHECK@VERSION`. The other files test much more, on the oldest and the newest version.

use crate::agreement::templates_are_judged_as_the_server_judges;
use crate::check::check;
use crate::commands::scpol;
use crate::engine::EngineName;
use crate::engines::{by, engine_of, shows};
use crate::exceptions::Setup;
use crate::parity::stores_the_corpus;
use crate::prelude::*;
use crate::rights::{self, WORKLOADS, workload};
use crate::runner::trial;
use crate::status::report;
use futures::future::LocalBoxFuture;
use libtest_mimic::Trial;
use std::path::Path;

type Check = fn(Version) -> LocalBoxFuture<'static, Result<()>>;

/// Names the checks, each an `async fn(Version) -> Result<()>`.
macro_rules! checks {
    ($($name:ident,)*) => { &[$((stringify!($name), |version| Box::pin($name(version))),)*] };
}

const CHECKS: &[(&str, Check)] = checks![
    the_install_file_is_applied_twice_and_check_finds_nothing_wrong,
    every_kind_of_workload_is_injected_validated_and_refused,
    every_selector_selects,
    what_conflicts_is_left_alone_and_told,
    a_job_has_a_native_sidecar_where_every_kubelet_knows_it,
    an_operator_that_is_killed_is_replaced_and_what_was_missed_is_counted,
    the_operator_needs_no_right_that_it_lacks,
    nothing_is_left_after_an_uninstall,
    a_webhook_stores_the_corpus_as_scpol_inject_says,
];

/// The checks of versions with MutatingAdmissionPolicies.
const CHECKS_OF_ADMISSION_POLICIES: &[(&str, Check)] =
    checks![mutating_admission_policies_store_the_corpus_as_scpol_inject_says,];

/// The checks of versions whose servers refuse unknown fields if they are asked to.
const CHECKS_OF_STRICT_SERVERS: &[(&str, Check)] = checks![templates_are_judged_as_the_server_judges,];

/// The checks of versions that have them as a beta, which is switched on for the check.
const CHECKS_OF_THE_BETA: &[(&str, Check)] = checks![a_beta_of_admission_policies_is_used_from_1_35,];

/// The checks of every version.
///
/// # Errors
/// If `SCPOL_MATRIX` names an unknown version.
pub(crate) fn trials() -> Result<Vec<Trial>> {
    let versions = Version::matrix()?;
    let all = versions.into_iter().flat_map(|version| {
        let own = if version.has(Feature::UsableAdmissionPolicyBeta) { CHECKS_OF_ADMISSION_POLICIES } else { &[] };
        let beta = if version.has_admission_policies_as_beta() { CHECKS_OF_THE_BETA } else { &[] };
        let strict = if version.minor() >= 28 { CHECKS_OF_STRICT_SERVERS } else { &[] };
        CHECKS.iter().chain(own).chain(beta).chain(strict).map(move |(name, check)| {
            let check = *check;
            trial(format!("conformance::{name}@{}", version.short()), move || check(version))
        })
    });
    Ok(all.collect())
}

/// The engines inside the API server of `version`, as policies name them.
fn engines(version: Version) -> Vec<&'static str> {
    let own = version.has(Feature::MutatingAdmissionPolicy).then_some("MutatingAdmissionPolicy");
    ["Webhook"].into_iter().chain(own).collect()
}

/// The engine that `Auto` takes.
fn preferred(version: Version) -> &'static str {
    match version {
        version if version.has_initializers() => "Initializer",
        version if version.has(Feature::MutatingAdmissionPolicy) => "MutatingAdmissionPolicy",
        _ => "Webhook",
    }
}

/// Records what a check saw, for the table that `make matrix` writes.
fn saw(version: Version, what: &str, value: &str) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/matrix").join(version.short());
    std::fs::create_dir_all(&folder)?;
    Ok(std::fs::write(folder.join(what), format!("{value}\n"))?)
}

async fn world(version: Version) -> Result<World> {
    World::with(ControlPlane::builder(version)).await
}

async fn is_unregistered(world: &World) -> Result<()> {
    within(LIMIT, "nothing is registered", || async { Ok(world.registered().await?.is_empty()) }).await
}

async fn the_install_file_is_applied_twice_and_check_finds_nothing_wrong(version: Version) -> Result<()> {
    let bare = ControlPlane::builder(version).start().await?;
    let found = check(&bare, &["--pre"]).await?;
    ensure!(found.code == 0, "{}", found.printed);
    drop(bare);
    let world = world(version).await?;
    world.install_all().await?;
    world.install_all().await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    let engine = engine_of(&world, "envoy").await?;
    ensure!(engine == preferred(version), "{engine}");
    saw(version, "version", &version.to_string())?;
    saw(version, "engine", engine.as_str().unwrap_or_default())?;
    world.replicas_ready(2).await?;
    let found = check(&world.cluster, &["--strict"]).await?;
    ensure!(found.code == 0, "{}", found.printed);
    world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    world.status("envoy", "injected", 1).await?;
    let (code, told) = report(&world, &["envoy"]).await?;
    ensure!(code == 0 && told["engine"] == preferred(version), "{code} {told}");
    let (code, told) = scpol(&world.cluster, &["explain", "deploy/web"]).await?;
    ensure!(code == 0 && told.contains("in it already: envoy"), "{code} {told}");
    Ok(())
}

async fn every_kind_of_workload_is_injected_validated_and_refused(version: Version) -> Result<()> {
    let (world, _operator) = world(version).await?.operated(&[]).await?;
    let targets: Value =
        WORKLOADS.iter().map(|(group, resource, ..)| json!({ "group": group, "resource": resource })).collect();
    let refuses = version.has(Feature::NamespaceNames);
    for engine in engines(version) {
        let policy = json!({
            "targets": targets, "jobs": "Inject", "nativeSidecars": "Never", "template": sidecar("envoy")["template"],
            "failurePolicy": if refuses { "Fail" } else { "Ignore" },
            "validations": [{ "expression": "object.metadata.name != 'bad'", "message": "call it better" }],
        });
        world.enforce("envoy", by(engine, policy)).await?;
        let registered = world.registered().await?;
        let otherwise = if version.has_initializers() { "the Initializer engine" } else { "nothing" };
        let by = ["ValidatingAdmissionPolicy", "validating webhook", otherwise];
        let has = |resource: &str| registered.iter().any(|name| name.starts_with(resource));
        let is_so = [has("validatingadmissionpolicies/"), has("validatingwebhookconfigurations/") && refuses, true];
        saw(version, "refuses", by.into_iter().zip(is_so).find(|(_, is_so)| *is_so).map_or("", |(by, _)| by))?;
        for (_, resource, kind, versions) in WORKLOADS {
            let api = versions[usize::from(version.has(Feature::CronJobV1))];
            let root = if api.contains('/') { "apis" } else { "api" };
            let path = format!("/{root}/{api}/namespaces/default/{resource}?dryRun=All");
            let post = async |name: &str, container: &str| {
                let body = workload(kind, api, name, &json!({})).to_string();
                let body = body.replace(r#""name":"app""#, &format!(r#""name":"{container}""#));
                world.create(&path, &serde_json::from_str(&body)?).await
            };
            let created = post("good", "app").await.with_context(|| format!("{engine} {kind}"))?;
            ensure!(containers(&created) == ["app", "envoy"], "{engine} {kind}: {created}");
            let refused =
                post("bad", "app").await.err().with_context(|| format!("{engine} {kind} is not validated"))?;
            ensure!(format!("{refused:#}").contains("call it better"), "{engine} {kind}: {refused:#}");
            let conflicting = post("good", "envoy").await;
            match conflicting {
                Err(error) if refuses => ensure!(
                    format!("{error:#}").contains("SidecarPolicy `envoy` refuses"),
                    "{engine} {kind}: {error:#}"
                ),
                created => ensure!(!refuses && containers(&created?) == ["envoy"], "{engine} {kind} is let in"),
            }
        }
        world.delete_policy("envoy").await?;
        is_unregistered(&world).await?;
    }
    Ok(())
}

/// A selector of each kind. All select the Deployment `web` in the Namespace `shop`, and none `other` in `default`.
fn selectors() -> [(&'static str, &'static str, Value); 8] {
    let is_web = json!({ "matchLabels": { "tier": "web" } });
    let wants = json!({ "matchAnnotations": { "example.com/wants": "it" } });
    let by_expression = json!([{ "name": "by-name", "expression": "object.metadata.name.startsWith('we')" }]);
    let by_namespace = json!({ "matchLabels": { "team": "shop" } });
    let in_team = json!({ "matchExpressions": [{ "key": "team", "operator": "In", "values": ["shop", "sales"] }] });
    [
        ("named", "namespaces", json!(["shop"])),
        ("glob", "namespaces", json!(["sh*"])),
        ("excluded", "excludeNamespaces", json!(["def*"])),
        ("namespace-label", "namespaceSelector", by_namespace),
        ("namespace-expression", "namespaceSelector", in_team),
        ("label", "labelSelector", is_web),
        ("annotation", "annotationSelector", wants),
        ("condition", "matchConditions", by_expression),
    ]
}

async fn every_selector_selects(version: Version) -> Result<()> {
    let (world, _operator) = world(version).await?.operated(&[]).await?;
    world.namespace("shop", &json!({ "team": "shop" })).await?;
    let mut web = deployment("web");
    web["metadata"]["labels"]["tier"] = json!("web");
    web["metadata"]["annotations"] = json!({ "example.com/wants": "it" });
    let mut out = web.clone();
    out["metadata"]["annotations"]["scpol.dev/inject"] = json!("false");
    let names: Vec<&str> = selectors().iter().map(|(name, ..)| *name).collect();
    let labels = ["label", "namespace-label"];
    for engine in engines(version) {
        let policies = selectors().map(|(name, field, value)| {
            let mut spec = by(engine, sidecar(name));
            spec[field] = value;
            (name, spec)
        });
        // Alone, its selector is that of the registration.
        for (name, spec) in policies.iter().filter(|(name, _)| labels.contains(name)) {
            world.policy(name, spec.clone()).await?;
            in_force(&world.cluster, name).await.with_context(|| format!("{engine}: {name} alone"))?;
            world.delete_policy(name).await?;
        }
        for (name, spec) in policies {
            world.policy(name, spec).await?;
        }
        for name in &names {
            in_force(&world.cluster, name).await?;
        }
        for (namespace, body, expected) in
            [("shop", &web, &*names), ("default", &deployment("other"), &[]), ("shop", &out, &[])]
        {
            let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments?dryRun=All");
            // A replica that has just started reads the Namespaces.
            within(LIMIT, &format!("{engine}: {expected:?} in {namespace}"), || async {
                let mut found = containers(&request(&world.creator, "POST", &path, body).await?);
                found.retain(|name| name != "app");
                found.sort();
                let mut expected = expected.to_vec();
                expected.sort_unstable();
                Ok(found == expected)
            })
            .await?;
        }
        for name in &names {
            world.delete_policy(name).await?;
        }
        is_unregistered(&world).await?;
    }
    Ok(())
}

async fn what_conflicts_is_left_alone_and_told(version: Version) -> Result<()> {
    let (world, _operator) = world(version).await?.operated(&[]).await?;
    world.policy("envoy", sidecar("envoy")).await?;
    let mut rival = sidecar("proxy");
    rival["template"]["volumes"] = json!([{ "name": "shared", "emptyDir": {} }]);
    world.policy("proxy", rival.clone()).await?;
    rival["template"]["volumes"] = json!([{ "name": "shared", "emptyDir": { "medium": "Memory" } }]);
    rival["template"]["containers"][0]["name"] = json!("rival");
    world.policy("rival", rival).await?;
    for policy in ["envoy", "proxy", "rival"] {
        in_force(&world.cluster, policy).await?;
    }
    let mut taken = deployment("taken");
    taken["spec"]["template"]["spec"]["containers"][0]["name"] = json!("envoy");
    ensure!(containers(&world.create_promptly(DEPLOYMENTS, &taken).await?) == ["envoy"]);
    let web = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    ensure!(containers(&web) == ["app", "envoy"], "two that contradict each other are both left out: {web}");
    world.status("envoy", "missed", 1).await?;
    world.status("envoy", "injected", 1).await?;
    world.status("rival", "missed", 2).await?;
    let (code, told) = scpol(&world.cluster, &["explain", "deploy/taken"]).await?;
    ensure!(code == 1 && told.contains("in conflict") && told.contains("envoy"), "{code} {told}");
    Ok(())
}

async fn a_job_has_a_native_sidecar_where_every_kubelet_knows_it(version: Version) -> Result<()> {
    let world = world(version).await?;
    let spec =
        json!({ "targets": [{ "group": "batch", "resource": "jobs" }], "template": sidecar("envoy")["template"] });
    world.policy("envoy", by("Webhook", spec)).await?;
    let has_them = version.has(Feature::NativeSidecars);
    for (kubelets, expected) in
        [(&["v1.31.0", "v1.99.0"][..], has_them), (&["v1.27.4"], false), (&["v1.99.0", "v1.28.15"], false)]
    {
        for (number, kubelet) in kubelets.iter().enumerate() {
            let name = format!("node-{number}");
            let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
            request(&world.admin, "POST", "/api/v1/nodes", &node).await?;
            let info = json!({
                "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                "kubeletVersion": kubelet, "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
            });
            let status = json!([{ "op": "add", "path": "/status/nodeInfo", "value": info }]);
            world.patch(&format!("/api/v1/nodes/{name}/status"), &status).await?;
        }
        let operator = Operator::ready(&world.cluster, &[]).await?;
        in_force(&world.cluster, "envoy").await?;
        let job = workload("Job", "batch/v1", "job", &json!({}));
        let path = "/apis/batch/v1/namespaces/default/jobs?dryRun=All";
        within(LIMIT, &format!("native with {kubelets:?}: {expected}"), || async {
            let created = request(&world.creator, "POST", path, &job).await?;
            let native = &created["spec"]["template"]["spec"]["initContainers"][0];
            let is_native = native["name"] == "envoy" && native["restartPolicy"] == "Always";
            ensure!(containers(&created) == ["app"], "{kubelets:?}: a Job never has a plain sidecar: {created}");
            Ok(is_native == expected)
        })
        .await?;
        saw(version, "native", if has_them { "yes" } else { "no" })?;
        operator.stop().await?;
        for number in 0..kubelets.len() {
            world.delete(&format!("/api/v1/nodes/node-{number}")).await?;
        }
    }
    Ok(())
}

async fn an_operator_that_is_killed_is_replaced_and_what_was_missed_is_counted(version: Version) -> Result<()> {
    let (world, operator) = world(version).await?.operated(&[]).await?;
    world.enforce("envoy", by("Webhook", sidecar("envoy"))).await?;
    ensure!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("before")).await?) == ["app", "envoy"]);
    operator.kill().await?;
    ensure!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("missed")).await?) == ["app"]);
    let operator = Operator::ready(&world.cluster, &[]).await?;
    shows(&world, &["app", "envoy"]).await?;
    ensure!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("after")).await?) == ["app", "envoy"]);
    world.status("envoy", "missed", 1).await?;
    world.status("envoy", "injected", 2).await?;
    let (code, told) = report(&world, &["envoy"]).await?;
    let missed: Vec<_> = told["workloads"].as_array().into_iter().flatten().map(|one| one["name"].clone()).collect();
    ensure!(code == 1 && missed == ["missed"], "{code} {told}");
    // One that stops in good order takes its webhook along.
    operator.stop().await?;
    is_unregistered(&world).await?;
    ensure!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("stopped")).await?) == ["app"]);
    wait_condition(&world.cluster, "envoy", "Ready", "False", "Stopped").await?;
    Ok(())
}

async fn the_operator_needs_no_right_that_it_lacks(version: Version) -> Result<()> {
    rights::nothing_is_refused(version, &engines(version)).await
}

async fn nothing_is_left_after_an_uninstall(version: Version) -> Result<()> {
    let world = world(version).await?;
    world.install_all().await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    let (code, told) = world.uninstalls(&["--yes"]).await?;
    ensure!(code == 0, "{code}: {told}");
    ensure!(world.registered().await?.is_empty(), "{told}");
    ensure!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("web")).await?) == ["app"]);
    drop(operator);
    world.is_clean().await
}

async fn a_webhook_stores_the_corpus_as_scpol_inject_says(version: Version) -> Result<()> {
    stores_the_corpus(Setup { engine: EngineName::Webhook, version }).await
}

async fn mutating_admission_policies_store_the_corpus_as_scpol_inject_says(version: Version) -> Result<()> {
    stores_the_corpus(Setup { engine: EngineName::MutatingAdmissionPolicy, version }).await
}

/// Where the beta of MutatingAdmissionPolicy is switched on, it is used if its CEL has what the engine needs.
async fn a_beta_of_admission_policies_is_used_from_1_35(version: Version) -> Result<()> {
    let (world, operator) =
        World::with(ControlPlane::builder(version).admission_policies()).await?.operated(&[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    let is_usable = version.has(Feature::UsableAdmissionPolicyBeta);
    let engine = if is_usable { "MutatingAdmissionPolicy" } else { "Webhook" };
    ensure!(engine_of(&world, "envoy").await? == engine);
    world.policy("named", by("MutatingAdmissionPolicy", sidecar("named"))).await?;
    if is_usable {
        in_force(&world.cluster, "named").await?;
        operator.signal("KILL")?;
        ensure!(containers(&world.create(DEPLOYMENTS, &deployment("web")).await?) == ["app", "envoy", "named"]);
    } else {
        let seen = wait_condition(&world.cluster, "named", "Ready", "False", "AdmissionPolicyApiOff").await?;
        ensure!(seen.to_string().contains("`flatten`"), "{seen}");
        ensure!(containers(&world.create(DEPLOYMENTS, &deployment("web")).await?) == ["app", "envoy"]);
    }
    Ok(())
}
