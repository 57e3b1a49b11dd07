//! While many objects are settled at once, the thread rests for a moment before it looks for what has come, as network cards moderate
//! their interrupts. Each time that it wakes up for one answer or one event it finds its caches cold, and leaves them cold for the API
//! server that it has interrupted; what comes together costs both of them less. Creates that wait for us wait for each other anyway by
//! then.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// From so many objects on. Fewer do not keep an API server busy, and wait for us alone.
const CROWD: usize = 12;
/// So long. At 1 000 objects in a second eight come meanwhile.
const REST: Duration = Duration::from_millis(8);

/// How many objects this process settles now.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Notes how many objects are being settled.
pub(super) fn note(running: usize) {
    RUNNING.store(running, Ordering::Relaxed);
}

/// Rests, if many objects are being settled. To be called where the thread has nothing to do until something comes: it blocks.
pub fn rest() {
    if is_crowded() {
        std::thread::sleep(REST);
    }
}

fn is_crowded() -> bool {
    RUNNING.load(Ordering::Relaxed) >= CROWD
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn the_thread_rests_in_a_crowd_alone() {
        for (running, rests) in [(0, false), (CROWD - 1, false), (CROWD, true), (0, false)] {
            note(running);
            assert_eq!(is_crowded(), rests);
            let begin = Instant::now();
            rest();
            assert!(!rests || begin.elapsed() >= REST);
        }
    }
}
