//! Whether a workload already has the values that a template sets.
//!
//! `actual` is equal to `wanted` if it has the value of every field that `wanted` sets. Values that mean the same to
//! Kubernetes are equal:
//! - quantities are compared by value;
//! - null, `""`, `[]`, `{}`, `false` and 0 equal absence. Null and an empty string, list or map accept any value.
//!   `false` and 0 accept that value or absence, because some fields mean it (`runAsUser: 0`,
//!   `allowPrivilegeEscalation: false`);
//! - a port without protocol is a TCP port;
//! - of two variables with one name, the last one is in effect;
//! - a field that only `actual` has comes from defaulting or admission, and makes no difference. The exception is an
//!   object that is a choice between its fields: a volume with another source is another volume.
//!
//! [`exact`] asks for more: what only `actual` has must be a default of the API server. [`kept_difference`] asks for less:
//! what other admission changes in a container makes no difference.

use super::defaults;
use super::tables::Fields;
use super::value::{is_empty, is_quantity, nanos, protocol};
use crate::api::v1alpha1::RawObject;
use crate::outside::cut;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt;

/// The first place where two items differ.
#[derive(Debug, PartialEq)]
pub(crate) struct Difference {
    /// The path, innermost step first.
    path: Vec<PathStep>,
    /// The wanted value; null if there is none.
    pub(super) wanted: Value,
    /// The actual value; null if there is none.
    pub(super) actual: Value,
}

#[derive(Clone, Debug, PartialEq)]
enum PathStep {
    Field(String),
    Item(String),
}

/// The first field of `wanted` that `actual` lacks or has with another value; none if they are equal.
pub(crate) fn difference(wanted: &RawObject, actual: &RawObject, fields: Fields) -> Option<Difference> {
    compare_fields(wanted, actual, fields, "", Rest::Any)
}

/// As [`difference`], for an item that was injected before other admission acted on it. These make no difference:
/// - further variables, ports, mounts and devices, which webhooks add to every container of a pod;
/// - `imagePullPolicy: Always` (plugin `AlwaysPullImages`);
/// - other `resources.requests` (Vertical Pod Autoscaler);
/// - another place that a probe asks (service meshes, `rewriteAppHTTPProbers`).
pub(crate) fn kept_difference(wanted: &RawObject, actual: &RawObject, fields: Fields) -> Option<Difference> {
    compare_fields(wanted, actual, fields, "", Rest::Admitted)
}

/// Whether other admission may set the field `field` of an object that is called `object` to any value.
pub(crate) fn is_readmitted(object: &str, field: &str) -> bool {
    let is_probe = || ["livenessProbe", "readinessProbe", "startupProbe"].contains(&object);
    object == "resources" && ["requests", "limits"].contains(&field)
        || is_probe() && ["httpGet", "tcpSocket", "grpc"].contains(&field)
}

/// The field that other admission may set to the value [`PULLED`].
pub(crate) const PULL_POLICY: &str = "imagePullPolicy";
/// See [`PULL_POLICY`].
pub(crate) const PULLED: &str = "Always";

/// The most items that other admission adds to a list of a container. A comparison by key takes the API server time with
/// the square of the length, so a longer list is another one.
pub(crate) const MAX_ADDED: usize = 64;

/// The first field of `actual`, an item of the list `list`, that is not what the API server makes of `wanted`.
/// `host_network`: whether the pod is on the network of its host.
pub(crate) fn exact(
    wanted: &RawObject,
    actual: &RawObject,
    fields: Fields,
    list: &str,
    host_network: bool,
) -> Option<Difference> {
    compare_fields(wanted, actual, fields, list, Rest::Defaults { host_network })
}

/// The same in both directions: first `one` as wanted, then `other`.
pub(super) fn mutual_difference(one: &RawObject, other: &RawObject, fields: Fields) -> Option<Difference> {
    difference(one, other, fields).or_else(|| difference(other, one, fields).map(Difference::turned))
}

/// What the actual value may have besides the fields that the wanted one asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Any,
    /// What other admission adds or changes; see [`kept_difference`].
    Admitted,
    /// What the API server adds by itself.
    Defaults {
        host_network: bool,
    },
}

