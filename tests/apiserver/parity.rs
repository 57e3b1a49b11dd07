//! An engine delivers what files say: what `scpol inject` makes of a workload, posted where no engine is, is stored as what was
//! posted as it is where the engine is in force. For the whole corpus of `tests/golden`, byte by byte.

use crate::agreement;
use crate::corpus::{self, Case, Stored, collection};
use crate::parity_map;
use crate::webhook_scene::{Scene, policy, site};
use crate::world::{World, request};
use anyhow::{Context, Result};
use controlplane::{ControlPlane, Version};
use serde_json::Value;
use sidecar_policy::engine::webhook::render;
use sidecar_policy::policy::{Policy, Site};

crate::tests![
    every_exception_stands_in_the_documentation,
    a_webhook_of_1_13_stores_the_corpus_as_scpol_inject_says,
    a_webhook_of_1_36_stores_the_corpus_as_scpol_inject_says,
];

/// Cases that a server of 1.13 cannot show through a webhook, beside those that it cannot show at all, and why.
const NOT_ON_1_13: [(&str, &str); 2] = [
    ("no-pod-spec", "what has no container gets one before the server judges"),
    ("position-before-lists-absent", SHOWS),
];
/// Cases that a server of 1.36 cannot show through a webhook, and why.
const NOT_ON_1_36: [(&str, &str); 14] = [
    ("pod-without-metadata", "the server wants a name"),
    ("no-pod-spec", "what has no container gets one before the server judges"),
    ("row-3-terminating", "the server takes `deletionTimestamp` off what is created"),
    ("daemonset-extensions", NO_GROUP),
    ("row-7-apps-covers-extensions", NO_GROUP),
    ("cronjob", SHOWS),
    ("env-null-list", SHOWS),
    ("position-before-lists-absent", SHOWS),
    ("row-0-denied", NO_LIST),
    ("row-0-empty", NO_LIST),
    ("row-0-foreign", NO_LIST),
    ("row-0-one-of-two", NO_LIST),
    ("row-0-ours", NO_LIST),
    ("row-0-validations", NO_LIST),
];
/// Cases with a policy that a webhook of 1.13 cannot serve, beside [`agreement::NOT_SERVED`].
const NOT_BY_WEBHOOK_OF_1_13: [&str; 9] = [
    "custom-path-fail",
    "custom-paths-differ-fail",
    "fail-beside-ignore",
    "fail-collision",
    "fail-conflict",
    "row-7-condition-fails-fail",
    "row-7-namespace-unreadable-fail",
    "validation-fails-fail",
    "validation-opted-out-namespace-unreadable-fail",
];
/// Cases with a policy that a webhook of 1.36 cannot serve.
const NOT_BY_WEBHOOK_OF_1_36: [&str; 3] =
    ["custom-definition-wins", "custom-not-targeted", "row-7-extensions-covers-apps"];
/// What differs is the marker, which tells what was there before.
const SHOWS: &str = "the server shows webhooks an absent field as null or empty, or stores no null";
const NO_LIST: &str = "the server has no initializers, and drops the list";
const NO_GROUP: &str = "the server has no group `extensions`";

async fn every_exception_stands_in_the_documentation() -> Result<()> {
    let page = std::fs::read_to_string(crate::support::file("docs/engines.md"))?;
    let tables = [&agreement::NOT_HERE[..], &NOT_ON_1_13, &NOT_ON_1_36, &parity_map::NOT_HERE];
    let served = [
        &agreement::NOT_SERVED[..],
        &agreement::NOT_BY_INITIALIZERS,
        &NOT_BY_WEBHOOK_OF_1_13,
        &NOT_BY_WEBHOOK_OF_1_36,
        &parity_map::NOT_EXPRESSIBLE,
    ];
    let names = tables.into_iter().flatten().map(|(name, _)| *name).chain(served.into_iter().flatten().copied());
    let missing: Vec<_> = names.filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
    Ok(())
}

async fn a_webhook_of_1_13_stores_the_corpus_as_scpol_inject_says() -> Result<()> {
    let not_here = [&agreement::NOT_HERE[..], &NOT_ON_1_13].concat();
    let mut never_served = [&agreement::NOT_SERVED[..], &NOT_BY_WEBHOOK_OF_1_13].concat();
    never_served.sort_unstable();
    webhook(Version::V1_13, &not_here, &never_served, site()).await
}

async fn a_webhook_of_1_36_stores_the_corpus_as_scpol_inject_says() -> Result<()> {
    let site = Site { native_sidecars: true, ..site() };
    webhook(Version::V1_36, &NOT_ON_1_36, &NOT_BY_WEBHOOK_OF_1_36, site).await
}

async fn webhook(version: Version, not_here: &[(&str, &str)], never_served: &[&str], site: Site) -> Result<()> {
    let world = World::with(ControlPlane::builder(version)).await?;
    let folder = tempfile::tempdir()?;
    let cases = corpus::cases(version, not_here, folder.path())?;
    corpus::define(&world).await?;
    corpus::create_namespaces(&world, &cases).await?;
    let mut expected = Vec::new();
    for case in &cases {
        expected.push(match &case.injected {
            Some(injected) => store(&world, injected).await?,
            None => Stored::Refused,
        });
    }
    let scene = Scene::with(world, site, |group| group.starts_with("example.")).await?;
    let (mut served, mut not_served) = (Vec::new(), Vec::new());
    for (case, expected) in cases.iter().zip(&expected) {
        match policies(&scene, case)? {
            Some(policies) => served.push((case, expected, policies)),
            None => not_served.push(case.name.as_str()),
        }
    }
    scene.register(served.iter().flat_map(|(.., policies)| policies.clone()).collect()).await?;
    let (mut differences, mut injected) = (Vec::new(), 0);
    for (case, expected, _) in &served {
        let found = store(&scene.world, &case.workload).await?;
        let is_injected = matches!(&found, Stored::As(body) if body.to_string().contains("injected.scpol.dev/c"));
        injected += usize::from(is_injected);
        if found != **expected {
            differences.push(format!("{}:\n  files  {expected:?}\n  server {found:?}", case.name));
        }
    }
    assert!(differences.is_empty(), "{} of {} differ\n{}", differences.len(), served.len(), differences.join("\n"));
    assert!(injected >= 100, "only {injected} were injected");
    assert_eq!(not_served, never_served);
    Ok(())
}

/// The policies of `case`; none if one of them cannot be served.
fn policies(scene: &Scene, case: &Case) -> Result<Option<Vec<Policy>>> {
    let policies = case.policies.iter().map(policy).collect::<Result<Vec<_>>>().with_context(|| case.name.clone())?;
    let native = scene.webhook.site.load().native_sidecars;
    let is_served = |policy: &Policy| {
        render::check(policy, &scene.capabilities).is_ok() && (native || !policy.needs_native_sidecars())
    };
    Ok(policies.iter().all(is_served).then_some(policies))
}

/// What would be stored of `body`.
async fn store(world: &World, body: &Value) -> Result<Stored> {
    match request(&world.admin, "POST", &format!("{}?dryRun=All", collection(body)?), body).await {
        Ok(stored) => Stored::of(stored),
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => Ok(Stored::Refused),
        // No namespace can be called so.
        Err(kube::Error::Api(status)) if status.message.starts_with("namespaces ") => Ok(Stored::Refused),
        Err(error) => Err(error).context(body.to_string()),
    }
}
