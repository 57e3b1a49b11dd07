//! The custom resource that users write: `SidecarPolicy`, version `v1alpha1`.
//!
//! The documentation of every field is the manual that `kubectl explain` prints: what it means, its default, an
//! example, and what happens where it contradicts something else. The bounds beside it are part of the schema, which
//! the API server enforces; [`super::rules`] enforces the same schema where a server did not.

mod parameter;
mod pod_fields;
mod rollout;
mod status;
mod template;

pub use parameter::{Bound, Parameter, ParameterType};
pub use pod_fields::{
    DnsConfig, GracePeriod, HostAlias, PodFields, Share, TaintEffect, Toleration, TolerationOperator,
};
pub(super) use rollout::OF_A_STEP;
pub use rollout::{
    EditedContent, MaxUnavailable, OnFailure, Pause, PodUpdate, RollingUpdate, Step, StepAction, UpdateStrategy,
    UpdateStrategyType,
};
pub use status::{Failure, SidecarPolicyStatus};
pub use template::{EnvPlace, LISTS, OF_VARIABLES, Place, Position, Template, TemplateList, TemplateMetadata};

use super::format;
use kube::CustomResource;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use template::{match_annotations, match_labels};

/// A piece of pod content as the user wrote it. Kept raw, so that no field newer or older than our bindings is lost.
pub type RawObject = serde_json::Map<String, serde_json::Value>;

/// Which workloads get which pod content, and how. Give `template` (or `validations`); everything else has a default:
/// by itself a policy reaches new Deployments in every namespace that is not protected.
///
/// A policy acts when a workload is created. It changes what already runs only if `updateStrategy` says so. Example:
/// `targets: [{group: apps, resource: deployments}]`, `namespaces: ["shop-*"]`,
/// `template: {containers: [{name: envoy, image: "envoyproxy/envoy:v1.31.0"}]}`.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "scpol.dev",
    version = "v1alpha1",
    kind = "SidecarPolicy",
    plural = "sidecarpolicies",
    shortname = "scpol",
    category = "sidecars",
    status = "SidecarPolicyStatus",
    doc = "A SidecarPolicy puts sidecar containers, init containers and volumes into every new workload that it matches. It is \
           cluster-scoped. Its name has at most 63 characters and is not `true` or `false`: it becomes the value of a label, \
           the end of an annotation key, and what users write into `scpol.dev/inject`.",
    printcolumn = r#"{ "name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status",
        "description": "True: as the spec wants it. False: not in effect, the reason says why. Unknown: not looked at yet." }"#,
    printcolumn = r#"{ "name": "Programmed", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Programmed\")].status",
        "description": "True: new workloads that match get the template. False, too, if the policy is suspended or in Audit." }"#,
    printcolumn = r#"{ "name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason",
        "description": "Why, in one word. The documentation has a page with all of them, and what to do." }"#,
    printcolumn = r#"{ "name": "Engine", "type": "string", "jsonPath": ".status.engine",
        "description": "The engine that delivers the template on this server." }"#,
    printcolumn = r#"{ "name": "Matched", "type": "integer", "jsonPath": ".status.matched",
        "description": "How many stored workloads the policy matches now." }"#,
    printcolumn = r#"{ "name": "Injected", "type": "integer", "jsonPath": ".status.injected",
        "description": "How many of them have the current template." }"#,
    printcolumn = r#"{ "name": "Edited", "type": "integer", "jsonPath": ".status.edited",
        "description": "How many of them have a template that was changed since.", "priority": 1 }"#,
    printcolumn = r#"{ "name": "Updated", "type": "integer", "jsonPath": ".status.updated",
        "description": "How many of them the rollout has updated.", "priority": 1 }"#,
    printcolumn = r#"{ "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp",
        "description": "Time since the policy was created." }"#,
    printcolumn = r#"{ "name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message",
        "description": "The code of the reason, and what to do.", "priority": 1 }"#,
    printcolumn = r#"{ "name": "Initializer", "type": "string", "jsonPath": ".status.initializerName",
        "description": "The initializer name under which the Initializer engine registers the policy.", "priority": 1 }"#
)]
#[serde(rename_all = "camelCase")]
pub struct SidecarPolicySpec {
    /// The resources that the policy is for, 1 to 16. An object is a target if one of them fits.
    ///
    /// Default: Deployments, `[{group: apps, version: "*", resource: deployments}]`. Example:
    /// `[{group: apps, resource: statefulsets}, {group: batch, resource: cronjobs}]`.
    #[serde(default = "default_targets")]
    #[schemars(length(min = 1, max = 16))]
    pub targets: Vec<Target>,

