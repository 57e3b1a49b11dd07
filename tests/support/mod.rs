//! What tests on real servers and the benchmark share: an installed operator as a process of its own, with the shipped RBAC
//! and nothing more, and waiting for conditions.

#![allow(unreachable_pub, reason = "shared between test programs")]

use anyhow::{Context, Result, bail, ensure};
use controlplane::{Builder, ControlPlane, Snapshot, User, Version, free_port};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, api::DynamicObject};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};
use sidecar_policy::timing::Timing;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// The waiting times of every operator that is started here, and of the webhook in this process: short ones, so that tests wait
/// less. Waits that have a reason in them are told by this, and so hold for both.
///
/// Documented ones with `SCPOL_TEST_TIMING=documented`, for a long run; and for the benchmark, which measures production.
pub fn timing() -> &'static Timing {
    if is_documented() { Timing::documented() } else { Timing::short() }
}

fn is_documented() -> bool {
    env!("CARGO_CRATE_NAME") == "bench"
        || std::env::var_os("SCPOL_TEST_TIMING").is_some_and(|name| name == "documented")
}

/// The variable by which a command uses [`timing`].
pub fn timing_variable() -> (&'static str, &'static str) {
    ("SCPOL_TIMING", if is_documented() { "documented" } else { "short" })
}

/// How long the leader of a test is respected unless a flag says otherwise: the default, or the shortest that there is.
pub fn lease_duration() -> &'static str {
    if is_documented() { "6s" } else { "3s" }
}

/// How long a test waits for what must come: long, because many tests share the processors.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The flags of an operator that trusts the policies of the corpus: some have host ports, or a token.
pub const TRUSTING: [&str; 2] =
    ["--pod-security=privileged", "--allow-in-templates=host-paths,capabilities,service-account-tokens"];

/// A file of the checkout.
pub fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The install file for a version.
pub fn bundle(version: Version) -> &'static str {
    match version {
        Version::V1_13 => "config/install-legacy.yaml",
        _ => "config/install.yaml",
    }
}

/// A control plane as `builder` says, with what users install but for the Deployment: the operator runs as a process of the test.
pub async fn installed(builder: Builder) -> Result<ControlPlane> {
    let state = installed_state(builder.version()).await?;
    let cluster = builder.state(&state).start().await?;
    within(LIMIT, "the CRD is served", || async { Ok(policies(&cluster).list(&Default::default()).await.is_ok()) })
        .await?;
    Ok(cluster)
}

/// What etcd holds after an installation: the first that asks for it installs, all others begin with it.
async fn installed_state(version: Version) -> Result<Snapshot> {
    static KNOWN: Mutex<BTreeMap<Version, Snapshot>> = Mutex::const_new(BTreeMap::new());
    let mut known = KNOWN.lock().await;
    if let Some(state) = known.get(&version) {
        return Ok(state.clone());
    }
    let cluster = ControlPlane::builder(version).start().await?;
    apply_without_deployment(&cluster).await?;
    // Creators may do what users do with workloads, and no more: no `initialize`.
    // Without a controller-manager `edit` itself stays empty: these are what it is made of.
    let binding = |role: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": role.replace(':', "-") },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": User::Creator.name() }],
        })
    };
    let bindings = ["system:aggregate-to-edit", "system:aggregate-to-view"].map(binding);
    cluster.apply_manifests(&json!({ "apiVersion": "v1", "kind": "List", "items": bindings }).to_string()).await?;
    within(LIMIT, "the CRD is served", || async { Ok(policies(&cluster).list(&Default::default()).await.is_ok()) })
        .await?;
    let state = cluster.snapshot().await?;
    known.insert(version, state.clone());
    Ok(state)
}

/// Applies the install file, but for the Deployment.
pub async fn apply_without_deployment(cluster: &ControlPlane) -> Result<()> {
    let bundle = bundle(cluster.version());
    let bundle = std::fs::read_to_string(file(bundle)).with_context(|| bundle.to_owned())?;
    let without_deployment: Vec<&str> =
        bundle.split("\n---\n").filter(|document| !document.contains("\nkind: Deployment\n")).collect();
    cluster.apply_manifests(&without_deployment.join("\n---\n")).await.map(drop)
}

