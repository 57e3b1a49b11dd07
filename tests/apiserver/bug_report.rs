//! `scpol support`: what its archive has, and what it never has.

use crate::commands::scpol;
use crate::engines::by;
use crate::prelude::*;
use std::path::Path;
use tokio::process::Command;

crate::tests![
    the_archive_for_a_bug_report_has_what_it_says_and_no_secret,
    an_archive_of_a_user_with_fewer_rights_says_what_is_not_in_it,
];

/// What nobody else may see. Each is planted where users put secrets.
#[rustfmt::skip]
const PLANTED: [&str; 10] = [
    "Env-5ecret", "Arg-5ecret", "Cmd-5ecret", "Hdr-5ecret", "Ann-5ecret", "Sec-5ecret", "Csi-5ecret", "App-5ecret",
    "Url-5ecret", "Old-5ecret",
];

/// The files of the archive.
const FILES: [&str; 9] = [
    "README.txt",
    "policies.yaml",
    "registrations.yaml",
    "revisions.yaml",
    "versions.yaml",
    "deployment.yaml",
    "lease.yaml",
    "events.yaml",
    "pods.yaml",
];

/// What it shows.
const SHOWN: [&str; 13] = [
    "name: envoy-1",
    "not (redacted) there",
    "name: TOKEN",
    "envoyproxy/envoy:v1.31.0",
    "--verbose",
    "team-mesh",
    "type: Programmed",
    "SCP0002",
    "scpol-deployments.apps",
    "SCP0200",
    "v1.37",
    "--log-level=debug",
    "namespace `scpol-system` has no pod of the operator",
];

/// A sidecar with a secret in each place.
fn template() -> Value {
    let [env, arg, cmd, header, annotation, _, csi, _, url, _] = PLANTED;
    let headers = json!([{ "name": "Authorization", "value": format!("Bearer {header}") }]);
    json!({
        "metadata": { "annotations": { "example.com/key": annotation } },
        "containers": [{
            "name": "envoy", "image": "envoyproxy/envoy:v1.31.0",
            "command": ["sh", "-c", format!("run --key {cmd}")], "args": [format!("--password={arg}"), "--verbose", format!("-HAuthorization: Basic {arg}=")],
            "env": [{ "name": "TOKEN", "value": env }],
            "readinessProbe": { "httpGet": { "port": 80, "httpHeaders": headers, "path": format!("/health?token={url}") } },
        }],
        "volumes": [{ "name": "v", "csi": { "driver": "d.example.com", "volumeAttributes": { "key": csi } } }],
    })
}

/// The Deployment of the operator, which no controller makes pods of here, with a container of others.
fn operator_deployment() -> Value {
    let [env, arg, cmd, .., url, _] = PLANTED;
    let mut object = deployment("scpol");
    object["spec"]["template"]["spec"]["containers"] = json!([
        { "name": "scpol", "image": "scpol:1", "args": ["run", "--log-level=debug", format!("--token={arg}")],
          "env": [{ "name": "SCPOL_WORKERS", "value": "8" }, { "name": "SCPOL_TOKEN", "value": env }] },
        { "name": "proxy", "image": format!("user:{url}@registry.example.com/proxy:1"), "command": [cmd], "args": [format!("-u{arg}")],
          "env": [{ "name": "SCPOL_TOKEN", "value": env }] },
    ]);
    object["metadata"]["namespace"] = json!("scpol-system");
    object
}

/// An event of the operator that repeats `secret`.
fn event_with(secret: &str) -> Value {
    json!({
        "metadata": { "name": "e", "namespace": "default" }, "reason": "Refused", "message": format!("not {secret} there"),
        "involvedObject": { "kind": "Pod", "namespace": "default", "name": "p" }, "source": { "component": "scpol" }, "type": "Warning",
    })
}

/// The text of all files of the archive, and their names.
async fn unpacked(archive: &Path) -> Result<(String, Vec<String>)> {
    let tar = |flags: &'static str| Command::new("tar").arg(flags).arg(archive).output();
    let (names, text) = (tar("-tzf").await?, tar("-xzOf").await?);
    ensure!(names.status.success() && text.status.success(), "{names:?}");
    let names = String::from_utf8(names.stdout)?.lines().map(str::to_owned).collect();
    Ok((String::from_utf8(text.stdout)?, names))
}

