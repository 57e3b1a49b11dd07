//! Splits a text into documents, as kubectl does: a line that begins with `---` always ends a document, even within a
//! block scalar.

use super::{Fault, File, FilePiece, Format, Location, Manifest, Twin, aside, value};
use std::borrow::Cow;

/// The most documents of a file. Each needs more memory than its text.
const DOCUMENTS: usize = 100_000;
/// The number of faults after which parsing of a file stops.
const FAULTS: usize = 20;

/// The file `name` with this text.
///
/// # Errors
/// One fault for each unreadable document, but only the first [`FAULTS`].
pub(super) fn file(name: &str, text: &str) -> Result<File, Vec<Fault>> {
    let mut splitter =
        Splitter { name, line: 1, documents: 0, parts: Vec::new(), asides: Vec::new(), faults: Vec::new() };
    let text = match text.strip_prefix('\u{feff}') {
        Some(rest) => {
            splitter.verbatim("\u{feff}");
            rest
        }
        None => text,
    };
    let mut start = 0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if splitter.is_done() {
            break;
        }
        if is_separator(line) {
            splitter.chunk(&text[start..at]);
            splitter.verbatim(line);
            start = at + line.len();
        }
        at += line.len();
    }
    if !splitter.is_done() {
        splitter.chunk(&text[start..]);
    }
    let Splitter { parts, asides, faults, .. } = splitter;
    if faults.is_empty() { Ok(File { name: name.to_owned(), parts, asides }) } else { Err(faults) }
}

/// Whether `line` separates documents, by the rule of `YAMLReader` in k8s.io/apimachinery.
pub(super) fn is_separator(line: &str) -> bool {
    line.strip_prefix("---").map(str::trim).is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
}

struct Splitter<'a> {
    name: &'a str,
    /// The next line.
    line: usize,
    documents: usize,
    parts: Vec<FilePiece>,
    /// See [`File::asides`].
    asides: Vec<Fault>,
    faults: Vec<Fault>,
}

impl Splitter<'_> {
    /// Whether the result is already final.
    fn is_done(&self) -> bool {
        self.documents > DOCUMENTS || self.faults.len() >= FAULTS
    }

    fn verbatim(&mut self, text: &str) {
        self.line += lines(text);
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(FilePiece::Verbatim(before)) => before.push_str(text),
            _ => self.parts.push(FilePiece::Verbatim(text.to_owned())),
        }
    }

    /// Parses the text between two separators.
    fn chunk(&mut self, text: &str) {
        let head = head(text);
        self.verbatim(&text[..head]);
        let text = &text[head..];
        if text.is_empty() {
            return;
        }
        let mut in_json = None;
        if text.starts_with(['{', '[']) {
            match self.json(text) {
                Ok(()) => return,
                // The text may still be YAML, which takes comments and a last comma, too.
                Err(refusal) if refusal.is_syntax && !has_comments(text) => {
                    in_json = Some(refusal).filter(|_| looks_like_json(self.name, text))
                }
                Err(refusal) => return self.fail(text, refusal.line, refusal.message),
            }
        }
        // kubectl's reader ends every line with a line break, including the last one. The content of a block scalar
        // depends on it.
        let ended = if text.ends_with('\n') { Cow::Borrowed(text) } else { Cow::Owned(format!("{text}\n")) };
        match value::yaml(&ended) {
            Ok(read) if read.value.is_null() => self.verbatim(text),
            Ok(read) => self.manifest(text, Format::Yaml, read),
            Err(refusal) => match in_json {
                Some(refusal) => self.fail(text, refusal.line, refusal.message),
                None => self.fail(text, refusal.line.min(text.lines().count()), refusal.message),
            },
        }
    }

    /// One or more documents of JSON.
    fn json(&mut self, text: &str) -> Result<(), value::Refusal> {
        let mut found = Vec::new();
        let (mut rest, mut above) = (text, 0);
        while !rest.trim_start().is_empty() {
            let (space, document) = rest.split_at(rest.len() - rest.trim_start().len());
            above += lines(space);
            let (read, length) =
                value::json(document).map_err(|refusal| value::Refusal { line: refusal.line + above, ..refusal })?;
            found.push((space, &document[..length], read));
            if self.documents + found.len() > DOCUMENTS {
                return Err(value::Refusal { line: above + 1, message: too_many(), is_syntax: false });
            }
            above += lines(&document[..length]);
            rest = &document[length..];
        }
        for (space, document, read) in found {
            self.verbatim(space);
            self.manifest(document, Format::Json, read);
        }
        self.verbatim(rest);
        Ok(())
    }

    fn manifest(&mut self, text: &str, format: Format, read: value::Document) {
        let value::Document { value, twice } = read;
        if let Some(message) = value.as_array().and_then(|items| aside::of_list(items)) {
            return self.aside(text, 1, message.to_owned());
        }
        if !value.is_object() {
            let message = format!("{}; expected an object with `apiVersion`, `kind` and `metadata`", found(&value));
            return self.fail(text, 1, message);
        }
        self.documents += 1;
        if self.documents > DOCUMENTS {
            return self.fail(text, 1, too_many());
        }
        let place = |line: usize| Location { file: self.name.to_owned(), line: self.line + line.max(1) - 1 };
        let twice = twice.into_iter().map(|(line, key)| Twin { place: place(line), key }).collect();
        self.parts.push(FilePiece::Manifest(Manifest { place: place(1), format, text: text.to_owned(), value, twice }));
        self.line += lines(text);
    }

    /// Passes `text` through, because of its `line`.
    fn aside(&mut self, text: &str, line: usize, message: String) {
        let place = Location { file: self.name.to_owned(), line: self.line + line.max(1) - 1 };
        self.documents += 1;
        match self.documents > DOCUMENTS {
            true => self.faults.push(Fault { place, message: too_many() }),
            false => self.asides.push(Fault { place, message }),
        }
        self.verbatim(text);
    }

    /// Records that `text` is unreadable, because of its `line`.
    fn fail(&mut self, text: &str, line: usize, message: String) {
        if message == value::TEMPLATE && !self.is_done() {
            return self.aside(text, line, message);
        }
        let place = Location { file: self.name.to_owned(), line: self.line + line.max(1) - 1 };
        self.faults.push(Fault { place, message });
        self.line += lines(text);
    }
}