/// What is unlike usual around an operator.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Another build of it.
    pub program: Option<PathBuf>,
    /// More variables.
    pub env: Vec<(&'static str, PathBuf)>,
    /// Takes its log, which is not kept then.
    pub log: Option<PathBuf>,
    /// How many file descriptors it may have, once it runs.
    pub descriptors: Option<u64>,
}

/// Kills the process `$1` when our end of its stdin closes, which the kernel does if we are killed.
const WATCHDOG: &str = r#"read -r _; kill -9 "$1""#;

/// The operator as a process of its own; killed when dropped or when we are, and its log shown if the test fails.
pub struct Operator {
    process: Child,
    watchdog: Child,
    log: PathBuf,
    /// Shown when it is dropped.
    pub is_log_shown: bool,
    port: u16,
}

impl Operator {
    /// Starts the operator with `flags`, as the ServiceAccount of the install file.
    pub fn start(cluster: &ControlPlane, flags: &[&str]) -> Result<Self> {
        Self::start_as(cluster, User::Operator, flags)
    }

    /// Starts the operator as `user`.
    pub fn start_as(cluster: &ControlPlane, user: User, flags: &[&str]) -> Result<Self> {
        Self::start_with(cluster, &cluster.kubeconfig(user), flags)
    }

    /// Starts the operator with a kubeconfig of its own.
    pub fn start_with(cluster: &ControlPlane, kubeconfig: &Path, flags: &[&str]) -> Result<Self> {
        Self::start_in(cluster, kubeconfig, flags, &Surroundings::default())
    }

    /// Starts the operator in surroundings that are unlike usual.
    pub fn start_in(
        cluster: &ControlPlane,
        kubeconfig: &Path,
        flags: &[&str],
        surroundings: &Surroundings,
    ) -> Result<Self> {
        let (port, webhook) = (free_port(), free_port());
        let log = cluster.dir().join(format!("operator-{port}.log"));
        let output = File::create(surroundings.log.as_ref().unwrap_or(&log))?;
        // Another build of it may be put to the test.
        let given = surroundings.program.clone().map(PathBuf::into_os_string);
        let program = given.or_else(|| std::env::var_os("SCPOL_BINARY"));
        let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_scpol").into());
        let process = Command::new(program)
            .arg("run")
            // By variable, so that a flag of the test overrides it.
            .env("SCPOL_LOG_LEVEL", "debug,hyper=info,kube=info,tower=info,rustls=info,h2=info")
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .envs([timing_variable()])
            .env("SCPOL_LEASE_DURATION", lease_duration())
            .env("SCPOL_WEBHOOK_LISTEN", format!("127.0.0.1:{webhook}"))
            .env("SCPOL_WEBHOOK_URL", format!("https://127.0.0.1:{webhook}"))
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(flags)
            .envs(surroundings.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()?;
        let watchdog = Command::new("/bin/sh")
            .args(["-c", WATCHDOG, "watchdog", &process.id().to_string()])
            .process_group(0) // Ctrl-C is for us and for the operator
            .stdin(Stdio::piped())
            .spawn()?;
        let started = Self { process, watchdog, log, is_log_shown: true, port };
        if let Some(most) = surroundings.descriptors {
            let pid = i32::try_from(started.pid()).ok().and_then(Pid::from_raw);
            prlimit(pid, Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) })?;
        }
        Ok(started)
    }

    /// Starts the operator and waits until it is ready.
    pub async fn ready(cluster: &ControlPlane, flags: &[&str]) -> Result<Self> {
        let mut operator = Self::start(cluster, flags)?;
        operator.wait_ready().await?;
        Ok(operator)
    }

    /// Waits until `/readyz` says so.
    pub async fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.process.try_wait()? {
                bail!("the operator ended with {status}:\n{}", self.log());
            }
            if self.get("/readyz").await.is_ok_and(|(status, _)| status == 200) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the operator is not ready:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The status and body of a page that it serves.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status line")?;
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
        Ok((status, body))
    }

    /// The value of a metric, its labels included in `series`; 0 if it is not there.
    pub async fn metric(&self, series: &str) -> Result<f64> {
        let (_, text) = self.get("/metrics").await?;
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Ok(line.map(str::parse).transpose()?.unwrap_or_default())
    }

    /// Everything that it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal, by name.
    pub fn signal(&self, name: &str) -> Result<()> {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status()?;
        ensure!(status.success(), "kill -{name} failed");
        Ok(())
    }

    /// Waits until it has ended, and gives its exit code.
    pub async fn ended(&mut self) -> Result<Option<i32>> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status.code());
            }
            ensure!(Instant::now() < deadline, "the operator does not end:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops it in good order.
    pub async fn stop(mut self) -> Result<Option<i32>> {
        self.signal("TERM")?;
        self.ended().await
    }

    /// Kills it.
    pub async fn kill(mut self) -> Result<()> {
        self.process.kill()?;
        self.ended().await.map(drop)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // They may have ended already. The watchdog first: soon that number may be another process.
        for child in [&mut self.watchdog, &mut self.process] {
            let _ = child.kill();
            let _ = child.wait();
        }
        if self.is_log_shown {
            note(format!("--- log of the operator ---\n{}", self.log()));
        }
    }
}

