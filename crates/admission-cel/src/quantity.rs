//! Kubernetes quantities: parsing, comparison, addition and text as in k8s.io/apimachinery/pkg/api/resource.
//!
//! Two parsers share one grammar. The one for CEL takes text without digits for zero and caps large binary quantities,
//! as the server's parser does. [`nanos`] parses quantities in manifests, and does neither.

use super::error::Failure;
use std::cmp::Ordering;
use std::fmt;

/// The smallest unit of a quantity, as a power of ten.
const NANO: i32 = -9;
/// The number of digits that the server keeps in 64 bits (`maxInt64Factors`).
const SMALL_DIGITS: usize = 18;
/// The letters of suffixes.
const SUFFIX_LETTERS: &str = "eEinumkKMGTP";

/// A quantity.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quantity {
    value: Decimal,
    /// Whether the server keeps the value in 64 bits, not as a decimal of any length. Only such a value can be an
    /// integer.
    is_small: bool,
    /// Whether it is a sum or a difference. The server does not accept these on the right of `==`.
    is_computed: bool,
    format: Format,
}

/// The way in which a quantity is written, after that in which it was read (`Format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// With a power of ten, as in `12e6`.
    DecimalExponent,
    /// With a letter for a power of ten, as in `12M`.
    DecimalSi,
    /// With a letter for a power of 1024, as in `12Mi`.
    BinarySi,
}

/// `number` times ten to the power of `exponent`.
#[derive(Clone, Copy, Debug)]
struct Decimal {
    number: i128,
    exponent: i32,
}

impl Quantity {
    /// Parses a quantity. None if the text is invalid, or has more than about 38 digits.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let parts = Parts::of(text)?;
        let suffix = Suffix::of(parts.suffix)?;
        let digits = parts.whole.len() + parts.fraction.len();
        let places = i32::try_from(parts.fraction.len()).ok()?;
        let small = match suffix {
            Suffix::Letter(exponent) | Suffix::Exponent(exponent) => {
                digits <= SMALL_DIGITS && exponent.checked_sub(places)? >= NANO
            }
            // `15 - digits - bits * 3 / 10 - 1 >= 0`
            Suffix::Binary(bits) => parts.fraction.is_empty() && digits + bits * 3 / 10 < 15,
        };
        let mut value = Decimal::of(parts.whole, parts.fraction, suffix)?;
        let mut format = suffix.format();
        if !small {
            value = value.rounded()?;
            if matches!(suffix, Suffix::Binary(_)) {
                value = value.capped();
                if value.number > 0 && value.compare(Decimal { number: 1, exponent: 0 }).is_lt() {
                    format = Format::DecimalSi;
                }
            }
        }
        if parts.is_negative {
            value.number = -value.number;
        }
        Some(Self { value, is_small: small, is_computed: false, format })
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        self.value.compare(other.value)
    }

    /// No amount: the sum of no quantities.
    pub(super) const ZERO: Self = Self {
        value: Decimal { number: 0, exponent: 0 },
        is_small: true,
        is_computed: false,
        format: Format::DecimalSi,
    };

    /// An integer as an operand, in the format that the server gives it.
    pub(super) fn of_int(value: i64) -> Self {
        let value = Decimal { number: i128::from(value), exponent: 0 };
        Self { value, is_small: true, is_computed: false, format: Format::DecimalExponent }
    }

    /// # Errors
    /// If the right one is a sum or difference, which the server does not accept there.
    pub(super) fn equal(&self, right: &Self) -> Result<bool, Failure> {
        if right.is_computed {
            return Err(Failure::no_such_overload());
        }
        Ok(self.value.compare(right.value).is_eq())
    }

    /// The value as an integer, if the server keeps it as one.
    pub(super) fn integer(&self) -> Option<i64> {
        if !self.is_small || self.value.exponent < 0 {
            return None;
        }
        i64::try_from(self.value.at(0)?).ok()
    }

    /// 1, 0 or -1.
    pub(super) fn sign(&self) -> i64 {
        if self.value.number > 0 { 1 } else { -i64::from(self.value.number < 0) }
    }

    #[allow(clippy::cast_precision_loss, reason = "it is called approximate")]
    pub(super) fn approximate(&self) -> f64 {
        self.value.number as f64 * 10_f64.powi(self.value.exponent)
    }

    /// The sum of this quantity and `number` times the other one, in the format of this one unless it is zero.
    pub(super) fn plus(&self, number: i128, other: &Self) -> Option<Self> {
        let zero = |of: &Decimal| of.number == 0;
        let (left, right) = (self.value, Decimal { number: number.checked_mul(other.value.number)?, ..other.value });
        let exponent = match (self.is_small && other.is_small, zero(&left), zero(&right)) {
            (true, _, true) => left.exponent,
            (true, true, _) => right.exponent,
            _ => left.exponent.min(right.exponent),
        };
        let sum = left.at(exponent)?.checked_add(right.at(exponent)?)?;
        let is_small = self.is_small && other.is_small && i64::try_from(sum).is_ok();
        let format = if zero(&left) { other.format } else { self.format };
        Some(Self { value: Decimal { number: sum, exponent }, is_small, is_computed: true, format })
    }
}