    /// Namespaces that the policy matches, as names or globs: `*` stands for any characters, `?` for one. At least one
    /// entry.
    ///
    /// Default: absent, all namespaces but the protected ones (`kube-system`, `kube-public`, `kube-node-lease`, the
    /// operator's own, and those of `--protected-namespaces`), which no policy reaches. Example: `[shop, "team-*"]`.
    /// `excludeNamespaces` and `namespaceSelector` narrow it further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), inner(length(min = 1, max = 63), regex(pattern = format::GLOB)))]
    pub namespaces: Option<Vec<String>>,

    /// Namespaces that the policy does not match, as names or globs like those of `namespaces`. They win over all
    /// selectors.
    ///
    /// Default: none. Example: `["*-test"]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 63), regex(pattern = format::GLOB)))]
    pub exclude_namespaces: Option<Vec<String>>,

    /// Labels that the workload's Namespace must have. The label `kubernetes.io/metadata.name` can be used on every server,
    /// also where the server does not set it. A Namespace that cannot be read is a failure, never "no match".
    ///
    /// Default: absent, no condition. Example: `{matchLabels: {team: shop}}`. A selector without a requirement is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,

    /// Annotations that the workload itself must have (its own, not those of its pod template). Shape and operators are
    /// those of a label selector; values may have any length.
    ///
    /// Default: absent, no condition. Examples: `{matchAnnotations: {proxy: "on"}}`; to require an annotation with any
    /// value, `{matchExpressions: [{key: example.com/sidecar, operator: Exists}]}`. A selector without a requirement is
    /// refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotation_selector: Option<AnnotationSelector>,

    /// Labels that the workload itself must have (its own, not those of its pod template).
    ///
    /// Default: absent, no condition. Example: `{matchLabels: {app: cart}}`. A selector without a requirement is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,

    /// CEL expressions that must all be true, at most 64. They are evaluated in order, after all other conditions. An
    /// expression that fails is a failure, never "no match".
    ///
    /// Default: none. Example: `[{name: two-or-more, expression: "object.spec.replicas >= 2"}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub match_conditions: Vec<MatchCondition>,

    /// The pod content to add. Everything of one policy is added, or nothing: where the workload, or another policy that
    /// matches it, uses one of the names differently, nothing of this policy is added there, and status, an event and a
    /// counter report it. Equal content under the same name is no conflict.
    ///
    /// Required, unless there are `validations`; it must add something. At most 64 KiB of JSON. Nothing is copied:
    /// ConfigMaps and Secrets must exist in the workload's namespace. Example:
    /// `{containers: [{name: envoy, image: "envoyproxy/envoy:v1.31.0"}]}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub template: Option<Template>,

    /// Values of the template that differ between workloads: each with a type, bounds, and the places of the template that it is
    /// for. At most 32.
    ///
    /// Default: none. Example: `[{name: memory, type: Quantity, paths: ["containers[envoy].resources.limits.memory"], maximum: 1Gi}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub parameters: Vec<Parameter>,

    /// The place of added content among the workload's own. The result is: every `Before` in the order of priority, the
    /// workload's own, every `After` in the order of priority.
    ///
    /// Default: `{containers: After, initContainers: After, env: Auto, envFrom: Before, volumeMounts: After}`. Native
    /// sidecars go before the workload's own init containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,

