//! The condition that a workload already has the values of a template: [`crate::inject::equal`] for a known wanted
//! value and an actual value that CEL reads.

use super::Cel;
use super::access::{Access, Shape};
use super::cel::{all, any, list, optional, quoted};
use super::environment::Variables;
use super::leaf::Leaf;
use crate::api::v1alpha1::RawObject;
use crate::inject::equal::{self, Keyed, ListKey, Others, Scalar, Twice};
use crate::inject::tables::Fields;
use crate::inject::value;
use serde_json::Value;
use std::collections::HashSet;

/// Comparisons with values that `access` reads.
#[derive(Clone, Copy)]
pub(super) struct Comparison<'a> {
    access: &'a Access,
    variables: &'a Variables,
    /// Whether what other admission changes makes no difference, as in [`equal::kept_difference`].
    is_after_admission: bool,
    /// The number of macro variables around it. Each needs its own name.
    depth: usize,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(access: &'a Access, variables: &'a Variables) -> Self {
        Self { access, variables, is_after_admission: false, depth: 0 }
    }

    /// Comparisons with items that were injected before other admission acted on them.
    pub(super) fn after_admission(access: &'a Access, variables: &'a Variables) -> Self {
        Self { is_after_admission: true, ..Self::new(access, variables) }
    }

    fn deeper(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }

    /// The condition that the map `actual` has the fields of `wanted`, the value of the field `name`.
    pub(super) fn fields(self, wanted: &RawObject, actual: &str, fields: Fields, name: &str) -> Cel {
        let mut terms = Vec::new();
        for (field, value) in wanted.iter().filter(|(field, value)| equal::asks(field, value, fields)) {
            if self.is_after_admission && equal::is_readmitted(name, field) {
                continue;
            }
            let kind = if value::is_quantity(name, field) { Scalar::Quantity } else { Scalar::Plain };
            terms.push(self.field(value, actual, field, kind)?);
        }
        if fields == Fields::Closed {
            let set = wanted.iter().filter(|(_, value)| !value.is_null()).map(|(field, _)| field.as_str());
            let key = format!("k{}", self.depth);
            let others = is_empty(&format!("{actual}[{key}]"));
            terms.push(format!("{actual}.all({key}, {key} in {} || {others})", list(set)));
        }
        Ok(all(&terms))
    }

    fn field(self, wanted: &Value, of: &str, field: &str, kind: Scalar) -> Cel {
        let absent = self.equals_absence(wanted, field, kind);
        let (actual, variable) = (optional(of, field), format!("v{}", self.depth));
        let mut equal = self.deeper().value(wanted, &variable, field, kind)?;
        if self.is_after_admission && field == equal::PULL_POLICY {
            equal = format!("({equal} || {variable} == {})", quoted(equal::PULLED));
        }
        Ok(format!("{actual}.optMap({variable}, {equal}).orValue({absent})"))
    }

    /// The condition that `actual`, an existing value, satisfies `wanted` for the field `name`.
    fn value(self, wanted: &Value, actual: &str, name: &str, kind: Scalar) -> Cel {
        // An empty value equals absence.
        let otherwise = match self.equals_absence(wanted, name, kind) {
            true => is_empty(actual),
            false => "false".to_owned(),
        };
        match wanted {
            Value::Object(wanted) => {
                let equal = self.fields(wanted, actual, Fields::Open, name)?;
                Ok(format!("(type({actual}) == map ? {equal} : {otherwise})"))
            }
            Value::Array(wanted) => {
                let equal = self.list(wanted, actual, name)?;
                Ok(format!("(type({actual}) == list ? {equal} : {otherwise})"))
            }
            wanted => self.leaf(&Leaf::of(wanted, self.variables), actual, name, kind),
        }
    }

    /// Whether an absent value satisfies `wanted` for the field `name`.
    fn equals_absence(self, wanted: &Value, name: &str, kind: Scalar) -> bool {
        let compare = if self.is_after_admission { equal::compare_kept } else { equal::compare };
        compare(wanted, &Value::Null, name, kind).is_none()
    }

    fn leaf(self, wanted: &Leaf, actual: &str, name: &str, kind: Scalar) -> Cel {
        let equal = || Ok(format!("{actual} == {}", wanted.text()?));
        let Leaf::Literal(value) = wanted else { return equal() };
        let plain = match value::is_empty(value) {
            _ if name == "protocol" => format!("{} == {}", protocol(actual), quoted(value::protocol(Some(value)))),
            true => is_empty(actual),
            false => equal()?,
        };
        match value::nanos(value) {
            Some(nanos) if kind == Scalar::Quantity => Ok(quantity(nanos, actual, &plain)),
            _ => Ok(plain),
        }
    }

    fn list(self, wanted: &[Value], actual: &str, name: &str) -> Cel {
        let ordered = self.ordered(wanted, actual, name)?;
        let by_key = Keyed::named(name).and_then(|keyed| Some((keyed, in_effect(wanted, keyed)?)));
        let Some((keyed, in_effect)) = by_key else { return Ok(ordered) };
        let equal = self.keyed(&in_effect, actual, keyed)?;
        let is_short = format!("size({actual}) <= {}", wanted.len() + equal::MAX_ADDED);
        Ok(format!("({is_short} && {} ? {equal} : {ordered})", self.are_told_apart(actual, keyed)))
    }

    fn ordered(self, wanted: &[Value], actual: &str, name: &str) -> Cel {
        let mut terms = vec![format!("size({actual}) == {}", wanted.len())];
        for (index, wanted) in wanted.iter().enumerate() {
            terms.push(self.value(wanted, &format!("{actual}[{index}]"), name, Scalar::Plain)?);
        }
        Ok(all(&terms))
    }

    /// The condition that the items of `actual`, which are told apart, are `wanted`, of which each has another key.
    fn keyed(self, wanted: &[&RawObject], actual: &str, keyed: &Keyed) -> Cel {
        let mut terms = Vec::new();
        let item = format!("e{}", self.depth);
        if keyed.others == Others::Differ && !self.is_after_admission {
            terms.push(self.has_no_others(wanted, actual, keyed)?);
        }
        for wanted in wanted {
            let is_it = self.has_key_of(wanted, &item, keyed)?;
            let equal = |item: &str| self.deeper().fields(wanted, item, keyed.fields, keyed.field);
            terms.push(match keyed.twice {
                Twice::Ordered => format!("{actual}.exists({item}, {is_it} && {})", equal(&item)?),
                Twice::Last => {
                    let last = format!("l{}", self.depth);
                    Repeated { list: actual, is_it: &is_it, item: &item }.last(&last, "false", equal(&last))?
                }
            });
        }
        Ok(all(&terms))
    }

    /// The condition that each item of `actual` has the key of one of `wanted`, if all of `wanted` are there.
    fn has_no_others(self, wanted: &[&RawObject], actual: &str, keyed: &Keyed) -> Cel {
        // Each item exists once, and so does each wanted item, so equal sizes exclude other items.
        if keyed.twice == Twice::Ordered {
            return Ok(format!("size({actual}) == {}", wanted.len()));
        }
        let item = format!("e{}", self.depth);
        let keys = wanted.iter().map(|wanted| self.has_key_of(wanted, &item, keyed)).collect::<Result<Vec<_>, _>>()?;
        Ok(format!("{actual}.all({item}, {})", any(&keys)))
    }

    /// The condition that every item of `actual` is an object with a key, and with a key of its own where the order of
    /// repeated ones counts.
    fn are_told_apart(self, actual: &str, keyed: &Keyed) -> String {
        let (item, other) = (format!("e{}", self.depth), format!("f{}", self.depth));
        let key = keyed.key.field();
        let same = match keyed.key {
            ListKey::Port => {
                format!("{other}.{key} == {item}.{key} && {} == {}", self.protocol_in(&other), self.protocol_in(&item))
            }
            ListKey::Text(_) => format!("{other}.{key} == {item}.{key}"),
        };
        let have_keys = match (self.access.shape, keyed.key) {
            (Shape::Typed, _) => None,
            (Shape::Free, ListKey::Port) => {
                Some(format!("{actual}.all({item}, type({item}) == map && has({item}.{key}))"))
            }
            (Shape::Free, ListKey::Text(_)) => Some(format!(
                "{actual}.all({item}, type({item}) == map && type({}.orValue(null)) == string)",
                optional(&item, key)
            )),
        };
        let are_unique = (keyed.twice == Twice::Ordered)
            .then(|| format!("{actual}.all({item}, {actual}.exists_one({other}, {same}))"));
        all(&have_keys.into_iter().chain(are_unique).collect::<Vec<_>>())
    }

    fn has_key_of(self, wanted: &RawObject, item: &str, keyed: &Keyed) -> Cel {
        let key = keyed.key.field();
        let value = Leaf::of(wanted.get(key).unwrap_or(&Value::Null), self.variables).text()?;
        let same = format!("{item}.{key} == {value}");
        let protocol = value::protocol(wanted.get("protocol"));
        Ok(match keyed.key {
            ListKey::Port => format!("{same} && {} == {}", self.protocol_in(item), quoted(protocol)),
            ListKey::Text(_) => same,
        })
    }

    /// The protocol of the port `item`, with its default.
    fn protocol_in(self, item: &str) -> String {
        let variable = format!("p{}", self.depth);
        format!("{}.optMap({variable}, {}).orValue(\"TCP\")", optional(item, "protocol"), protocol(&variable))
    }
}

