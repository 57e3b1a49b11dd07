//! The first contact with the API server.

use crate::capabilities::Capabilities;
use crate::cluster::api::Api;
use crate::cluster::client::{CallError, call, said};
use crate::cluster::object::Object;
use crate::cluster::policies;
use crate::cluster::servers::Servers;
use crate::timing;
use anyhow::{Result, anyhow};
use kube::Client;
use kube::api::ListParams;
use std::time::Instant;
use tracing::warn;

/// Waits for the server. Fails if waiting does not help.
pub(super) async fn server(servers: &Servers, timing: &timing::Process) -> Result<Capabilities> {
    let since = Instant::now();
    loop {
        let found = match servers.discover(|_| false).await {
            Ok(capabilities) => check_policies(&servers.client).await.map(|()| capabilities),
            Err(error) => Err(error),
        };
        match found {
            Ok(capabilities) => return Ok(capabilities),
            Err(error) if matches!(error.code(), 401 | 404) => return Err(hopeless(&error)),
            Err(error) if error.is_forbidden() && since.elapsed() > timing.rights => return Err(hopeless(&error)),
            Err(error) => warn!(%error, "The API server does not answer; trying again"),
        }
        tokio::time::sleep(timing.reach_pause).await;
    }
}

/// Checks that the CRD exists, and that we have the right to read policies.
async fn check_policies(client: &Client) -> Result<(), CallError> {
    let api = Api::<Object>::all_with(client.clone(), &policies::resource());
    call(api.list(&ListParams::default().limit(1))).await.map(drop)
}

fn hopeless(error: &CallError) -> anyhow::Error {
    match error.code() {
        404 => anyhow!(
            "the server has no SidecarPolicies: install the CRD first, `scpol crd | kubectl apply -f -` (before 1.16: `scpol crd --api v1beta1`)"
        ),
        401 => anyhow!(
            "the server does not accept our credentials: check the kubeconfig or the service account's token ({})",
            said(error.message())
        ),
        _ => anyhow!(
            "a right is missing without which the operator cannot start: {}; apply the shipped RBAC (`config/rbac`)",
            said(error.message())
        ),
    }
}
