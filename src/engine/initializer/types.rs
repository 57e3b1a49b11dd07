//! The API types that Kubernetes dropped in 1.14: `admissionregistration.k8s.io/v1alpha1` InitializerConfiguration.

use crate::workload::Kind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, GroupVersionKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The initializers that the server adds to new objects.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct InitializerConfiguration {
    /// `admissionregistration.k8s.io/v1alpha1`
    pub api_version: String,
    /// `InitializerConfiguration`
    pub kind: String,
    /// Standard metadata. The object is cluster-scoped.
    pub metadata: ObjectMeta,
    /// The entries, in the order in which they go into an object's list. May be null on the wire.
    #[serde(deserialize_with = "null_is_empty")]
    pub initializers: Vec<Entry>,
}

impl InitializerConfiguration {
    /// The kinds that the rules name, without the path of their pod template.
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
    /// Exactly one rule, because the server wants *all* rules to match (1.7-1.13, contrary to its documentation).
    #[serde(deserialize_with = "null_is_empty")]
    pub rules: Vec<Rule>,
}

/// A cross product of groups, versions and resources.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// `""` is the core group.
    pub api_groups: Vec<String>,
    /// `*` is any version.
    pub api_versions: Vec<String>,
    pub resources: Vec<String>,
}

/// The resource of configurations.
pub fn resource() -> ApiResource {
    let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1alpha1", "InitializerConfiguration");
    ApiResource::from_gvk(&gvk)
}

fn null_is_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
