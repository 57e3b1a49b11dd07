//! Conversions between types.

use crate::error::{Failure, NumberKind};
use crate::moment::{self, Moment};
use crate::signatures::Work;
use crate::value::{Outcome, Val};
use std::borrow::Cow;

/// Two to the power of 63.
const INT_LIMIT: f64 = 9_223_372_036_854_775_808.0;

pub(crate) fn to_dyn<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    values.first().cloned().ok_or_else(Failure::no_such_overload)
}

pub(crate) fn to_type<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    values.first().map(|value| Val::Type(value.type_name())).ok_or_else(Failure::no_such_overload)
}

pub(crate) fn to_bool<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::Bool(value)] => Ok(Val::Bool(*value)),
        // The spellings of Go's strconv.ParseBool.
        [Val::Text(text)] => match &**text {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Val::Bool(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Val::Bool(false)),
            _ => Err(Failure::new("type conversion error from 'string' to 'bool'")),
        },
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn to_bytes<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::Bytes(bytes)] => Ok(Val::Bytes(bytes.clone())),
        [Val::Text(text)] => {
            work.meter.charge_text(text.len())?;
            Ok(Val::Bytes(text.as_bytes().into()))
        }
        _ => Err(Failure::no_such_overload()),
    }
}

#[allow(clippy::cast_precision_loss, reason = "the server loses it, too")]
pub(crate) fn to_double<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::Double(value)] => Ok(Val::Double(*value)),
        [Val::Int(value)] => Ok(Val::Double(*value as f64)),
        [Val::Uint(value)] => Ok(Val::Double(*value as f64)),
        [Val::Text(text)] => {
            work.meter.charge_text(text.len())?;
            go_double(text)
                .map(Val::Double)
                .ok_or_else(|| Failure::new("type conversion error from 'string' to 'double'"))
        }
        _ => Err(Failure::no_such_overload()),
    }
}

/// Parses a double as Go's strconv.ParseFloat does.
fn go_double(text: &str) -> Option<f64> {
    let text = &*without_underscores(text)?;
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if let Some(hexadecimal) = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X")) {
        let value = hexadecimal_double(hexadecimal)?;
        return Some(if text.starts_with('-') { -value } else { value });
    }
    let value: f64 = text.parse().ok()?;
    let is_word = unsigned.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_signed_nan = value.is_nan() && unsigned.len() != text.len();
    // A value out of range is an error, unless the text is a word for infinity.
    (!is_signed_nan && (is_word || value.is_finite())).then_some(value)
}

/// Removes underscores, which may occur between digits, as in Go's own literals.
fn without_underscores(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('_') {
        return Some(Cow::Borrowed(text));
    }
    let is_hexadecimal = text.contains(['x', 'X']);
    let is_digit = |c: char| if is_hexadecimal { c.is_ascii_hexdigit() || c == 'x' } else { c.is_ascii_digit() };
    let parts: Vec<&str> = text.split('_').collect();
    let is_valid = parts.windows(2).all(|pair| match pair {
        [before, after] => before.ends_with(is_digit) && after.starts_with(is_digit),
        _ => false,
    });
    is_valid.then(|| Cow::Owned(parts.concat()))
}

/// Parses `1.8p-2` after `0x`: hexadecimal digits, times a power of two.
fn hexadecimal_double(text: &str) -> Option<f64> {
    let (digits, exponent) = text.split_once(['p', 'P'])?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let places = i32::try_from(fraction.len()).ok()?;
    // A double has no room for more digits.
    let digits = u64::from_str_radix(&format!("{whole}{fraction}"), 16).ok()?;
    let exponent: i32 = exponent.parse().ok()?;
    #[allow(clippy::cast_precision_loss, reason = "it becomes a double")]
    let value = digits as f64 * 2_f64.powi(exponent.checked_sub(places.checked_mul(4)?)?);
    value.is_finite().then_some(value)
}

