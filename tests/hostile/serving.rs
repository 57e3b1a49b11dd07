//! Clients without credentials that hold or flood the operator's ports.

use crate::prelude::*;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use controlplane::{Builder, free_port};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

crate::tests![
    idle_connections_keep_no_api_server_out_on_1_13 = idle_connections_keep_no_api_server_out(Version::V1_13),
    idle_connections_keep_no_api_server_out_on_1_37 = idle_connections_keep_no_api_server_out(Version::NEWEST),
    slow_uploads_hold_up_no_review,
    half_requests_cost_the_other_port_little_and_probes_are_answered,
    a_flood_of_scrapes_costs_reviews_nothing,
    who_may_not_get_the_metrics_does_not_read_them,
    without_a_certificate_of_the_authority_no_client_is_let_in,
];

/// The server of attacks that come out alike on every version.
const CURRENT: Version = Version::NEWEST;
/// The connections that are being opened at one time. The server takes each of them before the next ones come.
pub(crate) const OPENING: usize = 32;
/// The time limit for a create that a sidecar is added to.
const PROMPT: Duration = Duration::from_secs(3);
/// The pods that must get their sidecar.
const PODS_EACH: usize = 20;

/// A proxy before the webhook, as some clusters have one: the API server has the address of the attacker, and each of
/// its connections can be ended.
pub(crate) struct Forward {
    address: SocketAddr,
    cut: watch::Sender<()>,
}

impl Forward {
    pub(crate) async fn to(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, cut) = (listener.local_addr()?, watch::Sender::new(()));
        let cuts = cut.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut cut = cuts.subscribe();
                tokio::spawn(async move {
                    let joined =
                        async { copy_bidirectional(&mut client, &mut TcpStream::connect(target).await?).await };
                    tokio::select! {
                        _ = joined => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Ok(Self { address, cut })
    }

    /// Ends the connections that the API server has kept.
    pub(crate) fn cut(&self) {
        self.cut.send_replace(());
    }
}

/// A server with an operator and a policy for pods in effect by webhook.
pub(crate) struct Target {
    world: World,
    pub(crate) operator: Operator,
    webhook: SocketAddr,
    forward: Forward,
    connector: TlsConnector,
}

impl Target {
    pub(crate) async fn new(version: Version) -> Result<Self> {
        let webhook = ([127, 0, 0, 1], free_port()).into();
        Self::with(ControlPlane::builder(version), webhook, Forward::to(webhook).await?, &[]).await
    }

    /// The same on a server of `builder`, with more `flags` of the operator.
    async fn with(builder: Builder, webhook: SocketAddr, forward: Forward, flags: &[&str]) -> Result<Self> {
        let world = World::with(builder).await?;
        let (listen, url) = (webhook.to_string(), format!("https://{}", forward.address));
        let flags = [&["--webhook-listen", &listen, "--webhook-url", &url], flags].concat();
        let operator = Operator::ready(&world.cluster, &flags).await?;
        let spec = json!({
            "engine": "Webhook", "targets": [{ "group": "", "resource": "pods" }],
            "template": { "containers": [{ "name": "envoy", "image": "envoy:1" }] },
        });
        world.enforce("envoy", spec).await?;
        let secret = world.get(&format!("{SECRETS}/scpol-webhook")).await?.context("the Secret")?;
        let authority = STANDARD.decode(secret["data"]["ca.crt"].as_str().context("ca.crt")?)?;
        Ok(Self { connector: connector(&authority)?, world, operator, webhook, forward })
    }

    /// A TLS connection to the webhook.
    pub(crate) async fn connect(&self) -> Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.webhook).await?;
        Ok(self.connector.connect(ServerName::IpAddress(self.webhook.ip().into()), stream).await?)
    }

    /// Creates pods, each through a new connection of the API server. Each must get its sidecar in time.
    pub(crate) async fn pods_get_their_sidecar(&self, prefix: &str) -> Result<()> {
        let (mut slowest, mut bare) = (Duration::ZERO, 0);
        for number in 0..PODS_EACH {
            self.forward.cut();
            // The API server must have seen the end: a call in transit would be lost, and this is not what is tried.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let start = Instant::now();
            let created = self.world.create(PODS, &pod(&format!("{prefix}-{number}"))).await?;
            slowest = slowest.max(start.elapsed());
            bare += usize::from(containers(&created) != ["app", "envoy"]);
        }
        ensure!(bare == 0 && slowest < PROMPT, "{bare} of {PODS_EACH} lack the sidecar; the slowest took {slowest:?}");
        Ok(())
    }

    /// The resident memory of the operator, in MB.
    fn memory(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.operator.pid()))?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        Ok(kib.context("VmRSS")?.trim().parse::<f64>()? / 1024.0)
    }
}

