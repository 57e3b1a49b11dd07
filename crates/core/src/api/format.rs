//! The formats of strings in the schema: a pattern for the API server, a predicate for our own code, and words for
//! users. A test compares the three.

use jiff::SignedDuration;
use std::time::Duration;

/// The format of a string.
pub(super) struct Format {
    /// The pattern for the API server: an RE2 expression.
    pub(super) pattern: &'static str,
    /// The predicate for our own code, which avoids a regex engine.
    pub(super) holds: fn(&str) -> bool,
    /// The words for users, to follow on "must be".
    pub(super) words: &'static str,
}

/// A name of a container or volume.
pub(super) const LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// A domain to search. Servers below 1.33 take neither `.` alone nor `_`.
pub(super) const SEARCH: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\.?$";
/// A name of an object.
pub(super) const SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// A name of an initializer.
pub(super) const INITIALIZER: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?){2,}$";
/// A name or glob of a namespace or container.
pub(super) const GLOB: &str = r"^[a-z0-9*?]([-a-z0-9*?]*[a-z0-9*?])?$";
/// An API group; empty is the core group.
pub(super) const GROUP: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$";
/// An API version, or any.
pub(super) const VERSION: &str = r"^(\*|[a-z]([-a-z0-9]*[a-z0-9])?)$";
/// A resource in the plural.
pub(super) const RESOURCE: &str = r"^[a-z]([-a-z0-9]*[a-z0-9])?$";
/// A path in an object.
pub(super) const PATH: &str = r"^[A-Za-z_][-A-Za-z0-9_]*(\.[A-Za-z_][-A-Za-z0-9_]*)*$";
/// A key of a label or annotation.
pub(super) const KEY: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// A key of an annotation. In lower case it is the key of a label.
pub(super) const ANNOTATION_KEY: &str = r"^([A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// A value of a label.
pub(super) const LABEL_VALUE: &str = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$";
/// A name of an environment variable.
pub(super) const VARIABLE: &str = r"^[ -<>-~]+$";

/// A percentage from 1 to 100.
pub(super) const PERCENTAGE: &str = r"^([1-9][0-9]?|100)%$";
/// A duration of whole hours, minutes and seconds, as Go reads it. At most 7 digits each, which no parser rejects.
pub(super) const DURATION: &str = r"^([0-9]{1,7}h([0-9]{1,7}m)?([0-9]{1,7}s)?|[0-9]{1,7}m([0-9]{1,7}s)?|[0-9]{1,7}s)$";

pub(super) const ALL: &[Format] = &[
    Format {
        pattern: LABEL,
        holds: is_label,
        words: "lower-case letters, digits and `-`, with a letter or digit at both ends",
    },
    Format {
        pattern: SUBDOMAIN,
        holds: is_subdomain,
        words: "lower-case letters, digits, `-` and `.`, with a letter or digit at both ends and on both sides of every `.`",
    },
    Format {
        pattern: SEARCH,
        holds: |text| is_subdomain(text.strip_suffix('.').unwrap_or(text)),
        words: "lower-case letters, digits, `-` and `.`, with a letter or digit at the beginning and on both sides of every `.` but the last",
    },
    Format {
        pattern: INITIALIZER,
        holds: |text| is_subdomain(text) && text.split('.').count() >= 3,
        words: "a lower-case DNS name of three or more segments",
    },
    Format {
        pattern: GLOB,
        holds: |text| is_word(text, |byte| is_lower(byte) || b"*?".contains(&byte), b"-"),
        words: "a name or a glob (`*` for any characters, `?` for one, no regular expression)",
    },
    Format { pattern: GROUP, holds: is_group, words: "one API group (the core group is `\"\"`)" },
    Format {
        pattern: VERSION,
        holds: |text| text == "*" || is_resource(text),
        words: "one API version, or `*` for any",
    },
    Format {
        pattern: RESOURCE,
        holds: is_resource,
        words: "one resource, in the plural and in lower case, without a subresource",
    },
    Format { pattern: PATH, holds: |text| text.split('.').all(is_field), words: "names of fields, separated by dots" },
    Format {
        pattern: KEY,
        holds: is_key,
        words: "a name of at most 63 letters, digits, `-`, `_` and `.`, which may follow a lower-case DNS name and `/`",
    },
    Format {
        pattern: ANNOTATION_KEY,
        holds: is_annotation_key,
        words: "a name of at most 63 letters, digits, `-`, `_` and `.`, which may follow a DNS name and `/`",
    },
    Format {
        pattern: LABEL_VALUE,
        holds: is_label_text,
        words: "letters, digits, `-`, `_` and `.`, with a letter or digit at both ends",
    },
    Format {
        pattern: VARIABLE,
        holds: |text| !text.is_empty() && text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'='),
        words: "printable ASCII characters without `=`",
    },
    Format { pattern: PERCENTAGE, holds: is_percentage, words: "a number, or a percentage from `1%` to `100%`" },
    Format { pattern: DURATION, holds: is_duration, words: "hours, minutes and seconds, in that order" },
];

pub(super) fn find(pattern: &str) -> Option<&'static Format> {
    ALL.iter().find(|format| format.pattern == pattern)
}

/// `path` without a slash at its end, because both name one mount point.
pub(crate) fn mount_path(path: &str) -> &str {
    if path == "/" { path } else { path.trim_end_matches('/') }
}

