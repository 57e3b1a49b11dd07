//! The decision on one workload: every policy, and every conflict between them. Pure.
//!
//! [`decide`](crate::policy::decide) judges one policy; [`plan`](inject::plan) merges templates. [`Decision::of`]
//! combines them, for the operator, `scpol inject` and `scpol explain` alike: first the policies that match, then pairs
//! that contradict each other ([`ranking`]), then each remaining policy against the workload, then all together. The
//! order of the policies changes nothing.

use crate::api::code::Code;
use crate::api::pod_security::Standard;
use crate::api::v1alpha1::Mode;
use crate::inject::overlay::{Changes, Overlay};
use crate::inject::tables::has_volume;
use crate::inject::{self, Conflict, Leftover, LeftoverCause, Loss, Markers, Presence, Template, plan_with};
use crate::policy::checks::{self, Common};
use crate::policy::{
    CompiledValidation, Policies, Policy, PolicyRef, Reason, Site, Verdict, decide_with, deliver, dialect, scope,
};
use crate::ranking::{self, Standing};
use crate::workload::Workload;
use admission_cel::{Budget, Dialect};
use json_patch::Patch;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
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
    judges: Vec<Judge>,
    /// What only the decision on an update has.
    update: Option<Before>,
    /// Whether containers can be delivered as native sidecars.
    native_sidecars: bool,
    /// The minor version of the server, as in [`Site`].
    minor: Option<u32>,
    /// The patch of [`Self::inject`]; none after a policy was removed from it.
    planned: Option<Patch>,
    /// See [`carrying_past`]: that content goes where the present one is injected.
    renewed: Renewed,
}

/// For each policy of which a workload carries earlier content, exactly, or an overlay: the policies whose markers list that content. They
/// are the policy itself, or others whose place it takes.
type Renewed = BTreeMap<String, Vec<String>>;

/// A policy whose validations the workload must satisfy.
#[derive(Clone, Debug)]
struct Judge {
    policy: Arc<Policy>,
    /// For an update: whether the policy selects the new object, and the old one, or why it cannot tell.
    selects: Option<[Result<bool, Reason>; 2]>,
}

/// The object before an update.
#[derive(Clone, Debug)]
struct Before {
    stored: Workload,
    /// The policies whose marker the new object has kept: the update is never rejected for their content.
    kept: BTreeSet<String>,
    /// The policies that take places and whose content the new object has.
    there: Vec<Arc<Policy>>,
    /// See [`Decision::excused`].
    excused: Vec<(Arc<Policy>, Code, String)>,
}

/// One of the two objects of an update.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The object itself.
    pub stored: &'a Workload,
    /// The object on which policies decide: without additions whose effect on the decision must not be seen.
    pub bare: &'a Workload,
}

impl<'a> From<&'a Workload> for Side<'a> {
    fn from(workload: &'a Workload) -> Self {
        Self { stored: workload, bare: workload }
    }
}

/// The result of a validation of an update.
enum UpdateJudgement {
    /// It holds, or the update changes nothing that it depends on.
    Passed,
    /// It does not hold, and did not hold before.
    Excused(Code, String),
    /// It held before, or did not apply: its message.
    Broken(String),
    /// It cannot be evaluated.
    Unknown(Code, String),
}