/// Compares two objects that are the value of the field `name`, or an item of that list.
fn compare_fields(
    wanted: &RawObject,
    actual: &RawObject,
    fields: Fields,
    name: &str,
    rest: Rest,
) -> Option<Difference> {
    for (field, value) in wanted.iter().filter(|(field, value)| asks(field, value, fields)) {
        let there = actual.get(field).unwrap_or(&Value::Null);
        // As for most fields of most items.
        if value == there {
            continue;
        }
        let is_pulled = field == PULL_POLICY && there == PULLED;
        if rest == Rest::Admitted && (is_readmitted(name, field) || is_pulled) {
            continue;
        }
        let kind = if is_quantity(name, field) { Scalar::Quantity } else { Scalar::Plain };
        if let Some(difference) = compare_values(value, there, field, kind, rest) {
            return Some(difference.within(PathStep::Field(field.clone())));
        }
    }
    if fields == Fields::Closed {
        let is_choice =
            |(field, there): &(&String, &Value)| !is_empty(there) && wanted.get(*field).is_none_or(Value::is_null);
        if let Some((field, there)) = actual.iter().find(is_choice) {
            return Some(Difference::at(&Value::Null, there).within(PathStep::Field(field.clone())));
        }
    }
    let Rest::Defaults { host_network } = rest else { return None };
    let is_asked = |field: &String| wanted.get(field).is_some_and(|value| asks(field, value, fields));
    actual.iter().filter(|(field, _)| !is_asked(field)).find_map(|(field, there)| {
        let difference = match there {
            Value::Object(below) => compare_fields(&RawObject::new(), below, Fields::Open, field, rest)?,
            // The first item is named.
            Value::Array(items) if !items.is_empty() => compare_lists(&[], items, field, rest)?,
            _ if is_nothing(there) || defaults::is_default(name, field, there, actual, host_network) => return None,
            _ => Difference::at(&Value::Null, there),
        };
        Some(difference.within(PathStep::Field(field.clone())))
    })
}

/// True if and only if `value` says nothing in any field. `false` and 0 say something in some.
fn is_nothing(value: &Value) -> bool {
    is_empty(value) && !matches!(value, Value::Bool(_) | Value::Number(_))
}

/// True if and only if the wanted value of `field` asks for a certain value.
pub(crate) fn asks(field: &str, value: &Value, fields: Fields) -> bool {
    match value {
        Value::Null => false,
        // Because `value: ""` of an environment variable is a value like any other.
        Value::String(text) => !text.is_empty() || fields == Fields::Closed,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0) || !ZERO_IS_DEFAULTED.contains(&field),
        Value::Bool(_) => true,
    }
}

/// Numbers of probes and ports that Kubernetes replaces by a default when they are 0.
const ZERO_IS_DEFAULTED: [&str; 5] =
    ["timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold", "hostPort"];

/// The comparison of scalars.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    Plain,
    Quantity,
}

/// Compares two values of the field `name`.
pub(crate) fn compare(wanted: &Value, actual: &Value, name: &str, kind: Scalar) -> Option<Difference> {
    compare_values(wanted, actual, name, kind, Rest::Any)
}

/// As [`compare`], after other admission.
pub(crate) fn compare_kept(wanted: &Value, actual: &Value, name: &str, kind: Scalar) -> Option<Difference> {
    compare_values(wanted, actual, name, kind, Rest::Admitted)
}

fn compare_values(wanted: &Value, actual: &Value, name: &str, kind: Scalar, rest: Rest) -> Option<Difference> {
    match (wanted, actual) {
        (Value::Object(wanted), Value::Object(actual)) => compare_fields(wanted, actual, Fields::Open, name, rest),
        (Value::Object(wanted), nothing) if is_empty(nothing) => {
            compare_fields(wanted, &RawObject::new(), Fields::Open, name, rest)
        }
        (Value::Array(wanted), Value::Array(actual)) => compare_lists(wanted, actual, name, rest),
        (Value::Array(wanted), nothing) if is_empty(nothing) => compare_lists(wanted, &[], name, rest),
        _ if same_scalar(wanted, actual, name, kind) => None,
        _ => Some(Difference::at(wanted, actual)),
    }
}

