//! Writes a value as text.

use super::{Format, Manifest};
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_saphyr::DoubleQuoted;

/// The layout of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// YAML or JSON.
    pub format: Format,
    /// The indentation of a level of JSON; none for JSON in one line.
    pub indent: Option<String>,
    /// Whether lines end in CR LF.
    pub is_crlf: bool,
}

impl Layout {
    /// YAML.
    pub const YAML: Layout = Layout { format: Format::Yaml, indent: None, is_crlf: false };

    /// The layout of the text of `manifest`.
    pub fn of(manifest: &Manifest) -> Self {
        let mut lines = manifest.text.split_inclusive('\n');
        let is_crlf = lines.next().is_some_and(|line| line.ends_with("\r\n"));
        let indent = lines.next().map(|line| line[..line.len() - line.trim_start().len()].to_owned());
        // A line that is empty, or a document that begins in the middle of a line, has no information.
        let indent =
            indent.map(|indent| if indent.trim_matches([' ', '\t']).is_empty() { indent } else { String::new() });
        Self { format: manifest.format, indent, is_crlf }
    }

    /// JSON with `indent` spaces per level.
    pub fn json(indent: usize) -> Self {
        Self { format: Format::Json, indent: Some(" ".repeat(indent)), is_crlf: false }
    }
}

/// The text of `value`. YAML ends with a line break, JSON does not.
///
/// # Guarantees
/// The text parses to `value` again, here and in kubectl.
pub fn emit(value: &Value, layout: &Layout) -> String {
    let text = match layout.format {
        Format::Yaml => yaml(value),
        Format::Json => json(value, layout.indent.as_deref()),
    };
    if layout.is_crlf { text.replace('\n', "\r\n") } else { text }
}

fn yaml(value: &Value) -> String {
    let options = serde_saphyr::ser_options! {
        // Folded text would hide line ends, and markers and commands are easier to read on one line.
        folded_wrap_chars: usize::MAX,
    };
    serde_saphyr::to_string_with_options(&Yaml(value), options).expect("a JSON value can be written as YAML")
}

/// A value whose texts are written so that every reader accepts them.
struct Yaml<'a>(&'a Value);

impl Serialize for Yaml<'_> {
    fn serialize<S: Serializer>(&self, writer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            // kubectl's reader takes a tab at the beginning of a block for indentation, and rejects it.
            Value::String(text) if text.trim_start_matches('\n').starts_with('\t') => {
                DoubleQuoted(text).serialize(writer)
            }
            Value::Array(items) => writer.collect_seq(items.iter().map(Yaml)),
            Value::Object(fields) => writer.collect_map(fields.iter().map(|(key, value)| (key, Yaml(value)))),
            other => other.serialize(writer),
        }
    }
}

