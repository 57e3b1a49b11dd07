//! The webhook configurations of one resource, entry by entry.

use super::{Address, POLICIES, check, check_server, entry, has_probe, knows_namespaces, selectors};
use crate::Unavailable;
use crate::capabilities::{Capabilities, registration};
use crate::compile::versions;
use crate::naming::{self, PROBE, namespaces, shared_name};
use crate::policy::{Policy, Site};
use crate::workload::Kind;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The differences between the two kinds of registration.
struct What {
    resource: &'static str,
    /// The name of the main entry.
    entry: &'static str,
    /// The called path.
    path: &'static str,
}

const MUTATING: What = What { resource: registration::MUTATING_WEBHOOKS, entry: "inject.scpol.dev", path: "/mutate/" };
const VALIDATING: What =
    What { resource: registration::VALIDATING_WEBHOOKS, entry: "validate.scpol.dev", path: "/validate/" };

/// The entry for policies with `Fail` that name their namespaces, if others have `Fail`, too.
const NAMED_ENTRY: &str = "validate-named.scpol.dev";

/// The entry for policies with `Ignore`, if others have `Fail`.
const IGNORE_ENTRY: &str = "validate-ignore.scpol.dev";

/// The entry that judges updates.
const UPDATE_ENTRY: &str = "validate-update.scpol.dev";

/// The entry for probes only, in the operator's own namespace where API servers can tell it.
pub(super) const PROBE_ENTRY: &str = "probe.scpol.dev";

/// The input of a registration.
pub(super) struct Scene<'a> {
    pub(super) kind: &'a Kind,
    pub(super) cluster: &'a Capabilities,
    pub(super) site: &'a Site,
    pub(super) address: &'a Address,
    /// The match conditions of a webhook that stands by; none for one that is called for every workload.
    pub(super) match_conditions: Option<&'a Value>,
}

