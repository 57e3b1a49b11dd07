//! F1: the operator is killed at each request of a rollout, of Deployments and of running pods. F15: the leader is frozen there, and
//! goes on after another replica has led.

use crate::chaos::dice::Dice;
use crate::chaos::fault::{Does, Rule, Verb};
use crate::chaos::proxy::{Moment, Proxy};
use crate::chaos::scene::{RECOVERY, Scene, first};
use crate::chaos::stories::leads;
use crate::prelude::*;
use crate::rollouts::{Controllers, grant, image_of, rolling};
use oracle::Digest;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The images of the sidecar, which the lives give the policy in turn.
const IMAGES: [&str; 2] = ["envoy:1", "envoy:2"];
/// The requests between two kills of a life. A start takes some 60, so each life gets on.
const STRIDE: u64 = 90;
/// The time limit of a rollout with all its kills, or of one that waits for the limit of evictions.
const LONGEST: Duration = Duration::from_secs(120);
/// How long a Deployment is unavailable after a change.
const TAKES: Duration = Duration::from_millis(200);
/// The same where a leader is frozen: the rollout is under way still when it goes on.
const TAKES_LONGER: Duration = Duration::from_millis(500);
/// The duration of a freeze: two leases.
const FROZEN: Duration = Duration::from_secs(6);
/// The evictions in a minute that the operator is allowed where a leader is frozen. A rollout needs one more.
const EVICTIONS: usize = 5;

/// One rollout, which is repeated.
struct Rollout<'a> {
    scene: &'a Scene,
    controllers: Controllers,
    max_unavailable: usize,
}

/// Rolls out again and again. Each life is killed at a request, and then at every [`STRIDE`]th.
pub(crate) async fn killed_at_each_request(scene: &Scene) -> Result<()> {
    let (count, max_unavailable) = if crate::chaos::is_everything() { (60, 12) } else { (12, 3) };
    let rollout = Rollout::begin(scene, (count, max_unavailable), TAKES).await?;
    let before = scene.proxy.requests();
    let calm = rollout.live_calmly().await?;
    let killings = killings(scene.seed, (scene.proxy.requests() - before) / 2);
    let killed = AtomicUsize::new(0);
    for (number, killing) in killings.iter().enumerate() {
        let now = (number + 1) % 2;
        let lived = rollout.live(IMAGES[now], &calm[now..=now], Trouble::Kill(killing, &killed)).await;
        lived.with_context(|| format!("{} and each {STRIDE}th", told("killed", killing)))?;
    }
    is_enough(&killed, killings.len())
}

/// Rolls out again and again. In each life, the leader is frozen at a request about a revision or a Deployment.
pub(crate) async fn frozen_at_each_request(scene: &Scene) -> Result<()> {
    let about = &["controllerrevisions", "deployments"];
    let rollout = Rollout::begin(scene, (12, 2), TAKES_LONGER).await?;
    let pair = Pair::begin(scene, about).await?;
    let before = pair.requests();
    let calm = rollout.live_calmly().await?;
    let freezings = freezings(scene, (pair.requests() - before) / 2, 1);
    let frozen = AtomicUsize::new(0);
    for (number, freezing) in freezings.iter().enumerate() {
        let now = (number + 1) % 2;
        let lived = rollout.live(IMAGES[now], &calm[now..=now], Trouble::Freeze(&pair, freezing, &frozen)).await;
        lived.with_context(|| told("frozen", freezing))?;
    }
    is_enough(&frozen, freezings.len())
}

/// F12: two workloads are deleted during a rollout, and their events are lost: one for which it waits, and one whose turn has not come. The
/// next resync shows that they are gone.
pub(crate) async fn ghosts(scene: &Scene) -> Result<()> {
    scene.resync_after(5);
    let rollout = Rollout::begin(scene, (8, 1), TAKES).await?;
    scene.begin_with_what_is_stored().await?;
    rollout.controllers.stick("web-0");
    scene.world.edit_policy("envoy", json!({ "template": rolling(IMAGES[1], Value::Null)["template"] })).await?;
    within(RECOVERY, "it waits for web-0", || async {
        let stored = scene.world.get(&path("web-0")).await?.context("web-0 is gone")?;
        Ok(image_of(&stored, "envoy") == IMAGES[1])
    })
    .await?;
    scene.proxy.set(vec![Rule::always(Does::Swallow).to(&[Verb::Watch], &["deployments"])]);
    for ghost in ["web-0", "web-1"] {
        scene.world.delete(&path(ghost)).await?;
    }
    within(RECOVERY, "the events are lost", || async { Ok(scene.proxy.happened() >= 2) }).await?;
    scene.proxy.set(Vec::new());
    rollout.is_over(IMAGES[1]).await?;
    scene.judge().await.map(drop)
}

