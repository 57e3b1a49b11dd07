//! What is wrong with a path that leads to no leaf.

use super::leaves::{LEAVES, Leaf};
use super::tokens::{Token, tokens, written};
use super::words::meant;
use crate::api::schema::{listed, quoted};
use std::collections::BTreeSet;

/// Why `path` is no leaf, and what to write instead.
pub(super) fn no_leaf(path: &str) -> String {
    let inside = path.strip_prefix("spec.template.").or_else(|| path.strip_prefix("template."));
    if let Some(inside) = inside {
        return format!("must begin in `spec.template`; write {}", quoted(inside));
    }
    let Some(parts) = tokens(path) else {
        return format!("must be a path, such as `containers[envoy].image`, not {}", quoted(path));
    };
    let longest = LEAVES.iter().map(|leaf| leaf.shared(&parts)).max().unwrap_or_default();
    let near = || LEAVES.iter().filter(|leaf| leaf.shared(&parts) == longest);
    let before = written(&parts[..longest]);
    let next: BTreeSet<String> = near().flat_map(|leaf| following(leaf, longest)).collect();
    let next: Vec<&str> = next.iter().map(String::as_str).collect();
    if next.is_empty() {
        let hint = "a name with a dot is in brackets, as in `limits[example.com/gpu]`";
        return format!("must be a place of the template, and nothing is below {}; {hint}", quoted(&before));
    }
    let around = if before.is_empty() { "spec.template".to_owned() } else { before };
    let names = next.iter().map(|name| name.split('[').next().unwrap_or(name));
    let wrong = parts.get(longest).copied().map(Token::text);
    match wrong.and_then(|wrong| meant(wrong, names)) {
        Some(meant) if wrong != Some(meant) => {
            format!("must be a place that a parameter can set; did you mean `{meant}` in {}?", quoted(&around))
        }
        _ => format!("must be a place that a parameter can set; those in {} are {}", quoted(&around), listed(&next)),
    }
}

/// What can follow on the first `count` parts of the path of `leaf`: a field, with the name that stands for its items.
fn following(leaf: &Leaf, count: usize) -> Vec<String> {
    let parts = leaf.tokens();
    let rest = parts.get(count..).unwrap_or_default();
    let items = rest.iter().skip(1).take_while(|part| matches!(part, Token::Item(_))).count();
    match rest.first() {
        Some(Token::Field(fields)) => {
            let with_items = |field| written(&[&[Token::Field(field)], &rest[1..=items]].concat());
            let more = (*fields == "containers").then_some("initContainers");
            fields.split('|').chain(more).map(with_items).collect()
        }
        Some(Token::Item(item)) => vec![format!("[{item}]")],
        None => Vec::new(),
    }
}
