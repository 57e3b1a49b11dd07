//! One document's text into the value that kubectl would send for it.
//!
//! kubectl reads YAML 1.1: `yes`, `no`, `on` and `off` are booleans, `0644` and `0o644` are octal, and keys become text. Numbers
//! without a fraction are integers however they are written. Unlike kubectl, a key that is there twice is refused.
//!
//! Compared with sigs.k8s.io/yaml over random scalars, what is left of differences is this: `oN` and other odd capitals are booleans
//! here, a number that ends in `_` or has `__` in it is text, and floats beyond a double's range are refused.

use super::{Fault, Place};
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Error, MessageFormatter, UserMessageFormatter};
use std::cell::Cell;
use std::fmt;

/// How deep lists and maps may lie in one another; an API server takes more, and nobody writes more.
const DEPTH: usize = 100;
/// How many values the aliases of a document may stand for.
const REPLAYED: usize = 100_000;
/// What a document of any size may take, in bytes; a larger one may take a multiple of its own size.
const ROOM: usize = 8 * 1024 * 1024;
/// What a value is counted as, besides its text.
const VALUE: usize = 8;

/// Why a document cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The line within its text, from 1; 0 if it is not known.
    pub(super) line: usize,
    pub(super) message: String,
    /// False where the form is right, and what it says is not: a key twice.
    pub(super) is_syntax: bool,
}

/// The text in `bytes`, which are those of a file.
pub(super) fn text(name: &str, bytes: Vec<u8>) -> Result<String, Fault> {
    let fault =
        |line, message: &str| Fault { place: Place { file: name.to_owned(), line }, message: message.to_owned() };
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(fault(0, "UTF-16 text; expected UTF-8: save it as UTF-8"));
    }
    let line = |at: usize, bytes: &[u8]| bytes[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        return Err(fault(line(at, &bytes), "a binary file (it has a NUL byte); expected YAML or JSON"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        fault(line(at, error.as_bytes()), "not UTF-8 text; expected YAML or JSON in UTF-8")
    })
}

/// How YAML is read, and within which bounds.
pub(super) fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH,
            max_events: 64_000_000,
            max_nodes: 32_000_000,
            max_total_scalar_bytes: 128 * 1024 * 1024,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: REPLAYED },
        emit_comments: false,
        legacy_octal_numbers: true,
        with_snippet: false,
    }
}

/// The document of YAML that `text` is; null if it is empty.
pub(super) fn yaml(text: &str) -> Result<Value, Refusal> {
    let left = room(text);
    serde_saphyr::with_deserializer_from_str_with_options(text, options(), |reader| Reader(&left).deserialize(reader))
        .map_err(|error| explain(&error, text))
}

/// The document of JSON that `text` begins with, and its length in bytes.
pub(super) fn json(text: &str) -> Result<(Value, usize), Refusal> {
    let left = room(text);
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Reader(&left).deserialize(&mut reader).map_err(|error| Refusal {
        line: error.line(),
        message: match without_place(&error.to_string()) {
            message if message.contains("recursion limit") => too_deep(),
            message => format!("cannot be read as JSON: {message}"),
        },
        is_syntax: !error.is_data(),
    })?;
    Ok((value, reader.into_iter::<IgnoredAny>().byte_offset()))
}

fn room(text: &str) -> Cell<usize> {
    Cell::new(ROOM.max(text.len().saturating_mul(2 * VALUE)))
}

/// The message of serde_json, whose place is told otherwise.
fn without_place(message: &str) -> String {
    message.rsplit_once(" at line ").map_or(message, |(message, _)| message).to_owned()
}

fn explain(error: &Error, text: &str) -> Refusal {
    let mut error = error.without_snippet();
    while let Error::AliasError { error: inner, .. } = error {
        error = inner;
    }
    let line = error.location().map_or(0, |location| usize::try_from(location.line()).unwrap_or(0));
    let message = match error {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key `{key}` is there twice; expected it once")
        }
        Error::AliasReplayLimitExceeded { .. } => too_many_aliases(),
        Error::Budget { breach: serde_saphyr::budget::BudgetBreach::Depth { .. }, .. } => too_deep(),
        Error::Budget { breach, .. } => match breach {
            serde_saphyr::budget::BudgetBreach::Aliases { .. }
            | serde_saphyr::budget::BudgetBreach::AliasAnchorRatio { .. } => too_many_aliases(),
            _ => format!("too large: {}", UserMessageFormatter.format_message(error)),
        },
        Error::RecursiveReferencesRequireWeakTypes { .. } => "an alias stands within what it stands for".to_owned(),
        Error::Message { msg, .. } => msg.clone(),
        _ if error.to_string().contains("recursion limit") => too_deep(),
        _ => expected(&UserMessageFormatter.format_message(error)),
    };
    match tab(text, line) {
        Some(line) => {
            Refusal { line, message: "the line is indented by a tab; expected spaces".to_owned(), is_syntax: true }
        }
        None => Refusal { line, message, is_syntax: true },
    }
}