impl Decision {
    /// The decision about an update from `old` to `new`, of the policies for which `acts` is true: those that act on this
    /// update.
    ///
    /// Such a policy injects if the update takes away what it had added (see [`Policy::loss`]), if `counts` is true for that
    /// loss, and if it would inject on a create of the new object: by all policies, so that the conflicts of the others
    /// count. Its validations count for every update.
    ///
    /// # Guarantees
    /// As for [`Self::of`]. Nothing is decided about an object that is being deleted.
    pub fn of_update(
        policies: &Policies,
        [old, new]: [Side<'_>; 2],
        site: &Site,
        acts: impl Fn(&Policy) -> bool,
        counts: impl Fn(Loss) -> bool,
    ) -> Self {
        let mut decision = Self { native_sidecars: site.native_sidecars, minor: site.minor, ..Self::default() };
        // The server keeps the deletion time of the old object, and refuses a new one.
        if old.stored.is_terminating() {
            return decision;
        }
        let policies = &*policies.valued(new.stored, Some(old.stored), site);
        let enforced = || policies.at(new.stored).filter(|policy| policy.is_enforced());
        let acting: Vec<&Arc<Policy>> = enforced().filter(|policy| acts(policy)).collect();
        let names = |is_meant: &dyn Fn(&Policy) -> bool| -> BTreeSet<String> {
            acting.iter().filter(|policy| is_meant(policy)).map(|policy| policy.name.clone()).collect()
        };
        let loss = |policy: &Policy| policy.loss(old.stored, new.stored).filter(|_| policy.injects());
        // An author has applied other values: they belong to all places of the parameter.
        let is_applied = |policy: &Policy| policy.injects() && policy.has_applied(new.stored) && counts(Loss::Content);
        let applied = names(&|policy| loss(policy).is_none() && is_applied(policy));
        let lost = names(&|policy| loss(policy).is_some_and(&counts) || applied.contains(&policy.name));
        let kept = names(&|policy| policy.marker(new.stored).is_some());
        let is_there =
            |policy: &&Arc<Policy>| policy.takes_places() && policy.is_injected_beside(new.stored, enforced());
        let there: Vec<Arc<Policy>> = enforced().filter(is_there).cloned().collect();
        let is_due = |policy: &Policy| lost.contains(&policy.name) || there.iter().any(|by| by.name == policy.name);
        decision.update = Some(Before { stored: old.stored.clone(), kept, there: there.clone(), excused: Vec::new() });
        let [common, common_before] = [new, old].map(|side| Common::of(side.bare, site));
        for policy in acting.into_iter().filter(|policy| !policy.validations.is_empty()) {
            let judged = |common, side: Side<'_>| checks::is_judged(common, policy, &policy.view(side.bare), site);
            let selects = [judged(&common, new), judged(&common_before, old)];
            decision.judges.push(Judge { policy: policy.clone(), selects: Some(selects) });
        }
        // As of most updates.
        if lost.is_empty() {
            return decision;
        }
        decision.renewed = applied.iter().map(|name| (name.clone(), vec![name.clone()])).collect();
        add_overlaid(&mut decision.renewed, policies, new.bare);
        let common_of_loss = Common::of_update(new.bare, site);
        for policy in enforced().filter(|policy| policy.injects()) {
            let common = if lost.contains(&policy.name) { &common_of_loss } else { &common };
            let view = policy.view(new.bare);
            decision.note(policy, decide_with(common, policy, &view, site), &view);
        }
        let adding: Vec<Arc<Policy>> = enforced().cloned().collect();
        let bare = without(new.bare, &decision.renewed, &adding);
        decision.leave_out_replaced(&bare, site, is_due);
        decision.leave_out_disagreements(&bare);
        let workload = decision.view(&bare);
        decision.leave_out_conflicts(&workload);
        decision.keep(|policy| lost.contains(&policy.name));
        decision.refuse_for_places();
        // Because the plan must extend the markers that are left.
        decision.planned = None;
        decision
    }

    /// The decision of every policy in `policies` about `workload`.
    ///
    /// A workload may come with an earlier content of a policy, as from a backup or a clone of a namespace. If that is exactly
    /// what the policy added once, it is decided without it, and gets the present content in its place. If the policy is not
    /// injected then, the workload keeps what it has.
    ///
    /// # Guarantees
    /// Pure. Policies that are suspended or in Audit mode add nothing, and conflict with none.
    pub fn of(policies: &Policies, workload: &Workload, site: &Site) -> Self {
        let policies = &*policies.valued(workload, None, site);
        let mut renewed = carrying_past(policies, workload);
        add_overlaid(&mut renewed, policies, workload);
        // Those whose volumes may come back: at last the injected ones.
        let mut adding: Vec<Arc<Policy>> =
            policies.at(workload).filter(|policy| policy.is_enforced()).cloned().collect();
        let mut kept: Vec<Left> = Vec::new();
        while !renewed.is_empty() {
            let seen = without_content(workload, &renewed, &adding);
            let mut decision =
                Self::of_bare(policies, [&seen, &without_overlays(seen.clone(), &renewed, &adding)], site);
            let before = (renewed.clone(), adding.len());
            let is_injected = |name: &str| decision.inject.iter().any(|policy| policy.name == name);
            renewed.retain(|name, _| is_injected(name));
            adding.retain(|policy| is_injected(&policy.name));
            if (&renewed, adding.len()) == (&before.0, before.1) {
                decision.renewed = renewed;
                decision.leave(kept);
                return decision;
            }
            let is_kept =
                |left: &Left| before.0.contains_key(&left.policy.name) && !renewed.contains_key(&left.policy.name);
            kept.extend(decision.rest.into_iter().filter(is_kept));
        }
        let mut decision = Self::of_bare(policies, [workload; 2], site);
        decision.leave(kept);
        decision
    }

    /// Leaves the policies of `kept` as they were decided without their earlier contents or overlays, which stay where they are. With
    /// them, a decision could take them for the user's own, and add to them. Who is skipped without them is decided with them: a label
    /// that the marker lists may be what the policy selects, and users can write both.
    fn leave(&mut self, mut kept: Vec<Left>) {
        kept.retain(|left| left.outcome != Outcome::Skipped);
        let is_kept = |name: &str| kept.iter().any(|left| left.policy.name == name);
        if self.inject.iter().any(|policy| is_kept(&policy.name)) {
            self.inject.retain(|policy| !is_kept(&policy.name));
            self.planned = None;
        }
        self.rest.retain(|left| left.reason.row == JUDGED || !is_kept(&left.policy.name));
        self.rest.extend(kept);
    }

    /// The injected policies whose earlier content in the workload is replaced.
    pub fn replaced(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.renewed().filter(|policy| self.renewed.get(&policy.name).is_some_and(|markers| !markers.is_empty()))
    }

    /// The same, with those whose overlay is.
    fn renewed(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.inject.iter().filter(|policy| self.renewed.contains_key(&policy.name))
    }

    /// `workload` without the earlier contents that this decision replaces: what an undo gives back.
    pub fn original<'a>(&self, workload: &'a Workload) -> Cow<'a, Workload> {
        match self.past(workload) {
            past if past.is_empty() => Cow::Borrowed(workload),
            past => Cow::Owned(without_content(workload, &past, &self.inject)),
        }
    }

    /// `workload` with an image in each overlay that it replaces.
    pub(crate) fn with_images<'a>(&self, workload: &'a Workload) -> Cow<'a, Workload> {
        self.renewed().fold(Cow::Borrowed(workload), |workload, policy| {
            let body = policy.as_written().with_images(&policy.view(&workload));
            Cow::Owned(workload.with_body(body))
        })
    }

    /// `workload` without the earlier contents and the overlays that it replaces.
    fn base<'a>(&self, workload: &'a Workload) -> Cow<'a, Workload> {
        match self.past(workload) {
            past if past.is_empty() => Cow::Borrowed(workload),
            past => Cow::Owned(without(workload, &past, &self.inject)),
        }
    }

    /// What it replaces in `workload`. A form of the workload that has the present content already stays as it is.
    fn past(&self, workload: &Workload) -> Renewed {
        let is_past = |name: &str| self.renewed().any(|policy| policy.name == name && !policy.is_recorded(workload));
        let past = self.renewed.iter().filter(|(name, _)| is_past(name));
        past.map(|(name, markers)| (name.clone(), markers.clone())).collect()
    }

    /// The same for a workload without earlier contents: as policies see it, and as templates go into it, without overlays.
    fn of_bare(policies: &Policies, [seen, workload]: [&Workload; 2], site: &Site) -> Self {
        let mut decision = Self { native_sidecars: site.native_sidecars, minor: site.minor, ..Self::default() };
        let common = Common::of(seen, site);
        for policy in policies.at(workload) {
            // Most policies are in no circle, because they take no place.
            if let Some(circle) = policy.takes_places().then(|| policies.circle(&policy.name)).flatten() {
                let reason = Reason { row: 7, code: Code::ReplacesInvalid, detail: format!("spec.replaces {circle}") };
                decision.rest.push(Left { policy: policy.clone(), outcome: Outcome::Failed, reason });
                continue;
            }
            decision.ask(policy, &policy.view(seen), site, &common);
        }
        decision.leave_out_injected(workload);
        decision.leave_out_replaced(workload, site, |_| true);
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

    /// The policies whose content the workload has already.
    fn already(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.rest.iter().filter(|left| left.reason.code == Code::AlreadyInjected).map(|left| &left.policy)
    }

    /// The policies whose content is in the injected workload: those that are injected, and those whose content is there already.
    pub(crate) fn present(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.inject.iter().chain(self.already())
    }

    /// Row 6 for policies whose content is all there because containers of other matching policies are not the user's own.
    fn leave_out_injected(&mut self, workload: &Workload) {
        for policy in self.inject.clone() {
            if policy.is_injected_beside(workload, self.present()) {
                self.inject.retain(|other| other.name != policy.name);
                self.rest.push(Left { outcome: Outcome::Skipped, reason: checks::injected(&policy), policy });
            }
        }
    }

    /// Skips the policies whose place another one takes: one that has been injected, or that would be injected into `workload`
    /// beside the others. A policy in conflict with the workload fails, and replaces none. A policy that is not `due` is not injected,
    /// and replaces none.
    fn leave_out_replaced(&mut self, workload: &Workload, site: &Site, is_due: impl Fn(&Policy) -> bool) {
        let matching = self.inject.clone();
        let is_asked = |by: &&Arc<Policy>| matching.iter().any(|policy| by.replaces(&policy.name));
        if !matching.iter().chain(self.rest.iter().map(|left| &left.policy)).any(|by| is_asked(&by)) {
            return;
        }
        let workload = &*self.view(workload);
        let beside = templates(&matching, workload, self.native_sidecars);
        let fits = |by: &Arc<Policy>| {
            let delivered = deliver(by, workload, self.native_sidecars).map_err(|reason| (by.clone(), reason))?;
            let checked = inject::check(workload, delivered.template(), &beside, self.standard());
            checked.map_err(|conflict| (by.clone(), conflict.into()))
        };
        let (due, waiting): (Vec<_>, Vec<_>) = matching.iter().filter(is_asked).partition(|by| is_due(by));
        let (fitting, failing): (Vec<_>, Vec<_>) =
            due.into_iter().map(|by| (by, fits(by))).partition(|it| it.1.is_ok());
        let injected = self.already().filter(|by| is_asked(by) && checks::selects(by, &by.view(workload), site));
        let taking: Vec<Arc<Policy>> = fitting.iter().map(|(by, _)| *by).chain(injected).cloned().collect();
        for policy in &matching {
            let Some(by) = taking.iter().find(|by| by.replaces(&policy.name)) else { continue };
            self.inject.retain(|other| other.name != policy.name);
            let detail = format!("SidecarPolicy `{}` takes its place: it has it in `spec.replaces`", by.name);
            let reason = Reason { row: 8, code: Code::Replaced, detail };
            self.rest.push(Left { policy: policy.clone(), outcome: Outcome::Skipped, reason });
        }
        self.inject.retain(|policy| waiting.iter().all(|by| by.name != policy.name));
        for (policy, reason) in failing.into_iter().filter_map(|(_, fits)| fits.err()) {
            if self.injects(&policy) {
                self.fail(policy, reason);
            }
        }
    }

    /// Whether the workload has or gets the content of one of the policies for which `is_meant` is true.
    fn delivers(&self, is_meant: impl Fn(&Policy) -> bool) -> bool {
        let there = self.update.iter().flat_map(|update| &update.there);
        self.present().chain(there).any(|policy| is_meant(policy))
    }

    /// Whether the workload has or gets the content of a policy that takes the place of `name`, at once or over others.
    fn is_taken(&self, name: &str) -> bool {
        let (mut names, mut at) = (vec![name], 0);
        while let Some(name) = names.get(at).copied() {
            if self.delivers(|by| by.replaces(name)) {
                return true;
            }
            let replaced = self.rest.iter().filter(|left| left.reason.code == Code::Replaced).map(|left| &left.policy);
            for by in replaced.filter(|by| by.replaces(name)) {
                if !names.contains(&by.name.as_str()) {
                    names.push(&by.name);
                }
            }
            at += 1;
        }
        false
    }

    /// Rejects the workload for policies under `Fail` of which it has neither the content nor that of another one in their place.
    /// A policy that replaces another one also accepts the content of that one, like an earlier revision.
    fn refuse_for_places(&mut self) {
        for at in 0..self.rest.len() {
            let Left { policy, outcome, reason } = &self.rest[at];
            if !policy.refuses() || self.has_kept(policy) {
                continue;
            }
            let (policy, is_replaced) = (policy.clone(), reason.code == Code::Replaced);
            let has_failed = *outcome == Outcome::Failed && reason.row == 8 && policy.takes_places();
            if is_replaced && !self.is_taken(&policy.name) {
                let detail = "a policy that has it in `spec.replaces` matches, and is not injected".to_owned();
                let reason = Reason { row: 8, code: Code::SidecarMissing, detail };
                self.rest[at] = Left { policy, outcome: Outcome::Rejected, reason };
            } else if has_failed && !self.delivers(|replaced| policy.replaces(&replaced.name)) {
                self.rest[at].outcome = Outcome::Rejected;
            }
        }
    }

    /// Fails policies that give different paths for the pod of a custom resource, because at most one can be right.
    fn leave_out_disagreements(&mut self, workload: &Workload) {
        let [first, others @ ..] = &self.inject[..] else { return };
        let kind = &workload.kind;
        if kind.is_in_table() || others.iter().all(|other| first.disagreement(other, kind).is_none()) {
            return;
        }
        let matching = self.inject.clone();
        self.leave_out_pairs(&matching, |at, other| {
            let (own, theirs) = matching[at].disagreement(&matching[other], kind)?;
            Some(format!("the pod template lies at `{own}` for this one, at `{theirs}` for the other"))
        });
    }

    /// Fails those of `matching` that the [`ranking`] leaves out. `contradiction` describes how the policy at the first
    /// index contradicts the one at the second.
    fn leave_out_pairs(&mut self, matching: &[Arc<Policy>], contradiction: impl Fn(usize, usize) -> Option<String>) {
        let priorities: Vec<i32> = matching.iter().map(|policy| policy.spec.priority).collect();
        let standings = ranking::standings(&priorities, |at, other| contradiction(at, other).is_some());
        for (at, (policy, standing)) in matching.iter().zip(standings).enumerate() {
            let (rival, code, beginning) = match standing {
                Standing::Stays => continue,
                Standing::Outranked(winner) => (winner, Code::Outranked, "gives way to"),
                Standing::Tied(rival) => (rival, Code::PolicyConflict, "collides with"),
            };
            let (other, what) = (&matching[rival], contradiction(at, rival).unwrap_or_default());
            let rank = match code {
                Code::Outranked => format!(", which has the priority {}", other.spec.priority),
                _ => String::new(),
            };
            let detail = format!("{beginning} SidecarPolicy `{}`{rank}: {what}", other.name);
            self.fail(policy.clone(), Reason { row: 8, code, detail });
        }
    }

    fn ask(&mut self, policy: &Arc<Policy>, workload: &Workload, site: &Site, common: &Common) {
        let verdict = if policy.is_enforced() {
            decide_with(common, policy, workload, site)
        } else {
            let code = if policy.spec.suspend { Code::Suspended } else { Code::Audit };
            Verdict::Skip(Reason { row: 7, code, detail: "the policy is not in effect".into() })
        };
        let mut is_judged = false;
        if policy.is_enforced() && !policy.validations.is_empty() {
            match checks::is_judged(common, policy, workload, site) {
                Ok(true) => {
                    self.judges.push(Judge { policy: policy.clone(), selects: None });
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
            verdict => self.note(policy, verdict, workload),
        }
    }

    /// Records the verdict of `policy`, which has a template, about `workload`.
    fn note(&mut self, policy: &Arc<Policy>, verdict: Verdict, workload: &Workload) {
        match verdict {
            Verdict::Inject => match deliver(policy, workload, self.native_sidecars) {
                Ok(_) => self.inject.push(policy.clone()),
                Err(reason) if reason.code == Code::PodRefused => self.refuse(policy, reason),
                Err(reason) if policy.refused_value() == Some(&reason) => self.fail(policy.clone(), reason),
                Err(reason) => self.rest.push(Left { policy: policy.clone(), outcome: Outcome::Skipped, reason }),
            },
            Verdict::Skip(reason) => self.rest.push(Left { policy: policy.clone(), outcome: Outcome::Skipped, reason }),
            Verdict::Error(reason) => self.fail(policy.clone(), reason),
        }
    }

    /// Fails the policies that conflict: first pairs of templates, among all policies that match; then each remaining
    /// one against the workload. A policy that was left out for one that then fails stays out.
    fn leave_out_conflicts(&mut self, workload: &Workload) {
        self.matching = self.inject.clone();
        let matching = self.matching.clone();
        let templates = templates(&matching, workload, self.native_sidecars);
        // First, because there is nearly always no conflict, and then the work is done.
        if let Ok(patch) = inject::plan(workload, &templates, &templates, self.standard()) {
            self.planned = Some(patch);
            return;
        }
        let pairs: BTreeMap<(usize, usize), String> =
            inject::collisions(&templates).into_iter().map(|(a, b, conflict)| ((a, b), conflict.message)).collect();
        self.leave_out_pairs(&matching, |at, other| pairs.get(&(at.min(other), at.max(other))).cloned());
        for (policy, template) in matching.iter().zip(&templates) {
            if self.injects(policy)
                && let Err(conflict) = inject::check(workload, template, &templates, self.standard())
            {
                self.fail(policy.clone(), conflict.into());
            }
        }
        // Planned here, because templates may have a conflict that only all of them together have.
        self.planned = Some(self.plan_anew(workload));
    }

    fn injects(&self, policy: &Policy) -> bool {
        self.injected(&policy.name).is_some()
    }

    /// The injected policy of that name, with the values of its parameters.
    pub(crate) fn injected(&self, name: &str) -> Option<&Arc<Policy>> {
        self.inject.iter().find(|injected| injected.name == name)
    }

    /// The policies that match, injected or not.
    pub(crate) fn matching(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.matching.iter()
    }

    /// The policies whose `appContainers` selects none of the containers of `workload`, or whose `share` gives nothing of them. Policies
    /// that the workload has already count, too.
    pub fn unreached(&self, workload: &Workload) -> Vec<(Arc<Policy>, inject::Unreached)> {
        let chooses = |policy: &Policy| {
            let template = &policy.as_written().spec;
            !template.app_containers.is_empty() || !template.share.is_empty()
        };
        let present: Vec<_> = self.present().cloned().collect();
        if !present.iter().any(|policy| chooses(policy)) {
            return Vec::new();
        }
        let workload = &*self.view(workload);
        let matching: Vec<_> = self.matching.iter().chain(&present).cloned().collect();
        let templates = templates(&matching, workload, self.native_sidecars);
        let message = |policy: &Arc<Policy>| {
            let delivered = deliver(policy, workload, self.native_sidecars).ok()?;
            inject::unreached(workload, delivered.template(), &templates)
        };
        let found = present.iter().filter(|policy| chooses(policy));
        found.filter_map(|policy| Some((policy.clone(), message(policy)?))).collect()
    }

    /// The annotations of `workload` that are meant for a parameter of a policy that matches, and that none has, each with its policy.
    pub fn misspelt(&self, workload: &Workload) -> Vec<(Arc<Policy>, String)> {
        let failed = self.rest.iter().filter(|left| left.outcome != Outcome::Skipped && left.reason.row != JUDGED);
        let matching = self.present().chain(failed.map(|left| &left.policy));
        let of = |policy: &Arc<Policy>| {
            let told = policy.misspelt(&policy.view(workload));
            told.into_iter().map(|sentence| (policy.clone(), sentence)).collect::<Vec<_>>()
        };
        matching.flat_map(of).collect()
    }

    /// Keeps the policies for which `asked` is true. The others have had their effect on conflicts.
    pub fn retain(&mut self, asked: impl Fn(&Policy) -> bool) {
        self.keep(&asked);
        self.judges.retain(|judge| asked(&judge.policy));
    }

    /// The same without the validations, which all count.
    fn keep(&mut self, asked: impl Fn(&Policy) -> bool) {
        let before = self.inject.len();
        self.inject.retain(|policy| asked(policy));
        self.planned = self.planned.take().filter(|_| self.inject.len() == before);
        self.rest.retain(|left| asked(&left.policy));
    }

    /// The same decision with `policy` as the only one that is injected.
    #[must_use]
    pub fn alone(&self, policy: &Arc<Policy>) -> Self {
        Self { inject: vec![policy.clone()], rest: Vec::new(), judges: Vec::new(), planned: None, ..self.clone() }
    }

    /// Lets the workload through where it carries a version of a policy that is unknown here. `policies`, `workload` and `site`
    /// are those of the decision. An operator knows the stored revisions; commands on files know what they are given.
    pub fn admit_unknown(&mut self, policies: &Policies, workload: &Workload, site: &Site) {
        let unknown = |policy: &Policy| {
            let marker = policy.marker(workload)?;
            let is_known = |hash: &str| policy.past().any(|past| past.template.hash == hash);
            (marker.hash != policy.template_hash() && !is_known(&marker.hash)).then_some(marker.hash)
        };
        let policies = &*policies.valued(workload, None, site);
        let mut admitted: BTreeMap<String, Reason> = BTreeMap::new();
        for left in self.rest.iter().filter(|left| left.outcome != Outcome::Skipped && left.reason.row != JUDGED) {
            let Some(hash) = unknown(&left.policy) else { continue };
            let names = Renewed::from([(left.policy.name.clone(), vec![left.policy.name.clone()])]);
            let adding = std::slice::from_ref(&left.policy);
            let seen = without_content(workload, &names, adding);
            let bare = Self::of_bare(policies, [&seen, &without_overlays(seen.clone(), &names, adding)], site);
            if bare.injects(&left.policy) {
                let detail =
                    format!("has the template {hash} of another version (now {})", left.policy.template_hash());
                admitted.insert(left.policy.name.clone(), Reason { row: 8, code: Code::Outdated, detail });
            }
        }
        for left in self.rest.iter_mut().filter(|left| left.outcome != Outcome::Skipped) {
            if let Some(reason) = admitted.remove(&left.policy.name) {
                (left.outcome, left.reason) = (Outcome::Skipped, reason);
            }
        }
    }

    /// Removes `policy` from the injected ones: it failed for `reason`.
    pub fn fail(&mut self, policy: Arc<Policy>, reason: Reason) {
        self.inject.retain(|other| other.name != policy.name);
        self.planned = None;
        let may_refuse = policy.refuses() && !self.has_kept(&policy);
        let has_other = may_refuse && reason.row == 8 && self.delivers(|replaced| policy.replaces(&replaced.name));
        let outcome = if may_refuse && !has_other { Outcome::Rejected } else { Outcome::Failed };
        self.rest.push(Left { policy, outcome, reason });
        self.refuse_for_places();
    }

    /// Rejects the workload, which `policy` refuses for `reason`, whatever the failure policy says. An update is rejected only
    /// if it takes away the marker. What the old object had is no excuse: an update that keeps the marker is not judged, so
    /// two updates would do what one may not.
    fn refuse(&mut self, policy: &Arc<Policy>, reason: Reason) {
        let outcome = if self.has_kept(policy) { Outcome::Failed } else { Outcome::Rejected };
        self.rest.push(Left { policy: policy.clone(), outcome, reason });
    }

    /// Whether this is an update that leaves the marker of `policy`.
    fn has_kept(&self, policy: &Policy) -> bool {
        self.update.as_ref().is_some_and(|update| update.kept.contains(&policy.name))
    }

    /// The validations that the object did not pass before an update either: the policy, the code and the message. The
    /// update is admitted.
    pub fn excused(&self) -> impl Iterator<Item = (&Policy, Code, &str)> {
        let excused = self.update.iter().flat_map(|update| &update.excused);
        excused.map(|(policy, code, message)| (policy.as_ref(), *code, message.as_str()))
    }

    /// The policies whose validations [`Self::plan`] found satisfied.
    pub fn satisfied(&self) -> impl Iterator<Item = &Arc<Policy>> {
        let failed =
            |policy: &Policy| self.rest.iter().any(|left| left.reason.row == JUDGED && left.policy.name == policy.name);
        self.judges.iter().map(|judge| &judge.policy).filter(move |policy| !failed(policy))
    }

    /// The first policy that rejects the create.
    pub fn refusal(&self) -> Option<&Left> {
        self.rest.iter().find(|left| left.outcome == Outcome::Rejected)
    }

    /// The patch that injects all templates. A conflict that only several of them together have, host ports on the host's
    /// network for example, fails all policies of the lowest priority among them.
    ///
    /// Validations see the patched workload; [`Self::refusal`] has the result. The first call must pass the workload of
    /// the decision; later calls may pass another form of it.
    pub fn plan(&mut self, workload: &Workload) -> Patch {
        let workload = &*self.view(workload);
        let mut planned = self.planned.take();
        loop {
            let (renewed, base) = (self.renewed().count(), self.base(workload));
            let patch = planned.take().unwrap_or_else(|| self.plan_anew(&base));
            // A policy that fails only now leaves its earlier content where it is.
            if self.renewed().count() != renewed {
                continue;
            }
            let patch = match base {
                Cow::Borrowed(_) => patch,
                Cow::Owned(base) => json_patch::diff(&workload.body, &base.patched(&patch)),
            };
            self.judge(workload, &patch);
            return patch;
        }
    }

    /// Judges the object after every mutation, `stored`. This decision is about `before`: the same object without our
    /// additions. An injected policy without its marker and its content in `stored` fails. [`Self::refusal`] has the
    /// result.
    pub fn judge_stored(&mut self, before: &Workload, stored: &Workload, policies: &Policies, site: &Site) {
        if self.planned.take().is_none() {
            // Planned first, because a conflict of all templates together is the reason to report.
            let before = &*self.view(before);
            let before = self.base(before);
            self.plan_anew(&before);
        }
        for policy in self.inject.clone() {
            let detail = match policy.valued_for(stored, policies, site).presence_beside(stored, &self.matching) {
                Presence::Whole if policy.is_claimed(stored) => continue,
                Presence::Lacking(missing) | Presence::Different(missing) if policy.is_claimed(stored) => {
                    format!("it matches, and has the marker without the sidecar: {missing}")
                }
                _ => {
                    "it matches, and comes without the sidecar: the call that injects it failed, or was not made".into()
                }
            };
            self.fail(policy, Reason { row: 8, code: Code::SidecarMissing, detail });
        }
        // What is there needs no injection, whatever the object without it would get: a policy of a higher priority may
        // have come since.
        let (matching, is_update) = (self.matching.clone(), self.update.is_some());
        let is_there =
            |policy: &Policy| policy.valued_for(stored, policies, site).is_injected_beside(stored, &matching);
        self.rest.retain(|left| is_update || left.reason.row != 8 || !left.policy.injects() || !is_there(&left.policy));
        self.judge(stored, &Patch::default());
    }

    fn plan_anew(&mut self, workload: &Workload) -> Patch {
        let (matching, native_sidecars, standard) = (self.matching.clone(), self.native_sidecars, self.standard());
        let matching = templates(&matching, workload, native_sidecars);
        let markers = if self.update.is_some() { Markers::Extended } else { Markers::Replaced };
        let plan = |policies: &[Arc<Policy>]| {
            plan_with(workload, &templates(policies, workload, native_sidecars), &matching, standard, markers)
        };
        if let Ok(patch) = plan(&self.inject) {
            return patch;
        }
        self.leave_out_excess(workload);
        match plan(&self.inject) {
            Ok(patch) => patch,
            Err(conflict) => {
                for policy in self.inject.clone() {
                    self.fail(policy, conflict.clone().into());
                }
                Patch::default()
            }
        }
    }

    /// Fails policies whose templates fit one by one, and not together. From the highest priority down, all policies of
    /// one priority are added or fail, so that no policy fails for one of a lower priority.
    fn leave_out_excess(&mut self, workload: &Workload) {
        let all = self.inject.clone();
        let templates = templates(&all, workload, self.native_sidecars);
        let mut pairs: BTreeMap<usize, Vec<(usize, Conflict)>> = BTreeMap::new();
        for (first, second, conflict) in inject::collisions_in(workload, &templates) {
            pairs.entry(second).or_default().push((first, conflict));
        }
        let (mut fitting, mut start) = (Vec::new(), 0);
        for level in all.chunk_by(|one, other| one.spec.priority == other.spec.priority) {
            let end = start + level.len();
            let together: Vec<usize> = fitting.iter().copied().chain(start..end).collect();
            let is_in = |first: &usize| together.binary_search(first).is_ok();
            let mut clashes = (start..end).flat_map(|second| pairs.get(&second).into_iter().flatten());
            let clash = clashes.find(|(first, _)| is_in(first)).map(|(first, conflict)| {
                let code = if *first < start { Code::Outranked } else { conflict.code };
                Conflict { code, message: conflict.message.clone() }
            });
            let some: Vec<&Template> = together.iter().map(|at| templates[*at]).collect();
            match clash.or_else(|| inject::excess(workload, &some, self.standard())) {
                None => fitting = together,
                Some(conflict) => level.iter().for_each(|policy| self.fail(policy.clone(), conflict.clone().into())),
            }
            start = end;
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
        let dialect = dialect(self.minor);
        let mut excused = Vec::new();
        for Judge { policy, selects } in self.judges.clone() {
            let mut budget = Budget::validations();
            for demand in &policy.validations {
                let judgement = match (&selects, &self.update) {
                    (Some(selects), Some(before)) => {
                        judge_update(&policy, demand, selects, [&before.stored, &stored], &mut budget, dialect)
                    }
                    _ => match holds(demand, &stored, &mut budget, dialect) {
                        Ok(true) => UpdateJudgement::Passed,
                        Ok(false) => UpdateJudgement::Broken(told(demand, &stored, &mut budget, dialect)),
                        Err((code, detail)) => UpdateJudgement::Unknown(code, detail),
                    },
                };
                let (outcome, code, detail) = match judgement {
                    UpdateJudgement::Passed => continue,
                    UpdateJudgement::Excused(code, message) => {
                        excused.push((policy.clone(), code, message));
                        continue;
                    }
                    UpdateJudgement::Broken(message) => (Outcome::Rejected, Code::ValidationFailed, message),
                    UpdateJudgement::Unknown(code, detail) => {
                        let outcome = if policy.refuses() { Outcome::Rejected } else { Outcome::Failed };
                        (outcome, code, detail)
                    }
                };
                let reason = Reason { row: JUDGED, code, detail };
                self.rest.push(Left { policy: policy.clone(), outcome, reason });
            }
        }
        if let Some(update) = &mut self.update {
            update.excused = excused;
        }
    }
}

/// Whether `demand` holds for `workload`.
///
/// # Errors
/// If it cannot be evaluated: the code, and the reason.
fn holds(
    demand: &CompiledValidation,
    workload: &Workload,
    budget: &mut Budget,
    dialect: Dialect,
) -> Result<bool, (Code, String)> {
    let tested = demand.expression.on(dialect).test(&checks::variables(workload), budget);
    tested.map_err(|failure| {
        let detail = format!("validation `{}` failed: {failure}", demand.expression.source().trim());
        (Code::ExpressionFailed, detail)
    })
}

fn told(demand: &CompiledValidation, workload: &Workload, budget: &mut Budget, dialect: Dialect) -> String {
    demand.told(&checks::variables(workload), budget, dialect)
}

/// Judges an update of `old` to `new`. `selects` are the selections of the new object and of the old one.
///
/// The update passes if one of three is true: the new object passes, nothing that the validation depends on changes, or
/// the old object did not pass. As in CEL, an error counts only if none of them is true.
fn judge_update(
    policy: &Policy,
    demand: &CompiledValidation,
    [selects, selected]: &[Result<bool, Reason>; 2],
    [old, new]: [&Workload; 2],
    budget: &mut Budget,
    dialect: Dialect,
) -> UpdateJudgement {
    let unselected = |reason: &Reason| (reason.code, reason.detail.clone());
    let fault = match selects {
        Ok(false) => return UpdateJudgement::Passed,
        Ok(true) => match holds(demand, new, budget, dialect) {
            Ok(true) => return UpdateJudgement::Passed,
            Ok(false) => Ok(told(demand, new, budget, dialect)),
            Err(unknown) => Err(unknown),
        },
        Err(reason) => Err(unselected(reason)),
    };
    let is_excused = match selected {
        _ if scope::is_unchanged(policy, demand, old, new) => Ok(true),
        Ok(false) => Ok(false),
        Ok(true) => holds(demand, old, budget, dialect).map(|held| !held),
        Err(reason) => Err(unselected(reason)),
    };
    match (fault, is_excused) {
        (Ok(message), Ok(true)) => UpdateJudgement::Excused(Code::ValidationFailed, message),
        (Err((code, detail)), Ok(true)) => UpdateJudgement::Excused(code, detail),
        (Ok(message), Ok(false)) => UpdateJudgement::Broken(message),
        (Err((code, detail)), _) | (_, Err((code, detail))) => UpdateJudgement::Unknown(code, detail),
    }
}

/// What of `policies` is delivered to `workload`.
fn templates<'a>(policies: &'a [Arc<Policy>], workload: &Workload, native_sidecars: bool) -> Vec<&'a Template> {
    let delivered = policies.iter().filter_map(|policy| deliver(policy, workload, native_sidecars).ok());
    delivered.map(|delivered| delivered.template()).collect()
}

/// The `policies` in effect of which `workload` has exactly an earlier content: under their own markers, or under those of policies
/// whose place they take, and then also the present content of those.
fn carrying_past(policies: &Policies, workload: &Workload) -> Renewed {
    let mut carried = Renewed::new();
    // As most new workloads. In a custom resource, each policy gives its own path of the pod.
    if workload.kind.is_in_table() && !inject::marker::is_marked(workload) {
        return carried;
    }
    let has_earlier =
        |policy: &&Arc<Policy>| policy.past().next().is_some() || policy.takes_places() || policy.has_parameters();
    for policy in policies.at(workload).filter(|policy| policy.is_enforced()).filter(has_earlier) {
        let view = policy.view(workload);
        let replaced = policy.spec.replaces.iter().filter_map(|name| policies.get(&PolicyRef::of_cluster(name)));
        let replaced = replaced.filter(|other| other.carries_known(&view));
        let own = policy.carries_past(&view).then_some(policy);
        let mut names: Vec<String> = own.into_iter().chain(replaced).map(|other| other.name.clone()).collect();
        if names.is_empty() {
            continue;
        }
        names.extend(forgotten(policies, policy, &view, &names));
        if can_be_without(&view, &names) {
            carried.insert(policy.name.clone(), names);
        }
    }
    carried
}

/// The names of [`inject::owners::forgotten`] markers of a content that `policy` knows. Files may know only some policies.
fn forgotten(policies: &Policies, policy: &Policy, workload: &Workload, names: &[String]) -> Vec<String> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let is_known = |name: &str, marker: &inject::marker::Marker| {
        let is_own = |hash: &str| hash == marker.hash;
        policies.get(&PolicyRef::of_cluster(name)).is_some()
            || !is_own(policy.template_hash()) && !policy.past().any(|past| is_own(&past.template.hash))
    };
    inject::owners::forgotten(workload, &names, is_known).into_iter().map(str::to_owned).collect()
}

