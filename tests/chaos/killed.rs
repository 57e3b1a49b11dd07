//! F1 and F2: the operator is killed at each request, and at random moments.

use crate::chaos::dice::Dice;
use crate::chaos::proxy::Moment;
use crate::chaos::scene::{Engine, RECOVERY, Scene, agent, envoy, first, second};
use crate::chaos::stories::{in_force, well};
use crate::prelude::*;
use futures::FutureExt;
use futures::future::BoxFuture;
use oracle::Digest;
use tokio::time::sleep;

/// The number of Deployments that must survive twenty kills.
const MANY: usize = 10_000;

/// A story during which the operator is killed. It must match the results of earlier runs, and returns its own result.
type Life = for<'a> fn(&'a Scene, &'a [Digest]) -> BoxFuture<'a, Result<Digest>>;

/// F1: a policy is created, then workloads, and the policy is deleted.
pub(crate) async fn at_each_request(scene: &Scene) -> Result<()> {
    at_each(scene, |scene, calm| life(scene, calm).boxed(), &[Moment::Before, Moment::After]).await
}

/// F1: two policies are created and one is suspended, workloads are created, and both policies are deleted.
pub(crate) async fn at_each_request_of_changes(scene: &Scene) -> Result<()> {
    at_each(scene, |scene, calm| changes(scene, calm).boxed(), &[Moment::After]).await
}

/// F1: a policy is created, moves to another engine, and is deleted.
pub(crate) async fn at_each_request_of_a_hand_over(scene: &Scene) -> Result<()> {
    at_each(scene, |scene, _| hand_over(scene).boxed(), &[Moment::After]).await
}

/// Starts a first operator and runs `life`, once for each k. The operator is killed at its k-th request, and started
/// again.
async fn at_each(scene: &Scene, life: Life, moments: &[Moment]) -> Result<()> {
    let before = scene.proxy.requests();
    scene.start()?;
    let calm = life(scene, &[]).await?;
    let requests = scene.proxy.requests() - before;
    scene.kill();
    // The seeds divide all requests among themselves, or the seed selects a few.
    let (step, first) = match crate::chaos::SEEDS.len() as u64 {
        seeds if crate::chaos::is_everything() => (seeds, 1 + scene.seed % seeds),
        _ => (requests / 4, 1 + Dice(scene.seed).below(requests / 4, "first")),
    };
    let (mut lives, mut killed) = (0, 0);
    let mut nth = first;
    while nth <= requests {
        for moment in moments {
            as_never_installed(scene).await?;
            scene.begin()?;
            let pid = scene.start()?;
            scene.proxy.stop_at(nth, *moment, pid)?;
            // A webhook that is down injects nothing.
            let calm: &[Digest] = if scene.engine == Engine::Webhook { &[] } else { std::slice::from_ref(&calm) };
            let lived = scene.supervised(life(scene, calm)).await;
            lived.with_context(|| format!("killed at request {nth} of {requests}, {moment:?} it was forwarded"))?;
            lives += 1;
            killed += u64::from(scene.proxy.disarm());
            scene.kill();
        }
        nth += step;
    }
    // Some lives need fewer requests.
    ensure!(4 * killed >= 3 * lives, "it was killed in {killed} of {lives} lives: this proves too little");
    Ok(())
}

/// Deletes the objects that an operator leaves behind: its lease and its certificates.
async fn as_never_installed(scene: &Scene) -> Result<()> {
    let delete = ["delete", "lease/scpol", "secret/scpol-webhook", "--namespace=scpol-system", "--ignore-not-found"];
    scene.world.cluster.kubectl_output(User::Admin, &delete).await.map(drop)
}

async fn life(scene: &Scene, calm: &[Digest]) -> Result<Digest> {
    scene.policy("envoy", envoy()).await?;
    scene.in_force("envoy").await?;
    let refused = scene.create(first(3)).await;
    ensure!(refused.is_empty(), "creates failed: {refused:?}");
    if scene.engine == Engine::Webhook {
        scene.works().await?;
        scene.missed_are_told().await?;
        scene.all_are_whole(&first(3)).await?;
    }
    end(scene, &["envoy"], calm).await
}

