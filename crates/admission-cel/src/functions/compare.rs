//! Equality, order and membership.

use crate::budget::{Meter, text_cost};
use crate::error::Failure;
use crate::signatures::{Native, Work};
use crate::value::{List, Map, Outcome, Val};
use std::cmp::Ordering;

/// The work to find a key in a large map.
pub(crate) const LOOKUP: u64 = 8;

// The comparison functions of quantities and versions. Both arguments have one type.

pub(crate) fn is_greater_than<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    like(values).map(|order| Val::Bool(order.is_gt()))
}

pub(crate) fn is_less_than<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    like(values).map(|order| Val::Bool(order.is_lt()))
}

pub(crate) fn compare_to<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    like(values).map(|order| Val::Int(order as i64))
}

fn like(values: &[Val<'_>]) -> Result<Ordering, Failure> {
    match values {
        [Val::Quantity(left), Val::Quantity(right)] => Ok(left.compare(right)),
        [Val::Semver(left), Val::Semver(right)] => Ok(left.compare(right)),
        _ => Err(Failure::no_such_overload()),
    }
}

/// The server's cost of an operator over these values.
pub(crate) fn cost(native: Native, left: &Val<'_>, right: &Val<'_>) -> u64 {
    match (native, right) {
        (Native::Equal | Native::NotEqual, _) => (size(left).min(size(right)) as u64).div_ceil(10),
        (Native::In, Val::List(list)) => list.len() as u64,
        _ => 1,
    }
}

/// The size of a value for the server: its length, or 1 if it has none.
pub(crate) fn size(value: &Val<'_>) -> usize {
    match value {
        Val::Text(text) => text.len(),
        Val::Bytes(bytes) => bytes.len(),
        Val::List(list) => list.len(),
        Val::Map(map) => map.len(),
        _ => 1,
    }
}

/// Whether two values are equal. Numbers are compared by value across types. Other values of different types are
/// unequal.
///
/// # Errors
/// If one value has a type of Kubernetes, and the other has another type.
pub(crate) fn equal(meter: &mut Meter, left: &Val<'_>, right: &Val<'_>) -> Result<bool, Failure> {
    meter.work(1)?;
    let is_equal = match (left, right) {
        (Val::Null, Val::Null) => true,
        (Val::Bool(left), Val::Bool(right)) => left == right,
        (Val::Text(left), Val::Text(right)) => same_bytes(meter, left.as_bytes(), right.as_bytes())?,
        (Val::Bytes(left), Val::Bytes(right)) => same_bytes(meter, left, right)?,
        (Val::List(left), Val::List(right)) => equal_lists(meter, left, right)?,
        (Val::Map(left), Val::Map(right)) => equal_maps(meter, left, right)?,
        (Val::Timestamp(left), Val::Timestamp(right)) => left == right,
        (Val::Duration(left), Val::Duration(right)) => left == right,
        (Val::Type(left), Val::Type(right)) => left == right,
        (Val::Optional(left), Val::Optional(right)) => match (left, right) {
            (Some(left), Some(right)) => equal(meter, &left.value, &right.value)?,
            (left, right) => left.is_none() && right.is_none(),
        },
        _ if is_number(left) && is_number(right) => numbers(left, right) == Some(Ordering::Equal),
        _ => return equal_opaque(left, right),
    };
    Ok(is_equal)
}

fn same_bytes(meter: &mut Meter, left: &[u8], right: &[u8]) -> Result<bool, Failure> {
    if left.len() != right.len() {
        return Ok(false);
    }
    meter.work(left.len() as u64 / 128)?;
    Ok(left == right)
}

fn equal_lists(meter: &mut Meter, left: &List<'_>, right: &List<'_>) -> Result<bool, Failure> {
    if left.len() != right.len() {
        return Ok(false);
    }
    for (left, right) in left.iter().zip(right.iter()) {
        if !equal(meter, &left, &right)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn equal_maps<'a>(meter: &mut Meter, left: &Map<'a>, right: &Map<'a>) -> Result<bool, Failure> {
    if left.len() != right.len() {
        return Ok(false);
    }
    for (key, left) in left.iter() {
        meter.work(LOOKUP)?;
        match right.get(&key) {
            Some(right) if equal(meter, &left, &right)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Compares types of Kubernetes, which are comparable only with their own type. The left operand decides about the
/// error.
fn equal_opaque(left: &Val<'_>, right: &Val<'_>) -> Result<bool, Failure> {
    match (left, right) {
        (Val::Quantity(left), Val::Quantity(right)) => left.equal(right),
        (Val::Url(left), Val::Url(right)) => Ok(left.text() == right.text()),
        (Val::Ip(left), Val::Ip(right)) => Ok(left == right),
        (Val::Cidr(left), Val::Cidr(right)) => Ok(left == right),
        (Val::Semver(left), Val::Semver(right)) => Ok(left.compare(right) == Ordering::Equal),
        (Val::Format(left), Val::Format(right)) => Ok(left.name == right.name),
        (_, Val::Null) => Ok(false),
        (Val::Quantity(_) | Val::Url(_) | Val::Ip(_) | Val::Cidr(_) | Val::Semver(_) | Val::Format(_), _) => {
            Err(Failure::no_such_overload())
        }
        _ => Ok(false),
    }
}

/// `value in container`.
///
/// # Errors
/// If the container is neither a list nor a map.
pub(crate) fn contains<'a>(meter: &mut Meter, value: &Val<'a>, container: &Val<'a>) -> Result<bool, Failure> {
    match container {
        Val::List(list) => {
            for item in list.iter() {
                // Incomparable values are unequal.
                match equal(meter, value, &item) {
                    Ok(true) => return Ok(true),
                    Err(Failure::CostExceeded) => return Err(Failure::CostExceeded),
                    _ => {}
                }
            }
            Ok(false)
        }
        Val::Map(map) => Ok(value.key().is_some_and(|key| map.get(&key).is_some())),
        _ => Err(Failure::no_such_overload()),
    }
}

/// The order of two values of one type, or of two numbers.
///
/// # Errors
/// If the values have no order.
pub(crate) fn order(left: &Val<'_>, right: &Val<'_>) -> Result<Ordering, Failure> {
    match (left, right) {
        (Val::Bool(left), Val::Bool(right)) => Ok(left.cmp(right)),
        (Val::Text(left), Val::Text(right)) => Ok((**left).cmp(&**right)),
        (Val::Bytes(left), Val::Bytes(right)) => Ok(left.cmp(right)),
        (Val::Timestamp(left), Val::Timestamp(right)) => Ok(left.cmp(right)),
        (Val::Duration(left), Val::Duration(right)) => Ok(left.cmp(right)),
        _ if is_number(left) && is_number(right) => {
            numbers(left, right).ok_or_else(|| Failure::new("NaN values cannot be ordered"))
        }
        _ => Err(Failure::no_such_overload()),
    }
}

/// Whether values of this type have an order.
pub(crate) const fn is_ordered(value: &Val<'_>) -> bool {
    let is_other = matches!(value, Val::Bool(_) | Val::Text(_) | Val::Bytes(_) | Val::Timestamp(_) | Val::Duration(_));
    is_other || is_number(value)
}

const fn is_number(value: &Val<'_>) -> bool {
    matches!(value, Val::Int(_) | Val::Uint(_) | Val::Double(_))
}

/// The order of two numbers; none for NaN.
fn numbers(left: &Val<'_>, right: &Val<'_>) -> Option<Ordering> {
    match (integer(left), integer(right)) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        (Some(left), None) => double(right).and_then(|right| integer_to_double(left, right)),
        (None, Some(right)) => double(left).and_then(|left| integer_to_double(right, left)).map(Ordering::reverse),
        (None, None) => double(left)?.partial_cmp(&double(right)?),
    }
}

fn integer(value: &Val<'_>) -> Option<i128> {
    match value {
        Val::Int(value) => Some(i128::from(*value)),
        Val::Uint(value) => Some(i128::from(*value)),
        _ => None,
    }
}

const fn double(value: &Val<'_>) -> Option<f64> {
    match value {
        Val::Double(value) => Some(*value),
        _ => None,
    }
}

/// As on the server, the integer becomes a double.
fn integer_to_double(left: i128, right: f64) -> Option<Ordering> {
    #[allow(clippy::cast_precision_loss, reason = "the server loses it, too")]
    let left = left as f64;
    left.partial_cmp(&right)
}

/// The cost of comparing two strings or byte strings.
pub(crate) fn order_cost(left: &Val<'_>, right: &Val<'_>) -> u64 {
    text_cost(size(left).min(size(right)))
}