impl Scene<'_> {
    /// See [`render`](super::render).
    pub(super) fn render(&self, policies: &[Arc<Policy>]) -> Result<Vec<Value>, Unavailable> {
        check_server(self.cluster)?;
        let targeting = policies.iter().filter(|policy| policy.targets_of(self.kind).next().is_some());
        let by_name: BTreeMap<&str, &Policy> =
            targeting.map(|policy| (policy.name.as_str(), policy.as_ref())).collect();
        let policies: Vec<&Policy> = by_name.into_values().collect();
        policies.iter().try_for_each(|policy| check(policy, self.cluster))?;
        self.address.check(self.cluster)?;
        let injecting: Vec<&Policy> = policies.iter().copied().filter(|policy| policy.injects()).collect();
        let judging: Vec<&Policy> = policies.into_iter().filter(|policy| policy.judges()).collect();
        let registrations = [(&MUTATING, injecting), (&VALIDATING, judging)];
        let needed = registrations.iter().filter(|(_, policies)| !policies.is_empty());
        Ok(needed.map(|(what, policies)| self.registration(what, policies)).collect())
    }

    fn registration(&self, what: &What, policies: &[&Policy]) -> Value {
        let resource = self.cluster.registration(what.resource).expect("the engine has been checked");
        let name = shared_name(self.kind);
        let mut metadata = naming::of_a_webhook(match what.resource {
            registration::MUTATING_WEBHOOKS => naming::injecting_metadata(&name, policies),
            _ => naming::metadata(&name, policies),
        });
        metadata["annotations"] = json!({ POLICIES: listed(policies) });
        let mut registration = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": metadata,
            "webhooks": self.entries(what, policies),
        });
        let revision = crate::digest::short(registration.to_string());
        for entry in registration["webhooks"].as_array_mut().into_iter().flatten() {
            entry["clientConfig"] = self.address.client(&format!("{}{revision}", what.path));
        }
        registration
    }

    /// The entries, which call the path without a revision.
    fn entries(&self, what: &What, policies: &[&Policy]) -> Vec<Value> {
        let is_judging = what.resource == registration::VALIDATING_WEBHOOKS;
        let updating: Vec<&Policy> = policies.iter().copied().filter(|p| p.acts_on_update(self.kind)).collect();
        let operations: &[&str] = if updating.is_empty() || is_judging { &["CREATE"] } else { &["CREATE", "UPDATE"] };
        let groups = if is_judging { by_failure(policies) } else { vec![(what.entry, "Ignore", policies.to_vec())] };
        let mut entries: Vec<Value> = Vec::new();
        for (name, failure_policy, policies) in groups {
            // The first entry has the name that is the same in every registration.
            let name = if entries.is_empty() { what.entry } else { name };
            entries.push(self.narrowed(what, name, failure_policy, &policies, operations));
        }
        if is_judging && !updating.is_empty() {
            entries.push(self.narrowed(what, UPDATE_ENTRY, "Ignore", &updating, &["UPDATE"]));
        }
        if self.match_conditions.is_some() || !has_probe(self.cluster) {
            return entries;
        }
        // A failed probe reports why we are not reachable. This entry can reject only probes.
        let mut probe = self.entry(what, PROBE_ENTRY, "Fail", policies, &["CREATE"]);
        if knows_namespaces(self.cluster) {
            let own = namespaces("In", [&self.site.operator_namespace]);
            probe["namespaceSelector"] = json!({ "matchExpressions": [own] });
        }
        probe["objectSelector"] = json!({ "matchExpressions": [{ "key": PROBE, "operator": "Exists" }] });
        entries.push(probe);
        entries
    }

    /// The entry for what `policies` may select.
    fn narrowed(&self, what: &What, name: &str, failure: &str, policies: &[&Policy], operations: &[&str]) -> Value {
        let mut entry = self.entry(what, name, failure, policies, operations);
        if let Some(selector) = selectors::of_namespaces(policies, self.cluster, self.site) {
            entry["namespaceSelector"] = selector;
        }
        if let Some(selector) = selectors::of_objects(policies, self.cluster) {
            entry["objectSelector"] = selector;
        }
        if let Some(conditions) = self.match_conditions {
            entry["matchConditions"] = conditions.clone();
        }
        entry
    }

    /// The common fields of all entries.
    fn entry(&self, what: &What, name: &str, failure: &str, policies: &[&Policy], operations: &[&str]) -> Value {
        let rules = json!(self.rules(policies, operations));
        let mut entry = entry(self.cluster, name, &self.address.client(what.path), &rules);
        entry["failurePolicy"] = json!(failure);
        if self.cluster.at_least(1, 15) && what.resource == registration::MUTATING_WEBHOOKS {
            entry["reinvocationPolicy"] = json!("Never");
        }
        entry
    }

    /// The matched requests: all groups and versions, or only the named ones.
    fn rules(&self, policies: &[&Policy], operations: &[&str]) -> Vec<Value> {
        let Some(versions) = versions(self.kind, policies) else {
            return vec![self.rule(&self.cluster.groups(self.kind), &["*"], operations)];
        };
        let rule =
            |(group, versions): (&str, BTreeSet<&str>)| self.rule(&[group], &Vec::from_iter(versions), operations);
        versions.into_iter().map(rule).collect()
    }

    /// One rule. It never matches subresources, which have names of their own.
    fn rule(&self, groups: &[&str], versions: &[&str], operations: &[&str]) -> Value {
        let mut rule = json!({
            "operations": operations,
            "apiGroups": groups,
            "apiVersions": versions,
            "resources": [self.kind.resource],
        });
        if self.cluster.at_least(1, 14) {
            rule["scope"] = json!("Namespaced");
        }
        rule
    }
}

/// Judging policies in groups that fail in the same way, each with the name of its entry and its `failurePolicy`.
fn by_failure<'a>(policies: &[&'a Policy]) -> Vec<(&'static str, &'static str, Vec<&'a Policy>)> {
    let (refusing, lenient): (Vec<&Policy>, Vec<&Policy>) = policies.iter().partition(|policy| policy.refuses());
    let (named, others) = selectors::by_namespaces(&refusing);
    let groups = [(VALIDATING.entry, "Fail", others), (NAMED_ENTRY, "Fail", named), (IGNORE_ENTRY, "Ignore", lenient)];
    groups.into_iter().filter(|(.., policies)| !policies.is_empty()).collect()
}

/// The value of [`POLICIES`].
fn listed(policies: &[&Policy]) -> String {
    let by_name: BTreeMap<_, _> = policies.iter().map(|policy| (&policy.name, &policy.spec_hash)).collect();
    serde_json::to_string(&by_name).expect("texts are JSON")
}
