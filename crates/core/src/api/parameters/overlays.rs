//! Overlays: how the author of a workload sets values by a container.
//!
//! An overlay is a container of the name of a sidecar that has nothing but values of `overridable` parameters. It has no image, or
//! [`AUTO`]: some servers ask for an image before admission. What servers add to a container by themselves counts as absent, and a
//! limit without a request means that request, as for every container of a pod.

use super::places::text_of;
use super::tokens::{Token, tokens};
use super::words::shown;
use super::{Parameter, Parameters};
use crate::api::v1alpha1::RawObject;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt;

/// The image of an overlay that names none. Istio has the same word.
pub(crate) const AUTO: &str = "auto";

/// A value of an overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Laid {
    /// The path of the field that has it, as a policy writes paths.
    pub(crate) path: String,
    /// The text, or what is wrong with what stands there.
    pub(crate) text: Result<String, String>,
}

impl Parameters {
    /// What `container`, which the list `list` of a pod has under the name of a sidecar, gives each parameter. `is_added`: whether the
    /// server gives a container that value of that field.
    ///
    /// # Errors
    /// It is no overlay: the first field that it has besides, such as `ports`.
    pub(crate) fn overlay(
        &self,
        list: &str,
        container: &RawObject,
        is_added: impl Fn(&str, &Value) -> bool,
    ) -> Result<Vec<Option<Laid>>, String> {
        let mut overlay = Read { list, container, read: HashSet::new() };
        let values = self.iter().map(|parameter| overlay.laid(parameter)).collect();
        overlay.foreign(is_added).map_or(Ok(values), Err)
    }

    /// The fields that an overlay of the container `name` of `list` can have, each with the parameter.
    pub(crate) fn overridable(&self, list: &str, name: &str) -> Vec<(Field, &Parameter)> {
        let overridable = self.iter().filter(|parameter| parameter.overridable);
        let places = overridable.flat_map(|parameter| parameter.places.iter().map(move |place| (parameter, place)));
        let places = places.filter(|(_, place)| place.is_overlaid());
        places.filter_map(|(parameter, place)| Some((Field::of(&place.path, list, name)?, parameter))).collect()
    }
}

impl Parameter {
    /// Whether `text`, which the author of a stored workload has applied, is a new value: those of a free image depend on a flag, so they are
    /// edits.
    pub(crate) fn is_settled(&self, text: &str) -> bool {
        !self.needs_trust() && self.judge(text).is_ok()
    }
}

/// A field of a container that an overlay can have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Field {
    /// The image.
    Image,
    /// The value of a variable.
    Variable(String),
    /// An amount: `requests` or `limits`, and the resource.
    Amount(String, String),
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image => write!(f, "image"),
            Self::Variable(name) => write!(f, "env[{name}].value"),
            Self::Amount(of, resource) if resource.contains('.') => write!(f, "resources.{of}[{resource}]"),
            Self::Amount(of, resource) => write!(f, "resources.{of}.{resource}"),
        }
    }
}

impl Field {
    /// The field that `path`, that of a place, names in the container `name` of `list`.
    fn of(path: &str, list: &str, name: &str) -> Option<Self> {
        match &tokens(path)?[..] {
            [of, item, ..] if (of.text(), item.text()) != (list, name) => None,
            [_, _, Token::Field("image")] => Some(Self::Image),
            [_, _, Token::Field("env"), variable, Token::Field("value")] => {
                Some(Self::Variable(variable.text().to_owned()))
            }
            [_, _, Token::Field("resources"), of, resource] => {
                Some(Self::Amount(of.text().to_owned(), resource.text().to_owned()))
            }
            _ => None,
        }
    }

    /// What stands in `container`. An image that stands for none counts as absent, and a variable without a value has an empty one: servers leave
    /// it out.
    pub(crate) fn get<'c>(&self, container: &'c RawObject) -> Option<&'c Value> {
        const EMPTY: &Value = &Value::String(String::new());
        let found = match self {
            Self::Image => container.get("image").filter(|image| !is_placeholder(image)),
            Self::Variable(name) => {
                let mut items = container.get("env").and_then(Value::as_array).into_iter().flatten();
                let item = items.find(|item| item["name"] == name.as_str())?;
                match &item["value"] {
                    Value::Null => item["valueFrom"].is_null().then_some(EMPTY),
                    value => Some(value),
                }
            }
            Self::Amount(of, resource) => container.get("resources")?.get(of)?.get(resource),
        };
        found.filter(|value| !value.is_null())
    }

    /// `value` as the text of a value; none if it is something else.
    pub(crate) fn text(value: &Value) -> Option<String> {
        text_of(value)
    }

    /// Whether `container` has something there, perhaps no value: a variable from another source, or an image that stands for none.
    pub(crate) fn is_there(&self, container: &RawObject) -> bool {
        match self {
            Self::Image => container.contains_key("image"),
            Self::Variable(name) => {
                let mut items = container.get("env").and_then(Value::as_array).into_iter().flatten();
                items.any(|item| item["name"] == name.as_str())
            }
            Self::Amount(..) => self.get(container).is_some(),
        }
    }

    /// The index of the variable in `container`; 0 if it is none.
    pub(crate) fn index(&self, container: &RawObject) -> usize {
        let Self::Variable(name) = self else { return 0 };
        let items = container.get("env").and_then(Value::as_array);
        items.and_then(|items| items.iter().position(|item| item["name"] == name.as_str())).unwrap_or_default()
    }

    /// Writes `value` there; none takes it away. A variable that is not there becomes item number `at` of the list.
    pub(crate) fn set(&self, container: &mut RawObject, value: Option<Value>, at: usize) {
        match self {
            Self::Image => put(container, "image", value),
            Self::Variable(name) => {
                let Some(items) = container.entry("env").or_insert_with(|| json!([])).as_array_mut() else { return };
                let found = items.iter().position(|item| item["name"] == name.as_str());
                match (found, value) {
                    (Some(found), Some(value)) => items[found] = json!({ "name": name, "value": value }),
                    (Some(found), None) => drop(items.remove(found)),
                    (None, Some(value)) => items.insert(at.min(items.len()), json!({ "name": name, "value": value })),
                    (None, None) => {}
                }
            }
            Self::Amount(of, resource) => {
                let resources = container.entry("resources").or_insert_with(|| json!({}));
                let Some(resources) = resources.as_object_mut() else { return };
                let Some(amounts) = resources.entry(of).or_insert_with(|| json!({})).as_object_mut() else { return };
                put(amounts, resource, value);
                if amounts.is_empty() {
                    resources.remove(of);
                }
            }
        }
        container.retain(|field, value| !["env", "resources"].contains(&field.as_str()) || !is_empty(value));
    }
}

