//! Parameters: single values of a template that differ between workloads, with their types, bounds and places.
//!
//! [`Parameters::parse`] reads those of a policy once, and finds every fault. [`Parameter::judge`] says whether a text is a
//! value. [`Parameters::applied`] puts values into the template. Where a value comes from is not known here.
//!
//! | file | has |
//! |---|---|
//! | `leaves` | the table of the fields that a parameter can set |
//! | `tokens`, `paths` | paths of users, and what is wrong with them |
//! | `places`, `marks` | where paths lead in a template; `$(scpol.NAME)` |
//! | `types`, `limits`, `forms` | texts as values; bounds; the forms of images, labels and paths |
//! | `stand_ins` | templates for an engine that computes values itself |
//! | `parse`, `words` | the faults of a policy; names in messages |
//! | `overlays` | the values of a container that the author of a workload declares by a sidecar's name |
//! | `left_out` | the faults of a template without what a Boolean leaves out |

mod forms;
mod leaves;
mod left_out;
mod limits;
mod marks;
mod overlays;
mod parse;
mod paths;
mod places;
mod stand_ins;
#[cfg(test)]
mod tests;
mod tokens;
mod types;
mod words;

use super::v1alpha1::{self, ParameterType, Template};
use leaves::Form;
use limits::{Limits, Range};
use places::Place;
use serde_json::{Value, json};

pub use leaves::markdown;
pub(super) use left_out::left_behind;
pub(crate) use overlays::{AUTO, Field, Laid};
pub(super) use parse::{foreign_images, not_granted};
pub(crate) use stand_ins::{Piece, Role, has_stand_in, pieces, texts};

/// The parameters of one template, parsed once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters(Vec<Parameter>);

/// A parameter of a template.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The name, unique in the policy.
    pub name: String,
    /// What it is for; may be empty.
    pub description: String,
    /// The type of its values.
    pub of: ParameterType,
    /// The annotation of workloads that has the value. None: the author of a workload may not set it.
    pub annotation: Option<String>,
    /// Whether the Namespace may have the value, by that key.
    pub from_namespace: bool,
    /// Whether an overlay may have the value: a container of the workload, under the name of that of the template.
    pub overridable: bool,
    limits: Limits,
    /// What the places take, of values with an order.
    range: Range,
    places: Vec<Place>,
    default: Option<String>,
    is_required: bool,
}

impl Parameters {
    /// Reads the parameters that the policy `policy` declares for `template`.
    ///
    /// Second: every fault, as the field and a sentence that follows on it. The parameters are as many as declared, in that
    /// order; a faulty place is not in them.
    pub fn parse(policy: &str, declared: &[v1alpha1::Parameter], template: &Template) -> (Self, Vec<(String, String)>) {
        parse::parse(policy, declared, template)
    }

    /// Each parameter, in the order of the policy.
    pub fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.0.iter()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `template` with `values`, one for each parameter in order. None: what is in the template stays.
    ///
    /// # Guarantees
    /// Nothing outside of the places differs, but that a list without its last item is left out, and what is shared with a
    /// container that is left out. Values are those that [`Parameter::judge`] took.
    pub fn applied(&self, template: &Template, values: &[Option<String>]) -> Template {
        let mut applied = template.clone();
        let mut out = Vec::new();
        for (parameter, value) in self.0.iter().zip(values) {
            let default = if parameter.is_required { None } else { parameter.default.as_ref() };
            for place in &parameter.places {
                let of_mark = default.filter(|_| place.leaf.form == Form::Mark);
                let Some(text) = value.as_ref().or(of_mark) else { continue };
                place.set(&mut applied, &parameter.name, parameter.of, text);
                if place.leaf.form == Form::Switch && text == "false" {
                    out.push(&place.at);
                }
            }
        }
        out.sort();
        for at in out.iter().rev() {
            at.remove(&mut applied);
        }
        if !out.is_empty() {
            let names: Vec<Value> =
                applied.all_containers().filter_map(|(_, container)| container.get("name").cloned()).collect();
            applied.share.retain(|share| names.iter().any(|name| *name == share.to.as_str()));
        }
        applied
    }

    /// `template` with some value at every place, so that it has each field that a parameter may set. The values are not within bounds.
    pub fn filled(&self, template: &Template) -> Template {
        let sample = |of: ParameterType| match of {
            ParameterType::Boolean => "true",
            ParameterType::Duration => "1s",
            ParameterType::String | ParameterType::Integer | ParameterType::Quantity => "1",
        };
        let values: Vec<Option<String>> =
            self.0.iter().map(|parameter| Some(sample(parameter.of).to_owned())).collect();
        self.applied(template, &values)
    }

