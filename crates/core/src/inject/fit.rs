//! Injection of the fields of the pod ([`super::field`]): conflicts of templates and workloads, and the additions.

use super::Template;
use super::equal::{self, Difference};
use super::field::{DEFAULT_GRACE, FieldEntry, GRACE, POD_LISTS, PROCESSES, PodList, is_same, numbers};
use super::marker::Marker;
use super::merge::{Addition, Group, Shape, add};
use super::obstacle::Conflict;
use super::owners::Owned;
use super::pod::Pod;
use super::tables::Fields;
use crate::api::code::Code;
use crate::api::pod_security::Standard;
use crate::api::v1alpha1::{Place, PodFields};
use json_patch::PatchOperation;
use serde_json::Value;

/// How many name servers a pod may have.
const MAX_NAMESERVERS: usize = 3;
/// How many search domains a pod may have, and how many characters they may have together.
const MAX_SEARCHES: (usize, usize) = (32, 2048);
/// The same on servers below [`LONG_SEARCHES_SINCE`].
const MAX_SEARCHES_BEFORE: (usize, usize) = (6, 256);
/// The minor version of the first servers that take more (feature `ExpandedDNSConfig`).
const LONG_SEARCHES_SINCE: u32 = 26;

/// What the pod has of a field of a template.
pub(super) enum Gap {
    /// Nothing.
    Lacking(String),
    /// Something else.
    Different(String),
}

impl Template {
    /// The fields of the pod that it sets; none if it sets none.
    fn pod_fields(&self) -> Option<&PodFields> {
        self.spec.pod.as_ref()
    }

    /// The least grace period that it asks for.
    fn grace(&self) -> Option<i64> {
        Some(self.pod_fields()?.termination_grace_period_seconds?.at_least)
    }

    fn shares_processes(&self) -> bool {
        self.pod_fields().is_some_and(|fields| fields.share_process_namespace == Some(true))
    }

    /// The first difference between the item that it adds to `list` at `key` and the only one there in the pod's `spec`; none if one of
    /// the two is missing.
    pub(super) fn pod_difference(&self, list: &'static PodList, key: &str, spec: &Value) -> Option<Difference> {
        let (_, wanted) = self.pod_items(list).into_iter().find(|(own, _)| own == key)?;
        let mut there = list.there(spec).filter(|(own, _)| own == key);
        let (Some((_, there)), None) = (there.next(), there.next()) else { return None };
        equal::mutual_difference(wanted.as_object()?, there.as_object()?, Fields::Closed)
    }

    /// The items that it adds to `list`, each with its key.
    fn pod_items(&self, list: &PodList) -> Vec<(String, Value)> {
        self.pod_fields().map(|fields| list.of(fields)).unwrap_or_default()
    }

    /// Whether it adds what the `steps` of the entry `entry` of a marker list. `spec` is that of a pod: if it has the item, it has
    /// to be the same.
    pub(super) fn fits(&self, entry: FieldEntry, steps: &[String], spec: Option<&Value>) -> bool {
        match entry {
            FieldEntry::Processes => self.shares_processes(),
            FieldEntry::Grace => {
                self.grace().is_some_and(|least| steps.iter().rev().nth(1).is_some_and(|own| *own == least.to_string()))
            }
            FieldEntry::Item(list) => self.pod_items(list).iter().any(|(key, item)| {
                let there = spec.and_then(|spec| list.there(spec).filter(|(own, _)| own == key).last());
                steps.last() == Some(key) && there.is_none_or(|(_, there)| is_same(list, item, there))
            }),
        }
    }
}

