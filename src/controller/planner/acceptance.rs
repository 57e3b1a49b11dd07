//! What the server says of registrations before they are written. Pure.
//!
//! The server is asked by writes that are not stored. So it is known what it rejects while everything that is in effect stays as it is.

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

/// Whether the server would take something.
pub(in crate::controller) enum Acceptance {
    /// It is being asked; why it did not take it before, if it did not.
    Asked(Option<Unavailable>),
    Taken,
    /// It does not. From that moment on it is asked again.
    Refused(Unavailable, Instant),
}

impl Acceptance {
    /// The answer of the server, given at `now`. Expressions that do not compile will not compile later; other reasons may pass.
    pub(in crate::controller) fn of(
        answer: Result<(), Unavailable>,
        now: Instant,
        timing: &timing::Controller,
    ) -> Self {
        match answer {
            Ok(()) => Self::Taken,
            Err(reason) => {
                let is_final = reason.code == Code::NotExpressible;
                let pause = if is_final { timing.verify_again } else { timing.retry };
                Self::Refused(reason, now + pause)
            }
        }
    }
}

/// Whether the server takes these objects, which are for that kind.
pub(in crate::controller) type Question = (Arc<Kind>, Vec<Value>);

/// What one plan asks.
#[derive(Default)]
pub(super) struct Questions {
    /// What the server is to be asked now.
    open: RefCell<BTreeMap<String, Question>>,
    /// Everything that was looked up.
    seen: RefCell<BTreeSet<String>>,
    /// An engine was considered that this operator has to answer for.
    needs_operator: Cell<bool>,
}

impl Questions {
    /// Notes that `engine` is considered.
    pub(super) fn note(&self, engine: EngineName) {
        self.needs_operator.set(self.needs_operator.get() || engine.engine().needs_operator());
    }
}

impl View<'_> {
    /// Whether the server would take `draft`, which `engine` has rendered for `kind`. If that is not known it becomes a question.
    pub(super) fn takes(&self, engine: EngineName, kind: &Arc<Kind>, draft: &Draft) -> Result<(), Hindrance> {
        // It has taken that already.
        let in_effect = self.inputs.registrations.of_kind(kind).and_then(Registration::in_effect);
        if in_effect.is_some_and(|in_effect| in_effect.is_of(engine, &draft.objects)) {
            return Ok(());
        }
        let print = &draft.print;
        self.questions.seen.borrow_mut().insert(print.clone());
        let ask = || {
            let mut open = self.questions.open.borrow_mut();
            open.entry(print.clone()).or_insert_with(|| (kind.clone(), draft.objects.clone()));
        };
        let reason = match self.planner.acceptances.get(print) {
            Some(Acceptance::Taken) => return Ok(()),
            Some(Acceptance::Asked(before)) => before.clone(),
            Some(Acceptance::Refused(reason, at)) => {
                if *at <= self.inputs.now {
                    ask();
                }
                Some(reason.clone())
            }
            None => {
                ask();
                None
            }
        };
        // While it does not answer, nothing changes.
        Err(reason.filter(|reason| reason.code != Code::ServerAway).map_or(Hindrance::Asked, Hindrance::from))
    }
}

impl Planner {
    /// Makes requests of the open questions, and forgets the answers that nobody asked for.
    pub(super) fn take_questions(&mut self, questions: Questions, requests: &mut Requests) {
        requests.needs_operator |= questions.needs_operator.get();
        let seen = questions.seen.into_inner();
        self.acceptances.retain(|print, acceptance| seen.contains(print) || matches!(acceptance, Acceptance::Asked(_)));
        for (print, question) in questions.open.into_inner() {
            let before = match self.acceptances.remove(&print) {
                Some(Acceptance::Refused(reason, _)) => Some(reason),
                _ => None,
            };
            self.acceptances.insert(print.clone(), Acceptance::Asked(before));
            requests.rehearsals.push((print, question));
        }
    }

    /// Takes over an answer of the server.
    pub(in crate::controller) fn rehearsed(&mut self, print: String, acceptance: Acceptance) {
        self.acceptances.insert(print, acceptance);
        self.outdate();
    }

    /// Notes that the server has not taken `objects` when they were written, whatever it said before.
    pub(in crate::controller) fn note_refusal(
        &mut self,
        objects: &[Value],
        reason: &Unavailable,
        now: Instant,
        timing: &timing::Controller,
    ) {
        self.rehearsed(print(objects), Acceptance::of(Err(reason.clone()), now, timing));
    }

    /// Whether the server is to be asked again.
    pub(super) fn is_rehearsal_due(&self, now: Instant) -> bool {
        let is_due = |acceptance: &Acceptance| matches!(acceptance, Acceptance::Refused(_, at) if *at <= now);
        self.acceptances.values().any(is_due)
    }
}
