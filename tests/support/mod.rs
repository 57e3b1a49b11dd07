//! Shared code of tests on real servers and the benchmark: an installed operator as a separate process, with exactly
//! the shipped RBAC, and waiting for conditions.

#![allow(unreachable_pub, reason = "shared between test programs")]

use anyhow::{Context, Result, bail, ensure};
use controlplane::{Builder, ControlPlane, Feature, Snapshot, User, Version, free_port};
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

/// The waiting times of every operator that is started here, and of the webhook in this process. They are short, so
/// that tests wait less. Waits in tests derive from this table, and so fit both timings.
///
/// The documented times with `SCPOL_TEST_TIMING=documented`, for a long run and for the benchmark, which measures
/// production.
pub fn timing() -> &'static Timing {
    if is_documented() { Timing::documented() } else { Timing::short() }
}

fn is_documented() -> bool {
    env!("CARGO_CRATE_NAME") == "bench"
        || std::env::var_os("SCPOL_TEST_TIMING").is_some_and(|name| name == "documented")
}

/// The variable that makes a command use [`timing`].
pub fn timing_variable() -> (&'static str, &'static str) {
    ("SCPOL_TIMING", if is_documented() { "documented" } else { "short" })
}

/// The default lease duration in tests: the documented default, or the shortest possible one.
pub fn lease_duration() -> &'static str {
    if is_documented() { "6s" } else { "3s" }
}

/// The time limit for an expected result. It is long, because many tests share the processors.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Flags that allow the policies of the corpus, some of which have host ports or a token.
pub const TRUSTING: [&str; 2] = [
    "--pod-security=privileged",
    "--allow-in-templates=host-paths,capabilities,service-account-tokens,csi-volumes,process-namespace,scheduling,references",
];

/// The path of a file in the checkout.
pub fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The install file for a version.
pub fn bundle(version: Version) -> &'static str {
    match version {
        version if version.has(Feature::ValidatingAdmissionPolicy) => "config/install.yaml",
        version if version.has(Feature::RegistrationV1) => "config/install-older.yaml",
        _ => "config/install-legacy.yaml",
    }
}

/// The install file as users of that version apply it: docs/operations.md.
pub fn install_manifests(version: Version) -> Result<String> {
    let bundle = bundle(version);
    let text = std::fs::read_to_string(file(bundle)).with_context(|| bundle.to_owned())?;
    let is_current = version.has(Feature::DisruptionBudgetV1);
    Ok(if is_current { text } else { text.replace("apiVersion: policy/v1\n", "apiVersion: policy/v1beta1\n") })
}

/// A control plane of `builder` with everything that users install except the Deployment. The operator runs as a
/// process of the test.
pub async fn installed(builder: Builder) -> Result<ControlPlane> {
    let state = installed_state(builder.version()).await?;
    let cluster = builder.state(&state).start().await?;
    within(LIMIT, "the CRD is served", || async { Ok(policies(&cluster).list(&Default::default()).await.is_ok()) })
        .await?;
    Ok(cluster)
}

