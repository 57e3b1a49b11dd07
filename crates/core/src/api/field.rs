//! Paths of fields, as users read them: `spec.template.containers[1].name`. A path alone does not show the end of a
//! key, because keys may have dots.

/// The prefixes of `path` that may be a key: up to its end, or up to any `.` or `[` but a first one; the longest first.
pub(crate) fn beginnings(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.char_indices().rev().filter(|(at, char)| *at > 0 && ['.', '['].contains(char)).map(|(at, _)| at);
    let all = (!path.is_empty()).then_some(path.len()).into_iter().chain(ends);
    all.map(|end| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_begins_with_everything_that_may_be_a_key() {
        let of = |path| beginnings(path).collect::<Vec<_>>();
        assert_eq!(of("a.b[1].c/é"), ["a.b[1].c/é", "a.b[1]", "a.b", "a"]);
        assert_eq!(of("[1].a"), ["[1].a", "[1]"]);
        assert_eq!(of(""), [""; 0]);
    }
}
