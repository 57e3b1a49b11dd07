//! Variables that a template adds to a container with `envFrom`: of both, the kubelet takes the variable.

use super::case::{Case, Told};
use super::facts::{Fact, containers, source};
use crate::api::code::Code;
use crate::inject::Conflict;
use crate::inject::value::{objects, text};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// A variable of the template beside the sources of a container of the workload.
struct Meeting<'a> {
    container: &'a str,
    variable: &'a Map<String, Value>,
    /// The source that is in effect without the template, if it is known: the last one that has the key.
    known: Option<(Source<'a>, Vec<u8>)>,
    /// The sources after that which are unknown here.
    unknown: Vec<Source<'a>>,
}

/// A ConfigMap or a Secret.
#[derive(Clone, Copy)]
struct Source<'a> {
    fact: Fact,
    name: &'a str,
}

impl Source<'_> {
    fn shown(self) -> String {
        format!("{} `{}`", self.fact.kind().kind, self.name)
    }
}

impl<'a> Meeting<'a> {
    /// `variable` beside `sources`, in their order; none if no source may have it.
    fn of(
        case: &Case<'a>,
        container: &'a str,
        variable: &'a Map<String, Value>,
        sources: &[&'a Map<String, Value>],
    ) -> Option<Self> {
        let mut meeting = Self { container, variable, known: None, unknown: Vec::new() };
        // Of several sources with one key the last one is in effect.
        for item in sources.iter().rev() {
            let key = text(variable, "name").strip_prefix(text(item, "prefix")).filter(|key| !key.is_empty());
            let (Some(key), Some((fact, name))) = (key, source(item)) else { continue };
            let (source, object) = (Source { fact, name }, case.facts.get(fact, case.namespace(), name));
            match object.filter(|object| super::keys::keys(object).is_some()) {
                None => meeting.unknown.push(source),
                Some(object) => meeting.known = value(fact, object, key).map(|value| (source, value)),
            }
            if meeting.known.is_some() {
                break;
            }
        }
        (meeting.known.is_some() || !meeting.unknown.is_empty()).then_some(meeting)
    }

    fn name(&self) -> &'a str {
        text(self.variable, "name")
    }
}

/// Each added variable that a source of the same container may have, too.
fn meetings<'a>(case: &Case<'a>) -> Vec<Meeting<'a>> {
    let mut found = Vec::new();
    for (list, item) in containers(case.after) {
        let name = text(item, "name");
        let is_it = |(other, own): &(&str, &Map<String, Value>)| *other == list && text(own, "name") == name;
        let Some((_, own)) = containers(case.bare).find(is_it) else { continue };
        let has = |variable: &str| objects(own, &["env"]).any(|item| text(item, "name") == variable);
        let ours = |variable: &str| case.template.spec.env.iter().any(|item| text(item, "name") == variable);
        let added = objects(item, &["env"]).filter(|item| ours(text(item, "name")) && !has(text(item, "name")));
        let sources: Vec<_> = objects(own, &["envFrom"]).collect();
        found.extend(added.filter_map(|variable| Meeting::of(case, name, variable, &sources)));
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
    meetings(case).into_iter().filter(|meeting| meeting.unknown.is_empty()).find_map(|meeting| {
        let (source, theirs) = meeting.known.as_ref()?;
        let (name, container) = (meeting.name(), meeting.container);
        let is_literal = meeting.variable.get("valueFrom").is_none();
        if is_literal && *theirs == text(meeting.variable, "value").as_bytes() {
            return None;
        }
        let source = source.shown();
        let of = format!("environment variable `{name}` of container `{container}` comes from {source} (`envFrom`)");
        let conflict = match case.template.part(name) {
            Some(_) => Conflict {
                code: Code::VariableNotJoined,
                message: format!("{of}, and `merge` joins only a `value` of the container itself"),
            },
            None => Conflict { code: Code::NameConflict, message: format!("{of} with another value") },
        };
        Some(("env".to_owned(), conflict))
    })
}

/// The variables of a container that unknown sources may have, too.
struct Line<'a> {
    container: &'a str,
    /// Whether they are joined.
    is_merged: bool,
    variables: Vec<&'a str>,
    sources: Vec<String>,
}

impl Line<'_> {
    fn told(self) -> Told {
        let (container, variables, sources) = (self.container, self.variables.join("`, `"), self.sources.join(", "));
        let over = format!(
            "in container `{container}` variable `{variables}` wins over a key of that name in {sources} (`envFrom`)"
        );
        if self.is_merged {
            let message = format!("{over}: `merge` joins only a `value` of the container itself");
            return Told::new(Code::MergedOverSources, "env", message);
        }
        Told::new(Code::VariableMayBeHidden, "env", over)
    }
}

/// Variables beside sources that are unknown here: a line for each container, and for each way to add a variable.
pub(super) fn may_be_hidden(case: &Case<'_>) -> Vec<Told> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for Meeting { container, variable, unknown, .. } in meetings(case) {
        if unknown.is_empty() {
            continue;
        }
        let name = text(variable, "name");
        let is_merged = case.template.part(name).is_some();
        let is_it = |line: &Line<'_>| line.container == container && line.is_merged == is_merged;
        let at = lines.iter().position(is_it).unwrap_or_else(|| {
            lines.push(Line { container, is_merged, variables: Vec::new(), sources: Vec::new() });
            lines.len() - 1
        });
        let line = &mut lines[at];
        line.variables.push(name);
        for source in unknown.into_iter().map(Source::shown) {
            if !line.sources.contains(&source) {
                line.sources.push(source);
            }
        }
    }
    lines.into_iter().map(Line::told).collect()
}
