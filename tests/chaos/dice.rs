//! Repeatable randomness: the fate of a request depends on the seed and on the request, never on concurrent work.

use std::fmt::Debug;

/// The randomness of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// True in `percent` of all cases, and always equal for one case.
    pub(crate) fn falls(self, percent: u64, case: impl Debug) -> bool {
        self.below(100, case) < percent
    }

    /// A number below `limit`, always equal for one case.
    pub(crate) fn below(self, limit: u64, case: impl Debug) -> u64 {
        // FNV-1a, because it never changes, unlike the standard library's hash. It seeds the generator, which mixes the
        // bits.
        let bytes = format!("{case:?}").into_bytes();
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325 ^ self.0, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        fastrand::Rng::with_seed(hash).u64(..limit.max(1))
    }
}
