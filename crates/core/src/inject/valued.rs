//! Templates with parameters: the values that a template has, and those that a marker records.

use super::marker::Marker;
use super::overlay::Overlay;
use super::{Template, hash};
use crate::api::v1alpha1;
use crate::outside::shown;
use crate::parameters::{Parameter, Parameters};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;

/// The values of the parameters of a template, in their order. None: what stands in the template stays.
pub type Values = Vec<Option<String>>;

/// The parameters of a template, with their values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Valued {
    parameters: Arc<Parameters>,
    /// The template as it is written.
    written: Arc<v1alpha1::Template>,
    values: Values,
    /// The entries of a marker for the overlays of the workload.
    overlays: Vec<String>,
}

impl Template {
    /// The same with the parameters that the policy has declared. No value is given yet.
    #[must_use]
    pub fn with_parameters(self, declared: &[v1alpha1::Parameter], written: &v1alpha1::Template) -> Self {
        if declared.is_empty() {
            return self;
        }
        // Its faults have been reported when the policy was accepted.
        let (parameters, _) = Parameters::parse(&self.policy, declared, written);
        // Where values come from counts, because another source means other values. What they are bounded by does not.
        let source = |it: &v1alpha1::Parameter| match it.overridable {
            true => json!([it.annotation, it.from_namespace, it.expression, true]),
            false => json!([it.annotation, it.from_namespace, it.expression]),
        };
        let sources: Vec<Value> = declared.iter().map(source).collect();
        let hash = hash(&json!({ "template": written, "parameters": parameters.identity(), "sources": sources }));
        let values = vec![None; parameters.iter().count()];
        // A `$(scpol.NAME)` gets what another place of the parameter has.
        let template = Self::with_hash(&self.policy, parameters.applied(written, &values), self.position, hash);
        let valued = Valued {
            parameters: Arc::new(parameters),
            written: Arc::new(written.clone()),
            values,
            overlays: Vec::new(),
        };
        Self { valued: Some(Arc::new(valued)), ..template }
    }

