//! An engine and its rival take turns, each on a server of its own that the other never sees: nothing has to be put in force, or
//! frozen, between two phases that are compared.
//!
//! The phases are short because the load of the host changes from second to second: two phases that follow each other see the same of
//! it. Both sides get fresh servers several times because two servers differ by a percent or two for as long as they run.

use super::figure::{Figure, at_least, at_most, told};
use super::load::{phase, processor_seconds};
use super::rounds;
use super::statistics::{Estimate, median};
use crate::support::Operator;
use anyhow::{Context, Result, ensure};
use controlplane::ControlPlane;
use std::time::Duration;

/// How many clients create at once, and how many objects they create in one phase: some tenths of a second.
const CLIENTS: [(usize, usize); 3] = [(1, 100), (16, 240), (64, 480)];
/// Phases of each side and number of clients in a round, after which everything is deleted.
const TURNS: usize = 6;
/// Rounds that count, of all servers together.
const ROUNDS: usize = 15;
/// How often both sides get a fresh server.
const SERVERS: usize = 3;
/// After everything has been deleted the servers have some work to do yet.
const REST: Duration = Duration::from_millis(500);

/// One of both.
pub(super) trait Side {
    /// Its server.
    fn cluster(&self) -> &ControlPlane;
    /// The operator beside its server, if there is one.
    fn operator(&self) -> Option<&Operator>;
    /// Creates the object of that number; an error if it does not come out as this side makes it.
    async fn create(&self, number: usize) -> Result<()>;
    /// Deletes every object.
    async fn clear(&self) -> Result<()>;
}

/// What is held against what.
pub(super) struct Terms {
    pub(super) engine: &'static str,
    pub(super) rival: &'static str,
    /// The least share of the rival's rate, at any number of clients; none without a bar.
    pub(super) rate: Option<f64>,
    /// How much longer a create may take with 1 client, where there is a limit.
    pub(super) p50: Option<f64>,
}

/// What one phase came to.
struct Measured {
    /// Objects in a second.
    rate: f64,
    /// Milliseconds.
    p50: f64,
    /// Seconds of processor time that the API server took.
    server: f64,
    /// Seconds of processor time that the operator beside it took.
    operator: f64,
}

/// Phases that followed each other: ours, and the rival's.
type Pair = (Measured, Measured);

/// Both in turn, with each number of clients, as often as there are rounds; `start` makes ours and the rival, each with a fresh
/// server, which ends with it.
pub(super) async fn duel<Ours: Side, Rival: Side>(
    figures: &mut Vec<Figure>,
    terms: &Terms,
    start: impl AsyncFn() -> Result<(Ours, Rival)>,
) -> Result<()> {
    let mut seen: [Vec<Vec<Pair>>; 3] = Default::default();
    for server in 1..=SERVERS {
        let (ours, rival) = start().await?;
        eprintln!("{}: servers {server} of {SERVERS}", terms.engine);
        for (seen, pairs) in seen.iter_mut().zip(fight(terms, &ours, &rival).await?) {
            seen.push(pairs);
        }
        if let Some(operator) = ours.operator() {
            ensure!(operator.get("/readyz").await?.0 == 200, "the operator is not ready any more");
        }
    }
    for ((clients, objects), seen) in CLIENTS.into_iter().zip(&seen) {
        figures.extend(compared(terms, clients, objects, seen));
    }
    Ok(())
}

/// The rounds of one pair of servers, by number of clients.
async fn fight(terms: &Terms, ours: &impl Side, rival: &impl Side) -> Result<[Vec<Pair>; 3]> {
    let mut seen: [Vec<Pair>; 3] = Default::default();
    // The first round warms everything up and does not count.
    for round in 0..=rounds(ROUNDS)?.div_ceil(SERVERS) {
        let mut number = 0;
        for ((clients, objects), seen) in CLIENTS.into_iter().zip(seen.iter_mut()) {
            let mut pairs = Vec::new();
            for turn in 0..TURNS {
                let range = (number, objects);
                number += objects;
                // Nobody is always the one who comes second.
                let pair = if (round + turn) % 2 == 0 {
                    let first = measured(ours, clients, range).await?;
                    (first, measured(rival, clients, range).await?)
                } else {
                    let first = measured(rival, clients, range).await?;
                    (measured(ours, clients, range).await?, first)
                };
                pairs.push(pair);
            }
            tell_round(terms, round, clients, &pairs);
            if round > 0 {
                seen.extend(pairs);
            }
        }
        ours.clear().await?;
        rival.clear().await?;
        tokio::time::sleep(REST).await;
    }
    Ok(seen)
}