    /// Whether `template.containers` are delivered as native sidecars (init containers with `restartPolicy: Always`),
    /// which do not keep a Job from ending.
    ///
    /// `ForJobs` (default): in pods whose `restartPolicy` is not `Always`. `Always`: in every pod. `Never`: in none. They
    /// need a server and kubelets of 1.29 or later. Where these are older, a policy with `Always` is not ready, and nothing
    /// is injected.
    #[serde(default)]
    pub native_sidecars: NativeSidecars,

    /// What happens to pods that end by themselves (of Jobs and CronJobs) where there are no native sidecars.
    ///
    /// `Skip` (default): they are left out, and `explain` reports it. `Inject`: they get a plain container, which must end
    /// by itself, or the Job never ends. `Refuse`: their create is refused, as under `hostNetworkPods`.
    #[serde(default)]
    pub jobs: Jobs,

    /// CEL expressions that must be true for every matching object; otherwise its create is refused with the message. They
    /// judge the object as it will be stored, also if the workload opted out. At most 64.
    ///
    /// Default: none. A policy may have validations only, without a template; its targets need no pod template then.
    /// Example: `[{expression: "size(object.spec.template.spec.containers) < 8", message: "at most 7 containers"}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub validations: Vec<Validation>,

    /// `Enforce` (default): the policy is in effect. `Audit`: it registers nothing, and never delays or refuses a create.
    /// It counts stored workloads in `status`, and reports what it would do.
    #[serde(default)]
    pub mode: Mode,

    /// What happens to a new workload that matches and cannot be injected, because of a conflict, an error, or no
    /// decision within 20 s.
    ///
    /// `Ignore` (default): it is created without the template, with an event and a counter. `Fail`: its create is refused
    /// with the reason. While no replica of the operator answers, MutatingAdmissionPolicy goes on as before. On Webhook,
    /// `Ignore` creates without the template, and `Fail`, which needs a server of 1.21, refuses. On Initializer, creates of
    /// the targets wait up to 30 s and then fail, whatever this field says.
    #[serde(default)]
    pub failure_policy: FailurePolicy,

    /// Whether users may keep the template out of a workload by the annotation or label `scpol.dev/inject`, set on the
    /// workload or its pod template: `"false"` refuses every policy, a list of policy names refuses all others.
    ///
    /// `Allowed` (default): the operator respects it. `Denied`: it is ignored, with an event.
    #[serde(default)]
    pub opt_out: OptOut,

    /// Whether pods with `hostNetwork` or `hostPID` get the template, where a sidecar would share the host's network.
    ///
    /// `Skip` (default): they do not, also under `failurePolicy: Fail`. `Inject`: they do. `Refuse`: the create of a
    /// workload with such a pod is refused, as by a validation: also under `Ignore`, where the engine is reached, unless
    /// the workload may opt out and does. Stored workloads stay. With `UPDATE` in `targets[].operations`, an update that
    /// removes the sidecar is refused, too.
    #[serde(default)]
    pub host_network_pods: HostNetworkPods,

    /// The order among policies that match one workload: higher first, ties by name. It orders what is added, and decides
    /// conflicts: of two policies that add one name differently, the one with the higher priority is injected. With the
    /// same priority, neither is.
    ///
    /// Default: 0. Any 32-bit integer, negative ones too. Example: `100`.
    #[serde(default)]
    pub priority: i32,

    /// Names of policies that this one replaces: to rename a policy, or to join several. At most 8, and not its own name.
    /// Where this policy matches a new workload and fits it, the named ones are not injected. A rollout of this policy
    /// takes over what their markers list, in one step: equal content stays, other content is replaced, and the rest is
    /// removed. A workload with such a marker counts as outdated. The named policies need not exist.
    ///
    /// Default: none. Example: `[log-agent]`. Policies that replace each other in a circle are rejected. With the author
    /// check it needs the right to create pods in all namespaces, as a `priority` above 0 does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 63), regex(pattern = format::SUBDOMAIN)))]
    pub replaces: Vec<String>,

