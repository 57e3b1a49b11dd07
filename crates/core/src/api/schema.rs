//! The API server's validation by the schema, for servers that do not validate and for files.
//!
//! It covers the part of OpenAPI that our schema uses. Unlike a server, it treats `null` as absent everywhere, reports
//! every fault, and suggests a fix. The example comes from the field's own documentation.

use super::derived::INT_OR_STRING;
use super::format;
use serde_json::{Map, Number, Value};

/// A value that does not fit the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The path of the value, for example `spec.targets[0].group`.
    pub(super) path: String,
    pub(super) kind: FaultKind,
    pub(super) message: String,
}

/// The kind of fault of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// A required value is absent.
    Missing,
    /// The value has another type, or is out of its range.
    Type,
    /// The value is not one of the allowed ones.
    Choice,
    /// The field does not exist.
    Unknown,
    /// The list or map has too few items, or none.
    Few,
    /// The list or map has too many items.
    Many,
    /// A string is not well-formed.
    Form,
    /// An item has the key of an earlier one.
    Duplicate,
}

impl FaultKind {
    /// True if and only if a spec with such a fault is unreadable.
    pub(super) fn is_structural(self) -> bool {
        matches!(self, Self::Missing | Self::Type | Self::Choice | Self::Unknown)
    }
}

/// Every place where `value` does not fit `schema`.
pub(super) fn faults(schema: &Value, value: &Value) -> Vec<Fault> {
    let mut walk = Walk { faults: Vec::new() };
    walk.visit(&At { schema, path: String::new(), example: None }, value);
    walk.faults
}

/// `value` without members that are null. Null stays in pieces that the schema leaves open.
pub(super) fn without_nulls(schema: &Value, value: &Value) -> Value {
    match value {
        Value::Object(members) if !is_open(schema) => members
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), without_nulls(property(schema, name).unwrap_or(&Value::Null), value)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(|item| without_nulls(&schema["items"], item)).collect(),
        _ => value.clone(),
    }
}

/// A place in a value, with its schema.
struct At<'a> {
    schema: &'a Value,
    path: String,
    example: Option<&'a str>,
}

impl<'a> At<'a> {
    fn field(&self, name: &str, schema: &'a Value) -> Self {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Self { schema, path, example: example(schema) }
    }

    fn item(&self, index: usize) -> Self {
        let schema = &self.schema["items"];
        Self { schema, path: format!("{}[{index}]", self.path), example: example(schema).or(self.example) }
    }

    fn limit(&self, keyword: &str) -> Option<usize> {
        self.schema[keyword].as_u64().and_then(|limit| usize::try_from(limit).ok())
    }
}

struct Walk {
    faults: Vec<Fault>,
}

impl Walk {
    fn blame(&mut self, at: &At<'_>, kind: FaultKind, message: String) {
        let example = at.example.map(|example| format!("; e.g. `{example}`")).unwrap_or_default();
        self.faults.push(Fault { path: at.path.clone(), kind, message: message + &example });
    }

    fn visit(&mut self, at: &At<'_>, value: &Value) {
        if at.schema[INT_OR_STRING] == true {
            return self.number_or_text(at, value);
        }
        let Some(wanted) = at.schema["type"].as_str() else { return };
        if !is_of(wanted, value) {
            return self.blame(at, FaultKind::Type, format!("must be {}, is {}", describe(at.schema), kind_of(value)));
        }
        match value {
            Value::Object(members) => self.object(at, members),
            Value::Array(items) => self.array(at, items),
            Value::String(text) => self.string(at, text),
            Value::Number(number)
                if at.schema["format"] == "int32"
                    && number.as_i64().is_none_or(|number| i32::try_from(number).is_err()) =>
            {
                self.blame(at, FaultKind::Type, format!("must be between {} and {}, is {number}", i32::MIN, i32::MAX));
            }
            Value::Number(number) => self.range(at, number),
            _ => {}
        }
    }

    fn number_or_text(&mut self, at: &At<'_>, value: &Value) {
        match value {
            Value::Number(number) if is_of("integer", value) => self.range(at, number),
            Value::String(text) => self.string(at, text),
            _ => self.blame(at, FaultKind::Type, format!("must be an integer or a string, is {}", kind_of(value))),
        }
    }

    /// Both bounds are present, or none.
    fn range(&mut self, at: &At<'_>, number: &Number) {
        let bound = |keyword: &str| at.schema[keyword].as_f64().zip(number.as_f64());
        let is_low = bound("minimum").is_some_and(|(least, number)| number < least);
        let is_high = bound("maximum").is_some_and(|(most, number)| number > most);
        if is_low || is_high {
            let (least, most) = (&at.schema["minimum"], &at.schema["maximum"]);
            self.blame(at, FaultKind::Type, format!("must be between {least} and {most}, is {number}"));
        }
    }

