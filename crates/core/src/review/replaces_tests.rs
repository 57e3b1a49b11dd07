//! Tests of `spec.replaces`, on both engines as in [`super::update_tests`]: policy `p1` replaces `p0`.

use super::update_tests::{CONTAINERS, answered, created, deployment, told, with};
use proptest::prelude::*;
use serde_json::{Value, json};

fn old(image: &str, failure_policy: &str) -> Value {
    json!({ "template": { "containers": [{ "name": "envoy", "image": image }] }, "failurePolicy": failure_policy })
}

fn new(container: &str) -> Value {
    json!({ "template": { "containers": [{ "name": container, "image": "new:2" }] }, "replaces": ["p0"] })
}

/// `spec` with another value of a field.
fn and(spec: &Value, field: &str, value: Value) -> Value {
    with(&json!({ "spec": spec }), &format!("/spec/{field}"), value)["spec"].clone()
}

/// A policy of the same names that wins.
fn rival() -> Value {
    json!({ "template": { "containers": [{ "name": "envoy", "image": "rival:3" }] }, "priority": 5 })
}

#[test]
fn the_old_policy_is_left_out_where_the_new_one_matches_and_fits_and_fail_holds() {
    let never = json!({ "matchLabels": { "app": "other" } });
    let sidecars = |specs: &[Value], posted: &Value| {
        let answered = answered(specs, &Value::Null, posted);
        let found = told(&answered.effect.stored).replace(" marked", "");
        (if answered.effect.refused { "refused".to_owned() } else { found }, answered.told.join(", "))
    };
    let bare = deployment();
    for (what, specs, expected, report) in [
        (
            "both match",
            vec![old("old:1", "Fail"), new("envoy")],
            "app:1 new:2",
            "p0 skipped SCP0066, p1 injected SCP0002",
        ),
        (
            "the new one does not match",
            vec![old("old:1", "Fail"), and(&new("envoy"), "labelSelector", never.clone())],
            "app:1 old:1",
            "p1 skipped SCP0111, p0 injected SCP0002",
        ),
        (
            "the new one does not fit",
            vec![old("old:1", "Fail"), new("app")],
            "app:1 old:1",
            "p1 failed SCP0200, p0 injected SCP0002",
        ),
        (
            "the new one does not fit and refuses, and has the old one in its place",
            vec![old("old:1", "Ignore"), and(&new("app"), "failurePolicy", json!("Fail"))],
            "app:1 old:1",
            "p1 failed SCP0200, p0 injected SCP0002",
        ),
        (
            "neither fits, and the new one refuses",
            vec![
                and(&old("old:1", "Ignore"), "template", new("app")["template"].clone()),
                and(&new("app"), "failurePolicy", json!("Fail")),
            ],
            "refused",
            "",
        ),
        (
            "a third one keeps the new one out",
            vec![old("old:1", "Ignore"), new("envoy"), rival()],
            "app:1 rival:3",
            "p0 skipped SCP0066, p1 failed SCP0054, p2 injected SCP0002",
        ),
        (
            "a third one keeps the new one out of what refuses",
            vec![old("old:1", "Fail"), new("envoy"), rival()],
            "refused",
            "",
        ),
        (
            "two replace it, of which one fits",
            vec![old("old:1", "Fail"), new("app"), and(&new("envoy"), "replaces", json!(["p0", "p9"]))],
            "app:1 new:2",
            "p0 skipped SCP0066, p1 failed SCP0200, p2 injected SCP0002",
        ),
        (
            "a chain",
            vec![old("old:1", "Fail"), new("envoy"), and(&rival(), "replaces", json!(["p1"]))],
            "app:1 rival:3",
            "p0 skipped SCP0066, p1 skipped SCP0066, p2 injected SCP0002",
        ),
    ] {
        let (found, told) = sidecars(&specs, &bare);
        assert_eq!(found, expected, "{what}: {told}");
        if !report.is_empty() {
            let sorted = |report: &str| {
                let mut lines: Vec<String> = report.split(", ").map(str::to_owned).collect();
                lines.sort();
                lines
            };
            assert_eq!(sorted(&told), sorted(report), "{what}");
        }
    }
    // Whoever forges all of the new one where it does not match does not get past the old one.
    let narrow = [old("old:1", "Fail"), and(&new("second"), "labelSelector", never)];
    let nobody = and(&old("old:1", "Ignore"), "labelSelector", json!({ "matchLabels": { "app": "other" } }));
    let forged = created(&[nobody, and(&new("second"), "replaces", json!([]))], &bare);
    assert_eq!(sidecars(&narrow, &forged).0, "app:1 new:2 old:1");
}

