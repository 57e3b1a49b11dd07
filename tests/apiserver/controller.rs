//! Policies become registrations, and registrations stay correct.

use crate::prelude::*;
use kube::api::{Patch, PatchParams};
use tokio::net::TcpListener;

crate::tests![
    a_registration_is_owned_labelled_repaired_and_removed_with_its_policy,
    a_registration_deleted_by_hand_stays_away_for_the_hold_across_restarts,
    foreign_configurations_are_never_touched_and_never_doubled,
    what_was_left_behind_while_the_operator_was_down_is_cleared_at_start,
    what_is_stored_long_after_its_registration_was_taken_away_is_let_go,
    status_columns_events_and_metrics_tell_the_same_and_rest_is_silent,
];

const CONFIGURATION: &str = "/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations/scpol-envoy";

async fn a_registration_is_owned_labelled_repaired_and_removed_with_its_policy() -> Result<()> {
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    let targets = json!([{ "group": "extensions", "resource": "deployments" }, { "group": "apps", "version": "v1", "resource": "statefulsets" }]);
    world.enforce("envoy", json!({ "targets": targets, "template": sidecar("envoy")["template"] })).await?;
    let configuration = world.get(CONFIGURATION).await?.unwrap_or_default();
    let rule = |groups: &[&str], version: &str, resource: &str| json!({ "name": "envoy.scpol.dev", "rules": [{ "apiGroups": groups, "apiVersions": [version], "resources": [resource] }] });
    assert_eq!(
        configuration["initializers"],
        json!([rule(&["apps", "extensions"], "*", "deployments"), rule(&["apps"], "v1", "statefulsets")])
    );
    assert_eq!(
        configuration["metadata"]["labels"],
        json!({ "app.kubernetes.io/managed-by": "scpol", "scpol.dev/policy": "envoy" })
    );
    assert_eq!(configuration["metadata"]["ownerReferences"][0]["name"], "envoy");

    // An edit by hand is repaired at once.
    world
        .patch(
            CONFIGURATION,
            &json!([{ "op": "replace", "path": "/initializers/0/rules/0/resources", "value": ["pods"] }]),
        )
        .await?;
    within(LIMIT, "it is repaired", || async {
        Ok(world.get(CONFIGURATION).await?.is_some_and(|now| now["initializers"] == configuration["initializers"]))
    })
    .await?;

    // After a change of targets, the registration follows.
    world.edit_policy("envoy", json!({ "targets": [{ "group": "apps", "resource": "deployments" }] })).await?;
    within(LIMIT, "it follows the policy", || async {
        Ok(world
            .get(CONFIGURATION)
            .await?
            .is_some_and(|now| now["initializers"].as_array().is_some_and(|list| list.len() == 1)))
    })
    .await?;

    a_policy_injects_nothing_while_it_is_suspended(&world).await?;
    what_waits_behind_a_foreign_initializer_is_let_go_after_the_policy(&world).await
}

/// A suspended policy has no registration, as if it were deleted. A resumed one is in effect again.
async fn a_policy_injects_nothing_while_it_is_suspended(world: &World) -> Result<()> {
    world.edit_policy("envoy", json!({ "suspend": true })).await?;
    wait_condition(&world.cluster, "envoy", "Ready", "True", "Suspended").await?;
    wait_condition(&world.cluster, "envoy", "Programmed", "False", "Suspended").await?;
    let conditions = policies(&world.cluster).get("envoy").await?.data["status"]["conditions"].clone();
    let types: Vec<_> =
        conditions.as_array().into_iter().flatten().map(|condition| condition["type"].clone()).collect();
    assert_eq!(types, ["Ready", "Accepted", "Programmed"], "what is not true is not there");
    within(LIMIT, "it is gone", || async { Ok(world.get(CONFIGURATION).await?.is_none()) }).await?;
    world.unregistered().await?;
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("suspended")).await?), ["app"]);
    world.edit_policy("envoy", json!({ "suspend": false })).await?;
    in_force(&world.cluster, "envoy").await?;
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("resumed")).await?), ["app", "envoy"]);
    Ok(())
}

