use super::*;
use crate::naming::{PROBE, PROBE_REFUSE, PROBE_UNSEEN};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use json_patch::Patch;
use serde_json::json;

const REVISION: &str = "0123456789abcdef";

fn site() -> Site {
    Site::new("scpol-system", [], [])
}

/// Policies for pods, each with a name and additional fields of its spec.
fn policies(specs: &[(&str, Value)]) -> Policies {
    let policy = |(name, more): &(&str, Value)| {
        let mut spec = json!({
            "targets": [{ "group": "", "resource": "pods" }],
            "template": { "containers": [{ "name": name, "image": "envoy:1" }] },
        });
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        let object = json!({ "metadata": { "name": name }, "spec": spec });
        Arc::new(Policy::parse(&object, &site()).unwrap())
    };
    Policies::new(specs.iter().map(policy))
}

fn pod(metadata: &Value) -> Value {
    json!({ "metadata": metadata, "spec": { "containers": [{ "name": "app", "image": "app:1" }] } })
}

fn review(object: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u1", "operation": "CREATE", "namespace": "shop", "object": object, "oldObject": null,
            "resource": { "group": "", "version": "v1", "resource": "pods" },
        },
    })
}

fn asked(call: Call, review: &Value, policies: &Policies) -> (Value, Option<Decided>) {
    asked_by(call, Some(REVISION), review, policies)
}

fn asked_by(call: Call, revision: Option<&str>, review: &Value, policies: &Policies) -> (Value, Option<Decided>) {
    let review = Review::parse(review.to_string().as_bytes()).unwrap();
    let answer = review.answer(&Caller { call, revision, policies, listed: None }, &site(), None);
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    (body["response"].clone(), answer.decided)
}

#[test]
fn what_refuses_judges_by_the_policies_of_its_own_registration() {
    let policies = policies(&[("a", json!({ "failurePolicy": "Fail" })), ("b", json!({ "failurePolicy": "Fail" }))]);
    let pod = json!({ "metadata": { "name": "web" }, "spec": { "containers": [{ "name": "app", "image": "app:1" }] } });
    let refusal = |listed: Option<&[&str]>| {
        let listed: Option<BTreeSet<String>> = listed.map(|names| names.iter().map(ToString::to_string).collect());
        let review = Review::parse(review(&pod).to_string().as_bytes()).unwrap();
        let (call, revision, listed) = (Call::Validate, Some(REVISION), listed.as_ref());
        let answer = review.answer(&Caller { call, revision, policies: &policies, listed }, &site(), None);
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        body["response"]["status"]["message"].as_str().unwrap_or_default().to_owned()
    };
    assert!(refusal(None).contains("SidecarPolicy `a`"), "{}", refusal(None));
    assert!(refusal(Some(&["b"])).contains("SidecarPolicy `b`"), "{}", refusal(Some(&["b"])));
    assert_eq!(refusal(Some(&[])), "");
}

/// The object of `review` after the patch of `response`.
fn patched(review: &Value, response: &Value) -> Value {
    let patch = STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
    let patch: Patch = serde_json::from_slice(&patch).unwrap();
    let mut object = review["request"]["object"].clone();
    json_patch::patch(&mut object, &patch).unwrap();
    object
}

fn told(decided: Option<Decided>) -> Vec<String> {
    let decided = decided.unwrap();
    let line = |told: Told<'_>| format!("{} {} {}", told.policy.name, told.outcome.label(), told.code);
    decided.told().into_iter().map(line).collect()
}

