//! The registered objects of one resource.

use super::access::Access;
use super::additions::{Additions, Fitting};
use super::cel::{all, any, not};
use super::delivery::{Delivery, is_expressible};
use super::environment::{AtHand, Environment as _, OBJECT, OLD, UPDATE, Variables};
use super::needs::{self, Included};
use super::objects::{constraints, registered};
use super::replaces::{self, Conditions};
use super::rows::{self, Rows, Term, act_on_updates, every, is_wanted};
use super::validating::validating;
use super::{API, Cel, Inexpressible, conflict, expressions, fresh, loss, own, values};
use crate::Unavailable;
use crate::capabilities::{Capabilities, registration};
use crate::inject::pod::Network;
use crate::naming::{self, PROBE};
use crate::policy::{Policy, Site};
use crate::workload::Kind;
use serde_json::{Value, json};
use std::sync::Arc;

/// The most policies with conditions for one resource: the number of bits of an integer that JSON keeps exactly.
const MAX_NOTES: usize = 52;

/// All objects that the API server needs for `policies`. These are all enforced policies that target `kind`, by
/// priority. The result is always the whole set.
///
/// # Errors
/// The part that cannot be expressed exactly, with its policy.
pub fn render(
    kind: &Kind,
    policies: &[Arc<Policy>],
    cluster: &Capabilities,
    site: &Site,
) -> Result<Vec<Value>, Unavailable> {
    let halves: Vec<Arc<Policy>> = policies.iter().flat_map(Policy::halves).collect();
    let injecting: Vec<&Policy> = halves.iter().map(AsRef::as_ref).filter(|policy| policy.injects()).collect();
    let mut objects = Vec::new();
    if !injecting.is_empty() {
        let spec = mutating(kind, &injecting, cluster, site)?;
        // 1.35 has them in v1beta1 only, if they are switched on.
        let served = cluster.registration(registration::MUTATING_POLICIES);
        let api = served.map_or_else(|| API.to_owned(), |served| served.api_version);
        let name = naming::shared_name(kind);
        objects.extend(registered(&api, "MutatingAdmissionPolicy", &name, &injecting, spec, json!({}))?);
    }
    objects.extend(validating(kind, policies, cluster, site)?);
    Ok(objects)
}

/// The spec of the MutatingAdmissionPolicy.
fn mutating(kind: &Kind, policies: &[&Policy], cluster: &Capabilities, site: &Site) -> Result<Value, Unavailable> {
    agree_on_the_pod(kind, policies)?;
    let policies = values::with_stand_ins(policies)?;
    let policies = &policies.iter().collect::<Vec<_>>()[..];
    let mut variables = Variables::default();
    let own_kind = kind_of(kind, policies);
    let access = Access::of(own_kind, &mut variables);
    let is_updating = act_on_updates(policies, kind);
    let old = is_updating.then(|| Access::at(OLD, own_kind, &mut variables));
    let rows = Rows { access: &access, kind, policies, old: old.as_ref() };
    let (mut conditions, mut notes) = (Vec::new(), Vec::new());
    // The conditions that are checked once, before all others.
    let mut first = rows::is_ordinary(kind);
    let scene = values::Scene { kind, access: &access, policies, cluster };
    for policy in policies {
        is_expressible(policy).map_err(|what| what.of(policy))?;
        expressions::compile_on(policy, cluster).map_err(|what| what.of(policy))?;
        scene.define(policy, &mut variables).map_err(|what| what.of(policy))?;
    }
    for policy in policies {
        conditions.push(if policies.len() == 1 {
            let restores = rows.restores(policy, &mut variables);
            first.extend(does_match(&rows, policy, &mut variables).map_err(|what| what.of(policy))?);
            Conditions { policy, matches: "true".to_owned(), is_there: None, restores }
        } else {
            beside(&rows, policy, site, &mut notes, &mut variables).map_err(|what| what.of(policy))?
        });
    }
    // All or nothing: what is decided beside others is decided in one place.
    let matched = conditions.iter().filter_map(|one| values::is_served(one.policy, &one.matches, &variables));
    first.extend(matched.map(Term::Plain));
    replaces::leave_out_replaced(&mut conditions, kind, site, &access, &mut variables)?;
    let inject = inject(&conditions, policies, kind, site, &access, &mut variables)?;
    let inject = format!("{} ? {} : ({} ? {inject} : [])", rows::is_protected(site), answer(site), every(first));
    let takes_notes = !notes.is_empty();
    // The server does not take the field off an update before admission.
    let cleared = (takes_notes && is_updating).then(|| format!("{UPDATE} ? ({}) : []", forgotten()));
    let mutations = cleared.into_iter().chain(notes).chain([inject]).chain(takes_notes.then(forgotten));
    let update = is_updating.then(|| {
        let acting: Vec<_> = policies.iter().copied().filter(|policy| policy.acts_on_update(kind)).collect();
        let is_meant = all(&[not(&rows::is_protected(site)), loss::may_be_lost(&access, &acting)]);
        json!({ "name": "update", "expression": format!("!({UPDATE}) || {is_meant}") })
    });
    let match_conditions: Vec<Value> = update.into_iter().chain(rows::conditions(&rows, policies, site)).collect();
    let patch = |expression| json!({ "patchType": "JSONPatch", "jsonPatch": { "expression": expression } });
    Ok(json!({
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "Never",
        // Expressions exclude protected namespaces, because the server parses a selector again for each object.
        "matchConstraints": constraints(kind, policies, cluster),
        // Set even if it is empty, so that a manual addition is detected.
        "matchConditions": match_conditions,
        "variables": variables.to_value(),
        "mutations": mutations.map(patch).collect::<Vec<_>>(),
    }))
}