/// Every field of `template` that the pod does not have.
pub(super) fn gaps(pod: &Pod<'_>, template: &Template) -> Vec<Gap> {
    let mut gaps = Vec::new();
    if template.pod_fields().is_none() {
        return gaps;
    }
    for list in &POD_LISTS {
        let items = template.pod_items(list);
        if !items.is_empty() && is_malformed(pod, list) {
            gaps.push(Gap::Different(format!("`spec.{}` of the pod is no list", list.path.join("."))));
            continue;
        }
        for (key, item) in items {
            let there = pod.spec_value().and_then(|spec| list.there(spec).filter(|(own, _)| *own == key).last());
            match there {
                None => gaps.push(Gap::Lacking(format!("{} `{key}` of the pod is missing", list.noun))),
                Some((_, there)) if is_same(list, &item, there) => {}
                Some(_) => {
                    gaps.push(Gap::Different(format!("{} `{key}` of the pod exists with another value", list.noun)))
                }
            }
        }
    }
    match pod.value(&[PROCESSES]) {
        _ if !template.shares_processes() => {}
        None => gaps.push(Gap::Lacking(format!("`spec.{PROCESSES}` of the pod is missing"))),
        Some(Value::Bool(true)) => {}
        Some(_) => gaps.push(Gap::Different(format!("`spec.{PROCESSES}` of the pod is not true"))),
    }
    match (template.grace(), pod.value(&[GRACE])) {
        (Some(least), there) if there.is_none_or(Value::is_i64) => {
            let there = there.and_then(Value::as_i64).unwrap_or(DEFAULT_GRACE);
            let most = if template.shows_values() { least.to_string() } else { "that of the template".to_owned() };
            let told = || Gap::Lacking(format!("`spec.{GRACE}` of the pod is {there}, below {most}"));
            gaps.extend((there < least).then(told));
        }
        (Some(_), _) => gaps.push(Gap::Different(format!("`spec.{GRACE}` of the pod is no number"))),
        (None, _) => {}
    }
    gaps
}

fn is_malformed(pod: &Pod<'_>, list: &PodList) -> bool {
    let is_of = |depth: usize, is: fn(&Value) -> bool| pod.value(&list.path[..depth]).is_none_or(is);
    !(is_of(list.path.len(), Value::is_array) && (list.path.len() < 2 || is_of(1, Value::is_object)))
}

/// A field of the pod that `template` would have to change.
pub(super) fn conflict(pod: &Pod<'_>, template: &Template, standard: Standard) -> Option<Conflict> {
    let different = |gap| if let Gap::Different(message) = gap { Some(message) } else { None };
    let message = gaps(pod, template).into_iter().find_map(different);
    let message = message.map(|message| Conflict { code: Code::PodSettingConflict, message });
    message.or_else(|| together(pod, &[template], standard))
}

/// A limit of the server that the pod would exceed with the items of all `templates`.
pub(super) fn together(pod: &Pod<'_>, templates: &[&Template], standard: Standard) -> Option<Conflict> {
    templates.iter().find(|template| template.pod_fields().is_some_and(|fields| fields.dns_config.is_some()))?;
    let spec = pod.spec_value()?;
    let conflict = |what: String| Some(Conflict { code: Code::PodSettingConflict, message: what });
    for list in POD_LISTS.iter().filter(|list| ["nameservers", "searches"].contains(&list.path[list.path.len() - 1])) {
        let theirs: Vec<String> = list.there(spec).map(|(key, _)| key).collect();
        let mut all = theirs.clone();
        for (key, _) in templates.iter().flat_map(|template| template.pod_items(list)) {
            if !all.contains(&key) {
                all.push(key);
            }
        }
        if all.len() == theirs.len() {
            continue;
        }
        let length = |items: &[String]| items.iter().map(String::len).sum::<usize>() + items.len().saturating_sub(1);
        if list.path.contains(&"nameservers") {
            if all.len() > MAX_NAMESERVERS {
                return conflict(format!("the pod would have {} name servers, more than {MAX_NAMESERVERS}", all.len()));
            }
            continue;
        }
        let is_in = |(most, longest): (usize, usize), items: &[String]| items.len() <= most && length(items) <= longest;
        // A pod with more shows that its server takes more.
        let takes_more = standard.is_since(LONG_SEARCHES_SINCE) || !is_in(MAX_SEARCHES_BEFORE, &theirs);
        let limit = if takes_more { MAX_SEARCHES } else { MAX_SEARCHES_BEFORE };
        if !is_in(limit, &all) {
            let (most, longest) = limit;
            return conflict(format!(
                "the pod would have {} search domains with {} characters, more than {most} or {longest}",
                all.len(),
                length(&all)
            ));
        }
    }
    None
}

/// An option that both set differently. All else of both fits into one pod.
pub(super) fn collision(one: &Template, other: &Template) -> Option<String> {
    POD_LISTS.iter().find_map(|list| {
        let others = other.pod_items(list);
        one.pod_items(list).into_iter().find_map(|(key, item)| {
            let (_, there) = others.iter().find(|(own, _)| *own == key)?;
            (!is_same(list, &item, there)).then(|| format!("add {} `{key}` with different values", list.noun))
        })
    })
}

