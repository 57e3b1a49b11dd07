//! The custom resource that users write: `SidecarPolicy`, version `v1alpha1`.
//!
//! The documentation of every field is the manual that `kubectl explain` prints: what it means, its default, an
//! example, and what happens where it contradicts something else. The bounds beside it are part of the schema, which
//! the API server enforces; [`super::rules`] enforces the same schema where a server did not.

use super::format;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

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
        "description": "True: as the spec wants it. False: not in force, the reason says why. Unknown: not looked at yet." }"#,
    printcolumn = r#"{ "name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason",
        "description": "Why, in one word. The documentation has a page with all of them, and what to do." }"#,
    printcolumn = r#"{ "name": "Engine", "type": "string", "jsonPath": ".status.engine",
        "description": "What delivers the template on this server." }"#,
    printcolumn = r#"{ "name": "Matched", "type": "integer", "jsonPath": ".status.matched",
        "description": "How many stored workloads the policy matches now." }"#,
    printcolumn = r#"{ "name": "Injected", "type": "integer", "jsonPath": ".status.injected",
        "description": "How many of them carry the template as it is now." }"#,
    printcolumn = r#"{ "name": "Updated", "type": "integer", "jsonPath": ".status.updated",
        "description": "How many of them the rollout has brought up to date.", "priority": 1 }"#,
    printcolumn = r#"{ "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp",
        "description": "Time since the policy was created." }"#,
    printcolumn = r#"{ "name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message",
        "description": "The code of the reason, and what to do.", "priority": 1 }"#,
    printcolumn = r#"{ "name": "Initializer", "type": "string", "jsonPath": ".status.initializerName",
        "description": "The initializer name under which the Initializer engine registers the policy.", "priority": 1 }"#
)]
#[serde(rename_all = "camelCase")]
pub struct SidecarPolicySpec {
    /// Which resources the policy is for: 1 to 16 entries; an object is a target if one of them fits.
    ///
    /// Default: Deployments, `[{group: apps, version: "*", resource: deployments}]`. Example:
    /// `[{group: apps, resource: statefulsets}, {group: batch, resource: cronjobs}]`.
    #[serde(default = "default_targets")]
    #[schemars(length(min = 1, max = 16))]
    pub targets: Vec<Target>,

    /// Namespaces that the policy is for, as names or globs: `*` stands for any characters, `?` for one. At least one
    /// entry.
    ///
    /// Default: absent, all namespaces but the protected ones (`kube-system`, `kube-public`, `kube-node-lease`, the
    /// operator's own, and what its flag `--protected-namespaces` adds), which no policy can reach. Example: `[shop,
    /// "team-*"]`. `excludeNamespaces` and `namespaceSelector` narrow it further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), inner(length(min = 1, max = 63), regex(pattern = format::GLOB)))]
    pub namespaces: Option<Vec<String>>,

    /// Namespaces that the policy is not for, as names or globs like those of `namespaces`. An exclusion wins over
    /// everything that selects.
    ///
    /// Default: none. Example: `["*-test"]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 63), regex(pattern = format::GLOB)))]
    pub exclude_namespaces: Option<Vec<String>>,

    /// Labels that the workload's Namespace must have. The label `kubernetes.io/metadata.name` can be used on every
    /// server: it is supplied where the server has none. A Namespace that cannot be read is a failure, never "no
    /// match".
    ///
    /// Default: absent, no condition. Example: `{matchLabels: {team: shop}}`. A selector without one requirement is
    /// refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,

    /// Annotations that the workload itself must have (its own, not those of its pod template). Shape and operators are
    /// those of a label selector; values may have any length.
    ///
    /// Default: absent, no condition. Examples: `{matchAnnotations: {proxy: "on"}}`; to require that an annotation is
    /// there, whatever its value, `{matchExpressions: [{key: example.com/sidecar, operator: Exists}]}`. A selector
    /// without one requirement is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotation_selector: Option<AnnotationSelector>,

    /// Labels that the workload itself must have (its own, not those of its pod template).
    ///
    /// Default: absent, no condition. Example: `{matchLabels: {app: cart}}`. A selector without one requirement is
    /// refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,

