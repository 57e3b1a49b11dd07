//! The validation of pod content without a server: the fields of every minor version, and the rules that the API server
//! checks by hand.
//!
//! [`in_template`] checks the content of a policy, [`in_pod`] the pod of a workload. Both are for files. The operator asks
//! its own server about values, by a dry run. It takes from here only the fields that the server lacks
//! ([`unknown_fields`]), because old servers drop them in silence, dry run or not.

mod rules;
mod table;

use super::code::Code;
use super::schema::{kind_of, listed, quoted, similar};
use super::v1alpha1::{LISTS, OF_VARIABLES, Template, TemplateList};
use super::violation::Violation;
use admission_cel::quantity;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use table::{Field, NEWEST, OLDEST, Type};

/// Whether `item`, an init container, is a native sidecar.
pub fn is_native_sidecar(item: &Map<String, Value>) -> bool {
    item.get("restartPolicy").is_some_and(|policy| policy == "Always")
}

/// A fault in pod content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The path of the field, for example `spec.template.containers[0].livenesProbe`.
    pub field: String,
    /// The kind of fault.
    pub kind: FaultKind,
    /// The rule, and what to write instead. The sentence begins with the field.
    pub message: String,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The field does not exist, and one with a similar name does.
    Misspelt,
    /// The field exists in no known version.
    Unknown,
    /// The field exists in another version only.
    OtherVersion,
    /// The value has another type.
    Type,
    /// The value breaks a rule.
    Value,
    /// A name appears twice.
    Duplicate,
}

impl FaultKind {
    /// The code of such a fault in a template.
    pub fn code(self) -> Code {
        match self {
            Self::Misspelt | Self::Unknown | Self::OtherVersion => Code::UnknownTemplateField,
            Self::Type | Self::Value => Code::TemplateInvalid,
            Self::Duplicate => Code::DuplicateName,
        }
    }
}

/// Every fault in the untyped `spec.template` for a server of 1.`minor`; by default, the newest known one.
pub fn in_template(template: &Value, minor: Option<u32>) -> Vec<Violation> {
    let mut walk = Walk::new(minor);
    for list in &LISTS {
        // Only lists, because the policy's own schema reports other types.
        if let (Some(field), Some(items @ Value::Array(_))) = (field_of(list), template.get(list.name)) {
            walk.value(&field.of, &as_in_pods(list, items.clone()), &format!("spec.template.{}", list.name));
        }
    }
    if let Some(template) = template.as_object() {
        rules::of_template(&mut walk, template, "spec.template");
    }
    let violation = |fault: Fault| Violation { code: fault.kind.code(), field: fault.field, message: fault.message };
    walk.faults.into_iter().map(violation).collect()
}

/// The path of every field of `template` that servers of 1.`minor` lack. Empty if `minor` is unknown, or later than every
/// known version: such servers reject unknown fields in a strict dry run.
pub fn unknown_fields(template: &Template, minor: Option<u32>) -> Vec<String> {
    let mut unknown = Vec::new();
    let Some(minor) = minor.filter(|minor| *minor <= NEWEST).map(|minor| minor.max(OLDEST)) else { return unknown };
    for list in &LISTS {
        if let Some(field) = field_of(list) {
            add_unknown(
                &field.of,
                &as_in_pods(list, json!((list.of)(template))),
                &format!("spec.template.{}", list.name),
                minor,
                &mut unknown,
            );
        }
    }
    unknown
}

/// The `items` of `list` without the fields of ours that no pod has.
fn as_in_pods(list: &TemplateList, mut items: Value) -> Value {
    let objects = items.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut);
    for item in objects.filter(|_| list.name == "env") {
        item.retain(|field, _| !OF_VARIABLES.contains(&field.as_str()));
    }
    items
}

/// Every field that a template can have, as `Definition.field`: of its lists, and of what these contain.
pub fn of_templates() -> BTreeSet<String> {
    let mut found = BTreeSet::from(["metadata.annotations", "metadata.labels"].map(str::to_owned));
    let mut open: Vec<&Type> = LISTS.iter().filter_map(field_of).map(|field| &field.of).collect();
    while let Some(of) = open.pop() {
        match of {
            Type::List(of) | Type::Map(of) => open.push(of),
            Type::Of(definition) => {
                for field in table::fields(definition) {
                    if found.insert(format!("{definition}.{}", field.name)) {
                        open.push(&field.of);
                    }
                }
            }
            _ => {}
        }
    }
    found
}

