//! Repairs text that kubectl reads and our parser refuses: both then read the same value.
//!
//! The parser says where it stops, so a repair never guesses what a line is. Each repair changes only what has no
//! meaning there: the indentation within a quoted text or within brackets, a space before a comment, quotes around a
//! dash. No repair adds or removes a line.

use super::yaml;
use granit_parser::{ErrorKind, Parser, ScanError};
use std::ops::Range;

/// The most repairs of a document. Each parses the document once more.
const REPAIRS: usize = 100;
/// The most bytes that the repairs of a document parse.
const WORK: usize = 256 * 1024 * 1024;
/// The most bytes that the repairs of a document add, beside its own size.
const ROOM: usize = 1024 * 1024;

/// `text` with all repairs that the parser needs. None if it needs none, or if its first fault is of another kind.
pub(super) fn repaired(text: &str) -> Option<String> {
    let (most, mut work) = (text.len().saturating_mul(2).saturating_add(ROOM), WORK);
    let mut better: Option<String> = None;
    for _ in 0..REPAIRS {
        let now = better.as_deref().unwrap_or(text);
        let next = fault(now).and_then(|fault| repair(now, &fault, most));
        let left = work.checked_sub(now.len());
        match (next, left) {
            (Some(next), Some(left)) => (better, work) = (Some(next), left),
            _ => break,
        }
    }
    better
}

/// The first fault of `text`.
fn fault(text: &str) -> Option<ScanError> {
    Parser::new_from_str_with_options(text, yaml::scanner()).find_map(Result::err)
}

fn repair(text: &str, fault: &ScanError, most: usize) -> Option<String> {
    let at = fault.marker().byte_offset()?;
    match fault.kind() {
        ErrorKind::InvalidQuotedScalarIndent | ErrorKind::TabInIndentation => quoted(text, at, most),
        ErrorKind::TabInBlockIndentation | ErrorKind::TabInPlainScalar => tabs(text, at),
        ErrorKind::CommentNotSeparated => replaced(text, at..at, " "),
        ErrorKind::PlainScalarStartsWithDashFlowIndicator => replaced(text, at..at + 1, "'-'"),
        _ => None,
    }
}

fn replaced(text: &str, range: Range<usize>, by: &str) -> Option<String> {
    Some([text.get(..range.start)?, by, text.get(range.end..)?].concat())
}

/// `text` with the further lines of the quoted text around `at` indented as deep as its opening quote.
///
/// A reader drops the indentation of such lines.
fn quoted(text: &str, at: usize, most: usize) -> Option<String> {
    // Cut within the text, the parser says where it is opened. It takes a line break or `\` at the end for another fault.
    let cut = fault(text.get(..line_start(text, at)?)?.trim_end_matches([' ', '\t', '\r', '\n', '\\']))?;
    if *cut.kind() != ErrorKind::UnclosedQuotedScalar {
        return None;
    }
    let start = cut.marker().byte_offset()?;
    let end = start + closing(text.get(start..)?)?;
    let indent = " ".repeat(cut.marker().col() + 1);
    let lines = text.get(start..end)?.split_inclusive('\n');
    let added = indent.len().checked_mul(lines.clone().count())?;
    if text.len().checked_add(added)? > most {
        return None;
    }
    let mut better = text[..start].to_owned();
    for (index, line) in lines.enumerate() {
        let content = line.trim_start_matches([' ', '\t']);
        match content.trim_end_matches(['\r', '\n']) {
            _ if index == 0 => better.push_str(line),
            "" => better.push_str(content),
            _ => better.extend([&indent, content]),
        }
    }
    better.push_str(&text[end..]);
    Some(better)
}

/// The length of the quoted text at the beginning of `text`, without its closing quote.
fn closing(text: &str) -> Option<usize> {
    let quote = text.bytes().next()?;
    let mut bytes = text.bytes().enumerate().skip(1).peekable();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' if quote == b'"' => drop(bytes.next()),
            _ if byte == quote && quote == b'\'' && bytes.peek().is_some_and(|(_, next)| *next == quote) => {
                bytes.next();
            }
            _ if byte == quote => return Some(at),
            _ => {}
        }
    }
    None
}

