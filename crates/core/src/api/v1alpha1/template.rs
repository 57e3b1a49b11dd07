//! What a policy adds to pods, and where.

use super::RawObject;
use super::pod_fields::{PodFields, Share};
use crate::api::format;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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

    /// Secrets to pull images with, to add to the pod's. Default: none. One that the pod has already is no conflict.
    /// Example: `[{name: registry}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "image_pull_secrets")]
    pub image_pull_secrets: Vec<RawObject>,

    /// Environment variables for the workload's own containers: those that no matching policy adds. Default: none. A
    /// variable of that name with another value is a conflict, unless it has `merge`: then the value joins that of the
    /// workload. Example: `[{name: HTTP_PROXY, value: "http://localhost:3128"}]`, or `[{name: JAVA_TOOL_OPTIONS, value:
    /// "-javaagent:/agent/a.jar", merge: Append}]`.
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

    /// Fields of the pod itself. Default: none. Example: `{terminationGracePeriodSeconds: {atLeast: 60}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodFields>,

    /// Mounts and variables of the workload's own containers to copy into containers of the template. Default: none.
    /// Content of other policies is not copied. Example: `[{to: log-agent, volumeMounts: ["*"]}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub share: Vec<Share>,
}

/// A list of raw objects in a template.
pub struct TemplateList {
    /// The field of the template.
    pub name: &'static str,
    /// The definition of Kubernetes that has the same field.
    pub(in crate::api) definition: &'static str,
    /// Its items.
    pub of: fn(&Template) -> &Vec<RawObject>,
    /// The same, to change them.
    pub of_mut: fn(&mut Template) -> &mut Vec<RawObject>,
}

/// The fields of a variable of a template that no pod has.
pub const OF_VARIABLES: [&str; 2] = ["merge", "separator"];

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
    /// Where `template.containers` go: `After` (default) or `Before` the workload's own.
    pub containers: Place,

    /// Where `template.initContainers` go, and so when they run: `After` (default) or `Before` the workload's own.
    pub init_containers: Place,

    /// Where `template.env` goes among the variables of the workload's own containers. A variable may refer by `$(NAME)`
    /// only to those before it. `Auto` (default): before the workload's own, so that these may refer to the added ones; a
    /// variable that refers to one of the workload's goes after them. `Before`, `After`: before or after all of them.
    pub env: EnvPlace,

    /// Where `template.envFrom` goes: `Before` (default) or `After` the workload's own sources. Of two sources that have
    /// one key the later wins; by default the workload keeps its own.
    pub env_from: Place,

    /// Where `template.volumeMounts` go: `After` (default) or `Before` the workload's own. Container runtimes mount by
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

pub(super) fn match_labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "maxProperties": 64, "additionalProperties": { "type": "string", "maxLength": 63, "pattern": format::LABEL_VALUE } })
}

pub(super) fn match_annotations(_: &mut SchemaGenerator) -> Schema {
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
    let merge = json_schema!({ "type": "string", "enum": ["Append", "Prepend"],
        "description": "Joins `value` to that of the workload: `Append` puts it after, `Prepend` before. A container without the variable gets \
                        `value`, and one whose value has it between separators keeps its own. Default: a variable of that name with \
                        another value is a conflict. So is one with `valueFrom`. Example: `Append`." });
    let separator = json_schema!({ "type": "string", "minLength": 1, "maxLength": 8,
        "description": "The text between both values. Only with `merge`. Default: a space. Example: `\":\"`." });
    let item = json_schema!({ "type": "object", "description": "An environment variable, as in a container, with all its fields.",
        "required": ["name"], "properties": { "name": name, "merge": merge, "separator": separator },
        "x-kubernetes-preserve-unknown-fields": true });
    map_of(&item, "name", 256)
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
