//! The values of parameters, as CEL: [`crate::policy::valued`] in another language, for usual values and new content.
//!
//! A value is usual if it is short, has plain characters, and is within its bounds. This engine leaves all other workloads as they are, with
//! all policies of the resource. API servers then call the webhook that stands by, which judges the whole workload and gives the reason. So
//! a pattern has allowed each character of a user that comes into a patch.
//!
//! The template has a stand-in in the place of each value. [`Leaf::of`](super::leaf::Leaf::of) takes the operand for it from [`Values`](super::environment::Values).

use super::access::Access;
use super::cel::{all, any, list, list_of, not, quoted};
use super::environment::{Environment as _, Given, OBJECT, Variables};
use super::expressions;
use super::{Cel, Inexpressible, needs};
use crate::api::v1alpha1::{self, ParameterType, RawObject};
use crate::capabilities::Capabilities;
use crate::inject::needs::MAX_ANNOTATIONS;
use crate::inject::tables::{INNER, LISTS, List, MAPS};
use crate::parameters::{Parameter, Piece, Role, has_stand_in, pieces, texts};
use crate::policy::{Policy, VersionedExpression, dialect};
use crate::workload::Kind;
use admission_cel::{Expression, Gives};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The most characters of a usual value: values of labels have at most 63.
const MOST_USUAL: usize = 64;

/// The longest bound of durations that is compared, in seconds, a year: a usual duration has at most five digits, of hours, and the durations of
/// CEL end at 292 years.
const LONGEST_BOUND: i128 = 99_999 * 3600;
/// The longest marker of which the webhook that stands by need not judge the values, in bytes. A search in it costs the server a unit for
/// each ten bytes of both texts. The server allows match conditions 2 500 000 units (`RuntimeCELCostBudgetMatchConditions`).
const LONGEST_MARKER: usize = 8 << 10;

/// `policies`, where those with parameters have stand-ins for values.
///
/// # Errors
/// Why one of them cannot be served, with its policy.
pub(super) fn with_stand_ins(policies: &[&Policy]) -> Result<Vec<Policy>, crate::Unavailable> {
    let made = |policy: &&Policy| {
        let with = policy.with_stand_ins(MOST_USUAL).map_err(|path| {
            let what = format!("this engine does not compute values for the place `{path}` of its `parameters`");
            Inexpressible(what).of(policy)
        })?;
        Ok(with.unwrap_or_else(|| (*policy).clone()))
    };
    policies.iter().map(made).collect()
}

/// What the values of a policy depend on.
pub(super) struct Scene<'a> {
    pub(super) kind: &'a Kind,
    pub(super) access: &'a Access,
    /// All policies of the resource.
    pub(super) policies: &'a [&'a Policy],
    pub(super) cluster: &'a Capabilities,
}

