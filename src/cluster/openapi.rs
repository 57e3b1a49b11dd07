//! The fields of pod content that the server knows, from its own OpenAPI document.
//!
//! Old servers silently drop unknown fields, so a sidecar would lack settings that its author wrote. Therefore a
//! template is compared with the server's schema before it is registered.

use super::client::{CallError, call};
use crate::api::v1alpha1::Template;
use futures::AsyncBufReadExt;
use http::Request;
use json_event_parser::{JsonEvent, JsonSyntaxError, LowLevelJsonParser};
use kube::Client;
use serde_json::Value;
use std::collections::HashMap;
use std::pin::pin;
use thiserror::Error;

const POD_SPEC: &str = "io.k8s.api.core.v1.PodSpec";
/// The prefixes of the definitions that a PodSpec uses.
const PARTS: [&str; 2] = ["io.k8s.api.core.", "io.k8s.apimachinery."];
/// The prefix of a reference to a definition.
const REFERENCE: &str = "#/definitions/";

/// The definitions that a PodSpec is made of.
#[derive(Clone, Debug, Default)]
pub struct PodSchema {
    definitions: HashMap<String, Definition>,
}

/// The properties of an object, each with the name of the definition that it, or each of its items, has.
type Definition = HashMap<String, Option<String>>;

/// The reason why a document does not describe pods.
#[derive(Debug, Error)]
pub enum Unusable {
    /// The document is no JSON.
    #[error(transparent)]
    Syntax(#[from] JsonSyntaxError),
    /// The document has no definition of a PodSpec.
    #[error("it has no definition of {POD_SPEC}")]
    NoPodSpec,
}

impl PodSchema {
    /// Fetches the server's document.
    ///
    /// # Errors
    /// If the server does not answer, or answers with another document.
    pub async fn fetch(client: &Client) -> Result<Self, CallError> {
        let request = Request::get("/openapi/v2")
            .header("Accept", "application/json")
            .body(Vec::new())
            .expect("a constant request");
        let read = async {
            let mut answer = pin!(client.request_stream(request).await?);
            let mut document = Document::default();
            loop {
                let chunk = answer.fill_buf().await.map_err(kube::Error::ReadEvents)?;
                let length = chunk.len();
                if length == 0 {
                    return Ok(document.end());
                }
                if let Err(error) = document.take(chunk) {
                    return Ok(Err(error.into()));
                }
                answer.consume_unpin(length);
            }
        };
        let read = call(read).await?;
        read.map_err(|error| CallError::Away(format!("the OpenAPI document cannot be read: {error}")))
    }

    /// Reads a document.
    ///
    /// # Errors
    /// If the document is no JSON, or has no definition of a PodSpec.
    pub fn parse(text: &[u8]) -> Result<Self, Unusable> {
        let mut document = Document::default();
        document.take(text)?;
        document.end()
    }

    /// Drops every definition that no PodSpec uses.
    fn prune(&mut self) {
        let mut all = std::mem::take(&mut self.definitions);
        let mut wanted = vec![POD_SPEC.to_owned()];
        while let Some(name) = wanted.pop() {
            let Some((name, definition)) = all.remove_entry(&name) else { continue };
            wanted.extend(definition.values().flatten().cloned());
            self.definitions.insert(name, definition);
        }
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
            self.definitions.get(parent?)?.get(field)?.as_deref()
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
                // A definition without properties is a map or a scalar with its own syntax, so there is nothing to
                // compare.
                let known = definition.and_then(|name| self.definitions.get(name)).filter(|known| !known.is_empty());
                let Some(known) = known else { return };
                for (field, value) in fields {
                    match known.get(field) {
                        Some(property) => self.compare(value, property.as_deref(), &format!("{path}.{field}"), unknown),
                        None => unknown.push(format!("{path}.{field}")),
                    }
                }
            }
            _ => {}
        }
    }
}

/// A document that is parsed as it arrives. It has megabytes, of which we keep kilobytes.
#[derive(Default)]
struct Document {
    parser: LowLevelJsonParser,
    /// Received bytes that may be the beginning of a token.
    rest: Vec<u8>,
    /// For each open object and list, the name of the field that is being read in it.
    path: Vec<String>,
    schema: PodSchema,
}

impl Document {
    fn take(&mut self, chunk: &[u8]) -> Result<(), JsonSyntaxError> {
        self.read(chunk, false)
    }

    fn end(mut self) -> Result<PodSchema, Unusable> {
        self.read(&[], true)?;
        self.schema.prune();
        if self.schema.definitions.is_empty() { Err(Unusable::NoPodSpec) } else { Ok(self.schema) }
    }

