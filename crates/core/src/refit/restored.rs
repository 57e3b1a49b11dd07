//! Tests of `updateStrategy.edited: Restore`.

use super::*;
use crate::api::trust::Trust;
use crate::content::Content;
use crate::workload::Kind;
use serde_json::json;

fn site() -> Site {
    Site { native_sidecars: true, trust: Trust::unbounded(), ..Site::new("scpol-system", [], []) }
}

fn policy(edited: &str, image: &str) -> Arc<Policy> {
    let spec = json!({
        "targets": [{"group": "apps", "resource": "deployments"}, {"group": "", "resource": "pods"}],
        "updateStrategy": {"type": "RollingUpdate", "edited": edited},
        "template": {
            "metadata": {"labels": {"logs": "agent"}, "annotations": {"level": "info"}},
            "containers": [{"name": "agent", "image": image, "args": ["run"]}],
            "env": [{"name": "TEAM", "value": "a"}],
            "volumes": [{"name": "logs", "emptyDir": {}}],
        },
    });
    Arc::new(Policy::parse(&json!({"metadata": {"name": "p"}, "spec": spec}), &site()).unwrap())
}

fn workload(resource: &str) -> Workload {
    let pod =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "app", "image": "app:1"}]}});
    let (group, mut body) = match resource {
        "pods" => ("", pod),
        _ => ("apps", json!({"spec": {"template": pod}})),
    };
    for (field, value) in [("name", "web"), ("namespace", "shop"), ("uid", "u"), ("resourceVersion", "7")] {
        body["metadata"][field] = json!(value);
    }
    if resource == "pods" {
        body["metadata"]["ownerReferences"] = json!([{"kind": "ReplicaSet", "name": "web", "controller": true}]);
    }
    Workload::new(Kind::find(group, resource).unwrap(), body)
}

fn created(workload: &Workload, policy: &Arc<Policy>) -> Workload {
    let patch = Decision::of(&Policies::new([policy.clone()]), workload, &site()).plan(workload);
    workload.with_body(workload.patched(&patch))
}

fn next(workload: &Workload, from: &Policy, to: &Arc<Policy>) -> NextAction {
    let revision = |policy: &Policy| Revision::new("p", 1, Content::of(&policy.spec).unwrap());
    let revisions = [revision(to), revision(from)];
    let goal = Goal { to, policies: &Policies::new([to.clone()]), site: &site() };
    next_action(workload, &revisions, goal, &Asked::default())
}

fn at<'a>(workload: &'a mut Workload, place: &str) -> &'a mut Value {
    let pod = workload.pod_pointer();
    workload.body.pointer_mut(&format!("{pod}{place}")).unwrap()
}

#[test]
fn a_template_that_was_edited_is_that_of_the_revision_again_where_the_policy_says_so_and_stays_elsewhere() {
    let (keep, restore, next_one) = (policy("Keep", "x:1"), policy("Restore", "x:1"), policy("Restore", "x:2"));
    let original = workload("deployments");
    type Change = fn(&mut Workload);
    let changes: [(&str, Change); 7] = [
        ("the image", |stored| *at(stored, "/spec/containers/1/image") = json!("app:2")),
        ("a variable more", |stored| at(stored, "/spec/containers/1")["env"] = json!([{"name": "LOG", "value": "1"}])),
        ("the variable of the user's container", |stored| *at(stored, "/spec/containers/0/env/0/value") = json!("b")),
        ("a label", |stored| *at(stored, "/metadata/labels/logs") = json!("other")),
        ("an annotation that is gone", |stored| {
            at(stored, "/metadata/annotations").as_object_mut().unwrap().remove("level");
        }),
        ("a volume of another kind", |stored| at(stored, "/spec/volumes/0")["emptyDir"] = json!({"medium": "Memory"})),
        ("a container that is gone", |stored| {
            at(stored, "/spec/containers").as_array_mut().unwrap().pop();
        }),
    ];
    for (what, change) in changes {
        let mut stored = created(&original, &restore);
        assert_eq!(next(&stored, &restore, &restore), NextAction::UpToDate, "{what}");
        change(&mut stored);
        assert!(matches!(carries(&stored, &restore, &site()), Carries::Other(_)), "{what}");
        for to in [&restore, &next_one] {
            let NextAction::PatchTemplate(patch) = next(&stored, &restore, to) else { panic!("{what}") };
            let after = stored.with_body(stored.patched(&patch));
            assert_eq!(after.body, created(&original, to).body, "{what}");
            assert_eq!(next(&after, &restore, to), NextAction::UpToDate, "{what}");
        }
        match next(&stored, &keep, &keep) {
            NextAction::UpToDate => {}
            NextAction::Leave(left) => assert_eq!(left.cause, Cause::ContentEdited, "{what}"),
            action => panic!("{what}: {action:?}"),
        }
    }
}

