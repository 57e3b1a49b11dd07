//! The sentences about a rollout. Each says what was read, and no more.

use super::answer::Why;
use super::look::{Failure, Look, NAMED, Numbers};
use super::member::Owner;
use crate::workload::ObjectRef;
use jiff::Timestamp;
use std::collections::BTreeSet;

/// What holds evictions up beside the policy.
pub(super) const LIMITED: &str = "the limit of evictions of the operator (`--rollouts`)";

/// A workload, as in a message.
pub(super) fn named(object: &ObjectRef) -> String {
    let ObjectRef { kind, namespace, name } = object;
    if kind.is_pod() { format!("{namespace}/{name}") } else { format!("{} {namespace}/{name}", kind.group_resource()) }
}

/// How far it is.
pub(super) fn told(look: &Look) -> String {
    let some = |count: usize, what: &str| if count == 0 { String::new() } else { format!("; {count} {what}") };
    let again = some(look.numbers.again, "are still to be recreated");
    let left = some(look.numbers.left, "are left as they are");
    let Numbers { matched, updated, ready, .. } = look.numbers;
    format!("{updated} of {matched} workloads have this revision, {ready} of them are ready{again}{left}")
}

/// How far it is, and what it waits for.
pub(super) fn waiting(look: &Look) -> String {
    [told(look)].iter().chain(&look.waits).map(String::as_str).collect::<Vec<_>>().join("; ")
}

/// Why a rollout has failed with `failure`, as one of `number` that have failed.
pub(super) fn failed(failure: &Failure, number: usize) -> String {
    let ObjectRef { kind, namespace, name } = &failure.object;
    let others = if number > 1 { format!("{number} workloads have failed, the last of them ") } else { String::new() };
    format!("{others}{} {namespace}/{name}: {}: {}", kind.group_resource(), failure.code, failure.message)
}

pub(super) fn blocked(object: &ObjectRef, since: Timestamp, why: &Why, count: usize) -> String {
    let others = if count > 1 { format!(", as do {} others", count - 1) } else { String::new() };
    let (Why { code, message }, ObjectRef { namespace, name, .. }) = (why, object);
    format!("{code}: {namespace}/{name}: {message}; it waits since {since:.0}{others}")
}

pub(super) fn unavailable(count: usize, limit: usize, names: &[String]) -> String {
    format!("waits, because {count} are unavailable and maxUnavailable is {limit}: {}", listed(count, names))
}

pub(super) fn unavailable_in(namespace: &str, (count, limit): (usize, usize), names: &[String]) -> String {
    let names = listed(count, names);
    format!("waits, because {count} are unavailable in {namespace} and maxUnavailablePerNamespace is {limit}: {names}")
}

/// What `count` workloads wait for, because others of their namespaces have failed.
pub(super) fn held(failed: &BTreeSet<String>, count: usize) -> String {
    let (number, first) = (failed.len(), failed.first().map(String::as_str).unwrap_or_default());
    let others = if number > 1 { format!(" and {} others", number - 1) } else { String::new() };
    format!("{first}{others} failed: {count} more of the same namespaces wait for `scpol rollout resume`")
}

pub(super) fn not_ready(count: usize, names: &[String]) -> String {
    format!("waits until these are ready: {}", listed(count, names))
}

pub(super) fn broken(count: usize) -> String {
    format!("{count} were not ready before the rollout began, and are not counted")
}

pub(super) fn orphans(count: usize, first: &str) -> String {
    format!("waits for the owner of {count} pods to be read, as of {first}")
}

/// An owner with more pods than it wants: it may be about to delete one.
pub(super) fn unclear(owner: &Owner) -> String {
    format!("waits until {owner} has no more pods than it wants")
}

/// An owner of which another policy may be evicting a pod.
pub(super) fn shared(owner: &Owner) -> String {
    format!("waits until another policy has evicted a pod of {owner}")
}

/// What another pod of its owner waits for.
pub(super) fn beside(pod: &ObjectRef) -> String {
    format!("waits for {}, which is not ready: another pod of its owner comes next", named(pod))
}

/// What was unavailable before, when the record has no room for more of these.
pub(super) fn too_many_broken(most: usize) -> String {
    format!("it was not ready before the rollout began, as were {most} others, which are updated first")
}

/// The record has no room for more.
pub(super) fn crowded(most: usize) -> String {
    format!("waits for {most} that are being updated, the most at once")
}

/// The message of a rollout that has `halted` and cannot go back.
pub(super) fn no_way_back(halted: &str, why: Option<&str>) -> String {
    let why = why.unwrap_or("no rollout was complete before");
    format!("{halted}; there is nothing to go back to: {why}")
}

/// The message of a rollout that has `halted` and has gone back.
pub(super) fn gone_back(halted: &str, look: &Look) -> String {
    let back = match look.numbers.left {
        0 if look.numbers.unavailable + look.numbers.broken > 0 => {
            format!("{halted}; each workload that it had changed has the revision before again, and not all are ready")
        }
        0 => format!("{halted}; each workload that it had changed has the revision before again"),
        left => format!("{halted}; it has gone back, but {left} are left as they are"),
    };
    if look.waits.is_empty() { back } else { format!("{back}; {}", look.waits.join("; ")) }
}

fn listed(count: usize, names: &[String]) -> String {
    let others = if count > names.len().min(NAMED) { ", .." } else { "" };
    format!("{}{others}", names.join(", "))
}
