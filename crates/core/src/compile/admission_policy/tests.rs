use super::*;
use crate::api::pod_security::Standard;
use crate::inject::Conflict;
use crate::policy::Site;
use crate::workload::{Kind, Workload};
use serde_json::{Value, json};
use std::sync::Arc;

fn site() -> Site {
    Site { native_sidecars: true, ..Site::new("scpol-system", [], []) }
}

fn policies(specs: &[Value]) -> Vec<Arc<Policy>> {
    let parse = |(index, spec): (usize, &Value)| {
        let object = json!({ "metadata": { "name": format!("p{index}"), "uid": format!("u{index}") }, "spec": spec });
        Arc::new(Policy::parse(&object, &site()).unwrap())
    };
    specs.iter().enumerate().map(parse).collect()
}

fn rendered(specs: &[Value]) -> Result<Vec<Value>, Unavailable> {
    let policies = policies(specs);
    render(&policies[0].kinds[0], &policies, &Capabilities::default(), &site())
}

fn names(objects: &[Value]) -> Vec<String> {
    let name = |object: &Value| {
        format!("{} {}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap())
    };
    objects.iter().map(name).collect()
}

fn container(name: &str) -> Value {
    json!({ "containers": [{ "name": name, "image": "x" }] })
}

#[test]
fn what_is_registered_follows_from_what_policies_can_do() {
    let objects = rendered(&[json!({ "template": container("a") })]).unwrap();
    let injecting =
        ["MutatingAdmissionPolicy scpol-deployments.apps", "MutatingAdmissionPolicyBinding scpol-deployments.apps"];
    assert_eq!(names(&objects), injecting);
    let judging =
        json!({ "validations": [{ "expression": "true" }], "targets": [{ "group": "", "resource": "secrets" }] });
    let expected =
        ["ValidatingAdmissionPolicy scpol-secrets-ignore", "ValidatingAdmissionPolicyBinding scpol-secrets-ignore"];
    assert_eq!(names(&rendered(&[judging]).unwrap()), expected);
    let refusing = json!({ "template": container("a"), "failurePolicy": "Fail" });
    let expected = [
        injecting[0],
        injecting[1],
        "ValidatingAdmissionPolicy scpol-deployments.apps",
        "ValidatingAdmissionPolicyBinding scpol-deployments.apps",
    ];
    let objects = rendered(&[refusing]).unwrap();
    assert_eq!(names(&objects), expected);
    for object in &objects {
        assert_eq!(object["metadata"]["labels"], json!({ "app.kubernetes.io/managed-by": "scpol" }));
        let owners = object["metadata"]["ownerReferences"].as_array().unwrap();
        let is_injecting = object["kind"].as_str().unwrap().starts_with("Mutating");
        assert_eq!(owners.first().map(|owner| &owner["uid"]), (!is_injecting).then_some(&json!("u0")), "{object}");
        assert_eq!(revision_of(object).is_some(), !object["kind"].as_str().unwrap().ends_with("Binding"));
    }
}

#[test]
fn the_revision_changes_with_what_is_registered_and_with_nothing_else() {
    let revision = |spec: Value| revision_of(&rendered(&[spec]).unwrap()[0]).unwrap();
    let one = revision(json!({ "template": container("a") }));
    assert_eq!(one.len(), 16);
    assert_eq!(one, revision(json!({ "template": container("a"), "validations": [] })));
    assert_ne!(one, revision(json!({ "template": container("b") })));
    assert_ne!(one, revision(json!({ "template": container("a"), "namespaces": ["x"] })));
}

#[test]
fn only_policies_with_conditions_beside_others_have_mutations_of_their_own() {
    let plain = json!({ "template": container("a") });
    let asking = |name: &str| json!({ "template": container(name), "matchConditions": [{ "name": "c", "expression": "object.spec.x == 1" }] });
    for (specs, expected) in [
        (vec![plain.clone()], 1),
        (vec![asking("b")], 1),
        (vec![plain.clone(), plain.clone()], 1),
        (vec![plain.clone(), asking("b")], 3),
        (vec![asking("c"), plain, asking("b")], 4),
    ] {
        let mutations = rendered(&specs).unwrap()[0]["spec"]["mutations"].as_array().unwrap().len();
        assert_eq!(mutations, expected, "{specs:?}");
    }
}

#[test]
fn versions_that_are_named_are_matched_exactly() {
    let of = |versions: &[&str]| {
        let target = |version: &&str| json!({ "group": "apps", "version": version, "resource": "deployments" });
        let targets: Vec<Value> = versions.iter().map(target).collect();
        rendered(&[json!({ "targets": targets, "template": container("a") })]).unwrap()[0]["spec"]["matchConstraints"]
            .clone()
    };
    assert_eq!(
        (&of(&["*"])["matchPolicy"], &of(&["*"])["resourceRules"][0]["apiVersions"]),
        (&json!("Equivalent"), &json!(["*"]))
    );
    assert_eq!(
        (&of(&["v1"])["matchPolicy"], &of(&["v1"])["resourceRules"][0]["apiVersions"]),
        (&json!("Exact"), &json!(["v1"]))
    );
}

#[test]
fn what_cannot_be_said_exactly_is_not_said_and_the_policy_and_the_reason_are_told() {
    let large: Vec<Value> =
        (0..60).map(|index| json!({ "name": format!("c{index}"), "image": "x", "args": ["y".repeat(900)] })).collect();
    let all = |field: &str| json!([{ "name": "c", "expression": field }]);
    let custom = |path: &str| json!({ "targets": [{ "group": "example.org", "resource": "rollouts", "templatePath": path }], "template": container("a") });
    for (specs, expected) in [
        (
            vec![
                json!({ "template": { "containers": [{ "name": "a", "image": "x", "securityContext": { "runAsUser": 9_007_199_254_740_992_i64 } }] } }),
            ],
            "`9007199254740992`",
        ),
        (vec![custom("spec.a"), custom("spec.b")], "lies at `spec.b` for it, at `spec.a` for SidecarPolicy `p0`"),
        (
            vec![
                json!({ "template": container("a") }),
                json!({ "template": container("b"), "matchConditions": all("size(object) > 1") }),
            ],
            "condition `c`",
        ),
        (
            vec![
                json!({ "template": { "env": (0..250).map(|n| json!({ "name": format!("V{n:0>90}"), "value": "x".repeat(90) })).collect::<Vec<_>>() } }),
            ],
            "characters",
        ),
    ] {
        let unavailable = rendered(&specs).unwrap_err();
        assert_eq!(unavailable.code, Code::NotExpressible);
        assert!(unavailable.message.contains(expected), "{unavailable}");
        assert!(unavailable.message.starts_with("SidecarPolicy `p"), "{unavailable}");
    }
    // The largest allowed template is accepted.
    assert!(rendered(&[json!({ "template": { "containers": large } })]).is_ok());
}

#[test]
fn the_api_must_be_served_in_version_one() {
    assert_eq!(check(&Capabilities::default()).unwrap_err().code, Code::AdmissionPolicyApiOff);
}

#[test]
fn servers_below_1_33_cannot_hide_fields_from_expressions() {
    let judging = |expression: &str| policies(&[json!({ "validations": [{ "expression": expression }] })]);
    let on = |minor, policies: &[Arc<Policy>]| {
        let mut cluster = Capabilities::default();
        cluster.minor = (1, minor);
        validating(&policies[0].kinds[0], policies, &cluster, &site()).map_err(|unavailable| unavailable.code)
    };
    for (minor, expression, expected) in [
        (30, "object.spec.replicas > 1", None),
        (32, "object.metadata.name != ''", Some(Code::NotExpressible)),
        (33, "object.metadata.name != ''", None),
    ] {
        assert_eq!(on(minor, &judging(expression)).err(), expected, "{minor} {expression}");
    }
}

/// For a workload without earlier additions, the marker is one literal, with annotations and without. If the marker
/// depends on the workload, there is no such shortcut.
#[test]
fn what_is_added_to_a_workload_that_has_nothing_of_it_is_known_beforehand() {
    let expression = |template: Value| {
        let spec = json!({ "targets": [{ "group": "", "resource": "pods" }], "template": template });
        let objects = rendered(&[spec]).unwrap();
        objects[0]["spec"]["mutations"][0]["jsonPatch"]["expression"].as_str().unwrap().to_owned()
    };
    let literals = |template: Value| expression(template).matches(r#"\"added\":[\"/"#).count();
    // Two for pods that end by themselves, where the container is a native sidecar, because that list may have to be
    // created.
    assert_eq!(literals(container("a")), 2);
    let native = json!({ "initContainers": [{ "name": "a", "image": "x" }] });
    assert_eq!(literals(native), 0);
    assert_eq!(
        literals(json!({ "containers": [{ "name": "a", "image": "x" }], "metadata": { "annotations": { "a": "b" } } })),
        0
    );
    assert_eq!(literals(json!({ "env": [{ "name": "A", "value": "b" }] })), 0);
    let large = json!([{ "name": "a", "image": "x", "args": ["y".repeat(900)] }]);
    let many: Vec<Value> =
        (0..20).map(|n| json!({ "name": format!("c{n}"), "image": "x", "args": ["y".repeat(900)] })).collect();
    assert_eq!(literals(json!({ "containers": large })), 2);
    assert_eq!(literals(json!({ "containers": many })), 0);
}

/// `expression` with its variables inlined. Variables that never fail are bound once. The others replace their names,
/// because the server evaluates them only where they are used.
fn inlined(expression: &str, variables: &super::environment::Variables) -> String {
    const TOTAL: [&str; 10] =
        ["at", "spec", "names", "pod", "annotation", "namespace", "enforced", "items", "claims", "ours"];
    let mut text = expression.to_owned();
    for (name, own) in variables.iter().collect::<Vec<_>>().into_iter().rev() {
        let word = regex::Regex::new(&format!(r"(?-u:\bvariables\.{name}\b)")).unwrap();
        if !word.is_match(&text) {
            continue;
        }
        let is_total = TOTAL.contains(&name.split('_').next().unwrap());
        let instead = if is_total { format!("bound_{name}") } else { format!("({own})") };
        text = word.replace_all(&text, regex::NoExpand(&instead)).into_owned();
        if is_total {
            text = format!("[{own}].all(bound_{name}, {text})");
        }
    }
    text
}

/// As [`inlined`], for a text.
fn text_of(expression: &str, variables: &super::environment::Variables) -> String {
    let mut text = expression.to_owned();
    for (name, own) in variables.iter().collect::<Vec<_>>().into_iter().rev() {
        let word = regex::Regex::new(&format!(r"(?-u:\bvariables\.{name}\b)")).unwrap();
        text = word.replace_all(&text, regex::NoExpand(&format!("({own})"))).into_owned();
    }
    text
}

/// The server's decoded objects have no nulls and no empty values.
fn is_decoded(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty() && items.iter().all(is_decoded),
        Value::Object(fields) => fields.values().all(is_decoded),
        _ => true,
    }
}

/// Whether `policy` fits `workload`, by the expressions and by [`inject::check`], for each form of its template that
/// applies. The first reason that expressions give why it does not, on the oldest server.
struct Verdict {
    fits: bool,
    checked: Result<(), Conflict>,
    source: String,
    /// None if it is longer than what is registered.
    reason: Option<Option<(Code, String)>>,
}

fn verdicts(policy: &Policy, workload: &Workload, site: &Site) -> Vec<Verdict> {
    use admission_cel::{Budget, Dialect, Expression, Gives, Variables as Seen};
    let mut variables = super::environment::Variables::default();
    let access = super::access::Access::of(&workload.kind, &mut variables);
    let deliveries = super::delivery::Delivery::all(policy, "true", &workload.kind, site, &access, &mut variables);
    let seen = Seen { object: &workload.body, namespace: workload.namespace_object.as_deref(), template: None };
    let ask = |expression: &str, variables: &super::environment::Variables| {
        let source = inlined(expression, variables);
        let expression = Expression::compile(&source, Gives::Bool, Dialect::NEWEST)
            .unwrap_or_else(|error| panic!("{error}\n{}", &source[..source.len().min(9000)]));
        expression.test(&seen, &mut Budget::match_conditions()).unwrap_or_else(|error| panic!("{error}\n{source}"))
    };
    let forms = policy.forms(&workload.kind);
    let claimed = super::presence::Claimed { policy, forms, access: &access, policies: &[policy] };
    let first = |delivery: &super::delivery::Delivery<'_>| {
        let mut variables = super::environment::Variables::default();
        super::access::Access::of(&workload.kind, &mut variables);
        let lacking = super::reasons::Lacking { delivery, others: &[], claimed: &claimed };
        let reasons = lacking.reasons(&mut variables).ok()?;
        let told = super::reasons::first(&reasons, |code| format!("{code}: "), "\"\"");
        if told.len() > super::validating::MAX_WHY {
            return None;
        }
        let source = text_of(&told, &variables);
        let told = Expression::compile(&source, Gives::String, Dialect::OLDEST);
        let told = told.unwrap_or_else(|error| panic!("{error}\n{}", &source[..source.len().min(9000)]));
        let told =
            told.text(&seen, &mut Budget::match_conditions()).unwrap_or_else(|error| panic!("{error}\n{source}"));
        Some(told.split_once(": ").map(|(code, text)| {
            let code = Code::ALL.iter().find(|known| known.to_string() == code).expect("a code");
            (*code, text.to_owned())
        }))
    };
    let mut verdicts = Vec::new();
    for delivery in &deliveries {
        let own = super::own::of(delivery, &deliveries, &access, &mut variables);
        let Ok(fits) = super::conflict::fits(delivery, &access, own.as_ref(), &mut variables) else { continue };
        if ask(&delivery.matches, &variables) {
            let checked = crate::inject::check(workload, delivery.template, &[delivery.template], Standard::NEWEST);
            let reason = first(delivery);
            verdicts.push(Verdict { fits: ask(&fits, &variables), checked, source: fits, reason });
        }
    }
    verdicts
}