async fn the_archive_for_a_bug_report_has_what_it_says_and_no_secret() -> Result<()> {
    let flags = ["--allow-in-templates=csi-volumes"];
    let (world, operator) = World::with(ControlPlane::builder(Version::NEWEST)).await?.operated(&flags).await?;
    let secret = json!({ "metadata": { "name": "planted" }, "stringData": { "key": PLANTED[5] } });
    request(&world.admin, "POST", SECRETS, &secret).await?;
    let spec = by("MutatingAdmissionPolicy", json!({ "template": template() }));
    let last = json!({ "kubectl.kubernetes.io/last-applied-configuration": spec.to_string(), "scpol.dev/contact": "team-mesh" });
    let mut policy = policy_object("envoy", &spec);
    policy["metadata"]["annotations"] = last;
    request(&world.admin, "POST", "/apis/scpol.dev/v1alpha1/sidecarpolicies", &policy).await?;
    in_force(&world.cluster, "envoy").await?;
    // A conflict: the event about it must not tell the variable of the application either.
    let mut taken = deployment("web");
    let container = json!({ "name": "envoy", "image": "mine", "env": [{ "name": "TOKEN", "value": PLANTED[7] }] });
    taken["spec"]["template"]["spec"]["containers"] = json!([container]);
    world.create(DEPLOYMENTS, &taken).await?;
    world.event("web", "Sidecar").await?;

    // An earlier revision, whose value an event repeats.
    let revision = json!({
        "metadata": { "name": "envoy-1", "labels": { "app.kubernetes.io/managed-by": "scpol", "scpol.dev/policy": "envoy" } },
        "data": { "template": { "env": [{ "name": "TOKEN", "value": PLANTED[9] }] } }, "revision": 1,
    });
    request(&world.admin, "POST", "/apis/apps/v1/namespaces/scpol-system/controllerrevisions", &revision).await?;
    request(&world.admin, "POST", "/api/v1/namespaces/default/events", &event_with(PLANTED[9])).await?;
    request(&world.admin, "POST", "/apis/apps/v1/namespaces/scpol-system/deployments", &operator_deployment()).await?;

    let archive = world.cluster.dir().join("support.tar.gz");
    let file = archive.to_str().context("a path in UTF-8")?;
    let (code, told) = scpol(&world.cluster, &["support", file]).await?;
    assert!(code == 0 && told.contains("Read it before you send it"), "{told}");
    let (text, names) = unpacked(&archive).await?;
    assert_eq!(names, FILES);
    for planted in PLANTED {
        assert!(!text.contains(planted), "{planted} is in {text}");
    }
    for shown in SHOWN {
        assert!(text.contains(shown), "{shown} is not in {text}");
    }
    let (code, told) = scpol(&world.cluster, &["support", file]).await?;
    assert!(code == 2 && told.contains("is there already; give another FILE"), "nothing is overwritten: {told}");
    let (code, told) = scpol(&world.cluster, &["support", "-", "--operator-namespace=default"]).await?;
    assert!(code == 2 && told.contains("give `--operator-namespace scpol-system`"), "{told}");
    operator.stop().await?;
    Ok(())
}

async fn an_archive_of_a_user_with_fewer_rights_says_what_is_not_in_it() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST)).await?;
    world.policy("envoy", by("MutatingAdmissionPolicy", json!({ "template": template() }))).await?;
    let rules = json!([{ "apiGroups": [""], "resources": ["events"], "verbs": ["list"] },
        { "apiGroups": ["admissionregistration.k8s.io"], "resources": ["mutatingwebhookconfigurations"], "verbs": ["list"] }]);
    let rights = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({ "metadata": { "name": "few" }, "rules": rules });
    request(&world.admin, "POST", &format!("{rights}/clusterroles"), &role).await?;
    let binding = json!({
        "metadata": { "name": "few" }, "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "few" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "few" }],
    });
    request(&world.admin, "POST", &format!("{rights}/clusterrolebindings"), &binding).await?;
    request(&world.admin, "POST", "/api/v1/namespaces/default/events", &event_with(PLANTED[0])).await?;
    let archive = world.cluster.dir().join("few.tar.gz");
    let file = archive.to_str().context("a path in UTF-8")?;
    let (code, told) = scpol(&world.cluster, &["support", file, "--as=few"]).await?;
    assert_eq!(code, 0, "{told}");
    let (text, names) = unpacked(&archive).await?;
    assert_eq!(names, ["README.txt", "registrations.yaml", "versions.yaml", "events.yaml"]);
    for missing in [
        "policies.yaml",
        "revisions.yaml",
        "deployment.yaml",
        "lease.yaml",
        "pods.yaml",
        "pods/*/log.txt and metrics.txt",
    ] {
        assert!(text.contains(&format!("\nNot in it: {missing}: ")), "{missing}: {text}");
        assert!(told.contains(&format!("note: not in it: {missing}: ")), "{missing}: {told}");
    }
    assert!(text.contains("Not in it: registrations.yaml: cannot list validatingwebhookconfigurations"), "{text}");
    assert!(text.contains("the right is missing") && !text.contains("User "), "nobody is named: {text}");
    assert!(
        text.contains("reason: Refused") && !text.contains(PLANTED[0]),
        "without policies no message is shown: {text}"
    );
    Ok(())
}
