//! The parts of engines that run in the operator process.

use super::Unavailable;
use super::probe::Verification;
use super::reach::Reachable;
use crate::api::code::Code;
use crate::cluster::client::CallError;
use crate::policy::Policy;
use crate::workload::Kind;
use crate::workloads::Workloads;
use crate::workloads::waiting::Waiting;
use futures::future::BoxFuture;
use http::Uri;
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The flags of `scpol run` that engines need.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The largest number of objects that are completed at the same time.
    pub workers: usize,
    /// Whether the worker acts as a member of `system:masters`.
    pub priority_lane: bool,
    /// The address on which the operator serves API servers.
    pub listen: SocketAddr,
    /// The URL at which API servers call the operator; none to use its Service.
    pub url: Option<Uri>,
    /// The folder with the certificate; none to use a certificate of the operator's own.
    pub certificates: Option<PathBuf>,
    /// The file with the authorities of clients' certificates; none to serve any client.
    pub client_ca: Option<PathBuf>,
    /// Whether the operator registers the check of the rights of policy authors.
    pub author_check: bool,
    /// How long the operator does not restore a registration that a person deleted.
    pub repair_hold: Duration,
}

/// Registers policies one by one, and completes the stored objects that wait for them.
pub trait Worker: Waiting {
    /// Writes `object`, the registration of `policy` on `kinds`, and verifies it. Returns why it cannot be verified, if so. The
    /// watches of the kinds must be in sync.
    ///
    /// # Errors
    /// Why it is not in effect. After a failed verification it is not registered either, unless the server does not answer.
    fn register<'a>(
        &'a self,
        policy: &'a Policy,
        kinds: &'a [Arc<Kind>],
        object: &'a Value,
    ) -> BoxFuture<'a, Verification>;

    /// Verifies the registration of `policy` on `kinds`. Changes nothing.
    fn verify<'a>(&'a self, policy: &'a Policy, kinds: &'a [Arc<Kind>]) -> BoxFuture<'a, Verification>;

    /// Deletes the registration of the policy `name`.
    ///
    /// # Errors
    /// If the server fails. Call it again then.
    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), CallError>>;

    /// Sets the names of the policies whose registration a person has deleted. API servers go on asking for such a policy for up
    /// to 3 s. What they ask for is let through as it was posted.
    fn hold(&self, policies: BTreeSet<String>);

    /// Waits until no server uses a deleted registration, and no object of `kinds` waits for this operator.
    fn drain<'a>(&'a self, workloads: &'a Workloads, kinds: &'a [Arc<Kind>]) -> BoxFuture<'a, ()>;

    /// Completes waiting objects until `stop` is true.
    fn run(self: Arc<Self>, workloads: Arc<Workloads>, stop: watch::Receiver<bool>) -> BoxFuture<'static, ()>;

    /// The time since the last turn of the worker's loop.
    fn since_beat(&self) -> Duration;
}

/// Called once every registration has a bundle of authorities, as PEM.
pub type Published = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// The part of an engine that answers the API server in this replica.
pub struct Serving {
    /// How the API server reaches this operator, or why not.
    pub reach: watch::Receiver<Reachable>,
    /// Set to true once a policy needs the server.
    pub demand: watch::Sender<bool>,
    /// Called once every registration has the authorities in [`Self::reach`].
    pub published: Published,
    /// A task to run beside the controller while this replica leads.
    pub beside: Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
    /// Set to true to end the server.
    pub stop: watch::Sender<bool>,
    /// Ends once the server has answered its last call.
    pub task: JoinHandle<()>,
}

impl Serving {
    pub fn none() -> Self {
        let (_, reach) =
            watch::channel(Err(Unavailable::new(Code::EngineUnavailable, "no engine answers the API server")));
        Self {
            reach,
            demand: watch::Sender::new(false),
            published: Arc::new(|_| {}),
            beside: Arc::new(|| Box::pin(std::future::ready(()))),
            stop: watch::Sender::new(false),
            task: tokio::spawn(std::future::ready(())),
        }
    }
}