    /// The engine that delivers the template on this server.
    ///
    /// `Auto` (default): Initializer where it works, else MutatingAdmissionPolicy where every policy on a resource can be
    /// expressed by it, else Webhook. `Initializer`: Kubernetes 1.12 and 1.13, where the API server must have it switched
    /// on. `Webhook`, `MutatingAdmissionPolicy`: that one only. If the chosen engine cannot run, the policy is not ready,
    /// and the message names the flag to set.
    #[serde(default)]
    pub engine: EngineChoice,

    /// The initializer name under which the Initializer engine registers the policy: a lower-case DNS name of three or more
    /// segments that ends in `.scpol.dev`, or one of the operator's flag `--initializer-name`. It keeps the name of an
    /// older initializer during a migration.
    ///
    /// Default: `<name of the policy>.scpol.dev`. If another policy uses the name already, or a foreign configuration lists
    /// it, this policy is not ready. Example: `envoy.shop.scpol.dev`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = format::INITIALIZER))]
    pub initializer_name: Option<String>,

    /// True: the policy has no effect. Injected sidecars stay; new workloads get nothing.
    ///
    /// Default: false.
    #[serde(default)]
    pub suspend: bool,

    /// What happens to stored workloads when the policy is created or edited.
    ///
    /// Default: absent, which means `{type: OnDelete}`: they keep what they have. Example: `{type: RollingUpdate}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,

    /// How many old revisions of the content are kept for `scpol rollout undo`. Each is a ControllerRevision in the
    /// operator's namespace. The current revision and the update revision do not count: they are always kept.
    ///
    /// Default: 10. From 0 to 100. Example: `3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub revision_history_limit: Option<i32>,
}

/// The value of `spec.revisionHistoryLimit` where it is absent.
const REVISION_HISTORY_LIMIT: usize = 10;

impl SidecarPolicySpec {
    /// The pace and the steps of rollouts, with defaults for what the spec leaves out. `Some` if and only if
    /// `spec.updateStrategy.type` is `RollingUpdate`.
    pub fn rolling_update(&self) -> Option<RollingUpdate> {
        let strategy = self.update_strategy.as_ref().filter(|strategy| strategy.rolls())?;
        Some(strategy.rolling_update.clone().unwrap_or_default())
    }

    /// True if and only if `spec.updateStrategy.type` is `RollingUpdate`.
    pub fn rolls(&self) -> bool {
        self.update_strategy.as_ref().is_some_and(UpdateStrategy::rolls)
    }

    /// True if and only if rollouts of the policy give edited workloads the content of the revision back.
    pub fn restores_edited(&self) -> bool {
        let strategy = self.update_strategy.as_ref().filter(|strategy| strategy.rolls());
        strategy.is_some_and(|strategy| strategy.edited == EditedContent::Restore)
    }

    /// Whether rollouts of the policy are paused by `spec.updateStrategy.paused`. A step with `pause` does not count.
    pub fn is_paused(&self) -> bool {
        self.update_strategy.as_ref().is_some_and(|strategy| strategy.paused)
    }

    /// The number of old revisions to keep, beside the current revision and the update revision.
    pub fn revision_history_limit(&self) -> usize {
        let given = self.revision_history_limit.and_then(|limit| usize::try_from(limit).ok());
        given.unwrap_or(REVISION_HISTORY_LIMIT)
    }
}

fn default_targets() -> Vec<Target> {
    vec![Target {
        group: "apps".into(),
        version: any_version(),
        resource: "deployments".into(),
        template_path: None,
        operations: only_create(),
    }]
}

fn any_version() -> String {
    "*".into()
}