    /// CEL expressions that must all be true, at most 64. Evaluated in order, after all other conditions. An expression
    /// that fails when it runs is a failure, never "no match".
    ///
    /// Default: none. Example: `[{name: two-or-more, expression: "object.spec.replicas >= 2"}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub match_conditions: Vec<MatchCondition>,

    /// The pod content to add. Everything of one policy is added, or nothing: where the workload, or another policy
    /// that matches it, uses one of the names differently, nothing of this policy is added there, and status, an event
    /// and a counter say so. Equal content under the same name is no conflict.
    ///
    /// Required, unless there are `validations`; it must add something. At most 64 KiB of JSON. Nothing that it refers
    /// to is copied: ConfigMaps and Secrets must exist in the workload's namespace. Example: `{containers: [{name:
    /// envoy, image: "envoyproxy/envoy:v1.31.0"}]}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub template: Option<Template>,

    /// Where what is added stands among the workload's own: containers, and what goes into the workload's containers. The
    /// result is: every `Before` in the order of priority, the workload's own, every `After` in the order of priority.
    ///
    /// Default: `{containers: After, initContainers: After, env: Auto, envFrom: Before, volumeMounts: After}`. Native
    /// sidecars go before the workload's own init containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,

    /// Whether `template.containers` are delivered as native sidecars (init containers with `restartPolicy: Always`),
    /// which do not keep a Job from ending.
    ///
    /// `ForJobs` (default): in pods whose `restartPolicy` is not `Always`. `Always`: in every pod. `Never`: in none.
    /// They need a server and kubelets of version 1.29 or later; `Always` without them makes the policy not ready, and
    /// nothing is injected.
    #[serde(default)]
    pub native_sidecars: NativeSidecars,

    /// What happens to pods that end by themselves (of Jobs and CronJobs) where native sidecars are not to be had.
    ///
    /// `Skip` (default): they are left out, and `explain` says so. `Inject`: they get a plain container, which must end
    /// by itself, or the Job never ends. `Refuse`: their create is refused, as under `hostNetworkPods`.
    #[serde(default)]
    pub jobs: Jobs,

    /// CEL expressions that must be true for every matching object, else its create is refused with the message. They
    /// are judged on the object as it will be stored, also where the workload opted out. At most 64.
    ///
    /// Default: none. A policy may have validations only, without a template; its targets need no pod template then.
    /// Example: `[{expression: "size(object.spec.template.spec.containers) < 8", message: "at most 7 containers"}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub validations: Vec<Validation>,

    /// `Enforce` (default): the policy is in force. `Audit`: it registers nothing and can never delay or refuse a
    /// create; it looks at stored workloads only, counts them in status, and reports what it would do.
    #[serde(default)]
    pub mode: Mode,

    /// What happens to a new workload that matches and cannot be injected, because of a conflict, an error, or no
    /// decision within 20 s.
    ///
    /// `Ignore` (default): it is let through without the template, with an event and a counter. `Fail`: its create is
    /// refused with the reason. While no replica of the operator answers: MutatingAdmissionPolicy goes on as before; on
    /// Webhook `Ignore` lets creates through without the template, and `Fail`, which takes a server of 1.21, refuses them; on
    /// the Initializer engine creates of the targets wait up to 30 s and then fail whatever this field says.
    #[serde(default)]
    pub failure_policy: FailurePolicy,

    /// Whether users may keep the template out of a workload by the annotation or label `scpol.dev/inject`, set on the
    /// workload or its pod template: `"false"` refuses every policy, a list of policy names refuses all others.
    ///
    /// `Allowed` (default): it is honoured. `Denied`: it is ignored, and an event says so.
    #[serde(default)]
    pub opt_out: OptOut,

    /// Whether pods with `hostNetwork` or `hostPID` get the template; a sidecar would share the host's network there.
    ///
    /// `Skip` (default): they do not, also under `failurePolicy: Fail`. `Inject`: they do. `Refuse`: the create of a
    /// workload with such a pod is refused, as by a validation: also under `Ignore`, where the engine is reached, unless
    /// the workload opts out and may. Stored workloads stay. An update that takes the sidecar away is refused, too, where
    /// `targets[].operations` has `UPDATE`.
    #[serde(default)]
    pub host_network_pods: HostNetworkPods,