/// The canonical form (`CanonicalizeBytes`): without a fraction, and with the largest suffix: `1500m`, `1536Mi`, `1500e3`.
/// A quantity with a binary suffix that is below `1Ki`, or no whole number, gets a decimal one.
///
/// The text always has the value of the quantity. The server has texts of other values for quantities from `8Ei` on,
/// because a parser caps those, and for `1000E`, because no letter follows `E`. Here both have digits or an exponent.
impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.value.number == 0 {
            return formatter.write_str("0");
        }
        let binary = (self.format == Format::BinarySi).then(|| self.value.at_powers_of_1024()).flatten();
        if let Some((number, letters)) = binary {
            return write!(formatter, "{number}{letters}");
        }
        let (number, zeros, exponent) = self.value.at_powers_of_1000();
        write!(formatter, "{number}{}", "0".repeat(zeros))?;
        let power = i32::try_from(exponent).ok().filter(|_| self.format != Format::DecimalExponent);
        match power.and_then(|power| Suffix::Letter(power).letters()) {
            Some(letter) => formatter.write_str(letter),
            None if exponent == 0 => Ok(()),
            None => write!(formatter, "e{exponent}"),
        }
    }
}

/// The largest exponent of a text. The server keeps it in 32 bits.
const MAX_EXPONENT: i64 = 2_147_483_646;

/// The value of `text` in billionths, the smallest unit of Kubernetes: `0.5` equals `500m`, `1024Mi` equals `1Gi`. None
/// if `text` is no quantity, or larger than any resource can be.
///
/// Smaller fractions are rounded away from zero, as on the server.
pub fn nanos(text: &str) -> Option<i128> {
    let parts = Parts::of(text).filter(|parts| parts.has_digits)?;
    // Trailing zeros are removed, because they could overflow although the value does not.
    let value = Decimal::of(parts.whole, parts.fraction.trim_end_matches('0'), Suffix::of(parts.suffix)?)?;
    value.exponent.checked_sub(NANO)?;
    let nanos = value.rounded()?.at(NANO)?;
    Some(if parts.is_negative { -nanos } else { nanos })
}

impl Decimal {
    /// `whole.fraction`, times the suffix.
    fn of(whole: &str, fraction: &str, suffix: Suffix) -> Option<Self> {
        let number: i128 = format!("0{whole}{fraction}").parse().ok()?;
        let exponent = -i32::try_from(fraction.len()).ok()?;
        Some(match suffix {
            Suffix::Letter(of) | Suffix::Exponent(of) => Self { number, exponent: exponent.checked_add(of)? },
            Suffix::Binary(bits) => {
                Self { number: number.checked_mul(1_i128.checked_shl(u32::try_from(bits).ok()?)?)?, exponent }
            }
        })
    }

    /// The number at a smaller power of ten.
    fn at(self, exponent: i32) -> Option<i128> {
        if self.number == 0 {
            return Some(0);
        }
        let steps = u32::try_from(self.exponent.checked_sub(exponent)?).ok()?;
        self.number.checked_mul(10_i128.checked_pow(steps)?)
    }

    /// The value as a number and the letters of the largest power of 1024. None if it is below 1024,
    /// has a fraction, or needs more than 64 bits.
    fn at_powers_of_1024(self) -> Option<(i64, &'static str)> {
        let whole = if self.exponent < 0 {
            let divisor = 10_i128.checked_pow(self.exponent.unsigned_abs())?;
            (self.number % divisor == 0).then_some(self.number / divisor)
        } else {
            self.at(0)
        };
        let mut number = whole.and_then(|whole| i64::try_from(whole).ok().filter(|number| *number != i64::MIN))?;
        if number.unsigned_abs() < 1024 {
            return None;
        }
        let mut bits = 0;
        // `Ei` is the largest suffix.
        while number % 1024 == 0 && bits < 60 {
            number /= 1024;
            bits += 10;
        }
        Some((number, Suffix::Binary(bits).letters().unwrap_or_default()))
    }

