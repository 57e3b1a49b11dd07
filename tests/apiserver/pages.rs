//! The commands of the docs on real servers: each prints what its page says.

use crate::console::{Example, blocks, examples};
use crate::prelude::*;
use controlplane::Builder;
use regex::Regex;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;

crate::tests![
    start_prints_what_it_says_if_kubectl_installs = start(APPLY),
    start_prints_what_it_says_if_helm_installs = start(HELM_INSTALL),
    two_commands_of_the_readme_and_helm_inject,
    two_commands_of_the_readme_and_kubectl_inject,
    the_gitops_page_knows_which_tools_keep_the_sidecar,
    the_multi_tenancy_page_has_the_texts_of_the_author_check,
    the_example_of_the_pod_security_page_is_accepted_where_restricted_is_enforced,
    every_result_of_the_no_sidecar_page_is_printed_as_it_says,
    the_rollouts_page_takes_a_policy_to_a_canary_and_back,
    the_commands_of_the_upgrade_page_upgrade_what_kubectl_installed = upgrades(APPLY, APPLY),
    the_commands_of_the_upgrade_page_upgrade_what_helm_installed = upgrades(HELM_INSTALL, "helm upgrade"),
    the_commands_of_the_uninstall_page_stop_and_uninstall,
    what_the_uninstall_page_does_by_hand_leaves_nothing,
    what_helm_installed_is_uninstalled_as_the_page_says,
];

/// The time limit for a command. Those of the pages wait for two minutes at most.
const PATIENCE: Duration = Duration::from_secs(180);
/// The time limit for an output that comes by itself.
const SOON: Duration = Duration::from_secs(20);
const APPLY: &str = "kubectl apply -f config/install.yaml";
const HELM_INSTALL: &str = "helm install scpol charts/sidecar-policy";

/// The newest version with controllers, and with simulated nodes on which pods seem to run.
fn with_nodes() -> Builder {
    ControlPlane::builder(Version::NEWEST).nodes(1)
}

