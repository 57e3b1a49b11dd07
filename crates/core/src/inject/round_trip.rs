//! For tests: injection, and the way back in any order.

use super::{Template, plan, undo};
use crate::api::pod_security::Standard;
use crate::workload::Workload;
use proptest::prelude::*;
use proptest::sample::Index;

/// `workload` with `templates`.
pub(super) fn injected(workload: &Workload, templates: &[&Template]) -> Workload {
    let patch = plan(workload, templates, templates, Standard::NEWEST).unwrap();
    workload.with_body(workload.patched(&patch))
}

/// Checks that `full`, which is `users` with `templates`, needs nothing more, and that it is `users` again once all templates are
/// taken out: one after the other by `order`, and all at once.
pub(super) fn goes_as_it_came(
    users: &Workload,
    full: &Workload,
    templates: &[&Template],
    order: &Index,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(plan(full, templates, templates, Standard::NEWEST).unwrap().0, vec![]);
    let mut left: Vec<String> = templates.iter().map(|template| template.policy.clone()).collect();
    let mut now = full.clone();
    while !left.is_empty() {
        let next = left.remove(order.index(left.len()));
        let undone = undo(&now, Some(&next)).unwrap();
        prop_assert_eq!(undone.leftovers, vec![]);
        now = now.with_body(undone.body);
    }
    prop_assert_eq!(&now.body, &users.body);
    prop_assert_eq!(undo(full, None).unwrap().body, users.body.clone());
    Ok(())
}
