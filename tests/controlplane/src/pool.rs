//! Control planes that tests use one after the other.
//!
//! Starting one takes seconds of both processors; giving a used one its former state takes some milliseconds. In a process that has
//! called [`share`], a control plane that is dropped waits here for the next test that asks for one like it, unless a test has stopped,
//! restarted or frozen its API server, or has panicked.
//!
//! # Guarantees
//! Who gets a used one finds in etcd what a fresh one has, or the state that [`Builder::state`] names, and nothing else; no file and no
//! audit event of who had it before.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::ready::POLL;
use crate::server::Servers;
use crate::snapshot::Snapshot;
use crate::{Builder, Version};

/// Control planes at rest, with what they were started with and since when; the longest at rest first.
static IDLE: Mutex<Vec<(Builder, Servers, Instant)>> = Mutex::new(Vec::new());
/// With what those were started that tests use now.
static IN_USE: Mutex<Vec<Builder>> = Mutex::new(Vec::new());
/// Whether anything comes here.
static IS_SHARED: AtomicBool = AtomicBool::new(false);
/// As many wait here; each takes up to 500 MB.
const IDLE_LIMIT: usize = 10;
/// As many that are alike are started; whoever asks for one more waits for one of them.
const ALIKE: usize = 4;
/// Not for ever, since a test may have several.
const PATIENCE: Duration = Duration::from_secs(60);

/// Has the control planes of this process used by one test after the other, from now on.
pub fn share() {
    IS_SHARED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_shared() -> bool {
    IS_SHARED.load(Ordering::Relaxed)
}

/// One that was started with `builder` and is at rest, and since when: the longest at rest, since what it has to forget takes time. None
/// where a new one is to be started; it counts as in use from now on, until [`ended`].
pub(crate) async fn take(builder: &Builder) -> Option<(Servers, Instant)> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        {
            let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
            let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
            let found = idle.iter().position(|(other, ..)| other.is_like(builder)).map(|at| idle.remove(at));
            let alike = in_use.iter().filter(|other| other.is_like(builder)).count();
            if found.is_some() || alike < ALIKE || Instant::now() >= deadline {
                in_use.push(builder.clone());
                return found.map(|(_, servers, since)| (servers, since));
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Notes that a test has ended with one that was started with `builder`.
pub(crate) fn ended(builder: &Builder) {
    let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = in_use.iter().position(|other| other.is_like(builder)) {
        in_use.swap_remove(at);
    }
}

/// Takes one back.
pub(crate) fn give(builder: Builder, servers: Servers) {
    let oldest = {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push((builder, servers, Instant::now()));
        (idle.len() > IDLE_LIMIT).then(|| idle.remove(0))
    };
    drop(oldest); // which takes a moment
}

/// What a server of this version has made for itself once it is ready: found out by the first, given to each that follows.
pub(crate) async fn fresh<F: Future<Output = Result<Snapshot>>>(
    version: Version,
    find_out: impl FnOnce() -> F,
) -> Result<Snapshot> {
    static FRESH: tokio::sync::Mutex<BTreeMap<Version, Snapshot>> = tokio::sync::Mutex::const_new(BTreeMap::new());
    let mut fresh = FRESH.lock().await;
    if let Some(known) = fresh.get(&version) {
        return Ok(known.clone());
    }
    let found = find_out().await?;
    fresh.insert(version, found.clone());
    Ok(found)
}