/// Runs `script` with bash in the root of the checkout, as the administrator. Returns the exit code and the output.
async fn bash(cluster: &ControlPlane, script: &str) -> Result<(i32, String)> {
    let programs = Path::new(env!("CARGO_BIN_EXE_scpol")).parent().context("a folder")?;
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

/// The regular expression of what a page says: see [`Page::says`].
fn pattern(said: &str) -> String {
    let wide = Regex::new(" {2,}").expect("a regular expression");
    let lines = said.lines().map(|line| {
        if line == ".." {
            return "(?:.*\n)*".to_owned();
        }
        let (start, line) = line.strip_prefix(".. ").map_or(("", line), |rest| (".*", rest));
        let (line, end) = line.strip_suffix("..").map_or((line, ""), |rest| (rest, ".*"));
        let line = regex::escape(line).replace("15s  ", r"\d+m?\d*s?  ");
        format!("{start}{}{end}\n", wide.replace_all(&line, " {2,}"))
    });
    format!("^{}$", lines.collect::<String>())
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
        let mut found = blocks(&self.text).into_iter().filter(|block| block.text.starts_with(beginning));
        let (first, second) = (found.next(), found.next());
        ensure!(second.is_none(), "{} has several blocks that begin with {beginning:?}", self.path);
        Ok(first.with_context(|| format!("{} has no block that begins with {beginning:?}", self.path))?.text)
    }

    /// The page with `name`, which the server chose, in the place of `said`, which it once chose.
    fn with(&self, said: &str, name: &str) -> Result<Self> {
        ensure!(self.text.contains(said), "{} has no {said}", self.path);
        Ok(Self { path: self.path, text: self.text.replace(said, name) })
    }

    /// Runs the only command that begins with `beginning`, and compares the output. On the page, `..` at the start or
    /// the end of a line is any text, a line `..` is any lines, and `15s` is any age. Columns may be wider, because other
    /// rows decide that.
    async fn says(&self, cluster: &ControlPlane, beginning: &str) -> Result<()> {
        let commands = blocks(&self.text).into_iter().filter(|block| block.text.starts_with("$ "));
        let examples = commands.flat_map(|block| block.examples());
        let mut found: Vec<Example> = examples.filter(|example| example.command.starts_with(beginning)).collect();
        let example = found.pop().with_context(|| format!("{} has no command {beginning}", self.path))?;
        ensure!(found.is_empty(), "{} has several commands {beginning}", self.path);
        let expected = Regex::new(&pattern(&example.printed))?;
        let printed = RefCell::new(String::new());
        // Statuses and events come a moment later.
        let is_right = within(SOON, &example.command, || async {
            printed.replace(bash(cluster, &example.command).await?.1);
            Ok(expected.is_match(&printed.borrow()))
        });
        let fault = || {
            format!("{}: {} prints\n{}instead of\n{}", self.path, example.command, printed.borrow(), example.printed)
        };
        is_right.await.with_context(fault)
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
    let world = World::empty(with_nodes()).await?;
    let page = Page::read("docs/start.md")?;
    succeeds(&world.cluster, &page.block(install)?).await?;
    succeeds(&world.cluster, &page.block("kubectl rollout status")?).await?;
    // The pods of the Deployment only seem to run.
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    page.prints_what_it_says(&world.cluster, 15).await
}

/// Runs the two commands of a block of the README's Install section. Returns their outputs.
async fn installs_and_injects(install: &str) -> Result<[String; 2]> {
    let world = World::empty(ControlPlane::builder(Version::NEWEST)).await?;
    let block = Page::read("README.md")?.block(install)?.replace("\\\n", " ");
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

/// A server with everything installed, and an operator with `flags`.
async fn operated(builder: Builder, flags: &[&str]) -> Result<(World, Operator)> {
    let (world, operator) = World::with(builder).await?.operated(flags).await?;
    Ok((world, operator))
}

/// A pod template or pod with one container.
fn pod_spec(image: &str) -> Value {
    json!({ "containers": [{ "name": "app", "image": image }] })
}

/// The lines of the first table of the page: the text of each first cell, and the second cell.
fn table(page: &Page) -> BTreeMap<String, String> {
    let rows = page.text.lines().skip_while(|line| !line.starts_with("|--")).skip(1);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>());
    cells.map(|cells| (cells[0].clone(), cells[1].clone())).collect()
}

async fn the_gitops_page_knows_which_tools_keep_the_sidecar() -> Result<()> {
    let (world, _operator) = operated(ControlPlane::builder(Version::NEWEST), &[]).await?;
    let cluster = &world.cluster;
    let page = Page::read("docs/how-to/gitops.md")?;
    succeeds(cluster, "kubectl create namespace rep").await?;
    let spec = json!({ "namespaces": ["rep"], "template": { "containers": [{ "name": "on-deploy", "image": "busybox:1.36" }] } });
    world.policy("on-deploy", spec).await?;
    in_force(cluster, "on-deploy").await?;

    let dir = cluster.dir().display().to_string();
    std::fs::create_dir_all(format!("{dir}/chart/templates"))?;
    std::fs::write(format!("{dir}/chart/Chart.yaml"), "apiVersion: v2\nname: web\nversion: 1.0.0\n")?;
    // Version 1 or 2 of a manifest of the Deployment `name`.
    let write = |path: &str, name: &str, version: u32| {
        let mut deployment = crate::world::deployment(name);
        deployment["metadata"]["namespace"] = json!("rep");
        deployment["spec"]["template"]["spec"] = pod_spec(&format!("nginx:{version}"));
        std::fs::write(format!("{dir}/{path}"), deployment.to_string())
    };
    let names = async |name: &str| -> Result<Vec<String>> {
        let path = format!("/apis/apps/v1/namespaces/rep/deployments/{name}");
        Ok(containers(&world.get(&path).await?.context("the Deployment")?))
    };
    let mut observed = BTreeMap::new();
    let tools = [
        ("`kubectl apply`", "apply", format!("kubectl apply -f {dir}/apply.yaml")),
        ("`kubectl apply --server-side`", "server", format!("kubectl apply --server-side -f {dir}/server.yaml")),
        ("`kubectl replace`", "replace", format!("kubectl replace -f {dir}/replace.yaml")),
        (
            "`helm upgrade --force`, of Helm 4 `--force-replace --server-side=false`",
            "helm",
            format!("helm upgrade helm {dir}/chart --namespace rep --force-replace --server-side=false"),
        ),
        ("any other PUT: Terraform, a client's `Update`", "put", String::new()),
    ];
    for (tool, name, update) in tools {
        let manifest = if name == "helm" { "chart/templates/web.yaml".to_owned() } else { format!("{name}.yaml") };
        write(&manifest, name, 1)?;
        let create = match name {
            "helm" => format!("helm install helm {dir}/chart --namespace rep"),
            "replace" | "put" => format!("kubectl create -f {dir}/{manifest}"),
            _ => update.clone(),
        };
        succeeds(cluster, &create).await?;
        assert_eq!(names(name).await?, ["app", "on-deploy"], "{tool}");
        write(&manifest, name, 2)?;
        if name == "put" {
            let path = "/apis/apps/v1/namespaces/rep/deployments/put";
            let body = serde_json::from_str(&std::fs::read_to_string(format!("{dir}/{manifest}"))?)?;
            request(&world.admin, "PUT", path, &body).await?;
        } else {
            succeeds(cluster, &update).await?;
        }
        let is_kept = names(name).await?.contains(&"on-deploy".to_owned());
        observed.insert(tool.to_owned(), if is_kept { "stays" } else { "is lost" }.to_owned());
    }
    assert_eq!(observed, table(&page));

    // Generation 2 by apply, 3 by replace.
    write("web.yaml", "web", 1)?;
    succeeds(cluster, &format!("kubectl apply -f {dir}/web.yaml")).await?;
    write("web.yaml", "web", 2)?;
    succeeds(cluster, &format!("kubectl apply -f {dir}/web.yaml")).await?;
    write("web.yaml", "web", 3)?;
    succeeds(cluster, &format!("kubectl replace -f {dir}/web.yaml")).await?;
    page.says(cluster, "scpol explain deploy/web").await?;

    std::fs::create_dir_all(format!("{dir}/manifests"))?;
    std::fs::create_dir_all(format!("{dir}/policies"))?;
    write("manifests/web.yaml", "web", 1)?;
    let policy = succeeds(cluster, "kubectl get scpol on-deploy -o yaml").await?;
    std::fs::write(format!("{dir}/policies/on-deploy.yaml"), policy)?;
    let inject = page.block("scpol inject")?;
    let rendered = succeeds(cluster, &format!("cd {dir}; {inject} cat rendered.yaml")).await?;
    assert_eq!(containers(&serde_saphyr::from_str::<Value>(&rendered)?), ["app", "on-deploy"]);
    Ok(())
}

async fn the_multi_tenancy_page_has_the_texts_of_the_author_check() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST)).await?;
    let cluster = &world.cluster;
    let page = Page::read("docs/how-to/multi-tenancy.md")?;
    for beginning in ["kubectl create clusterrolebinding scpol-edit", "kubectl create clusterrolebinding scpol-view"] {
        succeeds(cluster, &page.block(beginning)?).await?;
    }
    for (group, verb, expected) in [
        ("platform", "create", "yes"),
        ("platform", "delete", "yes"),
        ("developers", "list", "yes"),
        ("developers", "create", "no"),
        ("others", "list", "no"),
    ] {
        let question = format!("kubectl auth can-i {verb} sidecarpolicies --as=anyone --as-group={group}");
        let (_, answer) = bash(cluster, &question).await?;
        assert_eq!(answer.lines().last(), Some(expected), "{question}: {answer}");
    }
    succeeds(
        cluster,
        "kubectl create namespace shop; kubectl create clusterrolebinding team --clusterrole=scpol-edit --user=team-shop
        kubectl create role pods --namespace shop --verb=create --resource=pods
        kubectl create rolebinding pods --namespace shop --role=pods --user=team-shop",
    )
    .await?;
    let wide = "kubectl apply --as=team-shop -f docs/examples/start/many-namespaces.yaml";
    let accepted = async || -> Result<bool> { Ok(bash(cluster, &format!("{wide} --dry-run=server")).await?.0 == 0) };
    ensure!(accepted().await?, "without the check it is accepted");
    succeeds(cluster, &page.block("kubectl apply -f config/author-check.yaml")?).await?;
    within(LIMIT, "the check is in effect", || async { Ok(!accepted().await?) }).await?;
    page.says(cluster, wide).await?;
    // Also as an edit.
    let own = succeeds(cluster, "kubectl apply --as=team-shop -f docs/examples/start/policy.yaml").await?;
    assert_eq!(own, "sidecarpolicy.scpol.dev/log-agent created\n");
    let (code, printed) = bash(cluster, wide).await?;
    ensure!(code == 1 && printed.contains("SCP0046: team-shop may not create pods in all namespaces"), "{printed}");
    Ok(())
}

