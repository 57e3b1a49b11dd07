//! What a revision says about its own rollout: what must survive a leader. Pure.
//!
//! It is stored in annotations of the ControllerRevision. Every replica decides by `scpol.dev/rollout` (the steps) and
//! `scpol.dev/complete`; `scpol.dev/ahead` and `scpol.dev/progress` are for leaders alone.

use super::steps::Reached;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The annotation with how far a rollout in steps is.
const REACHED: &str = "scpol.dev/rollout";
/// The annotation with the time at which the rollout of the revision was complete.
const COMPLETE: &str = "scpol.dev/complete";
/// The annotation with the times of commands that were ahead of the leader's clock.
const AHEAD: &str = "scpol.dev/ahead";
/// The annotation with all else: see [`Course`].
pub(super) const PROGRESS: &str = "scpol.dev/progress";
/// The most entries of one list that count. A leader writes at most [`super::pace::BATCH`]. Users with the right to write
/// ControllerRevisions can write more.
pub(super) const MOST: usize = 256;

/// What a revision says about its own rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// How far its rollout is, if it goes in steps, or back.
    pub reached: Option<Reached>,
    /// When its rollout was complete.
    pub complete: Option<Timestamp>,
    pub ahead: Ahead,
    pub progress: Course,
}

/// How a rollout goes on.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase", default)]
pub struct Course {
    #[serde(flatten)]
    pub times: Times,
    /// The generation of the policy that has begun it.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// Whether no earlier revision has this template, while another one was complete. Then whatever carries it has it from this rollout. The
    /// rollout may have begun again, because somebody deleted the revision in the middle.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_new: bool,
    /// Whether the rollout of another content is about to begin. Then no leader announces anything here any more: one that has slept finds
    /// another version than it has read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_replaced: bool,
    /// Why it is halted. Only a person ends a halt, by `scpol rollout resume` or an edit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub halted: Option<Halted>,
    #[serde(flatten)]
    pub followed: Followed,
    /// What a leader may be writing, by `resource/namespace/name`. Written before the workloads, so that another leader counts
    /// them as unavailable until it knows what became of them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub writes: BTreeMap<String, Write>,
    /// The evictions of the last minute: how many were begun in which second.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub evictions: BTreeMap<i64, u32>,
    /// The last pod of each owner that a leader was to evict, by the UID of the owner, until that has all its pods again.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub evicted: BTreeMap<String, Evicted>,
    /// What was unavailable before it was updated: workloads as in `writes`, and the UIDs of the owners of evicted pods.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub broken: BTreeSet<String>,
    /// What has failed since the rollout began, or since it was resumed, as in `writes`. Nothing more is updated in the namespaces of
    /// these.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub failed: BTreeSet<String>,
}

/// When a rollout began and ended.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[serde(default)]
pub struct Times {
    /// When the rollout began: the last time at which the policy got this content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begun: Option<Timestamp>,
    /// Since when workloads may be unavailable on our account: the begin of this rollout, or of the first of those that have each replaced
    /// the one before. None while all that we have written is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disturbed: Option<Timestamp>,
    /// When all that it could bring up to date was up to date and available. It cannot fail after that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
}

/// The commands that a rollout has followed.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase", default)]
pub struct Followed {
    /// The last `scpol rollout resume`, as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Timestamp>,
    /// When it followed that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_at: Option<Timestamp>,
    /// The last `scpol rollout restart` that all workloads have followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarted: Option<Timestamp>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// A halt.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Halted {
    pub at: Timestamp,
    /// The workload that failed, and why.
    pub message: String,
}

impl Halted {
    /// That of a rollout about which nothing can be read.
    fn unreadable() -> Self {
        let message = format!(
            "the annotation `{PROGRESS}` of its revision cannot be read, so it is unknown whether the rollout has failed"
        );
        Self { at: Timestamp::UNIX_EPOCH, message }
    }
}

/// A write that a leader has announced.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    /// The UID of the workload.
    pub uid: String,
    /// When it was announced.
    pub at: Timestamp,
    /// The leader.
    pub by: String,
    /// Whether it may be an eviction.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evict: bool,
}

