//! The features of policies on a real server: selection, placement, and reasons.

use crate::support::{LIMIT, Operator, in_force, policies, wait_condition, within};
use crate::world::{CONFIGURATIONS, DEPLOYMENTS, PODS, World, containers, deployment, pod_template, request};
use anyhow::{Context, Result};
use serde_json::{Value, json};

crate::tests![
    labels_of_the_workload_and_of_its_namespace_select_and_relabelling_is_followed,
    the_users_containers_get_env_sources_and_mounts_and_the_pod_its_labels_and_secrets,
    a_pod_that_ends_by_itself_is_left_out_where_there_are_no_native_sidecars_unless_the_policy_says_otherwise,
    a_secret_with_a_short_password_is_refused_and_one_character_more_is_let_in,
    conditions_and_validations_decide_and_an_expression_that_fails_never_holds_a_create,
    audit_registers_nothing_counts_and_tells_what_it_would_do,
];

fn envoy() -> Value {
    json!({ "containers": [{ "name": "envoy", "image": "envoy:1" }] })
}

fn names<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    list.as_array().into_iter().flatten().filter_map(|item| item[key].as_str()).collect()
}

async fn labels_of_the_workload_and_of_its_namespace_select_and_relabelling_is_followed() -> Result<()> {
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    let labels = json!({ "matchLabels": { "app": "web" }, "matchExpressions": [{ "key": "tier", "operator": "NotIn", "values": ["batch"] }] });
    let by_namespace = json!({ "matchExpressions": [{ "key": "team", "operator": "In", "values": ["shop"] }] });
    world
        .policy("envoy", json!({ "labelSelector": labels, "namespaceSelector": by_namespace, "template": envoy() }))
        .await?;
    // Servers below 1.21 do not label namespaces with their name, but policies can select by it.
    let by_name = json!({ "matchLabels": { "kubernetes.io/metadata.name": "shop" } });
    world.policy("tracer", json!({ "namespaceSelector": by_name, "template": { "containers": [{ "name": "tracer", "image": "t:1" }] } })).await?;
    in_force(&world.cluster, "envoy").await?;
    in_force(&world.cluster, "tracer").await?;
    // The namespace is newer than the operator's cache.
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop", "labels": { "team": "shop" } } });
    request(&world.admin, "POST", "/api/v1/namespaces", &namespace).await?;
    let shop = "/apis/apps/v1/namespaces/shop/deployments";
    let labelled = |name: &str, labels: Value| {
        let mut body = deployment(name);
        body["metadata"]["labels"] = labels;
        body
    };
    for (path, name, labels, expected) in [
        (shop, "web", json!({ "app": "web" }), vec!["app", "envoy", "tracer"]),
        (shop, "batch", json!({ "app": "web", "tier": "batch" }), vec!["app", "tracer"]),
        (shop, "none", json!({}), vec!["app", "tracer"]),
        (DEPLOYMENTS, "elsewhere", json!({ "app": "web" }), vec!["app"]),
    ] {
        let created = world.create_promptly(path, &labelled(name, labels)).await?;
        assert_eq!(containers(&created), expected, "{name}");
    }
    world.status("envoy", "injected", 1).await?;
    world.status("tracer", "injected", 3).await?;
    let patch = json!([{ "op": "replace", "path": "/metadata/labels/team", "value": "other" }]);
    request(&world.admin, "PATCH", "/api/v1/namespaces/shop", &patch).await?;
    within(LIMIT, "a workload of the relabelled namespace is left alone", || async {
        let name = format!("later-{}", next());
        let created = world.create_promptly(shop, &labelled(&name, json!({ "app": "web" }))).await?;
        Ok(containers(&created) == ["app", "tracer"])
    })
    .await?;
    world.status("envoy", "matched", 0).await?;
    Ok(())
}

/// A number that differs in each call.
fn next() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

