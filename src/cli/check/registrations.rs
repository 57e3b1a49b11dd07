//! What engines have registered: one for each policy in force, none besides, none that was edited, each with somebody behind it.

use super::Subject;
use super::report::Item;
use crate::api::code::Code;
use crate::cli::installed::{OPERATOR, Piece, Way, needed};
use crate::cli::status;
use crate::cluster::capabilities::registration::{INITIALIZERS, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS};
use crate::engine::EngineName;
use crate::engine::initializer::registration::is_as;
use crate::engine::initializer::render;
use crate::engine::initializer::types::InitializerConfiguration;
use crate::engine::targets;
use crate::policy::Policy;
use std::collections::BTreeSet;

const CHECK: &str = "registrations";

pub(super) async fn check(subject: &Subject<'_>, registered: &[Piece]) -> Vec<Item> {
    let (ours, foreign): (Vec<_>, Vec<_>) = registered.iter().partition(|piece| piece.is_generated());
    let mut items: Vec<_> =
        subject.policies.iter().flat_map(|policy| missing(subject, policy, &ours, &foreign)).collect();
    items.extend(left(subject, &ours));
    items.extend(ours.iter().filter_map(|piece| edited(subject, piece)));
    items.extend(foreign.iter().filter_map(|piece| intruder(subject, piece)));
    items.extend(unserved(subject, &ours).await);
    if items.is_empty() {
        items.push(Item::ok(CHECK, format!("{} of ours, as the policies want it", ours.len())));
    }
    items
}

fn names(piece: &Piece, (plural, name): &(&str, String)) -> bool {
    piece.resource.plural == *plural && piece.object.name() == name
}

/// What is not there of a policy that is said to be in force.
fn missing(subject: &Subject<'_>, policy: &Policy, ours: &[&Piece], foreign: &[&Piece]) -> Vec<Item> {
    let stored = subject.stored.iter().find(|stored| stored.name() == policy.name).map(status::status);
    let Some(status) = stored else { return Vec::new() };
    let is_there = |wanted: &(&'static str, String)| ours.iter().any(|piece| names(piece, wanted));
    let is_programmed = status::condition(&status, "Programmed").is_some_and(|condition| condition.status == "True");
    let engines = status.engine.as_deref().filter(|_| is_programmed && policy.is_enforced()).unwrap_or_default();
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
            return Item::problem(CHECK, Code::NameTaken, message);
        }
        let message = format!("policy `{}` is said to be in force, and there is no {plural} `{name}`", policy.name);
        Item::problem(CHECK, Code::RemovedByHand, message)
    };
    lacking.map(item).collect()
}

/// What no policy wants any more.
fn left(subject: &Subject<'_>, ours: &[&Piece]) -> Vec<Item> {
    const ENGINES: &str = "Initializer,Webhook,MutatingAdmissionPolicy";
    let enforced = subject.policies.iter().filter(|policy| policy.is_enforced());
    let ways = enforced.flat_map(|policy| needed(policy, ENGINES).into_iter().flatten().flatten());
    let names: BTreeSet<String> = ways.map(|(_, name)| name).collect();
    let orphans = ours.iter().filter(|piece| !names.contains(piece.object.name()));
    let item =
        |piece: &&Piece| Item::problem(CHECK, Code::RegistrationLeft, format!("no policy wants {}", piece.title()));
    orphans.map(item).collect()
}

/// What is not as the operator has made it. Of what several policies share the operator alone can tell.
fn edited(subject: &Subject<'_>, piece: &Piece) -> Option<Item> {
    if piece.resource.plural != INITIALIZERS {
        return None;
    }
    let stored: InitializerConfiguration = serde_json::from_value(piece.object.value()).ok()?;
    let owner = subject.policies.iter().find(|policy| render::name(&policy.name) == piece.object.name())?;
    if !owner.is_enforced() || targets::check(owner, subject.server()).is_err() {
        return None;
    }
    // Another engine may have some of its kinds.
    let kinds = stored.kinds();
    let is_alone = engines_of(subject, &owner.name) == EngineName::Initializer.as_str();
    let own = owner.kinds.iter().filter(|kind| is_alone || kinds.contains(*kind)).cloned().collect::<Vec<_>>();
    let wanted = render::configuration(owner, &own, subject.server());
    let message = format!("{} is not as its policy wants it", piece.title());
    (!is_as(&stored, &wanted)).then(|| Item::problem(CHECK, Code::RegistrationEdited, message))
}

/// The engines by which the policy `name` is in force.
fn engines_of(subject: &Subject<'_>, name: &str) -> String {
    let stored = subject.stored.iter().find(|policy| policy.name() == name);
    stored.and_then(|policy| crate::cli::status::status(policy).engine).unwrap_or_default()
}

/// What is not ours, and puts names of ours on objects.
fn intruder(subject: &Subject<'_>, piece: &Piece) -> Option<Item> {
    let stored: InitializerConfiguration = serde_json::from_value(piece.object.value()).ok()?;
    let listed = stored.initializers.iter().map(|entry| &entry.name).find(|name| subject.site.owns(name))?;
    let is_initializer = piece.resource.plural == INITIALIZERS;
    let message = format!("{} is not ours, and lists our initializer `{listed}`", piece.title());
    is_initializer.then(|| Item::warning(CHECK, Code::ForeignConfiguration, message))
}

/// Webhooks that call a Service behind which nobody is.
async fn unserved(subject: &Subject<'_>, ours: &[&Piece]) -> Option<Item> {
    let webhook = ours.iter().find(|piece| {
        let is_webhook = [MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS].contains(&piece.resource.plural.as_str());
        let body = piece.object.value();
        let mut entries = body["webhooks"].as_array().into_iter().flatten();
        is_webhook && entries.any(|entry| entry["clientConfig"]["service"].is_object())
    })?;
    let endpoints = match subject.installed.own("Endpoints", "endpoints", OPERATOR).await {
        Ok(endpoints) => endpoints,
        Err(error) => return Some(Item::unknown(CHECK, &error)),
    };
    let body = endpoints.map(|endpoints| endpoints.object.value()).unwrap_or_default();
    let mut subsets = body["subsets"].as_array().into_iter().flatten();
    let is_served = subsets.any(|subset| subset["addresses"].as_array().is_some_and(|ready| !ready.is_empty()));
    let message = format!(
        "{} calls the Service `{OPERATOR}` in `{}`, behind which no replica is ready",
        webhook.title(),
        subject.installed.namespace
    );
    (!is_served).then(|| Item::problem(CHECK, Code::WebhookUnreachable, message))
}
