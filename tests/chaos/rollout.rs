//! F1: the operator is killed at each request of a rollout, of Deployments and of running pods.

use crate::chaos::dice::Dice;
use crate::chaos::proxy::Moment;
use crate::chaos::scene::{Scene, first};
use crate::rollouts::{Controllers, grant, image_of, rolling};
use crate::support::{policies, within};
use crate::world::{DEPLOYMENTS, PODS, deployment, request};
use anyhow::{Context, Result, ensure};
use oracle::Digest;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The images of the sidecar, which the lives give the policy in turn.
const IMAGES: [&str; 2] = ["envoy:1", "envoy:2"];
/// The requests between two kills of a life. A start takes some 60, so each life gets on.
const STRIDE: u64 = 90;
/// The time limit of a rollout with all its kills.
const LONGEST: Duration = Duration::from_secs(90);
/// How long a Deployment is unavailable after a change.
const TAKES: Duration = Duration::from_millis(200);

/// One rollout, which is repeated.
struct Rollout<'a> {
    scene: &'a Scene,
    controllers: Controllers,
    max_unavailable: usize,
}

/// Rolls out again and again. Each life is killed at a request, and then at every [`STRIDE`]th.
pub(crate) async fn killed_at_each_request(scene: &Scene) -> Result<()> {
    let (count, max_unavailable) = if crate::chaos::is_everything() { (60, 12) } else { (12, 3) };
    let rollout = Rollout::begin(scene, count, max_unavailable).await?;
    let (mut calm, before) = (Vec::new(), scene.proxy.requests());
    for image in [IMAGES[1], IMAGES[0]] {
        calm.push(rollout.live(image, &[], None).await?);
    }
    calm.reverse();
    let killings = killings(scene.seed, (scene.proxy.requests() - before) / 2);
    let killed = AtomicUsize::new(0);
    for (number, killing) in killings.iter().enumerate() {
        let now = (number + 1) % 2;
        let lived = rollout.live(IMAGES[now], &calm[now..=now], Some((killing, &killed))).await;
        lived.with_context(|| told(killing))?;
    }
    is_enough(&killed, killings.len())
}

/// The same, for a policy for pods: each change takes a new pod.
pub(crate) async fn of_evictions_killed_at_each_request(scene: &Scene) -> Result<()> {
    grant(&scene.world).await?;
    scene.ready().await?;
    let mut spec = rolling("envoy:1", json!({ "maxUnavailable": 2 }));
    spec["targets"] = json!([{ "group": "", "resource": "pods" }]);
    spec["template"].as_object_mut().map(|template| template.remove("metadata"));
    scene.policy("envoy", spec).await?;
    scene.in_force("envoy").await?;
    for name in ["a", "b", "c"] {
        let mut deployment = deployment(name);
        deployment["spec"]["replicas"] = json!(2);
        scene.world.create(DEPLOYMENTS, &deployment).await?;
    }
    let before = scene.proxy.requests();
    evict(scene, 0, None).await?;
    let killings = killings(scene.seed, scene.proxy.requests() - before);
    let killed = AtomicUsize::new(0);
    for (number, killing) in killings.iter().enumerate() {
        evict(scene, number + 1, Some((killing, &killed))).await.with_context(|| told(killing))?;
    }
    is_enough(&killed, killings.len())
}

/// The first request at which the operator is killed, and whether before or after it.
type Killing = (u64, Moment);

fn told((nth, moment): &Killing) -> String {
    format!("killed at request {nth} and each {STRIDE}th, {moment:?} it was forwarded")
}

fn is_enough(killed: &AtomicUsize, lives: usize) -> Result<()> {
    let killed = killed.load(Ordering::Relaxed);
    // Some lives need fewer requests.
    ensure!(4 * killed >= 3 * lives, "it was killed {killed} times in {lives} rollouts: this proves too little");
    Ok(())
}

/// The killings of all lives. `requests` is how many a rollout takes.
fn killings(seed: u64, requests: u64) -> Vec<Killing> {
    let moments = [Moment::Before, Moment::After];
    if !crate::chaos::is_everything() {
        return moments.map(|moment| (1 + Dice(seed).below(requests * 3 / 4, moment), moment)).to_vec();
    }
    // The seeds divide them among themselves.
    let seeds = crate::chaos::SEEDS.len() as u64;
    let firsts = (1..=STRIDE.min(requests)).filter(|nth| nth % seeds == seed % seeds);
    firsts.flat_map(|nth| moments.map(|moment| (nth, moment))).collect()
}

impl<'a> Rollout<'a> {
    /// Puts a policy in force, and creates its Deployments. Some have opted out of injection, and some of rollouts.
    async fn begin(scene: &'a Scene, count: usize, max_unavailable: usize) -> Result<Self> {
        grant(&scene.world).await?;
        scene.ready().await?;
        let controllers = Controllers::start(scene.world.admin.clone(), TAKES);
        scene.policy("envoy", rolling(IMAGES[0], json!({ "maxUnavailable": max_unavailable }))).await?;
        scene.in_force("envoy").await?;
        let mut deployments = first(count);
        for own in deployments.iter_mut().skip(3).step_by(5) {
            own["metadata"]["annotations"] = json!({ "scpol.dev/rollout": "false" });
        }
        scene.create_stubbornly(deployments).await?;
        let rollout = Self { scene, controllers, max_unavailable };
        rollout.is_over(IMAGES[0]).await?;
        scene.judge().await?;
        Ok(rollout)
    }