/// The match conditions of a webhook that injects `policies` into what the MutatingAdmissionPolicy left out: API servers of
/// another version do not run it. None if they are too long, or if the policies disagree on the pod.
pub fn left_out(kind: &Kind, policies: &[Arc<Policy>]) -> Option<Value> {
    let halves: Vec<Arc<Policy>> = policies.iter().flat_map(Policy::halves).collect();
    let injecting: Vec<&Policy> = halves.iter().map(AsRef::as_ref).filter(|policy| policy.injects()).collect();
    agree_on_the_pod(kind, &injecting).ok()?;
    let is_updating = act_on_updates(&injecting, kind);
    let kind = kind_of(kind, &injecting);
    let [access, old] = [OBJECT, OLD].map(|root| Access::at(root, kind, &mut AtHand));
    let rows = Rows { access: &access, kind, policies: &injecting, old: is_updating.then_some(&old) };
    let expression = rows::is_left(&rows, &injecting)?;
    Some(json!([{ "name": "left-out", "expression": expression }]))
}

/// `kind` with the pod path of `policies`.
fn kind_of<'a>(kind: &'a Kind, policies: &[&'a Policy]) -> &'a Kind {
    policies.iter().flat_map(|policy| &policy.kinds).find(|own| ***own == *kind).map_or(kind, AsRef::as_ref)
}

/// Checks that all policies agree on the pod path of a custom resource.
fn agree_on_the_pod(kind: &Kind, policies: &[&Policy]) -> Result<(), Unavailable> {
    let [first, others @ ..] = policies else { return Ok(()) };
    let differ = others.iter().find_map(|other| Some((other, first.disagreement(other, kind)?)));
    differ.map_or(Ok(()), |(other, (own, theirs))| {
        let what = format!(
            "the pod template of `{}` lies at `{theirs}` for it, at `{own}` for SidecarPolicy `{}`; use one `templatePath`",
            kind.resource, first.name
        );
        Err(Inexpressible::new(what).of(other))
    })
}

/// Rows 4 to 7; a loss instead of row 6 for updates.
fn does_match(rows: &Rows<'_>, policy: &Policy, variables: &mut Variables) -> Result<Vec<Term>, Inexpressible> {
    let mut terms = rows.is_open(policy, variables);
    terms.push(rows.is_due(policy, variables)?);
    terms.extend(rows.selects(policy, variables)?.into_iter().map(Term::Plain));
    Ok(terms)
}

/// The conditions of `policy`, which is one of several. Adds its mutation to `notes` if it has one.
fn beside<'a>(
    rows: &Rows<'_>,
    policy: &'a Policy,
    site: &Site,
    notes: &mut Vec<String>,
    variables: &mut Variables,
) -> Result<Conditions<'a>, Inexpressible> {
    let restores = rows.restores(policy, variables);
    // What takes a place takes it also where its content is there.
    let takes = replaces::takes_a_place(policy, rows.policies);
    let expression =
        if takes { is_wanted(rows, policy, variables)? } else { every(does_match(rows, policy, variables)?) };
    let holds = if policy.conditions.is_empty() {
        variables.define("matches", &expression)
    } else {
        // An error of one policy must not affect the others.
        let bit = note(policy, notes.len())?;
        notes.push(noted(&expression, bit, site));
        format!("({NOTED} / {bit} % 2 == 1)")
    };
    if !takes {
        return Ok(Conditions { policy, matches: holds, is_there: None, restores });
    }
    let due = every(vec![rows.is_due(policy, variables)?]);
    let due = variables.define("due", &due);
    let is_there = Some(all(&[holds.clone(), not(&due)]));
    Ok(Conditions { policy, matches: all(&[holds, due]), is_there, restores })
}

