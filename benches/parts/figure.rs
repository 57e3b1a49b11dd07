//! What is measured, and what it is held against.

use serde::Serialize;

/// One row.
#[derive(Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) bar: String,
    pub(crate) holds: bool,
}

/// A value that must not be lower than `bar`.
pub(super) fn at_least(name: impl Into<String>, value: f64, unit: &'static str, bar: f64) -> Figure {
    Figure { name: name.into(), value, unit, bar: format!(">= {bar}"), holds: value >= bar }
}

/// A value that must not be higher than `bar`.
pub(super) fn at_most(name: impl Into<String>, value: f64, unit: &'static str, bar: f64) -> Figure {
    Figure { name: name.into(), value, unit, bar: format!("<= {bar}"), holds: value <= bar }
}

/// A value that is only told.
pub(super) fn told(name: impl Into<String>, value: f64, unit: &'static str) -> Figure {
    Figure { name: name.into(), value, unit, bar: "-".into(), holds: true }
}
