//! What the operator says about a policy.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the operator has to say about a policy. Written by the operator only: for counts and the words of
/// messages at most every 10 s, for all else at once.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct SidecarPolicyStatus {
    /// `Ready` (the summary), `Accepted` (the spec is valid), `Programmed` (in effect here); and, only when true,
    /// `Conflicted`, `Degraded`, `Reconciling`, `Stalled`. With `updateStrategy.type: RollingUpdate` also `Progressing`:
    /// the state of the rollout. The reason is the name of a code; the message starts with its number.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The `metadata.generation` that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// A hash of the spec that this status is about, as the operator parsed it: 16 hex digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_spec_hash: Option<String>,

    /// The engine that delivers the template; absent while the policy is not in effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,

    /// The initializer name under which the policy is registered, on the Initializer engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initializer_name: Option<String>,

    /// The hash of the current template, as in the marker annotation `injected.scpol.dev/<policy>` of workloads: 16 hex
    /// digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_hash: Option<String>,

    /// How many stored workloads the policy matches: `injected`, `edited`, `outdated` and `missed` together.
    pub matched: i64,

    /// How many of the matched have the current template.
    pub injected: i64,

    /// How many of the matched have the template, and its content was changed since, as by `kubectl set image '*=..'`. They
    /// stay as they are, unless `updateStrategy.edited` is `Restore`.
    #[serde(skip_serializing_if = "is_zero")]
    pub edited: i64,

    /// How many of the matched have an earlier template: they were created before the policy was edited.
    pub outdated: i64,

    /// How many of the matched have no template of this policy: they were created before the policy, or could not be
    /// injected.
    pub missed: i64,

    /// How many of the missed could not be injected.
    pub failed: i64,

    /// How many objects wait for this policy's initializer at the moment. They are not among the matched.
    pub pending: i64,

    /// The hash of the last revision whose rollout was complete: 16 hex digits. Absent without
    /// `updateStrategy.type: RollingUpdate`, as are `updateRevision`, `updated`, `ready` and `halted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,

    /// The hash of the revision that the spec asks for now: 16 hex digits. A rollout is complete when it is equal to
    /// `currentRevision`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_revision: Option<String>,

    /// How many of the matched workloads have the update revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated: Option<i64>,

    /// How many of the matched workloads are available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<i64>,

    /// True if the rollout is halted: no further workload is touched before an edit of the content, or `scpol rollout resume` or `undo`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub halted: bool,

    /// The time of the latest `scpol rollout restart` that the rollout follows, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<String>,

    /// The latest workloads that could not be injected, at most 5.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// A workload that could not be injected.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Its kind. Example: `Deployment`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The code of the reason. Example: `SCP0200`.
    pub code: String,
    /// The reason.
    pub message: String,
    /// When, in RFC 3339.
    pub time: String,
}
