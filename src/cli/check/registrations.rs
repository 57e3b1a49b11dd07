//! Checks the registrations: each policy in effect has one, there are no others, none was edited, and each webhook is answered.

use super::report::CheckItem;
use super::{CheckSubject, answers};
use crate::api::code::Code;
use crate::cli::installed::{Piece, Way, needed};
use crate::cli::policies;
use crate::engine::{self, Completing, EngineName, Sharing, StoredRegistration, registration, revision_of};
use crate::naming::{kind_of, own_name};
use crate::policy::Policy;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

const CHECK: &str = "registrations";

pub(super) async fn check(subject: &CheckSubject<'_>, registered: &[Piece]) -> Vec<CheckItem> {
    let (ours, foreign): (Vec<_>, Vec<_>) = registered.iter().partition(|piece| piece.is_generated());
    let mut items: Vec<_> =
        subject.policies.iter().flat_map(|policy| missing(subject, policy, &ours, &foreign)).collect();
    items.extend(left(subject, &ours));
    items.extend(ours.iter().filter_map(|piece| edited(subject, piece)));
    items.extend(foreign.iter().filter_map(|piece| intruder(subject, piece)));
    items.extend(answers::check(subject, &ours).await);
    if items.is_empty() {
        items.push(CheckItem::ok(CHECK, format!("{} of ours, as the policies want it", ours.len())));
    }
    items
}

fn names(piece: &Piece, (plural, name): &(&str, String)) -> bool {
    piece.resource.plural == *plural && piece.object.name() == name
}

