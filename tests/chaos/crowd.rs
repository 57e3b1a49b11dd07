//! F25: many workloads come at once, many of them large, with many policies, which change one after the other.

use crate::chaos::dice::Dice;
use crate::chaos::scene::{RECOVERY, Scene, first};
use crate::chaos::stories::{in_force, well};
use crate::prelude::*;
use tokio::time::sleep;

/// The policies besides `envoy`.
const POLICIES: usize = 60;
const WORKLOADS: usize = 300;
/// Concurrent creates: fewer than the server of 1.13.5 has slots for writes (200), because an initializer holds a slot
/// per create.
const AT_ONCE: usize = 64;
/// Every 30th workload has nearly a megabyte.
const LARGE: usize = 30;
/// The memory limit of the shipped Deployment, in MiB.
const MEMORY: u64 = 128;

/// No create fails, nothing is lost or silently skipped, and the operator stays within its memory limit.
pub(crate) async fn flood(scene: &Scene) -> Result<()> {
    in_force(scene).await?;
    for number in 0..POLICIES {
        scene.policy(&other(number), elsewhere(number, 0)).await?;
    }
    within(4 * RECOVERY, "all policies are in effect", || async {
        for number in 0..POLICIES {
            scene.in_force(&other(number)).await?;
        }
        Ok(true)
    })
    .await?;
    let mut all = first(WORKLOADS);
    for one in all.iter_mut().skip(Dice(scene.seed).below(LARGE as u64, "large") as usize).step_by(LARGE) {
        let variable = |number| json!({ "name": format!("VARIABLE_{number:04}"), "value": "x".repeat(1000) });
        one["spec"]["template"]["spec"]["containers"][0]["env"] = (0..900).map(variable).collect();
    }
    let editing = async {
        for version in 1.. {
            let number = version % POLICIES;
            scene.world.edit_policy(&other(number), elsewhere(number, version)).await?;
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let refused = tokio::select! {
        refused = scene.create_at_once(all.clone(), AT_ONCE) => refused,
        edited = editing => return edited,
    };
    ensure!(refused.is_empty(), "creates failed: {refused:?}");
    // A debug build of the webhook may exceed the server's timeout of 3 s. Workloads that are admitted without the
    // sidecar are counted too.
    well(scene, &all).await?;
    let most = most_held(scene.pid()?)?;
    ensure!(most < MEMORY, "the operator has held {most} MiB");
    Ok(())
}

fn other(number: usize) -> String {
    format!("other-{number}")
}

/// A policy without matches here.
fn elsewhere(number: usize, version: usize) -> Value {
    json!({
        "labelSelector": { "matchLabels": { "tier": format!("elsewhere-{number}") } },
        "template": { "containers": [{ "name": other(number), "image": format!("other:{version}") }] },
    })
}

/// The peak memory of a process in MiB.
pub(crate) fn most_held(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kilobytes: u64 = line.split_whitespace().next().context("no number")?.parse()?;
    Ok(kilobytes / 1024)
}
