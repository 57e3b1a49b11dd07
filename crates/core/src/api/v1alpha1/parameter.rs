//! Parameters: single values of a template that the author of a workload sets, within bounds.

use super::format;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A value of the template that differs between workloads.
///
/// The value comes from the first that is there: an overlay (`overridable`), the annotation of the pod template or the workload, the annotation or
/// label of the Namespace (`fromNamespace`), the `expression`, the template itself. A value that does not fit is a failure
/// of the policy for this workload, as `failurePolicy` says; the next source is not asked.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Parameter {
    /// The name, for messages and for `$(scpol.NAME)` in the template. Example: `memory`.
    #[schemars(length(min = 1, max = 63), regex(pattern = format::LABEL))]
    pub name: String,

    /// What the parameter is for, in a sentence. `scpol parameters` shows it. Default: none. Example: `Memory limit of the
    /// proxy`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub description: String,

    /// What values are: `String` (default), `Integer`, `Boolean` (`true` or `false`), `Quantity` (`500m`, `64Mi`), or
    /// `Duration` (`30s`, `1h30m`).
    #[serde(default, skip_serializing_if = "is_default")]
    pub r#type: ParameterType,

    /// The places of the template that get the value, at most 8. Items of a list are named in brackets. A place that names a
    /// whole container, volume or variable is for `Boolean`: `false` leaves it out. Each `$(scpol.NAME)` in an argument, a
    /// command or the value of a variable of the template is a place, too. Example: `["containers[envoy].resources.limits.memory"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 512)))]
    pub paths: Vec<String>,

    /// The annotation by which the author of a workload sets the value, on the pod template or on the workload; the pod
    /// template wins. `""`: the author may not. Default: `<policy>.scpol.dev/<name>`. Example: `proxy.example.com/memory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub annotation: Option<String>,

    /// The smallest value of an `Integer`, a `Quantity` or a `Duration`. Default: none. Example: `64Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bound")]
    pub minimum: Option<Bound>,

    /// The largest value of an `Integer`, a `Quantity` or a `Duration`. Default: none. Example: `1Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bound")]
    pub maximum: Option<Bound>,

    /// The values of a `String`, at most 64. Default: any. Example: `[debug, info, warn]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 1024)))]
    pub r#enum: Vec<String>,

    /// A regular expression (RE2) that the whole of a `String` must match. Default: none. Example: `[a-z]+`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub pattern: Option<String>,

    /// The most characters of a `String`, from 1 to 1024. Default: 1024. Example: `63`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_length: Option<i32>,

    /// Whether the annotation or the label of that key on the Namespace counts where the workload has no such annotation.
    /// Of the two, the annotation wins. It needs an `annotation`. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_namespace: bool,

    /// Whether the author of a workload may set the value by an overlay, too: a container of the sidecar's name that has only such
    /// values, and no image or `image: auto`. It is for the image, variables, requests and limits of containers, and wins over all other
    /// sources. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overridable: bool,

    /// A CEL expression for the value where nothing else gives one, over `object`, `namespaceObject` and `template`, which is the
    /// pod template (of a pod, the pod). It sees the workload without sidecars of policies. Default: none. Example:
    /// `template.metadata.?labels["app"].orValue("unknown")`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub expression: Option<String>,
}

/// The type of a parameter.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ParameterType {
    /// Any text.
    #[default]
    String,
    /// A whole number of 64 bits.
    Integer,
    /// `true` or `false`.
    Boolean,
    /// A quantity of Kubernetes.
    Quantity,
    /// A duration of whole hours, minutes and seconds.
    Duration,
}

/// A bound of a parameter: a number, or a text.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum Bound {
    /// A number.
    Number(i64),
    /// A number, a quantity or a duration as text.
    Text(String),
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text}"),
        }
    }
}

fn is_default(of: &ParameterType) -> bool {
    *of == ParameterType::default()
}

fn bound(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true, "maxLength": 32 })
}
