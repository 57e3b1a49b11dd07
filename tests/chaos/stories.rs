//! What is told in a way of its own.

use crate::dice::Dice;
use crate::fault::{Does, Rule, Verb};
use crate::proxy::Moment;
use crate::scene::{Engine, RECOVERY, Scene, agent, envoy, first, second};
use crate::support::{self, Operator, within};
use crate::world::{DEPLOYMENTS, containers, deployment, path, pending, request, sidecar, waiting};
use anyhow::{Context, Result, ensure};
use controlplane::{User, free_port};
use oracle::Digest;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::time::sleep;

pub(crate) const DEPLOYMENT: &[&str] = &["deployments"];
/// Deployments that are to survive twenty deaths.
const MANY: usize = 10_000;

/// F1: the operator starts, a policy comes, workloads come, the policy goes: and at the k-th request of all that, it is killed, and
/// started again.
pub(crate) async fn killed_at_each_request(scene: &Scene) -> Result<()> {
    let before = scene.proxy.requests();
    scene.start()?;
    let calm = life(scene, &[]).await?;
    let requests = scene.proxy.requests() - before;
    scene.kill();
    // The seeds share them all among themselves; or a few that the seed chooses.
    let (step, first) = match crate::SEEDS.len() as u64 {
        seeds if crate::is_everything() => (seeds, 1 + scene.seed % seeds),
        _ => (requests / 4, 1 + Dice(scene.seed).below(requests / 4, "first")),
    };
    let mut killed = 0;
    let mut nth = first;
    while nth <= requests {
        for moment in [Moment::Before, Moment::After] {
            scene.begin()?;
            let pid = scene.start()?;
            scene.proxy.stop_at(nth, moment, pid)?;
            // A webhook that is not there injects nothing.
            let calm: &[Digest] = if scene.engine == Engine::Webhook { &[] } else { std::slice::from_ref(&calm) };
            let lived = scene.supervised(life(scene, calm)).await;
            lived.with_context(|| format!("killed at request {nth} of {requests}, {moment:?} it was forwarded"))?;
            killed += u64::from(scene.proxy.disarm());
            scene.kill();
        }
        nth += step;
    }
    ensure!(killed > 0, "it was never killed: this proves nothing");
    Ok(())
}

async fn life(scene: &Scene, calm: &[Digest]) -> Result<Digest> {
    scene.policy("envoy", envoy()).await?;
    scene.in_force("envoy").await?;
    let refused = scene.create(first(3)).await;
    ensure!(refused.is_empty(), "creates failed: {refused:?}");
    scene.world.delete_policy("envoy").await?;
    scene.unregistered().await?;
    let digest = scene.judge_against(calm).await?;
    scene.clear().await?;
    Ok(digest)
}

/// F2: killed twenty times while workloads come.
pub(crate) async fn killed_at_random(scene: &Scene) -> Result<()> {
    let is_initializer = scene.engine == Engine::Initializer;
    let count = if is_initializer && crate::is_everything() { MANY } else { 100 };
    in_force(scene).await?;
    let all = first(count);
    for (round, batch) in all.chunks(count / 20).enumerate() {
        // While they wait for it; and where nobody does, while it starts or is at rest.
        let most = if is_initializer { 20 + 2 * batch.len() as u64 } else { 800 };
        let killing = async {
            sleep(Duration::from_millis(Dice(scene.seed).below(most, round))).await;
            scene.start()
        };
        let (killed, created) = tokio::join!(killing, scene.create_stubbornly(batch.to_vec()));
        created.and(killed)?;
    }
    scene.judge().await?;
    injected(scene, &all).await
}

/// Starts the operator and brings `envoy` in force.
pub(crate) async fn in_force(scene: &Scene) -> Result<()> {
    scene.ready().await?;
    scene.policy("envoy", envoy()).await?;
    scene.in_force("envoy").await
}

/// All of these have come out as they should.
pub(crate) async fn injected(scene: &Scene, deployments: &[Value]) -> Result<()> {
    // A webhook that is not there injects nothing.
    if scene.engine == Engine::Webhook { Ok(()) } else { scene.all_have(deployments).await }
}

