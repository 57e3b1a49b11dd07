//! Which engine serves which resource. Pure.
//!
//! Policies that can meet on one resource share one engine there: their order, and what becomes of those that collide, is
//! decided in one place. So the unit is the resource, and not the policy.

use super::{ENGINES, EngineName, Unavailable};
use crate::api::code::Code;
use crate::policy::Policy;
use crate::workload::Kind;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What [`choose`] asks about an engine: why it cannot serve these policies, in priority order, on this resource.
pub type Ability<'a> = dyn Fn(EngineName, &Arc<Kind>, &[Arc<Policy>]) -> Result<(), Unavailable> + 'a;

/// Which engine serves which resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Of each resource that is served at all.
    pub engines: BTreeMap<Arc<Kind>, EngineName>,
    /// Why another engine, which the server has, does not serve that resource: a policy there cannot be expressed.
    pub passed_over: BTreeMap<Arc<Kind>, Unavailable>,
    /// The policies that cannot be served on one of their resources, by name, and why.
    pub refused: BTreeMap<String, Unavailable>,
}

/// Chooses for `policies`, which are valid, enforced and in priority order.
///
/// # Guarantees
/// A policy that is refused on one of its resources is served on none, and stands in nobody's way.
pub fn choose(policies: &[Arc<Policy>], ability: &Ability<'_>) -> Choice {
    let mut refused = BTreeMap::new();
    loop {
        let served: Vec<_> = policies.iter().filter(|policy| !refused.contains_key(&policy.name)).cloned().collect();
        let (mut engines, mut passed_over) = (BTreeMap::new(), BTreeMap::new());
        let before = refused.len();
        for kind in served.iter().flat_map(|policy| &policy.kinds) {
            if engines.contains_key(kind) {
                continue;
            }
            let meeting: Vec<_> = served.iter().filter(|policy| policy.kinds.contains(kind)).cloned().collect();
            match choose_for(kind, &meeting, ability) {
                Ok((engine, reason)) => {
                    engines.insert(kind.clone(), engine);
                    passed_over.extend(reason.map(|reason| (kind.clone(), reason)));
                }
                Err(reasons) => refused.extend(reasons),
            }
        }
        if refused.len() == before {
            return Choice { engines, passed_over, refused };
        }
    }
}

/// An engine, and why it is none before it, if that is for the policies' sake.
type Chosen = (EngineName, Option<Unavailable>);
/// Policies that must go before there can be an engine, by name, and why.
type Refused = Vec<(String, Unavailable)>;

/// The engine for all of `policies` on `kind`.
fn choose_for(kind: &Arc<Kind>, policies: &[Arc<Policy>], ability: &Ability<'_>) -> Result<Chosen, Refused> {
    let asked_for = |policy: &Arc<Policy>| EngineName::asked_for(policy.spec.engine);
    let impossible = |policy: &Arc<Policy>| {
        let reason = ability(asked_for(policy)?, kind, std::slice::from_ref(policy)).err()?;
        Some((policy.name.clone(), reason))
    };
    let impossible: Vec<_> = policies.iter().filter_map(impossible).collect();
    if !impossible.is_empty() {
        return Err(impossible);
    }
    let Some((first, named)) = policies.iter().find_map(|policy| Some((policy, asked_for(policy)?))) else {
        return automatic(kind, policies, ability);
    };
    let other = |policy: &&Arc<Policy>| asked_for(policy).is_some_and(|engine| engine != named);
    let mismatched: Vec<_> = policies.iter().filter(other).map(|policy| mismatch(kind, policy, first, named)).collect();
    if !mismatched.is_empty() {
        return Err(mismatched);
    }
    ability(named, kind, policies).map(|()| (named, None)).map_err(|reason| {
        // Those that take what is there may be served by another engine.
        let naming = policies.iter().filter(|policy| asked_for(policy).is_some());
        naming.map(|policy| (policy.name.clone(), reason.clone())).collect()
    })
}

fn mismatch(kind: &Kind, policy: &Policy, first: &Policy, named: EngineName) -> (String, Unavailable) {
    let message = format!(
        "SidecarPolicy `{}`, which comes first, has {} served by `spec.engine: {named}`; name the same engine, or `Auto`",
        first.name, kind.resource
    );
    (policy.name.clone(), Unavailable::new(Code::EngineMismatch, message))
}

