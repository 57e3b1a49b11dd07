//! The planner: which engine delivers which policy on which kind, or why none does. Pure: it works on known facts and returns
//! requests to the API server. It draws a new plan when an input has changed.
//!
//! | file | what |
//! |---|---|
//! | `rendered` | the rendered registrations, each rendered once for each form of its policies |
//! | `acceptance` | whether the server accepts a registration |
//! | `trials` | whether the server accepts a template |
//! | `blocked` | the engines that turned out not to work |

mod acceptance;
mod blocked;
mod rendered;
mod trials;

#[cfg(test)]
mod tests;

pub(super) use acceptance::Acceptance;
pub(super) use blocked::Blocked;
pub(super) use trials::TrialKey;

use self::acceptance::{Acceptances, Question, Questions};
use self::rendered::{Rendered, Rendering};
use super::policy_state::outcome_of;
use super::registered::Registrations;
use crate::api::code::Code;
use crate::api::condition::Readiness;
use crate::api::pod_schema;
use crate::api::v1alpha1::Mode;
use crate::cluster::policies::{Snapshot, StoredPolicy};
use crate::engine::choice::{self, Choice, Hindrance};
use crate::engine::lifecycle::{Live, Registration, Wanted};
use crate::engine::{EngineName, Surroundings, Unavailable};
use crate::policy::{Policy, PolicyRef};
use crate::workload::Kind;
use serde_json::Value;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// The wanted state.
#[derive(Default)]
pub(super) struct Plan {
    /// Where each stored policy is delivered, or why it is not.
    pub(super) policies: BTreeMap<String, Result<Arc<Placed>, Readiness>>,
    /// Where a policy is still delivered in its old form, because its edit cannot take effect.
    unedited: BTreeMap<String, Arc<Placed>>,
    /// The shared registration of each kind.
    pub(super) joints: BTreeMap<Arc<Kind>, Arc<Wanted>>,
    /// The kinds whose registration must not change now. A template there is still in trial, or the wanted state of a policy
    /// that is or may be in effect there is unknown.
    pub(super) undecided: BTreeSet<Arc<Kind>>,
}

/// Where a policy is delivered.
pub(super) struct Placed {
    pub(super) policy: Arc<Policy>,
    /// The policy's own registration, with an engine such as Initializer.
    pub(super) own: Option<Arc<Wanted>>,
    /// The kinds on which the policy shares a registration.
    pub(super) shared: Vec<Arc<Kind>>,
    /// Why one of its kinds does not have the preferred engine.
    pub(super) passed_over: Option<Unavailable>,
}

impl Plan {
    /// Whether the wanted state of any policy is unknown.
    pub(super) fn is_undecided(&self) -> bool {
        self.policies.values().any(|placed| placed.as_ref().err().is_some_and(is_undecided))
    }
}

/// Whether the outcome is unknown for now, because the server does not answer or a task of ours is not finished.
pub(super) fn is_undecided(outcome: &Readiness) -> bool {
    matches!(outcome, Readiness::FirstSight | Readiness::Waiting { code: Code::ServerAway, .. })
}

/// The `outcome` of an edit whose earlier form stays in effect.
fn unedited(outcome: Readiness) -> Readiness {
    let with = |message: String| format!("{message}; what was in effect before this edit stays in effect");
    match outcome {
        Readiness::Rejected { code, message } => Readiness::Rejected { code, message: with(message) },
        Readiness::Impossible { code, message } => Readiness::Impossible { code, message: with(message) },
        Readiness::Waiting { code, message } => Readiness::Waiting { code, message: with(message) },
        outcome => outcome,
    }
}

/// The inputs of a plan.
pub(super) struct Inputs<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) surroundings: Surroundings,
    pub(super) registrations: &'a Registrations,
    /// The effect that a policy in Audit mode would have, by its name and the hash of its spec.
    pub(super) sample: &'a dyn Fn(&str, &str) -> Option<String>,
    pub(super) now: Instant,
}

/// The requests of a plan to the API server.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) templates: Vec<(TrialKey, Arc<Policy>)>,
    /// Registrations to ask about, by their print.
    pub(super) rehearsals: Vec<(String, Question)>,
    /// Whether the plan considers an engine that needs this operator to answer.
    pub(super) needs_operator: bool,
}