fn json(value: &Value, indent: Option<&str>) -> String {
    let Some(indent) = indent else { return value.to_string() };
    let mut bytes = Vec::new();
    let layout = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
    let mut writer = serde_json::Serializer::with_formatter(&mut bytes, layout);
    value.serialize(&mut writer).expect("a JSON value can be written as JSON");
    String::from_utf8(bytes).expect("JSON is UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{File, value};
    use proptest::prelude::*;
    use serde_json::json;

    fn layout_of(text: &str) -> Layout {
        Layout::of(File::parse("t", text.as_bytes().to_vec()).unwrap().manifests().next().unwrap())
    }

    #[test]
    fn a_changed_document_keeps_its_layout() {
        let value = json!({"a": [1, "yes"]});
        for (text, expected) in [
            ("b: 1\n", "a:\n- 1\n- \"yes\"\n"),
            ("b: 1\r\n", "a:\r\n- 1\r\n- \"yes\"\r\n"),
            ("{\"b\":1}", "{\"a\":[1,\"yes\"]}"),
            ("{\n  \"b\": 1\n}\n", "{\n  \"a\": [\n    1,\n    \"yes\"\n  ]\n}"),
            ("{\n\t\"b\": 1\n}\n", "{\n\t\"a\": [\n\t\t1,\n\t\t\"yes\"\n\t]\n}"),
        ] {
            assert_eq!(emit(&value, &layout_of(text)).replace('\'', "\""), expected, "{text:?}");
        }
    }

    #[test]
    fn long_lines_stay_lines_and_several_lines_stand_in_a_block() {
        let long = "word ".repeat(60) + "end";
        assert_eq!(emit(&json!({"a": long}), &Layout::YAML), format!("a: {long}\n"));
        assert_eq!(emit(&json!({"a": "x\ny\n"}), &Layout::YAML), "a: |\n  x\n  y\n");
    }

    #[test]
    fn a_tab_never_begins_a_block() {
        // Otherwise kubectl reports: `found a tab character where an indentation space is expected`.
        let text = emit(&json!({"a": ["\tx\ny\n", "\n\t\n", "x\n\ty\n"]}), &Layout::YAML);
        assert_eq!(text, "a:\n- \"\\tx\\ny\\n\"\n- \"\\n\\t\\n\"\n- |\n  x\n  \ty\n");
    }

    #[test]
    fn no_line_of_a_block_is_taken_for_a_separator() {
        let value = json!({"a": "x\n---\ny\n", "---": {"b": "---"}, "c": ["---\n", "--- x\n---"]});
        let file = File::parse("t", emit(&value, &Layout::YAML).into_bytes()).unwrap();
        assert_eq!(file.manifests().map(|manifest| &manifest.value).collect::<Vec<_>>(), [&value]);
    }

    /// Texts that a YAML parser may take for another value.
    const WORDS: &[&str] = &[
        "",
        " ",
        "yes",
        "No",
        "y",
        "on",
        "true",
        "null",
        "~",
        "0644",
        "0o7",
        "08",
        "1e3",
        "1_0",
        ".5",
        "-",
        "- a",
        "a: b",
        "a #b",
        "#a",
        "@a",
        "%a",
        "!a",
        "&a",
        "*a",
        "[",
        "{",
        "]",
        "'",
        "\"",
        "a\nb",
        "a\n\n",
        "\n",
        "\na",
        " a\nb",
        "a \nb",
        "a\tb",
        "\ta",
        "a\r\nb",
        "\r",
        "---",
        "...",
        "--- a\nb",
        "<<",
        "=",
        "?",
        "|",
        ">",
        "a:",
        ":",
        "0x1F",
        "2001-01-01",
        "1:20",
        "\u{feff}",
        "\u{85}",
        "\u{2028}",
        "é",
        "😀",
        "\u{1b}",
        "\u{7f}",
        "a\n ---\n",
        "#\n",
        "a\n#b\n",
        "\n\n a\n",
        "x\n  y\n z",
        "1.0",
        "+1",
        "inf",
        ".inf",
        "0b1",
        "-0",
        "0",
        "00",
        "1.",
        "+.5",
        "e1",
        "1e",
        "12e03",
        "NaN",
        ".nan",
        "  ",
        "a\n\t\n",
        "\\",
        "\\n",
        "a\u{a0}b",
    ];

    fn values() -> impl Strategy<Value = Value> {
        let words = prop_oneof![
            proptest::sample::select(WORDS).prop_map(str::to_owned),
            proptest::string::string_regex("[ -~\n\t]{0,24}").unwrap(),
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            words.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 5, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(words.clone(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read(value in values()) {
            let value = json!({"a": value});
            let text = emit(&value, &Layout::YAML);
            let read = |text: &str| value::yaml(text).map(|read| read.value);
            prop_assert_eq!(read(&text), Ok(value.clone()), "{}", text);
            let windows = text.replace('\n', "\r\n");
            prop_assert_eq!(read(&windows), Ok(value.clone()), "with CR LF: {}", text);
            let file = File::parse("t", text.into_bytes()).unwrap();
            prop_assert_eq!(file.manifests().count(), 1);
            let text = emit(&value, &Layout::json(2));
            let read = value::json(&text).map(|(read, length)| (read.value, length));
            prop_assert_eq!(read, Ok((value, text.len())));
        }
    }
}