/// The items that are in effect; none if one is no object, has no key, or has the key of another one and the order counts.
fn in_effect<'a>(items: &'a [Value], keyed: &Keyed) -> Option<Vec<&'a RawObject>> {
    let mut seen = HashSet::new();
    let mut in_effect = Vec::new();
    for item in items.iter().rev() {
        let (key, item) = (keyed.key.of(item)?, item.as_object()?);
        if seen.insert(key) {
            in_effect.push(item);
        } else if keyed.twice == Twice::Ordered {
            return None;
        }
    }
    in_effect.reverse();
    Some(in_effect)
}

/// The items of a list with a certain key.
pub(super) struct Repeated<'a> {
    pub(super) list: &'a str,
    /// The condition that an item, as the variable `item`, has the key.
    pub(super) is_it: &'a str,
    pub(super) item: &'a str,
}

impl Repeated<'_> {
    /// The condition that the last one satisfies `holds`, as the variable `last`. `otherwise`: the condition if there is none.
    pub(super) fn last(&self, last: &str, otherwise: &str, holds: Cel) -> Cel {
        let Self { list, is_it, item } = self;
        let all = format!("{last}s");
        let holds = format!("[{all}[size({all}) - 1]].all({last}, {})", holds?);
        Ok(format!("[{list}.filter({item}, {is_it})].all({all}, size({all}) == 0 ? {otherwise} : {holds})"))
    }
}

