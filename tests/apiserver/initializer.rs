//! The initializer loop, by the rows of the table of edge cases in `docs/initializers.md`.

use crate::prelude::*;

crate::tests![
    every_kind_gets_its_sidecar_in_one_patch_through_every_group,
    initializers_take_turns_in_order,
    what_is_not_to_be_injected_is_let_go_and_what_is_not_ours_is_left_alone,
    two_policies_that_collide_are_both_left_out_and_say_so,
    what_the_server_refuses_is_let_through_or_refused_as_the_policy_says,
    changes_under_our_hands_lose_nothing,
    the_operator_waits_for_a_server_that_is_away_and_goes_on,
    a_right_that_is_taken_away_is_named_and_nothing_is_lost_when_it_comes_back,
];

async fn audited() -> Result<World> {
    World::with(ControlPlane::builder(Version::V1_13).audit_log()).await
}

/// One object for each kind and each API version of it: the path to post to, and the object.
fn every_kind() -> [(&'static str, Value); 8] {
    let controller = |api: &str, kind: &str, name: &str| {
        let mut object = deployment(name);
        (object["apiVersion"], object["kind"]) = (json!(api), json!(kind));
        object
    };
    let mut stateful = controller("apps/v1", "StatefulSet", "stateful");
    stateful["spec"]["serviceName"] = json!("stateful");
    let mut job = pod_template("cron");
    job["spec"]["restartPolicy"] = json!("OnFailure");
    let cron = json!({ "apiVersion": "batch/v1beta1", "kind": "CronJob", "metadata": { "name": "cron" }, "spec": { "schedule": "* * * * *", "jobTemplate": { "spec": { "template": job } } } });
    [
        ("/apis/apps/v1/namespaces/default/deployments", deployment("v1")),
        ("/apis/apps/v1beta1/namespaces/default/deployments", controller("apps/v1beta1", "Deployment", "v1beta1")),
        (
            "/apis/extensions/v1beta1/namespaces/default/deployments",
            controller("extensions/v1beta1", "Deployment", "extensions"),
        ),
        ("/apis/apps/v1/namespaces/default/statefulsets", stateful),
        ("/apis/apps/v1/namespaces/default/daemonsets", controller("apps/v1", "DaemonSet", "daemon")),
        (
            "/apis/extensions/v1beta1/namespaces/default/daemonsets",
            controller("extensions/v1beta1", "DaemonSet", "daemon-extensions"),
        ),
        ("/apis/batch/v1beta1/namespaces/default/cronjobs", cron),
        ("/api/v1/namespaces/default/pods", pod("pod")),
    ]
}

async fn every_kind_gets_its_sidecar_in_one_patch_through_every_group() -> Result<()> {
    let (world, _operator) = audited().await?.operated(&[]).await?;
    let targets: Vec<Value> = ["deployments", "statefulsets", "daemonsets"]
        .iter()
        .map(|resource| json!({ "group": "apps", "resource": resource }))
        .collect();
    let all = [
        targets,
        vec![json!({ "group": "batch", "resource": "cronjobs" }), json!({ "group": "", "resource": "pods" })],
    ]
    .concat();
    let template = json!({
        "containers": [{ "name": "envoy", "image": "envoy:1", "volumeMounts": [{ "name": "conf", "mountPath": "/etc/envoy" }] }],
        "initContainers": [{ "name": "prepare", "image": "busybox:1" }],
        "volumes": [{ "name": "conf", "configMap": { "name": "envoy" } }],
    });
    world.enforce("envoy", json!({ "targets": all, "template": template, "jobs": "Inject" })).await?;

    for (path, body) in every_kind() {
        let created = world.create_promptly(path, &body).await?;
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        assert_eq!(containers(&created), ["app", "envoy"], "{path}");
        assert_eq!(created["metadata"].get("initializers"), None, "{path}");
        assert!(
            created.to_string().contains(r#""name":"prepare""#) && created.to_string().contains(r#""configMap""#),
            "{path}"
        );
        world.patched(name, 1).await?;
    }
    // This server has no controller-manager, which would post the stored template.
    let stored = world.get(&path("v1")).await?.unwrap_or_default();
    let mut pod = stored["spec"]["template"].clone();
    (pod["apiVersion"], pod["kind"], pod["metadata"]["name"]) = (json!("v1"), json!("Pod"), json!("from-template"));
    let created = world.create_promptly("/api/v1/namespaces/default/pods", &pod).await?;
    assert_eq!(containers(&created), ["app", "envoy"], "not twice, though pods are a target as well");
    // The registration has no selector, so objects that do not match must be released at once too.
    let mut other = deployment("other");
    other["metadata"]["namespace"] = json!("kube-system");
    request(&world.admin, "POST", "/apis/apps/v1/namespaces/kube-system/deployments", &other).await?;
    let stored = world.get("/apis/apps/v1/namespaces/kube-system/deployments/other").await?.unwrap_or_default();
    assert_eq!(containers(&stored), ["app"], "protected namespaces are never reached");
    world.status("envoy", "injected", 9).await?;
    Ok(())
}

async fn initializers_take_turns_in_order() -> Result<()> {
    let world = audited().await?;
    world.foreign("aa-first", "first.other.io").await?;
    world.foreign("zz-last", "last.other.io").await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    world
        .policy("a", json!({ "priority": 1, "template": { "containers": [{ "name": "low", "image": "x:1" }] } }))
        .await?;
    world
        .policy("b", json!({ "priority": 2, "template": { "containers": [{ "name": "high", "image": "x:1" }] } }))
        .await?;
    for policy in ["a", "b"] {
        in_force(&world.cluster, policy).await?;
    }
    let created = world.create_async(DEPLOYMENTS, &deployment("web")).await?;
    assert_eq!(pending(&created), ["first.other.io", "a.scpol.dev", "b.scpol.dev", "last.other.io"]);
    world.status("a", "pending", 0).await?;
    assert_eq!(world.patches("web"), 0, "row 2: a foreign initializer goes first");

    world.complete_foreign(&path("web")).await?;
    within(LIMIT, "ours are gone", || async {
        Ok(world.get(&path("web")).await?.is_some_and(|web| pending(&web) == ["last.other.io"]))
    })
    .await?;
    let web = world.get(&path("web")).await?.unwrap_or_default();
    assert_eq!(containers(&web), ["app", "high", "low"], "both policies, by priority");
    world.patched("web", 1).await?;
    assert_eq!(pending(&web), ["last.other.io"], "the entry behind ours is untouched");
    world.complete_foreign(&path("web")).await?;
    world.initialized(&path("web")).await?;
    world.patched("web", 1).await?;

    // Rows 5 and 28: our name twice, and again behind a foreign one.
    world
        .create_async(DEPLOYMENTS, &waiting("twice", &["a.scpol.dev", "a.scpol.dev", "x.other.io", "b.scpol.dev"]))
        .await?;
    within(LIMIT, "both leading copies are gone", || async {
        Ok(world.get(&path("twice")).await?.is_some_and(|web| pending(&web) == ["x.other.io", "b.scpol.dev"]))
    })
    .await?;
    world.complete_foreign(&path("twice")).await?;
    let twice = world.initialized(&path("twice")).await?;
    assert_eq!(containers(&twice), ["app", "low", "high"], "once each, as their turns came");
    world.patched("twice", 2).await?;
    Ok(())
}

async fn what_is_not_to_be_injected_is_let_go_and_what_is_not_ours_is_left_alone() -> Result<()> {
    let world = audited().await?;
    // Row 1: created before the operator, so never ours.
    world.create(DEPLOYMENTS, &deployment("before")).await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    let selector =
        json!({ "matchExpressions": [{ "key": "initializer.kubernetes.io/sidecar", "operator": "Exists" }] });
    world.enforce("envoy", json!({ "annotationSelector": selector, "excludeNamespaces": ["kube-*"], "template": sidecar("envoy")["template"] })).await?;

    // Row 8: without the annotation, opted out, host network.
    let created = world.create_promptly(DEPLOYMENTS, &deployment("plain")).await?;
    assert_eq!(containers(&created), ["app"]);
    let annotated = |name: &str| {
        let mut object = deployment(name);
        object["metadata"]["annotations"] = json!({ "initializer.kubernetes.io/sidecar": "true" });
        object
    };
    let created = world.create_promptly(DEPLOYMENTS, &annotated("annotated")).await?;
    assert_eq!(containers(&created), ["app", "envoy"]);
    let mut opted_out = annotated("opted-out");
    opted_out["spec"]["template"]["metadata"]["labels"]["scpol.dev/inject"] = json!("false");
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &opted_out).await?), ["app"]);
    world.event("opted-out", "SidecarInjectionSkipped: SCP0105: ").await?;
    let mut host = annotated("host");
    host["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &host).await?), ["app"]);
    world.event("host", "SidecarInjectionSkipped: SCP0104: ").await?;
    let mut odd = annotated("odd");
    odd["metadata"]["annotations"]["scpol.dev/inject"] = json!("envoy, nobody");
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &odd).await?), ["app", "envoy"]);
    world.event("odd", "SidecarInjectionSkipped: SCP0117: ").await?;

    // Row 6: already rejected. The server deletes such an object at its next write, which must not be ours.
    let mut rejected = waiting("rejected", &["envoy.scpol.dev"]);
    rejected["metadata"]["initializers"]["result"] = json!({ "status": "Failure", "message": "no", "code": 403 });
    world.create_async(DEPLOYMENTS, &rejected).await?;
    // Rows 10, 11 and orphans: a name of ours without a policy.
    world.create_async(DEPLOYMENTS, &waiting("orphan", &["gone.scpol.dev"])).await?;
    assert_eq!(containers(&world.initialized(&path("orphan")).await?), ["app"]);
    // A list without our name is an authorised bypass.
    world.create_async(DEPLOYMENTS, &waiting("bypass", &["x.other.io"])).await?;
    let mut own = annotated("own");
    own["metadata"]["initializers"] = json!({ "pending": [] });
    assert_eq!(containers(&world.create_async(DEPLOYMENTS, &own).await?), ["app"]);
    assert!(request(&world.creator, "POST", DEPLOYMENTS, &own).await.is_err(), "without `initialize` nobody bypasses");
    for untouched in ["before", "rejected", "bypass", "own"] {
        assert_eq!(world.patches(untouched), 0, "{untouched}");
    }

    what_is_deleted_while_it_waits_is_let_go(&world).await
}

