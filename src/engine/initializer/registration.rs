//! Registers and unregisters a policy.
//!
//! *Serve before registering*: first the API must be served, the list and watch of every target in sync, and the rights
//! granted. Only then the server may put our name on new objects. A dry-run create shows whether it does. *Unregister before
//! leaving*: the reverse order, and objects that still wait for us are drained.

use super::types;
use crate::api::code::Code;
use crate::cluster::client::{CallError, backoff};
use crate::cluster::rights::{self, Right};
use crate::engine::Unavailable;
use crate::engine::probe::{ProbeResult, Verification};
use crate::engine::registration;
use crate::engine::trial::{self, Strictness};
use crate::naming::own_name;
use crate::operator::Operator;
use crate::policy::Policy;
use crate::timing::{CREATE_LIMIT, Waited};
use crate::workload::Kind;
use crate::workloads::Workloads;
use crate::workloads::watch::{can_never_be_read, look_for_waiting};
use kube::Client;
use kube::core::ApiResource;
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;
use tracing::info;

/// Registers `policy` as `wanted`, which covers `kinds`, and verifies it. Returns why it cannot be verified, if so: another
/// admission plugin may reject every object that we try.
///
/// The watches of its kinds must be in sync.
///
/// # Errors
/// Why it is not in effect. A failed verification deletes the registration, unless the server does not answer.
pub async fn register(operator: &Operator, policy: &Policy, kinds: &[Arc<Kind>], wanted: &Value) -> Verification {
    check_rights(operator, kinds).await?;
    registration::apply(&operator.client, &types::resource(), wanted).await?;
    match verify(operator, policy, kinds).await {
        Ok(unverified) => {
            let is_proven = unverified.is_none();
            info!(policy = policy.name, initializer = policy.initializer_name, is_proven, "Registered");
            Ok(unverified)
        }
        // The registration may be in effect. Without an answer we must not delete it, and could not.
        Err(unavailable) if unavailable.code == Code::ServerAway => Err(unavailable),
        Err(unavailable) => {
            remove(&operator.client, &policy.name).await?;
            Err(unavailable)
        }
    }
}

/// Checks that we have the rights to change every target.
async fn check_rights(operator: &Operator, kinds: &[Arc<Kind>]) -> Result<(), Unavailable> {
    for kind in kinds {
        for verb in ["patch", "initialize"] {
            if !rights::may(&operator.client, &Right::everywhere(verb, &kind.group, &kind.resource)).await? {
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

/// Deletes the configuration of the policy `name`, if it is ours.
///
/// # Errors
/// If the server fails. A missing configuration is no error.
pub async fn remove(client: &Client, name: &str) -> Result<(), CallError> {
    registration::remove(client, &types::resource(), &own_name(name)).await
}

/// Verifies the registration of `policy` on `kinds`: repeats a dry-run create of each kind in our own namespace until our name
/// is on it.
pub async fn verify(operator: &Operator, policy: &Policy, kinds: &[Arc<Kind>]) -> Verification {
    let (timing, mut unverified) = (&operator.timing.configuration, None);
    for kind in kinds {
        let mut waited = Waited::begin(Instant::now());
        loop {
            let shows = probe(operator, policy, kind).await?;
            let waited = waited.so_far(Instant::now());
            match shows {
                ProbeResult::Shown => break,
                ProbeResult::NotYet(_) => {}
                ProbeResult::CannotTell(message) => {
                    tokio::time::sleep(timing.settling).await;
                    unverified = Some((Code::ProbeFailed, message));
                    break;
                }
            }
            if waited > timing.probe_limit {
                let message = format!(
                    "registered, but a new {} did not get our entry in {} s: is the admission plugin on? Start the API server with `--enable-admission-plugins=Initializers`",
                    operator.kind_name(kind),
                    timing.probe_limit.as_secs_f64()
                );
                return Err(Unavailable::new(Code::InitializersPluginOff, message));
            }
            tokio::time::sleep(timing.probe_pause).await;
        }
    }
    Ok(unverified)
}

/// Whether the server puts our name on a new object of `kind`.
async fn probe(operator: &Operator, policy: &Policy, kind: &Kind) -> Result<ProbeResult, Unavailable> {
    let Some(resource) = probed(operator, policy, kind) else { return Ok(ProbeResult::NotYet(None)) };
    let namespace = &operator.site().operator_namespace;
    let object = trial::sample(kind, &resource);
    let tried = trial::create(&operator.client, &resource, namespace, &object, Strictness::Lenient).await;
    let answer = match tried {
        Ok(answer) => answer,
        Err(error) => return trial::refused(&error, &resource, namespace).map(ProbeResult::CannotTell),
    };
    let pending = answer["metadata"]["initializers"]["pending"].as_array().cloned().unwrap_or_default();
    let is_there = pending.iter().any(|entry| entry["name"] == policy.initializer_name.as_str());
    Ok(if is_there { ProbeResult::Shown } else { ProbeResult::NotYet(None) })
}

/// The resource to try, in a version that the policy's targets name.
fn probed(operator: &Operator, policy: &Policy, kind: &Kind) -> Option<ApiResource> {
    let mut resource = operator.resource(kind)?;
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

/// Waits until no server uses a deleted registration. Then reads all objects of `kinds` until two passes in a row show none
/// that waits for us; the worker completes them. Stops after the time limit of a create, because other objects may begin to
/// wait, or one may be stuck.
///
/// The watch of a kind runs longer and shows what a pass misses.
pub async fn drain(workloads: &Workloads, kinds: &[Arc<Kind>]) {
    let timing = &workloads.operator.timing.configuration;
    tokio::time::sleep(timing.settling).await;
    let (since, mut clean) = (Instant::now(), 0);
    let mut pauses = backoff(timing.first_drain_pause, timing.longest_drain_pause);
    while clean < 2 && since.elapsed() < CREATE_LIMIT {
        let (mut waiting, mut is_read) = (0, true);
        for kind in kinds {
            match look_for_waiting(workloads, kind).await {
                Ok(found) => waiting += found,
                Err(error) => is_read &= can_never_be_read(&error),
            }
        }
        if is_read && waiting == 0 {
            clean += 1;
        } else {
            clean = 0;
            tokio::time::sleep(pauses.next().unwrap_or_default()).await;
        }
    }
}
