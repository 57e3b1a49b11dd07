//! Conditions of a policy: their types, and the table from [`Readiness`] to what `status` says.
//!
//! Generic tools read them: `kubectl wait`, and Flux and Argo CD by the rules of kstatus. So `Ready` always exists;
//! `Reconciling` and `Stalled` exist only while they are true, and never both.
//!
//! kstatus reads a custom resource in this order: `metadata.deletionTimestamp`, `status.observedGeneration`, then
//! `Reconciling` and `Stalled` if they are True, then `Ready` (cli-utils, `pkg/kstatus/status`). It reads `Progressing`
//! of Deployments only. So a halted rollout is `Stalled`, too, and not `Ready`: kstatus says Failed, as it does of a
//! Deployment that exceeds its deadline. Any other state of a rollout changes no other condition: while workloads are
//! still brought up to date, kstatus says Current, because new workloads get the template as the spec says.

use super::code::Code;
use crate::outside::{beginning, escaped};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::Value;

/// The type of a condition, in the order of `status.conditions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// The summary for columns and tools: the policy works as the spec says.
    Ready,
    /// The spec is valid.
    Accepted,
    /// The policy is in effect on this server.
    Programmed,
    /// Some workloads are not injected, because of a conflict over a name of the template.
    Conflicted,
    /// The policy is in effect, with a restriction that an administrator should know.
    Degraded,
    /// The state of the rollout. Only for a policy that brings existing workloads up to date.
    Progressing,
    /// The operator is still working, or waits for a change that may come by itself.
    Reconciling,
    /// The policy needs an edit, or the server a change of its configuration.
    Stalled,
}

impl ConditionType {
    /// Every type, in order.
    pub const ALL: [ConditionType; 8] = [
        Self::Ready,
        Self::Accepted,
        Self::Programmed,
        Self::Conflicted,
        Self::Degraded,
        Self::Progressing,
        Self::Reconciling,
        Self::Stalled,
    ];

    /// The `type` as written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Accepted => "Accepted",
            Self::Programmed => "Programmed",
            Self::Conflicted => "Conflicted",
            Self::Degraded => "Degraded",
            Self::Progressing => "Progressing",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
        }
    }

    /// The longest message, in bytes. A status has 4 KiB altogether, of which conditions take up to 2.5.
    fn longest_message(self) -> usize {
        match self {
            Self::Ready => 512,
            // How far the rollout is, and three names of what it waits for.
            Self::Progressing => 320,
            // `Ready` has the full message.
            _ => 160,
        }
    }
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// The answer is not known yet.
    Unknown,
}

impl Status {
    /// The `status` as written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// The state of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Seen, without a decision.
    FirstSight,
    /// In effect.
    InForce {
        /// The conflicts: `Conflicted` or `Outranked`, with the number of workloads and the other policies.
        conflicts: Option<(Code, String)>,
        /// A restriction that an administrator should know.
        degraded: Option<(Code, String)>,
        /// A message that names the engine, and says why the preferred one does not deliver the policy.
        instead: Option<String>,
    },
    /// Kept, and without effect: `spec.suspend`.
    Suspended,
    /// Observing only: `spec.mode: Audit`.
    Audit {
        /// The effect that it would have on one stored workload.
        sample: Option<String>,
    },
    /// The spec is invalid. Nothing changes before an edit.
    Rejected {
        /// The reason.
        code: Code,
        /// The fields, and what to write instead.
        message: String,
    },
    /// The spec is valid, but cannot come into force on this server in its current configuration.
    Impossible {
        /// The reason.
        code: Code,
        /// The necessary change.
        message: String,
    },
    /// The spec is valid, but a precondition is missing that may appear without an edit: a right, the server, the end
    /// of a hold.
    Waiting {
        /// The reason.
        code: Code,
        /// The missing precondition.
        message: String,
    },
}

