//! Variables that a template adds to a container with `envFrom`: of both, the kubelet takes the variable.

use super::case::{Case, Told};
use super::facts::{Fact, containers, source};
use crate::api::code::Code;
use crate::inject::Conflict;
use crate::inject::value::{objects, text};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// A variable of the template beside a source of the workload that may have it.
struct Meeting<'a> {
    container: &'a str,
    variable: &'a Map<String, Value>,
    /// The key that would give the same variable.
    key: &'a str,
    fact: Fact,
    /// The name of the source.
    source: &'a str,
}

/// Each added variable with each source of the same container, the last source first: it is the one in effect.
fn meetings<'a>(case: &'a Case<'_>) -> Vec<Meeting<'a>> {
    let mut found = Vec::new();
    for (list, item) in containers(case.after) {
        let name = text(item, "name");
        let is_it = |(other, own): &(&str, &Map<String, Value>)| *other == list && text(own, "name") == name;
        let Some((_, own)) = containers(case.bare).find(is_it) else { continue };
        let has = |variable: &str| objects(own, &["env"]).any(|item| text(item, "name") == variable);
        let ours = |variable: &str| case.template.spec.env.iter().any(|item| text(item, "name") == variable);
        let added = objects(item, &["env"]).filter(|item| ours(text(item, "name")) && !has(text(item, "name")));
        let sources: Vec<_> = objects(own, &["envFrom"]).collect();
        for variable in added {
            found.extend(sources.iter().rev().filter_map(|item| {
                let key = text(variable, "name").strip_prefix(text(item, "prefix"))?;
                let (fact, source) = source(item)?;
                (!key.is_empty()).then_some(Meeting { container: name, variable, key, fact, source })
            }));
        }
    }
    found
}

/// The value of `key` in a ConfigMap or Secret, as bytes; none if it has no such key that becomes a variable.
fn value(fact: Fact, object: &Value, key: &str) -> Option<Vec<u8>> {
    if let Some(plain) = object.get("stringData").and_then(|data| data.get(key)?.as_str()) {
        return Some(plain.as_bytes().to_vec());
    }
    let data = object.get("data")?.get(key)?.as_str().unwrap_or_default();
    let decoded = || STANDARD.decode(data).unwrap_or_default();
    Some(if fact == Fact::Secret { decoded() } else { data.as_bytes().to_vec() })
}

/// A variable of the template that hides a known key with another value.
pub(super) fn hidden(case: &Case<'_>) -> Option<(String, Conflict)> {
    meetings(case).into_iter().find_map(|Meeting { container, variable, key, fact, source }| {
        let theirs = value(fact, case.facts.get(fact, case.namespace(), source)?, key)?;
        let is_literal = variable.get("valueFrom").is_none();
        if is_literal && theirs == text(variable, "value").as_bytes() {
            return None;
        }
        let message = format!(
            "environment variable `{}` of container `{container}` comes from {} `{source}` (`envFrom`) with another value",
            text(variable, "name"),
            fact.kind().kind
        );
        Some(("env".to_owned(), Conflict { code: Code::NameConflict, message }))
    })
}

/// Variables beside sources that are unknown here.
pub(super) fn may_be_hidden(case: &Case<'_>) -> Vec<Told> {
    let mut lines: Vec<(&str, Vec<&str>, Vec<String>)> = Vec::new();
    let all = meetings(case);
    let is_merged = |name: &str| case.template.part(name).is_some();
    // Of those that are merged another note speaks.
    let all = all.iter().filter(|meeting| !is_merged(text(meeting.variable, "name")));
    for Meeting { container, variable, fact, source, .. } in all {
        if case.facts.get(*fact, case.namespace(), source).is_some_and(|object| super::keys::keys(object).is_some()) {
            continue;
        }
        let at = lines.iter().position(|(name, ..)| name == container).unwrap_or_else(|| {
            lines.push((container, Vec::new(), Vec::new()));
            lines.len() - 1
        });
        let (variable, source) = (text(variable, "name"), format!("{} `{source}`", fact.kind().kind));
        if !lines[at].1.contains(&variable) {
            lines[at].1.push(variable);
        }
        if !lines[at].2.contains(&source) {
            lines[at].2.push(source);
        }
    }
    let tell = |(container, variables, sources): (&str, Vec<&str>, Vec<String>)| {
        let (variables, sources) = (variables.join("`, `"), sources.join(", "));
        Told::new(
            Code::VariableMayBeHidden,
            "env",
            format!(
                "in container `{container}` variable `{variables}` wins over a key of that name in {sources} (`envFrom`)"
            ),
        )
    };
    lines.into_iter().map(tell).collect()
}
