//! The proxy between the operator and the API server. It causes the faults of the [`Fault`](crate::chaos::fault) rules.
//!
//! Each connection of the operator has its own connection to the API server, HTTP/1.1 over TLS on both sides.

use crate::chaos::dice::Dice;
use crate::chaos::fault::{Ask, Does, Faults, Rule, Verb};
use crate::prelude::*;
use futures::stream;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The longest wait of an event for the one that must precede it.
const HELD: Duration = Duration::from_millis(200);

type Body = UnsyncBoxBody<Bytes, io::Error>;
/// A connection to an API server, and its address.
type Upstream = tokio::sync::Mutex<Option<(String, SendRequest<Full<Bytes>>)>>;

/// A running proxy. Dropping it cuts all connections.
pub(crate) struct Proxy {
    hub: Arc<Hub>,
    /// The kubeconfig with which the operator connects to it.
    pub(crate) kubeconfig: PathBuf,
    serving: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy for `cluster`, with its kubeconfig in the cluster's folder.
    pub(crate) async fn start(cluster: &ControlPlane, seed: u64) -> Result<Self> {
        let dir = cluster.dir();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}", listener.local_addr()?);
        let config = std::fs::read_to_string(cluster.kubeconfig(User::Operator))?.replace(cluster.url(), &url);
        let kubeconfig = dir.join(format!("proxy-{}.kubeconfig", listener.local_addr()?.port()));
        std::fs::write(&kubeconfig, config)?;
        // The API server's own certificate is valid for 127.0.0.1 on any port.
        let chain = CertificateDer::pem_file_iter(dir.join("tls.crt"))?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(dir.join("tls.key"))?;
        let provider = Arc::new(ring::default_provider());
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(cluster.ca_pem().as_bytes())?)?;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        let hub = Arc::new(Hub {
            address: Mutex::new(address(cluster.url())),
            connector: TlsConnector::from(Arc::new(client)),
            faults: Mutex::new(Faults::new(Dice(seed), Vec::new())),
            dice: Dice(seed),
            requests: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            about: Mutex::default(),
            stop: Mutex::new(None),
            stopped: watch::channel(false).0,
            frozen: watch::channel(None).0,
            calm: watch::channel(0).0,
            lists: Mutex::new(HashMap::new()),
        });
        let acceptor = TlsAcceptor::from(Arc::new(server));
        let serving = tokio::spawn(serve(hub.clone(), listener, acceptor));
        Ok(Self { hub, kubeconfig, serving })
    }

    /// Sends all further requests to the API server at `url`.
    pub(crate) fn switch(&self, url: &str) {
        *lock(&self.hub.address) = address(url);
        self.cut_watches();
    }

    /// Replaces all rules.
    pub(crate) fn set(&self, rules: Vec<Rule>) {
        *lock(&self.hub.faults) = Faults::new(self.hub.dice, rules);
    }

    /// The number of faults by the current rules.
    pub(crate) fn happened(&self) -> u64 {
        lock(&self.hub.faults).fired()
    }

    /// Removes all rules and restarts all watches, because some are frozen or have lost events. Returns the number of
    /// faults.
    pub(crate) fn calm(&self) -> u64 {
        let fired = lock(&self.hub.faults).fired();
        self.set(Vec::new());
        self.cut_watches();
        fired
    }

    /// Cuts all watches.
    pub(crate) fn cut_watches(&self) {
        self.hub.calm.send_modify(|times| *times += 1);
    }

    /// Records the next answer to each list, for stale lists.
    pub(crate) fn remember_lists(&self) {
        lock(&self.hub.lists).clear();
    }

    /// Kills the process `pid` at the `nth` request from now: before it is forwarded, or after its answer has arrived.
    pub(crate) fn stop_at(&self, nth: u64, moment: Moment, pid: u32) -> Result<()> {
        self.arm(Stop { left: nth, about: &[], moment, pid: process(pid)?, signal: Signal::KILL })
    }

    /// Freezes the process `pid` at the `nth` request from now `about` these resources, until [`Self::thaw`]. The request is
    /// forwarded only then, or it has been answered and the process finds the answer then. Lists and watches do not count.
    pub(crate) fn freeze_at(&self, nth: u64, moment: Moment, pid: u32, about: &'static [&'static str]) -> Result<()> {
        self.arm(Stop { left: nth, about, moment, pid: process(pid)?, signal: Signal::STOP })
    }

    fn arm(&self, stop: Stop) -> Result<()> {
        self.hub.stopped.send_replace(false);
        *lock(&self.hub.stop) = Some(stop);
        Ok(())
    }

    /// Lets the frozen process go on.
    pub(crate) fn thaw(&self) -> Result<()> {
        if let Some(pid) = self.hub.frozen.send_replace(None) {
            kill_process(pid, Signal::CONT)?;
        }
        Ok(())
    }

    /// Cancels the kill or freeze. Returns whether it has happened.
    pub(crate) fn disarm(&self) -> bool {
        *lock(&self.hub.stop) = None;
        *self.hub.stopped.borrow()
    }

    /// Waits until the process of [`Self::stop_at`] has been killed, or that of [`Self::freeze_at`] is frozen.
    pub(crate) async fn stopped(&self) {
        let mut stopped = self.hub.stopped.subscribe();
        // The sender lives as long as this proxy.
        drop(stopped.wait_for(|stopped| *stopped).await);
    }

    /// The number of requests.
    pub(crate) fn requests(&self) -> u64 {
        self.hub.requests.load(Ordering::SeqCst)
    }

    /// The number of requests `about` these resources, other than lists and watches.
    pub(crate) fn requests_about(&self, about: &[&str]) -> u64 {
        let counts = lock(&self.hub.about);
        about.iter().filter_map(|resource| counts.get(*resource)).sum()
    }

    /// The number of requests, including reads, that the server answered with 403.
    pub(crate) fn denied(&self) -> u64 {
        self.hub.denied.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
        self.cut_watches();
    }
}

