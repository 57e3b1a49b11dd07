//! The planner: which policy is delivered by which engine on which kind, or why not. Pure: it works on what is known, and returns what the
//! API server is to be asked. A plan is drawn anew when something that it depends on has changed.
//!
//! | file | what |
//! |---|---|
//! | `rendered` | what policies are registered as, rendered once for each form of them |
//! | `acceptance` | whether the server would take what is to be registered |
//! | `blocked` | which engines turned out not to work |

mod acceptance;
mod blocked;
mod rendered;

#[cfg(test)]
mod tests;

pub(super) use acceptance::Acceptance;
pub(super) use blocked::Blocked;
pub(super) use rendered::Around;

use self::acceptance::{Acceptances, Question, Questions};
use self::rendered::{Rendered, Rendering};
use super::policy_state::outcome_of;
use super::registrations::Registrations;
use crate::api::code::Code;
use crate::api::condition::Readiness;
use crate::api::v1alpha1::Mode;
use crate::cluster::openapi::PodSchema;
use crate::cluster::policies::{Snapshot, Stored};
use crate::engine::choice::{self, Choice, Hindrance};
use crate::engine::lifecycle::{InEffect, Registration, Wanted};
use crate::engine::{EngineName, Unavailable};
use crate::policy::Policy;
use crate::targets;
use crate::timing;
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
    pub(super) policies: BTreeMap<String, Result<Arc<Placed>, Readiness>>,
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
pub(super) fn is_undecided(outcome: &Readiness) -> bool {
    matches!(outcome, Readiness::FirstSight | Readiness::Waiting { code: Code::ServerAway, .. })
}

/// `outcome` of an edit, where what was in force before it stays so.
fn unedited(outcome: Readiness) -> Readiness {
    let with = |message: String| format!("{message}; what was in force before this edit stays in force");
    match outcome {
        Readiness::Rejected { code, message } => Readiness::Rejected { code, message: with(message) },
        Readiness::Impossible { code, message } => Readiness::Impossible { code, message: with(message) },
        Readiness::Waiting { code, message } => Readiness::Waiting { code, message: with(message) },
        outcome => outcome,
    }
}

/// A template on a kind: the policy's name, the hash of its spec, and the kind.
pub(super) type TrialKey = (String, String, Arc<Kind>);

/// How far a trial is.
pub(super) enum Trial {
    /// Why it failed before, if it did: that stands until it is known better.
    Running(Option<Unavailable>),
    Passed,
    /// It failed, or nobody could tell. It is tried again then: it may have been somebody else's admission that refused.
    Failed(Unavailable, Instant),
}

impl Trial {
    /// The result of a trial that ended at `now`.
    pub(super) fn of(tried: Result<(), Unavailable>, now: Instant, timing: &timing::Controller) -> Self {
        match tried {
            Ok(()) => Self::Passed,
            Err(reason) => {
                let is_invalid = reason.code == Code::TemplateInvalid;
                let pause = if is_invalid { timing.verify_again } else { timing.retry };
                Self::Failed(reason, now + pause)
            }
        }
    }
}

/// What a plan depends on.
pub(super) struct Inputs<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) around: Around,
    pub(super) registrations: &'a Registrations,
    /// What a policy in Audit mode would do, by its name and the hash of its spec.
    pub(super) sample: &'a dyn Fn(&str, &str) -> Option<String>,
    pub(super) now: Instant,
}

/// What the API server is to be asked for the sake of a plan.
#[derive(Default)]
pub(super) struct Requests {
    /// Templates to try.
    pub(super) templates: Vec<(TrialKey, Arc<Policy>)>,
    /// Registrations to ask about, by their print.
    pub(super) rehearsals: Vec<(String, Question)>,
    /// Whether an engine is considered that this operator has to answer for.
    pub(super) needs_operator: bool,
}

/// Draws the plan, and keeps what was found out for it.
pub(super) struct Planner {
    /// The plan; none when something that it depends on has changed.
    plan: Option<Arc<Plan>>,
    /// The fields that the server knows, or why that is not known.
    schema: Result<PodSchema, String>,
    trials: BTreeMap<TrialKey, Trial>,
    acceptances: Acceptances,
    /// The engines that turned out not to work, and since when that is known.
    blocked: BTreeMap<Blocked, (Unavailable, Instant)>,
    rendered: Rendered,
    /// The stored policies of the last plan: name and UID, form, generation.
    stored: Vec<(String, String, i64)>,
}

