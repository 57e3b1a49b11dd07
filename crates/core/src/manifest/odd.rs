//! No-break spaces and similar characters, which web pages and word processors leave and YAML does not take for spaces.

/// True if and only if people take `letter` for a space, and YAML for a letter.
pub fn is_space(letter: char) -> bool {
    // A byte order mark within a text is a no-break space of no width.
    matches!(
        letter,
        '\u{a0}' | '\u{1680}' | '\u{2000}'
            ..='\u{200b}' | '\u{202f}' | '\u{205f}' | '\u{2060}' | '\u{3000}' | '\u{feff}'
    )
}

/// True if and only if such a space is where `line` is indented, or behind the `-` of an item or the `:` of a key.
pub fn is_in_structure(line: &str) -> bool {
    let content = line.trim_start_matches([' ', '-']);
    content.starts_with(is_space) || line.split(':').skip(1).any(|rest| rest.starts_with(is_space))
}

/// What is said of `something` with such a space: `the line has`.
pub fn message(something: &str) -> String {
    format!(
        "{something} a no-break space (U+00A0 or similar), which copying from a web page leaves; expected plain spaces"
    )
}
