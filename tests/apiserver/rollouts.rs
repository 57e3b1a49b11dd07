//! What runs follows its policy: `spec.updateStrategy`, on real servers with the shipped rights.
//!
//! Servers without controllers have their part played by [`Controllers`], which says how many pods of a workload are available. So a
//! test decides what becomes ready, and when.

use crate::commands::scpol;
use crate::prelude::*;
use crate::rights::{WORKLOADS, workload};
use crate::rows::ROLE;
use crate::runner::on_each;
use kube::Client;
use sidecar_policy::policy::extent;
use sidecar_policy::workload::{Kind, Workload};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::task::JoinHandle;

crate::tests![
    by_default_nothing_that_exists_is_touched_and_revisions_are_kept,
    an_edit_reaches_every_workload_one_after_the_other_and_nothing_of_the_users_changes,
    a_rollout_that_is_switched_on_is_never_complete_before_every_workload_has_it,
    a_workload_that_is_not_ready_in_time_ends_the_rollout_until_the_next_edit,
    running_pods_are_patched_in_place_or_evicted_and_a_budget_of_zero_holds,
    without_the_rights_the_condition_names_what_to_grant_and_nothing_else_suffers,
    while_a_step_holds_new_workloads_have_the_revision_of_their_namespace_on_initializers_and_webhook_of_1_13,
    while_a_step_holds_new_workloads_have_the_revision_of_their_namespace_on_current_engines,
    steps_by_workload_reach_stored_and_new_workloads_alike_on_initializers_and_webhook_of_1_13,
    steps_by_workload_reach_stored_and_new_workloads_alike_on_current_engines,
    a_bad_image_in_the_first_step_stays_there_and_undo_brings_it_back =
        on_each([Version::NEWEST, Version::V1_13], a_bad_image),
    every_kind_with_a_template_follows_and_what_ends_by_itself_never =
        on_each([Version::NEWEST, Version::V1_13], every_kind_follows),
    pods_of_1_13_are_patched_in_place_or_evicted_and_a_budget_of_zero_holds =
        async { in_place_then_evicted(Version::V1_13).await.map(drop) },
    a_pod_that_the_namespace_does_not_let_grow_is_left_and_never_evicted,
    a_pod_is_evicted_after_a_refused_update_only_if_a_new_one_would_be_accepted,
    a_status_that_cannot_be_written_holds_no_rollout_back,
];

pub(crate) const REVISIONS: &str = "/apis/apps/v1/namespaces/scpol-system/controllerrevisions";

/// The resources of `apps/v1` whose controllers are played.
const PLAYED: [&str; 3] = ["deployments", "statefulsets", "daemonsets"];

/// Plays the controllers of Deployments, StatefulSets and DaemonSets: makes each available some time after each change of its spec, except those
/// that must not become so.
pub(crate) struct Controllers {
    task: JoinHandle<()>,
    /// The names of those that never become available.
    stuck: Arc<Mutex<BTreeSet<String>>>,
    /// The most that were not available at one time.
    most: Arc<AtomicUsize>,
}

impl Controllers {
    pub(crate) fn start(client: Client, takes: Duration) -> Self {
        let (stuck, most) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicUsize::new(0)));
        let (is_stuck, seen) = (stuck.clone(), most.clone());
        let task = tokio::spawn(async move {
            let mut due: BTreeMap<String, std::time::Instant> = BTreeMap::new();
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let mut items = Vec::new();
                for resource in PLAYED {
                    let Ok(list) = request(&client, "GET", &format!("/apis/apps/v1/{resource}"), &Value::Null).await
                    else {
                        continue;
                    };
                    let found = list["items"].as_array().cloned().unwrap_or_default();
                    items.extend(found.into_iter().map(|item| (resource, item)));
                }
                // Before anything becomes available, which may be the end of what a test waits for.
                let is_available =
                    |item: &Value| item["status"]["observedGeneration"] == item["metadata"]["generation"];
                let unavailable = items.iter().filter(|(_, item)| !is_available(item)).count();
                seen.fetch_max(unavailable, Ordering::Relaxed);
                for (resource, item) in items {
                    let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
                    let (namespace, name) = (text("namespace"), text("name"));
                    let place = format!("/apis/apps/v1/namespaces/{namespace}/{resource}/{name}");
                    let generation = &item["metadata"]["generation"];
                    if is_available(&item) {
                        due.remove(&place);
                        continue;
                    }
                    let now = std::time::Instant::now();
                    let at = *due.entry(place.clone()).or_insert(now + takes);
                    if now < at || lock(&is_stuck).contains(&name) {
                        continue;
                    }
                    let replicas = item["spec"]["replicas"].clone();
                    let status = match resource {
                        "daemonsets" => json!({
                            "observedGeneration": generation, "currentNumberScheduled": 1, "numberMisscheduled": 0,
                            "desiredNumberScheduled": 1, "numberReady": 1, "updatedNumberScheduled": 1, "numberAvailable": 1,
                        }),
                        _ => json!({
                            "observedGeneration": generation, "replicas": replicas, "updatedReplicas": replicas,
                            "readyReplicas": replicas, "availableReplicas": replicas,
                        }),
                    };
                    let patch = json!([{ "op": "add", "path": "/status", "value": status }]);
                    if let Err(error) = request(&client, "PATCH", &format!("{place}/status"), &patch).await {
                        eprintln!("the status of {name} cannot be set: {error}");
                    }
                }
            }
        });
        Self { task, stuck, most }
    }

    /// From now on that Deployment does not become available.
    pub(crate) fn stick(&self, name: &str) {
        lock(&self.stuck).insert(name.to_owned());
    }

    /// Everything becomes available again. Returns whether something did not.
    pub(crate) fn unstick(&self) -> bool {
        !std::mem::take(&mut *lock(&self.stuck)).is_empty()
    }

    /// The most that were not available at one time since the last call.
    pub(crate) fn take_most(&self) -> usize {
        self.most.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The path of a Deployment in a namespace.
pub(crate) fn path_in(namespace: &str, name: &str) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}")
}

pub(crate) async fn world(version: Version) -> Result<World> {
    let world = World::with(ControlPlane::builder(version).audit_log()).await?;
    grant(&world).await?;
    Ok(world)
}

/// Grants the rights of rollouts, as the docs say.
pub(crate) async fn grant(world: &World) -> Result<()> {
    for part in ["cluster_role", "role"] {
        world.cluster.apply_file(&file(&format!("config/rbac/rollout/{part}.yaml"))).await?;
    }
    let operator = world.cluster.client(User::Operator);
    within(LIMIT, "the rights are granted", || async {
        Ok(request(&operator, "GET", REVISIONS, &Value::Null).await.is_ok())
    })
    .await
}

