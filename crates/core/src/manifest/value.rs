//! Parses the text of one document into the value that kubectl would send.
//!
//! kubectl reads YAML 1.1: `yes`, `no`, `on` and `off` are booleans, `0644` and `0o644` are octal, and keys become
//! text. Numbers without a fraction are integers in any notation. The last of several duplicate keys counts, and is
//! reported.
//!
//! `tests/reader.rs` compares both readers, and lists the differences that are left.

use super::yaml::{DEPTH, MERGE, REPLAYED, key_text, options};
use super::{Fault, Location, lines, odd, repair};
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Error, MessageFormatter, UserMessageFormatter};
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

/// The room of any document in bytes. A larger document gets a multiple of its own size.
const ROOM: usize = 8 * 1024 * 1024;
/// The room that each value takes besides its text.
const VALUE: usize = 8;

/// The reason why a document cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The line within its text, from 1; 0 if unknown.
    pub(super) line: usize,
    pub(super) message: String,
    /// False if the syntax is right but the content is not.
    pub(super) is_syntax: bool,
}

/// A document that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Document {
    pub(super) value: Value,
    /// The duplicate keys, each with its line in the document.
    pub(super) twice: Vec<(usize, String)>,
}

/// The text of a file with the content `bytes`.
pub(super) fn text(name: &str, bytes: Vec<u8>) -> Result<String, Fault> {
    let fault =
        |line, message: &str| Fault { place: Location { file: name.to_owned(), line }, message: message.to_owned() };
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

/// The YAML document `text`; null if it is empty.
pub(super) fn yaml(text: &str) -> Result<Document, Refusal> {
    plain_yaml(text).or_else(|refusal| repair::repaired(text).map_or(Err(refusal), |text| plain_yaml(&text)))
}

/// As [`yaml`], for text that the parser takes as it is.
fn plain_yaml(text: &str) -> Result<Document, Refusal> {
    // kubectl merges in the order of the keys, and the parser does not. Only the parser can tell a quoted `<<` from
    // one that merges.
    let (policy, merges) = match ["'<<'", "\"<<\""].iter().any(|quoted| text.contains(quoted)) {
        true => (MergeKeyPolicy::Merge, Merges::Text),
        false => (MergeKeyPolicy::AsOrdinary, Merges::Done),
    };
    let read = |duplicate_keys, bounds: &Bounds| {
        serde_saphyr::with_deserializer_from_str_with_options(text, options(duplicate_keys, policy), |reader| {
            Reader(bounds).deserialize(reader)
        })
    };
    let strict = Bounds::new(text, Twice::Refused, merges);
    let error = match read(DuplicateKeyPolicy::Error, &strict) {
        Ok(value) => return Ok(Document { value, twice: Vec::new() }),
        Err(error) => error,
    };
    let refusal = explain(&error, text);
    let Some(key) = strict.twice.take().or_else(|| key_twice(&error)) else { return Err(refusal) };
    let value = read(DuplicateKeyPolicy::LastWins, &Bounds::new(text, Twice::LastCounts, merges))
        .map_err(|error| explain(&error, text))?;
    Ok(Document { value, twice: twice(text, (refusal.line, key)) })
}

/// The JSON document at the beginning of `text`, and its length in bytes.
pub(super) fn json(text: &str) -> Result<(Document, usize), Refusal> {
    let bounds = Bounds::new(text, Twice::LastCounts, Merges::Text);
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Reader(&bounds).deserialize(&mut reader).map_err(|error| {
        let refusal = Refusal {
            line: error.line(),
            message: match without_place(&error.to_string()) {
                message if message.contains("recursion limit") => too_deep(),
                message => format!("cannot be read as JSON: {message}"),
            },
            is_syntax: !error.is_data(),
        };
        in_other_words(refusal, text)
    })?;
    let length = reader.into_iter::<IgnoredAny>().byte_offset();
    let twice = bounds.twice.take().map(|key| twice(&text[..length], (1, key))).unwrap_or_default();
    Ok((Document { value, twice }, length))
}

/// All duplicate keys of the document `text`; `first` is one of them.
fn twice(text: &str, first: (usize, String)) -> Vec<(usize, String)> {
    let found = lines::twice(text);
    if found.is_empty() { vec![first] } else { found }
}

/// The bounds of a document.
struct Bounds {
    /// The room that is left.
    left: Cell<usize>,
    keys: Twice,
    merges: Merges,
    /// The last duplicate key.
    twice: Cell<Option<String>>,
}

/// The treatment of duplicate keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Twice {
    Refused,
    LastCounts,
}