async fn the_users_containers_get_env_sources_and_mounts_and_the_pod_its_labels_and_secrets() -> Result<()> {
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    let template = json!({
        "metadata": { "labels": { "mesh": "on" }, "annotations": { "example.com/scrape": "true" } },
        "containers": [{ "name": "envoy", "image": "envoy:1" }],
        "initContainers": [{ "name": "first", "image": "busybox:1" }],
        "volumes": [{ "name": "certs", "secret": { "secretName": "certs" } }],
        "imagePullSecrets": [{ "name": "registry" }],
        "env": [{ "name": "HTTP_PROXY", "value": "http://localhost:3128" }],
        "envFrom": [{ "configMapRef": { "name": "proxy" } }],
        "volumeMounts": [{ "name": "certs", "mountPath": "/certs", "readOnly": true }],
        "appContainers": ["app", "web-*"],
    });
    let position = json!({ "containers": "Before", "initContainers": "Before" });
    world.enforce("envoy", json!({ "template": template, "position": position })).await?;
    let mut body = deployment("web");
    let spec = &mut body["spec"]["template"]["spec"];
    spec["containers"] = json!([
        { "name": "app", "image": "a", "env": [{ "name": "OWN", "value": "1" }] },
        { "name": "helper", "image": "b" },
    ]);
    spec["initContainers"] = json!([{ "name": "own-init", "image": "c" }]);
    let created = world.create_promptly(DEPLOYMENTS, &body).await?;
    let pod = &created["spec"]["template"];
    assert_eq!(containers(&created), ["envoy", "app", "helper"]);
    assert_eq!(names(&pod["spec"]["initContainers"], "name"), ["first", "own-init"]);
    assert_eq!(names(&pod["spec"]["imagePullSecrets"], "name"), ["registry"]);
    assert_eq!(pod["metadata"]["labels"]["mesh"], "on");
    assert_eq!(pod["metadata"]["annotations"]["example.com/scrape"], "true");
    let all = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
    assert_eq!(names(&all[1]["env"], "name"), ["HTTP_PROXY", "OWN"]);
    assert_eq!(all[1]["envFrom"][0]["configMapRef"]["name"], "proxy");
    assert_eq!(names(&all[1]["volumeMounts"], "mountPath"), ["/certs"]);
    for other in [&all[0], &all[2]] {
        assert_eq!((other.get("env"), other.get("envFrom"), other.get("volumeMounts")), (None, None, None), "{other}");
    }
    world.status("envoy", "injected", 1).await?;

    // All or nothing: a conflicting variable prevents the whole injection, and the workload is admitted.
    let mut other = deployment("other");
    other["spec"]["template"]["spec"]["containers"][0]["env"] =
        json!([{ "name": "HTTP_PROXY", "value": "http://secret@elsewhere" }]);
    let created = world.create_promptly(DEPLOYMENTS, &other).await?;
    assert_eq!(containers(&created), ["app"]);
    assert_eq!(created["spec"]["template"]["metadata"].get("annotations"), None);
    let failure = within(LIMIT, "the failure is told", || async {
        let status = policies(&world.cluster).get("envoy").await?.data["status"].clone();
        Ok(status["failures"].as_array().is_some_and(|failures| !failures.is_empty()))
    });
    failure.await?;
    let status = policies(&world.cluster).get("envoy").await?.data["status"].clone();
    let message = status["failures"][0]["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("environment variable `HTTP_PROXY` of container `app`"), "{message}");
    assert!(!message.contains("secret@elsewhere"), "{message}");
    Ok(())
}

async fn a_pod_that_ends_by_itself_is_left_out_where_there_are_no_native_sidecars_unless_the_policy_says_otherwise()
-> Result<()> {
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    let targets = json!([{ "group": "", "resource": "pods" }, { "group": "apps", "resource": "deployments" }]);
    world.enforce("envoy", json!({ "targets": targets, "template": envoy() })).await?;
    let pod = |name: &str, restart: &str| {
        let mut pod = pod_template(name);
        (pod["apiVersion"], pod["kind"], pod["metadata"]["name"]) = (json!("v1"), json!("Pod"), json!(name));
        pod["spec"]["restartPolicy"] = json!(restart);
        pod
    };
    for (name, restart, expected) in
        [("job", "Never", vec!["app"]), ("retried", "OnFailure", vec!["app"]), ("web", "Always", vec!["app", "envoy"])]
    {
        let created = world.create_promptly(PODS, &pod(name, restart)).await?;
        assert_eq!(containers(&created), expected, "{name}");
    }
    within(LIMIT, "an event on the pod says why", || async {
        let events = request(&world.admin, "GET", "/api/v1/namespaces/default/events", &Value::Null).await?;
        let told = |event: &Value| {
            event["involvedObject"]["name"] == "job"
                && event["message"].as_str().is_some_and(|text| text.starts_with("SCP0113: "))
        };
        Ok(events["items"].as_array().is_some_and(|events| events.iter().any(told)))
    })
    .await?;
    world.edit_policy("envoy", json!({ "jobs": "Inject" })).await?;
    within(LIMIT, "a plain container goes in", || async {
        let name = format!("job-{}", next());
        Ok(containers(&world.create_promptly(PODS, &pod(&name, "Never")).await?) == ["app", "envoy"])
    })
    .await?;
    world.edit_policy("envoy", json!({ "nativeSidecars": "Always" })).await?;
    wait_condition(&world.cluster, "envoy", "Programmed", "False", "NativeSidecarsUnavailable").await?;
    let created = world.create_promptly(DEPLOYMENTS, &deployment("later")).await?;
    assert_eq!(containers(&created), ["app"], "registered no more");
    Ok(())
}

async fn a_secret_with_a_short_password_is_refused_and_one_character_more_is_let_in() -> Result<()> {
    const SECRETS: &str = "/api/v1/namespaces/default/secrets";
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    let sample = std::fs::read_to_string(crate::support::file("samples/07-password-length.yaml"))?;
    let sample: Value = serde_saphyr::from_str(&sample)?;
    policies(&world.cluster).create(&Default::default(), &serde_json::from_value(sample)?).await?;
    // The installation does not include rights on Secrets.
    let condition = wait_condition(&world.cluster, "password-length", "Programmed", "False", "MissingRight").await?;
    assert!(condition["message"].as_str().is_some_and(|message| message.contains("secrets")), "{condition}");
    wait_condition(&world.cluster, "password-length", "Reconciling", "True", "MissingRight").await?;
    let role = |name: &str| std::fs::read_to_string(crate::support::file(&format!("config/rbac/secrets/{name}.yaml")));
    world.cluster.apply_manifests(&[role("cluster_role")?, role("role")?].join("---\n")).await?;
    in_force(&world.cluster, "password-length").await?;
    let secret = |name: &str, field: &str, data: Value| json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, field: data });
    // 19 and 20 times `x` in base64, as data and as stringData, which the server converts to data.
    for (name, field, password, fits) in [
        ("nineteen", "data", "eHh4eHh4eHh4eHh4eHh4eHh4eA==", false),
        ("twenty", "data", "eHh4eHh4eHh4eHh4eHh4eHh4eHg=", true),
        ("nineteen-text", "stringData", "xxxxxxxxxxxxxxxxxxx", false),
        ("twenty-text", "stringData", "xxxxxxxxxxxxxxxxxxxx", true),
    ] {
        let answer =
            request(&world.admin, "POST", SECRETS, &secret(name, field, json!({ "password": password }))).await;
        match answer {
            Ok(created) => {
                assert!(fits, "{name} was let in");
                assert_eq!(created["metadata"].get("initializers"), None);
            }
            Err(error) => {
                assert!(!fits, "{name}: {error}");
                let message = error.to_string();
                assert!(message.contains("SCP0210") && message.contains("20 characters or more"), "{message}");
            }
        }
    }
    request(&world.admin, "POST", SECRETS, &secret("other", "data", json!({ "token": "eA==" }))).await?;
    assert!(world.get(&format!("{SECRETS}/nineteen")).await?.is_none(), "nothing is left of what was refused");
    Ok(())
}

