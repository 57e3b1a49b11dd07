//! The CEL of Kubernetes admission over JSON: the syntax, checks and semantics of a ValidatingAdmissionPolicy on a
//! server of 1.30 to 1.37.
//!
//! [`Expression::compile`] parses and checks an expression for one version ([`Dialect`]). [`Expression::test`] evaluates it and charges a [`Budget`].
//!
//! ```
//! use admission_cel::{Budget, Dialect, Expression, Gives, Variables};
//! use serde_json::json;
//!
//! let object = json!({ "spec": { "replicas": 7 } });
//! let namespace = json!({ "metadata": { "name": "shop", "labels": { "team": "payments" } } });
//! let variables = Variables { object: &object, namespace: Some(&namespace), template: None };
//! let mut budget = Budget::validations();
//!
//! let newest = Dialect::NEWEST;
//!
//! let source = "object.spec.replicas <= 5 || namespaceObject.metadata.name == 'shop'";
//! let demand = Expression::compile(source, Gives::Bool, newest)?;
//! assert_eq!(demand.test(&variables, &mut budget), Ok(true));
//!
//! let message = Expression::compile("'found ' + string(object.spec.replicas)", Gives::String, newest)?;
//! assert_eq!(message.text(&variables, &mut budget).as_deref(), Ok("found 7"));
//!
//! let failing = Expression::compile("object.spec.missing == 1", Gives::Bool, newest)?;
//! assert_eq!(failing.test(&variables, &mut budget).unwrap_err().to_string(), "no such key: missing");
//!
//! let older = Expression::compile("object.spec.list.sort() == []", Gives::Bool, Dialect::of(34)).unwrap_err();
//! assert!(older.to_string().ends_with("Kubernetes has it from 1.35 on"));
//! # Ok::<(), admission_cel::CompileError>(())
//! ```
//!
//! # Bounds
//! An expression has at most 100,000 characters and 250 levels, as on the server. An evaluation costs at most
//! [`COST_PER_EXPRESSION`] units, counted nearly as the server counts, and a bounded amount of real work. Both are paid
//! before memory is allocated. A value that an expression builds is at most 256 levels deep. Nothing panics.
//!
//! # Agreement with the server
//! `tests/corpus` has an expression for each known behaviour of the server, with its verdict in each version. A difference is kept there by
//! name and reason (`differs`). The README lists versions, differences, and what is not covered.
//!
//! # Values of parameters
//! [`Gives::Value`] is for expressions that no server evaluates: they give the value of a parameter of a policy
//! ([`Expression::value`]). Two things exist only there, and are ours: the variable `template`, which is the pod template
//! of the workload, and `sum()`, `max()`, `min()` of lists of quantities. Validations, match conditions and messages do
//! not have them, and mean what the server means.
//!
//! ```
//! use admission_cel::{Budget, Dialect, Expression, Gives, Variables};
//! use serde_json::json;
//!
//! let template = json!({ "spec": { "containers": [
//!     { "name": "web", "resources": { "requests": { "memory": "1Gi" } } },
//!     { "name": "log", "resources": { "requests": { "memory": "512Mi" } } },
//! ] } });
//! let variables = Variables { object: &json!({}), namespace: None, template: Some(&template) };
//! let source = "template.spec.containers.map(c, quantity(c.resources.requests.memory)).sum()";
//! let memory = Expression::compile(source, Gives::Value, Dialect::NEWEST)?;
//! assert_eq!(memory.value(&variables, &mut Budget::validations()).as_deref(), Ok("1536Mi"));
//! # Ok::<(), admission_cel::CompileError>(())
//! ```
//!
//! # Files
//! - Source to plan: [`lexer`], [`parser`] with [`macros`] into [`ast`], [`check`] with [`types`], [`namespace`] and
//!   [`suggest`] into [`plan`].
//! - The places of a variable in an expression: [`places`]. Values of parameters: [`parameter`].
//! - Every function and operator: the table of [`library`], of [`signatures`]. What changed between versions: [`dialect`].
//! - Evaluation: [`eval`] over [`value`], paid from [`budget`]; [`error`].
//! - What functions and operators do: [`functions`], with [`patterns`] for regular expressions.
//! - Types that JSON does not have: [`formats`], [`moment`], [`network`], [`quantity`], [`semver`], [`url`].

#![warn(missing_docs)]
#![allow(rustdoc::private_intra_doc_links, reason = "the map of files is for those who work on them")]

