//! Measured values and the bars that they must reach.

use super::statistics::Estimate;
use serde::Serialize;

/// One row.
#[derive(Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// See [`Estimate::noise`].
    pub(crate) noise: Option<f64>,
    /// For example `>= 0.9`; `-` without a bar.
    pub(crate) bar: String,
    /// Whether the value reaches its bar.
    pub(crate) holds: bool,
    pub(crate) verdict: Verdict,
}

/// The verdict of a run on a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Verdict {
    /// The value reaches the bar, or has none.
    #[serde(rename = "holds")]
    Holds,
    /// The value misses the bar, by no more than its noise.
    #[serde(rename = "not told")]
    NotTold,
    /// The value misses the bar.
    #[serde(rename = "FAILS")]
    Fails,
}

impl Verdict {
    /// The text in `results.json`.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::NotTold => "not told",
            Verdict::Fails => "FAILS",
        }
    }
}

/// A value with the lower bound `bar`.
pub(super) fn at_least(name: impl Into<String>, value: impl Into<Estimate>, unit: &'static str, bar: f64) -> Figure {
    let value = value.into();
    figure(name, value, unit, format!(">= {bar}"), bar - value.value)
}

/// A value with the upper bound `bar`.
pub(super) fn at_most(name: impl Into<String>, value: impl Into<Estimate>, unit: &'static str, bar: f64) -> Figure {
    let value = value.into();
    figure(name, value, unit, format!("<= {bar}"), value.value - bar)
}

/// A value without a bar.
pub(super) fn told(name: impl Into<String>, value: impl Into<Estimate>, unit: &'static str) -> Figure {
    figure(name, value.into(), unit, "-".into(), 0.0)
}

/// `miss` is the distance of the value from its bar; zero or less if it reaches the bar.
fn figure(name: impl Into<String>, estimate: Estimate, unit: &'static str, bar: String, miss: f64) -> Figure {
    let Estimate { value, noise } = estimate;
    let holds = miss <= 0.0;
    let verdict = match noise {
        _ if holds => Verdict::Holds,
        Some(noise) if miss <= noise => Verdict::NotTold,
        _ => Verdict::Fails,
    };
    Figure { name: name.into(), value, unit, noise, bar, holds, verdict }
}