impl Default for Planner {
    fn default() -> Self {
        Self {
            plan: None,
            schema: Err("not read yet".to_owned()),
            trials: BTreeMap::new(),
            acceptances: Acceptances::new(),
            blocked: BTreeMap::new(),
            rendered: Rendered::default(),
            stored: Vec::new(),
        }
    }
}

impl Planner {
    /// The plan, if nothing that it depends on has changed.
    pub(super) fn plan(&self) -> Option<&Arc<Plan>> {
        self.plan.as_ref()
    }

    /// Has the plan drawn anew.
    pub(super) fn outdate(&mut self) {
        self.plan = None;
    }

    /// Forgets what was found out: the server is another one.
    pub(super) fn forget_server(&mut self) {
        let stored = std::mem::take(&mut self.stored);
        *self = Self { stored, ..Self::default() };
    }

    /// Takes over which policies are stored.
    pub(super) fn policies_changed(&mut self, snapshot: &Snapshot) {
        let print = |(name, stored): (&String, &Stored)| {
            let form = match &stored.parsed {
                Ok(policy) => policy.spec_hash.clone(),
                Err(violations) => format!("{violations:?}"),
            };
            (format!("{name} {}", stored.uid), form, stored.generation)
        };
        let stored: Vec<_> = snapshot.stored.iter().map(print).collect();
        if stored != self.stored {
            self.stored = stored;
            self.plan = None;
        }
    }

    /// Whether the fields that the server knows are to be read before the next plan.
    pub(super) fn needs_schema(&self, snapshot: &Snapshot) -> bool {
        self.plan.is_none() && self.schema.is_err() && snapshot.policies.iter().any(|policy| policy.is_enforced())
    }

    /// Takes over the fields that the server knows, or why they cannot be read.
    pub(super) fn set_schema(&mut self, schema: Result<PodSchema, String>) {
        self.schema = schema;
    }

    /// Takes over the result of a trial of a template.
    pub(super) fn tried(&mut self, key: TrialKey, trial: Trial) {
        self.trials.insert(key, trial);
        self.plan = None;
    }

    /// Outdates the plan if a template or a registration is to be tried again.
    pub(super) fn tick(&mut self, now: Instant) {
        let is_trial_due = |trial: &Trial| matches!(trial, Trial::Failed(_, at) if *at <= now);
        if self.trials.values().any(is_trial_due) || self.is_rehearsal_due(now) {
            self.plan = None;
        }
    }

    /// Draws the plan.
    pub(super) fn draw(&mut self, inputs: &Inputs<'_>) -> Requests {
        let (snapshot, now) = (inputs.snapshot, inputs.now);
        self.trials.retain(|(name, ..), _| snapshot.stored.contains_key(name));
        let (rendering, questions) =
            (std::mem::take(&mut self.rendered).begin(inputs.around.clone()), Questions::default());
        let (mut plan, mut requests) = (Plan::default(), Requests::default());
        let mut eligible = self.eligible(inputs, &mut plan);
        let choice = loop {
            let choice = View { planner: self, inputs, rendering: &rendering, questions: &questions }.choose(&eligible);
            let failed = self.try_templates(&eligible, &plan, &choice, inputs, &mut requests);
            let refused = choice.refused.iter().map(|(name, reason)| (name.clone(), outcome_of(reason.clone())));
            let is_new = |(name, _): &(String, Readiness)| !plan.policies.contains_key(name);
            let failed: BTreeMap<_, _> = failed.into_iter().chain(refused).filter(is_new).collect();
            if failed.is_empty() {
                break choice;
            }
            eligible = keep_before_edit(eligible, &failed, inputs.registrations, &mut plan);
        };
        // Nobody needs a failed trial that was due and was not repeated.
        self.trials.retain(|_, trial| !matches!(trial, Trial::Failed(_, at) if *at <= now));
        let view = View { planner: self, inputs, rendering: &rendering, questions: &questions };
        for policy in &eligible {
            let placed = view.place(policy, &choice).map(Arc::new);
            match plan.policies.entry(policy.name.clone()) {
                Entry::Vacant(vacant) => drop(vacant.insert(placed)),
                Entry::Occupied(_) => plan.unedited.extend(placed.ok().map(|placed| (policy.name.clone(), placed))),
            }
        }
        plan.joints = view.joints(&plan, &eligible, &choice);
        plan.undecided.extend(choice.undecided);
        self.note_undecided(inputs, &mut plan);
        self.rendered = rendering.end();
        self.take_questions(questions, &mut requests);
        self.plan = Some(Arc::new(plan));
        requests
    }

