//! What the controller knows of one policy.

use super::hold::Hold;
use crate::api::code::Code;
use crate::api::condition::Outcome;
use crate::engine::Unavailable;
use crate::engine::initializer::types::InitializerConfiguration;
use crate::engine::registration::Unproven;
use crate::workload::Kind;
use kube::api::ObjectMeta;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::warn;

/// What we know of one policy.
pub(super) struct Entry {
    pub(super) uid: String,
    pub(super) phase: Phase,
    pub(super) outcome: Outcome,
    /// It was suspended, or in Audit mode, when it was last looked at.
    pub(super) is_off: bool,
    /// Not to be registered again before.
    pub(super) hold: Option<Hold>,
    pub(super) retry_at: Option<Instant>,
    pub(super) seen: Instant,
    pub(super) written: Option<Instant>,
    /// The hash of the last spec that was found to be in force.
    pub(super) concluded: Option<String>,
    /// The last reason of Ready of which an event told.
    pub(super) announced: Option<Value>,
    /// The kinds that the configuration covers.
    pub(super) kinds: Vec<Arc<Kind>>,
    /// What could not be proven of the registration.
    pub(super) unproven: Option<Unproven>,
    /// When that is tried again.
    pub(super) prove_at: Option<Instant>,
    /// The configuration whose deletion the watch has shown, as it was, if it has not come back.
    pub(super) deleted: Option<ObjectMeta>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Phase {
    /// Not registered, as far as we know.
    Out,
    /// A task brings it in force; as what it was in force before.
    Rising(Option<Box<InitializerConfiguration>>),
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
            is_off: false,
            hold: None,
            retry_at: None,
            seen: Instant::now(),
            written: None,
            concluded: None,
            announced: None,
            kinds: Vec::new(),
            unproven: None,
            prove_at: None,
            deleted: None,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up(_))
    }

    /// True if and only if it is in force by a configuration that registers what `wanted` does.
    pub(super) fn is_up_as(&self, wanted: &InitializerConfiguration) -> bool {
        matches!(&self.phase, Phase::Up(there) if there.initializers == wanted.initializers)
    }

    pub(super) fn is_busy(&self) -> bool {
        matches!(self.phase, Phase::Rising(_) | Phase::Falling)
    }

    /// Notes what could not be proven, and to try again after `pause`.
    pub(super) fn doubt(&mut self, unproven: Option<Unproven>, pause: Duration) {
        // Of a custom resource nobody can ever tell.
        let is_doubtful = unproven.is_some() && self.kinds.iter().all(|kind| kind.is_in_table());
        self.prove_at = is_doubtful.then(|| Instant::now() + pause);
        self.unproven = unproven;
    }

    /// It is not registered any more; what could not be proven of that is over with it.
    pub(super) fn leave(&mut self) {
        self.phase = Phase::Out;
        (self.unproven, self.prove_at) = (None, None);
    }

    /// Somebody else has deleted the registration of the policy, which is called `name`.
    pub(super) fn hold_back(&mut self, name: &str, period: Duration) {
        let hold = Hold::begin(period);
        warn!(policy = name, until = %hold, "The registration was removed by hand; it is not made again before");
        self.leave();
        self.outcome = outcome_of(hold.reason());
        self.hold = Some(hold);
    }
}

pub(super) fn outcome_of(unavailable: Unavailable) -> Outcome {
    let Unavailable { code, message } = unavailable;
    match code {
        // Something of ours is on its way.
        Code::Reconciling => Outcome::FirstSight,
        Code::TemplateInvalid => Outcome::Rejected { code, message },
        Code::MissingRight
        | Code::ServerAway
        | Code::NotSynced
        | Code::ProbeFailed
        | Code::RemovedByHand
        | Code::WebhookUnreachable => Outcome::Waiting { code, message },
        _ => Outcome::Impossible { code, message },
    }
}
