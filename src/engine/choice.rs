//! Chooses the engine of each resource. Pure.
//!
//! Policies that meet on one resource share one engine there, because one place must decide their order and their collisions.
//! So the unit is the resource, and not the policy.
//!
//! The policies of the highest `spec.priority` choose the engine. Policies of lower priorities join it, and never move those above
//! them. Between priorities, the order in which policies were created does not matter. Among policies of one priority, those in
//! effect come first.

use super::{EngineName, Unavailable, all};
use crate::api::code::Code;
use crate::policy::Policy;
use crate::workload::Kind;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The questions of [`choose`].
pub struct Questions<'a> {
    /// Whether an engine can serve these policies on this resource, without a request to the server.
    pub can: &'a Ability<'a, Unavailable>,
    /// The same, including the server's answer about the rendered registration.
    pub takes: &'a Ability<'a, Hindrance>,
    /// Whether a policy is in effect on this resource. A later policy of the same priority never displaces such a policy.
    pub is_in_force: &'a dyn Fn(&Arc<Kind>, &Policy) -> bool,
    /// Whether a policy is in effect in its form from before an edit. A policy that is new does not take its place.
    pub is_edited: &'a dyn Fn(&Policy) -> bool,
}

/// How many policies are left out of an engine one by one, because it has no room for them. Each takes about twenty questions,
/// and a question renders all policies of the resource.
const MISFITS: usize = 8;

/// An answer about an engine, a resource, and the policies on it.
pub type Ability<'a, E> = dyn Fn(EngineName, &Arc<Kind>, &[Arc<Policy>]) -> Result<(), E> + 'a;

/// Why an engine does not serve policies.
#[derive(Clone, Debug, PartialEq)]
pub enum Hindrance {
    /// The engine cannot.
    Unavailable(Unavailable),
    /// The answer is not known yet, because a request to the server is on its way.
    Asked,
}

impl From<Unavailable> for Hindrance {
    fn from(reason: Unavailable) -> Self {
        Self::Unavailable(reason)
    }
}

/// The engine of each resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// The engine of each resource that is served at all.
    pub engines: BTreeMap<Arc<Kind>, EngineName>,
    /// The resources whose engine is not known yet.
    pub undecided: BTreeSet<Arc<Kind>>,
    /// Why a preferred engine that the server has does not serve the resource: it cannot express a policy there.
    pub passed_over: BTreeMap<Arc<Kind>, Unavailable>,
    /// The policies that no engine can serve on one of their resources, by name, with the reason.
    pub refused: BTreeMap<String, Unavailable>,
}

/// Chooses for `policies`, which are valid and enforced.
///
/// # Guarantees
/// A policy affects those of its own and of lower priorities. A policy that is refused on one resource is served on none, and does
/// not affect other policies. If policies of one priority cannot be served together, one at a time is refused: the first that
/// does not fit those before it. In that order policies in effect come first.
pub fn choose(policies: &[Arc<Policy>], questions: &Questions<'_>) -> Choice {
    let alone = policies.iter().filter_map(|policy| Some((policy.name.clone(), impossible(policy, questions)?)));
    let mut refused: BTreeMap<_, _> = alone.collect();
    loop {
        let mut served: Vec<_> =
            policies.iter().filter(|policy| !refused.contains_key(&policy.name)).cloned().collect();
        served.sort_by(|a, b| Policy::by_priority(a, b));
        let (mut choice, mut refusals) = (Choice::default(), BTreeMap::new());
        let kinds: BTreeSet<&Arc<Kind>> = served.iter().flat_map(|policy| &policy.kinds).collect();
        for kind in kinds {
            let meeting: Vec<_> = served.iter().filter(|policy| policy.kinds.contains(kind)).cloned().collect();
            match (Meeting { kind, policies: &meeting, questions }).choose() {
                Ok((engine, reason)) => {
                    choice.engines.insert(kind.clone(), engine);
                    choice.passed_over.extend(reason.map(|reason| (kind.clone(), reason)));
                }
                Err(Impasse::Asked) => drop(choice.undecided.insert(kind.clone())),
                Err(Impasse::Refused(refused)) => drop(refusals.insert(kind, refused)),
            }
        }
        if refusals.is_empty() {
            return Choice { refused, ..choice };
        }
        refused.extend(staying(&served, &refusals));
    }
}

/// Why the engine that `policy` names cannot serve it, even alone.
fn impossible(policy: &Arc<Policy>, questions: &Questions<'_>) -> Option<Unavailable> {
    let engine = asked_for(policy)?;
    let kinds: BTreeSet<_> = policy.kinds.iter().collect();
    kinds.into_iter().filter_map(|kind| (questions.can)(engine, kind, std::slice::from_ref(policy)).err()).next_back()
}

