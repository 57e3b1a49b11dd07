//! CEL, in the dialect of Kubernetes' own admission: what a ValidatingAdmissionPolicy of a server of 1.36 takes, means
//! and refuses, over JSON.
//!
//! # Why not a crate
//! The crates for CEL bound neither time nor memory, check no types (half of what a server refuses), and disagree with
//! it on verdicts: on `has()` of a scalar, on equality of maps, on what is absent. With any of them the checker, the
//! signatures, Kubernetes' functions and the accounting would still be ours, and its evaluator in the way of them. The
//! grammar is the small part.
//!
//! # Bounds
//! An expression has at most 100,000 characters and 250 levels, as on the server. An evaluation costs at most
//! [`COST_PER_EXPRESSION`], counted nearly as the server counts, and a bounded amount of real work beside it; both are paid
//! before anything is allocated. What an expression builds is at most 256 levels deep. Nothing panics.
//!
//! # Agreement
//! `tests/cel` has an expression for everything that is known of the server, with its verdict; what differs is kept there
//! by name and reason (`differs`). `tests/apiserver/cel.rs` asks a real server about all of them.
//!
//! # Files
//! - Source to plan: [`lexer`], [`parser`] with [`macros`] into [`ast`], [`check`] with [`types`], [`namespace`] and
//!   [`suggest`] into [`plan`].
//! - What an expression looks at: [`places`].
//! - Every function and operator: the table of [`signatures`].
//! - Evaluation: [`eval`] over [`value`], paid from [`budget`]; [`error`].
//! - Functions: [`arithmetic`], [`compare`], [`convert`], [`format`], [`formats`], [`lists`], [`moment`], [`network`],
//!   [`optional`], [`quantity`], [`regexes`], [`semver`], [`sets`], [`strings`], [`url`].

#![allow(rustdoc::private_intra_doc_links, reason = "the map of files is for those who work on them")]

mod arithmetic;
mod ast;
mod budget;
mod check;
mod compare;
mod convert;
mod error;
mod eval;
mod format;
pub(crate) mod formats;
mod lexer;
mod lists;
mod macros;
mod moment;
mod namespace;
mod network;
mod optional;
mod parser;
mod places;
mod plan;
pub mod quantity;
mod regexes;
mod semver;
mod sets;
mod signatures;
mod strings;
mod suggest;
mod types;
mod url;
mod value;

#[cfg(test)]
mod tests;

pub use budget::{Budget, COST_OF_MATCH_CONDITIONS, COST_OF_VALIDATIONS, COST_PER_EXPRESSION};
pub use error::{CompileError, Failure};
pub use places::Place;

use eval::Evaluator;
use plan::Plan;
use serde_json::Value;
use value::Val;

/// An expression that has been parsed and checked. It does not change, and can be used from several threads.
#[derive(Debug)]
pub struct Expression {
    source: String,
    plan: Plan,
}

/// What an expression must give: the server demands exactly this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    /// For validations and match conditions.
    Bool,
    /// For messages.
    String,
}

/// What the variables of an expression stand for.
#[derive(Clone, Copy, Debug)]
pub struct Variables<'a> {
    /// `object`.
    pub object: &'a Value,
    /// `namespaceObject`; null where there is none.
    pub namespace: Option<&'a Value>,
}

impl Expression {
    /// Parses and checks `source`.
    ///
    /// # Errors
    /// If the server would refuse it: where, what is wrong and what is there instead.
    pub fn compile(source: &str, gives: Gives) -> Result<Self, CompileError> {
        let plan = parser::parse(source).and_then(|node| check::check(&node, gives));
        let plan = plan.map_err(|fault| CompileError::new(source, fault))?;
        Ok(Self { source: source.to_owned(), plan })
    }

    /// As it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Every place where it says `object`, and which fields it selects right there; in the order of the source.
    pub fn places_of_object(&self) -> Vec<Place> {
        // It has been parsed before.
        parser::parse(&self.source).map(|node| places::of(&node, "object")).unwrap_or_default()
    }

    /// Whether it holds.
    ///
    /// # Errors
    /// If it fails, or costs more than one expression may or `budget` has left; and if it was not compiled as
    /// [`Gives::Bool`].
    pub fn test(&self, variables: &Variables<'_>, budget: &mut Budget) -> Result<bool, Failure> {
        self.evaluate(variables, budget, |value| match value {
            Val::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// The text that it gives.
    ///
    /// # Errors
    /// As for [`Self::test`]; and if it was not compiled as [`Gives::String`].
    pub fn text(&self, variables: &Variables<'_>, budget: &mut Budget) -> Result<String, Failure> {
        self.evaluate(variables, budget, |value| match value {
            Val::Text(text) => Some(text.to_string()),
            _ => None,
        })
    }

    fn evaluate<T>(
        &self,
        variables: &Variables<'_>,
        budget: &mut Budget,
        read: fn(&Val<'_>) -> Option<T>,
    ) -> Result<T, Failure> {
        let mut evaluator = Evaluator::new(variables.object, variables.namespace, budget.meter());
        let value = evaluator.value(&self.plan);
        budget.spend(&evaluator.meter);
        read(&value?).ok_or_else(Failure::no_such_overload)
    }
}