/// A policy for Deployments that rolls out, with this image.
pub(crate) fn rolling(image: &str, rolling_update: Value) -> Value {
    let mut spec = json!({
        "updateStrategy": { "type": "RollingUpdate" },
        "template": {
            // All that the server escapes where we do not, and the other way round.
            "containers": [{ "name": "envoy", "image": image, "args": ["a && b < c > d / \u{2028}\u{2029}é\u{7f}\u{1}\""] }],
            "metadata": { "labels": { "mesh": image.replace(':', "-") } },
        },
    });
    spec["updateStrategy"]["rollingUpdate"] = rolling_update;
    spec
}

pub(crate) fn image_of<'a>(object: &'a Value, container: &str) -> &'a str {
    let pod = object.pointer("/spec/template/spec").unwrap_or(&object["spec"]);
    let found = pod["containers"].as_array().into_iter().flatten().find(|item| item["name"] == container);
    found.and_then(|found| found["image"].as_str()).unwrap_or_default()
}

pub(crate) async fn status(world: &World, policy: &str) -> Result<Value> {
    Ok(policies(&world.cluster).get(policy).await?.data["status"].clone())
}

/// The reason and the message of the condition `Progressing`.
pub(crate) async fn progressing(world: &World, policy: &str) -> Result<(String, String)> {
    let status = status(world, policy).await?;
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == "Progressing").unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Ok((text("reason"), text("message")))
}

pub(crate) async fn wait_progress(world: &World, policy: &str, reason: &str) -> Result<String> {
    let last = Mutex::new((String::new(), String::new()));
    let what = format!("Progressing of {policy} is {reason}");
    let waited = within(LIMIT, &what, || async {
        let (now, message) = progressing(world, policy).await?;
        let told = format!("{now}: {message}; {}", status(world, policy).await?);
        *lock(&last) = (message, told);
        Ok(now == reason)
    });
    waited.await.with_context(|| lock(&last).1.clone())?;
    // With another read, the rollout may have gone on.
    Ok(lock(&last).0.clone())
}

/// Waits until the Deployments have this image of the sidecar.
pub(crate) async fn wait_images(world: &World, names: &[&str], image: &str) -> Result<()> {
    for name in names {
        within(LIMIT, &format!("{name} has {image}"), || async {
            let stored = world.get(&path(name)).await?.context("it is gone")?;
            Ok(image_of(&stored, "envoy") == image)
        })
        .await
        .with_context(|| (*name).to_owned())?;
    }
    Ok(())
}

