//! The decision on one workload: every policy, and every conflict between them. Pure.
//!
//! [`decide`](crate::policy::decide) judges one policy; [`plan`](inject::plan) merges templates. [`Decision::of`]
//! combines them, for the operator, `scpol inject` and `scpol explain` alike: first the policies that match, then pairs
//! that contradict each other, then each remaining policy against the workload. The order of the policies changes
//! nothing.

use crate::api::code::Code;
use crate::api::pod_security::Standard;
use crate::api::v1alpha1::{Jobs, Mode, NativeSidecars};
use crate::inject::{self, Conflict, Template};
use crate::policy::checks::{self, Common};
use crate::policy::{Policies, Policy, Reason, Site, Verdict, decide_with, dialect};
use crate::workload::Workload;
use admission_cel::Budget;
use json_patch::Patch;
use std::borrow::Cow;
use std::sync::Arc;

/// The result of one policy for one workload. It is also the label `result` of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The template is injected.
    Injected,
    /// The policy does not apply.
    Skipped,
    /// The template cannot be injected; the workload is created without it.
    Failed,
    /// The template cannot be injected; the create is rejected.
    Rejected,
}

impl Outcome {
    /// The word in logs, metrics and output.
    pub fn label(self) -> &'static str {
        match self {
            Outcome::Injected => "injected",
            Outcome::Skipped => "skipped",
            Outcome::Failed => "failed",
            Outcome::Rejected => "rejected",
        }
    }
}

/// A policy that adds nothing to a workload.
#[derive(Clone, Debug)]
pub struct Left {
    /// The policy.
    pub policy: Arc<Policy>,
    /// [`Outcome::Skipped`], [`Outcome::Failed`] or [`Outcome::Rejected`].
    pub outcome: Outcome,
    /// The deciding row of the precedence table, the code, and the compared values.
    pub reason: Reason,
}

/// The decision on one workload.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// The policies whose template is injected, in priority order.
    pub inject: Vec<Arc<Policy>>,
    /// The policies that add nothing, with the reason: first the skipped ones by name, then the failed ones.
    pub rest: Vec<Left>,
    /// Every policy that matches, injected or not: containers that they name are not the user's own.
    matching: Vec<Arc<Policy>>,
    /// The policies whose validations the workload must satisfy.
    judges: Vec<Arc<Policy>>,
    /// Whether containers can be delivered as native sidecars.
    native_sidecars: bool,
    /// The minor version of the server, as in [`Site`].
    minor: Option<u32>,
    /// The patch of [`Self::inject`]; none after a policy was removed from it.
    planned: Option<Patch>,
}

impl Decision {
    /// The decision of every policy in `policies` about `workload`.
    ///
    /// # Guarantees
    /// Pure. Policies that are suspended or in Audit mode add nothing, and conflict with none.
    pub fn of(policies: &Policies, workload: &Workload, site: &Site) -> Self {
        let mut decision = Self { native_sidecars: site.native_sidecars, minor: site.minor, ..Self::default() };
        let common = Common::of(workload, site);
        for policy in policies.iter() {
            decision.ask(policy, &policy.view(workload), site, &common);
        }
        decision.leave_out_disagreements(workload);
        let workload = decision.view(workload);
        decision.leave_out_conflicts(&workload);
        decision
    }

    fn standard(&self) -> Standard {
        Standard::of(self.minor)
    }

