//! A model of small clusters, in which a model checker tries the rollouts of the core in every order.

#![expect(clippy::too_many_lines, reason = "a test is a story, or a table of cases")]

pub mod cluster;
pub mod leader;
pub mod model;
pub mod scenes;

#[cfg(test)]
mod tests;
