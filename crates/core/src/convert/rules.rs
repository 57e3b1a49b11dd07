//! The rules of an InitializerConfiguration as targets of a policy.

use super::objects::{Spot, TYPOS};
use super::{Weight, Work};
use crate::manifest::Location;
use crate::workload::{KINDS, Kind};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A group, and its versions.
type Group = (&'static str, &'static [&'static str]);

/// The resources that servers have served.
const SERVED: [(&str, &[Group]); 6] = [
    ("deployments", &[("apps", &["v1", "v1beta1", "v1beta2"]), ("extensions", &["v1beta1"])]),
    ("statefulsets", &[("apps", &["v1", "v1beta1", "v1beta2"])]),
    ("daemonsets", &[("apps", &["v1", "v1beta2"]), ("extensions", &["v1beta1"])]),
    ("cronjobs", &[("batch", &["v1", "v1beta1", "v2alpha1"])]),
    ("jobs", &[("batch", &["v1"])]),
    ("pods", &[("", &["v1"])]),
];
/// Short names that kubectl accepts for a resource, and the API does not.
const SHORT: [(&str, &str); 5] =
    [("deploy", "deployments"), ("sts", "statefulsets"), ("ds", "daemonsets"), ("cj", "cronjobs"), ("po", "pods")];
/// Resources that no policy may target, with a replacement.
const INSTEAD: [(&str, &str); 4] = [
    ("jobs", "the pod template of a Job cannot be changed once it is posted: write `pods` in group `\"\"`"),
    ("replicasets", "they are made from others: write `deployments`"),
    ("secrets", "they carry no pod template: an initializer that judges them becomes a policy with `validations`"),
    ("replicationcontrollers", "no policy serves them: write `pods` in group `\"\"`"),
];

/// The kinds into which something can be injected.
fn kinds() -> impl Iterator<Item = &'static Arc<Kind>> {
    KINDS.iter().filter(|kind| kind.pod_path.is_some())
}

/// A way in which an object can be posted: a resource, through a group and a version.
type Way = (&'static str, &'static str, &'static str);
/// All ways that rules match.
pub(super) type Ways = BTreeSet<Way>;

/// The ways that the server matches by the `rules` of one entry, which are at `path` of `spot`.
///
/// All rules must match, contrary to the documentation of the API.
pub(super) fn matched(rules: &Value, spot: &Spot, path: &str, work: &mut Work<'_>) -> Ways {
    let rules = rules.as_array().map(Vec::as_slice).unwrap_or_default();
    let each: Vec<Ways> =
        rules.iter().enumerate().map(|(index, rule)| ways(rule, spot, &format!("{path}[{index}]"), work)).collect();
    let any: Ways = each.iter().flatten().copied().collect();
    let all: Ways = any.iter().filter(|way| each.iter().all(|ways| ways.contains(*way))).copied().collect();
    if all == any {
        return any;
    }
    let place = spot.place(path);
    if all.is_empty() {
        let message = format!(
            "the server wants all rules of an entry to match, so these {} matched nothing: an entry each is what was meant; taken so",
            each.len()
        );
        work.tell(Weight::Guessed, place, message);
        return any;
    }
    let resources: BTreeSet<&str> = all.iter().map(|way| way.0).collect();
    let message = format!(
        "the server wants all rules of an entry to match: only {} did, and do; an entry each would match the rest",
        resources.into_iter().collect::<Vec<_>>().join(", ")
    );
    work.tell(Weight::Note, place, message);
    all
}

/// The ways that one rule matches.
fn ways(rule: &Value, spot: &Spot, path: &str, work: &mut Work<'_>) -> Ways {
    let (groups, versions) = (texts(&rule["apiGroups"]), texts(&rule["apiVersions"]));
    let mut ways = Ways::new();
    for (index, resource) in texts(&rule["resources"]).into_iter().enumerate() {
        let place = spot.place(&format!("{path}.resources[{index}]"));
        let resource = match judge(resource) {
            Ok(resource) => resource,
            Err((Some(resource), message)) => {
                work.tell(Weight::Guessed, place.clone(), message);
                resource
            }
            Err((None, message)) => {
                work.tell(Weight::Lost, place, message);
                continue;
            }
        };
        let found: Ways = all_of(resource)
            .filter(|(_, group, version)| is_among(&groups, group) && is_among(&versions, version))
            .collect();
        if found.is_empty() {
            let message = format!(
                "no server has `{resource}` in group {}, version {}: it matched nothing; {}",
                quoted(&groups),
                quoted(&versions),
                served(resource)
            );
            work.tell(Weight::Lost, spot.place(&format!("{path}.apiGroups")), message);
        }
        ways.extend(found);
    }
    ways
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn is_among(list: &[&str], name: &str) -> bool {
    list.iter().any(|listed| *listed == "*" || *listed == name)
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Every way to post `resource`.
fn all_of(resource: &str) -> impl Iterator<Item = Way> {
    let (resource, groups) = SERVED.into_iter().find(|(served, _)| *served == resource).unwrap_or(("", &[]));
    groups.iter().flat_map(move |(group, versions)| versions.iter().map(move |version| (resource, *group, *version)))
}

fn served(resource: &str) -> String {
    let groups: BTreeSet<String> = all_of(resource).map(|(_, group, _)| format!("`\"{group}\"`")).collect();
    format!("write apiGroups {}", groups.into_iter().collect::<Vec<_>>().join(" or "))
}

/// A resource that a policy may target; else the probable resource, if there is one, and a message.
fn judge(resource: &str) -> Result<&'static str, (Option<&'static str>, String)> {
    if let Some((_, instead)) = INSTEAD.iter().find(|(known, _)| *known == resource) {
        return Err((None, format!("`{resource}` is no target: {instead}")));
    }
    if let Some(kind) = kinds().find(|kind| kind.resource == resource) {
        return Ok(&kind.resource);
    }
    if resource.starts_with('*') {
        let names: Vec<_> = kinds().map(|kind| kind.resource.as_str()).filter(|resource| *resource != "jobs").collect();
        let message =
            format!("`{resource}` is every resource there is: name those that are meant, of {}", names.join(", "));
        return Err((None, message));
    }
    if resource.contains('/') {
        return Err((
            None,
            format!("`{resource}` is a subresource, which is never created: write `deployments`, for example"),
        ));
    }
    match suggest(resource) {
        Some(meant) => {
            let message = format!("`{resource}` is no resource, and matched nothing: write `{meant}`; taken as that");
            Err((Some(meant), message))
        }
        None => Err((
            None,
            format!("`{resource}` is no built-in kind that carries a pod template: write `deployments`, say"),
        )),
    }
}

/// The resource that `word` probably stands for: as a kind, a short name or a misspelling.
fn suggest(word: &str) -> Option<&'static str> {
    let word = word.to_lowercase();
    let short = SHORT.iter().find(|(short, _)| *short == word).map(|(_, resource)| *resource);
    let is_kind = |kind: &&Arc<Kind>| kind.kind.as_ref().is_some_and(|kind| kind.to_lowercase() == word);
    let of_kind = kinds().find(is_kind).map(|kind| kind.resource.as_str());
    let distance = |kind: &&Arc<Kind>| strsim::damerau_levenshtein(&word, &kind.resource);
    let near = || {
        let nearest = kinds().min_by_key(distance)?;
        // Fewer differences for a short word, because more would match anything.
        (distance(&nearest) <= TYPOS.min(word.len() / 3)).then_some(nearest.resource.as_str())
    };
    short.or(of_kind).or_else(near).filter(|resource| *resource != "jobs")
}

/// `ways` as `spec.targets`. Reports targets that reach further, at `place`.
pub(super) fn targets(ways: &Ways, place: &Location, work: &mut Work<'_>) -> Vec<Value> {
    let mut targets = Vec::new();
    for kind in kinds() {
        let all: Ways = all_of(&kind.resource).collect();
        let wanted: Ways = ways.intersection(&all).copied().collect();
        if wanted.is_empty() {
            continue;
        }
        let missing: BTreeSet<&str> = all.difference(&wanted).map(|way| way.1).collect();
        let has_whole_group = all.iter().filter(|way| way.1 == kind.group).all(|way| wanted.contains(way));
        if !has_whole_group {
            targets.extend(
                wanted.iter().map(
                    |(resource, group, version)| json!({ "group": group, "version": version, "resource": resource }),
                ),
            );
            continue;
        }
        targets.push(json!({ "group": kind.group, "resource": kind.resource }));
        if !missing.is_empty() {
            let message = format!(
                "{} that are posted through {} get the template, too; the rules left them out",
                kind.resource,
                missing.into_iter().map(|group| format!("`{group}`")).collect::<Vec<_>>().join(", ")
            );
            work.tell(Weight::Differs, place.clone(), message);
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_versions_in_every_group() {
        for kind in kinds() {
            let groups: BTreeSet<&str> = all_of(&kind.resource).map(|way| way.1).collect();
            assert_eq!(groups, kind.groups.iter().map(String::as_str).collect(), "{}", kind.resource);
        }
        assert_eq!(SERVED.len(), kinds().count());
    }

    #[test]
    fn a_slip_of_the_pen_is_understood_and_another_word_is_not() {
        for (word, expected) in [
            ("deployement", Some("deployments")),
            ("deployements", Some("deployments")),
            ("Deployment", Some("deployments")),
            ("Deployments", Some("deployments")),
            ("deploy", Some("deployments")),
            ("deamonsets", Some("daemonsets")),
            ("DeamonSet", Some("daemonsets")),
            ("statefullsets", Some("statefulsets")),
            ("cronjob", Some("cronjobs")),
            ("pod", Some("pods")),
            ("Pod", Some("pods")),
            ("job", None),
            ("nodes", None),
            ("secrets", None),
            ("services", None),
            ("", None),
        ] {
            assert_eq!(suggest(word), expected, "{word}");
        }
    }
}
