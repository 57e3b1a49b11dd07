//! F14: a second API server lags behind, because its link to etcd is frozen or slow.

use crate::chaos::scene::{Engine, RECOVERY, Scene, agent, first, second};
use crate::chaos::stories::{in_force, well};
use crate::prelude::*;
use controlplane::ApiServer;
use sidecar_policy::timing::CALL_LIMIT;
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// The duration of the freeze: longer than a call may take.
const FROZEN: Duration = CALL_LIMIT.saturating_add(Duration::from_secs(2));
/// The delay of the slow link.
const BEHIND: Duration = Duration::from_secs(1);

/// The faults of a link.
#[derive(Clone, Copy, Default)]
struct Ails {
    /// Nothing passes in either direction.
    is_frozen: bool,
    /// Data from the far end is delayed by this time. Data to it passes at once.
    behind: Duration,
}

/// A TCP link that can be frozen and slowed down. After it is dropped it accepts no connections.
struct Link {
    address: SocketAddr,
    ails: watch::Sender<Ails>,
    serving: JoinHandle<()>,
}

impl Link {
    /// A link to `far`, without faults at first.
    async fn to(far: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, ails) = (listener.local_addr()?, watch::Sender::new(Ails::default()));
        let of_link = ails.clone();
        let serving = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (far, ails) = (far.clone(), of_link.clone());
                tokio::spawn(async move {
                    let ((near_in, near_out), (far_in, far_out)) =
                        (near.into_split(), TcpStream::connect(far).await?.into_split());
                    tokio::select! {
                        ended = carry(near_in, far_out, ails.subscribe(), |_| Duration::ZERO) => ended,
                        ended = carry(far_in, near_out, ails.subscribe(), |ails| ails.behind) => ended,
                    }
                });
            }
        });
        Ok(Self { address, ails, serving })
    }

    fn freeze(&self) {
        self.ails.send_modify(|ails| ails.is_frozen = true);
    }

    fn thaw(&self) {
        self.ails.send_modify(|ails| ails.is_frozen = false);
    }

    fn slow_down(&self, behind: Duration) {
        self.ails.send_modify(|ails| ails.behind = behind);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Passes bytes in order until one end closes, each piece with the delay `late`.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut ails: watch::Receiver<Ails>,
    late: fn(&Ails) -> Duration,
) -> io::Result<()> {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(1024);
    let mut read_ails = ails.clone();
    let read = async move {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let length = from.read(&mut buffer).await?;
            let due = Instant::now() + late(&read_ails.borrow_and_update());
            if length == 0 || sender.send((due, buffer[..length].to_vec())).await.is_err() {
                return Ok(());
            }
        }
    };
    let write = async move {
        while let Some((due, piece)) = pieces.recv().await {
            sleep_until(due).await;
            // The sender lives as long as the link.
            let _ = ails.wait_for(|ails| !ails.is_frozen).await;
            to.write_all(&piece).await?;
        }
        Ok(())
    };
    tokio::select! { ended = read => ended, ended = write => ended }
}

/// The operator moves from a current API server to one that is frozen, and then lags behind.
pub(crate) async fn stale_server(scene: &Scene) -> Result<()> {
    let cluster = &scene.world.cluster;
    let link = Link::to(cluster.etcd_address()).await?;
    let behind = cluster.second_apiserver(link.address).await?;
    in_force(scene).await?;
    scene.create_stubbornly(first(5)).await?;
    knows(&behind, "web-3", true).await?;
    edits_while_the_link_is_frozen_are_kept(scene, &link, &behind).await?;
    deletes_are_kept_while_the_server_is_behind(scene, &link).await?;
    well(scene, &[&first(7)[..], &first(15)[8..]].concat()).await?;
    let is_initializer = scene.engine == Engine::Initializer;
    let refused = scene.answered("deployments", &[404, 409, 422])?;
    ensure!(!is_initializer || refused > 0, "no write of ours was refused: what it read was not old");
    Ok(())
}

/// A JSON Patch that adds a label.
fn edit() -> Value {
    json!([{ "op": "add", "path": "/metadata/labels/by", "value": "someone" }])
}

/// The operator is switched to a server whose link is frozen: what users do meanwhile is neither lost nor undone.
async fn edits_while_the_link_is_frozen_are_kept(scene: &Scene, link: &Link, behind: &ApiServer) -> Result<()> {
    link.freeze();
    // New objects are seen through the current server, and the writes go to the other one.
    scene.signal("STOP")?;
    for body in &first(15)[5..] {
        scene.world.create_async(DEPLOYMENTS, body).await?;
    }
    scene.world.patch(&path("web-5"), &edit()).await?;
    scene.proxy.switch(behind.url());
    for again in ["web-0", "web-6"] {
        scene.world.delete(&path(again)).await?;
        scene.world.create_async(DEPLOYMENTS, &deployment(again)).await?;
    }
    scene.world.delete(&path("web-7")).await?;
    scene.signal("CONT")?;
    sleep(FROZEN).await;
    // It is behind, or all this proves nothing.
    knows(behind, "web-5", false).await?;
    link.thaw();
    settled(scene).await?;
    ensure!(scene.world.get(&path("web-7")).await?.is_none(), "what was deleted is there again");
    let edited = scene.world.get(&path("web-5")).await?.context("web-5 is gone")?;
    ensure!(edited["metadata"]["labels"]["by"] == "someone", "an edit is lost: {}", edited["metadata"]);
    Ok(())
}

/// Every answer is old, and writes go through: the operator starts on such a server, and knows nothing else.
async fn deletes_are_kept_while_the_server_is_behind(scene: &Scene, link: &Link) -> Result<()> {
    link.slow_down(BEHIND);
    scene.kill();
    scene.ready().await?;
    for (number, body) in second(12).iter().enumerate() {
        scene.world.create_async(DEPLOYMENTS, body).await?;
        let name = format!("two-{number}");
        match number % 4 {
            0 => drop(scene.world.patch(&path(&name), &edit()).await?),
            1 => {
                scene.world.delete(&path(&name)).await?;
                scene.world.create_async(DEPLOYMENTS, body).await?;
            }
            2 => scene.world.delete(&path(&name)).await?,
            _ => {}
        }
        // Each create meets the operator at another step of its work.
        sleep(BEHIND / 5).await;
    }
    scene.policy("agent", agent()).await?;
    scene.in_force("agent").await?;
    link.slow_down(Duration::ZERO);
    settled(scene).await?;
    for number in [2, 6, 10] {
        ensure!(scene.world.get(&path(&format!("two-{number}"))).await?.is_none(), "two-{number} is there again");
    }
    Ok(())
}

/// Waits until no object is waiting.
async fn settled(scene: &Scene) -> Result<()> {
    within(RECOVERY, "nothing waits", || async {
        Ok(scene.deployments().await?.iter().all(|object| pending(object).is_empty()))
    })
    .await
}

/// Waits until the second server shows a Deployment, or not, to reads at any version.
async fn knows(server: &ApiServer, name: &str, wanted: bool) -> Result<()> {
    let list = format!("{DEPLOYMENTS}?resourceVersion=0&includeUninitialized=1");
    within(RECOVERY, &format!("{name} is known: {wanted}"), || async {
        let list = request(&server.admin(), "GET", &list, &Value::Null).await?;
        let known = list["items"].as_array().into_iter().flatten().any(|object| object["metadata"]["name"] == name);
        Ok(known == wanted)
    })
    .await
}