    /// The policies that engines can be chosen for, in the order of priority. The others are in the plan, each with its reason.
    fn eligible(&self, inputs: &Inputs<'_>, plan: &mut Plan) -> Vec<Arc<Policy>> {
        let mut eligible = HashSet::new();
        for (name, stored) in inputs.snapshot.stored.iter() {
            match self.judge(name, stored, inputs) {
                Ok(()) => drop(eligible.insert(name.as_str())),
                Err(outcome) => drop(plan.policies.insert(name.clone(), Err(outcome))),
            }
        }
        let policies = inputs.snapshot.policies.iter();
        policies.filter(|policy| eligible.contains(policy.name.as_str())).cloned().collect()
    }

    /// Adds the kinds where nothing may change until more is known.
    fn note_undecided(&self, inputs: &Inputs<'_>, plan: &mut Plan) {
        let tried = self.trials.iter().filter(|(_, trial)| matches!(trial, Trial::Running(_)));
        plan.undecided.extend(tried.map(|((_, _, kind), _)| kind.clone()));
        for (name, stored) in inputs.snapshot.stored.iter() {
            if let (Ok(policy), Some(Err(outcome))) = (&stored.parsed, plan.policies.get(name))
                && is_undecided(outcome)
            {
                let may_be_in_effect = |kind: &&Arc<Kind>| inputs.registrations.may_be_in_effect(kind, stored, name);
                plan.undecided.extend(policy.kinds.iter().filter(may_be_in_effect).cloned());
            }
        }
    }

    /// What can be said of a policy before an engine is chosen.
    fn judge(&self, name: &str, stored: &Stored, inputs: &Inputs<'_>) -> Result<(), Readiness> {
        let policy = stored.parsed.clone().map_err(|violations| {
            let first = violations.first().map_or(Code::InvalidField, |violation| violation.code);
            let texts: Vec<_> =
                violations.iter().map(|violation| format!("{}: {}", violation.field, violation.message)).collect();
            Readiness::Rejected { code: first, message: texts.join("; ") }
        })?;
        if let Some(other) =
            inputs.snapshot.policies.by_initializer(&policy.initializer_name).filter(|other| other.name != policy.name)
        {
            let message = format!(
                "spec.initializerName: `{}` is the name of SidecarPolicy `{}` already",
                policy.initializer_name, other.name
            );
            return Err(Readiness::Rejected { code: Code::DuplicateInitializerName, message });
        }
        if policy.spec.suspend {
            return Err(Readiness::Suspended);
        }
        if policy.spec.mode == Mode::Audit {
            return Err(Readiness::Audit { sample: (inputs.sample)(name, &policy.spec_hash) });
        }
        let Around { cluster, site, .. } = &inputs.around;
        targets::check(&policy, cluster).map_err(outcome_of)?;
        if policy.needs_native_sidecars() && !site.native_sidecars {
            let message = format!(
                "native sidecars need Kubernetes 1.29 or later, and every kubelet, too; this server is {}",
                cluster.version
            );
            return Err(Readiness::Impossible { code: Code::NativeSidecarsUnavailable, message });
        }
        self.check_template(&policy, &cluster.version)
    }

    /// Compares the template with what the server knows.
    fn check_template(&self, policy: &Policy, version: &str) -> Result<(), Readiness> {
        let schema = self.schema.as_ref();
        let schema = schema.map_err(|error| Readiness::Waiting { code: Code::ServerAway, message: error.clone() })?;
        let unknown = schema.unknown_fields(&policy.template.spec);
        if unknown.is_empty() {
            return Ok(());
        }
        let message = format!("this server ({version}) does not know {}; it would be dropped", unknown.join(", "));
        Err(Readiness::Impossible { code: Code::UnknownTemplateField, message })
    }

