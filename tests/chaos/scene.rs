//! A scene: a server, the proxy in front of it, an operator that restarts after each kill, and the final judgement by
//! the oracle.

use crate::chaos::proxy::Proxy;
pub(crate) use crate::engine::EngineName as Engine;
use crate::prelude::*;
use controlplane::{ApiServer, free_port};
use futures::StreamExt;
use jiff::Timestamp;
use oracle::{Digest, Finding, Oracle, Rest, Site, State};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};

/// The time limit for the recovery after the last fault.
pub(crate) const RECOVERY: Duration = Duration::from_secs(30);
/// A minute less a second, because operators count evictions by whole seconds.
const MINUTE: Duration = Duration::from_secs(59);
/// The duration of the lease.
const LEASE: &str = "3s";
/// The number of concurrent creates.
const CREATORS: usize = 8;

/// The server on which the stories of `engine` happen.
fn version(engine: Engine) -> Version {
    match engine {
        Engine::Initializer => Version::V1_13,
        Engine::Webhook | Engine::MutatingAdmissionPolicy => Version::NEWEST,
    }
}

/// A scene.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) proxy: Proxy,
    pub(crate) engine: Engine,
    pub(crate) seed: u64,
    operator: Mutex<Option<Operator>>,
    surroundings: Mutex<Surroundings>,
    webhook: u16,
    /// The offset in the audit log at which the judged part begins.
    begun: AtomicUsize,
    /// What was stored then, if anybody has looked.
    known: Mutex<Option<State>>,
    /// The operator's resync interval in seconds. By default it is so long that it affects no story.
    resync: AtomicUsize,
    /// The number of Deployments that [`Self::works`] has created.
    tried: AtomicUsize,
}

impl Scene {
    /// A new server with everything installed, without a running operator.
    pub(crate) async fn new(engine: Engine, seed: u64, nodes: usize) -> Result<Self> {
        let policy = concat!("--audit-policy-file=", env!("CARGO_MANIFEST_DIR"), "/tests/oracle/audit-policy.yaml");
        // One file, for stories of any length.
        let size = "--audit-log-maxsize=10000";
        let builder = ControlPlane::builder(version(engine)).nodes(nodes).audit_log().extra_arg(policy).extra_arg(size);
        let world = World::with(builder).await?;
        let proxy = Proxy::start(&world.cluster, seed).await?;
        let webhook = free_port();
        Ok(Self {
            world,
            proxy,
            engine,
            seed,
            operator: Mutex::new(None),
            surroundings: Mutex::default(),
            webhook,
            begun: AtomicUsize::new(0),
            known: Mutex::default(),
            resync: AtomicUsize::new(900),
            tried: AtomicUsize::new(0),
        })
    }

    /// Sets the resync interval of operators that start from now on.
    pub(crate) fn resync_after(&self, seconds: usize) {
        self.resync.store(seconds, Ordering::Relaxed);
    }

    /// Sets the surroundings of the operator from its next start on.
    pub(crate) fn surround(&self, surroundings: Surroundings) {
        *lock(&self.surroundings) = surroundings;
    }

    /// An operator with the name `replica` that connects through the proxy.
    pub(crate) fn replica(&self, replica: &str, webhook: u16) -> Result<Operator> {
        self.replica_in(replica, webhook, &Surroundings::default())
    }

    /// The same, with its own surroundings.
    pub(crate) fn replica_in(&self, replica: &str, webhook: u16, surroundings: &Surroundings) -> Result<Operator> {
        self.replica_behind(&self.proxy, replica, webhook, surroundings)
    }

    /// An operator beside the one of this scene, with the same surroundings, and its own `proxy`.
    pub(crate) fn second_replica(&self, proxy: &Proxy) -> Result<Operator> {
        let surroundings = lock(&self.surroundings).clone();
        self.replica_behind(proxy, "scpol-1", free_port(), &surroundings)
    }