#[test]
fn what_a_marker_cannot_justify_is_not_restored() {
    let restore = policy("Restore", "x:1");
    let stored = created(&workload("deployments"), &restore);
    let key = "injected.scpol.dev/p";
    for (old, new) in [("/containers/agent", "/containers/app"), ("\"added\":[", "\"added\":[\"/spec/replicas\",")] {
        let mut stored = stored.clone();
        let marker = at(&mut stored, "/metadata/annotations")[key].as_str().unwrap().replace(old, new);
        at(&mut stored, "/metadata/annotations")[key] = json!(marker);
        *at(&mut stored, "/spec/containers/1/image") = json!("other");
        match next(&stored, &restore, &restore) {
            // The marker does not list what was changed.
            NextAction::UpToDate => assert!(!marker.contains("/containers/agent"), "{marker}"),
            NextAction::Leave(left) => assert_eq!(left.cause, Cause::ContentEdited, "{marker}"),
            action => panic!("{marker}: {action:?}"),
        }
    }
}

#[test]
fn a_running_pod_gets_images_and_metadata_back_and_is_not_evicted_for_more() {
    let (keep, restore) = (policy("Keep", "x:1"), policy("Restore", "x:1"));
    let stored = created(&workload("pods"), &restore);
    let mut edited = stored.clone();
    *at(&mut edited, "/spec/containers/1/image") = json!("mirror/x:1");
    *at(&mut edited, "/metadata/labels/logs") = json!("other");
    *at(&mut edited, "/metadata/annotations/level") = json!("debug");
    assert_eq!(next(&edited, &keep, &keep), NextAction::UpToDate);
    let NextAction::InPlace { patch, resize: None } = next(&edited, &restore, &restore) else { panic!() };
    assert_eq!(edited.patched(&patch), stored.body);
    *at(&mut edited, "/spec/containers/1/args/0") = json!("other");
    let NextAction::Leave(left) = next(&edited, &restore, &restore) else { panic!() };
    assert_eq!(left.cause, Cause::ContentEdited);
    assert!(left.message.contains("`args[0]`"), "{}", left.message);
    // What admission adds to a pod is no edit.
    let mut admitted = stored.clone();
    at(&mut admitted, "/spec/containers/1")["volumeMounts"] = json!([{"name": "token", "mountPath": "/var/run"}]);
    assert_eq!(next(&admitted, &restore, &restore), NextAction::UpToDate);
}

fn of(name: &str, mut spec: Value) -> Policy {
    spec["targets"] = json!([{"group": "apps", "resource": "deployments"}]);
    Policy::parse(&json!({"metadata": {"name": name}, "spec": spec}), &site()).unwrap()
}

/// `present`, which recognizes what `past` added.
fn knowing(present: Policy, past: &Policy) -> Arc<Policy> {
    let revision = Revision::new(&past.name, 1, Content::of(&past.spec).unwrap());
    Arc::new(present.knowing([Arc::new(revision)].into()))
}

