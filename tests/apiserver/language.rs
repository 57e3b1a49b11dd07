//! The features of policies on a real server: selection, placement, and reasons.

use crate::prelude::*;

crate::tests![
    labels_of_the_workload_and_of_its_namespace_select_and_relabelling_is_followed,
    a_pod_that_ends_by_itself_is_left_out_where_there_are_no_native_sidecars_unless_the_policy_says_otherwise,
    a_secret_with_a_short_password_is_refused_and_one_character_more_is_let_in,
    audit_registers_nothing_counts_and_tells_what_it_would_do,
];

fn envoy() -> Value {
    json!({ "containers": [{ "name": "envoy", "image": "envoy:1" }] })
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
    world.namespace("shop", &json!({ "team": "shop" })).await?;
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

async fn a_pod_that_ends_by_itself_is_left_out_where_there_are_no_native_sidecars_unless_the_policy_says_otherwise()
-> Result<()> {
    let (world, _operator) = World::new().await?.operated(&[]).await?;
    let targets = json!([{ "group": "", "resource": "pods" }, { "group": "apps", "resource": "deployments" }]);
    world.enforce("envoy", json!({ "targets": targets, "template": envoy() })).await?;
    let pod = |name: &str, restart: &str| {
        let mut pod = pod(name);
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
