use super::registration::PROBE_ENTRY;
use super::*;
use std::collections::BTreeSet;
use std::slice::from_ref;

const WEBHOOKS: [(&str, &str, &str, &str); 4] = [
    ("admissionregistration.k8s.io", "v1beta1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "v1beta1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
];
const WORKLOADS: [(&str, &str, &str, &str); 3] = [
    ("apps", "v1", "deployments", "Deployment"),
    ("extensions", "v1beta1", "deployments", "Deployment"),
    ("", "v1", "pods", "Pod"),
];

fn cluster(minor: u32) -> Capabilities {
    let webhooks = if minor < 16 { &WEBHOOKS[..2] } else { &WEBHOOKS[..] };
    let workloads = WORKLOADS.iter().filter(|row| minor < 16 || row.0 != "extensions");
    Capabilities::of(minor, &webhooks.iter().chain(workloads).copied().collect::<Vec<_>>())
}

fn site() -> Site {
    Site::new("scpol-system", [], [])
}

fn policy(name: &str, more: &Value) -> Arc<Policy> {
    let mut spec = json!({ "template": { "containers": [{ "name": name, "image": "envoy:1" }] } });
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    let object = json!({ "metadata": { "name": name, "uid": format!("uid-{name}") }, "spec": spec });
    Arc::new(Policy::parse(&object, &site()).unwrap())
}

fn address(endpoint: Endpoint, ca_bundle: Option<&[u8]>) -> Address {
    Address { endpoint, ca_bundle: ca_bundle.map(<[u8]>::to_vec) }
}

fn service(ca_bundle: Option<&[u8]>) -> Address {
    let endpoint = Endpoint::Service { namespace: "scpol-system".into(), name: "scpol".into(), port: 443 };
    address(endpoint, ca_bundle)
}

fn rendered(minor: u32, policies: &[Arc<Policy>]) -> Vec<Value> {
    let kind = Kind::find("apps", "deployments").unwrap();
    render(kind, policies, &cluster(minor), &site(), &service(Some(b"ca"))).unwrap()
}

fn expressions(selector: &Value) -> Vec<String> {
    let items = selector["matchExpressions"].as_array().cloned().unwrap_or_default();
    items.iter().map(|item| format!("{} {} {}", item["key"], item["operator"], item["values"])).collect()
}

#[test]
fn a_registration_tells_where_it_is_called_and_whom_it_trusts() {
    let kind = Kind::find("apps", "deployments").unwrap();
    let elsewhere = Endpoint::Service { namespace: "a".into(), name: "b".into(), port: 8443 };
    let url = Endpoint::Url("https://192.0.2.1:8443".into());
    for address in [service(Some(b"ca")), address(elsewhere, None), address(url, None)] {
        let policies = [policy("a", &json!({}))];
        let rendered = render(kind, &policies, &cluster(36), &site(), &address).unwrap();
        assert_eq!(address_of(&rendered[0]), Some(address));
    }
    assert_eq!(address_of(&json!({ "webhooks": [{ "clientConfig": {} }] })), None);
    assert_eq!(address_of(&json!({ "webhooks": [{ "clientConfig": { "url": "x" } }] })), None);
}

#[test]
fn a_current_server_gets_one_mutating_registration_with_an_entry_for_probes() {
    let [registration] = &rendered(36, &[policy("b", &json!({})), policy("a", &json!({}))])[..] else { panic!() };
    assert_eq!(registration["apiVersion"], "admissionregistration.k8s.io/v1");
    assert_eq!(registration["metadata"]["name"], "scpol-deployments.apps");
    assert_eq!(registration["metadata"]["labels"]["admissions.enforcer/disabled"], "true");
    assert_eq!(registration["metadata"]["ownerReferences"][0]["name"], "a");
    assert_eq!(registration["metadata"]["ownerReferences"][1]["uid"], "uid-b");
    let revision = revision_of(registration).unwrap();
    let [inject, probe] = &registration["webhooks"].as_array().unwrap()[..] else { panic!() };
    let expected = json!({
        "name": "inject.scpol.dev", "failurePolicy": "Ignore", "sideEffects": "None", "timeoutSeconds": 3,
        "admissionReviewVersions": ["v1", "v1beta1"], "matchPolicy": "Exact", "reinvocationPolicy": "Never",
        "clientConfig": {
            "service": { "namespace": "scpol-system", "name": "scpol", "path": format!("/mutate/{revision}") },
            "caBundle": "Y2E=",
        },
        "rules": [{ "operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["*"], "resources": ["deployments"], "scope": "Namespaced" }],
        "namespaceSelector": { "matchExpressions": [{
            "key": "kubernetes.io/metadata.name", "operator": "NotIn",
            "values": ["kube-node-lease", "kube-public", "kube-system", "scpol-system"],
        }] },
    });
    assert_eq!(*inject, expected);
    assert_eq!(probe["name"], "probe.scpol.dev");
    assert_eq!(probe["clientConfig"], inject["clientConfig"]);
    assert_eq!(expressions(&probe["namespaceSelector"]), [r#""kubernetes.io/metadata.name" "In" ["scpol-system"]"#]);
    assert_eq!(expressions(&probe["objectSelector"]), [r#""scpol.dev/probe" "Exists" null"#]);
}

#[test]
fn a_server_of_1_13_gets_only_fields_that_it_has_and_every_group() {
    let [registration] = &rendered(13, &[policy("a", &json!({}))])[..] else { panic!() };
    assert_eq!(registration["apiVersion"], "admissionregistration.k8s.io/v1beta1");
    let [inject] = &registration["webhooks"].as_array().unwrap()[..] else { panic!() };
    let fields: Vec<&String> = inject.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["clientConfig", "failurePolicy", "name", "rules", "sideEffects"]);
    assert_eq!(inject["rules"][0]["apiGroups"], json!(["apps", "extensions"]));
    assert_eq!(inject["rules"][0].get("scope"), None);
    let between = &rendered(14, &[policy("a", &json!({}))])[0]["webhooks"][0];
    assert_eq!((&between["timeoutSeconds"], between.get("matchPolicy")), (&json!(3), None));
}

#[test]
fn a_server_of_1_16_gets_an_entry_for_probes_which_need_not_match_the_policies() {
    let selecting = policy("a", &json!({ "labelSelector": { "matchLabels": { "tier": "web" } } }));
    let [registration] = &rendered(16, &[selecting])[..] else { panic!() };
    let [inject, probe] = &registration["webhooks"].as_array().unwrap()[..] else { panic!() };
    assert_eq!(inject["objectSelector"]["matchLabels"]["tier"], "web");
    assert_eq!((&inject["failurePolicy"], &probe["failurePolicy"]), (&json!("Ignore"), &json!("Fail")));
    assert_eq!(expressions(&probe["objectSelector"]), [r#""scpol.dev/probe" "Exists" null"#]);
    assert_eq!(probe.get("namespaceSelector"), None);
}

#[test]
fn named_versions_are_registered_and_no_others() {
    let target = |group: &str, version: &str| json!({ "targets": [{ "group": group, "version": version, "resource": "deployments" }] });
    let named = [policy("a", &target("apps", "v1")), policy("b", &target("extensions", "v1beta1"))];
    let rules = &rendered(13, &named)[0]["webhooks"][0]["rules"];
    assert_eq!((&rules[0]["apiGroups"], &rules[0]["apiVersions"]), (&json!(["apps"]), &json!(["v1"])));
    assert_eq!((&rules[1]["apiGroups"], &rules[1]["apiVersions"]), (&json!(["extensions"]), &json!(["v1beta1"])));
    let missing = render(
        Kind::find("apps", "deployments").unwrap(),
        &[policy("a", &target("apps", "v2"))],
        &cluster(36),
        &site(),
        &service(None),
    );
    assert_eq!(missing.unwrap_err().code, Code::TargetNotServed);
}

#[test]
fn whoever_may_refuse_is_registered_for_validation_and_calls_fail_closed_only_where_a_policy_says_so() {
    let demand = json!({ "validations": [{ "expression": "has(object.metadata.labels)" }] });
    let kinds = |policies: &[Arc<Policy>]| {
        let kind =
            |object: &Value| format!("{} {}", object["kind"].as_str().unwrap(), object["webhooks"][0]["failurePolicy"]);
        rendered(36, policies).iter().map(kind).collect::<Vec<_>>()
    };
    let (mutating, ignore, fail) = (
        "MutatingWebhookConfiguration \"Ignore\"",
        "ValidatingWebhookConfiguration \"Ignore\"",
        "ValidatingWebhookConfiguration \"Fail\"",
    );
    assert_eq!(kinds(&[policy("a", &json!({}))]), [mutating]);
    assert_eq!(kinds(&[policy("a", &demand)]), [mutating, ignore]);
    assert_eq!(kinds(&[policy("a", &demand), policy("b", &json!({ "failurePolicy": "Fail" }))]), [mutating, fail]);
    let judge =
        json!({ "metadata": { "name": "a" }, "spec": { "validations": [{ "expression": "has(object.spec)" }] } });
    assert_eq!(kinds(&[Arc::new(Policy::parse(&judge, &site()).unwrap())]), [ignore]);
    assert!(kinds(&[]).is_empty());
    let refused = check(&policy("b", &json!({ "failurePolicy": "Fail" })), &cluster(20)).unwrap_err();
    assert_eq!(refused.code, Code::FailNotSafe);
}

#[test]
fn a_policy_with_fail_makes_calls_fail_closed_only_where_it_selects() {
    let entries = |policies: &[Arc<Policy>]| {
        let rendered = rendered(22, policies);
        let webhooks = rendered[1]["webhooks"].as_array().unwrap().clone();
        let told = |entry: &Value| {
            let places = expressions(&entry["namespaceSelector"]).join("; ").replace("kubernetes.io/metadata.name", "");
            let labels = entry["objectSelector"]["matchLabels"].as_object().map(|labels| json!(labels).to_string());
            let name = entry["name"].as_str().unwrap().trim_end_matches(".scpol.dev");
            let (failure, labels) = (&entry["failurePolicy"], labels.unwrap_or_default());
            format!("{name} {failure} {places} {labels}").replace('"', "")
        };
        let revisions: BTreeSet<String> =
            webhooks.iter().map(|entry| entry["clientConfig"]["service"]["path"].to_string()).collect();
        assert_eq!(revisions.len(), 1, "every entry shows the revision");
        webhooks.iter().filter(|entry| entry["name"] != PROBE_ENTRY).map(told).collect::<Vec<_>>()
    };
    let everywhere = "NotIn [kube-node-lease,kube-public,kube-system,scpol-system]";
    let demand = json!([{ "expression": "has(object.metadata.labels)" }]);
    let platform = policy("platform", &json!({ "validations": demand }));
    let tenant = policy("tenant", &json!({ "failurePolicy": "Fail", "namespaces": ["shop"] }));
    let labelled = json!({ "failurePolicy": "Fail", "labelSelector": { "matchLabels": { "tier": "web" } } });
    let labelled = policy("labelled", &labelled);
    assert_eq!(entries(from_ref(&platform)), [format!("validate Ignore  {everywhere} ")]);
    assert_eq!(entries(from_ref(&tenant)), ["validate Fail  In [shop] "]);
    assert_eq!(
        entries(&[platform.clone(), tenant.clone()]),
        ["validate Fail  In [shop] ".to_owned(), format!("validate-ignore Ignore  {everywhere} ")]
    );
    assert_eq!(
        entries(&[platform, tenant, labelled]),
        [
            format!("validate Fail  {everywhere} {{tier:web}}"),
            "validate-named Fail  In [shop] ".to_owned(),
            format!("validate-ignore Ignore  {everywhere} "),
        ]
    );
}

#[test]
fn updates_are_registered_where_a_policy_asks_for_them_and_judged_by_an_entry_that_never_fails_closed() {
    let at = |operations: Value, more: Value| {
        let mut spec = json!({ "targets": [
            { "group": "apps", "resource": "deployments", "operations": operations }, { "group": "", "resource": "pods" },
        ] });
        more.as_object().into_iter().flatten().for_each(|(field, value)| spec[field] = value.clone());
        spec
    };
    let quiet = policy("quiet", &at(json!(["CREATE"]), json!({ "failurePolicy": "Fail" })));
    let acting = |more: Value| policy("acting", &at(json!(["CREATE", "UPDATE"]), more));
    let entries = |minor: u32, group: &str, resource: &str, policies: &[Arc<Policy>]| {
        let kind = Kind::find(group, resource).unwrap();
        let rendered = render(kind, policies, &cluster(minor), &site(), &service(None)).unwrap();
        let told = |entry: &Value| {
            let rule = &entry["rules"][0];
            let name = entry["name"].as_str().unwrap().split('.').next().unwrap();
            format!("{name} {} {} {}", entry["failurePolicy"], rule["operations"], rule["resources"])
        };
        let entries = rendered.iter().flat_map(|registration| registration["webhooks"].as_array().unwrap());
        entries.filter(|entry| entry["name"] != PROBE_ENTRY).map(told).collect::<Vec<_>>().join("; ").replace('"', "")
    };
    let refusing = json!({ "failurePolicy": "Fail", "namespaces": ["shop"] });
    for (policies, expected) in [
        (vec![quiet.clone()], "inject Ignore [CREATE] [deployments]; validate Fail [CREATE] [deployments]"),
        (
            vec![quiet.clone(), acting(json!({}))],
            "inject Ignore [CREATE,UPDATE] [deployments]; validate Fail [CREATE] [deployments]",
        ),
        (
            vec![quiet.clone(), acting(refusing.clone())],
            "inject Ignore [CREATE,UPDATE] [deployments]; validate Fail [CREATE] [deployments]; validate-update Ignore [UPDATE] [deployments]",
        ),
    ] {
        for minor in [13, 20, 36] {
            // A server below 1.21 cannot have `Fail`.
            if minor == 36 {
                assert_eq!(entries(minor, "apps", "deployments", &policies), expected);
            }
            let lenient = [acting(json!({ "validations": [{ "expression": "true" }] }))];
            let expected = "inject Ignore [CREATE,UPDATE] [deployments]; validate Ignore [CREATE] [deployments]; validate-update Ignore [UPDATE] [deployments]";
            assert_eq!(entries(minor, "apps", "deployments", &lenient), expected, "{minor}");
        }
        assert!(!entries(36, "", "pods", &policies).contains("UPDATE"));
    }
    // The entry for updates is narrowed by the policies that act on them, and its probe is still a create.
    let rendered = rendered(36, &[quiet, acting(refusing)]);
    let [main, update, probe] = &rendered[1]["webhooks"].as_array().unwrap()[..] else { panic!() };
    assert!(expressions(&main["namespaceSelector"])[0].contains("NotIn"));
    assert_eq!(expressions(&update["namespaceSelector"]), [r#""kubernetes.io/metadata.name" "In" ["shop"]"#]);
    assert_eq!((&probe["name"], &probe["rules"][0]["operations"]), (&json!(PROBE_ENTRY), &json!(["CREATE"])));
    assert_eq!(update["clientConfig"], main["clientConfig"]);
}

#[test]
fn a_registration_is_narrowed_only_by_what_holds_for_all() {
    let labels = json!({ "labelSelector": { "matchLabels": { "app": "web" } } });
    let inject = |policies: &[Arc<Policy>]| rendered(36, policies)[0]["webhooks"][0].clone();
    let shared = inject(&[policy("a", &labels), policy("b", &labels)]);
    assert_eq!(shared["objectSelector"], json!({ "matchLabels": { "app": "web" } }));
    assert_eq!(inject(&[policy("a", &labels), policy("b", &json!({}))]).get("objectSelector"), None);
    let no_label = json!({ "labelSelector": { "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["no label's value"] }] } });
    assert_eq!(inject(&[policy("a", &no_label)]).get("objectSelector"), None);

    let at = |names: Value| policy("a", &json!({ "namespaces": names }));
    let selected = |policy| expressions(&inject(&[policy])["namespaceSelector"]);
    assert_eq!(
        selected(at(json!(["shop", "bank", "kube-system"]))),
        [r#""kubernetes.io/metadata.name" "In" ["bank","shop"]"#]
    );
    assert!(selected(at(json!(["shop", "team-*"])))[0].contains("NotIn"));
    let none = [r#""kubernetes.io/metadata.name" "DoesNotExist" null"#];
    assert_eq!(selected(at(json!(["kube-system"]))), none);
    let both =
        policy("a", &json!({ "namespaceSelector": { "matchLabels": { "team": "shop" } }, "namespaces": ["shop"] }));
    let both = &inject(&[both])["namespaceSelector"];
    assert_eq!((&both["matchLabels"]["team"], expressions(both).len()), (&json!("shop"), 1));
}

#[test]
fn the_revision_changes_exactly_with_the_registration() {
    let revision = |policies: &[Arc<Policy>]| revision_of(&rendered(36, policies)[0]).unwrap().to_owned();
    let (a, b) = (policy("a", &json!({})), policy("b", &json!({})));
    assert_eq!(revision(&[a.clone(), b.clone()]), revision(&[b.clone(), a.clone()]));
    assert_ne!(revision(from_ref(&a)), revision(&[a.clone(), b]));
    let kind = Kind::find("apps", "deployments").unwrap();
    let url = Endpoint::Url("https://127.0.0.1:8443/".into());
    let other = render(kind, from_ref(&a), &cluster(36), &site(), &address(url, Some(b"other"))).unwrap();
    let path = other[0]["webhooks"][0]["clientConfig"]["url"].as_str().unwrap();
    assert_eq!(path, format!("https://127.0.0.1:8443/mutate/{}", revision_of(&other[0]).unwrap()));
    assert_ne!(revision_of(&other[0]), Some(revision(&[a]).as_str()));
}

#[test]
fn what_the_server_cannot_register_is_told() {
    let render = |cluster: &Capabilities, address: &Address| {
        let kind = Kind::find("", "pods").unwrap();
        super::render(
            kind,
            &[policy("a", &json!({ "targets": [{ "group": "", "resource": "pods" }] }))],
            cluster,
            &site(),
            address,
        )
    };
    let none = Capabilities::of(36, &WORKLOADS);
    assert_eq!(render(&none, &service(None)).unwrap_err().code, Code::WebhookOff);
    let port = address(Endpoint::Service { namespace: "n".into(), name: "s".into(), port: 8443 }, None);
    assert_eq!(render(&cluster(13), &port).unwrap_err().code, Code::EngineUnavailable);
    assert_eq!(render(&cluster(36), &port).unwrap()[0]["webhooks"][0]["clientConfig"]["service"]["port"], 8443);
}
