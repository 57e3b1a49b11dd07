//! `scpol rollout`: what its commands say and do on a real server, with and without an operator.

use crate::commands::scpol;
use crate::prelude::*;
use crate::rollouts::{
    self, Controllers, budget_of_zero, grant, image_of, played_replica_set, rolling, wait_images, wait_progress, world,
};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::process::Command;

crate::tests![
    a_rollout_is_planned_followed_paused_resumed_and_undone_by_commands,
    a_plan_works_before_the_switch_is_turned_and_for_a_file_that_is_not_applied,
    a_suspended_policy_is_removed_from_templates_and_what_is_edited_stays,
    running_pods_are_evicted_by_a_removal_at_the_pace_of_the_policy_and_a_budget_of_zero_holds,
    a_running_pod_of_1_13_is_evicted_by_a_removal,
    who_may_read_less_is_told_less_and_which_right_is_missing,
];

/// Runs `scpol rollout` with `arguments`, which must end with exit code `code`.
async fn rollout(world: &World, arguments: &[&str], code: i32) -> Result<String> {
    let (found, printed) = scpol(&world.cluster, &[&["rollout"], arguments].concat()).await?;
    ensure!(found == code, "{arguments:?}: {found} instead of {code}: {printed}");
    Ok(printed)
}

async fn report(world: &World, arguments: &[&str], code: i32) -> Result<Value> {
    let printed = rollout(world, &[arguments, &["-o", "json"]].concat(), code).await?;
    serde_json::from_str(&printed).with_context(|| printed.clone())
}

/// The fields of each item of a report, in one text.
fn told(report: &Value, fields: &[&str]) -> Vec<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let items = report["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|item| fields.iter().map(|field| text(&item[*field])).collect::<Vec<_>>().join(" ")).collect()
}

async fn edit_image(world: &World, image: &str) -> Result<()> {
    world.edit_policy("envoy", sidecar_of("envoy", image)).await
}

