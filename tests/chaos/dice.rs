//! Chance that can be repeated: what happens to a request depends on the seed and on which request it is, never on what else is
//! under way.

use std::fmt::Debug;

/// The chance of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// True in `percent` of all cases; always the same for the same case.
    pub(crate) fn falls(self, percent: u64, case: impl Debug) -> bool {
        self.below(100, case) < percent
    }

    /// A number below `limit`; always the same for the same case.
    pub(crate) fn below(self, limit: u64, case: impl Debug) -> u64 {
        // FNV-1a: the same for ever, which the standard library's hash does not promise. It begins the dice, whose numbers are mixed.
        let bytes = format!("{case:?}").into_bytes();
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325 ^ self.0, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        fastrand::Rng::with_seed(hash).u64(..limit.max(1))
    }
}
