//! A watch that rests while much happens misses nothing of it.

use crate::support::{LIMIT, Operator, in_force};
use crate::world::{PODS, World, containers, sidecar};
use anyhow::{Result, ensure};
use controlplane::{ControlPlane, User, Version};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use std::time::Instant;

crate::tests![what_a_storm_of_creates_and_deletes_leaves_is_counted_though_the_watch_rests,];

/// How many pods are created at once, and how many between two looks.
const CLIENTS: usize = 16;
const BATCH: usize = 100;
/// So often the watch of pods begins anew: by itself once in 25 s.
const BEGINS: usize = 5;

fn pod(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": format!("storm-{number}") },
        "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
    })
}

/// How often the operator has begun to watch pods since `from` events were in the audit log.
fn begins(world: &World, from: usize) -> usize {
    let is_one = |event: &Value| {
        event["user"]["username"] == User::Operator.name()
            && event["verb"] == "watch"
            && event["objectRef"]["resource"] == "pods"
            && event["stage"] == "ResponseStarted"
    };
    world.cluster.audit().into_iter().skip(from).filter(is_one).count()
}

async fn what_a_storm_of_creates_and_deletes_leaves_is_counted_though_the_watch_rests() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::V1_36).audit_log()).await?;
    let mut operator = Operator::ready(&world.cluster, &[]).await?;
    let mut spec = sidecar("envoy");
    spec["engine"] = json!("MutatingAdmissionPolicy");
    spec["targets"] = json!([{ "group": "", "resource": "pods" }]);
    world.policy("envoy", spec).await?;
    in_force(&world.cluster, "envoy").await?;
    let (begin, from, mut created) = (Instant::now(), world.cluster.audit().len(), 0);
    while begins(&world, from) < BEGINS {
        ensure!(begin.elapsed() < 3 * LIMIT, "the watch has not rested while {created} pods were created and deleted");
        let creates = (created..created + BATCH).map(|number| {
            let world = &world;
            async move {
                let stored = world.create(PODS, &pod(number)).await?;
                ensure!(containers(&stored) == ["app", "envoy"], "{stored}");
                if number % 2 == 0 {
                    world.delete(&format!("{PODS}/storm-{number}")).await?;
                }
                Ok(())
            }
        });
        stream::iter(creates).buffer_unordered(CLIENTS).try_collect::<Vec<_>>().await?;
        created += BATCH;
    }
    for field in ["matched", "injected"] {
        world.status("envoy", field, created as i64 / 2).await?;
    }
    operator.is_log_shown = false;
    operator.stop().await.map(drop)
}
