//! The API types that Kubernetes dropped in 1.14: `admissionregistration.k8s.io/v1alpha1` InitializerConfiguration.

use crate::workload::Kind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, GroupVersionKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Which initializers the server puts on which new objects.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct InitializerConfiguration {
    /// `admissionregistration.k8s.io/v1alpha1`
    pub api_version: String,
    /// `InitializerConfiguration`
    pub kind: String,
    /// Standard metadata. Cluster-scoped.
    pub metadata: ObjectMeta,
    /// The entries, in the order in which they go into an object's list. May be null on the wire.
    #[serde(deserialize_with = "null_is_empty")]
    pub initializers: Vec<Entry>,
}

impl InitializerConfiguration {
    /// The kinds that its rules name, wherever their pods lie.
    pub fn kinds(&self) -> BTreeSet<Arc<Kind>> {
        let rules = self.initializers.iter().flat_map(|entry| &entry.rules);
        let named = rules.flat_map(|rule| {
            rule.api_groups.iter().flat_map(|group| rule.resources.iter().map(move |resource| (group, resource)))
        });
        named.map(|(group, resource)| Kind::of(group, resource, None)).collect()
    }
}

/// One initializer.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(default)]
pub struct Entry {
    /// At least three segments. Not unique, neither here nor across configurations.
    pub name: String,
    /// The server wants *all* rules to match (1.7-1.13, whatever its documentation says): so there must be exactly one.
    #[serde(deserialize_with = "null_is_empty")]
    pub rules: Vec<Rule>,
}

/// A cross product of groups, versions and resources.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// `""` is core.
    pub api_groups: Vec<String>,
    /// `*` is any.
    pub api_versions: Vec<String>,
    /// Plural names.
    pub resources: Vec<String>,
}

/// How to address configurations.
pub fn resource() -> ApiResource {
    let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1alpha1", "InitializerConfiguration");
    ApiResource::from_gvk(&gvk)
}

fn null_is_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
