//! The limit of evictions in a minute.

use super::record::MINUTE;

/// The limit of evictions. What was begun stands in records, so that it holds for all leaders together.
#[derive(Clone, Debug)]
pub struct Evictions {
    per_minute: usize,
    /// When evictions were announced that did not happen, in seconds: each as long as its announcement counts.
    unused: Vec<i64>,
}

impl Evictions {
    /// So many in a minute.
    pub fn new(per_minute: usize) -> Self {
        Self { per_minute, unused: Vec::new() }
    }

    /// How many may be begun at the second `now`, if `begun` have been in the last minute.
    pub fn left(&mut self, begun: usize, now: i64) -> usize {
        self.unused.retain(|then| now.saturating_sub(*then) < MINUTE);
        self.per_minute.saturating_sub(begun.saturating_sub(self.unused.len()))
    }

    /// Records that an eviction that was announced at the second `then` has not happened.
    pub fn note_unused(&mut self, then: i64) {
        self.unused.push(then);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evictions_count_for_a_minute_and_those_that_did_not_happen_count_no_more() {
        let mut evictions = Evictions { per_minute: 3, unused: vec![130, 100] };
        assert_eq!(evictions.left(3, 140), 2);
        assert_eq!(evictions.left(3, 170), 1, "the first is over, as is its announcement");
        assert_eq!(evictions.left(9, 171), 0);
        assert_eq!(evictions.left(0, 300), 3);
        // One of two announcements of the second 400 is refused at 430, and another pod is evicted then.
        evictions.note_unused(400);
        assert_eq!(evictions.left(3, 459), 1);
        assert_eq!(evictions.left(3, 460), 0, "what was begun at 430 still counts, and the announcement no more");
    }
}