    /// Its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.valued.iter().flat_map(|valued| valued.parameters.iter())
    }

    /// The values of [`Self::parameters`].
    pub fn values(&self) -> &[Option<String>] {
        self.valued.as_ref().map_or(&[], |valued| &valued.values)
    }

    /// The same template with other `values`. Its hash stays: it is that of the policy.
    #[must_use]
    pub fn with_values(&self, values: &[Option<String>]) -> Cow<'_, Self> {
        let Some(valued) = self.valued.as_ref().filter(|valued| valued.values != values) else {
            return Cow::Borrowed(self);
        };
        let spec = valued.parameters.applied(&valued.written, values);
        let valued = Valued { values: values.to_vec(), ..Valued::clone(valued) };
        let template = Self::with_hash(&self.policy, spec, self.position, self.hash.clone());
        let valued = Self { valued: Some(Arc::new(valued)), ..template };
        let needs = valued.needs.clone().with_values(&valued.value_entries());
        Cow::Owned(Self { needs, ..valued })
    }

    /// The same template, whose marker records that the workload had `overlays`.
    #[must_use]
    pub(crate) fn with_overlays(&self, overlays: &[Overlay]) -> Self {
        let Some(valued) = &self.valued else { return self.clone() };
        let overlays = overlays.iter().map(Overlay::entry).collect();
        let valued = Valued { overlays, ..Valued::clone(valued) };
        let own = Self { valued: Some(Arc::new(valued)), ..self.clone() };
        let needs = own.needs.clone().with_values(&own.value_entries());
        Self { needs, ..own }
    }

    /// What the policy has declared; none without parameters.
    pub(super) fn as_declared(&self) -> Option<&v1alpha1::Template> {
        self.valued.as_ref().map(|valued| &*valued.written)
    }

    /// All its parameters; none without any.
    pub(super) fn all_parameters(&self) -> Option<&Parameters> {
        self.valued.as_ref().map(|valued| &*valued.parameters)
    }

    /// The same template with what stands in it in place of the values of private parameters; none if it has no such value.
    pub(crate) fn without_private_values(&self) -> Option<Self> {
        self.private_values().next()?;
        let open =
            |(parameter, value): (&Parameter, &Option<String>)| value.clone().filter(|_| !parameter.is_private());
        let values: Values = self.parameters().zip(self.values()).map(open).collect();
        Some(self.with_values(&values).into_owned())
    }

    /// The private parameters that have a value, for a sentence that ends in "not shown".
    pub(crate) fn told_private(&self) -> String {
        let names: Vec<String> =
            self.private_values().map(|parameter| format!("`{}`", shown(&parameter.name))).collect();
        match &names[..] {
            [name] => format!("the value of parameter {name} is"),
            names => format!("the values of the parameters {} are", names.join(", ")),
        }
    }

    /// Whether messages may have what is in it. Not if a private parameter gives other fields, which messages show, its value, too.
    pub(super) fn shows_values(&self) -> bool {
        !self.private_values().any(Parameter::is_private_in_part)
    }

    /// The private parameters that have a value.
    fn private_values(&self) -> impl Iterator<Item = &Parameter> {
        let given = self.parameters().zip(self.values()).filter(|(_, value)| value.is_some());
        given.map(|(parameter, _)| parameter).filter(|parameter| parameter.is_private())
    }

    /// What stands in it, with every field that a parameter may set. The values of those are of no use.
    pub fn with_every_field(&self) -> Cow<'_, v1alpha1::Template> {
        match &self.valued {
            Some(valued) => Cow::Owned(valued.parameters.filled(&valued.written)),
            None => Cow::Borrowed(&self.spec),
        }
    }

    /// The same template with a stand-in in each place of a value, for an engine that computes values itself. `longest` is the length of the
    /// longest value, in bytes. None if it has no parameters.
    ///
    /// # Errors
    /// The path of a place that such an engine cannot serve.
    pub(crate) fn with_stand_ins(&self, longest: usize) -> Result<Option<Self>, String> {
        let Some(valued) = &self.valued else { return Ok(None) };
        let tag = format!("{}/{}", self.policy, self.hash);
        let spec = valued.parameters.with_stand_ins(&valued.written, &tag)?;
        let template = Self::with_hash(&self.policy, spec, self.position, self.hash.clone());
        // In the marker, and in the annotations of the template.
        let filled = |it: &Parameter| Marker::entry(&it.name, &"x".repeat(longest + it.bytes_in_places(longest)));
        let entries: Vec<String> = self.parameters().map(filled).collect();
        let needs = template.needs.clone().with_values(&entries);
        Ok(Some(Self { needs, valued: self.valued.clone(), ..template }))
    }

    /// The template as it is without values, as JSON.
    pub(crate) fn without_values(&self) -> Value {
        self.valued.as_ref().map_or(Value::Null, |valued| {
            json!(valued.parameters.applied(&valued.written, &vec![None; valued.values.len()]))
        })
    }

    /// Whether `marker`, of its policy, records other values than it has.
    pub(crate) fn differs_in_values(&self, marker: &Marker) -> bool {
        self.recorded(marker, Parameter::may_be) != self.values()
    }

    /// The values that `marker` records, of parameters of which `may_be` is true for the value. For others, what stands in the template.
    pub(crate) fn recorded(&self, marker: &Marker, may_be: impl Fn(&Parameter, &str) -> bool) -> Values {
        let of = |parameter: &Parameter| marker.value(&parameter.name).filter(|value| may_be(parameter, value));
        self.parameters().map(of).collect()
    }

    /// The bytes of its values and overlays in a marker.
    pub(crate) fn length_of_values(&self) -> usize {
        self.value_entries().iter().map(|entry| json!(entry).to_string().len()).sum()
    }

    /// The entries of a marker for its values and overlays.
    pub(super) fn value_entries(&self) -> Vec<String> {
        let given = self.parameters().zip(self.values());
        let values = given.filter_map(|(parameter, value)| Some(Marker::entry(&parameter.name, value.as_ref()?)));
        values.chain(self.valued.iter().flat_map(|valued| valued.overlays.clone())).collect()
    }
}