    /// The order among policies that match one workload: higher first, ties by name. It decides the order of what is
    /// added, and who wins a conflict: of two policies that add one name differently, the one with the higher priority
    /// is injected. With the same priority neither is.
    ///
    /// Default: 0. Any 32-bit integer, negative ones too. Example: `100`.
    #[serde(default)]
    pub priority: i32,

    /// What delivers the template on this server.
    ///
    /// `Auto` (default): Initializer where it works, else MutatingAdmissionPolicy where every policy on a resource can
    /// be expressed by it, else Webhook. `Initializer`: Kubernetes 1.12 and 1.13, where the API server must have it
    /// switched on. `Webhook`, `MutatingAdmissionPolicy`: that one only. Where the chosen engine cannot run the policy
    /// is not ready, and the message names the flag to set.
    #[serde(default)]
    pub engine: EngineChoice,

    /// The initializer name under which the Initializer engine registers the policy: a lower-case DNS name of three or
    /// more segments that ends in `.scpol.dev`, or exactly one that the operator was given by its flag
    /// `--initializer-name`. Used to keep the name of an older initializer when migrating.
    ///
    /// Default: `<name of the policy>.scpol.dev`. If another policy uses the name already, or a foreign configuration lists
    /// it, this policy is not ready. Example: `envoy.shop.scpol.dev`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = format::INITIALIZER))]
    pub initializer_name: Option<String>,

    /// True: as if the policy were deleted, but kept. What was injected stays; new workloads get nothing.
    ///
    /// Default: false.
    #[serde(default)]
    pub suspend: bool,

    /// What happens to workloads that exist already when the policy is created or edited.
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

    /// The API version. Default: `"*"`, however the object was posted; a kind that is served in two groups (`apps` and
    /// `extensions`) is then covered by naming either. A named version means only objects that are posted through it.
    /// Example: `v1`.
    #[serde(default = "any_version")]
    #[schemars(length(min = 1, max = 63), regex(pattern = format::VERSION))]
    pub version: String,

    /// The resource, in the plural and in lower case, as in `kubectl api-resources`. It must carry a pod template, or
    /// be `pods`; custom resources that carry one are welcome. A policy that has only `validations` may name what
    /// carries none. Refused are `*`, subresources (anything with `/`), cluster-scoped resources, and those that others
    /// are made from or by: replicasets, services, endpoints, configmaps, leases, events and the like. Example:
    /// `deployments`.
    #[schemars(length(min = 1, max = 63), regex(pattern = format::RESOURCE))]
    pub resource: String,

    /// For custom resources: the path of the pod template in the object, names separated by dots; what lies there has
    /// the `metadata` and `spec` of a pod. Lists cannot be on the way, and the path is never empty: no custom resource is
    /// a pod itself. Of a built-in kind it is known. An object that has nothing there is not injected. Where two policies
    /// that match one object give different paths, neither is injected.
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
    #[schemars(length(max = 64))]
    pub match_expressions: Vec<Requirement>,
}

/// A requirement on the value of one key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Requirement {
    /// The key that the requirement is about. Example: `example.com/sidecar`.
    #[schemars(length(min = 1, max = 317), regex(pattern = format::KEY))]
    pub key: String,

    /// `In`: the key is there with one of `values`. `NotIn`: it is not there, or has none of them. `Exists`: it is
    /// there. `DoesNotExist`: it is not.
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
    /// The name of the condition, unique in the list; it appears where the condition is the reason. Example:
    /// `two-or-more`.
    #[schemars(length(min = 1, max = 317), regex(pattern = format::KEY))]
    pub name: String,

    /// A CEL expression that gives true or false, over `object` (the workload) and `namespaceObject` (its Namespace).
    /// Not visible on any engine: `status`, and in `metadata` what only the server sets. Example: `object.spec.replicas
    /// >= 2`.
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

    /// What the creator is told if it is not. Default: the expression itself. Example: `the password needs 8
    /// characters`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub message: Option<String>,

    /// A CEL expression that gives the message; `message` stands in where it fails or gives nothing. Default: absent.
    /// Example: `"the password has " + string(size(object.data.password)) + " characters"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16_384))]
    pub message_expression: Option<String>,
}

