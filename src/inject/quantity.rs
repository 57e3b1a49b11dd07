//! Kubernetes quantities, compared by value: `0.5` is `500m`, `1024Mi` is `1Gi`.

/// The value of `text` in billionths, the finest step that Kubernetes keeps. None if it is no quantity, or one beyond
/// what any resource can have.
///
/// Finer steps are rounded away from zero, as the server does it.
pub(crate) fn nanos(text: &str) -> Option<i128> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (digits, decimals) = mantissa(number)?;
    let (factor, exponent) = scale(suffix)?;
    let value = shift(digits.checked_mul(factor)?, exponent.checked_sub(decimals)?.checked_add(9)?)?;
    Some(if negative { -value } else { value })
}

/// `12.50` as 1250 and two decimals.
fn mantissa(number: &str) -> Option<(i128, i32)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    // Trailing zeros mean nothing, and could overflow what has room without them.
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("0{whole}{fraction}").parse().ok()?;
    Some((digits, i32::try_from(fraction.len()).ok()?))
}

/// A suffix as a factor and a power of ten.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    let decimal = |exponent| Some((1, exponent));
    let binary = |shift: u32| Some((1_i128 << shift, 0));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => decimal(suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    }
}

/// `value` times ten to the `exponent`, rounded up.
fn shift(value: i128, exponent: i32) -> Option<i128> {
    if value == 0 {
        return Some(0);
    }
    let power = 10_i128.checked_pow(exponent.unsigned_abs());
    match (exponent >= 0, power) {
        (true, Some(power)) => value.checked_mul(power),
        (true, None) => None,
        (false, Some(power)) => Some(value / power + i128::from(value % power != 0)),
        (false, None) => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_amount_has_one_value_however_it_is_written() {
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
    fn what_is_no_quantity_has_no_value() {
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
                // The smallest exponent: whatever comes out, it must not overflow.
                let _ = nanos(text);
                continue;
            }
            assert_eq!(nanos(text), None, "{text}");
        }
    }
}
