//! Custom resources with a pod template. Their definitions come and go, and the cluster's administrator grants the
//! rights on them.

use crate::commands::scpol;
use crate::prelude::*;

crate::tests![
    a_policy_that_cannot_follow_its_edit_and_one_that_has_lost_its_right_say_so,
    a_policy_waits_for_a_definition_and_a_right_injects_in_one_patch_and_outlives_the_definition,
    what_waits_is_listed_and_cleared_and_a_policy_that_goes_leaves_nothing_behind,
    what_waits_for_another_first_is_seen_long_after_its_policy_has_gone,
    what_is_in_no_namespace_is_refused_what_cannot_be_tried_is_said_and_paths_that_differ_conflict,
    what_lies_deeper_than_can_be_read_is_let_go_and_harms_nobody_else,
];

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions";

/// A definition of the group `example.org`.
fn definition(kind: &str, plural: &str, scope: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.example.org") },
        "spec": { "group": "example.org", "version": "v1", "scope": scope, "names": { "kind": kind, "plural": plural } },
    })
}

fn collection(plural: &str) -> String {
    format!("/apis/example.org/v1/namespaces/default/{plural}")
}

/// A Rollout with fields that only its owner knows.
fn rollout(name: &str) -> Value {
    let mut template = pod_template(name);
    template["spec"]["future"] = json!({ "x": [1, { "y": null }] });
    json!({
        "apiVersion": "example.org/v1", "kind": "Rollout", "metadata": { "name": name },
        "spec": { "steps": [20, 60], "template": template }, "beside": "x",
    })
}

fn at(targets: Value, container: &str) -> Value {
    let mut spec = sidecar(container);
    spec["targets"] = targets;
    spec
}

fn rollouts() -> Value {
    json!([{ "group": "example.org", "resource": "rollouts" }])
}

impl World {
    /// Creates a definition and waits until its resource is served.
    async fn define(&self, definition: &Value) -> Result<()> {
        request(&self.admin, "POST", DEFINITIONS, definition).await?;
        let names = &definition["spec"]["names"];
        let path = format!("/apis/example.org/v1/{}", names["plural"].as_str().context("a plural")?);
        within(LIMIT, "the custom resource is served", || async { Ok(self.get(&path).await?.is_some()) }).await
    }

    /// Grants the operator the rights of the shipped example for `rollouts`, for `plural`.
    async fn grant(&self, plural: &str) -> Result<()> {
        let read = |name: &str| std::fs::read_to_string(file(&format!("config/rbac/custom-resources/{name}.yaml")));
        let roles = [read("cluster_role")?, read("role")?].join("---\n").replace("rollouts", plural);
        self.cluster.apply_manifests(&roles).await.map(drop)
    }

    /// Grants creators the same rights on `plural` as on Deployments.
    async fn let_creators(&self, plural: &str) -> Result<()> {
        let (role, resource) = (format!("{plural}-user"), format!("--resource={plural}.example.org"));
        let verbs = "--verb=get,list,watch,create,update,patch,delete";
        self.cluster.kubectl_output(User::Admin, &["create", "clusterrole", &role, verbs, &resource]).await?;
        let role = format!("--clusterrole={role}");
        self.cluster
            .kubectl_output(User::Admin, &["create", "clusterrolebinding", plural, &role, "--user=creator"])
            .await?;
        Ok(())
    }
}

async fn a_policy_that_cannot_follow_its_edit_and_one_that_has_lost_its_right_say_so() -> Result<()> {
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    world.define(&definition("Rollout", "rollouts", "Namespaced")).await?;
    world.let_creators("rollouts").await?;
    world.edit_policy("envoy", json!({ "targets": rollouts() })).await?;
    wait_condition(&world.cluster, "envoy", "Programmed", "False", "MissingRight").await?;
    // The earlier registration stays until the new one is possible, and creates of the new kind wait for nothing.
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("before")).await?), ["app"]);
    world.grant("rollouts").await?;
    in_force(&world.cluster, "envoy").await?;
    assert_eq!(containers(&world.create_promptly(&collection("rollouts"), &rollout("web")).await?), ["app", "envoy"]);
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("after")).await?), ["app"]);

    world.cluster.kubectl_output(User::Admin, &["delete", "clusterrolebinding", "scpol-rollouts"]).await?;
    let told = wait_condition(&world.cluster, "envoy", "Degraded", "True", "MissingRight").await?;
    assert!(
        told["message"].as_str().is_some_and(|message| message.contains("cannot list and watch rollouts")),
        "{told}"
    );
    Ok(())
}

