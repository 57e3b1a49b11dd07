//! The rules for requests, limits, claims and divisors.

use super::super::{FaultKind, Walk};
use super::must_be_one_of;
use super::read::{Members, amount, object, objects, text};
use crate::api::amounts::{HUGE_PAGES, ONE, amount_fault, is_native, name_fault};
use crate::api::schema::quoted;
use serde_json::Value;
use std::collections::HashSet;

const LISTS: [&str; 2] = ["requests", "limits"];

/// A quantity as in messages.
fn written(value: &Value) -> String {
    value.as_str().map_or_else(|| format!("`{value}`"), quoted)
}

/// Whether a request may be less than its limit.
fn can_be_less(name: &str) -> bool {
    is_native(name) && !name.starts_with(HUGE_PAGES)
}

pub(super) fn requirements(walk: &mut Walk, members: &Members, path: &str) {
    for list in LISTS {
        for (name, value) in object(members, list).into_iter().flatten() {
            let at = format!("{path}.{list}.{name}");
            if let Some(fault) = name_fault(name) {
                walk.wrong(at, fault);
            } else if let Some(fault) =
                amount(Some(value)).and_then(|amount| amount_fault(name, amount, &written(value)))
            {
                walk.wrong(at, fault);
            }
        }
    }
    requests_beside_limits(walk, members, path);
    let has = |wanted: fn(&str) -> bool| {
        LISTS.iter().any(|list| object(members, list).is_some_and(|of| of.keys().any(|name| wanted(name))))
    };
    if has(|name| name.starts_with(HUGE_PAGES)) && !has(|name| name == "cpu" || name == "memory") {
        walk.wrong(path, "must have `cpu` or `memory` beside huge pages");
    }
    claims(walk, members, path);
}

fn requests_beside_limits(walk: &mut Walk, members: &Members, path: &str) {
    for (name, request) in object(members, "requests").into_iter().flatten() {
        let limit = object(members, "limits").and_then(|limits| limits.get(name));
        let (wanted, most) = (amount(Some(request)), amount(limit));
        if let (Some(wanted), Some(most), Some(limit)) = (wanted, most, limit) {
            let (request, limit) = (written(request), written(limit));
            if wanted > most {
                let message = format!("must be at most the limit, {limit}, is {request}");
                walk.wrong(format!("{path}.requests.{name}"), message);
            } else if wanted != most && !can_be_less(name) {
                let message = format!("must be the limit, {limit}, since it cannot be shared, is {request}");
                walk.wrong(format!("{path}.requests.{name}"), message);
            }
        } else if wanted.is_some() && limit.is_none() && !can_be_less(name) {
            walk.wrong(format!("{path}.limits.{name}"), format!("must be given, as `requests.{name}` is"));
        }
    }
}

/// Claims of one name: of all its requests, or each time of another one.
fn claims(walk: &mut Walk, members: &Members, path: &str) {
    let mut seen: HashSet<(&str, &str)> = HashSet::new();
    for (index, claim) in objects(members, "claims") {
        let (Some(name), request) = (text(claim, "name"), text(claim, "request").unwrap_or_default()) else { continue };
        let is_twice = seen
            .iter()
            .any(|(own, other)| *own == name && (other.is_empty() || request.is_empty() || *other == request));
        if is_twice {
            let message = format!("must be unique in the list: {} is there before", quoted(name));
            walk.blame(format!("{path}.claims[{index}].name"), FaultKind::Duplicate, message);
        }
        seen.insert((name, request));
    }
}

// Variables and files

/// A resource of a container as a variable or a file, with its divisor.
pub(super) fn field(walk: &mut Walk, members: &Members, path: &str) {
    const KNOWN: [&str; 6] = [
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
    ];
    let Some(resource) = text(members, "resource") else { return };
    let is_pages = ["limits.hugepages-", "requests.hugepages-"].into_iter().any(|prefix| resource.starts_with(prefix));
    if !KNOWN.contains(&resource) && !is_pages {
        return walk.wrong(format!("{path}.resource"), must_be_one_of(&KNOWN, resource));
    }
    let Some(divisor) = members.get("divisor").filter(|divisor| !is_divisor(divisor, resource.ends_with(".cpu")))
    else {
        return;
    };
    let few = if resource.ends_with(".cpu") { "`1m` or `1`" } else { "`1` or one unit, such as `1k`, `1Mi` or `1Gi`" };
    walk.wrong(format!("{path}.divisor"), format!("must be {few}, not {}", written(divisor)));
}

/// Whether the server takes `divisor`: by its canonical form, which depends on the kind of its unit.
fn is_divisor(divisor: &Value, is_cpu: bool) -> bool {
    let text = divisor.as_str().map_or_else(|| divisor.to_string(), str::to_owned);
    // Another rule reports what is no quantity.
    let Some(amount) = amount(Some(divisor)) else { return true };
    let is_binary = text.ends_with('i') && amount >= 1024 * ONE;
    let power = text.split_once(['e', 'E']).map(|(_, power)| power).unwrap_or_default();
    let has_exponent = power.starts_with(|first: char| first.is_ascii_digit() || "+-".contains(first));
    let units = |base: i128| (1..=6).map(move |power| base.pow(power) * ONE);
    // Because the server counts 0 as absent.
    amount == 0
        || amount == ONE && !is_binary && !has_exponent
        || match (is_cpu, is_binary) {
            _ if has_exponent => false,
            (true, _) => amount == ONE / 1000,
            (false, true) => units(1024).any(|unit| unit == amount),
            (false, false) => units(1000).any(|unit| unit == amount),
        }
}