fn too_many() -> String {
    format!("more than {DOCUMENTS} documents in one file: give several files")
}

fn lines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// The length in bytes of the comments, directives and empty lines at the beginning of `text`.
fn head(text: &str) -> usize {
    let is_head = |line: &&str| {
        let content = line.trim();
        content.is_empty() || content.starts_with('#') || line.starts_with('%') || content == "..."
    };
    text.split_inclusive('\n').take_while(is_head).map(str::len).sum()
}

fn looks_like_json(name: &str, text: &str) -> bool {
    name.ends_with(".json") || text[1..].trim_start().starts_with(['"', '{', '['])
}

/// Whether `text` has a comment of JavaScript, which YAML would take for a part of the next key.
fn has_comments(text: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with('/'))
}

fn found(value: &serde_json::Value) -> &'static str {
    match value {
        serde_json::Value::Array(_) => "found a list",
        serde_json::Value::String(_) => "found a text",
        _ => "found a single value",
    }
}

#[cfg(test)]
mod tests {
    use crate::manifest::{File, FilePiece, Format, join};
    use proptest::prelude::*;

    fn parse(text: &str) -> File {
        let file = File::parse("test.yaml", text.as_bytes().to_vec())
            .unwrap_or_else(|faults| panic!("{text:?}: {}", faults[0]));
        assert_eq!(file.rewrite(|_| None), text, "nothing changed, and the bytes did");
        file
    }

    fn documents(text: &str) -> Vec<(usize, String)> {
        parse(text).manifests().map(|manifest| (manifest.place.line, manifest.text.clone())).collect()
    }

    fn faults(text: &str) -> Vec<String> {
        File::parse("test.yaml", text.as_bytes().to_vec()).unwrap_err().iter().map(ToString::to_string).collect()
    }

    fn expect(text: &str, expected: &[(usize, &str)]) {
        let expected: Vec<_> = expected.iter().map(|(line, text)| (*line, (*text).to_owned())).collect();
        assert_eq!(documents(text), expected, "{text:?}");
    }

