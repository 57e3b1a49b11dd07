//! Timestamps and durations: parsing, formatting and arithmetic as in Go.

use super::error::{Failure, NumberKind};
use jiff::SignedDuration;
use jiff::civil::Date;
use std::cmp::Ordering;

pub(super) const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400;
const EPOCH: Date = Date::constant(1970, 1, 1);
/// The days of 400 years, after which the calendar repeats itself.
const CYCLE: i64 = 146_097;
/// The first second of the year 1.
const MIN_SECOND: i64 = -62_135_596_800;
/// The last second of the year 9999.
const MAX_SECOND: i64 = 253_402_300_799;
/// Units of durations, in nanoseconds.
const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3_600 * SECOND),
];

/// A point in time of the years 1 to 9999.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Seconds since 1970.
    seconds: i64,
    nanos: i64,
    /// The offset of its zone east of UTC, in seconds. It matters only for the output.
    offset: i64,
}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.seconds, self.nanos).cmp(&(other.seconds, other.nanos))
    }
}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Moment {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Moment {}

/// A point in time as calendar fields.
pub(super) struct Civil {
    pub(super) year: i64,
    /// Counted from 1.
    pub(super) month: i64,
    /// Counted from 1.
    pub(super) day: i64,
    pub(super) second_of_day: i64,
    /// Counted from 0, Sunday.
    pub(super) day_of_week: i64,
    /// Counted from 0.
    pub(super) day_of_year: i64,
    pub(super) nanos: i64,
}

impl Moment {
    /// # Errors
    /// If the time is beyond the years 1 to 9999.
    pub(super) fn new(seconds: i64) -> Result<Self, Failure> {
        Self::checked(seconds, 0, 0)
    }

    fn checked(seconds: i64, nanos: i64, offset: i64) -> Result<Self, Failure> {
        let is_in_range = (MIN_SECOND..=MAX_SECOND).contains(&seconds);
        is_in_range.then_some(Self { seconds, nanos, offset }).ok_or(Failure::overflow(NumberKind::Timestamp))
    }

    pub(super) const fn seconds(self) -> i64 {
        self.seconds
    }

    pub(super) fn plus(self, duration: i64) -> Result<Self, Failure> {
        let nanos = self.nanos + duration.rem_euclid(SECOND);
        let seconds = self.seconds + duration.div_euclid(SECOND) + nanos.div_euclid(SECOND);
        Self::checked(seconds, nanos.rem_euclid(SECOND), self.offset)
    }

    pub(super) fn minus(self, other: Self) -> Option<i64> {
        let seconds = self.seconds - other.seconds;
        let nanos = i128::from(seconds) * i128::from(SECOND) + i128::from(self.nanos - other.nanos);
        i64::try_from(nanos).ok()
    }

    /// Parses RFC 3339.
    ///
    /// # Errors
    /// If the text is no RFC 3339 timestamp.
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        let (seconds, nanos, offset) =
            rfc3339(text).ok_or_else(|| Failure::new(format!("cannot parse timestamp '{text}'")))?;
        Self::checked(seconds, nanos, offset)
    }

    /// RFC 3339 in its original zone, without trailing zeros in the fraction.
    pub(super) fn text(self) -> String {
        let Civil { year, month, day, second_of_day, .. } = self.civil(self.offset);
        let (hour, minute, second) = (second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60);
        let fraction = if self.nanos == 0 { String::new() } else { format!(".{:09}", self.nanos) };
        let fraction = fraction.trim_end_matches('0');
        let minutes = self.offset.abs() / 60;
        let zone = match self.offset {
            0 => "Z".to_owned(),
            offset => format!("{}{:02}:{:02}", if offset < 0 { '-' } else { '+' }, minutes / 60, minutes % 60),
        };
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}{zone}")
    }

    pub(super) fn civil(self, offset: i64) -> Civil {
        let local = self.seconds + offset;
        // The year may be 10000, which `Date` does not have. 400 years earlier all else is the same.
        let days = local.div_euclid(DAY) - CYCLE;
        let date = EPOCH.saturating_add(SignedDuration::from_secs(days * DAY));
        Civil {
            year: i64::from(date.year()) + 400,
            month: date.month().into(),
            day: date.day().into(),
            second_of_day: local.rem_euclid(DAY),
            day_of_week: date.weekday().to_sunday_zero_offset().into(),
            day_of_year: i64::from(date.day_of_year()) - 1,
            nanos: self.nanos,
        }
    }
}

