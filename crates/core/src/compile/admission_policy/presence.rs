//! Whether a workload has the content that a marker claims: [`crate::inject::presence`] in another language.

use super::Cel;
use super::access::{Access, Shape};
use super::cel::{all, any, list, matches_one, quoted};
use super::environment::Variables;
use super::equal::{Comparison, Repeated};
use super::keys::has_key;
use super::leaf::Leaf;
use crate::api::v1alpha1::RawObject;
use crate::inject::marker;
use crate::inject::presence::Forms;
use crate::inject::tables::{CONTAINERS, INIT_CONTAINERS, INNER, Inner, LISTS, List, MAPS, reaches_in};
use crate::policy::Policy;
use std::collections::BTreeSet;

/// The condition that the text `value` begins and ends as a marker of `policy` with the current hash.
pub(super) fn is_current(policy: &Policy, value: &str) -> String {
    let beginning = quoted(&format!("{}{}{}", marker::BEGINNING, policy.template_hash(), marker::ADDED));
    let (end, most) = (quoted(marker::END), marker::MAX_LENGTH);
    format!("{value}.startsWith({beginning}) && {value}.endsWith({end}) && size({value}) <= {most}")
}

/// The content of a policy in a pod.
pub(super) struct Claimed<'a> {
    pub(super) policy: &'a Policy,
    /// The forms of its containers.
    pub(super) forms: Forms,
    pub(super) access: &'a Access,
    /// All policies with a template for the resource.
    pub(super) policies: &'a [&'a Policy],
}

