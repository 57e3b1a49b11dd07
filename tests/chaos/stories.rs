//! The special stories.

use crate::chaos::clock;
use crate::chaos::dice::Dice;
use crate::chaos::fault::{Does, Rule, Verb};
use crate::chaos::scene::{Engine, RECOVERY, Scene, agent, envoy, first, second};
use crate::prelude::*;
use crate::support;
use controlplane::free_port;
use sidecar_policy::timing::CALL_LIMIT;
use tokio::sync::watch;
use tokio::time::sleep;

pub(crate) const DEPLOYMENT: &[&str] = &["deployments"];
/// The time limit for the recovery after a server is back.
const CAUGHT_UP: Duration = Duration::from_secs(30);

/// kube's margin: a watch without a message for so long after its end is dead.
const MARGIN: Duration = Duration::from_secs(5);

/// A time in which the operator looks at everything more than once, and so completes its own work.
pub(crate) fn some_looks() -> Duration {
    4 * timing().controller.tick
}

/// Starts the operator and puts `envoy` in effect.
pub(crate) async fn in_force(scene: &Scene) -> Result<()> {
    scene.ready().await?;
    scene.policy("envoy", envoy()).await?;
    scene.in_force("envoy").await
}

/// Checks that all is well: new Deployments get the sidecar, the oracle finds no fault, these Deployments are right,
/// and all workloads without a sidecar are counted as missed.
pub(crate) async fn well(scene: &Scene, deployments: &[Value]) -> Result<()> {
    scene.works().await?;
    scene.judge().await?;
    scene.missed_are_told().await?;
    scene.all_are_whole(deployments).await?;
    // A webhook that is down injects nothing.
    if scene.engine == Engine::Webhook { Ok(()) } else { scene.all_have(deployments).await }
}

/// F4: another client edits the waiting objects as fast as possible.
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
    // By then each of the five has had dozens of conflicts.
    let until = Instant::now() + Duration::from_secs(2);
    let mut edits = 0_u64;
    while Instant::now() < until {
        edits += 1;
        let name = format!("web-{}", edits % 5);
        let edit = json!([{ "op": "add", "path": "/metadata/labels/edits", "value": edits.to_string() }]);
        scene.world.patch(&path(&name), &edit).await?;
    }
    ensure!(scene.proxy.calm() > 0, "no PATCH was late: this proves nothing");
    well(scene, &all).await?;
    for body in &all {
        let stored =
            scene.world.get(&path(body["metadata"]["name"].as_str().unwrap_or_default())).await?.context("gone")?;
        ensure!(stored["metadata"]["labels"]["edits"].is_string(), "an edit is lost: {}", stored["metadata"]);
    }
    Ok(())
}

/// Workloads are created with retries during a fault of the server, and more of them afterwards.
async fn meanwhile(scene: &Scene, happens: impl Future<Output = Result<()>>) -> Result<()> {
    in_force(scene).await?;
    let happens = async {
        happens.await?;
        anyhow::Ok(Instant::now())
    };
    let (created, over) = tokio::join!(scene.create_stubbornly(first(40)), happens);
    let over = over?;
    created?;
    scene.create_stubbornly(second(5)).await?;
    well(scene, &first(40)).await?;
    ensure!(over.elapsed() < CAUGHT_UP, "all was well {:?} after the server was back", over.elapsed());
    Ok(())
}

/// F7: the API server is killed and started again.
pub(crate) async fn server_killed(scene: &Scene) -> Result<()> {
    meanwhile(scene, async {
        sleep(Duration::from_millis(50 + Dice(scene.seed).below(200, "killed"))).await;
        scene.world.cluster.restart_apiserver().await
    })
    .await
}

/// F8: the API server is frozen for longer than a call may take, and than `/livez` waits for progress.
pub(crate) async fn server_frozen(scene: &Scene) -> Result<()> {
    meanwhile(scene, async {
        sleep(Duration::from_millis(50 + Dice(scene.seed).below(200, "frozen"))).await;
        scene.world.cluster.freeze();
        // `/livez` would fail without progress in this time.
        sleep(timing().process.stuck.max(CALL_LIMIT) + Duration::from_secs(2)).await;
        let alive = scene.page("/livez").await;
        scene.world.cluster.thaw();
        // A restart would not help, so `/livez` must not cause one.
        ensure!(alive? == 200, "it counts as dead while the server stands still");
        Ok(())
    })
    .await
}