/// The meaning of the key `<<`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Merges {
    /// Its value adds keys to the map, as in YAML.
    Done,
    /// It is a key, as in JSON, or the parser has merged already.
    Text,
}

impl Bounds {
    fn new(text: &str, keys: Twice, merges: Merges) -> Self {
        Self { left: Cell::new(ROOM.max(text.len().saturating_mul(2 * VALUE))), keys, merges, twice: Cell::default() }
    }
}

/// The duplicate key, if that is the error.
fn key_twice(error: &Error) -> Option<String> {
    match innermost(error) {
        Error::DuplicateMappingKey { key, .. } => Some(key.clone().unwrap_or_else(|| "?".to_owned())),
        _ => None,
    }
}

/// The cause inside an alias error or an excerpt.
fn innermost(error: &Error) -> &Error {
    let mut error = error.without_snippet();
    while let Error::AliasError { error: inner, .. } = error {
        error = inner;
    }
    error
}

/// The message of serde_json without its position, which is reported separately.
fn without_place(message: &str) -> String {
    message.rsplit_once(" at line ").map_or(message, |(message, _)| message).to_owned()
}

fn explain(error: &Error, text: &str) -> Refusal {
    let error = innermost(error);
    let line = error.location().map_or(0, |location| usize::try_from(location.line()).unwrap_or(0));
    let message = match error {
        Error::AliasReplayLimitExceeded { .. } => too_many_aliases(),
        Error::Budget { breach: serde_saphyr::budget::BudgetBreach::Depth { .. }, .. } => too_deep(),
        Error::Budget { breach, .. } => match breach {
            serde_saphyr::budget::BudgetBreach::Aliases { .. }
            | serde_saphyr::budget::BudgetBreach::AliasAnchorRatio { .. } => too_many_aliases(),
            _ => format!("too large: {}", UserMessageFormatter.format_message(error)),
        },
        Error::RecursiveReferencesRequireWeakTypes { .. } => "an alias refers to what contains it".to_owned(),
        Error::Message { msg, .. } => msg.clone(),
        _ if error.to_string().contains("recursion limit") => too_deep(),
        _ => expected(&UserMessageFormatter.format_message(error)),
    };
    in_other_words(Refusal { line, message, is_syntax: true }, text)
}

/// `refusal` with a better message, if the cause is unknown to parsers: tabs, no-break spaces, templates.
fn in_other_words(refusal: Refusal, text: &str) -> Refusal {
    let because = |line, message: String| Refusal { line, message, is_syntax: true };
    let line = refusal.line;
    if let Some(line) = near(text, line, |line| indentation(line).contains('\t')) {
        return because(line, "the line is indented by a tab; expected spaces".to_owned());
    }
    if let Some(line) = near(text, line, |line| line.contains(odd::is_space)) {
        let first = text.lines().take(line).position(odd::is_in_structure).map_or(line, |index| index + 1);
        return because(first, odd::message("the line has"));
    }
    let before = text.lines().take(line.max(1)).collect::<Vec<_>>();
    match before.iter().rposition(|line| is_template(line)).map(|index| index + 1) {
        None => refusal,
        Some(found) if found + 1 >= line => because(found, TEMPLATE.to_owned()),
        Some(found) => Refusal {
            message: format!("{}; or, from line {found} of the document on, {TEMPLATE}", refusal.message),
            ..refusal
        },
    }
}

/// The message for text with an unrendered template.
pub(super) const TEMPLATE: &str =
    "the template is not rendered (`{{` or `{%`): render it first, e.g. with `helm template CHART`";

/// Whether `line` has template syntax in place of a value, a key or an item.
fn is_template(line: &str) -> bool {
    let begins = |text: &str| ["{{", "{%"].iter().any(|sign| text.starts_with(sign));
    let mut rest = line.trim_start();
    while let Some(item) = rest.strip_prefix("- ") {
        rest = item.trim_start();
    }
    begins(rest) || rest.split_once(':').is_some_and(|(_, value)| begins(value.trim_start()))
}

