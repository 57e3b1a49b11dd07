//! Chooses the engine of each resource. Pure.
//!
//! Policies that meet on one resource share one engine there, because one place must decide their order and their collisions.
//! So the unit is the resource, and not the policy.

use super::{EngineName, Unavailable, all};
use crate::api::code::Code;
use crate::policy::Policy;
use crate::workload::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The questions of [`choose`].
pub struct Questions<'a> {
    /// Whether an engine can serve these policies on this resource, without a request to the server.
    pub can: &'a Ability<'a, Unavailable>,
    /// The same, including the server's answer about the rendered registration.
    pub takes: &'a Ability<'a, Hindrance>,
    /// Whether a policy is in effect on this resource. A later policy never displaces such a policy.
    pub is_in_force: &'a dyn Fn(&Arc<Kind>, &Policy) -> bool,
}

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

/// Chooses for `policies`, which are valid, enforced and in order of priority.
///
/// # Guarantees
/// A policy that is refused on one resource is served on none, and does not affect other policies. If policies cannot be served
/// together, one at a time is refused: the first that does not fit those before it. In that order policies in effect come
/// first.
pub fn choose(policies: &[Arc<Policy>], questions: &Questions<'_>) -> Choice {
    let mut refused = BTreeMap::new();
    loop {
        let served: Vec<_> = policies.iter().filter(|policy| !refused.contains_key(&policy.name)).cloned().collect();
        let mut choice = Choice::default();
        let before = refused.len();
        let kinds: BTreeSet<&Arc<Kind>> = served.iter().flat_map(|policy| &policy.kinds).collect();
        for kind in kinds {
            let meeting: Vec<_> = served.iter().filter(|policy| policy.kinds.contains(kind)).cloned().collect();
            match (Meeting { kind, policies: &meeting, questions }).choose() {
                Ok((engine, reason)) => {
                    choice.engines.insert(kind.clone(), engine);
                    choice.passed_over.extend(reason.map(|reason| (kind.clone(), reason)));
                }
                Err(Impasse::Asked) => drop(choice.undecided.insert(kind.clone())),
                Err(Impasse::Refused(reasons)) => refused.extend(reasons),
            }
        }
        if refused.len() == before {
            return Choice { refused, ..choice };
        }
    }
}

/// An engine, and why a preferred engine cannot express the policies, if so.
type Chosen = (EngineName, Option<Unavailable>);

/// Why there is no engine yet.
enum Impasse {
    Asked,
    /// Policies that must be refused first, by name, with the reason.
    Refused(Vec<(String, Unavailable)>),
}

/// The policies on one resource, in order of priority.
struct Meeting<'a> {
    kind: &'a Arc<Kind>,
    policies: &'a [Arc<Policy>],
    questions: &'a Questions<'a>,
}

impl Meeting<'_> {
    fn choose(&self) -> Result<Chosen, Impasse> {
        let asked_for = |policy: &Arc<Policy>| EngineName::asked_for(policy.spec.engine);
        let impossible = self.each(|policy| self.alone(asked_for(policy)?, policy));
        if !impossible.is_empty() {
            return Err(Impasse::Refused(impossible));
        }
        let in_order = self.in_force_first();
        let Some((first, named)) = in_order.iter().find_map(|policy| Some((policy, asked_for(policy)?))) else {
            return self.automatic();
        };
        let mismatched = self.each(|policy| {
            let is_other = asked_for(policy).is_some_and(|engine| engine != named);
            is_other.then(|| mismatch(self.kind, first, named))
        });
        if !mismatched.is_empty() {
            return Err(Impasse::Refused(mismatched));
        }
        let Err(reason) = self.fits(named, self.policies)? else { return Ok((named, None)) };
        let (culprit, why) = self.culprit(named, reason.clone())?;
        let is_to_stay = |policy: &Policy| (self.questions.is_in_force)(self.kind, policy);
        // If the culprit does not name this engine, the policies that name it are refused: the others may use another engine.
        let naming = self.each(|policy| (asked_for(policy).is_some() && !is_to_stay(policy)).then(|| reason.clone()));
        let is_theirs = asked_for(&culprit).is_none() && !naming.is_empty();
        Err(Impasse::Refused(if is_theirs { naming } else { vec![(culprit.name.clone(), why)] }))
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
            return Err(Impasse::Refused(alone));
        }
        let (culprit, why) = self.culprit(engine, reason)?;
        Err(Impasse::Refused(vec![(culprit.name.clone(), why)]))
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

    /// The first policy that `engine` cannot serve together with those before it, and the reason. `reason` is why the engine
    /// cannot serve all. The number of questions is logarithmic in the number of policies.
    ///
    /// The culprit is never a policy in effect, because the server accepted it before. If all policies are in effect, nothing
    /// is decided.
    fn culprit(&self, engine: EngineName, reason: Unavailable) -> Result<(Arc<Policy>, Unavailable), Impasse> {
        let policies = self.in_force_first();
        let in_force = policies.iter().filter(|policy| (self.questions.is_in_force)(self.kind, policy)).count();
        let (mut served, mut refused, mut why) = (in_force, policies.len(), reason);
        if served == refused {
            return Err(Impasse::Asked);
        }
        while refused - served > 1 {
            let middle = usize::midpoint(served, refused);
            // In order of priority, because the engine renders them in that order.
            let names: BTreeSet<&str> = policies[..middle].iter().map(|policy| policy.name.as_str()).collect();
            let some = self.policies.iter().filter(|policy| names.contains(policy.name.as_str()));
            let some: Vec<_> = some.cloned().collect();
            match self.fits(engine, &some)? {
                Ok(()) => served = middle,
                Err(reason) => (refused, why) = (middle, reason),
            }
        }
        Ok((policies[served].clone(), why))
    }
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
        super::choose(policies, &Questions { can, takes: &takes, is_in_force: &|_, _| false })
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
        super::choose(policies, &Questions { can: &can, takes: &takes, is_in_force: &is_in_force })
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
            let choice = super::choose(&policies, &Questions { can: &can, takes: &takes, is_in_force: &is_in_force });
            assert_eq!(choice.engines, BTreeMap::from([(kind("pods"), engine)]), "{in_force} is in force");
            assert_eq!(Vec::from_iter(choice.refused.keys()), [refused], "{in_force} is in force");
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
