//! The digest of a run: the part of the result that is equal in all runs of a scenario, with any faults.

use crate::history::Writes;
use crate::{Finding, Site, State, rules};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Fields that differ from run to run, at any depth.
const MASKED: [&str; 10] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "observedGeneration",
    "managedFields",
    "selfLink",
    "lastTransitionTime",
    "message",
    "time",
];
/// Kinds that are written repeatedly, or are about single moments.
const FLEETING: [&str; 3] = ["Event", "Lease", "Secret"];

/// The final objects without varying fields, and the number of the operator's writes of each workload.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
pub struct Digest {
    objects: BTreeMap<String, Value>,
    writes: BTreeMap<String, Writes>,
}

impl Digest {
    pub(crate) fn new(site: &Site, state: &State, writes: &BTreeMap<String, Writes>) -> Self {
        let lasting = state.objects().filter(|(_, object)| !FLEETING.iter().any(|kind| object["kind"] == *kind));
        let objects = lasting.map(|(place, object)| (place, masked(site, object))).collect();
        Self { objects, writes: writes.clone() }
    }

    /// The differences from the `others`, which come from runs without faults.
    pub fn compare(&self, others: &[Digest]) -> Vec<Finding> {
        if others.is_empty() {
            return Vec::new();
        }
        let mut findings = Vec::new();
        let finding = |object: &str, message: String| Finding {
            rule: rules::SAME,
            object: object.into(),
            audit_id: None,
            message,
        };
        let both = |keys: fn(&Digest) -> Vec<&String>| -> BTreeSet<String> {
            others.iter().chain([self]).flat_map(keys).cloned().collect()
        };
        for place in both(|digest| digest.objects.keys().collect()) {
            let (here, there) = (self.objects.get(&place), others.iter().map(|other| other.objects.get(&place)));
            if !there.clone().any(|there| there == here) {
                let there = there.flatten().next();
                findings.push(finding(&place, difference(there, here)));
            }
        }
        for place in both(|digest| digest.writes.keys().collect()) {
            let of = |digest: &Digest| digest.writes.get(&place).copied().unwrap_or_default();
            if !others.iter().any(|other| of(self).range().contains(&of(other).sure)) {
                let message =
                    format!("written {} times, and {} times without faults", of(self).sure, of(&others[0]).sure);
                findings.push(finding(&place, message));
            }
        }
        findings
    }
}

fn masked(site: &Site, object: &Value) -> Value {
    match object {
        Value::Object(fields) => {
            let is_masked = |name: &str| MASKED.contains(&name) || site.masked.iter().any(|masked| masked == name);
            let fields = fields.iter().filter(|(name, _)| !is_masked(name));
            fields.map(|(name, value)| (name.clone(), masked(site, value))).collect()
        }
        Value::Array(items) => items.iter().map(|item| masked(site, item)).collect(),
        other => other.clone(),
    }
}

fn difference(without: Option<&Value>, with: Option<&Value>) -> String {
    match (without, with) {
        (Some(_), None) => "is not there, and is without faults".into(),
        (None, Some(_)) => "is there, and is not without faults".into(),
        (without, with) => {
            let (path, without, with) =
                deepest(String::new(), without.unwrap_or(&Value::Null), with.unwrap_or(&Value::Null));
            format!("`{path}` is {with:.200}, and {without:.200} without faults")
        }
    }
}

/// The path of the first difference.
fn deepest(path: String, one: &Value, other: &Value) -> (String, String, String) {
    if let (Value::Object(ones), Value::Object(others)) = (one, other) {
        let names: BTreeSet<&String> = ones.keys().chain(others.keys()).collect();
        if let Some(name) = names.into_iter().find(|name| ones.get(*name) != others.get(*name)) {
            return deepest(format!("{path}/{name}"), &one[name.as_str()], &other[name.as_str()]);
        }
    }
    (path, one.to_string(), other.to_string())
}
