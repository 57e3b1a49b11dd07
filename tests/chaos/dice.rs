//! Chance that can be repeated: what happens to a request depends on the seed and on which request it is, never on what else is
//! under way.

use std::hash::{DefaultHasher, Hash, Hasher};

/// The chance of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// True in `percent` of all cases; always the same for the same case.
    pub(crate) fn falls(self, percent: u64, case: impl Hash) -> bool {
        self.below(100, case) < percent
    }

    /// A number below `limit`; always the same for the same case.
    pub(crate) fn below(self, limit: u64, case: impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.0, case).hash(&mut hasher);
        hasher.finish() % limit.max(1)
    }
}