async fn the_example_of_the_pod_security_page_is_accepted_where_restricted_is_enforced() -> Result<()> {
    let page = Page::read("docs/how-to/pod-security.md")?;
    let flag = page.block("--privileged-namespaces")?;
    let (world, _operator) = operated(ControlPlane::builder(Version::NEWEST), &[flag.trim()]).await?;
    let cluster = &world.cluster;
    let example = std::fs::read_to_string(file("docs/examples/how-to/restricted.yaml"))?;
    ensure!(example.ends_with(&page.block("    containers:")?), "the file is another example than that of the page");
    succeeds(
        cluster,
        "kubectl create namespace locked; kubectl create namespace logging
        kubectl label namespace locked pod-security.kubernetes.io/enforce=restricted
        kubectl apply -f docs/examples/how-to/restricted.yaml",
    )
    .await?;
    in_force(cluster, "restricted-agent").await?;
    let pods = "/api/v1/namespaces/locked/pods";
    let strict = |name: &str| {
        let mut spec = pod_spec("busybox:1.36");
        spec["containers"][0]["securityContext"] = json!({
            "allowPrivilegeEscalation": false, "runAsNonRoot": true, "capabilities": { "drop": ["ALL"] },
            "seccompProfile": { "type": "RuntimeDefault" },
        });
        json!({ "metadata": { "name": name }, "spec": spec })
    };
    let created = request(&world.admin, "POST", pods, &strict("strict1")).await?;
    assert_eq!(containers(&created), ["app", "log-agent"]);
    let weak = json!({ "metadata": { "name": "weak" }, "spec": pod_spec("busybox:1.36") });
    ensure!(request(&world.admin, "POST", pods, &weak).await.is_err(), "`restricted` is enforced");

    world.delete_policy("restricted-agent").await?;
    let plain = |namespace: &str, container: Value| {
        json!({
            "namespaces": [namespace], "targets": [{ "group": "", "resource": "pods" }],
            "template": { "containers": [container] },
        })
    };
    world.policy("plain-agent", plain("locked", json!({ "name": "agent", "image": "busybox:1.36" }))).await?;
    in_force(cluster, "plain-agent").await?;
    within(LIMIT, "the deleted policy is out of effect", || async {
        let created = request(&world.admin, "POST", &format!("{pods}?dryRun=All"), &strict("strict2")).await?;
        Ok(containers(&created) == ["app"])
    })
    .await?;
    request(&world.admin, "POST", pods, &strict("strict2")).await?;
    page.says(cluster, "scpol explain pod/strict2").await?;

    let privileged = json!({ "name": "agent", "image": "busybox:1.36", "securityContext": { "privileged": true } });
    world.policy("everywhere", plain("shop", privileged.clone())).await?;
    within(LIMIT, "a template above the level of the operator is not accepted", || async {
        let accepted = crate::support::condition(cluster, "everywhere", "Accepted").await?.unwrap_or_default();
        Ok(accepted["status"] == "False" && accepted["message"].as_str().is_some_and(|text| text.contains("SCP0043")))
    })
    .await?;
    world.policy("trusted", plain("logging", privileged)).await?;
    in_force(cluster, "trusted").await
}

