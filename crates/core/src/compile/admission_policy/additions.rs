//! The patch with the additions of all fitting templates and their markers, as one expression.
//!
//! The resulting object is that of [`crate::inject::plan`] for the same workload. The operations differ, because CEL
//! cannot see its own earlier additions. Missing lists and maps are created empty first. Items before the user's are
//! inserted at the beginning one by one, from last to first.

use super::access::{Access, Fresh, Shape};
use super::cel::{all, any, list_of, not, quoted};
use super::delivery::Delivery;
use super::environment::{Environment as _, Variables};
use super::keys::{has_key, step_of_name};
use super::leaf::{Leaf, content};
use super::own::{Own, OwnList};
use super::owners::{self, Owned};
use super::{Cel, Inexpressible};
use super::{loss, presence};
use crate::api::v1alpha1::{Place, RawObject};
use crate::inject::marker;
use crate::inject::tables::{CONTAINERS, DEFAULT_CONTAINER, Entries, INIT_CONTAINERS, INNER, Inner, LISTS, List, MAPS};
use json_patch::jsonptr::Token;
use serde_json::Value;

/// Operations or list items, each with its condition.
type Conditional = Vec<(String, String)>;

/// A template that fits if its condition is true.
pub(super) struct Fitting<'a> {
    pub(super) delivery: Delivery<'a>,
    /// The condition of the injection.
    pub(super) fits: String,
    /// The user's containers that the template adds to.
    pub(super) own: Option<Own>,
}

/// All templates for one resource, by priority.
pub(super) struct Additions<'a> {
    templates: &'a [Fitting<'a>],
    access: &'a Access,
    owned: Owned,
}

impl<'a> Additions<'a> {
    pub(super) fn of(templates: &'a [Fitting<'a>], access: &'a Access, variables: &mut Variables) -> Self {
        let replaced = templates.iter().map(|Fitting { delivery, fits, .. }| {
            (delivery.template.marker_key.as_str(), fits.as_str(), delivery.kept.as_deref())
        });
        Self { templates, access, owned: Owned::beside(replaced, access, variables) }
    }
}

