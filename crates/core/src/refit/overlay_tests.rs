//! Overlays of workloads, from a create to the end of the policy.

use super::*;
use crate::content::Content;
use crate::decision::Outcome;
use crate::workload::Kind;
use serde_json::json;

fn site() -> Site {
    Site { native_sidecars: true, minor: Some(37), ..Site::new("scpol-system", [], []) }
}

fn policy_of(name: &str, more: &Value) -> Arc<Policy> {
    let mut spec = json!({
        "targets": [{"group": "apps", "resource": "deployments"}, {"group": "", "resource": "pods"}],
        "template": {"containers": [{
            "name": "proxy", "image": "proxy:1", "env": [{"name": "LEVEL", "value": "info"}, {"name": "FIXED", "value": "1"}],
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "128Mi"}},
        }]},
        "parameters": [
            {"name": "memory", "type": "Quantity", "minimum": "64Mi", "maximum": "1Gi", "overridable": true,
             "paths": ["containers[proxy].resources.requests.memory", "containers[proxy].resources.limits.memory"]},
            {"name": "level", "enum": ["debug", "info"], "paths": ["containers[proxy].env[LEVEL].value"], "overridable": true},
        ],
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Arc::new(Policy::parse(&json!({"metadata": {"name": name}, "spec": spec}), &site()).unwrap())
}

fn policy() -> Arc<Policy> {
    policy_of("mesh", &json!({}))
}

fn deployment(containers: &[Value]) -> Workload {
    let template = json!({"metadata": {"annotations": {"own": "1"}}, "spec": {"containers": containers}});
    let metadata = json!({"name": "web", "namespace": "shop", "uid": "u"});
    Workload::new(
        Kind::find("apps", "deployments").unwrap(),
        json!({"metadata": metadata, "spec": {"template": template}}),
    )
    .within(Some(Arc::new(json!({"metadata": {"name": "shop"}}))))
}

fn pod(containers: &[Value], annotations: &Value) -> Workload {
    let metadata = json!({"name": "web", "namespace": "shop", "annotations": annotations});
    Workload::new(Kind::find("", "pods").unwrap(), json!({"metadata": metadata, "spec": {"containers": containers}}))
}

fn app() -> Value {
    json!({"name": "app", "image": "app:1"})
}

fn overlay(limit: &str) -> Value {
    json!({"name": "proxy", "resources": {"limits": {"memory": limit}}})
}

fn created(all: &[&Arc<Policy>], workload: &Workload) -> Workload {
    let mut decision = Decision::of(&Policies::new(all.iter().map(|it| Arc::clone(it))), workload, &site());
    let patch = decision.plan(workload);
    assert_eq!(
        decision.inject.len(),
        all.len(),
        "{:?}",
        decision.rest.iter().map(|left| &left.reason).collect::<Vec<_>>()
    );
    workload.with_body(workload.patched(&patch))
}

fn stored(policy: &Arc<Policy>, workload: &Workload) -> Workload {
    let mut stored = created(&[policy], workload);
    stored.body["metadata"]["resourceVersion"] = json!("7");
    stored
}

fn containers(workload: &Workload) -> &Vec<Value> {
    workload.pod().unwrap()["spec"]["containers"].as_array().unwrap()
}

fn proxy(workload: &Workload) -> &Value {
    containers(workload).iter().find(|container| container["name"] == "proxy").unwrap()
}

