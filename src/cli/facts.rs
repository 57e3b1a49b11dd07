//! The objects beside workloads of a cluster that other readers of pods look at, as far as the user may read them.

use super::live::{LOOKED_AT, api, list, resource};
use crate::cluster::client::{CallError, call};
use crate::cluster::object::Object;
use crate::policy::{Policies, Policy};
use crate::readers::{self, Fact, FactKind, Facts};
use crate::workload::Workload;
use kube::Client;
use kube::api::ListParams;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The answer of a server without that object, or without that resource.
const NOT_FOUND: u16 = 404;

/// What could be read.
#[derive(Default)]
pub(super) struct LiveFacts {
    pub(super) facts: Facts,
    /// The resources that could not be read, by namespace.
    unread: BTreeMap<String, BTreeSet<&'static str>>,
}

impl LiveFacts {
    /// Those of files, where nothing is unread.
    pub(super) fn of_files(facts: Facts) -> Self {
        Self { facts, ..Self::default() }
    }

    /// The facts that decide what `policies` do to the first of `workloads`.
    pub(super) async fn read(client: &Client, workloads: &[Workload], policies: &Policies) -> Self {
        let mut wanted = BTreeSet::new();
        for workload in workloads.iter().take(LOOKED_AT) {
            let reaches = |policy: &&Policy| {
                policy.injects() && policy.kinds.iter().any(|kind| *kind == workload.kind || kind.is_pod())
            };
            let policies = policies.at(workload).map(Arc::as_ref).filter(reaches);
            let of_workload = readers::wanted(policies, workload).into_iter();
            wanted.extend(of_workload.map(|(fact, name)| (workload.namespace().to_owned(), fact, name)));
        }
        let mut found = Self::default();
        for (namespace, fact, name) in wanted {
            match objects(client, fact.kind(), &namespace, name.as_deref()).await {
                Ok(objects) => objects.iter().for_each(|object| found.add(fact, &namespace, object)),
                Err(_) => drop(found.unread.entry(namespace).or_default().insert(fact.kind().resource)),
            }
        }
        found
    }

    fn add(&mut self, fact: Fact, namespace: &str, object: &Object) {
        let namespace = if fact.kind().is_namespaced { namespace } else { "" };
        self.facts.add(fact, namespace, Arc::new(object.value()));
    }

    /// What is unknown about the workloads of `namespace`, as a sentence.
    pub(super) fn unread_in(&self, namespace: &str) -> Option<String> {
        let unread = self.unread.get(namespace)?.iter().copied().collect::<Vec<_>>().join(", ");
        Some(format!(
            "You cannot read {unread} in namespace `{namespace}`: what these do to the pods because of the policies is unknown."
        ))
    }
}

/// The objects of that kind in `namespace`, or in the cluster if they are in none: that of the `name`, or all. None, if the server has no such kind.
async fn objects(
    client: &Client,
    kind: &FactKind,
    namespace: &str,
    name: Option<&str>,
) -> Result<Vec<Object>, CallError> {
    for version in kind.versions {
        let resource = resource(kind.group, version, kind.kind, kind.resource);
        let api = api(client, &resource, kind.is_namespaced.then_some(namespace));
        let found = match name {
            Some(name) => call(api.get_opt(name)).await.map(|found| found.into_iter().collect()),
            None => list(&api, ListParams::default()).await,
        };
        match found {
            // An older version may be there.
            Err(error) if error.code() == NOT_FOUND => {}
            found => return found,
        }
    }
    Ok(Vec::new())
}
