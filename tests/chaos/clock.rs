//! F16: an operator's wall clock is wrong and jumps, while its monotonic clock is right.

use crate::chaos::scene::{RECOVERY, Scene, first};
use crate::chaos::stories::{in_force, leads, some_looks, well};
use crate::prelude::*;
use controlplane::free_port;
use jiff::Timestamp;
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::time::sleep;

/// Longer than the duration of a lease, which is 3 s here, and a look at it. A replica that uses its wall clock would
/// misjudge the lease by then.
const LEASES: Duration = Duration::from_millis(4500);
/// The largest difference between a recent timestamp and now, in seconds.
const AGO: i64 = 60;
const HOUR: i64 = 3600;

/// The wall clock of the operators that are started with it.
struct Clock {
    /// The preloaded library. It adds the offset in `file` to every wall-clock time.
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// A clock without offset, for `replica` alone. Its files are in `dir`.
    fn new(dir: &Path, replica: &str) -> Result<Self> {
        let clock = Self { library: dir.join("clock.so"), file: dir.join(format!("clock-{replica}")) };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chaos/clock.c");
        // The linker of Rust's toolchain is used too.
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        let output = compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&clock.library).arg(source).output()?;
        ensure!(output.status.success(), "clock.c: {}", String::from_utf8_lossy(&output.stderr));
        clock.jump(0)?;
        Ok(clock)
    }

    /// Sets the offset in hours.
    fn jump(&self, hours: i64) -> Result<()> {
        // Atomically, because a partial number would be another offset.
        let fresh = self.file.with_extension("fresh");
        std::fs::write(&fresh, (hours * HOUR).to_string())?;
        Ok(std::fs::rename(fresh, &self.file)?)
    }

    fn surroundings(&self) -> Surroundings {
        let env = vec![("LD_PRELOAD", self.library.clone()), ("SCPOL_CLOCK", self.file.clone())];
        // The binary of a release is static: nothing can be loaded into it.
        let program = Some(env!("CARGO_BIN_EXE_scpol").into());
        Surroundings { program, env, ..Surroundings::default() }
    }
}

/// The wall clock jumps back and forth while the operator leads and works. The operator also restarts under each clock.
pub(crate) async fn jumps(scene: &Scene) -> Result<()> {
    let clock = Clock::new(scene.world.cluster.dir(), "scpol-0")?;
    scene.surround(clock.surroundings());
    in_force(scene).await?;
    let before = certificates(scene).await?;
    let all = first(80);
    for (hours, batch) in [1, -1, 24, -24].into_iter().zip(all.chunks(20)) {
        let created = scene.create(batch[..5].to_vec()).await;
        clock.jump(hours)?;
        let later = scene.create(batch[5..10].to_vec()).await;
        ensure!(created.is_empty() && later.is_empty(), "creates failed: {created:?} {later:?}");
        shows(scene, hours).await?;
        scene.kill();
        scene.ready().await?;
        scene.in_force("envoy").await?;
        let again = scene.create(batch[10..].to_vec()).await;
        ensure!(again.is_empty(), "creates failed with a clock {hours} h off: {again:?}");
        shows(scene, hours).await?;
        ensure!(certificates(scene).await? == before, "a clock {hours} h off has cost the certificates");
    }
    well(scene, &all).await?;
    scene.all_have(&all).await
}

/// Two replicas have clocks two hours apart. Exactly one leads until it dies or stops, and then the other one leads.
pub(crate) async fn differ(scene: &Scene) -> Result<()> {
    let dir = scene.world.cluster.dir();
    let (ahead, behind) = (Clock::new(dir, "scpol-0")?, Clock::new(dir, "scpol-1")?);
    ahead.jump(1)?;
    behind.jump(-1)?;
    scene.surround(ahead.surroundings());
    in_force(scene).await?;
    let port = free_port();
    let mut other = scene.replica_in("scpol-1", port, &behind.surroundings())?;
    other.wait_ready().await?;
    leads_alone(scene, &other, true).await?;
    shows(scene, 1).await?;
    let all = first(60);
    scene.create_stubbornly(all[..20].to_vec()).await?;

    scene.kill();
    let (created, led) = tokio::join!(
        scene.create_stubbornly(all[20..40].to_vec()),
        within(RECOVERY, "the one behind leads", || leads(&other))
    );
    created.and(led)?;
    shows(scene, -1).await?;

    // By its own clock, the returning replica finds a lease that was renewed two hours ago. Meanwhile the leader's
    // clock is corrected.
    scene.ready().await?;
    behind.jump(0)?;
    leads_alone(scene, &other, false).await?;
    shows(scene, 0).await?;
    scene.create_stubbornly(all[40..].to_vec()).await?;
    well(scene, &all).await
}