/// The state of a policy's rollout, in the words of a Deployment. Each has the message for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The spec asks for a new revision, and no workload has been touched.
    NewRevision(String),
    /// The operator updates workloads.
    RollingOut(String),
    /// The rollout waits for a step's pause to end, or for `spec.updateStrategy.paused` to be false.
    Paused(String),
    /// The rollout failed. No further workload is touched.
    Halted(String),
    /// All workloads that can be updated have the update revision.
    Complete(String),
}

impl Progress {
    /// The same with `note`, if there is one, after its message. A halt stays as it is, because the next leader reads its message.
    #[must_use]
    pub fn noting(self, note: &str) -> Self {
        let noted = |message: String| if note.is_empty() { message } else { format!("{message}; {note}") };
        match self {
            Self::NewRevision(message) => Self::NewRevision(noted(message)),
            Self::RollingOut(message) => Self::RollingOut(noted(message)),
            Self::Paused(message) => Self::Paused(noted(message)),
            Self::Complete(message) => Self::Complete(noted(message)),
            Self::Halted(message) => Self::Halted(message),
        }
    }

    /// The same with `note`, if there is one, before its message.
    #[must_use]
    pub fn after(mut self, note: &str) -> Self {
        let (Self::NewRevision(message)
        | Self::RollingOut(message)
        | Self::Paused(message)
        | Self::Halted(message)
        | Self::Complete(message)) = &mut self;
        if !note.is_empty() {
            *message = format!("{note}; {message}");
        }
        self
    }

    /// The reason of the condition `Progressing`.
    pub fn code(&self) -> Code {
        self.row().1
    }

    /// The condition `Progressing`. A pause is Unknown, as that of a Deployment.
    fn row(&self) -> (Status, Code, &str) {
        match self {
            Self::NewRevision(message) => (Status::True, Code::NewRevision, message),
            Self::RollingOut(message) => (Status::True, Code::RollingOut, message),
            Self::Paused(message) => (Status::Unknown, Code::Paused, message),
            Self::Halted(message) => (Status::False, Code::Halted, message),
            Self::Complete(message) => (Status::True, Code::Complete, message),
        }
    }
}

/// The conditions for `outcome` and the state `progress` of the rollout at `generation`, after the conditions
/// `previous`. `progress` is none for a policy that does not bring existing workloads up to date.
///
/// # Guarantees
/// Pure and in a fixed order. `lastTransitionTime` moves only when the status flips. Applied to its own result it changes
/// nothing, so an unchanged status is not written. At most 2.5 KiB of JSON.
pub fn conditions(
    outcome: &Readiness,
    progress: Option<&Progress>,
    previous: &[Condition],
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    let condition = |type_: ConditionType| {
        let (status, code, message) = row(outcome, progress, type_)?;
        let before = previous.iter().find(|before| before.type_ == type_.as_str());
        let since = before.filter(|before| before.status == status.as_str()).map(|before| &before.last_transition_time);
        Some(Condition {
            type_: type_.as_str().to_owned(),
            status: status.as_str().to_owned(),
            reason: code.name().to_owned(),
            // A message may repeat what users have written, and reaches terminals.
            message: shortened(escaped(&format!("{code}: {message}")).into_owned(), type_.longest_message()),
            observed_generation: Some(generation),
            last_transition_time: since.cloned().unwrap_or_else(|| whole_seconds(now)),
        })
    };
    ConditionType::ALL.into_iter().filter_map(condition).collect()
}