async fn conditions_and_validations_decide_and_an_expression_that_fails_never_holds_a_create() -> Result<()> {
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    let sample = std::fs::read_to_string(crate::support::file("samples/05-port-or-annotation.yaml"))?;
    let mut sample: Value = serde_saphyr::from_str(&sample)?;
    // On Deployments, which make no pods here.
    sample["spec"].as_object_mut().context("a spec")?.remove("targets");
    let expression = &mut sample["spec"]["matchConditions"][0]["expression"];
    *expression =
        expression.as_str().context("an expression")?.replace("object.spec.", "object.spec.template.spec.").into();
    policies(&world.cluster).create(&Default::default(), &serde_json::from_value(sample)?).await?;
    let few = json!([{ "expression": "size(object.spec.template.spec.containers) < 3", "messageExpression": "'it has ' + string(size(object.spec.template.spec.containers)) + ' containers'" }]);
    world.policy("few", json!({ "validations": few })).await?;
    let reads = json!([{ "name": "reads", "expression": "object.spec.paused" }]);
    let refused = world.policy("fails", json!({ "matchConditions": reads, "template": envoy() })).await;
    assert!(refused.is_ok(), "a type that is not known when it is written is for the operator to judge");
    wait_condition(&world.cluster, "fails", "Accepted", "False", "InvalidExpression").await?;
    world
        .edit_policy(
            "fails",
            json!({ "matchConditions": [{ "name": "reads", "expression": "object.spec.paused == true" }] }),
        )
        .await?;
    for policy in ["proxy", "few", "fails"] {
        in_force(&world.cluster, policy).await?;
    }
    let with_ports = |name: &str, ports: Value| {
        let mut body = deployment(name);
        body["spec"]["template"]["spec"]["containers"][0]["ports"] = ports;
        body
    };
    let mut asked = deployment("asked");
    asked["metadata"]["annotations"] = json!({ "example.com/proxy": "" });
    for (body, expected) in [
        (with_ports("eighty", json!([{ "containerPort": 80 }])), vec!["app", "proxy"]),
        (with_ports("other", json!([{ "containerPort": 81 }])), vec!["app"]),
        (deployment("none"), vec!["app"]),
        (asked, vec!["app", "proxy"]),
    ] {
        let created = world.create_promptly(DEPLOYMENTS, &body).await?;
        assert_eq!(containers(&created), expected, "{}", body["metadata"]["name"]);
    }
    // All of them lack `paused`: this is reported, and they are admitted.
    within(LIMIT, "the failure is told", || async {
        let status = policies(&world.cluster).get("fails").await?.data["status"].clone();
        Ok(status["failures"][0]["code"] == "SCP0211"
            && status["failures"][0]["message"].as_str().is_some_and(|text| text.contains("no such key: paused")))
    })
    .await?;
    // Judged in its stored form: two of its own, and the proxy.
    let mut many = with_ports("many", json!([{ "containerPort": 80 }]));
    many["spec"]["template"]["spec"]["containers"] = json!([
        { "name": "app", "image": "a", "ports": [{ "containerPort": 80 }] },
        { "name": "second", "image": "b" },
    ]);
    let refused = world.create(DEPLOYMENTS, &many).await.expect_err("three containers");
    assert!(refused.to_string().contains("it has 3 containers"), "{refused}");
    Ok(())
}