/// The refusals that stay whatever becomes of the others, by name. `served` are the policies in order of priority.
///
/// A refusal is judged again if it may come from a policy of a higher priority that is itself refused, on another resource. Of
/// the highest priority that has refusals, all stay.
fn staying(served: &[Arc<Policy>], refusals: &BTreeMap<&Arc<Kind>, Refusals>) -> BTreeMap<String, Unavailable> {
    // The resources on which nothing is certain about the priorities that follow.
    let (mut stay, mut open) = (BTreeMap::new(), BTreeSet::new());
    for equals in served.chunk_by(|a, b| a.spec.priority == b.spec.priority) {
        let mut opened = Vec::new();
        for policy in equals {
            let on = |kind: &Arc<Kind>| refusals.get(kind)?.get(&policy.name);
            let certain = refusals.iter().filter(|(kind, _)| !open.contains(*kind));
            if let Some(refused) = certain.filter_map(|(_, refused)| refused.get(&policy.name)).next_back() {
                stay.insert(policy.name.clone(), refused.why.clone());
                opened.extend(policy.kinds.iter().filter(|kind| on(kind).is_none_or(|refused| !refused.is_final)));
            } else if policy.kinds.iter().any(|kind| open.contains(kind)) {
                opened.extend(&policy.kinds);
            }
        }
        open.extend(opened);
    }
    stay
}

/// An engine, and why a preferred engine cannot express the policies, if so.
type Chosen = (EngineName, Option<Unavailable>);

/// Why there is no engine yet.
enum Impasse {
    Asked,
    /// Policies must be refused first.
    Refused(Refusals),
}

/// The policies that must be refused on one resource, by name.
type Refusals = BTreeMap<String, Refusal>;

struct Refusal {
    why: Unavailable,
    /// Whether all that is known about lower priorities holds without the policy, too.
    is_final: bool,
}

impl Impasse {
    /// Policies must be refused before anything is known about those of lower priorities.
    fn refused(reasons: impl IntoIterator<Item = (String, Unavailable)>) -> Self {
        Self::Refused(reasons.into_iter().map(|(name, why)| (name, Refusal { why, is_final: false })).collect())
    }
}

/// The policies on one resource, in order of priority.
#[derive(Clone, Copy)]
struct Meeting<'a> {
    kind: &'a Arc<Kind>,
    policies: &'a [Arc<Policy>],
    questions: &'a Questions<'a>,
}

fn asked_for(policy: &Arc<Policy>) -> Option<EngineName> {
    EngineName::asked_for(policy.spec.engine)
}

