//! Checks that the API server gets an answer from each registered webhook: it creates an object that only a replica of the
//! operator can answer, without storing it. Ready endpoints are no proof, because a firewall, a network policy or a frozen
//! replica may be behind them, and a webhook with `failurePolicy: Ignore` fails without a word.

use super::CheckSubject;
use super::report::CheckItem;
use crate::api::code::Code;
use crate::capabilities::registration::{MUTATING_POLICIES, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS};
use crate::cli::installed::{OPERATOR, Piece};
use crate::cluster::rights::{Right, may};
use crate::engine::probe::{self, Verification};
use crate::engine::registrar::Registrar;
use crate::engine::{self, EngineName};
use crate::naming::kind_of;
use crate::timing::{self, Timing};
use crate::workload::Kind;
use futures::future::join_all;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The check that these findings belong to.
const CHECK: &str = "registrations";

/// A registration that is in effect for long answers at once. The second try is for a replica that has just started.
static TIMING: LazyLock<timing::Registration> = LazyLock::new(|| {
    let limit = Duration::from_secs(1);
    timing::Registration { probe_limit: limit, settling: limit, ..Timing::documented().registration }
});

/// The webhooks of one kind of workload.
struct Webhooks {
    kind: Arc<Kind>,
    engine: EngineName,
    title: String,
    objects: Vec<Value>,
}

/// The findings about the webhooks among `ours`, the registrations of the operator.
pub(super) async fn check(subject: &CheckSubject<'_>, ours: &[&Piece]) -> Vec<CheckItem> {
    let webhooks = webhooks(subject, ours);
    let verified = join_all(webhooks.iter().map(|webhooks| verify(subject, webhooks))).await;
    let mut items = Vec::new();
    let mut is_proven = !webhooks.is_empty();
    for (webhooks, verified) in webhooks.iter().zip(verified) {
        match verified {
            Ok(Some(Ok(None))) => {}
            // The server has refused the trial for another reason, which proves nothing.
            Ok(Some(Ok(Some(_))) | None) => is_proven = false,
            Ok(Some(Err(unavailable))) => {
                let message = format!("{}: {}", webhooks.title, unavailable.message);
                items.push(CheckItem::problem(CHECK, unavailable.code, message));
            }
            Err(error) => items.push(CheckItem::unknown(CHECK, error)),
        }
    }
    if items.is_empty() && !is_proven {
        items.extend(unserved(subject, ours).await);
    }
    items
}

/// The webhooks among `ours` that a trial can ask, by kind of workload.
fn webhooks(subject: &CheckSubject<'_>, ours: &[&Piece]) -> Vec<Webhooks> {
    let mut found: BTreeMap<String, Webhooks> = BTreeMap::new();
    let Some(engine) = engine::all().find(|engine| engine.called().is_some()) else { return Vec::new() };
    let is_webhook =
        |piece: &&&Piece| [MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS].contains(&piece.resource.plural.as_str());
    let by_the_server: Vec<_> = ours.iter().filter(|piece| piece.resource.plural == MUTATING_POLICIES).collect();
    for piece in ours.iter().filter(is_webhook) {
        let named = kind_of(piece.object.name());
        // What stands by for the API server does not answer a trial.
        if by_the_server.iter().any(|other| kind_of(other.object.name()) == named) {
            continue;
        }
        let Some(kind) = subject.policies.kinds().find(|own| named.as_ref() == Some(*own)).cloned() else { continue };
        let mut object = piece.object.value();
        object["kind"] = piece.resource.kind.as_str().into();
        // What stands by for another engine has no revision, and does not answer a trial.
        if engine::revision_of(&object).is_none() {
            continue;
        }
        let (title, engine) = (piece.title(), engine.name());
        let of_kind = || Webhooks { kind: kind.clone(), engine, title, objects: Vec::new() };
        found.entry(kind.group_resource()).or_insert_with(of_kind).objects.push(object);
    }
    found.into_values().collect()
}

/// What a trial shows of `webhooks`; none if the user may not try.
///
/// # Errors
/// If the server does not say whether the user may.
async fn verify(subject: &CheckSubject<'_>, webhooks: &Webhooks) -> anyhow::Result<Option<Verification>> {
    let (client, namespace) = (subject.client(), subject.installed.namespace);
    let create = Right::everywhere("create", &webhooks.kind.group, &webhooks.kind.resource).within(namespace);
    if !may(client, &create).await? {
        return Ok(None);
    }
    let registrar = Registrar {
        client: client.clone(),
        capabilities: Arc::new(subject.server().clone()),
        namespace: namespace.to_owned(),
        kind: webhooks.kind.clone(),
        timing: &TIMING,
    };
    Ok(Some(probe::verify(&registrar, webhooks.engine, &webhooks.objects).await))
}

/// A finding if one of `ours` calls the operator's Service and no replica is ready.
async fn unserved(subject: &CheckSubject<'_>, ours: &[&Piece]) -> Option<CheckItem> {
    let webhook = ours.iter().find(|piece| {
        let body = piece.object.value();
        let mut entries = body["webhooks"].as_array().into_iter().flatten();
        entries.any(|entry| entry["clientConfig"]["service"].is_object())
    })?;
    let endpoints = match subject.installed.own("Endpoints", "endpoints", OPERATOR).await {
        Ok(endpoints) => endpoints,
        Err(error) => return Some(CheckItem::unknown(CHECK, &error)),
    };
    let body = endpoints.map(|endpoints| endpoints.object.value()).unwrap_or_default();
    let mut subsets = body["subsets"].as_array().into_iter().flatten();
    let is_served = subsets.any(|subset| subset["addresses"].as_array().is_some_and(|ready| !ready.is_empty()));
    let message = format!(
        "{} calls the Service `{OPERATOR}` in `{}`, behind which no replica is ready",
        webhook.title(),
        subject.installed.namespace
    );
    (!is_served).then(|| CheckItem::problem(CHECK, Code::WebhookUnreachable, message))
}