    /// `workload` with its pod at the path that the injected policies give.
    fn view<'a>(&self, workload: &'a Workload) -> Cow<'a, Workload> {
        self.inject.first().map_or(Cow::Borrowed(workload), |policy| policy.view(workload))
    }

    /// Fails the policies that give different paths for the pod of a custom resource, because at most one can be right.
    fn leave_out_disagreements(&mut self, workload: &Workload) {
        let [first, others @ ..] = &self.inject[..] else { return };
        let kind = &workload.kind;
        if kind.is_in_table() || others.iter().all(|other| first.disagreement(other, kind).is_none()) {
            return;
        }
        // Enough, because where two policies differ every other one differs from one of the two.
        let matching = self.inject.clone();
        for policy in &matching {
            let differs = |other: &Arc<Policy>| Some((other.name.clone(), policy.disagreement(other, kind)?));
            let Some((other, (own, theirs))) = matching.iter().find_map(differs) else { continue };
            let detail = format!(
                "collides with SidecarPolicy `{other}`: the pod template lies at `{own}` for this one, at `{theirs}` for the other",
            );
            self.fail(policy.clone(), Reason { row: 8, code: Code::PolicyConflict, detail });
        }
    }

    fn ask(&mut self, policy: &Arc<Policy>, workload: &Workload, site: &Site, common: &Common) {
        let verdict = if policy.is_enforced() {
            decide_with(common, policy, workload, site)
        } else {
            let code = if policy.spec.suspend { Code::Suspended } else { Code::Audit };
            Verdict::Skip(Reason { row: 7, code, detail: "the policy is not in force".into() })
        };
        let mut is_judged = false;
        if policy.is_enforced() && !policy.validations.is_empty() {
            match checks::is_judged(common, policy, workload, site) {
                Ok(true) => {
                    self.judges.push(policy.clone());
                    is_judged = true;
                }
                Ok(false) => {}
                // Only for a skipped policy, because the match below handles an error itself.
                Err(reason) if matches!(verdict, Verdict::Skip(_)) => self.fail(policy.clone(), reason),
                Err(_) => {}
            }
        }
        match verdict {
            Verdict::Inject if !policy.injects() => {}
            // Opting out is about templates: this policy has none, and judges the workload all the same.
            Verdict::Skip(_) if !policy.injects() && is_judged => {}
            Verdict::Inject => match delivery(policy, workload, self.native_sidecars) {
                Ok(_) => self.inject.push(policy.clone()),
                Err(reason) => self.rest.push(Left { policy: policy.clone(), outcome: Outcome::Skipped, reason }),
            },
            Verdict::Skip(reason) => self.rest.push(Left { policy: policy.clone(), outcome: Outcome::Skipped, reason }),
            Verdict::Error(reason) => self.fail(policy.clone(), reason),
        }
    }

    /// Fails the policies that conflict: first pairs of templates, among all policies that match; then each remaining
    /// one against the workload.
    fn leave_out_conflicts(&mut self, workload: &Workload) {
        self.matching = self.inject.clone();
        let matching = self.matching.clone();
        let templates = self.templates(&matching, workload);
        let templates = references(&templates);
        // First, because there is nearly always no conflict, and then the work is done.
        if let Ok(patch) = inject::plan(workload, &templates, &templates, self.standard()) {
            self.planned = Some(patch);
            return;
        }
        for (a, b, conflict) in inject::collisions(&templates) {
            for (policy, other) in [(&matching[a], &matching[b]), (&matching[b], &matching[a])] {
                if self.injects(policy) {
                    let detail = format!("collides with SidecarPolicy `{}`: {}", other.name, conflict.message);
                    self.fail(policy.clone(), Reason { row: 8, code: Code::PolicyConflict, detail });
                }
            }
        }
        for (policy, template) in matching.iter().zip(&templates) {
            if self.injects(policy)
                && let Err(conflict) = inject::check(workload, template, &templates, self.standard())
            {
                self.fail(policy.clone(), conflict.into());
            }
        }
        // Planned here, because a conflict of all templates together fails all of them.
        self.planned = Some(self.plan_anew(workload));
    }

    fn injects(&self, policy: &Policy) -> bool {
        self.inject.iter().any(|injected| injected.name == policy.name)
    }

    /// The templates of `policies` as they are delivered to `workload`.
    fn templates<'a>(&self, policies: &'a [Arc<Policy>], workload: &Workload) -> Vec<Cow<'a, Template>> {
        policies.iter().filter_map(|policy| delivery(policy, workload, self.native_sidecars).ok()).collect()
    }

    /// The policies that match, injected or not.
    pub(crate) fn matching(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.matching.iter()
    }

    /// Keeps the policies for which `asked` is true. The others have had their effect on conflicts.
    pub fn retain(&mut self, asked: impl Fn(&Policy) -> bool) {
        let before = self.inject.len();
        self.inject.retain(|policy| asked(policy));
        self.planned = self.planned.take().filter(|_| self.inject.len() == before);
        self.rest.retain(|left| asked(&left.policy));
        self.judges.retain(|policy| asked(policy));
    }

    /// The same decision with `policy` as the only one that is injected.
    #[must_use]
    pub fn alone(&self, policy: &Arc<Policy>) -> Self {
        Self { inject: vec![policy.clone()], rest: Vec::new(), judges: Vec::new(), planned: None, ..self.clone() }
    }

    /// Removes `policy` from the injected ones: it failed for `reason`.
    pub fn fail(&mut self, policy: Arc<Policy>, reason: Reason) {
        self.inject.retain(|other| other.name != policy.name);
        self.planned = None;
        let outcome = if policy.refuses() { Outcome::Rejected } else { Outcome::Failed };
        self.rest.push(Left { policy, outcome, reason });
    }

    /// The policies whose validations [`Self::plan`] found satisfied.
    pub fn satisfied(&self) -> impl Iterator<Item = &Arc<Policy>> {
        let failed =
            |policy: &Policy| self.rest.iter().any(|left| left.reason.row == JUDGED && left.policy.name == policy.name);
        self.judges.iter().filter(move |policy| !failed(policy))
    }

    /// The first policy that rejects the create.
    pub fn refusal(&self) -> Option<&Left> {
        self.rest.iter().find(|left| left.outcome == Outcome::Rejected)
    }

    /// The patch that injects all templates. A conflict that only all of them together have fails all of them: host
    /// ports on the host's network, for example.
    ///
    /// Validations see the patched workload; [`Self::refusal`] has the result. The first call must pass the workload of
    /// the decision; later calls may pass another form of it.
    pub fn plan(&mut self, workload: &Workload) -> Patch {
        let workload = &*self.view(workload);
        let patch = self.planned.take().unwrap_or_else(|| self.plan_anew(workload));
        self.judge(workload, &patch);
        patch
    }

    /// Judges the object after every mutation, `stored`. This decision is about `before`: the same object without our
    /// additions. An injected policy without a marker in `stored` fails. [`Self::refusal`] has the result.
    pub fn judge_stored(&mut self, before: &Workload, stored: &Workload) {
        if self.planned.take().is_none() {
            // Planned first, because a conflict of all templates together is the reason to report.
            let before = &*self.view(before);
            self.plan_anew(before);
        }
        for policy in self.inject.clone() {
            if policy.marker(stored).is_none_or(|marker| marker.hash != policy.template.hash) {
                let detail =
                    "it matches, and comes without the sidecar: the call that injects it failed, or was not made";
                self.fail(policy, Reason { row: 8, code: Code::SidecarMissing, detail: detail.into() });
            }
        }
        self.judge(stored, &Patch::default());
    }

    fn plan_anew(&mut self, workload: &Workload) -> Patch {
        let (inject, matching) = (self.templates(&self.inject, workload), self.templates(&self.matching, workload));
        match inject::plan(workload, &references(&inject), &references(&matching), self.standard()) {
            Ok(patch) => patch,
            Err(conflict) => {
                for policy in self.inject.clone() {
                    self.fail(policy, conflict.clone().into());
                }
                Patch::default()
            }
        }
    }

    /// Runs the validations on `workload` with `patch`.
    fn judge(&mut self, workload: &Workload, patch: &Patch) {
        // Because an earlier plan may have added verdicts.
        self.rest.retain(|left| left.reason.row != JUDGED);
        if self.judges.is_empty() {
            return;
        }
        let stored = workload.with_body(workload.patched(patch));
        let (variables, dialect) = (checks::variables(&stored), dialect(self.minor));
        for policy in self.judges.clone() {
            let mut budget = Budget::validations();
            for demand in &policy.validations {
                let (outcome, code, detail) = match demand.expression.on(dialect).test(&variables, &mut budget) {
                    Ok(true) => continue,
                    Ok(false) => {
                        (Outcome::Rejected, Code::ValidationFailed, demand.told(&variables, &mut budget, dialect))
                    }
                    Err(failure) => {
                        let outcome = if policy.refuses() { Outcome::Rejected } else { Outcome::Failed };
                        let detail = format!("validation `{}` failed: {failure}", demand.expression.source().trim());
                        (outcome, Code::ExpressionFailed, detail)
                    }
                };
                let reason = Reason { row: JUDGED, code, detail };
                self.rest.push(Left { policy: policy.clone(), outcome, reason });
            }
        }
    }
}

