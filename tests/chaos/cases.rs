//! The faults, one row each.

use crate::fault::{Does, Rule, Verb};
use crate::scene::{Calm, Engine, Scene, agent, envoy, first, second};
use crate::stories;
use anyhow::{Result, anyhow, ensure};
use futures::FutureExt;
use futures::future::BoxFuture;
use oracle::Digest;
use std::time::Duration;

/// One fault, and what is done while it lasts.
pub(crate) struct Case {
    /// As in the list of faults in the README.
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    pub(crate) engines: &'static [Engine],
    /// Among those of `make test`.
    pub(crate) is_quick: bool,
    pub(crate) play: Play,
}

/// What happens in a case.
pub(crate) enum Play {
    /// The ordinary story, while this goes wrong.
    Rules(&'static [Rule]),
    /// A story of its own.
    Story(fn(&mut Scene) -> BoxFuture<'_, Result<()>>),
}

const LEGACY: &[Engine] = &[Engine::Initializer];
const SECOND: Duration = Duration::from_secs(1);

/// All of them.
pub(crate) const CASES: &[Case] = &[
    Case {
        id: "F01",
        name: "killed_at_a_request",
        engines: Engine::ALL,
        is_quick: true,
        play: Play::Story(|scene| stories::killed_at_each_request(scene).boxed()),
    },
    Case {
        id: "F03",
        name: "answer_lost_after_the_write",
        engines: Engine::ALL,
        is_quick: true,
        play: Play::Rules(&[Rule::always(Does::DropAnswer).to(&WRITES, &[]).percent(60).times(2)]),
    },
    Case {
        id: "F03",
        name: "answer_is_a_timeout_after_the_write",
        engines: LEGACY,
        is_quick: false,
        play: Play::Rules(&[Rule::always(Does::Mask(504)).to(&WRITES, &[]).percent(60).times(2)]),
    },
    Case {
        id: "F05",
        name: "too_many_requests_and_unavailable",
        engines: Engine::ALL,
        is_quick: true,
        play: Play::Rules(&[
            Rule::always(Does::Answer(429, Some(1))).percent(30).times(2),
            Rule::always(Does::Answer(503, None)).percent(30).times(2),
            Rule::always(Does::Answer(500, None)).percent(10).times(1),
        ]),
    },
];

const WRITES: [Verb; 4] = [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete];

/// Runs a case.
pub(crate) async fn run(case: &Case, engine: Engine, seed: u64) -> Result<()> {
    let mut scene = Scene::new(engine, seed).await?;
    let played = match &case.play {
        Play::Rules(rules) => ordinary(&scene, rules).await,
        Play::Story(story) => story(&mut scene).await,
    };
    played.map_err(|error| anyhow!("{error:#}\n--- the end of the operator's log ---\n{}", tail(&scene.log())))
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// What an ordinary story comes to if nothing goes wrong.
static CALM: Calm = Calm::new();

/// Policies and workloads come and a policy goes, while `rules` go wrong; then all is well again, as if nothing had been.
async fn ordinary(scene: &Scene, rules: &[Rule]) -> Result<()> {
    scene.ready().await?;
    let calm = CALM.digest(scene.engine, async {
        tell(scene, &[]).await?;
        let digest = scene.judge().await?;
        scene.clear().await?;
        scene.begin()?;
        Ok(digest)
    });
    let calm: Digest = calm.await?;
    let fired = tell(scene, rules).await?;
    ensure!(fired > 0, "nothing went wrong: this case proves nothing");
    scene.judge_against(&[calm]).await.map(drop)
}

/// The ordinary story. Gives how often something went wrong.
async fn tell(scene: &Scene, rules: &[Rule]) -> Result<u64> {
    scene.policy("envoy", envoy()).await?;
    scene.in_force("envoy").await?;
    scene.proxy.set(rules.to_vec());
    let creates = scene.create(first(12));
    let (refused, policy) = tokio::join!(creates, scene.policy("agent", agent()));
    policy?;
    ensure!(refused.is_empty(), "creates failed: {refused:?}");
    let mut fired = scene.proxy.calm();
    scene.in_force("agent").await?;
    scene.proxy.set(rules.to_vec());
    let refused = scene.create(second(6)).await;
    ensure!(refused.is_empty(), "creates failed: {refused:?}");
    scene.world.delete_policy("agent").await?;
    tokio::time::sleep(SECOND).await;
    fired += scene.proxy.calm();
    crate::support::within(crate::scene::RECOVERY, "only envoy is registered", || async {
        Ok(scene.world.registered().await?.iter().all(|name| !name.ends_with("scpol-agent")))
    })
    .await?;
    Ok(fired)
}
