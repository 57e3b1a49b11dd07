//! F26: the machine has no room left, or the operator is to go in the midst of its work.

use crate::chaos::fault::{Does, Rule, Verb};
use crate::chaos::scene::{Engine, RECOVERY, Scene, agent, first, second};
use crate::chaos::stories::{DEPLOYMENT, in_force, well};
use crate::support::{Surroundings, within};
use crate::world::{DEPLOYMENTS, pending};
use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt};
use std::time::{Duration, Instant};

/// File descriptors that the operator may have: fewer than it settles objects at once (64), watches and probes besides.
const DESCRIPTORS: u64 = 64;
/// What is to be done at once.
const CROWD: usize = 300;
/// The operator is to have ended so long after it was asked to: `--shutdown-grace`, which it needs in full here, and a moment.
const ENDED: Duration = Duration::from_secs(11);

/// Not one line of its log can be written: the disk is full.
pub(crate) async fn log_is_full(scene: &Scene) -> Result<()> {
    scene.surround(Surroundings { log: Some("/dev/full".into()), ..Surroundings::default() });
    let pid = scene.start()?;
    scene.is_ready().await?;
    let log = std::fs::read_link(format!("/proc/{pid}/fd/2"))?;
    ensure!(log.ends_with("full"), "it logs to {}: this proves nothing", log.display());
    scene.policy("envoy", crate::chaos::scene::envoy()).await?;
    scene.in_force("envoy").await?;
    let (refused, policy) = tokio::join!(scene.create(first(20)), scene.policy("agent", agent()));
    policy?;
    scene.in_force("agent").await?;
    let later = scene.create(second(5)).await;
    ensure!(refused.is_empty() && later.is_empty(), "creates failed: {refused:?} {later:?}");
    scene.judge().await?;
    scene.all_have(&first(20)).await?;
    ensure!(scene.pid()? == pid && scene.metric("scpol_panics_total").await? == 0.0, "it has panicked");
    ensure!(scene.stop().await? == Some(0), "it did not end in good order");
    Ok(())
}

/// More is to be done at once than there are file descriptors.
pub(crate) async fn descriptors_run_out(scene: &Scene) -> Result<()> {
    scene.surround(Surroundings { descriptors: Some(DESCRIPTORS), ..Surroundings::default() });
    in_force(scene).await?;
    let all = first(CROWD);
    match scene.engine {
        Engine::Initializer => {
            wait_for_us(scene).await?;
            within(RECOVERY, "everything is settled", || async { Ok(waiting(scene).await? == 0) }).await?;
        }
        // The API server asks about so many at once.
        _ => drop(scene.create_at_once(all.clone(), 150).await),
    }
    scene.proxy.calm();
    ensure!(scene.log().contains("os error 24"), "there were descriptors enough: this proves nothing");
    scene.create_stubbornly(all.clone()).await?;
    scene.in_force("envoy").await?;
    well(scene, &all).await?;
    ensure!(scene.metric("scpol_panics_total").await? == 0.0, "it has panicked");
    Ok(())
}

/// It is asked to end while hundreds wait for it; the next one does the rest.
pub(crate) async fn stopped_amid_a_crowd(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    wait_for_us(scene).await?;
    within(RECOVERY, "some are done", || async { Ok(waiting(scene).await? < CROWD - 20) }).await?;
    let asked = Instant::now();
    let code = scene.stop().await?;
    ensure!(code == Some(0) && asked.elapsed() < ENDED, "it ended with {code:?} after {:?}", asked.elapsed());
    ensure!(waiting(scene).await? > 0, "everything was done before it ended: this proves nothing");
    scene.proxy.calm();
    scene.ready().await?;
    scene.in_force("envoy").await?;
    well(scene, &first(CROWD)).await
}

/// A crowd waits for an operator that begins with all of it in one moment, and whose PATCHes are slow.
async fn wait_for_us(scene: &Scene) -> Result<()> {
    scene.signal("STOP")?;
    let creates = first(CROWD).into_iter().map(|body| async move {
        // Nobody waits for the answer: it comes at once.
        scene.world.create_async(DEPLOYMENTS, &body).await.map(drop)
    });
    futures::stream::iter(creates).buffer_unordered(16).try_collect::<()>().await?;
    let slow = Does::Delay(Duration::from_secs(4));
    scene.proxy.set(vec![Rule::always(slow).to(&[Verb::Patch], DEPLOYMENT).times(1)]);
    scene.signal("CONT")
}

/// How many Deployments wait.
async fn waiting(scene: &Scene) -> Result<usize> {
    Ok(scene.deployments().await?.iter().filter(|object| !pending(object).is_empty()).count())
}