async fn a_policy_waits_for_a_definition_and_a_right_injects_in_one_patch_and_outlives_the_definition() -> Result<()> {
    let (world, _operator) =
        World::with(ControlPlane::builder(Version::V1_13).audit_log()).await?.operated(&[]).await?;
    world.policy("envoy", at(rollouts(), "envoy")).await?;
    world.policy("other", sidecar("other")).await?;
    let missing = wait_condition(&world.cluster, "envoy", "Programmed", "False", "TargetNotServed").await?;
    assert!(missing["message"].as_str().is_some_and(|message| message.contains("`rollouts`")), "{missing}");

    world.define(&definition("Rollout", "rollouts", "Namespaced")).await?;
    world.let_creators("rollouts").await?;
    let missing = wait_condition(&world.cluster, "envoy", "Programmed", "False", "MissingRight").await?;
    assert!(missing["message"].as_str().is_some_and(|message| message.contains("cannot list")), "{missing}");
    let before = world.create_promptly(&collection("rollouts"), &rollout("before")).await?;
    assert_eq!(containers(&before), ["app"], "nothing is registered yet");
    world.grant("rollouts").await?;
    in_force(&world.cluster, "envoy").await?;

    let created = world.create_promptly(&collection("rollouts"), &rollout("web")).await?;
    assert_eq!(containers(&created), ["app", "envoy"]);
    assert_eq!(created["metadata"].get("initializers"), None);
    let mut expected = rollout("web");
    for (pointer, field) in [("/spec/template/spec", "containers"), ("/spec/template/metadata", "annotations")] {
        expected.pointer_mut(pointer).context("there")?[field] =
            created.pointer(pointer).context("there")?[field].clone();
    }
    assert_eq!((&created["spec"], &created["beside"]), (&expected["spec"], &expected["beside"]), "all else is kept");
    world.patched("web", 1).await?;
    world.status("envoy", "injected", 1).await?;
    world.status("envoy", "missed", 1).await?;

    // An object without a pod at the path is admitted, with a report.
    let bare = json!({ "apiVersion": "example.org/v1", "kind": "Rollout", "metadata": { "name": "bare" }, "spec": {} });
    world.create_promptly(&collection("rollouts"), &bare).await?;
    let told = world.event("bare", "SidecarInjectionFailed: SCP0206: ").await?;
    assert!(told.contains("the Rollout has no pod template at `/spec/template`"), "{told}");

    // The definition is deleted with all its objects, and created again.
    request(&world.admin, "DELETE", &format!("{DEFINITIONS}/rollouts.example.org"), &json!({})).await?;
    wait_condition(&world.cluster, "envoy", "Programmed", "False", "TargetNotServed").await?;
    within(LIMIT, "it is unregistered", || async { Ok(world.configurations().await? == ["scpol-other"]) }).await?;
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("web-2")).await?), ["app", "other"]);
    within(LIMIT, "the definition is gone", || async {
        Ok(world.get(&format!("{DEFINITIONS}/rollouts.example.org")).await?.is_none())
    })
    .await?;
    world.define(&definition("Rollout", "rollouts", "Namespaced")).await?;
    in_force(&world.cluster, "envoy").await?;
    let created = world.create_promptly(&collection("rollouts"), &rollout("again")).await?;
    assert_eq!(containers(&created), ["app", "envoy"]);
    world.status("envoy", "matched", 1).await?;

    a_definition_that_comes_again_at_once_is_noticed_with_the_end_of_the_watch(&world).await
}

/// The definition is deleted and created so fast that nobody notices: the watch goes on and is silent, until it is begun anew.
async fn a_definition_that_comes_again_at_once_is_noticed_with_the_end_of_the_watch(world: &World) -> Result<()> {
    request(&world.admin, "DELETE", &format!("{DEFINITIONS}/rollouts.example.org"), &json!({})).await?;
    within(LIMIT, "the definition is gone", || async {
        Ok(world.get(&format!("{DEFINITIONS}/rollouts.example.org")).await?.is_none())
    })
    .await?;
    world.define(&definition("Rollout", "rollouts", "Namespaced")).await?;
    let since = Instant::now();
    let created = world.create(&collection("rollouts"), &rollout("once-more")).await?;
    assert_eq!(containers(&created), ["app", "envoy"]);
    // Until the end of the watch, plus kube's margin of 5 s.
    let noticed = timing().watch.duration_of_custom_resources + Duration::from_secs(5);
    assert!(since.elapsed() < noticed, "the create took {:?}", since.elapsed());
    Ok(())
}