fn same_scalar(wanted: &Value, actual: &Value, name: &str, kind: Scalar) -> bool {
    if kind == Scalar::Quantity
        && let (Some(wanted), Some(actual)) = (nanos(wanted), nanos(actual))
    {
        return wanted == actual;
    }
    // Only scalars, because a list or map is no protocol.
    if name == "protocol" && !matches!(wanted, Value::Array(_) | Value::Object(_)) {
        return protocol(Some(wanted)) == protocol(Some(actual));
    }
    match (wanted, actual) {
        (Value::Number(wanted), Value::Number(actual)) => wanted == actual || wanted.as_f64() == actual.as_f64(),
        _ => wanted == actual || is_empty(wanted) && is_empty(actual),
    }
}

/// A list whose items have a key in Kubernetes, so that their order means nothing.
pub(crate) struct Keyed {
    pub(crate) field: &'static str,
    pub(crate) key: ListKey,
    pub(crate) fields: Fields,
    /// The meaning of an item that only the workload has.
    pub(crate) others: Others,
    /// The meaning of two items with one key.
    pub(crate) twice: Twice,
}

/// The meaning of two items with one key in a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Twice {
    /// The last one is in effect, as the kubelet passes variables on.
    Last,
    /// The order of all items counts.
    Ordered,
}

/// The key of an item.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListKey {
    /// A field that holds text.
    Text(&'static str),
    /// The number of a port with its protocol.
    Port,
}

impl ListKey {
    /// The field that an item must have.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Self::Text(field) => field,
            Self::Port => "containerPort",
        }
    }

    /// The key of `item`, if it has one.
    pub(crate) fn of(self, item: &Value) -> Option<String> {
        let value = item.get(self.field())?;
        match self {
            Self::Text(_) => Some(value.as_str()?.to_owned()),
            Self::Port => Some(format!("{value}/{}", protocol(item.get("protocol")))),
        }
    }
}

#[derive(PartialEq, Eq)]
pub(crate) enum Others {
    Differ,
    /// No difference, because the ServiceAccount admission plugin mounts its token into every container.
    Ignored,
}

static KEYED: [Keyed; 4] = [
    Keyed {
        field: "env",
        key: ListKey::Text("name"),
        fields: Fields::Closed,
        others: Others::Differ,
        twice: Twice::Last,
    },
    Keyed { field: "ports", key: ListKey::Port, fields: Fields::Open, others: Others::Differ, twice: Twice::Ordered },
    Keyed {
        field: "volumeMounts",
        key: ListKey::Text("mountPath"),
        fields: Fields::Open,
        others: Others::Ignored,
        twice: Twice::Ordered,
    },
    Keyed {
        field: "volumeDevices",
        key: ListKey::Text("devicePath"),
        fields: Fields::Open,
        others: Others::Differ,
        twice: Twice::Ordered,
    },
];

impl Keyed {
    /// The list that the field `name` holds, if its items have a key.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        KEYED.iter().find(|keyed| keyed.field == name)
    }
}

fn compare_lists(wanted: &[Value], actual: &[Value], name: &str, rest: Rest) -> Option<Difference> {
    let is_short = actual.len() <= wanted.len() + MAX_ADDED;
    let keyed = Keyed::named(name).filter(|_| is_short);
    let by_key = keyed.and_then(|keyed| {
        // A repeated item has no effect, but the API server never adds one.
        let is_repeatable = keyed.twice == Twice::Last && !matches!(rest, Rest::Defaults { .. });
        Some((keyed, index(wanted, keyed, is_repeatable)?, index(actual, keyed, is_repeatable)?))
    });
    match by_key {
        Some((keyed, wanted, actual)) => compare_keyed(&wanted, &actual, keyed, rest),
        None => compare_ordered(wanted, actual, name, rest),
    }
}

/// The objects of `items` by key; none if their order counts, because an item has no key, or the key of another one.
/// `is_repeatable`: whether the last item with a key is in effect instead.
fn index<'a>(items: &'a [Value], keyed: &Keyed, is_repeatable: bool) -> Option<Index<'a>> {
    let mut index = Index { order: Vec::new(), items: HashMap::new() };
    for item in items {
        let (key, fields) = (keyed.key.of(item)?, item.as_object()?);
        match index.items.insert(key.clone(), fields) {
            None => index.order.push(key),
            Some(_) if is_repeatable => {}
            Some(_) => return None,
        }
    }
    Some(index)
}

struct Index<'a> {
    order: Vec<String>,
    items: HashMap<String, &'a RawObject>,
}

