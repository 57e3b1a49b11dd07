//! The state of each policy in its status, its events and the gauges, and when a status is written.

use super::Controller;
use super::policy_state::PolicyState;
use crate::api::code::Code;
use crate::api::condition::{self, Progress, Readiness, condition_in};
use crate::api::v1alpha1::SidecarPolicyStatus;
use crate::board::{InForce, RolloutState};
use crate::cluster::answer::Meaning;
use crate::cluster::api::Api;
use crate::cluster::client::call;
use crate::cluster::events::{EventReason, EventSubject};
use crate::cluster::object::Object;
use crate::cluster::policies::{self, Snapshot, StoredPolicy};
use crate::engine::lifecycle::Registration;
use crate::engine::{EngineName, Unavailable};
use crate::policy::{Policy, PolicyRef};
use crate::workloads::census::Counts;
use crate::workloads::starts::{self, Starts};
use crate::workloads::waiting::{Pending, Waiting};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tracing::{error, warn};

/// The largest size of a status in bytes (contract of the API).
const STATUS_LIMIT: usize = 4096;
/// The most statuses that are written at the same time. A server that is slow gets no more, and the loop waits for none.
const WRITES: usize = 8;

/// The state of each policy.
#[derive(Default)]
pub(super) struct Statuses {
    pub(super) policies: BTreeMap<String, PolicyState>,
    /// The number of objects that wait for us, by policy, at the last look.
    pub(super) pending: HashMap<String, i64>,
    /// The policies whose status has not been compared since the last look, because there was no room for a write.
    due: VecDeque<String>,
    /// The writes of statuses beside the loop.
    pub(super) writing: JoinSet<Written>,
    /// Held by the write of a status, so that each policy has one at a time.
    turns: BTreeMap<String, Arc<Mutex<()>>>,
}

impl Statuses {
    /// Records which policies are stored. Returns those that are new.
    pub(super) fn policies_changed(&mut self, snapshot: &Snapshot) -> Vec<String> {
        let mut new = Vec::new();
        self.turns.retain(|name, _| snapshot.stored.contains_key(&PolicyRef::of_cluster(name)));
        for (of, stored) in snapshot.stored.iter() {
            let name = &of.name.to_string();
            if self.policies.get(name).is_none_or(|state| state.uid != stored.uid) {
                // A policy that was deleted and created again begins with a new state.
                self.policies.insert(name.clone(), PolicyState::new(&stored.uid, Instant::now()));
                new.push(name.clone());
            }
            let hash = stored.parsed.as_ref().ok().map(|policy| &policy.spec_hash);
            if let Some(state) = self.policies.get_mut(name)
                && state.concluded.as_ref() != hash
            {
                // If the edit is taken back, what is in effect is still unknown.
                state.concluded = None;
            }
        }
        new
    }

    /// Whether a write of the status of the policy `name` is on its way.
    fn is_writing(&self, name: &str) -> bool {
        self.turns.get(name).is_some_and(|turn| turn.try_lock().is_err())
    }

    /// What is in effect, as far as it is known.
    pub(super) fn in_force(&self) -> BTreeMap<PolicyRef, InForce> {
        let known = self.policies.iter().filter_map(|(name, state)| {
            let fact = match &state.outcome {
                Readiness::FirstSight => return None,
                Readiness::InForce { .. } => {
                    InForce::Spec { uid: state.uid.clone(), spec_hash: state.concluded.clone()? }
                }
                _ => InForce::Nothing,
            };
            Some((PolicyRef::of_cluster(name), fact))
        });
        known.collect()
    }
}

/// The end of a write.
pub(super) struct Written {
    policy: String,
    uid: String,
    began: Instant,
    /// False if the server did not accept it.
    is_done: bool,
}

