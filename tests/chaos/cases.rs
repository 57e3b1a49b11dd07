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
    Story(fn(&Scene) -> BoxFuture<'_, Result<()>>),
    /// The same, with controllers and nodes on which pods run.
    OnNodes(fn(&Scene) -> BoxFuture<'_, Result<()>>),
}

const LEGACY: &[Engine] = &[Engine::Initializer];
const SECOND: Duration = Duration::from_secs(1);

/// All cases.
pub(crate) const CASES: &[Case] = &[
    Case {
        id: "F01",
        name: "killed_at_a_request",
        engines: Engine::ALL,
        is_quick: true,
        play: Play::Story(|scene| killed::at_each_request(scene).boxed()),
    },
    Case {
        id: "F01",
        name: "killed_at_a_request_of_changes",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| killed::at_each_request_of_changes(scene).boxed()),
    },
    Case {
        id: "F01",
        name: "killed_at_a_request_of_a_hand_over",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| killed::at_each_request_of_a_hand_over(scene).boxed()),
    },
    Case {
        id: "F01",
        name: "killed_at_a_request_of_a_rollout",
        engines: Engine::ALL,
        is_quick: true,
        play: Play::Story(|scene| rollout::killed_at_each_request(scene).boxed()),
    },
    Case {
        id: "F01",
        name: "killed_at_a_request_of_evictions",
        engines: &[Engine::Webhook, Engine::MutatingAdmissionPolicy],
        is_quick: false,
        play: Play::OnNodes(|scene| rollout::of_evictions_killed_at_each_request(scene).boxed()),
    },
    Case {
        id: "F02",
        name: "killed_twenty_times",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| killed::at_random(scene).boxed()),
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
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Rules(&[Rule::always(Does::Mask(504)).to(&WRITES, &[]).percent(60).times(2)]),
    },
    Case {
        id: "F04",
        name: "conflicts",
        engines: LEGACY,
        is_quick: false,
        play: Play::Story(|scene| stories::conflicts(scene).boxed()),
    },
    Case {
        id: "F04",
        name: "the_servers_cache_lags",
        engines: LEGACY,
        is_quick: true,
        play: Play::Rules(&[Rule::always(Does::Lag).to(&[Verb::Patch], &["deployments"]).percent(60).times(3)]),
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
            Rule::always(Does::Answer(409, None)).to(&WRITES, &[]).percent(10).times(1),
        ]),
    },
    Case {
        id: "F05",
        name: "doubtful_start",
        engines: Engine::ALL,
        is_quick: true,
        play: Play::Story(|scene| stories::doubtful_start(scene).boxed()),
    },
    Case {
        id: "F05",
        name: "doubtful_start_while_held",
        engines: &[Engine::Webhook, Engine::MutatingAdmissionPolicy],
        is_quick: false,
        play: Play::Story(|scene| stories::doubtful_start_while_held(scene).boxed()),
    },
    Case {
        id: "F05",
        name: "trial_unanswered",
        engines: &[Engine::Webhook, Engine::MutatingAdmissionPolicy],
        is_quick: false,
        play: Play::Story(|scene| stories::trial_unanswered(scene).boxed()),
    },
    Case {
        id: "F05",
        name: "stopped_while_refused",
        engines: &[Engine::Initializer, Engine::Webhook],
        is_quick: true,
        play: Play::Story(|scene| stories::stopped_while_refused(scene).boxed()),
    },
    Case {
        id: "F05",
        name: "suspended_while_refused",
        engines: &[Engine::MutatingAdmissionPolicy],
        is_quick: true,
        play: Play::Story(|scene| stories::suspended_while_refused(scene).boxed()),
    },
    Case {
        id: "F06",
        name: "slow_server",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Rules(&[Rule::always(Does::Delay(Duration::from_secs(4))).percent(50).times(3)]),
    },
    Case {
        id: "F07",
        name: "server_killed",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| stories::server_killed(scene).boxed()),
    },
    Case {
        id: "F08",
        name: "server_frozen",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| stories::server_frozen(scene).boxed()),
    },
    Case {
        id: "F08",
        name: "watches_frozen",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| stories::watches_frozen(scene).boxed()),
    },
    Case {
        id: "F08",
        name: "watches_dead",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| stories::watches_dead(scene).boxed()),
    },
    Case {
        id: "F09",
        name: "storage_frozen",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| stories::storage_frozen(scene).boxed()),
    },
    Case {
        id: "F10",
        name: "version_too_old",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Rules(&[
            Rule::always(Does::CutWatch(Duration::from_millis(300))).to(&WATCH, &[]),
            Rule::always(Does::Expire).to(&WATCH, &[]).percent(50),
        ]),
    },
    Case {
        id: "F11",
        name: "watch_cut_every_50_ms",
        engines: Engine::ALL,
        is_quick: true,
        play: Play::Rules(&[Rule::always(Does::CutWatch(Duration::from_millis(50))).to(&WATCH, &[])]),
    },
    Case {
        id: "F12",
        name: "events_lost",
        engines: Engine::ALL,
        is_quick: true,
        play: Play::Story(|scene| stories::events_lost(scene).boxed()),
    },
    Case {
        id: "F12",
        name: "last_event_lost",
        engines: LEGACY,
        is_quick: false,
        play: Play::Story(|scene| stories::last_event_lost(scene).boxed()),
    },
    Case {
        id: "F12",
        name: "ghosts_in_a_rollout",
        engines: &[Engine::Initializer, Engine::MutatingAdmissionPolicy],
        is_quick: false,
        play: Play::Story(|scene| rollout::ghosts(scene).boxed()),
    },
    Case {
        id: "F13",
        name: "events_twice_and_in_disorder",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Rules(&[
            Rule::always(Does::Repeat).to(&WATCH, &[]).percent(40),
            Rule::always(Does::Swap).to(&WATCH, &[]).percent(40),
        ]),
    },
    Case {
        id: "F14",
        name: "stale_list",
        engines: LEGACY,
        is_quick: true,
        play: Play::Story(|scene| stories::stale_list(scene).boxed()),
    },
    Case {
        id: "F14",
        name: "server_is_behind",
        engines: &[Engine::Initializer, Engine::MutatingAdmissionPolicy],
        is_quick: false,
        play: Play::Story(|scene| stale::stale_server(scene).boxed()),
    },
    Case {
        id: "F15",
        name: "sleeping_leader",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| stories::sleeping_leader(scene).boxed()),
    },
    Case {
        id: "F15",
        name: "frozen_at_a_request_of_a_rollout",
        engines: Engine::ALL,
        is_quick: true,
        play: Play::Story(|scene| rollout::frozen_at_each_request(scene).boxed()),
    },
    Case {
        id: "F15",
        name: "frozen_at_a_request_of_evictions",
        engines: &[Engine::Webhook, Engine::MutatingAdmissionPolicy],
        is_quick: false,
        play: Play::OnNodes(|scene| rollout::of_evictions_frozen_at_each_request(scene).boxed()),
    },
    Case {
        id: "F16",
        name: "clock_jumps",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| clock::jumps(scene).boxed()),
    },
    Case {
        id: "F16",
        name: "clocks_differ",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| clock::differ(scene).boxed()),
    },
    Case {
        id: "F16",
        name: "clock_jumps_while_held",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| clock::jumps_while_held(scene).boxed()),
    },
    Case {
        id: "F17",
        name: "connections_cut",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Rules(&[
            Rule::always(Does::CutBefore).percent(50).times(3),
            Rule::always(Does::DropAnswer).percent(20).times(2),
        ]),
    },
    Case {
        id: "F18",
        name: "operator_absent",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| stories::operator_absent(scene).boxed()),
    },
    Case {
        id: "F18",
        name: "scaled_to_zero_and_back",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| stories::scaled_to_zero(scene).boxed()),
    },
    Case {
        id: "F19",
        name: "policy_edited_meanwhile",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| stories::edited_meanwhile(scene).boxed()),
    },
    Case {
        id: "F20",
        name: "foreign_initializer_first",
        engines: LEGACY,
        is_quick: false,
        play: Play::Story(|scene| stories::foreign_first(scene).boxed()),
    },
    Case {
        id: "F21",
        name: "changed_while_waiting",
        engines: LEGACY,
        is_quick: false,
        play: Play::Story(|scene| stories::changed_while_waiting(scene).boxed()),
    },
    Case {
        id: "F22",
        name: "rights_revoked",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| stories::rights_revoked(scene).boxed()),
    },
    Case {
        id: "F22",
        name: "definition_deleted",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| stories::definition_deleted(scene).boxed()),
    },
    Case {
        id: "F22",
        name: "namespace_deleted",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| stories::namespace_deleted(scene).boxed()),
    },
    Case {
        id: "F23",
        name: "result_refused",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| stories::result_refused(scene).boxed()),
    },
    Case {
        id: "F24",
        name: "certificates_spoilt",
        engines: &[Engine::Webhook],
        is_quick: false,
        play: Play::Story(|scene| certificates::spoilt(scene).boxed()),
    },
    Case {
        id: "F25",
        name: "flood",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| crowd::flood(scene).boxed()),
    },
    Case {
        id: "F26",
        name: "log_is_full",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| limits::log_is_full(scene).boxed()),
    },
    Case {
        id: "F26",
        name: "descriptors_run_out",
        engines: &[Engine::Initializer, Engine::Webhook],
        is_quick: false,
        play: Play::Story(|scene| limits::descriptors_run_out(scene).boxed()),
    },
    Case {
        id: "F26",
        name: "stopped_amid_a_crowd",
        engines: LEGACY,
        is_quick: false,
        play: Play::Story(|scene| limits::stopped_amid_a_crowd(scene).boxed()),
    },
    Case {
        id: "F27",
        name: "ports_under_siege",
        engines: &[Engine::Webhook],
        is_quick: false,
        play: Play::Story(|scene| siege::siege(scene).boxed()),
    },
    Case {
        id: "UP",
        name: "rolling_upgrade",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| upgrade::rolling_upgrade(scene).boxed()),
    },
    Case {
        id: "L3",
        name: "silence",
        engines: Engine::ALL,
        is_quick: false,
        play: Play::Story(|scene| stories::silence(scene).boxed()),
    },
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
