//! The places of a policy's items among the other items of their lists.
//!
//! An item of a list of containers or within a container goes before or after the user's items. Other webhooks and users
//! add items wherever they like, so an item is on the wrong side only if *all* of the user's items are on the other one.
//! An item that another policy lists, too, stays where that one has put it.

use crate::api::v1alpha1::Place;
use crate::inject::Template;
use crate::inject::listed::{Listed, What, locate};
use crate::inject::marker::{self, Marker};

use crate::inject::overlay;
use crate::inject::owners::{self, inherit_created};
use crate::inject::tables::{Scope, key_in};
use crate::workload::Workload;
use json_patch::jsonptr::PointerBuf;
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};

/// The listed items of each list, by the steps to the list.
type Lists = BTreeMap<Vec<String>, BTreeMap<String, Listed>>;

/// The items that `marker` alone lists: none of the `shared` pointers.
fn lists(pod: &str, marker: &Marker, shared: &HashSet<String>) -> Lists {
    let mut lists = Lists::new();
    let own = marker.added.iter().filter(|pointer| !shared.contains(*pointer));
    let listed = own.filter_map(|pointer| Listed::parse(pod, pointer));
    // What is shared with an added container comes and goes with it.
    let is_shared = |listed: &Listed| {
        let container = || PointerBuf::from_tokens(listed.tokens.iter().take(3));
        matches!(listed.what, What::Inner(..)) && marker.added.contains(&format!("{pod}{}", container()))
    };
    let is_item = |listed: &Listed| matches!(listed.what, What::Item(_) | What::Inner(..)) && !is_shared(listed);
    for listed in listed.filter(is_item) {
        let (key, list) = listed.split();
        lists.entry(list.to_vec()).or_default().insert(key.to_owned(), listed);
    }
    lists
}

/// All pointers in the markers on `workload`.
fn marked(workload: &Workload) -> HashSet<String> {
    marker::all(workload).flat_map(|marker| marker.added).collect()
}

/// A list of which some items are a policy's own. The places between the other items are gaps, numbered from 0.
struct MixedList {
    /// For each other item, whether it is the user's: no marker lists it.
    others: Vec<bool>,
    /// The policy's own items, with their gaps, in order.
    own: Vec<(String, usize)>,
    /// Whether sides and order mean anything.
    is_ordered: bool,
}

impl MixedList {
    /// The list at `list`, whose own items are those for which `is_own` is true. `marked`: the pointers of all markers. `marker` is that of
    /// the own items.
    fn of(
        workload: &Workload,
        list: &[String],
        what: What,
        (marked, marker): (&HashSet<String>, &Marker),
        is_own: impl Fn(&str) -> bool,
    ) -> Option<Self> {
        let pod = workload.pod()?;
        let items = pod.pointer(&locate(pod, list).ok()?)?.as_array()?;
        // An author who applies an overlay again moves it to its place in the manifest.
        let is_ordered =
            !matches!(what, What::Item(list) if list.scope != Scope::Containers || overlay::is_in(marker, list.field));
        let mut row = Self { others: Vec::new(), own: Vec::new(), is_ordered };
        for item in items {
            let key = key_of(list, item);
            if is_own(&key) {
                row.own.push((key, row.others.len()));
            } else {
                row.others.push(!marked.contains(&pointer(workload, list, Some(&key))));
            }
        }
        Some(row)
    }

    /// Whether an item of that `place` may be in `gap`.
    fn is_right(&self, place: Place, gap: usize) -> bool {
        let side = match place {
            Place::Before => &self.others[gap..],
            Place::After => &self.others[..gap],
        };
        !self.is_ordered || !self.others.contains(&true) || side.contains(&true)
    }

    /// The gap in which the item `key` of that `place` stays.
    fn stays(&self, place: Place, key: &str) -> Option<usize> {
        let (_, gap) = self.own.iter().find(|(own, _)| own == key)?;
        self.is_right(place, *gap).then_some(*gap)
    }

    /// The gaps for the items `keys`, all of that `place`. Items that stay keep their gaps; if their order differs, they
    /// swap them. The others go with the item before them. If no item stays, all take the place of earlier ones.
    fn gaps_for(&self, place: Place, keys: &[&str]) -> Vec<usize> {
        let mut kept: Vec<usize> = keys.iter().filter_map(|key| self.stays(place, key)).collect();
        kept.sort_unstable();
        let vacated = self.own.iter().map(|(_, gap)| *gap).filter(|gap| self.is_right(place, *gap));
        let (vacated, end) = match place {
            Place::Before => (vacated.min(), 0),
            Place::After => (vacated.max(), self.others.len()),
        };
        let mut gap = kept.first().copied().or(vacated).unwrap_or(end);
        let mut kept = kept.into_iter();
        let gap_of = |key: &&str| {
            if self.stays(place, key).is_some() {
                gap = kept.next().unwrap_or(gap);
            }
            gap
        };
        keys.iter().map(gap_of).collect()
    }
}

