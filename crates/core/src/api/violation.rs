//! A fault of a policy, for the rules and for the schema of pods, which know nothing of each other.

use super::code::Code;

/// A fault of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The kind of fault.
    pub code: Code,
    /// The field, for example `spec.template.containers[1].name`.
    pub field: String,
    /// The rule for the field, and what to write instead.
    pub message: String,
}

impl Violation {
    /// Its field without indexes, and its message: the same fault has the same, also where items before it are left out.
    pub(crate) fn without_indexes(&self) -> (String, &str) {
        (self.field.replace(|c: char| c.is_ascii_digit(), ""), &self.message)
    }
}
