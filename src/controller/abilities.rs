//! What the server and the engines can do, as far as it has been found out.

use super::policy_state::PolicyState;
use super::{Controller, Finished};
use crate::api::code::Code;
use crate::api::condition::Outcome;
use crate::cluster::capabilities::{Capabilities, registration as resources};
use crate::cluster::client::{is_refused, why};
use crate::engine::lifecycle::is_lasting;
use crate::engine::registration;
use crate::engine::{EngineName, Unavailable};
use crate::workload::Kind;
use kube::runtime::watcher;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tracing::{info, warn};

/// What does not work: an engine, on one kind or on all.
pub(super) type Blocked = (EngineName, Option<Arc<Kind>>);

impl Controller {
    /// Asks the server again what it can do, if something may have changed.
    pub(super) async fn discover_when_due(&mut self) {
        let waits = |state: &PolicyState| matches!(state.outcome, Outcome::Impossible { .. } | Outcome::Waiting { .. });
        let is_waiting =
            self.policies.values().any(waits) || self.plan.as_ref().is_some_and(|plan| plan.is_undecided());
        let timing = &self.operator.timing.controller;
        let period = match (self.is_discovery_owed, is_waiting) {
            (true, _) => timing.discovery_again,
            (_, true) => timing.discovery_period,
            _ => timing.discovery_at_rest,
        };
        let is_suspicious = std::mem::take(&mut self.suspicious);
        if is_suspicious {
            self.blocked.clear();
            self.verify_all();
        }
        let has_cause = self.workloads.is_unserved.swap(false, Ordering::Relaxed) || is_suspicious;
        if (has_cause && !self.is_discovery_owed) || self.discovered.elapsed() > period {
            self.discover().await;
        }
    }

    /// Asks the server what it can do, in all groups that matter.
    pub(super) async fn discover(&mut self) {
        let begun = Instant::now();
        let groups = self.groups();
        let discovered = Capabilities::discover(&self.operator.client, |group| groups.contains(group)).await;
        (self.discovered, self.is_discovery_owed) = (Instant::now(), true);
        match discovered {
            // Once is not enough: its policies would go out of force, and what is created meanwhile have no sidecar.
            Ok(capabilities)
                if self.operator.capabilities().has_more_of(&groups, &capabilities)
                    && begun.saturating_duration_since(*self.gone_since.get_or_insert(self.discovered))
                        < self.operator.timing.controller.discovery_again => {}
            Ok(capabilities) => {
                (self.is_discovery_owed, self.gone_since) = (false, None);
                if capabilities.version != self.operator.capabilities().version {
                    info!(version = capabilities.version, "The server has changed");
                    self.schema = None;
                    self.trials.clear();
                    self.acceptances.clear();
                    self.blocked.clear();
                }
                self.plan = None;
                let before = self.operator.capabilities();
                let is_same = |name: &&str| before.registration(name) == capabilities.registration(name);
                self.is_served_otherwise |= !resources::ALL.iter().all(is_same);
                self.operator.set_capabilities(capabilities);
                self.groups = groups;
            }
            Err(error) => {
                self.gone_since = None;
                warn!(%error, "Cannot ask the server what it can do");
            }
        }
    }

    /// The groups of the kinds that policies target or that are watched because something may wait in them.
    pub(super) fn groups(&self) -> BTreeSet<String> {
        let snapshot = self.snapshots.borrow();
        let targeted = snapshot.policies.iter().flat_map(|policy| &policy.kinds);
        targeted
            .chain(self.registered_at.keys())
            .chain(self.watches.keys())
            .filter(|kind| !kind.is_in_table())
            .map(|kind| kind.group.clone())
            .collect()
    }

    /// Notes that `resource` cannot be read because of `error`, if there is nothing to wait for: a right is missing.
    pub(super) fn note_unreadable(&mut self, resource: &'static str, error: &watcher::Error) {
        if !is_refused(error) {
            return;
        }
        let since = *self.registrations.refused.entry(resource).or_insert_with(Instant::now);
        if self.registrations.has_read(resource) && since.elapsed() < self.operator.timing.watch.refused {
            return;
        }
        let message = format!("cannot list and watch {resource}: {}", why(error));
        if self.registrations.unreadable.insert(resource, Unavailable::new(Code::MissingRight, message)).is_none() {
            self.plan = None;
        }
    }

    /// Notes that `engine` does not work, on `kind` or at all, if that is why it did not.
    pub(super) fn block(&mut self, engine: EngineName, kind: &Arc<Kind>, reason: &Unavailable) {
        if !is_lasting(reason) {
            return;
        }
        // A right may be missing for one kind alone.
        let kind = (reason.code == Code::MissingRight).then(|| kind.clone());
        self.blocked.insert((engine, kind), (reason.clone(), Instant::now()));
        self.plan = None;
    }

    /// Why `engine` does not work on `kind`, as far as it has been tried.
    pub(super) fn why_blocked(&self, engine: EngineName, kind: &Arc<Kind>) -> Option<&Unavailable> {
        let found = self.blocked.get(&(engine, None)).or_else(|| self.blocked.get(&(engine, Some(kind.clone()))));
        found.map(|(reason, _)| reason)
    }

    /// Asks for the rights that were missing: somebody may have granted them. Forgets what was found out of the server's flags, where a
    /// policy waits for that.
    pub(super) fn ask_again(&mut self) {
        let (policies, timing) = (&self.policies, &self.operator.timing.controller);
        let is_awaited = |reason: &Unavailable| {
            let is_cause = |state: &PolicyState| matches!(&state.outcome, Outcome::Impossible { code, .. } if *code == reason.code);
            policies.values().any(is_cause)
        };
        let before = self.blocked.len();
        self.blocked.retain(|_, (reason, since)| {
            reason.code == Code::MissingRight || since.elapsed() < timing.engine_off || !is_awaited(reason)
        });
        if self.blocked.len() < before {
            self.plan = None;
        }
        let due = self
            .blocked
            .iter_mut()
            .filter(|(_, (reason, since))| reason.code == Code::MissingRight && since.elapsed() > timing.rights_period);
        let due = due.filter_map(|((engine, kind), (_, since))| {
            *since = Instant::now();
            Some((*engine, kind.clone()?))
        });
        for (engine, kind) in due.collect::<Vec<_>>() {
            let place = self.place_of(&kind);
            self.tasks.spawn(async move {
                let is_granted = registration::may_deliver(&place, engine).await.unwrap_or_default();
                Finished::Asked((engine, Some(kind)), is_granted)
            });
        }
    }

    /// Takes over whether a right is there that was missing.
    pub(super) fn asked(&mut self, blocked: &Blocked, is_granted: bool) {
        if is_granted && self.blocked.remove(blocked).is_some() {
            self.plan = None;
        }
    }
}
