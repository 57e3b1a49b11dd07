//! What a rollout leaves as it is, what it waits for, and what holds nobody up: applications that were broken before, owners that put
//! their objects back, pods that opt out, and pods that only a person can have replaced.

use crate::commands::scpol;
use crate::prelude::*;
use crate::rollouts::{
    Controllers, envoy, grant, image_of, progressing, ready_pods, rolling, running, status, wait_images, wait_progress,
    world,
};
use crate::runner::on_each;
use crate::status::follow;
use crate::support::lock;
use std::sync::Mutex;

crate::tests![
    an_operator_that_puts_its_template_back_is_named_and_holds_nobody_up,
    an_application_that_was_broken_before_holds_nobody_up_and_fails_nothing,
    a_stateful_set_that_goes_back_asks_for_the_deletion_of_its_broken_pod,
    a_running_pod_that_opts_out_is_left_and_all_others_follow,
    no_pod_is_evicted_whose_replacement_would_be_refused = on_each([Version::V1_30, Version::NEWEST], would_be_refused),
];

const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";

async fn an_operator_that_puts_its_template_back_is_named_and_holds_nobody_up() -> Result<()> {
    let (world, operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    let created = format!("{DEPLOYMENTS}?fieldManager=jaeger-operator");
    for (path, name) in [(created.as_str(), "a-owned"), (DEPLOYMENTS, "b-web"), (DEPLOYMENTS, "c-web")] {
        world.create(path, &deployment(name)).await?;
    }
    let (client, place) = (world.admin.clone(), path("a-owned"));
    let own = world.get(&place).await?.context("it is there")?["spec"].clone();
    let owner = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let Ok(mut stored) = request(&client, "GET", &place, &Value::Null).await else { continue };
            if stored["spec"]["template"] != own["template"] {
                stored["spec"] = own.clone();
                // One that the operator has written meanwhile is read again.
                let _ = request(&client, "PUT", &format!("{place}?fieldManager=jaeger-operator"), &stored).await;
            }
        }
    });
    world.enforce("envoy", rolling("envoy:1", json!({ "maxUnavailable": 1 }))).await?;
    wait_images(&world, &["b-web", "c-web"], "envoy:1").await?;
    let message = wait_progress(&world, "envoy", "Complete").await?;
    assert!(message.contains("2 of 3 workloads") && message.contains("1 are left"), "{message}");
    let log = operator.log();
    let told = log.lines().find(|line| line.contains("Left as it is") && line.contains("SCP0422"));
    let told = told.with_context(|| format!("why it is left: {log}"))?;
    assert!(told.contains("a-owned") && told.contains("`jaeger-operator`"), "{told}");
    world.event("a-owned", "RolloutLeft: SCP0422").await?;
    // One patch, three more, and each put back once.
    let generation = async || {
        anyhow::Ok(world.get(&path("a-owned")).await?.context("it is there")?["metadata"]["generation"].as_i64())
    };
    let before = generation().await?;
    assert!(before <= Some(9), "{before:?}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(generation().await?, before, "it is written again and again");
    owner.abort();
    Ok(())
}

/// Sets the status of the workload at `place`, which is not available.
async fn break_down(world: &World, place: &str, told: Value) -> Result<()> {
    let stored = world.get(place).await?.context("it is there")?;
    let mut broken =
        json!({ "observedGeneration": stored["metadata"]["generation"], "replicas": 1, "updatedReplicas": 1 });
    json_patch::merge(&mut broken, &told);
    let patch = json!([{ "op": "add", "path": "/status", "value": broken }]);
    request(&world.admin, "PATCH", &format!("{place}/status"), &patch).await?;
    Ok(())
}