fn put(object: &mut RawObject, field: &str, value: Option<Value>) {
    match value {
        Some(value) => drop(object.insert(field.to_owned(), value)),
        None => drop(object.remove(field)),
    }
}

impl Laid {
    /// The value of two places of `parameter`.
    pub(crate) fn and(self, other: &Self, parameter: &Parameter) -> Self {
        let (Ok(one), Ok(text)) = (&self.text, &other.text) else {
            return if self.text.is_err() { self } else { other.clone() };
        };
        if parameter.is_same(Some(one), Some(text)) {
            return self;
        }
        let text = Err(format!("must be the same there and in {}, which the parameter sets, too", shown(&other.path)));
        Self { text, ..self }
    }
}

/// A container that may be an overlay.
struct Read<'c> {
    list: &'c str,
    container: &'c RawObject,
    /// The fields that parameters have read.
    read: HashSet<Field>,
}

impl Read<'_> {
    /// The value of `parameter`, which may have several places.
    fn laid(&mut self, parameter: &Parameter) -> Option<Laid> {
        let places = parameter.places.iter().filter(|place| parameter.overridable && place.is_overlaid());
        let laid = places.filter_map(|place| {
            let (field, value) = self.value(&place.path)?;
            let text = text_of(&value).ok_or_else(|| "must be a text or a number".to_owned());
            Some(Laid { path: format!("{}[{}].{field}", self.list, self.name()), text })
        });
        laid.reduce(|one, other| one.and(&other, parameter))
    }

    fn name(&self) -> &str {
        self.container.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    /// What stands at the place `path`, and the field that has it.
    fn value(&mut self, path: &str) -> Option<(Field, Value)> {
        let field = Field::of(path, self.list, self.name())?;
        self.read.insert(field.clone());
        // As for every container of a pod: a limit alone is the request, too.
        let limit = match &field {
            Field::Amount(of, resource) if of == "requests" => {
                Some(Field::Amount("limits".to_owned(), resource.clone()))
            }
            _ => None,
        };
        let fields = [Some(field), limit].into_iter().flatten();
        fields.into_iter().find_map(|field| Some((field.clone(), field.get(self.container)?.clone())))
    }

    /// The first field that is neither the value of a parameter nor what a server adds.
    fn foreign(&self, is_added: impl Fn(&str, &Value) -> bool) -> Option<String> {
        let fields = self.container.iter().filter(|(_, value)| !is_empty(value));
        let foreign = |(field, value): (&String, &Value)| match (field.as_str(), value) {
            ("name", _) => None,
            ("image", image) => (!is_placeholder(image) && !self.read.contains(&Field::Image)).then(|| field.clone()),
            ("env", Value::Array(items)) => {
                let is_value = |item: &Value| {
                    let name = item["name"].as_str().unwrap_or_default();
                    let has_more = item.as_object().is_none_or(|item| {
                        item.iter()
                            .any(|(field, value)| !["name", "value"].contains(&field.as_str()) && !is_empty(value))
                    });
                    let same = items.iter().filter(|other| other["name"] == name).count();
                    !has_more && same == 1 && self.read.contains(&Field::Variable(name.to_owned()))
                };
                let item = items.iter().find(|item| !is_value(item))?;
                Some(format!("env[{}]", item["name"].as_str().unwrap_or_default()))
            }
            ("resources", Value::Object(resources)) => {
                resources.iter().find_map(|(of, amounts)| match amounts.as_object() {
                    Some(named) if ["requests", "limits"].contains(&of.as_str()) => {
                        let is_known = |(name, amount): (&String, &Value)| {
                            let is_of_limit = || {
                                of == "requests" && resources.get("limits").and_then(|it| it.get(name)) == Some(amount)
                            };
                            amount.is_null()
                                || self.read.contains(&Field::Amount(of.clone(), name.clone()))
                                || is_of_limit()
                        };
                        named.iter().find(|&it| !is_known(it)).map(|(name, _)| format!("resources.{of}.{name}"))
                    }
                    _ => (!is_empty(amounts)).then(|| format!("resources.{of}")),
                })
            }
            (field, value) => (!is_added(field, value)).then(|| field.to_owned()),
        };
        fields.into_iter().find_map(foreign)
    }
}

/// Whether an overlay with this image names none.
fn is_placeholder(image: &Value) -> bool {
    [AUTO, ""].iter().any(|none| image == none)
}

/// Whether `value` means the same as a field that is not there.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.values().all(is_empty),
        _ => false,
    }
}