/// F5: a new leader gets no answers to its trials. Existing registrations stay in effect.
pub(crate) async fn doubtful_start(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    let registered = scene.world.registered().await?;
    scene.kill();
    scene.proxy.set(vec![UNTRIED]);
    scene.ready().await?;
    within(RECOVERY, "something is tried", || async { Ok(scene.proxy.happened() > 0) }).await?;
    sleep(some_looks()).await;
    ensure!(scene.world.registered().await? == registered, "what was registered has been taken away");
    scene.create_stubbornly(first(5)).await?;
    scene.all_have(&first(5)).await?;
    scene.proxy.calm();
    scene.in_force("envoy").await?;
    scene.create_stubbornly(second(3)).await?;
    well(scene, &first(5)).await
}

/// No trial gets an answer.
const UNTRIED: Rule = Rule::always(Does::Answer(503, None)).to(&[Verb::Create], DEPLOYMENT);

/// F5: the same under the emergency brake. Registrations deleted by hand stay away.
pub(crate) async fn doubtful_start_while_held(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    clock::brake(scene).await?;
    scene.kill();
    scene.proxy.set(vec![UNTRIED]);
    scene.ready().await?;
    // A status that is not urgent may take this long.
    sleep(timing().controller.status_period + some_looks()).await;
    ensure!(scene.proxy.calm() > 0, "nothing was unavailable: this proves nothing");
    // Within that time the operator tries again, and gets an answer.
    sleep(timing().controller.retry + some_looks()).await;
    clock::stays_held(scene).await?;
    scene.world.edit_policy("envoy", json!({ "suspend": true })).await?;
    wait_condition(&scene.world.cluster, "envoy", "Ready", "True", "Suspended").await?;
    scene.world.edit_policy("envoy", json!({ "suspend": false })).await?;
    scene.in_force("envoy").await?;
    well(scene, &[]).await
}

/// F5: a trial of a template that the server would reject gets an error first, which says nothing about the template.
pub(crate) async fn trial_unanswered(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    scene.proxy.set(vec![Rule::always(Does::Answer(503, None)).to(&[Verb::Create], DEPLOYMENT).times(1)]);
    let mut bad = agent();
    bad["template"]["containers"][0]["ports"] = json!([{ "containerPort": 70_000 }]);
    scene.policy("bad", bad).await?;
    wait_condition(&scene.world.cluster, "bad", "Accepted", "False", "TemplateInvalid").await?;
    ensure!(scene.proxy.calm() > 0, "it was answered at once: this proves nothing");
    scene.create_stubbornly(second(5)).await?;
    well(scene, &[]).await?;
    scene.all_have(&second(5)).await
}

/// F8: watches stay open but pass no events.
pub(crate) async fn watches_frozen(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    scene.proxy.set(vec![Rule::always(Does::FreezeWatch).to(&[Verb::Watch], &[])]);
    scene.proxy.cut_watches();
    for body in first(10) {
        scene.world.create_async(DEPLOYMENTS, &body).await?;
    }
    scene.policy("agent", agent()).await?;
    // By then all of them have restarted.
    sleep(timing().watch.longest_pause + Duration::from_secs(1)).await;
    ensure!(scene.proxy.calm() > 0, "no watch was frozen: this proves nothing");
    scene.in_force("agent").await?;
    well(scene, &first(10)).await?;
    // The webhook answered all the time with its cached policies.
    scene.all_have(&first(10)).await
}

