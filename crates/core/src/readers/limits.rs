//! What the admission plugin LimitRanger does: it refuses pods with too little or too much of a resource.

use super::case::Case;
use super::facts::Fact;
use super::sums::{Amounts, Defaults, Sums, items_of, of};
use crate::api::code::Code;
use crate::inject::Conflict;
use crate::inject::value::{at, text};
use serde_json::{Map, Value};

/// A LimitRange that refuses the pod because of the template.
pub(super) fn exceeded(case: &Case<'_>) -> Option<(String, Conflict)> {
    let added = case.added();
    let mut ranges = case.facts.all(Fact::LimitRange, case.namespace()).peekable();
    ranges.peek()?;
    let defaults = Defaults::of(case.facts, case.namespace());
    let [bare, after] = [case.bare, case.after].map(|workload| defaults.of_pod(workload));
    for (range, object) in ranges {
        for item in items_of(object) {
            let found = match text(item, "type") {
                "Container" => added.iter().find_map(|(_, container)| {
                    let name = text(container, "name");
                    let path = broken(item, &defaults.complete(container))?;
                    Some((case.path_of(name), path, format!("container `{name}` of the template")))
                }),
                "Pod" if !added.is_empty() => broken(item, &after)
                    .filter(|broken| self::broken(item, &bare).as_ref() != Some(broken))
                    .map(|path| ("containers".to_owned(), path, "the pod with the template".to_owned())),
                _ => None,
            };
            if let Some((field, path, who)) = found {
                let bound =
                    at(item, &path).map(|bound| bound.as_str().map_or_else(|| bound.to_string(), str::to_owned));
                let bound = format!("`{}: {}`", path.join("."), bound.unwrap_or_default());
                let message =
                    format!("{who} does not keep {bound} of LimitRange `{range}`: the server refuses such pods");
                return Some((field, Conflict { code: Code::AdmissionDenied, message }));
            }
        }
    }
    let above = added.iter().find_map(|(_, container)| {
        let Sums { requests, limits } = defaults.complete(container);
        let resource = requests.iter().find(|(name, amount)| limits.get(*name).is_some_and(|limit| *amount > limit))?.0;
        Some((text(container, "name"), resource.clone()))
    });
    above.map(|(name, resource)| {
        let message = format!(
            "container `{name}` of the template requests more {resource} than the limit that a LimitRange gives it; set \
             `resources.limits.{resource}`"
        );
        (case.path_of(name), Conflict { code: Code::AdmissionDenied, message })
    })
}

/// The bound of `item` that `sums` breaks.
fn broken<'a>(item: &'a Map<String, Value>, sums: &Sums) -> Option<[&'a str; 2]> {
    let Sums { requests, limits } = sums;
    let of_resource = |map: &'static str, is_broken: &dyn Fn(&String, i128) -> bool| -> Option<[&'a str; 2]> {
        let own = at(item, &[map])?.as_object()?;
        let bounds = of(item, map);
        own.keys()
            .find(|name| bounds.get(*name).is_some_and(|bound| is_broken(name, *bound)))
            .map(|name| [map, name.as_str()])
    };
    let amount = |amounts: &Amounts, name: &String| amounts.get(name).copied();
    let too_little = |name: &String, least: i128| {
        amount(requests, name).is_none_or(|it| it < least) || amount(limits, name).is_some_and(|it| it < least)
    };
    let too_much = |name: &String, most: i128| {
        amount(limits, name).is_none_or(|it| it > most) || amount(requests, name).is_some_and(|it| it > most)
    };
    let too_far = |name: &String, ratio: i128| match (amount(requests, name), amount(limits, name)) {
        // The ratio is in billionths, too.
        (Some(request), Some(limit)) if request > 0 && limit > 0 => {
            limit.saturating_mul(1_000_000_000) > request.saturating_mul(ratio)
        }
        _ => true,
    };
    of_resource("min", &too_little)
        .or_else(|| of_resource("max", &too_much))
        .or_else(|| of_resource("maxLimitRequestRatio", &too_far))
}
