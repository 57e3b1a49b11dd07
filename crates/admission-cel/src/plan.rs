//! The plan of a checked expression, with all names resolved and the overloads of every call.

use super::ast::{Entry, Form, Item};
use super::patterns::Pattern;
use super::signatures::{Native, Overload};
use super::value::TypeName;

/// A part of a checked expression.
#[derive(Debug)]
pub(super) enum Plan {
    Constant(Constant),
    /// The variable `object`.
    Object,
    /// The variable `namespaceObject`.
    Namespace,
    /// The variable `template`, of an expression for a parameter.
    Template,
    /// A variable of a macro, by its index among the variables in scope.
    Local(usize),
    Select {
        operand: Box<Plan>,
        field: Box<str>,
        is_optional: bool,
    },
    Has {
        operand: Box<Plan>,
        field: Box<str>,
    },
    And(Vec<Plan>),
    Or(Vec<Plan>),
    Native(Native, Vec<Plan>),
    Call(Box<Call>),
    List(Vec<Item<Plan>>),
    Map(Vec<Entry<Plan>>),
    Comprehension(Box<Comprehension>),
    OptionalMap(Box<OptionalMap>),
    SortBy(Box<SortBy>),
}

#[derive(Debug)]
pub(super) enum Constant {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Box<str>),
    Bytes(Box<[u8]>),
    Type(TypeName),
}

pub(super) struct Call {
    /// The overloads that may fit. The first one that accepts the values is run.
    pub(super) overloads: Vec<&'static Overload>,
    pub(super) arguments: Vec<Plan>,
    pub(super) pattern: Option<Pattern>,
    /// Whether the call is a type conversion.
    pub(super) is_conversion: bool,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Call").field("arguments", &self.arguments).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct Comprehension {
    pub(super) form: Form,
    /// Whether there is also a variable for the key.
    pub(super) has_two: bool,
    pub(super) range: Plan,
    pub(super) filter: Option<Plan>,
    pub(super) body: Plan,
}

#[derive(Debug)]
pub(super) struct OptionalMap {
    pub(super) target: Plan,
    pub(super) body: Plan,
    pub(super) is_flat: bool,
}

#[derive(Debug)]
pub(super) struct SortBy {
    pub(super) range: Plan,
    pub(super) key: Plan,
}