/// One cell of the table of states: the condition `type_` for `outcome` and `progress`; none if it is absent.
fn row<'a>(
    outcome: &'a Readiness,
    progress: Option<&'a Progress>,
    type_: ConditionType,
) -> Option<(Status, Code, &'a str)> {
    use ConditionType as T;
    use Status::{False, True, Unknown};
    const VALID: (Status, Code, &str) = (True, Code::Valid, "the spec is valid");
    const SEEN: (Status, Code, &str) = (Unknown, Code::Reconciling, "seen by the operator, which is working on it");
    if type_ == T::Progressing {
        return progress.map(Progress::row);
    }
    if let (Readiness::InForce { .. }, Some(Progress::Halted(message))) = (outcome, progress) {
        match type_ {
            T::Ready => return Some((False, Code::Halted, message)),
            T::Stalled => return Some((True, Code::Halted, "the rollout is halted, as `Progressing` says")),
            _ => {}
        }
    }
    Some(match (outcome, type_) {
        (Readiness::FirstSight, T::Ready | T::Accepted | T::Programmed) => SEEN,
        (Readiness::FirstSight, T::Reconciling) => (True, SEEN.1, SEEN.2),
        (Readiness::Rejected { code, message }, T::Ready | T::Accepted | T::Programmed) => (False, *code, message),
        (Readiness::Rejected { code, message }, T::Stalled) => (True, *code, message),
        (_, T::Accepted) => VALID,
        (Readiness::InForce { conflicts: Some((code, message)), .. }, T::Ready | T::Conflicted) => {
            (True, *code, message)
        }
        (Readiness::InForce { degraded: Some((code, message)), .. }, T::Degraded) => (True, *code, message),
        (Readiness::InForce { degraded: Some(_), .. }, T::Ready) => {
            (True, Code::Programmed, "in effect, with the restriction in `Degraded`")
        }
        (Readiness::InForce { instead: Some(instead), .. }, T::Ready | T::Programmed) => {
            (True, Code::Programmed, instead)
        }
        (Readiness::InForce { .. }, T::Ready | T::Programmed) => {
            (True, Code::Programmed, "in effect: new workloads that match get the template")
        }
        (Readiness::Suspended, T::Ready) => (True, Code::Suspended, "`spec.suspend` is true: kept, and without effect"),
        (Readiness::Suspended, T::Programmed) => (False, Code::Suspended, "`spec.suspend` is true"),
        (Readiness::Audit { sample: Some(sample) }, T::Ready) => (True, Code::Audit, sample),
        (Readiness::Audit { .. }, T::Ready) => {
            (True, Code::Audit, "`spec.mode` is `Audit`: observing, and changing nothing")
        }
        (Readiness::Audit { .. }, T::Programmed) => (False, Code::Audit, "`spec.mode` is `Audit`"),
        (Readiness::Impossible { code, message } | Readiness::Waiting { code, message }, T::Ready | T::Programmed) => {
            (False, *code, message)
        }
        (Readiness::Impossible { code, message }, T::Stalled)
        | (Readiness::Waiting { code, message }, T::Reconciling) => (True, *code, message),
        _ => return None,
    })
}

/// `now` in whole seconds, as the API stores times: a lost fraction would look like a change of the status.
fn whole_seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

fn shortened(mut message: String, limit: usize) -> String {
    const MARK: &str = "…";
    if message.len() > limit {
        message.truncate(beginning(&message, limit - MARK.len()).len());
        message.push_str(MARK);
    }
    message
}