    #[test]
    fn documents_are_found_with_their_lines_and_nothing_between_them_is_lost() {
        expect("", &[]);
        expect("\n\n# only a comment\n", &[]);
        expect("---\n", &[]);
        expect("--- # a\n---\n\n---", &[]);
        expect("a: 1", &[(1, "a: 1")]);
        expect("a: 1\n", &[(1, "a: 1\n")]);
        expect("---\na: 1\n---\nb: 2\n", &[(2, "a: 1\n"), (4, "b: 2\n")]);
        expect("# head\n\na: 1\n--- # x\n\n# y\nb: 2\n---", &[(3, "a: 1\n"), (7, "b: 2\n")]);
        expect("a: 1\r\n---\r\nb: 2\r\n", &[(1, "a: 1\r\n"), (3, "b: 2\r\n")]);
        expect("\u{feff}a: 1\n", &[(1, "a: 1\n")]);
        expect("%YAML 1.1\n---\na: 1\n...\n---\nb: 1\n", &[(3, "a: 1\n...\n"), (6, "b: 1\n")]);
        expect("a: 1\n---\nnull\n---\n~\n", &[(1, "a: 1\n")]);
    }

    #[test]
    fn a_separator_within_a_block_scalar_separates_and_one_that_is_indented_does_not() {
        expect("a: |\n  x\n---\nb: 1\n", &[(1, "a: |\n  x\n"), (4, "b: 1\n")]);
        expect("a: |\n  x\n  ---\n  y\nb: 1\n", &[(1, "a: |\n  x\n  ---\n  y\nb: 1\n")]);
        expect("a: |\n  -----BEGIN\n", &[(1, "a: |\n  -----BEGIN\n")]);
    }

    #[test]
    fn a_document_may_begin_on_its_separators_line() {
        let file = parse("--- {a: 1}\n");
        assert_eq!(file.manifests().next().unwrap().value, serde_json::json!({"a": 1}));
    }

    #[test]
    fn json_comes_alone_as_a_stream_or_among_yaml() {
        expect("{\"a\": 1}", &[(1, "{\"a\": 1}")]);
        expect("{\"a\": 1}\n\n {\"b\": 2}{\"c\": 3}\n", &[(1, "{\"a\": 1}"), (3, "{\"b\": 2}"), (3, "{\"c\": 3}")]);
        expect("---\na: 1\n---\n{\"b\": 2}\n", &[(2, "a: 1\n"), (4, "{\"b\": 2}")]);
        let formats: Vec<_> = parse("{a: 1}\n---\n{\"b\": 2}\n").manifests().map(|manifest| manifest.format).collect();
        assert_eq!(formats, [Format::Yaml, Format::Json]);
    }

    #[test]
    fn only_the_documents_that_change_are_written_anew() {
        let text =
            "\u{feff}# licence\nb: 1   # kept\na: 2\nb: 3\n--- # next\n# kept\nx: 1 # lost\nx: 2\n---\n{\"y\":   1}\n";
        let file = parse(text);
        let changed = file.rewrite(|manifest| {
            let mut value = manifest.value.clone();
            value.get("x")?;
            value["new"] = "yes".into();
            Some(value)
        });
        let expected =
            "\u{feff}# licence\nb: 1   # kept\na: 2\nb: 3\n--- # next\n# kept\nnew: 'yes'\nx: 2\n---\n{\"y\":   1}\n";
        assert_eq!(changed.replace('"', "'"), expected.replace('"', "'"));
    }

    #[test]
    fn every_fault_is_told_with_its_line() {
        let found = faults("a: 1\n---\n\n# x\nb: [\n---\nc: 1\nc 2\n---\n- kind: A\n---\nplain text\n");
        assert_eq!(found.len(), 4, "{found:#?}");
        for (fault, place) in found.iter().zip(["test.yaml:", "test.yaml:8", "test.yaml:10", "test.yaml:12"]) {
            assert!(fault.starts_with(place), "{fault}");
        }
        assert!(found[2].contains("found a list; expected an object"), "{}", found[2]);
        assert!(found[3].contains("found a text"), "{}", found[3]);
        let found = faults("{\"a\": 1,\n,}");
        assert!(found[0].starts_with("test.yaml:2"), "{found:?}");
        let found = faults("{\n// x\n\"a\": 1}");
        assert!(found[0].starts_with("test.yaml:2") && found[0].contains("as JSON"), "{found:?}");
    }

