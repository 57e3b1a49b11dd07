//! The fields of the pod that templates set: `template.pod`, as entries of markers and as items of lists.
//!
//! | entry of a marker, below `spec` | meaning |
//! |---|---|
//! | `shareProcessNamespace` | it was set to true |
//! | `hostAliases/KEY`, `tolerations/KEY`, `dnsConfig/options/KEY` and so on | an item of that key was added |
//! | `terminationGracePeriodSeconds/60/30` | it was raised to 60 at least, and was 30; without a number: absent |

use super::obstacle::LeftoverCause;
use super::value::is_empty;
use crate::api::v1alpha1::PodFields;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A list of the pod's `spec` that templates add items to, and whose items have no name.
#[derive(Debug)]
pub(crate) struct PodList {
    /// The steps from `spec`.
    pub(crate) path: &'static [&'static str],
    /// One of its items, for a sentence.
    pub(crate) noun: &'static str,
    key: fn(&Value) -> String,
    items: fn(&PodFields) -> Vec<Value>,
}

/// The lists of the pod itself.
pub(crate) static POD_LISTS: [PodList; 5] = [
    PodList {
        path: &["hostAliases"],
        noun: "host alias",
        key: |item| {
            let names = item["hostnames"].as_array().into_iter().flatten().filter_map(Value::as_str);
            format!("{}={}", text(item, "ip"), names.collect::<Vec<_>>().join(","))
        },
        items: |fields| values(&fields.host_aliases),
    },
    PodList {
        path: &["dnsConfig", "nameservers"],
        noun: "name server",
        key: whole,
        items: |fields| fields.dns_config.as_ref().map(|dns| values(&dns.nameservers)).unwrap_or_default(),
    },
    PodList {
        path: &["dnsConfig", "searches"],
        noun: "search domain",
        key: whole,
        items: |fields| fields.dns_config.as_ref().map(|dns| values(&dns.searches)).unwrap_or_default(),
    },
    PodList {
        path: &["dnsConfig", "options"],
        noun: "DNS option",
        key: |item| text(item, "name").to_owned(),
        items: |fields| fields.dns_config.as_ref().map(|dns| values(&dns.options)).unwrap_or_default(),
    },
    PodList {
        path: &["tolerations"],
        noun: "toleration",
        key: |item| {
            let operator = Some(text(item, "operator")).filter(|operator| !operator.is_empty()).unwrap_or("Equal");
            let seconds = item["tolerationSeconds"].as_i64().map(|seconds| format!(" {seconds}")).unwrap_or_default();
            format!("{} {operator} {}:{}{seconds}", text(item, "key"), text(item, "value"), text(item, "effect"))
        },
        items: |fields| values(&fields.tolerations),
    },
];

/// The field of shared processes.
pub(crate) const PROCESSES: &str = "shareProcessNamespace";
/// The field of the grace period.
pub(crate) const GRACE: &str = "terminationGracePeriodSeconds";
/// Its default.
pub(crate) const DEFAULT_GRACE: i64 = 30;

fn text<'a>(item: &'a Value, field: &str) -> &'a str {
    item[field].as_str().unwrap_or_default()
}

fn whole(item: &Value) -> String {
    item.as_str().unwrap_or_default().to_owned()
}

fn values(items: &[impl Serialize]) -> Vec<Value> {
    items.iter().map(|item| json!(item)).collect()
}

impl PodList {
    /// The items that `fields` adds, each with its key.
    pub(crate) fn of(&self, fields: &PodFields) -> Vec<(String, Value)> {
        (self.items)(fields).into_iter().map(|item| ((self.key)(&item), item)).collect()
    }

    /// The items in the pod's `spec`, each with its key.
    pub(crate) fn there<'a>(&'static self, spec: &'a Value) -> impl Iterator<Item = (String, &'a Value)> {
        let list = self.path.iter().try_fold(spec, |at, step| at.get(step));
        list.and_then(Value::as_array).into_iter().flatten().map(|item| ((self.key)(item), item))
    }

    /// The pointer of the list below `spec`.
    fn pointer(&self) -> String {
        self.path.iter().map(|step| format!("/{step}")).collect()
    }
}

/// Whether both items mean the same: absence, empty text and the default operator are alike.
pub(crate) fn is_same(list: &PodList, one: &Value, other: &Value) -> bool {
    let is_scalar = |value: &Value| value.is_boolean() || value.is_number();
    let says = |field: &str, value: &Value| {
        (is_scalar(value) || !is_empty(value)) && !(field == "operator" && value == "Equal")
    };
    let said = |item: &Value| -> BTreeMap<String, Value> {
        let fields = item.as_object().into_iter().flatten().filter(|(field, value)| says(field, value));
        fields.map(|(field, value)| (field.clone(), value.clone())).collect()
    };
    (list.key)(one) == (list.key)(other) && said(one) == said(other)
}