async fn what_waits_is_listed_and_cleared_and_a_policy_that_goes_leaves_nothing_behind() -> Result<()> {
    let world = World::new().await?;
    world.define(&definition("Rollout", "rollouts", "Namespaced")).await?;
    world.grant("rollouts").await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    let sample: Value = serde_saphyr::from_str(&std::fs::read_to_string(file("samples/08-custom-resource.yaml"))?)?;
    policies(&world.cluster).create(&Default::default(), &serde_json::from_value(sample)?).await?;
    world.let_creators("rollouts").await?;
    in_force(&world.cluster, "rollouts").await?;
    let created = world.create_promptly(&collection("rollouts"), &rollout("web")).await?;
    assert_eq!(containers(&created), ["app", "sidecar-nginx"], "the sample does what it says");
    operator.signal("STOP")?;
    world.create_async(&collection("rollouts"), &rollout("stuck")).await?;
    let (code, listed) = scpol(&world.cluster, &["drain", "--list"]).await?;
    assert!(code == 1 && listed.contains("rollouts.example.org") && listed.contains("rollouts.scpol.dev"), "{listed}");
    let (code, drained) = scpol(&world.cluster, &["drain"]).await?;
    assert!(code == 0 && drained.contains("cleared"), "{drained}");
    let path = format!("{}/stuck", collection("rollouts"));
    assert_eq!(containers(&world.initialized(&path).await?), ["app"]);
    // The operator is killed. Meanwhile its policy is deleted, and an object waits that no policy covers any more.
    drop(operator);
    world.create_async(&collection("rollouts"), &rollout("left")).await?;
    world.delete_policy("rollouts").await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    within(LIMIT, "it is unregistered", || async { Ok(world.configurations().await?.is_empty()) }).await?;
    let left = world.initialized(&format!("{}/left", collection("rollouts"))).await?;
    assert_eq!(containers(&left), ["app"]);
    // A late object is seen, although the operator repeats discovery for the relevant groups meanwhile.
    world.policy("other", at(json!([{ "group": "example.com", "resource": "others" }]), "x")).await?;
    wait_condition(&world.cluster, "other", "Programmed", "False", "TargetNotServed").await?;
    let late = waiting_for(rollout("late"), &["rollouts.scpol.dev"]);
    world.create_async(&collection("rollouts"), &late).await?;
    world.initialized(&format!("{}/late", collection("rollouts"))).await?;
    // `explain` accepts any of its names.
    for name in ["rollout/left", "rollouts.example.org/left", "rollouts.v1.example.org/left"] {
        let policy = file("samples/01-sidecar.yaml").display().to_string();
        let (code, told) = scpol(&world.cluster, &["explain", name, "--policy", &policy, "-n", "default"]).await?;
        assert!(code == 0 && told.starts_with("Rollout default/left: "), "{code} {told}");
        assert!(told.contains("`rollouts` is not among `spec.targets`"), "{told}");
    }
    Ok(())
}

async fn what_waits_for_another_first_is_seen_long_after_its_policy_has_gone() -> Result<()> {
    let world = World::new().await?;
    world.define(&definition("Rollout", "rollouts", "Namespaced")).await?;
    world.grant("rollouts").await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    world.enforce("envoy", at(rollouts(), "envoy")).await?;
    let behind = waiting_for(rollout("behind"), &["slow.example.io", "envoy.scpol.dev"]);
    world.create_async(&collection("rollouts"), &behind).await?;
    world.delete_policy("envoy").await?;
    within(LIMIT, "it is unregistered", || async { Ok(world.configurations().await?.is_empty()) }).await?;
    // Until then its kind is watched anyway, and a second later it has been checked.
    tokio::time::sleep(timing().configuration.longest_create() + Duration::from_secs(1)).await;
    // Another policy makes the operator repeat discovery.
    world.policy("other", at(json!([{ "group": "example.com", "resource": "others" }]), "x")).await?;
    wait_condition(&world.cluster, "other", "Programmed", "False", "TargetNotServed").await?;
    // It repeats discovery once more, and stops unneeded watches.
    tokio::time::sleep(timing().controller.discovery_period + 2 * timing().controller.tick).await;
    let path = format!("{}/behind", collection("rollouts"));
    world.complete_foreign(&path).await?;
    assert_eq!(containers(&world.initialized(&path).await?), ["app"]);
    Ok(())
}

