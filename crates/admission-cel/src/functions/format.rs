//! `'…%s…'.format([…])`: the formatter of cel-go's strings v2 (ext/formatting.go), in the locale en_US.

use super::convert::{double_text, text_of};
use super::strings::escape;
use crate::budget::Meter;
use crate::dialect::NARROW_EXPONENTS;
use crate::error::Failure;
use crate::moment::duration_text;
use crate::signatures::Work;
use crate::types::Type;
use crate::value::{Key, List, Map, Outcome, Val};

/// The default number of decimals.
const DECIMALS: usize = 6;
/// The most decimals of a double. All further digits are zeros.
const MAX_DECIMALS: usize = 1_100;
/// The largest precision of Go (`tooLarge` in its fmt).
const MAX_PRECISION: usize = 1_000_000;

/// A part of a format.
#[derive(Debug, PartialEq, Eq)]
enum Part<'f> {
    Plain(&'f str),
    Clause { verb: char, precision: Option<usize> },
}

pub(crate) fn format<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Text(format), Val::List(arguments)] = values else { return Err(Failure::no_such_overload()) };
    work.meter.charge_text(format.len())?;
    let mut out = Out {
        meter: work.meter,
        cross: if work.dialect.has(NARROW_EXPONENTS) { "×" } else { "\u{202f}×\u{202f}" },
        text: String::new(),
    };
    let mut next = 0;
    for part in parts(format) {
        match part.map_err(Failure::new)? {
            Part::Plain(text) => out.push(text)?,
            Part::Clause { verb, precision } => {
                let argument = arguments.get(next).ok_or_else(|| Failure::new(format!("index {next} out of range")))?;
                next += 1;
                out.clause(verb, precision, &argument)?;
            }
        }
    }
    Ok(Val::text(out.text))
}

/// Checks that a format fits arguments of these types.
///
/// # Errors
/// If a type does not fit, or the number of arguments is wrong.
pub(crate) fn check(format: &str, types: &[Type]) -> Result<(), String> {
    let mut seen = 0;
    for part in parts(format) {
        if let Part::Clause { verb, .. } = part? {
            let of = types.get(seen).ok_or_else(|| format!("index {seen} out of range"))?;
            seen += 1;
            if !takes(verb, of) {
                return Err(format!("error during formatting: {}", refusal(verb, &of.to_string())));
            }
        }
    }
    if types.len() > seen {
        let given = types.len();
        return Err(format!("too many arguments supplied to string.format (expected {seen}, got {given})"));
    }
    Ok(())
}

/// The parts of a format. An error ends the sequence.
fn parts(format: &str) -> impl Iterator<Item = Result<Part<'_>, String>> {
    let mut rest = format;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let part = next_part(rest);
        rest = part.as_ref().map_or("", |(_, after)| after);
        Some(part.map(|(part, _)| part))
    })
}

fn next_part(text: &str) -> Result<(Part<'_>, &str), String> {
    let Some(clause) = text.strip_prefix('%') else {
        let (plain, rest) = text.split_at_checked(text.find('%').unwrap_or(text.len())).unwrap_or((text, ""));
        return Ok((Part::Plain(plain), rest));
    };
    if let Some(rest) = clause.strip_prefix('%') {
        return Ok((Part::Plain("%"), rest));
    }
    let (precision, rest) = match clause.strip_prefix('.') {
        None => (None, clause),
        Some(after) => {
            let (digits, rest) = after
                .find(|c: char| !c.is_ascii_digit())
                .and_then(|end| after.split_at_checked(end))
                .ok_or("could not find end of precision specifier")?;
            let precision = digits.parse().map_err(|_| "error while converting precision to integer".to_owned())?;
            (Some(precision), rest)
        }
    };
    let mut rest = rest.chars();
    let verb = rest.next().ok_or("unexpected end of string")?;
    if !"sdfebxXo".contains(verb) {
        return Err(format!("could not parse formatting clause: unrecognized formatting clause \"{verb}\""));
    }
    Ok((Part::Clause { verb, precision }, rest.as_str()))
}

