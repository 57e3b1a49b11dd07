//! References to variables, `$(NAME)`, as a kubelet reads them (`third_party/forked/golang/expansion`).

use std::ops::Range;

/// The references in `text`, each from its `$` to its `)`. `$$(NAME)` is none. The text is read once, however many brackets it opens.
pub(crate) fn references(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    let last = text.rfind(')').unwrap_or_default();
    while let Some(dollar) = text[at..].find('$').map(|found| at + found).filter(|dollar| *dollar < last) {
        let rest = &text[dollar + 1..];
        at = match (rest.strip_prefix('('), rest.starts_with('$')) {
            (_, true) => dollar + 2,
            (Some(inside), _) => match inside.find(')') {
                Some(length) => {
                    let end = dollar + length + 3;
                    found.push(dollar..end);
                    end
                }
                None => dollar + 2,
            },
            _ => dollar + 1,
        };
    }
    found
}

/// The name in the reference at `at` of `text`.
pub(crate) fn name(text: &str, at: Range<usize>) -> &str {
    &text[at.start + 2..at.end - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_those_of_a_kubelet() {
        for (text, expected) in [
            ("$(A)-$(B)", &["A", "B"][..]),
            ("$$(A) $(B)", &["B"]),
            ("$(A", &[]),
            (")$(A", &[]),
            ("$$", &[]),
            ("$($(A)", &["$(A"]),
            ("é$(Ä)é", &["Ä"]),
            ("$()", &[""]),
        ] {
            let found: Vec<&str> = references(text).into_iter().map(|at| name(text, at)).collect();
            assert_eq!(found, expected, "{text}");
        }
        assert!(references(&"$(".repeat(1 << 20)).is_empty());
    }
}