/// The missing objects of a policy whose status says that it is in effect.
fn missing(subject: &CheckSubject<'_>, policy: &Policy, ours: &[&Piece], foreign: &[&Piece]) -> Vec<CheckItem> {
    let stored = subject.stored.iter().find(|stored| stored.name() == policy.name).map(policies::status);
    let Some(status) = stored else { return Vec::new() };
    let is_there = |wanted: &(&'static str, String)| ours.iter().any(|piece| names(piece, wanted));
    // Objects for an edit that the operator has not handled yet are not missing, because nobody removed them.
    let is_caught_up = status.observed_spec_hash.as_ref() == Some(&policy.spec_hash);
    let is_in_force = policies::is_programmed(&status) && is_caught_up && policy.is_enforced();
    let engines = status.engine.as_deref().filter(|_| is_in_force).unwrap_or_default();
    let unmet = |ways: Vec<Way>| {
        let is_met = ways.iter().any(|way| way.iter().all(is_there));
        ways.into_iter().next().filter(|_| !is_met)
    };
    let lacking = needed(policy, engines).into_iter().filter_map(unmet).flatten().filter(|wanted| !is_there(wanted));
    let item = |wanted: (&'static str, String)| {
        let (plural, name) = &wanted;
        if foreign.iter().any(|piece| names(piece, &wanted)) {
            let message =
                format!("policy `{}`: {plural} `{name}` is there, and was not made by the operator", policy.name);
            return CheckItem::problem(CHECK, Code::NameTaken, message);
        }
        let message = format!("policy `{}` is said to be in effect, and there is no {plural} `{name}`", policy.name);
        CheckItem::problem(CHECK, Code::RemovedByHand, message)
    };
    lacking.map(item).collect()
}

/// The registrations that no policy needs.
fn left(subject: &CheckSubject<'_>, ours: &[&Piece]) -> Vec<CheckItem> {
    let engines: Vec<_> = engine::all().map(|engine| engine.name().as_str()).collect();
    let engines = engines.join(",");
    let enforced = subject.policies.iter().filter(|policy| policy.is_enforced());
    let ways = enforced.flat_map(|policy| needed(policy, &engines).into_iter().flatten().flatten());
    let names: BTreeSet<String> = ways.map(|(_, name)| name).collect();
    // The author check belongs to no policy.
    let aside: Vec<_> = engine::all().filter_map(|engine| Some(engine.called()?.side_registration().name)).collect();
    let is_wanted = |name: &str| names.contains(name) || aside.contains(&name);
    let orphans = ours.iter().filter(|piece| !is_wanted(piece.object.name()));
    let item = |piece: &&Piece| {
        CheckItem::problem(CHECK, Code::RegistrationLeft, format!("no policy wants {}", piece.title()))
    };
    orphans.map(item).collect()
}

/// A finding if the object differs from what the operator writes.
fn edited(subject: &CheckSubject<'_>, piece: &Piece) -> Option<CheckItem> {
    let engine = engine::of_resource(&piece.resource.plural)?;
    let is_edited = match (engine.completing(), engine.sharing()) {
        (Some(completing), _) => is_own_edited(subject, piece, engine.name(), completing)?,
        (None, shared) => is_shared_edited(subject, piece, shared?)?,
    };
    let message = format!("{} is not as its policies want it", piece.title());
    is_edited.then(|| CheckItem::problem(CHECK, Code::RegistrationEdited, message))
}

/// Whether the registration of a single policy was edited; none if unknown.
fn is_own_edited(
    subject: &CheckSubject<'_>,
    piece: &Piece,
    engine: EngineName,
    completing: &dyn Completing,
) -> Option<bool> {
    let stored = piece.object.value();
    let owner = subject.policies.iter().find(|policy| own_name(&policy.name) == piece.object.name())?;
    if !owner.is_enforced() || subject.server().check_targets(&owner.spec.targets).is_err() {
        return None;
    }
    // Another engine may serve some of its kinds.
    let kinds = completing.kinds_of(&stored);
    let is_alone = engines_of(subject, &owner.name) == engine.as_str();
    let own = owner.kinds.iter().filter(|kind| is_alone || kinds.contains(*kind)).cloned().collect::<Vec<_>>();
    let wanted = completing.render(owner, &own, subject.server());
    Some(!registration::is_as(&stored, &wanted))
}

/// Whether a shared registration was edited; none if unknown. The registration is rendered again with its own address of the
/// webhook and its own policies. If the revision differs, the operator has other flags than we, or has not handled a policy
/// yet.
fn is_shared_edited(subject: &CheckSubject<'_>, piece: &Piece, engine: &dyn Sharing) -> Option<bool> {
    let stored = piece.object.value();
    let kind = kind_of(piece.object.name())?;
    let owners: Vec<&Value> = stored["metadata"]["ownerReferences"].as_array().into_iter().flatten().collect();
    // What injects for a policy with `Fail` has no owners.
    let is_owner = |policy: &&Arc<Policy>| match owners[..] {
        [] => policy.is_enforced() && policy.kinds.contains(&kind),
        _ => owners.iter().any(|owner| owner["name"] == policy.name.as_str()),
    };
    let owners: Vec<Arc<Policy>> = subject.policies.iter().filter(is_owner).cloned().collect();
    let site = subject.site.on(subject.server());
    let registered = StoredRegistration { resource: &piece.resource.plural, object: &stored };
    let rendered = engine.render_as(&registered, &kind, &owners, subject.server(), &site)?;
    let wanted = rendered.into_iter().find(|object| {
        object["kind"] == piece.resource.kind.as_str() && object["metadata"]["name"] == stored["metadata"]["name"]
    })?;
    let is_comparable = revision_of(&wanted) == revision_of(&stored);
    is_comparable.then(|| !registration::is_as(&stored, &wanted))
}

/// The engines by which the policy `name` is in effect.
fn engines_of(subject: &CheckSubject<'_>, name: &str) -> String {
    let stored = subject.stored.iter().find(|policy| policy.name() == name);
    stored.and_then(|policy| policies::status(policy).engine).unwrap_or_default()
}

/// A finding if a foreign registration adds our initializer names to objects.
fn intruder(subject: &CheckSubject<'_>, piece: &Piece) -> Option<CheckItem> {
    let engine = engine::completing(&piece.resource.plural)?;
    let listed = engine.initializers_of(&piece.object.value()).into_iter().find(|name| subject.site.owns(name))?;
    let message = format!("{} is not ours, and lists our initializer `{listed}`", piece.title());
    Some(CheckItem::warning(CHECK, Code::ForeignConfiguration, message))
}
