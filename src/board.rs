//! What the tasks of this process tell each other about policies. Nothing of it is stored, and a new leader begins with nothing:
//! what must survive the process stands in the stored objects.
//!
//! | fact | written by | read by |
//! |---|---|---|
//! | [`InForce`] | the controller, after each look | rollouts |
//! | [`RolloutState`] | the rollouts, after each look | the controller, for statuses and metrics |

use crate::api::condition::Progress;
use crate::policy::{Policy, PolicyRef};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// What new workloads get from a policy now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum InForce {
    /// The controller has not concluded it yet, or is replacing a registration.
    #[default]
    Unknown,
    /// The policy is not in effect.
    Nothing,
    /// The policy of this UID, by the spec of this hash.
    Spec {
        /// `metadata.uid` of the policy.
        uid: String,
        /// [`Policy::spec_hash`], which also changes with each step of a rollout.
        spec_hash: String,
    },
}

impl InForce {
    /// What is in effect once `policy` is.
    pub fn by(policy: &Policy) -> Self {
        Self::Spec { uid: policy.meta.uid.clone(), spec_hash: policy.spec_hash.clone() }
    }
}

/// How far the rollout of a policy is, for its status and the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RolloutState {
    /// The hash of the revision that the policy had at the last look. All else is about that one.
    pub looked_at: Option<String>,
    /// The hash of the last revision whose rollout was complete.
    pub current: Option<String>,
    /// The hash of the revision of the policy as it is now.
    pub update: Option<String>,
    /// None if the policy does not roll.
    pub progress: Option<Progress>,
    pub is_halted: bool,
    /// The time of the last `scpol rollout restart` that it follows.
    pub restarted: Option<Timestamp>,
    /// The workloads that carry the update revision.
    pub updated: usize,
    /// The workloads that are available.
    pub ready: usize,
    /// The workloads in scope that are still to be updated.
    pub remaining: usize,
}

impl RolloutState {
    /// The state for a policy that has the revision `hash` now. Of that one nothing is known before the next look.
    #[must_use]
    pub fn now(self, hash: Option<&str>) -> Self {
        if self.progress.is_none() || hash.is_none() || self.looked_at.as_deref() == hash {
            return self;
        }
        let progress = Progress::NewRevision("the latest edit has not been looked at yet".into());
        let update = hash.map(str::to_owned);
        Self { update, progress: Some(progress), is_halted: false, updated: 0, remaining: 0, ..self }
    }

    /// All but counts and the words of the message, which a status may show later.
    fn essence(&self) -> impl PartialEq {
        let Self { looked_at, current, update, progress, is_halted, restarted, .. } = self;
        let reason = progress.as_ref().map(Progress::code);
        (looked_at.clone(), current.clone(), update.clone(), reason, *is_halted, *restarted)
    }
}

/// Facts by policy.
type FactsByPolicy<T> = Arc<BTreeMap<PolicyRef, T>>;

/// The facts between the tasks of one term of leadership.
#[derive(Default)]
pub struct Board {
    in_force: watch::Sender<FactsByPolicy<InForce>>,
    rollouts: watch::Sender<FactsByPolicy<RolloutState>>,
}

impl Board {
    /// What new workloads get from `policy` now.
    pub fn in_force(&self, policy: &PolicyRef) -> InForce {
        self.in_force.borrow().get(policy).cloned().unwrap_or_default()
    }

    /// Sets what is in effect. Of a policy that is not in `facts` nothing is known.
    pub fn set_in_force(&self, facts: BTreeMap<PolicyRef, InForce>) {
        self.in_force.send_if_modified(|known| {
            let is_news = **known != facts;
            if is_news {
                *known = Arc::new(facts);
            }
            is_news
        });
    }

    /// Signals each change of [`Self::in_force`].
    pub fn in_force_changes(&self) -> watch::Receiver<FactsByPolicy<InForce>> {
        self.in_force.subscribe()
    }

    /// How far the rollout of `policy` is; none before the leader has looked at it.
    pub fn rollout(&self, policy: &PolicyRef) -> Option<RolloutState> {
        self.rollouts.borrow().get(policy).cloned()
    }

    /// How far all rollouts are.
    pub fn rollouts(&self) -> FactsByPolicy<RolloutState> {
        self.rollouts.borrow().clone()
    }

