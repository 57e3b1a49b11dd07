//! Marked places in texts: `$(scpol.NAME)`, read as a kubelet reads references.

use crate::expansion::{self, references};
use std::ops::Range;

/// The beginning of the name in a mark.
const PREFIX: &str = "scpol.";

/// The names of the marks in `text`, each with its place. `$$(scpol.x)` is no mark.
pub(super) fn of(text: &str) -> Vec<(&str, Range<usize>)> {
    let marks = references(text).into_iter();
    marks.filter_map(|at| Some((expansion::name(text, at.clone()).strip_prefix(PREFIX)?, at))).collect()
}

/// `text` with `value` in the place of each mark of `name`.
///
/// # Guarantees
/// If `value` is [`escaped`], it has no mark, and makes none with the text around it: a mark is not behind a single `$`, and not
/// inside of an open reference.
pub(super) fn filled(text: &str, name: &str, value: &str) -> String {
    let mut filled = String::with_capacity(text.len() + value.len());
    let mut from = 0;
    for (_, at) in of(text).into_iter().filter(|(found, _)| *found == name) {
        filled.push_str(&text[from..at.start]);
        filled.push_str(value);
        from = at.end;
    }
    filled + &text[from..]
}

/// `value` as a text that a kubelet expands to `value`.
pub(super) fn escaped(value: &str) -> String {
    value.replace('$', "$$")
}

/// What a kubelet makes of `text`; none if it refers to a variable.
pub(super) fn unescaped(text: &str) -> Option<String> {
    references(text).is_empty().then(|| text.replace("$$", "$"))
}
