//! Requests and limits as admission plugins sum them up.

use super::facts::{Fact, Facts, containers};
use crate::api::pod_schema::is_native_sidecar;
use crate::inject::value::{amounts, at, nanos, objects, text};
use crate::workload::Workload;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Amounts by resource, in billionths.
pub(crate) type Amounts = BTreeMap<String, i128>;

/// The resources of a container, or of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    pub(crate) requests: Amounts,
    pub(crate) limits: Amounts,
}

/// The resources of the pod of `workload`, without its overhead and without what LimitRanges would give it.
pub(crate) fn sums_of(workload: &Workload) -> Sums {
    Defaults::default().of_pod(workload)
}

/// What the LimitRanges of a namespace give to containers without a value of their own.
#[derive(Default)]
pub(super) struct Defaults(Sums);

impl Defaults {
    /// The defaults of `namespace`: of several LimitRanges, the first by name gives the value.
    pub(super) fn of(facts: &Facts, namespace: &str) -> Self {
        let mut all = Sums::default();
        for (_, range) in facts.all(Fact::LimitRange, namespace) {
            for item in items_of(range).filter(|item| text(item, "type") == "Container") {
                let [max, min, default, request] = ["max", "min", "default", "defaultRequest"].map(|map| of(item, map));
                // As the server completes a LimitRange.
                let limits = joined([default, max]);
                let requests = joined([request, limits.clone(), min]);
                all = Sums { requests: joined([all.requests, requests]), limits: joined([all.limits, limits]) };
            }
        }
        Self(all)
    }

    /// The resources of a container after admission.
    pub(super) fn complete(&self, container: &Map<String, Value>) -> Sums {
        let own = amounts(container, "limits");
        // The server takes a limit for the request before it asks the plugins.
        let requests = joined([amounts(container, "requests"), own.clone(), self.0.requests.clone()]);
        Sums { requests, limits: joined([own, self.0.limits.clone()]) }
    }

    /// The resources of the pod of `workload`.
    pub(super) fn of_pod(&self, workload: &Workload) -> Sums {
        let items: Vec<_> =
            containers(workload).map(|(list, item)| (list, is_native_sidecar(item), self.complete(item))).collect();
        let sum = |of: fn(&Sums) -> &Amounts| {
            let (mut running, mut natives, mut peak) = (Amounts::new(), Amounts::new(), Amounts::new());
            for (list, is_native, sums) in &items {
                match (*list, is_native) {
                    ("containers", _) => add(&mut running, of(sums)),
                    (_, true) => {
                        add(&mut running, of(sums));
                        add(&mut natives, of(sums));
                        raise(&mut peak, &natives);
                    }
                    (_, false) => {
                        let mut all = natives.clone();
                        add(&mut all, of(sums));
                        raise(&mut peak, &all);
                    }
                }
            }
            raise(&mut running, &peak);
            running
        };
        let own = workload.pod_spec();
        let of_pod = |field: &str| own.map(|spec| amounts(spec, field)).unwrap_or_default();
        Sums {
            requests: joined([of_pod("requests"), sum(|sums| &sums.requests)]),
            limits: joined([of_pod("limits"), sum(|sums| &sums.limits)]),
        }
    }
}

/// The limits of a LimitRange.
pub(super) fn items_of(range: &Value) -> impl Iterator<Item = &Map<String, Value>> {
    range.as_object().into_iter().flat_map(|range| objects(range, &["spec", "limits"]))
}

/// The amounts in the map `field` of `object`.
pub(super) fn of(object: &Map<String, Value>, field: &str) -> Amounts {
    let map = at(object, &[field]).and_then(Value::as_object).into_iter().flatten();
    map.filter_map(|(name, amount)| Some((name.clone(), nanos(amount)?))).collect()
}

/// The first amount of each resource.
fn joined<const N: usize>(all: [Amounts; N]) -> Amounts {
    let mut joined = Amounts::new();
    for (name, amount) in all.into_iter().flatten() {
        joined.entry(name).or_insert(amount);
    }
    joined
}

fn add(sums: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = sums.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

fn raise(most: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let most = most.entry(name.clone()).or_default();
        *most = (*most).max(*amount);
    }
}
