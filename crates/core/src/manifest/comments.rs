//! Comments of workloads that templates of charts have: control lines, and others.

use super::{Format, Location, Manifest, Object, has_pods, value};
use serde_json::Value;
use std::collections::HashSet;

/// The actions of templates that decide which lines of a chart there are.
const CONTROL: [&str; 7] = ["if", "else", "end", "range", "with", "define", "block"];
/// What stands in place of a line that begins with `#`, to see whether the parser takes it for a comment.
const MARK: &str = "scpol-line-";

/// The line of `manifest`, from 1, whose comment is a control line of a chart, such as `# {{- if .Values.on }}`, if
/// `object` is a workload: only the rendered manifest is complete, and to write the document anew would lose the line.
pub(super) fn control_line(manifest: &Manifest, object: &Object<'_>) -> Option<usize> {
    if manifest.format != Format::Yaml || !manifest.text.contains("{{") || !has_pods(object) {
        return None;
    }
    comments(&manifest.text, is_control).first().copied()
}

/// The first comment of a workload in `manifest` that has a template but is no control line.
pub fn templated_comment(manifest: &Manifest) -> Option<Location> {
    let is_workload = manifest.objects().iter().any(has_pods);
    if manifest.format != Format::Yaml || !manifest.text.contains("{{") || !is_workload {
        return None;
    }
    let line = *comments(&manifest.text, |line| line.contains("{{") && !is_control(line)).first()?;
    Some(Location { line: manifest.place.line + line - 1, ..manifest.place.clone() })
}

/// Whether the comment `line` is a control line of a chart.
fn is_control(line: &str) -> bool {
    let action = line.trim_start_matches(['#', ' ', '\t']).strip_prefix("{{");
    let action = action.map(|action| action.trim_start_matches('-').trim_start());
    let word = action.and_then(|action| action.split(|other: char| !other.is_ascii_alphabetic()).next());
    word.is_some_and(|word| CONTROL.contains(&word))
}

/// The lines of `text`, from 1, that are wholly comments and that `is_wanted`. A line that begins with `#` within a
/// value, such as a line of a block scalar, is none: the parser shows it in the value.
fn comments(text: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<usize> {
    let is_candidate = |line: &str| line.trim_start().starts_with('#') && is_wanted(line.trim());
    let candidates: Vec<usize> =
        (1..).zip(text.lines()).filter(|(_, line)| is_candidate(line)).map(|(number, _)| number).collect();
    if candidates.is_empty() {
        return candidates;
    }
    let mut marked = String::with_capacity(text.len());
    for (number, line) in (1..).zip(text.lines()) {
        match line.split_once('#').filter(|_| candidates.binary_search(&number).is_ok()) {
            Some((indent, _)) => marked.push_str(&format!("{indent}# {MARK}{number};\n")),
            None => marked.extend([line, "\n"]),
        }
    }
    // Without a line that ends a quoted text, the rest is no YAML.
    let Ok(read) = value::yaml(&marked) else { return Vec::new() };
    let mut in_values = HashSet::new();
    marks(&read.value, &mut in_values);
    candidates.into_iter().filter(|number| !in_values.contains(number)).collect()
}

/// Collects the numbers of the marked lines in the texts of `value`.
fn marks(value: &Value, found: &mut HashSet<usize>) {
    match value {
        Value::String(text) => {
            let numbers = text.split(MARK).skip(1).filter_map(|rest| rest.split(';').next());
            found.extend(numbers.filter_map(|number| number.parse::<usize>().ok()));
        }
        Value::Array(items) => items.iter().for_each(|item| marks(item, found)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            marks(&Value::String(key.clone()), found);
            marks(value, found);
        }),
        _ => {}
    }
}
