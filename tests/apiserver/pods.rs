//! Pods as targets, with the ServiceAccount, LimitRanger and ResourceQuota plugins on.

use crate::prelude::*;
use sidecar_policy::qos;
use sidecar_policy::workload::{Kind, Workload};

crate::tests![
    pods_pass_admission_with_their_sidecar_and_what_admission_refuses_is_told,
    servers_give_pods_the_quality_of_service_that_explain_tells,
];

/// Creates a ServiceAccount and its token, because there is no controller-manager.
async fn service_account(world: &World, name: &str) -> Result<()> {
    let token = format!("{name}-token");
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name }, "secrets": [{ "name": token }] });
    let account = request(&world.admin, "POST", "/api/v1/namespaces/default/serviceaccounts", &account).await?;
    let owner = json!({ "kubernetes.io/service-account.name": name, "kubernetes.io/service-account.uid": account["metadata"]["uid"] });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": token, "annotations": owner },
        "type": "kubernetes.io/service-account-token", "data": { "token": "dG9rZW4=" },
    });
    request(&world.admin, "POST", "/api/v1/namespaces/default/secrets", &secret).await?;
    Ok(())
}

async fn servers_give_pods_the_quality_of_service_that_explain_tells() -> Result<()> {
    let (full, requests) =
        (json!({ "limits": { "cpu": 1, "memory": "1Gi" } }), json!({ "requests": { "cpu": "50m" } }));
    let less = json!({ "limits": { "cpu": 1, "memory": "1Gi" }, "requests": { "cpu": "50m" } });
    let zero = json!({ "limits": { "cpu": 1, "memory": "1Gi" }, "requests": { "cpu": 0 } });
    let storage = json!({ "requests": { "ephemeral-storage": "1Gi" } });
    let none = json!({});
    let all = [&none, &full, &requests, &less, &zero, &storage];
    for version in [Version::V1_13, Version::V1_36] {
        let world = World::with(ControlPlane::builder(version)).await?;
        let mut seen = std::collections::BTreeSet::new();
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
            for list in ["containers", "initContainers"] {
                let mut pod = pod("any");
                pod["metadata"] = json!({ "generateName": "pod-" });
                pod["spec"]["containers"][0]["resources"] = Value::clone(a);
                let second = json!({ "name": "second", "image": "second:1", "resources": b });
                match list {
                    "containers" => pod["spec"][list].as_array_mut().context("a list")?.push(second),
                    _ => pod["spec"][list] = json!([second]),
                }
                let kind = Kind::find("", "pods").context("pods are built in")?;
                let told =
                    qos::of(&Workload::new(kind, pod.clone()), Some(version.minor())).context("it has containers")?;
                let created = request(&world.admin, "POST", PODS, &pod).await?;
                assert_eq!(created["status"]["qosClass"], told.to_string(), "{version:?} {list}: {a} {b}");
                seen.insert(told);
            }
        }
        assert_eq!(seen.len(), 3, "each class is seen");
    }
    Ok(())
}

