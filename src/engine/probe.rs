//! Verifies registrations by probes: dry-run creates of objects that ask whether a registration is in effect.

use super::registrar::{Registrar, name_of, refuses};
use super::trial::{self, Strictness};
use super::{Engine, EngineName, Sharing, Unavailable, revision_of};
use crate::api::code::Code;
use crate::cluster::client::CallError;
use crate::naming::{PROBE, PROBE_UNSEEN, refusal_of};
use crate::timing::{self, Waited};
use crate::workload::Kind;
use kube::core::ApiResource;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Why a registration cannot be verified, with its code: the server rejects every object that we try.
pub type Unverified = (Code, String);

/// The result of verifying a registration by dry-run creates: none if one shows its effect. An error if it has no effect, or if
/// dry runs are impossible.
pub type Verification = Result<Option<Unverified>, Unavailable>;

/// What a dry-run create shows of a registration.
pub enum ProbeResult {
    /// It is in effect.
    Shown,
    /// Not yet, with the server's message.
    NotYet(Option<String>),
    /// Somebody else rejects the trial, or a replica of ours has not seen the registration yet.
    CannotTell(String),
}

/// The label of a probe that no registration rejects.
const PROBE_INJECT: &str = "inject";

/// The effect of a registration on a probe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Injects,
    Refuses,
}

/// A question to one registration.
struct Probe<'a> {
    registrar: &'a Registrar,
    engine: &'a dyn Engine,
    sharing: &'a dyn Sharing,
    effect: Effect,
    /// The revision of the registration that must answer.
    revision: &'a str,
    /// The value of the label [`PROBE`].
    asks: &'a str,
}

/// Verifies by dry-run creates that `objects`, which `engine` rendered and which are registered, are in effect. Changes
/// nothing.
pub async fn verify(registrar: &Registrar, engine: EngineName, objects: &[Value]) -> Verification {
    let (refusing, injecting): (Vec<_>, Vec<_>) = objects.iter().partition(|object| refuses(object));
    for (step, effect) in [(injecting, Effect::Injects), (refusing, Effect::Refuses)] {
        let unverified = show(registrar, engine, &step, effect).await?;
        if unverified.is_some() {
            return Ok(unverified);
        }
    }
    Ok(None)
}

/// Waits until the registered `objects` have an effect. Returns why that cannot be verified.
///
/// # Errors
/// Why they have none in time.
pub(super) async fn show(
    registrar: &Registrar,
    engine: EngineName,
    objects: &[&Value],
    effect: Effect,
) -> Verification {
    let engine = engine.engine();
    let Some(sharing) = engine.sharing() else { return Ok(None) };
    // A binding has no revision of its own, and what stands by has no effect on a probe.
    match effect {
        Effect::Injects => match objects.iter().find_map(|object| sharing.revision_of(object)) {
            Some(revision) => {
                Probe { registrar, engine, sharing, effect, revision: &revision, asks: PROBE_INJECT }.show().await
            }
            None => Ok(None),
        },
        Effect::Refuses => {
            let mut unverified = None;
            for object in objects {
                let Some(revision) = revision_of(object) else { continue };
                let asks = refusal_of(name_of(object));
                let doubt = Probe { registrar, engine, sharing, effect, revision: &revision, asks }.show().await?;
                unverified = unverified.or(doubt);
            }
            Ok(unverified)
        }
    }
}

impl Probe<'_> {
    /// Waits until the registration answers. Returns why that cannot be verified.
    async fn show(&self) -> Verification {
        let Registrar { timing, kind, capabilities, .. } = self.registrar;
        match repeat(timing, timing.probe_pause, || self.once()).await? {
            ProbeResult::Shown => Ok(None),
            ProbeResult::CannotTell(message) => Ok(Some((Code::ProbeFailed, message))),
            ProbeResult::NotYet(why) => {
                let limit = timing.probe_limit.as_secs_f64();
                let tried = format!("registered, but a new {} did not show it in {limit} s", kind.resource);
                Err(self.sharing.without_effect(&tried, why.as_deref(), capabilities))
            }
        }
    }

    async fn once(&self) -> Result<ProbeResult, Unavailable> {
        let Registrar { client, capabilities, namespace, kind, timing } = self.registrar;
        let Some(resource) = capabilities.resource(kind) else { return Ok(ProbeResult::NotYet(None)) };
        let object = object(kind, &resource, self.asks);
        match trial::create(client, &resource, namespace, &object, Strictness::Lenient).await {
            Ok(answer) => {
                let answers = answer["metadata"]["annotations"][PROBE].as_str().unwrap_or_default();
                let has = |wanted: &str| answers.split(',').any(|answer| answer == wanted);
                Ok(if self.effect == Effect::Injects && has(self.revision) {
                    ProbeResult::Shown
                } else if has(PROBE_UNSEEN) {
                    ProbeResult::CannotTell(format!(
                        "not proven: a replica of the webhook has not seen the registration {} s later; see its log",
                        timing.settling.as_secs_f64()
                    ))
                } else {
                    ProbeResult::NotYet(None)
                })
            }
            Err(error) if is_unanswered(&error) => match self.engine.needs_operator() {
                // This error contains the URL, and so the revision: it proves nothing.
                true => Ok(ProbeResult::NotYet(Some(error.to_string()))),
                false => trial::refused(&error, &resource, namespace).map(ProbeResult::CannotTell),
            },
            Err(error) if self.effect == Effect::Refuses && error.repeats(self.revision) => Ok(ProbeResult::Shown),
            Err(error) => trial::refused(&error, &resource, namespace).map(ProbeResult::CannotTell),
        }
    }
}

/// Repeats `probe` until it shows the registration, or the time for that is over.
///
/// # Errors
/// The first of `probe`.
pub(super) async fn repeat<F: Future<Output = Result<ProbeResult, Unavailable>>>(
    timing: &timing::Registration,
    pause: Duration,
    probe: impl Fn() -> F,
) -> Result<ProbeResult, Unavailable> {
    let mut waited = Waited::begin(Instant::now());
    loop {
        let result = probe().await?;
        let waited = waited.so_far(Instant::now());
        let is_over = match result {
            ProbeResult::Shown => true,
            ProbeResult::CannotTell(_) => waited >= timing.settling,
            ProbeResult::NotYet(_) => waited >= timing.probe_limit,
        };
        if is_over {
            return Ok(result);
        }
        tokio::time::sleep(pause).await;
    }
}

/// An object that asks whether a registration is in effect. `asks` is the value of its label [`PROBE`].
pub(super) fn object(kind: &Kind, resource: &ApiResource, asks: &str) -> Value {
    let mut object = trial::sample(kind, resource);
    object["metadata"]["labels"][PROBE] = Value::from(asks);
    object
}

/// Whether the API server rejected a request because a webhook of ours did not answer.
pub(super) fn is_unanswered(error: &CallError) -> bool {
    error.is_of_uncalled_webhook(|name| name.ends_with(".scpol.dev"))
}

/// The API server cannot reach the webhook; `why` in its own words.
pub(super) fn unanswered(why: &str) -> Unavailable {
    Unavailable::new(Code::WebhookUnreachable, format!("the API server gets no answer from the webhook: {why}"))
}