fn key_of(list: &[String], item: &Value) -> String {
    let field = list.last().map_or("", String::as_str);
    item.as_object().map(|item| key_in(field, item)).unwrap_or_default()
}

/// The pointer of a list, or of its item `key`, as in markers.
fn pointer(workload: &Workload, list: &[String], key: Option<&str>) -> String {
    let pod = workload.kind.pod_path.iter().flatten().map(String::as_str);
    PointerBuf::from_tokens(pod.chain(list.iter().map(String::as_str)).chain(key)).to_string()
}

/// True if and only if what `marker` lists is in the lists, and on the sides, where `template` puts it.
pub(super) fn is_in_place(workload: &Workload, template: &Template, marker: &Marker) -> bool {
    let marked = marked(workload);
    let shared = owners::others(workload, |policy| policy == template.policy);
    lists(&workload.pod_pointer(), marker, &shared).iter().all(|(list, own)| {
        let in_other_list = |listed: &Listed| {
            matches!(listed.what, What::Item(_))
                && template.item(listed).is_none()
                && template.names_container(listed.split().0)
        };
        if own.values().any(in_other_list) {
            return false;
        }
        let Some(what) = own.values().next().map(|listed| listed.what) else { return true };
        let Some(row) = MixedList::of(workload, list, what, (&marked, marker), |key| own.contains_key(key)) else {
            return true;
        };
        let places = row.own.iter().filter_map(|(key, gap)| Some((template.item(&own[key])?.1, *gap, key.as_str())));
        let places: Vec<(Place, usize, &str)> = places.collect();
        // The user had no items in a list that was created.
        let is_created = marker.added.contains(&pointer(workload, list, None));
        let is_right = || places.iter().all(|(place, gap, _)| row.is_right(*place, *gap));
        !row.is_ordered || (is_created || is_right()) && is_in_order(template, what, &places)
    })
}

/// Whether items of one list are in the order in which `template` puts them.
fn is_in_order(template: &Template, what: What, places: &[(Place, usize, &str)]) -> bool {
    let rank = |place: &Place, key: &str| (*place == Place::After, template.rank(what, key));
    places.is_sorted_by_key(|(place, _, key)| rank(place, key))
}

/// The pointer of the first list in which items are added, removed or moved from `before` to `after`, of the lists in
/// which their markers `old` and `new` list items. Not of the `shared` ones.
pub(super) fn moved(
    before: &Workload,
    after: &Value,
    old: &Marker,
    new: &Marker,
    shared: &HashSet<String>,
) -> Option<String> {
    let (at, after) = (before.pod_pointer(), before.with_body(after.clone()));
    let (old, new) = (lists(&at, old, shared), lists(&at, new, shared));
    let keys = |workload: &Workload, list: &[String]| {
        let pod = workload.pod()?;
        let items = pod.pointer(&locate(pod, list).ok()?)?.as_array()?;
        Some(items.iter().map(|item| key_of(list, item)).collect::<Vec<_>>())
    };
    let own = |lists: &Lists, list: &[String]| lists.get(list).map(|own| own.keys().cloned().collect::<Vec<_>>());
    let is_moved = |list: &&Vec<String>| own(&old, list) != own(&new, list) || keys(before, list) != keys(&after, list);
    old.keys().chain(new.keys()).find(is_moved).map(|list| pointer(before, list, None))
}

/// Moves the items that `new` lists in `after` to the places where the items of `old` are in `before`. An item that is
/// exactly that of `template` already keeps the defaults of the server. The `shared` items stay where they are.
pub(super) fn settle(
    before: &Workload,
    after: &mut Value,
    template: &Template,
    (old, new): (&Marker, &mut Marker),
    shared: &HashSet<String>,
) {
    let at = before.pod_pointer();
    let (settling, mut earlier) = (Settling { before, template, marked: marked(before) }, lists(&at, old, shared));
    for (list, own) in lists(&at, new, shared) {
        settling.list(after, (&list, new), &own, &earlier.remove(&list).unwrap_or_default());
    }
    settling.parts(after, old, new);
    keep_created(before, &template.policy, new);
    let annotations = after.pointer_mut(&format!("{at}/metadata/annotations"));
    if let Some(Value::Object(annotations)) = annotations {
        annotations.insert(template.marker_key.clone(), new.to_value());
    }
}

/// What is the same for all lists of a workload.
struct Settling<'a> {
    before: &'a Workload,
    template: &'a Template,
    /// All pointers in the markers on the workload.
    marked: HashSet<String>,
}