/// F8: the connections of all watches die silently, as after a power failure. New requests are answered.
pub(crate) async fn watches_dead(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    scene.proxy.set(vec![Rule::always(Does::FreezeWatch).to(&[Verb::Watch], &[])]);
    scene.proxy.cut_watches();
    // By then all of them have restarted.
    sleep(timing().watch.longest_pause + Duration::from_secs(1)).await;
    ensure!(scene.proxy.happened() > 0, "no watch was frozen: this proves nothing");
    scene.proxy.set(Vec::new());
    for body in first(10) {
        scene.world.create_async(DEPLOYMENTS, &body).await?;
    }
    // A watch lasts its duration, and its silence after the margin counts as the end. It is certainly silent for a
    // third of that.
    let noticed = timing().watch.duration + MARGIN;
    sleep(noticed / 3).await;
    let is_silent = scene.all_have(&first(10)).await.is_err();
    ensure!(
        is_silent == (scene.engine == Engine::Initializer),
        "somebody else than a watch tells: this proves nothing"
    );
    let all_have = || async { Ok(scene.all_have(&first(10)).await.is_ok()) };
    within(noticed - noticed / 3 + MARGIN, "the silence is noticed", all_have).await?;
    well(scene, &first(10)).await
}

/// F5: a stopping operator writes a status before it unregisters, and the server rejects the first two attempts.
pub(crate) async fn stopped_while_refused(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    scene
        .proxy
        .set(vec![Rule::always(Does::Answer(429, Some(1))).to(&[Verb::Patch], &["sidecarpolicies/status"]).times(2)]);
    ensure!(scene.stop().await? == Some(0), "it did not end in good order");
    ensure!(scene.proxy.happened() > 0, "nothing was refused: this proves nothing");
    scene.proxy.calm();
    ensure!(scene.world.registered().await?.is_empty(), "something is left registered");
    // This must not count as a removal by hand, which would be respected for ten minutes.
    scene.ready().await?;
    scene.in_force("envoy").await?;
    scene.create_stubbornly(first(3)).await?;
    well(scene, &first(3)).await
}

/// F5: the server rejects every change of a registration while a policy on it is suspended. The status does not say that it is
/// without effect before it is.
pub(crate) async fn suspended_while_refused(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    scene.policy("agent", agent()).await?;
    scene.in_force("agent").await?;
    let cluster = &scene.world.cluster;
    let registrations = &["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"];
    let refused = Rule::always(Does::Answer(503, None)).to(&[Verb::Patch, Verb::Update, Verb::Delete], registrations);
    scene.proxy.set(vec![refused]);
    scene.world.edit_policy("envoy", json!({ "suspend": true })).await?;
    within(RECOVERY, "a change is refused", || async { Ok(scene.proxy.happened() > 0) }).await?;
    let until = Instant::now() + some_looks();
    while Instant::now() < until {
        let ready = support::condition(cluster, "envoy", "Ready").await?.context("no condition")?;
        ensure!(ready["reason"] != "Suspended", "it is registered still: {ready}");
        sleep(Duration::from_millis(50)).await;
    }
    let created = scene.world.create_promptly(DEPLOYMENTS, &deployment("meanwhile")).await?;
    ensure!(containers(&created).contains(&"envoy".to_owned()), "{created}");
    scene.proxy.calm();
    wait_condition(cluster, "envoy", "Ready", "True", "Suspended").await?;
    let created = scene.world.create_promptly(DEPLOYMENTS, &deployment("suspended")).await?;
    ensure!(!containers(&created).contains(&"envoy".to_owned()), "{created}");
    scene.world.edit_policy("envoy", json!({ "suspend": false })).await?;
    scene.in_force("envoy").await?;
    well(scene, &first(0)).await
}

/// F9: etcd is frozen. The API server lives, but can neither read nor write.
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
        // Longer than the duration of the lease, which is 3 s here.
        sleep(Duration::from_secs(5)).await;
        signal("CONT")
    })
    .await
}