/// The field of a pod, or of a container, that has the items of `list`.
fn field_of(list: &TemplateList) -> Option<&'static Field> {
    table::fields(list.definition).iter().find(|field| field.name == list.name)
}

fn add_unknown(of: &Type, value: &Value, path: &str, minor: u32, unknown: &mut Vec<String>) {
    match (of, value) {
        (Type::List(of), Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                add_unknown(of, item, &format!("{path}[{index}]"), minor, unknown);
            }
        }
        (Type::Of(definition), Value::Object(members)) => {
            let fields = table::fields(definition);
            for (name, value) in members.iter().filter(|_| !fields.is_empty()) {
                let at = format!("{path}.{name}");
                match fields.iter().find(|field| field.name == name && field.is_in(minor)) {
                    Some(field) => add_unknown(&field.of, value, &at, minor, unknown),
                    None => unknown.push(at),
                }
            }
        }
        _ => {}
    }
}

/// Every fault in `pod` for a server of 1.`minor`. `pod` has the `metadata` and `spec` of a pod, and is at `path`.
pub fn in_pod(pod: &Value, path: &str, minor: Option<u32>) -> Vec<Fault> {
    let mut walk = Walk::new(minor);
    if !path.is_empty() {
        walk.value(&Type::Of("PodTemplateSpec"), pod, path);
        return walk.faults;
    }
    // Only these two, because the others are fields of a Pod alone.
    for (field, of) in [("metadata", Type::Of("ObjectMeta")), ("spec", Type::Of("PodSpec"))] {
        walk.value(&of, &pod[field], field);
    }
    rules::metadata::of(&mut walk, pod.get("metadata"), "metadata");
    walk.faults
}

/// Every annotation and label in `metadata` that is no text: every server rejects those.
pub fn in_metadata(metadata: &Value) -> Vec<Fault> {
    let mut walk = Walk::new(None);
    for map in ["labels", "annotations"] {
        if let Some(values) = metadata.get(map).filter(|values| !values.is_null()) {
            walk.value(&Type::Map(Box::new(Type::Text)), values, &format!("metadata.{map}"));
        }
    }
    walk.faults
}

struct Walk {
    minor: u32,
    /// The version in messages.
    version: String,
    /// Whether it is later than every known version, so that it may have other fields.
    is_later: bool,
    faults: Vec<Fault>,
}

impl Walk {
    fn new(minor: Option<u32>) -> Self {
        let version = match minor {
            Some(minor) if minor <= NEWEST => format!("Kubernetes 1.{minor}"),
            _ => format!("Kubernetes up to 1.{NEWEST}"),
        };
        let is_later = minor.is_some_and(|minor| minor > NEWEST);
        Self { minor: minor.unwrap_or(NEWEST).clamp(OLDEST, NEWEST), version, is_later, faults: Vec::new() }
    }

    fn blame(&mut self, field: impl Into<String>, kind: FaultKind, message: impl Into<String>) {
        let (field, message) = (field.into(), message.into());
        if !self.faults.iter().any(|fault| fault.field == field) {
            self.faults.push(Fault { field, kind, message });
        }
    }

    /// Adds a fault: the value at `field` breaks a rule.
    fn wrong(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.blame(field, FaultKind::Value, message);
    }