impl Additions<'_> {
    /// The operations, as a list of `JSONPatch`.
    ///
    /// # Errors
    /// If a part of a template cannot be expressed in CEL.
    pub(super) fn operations(&self, variables: &mut Variables) -> Cel {
        // Additions within the user's containers come first, because containers before them change their index.
        let mut dynamic = self.inner_parents();
        for at in (0..self.templates.len()).rev() {
            dynamic.extend(self.inner_items(at, Place::Before, variables)?);
        }
        for at in 0..self.templates.len() {
            dynamic.extend(self.inner_items(at, Place::After, variables)?);
        }
        let mut fixed = Conditional::new();
        for list in &LISTS {
            self.list_items(list, variables, &mut fixed)?;
        }
        if self.access.fresh.is_none() {
            self.metadata(variables, &mut fixed)?;
        }
        for at in 0..self.templates.len() {
            let marker = self.marker(at, variables).text()?;
            let (marker, is_new) = match self.access.fresh {
                // A fresh workload gets something, so the marker lists it.
                Some(_) => (variables.short("marker", marker), "true".to_owned()),
                None => {
                    let marker = variables.define("marker", &marker);
                    (marker, self.replaces_marker(at, variables))
                }
            };
            fixed.push((all(&[self.templates[at].fits.clone(), is_new]), self.add_marker(at, &marker)));
        }
        if dynamic.is_empty() {
            return Ok(list_of(&fixed));
        }
        dynamic.push(list_of(&fixed));
        Ok(format!("[{}].flatten()", dynamic.join(",\n")))
    }

    /// A literal path below the pod.
    fn path(&self, below: &str) -> String {
        quoted(&format!("{}{below}", self.access.pointer))
    }

    /// The conditions of earlier templates that may be injected together with the one at `at`, and for which `has_it`
    /// is true.
    fn earlier(&self, at: usize, has_it: impl Fn(&Fitting<'_>) -> bool) -> Vec<&str> {
        let own = &self.templates[at].delivery;
        let earlier = self.templates[..at].iter().filter(|other| other.delivery.meets(own) && has_it(other));
        earlier.map(|other| other.fits.as_str()).collect()
    }

    // Lists of the pod

    /// The condition that the item `key` of the template at `at` is added to `list`, if the template is injected.
    fn is_added(&self, at: usize, list: &'static List, key: &str, variables: &mut Variables) -> String {
        let mut terms = vec![self.access.has_no(key, list.field, variables)];
        let has_it = |other: &Fitting<'_>| {
            (list.items)(&other.delivery.template.spec).iter().any(|item| list.key_of(item) == key)
        };
        terms.extend(self.earlier(at, has_it).into_iter().map(not));
        all(&terms)
    }

    fn list_items(
        &self,
        list: &'static List,
        variables: &mut Variables,
        operations: &mut Conditional,
    ) -> Result<(), Inexpressible> {
        let (mut before, mut after) = (Conditional::new(), Conditional::new());
        let mut users = Vec::new();
        for (at, template) in self.templates.iter().enumerate() {
            let items = (list.items)(&template.delivery.template.spec);
            for item in items {
                let condition = all(&[template.fits.clone(), self.is_added(at, list, list.key_of(item), variables)]);
                let value = value_of(item, list.field, variables)?;
                match (list.place)(template.delivery.template, item) {
                    Place::Before => {
                        before.push((condition, add(&self.path(&format!("/spec/{}/0", list.field)), &value)))
                    }
                    Place::After => {
                        after.push((condition, add(&self.path(&format!("/spec/{}/-", list.field)), &value)))
                    }
                }
            }
            users.extend((!items.is_empty()).then(|| template.fits.clone()));
        }
        if !users.is_empty() {
            let missing = all(&[self.access.lacks(list.field), any(&users)]);
            operations.push((missing, add(&self.path(&format!("/spec/{}", list.field)), "[]")));
        }
        operations.extend(before.into_iter().rev());
        operations.extend(after);
        Ok(())
    }

    // The pod's metadata

    fn metadata(&self, variables: &mut Variables, operations: &mut Conditional) -> Result<(), Inexpressible> {
        let everyone: Vec<String> = self.templates.iter().map(|template| template.fits.clone()).collect();
        if let Some(lacks) = self.access.lacks_metadata() {
            operations.push((all(&[lacks, any(&everyone)]), add(&self.path("/metadata"), "{}")));
        }
        for map in &MAPS {
            let has_some = |template: &&Fitting<'_>| map.of(&template.delivery.template.spec).next().is_some();
            let users: Vec<String> = match map.field {
                // The markers are annotations too.
                "annotations" => everyone.clone(),
                _ => self.templates.iter().filter(has_some).map(|template| template.fits.clone()).collect(),
            };
            if users.is_empty() {
                continue;
            }
            let missing = all(&[self.access.lacks_entries(map.field), any(&users)]);
            operations.push((missing, add(&self.path(&format!("/metadata/{}", map.field)), "{}")));
            for (at, template) in self.templates.iter().enumerate() {
                for (key, value) in map.of(&template.delivery.template.spec) {
                    let condition = all(&[template.fits.clone(), self.is_new_entry(at, map, key, variables)]);
                    let value = Leaf::of(&value.as_str().into(), variables);
                    operations.push((condition, self.add_entry(map.field, key, &value)?));
                }
            }
            if map.field == "annotations" {
                for (at, template) in self.templates.iter().enumerate() {
                    let Some(is_named) = self.names_default(at, variables) else { continue };
                    let condition = all(&[template.fits.clone(), is_named]);
                    let first = Leaf::Expression(format!("{}[0]", self.names_of_users(variables)));
                    operations.push((condition, self.add_entry(map.field, DEFAULT_CONTAINER, &first)?));
                }
            }
        }
        Ok(())
    }

    /// The operation that adds the entry `key` to a map of the pod's metadata.
    fn add_entry(&self, field: &str, key: &str, value: &Leaf) -> Cel {
        Ok(add(&self.path(&format!("/metadata/{field}/{}", step(key))), &value.text()?))
    }

    /// The condition that the template at `at` is the first one with a container before the user's. Then the annotation
    /// for kubectl must name the user's first container. Assumes that the template is injected. None if the condition
    /// is never true.
    fn names_default(&self, at: usize, variables: &mut Variables) -> Option<String> {
        if sets_default(&self.templates[at]) {
            return None;
        }
        let is_first = self.goes_before(at, variables)?;
        let names = self.names_of_users(variables);
        let annotations = self.access.entries("annotations", variables);
        let key = quoted(DEFAULT_CONTAINER);
        let mut terms = vec![
            is_first,
            format!("size({names}) > 0"),
            format!("{names}[0] != \"\""),
            format!("!({key} in {annotations})"),
        ];
        let own = &self.templates[at].delivery;
        for (other_at, other) in self.templates.iter().enumerate().filter(|(_, other)| other.delivery.meets(own)) {
            if sets_default(other) {
                terms.push(not(&other.fits));
            } else if other_at < at
                && let Some(goes_before) = self.goes_before(other_at, variables)
            {
                terms.push(not(&all(&[other.fits.clone(), goes_before])));
            }
        }
        Some(all(&terms))
    }

    /// The names of the containers that no marker that stays lists.
    fn names_of_users(&self, variables: &mut Variables) -> String {
        let names = self.access.names(CONTAINERS, variables);
        if self.access.fresh.is_some() {
            return names;
        }
        let beginning = quoted(&format!("\"{}/spec/{CONTAINERS}/", self.access.pointer));
        let is_owned = self.owned.has_text(&format!("({beginning} + {} + \"\\\"\")", step_of_name("n", self.access)));
        variables.define("names_of_users", &format!("{names}.filter(n, !({is_owned}))"))
    }

    /// The condition that a container of the template at `at` is added before the user's. None if the template has no
    /// such container.
    fn goes_before(&self, at: usize, variables: &mut Variables) -> Option<String> {
        let template = &self.templates[at].delivery.template;
        let list = List::named(CONTAINERS)?;
        let items = (list.items)(&template.spec).iter().filter(|item| (list.place)(template, item) == Place::Before);
        let added: Vec<String> = items.map(|item| self.is_added(at, list, list.key_of(item), variables)).collect();
        (!added.is_empty()).then(|| any(&added))
    }

    /// The condition that the entry `key` of the template at `at` is added, if the template is injected.
    fn is_new_entry(&self, at: usize, map: &Entries, key: &str, variables: &mut Variables) -> String {
        let mut terms = vec![format!("!({} in {})", quoted(key), self.access.entries(map.field, variables))];
        let has_it = |other: &Fitting<'_>| map.of(&other.delivery.template.spec).any(|(own, _)| own == key);
        terms.extend(self.earlier(at, has_it).into_iter().map(not));
        all(&terms)
    }

    // The user's containers

    /// Creates the missing lists in the containers that get additions.
    fn inner_parents(&self) -> Vec<String> {
        let mut parents = Vec::new();
        for field in [INIT_CONTAINERS, CONTAINERS] {
            for inner in &INNER {
                let reaching: Vec<(String, &OwnList)> = self
                    .templates
                    .iter()
                    .filter(|template| !(inner.items)(&template.delivery.template.spec).is_empty())
                    .filter_map(|template| Some((template.fits.clone(), template.list(field)?)))
                    .collect();
                let Some((_, list)) = reaching.first() else { continue };
                let reached: Vec<String> =
                    reaching.iter().map(|(fits, list)| format!("({fits} && i in {})", list.indexes)).collect();
                let condition = format!("{} && {}", any(&reached), self.lacks_inner(&list.item("i"), inner));
                let create = add(&self.path_in(field, inner, ""), "[]");
                parents.push(format!("{}.transformList(i, c, {condition}, {create})", list.items()));
            }
        }
        parents
    }

    /// The path of the list `inner` of the container at `i`, followed by `below`.
    fn path_in(&self, field: &str, inner: &Inner, below: &str) -> String {
        format!(
            "{} + string(i) + {}",
            self.path(&format!("/spec/{field}/")),
            quoted(&format!("/{}{below}", inner.field))
        )
    }

    fn lacks_inner(&self, container: &str, inner: &Inner) -> String {
        match self.access.shape {
            Shape::Typed => format!("!has({container}.{})", inner.field),
            Shape::Free => format!("{container}.?{}.orValue(null) == null", inner.field),
        }
    }

    /// The operations for the items of the template at `at` that go to `place` in the user's containers.
    fn inner_items(&self, at: usize, place: Place, variables: &mut Variables) -> Result<Vec<String>, Inexpressible> {
        let template = &self.templates[at];
        let items: Vec<(&'static Inner, &RawObject)> = template.inner_items().collect();
        let is_there =
            |(inner, item): &(&'static Inner, &RawObject)| (inner.place)(template.delivery.template, item) == place;
        let mut numbers: Vec<usize> = (0..items.len()).filter(|&number| is_there(&items[number])).collect();
        let mut operations = Vec::new();
        if numbers.is_empty() {
            return Ok(operations);
        }
        let end = match place {
            Place::Before => "0",
            Place::After => "-",
        };
        if place == Place::Before {
            // The last item first, because each is inserted at the beginning.
            numbers.reverse();
        }
        for list in template.own.iter().flat_map(|own| &own.lists) {
            let values: Vec<Value> = items.iter().map(|(_, item)| Value::Object((*item).clone())).collect();
            let values = variables.define("inner", &content(&Value::Array(values), variables)?);
            let ends = items.iter().map(|(inner, _)| format!("/{}/{end}", inner.field)).collect::<Vec<_>>();
            let ends = super::cel::list(ends.iter().map(String::as_str));
            let path = format!("{} + string(i) + {ends}[n]", self.path(&format!("/spec/{}/", list.field)));
            let added = self.added_to_each(at, list, variables);
            let meant = match place == Place::After && numbers.len() == items.len() {
                true => format!("{added}[k]"),
                false => {
                    let numbers = numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                    format!("[{numbers}].filter(n, n in {added}[k])")
                }
            };
            let each = format!(
                "{}.transformList(k, i, {meant}.map(n, {})).flatten()",
                list.indexes,
                add(&path, &format!("{values}[n]"))
            );
            operations.push(format!("({} ? {each} : [])", template.fits));
        }
        Ok(operations)
    }

    /// For each of the user's containers in `list`, the numbers of the items of the template at `at` that are added to
    /// it.
    fn added_to_each(&self, at: usize, list: &OwnList, variables: &mut Variables) -> String {
        let items = self.templates[at].inner_items().enumerate();
        let numbers: Conditional = items
            .map(|(number, (inner, item))| (self.is_added_in(at, list, inner, item), number.to_string()))
            .collect();
        variables.define("added", &format!("{}.map(i, {})", list.indexes, list_of(&numbers)))
    }

    /// The condition that `item` of the template at `at` is added to the container at `i` of `list`, if the template is
    /// injected.
    fn is_added_in(&self, at: usize, list: &OwnList, inner: &Inner, item: &RawObject) -> String {
        let is_it = has_key(inner, item, "e", self.access);
        let items = self.access.list_in(&list.item("i"), inner.field);
        let mut terms = vec![format!("!{items}.exists(e, {is_it})")];
        let key = (inner.key)(item);
        let own = &self.templates[at].delivery;
        for other in self.templates[..at].iter().filter(|other| other.delivery.meets(own)) {
            let has_it = (inner.items)(&other.delivery.template.spec).iter().any(|item| (inner.key)(item) == key);
            if let Some(reached) = other.list(list.field).filter(|_| has_it) {
                terms.push(format!("!({} && i in {})", other.fits, reached.indexes));
            }
        }
        all(&terms)
    }

    // Markers

    fn add_marker(&self, at: usize, marker: &str) -> String {
        let key = &self.templates[at].delivery.template.marker_key;
        match self.access.fresh {
            // This saves one operation. Each costs the server as much as all conditions before it.
            Some(Fresh { has_annotations: false }) => {
                add(&self.path("/metadata/annotations"), &format!("{{{}: {marker}}}", quoted(key)))
            }
            _ => add(&self.path(&format!("/metadata/annotations/{}", step(key))), marker),
        }
    }

    /// The condition that the marker of the template at `at` is replaced: not if nothing is added and the workload has a
    /// current one.
    fn replaces_marker(&self, at: usize, variables: &mut Variables) -> String {
        let Delivery { policy, template, .. } = &self.templates[at].delivery;
        let annotations = self.access.entries("annotations", variables);
        let key = quoted(&template.marker_key);
        let value = format!("{annotations}[{key}]");
        let is_text =
            if self.access.shape == Shape::Free { format!(" && type({value}) == string") } else { String::new() };
        let (is_current, adds) = (presence::is_current(policy, &value), self.adds(at, variables));
        format!("!({key} in {annotations}{is_text} && {is_current} && !{adds})")
    }

    /// The condition that the template at `at` adds something.
    fn adds(&self, at: usize, variables: &mut Variables) -> String {
        let template = &self.templates[at];
        let spec = &template.delivery.template.spec;
        let mut terms = Vec::new();
        for list in &LISTS {
            let items = (list.items)(spec).iter();
            terms.extend(items.map(|item| self.is_added(at, list, list.key_of(item), variables)));
        }
        for map in &MAPS {
            terms.extend(map.of(spec).map(|(key, _)| self.is_new_entry(at, map, key, variables)));
        }
        for list in template.own.iter().flat_map(|own| &own.lists) {
            terms.push(format!("{}.exists(a, size(a) > 0)", self.added_to_each(at, list, variables)));
        }
        terms.extend(self.names_default(at, variables));
        variables.define("adds", &any(&terms))
    }

    /// The marker of the template at `at`.
    fn marker(&self, at: usize, variables: &mut Variables) -> Leaf {
        let mut record = Record::default();
        if let Some(entries) = variables.values.entries(self.templates[at].delivery.policy) {
            record.dynamic(entries, None);
        }
        self.record_metadata(&mut record);
        self.record_inner(at, variables, &mut record);
        for list in &LISTS {
            self.record_list(at, list, variables, &mut record);
        }
        for map in &MAPS {
            self.record_entries(at, map, variables, &mut record);
        }
        if let Some(is_named) = self.lists_default(at, variables) {
            record.added(is_named, self.pointer(&format!("/metadata/annotations/{}", step(DEFAULT_CONTAINER))));
        }
        let delivery = &self.templates[at].delivery;
        // A fresh workload has no marker.
        let kept = delivery.kept.as_deref().filter(|_| self.access.fresh.is_none());
        record.text(&delivery.template.hash, kept)
    }

    /// A pointer in a marker.
    fn pointer(&self, below: &str) -> String {
        owners::entry(&self.access.pointer, below)
    }

    /// The condition that the marker lists the item `key` of `list`, if its template is injected.
    fn is_listed(&self, list: &'static List, key: &str, variables: &mut Variables) -> String {
        let is_owned = self.owned.has(&self.pointer(&format!("/spec/{}/{}", list.field, step(key))));
        any(&[self.access.has_no(key, list.field, variables), is_owned])
    }

    /// The condition that the marker of the template at `at` lists the annotation for kubectl, if the template is injected.
    /// None if it never does.
    fn lists_default(&self, at: usize, variables: &mut Variables) -> Option<String> {
        let (list, template) = (List::named(CONTAINERS)?, &self.templates[at].delivery.template);
        let before = (list.items)(&template.spec).iter().filter(|item| (list.place)(template, item) == Place::Before);
        let listed: Vec<String> = before.map(|item| self.is_listed(list, list.key_of(item), variables)).collect();
        if listed.is_empty() || sets_default(&self.templates[at]) {
            return None;
        }
        let own = &self.templates[at].delivery;
        let mut ways: Vec<String> = self.names_default(at, variables).into_iter().collect();
        for (other_at, other) in self.templates.iter().enumerate().filter(|(_, other)| other.delivery.meets(own)) {
            ways.extend(self.names_default(other_at, variables).map(|names| all(&[other.fits.clone(), names])));
        }
        let annotations = self.access.entries("annotations", variables);
        let pointer = self.pointer(&format!("/metadata/annotations/{}", step(DEFAULT_CONTAINER)));
        ways.push(all(&[format!("{} in {annotations}", quoted(DEFAULT_CONTAINER)), self.owned.has(&pointer)]));
        Some(all(&[any(&listed), any(&ways)]))
    }

    /// The condition that a missing value is null; none if it is never recorded.
    fn is_null(&self, of: &str, field: &str) -> Option<String> {
        // Typed values are null if they are empty, and no user has written that null.
        (self.access.shape == Shape::Free).then(|| format!("{of}.?{field}.hasValue()"))
    }

    fn record_metadata(&self, record: &mut Record) {
        let pod = &self.access.pod;
        let lacks = self.access.lacks_metadata();
        let is_null = lacks.as_ref().and_then(|_| self.is_null(pod, "metadata"));
        let pointer = self.pointer("/metadata");
        record
            .created(self.owned.created(&pointer, lacks.unwrap_or_else(|| "false".to_owned()), &[], is_null), pointer);
        self.record_map("annotations", &[], record);
    }

    /// Records a map of the metadata that was created, if one of `entries` is listed. Without `entries`, the marker itself is one.
    fn record_map(&self, field: &str, entries: &[String], record: &mut Record) {
        let pod = &self.access.pod;
        let is_null = self
            .is_null(&format!("{pod}.metadata"), field)
            .map(|is_null| format!("({pod}.?metadata.orValue(null) != null && {is_null})"));
        let pointer = self.pointer(&format!("/metadata/{field}"));
        let created = self.owned.created(&pointer, self.access.lacks_entries(field), entries, is_null);
        record.created(created, pointer);
    }

    fn record_list(&self, at: usize, list: &'static List, variables: &mut Variables, record: &mut Record) {
        let items = (list.items)(&self.templates[at].delivery.template.spec);
        let listed: Vec<String> = items.iter().map(|item| self.is_listed(list, list.key_of(item), variables)).collect();
        if items.is_empty() {
            return;
        }
        let pointer = self.pointer(&format!("/spec/{}", list.field));
        let is_null = self.is_null(&self.access.spec, list.field);
        let created = self.owned.created(&pointer, self.access.lacks(list.field), &listed, is_null);
        record.created(created, pointer);
        for (item, is_listed) in items.iter().zip(listed) {
            record.added(is_listed, self.pointer(&format!("/spec/{}/{}", list.field, step(list.key_of(item)))));
        }
    }

    fn record_entries(&self, at: usize, map: &Entries, variables: &mut Variables, record: &mut Record) {
        let keys: Vec<&String> = map.of(&self.templates[at].delivery.template.spec).map(|(key, _)| key).collect();
        if keys.is_empty() {
            return;
        }
        let there = self.access.entries(map.field, variables);
        let entry = |key: &String| {
            let pointer = self.pointer(&format!("/metadata/{}/{}", map.field, step(key)));
            (any(&[format!("!({} in {there})", quoted(key)), self.owned.has(&pointer)]), pointer)
        };
        let entries: Vec<(String, String)> = keys.into_iter().map(entry).collect();
        // The annotations are recorded already, because the marker itself is one.
        if map.field != "annotations" {
            let listed: Vec<String> = entries.iter().map(|(is_listed, _)| is_listed.clone()).collect();
            self.record_map(map.field, &listed, record);
        }
        entries.into_iter().for_each(|(is_listed, pointer)| record.added(is_listed, pointer));
    }

    /// Records the additions within containers, container by container, in the order in which templates first add to
    /// them.
    fn record_inner(&self, at: usize, variables: &mut Variables, record: &mut Record) {
        let template = &self.templates[at];
        let Some(own) = &template.own else { return };
        let before =
            self.templates[..at].iter().filter(|other| other.own.is_some() && other.delivery.meets(&template.delivery));
        let before: Vec<&Fitting<'_>> = before.collect();
        if before.iter().all(|other| other.reaches_like(template)) {
            for list in &own.lists {
                let (added, nulls) = self.records_of_each(at, list, variables);
                record.dynamic(format!("{added}.flatten()"), nulls.map(|nulls| format!("{nulls}.flatten()")));
            }
            return;
        }
        let all_of_them: Vec<&Fitting<'_>> = before.into_iter().chain([template]).collect();
        for (rank, first) in all_of_them.iter().enumerate() {
            for reached in first.own.iter().flat_map(|own| &own.lists) {
                let Some(list) = template.list(reached.field) else { continue };
                let mut terms = vec![format!("i in {}", reached.indexes)];
                terms.extend((first.fits != template.fits).then(|| first.fits.clone()));
                terms.extend(all_of_them[..rank].iter().filter_map(|earlier| {
                    Some(format!("!({} && i in {})", earlier.fits, earlier.list(reached.field)?.indexes))
                }));
                let condition = all(&terms);
                let of_those = |records: String| {
                    format!("{}.transformList(k, i, {condition}, {records}[k]).flatten()", list.indexes)
                };
                let (added, nulls) = self.records_of_each(at, list, variables);
                record.dynamic(of_those(added), nulls.map(of_those));
            }
        }
    }

    /// For each of the user's containers in `list`, the numbers of the items of the template at `at` that its marker lists.
    /// `beginnings` are the beginnings of its entries, and `ends` the rests for each item.
    fn listed_of_each(
        &self,
        at: usize,
        list: &OwnList,
        (beginning, ends): (&str, &str),
        variables: &mut Variables,
    ) -> String {
        let numbers: Conditional = self.templates[at]
            .inner_items()
            .enumerate()
            .map(|(number, (inner, item))| {
                let is_it = has_key(inner, item, "e", self.access);
                let items = self.access.list_in(&list.item("i"), inner.field);
                let is_owned = self.owned.has_text(&format!("({beginning} + {ends}[{number}])"));
                (any(&[format!("!{items}.exists(e, {is_it})"), is_owned]), number.to_string())
            })
            .collect();
        variables.define("listed", &format!("{}.map(i, {})", list.indexes, list_of(&numbers)))
    }

    /// For each of the user's containers in `list`, the marker entries for the additions of the template at `at`, and
    /// those entries that were null.
    fn records_of_each(&self, at: usize, list: &OwnList, variables: &mut Variables) -> (String, Option<String>) {
        let container = list.item("i");
        let name = step_of_name(&self.access.text_in(&container, "name"), self.access);
        let beginning = format!("{} + {name}", quoted(&format!("\"{}/spec/{}/", self.access.pointer, list.field)));
        let end = |below: &str| Value::from(below).to_string().trim_start_matches('"').to_owned();
        let items: Vec<(&'static Inner, &RawObject)> = self.templates[at].inner_items().collect();
        let ends: Vec<String> =
            items.iter().map(|(inner, item)| end(&format!("/{}/{}", inner.field, step(&(inner.key)(item))))).collect();
        let ends = super::cel::list(ends.iter().map(String::as_str));
        let listed = format!("{}[k]", self.listed_of_each(at, list, (&beginning, &ends), variables));
        let (mut parts, mut nulls) = (Vec::new(), Conditional::new());
        for inner in &INNER {
            let is_in = |(own, _): &(&'static Inner, &RawObject)| own.field == inner.field;
            let Some(first) = items.iter().position(is_in) else { continue };
            let last = first + items.iter().filter(|item| is_in(item)).count() - 1;
            let range = format!("n >= {first} && n <= {last}");
            let parent = format!("{beginning} + {}", quoted(&end(&format!("/{}", inner.field))));
            let (created, null) = self.owned.created_text(
                &format!("({parent})"),
                self.lacks_inner(&container, inner),
                &[format!("{listed}.exists(n, {range})")],
                self.is_null(&container, inner.field),
            );
            nulls.extend(null.map(|null| (null, parent.clone())));
            parts.push(list_of(&[(created, parent)]));
            parts.push(format!("{listed}.filter(n, {range}).map(n, {beginning} + {ends}[n])"));
        }
        let each = |list_of_texts: &str| format!("{}.transformList(k, i, {list_of_texts})", list.indexes);
        let nulls = (!nulls.is_empty()).then(|| variables.define("nulls", &each(&list_of(&nulls))));
        (variables.define("records", &each(&format!("[{}].flatten()", parts.join(",\n")))), nulls)
    }
}

impl Fitting<'_> {
    /// The additions within the user's own containers, each with its list.
    fn inner_items(&self) -> impl Iterator<Item = (&'static Inner, &RawObject)> {
        let spec = &self.delivery.template.spec;
        INNER.iter().flat_map(|inner| (inner.items)(spec).iter().map(move |item| (inner, item)))
    }

    /// The containers of the list `field` that the template adds to.
    fn list(&self, field: &str) -> Option<&OwnList> {
        self.own.iter().flat_map(|own| &own.lists).find(|list| list.field == field)
    }

    /// Whether both add to the same containers of every workload.
    fn reaches_like(&self, other: &Fitting<'_>) -> bool {
        let indexes = |template: &Fitting<'_>| -> Vec<String> {
            template.own.iter().flat_map(|own| &own.lists).map(|list| list.indexes.clone()).collect()
        };
        indexes(self) == indexes(other)
    }
}

/// Whether the template itself names kubectl's default container.
fn sets_default(template: &Fitting<'_>) -> bool {
    let metadata = template.delivery.template.spec.metadata.as_ref();
    metadata.is_some_and(|metadata| metadata.annotations.contains_key(DEFAULT_CONTAINER))
}

/// A marker under construction.
#[derive(Default)]
struct Record {
    added: Vec<Recorded>,
    nulls: Vec<Recorded>,
}

enum Recorded {
    /// One pointer, with its condition.
    One(String, String),
    /// A list of texts.
    Many(String),
}

impl Record {
    fn added(&mut self, condition: String, pointer: String) {
        self.added.push(Recorded::One(condition, pointer));
    }

    /// Records a created list or map. `condition`: that it is listed, and that it was null before.
    fn created(&mut self, (condition, is_null): (String, Option<String>), pointer: String) {
        self.nulls.extend(is_null.map(|is_null| Recorded::One(is_null, pointer.clone())));
        self.added(condition, pointer);
    }

    /// The additions, if they are the same for all workloads.
    fn known(&self) -> Option<String> {
        let added = self.added.iter().filter_map(|part| match part {
            Recorded::One(condition, _) if condition == "false" => None,
            Recorded::One(condition, pointer) if condition == "true" => Some(Some(pointer.as_str())),
            _ => Some(None),
        });
        let added: Vec<&str> = added.collect::<Option<_>>()?;
        self.nulls.is_empty().then(|| added.join(","))
    }

    fn dynamic(&mut self, added: String, nulls: Option<String>) {
        self.added.push(Recorded::Many(added));
        self.nulls.extend(nulls.map(Recorded::Many));
    }

    /// The marker with that hash. What the marker `kept` lists comes first, if there is one.
    fn text(self, hash: &str, kept: Option<&str>) -> Leaf {
        if let Some(added) = self.known().filter(|_| kept.is_none()) {
            return Leaf::Literal(Value::from(listing(hash, &added) + marker::END));
        }
        let is_ever_null = kept.is_some() || !self.nulls.is_empty();
        let [mut added, mut nulls] = [self.added, self.nulls].map(texts);
        if let Some(kept) = kept {
            let with = |listed: String, texts: String| {
                format!("[{listed}.map(t, \"\\\"\" + t + \"\\\"\")].map(l, l + {texts}.filter(t, !(t in l)))[0]")
            };
            added = with(loss::added(kept, "s"), added);
            nulls = with(loss::nulls(kept, "s"), nulls);
        }
        let mut text = format!("{} + {added}.join(\",\")", quoted(&listing(hash, "")));
        if is_ever_null {
            let beginning = quoted(marker::NULLS);
            text.push_str(&format!(" + [{nulls}].map(n, size(n) == 0 ? \"\" : {beginning} + n.join(\",\"))[0]"));
        }
        Leaf::Expression(format!("{text} + {}", quoted(marker::END)))
    }
}

/// A marker that lists `added`, without its end.
fn listing(hash: &str, added: &str) -> String {
    format!("{}{hash}{}{added}", marker::BEGINNING, marker::ADDED)
}

/// A list of texts.
fn texts(listed: Vec<Recorded>) -> String {
    let mut lists = Vec::new();
    let mut run = Conditional::new();
    for listed in listed {
        match listed {
            Recorded::One(condition, pointer) => run.push((condition, quoted(&pointer))),
            Recorded::Many(list) => {
                if !run.is_empty() {
                    lists.push(list_of(&std::mem::take(&mut run)));
                }
                lists.push(list);
            }
        }
    }
    if lists.is_empty() {
        return list_of(&run);
    }
    lists.extend((!run.is_empty()).then(|| list_of(&run)));
    format!("[{}].flatten()", lists.join(",\n"))
}

/// An operation. `path` and `value` are expressions.
fn add(path: &str, value: &str) -> String {
    format!("JSONPatch{{op: \"add\", path: {path}, value: {value}}}")
}

fn value_of(item: &RawObject, stem: &str, variables: &mut Variables) -> Cel {
    Ok(variables.short(&format!("value_{stem}"), content(&Value::Object(item.clone()), variables)?))
}

/// `text` as a step of a JSON pointer.
fn step(text: &str) -> String {
    Token::new(text).encoded().to_owned()
}
