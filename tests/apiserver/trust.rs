//! The limits of templates by flags of the operator. Our version of the Pod Security Standards must match the server's.

use crate::commands::scpol;
use crate::prelude::*;
use sidecar_policy::api::pod_security::{Level, breaches};

crate::tests![
    a_server_with_pod_security_refuses_just_those_templates_that_we_refuse,
    what_a_template_may_hold_is_what_the_operator_was_told,
];

const LEVELS: [Level; 2] = [Level::Baseline, Level::Restricted];

/// The fields of a container that `restricted` demands.
fn hardened() -> Value {
    json!({
        "allowPrivilegeEscalation": false, "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" },
        "capabilities": { "drop": ["ALL"] },
    })
}

/// A template with one container, which has `security` in addition to the demands of `restricted`.
fn secured(security: &Value) -> Value {
    let mut context = hardened();
    for (key, value) in security.as_object().into_iter().flatten() {
        context[key] = value.clone();
    }
    json!({ "containers": [{ "name": "a", "image": "a", "securityContext": context }] })
}

/// A template with one container, which has these fields.
fn with(fields: &Value) -> Value {
    let mut template = secured(&json!({}));
    for (key, value) in fields.as_object().into_iter().flatten() {
        template["containers"][0][key] = value.clone();
    }
    template
}

/// A template with one volume.
fn volume(source: &Value) -> Value {
    let mut template = secured(&json!({}));
    template["volumes"] = json!([source]);
    template["volumes"][0]["name"] = json!("v");
    template
}

fn annotated(key: &str, value: &str) -> Value {
    let mut template = secured(&json!({}));
    template["metadata"] = json!({ "annotations": { key: value } });
    template
}

/// Security contexts on both sides of every control, each besides what `restricted` wants.
fn security_contexts() -> [Value; 27] {
    [
        json!({}),
        json!({ "allowPrivilegeEscalation": true }),
        json!({ "allowPrivilegeEscalation": null }),
        json!({ "runAsNonRoot": false }),
        json!({ "runAsNonRoot": null }),
        json!({ "runAsUser": 0 }),
        json!({ "runAsUser": 1000 }),
        json!({ "seccompProfile": { "type": "Unconfined" } }),
        json!({ "seccompProfile": { "type": "Localhost", "localhostProfile": "a.json" } }),
        json!({ "seccompProfile": null }),
        json!({ "capabilities": null }),
        json!({ "capabilities": { "drop": ["NET_RAW"] } }),
        json!({ "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] } }),
        json!({ "capabilities": { "drop": ["ALL"], "add": ["CHOWN"] } }),
        json!({ "capabilities": { "drop": ["ALL"], "add": ["CHOWN", "NET_ADMIN"] } }),
        json!({ "capabilities": { "drop": ["ALL"], "add": ["CAP_CHOWN"] } }),
        json!({ "capabilities": { "drop": ["all"] } }),
        json!({ "privileged": true, "allowPrivilegeEscalation": true }),
        json!({ "privileged": false }),
        json!({ "procMount": "Default" }),
        json!({ "seLinuxOptions": { "type": "container_engine_t", "level": "s0:c1,c2" } }),
        json!({ "seLinuxOptions": { "type": "spc_t" } }),
        json!({ "seLinuxOptions": { "user": "system_u" } }),
        json!({ "seLinuxOptions": { "role": "system_r" } }),
        json!({ "appArmorProfile": { "type": "Unconfined" } }),
        json!({ "appArmorProfile": { "type": "RuntimeDefault" } }),
        json!({ "windowsOptions": { "hostProcess": false } }),
    ]
}

/// Templates on both sides of every control.
fn templates() -> Vec<Value> {
    let fields = [
        json!({ "ports": [{ "containerPort": 80 }, { "containerPort": 81, "hostPort": 81 }] }),
        json!({ "ports": [{ "containerPort": 80, "hostPort": 0 }] }),
        json!({ "livenessProbe": { "httpGet": { "port": 80, "host": "10.0.0.1" } } }),
        json!({ "livenessProbe": { "httpGet": { "port": 80, "host": "" } } }),
        json!({ "readinessProbe": { "tcpSocket": { "port": 80, "host": "127.0.0.1" } } }),
        json!({ "startupProbe": { "tcpSocket": { "port": 80, "host": "a" } } }),
        json!({ "lifecycle": { "preStop": { "httpGet": { "port": 80, "host": "a" } } } }),
        json!({ "lifecycle": { "postStart": { "httpGet": { "port": 80 } } } }),
    ];
    let volumes = [
        json!({}),
        json!({ "hostPath": { "path": "/var/log" } }),
        json!({ "nfs": { "server": "a", "path": "/" } }),
        json!({ "gitRepo": { "repository": "https://example.com/a.git" } }),
        json!({ "iscsi": { "targetPortal": "10.0.0.1:3260", "iqn": "iqn.2001-04.com.example:a", "lun": 0 } }),
        json!({ "secret": { "secretName": "a" } }),
        json!({ "persistentVolumeClaim": { "claimName": "a" } }),
        json!({ "csi": { "driver": "a.example.com" } }),
        json!({ "image": { "reference": "a:1" } }),
        json!({ "projected": { "sources": [{ "configMap": { "name": "a" } }] } }),
    ];
    let annotations = [
        ("container.apparmor.security.beta.kubernetes.io/a", "unconfined"),
        ("container.apparmor.security.beta.kubernetes.io/a", "runtime/default"),
        ("container.apparmor.security.beta.kubernetes.io/a", "localhost/own"),
    ];
    security_contexts()
        .into_iter()
        .map(|security| secured(&security))
        .chain(fields.into_iter().map(|fields| with(&fields)))
        .chain(volumes.into_iter().map(|source| volume(&source)))
        .chain(annotations.map(|(key, value)| annotated(key, value)))
        .collect()
}

/// The template as a pod, which a server can judge.
fn pod(template: &Value) -> Value {
    let mut metadata = template["metadata"].clone();
    metadata["name"] = json!("a");
    let spec = json!({ "containers": template["containers"], "volumes": template["volumes"] });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec })
}

