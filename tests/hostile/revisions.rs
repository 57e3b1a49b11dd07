//! Stored revisions, times and numbers that others have written.

use crate::commands::scpol;
use crate::prelude::*;
use crate::rollouts::{
    Controllers, REVISIONS, create_in, image_in, image_of, namespaces, new_in, progressing, rolling, status,
    wait_images, wait_progress, world,
};
use crate::runner::on_each;
use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use sidecar_policy::content::{Content, Revision};

crate::tests![
    a_restart_ahead_of_the_clock_makes_everything_anew_once = on_each([Version::V1_30, Version::V1_13], restart_once),
    a_restart_follows_the_clock_of_the_server,
    a_resume_ahead_of_the_clock_ends_one_pause,
    one_pod_with_extreme_numbers_stops_no_other_rollout,
    an_earlier_content_that_the_flags_do_not_allow_any_more_is_delivered_nowhere =
        on_each([Version::V1_30, Version::V1_13], not_allowed_any_more),
    revisions_of_a_policy_that_had_the_name_before_do_not_count,
    a_revision_that_somebody_else_wrote_is_never_delivered,
    after_the_largest_number_revisions_get_small_ones = on_each([Version::V1_30, Version::V1_13], small_numbers),
    a_revision_that_the_server_refuses_holds_up_its_policy_alone,
];