// Notes

/// The notes of earlier mutations.
const NOTED: &str = "object.metadata.?deletionGracePeriodSeconds.orValue(0)";

/// The bit for the `index`th policy with conditions.
fn note(policy: &Policy, index: usize) -> Result<u64, Inexpressible> {
    if let Some((name, _)) = policy.conditions.iter().find(|(_, condition)| expressions::sees_notes(condition)) {
        return Err(Inexpressible::new(format!(
            "beside other policies, its condition `{name}` must not look at all of the metadata, nor at `{}` of it; name the \
             fields that are meant",
            expressions::NOTES
        )));
    }
    if index >= MAX_NOTES {
        return Err(Inexpressible::new(format!("{MAX_NOTES} policies on the resource have `matchConditions` already")));
    }
    Ok(1 << index)
}

/// The mutation that notes `bit` if `expression` is true.
fn noted(expression: &str, bit: u64, site: &Site) -> String {
    let is_meant = all(&[not(&rows::is_protected(site)), expression.to_owned()]);
    let path = format!("/metadata/{}", expressions::NOTES);
    format!("{is_meant} ? [JSONPatch{{op: \"add\", path: \"{path}\", value: {NOTED} + {bit}}}] : []")
}

/// The mutation that removes all notes.
fn forgotten() -> String {
    let field = expressions::NOTES;
    let remove = format!("[JSONPatch{{op: \"remove\", path: \"/metadata/{field}\"}}]");
    format!("has(object.metadata.{field}) ? {remove} : []")
}

// Injection

