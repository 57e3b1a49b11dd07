//! The policies whose place another one takes: `Decision::leave_out_replaced` in another language.

use super::access::Access;
use super::cel::{all, any, not};
use super::delivery::Delivery;
use super::environment::{Environment as _, Variables};
use super::{conflict, own};
use crate::Unavailable;
use crate::policy::{Policy, Site};
use crate::workload::Kind;

/// The conditions about one policy.
pub(super) struct Conditions<'a> {
    pub(super) policy: &'a Policy,
    /// It matches the workload.
    pub(super) matches: String,
    /// It matches, and its content is there already. None if it takes nobody's place.
    pub(super) is_there: Option<String>,
    /// It may inject if it matches; none if it always may.
    pub(super) restores: Option<String>,
}

/// Whether `policy` takes the place of one of `policies`.
pub(super) fn takes_a_place(policy: &Policy, policies: &[&Policy]) -> bool {
    policies.iter().any(|other| policy.replaces(&other.name))
}

/// Adds to the conditions `of` all policies that match that no policy takes their place.
///
/// # Errors
/// If a template that takes a place cannot be compared in CEL.
pub(super) fn leave_out_replaced(
    of: &mut [Conditions<'_>],
    kind: &Kind,
    site: &Site,
    access: &Access,
    variables: &mut Variables,
) -> Result<(), Unavailable> {
    if of.iter().all(|one| one.is_there.is_none()) {
        return Ok(());
    }
    let mut deliveries = Vec::new();
    for one in &*of {
        deliveries.extend(Delivery::all(one.policy, &one.matches, kind, site, access, variables));
    }
    let mut fitting = Vec::new();
    for one in &*of {
        let mut ways = Vec::new();
        let is_asked = |form: &&Delivery<'_>| one.is_there.is_some() && std::ptr::eq(form.policy, one.policy);
        for form in deliveries.iter().filter(is_asked) {
            let own = own::of(form, &deliveries, access, variables);
            let fits = conflict::fits(form, access, own.as_ref(), variables).map_err(|what| what.of(one.policy))?;
            ways.push(all(&[form.matches.clone(), fits]));
        }
        let terms: Vec<String> = [any(&ways)].into_iter().chain(one.restores.clone()).collect();
        fitting.push(one.is_there.as_ref().map(|_| variables.define("takes", &all(&terms))));
    }
    let left: Vec<String> = of
        .iter()
        .zip(&fitting)
        .map(|(one, fits)| {
            let mut terms = vec![one.matches.clone()];
            let of_others = of.iter().zip(&fitting).filter(|(other, _)| other.policy.replaces(&one.policy.name));
            let taken = of_others.flat_map(|(other, fits)| other.is_there.iter().chain(fits).cloned());
            let taken: Vec<String> = taken.collect();
            terms.extend((!taken.is_empty()).then(|| not(&any(&taken))));
            // In conflict, it fails: nothing else is to fail because of it.
            let replaced = of.iter().filter(|other| one.policy.replaces(&other.policy.name));
            let replaced: Vec<String> = replaced.map(|other| other.matches.clone()).collect();
            terms.extend(fits.as_ref().map(|fits| any(&[not(&any(&replaced)), fits.clone()])));
            if terms.len() == 1 { terms.remove(0) } else { variables.define("unreplaced", &all(&terms)) }
        })
        .collect();
    for (one, matches) in of.iter_mut().zip(left) {
        one.matches = matches;
    }
    Ok(())
}
