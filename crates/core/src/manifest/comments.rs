//! Comments of workloads that templates of charts have: control lines, and others.

use super::{File, FilePiece, Format, Location, Manifest, Object, has_pods, value};
use serde_json::Value;
use std::collections::HashSet;

/// The actions of templates that decide which lines of a chart there are.
const CONTROL: [&str; 7] = ["if", "else", "end", "range", "with", "define", "block"];
/// Replaces a line that begins with `#`. If the parser then shows it in a value, the line is no comment.
const MARK: &str = "scpol-line-";

/// The comments of `file` that have `word`, each with its line, from 1. A `#` within a value, as in a block scalar or a quoted text,
/// begins none, and JSON has none.
pub fn comments_with<'a>(file: &'a File, word: &str) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    let mut before = 0;
    for part in &file.parts {
        let (text, is_value) = match part {
            FilePiece::Verbatim(text) => (text, false),
            FilePiece::Manifest(manifest) | FilePiece::SetAside(manifest) => {
                (&manifest.text, manifest.format == Format::Yaml)
            }
        };
        let candidates: Vec<_> = text.lines().enumerate().filter(|(_, line)| line.contains(word)).collect();
        let of_values = if is_value && !candidates.is_empty() { in_values(text, &candidates) } else { HashSet::new() };
        let is_json = matches!(part, FilePiece::Manifest(manifest) if manifest.format != Format::Yaml);
        for (number, line) in candidates.into_iter().filter(|(number, _)| !is_json && !of_values.contains(number)) {
            found.extend(comment_of(line).map(|comment| (before + number + 1, comment)));
        }
        before += text.matches('\n').count();
    }
    found
}

/// The comment of `line`, without its `#`.
fn comment_of(line: &str) -> Option<&str> {
    let at = begin_of_comment(line)?;
    Some(line[at..].trim_start_matches('#'))
}

/// Where the last `#` of `line` is that may begin a comment: at the beginning of the line, or behind a space.
fn begin_of_comment(line: &str) -> Option<usize> {
    line.match_indices('#').map(|(at, _)| at).rfind(|at| *at == 0 || line[..*at].ends_with([' ', '\t']))
}

/// The numbers of those of `lines`, from 0, whose last `#` is in a value of the YAML `text`. All, if the parser cannot tell.
fn in_values(text: &str, lines: &[(usize, &str)]) -> HashSet<usize> {
    let mut marked = String::with_capacity(text.len());
    for (number, line) in text.lines().enumerate() {
        let is_one = lines.iter().any(|(candidate, _)| *candidate == number);
        match begin_of_comment(line).filter(|_| is_one) {
            Some(at) => marked.push_str(&format!("{}# {MARK}{number}; {}\n", &line[..at], &line[at + 1..])),
            None => marked.extend([line, "\n"]),
        }
    }
    let mut found = HashSet::new();
    match value::yaml(&marked) {
        Ok(read) => marks(&read.value, &mut found),
        Err(_) => found.extend(lines.iter().map(|(number, _)| *number)),
    }
    found
}

/// The line of `manifest`, from 1, whose comment is a control line of a chart, such as `# {{- if .Values.on }}`, if
/// `object` is a workload: only the rendered manifest is complete, and to write the document anew would lose the line.
pub(super) fn control_line(manifest: &Manifest, object: &Object<'_>) -> Option<usize> {
    if !has_pods(object) {
        return None;
    }
    comments(manifest, is_control).first().copied()
}

/// The first comment of a workload in `manifest` that has a template but is no control line.
pub fn templated_comment(manifest: &Manifest) -> Option<Location> {
    if !manifest.objects().iter().any(has_pods) {
        return None;
    }
    let line = *comments(manifest, |line| line.contains("{{") && !is_control(line)).first()?;
    Some(Location { line: manifest.place.line + line - 1, ..manifest.place.clone() })
}

/// Whether the comment `line` is a control line of a chart.
fn is_control(line: &str) -> bool {
    let action = line.trim_start_matches(['#', ' ', '\t']).strip_prefix("{{");
    let action = action.map(|action| action.trim_start_matches('-').trim_start());
    let word = action.and_then(|action| action.split(|other: char| !other.is_ascii_alphabetic()).next());
    word.is_some_and(|word| CONTROL.contains(&word))
}

/// The lines of `manifest`, from 1, that are comments with a template and that `is_wanted`. A line that begins with `#` within a
/// value, such as a line of a block scalar, is none: the parser shows it in the value.
fn comments(manifest: &Manifest, is_wanted: impl Fn(&str) -> bool) -> Vec<usize> {
    let text = &manifest.text;
    if manifest.format != Format::Yaml || !text.contains("{{") {
        return Vec::new();
    }
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
