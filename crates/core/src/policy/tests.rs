//! Tests of [`Policy`] besides [`decide`](super::decide), whose rows are golden cases.

use super::*;
use crate::content::Content;
use serde_json::json;

fn site() -> Site {
    Site::new("scpol-system", [], ["sidecar.example.com".to_owned()])
}

/// The policy `name` with that `spec`. Adds a template if the spec has neither a template nor validations.
fn policy(name: &str, mut spec: Value) -> Policy {
    if spec.get("template").is_none() && spec.get("validations").is_none() {
        spec["template"] = json!({"containers": [{"name": "x", "image": "x"}]});
    }
    Policy::parse(&json!({"metadata": {"name": name}, "spec": spec}), &site()).unwrap()
}

fn policies<const N: usize>(all: [Policy; N]) -> Policies {
    Policies::new(all.map(Arc::new))
}

#[test]
fn ours_to_remove_is_what_lies_under_our_domain_and_what_a_flag_names() {
    for (name, ours) in [
        ("envoy.scpol.dev", true),
        ("sidecar.example.com", true),
        ("envoy.example.com", false),
        (".scpol.dev", false),
        ("scpol.dev", false),
        ("envoy.scpol.dev.example.com", false),
    ] {
        assert_eq!(site().owns(name), ours, "{name}");
    }
}

#[test]
fn a_policy_needs_native_sidecars_where_a_container_of_its_own_can_only_be_one() {
    let (container, native) =
        (json!({"name": "x", "image": "x"}), json!({"name": "y", "image": "y", "restartPolicy": "Always"}));
    let init = json!({"name": "z", "image": "z"});
    for (needs, choice, containers, init_containers) in [
        (true, "Always", json!([container]), json!([])),
        (false, "ForJobs", json!([container]), json!([])),
        (false, "Never", json!([container]), json!([init])),
        // Init containers are not native sidecars, whatever containers use.
        (false, "Always", json!([]), json!([init])),
        (true, "ForJobs", json!([container]), json!([init, native])),
        (true, "Never", json!([]), json!([native])),
        (true, "Always", json!([container]), json!([native])),
    ] {
        let template = json!({"containers": containers, "initContainers": init_containers});
        let policy = policy("p", json!({"nativeSidecars": choice, "template": template}));
        assert_eq!(policy.needs_native_sidecars(), needs, "{choice} {template}");
    }
}

#[test]
fn a_namespace_decides_where_a_selector_or_an_expression_asks_for_more_than_its_name() {
    let (named, other) = ("namespaceObject.metadata.name != ''", "object.metadata.name != ''");
    for (reads, spec) in [
        (false, json!({"namespaces": ["shop"]})),
        (true, json!({"namespaceSelector": {"matchLabels": {"team": "a"}}})),
        (true, json!({"matchConditions": [{"name": "a", "expression": other}, {"name": "b", "expression": named}]})),
        (false, json!({"matchConditions": [{"name": "a", "expression": other}]})),
        (true, json!({"validations": [{"expression": named}]})),
        (
            true,
            json!({"validations": [{"expression": other, "messageExpression": "string(namespaceObject.metadata.name)"}]}),
        ),
        (false, json!({"validations": [{"expression": other, "messageExpression": "string(object.metadata.name)"}]})),
    ] {
        let policy = policy("p", spec.clone());
        assert_eq!(policy.selects_by_namespace(), reads, "{spec}");
        let all = policies([self::policy("other", json!({})), policy]);
        assert_eq!(all.select_by_namespace(), reads, "{spec}");
    }
}

#[test]
fn a_namespace_is_read_where_it_decides_or_enforces_what_the_template_is_against() {
    let hardened = json!({ "name": "a", "image": "a", "securityContext": {
        "allowPrivilegeEscalation": false, "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" }, "capabilities": { "drop": ["ALL"] },
    } });
    for (reads, spec) in [
        (true, json!({ "template": { "containers": [{ "name": "a", "image": "a" }] } })),
        (false, json!({ "template": { "containers": [hardened] } })),
        (
            true,
            json!({ "template": { "containers": [hardened] }, "namespaceSelector": { "matchLabels": { "team": "a" } } }),
        ),
        (false, json!({ "template": { "env": [{ "name": "A", "value": "b" }] } })),
    ] {
        let policy = policy("p", spec.clone());
        assert_eq!(policy.reads_namespaces(), reads, "{spec}");
        assert_eq!(policies([policy]).read_namespaces(), reads, "{spec}");
    }
}