fn compare_keyed(wanted: &Index<'_>, actual: &Index<'_>, keyed: &Keyed, rest: Rest) -> Option<Difference> {
    for key in &wanted.order {
        let item = wanted.items[key];
        let difference = match actual.items.get(key) {
            Some(there) => compare_fields(item, there, keyed.fields, keyed.field, rest),
            None => Some(Difference::at(&Value::Object(item.clone()), &Value::Null)),
        };
        if let Some(difference) = difference {
            return Some(difference.within(PathStep::Item(key.clone())));
        }
    }
    match rest {
        Rest::Admitted => return None,
        Rest::Any if keyed.others == Others::Ignored => return None,
        Rest::Any | Rest::Defaults { .. } => {}
    }
    let other = actual.order.iter().find(|key| !wanted.items.contains_key(*key))?;
    Some(
        Difference::at(&Value::Null, &Value::Object(actual.items[other].clone())).within(PathStep::Item(other.clone())),
    )
}

fn compare_ordered(wanted: &[Value], actual: &[Value], name: &str, rest: Rest) -> Option<Difference> {
    for at in 0..wanted.len().max(actual.len()) {
        let difference = match (wanted.get(at), actual.get(at)) {
            (Some(wanted), Some(actual)) => compare_values(wanted, actual, name, Scalar::Plain, rest),
            (wanted, actual) => Some(Difference::at(wanted.unwrap_or(&Value::Null), actual.unwrap_or(&Value::Null))),
        };
        if let Some(difference) = difference {
            // By its key, because the reader may see a list with more items.
            let keyed = Keyed::named(name).filter(|keyed| matches!(keyed.key, ListKey::Text(_)));
            let key = keyed.and_then(|keyed| keyed.key.of(actual.get(at).or(wanted.get(at))?));
            return Some(difference.within(PathStep::Item(key.unwrap_or_else(|| at.to_string()))));
        }
    }
    None
}

impl Difference {
    fn at(wanted: &Value, actual: &Value) -> Self {
        Self { path: Vec::new(), wanted: wanted.clone(), actual: actual.clone() }
    }

    fn within(mut self, step: PathStep) -> Self {
        self.path.push(step);
        self
    }

    fn turned(self) -> Self {
        Self { path: self.path, wanted: self.actual, actual: self.wanted }
    }

    /// The difference for a message, with the values if they may appear there, and if `are_shown`. `wanted_in` is what has the wanted one.
    pub(super) fn described(&self, wanted_in: &str, are_shown: bool) -> String {
        if !are_shown {
            return format!("another `{}`", self.fields());
        }
        let values = self.told().map(|(wanted, actual)| format!(": {actual} here, {wanted} in the {wanted_in}"));
        format!("another `{self}`{}", values.unwrap_or_default())
    }

    /// The path without the keys of items, which may be values.
    pub(super) fn fields(&self) -> String {
        let names = self.path.iter().rev().filter_map(|step| match step {
            PathStep::Field(name) => Some(name.as_str()),
            PathStep::Item(_) => None,
        });
        names.collect::<Vec<_>>().join(".")
    }

    /// The field of the two items in which they differ.
    pub(super) fn top(&self) -> Option<&str> {
        match self.path.last()? {
            PathStep::Field(name) | PathStep::Item(name) => Some(name),
        }
    }

    /// The wanted and the actual value as they may be shown, each cut; none for a value that may be secret.
    pub(super) fn shown(&self) -> [Option<String>; 2] {
        let is_private =
            self.path.iter().any(|step| matches!(step, PathStep::Field(name) if PRIVATE.contains(&name.as_str())));
        let show = |value: &Value| match value {
            Value::Null => Some("none".to_owned()),
            Value::Bool(_) | Value::Number(_) => Some(format!("`{value}`")),
            Value::String(text) if !is_private => Some(format!("`{}`", cut(text, LONGEST))),
            _ => None,
        };
        [show(&self.wanted), show(&self.actual)]
    }