async fn measured(side: &impl Side, clients: usize, (first, objects): (usize, usize)) -> Result<Measured> {
    let before = (server_seconds(side)?, operator_seconds(side)?);
    let phase = phase(clients, objects, |number| side.create(first + number)).await?;
    let (server, operator) = (server_seconds(side)? - before.0, operator_seconds(side)? - before.1);
    Ok(Measured { rate: phase.rate, p50: phase.p50, server, operator })
}

/// Seconds of processor time that the API server has taken so far.
fn server_seconds(side: &impl Side) -> Result<f64> {
    processor_seconds(*side.cluster().pids().first().context("an API server")?)
}

/// Seconds of processor time that the operator has taken so far; 0 without one.
fn operator_seconds(side: &impl Side) -> Result<f64> {
    side.operator().map_or(Ok(0.0), |operator| processor_seconds(operator.pid()))
}

fn ratios(pairs: &[Pair], of: fn(&Measured) -> f64) -> Vec<f64> {
    pairs.iter().map(|(ours, rival)| of(ours) / of(rival)).collect()
}

fn tell_round(terms: &Terms, round: usize, clients: usize, pairs: &[Pair]) {
    let rate = |of: fn(&Pair) -> f64| median(pairs.iter().map(of).collect());
    eprintln!(
        "{}, round {round:>2}, {clients:>2} clients: {:5.0}/s, {} {:5.0}/s: {:.3}",
        terms.engine,
        rate(|(ours, _)| ours.rate),
        terms.rival,
        rate(|(_, rival)| rival.rate),
        median(ratios(pairs, |measured| measured.rate))
    );
}

/// `seen` has the pairs of phases of each pair of servers; each phase creates so many `objects`.
fn compared(terms: &Terms, clients: usize, objects: usize, seen: &[Vec<Pair>]) -> Vec<Figure> {
    let Terms { engine, rival, .. } = terms;
    let at = format!("{clients} client{}", if clients == 1 { "" } else { "s" });
    let title = |what: &str| format!("{engine}: {what} against {rival}, {at}");
    let judged = |what, of, judge: fn(String, Estimate, &'static str, f64) -> Figure, bar: Option<f64>| {
        let ratio = Estimate::of(&seen.iter().map(|pairs| ratios(pairs, of)).collect::<Vec<_>>());
        match bar {
            Some(bar) => judge(title(what), ratio, "ratio", bar),
            None => told(title(what), ratio, "ratio"),
        }
    };
    let pairs: Vec<&Pair> = seen.iter().flatten().collect();
    let rates = pairs.iter().map(|(_, rival)| rival.rate).collect();
    // The clock of processor time ticks too slowly for one phase.
    let mean = |of: fn(&Pair) -> f64| pairs.iter().map(|pair| of(pair)).sum::<f64>() / (pairs.len() * objects) as f64;
    let server = mean(|(ours, _)| ours.server) / mean(|(_, rival)| rival.server);
    let operator = mean(|(ours, _)| ours.operator) * 1e6;
    vec![
        told(format!("{engine}: rate of {rival}, {at}"), median(rates), "1/s"),
        judged("rate", |measured| measured.rate, at_least, terms.rate),
        judged("p50", |measured| measured.p50, at_most, terms.p50.filter(|_| clients == 1)),
        told(title("processor time of the API server"), server, "ratio"),
        told(format!("{engine}: processor time of the operator for a create beside {rival}, {at}"), operator, "us"),
    ]
}