/// The operations of the injection.
fn inject(
    conditions: &[Conditions<'_>],
    policies: &[&Policy],
    kind: &Kind,
    site: &Site,
    access: &Access,
    variables: &mut Variables,
) -> Result<String, Unavailable> {
    let deliveries: Vec<Delivery<'_>> = conditions
        .iter()
        .flat_map(|one| Delivery::all(one.policy, &one.matches, kind, site, access, variables))
        .collect();
    let mut templates = fitting(deliveries, access, variables)?;
    // The policy is unknown here, because a literal may come from any template.
    let blame = |what: Inexpressible| what.of(policies[0]);
    if let [Conditions { restores, .. }] = conditions {
        let operations = one_of(templates, access, variables).map_err(blame)?;
        return Ok(match restores {
            Some(restores) => format!("({restores} ? {operations} : [])"),
            None => operations,
        });
    }
    let together = fit_together(&mut templates, access, variables);
    for template in &mut templates {
        let policy = policies.iter().position(|policy| policy.name == template.delivery.policy.name);
        if let Some(restores) = policy.and_then(|at| conditions[at].restores.clone()) {
            template.fits = variables.define("restores", &all(&[template.fits.clone(), restores]));
        }
    }
    let someone = any(&templates.iter().map(|template| template.fits.clone()).collect::<Vec<_>>());
    let someone = all(&[someone, together]);
    let operations = Additions::of(&templates, access, variables).operations(variables).map_err(blame)?;
    Ok(format!("({someone} ? {operations} : [])"))
}

/// The operations of the first of `templates` that fits. At most one fits, because they are forms of one policy's
/// template.
fn one_of(templates: Vec<Fitting<'_>>, access: &Access, variables: &mut Variables) -> Cel {
    let mut chosen = String::new();
    for template in templates {
        let condition = template.fits.clone();
        let template = [Fitting { fits: "true".to_owned(), ..template }];
        if let Some((condition, operations)) = fresh::operations(&template, access, variables)? {
            chosen.push_str(&format!("{condition} ? {operations} : "));
        }
        let operations = Additions::of(&template, access, variables).operations(variables)?;
        chosen.push_str(&format!("{condition} ? {operations} : "));
    }
    Ok(format!("({chosen}[])"))
}

/// The answer to a probe. In a protected namespace nothing else is answered.
fn answer(site: &Site) -> String {
    let (annotation, is_probe) = (PROBE.replace('/', "~1"), all(&[rows::is_own(site), rows::is_probe()]));
    format!(
        "(!({is_probe}) ? [] : [?(has(object.metadata.annotations) ? optional.none() : optional.of(JSONPatch{{op: \"add\", path: \
         \"/metadata/annotations\", value: {{}}}})), JSONPatch{{op: \"add\", path: \"/metadata/annotations/{annotation}\", \
         value: variables.revision}}])"
    )
}

/// Each delivery with the condition of its injection. It must match, no matching delivery may leave it out, and nothing in
/// the workload may conflict with it.
fn fitting<'a>(
    deliveries: Vec<Delivery<'a>>,
    access: &Access,
    variables: &mut Variables,
) -> Result<Vec<Fitting<'a>>, Unavailable> {
    let owns: Vec<_> = deliveries.iter().map(|delivery| own::of(delivery, &deliveries, access, variables)).collect();
    let staying = conflict::staying(&deliveries, variables);
    let mut survive = Vec::new();
    for ((delivery, own), stays) in deliveries.iter().zip(&owns).zip(staying) {
        let mut terms = vec![stays];
        let fits = conflict::fits(delivery, access, own.as_ref(), variables);
        terms.push(fits.map_err(|what| what.of(delivery.policy))?);
        let survives = all(&terms);
        // With one policy the condition is used only once.
        let is_alone = deliveries.iter().all(|other| other.policy.name == delivery.policy.name);
        survive.push(if is_alone { survives } else { variables.define("survives", &survives) });
    }
    let templates = deliveries.into_iter().zip(survive).zip(owns);
    Ok(templates.map(|((delivery, fits), own)| Fitting { delivery, fits, own }).collect())
}

/// Adds to `templates` the condition that they fit together: from the highest priority down, all of one priority are added
/// or none. Where all have one priority, the result is that condition, and `templates` stay as they are.
fn fit_together(templates: &mut [Fitting<'_>], access: &Access, variables: &mut Variables) -> String {
    let priority = |template: &Fitting<'_>| template.delivery.policy.spec.priority;
    let levels = templates.chunk_by(|one, other| priority(one) == priority(other)).map(<[_]>::len);
    let levels: Vec<usize> = levels.collect();
    if let [_] = levels[..] {
        return together(templates, 0, access, variables);
    }
    let mut start = 0;
    for length in levels {
        let end = start + length;
        let fits = together(&templates[..end], start, access, variables);
        for template in templates[start..end].iter_mut().filter(|_| fits != "true") {
            template.fits = variables.define("fits", &all(&[template.fits.clone(), fits.clone()]));
        }
        start = end;
    }
    "true".to_owned()
}

/// The condition that all fitting `templates` fit together, if those before `start` do. Two cases appear only here: two
/// templates need one port on the host's network, where every container port is a host port; or the pod has not enough
/// room for all.
fn together(templates: &[Fitting<'_>], start: usize, access: &Access, variables: &mut Variables) -> String {
    // One policy, in one form or in several of which a pod gets one, has been compared with the pod already.
    if templates.iter().all(|template| template.delivery.policy.name == templates[0].delivery.policy.name) {
        return "true".to_owned();
    }
    let mut pairs = Vec::new();
    for (at, other) in templates.iter().enumerate().skip(start) {
        for one in &templates[..at] {
            let are_for_it = one.delivery.is_for_host_network() && other.delivery.is_for_host_network();
            if are_for_it && conflict::collide(&one.delivery, &other.delivery, Network::Host) {
                pairs.push(format!("({} && {})", one.fits, other.fits));
            }
        }
    }
    let parts =
        templates.iter().map(|template| Included { delivery: &template.delivery, is_in: template.fits.clone() });
    let mut terms = needs::met_together(&parts.collect::<Vec<_>>(), access, variables);
    if !pairs.is_empty() {
        terms.push(not(&format!("{} && {}", access.is_on_host_network(), any(&pairs))));
    }
    variables.short("together", all(&terms))
}