fn process(pid: u32) -> Result<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw).context("a pid")
}

/// The moment of a kill or a freeze relative to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    Before,
    After,
}

#[derive(Clone, Copy)]
struct Stop {
    /// It happens at this request of those that count.
    left: u64,
    /// The resources whose requests count; none if all do.
    about: &'static [&'static str],
    moment: Moment,
    pid: Pid,
    signal: Signal,
}

/// The state shared by connections.
struct Hub {
    /// The address of the API server, which may change.
    address: Mutex<String>,
    connector: TlsConnector,
    faults: Mutex<Faults>,
    dice: Dice,
    requests: AtomicU64,
    /// The number of requests that the server answered with 403.
    denied: AtomicU64,
    /// The number of requests about each resource, other than lists and watches.
    about: Mutex<HashMap<String, u64>>,
    stop: Mutex<Option<Stop>>,
    stopped: watch::Sender<bool>,
    /// The frozen process.
    frozen: watch::Sender<Option<Pid>>,
    /// Incremented to cut all watches.
    calm: watch::Sender<u64>,
    /// The first answer to each list.
    lists: Mutex<HashMap<String, Bytes>>,
}

fn address(url: &str) -> String {
    url.trim_start_matches("https://").to_owned()
}

async fn serve(hub: Arc<Hub>, listener: TcpListener, acceptor: TlsAcceptor) {
    while let Ok((stream, _)) = listener.accept().await {
        let (hub, acceptor) = (hub.clone(), acceptor.clone());
        // Errors of a connection are expected here.
        tokio::spawn(async move {
            stream.set_nodelay(true)?;
            let stream = TokioIo::new(acceptor.accept(stream).await?);
            let upstream = Arc::new(Upstream::default());
            let service = service_fn(move |request| answer(hub.clone(), upstream.clone(), request));
            anyhow::Ok(hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await?)
        });
    }
}

