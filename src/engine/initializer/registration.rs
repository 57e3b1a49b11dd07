//! Brings a policy in force, and takes it out again.
//!
//! *Serve before registering*: the API must be served, the list and watch of every target in sync, and the rights there,
//! before the server is told to put our name on new objects. Then a create that is not stored shows whether it does.
//! *Unregister before leaving*: the other way round, and what still waits for us is drained.

use super::render;
use super::types::{self, InitializerConfiguration};
use crate::api::code::Code;
use crate::cluster::client::{CallError, backoff};
use crate::engine::Unavailable;
use crate::engine::registration::{self, Unverified, Verification};
use crate::engine::trial::{self, Strictness};
use crate::policy::Policy;
use crate::timing::CREATE_LIMIT;
use crate::workload::Kind;
use crate::workloads::watch::{Shared, look_for_waiting};
use kube::Client;
use kube::core::ApiResource;
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;
use tracing::info;

/// Registers `policy` as `wanted`, which covers `kinds`, and verifies it. The result is why nobody can verify it, if nobody can:
/// another admission plugin may reject whatever we try.
///
/// The watches of its kinds must be in sync.
///
/// # Errors
/// Why it is not in force; nothing is registered then.
pub async fn register(
    shared: &Shared,
    policy: &Policy,
    kinds: &[Arc<Kind>],
    wanted: &Value,
) -> Result<Option<Unverified>, Unavailable> {
    check_rights(shared, kinds).await?;
    registration::apply(&shared.client, &types::resource(), wanted).await?;
    match verified(shared, policy, kinds).await {
        Ok(unverified) => {
            let is_proven = unverified.is_none();
            info!(policy = policy.name, initializer = policy.initializer_name, is_proven, "Registered");
            Ok(unverified)
        }
        // Perhaps it is in force: who cannot ask must not take it away, and could not.
        Err(unavailable) if unavailable.code == Code::ServerAway => Err(unavailable),
        Err(unavailable) => {
            remove(&shared.client, &policy.name).await?;
            Err(unavailable)
        }
    }
}

/// Asks the server whether we may do to every target what we must.
async fn check_rights(shared: &Shared, kinds: &[Arc<Kind>]) -> Result<(), Unavailable> {
    for kind in kinds {
        for verb in ["patch", "initialize"] {
            if !registration::may(&shared.client, verb, &kind.group, &kind.resource, None).await? {
                let message = format!(
                    "the operator may not `{verb}` {} (group `{}`) in all namespaces; apply the shipped RBAC, or grant the verb",
                    kind.resource, kind.group
                );
                return Err(Unavailable::new(Code::MissingRight, message));
            }
        }
    }
    Ok(())
}

/// Whether `stored` is what we `wanted`, however the server has completed it.
pub fn is_as(stored: &InitializerConfiguration, wanted: &InitializerConfiguration) -> bool {
    stored.initializers == wanted.initializers
        && stored.metadata.labels == wanted.metadata.labels
        && !registration::is_marked(&stored.metadata)
        && stored.metadata.owner_references == wanted.metadata.owner_references
}

/// Deletes the configuration of the policy `name`, if it is ours.
///
/// # Errors
/// If the server does not do it. That there is none is no error.
pub async fn remove(client: &Client, name: &str) -> Result<(), CallError> {
    registration::remove(client, &types::resource(), &render::name(name)).await
}

/// Verifies the registration of `policy` on `kinds`: creates an object of each kind in our own namespace without storing it, until our
/// name shows on it.
pub async fn verify(shared: &Shared, policy: &Policy, kinds: &[Arc<Kind>]) -> Verification {
    verified(shared, policy, kinds).await.into()
}