/// The condition of that type in `status`, the status of a policy as JSON.
pub fn condition_in<'a>(status: &'a Value, type_: &str) -> Option<&'a Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == type_)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATION: i64 = 7;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn outcomes() -> Vec<Readiness> {
        let (code, message) = (Code::MissingRight, "cannot watch ü".repeat(500));
        vec![
            Readiness::FirstSight,
            Readiness::InForce { conflicts: None, degraded: None, instead: None },
            Readiness::InForce { conflicts: None, degraded: None, instead: Some("by Webhook, since ..".into()) },
            Readiness::InForce {
                conflicts: Some((Code::Conflicted, "with `b`: container `c`".into())),
                degraded: None,
                instead: None,
            },
            Readiness::InForce {
                conflicts: None,
                degraded: Some((Code::PodsCannotBypass, message.clone())),
                instead: None,
            },
            Readiness::InForce {
                conflicts: Some((Code::Outranked, message.clone())),
                degraded: Some((Code::PodsCannotBypass, message.clone())),
                instead: Some(message.clone()),
            },
            Readiness::Suspended,
            Readiness::Audit { sample: None },
            Readiness::Audit { sample: Some("Deployment `a/b` would get container `c`".into()) },
            Readiness::Rejected { code: Code::InvalidField, message: message.clone() },
            Readiness::Impossible { code: Code::EngineUnavailable, message: message.clone() },
            Readiness::Waiting { code, message },
        ]
    }

    /// No rollout, and one in each state.
    fn rollouts() -> Vec<Option<Progress>> {
        let message = || "12 of 60 workloads ü".repeat(100);
        vec![
            None,
            Some(Progress::NewRevision(message())),
            Some(Progress::RollingOut(message())),
            Some(Progress::Paused(message())),
            Some(Progress::Halted(message())),
            Some(Progress::Complete(message())),
        ]
    }

    /// Every outcome with every state of a rollout.
    fn states() -> Vec<(Readiness, Option<Progress>)> {
        let with = |outcome: &Readiness| rollouts().into_iter().map(|progress| (outcome.clone(), progress)).collect();
        outcomes().iter().flat_map(|outcome| -> Vec<_> { with(outcome) }).collect()
    }

    /// No conditions, the conditions of each state, and conditions that we never write.
    fn histories() -> Vec<Vec<Condition>> {
        let of = |(outcome, progress): &(Readiness, Option<Progress>)| {
            conditions(outcome, progress.as_ref(), &[], GENERATION - 1, at(100))
        };
        let mut histories: Vec<_> = states().iter().map(of).collect();
        let mut strange = histories[0].clone();
        strange.extend(histories.iter().flatten().find(|condition| condition.type_ == "Stalled").cloned());
        strange.extend(histories.iter().flatten().find(|condition| condition.type_ == "Ready").cloned());
        strange.push(Condition { type_: "Foreign".into(), status: "True".into(), ..histories[0][0].clone() });
        strange.reverse();
        histories.extend([Vec::new(), strange]);
        histories
    }

    fn status_of(conditions: &[Condition], type_: ConditionType) -> Option<&str> {
        conditions.iter().find(|condition| condition.type_ == type_.as_str()).map(|condition| condition.status.as_str())
    }

    /// The reading of an object by kstatus, if its generation has been observed.
    fn kstatus(conditions: &[Condition]) -> &'static str {
        let is = |type_, status| status_of(conditions, type_) == Some(status);
        if is(ConditionType::Reconciling, "True") {
            "InProgress"
        } else if is(ConditionType::Stalled, "True") {
            "Failed"
        } else if is(ConditionType::Ready, "True") {
            "Current"
        } else {
            "InProgress"
        }
    }

    /// A state, the conditions before it, and the conditions after it.
    struct Case {
        outcome: Readiness,
        progress: Option<Progress>,
        old: Vec<Condition>,
        now: Vec<Condition>,
    }

    /// Every state after every history.
    fn all() -> Vec<Case> {
        let histories = histories();
        let after = |(outcome, progress): (Readiness, Option<Progress>)| {
            let case = |old: &Vec<Condition>| Case {
                now: conditions(&outcome, progress.as_ref(), old, GENERATION, at(200)),
                outcome: outcome.clone(),
                progress: progress.clone(),
                old: old.clone(),
            };
            histories.iter().map(case).collect::<Vec<_>>()
        };
        states().into_iter().flat_map(after).collect()
    }

    /// The checks of Flux (`fluxcd/pkg`, `runtime/conditions/check`), by their numbers. Two differ on purpose: at first
    /// sight `Ready` is Unknown and not False (3), since nothing is known; and the generation at the root is what we
    /// have looked at, also while we wait for something (10).
    #[test]
    fn the_checks_of_flux_hold_for_every_outcome_after_every_history() {
        use ConditionType::{Ready, Reconciling, Stalled};
        for Case { outcome, now, .. } in all() {
            let ready = status_of(&now, Ready);
            let (reconciling, stalled) = (status_of(&now, Reconciling), status_of(&now, Stalled));
            assert!(ready != Some("True") || (reconciling.is_none() && stalled.is_none()), "1: {outcome:?}");
            assert_eq!(now.iter().filter(|condition| condition.type_ == "Ready").count(), 1, "2: {outcome:?}");
            let first_sight = outcome == Readiness::FirstSight && ready == Some("Unknown");
            assert!(reconciling.is_none() || ready == Some("False") || first_sight, "3: {outcome:?}");
            assert!(stalled.is_none() || ready == Some("False"), "4: {outcome:?}");
            assert!(reconciling.is_none() || stalled.is_none(), "5: {outcome:?}");
            for condition in &now {
                assert!(condition.observed_generation <= Some(GENERATION), "6: {outcome:?}");
                assert_eq!(condition.observed_generation, Some(GENERATION), "7, 8, 9, 10: {outcome:?}");
            }
            assert!(
                ready != Some("Unknown") || reconciling == Some("True"),
                "Ready is Unknown only while we work on it: {outcome:?}"
            );
        }
    }

    #[test]
    fn a_condition_with_a_bad_meaning_is_there_only_while_true() {
        for Case { outcome, now, .. } in all() {
            for condition in &now {
                let type_ = ConditionType::ALL.into_iter().find(|type_| type_.as_str() == condition.type_);
                use ConditionType::{Accepted, Programmed, Progressing, Ready};
                let always = [Ready, Accepted, Programmed, Progressing].map(Some).contains(&type_);
                assert!(type_.is_some() && (always || condition.status == "True"), "{outcome:?}: {condition:?}");
            }
        }
    }

    #[test]
    fn the_table_of_states_is_that_of_the_documentation() {
        let shown = |outcome: &Readiness| {
            let conditions = conditions(outcome, None, &[], GENERATION, at(200));
            let all: Vec<_> = conditions
                .iter()
                .map(|condition| format!("{}={} {}", condition.type_, condition.status, condition.reason))
                .collect();
            (all.join(", "), kstatus(&conditions))
        };
        let tables: Vec<_> = outcomes().iter().map(shown).collect();
        let expected = [
            (
                "Ready=Unknown Reconciling, Accepted=Unknown Reconciling, Programmed=Unknown Reconciling, Reconciling=True Reconciling",
                "InProgress",
            ),
            ("Ready=True Programmed, Accepted=True Valid, Programmed=True Programmed", "Current"),
            // By another engine than the first choice. Only the message differs.
            ("Ready=True Programmed, Accepted=True Valid, Programmed=True Programmed", "Current"),
            (
                "Ready=True Conflicted, Accepted=True Valid, Programmed=True Programmed, Conflicted=True Conflicted",
                "Current",
            ),
            (
                "Ready=True Programmed, Accepted=True Valid, Programmed=True Programmed, Degraded=True PodsCannotBypass",
                "Current",
            ),
            (
                "Ready=True Outranked, Accepted=True Valid, Programmed=True Programmed, Conflicted=True Outranked, Degraded=True PodsCannotBypass",
                "Current",
            ),
            ("Ready=True Suspended, Accepted=True Valid, Programmed=False Suspended", "Current"),
            ("Ready=True Audit, Accepted=True Valid, Programmed=False Audit", "Current"),
            ("Ready=True Audit, Accepted=True Valid, Programmed=False Audit", "Current"),
            (
                "Ready=False InvalidField, Accepted=False InvalidField, Programmed=False InvalidField, Stalled=True InvalidField",
                "Failed",
            ),
            (
                "Ready=False EngineUnavailable, Accepted=True Valid, Programmed=False EngineUnavailable, Stalled=True EngineUnavailable",
                "Failed",
            ),
            (
                "Ready=False MissingRight, Accepted=True Valid, Programmed=False MissingRight, Reconciling=True MissingRight",
                "InProgress",
            ),
        ];
        let tables: Vec<_> = tables.iter().map(|(table, status)| (table.as_str(), *status)).collect();
        assert_eq!(tables, expected);
    }

    #[test]
    fn a_rollout_is_shown_beside_the_other_conditions_and_only_a_halt_changes_them() {
        let in_force = Readiness::InForce { conflicts: None, degraded: None, instead: None };
        let before = conditions(&in_force, None, &[], GENERATION, at(200));
        for (progress, shown, tool) in [
            (Progress::NewRevision("m".into()), "True NewRevision SCP0400: m", "Current"),
            (Progress::RollingOut("m".into()), "True RollingOut SCP0401: m", "Current"),
            (Progress::Paused("m".into()), "Unknown Paused SCP0402: m", "Current"),
            (Progress::Halted("m".into()), "False Halted SCP0403: m", "Failed"),
            (Progress::Complete("m".into()), "True Complete SCP0404: m", "Current"),
        ] {
            let mut now = conditions(&in_force, Some(&progress), &before, GENERATION, at(200));
            assert_eq!(kstatus(&now), tool, "{progress:?}");
            let own = now.iter().position(|condition| condition.type_ == "Progressing").unwrap();
            let own = now.remove(own);
            assert_eq!(format!("{} {} {}", own.status, own.reason, own.message), shown);
            let table: Vec<_> = now.iter().map(|condition| [&*condition.type_, &condition.status]).collect();
            match progress {
                Progress::Halted(_) => assert_eq!(
                    table,
                    [["Ready", "False"], ["Accepted", "True"], ["Programmed", "True"], ["Stalled", "True"]]
                ),
                _ => assert_eq!(now, before),
            }
            assert_eq!(conditions(&in_force, None, &now, GENERATION, at(200)), before, "without a rollout again");
        }
        // A halt does not hide why a policy is not in effect.
        for outcome in outcomes().iter().filter(|outcome| !matches!(outcome, Readiness::InForce { .. })) {
            let halted = conditions(outcome, Some(&Progress::Halted("m".into())), &[], GENERATION, at(200));
            let plain = conditions(outcome, None, &[], GENERATION, at(200));
            assert_eq!(kstatus(&halted), kstatus(&plain), "{outcome:?}");
            assert_eq!(halted[0], plain[0], "{outcome:?}");
        }
    }

    #[test]
    fn the_time_of_a_transition_moves_only_when_the_status_flips() {
        for Case { outcome, old, now, .. } in all() {
            for condition in &now {
                // Of two conditions with one type, which are invalid, the first counts.
                let before = old
                    .iter()
                    .find(|before| before.type_ == condition.type_)
                    .filter(|before| before.status == condition.status);
                let expected = before.map_or(at(200), |before| before.last_transition_time.0);
                assert_eq!(condition.last_transition_time.0, expected, "{outcome:?}: {}", condition.type_);
            }
        }
    }

    #[test]
    fn the_same_outcome_again_changes_nothing() {
        for Case { outcome, progress, now, .. } in all() {
            let again = conditions(&outcome, progress.as_ref(), &now, GENERATION, at(300));
            assert_eq!(again, now);
        }
    }

    #[test]
    fn messages_begin_with_a_code_and_stay_short() {
        for Case { now, .. } in all() {
            let size = serde_json::to_string(&now).unwrap().len();
            assert!(size <= 2560, "{size} bytes");
            for condition in now {
                let code = Code::ALL.iter().find(|code| code.name() == condition.reason).unwrap();
                assert!(condition.message.starts_with(&format!("{code}: ")), "{}", condition.message);
            }
        }
    }

    #[test]
    fn a_fraction_of_a_second_is_not_written() {
        let now = "2020-02-02T02:02:02.123456789Z".parse().unwrap();
        let list = conditions(&Readiness::Suspended, None, &[], 1, now);
        let json = serde_json::to_value(&list).unwrap();
        assert_eq!(json[0]["lastTransitionTime"], "2020-02-02T02:02:02Z");
        assert_eq!(serde_json::from_value::<Vec<Condition>>(json).unwrap(), list);
    }
}