/// `text` with spaces for the tabs that indent the line of `at`, or the first later line, and the lines that follow
/// it. None outside brackets, because kubectl refuses tabs there, too.
fn tabs(text: &str, at: usize) -> Option<String> {
    let cut = fault(text.get(..at)?)?;
    let is_in_brackets = matches!(
        cut.kind(),
        ErrorKind::UnclosedFlowCollection { .. }
            | ErrorKind::UnexpectedEofFlowSequence
            | ErrorKind::UnexpectedEofFlowMapping
            | ErrorKind::UnexpectedEofImplicitFlowMapping
    );
    if !is_in_brackets {
        return None;
    }
    let start = line_start(text, at)?;
    let mut better = text[..start].to_owned();
    let mut lines = text[start..].split_inclusive('\n').peekable();
    while let Some(line) = lines.next_if(|line| !indentation(line).contains('\t')) {
        better.push_str(line);
    }
    while let Some(line) = lines.next_if(|line| indentation(line).contains('\t')) {
        let indent = indentation(line);
        better.extend([&indent.replace('\t', " "), &line[indent.len()..]]);
    }
    better.extend(lines);
    Some(better)
}

fn line_start(text: &str, at: usize) -> Option<usize> {
    Some(text.get(..at)?.rfind('\n').map_or(0, |end| end + 1))
}

fn indentation(line: &str) -> &str {
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::File;
    use proptest::prelude::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_repair_changes_no_line_but_those_of_its_fault() {
        for (text, expected) in [
            ("a: 1\n", None),
            ("a: [\n", None),
            ("a:\n\tb: 1\n", None),
            ("a: 'x\ny'\nb: 'z'\n", Some("a: 'x\n    y'\nb: 'z'\n")),
            ("a: 'it''s\n\n# y'\nb: |\n  'z\n", Some("a: 'it''s\n\n    # y'\nb: |\n  'z\n")),
            ("a: \"x\\\"\\\ny\"\n", None),
            ("a: \"x\\\"\ny\"\n", Some("a: \"x\\\"\n    y\"\n")),
            ("a: {\n\tb: 1,\n \tc: 2\n}\nd: |\n  \tx\n", Some("a: {\n b: 1,\n  c: 2\n}\nd: |\n  \tx\n")),
            ("a: 'x'#c\nb: [-]\n", Some("a: 'x' #c\nb: ['-']\n")),
        ] {
            assert_eq!(repaired(text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_field_below_a_repaired_text_keeps_its_line() {
        let text = "a: 'x\n\ny'\nb:\n- c: 1\n  c: 2\n";
        let file = File::parse("t", text.as_bytes().to_vec()).unwrap();
        let manifest = file.manifests().next().unwrap();
        assert_eq!(manifest.value, serde_json::json!({"a": "x\ny", "b": [{"c": 2}]}));
        assert_eq!(manifest.twice[0].place.line, 6);
        assert_eq!(crate::manifest::Lines::of(manifest).place(&[], "b[0].c").line, 6);
        let faults = File::parse("t", b"a: 'x\ny'\nb: [\n".to_vec()).unwrap_err();
        assert!(faults[0].place.line >= 3, "{}", faults[0]);
    }

    #[test]
    fn repairs_are_bounded() {
        let begun = Instant::now();
        for text in [
            "a: 'x\ny'\n".replace('a', "b") + &(0..5_000).map(|n| format!("a{n}: 'x\ny'\n")).collect::<String>(),
            format!("{}: 'x\n{}'\n", "k".repeat(1_000), "y\n".repeat(500_000)),
            "a: 'x\ny' ".to_owned() + &"'x\n".repeat(100_000),
            "a: [\n".to_owned() + &"\tx,\n y,\n".repeat(20_000),
        ] {
            let _ = repaired(&text).inspect(|better| assert!(better.len() <= 2 * text.len() + ROOM));
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_text_panics_and_no_line_is_lost(
            pieces in proptest::collection::vec(
                proptest::sample::select(vec![
                    "a: ", "b", "'", "\"", "\n", "\n", "\t", " ", "\\", "[", "]", "{", "}", ", ", "-", "- ", "#", "|", "\r\n", "é", "''", "&x ",
                ]),
                0..24,
            )
        ) {
            let text = pieces.concat();
            if let Some(better) = repaired(&text) {
                prop_assert_eq!(better.matches('\n').count(), text.matches('\n').count());
            }
        }
    }
}