mod ast;
mod budget;
mod check;
mod dialect;
mod error;
mod eval;
mod formats;
mod functions;
mod lexer;
mod library;
mod macros;
mod moment;
mod namespace;
mod network;
mod parameter;
mod parser;
mod patterns;
mod places;
mod plan;
pub mod quantity;
mod semver;
mod signatures;
mod suggest;
mod types;
mod url;
mod value;

#[cfg(test)]
mod tests;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use budget::{Budget, COST_OF_MATCH_CONDITIONS, COST_OF_VALIDATIONS, COST_PER_EXPRESSION};
pub use check::Gives;
pub use dialect::Dialect;
pub use error::{CompileError, Failure};
pub use places::Place;

use eval::Evaluator;
use plan::Plan;
use serde_json::Value;
use value::Val;

/// The regular expression `pattern` of RE2, as the function `matches` reads it, with bounded memory.
///
/// # Errors
/// If it is invalid or too large: the message.
pub fn regex(pattern: &str) -> Result<regex::Regex, String> {
    patterns::Pattern::new(pattern).map(|pattern| pattern.regex)
}

/// An expression that was parsed and checked. It is immutable, and can be shared between threads.
#[derive(Debug)]
pub struct Expression {
    source: String,
    dialect: Dialect,
    plan: Plan,
}

/// The values of the variables of an expression.
#[derive(Clone, Copy, Debug)]
pub struct Variables<'a> {
    /// `object`.
    pub object: &'a Value,
    /// `namespaceObject`; null if there is none, as for an object without a namespace.
    pub namespace: Option<&'a Value>,
    /// `template`, the pod template of the workload; null if there is none. Only [`Gives::Value`] has this variable.
    pub template: Option<&'a Value>,
}

impl Expression {
    /// Parses and checks `source` as a server of a version does.
    ///
    /// # Errors
    /// If the server would reject it: the position, the fault, and a fix if possible.
    pub fn compile(source: &str, gives: Gives, dialect: Dialect) -> Result<Self, CompileError> {
        let plan = parser::parse(source, dialect).and_then(|node| check::check(&node, gives, dialect));
        let plan = plan.map_err(|fault| CompileError::new(source, fault))?;
        Ok(Self { source: source.to_owned(), dialect, plan })
    }

    /// The version that the expression was compiled for.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The source text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Every place that reads `object`, with the fields selected there, in the order of the source.
    pub fn places_of_object(&self) -> Vec<Place> {
        // Never an error, because `compile` has parsed the same source.
        parser::parse(&self.source, self.dialect).map(|node| places::of(&node, "object")).unwrap_or_default()
    }

    /// The verdict of an expression that was compiled as [`Gives::Bool`].
    ///
    /// # Errors
    /// If the evaluation fails, or costs more than [`COST_PER_EXPRESSION`] or the rest of `budget`, or if the
    /// expression does not give a bool.
    pub fn test(&self, variables: &Variables<'_>, budget: &mut Budget) -> Result<bool, Failure> {
        self.evaluate(variables, budget, |value| match value {
            Val::Bool(value) => Ok(*value),
            _ => Err(Failure::no_such_overload()),
        })
    }

    /// The text of an expression that was compiled as [`Gives::String`].
    ///
    /// # Errors
    /// As for [`Self::test`], with the types the other way round.
    pub fn text(&self, variables: &Variables<'_>, budget: &mut Budget) -> Result<String, Failure> {
        self.evaluate(variables, budget, |value| match value {
            Val::Text(text) => Ok(text.to_string()),
            _ => Err(Failure::no_such_overload()),
        })
    }

    /// The value of an expression that was compiled as [`Gives::Value`], as an author writes it into an annotation.
    ///
    /// | type | text |
    /// |---|---|
    /// | string | as it is |
    /// | int, uint, double | digits, without an exponent: `7`, `0.5` |
    /// | bool | `true`, `false` |
    /// | duration | seconds, as `string(…)` gives them: `90s`, `0.5s` |
    /// | Quantity | the canonical form of Kubernetes, in the format of the first operand: `1500m`, `64Mi` |
    ///
    /// # Errors
    /// If the evaluation fails or costs too much, as for [`Self::test`], and for null and every other type, infinity and
    /// NaN.
    pub fn value(&self, variables: &Variables<'_>, budget: &mut Budget) -> Result<String, Failure> {
        self.evaluate(variables, budget, parameter::text)
    }

    fn evaluate<T>(
        &self,
        variables: &Variables<'_>,
        budget: &mut Budget,
        read: fn(&Val<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut evaluator = Evaluator::new(variables, self.dialect, budget.meter());
        let value = evaluator.value(&self.plan);
        budget.spend(&evaluator.meter);
        read(&value?)
    }
}