async fn a_rollout_is_planned_followed_paused_resumed_and_undone_by_commands() -> Result<()> {
    let (world, operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let controllers = Controllers::start(world.admin.clone(), Duration::from_millis(100));
    let mut spec = rolling("envoy:1", json!({ "progressDeadlineSeconds": 5 }));
    spec["template"].as_object_mut().map(|template| template.remove("metadata"));
    world.enforce("envoy", spec).await?;
    for name in ["a", "b"] {
        world.create_promptly(DEPLOYMENTS, &deployment(name)).await?;
    }
    wait_progress(&world, "envoy", "Complete").await?;
    within(LIMIT, "both are counted", || async { Ok(report(&world, &["status", "envoy"], 0).await?["updated"] == 2) })
        .await?;
    let said = rollout(&world, &["undo", "envoy"], 2).await?;
    ensure!(said.contains("no earlier revision"), "{said}");

    // Nothing moves while it is paused.
    let said = rollout(&world, &["pause", "envoy"], 0).await?;
    assert_eq!(said, "sidecarpolicy.scpol.dev/envoy paused\n");
    ensure!(rollout(&world, &["pause", "envoy"], 0).await?.contains("already paused"));
    edit_image(&world, "envoy:2").await?;
    wait_progress(&world, "envoy", "Paused").await?;
    in_force(&world.cluster, "envoy").await?;
    let plan = report(&world, &["plan", "envoy"], 0).await?;
    let expected = ["default a Patch it has revision 1", "default b Patch it has revision 1"];
    assert_eq!(told(&plan, &["namespace", "name", "action", "why"]), expected);
    assert_eq!(plan["sums"], json!({ "matched": 2, "upToDate": 0, "patch": 2, "inPlace": 0, "evict": 0, "left": 0 }));
    let status = report(&world, &["status", "envoy"], 1).await?;
    let numbers = ["current", "update"].map(|role| status[role]["revision"].as_i64());
    assert_eq!((numbers, &status["reason"]), ([Some(1), Some(2)], &json!("Paused")));

    let said = rollout(&world, &["resume", "envoy"], 0).await?;
    assert_eq!(said, "sidecarpolicy.scpol.dev/envoy resumed\n");
    let said = rollout(&world, &["status", "envoy", "--watch"], 0).await?;
    ensure!(said.ends_with("envoy: 2 of 2 workloads, 2 ready: Complete\n"), "{said}");
    wait_images(&world, &["a", "b"], "envoy:2").await?;
    let history = report(&world, &["history", "envoy"], 0).await?;
    let expected = [r#"1 [] ["envoy:1"]"#, r#"2 ["current","update"] ["envoy:2"]"#];
    assert_eq!(told(&history, &["revision", "state", "images"]), expected);
    let printed = rollout(&world, &["history", "envoy", "--revision=1"], 0).await?;
    ensure!(printed.contains("image: envoy:1") && printed.starts_with("jobs:"), "{printed}");
    ensure!(rollout(&world, &["history", "envoy", "--revision=7"], 2).await?.contains("there is no revision 7"));

    // A field that the earlier revision does not have goes, too.
    world.edit_policy("envoy", json!({ "position": { "env": "After" } })).await?;
    wait_progress(&world, "envoy", "Complete").await?;
    let said = rollout(&world, &["status", "envoy", "-w"], 0).await?;
    ensure!(said.contains("Complete"), "{said}");
    let said = rollout(&world, &["undo", "envoy", "--dry-run"], 0).await?;
    assert_eq!(said, "sidecarpolicy.scpol.dev/envoy rolled back to revision 2 (dry run)\n");
    let said = rollout(&world, &["undo", "envoy", "--to-revision=1", "--dry-run=server"], 0).await?;
    assert_eq!(said, "sidecarpolicy.scpol.dev/envoy rolled back to revision 1 (server dry run)\n");
    let stored = policies(&world.cluster).get("envoy").await?.data["spec"].clone();
    assert_eq!(stored["position"]["env"], "After", "a dry run changes nothing");
    let said = rollout(&world, &["undo", "envoy"], 0).await?;
    assert_eq!(said, "sidecarpolicy.scpol.dev/envoy rolled back to revision 2\n");
    let stored = policies(&world.cluster).get("envoy").await?.data["spec"].clone();
    ensure!(stored["position"].is_null() && stored["template"]["containers"][0]["image"] == "envoy:2", "{stored}");
    rollout(&world, &["status", "envoy", "-w"], 0).await?;
    for name in ["a", "b"] {
        let object = world.get(&path(name)).await?.context("it is there")?;
        assert_eq!(containers(&object), ["app", "envoy"], "{name}");
        assert_eq!(image_of(&object, "envoy"), "envoy:2", "{name}");
    }

    // Everything anew. Creation times are in whole seconds.
    tokio::time::sleep(Duration::from_secs(1)).await;
    rollout(&world, &["restart", "envoy"], 0).await?;
    let said = rollout(&world, &["status", "envoy", "-w"], 0).await?;
    for name in ["a", "b"] {
        let object = world.get(&path(name)).await?.context("it is there")?;
        let annotations = &object["spec"]["template"]["metadata"]["annotations"];
        ensure!(!annotations["kubectl.kubernetes.io/restartedAt"].is_null(), "{name} was not made anew: {said}");
    }

    // The watch ends when the rollout halts.
    controllers.stick("a");
    edit_image(&world, "envoy:bad").await?;
    let said = rollout(&world, &["status", "envoy", "-w"], 1).await?;
    let last = said.lines().last().unwrap_or_default();
    ensure!(last.contains(": Halted: SCP0403") && last.contains("deployments.apps default/a"), "{said}");
    drop(operator);
    ensure!(rollout(&world, &["status", "envo"], 2).await?.contains("did you mean `envoy`?"));
    Ok(())
}

async fn a_plan_works_before_the_switch_is_turned_and_for_a_file_that_is_not_applied() -> Result<()> {
    // The operator has no rights of rollouts, so no revision is stored.
    let (world, _operator) =
        World::with(controlplane::ControlPlane::builder(Version::NEWEST)).await?.operated(&[]).await?;
    world.create(DEPLOYMENTS, &deployment("before")).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    let mut edited = deployment("edited");
    edited = world.create_promptly(DEPLOYMENTS, &edited).await?;
    assert_eq!(containers(&edited), ["app", "envoy"]);
    let by_hand = json!([{ "op": "add", "path": "/spec/template/spec/containers/1/args", "value": ["--by-hand"] }]);
    world.patch(&path("edited"), &by_hand).await?;

    let said = rollout(&world, &["status", "envoy"], 0).await?;
    ensure!(said.contains("nothing is rolled out") && said.contains("kubectl patch scpol envoy"), "{said}");
    let said = rollout(&world, &["pause", "envoy"], 2).await?;
    ensure!(said.contains("`spec.updateStrategy.type` is not `RollingUpdate`"), "{said}");
    let said = rollout(&world, &["plan", "envoy"], 0).await?;
    ensure!(said.contains("3 workloads match: 2 up to date, 1 by a patch of the template"), "{said}");
    ensure!(said.contains("default    Deployment  before  patch template  it has no sidecar of the policy"), "{said}");
    ensure!(said.contains("Nothing of this happens until"), "{said}");

    let steps = json!({ "steps": [{ "namespaces": ["other"] }] });
    let file = world.policy_file("envoy", &rolling("envoy:2", steps))?;
    let plan = report(&world, &["plan", "-f", &file], 0).await?;
    let lines = told(&plan, &["step", "name", "action", "code"]);
    assert_eq!(lines, ["2 before Patch null", "2 edited Leave SCP0410", "2 web Patch null"]);
    ensure!(rollout(&world, &["plan", "log", "-f", &file], 2).await?.contains("no SidecarPolicy `log`"));
    let stored = world.get(&path("web")).await?.context("it is there")?;
    assert_eq!(image_of(&stored, "envoy"), "envoy:1", "a plan changes nothing");
    Ok(())
}

async fn a_suspended_policy_is_removed_from_templates_and_what_is_edited_stays() -> Result<()> {
    let (world, _operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let mut before = Vec::new();
    for name in ["edited", "web"] {
        before.push(world.create(DEPLOYMENTS, &deployment(&format!("plain-{name}"))).await?);
    }
    world.enforce("envoy", sidecar("envoy")).await?;
    for name in ["edited", "web"] {
        world.create_promptly(DEPLOYMENTS, &deployment(name)).await?;
    }
    let by_hand = json!([{ "op": "add", "path": "/spec/template/spec/containers/1/args", "value": ["--by-hand"] }]);
    world.patch(&path("edited"), &by_hand).await?;
    let said = rollout(&world, &["remove", "envoy", "--yes"], 2).await?;
    ensure!(said.contains("is in effect"), "{said}");
    suspend(&world).await?;
    let said = rollout(&world, &["remove", "envoy"], 2).await?;
    ensure!(said.contains("would be removed") && said.contains("give `--yes` to change 1 workload"), "{said}");
    let listed = report(&world, &["remove", "envoy", "--yes", "--dry-run=server"], 1).await?;
    let expected = ["edited Left SCP0410", "web WouldRemove null"];
    assert_eq!(told(&listed, &["name", "result", "code"]), expected);
    let web = world.get(&path("web")).await?.context("it is there")?;
    assert_eq!(containers(&web), ["app", "envoy"], "a dry run changes nothing");

    let done = report(&world, &["remove", "envoy", "--yes"], 1).await?;
    assert_eq!(told(&done, &["name", "result", "code"]), ["edited Left SCP0410", "web Removed null"]);
    let web = world.get(&path("web")).await?.context("it is there")?;
    let template = |object: &Value, name: &str| {
        serde_json::from_str::<Value>(&object["spec"]["template"].to_string().replace(name, "NAME")).unwrap_or_default()
    };
    assert_eq!(template(&web, "web"), template(&before[1], "plain-web"), "it is as if there had been no policy");
    let edited = world.get(&path("edited")).await?.context("it is there")?;
    assert_eq!(containers(&edited), ["app", "envoy"]);
    let again = report(&world, &["remove", "envoy", "--yes"], 1).await?;
    assert_eq!(told(&again, &["name", "result"]), ["edited Left"]);

    // Of a deleted policy no revision is stored, once the garbage collector has been there; its file knows the content.
    let undo = json!([{ "op": "remove", "path": "/spec/template/spec/containers/1/args" }]);
    world.patch(&path("edited"), &undo).await?;
    world.delete("/apis/scpol.dev/v1alpha1/sidecarpolicies/envoy").await?;
    for revision in
        world.get("/apis/apps/v1/namespaces/scpol-system/controllerrevisions").await?.context("a list")?["items"]
            .as_array()
            .context("a list")?
    {
        let name = revision["metadata"]["name"].as_str().context("a name")?;
        let revision = format!("/apis/apps/v1/namespaces/scpol-system/controllerrevisions/{name}");
        if world.get(&revision).await?.is_some() {
            world.delete(&revision).await?;
        }
    }
    let said = report(&world, &["remove", "envoy", "--yes"], 1).await?;
    assert_eq!(told(&said, &["name", "code"]), ["edited SCP0411"]);
    let file = world.policy_file("envoy", &sidecar("envoy"))?;
    let done = report(&world, &["remove", "envoy", "--yes", "-f", &file], 0).await?;
    assert_eq!(told(&done, &["name", "result"]), ["edited Removed"]);
    let edited = world.get(&path("edited")).await?.context("it is there")?;
    assert_eq!(containers(&edited), ["app"]);
    ensure!(
        rollout(&world, &["remove", "envoy", "--yes"], 0)
            .await?
            .contains("No pod template and no running pod has content of envoy")
    );
    Ok(())
}

/// A policy on pods.
fn on_pods(rolling_update: Value) -> Value {
    let mut spec = rolling("envoy:1", rolling_update);
    spec["targets"] = json!([{ "group": "", "resource": "pods" }]);
    spec["template"] = sidecar("envoy")["template"].clone();
    spec
}

/// Takes the policy `envoy` out of force.
async fn suspend(world: &World) -> Result<()> {
    world.edit_policy("envoy", json!({ "suspend": true })).await?;
    within(LIMIT, "it is out of force", || async {
        Ok(!scpol(&world.cluster, &["rollout", "remove", "envoy", "--dry-run"]).await?.1.contains("out of force yet"))
    })
    .await
}

/// The containers of each ready pod whose label `app` is `app`, with its UID.
async fn ready_pods(world: &World, app: &str) -> Result<Vec<(Vec<String>, String)>> {
    let pods = rollouts::ready_pods(world, app).await?;
    Ok(pods.iter().map(|pod| (containers(pod), pod["metadata"]["uid"].to_string())).collect())
}

/// Waits until so many pods of `app` are ready and have these containers.
async fn wait_pods(world: &World, app: &str, count: usize, containers: &[&str]) -> Result<()> {
    within(LIMIT, &format!("{count} pods of {app} have {containers:?}"), || async {
        let pods = ready_pods(world, app).await?;
        Ok(pods.len() == count && pods.iter().all(|(names, _)| names == containers))
    })
    .await
}

async fn running_pods_are_evicted_by_a_removal_at_the_pace_of_the_policy_and_a_budget_of_zero_holds() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST).nodes(2)).await?;
    grant(&world).await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    world.enforce("envoy", on_pods(json!({ "maxUnavailable": 1 }))).await?;
    for (name, replicas) in [("kept", 1), ("web", 3)] {
        let mut object = deployment(name);
        object["spec"]["replicas"] = json!(replicas);
        object["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(0);
        world.create(DEPLOYMENTS, &object).await?;
        wait_pods(&world, name, replicas, &["app", "envoy"]).await?;
    }
    let template = pod_template("naked");
    let naked = json!({
        "apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
        "metadata": { "name": "naked", "annotations": { "scpol.dev/inject": "true" } },
    });
    world.create(PODS, &naked).await?;
    let budget = budget_of_zero(&world, "kept").await?;
    suspend(&world).await?;

    let before = ready_pods(&world, "web").await?;
    let said = rollout(&world, &["remove", "envoy"], 2).await?;
    ensure!(said.contains("would be evicted") && said.contains("give `--yes` to evict 4 pods"), "{said}");
    let listed = report(&world, &["remove", "envoy", "--yes", "--dry-run"], 1).await?;
    let results = ["WouldEvict null", "Left SCP0412", "WouldEvict null", "WouldEvict null", "WouldEvict null"];
    assert_eq!(told(&listed, &["result", "code"]), results);
    assert_eq!(ready_pods(&world, "web").await?, before, "a dry run evicts nothing");

    // The budget is passed by, and the user ends the command.
    let said = world.cluster.dir().join("said");
    let child = Command::new(env!("CARGO_BIN_EXE_scpol"))
        .args(["rollout", "remove", "envoy", "--yes", "-o", "json"])
        .env("KUBECONFIG", world.cluster.kubeconfig(User::Admin))
        .envs([timing_variable()])
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&said)?)
        .kill_on_drop(true)
        .spawn()?;
    let fewest = AtomicUsize::new(3);
    within(LIMIT, "the pods of web are made anew", || async {
        let pods = ready_pods(&world, "web").await?;
        fewest.fetch_min(pods.len(), Ordering::Relaxed);
        Ok(pods.len() == 3 && pods.iter().all(|(names, _)| names == &["app"]))
    })
    .await?;
    let fewest = fewest.into_inner();
    ensure!(fewest >= 2, "more than one was unavailable: {fewest} were ready");
    within(LIMIT, "the budget is named", || async {
        let said = std::fs::read_to_string(&said)?;
        Ok(said.contains("SCP0415: default/kept-")
            && said.contains("disruption budget none")
            && said.contains("it waits since"))
    })
    .await?;
    wait_pods(&world, "kept", 1, &["app", "envoy"]).await?;
    let id = child.id().context("it runs")?.to_string();
    ensure!(Command::new("kill").args(["-INT", &id]).status().await?.success(), "it cannot be interrupted");
    let ended = child.wait_with_output().await?;
    assert_eq!(ended.status.code(), Some(1), "{}", std::fs::read_to_string(&said)?);
    let done: Value = serde_json::from_slice(&ended.stdout)?;
    let results = ["Left SCP0415", "Left SCP0412", "Evicted null", "Evicted null", "Evicted null"];
    assert_eq!(told(&done, &["result", "code"]), results);
    ensure!(std::fs::read_to_string(&said)?.contains("it was interrupted"), "{done}");

    // A pod stays whose replacement the server would refuse.
    world.delete(&budget).await?;
    let ranges = "/api/v1/namespaces/default/limitranges";
    let range = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "small" },
        "spec": { "limits": [{ "type": "Pod", "max": { "cpu": "1" } }] },
    });
    request(&world.admin, "POST", ranges, &range).await?;
    let done = report(&world, &["remove", "envoy", "--yes"], 1).await?;
    assert_eq!(told(&done, &["result", "code"]), ["Left SCP0204", "Left SCP0412"]);
    ensure!(done.to_string().contains("a new pod would be refused: "), "{done}");
    wait_pods(&world, "kept", 1, &["app", "envoy"]).await?;
    world.delete(&format!("{ranges}/small")).await?;

    // The next one goes on where that has ended.
    let before = ready_pods(&world, "web").await?;
    let said = rollout(&world, &["remove", "envoy", "--yes"], 1).await?;
    ensure!(said.contains("evicted, 1 of 1") && said.contains("SCP0412"), "{said}");
    wait_pods(&world, "kept", 1, &["app"]).await?;
    assert_eq!(ready_pods(&world, "web").await?, before, "what lacks the sidecar stays");
    request(&world.admin, "DELETE", &format!("{PODS}/naked"), &json!({ "gracePeriodSeconds": 0 })).await?;
    let said = rollout(&world, &["remove", "envoy", "--yes"], 0).await?;
    ensure!(said.contains("No pod template and no running pod has content of envoy"), "{said}");
    Ok(())
}