#[test]
fn the_targets_of_a_kind_are_those_of_its_resource_in_any_group_that_serves_it() {
    let target =
        |group: &str, version: &str, resource: &str| json!({"group": group, "version": version, "resource": resource});
    let policy = policy(
        "p",
        json!({"targets": [
            target("apps", "v1", "deployments"),
            target("extensions", "v1beta1", "deployments"),
            target("apps", "v1", "statefulsets"),
            target("argoproj.io", "*", "deployments"),
        ]}),
    );
    let of = |group: &str, resource: &str| -> Vec<(String, String)> {
        let kind = Kind::of(group, resource, None);
        policy.targets_of(&kind).map(|target| (target.group.clone(), target.resource.clone())).collect()
    };
    let pair = |group: &str, resource: &str| (group.to_owned(), resource.to_owned());
    let both = vec![pair("apps", "deployments"), pair("extensions", "deployments")];
    assert_eq!(of("apps", "deployments"), both);
    assert_eq!(of("extensions", "deployments"), both);
    assert_eq!(of("apps", "statefulsets"), [pair("apps", "statefulsets")]);
    assert_eq!(of("argoproj.io", "deployments"), [pair("argoproj.io", "deployments")]);
    assert_eq!(of("apps", "daemonsets"), []);
}

#[test]
fn a_workload_is_copied_only_for_a_policy_that_takes_its_pod_to_lie_elsewhere() {
    let target = |path: &str| json!({"targets": [{"group": "example.com", "resource": "apps", "templatePath": path}]});
    let (here, there) = (policy("here", target("spec.template")), policy("there", target("spec.pod")));
    let workload = Workload::new(&here.kinds[0], json!({"spec": {"pod": {"spec": {}}}}));
    assert!(matches!(here.view(&workload), Cow::Borrowed(_)));
    assert!(matches!(policy("none", json!({})).view(&workload), Cow::Borrowed(_)));
    let view = there.view(&workload);
    assert_eq!((view.pod_pointer().as_str(), &view.body), ("/spec/pod", &workload.body));
    assert!(matches!(view, Cow::Owned(_)));
    assert_eq!(here.disagreement(&there, &workload.kind), Some(("spec.template".to_owned(), "spec.pod".to_owned())));
    assert_eq!(here.disagreement(&here, &workload.kind), None);
    assert_eq!(here.disagreement(&there, &Kind::of("example.com", "others", None)), None);
}

#[test]
fn the_marker_of_a_policy_is_read_where_it_takes_the_pod_to_lie() {
    let target = json!({"targets": [{"group": "example.com", "resource": "apps", "templatePath": "spec.pod"}]});
    let policy = policy("p", target);
    let marker = r#"{"v":1,"hash":"0123456789abcdef","added":["/spec/pod/spec/containers/x"]}"#;
    let pod = json!({"metadata": {"annotations": {"injected.scpol.dev/p": marker}}, "spec": {}});
    let read = |body: Value| policy.marker(&Workload::new(&Kind::of("example.com", "apps", None), body));
    let found = read(json!({"spec": {"pod": pod, "template": {}}})).unwrap();
    assert_eq!(
        (found.hash.as_str(), &found.added[..]),
        ("0123456789abcdef", &["/spec/pod/spec/containers/x".to_owned()][..])
    );
    assert_eq!(read(json!({"spec": {"template": pod}})), None);
}

#[test]
fn the_hash_of_a_spec_is_that_of_what_it_says() {
    let hash = |spec: Value| policy("p", spec).spec_hash;
    let one = hash(json!({"priority": 1}));
    assert!(one.len() == 16 && one.bytes().all(|digit| digit.is_ascii_hexdigit()), "{one}");
    // An explicit default does not change the hash.
    assert_eq!(hash(json!({"priority": 1, "suspend": false})), one);
    assert_ne!(hash(json!({"priority": 2})), one);
}