/// An entry of a marker for a field of the pod.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FieldEntry {
    /// [`PROCESSES`].
    Processes,
    /// [`GRACE`].
    Grace,
    /// An item of a list.
    Item(&'static PodList),
}

/// The meaning of the `steps` below `spec` of an entry; none if they are no field of the pod.
pub(super) fn entry(steps: &[&str]) -> Option<FieldEntry> {
    match steps {
        [PROCESSES] => Some(FieldEntry::Processes),
        [GRACE, least, was] => {
            let is_number = |text: &str| text.parse::<i64>().is_ok();
            (is_number(least) && (was.is_empty() || is_number(was))).then_some(FieldEntry::Grace)
        }
        [path @ .., _] => POD_LISTS.iter().find(|list| list.path == path).map(FieldEntry::Item),
        [] => None,
    }
}

/// Whether the `steps` below `spec` are a list, or the map of lists.
pub(super) fn is_parent(steps: &[&str]) -> bool {
    POD_LISTS.iter().any(|list| list.path.starts_with(steps)) && !steps.is_empty()
}

/// The numbers of an entry for [`GRACE`]: the least, and that of before.
pub(super) fn numbers(steps: &[String]) -> Option<(i64, Option<i64>)> {
    let [.., least, was] = steps else { return None };
    Some((least.parse().ok()?, was.parse().ok()))
}

/// Whether the pod with this `spec` has what the entry with these `steps` below it lists. `rest` is the longest grace period of the
/// other markers.
pub(super) fn is_there(spec: &Value, entry: FieldEntry, steps: &[String], rest: Option<i64>) -> bool {
    match entry {
        FieldEntry::Processes => spec[PROCESSES] == true,
        FieldEntry::Grace => spec[GRACE].as_i64() == numbers(steps).map(|(least, _)| least).max(rest),
        FieldEntry::Item(list) => {
            steps.last().is_some_and(|key| list.there(spec).filter(|(own, _)| own == key).count() == 1)
        }
    }
}

/// Whether the pod with this `spec` still has what the entry lists, or more of it.
pub(super) fn holds(spec: &Value, entry: FieldEntry, steps: &[String]) -> bool {
    match (entry, numbers(steps)) {
        (FieldEntry::Grace, Some((least, _))) => spec[GRACE].as_i64().is_some_and(|there| there >= least),
        _ => is_there(spec, entry, steps, None),
    }
}

/// Removes what the entry with these `steps` lists from the pod's `spec`. `rest` is the longest grace period of the markers that
/// stay, and `null` says that the field was null before.
pub(super) fn remove(
    spec: &mut Value,
    entry: FieldEntry,
    steps: &[String],
    rest: Option<i64>,
    null: bool,
) -> Result<(), LeftoverCause> {
    if !matches!(entry, FieldEntry::Item(_)) && !is_there(spec, entry, steps, rest) {
        let is_set = matches!(entry, FieldEntry::Grace) && spec[GRACE].is_number();
        return Err(if is_set { LeftoverCause::Edited } else { LeftoverCause::Missing });
    }
    match entry {
        FieldEntry::Processes => put(spec, PROCESSES, None, null),
        FieldEntry::Grace => {
            let (_, was) = numbers(steps).ok_or(LeftoverCause::Foreign)?;
            let value = rest.map_or(was, |least| Some(least.max(was.unwrap_or(DEFAULT_GRACE))));
            put(spec, GRACE, value, null);
        }
        FieldEntry::Item(list) => {
            let key = steps.last().ok_or(LeftoverCause::Foreign)?;
            let places: Vec<usize> =
                list.there(spec).enumerate().filter(|(_, (own, _))| own == key).map(|(place, _)| place).collect();
            let items =
                spec.pointer_mut(&list.pointer()).and_then(Value::as_array_mut).ok_or(LeftoverCause::Missing)?;
            match places[..] {
                [] => return Err(LeftoverCause::Missing),
                [place] => drop(items.remove(place)),
                _ => return Err(LeftoverCause::Ambiguous),
            }
        }
    }
    Ok(())
}

fn put(spec: &mut Value, field: &str, value: Option<i64>, null: bool) {
    let Some(fields) = spec.as_object_mut() else { return };
    match value {
        Some(number) => drop(fields.insert(field.to_owned(), number.into())),
        None if null => drop(fields.insert(field.to_owned(), Value::Null)),
        None => drop(fields.remove(field)),
    }
}