/// A resource that a policy is for.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The API group; `""` is the core group, that of Pods. Never `*`. Example: `apps`.
    #[schemars(length(max = 253), regex(pattern = format::GROUP))]
    pub group: String,

    /// The API version. Default: `"*"`, any version; then one of two groups that serve a kind (`apps` and `extensions`)
    /// stands for both. A named version means only objects that are posted through it. Example: `v1`.
    #[serde(default = "any_version")]
    #[schemars(length(min = 1, max = 63), regex(pattern = format::VERSION))]
    pub version: String,

    /// The resource, in the plural and in lower case, as in `kubectl api-resources`. It must be `pods`, or have a pod
    /// template, as custom resources may. A policy that has only `validations` may name resources without one. Refused are
    /// `*`, subresources (anything with `/`), cluster-scoped resources, and those that others are made from or by, such as
    /// replicasets, services, endpoints, configmaps, leases and events. Example: `deployments`.
    #[schemars(length(min = 1, max = 63), regex(pattern = format::RESOURCE))]
    pub resource: String,

    /// For custom resources: the path of the pod template in the object, names separated by dots. The field there has the
    /// `metadata` and `spec` of a pod. The path has no lists, and is never empty. For a built-in kind it is known. An
    /// object without that field is not injected. Where two policies that match one object have different paths, neither is
    /// injected.
    ///
    /// Default: that of the built-in kind, else `spec.template`. Example: `spec.podTemplate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = format::PATH))]
    pub template_path: Option<String>,

    /// The requests in which the policy acts on the target. `CREATE` is always one of them. With `UPDATE`, an update that
    /// would remove the sidecar gets it again in the same request, and `validations` and `failurePolicy: Fail` reject
    /// updates, too. `UPDATE` is refused for `pods` and `jobs`, and with `engine: Initializer`.
    ///
    /// Default: `[CREATE]`. Example: `[CREATE, UPDATE]`.
    #[serde(default = "only_create", skip_serializing_if = "is_only_create")]
    #[schemars(length(min = 1, max = 2))]
    pub operations: Vec<Operation>,
}

impl Target {
    /// True if and only if the policy acts on updates of the target, and not only when it is created.
    pub fn acts_on_update(&self) -> bool {
        self.operations.contains(&Operation::Update)
    }
}

fn only_create() -> Vec<Operation> {
    vec![Operation::Create]
}

fn is_only_create(operations: &Vec<Operation>) -> bool {
    *operations == only_create()
}

/// A request of the API server in which a policy acts.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// A create.
    Create,
    /// An update or a patch.
    Update,
}

/// A selection by labels, as everywhere in Kubernetes: all requirements must hold.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct LabelSelector {
    /// Labels that must be there with exactly that value. Default: none. Example: `{app: cart}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "match_labels")]
    pub match_labels: BTreeMap<String, String>,

    /// Requirements on labels, all of which must hold. Default: none.
    /// Example: `[{key: tier, operator: In, values: [web, api]}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub match_expressions: Vec<Requirement>,
}

/// A selection by annotations: all requirements must hold.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct AnnotationSelector {
    /// Annotations that must be there with exactly that value. Default: none. Example: `{example.com/proxy: "true"}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "match_annotations")]
    pub match_annotations: BTreeMap<String, String>,

    /// Requirements on annotations, all of which must hold. Default: none.
    /// Example: `[{key: example.com/sidecar, operator: Exists}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), transform = of_annotations)]
    pub match_expressions: Vec<Requirement>,
}

/// Requirements on annotations, whose keys may have capital letters in their domain.
fn of_annotations(schema: &mut Schema) {
    if let Some(pattern) = schema.pointer_mut("/items/properties/key/pattern") {
        *pattern = format::ANNOTATION_KEY.into();
    }
}