/// For longer than the lease duration, exactly one leads: the first of `scene` if `is_first`, or else `other`.
async fn leads_alone(scene: &Scene, other: &Operator, is_first: bool) -> Result<()> {
    let until = Instant::now() + LEASES;
    while Instant::now() < until {
        let (ours, theirs) = (scene.metric("scpol_leader").await? == 1.0, leads(other).await?);
        ensure!((ours, theirs) == (is_first, !is_first), "the one ahead leads: {ours}, the one behind: {theirs}");
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// The emergency brake holds for all clock jumps and leaders, and is released as usual.
pub(crate) async fn jumps_while_held(scene: &Scene) -> Result<()> {
    let clock = Clock::new(scene.world.cluster.dir(), "scpol-0")?;
    scene.surround(clock.surroundings());
    in_force(scene).await?;
    brake(scene).await?;
    clock.jump(1)?;
    shows(scene, 1).await?;
    // A change makes the operator look again.
    scene
        .world
        .edit_policy("envoy", json!({ "template": { "metadata": { "annotations": { "mesh": "off" } } } }))
        .await?;
    stays_held(scene).await?;
    for hours in [1, 24, -1] {
        clock.jump(hours)?;
        scene.kill();
        scene.ready().await?;
        stays_held(scene).await?;
    }
    scene.world.edit_policy("envoy", json!({ "suspend": true })).await?;
    wait_condition(&scene.world.cluster, "envoy", "Ready", "True", "Suspended").await?;
    scene.world.edit_policy("envoy", json!({ "suspend": false })).await?;
    scene.in_force("envoy").await?;
    scene.create_stubbornly(first(5)).await?;
    scene.judge().await?;
    scene.all_have(&first(5)).await
}

/// Deletes all registrations by hand.
pub(crate) async fn brake(scene: &Scene) -> Result<()> {
    for registered in scene.world.registered().await? {
        let args = ["delete", "--ignore-not-found", &registered];
        scene.world.cluster.kubectl_output(User::Admin, &args).await?;
    }
    held(scene).await
}

async fn held(scene: &Scene) -> Result<()> {
    wait_condition(&scene.world.cluster, "envoy", "Programmed", "False", "RemovedByHand").await?;
    scene.unregistered().await
}

/// Checks that the hold lasts.
pub(crate) async fn stays_held(scene: &Scene) -> Result<()> {
    held(scene).await?;
    let until = Instant::now() + some_looks();
    while Instant::now() < until {
        let registered = scene.world.registered().await?;
        ensure!(registered.is_empty(), "what was deleted by hand was made again: {registered:?}");
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Waits until the lease is renewed by a clock with this offset in hours.
async fn shows(scene: &Scene, hours: i64) -> Result<()> {
    let version = if scene.world.cluster.version().has(Feature::LeaseV1) { "v1" } else { "v1beta1" };
    let lease = format!("/apis/coordination.k8s.io/{version}/namespaces/scpol-system/leases/scpol");
    within(RECOVERY, &format!("the lease is renewed by a clock {hours} h off"), || async {
        let lease = scene.world.get(&lease).await?.context("no lease")?;
        let renewed: Timestamp = lease["spec"]["renewTime"].as_str().context("never renewed")?.parse()?;
        Ok((renewed.as_second() - Timestamp::now().as_second() - hours * HOUR).abs() < AGO)
    })
    .await
}

/// The certificates of the webhook; empty without any.
async fn certificates(scene: &Scene) -> Result<Value> {
    let secret = "/api/v1/namespaces/scpol-system/secrets/scpol-webhook";
    Ok(scene.world.get(secret).await?.map(|secret| secret["data"].clone()).unwrap_or_default())
}
