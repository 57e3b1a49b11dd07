//! The values of templates in CEL. [`Leaf::of`] alone decides which of them the server computes.

use super::cel::quoted;
use super::environment::Variables;
use super::{Cel, Inexpressible};
use crate::parameters::has_stand_in;
use serde_json::{Number, Value};

/// The deepest JSON in an expression. Each level takes two of the 250 levels of the server's parser. No pod comes near
/// this limit.
const MAX_DEPTH: usize = 40;
/// From this value on, a patch turns a number into a string, because CEL converts large integers to JSON strings.
const MAX_INTEGER: u64 = 1 << 53;

/// A value that a workload gets or must have: no list and no map.
#[derive(Clone, Debug)]
pub(super) enum Leaf {
    /// The same value for every workload.
    Literal(Value),
    /// An operand that gives the value. The server computes it for each workload, in the scope of [`Variables`].
    Expression(String),
}

impl Leaf {
    /// The leaf for `value` in a template, where `variables` are in scope.
    pub(super) fn of(value: &Value, variables: &Variables) -> Self {
        let operand = value.as_str().and_then(|text| variables.values.leaf(text));
        operand.map_or_else(|| Self::Literal(value.clone()), |operand| Self::Expression(operand.clone()))
    }

    /// The leaf as CEL.
    ///
    /// # Errors
    /// If it is a number that CEL would change, or a text with a character that stands for values.
    pub(super) fn text(&self) -> Cel {
        match self {
            Self::Literal(Value::String(text)) if has_stand_in(text) => {
                Err(Inexpressible::new("its template has a character of private use (U+E000 or U+E001)"))
            }
            Self::Literal(Value::String(text)) => Ok(quoted(text)),
            Self::Literal(Value::Number(number)) => self::number(number),
            Self::Literal(value) => Ok(value.to_string()),
            Self::Expression(text) => Ok(text.clone()),
        }
    }

    fn is_text(&self) -> bool {
        matches!(self, Self::Literal(Value::String(_)))
    }
}

fn number(number: &Number) -> Cel {
    let is_small = |magnitude: u64| magnitude < MAX_INTEGER;
    match (number.as_i64(), number.as_f64()) {
        (Some(integer), _) if is_small(integer.unsigned_abs()) => Ok(integer.to_string()),
        (None, Some(double)) if double.fract() != 0.0 => Ok(format!("{double:?}")),
        _ => Err(Inexpressible::new(format!("CEL would write the number `{number}` of its template in another way"))),
    }
}

/// A value of a template as CEL. Values within it are `dyn`, unless all of them are texts, because lists and maps must
/// have values of one type.
///
/// # Errors
/// If it has a number that CEL would change, or if it is nested too deep.
pub(super) fn content(value: &Value, variables: &Variables) -> Cel {
    content_at(value, 0, variables)
}

fn content_at(value: &Value, depth: usize, variables: &Variables) -> Cel {
    if depth > MAX_DEPTH {
        return Err(Inexpressible::new("its template lies deeper than CEL can be written"));
    }
    let is_text = |value: &Value| Leaf::of(value, variables).is_text();
    let inner = |value, are_texts| match content_at(value, depth + 1, variables)? {
        text if are_texts => Ok(text),
        other => Ok(format!("dyn({other})")),
    };
    Ok(match value {
        Value::Array(items) => {
            let are_texts = items.iter().all(is_text);
            let items = items.iter().map(|item| inner(item, are_texts));
            format!("[{}]", items.collect::<Result<Vec<_>, _>>()?.join(", "))
        }
        Value::Object(fields) => {
            let are_texts = fields.values().all(is_text);
            let entries =
                fields.iter().map(|(key, value)| Ok(format!("{}: {}", quoted(key), inner(value, are_texts)?)));
            format!("{{{}}}", entries.collect::<Result<Vec<_>, _>>()?.join(", "))
        }
        leaf => Leaf::of(leaf, variables).text()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use admission_cel::{Budget, Dialect, Expression, Gives, Variables as Given};
    use serde_json::json;

    #[test]
    fn json_survives_as_a_literal() {
        let value = json!({
            "a.b/c": [1, -5, 0.5, 1e-7, true, null, "x", [], {}, [{"in": {"": "\""}}]],
            "type": {"namespace": 9_007_199_254_740_991_i64},
        });
        let source = format!("object == {}", content(&value, &Variables::default()).unwrap());
        let expression = Expression::compile(&source, Gives::Bool, Dialect::NEWEST).unwrap();
        let given = Given { object: &value, namespace: None, template: None };
        assert!(expression.test(&given, &mut Budget::match_conditions()).unwrap());
    }

    #[test]
    fn what_would_come_out_as_something_else_is_no_literal() {
        let mut deep = json!(1);
        for _ in 0..50 {
            deep = json!([deep]);
        }
        for value in [
            json!(9_007_199_254_740_992_u64),
            json!(-9_007_199_254_740_992_i64),
            json!(u64::MAX),
            json!(1.0),
            json!(1e300),
            deep,
        ] {
            assert!(content(&json!({"a": [value]}), &Variables::default()).is_err(), "{value}");
        }
    }
}