fn connector(authority: &[u8]) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority) {
        roots.add(certificate?)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Posts an empty review and keeps the connection, until the server closes it. Counts the answers.
pub(crate) async fn hold(target: &Target, answered: Arc<AtomicUsize>, opening: Arc<Semaphore>) -> Result<()> {
    let place = opening.acquire().await?;
    let mut stream = target.connect().await?;
    stream.write_all(b"POST /mutate/0123456789abcdef HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").await?;
    let mut buffer = [0; 1024];
    ensure!(stream.read(&mut buffer).await? > 0, "no answer");
    answered.fetch_add(1, Ordering::Relaxed);
    drop(place);
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

/// More connections than the webhook has places for are opened, and held after one empty request each. All come from
/// the address of the API server.
async fn idle_connections_keep_no_api_server_out(version: Version) -> Result<()> {
    const HELD: usize = 1100;
    let target = Arc::new(Target::new(version).await?);
    let (before, answered, mut held) = (target.memory()?, Arc::new(AtomicUsize::new(0)), JoinSet::new());
    let opening = Arc::new(Semaphore::new(OPENING));
    for _ in 0..HELD {
        let (target, answered, opening) = (target.clone(), answered.clone(), opening.clone());
        held.spawn(async move { hold(&target, answered, opening).await });
    }
    within(LIMIT, "the places are taken", || async { Ok(answered.load(Ordering::Relaxed) >= 1000) }).await?;
    let after = target.memory()?;
    target.pods_get_their_sidecar("web").await?;
    ensure!(after - before < 40.0, "the connections take {before} to {after} MB");
    Ok(())
}

/// Announces the largest body, and sends a byte a second. Returns the answer.
pub(crate) async fn trickle(mut stream: TlsStream<TcpStream>) -> Result<String> {
    let length = 6 << 20;
    let head = format!("POST /mutate/0123456789abcdef HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = [0; 1024];
    loop {
        stream.write_all(b" ").await?;
        if let Ok(read) = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut answer)).await {
            return Ok(String::from_utf8_lossy(&answer[..read?]).into_owned());
        }
    }
}

async fn slow_uploads_hold_up_no_review() -> Result<()> {
    let target = Target::new(CURRENT).await?;
    let (start, mut uploads) = (Instant::now(), JoinSet::new());
    for _ in 0..8 {
        uploads.spawn(trickle(target.connect().await?));
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    target.pods_get_their_sidecar("web").await?;
    while let Some(answer) = uploads.join_next().await {
        let answer = answer??;
        ensure!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    let limit = timing().webhook.body + Duration::from_secs(3);
    ensure!(start.elapsed() < limit, "the uploads ended after {:?}", start.elapsed());
    Ok(())
}

/// Sends a half of a request, and waits until the server closes the connection.
pub(crate) async fn half_request(target: &Target) -> Result<()> {
    let mut stream = TcpStream::connect(target.operator.address()).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").await?;
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
}

async fn half_requests_cost_the_other_port_little_and_probes_are_answered() -> Result<()> {
    const HELD: usize = 2000;
    let target = Arc::new(Target::new(CURRENT).await?);
    let (before, mut held) = (target.memory()?, JoinSet::new());
    for _ in 0..HELD {
        let target = target.clone();
        held.spawn(async move { half_request(&target).await });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    for path in ["/livez", "/readyz"].repeat(5) {
        let start = Instant::now();
        let (status, _) = target.operator.get(path).await?;
        ensure!(status == 200 && start.elapsed() < PROMPT, "{path}: {status} after {:?}", start.elapsed());
    }
    let after = target.memory()?;
    ensure!(after - before < 8.0, "{HELD} half requests take {before} to {after} MB");
    target.pods_get_their_sidecar("web").await
}

/// The processor time of the thread that answers reviews.
fn main_thread(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit_once(") ").context("a name")?.1.split(' ').collect();
    // Hundredths of a second in user mode and in the kernel: `man 5 proc_pid_stat`.
    Ok(Duration::from_millis(10 * (fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)))
}

/// Reads the metrics. Returns the size of the page.
pub(crate) async fn scrape(target: &Target) -> Result<usize> {
    let mut stream = TcpStream::connect(target.operator.address()).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: a\r\n\r\n").await?;
    Ok(stream.read_to_end(&mut Vec::new()).await?)
}

async fn a_flood_of_scrapes_costs_reviews_nothing() -> Result<()> {
    const FLOOD: Duration = Duration::from_secs(4);
    let target = Arc::new(Target::new(CURRENT).await?);
    let scrapes = async {
        let (mut running, mut every) = (JoinSet::new(), tokio::time::interval(Duration::from_millis(5)));
        let start = Instant::now();
        while start.elapsed() < FLOOD {
            every.tick().await;
            let target = target.clone();
            running.spawn(async move { scrape(&target).await });
        }
        let pages = running.join_all().await;
        pages.iter().filter(|page| page.as_ref().is_ok_and(|size| *size > 1000)).count()
    };
    let before = main_thread(target.operator.pid())?;
    let (scrapes, pods) = tokio::join!(scrapes, target.pods_get_their_sidecar("web"));
    pods?;
    let took = main_thread(target.operator.pid())? - before;
    ensure!(scrapes > 400, "only {scrapes} scrapes were answered");
    ensure!(took < FLOOD / 8, "the thread that answers reviews was busy for {took:?} of {FLOOD:?}");
    Ok(())
}

async fn who_may_not_get_the_metrics_does_not_read_them() -> Result<()> {
    let world = World::with(ControlPlane::builder(CURRENT)).await?;
    world.cluster.apply_file(&file("config/rbac/metrics-authorization/role.yaml")).await?;
    let binding = ["create", "clusterrolebinding", "scrape", "--clusterrole=scpol-metrics-reader", "--user=creator"];
    world.cluster.kubectl_output(User::Admin, &binding).await?;
    let operator = Operator::ready(&world.cluster, &["--metrics-authorization"]).await?;
    let tokens = std::fs::read_to_string(world.cluster.dir().join("tokens.csv"))?;
    let scrape = async |user: &str| {
        let token = tokens.lines().find(|line| line.contains(user)).and_then(|line| line.split(',').next());
        let header = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let mut stream = TcpStream::connect(operator.address()).await?;
        stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: a\r\n{header}\r\n").as_bytes()).await?;
        let mut page = String::new();
        stream.read_to_string(&mut page).await?;
        anyhow::Ok((page.split(' ').nth(1).context("a status")?.to_owned(), page.contains("scpol_build_info")))
    };
    within(LIMIT, "who may get the metrics reads them", || async {
        Ok(scrape("creator").await? == ("200".into(), true))
    })
    .await?;
    for (user, status) in [("nobody", "401"), ("bystander", "403")] {
        assert_eq!(scrape(user).await?, (status.to_owned(), false), "{user}");
    }
    for path in ["/livez", "/readyz"] {
        assert_eq!(operator.get(path).await?.0, 200, "{path}");
    }
    Ok(())
}

/// The admission configuration of an API server that shows a certificate to the webhook at `address`, in `folder`.
fn admission(folder: &Path, address: SocketAddr, version: Version) -> Result<String> {
    let [authority, _, chain, key] = certificate(&["api-server"], 2040)?;
    let at = |name: &str| folder.join(name).display().to_string();
    for (name, text) in [("clients.crt", authority), ("tls.crt", chain), ("tls.key", key)] {
        std::fs::write(at(name), text)?;
    }
    let user = json!({ "client-certificate": at("tls.crt"), "client-key": at("tls.key") });
    let kubeconfig =
        json!({ "apiVersion": "v1", "kind": "Config", "users": [{ "name": address.to_string(), "user": user }] });
    std::fs::write(at("kubeconfig"), kubeconfig.to_string())?;
    let (admission, plugin, kind) = match version.has(Feature::RegistrationV1) {
        true => ("apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1", "WebhookAdmissionConfiguration"),
        false => ("apiserver.k8s.io/v1alpha1", "apiserver.config.k8s.io/v1alpha1", "WebhookAdmission"),
    };
    let plugins = ["MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"].map(|name| {
        let configuration = json!({ "apiVersion": plugin, "kind": kind, "kubeConfigFile": at("kubeconfig") });
        json!({ "name": name, "configuration": configuration })
    });
    let configuration = json!({ "apiVersion": admission, "kind": "AdmissionConfiguration", "plugins": plugins });
    std::fs::write(at("admission"), configuration.to_string())?;
    Ok(at("admission"))
}

async fn without_a_certificate_of_the_authority_no_client_is_let_in() -> Result<()> {
    let (folder, webhook) = (tempfile::tempdir()?, ([127, 0, 0, 1], free_port()).into());
    let forward = Forward::to(webhook).await?;
    let admission = admission(folder.path(), forward.address, CURRENT)?;
    let builder = ControlPlane::builder(CURRENT).extra_arg(format!("--admission-control-config-file={admission}"));
    let authority = folder.path().join("clients.crt").display().to_string();
    let target = Target::with(builder, webhook, forward, &["--webhook-client-ca", &authority]).await?;
    target.pods_get_their_sidecar("web").await?;
    let answered = Arc::new(AtomicUsize::new(0));
    let refused = tokio::time::timeout(LIMIT, hold(&target, answered.clone(), Arc::new(Semaphore::new(1)))).await?;
    ensure!(refused.is_err() && answered.load(Ordering::Relaxed) == 0, "a client without a certificate was answered");
    Ok(())
}