impl Scene<'_> {
    /// Defines the values of `policy` and what depends on them.
    ///
    /// # Errors
    /// Why this engine does not compute them.
    pub(super) fn define(&self, policy: &Policy, variables: &mut Variables) -> Result<(), Inexpressible> {
        if !policy.has_parameters() {
            return Ok(());
        }
        self.is_served(policy)?;
        let plain = policy.as_written().without_values();
        let spec = json!(policy.as_written().spec);
        let mut found = Vec::new();
        texts(&spec, Some(&plain), &mut found);
        // Expressions see the workload without the content of policies, and markers list that.
        let mut terms = vec![self.access.has_no_marker()];
        terms.extend(self.has_place(policy, variables)?);
        // Near the limit the length of each value counts, and this engine has an estimate.
        terms.push(format!("{} <= {}", needs::annotation_bytes(self.access, variables), MAX_ANNOTATIONS / 2));
        let (mut givens, mut entries) = (Vec::new(), Vec::new());
        for (index, (parameter, expression)) in policy.parameters().enumerate() {
            let given = self.given(parameter, expression, variables)?;
            let is_standing = found.iter().all(|(text, plain)| is_standing(index, parameter, text, *plain));
            let judged = all(&judged(parameter, &format!("{given}[0]")));
            terms.push(format!("(size({given}) == 0 ? {is_standing} : {judged})"));
            let entry = format!("{} + {given}[0] + \"\\\"\"", quoted(&format!("\"{}=", parameter.name)));
            entries.push((format!("size({given}) != 0"), entry));
            givens.push((parameter, given));
        }
        for (text, plain) in &found {
            let operand = operand(text, *plain, &givens)?;
            variables.values.leaves.insert((*text).to_owned(), operand);
        }
        terms.extend(amounts(policy, self.access, variables));
        terms.extend(self.has_no_misspelt(policy, variables));
        let is_usual = variables.define("usual", &all(&terms));
        let key = (policy.name.clone(), policy.spec_hash.clone());
        variables.values.of.insert(key, Given { is_usual, entries: list_of(&entries) });
        Ok(())
    }

    /// # Errors
    /// Why this engine does not serve the parameters of `policy`, whatever they are.
    fn is_served(&self, policy: &Policy) -> Result<(), Inexpressible> {
        let why = if policy.refuses() {
            "it has `parameters` and `failurePolicy: Fail`"
        } else if !self.kind.is_in_table() {
            "it has `parameters`, and one of its targets is a custom resource"
        } else if policy.acts_on_update(self.kind) {
            "it has `parameters`, and acts on updates"
        } else if self.policies.iter().any(|other| other.replaces(&policy.name) || policy.replaces(&other.name)) {
            "it has `parameters`, and takes the place of another policy or the other way round"
        } else if policy.parameters().any(|(parameter, expression)| expression.is_some() && !parameter.may_be_forged())
        {
            "it has `parameters` that workloads may not set, with an `expression` that gives a text, which a marker can claim"
        } else {
            return Ok(());
        };
        Err(Inexpressible::new(why))
    }

    /// The conditions that the workload has no item with the name of one with values: this engine does not compare those.
    ///
    /// # Errors
    /// If another policy has the same names, or if values are in what goes into the user's containers.
    fn has_place(&self, policy: &Policy, variables: &mut Variables) -> Result<Vec<String>, Inexpressible> {
        let template = policy.as_written();
        let others = || self.policies.iter().filter(|other| other.name != policy.name).map(|it| &it.as_written().spec);
        let shared = |what: &str| {
            let message = format!("it has `parameters`, and another policy of the resource has {what}, too");
            Err(Inexpressible(message))
        };
        let is_valued = |item: &RawObject| has_stand_in(&json!(item).to_string());
        if INNER.iter().any(|inner| (inner.items)(&template.spec).iter().any(is_valued)) {
            return Err(Inexpressible::new("it has `parameters` for what goes into the workload's containers"));
        }
        let mut terms = Vec::new();
        for list in &LISTS {
            for item in (list.items)(&template.spec).iter().filter(|item| is_valued(item)) {
                let key = list.key_of(item);
                let has_it = |spec: &v1alpha1::Template, list: &List| {
                    (list.items)(spec).iter().any(|other| list.key_of(other) == key)
                };
                if others().any(|spec| list.scope().any(|list| has_it(spec, list))) {
                    return shared(&format!("`{key}`"));
                }
                terms.extend(list.scope().map(|list| self.access.has_no(key, list.field, variables)));
            }
        }
        for map in &MAPS {
            for (key, _) in map.of(&template.spec).filter(|(_, value)| has_stand_in(value)) {
                if others().any(|spec| map.of(spec).any(|(other, _)| other == key)) {
                    return shared(&format!("the annotation `{key}`"));
                }
                terms.push(format!("!({} in {})", quoted(key), self.access.entries(map.field, variables)));
            }
        }
        Ok(terms)
    }

    /// The conditions that no annotation of the workload may be meant for a parameter and miss it: the webhook tells the author. What has the
    /// length of a key may be meant for it; see [`similar`](crate::api::similar).
    fn has_no_misspelt(&self, policy: &Policy, variables: &mut Variables) -> Vec<String> {
        let keys: Vec<&str> =
            policy.parameters().filter_map(|(parameter, _)| parameter.annotation.as_deref()).collect();
        let own = format!("{}.scpol.dev/", policy.name);
        let mut near = BTreeSet::from([format!("k.startsWith({})", quoted(&own))]);
        near.extend(keys.iter().filter(|key| !key.starts_with(&own)).filter_map(|key| {
            let (domain, name) = key.split_once('/')?;
            let far = 1 + name.len() / 4;
            let [least, most] = [key.len().saturating_sub(far), key.len() + far];
            Some(format!(
                "(k.startsWith({}) && size(k) >= {least} && size(k) <= {most})",
                quoted(&format!("{domain}/"))
            ))
        }));
        let is_near = any(&near.into_iter().collect::<Vec<_>>());
        let keys = list(keys);
        let mut maps = self.annotations(variables);
        maps.dedup();
        maps.iter().map(|map| format!("!{map}.exists(k, {is_near} && !(k in {keys}))")).collect()
    }

    /// The annotations of the pod, and those of the workload.
    fn annotations(&self, variables: &mut Variables) -> Vec<String> {
        let of_workload = format!("{OBJECT}.metadata.?annotations.orValue({{}})");
        vec![self.access.entries("annotations", variables), variables.define("annotations", &of_workload)]
    }

    /// The list of the text that the nearest source of `parameter` gives; empty if none does.
    fn given(&self, parameter: &Parameter, expression: Option<&VersionedExpression>, variables: &mut Variables) -> Cel {
        let mut sources = Vec::new();
        if let Some(key) = &parameter.annotation {
            let mut maps = self.annotations(variables);
            if parameter.from_namespace {
                let of_namespace = "namespaceObject.metadata.?annotations.orValue({})";
                maps.push(variables.define("namespace_annotations", of_namespace));
                maps.push(variables.namespace_labels());
            }
            maps.dedup();
            let key = quoted(key);
            sources.extend(maps.iter().map(|map| format!("{key} in {map} ? [{map}[{key}]] : ")));
        }
        let last = match expression {
            Some(expression) => format!("[{}]", self.computed(expression, variables)?),
            None => "[\"\"].filter(n, false)".to_owned(),
        };
        Ok(variables.define("given", &format!("{}{last}", sources.concat())))
    }

    /// The text of a user's `expression`. What is neither a text, a whole number nor a bool becomes one that is not usual.
    ///
    /// # Errors
    /// If the server does not compile it, or if its type is another one.
    fn computed(&self, expression: &VersionedExpression, variables: &mut Variables) -> Cel {
        let source = expression.source();
        // The end of a line ends a comment.
        let whole = match source.contains("template") {
            true => format!("[{}].map(template, {source}\n)[0]", self.access.pod),
            false => format!("{source}\n"),
        };
        let unusable = |why: &str| {
            let what = format!("the `expression` `{}` of its `parameters` {why}", source.trim());
            Inexpressible(what)
        };
        let dialect = dialect(self.cluster.known_minor());
        let is_of = |use_of: &str| Expression::compile(&format!("({whole}){use_of}"), Gives::Bool, dialect).is_ok();
        if !["+ \"\" == \"\"", "+ 0 == 0", "|| true"].into_iter().any(|use_of| is_of(&format!(" {use_of}"))) {
            return Err(unusable(
                "gives no text, no whole number and no bool in the CEL of the server, which has no sums of quantities",
            ));
        }
        let whole = VersionedExpression::compile(&whole, Gives::Value);
        let whole = whole.map_err(|_| unusable("cannot be used there"))?;
        if self.policies.len() > 1 && expressions::sees_notes(&whole) {
            return Err(unusable(
                "looks at all of the metadata, beside other policies; name the fields that are meant",
            ));
        }
        let value = expressions::define(&whole, "computed", OBJECT, variables)?;
        let as_text =
            "type(v) == string || type(v) == int ? string(v) : v == true ? \"true\" : v == false ? \"false\" : \"?\"";
        Ok(variables.define("computed_text", &format!("[dyn({value})].map(v, {as_text})[0]")))
    }
}