async fn by_default_nothing_that_exists_is_touched_and_revisions_are_kept() -> Result<()> {
    let (world, _operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let mut spec = sidecar("envoy");
    spec["revisionHistoryLimit"] = json!(1);
    world.enforce("envoy", spec).await?;
    world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    for image in ["envoy:2", "envoy:3", "envoy:4"] {
        world.edit_policy("envoy", sidecar_of("envoy", image)).await?;
        within(LIMIT, "the revision is kept", || async {
            let items = world.list(REVISIONS).await?;
            Ok(items.iter().any(|item| item["data"]["template"]["containers"][0]["image"] == image))
        })
        .await?;
    }
    in_force(&world.cluster, "envoy").await?;
    within(LIMIT, "one earlier revision is kept", || async {
        let items = world.list(REVISIONS).await?;
        let mut numbers: Vec<i64> = items.iter().filter_map(|item| item["revision"].as_i64()).collect();
        numbers.sort_unstable();
        Ok(numbers == [3, 4])
    })
    .await?;
    world.status("envoy", "outdated", 1).await?;
    let web = world.get(&path("web")).await?.context("it is there")?;
    assert_eq!((image_of(&web, "envoy"), world.patches("web")), ("envoy:1", 0));
    assert_eq!(progressing(&world, "envoy").await?.0, "", "nothing rolls");
    assert!(status(&world, "envoy").await?["updateRevision"].is_null());
    Ok(())
}

async fn an_edit_reaches_every_workload_one_after_the_other_and_nothing_of_the_users_changes() -> Result<()> {
    for version in [Version::NEWEST, Version::V1_13] {
        let (world, operator) = world(version).await?.operated(&[]).await?;
        let controllers = Controllers::start(world.admin.clone(), Duration::from_millis(300));
        // It exists before the policy.
        let mut missed = deployment("missed");
        missed["spec"]["template"]["spec"]["volumes"] = json!([{ "name": "own", "emptyDir": {} }]);
        world.create(DEPLOYMENTS, &missed).await?;
        world.enforce("envoy", rolling("envoy:1", json!({ "maxUnavailable": 1 }))).await?;
        for name in ["a", "b", "c"] {
            world.create_promptly(DEPLOYMENTS, &deployment(name)).await?;
        }
        // It was complete before they were created, too.
        world.status("envoy", "ready", 4).await?;
        wait_progress(&world, "envoy", "Complete").await?;
        let before = world.get(&path("missed")).await?.context("it is there")?;
        controllers.take_most();
        let template = rolling("envoy:2", Value::Null)["template"].clone();
        world.edit_policy("envoy", json!({ "template": template })).await?;
        wait_images(&world, &["missed", "a", "b", "c"], "envoy:2").await?;
        wait_progress(&world, "envoy", "Complete").await?;
        assert_eq!(controllers.take_most(), 1, "{version:?}: one after the other");
        let after = world.get(&path("missed")).await?.context("it is there")?;
        assert_eq!(containers(&after), ["app", "envoy"], "{version:?}");
        assert_eq!(after["spec"]["template"]["metadata"]["labels"]["mesh"], "envoy-2");
        let own = |object: &Value| {
            let mut own = object["spec"].clone();
            own["template"]["metadata"].take();
            if let Some(items) = own["template"]["spec"]["containers"].as_array_mut() {
                items.retain(|item| item["name"] == "app");
            }
            own
        };
        assert_eq!(own(&before), own(&after), "{version:?}: what is the user's");
        for name in ["a", "b", "c"] {
            world.patched(name, if version.has_initializers() { 2 } else { 1 }).await?;
        }
        let wrote = |metric: &str| format!(r#"scpol_rollout_{metric}_total{{policy="envoy"}}"#);
        assert_eq!(operator.metric(&wrote("templates")).await?, 5.0, "{version:?}");
        assert_eq!(operator.metric(&wrote("in_place")).await?, 0.0, "{version:?}");
        let status = status(&world, "envoy").await?;
        let told =
            ["matched", "injected", "outdated", "updated", "ready"].map(|field| status[field].as_i64().unwrap_or(-1));
        assert_eq!(told, [4, 4, 0, 4, 4], "{version:?}: {status}");
        assert_eq!(status["currentRevision"], status["updateRevision"]);
    }
    Ok(())
}

async fn a_rollout_that_is_switched_on_is_never_complete_before_every_workload_has_it() -> Result<()> {
    let (world, _operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(300));
    // It exists before the policy.
    world.create(DEPLOYMENTS, &deployment("missed")).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    world.create_promptly(DEPLOYMENTS, &deployment("a")).await?;
    world.status("envoy", "matched", 2).await?;
    world.edit_policy("envoy", rolling("envoy:2", json!({ "maxUnavailable": 1 }))).await?;
    let have_it = within(LIMIT, "both have envoy:2", || async {
        // The condition first: what it says holds for what is read after it.
        let (reason, message) = progressing(&world, "envoy").await?;
        let mut have_it = true;
        for name in ["missed", "a"] {
            have_it &= image_of(&world.get(&path(name)).await?.context("it is there")?, "envoy") == "envoy:2";
        }
        assert!(have_it || reason != "Complete", "complete too early: {message}");
        Ok(have_it)
    });
    have_it.await?;
    wait_progress(&world, "envoy", "Complete").await?;
    let complete = status(&world, "envoy").await?;
    assert_eq!([&complete["matched"], &complete["updated"]].map(Value::as_i64), [Some(2), Some(2)], "{complete}");
    Ok(())
}

async fn a_workload_that_is_not_ready_in_time_ends_the_rollout_until_the_next_edit() -> Result<()> {
    let (world, operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let controllers = Controllers::start(world.admin.clone(), Duration::from_millis(100));
    world.enforce("envoy", rolling("envoy:1", json!({ "progressDeadlineSeconds": 2 }))).await?;
    for name in ["a", "b", "c"] {
        world.create_promptly(DEPLOYMENTS, &deployment(name)).await?;
    }
    wait_progress(&world, "envoy", "Complete").await?;
    wait_ready(&world, 3).await?;
    controllers.stick("a");
    world.edit_policy("envoy", sidecar_of("envoy", "envoy:bad")).await?;
    let message = wait_progress(&world, "envoy", "Halted").await?;
    assert!(message.contains("deployments.apps default/a") && message.contains("SCP0416"), "{message}");
    assert_eq!(status(&world, "envoy").await?["halted"], true);
    within(LIMIT, "the metric says so", || async {
        Ok(operator.metric(r#"scpol_rollout_halted{policy="envoy"}"#).await? == 1.0)
    })
    .await?;
    world.event("envoy", "RolloutHalted: SCP0403").await?;
    // A new leader does not begin again.
    drop(operator);
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    for (name, image) in [("a", "envoy:bad"), ("b", "envoy:1"), ("c", "envoy:1")] {
        let stored = world.get(&path(name)).await?.context("it is there")?;
        assert_eq!(image_of(&stored, "envoy"), image, "{name}");
    }
    wait_progress(&world, "envoy", "Halted").await?;
    controllers.unstick();
    // On a busy machine two seconds are short for what is not stuck.
    let patient = json!({ "type": "RollingUpdate", "rollingUpdate": { "progressDeadlineSeconds": 60 } });
    let containers = json!([{ "name": "envoy", "image": "envoy:3" }]);
    world.edit_policy("envoy", json!({ "updateStrategy": patient, "template": { "containers": containers } })).await?;
    wait_images(&world, &["a", "b", "c"], "envoy:3").await?;
    wait_progress(&world, "envoy", "Complete").await?;
    ensure!(status(&world, "envoy").await?["halted"] != true, "it is no longer halted");
    Ok(())
}

/// A policy whose sidecar has a variable.
fn with_variable(value: &str) -> Value {
    let mut spec = sidecar_of("envoy", "envoy:2");
    spec["template"]["containers"][0]["env"] = json!([{ "name": "A", "value": value }]);
    spec
}

/// Edits the image, which changes in place, and then a variable, which takes new pods once no budget forbids it.
async fn in_place_then_evicted(version: Version) -> Result<Running> {
    let running = running(version, sidecar_of("envoy", "envoy:1"), json!({ "maxUnavailable": 1 })).await?;
    let world = &running.world;
    wait_progress(world, "envoy", "Complete").await?;
    let before = running.wait("the pods run", &|_| true).await?;
    // Only the image differs: in place.
    world.edit_policy("envoy", sidecar_of("envoy", "envoy:2")).await?;
    let patched = running.wait("all pods have the new image", &|pod| image_of(pod, "envoy") == "envoy:2").await?;
    wait_progress(world, "envoy", "Complete").await?;
    assert_eq!(patched, before, "no pod was made anew");

    // A new variable takes a new pod, and a budget of zero holds.
    let budget = budget_of_zero(world, "web").await?;
    world.edit_policy("envoy", with_variable("1")).await?;
    // Old servers do not name it.
    let name = if version == Version::V1_13 { "SCP0415" } else { "disruption budget none" };
    within(LIMIT, "the budget is named", || async {
        let (reason, message) = progressing(world, "envoy").await?;
        Ok(reason == "RollingOut" && message.contains("SCP0415") && message.contains(name))
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(running.wait("the pods run", &|_| true).await?, before, "the budget was passed");
    world.delete(&budget).await?;
    let has_it = |pod: &Value| pod["spec"]["containers"][1]["env"][0]["name"] == "A";
    let after = running.wait("all pods have the variable", &has_it).await?;
    wait_progress(world, "envoy", "Complete").await?;
    assert!(after.is_disjoint(&before), "each pod was made anew");
    let count = running.count as f64;
    for (metric, count) in [("in_place", count), ("evictions", count), ("templates", 0.0)] {
        let metric = format!(r#"scpol_rollout_{metric}_total{{policy="envoy"}}"#);
        assert_eq!(running.operator.metric(&metric).await?, count, "{metric}");
    }
    Ok(running)
}

/// Forbids to evict pods of `app`. Gives the path of the budget.
pub(crate) async fn budget_of_zero(world: &World, app: &str) -> Result<String> {
    let api = if world.cluster.version().has(Feature::DisruptionBudgetV1) { "policy/v1" } else { "policy/v1beta1" };
    let budget = json!({
        "apiVersion": api, "kind": "PodDisruptionBudget", "metadata": { "name": "none" },
        "spec": { "maxUnavailable": 0, "selector": { "matchLabels": { "app": app } } },
    });
    let budgets = format!("/apis/{api}/namespaces/default/poddisruptionbudgets");
    request(&world.admin, "POST", &budgets, &budget).await?;
    Ok(format!("{budgets}/none"))
}

async fn running_pods_are_patched_in_place_or_evicted_and_a_budget_of_zero_holds() -> Result<()> {
    let running = in_place_then_evicted(Version::NEWEST).await?;
    let world = &running.world;
    // A naked pod is never evicted.
    let mut alone = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "naked" }, "spec": pod_template("naked")["spec"] });
    alone["metadata"]["annotations"] = json!({ "scpol.dev/inject": "true" });
    world.create(PODS, &alone).await?;
    world.edit_policy("envoy", with_variable("2")).await?;
    let has_it = |pod: &Value| pod["spec"]["containers"][1]["env"][0]["value"] == "2";
    running.wait("all pods have the other value", &has_it).await?;
    let message = wait_progress(world, "envoy", "Complete").await?;
    assert!(message.contains("1 are left as they are"), "{message}");
    let naked = world.get(&format!("{PODS}/naked")).await?.context("it is there")?;
    assert_eq!(naked["spec"]["containers"][1]["env"][0]["value"], "1");

    // Nor for a restart, which makes all others anew.
    request(&world.admin, "DELETE", &format!("{PODS}/naked"), &json!({ "gracePeriodSeconds": 0 })).await?;
    let naked = world.create(PODS, &alone).await?;
    assert_eq!(naked["spec"]["containers"][1]["env"][0]["value"], "2");
    let before = running.wait("the pods run", &|_| true).await?;
    // Pods of the same second count as made since.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let now = json!({ "metadata": { "annotations": { "scpol.dev/restartedAt": jiff::Timestamp::now().to_string() } } });
    policies(&world.cluster).patch("envoy", &Default::default(), &kube::api::Patch::Merge(now)).await?;
    let is_new = |pod: &Value| !before.contains(&pod["metadata"]["uid"].to_string());
    running.wait("all pods are made anew", &is_new).await?;
    wait_progress(world, "envoy", "Complete").await?;
    world.get(&format!("{PODS}/naked")).await?.context("nobody makes it again")?;
    Ok(())
}

async fn without_the_rights_the_condition_names_what_to_grant_and_nothing_else_suffers() -> Result<()> {
    let (world, operator) = World::with(ControlPlane::builder(Version::NEWEST)).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    world.policy("envoy", rolling("envoy:1", json!({}))).await?;
    world.policy("log", sidecar("log")).await?;
    in_force(&world.cluster, "envoy").await?;
    in_force(&world.cluster, "log").await?;
    let message = wait_progress(&world, "envoy", "Halted").await?;
    assert!(message.contains("SCP0304") && message.contains("config/rbac/rollout"), "{message}");
    let created = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    assert_eq!(containers(&created), ["app", "envoy", "log"]);
    let warnings = operator.log().matches("Cannot keep revisions").count();
    assert_eq!(warnings, 1, "it is said once");
    // Revisions alone: the next missing right is named.
    world.cluster.apply_file(&file("config/rbac/rollout/role.yaml")).await?;
    wait_progress(&world, "envoy", "Complete").await?;
    world.edit_policy("envoy", sidecar_of("envoy", "envoy:2")).await?;
    let message = wait_progress(&world, "envoy", "Halted").await?;
    assert!(message.contains("SCP0304") && message.contains("cannot get deployments"), "{message}");
    grant(&world).await?;
    wait_images(&world, &["web"], "envoy:2").await?;
    wait_progress(&world, "envoy", "Complete").await.map(drop)
}

async fn a_status_that_cannot_be_written_holds_no_rollout_back() -> Result<()> {
    let (world, operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    world.enforce("envoy", rolling("envoy:1", json!({}))).await?;
    for name in ["a", "b"] {
        world.create_promptly(DEPLOYMENTS, &deployment(name)).await?;
    }
    wait_progress(&world, "envoy", "Complete").await?;
    let rules = world.get(ROLE).await?.context("the role")?["rules"].clone();
    let mut without = rules.clone();
    if let Some(rules) = without.as_array_mut() {
        rules.retain(|rule| rule["resources"] != json!(["sidecarpolicies/status"]));
    }
    ensure!(without != rules, "there is such a rule: {rules}");
    world.patch(ROLE, &json!([{ "op": "replace", "path": "/rules", "value": without }])).await?;
    let operators = world.cluster.client(User::Operator);
    within(LIMIT, "the right is gone", || async {
        let status = "/apis/scpol.dev/v1alpha1/sidecarpolicies/envoy/status";
        let refused = request(&operators, "PATCH", status, &json!([])).await;
        Ok(refused.is_err_and(|error| format!("{error:#}").contains("forbidden")))
    })
    .await?;
    let before = status(&world, "envoy").await?["observedSpecHash"].clone();
    let template = rolling("envoy:2", Value::Null)["template"].clone();
    world.edit_policy("envoy", json!({ "template": template })).await?;
    wait_images(&world, &["a", "b"], "envoy:2").await?;
    within(LIMIT, "the metric tells", || async { Ok(operator.metric("scpol_reconcile_errors_total").await? >= 1.0) })
        .await?;
    assert_eq!(status(&world, "envoy").await?["observedSpecHash"], before, "the status is that of the first content");
    world.patch(ROLE, &json!([{ "op": "replace", "path": "/rules", "value": rules }])).await?;
    within(LIMIT, "the status says it, too", || async {
        let now = status(&world, "envoy").await?;
        Ok(now["observedSpecHash"] != before && now["updated"] == 2 && now["currentRevision"] == now["updateRevision"])
    })
    .await
}

/// Creates namespaces.
pub(crate) async fn namespaces(world: &World, names: &[&str]) -> Result<()> {
    for name in names {
        world.namespace(name, &json!({})).await?;
    }
    Ok(())
}

/// Creates a Deployment in a namespace. Returns the image of its sidecar.
pub(crate) async fn create_in(world: &World, namespace: &str, name: &str) -> Result<String> {
    let created = world.create(&format!("/apis/apps/v1/namespaces/{namespace}/deployments"), &deployment(name)).await?;
    Ok(image_of(&created, "envoy").to_owned())
}

/// The image of the sidecar in new Deployments of a namespace. No initializer sees a dry run, so on a server with
/// Initializers the Deployment is stored for a moment.
pub(crate) async fn new_in(client: &Client, version: Version, namespace: &str) -> Result<String> {
    let all = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    if !version.has_initializers() {
        let created = request(client, "POST", &format!("{all}?dryRun=All"), &deployment("probe")).await?;
        return Ok(image_of(&created, "envoy").to_owned());
    }
    let name = format!("probe-{}", fastrand::u64(..));
    let created = request(client, "POST", &all, &deployment(&name)).await?;
    request(client, "DELETE", &format!("{all}/{name}"), &json!({})).await?;
    Ok(image_of(&created, "envoy").to_owned())
}

pub(crate) async fn image_in(world: &World, namespace: &str, name: &str) -> Result<String> {
    let stored = world.get(&path_in(namespace, name)).await?.context("it is gone")?;
    Ok(image_of(&stored, "envoy").to_owned())
}

/// A policy that rolls out to the namespace `canary` first, and waits.
fn canary(engine: &str, rest: &Value) -> Value {
    let mut rolling_update =
        json!({ "steps": [{ "namespaces": ["canary"] }, { "pause": {} }], "maxUnavailable": "100%" });
    for (field, value) in rest.as_object().into_iter().flatten() {
        rolling_update[field] = value.clone();
    }
    let mut spec = rolling("envoy:1", rolling_update);
    spec["engine"] = json!(engine);
    spec["namespaces"] = json!(["canary", "shop", "late"]);
    spec
}

async fn a_canary(version: Version, engine: &str) -> Result<()> {
    let (world, _operator) = world(version).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    namespaces(&world, &["canary", "shop"]).await?;
    world.enforce("envoy", canary(engine, &Value::Null)).await?;
    for namespace in ["canary", "shop"] {
        assert_eq!(create_in(&world, namespace, "web").await?, "envoy:1", "{engine}");
    }
    wait_progress(&world, "envoy", "Complete").await?;
    // From the edit on, a new workload outside of the steps never has the new revision.
    let creator = world.creator.clone();
    let outside = tokio::spawn(async move {
        loop {
            let image = new_in(&creator, version, "shop").await?;
            ensure!(image == "envoy:1", "outside of the steps: {image}");
        }
        #[allow(unreachable_code, reason = "it tells the type of the result")]
        anyhow::Ok(())
    });
    world.edit_policy("envoy", json!({ "template": rolling("envoy:2", Value::Null)["template"] })).await?;
    within(LIMIT, "the canary has it", || async { Ok(image_in(&world, "canary", "web").await? == "envoy:2") }).await?;
    let message = wait_progress(&world, "envoy", "Paused").await?;
    assert!(message.contains("scpol rollout resume"), "{message}");
    let new = async |namespace: &str| new_in(&world.creator, version, namespace).await;
    assert_eq!([new("canary").await?, new("shop").await?], ["envoy:2", "envoy:1"], "{engine}");
    namespaces(&world, &["late"]).await?;
    assert_eq!((new("late").await?, image_in(&world, "shop", "web").await?), ("envoy:1".into(), "envoy:1".into()));
    ensure!(!outside.is_finished(), "{:?}", outside.await);
    outside.abort();
    within(LIMIT, "one is updated", || async { Ok(status(&world, "envoy").await?["updated"] == 1) }).await?;
    let status = status(&world, "envoy").await?;
    assert_ne!(status["currentRevision"], status["updateRevision"], "{status}");
    let (code, said) = scpol(&world.cluster, &["rollout", "resume", "envoy"]).await?;
    assert_eq!((code, said.as_str()), (0, "sidecarpolicy.scpol.dev/envoy resumed\n"), "{engine}");
    within(LIMIT, "all have it", || async { Ok(image_in(&world, "shop", "web").await? == "envoy:2") }).await?;
    wait_progress(&world, "envoy", "Complete").await?;
    for namespace in ["canary", "shop", "late"] {
        assert_eq!(new(namespace).await?, "envoy:2", "{engine}");
    }
    Ok(())
}

async fn while_a_step_holds_new_workloads_have_the_revision_of_their_namespace_on_initializers_and_webhook_of_1_13()
-> Result<()> {
    a_canary(Version::V1_13, "Initializer").await?;
    a_canary(Version::V1_13, "Webhook").await
}

async fn while_a_step_holds_new_workloads_have_the_revision_of_their_namespace_on_current_engines() -> Result<()> {
    a_canary(Version::NEWEST, "Webhook").await?;
    a_canary(Version::NEWEST, "MutatingAdmissionPolicy").await
}

/// The turns of workloads in [`by_workload`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum Turn {
    /// By its label.
    Canary,
    /// By its bucket.
    Low,
    /// After the last step.
    Last,
}

const TURNS: [Turn; 3] = [Turn::Canary, Turn::Low, Turn::Last];

impl Turn {
    /// A Deployment of this turn in `shop`, the `number`th one.
    fn deployment(self, number: usize) -> Value {
        let kind = Kind::find("apps", "deployments").expect("it is built in");
        let bucket = |name: &str| {
            extent::bucket(&Workload::new(kind, json!({ "metadata": { "name": name, "namespace": "shop" } })))
        };
        // The names of the first and the last are of the same ones.
        let at = number + usize::from(self == Self::Canary);
        let mut names = (0..).map(|at| format!("web-{at}")).filter(|name| (bucket(name) < 30) == (self == Self::Low));
        let mut body = deployment(&names.nth(at).expect("there are more"));
        body["metadata"]["labels"]["track"] = json!(if self == Self::Canary { "canary" } else { "stable" });
        body
    }

    /// A pod of that Deployment, as its ReplicaSet of a template with that hash makes it.
    fn pod(self, number: usize, hash: &str) -> Value {
        let deployment = self.deployment(number);
        let owner = format!("{}-{hash}", deployment["metadata"]["name"].as_str().unwrap_or_default());
        let reference =
            json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": "u", "controller": true });
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "generateName": format!("{owner}-"), "ownerReferences": [reference],
                "labels": { "pod-template-hash": hash, "track": deployment["metadata"]["labels"]["track"] },
            },
            "spec": deployment["spec"]["template"]["spec"],
        })
    }
}

/// The images of the sidecar in new Deployments of each turn, and, where the policy targets them, in new pods.
async fn new_by_workload(client: &Client, version: Version) -> Result<[String; 3]> {
    let mut images = [const { String::new() }; 3];
    for (turn, image) in TURNS.into_iter().zip(&mut images) {
        let all = "/apis/apps/v1/namespaces/shop/deployments";
        // Those with smaller numbers are stored.
        let body = turn.deployment(7);
        if version.has_initializers() {
            let created = request(client, "POST", all, &body).await?;
            let name = body["metadata"]["name"].as_str().unwrap_or_default();
            request(client, "DELETE", &format!("{all}/{name}"), &json!({})).await?;
            *image = image_of(&created, "envoy").to_owned();
            continue;
        }
        let created = request(client, "POST", &format!("{all}?dryRun=All"), &body).await?;
        *image = image_of(&created, "envoy").to_owned();
        for hash in ["5d4f", "77c6b9"] {
            let pods = "/api/v1/namespaces/shop/pods?dryRun=All";
            let created = request(client, "POST", pods, &turn.pod(7, hash)).await?;
            ensure!(image_of(&created, "envoy") == image, "a pod of the template {hash}: not {image}: {created}");
        }
    }
    Ok(images)
}

async fn by_workload(version: Version, engine: &str) -> Result<()> {
    let (world, _operator) = world(version).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    namespaces(&world, &["shop"]).await?;
    let steps = json!([
        { "workloadSelector": { "matchLabels": { "track": "canary" } } }, { "pause": {} },
        { "percentOfWorkloads": 30 }, { "pause": {} },
    ]);
    let mut spec = canary(engine, &json!({ "steps": steps }));
    if !version.has_initializers() {
        spec["targets"] = json!([{ "group": "apps", "resource": "deployments" }, { "group": "", "resource": "pods" }]);
    }
    world.enforce("envoy", spec).await?;
    for turn in TURNS {
        let created = world.create("/apis/apps/v1/namespaces/shop/deployments", &turn.deployment(0)).await?;
        assert_eq!(image_of(&created, "envoy"), "envoy:1", "{engine}");
    }
    wait_progress(&world, "envoy", "Complete").await?;
    let stored = async || {
        let mut images = [const { String::new() }; 3];
        for (turn, image) in TURNS.into_iter().zip(&mut images) {
            let name = turn.deployment(0)["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            *image = image_in(&world, "shop", &name).await?;
        }
        anyhow::Ok(images)
    };
    world.edit_policy("envoy", json!({ "template": rolling("envoy:2", Value::Null)["template"] })).await?;
    for (step, images) in [
        ("step 2 is a pause", ["envoy:2", "envoy:1", "envoy:1"]),
        ("step 4 is a pause", ["envoy:2", "envoy:2", "envoy:1"]),
        ("", ["envoy:2"; 3]),
    ] {
        // At no time has a workload of a later turn the revision.
        within(LIMIT, &format!("{engine}: {step}"), || async {
            for now in [stored().await?, new_by_workload(&world.creator, version).await?] {
                let is_early = now.iter().zip(images).any(|(now, image)| now == "envoy:2" && image == "envoy:1");
                ensure!(!is_early && !now.contains(&String::new()), "{step}: {now:?}");
            }
            let (reason, message) = progressing(&world, "envoy").await?;
            let is_there = if step.is_empty() { reason == "Complete" } else { message.contains(step) };
            Ok(is_there && stored().await? == images)
        })
        .await?;
        assert_eq!(new_by_workload(&world.creator, version).await?, images, "{engine}: {step}");
        if !step.is_empty() {
            let (code, said) = scpol(&world.cluster, &["rollout", "resume", "envoy"]).await?;
            assert_eq!((code, said.as_str()), (0, "sidecarpolicy.scpol.dev/envoy resumed\n"), "{engine}");
        }
    }
    Ok(())
}

async fn steps_by_workload_reach_stored_and_new_workloads_alike_on_initializers_and_webhook_of_1_13() -> Result<()> {
    by_workload(Version::V1_13, "Initializer").await?;
    by_workload(Version::V1_13, "Webhook").await
}

async fn steps_by_workload_reach_stored_and_new_workloads_alike_on_current_engines() -> Result<()> {
    by_workload(Version::NEWEST, "Webhook").await?;
    by_workload(Version::NEWEST, "MutatingAdmissionPolicy").await
}

/// Waits until so many workloads of `envoy` are available. What never was is nobody's failure.
async fn wait_ready(world: &World, count: i64) -> Result<()> {
    within(LIMIT, "all are ready", || async { Ok(status(world, "envoy").await?["ready"] == count) }).await
}

async fn a_bad_image(version: Version) -> Result<()> {
    let (world, _operator) = world(version).await?.operated(&[]).await?;
    let controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    namespaces(&world, &["canary", "shop"]).await?;
    let rest = json!({ "progressDeadlineSeconds": 2, "steps": [{ "namespaces": ["canary"] }, { "percent": 50 }, { "percent": 100 }] });
    world.enforce("envoy", canary("Auto", &rest)).await?;
    for (namespace, name) in [("canary", "bad"), ("canary", "good"), ("shop", "web")] {
        create_in(&world, namespace, name).await?;
    }
    wait_progress(&world, "envoy", "Complete").await?;
    wait_ready(&world, 3).await?;
    controllers.stick("bad");
    let edit = |image: &str| json!({ "template": rolling(image, Value::Null)["template"] });
    world.edit_policy("envoy", edit("envoy:bad")).await?;
    wait_progress(&world, "envoy", "Halted").await?;
    assert_eq!(image_in(&world, "canary", "bad").await?, "envoy:bad");
    assert_eq!(
        (image_in(&world, "shop", "web").await?, new_in(&world.creator, version, "shop").await?),
        ("envoy:1".into(), "envoy:1".into())
    );
    controllers.unstick();
    let (code, said) = scpol(&world.cluster, &["rollout", "undo", "envoy"]).await?;
    assert_eq!((code, said.as_str()), (0, "sidecarpolicy.scpol.dev/envoy rolled back to revision 1\n"));
    within(LIMIT, "it is back", || async { Ok(image_in(&world, "canary", "bad").await? == "envoy:1") }).await?;
    wait_progress(&world, "envoy", "Complete").await?;

    // With `Undo` it goes back by itself.
    let undo = json!({ "updateStrategy": { "rollingUpdate": { "onFailure": "Undo" } } });
    world.edit_policy("envoy", undo).await?;
    wait_progress(&world, "envoy", "Complete").await?;
    controllers.stick("bad");
    world.edit_policy("envoy", edit("envoy:bad")).await?;
    within(LIMIT, "it has the bad image", || async { Ok(image_in(&world, "canary", "bad").await? == "envoy:bad") })
        .await?;
    within(LIMIT, "it is halted", || async { Ok(status(&world, "envoy").await?["halted"] == true) }).await?;
    controllers.unstick();
    within(LIMIT, "it is back by itself", || async { Ok(image_in(&world, "canary", "bad").await? == "envoy:1") })
        .await?;
    let message = Mutex::new(String::new());
    within(LIMIT, "it says so", || async {
        let (reason, now) = progressing(&world, "envoy").await?;
        *lock(&message) = now.clone();
        Ok(reason == "Halted" && now.contains("has the revision before again"))
    })
    .await
    .with_context(|| lock(&message).clone())?;
    for namespace in ["canary", "shop"] {
        assert_eq!(new_in(&world.creator, version, namespace).await?, "envoy:1", "{namespace}");
    }
    assert_eq!(image_in(&world, "canary", "good").await?, "envoy:1");
    Ok(())
}

async fn every_kind_follows(version: Version) -> Result<()> {
    let (world, _operator) = world(version).await?.operated(&[]).await?;
    let _controllers = Controllers::start(world.admin.clone(), Duration::from_millis(50));
    let kinds: Vec<_> = WORKLOADS.iter().filter(|(_, resource, ..)| *resource != "pods").collect();
    let targets: Vec<Value> =
        kinds.iter().map(|(group, resource, ..)| json!({ "group": group, "resource": resource })).collect();
    let mut spec = rolling("envoy:1", json!({ "maxUnavailable": "100%" }));
    (spec["targets"], spec["jobs"]) = (json!(targets), json!("Inject"));
    world.enforce("envoy", spec).await?;
    let mut places = BTreeMap::new();
    for (_, resource, kind, versions) in kinds {
        let api = versions[usize::from(!version.has_initializers())];
        let all = format!("/apis/{api}/namespaces/default/{resource}");
        let created = world.create_promptly(&all, &workload(kind, api, "web", &json!({}))).await?;
        assert_eq!(image_in_any(&created), "envoy:1", "{resource}");
        places.insert(*resource, format!("{all}/web"));
    }
    wait_progress(&world, "envoy", "Complete").await?;
    world.edit_policy("envoy", json!({ "template": rolling("envoy:2", Value::Null)["template"] })).await?;
    for (resource, place) in &places {
        within(LIMIT, &format!("{resource} have it"), || async {
            let stored = world.get(place).await?.context("it is there")?;
            Ok(*resource == "jobs" || image_in_any(&stored) == "envoy:2")
        })
        .await?;
    }
    let message = wait_progress(&world, "envoy", "Complete").await?;
    assert!(message.contains("4 of 4"), "{message}");
    let job = world.get(&places["jobs"]).await?.context("it is there")?;
    assert_eq!(image_in_any(&job), "envoy:1");
    Ok(())
}

/// The image of the sidecar in an object of any kind. Where the pods end by themselves, it is a native one on current servers.
fn image_in_any(object: &Value) -> &str {
    let template = object.pointer("/spec/jobTemplate").unwrap_or(object).pointer("/spec/template/spec");
    let lists = template.into_iter().flat_map(|spec| [&spec["initContainers"], &spec["containers"]]);
    let mut items = lists.filter_map(Value::as_array).flatten();
    items.find(|item| item["name"] == "envoy").and_then(|item| item["image"].as_str()).unwrap_or_default()
}

/// Creates a ReplicaSet with the name and the pod template of `deployment`, and plays its controller until the task is aborted.
pub(crate) async fn played_replica_set(world: &World, mut deployment: Value) -> Result<JoinHandle<Result<()>>> {
    deployment["kind"] = json!("ReplicaSet");
    let set = world.create("/apis/apps/v1/namespaces/default/replicasets", &deployment).await?;
    let uid = set["metadata"]["uid"].as_str().context("a uid")?.to_owned();
    Ok(tokio::spawn(play_replica_set(world.creator.clone(), world.admin.clone(), uid)))
}

/// Plays the controller of the ReplicaSet `web`, and a kubelet: there is always one pod, and it is ready.
async fn play_replica_set(creator: Client, admin: Client, uid: String) -> Result<()> {
    for number in 0.. {
        let mut pod = pod_template("web");
        (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
        let name = format!("web-{number}");
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid, "controller": true }]);
        pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
        request(&creator, "POST", PODS, &pod).await?;
        let place = format!("{PODS}/{name}");
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let Ok(stored) = request(&admin, "GET", &place, &Value::Null).await else { break };
            let items = stored["spec"]["containers"].as_array().cloned().unwrap_or_default();
            let containers: Vec<Value> = items
                .iter()
                .map(|item| {
                    json!({ "name": item["name"], "image": item["image"], "imageID": "x", "ready": true, "restartCount": 0,
                        "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } } })
                })
                .collect();
            // Servers add fields to each.
            let told = stored["status"]["containerStatuses"].as_array().into_iter().flatten();
            if told.map(|item| &item["image"]).eq(containers.iter().map(|item| &item["image"])) {
                continue;
            }
            let status = json!({
                "phase": "Running", "containerStatuses": containers,
                "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": jiff::Timestamp::now().to_string() }],
            });
            let patch = json!([{ "op": "add", "path": "/status", "value": status }]);
            // The pod may be gone.
            if let Err(error) = request(&admin, "PATCH", &format!("{place}/status"), &patch).await {
                eprintln!("the status of {name} cannot be set: {error}");
            }
        }
    }
    Ok(())
}