#[test]
fn an_object_gets_its_sidecar_wherever_its_namespace_stands_and_passes_then() {
    let policies = policies(&[("envoy", json!({ "failurePolicy": "Fail", "namespaces": ["shop"] }))]);
    for metadata in [json!({ "generateName": "web-" }), json!({ "name": "web", "namespace": "shop" })] {
        let review = review(&pod(&metadata));
        let (response, decided) = asked(Call::Mutate, &review, &policies);
        assert_eq!((&response["uid"], &response["patchType"]), (&json!("u1"), &json!("JSONPatch")));
        assert_eq!(told(decided), ["envoy injected SCP0002"]);
        let stored = patched(&review, &response);
        assert_eq!(stored["spec"]["containers"][1]["name"], "envoy");
        assert_eq!(stored["metadata"]["namespace"], metadata["namespace"], "the patch is for what came");
        let (response, decided) = asked(Call::Validate, &super::tests::review(&stored), &policies);
        assert_eq!((&response["allowed"], told(decided).len()), (&json!(true), 0));
        let (response, decided) = asked(Call::Validate, &review, &policies);
        assert_eq!(response["allowed"], false);
        assert_eq!(response["status"]["code"], 403);
        let message = response["status"]["message"].as_str().unwrap();
        assert!(message.starts_with("SidecarPolicy `envoy` refuses this Pod: SCP0213: "), "{message}");
        assert_eq!(told(decided), ["envoy rejected SCP0213"]);
    }
}

#[test]
fn of_an_object_everything_is_read_but_what_nobody_decides_by() {
    let managed = json!([{ "manager": "kubectl", "fieldsV1": { "f:metadata": { "managedFields": {} } } }]);
    let mut came = pod(&json!({ "name": "web", "labels": { "managedFields": "no" }, "managedFields": managed }));
    came["spec"]["metadata"] = json!({ "managedFields": 1 });
    let read =
        |object: &Value| Review::parse(review(object).to_string().as_bytes()).map(|review| review.request.object);
    let mut expected = came.clone();
    expected["metadata"].as_object_mut().unwrap().remove("managedFields");
    assert_eq!(read(&came), Ok(expected));
    for metadata in [json!(null), json!(7), json!([]), json!("web")] {
        assert_eq!(read(&json!({ "metadata": metadata })).unwrap_err().status(), 400, "{metadata}");
    }
    for object in [json!(7), json!([]), json!("web"), json!(true)] {
        assert_eq!(read(&object).unwrap_err().status(), 400, "{object}");
    }
    assert!(read(&json!(null)).is_err(), "nothing is created");
    let mut changed = review(&came);
    changed["request"]["operation"] = json!("UPDATE");
    assert!(Review::parse(changed.to_string().as_bytes()).is_err(), "nothing was there");
    changed["request"]["oldObject"] = came.clone();
    let read_old = Review::parse(changed.to_string().as_bytes()).unwrap().request.old_object;
    assert!(read_old["metadata"].get("managedFields").is_none());
    let mut deleted = review(&json!(null));
    deleted["request"]["operation"] = json!("DELETE");
    assert!(Review::parse(deleted.to_string().as_bytes()).is_ok());
}