/// A pod that a leader was to evict.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Evicted {
    /// As in [`Course::writes`].
    pub pod: String,
    pub uid: String,
    /// When that was announced.
    pub at: Timestamp,
    /// When the newest pod of the owner was created then, by the clock of the server. None if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<Timestamp>,
}

/// The seconds for which an eviction counts.
pub const MINUTE: i64 = 60;

impl Course {
    /// How many evictions were begun after the second `since`. A second ahead of our clock counts, too.
    pub fn evictions_since(&self, since: i64) -> usize {
        let recent = self.evictions.iter().filter(|(second, _)| **second > since);
        recent.fold(0, |sum, (_, count)| sum.saturating_add(*count as usize))
    }

    /// The namespaces of what has failed.
    pub(super) fn held(&self) -> BTreeSet<String> {
        self.failed.iter().filter_map(|name| name.split('/').nth(1)).map(str::to_owned).collect()
    }

    /// Keeps only the writes that are `open`. An eviction that is over counts from `now` on: it was announced before, and the
    /// server may have done it at any time since.
    pub(super) fn close(&mut self, open: &BTreeMap<String, Write>, now: Timestamp) {
        let now = now.as_second();
        for (name, write) in std::mem::replace(&mut self.writes, open.clone()) {
            if write.evict && !open.contains_key(&name) {
                if let Some(count) = self.evictions.get_mut(&write.at.as_second()) {
                    *count = count.saturating_sub(1);
                }
                let count = self.evictions.entry(now).or_default();
                *count = count.saturating_add(1);
            }
        }
        self.evictions.retain(|then, count| *count > 0 && now.saturating_sub(*then) < MINUTE);
    }
}

impl Write {
    /// Whether it was announced more than a minute ago.
    pub(super) fn is_overdue(&self, now: Timestamp) -> bool {
        now.as_second().saturating_sub(self.at.as_second()) >= MINUTE
    }
}

impl Record {
    /// That of a revision whose rollout began and was complete at these times.
    pub fn complete(begun: Timestamp, ended: Timestamp) -> Self {
        let times = Times { begun: Some(begun), disturbed: None, ended: Some(ended) };
        Self { complete: Some(ended), progress: Course { times, ..Course::default() }, ..Self::default() }
    }

    /// That of a rollout that begins `now`, as far as it says nothing else.
    pub fn begun(now: Timestamp) -> Self {
        let times = Times { begun: Some(now), ..Times::default() };
        Self { progress: Course { times, ..Course::default() }, ..Self::default() }
    }

    /// The record in the annotations of a revision. What is unreadable counts as absent, but for a halt: whether a rollout that is not
    /// complete was halted is unknown then, so it is. Of each list only the first 256 entries count. Of the selectors that steps have
    /// reached, 64 KiB count.
    pub fn parse(annotations: &Value) -> Self {
        let text = |key: &str| annotations[key].as_str();
        let complete = text(COMPLETE).and_then(|text| text.parse().ok());
        let mut progress = match text(PROGRESS).map(serde_json::from_str::<Course>) {
            Some(Ok(course)) => course,
            unread => Course {
                times: Times { ended: complete, ..Times::default() },
                halted: (unread.is_some() && complete.is_none()).then(Halted::unreadable),
                ..Course::default()
            },
        };
        progress.writes = progress.writes.into_iter().take(MOST).collect();
        progress.evictions = progress.evictions.into_iter().rev().take(MOST).collect();
        progress.evicted = progress.evicted.into_iter().take(MOST).collect();
        progress.broken = progress.broken.into_iter().take(MOST).collect();
        progress.failed = progress.failed.into_iter().take(MOST).collect();
        Self {
            reached: text(REACHED).and_then(|text| serde_json::from_str(text).ok()).map(Reached::bounded),
            complete,
            ahead: text(AHEAD).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default(),
            progress,
        }
    }

    /// The annotations of a revision with this record; null for one that is to be removed.
    pub fn annotations(&self) -> Value {
        let text = |is_there: bool, value: Value| if is_there { json!(value.to_string()) } else { Value::Null };
        json!({
            REACHED: text(self.reached.is_some(), json!(self.reached)),
            COMPLETE: self.complete.map(|time| time.to_string()),
            AHEAD: text(self.ahead != Ahead::default(), json!(self.ahead)),
            PROGRESS: text(self.progress != Course::default(), json!(self.progress)),
        })
    }
}