/// Sets an annotation of a policy.
async fn annotate(world: &World, policy: &str, key: &str, value: &str) -> Result<()> {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { key: value } } }));
    policies(&world.cluster).patch(policy, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn ahead(minutes: i64) -> String {
    (Timestamp::now() + SignedDuration::from_mins(minutes)).to_string()
}

/// How often each of three Deployments has been rolled.
async fn generations(world: &World) -> Result<Vec<i64>> {
    let mut generations = Vec::new();
    for name in ["a", "b", "c"] {
        let stored = world.get(&path(name)).await?.context("it is there")?;
        generations.push(stored["metadata"]["generation"].as_i64().unwrap_or_default());
    }
    Ok(generations)
}

/// Three Deployments under a policy that rolls, all up to date.
async fn three(world: &World) -> Result<Vec<i64>> {
    world.enforce("envoy", rolling("envoy:1", json!({ "maxUnavailable": 2 }))).await?;
    for name in ["a", "b", "c"] {
        world.create_promptly(DEPLOYMENTS, &deployment(name)).await?;
    }
    wait_progress(world, "envoy", "Complete").await?;
    generations(world).await
}

async fn restart_once(version: Version) -> Result<()> {
    let (world, operator) = world(version).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    let before = three(&world).await?;
    // Creation times are in whole seconds: what was created in the second of a restart is not made anew.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let once: Vec<i64> = before.iter().map(|generation| generation + 1).collect();
    annotate(&world, "envoy", "scpol.dev/restartedAt", &ahead(10)).await?;
    within(LIMIT, "all are made anew", || async {
        Ok(generations(&world).await?.iter().zip(&before).all(|(now, before)| now > before))
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(generations(&world).await?, once);
    // Nor by the next leader.
    operator.kill().await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    wait_progress(&world, "envoy", "Complete").await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(generations(&world).await?, once, "by the next leader");
    // Nor after an edit, which rolls each once more.
    world.edit_policy("envoy", json!({ "template": rolling("envoy:2", Value::Null)["template"] })).await?;
    wait_images(&world, &["a", "b", "c"], "envoy:2").await?;
    wait_progress(&world, "envoy", "Complete").await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let twice: Vec<i64> = before.iter().map(|generation| generation + 2).collect();
    assert_eq!(generations(&world).await?, twice, "after an edit");
    // A time that nobody can read is named, and does nothing.
    annotate(&world, "envoy", "scpol.dev/restartedAt", "9999-12-31T23:59:59Z").await?;
    within(LIMIT, "the annotation is named", || async {
        Ok(progressing(&world, "envoy").await?.1.contains("`scpol.dev/restartedAt` is no time"))
    })
    .await?;
    assert_eq!(generations(&world).await?, twice);
    Ok(())
}

async fn a_restart_follows_the_clock_of_the_server() -> Result<()> {
    let (world, _operator) = world(Version::V1_30).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    let before = three(&world).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (code, said) = scpol(&world.cluster, &["rollout", "restart", "envoy"]).await?;
    assert_eq!((code, said.as_str()), (0, "sidecarpolicy.scpol.dev/envoy restarted\n"));
    let annotations = policies(&world.cluster).get("envoy").await?.metadata.annotations.unwrap_or_default();
    let asked: Timestamp = annotations["scpol.dev/restartedAt"].parse()?;
    let off = Timestamp::now().duration_since(asked);
    ensure!((SignedDuration::ZERO..SignedDuration::from_secs(30)).contains(&off), "{off:?}");
    within(LIMIT, "all are made anew", || async {
        Ok(generations(&world).await?.iter().zip(&before).all(|(now, before)| now > before))
    })
    .await?;
    wait_progress(&world, "envoy", "Complete").await.map(drop)
}

async fn a_resume_ahead_of_the_clock_ends_one_pause() -> Result<()> {
    let (world, _operator) = world(Version::V1_30).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    namespaces(&world, &["canary", "shop", "late"]).await?;
    let steps = json!([
        { "namespaces": ["canary"] }, { "pause": {} }, { "namespaces": ["shop"] }, { "pause": {} }, { "percent": 100 },
    ]);
    let mut spec = rolling("envoy:1", json!({ "steps": steps, "maxUnavailable": "100%" }));
    spec["namespaces"] = json!(["canary", "shop", "late"]);
    world.enforce("envoy", spec).await?;
    for namespace in ["canary", "shop", "late"] {
        create_in(&world, namespace, "web").await?;
    }
    wait_progress(&world, "envoy", "Complete").await?;
    world.edit_policy("envoy", json!({ "template": rolling("envoy:2", Value::Null)["template"] })).await?;
    wait_progress(&world, "envoy", "Paused").await?;
    assert_eq!(image_in(&world, "shop", "web").await?, "envoy:1");
    annotate(&world, "envoy", "scpol.dev/resumedAt", &ahead(10)).await?;
    within(LIMIT, "the next step begins", || async { Ok(image_in(&world, "shop", "web").await? == "envoy:2") }).await?;
    within(LIMIT, "it pauses again", || async {
        let (reason, message) = progressing(&world, "envoy").await?;
        Ok(reason == "Paused" && message.contains("step 4"))
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(progressing(&world, "envoy").await?.0, "Paused", "the resume was for the first pause");
    assert_eq!(image_in(&world, "late", "web").await?, "envoy:1");
    Ok(())
}

async fn one_pod_with_extreme_numbers_stops_no_other_rollout() -> Result<()> {
    let (world, operator) = world(Version::V1_30).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    let mut of_pods = rolling("envoy:1", json!({ "maxUnavailable": 1 }));
    of_pods["targets"] = json!([{ "group": "", "resource": "pods" }]);
    of_pods["template"]["containers"][0]["name"] = json!("log");
    world.policy("a-log", of_pods).await?;
    world.policy("envoy", rolling("envoy:1", json!({ "maxUnavailable": 1 }))).await?;
    for policy in ["a-log", "envoy"] {
        in_force(&world.cluster, policy).await?;
    }
    world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    let model = json!({ "metadata": { "name": "model" }, "spec": pod_template("model")["spec"] });
    let model = world.create(PODS, &model).await?;
    let marker = &model["metadata"]["annotations"]["injected.scpol.dev/a-log"];
    ensure!(marker.is_string(), "{model}");
    // The marker is copied, and the numbers are extreme.
    let mut pod = json!({
        "metadata": { "name": "hostile", "annotations": { "injected.scpol.dev/a-log": marker } },
        "spec": { "terminationGracePeriodSeconds": i64::MAX, "containers": model["spec"]["containers"] },
    });
    pod["spec"]["containers"].as_array_mut().into_iter().flatten().for_each(|container| {
        container.as_object_mut().map(|fields| fields.remove("volumeMounts"));
    });
    world.create(PODS, &pod).await?;
    let statuses = |restarts: i32| {
        json!([{
            "name": "log", "image": "other:1", "imageID": "", "ready": true, "restartCount": restarts,
            "state": { "running": {} }, "lastState": {},
        }])
    };
    let status = json!({
        "phase": "Running", "containerStatuses": statuses(i32::MAX),
        "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "9998-01-01T00:00:00Z" }],
    });
    world
        .patch(&format!("{PODS}/hostile/status"), &json!([{ "op": "add", "path": "/status", "value": status }]))
        .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    for policy in ["a-log", "envoy"] {
        let container = if policy == "envoy" { "envoy" } else { "log" };
        let template = json!({ "containers": [{ "name": container, "image": "envoy:2" }] });
        world.edit_policy(policy, json!({ "template": template })).await?;
    }
    wait_images(&world, &["web"], "envoy:2").await?;
    wait_progress(&world, "envoy", "Complete").await?;
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}

/// A policy that rolls out `image` in steps: first to the namespace `canary`.
fn stepped(image: &str, rest: &Value) -> Value {
    let mut rolling_update =
        json!({ "steps": [{ "namespaces": ["canary"] }, { "pause": {} }], "maxUnavailable": "100%" });
    for (field, value) in rest.as_object().into_iter().flatten() {
        rolling_update[field] = value.clone();
    }
    json!({
        "namespaces": ["canary", "shop"], "template": { "containers": [{ "name": "envoy", "image": image }] },
        "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": rolling_update },
    })
}

fn image(image: &str) -> Value {
    sidecar_of("envoy", image)
}

async fn not_allowed_any_more(version: Version) -> Result<()> {
    let (world, operator) = world(version).await?.operated(&[]).await?;
    let controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    namespaces(&world, &["canary", "shop"]).await?;
    let rest = json!({ "onFailure": "Undo", "progressDeadlineSeconds": 2 });
    world.enforce("envoy", stepped("bad/x:1", &rest)).await?;
    for namespace in ["canary", "shop"] {
        assert_eq!(create_in(&world, namespace, "web").await?, "bad/x:1");
    }
    wait_progress(&world, "envoy", "Complete").await?;
    operator.stop().await?;
    let _operator = Operator::ready(&world.cluster, &["--allowed-images=good/*"]).await?;
    wait_condition(&world.cluster, "envoy", "Accepted", "False", "ImageNotAllowed").await?;
    world.edit_policy("envoy", image("good/x:1")).await?;
    in_force(&world.cluster, "envoy").await?;
    let new = async |namespace: &str| new_in(&world.creator, version, namespace).await;
    for namespace in ["shop", "canary"] {
        assert_eq!(new(namespace).await?, "good/x:1", "{namespace}");
    }
    // What exists keeps the pace of the steps.
    let message = wait_progress(&world, "envoy", "Paused").await?;
    assert!(message.contains("SCP0420"), "{message}");
    assert_eq!(image_in(&world, "canary", "web").await?, "good/x:1");
    assert_eq!(image_in(&world, "shop", "web").await?, "bad/x:1");

    // A rollout that fails does not go back to it.
    controllers.stick("web");
    world.edit_policy("envoy", image("good/x:2")).await?;
    within(LIMIT, "it is halted", || async { Ok(status(&world, "envoy").await?["halted"] == true) }).await?;
    within(LIMIT, "it says why it does not go back", || async {
        let status = status(&world, "envoy").await?;
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready").unwrap_or_default();
        Ok(ready["message"].as_str().is_some_and(|message| message.contains("SCP0420")))
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(image_in(&world, "canary", "web").await?, "good/x:2");
    for namespace in ["shop", "canary"] {
        assert_eq!(new(namespace).await?, "good/x:2", "{namespace}");
    }
    // Nor does a command bring it back: the flags judge the spec.
    scpol(&world.cluster, &["rollout", "undo", "envoy", "--to-revision=1"]).await?;
    wait_condition(&world.cluster, "envoy", "Accepted", "False", "ImageNotAllowed").await?;
    for namespace in ["shop", "canary"] {
        assert_ne!(new(namespace).await?, "bad/x:1", "{namespace}");
    }
    Ok(())
}

async fn revisions_of_a_policy_that_had_the_name_before_do_not_count() -> Result<()> {
    let (world, _operator) = world(Version::V1_30).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    namespaces(&world, &["canary", "shop"]).await?;
    world.enforce("envoy", stepped("old/x:1", &Value::Null)).await?;
    wait_progress(&world, "envoy", "Complete").await?;
    // Nothing collects garbage on this server, as after `kubectl delete --cascade=orphan`.
    world.delete_policy("envoy").await?;
    world.enforce("envoy", stepped("new/x:1", &Value::Null)).await?;
    let new = async |namespace: &str| new_in(&world.creator, Version::V1_30, namespace).await;
    assert_eq!([new("canary").await?, new("shop").await?], ["new/x:1", "new/x:1"]);
    wait_progress(&world, "envoy", "Complete").await?;
    let (code, said) = scpol(&world.cluster, &["rollout", "history", "envoy", "-o", "json"]).await?;
    let history: Value = serde_json::from_str(&said)?;
    assert_eq!((code, history["items"].as_array().map(Vec::len)), (0, Some(1)), "{history}");
    assert_eq!((&history["items"][0]["revision"], &history["ignored"][0]["code"]), (&json!(1), &json!("SCP0419")));

    // The steps begin from its own content, and the content of the other one can be its own.
    world.edit_policy("envoy", image("old/x:1")).await?;
    wait_progress(&world, "envoy", "Paused").await?;
    assert_eq!([new("canary").await?, new("shop").await?], ["old/x:1", "new/x:1"]);
    let (_, said) = scpol(&world.cluster, &["rollout", "history", "envoy", "-o", "json"]).await?;
    let history: Value = serde_json::from_str(&said)?;
    assert_eq!(history["items"].as_array().map(Vec::len), Some(2), "{history}");
    assert_eq!(history["ignored"], json!([]));
    Ok(())
}

async fn a_revision_that_somebody_else_wrote_is_never_delivered() -> Result<()> {
    let (world, operator) = world(Version::V1_30).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    namespaces(&world, &["canary", "shop"]).await?;
    world.enforce("envoy", stepped("mine/x:1", &json!({ "onFailure": "Undo" }))).await?;
    wait_progress(&world, "envoy", "Complete").await?;
    let uid = policies(&world.cluster).get("envoy").await?.metadata.uid.unwrap_or_default();
    let evil: Content = serde_json::from_value(image("evil/x:1"))?;
    let hash = Revision::new("envoy", 1, evil.clone()).hash;
    let write = async |name: &str, uid: &str, number: i64| {
        let revision = json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision",
            "metadata": {
                "name": name,
                "labels": { "app.kubernetes.io/managed-by": "scpol", "scpol.dev/policy": "envoy" },
                "annotations": { "scpol.dev/complete": "9999-01-01T00:00:00Z" },
                "ownerReferences": [{ "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "name": "envoy", "uid": uid }],
            },
            "data": evil, "revision": number,
        });
        request(&world.admin, "POST", REVISIONS, &revision).await
    };
    // Of another policy, with the name of another content, and with a number after which there is none.
    write(&format!("envoy-{hash}"), "00000000-0000-0000-0000-000000000000", 90).await?;
    write("envoy-0123456789abcdef", &uid, 91).await?;
    write(&format!("envoy-{}", "f".repeat(16)), &uid, i64::MAX).await?;
    let new = async |namespace: &str| new_in(&world.creator, Version::V1_30, namespace).await;
    world.edit_policy("envoy", image("mine/x:2")).await?;
    wait_progress(&world, "envoy", "Paused").await?;
    assert_eq!([new("canary").await?, new("shop").await?], ["mine/x:2", "mine/x:1"]);
    // Nor by a leader that reads them all. Its webhook has another address.
    operator.kill().await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    within(LIMIT, "the next operator injects", || async { Ok(new("canary").await? == "mine/x:2") }).await?;
    wait_progress(&world, "envoy", "Paused").await?;
    assert_eq!([new("canary").await?, new("shop").await?], ["mine/x:2", "mine/x:1"]);
    let (_, said) = scpol(&world.cluster, &["rollout", "history", "envoy"]).await?;
    ensure!(!said.contains("evil"), "{said}");
    let (code, _) = scpol(&world.cluster, &["rollout", "undo", "envoy", "--to-revision=91"]).await?;
    assert_ne!(code, 0, "there is no revision 91");
    let (code, _) = scpol(&world.cluster, &["rollout", "undo", "envoy"]).await?;
    assert_eq!(code, 0);
    within(LIMIT, "it goes back to its own", || async { Ok(new("canary").await? == "mine/x:1") }).await?;
    // The event names what is ignored.
    within(LIMIT, "an event names it", || async {
        let items = world.list("/api/v1/events").await?;
        Ok(items.iter().any(|event| {
            event["reason"] == "RevisionIgnored"
                && event["message"].as_str().is_some_and(|text| text.contains("SCP0419"))
        }))
    })
    .await?;
    Ok(())
}

/// The stored revisions of `policy` by number, with the image of each.
async fn stored_revisions(world: &World, policy: &str) -> Result<Vec<(i64, String, String)>> {
    let items = world.list(REVISIONS).await?;
    let own = items.iter().filter(|item| item["metadata"]["labels"]["scpol.dev/policy"] == policy);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let revision = |item: &Value| {
        let image = text(&item["data"]["template"]["containers"][0]["image"]);
        (item["revision"].as_i64().unwrap_or_default(), image, text(&item["metadata"]["name"]))
    };
    let mut revisions: Vec<_> = own.map(revision).collect();
    revisions.sort();
    Ok(revisions)
}

async fn small_numbers(version: Version) -> Result<()> {
    let (world, operator) = world(version).await?.operated(&[]).await?;
    let are = async |images: &[&str]| {
        within(LIMIT, &format!("the revisions are {images:?}"), || async {
            let found = stored_revisions(&world, "envoy").await?;
            let numbered = (1_i64..).zip(images.iter().copied());
            Ok(found.iter().map(|(number, image, _)| (*number, image.as_str())).eq(numbered))
        })
        .await
    };
    world.policy("envoy", rolling("envoy:1", json!({}))).await?;
    are(&["envoy:1"]).await?;
    world.edit_policy("envoy", image("envoy:2")).await?;
    are(&["envoy:1", "envoy:2"]).await?;
    operator.stop().await?;
    let (_, _, last) = stored_revisions(&world, "envoy").await?.pop().context("it is stored")?;
    let largest = json!([{ "op": "replace", "path": "/revision", "value": 1_i64 << 53 }]);
    world.patch(&format!("{REVISIONS}/{last}"), &largest).await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    world.edit_policy("envoy", image("envoy:3")).await?;
    are(&["envoy:1", "envoy:2", "envoy:3"]).await?;
    // An earlier content gets the next number, as ever.
    world.edit_policy("envoy", image("envoy:1")).await?;
    within(LIMIT, "it has been set back", || async {
        let found = stored_revisions(&world, "envoy").await?;
        Ok(found.last().is_some_and(|(number, image, _)| (*number, image.as_str()) == (4, "envoy:1")))
    })
    .await
}

/// An admission policy of others that refuses the revisions of `policy`.
async fn refuse_revisions(world: &World, policy: &str) -> Result<()> {
    let group = "/apis/admissionregistration.k8s.io/v1";
    let judge = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "hold" },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["controllerrevisions"],
            }] },
            "validations": [{
                "expression": format!("object.metadata.?labels[?'scpol.dev/policy'].orValue('') != '{policy}'"),
                "message": "none of these",
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "hold" },
        "spec": { "policyName": "hold", "validationActions": ["Deny"] },
    });
    request(&world.admin, "POST", &format!("{group}/validatingadmissionpolicies"), &judge).await?;
    request(&world.admin, "POST", &format!("{group}/validatingadmissionpolicybindings"), &binding).await?;
    let sample = json!({
        "metadata": { "name": "sample", "labels": { "scpol.dev/policy": policy } }, "data": {}, "revision": 1,
    });
    within(LIMIT, "they are refused", || async {
        Ok(request(&world.admin, "POST", &format!("{REVISIONS}?dryRun=All"), &sample).await.is_err())
    })
    .await
}

async fn a_revision_that_the_server_refuses_holds_up_its_policy_alone() -> Result<()> {
    let (world, _operator) = world(Version::V1_30).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    let spec = |name: &str, version: u32| {
        let template = json!({ "containers": [{ "name": name, "image": format!("{name}:{version}") }] });
        json!({ "template": template, "updateStrategy": { "type": "RollingUpdate" } })
    };
    for name in ["a-held", "envoy"] {
        world.enforce(name, spec(name, 1)).await?;
    }
    world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    for name in ["a-held", "envoy"] {
        wait_progress(&world, name, "Complete").await?;
    }
    refuse_revisions(&world, "a-held").await?;
    for name in ["a-held", "envoy"] {
        world.edit_policy(name, spec(name, 2)).await?;
    }
    wait_images(&world, &["web"], "envoy:2").await?;
    wait_progress(&world, "envoy", "Complete").await?;
    wait_progress(&world, "a-held", "Halted").await?;
    // The condition has the beginning of the server's words, also between two attempts.
    for _ in 0..10 {
        let (_, message) = progressing(&world, "a-held").await?;
        ensure!(message.contains("ValidatingAdmissionPolicy 'hold'"), "{message}");
        tokio::time::sleep(timing().rollout.tick).await;
    }
    // It is tried again after a pause, not at every turn.
    let refused = || {
        let is_refused = |event: &&Value| {
            event["verb"] == "create"
                && event["objectRef"]["resource"] == "controllerrevisions"
                && event["user"]["username"] == User::Operator.name()
                && event["responseStatus"]["code"].as_i64().is_some_and(|code| code >= 400)
        };
        world.cluster.audit().iter().filter(is_refused).count()
    };
    let (before, begin, turns) = (refused(), Instant::now(), 16);
    tokio::time::sleep(timing().rollout.tick * turns).await;
    let again = refused() - before;
    let most = begin.elapsed().div_duration_f64(timing().rollout.again).ceil() as usize + 1;
    ensure!((1..=most).contains(&again), "{again} attempts in {turns} turns, and not 1 to {most}");
    let stored = world.get(&path("web")).await?.context("it is there")?;
    ensure!(image_of(&stored, "a-held") == "a-held:1", "{stored}");
    // Another edit of the other policy, while it is held.
    world.edit_policy("envoy", spec("envoy", 3)).await?;
    wait_images(&world, &["web"], "envoy:3").await?;
    for plural in ["validatingadmissionpolicybindings", "validatingadmissionpolicies"] {
        world.delete(&format!("/apis/admissionregistration.k8s.io/v1/{plural}/hold")).await?;
    }
    wait_progress(&world, "a-held", "Complete").await?;
    let stored = world.get(&path("web")).await?.context("it is there")?;
    ensure!(image_of(&stored, "a-held") == "a-held:2", "{stored}");
    Ok(())
}
