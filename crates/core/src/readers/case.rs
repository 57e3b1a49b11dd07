//! One policy and one workload, before and after the injection.

use super::facts::{Facts, containers};
use crate::api::code::Code;
use crate::inject::Template;
use crate::inject::value::text;
use crate::workload::Workload;
use serde_json::{Map, Value};

/// What a reader does to the application because of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub code: Code,
    /// The field of the policy.
    pub field: String,
    /// The effect, and what to do.
    pub message: String,
}

impl Told {
    pub(super) fn new(code: Code, field: &str, message: impl Into<String>) -> Self {
        Self { code, field: format!("spec.template.{field}"), message: message.into() }
    }
}

/// A policy and a workload.
pub(super) struct Case<'a> {
    /// What the workload gets.
    pub(super) template: &'a Template,
    /// The template as it is written: paths in messages are those of the policy.
    pub(super) written: &'a Template,
    /// The workload without content of policies.
    pub(super) bare: &'a Workload,
    /// The workload with the content of all policies.
    pub(super) after: &'a Workload,
    /// What makes the pod; the workload itself, if it is no made pod.
    pub(super) maker: &'a Workload,
    pub(super) facts: &'a Facts,
}

impl<'a> Case<'a> {
    pub(super) fn namespace(&self) -> &'a str {
        self.maker.namespace()
    }

    /// The containers that the policy adds, each with its list.
    pub(super) fn added(&self) -> Vec<(&'static str, &'a Map<String, Value>)> {
        let own: Vec<_> = containers(self.bare).map(|(_, item)| text(item, "name")).collect();
        let is_added = |item: &Map<String, Value>| {
            let name = text(item, "name");
            self.template.names_container(name) && !own.contains(&name)
        };
        containers(self.after).filter(|(_, item)| is_added(item)).collect()
    }

    /// The path in the policy of the container `name` of its template, below `spec.template`.
    pub(super) fn path_of(&self, name: &str) -> String {
        let spec = &self.written.spec;
        let lists = [("containers", &spec.containers), ("initContainers", &spec.init_containers)];
        let found = lists.into_iter().find_map(|(list, items)| {
            items.iter().position(|item| text(item, "name") == name).map(|at| format!("{list}[{at}]"))
        });
        found.unwrap_or_else(|| "containers".to_owned())
    }
}