    #[test]
    fn lists_of_values_and_templates_pass_through() {
        for (text, place, words) in [
            ("a: 1\n---\n- op: add\n  path: /a\n  value: 1\n", 3, "a JSON patch"),
            ("[{\"op\": \"remove\", \"path\": \"/a\"}]", 1, "a JSON patch"),
            ("- a\n- b\n", 1, "a list of values"),
            ("# x\n[]\n", 2, "a list of values"),
            ("{{- if .x }}\na: 1\n{{- end }}\n", 1, "not rendered"),
            ("a: 1\n---\nb: 1\nc: {{ .x }}\n", 4, "not rendered"),
        ] {
            let file = parse(text);
            assert_eq!(file.manifests().count(), usize::from(text.starts_with("a: 1")), "{text:?}");
            let [aside] = file.asides.as_slice() else { panic!("{text:?}: {:?}", file.asides) };
            assert!(aside.place.line == place && aside.message.contains(words), "{text:?}: {aside}");
        }
        assert!(File::parse("t", "- 1\n---\n".repeat(100_001).into_bytes()).is_err_and(|faults| faults.len() == 1));
    }

    #[test]
    fn a_key_that_is_there_twice_is_told_by_its_place_in_the_file() {
        let file = parse("# x\na: 1\n---\n\nb: 1\nb: 2\n---\n{\"c\": 1}\n{\"d\": 1,\n\"d\": 2}\n");
        let twins = file.manifests().flat_map(|manifest| &manifest.twice);
        let told: Vec<_> = twins.map(|twin| format!("{} {}", twin.place, twin.key)).collect();
        assert_eq!(told, ["test.yaml:6 b", "test.yaml:10 d"]);
    }

    #[test]
    fn documents_and_faults_are_bounded() {
        for text in ["{}\n".repeat(100_001), "{}\n---\n".repeat(100_001)] {
            let found = faults(&text);
            assert_eq!(found.len(), 1);
            assert!(found[0].contains("more than 100000 documents"), "{found:?}");
        }
        assert_eq!(faults(&"- kind: A\n---\n".repeat(1000)).len(), 20);
    }

    #[test]
    fn files_put_together_stay_apart_unless_they_begin_with_a_separator() {
        for (texts, expected) in [
            (["a: 1", "b: 1\n"], "---\na: 1\n---\nb: 1\n"),
            (["a: 1\n", "--- # b\nb: 1\n"], "---\na: 1\n--- # b\nb: 1\n"),
            (["---a: 1\n", "--- {b: 1}\n"], "---\n---a: 1\n---\n--- {b: 1}\n"),
        ] {
            let joined = join(texts.map(str::to_owned));
            assert_eq!(joined, expected);
            assert_eq!(parse(&joined).manifests().count(), 2, "{joined:?}");
        }
    }

    #[test]
    fn parts_of_text_only_are_one() {
        assert!(matches!(parse("# a\n---\n# b\n---\n").parts.as_slice(), [FilePiece::Verbatim(_)]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_can_be_read_keeps_its_bytes_and_whatever_cannot_is_told(
            pieces in proptest::collection::vec(
                proptest::sample::select(vec![
                    "---", "---\n", "--- # x\n", "--- a\n", "...\n", "\n", "\r\n", "\r", "a: 1\n", "b: |\n", "  text\n", " ", "\t", "- x\n", "# c\n",
                    "{", "}", "\"", "{\"a\": 1}", "[", "]", ",", ":", "&a", "*a", "!!x", "%YAML 1.1\n", "\u{feff}", "é", "\u{2028}", "\u{85}", "\0", "c: 'x'",
                    "<<: *a\n", "? ", "null", "~\n", "kind: List\n", "items:\n",
                ]),
                0..12,
            )
        ) {
            let text = pieces.concat();
            match File::parse("t", text.clone().into_bytes()) {
                Ok(file) => prop_assert_eq!(file.rewrite(|_| None), text),
                Err(faults) => {
                    // In YAML, a lone CR also ends a line.
                    let lines = text.matches(['\n', '\r']).count() + 1;
                    prop_assert!(!faults.is_empty());
                    prop_assert!(faults.iter().all(|fault| (1..=lines).contains(&fault.place.line)), "{:?} in {:?}", faults, text);
                }
            }
        }
    }
}