async fn answer(hub: Arc<Hub>, upstream: Arc<Upstream>, request: Request<Incoming>) -> Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let mut body = body.collect().await?.to_bytes();
    let mut ask = Ask::of(&parts.method, &parts.uri);
    ask.body = String::from_utf8_lossy(&body).into_owned();
    let stop = hub.stops(&ask);
    if let Some(stop) = stop.filter(|stop| stop.moment == Moment::Before) {
        hub.strike(stop)?;
        // The sender lives as long as this proxy.
        drop(hub.frozen.subscribe().wait_for(Option::is_none).await);
    }
    let stop = stop.filter(|stop| stop.moment == Moment::After);
    let happens = lock(&hub.faults).of(&ask);
    for does in &happens {
        match does {
            Does::Delay(time) => tokio::time::sleep(*time).await,
            Does::CutBefore => anyhow::bail!("cut"),
            Does::Answer(code, after) => return Ok(refusal(*code, *after)),
            Does::Lag => body = untimely(&body),
            _ => {}
        }
    }
    let is_list = ask.verb == Verb::List;
    let key = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let response = hub.forward(&upstream, Request::from_parts(parts, Full::new(body))).await?;
    if response.status() == StatusCode::FORBIDDEN {
        hub.denied.fetch_add(1, Ordering::SeqCst);
    }
    if ask.verb == Verb::Watch && response.status().is_success() {
        stop.map_or(Ok(()), |stop| hub.strike(stop))?;
        return Ok(watch(hub, ask, &happens, response));
    }
    let (parts, body) = response.into_parts();
    let mut body = body.collect().await?.to_bytes();
    stop.map_or(Ok(()), |stop| hub.strike(stop))?;
    if is_list && parts.status.is_success() {
        let first = lock(&hub.lists).entry(key).or_insert_with(|| body.clone()).clone();
        if happens.contains(&Does::StaleList) {
            body = first;
            return Ok(Response::builder().header("Content-Type", "application/json").body(whole(body))?);
        }
    }
    match happens.iter().find(|does| matches!(does, Does::DropAnswer | Does::Mask(_))) {
        Some(Does::Mask(code)) => Ok(refusal(*code, None)),
        Some(_) => anyhow::bail!("the answer is lost"),
        None => Ok(Response::from_parts(parts, whole(body))),
    }
}

fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn refusal(code: u16, after: Option<u64>) -> Response<Body> {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "chaos", "reason": "Chaos", "code": code });
    let mut response = Response::builder().status(code).header("Content-Type", "application/json");
    if let Some(seconds) = after {
        response = response.header("Retry-After", seconds.to_string());
    }
    response.body(whole(status.to_string().into())).expect("a well-formed answer")
}

/// The JSON Patch with another version in its test, and of the same length.
fn untimely(patch: &Bytes) -> Bytes {
    let Ok(mut operations) = serde_json::from_slice::<Vec<Value>>(patch) else { return patch.clone() };
    let is_test =
        |operation: &&mut Value| operation["op"] == "test" && operation["path"] == "/metadata/resourceVersion";
    if let Some(test) = operations.iter_mut().find(is_test) {
        test["value"] = "0".repeat(test["value"].as_str().unwrap_or_default().len()).into();
    }
    json!(operations).to_string().into()
}

