//! Expressions: compilation, and evaluation within a budget.

use admission_cel::{Budget, COST_PER_EXPRESSION, Dialect, Expression, Failure, Gives, Variables};
use serde_json::{Value, json};
use std::sync::LazyLock;

/// The objects for evaluations, with their namespaces.
static OBJECTS: LazyLock<[(Value, Option<Value>); 3]> = LazyLock::new(|| {
    let spec = json!({
        "text": "hello", "nothing": null, "yes": true, "one": 1, "half": 0.5, "large": u64::MAX, "numbers": [3, 1, 2],
        "mixed": [1, "a", null, [], {}], "labels": {"a": "b", "c.d/e": "f"}, "quantity": "1.5Gi", "time": "2020-02-02T02:02:02Z",
        "duration": "1h30m", "url": "https://user@example.com:80/a?b=c", "ip": "::ffff:1.2.3.4", "cidr": "10.0.0.0/8",
        "version": "1.2.3-rc.1+b", "unicode": "grüße 世界 \u{1f600}", "replicas": 3,
        "template": {"spec": {"containers": [{"name": "a", "image": "b:1", "ports": [{"containerPort": 80}]}, {"name": "c"}]}},
    });
    let object = json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "thing", "labels": {"app": "web"}}, "spec": spec});
    let namespace =
        json!({"metadata": {"name": "shop", "labels": {"team": "shop"}}, "spec": {"finalizers": ["kubernetes"]}});
    [(object, Some(namespace)), (Value::Null, None), (json!([1, {"a": []}]), Some(json!("x")))]
});

/// The budget of an evaluation if there are several.
const LITTLE: u64 = 10_000;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let forms = [
        (Gives::Bool, Dialect::NEWEST),
        (Gives::String, Dialect::NEWEST),
        (Gives::Value, Dialect::NEWEST),
        (Gives::Bool, Dialect::OLDEST),
    ];
    for (gives, dialect) in forms {
        match Expression::compile(source, gives, dialect) {
            Ok(expression) => {
                // More than the server's limit for one expression, so that our own limit applies.
                for ((object, namespace), units) in OBJECTS.iter().zip([2 * COST_PER_EXPRESSION, LITTLE, LITTLE]) {
                    let template = object.pointer("/spec/template");
                    let variables = Variables { object, namespace: namespace.as_ref(), template };
                    keeps_to_its_budget(&expression, gives, &variables, units);
                }
            }
            Err(error) => {
                let lines = source.matches('\n').count() + 1;
                let is_there = (1..=lines).contains(&error.line) && (1..=source.len() + 1).contains(&error.column);
                assert!(is_there && !error.message.is_empty(), "{error}");
            }
        }
    }
}

/// A smaller budget gives the same verdict, or an error about the cost.
fn keeps_to_its_budget(expression: &Expression, gives: Gives, variables: &Variables<'_>, units: u64) {
    let evaluate = |budget: &mut Budget| match gives {
        Gives::Bool => expression.test(variables, budget).map(|verdict| verdict.to_string()),
        Gives::String => expression.text(variables, budget),
        Gives::Value => expression.value(variables, budget),
    };
    let mut budget = Budget::new(units);
    let verdict = evaluate(&mut budget);
    let cost = units - budget.left();
    assert!(cost <= COST_PER_EXPRESSION);
    if verdict != Err(Failure::CostExceeded) && cost <= LITTLE {
        assert_eq!(evaluate(&mut Budget::new(cost)), verdict, "for what it costs");
    }
    for less in [0, 20] {
        let with_less = evaluate(&mut Budget::new(less.min(cost)));
        assert!(with_less == verdict || with_less == Err(Failure::CostExceeded), "{verdict:?}, then {with_less:?}");
    }
}
