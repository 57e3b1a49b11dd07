//! The user's own containers: the containers that no matching template names and no marker lists.

use super::access::{Access, Shape};
use super::cel::{all, any, matches_one, quoted};
use super::delivery::Delivery;
use super::environment::{Environment as _, Variables};
use super::keys::step_of_name;
use crate::api::MARKER_PREFIX;
use crate::inject::marker;
use crate::inject::tables::{CONTAINERS, INIT_CONTAINERS, INNER, Inner, reaches_in};
use std::collections::BTreeSet;

/// The user's containers that one template adds to.
#[derive(Clone)]
pub(super) struct Own {
    /// The condition that every container has a unique name.
    pub(super) can_be_told_apart: String,
    /// The lists in the order of processing.
    pub(super) lists: Vec<OwnList>,
}

/// The user's containers of one list.
#[derive(Clone)]
pub(super) struct OwnList {
    /// The field of the list.
    pub(super) field: &'static str,
    /// All items of the list.
    items: String,
    /// The indexes of the user's containers.
    pub(super) indexes: String,
}

impl OwnList {
    pub(super) fn items(&self) -> &str {
        &self.items
    }

    /// The container at `index`.
    pub(super) fn item(&self, index: &str) -> String {
        format!("{}[{index}]", self.items)
    }
}

/// The user's containers that the template of `delivery` adds to, if all of `deliveries` may match; none if it adds to
/// none.
pub(super) fn of(
    delivery: &Delivery<'_>,
    deliveries: &[Delivery<'_>],
    access: &Access,
    variables: &mut Variables,
) -> Option<Own> {
    let spec = &delivery.template.spec;
    if !reaches_in(spec) {
        return None;
    }
    let fields: Vec<&'static str> = match spec.include_init_containers {
        true => vec![INIT_CONTAINERS, CONTAINERS],
        false => vec![CONTAINERS],
    };
    let ours = ours(deliveries, variables);
    let marked = marked(deliveries, access, variables);
    let name = access.text_in("c", "name");
    let mut terms = vec![format!("!({name} in {ours})"), format!("!{}", is_marked(&name, &marked, access))];
    if !spec.app_containers.is_empty() {
        terms.push(matches_one(&name, &spec.app_containers));
    }
    let is_own = access.map_and("c", &all(&terms));
    let lists: Vec<OwnList> = fields
        .iter()
        .map(|&field| {
            let items = variables.define(&format!("items_{field}"), &access.items(field));
            let indexes = format!("{items}.transformList(i, c, {is_own}, i)");
            let indexes = variables.define(&format!("own_{field}"), &indexes);
            OwnList { field, items, indexes }
        })
        .collect();
    Some(Own { can_be_told_apart: can_be_told_apart(&lists, access, variables), lists })
}

/// The names of all containers in matching templates.
fn ours(deliveries: &[Delivery<'_>], variables: &mut Variables) -> String {
    let names = deliveries.iter().filter_map(|delivery| {
        let spec = &delivery.template.spec;
        let all = spec.containers.iter().chain(&spec.init_containers);
        let names: BTreeSet<&str> = all.filter_map(|container| container.get("name")?.as_str()).collect();
        (!names.is_empty()).then(|| format!("{} ? {} : []", delivery.matches, super::cel::list(names)))
    });
    let names: Vec<String> = names.collect();
    match names.is_empty() {
        true => variables.define("ours", "[\"\"].filter(n, false)"),
        false => variables.define("ours", &format!("[{}].flatten()", names.join(",\n"))),
    }
}

/// The lists of pointers in all readable markers, without those of matching policies, which are replaced. Each pointer has a
/// comma before it.
fn marked(deliveries: &[Delivery<'_>], access: &Access, variables: &mut Variables) -> String {
    let mut terms = Vec::new();
    for delivery in deliveries {
        let term = format!("!(k == {} && {})", quoted(&delivery.template.marker_key), delivery.matches);
        if !terms.contains(&term) {
            terms.push(term);
        }
    }
    let listed = format!("{}.transformList(k, t, {}, {LISTED})", readable(access, variables), all(&terms));
    variables.define("marked", &listed)
}

/// The list of pointers in `t`, one of [`readable`].
pub(super) const LISTED: &str = "t.split(\"],\\\"nulls\\\":[\")[0]";

/// All readable markers by their key: the text after the hash, with a comma before it. Empty if they are too long together.
pub(super) fn readable(access: &Access, variables: &mut Variables) -> String {
    let annotations = access.entries("annotations", variables);
    let mut terms = vec![format!("k.startsWith({})", quoted(MARKER_PREFIX))];
    if access.shape == Shape::Free {
        terms.push("type(v) == string".to_owned());
    }
    let sizes = format!("{annotations}.transformList(k, v, {}, size(v))", all(&terms));
    let is_short = variables.define("short_markers", &format!("([0] + {sizes}).sum() <= {}", marker::MAX_LENGTH));
    // The length first, because a match costs more than all else.
    terms.extend([is_short, format!("v.matches({})", quoted(&marker::pattern()))]);
    let start = marker::BEGINNING.len() + crate::digest::LENGTH + marker::ADDED.len();
    let text = format!("\",\" + string(v).substring({start})");
    variables.define("readable", &format!("{annotations}.transformMap(k, v, {}, {text})", all(&terms)))
}

/// The condition that a marker lists the container `name`.
fn is_marked(name: &str, marked: &str, access: &Access) -> String {
    let name = step_of_name(name, access);
    let lists = [CONTAINERS, INIT_CONTAINERS].map(|list| {
        let beginning = quoted(&format!(",\"{}/spec/{list}/", access.pointer));
        format!("t.contains({beginning} + {name} + \"\\\"\")")
    });
    format!("{marked}.exists(t, {})", any(&lists))
}

fn can_be_told_apart(lists: &[OwnList], access: &Access, variables: &mut Variables) -> String {
    let names: Vec<String> = lists.iter().map(|list| access.names(list.field, variables)).collect();
    let names = variables.define("names", &names.join(" + "));
    let is_name = match access.shape {
        Shape::Typed => "n != \"\"".to_owned(),
        Shape::Free => format!("n != \"\" && !n.matches({})", quoted(r#"[\x00-\x1f"\\]"#)),
    };
    let mut terms = vec![format!("{names}.all(n, {is_name})"), format!("size({names}) == size({names}.distinct())")];
    if access.shape == Shape::Free {
        for list in lists {
            let is_list = |inner: &Inner| {
                let value = format!("c.?{}.orValue(null)", inner.field);
                format!("({value} == null || type({value}) == list)")
            };
            let are_lists = all(&INNER.iter().map(is_list).collect::<Vec<_>>());
            terms.push(format!("{}.all(i, [{}].all(c, {are_lists}))", list.indexes, list.item("i")));
        }
    }
    variables.define("told_apart", &all(&terms))
}