/// The policy of Start.
const POLICY: &str = "kubectl apply -f docs/examples/start/policy.yaml";

impl World {
    /// Applies the policy of Start, and waits until it is in effect.
    async fn log_agent(&self) -> Result<()> {
        succeeds(&self.cluster, POLICY).await?;
        in_force(&self.cluster, "log-agent").await
    }
}

async fn every_result_of_the_no_sidecar_page_is_printed_as_it_says() -> Result<()> {
    let world = World::empty(with_nodes()).await?;
    let cluster = &world.cluster;
    succeeds(cluster, APPLY).await?;
    let operator = Operator::ready(cluster, &[]).await?;
    let page = Page::read("docs/how-to/no-sidecar.md")?;
    let run = "kubectl run --image=busybox:1.36";
    succeeds(
        cluster,
        &format!(
            "kubectl create namespace office; {run} z -n office; kubectl create namespace shop; {run} before -n shop"
        ),
    )
    .await?;
    // 1
    page.says(cluster, "scpol explain pod/z").await?;

    world.log_agent().await?;
    // 3
    page.says(cluster, "scpol explain pod/before").await?;
    page.says(cluster, "scpol status log-agent").await?;
    let pods = ["a -n office", "log-agent -n shop", "d -n shop --annotations=scpol.dev/inject=log-shiper"];
    succeeds(cluster, &pods.map(|pod| format!("{run} {pod};")).concat()).await?;
    // The head of the page, a case of 2, and 4.
    page.says(cluster, "scpol explain pod/a ").await?;
    page.says(cluster, "scpol explain pod/d").await?;
    page.says(cluster, "scpol explain pod/log-agent").await?;
    page.says(cluster, "kubectl get events").await?;

    // 6 and 7
    succeeds(
        cluster,
        "kubectl create deployment web -n shop --image=nginx:1.27; kubectl rollout status deployment/web -n shop",
    )
    .await?;
    let web = succeeds(cluster, "kubectl get pods -n shop -l app=web -o name").await?;
    let page = page.with("pod/web-69c6f74b8b-tkssr", web.trim())?;
    page.says(cluster, "kubectl get pods --namespace shop -l app=web").await?;
    let (_, of_deployment) = bash(cluster, "scpol explain deploy/web -n shop").await?;
    ensure!(of_deployment.contains("log-agent  its pods  "), "{of_deployment}");
    let (_, of_pod) = bash(cluster, &format!("scpol explain {} -n shop", web.trim())).await?;
    ensure!(of_pod.contains("log-agent  is in it  "), "{of_pod}");
    succeeds(cluster, "kubectl create job once -n shop --image=busybox:1.36 -- true").await?;
    let once = async || {
        succeeds(cluster, "kubectl get pods -n shop -l job-name=once -o jsonpath='{.items[*].metadata.name}'").await
    };
    within(LIMIT, "the Job has a pod", || async { Ok(!once().await?.is_empty()) }).await?;
    let command = "$ kubectl get pod NAME";
    let command = page.block(command)?.replace("$ ", "").replace("NAME", &format!("-n shop {}", once().await?));
    assert_eq!(succeeds(cluster, &command).await?, "log-agent once\n");

    // The other cases of 2.
    let spec = json!({
        "annotationSelector": { "matchExpressions": [{ "key": "example.com/proxy", "operator": "Exists" }] },
        "template": { "containers": [{ "name": "proxy", "image": "busybox:1.36" }] },
    });
    world.policy("on-request", spec).await?;
    in_force(cluster, "on-request").await?;
    let mut api = crate::world::deployment("api");
    api["metadata"]["namespace"] = json!("shop");
    api["spec"]["template"]["metadata"]["annotations"] = json!({ "example.com/proxy": "yes" });
    cluster.apply_manifests(&api.to_string()).await?;
    page.says(cluster, "scpol explain deploy/api").await?;
    succeeds(cluster, "kubectl rollout status deployment/api -n shop").await?;
    let api = succeeds(cluster, "kubectl get pods -n shop -l app=api -o name").await?;
    page.with("pod/api-c578556bb-pssk2", api.trim())?.says(cluster, "scpol explain pod/api").await?;

    // 5
    world.delete_policy("log-agent").await?;
    world.delete_policy("on-request").await?;
    assert_eq!(operator.stop().await?, Some(0));
    let _operator = Operator::ready(cluster, &["--webhook-url=https://127.0.0.1:9"]).await?;
    let spec = json!({ "engine": "Webhook", "namespaces": ["other"], "template": { "containers": [{ "name": "agent", "image": "busybox:1.36" }] } });
    world.policy("by-webhook", spec).await?;
    page.says(cluster, "kubectl get scpol -o wide").await?;
    page.says(cluster, "scpol check").await?;
    let privileged = json!({ "name": "agent", "image": "busybox:1.36", "securityContext": { "privileged": true } });
    let spec = json!({ "targets": [{ "group": "", "resource": "pods" }], "template": { "containers": [privileged] } });
    world.policy("privileged", spec).await?;
    let (_, printed) = bash(cluster, "scpol explain pod/a -n office").await?;
    ensure!(printed.lines().any(|line| line.starts_with("privileged  INVALID  ")), "{printed}");
    Ok(())
}