impl Meeting<'_> {
    fn choose(&self) -> Result<Chosen, Impasse> {
        let highest = self.policies[0].spec.priority;
        let (leading, following) =
            self.policies.split_at(self.policies.partition_point(|policy| policy.spec.priority == highest));
        let chosen = Meeting { policies: leading, ..*self }.together()?;
        if !following.is_empty() {
            self.join(chosen.0, leading, following)?;
        }
        Ok(chosen)
    }

    /// Checks that the `following` policies can join the `leading` ones, of the highest priority, at `engine`.
    fn join(&self, engine: EngineName, leading: &[Arc<Policy>], following: &[Arc<Policy>]) -> Result<(), Impasse> {
        let leader = leading.iter().find(|policy| asked_for(policy).is_some()).unwrap_or(&leading[0]);
        let is_other = |policy: &&Arc<Policy>| asked_for(policy).is_some_and(|named| named != engine);
        let (others, mut joining): (Vec<_>, Vec<_>) = following.iter().cloned().partition(|policy| is_other(&policy));
        joining.sort_by_key(|policy| {
            let is_in_force = (self.questions.is_in_force)(self.kind, policy);
            (Reverse(policy.spec.priority), !is_in_force, !(self.questions.is_edited)(policy))
        });
        let (mut joined, mut left_out) = (leading.to_vec(), Vec::new());
        if self.can(engine, &[leading, &joining].concat()).is_ok() {
            joined.extend_from_slice(&joining);
        } else {
            left_out
                .extend(joining.iter().filter_map(|policy| Some((policy.name.clone(), self.alone(engine, policy)?))));
            joining.retain(|policy| left_out.iter().all(|(name, _)| *name != policy.name));
            left_out.extend(self.add(engine, &joining, &mut joined));
        }
        let held = |why| outranked(self.kind, leader, engine, why);
        let left_out = left_out.into_iter().map(|(name, why)| (name, held(why)));
        let named = others.iter().map(|policy| (policy.name.clone(), mismatch_below(self.kind, leader, engine)));
        let refusals = left_out.chain(named).map(|(name, why)| (name, Refusal { why, is_final: true }));
        let mut refusals: Refusals = refusals.collect();
        if let Err(reason) = self.fits(engine, &self.in_order(&joined))? {
            // The server accepted all of them before, so its refusal is of another cause, and passes.
            if joined.iter().all(|policy| (self.questions.is_in_force)(self.kind, policy)) {
                return Err(Impasse::Asked);
            }
            let (culprit, why) = self.first_misfit(engine, &joined, leading.len(), reason)?;
            refusals.insert(culprit.name.clone(), Refusal { why: held(why), is_final: false });
        }
        if refusals.is_empty() { Ok(()) } else { Err(Impasse::Refused(refusals)) }
    }

    /// Adds those of `some` to `joined`, one after the other, that `engine` can serve together with it. Returns the others. What
    /// comes after [`MISFITS`] of them is not tried.
    fn add(
        &self,
        engine: EngineName,
        some: &[Arc<Policy>],
        joined: &mut Vec<Arc<Policy>>,
    ) -> Vec<(String, Unavailable)> {
        let (mut left_out, mut blocks) = (Vec::new(), vec![some]);
        while let Some(block) = blocks.pop() {
            if left_out.len() >= MISFITS {
                let message = format!("it is not tried, because there is no room for {MISFITS} policies before it");
                let why = Unavailable::new(Code::NotExpressible, message);
                left_out.extend(block.iter().map(|policy| (policy.name.clone(), why.clone())));
                continue;
            }
            match (self.can(engine, &[joined.as_slice(), block].concat()), block) {
                (Ok(()), _) => joined.extend_from_slice(block),
                (Err(why), [policy]) => left_out.push((policy.name.clone(), why)),
                (Err(_), _) => {
                    let (first, second) = block.split_at(block.len() / 2);
                    blocks.extend([second, first]);
                }
            }
        }
        left_out
    }

    /// Whether `engine` can serve `some` of the policies, without a request to the server.
    fn can(&self, engine: EngineName, some: &[Arc<Policy>]) -> Result<(), Unavailable> {
        (self.questions.can)(engine, self.kind, &self.in_order(some))
    }

    /// Chooses for policies of one priority.
    fn together(&self) -> Result<Chosen, Impasse> {
        let in_order = self.in_force_first();
        let Some((first, named)) = in_order.iter().find_map(|policy| Some((policy, asked_for(policy)?))) else {
            return self.automatic();
        };
        let mismatched = self.each(|policy| {
            let is_other = asked_for(policy).is_some_and(|engine| engine != named);
            is_other.then(|| mismatch(self.kind, first, named))
        });
        if !mismatched.is_empty() {
            return Err(Impasse::refused(mismatched));
        }
        let Err(reason) = self.fits(named, self.policies)? else { return Ok((named, None)) };
        let (culprit, why) = self.culprit(named, reason.clone())?;
        let is_to_stay = |policy: &Policy| (self.questions.is_in_force)(self.kind, policy);
        // If the culprit does not name this engine, the policies that name it are refused: the others may use another engine.
        let naming = self.each(|policy| (asked_for(policy).is_some() && !is_to_stay(policy)).then(|| reason.clone()));
        let is_theirs = asked_for(&culprit).is_none() && !naming.is_empty();
        Err(Impasse::refused(if is_theirs { naming } else { vec![(culprit.name.clone(), why)] }))
    }

    /// The first engine that can serve all policies.
    fn automatic(&self) -> Result<Chosen, Impasse> {
        let (mut last, mut not_expressible) = (None, None);
        for engine in all() {
            match self.fits(engine.name(), self.policies)? {
                Ok(()) => return Ok((engine.name(), not_expressible)),
                Err(reason) => {
                    if reason.code == Code::NotExpressible {
                        not_expressible = Some(reason.clone());
                    }
                    last = Some((engine.name(), reason));
                }
            }
        }
        let (engine, reason) = last.expect("there is at least one engine");
        // Perhaps some policies cannot be served even alone.
        let alone = self.each(|policy| self.alone(engine, policy));
        if !alone.is_empty() {
            return Err(Impasse::refused(alone));
        }
        let (culprit, why) = self.culprit(engine, reason)?;
        Err(Impasse::refused([(culprit.name.clone(), why)]))
    }

    /// The policies for which `why` returns a reason, by name.
    fn each(&self, why: impl Fn(&Arc<Policy>) -> Option<Unavailable>) -> Vec<(String, Unavailable)> {
        self.policies.iter().filter_map(|policy| Some((policy.name.clone(), why(policy)?))).collect()
    }

    /// Why `engine` cannot serve `policy` alone.
    fn alone(&self, engine: EngineName, policy: &Arc<Policy>) -> Option<Unavailable> {
        (self.questions.can)(engine, self.kind, std::slice::from_ref(policy)).err()
    }

    /// Whether `engine` serves `policies`, or the reason why not.
    fn fits(&self, engine: EngineName, policies: &[Arc<Policy>]) -> Result<Result<(), Unavailable>, Impasse> {
        match (self.questions.takes)(engine, self.kind, policies) {
            Ok(()) => Ok(Ok(())),
            Err(Hindrance::Unavailable(reason)) => Ok(Err(reason)),
            Err(Hindrance::Asked) => Err(Impasse::Asked),
        }
    }

    fn in_force_first(&self) -> Vec<Arc<Policy>> {
        let mut policies = self.policies.to_vec();
        policies.sort_by_key(|policy| !(self.questions.is_in_force)(self.kind, policy));
        policies
    }

    /// `some` of the policies in order of priority, because an engine renders them in that order.
    fn in_order(&self, some: &[Arc<Policy>]) -> Vec<Arc<Policy>> {
        let names: BTreeSet<&str> = some.iter().map(|policy| policy.name.as_str()).collect();
        self.policies.iter().filter(|policy| names.contains(policy.name.as_str())).cloned().collect()
    }

    /// The first policy that `engine` cannot serve together with those before it, and the reason. `reason` is why the engine
    /// cannot serve all.
    ///
    /// The culprit is never a policy in effect, because the server accepted it before. If all policies are in effect, nothing
    /// is decided.
    fn culprit(&self, engine: EngineName, reason: Unavailable) -> Result<(Arc<Policy>, Unavailable), Impasse> {
        let policies = self.in_force_first();
        let in_force = policies.iter().filter(|policy| (self.questions.is_in_force)(self.kind, policy)).count();
        self.first_misfit(engine, &policies, in_force, reason)
    }

    /// The first of `policies` that `engine` cannot serve together with those before it, and the reason. It serves the first
    /// `served`, and `reason` is why it does not serve all. The number of questions is logarithmic in the number of policies.
    fn first_misfit(
        &self,
        engine: EngineName,
        policies: &[Arc<Policy>],
        mut served: usize,
        reason: Unavailable,
    ) -> Result<(Arc<Policy>, Unavailable), Impasse> {
        let (mut refused, mut why) = (policies.len(), reason);
        if served == refused {
            return Err(Impasse::Asked);
        }
        while refused - served > 1 {
            let middle = usize::midpoint(served, refused);
            match self.fits(engine, &self.in_order(&policies[..middle]))? {
                Ok(()) => served = middle,
                Err(reason) => (refused, why) = (middle, reason),
            }
        }
        Ok((policies[served].clone(), why))
    }
}

