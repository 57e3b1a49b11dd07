//! The final objects.

use crate::Site;
use anyhow::{Result, bail};
use serde_json::Value;
use std::collections::BTreeSet;

/// Objects of any kind, each with its `apiVersion` and `kind`.
#[derive(Clone, Debug, Default)]
pub struct State {
    objects: Vec<Value>,
    /// The kinds that were listed, even without objects.
    listed: BTreeSet<String>,
}

/// The plural name of a kind, which is regular for the built-in kinds.
fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    }
}

impl State {
    /// Reads a JSON list of objects, bare or in the format of `kubectl get -o json`.
    ///
    /// # Errors
    /// If the value is no list, or an object lacks its kind.
    pub fn new(list: Value) -> Result<Self> {
        let objects = match list {
            Value::Array(objects) => objects,
            Value::Object(mut list) => match list.remove("items") {
                Some(Value::Array(objects)) => objects,
                _ => bail!("the state is an object without `items`: give a list of objects"),
            },
            _ => bail!("the state is no list of objects"),
        };
        if let Some(nameless) =
            objects.iter().find(|object| !object["kind"].is_string() || !object["metadata"]["name"].is_string())
        {
            bail!("an object of the state has no kind or no name: {nameless:.200}");
        }
        let listed = objects.iter().filter_map(|object| object["kind"].as_str().map(str::to_owned)).collect();
        Ok(Self { objects, listed })
    }

    /// The same state with these kinds marked as listed, even without objects.
    #[must_use]
    pub fn with_listed(mut self, kinds: impl IntoIterator<Item = String>) -> Self {
        self.listed.extend(kinds);
        self
    }

    /// The objects, each with its place in the form of the audit log: `resource namespace/name`.
    pub fn objects(&self) -> impl Iterator<Item = (String, &Value)> {
        self.objects.iter().map(|object| (place(object), object))
    }

    /// The workloads, each with its pod.
    pub(crate) fn workloads<'a>(&'a self, site: &'a Site) -> impl Iterator<Item = (String, &'a Value, &'a Value)> {
        self.objects().filter_map(|(place, object)| {
            let group = object["apiVersion"].as_str()?.rsplit_once('/').map_or("", |(group, _)| group);
            let pod = site.pod_of(group, &plural(object["kind"].as_str()?))?;
            Some((place, object, object.pointer(pod)?))
        })
    }

    /// The objects of a kind.
    pub(crate) fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |object| object["kind"] == kind)
    }

    /// The policies by name.
    pub(crate) fn policies(&self) -> impl Iterator<Item = (&str, &Value)> {
        let policies = self.objects.iter().filter(|object| object["kind"] == "SidecarPolicy");
        policies.filter_map(|policy| Some((policy["metadata"]["name"].as_str()?, policy)))
    }

    /// Whether an object of that kind and name exists. None if the kind was not listed.
    pub(crate) fn has(&self, kind: &str, name: &str) -> Option<bool> {
        let mut named = self.objects.iter().filter(|object| object["kind"] == kind);
        self.listed.contains(kind).then(|| named.any(|object| object["metadata"]["name"] == name))
    }
}

fn place(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let namespace = if text("namespace").is_empty() { String::new() } else { format!("{}/", text("namespace")) };
    format!("{} {namespace}{}", plural(object["kind"].as_str().unwrap_or_default()), text("name"))
}
