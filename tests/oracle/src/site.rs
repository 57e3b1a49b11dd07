//! Whom to watch, and what is his.

use anyhow::{Context, Result};
use jiff::Timestamp;
use std::str::FromStr;

/// What an operator may act on: the one of the install files, unless said otherwise.
#[derive(Clone, Debug)]
pub struct Site {
    /// The user that the operator is to the API server.
    pub user: String,
    /// The namespace that it runs in.
    pub namespace: String,
    /// Initializer names that are its own, besides those that end in `.scpol.dev`.
    pub initializers: Vec<String>,
    /// Custom resources that policies target, besides the built-in kinds.
    pub targets: Vec<Target>,
    /// When nothing happens that would be a reason to write.
    pub rest: Option<Rest>,
    /// Fields, by name, that differ from run to run.
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
    /// True if and only if an entry of this name is the operator's to take off an object.
    pub fn owns(&self, initializer: &str) -> bool {
        initializer.ends_with(".scpol.dev") || self.initializers.iter().any(|own| own == initializer)
    }

    /// True if and only if nothing in a namespace of that name is to be injected, whatever policies say.
    pub fn protects(&self, namespace: &str) -> bool {
        PROTECTED.contains(&namespace) || namespace == self.namespace
    }

    /// Where the pod lies in what the resource stores, as a JSON pointer; none if it is not ours to inject into.
    pub fn pod_of(&self, group: &str, resource: &str) -> Option<&str> {
        let built_in = BUILT_IN.iter().find(|(groups, name, _)| *name == resource && groups.contains(&group));
        built_in.map(|(_, _, pod)| *pod).or_else(|| {
            let custom = self.targets.iter().find(|target| target.group == group && target.resource == resource);
            custom.map(|target| target.pod.as_str())
        })
    }
}

/// The namespaces that are protected always; the operator's own is, too.
const PROTECTED: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// The built-in kinds that an initializer may complete: groups, resource, and where the pod lies.
const BUILT_IN: [(&[&str], &str, &str); 5] = [
    (&["apps", "extensions"], "deployments", "/spec/template"),
    (&["apps"], "statefulsets", "/spec/template"),
    (&["apps", "extensions"], "daemonsets", "/spec/template"),
    (&["batch"], "cronjobs", "/spec/jobTemplate/spec/template"),
    (&[""], "pods", ""),
];

/// A custom resource with a pod in it, written `GROUP/RESOURCE` or `GROUP/RESOURCE=/path/of/the/pod`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its API group.
    pub group: String,
    /// Its plural name.
    pub resource: String,
    /// Where the pod lies, as a JSON pointer.
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

/// A span of time, written `FROM..TO` with times as in RFC 3339.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Its beginning.
    pub from: Timestamp,
    /// Its end.
    pub to: Timestamp,
}

impl Rest {
    /// True if and only if `time` lies in it.
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