/// Whether all that the markers of the policies `names` list can be taken out of `workload`.
fn can_be_without(workload: &Workload, names: &[String]) -> bool {
    let undone = inject::undo_those(workload, |name| names.iter().any(|other| other == name), |_| false);
    let is_free = |leftover: &Leftover| matches!(leftover.cause, LeftoverCause::Mounted | LeftoverCause::Missing);
    undone.is_some_and(|undone| undone.leftovers.iter().all(is_free))
}

/// Adds to `renewed` the `policies` of which `workload` has overlays, and no content.
fn add_overlaid(renewed: &mut Renewed, policies: &Policies, workload: &Workload) {
    let enforced = policies.at(workload).filter(|policy| policy.is_enforced() && policy.as_written().is_overridable());
    for policy in enforced.filter(|policy| !renewed.contains_key(&policy.name)).collect::<Vec<_>>() {
        let view = policy.view(workload);
        if policy.marker(&view).is_none() && !policy.as_written().overlays(&view).is_empty() {
            renewed.insert(policy.name.clone(), Vec::new());
        }
    }
}

/// `workload` without what the markers in `renewed` list, and without overlays of those policies. Volumes that one of `adding` adds again go
/// even if a container of the user mounts them.
fn without(workload: &Workload, renewed: &Renewed, adding: &[Arc<Policy>]) -> Workload {
    without_overlays(without_content(workload, renewed, adding), renewed, adding)
}

