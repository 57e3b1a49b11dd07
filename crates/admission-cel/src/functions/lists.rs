//! Functions over lists, and sizes.

use super::arithmetic;
use super::compare;
use super::moment;
use crate::budget::Meter;
use crate::dialect::NO_NEGATIVE_RANGES;
use crate::error::Failure;
use crate::signatures::Work;
use crate::types::Type;
use crate::value::{List, Outcome, Val};
use std::cmp::Ordering;

pub(crate) fn size<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let size = match values {
        [Val::Text(text)] => {
            work.meter.work(text.len() as u64 / 64)?;
            text.chars().count()
        }
        [value] => compare::size(value),
        _ => return Err(Failure::no_such_overload()),
    };
    Ok(count(size))
}

fn count<'a>(size: usize) -> Val<'a> {
    Val::Int(i64::try_from(size).unwrap_or(i64::MAX))
}

/// The list, after payment for its items.
fn list<'v, 'a>(work: &mut Work<'_>, values: &'v [Val<'a>]) -> Result<&'v List<'a>, Failure> {
    let Some(Val::List(list)) = values.first() else { return Err(Failure::no_such_overload()) };
    work.meter.charge_items(list.len())?;
    Ok(list)
}

pub(crate) fn concatenate<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [Val::List(left), Val::List(right)] = values else { return Err(Failure::no_such_overload()) };
    // The server creates a view of both lists, for one unit.
    work.meter.work((left.len() + right.len()) as u64 * 3)?;
    Val::list(left.iter().chain(right.iter()).collect())
}

pub(crate) fn is_sorted<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let list = list(work, values)?;
    let mut items = list.iter();
    let Some(mut before) = items.next() else { return Ok(Val::Bool(true)) };
    for item in items {
        if has_order(&before, &item, Ordering::Greater)? {
            return Ok(Val::Bool(false));
        }
        before = item;
    }
    Ok(Val::Bool(true))
}

pub(crate) fn sum<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let list = list(work, values)?;
    let mut sum = match work.gives {
        Type::Uint => Val::Uint(0),
        Type::Double => Val::Double(0.0),
        Type::Duration => Val::Duration(0),
        _ => Val::Int(0),
    };
    for item in list.iter() {
        sum = match item {
            Val::Duration(_) => moment::add(work, &[sum, item])?,
            _ => arithmetic::add(work, &[sum, item])?,
        };
    }
    Ok(sum)
}

pub(crate) fn max<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    extreme(work, values, "max", Ordering::Less)
}

pub(crate) fn min<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    extreme(work, values, "min", Ordering::Greater)
}

/// The best item. An item is replaced if its order to another one is `worse`.
fn extreme<'a>(work: &mut Work<'_>, values: &[Val<'a>], name: &str, worse: Ordering) -> Outcome<'a> {
    let mut items = list(work, values)?.iter();
    let mut best = items.next().ok_or_else(|| Failure::new(format!("{name} called on empty list")))?;
    for item in items {
        if has_order(&best, &item, worse)? {
            best = item;
        }
    }
    Ok(best)
}

/// Whether two items have this order. The server takes a failed comparison of two types for "no".
fn has_order(left: &Val<'_>, right: &Val<'_>, wanted: Ordering) -> Result<bool, Failure> {
    if !compare::is_ordered(right) {
        return Err(Failure::no_such_overload());
    }
    Ok(compare::order(left, right).is_ok_and(|order| order == wanted))
}

pub(crate) fn index_of<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let length = list(work, values)?.len();
    find(work, values, 0..length)
}

pub(crate) fn last_index_of<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let length = list(work, values)?.len();
    find(work, values, (0..length).rev())
}

