//! The functions of quantities. The server has none over lists of them: those are for values of parameters only.

use crate::error::Failure;
use crate::quantity::Quantity;
use crate::signatures::Work;
use crate::value::{List, Outcome, Val};
use std::cmp::Ordering;
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
    sum.map(|sum| Val::Quantity(Rc::new(sum))).ok_or_else(overflow)
}

/// The steps of real work for an operand of a sum or a comparison, which takes powers of ten of 128 bits.
const OPERAND_WORK: u64 = 4;

/// The sum, in the format of the first quantity that is not zero, as `add` gives it.
pub(crate) fn sum<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let mut sum = None;
    for item in list(work, values)?.iter() {
        let Val::Quantity(item) = item else { return Err(Failure::no_such_overload()) };
        sum = Some(match sum {
            None => *item,
            Some(sum) => Quantity::plus(&sum, 1, &item).ok_or_else(overflow)?,
        });
    }
    Ok(Val::Quantity(Rc::new(sum.unwrap_or(Quantity::ZERO))))
}

pub(crate) fn max<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    extreme(work, values, "max", Ordering::Less)
}

pub(crate) fn min<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    extreme(work, values, "min", Ordering::Greater)
}

/// The first of the best quantities. One is replaced if its order to another one is `worse`.
fn extreme<'a>(work: &mut Work<'_>, values: &[Val<'a>], name: &str, worse: Ordering) -> Outcome<'a> {
    let mut best: Option<Rc<Quantity>> = None;
    for item in list(work, values)?.iter() {
        let Val::Quantity(item) = item else { return Err(Failure::no_such_overload()) };
        if best.as_ref().is_none_or(|best| best.compare(&item) == worse) {
            best = Some(item);
        }
    }
    best.map(Val::Quantity).ok_or_else(|| Failure::new(format!("{name} called on empty list")))
}

/// The list, after payment for its items.
fn list<'v, 'a>(work: &mut Work<'_>, values: &'v [Val<'a>]) -> Result<&'v List<'a>, Failure> {
    let [Val::List(list)] = values else { return Err(Failure::no_such_overload()) };
    work.meter.charge_items(list.len())?;
    work.meter.work(list.len() as u64 * OPERAND_WORK)?;
    Ok(list)
}

fn overflow() -> Failure {
    Failure::new("quantity overflow")
}
