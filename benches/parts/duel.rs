//! A duel of an engine and its rival. They take turns, each on its own server, so that nothing must be registered or
//! frozen between two compared phases.
//!
//! Phases are short, because the load of the host changes every second, and two successive phases see the same load.
//! Both sides get new servers several times, because two servers differ by a percent or two for their whole life.

use super::figure::{Figure, at_least, at_most, told};
use super::load::{phase, processor_seconds};
use super::rounds;
use super::statistics::{Estimate, median};
use crate::support::Operator;
use anyhow::{Context, Result, ensure};
use controlplane::ControlPlane;
use std::time::Duration;

/// The numbers of concurrent clients, and the number of objects per phase, which takes some tenths of a second.
const CLIENTS: [(usize, usize); 3] = [(1, 100), (16, 240), (64, 480)];
/// The phases of each side and number of clients in a round. After a round everything is deleted.
const TURNS: usize = 6;
/// The counted rounds, over all servers.
const ROUNDS: usize = 15;
/// The number of new servers for each side.
const SERVERS: usize = 3;
/// A pause after the deletion, because the servers still have some work.
const REST: Duration = Duration::from_millis(500);

/// One side of a duel.
pub(super) trait Side {
    /// The server.
    fn cluster(&self) -> &ControlPlane;
    /// The operator of the server, if there is one.
    fn operator(&self) -> Option<&Operator>;
    /// Creates the object `number`. Fails if the result is not as expected for this side.
    async fn create(&self, number: usize) -> Result<()>;
    /// Deletes every object.
    async fn clear(&self) -> Result<()>;
}

/// The terms of a duel.
pub(super) struct Terms {
    pub(super) engine: &'static str,
    pub(super) rival: &'static str,
    /// The smallest share of the rival's rate, for any number of clients.
    pub(super) rate: f64,
    /// The largest ratio of the median latency with 1 client, if there is a bar.
    pub(super) p50: Option<f64>,
}

/// The results of a phase.
struct Measured {
    /// Objects per second.
    rate: f64,
    /// In milliseconds.
    p50: f64,
    /// The API server's processor time in seconds.
    server: f64,
    /// The operator's processor time in seconds.
    operator: f64,
}

/// Two successive phases: ours, and the rival's.
type Pair = (Measured, Measured);

/// Runs both sides in turn, for each number of clients and all rounds. `start` creates both sides, each with a new
/// server.
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
    // The first round is a warm-up and does not count.
    for round in 0..=rounds(ROUNDS)?.div_ceil(SERVERS) {
        let mut number = 0;
        for ((clients, objects), seen) in CLIENTS.into_iter().zip(seen.iter_mut()) {
            let mut pairs = Vec::new();
            for turn in 0..TURNS {
                let range = (number, objects);
                number += objects;
                // The order alternates, so that neither side is always second.
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

/// The API server's processor time so far, in seconds.
fn server_seconds(side: &impl Side) -> Result<f64> {
    processor_seconds(*side.cluster().pids().first().context("an API server")?)
}

/// The operator's processor time so far, in seconds; 0 without one.
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

/// Compares both sides. `seen` has the pairs of phases of each pair of servers. Each phase creates `objects` objects.
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
    // The clock of processor time is too coarse for one phase.
    let mean = |of: fn(&Pair) -> f64| pairs.iter().map(|pair| of(pair)).sum::<f64>() / (pairs.len() * objects) as f64;
    let server = mean(|(ours, _)| ours.server) / mean(|(_, rival)| rival.server);
    let operator = mean(|(ours, _)| ours.operator) * 1e6;
    vec![
        told(format!("{engine}: rate of {rival}, {at}"), median(rates), "1/s"),
        judged("rate", |measured| measured.rate, at_least, Some(terms.rate)),
        judged("p50", |measured| measured.p50, at_most, terms.p50.filter(|_| clients == 1)),
        told(title("processor time of the API server"), server, "ratio"),
        told(format!("{engine}: processor time of the operator for a create beside {rival}, {at}"), operator, "us"),
    ]
}
