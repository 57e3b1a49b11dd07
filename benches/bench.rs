//! `make bench`: the figures that we claim, on real 1.13.5 and 1.36.3 servers, as ratios within one run.
//!
//! Each engine is held against what would be written by hand in its place, with the same client in the same minutes, and the same
//! objects left (but for the marker, which policies written by hand do not leave):
//!
//! - *Initializer*: the *floor* is a client that creates without waiting and completes the object itself, with the very PATCH
//!   that the operator would send (its tests, the sidecar, the marker), two requests one after the other. The *loop* is the
//!   same create, blocked until the operator has completed the object.
//! - *Webhook*: one that does nothing but answer with the very patch that the operator answers with, registered as ours is; in Go.
//!   Told beside it: the barest that can be.
//! - *MutatingAdmissionPolicy*: one written by hand, which adds the same container where it is not there yet. Told beside it: one
//!   that asks nothing.
//!
//! Both have a server of their own, and take turns.
//!
//! `cargo bench --bench bench -- language` runs one part; `parts::PARTS` has all of them. `SCPOL_BENCH_ROUNDS=3` has fewer
//! rounds, for a quick look.

mod parts;
#[path = "../tests/apiserver/rotation.rs"]
mod rotation;
#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the tests, which use more of it")]
mod support;
#[path = "../tests/apiserver/webhook_scene.rs"]
#[allow(dead_code, reason = "shared with the tests, which use more of it")]
mod webhook_scene;
#[path = "../tests/apiserver/world.rs"]
#[allow(dead_code, reason = "shared with the tests, which use more of it")]
mod world;

use anyhow::{Result, ensure};
use parts::{Figure, LONG_PARTS, PARTS};
use std::io::Write;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    if !std::env::args().any(|argument| argument == "--bench") {
        // `cargo test --benches` only wants to know that it builds.
        return Ok(());
    }
    let named: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    for name in &named {
        let known: Vec<_> = PARTS.iter().chain(&LONG_PARTS).map(|(known, _)| *known).collect();
        ensure!(known.contains(&name.as_str()), "there is no part `{name}`; there are {}", known.join(", "));
    }
    let mut figures = Vec::new();
    let is_named = |name: &str| named.iter().any(|other| other == name);
    let usual = PARTS.into_iter().filter(|(name, _)| named.is_empty() || is_named(name));
    let mut broken = Vec::new();
    for (name, run) in usual.chain(LONG_PARTS.into_iter().filter(|(name, _)| is_named(name))) {
        // The others took their time, too.
        if let Err(error) = run(&mut figures).await {
            eprintln!("{name}: {error:#}");
            broken.push(name);
        }
    }
    tell(&figures)?;
    ensure!(broken.is_empty(), "not every part came to its end: {}", broken.join(", "));
    ensure!(figures.iter().all(|figure| figure.holds), "not every figure holds");
    Ok(())
}

/// Prints a table, and writes `target/bench/results.json`.
fn tell(figures: &[Figure]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for Figure { name, value, unit, bar, holds } in figures {
        let verdict = if *holds { "holds" } else { "FAILS" };
        writeln!(out, "{name:<72} {value:>10.3} {unit:<6} {bar:<10} {verdict}")?;
    }
    let folder = support::file("target/bench");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("results.json"), serde_json::to_string_pretty(figures)?)?;
    Ok(())
}
