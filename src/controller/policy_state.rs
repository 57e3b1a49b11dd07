//! What the controller knows of one policy, beside its registrations.

use crate::api::code::Code;
use crate::api::condition::Readiness;
use crate::engine::Unavailable;
use serde_json::Value;
use std::time::Instant;

/// What we know of one policy.
pub(super) struct PolicyState {
    pub(super) uid: String,
    pub(super) outcome: Readiness,
    /// It was suspended, or in Audit mode, when it was last looked at.
    pub(super) is_off: bool,
    pub(super) seen: Instant,
    /// When its status was last written.
    pub(super) written: Option<Instant>,
    /// The hash of the last spec that was found to be in effect.
    pub(super) concluded: Option<String>,
    /// The reason of Ready that the last event named.
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
        // Something of ours is on its way.
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
