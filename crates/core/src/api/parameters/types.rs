//! Texts as values of a type, and the right spelling of those that are none.

use crate::api::format;
use crate::api::v1alpha1::ParameterType;
use admission_cel::quantity;

impl ParameterType {
    /// The type in words.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::String => "a text",
            Self::Integer => "a whole number",
            Self::Boolean => "`true` or `false`",
            Self::Quantity => "a quantity",
            Self::Duration => "a duration",
        }
    }

    /// Whether values have an order.
    pub(super) fn is_ordered(self) -> bool {
        matches!(self, Self::Integer | Self::Quantity | Self::Duration)
    }

    /// Whether `text` is a value of the type.
    pub(super) fn has(self, text: &str) -> bool {
        match self {
            Self::String => true,
            Self::Boolean => matches!(text, "true" | "false"),
            Self::Integer | Self::Quantity | Self::Duration => self.size(text).is_some(),
        }
    }

    /// The size of a value: an integer, the billionths of a quantity, the seconds of a duration. None if `text` is no value of
    /// an ordered type.
    pub(super) fn size(self, text: &str) -> Option<i128> {
        match self {
            Self::Integer => integer(text).map(i128::from),
            Self::Quantity => quantity::nanos(text).filter(|nanos| *nanos >= 0 && !text.starts_with(['+', '-'])),
            Self::Duration => format::duration(text).map(|length| i128::from(length.as_secs())),
            Self::String | Self::Boolean => None,
        }
    }

    /// How `text` is probably spelt as a value of the type.
    pub(super) fn spelt(self, text: &str) -> Option<String> {
        let text = text.trim();
        // A long text is no slip of the pen.
        if text.chars().count() > 32 {
            return None;
        }
        let text = with_ascii_digits(text);
        let better = match self {
            Self::String => return None,
            Self::Boolean => match text.to_lowercase().as_str() {
                "true" | "yes" | "on" | "1" | "y" => "true".to_owned(),
                "false" | "no" | "off" | "0" | "n" => "false".to_owned(),
                _ => return None,
            },
            Self::Integer => better_integer(&text)?,
            Self::Quantity if self.has(&text) => text,
            Self::Quantity => better_quantity(&text)?,
            Self::Duration if self.has(&text) => text,
            Self::Duration => better_duration(&text)?,
        };
        self.has(&better).then_some(better)
    }
}

/// An integer of 64 bits, in its only spelling.
fn integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    (is_plain && text != "-0").then(|| text.parse().ok())?
}

/// `text` with the decimal digits of other scripts as ASCII digits.
fn with_ascii_digits(text: &str) -> String {
    /// The zeros of other scripts: Arabic, Persian, Devanagari, Bengali, Thai, full width.
    const ZEROS: [u32; 6] = [0x660, 0x6f0, 0x966, 0x9e6, 0xe50, 0xff10];
    let digit = |c: char| {
        let value = ZEROS.into_iter().find_map(|zero| u32::from(c).checked_sub(zero).filter(|value| *value < 10));
        value.and_then(|value| char::from_digit(value, 10)).unwrap_or(c)
    };
    text.chars().map(digit).collect()
}

fn better_integer(text: &str) -> Option<String> {
    let plain: String = text.chars().filter(|c| !matches!(c, '_' | ',' | ' ' | '\'')).collect();
    let plain = plain.strip_prefix('+').unwrap_or(&plain);
    // `2k`, `1e3` and `5.0` are quantities.
    let nanos = quantity::nanos(plain)?;
    (nanos % 1_000_000_000 == 0).then(|| (nanos / 1_000_000_000).to_string())
}

/// The number at the beginning of `text`, and the word behind it.
fn number_and_unit(text: &str) -> Option<(&str, String)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (!number.is_empty()).then(|| (number, unit.trim().to_lowercase()))
}

fn better_quantity(text: &str) -> Option<String> {
    let (number, unit) = number_and_unit(text.strip_prefix('+').unwrap_or(text))?;
    let suffix = match unit.as_str() {
        "" | "b" | "byte" | "bytes" | "core" | "cores" | "cpu" | "cpus" | "vcpu" | "vcpus" => "",
        "m" | "millicore" | "millicores" | "millicpu" | "mcpu" => "m",
        "k" | "kb" => "k",
        "mb" => "M",
        "g" | "gb" => "G",
        "t" | "tb" => "T",
        "p" | "pb" => "P",
        "ki" | "kib" => "Ki",
        "mi" | "mib" => "Mi",
        "gi" | "gib" => "Gi",
        "ti" | "tib" => "Ti",
        "pi" | "pib" => "Pi",
        _ => return None,
    };
    Some(format!("{number}{suffix}"))
}

fn better_duration(text: &str) -> Option<String> {
    let (mut seconds, mut plain) = (0.0, String::new());
    let mut rest = text.strip_prefix('+').unwrap_or(text).trim();
    while !rest.is_empty() {
        let (number, _) = number_and_unit(rest)?;
        let after = rest[number.len()..].trim_start();
        let word = after.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
        let (unit, of_unit) = unit(word)?;
        seconds += number.parse::<f64>().ok()? * of_unit;
        plain = plain + number + unit;
        rest = after[word.len()..].trim_start();
    }
    if format::duration(&plain).is_some() { Some(plain) } else { written(seconds) }
}

/// The unit that `word` means, and its seconds.
fn unit(word: &str) -> Option<(&'static str, f64)> {
    Some(match word.to_lowercase().as_str() {
        "" | "s" | "sec" | "secs" | "second" | "seconds" => ("s", 1.0),
        "ms" | "msec" | "millis" | "milliseconds" => ("ms", 0.001),
        "m" | "min" | "mins" | "minute" | "minutes" => ("m", 60.0),
        "h" | "hr" | "hrs" | "hour" | "hours" => ("h", 3600.0),
        "d" | "day" | "days" => ("d", 86_400.0),
        _ => return None,
    })
}

/// A whole number of seconds as a duration, in the largest units.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a whole number of 32 bits")]
fn written(seconds: f64) -> Option<String> {
    let is_whole = (0.0..=f64::from(i32::MAX)).contains(&seconds) && (seconds - seconds.round()).abs() < 1e-6;
    let seconds = is_whole.then_some(seconds.round() as u64)?;
    let parts = [(seconds / 3600, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')];
    let parts: String = parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect();
    Some(if parts.is_empty() { "0s".to_owned() } else { parts })
}
