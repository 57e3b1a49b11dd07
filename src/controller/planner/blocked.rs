//! The engines that do not work although the server seems to have them. Pure.

use super::Planner;
use crate::api::code::Code;
use crate::engine::lifecycle::is_lasting;
use crate::engine::{EngineName, Unavailable};
use crate::timing;
use crate::workload::Kind;
use std::sync::Arc;
use std::time::Instant;

/// An engine that does not work, on one kind or on all kinds.
pub(in crate::controller) type Blocked = (EngineName, Option<Arc<Kind>>);

impl Planner {
    /// Records that `engine` does not work if `reason` says so: on `kind` if a right is missing, else on all kinds.
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
        // A right may be missing for one kind only.
        let kind = (reason.code == Code::MissingRight).then(|| kind.clone());
        self.blocked.insert((engine, kind), (reason.clone(), now));
        self.outdate();
    }

    /// Why `engine` does not work on `kind`, if that is known.
    pub(super) fn why_blocked(&self, engine: EngineName, kind: &Arc<Kind>) -> Option<&Unavailable> {
        let found = self.blocked.get(&(engine, None)).or_else(|| self.blocked.get(&(engine, Some(kind.clone()))));
        found.map(|(reason, _)| reason)
    }

    /// Forgets all blocked engines, because the server may have other flags now.
    pub(in crate::controller) fn unblock_all(&mut self) {
        self.blocked.clear();
    }

    /// Forgets old knowledge about the server's flags that a policy waits for.
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

    /// The missing rights to ask for now.
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

    /// Records whether a missing right has been granted.
    pub(in crate::controller) fn asked(&mut self, blocked: &Blocked, is_granted: bool) {
        if is_granted && self.blocked.remove(blocked).is_some() {
            self.outdate();
        }
    }
}