    /// Has the templates tried that go into admission as they are. Gives the policies whose template failed.
    fn try_templates(
        &mut self,
        policies: &[Arc<Policy>],
        plan: &Plan,
        choice: &Choice,
        inputs: &Inputs<'_>,
        requests: &mut Requests,
    ) -> BTreeMap<String, Readiness> {
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
                    if *at <= inputs.now {
                        self.try_template(policy, key, Some(reason), inputs, requests);
                    }
                }
                None => self.try_template(policy, key, None, inputs, requests),
            }
        }
        failed
    }

    fn try_template(
        &mut self,
        policy: &Arc<Policy>,
        key: TrialKey,
        failed: Option<Unavailable>,
        inputs: &Inputs<'_>,
        requests: &mut Requests,
    ) {
        if inputs.around.cluster.resource(&key.2).is_none() {
            return;
        }
        self.trials.retain(|(name, hash, _), _| *name != key.0 || *hash == key.1);
        self.trials.insert(key.clone(), Trial::Running(failed));
        requests.templates.push((key, policy.clone()));
    }
}

/// What rejects workloads on `kind` while another registration replaces `before`: what `both`, the policies of both, demand.
pub(super) fn rejecting(around: Around, kind: &Arc<Kind>, before: &InEffect, both: &[Arc<Policy>]) -> Vec<Value> {
    // As it is registered now: by the same kinds of objects.
    let kinds = |objects: &[Value]| objects.iter().map(|object| object["kind"].to_string()).collect::<BTreeSet<_>>();
    let registered = kinds(&before.wanted.objects);
    let surroundings = Rendered::default().begin(around);
    let drafts = surroundings.drafts(before.wanted.engine, kind, both);
    let drafts = drafts.as_deref().map(Vec::as_slice).unwrap_or_default();
    let draft = drafts.iter().find(|draft| kinds(&draft.objects).is_subset(&registered));
    let objects = draft.map(|draft| draft.objects.clone()).unwrap_or_default();
    objects.into_iter().filter(crate::engine::registration::refuses).collect()
}

/// Replaces each policy in `failed` by what is in effect of it from before its edit, if there is such, and notes its outcome in `plan`.
fn keep_before_edit(
    eligible: Vec<Arc<Policy>>,
    failed: &BTreeMap<String, Readiness>,
    registrations: &Registrations,
    plan: &mut Plan,
) -> Vec<Arc<Policy>> {
    let before = |policy: Arc<Policy>| {
        if failed.contains_key(&policy.name) { registrations.before_edit(&policy) } else { Some(policy) }
    };
    let eligible: Vec<Arc<Policy>> = eligible.into_iter().filter_map(before).collect();
    let kept: HashSet<&str> = eligible.iter().map(|policy| policy.name.as_str()).collect();
    for (name, outcome) in failed {
        let outcome = outcome.clone();
        let outcome = if kept.contains(name.as_str()) { unedited(outcome) } else { outcome };
        plan.policies.insert(name.clone(), Err(outcome));
    }
    eligible
}

/// What one plan is drawn from.
struct View<'a> {
    planner: &'a Planner,
    inputs: &'a Inputs<'a>,
    rendering: &'a Rendering,
    questions: &'a Questions,
}

