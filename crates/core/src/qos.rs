//! The quality of service class of a pod, as the API server computes it: `ComputePodQOS` in `pkg/apis/core/helper/qos`. It
//! decides which pods the kubelet evicts first, and which ones can have CPUs of their own.

use crate::api::v1alpha1::RawObject;
use crate::inject::value::amounts;
use crate::workload::Workload;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// The resources that count.
const COUNTED: [&str; 2] = ["cpu", "memory"];
/// The first minor version of Kubernetes 1 that is known to count init containers. 1.13 does not.
const COUNTS_INIT_CONTAINERS: u32 = 16;

/// A class, the first one to be evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QosClass {
    /// No container has a request or a limit.
    BestEffort,
    /// All other pods.
    Burstable,
    /// Every container has a limit for CPU and memory, and requests as much.
    Guaranteed,
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The class of the pods of `workload` on Kubernetes 1.`minor`, or on the newest version. `None` if no container decides
/// it: there is no pod, or the pod has `resources` of its own.
pub fn of(workload: &Workload, minor: Option<u32>) -> Option<QosClass> {
    let spec = workload.pod_spec()?;
    if spec.get("resources").and_then(Value::as_object).is_some_and(|resources| !resources.is_empty()) {
        return None;
    }
    let lists = if counts_init_containers(minor) { &["containers", "initContainers"][..] } else { &["containers"] };
    let containers = lists.iter().filter_map(|list| spec.get(*list)?.as_array()).flatten();
    Some(of_containers(containers.filter_map(Value::as_object)))
}

/// Whether init containers count on Kubernetes 1.`minor`, or on the newest version.
pub fn counts_init_containers(minor: Option<u32>) -> bool {
    minor.is_none_or(|minor| minor >= COUNTS_INIT_CONTAINERS)
}

/// The class of a pod with these containers.
pub fn of_containers<'a>(containers: impl IntoIterator<Item = &'a RawObject>) -> QosClass {
    let (mut requested, mut limited) = (BTreeMap::new(), BTreeMap::new());
    let mut is_limited = true;
    for container in containers {
        let (requests, limits) = (requests(container), limits(container));
        is_limited &= limits.len() == COUNTED.len();
        for (sums, amounts) in [(&mut requested, requests), (&mut limited, limits)] {
            for (name, amount) in amounts {
                *sums.entry(name).or_insert(0_i128) += amount;
            }
        }
    }
    match (requested.is_empty() && limited.is_empty(), is_limited && requested == limited) {
        (true, _) => QosClass::BestEffort,
        (_, true) => QosClass::Guaranteed,
        _ => QosClass::Burstable,
    }
}

/// What keeps the pods of `container` from the class Guaranteed.
pub fn shortfall(container: &RawObject) -> Option<String> {
    let (requests, limits) = (requests(container), limits(container));
    let unlimited: Vec<_> = COUNTED.into_iter().filter(|name| !limits.contains_key(*name)).collect();
    let lower: Vec<_> = COUNTED.into_iter().filter(|name| requests.get(*name) != limits.get(*name)).collect();
    match (&unlimited[..], &lower[..]) {
        ([], []) => None,
        ([], lower) => Some(format!("requests less {} than its limit", lower.join(" and "))),
        (unlimited, _) => Some(format!("has no limit of {}", unlimited.join(" and "))),
    }
}

/// The requests; for a resource without one, its limit, as on the server.
fn requests(container: &RawObject) -> BTreeMap<String, i128> {
    let mut requests = amounts(container, "limits");
    requests.extend(amounts(container, "requests"));
    counted(requests)
}

fn limits(container: &RawObject) -> BTreeMap<String, i128> {
    counted(amounts(container, "limits"))
}

fn counted(mut amounts: BTreeMap<String, i128>) -> BTreeMap<String, i128> {
    amounts.retain(|name, amount| COUNTED.contains(&name.as_str()) && *amount > 0);
    amounts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;
    use serde_json::json;

    /// The class of a pod whose containers have these resources.
    fn class(resources: &[Value], minor: Option<u32>) -> Option<QosClass> {
        let containers: Vec<_> = resources.iter().map(|resources| json!({ "resources": resources })).collect();
        let pod = json!({ "spec": { "containers": containers } });
        of(&Workload::new(Kind::find("", "pods").expect("built in"), pod), minor)
    }

    #[test]
    fn a_pod_is_guaranteed_only_if_every_container_requests_its_limits() {
        let full = json!({ "limits": { "cpu": "1", "memory": "1Gi" } });
        let equal =
            json!({ "limits": { "cpu": "500m", "memory": "1Gi" }, "requests": { "cpu": 0.5, "memory": "1024Mi" } });
        let less = json!({ "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "100m", "memory": "1Gi" } });
        let zero = json!({ "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "0", "memory": "1Gi" } });
        let other = json!({ "requests": { "example.org/gpu": 1, "cpu": 0 } });
        for (resources, expected) in [
            (vec![full.clone(), equal], QosClass::Guaranteed),
            (vec![full.clone(), less], QosClass::Burstable),
            (vec![full.clone(), zero], QosClass::Burstable),
            (vec![full, json!({})], QosClass::Burstable),
            (vec![json!({ "requests": { "cpu": 1 } })], QosClass::Burstable),
            (vec![json!({}), other], QosClass::BestEffort),
        ] {
            assert_eq!(class(&resources, None), Some(expected), "{resources:?}");
        }
    }

    #[test]
    fn init_containers_count_on_servers_that_count_them_and_resources_of_the_pod_replace_all() {
        let full = json!({ "limits": { "cpu": "1", "memory": "1Gi" } });
        let mut pod = json!({ "spec": { "containers": [{ "resources": full }], "initContainers": [{ "name": "i" }] } });
        let class =
            |pod: &Value, minor| of(&Workload::new(Kind::find("", "pods").expect("built in"), pod.clone()), minor);
        assert_eq!(class(&pod, None), Some(QosClass::Burstable));
        assert_eq!(class(&pod, Some(13)), Some(QosClass::Guaranteed));
        pod["spec"]["resources"] = json!({ "requests": { "cpu": 1 } });
        assert_eq!(class(&pod, None), None);
    }
}