#[test]
fn what_no_api_server_writes_is_refused_and_the_field_is_named() {
    let long = "x".repeat(300);
    let hostile = [
        ("/request/namespace", json!("kube-system/pods"), "namespace"),
        ("/request/namespace", json!("default/pods?limit=1"), "namespace"),
        ("/request/namespace", json!("../nodes"), "namespace"),
        ("/request/namespace", json!("kube-system/pods?watch=true"), "namespace"),
        ("/request/namespace", json!("shop#"), "namespace"),
        ("/request/namespace", json!("Shop"), "namespace"),
        ("/request/namespace", json!("shop\n"), "namespace"),
        ("/request/namespace", json!("x".repeat(64)), "namespace"),
        ("/request/name", json!("../web"), "name"),
        ("/request/name", json!(".."), "name"),
        ("/request/name", json!("a%2fb"), "name"),
        ("/request/name", json!("x".repeat(1025)), "name"),
        ("/request/uid", json!("u\u{1b}[2J"), "uid"),
        ("/request/uid", json!(long), "uid"),
        ("/request/operation", json!("create"), "operation"),
        ("/request/operation", json!(""), "operation"),
        ("/request/resource/resource", json!("pods/exec"), "resource.resource"),
        ("/request/resource/resource", json!("Pods"), "resource.resource"),
        ("/request/resource/version", json!("v1/pods"), "resource.version"),
        ("/request/resource/group", json!("apps/v1"), "resource.group"),
        ("/request/resource/group", json!("a.".repeat(200)), "resource.group"),
        ("/request/subResource", json!("status/.."), "subResource"),
        ("/request/object/metadata/name", json!("a/b"), "object.metadata.name"),
        ("/request/object/metadata/name", json!(7), "object.metadata.name"),
        ("/request/object/metadata/generateName", json!("a/"), "object.metadata.generateName"),
        ("/request/object/metadata/namespace", json!("a/b"), "object.metadata.namespace"),
        ("/request/oldObject/metadata/name", json!("a/b"), "oldObject.metadata.name"),
    ];
    for (pointer, value, field) in hostile {
        let refused = Review::parse(with(pointer, &value).to_string().as_bytes()).unwrap_err();
        let message = refused.to_string();
        assert!(message.starts_with(&format!("SCP0212: `request.{field}` is ")), "{message}");
        assert_eq!(
            (refused.status(), refused.is_of_the_creator()),
            (400, field.contains("ame") && field != "namespace")
        );
        assert!(message.chars().count() < 500 && !message.contains(char::is_control), "{message}");
    }
    let echoed = with("/request/dryRun", &json!(format!("\u{1b}{}", "x".repeat(1 << 20))));
    let message = Review::parse(echoed.to_string().as_bytes()).unwrap_err().to_string();
    assert!(message.len() < 500 && !message.contains('\u{1b}'), "{message}");
}

#[test]
fn what_api_servers_write_is_taken() {
    let real = [
        ("/request/name", json!("")),
        ("/request/name", json!("system:node:a.b")),
        ("/request/name", json!("web-0.shop.example")),
        ("/request/namespace", json!("")),
        ("/request/namespace", json!("kube-system")),
        ("/request/uid", json!("705ab4f5-6393-11e8-b7cc-42010a800002")),
        ("/request/operation", json!("CONNECT")),
        (
            "/request/resource",
            json!({ "group": "rbac.authorization.k8s.io", "version": "v1beta1", "resource": "rolebindings" }),
        ),
        ("/request/resource", json!({ "group": "argoproj.io", "version": "v1alpha1", "resource": "rollouts" })),
        ("/request/subResource", json!("ephemeralcontainers")),
        ("/request/object/metadata/name", json!(null)),
        ("/request/object/metadata/name", json!("system:x y")),
        ("/request/object/metadata/generateName", json!("web-")),
        ("/request/object/metadata/namespace", json!("")),
    ];
    for (pointer, value) in real {
        let review = with(pointer, &value);
        assert!(Review::parse(review.to_string().as_bytes()).is_ok(), "{review}");
    }
}

/// A review with `value` at `pointer`.
fn with(pointer: &str, value: &Value) -> Value {
    let mut review = review(&pod(&json!({ "name": "web" })));
    review["request"]["oldObject"] = review["request"]["object"].clone();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    review.pointer_mut(parent).unwrap()[key] = value.clone();
    review
}

#[test]
fn what_is_no_create_or_nobodys_target_is_left_alone() {
    let policies = policies(&[("envoy", json!({}))]);
    let changes = [
        ("/request/operation", json!("UPDATE")),
        ("/request/operation", json!("DELETE")),
        ("/request/namespace", json!("")),
        ("/request/resource/resource", json!("secrets")),
        ("/request/resource/group", json!("other.example")),
    ];
    for (pointer, value) in changes {
        let mut review = review(&pod(&json!({ "name": "web" })));
        review["request"]["oldObject"] = review["request"]["object"].clone();
        *review.pointer_mut(pointer).unwrap() = value;
        let (response, decided) = asked(Call::Mutate, &review, &policies);
        assert_eq!(response, json!({ "uid": "u1", "allowed": true }), "{pointer}");
        assert!(decided.is_none(), "{pointer}");
    }
    let mut binding = review(&json!({ "target": {} }));
    binding["request"]["subResource"] = json!("binding");
    assert_eq!(asked(Call::Mutate, &binding, &policies).0, json!({ "uid": "u1", "allowed": true }));
}

