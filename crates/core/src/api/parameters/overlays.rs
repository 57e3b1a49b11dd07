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
use serde_json::Value;
use std::collections::HashSet;

/// The image of an overlay that names none. Istio has the same word.
const AUTO: &str = "auto";

/// A value of an overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Laid {
    /// The path of the place, as the policy writes it.
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
        let mut overlay = Overlay { list, container, read: HashSet::new() };
        let values = self.iter().map(|parameter| overlay.laid(parameter)).collect();
        overlay.foreign(is_added).map_or(Ok(values), Err)
    }

    /// The fields that an overlay of the container `name` of `list` can have, as paths in it.
    pub(crate) fn overridable(&self, list: &str, name: &str) -> Vec<String> {
        let before = format!("{list}[{name}].");
        let places = self.iter().filter(|parameter| parameter.overridable).flat_map(|parameter| &parameter.places);
        places
            .filter(|place| place.is_overlaid())
            .filter_map(|it| Some(it.path.strip_prefix(&before)?.to_owned()))
            .collect()
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
struct Overlay<'c> {
    list: &'c str,
    container: &'c RawObject,
    /// The places that parameters have read, each as the steps to it.
    read: HashSet<Vec<String>>,
}

impl Overlay<'_> {
    /// The value of `parameter`, which may have several places.
    fn laid(&mut self, parameter: &Parameter) -> Option<Laid> {
        let places = parameter.places.iter().filter(|place| parameter.overridable && place.is_overlaid());
        let laid = places.filter_map(|place| {
            let value = self.value(&tokens(&place.path)?)?;
            let text = text_of(&value).ok_or_else(|| "must be a text or a number".to_owned());
            Some(Laid { path: place.path.clone(), text })
        });
        laid.reduce(|one, other| one.and(&other, parameter))
    }

    /// What stands at `path`, and is no default.
    fn value(&mut self, path: &[Token<'_>]) -> Option<Value> {
        let [list, name, path @ ..] = path else { return None };
        if list.text() != self.list || self.container.get("name").is_none_or(|own| own != name.text()) {
            return None;
        }
        let steps: Vec<String> = path.iter().map(|token| token.text().to_owned()).collect();
        let found = match path {
            [Token::Field("image")] => self.container.get("image").filter(|image| !is_placeholder(image)).cloned(),
            [Token::Field("env"), variable, Token::Field("value")] => {
                let items = self.container.get("env").and_then(Value::as_array).into_iter().flatten();
                let item = items.into_iter().find(|item| item["name"] == variable.text())?;
                // Servers leave an empty text out.
                let value = Some(&item["value"]).filter(|value| !value.is_null()).cloned();
                value.or_else(|| item["valueFrom"].is_null().then(|| Value::from("")))
            }
            [Token::Field("resources"), of, resource] => {
                let amount = |of: &str| self.container.get("resources")?.get(of)?.get(resource.text());
                let found = amount(of.text()).filter(|value| !value.is_null());
                // As for every container of a pod: a limit alone is the request, too.
                found.or_else(|| amount("limits").filter(|_| of.text() == "requests")).cloned()
            }
            _ => None,
        }?;
        self.read.insert(steps);
        Some(found)
    }

    /// The first field that is neither the value of a parameter nor what a server adds.
    fn foreign(&self, is_added: impl Fn(&str, &Value) -> bool) -> Option<String> {
        let is_read =
            |steps: &[&str]| self.read.contains(&steps.iter().map(|step| (*step).to_owned()).collect::<Vec<_>>());
        let fields = self.container.iter().filter(|(_, value)| !is_empty(value));
        let foreign = |(field, value): (&String, &Value)| match (field.as_str(), value) {
            ("name", _) => None,
            ("image", image) => (!is_placeholder(image) && !is_read(&["image"])).then(|| field.clone()),
            ("env", Value::Array(items)) => {
                let is_value = |item: &Value| {
                    let name = item["name"].as_str().unwrap_or_default();
                    let has_more = item.as_object().is_none_or(|item| {
                        item.iter()
                            .any(|(field, value)| !["name", "value"].contains(&field.as_str()) && !is_empty(value))
                    });
                    let same = items.iter().filter(|other| other["name"] == name).count();
                    !has_more && same == 1 && is_read(&["env", name, "value"])
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
                            amount.is_null() || is_read(&["resources", of, name]) || is_of_limit()
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
