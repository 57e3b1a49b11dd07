//! Keeps the registrations as the plan wants them: watches them, sends events to [`lifecycle`](crate::engine::lifecycle), and
//! runs its actions.
//!
//! | file | what |
//! |---|---|
//! | `follow` | the watches of everything that engines register |
//! | `compare` | compares the wish for each slot with the observed objects |
//! | `act` | runs the actions of the lifecycle |
//! | `leave` | unregisters when the last replica stops |

mod act;
mod compare;
mod follow;
mod leave;

use crate::api::condition::Readiness;
use crate::controller::Controller;
use crate::controller::policy_state::outcome_of;
use crate::engine::lifecycle::{Registration, Standing, Wanted};
use crate::engine::probe::Unverified;
use crate::engine::{self, Engine, EngineName};
use crate::policy::Policy;
use crate::workload::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Controller {
    /// Why `policy` is not in effect on one of `kinds`, or that this is not known yet; none if it is in effect.
    pub(super) fn shortfall(&self, policy: &Policy, kinds: &[Arc<Kind>]) -> Option<Readiness> {
        let mut unknown = None;
        for kind in kinds {
            match self.registrations.of_kind(kind).map_or(Standing::Unknown, |state| state.standing(policy)) {
                Standing::InForce => {}
                Standing::Unknown => unknown = Some(Readiness::FirstSight),
                Standing::Not(reason) => return Some(outcome_of(reason.clone())),
            }
        }
        unknown
    }

    /// Why the wanted registration of `policy` alone is not in effect, or that this is not known yet; none if it is in effect.
    pub(super) fn shortfall_of_own(&self, policy: &str, wanted: &Arc<Wanted>) -> Option<Readiness> {
        let state = self.registrations.of_policy(policy);
        if state.and_then(Registration::at_rest).is_some_and(|live| live.wanted.is_as(wanted)) {
            return None;
        }
        let reason = state.and_then(Registration::reason);
        Some(reason.map_or(Readiness::FirstSight, |reason| outcome_of(reason.clone())))
    }

    /// Why no dry run can verify that `policy` is in effect.
    pub(super) fn doubt(&self, policy: &str) -> Option<Unverified> {
        let own = self.registrations.of_policy(policy).and_then(Registration::at_rest);
        let shared = self.registrations.of_kinds().filter_map(|(_, state)| state.live());
        let shared = shared.filter(|live| live.policies().iter().any(|other| other.name == policy));
        let mut all = own.into_iter().chain(shared);
        all.find_map(|live| live.unverified.clone().or_else(|| live.leftover.clone()))
    }

    /// The number of policies in effect, by resource and engine.
    pub(super) fn policies_by_engine(&self) -> BTreeMap<[String; 2], i64> {
        let mut policies = BTreeMap::new();
        for wanted in self.registrations.states.values().filter_map(|state| Some(&state.live()?.wanted)) {
            for kind in &wanted.kinds {
                let labels = [kind.group_resource(), wanted.engine.as_str().to_owned()];
                *policies.entry(labels).or_insert(0) += wanted.policies.len() as i64;
            }
        }
        policies
    }

    /// The engines by which `policy` is in effect.
    pub(super) fn engines_of(&self, name: &str) -> Vec<EngineName> {
        let own = self.registrations.of_policy(name).and_then(Registration::at_rest);
        let shared = self.registrations.of_kinds().filter_map(|(_, state)| state.live());
        let shared = shared.filter(|live| live.policies().iter().any(|policy| policy.name == name));
        let engines: BTreeSet<_> = own.into_iter().chain(shared).map(|live| live.wanted.engine).collect();
        engines.into_iter().collect()
    }
}

/// Whether the API server calls this operator through objects of `resource`.
fn needs_operator(resource: &str) -> bool {
    engine::of_resource(resource).is_some_and(<dyn Engine>::needs_operator)
}
