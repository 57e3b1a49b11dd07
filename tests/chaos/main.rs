//! What goes wrong between the operator and API servers, on real servers, and whether all comes out as if nothing had been.
//!
//! `cargo test --test chaos` runs a selection with one seed, `make chaos` everything with three. `SCPOL_CHAOS_SEED=n` repeats what
//! went wrong with that seed.

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "shared between test programs")]
mod support;
#[path = "../apiserver/world.rs"]
#[allow(dead_code, reason = "shared between test programs")]
mod world;

mod cases;
mod certificates;
mod clock;
mod crowd;
mod dice;
mod fault;
mod killed;
mod limits;
mod proxy;
mod scene;
mod stale;
mod stories;
mod upgrade;

use cases::{CASES, Case};
use libtest_mimic::{Arguments, Failed, Trial};
use scene::Engine;
use std::process::ExitCode;

/// The seeds of `make chaos`.
pub(crate) const SEEDS: [u64; 3] = [1, 2, 3];

/// True if and only if everything is wanted, and not what a few minutes allow.
pub(crate) fn is_everything() -> bool {
    std::env::var_os("SCPOL_CHAOS_ALL").is_some()
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let cases = CASES.iter().filter(|case| case.is_quick || is_everything());
    let laws = fault::LAWS.iter().map(|(name, law)| {
        Trial::test(*name, || {
            law();
            Ok(())
        })
    });
    let trials = cases.flat_map(|case| {
        let runs = case.engines.iter().flat_map(|engine| seeds().into_iter().map(|seed| (*engine, seed)));
        runs.map(|(engine, seed)| trial(case, engine, seed)).collect::<Vec<_>>()
    });
    let conclusion = libtest_mimic::run(&arguments, laws.chain(trials).collect());
    // A misspelt case is no case that passes.
    if is_everything() && !arguments.list && conclusion.num_passed + conclusion.num_failed == 0 {
        eprintln!(
            "error: no case is named like that: CASES is a part of a name in tests/chaos/README.md, F07 or server_killed"
        );
        return ExitCode::from(2);
    }
    conclusion.exit_code()
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
    let name = format!("{} {:<36} {:<24} seed {seed}", case.id, case.name, engine.name());
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let played = runtime.block_on(cases::run(case, engine, seed));
        played.map_err(|error| Failed::from(format!("SCPOL_CHAOS_SEED={seed} repeats this.\n{error:#}")))
    })
}
