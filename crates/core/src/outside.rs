//! Text that others have written: names, messages, bodies of reviews. It is hostile until its spelling and its length
//! have been checked, and it is shown only with its control characters escaped. Pure.

use std::borrow::Cow;
use std::fmt::Write;

/// The most characters of a text from outside in a log line, an event, a warning or a message.
pub const SHOWN: usize = 256;
/// The longest accepted name of an object, in bytes. API servers limit most names to 253, and those of roles not at all.
pub const NAME: usize = 1024;

/// The first [`SHOWN`] characters of `text`, escaped, and `…` if there are more.
pub fn shown(text: &str) -> Cow<'_, str> {
    cut(text, SHOWN)
}

/// The first `most` characters of `text`, escaped, and `…` if there are more. The result may be longer than `most`,
/// because an escape has several characters.
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => escaped(text),
        Some((end, _)) => Cow::Owned(format!("{}…", escaped(&text[..end]))),
    }
}

/// The beginning of `text` that has at most `most` bytes, in whole characters.
pub fn beginning(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// `text` on one line, without characters that a terminal obeys or that hide or reorder others. Each of them is written
/// as Rust writes it, such as `\n` or `\u{1b}`.
///
/// # Guarantees
/// Idempotent. Text without such characters is the same.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escaped_but(text, is_unsafe)
}

/// `text` without the characters of [`escaped`], but with its line breaks and tabs: a whole output of several lines.
pub fn escaped_lines(text: &str) -> Cow<'_, str> {
    escaped_but(text, |character| is_unsafe(character) && !matches!(character, '\n' | '\t'))
}

fn escaped_but(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_escaped(character) {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    Cow::Owned(safe)
}

/// Whether `character` controls a terminal, has no width, or changes the order or the lines of other text: the categories
/// Cc, Zl and Zp of Unicode, the characters of bidirectional text, and invisible ones that are no part of a script.
pub fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Whether `text` can be one segment of a path on an API server: every name of an object can (apimachinery,
/// `IsValidPathSegmentName`). API servers decode a path before they split it, so an encoded slash is a slash.
pub fn is_segment(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME && !matches!(text, "." | "..") && !text.contains(['/', '%'])
}

/// `text` as one segment of a path: percent-encoded, so that no character ends the segment, the path or the query.
///
/// # Errors
/// If no segment can have this text: see [`is_segment`].
pub fn segment(text: &str) -> Result<Cow<'_, str>, NoSegment> {
    if !is_segment(text) {
        return Err(NoSegment(shown(text).into_owned()));
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@!$&'()*+,;=".contains(&byte);
    if text.bytes().all(is_plain) {
        return Ok(Cow::Borrowed(text));
    }
    let mut encoded = String::with_capacity(text.len() + 16);
    for byte in text.bytes() {
        if is_plain(byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    Ok(Cow::Owned(encoded))
}

/// A text that cannot be a segment of a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no name of an object: it is empty, too long, `.`, `..`, or has a `/` or `%`")]
pub struct NoSegment(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_or_hides_is_escaped_and_all_else_is_kept() {
        for (text, expected) in [
            ("shop/web", "shop/web"),
            ("größe 名前 \\u{1b}", "größe 名前 \\u{1b}"),
            ("a\u{1b}[2Jb\u{7}\u{9b}1m", "a\\u{1b}[2Jb\\u{7}\\u{9b}1m"),
            ("a\nb\r\tc\u{0}", "a\\nb\\r\\tc\\u{0}"),
            ("a\u{202e}b\u{2066}\u{200f}\u{feff}\u{2028}", "a\\u{202e}b\\u{2066}\\u{200f}\\u{feff}\\u{2028}"),
        ] {
            assert_eq!(escaped(text), expected);
            assert_eq!(escaped(&escaped(text)), expected, "twice is once");
        }
        assert_eq!(escaped_lines("a\n\tb\u{1b}\r"), "a\n\tb\\u{1b}\\r");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(shown(&"ü".repeat(256)), "ü".repeat(256));
        assert_eq!(shown(&"ü".repeat(257)), format!("{}…", "ü".repeat(256)));
        assert_eq!(cut("a\nbc", 2), "a\\n…");
        for (most, expected) in [(0, ""), (1, "a"), (2, "a"), (3, "aü"), (4, "aüb"), (9, "aüb")] {
            assert_eq!(beginning("aüb", most), expected);
        }
    }

    #[test]
    fn a_segment_of_a_path_stays_one_segment() {
        for name in ["web", "web-0.shop", "system:node", "scpol.dev", "a,b;c=d", "...", "x".repeat(1024).as_str()] {
            assert_eq!(segment(name).as_deref(), Ok(name));
        }
        for (name, expected) in [
            ("a?watch=true", "a%3Fwatch=true"),
            ("a#b", "a%23b"),
            ("a b\n", "a%20b%0A"),
            ("ü", "%C3%BC"),
            ("a\\b", "a%5Cb"),
        ] {
            assert_eq!(segment(name).as_deref(), Ok(expected));
        }
        let long = "x".repeat(1025);
        for name in ["", ".", "..", "a/b", "/", "../nodes", "kube-system/pods", "a%2fb", "%", &long] {
            assert!(segment(name).is_err(), "{name}");
        }
    }
}
