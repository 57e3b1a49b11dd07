//! A function: the types that it takes and gives, its code, and what the code works with. The functions themselves are in
//! [`library`](super::library).

use super::budget::Meter;
use super::patterns::{Pattern, Patterns};
use super::types::{Opaque, Type};
use super::value::{Outcome, Val};

/// What a function works with beside its arguments.
pub(super) struct Work<'w> {
    /// What it pays with.
    pub(super) meter: &'w mut Meter,
    /// The pattern of this call, if it is constant.
    pub(super) pattern: Option<&'w Pattern>,
    /// Patterns that are not.
    pub(super) patterns: &'w mut Patterns,
    /// The type that the signature gives.
    pub(super) gives: &'w Type,
}

/// A function over values, the target of a member call first. They are as many as the signature has, and of its types.
pub(super) type Run = for<'a> fn(&mut Work<'_>, &[Val<'a>]) -> Outcome<'a>;

/// How a function comes to its value.
#[derive(Clone, Copy)]
pub(super) enum Means {
    /// All arguments have values first.
    Strict(Run),
    /// The same, and the function itself sees to the types of what is in its arguments.
    Unguarded(Run),
    /// The evaluator itself does it, for example because not all arguments are evaluated.
    Native(Native),
}

/// What the evaluator itself does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Native {
    Equal,
    NotEqual,
    In,
    Choice,
    Index,
    OptionalIndex,
    Or,
    OrValue,
}

/// One overload of a function.
pub(super) struct Overload {
    pub(super) is_member: bool,
    pub(super) takes: Vec<Type>,
    pub(super) gives: Type,
    /// How many type parameters it has.
    pub(super) parameters: usize,
    pub(super) means: Means,
}

impl Overload {
    /// Whether it takes these values. Of a list or a map the first entry speaks for all, as on the server.
    pub(super) fn accepts(&self, values: &[Val<'_>]) -> bool {
        let is_unguarded = matches!(self.means, Means::Unguarded(_));
        let accepts = |takes: &Type, value| match takes {
            Type::List(_) if is_unguarded => matches!(value, &Val::List(_)),
            _ => accepts(takes, value),
        };
        values.len() == self.takes.len() && self.takes.iter().zip(values).all(|(takes, value)| accepts(takes, value))
    }
}

fn accepts(takes: &Type, value: &Val<'_>) -> bool {
    match (takes, value) {
        (Type::Dyn | Type::Parameter(_), _)
        | (Type::Null, Val::Null)
        | (Type::Bool, Val::Bool(_))
        | (Type::Int, Val::Int(_))
        | (Type::Uint, Val::Uint(_))
        | (Type::Double, Val::Double(_))
        | (Type::Text, Val::Text(_))
        | (Type::Bytes, Val::Bytes(_))
        | (Type::Timestamp, Val::Timestamp(_))
        | (Type::Duration, Val::Duration(_))
        | (Type::Meta, Val::Type(_))
        | (Type::Optional(_), Val::Optional(_))
        | (Type::Opaque(Opaque::Quantity), Val::Quantity(_))
        | (Type::Opaque(Opaque::Url), Val::Url(_))
        | (Type::Opaque(Opaque::Ip), Val::Ip(_))
        | (Type::Opaque(Opaque::Cidr), Val::Cidr(_))
        | (Type::Opaque(Opaque::Semver), Val::Semver(_))
        | (Type::Opaque(Opaque::Format), Val::Format(_)) => true,
        (Type::List(item), Val::List(list)) => list.get(0).is_none_or(|first| accepts(item, &first)),
        (Type::Map(of), Val::Map(map)) => {
            map.iter().next().is_none_or(|(key, value)| accepts(&of.0, &key.value()) && accepts(&of.1, &value))
        }
        _ => false,
    }
}