/// A parser that consumes text from the front.
pub(super) struct Scan<'t>(pub(super) &'t str);

impl Scan<'_> {
    /// Exactly `count` digits.
    pub(super) fn digits(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(count)?;
        let value = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
        self.0 = rest;
        Some(value)
    }

    /// The character `wanted`.
    pub(super) fn literal(&mut self, wanted: char) -> Option<()> {
        self.0 = self.0.strip_prefix(wanted)?;
        Some(())
    }

    /// `2006-01-02`, as days since 1970.
    pub(super) fn date(&mut self) -> Option<i64> {
        let year = i16::try_from(self.digits(4)?).ok()?;
        self.literal('-')?;
        let month = i8::try_from(self.digits(2)?).ok()?;
        self.literal('-')?;
        let day = i8::try_from(self.digits(2)?).ok()?;
        Some(Date::new(year, month, day).ok()?.duration_since(EPOCH).as_secs() / DAY)
    }

    /// `15:04:05`, as seconds of the day.
    pub(super) fn time(&mut self) -> Option<i64> {
        let hour = self.digits(2)?;
        self.literal(':')?;
        let minute = self.digits(2)?;
        self.literal(':')?;
        let second = self.digits(2)?;
        (hour < 24 && minute < 60 && second < 60).then_some(hour * 3_600 + minute * 60 + second)
    }

    /// `.123`, as nanoseconds. Further digits are cut.
    pub(super) fn fraction(&mut self) -> Option<i64> {
        let Some(rest) = self.0.strip_prefix(['.', ',']) else { return Some(0) };
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, after) = rest.split_at_checked(end).filter(|(digits, _)| !digits.is_empty())?;
        self.0 = after;
        format!("{:0<9}", digits).get(..9)?.parse().ok()
    }

    /// `Z` or `+01:00`, as seconds east of UTC.
    pub(super) fn zone(&mut self) -> Option<i64> {
        if self.literal('Z').is_some() {
            return Some(0);
        }
        let sign = if self.literal('-').is_some() { -1 } else { self.literal('+').map(|()| 1)? };
        let hours = self.digits(2)?;
        self.literal(':')?;
        let minutes = self.digits(2)?;
        (hours <= 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
    }
}

/// Seconds since 1970, nanoseconds, and seconds east of UTC.
fn rfc3339(text: &str) -> Option<(i64, i64, i64)> {
    let mut scan = Scan(text);
    let days = scan.date()?;
    scan.literal('T')?;
    let second = scan.time()?;
    let nanos = scan.fraction()?;
    let offset = scan.zone()?;
    scan.0.is_empty().then_some((days * DAY + second - offset, nanos, offset))
}

/// Parses a duration as Go's `time.ParseDuration` does: `1h30m`, `-1.5h`, `0`.
///
/// # Errors
/// If the text is no duration, or the duration is too long.
pub(super) fn parse_duration(text: &str) -> Result<i64, Failure> {
    go_duration(text).ok_or_else(|| Failure::new(format!("time: invalid duration \"{text}\"")))
}