async fn what_is_in_no_namespace_is_refused_what_cannot_be_tried_is_said_and_paths_that_differ_conflict() -> Result<()>
{
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    world.define(&definition("Planet", "planets", "Cluster")).await?;
    let mut strict = definition("Training", "trainings", "Namespaced");
    strict["spec"]["validation"] =
        json!({ "openAPIV3Schema": { "properties": { "spec": { "required": ["dataset"] } } } });
    world.define(&strict).await?;
    world.grant("trainings").await?;
    world.let_creators("trainings").await?;
    world.policy("planet", at(json!([{ "group": "example.org", "resource": "planets" }]), "x")).await?;
    let refused = wait_condition(&world.cluster, "planet", "Programmed", "False", "TargetRefused").await?;
    assert!(refused["message"].as_str().is_some_and(|message| message.contains("in no namespace")), "{refused}");

    let target = |path: &str| json!([{ "group": "example.org", "resource": "trainings", "templatePath": path }]);
    world.policy("deep", at(target("spec.workers.podTemplate"), "deep")).await?;
    let degraded = wait_condition(&world.cluster, "deep", "Degraded", "True", "ProbeFailed").await?;
    assert!(degraded["message"].as_str().is_some_and(|message| message.contains("dataset")), "{degraded}");
    let programmed = condition(&world.cluster, "deep", "Programmed").await?.context("a condition")?;
    assert_eq!(programmed["status"], "True");
    let training = |name: &str| {
        json!({
            "apiVersion": "example.org/v1", "kind": "Training", "metadata": { "name": name },
            "spec": { "dataset": "mnist", "workers": { "podTemplate": pod_template(name) }, "template": pod_template(name) },
        })
    };
    let names = |object: &Value, path: &str| -> Vec<Value> {
        let items = object.pointer(path).and_then(Value::as_array).cloned().unwrap_or_default();
        items.into_iter().map(|item| item["name"].clone()).collect()
    };
    let both = |object: &Value| {
        [names(object, "/spec/workers/podTemplate/spec/containers"), names(object, "/spec/template/spec/containers")]
    };
    let created = world.create_promptly(&collection("trainings"), &training("one")).await?;
    assert_eq!(both(&created), [vec![json!("app"), json!("deep")], vec![json!("app")]]);

    // Another policy gives another path of the pod template. Neither is injected any more, and both report it.
    world.policy("flat", at(target("spec.template"), "flat")).await?;
    wait_condition(&world.cluster, "flat", "Programmed", "True", "Programmed").await?;
    let created = world.create_promptly(&collection("trainings"), &training("two")).await?;
    assert_eq!(both(&created), [vec![json!("app")], vec![json!("app")]]);
    assert_eq!(pending(&created), [""; 0]);
    for (policy, other) in [("deep", "`flat`"), ("flat", "`deep`")] {
        let conflicted = wait_condition(&world.cluster, policy, "Conflicted", "True", "Conflicted").await?;
        assert!(conflicted["message"].as_str().is_some_and(|message| message.contains(other)), "{conflicted}");
    }
    Ok(())
}

async fn what_lies_deeper_than_can_be_read_is_let_go_and_harms_nobody_else() -> Result<()> {
    let world = World::new().await?;
    world.define(&definition("Rollout", "rollouts", "Namespaced")).await?;
    world.grant("rollouts").await?;
    world.let_creators("rollouts").await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    world.enforce("envoy", at(rollouts(), "envoy")).await?;
    let mut deep = rollout("deep");
    deep["beside"] = (0..300).fold(json!("x"), |inner, _| json!({ "in": inner }));
    // As text, because serde_json cannot parse this depth.
    let created = crate::world::text(&world.creator, "POST", &collection("rollouts"), &deep).await?;
    assert!(!created.contains("initializers") && created.contains(r#""in":{"in":"x"}"#), "{created}");
    let plain = world.create_promptly(&collection("rollouts"), &rollout("plain")).await?;
    assert_eq!(containers(&plain), ["app", "envoy"]);
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}
