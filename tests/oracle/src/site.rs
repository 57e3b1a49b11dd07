//! The watched operator and its property.

use anyhow::{Context, Result};
use jiff::Timestamp;
use std::str::FromStr;

/// The identity and limits of an operator, by default those of the install files.
#[derive(Clone, Debug)]
pub struct Site {
    /// The operator's user on the API server.
    pub user: String,
    /// The operator's namespace.
    pub namespace: String,
    /// The operator's initializer names besides those that end in `.scpol.dev`.
    pub initializers: Vec<String>,
    /// The custom resources that policies target.
    pub targets: Vec<Target>,
    /// A span of time in which no write is due.
    pub rest: Option<Rest>,
    /// The names of fields that differ between runs.
    pub masked: Vec<String>,
}

impl Default for Site {
    fn default() -> Self {
        Self {
            user: "system:serviceaccount:scpol-system:scpol".into(),
            namespace: "scpol-system".into(),
            initializers: Vec::new(),
            targets: Vec::new(),
            rest: None,
            masked: Vec::new(),
        }
    }
}

impl Site {
    /// Whether the operator may remove the pending entry `initializer`.
    pub fn owns(&self, initializer: &str) -> bool {
        initializer.ends_with(".scpol.dev") || self.initializers.iter().any(|own| own == initializer)
    }

    /// Whether injection in the namespace is forbidden under all policies.
    pub fn protects(&self, namespace: &str) -> bool {
        PROTECTED.contains(&namespace) || namespace == self.namespace
    }

    /// The JSON pointer of the pod in objects of the resource; none if injection is impossible.
    pub fn pod_of(&self, group: &str, resource: &str) -> Option<&str> {
        let built_in = BUILT_IN.iter().find(|(groups, name, _)| *name == resource && groups.contains(&group));
        built_in.map(|(_, _, pod)| *pod).or_else(|| {
            let custom = self.targets.iter().find(|target| target.group == group && target.resource == resource);
            custom.map(|target| target.pod.as_str())
        })
    }
}

/// The protected namespaces besides the operator's own.
const PROTECTED: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// The built-in kinds that an initializer may complete: groups, resource, and pointer of the pod.
const BUILT_IN: [(&[&str], &str, &str); 5] = [
    (&["apps", "extensions"], "deployments", "/spec/template"),
    (&["apps"], "statefulsets", "/spec/template"),
    (&["apps", "extensions"], "daemonsets", "/spec/template"),
    (&["batch"], "cronjobs", "/spec/jobTemplate/spec/template"),
    (&[""], "pods", ""),
];

/// A custom resource with a pod, in the form `GROUP/RESOURCE` or `GROUP/RESOURCE=/path/of/the/pod`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The API group.
    pub group: String,
    /// The plural name.
    pub resource: String,
    /// The JSON pointer of the pod.
    pub pod: String,
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, pod) = text.split_once('=').unwrap_or((text, "/spec/template"));
        let (group, resource) = name
            .split_once('/')
            .with_context(|| format!("`{text}`: write it as GROUP/RESOURCE or GROUP/RESOURCE=/path"))?;
        Ok(Self { group: group.into(), resource: resource.into(), pod: pod.into() })
    }
}

/// A span of time in the form `FROM..TO`, with times in RFC 3339.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The beginning.
    pub from: Timestamp,
    /// The end.
    pub to: Timestamp,
}

impl Rest {
    /// Whether `time` is in the span.
    pub fn covers(&self, time: Timestamp) -> bool {
        self.from <= time && time <= self.to
    }
}

impl FromStr for Rest {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (from, to) = text.split_once("..").with_context(|| format!("`{text}`: write it as FROM..TO"))?;
        let time =
            |text: &str| text.parse().with_context(|| format!("`{text}` is no time: write it as 2026-01-31T12:00:00Z"));
        Ok(Self { from: time(from)?, to: time(to)? })
    }
}