fn proxy_mut(workload: &mut Workload) -> &mut Value {
    let containers = workload.body["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap();
    containers.iter_mut().find(|container| container["name"] == "proxy").unwrap()
}

fn memory(workload: &Workload) -> (&str, &str) {
    let resources = &proxy(workload)["resources"];
    (resources["requests"]["memory"].as_str().unwrap(), resources["limits"]["memory"].as_str().unwrap())
}

fn of_marker(workload: &Workload) -> Vec<String> {
    let marker = marker::read(workload, "mesh").unwrap();
    marker.values.into_iter().chain(marker.added).collect()
}

fn revision(policy: &Policy) -> Revision {
    Revision::new(&policy.name, 1, Content::of(&policy.spec).unwrap())
}

fn update(workload: &Workload, from: &Policy, to: &Arc<Policy>) -> Result<Workload, String> {
    let policies = Policies::new([to.clone()]);
    let goal = Goal { to, policies: &policies, site: &site() };
    let change = template_update(workload, Some(&revision(from)), goal).map_err(|left| left.message)?;
    let mut patched = workload.body.clone();
    json_patch::patch(&mut patched, &change.patch).unwrap();
    assert_eq!(patched, change.body, "the patch is one of what is stored");
    Ok(workload.with_body(change.body))
}

#[test]
fn an_overlay_sets_values_and_an_undo_gives_it_back() {
    let (mesh, logs) = (
        policy(),
        policy_of(
            "logs",
            &json!({
                "template": {"containers": [{"name": "agent", "image": "agent:1", "resources": {"limits": {"memory": "1Gi"}}}]},
                "parameters": [{"name": "memory", "type": "Quantity", "paths": ["containers[agent].resources.limits.memory"], "overridable": true}],
            }),
        ),
    );
    let agent = json!({"name": "agent", "image": "auto"});
    let web = json!({"name": "web", "image": "web:1"});
    for all in [
        vec![overlay("512Mi"), app(), agent.clone(), web.clone()],
        vec![app(), agent.clone(), overlay("512Mi")],
        vec![agent, overlay("512Mi"), web],
    ] {
        let original = deployment(&all);
        let injected = created(&[&mesh, &logs], &original);
        assert_eq!(memory(&injected), ("512Mi", "512Mi"));
        assert_eq!(containers(&injected).len(), all.len());
        assert_eq!(inject::undo(&injected, None).unwrap().body, original.body);
        for order in [["mesh", "logs"], ["logs", "mesh"]] {
            let undone = order.iter().fold(injected.clone(), |workload, policy| {
                workload.with_body(inject::undo(&workload, Some(policy)).unwrap().body)
            });
            assert_eq!(undone.body, original.body, "{order:?}");
        }
        let mut again = Decision::of(&Policies::new([mesh.clone(), logs.clone()]), &injected, &site());
        assert_eq!((again.plan(&injected), again.inject.len()), (Patch::default(), 0));
    }
}

#[test]
fn what_admission_gives_each_container_of_a_pod_is_nothing_of_an_overlay() {
    let policy = policy();
    let token = json!([{"name": "kube-api-access-x", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]);
    let defaults = json!({
        "image": "auto", "imagePullPolicy": "Always", "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        "volumeMounts": token, "resources": {},
    });
    let of_pod = |resources: Value, told: &str| {
        let mut overlay = json!({"name": "proxy"});
        overlay.as_object_mut().unwrap().extend(defaults.as_object().unwrap().clone());
        overlay["resources"] = resources;
        pod(&[app(), overlay], &json!({"kubernetes.io/limit-ranger": told}))
    };
    let ranged = "LimitRanger plugin set: cpu request for container app; cpu, memory request for container proxy; memory limit for container proxy";
    for (resources, told, expected) in [
        (json!({}), "", "128Mi"),
        (json!({"limits": {"memory": "256Mi"}, "requests": {"memory": "256Mi"}}), "", "256Mi"),
        (json!({"limits": {"memory": "256Mi"}, "requests": {"cpu": "1", "memory": "256Mi"}}), ranged, "128Mi"),
        (
            json!({"limits": {"memory": "256Mi"}, "requests": {"cpu": "1", "memory": "256Mi"}}),
            "LimitRanger plugin set: cpu request for container proxy",
            "256Mi",
        ),
    ] {
        let pod = of_pod(resources.clone(), told);
        let injected = created(&[&policy], &pod);
        assert_eq!(memory(&injected), (expected, expected), "{resources}");
        let marker = marker::read(&injected, "mesh").unwrap();
        assert!(!marker.to_value().to_string().contains("terminationMessage"), "{marker:?}");
    }
    for (field, value) in [("mountPath", "/own"), ("name", "own"), ("readOnly", "false")] {
        let mut own = of_pod(json!({}), "");
        own.body["spec"]["containers"][1]["volumeMounts"][0][field] = json!(value);
        let decision = Decision::of(&Policies::new([policy.clone()]), &own, &site());
        assert!(
            decision.rest[0].reason.detail.contains("without `volumeMounts`"),
            "{}",
            decision.rest[0].reason.detail
        );
    }
}

#[test]
fn a_value_that_is_applied_later_is_a_new_value_and_no_edit() {
    let policy = policy();
    let policies = Policies::new([policy.clone()]);
    for first in [deployment(&[app(), overlay("256Mi")]), deployment(&[app()])] {
        let mut applied = stored(&policy, &first);
        // As by `kubectl apply` of a manifest without an image.
        proxy_mut(&mut applied)["resources"]["limits"]["memory"] = json!("512Mi");
        proxy_mut(&mut applied)["env"][0]["value"] = json!("debug");
        assert_eq!(policy.edits(&applied), []);
        let told = policy.valued_for(&applied, &policies, &site()).outdated_values().unwrap();
        assert!(told.contains("now `512Mi`") && told.contains("`level` has another value now"), "{told}");
        let updated = update(&applied, &policy, &policy).unwrap();
        assert_eq!((memory(&updated), &proxy(&updated)["env"][0]["value"]), (("512Mi", "512Mi"), &json!("debug")));
        assert_eq!(carries(&updated, &policy, &site()), Carries::This);
        assert_eq!(policy.valued_for(&updated, &policies, &site()).outdated_values(), None);
        // A copy gets them, too.
        let mut copy = applied.clone();
        copy.body["metadata"] = json!({"name": "copy", "namespace": "shop"});
        let copied = created(&[&policy], &copy);
        assert_eq!(memory(&copied), ("512Mi", "512Mi"));
        let next = policy_of("mesh", &json!({"position": {"containers": "Before"}}));
        let rolled = update(&applied, &policy, &next).unwrap();
        assert_eq!((memory(&rolled), &containers(&rolled)[1]["name"]), (("512Mi", "512Mi"), &json!("proxy")));
    }
}

#[test]
fn a_value_that_is_taken_out_of_an_overlay_is_that_of_the_next_source() {
    let policy = policy();
    let mut level = overlay("256Mi");
    level["env"] = json!([{"name": "LEVEL", "value": "debug"}]);
    let mut applied = stored(&policy, &deployment(&[app(), level]));
    proxy_mut(&mut applied)["env"].as_array_mut().unwrap().remove(0);
    let updated = update(&applied, &policy, &policy).unwrap();
    assert_eq!(proxy(&updated)["env"][0], json!({"name": "LEVEL", "value": "info"}));
    assert_eq!(memory(&updated), ("256Mi", "256Mi"));
    // What no overlay has set is an edit, as ever.
    let mut edited = stored(&policy, &deployment(&[app(), overlay("256Mi")]));
    proxy_mut(&mut edited)["env"].as_array_mut().unwrap().remove(0);
    assert!(update(&edited, &policy, &policy_of("mesh", &json!({"position": {"containers": "Before"}}))).is_err());
    assert!(!policy.edits(&edited).is_empty());
}

#[test]
fn a_value_that_is_applied_out_of_bounds_is_an_edit() {
    let policy = policy();
    let mut applied = stored(&policy, &deployment(&[app(), overlay("256Mi")]));
    proxy_mut(&mut applied)["resources"]["limits"]["memory"] = json!("4Gi");
    let edits = inject::all_told(&policy.edits(&applied));
    assert!(edits.contains("`4Gi`") && edits.contains("`256Mi`"), "{edits}");
    let next = policy_of("mesh", &json!({"position": {"containers": "Before"}}));
    let left = update(&applied, &policy, &next).unwrap_err();
    assert!(left.contains("`/spec/template/spec/containers/proxy`, which the marker lists"), "{left}");
}

#[test]
fn an_image_that_stands_for_none_is_that_of_the_policy_again() {
    let policy = policy();
    let mut applied = stored(&policy, &deployment(&[app(), json!({"name": "proxy", "image": "auto"})]));
    proxy_mut(&mut applied)["image"] = json!("auto");
    assert!(!policy.edits(&applied).is_empty(), "until a rollout comes");
    let next = policy_of("mesh", &json!({"position": {"containers": "Before"}}));
    assert_eq!(proxy(&update(&applied, &policy, &next).unwrap())["image"], "proxy:1");
}

#[test]
fn the_end_of_a_policy_takes_its_overlay_along() {
    let policy = policy();
    let stored = stored(&policy, &deployment(&[overlay("256Mi"), app()]));
    let change = removal(&stored, &revision(&policy), &Policies::new([])).unwrap();
    assert_eq!(change.body["spec"]["template"]["spec"]["containers"], json!([app()]));
}

#[test]
fn a_stored_workload_with_an_overlay_gets_the_sidecar_in_its_place() {
    let policy = policy();
    let mut workload =
        deployment(&[app(), json!({"name": "proxy", "image": "auto", "resources": {"limits": {"memory": "256Mi"}}})]);
    workload.body["metadata"]["resourceVersion"] = json!("7");
    let updated = update(&workload, &policy, &policy).unwrap();
    assert_eq!((memory(&updated), containers(&updated).len()), (("256Mi", "256Mi"), 2));
}

#[test]
fn an_update_that_takes_the_sidecar_away_and_has_an_overlay_gets_it_back() {
    let policy = policy_of(
        "mesh",
        &json!({"failurePolicy": "Fail", "targets": [{"group": "apps", "resource": "deployments", "operations": ["CREATE", "UPDATE"]}]}),
    );
    let policies = Policies::new([policy.clone()]);
    let old = stored(&policy, &deployment(&[app(), overlay("256Mi")]));
    let new = deployment(&[app(), overlay("512Mi")]);
    let mut decision = Decision::of_update(&policies, [(&old).into(), (&new).into()], &site(), |_| true, |_| true);
    let patch = decision.plan(&new);
    let updated = new.with_body(new.patched(&patch));
    assert_eq!((memory(&updated), containers(&updated).len()), (("512Mi", "512Mi"), 2));
    assert!(decision.refusal().is_none());
    // The container alone is taken away: the author has the overlay no more.
    let mut robbed = old.clone();
    robbed.body["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().pop();
    let mut decision = Decision::of_update(&policies, [(&old).into(), (&robbed).into()], &site(), |_| true, |_| true);
    let patch = decision.plan(&robbed);
    let updated = robbed.with_body(robbed.patched(&patch));
    assert_eq!(memory(&updated), ("128Mi", "128Mi"));
    assert_eq!(of_marker(&updated), ["/spec/template/spec/containers/proxy"]);
}

#[test]
fn a_restart_brings_the_values_of_overlays() {
    let policy = policy();
    let policies = Policies::new([policy.clone()]);
    let mut applied = stored(&policy, &deployment(&[app(), overlay("256Mi")]));
    proxy_mut(&mut applied)["resources"]["limits"]["memory"] = json!("512Mi");
    let goal = Goal { to: &policy, policies: &policies, site: &site() };
    let known = revision(&policy);
    let asked = Asked { restarted: Some("2026-01-01T13:00:00Z".parse().unwrap()), ..Asked::default() };
    let NextAction::RestartTemplate(patch) = next_action(&applied, Some(&known), goal, &asked) else { panic!() };
    let restarted = applied.with_body(applied.patched(&patch));
    assert_eq!(memory(&restarted), ("512Mi", "512Mi"));
}

#[test]
fn a_forged_overlay_of_a_marker_is_worth_what_an_overlay_is_worth() {
    let policy = policy();
    let honest = created(&[&policy], &deployment(&[app(), overlay("256Mi")]));
    let key = policy.marker_key();
    for (from, to, expected) in [
        ("\\\"256Mi\\\"", "\\\"512Mi\\\"", Some("512Mi")),
        ("\\\"256Mi\\\"", "\\\"4Gi\\\"", None),
        ("\\\"limits\\\"", "\\\"claims\\\"", Some("128Mi")),
        // None that can be read.
        ("containers/1=", "containers/99999999999999999999=", Some("128Mi")),
        ("containers/1=", "ephemeralContainers/1=", Some("128Mi")),
    ] {
        let text = honest.pod_annotation(key).unwrap();
        let escaped = |text: &str| text.replace("\\\"", "\\\\\"").replace("\\\\\"", "\\\"");
        let forged = text.replace(&escaped(from), &escaped(to));
        assert_ne!(text, forged, "{from}");
        let mut body = honest.body.clone();
        body["spec"]["template"]["metadata"]["annotations"][key] = json!(forged);
        let forged = honest.with_body(body);
        let mut decision = Decision::of(&Policies::new([policy.clone()]), &forged, &site());
        let patch = decision.plan(&forged);
        let after = forged.with_body(forged.patched(&patch));
        match expected {
            Some(expected) => assert_eq!(memory(&after), (expected, expected), "{to}"),
            None => {
                let left = decision.rest.iter().find(|left| left.outcome != Outcome::Skipped).unwrap();
                assert_eq!(left.reason.code, Code::ParameterRefused, "{to}: {}", left.reason.detail);
            }
        }
        inject::undo(&forged, None).unwrap();
    }
}

#[test]
fn a_marker_that_is_forged_beyond_reason_makes_nothing_panic() {
    for entry in [
        "containers/0={}",
        "containers/0={\\\"name\\\":7}",
        "containers/0=[]",
        "initContainers/1={\\\"name\\\":\\\"\\\"}",
    ] {
        let text = format!(
            r#"{{"v":1,"hash":"0123456789abcdef","added":["{entry}","/spec/template/spec/containers/proxy"]}}"#
        );
        let mut forged = deployment(&[app(), overlay("256Mi")]);
        forged.body["spec"]["template"]["metadata"]["annotations"]["injected.scpol.dev/mesh"] = json!(text);
        assert!(marker::read(&forged, "mesh").is_some(), "{text}");
        inject::undo(&forged, None).unwrap();
        let policy = policy();
        Decision::of(&Policies::new([policy.clone()]), &forged, &site()).plan(&forged);
        policy.edits(&forged);
        update(&forged, &policy, &policy).unwrap_err();
    }
}

#[test]
fn an_author_who_takes_the_overlay_out_of_the_manifest_keeps_the_sidecar() {
    let policy = policy();
    let mut applied = stored(&policy, &deployment(&[app(), overlay("256Mi")]));
    // kubectl deletes the container of that name.
    applied.body["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().pop();
    assert_ne!(carries(&applied, &policy, &site()), Carries::This);
    assert!(!policy.edits(&applied).is_empty());
    let updated = update(&applied, &policy, &policy).unwrap();
    assert_eq!((memory(&updated), containers(&updated).len()), (("128Mi", "128Mi"), 2));
    assert_eq!(inject::undo(&updated, None).unwrap().body["spec"]["template"]["spec"]["containers"], json!([app()]));
    // Without an overlay, the container stays away.
    let mut robbed = stored(&policy, &deployment(&[app()]));
    robbed.body["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().pop();
    update(&robbed, &policy, &policy).unwrap_err();
}

#[test]
fn the_end_of_a_policy_takes_an_applied_value_along() {
    let policy = policy();
    for (field, value) in [
        ("resources", json!({"limits": {"memory": "512Mi"}, "requests": {"cpu": "50m", "memory": "256Mi"}})),
        ("image", json!("auto")),
    ] {
        let mut applied = stored(&policy, &deployment(&[overlay("256Mi"), app()]));
        proxy_mut(&mut applied)[field] = value;
        let change = removal(&applied, &revision(&policy), &Policies::new([])).unwrap();
        assert_eq!(change.body["spec"]["template"]["spec"]["containers"], json!([app()]), "{field}");
    }
}

#[test]
fn what_is_no_value_is_an_edit_and_restored_where_the_policy_says_so() {
    let restoring = json!({
        "parameters": [
            {"name": "image", "paths": ["containers[proxy].image"], "enum": ["proxy:1", "proxy:2"], "overridable": true},
            {"name": "level", "paths": ["containers[proxy].env[LEVEL].value"], "overridable": true},
        ],
    });
    let policy = policy_of("mesh", &json!({"parameters": restoring["parameters"]}));
    for (value, expected) in [("evil:1", false), ("auto", false), ("proxy:2", true)] {
        let mut applied = stored(&policy, &deployment(&[app(), json!({"name": "proxy", "image": "proxy:1"})]));
        proxy_mut(&mut applied)["image"] = json!(value);
        assert_eq!(policy.edits(&applied).is_empty(), expected, "{value}");
        let told = policy.valued_for(&applied, &Policies::new([policy.clone()]), &site()).outdated_values();
        assert_eq!(told.is_some(), expected, "{value}");
    }
    // A text that is applied without its escapes is the same value, which a kubelet would expand.
    let level = json!({"name": "proxy", "env": [{"name": "LEVEL", "value": "a$(b)"}]});
    let mut applied = stored(&policy, &deployment(&[app(), level]));
    assert_eq!(proxy(&applied)["env"][0]["value"], "a$$(b)");
    proxy_mut(&mut applied)["env"][0]["value"] = json!("a$(b)");
    assert!(!policy.edits(&applied).is_empty());
    let next = policy_of("mesh", &json!({"parameters": restoring["parameters"], "position": {"containers": "Before"}}));
    assert_eq!(proxy(&update(&applied, &policy, &next).unwrap())["env"][0]["value"], "a$$(b)");
    let mut copy = applied.clone();
    copy.body["metadata"] = json!({"name": "copy", "namespace": "shop"});
    assert_eq!(proxy(&created(&[&policy], &copy))["env"][0]["value"], "a$$(b)");
    // A source in place of a value is no value.
    let mut edited = applied.clone();
    proxy_mut(&mut edited)["env"][0] =
        json!({"name": "LEVEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
    assert!(!policy.edits(&edited).is_empty());
    update(&edited, &policy, &next).unwrap_err();
}

#[test]
fn a_stored_workload_with_an_applied_value_has_the_sidecar() {
    let policy = policy();
    let mut applied = stored(&policy, &deployment(&[app(), overlay("256Mi")]));
    proxy_mut(&mut applied)["env"][0]["value"] = json!("debug");
    let decision = Decision::of(&Policies::new([policy.clone()]), &applied, &site());
    assert_eq!(decision.inject.len(), 0);
    assert_eq!(decision.rest[0].reason.code, Code::AlreadyInjected, "{}", decision.rest[0].reason.detail);
    assert!(
        decision.rest[0].reason.detail.contains("`level` has another value now"),
        "{}",
        decision.rest[0].reason.detail
    );
}

#[test]
fn an_overlay_comes_back_only_where_it_has_a_place() {
    // A policy whose container has another name now.
    let (policy, renamed) = (
        policy(),
        policy_of(
            "mesh",
            &json!({
                "template": {"containers": [{"name": "envoy", "image": "envoy:1"}]}, "parameters": [],
            }),
        ),
    );
    let old = stored(&policy, &deployment(&[app(), overlay("256Mi")]));
    let updated = update(&old, &policy, &renamed).unwrap();
    let names: Vec<&Value> = containers(&updated).iter().map(|container| &container["name"]).collect();
    assert_eq!(names, ["app", "envoy"]);
    // A pod that was made from a template with a native sidecar.
    let native = policy_of("mesh", &json!({"nativeSidecars": "Always"}));
    let template = created(&[&native], &deployment(&[app(), overlay("256Mi")]));
    let mut made = pod(&[], &json!({}));
    made.body["spec"] = template.body["spec"]["template"]["spec"].clone();
    made.body["metadata"]["annotations"] = template.body["spec"]["template"]["metadata"]["annotations"].clone();
    let undone = inject::undo(&made, None).unwrap().body;
    assert_eq!(undone["spec"]["containers"], json!([app()]), "its init container is there");
    // Beside content of a policy that is not known here.
    let first = policy_of(
        "first",
        &json!({"position": {"containers": "Before"}, "template": {"containers": [{"name": "z", "image": "z:1"}]}, "parameters": []}),
    );
    let original = deployment(&[overlay("256Mi"), app()]);
    let mut workload = original.clone();
    workload.body["spec"]["template"]["spec"]["containers"] = json!([app()]);
    let by_first = created(&[&first], &workload);
    let mut both = by_first.clone();
    both.body["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().insert(1, overlay("256Mi"));
    let injected = created(&[&policy], &both);
    let undone = inject::undo(&injected, None).unwrap().body;
    assert_eq!(
        undone["spec"]["template"]["spec"]["containers"],
        original.body["spec"]["template"]["spec"]["containers"]
    );
}

#[test]
fn a_name_that_is_there_twice_is_no_overlay() {
    let policy = policy();
    let init = |mut workload: Workload| {
        workload.body["spec"]["template"]["spec"]["initContainers"] = json!([overlay("128Mi")]);
        workload
    };
    for workload in [deployment(&[overlay("256Mi"), overlay("512Mi")]), init(deployment(&[app(), overlay("256Mi")]))] {
        let decision = Decision::of(&Policies::new([policy.clone()]), &workload, &site());
        assert_eq!(decision.rest[0].reason.code, Code::NameConflict, "{}", decision.rest[0].reason.detail);
    }
}

#[test]
fn an_update_that_applies_another_value_gets_it_in_all_places() {
    let targets = json!([{"group": "apps", "resource": "deployments", "operations": ["CREATE", "UPDATE"]}]);
    for failure_policy in ["Ignore", "Fail"] {
        let policy = policy_of("mesh", &json!({"failurePolicy": failure_policy, "targets": targets}));
        let policies = Policies::new([policy.clone()]);
        let old = stored(&policy, &deployment(&[app(), overlay("256Mi")]));
        let updated = |limit: &str| {
            let mut new = old.clone();
            proxy_mut(&mut new)["resources"]["limits"]["memory"] = json!(limit);
            let mut decision =
                Decision::of_update(&policies, [(&old).into(), (&new).into()], &site(), |_| true, |_| true);
            let patch = decision.plan(&new);
            assert!(decision.refusal().is_none(), "{limit}");
            new.with_body(new.patched(&patch))
        };
        for limit in ["512Mi", "64Mi"] {
            let updated = updated(limit);
            assert_eq!((memory(&updated), containers(&updated).len()), ((limit, limit), 2));
            assert_eq!(policy.edits(&updated), []);
            let same = Decision::of_update(&policies, [(&old).into(), (&updated).into()], &site(), |_| true, |_| true)
                .plan(&updated);
            assert_eq!(same, Patch::default(), "called again, it changes nothing");
        }
        // A value out of bounds is an edit. The update is allowed.
        assert_eq!(memory(&updated("4Gi")), ("256Mi", "4Gi"));
    }
}

#[test]
fn what_is_made_from_a_template_with_an_applied_value_has_the_sidecar() {
    for (more, owner) in [
        (json!({"failurePolicy": "Fail"}), ("ReplicaSet", "apps/v1")),
        (json!({"failurePolicy": "Fail", "nativeSidecars": "Always"}), ("ReplicaSet", "apps/v1")),
    ] {
        let policy = policy_of("mesh", &more);
        let template = stored(&policy, &deployment(&[app(), overlay("256Mi")]));
        let made = |level: &str| {
            let pod_template = &template.body["spec"]["template"];
            let text = pod_template.to_string().replace(r#""value":"info""#, &format!(r#""value":"{level}""#));
            let made_of: Value = serde_json::from_str(&text).unwrap();
            let mut made = pod(&[], &json!({}));
            made.body["spec"] = made_of["spec"].clone();
            made.body["metadata"]["annotations"] = made_of["metadata"]["annotations"].clone();
            made.body["metadata"]["ownerReferences"] =
                json!([{"kind": owner.0, "apiVersion": owner.1, "name": "web-1", "controller": true}]);
            let mut decision = Decision::of(&Policies::new([policy.clone()]), &made, &site());
            let patch = decision.plan(&made);
            (patch, decision.rest[0].reason.code)
        };
        assert_eq!(made("info"), (Patch::default(), Code::AlreadyInjected));
        assert_eq!(made("debug"), (Patch::default(), Code::AlreadyInjected), "{more}");
        assert_ne!(made("other").1, Code::AlreadyInjected, "no value of the parameter");
    }
}

#[test]
fn an_update_changes_nothing_but_values_of_the_present_content() {
    let more = |image: &str| {
        json!({
            "targets": [{"group": "apps", "resource": "deployments", "operations": ["CREATE", "UPDATE"]}],
            "template": {"containers": [{"name": "proxy", "image": image, "env": [{"name": "LEVEL", "value": "info"}],
                "resources": {"requests": {"memory": "128Mi"}, "limits": {"memory": "128Mi"}}}]},
        })
    };
    let (policy, next) = (policy_of("mesh", &more("proxy:1")), policy_of("mesh", &more("proxy:2")));
    let old = stored(&policy, &deployment(&[app(), overlay("256Mi")]));
    let planned = |policy: &Arc<Policy>, edit: &dyn Fn(&mut Value)| {
        let mut new = old.clone();
        proxy_mut(&mut new)["resources"]["limits"]["memory"] = json!("512Mi");
        edit(proxy_mut(&mut new));
        let policies = Policies::new([policy.clone()]);
        let mut decision = Decision::of_update(&policies, [(&old).into(), (&new).into()], &site(), |_| true, |_| true);
        decision.plan(&new)
    };
    assert_ne!(planned(&policy, &|_| {}), Patch::default());
    assert_eq!(planned(&policy, &|proxy| proxy["args"] = json!(["--own"])), Patch::default(), "an edit stays");
    assert_eq!(planned(&policy, &|proxy| proxy["env"][0]["value"] = json!("none")), Patch::default(), "out of bounds");
    let knowing = Arc::new(Policy::clone(&next).knowing(Arc::new([Arc::new(revision(&policy))])));
    assert_eq!(planned(&knowing, &|_| {}), Patch::default(), "a rollout brings the next revision");
}

#[test]
fn an_overlay_of_a_container_that_is_switched_off_is_taken_out_again() {
    let policy = policy_of(
        "mesh",
        &json!({
            "targets": [{"group": "apps", "resource": "deployments", "operations": ["CREATE", "UPDATE"]}],
            "parameters": [
                {"name": "memory", "type": "Quantity", "paths": ["containers[proxy].resources.limits.memory"], "overridable": true},
                {"name": "enabled", "type": "Boolean", "paths": ["containers[proxy]"], "expression": "false"},
            ],
        }),
    );
    let old = stored(&policy, &deployment(&[app(), overlay("256Mi")]));
    assert_eq!(containers(&old), &vec![app()]);
    let mut new = old.clone();
    new.body["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().push(overlay("512Mi"));
    let policies = Policies::new([policy.clone()]);
    let mut decision = Decision::of_update(&policies, [(&old).into(), (&new).into()], &site(), |_| true, |_| true);
    let updated = new.with_body(new.patched(&decision.plan(&new)));
    assert_eq!(containers(&updated), &vec![app()]);
    assert_eq!(containers(&new.with_body(inject::undo(&updated, None).unwrap().body)).len(), 2);
}

#[test]
fn a_text_that_a_kubelet_would_expand_is_an_edit() {
    let policy = policy_of(
        "mesh",
        &json!({"parameters": [
            {"name": "level", "paths": ["containers[proxy].env[LEVEL].value"], "overridable": true},
        ]}),
    );
    let mut applied =
        stored(&policy, &deployment(&[app(), json!({"name": "proxy", "env": [{"name": "LEVEL", "value": "a"}]})]));
    for (text, is_edit) in [("b", false), ("$(TOKEN)", true), ("$$(TOKEN)", true)] {
        proxy_mut(&mut applied)["env"][0]["value"] = json!(text);
        assert_eq!(!policy.edits(&applied).is_empty(), is_edit, "{text}");
    }
}

#[test]
fn a_sidecar_stays_where_the_manifest_has_its_overlay() {
    let policy = policy();
    let injected = stored(&policy, &deployment(&[overlay("256Mi"), app()]));
    let mut applied = injected.clone();
    applied.body["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().reverse();
    assert_eq!(carries(&applied, &policy, &site()), Carries::This);
    assert_eq!(update(&applied, &policy, &policy).unwrap().body, applied.body);
    // Without an overlay, the side is that of the policy.
    let mut moved = stored(&policy, &deployment(&[app()]));
    moved.body["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().reverse();
    assert_ne!(carries(&moved, &policy, &site()), Carries::This);
}