impl Claimed<'_> {
    /// The condition that all of it is in the pod.
    ///
    /// # Errors
    /// If the template cannot be compared in CEL.
    pub(super) fn is_whole(&self, variables: &mut Variables) -> Cel {
        let (spec, access) = (&self.policy.as_written().spec, self.access);
        let mut terms: Vec<String> = access.is_well_formed(&LISTS, &MAPS).into_iter().collect();
        for list in &LISTS {
            for item in (list.items)(spec) {
                let is_container = list.field == CONTAINERS;
                let mut found = Vec::new();
                if !is_container || self.forms.plain {
                    found.push(self.is_there(list, item, list.field, variables)?);
                }
                if is_container && self.forms.native {
                    let mut native = item.clone();
                    native.insert("restartPolicy".into(), "Always".into());
                    found.push(self.is_there(list, &native, INIT_CONTAINERS, variables)?);
                }
                terms.push(variables.short("is_there", any(&found)));
            }
        }
        for map in &MAPS {
            for (key, value) in map.of(spec) {
                let (there, key) = (access.entries(map.field, variables), quoted(key));
                let value = Leaf::of(&value.as_str().into(), variables).text()?;
                terms.push(format!("({key} in {there} && {there}[{key}] == {value})"));
            }
        }
        if reaches_in(spec) {
            let inner = self.one_has(&self.has_inner(variables)?);
            terms.push(variables.short("is_there", inner));
        }
        Ok(all(&terms))
    }

    /// The condition that the list `field` of the pod has `item`, one of `list`.
    fn is_there(&self, list: &List, item: &RawObject, field: &str, variables: &Variables) -> Cel {
        let access = self.access;
        let items = access.items(field);
        let is_it = format!("{} == {}", access.text_in("c", "name"), quoted(list.key_of(item)));
        let equal = Comparison::after_admission(access, variables).fields(item, "c", list.fields, "")?;
        let is_equal = access.map_and("c", &format!("({is_it} && {equal})"));
        let some = format!("{items}.exists(c, {is_equal})");
        Ok(match access.shape {
            // The server rejects a second item of that name.
            Shape::Typed => some,
            Shape::Free => {
                let is_other = access.map_and("c", &format!("({is_it} && !({equal}))"));
                format!("({some} && !{items}.exists(c, {is_other}))")
            }
        })
    }

    /// The condition that the container `c` has all that the policy adds to the user's containers.
    fn has_inner(&self, variables: &Variables) -> Cel {
        let access = self.access;
        let mut wanted = Vec::new();
        for inner in &INNER {
            for item in (inner.items)(&self.policy.as_written().spec) {
                let items = access.list_in("c", inner.field);
                let is_it = has_key(inner, item, "e", access);
                let equal = Comparison::after_admission(access, variables).fields(item, "l", inner.fields, "");
                wanted.push(Repeated { list: &items, is_it: &is_it, item: "e" }.last("l", "false", equal)?);
            }
        }
        Ok(all(&wanted))
    }

    /// The condition that the container `c` may be the user's own, and has a name that the policy reaches. Containers that any
    /// policy of the resource names are not: that is cheaper than to read all markers, and servers below 1.33 have no
    /// functions to do it.
    pub(super) fn is_reached(&self) -> String {
        let (globs, name) = (&self.policy.as_written().spec.app_containers, self.access.text_in("c", "name"));
        let specs = self.policies.iter().map(|policy| &policy.as_written().spec);
        let containers = specs.flat_map(|spec| spec.containers.iter().chain(&spec.init_containers));
        let taken: BTreeSet<&str> = containers.filter_map(|own| own.get("name")?.as_str()).collect();
        let mut terms = Vec::new();
        if !taken.is_empty() {
            terms.push(format!("!({name} in {})", list(taken)));
        }
        if !globs.is_empty() {
            terms.push(matches_one(&name, globs));
        }
        all(&terms)
    }

    /// The condition that `has` is true for one of the containers `c` that the policy reaches, or that there is no such
    /// container.
    fn one_has(&self, has: &str) -> String {
        let (access, is_reached) = (self.access, self.is_reached());
        let lists =
            LISTS.iter().filter(|list| self.policy.as_written().reaches(list)).map(|list| access.items(list.field));
        let lists: Vec<String> = lists.collect();
        let some = |term: &str| {
            let term = access.map_and("c", term);
            any(&lists.iter().map(|items| format!("{items}.exists(c, {term})")).collect::<Vec<_>>())
        };
        format!("(!{} || {})", some(&is_reached), some(&all(&[is_reached.clone(), has.to_owned()])))
    }

    /// The condition that everything that the policy adds has its name in the pod, for a built-in kind and without variables.
    /// Such a pod has the content, or other content in its place, which nothing replaces.
    pub(super) fn has_names(&self) -> String {
        let (spec, access) = (&self.policy.as_written().spec, self.access);
        let entries = |field: &str| format!("{}.?metadata.?{field}.orValue({{}})", access.pod);
        let mut terms = Vec::new();
        for own in &LISTS {
            let names: Vec<&str> = (own.items)(spec).iter().map(|item| own.key_of(item)).collect();
            if names.is_empty() {
                continue;
            }
            let is_native = own.field == CONTAINERS && self.forms.native;
            let fields = [own.field, INIT_CONTAINERS];
            let found = fields[..if is_native { 2 } else { 1 }]
                .iter()
                .map(|field| format!("{}.exists(c, {} == n)", access.items(field), access.text_in("c", "name")));
            terms.push(format!("{}.all(n, {})", list(names), any(&found.collect::<Vec<_>>())));
        }
        for map in &MAPS {
            let keys: Vec<&str> = map.of(spec).map(|(key, _)| key.as_str()).collect();
            if !keys.is_empty() {
                terms.push(format!("{}.all(n, n in {})", list(keys), entries(map.field)));
            }
        }
        if reaches_in(spec) {
            let has = |inner: &'static Inner| {
                let items = access.list_in("c", inner.field);
                let has_it = move |item| format!("{items}.exists(e, {})", has_key(inner, item, "e", access));
                (inner.items)(spec).iter().map(has_it)
            };
            let has: Vec<String> = INNER.iter().flat_map(has).collect();
            terms.push(self.one_has(&all(&has)));
        }
        all(&terms)
    }
}