    /// The two values for a message, if both may appear there: short scalars of fields that hold no secrets. The reader
    /// of a message may not be allowed to read the workload.
    pub(super) fn told(&self) -> Option<(String, String)> {
        let is_public = self.path.iter().all(|step| {
            matches!(step, PathStep::Item(_))
                || matches!(step, PathStep::Field(name) if !PRIVATE.contains(&name.as_str()))
        });
        let tell = |value: &Value| match value {
            Value::Null => Some("none".to_owned()),
            Value::Bool(_) | Value::Number(_) => Some(format!("`{value}`")),
            Value::String(text) if is_public && text.chars().count() <= LONGEST => Some(format!("`{text}`")),
            _ => None,
        };
        Some((tell(&self.wanted)?, tell(&self.actual)?))
    }
}

/// Fields in which users keep passwords.
const PRIVATE: [&str; 8] = ["args", "command", "csi", "env", "exec", "flexVolume", "httpGet", "lifecycle"];
/// The longest text in a message, in characters: an image with its digest fits.
const LONGEST: usize = 200;

/// The path of the field, as in `resources.limits.cpu` or `env[LEVEL].value`.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.path.iter().rev().enumerate() {
            match step {
                PathStep::Field(name) if at == 0 => write!(f, "{name}")?,
                PathStep::Field(name) => write!(f, ".{name}")?,
                PathStep::Item(key) => write!(f, "[{key}]")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn differ(wanted: &Value, actual: &Value, fields: Fields) -> Option<String> {
        difference(wanted.as_object().unwrap(), actual.as_object().unwrap(), fields)
            .map(|difference| difference.to_string())
    }

    #[test]
    fn empty_values_ask_for_nothing_but_false_and_zero_mean_it() {
        for nothing in [json!(null), json!(""), json!([]), json!({})] {
            for there in [
                json!(null),
                json!(""),
                json!([]),
                json!({}),
                json!(0),
                json!(false),
                json!("x"),
                json!(1),
                json!(["x"]),
                json!({"a": 1}),
            ] {
                assert_eq!(
                    differ(&json!({"f": nothing}), &json!({"f": there}), Fields::Open),
                    None,
                    "{nothing} {there}"
                );
            }
            assert_eq!(differ(&json!({"f": nothing}), &json!({}), Fields::Open), None);
        }
        for zero in [json!(false), json!(0), json!(0.0), json!(-0.0)] {
            for there in [json!(null), json!(0), json!(false)] {
                assert_eq!(differ(&json!({"f": zero}), &json!({"f": there}), Fields::Open), None, "{zero} {there}");
            }
            assert_eq!(differ(&json!({"f": zero}), &json!({}), Fields::Open), None);
            assert_eq!(differ(&json!({"f": {"g": zero}}), &json!({}), Fields::Open), None);
            for there in [json!(true), json!(7), json!("x")] {
                assert_eq!(
                    differ(&json!({"f": zero}), &json!({"f": there}), Fields::Open),
                    Some("f".into()),
                    "{zero} {there}"
                );
                assert_eq!(
                    differ(&json!({"f": {"g": zero}}), &json!({"f": there}), Fields::Open),
                    Some("f".into()),
                    "{zero} within {there}"
                );
            }
        }
    }

    #[test]
    fn a_number_is_its_value_however_it_is_written() {
        for (one, other) in [(json!(1), json!(1.0)), (json!(-3), json!(-3.0)), (json!(1e3), json!(1000))] {
            assert_eq!(differ(&json!({"f": one}), &json!({"f": other}), Fields::Open), None, "{one} {other}");
            assert_eq!(differ(&json!({"f": other}), &json!({"f": one}), Fields::Open), None, "{other} {one}");
        }
        assert_eq!(differ(&json!({"f": 1}), &json!({"f": 1.5}), Fields::Open), Some("f".into()));
    }

    #[test]
    fn a_value_that_is_set_is_missed_where_it_is_absent_empty_or_another() {
        for set in [json!(true), json!(1), json!("x"), json!(["x"]), json!({"a": 1})] {
            for there in [
                json!(null),
                json!(""),
                json!([]),
                json!({}),
                json!("other"),
                json!(2),
                json!(["x", "y"]),
                json!({"a": 2}),
                json!({"b": 1}),
            ] {
                assert!(differ(&json!({"f": set}), &json!({"f": there}), Fields::Open).is_some(), "{set} {there}");
            }
            assert!(differ(&json!({"f": set}), &json!({}), Fields::Open).is_some());
            assert_eq!(differ(&json!({"f": set}), &json!({"f": set, "g": 1}), Fields::Open), None);
        }
    }

    #[test]
    fn zeros_that_kubernetes_replaces_ask_for_nothing() {
        let wanted = json!({"livenessProbe": {"timeoutSeconds": 0, "initialDelaySeconds": 0}});
        assert_eq!(differ(&wanted, &json!({"livenessProbe": {"timeoutSeconds": 1}}), Fields::Open), None);
        assert_eq!(
            differ(&wanted, &json!({"livenessProbe": {"initialDelaySeconds": 1}}), Fields::Open),
            Some("livenessProbe.initialDelaySeconds".into())
        );
    }

    #[test]
    fn a_volume_is_its_source() {
        let (name, empty_dir) = (json!({"name": "v"}), json!({"name": "v", "emptyDir": {}}));
        let (memory, secret) = (
            json!({"name": "v", "emptyDir": {"medium": "Memory"}}),
            json!({"name": "v", "secret": {"secretName": "s"}}),
        );
        let same = |wanted: &Value, actual: &Value| differ(wanted, actual, Fields::Closed).is_none();
        assert!(same(&name, &empty_dir) && same(&empty_dir, &name) && same(&empty_dir, &memory));
        assert!(
            !same(&name, &memory)
                && !same(&name, &secret)
                && !same(&empty_dir, &secret)
                && !same(&secret, &empty_dir)
                && !same(&memory, &empty_dir)
        );
        let defaulted = json!({"name": "v", "secret": {"secretName": "s", "defaultMode": 420}});
        assert!(same(&secret, &defaulted));
    }

    #[test]
    fn an_empty_environment_variable_is_not_any_variable() {
        let env = |value: Value| json!({"env": [value]});
        let empty = [json!({"name": "A", "value": ""}), json!({"name": "A"}), json!({"name": "A", "value": null})];
        for wanted in &empty {
            for there in &empty {
                assert_eq!(differ(&env(wanted.clone()), &env(there.clone()), Fields::Open), None);
            }
            for there in [
                json!({"name": "A", "value": "x"}),
                json!({"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}),
            ] {
                assert!(differ(&env(wanted.clone()), &env(there.clone()), Fields::Open).is_some(), "{wanted} {there}");
                assert!(differ(&env(there.clone()), &env(wanted.clone()), Fields::Open).is_some(), "{there} {wanted}");
            }
        }
    }

    #[test]
    fn keyed_lists_are_compared_by_key_and_other_lists_by_order() {
        let cases = [
            (
                json!({"env": [{"name": "A", "value": "1"}, {"name": "B"}]}),
                json!({"env": [{"name": "B"}, {"name": "A", "value": "1"}]}),
                None,
            ),
            (
                json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}),
                json!({"env": [{"name": "A", "value": "2"}, {"name": "A", "value": "1"}]}),
                Some("env[A].value"),
            ),
            (
                json!({"env": [{"name": "A", "value": "1"}]}),
                json!({"env": [{"name": "A", "value": "2"}, {"name": "A", "value": "1"}]}),
                None,
            ),
            (
                json!({"ports": [{"containerPort": 1}]}),
                json!({"ports": [{"containerPort": 1}, {"containerPort": 1}]}),
                Some("ports[1]"),
            ),
            (
                json!({"env": [{"name": "A"}]}),
                json!({"env": [{"name": "A"}, {"name": "B", "value": "b"}]}),
                Some("env[B]"),
            ),
            (
                json!({"ports": [{"containerPort": 1}, {"containerPort": 2, "protocol": "UDP"}]}),
                json!({"ports": [{"containerPort": 2, "protocol": "UDP"}, {"containerPort": 1, "protocol": "TCP"}]}),
                None,
            ),
            (
                json!({"ports": [{"containerPort": 1, "protocol": "TCP"}]}),
                json!({"ports": [{"containerPort": 1}]}),
                None,
            ),
            (
                json!({"ports": [{"containerPort": 1}]}),
                json!({"ports": [{"containerPort": 1, "protocol": "SCTP"}]}),
                Some("ports[1/TCP]"),
            ),
            (
                json!({"ports": [{"containerPort": 1, "name": "a"}]}),
                json!({"ports": [{"containerPort": 1, "name": "b"}]}),
                Some("ports[1/TCP].name"),
            ),
            (
                json!({"volumeMounts": [{"mountPath": "/a", "name": "a"}]}),
                json!({"volumeMounts": [{"mountPath": "/token", "name": "t"}, {"mountPath": "/a", "name": "a"}]}),
                None,
            ),
            (
                json!({"volumeMounts": [{"mountPath": "/a", "name": "a"}]}),
                json!({"volumeMounts": [{"mountPath": "/a", "name": "b"}]}),
                Some("volumeMounts[/a].name"),
            ),
            (json!({"args": ["a", "b"]}), json!({"args": ["b", "a"]}), Some("args[0]")),
            (json!({"args": ["a"]}), json!({"args": ["a", "b"]}), Some("args[1]")),
            (json!({"args": ["a", ""]}), json!({"args": ["a"]}), Some("args[1]")),
            (json!({"args": [""]}), json!({"args": ["x"]}), Some("args[0]")),
            // An empty or absent list gives the path of the item; another value gives the path of the list.
            (json!({"args": ["a"]}), json!({}), Some("args[0]")),
            (json!({"ports": [{"containerPort": 1}]}), json!({"ports": []}), Some("ports[1/TCP]")),
            (json!({"args": ["a"]}), json!({"args": "a"}), Some("args")),
        ];
        for (wanted, actual, expected) in cases {
            assert_eq!(differ(&wanted, &actual, Fields::Open).as_deref(), expected, "{wanted} {actual}");
        }
    }

    #[test]
    fn quantities_are_quantities_only_where_kubernetes_has_them() {
        let limits = |cpu: Value| json!({"resources": {"limits": {"cpu": cpu}}});
        for (one, other) in [
            (json!("0.5"), json!("500m")),
            (json!(0.5), json!("500m")),
            (json!(1), json!("1")),
            (json!(1e3), json!("1k")),
        ] {
            assert_eq!(differ(&limits(one.clone()), &limits(other.clone()), Fields::Open), None, "{one} {other}");
            assert_eq!(differ(&limits(other.clone()), &limits(one.clone()), Fields::Open), None, "{other} {one}");
        }
        assert_eq!(differ(&limits(json!("x")), &limits(json!("x")), Fields::Open), None);
        assert!(differ(&limits(json!("x")), &limits(json!("0")), Fields::Open).is_some());
        assert_eq!(differ(&limits(json!("0")), &json!({}), Fields::Open), None);
        assert!(differ(&limits(json!("1m")), &json!({}), Fields::Open).is_some());
        assert!(differ(&json!({"image": "1"}), &json!({"image": "1.0"}), Fields::Open).is_some());
        assert!(
            differ(
                &json!({"env": [{"name": "A", "value": "1k"}]}),
                &json!({"env": [{"name": "A", "value": "1000"}]}),
                Fields::Open
            )
            .is_some()
        );
        assert_eq!(
            differ(
                &json!({"emptyDir": {"sizeLimit": "1Gi"}}),
                &json!({"emptyDir": {"sizeLimit": "1024Mi"}}),
                Fields::Closed
            ),
            None
        );
    }

    #[test]
    fn a_message_never_tells_what_may_be_secret() {
        let told = |wanted: Value, actual: Value| {
            difference(wanted.as_object().unwrap(), actual.as_object().unwrap(), Fields::Open).unwrap().told()
        };
        assert_eq!(told(json!({"image": "a"}), json!({"image": "b"})), Some(("`a`".into(), "`b`".into())));
        assert_eq!(told(json!({"tty": true}), json!({})), Some(("`true`".into(), "none".into())));
        for (wanted, actual) in [
            (json!({"env": [{"name": "A", "value": "a"}]}), json!({"env": [{"name": "A", "value": "b"}]})),
            (json!({"env": [{"name": "A", "value": "a"}]}), json!({})),
            (json!({"args": ["a"]}), json!({"args": ["b"]})),
            (json!({"command": ["a"]}), json!({"command": ["b"]})),
            (
                json!({"livenessProbe": {"exec": {"command": ["a"]}}}),
                json!({"livenessProbe": {"exec": {"command": ["b"]}}}),
            ),
            (json!({"image": "x".repeat(201)}), json!({"image": "b"})),
        ] {
            assert_eq!(told(wanted, actual), None);
        }
    }
}