async fn a_running_pod_of_1_13_is_evicted_by_a_removal() -> Result<()> {
    let (world, _operator) = world(Version::V1_13).await?.operated(&[]).await?;
    world.enforce("envoy", on_pods(json!({}))).await?;
    let controller = played_replica_set(&world, deployment("web")).await?;
    wait_pods(&world, "web", 1, &["app", "envoy"]).await?;
    suspend(&world).await?;
    let said = rollout(&world, &["remove", "envoy", "--yes"], 0).await?;
    ensure!(said.contains("default/web-0: evicted, 1 of 1"), "{said}");
    wait_pods(&world, "web", 1, &["app"]).await?;
    ensure!(!controller.is_finished(), "{:?}", controller.await);
    controller.abort();
    Ok(())
}

async fn who_may_read_less_is_told_less_and_which_right_is_missing() -> Result<()> {
    let world = world(Version::NEWEST).await?;
    world.cluster.apply_file(&file("config/rbac/users.yaml")).await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    world.enforce("envoy", rolling("envoy:1", json!({}))).await?;
    wait_progress(&world, "envoy", "Complete").await?;
    let bind = async |name: &str, role: &str, user: &str| {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
        });
        let all = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        request(&world.admin, "POST", all, &binding).await.map(drop)
    };
    let said = rollout(&world, &["status", "envoy", "--as=nobody"], 2).await?;
    ensure!(said.contains(r#"User "nobody" cannot get resource "sidecarpolicies""#), "{said}");

    bind("reads-policies", "scpol-view", "reader").await?;
    within(LIMIT, "the right is known", || async {
        let (code, _) = scpol(&world.cluster, &["rollout", "status", "envoy", "--as=reader"]).await?;
        Ok(code == 0)
    })
    .await?;
    let said = rollout(&world, &["status", "envoy", "--as=reader"], 0).await?;
    ensure!(said.contains("revisions have no numbers here") && said.contains("controllerrevisions"), "{said}");
    for command in ["history", "undo"] {
        let said = rollout(&world, &[command, "envoy", "--as=reader"], 2).await?;
        ensure!(said.contains(r#"cannot list resource "controllerrevisions""#), "{command}: {said}");
    }
    for command in ["pause", "resume", "restart"] {
        let said = rollout(&world, &[command, "envoy", "--as=reader"], 2).await?;
        ensure!(said.contains(r#"cannot patch resource "sidecarpolicies""#), "{command}: {said}");
    }
    let said = rollout(&world, &["plan", "envoy", "--as=reader"], 2).await?;
    ensure!(said.contains("cannot list"), "{said}");

    // As the page of commands says, but for the name: a controller that is not here fills `view` with this role.
    let flags = ["--clusterrole=system:aggregate-to-view", "--user=reader", "-n", "scpol-system"];
    world
        .cluster
        .kubectl_output(User::Admin, &[&["create", "rolebinding", "scpol-history"], &flags[..]].concat())
        .await?;
    within(LIMIT, "the history can be read", || async {
        let (code, _) = scpol(&world.cluster, &["rollout", "history", "envoy", "--as=reader"]).await?;
        Ok(code == 0)
    })
    .await?;
    Ok(())
}