fn find<'a>(work: &mut Work<'_>, values: &[Val<'a>], indices: impl Iterator<Item = usize>) -> Outcome<'a> {
    let [Val::List(list), wanted] = values else { return Err(Failure::no_such_overload()) };
    for index in indices {
        if let Some(item) = list.get(index)
            && is_same(work.meter, &item, wanted)?
        {
            return Ok(count(index));
        }
    }
    Ok(Val::Int(-1))
}

/// Whether two values are equal. Incomparable values are unequal.
pub(crate) fn is_same(meter: &mut Meter, left: &Val<'_>, right: &Val<'_>) -> Result<bool, Failure> {
    match compare::equal(meter, left, right) {
        Err(Failure::CostExceeded) => Err(Failure::CostExceeded),
        other => Ok(other.unwrap_or(false)),
    }
}

pub(crate) fn slice<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [_, Val::Int(start), Val::Int(end)] = values else { return Err(Failure::no_such_overload()) };
    let list = list(work, values)?;
    let fail = |why: &str| Failure::new(format!("cannot slice({start}, {end}), {why}"));
    let (Ok(from), Ok(to)) = (usize::try_from(*start), usize::try_from(*end)) else {
        return Err(fail("negative indexes not supported"));
    };
    if from > to {
        return Err(fail("start index must be less than or equal to end index"));
    }
    if to > list.len() {
        return Err(fail(&format!("list is length {}", list.len())));
    }
    Val::list((from..to).filter_map(|index| list.get(index)).collect())
}

pub(crate) fn flatten<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let depth = match values {
        [_] => 1,
        [_, Val::Int(depth)] => u64::try_from(*depth).map_err(|_| Failure::new("level must be non-negative"))?,
        _ => return Err(Failure::no_such_overload()),
    };
    let list = list(work, values)?;
    let mut items = Vec::new();
    flatten_into(work.meter, &mut items, list, depth)?;
    Val::list(items)
}

/// The depth of values bounds the recursion.
fn flatten_into<'a>(meter: &mut Meter, items: &mut Vec<Val<'a>>, list: &List<'a>, depth: u64) -> Result<(), Failure> {
    for item in list.iter() {
        meter.charge_items(1)?;
        match item {
            Val::List(inner) if depth > 0 => flatten_into(meter, items, &inner, depth - 1)?,
            item => items.push(item),
        }
    }
    Ok(())
}

pub(crate) fn range<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Int(end)] = values else { return Err(Failure::no_such_overload()) };
    if *end < 0 && work.dialect.has(NO_NEGATIVE_RANGES) {
        return Err(Failure::new(format!("lists.range: size must be non-negative, got {end}")));
    }
    work.meter.charge_items(usize::try_from(*end).unwrap_or(0))?;
    Val::list((0..*end).map(Val::Int).collect())
}

pub(crate) fn reverse<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    Val::list(list(work, values)?.iter().rev().collect())
}

pub(crate) fn distinct<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let list = list(work, values)?;
    let mut found: Vec<Val<'a>> = Vec::new();
    for item in list.iter() {
        work.meter.charge_items(found.len())?;
        let mut is_new = true;
        for other in &found {
            is_new = is_new && !is_same(work.meter, &item, other)?;
        }
        if is_new {
            found.push(item);
        }
    }
    Val::list(found)
}

pub(crate) fn sort<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let list = list(work, values)?;
    sorted(work.meter, list.iter().map(|item| (item.clone(), item)).collect())
}

/// The values, sorted by their keys.
///
/// # Errors
/// If the keys have different types, or a type without an order.
pub(crate) fn sorted<'a>(meter: &mut Meter, mut pairs: Vec<(Val<'a>, Val<'a>)>) -> Outcome<'a> {
    // The server charges the square of the length, twice.
    let length = pairs.len() as u64;
    meter.charge(length.saturating_mul(length).saturating_mul(2))?;
    if let Some((first, _)) = pairs.first() {
        let of = first.type_name();
        if !compare::is_ordered(first) {
            return Err(Failure::new("list elements must be comparable"));
        }
        if pairs.iter().any(|(key, _)| key.type_name() != of) {
            return Err(Failure::new("list elements must have the same type"));
        }
    }
    pairs.sort_by(|left, right| compare::order(&left.0, &right.0).unwrap_or(Ordering::Equal));
    Val::list(pairs.into_iter().map(|(_, value)| value).collect())
}