/// F4: somebody else writes the waiting objects as fast as he can.
pub(crate) async fn conflicts(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    scene
        .proxy
        .set(vec![Rule::always(Does::Delay(Duration::from_millis(60))).to(&[Verb::Patch, Verb::Get], DEPLOYMENT)]);
    scene.signal("STOP")?;
    let all = first(5);
    for body in &all {
        scene.world.create_async(DEPLOYMENTS, body).await?;
    }
    scene.signal("CONT")?;
    let until = Instant::now() + Duration::from_secs(5);
    let mut edits = 0_u64;
    while Instant::now() < until {
        edits += 1;
        let name = format!("web-{}", edits % 5);
        let edit = json!([{ "op": "add", "path": "/metadata/labels/edits", "value": edits.to_string() }]);
        scene.world.patch(&path(&name), &edit).await?;
    }
    ensure!(scene.proxy.calm() > 0, "no PATCH was late: this proves nothing");
    scene.judge().await?;
    for body in &all {
        let stored =
            scene.world.get(&path(body["metadata"]["name"].as_str().unwrap_or_default())).await?.context("gone")?;
        ensure!(stored["metadata"]["labels"]["edits"].is_string(), "an edit is lost: {}", stored["metadata"]);
    }
    injected(scene, &all).await
}

/// Workloads come, stubbornly, while something happens to the server; then more come.
async fn meanwhile(scene: &Scene, happens: impl Future<Output = Result<()>>) -> Result<()> {
    in_force(scene).await?;
    let (created, happened) = tokio::join!(scene.create_stubbornly(first(40)), happens);
    created.and(happened)?;
    scene.create_stubbornly(second(5)).await?;
    scene.judge().await?;
    injected(scene, &first(40)).await
}

/// F7: the API server is killed and started again.
pub(crate) async fn server_killed(scene: &Scene) -> Result<()> {
    meanwhile(scene, async {
        sleep(Duration::from_millis(50 + Dice(scene.seed).below(200, "killed"))).await;
        scene.world.cluster.restart_apiserver().await
    })
    .await
}

/// F8: the API server is frozen for longer than a call may take.
pub(crate) async fn server_frozen(scene: &Scene) -> Result<()> {
    meanwhile(scene, async {
        sleep(Duration::from_millis(50 + Dice(scene.seed).below(200, "frozen"))).await;
        scene.world.cluster.freeze();
        sleep(Duration::from_secs(12)).await;
        scene.world.cluster.thaw();
        Ok(())
    })
    .await
}

/// F5: a new leader asks what the server knows, and has templates tried, and gets no answer. What is in force stays so.
pub(crate) async fn doubtful_start(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    let registered = scene.world.registered().await?;
    scene.kill();
    let unavailable = Rule::always(Does::Answer(503, None));
    scene
        .proxy
        .set(vec![unavailable.clone().to(&[Verb::Get], &["openapi"]), unavailable.to(&[Verb::Create], DEPLOYMENT)]);
    scene.ready().await?;
    sleep(Duration::from_secs(8)).await;
    ensure!(scene.world.registered().await? == registered, "what was registered has been taken away");
    scene.create_stubbornly(first(5)).await?;
    scene.all_have(&first(5)).await?;
    ensure!(scene.proxy.calm() > 0, "nothing was unavailable: this proves nothing");
    scene.in_force("envoy").await?;
    scene.create_stubbornly(second(3)).await?;
    scene.judge().await?;
    scene.all_have(&first(5)).await
}

/// F8: watches stay open, and nothing comes through them.
pub(crate) async fn watches_frozen(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    scene.proxy.set(vec![Rule::always(Does::FreezeWatch).to(&[Verb::Watch], &[])]);
    scene.proxy.cut_watches();
    for body in first(10) {
        scene.world.create_async(DEPLOYMENTS, &body).await?;
    }
    scene.policy("agent", agent()).await?;
    sleep(Duration::from_secs(3)).await;
    ensure!(scene.proxy.calm() > 0, "no watch was frozen: this proves nothing");
    scene.in_force("agent").await?;
    scene.judge().await?;
    injected(scene, &first(10)).await
}

/// F9: etcd is frozen: the API server lives, and can neither read nor write.
pub(crate) async fn storage_frozen(scene: &Scene) -> Result<()> {
    let etcd = *scene.world.cluster.pids().last().context("no etcd")?;
    let signal = |name: &str| {
        let status = std::process::Command::new("kill").args([&format!("-{name}"), &etcd.to_string()]).status()?;
        ensure!(status.success(), "kill -{name} failed");
        Ok(())
    };
    meanwhile(scene, async {
        sleep(Duration::from_millis(50 + Dice(scene.seed).below(200, "frozen"))).await;
        signal("STOP")?;
        sleep(Duration::from_secs(8)).await;
        signal("CONT")
    })
    .await
}