/// The content of etcd after an installation. The first caller installs, and all others start with the result.
async fn installed_state(version: Version) -> Result<Snapshot> {
    static KNOWN: Mutex<BTreeMap<Version, Snapshot>> = Mutex::const_new(BTreeMap::new());
    let mut known = KNOWN.lock().await;
    if let Some(state) = known.get(&version) {
        return Ok(state.clone());
    }
    let cluster = ControlPlane::builder(version).start().await?;
    apply_without_deployment(&cluster).await?;
    // Creators may handle workloads as users do, but have no `initialize`. Without a controller-manager the role `edit`
    // stays empty, so they get the roles that it aggregates.
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

/// Applies the install file without the Deployment.
pub async fn apply_without_deployment(cluster: &ControlPlane) -> Result<()> {
    let bundle = install_manifests(cluster.version())?;
    let without_deployment: Vec<&str> =
        bundle.split("\n---\n").filter(|document| !document.contains("\nkind: Deployment\n")).collect();
    cluster.apply_manifests(&without_deployment.join("\n---\n")).await.map(drop)
}

/// Deviations from the usual environment of an operator.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Another build of the operator.
    pub program: Option<PathBuf>,
    /// Additional environment variables.
    pub env: Vec<(&'static str, PathBuf)>,
    /// The file for its log, which is then not kept.
    pub log: Option<PathBuf>,
    /// The limit of file descriptors once it runs.
    pub descriptors: Option<u64>,
}

/// Kills the process `$1` when our end of its stdin closes, which the kernel also does if we are killed.
const WATCHDOG: &str = r#"read -r _; kill -9 "$1""#;

/// The operator as a separate process. It is killed when this is dropped or this process dies. If the test fails, its
/// log is shown.
pub struct Operator {
    process: Child,
    watchdog: Child,
    log: PathBuf,
    /// Whether the log is shown on drop.
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
        Self::start_in(cluster, &cluster.kubeconfig(user), flags, &Surroundings::default())
    }

    /// Starts the operator with its own kubeconfig, in unusual surroundings.
    pub fn start_in(
        cluster: &ControlPlane,
        kubeconfig: &Path,
        flags: &[&str],
        surroundings: &Surroundings,
    ) -> Result<Self> {
        let (port, webhook) = (free_port(), free_port());
        let log = cluster.dir().join(format!("operator-{port}.log"));
        let output = File::create(surroundings.log.as_ref().unwrap_or(&log))?;
        // The test may be for another build.
        let given = surroundings.program.clone().map(PathBuf::into_os_string);
        let program = given.or_else(|| std::env::var_os("SCPOL_BINARY"));
        let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_scpol").into());
        let process = Command::new(program)
            .arg("run")
            // As a variable, so that a flag of the test overrides it.
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

    /// Waits until `/readyz` reports ready.
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

    /// The address of `/metrics`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The status and body of a page of the operator.
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

    /// The value of a metric, with its labels in `series`; 0 if missing.
    pub async fn metric(&self, series: &str) -> Result<f64> {
        let (_, text) = self.get("/metrics").await?;
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Ok(line.map(str::parse).transpose()?.unwrap_or_default())
    }

    /// The operator's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends the signal `name`.
    pub fn signal(&self, name: &str) -> Result<()> {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status()?;
        ensure!(status.success(), "kill -{name} failed");
        Ok(())
    }

    /// Waits until the process has ended, and returns its exit code.
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

    /// Stops the operator properly.
    pub async fn stop(mut self) -> Result<Option<i32>> {
        self.signal("TERM")?;
        self.ended().await
    }

    /// Kills the operator.
    pub async fn kill(mut self) -> Result<()> {
        self.process.kill()?;
        self.ended().await.map(drop)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // They may have ended already. The watchdog ends first, because the pid may soon belong to another process.
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
    /// Notes that are printed if the test of this thread fails.
    static NOTES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Locks `mutex`, also after a panic of another thread.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Records `text` for a failure of the test of this thread.
pub fn note(text: String) {
    NOTES.with_borrow_mut(|notes| notes.push(text));
}

/// The notes of this thread since the last call.
pub fn take_notes() -> String {
    NOTES.take().join("\n")
}

/// The pause before a condition that has not come true for `waited` is looked at again. Each look takes processor time from
/// the server and from other tests.
fn pause(waited: Duration) -> Duration {
    (waited / 10).clamp(Duration::from_millis(20), Duration::from_millis(200))
}

/// Waits until `holds` is true.
pub async fn within<F: Future<Output = Result<bool>>>(
    limit: Duration,
    what: &str,
    mut holds: impl FnMut() -> F,
) -> Result<()> {
    let begin = Instant::now();
    let deadline = begin + limit;
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
        tokio::time::sleep(pause(begin.elapsed())).await;
    }
}

/// SidecarPolicies, untyped.
pub fn policies(cluster: &ControlPlane) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("scpol.dev", "v1alpha1", "SidecarPolicy");
    Api::all_with(cluster.same_admin(), &ApiResource::from_gvk_with_plural(&gvk, "sidecarpolicies"))
}

/// The condition of type `type_` of a policy.
pub async fn condition(cluster: &ControlPlane, policy: &str, type_: &str) -> Result<Option<Value>> {
    let Some(policy) = policies(cluster).get_opt(policy).await? else { return Ok(None) };
    let conditions = policy.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    Ok(conditions.into_iter().find(|condition| condition["type"] == type_))
}

/// Waits until a condition of a policy has that status and reason.
pub async fn wait_condition(
    cluster: &ControlPlane,
    policy: &str,
    type_: &str,
    status: &str,
    reason: &str,
) -> Result<Value> {
    let begin = Instant::now();
    loop {
        let seen = condition(cluster, policy, type_).await?;
        if let Some(condition) =
            seen.as_ref().filter(|condition| condition["status"] == status && condition["reason"] == reason)
        {
            return Ok(condition.clone());
        }
        ensure!(begin.elapsed() < LIMIT, "{type_} of `{policy}` is not {status}/{reason} but {seen:?}");
        tokio::time::sleep(pause(begin.elapsed())).await;
    }
}

/// Waits until the last edit of a policy is in effect.
pub async fn in_force(cluster: &ControlPlane, policy: &str) -> Result<()> {
    within(LIMIT, &format!("`{policy}` is in effect"), || async {
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