    /// The value as a number, a count of zeros after it, and the power of ten that it is multiplied with: the largest that
    /// is divisible by three.
    fn at_powers_of_1000(self) -> (i128, usize, i64) {
        let (mut number, mut exponent) = (self.number, i64::from(self.exponent));
        while number != 0 && number % 10 == 0 {
            number /= 10;
            exponent += 1;
        }
        let shown = (exponent - exponent.rem_euclid(3)).min(MAX_EXPONENT);
        (number, usize::try_from(exponent - shown).unwrap_or(0), shown)
    }

    /// The value rounded up to billionths.
    fn rounded(self) -> Option<Self> {
        let Ok(steps) = u32::try_from(NANO.checked_sub(self.exponent)?) else { return Some(self) };
        let number = match 10_i128.checked_pow(steps) {
            Some(power) => self.number / power + i128::from(self.number % power != 0),
            None => i128::from(self.number != 0),
        };
        Some(Self { number, exponent: NANO })
    }

    /// The value, capped at 64 bits: a rule for binary suffixes.
    fn capped(self) -> Self {
        let max = Self { number: i128::from(i64::MAX), exponent: 0 };
        if self.compare(max).is_gt() { max } else { self }
    }

    fn compare(self, other: Self) -> Ordering {
        if self.number.signum() != other.number.signum() || self.number == 0 {
            return self.number.signum().cmp(&other.number.signum());
        }
        let exponent = self.exponent.min(other.exponent);
        match (self.at(exponent), other.at(exponent)) {
            (Some(left), Some(right)) => left.cmp(&right),
            // The value that cannot be converted to the other's power of ten is far larger.
            (None, _) if self.number > 0 => Ordering::Greater,
            (None, _) => Ordering::Less,
            (_, None) if self.number > 0 => Ordering::Less,
            (_, None) => Ordering::Greater,
        }
    }
}

/// The parts of a quantity as text.
struct Parts<'t> {
    is_negative: bool,
    /// Without leading zeros, except a single one.
    whole: &'t str,
    fraction: &'t str,
    suffix: &'t str,
    /// Whether a digit was written before the suffix.
    has_digits: bool,
}

impl<'t> Parts<'t> {
    /// As `parseQuantityString`, which also takes a suffix without digits for zero.
    fn of(text: &'t str) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let (whole, rest) = digits(unsigned.trim_start_matches('0'));
        let (fraction, suffix) = rest.strip_prefix('.').map_or(("", rest), digits);
        let exponent = suffix.trim_start_matches(|c| SUFFIX_LETTERS.contains(c));
        let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        let is_suffix = exponent.bytes().all(|byte| byte.is_ascii_digit());
        let whole = if whole.is_empty() { "0" } else { whole };
        let has_digits = unsigned.strip_prefix('.').unwrap_or(unsigned).starts_with(|c: char| c.is_ascii_digit());
        is_suffix.then_some(Self { is_negative: text.starts_with('-'), whole, fraction, suffix, has_digits })
    }
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// The factor of a number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suffix {
    /// A letter for a power of ten.
    Letter(i32),
    /// A power of ten.
    Exponent(i32),
    /// A power of two.
    Binary(usize),
}

/// The suffixes with letters.
const SUFFIXES: [(&str, Suffix); 16] = [
    ("n", Suffix::Letter(-9)),
    ("u", Suffix::Letter(-6)),
    ("m", Suffix::Letter(-3)),
    ("", Suffix::Letter(0)),
    ("k", Suffix::Letter(3)),
    ("M", Suffix::Letter(6)),
    ("G", Suffix::Letter(9)),
    ("T", Suffix::Letter(12)),
    ("P", Suffix::Letter(15)),
    ("E", Suffix::Letter(18)),
    ("Ki", Suffix::Binary(10)),
    ("Mi", Suffix::Binary(20)),
    ("Gi", Suffix::Binary(30)),
    ("Ti", Suffix::Binary(40)),
    ("Pi", Suffix::Binary(50)),
    ("Ei", Suffix::Binary(60)),
];

