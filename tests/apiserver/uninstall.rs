//! `scpol uninstall`: nothing is left, and no create hangs or is rejected meanwhile.

use crate::commands::scpol;
use crate::prelude::*;
use crate::support;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

crate::tests![
    where_a_registration_cannot_be_taken_away_the_operator_stays_until_it_can,
    beside_an_operator_that_works_no_create_hangs_and_nothing_is_left,
    beside_an_operator_that_stands_still_creates_are_released_and_it_cannot_register_again,
    an_operator_that_is_installed_again_takes_it_for_no_emergency_brake,
    on_a_current_server_what_refuses_goes_before_what_injects_and_what_is_not_ours_stays,
    it_ends_when_its_namespace_is_gone_and_says_until_then_that_it_is_there,
    of_a_server_that_was_fresh_nothing_is_left_but_the_definition_and_what_was_injected,
];

const NAMESPACE: &str = "/api/v1/namespaces/scpol-system";

/// The lists of our objects on this server, by kind. A `/` before a name selects one object.
const OURS: [&str; 12] = [
    "/apis/apps/v1/namespaces/scpol-system/deployments",
    "/apis/apps/v1/namespaces/scpol-system/controllerrevisions",
    "/api/v1/namespaces/scpol-system/services",
    "/api/v1/namespaces/scpol-system/secrets",
    "/api/v1/namespaces/scpol-system/serviceaccounts",
    "/apis/rbac.authorization.k8s.io/v1/namespaces/scpol-system/roles",
    "/apis/rbac.authorization.k8s.io/v1/namespaces/scpol-system/rolebindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles?labelSelector=app.kubernetes.io/part-of=sidecar-policy",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings?labelSelector=app.kubernetes.io/part-of=sidecar-policy",
    "/apis/coordination.k8s.io/v1beta1/namespaces/scpol-system/leases",
    "/apis/policy/v1beta1/namespaces/scpol-system/poddisruptionbudgets",
    "/apis/networking.k8s.io/v1/namespaces/scpol-system/networkpolicies",
];

/// The objects in those lists.
async fn listed(world: &World) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for list in OURS {
        let mut list = list.to_owned();
        for (feature, group) in [(Feature::DisruptionBudgetV1, "policy"), (Feature::LeaseV1, "coordination.k8s.io")] {
            if world.cluster.version().has(feature) {
                list = list.replace(&format!("{group}/v1beta1"), &format!("{group}/v1"));
            }
        }
        let found = request(&world.admin, "GET", &list, &Value::Null).await?;
        let items = found["items"].as_array().with_context(|| format!("{list} is no list"))?;
        names.extend(items.iter().map(|item| format!("{} {}", found["kind"], item["metadata"]["name"])));
    }
    Ok(names)
}

/// The revisions in the operator's namespace.
const REVISIONS: &str = "/apis/apps/v1/namespaces/scpol-system/controllerrevisions";

/// A revision with `labels`.
fn revision(name: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": { "name": name, "labels": labels },
        "data": {}, "revision": 1,
    })
}

/// A revision of the policy `envoy`, as the operator stores it.
fn own_revision() -> Value {
    revision("envoy-1", &json!({ "app.kubernetes.io/managed-by": "scpol", "scpol.dev/policy": "envoy" }))
}

impl World {
    /// Installs everything, including the Deployment. No controller makes pods of it here.
    pub(crate) async fn install_all(&self) -> Result<()> {
        let manifests = support::install_manifests(self.cluster.version())?;
        within(LIMIT, "the install file is applied", || async {
            Ok(self.cluster.apply_manifests(&manifests).await.is_ok())
        })
        .await
    }

    /// Ends the Namespace once it is terminating, as the missing controller-manager would. Returns whether it is gone.
    async fn ends_namespace(&self) -> Result<bool> {
        let Some(mut namespace) = self.get(NAMESPACE).await? else { return Ok(true) };
        if namespace["status"]["phase"] != "Terminating" {
            return Ok(false);
        }
        namespace["spec"]["finalizers"] = json!([]);
        request(&self.admin, "PUT", &format!("{NAMESPACE}/finalize"), &namespace).await?;
        // Old servers need a second request.
        if self.get(NAMESPACE).await?.is_some() {
            self.delete(NAMESPACE).await?;
        }
        Ok(self.get(NAMESPACE).await?.is_none())
    }

