//! The users' expressions, each as a variable. Thus the text around them cannot change their meaning, and each has its
//! own cost limit, as elsewhere.

use super::cel::optional;
use super::environment::{Environment as _, OBJECT, OLD, Variables};
use super::{Cel, Inexpressible};
use crate::capabilities::Capabilities;
use crate::policy::{Policy, VersionedExpression, dialect};
use crate::workload::OF_THE_SERVER;
use admission_cel::Place;

/// Checks that `cluster` compiles the expressions of `policy`. Then they mean there what they mean to the operator.
///
/// # Errors
/// The first expression that it does not compile.
pub(super) fn compile_on(policy: &Policy, cluster: &Capabilities) -> Result<(), Inexpressible> {
    let dialect = dialect(cluster.known_minor());
    let refused = policy.expressions().find_map(|expression| Some((expression, expression.compiled(dialect).err()?)));
    refused.map_or(Ok(()), |(expression, error)| {
        let (source, version) = (expression.source().trim(), &cluster.version);
        Err(Inexpressible::new(format!("this server ({version}) does not compile its expression `{source}`: {error}")))
    })
}

/// The field in which one mutation notes its result for later mutations.
pub(super) const NOTES: &str = "deletionGracePeriodSeconds";

/// Defines `expression`, about the object in the variable `root`, as a variable and returns the reference to it.
///
/// Expressions on the server can see hidden fields. Expressions that might read them get a copy of the object without
/// them.
///
/// # Errors
/// If the expression cannot be rewritten for the copy.
pub(super) fn define(expression: &VersionedExpression, stem: &str, root: &str, variables: &mut Variables) -> Cel {
    let places = expression.places_of_object();
    let is_hidden_seen = places.iter().any(sees_hidden);
    if !is_hidden_seen && root == OBJECT {
        return Ok(variables.define(stem, expression.source()));
    }
    for (is_needed, name) in [(is_hidden_seen, "variables"), (root != OBJECT, root)] {
        if is_needed && expression.source().contains(name) {
            return Err(Inexpressible::new(format!(
                "its expression `{}` may see fields that are not for expressions, or judges updates, and has a name `{name}`; \
                 call it otherwise",
                expression.source().trim()
            )));
        }
    }
    let seen = if is_hidden_seen { seen_in(root, variables) } else { root.to_owned() };
    let mut source = String::new();
    let mut end = 0;
    for place in &places {
        source.push_str(&expression.source()[end..place.at]);
        source.push_str(&seen);
        end = place.at + OBJECT.len();
    }
    source.push_str(&expression.source()[end..]);
    Ok(variables.define(stem, &source))
}

/// The object in the variable `root` without hidden fields.
fn seen_in(root: &str, variables: &mut Variables) -> String {
    variables.define("seen", &seen(root))
}

/// The condition that `object` and `old`, the object before an update, are equal in the part at `path`, as expressions
/// see it.
pub(super) fn is_unchanged(path: &[String], old: &str, variables: &mut Variables) -> String {
    let is_hidden = sees_hidden(&Place { at: 0, fields: path.to_vec() });
    let [before, after] = [old, OBJECT].map(|root| {
        let root = if is_hidden { seen_in(root, variables) } else { root.to_owned() };
        path.iter().fold(root, |of, step| optional(&of, step))
    });
    format!("{after} == {before}")
}

/// Whether an expression that reads `place` could see a hidden field.
fn sees_hidden(place: &Place) -> bool {
    let fields: Vec<&str> = place.fields.iter().map(String::as_str).collect();
    match fields[..] {
        [] | ["status", ..] | ["metadata"] => true,
        ["metadata", field, ..] => field == "name" || OF_THE_SERVER.contains(&field),
        _ => false,
    }
}

/// Whether `expression` could see [`NOTES`].
pub(super) fn sees_notes(expression: &VersionedExpression) -> bool {
    expression.places_of_object().iter().any(|place| {
        let fields: Vec<&str> = place.fields.iter().map(String::as_str).collect();
        matches!(fields[..], [] | ["metadata"] | ["metadata", NOTES, ..])
    })
}

/// Whether one of `variables` is the copy without hidden fields. The copy needs functions that servers have from 1.33.
pub(super) fn is_seen(variables: &Variables) -> bool {
    variables.iter().any(|(_, expression)| [OBJECT, OLD].iter().any(|root| expression == seen(root)))
}