/// Pod content that is added. Nothing else of a pod can be set by a policy.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// Labels and annotations for the pod. Default: none. A key that is there with another value is a conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,

    /// Containers to add, with all the fields of a PodSpec's container; `name` and `image` are required. At most 64,
    /// init containers included. Default: none. A container or init container of that name with other content, or one
    /// that uses the same host port, is a conflict. Example: `[{name: envoy, image: "envoyproxy/envoy:v1.31.0"}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "containers")]
    pub containers: Vec<RawObject>,

    /// Init containers to add, like `containers`. Default: none.
    /// Example: `[{name: setup, image: "busybox:1.36", command: [sh, -c, "cp /src/* /dst"]}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "containers")]
    pub init_containers: Vec<RawObject>,

    /// Volumes to add, with all the fields of a PodSpec's volume; `name` is required. Default: none. A volume of that
    /// name with other content (volume claim templates count) is a conflict. Example: `[{name: config, configMap:
    /// {name: envoy}}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "volumes")]
    pub volumes: Vec<RawObject>,

    /// Secrets to pull images with, to add to the pod's. Default: none. One that is there already is no conflict.
    /// Example: `[{name: registry}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "image_pull_secrets")]
    pub image_pull_secrets: Vec<RawObject>,

    /// Environment variables for the workload's own containers: those that no matching policy adds. Default: none. A
    /// variable of that name with another value is a conflict. Example: `[{name: HTTP_PROXY, value:
    /// "http://localhost:3128"}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "env")]
    pub env: Vec<RawObject>,

    /// Sources of environment variables for the workload's own containers. Default: none.
    /// Example: `[{configMapRef: {name: proxy}}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "env_from")]
    pub env_from: Vec<RawObject>,

    /// Volume mounts for the workload's own containers. Default: none. Another mount at that path is a conflict.
    /// Example: `[{name: config, mountPath: /etc/proxy}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "volume_mounts")]
    pub volume_mounts: Vec<RawObject>,

    /// Which of the workload's own containers get `env`, `envFrom` and `volumeMounts`, as names or globs. Default: all.
    /// Example: `["web-*"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63), regex(pattern = format::GLOB)))]
    pub app_containers: Vec<String>,

    /// Whether the workload's own init containers get `env`, `envFrom` and `volumeMounts` as well. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub include_init_containers: bool,
}

/// A list of raw objects in a template.
pub struct TemplateList {
    /// The field of the template.
    pub name: &'static str,
    /// The definition of Kubernetes that has the same field.
    pub(super) definition: &'static str,
    /// Its items.
    pub of: fn(&Template) -> &Vec<RawObject>,
    /// The same, to change them.
    pub of_mut: fn(&mut Template) -> &mut Vec<RawObject>,
}

/// Every list of raw objects in a template.
pub const LISTS: [TemplateList; 7] = [
    list("containers", "PodSpec", |it| &it.containers, |it| &mut it.containers),
    list("initContainers", "PodSpec", |it| &it.init_containers, |it| &mut it.init_containers),
    list("volumes", "PodSpec", |it| &it.volumes, |it| &mut it.volumes),
    list("imagePullSecrets", "PodSpec", |it| &it.image_pull_secrets, |it| &mut it.image_pull_secrets),
    list("env", "Container", |it| &it.env, |it| &mut it.env),
    list("envFrom", "Container", |it| &it.env_from, |it| &mut it.env_from),
    list("volumeMounts", "Container", |it| &it.volume_mounts, |it| &mut it.volume_mounts),
];

const fn list(
    name: &'static str,
    definition: &'static str,
    of: fn(&Template) -> &Vec<RawObject>,
    of_mut: fn(&mut Template) -> &mut Vec<RawObject>,
) -> TemplateList {
    TemplateList { name, definition, of, of_mut }
}

impl Template {
    /// Its containers and init containers, each with its path in the policy.
    pub fn all_containers(&self) -> impl Iterator<Item = (String, &RawObject)> {
        let lists = [("containers", &self.containers), ("initContainers", &self.init_containers)];
        lists.into_iter().flat_map(|(list, items)| {
            items.iter().enumerate().map(move |(index, item)| (format!("spec.template.{list}[{index}]"), item))
        })
    }

