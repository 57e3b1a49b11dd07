//! An expression that has been checked: every name is resolved, every call has its overloads.

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
    /// A variable of a macro, by its place among those that are in scope.
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
    /// Those that may fit; the first that takes the values is run.
    pub(super) overloads: Vec<&'static Overload>,
    pub(super) arguments: Vec<Plan>,
    pub(super) pattern: Option<Pattern>,
    /// It converts a value into another type.
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
    /// It has a variable for the key, too.
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