/// A requirement on the value of one key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Requirement {
    /// The key that the requirement is about. Example: `example.com/sidecar`.
    #[schemars(length(min = 1, max = 317), regex(pattern = format::KEY))]
    pub key: String,

    /// `In`: the key is there with one of `values`. `NotIn`: it is absent, or has none of them. `Exists`: it is there.
    /// `DoesNotExist`: it is not.
    pub operator: Operator,

    /// The values of `In` and `NotIn`, at least one; none for `Exists` and `DoesNotExist`. Example: `[web, api]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(max = 262_144)))]
    pub values: Option<Vec<String>>,
}

/// How a requirement compares.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Operator {
    /// There, with one of the values.
    #[default]
    In,
    /// Absent, or with none of the values.
    NotIn,
    /// There.
    Exists,
    /// Absent.
    DoesNotExist,
}

impl Operator {
    /// The operator as written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::In => "In",
            Self::NotIn => "NotIn",
            Self::Exists => "Exists",
            Self::DoesNotExist => "DoesNotExist",
        }
    }
}

/// A condition in CEL.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MatchCondition {
    /// The name of the condition, unique in the list; messages about the condition have it. Example: `two-or-more`.
    #[schemars(length(min = 1, max = 317), regex(pattern = format::KEY))]
    pub name: String,

    /// A CEL expression that gives true or false, over `object` (the workload) and `namespaceObject` (its Namespace). No
    /// engine shows it `status`, or what only the server sets in `metadata`. Example: `object.spec.replicas >= 2`.
    #[schemars(length(min = 1, max = 16_384))]
    pub expression: String,
}

/// A demand in CEL.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Validation {
    /// A CEL expression that must be true, over `object` and `namespaceObject`. Example: `size(object.data.password) >=
    /// 8`.
    #[schemars(length(min = 1, max = 16_384))]
    pub expression: String,

    /// The message if it is not true. Default: the expression itself. Example: `the password needs 8 characters`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub message: Option<String>,

    /// A CEL expression that gives the message. If it fails or gives nothing, `message` is used. Default: absent. Example:
    /// `"the password has " + string(size(object.data.password)) + " characters"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16_384))]
    pub message_expression: Option<String>,
}

/// Where native sidecars are used.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NativeSidecars {
    /// In pods that end by themselves.
    #[default]
    ForJobs,
    /// In every pod.
    Always,
    /// In none.
    Never,
}

/// What happens to pods that end by themselves, without native sidecars.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Jobs {
    /// They are left out.
    #[default]
    Skip,
    /// They get a plain container.
    Inject,
    /// Their create is refused.
    Refuse,
}

/// Whether a policy acts.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It does.
    #[default]
    Enforce,
    /// It reports what it would do.
    Audit,
}

/// What happens to a workload that cannot be injected.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// It is let through.
    #[default]
    Ignore,
    /// It is refused.
    Fail,
}

/// Whether users may opt out.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OptOut {
    /// They may.
    #[default]
    Allowed,
    /// They may not.
    Denied,
}

/// What happens to pods that use the host's network or processes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostNetworkPods {
    /// They are left out.
    #[default]
    Skip,
    /// They get the template.
    Inject,
    /// Their create is refused.
    Refuse,
}

/// Which engine delivers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// The best that the server has.
    #[default]
    Auto,
    /// Initializers, on Kubernetes 1.12 and 1.13.
    Initializer,
    /// A mutating admission webhook.
    Webhook,
    /// MutatingAdmissionPolicies.
    MutatingAdmissionPolicy,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(value: Value) -> SidecarPolicySpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_target_acts_on_updates_only_if_it_says_so() {
        for (operations, expected) in
            [(Value::Null, false), (json!(["CREATE"]), false), (json!(["CREATE", "UPDATE"]), true)]
        {
            let mut target = json!({"group": "apps", "resource": "deployments"});
            if !operations.is_null() {
                target["operations"] = operations;
            }
            assert_eq!(spec(json!({"targets": [target]})).targets[0].acts_on_update(), expected, "{target}");
        }
        assert!(!spec(json!({})).targets[0].acts_on_update());
    }
}
