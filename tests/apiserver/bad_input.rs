//! Invalid input on purpose: each gives a condition or an event with its code, and no create ever hangs.

use crate::commands::scpol;
use crate::prelude::*;

crate::tests![
    every_fault_of_a_policy_is_a_condition_or_a_refusal_and_creates_go_on,
    with_the_api_off_or_the_plugin_off_nothing_is_registered_and_the_flag_is_named,
    what_a_current_server_has_no_more_is_said,
    what_the_operator_cannot_start_without_is_one_line_and_exit_code_2,
];

/// The policy `x` with one more field in its spec.
fn with(field: &str, value: Value) -> Value {
    let mut spec = sidecar("x");
    spec[field] = value;
    spec
}

/// Policies with one fault each: the name, the spec, the condition that becomes `False`, and its reason. The tests of
/// `malformed.rs` have every reason of `Accepted`.
fn faults() -> [(&'static str, Value, &'static str, &'static str); 8] {
    let lacking = json!([{ "group": "apps", "version": "v9", "resource": "deployments" }]);
    let template = |field: &str, item: Value| json!({ "template": { field: [item] } });
    let native = json!({ "name": "n", "image": "x:1", "restartPolicy": "Always" });
    let nested = json!({ "name": "v", "configMap": { "name": "c", "optionl": true } });
    let dropped = json!({ "name": "n", "image": "x:1", "startupProbe": { "exec": { "command": ["x"] } } });
    [
        ("unknown-field", with("namespacs", json!(["shop"])), "Accepted", "UnknownField"),
        (
            "undefined",
            with("targets", json!([{ "group": "example.com", "resource": "widgets" }])),
            "Programmed",
            "TargetNotServed",
        ),
        ("cel", with("engine", json!("MutatingAdmissionPolicy")), "Programmed", "AdmissionPolicyApiOff"),
        ("natives", with("nativeSidecars", json!("Always")), "Programmed", "NativeSidecarsUnavailable"),
        ("native", template("initContainers", native), "Programmed", "NativeSidecarsUnavailable"),
        ("nested", template("volumes", nested), "Programmed", "UnknownTemplateField"),
        ("lacking", with("targets", lacking), "Programmed", "TargetNotServed"),
        ("dropped", template("containers", dropped), "Programmed", "UnknownTemplateField"),
    ]
}

async fn every_fault_of_a_policy_is_a_condition_or_a_refusal_and_creates_go_on() -> Result<()> {
    let (world, operator) = World::new().await?.operated(&[]).await?;
    world.policy("good", sidecar("envoy")).await?;
    for (name, spec, condition, reason) in faults() {
        match world.policy(name, spec).await {
            Ok(()) => {
                let seen = wait_condition(&world.cluster, name, condition, "False", reason).await?;
                assert!(seen["message"].as_str().unwrap_or_default().starts_with("SCP0"), "{name}: {seen}");
                wait_condition(&world.cluster, name, "Stalled", "True", reason).await?;
            }
            // The schema may reject it first.
            Err(error) => assert!(format!("{error:#}").contains("validation failure"), "{name}: {error:#}"),
        }
    }
    // The schema rejects wrong types even here.
    assert!(world.policy("wrong-type", with("namespaces", json!("shop"))).await.is_err());
    in_force(&world.cluster, "good").await?;
    let created = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    assert_eq!(containers(&created), ["app", "envoy"], "one broken policy breaks no other");
    assert_eq!(world.configurations().await?, ["scpol-good"]);
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    a_missing_volume_is_reported_for_the_workload_that_lacks_it(&world).await?;

    // A good policy that becomes a bad one is taken out; made good again, it is in effect again.
    world.edit_policy("good", json!({ "suspnd": true })).await?;
    wait_condition(&world.cluster, "good", "Accepted", "False", "UnknownField").await?;
    within(LIMIT, "it is unregistered", || async { Ok(world.configurations().await? == ["scpol-mount"]) }).await?;
    world.edit_policy("good", json!({ "suspnd": null })).await?;
    in_force(&world.cluster, "good").await
}

/// The template mounts a volume that it does not define: the operator can look for it only when a workload comes.
async fn a_missing_volume_is_reported_for_the_workload_that_lacks_it(world: &World) -> Result<()> {
    let template = json!({ "containers": [{ "name": "m", "image": "x:1", "volumeMounts": [{ "name": "conf", "mountPath": "/c" }] }] });
    world.enforce("mount", json!({ "template": template })).await?;
    let created = world.create_promptly(DEPLOYMENTS, &deployment("without-volume")).await?;
    assert_eq!(containers(&created), ["app", "envoy"]);
    world.event("without-volume", "SidecarInjectionFailed: SCP0202: ").await?;
    let mut with_volume = deployment("with-volume");
    with_volume["spec"]["template"]["spec"]["volumes"] = json!([{ "name": "conf", "emptyDir": {} }]);
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &with_volume).await?), ["app", "envoy", "m"]);
    Ok(())
}