    fn value(&mut self, of: &Type, value: &Value, path: &str) {
        match (of, value) {
            // Because null counts as absent, as on a server.
            (_, Value::Null) | (Type::Any, _) | (Type::Text, Value::String(_)) | (Type::Boolean, Value::Bool(_)) => {}
            (Type::Int32, Value::Number(number)) if number.as_i64().is_some_and(|it| i32::try_from(it).is_ok()) => {}
            (Type::Int64, Value::Number(number)) if number.is_i64() => {}
            (Type::IntOrText, Value::Number(number)) if number.is_i64() => {}
            (Type::IntOrText, Value::String(_)) => {}
            (Type::Quantity, Value::Number(_)) => {}
            (Type::Quantity, Value::String(text)) => self.quantity(text, path),
            (Type::Of(definition), Value::Object(members)) => self.object(definition, members, path),
            (Type::List(of), Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    match item {
                        Value::Null => self.type_(of, item, &path),
                        item => self.value(of, item, &path),
                    }
                }
            }
            (Type::Map(of), Value::Object(members)) => {
                for (key, value) in members {
                    self.value(of, value, &format!("{path}.{key}"));
                }
            }
            _ => self.type_(of, value, path),
        }
    }

    /// Adds a fault: a value of another type, with the right spelling.
    fn type_(&mut self, of: &Type, value: &Value, path: &str) {
        let wanted = match of {
            Type::Text => "a string",
            Type::Int32 => "a whole number of 32 bits",
            Type::Int64 => "a whole number",
            Type::Boolean => "`true` or `false`",
            Type::Quantity => "a quantity, such as `500m` or `128Mi`",
            Type::IntOrText => "a whole number or a string",
            Type::List(of) if **of == Type::Text => "a list of strings",
            Type::List(_) => "a list",
            Type::Map(_) | Type::Of(_) | Type::Any => "an object",
        };
        let hint = instead(of, value).map(|text| format!("; write `{text}`")).unwrap_or_default();
        self.blame(path, FaultKind::Type, format!("must be {wanted}, is {}{hint}", kind_of(value)));
    }

    fn object(&mut self, definition: &'static str, members: &Map<String, Value>, path: &str) {
        let fields = table::fields(definition);
        if fields.is_empty() {
            return;
        }
        for (name, value) in members {
            let at = format!("{path}.{name}");
            match fields.iter().find(|field| field.name == name) {
                None => self.unknown(definition, fields, name, &at),
                Some(field) if !field.is_in(self.minor) => self.other_version(field, &at),
                Some(field) => {
                    let before = self.faults.len();
                    self.value(&field.of, value, &at);
                    self.choice(field, value, &at);
                    if rules::fields::is_dropped(definition, name, self.minor) {
                        self.forget_rules(before);
                    }
                }
            }
        }
        let is_there = |field: &Field| match members.get(field.name) {
            None | Some(Value::Null) => false,
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(items)) => !items.is_empty(),
            Some(_) => true,
        };
        // Except numbers, because a missing number is 0; rules report it where 0 is invalid.
        let is_number = |field: &Field| matches!(field.of, Type::Int32 | Type::Int64);
        for field in fields {
            let is_wanted = field.is_required
                && field.is_in(self.minor)
                && !is_number(field)
                && rules::fields::is_asked(definition, field.name);
            if is_wanted && !is_there(field) && !self.is_meant(field.name, path) {
                self.wrong(format!("{path}.{}", field.name), "must be given");
            }
        }
        rules::of(definition, self, members, path);
    }

    /// Removes the faults against rules, except for the first `count` faults: the server drops the field before it validates.
    /// Types and names it checks before.
    fn forget_rules(&mut self, count: usize) {
        let mut index = 0;
        self.faults.retain(|fault| {
            index += 1;
            index <= count || !matches!(fault.kind, FaultKind::Value | FaultKind::Duplicate)
        });
    }

    /// Whether the object at `path` has a field that is misspelt, unknown, or of another version.
    fn has_odd_field(&self, path: &str) -> bool {
        let is_odd = |fault: &Fault| fault.kind.code() == Code::UnknownTemplateField;
        let is_in = |fault: &Fault| fault.field.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        self.faults.iter().any(|fault| is_odd(fault) && is_in(fault))
    }

    /// True if and only if a misspelt field of the object at `path` probably means `name`.
    fn is_meant(&self, name: &str, path: &str) -> bool {
        let meant = format!("did you mean `{name}`?");
        let is_in = |fault: &Fault| fault.field.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        self.faults.iter().any(|fault| is_in(fault) && fault.message.ends_with(&meant))
    }

    fn unknown(&mut self, definition: &str, fields: &[Field], name: &str, path: &str) {
        let known = fields.iter().filter(|field| field.is_in(self.minor)).map(|field| field.name);
        let (kind, hint) = match similar(name, known) {
            Some(known) => (FaultKind::Misspelt, format!("; did you mean `{known}`?")),
            None if self.is_later => return,
            None => (FaultKind::Unknown, format!(" in a {definition} of {}; remove it", self.version)),
        };
        self.blame(path, kind, format!("there is no such field{hint}"));
    }

    fn other_version(&mut self, field: &Field, path: &str) {
        let message = match field.last {
            Some(last) if self.minor > last => format!("is gone since Kubernetes 1.{}; remove it", last + 1),
            _ => format!("needs Kubernetes 1.{} or later, and this is 1.{}; remove it", field.first, self.minor),
        };
        self.blame(path, FaultKind::OtherVersion, message);
    }

    fn choice(&mut self, field: &Field, value: &Value, path: &str) {
        let Some(text) = value.as_str().filter(|text| !text.is_empty()) else { return };
        let minor = self.minor;
        let allowed: Vec<_> =
            field.choices.iter().filter(|(_, since)| *since <= minor).map(|(value, _)| *value).collect();
        if allowed.is_empty() || allowed.contains(&text) {
            return;
        }
        let hint = match similar(text, allowed.iter().copied()) {
            Some(choice) => format!("; did you mean `{choice}`?"),
            None => String::new(),
        };
        let few: Vec<_> = allowed.iter().copied().filter(|choice| !choice.is_empty()).take(12).collect();
        let more = if allowed.len() > few.len() + 1 { ", …" } else { "" };
        self.wrong(path, format!("must be one of {}{more}, not {}{hint}", listed(&few), quoted(text)));
    }

    fn quantity(&mut self, text: &str, path: &str) {
        if quantity::nanos(text).is_some() {
            return;
        }
        let hint = better_quantity(text).unwrap_or_else(|| "500m` or `128Mi".to_owned());
        self.wrong(path, format!("must be a quantity, not {}; write e.g. `{hint}`", quoted(text)));
    }
}

