//! One policy for each possible fault of each field. For each keyword of the schema that a value can violate, one
//! policy violates it. The expected code follows from the kind and place of the fault, not from the result.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use regex::Regex;
use serde_json::{Value, json};
use sidecar_policy::api::code::Code;
use sidecar_policy::api::crd;

/// A policy with one fault.
pub(crate) struct Damaged {
    /// The damage and its field.
    pub(crate) what: String,
    /// The fault, as `code field`.
    pub(crate) expected: String,
    /// The policy.
    pub(crate) object: Value,
}

/// The kind of a damage.
#[derive(Clone, Copy, PartialEq)]
enum Damage {
    /// Another type, a value out of range, or none of the choices.
    Value,
    /// A required field is missing or null.
    Missing,
    /// A string is empty, too long, or malformed.
    Form,
    /// A list or an object is empty.
    Empty,
    /// A list or an object has too many entries.
    TooMany,
    /// An unknown field.
    Unknown,
    /// The key of an item that another item has too.
    Twice,
}

/// The code of a damage to the field `path`.
fn code(damage: Damage, path: &str) -> Code {
    let is_one_of = |fields: &[&str]| fields.contains(&path);
    let selector = Regex::new(r"^spec\.(updateStrategy\.rollingUpdate\.steps\[\d+\]\.)?\w+Selector\b").unwrap();
    let in_selector = selector.find(path).map(|selector| &path[selector.end()..]);
    let in_item = path.contains('[');
    match damage {
        Damage::Unknown => Code::UnknownField,
        Damage::Twice => Code::DuplicateName,
        _ if is_one_of(&["metadata.name"]) => Code::InvalidName,
        Damage::Empty if is_one_of(&["spec.template"]) => Code::EmptyTemplate,
        Damage::Empty if in_selector.is_some() || is_one_of(&["spec.namespaces"]) => Code::EmptySelector,
        Damage::TooMany if is_one_of(&["spec.template.containers", "spec.template.initContainers"]) => {
            Code::TemplateTooLarge
        }
        Damage::Form if is_one_of(&["spec.targets[0].group", "spec.targets[0].resource"]) => Code::TargetRefused,
        Damage::Form if is_one_of(&["spec.initializerName"]) => Code::InvalidInitializerName,
        _ if in_selector.is_some_and(|rest| rest.contains('[')) => Code::InvalidSelector,
        _ if path.starts_with("spec.template.") && in_item => Code::TemplateInvalid,
        _ => Code::InvalidField,
    }
}

/// All damages to `sound`, a policy with every field.
pub(crate) fn to(sound: &Value) -> Vec<Damaged> {
    let definition = serde_json::to_value(crd::v1()).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let mut workshop = Workshop { sound, damaged: Vec::new() };
    workshop.visit(&schema["metadata"]["properties"]["name"], "metadata.name", "/metadata/name");
    workshop.visit(&schema["spec"], "spec", "/spec");
    workshop.damaged
}

struct Workshop<'a> {
    sound: &'a Value,
    damaged: Vec<Damaged>,
}

