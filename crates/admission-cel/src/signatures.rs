//! The types of a function: its parameters and result, its implementation, and the context of a call. The functions
//! themselves are in [`library`](super::library).

use super::budget::Meter;
use super::dialect::Dialect;
use super::error::Failure;
use super::formats::Format;
use super::patterns::{Pattern, Patterns};
use super::types::{Opaque, Type};
use super::value::{Outcome, Text, Val};

/// The context of a function call.
pub(super) struct Work<'w> {
    /// Pays for the call.
    pub(super) meter: &'w mut Meter,
    pub(super) dialect: Dialect,
    /// The pattern of this call, if it is constant.
    pub(super) pattern: Option<&'w Pattern>,
    /// The cache for non-constant patterns.
    pub(super) patterns: &'w mut Patterns,
    /// The result type of the signature.
    pub(super) gives: &'w Type,
}

impl Work<'_> {
    /// The only value, a string, which costs as much as a text of `times` its length.
    pub(super) fn text<'v, 'a>(&mut self, values: &'v [Val<'a>], times: usize) -> Result<&'v Text<'a>, Failure> {
        let [Val::Text(text)] = values else { return Err(Failure::no_such_overload()) };
        self.meter.charge_text(text.len() * times)?;
        Ok(text)
    }
}

/// An implementation over values, with the target of a member call first. Number and types of the values match the
/// signature.
pub(super) type Run = for<'a> fn(&mut Work<'_>, &[Val<'a>]) -> Outcome<'a>;

/// The kind of an implementation.
#[derive(Clone, Copy)]
pub(super) enum Means {
    /// All arguments are evaluated first.
    Strict(Run),
    /// The same, and the function itself checks the types of items within its arguments.
    Unguarded(Run),
    /// The result is a named format.
    Format(&'static Format),
    /// The evaluator implements it, for example because not all arguments are evaluated.
    Native(Native),
}

/// The operations of the evaluator.
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
    /// The number of type parameters.
    pub(super) parameters: usize,
    pub(super) means: Means,
    /// The first minor version that has it.
    pub(super) since: u32,
    /// Whether no server has it.
    pub(super) is_ours: bool,
}

impl Overload {
    /// Whether the overload accepts these values. Only the first entry of a list or map is checked, as on the server.
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
