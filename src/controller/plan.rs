//! What is to be: which policy is delivered by which engine on which resource, or why not. Worked out anew when something
//! that it depends on has changed.

use super::acceptance::Questions;
use super::policy_state::outcome_of;
use super::{Controller, Finished};
use crate::api::code::Code;
use crate::api::condition::Outcome;
use crate::api::v1alpha1::Mode;
use crate::cluster::openapi::PodSchema;
use crate::cluster::policies::{Snapshot, Stored};
use crate::engine::choice::{self, Choice, Hindrance};
use crate::engine::lifecycle::{Registration, Wanted};
use crate::engine::{self, EngineName, Surroundings, Unavailable, targets, trial};
use crate::policy::Policy;
use crate::workload::Kind;
use serde_json::Value;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// What is to be.
#[derive(Default)]
pub(super) struct Plan {
    /// Of every stored policy: where it is delivered, or why it is not.
    pub(super) policies: BTreeMap<String, Result<Arc<Placed>, Outcome>>,
    /// Policies whose edit cannot be put in force: where they are delivered as they were before.
    unedited: BTreeMap<String, Arc<Placed>>,
    /// What the policies on one resource share.
    pub(super) joints: BTreeMap<Arc<Kind>, Arc<Wanted>>,
    /// Where a template is still being tried, or a policy is in force, or may be, of which nobody can tell now what is to become of
    /// it: what is registered there stays as it is.
    pub(super) undecided: BTreeSet<Arc<Kind>>,
}

/// Where a policy is delivered.
pub(super) struct Placed {
    pub(super) policy: Arc<Policy>,
    /// Its own registration, on the Initializer engine.
    pub(super) own: Option<Arc<Wanted>>,
    /// The kinds whose registration it shares with others.
    pub(super) shared: Vec<Arc<Kind>>,
    /// Why it is not the engine that would have come first, on one of its kinds.
    pub(super) passed_over: Option<Unavailable>,
}

impl Plan {
    /// True if there is a policy of which nobody can tell now what is to become of it.
    pub(super) fn is_undecided(&self) -> bool {
        self.policies.values().any(|placed| placed.as_ref().err().is_some_and(is_undecided))
    }
}

/// True if and only if it says that nobody can tell now: the server does not answer, or something of ours is on its way.
pub(super) fn is_undecided(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::FirstSight | Outcome::Waiting { code: Code::ServerAway, .. })
}

/// `outcome` of an edit, where what was in force before it stays so.
fn unedited(outcome: Outcome) -> Outcome {
    let with = |message: String| format!("{message}; what was in force before this edit stays in force");
    match outcome {
        Outcome::Rejected { code, message } => Outcome::Rejected { code, message: with(message) },
        Outcome::Impossible { code, message } => Outcome::Impossible { code, message: with(message) },
        Outcome::Waiting { code, message } => Outcome::Waiting { code, message: with(message) },
        outcome => outcome,
    }
}

/// What has been found out about a template on a kind, by the policy's name, the hash of its spec, and the kind.
pub(super) type Trials = BTreeMap<(String, String, Arc<Kind>), Trial>;

/// How far a trial is.
pub(super) enum Trial {
    /// Why it failed before, if it did: that stands until it is known better.
    Running(Option<Unavailable>),
    Passed,
    /// It failed, or nobody could tell. It is tried again then: it may have been somebody else's admission that refused.
    Failed(Unavailable, Instant),
}

