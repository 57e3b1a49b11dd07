//! All stored workloads of the targeted kinds, whichever engine acts on them; [`crate::workload`] is one of them.
//!
//! [`watch`] sees each one, new or changed: what waits for the Initializer engine goes into its queue, everything else is
//! counted in the [`census`], and what failed stands in the [`ledger`]. [`report`] tells users what became of one. Status and
//! metrics are made of these.

pub mod census;
pub mod ledger;
pub mod report;
pub mod watch;