/// The parser's `message`, with the input that it would have accepted.
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

/// The first line for which `is_it` is true: `line`, or the next, because some faults are detected one line early.
fn near(text: &str, line: usize, is_it: impl Fn(&str) -> bool) -> Option<usize> {
    let mut candidates = text.lines().enumerate().skip(line.saturating_sub(1)).take(2);
    candidates.find(|(_, line)| is_it(line)).map(|(index, _)| index + 1)
}

fn indentation(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

fn too_many_aliases() -> String {
    format!("aliases expand to too much; expected at most {REPLAYED} values: write them out")
}

fn too_deep() -> String {
    format!("lists and maps lie too deep in one another; expected at most {DEPTH} levels")
}

/// Reads a value within the room that is left.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a Bounds);

impl Reader<'_> {
    fn take<E: serde::de::Error>(self, bytes: usize) -> Result<(), E> {
        let left = self.0.left.get().checked_sub(bytes + VALUE).ok_or_else(|| E::custom(too_many_aliases()))?;
        self.0.left.set(left);
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
        let mut merged = HashSet::new();
        while let Some(key) = fields.next_key_seed(Key { reader: self, map: &map, merged: &merged })? {
            let value = fields.next_value_seed(self)?;
            if key == MERGE && self.0.merges == Merges::Done {
                merge(&mut map, &mut merged, value).map_err(A::Error::custom)?;
                continue;
            }
            merged.remove(&key);
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

/// Adds the keys of `value`, a map or a list of maps, to `map`, and to the keys that are `merged`.
///
/// As in kubectl, they replace what stands above them, and the first map of a list wins.
fn merge(map: &mut Map<String, Value>, merged: &mut HashSet<String>, value: Value) -> Result<(), &'static str> {
    let maps = match value {
        Value::Array(items) => items,
        value => vec![value],
    };
    for item in maps.into_iter().rev() {
        let Value::Object(fields) = item else { return Err("`<<` has no map; expected a map or a list of maps") };
        merged.extend(fields.keys().cloned());
        map.extend(fields);
    }
    Ok(())
}

/// Reads a key of `map`.
struct Key<'a> {
    reader: Reader<'a>,
    map: &'a Map<String, Value>,
    /// The keys of `map` that only `<<` has added.
    merged: &'a HashSet<String>,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = String;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<String, D::Error> {
        let key = key_text(self.reader.deserialize(reader)?).map_err(D::Error::custom)?;
        if self.map.contains_key(&key) && !self.merged.contains(&key) {
            let bounds = self.reader.0;
            bounds.twice.set(Some(key.clone()));
            if bounds.keys == Twice::Refused {
                return Err(D::Error::custom(format!("the key `{key}` is there twice; expected it once")));
            }
        }
        Ok(key)
    }
}