impl Controller {
    /// Works out what is to be.
    pub(super) async fn draw(&mut self, snapshot: &Snapshot) -> Plan {
        let (mut plan, now) = (Plan::default(), Instant::now());
        self.trials.retain(|(name, ..), _| snapshot.stored.contains_key(name));
        let mut eligible = HashSet::new();
        for (name, stored) in snapshot.stored.iter() {
            match self.judge(name, stored, snapshot).await {
                Ok(()) => drop(eligible.insert(name.as_str())),
                Err(outcome) => drop(plan.policies.insert(name.clone(), Err(outcome))),
            }
        }
        // In the order of priority, as the snapshot has them.
        let eligible = snapshot.policies.iter().filter(|policy| eligible.contains(policy.name.as_str()));
        let mut eligible: Vec<Arc<Policy>> = eligible.cloned().collect();
        let questions = Questions::default();
        let choice = loop {
            let choice = self.choose(&eligible, snapshot, &questions);
            let failed = self.try_templates(&eligible, &plan, &choice, now);
            let refused = choice.refused.iter().map(|(name, reason)| (name.clone(), outcome_of(reason.clone())));
            let is_new = |(name, _): &(String, Outcome)| !plan.policies.contains_key(name);
            let failed: BTreeMap<_, _> = failed.into_iter().chain(refused).filter(is_new).collect();
            if failed.is_empty() {
                break choice;
            }
            // Until an edit can be put in force, what was in force before stays so.
            eligible = eligible
                .into_iter()
                .filter_map(
                    |policy| if failed.contains_key(&policy.name) { self.before_edit(&policy) } else { Some(policy) },
                )
                .collect();
            let is_kept = |name: &str| eligible.iter().any(|policy| policy.name == name);
            let failed = failed.into_iter().map(|(name, outcome)| {
                let outcome = if is_kept(&name) { unedited(outcome) } else { outcome };
                (name, Err(outcome))
            });
            plan.policies.extend(failed);
        };
        // What was due and has not been tried again is of no interest any more.
        self.trials.retain(|_, trial| !matches!(trial, Trial::Failed(_, at) if *at <= now));
        for policy in &eligible {
            let placed = self.place(policy, &choice).map(Arc::new);
            match plan.policies.entry(policy.name.clone()) {
                Entry::Vacant(vacant) => drop(vacant.insert(placed)),
                Entry::Occupied(_) => plan.unedited.extend(placed.ok().map(|placed| (policy.name.clone(), placed))),
            }
        }
        plan.joints = self.joints(&plan, &eligible, &choice, &questions);
        plan.undecided.extend(choice.undecided);
        self.ask_server(questions);
        let tried = self.trials.iter().filter(|(_, trial)| matches!(trial, Trial::Running(_)));
        plan.undecided.extend(tried.map(|((_, _, kind), _)| kind.clone()));
        for (name, stored) in snapshot.stored.iter() {
            if let (Ok(policy), Some(Err(outcome))) = (&stored.parsed, plan.policies.get(name))
                && is_undecided(outcome)
            {
                let may_be_in_force = |kind: &&Arc<Kind>| self.may_be_in_effect(kind, stored, name);
                plan.undecided.extend(policy.kinds.iter().filter(may_be_in_force).cloned());
            }
        }
        plan
    }

    /// What can be said of a policy before an engine is chosen.
    async fn judge(&mut self, name: &str, stored: &Stored, snapshot: &Snapshot) -> Result<(), Outcome> {
        let policy = stored.parsed.clone().map_err(|violations| {
            let first = violations.first().map_or(Code::InvalidField, |violation| violation.code);
            let texts: Vec<_> =
                violations.iter().map(|violation| format!("{}: {}", violation.field, violation.message)).collect();
            Outcome::Rejected { code: first, message: texts.join("; ") }
        })?;
        if let Some(other) =
            snapshot.policies.by_initializer(&policy.initializer_name).filter(|other| other.name != policy.name)
        {
            let message = format!(
                "spec.initializerName: `{}` is the name of SidecarPolicy `{}` already",
                policy.initializer_name, other.name
            );
            return Err(Outcome::Rejected { code: Code::DuplicateInitializerName, message });
        }
        if policy.spec.suspend {
            return Err(Outcome::Suspended);
        }
        if policy.spec.mode == Mode::Audit {
            let sample = self.workloads.ledger(|ledger| ledger.sample(name, &policy.spec_hash));
            return Err(Outcome::Audit { sample });
        }
        let capabilities = self.operator.capabilities();
        targets::check(&policy, &capabilities).map_err(outcome_of)?;
        if policy.needs_native_sidecars() && !self.operator.site().native_sidecars {
            let message = format!(
                "native sidecars need Kubernetes 1.29 or later, and every kubelet, too; this server is {}",
                capabilities.version
            );
            return Err(Outcome::Impossible { code: Code::NativeSidecarsUnavailable, message });
        }
        self.check_template(&policy).await
    }

    /// Compares the template with what the server knows.
    async fn check_template(&mut self, policy: &Policy) -> Result<(), Outcome> {
        if self.schema.is_none() {
            let fetched = PodSchema::fetch(&self.operator.client).await;
            self.schema =
                Some(fetched.map_err(|error| Outcome::Waiting { code: Code::ServerAway, message: error.to_string() })?);
        }
        let unknown =
            self.schema.as_ref().map(|schema| schema.unknown_fields(&policy.template.spec)).unwrap_or_default();
        if unknown.is_empty() {
            return Ok(());
        }
        let version = &self.operator.capabilities().version;
        let message = format!("this server ({version}) does not know {}; it would be dropped", unknown.join(", "));
        Err(Outcome::Impossible { code: Code::UnknownTemplateField, message })
    }