    /// Runs `scpol uninstall` with `arguments`, on a server that ends its Namespaces.
    pub(crate) async fn uninstalls(&self, arguments: &[&str]) -> Result<(i32, String)> {
        let arguments = [&["uninstall"], arguments].concat();
        let ending = async {
            within(LIMIT, "the Namespace ends", || self.ends_namespace()).await?;
            std::future::pending::<Result<(i32, String)>>().await
        };
        tokio::select! {
            ended = scpol(&self.cluster, &arguments) => ended,
            failed = ending => failed,
        }
    }

    /// Checks that only the definition and its policies are left.
    pub(crate) async fn is_clean(&self) -> Result<()> {
        assert_eq!(listed(self).await?, [""; 0]);
        ensure!(self.get(NAMESPACE).await?.is_none(), "the Namespace is left");
        ensure!(self.get("/apis/scpol.dev/v1alpha1/sidecarpolicies").await?.is_some(), "the definition is gone");
        let (code, told) = scpol(&self.cluster, &["uninstall", "--check"]).await?;
        ensure!(code == 0 && told.contains("is kept"), "{code}: {told}");
        Ok(())
    }
}

async fn where_a_registration_cannot_be_taken_away_the_operator_stays_until_it_can() -> Result<()> {
    let world = World::new().await?;
    world.install_all().await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    // A foreign admission webhook prevents its deletion.
    let webhooks = "/apis/admissionregistration.k8s.io/v1beta1/validatingwebhookconfigurations";
    let webhook = json!({
        "name": "keeps.test.dev", "failurePolicy": "Fail", "clientConfig": { "url": "https://127.0.0.1:1/" },
        "rules": [{
            "apiGroups": ["admissionregistration.k8s.io"], "apiVersions": ["*"], "operations": ["DELETE"],
            "resources": ["initializerconfigurations"],
        }],
    });
    let keeps = json!({
        "apiVersion": "admissionregistration.k8s.io/v1beta1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "keeps" }, "webhooks": [webhook],
    });
    request(&world.admin, "POST", webhooks, &keeps).await?;
    let before = listed(&world).await?;
    within(LIMIT, "the server uses that webhook", || async {
        let other = json!({
            "apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "InitializerConfiguration",
            "metadata": { "name": "other" },
        });
        let _ = request(&world.admin, "POST", CONFIGURATIONS, &other).await;
        Ok(world.delete(&format!("{CONFIGURATIONS}/other")).await.is_err())
    })
    .await?;
    let (code, told) = scpol(&world.cluster, &["uninstall", "--yes"]).await?;
    assert!(code == 1 && told.contains("keeps.test.dev") && told.contains("the operator: is kept"), "{code}: {told}");
    assert_eq!(listed(&world).await?, before);
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("web")).await?), ["app", "envoy"]);
    world.delete(&format!("{webhooks}/keeps")).await?;
    within(LIMIT, "it can be taken away", || async { Ok(world.uninstalls(&["--yes"]).await?.0 == 0) }).await?;
    world.is_clean().await
}

