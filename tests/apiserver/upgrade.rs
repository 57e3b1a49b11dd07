//! Upgrades and downgrades of the control plane under creates: no workload is left without its sidecar, and none is refused.
//!
//! The API servers of a cluster share etcd. Clients reach them through a load balancer, which follows a list that a test
//! changes. A create whose connection ends without an answer is tried again, as any client does.

use crate::commands::scpol;
use crate::engines::engine_of;
use crate::prelude::*;
use kube::Client;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

crate::tests![
    two_api_servers_are_upgraded_and_downgraded_one_by_one_and_no_create_is_left_out_or_refused,
    one_api_server_is_upgraded_and_downgraded_and_no_create_is_left_out_or_refused,
    an_engine_that_one_of_two_api_servers_lacks_is_not_used_and_used_once_both_have_it,
];

/// The fewest creates that a test must have seen.
const CREATES: usize = 500;
/// The number of clients that create at the same time.
const CREATORS: usize = 4;

/// The API servers behind a [`Balancer`], each with its open connections.
type Backends = Arc<Mutex<Vec<(SocketAddr, Vec<AbortHandle>)>>>;

/// A load balancer for TCP connections.
struct Balancer {
    address: SocketAddr,
    backends: Backends,
    task: JoinHandle<()>,
}

impl Balancer {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let backends = Backends::default();
        let task = tokio::spawn(balance(listener, backends.clone()));
        Ok(Self { address, backends, task })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<(SocketAddr, Vec<AbortHandle>)>) -> T) -> T {
        change(&mut lock(&self.backends))
    }

    fn add(&self, url: &str) -> Result<()> {
        let address = address_of(url)?;
        self.change(|backends| backends.push((address, Vec::new())));
        Ok(())
    }

    /// Removes an API server, and ends its connections.
    fn remove(&self, url: &str) -> Result<()> {
        let address = address_of(url)?;
        self.change(|backends| {
            let (gone, rest) = std::mem::take(backends).into_iter().partition(|(other, _)| *other == address);
            *backends = rest;
            let gone: Vec<(SocketAddr, Vec<AbortHandle>)> = gone;
            gone.iter().flat_map(|(_, connections)| connections).for_each(AbortHandle::abort);
        });
        Ok(())
    }

    /// A kubeconfig of `user` with the address of the balancer.
    fn kubeconfig(&self, cluster: &ControlPlane, user: User) -> Result<PathBuf> {
        let text = std::fs::read_to_string(cluster.kubeconfig(user))?;
        let path = cluster.dir().join(format!("balanced-{}", user.name().replace([':', '/'], "-")));
        std::fs::write(&path, text.replace(cluster.url(), &format!("https://{}", self.address)))?;
        Ok(path)
    }

    fn client(&self, cluster: &ControlPlane, user: User) -> Result<Client> {
        let mut config = cluster.client_config(user);
        config.cluster_url = format!("https://{}", self.address).parse()?;
        Ok(Client::try_from(config)?)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn address_of(url: &str) -> Result<SocketAddr> {
    url.strip_prefix("https://").context("an https URL")?.parse().context("an address")
}

/// Passes each connection on to the next API server in turn.
async fn balance(listener: TcpListener, backends: Backends) {
    let mut connections = JoinSet::new();
    let mut turn = 0;
    while let Ok((mut client, _)) = listener.accept().await {
        turn += 1;
        let mut backends = lock(&backends);
        let count = backends.len();
        let Some((address, open)) = (count > 0).then(|| &mut backends[turn % count]) else { continue };
        let address = *address;
        open.push(connections.spawn(async move {
            if let Ok(mut server) = TcpStream::connect(address).await {
                // Either side may end.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            }
        }));
    }
}

/// The created Deployments, with their names.
type Created = Vec<(String, Value)>;

/// Clients that create Deployments until [`Creators::ended`].
struct Creators {
    stop: watch::Sender<bool>,
    count: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<Result<Created>>>,
}

impl Creators {
    fn start(cluster: &ControlPlane, balancer: &Balancer) -> Result<Self> {
        let (stop, count) = (watch::Sender::new(false), Arc::<AtomicUsize>::default());
        let begin = |creator| {
            let client = balancer.client(cluster, User::Creator)?;
            Ok(tokio::spawn(create_until(client, creator, stop.subscribe(), count.clone())))
        };
        let tasks = (0..CREATORS).map(begin).collect::<Result<_>>()?;
        Ok(Self { stop, count, tasks })
    }

    /// Sees that each created Deployment has these containers.
    async fn ended(self, expected: &[&str]) -> Result<()> {
        within(2 * LIMIT, "there are enough creates", || async { Ok(self.count.load(Ordering::Relaxed) >= CREATES) })
            .await?;
        self.stop.send_replace(true);
        let mut total = 0;
        for task in self.tasks {
            for (name, created) in task.await?? {
                ensure!(
                    containers(&created) == expected,
                    "{name} is {:?} and created at {}",
                    containers(&created),
                    created["metadata"]["creationTimestamp"]
                );
                total += 1;
            }
        }
        ensure!(total >= CREATES, "only {total} were created meanwhile");
        Ok(())
    }
}

/// Creates Deployments until `stop`. Returns them with their names.
///
/// # Errors
/// If a create is refused.
async fn create_until(
    client: Client,
    creator: usize,
    stop: watch::Receiver<bool>,
    count: Arc<AtomicUsize>,
) -> Result<Created> {
    let (mut created, mut told) = (Vec::new(), 0);
    let mut seen = |total: usize| {
        count.fetch_add(total - told, Ordering::Relaxed);
        told = total;
    };
    while !*stop.borrow() {
        let name = format!("web-{creator}-{}", created.len());
        match request(&client, "POST", DEPLOYMENTS, &deployment(&name)).await {
            Ok(object) => created.push((name, object)),
            // The connection ended before the answer.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                created.push((
                    name.clone(),
                    request(&client, "GET", &format!("{DEPLOYMENTS}/{name}"), &Value::Null).await?,
                ));
            }
            // A server that starts does not know the rights yet.
            Err(kube::Error::Api(status))
                if matches!(status.code, 403 | 429 | 503) && !status.message.contains("denied") =>
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(kube::Error::Api(status)) => return Err(kube::Error::Api(status)).with_context(|| name),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        seen(created.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(created)
}

/// A cluster of 1.34 behind a balancer, with two replicas of the operator and two policies, one with `failurePolicy: Fail`.
async fn world(balancer: &Balancer) -> Result<(World, [Operator; 2])> {
    let world = World::with(ControlPlane::builder(Version::V1_34)).await?;
    balancer.add(world.cluster.url())?;
    let kubeconfig = balancer.kubeconfig(&world.cluster, User::Operator)?;
    let mut operators = [
        Operator::start_in(&world.cluster, &kubeconfig, &[], &Surroundings::default())?,
        Operator::start_in(&world.cluster, &kubeconfig, &[], &Surroundings::default())?,
    ];
    for operator in &mut operators {
        operator.wait_ready().await?;
    }
    world.policy("envoy", sidecar("envoy")).await?;
    let mut fails = sidecar("proxy");
    fails["failurePolicy"] = json!("Fail");
    world.policy("proxy", fails).await?;
    for policy in ["envoy", "proxy"] {
        in_force(&world.cluster, policy).await?;
    }
    Ok((world, operators))
}

/// An upgrade and a downgrade, each with the engine that follows.
const THERE_AND_BACK: [(Version, &str); 2] = [(Version::V1_36, "MutatingAdmissionPolicy"), (Version::V1_34, "Webhook")];

/// Replaces the first API server by one of `version`, after which all are of that version, and waits for `engine`.
async fn change_first(world: &mut World, balancer: &Balancer, version: Version, engine: &str) -> Result<()> {
    balancer.remove(world.cluster.url())?;
    world.cluster.change_apiserver(version).await?;
    balancer.add(world.cluster.url())?;
    engine_is(world, engine).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(())
}

async fn engine_is(world: &World, engine: &str) -> Result<()> {
    within(2 * LIMIT, &format!("the engine is {engine}"), || async { Ok(engine_of(world, "envoy").await? == engine) })
        .await
}

async fn two_api_servers_are_upgraded_and_downgraded_one_by_one_and_no_create_is_left_out_or_refused() -> Result<()> {
    let balancer = Balancer::start().await?;
    let (mut world, _operators) = world(&balancer).await?;
    let second = world.cluster.apiserver_of(Version::V1_34).await?;
    balancer.add(second.url())?;
    let creators = Creators::start(&world.cluster, &balancer)?;
    let mut second = Some(second);
    for (version, engine) in THERE_AND_BACK {
        if let Some(old) = second.take() {
            balancer.remove(old.url())?;
        }
        let new = world.cluster.apiserver_of(version).await?;
        balancer.add(new.url())?;
        second = Some(new);
        tokio::time::sleep(Duration::from_secs(5)).await;
        change_first(&mut world, &balancer, version, engine).await?;
    }
    creators.ended(&["app", "envoy", "proxy"]).await
}

async fn one_api_server_is_upgraded_and_downgraded_and_no_create_is_left_out_or_refused() -> Result<()> {
    let balancer = Balancer::start().await?;
    let (mut world, _operators) = world(&balancer).await?;
    let creators = Creators::start(&world.cluster, &balancer)?;
    for (version, engine) in THERE_AND_BACK {
        change_first(&mut world, &balancer, version, engine).await?;
    }
    creators.ended(&["app", "envoy", "proxy"]).await
}

/// Writes the addresses of API servers as they do themselves.
pub(crate) async fn list_servers(cluster: &ControlPlane, urls: &[&str]) -> Result<()> {
    let subset = |url: &&str| {
        let address = address_of(url)?;
        Ok(json!({ "addresses": [{ "ip": address.ip() }], "ports": [{ "name": "https", "port": address.port() }] }))
    };
    let subsets = urls.iter().map(subset).collect::<Result<Vec<_>>>()?;
    let metadata = json!({ "name": "kubernetes", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "1" });
    let listed = json!({ "apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets });
    cluster.store("services/endpoints/default/kubernetes", &listed).await
}

async fn an_engine_that_one_of_two_api_servers_lacks_is_not_used_and_used_once_both_have_it() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::V1_36)).await?;
    let older = world.cluster.apiserver_of(Version::V1_34).await?;
    list_servers(&world.cluster, &[world.cluster.url(), older.url()]).await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    assert_eq!(engine_of(&world, "envoy").await?, "Webhook");
    let registered = world.registered().await?;
    assert!(registered.iter().all(|name| name.starts_with("mutatingwebhook")), "{registered:?}");
    let mut named = sidecar("proxy");
    (named["engine"], named["targets"]) =
        (json!("MutatingAdmissionPolicy"), json!([{ "group": "apps", "resource": "statefulsets" }]));
    world.policy("proxy", named).await?;
    let refused = wait_condition(&world.cluster, "proxy", "Ready", "False", "AdmissionPolicyApiOff").await?;
    let told = refused["message"].as_str().unwrap_or_default();
    assert!(told.contains("not every API server (v1.34.9, v1.36.3) serves `mutatingadmissionpolicies`"), "{told}");
    let (_, told) = scpol(&world.cluster, &["check"]).await?;
    assert!(told.contains("of different versions (v1.34.9, v1.36.3)"), "{told}");

    drop(older);
    list_servers(&world.cluster, &[world.cluster.url()]).await?;
    engine_is(&world, "MutatingAdmissionPolicy").await?;
    in_force(&world.cluster, "proxy").await
}