    fn object(&mut self, at: &At<'_>, members: &Map<String, Value>) {
        let is_there = |name: &str| members.get(name).is_some_and(|value| !value.is_null());
        for name in at.schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .filter(|name| !is_there(name))
        {
            let field = at.field(name, property(at.schema, name).unwrap_or(&Value::Null));
            self.blame(&field, FaultKind::Missing, "must be given".to_owned());
        }
        for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
            match property(at.schema, name) {
                Some(schema) => self.visit(&at.field(name, schema), value),
                None if is_open(at.schema) => {}
                None => self.unknown(at, name),
            }
        }
        let count = members.keys().filter(|name| is_there(name)).count();
        self.count(at, count, "minProperties", "maxProperties", "field");
    }

    fn unknown(&mut self, at: &At<'_>, name: &str) {
        let known: Vec<_> =
            at.schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let hint = match similar(name, known.iter().copied()) {
            Some(name) => format!("; did you mean `{name}`?"),
            None => format!("; the fields here are {}", listed(&known)),
        };
        let field = At { example: None, ..at.field(name, &Value::Null) };
        self.blame(&field, FaultKind::Unknown, format!("there is no such field{hint}"));
    }

    fn array(&mut self, at: &At<'_>, items: &[Value]) {
        for (index, item) in items.iter().enumerate() {
            self.visit(&at.item(index), item);
        }
        self.count(at, items.len(), "minItems", "maxItems", "item");
        if at.schema["x-kubernetes-list-type"] != "map" {
            return;
        }
        for key in at.schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            for (index, item) in items.iter().enumerate() {
                let Some(value) = item.get(key).and_then(Value::as_str) else { continue };
                if let Some(first) =
                    items[..index].iter().position(|earlier| earlier.get(key).and_then(Value::as_str) == Some(value))
                {
                    let field = At { example: None, ..at.item(index).field(key, &Value::Null) };
                    self.blame(
                        &field,
                        FaultKind::Duplicate,
                        format!("must be unique in the list: {} has {} as well", at.item(first).path, quoted(value)),
                    );
                }
            }
        }
    }

    fn count(&mut self, at: &At<'_>, count: usize, min: &str, max: &str, noun: &str) {
        if let Some(min) = at.limit(min).filter(|&min| count < min) {
            self.blame(at, FaultKind::Few, format!("must have at least {}, or be left out", counted(min, noun)));
        }
        if let Some(max) = at.limit(max).filter(|&max| count > max) {
            self.blame(
                &At { example: None, ..at.same() },
                FaultKind::Many,
                format!("must have at most {}, has {count}", counted(max, noun)),
            );
        }
    }

    fn string(&mut self, at: &At<'_>, text: &str) {
        let choices = choices(at.schema);
        if !choices.is_empty() && !choices.contains(&text) {
            let hint = similar(text, choices.iter().copied());
            let hint = hint.map(|choice| format!("; did you mean `{choice}`?")).unwrap_or_default();
            let message = format!("must be one of {}, not {}{hint}", listed(&choices), quoted(text));
            self.blame(&At { example: None, ..at.same() }, FaultKind::Choice, message);
        }
        // In characters, because Kubernetes does not count bytes.
        let length = text.chars().count();
        if text.is_empty() && at.limit("minLength").is_some() {
            return self.blame(at, FaultKind::Form, "must not be empty".to_owned());
        }
        if let Some(max) = at.limit("maxLength").filter(|&max| length > max) {
            self.blame(at, FaultKind::Form, format!("must have at most {}, has {length}", counted(max, "character")));
        }
        let format = at.schema["pattern"].as_str().and_then(format::find);
        if let Some(format) = format.filter(|format| !(format.holds)(text)) {
            self.blame(at, FaultKind::Form, format!("must be {}, not {}", format.words, quoted(text)));
        }
    }
}

impl<'a> At<'a> {
    fn same(&self) -> At<'a> {
        At { schema: self.schema, path: self.path.clone(), example: self.example }
    }
}

fn property<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let named = schema["properties"].as_object().and_then(|properties| properties.get(name));
    named.or_else(|| schema["additionalProperties"].is_object().then_some(&schema["additionalProperties"]))
}

/// True if and only if the schema allows fields that it does not name.
fn is_open(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
        || !(schema["properties"].is_object() || schema["additionalProperties"].is_object())
}

fn is_of(type_: &str, value: &Value) -> bool {
    match type_ {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        _ => value.is_number(),
    }
}

fn describe(schema: &Value) -> String {
    let description = match (schema["type"].as_str(), schema["items"]["type"].as_str()) {
        (Some("array"), Some("string")) => "a list of strings",
        (Some("array"), _) => "a list of objects",
        (Some("string"), _) if schema["enum"].is_array() => return format!("one of {}", listed(&choices(schema))),
        (Some("string"), _) => "a string",
        (Some("boolean"), _) => "`true` or `false`",
        (Some("integer"), _) => "an integer",
        _ => "an object",
    };
    description.to_owned()
}

fn choices(schema: &Value) -> Vec<&str> {
    schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

pub(super) fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a number with a fraction",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `text` in quotes, shortened if it is long.
pub(super) fn quoted(text: &str) -> String {
    const LONGEST: usize = 64;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("`{}…`", &text[..end]),
        None => format!("`{text}`"),
    }
}

/// The example in the documentation of a field.
fn example(schema: &Value) -> Option<&str> {
    let description = schema["description"].as_str()?;
    let (_, rest) = description.split_once("Example: `").or_else(|| description.split_once("Examples: `"))?;
    rest.split_once('`').map(|(example, _)| example)
}

/// The one of `known` that `name` probably misspells.
pub(crate) fn similar<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |known: &str| strsim::damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase());
    let (distance, known) = known.map(|known| (distance(known), known)).min()?;
    (distance <= 1 + name.chars().count().min(known.chars().count()) / 4).then_some(known)
}