async fn the_rollouts_page_takes_a_policy_to_a_canary_and_back() -> Result<()> {
    let world = World::empty(with_nodes()).await?;
    let cluster = &world.cluster;
    succeeds(cluster, APPLY).await?;
    let page = Page::read("docs/rollouts.md")?;
    succeeds(cluster, &page.block("kubectl apply -k config/rbac/rollout")?).await?;
    let _operator = Operator::ready(cluster, &[]).await?;
    let canary = std::fs::read_to_string(file("docs/examples/rollouts/canary.yaml"))?;
    ensure!(page.text.contains(canary.split_once("apiVersion").context("a policy")?.1), "the page has another policy");
    // As it was before: another image, and no strategy.
    let mut before: Value = serde_saphyr::from_str(&canary)?;
    before["spec"].as_object_mut().context("a spec")?.remove("updateStrategy");
    before["spec"]["template"]["containers"][0]["image"] = json!("fluent/fluent-bit:3.1");
    cluster.apply_manifests(&before.to_string()).await?;
    in_force(cluster, "log-agent").await?;
    for namespace in ["canary-a", "shop"] {
        let create = format!(
            "kubectl create namespace {namespace}; kubectl create deployment web --image=nginx:1.27 -n {namespace}"
        );
        succeeds(cluster, &create).await?;
        succeeds(cluster, &format!("kubectl rollout status deployment/web -n {namespace}")).await?;
    }
    let image = async |namespace: &str, image: &str| {
        let get = format!("kubectl get pods -n {namespace} -o jsonpath='{{.items[*].spec.containers[1].image}}'");
        within(LIMIT, &format!("pods of {namespace} have {image}"), || async {
            Ok(succeeds(cluster, &get).await? == format!("fluent/fluent-bit:{image}"))
        })
        .await
    };
    let plan = succeeds(cluster, "scpol rollout plan -f docs/examples/rollouts/canary.yaml").await?;
    ensure!(plan.contains("canary-a") && plan.contains("shop"), "{plan}");
    let apply =
        page.block("kubectl apply -f policy.yaml")?.replace("policy.yaml", "docs/examples/rollouts/canary.yaml");
    let (apply, status) = apply.split_once('\n').context("two commands")?;
    succeeds(cluster, apply).await?;
    image("canary-a", "3.2").await?;
    image("shop", "3.1").await?;
    let (_, printed) = bash(cluster, status).await?;
    ensure!(["NewRevision", "RollingOut", "Paused"].iter().any(|reason| printed.contains(reason)), "{printed}");
    succeeds(cluster, "kubectl run new -n shop --image=nginx:1.27").await?;
    let new = "kubectl get pod new -n shop -o jsonpath='{.spec.containers[1].image}'";
    assert_eq!(succeeds(cluster, new).await?, "fluent/fluent-bit:3.1");
    succeeds(cluster, &page.block("scpol rollout undo log-agent")?).await?;
    image("canary-a", "3.1").await?;
    let dry = "kubectl run later -n shop --image=nginx:1.27 --dry-run=server -o jsonpath='{.spec.containers[1].image}'";
    assert_eq!(succeeds(cluster, dry).await?, "fluent/fluent-bit:3.1");
    Ok(())
}