/// F12: events are lost for good; what was hidden comes to light when everything is read anew.
pub(crate) async fn events_lost(scene: &Scene) -> Result<()> {
    scene.resync_after(5);
    in_force(scene).await?;
    scene.proxy.set(vec![Rule::always(Does::Swallow).to(&[Verb::Watch], DEPLOYMENT).percent(60)]);
    for body in first(20) {
        scene.world.create_async(DEPLOYMENTS, &body).await?;
    }
    for hidden in ["web-1", "web-2"] {
        scene.world.delete(&path(hidden)).await?;
    }
    scene.world.create_async(DEPLOYMENTS, &deployment("web-2")).await?;
    ensure!(scene.proxy.calm() > 0, "no event was lost: this proves nothing");
    scene.judge().await.map(drop)
}

/// F12: something is stored when its policy has gone, and no event tells of it: once nothing more can come, all is looked at.
pub(crate) async fn last_event_lost(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    scene.world.delete_policy("envoy").await?;
    scene.unregistered().await?;
    // What has changed is counted anew first.
    sleep(Duration::from_secs(10)).await;
    scene.proxy.set(vec![Rule::always(Does::Swallow).to(&[Verb::Watch], DEPLOYMENT)]);
    scene.world.create_async(DEPLOYMENTS, &waiting("late", &["envoy.scpol.dev"])).await?;
    // A create may be stored 63 s after its policy has gone.
    sleep(Duration::from_secs(60)).await;
    scene.world.initialized(&path("late")).await?;
    ensure!(scene.proxy.calm() > 0, "no event was lost: this proves nothing");
    scene.judge().await.map(drop)
}

/// F14: after a restart, the first list is as old as the hills: what it shows has been done, changed, deleted, made anew.
pub(crate) async fn stale_list(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    scene.kill();
    for body in first(6) {
        scene.world.create_async(DEPLOYMENTS, &body).await?;
    }
    scene.proxy.remember_lists();
    scene.ready().await?;
    for number in 0..6 {
        scene.world.initialized(&path(&format!("web-{number}"))).await?;
    }
    let label = json!([{ "op": "add", "path": "/metadata/labels/by", "value": "someone" }]);
    scene.world.patch(&path("web-0"), &label).await?;
    scene.kill();
    for again in ["web-1", "web-2"] {
        scene.world.delete(&path(again)).await?;
    }
    scene.world.create_async(DEPLOYMENTS, &deployment("web-2")).await?;
    scene.proxy.set(vec![Rule::always(Does::StaleList).to(&[Verb::List], DEPLOYMENT)]);
    scene.ready().await?;
    within(RECOVERY, "what is new is injected", || async {
        let again = scene.world.get(&path("web-2")).await?.unwrap_or_default();
        Ok(pending(&again).is_empty() && containers(&again) == ["app", "envoy"])
    })
    .await?;
    ensure!(scene.proxy.calm() > 0, "no list was old: this proves nothing");
    scene.judge().await?;
    ensure!(scene.world.get(&path("web-1")).await?.is_none(), "what was deleted is there again");
    scene.has("web-0", &["app", "envoy"]).await
}

/// F15: the leader sleeps for longer than its lease lasts, and wakes up in the belief that it leads.
pub(crate) async fn sleeping_leader(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    let port = free_port();
    let mut second_replica = scene.replica("scpol-1", port)?;
    second_replica.wait_ready().await?;
    for round in 0..3 {
        let is_second = leads(&second_replica).await?;
        let signal = |name: &str| if is_second { second_replica.signal(name) } else { scene.signal(name) };
        signal("STOP")?;
        let batch = |at: usize| first(60).into_iter().skip(20 * round + 10 * at).take(10).collect::<Vec<_>>();
        let asleep = scene.create_stubbornly(batch(0));
        if round == 0 {
            // The other one has to do it all.
            asleep.await?;
            within(RECOVERY, "the other one leads", || leads(&second_replica)).await?;
            signal("CONT")?;
        } else {
            let waking = async {
                sleep(Duration::from_millis(3000 + Dice(scene.seed).below(2000, round))).await;
                signal("CONT")
            };
            let (created, woken) = tokio::join!(asleep, waking);
            created.and(woken)?;
        }
        scene.create_stubbornly(batch(1)).await?;
    }
    scene.judge().await?;
    injected(scene, &first(60)).await
}

pub(crate) async fn leads(operator: &Operator) -> Result<bool> {
    Ok(operator.metric("scpol_leader").await? == 1.0)
}