async fn with_the_api_off_or_the_plugin_off_nothing_is_registered_and_the_flag_is_named() -> Result<()> {
    let mut asked_for = sidecar("envoy");
    asked_for["engine"] = json!("Initializer");
    let mut off = World::with(ControlPlane::builder(Version::V1_13).disable_initializers_api()).await?;
    let _operator = Operator::ready(&off.cluster, &[]).await?;
    off.policy("envoy", asked_for.clone()).await?;
    let condition = wait_condition(&off.cluster, "envoy", "Programmed", "False", "InitializersApiOff").await?;
    assert!(condition["message"].as_str().unwrap_or_default().contains("--runtime-config="), "{condition}");
    assert_eq!(containers(&off.create_promptly(DEPLOYMENTS, &deployment("web")).await?), ["app"]);
    // Switched on as the condition says, while the operator runs: it injects, and sees the effect of its registrations.
    off.cluster
        .restart_apiserver_with(&[
            "--runtime-config=admissionregistration.k8s.io/v1alpha1=true",
            "--enable-admission-plugins=Initializers",
        ])
        .await?;
    in_force(&off.cluster, "envoy").await?;
    assert_eq!(containers(&off.create_promptly(DEPLOYMENTS, &deployment("web-2")).await?), ["app", "envoy"]);
    off.delete(&format!("{CONFIGURATIONS}/scpol-envoy")).await?;
    wait_condition(&off.cluster, "envoy", "Ready", "False", "RemovedByHand").await?;
    drop(off);

    let off = World::with(ControlPlane::builder(Version::V1_13).disable_initializers_plugin()).await?;
    let _operator = Operator::ready(&off.cluster, &[]).await?;
    off.policy("envoy", asked_for).await?;
    // The trial takes longer than the first status.
    wait_condition(&off.cluster, "envoy", "Ready", "Unknown", "Reconciling").await?;
    wait_condition(&off.cluster, "envoy", "Reconciling", "True", "Reconciling").await?;
    let condition = wait_condition(&off.cluster, "envoy", "Programmed", "False", "InitializersPluginOff").await?;
    assert!(condition["message"].as_str().unwrap_or_default().contains("--enable-admission-plugins="), "{condition}");
    assert!(off.configurations().await?.is_empty(), "what does not work is not left behind");
    assert_eq!(containers(&off.create_promptly(DEPLOYMENTS, &deployment("web")).await?), ["app"]);
    Ok(())
}

async fn what_a_current_server_has_no_more_is_said() -> Result<()> {
    let (world, mut operator) = World::with(ControlPlane::builder(Version::NEWEST)).await?.operated(&[]).await?;
    let mut named = sidecar("envoy");
    named["engine"] = json!("Initializer");
    world.policy("envoy", named).await?;
    let condition = wait_condition(&world.cluster, "envoy", "Programmed", "False", "EngineUnavailable").await?;
    assert!(
        condition["message"].as_str().unwrap_or_default().contains(&format!("v{}", Version::NEWEST)),
        "{condition}"
    );
    wait_condition(&world.cluster, "envoy", "Stalled", "True", "EngineUnavailable").await?;
    // Generic tools read the conditions.
    let wait = ["wait", "--for=condition=Stalled", "sidecarpolicy/envoy", "--timeout=30s"];
    world.cluster.kubectl_output(User::Admin, &wait).await?;
    // Rejected or pruned here, never silently kept.
    let typo = policy_object("typo", &with("namespacs", json!(["a"])));
    assert!(
        request(&world.admin, "POST", "/apis/scpol.dev/v1alpha1/sidecarpolicies?fieldValidation=Strict", &typo)
            .await
            .is_err()
    );
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("web")).await?), ["app"]);
    let (code, printed) = scpol(&world.cluster, &["drain"]).await?;
    assert_eq!((code, printed.trim()), (0, "Nothing waits for an initializer."));
    operator.signal("TERM")?;
    assert_eq!(operator.ended().await?, Some(0));
    Ok(())
}

async fn what_the_operator_cannot_start_without_is_one_line_and_exit_code_2() -> Result<()> {
    let cluster = ControlPlane::builder(Version::V1_13).start().await?;
    let fails = |mut operator: Operator, says: &'static str| async move {
        assert_eq!(operator.ended().await?, Some(2), "{}", operator.log());
        let log = operator.log();
        let line = log.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
        assert!(line.contains(says), "{log}");
        anyhow::Ok(())
    };
    fails(Operator::start_as(&cluster, User::Admin, &[])?, "install the CRD first").await?;
    fails(Operator::start_as(&cluster, User::Admin, &["--context", "nobody"])?, "nobody").await?;
    cluster.apply_file(&crate::support::file("crds/sidecarpolicies.v1beta1.yaml")).await?;
    within(LIMIT, "the CRD is served", || async { Ok(policies(&cluster).list(&Default::default()).await.is_ok()) })
        .await?;
    fails(Operator::start_as(&cluster, User::Bystander, &[])?, "a right is missing").await?;
    let broken = cluster.dir().join("broken");
    std::fs::write(&broken, "clusters: [")?;
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_scpol"))
        .args(["run", "--listen", "127.0.0.1:0", "--kubeconfig"])
        .arg(&broken)
        .output()
        .await?;
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be read"), "{output:?}");
    Ok(())
}