/// A server with controllers and everything of `install`, an operator, and the policy of Start in effect.
async fn in_use(install: &str) -> Result<(World, Operator)> {
    let world = World::empty(with_nodes()).await?;
    let install = Page::read("README.md")?.block(install)?.replace("\\\n", " ");
    let (install, _) = install.split_once('\n').context("two commands")?;
    succeeds(&world.cluster, install).await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    succeeds(&world.cluster, "kubectl create namespace shop").await?;
    world.log_agent().await?;
    Ok((world, operator))
}

/// Runs the upgrade page on what `install` installed, with the command `upgrade` of the page.
async fn upgrades(install: &str, upgrade: &str) -> Result<()> {
    let (world, _operator) = in_use(install).await?;
    let cluster = &world.cluster;
    succeeds(cluster, "kubectl run old --namespace shop --image=nginx:1.27").await?;

    let page = Page::read("docs/how-to/upgrade.md")?;
    succeeds(cluster, &page.block(upgrade)?).await?;
    succeeds(cluster, "kubectl rollout status deployment/scpol --namespace scpol-system").await?;
    in_force(cluster, "log-agent").await?;
    page.says(cluster, "scpol check").await?;

    let policy = std::fs::read_to_string(file("docs/examples/start/policy.yaml"))?;
    let edited = cluster.dir().join("policy.yaml");
    std::fs::write(&edited, policy.replace("fluent-bit:3.1", "fluent-bit:3.2"))?;
    let diff = page.text.split('`').find(|code| code.starts_with("scpol diff --new")).context("the command")?;
    let diff = diff.replace("policy.yaml", &edited.display().to_string());
    let (_, printed) = bash(cluster, &diff).await?;
    ensure!(printed.contains("changes  Pod shop/old"), "{printed}");
    succeeds(cluster, &format!("kubectl apply -f {}", edited.display())).await?;
    in_force(cluster, "log-agent").await?;
    page.says(cluster, "scpol status log-agent").await?;
    // What the page says to do.
    let row = page.text.lines().find(|line| line.starts_with("Pod shop/old  outdated")).context("the row")?;
    let (_, what_to_do) = row.split_once("-     ").context("a command")?;
    succeeds(cluster, what_to_do).await?;
    let images = "kubectl get pod old -n shop -o jsonpath='{.spec.containers[*].image}'";
    assert_eq!(succeeds(cluster, images).await?, "nginx:1.27 fluent/fluent-bit:3.2");
    Ok(())
}

