//! The odd cases. The laws for every workload and every two revisions are in `tests/updates.rs`.

use super::*;
use crate::api::trust::Trust;
use crate::api::v1alpha1::PodUpdate;
use crate::content::Content;
use crate::workload::Kind;
use serde_json::json;

fn site() -> Site {
    Site { native_sidecars: true, trust: Trust::unbounded(), ..Site::new("scpol-system", [], []) }
}

/// The policy `name` with that spec, for each kind of these tests.
fn policy(name: &str, spec: &Value) -> Arc<Policy> {
    let mut spec = spec.clone();
    spec["targets"] = json!([
        {"group": "apps", "resource": "deployments"},
        {"group": "batch", "resource": "jobs"},
        {"group": "", "resource": "pods"},
        {"group": "example.org", "resource": "rollouts", "templatePath": "spec.workers.podTemplate"},
    ]);
    Arc::new(Policy::parse(&json!({"metadata": {"name": name}, "spec": spec}), &site()).unwrap())
}

fn policies(all: &[&Arc<Policy>]) -> Policies {
    Policies::new(all.iter().map(|policy| Arc::clone(policy)))
}

fn revision(policy: &Policy) -> Revision {
    Revision::new(&policy.name, 1, Content::of(&policy.spec).unwrap())
}

fn object(group: &str, resource: &str, pod: &Value) -> Workload {
    let kind = Kind::of(group, resource, Some("spec.workers.podTemplate"));
    let path: Vec<&String> = kind.pod_path.iter().flatten().collect();
    let mut body = path.into_iter().rev().fold(pod.clone(), |below, step| json!({ step: below }));
    for (field, value) in [("name", "web"), ("namespace", "shop"), ("uid", "u"), ("resourceVersion", "7")] {
        body["metadata"][field] = json!(value);
    }
    Workload::new(&kind, body)
}

fn deployment(pod: &Value) -> Workload {
    object("apps", "deployments", pod)
}

/// A pod of a ReplicaSet.
fn pod(spec: &Value) -> Workload {
    let mut pod = object("", "pods", &json!({ "spec": spec }));
    pod.body["metadata"]["ownerReferences"] = json!([{"kind": "ReplicaSet", "name": "web", "controller": true}]);
    pod
}

/// The user's own container.
fn app() -> Value {
    json!({"name": "app", "image": "app:1"})
}

/// `workload` after a create under `all`, which are all injected.
fn created(workload: &Workload, all: &[&Arc<Policy>]) -> Workload {
    let mut decision = Decision::of(&policies(all), workload, &site());
    let body = workload.patched(&decision.plan(workload));
    assert_eq!(decision.inject.len(), all.len(), "{:?}", decision.rest);
    workload.with_body(body)
}

fn update(workload: &Workload, from: &Policy, to: &Arc<Policy>) -> Result<TemplateChange, Unchanged> {
    template_update(workload, Some(&revision(from)), Goal { to, policies: &policies(&[to]), site: &site() })
}

fn names(workload: &Workload, list: &str) -> Vec<String> {
    let items = workload.pod_spec().and_then(|spec| spec.get(list)?.as_array());
    items.into_iter().flatten().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
}

/// A spec with one container of that image.
fn envoy(image: &str) -> Value {
    json!({"template": {"containers": [{"name": "envoy", "image": image}]}})
}

#[test]
fn what_a_workload_carries_is_told_by_its_marker_and_by_where_the_content_is() {
    let plain = policy("p", &envoy("envoy:1"));
    let with = |field: &str, value: Value| {
        let mut spec = envoy("envoy:1");
        spec[field] = value;
        policy("p", &spec)
    };
    let (native, before) = (with("nativeSidecars", json!("Always")), with("position", json!({"containers": "Before"})));
    let original = deployment(&json!({"spec": {"containers": [app()]}}));
    let all = [&plain, &native, &before];
    let hash = plain.template_hash();
    assert!(all.iter().all(|policy| policy.template_hash() == hash), "only the places differ");
    for (index, own) in all.iter().enumerate() {
        let stored = created(&original, &[own]);
        for (other, policy) in all.iter().enumerate() {
            let expected = if index == other { Carries::This } else { Carries::Other(hash.to_owned()) };
            assert_eq!(carries(&stored, policy, &site()), expected, "{index} {other}");
            let change = update(&stored, own, policy).unwrap();
            assert_eq!(change.body, created(&original, &[policy]).body, "{index} {other}");
        }
    }
    assert_eq!(carries(&original, &plain, &site()), Carries::Nothing);
    let edited = policy("p", &envoy("envoy:2"));
    assert_eq!(
        carries(&created(&original, &[&edited]), &plain, &site()),
        Carries::Other(edited.template_hash().to_owned())
    );
    let mut stored = created(&original, &[&plain]);
    for unreadable in [json!("garbage"), json!(7), json!({})] {
        stored.body["spec"]["template"]["metadata"]["annotations"]["injected.scpol.dev/p"] = unreadable;
        assert_eq!(carries(&stored, &plain, &site()), Carries::Unreadable);
        assert_eq!(update(&stored, &plain, &edited).unwrap_err().cause, Cause::ContentEdited);
    }
    // Another webhook puts its own container behind ours, and the first init container of all.
    let spec = json!({
        "position": {"initContainers": "After"},
        "template": {"containers": [{"name": "x", "image": "x"}], "initContainers": [{"name": "i", "image": "i"}]},
    });
    let both = policy("p", &spec);
    let mut stored = created(&original, &[&both]);
    for list in ["containers", "initContainers"] {
        let items = stored.body["spec"]["template"]["spec"][list].as_array_mut().unwrap();
        items.push(json!({"name": format!("mesh-{list}"), "image": "m"}));
    }
    assert_eq!(carries(&stored, &both, &site()), Carries::This);
}