async fn beside_an_operator_that_works_no_create_hangs_and_nothing_is_left() -> Result<()> {
    let world = World::new().await?;
    world.install_all().await?;
    let names = ["--initializer-name", "old.example.io"];
    let operator = Operator::ready(&world.cluster, &names).await?;
    world.policy("envoy", sidecar("envoy")).await?;
    let mut strict = sidecar("strict");
    strict["failurePolicy"] = json!("Fail");
    strict["initializerName"] = json!("old.example.io");
    world.policy("strict", strict).await?;
    in_force(&world.cluster, "envoy").await?;
    in_force(&world.cluster, "strict").await?;
    world
        .create_async(DEPLOYMENTS, &waiting("foreign-first", &["x.other.io", "old.example.io", "envoy.scpol.dev"]))
        .await?;
    request(&world.admin, "POST", REVISIONS, &own_revision()).await?;
    without_yes_nothing_is_done(&world).await?;

    let done = Arc::new(AtomicBool::new(false));
    let creating = async {
        let mut names = Vec::new();
        while !done.load(Ordering::Relaxed) {
            let name = format!("web-{}", names.len());
            world.create_promptly(DEPLOYMENTS, &deployment(&name)).await.with_context(|| name.clone())?;
            names.push(name);
        }
        anyhow::Ok(names)
    };
    let uninstalling = async {
        let ended = world.uninstalls(&["--yes"]).await;
        done.store(true, Ordering::Relaxed);
        ended
    };
    let (created, ended) = tokio::join!(creating, uninstalling);
    let ((code, told), created) = (ended?, created?);
    assert_eq!(code, 0, "{told}");
    let line =
        |what: &str| told.lines().position(|line| line.starts_with(what)).with_context(|| format!("{what}: {told}"));
    assert!(line("InitializerConfiguration scpol-strict: deleted")? < line("Deployment scpol-system/scpol: deleted")?);
    assert!(line("Deployment scpol-system/scpol: deleted")? < line("ClusterRole scpol-initializer: deleted")?);
    let revision = line("ControllerRevision scpol-system/envoy-1: deleted")?;
    assert!(line("ClusterRole scpol-initializer: deleted")? < revision, "before, the operator could store it anew");
    assert!(revision < line("Namespace scpol-system: deleted")?);
    let first = world.get(&path(&created[0])).await?.context("it is gone")?;
    assert_eq!(containers(&first), ["app", "envoy", "strict"], "the operator worked to the last");
    let last = world.get(&path(created.last().context("none was created")?)).await?.context("it is gone")?;
    assert_eq!(containers(&last), ["app"]);
    let foreign = world.get(&path("foreign-first")).await?.context("it is gone")?;
    assert_eq!(pending(&foreign), ["x.other.io"], "what is not ours stays");
    world.is_clean().await?;
    assert_eq!(world.configurations().await?, [""; 0]);
    let ready = wait_condition(&world.cluster, "strict", "Ready", "False", "Stopped").await?;
    assert!(ready["message"].as_str().unwrap_or_default().contains("was uninstalled"), "{ready}");
    let (code, told) = scpol(&world.cluster, &["uninstall", "--yes"]).await?;
    assert!(code == 0 && told.contains("Nothing else of sidecar-policy"), "{code}: {told}");
    drop(operator);
    Ok(())
}

/// Without `--yes` the command only says what is there and what it would do.
async fn without_yes_nothing_is_done(world: &World) -> Result<()> {
    let (code, told) = scpol(&world.cluster, &["uninstall"]).await?;
    assert!(code == 2 && told.contains("give `--yes`"), "{code}: {told}");
    let before = listed(world).await?;
    let (code, told) = scpol(&world.cluster, &["uninstall", "--dry-run"]).await?;
    assert!(code == 0 && told.contains("InitializerConfiguration scpol-envoy: would be deleted"), "{code}: {told}");
    assert!(told.contains("deployments.apps default/foreign-first: would be released"), "{told}");
    assert_eq!(listed(world).await?, before, "nothing was done");
    let (code, told) = scpol(&world.cluster, &["uninstall", "--check"]).await?;
    assert!(code == 1 && told.contains("Deployment scpol-system/scpol: is there"), "{code}: {told}");
    Ok(())
}

