//! What engines do in the operator process.

use super::Unavailable;
use super::reach::Reachable;
use super::registration::{Unverified, Verification};
use crate::api::code::Code;
use crate::cluster::client::CallError;
use crate::policy::Policy;
use crate::workload::Kind;
use crate::workloads::Workloads;
use crate::workloads::waiting::Waiting;
use futures::future::BoxFuture;
use http::Uri;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The flags of `scpol run` that engines need.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The most objects that are completed at one time.
    pub workers: usize,
    /// Whether objects are completed as a member of `system:masters`.
    pub priority_lane: bool,
    /// The address on which API servers reach the operator.
    pub listen: SocketAddr,
    /// The URL at which API servers call the operator; none for its Service.
    pub url: Option<Uri>,
    /// The folder with the certificate; none for the operator's own.
    pub certificates: Option<PathBuf>,
    /// Whether the API server asks about the authors of policies.
    pub author_check: bool,
    /// How long a registration that a person deleted is not made again.
    pub repair_hold: Duration,
}

/// Registers policies one by one, and completes the stored objects that wait for them.
pub trait Worker: Waiting {
    /// Writes `object`, the registration of `policy` on `kinds`, and verifies it. The result says why nobody can verify it. The
    /// watches of the kinds must be in sync.
    ///
    /// # Errors
    /// Why it is not in effect. It is not registered then, unless the server does not answer.
    fn register<'a>(
        &'a self,
        policy: &'a Policy,
        kinds: &'a [Arc<Kind>],
        object: &'a Value,
    ) -> BoxFuture<'a, Result<Option<Unverified>, Unavailable>>;

    /// Verifies the registration of `policy` on `kinds`. Changes nothing.
    fn verify<'a>(&'a self, policy: &'a Policy, kinds: &'a [Arc<Kind>]) -> BoxFuture<'a, Verification>;

    /// Deletes the registration of the policy `name`.
    ///
    /// # Errors
    /// If the server does not do it; to be called again then.
    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), CallError>>;

    /// Waits until no server uses a deleted registration any more, and until no object of `kinds` waits for us.
    fn drain<'a>(&'a self, workloads: &'a Workloads, kinds: &'a [Arc<Kind>]) -> BoxFuture<'a, ()>;

    /// Completes the objects that wait, until `stop` is true.
    fn run(self: Arc<Self>, workloads: Arc<Workloads>, stop: watch::Receiver<bool>) -> BoxFuture<'static, ()>;

    /// How long ago its loop turned last.
    fn since_beat(&self) -> Duration;
}

/// Told once every registration has a bundle of authorities, as PEM.
pub type Published = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// What answers the API server in this replica.
pub struct Serving {
    /// How the API server reaches it, or why it does not.
    pub reach: watch::Receiver<Reachable>,
    /// To be set to true once a policy needs it.
    pub demand: watch::Sender<bool>,
    /// To be called once every registration has the authorities that [`Self::reach`] names.
    pub published: Published,
    /// What runs beside the controller while this replica leads.
    pub beside: Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
    /// Ends it.
    pub stop: watch::Sender<bool>,
    /// Ends once it has answered its last call.
    pub task: JoinHandle<()>,
}

impl Serving {
    /// No engine answers the API server.
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
