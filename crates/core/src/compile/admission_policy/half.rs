//! Which of two contents a workload gets while a rollout goes in steps: [`crate::policy::extent`] in another language.

use super::cel::{all, any, list, not, quoted, requirements};
use super::environment::Environment;
use crate::policy::Policy;
use crate::policy::extent::{ALPHABET, BASE, Extent, FACTOR, LONGEST, MODULUS, SPREAD, TEMPLATE_HASH};

/// The labels of the workload, of an update those of the new object.
const LABELS: &str = "object.metadata.?labels.orValue({})";

/// The condition that the workload has the content of `policy`; none if the policy is no half.
pub(super) fn condition(policy: &Policy, environment: &mut dyn Environment) -> Option<String> {
    let half = policy.half()?;
    let is_in = is_in(&half.extent, environment);
    Some(if half.is_latest { is_in } else { not(&is_in) })
}

/// The condition that the workload is in `extent`.
fn is_in(extent: &Extent, environment: &mut dyn Environment) -> String {
    let mut ways = Vec::new();
    if !extent.namespaces.is_empty() {
        ways.push(format!("request.namespace in {}", list(extent.namespaces.iter().map(String::as_str))));
    }
    ways.extend(extent.selectors.iter().map(|selector| {
        let labels = environment.define("labels", LABELS);
        all(&requirements(&labels, &selector.match_labels, &selector.match_expressions))
    }));
    match extent.percent {
        ..=0 => {}
        percent @ 1..100 => ways.push(format!("{} < {percent}", environment.define("bucket", &bucket()))),
        100.. => ways.push("true".to_owned()),
    }
    any(&ways)
}

/// The bucket of the workload. Servers of 1.30 and later compile it.
fn bucket() -> String {
    let places = (1..=LONGEST).map(|place| place.to_string()).collect::<Vec<_>>().join(",");
    let value = format!("({}.indexOf(k.substring(i - 1, i)) + 1)", quoted(ALPHABET));
    let values = format!("i <= size(k)).map(i, ({BASE} + i * i * i * {FACTOR} % {MODULUS} / {SPREAD}) * {value})");
    let key = format!("request.namespace + \"/\" + {}", owner());
    format!("[{key}].map(k, [{places}].filter(i, {values}.sum() % {MODULUS} * 100 / {MODULUS})[0]")
}

