//! What the server says of registrations before they are written.
//!
//! The server is asked by writes that are not stored. So what it does not take is found out while everything that is in force stays as
//! it is.

use super::{Controller, Finished};
use crate::api::code::Code;
use crate::engine::choice::Hindrance;
use crate::engine::lifecycle::Registration;
use crate::engine::registration;
use crate::engine::{EngineName, Unavailable};
use crate::timing;
use crate::workload::Kind;
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// What the server has said, by [`print`].
pub(super) type Acceptances = BTreeMap<String, Acceptance>;

/// Whether the server would take something.
pub(super) enum Acceptance {
    /// It is being asked; why it did not take it before, if it did not.
    Asked(Option<Unavailable>),
    Taken,
    /// It does not. From that moment on it is asked again.
    Refused(Unavailable, Instant),
}

/// What one look at the plan wants to know.
#[derive(Default)]
pub(super) struct Questions {
    /// What the server is to be asked now.
    open: RefCell<BTreeMap<String, Question>>,
    /// All that was looked up.
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

/// Whether the server takes these objects, which are for that kind.
type Question = (Arc<Kind>, Vec<Value>);

/// Two registrations have the same if and only if they are the same.
fn print(objects: &[Value]) -> String {
    crate::digest::short(serde_json::to_string(objects).expect("values are JSON"))
}

impl Controller {
    /// Whether the server would take `objects`, which `engine` has rendered for `kind`. Who does not know asks, by `questions`.
    pub(super) fn takes(
        &self,
        questions: &Questions,
        engine: EngineName,
        kind: &Arc<Kind>,
        objects: &[Value],
    ) -> Result<(), Hindrance> {
        // It has taken that already.
        let in_effect = self.registrations.of_kind(kind).and_then(Registration::in_effect);
        if in_effect.is_some_and(|in_effect| in_effect.is_of(engine, objects)) {
            return Ok(());
        }
        let print = print(objects);
        questions.seen.borrow_mut().insert(print.clone());
        let ask = || drop(questions.open.borrow_mut().insert(print.clone(), (kind.clone(), objects.to_vec())));
        let reason = match self.acceptances.get(&print) {
            Some(Acceptance::Taken) => return Ok(()),
            Some(Acceptance::Asked(before)) => before.clone(),
            Some(Acceptance::Refused(reason, at)) => {
                if *at <= Instant::now() {
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

    /// Asks the server what is to be known, and forgets what nobody wanted to.
    pub(super) fn ask_server(&mut self, questions: Questions) {
        if questions.needs_operator.get() {
            // The webhook starts.
            self.settings.demand.send_if_modified(|demand| !std::mem::replace(demand, true));
        }
        let seen = questions.seen.into_inner();
        self.acceptances.retain(|print, acceptance| seen.contains(print) || matches!(acceptance, Acceptance::Asked(_)));
        for (print, (kind, objects)) in questions.open.into_inner() {
            let before = match self.acceptances.remove(&print) {
                Some(Acceptance::Refused(reason, _)) => Some(reason),
                _ => None,
            };
            self.acceptances.insert(print.clone(), Acceptance::Asked(before));
            let (place, slots) = (self.place_of(&kind), self.trial_slots.clone());
            let timing = &self.operator.timing.controller;
            self.tasks.spawn(async move {
                let _slot = slots.acquire_owned().await;
                let answer = registration::rehearse(&place, &objects).await;
                Finished::Rehearsed(print, answer.map_or_else(|reason| refused(reason, timing), |()| Acceptance::Taken))
            });
        }
    }

    /// Takes over what the server has said.
    pub(super) fn rehearsed(&mut self, print: String, acceptance: Acceptance) {
        self.acceptances.insert(print, acceptance);
        self.plan = None;
    }

    /// Notes that the server has not taken `objects` when they were written, whatever it said before.
    pub(super) fn note_refusal(&mut self, objects: &[Value], reason: &Unavailable) {
        let acceptance = refused(reason.clone(), &self.operator.timing.controller);
        self.acceptances.insert(print(objects), acceptance);
        self.plan = None;
    }

    /// True if the server is to be asked again.
    pub(super) fn is_rehearsal_due(&self) -> bool {
        let is_due =
            |acceptance: &Acceptance| matches!(acceptance, Acceptance::Refused(_, at) if *at <= Instant::now());
        self.acceptances.values().any(is_due)
    }
}

/// Expressions that do not compile will not do so later either; what else speaks against it may pass.
fn refused(reason: Unavailable, timing: &timing::Controller) -> Acceptance {
    let pause = if reason.code == Code::NotExpressible { timing.verify_again } else { timing.retry };
    Acceptance::Refused(reason, Instant::now() + pause)
}
