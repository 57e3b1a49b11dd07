//! The server's answers about templates: dry-run creates of objects that contain them. Pure.

use super::{Acceptance, Inputs, Plan, Planner, Requests};
use crate::api::condition::Readiness;
use crate::controller::policy_state::outcome_of;
use crate::engine::Unavailable;
use crate::engine::choice::Choice;
use crate::policy::Policy;
use crate::workload::Kind;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A template on a kind.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::controller) struct TrialKey {
    /// The name of the policy.
    pub(in crate::controller) policy: String,
    pub(in crate::controller) spec_hash: String,
    pub(in crate::controller) kind: Arc<Kind>,
}

impl Planner {
    /// Records the result of a template trial.
    pub(in crate::controller) fn tried(&mut self, key: TrialKey, trial: Acceptance) {
        self.trials.insert(key, trial);
        self.plan = None;
    }

    /// Starts trials of the templates that engines put into admission unchanged. Returns the policies whose template failed.
    pub(super) fn try_templates(
        &mut self,
        policies: &[Arc<Policy>],
        plan: &Plan,
        choice: &Choice,
        inputs: &Inputs<'_>,
        requests: &mut Requests,
    ) -> BTreeMap<String, Readiness> {
        let mut failed = BTreeMap::new();
        // A form from before an edit has been tried already.
        let is_open = |policy: &&Arc<Policy>| {
            !choice.refused.contains_key(&policy.name) && !plan.policies.contains_key(&policy.name)
        };
        let pairs = policies.iter().filter(|policy| policy.injects()).filter(is_open);
        let pairs = pairs.flat_map(|policy| policy.kinds.iter().map(move |kind| (policy, kind)));
        let is_tried = |kind: &Arc<Kind>| {
            choice.engines.get(kind).is_some_and(|engine| !engine.is_per_policy()) && kind.pod_path.is_some()
        };
        for (policy, kind) in pairs.filter(|(_, kind)| is_tried(kind)) {
            let (name, spec_hash) = (policy.name.clone(), policy.spec_hash.clone());
            let key = TrialKey { policy: name, spec_hash, kind: kind.clone() };
            let known = self.trials.get(&key);
            let is_due = known.is_none_or(|known| known.is_due(inputs.now));
            let reason = known.and_then(Acceptance::reason).cloned();
            failed.extend(reason.clone().map(|reason| (policy.name.clone(), outcome_of(reason))));
            if is_due {
                self.try_template(policy, key, reason, inputs, requests);
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
        if inputs.surroundings.cluster.resource(&key.kind).is_none() {
            return;
        }
        self.trials.retain(|other, _| other.policy != key.policy || other.spec_hash == key.spec_hash);
        self.trials.insert(key.clone(), Acceptance::Asked(failed));
        requests.templates.push((key, policy.clone()));
    }
}