impl Controller {
    /// Sets the outcome of a policy once all its registrations are known.
    pub(super) fn conclude(&mut self, name: &str) {
        let Ok(placed) = self.placed(name) else { return };
        let of_own = placed.own.as_ref().and_then(|own| self.shortfall_of_own(name, own));
        match of_own {
            None => {}
            Some(Readiness::FirstSight) => return,
            Some(outcome) => return self.set_outcome(name, outcome),
        }
        match self.shortfall(&placed.policy, &placed.shared) {
            None => self.describe(&placed.policy, placed.passed_over.as_ref()),
            // The earlier outcome stays true until the new one is known.
            Some(Readiness::FirstSight) => {}
            Some(outcome) => self.set_outcome(name, outcome),
        }
    }

    /// Sets the outcome of a policy in effect, with its restrictions.
    fn describe(&mut self, policy: &Policy, passed_over: Option<&Unavailable>) {
        let name = policy.name.as_str();
        let counts = self.counts(name);
        let conflicts = (counts.collided > 0).then(|| self.conflicts(policy, counts.collided));
        let own = self.registrations.of_policy(name).and_then(Registration::at_rest);
        let on_pods = own.is_some_and(|own| own.wanted.kinds.iter().any(|kind| kind.is_pod()));
        let restriction = on_pods.then(|| (Code::PodsCannotBypass, Code::PodsCannotBypass.meaning().to_owned()));
        let lasting = self.workloads.ledger(|ledger| ledger.lasting(&policy.reference(), Instant::now()));
        let starts = self.workloads.starts(Starts::sums);
        let stuck = starts.get(&policy.reference()).map(|sums| (Code::SidecarNotStarting, starts::message(sums)));
        let degraded = lasting.or(stuck).or(restriction);
        let degraded = degraded.or_else(|| self.doubt(name)).or_else(|| self.trouble_of_webhook(name));
        let instead = passed_over.map(|Unavailable { code, message }| {
            let engines: Vec<_> = self.engines_of(name).into_iter().map(EngineName::as_str).collect();
            format!("in effect by {}, since {code}: {message}", engines.join(","))
        });
        let snapshot = self.operator.snapshot();
        let by = snapshot.policies.iter().find(|other| other.is_enforced() && other.replaces(name));
        let replaced = by.map(|by| {
            format!("{}: replaced by SidecarPolicy `{}`, where both match a workload", Code::Replaced, by.name)
        });
        let instead = instead.or(replaced);
        if let Some(state) = self.statuses.policies.get_mut(name) {
            state.outcome = Readiness::InForce { conflicts, degraded, instead };
            state.concluded = Some(policy.spec_hash.clone());
        }
    }

    /// What the condition `Conflicted` of `policy` says, which is left out of that many `workloads`.
    fn conflicts(&self, policy: &Policy, workloads: i64) -> (Code, String) {
        let rivals = self.workloads.rivals(policy);
        let (above, equal): (Vec<_>, Vec<_>) =
            rivals.iter().partition(|rival| rival.spec.priority > policy.spec.priority);
        let [above, equal] = [above, equal].map(|rivals| {
            let names: Vec<_> = rivals.iter().map(|rival| format!("`{}`", rival.name)).collect();
            names.join(", ")
        });
        if above.is_empty() {
            let message = format!("collides with SidecarPolicy {equal} on {workloads} workloads, which have neither");
            return (Code::Conflicted, message);
        }
        let beside = if equal.is_empty() { String::new() } else { format!(", or collides with {equal},") };
        let message =
            format!("gives way to SidecarPolicy {above}, of a higher priority{beside} on {workloads} workloads");
        (Code::Outranked, message)
    }

    /// The problem with the webhook's certificate; none if the policy is not in effect by the webhook.
    fn trouble_of_webhook(&self, policy: &str) -> Option<(Code, String)> {
        let reach = self.settings.reach.borrow();
        // This check comes first, because there is seldom a problem.
        let trouble = reach.as_ref().ok()?.trouble.as_ref()?;
        let is_served = self.engines_of(policy).into_iter().any(|engine| engine.engine().needs_operator());
        is_served.then(|| (trouble.code, trouble.message.clone()))
    }