/// The condition that `actual` equals absence.
fn is_empty(actual: &str) -> String {
    let nothing = ["null", "false", "0", "\"\""];
    let is_nothing = nothing.map(|nothing| format!("{actual} == {nothing}")).join(" || ");
    // The maps and lists of a typed object cannot be compared with other values: the server fails.
    format!("(type({actual}) == map || type({actual}) == list ? size({actual}) == 0 : {is_nothing})")
}

fn protocol(actual: &str) -> String {
    format!("(type({actual}) == string && {actual} != \"\" ? string({actual}) : \"TCP\")")
}

/// The condition that `actual` is a quantity of `nanos` billionths. `plain` is the condition for other values.
fn quantity(nanos: i128, actual: &str, plain: &str) -> String {
    let wanted = match nanos % 1_000_000_000 {
        0 => format!("{}", nanos / 1_000_000_000),
        _ => format!("{nanos}n"),
    };
    let compared = |text: &str| format!("quantity({text}).compareTo(quantity({})) == 0", quoted(&wanted));
    let text = format!("string({actual})");
    let is_number = format!("(type({actual}) == int || type({actual}) == double)");
    format!(
        "(type({actual}) == string && isQuantity({text}) ? {} : {is_number} ? {} : dyn({actual}) == null ? {} : {plain})",
        compared(&text),
        compared(&text),
        nanos == 0
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind as Resource;
    use admission_cel::{Budget, Dialect, Expression, Gives, Variables as Given};
    use proptest::prelude::*;
    use serde_json::json;

    fn compares(actual: &Value, source: impl Fn(Comparison<'_>) -> Cel) -> bool {
        let kind = Resource::at("example.org", "rollouts", Some(vec!["spec".into()]));
        let mut variables = Variables::default();
        let access = Access::of(&kind, &mut variables);
        let source = source(Comparison::new(&access, &variables)).unwrap();
        let expression = Expression::compile(&source, Gives::Bool, Dialect::NEWEST)
            .unwrap_or_else(|error| panic!("{error}\n{source}"));
        let given = Given { object: actual, namespace: None, template: None };
        expression.test(&given, &mut Budget::match_conditions()).unwrap_or_else(|error| panic!("{error}\n{source}"))
    }

    fn holds(wanted: &RawObject, actual: &Value, fields: Fields, is_after_admission: bool) -> bool {
        compares(actual, |comparison| {
            Comparison { is_after_admission, ..comparison }.fields(wanted, "object", fields, "")
        })
    }

    #[test]
    fn a_value_that_the_server_computes_is_compared_as_it_is() {
        let wanted = Leaf::Expression("object.wanted".to_owned());
        for (actual, expected) in [(json!("a"), true), (json!("b"), false), (json!(1), false), (json!(null), false)] {
            let object = json!({ "wanted": "a", "actual": actual });
            let found =
                compares(&object, |comparison| comparison.leaf(&wanted, "object.actual", "value", Scalar::Plain));
            assert_eq!(found, expected, "{object}");
        }
    }

    type Compare = fn(&RawObject, &RawObject, Fields) -> Option<equal::Difference>;

    /// Values of which many are equal and few are identical.
    fn value() -> impl Strategy<Value = Value> {
        let scalar = proptest::sample::select(vec![
            json!(null),
            json!(true),
            json!(false),
            json!(0),
            json!(1),
            json!(8080),
            json!(0.5),
            json!(""),
            json!("x"),
            json!("0.5"),
            json!("500m"),
            json!("1Gi"),
            json!("1024Mi"),
            json!("1e3"),
            json!("1k"),
            json!("TCP"),
            json!("UDP"),
            json!("Always"),
        ]);
        scalar.prop_recursive(5, 40, 4, |inner| {
            let names = [
                "env",
                "ports",
                "name",
                "value",
                "protocol",
                "containerPort",
                "limits",
                "requests",
                "imagePullPolicy",
                "livenessProbe",
                "httpGet",
                "cpu",
                "volumeMounts",
                "mountPath",
                "args",
                "sizeLimit",
                "timeoutSeconds",
                "a.b",
                "namespace",
            ];
            let object = proptest::collection::btree_map(proptest::sample::select(names.to_vec()), inner.clone(), 0..4);
            prop_oneof![
                proptest::collection::vec(inner, 0..3).prop_map(Value::Array),
                object.prop_map(|fields| json!(fields)),
            ]
        })
    }

    fn object() -> impl Strategy<Value = RawObject> {
        let item = |key: &'static str, keys: Vec<Value>| {
            proptest::collection::vec((proptest::sample::select(keys), value(), value()), 0..3).prop_map(move |items| {
                let item = |(name, value, protocol): (Value, Value, Value)| json!({key: name, "value": value, "protocol": protocol});
                Value::Array(items.into_iter().map(item).collect())
            })
        };
        let env = item("name", vec![json!("A"), json!("B"), json!(7)]);
        let ports = item("containerPort", vec![json!(80), json!(81), json!("80")]);
        let mounts = item("mountPath", vec![json!("/a"), json!("/b")]);
        (value(), env, ports, mounts).prop_map(|(rest, env, ports, mounts)| {
            let mut object =
                json!({"env": env, "ports": ports, "volumeMounts": mounts, "resources": {"limits": rest, "requests": rest}, "x": rest});
            object.as_object_mut().unwrap().clone()
        })
    }

    /// `object` with a small change.
    fn near(object: &RawObject, other: &RawObject, pick: usize) -> RawObject {
        let mut near = object.clone();
        let keys: Vec<String> = near.keys().cloned().collect();
        let key = &keys[pick % keys.len()];
        match pick % 4 {
            0 => drop(near.remove(key)),
            1 => drop(near.insert(key.clone(), other[key].clone())),
            2 => near.extend([("more".to_owned(), other["x"].clone())]),
            _ => {}
        }
        near
    }

    #[test]
    fn a_protocol_that_is_no_text_is_compared_as_elsewhere() {
        let with = |protocol: Value| json!({ "protocol": protocol });
        let values =
            [json!([null]), json!({ "env": null }), json!("TCP"), json!("UDP"), json!(7), json!([]), json!({})];
        for (wanted, actual) in values.iter().flat_map(|wanted| values.iter().map(move |actual| (wanted, actual))) {
            let (wanted, actual) = (with(wanted.clone()), with(actual.clone()));
            let wanted = wanted.as_object().unwrap();
            let expected = equal::difference(wanted, actual.as_object().unwrap(), Fields::Open).is_none();
            assert_eq!(holds(wanted, &actual, Fields::Open, false), expected, "{wanted:?} {actual}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn it_is_the_comparison_that_is_made_elsewhere(wanted in object(), other in object(), pick in 0_usize..100) {
            for actual in [wanted.clone(), near(&wanted, &other, pick), other] {
                for fields in [Fields::Open, Fields::Closed] {
                    for (compare, is_after_admission) in [(equal::difference as Compare, false), (equal::kept_difference, true)] {
                        let expected = compare(&wanted, &actual, fields).is_none();
                        let found = holds(&wanted, &Value::Object(actual.clone()), fields, is_after_admission);
                        prop_assert_eq!(found, expected, "{:?} {:?}", wanted, actual);
                    }
                }
            }
        }
    }
}
