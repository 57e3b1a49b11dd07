//! A policy as an InitializerConfiguration. Pure.

use super::types::{Entry, InitializerConfiguration, Rule};
use crate::api::{MANAGED_BY, MANAGER, POLICY_LABEL};
use crate::capabilities::Capabilities;
use crate::naming::own_name;
use crate::policy::Policy;
use crate::workload::Kind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The configuration of `policy` for `kinds`, its kinds that Initializers serve. It has the policy as its owner, labels, and
/// one rule per entry.
pub fn configuration(policy: &Policy, kinds: &[Arc<Kind>], cluster: &Capabilities) -> InitializerConfiguration {
    InitializerConfiguration {
        api_version: "admissionregistration.k8s.io/v1alpha1".into(),
        kind: "InitializerConfiguration".into(),
        metadata: ObjectMeta {
            name: Some(own_name(&policy.name)),
            labels: Some(BTreeMap::from([
                (MANAGED_BY.into(), MANAGER.into()),
                (POLICY_LABEL.into(), policy.name.clone()),
            ])),
            owner_references: Some(vec![owner(policy)]),
            ..ObjectMeta::default()
        },
        initializers: kinds.iter().flat_map(|kind| entries(policy, kind, cluster)).collect(),
    }
}

fn owner(policy: &Policy) -> OwnerReference {
    OwnerReference {
        api_version: "scpol.dev/v1alpha1".into(),
        kind: "SidecarPolicy".into(),
        name: policy.name.clone(),
        uid: policy.meta.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// The entries for one kind. No request matches two of them.
fn entries(policy: &Policy, kind: &Kind, cluster: &Capabilities) -> Vec<Entry> {
    let entry = |groups: Vec<String>, versions: Vec<String>| Entry {
        name: policy.initializer_name.clone(),
        rules: vec![Rule { api_groups: groups, api_versions: versions, resources: vec![kind.resource.clone()] }],
    };
    if policy.targets_of(kind).any(|target| target.version == "*") {
        // The server compares the group of the request, and the same object can be posted through each group.
        let groups = cluster.groups(kind).into_iter().map(str::to_owned).collect();
        return vec![entry(groups, vec!["*".into()])];
    }
    let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for target in policy.targets_of(kind) {
        versions.entry(&target.group).or_default().insert(target.version.clone());
    }
    versions.into_iter().map(|(group, versions)| entry(vec![group.into()], versions.into_iter().collect())).collect()
}