async fn beside_an_operator_that_stands_still_creates_are_released_and_it_cannot_register_again() -> Result<()> {
    let world = World::new().await?;
    world.install_all().await?;
    let operator = Operator::ready(&world.cluster, &["--repair-hold", "1s"]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    operator.signal("STOP")?;
    let stuck = deployment("stuck");
    let waits = world.create(DEPLOYMENTS, &stuck);
    let uninstalls = async {
        within(LIMIT, "a create hangs", || async {
            Ok(world.get(&path("stuck")).await?.is_some_and(|stuck| pending(&stuck) == ["envoy.scpol.dev"]))
        })
        .await?;
        world.uninstalls(&["--yes", "-o", "json"]).await
    };
    let (created, ended) = tokio::join!(waits, uninstalls);
    let (code, told) = ended?;
    let report: Value = serde_json::from_str(&told).with_context(|| told.clone())?;
    assert_eq!((code, &report["kind"]), (0, &json!("UninstallReport")), "{told}");
    assert!(
        report["items"].as_array().is_some_and(
            |items| items.contains(&json!({ "object": "deployments.apps default/stuck", "result": "Released" }))
        ),
        "{told}"
    );
    assert_eq!(containers(&created?), ["app"]);
    world.is_clean().await?;
    operator.signal("CONT")?;
    within(LIMIT, "the operator has noticed that it may do nothing", || async {
        Ok(operator.log().contains("Cannot look at the lease"))
    })
    .await?;
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("after")).await?), ["app"]);
    assert_eq!(world.configurations().await?, [""; 0]);
    operator.kill().await
}

async fn an_operator_that_is_installed_again_takes_it_for_no_emergency_brake() -> Result<()> {
    let (world, operator) = World::new().await?.operated(&[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    // It is down, as after a crash, and its registration is left.
    operator.kill().await?;
    let (code, told) = world.uninstalls(&["-y"]).await?;
    assert!(code == 0 && told.contains("SidecarPolicy envoy: status: not in effect"), "{code}: {told}");
    wait_condition(&world.cluster, "envoy", "Ready", "False", "Stopped").await?;
    support::apply_without_deployment(&world.cluster).await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    in_force(&world.cluster, "envoy").await?;
    drop(operator);
    Ok(())
}

async fn on_a_current_server_what_refuses_goes_before_what_injects_and_what_is_not_ours_stays() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST).audit_log()).await?;
    world.install_all().await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    let must = |engine: &str, group: &str, resource: &str| {
        let targets = json!([{ "group": group, "resource": resource }]);
        json!({ "engine": engine, "targets": targets, "failurePolicy": "Fail", "template": sidecar("envoy")["template"] })
    };
    world.policy("native", must("MutatingAdmissionPolicy", "", "pods")).await?;
    world.policy("hooked", must("Webhook", "apps", "deployments")).await?;
    in_force(&world.cluster, "native").await?;
    in_force(&world.cluster, "hooked").await?;
    let foreign = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": { "name": "foreign" }, "webhooks": [] });
    let webhooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    request(&world.admin, "POST", webhooks, &foreign).await?;
    let lodger = "/apis/apps/v1/namespaces/scpol-system/deployments";
    request(&world.admin, "POST", lodger, &deployment("lodger")).await?;
    request(&world.admin, "POST", REVISIONS, &own_revision()).await?;
    // That of a StatefulSet, for example.
    request(&world.admin, "POST", REVISIONS, &revision("lodger-1", &json!({ "app": "lodger" }))).await?;
    let (code, told) = scpol(&world.cluster, &["uninstall", "--yes", "--operator-namespace", "elsewhere"]).await?;
    assert!(code == 2 && told.contains("give `--operator-namespace scpol-system`"), "{code}: {told}");
    // Half of it is already gone. The rest is enough to find it.
    world.delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/scpol").await?;
    let (code, told) = scpol(&world.cluster, &["uninstall", "--yes", "--operator-namespace", "elsewhere"]).await?;
    assert!(code == 2 && told.contains("give `--operator-namespace scpol-system`"), "{code}: {told}");

    let (code, told) = scpol(&world.cluster, &["uninstall", "--yes", "--crd"]).await?;
    assert!(code == 0 && told.contains("Deployment scpol-system/lodger is in it, and is not ours"), "{code}: {told}");
    assert!(told.contains("Secret scpol-system/scpol-webhook: deleted"), "{told}");
    assert_eq!(listed(&world).await?, ["\"DeploymentList\" \"lodger\"", "\"ControllerRevisionList\" \"lodger-1\""]);
    let deleted = deletions(&world.cluster);
    let place = |resource: &str| {
        deleted.iter().position(|deleted| deleted == resource).with_context(|| format!("{resource}: {deleted:?}"))
    };
    for (refuses, injects) in [
        ("validatingadmissionpolicybindings scpol-pods", "mutatingadmissionpolicybindings scpol-pods"),
        (
            "validatingadmissionpolicybindings scpol-deployments.apps",
            "mutatingwebhookconfigurations scpol-deployments.apps",
        ),
        ("mutatingwebhookconfigurations scpol-deployments.apps", "deployments scpol"),
        ("deployments scpol", "clusterroles scpol"),
        ("clusterroles scpol", "secrets scpol-webhook"),
        ("secrets scpol-webhook", "customresourcedefinitions sidecarpolicies.scpol.dev"),
    ] {
        assert!(place(refuses)? < place(injects)?, "{refuses} before {injects}: {deleted:?}");
    }
    assert!(world.get(&format!("{webhooks}/foreign")).await?.is_some(), "what is not ours stays");
    let (code, told) = scpol(&world.cluster, &["uninstall", "--check", "--crd"]).await?;
    assert!(code == 0 && told.contains("Namespace scpol-system: is kept"), "{code}: {told}");
    drop(operator);
    Ok(())
}

