//! The server's answers about registrations before they are written. Pure.
//!
//! The questions are dry-run writes. So a rejection becomes known while everything in effect stays as it is.

use super::rendered::{Draft, print};
use super::{Planner, Requests, View};
use crate::api::code::Code;
use crate::engine::choice::Hindrance;
use crate::engine::lifecycle::Registration;
use crate::engine::{EngineName, Unavailable};
use crate::timing;
use crate::workload::Kind;
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// The answers of the server, by [`Draft::print`].
pub(super) type Acceptances = BTreeMap<String, Acceptance>;

/// Whether the server accepts a registration or a template.
pub(in crate::controller) enum Acceptance {
    /// The request is on its way. Holds the reason of an earlier rejection, which counts until then.
    Asked(Option<Unavailable>),
    Taken,
    /// Rejected, or without a result. The question is repeated at that time, because other admission may be the reason.
    Refused(Unavailable, Instant),
}

impl Acceptance {
    /// The `answer` of the server at `now`. An expression that does not compile, and an invalid template, are asked about less
    /// often, because only other reasons pass by themselves.
    pub(in crate::controller) fn of(
        answer: Result<(), Unavailable>,
        now: Instant,
        timing: &timing::Controller,
    ) -> Self {
        let Err(reason) = answer else { return Self::Taken };
        let is_final = matches!(reason.code, Code::NotExpressible | Code::TemplateInvalid | Code::UnknownTemplateField);
        let pause = if is_final { timing.verify_again } else { timing.retry };
        Self::Refused(reason, now + pause)
    }

    /// Whether the question must be repeated.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        matches!(self, Self::Refused(_, at) if *at <= now)
    }

    /// Why the server did not accept it at the last time.
    pub(super) fn reason(&self) -> Option<&Unavailable> {
        match self {
            Self::Asked(reason) => reason.as_ref(),
            Self::Taken => None,
            Self::Refused(reason, _) => Some(reason),
        }
    }
}

/// Whether the server accepts these objects for that kind.
pub(in crate::controller) type Question = (Arc<Kind>, Vec<Value>);

/// The questions of one plan.
#[derive(Default)]
pub(super) struct Questions {
    /// The questions to send now.
    open: RefCell<BTreeMap<String, Question>>,
    /// The prints of all drafts of this plan.
    seen: RefCell<BTreeSet<String>>,
    /// Whether the plan considers an engine that needs this operator to answer.
    needs_operator: Cell<bool>,
}

impl Questions {
    /// Records that `engine` is considered.
    pub(super) fn note(&self, engine: EngineName) {
        self.needs_operator.set(self.needs_operator.get() || engine.engine().needs_operator());
    }
}

impl View<'_> {
    /// Whether the server accepts `draft`, which `engine` rendered for `kind`. Adds a question if that is unknown.
    pub(super) fn takes(&self, engine: EngineName, kind: &Arc<Kind>, draft: &Draft) -> Result<(), Hindrance> {
        // The same registration is in effect, so the server has accepted it.
        let live = self.inputs.registrations.of_kind(kind).and_then(Registration::live);
        if live.is_some_and(|live| live.is_of(engine, &draft.objects)) {
            return Ok(());
        }
        let print = &draft.print;
        self.questions.seen.borrow_mut().insert(print.clone());
        let known = self.planner.acceptances.get(print);
        if matches!(known, Some(Acceptance::Taken)) {
            return Ok(());
        }
        if known.is_none_or(|known| known.is_due(self.inputs.now)) {
            let mut open = self.questions.open.borrow_mut();
            open.entry(print.clone()).or_insert_with(|| (kind.clone(), draft.objects.clone()));
        }
        let reason = known.and_then(Acceptance::reason).cloned();
        // Nothing changes while the server does not answer.
        Err(reason.filter(|reason| reason.code != Code::ServerAway).map_or(Hindrance::Asked, Hindrance::from))
    }
}

impl Planner {
    /// Turns open questions into requests, and drops answers that this plan did not use.
    pub(super) fn take_questions(&mut self, questions: Questions, requests: &mut Requests) {
        requests.needs_operator |= questions.needs_operator.get();
        let seen = questions.seen.into_inner();
        self.acceptances.retain(|print, acceptance| seen.contains(print) || matches!(acceptance, Acceptance::Asked(_)));
        for (print, question) in questions.open.into_inner() {
            let before = self.acceptances.get(&print).and_then(Acceptance::reason).cloned();
            self.acceptances.insert(print.clone(), Acceptance::Asked(before));
            requests.rehearsals.push((print, question));
        }
    }

    /// Records an answer of the server.
    pub(in crate::controller) fn rehearsed(&mut self, print: String, acceptance: Acceptance) {
        self.acceptances.insert(print, acceptance);
        self.outdate();
    }

    /// Records that the server rejected `objects` on the real write, whatever the dry run said.
    pub(in crate::controller) fn note_refusal(
        &mut self,
        objects: &[Value],
        reason: &Unavailable,
        now: Instant,
        timing: &timing::Controller,
    ) {
        self.rehearsed(print(objects), Acceptance::of(Err(reason.clone()), now, timing));
    }
}