/// Whether the parameter at `index` needs no value in `text`: something stands there without one.
fn is_standing(index: usize, parameter: &Parameter, text: &str, plain: Option<&Value>) -> bool {
    let mut own = pieces(text).into_iter().flatten().filter_map(|piece| match piece {
        Piece::StandIn(stand_in) if stand_in.of == index => Some(stand_in.role),
        _ => None,
    });
    own.all(|role| match role {
        Role::Part => parameter.text_of_marks().is_some(),
        Role::Number | Role::Text => plain.is_some_and(|plain| !plain.is_null()),
    })
}

/// The operand for `text`, with what stands in its place without values. `givens` are the lists of values.
fn operand(text: &str, plain: Option<&Value>, givens: &[(&Parameter, String)]) -> Cel {
    let unknown = || Inexpressible::new("its template has a character of private use (U+E000 or U+E001)");
    let pieces = pieces(text).ok_or_else(unknown)?;
    let mut parts = Vec::new();
    for piece in &pieces {
        let stand_in = match piece {
            Piece::Text(text) => {
                parts.push(quoted(text));
                continue;
            }
            Piece::StandIn(stand_in) => stand_in,
        };
        let (parameter, given) = givens.get(stand_in.of).ok_or_else(unknown)?;
        match stand_in.role {
            Role::Part => {
                let default = parameter.text_of_marks().unwrap_or_default();
                parts.push(format!("(size({given}) == 0 ? {} : {given}[0])", quoted(&default)));
            }
            Role::Number => {
                let number = match parameter.of {
                    ParameterType::Duration => format!("duration({given}[0]).getSeconds()"),
                    _ => format!("int({given}[0])"),
                };
                return Ok(otherwise(given, &number, plain.unwrap_or(&json!(0))));
            }
            Role::Text => {
                parts.push(format!("{given}[0]"));
                return Ok(otherwise(given, &parts.join(" + "), plain.unwrap_or(&json!(""))));
            }
        }
    }
    Ok(format!("({})", parts.join(" + ")))
}

