//! What an expression may name where it stands.
//!
//! | where | names | type |
//! |---|---|---|
//! | match conditions | `object`, `oldObject`, `request` | [`AtHand`] |
//! | variables, mutations, validations | these, `namespaceObject`, `variables` | [`Variables`] |
//!
//! A function that takes [`Variables`] gives expressions for the second row only. One that takes a [`Environment`], or neither,
//! gives expressions for both.

use crate::policy::Policy;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The condition that the request is an update.
pub(super) const UPDATE: &str = "request.operation == \"UPDATE\"";

/// The object that a request makes.
pub(super) const OBJECT: &str = "object";

/// The old object of an update.
pub(super) const OLD: &str = "oldObject";

/// The longest short expression, in bytes. A variable costs the server a few microseconds. But all expressions together
/// must stay below their limit.
const SHORT: usize = 1_000;

/// What an expression may name.
pub(super) trait Environment {
    /// An operand with the value of `expression`: a variable whose name begins with `stem`, where there are variables.
    fn define(&mut self, stem: &str, expression: &str) -> String;
}

/// The environment of match conditions.
pub(super) struct AtHand;

impl Environment for AtHand {
    fn define(&mut self, _: &str, expression: &str) -> String {
        if is_operand(expression) { expression.to_owned() } else { format!("({expression})") }
    }
}

/// Whether `expression` has no operator outside of brackets and texts. An operator of two operands has spaces around it.
fn is_operand(expression: &str) -> bool {
    let plain: String = expression.replace(r"\\", "").replace(r#"\""#, "").split('"').step_by(2).collect();
    let opened = |text: &str| text.matches(['(', '[', '{']).count();
    let closed = |text: &str| text.matches([')', ']', '}']).count();
    let is_within = |before: &str| opened(before) > closed(before);
    !plain.starts_with(['!', '-']) && plain.match_indices(' ').all(|(at, _)| is_within(&plain[..at]))
}

/// The environment of everything else in a policy: named expressions, each of which may use earlier ones. Each is evaluated at
/// most once, and only if it is used.
#[derive(Clone, Debug, Default)]
pub(super) struct Variables {
    named: Vec<(String, String)>,
    /// The values of parameters.
    pub(super) values: Values,
}

impl Environment for Variables {
    fn define(&mut self, stem: &str, expression: &str) -> String {
        if let Some((name, _)) = self.named.iter().find(|(_, own)| own == expression) {
            return format!("variables.{name}");
        }
        let is_free = |name: &String| self.named.iter().all(|(own, _)| own != name);
        let names = (0..).map(|number| if number == 0 { stem.to_owned() } else { format!("{stem}_{number}") });
        let name = names.into_iter().find(is_free).expect("numbers do not end");
        self.named.push((name.clone(), expression.to_owned()));
        format!("variables.{name}")
    }
}

impl Variables {
    /// As [`Environment::define`] for a single use: a short expression is used directly.
    pub(super) fn short(&mut self, stem: &str, expression: String) -> String {
        if expression.len() <= SHORT { expression } else { self.define(stem, &expression) }
    }

    /// The labels of the workload's Namespace.
    pub(super) fn namespace_labels(&mut self) -> String {
        self.define("namespace_labels", "namespaceObject.metadata.?labels.orValue({})")
    }

    /// All expressions with their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named.iter().map(|(name, expression)| (name.as_str(), expression.as_str()))
    }

    /// The variables in the form of the API.
    pub(super) fn to_value(&self) -> Value {
        self.iter().map(|(name, expression)| json!({ "name": name, "expression": expression })).collect()
    }
}

/// What renders values.
#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    /// The operand for each text with a stand-in.
    pub(super) leaves: BTreeMap<String, String>,
    /// By the name of the policy and the hash of its spec: two contents of one policy may have the same template.
    pub(super) of: BTreeMap<(String, String), Given>,
}

/// The values of one policy.
#[derive(Clone, Debug)]
pub(super) struct Given {
    /// The condition that this engine gives them.
    pub(super) is_usual: String,
    /// The list of the entries of its marker, as JSON texts.
    pub(super) entries: String,
}

impl Values {
    /// The operand for `text` of a template, if it has a value.
    pub(super) fn leaf(&self, text: &str) -> Option<&String> {
        self.leaves.get(text)
    }

    fn of(&self, policy: &Policy) -> Option<&Given> {
        self.of.get(&(policy.name.clone(), policy.spec_hash.clone()))
    }

    /// The condition that this engine gives the values of `policy`; none if it has none.
    pub(super) fn are_usual(&self, policy: &Policy) -> Option<&str> {
        Some(self.of(policy)?.is_usual.as_str())
    }

    /// The list of the entries for values in the marker of `policy`, as JSON texts.
    pub(super) fn entries(&self, policy: &Policy) -> Option<String> {
        Some(self.of(policy)?.entries.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_hand_only_an_operand_has_no_brackets() {
        for (expression, is_operand) in [
            ("object.metadata.?labels[?\"a b\\\" c\"].orValue({})", true),
            ("[a + b].map(k, k ? 1 : 2)[0]", true),
            ("a + b", false),
            ("!a", false),
            ("(a) || (b)", false),
            ("\"(\" + a", false),
        ] {
            let expected = if is_operand { expression.to_owned() } else { format!("({expression})") };
            assert_eq!(AtHand.define("x", expression), expected);
        }
    }
}