/// F12: events are lost for good, for policies one of each kind. The next resync reveals the hidden changes.
pub(crate) async fn events_lost(scene: &Scene) -> Result<()> {
    scene.resync_after(2);
    in_force(scene).await?;
    let lost = Rule::always(Does::Swallow);
    // An object that cannot be injected and is deleted: its failure must disappear from the status.
    let mut taken = deployment("taken");
    taken["spec"]["template"]["spec"]["containers"]
        .as_array_mut()
        .context("no containers")?
        .push(json!({ "name": "envoy", "image": "other:1" }));
    scene.world.create_async(DEPLOYMENTS, &taken).await?;
    scene.failures_are("envoy", 1).await?;
    scene.proxy.set(vec![lost.clone().to(&[Verb::Watch], DEPLOYMENT)]);
    scene.world.delete(&path("taken")).await?;
    scene.failures_are("envoy", 0).await?;
    ensure!(scene.proxy.happened() > 0, "no event was lost: this proves nothing");
    scene.proxy.set(vec![
        lost.clone().to(&[Verb::Watch], DEPLOYMENT).percent(60),
        lost.to(&[Verb::Watch], &["sidecarpolicies"]),
    ]);
    for body in first(20) {
        scene.world.create_async(DEPLOYMENTS, &body).await?;
    }
    scene.policy("agent", agent()).await?;
    scene.in_force("agent").await?;
    for hidden in ["web-1", "web-2"] {
        scene.world.delete(&path(hidden)).await?;
    }
    scene.world.create_async(DEPLOYMENTS, &deployment("web-2")).await?;
    ensure!(scene.proxy.calm() > 0, "no event was lost: this proves nothing");
    well(scene, &first(20)[2..]).await
}

/// F12: an object is stored after its policy was deleted, and its event is lost. After the last possible create,
/// everything is checked.
pub(crate) async fn last_event_lost(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    scene.world.delete_policy("envoy").await?;
    scene.unregistered().await?;
    // Changed objects are counted first, and then checked once more.
    let again = timing().controller.recount_delay + timing().workloads.event;
    sleep(again + Duration::from_secs(1)).await;
    scene.proxy.set(vec![Rule::always(Does::Swallow).to(&[Verb::Watch], DEPLOYMENT)]);
    scene.world.create_async(DEPLOYMENTS, &waiting("late", &["envoy.scpol.dev"])).await?;
    // A create may be stored so long after its policy was deleted.
    within(timing().configuration.longest_create() + RECOVERY, "it waits no more", || async {
        Ok(pending(&scene.world.get(&path("late")).await?.context("gone")?).is_empty())
    })
    .await?;
    ensure!(scene.proxy.calm() > 0, "no event was lost: this proves nothing");
    scene.judge().await.map(drop)
}

/// F14: after a restart the first list is very old. Its objects have been processed, changed, deleted or recreated
/// since.
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
    well(scene, &first(6)[2..]).await?;
    ensure!(scene.world.get(&path("web-1")).await?.is_none(), "what was deleted is there again");
    scene.has("web-0", &["app", "envoy"]).await
}

/// F15: the leader sleeps for longer than its lease, and still believes that it leads.
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
            // The other replica must do everything.
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
    well(scene, &first(60)).await
}

pub(crate) async fn leads(operator: &Operator) -> Result<bool> {
    Ok(operator.metric("scpol_leader").await? == 1.0)
}

/// F18: no operator runs while workloads are created.
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
    well(scene, &[]).await?;
    match scene.engine {
        // Admitted without the sidecar, and counted as missed.
        Engine::Webhook => {
            scene.has("late", &["app"]).await?;
            scene.world.status("envoy", "missed", 1).await
        }
        _ => scene.has("late", &["app", "envoy"]).await,
    }
}

/// The operator is scaled to zero and back while workloads are created. No create fails, and the missed workloads are
/// reported.
pub(crate) async fn scaled_to_zero(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    let mut other = scene.replica("scpol-1", free_port())?;
    other.wait_ready().await?;
    let (back, is_back) = watch::channel(false);
    let scaling = async {
        sleep(Duration::from_millis(600)).await;
        let (one, other) = tokio::join!(scene.stop(), other.stop());
        ensure!(one? == Some(0) && other? == Some(0), "they did not end in good order");
        // Several batches are created meanwhile.
        sleep(Duration::from_millis(1000 + Dice(scene.seed).below(1000, "back"))).await;
        scene.ready().await?;
        scene.in_force("envoy").await?;
        sleep(Duration::from_millis(600)).await;
        back.send_replace(true);
        anyhow::Ok(())
    };
    // Continues until an operator has been back for a while.
    let all = first(1000);
    let coming = async {
        let (mut created, mut refused) = (0, Vec::new());
        for batch in all.chunks(5) {
            refused.extend(scene.create(batch.to_vec()).await);
            created += batch.len();
            if *is_back.borrow() {
                break;
            }
            sleep(Duration::from_millis(300)).await;
        }
        (created, refused)
    };
    let (scaled, (created, refused)) = tokio::join!(scaling, coming);
    scaled?;
    ensure!(refused.is_empty() && created < all.len(), "creates failed, or ended too early: {refused:?}");
    let all = &all[..created];
    // MutatingAdmissionPolicies need no operator.
    if scene.engine == Engine::MutatingAdmissionPolicy {
        return well(scene, all).await;
    }
    well(scene, &[]).await?;
    scene.all_are_whole(all).await?;
    ensure!(scene.all_have(all).await.is_err(), "nothing came while nobody was there: this proves nothing");
    Ok(())
}