    /// Its volumes, each with its path in the policy.
    pub fn all_volumes(&self) -> impl Iterator<Item = (String, &RawObject)> {
        self.volumes.iter().enumerate().map(|(index, item)| (format!("spec.template.volumes[{index}]"), item))
    }
}

/// Labels and annotations for the pod.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMetadata {
    /// Labels to add to the pod. Default: none. Example: `{mesh: enabled}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "match_labels")]
    pub labels: BTreeMap<String, String>,

    /// Annotations to add to the pod. Default: none. Example: `{prometheus.io/scrape: "true"}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "match_annotations")]
    pub annotations: BTreeMap<String, String>,
}

/// Where added items stand.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Position {
    /// Where `template.containers` stand: `After` (default) or `Before` the workload's own.
    pub containers: Place,

    /// Where `template.initContainers` stand, and so when they run: `After` (default) or `Before` the workload's own.
    pub init_containers: Place,

    /// Where `template.env` stands among the variables of the workload's own containers. A variable may refer by `$(NAME)` only
    /// to those that stand before it. `Auto` (default): before the workload's own, so that these may refer to the added ones;
    /// but after them what refers to a variable that the template does not have. `Before` or `After` all of them.
    pub env: EnvPlace,

    /// Where `template.envFrom` stands: `Before` (default) or `After` the workload's own sources. Of two sources that have one
    /// key the later wins; by default the workload keeps its own.
    pub env_from: Place,

    /// Where `template.volumeMounts` stands: `After` (default) or `Before` the workload's own. Container runtimes mount by
    /// path, whatever the order.
    pub volume_mounts: Place,
}

impl Default for Position {
    fn default() -> Self {
        Self {
            containers: Place::default(),
            init_containers: Place::default(),
            env: EnvPlace::default(),
            env_from: Place::Before,
            volume_mounts: Place::default(),
        }
    }
}

/// Where added variables stand.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnvPlace {
    /// Where references between them and the workload's own work.
    #[default]
    Auto,
    /// After them.
    After,
    /// Before them.
    Before,
}

/// A side of the workload's own containers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// After them.
    #[default]
    After,
    /// Before them.
    Before,
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

/// What happens to workloads that exist already.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateStrategy {
    /// `OnDelete` (default): a workload keeps what it has until it is created again. `RollingUpdate`: the operator
    /// brings the matched workloads up to date, as `rollingUpdate` says. A policy without `template` cannot have
    /// `RollingUpdate`. Opted out are namespaces, pods and workloads with the annotation `scpol.dev/rollout: "false"`.
    #[serde(rename = "type")]
    pub type_: UpdateStrategyType,

    /// The pace and the steps of a rollout. Without `type: RollingUpdate` it is refused.
    ///
    /// Default: absent, every field at its default. Example: `{maxUnavailable: 2, minReadySeconds: 30}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,

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
    /// How pods are brought up to date. `InPlaceOrRecreate` (default): in place where a running pod may change that way
    /// (images, labels, annotations, and from Kubernetes 1.33 on cpu and memory), else by eviction. `Recreate`: always
    /// by eviction.
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

    /// The order in which workloads get the update revision, at most 32 steps. Each step has exactly one of
    /// `namespaces`, `namespaceSelector`, `workloadSelector`, `pause`, `percent` and `percentOfWorkloads`. Steps add
    /// workloads, and never remove one. After the last step all others follow. New workloads get the current revision
    /// where no step has been yet.
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

/// How pods are brought up to date.
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

    /// Labels of the Namespaces that get the update revision in this step. Default: absent. Example: `{matchLabels:
    /// {tier: canary}}`. A selector without one requirement is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,

    /// Labels of the workloads that get the update revision in this step, in all namespaces that the policy matches:
    /// labels of the object that is injected, such as the Deployment or the pod. Default: absent. Example: `{matchLabels:
    /// {track: canary}}`. A selector without one requirement is refused.
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
pub(super) const OF_A_STEP: [&str; 6] =
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

