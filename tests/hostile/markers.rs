//! Users who write the metadata of workloads.

use crate::prelude::*;
use sidecar_policy::inject::{Template, marker};

crate::tests![
    forged_metadata_gets_nothing_past_initializers = forged_metadata_gets_nothing_past(Version::V1_13, "Initializer"),
    forged_metadata_gets_nothing_past_a_webhook_of_old_servers =
        forged_metadata_gets_nothing_past(Version::V1_30, "Webhook"),
    forged_metadata_gets_nothing_past_a_webhook = forged_metadata_gets_nothing_past(Version::NEWEST, "Webhook"),
    forged_metadata_gets_nothing_past_admission_policies =
        forged_metadata_gets_nothing_past(Version::V1_36, "MutatingAdmissionPolicy"),
];

/// The value of 200 KB of an annotation, close to what a server takes.
const LONG: usize = 200_000;

fn pod(name: &str, annotations: &Value) -> Value {
    let mut pod = crate::world::pod(name);
    pod["metadata"]["annotations"] = annotations.clone();
    pod
}

fn with_container(mut pod: Value, name: &str, image: &str) -> Value {
    if let Some(containers) = pod["spec"]["containers"].as_array_mut() {
        containers.push(json!({ "name": name, "image": image }));
    }
    pod
}

