//! The change of the quality of service class of pods by what policies add.

use crate::api::code::Code;
use crate::inject;
use crate::qos::{self, QosClass};
use crate::workload::Workload;
use serde::Serialize;
use serde_json::{Map, Value};

/// A change of the class.
#[derive(Serialize, Debug)]
pub(super) struct QualityChange {
    before: String,
    after: String,
    code: String,
    /// The added containers that change the class, and how.
    #[serde(rename = "by")]
    causes: Vec<String>,
}

impl QualityChange {
    /// The change between `workload` without the content of any policy and `injected`, on Kubernetes 1.`minor`; none unless its pods
    /// were Guaranteed.
    pub(super) fn of(workload: &Workload, injected: &Workload, minor: Option<u32>) -> Option<Self> {
        let undone = inject::bare(workload);
        let bare = undone.map_or_else(|| workload.clone(), |undone| workload.with_body(undone.body));
        let (before, after) = (qos::of(&bare, minor)?, qos::of(injected, minor)?);
        let own: Vec<_> = containers(&bare).map(name).collect();
        let added = containers(injected).filter(|container| !own.contains(&name(container)));
        let cause = |container: &Map<String, Value>| {
            qos::shortfall(container).map(|cause| format!("container `{}` {cause}", name(container)))
        };
        (before == QosClass::Guaranteed && before != after).then(|| Self {
            before: before.to_string(),
            after: after.to_string(),
            code: Code::QualityOfServiceChanged.to_string(),
            causes: added.filter_map(cause).collect(),
        })
    }

    /// The sentence for people.
    pub(super) fn note(&self) -> String {
        let Self { before, after, code, causes } = self;
        format!(
            "Quality of service of its pods: {before} without the policies, {after} with them ({code}): {}",
            causes.join(", ")
        )
    }
}

fn containers(workload: &Workload) -> impl Iterator<Item = &Map<String, Value>> {
    let lists = ["containers", "initContainers"].into_iter();
    let lists = lists.filter_map(|list| workload.pod_spec()?.get(list)?.as_array());
    lists.flatten().filter_map(Value::as_object)
}

fn name(container: &Map<String, Value>) -> &str {
    container.get("name").and_then(Value::as_str).unwrap_or_default()
}