/// `bare` without overlays of the policies in `renewed`.
fn without_overlays(mut bare: Workload, renewed: &Renewed, adding: &[Arc<Policy>]) -> Workload {
    for policy in adding.iter().filter(|policy| renewed.contains_key(&policy.name)) {
        if let Some(body) = policy.as_written().without_overlays(&policy.view(&bare)) {
            bare = bare.with_body(body);
        }
    }
    bare
}

/// `workload` without what the markers in `renewed` list, with the overlays.
fn without_content(workload: &Workload, renewed: &Renewed, adding: &[Arc<Policy>]) -> Workload {
    let returns = |volume: &str| adding.iter().any(|policy| has_volume(&policy.as_written().spec, volume));
    let has = |overlay: &Overlay| adding.iter().any(|policy| policy.as_written().has_overlay(overlay));
    let mut bare = workload.clone();
    for policy in adding {
        let Some(names) = renewed.get(&policy.name) else { continue };
        let view = policy.view(&bare);
        let (view, is_gone) =
            (policy.settled(&view, Changes::All), |name: &str| names.iter().any(|other| other == name));
        if let Some(undone) = inject::undo_with(&view, is_gone, returns, has) {
            bare = bare.with_body(undone.body);
        }
    }
    bare
}

/// The effect that `policy` would have on `workload` if it were in effect; none if there is none.
pub fn rehearsal(policy: &Policy, workload: &Workload, site: &Site) -> Option<String> {
    let mut enforced = policy.clone();
    Arc::make_mut(&mut enforced.spec).mode = Mode::Enforce;
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
