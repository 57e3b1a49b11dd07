//! The controller's knowledge about one policy, beside its registrations.

use crate::api::code::Code;
use crate::api::condition::Readiness;
use crate::engine::Unavailable;
use serde_json::Value;
use std::time::Instant;

pub(super) struct PolicyState {
    pub(super) uid: String,
    pub(super) outcome: Readiness,
    /// Whether the policy was suspended or in Audit mode at the last look.
    pub(super) is_off: bool,
    pub(super) seen: Instant,
    /// When the status was last written.
    pub(super) written: Option<Instant>,
    /// The hash of the last spec that was in effect.
    pub(super) concluded: Option<String>,
    /// The reason of the condition Ready in the last event.
    pub(super) announced: Option<Value>,
}

impl PolicyState {
    pub(super) fn new(uid: &str, now: Instant) -> Self {
        Self {
            uid: uid.to_owned(),
            outcome: Readiness::FirstSight,
            is_off: false,
            seen: now,
            written: None,
            concluded: None,
            announced: None,
        }
    }
}

pub(super) fn outcome_of(unavailable: Unavailable) -> Readiness {
    let Unavailable { code, message } = unavailable;
    match code {
        // A task of ours is not finished.
        Code::Reconciling => Readiness::FirstSight,
        Code::TemplateInvalid => Readiness::Rejected { code, message },
        Code::MissingRight
        | Code::ServerAway
        | Code::NotSynced
        | Code::ProbeFailed
        | Code::RemovedByHand
        | Code::WebhookUnreachable => Readiness::Waiting { code, message },
        _ => Readiness::Impossible { code, message },
    }
}
