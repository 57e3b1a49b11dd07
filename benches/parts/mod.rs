//! The parts of the benchmark, each with its rows.

mod admission;
mod duel;
mod estate;
mod figure;
mod force;
mod initializer;
mod language;
mod load;
mod objects;
mod pace;
mod reviews;
mod rivals;
mod rollout;
mod rotation;
mod scale;
mod soak;
mod statistics;

pub(crate) use figure::{Figure, Verdict};

use anyhow::{Context, Result};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use std::error::Error;
use std::str::FromStr;

/// A part: it adds its rows.
type Part = for<'a> fn(&'a mut Vec<Figure>) -> LocalBoxFuture<'a, Result<()>>;

/// All parts of `make bench` by name, in their order.
pub(crate) const PARTS: [(&str, Part); 16] = [
    ("language", |figures| async { language::language(figures) }.boxed_local()),
    ("throughput", |figures| initializer::throughput(figures).boxed_local()),
    ("burst", |figures| initializer::burst(figures).boxed_local()),
    ("economy", |figures| initializer::economy(figures).boxed_local()),
    ("size", |figures| initializer::size(figures).boxed_local()),
    ("review", |figures| async { reviews::handler(figures) }.boxed_local()),
    ("webhook", |figures| admission::webhook(figures).boxed_local()),
    ("parameters", |figures| admission::parameters(figures).boxed_local()),
    ("policies", |figures| admission::policies(figures).boxed_local()),
    ("rotation", |figures| rotation::rotation(figures).boxed_local()),
    ("force", |figures| force::force(figures).boxed_local()),
    ("memory", |figures| reviews::memory(figures).boxed_local()),
    ("scale", |figures| scale::scale(figures).boxed_local()),
    ("flood", |figures| scale::flood(figures).boxed_local()),
    ("rollout", |figures| rollout::rollout(figures).boxed_local()),
    ("pace", |figures| pace::pace(figures).boxed_local()),
];

/// Slow parts, which run only by name.
pub(crate) const LONG_PARTS: [(&str, Part); 1] = [("soak", |figures| soak::soak(figures).boxed_local())];

/// The number of measured rounds: `usual`, or `SCPOL_BENCH_ROUNDS` for a quick look.
fn rounds(usual: usize) -> Result<usize> {
    number("SCPOL_BENCH_ROUNDS", usual)
}

/// The number in an environment variable, or `usual`.
fn number<N: FromStr<Err: Error + Send + Sync + 'static>>(variable: &str, usual: N) -> Result<N> {
    match std::env::var(variable) {
        Ok(value) => value.parse().with_context(|| format!("{variable} is `{value}`, not a number")),
        Err(_) => Ok(usual),
    }
}