impl View<'_> {
    /// The engine of every resource.
    fn choose(&self, policies: &[Arc<Policy>]) -> Choice {
        let (registrations, snapshot) = (self.inputs.registrations, self.inputs.snapshot);
        // As it is now: what is in force may be an earlier form of it.
        let in_effect = |kind: &Arc<Kind>| registrations.of_kind(kind).and_then(Registration::in_effect);
        let is_in_force = |kind: &Arc<Kind>, policy: &Policy| match in_effect(kind) {
            Some(in_effect) => in_effect.wanted.has(policy),
            None => {
                let is_up = registrations.is_own_in_effect(&policy.name);
                let is_told = |stored: &Stored| {
                    stored.status["observedSpecHash"] == policy.spec_hash.as_str()
                        && registrations.may_be_in_effect(kind, stored, &policy.name)
                };
                is_up || snapshot.stored.get(&policy.name).is_some_and(is_told)
            }
        };
        choice::choose(
            policies,
            &choice::Questions {
                can: &|engine, kind, policies| self.check(engine, kind, policies),
                takes: &|engine, kind, policies| self.registration(engine, kind, policies).map(drop),
                is_in_force: &is_in_force,
            },
        )
    }

    /// Whether `policies` on `kind` can be registered by `engine`, as far as that is known without asking the server.
    fn check(&self, engine: EngineName, kind: &Arc<Kind>, policies: &[Arc<Policy>]) -> Result<(), Unavailable> {
        self.is_able(engine, kind)?;
        self.rendering.check(engine, kind, policies)
    }

    /// Whether `engine` can register anything on `kind`.
    fn is_able(&self, engine: EngineName, kind: &Arc<Kind>) -> Result<(), Unavailable> {
        engine.check(&self.inputs.around.cluster)?;
        let unreadable = &self.inputs.registrations.unreadable;
        let unreadable = engine.registers().iter().find_map(|resource| unreadable.get(resource));
        if let Some(reason) = self.planner.why_blocked(engine, kind).or(unreadable) {
            return Err(reason.clone());
        }
        self.questions.note(engine);
        Ok(())
    }

    /// What `policies` on `kind` are to be registered as: the best that the server takes.
    fn registration(
        &self,
        engine: EngineName,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
    ) -> Result<Vec<Value>, Hindrance> {
        let in_effect = self.inputs.registrations.of_kind(kind).and_then(Registration::in_effect);
        let are_in_force = in_effect.is_some_and(|in_effect| in_effect.has_all(engine, policies));
        let mut refused = None;
        self.is_able(engine, kind)?;
        for draft in self.rendering.drafts(engine, kind, policies)?.iter() {
            if draft.objects.is_empty() {
                return Ok(Vec::new());
            }
            match self.takes(engine, kind, draft) {
                Ok(()) => return Ok(draft.objects.clone()),
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

    /// Where `policy` is delivered, as chosen.
    fn place(&self, policy: &Arc<Policy>, choice: &Choice) -> Result<Placed, Readiness> {
        if let Some(reason) = choice.refused.get(&policy.name) {
            return Err(outcome_of(reason.clone()));
        }
        let by = |kind: &&Arc<Kind>| choice.engines.get(*kind).is_some_and(|engine| engine.is_per_policy());
        let (own, shared): (Vec<_>, Vec<_>) = policy.kinds.iter().partition(by);
        let own: Vec<_> = own.into_iter().cloned().collect();
        let cluster = &self.inputs.around.cluster;
        if !own.is_empty() {
            self.inputs.registrations.check_foreign(policy, cluster)?;
        }
        Ok(Placed {
            passed_over: shared.iter().find_map(|kind| choice.passed_over.get(*kind).cloned()),
            policy: policy.clone(),
            own: own.first().and_then(|kind| {
                let engine = *choice.engines.get(kind)?;
                let object = engine.engine().render_own(policy, &own, cluster)?;
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
    fn joints(&self, plan: &Plan, policies: &[Arc<Policy>], choice: &Choice) -> BTreeMap<Arc<Kind>, Arc<Wanted>> {
        let placed = policies.iter().filter_map(|policy| {
            let unedited = plan.unedited.get(&policy.name);
            unedited.or_else(|| plan.policies.get(&policy.name)?.as_ref().ok())
        });
        let placed: Vec<_> = placed.collect();
        let engines = choice.engines.iter().filter(|(_, engine)| !engine.is_per_policy());
        let joint = |(kind, engine): (&Arc<Kind>, &EngineName)| {
            let meeting: Vec<_> = placed.iter().filter(|placed| placed.shared.contains(kind)).collect();
            let policies: Vec<_> = meeting.iter().map(|placed| placed.policy.clone()).collect();
            let objects = self.registration(*engine, kind, &policies).ok()?;
            let wanted = Wanted { engine: *engine, policies, kinds: vec![kind.clone()], objects };
            Some((kind.clone(), Arc::new(wanted)))
        };
        engines.filter_map(joint).collect()
    }
}
