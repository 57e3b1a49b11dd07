//! How long things took: one list for each process.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Seconds, by what took them.
static TAKEN: Mutex<Vec<(String, f64)>> = Mutex::new(Vec::new());

/// Notes what took from `begin` until now, and prints it.
pub fn took(what: impl Into<String>, begin: Instant) {
    let (what, seconds) = (what.into(), begin.elapsed().as_secs_f64());
    eprintln!("{seconds:8.1} s  {what}");
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner).push((what, seconds));
}

/// Everything noted so far, the slowest first.
pub fn taken() -> Vec<(String, f64)> {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    taken.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    taken
}