impl Suffix {
    /// The letters of the suffix; none for an exponent.
    fn letters(self) -> Option<&'static str> {
        SUFFIXES.into_iter().find(|(_, suffix)| *suffix == self).map(|(name, _)| name)
    }

    const fn format(self) -> Format {
        match self {
            Self::Letter(_) => Format::DecimalSi,
            Self::Exponent(_) => Format::DecimalExponent,
            Self::Binary(_) => Format::BinarySi,
        }
    }

    fn of(text: &str) -> Option<Self> {
        if let Some((_, suffix)) = SUFFIXES.into_iter().find(|(name, _)| *name == text) {
            return Some(suffix);
        }
        text.strip_prefix(['e', 'E'])?.parse().ok().map(Suffix::Exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_amount_has_one_value_however_it_is_written() {
        for (left, order, right) in [
            ("1Gi", Ordering::Equal, "1024Mi"),
            ("0.5", Ordering::Equal, "500m"),
            ("1e3", Ordering::Equal, "1k"),
            ("1E", Ordering::Equal, "1000P"),
            ("m", Ordering::Equal, "0"),
            ("0.1n", Ordering::Equal, "1n"),
            ("100Ei", Ordering::Equal, "9223372036854775807"),
            ("1e100", Ordering::Greater, "1n"),
            ("-1e100", Ordering::Less, "1n"),
            ("-1e100", Ordering::Less, "-1n"),
            ("1n", Ordering::Less, "1e2147483647"),
            ("1e-2147483648", Ordering::Equal, "1n"),
        ] {
            let parse = |text| Quantity::parse(text).unwrap_or_else(|| panic!("{text}")).value;
            assert_eq!(parse(left).compare(parse(right)), order, "{left} {right}");
        }
    }

    /// The texts are those of `CanonicalizeBytes` in apimachinery 0.37, with a reason where ours differ.
    #[test]
    fn a_quantity_has_its_canonical_form() {
        let longest = i64::MAX.to_string();
        for (text, canonical) in [
            ("0", "0"),
            ("0Gi", "0"),
            ("0e5", "0"),
            ("m", "0"),
            ("0.5", "500m"),
            ("500m", "500m"),
            ("0500m", "500m"),
            ("1.5", "1500m"),
            ("1.500", "1500m"),
            ("1000m", "1"),
            ("+5", "5"),
            ("-500m", "-500m"),
            ("100", "100"),
            ("1000", "1k"),
            ("1025", "1025"),
            ("100k", "100k"),
            ("1000000", "1M"),
            ("64Mi", "64Mi"),
            ("1.5Gi", "1536Mi"),
            ("-1.5Gi", "-1536Mi"),
            ("1024Mi", "1Gi"),
            ("1000Gi", "1000Gi"),
            ("1024Pi", "1Ei"),
            ("7Ei", "7Ei"),
            ("1Ki", "1Ki"),
            ("-1Ki", "-1Ki"),
            ("0.5Ki", "512"),
            ("1023.5Ki", "1048064"),
            ("1.1Ki", "1126400m"),
            ("0.0001Ki", "102400u"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("1e4", "10e3"),
            ("1e-3", "1e-3"),
            ("12e6", "12e6"),
            ("1e21", "1e21"),
            ("5e-10", "1e-9"),
            ("0.1n", "1n"),
            ("1.234567890123", "1234567891n"),
            ("8Ei", &longest),
            ("9223372036854775808", "9223372036854775808"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            // 0.37 writes `1`, later versions write this.
            ("1000E", "1e21"),
            // 0.37 lets the exponent overflow.
            ("10e2147483647", "100e2147483646"),
        ] {
            let quantity = Quantity::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(quantity.to_string(), canonical, "{text}");
            let again = Quantity::parse(canonical).unwrap_or_else(|| panic!("{canonical}"));
            assert!(again.compare(&quantity).is_eq(), "{text}");
            assert_eq!(again.to_string(), canonical, "{text}");
        }
    }

    /// As in apimachinery, with a reason where ours differ.
    #[test]
    fn a_sum_has_the_format_of_the_first_operand() {
        for (left, right, sum, difference) in [
            ("1Gi", "500M", "1573741824", "573741824"),
            ("500M", "1Gi", "1573741824", "-573741824"),
            ("512Mi", "512Mi", "1Gi", "0"),
            ("0", "1Gi", "1Gi", "-1Gi"),
            ("0Gi", "1500M", "1500M", "-1500M"),
            ("-1Gi", "1Gi", "0", "-2Gi"),
            ("1Gi", "1m", "1073741824001m", "1073741823999m"),
            ("512", "1Ki", "1536", "-512"),
            ("0.0001Ki", "1Gi", "1073741824102400u", "-1073741823897600u"),
            ("100m", "1", "1100m", "-900m"),
            ("900m", "100m", "1", "800m"),
            ("1e3", "1k", "2e3", "0"),
            ("1k", "1e3", "2k", "0"),
            ("9223372036854775807", "1", "9223372036854775808", "9223372036854775806"),
            // There it is `8Ei`, which is read as one less.
            ("4Ei", "4Ei", "9223372036854775808", "0"),
        ] {
            let [left_value, right_value] = [left, right].map(|text| Quantity::parse(text).expect(text));
            let computed = [1, -1].map(|times| left_value.plus(times, &right_value).expect("no overflow"));
            assert_eq!(computed.map(|quantity| quantity.to_string()), [sum, difference], "{left} {right}");
        }
    }

    /// Any number with any suffix is read from its text as the same value.
    #[test]
    fn a_canonical_text_keeps_the_value() {
        let suffixes = SUFFIXES.into_iter().map(|(name, _)| name).chain(["e1", "e2", "E-2", "e30", "e-9"]);
        let suffixes: Vec<&str> = suffixes.collect();
        // A linear congruential generator: the same numbers at each run.
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let digits = (state >> 12) % 10_u64.pow(u32::try_from(state >> 60).expect("four bits"));
            let suffix = suffixes[usize::try_from(state >> 20).expect("it fits") % suffixes.len()];
            let point = if state & 64 == 0 { "" } else { ".5" };
            let sign = if state & 128 == 0 { "" } else { "-" };
            let text = format!("{sign}{digits}{point}{suffix}");
            let quantity = Quantity::parse(&text).unwrap_or_else(|| panic!("{text}"));
            let written = quantity.to_string();
            let again = Quantity::parse(&written).unwrap_or_else(|| panic!("{text} {written}"));
            assert!(again.compare(&quantity).is_eq(), "{text} {written}");
            assert!(!written.contains('.') && written.len() < 64, "{text} {written}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_not_read() {
        for text in ["", "1 ", "1KI", "1i", "1e", "1e+", "é", "1.2.3", "--1", "1e99999999999", "1k5"] {
            assert!(Quantity::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn one_amount_has_one_number_of_billionths_however_it_is_written() {
        let same: &[&[&str]] = &[
            &["0.5", "500m", ".5", "5e-1", "500000u", "500000000n", "0.50", "+0.5", "00.5"],
            &["1Gi", "1024Mi", "1048576Ki", "1073741824", "1073741824.", "1073741824000m"],
            &["1E", "1000P", "1e18", "1E18", "1E+18", "1000000000000000000", "1e+18"],
            &["1Ei", "1024Pi", "1152921504606846976"],
            &["100k", "0.1M", "100e3", "1e5", "100000"],
            &["0", "0.0", "0m", "-0", "0Gi", "0e100", "0n"],
            &["0.1Ki", "102.4", "102400m"],
            &["1", "1000m"],
            &["1T", "1000G"],
            &["1Ti", "1024Gi"],
            &["-1", "-1000m"],
            &["-1n", "-0.1n"],
            &["0.0000000001", "1n", "0.1n", "1e-200", "10e-10"],
            &["1.5G", "1500M", "1.500000000000000000000000000000000000000000000000G"],
        ];
        for (index, group) in same.iter().enumerate() {
            let value = nanos(group[0]);
            assert!(value.is_some(), "{}", group[0]);
            for text in *group {
                assert_eq!(nanos(text), value, "{text}");
            }
            for other in same.iter().skip(index + 1) {
                assert_ne!(nanos(other[0]), value, "{} and {}", other[0], group[0]);
            }
        }
    }

    #[test]
    fn what_is_no_quantity_has_no_billionths() {
        let huge = "9".repeat(60);
        for text in [
            "",
            "-",
            "+",
            ".",
            "1..2",
            "1.2.3",
            "m",
            "1 Gi",
            "1gi",
            "1K",
            "1KI",
            "1e",
            "1E1E",
            "--1",
            "+-1",
            "1e+",
            "1_000",
            "0x10",
            "abc",
            "١",
            "1é",
            "é",
            "1e99999999999",
            "1e2147483647",
            "1e-2147483648",
            &huge,
        ] {
            if text == "1e-2147483648" {
                // The smallest exponent must not overflow, whatever the result.
                let _ = nanos(text);
                continue;
            }
            assert_eq!(nanos(text), None, "{text}");
        }
    }
}
