//! The variables of a policy: each is evaluated at most once, and only where it is needed.

use serde_json::{Value, json};

/// Up to how many bytes an expression is short: a variable costs the server some microseconds, and all expressions together have
/// to stay below their limit.
const SHORT: usize = 1_000;

/// Named expressions, each of which may use those before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Variables(Vec<(String, String)>);

impl Variables {
    /// Defines `expression` under a name that begins with `stem`, unless it is there already. Gives how it is referred to.
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

    /// The same for what is needed once: a short expression stands for itself.
    pub(super) fn short(&mut self, stem: &str, expression: String) -> String {
        if expression.len() <= SHORT { expression } else { self.define(stem, &expression) }
    }

    /// Every expression with its name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, expression)| (name.as_str(), expression.as_str()))
    }

    /// As the API has them.
    pub(super) fn to_value(&self) -> Value {
        self.iter().map(|(name, expression)| json!({ "name": name, "expression": expression })).collect()
    }
}