/// The steps of the pointer `below`.
fn steps_of(below: &str) -> Vec<String> {
    below.split('/').skip(1).map(str::to_owned).collect()
}

/// What `templates` add to fields of the pod.
#[derive(Default)]
pub(super) struct Fits {
    pub(super) groups: Vec<Group>,
    pub(super) operations: Vec<PatchOperation>,
    /// Owners, each with what its marker lists besides the groups.
    records: Vec<(usize, Marker)>,
    /// The owners of a longer grace period.
    adding: Vec<usize>,
}

impl Fits {
    pub(super) fn of(pod: &Pod<'_>, templates: &[&Template], owned: &Owned) -> Self {
        let mut fits = Self::default();
        for list in &POD_LISTS {
            let mut group = Group::at(pod.pointer_below_spec(list.path), Shape::List);
            for (owner, template) in templates.iter().enumerate() {
                for (key, value) in template.pod_items(list) {
                    let is_in = pod.spec_value().is_some_and(|spec| list.there(spec).any(|(own, _)| own == key));
                    group.give(Addition { owner, key, value, place: Place::After }, is_in, owned);
                }
            }
            fits.groups.push(group);
        }
        fits.processes(pod, templates, owned);
        fits.grace(pod, templates, owned);
        fits
    }

    fn processes(&mut self, pod: &Pod<'_>, templates: &[&Template], owned: &Owned) {
        let mut group = Group::at(pod.pointer_below_spec(&[]), Shape::Map);
        for (owner, _) in templates.iter().enumerate().filter(|(_, template)| template.shares_processes()) {
            let addition = Addition { owner, key: PROCESSES.to_owned(), value: true.into(), place: Place::After };
            group.give(addition, pod.value(&[PROCESSES]).is_some(), owned);
            self.null(pod, owner, PROCESSES, pod.pointer_below_spec(&[PROCESSES]).to_string());
        }
        self.groups.push(group);
    }

    /// The longest grace period. Each marker lists that of its template, with the one of before any of them.
    fn grace(&mut self, pod: &Pod<'_>, templates: &[&Template], owned: &Owned) {
        let (field, there) = (pod.pointer_below_spec(&[GRACE]), pod.value(&[GRACE]).and_then(Value::as_i64));
        let entries = || {
            let entry = |(pointer, null): (&str, bool)| {
                Some((numbers(&steps_of(pointer.strip_prefix(field.as_str())?))?, null))
            };
            owned.below(&field).filter_map(entry)
        };
        // The longest one is in effect; in whatever order markers are read, it is the same.
        let before = entries().max().filter(|((least, _), _)| there == Some(*least));
        let was = before.map_or(there, |((_, was), _)| was);
        for (owner, template) in templates.iter().enumerate() {
            let Some(least) = template.grace().filter(|least| *least > was.unwrap_or(DEFAULT_GRACE)) else { continue };
            let was = was.map(|was| was.to_string()).unwrap_or_default();
            let pointer = pod.pointer_below_spec(&[GRACE, &least.to_string(), &was]).to_string();
            self.records.push((owner, Marker { added: vec![pointer.clone()], ..Marker::default() }));
            if before.is_some_and(|(_, null)| null) {
                self.records.push((owner, Marker { nulls: vec![pointer.clone()], ..Marker::default() }));
            }
            self.null(pod, owner, GRACE, pointer);
            self.adding.extend((least > there.unwrap_or(DEFAULT_GRACE)).then_some(owner));
        }
        let most = self.adding.iter().filter_map(|owner| templates[*owner].grace()).max();
        self.operations.extend(most.map(|most| add(field.clone(), most.into())));
    }

    /// True if and only if the template `owner` makes the grace period longer.
    pub(super) fn adds(&self, owner: usize) -> bool {
        self.adding.contains(&owner)
    }

    /// Records that the field `field` was null, if it was.
    fn null(&mut self, pod: &Pod<'_>, owner: usize, field: &str, pointer: String) {
        if pod.spec_value().and_then(|spec| spec.get(field)).is_some_and(Value::is_null) {
            self.records.push((owner, Marker { nulls: vec![pointer], ..Marker::default() }));
        }
    }

