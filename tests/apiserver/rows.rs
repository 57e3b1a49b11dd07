//! The parts of the decision rows that only a server shows: events, waiting, counts.

use crate::prelude::*;
use jiff::Timestamp;
use sidecar_policy::timing::CREATE_LIMIT;

crate::tests![
    users_hear_of_what_they_said_and_of_nothing_that_does_not_concern_them,
    a_named_version_is_only_for_what_is_posted_through_it,
    expressions_see_nothing_that_only_the_server_has,
    a_namespace_that_cannot_be_read_is_a_failure_and_nobody_waits_longer_than_the_server_does,
    a_status_counts_every_failure_shows_five_stays_small_and_is_written_seldom,
    a_status_that_the_server_refuses_is_an_event_and_a_metric,
];

/// A Deployment that the policies of [`for_team`] select.
fn of_team(name: &str) -> Value {
    let mut object = deployment(name);
    object["metadata"]["labels"]["team"] = json!("shop");
    object
}

fn saying(mut object: Value, value: &str) -> Value {
    object["metadata"]["annotations"] = json!({ "scpol.dev/inject": value });
    object
}

fn on_the_host(mut object: Value) -> Value {
    object["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
    object
}

/// A policy that adds one container to what has a label, with `more` in its spec.
fn for_team(container: &str, more: &Value) -> Value {
    let mut spec = sidecar(container);
    spec["labelSelector"] = json!({ "matchLabels": { "team": "shop" } });
    spec.as_object_mut().into_iter().for_each(|spec| spec.extend(more.as_object().cloned().unwrap_or_default()));
    spec
}

async fn users_hear_of_what_they_said_and_of_nothing_that_does_not_concern_them() -> Result<()> {
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    world.policy("asked", for_team("asked", &json!({}))).await?;
    world.policy("always", for_team("always", &json!({ "optOut": "Denied" }))).await?;
    for policy in ["asked", "always"] {
        in_force(&world.cluster, policy).await?;
    }
    // Row 6 applies to a copy of an injected object, because it has the markers.
    let injected = world.create_promptly(DEPLOYMENTS, &of_team("first")).await?;
    let mut copy = of_team("copy");
    copy["spec"] = injected["spec"].clone();
    // Rows 4 and 5 give no event if row 7 does not hold.
    for (body, expected) in [
        (deployment("nobodys"), vec!["app"]),
        (saying(deployment("nobodys-opted-out"), "false"), vec!["app"]),
        (on_the_host(deployment("nobodys-on-the-host")), vec!["app"]),
        (copy, vec!["app", "always", "asked"]),
    ] {
        let created = world.create_promptly(DEPLOYMENTS, &body).await?;
        assert_eq!(containers(&created), expected, "{}", body["metadata"]["name"]);
    }
    let protected = "/apis/apps/v1/namespaces/kube-system/deployments";
    request(&world.admin, "POST", protected, &saying(on_the_host(of_team("protected")), "")).await?;

    for (name, value, expected, codes) in [
        ("no", "false", vec!["app", "always"], vec!["SCP0105", "SCP0116"]),
        ("empty", "", vec!["app", "always", "asked"], vec!["SCP0117"]),
        ("commas", ",", vec!["app", "always", "asked"], vec!["SCP0117"]),
        ("true", "true", vec!["app", "always", "asked"], vec![]),
        ("named", "asked", vec!["app", "always", "asked"], vec!["SCP0116"]),
        ("nobody", "nobody", vec!["app", "always"], vec!["SCP0105", "SCP0116", "SCP0117"]),
    ] {
        let name = format!("says-{name}");
        let created = world.create_promptly(DEPLOYMENTS, &saying(of_team(&name), value)).await?;
        assert_eq!(containers(&created), expected, "{name}");
        for code in &codes {
            world.event(&name, &format!("SidecarInjectionSkipped: {code}: ")).await?;
        }
        assert_eq!(world.events(&name).await?.len(), codes.len(), "{name}");
    }
    let mut misspelt = of_team("says-it-wrong");
    misspelt["spec"]["template"]["metadata"]["annotations"] =
        json!({ "scpol.dev/injekt": "false", "inject.scpol.dev": "" });
    let created = world.create_promptly(DEPLOYMENTS, &misspelt).await?;
    assert_eq!(containers(&created), ["app", "always", "asked"]);
    world.event("says-it-wrong", "SidecarInjectionSkipped: SCP0123: the annotation `inject.scpol.dev`").await?;
    assert_eq!(world.events("says-it-wrong").await?.len(), 1);

    let mut unreached = for_team("agent", &json!({ "labelSelector": { "matchLabels": { "team": "agents" } } }));
    unreached["template"]["env"] = json!([{ "name": "A", "value": "b" }]);
    unreached["template"]["appContainers"] = json!(["main"]);
    world.policy("unreached", unreached).await?;
    in_force(&world.cluster, "unreached").await?;
    let mut of_agents = deployment("unreached");
    of_agents["metadata"]["labels"]["team"] = json!("agents");
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &of_agents).await?), ["app", "agent"]);
    world
        .event("unreached", "SidecarInjectionSkipped: SCP0041: SidecarPolicy `unreached`: `appContainers` [main]")
        .await?;

    // Events are written in order, so all expected ones exist by now.
    for silent in ["first", "copy", "nobodys", "nobodys-opted-out", "nobodys-on-the-host", "says-true"] {
        assert_eq!(world.events(silent).await?, Vec::<String>::new(), "{silent}");
    }
    let there = request(&world.admin, "GET", "/api/v1/namespaces/kube-system/events", &Value::Null).await?;
    assert_eq!(there["items"], json!([]));
    Ok(())
}