pub(crate) fn to_int<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::Int(value)] | [Val::Duration(value)] => Ok(Val::Int(*value)),
        [Val::Uint(value)] => i64::try_from(*value).map(Val::Int).map_err(|_| Failure::overflow(NumberKind::Integer)),
        #[allow(clippy::cast_possible_truncation, reason = "it is in range, and cut as the server cuts it")]
        [Val::Double(value)] if *value > -INT_LIMIT && *value < INT_LIMIT => Ok(Val::Int(*value as i64)),
        [Val::Double(_)] => Err(Failure::overflow(NumberKind::Integer)),
        [Val::Timestamp(moment)] => Ok(Val::Int(moment.seconds())),
        [Val::Text(text)] => {
            work.meter.charge_text(text.len())?;
            let value = text.parse().map(Val::Int);
            value.map_err(|_| Failure::new("type conversion error from 'string' to 'int'"))
        }
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn to_uint<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let overflow = || Failure::overflow(NumberKind::Unsigned);
    match values {
        [Val::Uint(value)] => Ok(Val::Uint(*value)),
        [Val::Int(value)] => u64::try_from(*value).map(Val::Uint).map_err(|_| overflow()),
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in range, and cut")]
        [Val::Double(value)] if *value >= 0.0 && *value < 2.0 * INT_LIMIT => Ok(Val::Uint(*value as u64)),
        [Val::Double(_)] => Err(overflow()),
        [Val::Text(text)] => {
            work.meter.charge_text(text.len())?;
            let value = text.parse().ok().filter(|_| !text.starts_with('+')).map(Val::Uint);
            value.ok_or_else(|| Failure::new("type conversion error from 'string' to 'uint'"))
        }
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn to_duration<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::Duration(nanos)] => Ok(Val::Duration(*nanos)),
        [Val::Text(text)] => {
            work.meter.charge_text(text.len())?;
            moment::parse_duration(text).map(Val::Duration)
        }
        // The conversion is declared, but it does not work on the server either.
        [Val::Int(_)] => Err(Failure::new("type conversion error from 'int' to 'google.protobuf.Duration'")),
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn to_timestamp<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::Timestamp(moment)] => Ok(Val::Timestamp(*moment)),
        [Val::Int(seconds)] => Moment::new(*seconds).map(Val::Timestamp),
        [Val::Text(text)] => {
            work.meter.charge_text(text.len())?;
            Moment::parse(text).map(Val::Timestamp)
        }
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn to_text<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [value] = values else { return Err(Failure::no_such_overload()) };
    if let Val::Text(text) = value {
        return Ok(Val::Text(text.clone()));
    }
    if let Val::Bytes(bytes) = value {
        work.meter.charge_text(bytes.len())?;
    }
    text_of(value)?.map(Val::text).ok_or_else(Failure::no_such_overload)
}

/// The result of `string()`, if the value has one.
///
/// # Errors
/// If bytes are not UTF-8.
pub(crate) fn text_of(value: &Val<'_>) -> Result<Option<String>, Failure> {
    Ok(Some(match value {
        Val::Bool(value) => value.to_string(),
        Val::Int(value) => value.to_string(),
        Val::Uint(value) => value.to_string(),
        Val::Double(value) => double_text(*value),
        Val::Text(text) => text.to_string(),
        Val::Bytes(bytes) => {
            let text = std::str::from_utf8(bytes);
            text.map_err(|_| Failure::new("invalid UTF-8 in bytes, cannot convert to string"))?.to_owned()
        }
        Val::Timestamp(moment) => moment.text(),
        Val::Duration(nanos) => moment::duration_text(*nanos),
        Val::Type(of) => of.name().to_owned(),
        Val::Ip(ip) => ip.to_string(),
        Val::Cidr(cidr) => cidr.text(),
        _ => return Ok(None),
    }))
}

/// A double in the format of Go's `%g`.
pub(crate) fn double_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let shortest = format!("{value:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_written_as_go_writes_them() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (1.5, "1.5"),
            (100_000.0, "100000"),
            (1_000_000.0, "1e+06"),
            (123_456_789.0, "1.23456789e+08"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e100, "1e+100"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            assert_eq!(double_text(value), text);
        }
    }
}