    /// Parses the received bytes and `chunk`. `is_last` says that no bytes follow.
    fn read(&mut self, chunk: &[u8], is_last: bool) -> Result<(), JsonSyntaxError> {
        let mut rest = std::mem::take(&mut self.rest);
        rest.extend_from_slice(chunk);
        let mut read = 0;
        loop {
            let step = self.parser.parse_next(&rest[read..], is_last);
            read += step.consumed_bytes;
            match step.event.transpose()? {
                Some(JsonEvent::Eof) | None => break,
                Some(event) => self.learn(event),
            }
        }
        rest.drain(..read);
        self.rest = rest;
        Ok(())
    }

    fn learn(&mut self, event: JsonEvent<'_>) {
        match event {
            JsonEvent::ObjectKey(key) => {
                if let Some(field) = self.path.last_mut() {
                    field.clear();
                    field.push_str(&key);
                }
            }
            JsonEvent::StartObject => {
                if let Some([name, "properties", property, "", ""]) = self.place() {
                    let (name, property) = (name.to_owned(), property.to_owned());
                    self.schema.definitions.entry(name).or_default().entry(property).or_default();
                }
                self.path.push(String::new());
            }
            JsonEvent::StartArray => self.path.push(String::new()),
            JsonEvent::EndObject | JsonEvent::EndArray => drop(self.path.pop()),
            JsonEvent::String(value) => {
                if let Some(
                    [name, "properties", property, "$ref", ""] | [name, "properties", property, "items", "$ref"],
                ) = self.place()
                    && let Some(definition) = value.strip_prefix(REFERENCE)
                {
                    let (name, property) = (name.to_owned(), property.to_owned());
                    self.schema.definitions.entry(name).or_default().insert(property, Some(definition.to_owned()));
                }
            }
            _ => {}
        }
    }

    /// The position of the document in a part of a PodSpec: the names below `definitions`, empty beyond the last one.
    fn place(&self) -> Option<[&str; 5]> {
        let (top, below) = self.path.split_first()?;
        let is_part = || PARTS.iter().any(|part| below.first().is_some_and(|name| name.starts_with(part)));
        let mut place = [""; 5];
        if top != "definitions" || below.len() > place.len() || !is_part() {
            return None;
        }
        place.iter_mut().zip(below).for_each(|(place, name)| *place = name);
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document() -> String {
        let of_core = |name: &str| format!("io.k8s.api.core.v1.{name}");
        let reference = |name: &str| json!({ "$ref": format!("{REFERENCE}{}", of_core(name)) });
        let definitions = json!({
            POD_SPEC: { "properties": { "containers": { "type": "array", "items": reference("C") } } },
            of_core("C"): { "required": ["name"], "properties": { "name": {}, "env": { "items": reference("E") }, "resources": reference("R") } },
            of_core("E"): { "properties": { "name": {}, "value": {} } },
            of_core("R"): { "properties": { "limits": { "additionalProperties": {} }, "claims": {} } },
            of_core("Node"): { "properties": { "spec": {} } },
        });
        json!({ "info": { "properties": {} }, "definitions": definitions }).to_string()
    }

    #[test]
    fn a_field_that_the_server_lacks_is_named_with_its_path() {
        let schema = PodSchema::parse(document().as_bytes()).expect("document");
        let template = serde_json::from_value(json!({ "containers": [
            { "name": "a", "restartPolicy": "Always", "env": [{ "name": "x", "valeu": "y" }], "resources": { "limits": { "any": "1" }, "limitz": {} } },
        ]})).expect("template");
        let mut unknown = schema.unknown_fields(&template);
        unknown.sort();
        let expected = ["env[0].valeu", "resources.limitz", "restartPolicy"];
        assert_eq!(unknown, expected.map(|field| format!("spec.template.containers[0].{field}")));
    }

    #[test]
    fn a_document_may_come_in_any_pieces_and_of_it_is_kept_what_a_pod_has() {
        let whole = PodSchema::parse(document().as_bytes()).expect("document");
        assert_eq!(whole.definitions.len(), 4);
        for size in 1..40 {
            let mut pieces = Document::default();
            document().as_bytes().chunks(size).for_each(|piece| pieces.take(piece).expect("a piece"));
            assert_eq!(pieces.end().expect("document").definitions, whole.definitions, "{size}");
        }
    }

    #[test]
    fn what_is_no_document_is_an_error() {
        for text in
            ["", "<html>", r#"{"definitions":"#, "{]", "[1}", "{}", r#"{"definitions":{"io.k8s.api.core.v1.Pod":{}}}"#]
        {
            assert!(PodSchema::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