async fn a_named_version_is_only_for_what_is_posted_through_it() -> Result<()> {
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    let through =
        |group: &str, version: &str| json!([{ "group": group, "version": version, "resource": "deployments" }]);
    let cases = [("any", "apps", "*"), ("current", "apps", "v1"), ("old", "extensions", "v1beta1")];
    for (name, group, version) in cases {
        let mut spec = sidecar(name);
        spec["targets"] = through(group, version);
        world.policy(name, spec).await?;
    }
    for (name, ..) in cases {
        in_force(&world.cluster, name).await?;
    }
    for (api, expected) in [
        ("apps/v1", vec!["app", "any", "current"]),
        ("apps/v1beta2", vec!["app", "any"]),
        ("extensions/v1beta1", vec!["app", "any", "old"]),
    ] {
        let mut body = deployment(&api.replace('/', "-"));
        body["apiVersion"] = json!(api);
        let created = world.create_promptly(&format!("/apis/{api}/namespaces/default/deployments"), &body).await?;
        assert_eq!(containers(&created), expected, "{api}");
    }
    Ok(())
}

async fn expressions_see_nothing_that_only_the_server_has() -> Result<()> {
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    let hidden =
        ["uid", "resourceVersion", "generation", "creationTimestamp", "selfLink", "managedFields", "initializers"];
    let absent = hidden.map(|field| format!("!has(object.metadata.{field})")).join(" && ");
    let conditions = |name: &str| {
        json!([
            { "name": "hidden", "expression": format!("!has(object.status) && {absent}") },
            { "name": "named", "expression": name },
            { "name": "defaults", "expression": "object.spec.replicas == 1" },
        ])
    };
    let says = json!([{ "expression": format!("!has(object.status) && {absent}"), "message": "sees too much" }]);
    let mut named = sidecar("named");
    (named["matchConditions"], named["validations"]) = (conditions("object.metadata.name == 'web'"), says);
    world.policy("named", named).await?;
    let mut generated = sidecar("generated");
    generated["matchConditions"] = conditions("!has(object.metadata.name) && object.metadata.generateName == 'web-'");
    world.policy("generated", generated).await?;
    for policy in ["named", "generated"] {
        in_force(&world.cluster, policy).await?;
    }
    let created = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    assert_eq!(containers(&created), ["app", "named"]);
    let mut body = deployment("web");
    body["metadata"] = json!({ "generateName": "web-", "labels": { "app": "web" } });
    let created = world.create_promptly(DEPLOYMENTS, &body).await?;
    assert_eq!(containers(&created), ["app", "generated"], "the name that the server made is not shown");
    Ok(())
}

/// The operator's ClusterRole.
pub(crate) const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/scpol";