/// The annotation of `policy` with the current hash of `template`, which lists `added`.
fn forged(policy: &str, template: &Value, added: &[&str]) -> Result<Value> {
    let hash = Template::new(policy, &serde_json::from_value(template.clone())?, Default::default()).hash;
    Ok(json!({ marker::key(policy): format!(r#"{{"v":1,"hash":"{hash}","added":{}}}"#, json!(added)) }))
}

/// Sees that the create of `pod` is refused with `message`.
async fn is_refused(world: &World, pod: &Value, message: &str) -> Result<()> {
    let name = &pod["metadata"]["name"];
    match request(&world.creator, "POST", PODS, pod).await {
        Ok(created) => anyhow::bail!("{name} is created, with {:?}", containers(&created)),
        Err(error) => ensure!(error.to_string().contains(message), "{name}: {error}"),
    }
    Ok(())
}

async fn forged_metadata_gets_nothing_past(version: Version, engine: &str) -> Result<()> {
    let world = World::with(ControlPlane::builder(version)).await?;
    let targets = json!([{ "group": "", "resource": "pods" }]);
    let template = |name: &str| json!({ "containers": [{ "name": name, "image": format!("{name}:1") }] });
    let (audit, variables) = (template("audit"), json!({ "env": [{ "name": "AUDITED", "value": "1" }] }));
    // All kinds of content, so that every server compiles the comparison with it.
    let deep = json!({
        "containers": [{
            "name": "deep", "image": "deep:1", "ports": [{ "containerPort": 8080 }], "env": [{ "name": "A", "value": "1" }],
            "resources": { "limits": { "memory": "1Gi" } }, "volumeMounts": [{ "name": "deep", "mountPath": "/deep" }],
            "securityContext": { "runAsNonRoot": true }, "args": ["-v"],
        }],
        "volumes": [{ "name": "deep", "emptyDir": { "sizeLimit": "1Gi" } }], "metadata": { "annotations": { "deep": "1" } },
        "env": [{ "name": "DEEP", "value": "1" }], "envFrom": [{ "secretRef": { "name": "deep", "optional": true } }],
        "volumeMounts": [{ "name": "deep", "mountPath": "/deep" }], "imagePullSecrets": [{ "name": "deep" }],
    });
    let all = ["/spec/containers/audit"];
    // What was created while nobody looked.
    for pod in [
        pod("early", &forged("audit", &audit, &all)?),
        with_container(pod("early-other", &forged("audit", &audit, &all)?), "audit", "pause:1"),
        with_container(pod("early-copy", &forged("audit", &audit, &all)?), "audit", "audit:1"),
    ] {
        world.create(PODS, &pod).await?;
    }
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    let spec = |more: Value| {
        let mut spec = json!({ "engine": engine, "targets": targets });
        spec.as_object_mut().into_iter().for_each(|spec| spec.extend(more.as_object().cloned().unwrap_or_default()));
        spec
    };
    let has_audit =
        json!([{ "expression": "object.spec.containers.exists(c, c.name == 'audit')", "message": "no audit" }]);
    let is_no_rogue = json!([{ "expression": "object.metadata.labels['app'] != 'rogue'", "message": "no rogues" }]);
    let (of_lane, of_shop) = (json!({ "matchLabels": { "lane": "1" } }), json!({ "matchLabels": { "team": "shop" } }));
    let policies = [
        ("audit", json!({ "template": audit, "failurePolicy": "Fail", "optOut": "Denied", "validations": has_audit })),
        ("one", json!({ "template": template("one"), "optOut": "Denied", "labelSelector": of_lane })),
        ("variables", json!({ "template": variables, "labelSelector": of_lane })),
        ("judge", json!({ "validations": is_no_rogue, "labelSelector": of_shop })),
        (
            "deep",
            json!({ "template": deep, "failurePolicy": "Fail", "labelSelector": { "matchLabels": { "lane": "2" } } }),
        ),
    ];
    for (name, more) in &policies {
        world.policy(name, spec(more.clone())).await?;
    }
    for (name, _) in &policies {
        in_force(&world.cluster, name).await?;
    }
    for (field, count) in [("missed", 1), ("edited", 1), ("injected", 1)] {
        world.status("audit", field, count).await?;
    }

    let source = json!({ "kubernetes.io/config.source": "file" });
    let nothing = forged("audit", &audit, &all)?;
    let long: Vec<String> = (0..LONG / 25).map(|number| format!("/spec/containers/c{number:05}")).collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    for (name, annotations) in [
        ("honest", json!({})),
        ("source", source),
        ("forged", nothing.clone()),
        ("forged-own", forged("audit", &audit, &["/spec/containers/app"])?),
        ("forged-long", forged("audit", &audit, &long)?),
    ] {
        let created = world.create(PODS, &pod(name, &annotations)).await?;
        ensure!(containers(&created) == ["app", "audit"], "{name} has {:?}", containers(&created));
        let written = created["metadata"]["annotations"][marker::key("audit")].as_str().context("a marker")?;
        ensure!(written.ends_with(r#""/spec/containers/audit"]}"#) && written.len() < 200, "{name}: {written}");
    }
    let copy = with_container(pod("copy", &nothing), "audit", "audit:1");
    let created = world.create(PODS, &copy).await?;
    ensure!(created["spec"]["containers"].as_array().map(Vec::len) == Some(2), "{created}");
    ensure!(created["metadata"]["annotations"] == nothing, "the content is there: nothing to do");
    is_refused(&world, &with_container(pod("other", &nothing), "audit", "pause:1"), "audit").await?;

    // The labels that a marker claims are the user's all the same.
    let hidden = forged("audit", &audit, &["/spec/containers/audit", "/metadata/labels/team"])?;
    let mut rogue = with_container(pod("rogue", &hidden), "audit", "audit:1");
    rogue["metadata"]["labels"]["team"] = json!("shop");
    is_refused(&world, &rogue, "no rogues").await?;

    // A long value keeps no policy out, neither its own nor another one.
    let mut said = json!({ "scpol.dev/inject": "nobody,".repeat(LONG / 7) });
    for (name, annotations) in [("long", forged("one", &template("one"), &long)?), ("said", said.take())] {
        let mut pod = pod(name, &annotations);
        pod["metadata"]["labels"]["lane"] = json!("1");
        let created = world.create(PODS, &pod).await?;
        ensure!(containers(&created) == ["app", "audit", "one"], "{name} has {:?}", containers(&created));
        ensure!(created["spec"]["containers"][0]["env"][0]["name"] == "AUDITED", "{name}: no variable");
    }
    // A marker of variables without the variables.
    let mut bare = pod("bare", &forged("variables", &variables, &["/spec/containers/app/env/AUDITED"])?);
    bare["metadata"]["labels"]["lane"] = json!("1");
    let created = world.create(PODS, &bare).await?;
    ensure!(created["spec"]["containers"][0]["env"][0]["name"] == "AUDITED", "no variable");
    // Much of the content is there, and what is not is added.
    let mut first = pod("deep-first", &json!({}));
    first["metadata"]["labels"]["lane"] = json!("2");
    let first = world.create(PODS, &first).await?;
    ensure!(containers(&first) == ["app", "audit", "deep"], "{:?}", containers(&first));
    let copies = [("deep-copy", ""), ("deep-volumes", "volumes"), ("deep-secrets", "imagePullSecrets")];
    // A server validates an object before Initializers see it.
    let is_valid = |without: &str| without != "volumes" || engine != "Initializer";
    for (name, without) in copies.into_iter().filter(|(_, without)| is_valid(without)) {
        let mut copy = pod(name, &first["metadata"]["annotations"]);
        copy["metadata"]["labels"]["lane"] = json!("2");
        for list in ["containers", "volumes", "imagePullSecrets"].into_iter().filter(|list| *list != without) {
            copy["spec"][list] = first["spec"][list].clone();
        }
        let created = world.create(PODS, &copy).await?;
        for list in ["containers", "volumes", "imagePullSecrets"] {
            ensure!(created["spec"][list] == first["spec"][list], "{name}: {}", created["spec"]);
        }
    }
    Ok(())
}
