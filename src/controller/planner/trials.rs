//! The server's answers about templates: dry-run creates of objects that contain them. Pure.

use super::{Inputs, Plan, Planner, Requests};
use crate::api::code::Code;
use crate::api::condition::Readiness;
use crate::controller::policy_state::outcome_of;
use crate::engine::Unavailable;
use crate::engine::choice::Choice;
use crate::policy::Policy;
use crate::timing;
use crate::workload::Kind;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// A template on a kind: the policy's name, the hash of its spec, and the kind.
pub(in crate::controller) type TrialKey = (String, String, Arc<Kind>);

/// The state of a trial.
pub(in crate::controller) enum Trial {
    /// Running, with the reason of the last failure. That reason counts until the trial ends.
    Running(Option<Unavailable>),
    Passed,
    /// The trial failed or had no result. It is repeated at that time, because other admission may have rejected the object.
    Failed(Unavailable, Instant),
}

impl Trial {
    /// The result of a trial that ended at `now`.
    pub(in crate::controller) fn of(tried: Result<(), Unavailable>, now: Instant, timing: &timing::Controller) -> Self {
        match tried {
            Ok(()) => Self::Passed,
            Err(reason) => {
                let is_invalid = matches!(reason.code, Code::TemplateInvalid | Code::UnknownTemplateField);
                let pause = if is_invalid { timing.verify_again } else { timing.retry };
                Self::Failed(reason, now + pause)
            }
        }
    }
}

impl Planner {
    /// Records the result of a template trial.
    pub(in crate::controller) fn tried(&mut self, key: TrialKey, trial: Trial) {
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
        if inputs.surroundings.cluster.resource(&key.2).is_none() {
            return;
        }
        self.trials.retain(|(name, hash, _), _| *name != key.0 || *hash == key.1);
        self.trials.insert(key.clone(), Trial::Running(failed));
        requests.templates.push((key, policy.clone()));
    }
}