fn references<'a>(templates: &'a [Cow<'_, Template>]) -> Vec<&'a Template> {
    templates.iter().map(AsRef::as_ref).collect()
}

/// The effect that `policy` would have on `workload` if it were in effect; none if there is none.
pub fn rehearsal(policy: &Policy, workload: &Workload, site: &Site) -> Option<String> {
    let mut enforced = policy.clone();
    enforced.spec.mode = Mode::Enforce;
    let mut decision = Decision::of(&Policies::new([Arc::new(enforced)]), workload, site);
    let patch = decision.plan(workload);
    let name = format!("{} `{}/{}`", workload.kind_name(), workload.namespace(), workload.name());
    if let Some(left) = decision.rest.iter().find(|left| left.outcome != Outcome::Skipped) {
        let verb = if left.outcome == Outcome::Rejected { "be refused" } else { "not be injected" };
        return Some(format!("changing nothing; {name} would {verb}: {}: {}", left.reason.code, left.reason.detail));
    }
    let added = policy.marker(&workload.with_body(workload.patched(&patch)))?.added;
    let pod = policy.view(workload).pod_pointer();
    let added: Vec<_> = added.iter().filter_map(|pointer| inject::marker::told(pointer.strip_prefix(&pod)?)).collect();
    Some(format!("changing nothing; {name} would get {}", added.join(", ")))
}

/// The row of the validations. It follows the rows that decide on injection.
pub const JUDGED: u8 = 9;

/// The template of `policy` in the form that `workload` needs: a plain container would keep a pod that ends by itself
/// from ending. `native_sidecars`: whether the server has native sidecars.
///
/// # Errors
/// The reason if it cannot be delivered.
pub(crate) fn delivery<'a>(
    policy: &'a Policy,
    workload: &Workload,
    native_sidecars: bool,
) -> Result<Cow<'a, Template>, Reason> {
    let template = &policy.template;
    let is_wanted = match policy.spec.native_sidecars {
        NativeSidecars::Never => false,
        NativeSidecars::Always => true,
        NativeSidecars::ForJobs => workload.ends(),
    };
    if !is_wanted || template.spec.containers.is_empty() {
        return Ok(Cow::Borrowed(template));
    }
    let missing = |code, detail: &str| Err(Reason { row: 8, code, detail: detail.to_owned() });
    match (native_sidecars, policy.spec.native_sidecars, policy.spec.jobs) {
        (true, ..) => Ok(Cow::Owned(template.with_native_sidecars())),
        (false, NativeSidecars::Always, _) => {
            missing(Code::NativeSidecarsUnavailable, "`spec.nativeSidecars: Always` needs Kubernetes 1.29 or later")
        }
        (false, _, Jobs::Inject) => Ok(Cow::Borrowed(template)),
        (false, _, Jobs::Skip) => missing(
            Code::JobSkipped,
            "the pod ends by itself, which a plain sidecar would prevent; native sidecars need Kubernetes 1.29 or later",
        ),
    }
}

impl From<Conflict> for Reason {
    fn from(conflict: Conflict) -> Self {
        Reason { row: 8, code: conflict.code, detail: conflict.message }
    }
}