async fn audit_registers_nothing_counts_and_tells_what_it_would_do() -> Result<()> {
    let world = World::new().await?;
    world.create(DEPLOYMENTS, &deployment("before")).await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    let never = json!([{ "expression": "false", "message": "never" }]);
    world.policy("watched", json!({ "mode": "Audit", "template": envoy() })).await?;
    world.policy("judged", json!({ "mode": "Audit", "validations": never })).await?;
    for policy in ["watched", "judged"] {
        wait_condition(&world.cluster, policy, "Ready", "True", "Audit").await?;
        wait_condition(&world.cluster, policy, "Programmed", "False", "Audit").await?;
    }
    let created = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    assert_eq!(containers(&created), ["app"], "nothing is injected");
    world.status("watched", "missed", 2).await?;
    let samples = [("watched", "would get container envoy"), ("judged", "would be refused: SCP0210: never")];
    for (policy, expected) in samples {
        within(LIMIT, "a sample is told", || async {
            let ready = crate::support::condition(&world.cluster, policy, "Ready").await?.unwrap_or_default();
            Ok(ready["message"].as_str().is_some_and(|message| message.contains(expected)))
        })
        .await?;
    }
    let list = request(&world.admin, "GET", CONFIGURATIONS, &Value::Null).await?;
    assert_eq!(list["items"], json!([]), "nothing is registered");
    Ok(())
}
