//! Lists as sets. Every item of one list is compared with every item of the other.

use super::lists::is_same;
use crate::budget::Meter;
use crate::error::Failure;
use crate::signatures::Work;
use crate::value::{List, Outcome, Val};

pub(crate) fn contains<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let (list, part) = both(work, values)?;
    contains_all(work.meter, list, part).map(Val::Bool)
}

pub(crate) fn equivalent<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let (left, right) = both(work, values)?;
    Ok(Val::Bool(contains_all(work.meter, left, right)? && contains_all(work.meter, right, left)?))
}

pub(crate) fn intersects<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let (left, right) = both(work, values)?;
    for item in left.iter() {
        if has(work.meter, right, &item)? {
            return Ok(Val::Bool(true));
        }
    }
    Ok(Val::Bool(false))
}

fn both<'v, 'a>(work: &mut Work<'_>, values: &'v [Val<'a>]) -> Result<(&'v List<'a>, &'v List<'a>), Failure> {
    let [Val::List(left), Val::List(right)] = values else { return Err(Failure::no_such_overload()) };
    work.meter.charge((left.len() as u64).saturating_mul(right.len() as u64))?;
    Ok((left, right))
}

fn contains_all(meter: &mut Meter, list: &List<'_>, part: &List<'_>) -> Result<bool, Failure> {
    for item in part.iter() {
        if !has(meter, list, &item)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn has(meter: &mut Meter, list: &List<'_>, wanted: &Val<'_>) -> Result<bool, Failure> {
    for item in list.iter() {
        if is_same(meter, &item, wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
}
