//! The construction of CEL text. All results compile on the server, for any input strings.

use crate::api::v1alpha1::{Operator, Requirement};
use std::collections::BTreeMap;

/// Words that need brackets for field selection (by the grammar of CEL).
const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "null",
    "package",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// `text` as a literal.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A list of text literals.
pub(super) fn list<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let texts: Vec<String> = texts.into_iter().map(quoted).collect();
    format!("[{}]", texts.join(", "))
}

/// The field of a map `of`, as an optional value.
pub(super) fn optional(of: &str, field: &str) -> String {
    if is_name(field) { format!("{of}.?{field}") } else { format!("{of}[?{}]", quoted(field)) }
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !RESERVED.contains(&text)
}

/// The conjunction of `terms`.
pub(super) fn all(terms: &[String]) -> String {
    joined(terms, " && ", "true", "false")
}

/// The disjunction of `terms`.
pub(super) fn any(terms: &[String]) -> String {
    joined(terms, " || ", "false", "true")
}

/// Joins `terms`. `nothing` is the neutral term and the result for no terms. A `decisive` term is the whole result.
fn joined(terms: &[String], operator: &str, nothing: &str, decisive: &str) -> String {
    if terms.iter().any(|term| term == decisive) {
        return decisive.to_owned();
    }
    let terms: Vec<&str> = terms.iter().map(String::as_str).filter(|term| *term != nothing).collect();
    match terms[..] {
        [] => nothing.to_owned(),
        [term] => term.to_owned(),
        _ => format!("({})", terms.join(operator)),
    }
}

/// The negation of `term`.
pub(super) fn not(term: &str) -> String {
    format!("!({term})")
}

/// The condition that the string `subject` matches one of `globs`: `*` matches any characters, `?` matches one.
pub(super) fn matches_one(subject: &str, globs: &[String]) -> String {
    let (patterns, names): (Vec<&String>, Vec<&String>) = globs.iter().partition(|glob| glob.contains(['*', '?']));
    let mut terms = Vec::new();
    if let [name] = names[..] {
        terms.push(format!("{subject} == {}", quoted(name)));
    } else if !names.is_empty() {
        terms.push(format!("{subject} in {}", list(names.into_iter().map(String::as_str))));
    }
    terms.extend(patterns.into_iter().map(|glob| matches(subject, glob)));
    any(&terms)
}

fn matches(subject: &str, glob: &str) -> String {
    let plain = |text: &str| !text.contains(['*', '?']);
    match (glob.strip_suffix('*'), glob.strip_prefix('*')) {
        _ if glob == "*" => "true".to_owned(),
        (Some(beginning), _) if plain(beginning) => format!("{subject}.startsWith({})", quoted(beginning)),
        (_, Some(end)) if plain(end) => format!("{subject}.endsWith({})", quoted(end)),
        _ => format!("{subject}.matches({})", quoted(&pattern(glob))),
    }
}

/// `glob` as a regular expression of RE2.
fn pattern(glob: &str) -> String {
    let part = |c: char| match c {
        '*' => ".*".to_owned(),
        '?' => ".".to_owned(),
        c => regex::escape(c.encode_utf8(&mut [0; 4])),
    };
    format!("^(?s:{})$", glob.chars().map(part).collect::<String>())
}

/// The conditions for all requirements of a selector on the entries of `map`.
pub(super) fn requirements(map: &str, wanted: &BTreeMap<String, String>, requirements: &[Requirement]) -> Vec<String> {
    let equals = |key: &str, value: &str| format!("{map}[?{}] == optional.of({})", quoted(key), quoted(value));
    let mut terms: Vec<String> = wanted.iter().map(|(key, value)| equals(key, value)).collect();
    terms.extend(requirements.iter().map(|Requirement { key, operator, values }| {
        let values = list(values.iter().flatten().map(String::as_str));
        let is_there = format!("{} in {map}", quoted(key));
        let is_listed = format!("({is_there} && {map}[{}] in {values})", quoted(key));
        match operator {
            Operator::Exists => is_there,
            Operator::DoesNotExist => not(&is_there),
            Operator::In => is_listed,
            Operator::NotIn => not(&is_listed),
        }
    }));
    terms
}

/// A list literal whose items have conditions. The condition `true` always includes an item, and `false` never.
pub(super) fn list_of(items: &[(String, String)]) -> String {
    let item = |(condition, item): &(String, String)| match condition.as_str() {
        "true" => Some(item.clone()),
        "false" => None,
        condition => Some(format!("?({condition} ? optional.of({item}) : optional.none())")),
    };
    format!("[{}]", items.iter().filter_map(item).collect::<Vec<_>>().join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use admission_cel::{Budget, Dialect, Expression, Gives, Variables};
    use serde_json::{Value, json};
    use wildmatch::WildMatch;

    /// Evaluates `source` in our own CEL, which agrees with the server's.
    fn holds(source: &str, object: &Value) -> bool {
        let expression = Expression::compile(source, Gives::Bool, Dialect::NEWEST)
            .unwrap_or_else(|error| panic!("{error}: {source}"));
        let variables = Variables { object, namespace: None, template: None };
        expression.test(&variables, &mut Budget::match_conditions()).unwrap_or_else(|error| panic!("{error}: {source}"))
    }

    #[test]
    fn every_text_survives_as_a_literal() {
        let text: String =
            (0..0x100_u32).filter_map(char::from_u32).chain("$(VAR) %s 𝄞 \u{2028} \u{feff} \\u0041".chars()).collect();
        assert!(holds(&format!("object == {}", quoted(&text)), &json!(text)));
        for c in text.chars() {
            assert!(holds(&format!("object == {}", quoted(&c.to_string())), &json!(c.to_string())), "{c:?}");
        }
    }

    #[test]
    fn fields_of_any_name_can_be_selected() {
        for field in ["a", "_a9", "in", "namespace", "type", "", "a.b", "é", "9", "\"", "true", "if"] {
            let source = format!(
                "{}.orValue(0) == 7 && !{}.hasValue()",
                optional("object", field),
                optional("{\"x\": 1}", field)
            );
            assert!(holds(&source, &json!({field: 7})), "{source}");
        }
    }

    #[test]
    fn globs_mean_what_they_mean_elsewhere() {
        let subjects = ["", "a", "ab", "shop", "shop-a", "my-shop", "a.b", "axb", "shop\n-a", "é", "éa"];
        for glob in [
            "*", "**", "?", "??", "a", "a*", "*a", "shop-*", "*-shop", "s*p", "*h*p*", "a.b", "a?b", "shop*a", "?*",
            "*?", "?a", "[a]", "é?",
        ] {
            for subject in subjects {
                let source = matches_one("object", &[glob.to_owned()]);
                assert_eq!(
                    holds(&source, &json!(subject)),
                    WildMatch::new(glob).matches(subject),
                    "{glob} {subject:?} {source}"
                );
            }
        }
        let globs = ["x".to_owned(), "y".to_owned(), "a*".to_owned()];
        for (subject, expected) in [("x", true), ("y", true), ("ab", true), ("z", false)] {
            assert_eq!(holds(&matches_one("object", &globs), &json!(subject)), expected);
        }
        assert!(!holds(&matches_one("object", &[]), &json!("x")));
    }
}