/// Draws the plan, and keeps the results of its requests.
#[derive(Default)]
pub(super) struct Planner {
    /// The plan; none after an input has changed.
    plan: Option<Arc<Plan>>,
    trials: BTreeMap<TrialKey, Acceptance>,
    acceptances: Acceptances,
    /// The engines that turned out not to work, with the reason and the time of that discovery.
    blocked: BTreeMap<Blocked, (Unavailable, Instant)>,
    rendered: Rendered,
    /// The stored policies of the last plan: name with UID, form, generation.
    stored: Vec<(String, String, i64)>,
}

impl Planner {
    /// The plan; none after an input has changed.
    pub(super) fn plan(&self) -> Option<&Arc<Plan>> {
        self.plan.as_ref()
    }

    /// Drops the plan, so that a new one is drawn.
    pub(super) fn outdate(&mut self) {
        self.plan = None;
    }

    /// Forgets all results, because the server is a different one.
    pub(super) fn forget_server(&mut self) {
        let stored = std::mem::take(&mut self.stored);
        *self = Self { stored, ..Self::default() };
    }

    /// Records which policies are stored.
    pub(super) fn policies_changed(&mut self, snapshot: &Snapshot) {
        let print = |(of, stored): (&PolicyRef, &StoredPolicy)| {
            let form = match &stored.parsed {
                Ok(policy) => policy.registered_form(),
                Err(violations) => format!("{violations:?}"),
            };
            (format!("{of} {}", stored.uid), form, stored.generation)
        };
        let stored: Vec<_> = snapshot.stored.iter().map(print).collect();
        if stored != self.stored {
            self.stored = stored;
            self.plan = None;
        }
    }

    /// Drops the plan if a trial of a template or a registration is due again.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.trials.values().chain(self.acceptances.values()).any(|acceptance| acceptance.is_due(now)) {
            self.plan = None;
        }
    }

    /// Draws the plan. Returns its requests.
    pub(super) fn draw(&mut self, inputs: &Inputs<'_>) -> Requests {
        let (snapshot, now) = (inputs.snapshot, inputs.now);
        self.trials.retain(|key, _| snapshot.stored.contains_key(&PolicyRef::of_cluster(&key.policy)));
        let (rendering, questions) =
            (std::mem::take(&mut self.rendered).begin(inputs.surroundings.clone()), Questions::default());
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
        // A failed trial that was due and not repeated is not needed any more.
        self.trials.retain(|_, trial| !trial.is_due(now));
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

    /// The policies that need an engine, in order of priority. The others go into the plan, each with its reason.
    fn eligible(&self, inputs: &Inputs<'_>, plan: &mut Plan) -> Vec<Arc<Policy>> {
        let mut eligible = HashSet::new();
        for (PolicyRef { name, .. }, stored) in inputs.snapshot.stored.iter() {
            match self.judge(name, stored, inputs) {
                Ok(()) => drop(eligible.insert(&**name)),
                Err(outcome) => drop(plan.policies.insert(name.to_string(), Err(outcome))),
            }
        }
        let policies = inputs.snapshot.policies.iter();
        policies.filter(|policy| eligible.contains(policy.name.as_str())).cloned().collect()
    }

    /// Adds the kinds whose registration must not change until more is known.
    fn note_undecided(&self, inputs: &Inputs<'_>, plan: &mut Plan) {
        let tried = self.trials.iter().filter(|(_, trial)| matches!(trial, Acceptance::Asked(_)));
        plan.undecided.extend(tried.map(|(key, _)| key.kind.clone()));
        for (PolicyRef { name, .. }, stored) in inputs.snapshot.stored.iter() {
            if let (Ok(policy), Some(Err(outcome))) = (&stored.parsed, plan.policies.get(&**name))
                && is_undecided(outcome)
            {
                let may_be_in_force = |kind: &&Arc<Kind>| inputs.registrations.may_be_in_force(kind, stored, name);
                plan.undecided.extend(policy.kinds.iter().filter(may_be_in_force).cloned());
            }
        }
    }

    /// Checks a policy before an engine is chosen.
    fn judge(&self, name: &str, stored: &StoredPolicy, inputs: &Inputs<'_>) -> Result<(), Readiness> {
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
        if let Some(message) = inputs.snapshot.policies.circle(name) {
            let message = format!("spec.replaces {message}");
            return Err(Readiness::Rejected { code: Code::ReplacesInvalid, message });
        }
        if policy.spec.suspend {
            return Err(Readiness::Suspended);
        }
        if policy.spec.mode == Mode::Audit {
            return Err(Readiness::Audit { sample: (inputs.sample)(name, &policy.spec_hash) });
        }
        let Surroundings { cluster, site, .. } = &inputs.surroundings;
        cluster.check_targets(&policy.spec.targets).map_err(outcome_of)?;
        if policy.needs_native_sidecars() && !site.native_sidecars {
            let message = format!(
                "native sidecars need Kubernetes 1.29 or later, and every kubelet, too; this server is {}",
                cluster.version
            );
            return Err(Readiness::Impossible { code: Code::NativeSidecarsUnavailable, message });
        }
        let unknown = pod_schema::unknown_fields(&policy.as_written().with_every_field(), cluster.known_minor());
        if unknown.is_empty() {
            return Ok(());
        }
        let (version, unknown) = (&cluster.version, unknown.join(", "));
        let message = format!("this server ({version}) does not know {unknown}; it would be dropped");
        Err(Readiness::Impossible { code: Code::UnknownTemplateField, message })
    }
}

