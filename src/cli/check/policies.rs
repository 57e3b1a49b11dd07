//! Checks of the policies' state, of missed workloads, and of objects that wait for an initializer.

use super::CheckSubject;
use super::report::CheckItem;
use crate::api::code::Code;
use crate::cli::output::{age, counted, place};
use crate::cli::policies;
use crate::cli::waiting::{self, WaitingObjects};
use crate::cluster::object::Object;
use crate::policy::{Policy, Site};
use crate::timing::CREATE_LIMIT;

/// The most objects that a line names.
const NAMED: usize = 3;

/// Checks every policy.
pub(super) fn check(subject: &CheckSubject<'_>) -> Vec<CheckItem> {
    let mut items: Vec<_> = subject.stored.iter().flat_map(policy).collect();
    items.extend(subject.stored.iter().filter_map(|policy| unreadable(policy, subject.site)));
    items.extend(subject.policies.iter().filter_map(|policy| {
        // A policy that is not in effect refuses nothing.
        let is_programmed =
            |stored: &&Object| stored.name() == policy.name && policies::is_programmed(&policies::status(stored));
        subject.stored.iter().find(is_programmed).filter(|_| policy.is_enforced())?;
        let message = crate::lint::add_ons_at_risk(&policy.spec, subject.site)?;
        Some(CheckItem::warning(
            format!("policy {}", policy.name),
            Code::FailBlocksAddOns,
            format!("`spec.failurePolicy` {message}"),
        ))
    }));
    if items.is_empty() {
        let message = match subject.stored.len() {
            0 => "there is none".to_owned(),
            count => format!("{}, as it should be", counted(count, "policy", "policies")),
        };
        items.push(CheckItem::ok("policies", message));
    }
    items.extend(missed(subject));
    items
}

/// The problem that the operator in the cluster serves a policy that an operator of this release cannot read: it is older, and would
/// unregister the policy.
fn unreadable(policy: &Object, site: &Site) -> Option<CheckItem> {
    let status = policies::status(policy);
    policies::condition(&status, "Ready").filter(|ready| ready.status == "True")?;
    let violations = Policy::parse(&policy.value(), site).err()?;
    let unknown = violations.into_iter().find(|violation| violation.code == Code::UnknownField)?;
    let message = format!(
        "`{}` is no field for this release of scpol ({}): an operator of this release would unregister the policy",
        unknown.field,
        env!("CARGO_PKG_VERSION")
    );
    let fix = "Remove the field before you go back to this release.";
    Some(CheckItem::problem(format!("policy {}", policy.name()), Code::UnknownField, message).with_fix(fix))
}

/// The problems of a policy, from its own conditions.
fn policy(policy: &Object) -> Vec<CheckItem> {
    let check = format!("policy {}", policy.name());
    let status = policies::status(policy);
    let Some(ready) = policies::condition(&status, "Ready") else {
        return vec![CheckItem::warning(check, Code::OperatorNotReady, "no operator has seen it")];
    };
    let coded = |message: &str| Code::ALL.iter().copied().find(|code| message.starts_with(&format!("{code}:")));
    if ready.status != "True" {
        let is_wrong = ready.status == "False";
        let message = format!("{}: {}", ready.reason, ready.message);
        let level = if is_wrong { CheckItem::problem } else { CheckItem::warning };
        return vec![level(check, Code::Reconciling, message).coded_as(coded(&ready.message))];
    }
    let restricted = ["Conflicted", "Degraded"].into_iter().filter_map(|type_| policies::condition(&status, type_));
    let told = restricted.filter(|condition| condition.status == "True");
    told.map(|condition| {
        CheckItem::warning(&*check, Code::Conflicted, &*condition.message).coded_as(coded(&condition.message))
    })
    .collect()
}

fn missed(subject: &CheckSubject<'_>) -> Option<CheckItem> {
    let told: Vec<_> = subject.stored.iter().map(|policy| (policy.name(), policies::status(policy).missed)).collect();
    let sum = told.iter().fold(0_i64, |sum, (_, missed)| sum.saturating_add(*missed));
    let named: Vec<_> = told
        .iter()
        .filter(|(_, missed)| *missed > 0)
        .take(NAMED)
        .map(|(name, missed)| format!("{name} {missed}"))
        .collect();
    (sum > 0).then(|| {
        CheckItem::warning(
            "workloads",
            Code::Missed,
            format!("matched by a policy, and without a sidecar: {sum} (policy {})", named.join(", ")),
        )
    })
}

/// Objects that are invisible because they wait for an initializer.
pub(super) async fn stuck(subject: &CheckSubject<'_>) -> Vec<CheckItem> {
    const CHECK: &str = "waiting objects";
    // Servers from 1.14 have no `metadata.initializers`.
    if subject.server().at_least(1, 14) {
        return Vec::new();
    }
    let WaitingObjects { waiting, unseen } = match waiting::find(subject.client(), subject.server(), None, None).await {
        Ok(look) => look,
        Err(error) => return vec![CheckItem::unknown(CHECK, &error)],
    };
    let limit = CREATE_LIMIT.as_secs() as i64;
    let late: Vec<_> = waiting.iter().filter(|object| object.age_seconds > limit).collect();
    let is_ours = |object: &&waiting::WaitingObject| object.pending.first().is_some_and(|name| subject.site.owns(name));
    let (ours, foreign): (Vec<_>, Vec<_>) = late.into_iter().partition(is_ours);
    let told = |objects: &[&waiting::WaitingObject]| {
        let named = objects.iter().take(NAMED).map(|object| {
            let who = object.pending.first().map_or("nobody", String::as_str);
            format!(
                "{} for {who} ({})",
                place(&object.resource, &object.namespace, &object.name),
                age(object.age_seconds)
            )
        });
        format!("waiting too long: {} ({})", objects.len(), named.collect::<Vec<_>>().join(", "))
    };
    let mut items = Vec::new();
    if !ours.is_empty() {
        items.push(CheckItem::problem(CHECK, Code::PendingTooLong, told(&ours)));
    }
    if !foreign.is_empty() {
        let fix = "They wait for an initializer of others. If it is yours: `scpol drain --initializer NAME`.";
        items.push(CheckItem::warning(CHECK, Code::PendingTooLong, told(&foreign)).with_fix(fix));
    }
    if let Some(first) = unseen.first() {
        let more = if unseen.len() > 1 { format!("; and {} more", unseen.len() - 1) } else { String::new() };
        items.push(CheckItem::unknown(CHECK, format!("cannot be looked at: {first}{more}")));
    }
    if items.is_empty() {
        items.push(CheckItem::ok(CHECK, format!("{}, none of them for longer than {limit} s", waiting.len())));
    }
    items
}
