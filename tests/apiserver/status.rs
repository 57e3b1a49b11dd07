//! `scpol status`: its numbers and lists match the stored workloads, with and without an operator.

use crate::commands::scpol;
use crate::prelude::*;
use std::path::Path;
use tokio::io::AsyncBufReadExt;

crate::tests![
    a_policy_is_told_with_its_registration_its_numbers_and_what_has_missed_it,
    what_is_to_be_done_about_a_missed_workload_has_it_injected,
    without_the_definition_it_says_so_and_without_an_operator_it_counts,
    status_counts_a_part_of_the_cluster_and_prints_what_kubectl_would,
    status_watches_policies_until_it_is_interrupted,
];

/// The report of `scpol status` with `arguments`, and its exit code.
pub(crate) async fn report(world: &World, arguments: &[&str]) -> Result<(i32, Value)> {
    let (code, printed) = scpol(&world.cluster, &[&["status", "-o", "json"], arguments].concat()).await?;
    Ok((code, serde_json::from_str(&printed).with_context(|| printed.clone())?))
}

/// Runs a printed command.
pub(crate) async fn follow(world: &World, command: &str) -> Result<()> {
    let scpol = Path::new(env!("CARGO_BIN_EXE_scpol")).parent().context("a folder")?;
    let path = format!("{}:{}:{}", world.cluster.assets().display(), scpol.display(), std::env::var("PATH")?);
    let output = tokio::process::Command::new("bash")
        .args(["-c", &format!("set -o pipefail; {command}")])
        .env("PATH", path)
        .env("KUBECONFIG", world.cluster.kubeconfig(User::Admin))
        .env("HOME", world.cluster.dir())
        .output()
        .await?;
    ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn a_policy_is_told_with_its_registration_its_numbers_and_what_has_missed_it() -> Result<()> {
    let world = World::new().await?;
    world.create(DEPLOYMENTS, &deployment("before")).await?;
    let mut clash = deployment("clash");
    clash["spec"]["template"]["spec"]["containers"][0]["name"] = json!("envoy");
    world.create(DEPLOYMENTS, &clash).await?;
    let (code, told) = scpol(&world.cluster, &["status"]).await?;
    assert_eq!((code, told.trim()), (0, "There is no policy."));
    world.policy("envoy", sidecar("envoy")).await?;
    let (code, told) = scpol(&world.cluster, &["status", "envoy"]).await?;
    assert!(code == 1 && told.starts_with("envoy: no operator has seen it"), "{code}: {told}");

    let operator = Operator::ready(&world.cluster, &[]).await?;
    in_force(&world.cluster, "envoy").await?;
    world.create(DEPLOYMENTS, &deployment("old")).await?;
    world.edit_policy("envoy", sidecar_of("envoy", "envoy:2")).await?;
    the_edit_is_in_force(&world).await?;
    world.status("envoy", "missed", 2).await?;
    world.status("envoy", "outdated", 1).await?;
    let (code, all) = report(&world, &[]).await?;
    let line = &all["items"][0];
    assert_eq!(
        (code, &all["kind"], &line["engine"], &line["missed"]),
        (0, &json!("StatusReport"), &json!("Initializer"), &json!(2))
    );
    let (_, table) = scpol(&world.cluster, &["status"]).await?;
    assert!(table.starts_with("NAME ") && table.contains("envoy  True   Programmed  Initializer"), "{table}");

    operator.kill().await?;
    what_is_stored_is_counted_without_an_operator(&world).await?;

    world.break_glass().await?;
    let (_, one) = report(&world, &["envoy", "--limit", "0"]).await?;
    assert_eq!((&one["registrations"][0]["found"], &one["more"]), (&json!(false), &json!(0)));
    let (_, table) = scpol(&world.cluster, &["status", "envoy"]).await?;
    assert!(table.contains("scpol-envoy  NO"), "{table}");
    for (arguments, says) in [(&["envo"][..], "did you mean `envoy`?"), (&["other"], "`scpol status` lists those")] {
        let (code, printed) = scpol(&world.cluster, &[&["status"], arguments].concat()).await?;
        assert!(code == 2 && printed.contains(says), "{arguments:?}: {code} {printed}");
    }
    Ok(())
}

/// Waits until the operator injects the edited template; keeps the first Deployment that has it.
async fn the_edit_is_in_force(world: &World) -> Result<()> {
    within(LIMIT, "the edit is in effect", || async {
        let name = format!(
            "new-{}",
            world.get(DEPLOYMENTS).await?.map_or(0, |list| list["items"].as_array().map_or(0, Vec::len))
        );
        let new = world.create(DEPLOYMENTS, &deployment(&name)).await?;
        let is_new = new["spec"]["template"]["spec"]["containers"][1]["image"] == "envoy:2";
        if !is_new {
            world.delete(&path(&name)).await?;
        }
        Ok(is_new)
    })
    .await
}

/// No operator runs: `scpol status` counts the stored workloads.
async fn what_is_stored_is_counted_without_an_operator(world: &World) -> Result<()> {
    world.create_async(DEPLOYMENTS, &waiting("waits", &["envoy.scpol.dev"])).await?;
    let (code, one) = report(world, &["envoy"]).await?;
    assert_eq!(code, 1, "something has missed it: {one}");
    assert_eq!(
        one["registrations"],
        json!([{ "resource": "initializerconfigurations", "name": "scpol-envoy", "found": true }])
    );
    let sums = json!({ "resource": "deployments.apps", "matched": 4, "injected": 1, "edited": 0, "outdated": 1, "missed": 2, "failed": 1, "pending": 1, "unknown": 0 });
    assert_eq!(one["targets"], json!([sums]));
    let rows: Vec<_> = one["workloads"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| [&row["name"], &row["result"], &row["code"]].map(|value| value.as_str().unwrap_or("-").to_owned()))
        .collect();
    assert_eq!(rows, [["clash", "Failed", "SCP0200"], ["before", "Missed", "SCP0114"], ["old", "Outdated", "-"]]);
    let (_, table) = scpol(&world.cluster, &["status", "envoy", "--limit", "1"]).await?;
    assert!(table.contains("and 2 more") && !table.contains("default/old"), "{table}");
    assert!(table.contains("Deployment default/clash  failed  SCP0200"), "{table}");
    Ok(())
}

async fn what_is_to_be_done_about_a_missed_workload_has_it_injected() -> Result<()> {
    let world = World::new().await?;
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "late" }, "spec": { "containers": [{ "name": "app", "image": "nginx" }] } });
    world.create(PODS, &pod).await?;
    world.create(DEPLOYMENTS, &deployment("late")).await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    let mut spec = sidecar("envoy");
    spec["targets"] = json!([{ "group": "", "resource": "pods" }, { "group": "apps", "resource": "deployments" }]);
    world.policy("envoy", spec).await?;
    wait_condition(&world.cluster, "envoy", "Ready", "True", "Programmed").await?;
    let (code, one) = report(&world, &["envoy"]).await?;
    let fixes: Vec<_> =
        one["workloads"].as_array().into_iter().flatten().filter_map(|row| row["fix"].as_str()).collect();
    assert_eq!((code, fixes.len()), (1, 2), "{one}");
    for fix in fixes {
        follow(&world, fix).await?;
    }
    for path in [format!("{PODS}/late"), path("late")] {
        assert_eq!(containers(&world.initialized(&path).await?), ["app", "envoy"]);
    }
    let (code, one) = report(&world, &["envoy"]).await?;
    assert_eq!((code, &one["workloads"]), (0, &json!([])), "{one}");
    // The stored workload has the old template, which would conflict with the new one.
    let template = json!({ "containers": [{ "name": "envoy", "image": "envoy:2" }] });
    world.edit_policy("envoy", json!({ "template": template, "failurePolicy": "Fail" })).await?;
    in_force(&world.cluster, "envoy").await?;
    let (code, one) = report(&world, &["envoy"]).await?;
    let rows = one["workloads"].as_array().context("workloads")?;
    assert!(code == 1 && rows.iter().all(|row| row["result"] == "Outdated"), "{one}");
    let fixes: Vec<_> = rows.iter().filter_map(|row| row["fix"].as_str()).collect();
    assert_eq!(fixes.len(), 2, "{one}");
    for fix in fixes {
        follow(&world, fix).await?;
    }
    let (code, one) = report(&world, &["envoy"]).await?;
    assert_eq!((code, &one["workloads"], &one["targets"][0]["injected"]), (0, &json!([]), &json!(1)), "{one}");
    Ok(())
}