impl Workshop<'_> {
    /// Damages the field `path` at `pointer`, and the fields in it.
    fn visit(&mut self, schema: &Value, path: &str, pointer: &str) {
        let sound = self.sound.pointer(pointer).cloned();
        for value in of_other_types(schema) {
            self.put(Damage::Value, path, pointer, value);
        }
        if schema["x-kubernetes-int-or-string"] == true {
            // Without bounds it is any number.
            if schema["maximum"].is_number() {
                self.integer(schema, path, pointer);
            }
            return self.string(schema, path, pointer);
        }
        match schema["type"].as_str().unwrap() {
            // Two lists: tolerations need a power, and `share` goes with the names of containers, which are damaged.
            "array" if sound.is_none() => {
                assert!(["tolerations", "share"].iter().any(|list| path.ends_with(list)), "{path}")
            }
            "object" => self.object(schema, path, pointer, &sound.unwrap()),
            "array" => self.array(schema, path, pointer, &sound.unwrap()),
            "string" => self.string(schema, path, pointer),
            "integer" => self.integer(schema, path, pointer),
            other => assert_eq!(other, "boolean", "{path}"),
        }
    }

    fn object(&mut self, schema: &Value, path: &str, pointer: &str, sound: &Value) {
        for name in schema["required"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap()) {
            let field = format!("{path}.{name}");
            let mut lacking = sound.clone();
            lacking.as_object_mut().unwrap().remove(name);
            self.set(Damage::Missing, &field, "left out", pointer, lacking);
            self.set(Damage::Missing, &field, "null", &format!("{pointer}/{name}"), Value::Null);
        }
        if schema["minProperties"] == 1 {
            self.put(Damage::Empty, path, pointer, json!({}));
        }
        if let Some(most) = schema["maxProperties"].as_u64() {
            let many = (0..=most).map(|index| (format!("key-{index}"), json!("a"))).collect();
            self.set(Damage::TooMany, path, "one too many", pointer, many);
        }
        if let Some(fields) = schema["properties"].as_object() {
            for (name, field) in fields {
                // Only steps of a rollout: each has one field, so `array` takes the others from other items.
                if schema["oneOf"].is_array() && sound.get(name).is_none() {
                    continue;
                }
                self.visit(field, &format!("{path}.{name}"), &format!("{pointer}/{name}"));
            }
            if schema["x-kubernetes-preserve-unknown-fields"] != true {
                self.put(Damage::Unknown, &format!("{path}.qwerty"), &format!("{pointer}/qwerty"), json!("a"));
            }
        }
        if schema["additionalProperties"].is_object() {
            let key = sound.as_object().unwrap().keys().next().unwrap();
            let below = format!("{pointer}/{}", key.replace('/', "~1"));
            self.visit(&schema["additionalProperties"], &format!("{path}.{key}"), &below);
        }
    }

    fn array(&mut self, schema: &Value, path: &str, pointer: &str, sound: &Value) {
        let (first, key) = (&sound[0], schema["x-kubernetes-list-map-keys"][0].as_str());
        let item = |index: u64| {
            let mut item = first.clone();
            if let Some(key) = key {
                item[key] = format!("{}{index}", item[key].as_str().unwrap()).into();
            }
            item
        };
        if schema["minItems"] == 1 {
            self.put(Damage::Empty, path, pointer, json!([]));
        }
        if let Some(most) = schema["maxItems"].as_u64() {
            self.set(Damage::TooMany, path, "one too many", pointer, (0..=most).map(item).collect());
        }
        if let Some(key) = key {
            self.set(Damage::Twice, &format!("{path}[1].{key}"), "twice", pointer, json!([first, first]));
        }
        self.put(Damage::Value, &format!("{path}[0]"), &format!("{pointer}/0"), Value::Null);
        self.visit(&schema["items"], &format!("{path}[0]"), &format!("{pointer}/0"));
        if schema["items"]["oneOf"].is_array() {
            for name in schema["items"]["properties"].as_object().unwrap().keys() {
                let index = sound.as_array().unwrap().iter().position(|item| item.get(name).is_some()).unwrap();
                let field = &schema["items"]["properties"][name];
                if index > 0 {
                    self.visit(field, &format!("{path}[{index}].{name}"), &format!("{pointer}/{index}/{name}"));
                }
            }
        }
    }

    fn integer(&mut self, schema: &Value, path: &str, pointer: &str) {
        let bound =
            |keyword: &str, default: i32| schema[keyword].as_f64().map_or(i64::from(default), |bound| bound as i64);
        self.put(Damage::Value, path, pointer, json!(bound("maximum", i32::MAX) + 1));
        self.put(Damage::Value, path, pointer, json!(bound("minimum", i32::MIN) - 1));
    }

    fn string(&mut self, schema: &Value, path: &str, pointer: &str) {
        if let Some(choices) = schema["enum"].as_array() {
            let lower = choices[0].as_str().unwrap().to_lowercase();
            for text in [lower.as_str(), "Both", ""] {
                self.put(Damage::Value, path, pointer, text.into());
            }
            return;
        }
        if schema["minLength"] == 1 {
            self.put(Damage::Form, path, pointer, "".into());
        }
        if let Some(most) = schema["maxLength"].as_u64() {
            self.set(Damage::Form, path, "too long", pointer, "a".repeat(most as usize + 1).into());
        }
        if let Some(pattern) = schema["pattern"].as_str() {
            let pattern = Regex::new(pattern).unwrap();
            let broken = |text: &&str| !pattern.is_match(text);
            for text in ["ä=", "A_b.", "-a", "a/b/c", " ", "a.*", "a\nb"].into_iter().filter(broken).take(3) {
                self.put(Damage::Form, path, pointer, text.into());
            }
        }
    }

    fn put(&mut self, damage: Damage, path: &str, pointer: &str, value: Value) {
        self.set(damage, path, &value.to_string(), pointer, value);
    }

    /// Sets `value` at `pointer`, which gives the field `path` the `damage` with the description `what`.
    fn set(&mut self, damage: Damage, path: &str, what: &str, pointer: &str, value: Value) {
        let mut object = self.sound.clone();
        // Unique names, so that a server accepts them all.
        object["metadata"]["name"] = format!("damaged-{}", self.damaged.len()).into();
        let (parent, last) = pointer.rsplit_once('/').unwrap();
        let last = last.replace("~1", "/");
        match object.pointer_mut(parent).unwrap() {
            Value::Array(items) => items[last.parse::<usize>().unwrap()] = value,
            parent => parent[last] = value,
        }
        let expected = format!("{} {path}", code(damage, path));
        self.damaged.push(Damaged { what: format!("{path}: {what}"), expected, object });
    }
}

/// A value of each type except that of `schema`.
fn of_other_types(schema: &Value) -> Vec<Value> {
    let all = [
        ("string", json!("a")),
        ("integer", json!(7)),
        ("boolean", json!(true)),
        ("array", json!(["a"])),
        ("object", json!({"a": 1})),
    ];
    let is_either = schema["x-kubernetes-int-or-string"] == true;
    let fits = |type_: &str| schema["type"] == type_ || (is_either && ["string", "integer"].contains(&type_));
    let others = all.into_iter().filter(|(type_, _)| !fits(type_)).map(|(_, value)| value);
    let fraction = fits("integer").then(|| json!(1.5));
    others.chain(fraction).collect()
}
