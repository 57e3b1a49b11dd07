//! The Helm chart on a real server: install, upgrade, GitOps without a lasting difference, uninstall.

use crate::prelude::*;
use crate::uninstall::{before, left};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

crate::tests![
    helm_installs_upgrades_and_uninstalls,
    what_helm_renders_can_be_applied_again_and_again,
    on_a_server_without_admission_policies_helm_installs_what_it_has,
];

const RELEASE: [&str; 3] = ["scpol", "--namespace", "scpol-system"];
const PODS_OF_OPERATOR: &str = "/api/v1/namespaces/scpol-system/pods";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/sidecarpolicies.scpol.dev";

/// Runs helm as the administrator. Returns its output, or fails with its stderr.
async fn helm(cluster: &ControlPlane, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(cluster.assets().join("helm"));
    command.env_clear().env("HOME", cluster.dir()).env("KUBECONFIG", cluster.kubeconfig(User::Admin));
    let output = command.args(arguments).current_dir(file("")).stdin(Stdio::null()).output().await?;
    ensure!(
        output.status.success(),
        "helm {}: {}{}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// The output of `kubectl ARGUMENTS -f` of a file with `manifests`.
async fn kubectl_on(cluster: &ControlPlane, arguments: &[&str], manifests: &str) -> Result<String> {
    let path = cluster.dir().join("manifests.yaml");
    std::fs::write(&path, manifests)?;
    cluster.kubectl_output(User::Admin, &[arguments, &["-f", &path.display().to_string()]].concat()).await
}

/// `helm install` or `helm upgrade` of the chart in `chart`, with more arguments.
async fn release(cluster: &ControlPlane, verb: &str, chart: &Path, arguments: &[&str]) -> Result<()> {
    let chart = chart.display().to_string();
    let all = [&[verb][..], &RELEASE, &[&chart, "--create-namespace"], arguments].concat();
    let all: Vec<_> = all.into_iter().filter(|word| verb == "install" || *word != "--create-namespace").collect();
    helm(cluster, &all).await?;
    within(LIMIT, "the CRD is served", || async { Ok(policies(cluster).list(&Default::default()).await.is_ok()) }).await
}

fn chart() -> PathBuf {
    file("charts/sidecar-policy")
}

/// The chart of an earlier version: its definition of policies had no short name.
async fn earlier(cluster: &ControlPlane) -> Result<PathBuf> {
    let folder = cluster.dir().join("earlier");
    let copied = Command::new("cp").arg("-r").arg(chart()).arg(&folder).status().await?;
    ensure!(copied.success(), "the chart cannot be copied");
    for (name, now, then) in [
        ("Chart.yaml", "\nversion: 0.1.0\n", "\nversion: 0.0.9\n"),
        ("files/crds/sidecarpolicies.yaml", "    shortNames:\n    - scpol\n", ""),
    ] {
        let path = folder.join(name);
        let text = std::fs::read_to_string(&path)?;
        ensure!(text.contains(now), "{name} has no {now:?}");
        std::fs::write(path, text.replace(now, then))?;
    }
    Ok(folder)
}

/// Runs what a hook of the chart runs: its arguments, with its ServiceAccount and its rights. Nothing here runs pods, so
/// nothing runs the hook's own. Returns the exit code and what is printed.
async fn as_hook(world: &World, template: &str) -> Result<(i32, String)> {
    let template = format!("templates/{template}");
    let template = [&["template"][..], &RELEASE, &["charts/sidecar-policy", "--show-only", &template]].concat();
    let hook = helm(&world.cluster, &template).await?;
    world.cluster.apply_manifests(&hook).await?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&hook)?;
    let runs = documents.iter().find_map(|object| match object["kind"].as_str()? {
        "Job" => Some(&object["spec"]["template"]["spec"]),
        "Pod" => Some(&object["spec"]),
        _ => None,
    });
    let pod = runs.context("the hook runs something")?;
    let arguments = pod["containers"][0]["args"].as_array().context("arguments")?;
    let arguments: Vec<&str> = arguments.iter().filter_map(Value::as_str).collect();
    let account = pod["serviceAccountName"].as_str().context("an account")?;
    let token = ["create", "token", account, "--namespace", "scpol-system"];
    let token = world.cluster.kubectl_output(User::Admin, &token).await?;
    let output = Command::new(env!("CARGO_BIN_EXE_scpol"))
        .args(&arguments)
        .args(["--token", token.trim()])
        .env("KUBECONFIG", world.cluster.kubeconfig(User::Bystander))
        .envs([timing_variable()])
        .output()
        .await?;
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    kubectl_on(&world.cluster, &["delete"], &hook).await?;
    Ok((output.status.code().unwrap_or(-1), printed))
}

async fn helm_installs_upgrades_and_uninstalls() -> Result<()> {
    let world = World::empty(ControlPlane::builder(Version::NEWEST)).await?;
    let before = before(&world).await?;

    let earlier = earlier(&world.cluster).await?;
    release(&world.cluster, "install", &earlier, &["--set", "replicas=1"]).await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    let created = request(&world.admin, "POST", DEPLOYMENTS, &deployment("web")).await?;
    assert_eq!(containers(&created), ["app", "envoy"]);

    let short_names = async || -> Result<Value> {
        let definition = world.get(DEFINITION).await?.context("the definition")?;
        Ok(definition["spec"]["names"]["shortNames"].clone())
    };
    assert_eq!(short_names().await?, Value::Null);
    release(&world.cluster, "upgrade", &chart(), &["--set", "commonLabels.example\\.com/team=mesh"]).await?;
    assert_eq!(short_names().await?, json!(["scpol"]), "an upgrade upgrades the definition");
    let operators = "/apis/apps/v1/namespaces/scpol-system/deployments/scpol";
    let deployed = world.get(operators).await?.context("the Deployment")?;
    assert_eq!(deployed["spec"]["replicas"], 2);
    assert_eq!(deployed["metadata"]["labels"]["example.com/team"], "mesh");
    in_force(&world.cluster, "envoy").await?;
    assert!(!world.registered().await?.is_empty());
    let (code, printed) = as_hook(&world, "tests/check.yaml").await?;
    let problems: Vec<&str> =
        printed.lines().filter(|line| line.starts_with("PROBLEM") || line.starts_with("UNKNOWN")).collect();
    let no_pods = problems.iter().all(|line| line.contains("0 of 2 replicas are ready"));
    ensure!(code == 1 && problems.len() == 1 && no_pods, "{code}: {printed}");

    // Nothing here runs pods: this is the operator's, which ends some time after the Deployment is deleted.
    let pod = json!({
        "metadata": { "name": "scpol-0", "labels": { "app.kubernetes.io/name": "scpol" } },
        "spec": { "containers": [{ "name": "scpol", "image": "scpol" }] },
    });
    request(&world.admin, "POST", PODS_OF_OPERATOR, &pod).await?;
    let ends = async {
        within(LIMIT, "the Deployment is deleted", || async { Ok(world.get(operators).await?.is_none()) }).await?;
        operator.stop().await?;
        let leader = "/apis/coordination.k8s.io/v1/namespaces/scpol-system/leases/scpol";
        ensure!(world.get(leader).await?.is_some(), "while the pod runs, its belongings stay");
        world.delete(&format!("{PODS_OF_OPERATOR}/scpol-0")).await
    };
    let ((code, printed), ()) = tokio::try_join!(as_hook(&world, "uninstall.yaml"), ends)?;
    assert_eq!(code, 0, "{printed}");
    assert_eq!(world.registered().await?, [""; 0], "{printed}");
    helm(&world.cluster, &[&["uninstall"][..], &RELEASE, &["--no-hooks"]].concat()).await?;
    let left = left(&world, &before).await?;
    let expected = [
        "apiservices /v1alpha1.scpol.dev",
        "customresourcedefinitions /sidecarpolicies.scpol.dev",
        "deployments default/web",
        "namespaces /scpol-system",
        "sidecarpolicies /envoy",
    ];
    assert_eq!(left, expected, "{printed}");
    let after = request(&world.admin, "POST", DEPLOYMENTS, &deployment("after")).await?;
    assert_eq!(containers(&after), ["app"], "nothing refuses or injects");
    Ok(())
}

/// `helm template | kubectl apply`, as Argo CD and Flux do it: the second time changes nothing, and there is no difference,
/// while the operator works.
async fn what_helm_renders_can_be_applied_again_and_again() -> Result<()> {
    let world = World::empty(ControlPlane::builder(Version::NEWEST)).await?;
    let values = ["--set", "namespace.create=true,authorCheck.enabled=true", "--no-hooks"];
    let template =
        [&["template"][..], &RELEASE, &["charts/sidecar-policy", "--kube-version", "1.37.2"], &values].concat();
    let manifests = helm(&world.cluster, &template).await?;
    let server_side = ["apply", "--server-side", "--field-manager=gitops"];
    kubectl_on(&world.cluster, &server_side, &manifests).await?;
    within(LIMIT, "the CRD is served", || async {
        Ok(policies(&world.cluster).list(&Default::default()).await.is_ok())
    })
    .await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    for round in 0..2 {
        // It fails on a difference.
        let diff = ["diff", "--server-side", "--field-manager=gitops"];
        kubectl_on(&world.cluster, &diff, &manifests).await.with_context(|| format!("round {round}"))?;
        kubectl_on(&world.cluster, &server_side, &manifests).await?;
    }
    Ok(())
}

async fn on_a_server_without_admission_policies_helm_installs_what_it_has() -> Result<()> {
    let world = World::empty(ControlPlane::builder(Version::V1_30)).await?;
    release(&world.cluster, "install", &chart(), &[]).await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    let created = request(&world.admin, "POST", DEPLOYMENTS, &deployment("web")).await?;
    assert_eq!(containers(&created), ["app", "envoy"]);
    Ok(())
}