    /// Sets how far all rollouts are. Readers are woken unless only counts and the words of messages have changed.
    pub fn set_rollouts(&self, states: BTreeMap<PolicyRef, RolloutState>) {
        self.rollouts.send_if_modified(|known| {
            let is_same = known.len() == states.len()
                && known.iter().zip(&states).all(|(a, b)| a.0 == b.0 && a.1.essence() == b.1.essence());
            *known = Arc::new(states);
            !is_same
        });
    }

    /// Signals the changes of [`Self::rollouts`] that [`Self::set_rollouts`] names.
    pub fn rollout_changes(&self) -> watch::Receiver<FactsByPolicy<RolloutState>> {
        self.rollouts.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envoy() -> PolicyRef {
        PolicyRef::of_cluster("envoy")
    }

    fn complete() -> RolloutState {
        RolloutState {
            looked_at: Some("old".into()),
            current: Some("old".into()),
            update: Some("old".into()),
            progress: Some(Progress::Complete("m".into())),
            updated: 3,
            ready: 3,
            ..RolloutState::default()
        }
    }

    #[test]
    fn what_was_said_of_one_revision_is_not_said_of_the_next() {
        let complete = RolloutState { is_halted: true, ..complete() };
        assert_eq!(complete.clone().now(Some("old")), complete);
        assert_eq!(complete.clone().now(None), complete, "it is not valid any more");
        let now = complete.now(Some("new"));
        assert!(matches!(now.progress, Some(Progress::NewRevision(_))), "{now:?}");
        let told = (now.current.as_deref(), now.update.as_deref(), now.is_halted, now.updated, now.ready);
        assert_eq!(told, (Some("old"), Some("new"), false, 0, 3));
        assert_eq!(RolloutState::default().now(Some("new")), RolloutState::default(), "it does not roll");
    }

    #[test]
    fn of_a_policy_nothing_is_known_before_the_controller_has_concluded() {
        let board = Board::default();
        let mut changes = board.in_force_changes();
        assert_eq!((board.in_force(&envoy()), board.rollout(&envoy())), (InForce::Unknown, None));
        let spec = InForce::Spec { uid: "u".into(), spec_hash: "a".into() };
        let facts = |fact: &InForce| BTreeMap::from([(envoy(), fact.clone())]);
        // What is set, whether readers wake, and what is known then.
        for (set, is_news, known) in [
            (facts(&spec), true, &spec),
            (facts(&spec), false, &spec),
            (facts(&InForce::Nothing), true, &InForce::Nothing),
            (BTreeMap::new(), true, &InForce::Unknown),
        ] {
            board.set_in_force(set);
            assert_eq!(changes.has_changed().ok(), Some(is_news), "{known:?}");
            changes.mark_unchanged();
            assert_eq!(board.in_force(&envoy()), *known);
        }
    }

    #[test]
    fn a_reader_wakes_for_all_but_counts_and_words() {
        let board = Board::default();
        let mut changes = board.rollout_changes();
        let progress = |progress: fn(String) -> Progress, message: &str| RolloutState {
            progress: Some(progress(message.into())),
            ..complete()
        };
        for (state, is_news) in [
            (complete(), true),
            (complete(), false),
            (RolloutState { updated: 1, ready: 2, remaining: 2, ..complete() }, false),
            (progress(Progress::Complete, "other words"), false),
            (progress(Progress::RollingOut, "m"), true),
            (progress(Progress::Halted, "m"), true),
            (RolloutState { is_halted: true, ..progress(Progress::Halted, "m") }, true),
            (complete(), true),
            (RolloutState { update: Some("new".into()), ..complete() }, true),
            (RolloutState { current: Some("new".into()), ..complete() }, true),
            (RolloutState { restarted: Some(Timestamp::UNIX_EPOCH), ..complete() }, true),
        ] {
            board.set_rollouts(BTreeMap::from([(envoy(), state.clone())]));
            assert_eq!(changes.has_changed().ok(), Some(is_news), "{state:?}");
            changes.mark_unchanged();
            assert_eq!(board.rollout(&envoy()), Some(state), "what is known is always the latest");
        }
        board.set_rollouts(BTreeMap::new());
        assert_eq!(changes.has_changed().ok(), Some(true), "the policy is gone");
    }
}
