//! What a template asks of the pod itself, and what its containers take from those of the workload.

use crate::api::format;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Fields of the pod. A field is set only where the pod has none; an equal one stays, and another value is a conflict. Lists get
/// further items.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodFields {
    /// Whether all containers of the pod see each other's processes: `true`, or left out. Needs `process-namespace` in the
    /// operator's `--allow-in-templates`. Default: as the pod says. A pod that says `false`, or that has `hostPID`, is a
    /// conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_process_namespace: Option<bool>,

    /// Entries to add to the pod's `/etc/hosts`. Default: none. An entry with the same address and names is added once.
    /// Example: `[{ip: 10.1.2.3, hostnames: [db.example]}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub host_aliases: Vec<HostAlias>,

    /// Settings of the resolver to add. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_config: Option<DnsConfig>,

    /// The least time for the pod to end. Default: as the pod says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<GracePeriod>,

    /// Tolerations to add. Needs `scheduling` in the operator's `--allow-in-templates`. Default: none. Example:
    /// `[{key: example.com/gpu, operator: Exists, effect: NoSchedule}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tolerations: Vec<Toleration>,
}

/// An entry of `/etc/hosts`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct HostAlias {
    /// The address. Example: `10.1.2.3`.
    #[schemars(length(min = 1, max = 45))]
    pub ip: String,
    /// The names for it. Example: `[db.example]`.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 253), regex(pattern = format::SUBDOMAIN)))]
    pub hostnames: Vec<String>,
}

/// Settings of the resolver.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct DnsConfig {
    /// Addresses of name servers, which come after those of the pod. The pod may have 3 in all. Default: none.
    /// Example: `[10.1.2.3]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3), inner(length(min = 1, max = 45)))]
    pub nameservers: Vec<String>,
    /// Domains to search, which come after those of the pod. Each once, and neither `.` alone nor with `_`, which servers below 1.33
    /// refuse. Default: none. Example: `[shop.example]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 6), inner(length(min = 1, max = 254), regex(pattern = format::SEARCH)))]
    pub searches: Vec<String>,
    /// Options by name. Default: none. An option of that name with another value is a conflict.
    /// Example: `[{name: ndots, value: "2"}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub options: Vec<DnsOption>,
}

/// An option of the resolver.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct DnsOption {
    /// The name. Example: `ndots`.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The value. Default: none. Example: `"2"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub value: Option<String>,
}

/// The least grace period.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GracePeriod {
    /// The pod has at least this many seconds; a pod without the field has 30. More than that stays. Example: `60`.
    #[schemars(range(min = 1, max = 86_400))]
    pub at_least: i64,
}

/// A toleration, as in a PodSpec.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// The key of the taint. Default: all, with `operator: Exists`. Example: `example.com/gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317), regex(pattern = format::KEY))]
    pub key: Option<String>,
    /// `Equal` (default) or `Exists`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// The value of the taint, for `Equal`. Default: empty. Example: `"true"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = format::LABEL_VALUE))]
    pub value: Option<String>,
    /// The effect of the taint. Default: all. Example: `NoSchedule`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// How long a `NoExecute` taint is tolerated. Default: for ever. Example: `300`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub toleration_seconds: Option<i64>,
}

/// How a toleration compares.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TolerationOperator {
    /// Key and value are equal.
    Equal,
    /// The key is equal.
    Exists,
}

/// What a taint does.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintEffect {
    /// No new pod without the toleration.
    NoSchedule,
    /// Rather no new pod without it.
    PreferNoSchedule,
    /// No pod without it.
    NoExecute,
}

/// What one container of the template takes from the workload's own containers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// The name of a container or init container of the template. Example: `log-agent`.
    #[schemars(length(min = 1, max = 63), regex(pattern = format::LABEL))]
    pub to: String,

    /// The workload's own containers to copy from, as names or globs. Default: all. Example: `["web-*"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63), regex(pattern = format::GLOB)))]
    pub from: Vec<String>,

    /// The volume mounts to copy, as globs of the volume's name or of the mount path. Default: none. Never the token of the
    /// service account, paths of the node, or mounts with `subPathExpr`. Its own mount at a path stays. Two containers that
    /// mount different things at one path are a conflict, and so are more than 64 mounts for one container. Example:
    /// `["logs", "/var/log/*"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 4096)))]
    pub volume_mounts: Vec<String>,

    /// Whether the mounts are read-only. Default: true. With `false` a mount is as in the workload's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,

    /// The variables to copy, as globs of the name, with `value` or `valueFrom`. Default: none. Its own variable of a name
    /// stays. Two containers that set a variable differently are a conflict, and so are more than 64 variables for one
    /// container. An amount of resources (`resourceFieldRef`) stays that of the workload's container. Example: `["APP_*"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 1024)))]
    pub env: Vec<String>,
}

impl PodFields {
    /// Whether it asks for nothing.
    pub fn is_empty(&self) -> bool {
        let Self { share_process_namespace, host_aliases, dns_config, termination_grace_period_seconds, tolerations } =
            self;
        let is_empty =
            |dns: &DnsConfig| dns.nameservers.is_empty() && dns.searches.is_empty() && dns.options.is_empty();
        share_process_namespace.is_none()
            && host_aliases.is_empty()
            && dns_config.as_ref().is_none_or(is_empty)
            && termination_grace_period_seconds.is_none()
            && tolerations.is_empty()
    }
}
