//! Faults of calls, with suggestions.

use super::error::Fault;
use super::library::{self, Scope};
use super::signatures::Overload;
use super::types::Type;

/// The most overloads that a message shows.
const SHOWN: usize = 4;
/// The most edits between a misspelt name and the suggested one.
const MAX_EDITS: usize = 2;
/// The longest name that is compared.
const MAX_NAME: usize = 64;

/// The fault of an unknown function.
pub(super) fn undeclared_function(at: usize, name: &str, is_member: bool, scope: Scope) -> Fault {
    if let Some(since) = library::since(name) {
        return younger_function(at, name, since);
    }
    let known = library::functions()
        .filter(|known| library::overloads(known, scope).any(|overload| overload.is_member == is_member));
    let meant = closest(name, known).map(|meant| format!(", did you mean '{meant}'?")).unwrap_or_default();
    Fault::new(at, format!("undeclared reference to '{name}' (in container ''){meant}"))
}

/// The fault of a function that this version does not have yet.
pub(super) fn younger_function(at: usize, name: &str, since: u32) -> Fault {
    Fault::new(at, format!("undeclared reference to '{name}' (in container ''): Kubernetes has it from 1.{since} on"))
}

/// The fault of a function that does not accept the arguments.
pub(super) fn no_matching_overload(at: usize, name: &str, is_member: bool, types: &[Type], scope: Scope) -> Fault {
    let given = call(is_member, types);
    let known: Vec<String> = library::overloads(name, scope).map(|overload| shown(name, overload)).collect();
    let mut shown = known.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if known.len() > SHOWN {
        shown.push_str(", …");
    }
    Fault::new(at, format!("found no matching overload for '{name}' applied to '{given}'; it takes {shown}"))
}

/// `string.(int)` or `(string, int)`.
fn call(is_member: bool, types: &[Type]) -> String {
    let listed = |types: &[Type]| types.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
    match types.split_first().filter(|_| is_member) {
        Some((target, arguments)) => format!("{target}.({})", listed(arguments)),
        None => format!("({})", listed(types)),
    }
}

fn shown(name: &str, overload: &Overload) -> String {
    let call = call(overload.is_member, &overload.takes);
    if overload.is_member { call.replacen(".(", &format!(".{name}("), 1) } else { call }
}

/// The closest name to `name`, if it is close enough.
pub(super) fn closest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let near = known.filter_map(|known| Some((edits(name, known).filter(|edits| *edits <= MAX_EDITS)?, known)));
    near.filter(|(edits, known)| edits * 3 < known.len().max(2)).min().map(|(_, known)| known)
}

/// The number of edits between two names, ignoring case.
fn edits(left: &str, right: &str) -> Option<usize> {
    if left.len() > MAX_NAME || right.len() > MAX_NAME {
        return None;
    }
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, from) in left.bytes().enumerate() {
        let mut diagonal = index;
        let mut last = index + 1;
        let mut next = vec![last];
        for (to, above) in right.bytes().zip(row.iter().skip(1)) {
            let is_same = from.eq_ignore_ascii_case(&to);
            last = (diagonal + usize::from(!is_same)).min(above + 1).min(last + 1);
            diagonal = *above;
            next.push(last);
        }
        row = next;
    }
    row.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested_if_it_is_near() {
        for (name, meant) in [
            ("startWith", Some("startsWith")),
            ("startswith", Some("startsWith")),
            ("tostring", None),
            ("sise", Some("size")),
            ("x", None),
        ] {
            assert_eq!(closest(name, ["size", "startsWith", "string"].into_iter()), meant, "{name}");
        }
    }
}
