//! The CustomResourceDefinition for servers of any age: the derived and tidied schema, with the rules in CEL. Also in
//! the form of `apiextensions.k8s.io/v1beta1`.

use super::derived::{INT_OR_STRING, described, for_each_schema};
use super::format;
use super::rules;
use super::v1alpha1::SidecarPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The definition for servers from 1.16: with defaults, and with rules in CEL that servers evaluate from 1.25 on.
pub fn v1() -> CustomResourceDefinition {
    serde_json::from_value(definition()).expect("the definition was made from this type")
}

/// The definition for servers below 1.16, where a schema has neither defaults nor extensions, and prunes no field.
pub fn v1beta1() -> Value {
    let mut definition = definition();
    let spec = &mut definition["spec"];
    let version = spec["versions"][0].take();
    let name = &version["name"];
    let columns: Vec<Value> =
        version["additionalPrinterColumns"].as_array().into_iter().flatten().map(legacy_column).collect();
    spec["version"] = name.clone();
    spec["versions"] = json!([{ "name": name, "served": true, "storage": true }]);
    spec["additionalPrinterColumns"] = columns.into();
    spec["subresources"] = version["subresources"].clone();
    spec["validation"] = json!({ "openAPIV3Schema": legacy(&version["schema"]["openAPIV3Schema"]) });
    definition["apiVersion"] = "apiextensions.k8s.io/v1beta1".into();
    definition
}

/// `definition` as a YAML document that parsers of any age read.
///
/// # Errors
/// If it cannot be written as YAML.
pub fn yaml(definition: &impl Serialize) -> Result<String, serde_saphyr::ser::Error> {
    let text = serde_saphyr::to_string(definition)?;
    // Trimmed, because empty lines within a text get its indentation, which editors and `git diff` mark as a mistake.
    Ok(text.lines().map(|line| line.trim_end().to_owned() + "\n").collect())
}

fn definition() -> Value {
    let mut definition = serde_json::to_value(SidecarPolicy::crd()).expect("a definition is JSON");
    let mut schema = described();
    // The name is not required, because an object with `generateName` has none before it is stored.
    if let Some(metadata) = schema["properties"]["metadata"].as_object_mut() {
        metadata.remove("required");
    }
    for rule in rules::in_cel() {
        let target = at(&mut schema, rule.at);
        let rules = target.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
        let rules = rules.as_array_mut().expect("made here");
        rules.push(json!({ "rule": rule.rule, "message": rule.message }));
    }
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema;
    definition
}

/// The schema of the field `path`, where `[]` stands for the items of a list.
fn at<'a>(schema: &'a mut Value, path: &str) -> &'a mut Map<String, Value> {
    let steps = path.split('.').filter(|step| !step.is_empty());
    let found = steps.fold(schema, |schema, step| match step.strip_suffix("[]") {
        Some(list) => &mut schema["properties"][list]["items"],
        None => &mut schema["properties"][step],
    });
    found.as_object_mut().expect("rules name fields of the schema")
}

fn legacy(schema: &Value) -> Value {
    let mut schema = schema.clone();
    for_each_schema(&mut schema, &mut |schema| {
        if schema.get(INT_OR_STRING).is_some_and(|is| is == true) {
            // With a minimal length, so that the string keeps its type: see `may_be_empty`.
            schema.insert("anyOf".to_owned(), json!([{ "type": "integer" }, { "type": "string", "minLength": 1 }]));
        }
        schema.retain(|keyword, _| {
            !["default", "nullable"].contains(&keyword.as_str()) && !keyword.starts_with("x-kubernetes-")
        });
        if let Some(choices) = schema.get_mut("enum").and_then(Value::as_array_mut) {
            choices.retain(|choice| !choice.is_null());
        }
        if may_be_empty(schema) {
            schema.remove("type");
        }
    });
    schema
}

/// True if and only if the schema is that of a string which may be empty. The validation below 1.14
/// (go-openapi/validate 0.18, `type.go`) takes an empty string for null and rejects it, if it was built with a current
/// Go. Without a type, every build accepts the string. This function may go when no server below 1.14 is supported.
fn may_be_empty(schema: &Map<String, Value>) -> bool {
    let pattern = schema.get("pattern").and_then(Value::as_str).and_then(format::find);
    let is_free = !schema.contains_key("enum") && !schema.contains_key("format") && !schema.contains_key("minLength");
    schema.get("type").is_some_and(|type_| type_ == "string")
        && is_free
        && pattern.is_none_or(|format| (format.holds)(""))
}

fn legacy_column(column: &Value) -> Value {
    let mut column = column.clone();
    if let Some(fields) = column.as_object_mut()
        && let Some(path) = fields.remove("jsonPath")
    {
        fields.insert("JSONPath".to_owned(), path);
    }
    column
}