async fn without_the_definition_it_says_so_and_without_an_operator_it_counts() -> Result<()> {
    let bare = ControlPlane::builder(Version::NEWEST).start().await?;
    let (code, told) = scpol(&bare, &["status"]).await?;
    assert!(
        code == 2 && told.contains("the server has no SidecarPolicies: install the operator first"),
        "{code}: {told}"
    );
    let world = World::with(ControlPlane::builder(Version::NEWEST)).await?;
    world.policy("envoy", sidecar("envoy")).await?;
    world.create(DEPLOYMENTS, &deployment("web")).await?;
    let (code, one) = report(&world, &["envoy"]).await?;
    assert_eq!((code, &one["targets"][0]["missed"]), (1, &json!(1)), "{one}");
    Ok(())
}

async fn status_counts_a_part_of_the_cluster_and_prints_what_kubectl_would() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST)).await?;
    world.policy("envoy", sidecar("envoy")).await?;
    for name in ["web", "cart"] {
        world.create(DEPLOYMENTS, &deployment(name)).await?;
    }
    for (arguments, missed) in
        [(&["-n", "default"][..], "2"), (&["-l", "app=web"], "1"), (&["-n", "kube-public"], "0"), (&["-A"], "0")]
    {
        let template = ["status", "-o", "jsonpath={.items[*].name}: {.items[*].missed}"];
        let (_, printed) = scpol(&world.cluster, &[&template, arguments].concat()).await?;
        assert_eq!(printed, format!("envoy: {missed}"), "{arguments:?}: without an operator nothing else is counted");
    }
    let (code, one) = report(&world, &["envoy", "-l", "app=cart"]).await?;
    assert_eq!((code, &one["workloads"][0]["name"], &one["targets"][0]["matched"]), (1, &json!("cart"), &json!(1)));
    for (arguments, expected) in [
        (&["-o", "name"][..], "sidecarpolicy.scpol.dev/envoy\n"),
        (&["envoy", "-o", "name"], "sidecarpolicy.scpol.dev/envoy\n"),
        (&["envoy", "--no-headers", "-l", "app=other"], ""),
    ] {
        let (_, printed) = scpol(&world.cluster, &[&["status"], arguments].concat()).await?;
        assert_eq!(printed, expected, "{arguments:?}");
    }
    let (_, wide) = scpol(&world.cluster, &["status", "-o", "wide", "--no-headers"]).await?;
    assert!(
        wide.starts_with("envoy  Unknown  ") && wide.ends_with("0       no operator has seen it; is one running?\n"),
        "{wide:?}"
    );
    let (_, checks) = scpol(&world.cluster, &["check", "-o", "wide"]).await?;
    let (_, rows) = checks.split_once("\n\n").context("a headline")?;
    assert!(rows.lines().next().is_some_and(|header| header.ends_with("  FIX")), "{checks}");
    let operator = rows.lines().find(|row| row.starts_with("PROBLEM") && row.contains("  operator  "));
    assert!(operator.is_some_and(|row| row.ends_with('.')), "its fix is in its row: {checks}");
    Ok(())
}

