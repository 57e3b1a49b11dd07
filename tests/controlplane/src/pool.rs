//! The pool of control planes that tests use one after the other.
//!
//! A start takes seconds of both processors, and a reset of a used control plane some milliseconds. In a process that
//! has called [`share`], a dropped control plane waits here for the next test that needs a similar one. The exceptions
//! are control planes whose API server was stopped, restarted or frozen, or whose test has panicked.
//!
//! # Guarantees
//! A used control plane has exactly the etcd content of a new one, or the state of [`Builder::state`]. It has no files
//! and no audit events of its earlier user.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::ready::POLL;
use crate::server::Servers;
use crate::snapshot::Snapshot;
use crate::{Builder, Version};

/// Idle control planes, with their settings and the start of their idle time; the longest idle first.
static IDLE: Mutex<Vec<(Builder, Servers, Instant)>> = Mutex::new(Vec::new());
/// The settings of the control planes that tests use now.
static IN_USE: Mutex<Vec<Builder>> = Mutex::new(Vec::new());
/// Whether the pool is in use.
static IS_SHARED: AtomicBool = AtomicBool::new(false);
/// The most idle control planes. Each takes up to 500 MB.
const IDLE_LIMIT: usize = 14;
/// The most similar control planes at one time. A further request waits for one of them.
const ALIKE: usize = 4;
/// Limited, because a test may hold several.
const PATIENCE: Duration = Duration::from_secs(60);
/// The idle time after which a control plane sleeps. By then its API server has seen all changes of its last test:
/// `snapshot::POLLED`. An idle one takes 2 % of a processor, and half of all are idle.
const AWAKE: Duration = Duration::from_secs(4);
/// The interval at which a thread looks for those.
const LOOK: Duration = Duration::from_millis(500);

/// Shares the control planes of this process among tests from now on.
pub fn share() {
    if IS_SHARED.swap(true, Ordering::Relaxed) {
        return;
    }
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(LOOK);
            for (_, servers, since) in IDLE.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                if since.elapsed() > AWAKE {
                    servers.sleep();
                }
            }
        }
    });
}

pub(crate) fn is_shared() -> bool {
    IS_SHARED.load(Ordering::Relaxed)
}

/// An idle control plane with the settings `builder`, and the start of its idle time: the longest idle one, because its
/// reset must wait the least. None if a new one must be started. That one counts as in use until [`ended`].
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

/// Records that a test has ended with a control plane of the settings `builder`.
pub(crate) fn ended(builder: &Builder) {
    let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = in_use.iter().position(|other| other.is_like(builder)) {
        in_use.swap_remove(at);
    }
}

/// Returns a control plane to the pool.
pub(crate) fn give(builder: Builder, servers: Servers) {
    let oldest = {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push((builder, servers, Instant::now()));
        (idle.len() > IDLE_LIMIT).then(|| idle.remove(0))
    };
    drop(oldest); // which takes a moment
}

/// The objects that a server of this version creates for itself, computed by the first caller and reused by all others.
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