/// `value` if there is one, `plain` otherwise.
fn otherwise(given: &str, value: &str, plain: &Value) -> String {
    let plain = if let Value::String(text) = plain { quoted(text) } else { plain.to_string() };
    format!("(size({given}) == 0 ? dyn({plain}) : dyn({value}))")
}

/// The conditions that `text`, an operand, is a usual value of `parameter`.
fn judged(parameter: &Parameter, text: &str) -> Vec<String> {
    let asked = parameter.asked();
    let first = if asked.is_positive { "[1-9]" } else { "(0$|[1-9])" };
    // No `$`, quote, blank, `~` or `\`: nothing expands or escapes them.
    let pattern = match parameter.of {
        ParameterType::String => format!("^[A-Za-z0-9._/:@%+=-]{{1,{MOST_USUAL}}}$"),
        ParameterType::Boolean => "^(true|false)$".to_owned(),
        ParameterType::Integer => format!("^{first}[0-9]{{0,8}}$"),
        ParameterType::Quantity => "^[1-9][0-9]{0,8}(m|k|M|G|Ki|Mi|Gi)?$".to_owned(),
        ParameterType::Duration => "^[1-9][0-9]{0,4}(s|m|h)$".to_owned(),
    };
    let mut terms = vec![format!("{text}.matches({})", quoted(&pattern))];
    let size = |text: &str| match parameter.of {
        ParameterType::Integer => format!("int({text})"),
        ParameterType::Quantity => format!("quantity({text})"),
        _ => format!("duration({text})"),
    };
    for (bound, is_least) in [(asked.least, true), (asked.most, false)] {
        let Some((bound, of)) = bound else { continue };
        if parameter.of == ParameterType::Duration && of > LONGEST_BOUND {
            terms.extend(is_least.then(|| "false".to_owned()));
            continue;
        }
        let (value, bound) = (size(text), size(&quoted(bound)));
        terms.push(match (parameter.of, is_least) {
            (ParameterType::Quantity, true) => format!("{value}.compareTo({bound}) >= 0"),
            (ParameterType::Quantity, false) => format!("{value}.compareTo({bound}) <= 0"),
            (_, true) => format!("{value} >= {bound}"),
            (_, false) => format!("{value} <= {bound}"),
        });
    }
    terms.extend(asked.lists.iter().map(|choices| format!("{text} in {}", list(choices.iter().copied()))));
    terms.extend(asked.pattern.map(|pattern| format!("{text}.matches({})", quoted(&format!("^(?:{pattern})$")))));
    terms.extend(asked.length.map(|most| format!("size({text}) <= {most}")));
    terms
}