    pub(super) fn set_outcome(&mut self, name: &str, outcome: Readiness) {
        if let Some(state) = self.statuses.policies.get_mut(name) {
            state.outcome = outcome;
        }
    }

    fn counts(&self, name: &str) -> Counts {
        self.workloads.census(|census| census.counts(&PolicyRef::of_cluster(name)))
    }

    /// Writes into the status of `policies` that the operator stops, before their registrations are deleted. Otherwise the next
    /// leader would treat them as deleted by hand. Tries each policy once, and repeats the failed ones until `until`.
    pub(super) async fn tell_stopped(&mut self, policies: Vec<(&str, &StoredPolicy)>, message: &str, until: Instant) {
        for (name, _) in &policies {
            self.set_outcome(name, Readiness::Waiting { code: Code::Stopped, message: message.into() });
        }
        let mut untold = self.write_all_now(policies).await;
        while !untold.is_empty() && Instant::now() < until {
            tokio::time::sleep(self.operator.timing.stop.report_pause).await;
            let again = self.write_all_now(untold.clone());
            untold = tokio::time::timeout_at(until.into(), again).await.unwrap_or(untold);
        }
        for (policy, _) in untold {
            error!(policy, "Cannot say that it stops: the next leader will take it for a removal by hand");
        }
    }

    /// Writes the statuses that have changed, as many as may be written at the same time. The others follow as room gets free, those
    /// that have waited longest first.
    pub(super) fn write_statuses(&mut self, snapshot: &Snapshot) {
        let last = |name: &String| self.statuses.policies.get(name).and_then(|state| state.writes.last);
        let names = snapshot.stored.keys().map(|of| of.name.to_string());
        let mut due: Vec<(Option<Instant>, String)> = names.map(|name| (last(&name), name)).collect();
        due.sort();
        self.statuses.due = due.into_iter().map(|(_, name)| name).collect();
        self.write_next(snapshot);
    }

    fn write_next(&mut self, snapshot: &Snapshot) {
        while self.statuses.writing.len() < WRITES
            && let Some(name) = self.statuses.due.pop_front()
        {
            let Some(stored) = snapshot.stored.get(&PolicyRef::of_cluster(&name)) else { continue };
            if let Some(write) = self.due_write(&name, stored) {
                self.statuses.writing.spawn(write);
            }
        }
    }

    /// Records the end of a write, and begins the next one.
    pub(super) fn wrote(&mut self, written: &Written) {
        self.note_written(written);
        let snapshot = self.snapshots.borrow().clone();
        self.write_next(&snapshot);
    }

    fn note_written(&mut self, Written { policy, uid, began, is_done }: &Written) {
        if *is_done {
            return;
        }
        self.operator.metrics.process.reconcile_errors.inc();
        if let Some(state) = self.statuses.policies.get_mut(policy).filter(|state| state.uid == *uid) {
            state.writes.fail(*began);
        }
    }

    /// Writes the status of a policy if it has changed, after a write of it that is still on its way. Returns false if the server did
    /// not accept it.
    pub(super) async fn write_status_now(&mut self, name: &str, stored: &StoredPolicy) -> bool {
        self.write_all_now(vec![(name, stored)]).await.is_empty()
    }