/// The ready pods whose label `app` is `app`.
pub(crate) async fn ready_pods(world: &World, app: &str) -> Result<Vec<Value>> {
    let mut pods = world.list(&format!("{PODS}?labelSelector=app%3D{app}")).await?;
    pods.retain(|pod| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let is_ready = conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        pod["metadata"]["deletionTimestamp"].is_null() && is_ready
    });
    Ok(pods)
}

/// Running pods of `web` under the policy `envoy`, which targets pods.
pub(crate) struct Running {
    pub(crate) world: World,
    operator: Operator,
    /// How many there are.
    count: usize,
    /// Plays the controller and the kubelet of servers without nodes.
    played: Option<JoinHandle<Result<()>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(played) = &self.played {
            played.abort();
        }
    }
}

/// Three pods of a Deployment on the newest version, and one pod of a ReplicaSet on others, with the sidecar of `content`.
pub(crate) async fn running(version: Version, content: Value, rolling_update: Value) -> Result<Running> {
    let has_nodes = version == Version::NEWEST;
    let builder = ControlPlane::builder(version);
    let world = World::with(if has_nodes { builder.nodes(2) } else { builder }).await?;
    grant(&world).await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    let mut spec = rolling("envoy:1", rolling_update);
    spec["targets"] = json!([{ "group": "", "resource": "pods" }]);
    spec["template"] = content["template"].clone();
    world.enforce("envoy", spec).await?;
    let mut web = deployment("web");
    let mut running = Running { world, operator, count: 3, played: None };
    let world = &running.world;
    if has_nodes {
        web["spec"]["replicas"] = json!(3);
        let pod = &mut web["spec"]["template"]["spec"];
        // The simulated kubelet never shows a new image in the status, so each pod takes this time and ten seconds more.
        pod["terminationGracePeriodSeconds"] = json!(0);
        pod["containers"][0]["resources"] = json!({ "requests": { "cpu": "20m" } });
        world.create(DEPLOYMENTS, &web).await?;
    } else {
        let played = played_replica_set(world, web).await?;
        (running.count, running.played) = (1, Some(played));
    }
    running.wait("the pods run", &|pod| image_of(pod, "envoy") == "envoy:1").await?;
    Ok(running)
}