/// The objects that reject workloads on `kind` while another registration replaces `before`. They require only the policies in
/// `both`.
pub(super) fn rejecting(
    surroundings: Surroundings,
    kind: &Arc<Kind>,
    before: &Live,
    both: &[Arc<Policy>],
) -> Vec<Value> {
    // Only the kinds of objects that are registered now.
    let kinds = |objects: &[Value]| objects.iter().map(|object| object["kind"].to_string()).collect::<BTreeSet<_>>();
    let registered = kinds(&before.wanted.objects);
    let rendering = Rendered::default().begin(surroundings);
    let drafts = rendering.drafts(before.wanted.engine, kind, both);
    let drafts = drafts.as_deref().map(Vec::as_slice).unwrap_or_default();
    let draft = drafts.iter().find(|draft| kinds(&draft.objects).is_subset(&registered));
    let objects = draft.map(|draft| draft.objects.clone()).unwrap_or_default();
    objects.into_iter().filter(crate::engine::registrar::refuses).collect()
}

/// Replaces each policy in `failed` by its form from before the edit, if that is in effect. Records the outcomes in `plan`.
fn keep_before_edit(
    eligible: Vec<Arc<Policy>>,
    failed: &BTreeMap<String, Readiness>,
    registrations: &Registrations,
    plan: &mut Plan,
) -> Vec<Arc<Policy>> {
    let before = |policy: Arc<Policy>| {
        if failed.contains_key(&policy.name) { registrations.before_edit(&policy) } else { Some(policy) }
    };
    let mut eligible: Vec<Arc<Policy>> = eligible.into_iter().filter_map(before).collect();
    // The edit may have changed the priority.
    eligible.sort_by(|a, b| Policy::by_priority(a, b));
    let kept: HashSet<&str> = eligible.iter().map(|policy| policy.name.as_str()).collect();
    for (name, outcome) in failed {
        let outcome = outcome.clone();
        let outcome = if kept.contains(name.as_str()) { unedited(outcome) } else { outcome };
        plan.policies.insert(name.to_string(), Err(outcome));
    }
    eligible
}

/// The inputs and caches of one plan.
struct View<'a> {
    planner: &'a Planner,
    inputs: &'a Inputs<'a>,
    rendering: &'a Rendering,
    questions: &'a Questions,
}