async fn it_ends_when_its_namespace_is_gone_and_says_until_then_that_it_is_there() -> Result<()> {
    for version in [Version::V1_13, Version::V1_36] {
        let world = World::with(ControlPlane::builder(version)).await?;
        world.install_all().await?;
        for arguments in [["uninstall", "--yes", "--timeout=500ms"], ["uninstall", "--yes", "--timeout=0"]] {
            let (code, told) = scpol(&world.cluster, &arguments).await?;
            let line = "Namespace scpol-system: is being deleted: it is not gone after ";
            assert!(code == 1 && told.matches(line).count() == 1, "{version:?} {code}: {told}");
            assert!(!told.contains("Namespace scpol-system: deleted"), "{version:?}: {told}");
        }
        let (code, told) = scpol(&world.cluster, &["uninstall", "--check"]).await?;
        assert!(code == 1 && told.contains("Namespace scpol-system: is being deleted"), "{version:?} {code}: {told}");
        let (code, told) = world.uninstalls(&["--yes"]).await?;
        assert_eq!(code, 0, "{version:?}: {told}");
        world.is_clean().await?;
        world.install_all().await.context("it can be installed again at once")?;
    }
    Ok(())
}

/// The deletions by `scpol`, in order.
fn deletions(cluster: &ControlPlane) -> Vec<String> {
    let text = |event: &Value, field: &str| event["objectRef"][field].as_str().unwrap_or_default().to_owned();
    let events = cluster.audit().into_iter();
    let deleted =
        events.filter(|event| event["verb"] == "delete" && event["responseStatus"]["code"].as_i64() < Some(300));
    deleted.map(|event| format!("{} {}", text(&event, "resource"), text(&event, "name"))).collect()
}

/// All objects on the server of every listable kind, as `resource namespace/name`. Events expire by themselves.
async fn everything(world: &World) -> Result<BTreeSet<String>> {
    let groups = request(&world.admin, "GET", "/apis", &Value::Null).await?;
    let groups = groups["groups"].as_array().context("groups")?.clone();
    let preferred = groups.iter().filter_map(|group| group["preferredVersion"]["groupVersion"].as_str());
    let roots = ["/api/v1".to_owned()].into_iter().chain(preferred.map(|version| format!("/apis/{version}")));
    let mut found = BTreeSet::new();
    for root in roots {
        let served = request(&world.admin, "GET", &root, &Value::Null).await?;
        for resource in served["resources"].as_array().into_iter().flatten() {
            let name = resource["name"].as_str().unwrap_or_default();
            let is_listed = resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("list")));
            if !is_listed || matches!(name, "events" | "componentstatuses") {
                continue;
            }
            let items = world.list(&format!("{root}/{name}")).await?;
            let place = |item: &Value| {
                let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
                format!("{name} {}/{}", text("namespace"), text("name"))
            };
            found.extend(items.iter().map(place));
        }
    }
    Ok(found)
}

/// [`everything`] on a fresh server, after its own objects, which it creates some moments after its start.
pub(crate) async fn before(world: &World) -> Result<BTreeSet<String>> {
    let service = "/api/v1/namespaces/default/services/kubernetes";
    within(LIMIT, "it has its own Service", || async { Ok(world.get(service).await?.is_some()) }).await?;
    everything(world).await
}

