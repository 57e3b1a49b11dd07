//! What the controller knows of one policy, and the emergency brake: a registration that was deleted by hand.

use super::Controller;
use super::status::condition_in;
use crate::api::code::Code;
use crate::api::condition::Outcome;
use crate::cluster::policies::Stored;
use crate::engine::initializer::types::InitializerConfiguration;
use crate::engine::registration::Unproven;
use crate::engine::{EngineName, Unavailable};
use crate::workload::Kind;
use jiff::Timestamp;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::warn;

/// What we know of one policy.
pub(super) struct Entry {
    pub(super) uid: String,
    pub(super) phase: Phase,
    pub(super) outcome: Outcome,
    /// Not to be registered again before.
    pub(super) hold: Option<Timestamp>,
    pub(super) retry_at: Option<Instant>,
    pub(super) seen: Instant,
    pub(super) written: Option<Instant>,
    /// The last reason of Ready of which an event told.
    pub(super) announced: Option<Value>,
    /// The kinds that the configuration covers.
    pub(super) kinds: Vec<Arc<Kind>>,
    /// What could not be proven of the registration.
    pub(super) unproven: Option<Unproven>,
    /// Somebody deleted the configuration while a task of ours was under way.
    pub(super) deleted_meanwhile: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Phase {
    /// Not registered, as far as we know.
    Out,
    /// A task brings it in force.
    Rising,
    /// In force.
    Up(Box<InitializerConfiguration>),
    /// A task takes it out.
    Falling,
}

impl Entry {
    pub(super) fn new(uid: &str) -> Self {
        Self {
            uid: uid.to_owned(),
            phase: Phase::Out,
            outcome: Outcome::FirstSight,
            hold: None,
            retry_at: None,
            seen: Instant::now(),
            written: None,
            announced: None,
            kinds: Vec::new(),
            unproven: None,
            deleted_meanwhile: false,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up(_))
    }

    pub(super) fn is_busy(&self) -> bool {
        matches!(self.phase, Phase::Rising | Phase::Falling)
    }
}

impl Controller {
    /// True if the policy's registration was deleted by hand not long ago, found out now or by an earlier leader.
    pub(super) fn is_held(&mut self, name: &str, stored: &Stored) -> bool {
        let registered = self.registered(name).is_some();
        let hold = self.settings.repair_hold;
        let Some(entry) = self.entries.get_mut(name) else { return false };
        if entry.hold.is_none() && entry.outcome == Outcome::FirstSight && !registered {
            let programmed = condition_in(&stored.status, "Programmed");
            match programmed.map(|condition| {
                (condition["status"].as_str(), condition["reason"].as_str(), condition["lastTransitionTime"].as_str())
            }) {
                // What we remove ourselves is marked in status first: nobody did here.
                Some((Some("True"), _, _)) if was_served(&stored.status) => hold_back(name, entry, hold),
                Some((_, Some("RemovedByHand"), Some(since))) => {
                    let since = since.parse().unwrap_or_else(|_| Timestamp::now());
                    entry.hold = Some(since + jiff::SignedDuration::try_from(hold).unwrap_or_default());
                }
                _ => {}
            }
        }
        let Some(until) = entry.hold else { return false };
        if registered || until <= Timestamp::now() {
            entry.hold = None;
            return false;
        }
        entry.outcome = held(until);
        true
    }
}

/// True if and only if a policy with that `status` was in force by Initializers, if only among others.
fn was_served(status: &Value) -> bool {
    let engines = status["engine"].as_str().unwrap_or_default();
    engines.split(',').any(|engine| engine == EngineName::Initializer.as_str())
}

pub(super) fn outcome_of(unavailable: Unavailable) -> Outcome {
    let Unavailable { code, message } = unavailable;
    match code {
        // Something of ours is on its way.
        Code::Reconciling => Outcome::FirstSight,
        Code::MissingRight
        | Code::ServerAway
        | Code::NotSynced
        | Code::ProbeFailed
        | Code::RemovedByHand
        | Code::WebhookUnreachable => Outcome::Waiting { code, message },
        _ => Outcome::Impossible { code, message },
    }
}

pub(super) fn hold_back(name: &str, entry: &mut Entry, hold: Duration) {
    let until = Timestamp::now() + jiff::SignedDuration::try_from(hold).unwrap_or_default();
    warn!(policy = name, %until, "The registration was removed by hand; it is not made again before");
    entry.hold = Some(until);
    entry.outcome = held(until);
}

fn held(until: Timestamp) -> Outcome {
    let message = format!(
        "the registration was deleted by hand; it is not made again before {}. To end the hold: suspend the policy and resume it",
        until.strftime("%Y-%m-%dT%H:%M:%SZ")
    );
    Outcome::Waiting { code: Code::RemovedByHand, message }
}
