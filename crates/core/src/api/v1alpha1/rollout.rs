//! How a policy brings existing workloads up to date.

use super::LabelSelector;
use crate::api::format;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::Duration;

/// What happens to workloads that exist already.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateStrategy {
    /// `OnDelete` (default): a workload keeps what it has until it is created again. `RollingUpdate`: the operator updates
    /// the matched workloads, as `rollingUpdate` says. A policy without `template` cannot have `RollingUpdate`. The
    /// annotation `scpol.dev/rollout: "false"` opts out a namespace, a workload or a pod.
    #[serde(rename = "type")]
    pub type_: UpdateStrategyType,

    /// The pace and the steps of a rollout. Without `type: RollingUpdate` it is refused.
    ///
    /// Default: absent, every field at its default. Example: `{maxUnavailable: 2, minReadySeconds: 30}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,

    /// What happens to a workload whose sidecar was edited, as by `kubectl set image '*=..'`, or by a webhook that rewrites
    /// images. `Keep` (default): it stays as it is; `status.edited` counts it. `Restore`: rollouts restore the content of
    /// the revision, at the pace of `rollingUpdate`, also after they are complete. In a running pod they restore images,
    /// labels and annotations, and evict no pod for that. Content that is edited again and again is left after a few times.
    /// Without `type: RollingUpdate`, `Restore` is refused.
    #[serde(skip_serializing_if = "EditedContent::is_kept")]
    pub edited: EditedContent,

    /// True: the rollout stays where it is. No further workload is touched, and no further namespace gets the update
    /// revision. `scpol rollout pause` sets it, `scpol rollout resume` clears it.
    ///
    /// Default: false.
    pub paused: bool,
}

impl UpdateStrategy {
    /// True if and only if the operator brings existing workloads up to date.
    pub fn rolls(&self) -> bool {
        self.type_ == UpdateStrategyType::RollingUpdate
    }
}

/// What rollouts do with content that was edited.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EditedContent {
    /// It stays.
    #[default]
    Keep,
    /// It becomes that of the revision again.
    Restore,
}

impl EditedContent {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_kept(&self) -> bool {
        *self == Self::Keep
    }
}

/// Whether the operator brings existing workloads up to date.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateStrategyType {
    /// It does not.
    #[default]
    OnDelete,
    /// It does.
    RollingUpdate,
}

/// The pace and the steps of a rollout.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// How pods are updated. `InPlaceOrRecreate` (default): in place where a running pod may change that way (images,
    /// labels, annotations, and from Kubernetes 1.33 on cpu and memory), else by eviction. `Recreate`: always by eviction.
    pub pod_update: PodUpdate,

    /// How many of the matched workloads may be unavailable at once: a number, or a percentage, rounded down, but at
    /// least 1. Workloads that are unavailable for another reason count, too.
    ///
    /// Default: 1. From 1 to 1000000, or from `1%` to `100%`. Example: `25%`.
    #[schemars(schema_with = "max_unavailable")]
    pub max_unavailable: MaxUnavailable,

    /// How many of the matched workloads of one namespace may be unavailable at once: a number, or a percentage of those
    /// of the namespace, rounded down, but at least 1. `maxUnavailable` limits all namespaces together.
    ///
    /// Default: absent, only `maxUnavailable` counts. From 1 to 1000000, or from `1%` to `100%`. Example: `1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "max_unavailable")]
    pub max_unavailable_per_namespace: Option<MaxUnavailable>,

    /// How long a replacement must be Ready before it counts as available, in seconds.
    ///
    /// Default: 0. From 0 to 3600. Example: `30`.
    #[schemars(range(min = 0, max = 3600))]
    pub min_ready_seconds: i32,

    /// How long a replacement may take to become available, in seconds. After that the rollout has failed, and
    /// `onFailure` decides. It must be greater than `minReadySeconds`.
    ///
    /// Default: 600. From 1 to 86400. Example: `900`.
    #[schemars(range(min = 1, max = 86_400))]
    pub progress_deadline_seconds: i32,

    /// What happens when a replacement is not available in time, or when its sidecar does not start. `Halt` (default):
    /// no further workload is touched. `Undo`: the rollout goes back to the last revision that was complete.
    pub on_failure: OnFailure,

    /// The number of failed workloads at which the rollout has failed, and `onFailure` decides. Before that, only the
    /// namespaces of failed workloads wait: no further workload there is touched until `scpol rollout resume`.
    ///
    /// Default: 1. From 1 to 100. Example: `3`.
    #[serde(skip_serializing_if = "is_one")]
    #[schemars(range(min = 1, max = 100))]
    pub failure_threshold: i32,

    /// The order in which workloads get the update revision, at most 32 steps. Each step has exactly one of `namespaces`,
    /// `namespaceSelector`, `workloadSelector`, `pause`, `percent` and `percentOfWorkloads`. Steps add workloads, and never
    /// remove one. After the last step all others follow. New workloads that no step has reached get the current revision.
    ///
    /// Default: none, which means all workloads at once. Example: `[{namespaces: ["canary-*"]}, {pause: {duration:
    /// 30m}}, {percent: 25}]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub steps: Vec<Step>,
}