/// A `scpol` that runs until it is dropped, and the lines that it prints.
struct Watching {
    _child: tokio::process::Child,
    lines: tokio::io::Lines<tokio::io::BufReader<tokio::process::ChildStdout>>,
}

impl Watching {
    fn start(cluster: &ControlPlane, arguments: &[&str]) -> Result<Self> {
        let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_scpol"))
            .args(arguments)
            .env("KUBECONFIG", cluster.kubeconfig(User::Admin))
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let out = child.stdout.take().context("its output")?;
        Ok(Self { _child: child, lines: tokio::io::BufReader::new(out).lines() })
    }

    async fn line(&mut self) -> Result<String> {
        let line = tokio::time::timeout(LIMIT, self.lines.next_line()).await.context("no further line")??;
        line.context("it has ended")
    }
}

async fn status_watches_policies_until_it_is_interrupted() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST)).await?;
    world.policy("envoy", sidecar("envoy")).await?;
    let mut all = Watching::start(&world.cluster, &["status", "-w"])?;
    let mut one = Watching::start(&world.cluster, &["status", "envoy", "-w"])?;
    assert!(all.line().await?.starts_with("NAME   READY    REASON"));
    assert!(all.line().await?.starts_with("envoy  Unknown"));
    assert_eq!(one.line().await?, "envoy: 0 of 0 injected; not ready: no operator has seen it; is one running?");

    world.policy("log", sidecar("log")).await?;
    let new = all.line().await?;
    assert!(new.starts_with("log    Unknown"), "only the policy that is new, below the others: {new}");
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "Programmed", "message": "in effect",
        "lastTransitionTime": "2024-01-01T00:00:00Z",
    });
    let status = json!({ "conditions": [ready], "matched": 40, "injected": 12, "missed": 28 });
    let patch = json!([{ "op": "add", "path": "/status", "value": status }]);
    request(&world.admin, "PATCH", "/apis/scpol.dev/v1alpha1/sidecarpolicies/envoy/status", &patch).await?;
    assert_eq!(one.line().await?, "envoy: 12 of 40 injected, 28 missed");
    let changed = all.line().await?;
    assert!(changed.starts_with("envoy  True     Programmed"), "{changed}");
    world.delete("/apis/scpol.dev/v1alpha1/sidecarpolicies/envoy").await?;
    assert_eq!(one.line().await?, "envoy: deleted");
    let gone = all.line().await?;
    assert!(gone.starts_with("envoy  Deleted"), "{gone}");
    Ok(())
}
