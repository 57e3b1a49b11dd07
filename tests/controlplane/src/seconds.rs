//! A list of durations, one per process.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Durations in seconds, with their subject.
static TAKEN: Mutex<Vec<(String, f64)>> = Mutex::new(Vec::new());

/// Records and prints the duration from `begin` until now.
pub fn took(what: impl Into<String>, begin: Instant) {
    let (what, seconds) = (what.into(), begin.elapsed().as_secs_f64());
    eprintln!("{seconds:8.1} s  {what}");
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner).push((what, seconds));
}

/// All recorded durations, the longest first.
pub fn taken() -> Vec<(String, f64)> {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    taken.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    taken
}