    /// The engine of every resource.
    fn choose(&self, policies: &[Arc<Policy>], snapshot: &Snapshot, questions: &Questions) -> Choice {
        // As it is now: what is in force may be an earlier form of it.
        let in_effect = |kind: &Arc<Kind>| self.registrations.of_kind(kind).and_then(Registration::in_effect);
        let is_in_force = |kind: &Arc<Kind>, policy: &Policy| match in_effect(kind) {
            Some(in_effect) => in_effect.wanted.has(policy),
            None => {
                let is_up = self.registrations.is_own_in_effect(&policy.name);
                let is_told = |stored: &Stored| {
                    stored.status["observedSpecHash"] == policy.spec_hash.as_str()
                        && self.may_be_in_effect(kind, stored, &policy.name)
                };
                is_up || snapshot.stored.get(&policy.name).is_some_and(is_told)
            }
        };
        choice::choose(
            policies,
            &choice::Questions {
                can: &|engine, kind, policies| self.drafts(questions, engine, kind, policies).map(drop),
                takes: &|engine, kind, policies| self.registration(questions, engine, kind, policies).map(drop),
                is_in_force: &is_in_force,
            },
        )
    }

    /// What `policies` on `kind` can be registered as, the best first.
    pub(super) fn drafts(
        &self,
        questions: &Questions,
        engine: EngineName,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
    ) -> Result<Vec<Vec<Value>>, Unavailable> {
        let (capabilities, site) = (self.operator.capabilities(), self.operator.site());
        engine.check(&capabilities)?;
        let unreadable = engine.registers().iter().find_map(|resource| self.registrations.unreadable.get(resource));
        if let Some(reason) = self.why_blocked(engine, kind).or(unreadable) {
            return Err(reason.clone());
        }
        questions.note(engine);
        let reach = self.settings.reach.borrow().clone();
        let is_readable = |resource: &str| !self.registrations.unreadable.contains_key(resource);
        let (cluster, site) = (&capabilities, &site);
        engine::drafts(
            engine,
            kind,
            policies,
            &Surroundings { cluster, site, reach: &reach, is_readable: &is_readable },
        )
    }

    /// What `policies` on `kind` are to be registered as: the best that the server takes.
    fn registration(
        &self,
        questions: &Questions,
        engine: EngineName,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
    ) -> Result<Vec<Value>, Hindrance> {
        let in_effect = self.registrations.of_kind(kind).and_then(Registration::in_effect);
        let are_in_force = in_effect.is_some_and(|in_effect| in_effect.has_all(engine, policies));
        let mut refused = None;
        for objects in self.drafts(questions, engine, kind, policies)? {
            if objects.is_empty() {
                return Ok(objects);
            }
            match self.takes(questions, engine, kind, &objects) {
                Ok(()) => return Ok(objects),
                // It has taken them before: what speaks against them will pass, and nothing changes until then.
                Err(Hindrance::Unavailable(reason)) if are_in_force && reason.code == Code::RegistrationRefused => {
                    return Err(Hindrance::Asked);
                }
                Err(Hindrance::Unavailable(reason)) => refused = Some(reason),
                Err(Hindrance::Asked) => return Err(Hindrance::Asked),
            }
        }
        Err(refused.map_or(Hindrance::Asked, Hindrance::from))
    }

    /// The policy as it was before an edit, if it is in force as that.
    fn before_edit(&self, policy: &Policy) -> Option<Arc<Policy>> {
        let in_effect = self.registrations.of_kinds().filter_map(|(_, state)| state.in_effect());
        let mut others = in_effect
            .flat_map(|in_effect| in_effect.policies())
            .filter(|other| other.name == policy.name && other.uid == policy.uid);
        others.find(|other| other.spec_hash != policy.spec_hash).cloned()
    }

    /// Has the templates tried that go into admission as they are. Gives the policies whose template failed.
    fn try_templates(
        &mut self,
        policies: &[Arc<Policy>],
        plan: &Plan,
        choice: &Choice,
        now: Instant,
    ) -> BTreeMap<String, Outcome> {
        let mut failed = BTreeMap::new();
        // What stays as it was before an edit has been tried.
        let is_open = |policy: &&Arc<Policy>| {
            !choice.refused.contains_key(&policy.name) && !plan.policies.contains_key(&policy.name)
        };
        let pairs = policies.iter().filter(|policy| policy.injects()).filter(is_open);
        let pairs = pairs.flat_map(|policy| policy.kinds.iter().map(move |kind| (policy, kind)));
        let is_tried = |kind: &Arc<Kind>| {
            choice.engines.get(kind).is_some_and(|engine| !engine.is_per_policy()) && kind.pod_path.is_some()
        };
        for (policy, kind) in pairs.filter(|(_, kind)| is_tried(kind)) {
            let key = (policy.name.clone(), policy.spec_hash.clone(), kind.clone());
            match self.trials.get(&key) {
                Some(Trial::Running(None) | Trial::Passed) => {}
                Some(Trial::Running(Some(reason))) => {
                    failed.insert(policy.name.clone(), outcome_of(reason.clone()));
                }
                Some(Trial::Failed(reason, at)) => {
                    let reason = reason.clone();
                    failed.insert(policy.name.clone(), outcome_of(reason.clone()));
                    if *at <= now {
                        self.try_template(policy, kind, key, Some(reason));
                    }
                }
                None => self.try_template(policy, kind, key, None),
            }
        }
        failed
    }