/// The times of commands that were ahead of the leader's clock. A clock that is fast must not repeat a command until the
/// leader's clock has caught up.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Ahead {
    /// Of `scpol rollout restart`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted: Option<FirstSeen>,
    /// Of `scpol rollout resume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<FirstSeen>,
}

impl Ahead {
    /// What is recorded about the commands that count now, of which the revisions have `recorded`: what they say about other
    /// commands is not kept.
    pub fn of(commands: Commands, recorded: impl Iterator<Item = Self> + Clone, now: Timestamp) -> Self {
        // Creation times are in whole seconds, and what was created in this one is not made anew twice.
        let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
        Self {
            restarted: FirstSeen::of(commands.restarted, recorded.clone().filter_map(|ahead| ahead.restarted), second),
            resumed: FirstSeen::of(commands.resumed, recorded.filter_map(|ahead| ahead.resumed), now),
        }
    }
}

impl Commands {
    /// The times that count, if `ahead` is recorded about these commands.
    #[must_use]
    pub fn counted(self, ahead: Ahead) -> Self {
        let counts = |asked: Option<Timestamp>, seen: Option<FirstSeen>| seen.map(|seen| seen.at).or(asked);
        Self { restarted: counts(self.restarted, ahead.restarted), resumed: counts(self.resumed, ahead.resumed) }
    }
}

/// The times of the last command of each kind, as the policy has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Commands {
    /// Of `scpol rollout restart`.
    pub restarted: Option<Timestamp>,
    /// Of `scpol rollout resume`.
    pub resumed: Option<Timestamp>,
}

/// A time that was ahead of the leader's clock.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FirstSeen {
    /// The time as written.
    pub asked: Timestamp,
    /// When a leader first saw it: the time that counts.
    pub at: Timestamp,
}

