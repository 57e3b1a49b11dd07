//! Expressions that are the same for every object.

use super::{Context, Note};
use crate::api::code::Code;
use crate::api::v1alpha1::SidecarPolicySpec;
use crate::policy::VersionedExpression;
use admission_cel::{Budget, Dialect, Gives, Variables};
use serde_json::Value;

/// Conditions and validations that are the same for every object.
pub(super) fn constant(spec: &SidecarPolicySpec, context: &Context) -> Vec<Note> {
    let conditions = spec.match_conditions.iter().enumerate().map(|(index, condition)| {
        (format!("spec.matchConditions[{index}].expression"), &condition.expression, "the policy matches nothing")
    });
    let validations = spec.validations.iter().enumerate().map(|(index, validation)| {
        (format!("spec.validations[{index}].expression"), &validation.expression, "every create is refused")
    });
    let note = |(field, source, otherwise): (String, &String, &str)| {
        let what = match verdict(source, context.site.dialect())? {
            Ok(true) => "is true for every object, and has no effect".to_owned(),
            Ok(false) => format!("is false for every object: {otherwise}"),
            Err(failure) => format!("fails for every object ({failure})"),
        };
        let message = format!("{what}; ask something of `object` or `namespaceObject`, or remove it");
        Some(Note::new(Code::ConstantExpression, field, message))
    };
    conditions.chain(validations).filter_map(note).collect()
}

/// The result of `source` for every object; none if it may depend on the object, or is invalid.
fn verdict(source: &str, dialect: Dialect) -> Option<Result<bool, String>> {
    // A textual check: an expression that has the word in a string only gets no finding.
    if source.contains("object") || source.contains("namespaceObject") {
        return None;
    }
    let expression = VersionedExpression::compile(source, Gives::Bool).ok()?;
    let nothing = Variables { object: &Value::Null, namespace: None, template: None };
    Some(expression.on(dialect).test(&nothing, &mut Budget::match_conditions()).map_err(|failure| failure.to_string()))
}