/// Whether a clause accepts values of a type, as far as the type is known.
fn takes(verb: char, of: &Type) -> bool {
    match (verb, of) {
        (_, Type::Dyn)
        | ('d' | 'o' | 'b' | 'x' | 'X', Type::Int | Type::Uint)
        | ('b', Type::Bool)
        | ('x' | 'X', Type::Text | Type::Bytes)
        | ('f' | 'e', Type::Double | Type::Text) => true,
        ('s', of) => !matches!(of, Type::Optional(_) | Type::Opaque(_) | Type::Object(_) | Type::Parameter(_)),
        _ => false,
    }
}

fn refusal(verb: char, of: &str) -> String {
    let rule = match verb {
        'd' => "decimal clause can only be used on integers",
        'o' => "octal clause can only be used on integers",
        'b' => "only integers and bools can be formatted as binary",
        'x' | 'X' => "only integers, byte buffers, and strings can be formatted as hex",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        _ => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and \
             timestamps"
        }
    };
    format!("{rule}, was given {of}")
}

/// The output.
struct Out<'m> {
    meter: &'m mut Meter,
    /// The sign between the digits and the power of ten of `%e`.
    cross: &'static str,
    text: String,
}

impl Out<'_> {
    fn push(&mut self, text: &str) -> Result<(), Failure> {
        self.meter.charge_text(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    fn clause(&mut self, verb: char, precision: Option<usize>, value: &Val<'_>) -> Result<(), Failure> {
        let written = match (verb, value) {
            ('s', Val::List(list)) => return self.list(list),
            ('s', Val::Map(map)) => return self.map(map),
            ('s', Val::Null) => Some("null".to_owned()),
            ('s', Val::Ip(_) | Val::Cidr(_)) => None,
            ('s', value) => {
                self.meter.charge_text(super::compare::size(value))?;
                text_of(value)?
            }
            ('d', Val::Int(value)) => Some(value.to_string()),
            ('d', Val::Uint(value)) => Some(value.to_string()),
            ('b', Val::Bool(value)) => Some(u8::from(*value).to_string()),
            ('f' | 'e', value) => match double(value) {
                Some(value) if verb == 'f' => Some(self.fixed(value, precision.unwrap_or(DECIMALS))?),
                Some(value) => Some(scientific(value, self.cross, precision.unwrap_or(DECIMALS))),
                None => None,
            },
            ('x' | 'X', Val::Text(text)) => Some(self.hex(text.as_bytes())?),
            ('x' | 'X', Val::Bytes(bytes)) => Some(self.hex(bytes)?),
            (_, value) => radix(verb, value),
        };
        let fault = || Failure::new(format!("error during formatting: {}", refusal(verb, value.type_name().name())));
        let written = written.ok_or_else(fault)?;
        if verb == 'X' { self.push(&written.to_ascii_uppercase()) } else { self.push(&written) }
    }

    fn hex(&mut self, bytes: &[u8]) -> Result<String, Failure> {
        self.meter.charge_text(bytes.len() * 2)?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// A fixed-point number with commas between thousands.
    fn fixed(&mut self, value: f64, precision: usize) -> Result<String, Failure> {
        if precision > MAX_PRECISION {
            return Err(Failure::new("the precision is too large"));
        }
        self.meter.charge_text(precision)?;
        if !value.is_finite() {
            return Ok(not_finite(value).to_owned());
        }
        let digits = format!("{:.*}", precision.min(MAX_DECIMALS), value.abs());
        let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
        let sign = if value.is_sign_negative() { "-" } else { "" };
        let point = if precision == 0 { "" } else { "." };
        let zeros = "0".repeat(precision.saturating_sub(MAX_DECIMALS));
        Ok(format!("{sign}{}{point}{fraction}{zeros}", grouped(whole)))
    }

    fn list(&mut self, list: &List<'_>) -> Result<(), Failure> {
        self.push("[")?;
        for (index, item) in list.iter().enumerate() {
            if index > 0 {
                self.push(", ")?;
            }
            self.item(&item)?;
        }
        self.push("]")
    }

    /// Entries in the order of their formatted keys.
    fn map(&mut self, map: &Map<'_>) -> Result<(), Failure> {
        self.meter.charge_items(map.len())?;
        let mut entries: Vec<(String, Val<'_>)> = Vec::with_capacity(map.len());
        for (key, value) in map.iter() {
            let key = match key {
                Key::Text(text) => self.quoted("", &text)?,
                Key::Bool(value) => value.to_string(),
                Key::Int(value) => value.to_string(),
                Key::Uint(value) => value.to_string(),
                Key::Double(_) => return Err(Failure::new("no formatting function for map key of type double")),
            };
            entries.push((key, value));
        }
        entries.sort_by(|left, right| left.0.cmp(&right.0));
        self.push("{")?;
        for (index, (key, value)) in entries.iter().enumerate() {
            self.push(if index > 0 { ", " } else { "" })?;
            self.push(key)?;
            self.push(":")?;
            self.item(value)?;
        }
        self.push("}")
    }

    /// A value within a list or a map, nearly as a CEL literal.
    fn item(&mut self, value: &Val<'_>) -> Result<(), Failure> {
        let written = match value {
            Val::Text(text) => self.quoted("", text)?,
            Val::Bytes(_) => {
                let text = text_of(value)?.unwrap_or_default();
                self.quoted("b", &text)?
            }
            Val::Double(value) if value.is_finite() => format!("{value:.DECIMALS$}"),
            Val::Double(value) => format!("\"{}\"", double_text(*value)),
            Val::Timestamp(moment) => format!("timestamp(\"{}\")", moment.text()),
            Val::Duration(nanos) => format!("duration(\"{}\")", duration_text(*nanos)),
            other => return self.clause('s', None, other),
        };
        self.push(&written)
    }

    /// Text in the format of Go's `%q`.
    fn quoted(&mut self, prefix: &str, text: &str) -> Result<String, Failure> {
        self.meter.charge_text(text.len() * 2)?;
        let mut quoted = format!("{prefix}\"");
        for character in text.chars() {
            match escape(character) {
                Some(escape) => quoted.extend(['\\', escape]),
                None if character.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(character))),
                None if character.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(character))),
                None => quoted.push(character),
            }
        }
        quoted.push('"');
        Ok(quoted)
    }
}

