//! The variables of a policy. Each is evaluated at most once, and only if it is used.

use serde_json::{Value, json};

/// The longest short expression, in bytes. A variable costs the server a few microseconds. But all expressions together
/// must stay below their limit.
const SHORT: usize = 1_000;

/// Named expressions. Each may use earlier ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Variables(Vec<(String, String)>);

impl Variables {
    /// Defines `expression` under a name that begins with `stem`, unless it is already defined. Returns the reference
    /// to it.
    pub(super) fn define(&mut self, stem: &str, expression: &str) -> String {
        if let Some((name, _)) = self.0.iter().find(|(_, own)| own == expression) {
            return format!("variables.{name}");
        }
        let is_free = |name: &String| self.0.iter().all(|(own, _)| own != name);
        let names = (0..).map(|number| if number == 0 { stem.to_owned() } else { format!("{stem}_{number}") });
        let name = names.into_iter().find(is_free).expect("numbers do not end");
        self.0.push((name.clone(), expression.to_owned()));
        format!("variables.{name}")
    }

    /// As [`Self::define`] for a single use: a short expression is used directly.
    pub(super) fn short(&mut self, stem: &str, expression: String) -> String {
        if expression.len() <= SHORT { expression } else { self.define(stem, &expression) }
    }

    /// All expressions with their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, expression)| (name.as_str(), expression.as_str()))
    }

    /// The variables in the form of the API.
    pub(super) fn to_value(&self) -> Value {
        self.iter().map(|(name, expression)| json!({ "name": name, "expression": expression })).collect()
    }
}