impl Default for RollingUpdate {
    fn default() -> Self {
        Self {
            pod_update: PodUpdate::default(),
            max_unavailable: MaxUnavailable::default(),
            max_unavailable_per_namespace: None,
            min_ready_seconds: 0,
            progress_deadline_seconds: 600,
            on_failure: OnFailure::default(),
            failure_threshold: 1,
            steps: Vec::new(),
        }
    }
}

impl RollingUpdate {
    /// How long a replacement must be Ready before it counts as available.
    pub fn min_ready(&self) -> Duration {
        seconds(self.min_ready_seconds)
    }

    /// How long a replacement may take to become available.
    pub fn progress_deadline(&self) -> Duration {
        seconds(self.progress_deadline_seconds)
    }

    /// The number of failed workloads at which the rollout has failed: at least 1.
    pub fn failure_threshold(&self) -> usize {
        usize::try_from(self.failure_threshold).unwrap_or_default().max(1)
    }
}

/// `number` of seconds; none for a negative number, which the schema rejects.
fn seconds(number: i32) -> Duration {
    Duration::from_secs(u64::try_from(number).unwrap_or_default())
}

fn is_one(number: &i32) -> bool {
    *number == 1
}

/// How pods are updated.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodUpdate {
    /// In place where a running pod may change that way, else by eviction.
    #[default]
    InPlaceOrRecreate,
    /// By eviction.
    Recreate,
}

/// What happens when a rollout fails.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It stops.
    #[default]
    Halt,
    /// It goes back to the last revision that was complete.
    Undo,
}

/// How many workloads may be unavailable at once.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum MaxUnavailable {
    /// That many, at least 1.
    Count(i32),
    /// A share of all, from `1%` to `100%`.
    Percentage(String),
}

impl Default for MaxUnavailable {
    fn default() -> Self {
        Self::Count(1)
    }
}

impl MaxUnavailable {
    /// How many of `total` workloads may be unavailable at once: at least 1. A percentage is rounded down. A value that
    /// the schema rejects counts as 1.
    pub fn of(&self, total: usize) -> usize {
        let number = match self {
            Self::Count(count) => usize::try_from(*count).unwrap_or_default(),
            Self::Percentage(text) => {
                let percent: usize = text.strip_suffix('%').and_then(|number| number.parse().ok()).unwrap_or_default();
                total.saturating_mul(percent.min(100)) / 100
            }
        };
        number.max(1)
    }
}

/// One step of a rollout. Exactly one field is present.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = one_field)]
pub struct Step {
    /// Namespaces that get the update revision in this step, as names or globs like those of `spec.namespaces`. At least
    /// one entry. Namespaces that the policy does not match stay as they are. Default: absent. Example: `["canary-*"]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), inner(length(min = 1, max = 63), regex(pattern = format::GLOB)))]
    pub namespaces: Option<Vec<String>>,

    /// Labels of the Namespaces that get the update revision in this step. Default: absent. Example:
    /// `{matchLabels: {tier: canary}}`. A selector without a requirement is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,

    /// Labels of the workloads that get the update revision in this step, in all namespaces that the policy matches: labels
    /// of the object that is injected, such as the Deployment or the pod. Default: absent. Example:
    /// `{matchLabels: {track: canary}}`. A selector without a requirement is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_selector: Option<LabelSelector>,

    /// The rollout waits in this step, for a time or for a command. Default: absent. Example: `{duration: 30m}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,

    /// The percentage of the matched namespaces that have the update revision after this step. Namespaces are added in
    /// the order of a hash of their names. It must be greater than `percent` of all earlier steps. Default: absent. From
    /// 1 to 100. Example: `25`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub percent: Option<i32>,

    /// The percentage of the workloads that have the update revision after this step, in all namespaces that the policy
    /// matches. A hash of the namespace and the name of the owner decides, so the share is about that, not exactly. It
    /// must be greater than `percentOfWorkloads` of all earlier steps. Default: absent. From 1 to 100. Example: `10`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub percent_of_workloads: Option<i32>,
}

/// The fields of a [`Step`].
pub(in crate::api) const OF_A_STEP: [&str; 6] =
    ["namespaces", "namespaceSelector", "workloadSelector", "pause", "percent", "percentOfWorkloads"];