/// The first engine that can.
fn automatic(kind: &Arc<Kind>, policies: &[Arc<Policy>], ability: &Ability<'_>) -> Result<Chosen, Refused> {
    let (mut last, mut not_expressible) = (None, None);
    for row in &ENGINES {
        match ability(row.engine, kind, policies) {
            Ok(()) => return Ok((row.engine, not_expressible)),
            Err(reason) => {
                if reason.code == Code::NotExpressible {
                    not_expressible = Some(reason.clone());
                }
                last = Some((row.engine, reason));
            }
        }
    }
    let (engine, reason) = last.expect("there is at least one engine");
    // Perhaps one of them alone is what cannot be.
    let alone =
        |policy: &Arc<Policy>| Some((policy.name.clone(), ability(engine, kind, std::slice::from_ref(policy)).err()?));
    let culprits: Vec<_> = policies.iter().filter_map(alone).collect();
    if culprits.is_empty() {
        return Err(policies.iter().map(|policy| (policy.name.clone(), reason.clone())).collect());
    }
    Err(culprits)
}

#[cfg(test)]
mod tests {
    use super::EngineName::{Initializer, MutatingAdmissionPolicy, Webhook};
    use super::*;
    use crate::policy::Site;
    use serde_json::json;

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
        assert_eq!(can(vec![Initializer, Webhook]).engines[&kind("pods")], Initializer);
        assert_eq!(can(vec![MutatingAdmissionPolicy, Webhook]).engines[&kind("pods")], MutatingAdmissionPolicy);
        assert_eq!(can(vec![Webhook]).engines[&kind("deployments")], Webhook);
        let none = can(vec![]);
        assert!(none.engines.is_empty());
        assert_eq!(none.refused["a"].code, Code::EngineUnavailable);
    }

    #[test]
    fn one_policy_that_cannot_be_expressed_takes_all_of_its_resource_to_the_webhook() {
        let policies = [policy("a", "Auto", &["deployments"]), policy("b", "Auto", &["deployments", "pods"])];
        let choice = choose(&policies, &|engine, kind, policies| match engine {
            Initializer => off(Code::EngineUnavailable),
            MutatingAdmissionPolicy
                if policies.iter().any(|policy| policy.name == "a") && kind.resource == "deployments" =>
            {
                off(Code::NotExpressible)
            }
            _ => Ok(()),
        });
        assert_eq!(choice.engines[&kind("deployments")], Webhook);
        assert_eq!(choice.engines[&kind("pods")], MutatingAdmissionPolicy);
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
        assert_eq!(choice.engines, BTreeMap::from([(kind("deployments"), Webhook)]));
        assert_eq!(choice.refused.len(), 1);
        assert_eq!(choice.refused["c"].code, Code::EngineMismatch);
        assert!(choice.refused["c"].message.contains("SidecarPolicy `b`"), "{:?}", choice.refused);
    }

    #[test]
    fn an_engine_that_is_named_and_cannot_leaves_the_others_to_the_next() {
        let policies =
            [policy("a", "Auto", &["deployments"]), policy("b", "MutatingAdmissionPolicy", &["deployments"])];
        let choice = choose(&policies, &|engine, _, _| {
            if engine == Webhook { Ok(()) } else { off(Code::AdmissionPolicyApiOff) }
        });
        assert_eq!(choice.engines, BTreeMap::from([(kind("deployments"), Webhook)]));
        assert_eq!(choice.refused["b"].code, Code::AdmissionPolicyApiOff);
    }

    #[test]
    fn what_cannot_be_is_said_before_what_does_not_go_together() {
        let policies = [policy("a", "Webhook", &["deployments"]), policy("b", "Initializer", &["deployments"])];
        let choice = choose(&policies, &|engine, _, _| if engine == Webhook { off(Code::WebhookOff) } else { Ok(()) });
        assert_eq!(choice.engines, BTreeMap::from([(kind("deployments"), Initializer)]));
        assert_eq!(choice.refused["a"].code, Code::WebhookOff);
    }

    #[test]
    fn a_policy_that_no_engine_can_serve_leaves_the_others_alone() {
        let policies = [policy("a", "Auto", &["deployments"]), policy("b", "Auto", &["deployments"])];
        let choice = choose(&policies, &|engine, _, policies| match engine {
            Webhook if policies.iter().all(|policy| policy.name != "b") => Ok(()),
            _ => off(Code::FailNotSafe),
        });
        assert_eq!(choice.engines, BTreeMap::from([(kind("deployments"), Webhook)]));
        assert_eq!(Vec::from_iter(choice.refused.keys()), ["b"]);
    }
}
