//! The functions of timestamps and durations.

use crate::error::{Failure, NumberKind};
use crate::moment::{Civil, Moment};
use crate::signatures::Work;
use crate::value::{Outcome, Val};
use jiff::tz::TimeZone;

pub(crate) fn add<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::Duration(left), Val::Duration(right)] => {
            left.checked_add(*right).map(Val::Duration).ok_or(Failure::overflow(NumberKind::Duration))
        }
        [Val::Timestamp(moment), Val::Duration(duration)] | [Val::Duration(duration), Val::Timestamp(moment)] => {
            moment.plus(*duration).map(Val::Timestamp)
        }
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn subtract<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::Duration(left), Val::Duration(right)] => {
            left.checked_sub(*right).map(Val::Duration).ok_or(Failure::overflow(NumberKind::Duration))
        }
        [Val::Timestamp(left), Val::Timestamp(right)] => {
            left.minus(*right).map(Val::Duration).ok_or(Failure::overflow(NumberKind::Duration))
        }
        [Val::Timestamp(moment), Val::Duration(duration)] => {
            let negative = duration.checked_neg().ok_or(Failure::overflow(NumberKind::Duration))?;
            moment.plus(negative).map(Val::Timestamp)
        }
        _ => Err(Failure::no_such_overload()),
    }
}

/// A part of a timestamp, in UTC or in the time zone of the second argument.
pub(crate) fn part<'a>(values: &[Val<'a>], of: fn(&Civil) -> i64) -> Outcome<'a> {
    let (moment, offset) = match values {
        [Val::Timestamp(moment)] => (moment, 0),
        [Val::Timestamp(moment), Val::Text(zone)] => (moment, zone_offset(*moment, zone)?),
        _ => return Err(Failure::no_such_overload()),
    };
    Ok(Val::Int(of(&moment.civil(offset))))
}

/// The offset of `+01:30` or of a zone by name, in seconds.
fn zone_offset(moment: Moment, zone: &str) -> Result<i64, Failure> {
    let unknown = || Failure::new(format!("unknown time zone {zone}"));
    if let Some((hours, minutes)) = zone.split_once(':') {
        let number = |text: &str| text.parse::<i32>().ok().map(i64::from).ok_or_else(unknown);
        let (hours, minutes) = (number(hours)?, number(minutes)?);
        let total = if zone.starts_with('-') { hours * 60 - minutes } else { hours * 60 + minutes };
        // A zone is at most one day east or west.
        return if total.abs() <= 24 * 60 { Ok(total * 60) } else { Err(unknown()) };
    }
    if zone.is_empty() || zone == "UTC" {
        return Ok(0);
    }
    let time_zone = TimeZone::get(zone).map_err(|_| unknown())?;
    let (first, last) = (jiff::Timestamp::MIN.as_second(), jiff::Timestamp::MAX.as_second());
    let at = jiff::Timestamp::from_second(moment.seconds().clamp(first, last)).map_err(|_| unknown())?;
    Ok(i64::from(time_zone.to_offset(at).seconds()))
}

/// A duration in whole units.
pub(crate) fn total<'a>(values: &[Val<'a>], unit: i64) -> Outcome<'a> {
    match values {
        [Val::Duration(nanos)] => Ok(Val::Int(nanos / unit)),
        _ => Err(Failure::no_such_overload()),
    }
}