/// The objects that were not there before, but those of the server itself.
pub(crate) async fn left(world: &World, before: &BTreeSet<String>) -> Result<Vec<String>> {
    let own = |name: &String| name.ends_with("default/kubernetes") || name.contains(" kube-system/");
    Ok(everything(world).await?.into_iter().filter(|name| !before.contains(name) && !own(name)).collect())
}

/// The versions with their install files, and the engines that are used.
const INSTALLS: [(Version, [&str; 2]); 2] =
    [(Version::V1_13, ["Initializer", "Webhook"]), (Version::NEWEST, ["MutatingAdmissionPolicy", "Webhook"])];

/// The number of rounds on one server: one, or `SCPOL_UNINSTALLS`.
fn installations() -> Result<usize> {
    match std::env::var("SCPOL_UNINSTALLS") {
        Ok(times) => times.parse().with_context(|| format!("SCPOL_UNINSTALLS is `{times}`, not a number")),
        Err(_) => Ok(1),
    }
}

/// The targets of the policies in the rounds below.
const USED: [&str; 2] = ["deployments", "statefulsets"];

impl World {
    /// Installs everything, and injects one workload with each of `engines`.
    async fn install_and_use(&self, engines: [&str; 2]) -> Result<Operator> {
        self.install_all().await?;
        let operator = Operator::ready(&self.cluster, &[]).await?;
        for (engine, resource) in engines.into_iter().zip(USED) {
            let spec = json!({
                "engine": engine, "targets": [{ "group": "apps", "resource": resource }],
                "template": sidecar(resource)["template"], "validations": [{ "expression": "object.metadata.name != 'bad'", "message": "bad" }],
            });
            self.enforce(resource, spec).await?;
            let mut workload = deployment("web");
            if resource == "statefulsets" {
                (workload["kind"], workload["spec"]["serviceName"]) = (json!("StatefulSet"), json!("web"));
            }
            let path = format!("/apis/apps/v1/namespaces/default/{resource}");
            let created = request(&self.admin, "POST", &path, &workload).await?;
            assert_eq!(containers(&created), ["app", resource], "{engine}");
        }
        let registered = self.registered().await?;
        assert!(registered.len() >= 3, "{registered:?}");
        Ok(operator)
    }

    /// Deletes the users' objects.
    async fn forget_what_was_used(&self) -> Result<()> {
        let made = ["deployments/web", "deployments/bad", "statefulsets/web"];
        for workload in made {
            self.delete(&format!("/apis/apps/v1/namespaces/default/{workload}")).await?;
        }
        for policy in USED {
            self.delete_policy(policy).await?;
        }
        Ok(())
    }
}

async fn of_a_server_that_was_fresh_nothing_is_left_but_the_definition_and_what_was_injected() -> Result<()> {
    for (version, engines) in INSTALLS {
        let world = World::empty(ControlPlane::builder(version)).await?;
        let before = before(&world).await?;
        for round in 1..=installations()? {
            let operator = world.install_and_use(engines).await?;
            let (code, told) = world.uninstalls(&["--yes"]).await?;
            assert_eq!(code, 0, "{version:?}, round {round}: {told}");
            let left = left(&world, &before).await?;
            let expected = [
                "apiservices /v1alpha1.scpol.dev",
                "customresourcedefinitions /sidecarpolicies.scpol.dev",
                "deployments default/web",
                "sidecarpolicies /deployments",
                "sidecarpolicies /statefulsets",
                "statefulsets default/web",
            ];
            assert_eq!(left, expected, "{version:?}, round {round}");
            for policy in USED {
                wait_condition(&world.cluster, policy, "Ready", "False", "Stopped").await?;
            }
            let bad = request(&world.admin, "POST", DEPLOYMENTS, &deployment("bad")).await?;
            assert_eq!(containers(&bad), ["app"], "{version:?}, round {round}");
            drop(operator);
            world.forget_what_was_used().await?;
        }
    }
    Ok(())
}