/// Removes the operator's right to read Namespaces, and creates the Namespace `late`, which the operator cannot see. Gives the
/// rules that the role had before.
async fn take_the_right_to_namespaces_away(world: &World, operator: &Operator) -> Result<Value> {
    let rules = world.get(ROLE).await?.context("the role")?["rules"].clone();
    let less = rules.as_array().into_iter().flatten().filter(|rule| rule["resources"] != json!(["namespaces"]));
    world.patch(ROLE, &json!([{ "op": "replace", "path": "/rules", "value": less.collect::<Vec<_>>() }])).await?;
    // A watch that is open outlives the right to it.
    world.cluster.restart_apiserver().await?;
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "late", "labels": { "team": "shop" } } });
    within(LIMIT, "the server is back", || async {
        Ok(request(&world.admin, "POST", "/api/v1/namespaces", &namespace).await.is_ok())
    })
    .await?;
    within(LIMIT, "the operator has lost sight of the Namespaces", || async {
        Ok(operator.log().contains("Cannot follow the Namespaces"))
    })
    .await?;
    Ok(rules)
}

async fn a_namespace_that_cannot_be_read_is_a_failure_and_nobody_waits_longer_than_the_server_does() -> Result<()> {
    let (world, operator) = World::new().await?.operated(&[]).await?;
    let labels = json!({ "matchLabels": { "team": "shop" } });
    let target = |resource: &str| json!([{ "group": "apps", "resource": resource }]);
    world.policy("open", json!({ "namespaceSelector": labels, "template": sidecar("open")["template"] })).await?;
    let closed = json!({ "failurePolicy": "Fail", "targets": target("statefulsets"), "namespaceSelector": labels, "template": sidecar("closed")["template"] });
    world.policy("closed", closed).await?;
    // Neither an opt-out nor an unreadable Namespace bypasses a validation.
    let judge = json!({ "failurePolicy": "Fail", "targets": target("daemonsets"), "namespaceSelector": labels, "validations": [{ "expression": "true" }] });
    world.policy("judge", judge).await?;
    for policy in ["open", "closed", "judge"] {
        in_force(&world.cluster, policy).await?;
    }
    let rules = take_the_right_to_namespaces_away(&world, &operator).await?;
    let kind = |kind: &str, name: &str| {
        let mut object = deployment(name);
        object["kind"] = json!(kind);
        object
    };
    let mut stateful = kind("StatefulSet", "closed");
    stateful["spec"]["serviceName"] = json!("closed");
    let daemon = saying(kind("DaemonSet", "judged"), "false");
    let of = |resource: &str| format!("/apis/apps/v1/namespaces/late/{resource}");
    let plain = deployment("open");
    let start = Instant::now();
    let [deployments, statefulsets, daemonsets] = ["deployments", "statefulsets", "daemonsets"].map(of);
    let (open, closed, judged) = tokio::join!(
        world.create(&deployments, &plain),
        world.create(&statefulsets, &stateful),
        world.create(&daemonsets, &daemon),
    );
    let took = start.elapsed();
    // From the sight of each object, by a watch that may have to restart, to the decision. The server gives up later.
    let decided = timing().initializer.decision - Duration::from_secs(2)..CREATE_LIMIT - Duration::from_secs(1);
    assert!(decided.contains(&took), "took {took:?}");
    assert_eq!(containers(&open?), ["app"], "let through");
    for refused in [closed, judged] {
        let told = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
        assert!(told.contains("SCP0209") && told.contains("`late`"), "{told}");
    }
    within(LIMIT, "the failure is told", || async {
        let status = policies(&world.cluster).get("open").await?.data["status"].clone();
        Ok(status["failures"][0]["code"] == "SCP0209" && status["matched"] == 0)
    })
    .await?;
    world.patch(ROLE, &json!([{ "op": "replace", "path": "/rules", "value": rules }])).await?;
    within(LIMIT, "it is read again", || async {
        let name = format!("later-{}", start.elapsed().as_millis());
        Ok(containers(&world.create(&deployments, &deployment(&name)).await?) == ["app", "open"])
    })
    .await
}