/// Row 7: the operator releases an object that is being deleted, and injects nothing.
async fn what_is_deleted_while_it_waits_is_let_go(world: &World) -> Result<()> {
    let mut leaving = waiting("leaving", &["x.other.io", "envoy.scpol.dev"]);
    leaving["metadata"]["finalizers"] = json!(["test.dev/hold"]);
    leaving["metadata"]["annotations"] = json!({ "initializer.kubernetes.io/sidecar": "true" });
    world.create_async(DEPLOYMENTS, &leaving).await?;
    world.delete(&path("leaving")).await?;
    world.complete_foreign(&path("leaving")).await?;
    let left = world.initialized(&path("leaving")).await?;
    assert_eq!(containers(&left), ["app"], "what is being deleted is let go without a sidecar");
    Ok(())
}

async fn two_policies_that_collide_are_both_left_out_and_say_so() -> Result<()> {
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    world.policy("one", sidecar_of("proxy", "envoy:1")).await?;
    world.policy("two", sidecar_of("proxy", "envoy:2")).await?;
    world.policy("third", sidecar_of("agent", "agent:1")).await?;
    for policy in ["one", "two", "third"] {
        in_force(&world.cluster, policy).await?;
    }
    let created = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    assert_eq!(containers(&created), ["app", "agent"], "never half of a pair, and the third is not held up");
    world.event("web", "SidecarInjectionFailed: SCP0201: ").await?;
    for (policy, other) in [("one", "`two`"), ("two", "`one`")] {
        let conflicted = wait_condition(&world.cluster, policy, "Conflicted", "True", "Conflicted").await?;
        assert!(conflicted["message"].as_str().unwrap_or_default().contains(other), "{conflicted}");
        wait_condition(&world.cluster, policy, "Ready", "True", "Conflicted").await?;
    }
    wait_condition(&world.cluster, "third", "Ready", "True", "Programmed").await?;
    world.delete(&path("web")).await?;
    wait_condition(&world.cluster, "one", "Ready", "True", "Programmed").await?;
    Ok(())
}