/// The policy is deleted while an object waits behind a foreign initializer: nothing of the policy stays.
async fn what_waits_behind_a_foreign_initializer_is_let_go_after_the_policy(world: &World) -> Result<()> {
    let waits =
        world.create_async(DEPLOYMENTS, &crate::world::waiting("waits", &["x.other.io", "envoy.scpol.dev"])).await?;
    assert_eq!(pending(&waits).len(), 2);
    world.delete_policy("envoy").await?;
    within(LIMIT, "the registration is gone", || async { Ok(world.get(CONFIGURATION).await?.is_none()) }).await?;
    world.complete_foreign(&path("waits")).await?;
    assert_eq!(
        containers(&world.initialized(&path("waits")).await?),
        ["app"],
        "let go, not injected: the policy is gone"
    );
    world.unregistered().await?;
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("after")).await?), ["app"]);
    Ok(())
}

async fn a_registration_deleted_by_hand_stays_away_for_the_hold_across_restarts() -> Result<()> {
    let (world, operator) = World::new().await?.operated(&[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    world.delete(CONFIGURATION).await?;
    let condition = wait_condition(&world.cluster, "envoy", "Programmed", "False", "RemovedByHand").await?;
    // The server goes on asking for the policy for up to 3 s.
    for number in 0..10 {
        let created = world.create_promptly(DEPLOYMENTS, &deployment(&format!("asked-{number}"))).await?;
        assert_eq!(containers(&created), ["app"], "the brake works at once");
    }
    assert!(condition["message"].as_str().unwrap_or_default().starts_with("SCP0306: "), "{condition}");
    wait_condition(&world.cluster, "envoy", "Ready", "False", "RemovedByHand").await?;
    wait_condition(&world.cluster, "envoy", "Reconciling", "True", "RemovedByHand").await?;
    world.unregistered().await?;
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("held")).await?), ["app"]);

    // A new leader also respects the removal.
    operator.kill().await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    wait_condition(&world.cluster, "envoy", "Programmed", "False", "RemovedByHand").await?;
    assert!(world.configurations().await?.is_empty());
    // Suspending and resuming the policy ends the hold.
    world.edit_policy("envoy", serde_json::json!({ "suspend": true })).await?;
    wait_condition(&world.cluster, "envoy", "Ready", "True", "Suspended").await?;
    world.edit_policy("envoy", serde_json::json!({ "suspend": false })).await?;
    in_force(&world.cluster, "envoy").await?;
    operator.kill().await?;

    // Deleted without a running operator. Our own removals are marked first, and this one was not.
    let operator = Operator::ready(&world.cluster, &["--repair-hold", "1s"]).await?;
    in_force(&world.cluster, "envoy").await?;
    operator.kill().await?;
    world.delete(CONFIGURATION).await?;
    let _operator = Operator::ready(&world.cluster, &["--repair-hold", "4s"]).await?;
    wait_condition(&world.cluster, "envoy", "Programmed", "False", "RemovedByHand").await?;
    // After the hold it is created again.
    in_force(&world.cluster, "envoy").await
}

async fn foreign_configurations_are_never_touched_and_never_doubled() -> Result<()> {
    let world = World::new().await?;
    let _operator =
        Operator::ready(&world.cluster, &["--initializer-name", "sidecar.initializer.kubernetes.io"]).await?;
    world.foreign("scpol-envoy", "unrelated.other.io").await?;
    let before = world.get(CONFIGURATION).await?;
    world.policy("envoy", sidecar("envoy")).await?;
    wait_condition(&world.cluster, "envoy", "Programmed", "False", "NameTaken").await?;
    assert_eq!(world.get(CONFIGURATION).await?, before);
    world.delete(CONFIGURATION).await?;
    in_force(&world.cluster, "envoy").await?;

    // The old tutorial's configuration still exists, so a second registration would put the name on objects twice.
    world.foreign("sidecar", "sidecar.initializer.kubernetes.io").await?;
    world
        .policy(
            "old",
            json!({ "initializerName": "sidecar.initializer.kubernetes.io", "template": sidecar("old")["template"] }),
        )
        .await?;
    wait_condition(&world.cluster, "old", "Programmed", "False", "ForeignConfiguration").await?;
    world
        .policy(
            "newer",
            json!({ "initializerName": "sidecar.initializer.kubernetes.io", "template": sidecar("newer")["template"] }),
        )
        .await?;
    wait_condition(&world.cluster, "newer", "Accepted", "False", "DuplicateInitializerName").await?;
    world.delete(&format!("{CONFIGURATIONS}/sidecar")).await?;
    in_force(&world.cluster, "old").await?;

    // Renamed while an object waits under the old name: the object is released, never forgotten.
    world
        .create_async(
            DEPLOYMENTS,
            &crate::world::waiting("renamed", &["x.other.io", "sidecar.initializer.kubernetes.io"]),
        )
        .await?;
    world.edit_policy("old", json!({ "initializerName": "new.scpol.dev" })).await?;
    within(LIMIT, "it follows", || async {
        let stored = world.get(&format!("{CONFIGURATIONS}/scpol-old")).await?;
        Ok(stored.is_some_and(|stored| stored["initializers"][0]["name"] == "new.scpol.dev"))
    })
    .await?;
    world.complete_foreign(&path("renamed")).await?;
    world.initialized(&path("renamed")).await?;
    Ok(())
}