    /// What the marker of `owner` lists besides the groups.
    pub(super) fn records_of(&self, owner: usize) -> impl Iterator<Item = &Marker> {
        self.records.iter().filter(move |(own, _)| *own == owner).map(|(_, record)| record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::Position;
    use crate::inject::round_trip::{goes_as_it_came, injected};
    use crate::inject::{LeftoverCause, plan, undo};
    use crate::workload::{Kind, Workload};
    use proptest::prelude::*;
    use serde_json::json;

    fn template(policy: &str, pod: &Value) -> Template {
        Template::new(policy, &serde_json::from_value(json!({ "pod": pod })).unwrap(), Position::default())
    }

    fn pod(mut spec: Value) -> Workload {
        spec["containers"] = json!([{"name": "app"}]);
        Workload::new(Kind::find("", "pods").unwrap(), json!({ "spec": spec }))
    }

    #[test]
    fn of_two_grace_periods_the_longer_one_holds_and_the_other_is_left_when_it_goes() {
        let grace = |policy, seconds| template(policy, &json!({"terminationGracePeriodSeconds": {"atLeast": seconds}}));
        let (short, long) = (grace("short", 40), grace("long", 90));
        for (users, expected) in [(json!({}), [40, 90]), (json!({GRACE: 10}), [40, 90]), (json!({GRACE: 60}), [60, 90])]
        {
            let users = pod(users);
            let both = injected(&users, &[&short, &long]);
            assert_eq!(both.body["spec"][GRACE], 90);
            let without = |policy| undo(&both, Some(policy)).unwrap().body["spec"][GRACE].clone();
            assert_eq!([without("long"), without("short")], expected.map(|seconds| json!(seconds)));
            assert_eq!(undo(&both, None).unwrap().body, users.body);
        }
        let mut edited = injected(&pod(json!({})), &[&short]);
        edited.body["spec"][GRACE] = 45.into();
        let undone = undo(&edited, None).unwrap();
        assert_eq!((&undone.body["spec"][GRACE], undone.leftovers[0].cause), (&json!(45), LeftoverCause::Edited));
        assert_eq!(
            injected(&pod(json!({})), &[&grace("none", 30)]).body["spec"].get(GRACE),
            None,
            "the default is enough"
        );
    }

    #[test]
    fn a_grace_period_that_a_user_edited_between_two_policies_is_planned_in_one_way() {
        let grace = |policy, seconds| template(policy, &json!({"terminationGracePeriodSeconds": {"atLeast": seconds}}));
        let mut users = injected(&pod(json!({GRACE: 20})), &[&grace("z", 60)]);
        users.body["spec"][GRACE] = 45.into();
        let both = injected(&users, &[&grace("a", 90)]);
        for _ in 0..20 {
            let marker = grace("m", 120).marker(&injected(&both, &[&grace("m", 120)])).unwrap();
            assert_eq!(marker.added.last(), Some(&format!("/spec/{GRACE}/120/45")));
        }
    }

    #[test]
    fn another_value_of_an_option_is_an_edit_with_its_field() {
        let ours =
            template("p", &json!({"dnsConfig": {"options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]}}));
        for (options, expected) in [
            (json!([{"name": "ndots", "value": "2"}, {"name": "edns0", "value": ""}]), ""),
            (
                json!([{"name": "ndots", "value": "5"}, {"name": "edns0"}]),
                "ndots in dnsConfig.options has another `value`: `5` here, `2` from the policy",
            ),
            (
                json!([{"name": "ndots"}, {"name": "edns0"}]),
                "ndots in dnsConfig.options has another `value`: none here, `2` from the policy",
            ),
            (json!([{"name": "edns0"}]), "ndots in dnsConfig.options is gone, or has another value"),
            (
                json!([{"name": "ndots", "value": "2"}, {"name": "ndots", "value": "2"}, {"name": "edns0"}]),
                "ndots in dnsConfig.options is gone, or has another value",
            ),
        ] {
            let mut edited = injected(&pod(json!({})), &[&ours]);
            let marker = ours.marker(&edited).unwrap();
            edited.body["spec"]["dnsConfig"]["options"] = options.clone();
            let edits = crate::inject::edits::edits(&edited, &ours, &marker);
            assert_eq!(crate::inject::all_told(&edits), expected, "{options}");
            assert_eq!(
                crate::inject::edited::edited(&edited, &ours, &marker).is_none(),
                expected.is_empty(),
                "{options}"
            );
        }
    }

    #[test]
    fn a_limit_of_the_server_is_a_conflict_before_it_is_a_refusal() {
        let dns = |policy, servers: &[&str]| template(policy, &json!({"dnsConfig": {"nameservers": servers}}));
        let users = pod(json!({"dnsConfig": {"nameservers": ["10.0.0.1", "10.0.0.2"]}}));
        let (one, other) = (dns("one", &["10.0.0.3"]), dns("other", &["10.0.0.4"]));
        let fits = |templates: &[&Template]| {
            plan(&users, templates, templates, Standard::NEWEST).map_err(|it| it.code).is_ok()
        };
        assert!(fits(&[&one]) && fits(&[&other]) && !fits(&[&one, &other]));
        assert!(!fits(&[&dns("two", &["10.0.0.3", "10.0.0.4"])]) && fits(&[&dns("there", &["10.0.0.2"])]));
    }

    #[test]
    fn search_domains_are_as_many_as_the_server_takes() {
        let domains = |count: usize, length: usize| -> Vec<String> {
            (0..count).map(|index| format!("{}{index:02}", "d".repeat(length - 2))).collect()
        };
        let ours = |length: usize| template("dns", &json!({"dnsConfig": {"searches": ["o".repeat(length)]}}));
        let (old, new) = ([Some(13), Some(25)], [Some(26), Some(37), None]);
        for (theirs, length, is_taken_by_old, is_taken) in [
            (domains(5, 9), 9, true, true),
            (domains(6, 9), 9, false, true),
            (domains(5, 42), 42, false, true),
            (domains(5, 42), 41, true, true),
            // The pod shows that its server takes more.
            (domains(7, 9), 9, true, true),
            (domains(31, 9), 9, true, true),
            (domains(32, 9), 9, false, false),
            (domains(10, 200), 38, true, true),
            (domains(10, 200), 39, false, false),
        ] {
            let users = pod(json!({"dnsConfig": {"searches": theirs}}));
            let ours = ours(length);
            for (minors, expected) in [(&old[..], is_taken_by_old), (&new[..], is_taken)] {
                for minor in minors {
                    let planned = plan(&users, &[&ours], &[&ours], Standard::of(*minor));
                    assert_eq!(planned.is_ok(), expected, "{minor:?} {} {length}", users.body);
                }
            }
        }
    }

    fn fields() -> impl Strategy<Value = Value> {
        let some = |all: Vec<Value>| proptest::sample::subsequence(all.clone(), 0..=all.len());
        let seconds = proptest::option::of(31..35_i64);
        (
            any::<bool>(),
            some(vec![
                json!({"ip": "10.0.0.1", "hostnames": ["a", "b"]}),
                json!({"ip": "10.0.0.1", "hostnames": ["a/~"]}),
            ]),
            some(vec![
                json!({"key": "a", "operator": "Exists"}),
                json!({"key": "b", "value": "c", "effect": "NoExecute"}),
            ]),
            some(vec![json!({"name": "ndots", "value": "2"}), json!({"name": "edns0"})]),
            some(vec![json!("a.example"), json!("b.example")]),
            seconds,
        )
            .prop_map(|(processes, aliases, tolerations, options, searches, seconds)| {
                let mut pod = json!({"hostAliases": aliases, "tolerations": tolerations});
                pod["dnsConfig"] = json!({"options": options, "searches": searches});
                if processes {
                    pod[PROCESSES] = true.into();
                }
                if let Some(seconds) = seconds {
                    pod[GRACE] = seconds.into();
                }
                pod
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1_000, ..ProptestConfig::default() })]

        #[test]
        fn fields_go_as_they_came_in_any_order(
            users in prop_oneof![
                Just(json!({})), fields(),
                Just(json!({"dnsConfig": null, "hostAliases": null, "tolerations": null, GRACE: null, PROCESSES: null})),
            ],
            wanted in proptest::collection::vec(fields(), 1..4),
            order in any::<prop::sample::Index>(),
        ) {
            let all: Vec<Template> = wanted.into_iter().enumerate().map(|(number, mut pod)| {
                if let Some(seconds) = pod[GRACE].as_i64() {
                    pod[GRACE] = json!({ "atLeast": seconds });
                }
                template(&format!("p{number}"), &pod)
            }).collect();
            let all: Vec<&Template> = all.iter().collect();
            let users = pod(users);
            let full = injected(&users, &all);
            goes_as_it_came(&users, &full, &all, &order)?;
        }
    }
}
