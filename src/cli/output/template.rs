//! The templates of `-o jsonpath=`, as kubectl has them: text with paths in braces. The paths are those of RFC 9535, which
//! has everything that kubectl's paths have. kubectl writes field names otherwise, so names are rewritten.

use jsonpath_rust::parser::model::JpQuery;
use jsonpath_rust::parser::parse_json_path;
use jsonpath_rust::query::{QueryRef, js_path_process};
use serde_json::Value;
use std::fmt::Write;

#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::cli) struct Template(Vec<TemplatePart>);

#[derive(Clone, Debug, PartialEq)]
enum TemplatePart {
    Text(String),
    Path(JpQuery),
}

impl Template {
    /// Parses a template such as `{.items[*].name}{"\n"}`.
    ///
    /// # Errors
    /// A message that says what is wrong, and how to write it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            parts.extend((!before.is_empty()).then(|| TemplatePart::Text(before.to_owned())));
            let end = closing(after, '{', '}').ok_or_else(|| format!("`{{{after}` has no closing brace"))?;
            parts.push(part(after[..end].trim())?);
            rest = &after[end + 1..];
        }
        parts.extend((!rest.is_empty()).then(|| TemplatePart::Text(rest.to_owned())));
        if !parts.iter().any(|part| matches!(part, TemplatePart::Path(_))) {
            return Err("it has no path in braces; write it as '{.items[*].name}'".to_owned());
        }
        Ok(Self(parts))
    }

    /// The text for `document`. Several values of one path are separated by a space. A path without a value is empty.
    pub(super) fn of(&self, document: &Value) -> String {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                TemplatePart::Text(literal) => text.push_str(literal),
                TemplatePart::Path(path) => {
                    let found = js_path_process(path, document).unwrap_or_default();
                    for (index, value) in found.into_iter().map(QueryRef::val).enumerate() {
                        let space = if index == 0 { "" } else { " " };
                        let _ = match value {
                            Value::String(value) => write!(text, "{space}{value}"),
                            value => write!(text, "{space}{value}"),
                        };
                    }
                }
            }
        }
        text
    }
}

/// The part for the text `inner` between two braces.
fn part(inner: &str) -> Result<TemplatePart, String> {
    match inner.chars().next() {
        Some(quote @ ('"' | '\'')) => literal(inner, quote).map(TemplatePart::Text),
        _ if inner == "end" || inner.split_whitespace().next() == Some("range") => {
            Err(format!("`{{{inner}}}` is not supported; use `-o json` and jq"))
        }
        _ => {
            let path = standard(inner)?;
            parse_json_path(&path)
                .map(TemplatePart::Path)
                .map_err(|_| format!("`{{{inner}}}` is no path; write it as in `{{.items[*].name}}`"))
        }
    }
}

/// The text of a quoted literal.
fn literal(inner: &str, quote: char) -> Result<String, String> {
    let body = inner.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    let body = body.ok_or_else(|| format!("`{{{inner}}}` has no closing quote"))?;
    let (mut text, mut rest) = (String::new(), body.chars());
    while let Some(character) = rest.next() {
        match (character, character == '\\') {
            (_, true) => match rest.next() {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some('r') => text.push('\r'),
                other => text.extend(other),
            },
            (character, false) => text.push(character),
        }
    }
    Ok(text)
}

/// The path of RFC 9535 for kubectl's `path`: `.metadata.labels.app\.kubernetes\.io/name` is
/// `$['metadata']['labels']['app.kubernetes.io/name']`.
fn standard(path: &str) -> Result<String, String> {
    let mut standard = "$".to_owned();
    let mut rest = path.strip_prefix(['$', '@']).unwrap_or(path);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let end = closing(after, '[', ']').ok_or_else(|| format!("`{{{path}}}` has no closing bracket"))?;
            let _ = write!(standard, "[{}]", &after[..end]);
            rest = &after[end + 1..];
            continue;
        }
        let Some(after) = rest.strip_prefix('.') else {
            return Err(format!("`{{{path}}}` is no path; write it as `{{.{path}}}`"));
        };
        let after = match after.strip_prefix('.') {
            Some(after) => {
                standard.push_str("..");
                after
            }
            None => after,
        };
        let (name, after) = name(after);
        match name.as_str() {
            "" => {}
            "*" => standard.push_str("[*]"),
            name => {
                let _ = write!(standard, "['{}']", name.replace('\\', "\\\\").replace('\'', "\\'"));
            }
        }
        rest = after;
    }
    Ok(standard)
}

/// The name of a field at the beginning of `path`, and what follows it. A backslash takes the meaning from a dot.
fn name(path: &str) -> (String, &str) {
    let mut name = String::new();
    let mut characters = path.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '.' | '[' => return (name, &path[index..]),
            '\\' => name.extend(characters.next().map(|(_, escaped)| escaped)),
            _ => name.push(character),
        }
    }
    (name, "")
}

/// The position of the bracket that closes the one before `text`. Brackets in quotes do not count.
fn closing(text: &str, open: char, close: char) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match (quote, character) {
            (_, '\\') => drop(characters.next()),
            (Some(open), _) if character == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(character),
            (None, _) if character == open => depth += 1,
            (None, _) if character == close && depth == 0 => return Some(index),
            (None, _) if character == close => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_template_of_kubectl_gives_what_kubectl_prints() {
        let document = json!({
            "kind": "StatusReport",
            "items": [
                { "name": "envoy", "ready": "True", "missed": 2, "labels": { "app.kubernetes.io/name": "x", "a-b": "{y}" } },
                { "name": "log", "ready": "False", "missed": 0 },
            ],
        });
        for (template, expected) in [
            ("{.kind}", "StatusReport"),
            ("{.items[*].name}", "envoy log"),
            ("{$.items[0].name}:{@.items[1].name}", "envoy:log"),
            (r#"{.items[0].missed}{"\n"}{'\t'}{.items[-1:].name}"#, "2\n\tlog"),
            (r#"{.items[?(@.ready=="False")].name}"#, "log"),
            (r"{.items[*].labels.app\.kubernetes\.io/name} {.items[0].labels.a-b}", "x {y}"),
            ("{..name}", "envoy log"),
            ("{.items[0]['name','ready']}", "envoy True"),
            // As kubectl: one field of all items, then the next.
            ("{.items[*]['name','ready']}", "envoy log True False"),
            ("{.items[1]}", r#"{"missed":0,"name":"log","ready":"False"}"#),
            ("{.nothing}", ""),
            ("missed={ .items[*].missed } {\"}\"}", "missed=2 0 }"),
        ] {
            let parsed = Template::parse(template).unwrap_or_else(|error| panic!("{template}: {error}"));
            assert_eq!(parsed.of(&document), expected, "{template}");
        }
    }

    #[test]
    fn a_template_that_is_not_supported_says_what_to_write() {
        for (template, expected) in [
            ("{range .items[*]}{.name}{end}", "use `-o json` and jq"),
            ("{.name}{end}", "use `-o json` and jq"),
            (".items", "it has no path in braces"),
            ("", "it has no path in braces"),
            ("{.items", "has no closing brace"),
            ("{.items[0}", "has no closing b"),
            ("{items}", "write it as `{.items}`"),
            ("{.items[x]}", "is no path"),
            ("{.a}{\"b}", "has no closing"),
        ] {
            let error = Template::parse(template).expect_err(template);
            assert!(error.contains(expected), "{template}: {error}");
        }
    }
}
