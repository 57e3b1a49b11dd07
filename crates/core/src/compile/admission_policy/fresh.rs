//! The patch for a fresh workload, which has no addition of the template yet. Nearly all workloads are fresh, and their
//! additions and marker are constants. Their computation would cost the server as much as the patch itself.

use super::Inexpressible;
use super::access::{Access, Fresh, Shape};
use super::additions::{Additions, Fitting};
use super::cel::{all, any, list, not, quoted};
use super::conflict;
use super::environment::Variables;
use crate::api::v1alpha1::{Place, Template};
use crate::inject::tables::{CONTAINERS, LISTS, List, MAPS};

/// The longest patch that may appear a second and third time, in characters: a fifth of the limit for an expression.
const MAX_PATCH: usize = super::MAX_EXPRESSION / 5;

/// The condition that a workload is fresh for `template` and gets it, and the operations in that case; none if they
/// would be no simpler.
///
/// # Errors
/// If a part of the template cannot be expressed in CEL.
pub(super) fn operations(
    template: &[Fitting<'_>; 1],
    access: &Access,
    variables: &mut Variables,
) -> Result<Option<(String, String)>, Inexpressible> {
    let [Fitting { delivery, own, .. }] = template;
    let spec = &delivery.template.spec;
    let adds_entries = MAPS.iter().any(|map| map.of(spec).next().is_some());
    // A container before the user's needs an annotation with the name of the user's container.
    let goes_before = delivery.template.position.containers == Place::Before && !spec.containers.is_empty();
    if access.shape == Shape::Free || own.is_some() || adds_entries || goes_before {
        return Ok(None);
    }
    let with = |has_annotations| Access { fresh: Some(Fresh { has_annotations }), ..access.clone() };
    let mut terms = vec![delivery.matches.clone()];
    terms.extend(delivery.kept.as_ref().map(|kept| format!("{kept} == \"\"")));
    terms.push(access.has_no_marker());
    terms.extend(has_nothing_of(spec, access));
    terms.push(conflict::fits(delivery, &with(true), None, variables)?);
    let mut patch = |has_annotations| Additions::of(template, &with(has_annotations), variables).operations(variables);
    let (without, beside) = (patch(false)?, patch(true)?);
    let operations = format!("({} ? {without} : {beside})", access.lacks_entries("annotations"));
    Ok((operations.len() <= MAX_PATCH).then(|| (all(&terms), operations)))
}

/// The conditions that the pod has containers and metadata, and none of the names in `spec`.
fn has_nothing_of(spec: &Template, access: &Access) -> Vec<String> {
    let mut terms = vec![format!("{}.{CONTAINERS} != null", access.spec)];
    terms.extend(access.lacks_metadata().map(|lacks| not(&lacks)));
    for list in &LISTS {
        let names: Vec<&str> =
            list.scope().flat_map(|other| (other.items)(spec).iter().map(|item| other.key_of(item))).collect();
        terms.extend((!names.is_empty()).then(|| has_none_of(&names, list, access)));
    }
    terms
}

fn has_none_of(names: &[&str], of: &List, access: &Access) -> String {
    let is_other = |item: &str| {
        let name = access.name_in(item, of.field);
        match names {
            [one] => format!("{name} != {}", quoted(one)),
            _ => not(&format!("{name} in {}", list(names.iter().copied()))),
        }
    };
    let items = format!("{}.{}", access.spec, of.field);
    // Iteration over a list costs the server a third of all conditions, and most lists have one item.
    let first = is_other(&format!("{items}[0]"));
    let none = format!("({items}.size() == 1 ? {first} : {items}.all(c, {}))", is_other("c"));
    if of.field == CONTAINERS { none } else { any(&[access.lacks(of.field), none]) }
}
