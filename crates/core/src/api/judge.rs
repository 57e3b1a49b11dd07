//! Every fault of a policy at once. [`decode`] stops at an unreadable spec. This module removes the unreadable fields
//! and validates the rest.

use super::code::Code;
use super::derived;
use super::field::beginnings;
use super::rules::{Rules, Violation, check, decode};
use super::schema::{self, Fault, FaultKind};
use super::v1alpha1::SidecarPolicySpec;
use serde_json::{Value, json};
use std::collections::HashSet;

/// The number of passes: a removed field may make another one unreadable.
const PASSES: usize = 8;

/// Every fault of the policy `name` whose untyped `spec` is `raw`, and the readable part of the spec.
///
/// # Guarantees
/// The faults of [`decode`] or, after it, [`check`] come first, in the same order. A field that was removed as
/// unreadable is not reported as missing.
pub fn judge(name: &str, raw: &Value, site: &Rules) -> (Option<SidecarPolicySpec>, Vec<Violation>) {
    let mut violations = match decode(raw) {
        Ok(spec) => {
            let violations = check(name, &spec, site);
            return (Some(spec), violations);
        }
        Err(violations) => violations,
    };
    let (spec, gone) = match readable(raw) {
        Some((spec, gone)) => (Some(spec), gone),
        None => (None, Gone::of("spec")),
    };
    let mut seen: HashSet<_> = violations.iter().map(|violation| (violation.code, violation.field.clone())).collect();
    let more = check(name, &spec.clone().unwrap_or_default(), site);
    // Because a parameter names items of the template.
    let is_of_template =
        |violation: &Violation| violation.code == Code::ParameterInvalid && gone.concerns("spec.template");
    violations.extend(more.into_iter().filter(|violation| {
        !gone.concerns(&violation.field)
            && !is_of_template(violation)
            && seen.insert((violation.code, violation.field.clone()))
    }));
    (spec, violations)
}

/// The removed fields.
#[derive(Default)]
struct Gone {
    fields: HashSet<String>,
    /// The removed fields, and all fields around them.
    around: HashSet<String>,
}

impl Gone {
    fn of(field: &str) -> Self {
        let mut gone = Self::default();
        gone.insert(field);
        gone
    }

    fn insert(&mut self, field: &str) {
        self.fields.insert(field.to_owned());
        self.around.extend(beginnings(field).map(str::to_owned));
    }

    /// True if and only if `field` is removed, or is inside a removed one.
    fn holds(&self, field: &str) -> bool {
        beginnings(field).any(|beginning| self.fields.contains(beginning))
    }

    /// The same, or `field` contains a removed one.
    fn concerns(&self, field: &str) -> bool {
        self.holds(field) || self.around.contains(field)
    }
}

/// The readable part of a spec, and the fields that were removed for it.
fn readable(raw: &Value) -> Option<(SidecarPolicySpec, Gone)> {
    let schema = &derived::schema()["properties"]["spec"];
    let around = json!({ "type": "object", "properties": { "spec": schema } });
    let mut object = json!({ "spec": raw });
    let mut gone = Gone::default();
    for _ in 0..PASSES {
        let faults: Vec<_> = schema::faults(&around, &object).into_iter().filter(is_in_the_way).collect();
        if faults.is_empty() {
            let spec = serde_json::from_value(schema::without_nulls(schema, &object["spec"])).ok()?;
            return Some((spec, gone));
        }
        let mut now = Gone::default();
        for fault in faults {
            if !now.holds(&fault.path) {
                let field = take_away(&mut object, &fault.path)?;
                now.insert(&field);
                gone.insert(&field);
            }
        }
    }
    None
}

/// True if and only if a spec with such a fault is unreadable. Missing fields in items of templates do not count,
/// because items are kept raw.
fn is_in_the_way(fault: &Fault) -> bool {
    fault.kind.is_structural() && !(fault.kind == FaultKind::Missing && fault.path.starts_with("spec.template."))
}

/// Removes the field `path` from `object`. For an item, or a missing field of an item, removes the whole list, so that
/// no index changes. Returns the path that was removed.
fn take_away(object: &mut Value, path: &str) -> Option<String> {
    let (mut steps, is_there) = steps(object, path);
    if !is_there || steps.last()?.is_index {
        while !steps.pop()?.is_index {}
    }
    let last = steps.pop()?;
    let parent = steps.iter().try_fold(object, |value, step| match value {
        Value::Array(items) => items.get_mut(step.name.parse::<usize>().ok()?),
        value => value.get_mut(&step.name),
    })?;
    parent.as_object_mut()?.remove(&last.name)?;
    Some(path[..last.end].to_owned())
}