/// F19: the policy is edited twenty times a second while workloads wait for it, and is then deleted.
pub(crate) async fn edited_meanwhile(scene: &Scene) -> Result<()> {
    scene.ready().await?;
    let version = |number: u64| {
        let mut spec = envoy();
        spec["template"]["containers"][0]["image"] = json!(format!("envoy:{number}"));
        spec["template"]["metadata"]["annotations"]["mesh"] = json!(format!("envoy:{number}"));
        // Some versions select nothing, and the last one selects all. A null removes the field in an edit, and means
        // absence in the create.
        match number {
            0 => {}
            _ if number % 3 == 1 => spec["labelSelector"] = json!({ "matchLabels": { "app": "nobody" } }),
            _ => spec["labelSelector"] = Value::Null,
        }
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
    well(scene, &[]).await?;
    let mut injected = 0;
    for number in 0..40 {
        injected += usize::from(of_one_version(scene, &format!("web-{number}")).await?);
    }
    ensure!(injected >= 5, "{injected} of 40 have the sidecar: it was out of force");
    let (deleted, created) = tokio::join!(scene.world.delete_policy("envoy"), scene.create_stubbornly(second(10)));
    deleted.and(created)?;
    scene.unregistered().await?;
    scene.judge().await.map(drop)
}

/// Whether the object has a sidecar, which must be from a single version of the policy.
async fn of_one_version(scene: &Scene, name: &str) -> Result<bool> {
    let stored = scene.world.get(&path(name)).await?.with_context(|| format!("{name} is gone"))?;
    let pod = &stored["spec"]["template"];
    let sidecar =
        pod["spec"]["containers"].as_array().into_iter().flatten().find(|container| container["name"] == "envoy");
    let Some(sidecar) = sidecar else { return Ok(false) };
    ensure!(sidecar["image"] == pod["metadata"]["annotations"]["mesh"], "{name} is a mix of two versions: {pod}");
    Ok(true)
}

/// F20: a foreign initializer acts before us, and takes its time.
pub(crate) async fn foreign_first(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    let names: Vec<String> = (0..5).map(|number| format!("behind-{number}")).collect();
    for name in &names {
        scene
            .world
            .create_async(DEPLOYMENTS, &waiting(name, &["first.example.com", "envoy.scpol.dev", "last.example.com"]))
            .await?;
    }
    // Later objects are not delayed.
    scene.create_stubbornly(first(5)).await?;
    for name in &names {
        let object = scene.world.get(&path(name)).await?.unwrap_or_default();
        ensure!(
            pending(&object).len() == 3 && containers(&object) == ["app"],
            "{name} was not ours to touch: {object}"
        );
    }
    within(RECOVERY, "it is told for how long others have been awaited", || async {
        Ok(scene.metric("scpol_oldest_foreign_pending_seconds").await? >= 2.0)
    })
    .await?;
    for name in &names {
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
    well(scene, &first(5)).await?;
    within(RECOVERY, "nobody else is awaited any more", || async {
        Ok(scene.metric("scpol_oldest_foreign_pending_seconds").await? == 0.0)
    })
    .await
}

/// F21: users edit, delete and recreate waiting objects, and one object is being deleted but stays.
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
        // Edits that come too late are also valid.
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
    ensure!(scene.proxy.calm() > 0, "no PATCH was late: this proves nothing");
    well(scene, &[]).await?;
    for number in [1, 6, 11] {
        ensure!(scene.world.get(&path(&format!("web-{number}"))).await?.is_none(), "web-{number} is there again");
    }
    for number in [2, 4, 7, 9] {
        scene.has(&format!("web-{number}"), &["app", "envoy"]).await?;
    }
    Ok(())
}

/// F22: the operator loses its rights and gets them back.
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
    let denied = scene.proxy.denied();
    for body in first(5) {
        scene.world.create_async(DEPLOYMENTS, &body).await?;
    }
    scene.proxy.cut_watches();
    within(RECOVERY, "it is denied something", || async { Ok(scene.proxy.denied() > denied) }).await?;
    sleep(some_looks()).await;
    scene.policy("agent", agent()).await?;
    if scene.engine == Engine::Initializer {
        within(RECOVERY, "the metric says that workloads have waited for seconds", || async {
            Ok(scene.metric("scpol_oldest_pending_seconds").await? >= 2.0)
        })
        .await?;
    }
    cluster.apply_manifests(&saved.to_string()).await?;
    scene.in_force("agent").await?;
    scene.in_force("envoy").await?;
    scene.create_stubbornly(second(3)).await?;
    well(scene, &first(5)).await
}

