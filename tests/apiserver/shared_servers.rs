//! A reused control plane behaves like a new one.

use crate::corpus;
use crate::support::{self, LIMIT, Operator, within};
use crate::world::{CONFIGURATIONS, DEPLOYMENTS, World, containers, deployment, pending, request, sidecar};
use anyhow::{Context, Result, ensure};
use controlplane::{Builder, ControlPlane, Snapshot, User, Version};
use serde_json::{Value, json};

crate::tests![
    on_1_13_nothing_is_left_of_the_test_before = nothing_is_left(Version::V1_13),
    on_the_newest_nothing_is_left_of_the_test_before = nothing_is_left(Version::NEWEST),
    what_a_test_has_stopped_or_frozen_is_not_handed_on,
];

/// Settings that no other test uses.
fn own(version: Version) -> Builder {
    ControlPlane::builder(version).audit_log().extra_arg("--v=1")
}

/// Leaves one change of every kind that tests make.
async fn spoil(world: &World) -> Result<()> {
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    world.create(DEPLOYMENTS, &deployment("web")).await?;
    let version = world.cluster.version();
    if version.has_initializers() {
        world.foreign("foreign", "foreign.example.org").await?;
    }
    let webhook = json!({
        "name": "no.example.org", "failurePolicy": "Ignore", "clientConfig": { "url": "https://127.0.0.1:1/" },
        "sideEffects": "None", "admissionReviewVersions": ["v1beta1", "v1"],
        "rules": [{ "apiGroups": ["apps"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["deployments"] }],
    });
    let api = format!("admissionregistration.k8s.io/{}", version.registration());
    let webhooks = json!({
        "apiVersion": api, "kind": "ValidatingWebhookConfiguration", "metadata": { "name": "foreign" }, "webhooks": [webhook],
    });
    request(&world.admin, "POST", &format!("/apis/{api}/validatingwebhookconfigurations"), &webhooks).await?;
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop", "finalizers": ["example.org/keeps"] },
    });
    request(&world.admin, "POST", "/api/v1/namespaces", &namespace).await?;
    world.delete("/api/v1/namespaces/shop").await?; // nothing ends it here
    world.delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system-aggregate-to-edit").await?;
    corpus::define(world).await?;
    let policies = "customresourcedefinitions/sidecarpolicies.scpol.dev";
    world.delete(&format!("/apis/apiextensions.k8s.io/{}/{policies}", version.registration())).await?;
    std::fs::write(world.cluster.dir().join("left"), "something")?;
    Ok(())
}

/// The state of a process, as in `/proc`: `T` is stopped.
fn state(pid: u32) -> Option<char> {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit_once(") ")?.1.chars().next()
}

async fn nothing_is_left(version: Version) -> Result<()> {
    let world = World::with(own(version)).await?;
    let (pids, before) = (world.cluster.pids(), world.cluster.stored().await?);
    spoil(&world).await?;
    let spoilt = world.cluster.stored().await?;
    let (more, less) = (spoilt.difference(&before), before.difference(&spoilt));
    ensure!(more.len() > 5 && less.len() >= 2, "this proves nothing: {more:?}, {less:?}");
    drop(world);

    // Idle servers sleep.
    within(LIMIT, "they sleep", || async { Ok(pids.iter().all(|pid| state(*pid) == Some('T'))) }).await?;
    let world = World::with(own(version)).await?;
    ensure!(world.cluster.pids() == pids, "other servers: this proves nothing");
    let (again, changed) = (world.cluster.stored().await?, |one: &Snapshot, other: &Snapshot| one.difference(other));
    assert_eq!(changed(&again, &before), [""; 0]);
    assert_eq!(changed(&before, &again), [""; 0]);
    assert!(!world.cluster.dir().join("left").exists());
    let of_others = world.cluster.audit().into_iter().find(|event| event["user"]["username"] == User::Operator.name());
    assert_eq!(of_others, None);
    // The API server follows its etcd: no registration of the earlier test, and the rights of an installation.
    let created = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    assert_eq!((containers(&created), pending(&created)), (vec!["app".to_owned()], vec![]));
    world.policy("other", sidecar("other")).await?;
    let listed = world.get("/apis/scpol.dev/v1alpha1/sidecarpolicies").await?.context("the definition is back")?;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(world.get("/apis/example.org/v1/rollouts").await?, None);
    if version.has_initializers() {
        let configurations = request(&world.admin, "GET", CONFIGURATIONS, &Value::Null).await?;
        assert_eq!(configurations["items"].as_array().map(Vec::len), Some(0));
    }
    drop(world);

    // A test that asks for servers without an installation gets such servers.
    let bare = own(version).start().await?;
    ensure!(bare.pids() == pids, "other servers: this proves nothing");
    assert!(support::policies(&bare).list(&Default::default()).await.is_err());
    Ok(())
}

async fn what_a_test_has_stopped_or_frozen_is_not_handed_on() -> Result<()> {
    let servers = || ControlPlane::builder(Version::NEWEST).extra_arg("--v=2");
    let frozen = servers().start().await?;
    let pids = frozen.pids();
    frozen.freeze();
    frozen.thaw();
    drop(frozen);
    let other = servers().start().await?;
    assert_ne!(other.pids(), pids);
    let pids = other.pids();
    drop(other);
    assert_eq!(servers().start().await?.pids(), pids);
    Ok(())
}