fn is_percentage(text: &str) -> bool {
    let Some(number) = text.strip_suffix('%') else { return false };
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit()) && !number.starts_with('0');
    is_plain && number.parse().is_ok_and(|number: u8| number <= 100)
}

fn is_duration(text: &str) -> bool {
    let mut rest = text;
    for unit in ['h', 'm', 's'] {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if (1..=7).contains(&digits) && rest[digits..].starts_with(unit) {
            rest = &rest[digits + 1..];
        }
    }
    rest.is_empty() && !text.is_empty()
}

/// The length of a duration in the format of [`DURATION`]; none for any other text.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let length: SignedDuration = text.parse().ok().filter(|_| is_duration(text))?;
    length.try_into().ok()
}

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Whether `text` has `ends` at both ends, and `ends` or `inner` between.
fn is_word(text: &str, ends: fn(u8) -> bool, inner: &[u8]) -> bool {
    let [Some(first), Some(last)] = [text.bytes().next(), text.bytes().last()] else { return false };
    ends(first) && ends(last) && text.bytes().all(|byte| ends(byte) || inner.contains(&byte))
}

fn is_label(text: &str) -> bool {
    is_word(text, is_lower, b"-")
}

fn is_label_text(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

/// Whether the server takes `text` as the value of a label: at most 63 characters.
pub(crate) fn is_label_value(text: &str) -> bool {
    text.len() <= 63 && is_label_text(text)
}

/// Whether `text` is a DNS label of RFC 1123 with at most 63 characters, as the name of a Namespace is.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_label(text)
}

/// Whether `text` can be the name of a stored custom resource: a DNS subdomain of at most 253 characters.
pub fn is_policy_name(text: &str) -> bool {
    text.len() <= 253 && is_subdomain(text)
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

pub(crate) fn is_group(text: &str) -> bool {
    text.is_empty() || is_subdomain(text)
}

pub(super) fn is_resource(text: &str) -> bool {
    is_label(text) && text.starts_with(|first: char| first.is_ascii_lowercase())
}

fn is_name(text: &str) -> bool {
    is_word(text, |byte| byte.is_ascii_alphanumeric(), b"-_.")
}

pub(super) fn is_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_policy_name) && name.len() <= 63 && is_name(name)
}

/// Whether the server takes `text` as the key of an annotation: in lower case it is a key.
pub(super) fn is_annotation_key(text: &str) -> bool {
    is_key(&text.to_ascii_lowercase())
}

/// The fault of `name` as the name of a port (`IsValidPortName`).
pub(super) fn port_name_fault(name: &str) -> Option<&'static str> {
    let is_of = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let ends = name.starts_with('-') || name.ends_with('-') || name.contains("--");
    if name.len() > 15 {
        Some("must have at most 15 characters")
    } else if !name.bytes().all(is_of) || ends {
        Some("must be lower-case letters, digits and single `-` between them")
    } else if !name.bytes().any(|byte| byte.is_ascii_lowercase()) {
        Some("must have a letter; a number is written without quotes")
    } else {
        None
    }
}

fn is_field(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_holds_exactly_where_its_pattern_matches() {
        let atoms = ["a", "Z", "0", "-", ".", "_", "/", "*", "?", " ", "=", "ü", "\n"];
        let mut texts = vec![
            String::new(),
            "x".repeat(63),
            "x".repeat(64),
            format!("{}-y", "x".repeat(62)),
            format!("a.b/{}", "x".repeat(64)),
        ];
        for length in 1..=4 {
            for mut number in 0..atoms.len().pow(length) {
                let mut text = String::new();
                for _ in 0..length {
                    text.push_str(atoms[number % atoms.len()]);
                    number /= atoms.len();
                }
                texts.push(text);
            }
        }
        texts.extend(
            ["%", "0%", "05%", "1%", "9%", "10%", "99%", "100%", "101%", "200%", "+1%", "1 %", "1%%", "1", "1.5%"]
                .map(str::to_owned),
        );
        let units = ["", "h", "m", "s", "0h", "90m", "12345678s", "1234567s", "1h", "1.5h", "-1s", " 1s", "ms"];
        texts.extend(units.iter().flat_map(|a| units.iter().flat_map(move |b| units.map(|c| format!("{a}{b}{c}")))));
        texts.extend(["a.b.c", "a.b.c.d", "a..c", "a.b.", "a.b-.c", "spec.podTemplate", "a/b/c"].map(str::to_owned));
        for format in ALL {
            let pattern = regex::Regex::new(format.pattern).unwrap();
            for text in &texts {
                assert_eq!(pattern.is_match(text), (format.holds)(text), "{text:?} against {}", format.pattern);
            }
        }
    }
    #[test]
    fn a_duration_is_as_long_as_it_says() {
        for (text, seconds) in [
            ("1s", Some(1)),
            ("90s", Some(90)),
            ("30m", Some(1800)),
            ("1h30m", Some(5400)),
            ("1h0m5s", Some(3605)),
            ("720h", Some(2_592_000)),
            ("9999999h9999999m9999999s", Some(9_999_999 * 3661)),
            ("0s", Some(0)),
            ("30", None),
            ("30s1h", None),
            ("1 hour", None),
            ("1.5h", None),
            ("", None),
        ] {
            assert_eq!(duration(text), seconds.map(Duration::from_secs), "{text}");
        }
    }
}
