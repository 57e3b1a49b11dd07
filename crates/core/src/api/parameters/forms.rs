//! The forms of texts in leaves.

use crate::api::format;

/// Whether `text` is the path of an HTTP probe. A second slash would begin a host.
pub(super) fn is_http_path(text: &str) -> bool {
    text.starts_with('/') && !text.starts_with("//") && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether `text` is the number or the name of a port.
pub(super) fn is_port(text: &str) -> bool {
    match text.parse::<u16>() {
        Ok(number) => number > 0 && number.to_string() == text,
        Err(_) => !text.is_empty() && format::port_name_fault(text).is_none(),
    }
}

/// Whether `text` is the tag of an image (`distribution/reference`).
pub(super) fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&text.len())
        && text.bytes().next().is_some_and(is_word)
        && text.bytes().all(|byte| is_word(byte) || b".-".contains(&byte))
}

/// Whether `text` is a reference of an image (`distribution/reference`): a name, and perhaps a tag or a digest.
pub(super) fn is_image(text: &str) -> bool {
    let (rest, digest) = text.split_once('@').map_or((text, None), |(rest, digest)| (rest, Some(digest)));
    let (name, tag) = split_tag(rest);
    name.len() <= 255 && is_name(name) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest)
}

/// The name of an image, and its tag. `image` has no digest.
pub(super) fn split_tag(image: &str) -> (&str, Option<&str>) {
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (image, None),
    }
}

/// Whether `text` is a digest: an algorithm that runtimes know (`opencontainers/go-digest`), and all its digits in lower case.
fn is_digest(text: &str) -> bool {
    let digits = match text.split_once(':') {
        Some(("sha256", digits)) if digits.len() == 64 => digits,
        Some(("sha384", digits)) if digits.len() == 96 => digits,
        Some(("sha512", digits)) if digits.len() == 128 => digits,
        _ => return false,
    };
    digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_name(name: &str) -> bool {
    let Some((first, path)) = name.split_once('/') else { return is_component(name) };
    let is_registry = first.contains(['.', ':']) || first == "localhost";
    let is_first = if is_registry { is_registry_name(first) } else { is_component(first) };
    is_first && path.split('/').all(is_component)
}

fn is_registry_name(text: &str) -> bool {
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let is_port = |port: &str| (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
    format::is_group(&host.to_ascii_lowercase()) && !host.is_empty() && port.is_none_or(is_port)
}

/// A part of a path: lower-case letters and digits, with `.`, `_`, `__` or dashes between.
fn is_component(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_end = |byte: Option<u8>| byte.is_some_and(is_inner);
    let separators = text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).filter(|part| !part.is_empty());
    let is_separator = |part: &str| matches!(part, "." | "_" | "__") || part.bytes().all(|byte| byte == b'-');
    is_end(text.bytes().next()) && is_end(text.bytes().last()) && separators.into_iter().all(is_separator)
}