/// A policy whose sidecar asks for these resources.
pub(crate) fn envoy(image: &str, cpu: &str) -> Value {
    let amounts = json!({ "cpu": cpu, "memory": "32Mi" });
    let mut spec = sidecar_of("envoy", image);
    spec["template"]["containers"][0]["resources"] = json!({ "requests": amounts, "limits": amounts });
    spec
}

impl Running {
    /// Waits until all pods are ready, and each of them `is` so. Returns their UIDs.
    pub(crate) async fn wait(&self, what: &str, is: &dyn Fn(&Value) -> bool) -> Result<BTreeSet<String>> {
        let uids = Mutex::new(BTreeSet::new());
        within(LIMIT, what, || async {
            let pods = ready_pods(&self.world, "web").await?;
            *lock(&uids) = pods.iter().map(|pod| pod["metadata"]["uid"].to_string()).collect();
            Ok(pods.len() == self.count && pods.iter().all(is))
        })
        .await?;
        Ok(lock(&uids).clone())
    }

    /// Waits until the rollout is complete but for these pods, which are left because of `code` and `words` in the log. They are still
    /// those of `before`, and none was evicted.
    pub(crate) async fn are_left(&self, before: &BTreeSet<String>, code: &str, words: &str) -> Result<()> {
        let told = Mutex::new(String::new());
        let waited = within(LIMIT, "the pods are left", || async {
            let log = self.operator.log();
            let is_one = |line: &&str| line.contains("Left as it is") && line.contains(code) && line.contains(words);
            let is_told = log.lines().filter(is_one).count() == self.count;
            *lock(&told) = log;
            let (reason, message) = progressing(&self.world, "envoy").await?;
            Ok(is_told && reason == "Complete" && message.contains(&format!("{} are left as they are", self.count)))
        });
        waited.await.with_context(|| format!("{code} {words}: {}", lock(&told)))?;
        assert_eq!(self.wait("the pods run", &|_| true).await?, *before, "a pod was evicted");
        assert_eq!(self.operator.metric(r#"scpol_rollout_evictions_total{policy="envoy"}"#).await?, 0.0);
        Ok(())
    }
}

async fn a_pod_that_the_namespace_does_not_let_grow_is_left_and_never_evicted() -> Result<()> {
    let running = running(Version::NEWEST, envoy("envoy:1", "50m"), json!({ "maxUnavailable": "100%" })).await?;
    let world = &running.world;
    let before = running.wait("the pods run", &|_| true).await?;
    // A server resizes the pods of kubelets that tell the resources of running containers.
    let list = request(&world.admin, "GET", &format!("{PODS}?labelSelector=app%3Dweb"), &Value::Null).await?;
    for pod in list["items"].as_array().into_iter().flatten() {
        let resources = json!({ "requests": { "cpu": "1m" } });
        let told = (0..2).map(|index| {
            json!({ "op": "add", "path": format!("/status/containerStatuses/{index}/resources"), "value": resources })
        });
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        request(&world.admin, "PATCH", &format!("{PODS}/{name}/status"), &told.collect()).await?;
    }
    let ranges = "/api/v1/namespaces/default/limitranges";
    let range = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "small" },
        "spec": { "limits": [{ "type": "Container", "max": { "cpu": "100m" } }] },
    });
    request(&world.admin, "POST", ranges, &range).await?;
    world.edit_policy("envoy", envoy("envoy:1", "200m")).await?;
    running.are_left(&before, "SCP0204", "maximum cpu usage per Container is 100m").await?;
    world.delete(&format!("{ranges}/small")).await?;

    // Three pods of 70m fit. No pod of 80m does, new or old.
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "small" },
        "spec": { "hard": { "requests.cpu": "215m" } },
    });
    request(&world.admin, "POST", quotas, &quota).await?;
    within(LIMIT, "the quota counts", || async {
        let stored = world.get(&format!("{quotas}/small")).await?.context("it is there")?;
        Ok(stored["status"]["used"]["requests.cpu"] == "210m")
    })
    .await?;
    world.edit_policy("envoy", envoy("envoy:1", "60m")).await?;
    running.are_left(&before, "SCP0205", "exceeded quota: small").await?;

    // What fits goes on.
    world.edit_policy("envoy", envoy("envoy:2", "50m")).await?;
    let after = running.wait("all pods have the image", &|pod| image_of(pod, "envoy") == "envoy:2").await?;
    assert_eq!(after, before);
    Ok(())
}