async fn changes(scene: &Scene, calm: &[Digest]) -> Result<Digest> {
    scene.policy("envoy", envoy()).await?;
    scene.policy("agent", agent()).await?;
    scene.in_force("envoy").await?;
    scene.in_force("agent").await?;
    let refused = scene.create([first(2), second(2)].concat()).await;
    ensure!(refused.is_empty(), "creates failed: {refused:?}");
    scene.world.edit_policy("envoy", json!({ "suspend": true })).await?;
    wait_condition(&scene.world.cluster, "envoy", "Ready", "True", "Suspended").await?;
    let mut more = second(5).split_off(2);
    let tried = more.pop().context("one to try")?;
    within(RECOVERY, "only `agent` is in effect", || async {
        let path = format!("{DEPLOYMENTS}?dryRun=All&includeUninitialized=1");
        let tried = request(&scene.world.admin, "POST", &path, &tried).await?;
        let is_agent = |names: Vec<String>| names.iter().any(|name| name.starts_with("agent"));
        let is_envoy = |names: Vec<String>| names.iter().any(|name| name.starts_with("envoy"));
        let names = || [pending(&tried), containers(&tried)].concat();
        Ok(is_agent(names()) && !is_envoy(names()))
    })
    .await?;
    let refused = scene.create(more).await;
    ensure!(refused.is_empty(), "creates failed: {refused:?}");
    scene.all_are_whole(&[first(2), second(4)].concat()).await?;
    end(scene, &["envoy", "agent"], calm).await
}

/// The result is not compared with a run without faults, because a webhook that is down injects nothing, and every move
/// involves the webhook.
async fn hand_over(scene: &Scene) -> Result<Digest> {
    scene.policy("envoy", envoy()).await?;
    scene.in_force("envoy").await?;
    let all = first(4);
    let refused = scene.create(all[..2].to_vec()).await;
    ensure!(refused.is_empty(), "creates failed: {refused:?}");
    let (from, to) = match scene.engine {
        Engine::Initializer => ("initializer", Engine::Webhook),
        Engine::Webhook => ("webhook", Engine::MutatingAdmissionPolicy),
        Engine::MutatingAdmissionPolicy => ("mutatingadmission", Engine::Webhook),
    };
    scene.world.edit_policy("envoy", json!({ "engine": to.name() })).await?;
    let refused = scene.create(all[2..].to_vec()).await;
    ensure!(refused.is_empty(), "creates failed: {refused:?}");
    within(RECOVERY, "the other engine delivers alone", || async {
        let registered = scene.world.registered().await?;
        let status = &policies(&scene.world.cluster).get("envoy").await?.data["status"];
        Ok(status["engine"] == to.name() && !registered.iter().any(|name| name.contains(from)))
    })
    .await?;
    scene.works().await?;
    scene.missed_are_told().await?;
    scene.all_are_whole(&all).await?;
    end(scene, &["envoy"], &[]).await
}

/// Deletes the policies, and checks that all is as before.
async fn end(scene: &Scene, policies: &[&str], calm: &[Digest]) -> Result<Digest> {
    for policy in policies {
        scene.world.delete_policy(policy).await?;
    }
    scene.unregistered().await?;
    let digest = scene.judge_against(calm).await?;
    scene.clear().await?;
    Ok(digest)
}

/// F2: kills the operator twenty times while workloads are created.
pub(crate) async fn at_random(scene: &Scene) -> Result<()> {
    let is_initializer = scene.engine == Engine::Initializer;
    let count = if is_initializer && crate::chaos::is_everything() { MANY } else { 100 };
    in_force(scene).await?;
    let all = first(count);
    for (round, batch) in all.chunks(count / 20).enumerate() {
        // While objects wait for it, or if none wait, while it starts or is idle.
        let most = if is_initializer { 20 + 2 * batch.len() as u64 } else { 800 };
        let killing = async {
            sleep(Duration::from_millis(Dice(scene.seed).below(most, round))).await;
            scene.start()
        };
        let (killed, created) = tokio::join!(killing, scene.create_stubbornly(batch.to_vec()));
        created.and(killed)?;
    }
    well(scene, &all).await
}