async fn what_was_left_behind_while_the_operator_was_down_is_cleared_at_start() -> Result<()> {
    let (world, operator) = World::new().await?.operated(&[]).await?;
    world.enforce("envoy", json!({ "targets": [{ "group": "apps", "resource": "daemonsets" }], "template": sidecar("envoy")["template"] })).await?;
    operator.kill().await?;
    let mut daemon = deployment("left");
    daemon["kind"] = json!("DaemonSet");
    let daemons = "/apis/apps/v1/namespaces/default/daemonsets";
    assert_eq!(pending(&world.create_async(daemons, &daemon).await?), ["envoy.scpol.dev"]);
    world.delete_policy("envoy").await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    assert_eq!(containers(&world.initialized(&format!("{daemons}/left")).await?), ["app"]);
    within(LIMIT, "the registration of a policy that is gone is removed", || async {
        Ok(world.configurations().await?.is_empty())
    })
    .await
}

async fn what_is_stored_long_after_its_registration_was_taken_away_is_let_go() -> Result<()> {
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    // As if registered by an earlier leader.
    let created = world.create_async(DEPLOYMENTS, &waiting("left-behind", &["gone.scpol.dev"])).await?;
    assert_eq!(pending(&created), ["gone.scpol.dev"]);
    world.initialized(&path("left-behind")).await?;

    // A slow validating webhook delays the create after our entry was added, and finally admits it.
    world.enforce("envoy", sidecar("envoy")).await?;
    let slow = TcpListener::bind("127.0.0.1:0").await?;
    let webhook = json!({
        "name": "slow.test.dev", "failurePolicy": "Ignore",
        "clientConfig": { "url": format!("https://{}/", slow.local_addr()?) },
        "rules": [{ "apiGroups": ["apps"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["deployments"] }],
    });
    let registration = json!({ "apiVersion": "admissionregistration.k8s.io/v1beta1", "kind": "ValidatingWebhookConfiguration", "metadata": { "name": "slow" }, "webhooks": [webhook] });
    let path = "/apis/admissionregistration.k8s.io/v1beta1/validatingwebhookconfigurations";
    request(&world.admin, "POST", path, &registration).await?;
    // The server takes a moment to see it. Until then, creates pass.
    let mut names = (0..).map(|number| format!("held-{number}"));
    let (creator, held) = loop {
        let (client, body) = (world.creator.clone(), deployment(&names.next().context("endless")?));
        let creator = tokio::spawn(async move { request(&client, "POST", DEPLOYMENTS, &body).await });
        match tokio::time::timeout(Duration::from_millis(500), slow.accept()).await {
            Ok(asked) => break (creator, asked?),
            Err(_) => assert_eq!(containers(&creator.await??), ["app", "envoy"]),
        }
    };
    world.delete_policy("envoy").await?;
    within(LIMIT, "it is unregistered", || async { Ok(world.configurations().await?.is_empty()) }).await?;
    tokio::time::sleep(3 * timing().configuration.settling).await;
    drop((slow, held));
    let since = Instant::now();
    assert_eq!(containers(&creator.await??), ["app"]);
    assert!(since.elapsed() < Duration::from_secs(5), "the create waited for {:?}", since.elapsed());
    Ok(())
}

async fn status_columns_events_and_metrics_tell_the_same_and_rest_is_silent() -> Result<()> {
    let world = World::with(controlplane::ControlPlane::builder(controlplane::Version::V1_13).audit_log()).await?;
    world.create(DEPLOYMENTS, &deployment("old")).await?;
    let operator = Operator::ready(&world.cluster, &["--events-injected"]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    world.event("web", "SidecarInjected: SCP0002: ").await?;
    world.event("envoy", "PolicyAccepted: SCP0002: ").await?;
    for (field, value) in [("matched", 2), ("injected", 1), ("missed", 1), ("outdated", 0), ("pending", 0)] {
        world.status("envoy", field, value).await?;
    }
    let table = world.cluster.kubectl_output(User::Admin, &["get", "scpol", "-o", "wide"]).await?;
    let row: Vec<&str> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!(row[..7], ["envoy", "True", "True", "Programmed", "Initializer", "2", "1"], "{table}");
    let injected =
        r#"scpol_injections_total{engine="Initializer",policy="envoy",reason="Programmed",result="injected"}"#;
    assert_eq!(operator.metric(injected).await?, 1.0);
    assert_eq!(operator.metric("scpol_leader").await?, 1.0);
    assert_eq!(operator.metric(r#"scpol_policies{ready="True"}"#).await?, 1.0);
    assert!(operator.metric(r#"scpol_api_requests_total{code="200",verb="patch"}"#).await? >= 1.0);

    marker_and_status_agree(&world).await?;

    // Another template: what is stored is outdated, and stays as it is.
    world.edit_policy("envoy", sidecar_of("envoy", "envoy:2")).await?;
    world.status("envoy", "outdated", 1).await?;
    let stored = world.get(&path("web")).await?.unwrap_or_default();
    let first = &stored["spec"]["template"]["spec"]["containers"][1]["image"];
    assert_eq!((first, world.patches("web")), (&json!("envoy:1"), 1), "what runs is never changed");
    nothing_is_written_at_rest(&world).await?;
    // A status that somebody spoils is written again.
    let spoilt = Patch::Merge(json!({ "status": { "injected": 77 } }));
    policies(&world.cluster).patch_status("envoy", &PatchParams::default(), &spoilt).await?;
    world.status("envoy", "injected", 0).await?;
    let conditions = policies(&world.cluster).get("envoy").await?.data["status"]["conditions"].clone();
    assert!(
        conditions
            .as_array()
            .is_some_and(|list| list.iter().all(|condition| condition["observedGeneration"].is_number())),
        "{conditions}"
    );
    let size = policies(&world.cluster).get("envoy").await?.data["status"].to_string().len();
    assert!(size <= 4096, "{size} bytes");
    assert!(request(&world.creator, "POST", "/apis/scpol.dev/v1alpha1/sidecarpolicies", &json!({ "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "metadata": { "name": "mine" }, "spec": sidecar("x") })).await.is_err(), "`edit` does not write them");
    Ok(())
}

/// The marker on the workload `web` and the status of its policy have the same hash.
async fn marker_and_status_agree(world: &World) -> Result<()> {
    let status = policies(&world.cluster).get("envoy").await?.data["status"].clone();
    let web = world.get(&path("web")).await?.unwrap_or_default();
    let marker = web["spec"]["template"]["metadata"]["annotations"]["injected.scpol.dev/envoy"].as_str();
    let marker: serde_json::Value = serde_json::from_str(marker.unwrap_or_default())?;
    assert_eq!((&marker["hash"], &marker["v"]), (&status["templateHash"], &json!(1)));
    assert_eq!(
        marker["added"].as_array().map(Vec::len),
        Some(2),
        "the map of annotations, and the container: {marker}"
    );
    assert_eq!(status["observedSpecHash"].as_str().map(str::len), Some(16), "{status}");
    assert_eq!((&status["engine"], &status["initializerName"]), (&json!("Initializer"), &json!("envoy.scpol.dev")));
    assert_eq!(status["observedGeneration"], 1);
    Ok(())
}

/// At rest nothing is written but the lease. A status may follow within the period of statuses, so the rest lasts longer.
async fn nothing_is_written_at_rest(world: &World) -> Result<()> {
    let writes = || {
        let audit = world.cluster.audit();
        let ours = audit.into_iter().filter(|event| event["user"]["username"] == User::Operator.name());
        ours.filter(|event| {
            !matches!(event["verb"].as_str(), Some("get" | "list" | "watch"))
                && event["objectRef"]["resource"] != "leases"
        })
        .count()
    };
    let mut last = writes();
    let rest = timing().controller.status_period + 2 * timing().controller.tick;
    within(LIMIT, "a rest without a write", || {
        let (before, now) = (last, writes());
        last = now;
        async move {
            tokio::time::sleep(rest).await;
            Ok(before == now)
        }
    })
    .await
}