async fn verified(shared: &Shared, policy: &Policy, kinds: &[Arc<Kind>]) -> Result<Option<Unverified>, Unavailable> {
    let (timing, mut unverified) = (&shared.timing.initializer, None);
    for kind in kinds {
        let since = Instant::now();
        loop {
            match probe(shared, policy, kind).await? {
                Shows::Yes => break,
                Shows::NotYet => {}
                Shows::CannotTell(message) => {
                    tokio::time::sleep(timing.settling).await;
                    unverified = Some((Code::ProbeFailed, message));
                    break;
                }
            }
            if since.elapsed() > timing.probe_limit {
                let message = format!(
                    "registered, but a new {} did not get our entry in {} s: is the admission plugin on? Start the API server with `--enable-admission-plugins=Initializers`",
                    shared.kind_name(kind),
                    timing.probe_limit.as_secs_f64()
                );
                return Err(Unavailable::new(Code::InitializersPluginOff, message));
            }
            tokio::time::sleep(timing.probe_pause).await;
        }
    }
    Ok(unverified)
}

/// Whether our name shows on a new object.
enum Shows {
    Yes,
    NotYet,
    /// Somebody else refuses what is tried.
    CannotTell(String),
}

/// Whether the server puts our name on a new object of `kind`.
async fn probe(shared: &Shared, policy: &Policy, kind: &Kind) -> Result<Shows, Unavailable> {
    let Some(resource) = probed(shared, policy, kind) else { return Ok(Shows::NotYet) };
    let namespace = &shared.site().operator_namespace;
    let object = trial::sample(kind, &resource);
    let tried = trial::create(&shared.client, &resource, namespace, &object, Strictness::Lenient).await;
    let answer = match tried {
        Ok(answer) => answer,
        Err(error) => return trial::refused(&error, &resource, namespace).map(Shows::CannotTell),
    };
    let pending = answer["metadata"]["initializers"]["pending"].as_array().cloned().unwrap_or_default();
    let is_there = pending.iter().any(|entry| entry["name"] == policy.initializer_name.as_str());
    Ok(if is_there { Shows::Yes } else { Shows::NotYet })
}

/// Through which version to try: one that the policy's targets name.
fn probed(shared: &Shared, policy: &Policy, kind: &Kind) -> Option<ApiResource> {
    let mut resource = shared.resource(kind)?;
    if !policy.targets_of(kind).any(|target| target.version == "*") {
        let target = policy.targets_of(kind).next()?;
        resource.group = target.group.clone();
        resource.version = target.version.clone();
        resource.api_version = if target.group.is_empty() {
            target.version.clone()
        } else {
            format!("{}/{}", target.group, target.version)
        };
    }
    Some(resource)
}

/// Unregisters the policy `name`, waits until no server uses the configuration any more, and drains what waits.
///
/// # Errors
/// If the server does not unregister it; to be called again then.
pub async fn unregister(shared: &Shared, name: &str, kinds: &[Arc<Kind>]) -> Result<(), CallError> {
    remove(&shared.client, name).await?;
    tokio::time::sleep(shared.timing.initializer.settling).await;
    drain(shared, kinds).await;
    Ok(())
}

/// Looks at every object of `kinds` until two passes in a row show none that waits for us; the worker clears them. At most for as
/// long as somebody waits for a create: others may keep on beginning to wait, and one may be stuck.
///
/// Whatever a pass cannot show, the watch of the kind does, which goes on for longer.
pub async fn drain(shared: &Shared, kinds: &[Arc<Kind>]) {
    let (since, mut clean) = (Instant::now(), 0);
    let timing = &shared.timing.initializer;
    let mut pauses = backoff(timing.first_drain_pause, timing.longest_drain_pause);
    while clean < 2 && since.elapsed() < CREATE_LIMIT {
        let mut waiting = 0;
        for kind in kinds {
            waiting += look_for_waiting(shared, kind).await.unwrap_or_default();
        }
        if waiting == 0 {
            clean += 1;
        } else {
            clean = 0;
            tokio::time::sleep(pauses.next().unwrap_or_default()).await;
        }
    }
}