/// F18: nobody is there when workloads come.
pub(crate) async fn operator_absent(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    scene.kill();
    match scene.engine {
        Engine::Initializer => {
            let waits =
                request(&scene.world.creator, "POST", &format!("{DEPLOYMENTS}?timeout=2s"), &deployment("late")).await;
            ensure!(waits.is_err(), "nobody has waited");
        }
        _ => drop(scene.world.create_promptly(DEPLOYMENTS, &deployment("late")).await?),
    }
    scene.ready().await?;
    scene.judge().await?;
    match scene.engine {
        // Let in bare, and told as missed.
        Engine::Webhook => {
            scene.has("late", &["app"]).await?;
            scene.world.status("envoy", "missed", 1).await
        }
        _ => scene.has("late", &["app", "envoy"]).await,
    }
}

/// F19: the policy is edited twenty times a second while workloads wait for it, and then deleted.
pub(crate) async fn edited_meanwhile(scene: &Scene) -> Result<()> {
    scene.ready().await?;
    let version = |number: u64| {
        let mut spec = envoy();
        spec["template"]["containers"][0]["image"] = json!(format!("envoy:{number}"));
        spec["template"]["metadata"]["annotations"]["mesh"] = json!(format!("envoy:{number}"));
        spec
    };
    scene.policy("envoy", version(0)).await?;
    scene.in_force("envoy").await?;
    let editing = async {
        for number in 1..=60 {
            scene.world.edit_policy("envoy", version(number)).await?;
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let creating = async {
        for batch in 0..8 {
            scene.create_stubbornly(first(40).into_iter().skip(5 * batch).take(5).collect()).await?;
            sleep(Duration::from_millis(Dice(scene.seed).below(400, batch))).await;
        }
        anyhow::Ok(())
    };
    let (edited, created) = tokio::join!(editing, creating);
    edited.and(created)?;
    scene.in_force("envoy").await?;
    scene.judge().await?;
    for number in 0..40 {
        of_one_version(scene, &format!("web-{number}")).await?;
    }
    let (deleted, created) = tokio::join!(scene.world.delete_policy("envoy"), scene.create_stubbornly(second(10)));
    deleted.and(created)?;
    scene.unregistered().await?;
    scene.judge().await.map(drop)
}

async fn of_one_version(scene: &Scene, name: &str) -> Result<()> {
    let stored = scene.world.get(&path(name)).await?.with_context(|| format!("{name} is gone"))?;
    let pod = &stored["spec"]["template"];
    let sidecar =
        pod["spec"]["containers"].as_array().into_iter().flatten().find(|container| container["name"] == "envoy");
    let Some(sidecar) = sidecar else { return Ok(()) };
    ensure!(sidecar["image"] == pod["metadata"]["annotations"]["mesh"], "{name} is a mix of two versions: {pod}");
    Ok(())
}

/// F20: somebody else is to act before us, and takes his time.
pub(crate) async fn foreign_first(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    let names: Vec<String> = (0..5).map(|number| format!("behind-{number}")).collect();
    for name in &names {
        scene
            .world
            .create_async(DEPLOYMENTS, &waiting(name, &["first.example.com", "envoy.scpol.dev", "last.example.com"]))
            .await?;
    }
    // What comes later is not held up.
    scene.create_stubbornly(first(5)).await?;
    for name in &names {
        let object = scene.world.get(&path(name)).await?.unwrap_or_default();
        ensure!(
            pending(&object).len() == 3 && containers(&object) == ["app"],
            "{name} was not ours to touch: {object}"
        );
        scene.world.complete_foreign(&path(name)).await?;
    }
    for name in &names {
        within(RECOVERY, "we have done our part", || async {
            let object = scene.world.get(&path(name)).await?.unwrap_or_default();
            Ok(pending(&object) == ["last.example.com"] && containers(&object) == ["app", "envoy"])
        })
        .await?;
        scene.world.complete_foreign(&path(name)).await?;
    }
    scene.judge().await.map(drop)
}

/// F21: users edit, delete and make anew what waits; and one object is being deleted, and stays.
pub(crate) async fn changed_while_waiting(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    let delay = Duration::from_millis(Dice(scene.seed).below(40, "delay"));
    scene.proxy.set(vec![Rule::always(Does::Delay(Duration::from_millis(80))).to(&[Verb::Patch], DEPLOYMENT)]);
    for number in 0..15 {
        let name = format!("web-{number}");
        let mut body = deployment(&name);
        if number % 5 == 3 {
            body["metadata"]["finalizers"] = json!(["example.com/keep"]);
        }
        scene.world.create_async(DEPLOYMENTS, &body).await?;
        sleep(delay).await;
        // Whatever of this comes too late is no less allowed.
        let edit = |field: &str| json!([{ "op": "add", "path": field, "value": "someone" }]);
        match number % 5 {
            0 => drop(scene.world.patch(&path(&name), &edit("/metadata/labels/by")).await?),
            1 => scene.world.delete(&path(&name)).await?,
            2 => {
                scene.world.delete(&path(&name)).await?;
                scene.world.create_async(DEPLOYMENTS, &body).await?;
            }
            3 => scene.world.delete(&path(&name)).await?,
            _ => {}
        }
    }
    scene.proxy.calm();
    scene.judge().await?;
    for number in [1, 6, 11] {
        ensure!(scene.world.get(&path(&format!("web-{number}"))).await?.is_none(), "web-{number} is there again");
    }
    for number in [2, 4, 7, 9] {
        scene.has(&format!("web-{number}"), &["app", "envoy"]).await?;
    }
    Ok(())
}

/// F22: the operator's rights are taken away and given back.
pub(crate) async fn rights_revoked(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    let cluster = &scene.world.cluster;
    let saved = cluster
        .kubectl_output(
            User::Admin,
            &["get", "clusterrolebindings", "-l", "app.kubernetes.io/name=scpol", "-o", "json"],
        )
        .await?;
    let mut saved: Value = serde_json::from_str(&saved)?;
    for binding in saved["items"].as_array_mut().into_iter().flatten() {
        let name = binding["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        cluster.kubectl_output(User::Admin, &["delete", "clusterrolebinding", &name]).await?;
        binding["metadata"] = json!({ "name": name, "labels": binding["metadata"]["labels"] });
    }
    ensure!(saved["items"].as_array().is_some_and(|items| !items.is_empty()), "no binding has the label");
    for body in first(5) {
        scene.world.create_async(DEPLOYMENTS, &body).await?;
    }
    scene.proxy.cut_watches();
    sleep(Duration::from_secs(5)).await;
    scene.policy("agent", agent()).await?;
    cluster.apply_manifests(&saved.to_string()).await?;
    scene.in_force("agent").await?;
    scene.in_force("envoy").await?;
    scene.create_stubbornly(second(3)).await?;
    scene.judge().await?;
    injected(scene, &first(5)).await
}

/// F22: the definition of policies is deleted, and with it all policies; then it is made anew.
pub(crate) async fn definition_deleted(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    let cluster = &scene.world.cluster;
    cluster.kubectl_output(User::Admin, &["delete", "crd", "sidecarpolicies.scpol.dev", "--wait=false"]).await?;
    scene.unregistered().await?;
    scene.world.create_promptly(DEPLOYMENTS, &deployment("between")).await?;
    support::apply_without_deployment(cluster).await?;
    within(RECOVERY, "policies are served again", || async {
        Ok(cluster.kubectl_output(User::Admin, &["get", "sidecarpolicies"]).await.is_ok())
    })
    .await?;
    scene.policy("envoy", envoy()).await?;
    scene.in_force("envoy").await?;
    scene.create_stubbornly(first(5)).await?;
    scene.judge().await?;
    scene.has("between", &["app"]).await?;
    injected(scene, &first(5)).await
}

/// F23: the server refuses what one object would become. That one is let go; nobody else waits for it.
pub(crate) async fn result_refused(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    let mut big = deployment("big");
    // The server takes 262144 bytes of annotations, and our marker is too much.
    big["spec"]["template"]["metadata"]["annotations"] = json!({ "much": "x".repeat(262_000) });
    let (big, others) = tokio::join!(scene.world.create_promptly(DEPLOYMENTS, &big), scene.create(first(10)));
    ensure!(containers(&big?) == ["app"], "big was injected");
    ensure!(others.is_empty(), "creates failed: {others:?}");
    scene.world.event("big", "SidecarInjectionFailed").await?;
    scene.judge().await?;
    injected(scene, &first(10)).await
}

/// L3: when nothing happens, nothing is written but the lease.
pub(crate) async fn silence(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    scene.policy("second", sidecar("second")).await?;
    scene.in_force("second").await?;
    scene.create_stubbornly(first(10)).await?;
    scene.judge().await?;
    // A status is written at most every 10 s: what is still to be said is said by then.
    sleep(Duration::from_secs(12)).await;
    scene.judge_rest(Duration::from_secs(15)).await?;
    ensure!(support::policies(&scene.world.cluster).list(&Default::default()).await?.items.len() == 2);
    Ok(())
}
