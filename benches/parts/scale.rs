//! A large cluster on 1.13.5 with the Initializer engine: memory, and the effect of a flood of creates.

use super::estate::{Estate, NAMESPACES, Stored, name};
use super::figure::{Figure, at_least, at_most, told};
use super::load::{Phase, operator, phase, resident_megabytes};
use super::number;
use crate::support::{Operator, within};
use crate::world::World;
use anyhow::{Result, ensure};
use controlplane::{ControlPlane, Version};
use futures::stream::FuturesUnordered;
use futures::{StreamExt, TryStreamExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The memory limit of the operator in a large cluster: 64 MiB, in megabytes of 10^6 bytes.
pub(super) const MEMORY: f64 = 64.0 * 1.048_576;
/// The memory limit at any time: that of its Deployment.
const MEMORY_LIMIT: f64 = 128.0 * 1.048_576;
/// The time limit until a large cluster is counted and every policy is in effect.
pub(super) const LONG: Duration = Duration::from_secs(900);

/// `full`, scaled by `SCPOL_BENCH_SCALE` for a quick look: 0.2 is a fifth.
pub(super) fn scaled(full: usize) -> Result<usize> {
    Ok(((full as f64 * number("SCPOL_BENCH_SCALE", 1.0)?) as usize).max(1))
}

async fn world() -> Result<World> {
    World::with(ControlPlane::builder(Version::V1_13)).await
}

/// A ready operator, with a long time limit for its first lists.
pub(super) async fn operator_of_many(cluster: &ControlPlane) -> Result<Operator> {
    let mut operator = Operator::start(cluster, &["--log-level", "info"])?;
    operator.is_log_shown = false;
    within(LONG, "the operator is ready", || async { Ok(operator.get("/readyz").await?.0 == 200) }).await?;
    Ok(operator)
}

/// The memory with 100 000 workloads and 1 000 policies.
pub(super) async fn scale(figures: &mut Vec<Figure>) -> Result<()> {
    let (estate, workloads) = (Estate { policies: scaled(1_000)?, resources: &["deployments"] }, scaled(100_000)?);
    let world = world().await?;
    estate.found(&world).await?;
    let start = Instant::now();
    // There is no policy yet, so no object waits.
    estate.fill(&world.creator, 0..workloads, false).await?;
    eprintln!("scale: {workloads} workloads were made in {:.0?}", start.elapsed());
    estate.rule(&world, |_| "Auto").await?;
    let start = Instant::now();
    let operator = operator_of_many(&world.cluster).await?;
    let ready = start.elapsed().as_secs_f64();
    within(LONG, "every workload is counted", || async { Ok(estate.sum(&world, "missed").await? == workloads) })
        .await?;
    let counted = start.elapsed().as_secs_f64();
    within(LONG, "every policy is in effect", || async { Ok(estate.ready(&world).await? == estate.policies) }).await?;
    let in_force = start.elapsed().as_secs_f64();
    let size = format!("{workloads} workloads and {} policies", estate.policies);
    figures.extend([
        told(format!("start to ready, {size}"), ready, "s"),
        told(format!("start until all is counted, {size}"), counted, "s"),
        told(format!("start until all is in effect, {size}"), in_force, "s"),
        at_most(format!("RSS with {size}"), resident_megabytes(operator.pid(), "VmRSS")?, "MB", MEMORY),
        at_most(format!("the most ever held with {size}"), resident_megabytes(operator.pid(), "VmHWM")?, "MB", MEMORY),
    ]);
    operator.kill().await?;
    world.cluster.stop().await;
    Ok(())
}

/// 10 000 creates as fast as 64 clients can, some of them large. Meanwhile one of 1 000 policies is edited twenty times a
/// second.
pub(super) async fn flood(figures: &mut Vec<Figure>) -> Result<()> {
    const CLIENTS: usize = 64;
    let (estate, workloads) = (Estate { policies: scaled(1_000)?, resources: &["deployments"] }, scaled(10_000)?);
    // All large ones come at once and in two namespaces, so that all clients and whole pages of lists have them.
    let is_large = |number: &usize| number % NAMESPACES < 2;
    let (large, small): (Vec<_>, Vec<_>) = (0..workloads).partition(is_large);
    let (before, after) = small.split_at(small.len() / 2);
    let order = [before, &large, after].concat();
    let world = world().await?;
    estate.found(&world).await?;
    let operator = operator(&world.cluster, &[]).await?;
    estate.rule(&world, |_| "Auto").await?;
    within(LONG, "every policy is in effect", || async { Ok(estate.ready(&world).await? == estate.policies) }).await?;
    let resident = resident_megabytes(operator.pid(), "VmRSS")?;
    let is_over = AtomicBool::new(false);
    let creating = async {
        let create = |nth: usize| {
            let kilobytes = if is_large(&order[nth]) { 900 } else { 0 };
            estate.create(&world.creator, order[nth], kilobytes, true)
        };
        let flooded = phase(CLIENTS, workloads, create).await;
        is_over.store(true, Ordering::Relaxed);
        flooded
    };
    let (flooded, edits, watched) = tokio::join!(creating, edit(estate, &world, &is_over), watch(&operator, &is_over));
    let (flooded, edits, watched) = (flooded?, edits?, watched?);
    let stored = estate.stored(&world).await?;
    ensure!(stored.all == workloads, "{} of {workloads} workloads are stored", stored.all);
    within(LONG, "the last edit is counted", || async {
        Ok(estate.sum(&world, "matched").await? == workloads && estate.sum(&world, "missed").await? == 0)
    })
    .await?;
    let size = format!("flood of {workloads} creates, {} policies", estate.policies);
    figures.extend(of_creates(&size, &flooded, edits, stored));
    figures.extend([
        at_most(format!("{size}: looks at /readyz and /livez that failed"), watched.failed as f64, "", 0.0),
        told(format!("{size}: slowest answer of /readyz"), watched.slowest, "s"),
        told(format!("{size}: RSS before"), resident, "MB"),
        at_most(
            format!("{size}: the most ever held"),
            resident_megabytes(operator.pid(), "VmHWM")?,
            "MB",
            MEMORY_LIMIT,
        ),
        at_most(format!("{size}: panics"), operator.metric("scpol_panics_total").await?, "", 0.0),
        at_least(
            format!("{size}: policies in effect after it"),
            estate.ready(&world).await? as f64,
            "",
            estate.policies as f64,
        ),
    ]);
    operator.kill().await?;
    world.cluster.stop().await;
    Ok(())
}

/// The figures of a flood about its creates, its edits and what is stored.
fn of_creates(size: &str, flooded: &Phase, edits: f64, stored: Stored) -> [Figure; 6] {
    [
        told(format!("{size}: creates a second"), flooded.rate, "1/s"),
        told(format!("{size}: edits a second"), edits, "1/s"),
        told(format!("{size}: median wait"), flooded.p50 / 1000.0, "s"),
        told(format!("{size}: p99 of the waits"), flooded.p99 / 1000.0, "s"),
        at_most(format!("{size}: longest wait"), flooded.longest / 1000.0, "s", 10.0),
        at_most(
            format!("{size}: waiting, or stored without sidecar"),
            (stored.waiting + stored.without) as f64,
            "",
            0.0,
        ),
    ]
}

/// Edits one policy twenty times a second, however long the server takes for each; gives how often in a second it was done.
async fn edit(estate: Estate, world: &World, is_over: &AtomicBool) -> Result<f64> {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let (start, mut edits, mut under_way) = (Instant::now(), 0, FuturesUnordered::new());
    while !is_over.load(Ordering::Relaxed) {
        tokio::select! {
            _ = pace.tick() => {
                edits += 1;
                under_way.push(async move { world.edit_policy(&name(0), estate.spec(0, edits)).await });
            }
            Some(edited) = under_way.next() => drop(edited?),
        }
    }
    under_way.try_collect::<Vec<_>>().await?;
    Ok(edits as f64 / start.elapsed().as_secs_f64())
}

/// The results of `/readyz` and `/livez`.
struct Watched {
    failed: usize,
    slowest: f64,
}

/// Requests `/readyz` and `/livez` ten times a second.
async fn watch(operator: &Operator, is_over: &AtomicBool) -> Result<Watched> {
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    let mut watched = Watched { failed: 0, slowest: 0.0 };
    while !is_over.load(Ordering::Relaxed) {
        pace.tick().await;
        for page in ["/readyz", "/livez"] {
            let start = Instant::now();
            let (status, _) = operator.get(page).await?;
            watched.slowest = watched.slowest.max(start.elapsed().as_secs_f64());
            watched.failed += usize::from(status != 200);
        }
    }
    Ok(watched)
}
