//! The fault cases, one row each.

use crate::chaos::fault::{Does, Rule, Verb};
use crate::chaos::scene::{Calm, Engine, Scene, agent, envoy, first, second};
use crate::chaos::{certificates, clock, crowd, killed, limits, rollout, siege, stale, stories, upgrade};
use anyhow::{Result, anyhow, ensure};
use futures::FutureExt;
use futures::future::BoxFuture;
use oracle::Digest;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A fault, and the story during it.
pub(crate) struct Case {
    /// The id in the list of faults in the README.
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    pub(crate) engines: &'static [Engine],
    /// Whether the case belongs to `make test`.
    pub(crate) is_quick: bool,
    pub(crate) play: Play,
}

/// The story of a case.
pub(crate) enum Play {
    /// The ordinary story, under these rules.
    Rules(&'static [Rule]),
    /// A special story.
    Story(Story),
    /// The same, with controllers and nodes on which pods run.
    OnNodes(Story),
}

const ALL: &[Engine] = Engine::ALL;
const LEGACY: &[Engine] = &[Engine::Initializer];
const WEBHOOK: &[Engine] = &[Engine::Webhook];
const POLICIES: &[Engine] = &[Engine::MutatingAdmissionPolicy];
/// What the operator's own process does for the API server.
const SERVING: &[Engine] = &[Engine::Initializer, Engine::Webhook];
const NOT_LEGACY: &[Engine] = &[Engine::Webhook, Engine::MutatingAdmissionPolicy];
const NO_WEBHOOK: &[Engine] = &[Engine::Initializer, Engine::MutatingAdmissionPolicy];
const SECOND: Duration = Duration::from_secs(1);

/// A special story.
type Story = fn(&Scene) -> BoxFuture<'_, Result<()>>;

impl Case {
    /// The ordinary story, under `rules`.
    const fn under(id: &'static str, name: &'static str, engines: &'static [Engine], rules: &'static [Rule]) -> Self {
        Self { id, name, engines, is_quick: false, play: Play::Rules(rules) }
    }

    const fn told(id: &'static str, name: &'static str, engines: &'static [Engine], story: Story) -> Self {
        Self { id, name, engines, is_quick: false, play: Play::Story(story) }
    }

    const fn on_nodes(id: &'static str, name: &'static str, engines: &'static [Engine], story: Story) -> Self {
        Self { id, name, engines, is_quick: false, play: Play::OnNodes(story) }
    }

