//! An engine and its rival take turns, each on a server of its own that the other never sees: nothing has to be put in force, or
//! frozen, between two phases that are compared, and what the host does besides meets both.

use super::figure::{Figure, at_least, at_most, told};
use super::load::{Phase, phase, processor_seconds};
use super::rounds;
use super::statistics::median;
use anyhow::{Context, Result};
use controlplane::ControlPlane;

/// Objects per phase, and rounds of phases: the median round counts.
const PER_PHASE: usize = 600;
const ROUNDS: usize = 21;
/// How many clients create at once.
const CLIENTS: [usize; 3] = [1, 16, 64];

/// One of both.
pub(super) trait Side {
    /// Its server.
    fn cluster(&self) -> &ControlPlane;
    /// Creates the object of that number; an error if it does not come out as this side makes it.
    async fn create(&self, number: usize) -> Result<()>;
    /// Deletes every object.
    async fn clear(&self) -> Result<()>;
}

/// What is held against what.
pub(super) struct Terms {
    pub(super) engine: &'static str,
    pub(super) rival: &'static str,
    /// What of the rival's rate is to be reached with 1, 16, 64 clients.
    pub(super) rates: [f64; 3],
    /// How much longer a create may take with 1 client, where there is a limit.
    pub(super) p50: Option<f64>,
}

/// What one phase came to.
struct Measured {
    phase: Phase,
    /// Milliseconds of processor time that the API server took for a create: they hardly depend on what else runs.
    processor: f64,
}

/// Both in turn, with each number of clients, as often as there are rounds.
pub(super) async fn duel(figures: &mut Vec<Figure>, terms: &Terms, ours: &impl Side, rival: &impl Side) -> Result<()> {
    let mut seen: [Vec<(Measured, Measured)>; 3] = Default::default();
    // The first round warms everything up and does not count.
    for round in 0..=rounds(ROUNDS)? {
        for (clients, seen) in CLIENTS.into_iter().zip(&mut seen) {
            // Nobody is always the one who comes second.
            let pair = if round % 2 == 0 {
                let first = measured(ours, clients).await?;
                (first, measured(rival, clients).await?)
            } else {
                let first = measured(rival, clients).await?;
                (measured(ours, clients).await?, first)
            };
            tell_round(terms, round, clients, &pair);
            if round > 0 {
                seen.push(pair);
            }
        }
    }
    for ((clients, bar), pairs) in CLIENTS.into_iter().zip(terms.rates).zip(&seen) {
        let p50 = terms.p50.filter(|_| clients == 1);
        figures.extend(compared(terms, clients, bar, p50, pairs));
    }
    Ok(())
}

async fn measured(side: &impl Side, clients: usize) -> Result<Measured> {
    let server = *side.cluster().pids().first().context("an API server")?;
    let before = processor_seconds(server)?;
    let phase = phase(clients, PER_PHASE, |number| side.create(number)).await?;
    let processor = (processor_seconds(server)? - before) * 1000.0 / PER_PHASE as f64;
    side.clear().await?;
    Ok(Measured { phase, processor })
}

fn tell_round(terms: &Terms, round: usize, clients: usize, (ours, rival): &(Measured, Measured)) {
    let text = |Measured { phase: Phase { rate, p50, p99, .. }, processor }: &Measured| {
        format!("{rate:5.0}/s p50 {p50:6.2} ms p99 {p99:6.2} ms server {processor:4.2} ms")
    };
    let ratio = ours.phase.rate / rival.phase.rate;
    eprintln!(
        "{}, round {round:>2}, {clients:>2} clients: {}   {}: {}   rate {ratio:.3}",
        terms.engine,
        text(ours),
        terms.rival,
        text(rival)
    );
}

fn compared(
    terms: &Terms,
    clients: usize,
    bar: f64,
    p50_bar: Option<f64>,
    pairs: &[(Measured, Measured)],
) -> Vec<Figure> {
    let Terms { engine, rival, .. } = terms;
    let at = format!("{clients} client{}", if clients == 1 { "" } else { "s" });
    let title = |what: &str| format!("{engine}: {what} against {rival}, {at}");
    let ratio = |of: fn(&Measured) -> f64| median(pairs.iter().map(|(ours, rival)| of(ours) / of(rival)).collect());
    let p50 = ratio(|measured| measured.phase.p50);
    vec![
        told(
            format!("{engine}: rate of {rival}, {at}"),
            median(pairs.iter().map(|(_, rival)| rival.phase.rate).collect()),
            "1/s",
        ),
        at_least(title("rate"), ratio(|measured| measured.phase.rate), "ratio", bar),
        match p50_bar {
            Some(bar) => at_most(title("p50"), p50, "ratio", bar),
            None => told(title("p50"), p50, "ratio"),
        },
        told(title("p99"), ratio(|measured| measured.phase.p99), "ratio"),
        told(title("processor time of the API server"), ratio(|measured| measured.processor), "ratio"),
    ]
}