/// The content of a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepAction<'a> {
    /// Namespaces, by names or globs.
    Namespaces(&'a [String]),
    /// Namespaces, by labels.
    Selector(&'a LabelSelector),
    /// A pause.
    Pause(&'a Pause),
    /// A percentage of the namespaces, from 1 to 100.
    Percent(i32),
    /// Workloads, by labels.
    Workloads(&'a LabelSelector),
    /// A percentage of the workloads, from 1 to 100.
    PercentOfWorkloads(i32),
}

impl Step {
    /// The content of the step; none if the step has no field or several ones, which the rules reject.
    pub fn action(&self) -> Option<StepAction<'_>> {
        let actions = [
            self.namespaces.as_deref().map(StepAction::Namespaces),
            self.namespace_selector.as_ref().map(StepAction::Selector),
            self.workload_selector.as_ref().map(StepAction::Workloads),
            self.pause.as_ref().map(StepAction::Pause),
            self.percent.map(StepAction::Percent),
            self.percent_of_workloads.map(StepAction::PercentOfWorkloads),
        ];
        let mut given = actions.into_iter().flatten();
        given.next().filter(|_| given.next().is_none())
    }
}

/// A pause of a rollout.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// How long the rollout waits, in hours, minutes and seconds. From `1s` to `720h`. Default: absent, until `scpol
    /// rollout resume`. Example: `1h30m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 24), regex(pattern = format::DURATION))]
    pub duration: Option<String>,
}

impl Pause {
    /// The length of the pause; none if it lasts until it is resumed, or if it is malformed, which the schema rejects.
    pub fn length(&self) -> Option<Duration> {
        format::duration(self.duration.as_deref()?)
    }
}

/// Refuses several fields of a step. A step without a field is left to the rule in CEL, because a server would report
/// that the first of the fields is required.
fn one_field(schema: &mut Schema) {
    let alone = OF_A_STEP.map(|field| json!({ "required": [field] }));
    let none = json!({ "maxProperties": 0 });
    schema.insert("oneOf".to_owned(), alone.into_iter().chain([none]).collect());
}

fn max_unavailable(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true, "minimum": 1, "maximum": 1_000_000, "maxLength": 4,
        "pattern": format::PERCENTAGE })
}

#[cfg(test)]
mod tests {
    use super::super::SidecarPolicySpec;
    use super::*;
    use serde_json::Value;

    fn spec(value: Value) -> SidecarPolicySpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_rollout_has_its_defaults_filled_in_and_exists_only_for_rolling_update() {
        for none in [json!({}), json!({"updateStrategy": {}}), json!({"updateStrategy": {"type": "OnDelete"}})] {
            assert_eq!(spec(none.clone()).rolling_update(), None, "{none}");
            assert_eq!(spec(none).revision_history_limit(), 10);
        }
        let by_default = RollingUpdate {
            pod_update: PodUpdate::InPlaceOrRecreate,
            max_unavailable: MaxUnavailable::Count(1),
            max_unavailable_per_namespace: None,
            min_ready_seconds: 0,
            progress_deadline_seconds: 600,
            on_failure: OnFailure::Halt,
            failure_threshold: 1,
            steps: Vec::new(),
        };
        for rolling in [Value::Null, json!({})] {
            let strategy = json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}});
            assert_eq!(spec(strategy).rolling_update().as_ref(), Some(&by_default));
        }
        let given = json!({
            "podUpdate": "Recreate", "maxUnavailable": "25%", "minReadySeconds": 30, "progressDeadlineSeconds": 90,
            "maxUnavailablePerNamespace": 2, "failureThreshold": 3,
            "onFailure": "Undo", "steps": [{"namespaces": ["canary-*"]}, {"pause": {"duration": "1h30m"}}, {"pause": {}}, {"percent": 5},
                {"workloadSelector": {"matchLabels": {"track": "canary"}}}, {"percentOfWorkloads": 10}],
        });
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": given, "paused": true});
        let spec = spec(json!({"updateStrategy": strategy, "revisionHistoryLimit": 0}));
        let rolling = spec.rolling_update().unwrap();
        assert_eq!(serde_json::to_value(&rolling).unwrap(), given, "all is kept");
        assert!(spec.is_paused() && spec.revision_history_limit() == 0);
        assert_eq!([rolling.min_ready(), rolling.progress_deadline()], [30, 90].map(Duration::from_secs));
        let lengths = rolling.steps.iter().map(|step| match step.action() {
            Some(StepAction::Pause(pause)) => pause.length(),
            _ => None,
        });
        assert_eq!(lengths.collect::<Vec<_>>(), [None, Some(Duration::from_secs(5400)), None, None, None, None]);
        assert_eq!(rolling.steps[3].action(), Some(StepAction::Percent(5)));
        assert!(matches!(rolling.steps[4].action(), Some(StepAction::Workloads(_))));
        assert_eq!(rolling.steps[5].action(), Some(StepAction::PercentOfWorkloads(10)));
        assert_eq!(Step::default().action(), None);
        assert_eq!(Step { percent: Some(5), ..rolling.steps[1].clone() }.action(), None);
    }

    #[test]
    fn at_least_one_workload_may_be_unavailable_and_a_percentage_is_rounded_down() {
        for (value, total, expected) in [
            (json!(1), 0, 1),
            (json!(1), 10, 1),
            (json!(20), 10, 20),
            (json!("1%"), 10, 1),
            (json!("25%"), 10, 2),
            (json!("29%"), 10, 2),
            (json!("99%"), 199, 197),
            (json!("100%"), 10, 10),
            (json!("100%"), 0, 1),
            // Values that the schema rejects.
            (json!(0), 10, 1),
            (json!(-3), 10, 1),
            (json!("900%"), 10, 10),
            (json!("many"), 10, 1),
        ] {
            let most: MaxUnavailable = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(most.of(total), expected, "{value} of {total}");
            assert_eq!(serde_json::to_value(&most).unwrap(), value);
        }
    }
}
