//! References between environment variables.

use crate::api::v1alpha1::RawObject;
use crate::expansion;
use std::collections::BTreeSet;

/// The names that `value` refers to. `$$(NAME)` is no reference.
pub(crate) fn names(value: &str) -> Vec<&str> {
    expansion::references(value).into_iter().map(|at| expansion::name(value, at)).collect()
}

/// The names that the value of `variable` refers to.
pub(crate) fn of(variable: &RawObject) -> Vec<&str> {
    variable.get("value").and_then(|value| value.as_str()).map(names).unwrap_or_default()
}

/// The variables that refer to a variable outside `variables`, directly or through others: they work only behind the
/// workload's own variables.
pub(super) fn out(variables: &[RawObject]) -> BTreeSet<String> {
    let name =
        |variable: &RawObject| variable.get("name").and_then(|name| name.as_str()).unwrap_or_default().to_owned();
    let own: BTreeSet<String> = variables.iter().map(name).collect();
    let mut out = BTreeSet::new();
    for variable in variables {
        if of(variable).into_iter().any(|wanted| !own.contains(wanted) || out.contains(wanted)) {
            out.insert(name(variable));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_reference_is_what_the_kubelet_expands() {
        for (value, expected) in [
            ("$(A)-$(B)", &["A", "B"][..]),
            ("x$(A", &[]),
            ("$A ${A}", &[]),
            ("$$(A)", &[]),
            ("$$$(A)", &["A"]),
            ("$()$(a b)", &["", "a b"]),
            ("$", &[]),
            ("$$", &[]),
            ("é$(A)é", &["A"]),
        ] {
            assert_eq!(names(value), expected, "{value}");
        }
    }

    #[test]
    fn what_refers_to_what_the_template_lacks_goes_out_and_takes_along_what_refers_to_it() {
        let variables = [("A", "1"), ("B", "$(A)"), ("C", "$(USER)"), ("D", "$(C)$(A)"), ("E", "$(F)"), ("F", "")];
        let variables =
            variables.map(|(name, value)| json!({ "name": name, "value": value }).as_object().cloned().unwrap());
        assert_eq!(out(&variables).into_iter().collect::<Vec<_>>(), ["C", "D"]);
    }
}