async fn an_application_that_was_broken_before_holds_nobody_up_and_fails_nothing() -> Result<()> {
    let (world, _operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    let mut spec = rolling("envoy:1", json!({ "maxUnavailable": 1, "progressDeadlineSeconds": 3 }));
    spec["targets"] =
        json!(["deployments", "statefulsets"].map(|resource| json!({ "group": "apps", "resource": resource })));
    world.enforce("envoy", spec).await?;
    let mut set = deployment("a-db");
    (set["kind"], set["spec"]["serviceName"]) = (json!("StatefulSet"), json!("a-db"));
    world.create(SETS, &set).await?;
    for name in ["a-broken", "b-web", "c-web"] {
        world.create(DEPLOYMENTS, &deployment(name)).await?;
    }
    wait_progress(&world, "envoy", "Complete").await?;
    within(LIMIT, "all are ready", || async { Ok(status(&world, "envoy").await?["ready"] == 4) }).await?;
    // The application breaks, and stays so. A Deployment says since when, and a StatefulSet does not.
    for name in ["a-broken", "a-db"] {
        controllers.stick(name);
    }
    let ago = jiff::Timestamp::now().checked_sub(jiff::SignedDuration::from_mins(10))?.to_string();
    let available = json!({ "type": "Available", "status": "False", "lastTransitionTime": ago, "lastUpdateTime": ago });
    break_down(&world, &path("a-broken"), json!({ "conditions": [available] })).await?;
    break_down(&world, &format!("{SETS}/a-db"), json!({})).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.edit_policy("envoy", sidecar_of("envoy", "envoy:2")).await?;
    wait_images(&world, &["a-broken", "b-web", "c-web"], "envoy:2").await?;
    let message = wait_progress(&world, "envoy", "Complete").await?;
    assert!(message.contains("4 of 4 workloads have this revision, 2 of them are ready"), "{message}");
    Ok(())
}

/// Waits until the condition has that reason and these words.
async fn wait_words(world: &World, reason: &str, words: &[&str]) -> Result<()> {
    let last = Mutex::new(String::new());
    let waited = within(LIMIT, "the condition says so", || async {
        let (now, message) = progressing(world, "envoy").await?;
        let is_said = now == reason && words.iter().all(|words| message.contains(words));
        *lock(&last) = format!("{now}: {message}");
        Ok(is_said)
    });
    waited.await.with_context(|| format!("{reason} {words:?}: {}", lock(&last)))
}

async fn a_stateful_set_that_goes_back_asks_for_the_deletion_of_its_broken_pod() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST).nodes(2)).await?;
    grant(&world).await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    let mut spec = rolling("envoy:1", json!({ "progressDeadlineSeconds": 60, "onFailure": "Undo" }));
    spec["targets"] = json!([{ "group": "apps", "resource": "statefulsets" }]);
    spec["template"] = envoy("envoy:1", "10m")["template"].clone();
    world.enforce("envoy", spec).await?;
    let mut set = deployment("db");
    (set["kind"], set["spec"]["serviceName"], set["spec"]["replicas"]) = (json!("StatefulSet"), json!("db"), json!(3));
    set["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(0);
    world.create(SETS, &set).await?;
    wait_progress(&world, "envoy", "Complete").await?;
    let are_ready = || async { Ok(ready_pods(&world, "db").await?.len() == 3) };
    within(LIMIT, "its pods run", are_ready).await?;
    let deadline = |seconds: u64, on_failure: &str| json!({ "type": "RollingUpdate", "rollingUpdate": { "progressDeadlineSeconds": seconds, "onFailure": on_failure } });
    for on_failure in ["Undo", "Halt"] {
        // No node has that much.
        let bad = json!({ "template": envoy("envoy:1", "64")["template"], "updateStrategy": deadline(3, on_failure) });
        world.edit_policy("envoy", bad).await?;
        if on_failure == "Halt" {
            wait_progress(&world, "envoy", "Halted").await?;
            let (code, said) = scpol(&world.cluster, &["rollout", "undo", "envoy"]).await?;
            ensure!(code == 0, "{said}");
        }
        let command = "`kubectl delete pod -n default db-2`";
        let reason = if on_failure == "Undo" { "Halted" } else { "RollingOut" };
        wait_words(&world, reason, &["SCP0421", "db-2", "OrderedReady", command]).await?;
        let stored = world.get(&format!("{SETS}/db")).await?.context("it is there")?;
        ensure!(
            stored["spec"]["template"]["spec"]["containers"][1]["resources"]["requests"]["cpu"] != "64",
            "{stored}"
        );
        // It goes on to ask for it, and is no other failure.
        tokio::time::sleep(Duration::from_secs(6)).await;
        wait_words(&world, reason, &[command]).await?;
        follow(&world, command.trim_matches('`')).await?;
        within(LIMIT, "its pods run again", are_ready).await?;
        match on_failure {
            "Undo" => wait_words(&world, "Halted", &["has the revision before again"]).await?,
            _ => drop(wait_progress(&world, "envoy", "Complete").await?),
        }
        let (_, message) = progressing(&world, "envoy").await?;
        ensure!(!message.contains("SCP0421"), "{message}");
        if on_failure == "Undo" {
            // A content that works ends the halt.
            let before = status(&world, "envoy").await?["currentRevision"].clone();
            let good =
                json!({ "template": envoy("envoy:1", "11m")["template"], "updateStrategy": deadline(60, "Undo") });
            world.edit_policy("envoy", good).await?;
            let is_out = || async { Ok(status(&world, "envoy").await?["currentRevision"] != before) };
            within(LIMIT, "it is rolled out", is_out).await?;
            within(LIMIT, "its pods run", are_ready).await?;
        }
    }
    Ok(())
}