#[test]
fn a_named_version_is_for_what_is_posted_through_it_and_conflicts_are_seen_all_the_same() {
    let at = |version: &str| json!({ "targets": [{ "group": "", "version": version, "resource": "pods" }] });
    let review = review(&pod(&json!({ "name": "web" })));
    let (response, decided) =
        asked(Call::Mutate, &review, &policies(&[("old", at("v0")), ("new", at("v1")), ("any", json!({}))]));
    assert_eq!(told(decided), ["any injected SCP0002", "new injected SCP0002"]);
    assert!(!patched(&review, &response).to_string().contains("old"));
}

#[test]
fn each_thing_is_told_by_one_of_the_two_calls_and_the_creator_is_warned() {
    let conflict = json!([{ "name": "app", "image": "other:1" }]);
    let policies = policies(&[
        ("far", json!({ "namespaces": ["other"] })),
        ("lenient", json!({ "template": { "containers": conflict } })),
        ("plain", json!({})),
    ]);
    let review = review(&pod(&json!({ "name": "web" })));
    let (response, decided) = asked(Call::Mutate, &review, &policies);
    assert_eq!(told(decided), ["plain injected SCP0002", "far skipped SCP0108", "lenient failed SCP0200"]);
    let warnings = response["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].as_str().unwrap().starts_with("SidecarPolicy `lenient` does not inject this Pod: SCP0200: "));
    let (response, decided) = asked(Call::Validate, &super::tests::review(&patched(&review, &response)), &policies);
    assert_eq!((response["allowed"].clone(), told(decided).len()), (json!(true), 0));

    let strict =
        [("strict", json!({ "failurePolicy": "Fail", "template": { "containers": conflict } })), ("plain", json!({}))];
    let strict = super::tests::policies(&strict);
    let (response, decided) = asked(Call::Mutate, &review, &strict);
    assert_eq!((response["allowed"].clone(), told(decided).len()), (json!(true), 0), "the other call refuses");
    let (_, decided) = asked(Call::Validate, &super::tests::review(&patched(&review, &response)), &strict);
    assert_eq!(told(decided), ["strict rejected SCP0200"]);
}

/// As the pods of a workload that was injected before the other policy came.
#[test]
fn a_policy_of_a_higher_or_equal_priority_refuses_nothing_that_has_the_content_of_another() {
    let with = |image: &str, priority: i32, failure: &str| {
        let container = json!({ "name": "proxy", "image": image });
        json!({ "priority": priority, "failurePolicy": failure, "template": { "containers": [container] } })
    };
    let low = ("low", with("low:1", 0, "Fail"));
    let review = review(&pod(&json!({ "name": "web" })));
    let injected = patched(&review, &asked(Call::Mutate, &review, &policies(std::slice::from_ref(&low))).0);
    let again = super::tests::review(&injected);
    for priority in [0, 10] {
        let policies = policies(&[low.clone(), ("high", with("high:1", priority, "Ignore"))]);
        let (response, _) = asked(Call::Mutate, &again, &policies);
        assert!(response["patch"].is_null(), "{priority}: {response}");
        let (response, decided) = asked(Call::Validate, &again, &policies);
        assert_eq!(response["allowed"], true, "{priority}: {:?}", told(decided));
    }
}

#[test]
fn an_authorised_bypass_is_nobodys_business_and_validations_hold_all_the_same() {
    let demand = json!({ "validations": [{ "expression": "has(object.metadata.labels)", "message": "label it" }] });
    let policies = policies(&[("envoy", demand)]);
    let own = json!({ "name": "web", "initializers": { "pending": [{ "name": "other.example.org" }] } });
    let review = review(&pod(&own));
    let (response, decided) = asked(Call::Mutate, &review, &policies);
    assert_eq!((response["patch"].is_null(), told(decided)), (true, vec!["envoy skipped SCP0100".to_owned()]));
    let (response, decided) = asked(Call::Validate, &review, &policies);
    assert_eq!((&response["allowed"], told(decided)), (&json!(false), vec!["envoy rejected SCP0210".to_owned()]));
}

/// [`update_tests`](super::update_tests) has the decisions, which both engines share.
#[test]
fn an_update_is_told_only_if_it_concerns_a_policy_and_never_twice() {
    let deployments = json!([{ "group": "apps", "resource": "deployments", "operations": ["CREATE", "UPDATE"] }]);
    let strict = json!({ "targets": deployments, "failurePolicy": "Fail" });
    let policies = policies(&[
        ("envoy", strict),
        ("creates", json!({ "targets": [{ "group": "apps", "resource": "deployments" }] })),
    ]);
    let deployment = json!({ "metadata": { "name": "web" }, "spec": { "template": pod(&json!({})) } });
    let mut create = review(&deployment);
    create["request"]["resource"] = json!({ "group": "apps", "version": "v1", "resource": "deployments" });
    let stored = patched(&create, &asked(Call::Mutate, &create, &policies).0);
    let update = |old: &Value, new: &Value| {
        let mut update = create.clone();
        update["request"]["operation"] = json!("UPDATE");
        (update["request"]["oldObject"], update["request"]["object"]) = (old.clone(), new.clone());
        update
    };
    let mut scaled = stored.clone();
    scaled["spec"]["replicas"] = json!(3);
    for call in [Call::Mutate, Call::Validate] {
        let (response, decided) = asked(call, &update(&stored, &scaled), &policies);
        assert_eq!((response, decided.is_none()), (json!({ "uid": "u1", "allowed": true }), true), "{call:?}");
    }
    let lost = update(&stored, &deployment);
    let (response, decided) = asked(Call::Mutate, &lost, &policies);
    assert_eq!(told(decided), ["envoy injected SCP0002"]);
    let restored = patched(&lost, &response);
    assert!(asked(Call::Validate, &update(&stored, &restored), &policies).1.is_none());
    // Without the first call, the second one refuses.
    let (response, decided) = asked(Call::Validate, &lost, &policies);
    assert_eq!((&response["allowed"], told(decided)), (&json!(false), vec!["envoy rejected SCP0213".to_owned()]));
    // A probe is a create.
    let mut probe = update(&stored, &deployment);
    probe["request"]["namespace"] = json!("scpol-system");
    probe["request"]["object"]["metadata"]["labels"] = json!({ PROBE: PROBE_REFUSE });
    assert_eq!(asked(Call::Validate, &probe, &policies).0["allowed"], true);
}

#[test]
fn a_dry_run_is_answered_like_any_other_and_marked() {
    let policies = policies(&[("envoy", json!({}))]);
    let mut review = review(&pod(&json!({ "name": "web" })));
    let (response, decided) = asked(Call::Mutate, &review, &policies);
    assert!(!decided.unwrap().is_dry_run);
    review["request"]["dryRun"] = json!(true);
    let (dry, decided) = asked(Call::Mutate, &review, &policies);
    assert_eq!(dry, response);
    assert!(decided.unwrap().is_dry_run);
}

#[test]
fn a_probe_gets_the_revision_and_nothing_else_and_only_in_the_operators_namespace() {
    let policies = policies(&[("envoy", json!({}))]);
    let probe = |value: &str, annotations: Value| {
        let mut review = review(&pod(&json!({ "name": "p", "labels": { PROBE: value }, "annotations": annotations })));
        review["request"]["namespace"] = json!("scpol-system");
        review
    };
    for annotations in [json!(null), json!({}), json!({ "a": "b" })] {
        let review = probe("", annotations.clone());
        let (response, decided) = asked(Call::Mutate, &review, &policies);
        let mut expected = review["request"]["object"].clone();
        expected["metadata"]["annotations"][PROBE] = json!(REVISION);
        assert_eq!(patched(&review, &response), expected);
        assert!(decided.is_none());
        assert_eq!(asked(Call::Validate, &review, &policies).0["allowed"], true);
    }
    let review = probe("", json!({}));
    let unseen = patched(&review, &asked_by(Call::Mutate, None, &review, &policies).0);
    assert_eq!(unseen["metadata"]["annotations"][PROBE], PROBE_UNSEEN, "whoever has not seen the registration says so");
    let (response, _) = asked(Call::Validate, &probe(PROBE_REFUSE, json!({})), &policies);
    assert_eq!(response["allowed"], false);
    assert!(response["status"]["message"].as_str().unwrap().contains(REVISION));
    let mut elsewhere = probe(PROBE_REFUSE, json!({}));
    elsewhere["request"]["namespace"] = json!("shop");
    assert_eq!(asked(Call::Validate, &elsewhere, &policies).0["allowed"], true);
    assert_eq!(
        patched(&elsewhere, &asked(Call::Mutate, &elsewhere, &policies).0)["spec"]["containers"][1]["name"],
        "envoy"
    );
}

#[test]
fn a_namespace_is_asked_for_only_where_somebody_reads_it() {
    let needs = |policies: &Policies| {
        let review = Review::parse(review(&pod(&json!({ "name": "web" }))).to_string().as_bytes()).unwrap();
        review.needs_namespace(policies).map(str::to_owned)
    };
    let selector = json!({ "namespaceSelector": { "matchLabels": { "team": "shop" } } });
    // No level of the Pod Security Standards forbids this template.
    let harmless = json!({ "template": { "env": [{ "name": "A", "value": "b" }] } });
    assert_eq!(needs(&policies(&[("envoy", harmless.clone())])), None);
    assert_eq!(needs(&policies(&[("envoy", json!({}))])), Some("shop".to_owned()));
    assert_eq!(needs(&policies(&[("envoy", selector.clone())])), Some("shop".to_owned()));
    let elsewhere = json!({ "namespaceSelector": { "matchLabels": { "team": "shop" } }, "targets": [{ "group": "apps", "resource": "deployments" }] });
    assert_eq!(needs(&policies(&[("envoy", elsewhere), ("other", harmless)])), None);
    let (response, decided) =
        asked(Call::Mutate, &review(&pod(&json!({ "name": "web" }))), &policies(&[("envoy", selector.clone())]));
    assert_eq!((response["patch"].is_null(), told(decided)), (true, vec!["envoy failed SCP0209".to_owned()]));
    // For an update only by a policy that acts on updates.
    for (operations, expected) in [(json!(["CREATE"]), None), (json!(["CREATE", "UPDATE"]), Some("shop".to_owned()))] {
        let mut update = review(&pod(&json!({ "name": "web" })));
        update["request"]["operation"] = json!("UPDATE");
        update["request"]["oldObject"] = update["request"]["object"].clone();
        update["request"]["resource"] = json!({ "group": "apps", "version": "v1", "resource": "deployments" });
        let mut spec = selector.clone();
        spec["targets"] = json!([{ "group": "apps", "resource": "deployments", "operations": operations }]);
        let review = Review::parse(update.to_string().as_bytes()).unwrap();
        assert_eq!(review.needs_namespace(&policies(&[("envoy", spec)])).map(str::to_owned), expected);
    }
}
