//! Which fields of pod content the server knows, read from its own OpenAPI document.
//!
//! Old servers drop a field that they do not know without a word: a sidecar would lack what its author wrote. So a
//! template is compared with the server's schema before it is registered.

use super::client::{CallError, call};
use crate::api::v1alpha1::Template;
use http::Request;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use std::collections::{HashMap, HashSet};

const POD_SPEC: &str = "io.k8s.api.core.v1.PodSpec";

/// The definitions that a PodSpec is made of.
#[derive(Clone, Debug, Default)]
pub struct PodSchema {
    definitions: HashMap<String, Definition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Definition {
    #[serde(default)]
    properties: HashMap<String, Property>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Property {
    #[serde(rename = "$ref")]
    reference: Option<String>,
    items: Option<Box<Property>>,
}

impl Property {
    /// The name of the definition that this property, or each of its items, has.
    fn definition(&self) -> Option<&str> {
        let of_items = || self.items.as_ref()?.reference.as_ref();
        self.reference.as_ref().or_else(of_items)?.strip_prefix("#/definitions/")
    }
}

/// The document, borrowed: it has megabytes, of which we keep kilobytes.
#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    definitions: HashMap<&'a str, &'a RawValue>,
}

impl PodSchema {
    /// Fetches the server's document.
    ///
    /// # Errors
    /// If the server does not answer, or with something else.
    pub async fn fetch(client: &Client) -> Result<Self, CallError> {
        let request = Request::get("/openapi/v2")
            .header("Accept", "application/json")
            .body(Vec::new())
            .expect("a constant request");
        let text = call(client.request_text(request)).await?;
        Self::parse(&text).map_err(|error| CallError::Away(format!("the OpenAPI document cannot be read: {error}")))
    }

    /// Reads a document.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        let document: Document<'_> = serde_json::from_str(text)?;
        let mut schema = Self::default();
        let mut wanted = vec![POD_SPEC.to_owned()];
        let mut seen = HashSet::new();
        while let Some(name) = wanted.pop() {
            let Some(raw) = document.definitions.get(name.as_str()).filter(|_| seen.insert(name.clone())) else {
                continue;
            };
            let definition: Definition = serde_json::from_str(raw.get())?;
            wanted.extend(definition.properties.values().filter_map(Property::definition).map(str::to_owned));
            schema.definitions.insert(name, definition);
        }
        Ok(schema)
    }

    /// The paths of every field in `template` that the server does not know.
    pub fn unknown_fields(&self, template: &Template) -> Vec<String> {
        let mut unknown = Vec::new();
        let pod = [
            ("containers", &template.containers),
            ("initContainers", &template.init_containers),
            ("volumes", &template.volumes),
            ("imagePullSecrets", &template.image_pull_secrets),
        ];
        let container =
            [("env", &template.env), ("envFrom", &template.env_from), ("volumeMounts", &template.volume_mounts)];
        let of = |parent: Option<&str>, field: &str| -> Option<&str> {
            self.definitions.get(parent?)?.properties.get(field)?.definition()
        };
        let pod = pod.map(|(list, items)| (Some(POD_SPEC), list, items));
        let container = container.map(|(list, items)| (of(Some(POD_SPEC), "containers"), list, items));
        for (parent, list, items) in pod.into_iter().chain(container) {
            let definition = of(parent, list);
            for (index, item) in items.iter().enumerate() {
                self.compare(
                    &Value::Object(item.clone()),
                    definition,
                    &format!("spec.template.{list}[{index}]"),
                    &mut unknown,
                );
            }
        }
        unknown
    }

    fn compare(&self, value: &Value, definition: Option<&str>, path: &str, unknown: &mut Vec<String>) {
        match value {
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.compare(item, definition, &format!("{path}[{index}]"), unknown);
                }
            }
            Value::Object(fields) => {
                // Without properties it is a map or a scalar with its own syntax: nothing to compare.
                let known =
                    definition.and_then(|name| self.definitions.get(name)).filter(|known| !known.properties.is_empty());
                let Some(known) = known else { return };
                for (field, value) in fields {
                    match known.properties.get(field) {
                        Some(property) => {
                            self.compare(value, property.definition(), &format!("{path}.{field}"), unknown)
                        }
                        None => unknown.push(format!("{path}.{field}")),
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_field_that_the_server_lacks_is_named_with_its_path() {
        let document = json!({ "definitions": {
            POD_SPEC: { "properties": { "containers": { "type": "array", "items": { "$ref": "#/definitions/C" } } } },
            "C": { "properties": { "name": {}, "env": { "items": { "$ref": "#/definitions/E" } }, "resources": { "$ref": "#/definitions/R" } } },
            "E": { "properties": { "name": {}, "value": {} } },
            "R": { "properties": { "limits": { "additionalProperties": {} }, "claims": {} } },
        }});
        let schema = PodSchema::parse(&document.to_string()).expect("document");
        let template = serde_json::from_value(json!({ "containers": [
            { "name": "a", "restartPolicy": "Always", "env": [{ "name": "x", "valeu": "y" }], "resources": { "limits": { "any": "1" }, "limitz": {} } },
        ]})).expect("template");
        let mut unknown = schema.unknown_fields(&template);
        unknown.sort();
        let expected = ["env[0].valeu", "resources.limitz", "restartPolicy"];
        assert_eq!(unknown, expected.map(|field| format!("spec.template.containers[0].{field}")));
    }
}