    /// [`Self::write_status_now`] for all of `policies`. Returns those whose status the server did not accept.
    async fn write_all_now<'a>(
        &mut self,
        mut policies: Vec<(&'a str, &'a StoredPolicy)>,
    ) -> Vec<(&'a str, &'a StoredPolicy)> {
        let mut writes = Vec::new();
        for (name, stored) in &policies {
            writes.extend(self.write(name, stored));
        }
        let written: Vec<Written> = stream::iter(writes).buffer_unordered(WRITES).collect().await;
        written.iter().for_each(|written| self.note_written(written));
        policies.retain(|(name, _)| written.iter().any(|written| written.policy == *name && !written.is_done));
        policies
    }

    /// The write of the status of a policy, if it may be written now.
    fn due_write(
        &mut self,
        name: &str,
        stored: &StoredPolicy,
    ) -> Option<impl Future<Output = Written> + Send + 'static> {
        let state = self.statuses.policies.get(name).filter(|_| !self.statuses.is_writing(name))?;
        let (timing, now) = (&self.operator.timing.controller, Instant::now());
        let known = state.writes.known(&stored.status, now, timing.status_period);
        let is_told = condition_in(&known, "Ready").is_some();
        if state.outcome == Readiness::FirstSight && (is_told || state.seen.elapsed() < timing.first_status) {
            return None;
        }
        let is_in_force = matches!(state.outcome, Readiness::InForce { .. });
        // An edited policy stays in effect in its old form until the new registration is verified.
        let is_edited = stored.parsed.as_ref().is_ok_and(|policy| state.concluded.as_ref() != Some(&policy.spec_hash));
        if is_in_force && is_edited {
            return None;
        }
        let new = shortened(self.status(name, stored, &known));
        let may = differs(&known, &new) && state.writes.may_replace(&known, &new, now, timing.status_period);
        if may { self.write(name, stored) } else { None }
    }

    /// The write of the status of a policy, if it has changed. It waits for an earlier write of it.
    fn write(
        &mut self,
        name: &str,
        stored: &StoredPolicy,
    ) -> Option<impl Future<Output = Written> + Send + 'static + use<>> {
        let state = self.statuses.policies.get(name)?;
        let (period, now) = (self.operator.timing.controller.status_period, Instant::now());
        let known = state.writes.known(&stored.status, now, period);
        let new = Arc::new(shortened(self.status(name, stored, &known)));
        // Of an earlier write nobody knows yet whether it is done.
        if !differs(&known, &new) && !self.statuses.is_writing(name) {
            return None;
        }
        let body = with_nulls(&stored.status, with_nulls(&known, new.as_ref().clone()));
        self.announce(name, &known, &new);
        let state = self.statuses.policies.get_mut(name)?;
        state.writes.begin(&stored.status, &new, now, period);
        let (uid, policy) = (state.uid.clone(), name.to_owned());
        let turn = self.statuses.turns.entry(policy.clone()).or_default().clone();
        let api = Api::<Object>::all_with(self.operator.client.clone(), &policies::resource());
        Some(async move {
            let _turn = turn.lock_owned().await;
            let patch = Patch::Merge(json!({ "status": body }));
            let written = call(api.patch_status(&policy, &PatchParams::default(), &patch)).await;
            let error = written.err().filter(|error| error.means() != Meaning::NotFound);
            if let Some(error) = &error {
                warn!(policy, %error, "Cannot write the status");
            }
            Written { policy, uid, began: now, is_done: error.is_none() }
        })
    }

    /// The status of a policy whose status is `known`.
    fn status(&self, name: &str, stored: &StoredPolicy, known: &Value) -> SidecarPolicyStatus {
        let outcome = self.statuses.policies.get(name).map_or(&Readiness::FirstSight, |state| &state.outcome);
        let old: SidecarPolicyStatus = serde_json::from_value(known.clone()).unwrap_or_default();
        let policy = stored.parsed.as_ref().ok();
        let counts = self.counts(name);
        let of = PolicyRef::of_cluster(name);
        let (failures, failed) = self.workloads.ledger(|ledger| (ledger.failures(&of), ledger.missed(&of)));
        let revision = policy.and_then(|policy| policy.revision());
        let rollout = self.settings.board.rollout(&of).unwrap_or_default().now(revision);
        let (updated, ready) = (rollout.updated as i64, rollout.ready as i64);
        let rolls = rollout.progress.is_some();
        let now = Timestamp::now();
        let progress = rollout.progress.as_ref();
        let conditions = condition::conditions(outcome, progress, &old.conditions, stored.generation, now);
        let in_force = matches!(outcome, Readiness::InForce { .. });
        let engines: Vec<_> = self.engines_of(name).into_iter().filter(|_| in_force).collect();
        let is_elsewhere = !engines.is_empty() && !engines.iter().any(|engine| engine.is_per_policy());
        let engines: Vec<_> = engines.into_iter().map(EngineName::as_str).collect();
        SidecarPolicyStatus {
            conditions,
            observed_generation: Some(stored.generation),
            observed_spec_hash: policy.map(|policy| policy.spec_hash.clone()),
            engine: (!engines.is_empty()).then(|| engines.join(",")),
            initializer_name: policy.filter(|_| !is_elsewhere).map(|policy| policy.initializer_name.clone()),
            template_hash: policy.map(|policy| policy.template_hash().to_owned()),
            matched: counts.matched,
            injected: counts.injected,
            edited: counts.edited,
            outdated: counts.outdated,
            missed: counts.missed,
            current_revision: rollout.current,
            update_revision: rollout.update,
            updated: rolls.then_some(updated),
            ready: rolls.then_some(ready),
            halted: rollout.is_halted,
            restarted_at: rollout.restarted.map(|time| time.to_string()),
            failed: failed.min(counts.missed),
            pending: self.statuses.pending.get(name).copied().unwrap_or_default(),
            failures,
        }
    }

    /// Records an event when the reason of Ready changes. It is recorded once, even if the server rejects the status.
    fn announce(&mut self, name: &str, known: &Value, status: &Value) {
        let Some(ready) = condition_in(status, "Ready") else { return };
        let Some(state) = self.statuses.policies.get_mut(name) else { return };
        let is_known = condition_in(known, "Ready").is_some_and(|old| old["reason"] == ready["reason"]);
        let last = state.announced.replace(ready["reason"].clone());
        if is_known || last.is_some_and(|last| last == ready["reason"]) {
            return;
        }
        // The rollout has its own event.
        if ready["reason"] == Code::Halted.name() {
            return;
        }
        let (reason, code, message) = match &state.outcome {
            Readiness::InForce { .. } => (
                EventReason::PolicyAccepted,
                Code::Programmed,
                match status["initializerName"].as_str() {
                    Some(initializer) => format!("in effect; initializer `{initializer}`"),
                    None => format!("in effect by {}", status["engine"].as_str().unwrap_or_default()),
                },
            ),
            Readiness::Rejected { code, message } => (EventReason::PolicyRejected, *code, message.clone()),
            Readiness::Impossible { code, message } | Readiness::Waiting { code, message } => {
                (EventReason::EngineUnavailable, *code, message.clone())
            }
            Readiness::FirstSight | Readiness::Suspended | Readiness::Audit { .. } => return,
        };
        self.workloads.recorder.tell(EventSubject::policy(name, &state.uid), reason, code, &message);
    }

    /// Sets the gauges for the next scrape.
    pub(super) fn gauge(&self) {
        let metrics = &self.operator.metrics;
        let now = Instant::now();
        let pending = self.workloads.waiting().map(Waiting::pending).unwrap_or_default();
        for name in self.statuses.policies.keys() {
            metrics.pending.set(name, pending.by_policy.get(name).copied().unwrap_or_default());
        }
        let age =
            |since: Option<Instant>| since.map_or(0.0, |since| now.saturating_duration_since(since).as_secs_f64());
        let starts = self.workloads.starts(Starts::sums);
        let stuck = starts.iter().flat_map(|(policy, sums)| {
            sums.iter().map(|(container, sum)| ([policy.to_string(), container.clone()], sum.pods as i64))
        });
        metrics.workloads.not_starting.set(stuck.collect());
        self.gauge_workloads(&pending);
        metrics.resource_policies.set(self.policies_by_engine());
        let rollouts = self.settings.board.rollouts();
        let rolling = || rollouts.iter().filter(|(_, state)| state.progress.is_some());
        let gauge = |value: fn(&RolloutState) -> usize| {
            rolling().map(|(policy, state)| ([policy.to_string()], value(state) as i64)).collect()
        };
        rolling().for_each(|(policy, _)| metrics.rollouts.show(&policy.to_string()));
        metrics.rollouts.updated.set(gauge(|state| state.updated));
        metrics.rollouts.remaining.set(gauge(|state| state.remaining));
        metrics.rollouts.halted.set(gauge(|state| usize::from(state.is_halted)));
        metrics.pending.oldest.set(age(pending.oldest));
        metrics.pending.oldest_foreign.set(age(pending.oldest_foreign));
        let is_halted = |name: &str| {
            let progress = rollouts.get(&PolicyRef::of_cluster(name)).and_then(|state| state.progress.as_ref());
            matches!(progress, Some(Progress::Halted(_)))
        };
        let is_ready = |(name, state): &(&String, &PolicyState)| match state.outcome {
            Readiness::InForce { .. } => !is_halted(name),
            Readiness::Suspended | Readiness::Audit { .. } => true,
            _ => false,
        };
        let policies = &self.statuses.policies;
        let ready = policies.iter().filter(is_ready).count() as i64;
        let unknown = policies.values().filter(|state| matches!(state.outcome, Readiness::FirstSight)).count() as i64;
        metrics.set_policies(ready, self.statuses.policies.len() as i64 - ready - unknown, unknown);
    }

    /// Sets the gauges of stored workloads. A policy without a match has zeros, so that its series do not begin with the first.
    fn gauge_workloads(&self, pending: &Pending) {
        let metrics = &self.operator.metrics;
        let states = |counts: Counts| {
            let Counts { injected, edited, outdated, missed, .. } = counts;
            [("injected", injected), ("edited", edited), ("outdated", outdated), ("missed", missed)]
        };
        let policies = self.statuses.policies.keys().flat_map(|policy| {
            let counts = self.counts(policy);
            // Each workload has one state, so that they can be added up.
            let failed =
                self.workloads.ledger(|ledger| ledger.missed(&PolicyRef::of_cluster(policy))).min(counts.missed);
            let others = [("failed", failed), ("pending", pending.by_policy.get(policy).copied().unwrap_or_default())];
            states(Counts { missed: counts.missed - failed, ..counts })
                .into_iter()
                .chain(others)
                .map(|(state, count)| ([policy.clone(), state.to_owned()], count))
        });
        metrics.workloads.by_policy.set(policies.collect());
        let by_namespace = self.workloads.census(|census| census.by_namespace());
        let namespaces = by_namespace
            .into_iter()
            .map(|((policy, namespace), counts)| ([policy.to_string(), namespace.to_string()], states(counts)));
        metrics.workloads.set_by_namespace(&namespaces.collect());
    }
}

/// `status` as JSON. If it would be too large, the oldest failures are dropped.
fn shortened(mut status: SidecarPolicyStatus) -> Value {
    loop {
        let body = serde_json::to_value(&status).expect("a status is JSON");
        if body.to_string().len() <= STATUS_LIMIT || status.failures.pop().is_none() {
            return body;
        }
    }
}

/// Whether a merge of `new` over `old` would change anything.
fn differs(old: &Value, new: &Value) -> bool {
    let old = old.as_object().cloned().unwrap_or_default();
    let new = new.as_object().cloned().unwrap_or_default();
    old != new
}

/// `new` with a null for each field that only `old` has, so that a merge removes it.
fn with_nulls(old: &Value, mut new: Value) -> Value {
    if let (Some(old), Some(new)) = (old.as_object(), new.as_object_mut()) {
        for key in old.keys() {
            new.entry(key.clone()).or_insert(Value::Null);
        }
    }
    new
}
