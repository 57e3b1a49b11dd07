//! Expressions of policies, in the CEL of each version of Kubernetes.

use admission_cel::{CompileError, Dialect, Expression, Gives, Place};
use std::sync::OnceLock;

/// The CEL of a server of Kubernetes 1.`minor`. None stands for the newest version, and so does a version without
/// ValidatingAdmissionPolicy in `v1`: there only this operator evaluates.
pub(crate) fn dialect(minor: Option<u32>) -> Dialect {
    match minor {
        Some(minor) if minor >= Dialect::OLDEST.minor() => Dialect::of(minor),
        _ => Dialect::NEWEST,
    }
}

/// An expression that is valid in the newest CEL. It is compiled for another version when that version is first needed.
#[derive(Debug)]
pub struct VersionedExpression {
    newest: Expression,
    gives: Gives,
    /// For each version from the oldest on.
    older: Vec<OnceLock<Result<Expression, CompileError>>>,
}

impl VersionedExpression {
    /// Compiles `source`.
    ///
    /// # Errors
    /// If the newest version would reject it.
    pub fn compile(source: &str, gives: Gives) -> Result<Self, CompileError> {
        let newest = Expression::compile(source, gives, Dialect::NEWEST)?;
        let older = (Dialect::OLDEST.minor()..Dialect::NEWEST.minor()).map(|_| OnceLock::new()).collect();
        Ok(Self { newest, gives, older })
    }

    /// The source text.
    pub fn source(&self) -> &str {
        self.newest.source()
    }

    /// As [`Expression::places_of_object`].
    pub fn places_of_object(&self) -> Vec<Place> {
        self.newest.places_of_object()
    }

    /// The expression as a server of that version compiles it.
    ///
    /// # Errors
    /// If the server would reject it, for example because it lacks a function.
    pub fn compiled(&self, dialect: Dialect) -> Result<&Expression, &CompileError> {
        let index = usize::try_from(dialect.minor() - Dialect::OLDEST.minor()).ok();
        match index.and_then(|index| self.older.get(index)) {
            Some(older) => older.get_or_init(|| Expression::compile(self.source(), self.gives, dialect)).as_ref(),
            None => Ok(&self.newest),
        }
    }

    /// The expression to evaluate on a server of that version. The newest version takes the place of one that rejects
    /// the expression: there only this operator evaluates it.
    pub fn on(&self, dialect: Dialect) -> &Expression {
        self.compiled(dialect).unwrap_or(&self.newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use admission_cel::{Budget, Variables};
    use serde_json::{Value, json};

    #[test]
    fn an_expression_means_what_it_means_to_the_server() {
        for (source, minor, expected) in [
            ("'hello'.indexOf('', 9) == 9", Some(36), Some(true)),
            ("'hello'.indexOf('', 9) == 9", Some(37), Some(false)),
            ("'hello'.indexOf('', 9) == 9", None, Some(false)),
            ("'hello'.indexOf('h', 9) == -1", Some(31), None),
            ("'hello'.indexOf('h', 9) == -1", Some(32), Some(true)),
            // Before 1.30 no server evaluates.
            ("'hello'.indexOf('', 9) == 9", Some(29), Some(false)),
            // What a server lacks is evaluated here, by the newest version.
            ("[3, 1].sort()[0] == 1", Some(30), Some(true)),
        ] {
            let expression = VersionedExpression::compile(source, Gives::Bool).unwrap();
            let variables = Variables { object: &Value::Null, namespace: None, template: None };
            let found = expression.on(dialect(minor)).test(&variables, &mut Budget::validations());
            assert_eq!(found.ok(), expected, "{source} on {minor:?}");
        }
        let cpu = json!({ "cpu": ["1", "500m"] });
        let variables = Variables { object: &Value::Null, namespace: None, template: Some(&cpu) };
        for minor in [None, Some(30), Some(37)] {
            let source = "template.cpu.map(cpu, quantity(cpu)).sum()";
            let sum = VersionedExpression::compile(source, Gives::Value).unwrap();
            let found = sum.on(dialect(minor)).value(&variables, &mut Budget::validations());
            assert_eq!(found.as_deref(), Ok("1500m"), "{minor:?}");
            assert!(sum.compiled(dialect(minor)).is_ok(), "{minor:?}");
        }
        let sort = VersionedExpression::compile("[3, 1].sort()[0] == 1", Gives::Bool).unwrap();
        assert!(sort.compiled(Dialect::of(34)).is_err() && sort.compiled(Dialect::of(35)).is_ok());
    }
}