/// `value` written as `of`, if that is obvious.
fn instead(of: &Type, value: &Value) -> Option<String> {
    match (of, value) {
        (Type::Text, Value::Bool(_) | Value::Number(_)) => Some(format!("\"{value}\"")),
        (Type::Int32 | Type::Int64, Value::String(text)) => Some(text.parse::<i64>().ok()?.to_string()),
        (Type::Boolean, Value::String(text)) => match text.to_lowercase().as_str() {
            "true" | "yes" | "on" => Some("true".to_owned()),
            "false" | "no" | "off" => Some("false".to_owned()),
            _ => None,
        },
        (Type::List(of), Value::String(text)) if **of == Type::Text => {
            // No suggestion for text that a shell would interpret.
            let is_plain = |c: char| c.is_ascii_alphanumeric() || " -_./:=,@%+".contains(c);
            let words: Vec<&str> = match text.chars().all(is_plain) {
                true => text.split_whitespace().collect(),
                false => vec!["sh", "-c", text],
            };
            Some(Value::from(words).to_string())
        }
        (Type::List(of), Value::String(text)) if matches!(**of, Type::Of("LocalObjectReference")) => {
            Some(format!("[{{name: {text}}}]"))
        }
        _ => None,
    }
}

/// The quantity that `text` probably means.
fn better_quantity(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(end);
    let unit = match unit.trim().to_lowercase().as_str() {
        "k" | "kb" | "kib" | "ki" => "Ki",
        "m" | "mb" | "mib" | "mi" => "Mi",
        "g" | "gb" | "gib" | "gi" => "Gi",
        "t" | "tb" | "tib" | "ti" => "Ti",
        "b" | "bytes" | "core" | "cores" | "cpu" | "cpus" => "",
        "millicores" | "millicpu" => "m",
        _ => return None,
    };
    let better = format!("{number}{unit}");
    quantity::nanos(&better).is_some().then_some(better)
}

#[cfg(test)]
mod tests;