/// The name of the owner: see [`crate::policy::extent::bucket`].
fn owner() -> String {
    let hash = format!("object.metadata.?labels[?{}].orValue(\"\")", quoted(TEMPLATE_HASH));
    let deployment =
        format!("[\"-\" + {hash}].map(e, size(e) > 1 && n.endsWith(e) ? n.substring(0, size(n) - size(e)) : n)[0]");
    let owners = format!(
        "object.metadata.?ownerReferences.orValue([]).filter(o, o.?controller.orValue(false)).map(o, \
         o.?name.orValue(\"\")).map(n, {deployment})"
    );
    let generated = "object.metadata.?generateName.orValue(\"\")";
    let own = format!("{generated} != \"\" ? {generated} : object.metadata.?name.orValue(\"\")");
    format!("({owners} + [{own}])[0]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::admission_policy::environment::AtHand;
    use crate::policy::extent;
    use crate::workload::{Kind, Workload};
    use admission_cel::{Budget, Dialect, Expression, Gives, Variables as Given};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn in_cel(source: &str, workload: &Workload) -> bool {
        let namespace = quoted(workload.namespace());
        let source = source.replace("request.namespace", &namespace);
        let expression = Expression::compile(&source, Gives::Bool, Dialect::NEWEST)
            .unwrap_or_else(|error| panic!("{error}: {source}"));
        let given = Given { object: &workload.body, namespace: None, template: None };
        expression.test(&given, &mut Budget::match_conditions()).unwrap_or_else(|error| panic!("{error}: {source}"))
    }

    fn assert_same(workload: &Workload) {
        let bucket = extent::bucket(workload);
        assert!(in_cel(&format!("{} == {bucket}", super::bucket()), workload), "{bucket}: {}", workload.body);
    }

    fn pod(metadata: &Value) -> Workload {
        Workload::new(Kind::find("", "pods").unwrap(), json!({ "metadata": metadata }))
    }

    #[test]
    fn every_server_that_has_admission_policies_compiles_the_bucket() {
        for minor in [30, 31, 34, 35, 37] {
            let dialect = crate::policy::dialect(Some(minor));
            let source = format!("{} < 30", bucket()).replace("request.namespace", "\"shop\"");
            Expression::compile(&source, Gives::Bool, dialect).unwrap_or_else(|error| panic!("1.{minor}: {error}"));
        }
    }

    #[test]
    fn the_longest_name_has_a_bucket_within_the_budget_of_the_server() {
        let owner = json!([{ "kind": "ReplicaSet", "name": "9".repeat(253), "controller": true }]);
        let longest = pod(&json!({ "namespace": "z".repeat(63), "name": "n", "ownerReferences": owner }));
        assert_same(&longest);
    }

    #[test]
    fn labels_select_the_same_in_cel() {
        let selector = |selector: Value| serde_json::from_value(selector).unwrap();
        let extent = |selectors: Vec<Value>| Extent {
            selectors: selectors.into_iter().map(selector).collect(),
            ..Extent::of_namespaces(["whole".to_owned()])
        };
        for labels in
            [json!(null), json!({}), json!({ "track": "canary" }), json!({ "track": "stable", "tier": "web" })]
        {
            for namespace in ["shop", "whole"] {
                let workload = pod(&json!({ "namespace": namespace, "name": "web", "labels": labels }));
                let mut workload = workload;
                if labels.is_null() {
                    workload.body["metadata"].as_object_mut().unwrap().remove("labels");
                }
                for extent in [
                    extent(vec![]),
                    extent(vec![json!({ "matchLabels": { "track": "canary" } })]),
                    extent(vec![
                        json!({ "matchExpressions": [{ "key": "track", "operator": "NotIn", "values": ["canary"] }] }),
                        json!({ "matchExpressions": [{ "key": "tier", "operator": "Exists" }] }),
                    ]),
                    extent(vec![json!({ "matchExpressions": [{ "key": "a\"b", "operator": "DoesNotExist" }] })]),
                    Extent { percent: 100, ..Extent::default() },
                    Extent { percent: 50, ..extent(vec![json!({ "matchLabels": { "tier": "web" } })]) },
                ] {
                    let expected = extent.has(&workload);
                    assert_eq!(
                        in_cel(&is_in(&extent, &mut AtHand), &workload),
                        expected,
                        "{extent:?} {}",
                        workload.body
                    );
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn the_bucket_is_the_same_in_cel(
            namespace in "[a-z0-9-]{1,20}",
            name in "[a-z0-9.-]{0,40}|[A-Zé_/ ]{1,5}",
            generated in prop::option::of("[a-z0-9-]{0,20}"),
            owner in prop::option::of(("[a-z0-9-]{0,30}", prop::bool::ANY)),
            hash in prop::option::of("[a-z0-9]{0,6}"),
            is_hashed in prop::bool::ANY,
        ) {
            let mut metadata = json!({ "namespace": namespace });
            if !name.is_empty() { metadata["name"] = json!(name); }
            if let Some(generated) = generated { metadata["generateName"] = json!(generated); }
            if let Some(hash) = &hash { metadata["labels"] = json!({ TEMPLATE_HASH: hash }); }
            if let Some((owner, is_controller)) = owner {
                let end = hash.as_deref().filter(|_| is_hashed).map(|hash| format!("-{hash}")).unwrap_or_default();
                let mut reference = json!({ "kind": "ReplicaSet", "name": format!("{owner}{end}") });
                if is_controller { reference["controller"] = json!(true); }
                metadata["ownerReferences"] = json!([{ "kind": "Other", "name": "x", "controller": false }, reference]);
            }
            assert_same(&pod(&metadata));
        }
    }
}