/// The parser's `message`, and what it would have taken.
fn expected(message: &str) -> String {
    const HINTS: [(&str, &str); 6] = [
        (
            "mapping values are not allowed",
            "one `key: value` on a line, indented as those beside it, and quotes around a text with `: `",
        ),
        ("':' indicator", "`]` or `}` before the next key, or quotes around a text with `:`"),
        ("quoted scalar", "the closing quote, or the text's next line indented deeper than its key"),
        ("unknown value", "an anchor (`&name`) above the alias (`*name`)"),
        ("single YAML document", "`---` on a line of its own between documents"),
        ("simple key", "a `:` behind the key, and all keys of an object indented alike"),
    ];
    let hint = HINTS.iter().find(|(words, _)| message.contains(words)).map(|(_, hint)| format!("; expected {hint}"));
    format!("cannot be read as YAML: {message}{}", hint.unwrap_or_default())
}

/// The line that is indented by a tab: the one at fault, or the next, where the fault is noticed before.
fn tab(text: &str, line: usize) -> Option<usize> {
    let mut candidates = text.lines().enumerate().skip(line.saturating_sub(1)).take(2);
    candidates.find(|(_, line)| indentation(line).contains('\t')).map(|(index, _)| index + 1)
}

fn indentation(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

fn too_many_aliases() -> String {
    format!("aliases stand for too much; expected at most {REPLAYED} values: write them out")
}

fn too_deep() -> String {
    format!("lists and maps lie too deep in one another; expected at most {DEPTH} levels")
}

/// Reads a value, with so much room left.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a Cell<usize>);

impl Reader<'_> {
    fn take<E: serde::de::Error>(self, bytes: usize) -> Result<(), E> {
        let left = self.0.get().checked_sub(bytes + VALUE).ok_or_else(|| E::custom(too_many_aliases()))?;
        self.0.set(left);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        self.take(0).map(|()| value.into())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        self.take(0).map(|()| value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        self.take(0).map(|()| value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        self.take(0)?;
        number(value).ok_or_else(|| E::custom("infinity and NaN cannot be sent to a server; expected a number"))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.take(value.len()).map(|()| value.into())
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<Value, E> {
        self.take(value.len()).map(|()| value.into())
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        self.take(0).map(|()| Value::Null)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Value, E> {
        self.visit_unit()
    }

    fn visit_some<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        self.deserialize(reader)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.take(0)?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        self.take(0)?;
        let mut map = Map::new();
        while let Some(key) = fields.next_key_seed(Key { reader: self, map: &map })? {
            let value = fields.next_value_seed(self)?;
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

/// Reads a key, next to those in `map`.
struct Key<'a> {
    reader: Reader<'a>,
    map: &'a Map<String, Value>,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = String;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<String, D::Error> {
        let key = key_text(self.reader.deserialize(reader)?).map_err(D::Error::custom)?;
        if self.map.contains_key(&key) {
            return Err(D::Error::custom(format!("the key `{key}` is there twice; expected it once")));
        }
        Ok(key)
    }
}

/// `value` as a server gets it from kubectl: without a fraction, it is an integer.
fn number(value: f64) -> Option<Value> {
    /// Up to here, every integer is a float of its own.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= EXACT {
        return format!("{value:.0}").parse::<i64>().ok().map(Value::from);
    }
    Number::from_f64(value).map(Value::Number)
}

/// A key as JSON has it.
pub(super) fn key_text(key: Value) -> Result<String, &'static str> {
    match key {
        Value::String(key) => Ok(key),
        Value::Bool(_) | Value::Number(_) => Ok(key.to_string()),
        Value::Null => Err("a key is empty or null; expected text"),
        Value::Array(_) | Value::Object(_) => Err(
            "a list or map stands as a key; expected text (`{{ ... }}` is what a template engine replaces: render it first)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scalars_are_read_as_kubectl_reads_them() {
        // The right column is what sigs.k8s.io/yaml 1.4.0 gives.
        for (text, expected) in [
            ("yes", json!(true)),
            ("No", json!(false)),
            ("on", json!(true)),
            ("OFF", json!(false)),
            ("y", json!(true)),
            ("n", json!(false)),
            ("'yes'", json!("yes")),
            ("0644", json!(420)),
            ("-0644", json!(-420)),
            ("0o644", json!(420)),
            ("'0644'", json!("0644")),
            ("0x1F", json!(31)),
            ("0b11", json!(3)),
            ("1_000", json!(1000)),
            ("08", json!(8)),
            ("00", json!(0)),
            ("1.0", json!(1)),
            ("1.5", json!(1.5)),
            ("1e3", json!(1000)),
            ("12e03", json!(12000)),
            ("+7", json!(7)),
            (".5", json!(0.5)),
            ("1.", json!(1)),
            ("-08", json!(-8)),
            ("0_7", json!(7)),
            ("0O17", json!(15)),
            ("-0", json!(0)),
            ("1e30", json!(1e30)),
            ("1:20", json!("1:20")),
            ("2001-01-01", json!("2001-01-01")),
            ("~", json!(null)),
            ("Null", json!(null)),
            ("", json!(null)),
            ("18446744073709551615", json!(18446744073709551615_u64)),
            ("100m", json!("100m")),
            ("1Gi", json!("1Gi")),
            ("!!str 1", json!("1")),
            ("inf", json!("inf")),
            ("0x", json!("0x")),
        ] {
            let value = yaml(&format!("a: {text}\n")).map(|value| value["a"].clone());
            assert_eq!(value, Ok(expected), "{text}");
        }
    }

    #[test]
    fn keys_become_text_and_merges_are_done() {
        assert_eq!(yaml("1: a\nyes: b\n1.5: c\n0x10: d\n"), Ok(json!({"1": "a", "true": "b", "1.5": "c", "16": "d"})));
        let merged = yaml("base: &b {x: 1, y: 2}\nuse: {<<: *b, y: 3}\nagain: *b\n").unwrap();
        assert_eq!(merged["use"], json!({"x": 1, "true": 3}), "`y` is a boolean, as a key, too");
        assert_eq!(merged["again"], json!({"x": 1, "true": 2}));
    }

    #[test]
    fn faults_name_the_line_and_what_to_write() {
        for (text, line, words) in [
            ("a: 1\nb: 2\na: 3\n", 3, "the key `a` is there twice"),
            ("1: 1\n\"1\": 3\n", 2, "the key `1` is there twice"),
            ("a:\n\tb: 1\n", 2, "by a tab; expected spaces"),
            ("a:\n  b: 1\n\tc: 1\n", 3, "by a tab; expected spaces"),
            ("a: [1, 2\nb: 3\n", 2, "`]`"),
            ("a: \"x\n", 0, "closing quote"),
            ("a: 1\n b: 2\n", 2, "`key: value`"),
            ("a:\n- b\nc\n", 3, ""),
            ("a: *x\n", 1, "expected an anchor"),
            ("a: .inf\n", 1, ""),
            ("? {a: 1}\n: 2\n", 1, "stands as a key"),
            ("a: {{ .Values.x }}\n", 1, "template engine"),
            ("a: &x [*x]\n", 1, ""),
            ("a: 1\n--- b\n", 2, "a line of its own"),
        ] {
            let refusal = yaml(text).expect_err(text);
            assert!(line == 0 || refusal.line == line, "{text:?}: {refusal:?}");
            assert!(refusal.message.contains(words), "{text:?}: {refusal:?}");
        }
    }

    #[test]
    fn bombs_are_bounded() {
        let mut laughs = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
        for level in 1..12 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            laughs.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        let long = format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(1_000_000), vec!["*a"; 99].join(", "));
        for text in [&laughs, &long] {
            let refusal = yaml(text).unwrap_err();
            assert!(refusal.message.contains("aliases stand for too much"), "{refusal:?}");
        }
    }

    #[test]
    fn depth_is_bounded_and_what_is_below_is_read() {
        // As much as the main thread of a process has; a test has less.
        std::thread::Builder::new().stack_size(8 << 20).spawn(depth_is_bounded).unwrap().join().unwrap();
    }

    fn depth_is_bounded() {
        let nested = |depth: usize| format!("a: {}{}", "[".repeat(depth), "]".repeat(depth));
        let block = |depth: usize| (0..depth).map(|level| format!("{}a:\n", " ".repeat(level))).collect::<String>();
        assert!(yaml(&nested(95)).is_ok());
        assert!(yaml(&block(95)).is_ok());
        for text in [nested(200), nested(100_000), block(200), block(3_000)] {
            let refusal = yaml(&text).unwrap_err();
            assert!(!refusal.message.is_empty());
        }
        assert!(json(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn text_is_text() {
        for (bytes, line, words) in [
            (&b"a: 1\nb\0"[..], 2, "binary"),
            (&b"a: 1\n\xff\xff"[..], 2, "UTF-8"),
            (&b"\xff\xfea\0"[..], 0, "UTF-16"),
            (&b"\x1f\x8b\x08\0"[..], 1, "binary"),
        ] {
            let fault = text("f", bytes.to_vec()).unwrap_err();
            assert_eq!(fault.place.line, line);
            assert!(fault.message.contains(words), "{fault}");
        }
    }

    #[test]
    fn json_is_read_to_its_end_and_no_further() {
        assert_eq!(json("{\"a\": 1.0} {"), Ok((json!({"a": 1}), 10)));
        let refusal = json("{\"a\": 1,\n\"a\": 2}").unwrap_err();
        assert_eq!((refusal.line, refusal.is_syntax), (2, false));
        assert!(json("{a: 1}").unwrap_err().is_syntax);
    }
}
