//! Long-term effects: memory under a steady load, and the requests of an idle operator.
//!
//! `SOAK_MINUTES` and `SOAK_REST_MINUTES` set the durations. A short run does the same for less time.

use super::estate::{Estate, name};
use super::figure::{Figure, at_most, told};
use super::load::{operator, resident_megabytes};
use super::number;
use super::scale::{LONG, operator_of_many};
use super::statistics::median;
use crate::support::{Operator, within};
use crate::world::World;
use anyhow::{Result, ensure};
use controlplane::{ControlPlane, User, Version};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Both servers, because together they have every engine.
const VERSIONS: [Version; 2] = [Version::V1_13, Version::NEWEST];
const RESOURCES: &[&str] = &["deployments", "statefulsets"];
/// The number of workloads at a time under the steady load.
const POOL: usize = 1000;
/// The interval of a create and a delete.
const BEAT: Duration = Duration::from_millis(50);
/// The number of beats between edits of a policy.
const EDIT: usize = 20;
/// The interval of memory samples.
const SAMPLE: Duration = Duration::from_secs(10);
/// The time after the last write when an operator counts as idle. A status may be delayed for 10 s.
const QUIET: Duration = Duration::from_secs(25);
/// The time after its start when a new leader has looked for the last time at kinds without policies, where earlier
/// objects may be waiting.
const STARTED: Duration = Duration::from_secs(75);
/// The default of `--resync`.
const RESYNC: Duration = Duration::from_secs(15 * 60);

/// The steady load, then the idle phase.
pub(super) async fn soak(figures: &mut Vec<Figure>) -> Result<()> {
    let load = Duration::from_secs_f64(number("SOAK_MINUTES", 60.0)? * 60.0);
    let rest = Duration::from_secs_f64(number("SOAK_REST_MINUTES", 10.0)? * 60.0);
    let loads = VERSIONS.map(|version| steady(version, load));
    figures.extend(futures::future::try_join_all(loads).await?.into_iter().flatten());
    let rests = VERSIONS.map(|version| at_rest(version, rest));
    figures.extend(futures::future::try_join_all(rests).await?.into_iter().flatten());
    Ok(())
}

/// The engine of the policy, which depends on its resource.
fn engine(version: Version, policy: usize) -> &'static str {
    if version.has_initializers() {
        "Initializer"
    } else {
        ["MutatingAdmissionPolicy", "Webhook"][policy % RESOURCES.len()]
    }
}

/// Creates, deletes and edits for `time`, and samples the memory.
async fn steady(version: Version, time: Duration) -> Result<Vec<Figure>> {
    let estate = Estate { policies: 20, resources: RESOURCES };
    let world = World::with(ControlPlane::builder(version)).await?;
    estate.found(&world).await?;
    let operator = operator(&world.cluster, &[]).await?;
    estate.rule(&world, |policy| engine(version, policy)).await?;
    within(LONG, "every policy is in effect", || async { Ok(estate.ready(&world).await? == estate.policies) }).await?;
    estate.fill(&world.creator, 0..POOL, true).await?;
    let (start, mut looked) = (Instant::now(), Instant::now());
    let mut pace = tokio::time::interval(BEAT);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut next, mut samples) = (POOL, Vec::new());
    while start.elapsed() < time {
        pace.tick().await;
        estate.create(&world.creator, next, 0, true).await?;
        estate.delete(&world.creator, next - POOL).await?;
        if next.is_multiple_of(EDIT) {
            let policy = next / EDIT % estate.policies;
            let mut spec = estate.spec(policy, next);
            spec["engine"] = engine(version, policy).into();
            world.edit_policy(&name(policy), spec).await?;
        }
        next += 1;
        if looked.elapsed() >= SAMPLE {
            looked = Instant::now();
            samples.push(resident_megabytes(operator.pid(), "VmRSS")?);
            eprintln!(
                "soak, {version}: {:4.0?} s, {next} creates, {:.2} MB",
                start.elapsed().as_secs(),
                samples[samples.len() - 1]
            );
        }
    }
    let figures = grown(version, &samples, &operator, next - POOL).await?;
    operator.kill().await?;
    world.cluster.stop().await;
    Ok(figures)
}

