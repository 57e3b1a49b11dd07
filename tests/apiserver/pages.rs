//! The commands of the docs on real servers: each prints what its page says.

use crate::console::{Block, Example, blocks, examples};
use crate::support::{LIMIT, Operator, file, in_force, policies, timing_variable, within};
use crate::world::{World, containers, request};
use anyhow::{Context, Result, ensure};
use controlplane::{Builder, ControlPlane, User, Version};
use serde_json::json;
use std::fmt::Write;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

crate::tests![
    start_prints_what_it_says_if_kubectl_installs,
    start_prints_what_it_says_if_helm_installs,
    two_commands_of_the_readme_and_helm_inject,
    two_commands_of_the_readme_and_kubectl_inject,
];

/// The time limit for a command. Those of the pages wait for two minutes at most.
const PATIENCE: Duration = Duration::from_secs(180);
const APPLY: &str = "kubectl apply -f config/install.yaml";
const HELM_INSTALL: &str = "helm install scpol charts/sidecar-policy";

/// A server without anything of ours.
async fn empty(builder: Builder) -> Result<World> {
    let cluster = builder.start().await?;
    let (admin, creator) = (cluster.admin(), cluster.client(User::Creator));
    Ok(World { cluster, admin, creator })
}

/// The newest version with controllers, and with simulated nodes on which pods seem to run.
fn with_nodes() -> Builder {
    ControlPlane::builder(Version::NEWEST).nodes(1)
}

/// Runs `script` with bash in the root of the checkout, as the administrator. Returns the exit code and the output.
async fn bash(cluster: &ControlPlane, script: &str) -> Result<(i32, String)> {
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_scpol")).parent().context("a folder")?;
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let path = [cluster.assets(), programs].into_iter().map(ToOwned::to_owned).chain(std::env::split_paths(&inherited));
    let mut command = Command::new("bash");
    command.args(["-c", &format!("exec 2>&1; {script}")]).current_dir(file("")).stdin(Stdio::null());
    command.env_clear().env("PATH", std::env::join_paths(path)?).env("HOME", cluster.dir());
    command.env("KUBECONFIG", cluster.kubeconfig(User::Admin)).env("KUBERC", "off");
    command.env("KUBECACHEDIR", cluster.dir().join("cache")).envs([timing_variable()]).kill_on_drop(true);
    let ended = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = ended.with_context(|| format!("it does not end: {script}"))??;
    Ok((output.status.code().unwrap_or(-1), String::from_utf8(output.stdout)?))
}

/// The output of `script`, each command of which must succeed.
async fn succeeds(cluster: &ControlPlane, script: &str) -> Result<String> {
    let (code, printed) = bash(cluster, &format!("set -e; {script}")).await?;
    ensure!(code == 0, "{code}: {script}\n{printed}");
    Ok(printed)
}

/// A page of the docs.
struct Page {
    path: &'static str,
    text: String,
}

impl Page {
    fn read(path: &'static str) -> Result<Self> {
        Ok(Self { path, text: std::fs::read_to_string(file(path)).context(path)? })
    }

    /// The only block that begins with `beginning`.
    fn block(&self, beginning: &str) -> Result<String> {
        let found: Vec<Block> =
            blocks(&self.text).into_iter().filter(|block| block.text.starts_with(beginning)).collect();
        ensure!(found.len() == 1, "{} has {} blocks that begin with {beginning:?}", self.path, found.len());
        Ok(found.into_iter().map(|block| block.text).collect())
    }

    /// Runs all commands with a whole output in order, and compares each output.
    async fn prints_what_it_says(&self, cluster: &ControlPlane, least: usize) -> Result<()> {
        let examples = examples(&self.text);
        ensure!(examples.len() >= least, "{} has only {} examples", self.path, examples.len());
        let mut faults = String::new();
        for Example { command, printed } in examples {
            let (_, found) = bash(cluster, &command).await?;
            if found != printed {
                write!(faults, "$ {command}\n{found}instead of\n{printed}\n")?;
            }
        }
        ensure!(faults.is_empty(), "{}:\n{faults}", self.path);
        Ok(())
    }
}

/// Runs Start after the installation `install`, one of the ways of the page.
async fn start(install: &str) -> Result<()> {
    let world = empty(with_nodes()).await?;
    let page = Page::read("docs/start.md")?;
    succeeds(&world.cluster, &page.block(install)?).await?;
    succeeds(&world.cluster, &page.block("kubectl rollout status")?).await?;
    // The pods of the Deployment only seem to run.
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    page.prints_what_it_says(&world.cluster, 15).await
}

async fn start_prints_what_it_says_if_kubectl_installs() -> Result<()> {
    start(APPLY).await
}

async fn start_prints_what_it_says_if_helm_installs() -> Result<()> {
    start(HELM_INSTALL).await
}

/// Runs the two commands of a block of the README's Install section. Returns their outputs.
async fn installs_and_injects(install: &str) -> Result<[String; 2]> {
    let world = empty(ControlPlane::builder(Version::NEWEST)).await?;
    let block = Page::read("README.md")?.block(install)?;
    let commands: Vec<&str> = block.lines().collect();
    let [install, apply] = commands[..] else { anyhow::bail!("not two commands: {block}") };
    let installed = succeeds(&world.cluster, install).await?;
    within(LIMIT, "the CRD is served", || async {
        Ok(policies(&world.cluster).list(&Default::default()).await.is_ok())
    })
    .await?;
    let applied = succeeds(&world.cluster, apply).await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    in_force(&world.cluster, "log-agent").await?;
    succeeds(&world.cluster, "kubectl create namespace shop").await?;
    let pod =
        json!({ "metadata": { "name": "web" }, "spec": { "containers": [{ "name": "web", "image": "nginx:1.27" }] } });
    let created = request(&world.admin, "POST", "/api/v1/namespaces/shop/pods", &pod).await?;
    assert_eq!(containers(&created), ["web", "log-agent"]);
    Ok([installed, applied])
}

async fn two_commands_of_the_readme_and_helm_inject() -> Result<()> {
    let [installed, applied] = installs_and_injects(HELM_INSTALL).await?;
    ensure!(installed.contains("\nSTATUS: deployed\n"), "{installed}");
    assert_eq!(applied, "sidecarpolicy.scpol.dev/log-agent created\n");
    Ok(())
}

async fn two_commands_of_the_readme_and_kubectl_inject() -> Result<()> {
    let [installed, applied] = installs_and_injects(APPLY).await?;
    ensure!(installed.contains("\ndeployment.apps/scpol created\n"), "{installed}");
    assert_eq!(applied, "sidecarpolicy.scpol.dev/log-agent created\n");
    Ok(())
}
