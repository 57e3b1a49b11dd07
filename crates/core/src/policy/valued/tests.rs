use super::*;
use crate::decision::{Decision, Outcome};
use crate::inject;
use crate::review::{Call, Caller, Review};
use crate::workload::Kind;
use serde_json::json;

fn policy(more: &Value) -> Arc<Policy> {
    let mut spec = json!({
        "targets": [{"group": "apps", "resource": "deployments"}, {"group": "", "resource": "pods"}],
        "template": {
            "containers": [
                {
                    "name": "envoy", "image": "envoy:1", "args": ["--level=$(scpol.level)", "--id=$$(scpol.x)"],
                    "env": [{"name": "SERVICE", "value": "none"}, {"name": "CONCURRENCY", "value": "2"}],
                    "resources": {"limits": {"memory": "128Mi"}, "requests": {"memory": "96Mi"}},
                },
                {"name": "debug", "image": "debug:1"},
            ],
        },
        "parameters": [
            {"name": "memory", "type": "Quantity", "paths": ["containers[envoy].resources.limits.memory"], "annotation": "proxy.example.com/memory",
             "minimum": "64Mi", "maximum": "1Gi", "fromNamespace": true},
            {"name": "level", "enum": ["debug", "info"], "expression": "'info'"},
            {"name": "service", "paths": ["containers[envoy].env[SERVICE].value"], "annotation": "",
             "expression": "object.metadata.?labels[?'app'].orValue('unknown')"},
            {"name": "concurrency", "type": "Integer", "paths": ["containers[envoy].env[CONCURRENCY].value"], "minimum": 1, "maximum": 8},
            {"name": "debug", "type": "Boolean", "paths": ["containers[debug]"], "expression": "'false'"},
            {"name": "cpu", "type": "Quantity", "annotation": "", "paths": ["containers[envoy].resources.requests.cpu"],
             "expression": "template.spec.containers.map(c, quantity(c.?resources.?requests[?'cpu'].orValue('0'))).sum()", "maximum": "2"},
        ],
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let object = json!({"metadata": {"name": "mesh"}, "spec": spec});
    Arc::new(Policy::parse(&object, &site()).unwrap())
}

fn site() -> Site {
    Site::new("scpol-system", [], [])
}

fn deployment(annotations: &Value, labels: &Value) -> Workload {
    let template = json!({
        "metadata": {"annotations": annotations},
        "spec": {"containers": [
            {"name": "app", "image": "app", "resources": {"requests": {"cpu": "250m"}}},
            {"name": "other", "image": "app", "resources": {"requests": {"cpu": "1"}}},
        ]},
    });
    let body =
        json!({"metadata": {"name": "web", "namespace": "shop", "labels": labels}, "spec": {"template": template}});
    Workload::new(Kind::find("apps", "deployments").unwrap(), body)
        .within(Some(Arc::new(json!({"metadata": {"name": "shop"}}))))
}

fn decided(policy: &Arc<Policy>, workload: &Workload) -> Decision {
    Decision::of(&Policies::new([policy.clone()]), workload, &site())
}

fn injected(policy: &Arc<Policy>, workload: &Workload) -> Workload {
    let mut decision = decided(policy, workload);
    let patch = decision.plan(workload);
    assert_eq!(decision.inject.len(), 1, "{:?}", decision.rest.iter().map(|left| &left.reason).collect::<Vec<_>>());
    workload.with_body(workload.patched(&patch))
}

fn refused(policy: &Arc<Policy>, workload: &Workload) -> (Outcome, Code, String) {
    let mut decision = decided(policy, workload);
    let patch = decision.plan(workload);
    assert!(patch.is_empty());
    let left = &decision.rest[0];
    (left.outcome, left.reason.code, left.reason.detail.clone())
}

/// The container `envoy`, and the values in the marker.
fn of_envoy(workload: &Workload) -> (Value, Vec<String>) {
    let containers = workload.pod().unwrap()["spec"]["containers"].as_array().unwrap();
    let envoy = containers.iter().find(|container| container["name"] == "envoy").cloned().unwrap_or_default();
    (envoy, marker::read(workload, "mesh").map(|marker| marker.values).unwrap_or_default())
}

#[test]
fn the_nearest_source_gives_the_value_and_the_marker_records_it() {
    let policy = policy(&json!({}));
    let plain = injected(&policy, &deployment(&json!({}), &json!({})));
    let (envoy, values) = of_envoy(&plain);
    assert_eq!(envoy["args"], json!(["--level=info", "--id=$$(scpol.x)"]));
    assert_eq!(envoy["env"], json!([{"name": "SERVICE", "value": "unknown"}, {"name": "CONCURRENCY", "value": "2"}]));
    assert_eq!(
        envoy["resources"],
        json!({"limits": {"memory": "128Mi"}, "requests": {"memory": "96Mi", "cpu": "1250m"}})
    );
    assert_eq!(values, ["level=info", "service=unknown", "debug=false", "cpu=1250m"]);
    assert_eq!(plain.pod().unwrap()["spec"]["containers"].as_array().unwrap().len(), 3, "without `debug`");
    let key = "proxy.example.com/memory";
    for (of_pod, of_workload, of_namespace, expected) in [
        (Some("256Mi"), Some("512Mi"), Some(("annotations", "1Gi")), "256Mi"),
        (None, Some("512Mi"), Some(("annotations", "1Gi")), "512Mi"),
        (None, None, Some(("annotations", "1Gi")), "1Gi"),
        (None, None, Some(("labels", "97Mi")), "97Mi"),
        (None, None, None, "128Mi"),
    ] {
        let mut workload = deployment(&json!({}), &json!({"app": "cart"}));
        if let Some(value) = of_pod {
            workload.body["spec"]["template"]["metadata"]["annotations"][key] = json!(value);
        }
        if let Some(value) = of_workload {
            workload.body["metadata"]["annotations"] = json!({key: value});
        }
        if let Some((map, value)) = of_namespace {
            workload.namespace_object = Some(Arc::new(json!({"metadata": {"name": "shop", map: {key: value}}})));
        }
        let (envoy, _) = of_envoy(&injected(&policy, &workload));
        assert_eq!(envoy["resources"]["limits"]["memory"], expected);
        assert_eq!(envoy["env"][0]["value"], "cart");
    }
}

#[test]
fn a_wrong_value_is_a_failure_that_names_source_value_and_bound() {
    for (failure_policy, outcome) in [("Ignore", Outcome::Failed), ("Fail", Outcome::Rejected)] {
        let policy = policy(&json!({"failurePolicy": failure_policy}));
        for (key, value, parts) in [
            ("proxy.example.com/memory", "2Gi", ["`2Gi`", "64Mi", "1Gi"]),
            ("proxy.example.com/memory", "12 MB", ["`12 MB`", "quantity", "proxy.example.com/memory"]),
            ("proxy.example.com/memory", "", ["empty", "quantity", "memory"]),
            ("mesh.scpol.dev/level", "trace", ["not shown", "`debug`", "`info`"]),
            ("mesh.scpol.dev/debug", "yes", ["`yes`", "true", "false"]),
            ("mesh.scpol.dev/level", &"x".repeat(2000), ["mesh.scpol.dev/level", "1024 bytes", "2000"]),
        ] {
            let (found, code, detail) = refused(&policy, &deployment(&json!({key: value}), &json!({})));
            assert_eq!((found, code), (outcome, Code::ParameterRefused), "{detail}");
            assert!(parts.iter().all(|part| detail.contains(part)) && detail.len() < 600, "{detail}");
        }
        // A value that is in bounds by itself, and makes the template invalid.
        let (_, code, detail) = refused(&policy, &deployment(&json!({"proxy.example.com/memory": "64Mi"}), &json!({})));
        assert!(detail.contains("resources.requests.memory"), "{detail}");
        assert_eq!(code, Code::ParameterRefused, "{detail}");
    }
}

#[test]
fn resolving_twice_is_resolving_once_and_uninject_is_exact() {
    let policy = policy(&json!({"failurePolicy": "Fail"}));
    for annotations in [
        json!({}),
        json!({"proxy.example.com/memory": "1Gi", "mesh.scpol.dev/debug": "true", "mesh.scpol.dev/level": "debug"}),
    ] {
        let original = deployment(&annotations, &json!({"app": "cart"}));
        let once = injected(&policy, &original);
        let mut again = decided(&policy, &once);
        assert!(again.plan(&once).is_empty());
        assert_eq!(again.rest[0].reason.code, Code::AlreadyInjected);
        assert_eq!(inject::undo(&once, None).unwrap().body, original.body);
        assert!(policy.edits(&once).is_empty() && policy.outdated_values().is_none());
        // Its pods, which have the content of the template.
        let mut pod = once.made_pod().unwrap();
        pod.body["metadata"]["ownerReferences"] = json!([{"kind": "ReplicaSet", "controller": true}]);
        assert_eq!(decided(&policy, &pod).rest[0].reason.code, Code::AlreadyInjected);
    }
}

#[test]
fn a_stored_workload_keeps_its_values_and_is_outdated_by_value() {
    let policy = policy(&json!({}));
    let key = "proxy.example.com/memory";
    let mut stored = injected(&policy, &deployment(&json!({key: "256Mi"}), &json!({"app": "cart"})));
    stored.body["metadata"]["resourceVersion"] = json!("7");
    stored.body["spec"]["template"]["metadata"]["annotations"][key] = json!("512Mi");
    stored.body["metadata"]["labels"]["app"] = json!("basket");
    let valued = policy.valued_for(&stored, &Policies::new([policy.clone()]), &site());
    assert!(valued.is_injected(&stored));
    let outdated = valued.outdated_values().unwrap();
    assert!(
        outdated.contains("`memory` is `256Mi`, now `512Mi`") && outdated.contains("`service` has another value now"),
        "{outdated}"
    );
    assert!(policy.edits(&stored).is_empty());
    // A value that is wrong now leaves it as it is.
    stored.body["spec"]["template"]["metadata"]["annotations"][key] = json!("4Gi");
    assert_eq!(decided(&policy, &stored).rest[0].reason.code, Code::AlreadyInjected);
    // An edit by hand is one.
    let containers = stored.body["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap();
    containers.iter_mut().find(|it| it["name"] == "envoy").unwrap()["resources"]["limits"]["memory"] = json!("300Mi");
    assert_eq!(policy.edits(&stored).len(), 1);
}

#[test]
fn a_forged_value_is_worth_nothing() {
    let policy = policy(&json!({"failurePolicy": "Fail"}));
    let bare = deployment(&json!({}), &json!({"app": "cart"}));
    let honest = injected(&policy, &bare);
    for (name, value, is_true) in [
        ("memory", "2Gi", false),
        ("concurrency", "4", false),
        ("concurrency", "9", false),
        ("service", "bank", false),
        ("service", "cart", true),
        ("debug", "maybe", false),
        ("level", "trace", false),
    ] {
        let mut values = policy.as_written().recorded(&marker::read(&honest, "mesh").unwrap(), |_, _| true);
        let at = policy.as_written().parameters().position(|parameter| parameter.name == name).unwrap();
        values[at] = Some(value.to_owned());
        // What an honest injection with these values would give.
        let template = policy.as_written().with_values(&values).into_owned();
        let patch =
            inject::plan(&bare, &[&template], &[&template], crate::api::pod_security::Standard::NEWEST).unwrap();
        let mut forged = bare.with_body(bare.patched(&patch));
        let mut decision = decided(&policy, &forged);
        let code = decision.rest.first().map(|left| left.reason.code);
        let after = forged.with_body(forged.patched(&decision.plan(&forged)));
        // Other values than those of its sources are replaced, if all else is what the policy adds.
        assert_eq!(
            (code == Some(Code::AlreadyInjected), of_envoy(&after)),
            (is_true, of_envoy(&honest)),
            "{name}={value}: {code:?}"
        );
        // Beside an edit, nothing is replaced. A number within its bounds may be there, and amounts are not compared at all.
        let containers = forged.body["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap();
        containers.iter_mut().find(|it| it["name"] == "envoy").unwrap()["tty"] = json!(true);
        let code = decided(&policy, &forged).rest.first().map(|left| left.reason.code);
        let is_let_through = is_true || ["memory", "debug"].contains(&name) || value == "4";
        assert_eq!(code == Some(Code::AlreadyInjected), is_let_through, "{name}={value}: {code:?}");
    }
    // A marker without the content.
    let mut robbed = honest.clone();
    let containers = robbed.body["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap();
    containers.retain(|container| container["name"] != "envoy");
    robbed.body["spec"]["template"]["metadata"]["annotations"]["proxy.example.com/memory"] = json!("1Gi");
    let (envoy, values) = of_envoy(&injected(&policy, &robbed));
    assert_eq!(envoy["resources"]["limits"]["memory"], "1Gi");
    assert!(values.contains(&"memory=1Gi".to_owned()));
}

#[test]
fn an_update_keeps_the_values_of_the_creation_unless_the_annotation_changes() {
    let policy = policy(
        &json!({"failurePolicy": "Fail", "targets": [{"group": "apps", "resource": "deployments", "operations": ["CREATE", "UPDATE"]}]}),
    );
    let policies = Policies::new([policy.clone()]);
    let key = "proxy.example.com/memory";
    let mut old = injected(&policy, &deployment(&json!({key: "256Mi"}), &json!({"app": "cart"})));
    old.body["metadata"]["resourceVersion"] = json!("7");
    for (annotation, label, memory, service) in
        [("256Mi", "cart", "256Mi", "cart"), ("256Mi", "basket", "256Mi", "cart"), ("512Mi", "basket", "512Mi", "cart")]
    {
        // The update comes without the sidecar and without the marker, as from `kubectl replace`.
        let new = deployment(&json!({key: annotation}), &json!({"app": label}));
        let mut decision = Decision::of_update(&policies, [(&old).into(), (&new).into()], &site(), |_| true, |_| true);
        let patched = new.with_body(new.patched(&decision.plan(&new)));
        let (envoy, _) = of_envoy(&patched);
        assert_eq!(
            (&envoy["resources"]["limits"]["memory"], &envoy["env"][0]["value"]),
            (&json!(memory), &json!(service))
        );
        // The validating call.
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "operation": "UPDATE", "namespace": "shop", "name": "web", "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "resource": {"group": "apps", "version": "v1", "resource": "deployments"}, "object": patched.body, "oldObject": old.body}});
        let caller = Caller { call: Call::Validate, revision: None, policies: &policies, listed: None };
        let review = Review::parse(review.to_string().as_bytes()).unwrap();
        let answer = review.answer(&caller, &site(), Some(Arc::new(json!({"metadata": {"name": "shop"}}))));
        assert!(
            String::from_utf8_lossy(&answer.body).contains(r#""allowed":true"#),
            "{}",
            String::from_utf8_lossy(&answer.body)
        );
    }
}

#[test]
fn misspelt_annotations_are_told() {
    let policy = policy(&json!({}));
    for (key, expected) in [
        ("proxy.example.com/memory", None),
        ("proxy.example.com/memroy", Some("did you mean `proxy.example.com/memory`?")),
        ("proxy.example.com/port", None),
        ("mesh.scpol.dev/levle", Some("did you mean `mesh.scpol.dev/level`?")),
        (
            "mesh.scpol.dev/quite-another",
            Some(
                "its author sets `proxy.example.com/memory`, `mesh.scpol.dev/level`, `mesh.scpol.dev/concurrency`, `mesh.scpol.dev/debug`",
            ),
        ),
        ("memory", None),
    ] {
        let told = policy.misspelt(&deployment(&json!({key: "1"}), &json!({})));
        assert_eq!(told.is_empty(), expected.is_none(), "{told:?}");
        assert!(expected.is_none_or(|expected| told[0].contains(expected)), "{told:?}");
    }
}

/// The policy `mesh` with that template and these parameters, and a pod.
fn small(template: &Value, parameters: &Value, site: &Site) -> Arc<Policy> {
    let spec = json!({"targets": [{"group": "", "resource": "pods"}, {"group": "apps", "resource": "deployments"}], "failurePolicy": "Fail",
        "template": template, "parameters": parameters});
    Arc::new(Policy::parse(&json!({"metadata": {"name": "mesh"}, "spec": spec}), site).unwrap())
}

#[test]
fn a_mark_gets_what_another_place_has_if_nobody_gives_a_value() {
    let template = json!({"containers": [{"name": "envoy", "image": "envoy", "args": ["--port=$(scpol.port)"],
        "env": [{"name": "PORT", "value": "8080"}]}]});
    let parameters = json!([{"name": "port", "type": "Integer", "paths": ["containers[envoy].env[PORT].value"]}]);
    let policy = small(&template, &parameters, &site());
    for (annotations, port) in
        [(json!({}), "8080"), (json!({"mesh.scpol.dev/port": "9090"}), "9090"), (json!({}), "8080")]
    {
        let (envoy, _) = of_envoy(&injected(&policy, &deployment(&annotations, &json!({}))));
        assert_eq!((&envoy["args"][0], &envoy["env"][0]["value"]), (&json!(format!("--port={port}")), &json!(port)));
    }
}

#[test]
fn content_that_was_copied_gets_the_values_of_its_new_place() {
    let policy = policy(&json!({"failurePolicy": "Fail"}));
    let key = "mesh.scpol.dev/concurrency";
    let mut copy = injected(&policy, &deployment(&json!({key: "4"}), &json!({"app": "cart"})));
    copy.body["metadata"] = json!({"name": "web-2", "namespace": "shop", "labels": {"app": "basket"}});
    copy.body["spec"]["template"]["metadata"]["annotations"][key] = json!("8");
    let mut decision = decided(&policy, &copy);
    let renewed = copy.with_body(copy.patched(&decision.plan(&copy)));
    let (envoy, values) = of_envoy(&renewed);
    assert_eq!(envoy["env"], json!([{"name": "SERVICE", "value": "basket"}, {"name": "CONCURRENCY", "value": "8"}]));
    assert!(
        values.contains(&"concurrency=8".to_owned()) && values.contains(&"service=basket".to_owned()),
        "{values:?}"
    );
    // A value that is wrong now: refused, and not taken from the marker.
    copy.body["spec"]["template"]["metadata"]["annotations"][key] = json!("9");
    assert_eq!(refused(&policy, &copy).1, Code::ParameterRefused);
}

#[test]
fn the_job_of_a_cron_job_keeps_what_it_was_made_with() {
    let policy = policy(&json!({"failurePolicy": "Fail", "nativeSidecars": "Never", "jobs": "Inject",
        "targets": [{"group": "batch", "resource": "cronjobs"}, {"group": "batch", "resource": "jobs"}]}));
    let template = deployment(&json!({}), &json!({})).body["spec"]["template"].clone();
    let body = json!({"metadata": {"name": "web", "namespace": "shop", "labels": {"app": "cart"}}, "spec": {"jobTemplate": {"spec": {"template": template}}}});
    let namespace = Some(Arc::new(json!({"metadata": {"name": "shop"}})));
    let cron = Workload::new(Kind::find("batch", "cronjobs").unwrap(), body).within(namespace.clone());
    let cron = injected(&policy, &cron);
    let mut body = json!({"metadata": {"name": "web-1", "namespace": "shop", "ownerReferences": [{"kind": "CronJob", "controller": true}]}});
    body["spec"] = cron.body["spec"]["jobTemplate"]["spec"].clone();
    let job = Workload::new(Kind::find("batch", "jobs").unwrap(), body).within(namespace);
    let decision = decided(&policy, &job);
    assert_eq!(decision.rest[0].reason.code, Code::AlreadyInjected, "{:?}", decision.rest[0].reason);
}

#[test]
fn a_marker_gets_no_image_past_the_operator_and_no_mark_past_its_value() {
    let mut site = site();
    site.trust.images = vec!["good".to_owned()];
    let template =
        json!({"containers": [{"name": "envoy", "image": "good/envoy:1", "args": ["--level=$(scpol.level)"]}]});
    let parameters =
        json!([{"name": "image", "paths": ["containers[envoy].image"]}, {"name": "level", "enum": ["info"]}]);
    let policy = small(&template, &parameters, &site);
    for (values, is_there) in [
        (vec![Some("evil/x:1"), Some("info")], false),
        (vec![None, None], false),
        (vec![Some("good/other:1"), Some("info")], true),
    ] {
        let values: Values = values.into_iter().map(|value| value.map(str::to_owned)).collect();
        let bare = deployment(&json!({"mesh.scpol.dev/level": "info"}), &json!({}));
        let forged = policy.as_written().with_values(&values).into_owned();
        let patch = inject::plan(&bare, &[&forged], &[&forged], crate::api::pod_security::Standard::NEWEST).unwrap();
        let mut forged = bare.with_body(bare.patched(&patch));
        // Edited, so that it is nothing that the policy has added.
        forged.body["spec"]["template"]["spec"]["containers"][2]["stdin"] = json!(true);
        let decision = Decision::of(&Policies::new([policy.clone()]), &forged, &site);
        let code = decision.rest.first().map(|left| left.reason.code);
        assert_eq!(code == Some(Code::AlreadyInjected), is_there, "{values:?} {code:?}");
    }
    let refused = deployment(&json!({"mesh.scpol.dev/level": "info", "mesh.scpol.dev/image": "evil/x:1"}), &json!({}));
    let decision = Decision::of(&Policies::new([policy.clone()]), &refused, &site);
    assert_eq!(decision.rest[0].reason.code, Code::ParameterRefused);
}

#[test]
fn a_stored_value_that_is_the_same_or_is_refused_now_is_told_so() {
    let key = "proxy.example.com/memory";
    let stored = |policy: &Arc<Policy>, then: &str, now: &str| {
        let mut stored = injected(policy, &deployment(&json!({key: then}), &json!({})));
        stored.body["metadata"]["resourceVersion"] = json!("7");
        stored.body["spec"]["template"]["metadata"]["annotations"][key] = json!(now);
        policy.valued_for(&stored, &Policies::new([policy.clone()]), &site()).outdated_values()
    };
    let policy = policy(&json!({}));
    assert_eq!(stored(&policy, "1Gi", "1024Mi"), None);
    let told = stored(&policy, "1Gi", "2Gi").unwrap();
    assert!(told.contains("`memory` is `1Gi`, and now must be a quantity from `64Mi` to `1Gi`, is `2Gi`"), "{told}");
}

#[test]
fn a_create_is_no_stored_object_whatever_it_says_and_a_long_key_costs_nothing() {
    let policy = policy(&json!({"failurePolicy": "Fail"}));
    let policies = Policies::new([policy.clone()]);
    let mut forged = injected(&policy, &deployment(&json!({}), &json!({"app": "cart"})));
    let text = forged
        .body
        .to_string()
        .replace("service=cart", "service=bank")
        .replace(r#""value":"cart""#, r#""value":"bank""#);
    forged.body = serde_json::from_str(&text).unwrap();
    forged.body["metadata"]["resourceVersion"] = json!("1");
    let key = format!("mesh.scpol.dev/{}", "x".repeat(1_000_000));
    forged.body["metadata"]["annotations"] = json!({key: "1"});
    assert_eq!(policy.misspelt(&forged), Vec::<String>::new());
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "CREATE", "namespace": "shop", "name": "web", "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
        "resource": {"group": "apps", "version": "v1", "resource": "deployments"}, "object": forged.body}});
    let answer = |call| {
        let caller = Caller { call, revision: None, policies: &policies, listed: None };
        let review = Review::parse(review.to_string().as_bytes()).unwrap();
        let answer = review.answer(&caller, &site(), Some(Arc::new(json!({"metadata": {"name": "shop"}}))));
        String::from_utf8_lossy(&answer.body).into_owned()
    };
    let refused = answer(Call::Validate);
    assert!(refused.contains(r#""allowed":false"#), "{refused}");
    assert!(answer(Call::Mutate).contains(r#""patch""#), "the values of its own sources take their place");
}

#[test]
fn what_is_told_of_outdated_values_is_short_whatever_they_are() {
    let keys: Vec<String> = (0..8).map(|index| format!("a{index}")).collect();
    let parameters: Value = keys
        .iter()
        .map(|key| json!({"name": key, "paths": [format!("metadata.annotations[example.com/{key}]")]}))
        .collect();
    let template = json!({"containers": [{"name": "envoy", "image": "envoy"}]});
    let policy = small(&template, &parameters, &site());
    let odd = "\u{200b}".repeat(300);
    let annotations: Value =
        keys.iter().map(|key| (format!("mesh.scpol.dev/{key}"), json!(odd))).collect::<serde_json::Map<_, _>>().into();
    let mut stored = injected(&policy, &deployment(&annotations, &json!({})));
    stored.body["metadata"]["resourceVersion"] = json!("7");
    let of_pod = stored.body["spec"]["template"]["metadata"]["annotations"].as_object_mut().unwrap();
    for key in &keys {
        of_pod.insert(format!("mesh.scpol.dev/{key}"), json!("b".repeat(300)));
    }
    let told = policy.valued_for(&stored, &Policies::new([policy.clone()]), &site()).outdated_values().unwrap();
    assert!(
        told.ends_with(", …") && told.matches(", now ").count() == MOST_TOLD && told.len() < 3000,
        "{} {told}",
        told.len()
    );
}

#[test]
fn a_refused_value_of_a_private_parameter_is_not_shown() {
    let template = json!({"containers": [{"name": "envoy", "image": "envoy:1", "args": ["$(scpol.mark)"], "env": [
        {"name": "A", "value": "1"}], "ports": [{"name": "http", "containerPort": 1}]}]});
    let value = "containers[envoy].env[A].value";
    let port = "containers[envoy].ports[http].containerPort";
    for (parameter, text, wanted, secrets) in [
        (json!({"type": "Integer", "maximum": 8}), "4711", "a whole number of at most `8`", &["4711"][..]),
        (json!({"type": "Integer"}), "0x1267", "a whole number", &["1267", "4711"]),
        (
            json!({"type": "Integer", "paths": [port, value]}),
            "4711000",
            "a whole number from `1` to `65535`",
            &["4711"],
        ),
        (json!({"type": "Integer"}), "4711.0", "a whole number", &["4711"]),
        (
            json!({"pattern": "[0-9]*", "maxLength": 4}),
            "hunter2",
            "a text that matches `[0-9]*`, of at most 4 characters",
            &["hunter"],
        ),
        (json!({"maxLength": 4}), "hunter2", "a text of at most 4 characters", &["hunter"]),
        (json!({"enum": ["1", "hunters"], "paths": []}), "hunter2", "one of `1`, `hunters`", &["hunter2", "write"]),
        (json!({"paths": ["containers[envoy].image:tag", value]}), "hunter 2", "the tag of an image", &["hunter"]),
        (json!({}), "hunter\u{0}2", "a text without the character NUL", &["hunter"]),
        (json!({"type": "Boolean", "paths": []}), "Hunter", "`true` or `false`", &["Hunter"]),
    ] {
        let mut one = json!({"name": "mark", "paths": [value]});
        one.as_object_mut().unwrap().extend(parameter.as_object().unwrap().clone());
        let mut template = template.clone();
        if one["paths"] != json!([]) {
            template["containers"][0]["args"] = json!([]);
        }
        let policy = small(&template, &json!([one]), &site());
        let (_, code, told) = refused(&policy, &deployment(&json!({"mesh.scpol.dev/mark": text}), &json!({})));
        assert_eq!(code, Code::ParameterRefused, "{told}");
        assert!(told.contains("annotation `mesh.scpol.dev/mark` of the pod: must be "), "{told}");
        assert!(told.contains(wanted) && told.ends_with("; the value is not shown"), "{told}");
        assert!(!secrets.iter().any(|secret| told.contains(secret)), "{told}");
    }
}

#[test]
fn no_other_message_shows_a_private_value_either() {
    let one = |more: &Value| {
        let mut one = json!({"name": "port", "type": "Integer", "paths": ["containers[envoy].ports[a].containerPort",
            "containers[envoy].env[A].value"]});
        one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        one
    };
    let container = json!({"name": "envoy", "image": "envoy:1", "env": [{"name": "A", "value": "1"}], "ports": [
        {"name": "a", "containerPort": 1}, {"name": "b", "containerPort": 4711}]});
    // A fault of the template.
    let limited = json!({"name": "envoy", "image": "envoy:1", "env": [{"name": "A", "value": "1"}],
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}});
    let paths = json!({"paths": ["containers[envoy].resources.requests.cpu", "containers[envoy].env[A].value"]});
    let policy = small(&json!({"containers": [limited]}), &json!([one(&paths)]), &site());
    let told = refused(&policy, &deployment(&json!({"mesh.scpol.dev/port": "4711"}), &json!({}))).2;
    assert!(
        told.contains("resources.requests.cpu") && told.contains("parameter `port`") && !told.contains("4711"),
        "{told}"
    );
    // A conflict with the pod.
    let policy = small(&json!({"containers": [container]}), &json!([one(&json!({}))]), &site());
    let mut workload = deployment(&json!({"mesh.scpol.dev/port": "4712"}), &json!({}));
    let mut there = container.clone();
    there["ports"][0]["containerPort"] = json!(80);
    there["env"][0]["value"] = json!("4712");
    workload.body["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().push(there);
    let (_, code, told) = refused(&policy, &workload);
    assert_eq!(code, Code::NameConflict);
    assert!(told.contains("`ports`") && !told.contains("4712"), "{told}");
    // An expression.
    for (expression, shown) in [("duration(object.metadata.labels.app)", false), ("object.metadata.labels.none", true)]
    {
        let more = json!({"annotation": "", "expression": expression});
        let policy = small(&json!({"containers": [container]}), &json!([one(&more)]), &site());
        let told = refused(&policy, &deployment(&json!({}), &json!({"app": "hunter2"}))).2;
        assert!(told.contains("`expression`: failed") && !told.contains("hunter"), "{told}");
        assert_eq!(told.contains("not shown"), !shown, "{told}");
    }
}

#[test]
fn an_expression_sees_the_workload_without_the_sidecars_of_other_policies() {
    let of = |name: &str, parameters: &Value| {
        let container = json!({"name": name, "image": "a:1", "env": [{"name": "COUNT", "value": "0"}]});
        let spec = json!({"targets": [{"group": "apps", "resource": "deployments"}], "failurePolicy": "Fail",
            "template": {"containers": [container]}, "parameters": parameters});
        let object = json!({"metadata": {"name": name}, "spec": spec});
        Arc::new(Policy::parse(&object, &site()).unwrap())
    };
    let count = json!([{"name": "count", "annotation": "", "paths": ["containers[mesh].env[COUNT].value"],
        "expression": "string(template.spec.containers.size())"}]);
    let policies = Policies::new([of("mesh", &count), of("proxy", &json!([]))]);
    let new = deployment(&json!({}), &json!({}));
    let mut decision = Decision::of(&policies, &new, &site());
    let patch = decision.plan(&new);
    let whole = new.with_body(new.patched(&patch));
    assert_eq!(decision.inject.len(), 2, "{:?}", decision.rest);
    let mesh = policies.iter().find(|policy| policy.name == "mesh").unwrap();
    assert!(mesh.valued_for(&whole, &policies, &site()).is_injected(&whole));
    let alone = Policies::new([mesh.clone()]);
    assert!(!mesh.valued_for(&whole, &alone, &site()).is_injected(&whole), "without it, the count is another one");
}