/// `value` as kubectl sends it: an integer if it has no fraction.
fn number(value: f64) -> Option<Value> {
    /// Up to this value, every integer has an exact float.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= EXACT {
        return format!("{value:.0}").parse::<i64>().ok().map(Value::from);
    }
    Number::from_f64(value).map(Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scalars_are_read_as_kubectl_reads_them() {
        // The right column is the result of sigs.k8s.io/yaml 1.4.0.
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
            let value = yaml(&format!("a: {text}\n")).map(|read| read.value["a"].clone());
            assert_eq!(value, Ok(expected), "{text}");
        }
    }

    #[test]
    fn keys_become_text_and_merges_are_done() {
        let keys = yaml("1: a\nyes: b\n1.5: c\n0x10: d\n").unwrap();
        assert_eq!(keys.value, json!({"1": "a", "true": "b", "1.5": "c", "16": "d"}));
        let merged = yaml("base: &b {x: 1, y: 2}\nuse: {<<: *b, y: 3}\nagain: *b\n").unwrap().value;
        assert_eq!(merged["use"], json!({"x": 1, "true": 3}), "`y` is a boolean, as a key, too");
        assert_eq!(merged["again"], json!({"x": 1, "true": 2}));
    }

    #[test]
    fn faults_name_the_line_and_what_to_write() {
        for (text, line, words) in [
            ("a:\n\tb: 1\n", 2, "by a tab; expected spaces"),
            ("a:\n  b: 1\n\tc: 1\n", 3, "by a tab; expected spaces"),
            ("a: [1, 2\nb: 3\n", 2, "`]`"),
            ("a: \"x\n", 0, "closing quote"),
            ("a: 1\n b: 2\n", 2, "`key: value`"),
            ("a:\n- b\nc\n", 3, ""),
            ("a: *x\n", 1, "expected an anchor"),
            ("a: .inf\n", 1, ""),
            ("? {a: 1}\n: 2\n", 1, "is used as a key"),
            ("a: {{ .Values.x }}\n", 1, "not rendered"),
            ("a: 1\n{{- if .x }}\nb: 2\n{{- end }}\n", 2, "not rendered"),
            ("{{ .x }}\n", 1, "not rendered"),
            ("a:\n- {{ .x }}\n", 2, "not rendered"),
            ("{% if x %}\na: 1\n", 1, "not rendered"),
            ("x: |\n  {{ .a }}\n  c\n  d\n e\nb: [\n", 0, "line 2 of the document"),
            ("a:\u{a0} 1\n\u{a0} b: 1\n\u{a0} - c: 1\n", 1, "no-break space (U+00A0"),
            ("a: 1\nb\u{a0}c\n", 2, "no-break space (U+00A0"),
            ("a:\n  b: 1\n \u{a0}c: 1\n", 3, "no-break space (U+00A0"),
            ("a: &x [*x]\n", 1, ""),
            ("a: 1\n--- b\n", 2, "a line of its own"),
        ] {
            let refusal = yaml(text).expect_err(text);
            assert!(line == 0 || refusal.line == line, "{text:?}: {refusal:?}");
            assert!(refusal.message.contains(words), "{text:?}: {refusal:?}");
        }
    }

    #[test]
    fn of_a_key_that_is_there_twice_the_last_one_counts_and_each_line_is_told() {
        for (text, value, lines) in [
            ("a: 1\nb: 2\na: 3\n", json!({"a": 3, "b": 2}), &[(3, "a")][..]),
            ("1: 1\n\"1\": 3\n", json!({"1": 3}), &[(2, "1")]),
            ("1: 1\n2: 2\n1: 3\n", json!({"1": 3, "2": 2}), &[(3, "1")]),
            ("yes: 1\non: 2\n", json!({"true": 2}), &[(2, "true")]),
            ("a: {x: 1}\na: {z: 1}\n", json!({"a": {"z": 1}}), &[(2, "a")]),
            (
                "a:\n- b: 1\n  b: 2\nc: {d: 1, d: 2}\na: &x [1]\ne: *x\n",
                json!({"a": [1], "c": {"d": 2}, "e": [1]}),
                &[(4, "d"), (5, "a")],
            ),
            (
                "x: &x {a: 1, b: 2}\nz:\n  <<: *x\n  a: 3\n  a: 4\n",
                json!({"x": {"a": 1, "b": 2}, "z": {"a": 4, "b": 2}}),
                &[(5, "a")],
            ),
        ] {
            let read = yaml(text).unwrap_or_else(|refusal| panic!("{text:?}: {refusal:?}"));
            assert_eq!(read.value, value, "{text:?}");
            let told: Vec<_> = read.twice.iter().map(|(line, key)| (*line, key.as_str())).collect();
            assert_eq!(told, lines, "{text:?}");
        }
        let (read, length) = json("{\"a\": 1,\n\"a\": {\"b\": 1,\n\"b\": 2}} {").unwrap();
        assert_eq!((read.value, length), (json!({"a": {"b": 2}}), 31));
        assert_eq!(read.twice, [(2, "a".to_owned()), (3, "b".to_owned())]);
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
            assert!(refusal.message.contains("aliases expand to too much"), "{refusal:?}");
        }
    }

    #[test]
    fn depth_is_bounded_and_what_is_below_is_read() {
        // The stack size of a main thread. A test has less.
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
        let one = Document { value: json!({"a": 1}), twice: Vec::new() };
        assert_eq!(json("{\"a\": 1.0} {"), Ok((one, 10)));
        assert!(json("{a: 1}").unwrap_err().is_syntax);
    }
}
