//! Chaos tests: faults between the operator and real API servers must not change the result.
//!
//! `cargo test --test apiserver -- chaos` runs a selection with one seed, and `make chaos` runs everything with three.
//! `SCPOL_CHAOS_SEED=n` repeats the faults of that seed.

mod cases;
mod certificates;
mod clock;
mod crowd;
pub(crate) mod dice;
pub(crate) mod fault;
mod killed;
mod limits;
pub(crate) mod proxy;
mod rollout;
mod scene;
mod siege;
mod stale;
mod stories;
mod upgrade;

use crate::{rollout_story, runner};
use anyhow::anyhow;
use cases::{CASES, Case};
use futures::FutureExt;
use libtest_mimic::Trial;
use scene::Engine;

/// The seeds of `make chaos`.
pub(crate) const SEEDS: [u64; 3] = [1, 2, 3];

/// Whether everything runs, not only a quick selection.
pub(crate) fn is_everything() -> bool {
    std::env::var_os("SCPOL_CHAOS_ALL").is_some()
}

/// The laws of faults, every selected case, with every engine and seed, and the story of rollouts.
pub(crate) fn trials() -> Vec<Trial> {
    let laws = fault::LAWS.iter().map(|(name, law)| {
        Trial::test(format!("chaos::{name}"), || {
            law();
            Ok(())
        })
    });
    let cases = CASES.iter().filter(|case| case.is_quick || is_everything());
    let trials = cases.flat_map(|case| {
        let runs = case.engines.iter().flat_map(|engine| seeds().into_iter().map(|seed| (*engine, seed)));
        runs.map(|(engine, seed)| trial(case, engine, seed)).collect::<Vec<_>>()
    });
    laws.chain(trials).chain(rollout_story::trials()).collect()
}

fn seeds() -> Vec<u64> {
    let chosen = std::env::var("SCPOL_CHAOS_SEED").ok().and_then(|seed| seed.parse().ok());
    match chosen {
        Some(seed) => vec![seed],
        None if is_everything() => SEEDS.to_vec(),
        None => vec![SEEDS[0]],
    }
}

fn trial(case: &'static Case, engine: Engine, seed: u64) -> Trial {
    let name = format!("chaos::{} {:<36} {:<24} seed {seed}", case.id, case.name, engine.name());
    runner::trial(name, move || {
        let played = cases::run(case, engine, seed);
        let told = move |error| anyhow!("SCPOL_CHAOS_SEED={seed} repeats this.\n{error:#}");
        played.map(move |played| played.map_err(told)).boxed_local()
    })
}
