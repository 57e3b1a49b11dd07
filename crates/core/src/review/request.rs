//! What is read of the review of a workload.

use super::Call;
use super::envelope::{CREATE, Invalid, Resource, UPDATE, check_resource, check_uid, expect};
use crate::api::is_dns_label;
use crate::outside::{NAME, is_segment, shown};
use crate::policy::Policies;
use crate::workload::{Kind, Workload};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::fmt;
use std::sync::Arc;

/// The request of a review of a workload.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Request {
    pub(super) uid: String,
    pub(super) resource: Resource,
    sub_resource: String,
    pub(super) namespace: String,
    /// Empty before the server has made a name of `generateName`.
    name: String,
    pub(super) operation: String,
    #[serde(deserialize_with = "object")]
    pub(super) object: Value,
    #[serde(deserialize_with = "object")]
    pub(super) old_object: Value,
    pub(super) dry_run: Option<bool>,
}

/// The object without its `managedFields`, because decisions do not use them, and they are larger than the rest of a
/// small object.
fn object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    Depth::Object.deserialize(deserializer)
}

/// How deep in an object a map is that is being read.
#[derive(Clone, Copy)]
enum Depth {
    Object,
    Metadata,
}

impl<'de> DeserializeSeed<'de> for Depth {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Depth {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut read = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            let value = match (self, key.as_str()) {
                (Depth::Object, "metadata") => fields.next_value_seed(Depth::Metadata)?,
                (Depth::Metadata, "managedFields") => {
                    fields.next_value::<IgnoredAny>()?;
                    continue;
                }
                _ => fields.next_value()?,
            };
            read.insert(key, value);
        }
        Ok(Value::Object(read))
    }
}

impl Request {
    /// Whether an object in a namespace is created or changed.
    pub(super) fn is_of_interest(&self) -> bool {
        let is_acted_on = [CREATE, UPDATE].contains(&self.operation.as_str());
        is_acted_on && self.sub_resource.is_empty() && !self.namespace.is_empty()
    }

    pub(super) fn is_update(&self) -> bool {
        self.operation == UPDATE
    }

    /// The kind of the resource, as the policies that target it define it.
    pub(super) fn kind<'a>(&self, policies: &'a Policies) -> Option<&'a Arc<Kind>> {
        let Resource { group, resource, .. } = &self.resource;
        policies.kinds().find(|kind| kind.resource == *resource && kind.is_in(group))
    }

    /// The object before an update, and the object, as decisions of `call` need them.
    pub(super) fn workloads(
        &mut self,
        call: Call,
        kind: &Arc<Kind>,
        namespace: Option<Arc<Value>>,
    ) -> (Option<Workload>, Workload) {
        let is_update = self.is_update();
        // On 1.13, the server itself may have added initializers since the mutating call (plugin `Initializers`). Whether
        // the object was posted with its own is unknown then, and validations must not depend on it.
        let drops_initializers = is_update || call == Call::Validate;
        let placed = |mut object: Value| {
            let metadata = &mut object["metadata"];
            // The request has the namespace even if the object does not.
            metadata["namespace"] = Value::from(self.namespace.as_str());
            if let Some(metadata) = metadata.as_object_mut() {
                if drops_initializers {
                    metadata.remove("initializers");
                }
                // Only stored objects have one. An apply may name one for an object that it creates.
                if !is_update {
                    metadata.remove("resourceVersion");
                }
                // Servers below 1.25 take it away from a created object only after the mutating calls, so otherwise it
                // would keep every policy out of an object that then lives on.
                if !is_update {
                    metadata.remove("deletionTimestamp");
                }
            }
            object
        };
        let [old, new] = [&mut self.old_object, &mut self.object].map(std::mem::take);
        let new = Workload::new(kind, placed(new)).within(namespace);
        (is_update.then(|| new.with_body(placed(old))), new)
    }

    /// Checks the spelling of everything that says which object it is about.
    pub(super) fn check(&self) -> Result<(), Invalid> {
        check_uid(&self.uid)?;
        check_resource(&self.operation, &self.resource, &self.sub_resource)?;
        // Empty for objects of the cluster.
        let is_namespace = self.namespace.is_empty() || is_dns_label(&self.namespace);
        expect(is_namespace, "namespace", &self.namespace, "the name of a Namespace, which is a DNS label")?;
        if !self.name.is_empty() && !is_segment(&self.name) {
            return Err(no_name("name", &self.name));
        }
        check_names("object", &self.object["metadata"])?;
        check_names("oldObject", &self.old_object["metadata"])
    }
}

/// Checks the names in `metadata`, the metadata of the `field` of the request. Each may be missing.
fn check_names(field: &str, metadata: &Value) -> Result<(), Invalid> {
    type Rule<'a> = (&'a str, &'a dyn Fn(&str) -> bool);
    let is_prefix = |text: &str| text.len() <= NAME && !text.contains(['/', '%']);
    let rules: [Rule<'_>; 3] = [("name", &is_segment), ("generateName", &is_prefix), ("namespace", &is_dns_label)];
    for (key, is_right) in rules {
        match &metadata[key] {
            Value::Null => {}
            Value::String(text) if text.is_empty() || is_right(text) => {}
            other => {
                let text = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
                return Err(no_name(&format!("{field}.metadata.{key}"), &text));
            }
        }
    }
    Ok(())
}

fn no_name(field: &str, text: &str) -> Invalid {
    Invalid::NoName(format!("`request.{field}` is `{}`, which no API server stores", shown(text)))
}