/// A hash that changes with a release would register every policy again, and report every status as not current.
#[test]
fn a_spec_without_a_rollout_has_the_hash_that_it_had_before_there_were_any() {
    let hash = |spec: &Value| policy("p", spec.clone()).spec_hash;
    let template = json!({"containers": [{"name": "envoy", "image": "envoyproxy/envoy:v1.31.0"}]});
    let mut minimal = json!({"template": template});
    let mut full = json!({
        "targets": [
            {"group": "apps", "version": "v1", "resource": "deployments"},
            {"group": "example.com", "resource": "apps", "templatePath": "spec.pod"},
        ],
        "namespaces": ["shop-*"], "position": {"containers": "Before"}, "failurePolicy": "Fail", "template": template,
    });
    assert_eq!([hash(&minimal), hash(&full)], ["e239888f6aea6f80", "03202ede9790d94c"]);
    full["targets"][0]["operations"] = json!(["CREATE"]);
    assert_eq!(hash(&full), "03202ede9790d94c", "an explicit default");
    full["targets"][0]["operations"] = json!(["CREATE", "UPDATE"]);
    minimal["updateStrategy"] = json!({"type": "RollingUpdate"});
    assert!(hash(&full) != "03202ede9790d94c" && hash(&minimal) != "e239888f6aea6f80");
}

#[test]
fn policies_are_found_by_name_and_by_the_initializer_name_that_they_register() {
    let old = |name: &str| policy(name, json!({"initializerName": "sidecar.example.com"}));
    let all = policies([old("b"), policy("plain", json!({})), old("a"), old("c")]);
    assert_eq!(all.get(&PolicyRef::of_cluster("plain")).map(|policy| policy.name.as_str()), Some("plain"));
    assert!(all.get(&PolicyRef::of_cluster("plain.scpol.dev")).is_none());
    let by = |initializer: &str| all.by_initializer(initializer).map(|policy| policy.name.as_str());
    assert_eq!(by("plain.scpol.dev"), Some("plain"));
    // Two policies cannot share a name: the first by name keeps it.
    assert_eq!(by("sidecar.example.com"), Some("a"));
    assert_eq!((by("a.scpol.dev"), by("plain")), (None, None));
}

#[test]
fn a_new_or_edited_policy_never_takes_the_initializer_name_of_another() {
    let made = |name: &str, initializer: &str, created: &str| {
        let mut spec = json!({"initializerName": initializer});
        spec["template"] = json!({"containers": [{"name": "x", "image": "x"}]});
        let meta = json!({"name": name, "creationTimestamp": created});
        Arc::new(Policy::parse(&json!({"metadata": meta, "spec": spec}), &site()).unwrap())
    };
    let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let holder = |all: &Policies| all.by_initializer("sidecar.example.com").map(|policy| policy.name.clone());
    let first = Policies::new([made("b", "sidecar.example.com", new), made("c", "c.scpol.dev", old)]);
    // A policy whose name comes first is created.
    let both = [made("b", "sidecar.example.com", new), made("a", "sidecar.example.com", new)];
    assert_eq!(holder(&Policies::after(&first, both.clone())).as_deref(), Some("b"));
    // An older policy is edited.
    let edited = [made("b", "sidecar.example.com", new), made("c", "sidecar.example.com", old)];
    assert_eq!(holder(&Policies::after(&first, edited.clone())).as_deref(), Some("b"));
    // A new operator knows only their age.
    assert_eq!(holder(&Policies::new(edited)).as_deref(), Some("c"));
    assert_eq!(holder(&Policies::new(both)).as_deref(), Some("a"));
    // Once the holder has another name, or is gone, the name is free.
    let left = [made("b", "b.scpol.dev", new), made("a", "sidecar.example.com", new)];
    assert_eq!(holder(&Policies::after(&first, left)).as_deref(), Some("a"));
}