/// The conditions that the amounts of the containers of `policy` fit together, and that the pod limits none.
fn amounts(policy: &Policy, access: &Access, variables: &Variables) -> Vec<String> {
    let spec = &policy.as_written().spec;
    let mut terms = Vec::new();
    let mut is_limited = false;
    for item in spec.containers.iter().chain(&spec.init_containers) {
        let of = |field: &str| item.get("resources").and_then(|resources| resources.get(field)?.as_object());
        let amount = |value: &Value| match value {
            Value::String(text) => variables.values.leaf(text).cloned().unwrap_or_else(|| quoted(text)),
            other => quoted(&other.to_string()),
        };
        let is_valued = |value: &Value| value.as_str().is_some_and(has_stand_in);
        let all_of = [of("requests"), of("limits")];
        is_limited |= all_of.iter().flatten().any(|amounts| amounts.values().any(is_valued));
        let [Some(requests), Some(limits)] = all_of else { continue };
        for (name, request) in requests {
            let Some(limit) = limits.get(name).filter(|limit| is_valued(limit) || is_valued(request)) else { continue };
            let [request, limit] = [amount(request), amount(limit)].map(|it| format!("quantity(string({it}))"));
            terms.push(format!("{request}.compareTo({limit}) <= 0"));
        }
    }
    terms.extend(is_limited.then(|| format!("!has({}.resources)", access.spec)));
    terms
}

/// The condition that the marker of `policy` on a workload of a built-in kind has the values of its annotations, and values within their
/// bounds from where match conditions do not see: in the Namespace, or computed.
///
/// Only a workload that comes with a marker can differ: a copy with other annotations, what a controller makes of a template, or a forged
/// marker. A value with an escape differs, too. The webhook decides on all of them.
pub(super) fn agree(policy: &Policy, access: &Access) -> String {
    let annotations = |of: &str| format!("{of}.?metadata.?annotations");
    let marker = format!("{}[?{}].orValue(\"\")", annotations(&access.pod), quoted(policy.marker_key()));
    let terms = policy.parameters().map(|(parameter, expression)| {
        // What stands behind the name of the value, once for each entry with that name.
        let found = format!("m.split({}).map(t, t.split(\"\\\"\")[0])", quoted(&format!("\"{}=", parameter.name)));
        let has_none = if parameter.is_required() { "false" } else { "size(f) == 1" };
        let is_judged = format!("size(f) == 2 && [f[1]].all(t, {})", all(&judged(parameter, "t")));
        let is_seen = expression.is_none() && !parameter.from_namespace;
        let without = if is_seen { has_none.to_owned() } else { any(&[has_none.to_owned(), format!("({is_judged})")]) };
        let Some(key) = &parameter.annotation else { return format!("[{found}].all(f, {without})") };
        let key = quoted(key);
        let mut given = format!("{}[?{key}]", annotations(&access.pod));
        if !access.is_pod {
            given = format!("{given}.or({}[?{key}])", annotations(OBJECT));
        }
        let is_same = format!("{is_judged} && f[1] == g.value()");
        format!("[{given}].all(g, [{found}].all(f, g.hasValue() ? {is_same} : {without}))")
    });
    let terms: Vec<String> = terms.collect();
    match terms.is_empty() {
        true => "true".to_owned(),
        false => format!("[{marker}].all(m, size(m) <= {LONGEST_MARKER} && {})", all(&terms)),
    }
}