impl FirstSeen {
    /// What is recorded about the time `asked`, of which the revisions have `recorded`: none if it was never ahead of a
    /// leader's clock.
    pub fn of(asked: Option<Timestamp>, recorded: impl Iterator<Item = FirstSeen>, now: Timestamp) -> Option<Self> {
        let asked = asked?;
        let known = recorded.filter(|seen| seen.asked == asked && seen.at <= now).min_by_key(|seen| seen.at);
        known.or_else(|| (asked > now).then_some(Self { asked, at: now }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::LabelSelector;

    #[test]
    fn a_record_is_read_as_it_was_written_and_no_more_of_it_than_a_leader_writes() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let write = Write { uid: "u".into(), at: at(1), by: "a".into(), evict: true };
        let progress = Course {
            times: Times { begun: Some(at(1)), ..Times::default() },
            halted: Some(Halted { at: at(2), message: "m".into() }),
            followed: Followed { resumed: Some(at(3)), ..Followed::default() },
            writes: BTreeMap::from([("pods/shop/a".into(), write.clone())]),
            evictions: BTreeMap::from([(1, 2)]),
            broken: BTreeSet::from(["pods/shop/b".into()]),
            failed: BTreeSet::from(["pods/shop/c".into()]),
            ..Course::default()
        };
        let mut reached = Reached::begin("old", at(1));
        reached.extent.namespaces.insert("canary".into());
        let ahead = Ahead { restarted: Some(FirstSeen { asked: at(600), at: at(5) }), resumed: None };
        let whole = Record { reached: Some(reached), complete: Some(at(9)), ahead, progress };
        for record in [whole.clone(), Record::default()] {
            assert_eq!(Record::parse(&record.annotations()), record);
        }
        let text = r#"{"begun":"1970-01-01T00:00:01Z","broken":["pods/shop/b"],"evictions":{"1":2},"failed":["pods/shop/c"],"halted":{"at":"1970-01-01T00:00:02Z","message":"m"},"resumed":"1970-01-01T00:00:03Z","writes":{"pods/shop/a":{"at":"1970-01-01T00:00:01Z","by":"a","evict":true,"uid":"u"}}}"#;
        assert_eq!(whole.annotations()[PROGRESS], text);
        assert!(Record::default().annotations().as_object().unwrap().values().all(Value::is_null));
        let mut many = whole;
        many.progress.writes = (0..5000).map(|index| (format!("pods/shop/{index}"), write.clone())).collect();
        many.progress.evictions = (0..5000).map(|second| (second, 1)).collect();
        let text = r#"{"from":"old","since":"1970-01-01T00:00:01Z","step":0,"updated":["canary"]}"#;
        assert_eq!(many.annotations()[REACHED], text);
        let reached = many.reached.as_mut().unwrap();
        reached.extent.add_percent(30);
        let selector = |number: usize| LabelSelector {
            match_labels: [("track".to_owned(), format!("canary-{number}"))].into(),
            ..LabelSelector::default()
        };
        reached.extent.add_selector(&selector(0));
        assert_eq!(Record::parse(&many.annotations()).reached, many.reached);
        many.reached.as_mut().unwrap().extent.selectors = (0..20_000).map(selector).collect();
        let read = Record::parse(&many.annotations()).reached.unwrap().extent.selectors;
        assert!((1000..2000).contains(&read.len()), "{}", read.len());
        let read = Record::parse(&many.annotations()).progress;
        assert_eq!((read.writes.len(), read.evictions.len()), (MOST, MOST));
        assert!(read.evictions.contains_key(&4999), "the last count");
        let unreadable = Record::parse(&json!({ COMPLETE: at(7).to_string(), PROGRESS: "{" }));
        assert_eq!((unreadable.complete, unreadable.progress.times.ended), (Some(at(7)), Some(at(7))));
        assert_eq!(unreadable.progress.halted, None);
        assert_eq!(Record::parse(&json!({ PROGRESS: "{" })).progress.halted, Some(Halted::unreadable()));
    }

    #[test]
    fn a_time_ahead_of_the_clock_counts_as_the_time_at_which_it_was_first_seen() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let seen = |asked: i64, seen: i64| FirstSeen { asked: at(asked), at: at(seen) };
        let of = |asked: i64, recorded: &[FirstSeen], now: i64| {
            FirstSeen::of(Some(at(asked)), recorded.iter().copied(), at(now)).map(|seen| seen.at.as_second())
        };
        assert_eq!(FirstSeen::of(None, [].into_iter(), at(5)), None);
        assert_eq!((of(5, &[], 5), of(5, &[], 6)), (None, None), "it is not ahead");
        assert_eq!(of(600, &[], 5), Some(5));
        // Also after the leader, and after our clock has caught up.
        for now in [6, 599, 600, 10_000] {
            assert_eq!(of(600, &[seen(600, 5)], now), Some(5), "{now}");
        }
        assert_eq!(of(700, &[seen(600, 5)], 6), Some(6), "it is another command");
        assert_eq!(of(600, &[seen(600, 9), seen(600, 5)], 10), Some(5), "the first counts");
        assert_eq!(of(600, &[seen(600, 300)], 10), Some(10), "the clock of that leader was fast, too");
        // The last command counts, whatever is recorded about others: the clock of a leader may have been fast, too.
        let kept = |asked: Option<i64>, recorded: &[FirstSeen]| {
            let recorded = recorded.iter().map(|seen| Ahead { restarted: Some(*seen), resumed: Some(*seen) });
            let commands = Commands { restarted: asked.map(at), resumed: asked.map(at) };
            let Ahead { restarted, resumed } = Ahead::of(commands, recorded, at(40));
            assert_eq!(restarted, resumed);
            restarted
        };
        let recorded = [seen(600, 5), seen(700, 30), seen(700, 20), seen(900, 9000)];
        assert_eq!(kept(Some(700), &recorded), Some(seen(700, 20)));
        assert_eq!(kept(Some(600), &recorded), Some(seen(600, 5)));
        assert_eq!(kept(Some(800), &recorded), Some(seen(800, 40)), "it is a new command");
        assert_eq!(kept(Some(30), &recorded), None, "it was never ahead");
        assert_eq!((kept(None, &recorded), kept(Some(700), &[])), (None, Some(seen(700, 40))));
    }
}