/// What the operator has to say about a policy. Written by the operator only: for counts and the words of
/// messages at most every 10 s, for all else at once.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct SidecarPolicyStatus {
    /// `Ready` (the summary), `Accepted` (the spec is valid), `Programmed` (in force here); and, only when true,
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

    /// The engine that delivers the template; absent while the policy is not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,

    /// The initializer name under which the policy is registered, on the Initializer engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initializer_name: Option<String>,

    /// The hash of the template as it is now, which stands in the marker annotation `injected.scpol.dev/<policy>` of
    /// workloads that carry it: 16 hex digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_hash: Option<String>,

    /// How many stored workloads the policy matches: `injected`, `outdated` and `missed` together.
    pub matched: i64,

    /// How many of the matched carry the template as it is now.
    pub injected: i64,

    /// How many of the matched carry an earlier template: they were created before the policy was edited.
    pub outdated: i64,

    /// How many of the matched carry no template of this policy: they were created before the policy, or could not be
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

    /// True if the rollout is halted: no further workload is touched before an edit or `scpol rollout undo`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub halted: bool,

    /// The time of the latest `scpol rollout restart` that the rollout follows, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<String>,

    /// The latest workloads that could not be injected, at most 5.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
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
    /// What was in the way.
    pub message: String,
    /// When, in RFC 3339.
    pub time: String,
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

fn match_labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "maxProperties": 64, "additionalProperties": { "type": "string", "maxLength": 63, "pattern": format::LABEL_VALUE } })
}

fn match_annotations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "maxProperties": 64, "additionalProperties": { "type": "string", "maxLength": 262_144 } })
}

fn containers(_: &mut SchemaGenerator) -> Schema {
    let name = json_schema!({ "type": "string", "minLength": 1, "maxLength": 63, "pattern": format::LABEL,
        "description": "The name, unique among all containers and init containers of the pod. Example: `envoy`." });
    let image = json_schema!({ "type": "string", "minLength": 1, "description": "The image. Example: `envoyproxy/envoy:v1.31.0`." });
    let item = json_schema!({ "type": "object", "description": "A container, as in a PodSpec, with all its fields.",
        "required": ["name", "image"], "properties": { "name": name, "image": image }, "x-kubernetes-preserve-unknown-fields": true });
    map_of(&item, "name", 64)
}

fn volumes(_: &mut SchemaGenerator) -> Schema {
    let name = json_schema!({ "type": "string", "minLength": 1, "maxLength": 63, "pattern": format::LABEL,
        "description": "The name, unique among the volumes of the pod. Example: `config`." });
    map_of(&item("A volume, as in a PodSpec, with all its fields.", "name", &name), "name", 128)
}

fn image_pull_secrets(_: &mut SchemaGenerator) -> Schema {
    let name = json_schema!({ "type": "string", "minLength": 1, "maxLength": 253, "pattern": format::SUBDOMAIN,
        "description": "The name of a Secret in the workload's namespace. Example: `registry`." });
    map_of(&item("A reference to a Secret.", "name", &name), "name", 64)
}

fn env(_: &mut SchemaGenerator) -> Schema {
    let name = json_schema!({ "type": "string", "minLength": 1, "maxLength": 1024, "pattern": format::VARIABLE,
        "description": "The name of the variable. Example: `HTTP_PROXY`." });
    map_of(&item("An environment variable, as in a container, with all its fields.", "name", &name), "name", 256)
}

fn env_from(_: &mut SchemaGenerator) -> Schema {
    let item = json_schema!({ "type": "object", "description": "A source of variables, as in a container, with all its fields.",
        "x-kubernetes-preserve-unknown-fields": true });
    json_schema!({ "type": "array", "maxItems": 64, "items": item })
}

fn volume_mounts(_: &mut SchemaGenerator) -> Schema {
    let path = json_schema!({ "type": "string", "minLength": 1, "maxLength": 4096,
        "description": "Where the volume is mounted. Example: `/etc/proxy`." });
    map_of(&item("A mount, as in a container, with all its fields.", "mountPath", &path), "mountPath", 128)
}

/// An object of pod content of which the schema knows its key only.
fn item(description: &str, key: &str, schema: &Schema) -> Schema {
    json_schema!({ "type": "object", "description": description, "required": [key], "properties": { key: schema },
        "x-kubernetes-preserve-unknown-fields": true })
}

/// A list of objects of which no two have the same `key`.
fn map_of(item: &Schema, key: &str, max: u32) -> Schema {
    json_schema!({ "type": "array", "maxItems": max, "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key] })
}

#[cfg(test)]
mod tests {
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
