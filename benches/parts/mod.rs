//! The parts of the benchmark, each with its rows.

mod admission;
mod duel;
mod figure;
mod force;
mod initializer;
mod language;
mod load;
mod objects;
mod reviews;
mod rivals;
mod rotation;
mod statistics;

pub(crate) use figure::Figure;

use anyhow::{Context, Result};
use futures::FutureExt;
use futures::future::LocalBoxFuture;

/// A part: it adds its rows.
type Part = for<'a> fn(&'a mut Vec<Figure>) -> LocalBoxFuture<'a, Result<()>>;

/// Every part, by name, in the order in which they run.
pub(crate) const PARTS: [(&str, Part); 11] = [
    ("language", |figures| async { language::language(figures) }.boxed_local()),
    ("throughput", |figures| initializer::throughput(figures).boxed_local()),
    ("burst", |figures| initializer::burst(figures).boxed_local()),
    ("economy", |figures| initializer::economy(figures).boxed_local()),
    ("size", |figures| initializer::size(figures).boxed_local()),
    ("review", |figures| async { reviews::handler(figures) }.boxed_local()),
    ("webhook", |figures| admission::webhook(figures).boxed_local()),
    ("policies", |figures| admission::policies(figures).boxed_local()),
    ("rotation", |figures| rotation::rotation(figures).boxed_local()),
    ("force", |figures| force::force(figures).boxed_local()),
    ("memory", |figures| reviews::memory(figures).boxed_local()),
];

/// How many rounds are measured: `usual`, or what `SCPOL_BENCH_ROUNDS` says, for a quick look.
fn rounds(usual: usize) -> Result<usize> {
    match std::env::var("SCPOL_BENCH_ROUNDS") {
        Ok(rounds) => rounds.parse().with_context(|| format!("SCPOL_BENCH_ROUNDS is `{rounds}`, not a number")),
        Err(_) => Ok(usual),
    }
}
