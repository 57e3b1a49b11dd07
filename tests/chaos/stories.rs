//! What is told in a way of its own.

use crate::proxy::Moment;
use crate::scene::{Scene, envoy, first};
use crate::dice::Dice;
use anyhow::{Context, Result, ensure};
use oracle::Digest;

/// The operator starts, a policy comes, workloads come, the policy goes: and at the k-th request of all that, it is killed, and
/// started again.
pub(crate) async fn killed_at_each_request(scene: &Scene) -> Result<()> {
    let before = scene.proxy.requests();
    scene.start()?;
    let calm = life(scene, &[]).await?;
    let requests = scene.proxy.requests() - before;
    scene.kill();
    // All of them, or a few that the seed chooses.
    let step = if crate::is_everything() { 1 } else { requests / 4 };
    let mut killed = 0;
    let mut nth = 1 + Dice(scene.seed).below(step, "first");
    while nth <= requests {
        for moment in [Moment::Before, Moment::After] {
            scene.begin()?;
            let pid = scene.start()?;
            scene.proxy.stop_at(nth, moment, pid)?;
            let lived = scene.supervised(life(scene, std::slice::from_ref(&calm))).await;
            lived.with_context(|| format!("killed at request {nth} of {requests}, {moment:?} it was forwarded"))?;
            killed += u64::from(scene.proxy.disarm());
            scene.kill();
        }
        nth += step;
    }
    // What is timed may ask once less.
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