async fn a_running_pod_that_opts_out_is_left_and_all_others_follow() -> Result<()> {
    let running = running(Version::NEWEST, sidecar_of("envoy", "envoy:1"), json!({ "maxUnavailable": 1 })).await?;
    let world = &running.world;
    wait_progress(world, "envoy", "Complete").await?;
    let pods = ready_pods(world, "web").await?;
    let [name, uid] = ["name", "uid"].map(|field| pods[0]["metadata"][field].as_str().unwrap_or_default().to_owned());
    let patch = json!([{ "op": "add", "path": "/metadata/annotations/scpol.dev~1inject", "value": "false" }]);
    request(&world.admin, "PATCH", &format!("{PODS}/{name}"), &patch).await?;
    // It takes new pods.
    let mut spec = sidecar_of("envoy", "envoy:1");
    spec["template"]["containers"][0]["env"] = json!([{ "name": "A", "value": "1" }]);
    world.edit_policy("envoy", spec).await?;
    let has_it =
        |pod: &Value| pod["spec"]["containers"][1]["env"][0]["name"] == "A" || pod["metadata"]["uid"] == uid.as_str();
    running.wait("the others have the variable", &has_it).await?;
    let message = wait_progress(world, "envoy", "Complete").await?;
    assert!(message.contains("2 of 2 workloads have this revision, 2 of them are ready"), "{message}");
    let stored = world.get(&format!("{PODS}/{name}")).await?.context("it is there")?;
    assert_eq!((&stored["metadata"]["uid"], image_of(&stored, "envoy")), (&json!(uid), "envoy:1"));
    assert!(stored["spec"]["containers"][1]["env"].is_null(), "{stored}");
    Ok(())
}

async fn would_be_refused(version: Version) -> Result<()> {
    let rolling = json!({ "maxUnavailable": "100%", "podUpdate": "Recreate" });
    let running = running(version, envoy("envoy:1", "50m"), rolling).await?;
    let world = &running.world;
    let before = running.wait("the pods run", &|_| true).await?;
    let (api, at) = ("rbac.authorization.k8s.io", "/apis/rbac.authorization.k8s.io/v1/namespaces/default");
    let rule = json!({ "apiGroups": [""], "resources": ["pods"], "verbs": ["create"] });
    let role =
        json!({ "apiVersion": format!("{api}/v1"), "kind": "Role", "metadata": { "name": "tries" }, "rules": [rule] });
    let binding = json!({
        "apiVersion": format!("{api}/v1"), "kind": "RoleBinding", "metadata": { "name": "tries" },
        "roleRef": { "apiGroup": api, "kind": "Role", "name": "tries" },
        "subjects": [{ "kind": "ServiceAccount", "name": "scpol", "namespace": "scpol-system" }],
    });
    request(&world.admin, "POST", &format!("{at}/roles"), &role).await?;
    request(&world.admin, "POST", &format!("{at}/rolebindings"), &binding).await?;
    let ranges = "/api/v1/namespaces/default/limitranges";
    let range = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "small" },
        "spec": { "limits": [{ "type": "Container", "max": { "cpu": "100m" } }] },
    });
    request(&world.admin, "POST", ranges, &range).await?;
    world.edit_policy("envoy", envoy("envoy:1", "200m")).await?;
    running.are_left(&before, "SCP0204", "maximum cpu usage per Container is 100m").await?;
    world.delete(&format!("{ranges}/small")).await?;
    // Only the newest servers of these tests have a controller that counts what a quota uses.
    if version == Version::NEWEST {
        let quotas = "/api/v1/namespaces/default/resourcequotas";
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "small" },
            "spec": { "hard": { "requests.cpu": "260m", "pods": "3" } },
        });
        request(&world.admin, "POST", quotas, &quota).await?;
        within(LIMIT, "the quota counts", || async {
            let stored = world.get(&format!("{quotas}/small")).await?.context("it is there")?;
            Ok(stored["status"]["used"] == json!({ "requests.cpu": "210m", "pods": "3" }))
        })
        .await?;
        world.edit_policy("envoy", envoy("envoy:1", "210m")).await?;
        running.are_left(&before, "SCP0205", "exceeded quota: small").await?;
    }
    // A quota that is used up refuses no pod that comes in the place of another one.
    world.edit_policy("envoy", envoy("envoy:2", "50m")).await?;
    let after = running.wait("all pods are made anew", &|pod| image_of(pod, "envoy") == "envoy:2").await?;
    assert!(after.is_disjoint(&before));
    Ok(())
}