/// The number of `%f` and `%e`: a double, or one of three words.
fn double(value: &Val<'_>) -> Option<f64> {
    match value {
        Val::Double(value) => Some(*value),
        Val::Text(text) => match &**text {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

const fn not_finite(value: f64) -> &'static str {
    if value.is_nan() {
        "NaN"
    } else if value > 0.0 {
        "∞"
    } else {
        "-∞"
    }
}

fn grouped(digits: &str) -> String {
    let mut grouped = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// The format of the locale: `2.718280×10⁰⁰`. The precision acts as a width, because the server leaves out a dot.
fn scientific(value: f64, cross: &str, width: usize) -> String {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    if !value.is_finite() {
        return not_finite(value).to_owned();
    }
    let plain = format!("{value:.DECIMALS$e}");
    let (digits, exponent) = plain.split_once('e').unwrap_or((&plain, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(("", exponent), |exponent| ("⁻", exponent));
    let raised: String = format!("{exponent:0>2}")
        .chars()
        .filter_map(|digit| DIGITS.get(usize::try_from(digit.to_digit(10)?).ok()?))
        .collect();
    let written = format!("{digits}{cross}10{sign}{raised}");
    let missing = width.min(MAX_DECIMALS).saturating_sub(written.chars().count());
    " ".repeat(missing) + &written
}

/// `%b`, `%o`, `%x` of an integer, with a minus sign if it is negative.
fn radix(verb: char, value: &Val<'_>) -> Option<String> {
    let (sign, magnitude) = match value {
        Val::Int(value) => (if *value < 0 { "-" } else { "" }, value.unsigned_abs()),
        Val::Uint(value) => ("", *value),
        _ => return None,
    };
    let digits = match verb {
        'b' => format!("{magnitude:b}"),
        'o' => format!("{magnitude:o}"),
        'x' | 'X' => format!("{magnitude:x}"),
        _ => return None,
    };
    Some(format!("{sign}{digits}"))
}