impl View<'_> {
    /// Chooses the engine of each kind.
    fn choose(&self, policies: &[Arc<Policy>]) -> Choice {
        let (registrations, snapshot) = (self.inputs.registrations, self.inputs.snapshot);
        // The registration may hold an earlier form of the policy, so the forms are compared.
        let live = |kind: &Arc<Kind>| registrations.of_kind(kind).and_then(Registration::live);
        let is_in_force = |kind: &Arc<Kind>, policy: &Policy| match live(kind) {
            Some(live) => live.wanted.has(policy),
            None => {
                let is_up = registrations.is_own_in_force(&policy.name);
                let is_told = |stored: &StoredPolicy| {
                    stored.status["observedSpecHash"] == policy.spec_hash.as_str()
                        && registrations.may_be_in_force(kind, stored, &policy.name)
                };
                is_up || snapshot.stored.get(&policy.reference()).is_some_and(is_told)
            }
        };
        choice::choose(
            policies,
            &choice::Questions {
                can: &|engine, kind, policies| self.check(engine, kind, policies),
                takes: &|engine, kind, policies| self.registration(engine, kind, policies).map(drop),
                is_in_force: &is_in_force,
                is_edited: &|policy| registrations.before_edit(policy).is_some(),
            },
        )
    }

    /// Whether `engine` can register `policies` on `kind`, without a request to the server.
    fn check(&self, engine: EngineName, kind: &Arc<Kind>, policies: &[Arc<Policy>]) -> Result<(), Unavailable> {
        self.is_able(engine, kind)?;
        self.rendering.check(engine, kind, policies)
    }

    /// Whether `engine` can register anything on `kind`.
    fn is_able(&self, engine: EngineName, kind: &Arc<Kind>) -> Result<(), Unavailable> {
        engine.engine().check(&self.inputs.surroundings.cluster)?;
        let unreadable = &self.inputs.registrations.unreadable;
        let unreadable = engine.engine().registers().iter().find_map(|resource| unreadable.get(resource));
        if let Some(reason) = self.planner.why_blocked(engine, kind).or(unreadable) {
            return Err(reason.clone());
        }
        self.questions.note(engine);
        Ok(())
    }

    /// The objects that register `policies` on `kind`: the best form that the server accepts.
    fn registration(
        &self,
        engine: EngineName,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
    ) -> Result<Vec<Value>, Hindrance> {
        let live = self.inputs.registrations.of_kind(kind).and_then(Registration::live);
        let are_in_force = live.is_some_and(|live| live.has_all(engine, policies));
        let mut refused = None;
        self.is_able(engine, kind)?;
        for draft in self.rendering.drafts(engine, kind, policies)?.iter() {
            if draft.objects.is_empty() {
                return Ok(Vec::new());
            }
            match self.takes(engine, kind, draft) {
                Ok(()) => return Ok(draft.objects.clone()),
                // The server accepted these policies before, so its reason is temporary. Nothing changes until then.
                Err(Hindrance::Unavailable(reason)) if are_in_force && reason.code == Code::RegistrationRefused => {
                    return Err(Hindrance::Asked);
                }
                Err(Hindrance::Unavailable(reason)) => refused = Some(reason),
                Err(Hindrance::Asked) => return Err(Hindrance::Asked),
            }
        }
        Err(refused.map_or(Hindrance::Asked, Hindrance::from))
    }

    /// The place of `policy` that follows from `choice`.
    fn place(&self, policy: &Arc<Policy>, choice: &Choice) -> Result<Placed, Readiness> {
        if let Some(reason) = choice.refused.get(&policy.name) {
            return Err(outcome_of(reason.clone()));
        }
        let by = |kind: &&Arc<Kind>| choice.engines.get(*kind).is_some_and(|engine| engine.is_per_policy());
        let (own, shared): (Vec<_>, Vec<_>) = policy.kinds.iter().partition(by);
        let own: Vec<_> = own.into_iter().cloned().collect();
        let cluster = &self.inputs.surroundings.cluster;
        if !own.is_empty() {
            self.inputs.registrations.check_foreign(policy, cluster)?;
        }
        Ok(Placed {
            passed_over: shared.iter().find_map(|kind| choice.passed_over.get(*kind).cloned()),
            policy: policy.clone(),
            own: own.first().and_then(|kind| {
                let engine = *choice.engines.get(kind)?;
                let object = engine.engine().completing()?.render(policy, &own, cluster);
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

    /// The shared registration of each kind.
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