thread_local! {
    /// What is told of the test of this thread if it fails.
    static NOTES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps `text` for the case that the test of this thread fails.
pub fn note(text: String) {
    NOTES.with_borrow_mut(|notes| notes.push(text));
}

/// What was noted on this thread since this was last asked.
pub fn take_notes() -> String {
    NOTES.take().join("\n")
}

/// Waits until `holds`.
pub async fn within<F: Future<Output = Result<bool>>>(
    limit: Duration,
    what: &str,
    mut holds: impl FnMut() -> F,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    let mut last = None;
    loop {
        match holds().await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => last = Some(error),
        }
        if Instant::now() >= deadline {
            match last {
                Some(error) => return Err(error.context(format!("did not come true in {limit:?}: {what}"))),
                None => bail!("did not come true in {limit:?}: {what}"),
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// SidecarPolicies, untyped.
pub fn policies(cluster: &ControlPlane) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("scpol.dev", "v1alpha1", "SidecarPolicy");
    Api::all_with(cluster.admin(), &ApiResource::from_gvk_with_plural(&gvk, "sidecarpolicies"))
}

/// The condition of that type on a policy.
pub async fn condition(cluster: &ControlPlane, policy: &str, type_: &str) -> Result<Option<Value>> {
    let Some(policy) = policies(cluster).get_opt(policy).await? else { return Ok(None) };
    let conditions = policy.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    Ok(conditions.into_iter().find(|condition| condition["type"] == type_))
}

/// Waits until the condition of a policy has that status and reason.
pub async fn wait_condition(
    cluster: &ControlPlane,
    policy: &str,
    type_: &str,
    status: &str,
    reason: &str,
) -> Result<Value> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let seen = condition(cluster, policy, type_).await?;
        if let Some(condition) =
            seen.as_ref().filter(|condition| condition["status"] == status && condition["reason"] == reason)
        {
            return Ok(condition.clone());
        }
        ensure!(Instant::now() < deadline, "{type_} of `{policy}` is not {status}/{reason} but {seen:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until a policy is in force, as it was last edited.
pub async fn in_force(cluster: &ControlPlane, policy: &str) -> Result<()> {
    within(LIMIT, &format!("`{policy}` is in force"), || async {
        let stored = policies(cluster).get(policy).await?;
        let conditions = stored.data["status"]["conditions"].as_array().into_iter().flatten();
        let programmed = conditions.into_iter().find(|condition| condition["type"] == "Programmed");
        let is_current = |condition: &Value| {
            condition["reason"] == "Programmed"
                && condition["observedGeneration"].as_i64() == stored.metadata.generation
        };
        ensure!(programmed.is_some_and(is_current), "Programmed is {programmed:?}");
        Ok(true)
    })
    .await
}
