//! The CustomResourceDefinition for servers of any age: the derived and tidied schema, with the rules in CEL. Also in
//! the form of `apiextensions.k8s.io/v1beta1`.

use super::format;
use super::rules;
use super::v1alpha1::SidecarPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use schemars::generate::SchemaSettings;
use schemars::transform::AddNullable;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// Formats that API servers of every age know. Servers reject other formats, or warn about them.
const KNOWN_FORMATS: [&str; 4] = ["date-time", "double", "int32", "int64"];

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

/// The schema of the whole object, without the rules in CEL, and with the examples of descriptions only, because it
/// stays in memory.
pub(super) fn schema() -> &'static Value {
    static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
        let mut schema = described();
        for_each_schema(&mut schema, &mut |schema| {
            let Some(Value::String(description)) = schema.remove("description") else { return };
            if let Some(example) = description.find("Example") {
                schema.insert("description".to_owned(), description[example..].into());
            }
        });
        schema
    });
    &SCHEMA
}

/// The schema of the whole object, without the rules in CEL: as kube derives it for its definition, and tidied.
fn described() -> Value {
    let settings = SchemaSettings::openapi3()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .with_transform(AddNullable::default())
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(OptionalIntOrString);
    let mut schema = settings.into_generator().into_root_schema_for::<SidecarPolicy>().to_value();
    tidy(&mut schema);
    let name = json!({ "type": "string", "minLength": 1, "maxLength": 63, "pattern": format::SUBDOMAIN });
    schema["properties"]["metadata"] =
        json!({ "type": "object", "required": ["name"], "properties": { "name": name } });
    schema
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

/// Removes the keywords that servers do not need or know. Gives each paragraph of a description one line, because
/// `kubectl explain` wraps them itself.
fn tidy(schema: &mut Value) {
    for_each_schema(schema, &mut |schema| {
        // Removed, because servers prune null before validation, and null means absent here.
        schema.remove("nullable");
        schema.remove("title");
        if schema.get("format").is_some_and(|format| !KNOWN_FORMATS.iter().any(|known| format == known)) {
            schema.remove("format");
        }
        if let Some(Value::String(description)) = schema.get_mut("description") {
            let paragraphs: Vec<_> =
                description.split("\n\n").map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
            *description = paragraphs.join("\n\n");
        }
    });
}

fn legacy(schema: &Value) -> Value {
    let mut schema = schema.clone();
    for_each_schema(&mut schema, &mut |schema| {
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

/// Calls `change` for the schema and every schema in it; names of properties are no keywords.
fn for_each_schema(schema: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    let Some(keywords) = schema.as_object_mut() else { return };
    change(keywords);
    for (keyword, value) in keywords {
        match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                properties.values_mut().for_each(|schema| for_each_schema(schema, change))
            }
            ("items" | "additionalProperties" | "not", schema) => for_each_schema(schema, change),
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
                schemas.iter_mut().for_each(|schema| for_each_schema(schema, change))
            }
            _ => {}
        }
    }
}