async fn a_server_with_pod_security_refuses_just_those_templates_that_we_refuse() -> Result<()> {
    let cluster = ControlPlane::builder(Version::NEWEST).start().await?;
    let admin = cluster.admin();
    for level in LEVELS {
        let labels = json!({ "pod-security.kubernetes.io/enforce": level.as_str() });
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": level.as_str(), "labels": labels } });
        request(&admin, "POST", "/api/v1/namespaces", &namespace).await?;
    }
    let mut seen = [[0; 2]; 2];
    for template in templates() {
        for level in LEVELS {
            let path = format!("/api/v1/namespaces/{level}/pods?dryRun=All");
            let refused = match request(&admin, "POST", &path, &pod(&template)).await {
                Ok(_) => false,
                Err(kube::Error::Api(status))
                    if status.code == 403 && status.message.contains("violates PodSecurity") =>
                {
                    true
                }
                Err(error) => return Err(error).context(template.to_string()),
            };
            let found = breaches(&serde_json::from_value(template.clone())?, level);
            assert_eq!(!found.is_empty(), refused, "{level}: {template}: {found:?}");
            seen[usize::from(level == Level::Baseline)][usize::from(refused)] += 1;
        }
    }
    assert!(seen.as_flattened().iter().all(|&count| count >= 10), "{seen:?}");
    Ok(())
}

/// A policy for Deployments whose container is privileged.
fn privileged(namespaces: &Value) -> Value {
    let container = json!({ "name": "agent", "image": "registry.example.com/mesh/agent:1", "securityContext": { "privileged": true } });
    let mut spec = json!({ "namespaces": namespaces, "template": { "containers": [container] } });
    if namespaces.is_null() {
        spec.as_object_mut().expect("an object").remove("namespaces");
    }
    spec
}

fn of_image(image: &str) -> Value {
    sidecar_of("image", image)
}

async fn what_a_template_may_hold_is_what_the_operator_was_told() -> Result<()> {
    for version in [Version::V1_13, Version::NEWEST] {
        let world = World::with(ControlPlane::builder(version)).await?;
        let flags = ["--privileged-namespaces=logging,default", "--allowed-images=registry.example.com/mesh"];
        let operator = Operator::ready(&world.cluster, &flags).await?;
        let token = json!({ "template": { "volumes": [{ "name": "t", "projected": { "sources": [{ "serviceAccountToken": { "path": "t" } }] } }] } });
        for (name, spec, reason, field) in [
            (
                "everywhere",
                privileged(&json!(null)),
                "PodSecurity",
                "spec.template.containers[0].securityContext.privileged",
            ),
            ("by-glob", privileged(&json!(["logg*"])), "PodSecurity", "`logg*` is none of them"),
            ("one-more", privileged(&json!(["logging", "shop"])), "PodSecurity", "`shop` is none of them"),
            ("token", token, "PowerNotGranted", "spec.template.volumes[0].projected.sources[0].serviceAccountToken"),
            ("image", of_image("registry.example.com/other:1"), "ImageNotAllowed", "spec.template.containers[0].image"),
        ] {
            world.policy(name, spec).await?;
            wait_condition(&world.cluster, name, "Accepted", "False", reason).await?;
            let condition = wait_condition(&world.cluster, name, "Ready", "False", reason).await?;
            let message = condition["message"].as_str().unwrap_or_default();
            assert!(message.contains(field), "{version:?} {name}: {message}");
        }
        assert!(world.registered().await?.is_empty());
        world.enforce("agent", privileged(&json!(["default"]))).await?;
        let created = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
        assert_eq!(containers(&created), ["app", "agent"], "{version:?}");
        // A policy that the operator has accepted is valid for the commands, whatever their flags.
        let (code, said) = scpol(&world.cluster, &["status", "agent"]).await?;
        assert_eq!(code, 0, "{said}");
        let (_, said) = scpol(&world.cluster, &["explain", "deploy/web"]).await?;
        let line = |policy: &str| said.lines().find(|line| line.starts_with(policy)).unwrap_or_default();
        assert!(line("agent").contains("SCP0106") && line("everywhere").contains("SCP0043"), "{said}");
        // Another operator without the flag judges the same policy again.
        operator.kill().await?;
        let _operator = Operator::ready(&world.cluster, &[]).await?;
        wait_condition(&world.cluster, "agent", "Accepted", "False", "PodSecurity").await?;
        in_force(&world.cluster, "image").await?;
        let created = world.create_promptly(DEPLOYMENTS, &deployment("later")).await?;
        assert_eq!(containers(&created), ["app", "image"], "{version:?}");
    }
    Ok(())
}
