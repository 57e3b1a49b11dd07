//! F26: the machine has no resources left, or the operator must stop in the middle of its work.

use crate::chaos::fault::{Does, Rule, Verb};
use crate::chaos::scene::{Engine, RECOVERY, Scene, agent, first, second};
use crate::chaos::stories::{DEPLOYMENT, in_force, well};
use crate::prelude::*;
use futures::{StreamExt, TryStreamExt};

/// The limit of file descriptors: fewer than the operator needs to settle 64 objects at once, besides watches and
/// probes.
const DESCRIPTORS: u64 = 64;
/// The number of concurrent objects.
const CROWD: usize = 300;
/// The time limit for a requested stop: `--shutdown-grace`, which it needs in full here, and a moment.
const ENDED: Duration = Duration::from_secs(11);

/// No log line can be written, because the disk is full.
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

/// The work needs more file descriptors than there are.
pub(crate) async fn descriptors_run_out(scene: &Scene) -> Result<()> {
    scene.surround(Surroundings { descriptors: Some(DESCRIPTORS), ..Surroundings::default() });
    in_force(scene).await?;
    let all = first(CROWD);
    match scene.engine {
        Engine::Initializer => {
            wait_for_us(scene).await?;
            within(RECOVERY, "everything is settled", || async { Ok(waiting(scene).await? == 0) }).await?;
        }
        // The API server sends about so many reviews at once.
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

/// The operator must stop while hundreds of objects wait for it. The next one completes the work.
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

/// A crowd waits for an operator that gets all of it at once, with slow PATCHes.
async fn wait_for_us(scene: &Scene) -> Result<()> {
    scene.signal("STOP")?;
    let creates = first(CROWD).into_iter().map(|body| async move {
        // The answer comes at once, and is ignored.
        scene.world.create_async(DEPLOYMENTS, &body).await.map(drop)
    });
    futures::stream::iter(creates).buffer_unordered(16).try_collect::<()>().await?;
    let slow = Does::Delay(Duration::from_secs(4));
    scene.proxy.set(vec![Rule::always(slow).to(&[Verb::Patch], DEPLOYMENT).times(1)]);
    scene.signal("CONT")
}

/// The number of waiting Deployments.
async fn waiting(scene: &Scene) -> Result<usize> {
    Ok(scene.deployments().await?.iter().filter(|object| !pending(object).is_empty()).count())
}