/// The condition that this engine need not leave the workload to the webhook: `policy` does not match, which `holds` says, or its values are
/// usual. None if it has no values.
pub(super) fn is_served(policy: &Policy, holds: &str, variables: &Variables) -> Option<String> {
    let is_usual = variables.values.are_usual(policy)?;
    Some(any(&[not(holds), is_usual.to_owned()]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::admission_policy::render;
    use crate::policy::Site;
    use crate::policy::extent::Extent;
    use admission_cel::{Budget, Dialect, Variables as Seen};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn site() -> Site {
        Site { native_sidecars: true, ..Site::new("scpol-system", [], []) }
    }

    fn template() -> Value {
        json!({ "containers": [{ "name": "proxy", "image": "proxy:1", "args": ["--a=$(scpol.mark)"],
            "env": [{ "name": "A", "value": "x" }, { "name": "B", "value": "5" }, { "name": "D", "value": "5s" }, { "name": "T", "value": "true" }],
            "ports": [{ "name": "http", "containerPort": 80 }], "livenessProbe": { "periodSeconds": 5, "httpGet": { "path": "/", "port": 80 } },
            "resources": { "requests": { "cpu": 1 }, "limits": { "memory": "128Mi" } } }],
          "env": [{ "name": "OWN", "value": "x" }], "metadata": { "labels": { "l": "x" } } })
    }

    fn policy(name: &str, parameters: &Value, more: &Value) -> Policy {
        let mut spec = json!({ "template": template(), "targets": [{ "group": "apps", "resource": "deployments" }] });
        spec["parameters"] = parameters.clone();
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        if !parameters.to_string().contains("mark") {
            spec["template"]["containers"][0].as_object_mut().unwrap().remove("args");
        }
        Policy::parse(&json!({ "metadata": { "name": name }, "spec": spec }), &site()).unwrap()
    }

    fn one(parameter: &Value) -> Policy {
        let mut parameter = parameter.clone();
        parameter["name"] = json!("p");
        policy("mesh", &json!([parameter]), &json!({}))
    }

    fn holds(condition: &str, object: &Value) -> bool {
        let expression = Expression::compile(condition, Gives::Bool, Dialect::NEWEST);
        let expression = expression.unwrap_or_else(|error| panic!("{error}: {condition}"));
        let seen = Seen { object, namespace: None, template: None };
        expression.test(&seen, &mut Budget::match_conditions()).unwrap_or_else(|error| panic!("{error}: {condition}"))
    }

    /// Parameters of each type, with each bound.
    fn declared() -> Vec<Value> {
        vec![
            json!({ "paths": ["containers[proxy].env[A].value"] }),
            json!({ "paths": ["containers[proxy].env[A].value"], "pattern": "x|[a-c/]+", "maxLength": 5 }),
            json!({ "paths": ["containers[proxy].env[A].value"], "enum": ["x", "y.z"] }),
            json!({ "paths": ["containers[proxy].image:tag"], "enum": ["1", "2"] }),
            json!({ "paths": ["containers[proxy].imagePullPolicy"] }),
            json!({ "paths": ["containers[proxy].env[T].value"], "type": "Boolean" }),
            json!({ "paths": ["containers[proxy].env[B].value"], "type": "Integer", "minimum": -7, "maximum": 4000 }),
            json!({ "paths": ["containers[proxy].livenessProbe.periodSeconds"], "type": "Integer" }),
            json!({ "paths": ["containers[proxy].livenessProbe.periodSeconds"], "type": "Duration", "maximum": "1h30m" }),
            json!({ "paths": ["containers[proxy].env[D].value"], "type": "Duration", "minimum": "2s" }),
            json!({ "paths": ["containers[proxy].resources.limits.memory"], "type": "Quantity", "minimum": "0.05G", "maximum": "1e9" }),
            json!({ "paths": ["containers[proxy].resources.requests.cpu"], "type": "Quantity", "maximum": 2 }),
            json!({ "paths": ["containers[proxy].resources.requests.cpu"], "type": "Integer" }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

        #[test]
        fn what_is_usual_is_a_value(
            at in 0_usize..13,
            text in "[a-z./]{0,6}|true|false|-?[0-9]{1,10}(m|k|M|G|Ki|Mi|Gi|s|h|)|[0-9]{1,6}[smh]|[12]|Always|y.z|\\PC{0,4}|[0-9.e+-]{1,6}",
        ) {
            let policy = one(&declared()[at]);
            let (parameter, _) = policy.parameters().next().unwrap();
            let condition = all(&judged(parameter, "object"));
            if holds(&condition, &json!(text)) {
                prop_assert_eq!(parameter.judge(&text), Ok(text.clone()), "{}", condition);
                prop_assert!(!text.contains(['$', '"', '\\', '~', '\n', ' ', '\'']));
            }
        }
    }

    #[test]
    fn usual_values_of_each_type_are_usual() {
        let usual = ["b/c", "a/b", "y.z", "2", "Never", "false", "12", "9", "90m", "3s", "512Mi", "1500m", "2"];
        for (declared, text) in declared().iter().zip(usual) {
            let policy = one(declared);
            let (parameter, _) = policy.parameters().next().unwrap();
            let condition = all(&judged(parameter, "object"));
            assert!(holds(&condition, &json!(text)), "{text}: {condition}");
        }
    }

    #[test]
    fn what_depends_on_more_than_a_value_goes_to_the_webhook() {
        let env = |more: Value| {
            let mut parameter = json!({ "name": "p", "paths": ["containers[proxy].env[A].value"] });
            parameter.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!([parameter])
        };
        let at = |path: &str, of: &str| json!([{ "name": "p", "type": of, "paths": [path] }]);
        let all_of_them =
            json!({ "targets": [{ "group": "apps", "resource": "deployments", "operations": ["CREATE", "UPDATE"] }] });
        for (parameters, more, why) in [
            (env(json!({})), json!({}), None),
            (json!([{ "name": "mark" }]), json!({}), None),
            (env(json!({ "expression": "object.metadata.name // of the workload" })), json!({}), None),
            (env(json!({ "expression": "template.spec.containers.size()" })), json!({}), None),
            (env(json!({ "expression": "quantity('1').add(quantity('2'))" })), json!({}), Some("gives no text")),
            (env(json!({ "expression": "[quantity('1')].sum()" })), json!({}), Some("gives no text")),
            (env(json!({ "expression": "duration('3s')" })), json!({}), Some("gives no text")),
            (env(json!({ "expression": "'x'", "annotation": "" })), json!({}), Some("a marker can claim")),
            (env(json!({})), json!({ "failurePolicy": "Fail" }), Some("`failurePolicy: Fail`")),
            (env(json!({})), all_of_them, Some("acts on updates")),
            (at("containers[proxy]", "Boolean"), json!({}), Some("containers[proxy]")),
            (at("containers[proxy].ports[http].containerPort", "Integer"), json!({}), Some("containerPort")),
            (at("containers[proxy].livenessProbe.httpGet.path", "String"), json!({}), Some("httpGet.path")),
            (at("containers[proxy].image:tag", "String"), json!({}), Some("image:tag")),
            (at("metadata.labels[l]", "String"), json!({}), Some("metadata.labels[l]")),
            (at("env[OWN].value", "String"), json!({}), Some("env[OWN]")),
            (at("containers[proxy].resources.limits.hugepages-2Mi", "Quantity"), json!({}), Some("hugepages")),
        ] {
            let mut site = site();
            site.trust = crate::api::trust::Trust::unbounded();
            let policy = Arc::new(policy("mesh", &parameters, &more));
            let found = render(&policy.kinds[0], std::slice::from_ref(&policy), &Capabilities::default(), &site);
            match (found, why) {
                (Ok(_), None) => {}
                (Err(found), Some(why)) => assert!(found.message.contains(why), "{why}: {}", found.message),
                (found, _) => panic!("{parameters}: {found:?}"),
            }
        }
    }

    #[test]
    fn two_contents_of_one_template_have_their_own_bounds() {
        let with = |maximum: &str| {
            let memory = json!({ "name": "p", "type": "Quantity", "maximum": maximum, "paths": ["containers[proxy].resources.limits.memory"] });
            Arc::new(policy("mesh", &json!([memory]), &json!({})))
        };
        let (earlier, latest) = (with("4Gi"), with("1Gi"));
        assert_eq!(earlier.template_hash(), latest.template_hash());
        let latest = latest.with_content(&crate::content::Content::of(&latest.spec).unwrap());
        let halves = Arc::new(latest.split(earlier, Extent::of_namespaces(["shop".to_owned()]))).halves();
        let halves = with_stand_ins(&halves.iter().map(AsRef::as_ref).collect::<Vec<_>>()).unwrap();
        let policies: Vec<&Policy> = halves.iter().collect();
        let mut variables = Variables::default();
        let access = Access::of(&halves[0].kinds[0], &mut variables);
        let cluster = Capabilities::default();
        let scene = Scene { kind: &halves[0].kinds[0], access: &access, policies: &policies, cluster: &cluster };
        for (half, bound) in policies.iter().zip(["1Gi", "4Gi"]) {
            scene.define(half, &mut variables).unwrap();
            let usual = variables.values.are_usual(half).unwrap();
            let (_, usual) = variables.iter().find(|(name, _)| usual == format!("variables.{name}")).unwrap();
            assert!(usual.contains(&format!("compareTo(quantity(\"{bound}\"))")), "{usual}");
        }
        // Both are there, each for its half.
        let [one, other] = [0, 1].map(|at| variables.values.are_usual(policies[at]).unwrap().to_owned());
        assert_ne!(one, other);
    }

    #[test]
    fn an_update_that_another_policy_repairs_does_not_depend_on_values() {
        let parameters = json!([{ "name": "p", "paths": ["containers[proxy].env[A].value"] }]);
        let valued = Arc::new(policy("a", &parameters, &json!({})));
        let plain = json!({ "template": { "containers": [{ "name": "b", "image": "b" }] },
            "targets": [{ "group": "apps", "resource": "deployments", "operations": ["CREATE", "UPDATE"] }] });
        let plain = Policy::parse(&json!({ "metadata": { "name": "b" }, "spec": plain }), &site()).unwrap();
        let objects =
            render(&valued.kinds[0], &[valued.clone(), Arc::new(plain)], &Capabilities::default(), &site()).unwrap();
        let matches = |name: &str| {
            let variables = objects[0]["spec"]["variables"].as_array().unwrap().iter();
            let found = variables.clone().find(|variable| variable["name"] == name);
            found.unwrap()["expression"].as_str().unwrap().to_owned()
        };
        assert!(matches("matches").contains("(!(request.operation == \"UPDATE\") && "), "{}", matches("matches"));
        let inject = objects[0]["spec"]["mutations"][0]["jsonPatch"]["expression"].as_str().unwrap();
        assert!(inject.contains("(!(variables.matches) || variables.usual)"), "{inject}");
    }

    #[test]
    fn names_of_two_policies_go_to_the_webhook() {
        let parameters = json!([{ "name": "p", "paths": ["containers[proxy].env[A].value"] }]);
        let policies = ["a", "b"].map(|name| Arc::new(policy(name, &parameters, &json!({}))));
        let found = render(&policies[0].kinds[0], &policies, &Capabilities::default(), &site()).unwrap_err();
        assert!(found.message.contains("another policy of the resource has `proxy`"), "{}", found.message);
    }

    #[test]
    fn a_marker_that_disagrees_with_the_workload_is_left_to_the_webhook() {
        let parameters = json!([
            { "name": "p", "paths": ["containers[proxy].env[A].value"] },
            { "name": "q", "type": "Integer", "maximum": 9, "paths": ["containers[proxy].env[B].value"], "fromNamespace": true },
        ]);
        let policy = policy("mesh", &parameters, &json!({}));
        let agrees = agree(&policy, &Access::of(&policy.kinds[0], &mut Variables::default()));
        for (annotations, marker, expected) in [
            (json!({}), "", true),
            (json!({}), "\"p=x\",", false),
            (json!({ "mesh.scpol.dev/p": "x" }), "\"p=x\",", true),
            (json!({ "mesh.scpol.dev/p": "x" }), "\"p=xy\",", false),
            (json!({ "mesh.scpol.dev/p": "x" }), "\"p=y\",\"p=x\",", false),
            (json!({ "mesh.scpol.dev/p": "x".repeat(65) }), "", false),
            (json!({}), "\"q=7\",\"q=10\",", false),
            (json!({ "mesh.scpol.dev/p": "x" }), "", false),
            (json!({}), "\"q=7\",", true),
            (json!({}), "\"q=10\",", false),
            (json!({}), "\"q=7 \",", false),
            (json!({ "mesh.scpol.dev/q": "8" }), "\"q=8\",", true),
            (json!({ "mesh.scpol.dev/q": "8" }), "\"q=7\",", false),
        ] {
            let marker = format!("{{\"v\":1,\"hash\":\"0123456789abcdef\",\"added\":[{marker}\"/spec\"]}}");
            let mut pod = annotations.clone();
            pod["injected.scpol.dev/mesh"] = json!(marker);
            let object = json!({ "metadata": {}, "spec": { "template": { "metadata": { "annotations": pod } } } });
            assert_eq!(holds(&agrees, &object), expected, "{annotations} {marker}");
            // On the workload itself.
            let pod = json!({ "annotations": { "injected.scpol.dev/mesh": marker } });
            let object =
                json!({ "metadata": { "annotations": annotations }, "spec": { "template": { "metadata": pod } } });
            assert_eq!(holds(&agrees, &object), expected, "{annotations} {marker}");
        }
    }
}