impl Settling<'_> {
    /// Moves the items `own` of the list at `list` in the marker `new`, which were `earlier`.
    fn list(
        &self,
        after: &mut Value,
        (list, new): (&[String], &Marker),
        own: &BTreeMap<String, Listed>,
        earlier: &BTreeMap<String, Listed>,
    ) {
        let Self { before, template, marked } = self;
        let Some(what) = own.values().next().map(|listed| listed.what) else { return };
        let Some(pod) = after.pointer_mut(&before.pod_pointer()) else { return };
        let Some(Value::Array(items)) = locate(pod, list).ok().and_then(|list| pod.pointer_mut(&list)) else { return };
        // A volume that stays because it is mounted is no longer the policy's.
        let stays = |key: &str| !own.contains_key(key) && items.iter().any(|item| key_of(list, item) == key);
        let was_own: HashSet<&String> = earlier.keys().filter(|key| !stays(key)).collect();
        let Some(row) = MixedList::of(before, list, what, (marked, new), |key| was_own.contains(&key.to_owned()))
        else {
            return;
        };
        let (mut mine, others): (Vec<Value>, Vec<Value>) =
            std::mem::take(items).into_iter().partition(|item| own.contains_key(&key_of(list, item)));
        let keys: Vec<String> = mine.iter().map(|item| key_of(list, item)).collect();
        let mut gaps = vec![0; mine.len()];
        for side in [Place::Before, Place::After] {
            let is_here = |key: &String| template.item(&own[key]).is_some_and(|(_, place)| place == side);
            let here: Vec<usize> = (0..mine.len()).filter(|&index| is_here(&keys[index])).collect();
            let names: Vec<&str> = here.iter().map(|&index| keys[index].as_str()).collect();
            for (index, gap) in here.into_iter().zip(row.gaps_for(side, &names)) {
                gaps[index] = gap;
            }
        }
        for (item, key) in mine.iter_mut().zip(&keys).filter(|(_, key)| was_own.contains(key)) {
            keep_defaults(before, &own[key], item);
        }
        // Because items that go before the user's come first. Sorting moves none of them to the wrong side.
        gaps.sort_unstable();
        let mut mine: Vec<(Value, usize)> = mine.into_iter().zip(gaps).collect();
        for (place, other) in others.into_iter().enumerate() {
            items.extend(mine.extract_if(.., |(_, gap)| *gap <= place).map(|(item, _)| item));
            items.push(other);
        }
        items.extend(mine.into_iter().map(|(item, _)| item));
    }
}

impl Settling<'_> {
    /// Puts the parts of values that `new` lists to the places of those that `old` lists.
    fn parts(&self, after: &mut Value, old: &Marker, new: &Marker) {
        let (at, Some(before)) = (self.before.pod_pointer(), self.before.pod()) else { return };
        let parts = |added: &mut dyn Iterator<Item = &String>| -> Vec<Listed> {
            added.filter_map(|pointer| Listed::parse(&at, pointer)).filter(|listed| listed.part().is_some()).collect()
        };
        let (old, new) = (parts(&mut old.added.iter()), parts(&mut new.added.iter()));
        let all = parts(&mut self.marked.iter());
        let Some(pod) = after.pointer_mut(&at) else { return };
        for listed in &new {
            let Some((_, part)) = listed.part() else { continue };
            let mut earlier = old.iter().filter(|earlier| earlier.is_beside(listed));
            // Of several, which policies had whose place it takes, all but one go.
            let (Some(earlier), None) = (earlier.next(), earlier.next()) else { continue };
            let (Some((_, was)), Some(value)) = (earlier.part(), earlier.joined(before)) else { continue };
            let others = all.iter().filter(|other| other.is_beside(listed) && other.part() != earlier.part());
            let others: Vec<_> = others.filter_map(|other| Some(other.part()?.1)).collect();
            let is_alike = (was.side, was.separator) == (part.side, part.separator);
            if let Some(value) = was.replaced(value, Some(part.text), &others).filter(|_| is_alike) {
                listed.set_joined(pod, value);
            }
        }
    }
}

/// Replaces `item` by the one at its place in `before`, if that is the same with defaults of the server.
fn keep_defaults(before: &Workload, listed: &Listed, item: &mut Value) {
    let there = before.pod().and_then(|pod| pod.pointer(&locate(pod, &listed.tokens).ok()?));
    let Some((wanted, there)) = item.as_object().zip(there.and_then(Value::as_object)) else { return };
    let host_network = before.pod_spec().is_some_and(|spec| spec.get("hostNetwork").is_some_and(|on| on == true));
    if listed.difference(wanted, there, host_network).is_none() {
        *item = Value::Object(there.clone());
    }
}

/// Adds the created lists and maps of all markers that hold something of `new`. They exist because of policies, and the
/// last one to be undone removes them.
fn keep_created(workload: &Workload, policy: &str, new: &mut Marker) {
    let others: Vec<Marker> = marker::all(workload).collect();
    inherit_created(&workload.pod_pointer(), policy, new, &others, |_| true);
}