/// The same, for a policy for pods: each change takes a new pod.
pub(crate) async fn of_evictions_killed_at_each_request(scene: &Scene) -> Result<()> {
    run_pods(scene).await?;
    let before = scene.proxy.requests();
    evict(scene, 0, Trouble::None).await?;
    let killings = killings(scene.seed, scene.proxy.requests() - before);
    let killed = AtomicUsize::new(0);
    for (number, killing) in killings.iter().enumerate() {
        let lived = evict(scene, number + 1, Trouble::Kill(killing, &killed)).await;
        lived.with_context(|| format!("{} and each {STRIDE}th", told("killed", killing)))?;
    }
    is_enough(&killed, killings.len())
}

/// The leader is frozen at a request about a revision or a pod. The limit of evictions holds each rollout up, for a minute.
pub(crate) async fn of_evictions_frozen_at_each_request(scene: &Scene) -> Result<()> {
    let limit = ("SCPOL_ROLLOUTS", EVICTIONS.to_string().into());
    scene.surround(Surroundings { env: vec![limit], ..Surroundings::default() });
    run_pods(scene).await?;
    let pair = Pair::begin(scene, &["controllerrevisions", "pods", "pods/eviction"]).await?;
    let before = pair.requests();
    evict(scene, 0, Trouble::None).await?;
    let freezings = freezings(scene, pair.requests() - before, 4);
    let frozen = AtomicUsize::new(0);
    for (number, freezing) in freezings.iter().enumerate() {
        let lived = evict(scene, number + 1, Trouble::Freeze(&pair, freezing, &frozen)).await;
        lived.with_context(|| told("frozen", freezing))?;
        let most = scene.most_evictions_in_a_minute()?;
        ensure!(most <= EVICTIONS, "{most} pods were evicted in a minute, and {EVICTIONS} may be");
    }
    is_enough(&frozen, freezings.len())
}

/// Puts a policy for pods in effect, and creates three Deployments with two pods each.
async fn run_pods(scene: &Scene) -> Result<()> {
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
    Ok(())
}

/// The first request at which the operator is killed or frozen, and whether before or after it.
type Killing = (u64, Moment);

const MOMENTS: [Moment; 2] = [Moment::Before, Moment::After];

/// What happens during a life.
#[derive(Clone, Copy)]
enum Trouble<'a> {
    None,
    /// The operator is killed. Counts how often.
    Kill(&'a Killing, &'a AtomicUsize),
    /// The leader of the two is frozen. Counts how often.
    Freeze(&'a Pair<'a>, &'a Killing, &'a AtomicUsize),
}

fn told(what: &str, (nth, moment): &Killing) -> String {
    format!("{what} at request {nth}, {moment:?} it was forwarded")
}

fn is_enough(times: &AtomicUsize, lives: usize) -> Result<()> {
    let times = times.load(Ordering::Relaxed);
    // Some lives need fewer requests.
    ensure!(4 * times >= 3 * lives, "this happened {times} times in {lives} rollouts: it proves too little");
    Ok(())
}

/// The killings of all lives. `requests` is how many a rollout takes.
fn killings(seed: u64, requests: u64) -> Vec<Killing> {
    if !crate::chaos::is_everything() {
        return MOMENTS.map(|moment| (1 + Dice(seed).below(requests * 3 / 4, moment), moment)).to_vec();
    }
    each(seed, STRIDE.min(requests), 1)
}

/// The freezes of all lives, at each `step`th request. `requests` is how many about the right things a rollout takes.
fn freezings(scene: &Scene, requests: u64, step: u64) -> Vec<Killing> {
    if !crate::chaos::is_everything() {
        // A freeze takes seconds, so each engine has another one.
        let below = |limit: u64, what: &str| Dice(scene.seed).below(limit, (what, scene.engine.name()));
        let moment = if below(2, "moment") == 0 { Moment::Before } else { Moment::After };
        return vec![(1 + below(requests * 3 / 4, "request"), moment)];
    }
    each(scene.seed, requests, step)
}

/// Both moments of each `step`th request until the `last`. The seeds divide them among themselves.
fn each(seed: u64, last: u64, step: u64) -> Vec<Killing> {
    let shares = crate::chaos::SEEDS.len() as u64 * step;
    let firsts = (1..=last).filter(|nth| nth % shares == seed % shares);
    firsts.flat_map(|nth| MOMENTS.map(|moment| (nth, moment))).collect()
}

/// Two replicas, each with its own proxy. Either may lead.
struct Pair<'a> {
    scene: &'a Scene,
    second: Operator,
    proxy: Proxy,
    /// The resources whose requests count.
    about: &'static [&'static str],
}

