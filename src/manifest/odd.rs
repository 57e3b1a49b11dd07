//! No-break spaces and similar characters, which web pages and word processors leave and YAML does not take for spaces.

/// Whether `letter` looks like a space but is a letter for YAML.
pub(super) fn is_space(letter: char) -> bool {
    // Within a text, a byte order mark is a zero-width no-break space.
    matches!(
        letter,
        '\u{a0}' | '\u{1680}' | '\u{2000}'
            ..='\u{200b}' | '\u{202f}' | '\u{205f}' | '\u{2060}' | '\u{3000}' | '\u{feff}'
    )
}

/// Whether such a space is in the indentation of `line`, or follows the `-` of an item or the `:` of a key.
pub(super) fn is_in_structure(line: &str) -> bool {
    let content = line.trim_start_matches([' ', '-']);
    content.starts_with(is_space) || line.split(':').skip(1).any(|rest| rest.starts_with(is_space))
}

/// The message about `something` with such a space, for example `the line has`.
pub(super) fn message(something: &str) -> String {
    format!(
        "{something} a no-break space (U+00A0 or similar), which copying from a web page leaves; expected plain spaces"
    )
}
