//! Limits our concurrent requests to the API server. Pure: time is passed in.
//!
//! On the servers of this engine each create that waits for us holds one of the server's places for writes. If none is left,
//! the server answers 429 to our own PATCH, which would free one. More attempts make this worse. So all requests pause for as
//! long as the server says, and the next one is sent alone.

use crate::timing;
use std::time::{Duration, Instant};

/// The successes after which one more PATCH may run.
const SUCCESSES: u32 = 100;

/// The number of PATCHes that may run at the same time. A 429 halves it; a hundred successes add one. It is at least one, and
/// zero during a pause that the server demands.
pub(super) struct Limit {
    most: usize,
    now: usize,
    successes: u32,
    resumes: Option<Instant>,
    /// Since when every answer has been 429.
    refused: Option<Instant>,
    timing: &'static timing::Initializer,
}

/// What an answer shows about the server's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressure {
    Fine,
    /// The server has too many requests, and may say when to try again.
    TooMany(Option<Duration>),
    /// There was no connection, so other attempts would fail now, too.
    Away,
    Unknown,
}

impl Limit {
    /// At most `most` at the same time.
    pub(super) fn new(most: usize, timing: &'static timing::Initializer) -> Self {
        let most = most.max(1);
        Self { most, now: most, successes: 0, resumes: None, refused: None, timing }
    }

    /// The limit outside of a pause.
    pub(super) fn width(&self) -> usize {
        self.now
    }

    /// The limit at `now`.
    pub(super) fn at(&self, now: Instant) -> usize {
        if self.pause(now).is_some() { 0 } else { self.now }
    }

    /// The rest of the pause.
    pub(super) fn pause(&self, now: Instant) -> Option<Duration> {
        self.resumes.and_then(|resumes| resumes.checked_duration_since(now)).filter(|pause| !pause.is_zero())
    }

    /// The time for which the server has rejected all our requests.
    pub(super) fn refused_for(&self, now: Instant) -> Duration {
        self.refused.map(|since| now.saturating_duration_since(since)).unwrap_or_default()
    }

    /// Adjusts the limit to an answer.
    pub(super) fn learn(&mut self, pressure: Pressure, now: Instant) {
        match pressure {
            Pressure::TooMany(after) => {
                self.now = (self.now / 2).max(1);
                self.successes = 0;
                let (least, most) = (self.timing.pause, self.timing.longest_pause);
                let resumes = now + after.unwrap_or(least).clamp(least, most);
                self.resumes = self.resumes.max(Some(resumes));
                self.refused.get_or_insert(now);
            }
            Pressure::Away => self.resumes = self.resumes.max(Some(now + self.timing.pause)),
            Pressure::Fine => {
                self.refused = None;
                self.successes += 1;
                if self.successes >= SUCCESSES {
                    self.successes = 0;
                    self.now = (self.now + 1).min(self.most);
                }
            }
            Pressure::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;

    const TIMING: &timing::Initializer = &Timing::documented().initializer;

    #[test]
    fn concurrency_halves_on_each_429_and_grows_by_one_per_hundred() {
        let (mut limit, now) = (Limit::new(64, TIMING), Instant::now());
        for expected in [32, 16, 8, 4, 2, 1, 1] {
            limit.learn(Pressure::TooMany(None), now);
            assert_eq!(limit.width(), expected);
        }
        for _ in 0..200 {
            limit.learn(Pressure::Fine, now);
        }
        assert_eq!(limit.width(), 3);
        for _ in 0..100_000 {
            limit.learn(Pressure::Fine, now);
        }
        assert_eq!(limit.width(), 64);
    }

    #[test]
    fn whoever_finds_no_connection_waits_for_a_second_and_then_tries_as_much_as_before() {
        let (mut limit, now) = (Limit::new(64, TIMING), Instant::now());
        limit.learn(Pressure::Away, now);
        assert_eq!(
            (limit.at(now), limit.at(now + TIMING.pause), limit.refused_for(now + TIMING.pause)),
            (0, 64, Duration::ZERO)
        );
    }

    #[test]
    fn nothing_is_sent_before_the_server_wants_it_and_no_pause_outlasts_a_create() {
        let (mut limit, now) = (Limit::new(64, TIMING), Instant::now());
        assert_eq!(limit.at(now), 64);
        let seconds = Duration::from_secs;
        for (after, pause) in [(None, 1), (Some(seconds(0)), 1), (Some(seconds(3)), 3), (Some(seconds(2)), 3)] {
            limit.learn(Pressure::TooMany(after), now);
            assert_eq!((limit.at(now), limit.pause(now)), (0, Some(seconds(pause))), "{after:?}");
        }
        assert_eq!((limit.at(now + seconds(3)), limit.pause(now + seconds(3))), (4, None));
        limit.learn(Pressure::TooMany(Some(seconds(3600))), now);
        assert_eq!(limit.pause(now), Some(TIMING.longest_pause));
        assert_eq!(limit.refused_for(now + seconds(7)), seconds(7));
        limit.learn(Pressure::Fine, now);
        assert_eq!(limit.refused_for(now + seconds(7)), Duration::ZERO);
    }
}
