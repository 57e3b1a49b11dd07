//! Which engines turned out not to work, though the server seems to have them. Pure.

use super::Planner;
use crate::api::code::Code;
use crate::engine::lifecycle::is_lasting;
use crate::engine::{EngineName, Unavailable};
use crate::timing;
use crate::workload::Kind;
use std::sync::Arc;
use std::time::Instant;

/// An engine that does not work, on one kind or on all.
pub(in crate::controller) type Blocked = (EngineName, Option<Arc<Kind>>);

impl Planner {
    /// Notes that `engine` does not work, on `kind` or at all, if that is why it did not.
    pub(in crate::controller) fn block(
        &mut self,
        engine: EngineName,
        kind: &Arc<Kind>,
        reason: &Unavailable,
        now: Instant,
    ) {
        if !is_lasting(reason) {
            return;
        }
        // A right may be missing for one kind alone.
        let kind = (reason.code == Code::MissingRight).then(|| kind.clone());
        self.blocked.insert((engine, kind), (reason.clone(), now));
        self.outdate();
    }

    /// Why `engine` does not work on `kind`, as far as it has been tried.
    pub(super) fn why_blocked(&self, engine: EngineName, kind: &Arc<Kind>) -> Option<&Unavailable> {
        let found = self.blocked.get(&(engine, None)).or_else(|| self.blocked.get(&(engine, Some(kind.clone()))));
        found.map(|(reason, _)| reason)
    }

    /// Forgets which engines do not work: perhaps the server was started otherwise.
    pub(in crate::controller) fn unblock_all(&mut self) {
        self.blocked.clear();
    }

    /// Forgets what was found out of the server's flags some time ago, where a policy waits for that.
    pub(in crate::controller) fn unblock_awaited(
        &mut self,
        is_awaited: impl Fn(&Unavailable) -> bool,
        now: Instant,
        timing: &timing::Controller,
    ) {
        let before = self.blocked.len();
        self.blocked.retain(|_, (reason, since)| {
            let is_young = now.saturating_duration_since(*since) < timing.engine_off;
            reason.code == Code::MissingRight || is_young || !is_awaited(reason)
        });
        if self.blocked.len() < before {
            self.outdate();
        }
    }

    /// The missing rights that are to be asked for again now.
    pub(in crate::controller) fn due_rights(
        &mut self,
        now: Instant,
        timing: &timing::Controller,
    ) -> Vec<(EngineName, Arc<Kind>)> {
        let is_due = |reason: &Unavailable, since: Instant| {
            reason.code == Code::MissingRight && now.saturating_duration_since(since) > timing.rights_period
        };
        let due = self.blocked.iter_mut().filter(|(_, (reason, since))| is_due(reason, *since));
        let due = due.filter_map(|((engine, kind), (_, since))| {
            *since = now;
            Some((*engine, kind.clone()?))
        });
        due.collect()
    }

    /// Takes over whether a right is there that was missing.
    pub(in crate::controller) fn asked(&mut self, blocked: &Blocked, is_granted: bool) {
        if is_granted && self.blocked.remove(blocked).is_some() {
            self.outdate();
        }
    }
}