/// The object in the variable `root` as in [`Workload::seen_by_expressions`](crate::workload::Workload::seen_by_expressions). (API servers of
/// 1.36 show only in custom resources that a template has no creation time.)
fn seen(root: &str) -> String {
    let hidden = super::cel::list(OF_THE_SERVER);
    format!(
        "dyn({root}.transformMap(k, v, k != \"status\", k == \"metadata\" ? \
         dyn(v.transformMap(l, w, !(l in {hidden}) && !(l == \"name\" && \"generateName\" in v), w)) : v))"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Kind, Workload};
    use admission_cel::{Budget, Dialect, Gives, Variables as Seen};
    use serde_json::{Value, json};

    fn compile(source: &str) -> VersionedExpression {
        VersionedExpression::compile(source, Gives::Bool).unwrap()
    }

    #[test]
    fn what_sees_nothing_hidden_is_left_as_it_is() {
        for source in [
            "object.spec.replicas > 1 // status",
            "has(object.metadata.labels)",
            "object.data.status == \"metadata.name\"",
        ] {
            let mut variables = Variables::default();
            define(&compile(source), "c", "object", &mut variables).unwrap();
            assert_eq!(variables.iter().collect::<Vec<_>>(), [("c", source)]);
        }
    }

    #[test]
    fn what_could_see_something_hidden_looks_at_a_copy_without_it() {
        for (source, expected) in [
            ("object.metadata.name == 'object'", "variables.seen.metadata.name == 'object'"),
            ("has(object.status)||object.a", "has(variables.seen.status)||variables.seen.a"),
            (
                "[1].exists(object, object == 1) && size(object) > 0",
                "[1].exists(object, object == 1) && size(variables.seen) > 0",
            ),
        ] {
            let mut variables = Variables::default();
            assert_eq!(define(&compile(source), "c", "object", &mut variables).unwrap(), "variables.c");
            assert_eq!(variables.iter().last(), Some(("c", expected)));
        }
        for (source, root) in [
            ("object.a.exists(variables, variables == object)", "object"),
            ("object.a.exists(oldObject, oldObject == object.b)", OLD),
        ] {
            assert!(define(&compile(source), "c", root, &mut Variables::default()).is_err(), "{source}");
        }
    }

    #[test]
    fn the_copy_is_what_expressions_see_elsewhere() {
        let source = format!("{} == object.expected", seen("object"));
        let kind = Kind::find("apps", "deployments").unwrap();
        for metadata in [
            json!({"name": "a", "uid": "u", "labels": {"name": "x"}, "managedFields": [1], "creationTimestamp": null}),
            json!({"name": "a", "generateName": "a-", "resourceVersion": "1", "generation": 1, "selfLink": ""}),
            json!({}),
        ] {
            let body = json!({"metadata": metadata, "spec": {"status": 1}, "status": {"a": 1}});
            let seen = Workload::new(kind, body.clone()).seen_by_expressions().clone();
            let mut with = body;
            with["expected"] = Value::Null;
            let mut expected = seen;
            expected["expected"] = Value::Null;
            // The copy also has this field, so the comparison excludes it.
            let source = source
                .replace("object.expected", "dyn(object.other)")
                .replace("k != \"status\"", "k != \"status\" && k != \"other\"");
            with["other"] = expected;
            let expression = compile(&source);
            let variables = Seen { object: &with, namespace: None, template: None };
            assert!(
                expression.on(Dialect::NEWEST).test(&variables, &mut Budget::match_conditions()).unwrap(),
                "{source}"
            );
        }
    }

    #[test]
    fn what_a_server_does_not_compile_is_not_said_to_it() {
        let policy = |expression: &str| {
            let spec = json!({
                "template": { "containers": [{ "name": "a", "image": "a:1" }] },
                "validations": [{ "expression": expression, "message": "no" }],
            });
            let object = json!({ "metadata": { "name": "a" }, "spec": spec });
            Policy::parse(&object, &crate::policy::Site::new("scpol-system", [], [])).unwrap()
        };
        for (expression, first) in [
            ("'%e'.format([2.5]) != ''", 30),
            ("isIP(object.metadata.name)", 31),
            ("object.metadata.labels.all(k, v, k != v)", 33),
            ("[3, 1].sort()[0] == 1", 35),
            ("object.metadata.`a-b` == 1", 37),
        ] {
            for minor in 30..40 {
                let is_compiled = compile_on(&policy(expression), &Capabilities::of(minor, &[])).is_ok();
                assert_eq!(is_compiled, minor >= first, "{expression} on 1.{minor}");
            }
            assert!(compile_on(&policy(expression), &Capabilities::default()).is_ok());
        }
    }

    #[test]
    fn notes_are_seen_by_what_looks_at_all_of_the_metadata() {
        for (source, expected) in [
            ("object.metadata.labels == {}", false),
            ("object.metadata.deletionGracePeriodSeconds == 1", true),
            ("object.metadata == {}", true),
            ("object == {}", true),
        ] {
            assert_eq!(sees_notes(&compile(source)), expected, "{source}");
        }
    }
}