/// F22: the definition of policies is deleted with all policies, and then created again.
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
    well(scene, &first(5)).await?;
    scene.has("between", &["app"]).await?;
    // The operator ran all the time.
    scene.all_have(&first(5)).await
}

/// F22: a namespace with waiting workloads is deleted, and stays for a while. Other namespaces are not affected.
pub(crate) async fn namespace_deleted(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    let (namespaces, going) = ("/api/v1/namespaces", "/apis/apps/v1/namespaces/going/deployments");
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "going" } });
    request(&scene.world.admin, "POST", namespaces, &namespace).await?;
    let is_initializer = scene.engine == Engine::Initializer;
    if is_initializer {
        scene.signal("STOP")?;
    }
    for mut body in first(5) {
        body["metadata"]["namespace"] = json!("going");
        scene.world.create_async(going, &body).await?;
    }
    scene.world.delete(&format!("{namespaces}/going")).await?;
    if is_initializer {
        scene.signal("CONT")?;
    }
    let refused = request(&scene.world.creator, "POST", going, &deployment("late")).await;
    ensure!(refused.is_err_and(|error| error.to_string().contains("terminated")), "the namespace is not going away");
    scene.create_stubbornly(first(10)).await?;
    well(scene, &first(10)).await?;
    for number in 0..5 {
        let stored = scene.world.get(&format!("{going}/web-{number}")).await?.context("gone")?;
        ensure!(pending(&stored).is_empty(), "web-{number} still waits in the namespace that goes");
    }
    Ok(())
}

/// F23: the server rejects an injected object. The Initializer engine releases it as posted. With other engines the
/// server rejects the result, and its creator gets the error. No other object waits for it.
pub(crate) async fn result_refused(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    let mut big = deployment("big");
    // The server accepts 262144 bytes of annotations, so our marker exceeds the limit.
    big["spec"]["template"]["metadata"]["annotations"] = json!({ "much": "x".repeat(262_000) });
    let (big, others) = tokio::join!(scene.world.create_promptly(DEPLOYMENTS, &big), scene.create(first(10)));
    ensure!(others.is_empty(), "creates failed: {others:?}");
    match (scene.engine, big) {
        (Engine::Initializer, big) => {
            ensure!(containers(&big?) == ["app"], "big was injected");
            scene.world.event("big", "SidecarInjectionFailed").await?;
        }
        (_, Ok(big)) => anyhow::bail!("big was created with {:?}", containers(&big)),
        (_, Err(refused)) => ensure!(refused.to_string().contains("annotations"), "big was refused: {refused}"),
    }
    well(scene, &first(10)).await?;
    scene.all_have(&first(10)).await
}

/// L3: without changes, only the lease is written.
pub(crate) async fn silence(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    scene.policy("agent", agent()).await?;
    scene.in_force("agent").await?;
    scene.create_stubbornly(first(10)).await?;
    well(scene, &first(10)).await?;
    // By then all remaining statuses are written.
    sleep(timing().controller.status_period + some_looks()).await;
    // A write that is limited to once per period shows within three periods.
    scene.judge_rest(3 * timing().controller.status_period).await?;
    ensure!(support::policies(&scene.world.cluster).list(&Default::default()).await?.items.len() == 2);
    Ok(())
}