/// The growth of the memory: the last quarter compared with the first, after a warm-up of a fifth of the time.
async fn grown(version: Version, samples: &[f64], operator: &Operator, creates: usize) -> Result<Vec<Figure>> {
    let samples = &samples[samples.len() / 5..];
    let quarter = samples.len() / 4;
    ensure!(quarter > 0, "SOAK_MINUTES leaves {} samples, which are too few", samples.len());
    let (first, last) = (median(samples[..quarter].to_vec()), median(samples[samples.len() - quarter..].to_vec()));
    Ok(vec![
        told(format!("soak, {version}: creates"), creates as f64, ""),
        told(format!("soak, {version}: RSS in the first quarter, median"), first, "MB"),
        at_most(format!("soak, {version}: growth until the last quarter"), (last / first - 1.0) * 100.0, "%", 2.0),
        at_most(format!("soak, {version}: panics"), operator.metric("scpol_panics_total").await?, "", 0.0),
    ])
}

/// The requests of the operator while nothing changes, with 10 000 workloads and 100 policies.
async fn at_rest(version: Version, time: Duration) -> Result<Vec<Figure>> {
    const WORKLOADS: usize = 10_000;
    let estate = Estate { policies: 100, resources: RESOURCES };
    let world = World::with(ControlPlane::builder(version).audit_log()).await?;
    estate.found(&world).await?;
    estate.fill(&world.creator, 0..WORKLOADS, false).await?;
    estate.rule(&world, |policy| engine(version, policy)).await?;
    let start = Instant::now();
    let operator = operator_of_many(&world.cluster).await?;
    within(LONG, "every workload is counted", || async { Ok(estate.sum(&world, "missed").await? == WORKLOADS) })
        .await?;
    within(LONG, "every policy is in effect", || async { Ok(estate.ready(&world).await? == estate.policies) }).await?;
    until_quiet(&world).await?;
    tokio::time::sleep(STARTED.saturating_sub(start.elapsed())).await;
    let from = start.elapsed();
    world.cluster.clear_audit()?;
    tokio::time::sleep(time).await;
    let asked = Asked::of(&world.cluster.audit());
    // A resync that was due shortly before may still be running.
    let since = from.saturating_sub(Duration::from_secs(60));
    let resyncs = start.elapsed().as_secs() / RESYNC.as_secs() - since.as_secs() / RESYNC.as_secs();
    let more = asked.lists.values().map(|lists| lists.saturating_sub(resyncs as usize)).sum::<usize>();
    eprintln!("soak, {version}: at rest for {time:?}, {resyncs} resyncs: {asked:?}");
    let rest = format!("soak, {version}: at rest for {:.0} s", time.as_secs_f64());
    let figures = vec![
        at_most(format!("{rest}: writes but the lease"), asked.writes as f64, "", 0.0),
        at_most(format!("{rest}: lists but the resync's"), more as f64, "", 0.0),
        told(format!("{rest}: writes of the lease"), asked.lease as f64, ""),
        told(format!("{rest}: watches begun"), asked.watches as f64, ""),
        told(format!("{rest}: RSS"), resident_megabytes(operator.pid(), "VmRSS")?, "MB"),
    ];
    operator.kill().await?;
    world.cluster.stop().await;
    Ok(figures)
}

/// Waits until the operator has written only the lease for a while.
async fn until_quiet(world: &World) -> Result<()> {
    let (mut seen, mut since) = (usize::MAX, Instant::now());
    let deadline = Instant::now() + LONG;
    while since.elapsed() < QUIET {
        let writes = Asked::of(&world.cluster.audit()).writes;
        if writes != seen {
            (seen, since) = (writes, Instant::now());
        }
        ensure!(Instant::now() < deadline, "the operator goes on writing: {writes} so far");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// The requests of the operator.
#[derive(Debug, Default)]
struct Asked {
    /// Writes except of the lease.
    writes: usize,
    lease: usize,
    watches: usize,
    /// Lists by resource. The pages of one list count once.
    lists: BTreeMap<String, usize>,
}

impl Asked {
    fn of(audit: &[Value]) -> Self {
        let mut asked = Self::default();
        for event in audit.iter().filter(|event| event["user"]["username"] == User::Operator.name()) {
            let resource = event["objectRef"]["resource"].as_str().unwrap_or_default();
            let is_later_page = event["requestURI"].as_str().unwrap_or_default().contains("continue=");
            match event["verb"].as_str().unwrap_or_default() {
                "get" => {}
                // A watch is logged at its beginning and at its end.
                "watch" => asked.watches += usize::from(event["stage"] == "ResponseStarted"),
                "list" if is_later_page => {}
                "list" => *asked.lists.entry(resource.to_owned()).or_default() += 1,
                _ if resource == "leases" => asked.lease += 1,
                _ => asked.writes += 1,
            }
        }
        asked
    }
}