    fn replica_behind(
        &self,
        proxy: &Proxy,
        replica: &str,
        webhook: u16,
        surroundings: &Surroundings,
    ) -> Result<Operator> {
        let (listen, url) = (format!("127.0.0.1:{webhook}"), format!("https://127.0.0.1:{webhook}"));
        let resync = format!("{}s", self.resync.load(Ordering::Relaxed));
        let mut flags = vec![
            "--resync",
            &resync,
            "--pod-name",
            replica,
            "--lease-duration",
            LEASE,
            "--log-level",
            "info,sidecar_policy=debug,kube_client=off",
        ];
        flags.extend(["--webhook-listen", &listen, "--webhook-url", &url]);
        let mut operator = Operator::start_in(&self.world.cluster, &proxy.kubeconfig, &flags, surroundings)?;
        operator.is_log_shown = false;
        Ok(operator)
    }

    /// Starts the operator, or restarts it after a kill. Like a container of one pod it keeps its name and address.
    pub(crate) fn start(&self) -> Result<u32> {
        let mut operator = lock(&self.operator);
        // The dead process is dropped first, to free its port.
        drop(operator.take());
        let surroundings = lock(&self.surroundings).clone();
        let started = self.replica_in("scpol-0", self.webhook, &surroundings)?;
        let pid = started.pid();
        *operator = Some(started);
        Ok(pid)
    }

    /// Starts the operator and waits until it is ready.
    pub(crate) async fn ready(&self) -> Result<()> {
        self.start()?;
        self.is_ready().await
    }

    /// Lends the operator to `asks`.
    async fn lent<T>(&self, asks: impl AsyncFnOnce(&mut Operator) -> Result<T>) -> Result<T> {
        let mut operator = lock(&self.operator).take().context("not started")?;
        let answer = asks(&mut operator).await;
        *lock(&self.operator) = Some(operator);
        answer
    }

    /// A metric of the operator.
    pub(crate) async fn metric(&self, series: &str) -> Result<f64> {
        self.lent(async |operator| operator.metric(series).await).await
    }

    /// The HTTP status of a page of the operator.
    pub(crate) async fn page(&self, path: &str) -> Result<u16> {
        Ok(self.lent(async |operator| operator.get(path).await).await?.0)
    }

    /// The process id of the operator.
    pub(crate) fn pid(&self) -> Result<u32> {
        Ok(lock(&self.operator).as_ref().context("not started")?.pid())
    }

    /// Stops the operator properly, and returns its exit code.
    pub(crate) async fn stop(&self) -> Result<Option<i32>> {
        let operator = lock(&self.operator).take().context("not started")?;
        operator.stop().await
    }

    /// Waits until the operator is ready.
    pub(crate) async fn is_ready(&self) -> Result<()> {
        self.lent(async |operator| operator.wait_ready().await).await
    }

