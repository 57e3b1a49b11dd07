//! Compiles policies into objects and patches for API servers.
//!
//! With [`admission_policy`] the API server itself decides and injects, in CEL. With [`webhook`] it asks the operator.
//! [`completion`] is the patch that completes an object which waits for an Initializer.

pub mod admission_policy;
pub mod completion;
pub mod webhook;

use crate::policy::Policy;
use crate::workload::Kind;
use std::collections::{BTreeMap, BTreeSet};

/// The versions of `kind` through which `policies` match, by group; none if every version counts.
fn versions<'a>(kind: &'a Kind, policies: &[&'a Policy]) -> Option<BTreeMap<&'a str, BTreeSet<&'a str>>> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for target in policies.iter().flat_map(|policy| policy.targets_of(kind)) {
        if target.version == "*" {
            return None;
        }
        versions.entry(&target.group).or_default().insert(&target.version);
    }
    Some(versions)
}