#[test]
fn items_keep_their_places_among_those_of_other_policies_and_of_the_user() {
    let spec = |names: &[&str], image: &str, place: &str| {
        let containers: Value = names.iter().map(|name| json!({"name": name, "image": image})).collect();
        json!({"position": {"containers": place}, "template": {"containers": containers}, "priority": names.len()})
    };
    let mut last = spec(&["o1"], "o", "After");
    last["priority"] = json!(-1);
    let other = policy("other", &last);
    for (old, new, place, users, expected) in [
        (&["x", "y"][..], &["x", "y"][..], "After", &[][..], "app x y o1"),
        (&["x"], &["new", "x"], "After", &[], "app new x o1"),
        (&["x", "y"], &["x", "new", "y"], "After", &[], "app x new y o1"),
        (&["x", "y"], &["y", "x"], "After", &[], "app y x o1"),
        (&["x", "y"], &["y"], "After", &[], "app y o1"),
        // None stays: all take the place of the earlier ones.
        (&["x"], &["new"], "After", &[], "app new o1"),
        (&["x"], &["x", "new"], "Before", &[], "x new app o1"),
        (&["x"], &["new"], "Before", &[], "new app o1"),
        // The user has added containers around ours.
        (&["x", "y"], &["y", "new", "x"], "After", &["first", "x", "last"], "first app y new last x o1"),
        (&["x", "y"], &["x", "y"], "After", &["first", "x", "last"], "first app x last y o1"),
        (&["x", "y"], &["y", "x"], "After", &["first", "x", "last"], "first app y last x o1"),
        (&["x"], &["x"], "Before", &["first", "app"], "first x app o1"),
    ] {
        let (from, to) = (policy("p", &spec(old, "1", place)), policy("p", &spec(new, "2", place)));
        let mut stored = created(&deployment(&json!({"spec": {"containers": [app()]}})), &[&from, &other]);
        if let [added, behind, others @ ..] = users {
            let containers = stored.body["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap();
            containers.insert(0, json!({"name": added, "image": "u"}));
            if let [last] = others {
                let place = containers.iter().position(|item| item["name"] == *behind).unwrap();
                containers.insert(place + 1, json!({"name": last, "image": "u"}));
            }
        }
        let change = template_update(
            &stored,
            Some(&revision(&from)),
            Goal { to: &to, policies: &policies(&[&to, &other]), site: &site() },
        )
        .unwrap();
        let after = stored.with_body(change.body);
        assert_eq!(names(&after, "containers").join(" "), expected, "{old:?} {new:?} {place} {users:?}");
        assert_eq!(carries(&after, &to, &site()), Carries::This);
        assert_eq!(carries(&after, &other, &site()), Carries::This);
    }
}

#[test]
fn an_item_on_the_wrong_side_of_all_of_the_users_moves() {
    let spec = |image: &str| json!({"template": {"env": [{"name": "A", "value": image}], "containers": [{"name": "x", "image": image}]}});
    let (from, to) = (policy("p", &spec("1")), policy("p", &spec("2")));
    let mut stored = created(&deployment(&json!({"spec": {"containers": [app()]}})), &[&from]);
    stored.body["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().reverse();
    assert_eq!(carries(&stored, &from, &site()), Carries::Other(from.template_hash().to_owned()));
    let after = stored.with_body(update(&stored, &from, &to).unwrap().body);
    assert_eq!(names(&after, "containers"), ["app", "x"]);
    assert_eq!(carries(&after, &to, &site()), Carries::This);
    // Of its own items, those that go before the user's come first.
    let spec = |image: &str| {
        json!({"template": {"initContainers": [
            {"name": "n", "image": image, "restartPolicy": "Always"}, {"name": "i", "image": image},
        ]}})
    };
    let (from, to) = (policy("p", &spec("1")), policy("p", &spec("2")));
    let init = |name: &str| json!({"name": name, "image": "u"});
    let mut stored = created(&deployment(&json!({"spec": {"initContainers": [init("u1")]}})), &[&from]);
    assert_eq!(names(&stored, "initContainers"), ["n", "u1", "i"]);
    let list = stored.body["spec"]["template"]["spec"]["initContainers"].as_array_mut().unwrap();
    let (n, i) = (list.remove(0), list.pop().unwrap());
    list.extend([i, init("u2"), n, init("u3")]);
    assert_eq!(carries(&stored, &from, &site()), Carries::Other(from.template_hash().to_owned()));
    let after = stored.with_body(update(&stored, &from, &to).unwrap().body);
    assert_eq!(names(&after, "initContainers"), ["u1", "n", "u2", "i", "u3"]);
    assert_eq!(carries(&after, &to, &site()), Carries::This);
}

#[test]
fn defaults_of_the_server_are_no_edits_and_all_else_is_one() {
    let template = json!({
        "containers": [{
            "name": "x", "image": "x:1", "args": [],
            "ports": [{"containerPort": 80}],
            "env": [
                {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            ],
            "resources": {"limits": {"cpu": 0.5}},
            "livenessProbe": {"httpGet": {"port": 80}},
            "readinessProbe": {"grpc": {"port": 80}},
            "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
            "volumeMounts": [{"name": "c", "mountPath": "/c"}],
        }],
        "initContainers": [{"name": "i", "image": "i"}],
        "volumes": [
            {"name": "e"},
            {"name": "c", "configMap": {"name": "c"}},
            {"name": "h", "projected": {"sources": [
                {"serviceAccountToken": {"path": "t"}},
                {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            ]}},
            {"name": "z", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
        ],
        "metadata": {"labels": {"l": "1"}},
    });
    let from = policy("p", &json!({ "template": template }));
    let to = policy("p", &envoy("envoy:2"));
    let original = deployment(&json!({"metadata": {}, "spec": {"containers": [app()]}}));
    let mut stored = created(&original, &[&from]);
    let spec = "/spec/template/spec";
    let (x, i) = (format!("{spec}/containers/1"), format!("{spec}/initContainers/0"));
    let volume = |index: usize| format!("{spec}/volumes/{index}");
    let mut set = |at: &str, fields: Value| json_patch::merge(stored.body.pointer_mut(at).unwrap(), &fields);
    set(
        &x,
        json!({"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "imagePullPolicy": "IfNotPresent", "args": null}),
    );
    set(
        &i,
        json!({"imagePullPolicy": "Always", "resources": {}, "command": [], "securityContext": {"procMount": "Default"}}),
    );
    set(&format!("{x}/ports/0"), json!({"protocol": "TCP"}));
    set(&format!("{x}/env/0/valueFrom/fieldRef"), json!({"apiVersion": "v1"}));
    set(&format!("{x}/env/1/valueFrom/resourceFieldRef"), json!({"divisor": "0"}));
    set(&format!("{x}/resources/limits"), json!({"cpu": "500m"}));
    let probe = json!({"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3});
    for (of, action) in [("livenessProbe", "httpGet"), ("readinessProbe", "grpc")] {
        set(&format!("{x}/{of}"), probe.clone());
        let fields = if action == "grpc" { json!({"service": ""}) } else { json!({"path": "/", "scheme": "HTTP"}) };
        set(&format!("{x}/{of}/{action}"), fields);
    }
    set(&format!("{x}/lifecycle/preStop/httpGet"), json!({"path": "/", "scheme": "HTTP"}));
    set(&volume(0), json!({"emptyDir": {}}));
    set(&format!("{}/configMap", volume(1)), json!({"defaultMode": 420}));
    set(&format!("{}/projected", volume(2)), json!({"defaultMode": 420}));
    set(&format!("{}/projected/sources/0/serviceAccountToken", volume(2)), json!({"expirationSeconds": 3600}));
    set(&format!("{}/projected/sources/1/downwardAPI/items/0/fieldRef", volume(2)), json!({"apiVersion": "v1"}));
    let claim = format!("{}/ephemeral/volumeClaimTemplate", volume(3));
    set(&format!("{claim}/spec"), json!({"volumeMode": "Filesystem", "resources": {}}));
    // Of a server before 1.33.
    stored.body.pointer_mut(&claim).unwrap()["metadata"] = json!({ "creationTimestamp": null });
    assert_eq!(removal(&stored, &revision(&from), &Policies::default()).unwrap().body, original.body);
    assert_eq!(update(&stored, &from, &to).unwrap().body, created(&original, &[&to]).body);
    // What has not changed is not written again.
    let mut labelled = template.clone();
    labelled["metadata"]["labels"]["l"] = json!("2");
    let change = update(&stored, &from, &policy("p", &json!({ "template": labelled }))).unwrap();
    let paths: Vec<_> = change.patch.iter().skip(2).map(|operation| operation.path().to_string()).collect();
    let metadata = "/spec/template/metadata";
    assert_eq!(paths, ["annotations/injected.scpol.dev~1p", "labels/l"].map(|field| format!("{metadata}/{field}")));

    for (at, fields, wrong) in [
        (&x, json!({"imagePullPolicy": "Always"}), "imagePullPolicy"),
        (&x, json!({"args": ["--users"]}), "args"),
        (&x, json!({"tty": false}), "tty"),
        (&x, json!({"securityContext": {"runAsUser": 0}}), "securityContext.runAsUser"),
        (&x, json!({"resources": {"limits": {"memory": "1Gi"}}}), "resources.limits.memory"),
        (&x, json!({"resources": {"requests": {"cpu": "500m"}}}), "resources.requests.cpu"),
        (&x, json!({"lifecycle": {"postStart": {"exec": {"command": ["x"]}}}}), "lifecycle.postStart.exec.command"),
        (&x, json!({"startupProbe": {"exec": {"command": ["x"]}}}), "startupProbe.exec.command"),
        (&x, json!({"livenessProbe": {"initialDelaySeconds": 5}}), "livenessProbe.initialDelaySeconds"),
        (
            &x,
            json!({"volumeMounts": [{"name": "c", "mountPath": "/c"}, {"name": "u", "mountPath": "/u"}]}),
            "volumeMounts[/u]",
        ),
        (&x, json!({"volumeMounts": [{"name": "c", "mountPath": "/c", "subPath": "s"}]}), "volumeMounts[/c].subPath"),
        (&x, json!({"ports": [{"containerPort": 80, "hostPort": 80}]}), "ports[80/TCP].hostPort"),
        (&i, json!({"image": "i:2"}), "image"),
        (&i, json!({"imagePullPolicy": "IfNotPresent"}), "imagePullPolicy"),
        (&i, json!({"env": [{"name": "U", "value": "u"}]}), "env"),
        (&volume(0), json!({"emptyDir": {"sizeLimit": "1Gi"}}), "emptyDir"),
        (&volume(1), json!({"configMap": {"optional": true}}), "configMap.optional"),
        (&volume(1), json!({"configMap": {"defaultMode": 384}}), "configMap.defaultMode"),
    ] {
        let mut edited = stored.clone();
        json_patch::merge(edited.body.pointer_mut(at).unwrap(), &fields);
        let left = update(&edited, &from, &to).unwrap_err();
        assert_eq!(left.cause, Cause::ContentEdited, "{fields}");
        assert!(left.message.contains(&format!("another `{wrong}")), "{fields}: {}", left.message);
    }
}

#[test]
fn under_the_network_of_the_host_a_container_port_is_a_host_port() {
    let template = json!({"containers": [{"name": "x", "image": "x:1", "ports": [{"containerPort": 80}]}]});
    let from = policy("p", &json!({"template": template, "hostNetworkPods": "Inject"}));
    let original = deployment(&json!({"spec": {"hostNetwork": true, "containers": [app()]}}));
    let mut stored = created(&original, &[&from]);
    for (port, is_default) in [(80, true), (81, false)] {
        stored.body["spec"]["template"]["spec"]["containers"][1]["ports"][0]["hostPort"] = json!(port);
        assert_eq!(removal(&stored, &revision(&from), &Policies::default()).is_ok(), is_default, "{port}");
    }
}

#[test]
fn a_marker_proves_nothing() {
    let from = policy(
        "p",
        &json!({"template": {
            "metadata": {"labels": {"l": "1"}},
            "env": [{"name": "A", "value": "1"}], "appContainers": ["web"],
            "containers": [{"name": "x", "image": "x"}],
        }}),
    );
    let to = policy("p", &envoy("envoy:2"));
    let variable = |name: &str, value: &str| json!([{"name": name, "value": value}]);
    let twice = json!({"name": "twice", "image": "t"});
    let spec = json!({
        "containers": [
            {"name": "app", "image": "a", "env": variable("A", "1")},
            {"name": "web", "image": "w", "env": variable("U", "u")},
        ],
    });
    let pod = json!({"metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}}, "spec": spec});
    let stored = created(&deployment(&pod), &[&from]);
    let at = "/spec/template";
    let more = |workload: &mut Workload| {
        let containers = &mut workload.body["spec"]["template"]["spec"]["containers"];
        containers.as_array_mut().unwrap().extend([twice.clone(), twice.clone()]);
    };
    for (listed, wrong) in [
        ("/spec/containers/app", "the revision does not add it"),
        ("/spec/containers/web/env/U", "the revision does not add it"),
        ("/spec/containers/app/env/A", "the revision does not add it"),
        ("/spec/containers/twice", "it exists more than once"),
        ("/spec/containers/gone", "it is missing"),
        ("/metadata/labels/app", "the revision does not add it"),
        ("/metadata/annotations/a", "the revision does not add it"),
        ("/metadata/annotations/kubectl.kubernetes.io~1default-container", "it is missing"),
        ("/metadata/annotations/injected.scpol.dev~1other", "it is nothing that a policy adds"),
        ("/spec/containers/app/image", "it is nothing that a policy adds"),
        ("/spec/initContainers", "nothing in it is listed"),
        ("/metadata/labels/l/x", "it is nothing that a policy adds"),
    ] {
        let mut forged = stored.clone();
        more(&mut forged);
        let mut marker = from.marker(&stored).unwrap();
        marker.added.push(format!("{at}{listed}"));
        forged.body["spec"]["template"]["metadata"]["annotations"]["injected.scpol.dev/p"] = marker.to_value();
        for result in [update(&forged, &from, &to), removal(&forged, &revision(&from), &Policies::default())] {
            let left = result.unwrap_err();
            let expected = format!("`{at}{listed}`, which the marker lists: {wrong}");
            assert_eq!((left.cause, left.message), (Cause::ContentEdited, expected));
        }
    }
    // What is listed twice counts once.
    let mut twice = stored.clone();
    let mut marker = from.marker(&stored).unwrap();
    marker.added.push(marker.added.last().unwrap().clone());
    twice.body["spec"]["template"]["metadata"]["annotations"]["injected.scpol.dev/p"] = marker.to_value();
    assert_eq!(update(&twice, &from, &to).unwrap().body, update(&stored, &from, &to).unwrap().body);
    // What is not listed stays, and is in the way if the new content has it with another value.
    let mut short = stored.clone();
    let mut marker = from.marker(&stored).unwrap();
    marker.added.retain(|pointer| !pointer.ends_with("/containers/x"));
    short.body["spec"]["template"]["metadata"]["annotations"]["injected.scpol.dev/p"] = marker.to_value();
    let after = short.with_body(update(&short, &from, &to).unwrap().body);
    assert_eq!(names(&after, "containers"), ["app", "web", "x", "envoy"]);
    let other = policy("p", &json!({"template": {"containers": [{"name": "x", "image": "y"}]}}));
    assert_eq!(update(&short, &from, &other).unwrap_err().cause, Cause::NotInjected(Code::NameConflict));
}

#[test]
fn the_container_that_the_user_chose_for_kubectl_stays_chosen() {
    let spec = |image: &str, place: &str| {
        let template = json!({"containers": [{"name": "x", "image": image}]});
        json!({"template": template, "position": {"containers": place}})
    };
    let from = policy("p", &spec("x:1", "Before"));
    let original = deployment(&json!({"spec": {"containers": [app(), {"name": "web", "image": "w"}]}}));
    let stored = created(&original, &[&from]);
    let key = "kubectl.kubernetes.io/default-container";
    assert_eq!(stored.pod_annotation(key), Some("app"));
    for (place, chosen, expected) in [
        ("Before", "app", Some("app")),
        ("Before", "web", Some("web")),
        ("After", "app", None),
        ("After", "web", Some("web")),
    ] {
        let mut stored = stored.clone();
        stored.body["spec"]["template"]["metadata"]["annotations"][key] = json!(chosen);
        let to = policy("p", &spec("x:2", place));
        let change = update(&stored, &from, &to).unwrap();
        assert_eq!(stored.patched(&change.patch), change.body);
        let after = stored.with_body(change.body);
        assert_eq!(after.pod_annotation(key), expected, "{place} {chosen}");
        let again = update(&after, &to, &to).unwrap();
        assert_eq!(again.patch, Patch::default(), "{place} {chosen}");
        let removed = stored.with_body(removal(&stored, &revision(&from), &Policies::default()).unwrap().body);
        assert_eq!(removed.pod_annotation(key), Some(chosen).filter(|chosen| *chosen != "app"));
    }
}

#[test]
fn a_volume_stays_where_the_user_mounts_it_unless_the_new_content_has_it_too() {
    let spec = |volumes: Value, image: &str| json!({"template": {"containers": [{"name": "x", "image": image}], "volumes": volumes}});
    let (one, two) =
        (json!({"name": "v", "configMap": {"name": "one"}}), json!({"name": "v", "configMap": {"name": "two"}}));
    let from = policy("p", &spec(json!([one]), "x:1"));
    let users = json!({"name": "app", "image": "app:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let original = deployment(&json!({"spec": {"containers": [users]}}));
    let stored = created(&original, &[&from]);
    let pointer = "/spec/template/spec/volumes/v";

    let without = policy("p", &spec(json!([]), "x:2"));
    for change in [update(&stored, &from, &without), removal(&stored, &revision(&from), &Policies::default())] {
        let change = change.unwrap();
        assert_eq!(change.kept.iter().map(|left| left.pointer.as_str()).collect::<Vec<_>>(), [pointer]);
        let after = stored.with_body(change.body);
        assert_eq!(after.pod_spec().unwrap()["volumes"], json!([one]));
        assert!(without.marker(&after).is_none_or(|marker| !marker.added.iter().any(|at| at == pointer)));
    }
    // It keeps its place.
    let (other, third) = (json!({"name": "w", "emptyDir": {}}), json!({"name": "w", "secret": {"secretName": "s"}}));
    let (both, one_less) = (policy("p", &spec(json!([one, other]), "x:1")), policy("p", &spec(json!([third]), "x:2")));
    let change = update(&created(&original, &[&both]), &both, &one_less).unwrap();
    assert_eq!(change.body["spec"]["template"]["spec"]["volumes"], json!([one, third]));

    let changed = policy("p", &spec(json!([two]), "x:2"));
    let change = update(&stored, &from, &changed).unwrap();
    assert_eq!((change.body, change.kept), (created(&original, &[&changed]).body, Vec::new()));
}

#[test]
fn content_that_another_policy_has_too_is_not_taken_from_it() {
    let spec = |image: &str, volume: Option<&str>, label: Option<&str>| {
        let volumes: Value = volume.iter().map(|of| json!({"name": "v", "configMap": {"name": of}})).collect();
        let labels: Value = label.iter().map(|value| ("l".to_owned(), json!(value))).collect();
        let containers = json!([{"name": image.replace(':', "-"), "image": image}]);
        json!({"template": {"containers": containers, "volumes": volumes, "metadata": {"labels": labels}}})
    };
    let from = policy("p", &spec("x:1", Some("c"), Some("1")));
    let other = policy("zzz", &spec("o:1", Some("c"), Some("1")));
    let stored = created(&deployment(&json!({"spec": {"containers": [app()]}})), &[&from, &other]);
    let result = |to: &Arc<Policy>, others: &[&Arc<Policy>]| {
        let all: Vec<&Arc<Policy>> = others.iter().copied().chain([to]).collect();
        template_update(&stored, Some(&revision(&from)), Goal { to, policies: &policies(&all), site: &site() })
            .map_err(|left| left.cause)
    };
    let conflict = Err(Cause::NotInjected(Code::SharedContent));
    for (volume, label, is_kept) in [
        (Some("c"), Some("1"), true),
        // The other policy keeps it.
        (None, Some("1"), true),
        (Some("c"), None, true),
        (None, None, true),
        (Some("other"), Some("1"), false),
        (Some("c"), Some("2"), false),
    ] {
        let to = policy("p", &spec("x:2", volume, label));
        let result = result(&to, &[&other]).map(|change| carries(&stored.with_body(change.body), &other, &site()));
        // Two policies of one priority that contradict each other are both left out.
        let collides = Err(Cause::NotInjected(Code::PolicyConflict));
        assert_eq!(result, if is_kept { Ok(Carries::This) } else { collides }, "{volume:?} {label:?}");
    }
    // A policy that does not match any more keeps its own as well, and so does one that is deleted.
    let mut deselected = (*other.spec).clone();
    deselected.namespaces = Some(vec!["elsewhere".into()]);
    let mut spec_of_other = serde_json::to_value(&deselected).unwrap();
    spec_of_other.as_object_mut().unwrap().remove("targets");
    let deselected = policy("zzz", &spec_of_other);
    let to = policy("p", &spec("x:2", Some("other"), Some("1")));
    assert_eq!(result(&to, &[&deselected]).map(|_| ()), conflict);
    assert_eq!(result(&to, &[]).map(|_| ()), conflict);
    let of_other = created(&deployment(&json!({"spec": {"containers": [app()]}})), &[&other]);
    let removed = removal(&stored, &revision(&from), &policies(&[&other])).unwrap();
    assert_eq!(removed.body, of_other.body);
    let last = removal(&stored.with_body(removed.body), &revision(&other), &policies(&[])).unwrap();
    assert_eq!(last.body, deployment(&json!({"spec": {"containers": [app()]}})).body);
}

#[test]
fn beside_a_marker_of_an_earlier_release_content_is_handed_over() {
    let spec = |image: &str| {
        json!({"template": {
            "containers": [{"name": "of-".to_owned() + &image[..1], "image": image}], "volumes": [{"name": "v", "emptyDir": {}}],
        }})
    };
    let original = deployment(&json!({"spec": {"containers": [app()]}}));
    let (from, other) = (policy("p", &spec("x")), policy("zzz", &spec("o")));
    let mut stored = created(&original, &[&from, &other]);
    let mut marker = other.marker(&stored).unwrap();
    // It listed neither the volume nor a list that was there already.
    marker.added = vec!["/spec/template/spec/containers/of-o".to_owned()];
    stored.body["spec"]["template"]["metadata"]["annotations"]["injected.scpol.dev/zzz"] = marker.to_value();
    let removed = removal(&stored, &revision(&from), &policies(&[&other])).unwrap();
    let mut expected = created(&original, &[&other]);
    let after = stored.with_body(removed.body);
    let listed = |workload: &Workload| other.marker(workload).unwrap().added.into_iter().collect::<HashSet<_>>();
    assert_eq!(listed(&after), listed(&expected));
    expected.body["spec"]["template"]["metadata"]["annotations"] =
        after.body["spec"]["template"]["metadata"]["annotations"].clone();
    assert_eq!(after.body, expected.body);
    // The policy is of another revision by now: nobody knows what that one added.
    let newer = policy("zzz", &spec("o:2"));
    let left = removal(&stored, &revision(&from), &policies(&[&newer])).unwrap_err();
    assert_eq!(left.cause, Cause::NotInjected(Code::SharedContent));
    assert!(
        left.message.contains("`/spec/template/spec/volumes/v` belongs to SidecarPolicy `zzz` as well"),
        "{}",
        left.message
    );
}

#[test]
fn null_lists_and_the_path_of_a_custom_resource_are_as_after_a_create() {
    let spec = |image: &str| {
        json!({"template": {
            "containers": [{"name": "x", "image": image}],
            "volumes": [{"name": "v", "configMap": {"name": image}}],
            "env": [{"name": "A", "value": image}],
            "metadata": {"labels": {"l": "1"}},
        }})
    };
    let (from, to) = (policy("p", &spec("1")), policy("p", &spec("2")));
    let less = policy("p", &envoy("envoy:2"));
    for pod in [
        json!({"metadata": null, "spec": {"containers": [app()], "volumes": null, "initContainers": null}}),
        json!({"metadata": {"labels": null, "annotations": {}}, "spec": {"containers": null, "volumes": []}}),
        json!({"spec": {"containers": [{"name": "app", "image": "a", "env": null}]}}),
    ] {
        for original in [deployment(&pod), object("example.org", "rollouts", &pod)] {
            let stored = created(&original, &[&from]);
            for to in [&to, &less] {
                let change = update(&stored, &from, to).unwrap();
                assert_eq!(change.body, created(&original, &[to]).body, "{pod}");
            }
            let removed = removal(&stored, &revision(&from), &Policies::default()).unwrap();
            assert_eq!(removed.body, original.body, "{pod}");
        }
    }
}

#[test]
fn each_reason_to_leave_a_workload_has_its_cause() {
    let (from, to) = (policy("p", &envoy("envoy:1")), policy("p", &envoy("envoy:2")));
    let template = json!({"metadata": {}, "spec": {"containers": [app()]}});
    let stored = created(&deployment(&template), &[&from]);
    let with = |at: &str, fields: Value| {
        let mut workload = stored.clone();
        json_patch::merge(workload.body.pointer_mut(at).unwrap(), &fields);
        workload
    };
    let off = json!({"annotations": {"scpol.dev/rollout": "false"}});
    let namespace = Some(Arc::new(json!({ "metadata": off })));
    let paused = with("/spec", json!({ "paused": true }));
    let job = object("batch", "jobs", &json!({"spec": {"containers": [app()], "restartPolicy": "Never"}}));
    for (workload, expected) in [
        (with("/metadata", off.clone()), Cause::RolloutOptedOut),
        (with("/spec/template/metadata", off.clone()), Cause::RolloutOptedOut),
        (stored.clone().within(namespace.clone()), Cause::RolloutOptedOut),
        (paused.clone(), Cause::RolloutOptedOut),
        (created(&job, &[&from]), Cause::EndsByItself),
    ] {
        for result in [update(&workload, &from, &to), removal(&workload, &revision(&from), &Policies::default())] {
            assert_eq!(result.unwrap_err().cause, expected, "{}", workload.body);
        }
    }
    assert!(update(&with("/metadata", json!({"annotations": {"scpol.dev/rollout": "true"}})), &from, &to).is_ok());
    let next = |workload: &Workload| {
        next_action(
            workload,
            [&revision(&from)],
            Goal { to: &to, policies: &policies(&[&to]), site: &site() },
            &Asked::default(),
        )
    };
    let left = next(&paused);
    assert!(matches!(&left, NextAction::Leave(left) if left.cause == Cause::RolloutOptedOut), "{left:?}");
    assert!(matches!(next(&stored), NextAction::PatchTemplate(_)));
    // The revision of the marker is not known, or is another one.
    for unknown in [None, Some(revision(&to))] {
        let result =
            template_update(&stored, unknown.as_ref(), Goal { to: &to, policies: &policies(&[&to]), site: &site() });
        assert_eq!(result.unwrap_err().cause, Cause::RevisionUnknown);
    }
    // A create would not be injected.
    let audit = policy("p", &json!({"mode": "Audit", "template": {"containers": [{"name": "e", "image": "e"}]}}));
    let elsewhere =
        policy("p", &json!({"namespaces": ["other"], "template": {"containers": [{"name": "e", "image": "e"}]}}));
    let clash = policy("p", &json!({"template": {"containers": [{"name": "app", "image": "e"}]}}));
    let opted_out = with("/metadata", json!({"annotations": {"scpol.dev/inject": "false"}}));
    for (workload, to, code) in [
        (&stored, &audit, Code::Audit),
        (&stored, &elsewhere, Code::NamespaceNotMatched),
        (&stored, &clash, Code::NameConflict),
        (&opted_out, &to, Code::OptedOut),
        (&with("/metadata", json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})), &to, Code::Terminating),
    ] {
        assert_eq!(update(workload, &from, to).unwrap_err().cause, Cause::NotInjected(code));
    }
    // A workload without the content gets it, whatever revision the caller knows.
    let bare = deployment(&template);
    for from in [None, Some(revision(&from))] {
        let change =
            template_update(&bare, from.as_ref(), Goal { to: &to, policies: &policies(&[&to]), site: &site() })
                .unwrap();
        assert_eq!(change.body, created(&bare, &[&to]).body);
    }
    // The policy in effect has another content, as in a namespace that waits for its step.
    let change = template_update(&bare, None, Goal { to: &to, policies: &policies(&[&from]), site: &site() }).unwrap();
    assert_eq!(carries(&bare.with_body(change.body), &to, &site()), Carries::This);
}

/// The result for a pod that was created under `from`, after `edit`.
fn judged(from: &Arc<Policy>, to: &Arc<Policy>, spec: &Value, edit: impl Fn(&mut Value)) -> NextAction {
    let mut stored = created(&pod(spec), &[from]);
    edit(&mut stored.body);
    next_action(
        &stored,
        Some(&revision(from)),
        Goal { to, policies: &policies(&[to]), site: &site() },
        &Asked { can_resize: true, ..Asked::default() },
    )
}

/// The changes of a pod in place, without the guard; the reason if there are none.
fn told(change: NextAction) -> (Value, Value) {
    match change {
        NextAction::InPlace { patch, resize } => {
            let patch = serde_json::to_value(patch).unwrap();
            let changes = patch
                .as_array()
                .unwrap()
                .iter()
                .skip(2)
                .filter(|operation| !operation["path"].as_str().unwrap().contains("injected.scpol.dev"));
            (changes.cloned().collect(), resize.map(|mut resize| resize["spec"].take()).unwrap_or_default())
        }
        NextAction::Evict { why } => (json!(why), json!("recreate")),
        NextAction::Leave(left) => (json!(left.message), json!("leave")),
        NextAction::UpToDate => (json!([]), Value::Null),
        action => panic!("{action:?}"),
    }
}

#[test]
fn a_running_pod_takes_images_labels_and_annotations_and_nothing_else() {
    let spec = |change: Value| {
        let mut spec = json!({
            "nativeSidecars": "Never",
            "template": {
                "containers": [{"name": "x", "image": "x:1", "args": ["a"]}],
                "initContainers": [
                    {"name": "n", "image": "n:1", "restartPolicy": "Always"}, {"name": "i", "image": "i:1"},
                ],
                "metadata": {"labels": {"l": "1", "old": "1"}, "annotations": {"a": "1"}},
                "env": [{"name": "E", "value": "1"}],
            },
        });
        json_patch::merge(&mut spec, &change);
        spec
    };
    let from = policy("p", &spec(json!({})));
    let template = |fields: Value| spec(json!({ "template": fields }));
    let x = |fields: Value| {
        let mut x = json!({"name": "x", "image": "x:1", "args": ["a"]});
        json_patch::merge(&mut x, &fields);
        template(json!({"containers": [x]}))
    };
    let inits = |n: &str, i: &str| {
        let n = json!({"name": "n", "image": n, "restartPolicy": "Always"});
        template(json!({"initContainers": [n, {"name": "i", "image": i}]}))
    };
    let replace = |path: &str, value: &str| json!({"op": "replace", "path": path, "value": value});
    for (to, expected) in [
        (x(json!({"image": "x:2"})), json!([replace("/spec/containers/1/image", "x:2")])),
        (inits("n:2", "i:1"), json!([replace("/spec/initContainers/0/image", "n:2")])),
        (
            template(json!({"metadata": {"labels": {"l": "2", "old": null, "new": "1"}, "annotations": {"a": "2"}}})),
            json!([
                replace("/metadata/annotations/a", "2"),
                replace("/metadata/labels/l", "2"),
                {"op": "add", "path": "/metadata/labels/new", "value": "1"},
                {"op": "remove", "path": "/metadata/labels/old"},
            ]),
        ),
        (
            template(json!({"metadata": null})),
            json!([
                {"op": "remove", "path": "/metadata/annotations/a"}, {"op": "remove", "path": "/metadata/labels"},
            ]),
        ),
        // Which containers get the variable is the same in this pod.
        (template(json!({"appContainers": ["app"]})), json!([])),
    ] {
        let to = policy("p", &to);
        assert_eq!(told(judged(&from, &to, &json!({"containers": [app()]}), |_| {})), (expected, Value::Null));
    }
    for (to, why) in [
        (inits("n:1", "i:2"), "differs in more"),
        (x(json!({"args": ["b"]})), "differs in more"),
        (x(json!({"image": "x:2", "env": [{"name": "U"}]})), "differs in more"),
        (x(json!({"image": "x"})), "needs another `imagePullPolicy`"),
        (template(json!({"env": [{"name": "E", "value": "2"}]})), "differs in more"),
        (template(json!({"env": null})), "items of `/spec/containers/app/env` are added, removed or moved"),
        (template(json!({"containers": null})), "items of `/spec/containers` are"),
        (template(json!({"volumes": [{"name": "v"}]})), "items of `/spec/volumes` are"),
        (template(json!({"imagePullSecrets": [{"name": "s"}]})), "items of `/spec/imagePullSecrets` are"),
        (spec(json!({"position": {"containers": "Before"}})), "items of `/spec/containers` are"),
        (spec(json!({"nativeSidecars": "Always"})), "items of `/spec/containers` are"),
        (
            template(
                json!({"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/x": "unconfined"}}}),
            ),
            "annotation `container.apparmor.security.beta.kubernetes.io/x` of a running pod cannot change",
        ),
    ] {
        let to = policy("p", &to);
        let (reason, kind) = told(judged(&from, &to, &json!({"containers": [app()]}), |_| {}));
        assert!(kind == "recreate" && reason.as_str().unwrap().contains(why), "{why}: {kind} {reason}");
    }
    let to = policy("p", &x(json!({"image": "x:2"})));
    let labelled = policy("p", &template(json!({"metadata": {"labels": {"l": "2"}}})));
    for (to, at, edited, why) in [
        (&to, "/spec/containers/1/image", json!("mirror/x:1"), "another image than either revision"),
        (&labelled, "/metadata/labels/l", json!("users"), "neither that of the earlier revision nor the new one"),
        (&labelled, "/metadata/labels/old", json!("users"), "neither that of the earlier revision nor the new one"),
    ] {
        let (reason, kind) = told(judged(&from, to, &json!({"containers": [app()]}), |body| {
            *body.pointer_mut(at).unwrap() = edited.clone();
        }));
        assert!(kind == "recreate" && reason.as_str().unwrap().contains(why), "{at}: {kind} {reason}");
    }
    // What admission adds to pods is no obstacle: a token, and resources of a LimitRange.
    let change = judged(&from, &to, &json!({"containers": [app()]}), |body| {
        for container in body["spec"]["containers"].as_array_mut().unwrap() {
            let token =
                json!({"name": "kube-api-access-1", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"});
            container["volumeMounts"] = json!([token]);
            container["resources"] = json!({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}});
        }
        body["spec"]["volumes"] = json!([{"name": "kube-api-access-1", "projected": {}}]);
    });
    assert_eq!(told(change).0, json!([replace("/spec/containers/1/image", "x:2")]));
}

#[test]
fn cpu_and_memory_of_a_running_pod_are_resized_if_the_server_allows_it() {
    let spec = |resources: &Value, image: &str| {
        let init = json!({"name": "i", "image": "i"});
        json!({"template": {"containers": [{"name": "x", "image": image, "resources": resources}], "initContainers": [init]}})
    };
    let limits = |cpu: &str| json!({"limits": {"cpu": cpu}});
    let both = |memory: &str| json!({"limits": {"memory": memory}, "requests": {"memory": "1Mi"}});
    let none = json!({});
    let as_pod = |resources: &Value| {
        let mut resources = resources.clone();
        for (name, amount) in resources["limits"].as_object().cloned().unwrap_or_default() {
            if resources["requests"][&name].is_null() {
                resources["requests"][name] = amount;
            }
        }
        resources
    };
    let resized = |resources: Value| json!({"containers": [{"name": "x", "resources": resources}]});
    let cases = [
        (limits("1"), limits("2"), None, 33, Ok(json!({"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}))),
        (
            limits("1"),
            json!({"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}}),
            None,
            33,
            Ok(json!({"requests": {"cpu": "500m"}})),
        ),
        (
            limits("1"),
            json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
            None,
            33,
            Ok(json!({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}})),
        ),
        // The attempt was cut off after the resize.
        (limits("1"), limits("2"), Some(limits("2")), 33, Ok(Value::Null)),
        (both("2Gi"), both("1Gi"), None, 34, Ok(json!({"limits": {"memory": "1Gi"}}))),
        (both("2Gi"), both("1Gi"), None, 33, Err("cannot become lower")),
        (both("2Gi"), both("3Gi"), None, 33, Ok(json!({"limits": {"memory": "3Gi"}}))),
        (limits("1"), none.clone(), None, 33, Err("cannot remove `resources.requests.cpu`")),
        (none.clone(), limits("1"), None, 33, Err("quality of service class")),
        // A LimitRange has set what the earlier revision did not.
        (
            limits("1"),
            json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
            Some(json!({"limits": {"cpu": "1", "memory": "512Mi"}})),
            33,
            Err("neither that of"),
        ),
        (limits("1"), limits("2"), Some(limits("1500m")), 33, Err("neither that of")),
        (limits("1"), json!({"limits": {"cpu": "1", "example.org/gpu": 1}}), None, 33, Err("differs in more")),
    ];
    for (old, new, there, minor, expected) in cases {
        let (from, to) = (policy("p", &spec(&old, "x:1")), policy("p", &spec(&new, "x:1")));
        let mut stored = created(&pod(&json!({"containers": [app()]})), &[&from]);
        stored.body["spec"]["containers"][1]["resources"] = as_pod(there.as_ref().unwrap_or(&old));
        let site = Site { minor: Some(minor), ..site() };
        let judge = |can_resize| {
            next_action(
                &stored,
                Some(&revision(&from)),
                Goal { to: &to, policies: &policies(&[&to]), site: &site },
                &Asked { can_resize, ..Asked::default() },
            )
        };
        let (changes, resize) = told(judge(true));
        match expected {
            Ok(resources) => {
                let expected = if resources.is_null() { Value::Null } else { resized(resources.clone()) };
                assert_eq!((changes, resize), (json!([]), expected), "{old} {new}");
                assert_eq!(told(judge(false)).1 == "recreate", !resources.is_null(), "{old} {new}");
            }
            Err(why) => {
                assert!(resize == "recreate" && changes.as_str().unwrap().contains(why), "{old} {new}: {changes}")
            }
        }
    }
    let (from, to) = (policy("p", &spec(&limits("1"), "x:1")), policy("p", &spec(&limits("2"), "x:2")));
    let judge = |fields: Value| {
        told(judged(&from, &to, &json!({"containers": [app()]}), |body| {
            body["spec"]["containers"][1]["resources"] = as_pod(&limits("1"));
            json_patch::merge(&mut body["spec"], &fields);
        }))
    };
    // Both at once: the resize is for that version of the pod, and so is the patch.
    let image = json!([{"op": "replace", "path": "/spec/containers/1/image", "value": "x:2"}]);
    assert_eq!(judge(json!({})), (image, resized(json!({"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}))));
    assert_eq!(judge(json!({"os": {"name": "windows"}})).1, "recreate");
    assert_eq!(judge(json!({"resources": {"limits": {"cpu": "8"}}})).1, "recreate");
}

#[test]
fn a_pod_is_created_again_only_if_a_controller_does_so_and_the_policy_would_be_injected() {
    let (from, to) = (policy("p", &envoy("envoy:1")), policy("p", &envoy("envoy:2")));
    let owner = |kind: &str, controls: bool| json!({"metadata": {"ownerReferences": [{"kind": kind, "name": "o", "controller": controls}]}});
    let spec = json!({"containers": [app()]});
    for (edit, cause) in [
        (json!({"metadata": {"ownerReferences": null}}), Cause::NotRecreated),
        (owner("ReplicaSet", false), Cause::NotRecreated),
        (owner("Node", true), Cause::NotRecreated),
        (owner("Workflow", true), Cause::NotRecreated),
        (
            json!({"metadata": {"ownerReferences": [{"apiVersion": "apps.kruise.io/v1", "kind": "StatefulSet", "name": "o", "controller": true}]}}),
            Cause::NotRecreated,
        ),
        (
            json!({"metadata": {"ownerReferences": null, "annotations": {"kubernetes.io/config.mirror": "x"}}}),
            Cause::NotRecreated,
        ),
        (owner("Job", true), Cause::EndsByItself),
        (json!({"spec": {"restartPolicy": "OnFailure"}}), Cause::EndsByItself),
        (json!({"metadata": {"annotations": {"scpol.dev/rollout": "false"}}}), Cause::RolloutOptedOut),
        (json!({"metadata": {"annotations": {"scpol.dev/inject": "false"}}}), Cause::NotInjected(Code::OptedOut)),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), Cause::NotInjected(Code::Terminating)),
    ] {
        let change = judged(&from, &to, &spec, |body| json_patch::merge(body, &edit));
        assert!(matches!(&change, NextAction::Leave(left) if left.cause == cause), "{edit}: {change:?}");
        // Nor for a restart, unless the policy alone decides.
        let mut body = created(&pod(&spec), &[&from]).body;
        json_patch::merge(&mut body, &edit);
        let left = untouchable(&pod(&spec).with_body(body)).map(|left| left.cause);
        assert_eq!(left, Some(cause).filter(|cause| !matches!(cause, Cause::NotInjected(_))), "{edit}");
    }
    let judge = |stored: &Workload, from: Option<&Revision>, to: &Arc<Policy>| {
        next_action(
            stored,
            from,
            Goal { to, policies: &policies(&[to]), site: &site() },
            &Asked { can_resize: true, ..Asked::default() },
        )
    };
    let (bare, stored) = (pod(&spec), created(&pod(&spec), &[&from]));
    let clash = policy("p", &json!({"template": {"containers": [{"name": "app", "image": "other"}]}}));
    assert!(matches!(judge(&bare, None, &to), NextAction::Evict { .. }), "it was missed");
    assert!(matches!(judge(&stored, None, &to), NextAction::Evict { .. }), "its revision is unknown");
    assert!(matches!(judge(&bare, None, &clash), NextAction::Leave(_)), "it would be missed again");
    assert!(matches!(judge(&stored, Some(&revision(&from)), &clash), NextAction::Leave(_)));
    let mut unreadable = stored.clone();
    unreadable.body["metadata"]["annotations"]["injected.scpol.dev/p"] = json!("garbage");
    assert!(matches!(judge(&unreadable, None, &to), NextAction::Leave(_)), "its `envoy` may be in the user's template");
    assert_eq!(judge(&stored, Some(&revision(&from)), &from), NextAction::UpToDate);
}

#[test]
fn containers_of_a_policy_with_an_earlier_template_are_not_the_users() {
    let spec = |value: &str| {
        let template = json!({"containers": [{"name": "x", "image": "x"}], "env": [{"name": "A", "value": value}]});
        json!({ "template": template })
    };
    let (from, to) = (policy("p", &spec("1")), policy("p", &spec("2")));
    let theirs = |name: &str| json!({"name": name, "image": "p", "env": [{"name": "A", "value": "theirs"}]});
    let of_other = |name: &str| policy("other", &json!({"template": {"containers": [theirs(name)]}}));
    let (old, new) = (of_other("earlier"), of_other("later"));
    let stored = created(&deployment(&json!({"spec": {"containers": [app()]}})), &[&from, &old]);
    let change = template_update(
        &stored,
        Some(&revision(&from)),
        Goal { to: &to, policies: &policies(&[&to, &new]), site: &site() },
    )
    .unwrap();
    let containers = change.body["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    let variables: Vec<_> = containers.iter().map(|item| (&item["name"], &item["env"][0]["value"])).collect();
    assert_eq!(json!(variables), json!([["app", "2"], ["earlier", "theirs"], ["x", null]]));
    assert_eq!(carries(&stored.with_body(change.body), &old, &site()), Carries::This);
}

/// The action on `workload`, whose policy `to` has the known revision `from`, in short.
fn acted(workload: &Workload, from: &Policy, to: &Arc<Policy>, asked: &Asked<'_>) -> String {
    let action =
        next_action(workload, Some(&revision(from)), Goal { to, policies: &policies(&[to]), site: &site() }, asked);
    match action {
        NextAction::UpToDate => "up to date".to_owned(),
        NextAction::Leave(left) => format!("leave: {}", left.cause.code()),
        NextAction::PatchTemplate(patch) => format!("patch template: {} operations", patch.0.len()),
        NextAction::RestartTemplate(_) => "restart template".to_owned(),
        NextAction::InPlace { patch, resize } => format!("in place: {} {}", !patch.0.is_empty(), resize.is_some()),
        NextAction::Evict { why } => format!("evict: {why}"),
    }
}

#[test]
fn each_workload_has_one_next_action() {
    let spec = |image: &str, cpu: &str| {
        let limits = json!({"cpu": cpu});
        let x = json!({"name": "x", "image": image, "resources": {"requests": limits, "limits": limits}});
        policy("p", &json!({"template": {"containers": [x]}}))
    };
    let (from, image, cpu) = (spec("x:1", "1"), spec("x:2", "1"), spec("x:1", "2"));
    let volume = policy("p", &json!({"template": {"volumes": [{"name": "v"}]}}));
    let at = |workload: Workload, change: Value| {
        let mut body = workload.body.clone();
        json_patch::merge(&mut body, &change);
        workload.with_body(body)
    };
    let template = |by: &Arc<Policy>| created(&deployment(&json!({"spec": {"containers": [app()]}})), &[by]);
    let running = |by: &Arc<Policy>| created(&pod(&json!({"containers": [app()]})), &[by]);
    let created_at = |time: &str| json!({"metadata": {"creationTimestamp": time}});
    let (noon, one, two) = ("2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z", "2026-01-01T14:00:00Z");
    let by_kubectl = |time: &str| json!({"spec": {"template": {"metadata": {"annotations": {RESTARTED: time}}}}});
    let opted_out = json!({"metadata": {"annotations": {"scpol.dev/rollout": "false"}}});
    let plain = Asked { can_resize: true, ..Asked::default() };
    let restarted = Asked { restarted: Some(one.parse().unwrap()), ..plain };
    let carrier = Asked { carrier: Some("ReplicaSet/web-1"), ..plain };
    let of_carrier = Asked { restarted: restarted.restarted, ..carrier };
    let recreate = Asked { pod_update: PodUpdate::Recreate, ..plain };
    for (workload, to, asked, expected) in [
        (template(&from), &from, &plain, "up to date"),
        (template(&from), &image, &plain, "patch template: 4 operations"),
        (template(&from), &image, &carrier, "patch template: 4 operations"),
        (at(template(&from), opted_out.clone()), &image, &plain, "leave: SCP0414"),
        // A restart counts by the last restart of kubectl, or by the age, whichever is later.
        (at(template(&from), created_at(noon)), &from, &restarted, "restart template"),
        (at(template(&from), created_at(one)), &from, &restarted, "up to date"),
        (at(at(template(&from), created_at(noon)), by_kubectl(two)), &from, &restarted, "up to date"),
        (at(at(template(&from), created_at(two)), by_kubectl(noon)), &from, &restarted, "up to date"),
        (at(at(template(&from), created_at(noon)), by_kubectl("soon")), &from, &restarted, "restart template"),
        (template(&from), &from, &restarted, "restart template"),
        (at(template(&from), opted_out.clone()), &from, &restarted, "leave: SCP0414"),
        (running(&from), &from, &plain, "up to date"),
        (running(&from), &image, &plain, "in place: true false"),
        (running(&from), &cpu, &plain, "in place: true true"),
        (
            running(&from),
            &cpu,
            &Asked::default(),
            "evict: its resources cannot change while it runs: the server cannot resize pods",
        ),
        (running(&from), &volume, &plain, "evict: items of `/spec/containers` are added, removed or moved"),
        (running(&from), &image, &recreate, "evict: `spec.updateStrategy.rollingUpdate.podUpdate` is `Recreate`"),
        (pod(&json!({"containers": [app()]})), &from, &plain, "evict: it does not carry the template"),
        (at(running(&from), opted_out), &image, &plain, "leave: SCP0414"),
        (running(&from), &image, &carrier, "leave: SCP0418"),
        (running(&from), &from, &carrier, "up to date"),
        // The planner saw the pod of before. The one of that name now began after the restart.
        (at(running(&from), created_at(two)), &from, &restarted, "up to date"),
        (at(running(&from), created_at(noon)), &from, &restarted, "evict: `scpol rollout restart` asks for it"),
        (at(running(&from), by_kubectl(two)), &from, &restarted, "evict: `scpol rollout restart` asks for it"),
        (at(running(&from), created_at(noon)), &from, &of_carrier, "leave: SCP0418"),
    ] {
        assert_eq!(acted(&workload, &from, to, asked), expected, "{}", workload.body);
    }
}

#[test]
fn two_contents_tell_the_way_between_them() {
    let base = json!({
        "template": {
            "containers": [{"name": "x", "image": "x:1", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}],
            "initContainers": [{"name": "i", "image": "i:1"}, {"name": "n", "image": "n:1", "restartPolicy": "Always"}],
            "metadata": {"labels": {"l": "1"}, "annotations": {"a": "1"}},
            "env": [{"name": "E", "value": "1"}],
        },
    });
    let changed = |path: &str, value: Value| {
        let mut spec = base.clone();
        let (parent, field) = path.rsplit_once('/').unwrap();
        spec.pointer_mut(parent).unwrap()[field] = value;
        policy("p", &spec)
    };
    let (x, env) = ("/template/containers/0", json!([{"name": "E", "value": "2"}]));
    let armor = "container.apparmor.security.beta.kubernetes.io/x";
    let from = policy("p", &base);
    let bare = pod(&json!({"containers": [app()]}));
    let (pods, asked) = (&bare.kind, Asked { can_resize: true, ..Asked::default() });
    let site = Site { minor: Some(33), ..site() };
    for (to, way) in [
        (changed(&format!("{x}/image"), json!("x:2")), Way::InPlace),
        (changed("/template/initContainers/1/image", json!("n:2")), Way::InPlace),
        (changed("/template/metadata", json!(null)), Way::InPlace),
        (changed("/template/metadata/labels", json!({"l": "2", "new": "1"})), Way::InPlace),
        (changed("/template/metadata/annotations", json!({})), Way::InPlace),
        (changed(&format!("{x}/resources/requests"), json!({"cpu": "2"})), Way::InPlace),
        (changed(&format!("{x}/resources/requests"), json!({"cpu": "1000m"})), Way::InPlace),
        (changed(&format!("{x}/resources/limits"), json!({"memory": "2Gi"})), Way::InPlace),
        // The server cannot lower it, remove it, or change what has no limit.
        (changed(&format!("{x}/resources/limits"), json!({"memory": "1Mi"})), Way::Evict),
        (changed(&format!("{x}/resources/requests"), json!({})), Way::Evict),
        (changed(&format!("{x}/resources/limits"), json!({"memory": "1Gi", "example.org/gpu": 1})), Way::Evict),
        (changed(&format!("{x}/image"), json!("x")), Way::Evict),
        (changed(&format!("{x}/args"), json!(["a"])), Way::Evict),
        (changed("/template/initContainers/0/image", json!("i:2")), Way::Evict),
        (changed("/template/containers", json!([])), Way::Evict),
        (changed("/template/containers", json!([{"name": "y", "image": "x:1"}])), Way::Evict),
        (changed("/template/initContainers", json!([])), Way::Evict),
        (changed("/template/env", env), Way::Evict),
        (changed("/template/volumes", json!([{"name": "v"}])), Way::Evict),
        (changed("/template/metadata/annotations", json!({armor: "unconfined"})), Way::Evict),
        (changed("/position", json!({"containers": "Before"})), Way::Evict),
        (changed("/nativeSidecars", json!("Always")), Way::Evict),
        // Nothing changes: it is a restart.
        (from.clone(), Way::Evict),
    ] {
        let told = serde_json::to_string(&to.spec).unwrap();
        let known = revision(&from);
        assert_eq!(expected(pods, Some(&known), &to, &site, &asked), way, "{told}");
        assert_eq!(expected(pods, None, &to, &site, &asked), Way::Evict);
        let recreate = Asked { pod_update: PodUpdate::Recreate, ..asked };
        assert_eq!(expected(pods, Some(&known), &to, &site, &recreate), Way::Evict);
        assert_eq!(expected(&deployment(&json!({})).kind, Some(&known), &to, &site, &asked), Way::Template);
        let mut stored = created(&bare, &[&from]);
        stored.body["spec"]["containers"][1]["resources"]["requests"]["memory"] = json!("1Gi");
        let action =
            next_action(&stored, Some(&known), Goal { to: &to, policies: &policies(&[&to]), site: &site }, &asked);
        assert_eq!(matches!(action, NextAction::InPlace { .. }), way == Way::InPlace, "{told}: {action:?}");
    }
    // A revision of before these rules may have any content.
    let mut odd = Content::of(&from.spec).unwrap();
    odd.template.containers[0]["resources"] = json!({"requests": "much", "limits": {"cpu": 1}});
    assert_eq!(expected(pods, Some(&Revision::new("p", 1, odd)), &from, &site, &asked), Way::Evict);
}

#[test]
fn a_replacement_has_the_new_content_and_nothing_that_a_server_sets() {
    let spec = |image: &str, cpu: &str| {
        let limits = json!({"cpu": cpu});
        let x = json!({"name": "x", "image": image, "resources": {"requests": limits, "limits": limits}});
        policy("p", &json!({"template": {"containers": [x]}}))
    };
    let (from, to) = (spec("x:1", "1"), spec("x:2", "2"));
    let mut stored = created(&pod(&json!({"containers": [app()]})), &[&from]);
    let by_server = json!({
        "metadata": {
            "labels": {"app": "web"}, "creationTimestamp": "2026-01-01T12:00:00Z", "generation": 3,
            "managedFields": [{}], "deletionGracePeriodSeconds": 1, "finalizers": ["x"],
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {"nodeName": "n", "priority": 0, "preemptionPolicy": "Never", "overhead": {}, "ephemeralContainers": [], "tolerations": []},
        "status": {"phase": "Running"},
    });
    json_patch::merge(&mut stored.body, &by_server);
    let asked = Asked { can_resize: true, ..Asked::default() };
    let action = next_action(
        &stored,
        Some(&revision(&from)),
        Goal { to: &to, policies: &policies(&[&to]), site: &site() },
        &asked,
    );
    let NextAction::InPlace { patch, resize: Some(resize) } = action else { panic!("{action:?}") };
    let mut tried = replacement(&stored, &patch, Some(&resize));
    let marker = tried["metadata"]["annotations"].take();
    assert!(marker["injected.scpol.dev/p"].as_str().unwrap().contains(to.template_hash()), "{marker}");
    let limits = json!({"cpu": "2"});
    let x = json!({"name": "x", "image": "x:2", "resources": {"requests": limits, "limits": limits}});
    let expected = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": "web-", "namespace": "shop", "labels": {"app": "web"}, "annotations": null,
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": true}],
        },
        "spec": {"containers": [app(), x], "tolerations": []},
    });
    assert_eq!(tried, expected);
}

#[test]
fn the_part_of_one_policy_is_updated_where_it_stands_between_those_of_others_and_the_users() {
    let joins = |name: &str, text: &str| {
        let env = json!([{"name": "OPTIONS", "value": text, "merge": "Append"}]);
        policy(name, &json!({"template": {"env": env}}))
    };
    let (old, new, other) = (joins("a", "-a=1"), joins("a", "-a=2"), joins("b", "-b"));
    let original = |value: &str| {
        let container = json!({"name": "app", "image": "app:1", "env": [{"name": "OPTIONS", "value": value}]});
        deployment(&json!({"spec": {"containers": [container]}}))
    };
    let stored = created(&original("-users"), &[&old, &other]);
    let expected = created(&original("-users"), &[&new, &other]);
    let goal = Goal { to: &new, policies: &policies(&[&new, &other]), site: &site() };
    let change = template_update(&stored, Some(&revision(&old)), goal).unwrap();
    assert_eq!(change.body, expected.body);
    assert_eq!(carries(&stored.with_body(change.body.clone()), &new, &site()), Carries::This);
    let mut edited = stored.clone();
    let value = edited.body.pointer_mut("/spec/template/spec/containers/0/env/0/value").unwrap();
    *value = "-users=2 -a=1 -more -b".into();
    let change = template_update(&edited, Some(&revision(&old)), goal).unwrap();
    assert_eq!(change.body.pointer("/spec/template/spec/containers/0/env/0/value").unwrap(), "-users=2 -a=2 -more -b");
    let back = removal(&edited, &revision(&old), &policies(&[&other])).unwrap();
    assert_eq!(back.body.pointer("/spec/template/spec/containers/0/env/0/value").unwrap(), "-users=2 -more -b");
    let mut without = stored;
    *without.body.pointer_mut("/spec/template/spec/containers/0/env/0/value").unwrap() = "-users".into();
    let left = template_update(&without, Some(&revision(&old)), goal).unwrap_err();
    assert_eq!(left.cause, Cause::ContentEdited);
}

#[test]
fn what_is_shared_and_the_fields_of_the_pod_follow_an_update_and_hinder_none() {
    let shares = |image: &str, seconds: i64| {
        let template = json!({
            "containers": [{"name": "agent", "image": image}], "share": [{"to": "agent", "volumeMounts": ["*"]}],
            "pod": {"terminationGracePeriodSeconds": {"atLeast": seconds}, "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}]},
        });
        policy("p", &json!({ "template": template }))
    };
    let users = |paths: &[&str]| {
        let mounts: Vec<Value> = paths.iter().map(|path| json!({"name": "v", "mountPath": path})).collect();
        json!({"containers": [{"name": "app", "image": "app:1", "volumeMounts": mounts}], "volumes": [{"name": "v", "emptyDir": {}}]})
    };
    let original = |paths: &[&str]| deployment(&json!({"spec": users(paths)}));
    let (old, new, image) = (shares("agent:1", 60), shares("agent:2", 90), shares("agent:2", 60));
    let mut stored = created(&original(&["/v"]), &[&old]);
    assert_eq!(carries(&stored, &old, &site()), Carries::This);
    assert_eq!(update(&stored, &old, &new).unwrap().body, created(&original(&["/v"]), &[&new]).body);
    stored.body["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] =
        users(&["/w"])["containers"][0]["volumeMounts"].clone();
    assert_eq!(carries(&stored, &old, &site()), Carries::This, "only a new revision changes what is shared");
    let there = |mut body: Value| body["spec"]["template"]["spec"].take();
    let updated = update(&stored, &old, &new).unwrap().body;
    assert_eq!(there(updated), there(created(&original(&["/w"]), &[&new]).body));
    let back = removal(&stored, &revision(&old), &policies(&[])).unwrap();
    assert_eq!(back.body["spec"]["template"]["spec"], original(&["/w"]).body["spec"]["template"]["spec"]);
    let running = created(&pod(&users(&["/v"])), &[&old]);
    for (to, in_place) in [(&image, true), (&new, false)] {
        let goal = Goal { to, policies: &policies(&[to]), site: &site() };
        let action = pod::change(&running, Some(&revision(&old)), goal, true);
        assert_eq!(matches!(action, NextAction::InPlace { .. }), in_place, "{action:?}");
    }
}

#[test]
fn what_a_container_of_a_policy_shares_is_never_that_of_a_policy_that_adds_the_same_to_the_users() {
    let shares = |name: &str| {
        let template = json!({"containers": [{"name": name, "image": "agent"}], "share": [{"to": name, "env": ["*"]}]});
        policy("zzz", &json!({ "template": template }))
    };
    let original = |users: &Value| {
        let env = json!([users]);
        deployment(&json!({"spec": {"containers": [{"name": "app", "image": "app:1", "env": env}]}}))
    };
    let joined = json!({"name": "A", "value": "-x", "merge": "Append"});
    let equal = json!({"name": "A", "value": "1"});
    for (users, variable) in [(json!({"name": "A"}), joined.clone()), (equal.clone(), joined), (equal.clone(), equal)] {
        // Its marker lists something in any case.
        let volumes = json!([{"name": "v", "emptyDir": {}}]);
        let other = policy("alpha", &json!({"template": {"env": [variable], "volumes": volumes}}));
        let (from, to) = (shares("agent"), shares("proxy"));
        let stored = created(&original(&users), &[&from, &other]);
        let shared = "/spec/template/spec/containers/agent/env/A".to_owned();
        assert!(from.marker(&stored).unwrap().added.contains(&shared));
        let updated = |to: &Arc<Policy>| {
            let goal = Goal { to, policies: &policies(&[to, &other]), site: &site() };
            template_update(&stored, Some(&revision(&from)), goal).map(|change| change.body)
        };
        assert_eq!(updated(&from), Ok(stored.body.clone()), "{variable}");
        assert_eq!(updated(&to), Ok(created(&original(&users), &[&to, &other]).body), "{variable}");
        let removed = removal(&stored, &revision(&from), &policies(&[&other])).map(|change| change.body);
        assert_eq!(removed, Ok(created(&original(&users), &[&other]).body), "{variable}");
    }
}
