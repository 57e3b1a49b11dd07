//! `scpol support`: what its archive has, and what it never has.

use crate::commands::scpol;
use crate::engines::by;
use crate::prelude::*;
use std::path::Path;
use tokio::process::Command;

crate::tests![the_archive_for_a_bug_report_has_what_it_says_and_no_secret,];

/// What nobody else may see. Each is planted where users put secrets.
const PLANTED: [&str; 8] =
    ["Env-5ecret", "Arg-5ecret", "Cmd-5ecret", "Hdr-5ecret", "Ann-5ecret", "Sec-5ecret", "Csi-5ecret", "App-5ecret"];

/// A sidecar with a secret in each place.
fn template() -> Value {
    let [env, arg, cmd, header, annotation, _, csi, _] = PLANTED;
    let headers = json!([{ "name": "Authorization", "value": format!("Bearer {header}") }]);
    json!({
        "metadata": { "annotations": { "example.com/key": annotation } },
        "containers": [{
            "name": "envoy", "image": "envoyproxy/envoy:v1.31.0",
            "command": ["sh", "-c", format!("run --key {cmd}")], "args": [format!("--password={arg}"), "--verbose"],
            "env": [{ "name": "TOKEN", "value": env }],
            "readinessProbe": { "httpGet": { "port": 80, "httpHeaders": headers } },
        }],
        "volumes": [{ "name": "v", "csi": { "driver": "d.example.com", "volumeAttributes": { "key": csi } } }],
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

    let archive = world.cluster.dir().join("support.tar.gz");
    let file = archive.to_str().context("a path in UTF-8")?;
    let (code, told) = scpol(&world.cluster, &["support", file]).await?;
    assert!(code == 0 && told.contains("Read it before you send it"), "{told}");
    let (text, names) = unpacked(&archive).await?;
    let expected = [
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
    assert_eq!(names, expected);
    for planted in PLANTED {
        assert!(!text.contains(planted), "{planted} is in {text}");
    }
    for shown in [
        "name: TOKEN",
        "envoyproxy/envoy:v1.31.0",
        "--verbose",
        "team-mesh",
        "type: Programmed",
        "SCP0002",
        "scpol-deployments.apps",
        "SCP0200",
        "v1.37",
    ] {
        assert!(text.contains(shown), "{shown} is not in {text}");
    }
    let (code, told) = scpol(&world.cluster, &["support", file]).await?;
    assert!(code == 2 && told.contains("cannot write"), "nothing is overwritten: {told}");
    operator.stop().await?;
    Ok(())
}