/// Runs `script`, and stops the operator when the pods of the Deployment end.
async fn while_it_stops(world: &World, operator: Operator, script: &str) -> Result<String> {
    let stops = async {
        within(LIMIT, "the Deployment is deleted or scaled to zero", || async {
            let deployment = world.get("/apis/apps/v1/namespaces/scpol-system/deployments/scpol").await?;
            Ok(deployment.is_none_or(|deployment| deployment["spec"]["replicas"] == 0))
        })
        .await?;
        operator.stop().await
    };
    let (printed, code) = tokio::try_join!(succeeds(&world.cluster, script), stops)?;
    assert_eq!(code, Some(0));
    Ok(printed)
}

/// The containers of a new pod in `shop`.
async fn new_pod(world: &World) -> Result<Vec<String>> {
    let pod = json!({ "metadata": { "name": "new" }, "spec": pod_spec("busybox:1.36") });
    Ok(containers(&request(&world.admin, "POST", "/api/v1/namespaces/shop/pods?dryRun=All", &pod).await?))
}

async fn the_commands_of_the_uninstall_page_stop_and_uninstall() -> Result<()> {
    let (world, operator) = in_use(APPLY).await?;
    let cluster = &world.cluster;
    let page = Page::read("docs/how-to/stop-and-uninstall.md")?.with("scpol NAME", "scpol log-agent")?;
    // By the webhook, because its registrations go when the operator stops.
    world.edit_policy("log-agent", json!({ "engine": "Webhook", "failurePolicy": "Fail" })).await?;
    in_force(cluster, "log-agent").await?;
    let webhooks = "kubectl get mutatingwebhookconfigurations -l app.kubernetes.io/managed-by=scpol -o name";
    assert_ne!(succeeds(cluster, webhooks).await?, "");
    let stop = page.block("$ kubectl patch scpol")?.replace("$ ", "");
    while_it_stops(&world, operator, &stop).await?;
    page.says(cluster, "kubectl get mutatingwebhookconfigurations").await?;
    assert_eq!(new_pod(&world).await?, ["app"]);

    // "When the operator runs again, the policies come back into effect by themselves."
    succeeds(cluster, "kubectl scale --namespace scpol-system deployments.v1.apps scpol --replicas=2").await?;
    world.edit_policy("log-agent", json!({ "suspend": false })).await?;
    let operator = Operator::ready(cluster, &[]).await?;
    in_force(cluster, "log-agent").await?;
    assert_eq!(new_pod(&world).await?, ["app", "log-agent"]);

    let commands = page.block("$ scpol uninstall")?.replace("$ ", "");
    let (uninstall, check) = commands.split_once('\n').context("two commands")?;
    // `--yes` is the answer to the question on a terminal.
    while_it_stops(&world, operator, &format!("{uninstall} --yes")).await?;
    let left = succeeds(cluster, check).await?;
    ensure!(left.contains("sidecarpolicies.scpol.dev: is kept: with 1 policy"), "{left}");
    assert_eq!(new_pod(&world).await?, ["app"]);
    assert_eq!(world.registered().await?, [""; 0]);
    Ok(())
}