/// What is wrong with the `reason` of a ValidatingAdmissionPolicy: it has the code of [`inject::check`], and begins with the same
/// name.
fn untold(checked: &Result<(), Conflict>, reason: Option<&(Code, String)>) -> Option<String> {
    // The expressions for these run only on newer servers, and a server takes no custom resource of another shape.
    const UNSAID: [Code; 4] =
        [Code::PodResourcesExceeded, Code::AnnotationsTooLarge, Code::NamespaceForbids, Code::NoPodTemplate];
    let name = |text: &str| text.split('`').nth(1).map(str::to_owned);
    let is_right = match (checked, reason) {
        (Ok(()), None) => true,
        (Ok(()), Some(_)) => false,
        (Err(conflict), None) => {
            let is_rare = ["mount `", "HostProcess", "host port"].iter().any(|what| conflict.message.contains(what));
            UNSAID.contains(&conflict.code) || is_rare
        }
        (Err(conflict), Some((code, text))) => {
            let is_without_name = *code == Code::VolumeMissing || text.contains("host port");
            conflict.code == *code && (is_without_name || name(&conflict.message) == name(text))
        }
    };
    (!is_right).then(|| format!("{checked:?} {reason:?}"))
}

#[test]
fn what_fits_into_a_workload_is_what_fits_elsewhere() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let site = Site { trust: crate::api::trust::Trust::unbounded(), ..site() };
    let (mut asked, mut refused, mut told, mut faults) = (0, 0, 0, Vec::new());
    for entry in std::fs::read_dir(folder).unwrap() {
        let folder = entry.unwrap().path();
        let read = |file: &str| -> Vec<Value> {
            serde_saphyr::from_multiple(&std::fs::read_to_string(folder.join(file)).unwrap()).unwrap_or_default()
        };
        let (policies, mut documents) = (read("policy.yaml"), read("workload.yaml"));
        let Some(body) = documents.pop() else { continue };
        let namespace = documents.into_iter().find(|document| document["kind"] == "Namespace");
        let name = body["metadata"]["namespace"].clone();
        let namespace = namespace.unwrap_or_else(|| json!({ "metadata": { "name": name } }));
        for policy in policies.iter().filter_map(|policy| Policy::parse(policy, &site).ok()) {
            if !super::delivery::has_words(&policy) {
                continue;
            }
            let Some(kind) =
                policy.kinds.iter().find(|kind| kind.kind.as_deref() == body["kind"].as_str() || !kind.is_in_table())
            else {
                continue;
            };
            // The same workload, as if its types were unknown.
            let free = Arc::new(Kind::at("example.org", "things", kind.pod_path.clone()));
            let kinds =
                if is_decoded(&body) && kind.pod_path.is_some() { vec![kind.clone(), free] } else { vec![free] };
            for kind in kinds.iter().filter(|kind| kind.pod_path.is_some()) {
                let workload = Workload::new(kind, body.clone()).within(Some(Arc::new(namespace.clone())));
                // The server rejects a pod without containers, and items without a name.
                let is_named = |list: &str| {
                    let items = workload.pod_spec().and_then(|spec| spec.get(list)?.as_array());
                    items.is_some_and(|items| items.iter().all(|item| item["name"].is_string()))
                };
                let is_decoded = is_named("containers")
                    && (workload.pod_spec().is_some_and(|spec| !spec.contains_key("initContainers"))
                        || is_named("initContainers"));
                if kind.is_in_table() && !(is_decoded && body["metadata"].is_object()) || workload.pod().is_none() {
                    continue;
                }
                for Verdict { fits, checked, source, reason } in verdicts(&policy, &workload, &site) {
                    // The server rejects other shapes.
                    if kind.is_in_table()
                        && checked.as_ref().is_err_and(|conflict| conflict.code == Code::NoPodTemplate)
                    {
                        continue;
                    }
                    asked += 1;
                    refused += usize::from(!fits);
                    assert_eq!(fits, checked.is_ok(), "{folder:?} {} {checked:?}\n{source}", kind.resource);
                    let Some(reason) = reason else { continue };
                    told += usize::from(reason.is_some());
                    faults.extend(untold(&checked, reason.as_ref()).map(|fault| format!("{folder:?}: {fault}")));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(asked > 500 && refused > 100 && told > 80, "{asked} {refused} {told}");
}

#[test]
fn who_stays_beside_others_is_the_same_in_both_languages() {
    use crate::ranking::{Standing, standings};
    use admission_cel::{Budget, Dialect, Expression, Gives, Variables as Seen};
    // Each collides with the next one.
    let chain = |at: usize, priority: i32| {
        let earlier = at.checked_sub(1).map(|before| json!({ "name": format!("c{before}"), "image": "b" }));
        let own = json!({ "name": format!("c{at}"), "image": "a" });
        let containers: Vec<Value> = earlier.into_iter().chain([own]).collect();
        json!({ "priority": priority, "template": { "containers": containers } })
    };
    for priorities in [[3, 2, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [2, 1, 1, 0]] {
        let specs: Vec<Value> = priorities.iter().enumerate().map(|(at, priority)| chain(at, *priority)).collect();
        let policies = policies(&specs);
        for matching in 0..16 {
            let does_match = |at: usize| matching >> at & 1 == 1;
            let (kind, mut variables) = (&policies[0].kinds[0], super::environment::Variables::default());
            let access = super::access::Access::of(kind, &mut variables);
            let mut deliveries = Vec::new();
            for (at, policy) in policies.iter().enumerate() {
                let matches = does_match(at).to_string();
                deliveries.extend(super::delivery::Delivery::all(
                    policy,
                    &matches,
                    kind,
                    &site(),
                    &access,
                    &mut variables,
                ));
            }
            let among: Vec<usize> = (0..4).filter(|at| does_match(*at)).collect();
            let of_those: Vec<i32> = among.iter().map(|at| priorities[*at]).collect();
            let expected = standings(&of_those, |one, other| among[one].abs_diff(among[other]) == 1);
            for (at, stays) in super::conflict::staying(&deliveries, &mut variables).iter().enumerate() {
                let source = inlined(stays, &variables);
                let expression = Expression::compile(&source, Gives::Bool, Dialect::NEWEST).unwrap();
                let seen = Seen { object: &Value::Null, namespace: None, template: None };
                let found = expression.test(&seen, &mut Budget::match_conditions()).unwrap();
                let place = among.iter().position(|other| *other == at);
                let expected = place.is_some_and(|place| expected[place] == Standing::Stays);
                assert_eq!(found, expected, "{priorities:?} {matching:04b} {at}: {source}");
            }
        }
    }
}

#[test]
fn an_earlier_content_is_let_through_under_fail_and_nothing_else_under_its_marker() {
    use crate::content::{Content, Revision};
    use crate::decision::Decision;
    use crate::policy::Policies;
    use admission_cel::{Budget, Dialect, Expression, Gives, Variables as Seen};
    let template = |image: &str| json!({ "containers": [{ "name": "a", "image": image }], "env": [{ "name": "TEAM", "value": "x" }] });
    let of = |image: &str, refuses: bool| {
        let spec = json!({ "template": template(image), "failurePolicy": if refuses { "Fail" } else { "Ignore" } });
        policies(&[spec]).remove(0)
    };
    let (old, older, other) = (of("x:2", true), of("x:1", true), of("x:9", true));
    let revision = |policy: &Policy| Arc::new(Revision::new(&policy.name, 1, Content::of(&policy.spec).unwrap()));
    let knowing = |refuses| Policy::clone(&of("x:3", refuses)).knowing([revision(&old), revision(&older)].into());
    let pod = json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "web", "image": "web:1" }] } });
    let body = json!({ "metadata": { "name": "web", "namespace": "shop" }, "spec": { "template": pod } });
    let bare = Workload::new(Kind::find("apps", "deployments").unwrap(), body);
    let created = |policy: &Arc<Policy>| {
        bare.patched(&Decision::of(&Policies::new([policy.clone()]), &bare, &site()).plan(&bare))
    };
    let edited = |image: &str| {
        let mut body = created(&old);
        body["spec"]["template"]["spec"]["containers"][1]["image"] = json!(image);
        body
    };
    for (what, body, refuses, expected) in [
        ("the last revision", created(&old), true, true),
        ("the one before", created(&older), true, true),
        ("a revision that is not stored", created(&other), true, false),
        ("nothing", bare.body.clone(), true, false),
        ("other content under a known marker", edited("evil:1"), true, false),
        ("the content of one revision under the marker of another", edited("x:1"), true, false),
        ("nothing is refused", created(&old), false, false),
    ] {
        let (policy, mut variables) = (knowing(refuses), super::environment::Variables::default());
        let access = super::access::Access::of(&bare.kind, &mut variables);
        let rows = super::rows::Rows { access: &access, kind: &bare.kind, policies: &[&policy], old: None };
        let terms = rows.carries_past(&policy, &mut variables);
        let source = inlined(&super::cel::any(&terms), &variables);
        let expression = Expression::compile(&source, Gives::Bool, Dialect::NEWEST).unwrap();
        let seen = Seen { object: &body, namespace: None, template: None };
        assert_eq!(expression.test(&seen, &mut Budget::match_conditions()).unwrap(), expected, "{what}: {source}");
        assert_eq!(terms.len(), if refuses { 2 } else { 0 });
    }
}