/// That `leader`, of a higher priority, holds the resource at `engine`.
fn held(kind: &Kind, leader: &Policy, engine: EngineName) -> String {
    format!(
        "SidecarPolicy `{}`, which has a higher `spec.priority`, has {} served by {engine}",
        leader.name, kind.resource
    )
}

/// `why`, for a policy that cannot join those of a higher priority at `engine`.
fn outranked(kind: &Kind, leader: &Policy, engine: EngineName, why: Unavailable) -> Unavailable {
    if why.code != Code::NotExpressible {
        return why;
    }
    let held = held(kind, leader, engine);
    Unavailable::new(
        why.code,
        format!("{held}, and only a policy of a higher priority moves it; there, {}", why.message),
    )
}

fn mismatch_below(kind: &Kind, leader: &Policy, engine: EngineName) -> Unavailable {
    let held = held(kind, leader, engine);
    let message = format!(
        "{held}; leave `spec.engine` at `Auto`, or give the policy that names another engine a higher priority"
    );
    Unavailable::new(Code::EngineMismatch, message)
}

fn mismatch(kind: &Kind, first: &Policy, named: EngineName) -> Unavailable {
    let message = format!(
        "SidecarPolicy `{}`, which comes first, has {} served by `spec.engine: {named}`; name the same engine, or `Auto`",
        first.name, kind.resource
    );
    Unavailable::new(Code::EngineMismatch, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Site;
    use proptest::prelude::*;
    use serde_json::json;

    const INITIALIZER: EngineName = EngineName("Initializer");
    const ADMISSION_POLICY: EngineName = EngineName("MutatingAdmissionPolicy");
    const WEBHOOK: EngineName = EngineName("Webhook");

    fn policy(name: &str, engine: &str, resources: &[&str]) -> Arc<Policy> {
        let targets: Vec<_> = resources
            .iter()
            .map(|resource| json!({ "group": if *resource == "pods" { "" } else { "apps" }, "resource": resource }))
            .collect();
        let object = json!({
            "metadata": { "name": name },
            "spec": { "engine": engine, "targets": targets, "template": { "containers": [{ "name": name, "image": "i:1" }] } },
        });
        Arc::new(Policy::parse(&object, &Site::new("scpol-system", [], [])).unwrap())
    }

    fn kind(resource: &str) -> Arc<Kind> {
        Kind::find(if resource == "pods" { "" } else { "apps" }, resource).unwrap().clone()
    }

    /// Chooses where no policy is in effect, and the server accepts everything.
    fn choose(policies: &[Arc<Policy>], can: &Ability<'_, Unavailable>) -> Choice {
        let takes = |engine: EngineName, kind: &Arc<Kind>, policies: &[Arc<Policy>]| Ok(can(engine, kind, policies)?);
        super::choose(policies, &Questions { can, takes: &takes, is_in_force: &|_, _| false, is_edited: &|_| false })
    }

    /// Chooses where only WEBHOOK works, `refuses` is the server's answer, and the policies `in_force` are in effect.
    fn choose_asking(
        policies: &[Arc<Policy>],
        refuses: impl Fn(&[&str]) -> Result<(), Hindrance>,
        in_force: &[&str],
    ) -> Choice {
        let can = |engine, _: &Arc<Kind>, _: &[Arc<Policy>]| {
            if engine == WEBHOOK { Ok(()) } else { off(Code::EngineUnavailable) }
        };
        let takes = |engine: EngineName, kind: &Arc<Kind>, policies: &[Arc<Policy>]| {
            can(engine, kind, policies)?;
            refuses(&policies.iter().map(|policy| policy.name.as_str()).collect::<Vec<_>>())
        };
        let is_in_force = |_: &Arc<Kind>, policy: &Policy| in_force.contains(&policy.name.as_str());
        super::choose(
            policies,
            &Questions { can: &can, takes: &takes, is_in_force: &is_in_force, is_edited: &|_| false },
        )
    }

    fn refuse() -> Hindrance {
        Unavailable::new(Code::RegistrationRefused, "why").into()
    }

    #[test]
    fn one_that_the_server_does_not_take_is_left_out_alone() {
        let policies: Vec<_> = ('a'..='z').map(|name| policy(&name.to_string(), "Auto", &["pods"])).collect();
        for culprits in [vec!["a"], vec!["m"], vec!["z"], vec!["b", "y", "z"]] {
            let asked = std::cell::Cell::new(0);
            let refuses = |policies: &[&str]| {
                asked.set(asked.get() + 1);
                if policies.iter().any(|policy| culprits.contains(policy)) { Err(refuse()) } else { Ok(()) }
            };
            let choice = choose_asking(&policies, refuses, &[]);
            assert_eq!(Vec::from_iter(choice.refused.keys()), culprits);
            assert_eq!(choice.engines, BTreeMap::from([(kind("pods"), WEBHOOK)]));
            assert!(asked.get() <= culprits.len() * 6 + 1, "{culprits:?}: {} times", asked.get());
        }
    }

    #[test]
    fn what_does_not_go_together_leaves_out_who_comes_last_and_never_who_is_in_force() {
        let policies = ["a", "b", "c"].map(|name| policy(name, "Auto", &["pods"]));
        let refuses = |policies: &[&str]| if policies.len() > 2 { Err(refuse()) } else { Ok(()) };
        let refused = |in_force: &[&str]| {
            let choice = choose_asking(&policies, refuses, in_force);
            assert_eq!(choice.engines.len(), 1);
            choice.refused.into_keys().collect::<Vec<_>>().join(",")
        };
        assert_eq!(refused(&[]), "c");
        assert_eq!(refused(&["b", "c"]), "a");
        assert_eq!(refused(&["a", "c"]), "b");
        // The server accepted them before: nothing changes until it accepts them again.
        let choice = choose_asking(&policies, refuses, &["a", "b", "c"]);
        assert_eq!(choice, Choice { undecided: BTreeSet::from([kind("pods")]), ..Choice::default() });
    }

    #[test]
    fn who_is_in_force_keeps_the_engine_that_he_names_beside_one_who_comes_before_him_and_names_another() {
        let policies = [policy("first", "MutatingAdmissionPolicy", &["pods"]), policy("older", "Webhook", &["pods"])];
        let can = |_, _: &Arc<Kind>, _: &[Arc<Policy>]| Ok(());
        let takes = |_, _: &Arc<Kind>, _: &[Arc<Policy>]| Ok(());
        for (in_force, engine, refused) in
            [("nobody", ADMISSION_POLICY, "older"), ("older", WEBHOOK, "first"), ("first", ADMISSION_POLICY, "older")]
        {
            let is_in_force = |_: &Arc<Kind>, policy: &Policy| policy.name == in_force;
            let choice = super::choose(
                &policies,
                &Questions { can: &can, takes: &takes, is_in_force: &is_in_force, is_edited: &|_| false },
            );
            assert_eq!(choice.engines, BTreeMap::from([(kind("pods"), engine)]), "{in_force} is in effect");
            assert_eq!(Vec::from_iter(choice.refused.keys()), [refused], "{in_force} is in effect");
        }
    }

    #[test]
    fn while_the_server_is_asked_nothing_is_decided_and_nobody_refused() {
        let policies = ["a", "b"].map(|name| policy(name, "Auto", &["pods"]));
        let choice = choose_asking(&policies, |_| Err(Hindrance::Asked), &[]);
        assert_eq!(choice, Choice { undecided: BTreeSet::from([kind("pods")]), ..Choice::default() });
        // An answer that the search for the culprit needs may be missing, too.
        let refuses = |policies: &[&str]| Err(if policies.len() > 1 { refuse() } else { Hindrance::Asked });
        let choice = choose_asking(&policies, refuses, &[]);
        assert_eq!(choice, Choice { undecided: BTreeSet::from([kind("pods")]), ..Choice::default() });
    }

    /// A policy on `resources` by `engine`.
    fn ranked(name: &str, engine: &str, priority: i32, resources: &[&str]) -> Arc<Policy> {
        let mut policy = Policy::clone(&policy(name, engine, resources));
        Arc::make_mut(&mut policy.spec).priority = priority;
        Arc::new(policy)
    }

    /// Where WEBHOOK serves everything, and ADMISSION_POLICY at most two policies, none of them named `odd..`.
    fn small(engine: EngineName, _: &Arc<Kind>, policies: &[Arc<Policy>]) -> Result<(), Unavailable> {
        let is_odd = |policy: &Arc<Policy>| policy.name.starts_with("odd");
        match engine {
            INITIALIZER => off(Code::EngineUnavailable),
            ADMISSION_POLICY if policies.len() > 2 || policies.iter().any(is_odd) => off(Code::NotExpressible),
            _ => Ok(()),
        }
    }

    /// The engine of pods, and the refused policies with their codes.
    fn told(choice: &Choice) -> String {
        let engine = choice.engines.get(&kind("pods")).map_or("none", |engine| engine.as_str());
        let refused = choice.refused.iter().map(|(name, reason)| format!(" {name}:{}", reason.code));
        format!("{engine}{}", refused.collect::<String>())
    }

    #[test]
    fn policies_of_lower_priorities_join_the_engine_of_the_highest_or_are_left_out_alone() {
        const INSIDE: &str = "MutatingAdmissionPolicy";
        let pods = &["pods"][..];
        for (policies, expected) in [
            (vec![("a", "Auto", 5), ("n", "Webhook", 0)], format!("{INSIDE} n:SCP0311")),
            (vec![("a", INSIDE, 5), ("n", "Webhook", 0)], format!("{INSIDE} n:SCP0311")),
            (vec![("a", "Webhook", 5), ("n", INSIDE, 0), ("o", "Auto", 0)], "Webhook n:SCP0311".into()),
            (vec![("a", "Auto", 5), ("b", "Auto", 5), ("n", "Auto", 0)], format!("{INSIDE} n:SCP0319")),
            (vec![("a", "Auto", 5), ("n", "Auto", 0), ("odd", "Auto", 0)], format!("{INSIDE} odd:SCP0319")),
            (vec![("a", "Auto", 5), ("m", "Auto", 0), ("n", "Auto", 0)], format!("{INSIDE} n:SCP0319")),
            (vec![("a", "Auto", 5), ("m", "Auto", 0), ("n", "Auto", 1)], format!("{INSIDE} m:SCP0319")),
            // The highest priority chooses for all.
            (vec![("a", "Auto", 5), ("n", "Webhook", 6)], "Webhook".into()),
            (vec![("a", "Auto", 5), ("odd", "Auto", 6)], "Webhook".into()),
            (vec![("a", INSIDE, 5), ("n", "Webhook", 6)], "Webhook a:SCP0311".into()),
            // Equal priorities choose together.
            (vec![("a", "Auto", 5), ("n", "Webhook", 5)], "Webhook".into()),
            (vec![("a", "Auto", 5), ("odd", "Auto", 5)], "Webhook".into()),
            (vec![("a", "Auto", 5), ("b", "Auto", 5), ("n", "Auto", 5)], "Webhook".into()),
            // One that no engine serves leaves the choice to the others.
            (vec![("a", "Initializer", 5), ("n", "Webhook", 0)], "Webhook a:SCP0301".into()),
            (vec![("a", "Auto", 5), ("n", "Initializer", 0)], format!("{INSIDE} n:SCP0301")),
        ] {
            let mut set: Vec<_> =
                policies.iter().map(|(name, engine, priority)| ranked(name, engine, *priority, pods)).collect();
            for _ in 0..2 {
                assert_eq!(told(&choose(&set, &small)), expected, "{policies:?}");
                set.reverse();
            }
        }
        let set = [ranked("a", "Auto", 5, pods), ranked("n", "Webhook", 0, pods), ranked("odd", "Auto", 0, pods)];
        let refused = choose(&set, &small).refused;
        for name in ["n", "odd"] {
            let held =
                "SidecarPolicy `a`, which has a higher `spec.priority`, has pods served by MutatingAdmissionPolicy";
            assert!(refused[name].message.contains(held), "{refused:?}");
        }
    }

    #[test]
    fn a_policy_of_a_higher_priority_that_is_refused_elsewhere_holds_nothing() {
        const INSIDE: &str = "MutatingAdmissionPolicy";
        // `b` is refused for deployments, so it does not choose for pods, nor takes room there.
        let both = &["deployments", "pods"][..];
        for (b, lower) in [("Webhook", INSIDE), ("Auto", "Auto")] {
            let set = [
                ranked("a", INSIDE, 9, &["deployments"]),
                ranked("a2", INSIDE, 9, &["deployments"]),
                ranked("b", b, 5, both),
                ranked("c", lower, 0, &["pods"]),
                ranked("d", lower, -1, &["pods"]),
            ];
            let choice = choose(&set, &small);
            assert_eq!(choice.refused.keys().collect::<Vec<_>>(), ["b"], "{choice:?}");
            assert_eq!(choice.engines[&kind("pods")], ADMISSION_POLICY);
        }
    }

    #[test]
    fn what_the_server_does_not_take_leaves_out_the_lowest_priority_even_if_it_is_in_force() {
        let pods = &["pods"][..];
        let policies = [ranked("a", "Auto", 5, pods), ranked("b", "Auto", 0, pods), ranked("c", "Auto", -1, pods)];
        let refuses = |policies: &[&str]| if policies.len() > 2 { Err(refuse()) } else { Ok(()) };
        for in_force in [&[][..], &["c"], &["b", "c"], &["a", "b"]] {
            let choice = choose_asking(&policies, refuses, in_force);
            assert_eq!(choice.refused.keys().collect::<Vec<_>>(), ["c"], "{in_force:?}");
            assert_eq!(choice.engines[&kind("pods")], WEBHOOK);
        }
        // Within one priority, those in effect stay.
        let policies = [ranked("a", "Auto", 5, pods), ranked("b", "Auto", 0, pods), ranked("c", "Auto", 0, pods)];
        assert_eq!(choose_asking(&policies, refuses, &["c"]).refused.keys().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn an_edit_keeps_its_place_beside_a_policy_that_waits_for_one() {
        let pods = &["pods"][..];
        let set = [ranked("a", "Auto", 5, pods), ranked("new", "Auto", 0, pods), ranked("z", "Auto", 0, pods)];
        let takes = |engine: EngineName, kind: &Arc<Kind>, policies: &[Arc<Policy>]| Ok(small(engine, kind, policies)?);
        let questions = Questions {
            can: &small,
            takes: &takes,
            is_in_force: &|_, _| false,
            is_edited: &|policy| policy.name == "z",
        };
        assert_eq!(told(&super::choose(&set, &questions)), "MutatingAdmissionPolicy new:SCP0319");
    }

    #[test]
    fn a_thousand_policies_take_one_question_together_if_all_fit_and_few_if_not() {
        let (asked, together) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        for room in [2_000, 52, 1] {
            let mut set = vec![ranked("first", "Auto", 1, &["pods"])];
            set.extend((0..1_000).map(|number| ranked(&format!("p{number}"), "Auto", -(number % 7), &["pods"])));
            asked.set(0);
            together.set(0);
            let choice = choose(&set, &|engine, _, policies| {
                asked.set(asked.get() + 1);
                together.set(together.get() + usize::from(policies.len() > 1));
                match engine {
                    INITIALIZER => off(Code::EngineUnavailable),
                    ADMISSION_POLICY if policies.len() > room => off(Code::NotExpressible),
                    _ => Ok(()),
                }
            });
            assert_eq!(choice.refused.len(), 1_001_usize.saturating_sub(room));
            let (most, most_together) = if choice.refused.is_empty() { (4, 2) } else { (1_300, 200) };
            let counted = (asked.get(), together.get());
            assert!(counted.0 <= most && counted.1 <= most_together, "room for {room}: {counted:?} questions");
        }
    }

    /// A set of policies, each of another priority if `are_distinct`: engine, priority and resources.
    fn sets(are_distinct: bool) -> impl Strategy<Value = Vec<Arc<Policy>>> {
        let engines = prop::sample::select(vec!["Auto", "Auto", "Webhook", "MutatingAdmissionPolicy", "Initializer"]);
        let names = prop::sample::select(vec!["p", "p", "p", "odd"]);
        let one = (names, engines, 0..3_i32, 1..8_u8);
        prop::collection::vec(one, 1..8).prop_map(move |all| {
            let of = |(index, (name, engine, priority, on)): (usize, (&str, &str, i32, u8))| {
                let resources = ["deployments", "pods", "statefulsets"].into_iter().enumerate();
                let resources: Vec<_> =
                    resources.filter(|(bit, _)| on & (1 << bit) > 0).map(|(_, resource)| resource).collect();
                let priority = if are_distinct { -(index as i32) } else { priority };
                ranked(&format!("{name}-{index}"), engine, priority, &resources)
            };
            all.into_iter().enumerate().map(of).collect()
        })
    }

    /// Chooses where the server takes no two policies of one pair together, and those with a bit in `in_force` are in effect.
    fn choose_around(policies: &[Arc<Policy>], pair: (usize, usize), in_force: u8) -> Choice {
        let index = |policy: &Policy| policy.name.rsplit('-').next().unwrap().parse::<usize>().unwrap();
        let takes = |engine: EngineName, kind: &Arc<Kind>, policies: &[Arc<Policy>]| {
            small(engine, kind, policies)?;
            let has = |wanted: usize| policies.iter().any(|policy| index(policy) == wanted);
            if pair.0 != pair.1 && has(pair.0) && has(pair.1) { Err(refuse()) } else { Ok(()) }
        };
        let is_in_force = |_: &Arc<Kind>, policy: &Policy| in_force & (1 << index(policy)) > 0;
        let questions = Questions { can: &small, takes: &takes, is_in_force: &is_in_force, is_edited: &|_| false };
        super::choose(policies, &questions)
    }

    proptest! {
        #[test]
        fn the_choice_depends_on_the_set_and_not_on_its_order_nor_on_what_is_in_force_but_among_equals(
            set in sets(true), pair in (0..8_usize, 0..8_usize), in_force in any::<u8>(), turn in 0..8_usize,
        ) {
            let choice = choose_around(&set, pair, 0);
            prop_assert!(choice.undecided.is_empty());
            let mut turned = set.clone();
            turned.rotate_left(turn % set.len());
            let around = choose_around(&turned, pair, in_force);
            // A server that refuses what is in effect together has another cause, and nothing is decided.
            prop_assume!(around.undecided.is_empty());
            // Of two reasons that both hold, which one is told may depend on the order.
            let names = |choice: &Choice| choice.refused.keys().cloned().collect::<Vec<_>>();
            prop_assert_eq!((&around.engines, names(&around)), (&choice.engines, names(&choice)));
            // Each refused policy does not fit those that are served and have a higher priority.
            for (at, policy) in set.iter().enumerate() {
                let mut before = set[..at].to_vec();
                before.retain(|policy| !choice.refused.contains_key(&policy.name));
                before.push(policy.clone());
                let is_refused = choose_around(&before, pair, 0).refused.contains_key(&policy.name);
                prop_assert_eq!(is_refused, choice.refused.contains_key(&policy.name), "{}", policy.name);
            }
        }

        #[test]
        fn no_policy_affects_those_of_higher_priorities(
            set in sets(false), pair in (0..8_usize, 0..8_usize), in_force in any::<u8>(), priority in 1..3_i32,
        ) {
            let whole = choose_around(&set, pair, in_force);
            let higher: Vec<_> = set.iter().filter(|policy| policy.spec.priority >= priority).cloned().collect();
            let alone = choose_around(&higher, pair, in_force);
            prop_assume!(alone.undecided.is_empty() && whole.undecided.is_empty());
            let reasons = |choice: &Choice| {
                let of_higher = higher.iter().filter_map(|policy| Some((policy.name.clone(), choice.refused.get(&policy.name)?.clone())));
                of_higher.collect::<BTreeMap<_, _>>()
            };
            prop_assert_eq!(reasons(&whole), reasons(&alone));
            for (kind, engine) in &alone.engines {
                prop_assert_eq!(whole.engines.get(kind), Some(engine));
            }
        }
    }

    fn off<T>(code: Code) -> Result<T, Unavailable> {
        Err(Unavailable::new(code, "off"))
    }

    #[test]
    fn auto_takes_the_first_that_can() {
        let policies = [policy("a", "Auto", &["deployments", "pods"])];
        let can = |able: Vec<EngineName>| {
            choose(&policies, &|engine, _, _| {
                if able.contains(&engine) { Ok(()) } else { off(Code::EngineUnavailable) }
            })
        };
        assert_eq!(can(vec![INITIALIZER, WEBHOOK]).engines[&kind("pods")], INITIALIZER);
        assert_eq!(can(vec![ADMISSION_POLICY, WEBHOOK]).engines[&kind("pods")], ADMISSION_POLICY);
        assert_eq!(can(vec![WEBHOOK]).engines[&kind("deployments")], WEBHOOK);
        let none = can(vec![]);
        assert!(none.engines.is_empty());
        assert_eq!(none.refused["a"].code, Code::EngineUnavailable);
    }

    #[test]
    fn one_policy_that_cannot_be_expressed_takes_all_of_its_resource_to_the_webhook() {
        let policies = [policy("a", "Auto", &["deployments"]), policy("b", "Auto", &["deployments", "pods"])];
        let choice = choose(&policies, &|engine, kind, policies| match engine {
            INITIALIZER => off(Code::EngineUnavailable),
            ADMISSION_POLICY if policies.iter().any(|policy| policy.name == "a") && kind.resource == "deployments" => {
                off(Code::NotExpressible)
            }
            _ => Ok(()),
        });
        assert_eq!(choice.engines[&kind("deployments")], WEBHOOK);
        assert_eq!(choice.engines[&kind("pods")], ADMISSION_POLICY);
        let passed_over: Vec<_> = choice.passed_over.iter().map(|(kind, reason)| (kind.clone(), reason.code)).collect();
        assert_eq!(passed_over, [(kind("deployments"), Code::NotExpressible)]);
        assert!(choice.refused.is_empty());
    }

    #[test]
    fn who_names_an_engine_has_the_others_follow_and_a_second_name_is_refused() {
        let policies = [
            policy("a", "Auto", &["deployments"]),
            policy("b", "Webhook", &["deployments"]),
            policy("c", "MutatingAdmissionPolicy", &["deployments", "pods"]),
        ];
        let choice = choose(&policies, &|_, _, _| Ok(()));
        assert_eq!(choice.engines, BTreeMap::from([(kind("deployments"), WEBHOOK)]));
        assert_eq!(choice.refused.len(), 1);
        assert_eq!(choice.refused["c"].code, Code::EngineMismatch);
        assert!(choice.refused["c"].message.contains("SidecarPolicy `b`"), "{:?}", choice.refused);
    }

    #[test]
    fn an_engine_that_is_named_and_cannot_leaves_the_others_to_the_next() {
        let policies =
            [policy("a", "Auto", &["deployments"]), policy("b", "MutatingAdmissionPolicy", &["deployments"])];
        let choice = choose(&policies, &|engine, _, _| {
            if engine == WEBHOOK { Ok(()) } else { off(Code::AdmissionPolicyApiOff) }
        });
        assert_eq!(choice.engines, BTreeMap::from([(kind("deployments"), WEBHOOK)]));
        assert_eq!(choice.refused["b"].code, Code::AdmissionPolicyApiOff);
    }

    #[test]
    fn what_cannot_be_is_said_before_what_does_not_go_together() {
        let policies = [policy("a", "Webhook", &["deployments"]), policy("b", "Initializer", &["deployments"])];
        let choice = choose(&policies, &|engine, _, _| if engine == WEBHOOK { off(Code::WebhookOff) } else { Ok(()) });
        assert_eq!(choice.engines, BTreeMap::from([(kind("deployments"), INITIALIZER)]));
        assert_eq!(choice.refused["a"].code, Code::WebhookOff);
    }

    #[test]
    fn a_policy_that_no_engine_can_serve_leaves_the_others_alone() {
        let policies = [policy("a", "Auto", &["deployments"]), policy("b", "Auto", &["deployments"])];
        let choice = choose(&policies, &|engine, _, policies| match engine {
            WEBHOOK if policies.iter().all(|policy| policy.name != "b") => Ok(()),
            _ => off(Code::FailNotSafe),
        });
        assert_eq!(choice.engines, BTreeMap::from([(kind("deployments"), WEBHOOK)]));
        assert_eq!(Vec::from_iter(choice.refused.keys()), ["b"]);
    }
}