    /// What decides what a value means, for a hash: names, types and places. Not bounds, descriptions and annotations.
    pub fn identity(&self) -> Value {
        let of = |parameter: &Parameter| {
            let places: Vec<String> = parameter.places().collect();
            json!({ "name": parameter.name, "type": parameter.of, "places": places })
        };
        self.0.iter().map(of).collect()
    }
}

impl Parameter {
    /// `text` as a value: the same text, if its type, its bounds and all places take it.
    ///
    /// # Errors
    /// A part of a sentence, such as "must be a quantity from `64Mi` to `1Gi`, is `2GB`; it is spelt `2G`". What it has of
    /// `text` is cut and escaped; it has nothing of it if the parameter is private.
    pub fn judge(&self, text: &str) -> Result<String, String> {
        self.judge_openly(text).map_err(|wrong| if self.is_private() { self.not_shown(text) } else { wrong })
    }

    /// The same, and the sentence has the text of private parameters, too: for who has written the text, or reads their own files.
    ///
    /// # Errors
    /// As [`Self::judge`].
    pub fn judge_openly(&self, text: &str) -> Result<String, String> {
        limits::is_text(text)?;
        self.limits.judge(self.of, &self.range, text)?;
        self.places.iter().try_for_each(|place| place.judge(self.of, text))?;
        Ok(text.to_owned())
    }

    /// Why `text`, which is refused, is no value: what is allowed, and nothing of `text`.
    fn not_shown(&self, text: &str) -> String {
        let is_in_limits = || self.limits.judge(self.of, &self.range, text).is_ok();
        let place = || self.places.iter().find(|place| place.judge(self.of, text).is_err());
        let wanted = match limits::is_text(text) {
            // It has the length alone.
            Err(wrong) if text.len() > limits::LONGEST => return wrong,
            Err(_) => "a text without the character NUL".to_owned(),
            Ok(()) => match place().filter(|_| is_in_limits()) {
                Some(place) => place.leaf.rule.words().unwrap_or_else(|| format!("what `{}` takes", place.path)),
                None => self.limits.wanted(self.of, &self.range),
            },
        };
        format!("must be {wanted}; the value is not shown")
    }

    /// Whether `text` is of the type, and taken by all places, whatever the bounds are.
    pub fn may_be(&self, text: &str) -> bool {
        limits::is_text(text).is_ok()
            && self.of.has(text)
            && self.places.iter().all(|place| place.judge(self.of, text).is_ok())
    }

    /// The value that is in the template, the first one of several. None if there is none: then the place stays absent, or
    /// a value is required ([`Parameter::is_required`]).
    pub fn default(&self) -> Option<&str> {
        self.default.as_deref()
    }

    /// Whether two values are the same one, as 1Gi and 1024Mi are. None is what stands in the template.
    pub fn is_same(&self, one: Option<&str>, other: Option<&str>) -> bool {
        let [one, other] = [one, other].map(|value| value.or(self.default()));
        let size = |value: Option<&str>| value.and_then(|value| self.of.size(value));
        one == other || size(one).is_some() && size(one) == size(other)
    }

    /// Whether it is a variable, an argument or a part of one: what is not shown to everybody.
    pub fn is_private(&self) -> bool {
        self.places.iter().any(|place| matches!(place.leaf.form, Form::Expanded | Form::Mark))
    }

    /// Whether it is private, and gives other fields than variables and arguments the same value.
    pub fn is_private_in_part(&self) -> bool {
        let is_other = |place: &Place| !matches!(place.leaf.form, Form::Expanded | Form::Mark | Form::Switch);
        self.is_private() && self.places.iter().any(is_other)
    }

    /// Whether a value must come from elsewhere: a `$(scpol.NAME)` has none in the template.
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// Whether values are images that the operator's `--allowed-images` decides on, for each workload.
    pub fn needs_trust(&self) -> bool {
        self.limits.choices.is_empty() && self.places.iter().any(|place| place.leaf.is_image())
    }

    /// The allowed values in a few words, such as "64Mi to 1Gi", "true or false", "one of `debug`, `info`".
    pub fn allowed(&self) -> String {
        let words = self.places.iter().find_map(|place| place.leaf.rule.words());
        self.limits.allowed(self.of, &self.range, words)
    }

    /// The places, as written. That of a `$(scpol.NAME)` is the path of the text around it.
    pub fn places(&self) -> impl Iterator<Item = String> {
        self.places.iter().map(|place| place.path.clone())
    }
}