async fn what_the_uninstall_page_does_by_hand_leaves_nothing() -> Result<()> {
    let (world, operator) = in_use(APPLY).await?;
    let cluster = &world.cluster;
    let page = Page::read("docs/how-to/stop-and-uninstall.md")?;
    let (_, by_hand) = page.text.split_once("## Uninstall by hand").context("the section")?;
    let commands: Vec<&str> = by_hand.split('`').skip(1).step_by(2).map(str::trim).collect();
    let named = |beginning: &str| {
        commands.iter().find(|code| code.starts_with(beginning)).with_context(|| format!("no command {beginning}"))
    };
    succeeds(cluster, named("kubectl delete scpol")?).await?;
    let list = named("kubectl get -l")?;
    let kinds: Vec<&&str> =
        commands.iter().filter(|code| code.ends_with("configurations") || code.ends_with("policies")).collect();
    assert_eq!(kinds.len(), 5, "{kinds:?}");
    for kind in kinds.into_iter().filter(|kind| !kind.starts_with("initializer")) {
        let list = list.replace("KIND", kind);
        within(LIMIT, &list, || async { Ok(succeeds(cluster, &list).await? == "No resources found\n") }).await?;
    }
    assert_eq!(world.registered().await?, [""; 0]);
    let delete = format!("{} config/install.yaml", named("kubectl delete -f")?);
    while_it_stops(&world, operator, &delete).await?;
    let left = succeeds(cluster, "scpol uninstall --check").await?;
    assert_eq!(left, "Nothing else of sidecar-policy is in this cluster.\n");
    Ok(())
}

async fn what_helm_installed_is_uninstalled_as_the_page_says() -> Result<()> {
    let (world, operator) = in_use(HELM_INSTALL).await?;
    let cluster = &world.cluster;
    let page = Page::read("docs/how-to/stop-and-uninstall.md")?;
    // The hook of the chart is a Job, and Jobs only seem to run here: so its command comes first.
    let generated = page.text.split('`').find(|code| *code == "scpol uninstall --generated").context("the command")?;
    let operators = "kubectl scale --namespace scpol-system deployment scpol --replicas=0;";
    while_it_stops(&world, operator, &format!("{operators} {generated} --yes")).await?;
    assert_eq!(world.registered().await?, [""; 0]);
    let uninstall = page.block("$ helm uninstall")?.replace("$ ", "");
    let printed = succeeds(cluster, &uninstall).await?;
    ensure!(printed.contains("release \"scpol\" uninstalled"), "{printed}");
    let objects = "kubectl get deployments,secrets,services,serviceaccounts -n scpol-system -o name";
    assert_eq!(succeeds(cluster, objects).await?, "serviceaccount/default\n");
    assert_eq!(new_pod(&world).await?, ["app"]);
    Ok(())
}