/// A key, or the index of an item, on the way to a field.
struct Step {
    name: String,
    is_index: bool,
    /// The offset of its end in the path.
    end: usize,
}

/// The steps of `path` through `value`, and whether all of them exist. The longest key wins, because keys may have
/// dots.
fn steps(mut value: &Value, path: &str) -> (Vec<Step>, bool) {
    let mut steps: Vec<Step> = Vec::new();
    loop {
        let at = steps.last().map_or(0, |step| step.end);
        let rest = &path[at..];
        if rest.is_empty() {
            return (steps, true);
        }
        let Some((step, next)) = item(value, rest).or_else(|| member(value, rest)) else { return (steps, false) };
        value = next;
        steps.push(Step { end: at + step.end, ..step });
    }
}

fn item<'a>(value: &'a Value, rest: &str) -> Option<(Step, &'a Value)> {
    let (index, _) = rest.strip_prefix('[')?.split_once(']')?;
    let next = value.get(index.parse::<usize>().ok()?)?;
    Some((Step { name: index.to_owned(), is_index: true, end: index.len() + 2 }, next))
}

fn member<'a>(value: &'a Value, rest: &str) -> Option<(Step, &'a Value)> {
    let path = rest.strip_prefix('.').unwrap_or(rest);
    let members = value.as_object()?;
    let (key, next) = beginnings(path).find_map(|key| Some((key, members.get(key)?)))?;
    Some((Step { name: key.to_owned(), is_index: false, end: rest.len() - path.len() + key.len() }, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(name: &str, spec: &Value) -> Vec<String> {
        let (_, violations) = judge(name, spec, &Rules::default());
        violations.iter().map(|violation| format!("{} {}", violation.code, violation.field)).collect()
    }

    #[test]
    fn what_cannot_be_read_hides_no_other_fault() {
        let spec = json!({
            "namespace": ["shop"],
            "priority": "high",
            "a.b": {"c": 1},
            "targets": [{"group": 5, "resource": "deployments"}, {"group": "", "resource": "services"}],
            "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]},
            "annotationSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]},
            "initializerName": "a.b.example.com",
            "template": {"containers": [{"name": 7, "image": "a"}, {"name": "x", "image": "a"}], "initContainers": [{"name": "x", "image": "b"}]},
        });
        let found = faults("true", &spec);
        let (decoded, _) = judge("true", &spec, &Rules::default());
        assert_eq!(decoded.unwrap().template.unwrap().containers.len(), 2);
        for expected in [
            "SCP0012 spec.namespace",
            "SCP0011 spec.priority",
            "SCP0012 spec.a.b",
            "SCP0011 spec.targets[0].group",
            "SCP0015 spec.labelSelector.matchExpressions[0].operator",
            "SCP0022 spec.template.containers[0].name",
            // Found by the rules, in the remaining fields.
            "SCP0010 metadata.name",
            "SCP0015 spec.annotationSelector.matchExpressions[0].values",
            "SCP0023 spec.initializerName",
            "SCP0019 spec.template.initContainers[0].name",
        ] {
            assert!(found.iter().any(|fault| fault == expected), "{expected} is not in {found:#?}");
        }
        assert_eq!(found.len(), 10, "{found:#?}");
    }

    #[test]
    fn what_could_not_be_read_is_not_called_missing() {
        assert_eq!(faults("a", &json!({"template": {"containers": 5}})), ["SCP0011 spec.template.containers"]);
        assert_eq!(faults("a", &json!({"template": {"containers": [5]}})), ["SCP0022 spec.template.containers[0]"]);
        assert_eq!(faults("a", &json!({"template": 5})), ["SCP0011 spec.template"]);
        let parameters = json!([{"name": "a", "paths": ["containers[a].image"]}]);
        let damaged = json!({"template": {"containers": 5}, "parameters": parameters});
        assert_eq!(faults("a", &damaged), ["SCP0011 spec.template.containers"]);
        assert_eq!(faults("false", &json!(5)), ["SCP0011 spec", "SCP0010 metadata.name"]);
        assert_eq!(faults("false", &json!(null)), ["SCP0011 spec", "SCP0010 metadata.name"]);
    }
}