async fn a_status_counts_every_failure_shows_five_stays_small_and_is_written_seldom() -> Result<()> {
    let (world, _operator) =
        World::with(ControlPlane::builder(Version::V1_13).audit_log()).await?.operated(&[]).await?;
    world.policy("envoy", sidecar("envoy")).await?;
    // The policy collides with the other one, and so has the longest message.
    world.policy("other", sidecar_of("envoy", "other:1")).await?;
    for policy in ["envoy", "other"] {
        in_force(&world.cluster, policy).await?;
    }
    let period = timing().controller.status_period;
    let name = |number: usize| format!("{}-{number}", "n".repeat(240));
    let mut told = None;
    for number in 0..12 {
        let mut body = deployment(&name(number));
        let labels = json!({ "app": number.to_string() });
        body["metadata"]["labels"] = labels.clone();
        body["spec"]["selector"]["matchLabels"] = labels.clone();
        body["spec"]["template"]["metadata"]["labels"] = labels;
        assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &body).await?), ["app"]);
        // The first one makes a condition true, which is written at once.
        if told.is_none() {
            world.status("envoy", "matched", 1).await?;
            told = Some(Timestamp::now());
        }
        // All of them together take longer than the period.
        tokio::time::sleep(period / 10).await;
    }
    world.event(&name(3), "SidecarInjectionFailed: SCP0201: ").await?;
    for (field, value) in [("matched", 12), ("missed", 12), ("failed", 12)] {
        world.status("envoy", field, value).await?;
    }
    let status = policies(&world.cluster).get("envoy").await?.data["status"].clone();
    assert!(status.to_string().len() <= 4096, "{} bytes", status.to_string().len());
    let shown: Vec<&str> =
        status["failures"].as_array().into_iter().flatten().filter_map(|failure| failure["name"].as_str()).collect();
    assert!((3..=5).contains(&shown.len()) && shown[0] == name(11), "newest first: {shown:?}");
    world.delete(&path(&name(11))).await?;
    world.status("envoy", "failed", 11).await?;
    let written: Vec<Timestamp> = world
        .cluster
        .audit()
        .iter()
        .filter(|event| event["user"]["username"] == User::Operator.name() && event["verb"] == "patch")
        .filter(|event| event["objectRef"]["name"] == "envoy" && event["objectRef"]["subresource"] == "status")
        .filter_map(|event| event["requestReceivedTimestamp"].as_str()?.parse().ok())
        .collect();
    assert!(written.len() >= 3, "{written:?}");
    let of_counts: Vec<_> = written.iter().filter(|at| Some(**at) > told).collect();
    assert!(of_counts.len() >= 2, "{written:?}, after {told:?}");
    for pair in of_counts.windows(2) {
        let apart = pair[1].duration_since(*pair[0]).as_secs_f64();
        assert!(apart > period.as_secs_f64() - 0.5, "{written:?}");
    }
    Ok(())
}

async fn a_status_that_the_server_refuses_is_an_event_and_a_metric() -> Result<()> {
    const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions/sidecarpolicies.scpol.dev";
    let world = World::new().await?;
    // A policy from before the schema: every write of it fails, including its status.
    let schema = world.get(DEFINITION).await?.context("the definition")?["spec"]["validation"].clone();
    world.patch(DEFINITION, &json!([{ "op": "remove", "path": "/spec/validation" }])).await?;
    let bad = json!({ "priority": "high", "template": sidecar("x")["template"] });
    within(LIMIT, "it is stored", || async { Ok(world.policy("bad", bad.clone()).await.is_ok()) }).await?;
    world.patch(DEFINITION, &json!([{ "op": "add", "path": "/spec/validation", "value": schema }])).await?;
    within(LIMIT, "the schema holds again", || async {
        let is_stored = world.policy("bad-too", bad.clone()).await.is_ok();
        if is_stored {
            world.delete_policy("bad-too").await?;
        }
        Ok(!is_stored)
    })
    .await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    world.event("bad", "PolicyRejected: SCP0").await?;
    within(LIMIT, "the metric tells", || async { Ok(operator.metric("scpol_reconcile_errors_total").await? >= 1.0) })
        .await?;
    within(LIMIT, "it is counted", || async { Ok(operator.metric(r#"scpol_policies{ready="False"}"#).await? == 1.0) })
        .await?;
    assert_eq!(world.configurations().await?, Vec::<String>::new());
    world.enforce("good", sidecar("envoy")).await?;
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("web")).await?), ["app", "envoy"]);
    // Reported once, although it is retried.
    let tried = operator.metric("scpol_reconcile_errors_total").await?;
    within(2 * LIMIT, "it is tried again, twice", || async {
        Ok(operator.metric("scpol_reconcile_errors_total").await? >= tried + 2.0)
    })
    .await?;
    let told = request(&world.admin, "GET", "/api/v1/namespaces/default/events", &Value::Null).await?;
    let rejected = told["items"].as_array().into_iter().flatten().filter(|event| event["reason"] == "PolicyRejected");
    assert_eq!(rejected.map(|event| event["count"].as_i64()).collect::<Vec<_>>(), [Some(1)]);
    Ok(())
}