impl<'a> Pair<'a> {
    /// Starts a second replica.
    async fn begin(scene: &'a Scene, about: &'static [&'static str]) -> Result<Self> {
        let proxy = Proxy::start(&scene.world.cluster, scene.seed).await?;
        let mut second = scene.second_replica(&proxy)?;
        second.wait_ready().await?;
        Ok(Self { scene, second, proxy, about })
    }

    /// The requests of both that count.
    fn requests(&self) -> u64 {
        self.scene.proxy.requests_about(self.about) + self.proxy.requests_about(self.about)
    }

    /// Waits until one of them leads and the other one follows. Returns whether it is the second.
    async fn is_second(&self) -> Result<bool> {
        let last = AtomicUsize::new(0);
        within(RECOVERY, "one replica leads", || async {
            let (one, two) = (self.scene.metric("scpol_leader").await?, leads(&self.second).await?);
            last.store(usize::from(two), Ordering::Relaxed);
            Ok((one == 1.0) != two)
        })
        .await?;
        Ok(last.load(Ordering::Relaxed) == 1)
    }

    /// Waits for `story`. Meanwhile freezes the leader at its nth request from now for [`FROZEN`], while the other one must lead.
    async fn survive(
        &self,
        (nth, moment): &Killing,
        frozen: &AtomicUsize,
        story: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let is_second = self.is_second().await?;
        let (proxy, pid) =
            if is_second { (&self.proxy, self.second.pid()) } else { (&self.scene.proxy, self.scene.pid()?) };
        proxy.freeze_at(*nth, *moment, pid, self.about)?;
        let freeze = async {
            proxy.stopped().await;
            tokio::time::sleep(FROZEN).await;
            let others =
                if is_second { self.scene.metric("scpol_leader").await? == 1.0 } else { leads(&self.second).await? };
            proxy.thaw()?;
            ensure!(others, "the other replica does not lead {FROZEN:?} after the freeze");
            frozen.fetch_add(1, Ordering::Relaxed);
            // What it had in hand is done, and it knows that it does not lead any more.
            self.is_second().await
        };
        let (mut freeze, mut story) = (pin!(freeze), pin!(story));
        tokio::select! {
            woken = &mut freeze => {
                woken?;
                story.await
            }
            told = &mut story => {
                told?;
                // It may be over before the leader goes on, or before the request.
                if proxy.disarm() { freeze.await.map(drop) } else { Ok(()) }
            }
        }
    }
}

impl<'a> Rollout<'a> {
    /// Puts a policy in effect, and creates its Deployments. Some have opted out of injection, and some of rollouts. Each `takes` that long
    /// to become available.
    async fn begin(scene: &'a Scene, (count, max_unavailable): (usize, usize), takes: Duration) -> Result<Self> {
        grant(&scene.world).await?;
        scene.ready().await?;
        let controllers = Controllers::start(scene.world.admin.clone(), takes);
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

    /// One rollout to each image without trouble. Returns what is to be compared with those to the same images.
    async fn live_calmly(&self) -> Result<[Digest; 2]> {
        let second = self.live(IMAGES[1], &[], Trouble::None).await?;
        Ok([self.live(IMAGES[0], &[], Trouble::None).await?, second])
    }

    /// One rollout, to `image`, in `trouble`. All must be as after those of `calm`.
    async fn live(&self, image: &str, calm: &[Digest], trouble: Trouble<'_>) -> Result<Digest> {
        self.scene.begin_with_what_is_stored().await?;
        self.controllers.take_most();
        self.scene.world.edit_policy("envoy", json!({ "template": rolling(image, Value::Null)["template"] })).await?;
        survive(self.scene, trouble, self.is_over(image)).await?;
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

/// Waits for `story`, in `trouble`. An operator that is to be killed is killed at its nth request from now and at each [`STRIDE`]th after
/// that, and started again.
async fn survive(scene: &Scene, trouble: Trouble<'_>, story: impl Future<Output = Result<()>>) -> Result<()> {
    let ((nth, moment), killed) = match trouble {
        Trouble::None => return story.await,
        Trouble::Freeze(pair, freezing, frozen) => {
            let survived = pair.survive(freezing, frozen, story).await;
            if survived.is_err() {
                scene.judge_writes()?;
            }
            return survived;
        }
        Trouble::Kill(killing, killed) => (killing, killed),
    };
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
async fn evict(scene: &Scene, number: usize, trouble: Trouble<'_>) -> Result<()> {
    let pods = || async {
        let pods = scene.world.list(PODS).await?;
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
    survive(scene, trouble, all_are(is_new)).await?;
    scene.judge().await?;
    let stayed = pods().await?.iter().filter(|pod| before.contains(&pod["metadata"]["uid"])).count();
    ensure!(stayed == 0, "{stayed} pods were not made anew: this proves nothing");
    Ok(())
}
