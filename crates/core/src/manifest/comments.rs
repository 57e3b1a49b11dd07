//! Comments of workloads that templates of charts have: control lines, and others.

use super::{File, FilePiece, Format, Location, Manifest, Object, has_pods, value};
use serde_json::Value;
use std::collections::HashSet;

/// The actions of templates that decide which lines of a chart there are.
const CONTROL: [&str; 7] = ["if", "else", "end", "range", "with", "define", "block"];
/// Stands behind a `#`. If the parser then shows it in a value, the `#` begins no comment.
const MARK: &str = "scpol-line-";

/// The comments of `file` in lines with `word`, each with its line, from 1, and without its `#`. A `#` within a value, as in a block
/// scalar or a quoted text, begins none, and JSON has none.
pub fn comments_with<'a>(file: &'a File, word: &str) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    let mut before = 1;
    for part in &file.parts {
        let (text, format) = match part {
            FilePiece::Verbatim(text) => (text, None),
            FilePiece::Manifest(manifest) | FilePiece::SetAside(manifest) => (&manifest.text, Some(manifest.format)),
        };
        let of_line = |(number, line): (usize, &'a str)| beginnings(line).map(move |at| (number, at, line));
        let lines = text.lines().enumerate().filter(|(_, line)| line.contains(word));
        let hashes: Vec<_> = lines.flat_map(of_line).collect();
        if !hashes.is_empty() && format.is_none_or(|format| format == Format::Yaml) {
            let of_values = if format.is_some() { in_values(text, &hashes) } else { HashSet::new() };
            let mut comments: Vec<_> =
                (0..).zip(hashes).filter(|(id, _)| !of_values.contains(id)).map(|(_, hash)| hash).collect();
            comments.dedup_by_key(|(number, ..)| *number);
            found.extend(comments.into_iter().map(|(number, at, line)| (before + number, &line[at + 1..])));
        }
        before += text.matches('\n').count();
    }
    found
}

/// Where a `#` of `line` may begin a comment: at the beginning of the line, or behind a space.
fn beginnings(line: &str) -> impl Iterator<Item = usize> {
    line.match_indices('#').map(|(at, _)| at).filter(|at| *at == 0 || line[..*at].ends_with([' ', '\t']))
}

/// The indexes of those of `hashes`, each with its line, from 0, its place there, and the line, that are in a value of the YAML `text`.
/// All, if the parser cannot tell.
fn in_values(text: &str, hashes: &[(usize, usize, &str)]) -> HashSet<usize> {
    let mut marked = String::with_capacity(text.len());
    let mut ids = (0..hashes.len()).peekable();
    for (number, line) in text.lines().enumerate() {
        let mut copied = 0;
        while let Some(id) = ids.next_if(|id| hashes[*id].0 == number) {
            let at = hashes[id].1 + 1;
            marked.push_str(&format!("{} {MARK}{id}; ", &line[copied..at]));
            copied = at;
        }
        marked.extend([&line[copied..], "\n"]);
    }
    let mut found = HashSet::new();
    match value::yaml(&marked) {
        Ok(read) => marks(&read.value, &mut found),
        Err(_) => found.extend(0..hashes.len()),
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
    let lines = text.lines().enumerate().filter(|(_, line)| is_candidate(line));
    let hashes: Vec<_> = lines.map(|(number, line)| (number, line.len() - line.trim_start().len(), line)).collect();
    if hashes.is_empty() {
        return Vec::new();
    }
    let of_values = in_values(text, &hashes);
    (0..).zip(hashes).filter(|(id, _)| !of_values.contains(id)).map(|(_, (number, ..))| number + 1).collect()
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
