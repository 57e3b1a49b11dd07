//! The functions of quantities.

use crate::error::Failure;
use crate::quantity::Quantity;
use crate::signatures::Work;
use crate::value::{Outcome, Val};
use std::rc::Rc;

pub(crate) fn quantity<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let quantity = read(work, values)?;
    let fault = || Failure::new("unable to parse quantity's suffix or number");
    quantity.map(|quantity| Val::Quantity(Rc::new(quantity))).ok_or_else(fault)
}

pub(crate) fn is_quantity<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Bool(read(work, values)?.is_some()))
}

fn read(work: &mut Work<'_>, values: &[Val<'_>]) -> Result<Option<Quantity>, Failure> {
    let text = work.text(values, 1)?;
    Ok(Quantity::parse(text))
}

pub(crate) fn of<'v>(values: &'v [Val<'_>]) -> Result<&'v Quantity, Failure> {
    match values {
        [Val::Quantity(quantity)] => Ok(quantity),
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn as_integer<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    of(values)?.integer().map(Val::Int).ok_or_else(|| Failure::new("cannot convert value to integer"))
}

pub(crate) fn add<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    combined(values, 1)
}

pub(crate) fn subtract<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    combined(values, -1)
}

/// The sum of the left operand and `times` the right one.
fn combined<'a>(values: &[Val<'a>], times: i128) -> Outcome<'a> {
    let sum = match values {
        [Val::Quantity(left), Val::Quantity(right)] => left.plus(times, right),
        [Val::Quantity(left), Val::Int(right)] => left.plus(times, &Quantity::of_int(*right)),
        _ => return Err(Failure::no_such_overload()),
    };
    sum.map(|sum| Val::Quantity(Rc::new(sum))).ok_or_else(|| Failure::new("quantity overflow"))
}
