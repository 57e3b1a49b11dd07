//! The schema of a policy, as derived from [`SidecarPolicy`] and tidied, without the rules in CEL.

use super::format;
use super::v1alpha1::SidecarPolicy;
use kube::core::schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter};
use schemars::generate::SchemaSettings;
use schemars::transform::AddNullable;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// Formats that API servers of every age know. Servers reject other formats, or warn about them.
const KNOWN_FORMATS: [&str; 4] = ["date-time", "double", "int32", "int64"];

/// The keyword for integers and strings. Such a schema has no `type`.
pub(super) const INT_OR_STRING: &str = "x-kubernetes-int-or-string";

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
pub(super) fn described() -> Value {
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

/// Calls `change` for the schema and every schema in it; names of properties are no keywords.
pub(super) fn for_each_schema(schema: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
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
