//! `make bench`: measures the published figures on real 1.13.5 and 1.36.3 servers. `benches/README.md` lists the parts
//! and their bars.
//!
//! `cargo bench --bench bench -- language` runs one part; `parts::PARTS` lists all. `SCPOL_BENCH_ROUNDS=3` runs fewer
//! rounds, for a quick look.

#![expect(clippy::too_many_lines, reason = "a test is a story, or a table of cases")]

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
use parts::{Figure, LONG_PARTS, PARTS, Verdict};
use std::io::Write;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    if !std::env::args().any(|argument| argument == "--bench") {
        // `cargo test --benches` only checks that it builds.
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
        // An error in one part must not discard the results of the others.
        if let Err(error) = run(&mut figures).await {
            eprintln!("{name}: {error:#}");
            broken.push(name);
        }
    }
    tell(&figures)?;
    ensure!(broken.is_empty(), "not every part came to its end: {}", broken.join(", "));
    ensure!(figures.iter().all(|figure| figure.verdict != Verdict::Fails), "a figure misses its bar");
    Ok(())
}

/// Prints a table, and writes `target/bench/results.json`.
fn tell(figures: &[Figure]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for Figure { name, value, unit, noise, bar, verdict, .. } in figures {
        let noise = noise.map_or_else(String::new, |noise| format!("±{noise:.3}"));
        writeln!(out, "{name:<72} {value:>10.3} {noise:<7} {unit:<6} {bar:<10} {}", verdict.text())?;
    }
    let folder = support::file("target/bench");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("results.json"), serde_json::to_string_pretty(figures)?)?;
    Ok(())
}