#[test]
fn a_message_that_says_nothing_or_more_than_one_line_gives_way_to_the_other() {
    let told = |expression: &str| {
        let validation = json!({"expression": "false", "message": "written", "messageExpression": expression});
        let policy = policy("p", json!({"validations": [validation]}));
        let variables = Variables { object: &json!({"metadata": {"name": "web"}}), namespace: None, template: None };
        policy.validations[0].told(&variables, &mut Budget::validations(), Dialect::NEWEST)
    };
    assert_eq!(told("' not ' + object.metadata.name + ' '"), "not web");
    for expression in ["''", "'  '", r"'two\nlines'", "string(object.metadata.none)"] {
        assert_eq!(told(expression), "written", "{expression}");
    }
}

#[test]
fn a_workload_is_selected_where_all_of_row_7_holds_whatever_other_rows_say() {
    let conditions = json!([{"name": "c", "expression": "object.spec.replicas > 1"}]);
    let policy = policy("p", json!({"namespaces": ["shop"], "matchConditions": conditions}));
    let selected = |namespace: &str, spec: Value| {
        let metadata = json!({"namespace": namespace, "annotations": {"scpol.dev/inject": "false"}});
        let body = json!({"metadata": metadata, "spec": spec});
        let workload = Workload::new(Kind::find("apps", "deployments").unwrap(), body);
        assert!(matches!(decide(&policy, &workload, &site()), Verdict::Skip(_)), "it has opted out");
        checks::selects(&policy, &workload, &site())
    };
    assert!(selected("shop", json!({"replicas": 2})));
    assert!(!selected("shop", json!({"replicas": 1})));
    assert!(!selected("other", json!({"replicas": 2})));
    // An undecidable requirement does not hold.
    assert!(!selected("shop", json!({})));
}

#[test]
fn a_reason_names_five_globs_and_says_if_there_are_more() {
    let told = |globs: &[&str]| {
        let policy = policy("p", json!({"namespaces": globs}));
        let body = json!({"metadata": {"namespace": "shop"}});
        match decide(&policy, &Workload::new(Kind::find("apps", "deployments").unwrap(), body), &site()) {
            Verdict::Skip(reason) => reason.detail,
            other => panic!("{other:?}"),
        }
    };
    let told_of = |list: &str| format!("namespace `shop` is not in `spec.namespaces` [{list}]");
    assert_eq!(told(&["a", "b", "c", "d"]), told_of("a, b, c, d"));
    assert_eq!(told(&["a", "b", "c", "d", "e"]), told_of("a, b, c, d, e"));
    assert_eq!(told(&["a", "b", "c", "d", "e", "f"]), told_of("a, b, c, d, e, …"));
    assert_eq!(told(&["a", "b", "c", "d", "e", "f", "g"]), told_of("a, b, c, d, e, …"));
}

#[test]
fn a_policy_with_another_content_selects_the_same_and_adds_what_the_content_says() {
    let spec = json!({
        "namespaces": ["shop"], "failurePolicy": "Fail", "nativeSidecars": "Never",
        "template": {"containers": [{"name": "x", "image": "x:1"}]}, "position": {"containers": "Before"},
    });
    let stored = policy("p", spec);
    let own = Content::of(&stored.spec).unwrap();
    let same = stored.with_content(&own);
    assert_eq!(
        (&same.spec, &same.spec_hash, same.as_written()),
        (&stored.spec, &stored.spec_hash, stored.as_written())
    );
    let earlier = Content {
        position: None,
        ..serde_json::from_value(json!({"template": {"volumes": [{"name": "v"}]}})).unwrap()
    };
    let back = stored.with_content(&earlier);
    assert_eq!(Content::of(&back.spec), Some(earlier));
    let written = policy("p", serde_json::to_value(&back.spec).unwrap());
    assert_eq!(
        (back.as_written(), &back.spec_hash),
        (written.as_written(), &written.spec_hash),
        "as if it were written so"
    );
    assert_ne!(back.spec_hash, stored.spec_hash);
    assert!(back.covers_namespace("shop") && !back.covers_namespace("other") && back.refuses());
}