impl Hub {
    /// Counts a request. Returns the kill or freeze, if this is its request.
    fn stops(&self, ask: &Ask) -> Option<Stop> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let is_single = !matches!(ask.verb, Verb::List | Verb::Watch);
        if is_single {
            *lock(&self.about).entry(ask.resource.clone()).or_default() += 1;
        }
        lock(&self.stop).take_if(|stop| {
            let counts = stop.about.is_empty() || is_single && stop.about.contains(&ask.resource.as_str());
            stop.left = stop.left.saturating_sub(u64::from(counts));
            counts && stop.left == 0
        })
    }

    /// Kills or freezes the process.
    ///
    /// # Errors
    /// If it was killed: then nobody waits for an answer.
    fn strike(&self, stop: Stop) -> Result<()> {
        // The process may have ended already.
        let _ = kill_process(stop.pid, stop.signal);
        let is_freeze = stop.signal == Signal::STOP;
        self.frozen.send_replace(is_freeze.then_some(stop.pid));
        self.stopped.send_replace(true);
        anyhow::ensure!(is_freeze, "killed");
        Ok(())
    }

    async fn forward(&self, upstream: &Upstream, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        let mut upstream = upstream.lock().await;
        let address = lock(&self.address).clone();
        let is_open = match upstream.as_mut() {
            Some((known, sender)) => *known == address && sender.ready().await.is_ok(),
            None => false,
        };
        if !is_open {
            *upstream = Some((address.clone(), self.connect(&address).await?));
        }
        let (_, sender) = upstream.as_mut().expect("connected");
        Ok(sender.send_request(request).await?)
    }

    async fn connect(&self, address: &str) -> Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("127.0.0.1")?;
        let stream = TokioIo::new(self.connector.connect(name, stream).await?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
        tokio::spawn(connection);
        sender.ready().await?;
        Ok(sender)
    }
}

/// The answer to a watch, with the fault of each event.
fn watch(hub: Arc<Hub>, ask: Ask, happens: &[Does], response: Response<Incoming>) -> Response<Body> {
    let (parts, body) = response.into_parts();
    let (sender, receiver) = mpsc::channel::<io::Result<Frame<Bytes>>>(16);
    let until = happens.iter().find_map(|does| match does {
        Does::CutWatch(time) => Some(*time),
        _ => None,
    });
    let is_frozen = happens.contains(&Does::FreezeWatch);
    let expires = happens.contains(&Does::Expire);
    tokio::spawn(async move {
        let mut calm = hub.calm.subscribe();
        let cut = async move {
            tokio::select! {
                () = tokio::time::sleep(until.unwrap_or(Duration::MAX)) => {}
                _ = calm.changed() => {}
            }
        };
        let pump = async {
            if expires {
                let _ = sender.send(Ok(Frame::data(expiry()))).await;
                return;
            }
            if is_frozen {
                std::future::pending::<()>().await;
            }
            pump(&hub, &ask, body, &sender).await;
        };
        tokio::select! {
            () = pump => return,
            () = sender.closed() => return,
            () = cut => {}
        }
        let _ = sender.try_send(Err(io::ErrorKind::ConnectionReset.into()));
    });
    let frames = stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) });
    Response::from_parts(parts, StreamBody::new(frames).boxed_unsync())
}

fn expiry() -> Bytes {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "too old resource version", "reason": "Expired", "code": 410 });
    format!("{}\n", json!({ "type": "ERROR", "object": status })).into()
}

/// Passes events on until one side ends.
async fn pump(hub: &Hub, ask: &Ask, mut body: Incoming, sender: &mpsc::Sender<io::Result<Frame<Bytes>>>) {
    let mut buffer = Vec::new();
    let mut held: Option<Vec<u8>> = None;
    loop {
        // If no event follows, the held event is sent after a timeout.
        let patience = if held.is_some() { HELD } else { Duration::MAX };
        let frame = match tokio::time::timeout(patience, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(_) => return,
            Err(_) => {
                let late = held.take().map_or_else(Bytes::new, Bytes::from);
                if sender.send(Ok(Frame::data(late))).await.is_err() {
                    return;
                }
                continue;
            }
        };
        let Ok(data) = frame.into_data() else { continue };
        buffer.extend_from_slice(&data);
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let event: Vec<u8> = buffer.drain(..=end).collect();
            let said: Value = serde_json::from_slice(&event).unwrap_or_default();
            let mut events = match lock(&hub.faults).of_event(ask, &said) {
                Some(Does::Swallow) => vec![],
                Some(Does::Repeat) => vec![event.clone(), event],
                Some(Does::Swap) if held.is_none() => {
                    held = Some(event);
                    vec![]
                }
                _ => vec![event],
            };
            if !events.is_empty() {
                events.extend(held.take());
            }
            for event in events {
                if sender.send(Ok(Frame::data(event.into()))).await.is_err() {
                    return;
                }
            }
        }
    }
}
