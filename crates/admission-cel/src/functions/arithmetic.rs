//! Operators over numbers, strings and bytes. Both operands have one type, and results out of range are errors.

use super::compare;
use crate::error::{Failure, NumberKind};
use crate::signatures::Work;
use crate::value::{Outcome, Val};
use std::cmp::Ordering;

pub(crate) fn not<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::Bool(value)] => Ok(Val::Bool(!value)),
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn negate<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::Int(value)] => value.checked_neg().map(Val::Int).ok_or(Failure::overflow(NumberKind::Integer)),
        [Val::Double(value)] => Ok(Val::Double(-value)),
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn ordered<'a>(work: &mut Work<'_>, values: &[Val<'a>], holds: fn(Ordering) -> bool) -> Outcome<'a> {
    let [left, right] = values else { return Err(Failure::no_such_overload()) };
    work.meter.charge(compare::order_cost(left, right).saturating_sub(1))?;
    compare::order(left, right).map(|order| Val::Bool(holds(order)))
}

/// An operator over two numbers of one type.
struct Operator {
    int: fn(i64, i64) -> Option<i64>,
    uint: fn(u64, u64) -> Option<u64>,
    double: Option<fn(f64, f64) -> f64>,
    /// The error for a zero on the right, if that is an error.
    zero: Option<&'static str>,
}

const ADD: Operator =
    Operator { int: i64::checked_add, uint: u64::checked_add, double: Some(|left, right| left + right), zero: None };
const SUBTRACT: Operator =
    Operator { int: i64::checked_sub, uint: u64::checked_sub, double: Some(|left, right| left - right), zero: None };
const MULTIPLY: Operator =
    Operator { int: i64::checked_mul, uint: u64::checked_mul, double: Some(|left, right| left * right), zero: None };
const DIVIDE: Operator = Operator {
    int: i64::checked_div,
    uint: u64::checked_div,
    double: Some(|left, right| left / right),
    zero: Some("division by zero"),
};
const REMAINDER: Operator =
    Operator { int: i64::checked_rem, uint: u64::checked_rem, double: None, zero: Some("modulus by zero") };

pub(crate) fn add<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    apply(&ADD, values)
}

pub(crate) fn subtract<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    apply(&SUBTRACT, values)
}

pub(crate) fn multiply<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    apply(&MULTIPLY, values)
}

pub(crate) fn divide<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    apply(&DIVIDE, values)
}

pub(crate) fn remainder<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    apply(&REMAINDER, values)
}

fn apply<'a>(operator: &Operator, values: &[Val<'a>]) -> Outcome<'a> {
    match (values, operator.zero) {
        ([_, Val::Int(0) | Val::Uint(0)], Some(message)) => Err(Failure::new(message)),
        ([Val::Int(left), Val::Int(right)], _) => {
            (operator.int)(*left, *right).map(Val::Int).ok_or(Failure::overflow(NumberKind::Integer))
        }
        ([Val::Uint(left), Val::Uint(right)], _) => {
            (operator.uint)(*left, *right).map(Val::Uint).ok_or(Failure::overflow(NumberKind::Unsigned))
        }
        ([Val::Double(left), Val::Double(right)], _) => {
            let double = operator.double.ok_or_else(Failure::no_such_overload)?;
            Ok(Val::Double(double(*left, *right)))
        }
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn concatenate<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Text(left), Val::Text(right)] = values else { return Err(Failure::no_such_overload()) };
    work.meter.charge_text(left.len() + right.len())?;
    Ok(Val::text([&**left, &**right].concat()))
}

pub(crate) fn concatenate_bytes<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Bytes(left), Val::Bytes(right)] = values else { return Err(Failure::no_such_overload()) };
    work.meter.charge_text(left.len() + right.len())?;
    Ok(Val::Bytes([&**left, &**right].concat().into()))
}