async fn what_the_server_refuses_is_let_through_or_refused_as_the_policy_says() -> Result<()> {
    let (world, _operator) = audited().await?.operated(&[]).await?;
    // Valid by our rules, but rejected by the server: 422.
    let template = json!({ "containers": [{ "name": "bad", "image": "x:1", "ports": [{ "containerPort": 99999 }] }] });
    world.policy("bad", json!({ "template": template })).await?;
    world.policy("good", sidecar("envoy")).await?;
    for policy in ["bad", "good"] {
        in_force(&world.cluster, policy).await?;
    }
    let created = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    assert_eq!(containers(&created), ["app", "envoy"], "only the guilty policy is left out");
    world.event("web", "SidecarInjectionFailed: SCP0203: ").await?;
    world.patched("web", 1).await?;
    world.edit_policy("bad", json!({ "failurePolicy": "Fail" })).await?;
    within(LIMIT, "the create is refused with the server's reason", || async {
        match world.create(DEPLOYMENTS, &deployment("refused")).await {
            Ok(_) => world.delete(&path("refused")).await.map(|()| false),
            Err(error) => {
                let text = format!("{error:#}");
                Ok(text.contains("SCP0203") && text.contains("99999"))
            }
        }
    })
    .await
}

async fn changes_under_our_hands_lose_nothing() -> Result<()> {
    let (world, operator) = audited().await?.operated(&["--lease-duration", "60s"]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    // While the operator is frozen, objects are created, changed, deleted, and created again under their old names.
    operator.signal("STOP")?;
    for name in ["changed", "gone", "again"] {
        world.create_async(DEPLOYMENTS, &deployment(name)).await?;
    }
    world.patch(&path("changed"), &json!([{ "op": "add", "path": "/metadata/labels/by", "value": "someone" }])).await?;
    world.delete(&path("gone")).await?;
    let first = world.get(&path("again")).await?.unwrap_or_default();
    world.delete(&path("again")).await?;
    world.create_async(DEPLOYMENTS, &deployment("again")).await?;
    operator.signal("CONT")?;
    let changed = world.initialized(&path("changed")).await?;
    assert_eq!(containers(&changed), ["app", "envoy"]);
    assert_eq!(changed["metadata"]["labels"]["by"], "someone", "the other's edit is still there");
    let again = world.initialized(&path("again")).await?;
    assert_ne!(again["metadata"]["uid"], first["metadata"]["uid"]);
    assert_eq!(containers(&again), ["app", "envoy"]);
    assert_eq!(world.get(&path("gone")).await?, None);
    world.patched("changed", 1).await?;
    world.patched("again", 1).await?;
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}

async fn the_operator_waits_for_a_server_that_is_away_and_goes_on() -> Result<()> {
    let (world, mut operator) = World::new().await?.operated(&["--lease-duration=3s"]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    world.cluster.restart_apiserver().await?;
    within(LIMIT, "a create is injected again", || async {
        let name = format!("web-{}", std::process::id());
        match world.create(DEPLOYMENTS, &deployment(&name)).await {
            Ok(created) => Ok(containers(&created) == ["app", "envoy"]),
            Err(_) => Ok(world.get(&path(&name)).await?.is_some_and(|web| containers(&web) == ["app", "envoy"])),
        }
    })
    .await?;
    operator.wait_ready().await?;
    // The same with a slow server. The lease is renewed every second, so some of our calls wait.
    world.cluster.freeze();
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    world.cluster.thaw();
    assert_eq!(containers(&world.create(DEPLOYMENTS, &deployment("thawed")).await?), ["app", "envoy"]);
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}

async fn a_right_that_is_taken_away_is_named_and_nothing_is_lost_when_it_comes_back() -> Result<()> {
    let (world, operator) = World::new().await?.operated(&[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/scpol-initializer";
    let rules = world.get(role).await?.unwrap_or_default()["rules"].clone();
    let mut less = rules.clone();
    for rule in less.as_array_mut().into_iter().flatten() {
        rule["verbs"].as_array_mut().expect("verbs").retain(|verb| verb != "initialize");
    }
    world.patch(role, &json!([{ "op": "replace", "path": "/rules", "value": less }])).await?;
    world.operator_may("initialize", "deployments.apps", false).await?;
    world.create_async(DEPLOYMENTS, &deployment("web")).await?;
    let degraded = wait_condition(&world.cluster, "envoy", "Degraded", "True", "MissingRight").await?;
    assert!(degraded["message"].as_str().unwrap_or_default().contains("SCP0304"), "{degraded}");
    world.status("envoy", "pending", 1).await?;
    within(LIMIT, "the metrics tell that it waits", || async {
        Ok(operator.metric(r#"scpol_policy_workloads{policy="envoy",state="pending"}"#).await? == 1.0)
    })
    .await?;
    world.status("envoy", "matched", 0).await?;
    world.patch(role, &json!([{ "op": "replace", "path": "/rules", "value": rules }])).await?;
    assert_eq!(containers(&world.initialized(&path("web")).await?), ["app", "envoy"]);
    Ok(())
}