#[test]
fn an_update_that_takes_the_old_sidecar_brings_the_new_one() {
    let (before, both) = ([old("old:1", "Fail")], [old("old:1", "Fail"), new("envoy")]);
    let (bare, stored) = (deployment(), created(&before, &deployment()));
    let emptied = with(&stored, CONTAINERS, json!([{ "name": "app", "image": "app:1" }]));
    let quiet = and(&new("envoy"), "targets", json!([{ "group": "apps", "resource": "deployments" }]));
    for (what, specs, new, expected) in [
        ("all of it goes", both.to_vec(), &bare, "app:1 new:2"),
        ("something else changes", both.to_vec(), &with(&stored, "/spec/replicas", json!(3)), "app:1 old:1 marked"),
        ("its marker stays", both.to_vec(), &emptied, "app:1 old:1 marked"),
        ("the new one does not act on updates", vec![both[0].clone(), quiet], &bare, "app:1 old:1 marked"),
        ("the new one does not fit", vec![both[0].clone(), self::new("app")], &bare, "app:1 old:1 marked"),
    ] {
        let answered = answered(&specs, &stored, new);
        assert_eq!(told(&answered.effect.stored), expected, "{what}: {}", answered.message);
        assert!(!answered.effect.refused, "{what}: {}", answered.message);
    }
    // The other way round, nothing is lost: it comes with the marker of the old one.
    let renewed = created(&both, &bare);
    let back = answered(&both, &renewed, &stored);
    assert_eq!((back.effect.refused, back.effect.stored), (false, stored));
}

prop_compose! {
    /// The policy with that number, which replaces some of those before it.
    fn policy(number: usize)(
        container in prop::sample::select(vec!["envoy", "envoy", "second", "app"]), image in 1..3_i32, env in any::<bool>(), fails in any::<bool>(),
        acts in any::<bool>(), replaced in prop::collection::vec(any::<bool>(), number), priority in 0..2_i32,
        condition in prop::sample::select(vec!["", "", "object.spec.replicas == 1", "object.spec.nowhere == 1"]),
    ) -> Value {
        let mut spec = json!({
            "template": { "containers": [{ "name": container, "image": format!("{container}:{image}") }] },
            "failurePolicy": if fails { "Fail" } else { "Ignore" }, "priority": priority,
            "replaces": (0..number).filter(|at| replaced[*at]).map(|at| format!("p{at}")).collect::<Vec<_>>(),
        });
        if env {
            spec["template"]["env"] = json!([{ "name": "A", "value": image.to_string() }]);
        }
        if !acts {
            spec["targets"] = json!([{ "group": "apps", "resource": "deployments" }]);
        }
        if !condition.is_empty() {
            spec["matchConditions"] = json!([{ "name": "c", "expression": condition }]);
        }
        spec
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    /// Both engines decide alike.
    #[test]
    fn whoever_replaces_whom_both_engines_do_the_same(specs in (policy(0), policy(1), policy(2)), replicas in 1..3_i32) {
        let specs = [specs.0, specs.1, specs.2];
        let posted = with(&deployment(), "/spec/replicas", json!(replicas));
        let before = answered(&specs[..1], &Value::Null, &posted);
        let after = answered(&specs, &Value::Null, &posted);
        for stored in [before, after].into_iter().filter(|answered| !answered.effect.refused) {
            answered(&specs, &stored.effect.stored, &posted);
        }
    }
}