async fn a_pod_is_evicted_after_a_refused_update_only_if_a_new_one_would_be_accepted() -> Result<()> {
    for version in [Version::V1_30, Version::NEWEST] {
        let running = running(version, envoy("envoy:1", "50m"), json!({ "maxUnavailable": "100%" })).await?;
        let world = &running.world;
        let before = running.wait("the pods run", &|_| true).await?;
        let forbid = async |name: &str, operations: Value, image: &str| {
            let path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic";
            let rule =
                json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": operations, "resources": ["pods"] });
            let expression = format!("!object.spec.containers.exists(c, c.image == '{image}')");
            let policy = json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": { "name": name },
                "spec": {
                    "matchConstraints": { "resourceRules": [rule] },
                    "validations": [{ "expression": expression, "message": "not that image" }],
                },
            });
            request(&world.admin, "POST", &format!("{path}ies"), &policy).await?;
            let binding = json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": { "name": name }, "spec": { "policyName": name, "validationActions": ["Deny"] },
            });
            request(&world.admin, "POST", &format!("{path}ybindings"), &binding).await?;
            within(LIMIT, "the policy is in effect", || async {
                let list =
                    request(&world.admin, "GET", &format!("{PODS}?labelSelector=app%3Dweb"), &Value::Null).await?;
                let pod = list["items"][0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let patch = json!([{ "op": "replace", "path": "/spec/containers/1/image", "value": image }]);
                let tried = request(&world.admin, "PATCH", &format!("{PODS}/{pod}?dryRun=All"), &patch).await;
                Ok(tried.is_err_and(|error| format!("{error:#}").contains("not that image")))
            })
            .await
        };
        // Without the right to try a create.
        forbid("untried", json!(["UPDATE"]), "envoy:2").await?;
        world.edit_policy("envoy", envoy("envoy:2", "50m")).await?;
        running.are_left(&before, "SCP0204", "without the right to create pods").await?;

        let metadata = json!({ "name": "tries" });
        let rule = json!({ "apiGroups": [""], "resources": ["pods"], "verbs": ["create"] });
        let api = "rbac.authorization.k8s.io";
        let role = json!({ "apiVersion": format!("{api}/v1"), "kind": "Role", "metadata": metadata, "rules": [rule] });
        let binding = json!({
            "apiVersion": format!("{api}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": api, "kind": "Role", "name": "tries" },
            "subjects": [{ "kind": "ServiceAccount", "name": "scpol", "namespace": "scpol-system" }],
        });
        let at = format!("/apis/{api}/v1/namespaces/default");
        request(&world.admin, "POST", &format!("{at}/roles"), &role).await?;
        request(&world.admin, "POST", &format!("{at}/rolebindings"), &binding).await?;
        forbid("both", json!(["CREATE", "UPDATE"]), "envoy:3").await?;
        world.edit_policy("envoy", envoy("envoy:3", "50m")).await?;
        running.are_left(&before, "SCP0204", "a new pod would be refused, too").await?;

        forbid("running", json!(["UPDATE"]), "envoy:4").await?;
        world.edit_policy("envoy", envoy("envoy:4", "50m")).await?;
        let after = running.wait("all pods have the image", &|pod| image_of(pod, "envoy") == "envoy:4").await?;
        assert!(after.is_disjoint(&before), "they cannot change in place");
    }
    Ok(())
}