async fn pods_pass_admission_with_their_sidecar_and_what_admission_refuses_is_told() -> Result<()> {
    let builder = ControlPlane::builder(Version::V1_13)
        .enable_admission(&["ServiceAccount", "LimitRanger", "ResourceQuota"])
        .audit_log();
    let world = World::with(builder).await?;
    service_account(&world, "default").await?;
    let ranges = json!({ "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "limits" }, "spec": { "limits": [{ "type": "Container", "default": { "cpu": "100m" }, "defaultRequest": { "cpu": "50m" } }] } });
    request(&world.admin, "POST", "/api/v1/namespaces/default/limitranges", &ranges).await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    let container = json!({ "name": "envoy", "image": "envoy:1", "resources": { "requests": { "cpu": "500m" }, "limits": { "cpu": "500m" } } });
    world
        .enforce(
            "envoy",
            json!({ "targets": [{ "group": "", "resource": "pods" }], "template": { "containers": [container.clone()] } }),
        )
        .await?;
    let carries = wait_condition(&world.cluster, "envoy", "Programmed", "True", "Programmed").await?;
    let said = world.cluster.kubectl_output(User::Admin, &["get", "scpol", "envoy", "-o", "yaml"]).await?;
    assert!(said.contains("SCP0314"), "a policy on pods says what it means: {carries}");

    let created = world.create_promptly(PODS, &pod("web")).await?;
    assert_eq!(containers(&created), ["app", "envoy"]);
    assert!(
        created["spec"]["containers"][1]["volumeMounts"][0]["mountPath"]
            .as_str()
            .is_some_and(|path| path.contains("serviceaccount")),
        "the server gives it the account's token"
    );

    // Admission's additions to the user's own container of that name do not make it another container.
    let mut own = pod("own");
    own["spec"]["containers"].as_array_mut().expect("a list").push(container.clone());
    assert_eq!(containers(&world.create_promptly(PODS, &own).await?), ["app", "envoy"]);
    assert_eq!(world.events("own").await?, Vec::<String>::new());

    over_the_quota_a_pod_comes_without_its_sidecar_or_not_at_all(&world, &operator).await?;
    while_its_account_is_gone_a_pod_is_not_even_let_go(&world, &operator).await?;
    operator.kill().await?;
    without_an_operator_its_own_pods_wait_until_somebody_breaks_the_glass(&world).await
}

/// Row 15: a pod exceeds the quota only with its sidecar.
async fn over_the_quota_a_pod_comes_without_its_sidecar_or_not_at_all(
    world: &World,
    operator: &Operator,
) -> Result<()> {
    let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "few" }, "spec": { "hard": { "requests.cpu": "900m" } } });
    request(&world.admin, "POST", "/api/v1/namespaces/default/resourcequotas", &quota).await?;
    let used = json!([{ "op": "add", "path": "/status", "value": { "hard": { "requests.cpu": "900m" }, "used": { "requests.cpu": "550m" } } }]);
    world.patch("/api/v1/namespaces/default/resourcequotas/few/status", &used).await?;
    let created = world.create(PODS, &pod("second")).await?;
    assert_eq!(containers(&created), ["app"]);
    world.event("second", "SidecarInjectionFailed: SCP0205: ").await?;
    world.status("envoy", "failed", 1).await?;
    for (state, count) in [("failed", 1.0), ("missed", 0.0), ("pending", 0.0)] {
        let series = format!(r#"scpol_policy_workloads{{policy="envoy",state="{state}"}}"#);
        assert_eq!(operator.metric(&series).await?, count, "{state}: it is counted once");
    }
    world.edit_policy("envoy", json!({ "failurePolicy": "Fail" })).await?;
    within(LIMIT, "the create is refused with the reason", || async {
        match world.create(PODS, &pod("third")).await {
            Ok(_) => world.delete(&format!("{PODS}/third")).await.map(|()| false),
            Err(error) => Ok(format!("{error:#}").contains("SCP0205")),
        }
    })
    .await
}

/// Row 16: while the account of a pod is gone, the server rejects even the write that lets the pod go.
async fn while_its_account_is_gone_a_pod_is_not_even_let_go(world: &World, operator: &Operator) -> Result<()> {
    world.delete("/api/v1/namespaces/default/resourcequotas/few").await?;
    operator.signal("STOP")?;
    world.create_async(PODS, &pod("waits")).await?;
    world.delete("/api/v1/namespaces/default/serviceaccounts/default").await?;
    world.delete("/api/v1/namespaces/default/secrets/default-token").await?;
    operator.signal("CONT")?;
    wait_condition(&world.cluster, "envoy", "Degraded", "True", "AdmissionDenied").await?;
    // The account returns after the release has been refused. While that is asked, it would be accepted, without the sidecar.
    let releases = || {
        let is_release = |event: &&Value| {
            event["verb"] == "patch"
                && event["objectRef"]["name"] == "waits"
                && event["responseStatus"]["code"] == 403
                && !event["requestObject"].to_string().contains("/spec/containers")
        };
        world.cluster.audit().iter().filter(is_release).count()
    };
    let so_far = releases();
    within(LIMIT, "it is tried again", || async { Ok(releases() > so_far) }).await?;
    service_account(world, "default").await?;
    assert_eq!(containers(&world.initialized(&format!("{PODS}/waits")).await?), ["app", "envoy"]);
    Ok(())
}

/// No replica runs: pods of all namespaces wait, and so do the operator's own. Recovery comes from outside.
async fn without_an_operator_its_own_pods_wait_until_somebody_breaks_the_glass(world: &World) -> Result<()> {
    let created = world.create_async(PODS, &pod("stuck")).await?;
    assert_eq!(crate::world::pending(&created), ["envoy.scpol.dev"]);
    let mut own = pod("scpol-0");
    own["spec"]["serviceAccountName"] = json!("scpol");
    own["spec"]["automountServiceAccountToken"] = json!(false);
    let own =
        request(&world.admin, "POST", "/api/v1/namespaces/scpol-system/pods?includeUninitialized=1", &own).await?;
    assert_eq!(crate::world::pending(&own), ["envoy.scpol.dev"], "our own pods cannot bypass");
    world.break_glass().await?;
    crate::commands::scpol(&world.cluster, &["drain"]).await?;
    within(LIMIT, "our own pod is free", || async {
        let own = world.get("/api/v1/namespaces/scpol-system/pods/scpol-0").await?;
        Ok(own.is_some_and(|own| own["metadata"].get("initializers").is_none()))
    })
    .await?;
    assert_eq!(containers(&world.initialized(&format!("{PODS}/stuck")).await?), ["app"]);
    Ok(())
}