    fn try_template(
        &mut self,
        policy: &Arc<Policy>,
        kind: &Arc<Kind>,
        key: (String, String, Arc<Kind>),
        failed: Option<Unavailable>,
    ) {
        let Some(resource) = self.operator.resource(kind) else { return };
        self.trials.retain(|(name, hash, _), _| *name != key.0 || *hash == key.1);
        self.trials.insert(key.clone(), Trial::Running(failed));
        let (operator, policy, kind) = (self.operator.clone(), policy.clone(), kind.clone());
        let slots = self.trial_slots.clone();
        self.tasks.spawn(async move {
            let _slot = slots.acquire_owned().await;
            let namespace = &operator.site().operator_namespace;
            let tried = trial::template(&operator.client, &kind, &resource, namespace, &policy.template).await;
            let trial = match tried {
                Ok(()) => Trial::Passed,
                Err(reason) => {
                    let timing = &operator.timing.controller;
                    let is_invalid = reason.code == Code::TemplateInvalid;
                    let pause = if is_invalid { timing.verify_again } else { timing.retry };
                    Trial::Failed(reason, Instant::now() + pause)
                }
            };
            Finished::Tried(key, trial)
        });
    }

    /// Where `policy` is delivered, as chosen.
    fn place(&self, policy: &Arc<Policy>, choice: &Choice) -> Result<Placed, Outcome> {
        if let Some(reason) = choice.refused.get(&policy.name) {
            return Err(outcome_of(reason.clone()));
        }
        let by = |kind: &&Arc<Kind>| choice.engines.get(*kind).is_some_and(|engine| engine.is_per_policy());
        let (own, shared): (Vec<_>, Vec<_>) = policy.kinds.iter().partition(by);
        let own: Vec<_> = own.into_iter().cloned().collect();
        let capabilities = self.operator.capabilities();
        if !own.is_empty() {
            self.registrations.check_foreign(policy, &capabilities)?;
        }
        Ok(Placed {
            passed_over: shared.iter().find_map(|kind| choice.passed_over.get(*kind).cloned()),
            policy: policy.clone(),
            own: own.first().and_then(|kind| {
                let engine = *choice.engines.get(kind)?;
                let object = engine.engine().render_own(policy, &own, &capabilities)?;
                Some(Arc::new(Wanted {
                    engine,
                    policies: vec![policy.clone()],
                    kinds: own.clone(),
                    objects: vec![object],
                }))
            }),
            shared: shared.into_iter().cloned().collect(),
        })
    }

    /// What the policies on each resource share.
    fn joints(
        &self,
        plan: &Plan,
        policies: &[Arc<Policy>],
        choice: &Choice,
        questions: &Questions,
    ) -> BTreeMap<Arc<Kind>, Arc<Wanted>> {
        let placed = policies.iter().filter_map(|policy| {
            let unedited = plan.unedited.get(&policy.name);
            unedited.or_else(|| plan.policies.get(&policy.name)?.as_ref().ok())
        });
        let placed: Vec<_> = placed.collect();
        let engines = choice.engines.iter().filter(|(_, engine)| !engine.is_per_policy());
        let joint = |(kind, engine): (&Arc<Kind>, &EngineName)| {
            let meeting: Vec<_> = placed.iter().filter(|placed| placed.shared.contains(kind)).collect();
            let policies: Vec<_> = meeting.iter().map(|placed| placed.policy.clone()).collect();
            let objects = self.registration(questions, *engine, kind, &policies).ok()?;
            let wanted = Wanted { engine: *engine, policies, kinds: vec![kind.clone()], objects };
            Some((kind.clone(), Arc::new(wanted)))
        };
        engines.filter_map(joint).collect()
    }

    /// What is to become of the policy `name`.
    pub(super) fn placed(&self, name: &str) -> Result<Arc<Placed>, Outcome> {
        match self.plan.as_ref().and_then(|plan| plan.policies.get(name)) {
            Some(Ok(placed)) => Ok(placed.clone()),
            // The sample comes while the plan stays.
            Some(Err(Outcome::Audit { .. })) => {
                let snapshot = self.snapshots.borrow();
                let hash = snapshot.policies.get(name).map(|policy| policy.spec_hash.clone()).unwrap_or_default();
                Err(Outcome::Audit { sample: self.workloads.ledger(|ledger| ledger.sample(name, &hash)) })
            }
            Some(Err(outcome)) => Err(outcome.clone()),
            None => Err(Outcome::FirstSight),
        }
    }
}