    /// The same case as a part of `make test`.
    const fn quick(mut self) -> Self {
        self.is_quick = true;
        self
    }
}

/// All cases.
pub(crate) const CASES: &[Case] = &[
    Case::told("F01", "killed_at_a_request", ALL, |scene| killed::at_each_request(scene).boxed()).quick(),
    Case::told("F01", "killed_at_a_request_of_changes", ALL, |scene| killed::at_each_request_of_changes(scene).boxed()),
    Case::told("F01", "killed_at_a_request_of_a_hand_over", ALL, |scene| {
        killed::at_each_request_of_a_hand_over(scene).boxed()
    }),
    Case::told("F01", "killed_at_a_request_of_a_rollout", ALL, |scene| rollout::killed_at_each_request(scene).boxed())
        .quick(),
    Case::on_nodes("F01", "killed_at_a_request_of_evictions", NOT_LEGACY, |scene| {
        rollout::of_evictions_killed_at_each_request(scene).boxed()
    }),
    Case::told("F02", "killed_twenty_times", ALL, |scene| killed::at_random(scene).boxed()),
    Case::under(
        "F03",
        "answer_lost_after_the_write",
        ALL,
        &[Rule::always(Does::DropAnswer).to(&WRITES, &[]).percent(60).times(2)],
    )
    .quick(),
    Case::under(
        "F03",
        "answer_is_a_timeout_after_the_write",
        ALL,
        &[Rule::always(Does::Mask(504)).to(&WRITES, &[]).percent(60).times(2)],
    ),
    Case::told("F04", "conflicts", LEGACY, |scene| stories::conflicts(scene).boxed()),
    Case::under(
        "F04",
        "the_servers_cache_lags",
        LEGACY,
        &[Rule::always(Does::Lag).to(&[Verb::Patch], &["deployments"]).percent(60).times(3)],
    )
    .quick(),
    Case::under(
        "F05",
        "too_many_requests_and_unavailable",
        ALL,
        &[
            Rule::always(Does::Answer(429, Some(1))).percent(30).times(2),
            Rule::always(Does::Answer(503, None)).percent(30).times(2),
            Rule::always(Does::Answer(500, None)).percent(10).times(1),
            Rule::always(Does::Answer(409, None)).to(&WRITES, &[]).percent(10).times(1),
        ],
    )
    .quick(),
    Case::told("F05", "doubtful_start", ALL, |scene| stories::doubtful_start(scene).boxed()).quick(),
    Case::told("F05", "doubtful_start_while_held", NOT_LEGACY, |scene| {
        stories::doubtful_start_while_held(scene).boxed()
    }),
    Case::told("F05", "trial_unanswered", NOT_LEGACY, |scene| stories::trial_unanswered(scene).boxed()),
    Case::told("F05", "stopped_while_refused", SERVING, |scene| stories::stopped_while_refused(scene).boxed()).quick(),
    Case::told("F05", "suspended_while_refused", POLICIES, |scene| stories::suspended_while_refused(scene).boxed())
        .quick(),
    Case::under("F06", "slow_server", ALL, &[Rule::always(Does::Delay(Duration::from_secs(4))).percent(50).times(3)]),
    Case::told("F07", "server_killed", ALL, |scene| stories::server_killed(scene).boxed()),
    Case::told("F08", "server_frozen", ALL, |scene| stories::server_frozen(scene).boxed()),
    Case::told("F08", "watches_frozen", ALL, |scene| stories::watches_frozen(scene).boxed()),
    Case::told("F08", "watches_dead", ALL, |scene| stories::watches_dead(scene).boxed()),
    Case::told("F09", "storage_frozen", ALL, |scene| stories::storage_frozen(scene).boxed()),
    Case::under(
        "F10",
        "version_too_old",
        ALL,
        &[
            Rule::always(Does::CutWatch(Duration::from_millis(300))).to(&WATCH, &[]),
            Rule::always(Does::Expire).to(&WATCH, &[]).percent(50),
        ],
    ),
    Case::under(
        "F11",
        "watch_cut_every_50_ms",
        ALL,
        &[Rule::always(Does::CutWatch(Duration::from_millis(50))).to(&WATCH, &[])],
    )
    .quick(),
    Case::told("F12", "events_lost", ALL, |scene| stories::events_lost(scene).boxed()).quick(),
    Case::told("F12", "last_event_lost", LEGACY, |scene| stories::last_event_lost(scene).boxed()),
    Case::told("F12", "ghosts_in_a_rollout", NO_WEBHOOK, |scene| rollout::ghosts(scene).boxed()),
    Case::under(
        "F13",
        "events_twice_and_in_disorder",
        ALL,
        &[Rule::always(Does::Repeat).to(&WATCH, &[]).percent(40), Rule::always(Does::Swap).to(&WATCH, &[]).percent(40)],
    ),
    Case::told("F14", "stale_list", LEGACY, |scene| stories::stale_list(scene).boxed()).quick(),
    Case::told("F14", "server_is_behind", NO_WEBHOOK, |scene| stale::stale_server(scene).boxed()),
    Case::told("F15", "sleeping_leader", ALL, |scene| stories::sleeping_leader(scene).boxed()),
    Case::told("F15", "frozen_at_a_request_of_a_rollout", ALL, |scene| rollout::frozen_at_each_request(scene).boxed())
        .quick(),
    Case::on_nodes("F15", "frozen_at_a_request_of_evictions", NOT_LEGACY, |scene| {
        rollout::of_evictions_frozen_at_each_request(scene).boxed()
    }),
    Case::told("F16", "clock_jumps", ALL, |scene| clock::jumps(scene).boxed()),
    Case::told("F16", "clocks_differ", ALL, |scene| clock::differ(scene).boxed()),
    Case::told("F16", "clock_jumps_while_held", ALL, |scene| clock::jumps_while_held(scene).boxed()),
    Case::under(
        "F17",
        "connections_cut",
        ALL,
        &[Rule::always(Does::CutBefore).percent(50).times(3), Rule::always(Does::DropAnswer).percent(20).times(2)],
    ),
    Case::told("F18", "operator_absent", ALL, |scene| stories::operator_absent(scene).boxed()),
    Case::told("F18", "scaled_to_zero_and_back", ALL, |scene| stories::scaled_to_zero(scene).boxed()),
    Case::told("F19", "policy_edited_meanwhile", ALL, |scene| stories::edited_meanwhile(scene).boxed()),
    Case::told("F20", "foreign_initializer_first", LEGACY, |scene| stories::foreign_first(scene).boxed()),
    Case::told("F21", "changed_while_waiting", LEGACY, |scene| stories::changed_while_waiting(scene).boxed()),
    Case::told("F22", "rights_revoked", ALL, |scene| stories::rights_revoked(scene).boxed()),
    Case::told("F22", "definition_deleted", ALL, |scene| stories::definition_deleted(scene).boxed()),
    Case::told("F22", "namespace_deleted", ALL, |scene| stories::namespace_deleted(scene).boxed()),
    Case::told("F23", "result_refused", ALL, |scene| stories::result_refused(scene).boxed()),
    Case::told("F24", "certificates_spoilt", WEBHOOK, |scene| certificates::spoilt(scene).boxed()),
    Case::told("F25", "flood", ALL, |scene| crowd::flood(scene).boxed()),
    Case::told("F26", "log_is_full", ALL, |scene| limits::log_is_full(scene).boxed()),
    Case::told("F26", "descriptors_run_out", SERVING, |scene| limits::descriptors_run_out(scene).boxed()),
    Case::told("F26", "stopped_amid_a_crowd", LEGACY, |scene| limits::stopped_amid_a_crowd(scene).boxed()),
    Case::told("F27", "ports_under_siege", WEBHOOK, |scene| siege::siege(scene).boxed()),
    Case::told("UP", "rolling_upgrade", ALL, |scene| upgrade::rolling_upgrade(scene).boxed()),
    Case::told("L3", "silence", ALL, |scene| stories::silence(scene).boxed()),
];

const WATCH: [Verb; 1] = [Verb::Watch];
const WRITES: [Verb; 4] = [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete];

/// Runs a case and judges it.
pub(crate) async fn run(case: &Case, engine: Engine, seed: u64) -> Result<()> {
    let nodes = if matches!(case.play, Play::OnNodes(_)) { 2 } else { 0 };
    let scene = Scene::new(engine, seed, nodes).await?;
    let played = match &case.play {
        Play::Rules(rules) => ordinary(&scene, rules).await,
        Play::Story(story) | Play::OnNodes(story) => story(&scene).await,
    };
    let Err(error) = played else { return Ok(()) };
    let kept = keep(&scene, &format!("{}-{}-{}-{seed}", case.id, case.name, engine.name()), &error)?;
    let log = tail(&scene.log());
    Err(anyhow!(
        "{error:#}\n--- everything is kept in {} ---\n--- the end of the operator's log ---\n{log}",
        kept.display()
    ))
}

/// Keeps the data to analyse a failed case: the error, the operators' logs, the audit log.
fn keep(scene: &Scene, name: &str, error: &anyhow::Error) -> Result<PathBuf> {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/chaos").join(name);
    std::fs::create_dir_all(&kept)?;
    std::fs::write(kept.join("error"), format!("{error:#}\n"))?;
    for file in std::fs::read_dir(scene.world.cluster.dir())? {
        let file = file?;
        let is_log = |name: &str| {
            name.starts_with("audit") || name.starts_with("kube-apiserver") || name.starts_with("operator-")
        };
        if file.file_name().to_str().is_some_and(is_log) {
            std::fs::copy(file.path(), kept.join(file.file_name()))?;
        }
    }
    Ok(kept)
}

/// The end of a log.
pub(crate) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// The result of an ordinary story without faults.
static CALM: Calm = Calm::new();

/// Creates policies and workloads and deletes a policy under `rules`. Afterwards all must be as without faults.
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

/// The ordinary story. Returns the number of faults.
async fn tell(scene: &Scene, rules: &[Rule]) -> Result<u64> {
    scene.policy("envoy", envoy()).await?;
    scene.in_force("envoy").await?;
    go_wrong(scene, rules);
    let creating = async {
        let mut refused = Vec::new();
        for batch in first(12).chunks(4) {
            refused.extend(scene.create(batch.to_vec()).await);
            tokio::time::sleep(SECOND / 10).await;
        }
        refused
    };
    let (refused, policy) = tokio::join!(creating, scene.policy("agent", agent()));
    policy?;
    ensure!(refused.is_empty(), "creates failed: {refused:?}");
    let mut fired = scene.proxy.calm();
    scene.in_force("agent").await?;
    go_wrong(scene, rules);
    let refused = scene.create(second(6)).await;
    ensure!(refused.is_empty(), "creates failed: {refused:?}");
    scene.world.delete_policy("agent").await?;
    // The writes that remove the policy are also affected.
    tokio::time::sleep(SECOND / 2).await;
    fired += scene.proxy.calm();
    crate::support::within(crate::chaos::scene::RECOVERY, "only envoy is registered", || async {
        Ok(!scene.world.owners().await?.contains("agent"))
    })
    .await?;
    Ok(fired)
}

fn go_wrong(scene: &Scene, rules: &[Rule]) {
    scene.proxy.set(rules.to_vec());
    // Rules about watches apply from the start of a watch, so all watches restart.
    if rules.iter().any(|rule| rule.verbs.contains(&Verb::Watch)) {
        scene.proxy.cut_watches();
    }
}