    /// One rollout, to `image`, during which the operator is killed. All must be as after those of `calm`.
    async fn live(&self, image: &str, calm: &[Digest], killing: Option<(&Killing, &AtomicUsize)>) -> Result<Digest> {
        self.scene.begin_with_what_is_stored().await?;
        self.controllers.take_most();
        self.scene.world.edit_policy("envoy", json!({ "template": rolling(image, Value::Null)["template"] })).await?;
        survive(self.scene, killing, self.is_over(image)).await?;
        let digest = self.scene.judge_against(calm).await?;
        let most = self.controllers.take_most();
        ensure!(most <= self.max_unavailable, "{most} were unavailable at once, and {} may be", self.max_unavailable);
        Ok(digest)
    }

    /// Waits until the rollout to `image` is complete. What has opted out is the oracle's business.
    async fn is_over(&self, image: &str) -> Result<()> {
        within(LONGEST, &format!("the rollout to {image} is complete"), || async {
            let policy = policies(&self.scene.world.cluster).get("envoy").await?;
            let status = &policy.data["status"];
            let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            let is_complete = |found: &Value| found["type"] == "Progressing" && found["reason"] == "Complete";
            ensure!(status["observedGeneration"].as_i64() == policy.metadata.generation, "the status is an old one");
            ensure!(conditions.iter().any(is_complete), "it is not complete: {status}");
            for body in self.scene.deployments().await? {
                let is_out = |key: &str| body["metadata"]["annotations"][key] == "false";
                let (name, found) = (&body["metadata"]["name"], image_of(&body, "envoy"));
                let is_left = is_out("scpol.dev/inject") || is_out("scpol.dev/rollout");
                ensure!(is_left || found == image, "{name} has `{found}`, not `{image}`");
            }
            Ok(true)
        })
        .await
    }
}

/// Waits for `story`. Meanwhile kills the operator at its nth request from now and at each [`STRIDE`]th after that, and starts it again.
async fn survive(
    scene: &Scene,
    killing: Option<(&Killing, &AtomicUsize)>,
    story: impl Future<Output = Result<()>>,
) -> Result<()> {
    let Some(((nth, moment), killed)) = killing else { return story.await };
    let kills = async {
        let mut nth = scene.proxy.requests() + nth;
        loop {
            scene.proxy.stop_at(nth - scene.proxy.requests(), *moment, scene.pid()?)?;
            scene.proxy.stopped().await;
            killed.fetch_add(1, Ordering::Relaxed);
            scene.start()?;
            while nth <= scene.proxy.requests() {
                nth += STRIDE;
            }
        }
    };
    let survived = tokio::select! {
        over = story => over,
        failed = kills => failed,
    };
    if survived.is_err() {
        scene.judge_writes()?;
    }
    survived?;
    if scene.proxy.disarm() {
        scene.start()?;
    }
    Ok(())
}

/// One rollout by evictions: each pod is made anew, once.
async fn evict(scene: &Scene, number: usize, killing: Option<(&Killing, &AtomicUsize)>) -> Result<()> {
    let pods = || async {
        let list = request(&scene.world.admin, "GET", PODS, &Value::Null).await?;
        let pods = list["items"].as_array().cloned().unwrap_or_default();
        let alive = pods.into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        anyhow::Ok(alive.collect::<Vec<_>>())
    };
    let is_ready = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    let all_are = |is: fn(&Value, usize) -> bool| {
        let pods = &pods;
        within(LONGEST, "six pods are as the policy says", move || async move {
            let pods = pods().await?;
            Ok(pods.len() == 6 && pods.iter().all(|pod| is_ready(pod) && is(pod, number)))
        })
    };
    all_are(|_, _| true).await?;
    let before: Vec<Value> = pods().await?.iter().map(|pod| pod["metadata"]["uid"].clone()).collect();
    scene.begin_with_what_is_stored().await?;
    let env = json!([{ "name": "N", "value": number.to_string() }]);
    let template = json!({ "containers": [{ "name": "envoy", "image": "envoy:1", "env": env }] });
    scene.world.edit_policy("envoy", json!({ "template": template })).await?;
    let is_new = |pod: &Value, number: usize| {
        pod["spec"]["containers"][1]["env"][0]["value"].as_str() == Some(&number.to_string())
    };
    survive(scene, killing, all_are(is_new)).await?;
    scene.judge().await?;
    let stayed = pods().await?.iter().filter(|pod| before.contains(&pod["metadata"]["uid"])).count();
    ensure!(stayed == 0, "{stayed} pods were not made anew: this proves nothing");
    Ok(())
}