    /// Sends the operator a signal.
    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        lock(&self.operator).as_ref().context("not started")?.signal(name)
    }

    /// Kills the operator and waits for its end.
    pub(crate) fn kill(&self) {
        drop(lock(&self.operator).take());
    }

    /// The operator's log since its last start.
    pub(crate) fn log(&self) -> String {
        lock(&self.operator).as_ref().map(Operator::log).unwrap_or_default()
    }

    /// Runs `story`, and restarts the operator after a kill by the proxy.
    pub(crate) async fn supervised<T>(&self, story: impl Future<Output = Result<T>>) -> Result<T> {
        let restart = async {
            self.proxy.stopped().await;
            self.start()?;
            // The proxy kills only once.
            std::future::pending::<Result<T>>().await
        };
        tokio::select! {
            told = story => told,
            failed = restart => failed,
        }
    }

    /// Creates a policy for this scene's engine.
    pub(crate) async fn policy(&self, name: &str, mut spec: Value) -> Result<()> {
        spec["engine"] = json!(self.engine.name());
        self.world.policy(name, spec).await
    }

    /// Waits until a policy is in effect.
    pub(crate) async fn in_force(&self, name: &str) -> Result<()> {
        in_force(&self.world.cluster, name).await
    }

    /// Creates Deployments as a user does, several at once, and waits for the answers. Failures and existing objects
    /// are returned, not errors, because only the end result counts.
    pub(crate) async fn create(&self, deployments: Vec<Value>) -> Vec<String> {
        self.create_at_once(deployments, CREATORS).await
    }

    /// The same, with `at_once` concurrent creates.
    pub(crate) async fn create_at_once(&self, deployments: Vec<Value>, at_once: usize) -> Vec<String> {
        let creates = deployments.into_iter().map(|body| async move {
            let created = request(&self.world.creator, "POST", DEPLOYMENTS, &body).await;
            created.err().map(|error| format!("{}: {error}", body["metadata"]["name"]))
        });
        let errors: Vec<Option<String>> = futures::stream::iter(creates).buffer_unordered(at_once).collect().await;
        errors.into_iter().flatten().collect()
    }

    /// Creates Deployments as a user who retries until they exist.
    pub(crate) async fn create_stubbornly(&self, deployments: Vec<Value>) -> Result<()> {
        let deadline = Instant::now() + 2 * RECOVERY;
        let create = |body: Value| async move {
            loop {
                match request(&self.world.creator, "POST", DEPLOYMENTS, &body).await {
                    Ok(_) => return Ok(()),
                    Err(kube::Error::Api(status)) if status.code == 409 => return Ok(()),
                    Err(error) => {
                        ensure!(Instant::now() < deadline, "{} cannot be created: {error}", body["metadata"]["name"]);
                        tokio::time::sleep(Duration::from_millis(300)).await;
                    }
                }
            }
        };
        let created: Vec<Result<()>> =
            futures::stream::iter(deployments.into_iter().map(create)).buffer_unordered(CREATORS).collect().await;
        created.into_iter().collect()
    }

    /// Checks that the stored Deployment `name` has these containers.
    pub(crate) async fn has(&self, name: &str, wanted: &[&str]) -> Result<()> {
        let object = self.world.get(&path(name)).await?.with_context(|| format!("{name} is gone"))?;
        ensure!(containers(&object) == wanted, "{name} has {:?}, not {wanted:?}", containers(&object));
        Ok(())
    }

    /// All Deployments, including waiting ones.
    pub(crate) async fn deployments(&self) -> Result<Vec<Value>> {
        let all = format!("{DEPLOYMENTS}?includeUninitialized=1");
        self.world.list(&all).await
    }

    /// Checks that each Deployment is stored, with the sidecar unless it has opted out.
    pub(crate) async fn all_have(&self, deployments: &[Value]) -> Result<()> {
        let stored = self.deployments().await?;
        let by_name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let stored: HashMap<String, Vec<String>> =
            stored.iter().map(|object| (by_name(object), containers(object))).collect();
        for body in deployments {
            let is_out = body["metadata"]["annotations"]["scpol.dev/inject"] == "false";
            let wanted: &[&str] = if is_out { &["app"] } else { &["app", "envoy"] };
            let name = by_name(body);
            let found = stored.get(&name).with_context(|| format!("{name} is gone"))?;
            ensure!(found == wanted, "{name} has {found:?}, not {wanted:?}");
        }
        Ok(())
    }

    /// Checks that each Deployment is stored, with the whole sidecar or nothing of it.
    pub(crate) async fn all_are_whole(&self, deployments: &[Value]) -> Result<()> {
        let stored = self.deployments().await?;
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let stored: HashMap<String, &Value> = stored.iter().map(|object| (name(object), object)).collect();
        for body in deployments {
            let name = name(body);
            let object = stored.get(&name).with_context(|| format!("{name} is gone"))?;
            let parts = parts_of_envoy(object);
            ensure!(parts.iter().all(|part| *part == parts[0]), "{name} has a half of the sidecar: {object}");
        }
        Ok(())
    }

    /// Waits until the status of `envoy` counts exactly the workloads without a sidecar as missed.
    pub(crate) async fn missed_are_told(&self) -> Result<()> {
        within(RECOVERY, "what has no sidecar is counted as missed", || async {
            let all = "/apis/apps/v1/deployments?includeUninitialized=1";
            let list = request(&self.world.admin, "GET", all, &Value::Null).await?;
            let is_missed = |object: &&Value| {
                let is_out = object["metadata"]["annotations"]["scpol.dev/inject"] == "false";
                let is_leaving = object["metadata"]["deletionTimestamp"].is_string();
                !is_out && !is_leaving && !containers(object).iter().any(|name| name == "envoy")
            };
            let missed = list["items"].as_array().into_iter().flatten().filter(is_missed).count();
            let status = &policies(&self.world.cluster).get("envoy").await?.data["status"];
            ensure!(status["missed"] == missed, "{missed} have no sidecar, and the status says {}", status["missed"]);
            Ok(true)
        })
        .await
    }

    /// Waits until the status of `policy` shows `count` failures.
    pub(crate) async fn failures_are(&self, policy: &str, count: usize) -> Result<()> {
        within(RECOVERY, &format!("{policy} shows {count} failures"), || async {
            let shown = policies(&self.world.cluster).get(policy).await?.data["status"]["failures"].clone();
            ensure!(shown.as_array().map_or(0, Vec::len) == count, "they are {shown}");
            Ok(true)
        })
        .await
    }

    /// Waits until a new Deployment gets the sidecar of `envoy`.
    pub(crate) async fn works(&self) -> Result<()> {
        within(RECOVERY, "new Deployments get the sidecar", || async {
            let new = deployment(&format!("again-{}", self.tried.fetch_add(1, Ordering::Relaxed)));
            let created = request(&self.world.creator, "POST", DEPLOYMENTS, &new).await?;
            ensure!(containers(&created) == ["app", "envoy"], "it has {:?}", containers(&created));
            Ok(true)
        })
        .await
    }

    /// Waits until there is no registration, and new Deployments get no entry of ours.
    pub(crate) async fn unregistered(&self) -> Result<()> {
        within(RECOVERY, "nothing is registered", || async { Ok(self.world.registered().await?.is_empty()) }).await?;
        // The server forgets the registration a moment later.
        within(RECOVERY, "new Deployments get nothing of ours", || async {
            let path = format!("{DEPLOYMENTS}?dryRun=All&includeUninitialized=1");
            let tried = request(&self.world.admin, "POST", &path, &deployment("tried")).await?;
            Ok(pending(&tried).is_empty() && containers(&tried) == ["app"])
        })
        .await
    }

    /// All stored objects of interest.
    pub(crate) async fn state(&self) -> Result<State> {
        let admission = "/apis/admissionregistration.k8s.io";
        let mut lists = vec![("Deployment", "apps/v1", "/apis/apps/v1/deployments".to_owned())];
        lists.push(("Pod", "v1", "/api/v1/pods".into()));
        lists.push(("Namespace", "v1", "/api/v1/namespaces".into()));
        lists.push(("SidecarPolicy", "scpol.dev/v1alpha1", "/apis/scpol.dev/v1alpha1/sidecarpolicies".into()));
        let registrations: &[(&str, &str, &str)] = if version(self.engine).has_initializers() {
            &[("InitializerConfiguration", "v1alpha1", "initializerconfigurations")]
        } else {
            &[
                ("MutatingWebhookConfiguration", "v1", "mutatingwebhookconfigurations"),
                ("MutatingAdmissionPolicy", "v1", "mutatingadmissionpolicies"),
                ("MutatingAdmissionPolicyBinding", "v1", "mutatingadmissionpolicybindings"),
            ]
        };
        for (kind, version, resource) in registrations {
            lists.push((kind, "admissionregistration.k8s.io", format!("{admission}/{version}/{resource}")));
        }
        let mut objects = Vec::new();
        for (kind, version, path) in lists {
            let list =
                request(&self.world.admin, "GET", &format!("{path}?includeUninitialized=1"), &Value::Null).await?;
            for mut object in list["items"].as_array().cloned().unwrap_or_default() {
                (object["kind"], object["apiVersion"]) = (json!(kind), json!(version));
                objects.push(object);
            }
        }
        let listed = registrations.iter().map(|(kind, ..)| (*kind).to_owned());
        Ok(State::new(Value::Array(objects))?.with_listed(listed))
    }

    fn site() -> Site {
        // The address and the authority of the webhook differ in each run.
        Site { masked: vec!["caBundle".into(), "url".into()], ..Site::default() }
    }

    /// Waits until all is well, and then asks the oracle about everything since [`Self::begin`].
    pub(crate) async fn judge(&self) -> Result<Digest> {
        self.judge_against(&[]).await
    }

    /// Asks the oracle about the writes since [`Self::begin`], which must be right at any time.
    pub(crate) fn judge_writes(&self) -> Result<Oracle> {
        let mut oracle = Oracle::new(Self::site());
        if let Some(known) = &*lock(&self.known) {
            oracle.begin(known);
        }
        oracle.read(&self.audit()?[self.begun.load(Ordering::Relaxed)..])?;
        let done_wrong = oracle.findings(None);
        ensure!(done_wrong.is_empty(), "the oracle finds:{}", told(&done_wrong));
        Ok(oracle)
    }

    /// Judges as [`Self::judge`], and also compares the result with other runs.
    pub(crate) async fn judge_against(&self, others: &[Digest]) -> Result<Digest> {
        let deadline = Instant::now() + RECOVERY;
        loop {
            // With ten thousand workloads, a look takes longer than the recovery.
            let looked = Instant::now();
            let state = self.state().await?;
            let oracle = self.judge_writes()?;
            let digest = oracle.digest(&state);
            let mut findings = oracle.findings(Some(&state));
            findings.extend(digest.compare(others));
            if findings.is_empty() && self.is_written().await? {
                ensure!(oracle.writes() > 0, "the audit log has no write of the operator's");
                ensure!(!self.has_panicked()?, "the operator panicked");
                return Ok(digest);
            }
            ensure!(looked < deadline, "{RECOVERY:?} after the fault, the oracle finds:{}", told(&findings));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The most evictions within a minute.
    pub(crate) fn most_evictions_in_a_minute(&self) -> Result<usize> {
        let audit = self.audit()?;
        let is_it =
            |event: &Value| event["objectRef"]["subresource"] == "eviction" && event["responseStatus"]["code"] == 201;
        let at = |event: Value| event["requestReceivedTimestamp"].as_str()?.parse::<Timestamp>().ok();
        let events = audit.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
        let times: Vec<Timestamp> = events.filter(is_it).filter_map(at).collect();
        let within = |first: &Timestamp| {
            let minute = *first..*first + MINUTE;
            times.iter().filter(|time| minute.contains(time)).count()
        };
        Ok(times.iter().map(within).max().unwrap_or_default())
    }

    /// The number of the operator's writes of `resource` that the server answered with one of these codes.
    pub(crate) fn answered(&self, resource: &str, codes: &[i64]) -> Result<usize> {
        let audit = self.audit()?;
        let events = audit.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
        let is_it = |event: &Value| {
            event["user"]["username"] == User::Operator.name()
                && event["objectRef"]["resource"] == resource
                && event["responseStatus"]["code"].as_i64().is_some_and(|code| codes.contains(&code))
        };
        Ok(events.filter(is_it).count())
    }

    /// Whether any operator of this scene has panicked.
    fn has_panicked(&self) -> Result<bool> {
        for file in std::fs::read_dir(self.world.cluster.dir())? {
            let path = file?.path();
            let is_log = path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("operator-"));
            if is_log && std::fs::read_to_string(&path)?.contains("panicked at") {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits for `time`, during which the operator must write nothing.
    pub(crate) async fn judge_rest(&self, time: Duration) -> Result<()> {
        self.begin()?;
        let from = Timestamp::now();
        tokio::time::sleep(time).await;
        let mut oracle = Oracle::new(Site { rest: Some(Rest { from, to: Timestamp::now() }), ..Self::site() });
        oracle.read(&self.audit()?[self.begun.load(Ordering::Relaxed)..])?;
        let findings = oracle.findings(Some(&self.state().await?));
        ensure!(findings.is_empty(), "the oracle finds:{}", told(&findings));
        ensure!(oracle.writes() > 0, "not even the lease was renewed: this proves nothing");
        Ok(())
    }

    /// Whether the audit log has stopped growing. It is written after the answers.
    async fn is_written(&self) -> Result<bool> {
        let before = self.audit()?.len();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let is_ours = |line: &str| line.contains(User::Operator.name()) && !line.contains("\"leases\"");
        let audit = self.audit()?;
        Ok(!String::from_utf8_lossy(&audit[before..]).lines().any(is_ours))
    }

    fn audit(&self) -> Result<Vec<u8>> {
        let dir = self.world.cluster.dir();
        let mut audit = std::fs::read(dir.join("audit.log"))?;
        // The logs of two API servers are merged by time.
        let Ok(second) = std::fs::read_to_string(dir.join(ApiServer::AUDIT_LOG)) else { return Ok(audit) };
        let mut lines: Vec<String> = String::from_utf8(audit)?.lines().map(str::to_owned).collect();
        lines.extend(second.lines().map(str::to_owned));
        // The last line of each may be incomplete.
        lines.retain(|line| line.ends_with('}'));
        lines.sort_by_cached_key(|line| {
            let event: Value = serde_json::from_str(line).unwrap_or_default();
            event["stageTimestamp"].as_str().unwrap_or_default().to_owned()
        });
        audit = lines.join("\n").into_bytes();
        Ok(audit)
    }

    /// Forgets all earlier actions.
    pub(crate) fn begin(&self) -> Result<()> {
        let whole_lines = self.audit()?.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.begun.store(whole_lines, Ordering::Relaxed);
        Ok(())
    }

    /// The same, but the oracle knows what is stored now.
    pub(crate) async fn begin_with_what_is_stored(&self) -> Result<()> {
        let state = self.state().await?;
        *lock(&self.known) = Some(state);
        self.begin()
    }

    /// Deletes all policies and Deployments, and waits until there is no registration.
    pub(crate) async fn clear(&self) -> Result<()> {
        for policy in policies(&self.world.cluster).list(&Default::default()).await? {
            self.world.delete_policy(policy.metadata.name.as_deref().unwrap_or_default()).await?;
        }
        self.unregistered().await?;
        for object in self.deployments().await? {
            self.world.delete(&path(object["metadata"]["name"].as_str().unwrap_or_default())).await?;
        }
        Ok(())
    }
}

fn told(findings: &[Finding]) -> String {
    findings.iter().map(|finding| format!("\n  {finding}")).collect()
}

/// The result of a scene without faults, computed once per engine.
pub(crate) struct Calm(LazyLock<tokio::sync::Mutex<HashMap<Engine, Digest>>>);

impl Calm {
    pub(crate) const fn new() -> Self {
        Self(LazyLock::new(Default::default))
    }

    /// The earlier result, or that of `run`.
    pub(crate) async fn digest(&self, engine: Engine, run: impl Future<Output = Result<Digest>>) -> Result<Digest> {
        let mut known = self.0.lock().await;
        if let Some(digest) = known.get(&engine) {
            return Ok(digest.clone());
        }
        let digest = run.await?;
        known.insert(engine, digest.clone());
        Ok(digest)
    }
}

/// A policy with containers, a volume and metadata, so that a partial injection is visible.
pub(crate) fn envoy() -> Value {
    json!({ "template": {
        "metadata": { "annotations": { "mesh": "on" } },
        "containers": [{ "name": "envoy", "image": "envoy:1", "volumeMounts": [{ "name": "envoy", "mountPath": "/etc/envoy" }] }],
        "initContainers": [{ "name": "envoy-init", "image": "envoy:1" }],
        "volumes": [{ "name": "envoy", "emptyDir": {} }],
        "env": [{ "name": "PROXY", "value": "127.0.0.1:15001" }],
    } })
}

/// The parts of [`envoy`] in a Deployment.
fn parts_of_envoy(object: &Value) -> [bool; 5] {
    let pod = &object["spec"]["template"];
    let has = |list: &Value, name: &str| list.as_array().into_iter().flatten().any(|item| item["name"] == name);
    [
        has(&pod["spec"]["containers"], "envoy"),
        has(&pod["spec"]["initContainers"], "envoy-init"),
        has(&pod["spec"]["volumes"], "envoy"),
        has(&pod["spec"]["containers"][0]["env"], "PROXY"),
        pod["metadata"]["annotations"]["mesh"].is_string(),
    ]
}

/// A policy for the Deployments of [`second`].
pub(crate) fn agent() -> Value {
    json!({
        "labelSelector": { "matchLabels": { "tier": "two" } },
        "template": { "containers": [{ "name": "agent", "image": "agent:1" }] },
    })
}

/// Deployments for `envoy`. Every fifth has opted out.
pub(crate) fn first(count: usize) -> Vec<Value> {
    let one = |number: usize| {
        let mut one = deployment(&format!("web-{number}"));
        if number % 5 == 4 {
            one["metadata"]["annotations"] = json!({ "scpol.dev/inject": "false" });
        }
        one
    };
    (0..count).map(one).collect()
}

/// Deployments for `envoy` and `agent`.
pub(crate) fn second(count: usize) -> Vec<Value> {
    let one = |number: usize| {
        let mut one = deployment(&format!("two-{number}"));
        one["metadata"]["labels"]["tier"] = json!("two");
        one
    };
    (0..count).map(one).collect()
}