#[test]
fn a_forged_marker_that_lists_the_label_that_a_policy_selects_gets_nobody_past_it() {
    let of = |image: &str| {
        let metadata = json!({"labels": {"mesh": "on"}});
        let condition = json!([{"name": "mesh", "expression": "'mesh' in object.spec.template.metadata.labels"}]);
        let template = json!({"metadata": metadata, "containers": [{"name": "side", "image": image}]});
        of("p", json!({"failurePolicy": "Fail", "matchConditions": condition, "template": template}))
    };
    let (past, present) = (of("x:1"), of("x:2"));
    let hash = past.template_hash().to_owned();
    let policies = Policies::new([knowing(present, &past)]);
    for (image, code) in [("evil:1", Code::NameConflict), ("x:1", Code::NameConflict)] {
        let mut forged = workload("deployments");
        *at(&mut forged, "/metadata/labels") = json!({"mesh": "on"});
        let added = r#"["/spec/template/metadata/labels/mesh"]"#;
        at(&mut forged, "/metadata")["annotations"] =
            json!({"injected.scpol.dev/p": format!(r#"{{"v":1,"hash":"{hash}","added":{added}}}"#)});
        at(&mut forged, "/spec/containers").as_array_mut().unwrap().push(json!({"name": "side", "image": image}));
        let mut decision = Decision::of(&policies, &forged, &site());
        decision.plan(&forged);
        assert_eq!(decision.refusal().map(|left| left.reason.code), Some(code), "{image}");
        at(&mut forged, "/spec/containers").as_array_mut().unwrap().pop();
        assert!(Decision::of(&policies, &forged, &site()).inject.len() == 1, "without a container of that name");
    }
}

#[test]
fn a_volume_of_an_earlier_content_that_the_user_mounts_stays_if_only_a_policy_elsewhere_adds_it() {
    let volume = |name: &str| json!({"name": name, "emptyDir": {}});
    let of_p = |name: &str| of("p", json!({"template": {"volumes": [volume(name)]}}));
    let past = of_p("data");
    let elsewhere = of("q", json!({"namespaces": ["elsewhere"], "template": {"volumes": [volume("data")]}}));
    let mut restored = created(&workload("deployments"), &Arc::new(past.clone()));
    at(&mut restored, "/spec/containers/0")["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    let policies = Policies::new([knowing(of_p("other"), &past), Arc::new(elsewhere)]);
    let patch = Decision::of(&policies, &restored, &site()).plan(&restored);
    let after = restored.patched(&patch);
    let volumes = &after["spec"]["template"]["spec"]["volumes"];
    let names: Vec<&str> = volumes.as_array().unwrap().iter().map(|volume| volume["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["data", "other"]);
}

#[test]
fn a_marker_that_no_policy_stands_behind_holds_nobody_up() {
    let of_image = |name: &str, image: &str| {
        of(
            name,
            json!({"failurePolicy": "Fail", "updateStrategy": {"type": "RollingUpdate", "edited": "Restore"}, "template": {
                "containers": [{"name": "agent", "image": image}], "volumes": [{"name": "v", "emptyDir": {}}],
            }}),
        )
    };
    let (a, past, present) = (of_image("a", "x:1"), of_image("p", "x:1"), of_image("p", "x:2"));
    let bare = workload("deployments");
    let both = created(&created(&bare, &Arc::new(a.clone())), &Arc::new(past.clone()));
    let present = knowing(present, &past);
    let expected = created(&bare, &present);
    assert_eq!(created(&both, &present).body, expected.body, "a restore after a rename");
    let NextAction::PatchTemplate(patch) = next(&both, &past, &present) else { panic!() };
    assert_eq!(both.patched(&patch), expected.body, "a rollout after a rename");

    // Everybody can write a marker.
    let mut pinned = created(&bare, &present);
    *at(&mut pinned, "/spec/containers/1/image") = json!("evil");
    let forged = r#"{"v":1,"hash":"0123456789abcdef","added":["/spec/template/spec/containers/agent"]}"#;
    at(&mut pinned, "/metadata/annotations")["injected.scpol.dev/zzz"] = json!(forged);
    let NextAction::PatchTemplate(patch) = next(&pinned, &past, &present) else { panic!() };
    assert_eq!(pinned.patched(&patch), expected.body);

    // A policy that is in effect has its say.
    let goal = Goal { to: &present, policies: &Policies::new([present.clone(), Arc::new(a)]), site: &site() };
    let revisions = [&*present, &past].map(|policy| Revision::new("p", 1, Content::of(&policy.spec).unwrap()));
    let NextAction::Leave(left) = next_action(&both, &revisions, goal, &Asked::default()) else { panic!() };
    assert_eq!(left.cause.code(), Code::PolicyConflict, "{}", left.message);
}
