//! Named formats: names of Kubernetes (k8s.io/apimachinery/pkg/util/validation) and formats of OpenAPI (kube-openapi's
//! strfmt).

use super::dialect::Dialect;
use super::moment::Scan;
use super::url::Url;

const MAX_LABEL: usize = 63;
const MAX_SUBDOMAIN: usize = 253;

/// A format.
#[derive(Debug)]
pub(super) struct Format {
    /// The name for `format.named`.
    pub(super) name: &'static str,
    pub(super) is_valid: fn(&str, Dialect) -> bool,
    pub(super) must: &'static str,
}

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                     and end with an alphanumeric character; no more than 63 characters";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                         and must start and end with an alphanumeric character; no more than 253 characters";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
                          alphabetic character, and end with an alphanumeric character; no more than 63 characters";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
                         an alphanumeric character, with an optional DNS subdomain prefix and '/'";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
                           and must start and end with an alphanumeric character; no more than 63 characters";

const fn format(name: &'static str, is_valid: fn(&str, Dialect) -> bool, must: &'static str) -> Format {
    Format { name, is_valid, must }
}

pub(super) static FORMATS: [Format; 13] = [
    format("dns1123Label", |text, _| is_label(text), LABEL),
    format("dns1123Subdomain", |text, _| is_subdomain(text), SUBDOMAIN),
    format("dns1035Label", |text, _| is_label_1035(text), LABEL_1035),
    format("qualifiedName", |text, _| is_qualified(text), QUALIFIED),
    format("dns1123LabelPrefix", |text, _| is_label(&masked(text)), LABEL),
    format("dns1123SubdomainPrefix", |text, _| is_subdomain(&masked(text)), SUBDOMAIN),
    format("dns1035LabelPrefix", |text, _| is_label_1035(&masked(text)), LABEL_1035),
    format("labelValue", |text, _| text.is_empty() || is_name(text), LABEL_VALUE),
    format("uri", Url::is_request_uri, "invalid URI for request"),
    format("uuid", |text, _| is_uuid(text), "does not match the UUID format"),
    format("byte", |text, _| is_base64(text), "invalid base64"),
    format("date", |text, _| is_date(text), "invalid date"),
    format("datetime", |text, _| is_datetime(text), "invalid datetime"),
];

/// Replaces a trailing dash, which represents a generated suffix.
fn masked(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => {
            let mut masked = rest.to_owned();
            masked.pop();
            masked.push('a');
            masked
        }
        _ => text.to_owned(),
    }
}

fn is_dns(text: &str) -> bool {
    let is_lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().last()];
    ends.into_iter().all(|end| end.is_some_and(is_lower)) && text.bytes().all(|byte| is_lower(byte) || byte == b'-')
}

fn is_label(text: &str) -> bool {
    text.len() <= MAX_LABEL && is_dns(text)
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_dns)
}

fn is_label_1035(text: &str) -> bool {
    is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

fn is_name(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().last()];
    text.len() <= MAX_LABEL
        && ends.into_iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn is_qualified(text: &str) -> bool {
    match text.split_once('/') {
        None => is_name(text),
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
    }
}

/// Groups of 8, 4, 4, 4 and 12 digits, each dash optional.
fn is_uuid(text: &str) -> bool {
    let mut rest = text;
    for (index, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        rest = if index > 0 { rest.strip_prefix('-').unwrap_or(rest) } else { rest };
        match rest.split_at_checked(length) {
            Some((group, after)) if group.bytes().all(|byte| byte.is_ascii_hexdigit()) => rest = after,
            _ => return false,
        }
    }
    rest.is_empty()
}

fn is_base64(text: &str) -> bool {
    let digits = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    !text.is_empty() && text.len().is_multiple_of(4) && !digits.is_empty() && digits.bytes().all(is_digit)
}

fn is_date(text: &str) -> bool {
    let mut scan = Scan(text);
    scan.date().is_some() && scan.0.is_empty()
}

fn is_datetime(text: &str) -> bool {
    let text = text.to_lowercase();
    let mut parts = text.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    is_date(date) && is_time(time).is_some()
}

/// `15:04:05.123z`. Any character may precede the fraction.
fn is_time(text: &str) -> Option<()> {
    let mut scan = Scan(text);
    scan.time()?;
    let mut rest = scan.0;
    let mut fraction = rest.chars();
    if !matches!(fraction.next()?, 'z' | '+' | '-') || fraction.as_str().find(':') != Some(2) {
        let after = fraction.as_str().trim_start_matches(|c: char| c.is_ascii_digit());
        if after.len() < fraction.as_str().len() {
            rest = after;
        }
    }
    if rest == "z" {
        return Some(());
    }
    let mut zone = Scan(rest.strip_prefix(['+', '-'])?);
    zone.digits(2)?;
    zone.literal(':')?;
    zone.digits(2)?;
    zone.0.is_empty().then_some(())
}