fn go_duration(text: &str) -> Option<i64> {
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total = 0_i128;
    while !rest.is_empty() || total == 0 {
        let (nanos, after) = leading_duration(rest)?;
        total = total.checked_add(nanos).filter(|total| *total <= i128::from(i64::MAX) + 1)?;
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    i64::try_from(if is_negative { -total } else { total }).ok()
}

/// A number with its unit, in nanoseconds, and the rest of the text.
fn leading_duration(text: &str) -> Option<(i128, &str)> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|&end| end > 0)?;
    let (number, rest) = text.split_at_checked(number_end)?;
    let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
    let (unit, rest) = rest.split_at_checked(unit_end)?;
    let unit = i128::from(UNITS.iter().find(|(name, _)| *name == unit)?.1);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Eighteen digits are enough, because further digits are below a nanosecond.
    let fraction = fraction.get(..fraction.len().min(18))?;
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let fraction: i128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    Some((whole.checked_mul(unit)?.checked_add(fraction * unit / scale)?, rest))
}

/// A duration in seconds: `5400s`, `0.5s`.
#[allow(clippy::cast_precision_loss, reason = "Go writes it as a double, too")]
pub(super) fn duration_text(nanos: i64) -> String {
    let seconds = (nanos / SECOND) as f64 + (nanos % SECOND) as f64 / 1e9;
    format!("{seconds}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_read_and_written() {
        for (text, written) in [
            ("1970-01-01T00:00:00Z", Some("1970-01-01T00:00:00Z")),
            ("2024-02-29T12:30:45.120Z", Some("2024-02-29T12:30:45.12Z")),
            ("2024-02-29T12:30:45+02:00", Some("2024-02-29T12:30:45+02:00")),
            ("2024-02-29T12:30:45-01:30", Some("2024-02-29T12:30:45-01:30")),
            ("2024-02-29T12:30:45+00:00", Some("2024-02-29T12:30:45Z")),
            ("0001-01-01T00:00:00Z", Some("0001-01-01T00:00:00Z")),
            ("9999-12-31T23:59:59.999999999Z", Some("9999-12-31T23:59:59.999999999Z")),
            ("2023-02-29T12:30:45Z", None),
            ("2023-13-01T12:30:45Z", None),
            ("2023-00-01T12:30:45Z", None),
            ("2023-01-01T24:30:45Z", None),
            ("2023-01-01 12:30:45Z", None),
            ("2023-01-01T12:30:45", None),
            ("2023-01-01T12:30:45Zé", None),
            ("é023-01-01T12:30:45Z", None),
            ("0000-01-01T00:00:00Z", None),
            ("", None),
        ] {
            assert_eq!(Moment::parse(text).ok().map(Moment::text).as_deref(), written, "{text}");
        }
    }

    #[test]
    fn the_calendar_has_the_first_day_and_one_after_the_last() {
        let at = |text, offset| {
            let Civil { year, month, day, day_of_week, day_of_year, .. } = Moment::parse(text).unwrap().civil(offset);
            (year, month, day, day_of_week, day_of_year)
        };
        assert_eq!(at("0001-01-01T00:00:00Z", 0), (1, 1, 1, 1, 0));
        assert_eq!(at("0001-01-01T00:00:00Z", -1), (0, 12, 31, 0, 365));
        assert_eq!(at("2024-12-31T00:00:00Z", 0), (2024, 12, 31, 2, 365));
        assert_eq!(at("9999-12-31T23:59:59Z", 1), (10_000, 1, 1, 6, 0));
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, nanos) in [
            ("0", Some(0)),
            ("1h30m", Some(5_400 * SECOND)),
            ("-1.5h", Some(-5_400 * SECOND)),
            (".5s", Some(SECOND / 2)),
            ("1.s", Some(SECOND)),
            ("0s", Some(0)),
            ("0s0h", Some(0)),
            ("1µs1us", Some(2_000)),
            ("9223372036854775807ns", Some(i64::MAX)),
            ("-9223372036854775808ns", Some(i64::MIN)),
            ("9223372036854775808ns", None),
            ("1d", None),
            ("", None),
            ("1", None),
            (".s", None),
            ("1.2.3s", None),
            ("s", None),
            ("--1s", None),
            ("1 s", None),
        ] {
            assert_eq!(parse_duration(text).ok(), nanos, "{text}");
        }
    }
}
